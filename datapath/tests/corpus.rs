//! The fuzz corpus, replayed by ordinary tests: its seeds are what `wire::build` makes, and what
//! each fuzz target promises holds for every file there, crashes that were found and cured
//! included.
//!
//! `LEVADA_REGENERATE=1 cargo test -p datapath --test corpus` writes the seeds anew.

#[path = "../../fuzz/src/bond.rs"]
mod bond;
#[path = "../../fuzz/src/guard.rs"]
mod guard;
#[path = "../../fuzz/src/lacp.rs"]
mod lacp;
#[path = "../../fuzz/src/offload.rs"]
mod offload;
#[path = "../../fuzz/src/parse.rs"]
mod parse;
#[path = "../../fuzz/src/switch.rs"]
mod switch;
#[path = "../../fuzz/src/vcc.rs"]
mod vcc;
#[path = "../../fuzz/src/vxlan.rs"]
mod vxlan;

use core::net::{Ipv4Addr, Ipv6Addr};
use datapath::offload::{Gso, Offload, OffloadSupport};
use datapath::wire::build::{self, Build, eth};
use datapath::wire::{Mac, ethertype, protocol, tcp_flags};
use guard::{IPV4, IPV6, MAC};
use std::path::PathBuf;

const PEER: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const PEER4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PEER6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const EIGHT: [u8; 7] = [0, 1, 4, 0, 0, 0, 0];

fn corpus(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target)
}

fn v4() -> Build<'static> {
    eth(MAC, PEER).ipv4(IPV4, PEER4)
}

fn v6() -> Build<'static> {
    eth(MAC, PEER).ipv6(IPV6, PEER6)
}

fn snap(frame: &Build) -> Build<'static> {
    let body = [&[0xaa, 0xaa, 3, 0, 0, 0][..], &frame.bytes()[12..]].concat();
    eth(MAC, PEER).ethertype(body.len() as u16).payload(body)
}

/// One frame of every kind.
fn frames() -> Vec<(&'static str, Build<'static>)> {
    let own_ll = build::link_local(MAC);
    let data = vec![7; 24];
    vec![
        ("arp-announcement", build::arp_request(MAC, IPV4, IPV4)),
        ("arp-probe", build::arp_request(MAC, Ipv4Addr::UNSPECIFIED, IPV4)),
        ("arp-reply", build::arp_reply(MAC, IPV4, PEER, PEER4)),
        ("dhcp-discover", build::dhcp_discover(MAC)),
        ("dhcp-offer", build::dhcp_offer((MAC, IPV4), PEER, PEER4)),
        ("dhcpv6-advertise", build::dhcpv6_advertise((MAC, own_ll), (PEER, PEER6))),
        ("dhcpv6-solicit", build::dhcpv6_solicit(MAC, own_ll)),
        ("icmp4-echo", v4().icmp(8, 0, 1).payload(data.clone())),
        ("icmp6-echo", v6().icmp(128, 0, 1).payload(data.clone())),
        ("llc", eth(MAC, PEER).ethertype(4).payload(vec![0x42, 0x42, 3, 0])),
        ("llc-snap", snap(&v4().udp(1, 2))),
        ("mld-report", build::mld_report(MAC, Ipv6Addr::UNSPECIFIED)),
        ("nd-dad", build::neighbour_solicitation(MAC, Ipv6Addr::UNSPECIFIED, own_ll)),
        ("nd-advertisement", build::neighbour_advertisement(MAC, IPV6, IPV6)),
        ("nd-advertisement-fragment", build::neighbour_advertisement(MAC, IPV6, IPV6).fragment(0, false)),
        ("nd-redirect", build::redirect(MAC, own_ll, PEER6, PEER6)),
        ("nd-router-advertisement", build::router_advertisement(MAC, own_ll)),
        ("nd-router-solicitation", build::router_solicitation(MAC, own_ll)),
        ("nd-solicitation", build::neighbour_solicitation(MAC, IPV6, PEER6)),
        (
            "pause",
            eth(MAC, Mac([1, 0x80, 0xc2, 0, 0, 1])).ethertype(ethertype::MAC_CONTROL).payload(vec![0, 1, 255, 255]),
        ),
        (
            "qinq",
            eth(MAC, PEER)
                .vlan(9)
                .ethertype(ethertype::VLAN)
                .payload([&[0, 5][..], &v4().tcp(1, 2, 3).bytes()[12..]].concat()),
        ),
        ("tcp4", v4().tcp(1000, 80, 1).payload(data.clone())),
        ("tcp4-options", v4().ip_options(&[1; 8]).tcp(1000, 80, 1).tcp_options(3).payload(data.clone())),
        ("tcp4-vlan", v4().vlan(0x600a).tcp(1000, 80, 1).payload(data.clone())),
        ("tcp6", v6().tcp(1000, 80, 1).payload(data.clone())),
        ("udp4", v4().udp(1000, 53).payload(data.clone())),
        ("udp4-fragment", v4().fragment(0, true).udp(1000, 53).payload(data.clone())),
        ("udp4-later-fragment", v4().fragment(32, false).protocol(protocol::UDP).payload(data.clone())),
        (
            "udp6-extensions",
            v6().extension(protocol::HOP_BY_HOP, &EIGHT).extension(protocol::ROUTING, &EIGHT).udp(1, 2),
        ),
        ("udp6-fragment", v6().fragment(0, true).udp(1000, 53).payload(data.clone())),
        ("udp6-later-fragment", v6().fragment(32, false).protocol(protocol::UDP).payload(data)),
    ]
}

/// Frames with work left to do, short enough to be mutated well.
fn offloaded() -> Vec<(&'static str, Build<'static>)> {
    let data: Vec<u8> = (0..200).collect();
    let ecn = tcp_flags::ACK | tcp_flags::CWR | tcp_flags::PSH | tcp_flags::FIN;
    vec![
        ("tso4", v4().id(7).tcp(1, 2, 0xffff_fff0).flags(ecn).tcp_options(3).payload(data.clone()).gso(48)),
        ("tso4-vlan", v4().vlan(5).tos(2).tcp(1, 2, 3).payload(data.clone()).gso(90)),
        ("tso6", v6().tos(1).tcp(1, 2, 3).payload(data.clone()).gso(60)),
        (
            "tso6-extension",
            v6().extension(protocol::DESTINATION_OPTIONS, &EIGHT).tcp(1, 2, 3).payload(data.clone()).gso(60),
        ),
        ("uso4", v4().udp(1, 2).payload(data.clone()).gso(64)),
        ("uso6", v6().udp(1, 2).payload(data.clone()).gso(64)),
        ("partial-tcp4", v4().tcp(1, 2, 3).payload(data.clone()).partial()),
        ("partial-udp6", v6().udp(1, 2).payload(data.clone()).partial()),
        ("partial-icmp6", v6().icmp(128, 0, 0).payload(data.clone()).partial()),
        ("whole-udp4", v4().tos(2).udp(1, 2).payload(data)),
    ]
}

/// Every offloaded frame, for a port that can nothing, one that can all but ECN, and one that can
/// all; the last is a tunnel's.
fn offload_seeds() -> Vec<(String, Vec<u8>)> {
    let ports = [OffloadSupport::NONE, OffloadSupport { tso_ecn: false, ..OffloadSupport::ALL }, OffloadSupport::ALL];
    let mut seeds = Vec::new();
    for (name, build) in offloaded() {
        for (i, support) in ports.into_iter().enumerate() {
            let mut frame = Vec::new();
            let offload = build.write(&mut frame);
            let case = offload::Case { offload, support, max_bytes: [0, 300, 500][i], trimmed: i as u8, mark: i == 1 };
            seeds.push((format!("{name}-{i}"), case.write(&frame)));
        }
    }
    let inner = v4().tcp(1, 2, 3).payload(vec![7; 30]).partial().bytes();
    let outer = v4().udp(4789, 4789).payload([&[8, 0, 0, 0, 0, 0, 1, 0][..], &inner].concat()).bytes();
    let offload = Offload { needs_csum: true, csum_start: 14 + 20 + 8 + 8 + 34, csum_offset: 16, ..Offload::default() };
    let support = OffloadSupport::NONE;
    let tunnel = offload::Case { offload, support, max_bytes: 0, trimmed: 0, mark: false };
    seeds.push(("partial-tunnel".into(), tunnel.write(&outer)));
    seeds
}

/// A switch of each order, and of each way to treat ingress, with frames from every port, time
/// between them and a change; and one with limits on pairs.
fn switch_seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for how in 0..9u8 {
        let mut bytes = vec![how | (how << 5), how];
        if how == 8 {
            // Every endpoint is limited, toward its neighbour's address and in all, while arrivals
            // are watched.
            bytes.push(0x43);
            (0..6).for_each(|from| bytes.extend([0x83, from, from + 2, 1, 0, 0x83, from, 0xff, 0, 200]));
        }
        for port in 0..7u8 {
            let (from, to) = (Mac([2, 0, 0, 0, 0, port]), Mac([2, 0, 0, 0, 0, (port + 1) % 7]));
            let tcp = eth(from, to).ipv4(IPV4, PEER4).tcp(1, 2, 3).payload(vec![port; 200]).gso(48);
            let tcp = if port == 0 { tcp.vlan(10) } else { tcp };
            let mut frame = Vec::new();
            let offload = tcp.write(&mut frame);
            bytes.extend([0x84, port, 1 | 8]);
            for word in [offload.gso_size, offload.csum_start, offload.csum_offset, frame.len() as u16] {
                bytes.extend(word.to_be_bytes());
            }
            bytes.extend(frame);
            let frame = build::arp_request(from, IPV4, PEER4).bytes();
            bytes.extend([4, port, 0, frame.len() as u8]);
            bytes.extend(frame);
            bytes.extend([0, 0, 200]);
        }
        bytes.extend([2, 0, 9, 7, how]);
        if how == 8 {
            bytes.extend([0x43, 0x83, 0, 2, 0, 0]);
        }
        seeds.push((format!("all-ports-{how}"), bytes));
    }
    seeds.push(("tunnels".into(), tunnel_seed()));
    seeds
}

/// A switch with tunnels, frames that go into them and come out of them, and a host that goes.
fn tunnel_seed() -> Vec<u8> {
    let (host, nic) = (|n| Ipv4Addr::new(192, 0, 2, n), Mac([2, 0, 0, 0, 0, 0]));
    let own = Mac([2, 0, 0, 0, 0, 3]);
    let away = |to| eth(own, to).ipv4(IPV4, PEER4).udp(1, 2).payload(vec![7; 30]);
    let from_there = eth(nic, own).ipv4(PEER4, IPV4).udp(1, 2).payload(vec![7; 30]);
    let tunnelled = |inner: &Build<'_>| {
        let payload = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &inner.bytes()].concat();
        eth(nic, nic).ipv4(host(2), host(1)).udp(50_000, 4789).payload(payload)
    };
    let mut bytes = vec![0, 8];
    for (port, frame) in [(3, away(nic)), (3, away(PEER)), (3, away(Mac::BROADCAST)), (0, tunnelled(&from_there))] {
        let frame = frame.bytes();
        bytes.extend([4, port, 0, frame.len() as u8]);
        bytes.extend(frame);
        bytes.extend([0, 0, 200]);
    }
    bytes.extend([2, 0x80 | 4, 1, 64]);
    bytes
}

/// Frames of every kind in tunnels: whole, with an unfinished inner checksum, to be cut, and cut
/// already.
fn vxlan_seeds() -> Vec<(String, Vec<u8>)> {
    let case = |flags, csum_start, gso_size, inner: &[u8]| {
        let payload = [&[8, 0, 0, 0, 0, 0, 77, 0][..], inner].concat();
        let nic = Mac([2, 0, 0, 0, 0xff, 1]);
        let host = |n| Ipv4Addr::new(192, 0, 2, n);
        let outer = eth(PEER, nic).ipv4(host(2), host(1)).tos(3).udp(50_000, 4789).payload(payload).bytes();
        vxlan::Case { flags, csum_start, gso_size, frame: &outer }.write()
    };
    let mut seeds: Vec<_> =
        frames().into_iter().map(|(name, build)| (name.to_owned(), case(0, 0, 0, &build.bytes()))).collect();
    let long = v4().tos(1).tcp(1, 2, 3).payload(vec![7; 200]).bytes();
    seeds.push(("partial".into(), case(4, 84, 0, &long)));
    seeds.push(("tso".into(), case(5, 84, 48, &long)));
    seeds.push(("train".into(), case(7, 34, 100, &long)));
    let segment = |i: u16| v4().id(i).tcp(1, 2, u32::from(i) * 50).ack(1, 2).payload(vec![i as u8; 50]).bytes();
    let header = [8, 0, 0, 0, 0, 0, 77, 0];
    let joined = [segment(0), header.to_vec(), segment(1), header.to_vec(), segment(2)].concat();
    seeds.push(("segments".into(), case(7, 34, 112, &joined)));
    // Over IPv6, without an outer checksum.
    let over_v6 = |flags, csum_start, gso_size, inner: &[u8]| {
        let payload = [&header[..], inner].concat();
        let host = |n| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n);
        let nic = Mac([2, 0, 0, 0, 0xff, 1]);
        let mut outer = eth(PEER, nic).ipv6(host(2), host(1)).tos(3).udp(50_000, 4789).payload(payload).bytes();
        outer[60..62].fill(0);
        vxlan::Case { flags, csum_start, gso_size, frame: &outer }.write()
    };
    seeds.push(("over-ipv6".into(), over_v6(0, 0, 0, &long)));
    seeds.push(("over-ipv6-partial".into(), over_v6(4, 104, 0, &long)));
    seeds.push(("over-ipv6-segments".into(), over_v6(7, 54, 112, &joined)));
    seeds
}

/// Handshakes and what follows them, in each mode and from both sides, with marks.
fn vcc_seeds() -> Vec<(String, Vec<u8>)> {
    const SYN: u8 = tcp_flags::SYN;
    const ACK: u8 = tcp_flags::ACK;
    const ALL: u8 = 0xf8;
    let small: &[u8] = &[2, 4, 5, 0xb4, 1, 3, 3, 7];
    // Multipath TCP, and a coarse scale.
    let all: &[u8] = &[2, 4, 5, 0xb4, 1, 30, 4, 0, 1, 3, 3, 12];
    let step = |what: u8, flags: u8, ecn: u8, numbers: [u8; 2], payload: u16, options: &[u8]| {
        let [seq, ack] = numbers.map(|number| (0x1000 + u16::from(number)).to_be_bytes());
        let [high, low] = payload.to_be_bytes();
        let head = [what, flags, ecn << 3, seq[0], seq[1], ack[0], ack[1], 1, 246, high, low, 0, 1];
        [&head[..], &[(options.len() / 4) as u8], options].concat()
    };
    let mut seeds = Vec::new();
    for (number, mode) in datapath::vcc::Mode::ALL.iter().enumerate() {
        for (name, client, asked, options) in [
            ("client", 0u8, 0, small),
            ("server", 1, 0, small),
            ("all-client", 0, ALL, all),
            ("all-server", 1, ALL, all),
        ] {
            let server = 1 - client;
            let parts = [
                step(client, SYN, 0, [0, 0], 0, options),
                step(server, SYN | ACK | 0x40, 0, [0, 1], 0, options),
                step(client, ACK, 3, [1, 1], 1000, &[]),
                step(server, ACK | 0x40, 0, [1, 255], 0, &[]),
                step(client | 4, ACK, 2, [255, 1], 2500, &[]),
                step(client, tcp_flags::FIN | ACK, 0, [0, 1], 0, &[]),
                step(server, tcp_flags::RST | ACK, 0, [0, 1], 0, &[]),
            ];
            seeds.push((format!("{}-{name}", mode.name()), [vec![number as u8 | asked], parts.concat()].concat()));
        }
    }
    seeds
}

/// A bond and its peer agree, then numbers in order, out of order, twice and far ahead, of shared
/// numbers, with members that go and come, and with a peer that begins anew.
fn bond_seeds() -> Vec<(String, Vec<u8>)> {
    const STEP: usize = bond::STEP;
    // The peer's hello: epoch 1, heard, numbered; the member's number in its place.
    let hello =
        |member: u8, epoch: u8| -> [u8; STEP] { [member << 4, epoch << 6 | member << 3 | 4, 7, 0, 0, 0, 10, 0] };
    let number = |member: u8, value: u8, is_shared: u8| -> [u8; STEP] {
        // `what` is the first byte modulo 6.
        let what = (0..6).map(|n| member << 4 | n).find(|what| what % 6 == 1).unwrap_or(1);
        [what, 0, value, is_shared, 60, 0, 1, 0]
    };
    let agreed: Vec<[u8; STEP]> = (0..3).map(|member| hello(member * 3, 1)).collect();
    let case = |steps: &[[u8; STEP]]| [&[0][..], &agreed.concat(), &steps.concat()].concat();
    vec![
        ("in-order".into(), case(&[number(0, 0, 0), number(1, 1, 0), number(2, 2, 0)])),
        ("out-of-order".into(), case(&[number(0, 0, 0), number(1, 2, 0), number(2, 1, 0), number(2, 1, 0)])),
        ("shared".into(), case(&[number(0, 0, 1), number(0, 0, 1), number(1, 1, 0), number(0, 2, 0)])),
        ("far-ahead".into(), case(&[number(0, 0, 0), number(1, 200, 0), number(2, 90, 0)])),
        ("anew".into(), case(&[number(0, 0, 0), number(1, 3, 0), hello(0, 2), number(0, 7, 0)])),
    ]
}

/// Both ends agree; then a forged LACPDU, a marker, a link that goes and comes, other settings,
/// another process, and nothing that arrives.
fn lacp_seeds() -> Vec<(String, Vec<u8>)> {
    // What, says, time in 20 ms, how many bytes follow.
    let step = |at: u8, what: u8, says: u8, time: u16, len: u8| -> [u8; lacp::STEP] {
        let [high, low] = time.to_be_bytes();
        [at, what, says, high, low, len]
    };
    let agreed = step(0, 7, 1, 250, 0);
    let case = |steps: &[&[u8]]| [&agreed[..], &steps.concat()].concat();
    let marker = [&[2, 1, 1, 16][..], &[7; 12]].concat();
    vec![
        ("forged".into(), case(&[&step(4, 2, 0x3d, 100, 3), &[3, 9, 1], &step(0, 0, 0, 500, 0)])),
        ("marker".into(), case(&[&step(0, 1, 0, 1, 16), &marker])),
        ("link".into(), case(&[&step(4, 3, 1, 50, 0), &step(4, 3, 0, 250, 0)])),
        ("settings".into(), case(&[&step(2, 4, 0x52, 200, 0), &step(0, 4, 0x82, 500, 0)])),
        ("takeover".into(), case(&[&step(0, 7, 0, 0, 0), &step(0, 5, 0, 200, 0)])),
        ("record".into(), case(&[&step(0, 6, 2, 0, 1), &[1], &step(0, 3, 1, 1, 0), &step(0, 3, 0, 200, 0)])),
        ("silent".into(), case(&[&step(1, 7, 1, 6000, 0)])),
    ]
}

fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    match target {
        "bond" => bond_seeds(),
        "lacp" => lacp_seeds(),
        "offload" => offload_seeds(),
        "switch" => switch_seeds(),
        "vcc" => vcc_seeds(),
        "vxlan" => vxlan_seeds(),
        _ => frames().into_iter().map(|(name, build)| (name.to_owned(), build.bytes())).collect(),
    }
}

#[test]
fn the_seeds_are_what_is_built() {
    for target in ["bond", "lacp", "parse", "offload", "guard", "switch", "vcc", "vxlan"] {
        for (name, bytes) in seeds(target) {
            let file = corpus(target).join(&name);
            if std::env::var_os("LEVADA_REGENERATE").is_some() {
                std::fs::create_dir_all(corpus(target)).expect("the corpus can be written");
                std::fs::write(&file, bytes).expect("the corpus can be written");
            } else {
                assert!(std::fs::read(&file).is_ok_and(|old| old == bytes), "{target}/{name} is not what is built");
            }
        }
    }
}

#[test]
fn everything_holds_for_the_whole_corpus() {
    type Run = fn(&[u8]);
    let targets: [(&str, Run); 8] = [
        ("bond", bond::run),
        ("lacp", lacp::run),
        ("parse", parse::run),
        ("offload", offload::run),
        ("guard", guard::run),
        ("switch", switch::run),
        ("vcc", vcc::run),
        ("vxlan", vxlan::run),
    ];
    for (target, run) in targets {
        let mut files = 0;
        for entry in std::fs::read_dir(corpus(target)).expect("there is a corpus") {
            run(&std::fs::read(entry.expect("readable").path()).expect("readable"));
            files += 1;
        }
        assert!(files >= seeds(target).len(), "{target} has {files} files");
    }
}

#[test]
fn seeds_reach_what_they_are_for() {
    for (name, bytes) in offload_seeds() {
        let (case, frame) = offload::Case::read(&bytes).expect("whole");
        let layout = datapath::wire::parse(frame).expect("well-formed");
        assert_eq!(datapath::segment::check_offload(frame, &layout, &case.offload), Ok(()), "{name}");
        assert_eq!(case.offload.gso == Gso::None, !name.contains("so"), "{name}");
    }
}

/// Numbers that look like chance, the same each time (Marsaglia's xorshift, 2003).
struct Dice(u64);

impl guard::theft::Choices for Dice {
    fn below(&mut self, most: u32) -> Option<u32> {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Some((((self.0 >> 32) * u64::from(most)) >> 32) as u32)
    }
}

/// A million attempts in five hundred worlds.
#[test]
fn nobody_steals_an_address_in_a_million_attempts() {
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let (mut passed, mut refused) = (0, 0);
    for _ in 0..500 {
        let tally = guard::theft::play(&mut dice, 2000).expect("dice do not end");
        passed += tally.passed;
        refused += tally.refused;
    }
    assert_eq!(passed + refused, 1_000_000);
    assert!(passed > 100_000 && refused > 100_000, "{passed} passed, {refused} were refused");
}
