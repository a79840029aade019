//! `packet://` and `host://`: interfaces that exist. A veth is the NIC, its other end the wire.

use crate::testbed::{Forwarder, Space, bpf_turn, options, skipped, soon, turn};
use crate::traffic::{BULK_BYTES, at, bulk, udp};
use datapath::frame::{Pool, PoolLimits};
use datapath::offload::{Gso, Offload, OffloadSupport};
use datapath::wire::{Mac, build};
use ports::packet::{Hooks, Host, HostOptions, OpenError, Packet, PacketOptions, address, hooks};
use ports::tap::{Tag, Tap};
use ports::{Port, PortError, Refused};
use std::net::IpAddr;

/// The addresses of the far ends.
pub const ONE: &str = "10.9.0.1";
pub const TWO: &str = "10.9.0.2";
/// The host's own, on the interface that is taken.
const HOST: &str = "10.9.0.9";

/// Two hosts with a NIC each, wired to the interfaces `w1` and `w2` of a third namespace.
pub struct Wires {
    pub one: Space,
    pub two: Space,
    pub middle: Space,
}

impl Wires {
    pub fn new() -> Wires {
        let wires = Wires { one: Space::new(), two: Space::new(), middle: Space::new() };
        for (space, near, number) in [(&wires.one, "w1", 1), (&wires.two, "w2", 2)] {
            // The switch's side says nothing by itself.
            wires.middle.command("sysctl -qw net.ipv6.conf.default.disable_ipv6=1").unwrap();
            let far = format!("peer name eth0 address 02:00:00:00:09:0{number} netns {}", space.0);
            wires.middle.ip(&format!("link add name {near} type veth {far}"));
            wires.middle.ip(&format!("link set dev {near} up"));
            space.ip(&format!("addr add 10.9.0.{number}/24 dev eth0"));
            space.ip(&format!("addr add fd09::{number}/64 dev eth0 nodad"));
            space.ip("link set dev eth0 up");
        }
        wires
    }

    fn wanted(&self, name: &str) -> PacketOptions {
        PacketOptions { name: name.into(), netns: Some(self.middle.0.clone()), room: None, is_exclusive: false }
    }

    pub fn open(&self, name: &str) -> Packet {
        Packet::open(&self.wanted(name)).unwrap()
    }

    pub fn forward(&self) -> Forwarder {
        Forwarder::start(self.open("w1"), self.open("w2"), Pool::new(PoolLimits::default()))
    }

    pub fn hooks(&self, name: &str) -> Hooks {
        let index = self.middle.index(name);
        self.middle.0.run(|| hooks(index)).unwrap().unwrap()
    }
}

fn read_all(port: &mut dyn Port, pool: &mut Pool) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    port.rx(pool, 1000, &mut frames).unwrap();
    frames
        .into_iter()
        .map(|frame| {
            let bytes = pool.bytes(&frame).to_vec();
            pool.free(frame);
            bytes
        })
        .collect()
}

fn send(port: &mut dyn Port, len: usize) -> Result<(), Refused> {
    let mut pool = Pool::new(PoolLimits::default());
    let bytes = vec![0xff; len];
    let frame = pool.alloc_from(&bytes).unwrap();
    let result = port.write(&mut pool, &frame);
    assert_eq!(pool.bytes(&frame), bytes, "as it was");
    pool.free(frame);
    result
}

#[test]
fn all_offloads_pass_between_two_interfaces_in_both_ip_versions() {
    let Some(_turn) = turn("all_offloads_pass_between_two_interfaces_in_both_ip_versions") else { return };
    let wires = Wires::new();
    let forwarder = wires.forward();
    for (one, two) in [(ONE, TWO), ("fd09::1", "fd09::2")] {
        wires.one.command(&format!("ping -c 3 -i 0.05 -W 10 {two}")).unwrap();
        bulk(&wires.one, &wires.two, two, BULK_BYTES);
        bulk(&wires.two, &wires.one, one, BULK_BYTES);
    }
    let report = forwarder.finish();
    assert!(report.ended.is_none() && report.refused.is_empty(), "{:?} {:?}", report.ended, report.refused);
    assert!(report.tcp_segmented > 1000 && report.longest > 60_000, "{} {}", report.tcp_segmented, report.longest);
    assert_eq!(report.frames_left_in_pool, 0);
}

#[test]
fn offloads_pass_between_an_interface_and_a_tap() {
    let Some(_turn) = turn("offloads_pass_between_an_interface_and_a_tap") else { return };
    let (wires, three) = (Wires::new(), Space::new());
    let tap = Tap::open(&options("tap0", &three, &["10.9.0.3/24"])).unwrap();
    let forwarder = Forwarder::start(wires.open("w1"), tap, Pool::new(PoolLimits::default()));
    bulk(&wires.one, &three, "10.9.0.3", BULK_BYTES);
    bulk(&three, &wires.one, ONE, BULK_BYTES);
    let report = forwarder.finish();
    assert!(report.tcp_segmented > 1000, "{} segmented", report.tcp_segmented);
}

/// The kernel would drop what its device does not cut.
#[test]
fn what_the_device_cannot_cut_is_not_handed_to_it() {
    const TEST: &str = "what_the_device_cannot_cut_is_not_handed_to_it";
    let Some(_turn) = turn(TEST) else { return };
    let wires = Wires::new();
    if let Some(why) = wires.middle.command("ethtool --version").err() {
        skipped(TEST, format!("there is no ethtool: {why}"));
        return;
    }
    let mut port = wires.open("w1");
    assert_eq!(port.features().offload, OffloadSupport { uso: port.features().offload.uso, ..OffloadSupport::ALL });
    wires.middle.command("ethtool -K w1 tx-tcp-segmentation off tx-udp-segmentation off").unwrap();
    port.drops_before_us().unwrap();
    let offload = port.features().offload;
    assert_eq!((offload.csum, offload.tso4, offload.tso6, offload.uso), (true, false, true, false));
    assert_eq!(wires.open("w1").features().offload, offload);
}

#[test]
fn vlan_tags_that_come_beside_the_frame_are_put_back_with_offsets_to_match() {
    let Some(_turn) = turn("vlan_tags_that_come_beside_the_frame_are_put_back_with_offsets_to_match") else { return };
    let wires = Wires::new();
    let mut far =
        Packet::open(&PacketOptions { name: "eth0".into(), netns: Some(wires.one.0.clone()), ..wires.wanted("") });
    let far = far.as_mut().unwrap();
    let mut port = wires.open("w1");
    let mut pool = Pool::new(PoolLimits::default());
    let (from, to) = (Mac([2, 0, 0, 0, 9, 1]), Mac([2, 0, 0, 0, 9, 7]));
    let plain = build::eth(from, to).ipv4([10, 7, 0, 1].into(), [10, 7, 0, 7].into()).tcp(1, 2, 3);
    let plain = plain.payload((0..8000).map(|i| (i % 251) as u8).collect::<Vec<u8>>()).bytes();
    for protocol in [[0x81, 0x00], [0x88, 0xa8]] {
        for gso in [Gso::None, Gso::Tcp4] {
            let payload = if gso == Gso::None { 1000 } else { 8000 };
            let tag = [protocol[0], protocol[1], 0x60, 7];
            let bytes = [&plain[..12], &tag[..], &plain[12..14 + 20 + 20 + payload]].concat();
            let frame = pool.alloc_from(&bytes).unwrap();
            let segmented = Offload {
                gso,
                gso_size: if gso == Gso::None { 0 } else { 1448 },
                needs_csum: true,
                csum_start: 14 + 4 + 20,
                csum_offset: 16,
                ..Offload::default()
            };
            pool.meta_mut(&frame).offload = segmented;
            assert_eq!(far.tx(&mut pool, frame), Ok(()));
            let mut frames = Vec::new();
            port.rx(&mut pool, 100, &mut frames).unwrap();
            let found = frames.iter().find(|frame| pool.bytes(frame)[..6] == to.0).expect("the frame arrives whole");
            assert!(pool.bytes(found) == bytes, "{:x?}", &pool.bytes(found)[..20]);
            assert_eq!(pool.meta(found).offload, segmented);
            frames.into_iter().for_each(|frame| pool.free(frame));
        }
    }
    assert_eq!(port.drops_before_us().unwrap(), 0);
}

#[test]
fn frames_as_long_as_the_mtu_pass_and_longer_ones_are_refused() {
    let Some(_turn) = turn("frames_as_long_as_the_mtu_pass_and_longer_ones_are_refused") else { return };
    let wires = Wires::new();
    for (space, device) in [(&wires.one, "eth0"), (&wires.two, "eth0"), (&wires.middle, "w1"), (&wires.middle, "w2")] {
        space.ip(&format!("link set dev {device} mtu 9000"));
    }
    let forwarder = wires.forward();
    let full = 9000 - 28;
    wires.one.command(&format!("ping -c 2 -i 0.1 -W 10 -M do -s {full} {TWO}")).unwrap();
    let (from, to) = (udp(&wires.one, ONE), udp(&wires.two, TWO));
    let sent: Vec<u8> = (0..full).map(|i| (i % 251) as u8).collect();
    from.send_to(&sent, to.local_addr().unwrap()).unwrap();
    let mut buffer = vec![0; 10_000];
    let len = to.recv(&mut buffer).unwrap();
    assert!(buffer[..len] == sent[..], "{len}");
    bulk(&wires.one, &wires.two, TWO, BULK_BYTES);
    assert!(forwarder.finish().refused.is_empty());
    let mut port = wires.open("w1");
    assert_eq!(port.features().max_frame, 9014);
    assert_eq!(send(&mut port, 9014), Ok(()));
    assert_eq!(send(&mut port, 9100), Err(Refused::Invalid));
}

#[test]
fn what_finds_no_room_is_counted() {
    let Some(_turn) = turn("what_finds_no_room_is_counted") else { return };
    const SENT: usize = 1000;
    let wires = Wires::new();
    let mut port = Packet::open(&PacketOptions { room: Some(1), ..wires.wanted("w1") }).unwrap();
    wires.one.ip("neigh replace 10.9.0.3 lladdr 02:00:00:00:09:03 dev eth0");
    let socket = udp(&wires.one, ONE);
    for _ in 0..SENT {
        socket.send_to(&[7; 1000], at("10.9.0.3", 9)).unwrap();
    }
    let mut pool = Pool::new(PoolLimits::default());
    let is_sent = |frame: &&Vec<u8>| frame[..6] == [2, 0, 0, 0, 9, 3];
    let mut read = 0;
    let mut lost = 0;
    soon("all are read or counted", || {
        read += read_all(&mut port, &mut pool).iter().filter(is_sent).count();
        lost = port.second().unwrap().drops_before_us().unwrap();
        read + lost as usize >= SENT
    });
    assert!(read > 10 && lost > 100, "{read} {lost}");
    assert!(read + lost as usize <= SENT + 20, "the host's own few are lost as well: {read} {lost}");
    assert_eq!(port.drops_before_us().unwrap(), lost, "both handles tell the same");
}

/// Frames that are lost for want of a large buffer are taken no faster than others: their port is
/// read at turns, and a buffer may be free at the next.
#[test]
fn frames_that_find_only_a_small_buffer_count_as_read() {
    let Some(_turn) = turn("frames_that_find_only_a_small_buffer_count_as_read") else { return };
    const SENT: usize = 200;
    const BURST: usize = 4;
    let wires = Wires::new();
    for (space, device) in [(&wires.one, "eth0"), (&wires.middle, "w1")] {
        space.ip(&format!("link set dev {device} mtu 9000"));
    }
    let mut port = wires.open("w1");
    wires.one.ip("neigh replace 10.9.0.3 lladdr 02:00:00:00:09:03 dev eth0");
    let socket = udp(&wires.one, ONE);
    for _ in 0..SENT {
        socket.send_to(&[7; 8000], at("10.9.0.3", 9)).unwrap();
    }
    let mut short = Pool::new(PoolLimits { small: 64, medium: 0, large: 0 });
    let mut frames = Vec::new();
    port.rx(&mut short, BURST, &mut frames).unwrap();
    frames.into_iter().for_each(|frame| short.free(frame));
    assert_eq!(short.in_use(), 0);
    let mut pool = Pool::new(PoolLimits::default());
    let mut left = 0;
    soon("the others are left", || {
        let read = read_all(&mut port, &mut pool);
        left += read.iter().filter(|frame| frame[..6] == [2, 0, 0, 0, 9, 3]).count();
        left >= SENT - BURST
    });
    assert!(port.drops_before_us().unwrap() as usize <= BURST);
}

#[test]
fn an_interface_is_promiscuous_while_it_is_used_and_keeps_its_own() {
    let Some(_turn) = turn("an_interface_is_promiscuous_while_it_is_used_and_keeps_its_own") else { return };
    let wires = Wires::new();
    let promiscuous = || wires.middle.ip("-d link show dev w1").contains("promiscuity 1");
    let before = wires.middle.ip("addr show dev w1");
    let port = wires.open("w1");
    assert!(promiscuous());
    assert!(port.notes().is_empty(), "{:?}", port.notes());
    drop(port);
    assert!(!promiscuous());
    assert_eq!(wires.middle.ip("addr show dev w1"), before);
}

#[test]
fn what_is_not_there_or_not_ethernet_is_named() {
    let Some(_turn) = turn("what_is_not_there_or_not_ethernet_is_named") else { return };
    let wires = Wires::new();
    let missing = Packet::open(&wires.wanted("eth9")).unwrap_err();
    assert!(matches!(missing, OpenError::Missing(_)) && missing.to_string().contains("eth9"), "{missing}");
    let loopback = Packet::open(&wires.wanted("lo")).unwrap_err();
    assert!(matches!(loopback, OpenError::NotEthernet(_)), "{loopback}");
    let nowhere = PacketOptions { netns: Some(ports::netns::Netns::new("levada-never-made")), ..wires.wanted("w1") };
    assert!(matches!(Packet::open(&nowhere).unwrap_err(), OpenError::Namespace(..)));
}

#[test]
fn an_interface_that_goes_down_comes_back_and_one_renamed_goes_on() {
    let Some(_turn) = turn("an_interface_that_goes_down_comes_back_and_one_renamed_goes_on") else { return };
    let wires = Wires::new();
    let mut port = wires.open("w1");
    let mut pool = Pool::new(PoolLimits::default());
    wires.one.ip("neigh replace 10.9.0.3 lladdr 02:00:00:00:09:03 dev eth0");
    let socket = udp(&wires.one, ONE);
    for _ in 0..10 {
        socket.send_to(&[7; 1000], at("10.9.0.3", 9)).unwrap();
    }
    wires.middle.ip("link set dev w1 down");
    assert_eq!(send(&mut port, 60), Err(Refused::Down));
    let read = read_all(&mut port, &mut pool);
    let received = read.iter().filter(|frame| frame[..6] == [2, 0, 0, 0, 9, 3]).count();
    assert_eq!(received, 10, "what was received before is read in one call");
    wires.middle.ip("link set dev w1 name wire");
    wires.middle.ip("link set dev wire up");
    soon("it has its carrier", || send(&mut port, 60) == Ok(()));
    wires.one.command("ping -c 1 -W 1 10.9.0.3").unwrap_err();
    assert!(!read_all(&mut port, &mut pool).is_empty(), "frames are read again");
    assert!(port.drops_before_us().is_ok());
}

#[test]
fn an_interface_that_changes_says_so_and_goes_on() {
    let Some(_turn) = turn("an_interface_that_changes_says_so_and_goes_on") else { return };
    let wires = Wires::new();
    let mut port = wires.open("w1");
    let mut second = port.second().unwrap();
    assert_eq!((second.features().max_frame, second.line()), (1514, port.line()));
    wires.middle.ip("link set dev w1 mtu 1400");
    wires.middle.ip("link set dev w1 address 02:00:00:00:09:aa");
    second.drops_before_us().unwrap();
    assert_eq!(second.features().max_frame, 1414);
    assert_eq!(second.line().mac, Some(Mac([2, 0, 0, 0, 9, 0xaa])));
    assert_eq!(send(&mut port, 1414), Ok(()));
    assert_eq!(send(&mut port, 1415), Err(Refused::Invalid));
}

#[test]
fn a_line_says_what_it_carries() {
    let Some(_turn) = turn("a_line_says_what_it_carries") else { return };
    let wires = Wires::new();
    // A veth says 10 Gbit/s, and a bridge what its fastest port says: nothing, without one.
    assert_eq!(wires.open("w1").line().bits_per_second, Some(10_000_000_000));
    wires.middle.ip("link add br0 type bridge");
    wires.middle.ip("link set dev br0 up");
    let mut bridge = wires.open("br0");
    assert_eq!(bridge.line().bits_per_second, None);
    wires.middle.ip("link set dev w2 master br0");
    bridge.drops_before_us().unwrap();
    assert_eq!(bridge.line().bits_per_second, Some(10_000_000_000));
}

#[test]
fn an_interface_deleted_is_to_be_opened_anew() {
    let Some(_turn) = turn("an_interface_deleted_is_to_be_opened_anew") else { return };
    let wires = Wires::new();
    let mut port = wires.open("w1");
    wires.middle.ip("link delete dev w1");
    assert_eq!(send(&mut port, 60), Err(Refused::Gone));
    let Err(PortError::Gone(why)) = port.drops_before_us() else { panic!("the loss is not told") };
    assert!(why.contains("w1"), "{why}");
    let mut other = wires.open("w2");
    wires.middle.0.delete().unwrap();
    assert!(matches!(other.drops_before_us(), Err(PortError::Gone(_))), "with its namespace");
}

/// The host has an address on `w1`, and a network beyond it.
fn with_a_host() -> Wires {
    let wires = Wires::new();
    wires.middle.ip(&format!("addr add {HOST}/24 dev w1"));
    wires
}

fn host_options(wires: &Wires) -> HostOptions {
    HostOptions {
        interface: "w1".into(),
        netns: Some(wires.middle.0.clone()),
        macs: Vec::new(),
        ring: None,
        tag: Tag { instance: wires.middle.instance(), endpoint: "s1/t/host".into() },
    }
}

#[test]
fn a_shared_interface_leaves_the_host_what_is_its_own() {
    let Some(_turn) = turn("a_shared_interface_leaves_the_host_what_is_its_own") else { return };
    let wires = with_a_host();
    let mut port = wires.open("w1");
    wires.one.command(&format!("ping -c 3 -i 0.05 -W 10 {HOST}")).unwrap();
    let frames = read_all(&mut port, &mut Pool::new(PoolLimits::default()));
    let mac = |text: &str| -> Vec<u8> { text.split(':').map(|b| u8::from_str_radix(b, 16).unwrap()).collect() };
    let shown = wires.middle.ip("link show dev w1");
    let own = mac(shown.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap());
    assert!(frames.iter().all(|frame| frame[..6] != own[..]), "they stay with the host");
    assert!(frames.iter().any(|frame| frame[..6] == [0xff; 6]), "the question for its address is for all");
}

#[test]
fn an_exclusive_interface_carries_the_host_through_the_switch_and_is_given_back() {
    let Some(_turn) = bpf_turn("an_exclusive_interface_carries_the_host_through_the_switch_and_is_given_back") else {
        return;
    };
    let wires = with_a_host();
    let ping = || wires.one.command(&format!("ping -c 3 -i 0.05 -W 1 {HOST}"));
    ping().unwrap();
    let none = Hooks { ingress: 0, egress: 0 };
    assert_eq!(wires.hooks("w1"), none);
    let port = Packet::open(&PacketOptions { is_exclusive: true, ..wires.wanted("w1") }).unwrap();
    let other = HostOptions { macs: vec![Mac([2, 0, 0, 0, 9, 0xcc])], ..host_options(&wires) };
    assert!(matches!(Host::open(&other), Err(OpenError::OtherAddress(..))), "its frames would be dropped");
    assert_eq!(wires.hooks("w1"), none);
    let macs = vec![address("w1", Some(&wires.middle.0)).unwrap()];
    let host = Host::open(&HostOptions { macs, ..host_options(&wires) }).unwrap();
    assert_eq!(wires.hooks("w1"), Hooks { ingress: 1, egress: 1 });
    ping().unwrap_err();
    let forwarder = Forwarder::start(port, host, Pool::new(PoolLimits::default()));
    ping().unwrap();
    bulk(&wires.one, &wires.middle, HOST, BULK_BYTES);
    bulk(&wires.middle, &wires.one, ONE, BULK_BYTES);
    wires.one.command(&format!("ping -c 1 -W 10 -M do -s 1472 {HOST}")).unwrap();
    let mut report = forwarder.finish();
    assert!(report.ended.is_none() && report.refused.is_empty(), "{:?} {:?}", report.ended, report.refused);
    assert!(report.tcp_segmented > 1000, "{} segmented", report.tcp_segmented);
    for port in &mut report.ports {
        assert!(port.drops_before_us().is_ok());
    }
    drop(report);
    assert_eq!(wires.hooks("w1"), none);
    assert!(!wires.middle.ip("link show").contains("levada"), "the host's TAP is gone");
    ping().unwrap();
    bulk(&wires.one, &wires.middle, HOST, 1 << 20);
}

#[test]
fn losing_either_device_of_an_exclusive_interface_does_not_cut_the_host_off() {
    let Some(_turn) = bpf_turn("losing_either_device_of_an_exclusive_interface_does_not_cut_the_host_off") else {
        return;
    };
    let wires = with_a_host();
    let port = Packet::open(&PacketOptions { is_exclusive: true, ..wires.wanted("w1") }).unwrap();
    let host = Host::open(&host_options(&wires)).unwrap();
    let forwarder = Forwarder::start(port, host, Pool::new(PoolLimits::default()));
    let address: IpAddr = HOST.parse().unwrap();
    wires.one.command(&format!("ping -c 1 -W 10 {address}")).unwrap();
    wires.middle.ip(&format!("link delete dev levada.{}", wires.middle.index("w1")));
    let report = forwarder.wait();
    assert!(matches!(report.ended, Some((1, PortError::Gone(_)))), "{:?}", report.ended);
    drop(report);
    wires.one.command(&format!("ping -c 1 -W 10 {address}")).unwrap();
    let mut host = Host::open(&host_options(&wires)).unwrap();
    wires.middle.ip("link delete dev w1");
    assert!(matches!(host.drops_before_us(), Err(PortError::Gone(_))));
}
