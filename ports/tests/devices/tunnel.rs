//! A switch's tunnels against Linux's vxlan device: a guest on a TAP here, a host of the same
//! tenant there, TCP with all offloads in both directions.

use crate::testbed::{AnyPort, Space, bpf_turn, options, skipped, turn};
use crate::traffic::bulk;
use datapath::checksum;
use datapath::encap::vxlan;
use datapath::encap::vxlan::Tunnel;
use datapath::frame::{Frame, Pool, PoolLimits};
use datapath::guard::Identity;
use datapath::offload::{Gso, GsoEcn, Offload, OffloadSupport};
use datapath::overlay::{Overlay, Peer, Vtep};
use datapath::program::{Attachment, Endpoint, EndpointId, PortFeatures, PortId, Program, Tenant, TenantId, Uplink};
use datapath::segment;
use datapath::stats::EndpointStats;
use datapath::switch::Switch;
use datapath::units::{Both, Instant, Rate};
use datapath::verdict::{DropCounters, Reason};
use datapath::wire::build::{self, Build};
use datapath::wire::{Mac, parse};
use ports::Port;
use ports::packet::{Packet, PacketOptions};
use ports::tap::Tap;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant as Clock;

const VNI: u32 = 5001;
const GUEST: Mac = Mac([2, 0, 0, 0, 9, 1]);
const REMOTE: Mac = Mac([2, 0, 0, 0, 9, 2]);
/// The switch's end, whose address is not the interface's own (of a shared interface, frames to
/// that are the host's), and the other host.
const HERE: Mac = Mac([2, 0, 0, 0, 8, 1]);
const THERE: Mac = Mac([2, 0, 0, 0, 8, 2]);
/// Their addresses on the network between them.
type Ends = (IpAddr, IpAddr);
const OVER_IPV4: Ends = (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)));
const OVER_IPV6: Ends = (
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)),
);
const BYTES: usize = 16 << 20;
/// An Ethernet header.
const HEADER: u32 = 14;
const BURST: usize = 64;

/// The tenant has the guest here and the remote address there.
fn program(ports: &[AnyPort], ends: Ends) -> Program {
    let rate = Rate(10_000_000_000);
    let features = |port: &AnyPort| PortFeatures { offload: port.features().offload, max_frame: 1500 + HEADER };
    let tenant = TenantId(0);
    Program {
        uplink: Some(Uplink::new(PortId(0), Both { egress: rate, ingress: rate })),
        tenants: vec![Tenant { attachment: Attachment::Vxlan(VNI), ..Tenant::default() }].into(),
        endpoints: vec![Endpoint {
            identity: Identity { macs: vec![GUEST], ..Identity::default() },
            ..Endpoint::new(tenant, PortId(1))
        }]
        .into(),
        ports: ports.iter().map(features).collect(),
        fdb_age_ns: 1_000_000_000,
        overlay: Overlay {
            local: Some(Vtep { address: ends.0, mac: HERE }),
            peers: [(ends.1, Peer { next_hop: Some(THERE), tenants: vec![tenant] })].into(),
            remotes: [((tenant, REMOTE), ends.1)].into(),
        },
        ..Program::default()
    }
}

/// What a switch counted.
struct Counted {
    guest: EndpointStats,
    uplink_drops: DropCounters,
    frames_lost: usize,
}

/// A thread that runs a switch on two ports: the uplink and the guest's.
struct Running {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Counted>>,
}

impl Running {
    fn start(ports: Vec<AnyPort>, ends: Ends) -> Running {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        Running { stop, thread: Some(std::thread::spawn(move || run(ports, ends, &seen))) }
    }

    fn finish(mut self) -> Counted {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(mut ports: Vec<AnyPort>, ends: Ends, stop: &AtomicBool) -> Counted {
    let mut switch = Switch::new(&program(&ports, ends), 1).unwrap();
    let mut pool = Pool::new(PoolLimits::default());
    let start = Clock::now();
    let now = || Instant(1 + start.elapsed().as_nanos() as u64);
    let mut burst = Vec::with_capacity(BURST);
    while !stop.load(Ordering::Relaxed) {
        let wait_ns = switch.poll_timeout().map_or(10_000_000, |at| at.since(now()).min(10_000_000));
        let mut fds: Vec<_> =
            ports.iter().map(|port| PollFd::from_borrowed_fd(port.fd().unwrap(), PollFlags::IN)).collect();
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: wait_ns as _ })).unwrap();
        drop(fds);
        for (number, port) in ports.iter_mut().enumerate() {
            port.rx(&mut pool, BURST, &mut burst).unwrap();
            for frame in burst.drain(..) {
                switch.rx(&mut pool, now(), PortId(number as u32), frame);
            }
        }
        while let Some((port, frame)) = switch.tx(&mut pool, now()) {
            // What a full ring refuses is freed, and TCP sends it again.
            let _ = ports[port.0 as usize].tx(&mut pool, frame);
        }
    }
    switch.clear(&mut pool);
    Counted {
        guest: switch.endpoint_stats(EndpointId(0)),
        uplink_drops: switch.uplink_drops().clone(),
        frames_lost: pool.in_use(),
    }
}

/// A guest, a switch whose uplink is an interface of its own namespace, and another host with
/// Linux's vxlan device.
struct Hosts {
    guest: Space,
    there: Space,
    _here: Space,
    switch: Running,
}

impl Hosts {
    /// `device` is what the vxlan device is told beside its addresses, which are `ends`, and `mtu`
    /// the guest's.
    fn new(ends: Ends, device: &str, mtu: u32) -> Hosts {
        let (guest, here, there) = (Space::new(), Space::new(), Space::new());
        let (one, other) = ends;
        here.command("sysctl -qw net.ipv6.conf.default.disable_ipv6=1").unwrap();
        let far = format!("peer name eth0 address {THERE} netns {}", there.0);
        here.ip(&format!("link add name w1 type veth {far}"));
        here.ip("link set dev w1 up");
        let (length, how) = if other.is_ipv4() { (24, "") } else { (64, "nodad") };
        there.ip(&format!("addr add {other}/{length} dev eth0 {how}"));
        there.ip("link set dev eth0 up");
        there.ip(&format!("neigh replace {one} lladdr {HERE} dev eth0 nud permanent"));
        let between = format!("id {VNI} local {other} remote {one} dstport 4789 dev eth0");
        there.ip(&format!("link add name vx0 address {REMOTE} type vxlan {between} {device}"));
        there.ip("addr add 10.9.0.2/24 dev vx0");
        there.ip("addr add fd09::2/64 dev vx0 nodad");
        there.ip("link set dev vx0 up");
        let mut tap = options("tap0", &guest, &["10.9.0.1/24"]);
        (tap.mac, tap.mtu) = (Some(GUEST), Some(mtu));
        let tap = Tap::open(&tap).unwrap();
        guest.ip("addr add fd09::1/64 dev tap0 nodad");
        let wanted = PacketOptions { name: "w1".into(), netns: Some(here.0.clone()), room: None, is_exclusive: false };
        let switch = Running::start(vec![Box::new(Packet::open(&wanted).unwrap()), Box::new(tap)], ends);
        Hosts { guest, there, _here: here, switch }
    }
}

fn is_there_no_vxlan(test: &str) -> bool {
    let space = Space::new();
    let missing = space.command("ip link add name vx0 type vxlan id 1 dstport 4789").err();
    if let Some(why) = &missing {
        skipped(test, format!("the kernel has no vxlan device: {why}"));
    }
    missing.is_some()
}

#[test]
fn linux_and_the_switch_are_ends_of_one_tunnel() {
    const TEST: &str = "linux_and_the_switch_are_ends_of_one_tunnel";
    let Some(_turn) = turn(TEST) else { return };
    if is_there_no_vxlan(TEST) {
        return;
    }
    // Over IPv6 Linux has checksums, and takes nothing without, unless it is told otherwise.
    let without = "udp6zerocsumtx udp6zerocsumrx";
    for (ends, checksum, mtu) in [
        (OVER_IPV4, "noudpcsum", 1450),
        (OVER_IPV4, "udpcsum", 1450),
        (OVER_IPV6, "", 1430),
        (OVER_IPV6, without, 1430),
    ] {
        let hosts = Hosts::new(ends, checksum, mtu);
        for (guest, there) in [("10.9.0.1", "10.9.0.2"), ("fd09::1", "fd09::2")] {
            hosts.guest.command(&format!("ping -c 3 -i 0.05 -W 10 {there}")).unwrap();
            hosts.there.command(&format!("ping -c 3 -i 0.05 -W 10 {guest}")).unwrap();
            bulk(&hosts.guest, &hosts.there, there, BYTES);
            bulk(&hosts.there, &hosts.guest, guest, BYTES);
        }
        let counted = hosts.switch.finish();
        let (out, back) = (counted.guest.egress.traffic, counted.guest.ingress.traffic);
        assert_eq!(counted.frames_lost, 0);
        assert!(out.segments > 2 * out.frames, "{checksum}: {out:?} went out in offloaded frames");
        assert!(back.segments > 2 * back.frames, "{checksum}: {back:?} came in offloaded frames");
        for reason in [Reason::Malformed, Reason::BadOffload, Reason::BadVni, Reason::UnknownVtep] {
            assert_eq!(counted.uplink_drops.get(reason), 0, "{checksum}: {}", reason.name());
        }
        assert_eq!(counted.guest.drops.get(Reason::PathMtu), 0);
    }
}

/// One of the cases of [`what_goes_whole_is_cut_below_as_the_switch_would_cut_it`].
struct Case {
    what: &'static str,
    inner: Build<'static>,
    /// Segments that are cut off its end before.
    trimmed: u32,
}

/// The one that says by TCP's flag CWR that it has heard of a mark, in its first segment alone.
const WITH_CWR: &str = "CWR";

fn cases() -> Vec<Case> {
    let eth = || build::eth(REMOTE, GUEST);
    let v4 = || eth().ipv4(Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)).id(0xfffe);
    let (a, b) = (Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2));
    let v6 = || eth().ipv6(a, b);
    let bytes = |len: usize| (0..len).map(|n| (n % 251) as u8).collect::<Vec<u8>>();
    let tcp = |build: Build<'static>, len: usize| build.tcp(1000, 80, 0xffff_f000).payload(bytes(len)).gso(1376);
    let case = |what, inner| Case { what, inner, trimmed: 0 };
    vec![
        case("IPv4", tcp(v4(), 64_000)),
        case("IPv6", tcp(v6(), 64_000)),
        case("two segments", tcp(v4(), 1377)),
        case("a mark", tcp(v4().tos(3), 10_000)),
        case("a mark over IPv6", tcp(v6().tos(3), 10_000)),
        case(WITH_CWR, tcp(v4().tos(2), 10_000).flags(0x98)),
        case("small segments", v4().tcp(1000, 80, 7).payload(bytes(3000)).gso(100)),
        case("one segment", v4().tcp(1000, 80, 7).payload(bytes(1000))),
        case("no TCP", v6().udp(1, 2).payload(bytes(1000))),
        Case { what: "trimmed", inner: tcp(v4(), 20_000), trimmed: 5 },
        Case { what: "trimmed to one", inner: tcp(v6(), 2000), trimmed: 1 },
    ]
}

const TUNNEL: Tunnel = Tunnel { from: (OVER_IPV4.0, HERE), to: (OVER_IPV4.1, THERE), vni: VNI };

/// The frame as the switch has it when it leaves.
fn looked_at(pool: &mut Pool, case: &Case) -> Frame {
    let frame = case.inner.frame(pool).unwrap();
    let (bytes, meta) = pool.parts_mut(&frame);
    meta.layout = parse(bytes).unwrap();
    meta.offload.gso_ecn = if case.what == WITH_CWR { GsoEcn::Cwr } else { GsoEcn::None };
    segment::trim(pool, &frame, case.trimmed);
    let meta = pool.meta_mut(&frame);
    meta.set_in_tunnel(true);
    frame
}

/// A tunnel's frame but for what the kernel numbers: the outer packets, whose header's checksum
/// must be right.
fn but_for_its_number(mut bytes: Vec<u8>) -> Vec<u8> {
    assert_eq!(checksum::sum(&bytes[14..34]), 0xffff, "the outer header's checksum");
    bytes[18..20].fill(0);
    bytes[24..26].fill(0);
    bytes
}

/// On the wire, that is; where nobody cuts it, it arrives as it left.
#[test]
fn what_goes_whole_is_cut_below_as_the_switch_would_cut_it() {
    const TEST: &str = "what_goes_whole_is_cut_below_as_the_switch_would_cut_it";
    let Some(_turn) = bpf_turn(TEST) else { return };
    let (here, there) = (Space::new(), Space::new());
    for space in [&here, &there] {
        space.command("sysctl -qw net.ipv6.conf.default.disable_ipv6=1").unwrap();
    }
    here.ip(&format!("link add name w1 type veth peer name w2 address {THERE} netns {}", there.0));
    here.ip("link set dev w1 up");
    there.ip("link set dev w2 up");
    let open = |name: &str, space: &Space, is_exclusive| {
        Packet::open(&PacketOptions { name: name.into(), netns: Some(space.0.clone()), room: None, is_exclusive })
            .unwrap()
    };
    let (mut near, mut far) = (open("w1", &here, false), open("w2", &there, true));
    let mut pool = Pool::new(PoolLimits::default());
    let send = |pool: &mut Pool, near: &mut Packet, case: &Case| {
        let frame = looked_at(pool, case);
        assert!(vxlan::push(pool, &frame, &TUNNEL, 50_000, true));
        near.tx(pool, frame)
    };
    let read = |pool: &mut Pool, far: &mut Packet| -> Vec<(Vec<u8>, Offload)> {
        let mut frames = Vec::new();
        far.rx(pool, 1000, &mut frames).unwrap();
        let told = |frame| {
            let told = (pool.bytes(&frame).to_vec(), pool.meta(&frame).offload);
            pool.free(frame);
            told
        };
        frames.into_iter().map(told).collect()
    };
    let cases = cases();
    // Not before somebody wants it; and what nobody can cut does not leave.
    near.drops_before_us().unwrap();
    assert!(!near.features().offload.tunnel);
    send(&mut pool, &mut near, &cases[0]).unwrap_err();
    assert_eq!(read(&mut pool, &mut far), []);
    near.drops_before_us().unwrap();
    assert!(near.features().offload.tunnel && near.complaint().is_none());
    for case in &cases {
        send(&mut pool, &mut near, case).unwrap();
        let frame = looked_at(&mut pool, case);
        assert!(vxlan::push(&mut pool, &frame, &TUNNEL, 50_000, true));
        let arrived = read(&mut pool, &mut far);
        assert_eq!(arrived, [(pool.bytes(&frame).to_vec(), pool.meta(&frame).offload)], "{}", case.what);
        pool.free(frame);
    }
    if let Err(why) = here.command("ethtool -K w1 tx off tso off gso off tx-udp_tnl-segmentation off") {
        skipped(&format!("a part of {TEST}"), why);
        return;
    }
    near.drops_before_us().unwrap();
    assert!(near.features().offload.tunnel);
    for case in &cases {
        send(&mut pool, &mut near, case).unwrap();
        let mut expected = Vec::new();
        let frame = looked_at(&mut pool, case);
        let cut = segment::software(&mut pool, frame, OffloadSupport::NONE, 1500, &mut |pool, part| {
            assert!(vxlan::push(pool, &part, &TUNNEL, 50_000, false));
            expected.push(but_for_its_number(pool.bytes(&part).to_vec()));
            pool.free(part);
        });
        assert_eq!(cut, Ok(()));
        let arrived = read(&mut pool, &mut far);
        assert!(arrived.iter().all(|(_, offload)| !offload.needs_csum && offload.gso == Gso::None), "{}", case.what);
        let arrived: Vec<_> = arrived.into_iter().map(|(bytes, _)| but_for_its_number(bytes)).collect();
        assert_eq!(arrived.len(), expected.len(), "{}", case.what);
        for (number, (is, wanted)) in arrived.iter().zip(&expected).enumerate() {
            assert_eq!(is, wanted, "{}, segment {number}", case.what);
        }
    }
    assert_eq!(pool.in_use(), 0);
}

/// A guest that believes in 1500 bytes learns that 1450 fit, or 1430 over IPv6.
#[test]
fn a_guest_is_told_what_fits_into_the_tunnel() {
    const TEST: &str = "a_guest_is_told_what_fits_into_the_tunnel";
    let Some(_turn) = turn(TEST) else { return };
    if is_there_no_vxlan(TEST) {
        return;
    }
    for (ends, fits) in [(OVER_IPV4, 1450), (OVER_IPV6, 1430)] {
        let hosts = Hosts::new(ends, "", 1500);
        for (there, headers) in [("10.9.0.2", 28), ("fd09::2", 48)] {
            hosts.guest.command(&format!("ping -c 1 -W 10 {there}")).unwrap();
            let _ = hosts.guest.command(&format!("ping -c 1 -W 1 -M do -s {} {there}", 1500 - headers));
            let route = hosts.guest.ip(&format!("route get {there}"));
            assert!(route.contains(&format!("mtu {fits}")), "{route}");
            hosts.guest.command(&format!("ping -c 1 -W 10 -M do -s {} {there}", fits - headers)).unwrap();
        }
        assert!(hosts.switch.finish().guest.drops.get(Reason::PathMtu) >= 2);
    }
}
