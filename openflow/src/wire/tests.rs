use super::*;
use datapath::wire::Mac;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr};

fn written(xid: u32, message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    message.write(xid, &mut out);
    out
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

/// As the specification draws them (OpenFlow 1.3.5, sections 7.1 to 7.3), and as Open vSwitch's own
/// parser wrote them (tests/ofp-actions.at has actions of that form).
#[test]
fn messages_are_bytes_as_specified() {
    let is = |message: &Message, bytes: &str| {
        assert_eq!(written(7, message), hex(bytes), "{message:?}");
    };
    is(&Message::Hello(1 << 4), "04000010 00000007 0001 0008 00000010");
    is(&Message::BarrierRequest, "04140008 00000007");
    is(&Message::RoleRequest(Role::Master, 5), "04180018 00000007 00000002 00000000 0000000000000005");
    is(
        &Message::MultipartRequest(Request::Flows(0x4c56 << 48, 0xffff << 48)),
        "04120038 00000007 0001 0000 00000000 ff000000 ffffffff ffffffff 00000000 4c56000000000000 ffff000000000000 \
         0001 0004 00000000",
    );
    let matches = Match::of([Field::new(Kind::ETH_TYPE, 0x0800_u16), Field::target(Ipv4Addr::new(10, 0, 0, 1).into())]);
    let actions = vec![
        Action::Set(Field::mac(Kind::ETH_DST, Mac([2, 0, 0, 0, 0, 1]))),
        Action::FinTimeout(1),
        Action::Output(port::NORMAL, 0),
    ];
    let change = FlowMod {
        command: FlowCommand::Add,
        cookie: 9,
        cookie_mask: 0,
        table: 0,
        idle_timeout_s: 10,
        priority: 100,
        flags: flag::SEND_REMOVED,
        matches,
        instructions: vec![Instruction::Apply(actions)],
    };
    is(
        &Message::FlowMod(change),
        "040e0080 00000007 0000000000000009 0000000000000000 00 00 000a 0000 0064 ffffffff ffffffff ffffffff 0001 0000 \
         0001 0012 80000a02 0800 80001804 0a000001 000000000000 \
         0004 0038 00000000 \
         0019 0010 80000606 020000000001 0000 \
         ffff 0010 00002320 0013 0001 0000 0000 \
         0000 0010 fffffffa 0000 000000000000",
    );
    let change = GroupMod {
        command: GroupCommand::Delete,
        id: 3,
        buckets: vec![Bucket { weight: 1, actions: vec![Action::SetTtl(64)] }],
    };
    is(
        &Message::GroupMod(change),
        "040f0028 00000007 0002 01 00 00000003 0018 0001 ffffffff ffffffff 00000000 0017 0008 40 000000",
    );
    let ct = Action::Ct {
        commits: true,
        zone: 7,
        table: Some(2),
        nat: Some(Nat::To(Ipv4Addr::new(10, 0, 0, 1).into(), 80)),
    };
    let change = GroupMod { command: GroupCommand::Add, id: 3, buckets: vec![Bucket { weight: 1, actions: vec![ct] }] };
    is(
        &Message::GroupMod(change),
        "040f0050 00000007 0000 01 00 00000003 \
         0040 0001 ffffffff ffffffff 00000000 \
         ffff 0030 00002320 0023 0001 00000000 0007 02 000000 0000 \
         ffff 0018 00002320 0024 0000 0002 0011 0a000001 0050 0000",
    );
}

/// As Open vSwitch 3.1 reads them (ovs-ofctl ofp-print, parse-oxm).
#[test]
fn ipv6_is_bytes_as_specified() {
    let ip: IpAddr = "fd00::1".parse().unwrap();
    let is = |field: Field, bytes: &str| {
        let mut out = Vec::new();
        field.write(&mut out);
        assert_eq!(out, hex(bytes), "{field:?}");
    };
    is(Field::source(ip), "80003410 fd000000000000000000000000000001");
    is(Field::target(ip), "80003610 fd000000000000000000000000000001");
    is(Field::new(Kind::ICMPV6_TYPE, 136_u8), "80003a01 88");
    is(Field::new(Kind::ND_TARGET, 1_u8), "80003e10 00000000000000000000000000000001");
    is(Field::mac(Kind::ND_TLL, Mac([2, 0, 0, 0, 0, 1])), "80004206 020000000001");
    is(Field::new(Kind::ND_FLAGS, 0x6000_0000_u32), "10000204 60000000");
    is(Field::new(Kind::ND_OPTION, 2_u8), "10000401 02");
    let actions = vec![Action::Ct { commits: true, zone: 7, table: Some(2), nat: Some(Nat::To(ip, 80)) }];
    let change = GroupMod { command: GroupCommand::Add, id: 3, buckets: vec![Bucket { weight: 1, actions }] };
    let bytes = "040f0060 00000007 0000 01 00 00000003 \
                 0050 0001 ffffffff ffffffff 00000000 \
                 ffff 0040 00002320 0023 0001 00000000 0007 02 000000 0000 \
                 ffff 0028 00002320 0024 0000 0002 0014 fd000000000000000000000000000001 0050 000000000000";
    assert_eq!(written(7, &Message::GroupMod(change)), hex(bytes));
}

fn field() -> impl Strategy<Value = Field> {
    (prop::sample::select(Kind::ALL), any::<u128>(), any::<Option<u128>>()).prop_map(|(kind, value, mask)| {
        let keep = u128::MAX >> (128 - kind.bits());
        Field { kind, value: value & keep, mask: mask.map(|mask| mask & keep) }
    })
}

fn matches() -> impl Strategy<Value = Match> {
    prop::collection::vec(field(), 0..8).prop_map(Match::of)
}

fn nat() -> impl Strategy<Value = Nat> {
    prop_oneof![Just(Nat::Known), (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| Nat::To(ip, port))]
}

fn action() -> impl Strategy<Value = Action> {
    let whole = field().prop_map(|field| Field { mask: None, ..field });
    prop_oneof![
        (any::<u32>(), any::<u16>()).prop_map(|(port, bytes)| Action::Output(port, bytes)),
        any::<u32>().prop_map(Action::Group),
        any::<u8>().prop_map(Action::SetTtl),
        whole.prop_map(Action::Set),
        prop::sample::select(vec![
            (Kind::ETH_SRC, Kind::ETH_DST),
            (Kind::ARP_SPA, Kind::ARP_TPA),
            (Kind::IPV6_SRC, Kind::IPV6_DST)
        ])
        .prop_map(|(from, to)| Action::Move(from, to)),
        any::<u16>().prop_map(Action::FinTimeout),
        (any::<bool>(), any::<u16>(), prop::option::of(0u8..255), prop::option::of(nat()))
            .prop_map(|(commits, zone, table, nat)| Action::Ct { commits, zone, table, nat }),
    ]
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    prop::collection::vec(action(), 0..6)
}

fn instructions() -> impl Strategy<Value = Vec<Instruction>> {
    let one = prop_oneof![actions().prop_map(Instruction::Apply), any::<u8>().prop_map(Instruction::Goto)];
    prop::collection::vec(one, 0..4)
}

fn buckets() -> impl Strategy<Value = Vec<Bucket>> {
    prop::collection::vec((any::<u16>(), actions()).prop_map(|(weight, actions)| Bucket { weight, actions }), 0..5)
}

fn flow_mod() -> impl Strategy<Value = FlowMod> {
    let commands = vec![FlowCommand::Add, FlowCommand::Delete];
    let numbers = any::<(u64, u64, u8, u16, u16, u16)>();
    (prop::sample::select(commands), numbers, matches(), instructions()).prop_map(
        |(command, (cookie, cookie_mask, table, idle_timeout_s, priority, flags), matches, instructions)| FlowMod {
            command,
            cookie,
            cookie_mask,
            table,
            idle_timeout_s,
            priority,
            flags,
            matches,
            instructions,
        },
    )
}

fn flow_stats() -> impl Strategy<Value = FlowStats> {
    (any::<(u8, u16, u64, u64, u64)>(), matches(), instructions()).prop_map(
        |((table, priority, cookie, packets, bytes), matches, instructions)| FlowStats {
            table,
            priority,
            cookie,
            packets,
            bytes,
            matches,
            instructions,
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    let data = || prop::collection::vec(any::<u8>(), 0..60);
    let role = prop::sample::select(vec![Role::NoChange, Role::Equal, Role::Master, Role::Slave]);
    let groups = vec![GroupCommand::Add, GroupCommand::Modify, GroupCommand::Delete];
    prop_oneof![
        any::<u32>().prop_map(Message::Hello),
        (any::<u16>(), any::<u16>(), data()).prop_map(|(kind, code, data)| Message::Error(kind, code, data)),
        data().prop_map(Message::EchoRequest),
        data().prop_map(Message::EchoReply),
        any::<(u64, u8, u8)>().prop_map(|(datapath, tables, auxiliary)| {
            Message::FeaturesReply(Features { datapath, tables, auxiliary })
        }),
        any::<u16>().prop_map(Message::SetConfig),
        (any::<u64>(), any::<u8>(), matches(), data())
            .prop_map(|(cookie, table, about, data)| Message::PacketIn(PacketIn { cookie, table, about, data })),
        (any::<u32>(), actions(), data()).prop_map(|(in_port, actions, data)| Message::PacketOut(PacketOut {
            in_port,
            actions,
            data
        })),
        (any::<(u64, u16, u8, u8, u64, u64)>(), matches()).prop_map(
            |((cookie, priority, reason, table, packets, bytes), matches)| {
                Message::FlowRemoved(FlowRemoved { cookie, priority, reason, table, packets, bytes, matches })
            }
        ),
        flow_mod().prop_map(Message::FlowMod),
        (prop::sample::select(groups), any::<u32>(), buckets())
            .prop_map(|(command, id, buckets)| Message::GroupMod(GroupMod { command, id, buckets })),
        any::<(u64, u64)>().prop_map(|(cookie, mask)| Message::MultipartRequest(Request::Flows(cookie, mask))),
        (prop::collection::vec(flow_stats(), 0..5), any::<bool>())
            .prop_map(|(flows, more)| Message::MultipartReply(Multipart::Flows(flows), more)),
        (prop::collection::vec((any::<u32>(), buckets()), 0..4), any::<bool>()).prop_map(|(groups, more)| {
            let groups = groups.into_iter().map(|(id, buckets)| GroupDescription { id, buckets }).collect();
            Message::MultipartReply(Multipart::Groups(groups), more)
        }),
        ("[ -~]{0,40}", "[ -~]{0,40}").prop_map(|(manufacturer, software)| {
            let description = Description { manufacturer, software, ..Description::default() };
            Message::MultipartReply(Multipart::Description(description), false)
        }),
        (role.clone(), any::<u64>()).prop_map(|(role, generation)| Message::RoleRequest(role, generation)),
        (role, any::<u64>()).prop_map(|(role, generation)| Message::RoleReply(role, generation)),
        Just(Message::BarrierReply),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(xid: u32, message in message()) {
        let bytes = written(xid, &message);
        prop_assert_eq!(bytes.len(), usize::from(u16::from_be_bytes([bytes[2], bytes[3]])));
        prop_assert_eq!(Message::read(&bytes), Ok((xid, message)));
    }

    /// Bytes of which some are wrong, or that end early, are refused or are another message;
    /// nothing else happens. What could be read can be written and read again.
    #[test]
    fn damage_is_refused_or_read(message in message(), at: prop::sample::Index, byte: u8, end: prop::sample::Index) {
        let mut bytes = written(1, &message);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes.truncate(end.index(bytes.len() + 1));
        if let Ok((xid, read)) = Message::read(&bytes) {
            let again = written(xid, &read);
            prop_assert!(Message::read(&again).is_ok());
        }
    }

    /// A stream comes in any pieces; its messages are the same.
    #[test]
    fn a_stream_is_cut_where_its_messages_end(all in prop::collection::vec(message(), 1..6), piece in 1usize..200) {
        let bytes: Vec<u8> = all.iter().flat_map(|message| written(3, message)).collect();
        let mut stream = Stream::default();
        let mut read = Vec::new();
        for piece in bytes.chunks(piece) {
            prop_assert_eq!(stream.add(piece), piece.len());
            while let Some(message) = stream.next(false).unwrap() {
                read.push(Message::read(message).unwrap().1);
            }
        }
        prop_assert_eq!(read, all);
    }
}

#[test]
fn a_stream_is_bounded_and_ends_where_it_is_no_openflow() {
    let mut stream = Stream::default();
    let long = [&[4, 2, 0xff, 0xff][..], &[0; 200_000]].concat();
    let taken = stream.add(&long);
    assert!(taken < 140_000, "{taken}");
    assert_eq!(stream.next(false).unwrap().map(<[u8]>::len), Some(65_535));
    assert_eq!(Stream::default().next(false), Ok(None));
    let broken = |bytes: &[u8], any| {
        let mut stream = Stream::default();
        stream.add(bytes);
        stream.next(any).map(|message| message.map(<[u8]>::len))
    };
    assert_eq!(broken(&[4, 0, 0, 7, 0, 0, 0, 0], false), Err(Broken::Length(7)));
    assert_eq!(broken(&[1, 0, 0, 8, 0, 0, 0, 0], false), Err(Broken::Version(1)));
    assert_eq!(broken(&[1, 0, 0, 8, 0, 0, 0, 0], true), Ok(Some(8)));
}

#[test]
fn versions_come_from_the_bitmap_or_from_the_header() {
    let hello = |bytes: &str| match Message::read(&hex(bytes)) {
        Ok((_, Message::Hello(versions))) => versions,
        other => panic!("{other:?}"),
    };
    assert_eq!(hello("06000010 00000001 0001 0008 00000012"), 0x12);
    assert_eq!(hello("04000008 00000001"), 0b11110);
    assert_eq!(hello("01000008 00000001"), 0b10);
    // An element that is longer than the message says nothing.
    assert_eq!(hello("01000010 00000001 0001 ffff 00000010"), 0b10);
}
