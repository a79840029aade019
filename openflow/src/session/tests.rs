use super::*;
use crate::balance::tests::live;
use crate::rules::tests::{config, of_both_versions};
use crate::wire::{Action, FlowCommand, FlowMod, GroupDescription, Instruction, Match, port};
use datapath::service::{OnFailure, WhenDown};
use datapath::wire::Mac;
use datapath::wire::build::eth;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const MS: u64 = 1_000_000;
const NUMBER: u64 = 42;

/// A switch that does as it is told, as far as balancing needs one.
#[derive(Default)]
struct Switch {
    flows: BTreeMap<(u8, u16, Vec<Field>), FlowMod>,
    groups: BTreeMap<u32, GroupMod>,
    stream: Stream,
    packets: Vec<PacketOut>,
    role: Option<Role>,
    generation: u64,
    refuses: Option<(u16, u16)>,
    /// Changes that it was asked for.
    changes: usize,
    barriers: usize,
}

impl Switch {
    /// What it answers to what was sent.
    fn take(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let (mut out, mut stream) = (Vec::new(), std::mem::take(&mut self.stream));
        while !bytes.is_empty() {
            bytes = &bytes[stream.add(bytes)..];
            while let Some(message) = stream.next(true).unwrap() {
                let (xid, message) = Message::read(message).unwrap();
                for answer in self.answer(message) {
                    answer.write(xid, &mut out);
                }
            }
        }
        self.stream = stream;
        out
    }

    fn answer(&mut self, message: Message) -> Vec<Message> {
        self.changes += usize::from(matches!(message, Message::FlowMod(_) | Message::GroupMod(_)));
        match message {
            Message::Hello(_) => vec![Message::Hello(1 << VERSION)],
            Message::FeaturesRequest => {
                vec![Message::FeaturesReply(Features { datapath: NUMBER, tables: 254, auxiliary: 0 })]
            }
            Message::EchoRequest(data) => vec![Message::EchoReply(data)],
            Message::RoleRequest(Role::NoChange, _) => {
                vec![Message::RoleReply(self.role.unwrap_or(Role::Equal), self.generation)]
            }
            Message::RoleRequest(role, generation) => {
                if role != Role::Equal && generation.wrapping_sub(self.generation) as i64 <= 0 {
                    return vec![Message::Error(fault::STALE.0, fault::STALE.1, Vec::new())];
                }
                (self.role, self.generation) = (Some(role), generation);
                vec![Message::RoleReply(role, generation)]
            }
            Message::MultipartRequest(Request::Description) => {
                vec![Message::MultipartReply(Multipart::Description(Description::default()), false)]
            }
            Message::MultipartRequest(Request::Groups) => {
                let all = self.groups.values().map(|g| GroupDescription { id: g.id, buckets: g.buckets.clone() });
                vec![Message::MultipartReply(Multipart::Groups(all.collect()), false)]
            }
            Message::MultipartRequest(Request::Flows(cookie, mask)) => {
                let ours = self.flows.values().filter(|flow| flow.cookie & mask == cookie);
                // In parts of three.
                let all: Vec<FlowStats> = ours.map(stats).collect();
                let mut parts: Vec<Message> =
                    all.chunks(3).map(|part| Message::MultipartReply(Multipart::Flows(part.to_vec()), true)).collect();
                parts.push(Message::MultipartReply(Multipart::Flows(Vec::new()), false));
                parts
            }
            Message::BarrierRequest => {
                self.barriers += 1;
                vec![Message::BarrierReply]
            }
            Message::FlowMod(_) | Message::GroupMod(_) if self.refuses.is_some() => {
                let (kind, code) = self.refuses.unwrap();
                vec![Message::Error(kind, code, Vec::new())]
            }
            Message::FlowMod(change) => {
                if change.command == FlowCommand::Add {
                    self.flows.insert((change.table, change.priority, change.matches.fields.clone()), change);
                } else {
                    self.flows.retain(|_, flow| {
                        flow.table != change.table || flow.cookie & change.cookie_mask != change.cookie
                    });
                }
                Vec::new()
            }
            Message::GroupMod(change) => {
                let is_there = self.groups.contains_key(&change.id);
                assert_eq!(is_there, change.command != GroupCommand::Add, "{:?} of {}", change.command, change.id);
                if change.command == GroupCommand::Delete {
                    self.groups.remove(&change.id);
                } else {
                    self.groups.insert(change.id, change);
                }
                Vec::new()
            }
            Message::PacketOut(packet) => {
                self.packets.push(packet);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn of_connections(&self, rules: &Rules) -> usize {
        self.flows.values().filter(|flow| rules.connection_of(flow.cookie).is_some()).count()
    }
}

fn stats(flow: &FlowMod) -> FlowStats {
    FlowStats {
        table: flow.table,
        priority: flow.priority,
        cookie: flow.cookie,
        packets: 5,
        bytes: 300,
        matches: flow.matches.clone(),
        instructions: flow.instructions.clone(),
    }
}

/// Lets both speak until nothing is left to say.
fn run(session: &mut Session, switch: &mut Switch, balancer: &mut Balancer, now: Instant) -> Result<(), String> {
    loop {
        let said = std::mem::take(session.out());
        if said.is_empty() {
            return Ok(());
        }
        let answer = switch.take(&said);
        // In pieces, as a network brings them.
        for piece in answer.chunks(11) {
            session.receive(now, piece, balancer)?;
        }
    }
}

fn connect(config: &OpenFlow, switch: &mut Switch) -> (Session, Balancer) {
    let rules = Arc::new(Rules::of(config));
    let mut balancer = Balancer::new(config, &rules, 3);
    let mut session = Session::new(config, rules, Instant(1));
    run(&mut session, switch, &mut balancer, Instant(MS)).unwrap();
    (session, balancer)
}

fn frame(from: (IpAddr, u16), to: (IpAddr, u16), flags: u8) -> Vec<u8> {
    let build = eth(Mac([2, 0, 0, 0, 0, 9]), Mac([2, 0, 0, 0, 1, 0]));
    let mut bytes = Vec::new();
    build.ip(from.0, to.0).tcp(from.1, to.1, 1).flags(flags).write(&mut bytes);
    bytes
}

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));
const SERVICE: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 100)), 80);
const SERVICE6: (IpAddr, u16) = (IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x100)), 80);

/// A frame comes to the controller by a flow of ours.
fn packet_in(session: &mut Session, balancer: &mut Balancer, now: Instant, data: Vec<u8>) {
    let about = Match::of([Field::new(Kind::IN_PORT, 3_u32)]);
    let mut bytes = Vec::new();
    Message::PacketIn(PacketIn { cookie: session.rules.owner | 1, table: 0, about, data }).write(0, &mut bytes);
    session.receive(now, &bytes, balancer).unwrap();
}

/// A flow has gone for want of frames.
fn removed(flow: &FlowMod) -> Message {
    Message::FlowRemoved(FlowRemoved {
        cookie: flow.cookie,
        priority: flow.priority,
        reason: 0,
        table: 0,
        packets: 1,
        bytes: 60,
        matches: flow.matches.clone(),
    })
}

fn sets(actions: &[Action], kind: Kind) -> Option<u128> {
    actions.iter().find_map(|action| match action {
        Action::Set(field) if field.kind == kind => Some(field.value),
        _ => None,
    })
}

#[test]
fn a_switch_gets_its_rules_once() {
    for mode in ["reactive", "hash"] {
        let (config, mut switch) = (config(mode, 2), Switch::default());
        let (session, _) = connect(&config, &mut switch);
        assert_eq!((session.status().phase, session.status().role), ("ready", "equal"));
        assert_eq!(switch.flows.len(), session.rules.flows.len());
        assert_eq!(switch.groups.len(), session.rules.groups.len());
        // Another connection finds all of it, and removes what is old; others' flows stay.
        let other = FlowMod { cookie: 77, ..session.rules.flows[0].clone() };
        switch.flows.insert((9, 9, Vec::new()), other);
        let old = FlowMod { cookie: session.rules.owner | 5, table: 1, ..session.rules.flows[0].clone() };
        switch.flows.insert((1, 9, Vec::new()), old);
        let count = switch.flows.len();
        let (mut session, _) = connect(&config, &mut switch);
        assert_eq!(switch.flows.len(), count - 1);
        let notes: Vec<String> = std::iter::from_fn(|| session.note_next()).map(|note| note.text).collect();
        assert!(notes[0].contains("1 old ones") && notes[0].ends_with("0 are added"), "{notes:?}");
    }
}

#[test]
fn a_connection_gets_two_flows_and_its_frame_goes_on() {
    let (config, mut switch) = (config("reactive", 2), Switch::default());
    let (mut session, mut balancer) = connect(&config, &mut switch);
    let barriers = switch.barriers;
    for n in 0..4 {
        packet_in(
            &mut session,
            &mut balancer,
            Instant(n * MS),
            frame((CLIENT, 1000 + n as u16), SERVICE, tcp_flags::SYN),
        );
    }
    run(&mut session, &mut switch, &mut balancer, Instant(9 * MS)).unwrap();
    assert_eq!(switch.of_connections(&session.rules), 8);
    assert_eq!(switch.barriers, barriers + 4);
    // Turn by turn, translated for the backend, on the port that it came by.
    let to = |packet: &PacketOut| sets(&packet.actions, Kind::IPV4_DST).map(|ip| Ipv4Addr::from_bits(ip as u32));
    let backends: Vec<_> = switch.packets.iter().filter_map(to).map(|ip| ip.octets()[3]).collect();
    assert_eq!(backends, [1, 2, 1, 2]);
    assert!(
        switch.packets.iter().all(|packet| packet.in_port == 3 && sets(&packet.actions, Kind::TCP_DST) == Some(8080))
    );
    assert_eq!(live(&balancer), BTreeMap::from([((0, 0), 2), ((0, 1), 2)]));
    assert_eq!((session.status().packet_ins, session.status().set_up, session.status().ignored), (4, 4, 0));
    // What idles is told, and remembered: what the backend says next goes through again.
    let gone = |flow: &FlowMod| {
        let mut bytes = Vec::new();
        removed(flow).write(0, &mut bytes);
        bytes
    };
    let [answers, asks] = session.rules.clone().flows_of(0, 0, Client { ip: CLIENT, port: 1000 }).unwrap();
    session.receive(Instant(10 * MS), &gone(&answers), &mut balancer).unwrap();
    assert_eq!(live(&balancer)[&(0, 0)], 2);
    session.receive(Instant(10 * MS), &gone(&asks), &mut balancer).unwrap();
    assert_eq!(live(&balancer)[&(0, 0)], 1);
    switch.packets.clear();
    let answer = frame((Ipv4Addr::new(10, 0, 0, 1).into(), 8080), (CLIENT, 1000), tcp_flags::ACK);
    packet_in(&mut session, &mut balancer, Instant(11 * MS), answer);
    run(&mut session, &mut switch, &mut balancer, Instant(11 * MS)).unwrap();
    assert_eq!(sets(&switch.packets[0].actions, Kind::IPV4_SRC), Some(Field::source(SERVICE.0).value));
    assert_eq!(live(&balancer)[&(0, 0)], 2);
    // One to the backend's own address is left alone.
    let direct = frame((Ipv4Addr::new(10, 0, 0, 1).into(), 8080), (CLIENT, 5000), tcp_flags::ACK);
    packet_in(&mut session, &mut balancer, Instant(12 * MS), direct);
    run(&mut session, &mut switch, &mut balancer, Instant(12 * MS)).unwrap();
    assert_eq!(switch.packets[1].actions, [Action::Output(port::NORMAL, 0)]);
}

#[test]
fn a_client_connects_to_a_backend_itself_from_the_port_of_a_connection_that_is_over() {
    let (config, mut switch) = (config("reactive", 2), Switch::default());
    let (mut session, mut balancer) = connect(&config, &mut switch);
    let backend = (Ipv4Addr::new(10, 0, 0, 1).into(), 8080);
    packet_in(&mut session, &mut balancer, Instant(MS), frame((CLIENT, 1000), SERVICE, tcp_flags::SYN));
    balancer.gone(Instant(2 * MS), NUMBER, Key { front: 0, client: end((CLIENT, 1000)) });
    run(&mut session, &mut switch, &mut balancer, Instant(2 * MS)).unwrap();
    switch.flows.retain(|_, flow| session.rules.connection_of(flow.cookie).is_none());
    // It says something more on the old one; and it answers the SYN of a new one.
    let data = (tcp_flags::ACK, Some(Field::source(SERVICE.0).value));
    for (flags, source) in [data, (tcp_flags::SYN | tcp_flags::ACK, None)] {
        switch.packets.clear();
        packet_in(&mut session, &mut balancer, Instant(3 * MS), frame(backend, (CLIENT, 1000), flags));
        balancer.gone(Instant(4 * MS), NUMBER, Key { front: 0, client: end((CLIENT, 1000)) });
        run(&mut session, &mut switch, &mut balancer, Instant(4 * MS)).unwrap();
        assert_eq!(sets(&switch.packets[0].actions, Kind::IPV4_SRC), source);
        let flows = switch.flows.values().filter(|flow| session.rules.is_passed(flow.cookie));
        assert_eq!(flows.count(), usize::from(source.is_none()));
    }
    assert_eq!(switch.packets[0].actions, [normal()]);
}

#[test]
fn a_restarted_controller_knows_every_connection() {
    let (config, mut switch) = (config("reactive", 2), Switch::default());
    let (mut session, mut balancer) = connect(&config, &mut switch);
    for n in 0..100 {
        packet_in(&mut session, &mut balancer, Instant(MS), frame((CLIENT, 1000 + n), SERVICE, tcp_flags::SYN));
    }
    run(&mut session, &mut switch, &mut balancer, Instant(MS)).unwrap();
    let (before, flows) = (live(&balancer), switch.flows.clone());
    let (mut session, mut balancer) = connect(&config, &mut switch);
    assert_eq!((live(&balancer), switch.flows.clone()), (before, flows));
    // One whose flows were lost on the way goes on where it was.
    for n in 0..100 {
        let client = Client { ip: CLIENT, port: 1000 + n };
        let key = Key { front: 0, client };
        balancer.gone(Instant(2 * MS), NUMBER, key);
        switch.packets.clear();
        packet_in(&mut session, &mut balancer, Instant(3 * MS), frame((CLIENT, client.port), SERVICE, tcp_flags::ACK));
        run(&mut session, &mut switch, &mut balancer, Instant(3 * MS)).unwrap();
        let ip = sets(&switch.packets[0].actions, Kind::IPV4_DST).unwrap() as u32;
        assert_eq!(ip & 0xff, u32::from(n % 2) + 1, "{n}");
    }
    assert_eq!(switch.of_connections(&session.rules), 200);
}

#[test]
fn what_a_switch_has_not_is_not_live_for_ever() {
    let (config, mut switch) = (config("reactive", 2), Switch::default());
    let (mut session, mut balancer) = connect(&config, &mut switch);
    let at = |seconds: u64| Instant(seconds * 1000 * MS);
    let syn = |port| frame((CLIENT, port), SERVICE, tcp_flags::SYN);
    while session.note_next().is_some() {}
    // A full table refuses; which flow it was is asked for.
    switch.refuses = Some((5, 1));
    packet_in(&mut session, &mut balancer, at(1), syn(1));
    run(&mut session, &mut switch, &mut balancer, at(1)).unwrap();
    switch.refuses = None;
    assert_eq!(live(&balancer).len(), 1);
    session.poll(at(4), &mut balancer).unwrap();
    assert!(session.out().is_empty(), "not at once");
    session.poll(at(6), &mut balancer).unwrap();
    run(&mut session, &mut switch, &mut balancer, at(6)).unwrap();
    assert_eq!(live(&balancer).len(), 0);
    // Somebody removes flows, and a rule: without a word. In a minute it is seen.
    packet_in(&mut session, &mut balancer, at(7), syn(2));
    run(&mut session, &mut switch, &mut balancer, at(7)).unwrap();
    let rules = session.rules.clone();
    switch.flows.retain(|_, flow| rules.connection_of(flow.cookie).is_none() && flow.cookie != rules.flows[0].cookie);
    session.receive(at(65), &[4, 3, 0, 8, 0, 0, 0, 0], &mut balancer).unwrap();
    session.poll(at(65), &mut balancer).unwrap();
    assert!(session.out().is_empty());
    session.poll(at(66), &mut balancer).unwrap();
    // What begins while it tells is set up, and is not what it has forgotten.
    let asked = std::mem::take(session.out());
    let answer = switch.take(&asked);
    packet_in(&mut session, &mut balancer, at(66), syn(3));
    assert_eq!(session.status().phase, "ready");
    session.receive(at(67), &answer, &mut balancer).unwrap();
    run(&mut session, &mut switch, &mut balancer, at(67)).unwrap();
    assert_eq!((live(&balancer), switch.of_connections(&rules)), (BTreeMap::from([((0, 0), 1)]), 2));
    assert_eq!(switch.flows.len(), rules.flows.len() + 2, "the rule is there again");
    let notes: Vec<String> = std::iter::from_fn(|| session.note_next()).map(|note| note.text).collect();
    assert_eq!(notes.iter().filter(|note| note.contains("1 are added")).count(), 1, "{notes:?}");
    // Where nothing has changed, nothing is said.
    session.receive(at(127), &[4, 3, 0, 8, 0, 0, 0, 0], &mut balancer).unwrap();
    session.poll(at(127), &mut balancer).unwrap();
    assert!(!session.out().is_empty());
    run(&mut session, &mut switch, &mut balancer, at(127)).unwrap();
    assert_eq!((session.note_next(), session.status().phase), (None, "ready"));
}

/// Something of the switch, so that it is not silent.
const ECHO: [u8; 8] = [4, 3, 0, 8, 0, 0, 0, 0];

#[test]
fn rules_that_are_lost_come_back() {
    for mode in ["reactive", "hash"] {
        let (config, mut switch) = (config(mode, 2), Switch::default());
        let (mut session, mut balancer) = connect(&config, &mut switch);
        let (flows, groups) = (switch.flows.clone(), switch.groups.clone());
        // Somebody removes all: it is seen in a minute, though there are counts meanwhile.
        (switch.flows, switch.groups) = Default::default();
        let mut second = |session: &mut Session, switch: &mut Switch, second: u64| {
            let now = Instant(MS + second * 1000 * MS);
            session.receive(now, &ECHO, &mut balancer).unwrap();
            session.poll(now, &mut balancer).unwrap();
            run(session, switch, &mut balancer, now).unwrap();
        };
        (1..60).for_each(|at| second(&mut session, &mut switch, at));
        assert!(switch.flows.is_empty());
        (60..62).for_each(|at| second(&mut session, &mut switch, at));
        assert!((&switch.flows, &switch.groups) == (&flows, &groups), "{mode}: {} flows", switch.flows.len());
        assert_eq!(session.status().phase, "ready");
        let changes = switch.changes;
        (62..200).for_each(|at| second(&mut session, &mut switch, at));
        assert_eq!(switch.changes, changes, "nothing is missing");
        // Refused: in 5 s, and then less often.
        for error in [(5, 1), (6, 3), (2, 9)] {
            let mut switch = Switch { refuses: Some(error), ..Switch::default() };
            let (mut session, mut balancer) = connect(&config, &mut switch);
            let mut tries = Vec::new();
            for at in 1..=200 {
                let now = Instant(MS + at * 1000 * MS);
                let changes = switch.changes;
                session.receive(now, &ECHO, &mut balancer).unwrap();
                session.poll(now, &mut balancer).unwrap();
                run(&mut session, &mut switch, &mut balancer, now).unwrap();
                tries.extend((switch.changes > changes).then_some(at));
            }
            assert_eq!(tries, [5, 15, 35, 75, 135, 195], "{mode} {error:?}");
            switch.refuses = None;
            for at in 201..=256 {
                let now = Instant(MS + at * 1000 * MS);
                session.receive(now, &ECHO, &mut balancer).unwrap();
                session.poll(now, &mut balancer).unwrap();
                run(&mut session, &mut switch, &mut balancer, now).unwrap();
            }
            assert!((&switch.flows, &switch.groups) == (&flows, &groups), "{mode} {error:?}");
        }
    }
}

#[test]
fn a_count_that_comes_late_is_no_list_of_flows() {
    let (config, mut switch) = (config("hash", 2), Switch::default());
    let (mut session, mut balancer) = connect(&config, &mut switch);
    let (flows, groups) = (switch.flows.clone(), switch.groups.clone());
    let at = |second: u64| Instant(MS + second * 1000 * MS);
    let said = |session: &mut Session, balancer: &mut Balancer, second| {
        session.receive(at(second), &ECHO, balancer).unwrap();
        session.poll(at(second), balancer).unwrap();
        std::mem::take(session.out())
    };
    let count = said(&mut session, &mut balancer, 57);
    assert!(!count.is_empty() && said(&mut session, &mut balancer, 58).is_empty(), "one question at a time");
    assert!(said(&mut session, &mut balancer, 60).is_empty(), "it is asked something");
    session.receive(at(60), &switch.take(&count), &mut balancer).unwrap();
    let list = said(&mut session, &mut balancer, 61);
    session.receive(at(61), &switch.take(&list), &mut balancer).unwrap();
    assert!(session.out().is_empty(), "all is there");
    assert!((switch.flows, switch.groups) == (flows, groups) && session.status().phase == "ready");
}

#[test]
fn a_backends_own_connections_have_flows_within_a_bound() {
    let (config, mut switch) = (config("reactive", 2), Switch::default());
    let (mut session, mut balancer) = connect(&config, &mut switch);
    let rules = session.rules.clone();
    let send = |session: &mut Session, balancer: &mut Balancer, from: u8, count: u16| {
        for port in 0..count {
            let data = frame((Ipv4Addr::new(10, 0, 0, from).into(), 8080), (CLIENT, 5000 + port), tcp_flags::ACK);
            packet_in(session, balancer, Instant(MS), data);
        }
    };
    let most = MOST_PASSED as u16;
    send(&mut session, &mut balancer, 1, most + 5);
    send(&mut session, &mut balancer, 2, 1);
    run(&mut session, &mut switch, &mut balancer, Instant(MS)).unwrap();
    assert_eq!(switch.of_connections(&rules), usize::from(most) + 1);
    assert_eq!(switch.packets.len(), usize::from(most) + 6, "all are sent on");
    // One that has gone makes room for one; another connection knows how many there are.
    let passed = |switch: &Switch| switch.flows.values().find(|flow| rules.is_passed(flow.cookie)).cloned().unwrap();
    let gone = passed(&switch);
    switch.flows.retain(|_, flow| flow.matches != gone.matches);
    let mut bytes = Vec::new();
    removed(&gone).write(0, &mut bytes);
    session.receive(Instant(MS), &bytes, &mut balancer).unwrap();
    send(&mut session, &mut balancer, 1, 2);
    run(&mut session, &mut switch, &mut balancer, Instant(MS)).unwrap();
    assert_eq!(session.passed.values().sum::<u32>(), MOST_PASSED + 1);
    let (session, _) = connect(&config, &mut switch);
    assert_eq!(session.passed.len(), 2);
    assert!(session.passed.values().all(|&count| count <= MOST_PASSED));
    // What no backend of this configuration sends has no flow.
    let mut session = session;
    assert!(!session.passes(Client { ip: CLIENT, port: 8080 }, protocol::TCP));
    assert_eq!(session.passed.len(), 2);
}

#[test]
fn what_comes_together_has_one_barrier() {
    let (config, mut switch) = (config("reactive", 2), Switch::default());
    let (mut session, mut balancer) = connect(&config, &mut switch);
    let about = Match::of([Field::new(Kind::IN_PORT, 3_u32)]);
    let mut bytes = Vec::new();
    for port in 1..=3 {
        let data = frame((CLIENT, port), SERVICE, tcp_flags::SYN);
        let packet = PacketIn { cookie: session.rules.owner | 1, table: 0, about: about.clone(), data };
        Message::PacketIn(packet).write(0, &mut bytes);
    }
    session.receive(Instant(MS), &bytes, &mut balancer).unwrap();
    // All flows are there before the first frame goes on.
    let (said, mut stream) = (std::mem::take(session.out()), Stream::default());
    assert_eq!(stream.add(&said), said.len());
    let kinds = std::iter::from_fn(|| stream.next(true).unwrap().map(|message| message[1]));
    let [flow, barrier, frame] = [14, 20, 13];
    let wanted = [[flow; 6].as_slice(), &[barrier], &[frame; 3]].concat();
    assert_eq!(kinds.collect::<Vec<u8>>(), wanted);
    switch.take(&said);
    assert_eq!((switch.of_connections(&session.rules), switch.packets.len()), (6, 3));
}

#[test]
fn a_frame_too_long_for_a_message_is_left_out() {
    let (config, mut switch) = (config("reactive", 2), Switch::default());
    let (mut session, mut balancer) = connect(&config, &mut switch);
    // It fits into a message to the controller, and not into one with what is to be done with it.
    let mut syn = frame((CLIENT, 1), SERVICE, tcp_flags::SYN);
    syn.resize(65_535 - 42, 0);
    packet_in(&mut session, &mut balancer, Instant(MS), syn);
    packet_in(&mut session, &mut balancer, Instant(MS), frame((CLIENT, 2), SERVICE, tcp_flags::SYN));
    run(&mut session, &mut switch, &mut balancer, Instant(MS)).unwrap();
    assert_eq!((switch.packets.len(), switch.of_connections(&session.rules)), (1, 4));
    assert_eq!((session.status().packet_ins, session.status().ignored), (2, 1));
}

#[test]
fn a_backend_that_does_not_answer_gets_no_new_connections() {
    for mode in ["reactive", "hash"] {
        let mut config = config(mode, 2);
        config.probe_ns = 1_000_000_000;
        let mut switch = Switch::default();
        let (mut session, mut balancer) = connect(&config, &mut switch);
        let dealt = |switch: &Switch| switch.groups.values().map(|group| group.buckets.clone()).collect::<Vec<_>>();
        let (groups, rules) = (dealt(&switch), session.rules.clone());
        while session.note_next().is_some() {}
        // A second: backends are asked, and those below `up` answer.
        let second = |session: &mut Session, switch: &mut Switch, balancer: &mut Balancer, at: u64, up: u8| {
            let now = Instant(at * 1000 * MS);
            switch.packets.clear();
            session.poll(now, balancer).unwrap();
            run(session, switch, balancer, now).unwrap();
            let asked = std::mem::take(&mut switch.packets);
            assert_eq!(asked.len(), 2);
            for packet in asked {
                let seen = Seen::of(&packet.data).unwrap();
                let sequence = u32::from_be_bytes(packet.data[38..42].try_into().unwrap());
                assert_eq!((packet.in_port, seen.is_new), (port::CONTROLLER, true));
                let below = IpAddr::from([10, 0, 0, up]);
                if seen.to.ip < below {
                    let mut data = Vec::new();
                    let build = eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 1, 0]));
                    let build = build.ip(seen.to.ip, seen.from.ip).tcp(seen.to.port, seen.from.port, 9).flags(0x12);
                    build.ack(sequence.wrapping_add(1), 100).write(&mut data);
                    packet_in(session, balancer, now, data);
                }
            }
            run(session, switch, balancer, now).unwrap();
            assert_eq!(switch.packets.len(), usize::from(up - 1), "who answers gets a reset");
        };
        let notes = |session: &mut Session| -> Vec<String> {
            std::iter::from_fn(|| session.note_next()).map(|note| note.text).collect()
        };
        for at in 1..=4 {
            assert!(notes(&mut session).is_empty());
            second(&mut session, &mut switch, &mut balancer, at, 2);
        }
        assert!(notes(&mut session)[0].starts_with("backend web/b2 does not answer"));
        assert_eq!(balancer.counts(0).1.iter().map(|count| count.is_down).collect::<Vec<_>>(), [false, true]);
        // The policy and the group leave it out; nothing but rules is in the switch.
        let key = |port| Key { front: 0, client: Client { ip: CLIENT, port } };
        let all = (0..10).map(|port| balancer.choose(Instant(5000 * MS), NUMBER, key(port), true).unwrap().backend);
        assert!(all.collect::<Vec<_>>().iter().all(|&backend| backend == 0));
        let of = |switch: &Switch| {
            let all = switch.groups.values().flat_map(|group| &group.buckets);
            all.map(|bucket| format!("{bucket:?}")).collect::<BTreeSet<_>>().len()
        };
        assert_eq!((of(&switch), switch.of_connections(&rules)), (groups.len(), 0));
        // A listing does not bring it back; its answers do.
        session.ask_for_flows(Instant(5000 * MS));
        run(&mut session, &mut switch, &mut balancer, Instant(5000 * MS)).unwrap();
        second(&mut session, &mut switch, &mut balancer, 6, 3);
        assert_eq!(of(&switch), groups.len());
        second(&mut session, &mut switch, &mut balancer, 7, 3);
        session.poll(Instant(7100 * MS), &mut balancer).unwrap();
        run(&mut session, &mut switch, &mut balancer, Instant(7100 * MS)).unwrap();
        assert_eq!(
            (notes(&mut session).pop(), dealt(&switch) == groups),
            (Some("backend web/b2 answers".to_owned()), true)
        );
        // Where none answers, all get connections.
        for at in 8..=11 {
            second(&mut session, &mut switch, &mut balancer, at, 1);
        }
        assert!(balancer.takes(0, 0) && balancer.takes(0, 1) && dealt(&switch) == groups);
        assert!(balancer.counts(0).1.iter().all(|count| count.is_down));
        // A switch that says nothing is not told more.
        switch.packets.clear();
        for (at, asked) in [(12, 2), (13, 2)] {
            session.poll(Instant(at * 1000 * MS), &mut balancer).unwrap();
            // What it answers is lost.
            switch.take(&std::mem::take(session.out()));
            assert_eq!(switch.packets.len(), asked);
        }
        // What it found is known on when it has left. When it is there again it asks, and the first
        // answer decides.
        session.leave(Instant(13_000 * MS), &mut balancer);
        let down = |balancer: &Balancer| balancer.counts(0).1.iter().map(|count| count.is_down).collect::<Vec<_>>();
        assert_eq!(down(&balancer), [true, true]);
        let mut session = Session::new(&config, rules.clone(), Instant(14_000 * MS));
        run(&mut session, &mut switch, &mut balancer, Instant(14_000 * MS)).unwrap();
        assert_eq!((session.status().phase, down(&balancer)), ("ready", vec![true, true]));
        notes(&mut session);
        second(&mut session, &mut switch, &mut balancer, 14, 2);
        assert_eq!(down(&balancer), [false, true]);
        assert!(notes(&mut session)[0].starts_with("backend web/b1 answers"));
        for at in 15..=18 {
            second(&mut session, &mut switch, &mut balancer, at, 2);
        }
        assert!(notes(&mut session).is_empty(), "that was known");
    }
}

#[test]
fn a_switch_that_is_there_again_gives_a_dead_backend_nothing_and_asks_at_once() {
    for mode in ["reactive", "hash"] {
        let mut config = config(mode, 2);
        config.probe_ns = 60_000_000_000;
        let mut switch = Switch::default();
        let (mut session, mut balancer) = connect(&config, &mut switch);
        assert!(balancer.found(NUMBER, (0, 1), false));
        session.leave(Instant(MS), &mut balancer);
        let rules = session.rules.clone();
        let mut session = Session::new(&config, rules.clone(), Instant(2 * MS));
        run(&mut session, &mut switch, &mut balancer, Instant(2 * MS)).unwrap();
        assert_eq!((session.status().phase, balancer.takes(0, 1)), ("ready", false));
        // Before it looks at backends at all.
        for (&id, group) in &switch.groups {
            assert_eq!(group.buckets, rules.buckets(id, |_, backend| backend == 0));
            assert_ne!(group.buckets, rules.groups[&id]);
        }
        // Now, and then each minute; as after another configuration.
        let mut asked = |session: &mut Session, at: u64| {
            switch.packets.clear();
            session.poll(Instant(at * 1000 * MS), &mut balancer).unwrap();
            run(session, &mut switch, &mut balancer, Instant(at * 1000 * MS)).unwrap();
            switch.packets.len()
        };
        assert_eq!((1..=62).filter(|&at| asked(&mut session, at) == 2).collect::<Vec<_>>(), [1, 61]);
        session.renew(&config, rules.clone(), Instant(63_000 * MS));
        assert_eq!([63, 64, 65].map(|at| asked(&mut session, at)), [0, 2, 0]);
    }
}

#[test]
fn a_number_is_one_switchs_at_a_time() {
    let (config, mut switch) = (config("reactive", 2), Switch::default());
    let (mut session, mut balancer) = connect(&config, &mut switch);
    let mut other = Session::new(&config, session.rules.clone(), Instant(MS));
    let refused = run(&mut other, &mut Switch::default(), &mut balancer, Instant(MS)).unwrap_err();
    assert!(refused.contains("000000000000002a is connected already"), "{refused}");
    other.leave(Instant(MS), &mut balancer);
    assert!(!balancer.join(Instant(MS), NUMBER), "that was not the one that is connected");
    session.leave(Instant(MS), &mut balancer);
    let mut next = Session::new(&config, session.rules.clone(), Instant(MS));
    run(&mut next, &mut Switch::default(), &mut balancer, Instant(MS)).unwrap();
    assert_eq!(next.status().phase, "ready");
}

#[test]
fn another_configuration_is_brought_to_the_switch() {
    let mut switch = Switch::default();
    let (mut session, mut balancer) = connect(&config("hash", 2), &mut switch);
    let groups = switch.groups.clone();
    let more = config("hash", 3);
    session.renew(&more, Arc::new(Rules::of(&more)), Instant(5 * MS));
    run(&mut session, &mut switch, &mut balancer, Instant(5 * MS)).unwrap();
    assert_eq!(session.status().phase, "ready");
    assert_eq!(switch.flows.len(), session.rules.flows.len());
    assert_eq!(groups.keys().collect::<Vec<_>>(), switch.groups.keys().collect::<Vec<_>>());
    assert_ne!(groups, switch.groups);
    let less = config("reactive", 3);
    session.renew(&less, Arc::new(Rules::of(&less)), Instant(6 * MS));
    run(&mut session, &mut switch, &mut balancer, Instant(6 * MS)).unwrap();
    assert!(switch.groups.is_empty());
    assert_eq!(switch.flows.len(), session.rules.flows.len());
}

#[test]
fn roles_are_claimed_in_a_newer_generation_and_lost_in_words() {
    let mut config = config("reactive", 2);
    config.role = openflow::Role::Master;
    let mut switch = Switch { generation: 8, ..Switch::default() };
    let (mut session, mut balancer) = connect(&config, &mut switch);
    assert_eq!((session.status().role, switch.generation), ("master", 9));
    // Another controller becomes the master: a change of ours is refused.
    balancer.found(NUMBER, (0, 0), true);
    switch.refuses = Some(fault::IS_SLAVE);
    let key = Key { front: 0, client: end((CLIENT, 1)) };
    packet_in(&mut session, &mut balancer, Instant(MS), frame((CLIENT, 1), SERVICE, tcp_flags::SYN));
    assert_eq!(live(&balancer), BTreeMap::from([((0, 0), 1)]));
    run(&mut session, &mut switch, &mut balancer, Instant(MS)).unwrap();
    assert_eq!((session.status().role, session.status().phase), ("slave", "watching"));
    assert_eq!(session.status().last_error.as_deref(), Some("a request: another controller is the master"));
    // Connections are that one's: here they count no more, and are remembered.
    assert_eq!((live(&balancer), balancer.goes_on(Instant(MS), key)), (BTreeMap::new(), true));
    // It asks nobody any more: another switch says who is up.
    assert!(balancer.join(Instant(MS), NUMBER + 1) && balancer.found(NUMBER + 1, (0, 0), false));
    assert!(balancer.counts(0).1[0].is_down);
    // A slave changes nothing.
    config.role = openflow::Role::Slave;
    let mut switch = Switch::default();
    let (mut session, mut balancer) = connect(&config, &mut switch);
    assert_eq!((session.status().role, session.status().phase, switch.flows.len()), ("slave", "watching", 0));
    packet_in(&mut session, &mut balancer, Instant(MS), frame((CLIENT, 1), SERVICE, tcp_flags::SYN));
    assert!(session.out().is_empty());
    assert_eq!(session.status().ignored, 1);
}

#[test]
fn a_silent_switch_is_asked_and_then_given_up() {
    let (config, mut switch) = (config("reactive", 2), Switch::default());
    let (mut session, mut balancer) = connect(&config, &mut switch);
    let at = |seconds: u64| Instant(MS + seconds * 1000 * MS);
    session.poll(at(4), &mut balancer).unwrap();
    assert!(session.out().is_empty());
    session.poll(at(5), &mut balancer).unwrap();
    session.poll(at(6), &mut balancer).unwrap();
    run(&mut session, &mut switch, &mut balancer, at(6)).unwrap();
    session.poll(at(20), &mut balancer).unwrap();
    assert_eq!(session.poll(at(21), &mut balancer), Err("the switch was silent for 15 s".to_owned()));
    // One that answers echoes but not the rest is given up too.
    let mut session = Session::new(&config, Arc::new(Rules::of(&config)), Instant(1));
    let mut echo = Vec::new();
    Message::EchoRequest(vec![1]).write(1, &mut echo);
    session.receive(at(59), &echo, &mut balancer).unwrap();
    session.poll(at(59), &mut balancer).unwrap();
    assert!(session.poll(at(61), &mut balancer).unwrap_err().contains("60 s"));
}

#[test]
fn a_switch_that_lies_is_refused_and_kept_small() {
    let config = config("reactive", 2);
    let rules = Arc::new(Rules::of(&config));
    let mut balancer = Balancer::new(&config, &rules, 3);
    let fresh = || Session::new(&config, Arc::clone(&rules), Instant(1));
    let bytes = |messages: &[Message]| {
        let mut out = Vec::new();
        messages.iter().for_each(|message| message.write(1, &mut out));
        out
    };
    // An old version, and a message that is no OpenFlow any more.
    let mut session = fresh();
    let old = session.receive(Instant(1), &bytes(&[Message::Hello(0b10)]), &mut balancer);
    assert!(old.unwrap_err().contains("protocols=OpenFlow13"));
    let mut session = fresh();
    session.receive(Instant(1), &bytes(&[Message::Hello(1 << VERSION)]), &mut balancer).unwrap();
    assert!(session.receive(Instant(1), &[9, 0, 0, 8, 0, 0, 0, 0], &mut balancer).is_err());
    // Flows without end.
    let mut session = fresh();
    let features = Features { datapath: NUMBER, tables: 254, auxiliary: 0 };
    let begin = [Message::Hello(1 << VERSION), Message::FeaturesReply(features), Message::RoleReply(Role::Equal, 1)];
    session.receive(Instant(1), &bytes(&begin), &mut balancer).unwrap();
    session.receive(Instant(1), &bytes(&begin[2..]), &mut balancer).unwrap();
    assert_eq!(session.status().phase, "flows");
    let mut result = Ok(());
    let mut number = 0;
    while result.is_ok() {
        let flows = (0..150).map(|_| {
            number += 1;
            FlowStats { cookie: rules.owner | number, ..stats(&rules.flows[0]) }
        });
        let part = Message::MultipartReply(Multipart::Flows(flows.collect()), true);
        result = session.receive(Instant(1), &bytes(&[part]), &mut balancer);
        assert!(number < 1 << 20, "it never ends");
    }
    // Errors and damaged messages without end: notes are few, and what is sent is read elsewhere.
    let mut session = fresh();
    session.receive(Instant(1), &bytes(&[Message::Hello(1 << VERSION)]), &mut balancer).unwrap();
    for _ in 0..1000 {
        session.receive(Instant(1), &bytes(&[Message::Error(5, 1, Vec::new())]), &mut balancer).unwrap();
        session.receive(Instant(1), &[4, 10, 0, 9, 0, 0, 0, 0, 0], &mut balancer).unwrap();
    }
    assert_eq!(session.status().errors, 1000);
    assert_eq!(std::iter::from_fn(|| session.note_next()).count(), MOST_NOTES);
    // A frame of somebody else's flow, and one that is none.
    let (mut session, mut balancer) = connect(&config, &mut Switch::default());
    packet_in(&mut session, &mut balancer, Instant(MS), vec![0; 10]);
    let instructions = vec![Instruction::Goto(1)];
    assert_ne!(instructions, vec![Instruction::Unknown(1)]);
    assert_eq!(session.status().ignored, 1);
}

#[test]
fn connections_over_ipv6_are_known_after_a_restart_too() {
    let (config, mut switch) = (of_both_versions("reactive", 2), Switch::default());
    let (mut session, mut balancer) = connect(&config, &mut switch);
    let client = |n: u16| IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n));
    for n in 0..8 {
        packet_in(&mut session, &mut balancer, Instant(MS), frame((client(n), 1000), SERVICE6, tcp_flags::SYN));
        packet_in(&mut session, &mut balancer, Instant(MS), frame((CLIENT, 1000 + n), SERVICE, tcp_flags::SYN));
    }
    run(&mut session, &mut switch, &mut balancer, Instant(MS)).unwrap();
    // Front 0 is of IPv4, front 1 of IPv6.
    let before = live(&balancer);
    assert_eq!(before.iter().map(|((front, _), count)| (*front, count)).collect::<Vec<_>>(), [(0, &8), (1, &8)]);
    let to: Vec<_> = switch.packets.iter().filter_map(|packet| sets(&packet.actions, Kind::IPV6_DST)).collect();
    let second = Field::target(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into()).value;
    assert_eq!(to, [second; 8], "round-robin: every other one");
    let (_, mut balancer) = connect(&config, &mut switch);
    assert_eq!(live(&balancer), before);
    // What the server says on one that has idled goes through again.
    let (mut session, _) = connect(&config, &mut switch);
    assert!(balancer.join(Instant(MS), 43));
    switch.packets.clear();
    let answer = frame((Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into(), 8080), (client(3), 1000), tcp_flags::ACK);
    packet_in(&mut session, &mut balancer, Instant(2 * MS), answer);
    run(&mut session, &mut switch, &mut balancer, Instant(2 * MS)).unwrap();
    assert_eq!(sets(&switch.packets[0].actions, Kind::IPV6_SRC), Some(Field::source(SERVICE6.0).value));
    // A flow of a connection that names a client of the other version is a lie.
    let mut lie = stats(&session.rules.flows_of(0, 0, Client { ip: client(77), port: 7 }).unwrap()[1]);
    lie.cookie = session.rules.flows_of(0, 0, Client { ip: CLIENT, port: 7 }).unwrap()[1].cookie;
    let mut found = Found::default();
    found.add(Instant(3 * MS), &lie, &session.rules, NUMBER, 9, &mut balancer).unwrap();
    assert_eq!(found.connections, 0);
}

#[test]
fn what_is_no_connection_is_ignored_whatever_it_says() {
    use datapath::wire::build::{neighbour_advertisement, neighbour_solicitation};
    let (config, mut switch) = (of_both_versions("reactive", 2), Switch::default());
    let (mut session, mut balancer) = connect(&config, &mut switch);
    let (mac, ip) = (Mac([2, 0, 0, 0, 0, 9]), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9));
    let IpAddr::V6(service) = SERVICE6.0 else { panic!() };
    let mut count = 0;
    for message in [neighbour_solicitation(mac, ip, service), neighbour_advertisement(mac, ip, service)] {
        let whole = message.bytes();
        for length in 0..=whole.len() {
            packet_in(&mut session, &mut balancer, Instant(MS), whole[..length].to_vec());
            count += 1;
        }
        // Options of no length, and of more than there is.
        for wrong in [0, 255] {
            let mut bytes = whole.clone();
            let at = bytes.len() - 7;
            bytes[at] = wrong;
            packet_in(&mut session, &mut balancer, Instant(MS), bytes);
            count += 1;
        }
    }
    assert_eq!(session.status().ignored, count);
    assert_eq!(live(&balancer), BTreeMap::new());
}

/// What a frame from the controller says: from whom, to whom, and its flags.
fn said(packet: &PacketOut) -> ((Client, Client), u8) {
    let layout = parse(&packet.data).unwrap();
    let [from, to] = FlowKey::of(&packet.data, &layout).unwrap().ends().map(|(ip, port)| Client { ip, port });
    ((from, to), Tcp::of(&packet.data, &layout).map_or(0, Tcp::flags))
}

fn end((ip, port): (IpAddr, u16)) -> Client {
    Client { ip, port }
}

#[test]
fn with_on_failure_reset_connections_of_a_backend_that_is_down_end() {
    for on_failure in [OnFailure::Keep, OnFailure::Reset] {
        let (mut config, mut switch) = (config("reactive", 2), Switch::default());
        config.services[0].on_failure = on_failure;
        let (mut session, mut balancer) = connect(&config, &mut switch);
        for n in 0..4 {
            packet_in(&mut session, &mut balancer, Instant(MS), frame((CLIENT, 1000 + n), SERVICE, tcp_flags::SYN));
        }
        run(&mut session, &mut switch, &mut balancer, Instant(MS)).unwrap();
        assert!(balancer.found(NUMBER, (0, 1), false));
        session.poll(Instant(2 * MS), &mut balancer).unwrap();
        run(&mut session, &mut switch, &mut balancer, Instant(2 * MS)).unwrap();
        let ends = on_failure == OnFailure::Reset;
        // The flows of its two connections are gone, and those of the other's stay.
        assert_eq!(switch.of_connections(&session.rules), if ends { 4 } else { 8 });
        let backend = (IpAddr::from([10, 0, 0, 2]), 8080);
        let mut ask = |from, to, flags| {
            switch.packets.clear();
            packet_in(&mut session, &mut balancer, Instant(3 * MS), frame(from, to, flags));
            run(&mut session, &mut switch, &mut balancer, Instant(3 * MS)).unwrap();
            (std::mem::take(&mut switch.packets), balancer.counts(0).1[1])
        };
        // What a client says, twice, and what the backend says on another one.
        for (from, to, cut) in
            [((CLIENT, 1001), SERVICE, 1), ((CLIENT, 1001), SERVICE, 1), (backend, (CLIENT, 1003), 2)]
        {
            let (packets, count) = ask(from, to, tcp_flags::ACK);
            if !ends {
                assert_eq!((packets.len(), count.cut), (1, 0));
                continue;
            }
            let all: Vec<_> = packets.iter().map(said).collect();
            let (client, server) = if to == SERVICE { (from, backend) } else { (to, from) };
            let to_client = (end(SERVICE), end(client));
            let to_server = (end(client), end(server));
            let both = tcp_flags::RST | tcp_flags::ACK;
            let wanted = match to == SERVICE {
                true => [(to_client, tcp_flags::RST), (to_server, both)],
                false => [(to_server, tcp_flags::RST), (to_client, both)],
            };
            assert_eq!((all, count.cut), (wanted.to_vec(), cut));
            assert_eq!(packets[0].actions, [Action::Output(port::IN_PORT, 0)]);
            assert_eq!(packets[1].actions, [normal()]);
        }
        // A RST goes on as it is; a client that connects again gets the other one.
        let (packets, _) = ask((CLIENT, 1001), SERVICE, tcp_flags::RST);
        assert_eq!(packets.len(), 1);
        assert_eq!(sets(&packets[0].actions, Kind::IPV4_DST), Some(Field::target(backend.0).value));
        if ends {
            let (packets, count) = ask((CLIENT, 1001), SERVICE, tcp_flags::SYN);
            assert_eq!(sets(&packets[0].actions, Kind::IPV4_DST), Some(0x0a00_0001));
            assert_eq!((packets.len(), count.live), (1, 0), "none of its connections counts");
        }
    }
}

#[test]
fn a_connection_that_was_cut_stays_so_and_one_that_was_silent_goes_on() {
    let (mut config, mut switch) = (config("reactive", 2), Switch::default());
    config.services[0].on_failure = OnFailure::Reset;
    let (mut session, mut balancer) = connect(&config, &mut switch);
    for n in 0..4 {
        packet_in(&mut session, &mut balancer, Instant(MS), frame((CLIENT, 1000 + n), SERVICE, tcp_flags::SYN));
    }
    balancer.found(NUMBER, (0, 1), false);
    packet_in(&mut session, &mut balancer, Instant(MS), frame((CLIENT, 1001), SERVICE, tcp_flags::ACK));
    balancer.found(NUMBER, (0, 1), true);
    run(&mut session, &mut switch, &mut balancer, Instant(MS)).unwrap();
    for (client, flags) in [(1001, tcp_flags::RST), (1003, tcp_flags::ACK)] {
        switch.packets.clear();
        packet_in(&mut session, &mut balancer, Instant(2 * MS), frame((CLIENT, client), SERVICE, tcp_flags::ACK));
        run(&mut session, &mut switch, &mut balancer, Instant(2 * MS)).unwrap();
        assert_eq!(said(&switch.packets[0]).1, flags, "{client}");
    }
    assert_eq!(balancer.counts(0).1[1].cut, 1);
}

#[test]
fn when_down_says_what_a_client_gets() {
    for when_down in [WhenDown::Reset, WhenDown::Drop] {
        let (mut config, mut switch) = (config("reactive", 2), Switch::default());
        config.services[0].when_down = when_down;
        config.services[0].panic_ppm = 0;
        let mut datagrams = config.services[0].addresses[0];
        datagrams.0.protocol = protocol::UDP;
        config.services[0].addresses.push(datagrams);
        let (mut session, mut balancer) = connect(&config, &mut switch);
        balancer.found(NUMBER, (0, 0), false);
        balancer.found(NUMBER, (0, 1), false);
        let ends = || eth(Mac([2, 0, 0, 0, 0, 9]), Mac([2, 0, 0, 0, 1, 0])).ip(CLIENT, SERVICE.0);
        let segment = |flags| ends().tcp(1000, 80, 1).flags(flags).bytes();
        let mut refused = 0;
        for (data, is_answered) in [
            (segment(tcp_flags::SYN), true),
            (segment(tcp_flags::RST), false),
            (ends().udp(1000, 80).payload(vec![1; 9]).bytes(), true),
        ] {
            switch.packets.clear();
            packet_in(&mut session, &mut balancer, Instant(MS), data);
            run(&mut session, &mut switch, &mut balancer, Instant(MS)).unwrap();
            refused += u64::from(is_answered);
            let answers = if is_answered && when_down == WhenDown::Reset { 1 } else { 0 };
            let told = switch.packets.iter().filter(|packet| packet.actions == [Action::Output(port::IN_PORT, 0)]);
            assert_eq!(told.count(), answers, "{when_down:?}");
            assert_eq!(balancer.counts(0).0.refused, refused);
        }
    }
}

/// The last byte of the address of the backend that a datagram goes to.
fn datagram(session: &mut Session, switch: &mut Switch, balancer: &mut Balancer, now: Instant, port: u16) -> u128 {
    let ends = eth(Mac([2, 0, 0, 0, 0, 9]), Mac([2, 0, 0, 0, 1, 0])).ip(CLIENT, SERVICE.0);
    switch.packets.clear();
    packet_in(session, balancer, now, ends.udp(port, 80).payload(vec![1; 9]).bytes());
    run(session, switch, balancer, now).unwrap();
    assert_eq!(switch.packets.len(), 1);
    sets(&switch.packets[0].actions, Kind::IPV4_DST).unwrap() & 0xff
}

#[test]
fn a_flow_of_datagrams_that_was_idle_goes_on_where_it_was() {
    let second = |second: u64| Instant(second * 1000 * MS);
    for on_failure in [OnFailure::Keep, OnFailure::Reset] {
        let (mut config, mut switch) = (config("reactive", 2), Switch::default());
        (config.services[0].on_failure, config.services[0].panic_ppm) = (on_failure, 0);
        config.services[0].addresses[0].0.protocol = protocol::UDP;
        let (mut session, mut balancer) = connect(&config, &mut switch);
        assert_eq!(datagram(&mut session, &mut switch, &mut balancer, second(1), 1000), 1);
        let idle = |session: &mut Session, balancer: &mut Balancer, now| {
            for flow in session.rules.clone().flows_of(0, 0, Client { ip: CLIENT, port: 1000 }).unwrap() {
                let mut bytes = Vec::new();
                removed(&flow).write(0, &mut bytes);
                session.receive(now, &bytes, balancer).unwrap();
            }
            assert_eq!(live(balancer), BTreeMap::new());
        };
        // At each pause; it is one connection, and the policy's turn is another's.
        for at in [12, 300, 599] {
            idle(&mut session, &mut balancer, second(at - 1));
            assert_eq!(datagram(&mut session, &mut switch, &mut balancer, second(at), 1000), 1);
        }
        assert_eq!(balancer.counts(0).1.iter().map(|count| count.new).collect::<Vec<_>>(), [1, 0]);
        // Its backend dies while it is idle: it goes to the other, and stays there.
        idle(&mut session, &mut balancer, second(610));
        balancer.found(NUMBER, (0, 0), false);
        assert_eq!(datagram(&mut session, &mut switch, &mut balancer, second(611), 1000), 2);
        balancer.found(NUMBER, (0, 0), true);
        assert_eq!(datagram(&mut session, &mut switch, &mut balancer, second(613), 1000), 2);
        assert_eq!(balancer.counts(0).1.iter().map(|count| count.cut).sum::<u64>(), 0, "nothing ends");
    }
}

#[test]
fn a_datagram_is_given_a_backend_though_the_flow_before_was_cut() {
    let (mut config, mut switch) = (config("reactive", 2), Switch::default());
    config.services[0].on_failure = OnFailure::Reset;
    config.services[0].addresses[0].0.protocol = protocol::UDP;
    let (mut session, mut balancer) = connect(&config, &mut switch);
    assert_eq!(datagram(&mut session, &mut switch, &mut balancer, Instant(MS), 1000), 1);
    balancer.found(NUMBER, (0, 0), false);
    // The backend says something though nobody reaches it, and is up again.
    let ends = eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 9])).ip(IpAddr::from([10, 0, 0, 1]), CLIENT);
    packet_in(&mut session, &mut balancer, Instant(2 * MS), ends.udp(8080, 1000).payload(vec![1; 9]).bytes());
    run(&mut session, &mut switch, &mut balancer, Instant(2 * MS)).unwrap();
    assert_eq!(balancer.counts(0).1[0].cut, 1);
    balancer.found(NUMBER, (0, 0), true);
    assert_eq!(datagram(&mut session, &mut switch, &mut balancer, Instant(3 * MS), 1000), 2);
    assert_eq!(live(&balancer), BTreeMap::from([((0, 1), 1)]), "it has flows");
}

/// What comes to the controller by a flow with this cookie.
fn packet_by(session: &mut Session, balancer: &mut Balancer, cookie: u64, data: Vec<u8>) {
    let about = Match::of([Field::new(Kind::IN_PORT, 3_u32)]);
    let mut bytes = Vec::new();
    Message::PacketIn(PacketIn { cookie, table: 2, about, data }).write(0, &mut bytes);
    session.receive(Instant(MS), &bytes, balancer).unwrap();
}

#[test]
fn in_hash_a_flow_brings_connections_that_end_while_their_backend_is_down() {
    let (mut config, mut switch) = (of_both_versions("hash", 2), Switch::default());
    config.services[0].on_failure = OnFailure::Reset;
    let (mut session, mut balancer) = connect(&config, &mut switch);
    let rules = switch.flows.len();
    balancer.found(NUMBER, (0, 1), false);
    let look = |session: &mut Session, switch: &mut Switch, balancer: &mut Balancer| {
        session.poll(Instant(MS), balancer).unwrap();
        run(session, switch, balancer, Instant(MS)).unwrap();
    };
    look(&mut session, &mut switch, &mut balancer);
    // One for each version of IP, and each names what it is for.
    let flows: Vec<FlowMod> =
        switch.flows.values().filter(|flow| session.rules.connection_of(flow.cookie).is_some()).cloned().collect();
    let named: Vec<_> = flows.iter().map(|flow| session.rules.connection_of(flow.cookie).unwrap().0).collect();
    assert_eq!((named.len(), switch.flows.len()), (2, rules + 2));
    assert!(named.contains(&Some((0, 1))) && named.contains(&Some((1, 1))));
    let four = flows.iter().find(|flow| flow.matches.get(Kind::CT_NW_DST).is_some()).unwrap();
    assert_eq!(
        (four.table, four.matches.get(Kind::CT_TP_DST), four.matches.get(Kind::TCP_DST)),
        (2, Some(80), Some(8080))
    );

    // A client's segment, translated for the backend that is dead.
    let backend = (IpAddr::from([10, 0, 0, 2]), 8080);
    switch.packets.clear();
    packet_by(&mut session, &mut balancer, four.cookie, frame((CLIENT, 1000), backend, tcp_flags::ACK));
    run(&mut session, &mut switch, &mut balancer, Instant(MS)).unwrap();
    let both = tcp_flags::RST | tcp_flags::ACK;
    let (client, service) = (end((CLIENT, 1000)), end(SERVICE));
    assert_eq!(
        switch.packets.iter().map(said).collect::<Vec<_>>(),
        [((service, client), tcp_flags::RST), ((client, end(backend)), both), ((client, service), both)]
    );
    let to = [port::IN_PORT, port::NORMAL, port::TABLE].map(|port| vec![Action::Output(port, 0)]);
    assert!(switch.packets.iter().map(|packet| &packet.actions).eq(&to));
    assert_eq!(balancer.counts(0).1[1].cut, 1);

    // A list of the flows changes none of them.
    session.ask_for_flows(Instant(MS));
    let changes = switch.changes;
    run(&mut session, &mut switch, &mut balancer, Instant(MS)).unwrap();
    look(&mut session, &mut switch, &mut balancer);
    assert_eq!((switch.changes, session.status().phase), (changes, "ready"));
    // Nor are they lost, or kept too long, where a rule is missing.
    for is_up in [false, true, false] {
        balancer.found(NUMBER, (0, 1), is_up);
        session.ask_for_flows(Instant(MS));
        let first = switch.flows.keys().next().unwrap().clone();
        switch.flows.remove(&first);
        run(&mut session, &mut switch, &mut balancer, Instant(MS)).unwrap();
        look(&mut session, &mut switch, &mut balancer);
        assert_eq!((switch.flows.len(), session.status().phase), (rules + if is_up { 0 } else { 2 }, "ready"));
    }

    // Another controller does not know that it is down, and removes the flows until it does.
    let (other, _) = connect(&config, &mut switch);
    assert_eq!((switch.flows.len(), other.status().phase), (rules, "ready"));
    // It is up again.
    let (mut session, mut balancer) = connect(&config, &mut switch);
    for (is_up, count) in [(false, rules + 2), (true, rules)] {
        balancer.found(NUMBER, (0, 1), is_up);
        look(&mut session, &mut switch, &mut balancer);
        assert_eq!(switch.flows.len(), count);
    }
    // What was on its way still is let be: its client sends it again.
    switch.packets.clear();
    packet_by(&mut session, &mut balancer, four.cookie, frame((CLIENT, 1000), backend, tcp_flags::ACK));
    run(&mut session, &mut switch, &mut balancer, Instant(MS)).unwrap();
    assert!(switch.packets.is_empty());
}

#[test]
fn in_hash_the_group_of_a_service_without_backends_asks_the_controller() {
    for when_down in [WhenDown::Reset, WhenDown::Drop] {
        let (mut config, mut switch) = (config("hash", 2), Switch::default());
        (config.services[0].when_down, config.services[0].panic_ppm) = (when_down, 0);
        let (mut session, mut balancer) = connect(&config, &mut switch);
        let mut ask = |session: &mut Session, balancer: &mut Balancer, is_up, flags| {
            for backend in [0, 1] {
                balancer.found(NUMBER, (0, backend), is_up);
            }
            session.poll(Instant(MS), balancer).unwrap();
            run(session, &mut switch, balancer, Instant(MS)).unwrap();
            switch.packets.clear();
            packet_by(session, balancer, session.rules.owner | 1, frame((CLIENT, 1000), SERVICE, flags));
            run(session, &mut switch, balancer, Instant(MS)).unwrap();
            let group = switch.groups.values().next().unwrap();
            let asks = group.buckets.iter().any(|bucket| bucket.actions == [Action::Output(port::CONTROLLER, WHOLE)]);
            (group.buckets.len(), asks, switch.packets.iter().map(said).collect::<Vec<_>>())
        };
        let refusal = ((end(SERVICE), end((CLIENT, 1000))), tcp_flags::RST | tcp_flags::ACK);
        let (buckets, asks, said) = ask(&mut session, &mut balancer, false, tcp_flags::SYN);
        match when_down {
            WhenDown::Reset => assert_eq!((buckets, asks, said), (1, true, vec![refusal])),
            WhenDown::Drop => assert_eq!((buckets, asks, said), (0, false, vec![])),
        }
        // What belongs to no connection is refused nothing, nor is a SYN that came late.
        assert!(ask(&mut session, &mut balancer, false, tcp_flags::ACK).2.is_empty());
        let (buckets, asks, said) = ask(&mut session, &mut balancer, true, tcp_flags::SYN);
        assert_eq!((buckets, asks, said), (crate::rules::PLACES, false, vec![]));
        assert_eq!(balancer.counts(0).0.refused, 1);
    }
}
