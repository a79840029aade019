//! What the switch itself costs, without ports: `make bench` runs this under callgrind
//! (instructions) and by the clock (time).
//!
//! ```text
//! core_cost sched N       enqueue + dequeue pairs on the scheduler of one direction
//! core_cost pipeline N    real frames through the whole switch: rx, then tx
//! core_cost exchange N    frames between neighbours that have limits far above what they send: bursts of one port, and time goes on
//! core_cost burst N       the same, where each burst is handed to the switch in one go
//! core_cost change N      changes of a switch of N endpoints: 1000 more with their ports, their shares again, and all of them removed
//!     --ops K             operations measured, a multiple of 1024 (204 800)
//!     --order NAME        fair (default), wf2q, vtrr, vtrr-bytes
//!     --flows F           sched, burst: the frames of an endpoint are of F flows in turn; by default of one, and without headers
//!     --depth D           sched: so many frames wait for each endpoint (1)
//! ```
//!
//! N endpoints belong to N / 1000 tenants (at least one) and take turns in random order. The work
//! before the measured part, including a warm-up of two visits an endpoint, does not depend on K:
//! under callgrind, the difference of two runs with different K, divided by the difference of K, is
//! the cost of one operation alone. One line of JSON tells the time of one operation. `change` has
//! no K: its line tells the median and the longest time of one change of each kind, and the time of
//! one of the uplink, which concerns all endpoints.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::process::exit;
use std::time::Instant as Clock;

use datapath::frame::{Frame, Pool, PoolLimits};
use datapath::guard::Identity;
use datapath::program::{
    Attachment, Change, Endpoint, EndpointId, OrderKind, PortFeatures, PortId, Program, Share, Tenant, TenantId, Uplink,
};
use datapath::sched::Scheduler;
use datapath::sched::limits::Plane;
use datapath::segment::WIRE_OVERHEAD;
use datapath::switch::Switch;
use datapath::units::{Both, Direction, Instant, Rate};
use datapath::wire::build::eth;
use datapath::wire::{Layout, Mac, parse};

/// So fast that no queue of these runs stands for longer than CoDel allows: its signals would be
/// drops, and drops cost less.
const LINK: Rate = Rate::MAX;
/// Endpoints a tenant, as long as there is more than one tenant.
const PER_TENANT: u32 = 1000;
/// What a frame takes of an exchange's time: about what a processor takes for one.
const FRAME_NS: u64 = 100;
/// The weights that endpoints have in turn: the promised span of 1000:1.
const WEIGHTS: [u32; 4] = [1, 10, 100, 1000];
/// Visits of each endpoint before anything is measured.
const WARM_UP: u32 = 2;
/// The warm-up of a small switch, in operations: long enough for the caches and the branch
/// predictor.
const WARM_UP_LEAST: u32 = 50_000;
/// Frames read together, as from a port.
const BURST: u32 = 32;
/// Operations that are timed together: less than a scheduler's time slice, so that most parts are
/// whole on a busy machine too, and the median part was not interrupted.
const PART: u32 = 1024;

const USAGE: &str = "usage: core_cost sched|pipeline|exchange|burst|change N [--ops K] [--order fair|wf2q|vtrr|vtrr-bytes] \
                     [--flows F] [--depth D]";

struct Arguments {
    mode: String,
    endpoints: u32,
    ops: u32,
    order: OrderKind,
    flows: u32,
    depth: u32,
}

fn main() {
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        exit(2);
    };
    let Arguments { mode, endpoints, ops, order, flows, depth } = &arguments;
    if mode == "change" {
        return change(*endpoints, *order);
    }
    let costs = match mode.as_str() {
        "sched" => vec![("pair", SchedulerRun::new(*endpoints, *order, (*flows, *depth)).measure(*ops))],
        "exchange" => vec![("frame", SwitchRun::new(&limited(*endpoints, *order)).measure(Way::Exchange, *ops))],
        "burst" => vec![("frame", SwitchRun::new(&limited(*endpoints, *order)).measure(Way::Burst(*flows), *ops))],
        _ => pipeline(*endpoints, *ops, *order),
    };
    let mean = costs.iter().map(|c| c.1).sum::<f64>() / costs.len() as f64;
    let parts: Vec<String> = costs.iter().map(|(name, ns)| format!("\"{name}\":{ns:.1}")).collect();
    println!(
        "{{\"mode\":\"{mode}\",\"endpoints\":{endpoints},\"tenants\":{},\"order\":\"{order:?}\",\"ops\":{ops},\
         \"ns_per_op\":{mean:.1},\"ns\":{{{}}}}}",
        tenants(*endpoints),
        parts.join(","),
    );
}

fn arguments() -> Option<Arguments> {
    let mut words = std::env::args().skip(1);
    let mode =
        words.next().filter(|mode| ["sched", "pipeline", "exchange", "burst", "change"].contains(&mode.as_str()))?;
    let endpoints = words.next()?.parse().ok().filter(|&n| n >= 2)?;
    let mut arguments = Arguments { mode, endpoints, ops: 200 * PART, order: OrderKind::Fair, flows: 0, depth: 1 };
    while let Some(option) = words.next() {
        let value = words.next()?;
        match option.as_str() {
            "--ops" => arguments.ops = value.parse().ok().filter(|&ops| ops >= PART && ops % PART == 0)?,
            "--flows" => arguments.flows = value.parse().ok().filter(|&flows| flows <= 1 << 16)?,
            "--depth" => arguments.depth = value.parse().ok().filter(|&depth| depth >= 1)?,
            "--order" => {
                arguments.order = match value.as_str() {
                    "fair" => OrderKind::Fair,
                    "wf2q" => OrderKind::Wf2q,
                    "vtrr" => OrderKind::Vtrr,
                    "vtrr-bytes" => OrderKind::VtrrBytes,
                    _ => return None,
                }
            }
            _ => return None,
        }
    }
    Some(arguments)
}

fn tenants(endpoints: u32) -> u32 {
    (endpoints / PER_TENANT).max(1)
}

/// The switch of both modes: all weights, every second endpoint with a guarantee, guards on, one
/// VLAN a tenant.
fn program(endpoints: u32, order: OrderKind) -> Program {
    let tenants = tenants(endpoints);
    let guarantee = Rate(LINK.0 / (2 * u64::from(endpoints)));
    let both = |share: Share| Both { egress: share, ingress: share };
    let guaranteed = |n: u64| Share { guarantee: Rate(guarantee.0 * n), ..Share::default() };
    Program {
        order,
        uplink: Some(Uplink::new(PortId(0), Both { egress: LINK, ingress: LINK })),
        tenants: (0..tenants)
            .map(|t| Tenant {
                attachment: Attachment::Vlan(t as u16 + 1),
                share: both(guaranteed(u64::from(endpoints / tenants).div_ceil(2))),
                ..Tenant::default()
            })
            .collect(),
        endpoints: (0..endpoints)
            .map(|e| Endpoint {
                identity: Identity { macs: vec![mac(e)], ipv4: vec![(ip(e), 32)], ..Identity::default() },
                share: both(Share { weight: WEIGHTS[(e / 2 % 4) as usize], ..guaranteed(u64::from(e % 2)) }),
                ..Endpoint::new(TenantId(e % tenants), PortId(e + 1))
            })
            .collect(),
        ports: vec![PortFeatures::default(); endpoints as usize + 1].into(),
        fdb_age_ns: 300_000_000_000,
        ..Program::default()
    }
}

/// The same with a limit for each endpoint that holds nothing back.
fn limited(endpoints: u32, order: OrderKind) -> Program {
    let mut program = program(endpoints, order);
    for endpoint in program.endpoints.values_mut() {
        for direction in Direction::ALL {
            endpoint.share.get_mut(direction).limit = Rate(LINK.0 / 2);
        }
    }
    program
}

fn mac(endpoint: u32) -> Mac {
    let [a, b, c, d] = endpoint.to_be_bytes();
    Mac([2, 0, a, b, c, d])
}

fn ip(endpoint: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 + endpoint + 1)
}

/// A small generator (Marsaglia's xorshift, 2003), so that the order of visits costs next to
/// nothing.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * u64::from(n)) >> 32) as u32
    }
}

/// Calls `step`, which does `ops_a_step` operations, for `ops` operations in parts; of the median
/// part, the time of one operation in ns.
fn time(ops: u32, ops_a_step: u32, mut step: impl FnMut()) -> f64 {
    let mut parts: Vec<f64> = (0..ops / PART)
        .map(|_| {
            let start = Clock::now();
            for _ in 0..PART / ops_a_step {
                step();
            }
            start.elapsed().as_nanos() as f64 / f64::from(PART)
        })
        .collect();
    parts.sort_by(f64::total_cmp);
    parts[parts.len() / 2]
}

/// Frames wait for each endpoint, so that every tree is as full as it gets; then each operation
/// queues one more for a random endpoint and takes out the one whose turn it is.
struct SchedulerRun {
    scheduler: Scheduler,
    pool: Pool,
    random: Random,
    endpoints: u32,
    /// A UDP frame, and where its headers lie; of how many flows, and how many wait for each
    /// endpoint.
    headers: (Vec<u8>, Layout),
    flows: u32,
    depth: u32,
    now: Instant,
}

impl SchedulerRun {
    fn new(endpoints: u32, order: OrderKind, (flows, depth): (u32, u32)) -> Self {
        let bytes = eth(mac(0), mac(1)).ipv4(ip(0), ip(1)).udp(1000, 2000).payload(vec![0; 18]).bytes();
        let layout = parse(&bytes).expect("well formed");
        let mut run = SchedulerRun {
            scheduler: Scheduler::new(&program(endpoints, order), Direction::Egress, 1),
            pool: Pool::new(PoolLimits { small: 8 * endpoints * depth, medium: 0, large: 0 }),
            random: Random(0x2545_f491_4f6c_dd1d),
            endpoints,
            headers: (bytes, layout),
            flows,
            depth,
            now: Instant(1_000_000_000),
        };
        for endpoint in 0..endpoints * depth {
            run.enqueue(endpoint % endpoints);
        }
        for _ in 0..(WARM_UP * endpoints).max(WARM_UP_LEAST) {
            run.pair();
        }
        run
    }

    fn measure(mut self, ops: u32) -> f64 {
        let ns = time(ops, 1, || self.pair());
        assert_eq!(
            self.pool.in_use(),
            (self.endpoints * self.depth) as usize,
            "every operation must queue one frame and take one"
        );
        ns
    }

    fn pair(&mut self) {
        let endpoint = self.random.below(self.endpoints);
        self.enqueue(endpoint);
        // The shell comes back when it was told to.
        self.now = self.now.max(self.scheduler.poll_timeout().expect("frames wait"));
        if let Some((endpoint, frame)) = self.scheduler.dequeue(&mut self.pool, self.now, Plane::Wire) {
            black_box(endpoint);
            self.pool.free(frame);
        }
    }

    /// Half the frames are of 64 bytes, half of 1518 with their FCS.
    fn enqueue(&mut self, endpoint: u32) {
        let len = if self.random.below(2) == 0 { 60 } else { 1514 };
        let frame = self.pool.alloc(len).expect("a buffer");
        let meta = self.pool.meta_mut(&frame);
        meta.wire_bytes = len as u32 + WIRE_OVERHEAD;
        meta.layout.end = len as u32;
        if self.flows > 0 {
            let (headers, layout) = &self.headers;
            meta.layout = Layout { end: len as u32, ..*layout };
            let flow = self.random.below(self.flows) as u16;
            let bytes = self.pool.bytes_mut(&frame);
            bytes[..headers.len()].copy_from_slice(headers);
            bytes[usize::from(layout.l4_offset)..][..2].copy_from_slice(&flow.to_be_bytes());
        }
        self.scheduler.enqueue(&mut self.pool, self.now, Plane::Wire, EndpointId(endpoint), frame).expect("room");
    }
}

/// Time of one frame through the whole switch, for each of its ways: endpoint to wire, to a
/// neighbour, wire to endpoint.
fn pipeline(endpoints: u32, ops: u32, order: OrderKind) -> Vec<(&'static str, f64)> {
    let mut run = SwitchRun::new(&program(endpoints, order));
    [("to_wire", Way::ToWire), ("to_neighbour", Way::ToNeighbour), ("from_wire", Way::FromWire)]
        .map(|(name, way)| (name, run.measure(way, ops)))
        .to_vec()
}

#[derive(Clone, Copy)]
enum Way {
    ToWire,
    ToNeighbour,
    FromWire,
    /// To a neighbour, a whole burst from the same port.
    Exchange,
    /// The same in one go, of so many flows.
    Burst(u32),
}

struct SwitchRun {
    switch: Switch,
    pool: Pool,
    random: Random,
    /// A UDP frame of 60 bytes; a second one with room for a tag.
    plain: Vec<u8>,
    tagged: Vec<u8>,
    /// A burst.
    frames: Vec<Frame>,
    endpoints: u32,
    tenants: u32,
    now: Instant,
    sent: u64,
}

/// An address that is nobody's here.
const OUTSIDE: u32 = 0xff_0000;

impl SwitchRun {
    fn new(program: &Program) -> Self {
        let endpoints = program.endpoints.len() as u32;
        let frame = || eth(mac(0), mac(0)).ipv4(ip(0), ip(0)).udp(1000, 2000).payload(vec![0; 18]);
        SwitchRun {
            switch: Switch::new(program, 1).expect("a sound program"),
            pool: Pool::new(PoolLimits { small: 8 * BURST, medium: 0, large: 0 }),
            random: Random(0x2545_f491_4f6c_dd1d),
            plain: frame().bytes(),
            tagged: frame().vlan(1).bytes(),
            frames: Vec::with_capacity(BURST as usize),
            endpoints,
            tenants: tenants(endpoints),
            now: Instant(1_000_000_000),
            sent: 0,
        }
    }

    fn measure(&mut self, way: Way, ops: u32) -> f64 {
        for _ in 0..(WARM_UP * self.endpoints).max(WARM_UP_LEAST) / BURST {
            self.burst(way);
        }
        let before = self.sent;
        let ns = time(ops, BURST, || self.burst(way));
        assert_eq!(self.sent - before, u64::from(ops), "every frame must come out");
        ns
    }

    /// Reads a burst, each frame from another endpoint, and sends what is due until nothing is
    /// left.
    fn burst(&mut self, way: Way) {
        let mut endpoint = self.random.below(self.endpoints);
        for at in 0..BURST {
            match way {
                Way::Exchange | Way::Burst(_) => self.now = self.now.plus_ns(FRAME_NS),
                _ => endpoint = self.random.below(self.endpoints),
            }
            if let Way::Burst(flows) = way {
                self.plain[34..36].copy_from_slice(&(1000 + (at % flows.max(1)) as u16).to_be_bytes());
            }
            let (port, frame) = self.read(way, endpoint);
            match way {
                Way::Burst(_) => self.frames.push(frame),
                _ => drop(black_box(self.switch.rx(&mut self.pool, self.now, port, frame))),
            }
        }
        if let Way::Burst(_) = way {
            self.switch.rx_burst(&mut self.pool, self.now, PortId(endpoint + 1), &mut self.frames);
        }
        loop {
            while let Some((port, frame)) = self.switch.tx(&mut self.pool, self.now) {
                black_box(port);
                self.pool.free(frame);
                self.sent += 1;
            }
            match self.switch.poll_timeout() {
                Some(due) => self.now = self.now.max(due),
                None => return,
            }
        }
    }

    /// What a port's rx does: a buffer, and the frame's bytes in it.
    fn read(&mut self, way: Way, endpoint: u32) -> (PortId, Frame) {
        // Tenants take turns, so this neighbour has the same one.
        let neighbour = (endpoint + self.tenants) % (self.endpoints - self.endpoints % self.tenants);
        let (source, destination) = match way {
            Way::ToWire => (endpoint, OUTSIDE),
            Way::ToNeighbour | Way::Exchange | Way::Burst(_) => (endpoint, neighbour),
            Way::FromWire => (OUTSIDE, endpoint),
        };
        let (port, template) = match way {
            Way::FromWire => (PortId(0), &mut self.tagged),
            _ => (PortId(endpoint + 1), &mut self.plain),
        };
        template[..6].copy_from_slice(&mac(destination).0);
        template[6..12].copy_from_slice(&mac(source).0);
        let mut l3 = 14;
        if let Way::FromWire = way {
            template[14..16].copy_from_slice(&(endpoint % self.tenants + 1).to_be_bytes()[2..]);
            l3 = 18;
        }
        template[l3 + 12..l3 + 16].copy_from_slice(&ip(source).octets());
        template[l3 + 16..l3 + 20].copy_from_slice(&ip(destination).octets());
        (port, self.pool.alloc_from(template).expect("a buffer"))
    }
}

/// Endpoints that a change run adds and removes.
const ADDED: u32 = 1000;

/// Times of single changes of a switch that has `endpoints`.
fn change(endpoints: u32, order: OrderKind) {
    let before = program(endpoints, order);
    let mut after = before.clone();
    for (id, port) in (endpoints..endpoints + ADDED).zip(before.ports.len() as u32..) {
        after.ports.set(port, Some(PortFeatures::default()));
        let mut endpoint = before.endpoints[(id % endpoints) as usize].clone();
        endpoint.port = PortId(port);
        endpoint.identity = Identity { macs: vec![mac(id)], ipv4: vec![(ip(id), 32)], ..Identity::default() };
        after.endpoints.set(id, Some(endpoint));
    }
    let mut weighted = after.clone();
    weighted.endpoints.values_mut().skip(endpoints as usize).for_each(|e| e.share.egress.weight += 1);
    let mut switch = Switch::new(&before, 1).expect("a sound program");
    let mut pool = Pool::new(PoolLimits { small: 64, medium: 0, large: 0 });
    let mut parts = Vec::new();
    for (name, program) in [("add", &after), ("share", &weighted), ("remove", &before)] {
        let start = Clock::now();
        let changes = program.changes_from(switch.program()).expect("the same order");
        let diff_us = start.elapsed().as_micros();
        let endpoint = |change: &Change| matches!(change, Change::Endpoint(..));
        let mut times = Vec::new();
        for change in changes {
            let counts = endpoint(&change);
            let start = Clock::now();
            switch.change(&mut pool, Instant(1_000_000_000), change).expect("a step");
            if counts {
                times.push(start.elapsed().as_nanos());
            }
        }
        assert_eq!(times.len(), ADDED as usize, "every endpoint must change");
        times.sort_unstable();
        let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
        parts.push(format!("\"{name}\":{{\"diff_us\":{diff_us},\"median_ns\":{median},\"most_ns\":{most}}}"));
    }
    let mut uplink = before.uplink.clone();
    uplink.as_mut().expect("an uplink").members[0].rate =
        Both { egress: Rate(LINK.0 / 40), ingress: Rate(LINK.0 / 40) };
    let start = Clock::now();
    switch.change(&mut pool, Instant(1_000_000_000), Change::Uplink(uplink)).expect("a step");
    parts.push(format!("\"uplink_ns\":{}", start.elapsed().as_nanos()));
    println!(
        "{{\"mode\":\"change\",\"endpoints\":{endpoints},\"order\":\"{order:?}\",\"changes\":{ADDED},{}}}",
        parts.join(",")
    );
}
