//! Golden frame cases: a configuration, frames in, and what the switch made of them: each verdict,
//! every frame out, and all counters.
//!
//! A case is written here; what comes of it lies in `golden/NAME.txt` and is compared word for
//! word. `make golden` writes the files anew: a difference is a change of behaviour, to be looked
//! at. Frames are shown in hexadecimal, with offload metadata where there is any.

use datapath::frame::{Frame, Pool, PoolLimits};
use datapath::offload::{Gso, OffloadSupport};
use datapath::pair::Toward;
use datapath::program::{EndpointId, PortId};
use datapath::stats::{EndpointStats, LaneStats, Traffic};
use datapath::switch::Switch;
use datapath::units::{Instant, Rate};
use datapath::verdict::{DropCounters, Verdict};
use datapath::wire::Mac;
use datapath::wire::build::{self, Build, eth};
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

/// Set, the files are written instead of compared.
const REGENERATE: &str = "LEVADA_REGENERATE";

/// A host with two tenants: `red` on VLAN 10 with a guarded pair and a router, `blue` untagged with
/// one that is learned.
const HOST: &str = r#"
[daemon]
name = "golden"

[[switch]]
name = "s1"
headroom = "2 %"

[switch.uplink]
port = "tap://up"
rate = "1 Gbit/s"

[[switch.tenant]]
name = "red"
vlan = 10
guarantee = "300 Mbit/s"

[[switch.tenant.endpoint]]
name = "red1"
port = "tap://red1"
mac = "02:00:00:00:00:01"
ip = ["10.0.0.1", "fd00::1"]

[[switch.tenant.endpoint]]
name = "red2"
port = "tap://red2"
mac = "02:00:00:00:00:02"
ip = ["10.0.0.2", "10.0.7.0/24", "fd00::2"]

[[switch.tenant.endpoint]]
name = "gate"
port = "tap://gate"
mac = ["02:00:00:00:00:03", "00:00:5e:00:01:07"]
allow = ["dhcp-server", "router"]

[[switch.tenant]]
name = "blue"
vlan = "untagged"

[[switch.tenant.endpoint]]
name = "blue1"
port = "tap://blue1"
"#;

const UPLINK: u32 = 0;
const RED1: u32 = 1;
const RED2: u32 = 2;
const GATE: u32 = 3;
const BLUE1: u32 = 4;

fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

fn v4(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

fn v6(n: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n)
}

/// A message of IGMPv3 to all routers that listen to its reports (RFC 3376, section 4.2.14).
fn igmp(from: Ipv4Addr, kind: u8) -> Build<'static> {
    let to = (Mac([1, 0, 0x5e, 0, 0, 22]), Ipv4Addr::new(224, 0, 0, 22));
    let message = vec![kind, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 239, 1, 2, 3];
    eth(mac(1), to.0).ipv4(from, to.1).ttl(1).ip_options(&[0x94, 4, 0, 0]).protocol(2).payload(message)
}

fn udp(from: u8, to: u8) -> Build<'static> {
    eth(mac(from), mac(to)).ipv4(v4(from), v4(to)).udp(1000, 2000).payload(b"levada".to_vec())
}

fn tcp(from: u8, to: u8, bytes: usize) -> Build<'static> {
    let payload: Vec<u8> = (0..bytes).map(|i| i as u8).collect();
    eth(mac(from), mac(to)).ipv4(v4(from), v4(to)).tcp(1000, 80, 7).payload(payload)
}

/// One case: what the switch is told before the frames, and the frames with what they are.
struct Case {
    name: &'static str,
    config: String,
    /// Ports without any offload.
    plain_ports: &'static [u32],
    /// Limits on what the first endpoint sends over the uplink: toward whom, and kbit/s. They are
    /// lifted at the end.
    pairs: &'static [(Toward, u64)],
    frames: Vec<(u32, &'static str, Build<'static>)>,
}

fn case(name: &'static str, frames: Vec<(u32, &'static str, Build<'static>)>) -> Case {
    Case { name, config: HOST.into(), plain_ports: &[], pairs: &[], frames }
}

fn cases() -> Vec<Case> {
    let broadcast = Mac::BROADCAST;
    let zero = Ipv4Addr::UNSPECIFIED;
    let link_local = build::link_local;
    vec![
        case(
            "forwarding",
            vec![
                (RED1, "to a neighbour", udp(1, 2)),
                (RED1, "to someone outside", udp(1, 9)),
                (RED1, "to itself", udp(1, 1)),
                (RED1, "a broadcast", build::arp_request(mac(1), v4(1), v4(9))),
                (UPLINK, "from outside, tagged", udp(9, 1).vlan(10)),
                (UPLINK, "from outside, for nobody here", udp(9, 8).vlan(10)),
                (UPLINK, "from outside, a VLAN that nobody has", udp(9, 1).vlan(11)),
                (UPLINK, "from outside, with a local source", udp(2, 1).vlan(10)),
                (UPLINK, "from outside, untagged, unknown: to whoever is learned", udp(9, 8)),
                (BLUE1, "teaches its address", udp(8, 9)),
                (UPLINK, "from outside, untagged, now known", udp(9, 8)),
                (BLUE1, "the other tenant's address is somewhere outside for this one", udp(8, 1)),
            ],
        ),
        case(
            "guard-ipv4",
            vec![
                (RED1, "another's MAC address", udp(2, 9)),
                (RED1, "another's IPv4 address", eth(mac(1), mac(2)).ipv4(v4(2), v4(9)).udp(1, 2).payload(vec![0; 20])),
                (
                    RED2,
                    "an address of its prefix",
                    eth(mac(2), mac(1)).ipv4(Ipv4Addr::new(10, 0, 7, 200), v4(1)).udp(1, 2),
                ),
                (RED1, "an ARP reply for another's address", build::arp_reply(mac(1), v4(2), mac(2), v4(2))),
                (RED1, "an ARP probe", build::arp_request(mac(1), zero, v4(1))),
                (RED1, "an ARP announcement", build::arp_request(mac(1), v4(1), v4(1))),
                (RED1, "a DHCP discovery", build::dhcp_discover(mac(1))),
                (RED1, "a DHCP offer from one that may not", build::dhcp_offer((mac(1), v4(1)), mac(2), v4(77))),
                (GATE, "a DHCP offer from one that may", build::dhcp_offer((mac(3), v4(3)), mac(2), v4(77))),
                (
                    GATE,
                    "from its virtual router address",
                    eth(Mac([0, 0, 0x5e, 0, 1, 7]), mac(1)).ipv4(v4(3), v4(1)).udp(1, 2),
                ),
                (RED1, "an IGMP report before it has an address", igmp(zero, 0x22)),
                (RED1, "an IGMP query of one without address", igmp(zero, 0x11)),
                (
                    RED1,
                    "source 0.0.0.0 that is not DHCP",
                    eth(mac(1), broadcast).ipv4(zero, v4(255)).udp(5, 6).payload(vec![1]),
                ),
                (RED1, "a later fragment", udp(1, 2).fragment(64, true)),
                (RED1, "IPv4 options", udp(1, 2).ip_options(&[1, 1, 1, 1])),
                (RED1, "a VLAN tag", udp(1, 2).vlan(10)),
            ],
        ),
        case(
            "guard-ipv6",
            vec![
                (RED1, "its own address", eth(mac(1), mac(2)).ipv6(v6(1), v6(2)).udp(1, 2).payload(vec![5; 10])),
                (RED1, "another's address", eth(mac(1), mac(2)).ipv6(v6(2), v6(1)).udp(1, 2).payload(vec![5; 10])),
                (RED1, "link-local", eth(mac(1), mac(2)).ipv6(link_local(mac(1)), v6(2)).udp(1, 2)),
                (
                    RED1,
                    "duplicate address detection",
                    build::neighbour_solicitation(mac(1), Ipv6Addr::UNSPECIFIED, v6(1)),
                ),
                (RED1, "asks for a neighbour", build::neighbour_solicitation(mac(1), v6(1), v6(2))),
                (RED1, "says where it is", build::neighbour_advertisement(mac(1), v6(1), v6(1))),
                (RED1, "says that another's address is here", build::neighbour_advertisement(mac(1), v6(1), v6(2))),
                (
                    RED1,
                    "a router advertisement from one that is none",
                    build::router_advertisement(mac(1), link_local(mac(1))),
                ),
                (
                    GATE,
                    "a router advertisement from one that is",
                    build::router_advertisement(mac(3), link_local(mac(3))),
                ),
                (RED1, "asks for a router", build::router_solicitation(mac(1), link_local(mac(1)))),
                (RED1, "a multicast listener's report", build::mld_report(mac(1), link_local(mac(1)))),
                (
                    RED1,
                    "a hop-by-hop header before UDP",
                    eth(mac(1), mac(2)).ipv6(v6(1), v6(2)).extension(0, &[0, 1, 4, 0, 0, 0, 0]).udp(1, 2),
                ),
                (
                    RED1,
                    "a fragment",
                    eth(mac(1), mac(2)).ipv6(v6(1), v6(2)).udp(1, 2).payload(vec![9; 32]).fragment(0, true),
                ),
            ],
        ),
        case(
            "malformed",
            vec![
                (
                    RED1,
                    "a pause frame",
                    eth(mac(1), Mac([1, 0x80, 0xc2, 0, 0, 1])).ethertype(0x8808).payload(vec![0; 46]),
                ),
                (
                    RED1,
                    "a bridge's group address",
                    eth(mac(1), Mac([1, 0x80, 0xc2, 0, 0, 0])).ethertype(0x1234).payload(vec![0; 46]),
                ),
                (RED1, "a group address as source", eth(broadcast, mac(2)).ipv4(v4(1), v4(2)).udp(1, 2)),
                (
                    RED1,
                    "an IPv4 packet that claims to be longer",
                    eth(mac(1), mac(2))
                        .ethertype(0x0800)
                        .payload(b"\x45\0\x02\0\0\0\0\0\x40\x11\0\0\x0a\0\0\x01\x0a\0\0\x02".to_vec()),
                ),
                (RED1, "four bytes of IPv6", eth(mac(1), mac(2)).ethertype(0x86dd).payload(vec![0x60, 0, 0, 0])),
                (RED1, "an unknown EtherType passes", eth(mac(1), mac(2)).ethertype(0x88b5).payload(vec![1, 2, 3])),
                (RED1, "nothing behind the EtherType of ARP", eth(mac(1), broadcast).ethertype(0x0806)),
                (RED1, "segments larger than the payload", tcp(1, 2, 100).gso(1448)),
                (RED1, "too long for the leaving port", tcp(1, 2, 3000)),
            ],
        ),
        Case {
            plain_ports: &[RED2],
            ..case(
                "offload",
                vec![
                    (RED1, "to a port without offloads: segments, and their checksums", tcp(1, 2, 300).gso(100)),
                    (RED1, "a partial checksum for it", udp(1, 2).partial()),
                    (RED1, "to the uplink as it is, tagged", tcp(1, 9, 300).gso(100)),
                    (
                        RED1,
                        "UDP segments",
                        eth(mac(1), mac(2)).ipv4(v4(1), v4(2)).udp(5, 6).payload(vec![8; 250]).gso(100),
                    ),
                    (UPLINK, "from outside, the tag off", tcp(9, 1, 300).gso(100).vlan(10)),
                ],
            )
        },
        Case {
            pairs: &[(Toward::Address(Mac([2, 0, 0, 0, 0, 9])), 100), (Toward::Everyone, 1000)],
            ..case(
                "pairs",
                vec![
                    (
                        RED1,
                        "toward a limited address: it waits, as a limit begins within the time of a frame",
                        udp(1, 9),
                    ),
                    (RED1, "the next one waits", udp(1, 9)),
                    (RED1, "offloaded: it waits as well", tcp(1, 9, 300).gso(100)),
                    (RED1, "elsewhere", udp(1, 8)),
                    (RED1, "to a neighbour", udp(1, 2)),
                    (RED1, "a broadcast", build::arp_request(mac(1), v4(1), v4(9))),
                    (RED2, "another endpoint, toward the same address", udp(2, 9)),
                ],
            )
        },
        Case {
            config: HOST
                .replace("headroom", "ingress = \"police\"\nheadroom")
                .replace("1 Gbit/s", "1 Mbit/s")
                .replace("300 Mbit/s", "300 kbit/s"),
            ..case("police", (0..50).map(|_| (UPLINK, "one of fifty", udp(9, 1).vlan(10))).collect())
        },
    ]
}

/// Plays a case and writes down everything that happened.
fn play(case: &Case) -> String {
    let checked = control::load(&case.config);
    let plan = checked.plan.unwrap_or_else(|| panic!("{}: {:?}", case.name, checked.problems));
    let plan = &plan.switches[0];
    let mut program = plan.program.clone();
    for &port in case.plain_ports {
        program.ports[port as usize].offload = OffloadSupport::NONE;
    }
    let mut switch = Switch::new(&program, 1).expect("a sound program");
    let mut pool = Pool::new(PoolLimits { small: 512, medium: 0, large: 32 });
    let mut now = Instant(1_000_000_000);
    let me = EndpointId(0);
    for &(to, kbit) in case.pairs {
        switch.limit_pair(&mut pool, now, me, to, Some(Rate(kbit * 1000))).expect("room");
    }
    let name = |port: u32| plan.ports[port as usize].locator.to_string();
    let mut text = format!("# {}\n\n## configuration\n{}\n## frames\n", case.name, case.config.trim_start());
    for (port, what, frame) in &case.frames {
        // Not `Build::frame`, which insists on frames that parse.
        let mut bytes = Vec::new();
        let offload = frame.write(&mut bytes);
        let frame = pool.alloc_from(&bytes).expect("a buffer");
        pool.meta_mut(&frame).offload = offload;
        let _ = writeln!(text, "{} {what}\n  in   {}", name(*port), show(&pool, &frame));
        let verdict = match switch.rx(&mut pool, now, PortId(*port), frame) {
            Verdict::Forwarded => "forwarded".to_owned(),
            Verdict::Dropped(reason) => format!("dropped: {}", reason.name()),
        };
        let _ = writeln!(text, "  {verdict}");
        let end = now.plus_ns(1_000_000);
        while now < end {
            text.push_str(&leave(&mut switch, &mut pool, now, name));
            now = switch.poll_timeout().map_or(end, |at| at.max(now.plus_ns(1)).min(end));
        }
    }
    for &(to, _) in case.pairs {
        let pair = switch.pairs(me).find(|pair| pair.to == to).expect("a limit");
        let _ = write!(text, "the limit toward {to} of {} is lifted\n{}", pair.rate, lane("waited", &pair.stats));
        switch.limit_pair(&mut pool, now, me, to, None).expect("an endpoint");
        text.push_str(&leave(&mut switch, &mut pool, now, name));
    }
    now = now.plus_ns(1_000_000);
    text.push_str(&leave(&mut switch, &mut pool, now, name));
    assert_eq!(pool.in_use(), 0, "{}: a frame was lost", case.name);
    text.push_str("\n## counters\n");
    for index in 0..plan.endpoints.len() as u32 {
        let _ = write!(
            text,
            "{}\n{}",
            plan.endpoint_path(EndpointId(index)),
            counters(&switch.endpoint_stats(EndpointId(index)))
        );
    }
    let _ = write!(text, "uplink\n{}", drops(switch.uplink_drops()));
    text
}

/// What leaves now.
fn leave(switch: &mut Switch, pool: &mut Pool, now: Instant, name: impl Fn(u32) -> String) -> String {
    let mut text = String::new();
    while let Some((to, frame)) = switch.tx(pool, now) {
        let _ = writeln!(text, "  out  {} {}", name(to.0), show(pool, &frame));
        pool.free(frame);
    }
    text
}

fn show(pool: &Pool, frame: &Frame) -> String {
    let offload = pool.meta(frame).offload;
    let mut text: String = pool.bytes(frame).iter().map(|byte| format!("{byte:02x}")).collect();
    if offload.gso != Gso::None {
        let _ = write!(text, " {:?} of {}", offload.gso, offload.gso_size);
    }
    if offload.needs_csum {
        let _ = write!(text, " checksum at {}+{}", offload.csum_start, offload.csum_offset);
    }
    text
}

fn counters(stats: &EndpointStats) -> String {
    let lanes = [
        ("egress", stats.egress),
        ("ingress", stats.ingress),
        ("local out", stats.local_egress),
        ("local in", stats.local_ingress),
    ];
    let text: String = lanes.iter().map(|(name, stats)| lane(name, stats)).collect();
    text + &drops(&stats.drops)
}

fn lane(name: &str, stats: &LaneStats) -> String {
    let LaneStats { traffic, guaranteed_bytes, marks, trims, backlog_bytes, backlog_frames, .. } = stats;
    let Traffic { frames, segments, bytes, wire_bytes } = traffic;
    format!(
        "  {name:<9} frames {frames} segments {segments} bytes {bytes} wire {wire_bytes} guaranteed {guaranteed_bytes} \
         marks {marks} trims {trims} backlog {backlog_frames}/{backlog_bytes}\n"
    )
}

fn drops(drops: &DropCounters) -> String {
    let list: Vec<String> = drops.nonzero().map(|(reason, frames)| format!("{} {frames}", reason.name())).collect();
    format!("  drops     {}\n", if list.is_empty() { "none".into() } else { list.join(", ") })
}

#[test]
fn every_case_comes_out_as_written() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut differ = Vec::new();
    for case in cases() {
        let file = folder.join(format!("{}.txt", case.name));
        let text = play(&case);
        if std::env::var_os(REGENERATE).is_some() {
            std::fs::write(&file, text).expect("the golden file can be written");
        } else if std::fs::read_to_string(&file).unwrap_or_default() != text {
            let line =
                std::fs::read_to_string(&file).unwrap_or_default().lines().zip(text.lines()).position(|(a, b)| a != b);
            differ.push(format!("{}.txt, from line {}", case.name, line.map_or(0, |l| l + 1)));
        }
    }
    assert!(
        differ.is_empty(),
        "different from the golden files: {differ:?}. `make golden` writes them anew; review the difference."
    );
}
