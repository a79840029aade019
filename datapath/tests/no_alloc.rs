//! After a warm-up the switch allocates nothing, whatever comes: learning and forgetting, floods,
//! splitting, software segmentation, limits, limits on pairs, arrivals, full queues, marks, trims
//! and drops; over a bond, numbers, copies and order. The allocator of this test counts for each
//! thread, so that the test harness does not disturb.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};

use datapath::arrivals::{Arrival as Seen, QueueSample};
use datapath::frame::{Pool, PoolLimits};
use datapath::guard::Identity;
use datapath::offload::{Offload, OffloadSupport};
use datapath::overlay::{Overlay, Peer, Vtep};
use datapath::pair::Toward;
use datapath::program::{
    Attachment, Change, Endpoint, EndpointId, IngressMode, OrderKind, PortFeatures, PortId, Program, Share, Tenant,
    TenantId, Uplink,
};
use datapath::stats::LaneStats;
use datapath::switch::Switch;
use datapath::units::{Both, Instant, Rate};
use datapath::verdict::Reason;
use datapath::wire::Mac;
use datapath::wire::build::{Build, arp_request, eth};

#[path = "no_alloc/bond.rs"]
mod bond;

thread_local! {
    // Without a destructor and with a constant start, so that it needs no allocation itself.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator with the same arguments, so what that promises
// holds here. Counting touches nothing but a thread-local number, which allocates nothing; where
// the thread is already ending it is left out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `alloc`'s contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `block` came from `System`, as all of them do, with this layout.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: `block` came from `System` with this layout; the caller answers for `size`.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn count() {
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

const MBIT: u64 = 1_000_000;
/// Time between two looks at the ports.
const STEP_NS: u64 = 200_000;
/// Looks of the warm-up, and as many again for the test: three seconds, in which all queues fill
/// and addresses age many times.
const STEPS: u32 = 15_000;
/// Short, so that learned addresses come and go all the time, and there are at times too many.
const AGE_NS: u64 = 60_000_000;
/// Addresses behind each endpoint that is learned from; more than it may have.
const STRANGERS: u32 = 48;
const MAX_LEARNED: u32 = 32;
/// An address behind the uplink.
const OUTSIDE: u32 = 0xffff;

fn mac(n: u32) -> Mac {
    let [a, b, c, d] = n.to_be_bytes();
    Mac([2, 0, a, b, c, d])
}

fn ip(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 + n)
}

/// Endpoints by index. Red has declared addresses, blue has not but has a limit, grey has no way to
/// the uplink.
const RED: [u32; 3] = [0, 1, 2];
const BLUE: [u32; 3] = [3, 4, 5];
const GREY: [u32; 2] = [6, 7];
/// Of a tenant that is on other hosts as well, over tunnels.
const GREEN: [u32; 2] = [8, 9];
/// An address of green's on another host.
const REMOTE: u32 = 0xfffe;
const VNI: u32 = 5001;
const BLUE_NETWORK: Attachment = Attachment::Vlan(20);
/// Of red: has a limit in both directions.
const LIMITED: u32 = 1;
/// Of red: its port takes no offloads.
const PLAIN: u32 = 2;
/// Of blue: a bridge port.
const TRUNK: u32 = 4;

fn program(order: OrderKind, ingress: IngressMode) -> Program {
    let both = |share: Share| Both { egress: share, ingress: share };
    let rate = Rate(400 * MBIT);
    let tenants = [Attachment::Vlan(10), BLUE_NETWORK, Attachment::Isolated, Attachment::Vxlan(VNI)];
    let endpoint = |index: u32, tenant: u32| {
        let learned = BLUE.contains(&index);
        let mut share = Share { guarantee: Rate(MBIT), weight: 1 + 10 * index, ..Share::default() };
        if index == LIMITED {
            share.limit = Rate(5 * MBIT);
        }
        Endpoint {
            identity: Identity { macs: if learned { vec![] } else { vec![mac(index)] }, ..Identity::default() },
            trunk: index == TRUNK,
            share: both(share),
            queue_bytes: 256 << 10,
            flood_per_second: 500,
            flood_rate: Rate(20 * MBIT),
            max_learned: MAX_LEARNED,
            ..Endpoint::new(TenantId(tenant), PortId(index + 1))
        }
    };
    let groups = [&RED[..], &BLUE, &GREY, &GREEN];
    let mut ports = vec![PortFeatures::default(); 1 + groups.concat().len()];
    ports[PLAIN as usize + 1].offload = OffloadSupport::NONE;
    Program {
        order,
        ingress,
        uplink: Some(Uplink { headroom_ppm: 20_000, ..Uplink::new(PortId(0), Both { egress: rate, ingress: rate }) }),
        tenants: tenants
            .iter()
            .map(|&attachment| {
                let mut share = Share { guarantee: Rate(5 * MBIT), ..Share::default() };
                if attachment == BLUE_NETWORK {
                    share.limit = Rate(5 * MBIT);
                }
                Tenant { attachment, share: both(share), flood_rate: Rate(50 * MBIT), ..Tenant::default() }
            })
            .collect(),
        endpoints: groups
            .iter()
            .enumerate()
            .flat_map(|(tenant, group)| group.iter().map(move |&index| endpoint(index, tenant as u32)))
            .collect(),
        ports: ports.into(),
        fdb_age_ns: AGE_NS,
        overlay: Overlay {
            local: Some(Vtep { address: host(1), mac: nic(1) }),
            peers: [2, 3].map(|n| (host(n), Peer { next_hop: Some(nic(n)), tenants: vec![TenantId(3)] })).into(),
            remotes: [((TenantId(3), mac(REMOTE)), host(2))].into(),
        },
        ..Program::default()
    }
}

fn host(n: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, n])
}

fn nic(n: u8) -> Mac {
    Mac([2, 0, 0, 1, 0, n])
}

/// What another host sends through a tunnel.
fn tunnelled(vni: u32, inner: &Build<'_>) -> Build<'static> {
    let payload = [&[8, 0, 0, 0][..], &(vni << 8).to_be_bytes(), &inner.bytes()].concat();
    eth(nic(2), nic(1)).ip(host(2), host(1)).udp(50_000, 4789).payload(payload)
}

/// Pairs whose rates change at each look: from which endpoint, toward whom, and about how many
/// Mbit/s. The first two are overwhelmed.
const PAIRS: [(u32, Option<u32>, u64); 4] =
    [(RED[0], Some(OUTSIDE), 40), (PLAIN, Some(OUTSIDE), 100), (BLUE[0], None, 2), (LIMITED, Some(1), 10)];

/// A frame that arrives now and then.
struct Arrival {
    port: u32,
    bytes: Vec<u8>,
    offload: Offload,
    /// Out of how many looks it is there at one.
    rarity: u32,
}

fn arrival(port: u32, rarity: u32, frame: &Build<'_>) -> Arrival {
    let mut bytes = Vec::new();
    let offload = frame.write(&mut bytes);
    Arrival { port, bytes, offload, rarity }
}

fn udp(from: u32, to: Mac, payload: usize) -> Build<'static> {
    eth(mac(from), to).ipv4(ip(from), ip(9)).udp(1000, 2000).payload(vec![7; payload])
}

fn tcp(from: u32, to: u32, payload: usize, tos: u8) -> Build<'static> {
    tcp_of(from, to, payload, tos, 1448)
}

fn tcp_of(from: u32, to: u32, payload: usize, tos: u8, size: u16) -> Build<'static> {
    eth(mac(from), mac(to)).ipv4(ip(from), ip(to)).tos(tos).tcp(1000, 2000, 1).payload(vec![7; payload]).gso(size)
}

/// A frame that may not be fragmented, so that its sender is told that it is too long.
fn too_long(port: u32, rarity: u32, frame: &Build<'_>) -> Arrival {
    let mut arrival = arrival(port, rarity, frame);
    arrival.bytes[20] |= 0x40;
    arrival
}

/// What everybody sends: together far more than the uplink carries.
fn arrivals() -> Vec<Arrival> {
    const ECT: u8 = 2;
    let everyone = Mac([0xff; 6]);
    let mut all = vec![
        // Over the uplink: offloaded with and without ECN, a datagram a segment, small and full
        // frames.
        arrival(RED[0] + 1, 8, &tcp(RED[0], OUTSIDE, 40_000, ECT)),
        arrival(PLAIN + 1, 8, &tcp(PLAIN, OUTSIDE, 40_000, 0)),
        arrival(LIMITED + 1, 8, &udp(LIMITED, mac(OUTSIDE), 30_000).gso(1000)),
        arrival(LIMITED + 1, 2, &udp(LIMITED, mac(OUTSIDE), 1400)),
        arrival(RED[0] + 1, 2, &udp(RED[0], mac(OUTSIDE), 18)),
        arrival(0, 8, &tcp(OUTSIDE, RED[0], 40_000, ECT).vlan(10)),
        arrival(0, 8, &tcp(OUTSIDE, PLAIN, 40_000, 0).vlan(10)),
        arrival(0, 1, &udp(OUTSIDE, mac(LIMITED), 1400).vlan(10)),
        // Between neighbours, to a port that takes no offloads, and through limits.
        arrival(RED[0] + 1, 4, &tcp(RED[0], PLAIN, 20_000, 0)),
        arrival(RED[0] + 1, 2, &udp(RED[0], mac(LIMITED), 1400)),
        arrival(LIMITED + 1, 2, &udp(LIMITED, mac(RED[0]), 1400)),
        arrival(GREY[0] + 1, 2, &udp(GREY[0], mac(GREY[1]), 100)),
        // Through tunnels.
        arrival(GREEN[0] + 1, 8, &tcp_of(GREEN[0], REMOTE, 40_000, ECT, 1398)),
        arrival(GREEN[1] + 1, 4, &udp(GREEN[1], mac(REMOTE), 18)),
        arrival(GREEN[1] + 1, 8, &arp_request(mac(GREEN[1]), ip(GREEN[1]), ip(9))),
        arrival(GREEN[1] + 1, 8, &udp(GREEN[1], mac(OUTSIDE), 100)),
        arrival(0, 2, &tunnelled(VNI, &udp(REMOTE, mac(GREEN[0]), 1400))),
        arrival(0, 8, &tunnelled(VNI, &udp(REMOTE, everyone, 100))),
        arrival(0, 16, &tunnelled(VNI + 1, &udp(REMOTE, mac(GREEN[0]), 1400))),
        too_long(GREEN[0] + 1, 8, &udp(GREEN[0], mac(REMOTE), 1472)),
        // Floods, and what is to be dropped.
        arrival(RED[0] + 1, 4, &arp_request(mac(RED[0]), ip(RED[0]), ip(9))),
        arrival(GREY[0] + 1, 4, &udp(GREY[0], everyone, 100)),
        arrival(0, 4, &udp(OUTSIDE, everyone, 100).vlan(20)),
        arrival(PLAIN + 1, 8, &udp(RED[0], mac(OUTSIDE), 100)),
        arrival(GREY[1] + 1, 8, &udp(GREY[1], mac(OUTSIDE), 100)),
        Arrival { port: RED[0] + 1, bytes: vec![0; 13], offload: Offload::default(), rarity: 8 },
    ];
    for (n, &endpoint) in BLUE.iter().enumerate() {
        for stranger in 0..STRANGERS {
            // One address in eight is behind two endpoints.
            let from = 0x100 * (1 + if stranger % 8 == 0 { 0 } else { n as u32 }) + stranger;
            let to = if stranger % 2 == 0 { mac(0x100 + stranger + 1) } else { mac(OUTSIDE) };
            let frame = udp(from, to, 200);
            let frame = if endpoint == TRUNK && stranger % 3 == 0 { frame.vlan(20) } else { frame };
            all.push(arrival(endpoint + 1, 200, &frame));
        }
    }
    all
}

/// Buffers are made when they are first needed; here that is now, whenever the traffic needs most
/// of them.
fn make_buffers(pool: &mut Pool) {
    let mut frames = Vec::new();
    while let Some(frame) = pool.alloc(60) {
        frames.push(frame);
    }
    frames.into_iter().for_each(|frame| pool.free(frame));
}

/// A number below `n`, by xorshift.
fn below(random: &mut u64, n: u32) -> u32 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    ((*random >> 32) % u64::from(n)) as u32
}

struct Rig {
    switch: Switch,
    pool: Pool,
    arrivals: Vec<Arrival>,
    /// Lists of the agent, and what it saw dropped.
    seen: (Vec<Seen>, Vec<QueueSample>),
    dropped: u64,
    random: u64,
    now: Instant,
}

impl Rig {
    fn new(program: Program) -> Rig {
        let mut pool = Pool::new(PoolLimits { small: 2048, medium: 64, large: 96 });
        make_buffers(&mut pool);
        let mut switch = Switch::new(&program, 1).expect("a sound program");
        switch.watch_arrivals(true);
        Rig {
            switch,
            pool,
            arrivals: arrivals(),
            seen: (Vec::new(), Vec::new()),
            dropped: 0,
            random: 0x2545_f491_4f6c_dd1d,
            now: Instant(1_000_000_000),
        }
    }

    /// Takes every endpoint away, whatever it has queued, and adds it again.
    fn renew(&mut self) {
        let program = self.switch.program().clone();
        for (id, endpoint) in program.endpoints.iter() {
            for endpoint in [None, Some(endpoint.clone())] {
                let change = Change::Endpoint(EndpointId(id), endpoint);
                self.switch.change(&mut self.pool, self.now, change).expect("a step");
            }
        }
        assert!(self.switch.uplink_drops().get(Reason::Removed) > 0);
    }

    fn below(&mut self, n: u32) -> u32 {
        below(&mut self.random, n)
    }

    /// What the shell does, all of it: reading, sending, events, pausing, counters, the time to
    /// come back.
    fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            for index in 0..self.arrivals.len() {
                let rarity = self.arrivals[index].rarity;
                if self.below(rarity) == 0 {
                    self.read(index);
                }
            }
            self.send_until(self.now.plus_ns(STEP_NS));
            self.agent();
            while self.switch.poll_event().is_some() {}
        }
        let _ = self.switch.uplink_stats();
    }

    /// What a congestion agent does at each look: it reads what arrived, and changes the rates of
    /// pairs.
    fn agent(&mut self) {
        self.switch.take_arrivals(&mut self.seen.0, &mut self.seen.1);
        self.dropped += self.seen.0.iter().map(|arrival| arrival.dropped_bytes).sum::<u64>();
        for (from, to, mbit) in PAIRS {
            let to = to.map_or(Toward::Everyone, |to| Toward::Address(mac(to)));
            let rate = Rate(MBIT * (mbit + u64::from(self.below(4))));
            self.switch.limit_pair(&mut self.pool, self.now, EndpointId(from), to, Some(rate)).expect("room");
        }
    }

    fn send_until(&mut self, end: Instant) {
        loop {
            while let Some((_, frame)) = self.switch.tx(&mut self.pool, self.now) {
                self.pool.free(frame);
            }
            match self.switch.poll_timeout() {
                Some(due) if due < end => self.now = due.max(self.now.plus_ns(1)),
                _ => break,
            }
        }
        self.now = end;
    }

    fn read(&mut self, index: usize) {
        let Arrival { port, bytes, offload, .. } = &self.arrivals[index];
        let port = PortId(*port);
        // No buffer: the frame stays where it is, as in a port's ring.
        if let Some(frame) = self.pool.alloc_from(bytes) {
            self.pool.meta_mut(&frame).offload = *offload;
            let _ = self.switch.is_paused(port, self.now);
            let _ = self.switch.rx(&mut self.pool, self.now, port, frame);
        }
    }

    fn lanes(&self) -> LaneStats {
        let mut sum = self.switch.uplink_stats().egress;
        sum.sum(&self.switch.uplink_stats().ingress);
        for index in 0..self.switch.program().endpoints.len() {
            let stats = self.switch.endpoint_stats(EndpointId(index as u32));
            sum.sum(&stats.local_egress);
        }
        sum
    }

    fn drops(&self, reason: Reason) -> u64 {
        let endpoints = 0..self.switch.program().endpoints.len();
        endpoints.map(|e| self.switch.endpoint_stats(EndpointId(e as u32)).drops.get(reason)).sum::<u64>()
            + self.switch.uplink_drops().get(reason)
    }
}

/// Runs twice the same kind of traffic; only the second time may not allocate, though all endpoints
/// were removed and added anew before it. Everything that was meant to happen must have.
fn runs_without_allocating(order: OrderKind, ingress: IngressMode, reasons: &[Reason]) {
    let mut rig = Rig::new(program(order, ingress));
    rig.run(STEPS);
    rig.renew();
    let lanes = rig.lanes();
    let dropped: Vec<u64> = reasons.iter().map(|&reason| rig.drops(reason)).collect();

    let before = allocations();
    rig.run(STEPS);
    assert_eq!(allocations() - before, 0, "{order:?} {ingress:?}: allocations in {STEPS} looks");

    let after = rig.lanes();
    assert!(rig.dropped > 1_000_000, "{order:?} {ingress:?}: hardly anything was lost on arrival");
    assert!(after.traffic.segments > lanes.traffic.segments + 10_000, "{order:?} {ingress:?}: hardly any traffic");
    assert!(after.traffic.frames < after.traffic.segments, "{order:?} {ingress:?}: nothing offloaded");
    assert!(after.marks > lanes.marks, "{order:?} {ingress:?}: no marks");
    assert!(after.trims > lanes.trims, "{order:?} {ingress:?}: no trims");
    assert!(rig.switch.learned() > 0, "{order:?} {ingress:?}: nothing learned");
    for (reason, before) in reasons.iter().zip(dropped) {
        assert!(rig.drops(*reason) > before, "{order:?} {ingress:?}: nothing dropped as {}", reason.name());
    }
}

/// Ways to be dropped that these runs must have met.
const REASONS: [Reason; 11] = [
    Reason::Malformed,
    Reason::SpoofedMac,
    Reason::Flapping,
    Reason::FdbFull,
    Reason::Unreachable,
    Reason::PathMtu,
    Reason::BadVni,
    Reason::FloodLimit,
    Reason::QueueFull,
    Reason::PairLimit,
    Reason::Aqm,
];

#[test]
fn every_order_runs_without_allocating() {
    for order in [OrderKind::Fair, OrderKind::Wf2q, OrderKind::Vtrr, OrderKind::VtrrBytes] {
        runs_without_allocating(order, IngressMode::Queue, &REASONS);
    }
}

#[test]
fn policing_runs_without_allocating() {
    let reasons = [&REASONS[..], &[Reason::Policed]].concat();
    runs_without_allocating(OrderKind::Fair, IngressMode::Police, &reasons);
}

#[test]
fn the_allocator_counts() {
    let before = allocations();
    drop(std::hint::black_box(vec![1u8; 100]));
    assert_eq!(allocations() - before, 1);
}
