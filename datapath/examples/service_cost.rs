//! What a service costs the switch itself, without ports: `lab/run lb-rate` runs this under
//! callgrind (instructions) and by the clock (time).
//!
//! ```text
//! service_cost MODE N     N connections are open; then MODE, again and again:
//!   plain      a client's frame to a backend's own address and one back, of a switch without services
//!   known      the same of an open connection to a service, another one each time
//!   new        a SYN of another client each time, which nobody answers
//!   life       a whole connection: SYN, SYN/ACK, ACK, request, answer, two FINs, two ACKs
//!   remove     one of the backends is removed, once: the time of the change, and of the longest
//!              part in which its connections are forgotten behind it
//!     --ops K  operations measured, a multiple of 1024 (102 400)
//! ```
//!
//! Clients are outside, each with an address of its own; backends are endpoints, chosen by `p2c`.
//! The table has twice as many places as connections are open, at least [`DEFAULT_CONNECTIONS`].
//! Before anything is measured its room is used up, so that each new one has to replace another
//! that is over or was never answered: what a switch does that has been busy for long. Virtual time
//! goes on by a microsecond a frame. As many frames as a port reads are passed together.
//!
//! The work before the measured part does not depend on K: under callgrind, the difference of two
//! runs with different K, divided by the difference of K, is the cost of one operation alone. One
//! line of JSON tells the time of one operation in ns.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::process::exit;
use std::time::Instant as Clock;

use datapath::frame::{Frame, Pool, PoolLimits};
use datapath::guard::Identity;
use datapath::program::{
    Attachment, Change, Endpoint, EndpointId, PortFeatures, PortId, Program, Tenant, TenantId, Uplink,
};
use datapath::service::choose::Policy;
use datapath::service::connections::DEFAULT_CONNECTIONS;
use datapath::service::{Address, Backend, Service, ServiceId};
use datapath::switch::Switch;
use datapath::units::{Both, Instant, Rate};
use datapath::wire::build::eth;
use datapath::wire::{Mac, protocol, tcp_flags as flags};

/// Frames passed together, as from a port.
const BURST: u32 = 32;
/// Operations that are timed together, so that the median part was not interrupted.
const PART: u32 = 1024;
/// Operations before anything is measured, where they need not fill the table: for the caches and
/// the branch predictor.
const WARM_UP: u32 = 8 * PART;
const BACKENDS: u32 = 4;
const OUTSIDE: PortId = PortId(BACKENDS);
const SERVICE: (Mac, Ipv4Addr, u16) = (Mac([2, 0, 0, 0, 0, 100]), Ipv4Addr::new(10, 0, 0, 100), 80);
const TARGET_PORT: u16 = 8080;
/// The router that clients are behind.
const ROUTER: Mac = Mac([2, 0, 0, 0, 1, 1]);
/// The address of the first client.
const FIRST_CLIENT: u32 = 0x1400_0000;
/// Each client's first sequence number, and a backend's.
const CLIENT_FIRST: u32 = 99;
const SERVER_FIRST: u32 = 499;
/// Payload of a request and of an answer.
const PAYLOAD: u32 = 18;
/// Virtual time that a frame takes.
const FRAME_NS: u64 = 1000;

const USAGE: &str = "usage: service_cost plain|known|new|life|remove N [--ops K]";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((mode, open, ops)) = arguments(&words) else {
        eprintln!("{USAGE}");
        exit(2);
    };
    let mut run = Run::new(open, mode != "plain");
    let places = run.places;
    if mode == "remove" {
        return println!("{}", run.remove());
    }
    let ns = match mode {
        "plain" | "known" => run.time(ops, WARM_UP, Run::talk),
        "new" => run.time(ops, places, Run::ask),
        _ => run.time(ops, places, Run::live),
    };
    println!(
        "{{\"mode\":\"{mode}\",\"open\":{open},\"places\":{places},\"ops\":{ops},\"frames_per_op\":{},\
         \"ns_per_op\":{ns:.1}}}",
        frames_of(mode)
    );
}

fn arguments(words: &[String]) -> Option<(&str, u32, u32)> {
    let [mode, open, rest @ ..] = words else { return None };
    let open = open.parse().ok().filter(|open| (1..=1 << 21).contains(open))?;
    let ops = match rest {
        [] => 100 * PART,
        [option, ops] if option == "--ops" => ops.parse().ok().filter(|&ops| ops >= PART && ops % PART == 0)?,
        _ => return None,
    };
    ["plain", "known", "new", "life", "remove"].contains(&mode.as_str()).then_some((mode, open, ops))
}

/// Frames of one operation.
fn frames_of(mode: &str) -> usize {
    match mode {
        "plain" | "known" => 2,
        "new" => 1,
        _ => LIFE.len(),
    }
}

fn server(backend: u32) -> (Mac, Ipv4Addr) {
    (Mac([2, 0, 0, 0, 0, 10 + backend as u8]), Ipv4Addr::new(10, 0, 0, 10 + backend as u8))
}

fn client(number: u32) -> (Ipv4Addr, u16) {
    (Ipv4Addr::from(FIRST_CLIENT + number), 1024 + (number % 60_000) as u16)
}

fn program(places: u32, has_services: bool) -> Program {
    let endpoint = |backend: u32| {
        let (mac, ip) = server(backend);
        let identity = Identity { macs: vec![mac], ipv4: vec![(ip, 32)], ..Identity::default() };
        Endpoint { identity, ..Endpoint::new(TenantId(0), PortId(backend)) }
    };
    let mut program = Program {
        uplink: Some(Uplink::new(OUTSIDE, Both { egress: Rate::MAX, ingress: Rate::MAX })),
        tenants: vec![Tenant { attachment: Attachment::Untagged, ..Tenant::default() }].into(),
        endpoints: (0..BACKENDS).map(endpoint).collect(),
        ports: vec![PortFeatures::default(); BACKENDS as usize + 1].into(),
        fdb_age_ns: 300_000_000_000,
        connections: Some(places),
        ..Program::default()
    };
    if has_services {
        let backend = |number: u32| {
            let (mac, ip) = server(number);
            let (endpoint, port) = (Some(EndpointId(number)), Some(TARGET_PORT));
            Backend {
                ipv4: Some(ip),
                ipv6: None,
                mac,
                port,
                weight: 1,
                drain_ns: 0,
                cores: 1,
                max_connections: None,
                endpoint,
            }
        };
        program.services.push(Service {
            tenant: TenantId(0),
            mac: SERVICE.0,
            addresses: vec![Address { ip: SERVICE.1.into(), protocol: protocol::TCP, port: SERVICE.2 }],
            policy: Policy::P2c,
            backends: (0..BACKENDS).map(backend).collect(),
            ..Service::default()
        });
    }
    program
}

/// A segment: whether the client sends it, its flags, its payload, and how far the two have come.
struct Segment {
    from_client: bool,
    flags: u8,
    payload: u32,
    sent: u32,
    acknowledged: u32,
}

const fn segment(from_client: bool, flags: u8, payload: u32, sent: u32, acknowledged: u32) -> Segment {
    Segment { from_client, flags, payload, sent, acknowledged }
}

const FIN_ACK: u8 = flags::FIN | flags::ACK;
const ASKS: Segment = segment(true, flags::SYN, 0, 0, 0);
const AGREES: Segment = segment(false, flags::SYN | flags::ACK, 0, 0, 1);
const CONFIRMS: Segment = segment(true, flags::ACK, 0, 1, 1);
const REQUEST: Segment = segment(true, flags::ACK, PAYLOAD, 1, 1);
const ANSWER: Segment = segment(false, flags::ACK, PAYLOAD, 1, 1 + PAYLOAD);
/// A connection from its first segment to its last.
const LIFE: [Segment; 9] = [
    ASKS,
    AGREES,
    CONFIRMS,
    REQUEST,
    ANSWER,
    segment(true, FIN_ACK, 0, 1 + PAYLOAD, 1 + PAYLOAD),
    segment(false, flags::ACK, 0, 1 + PAYLOAD, 2 + PAYLOAD),
    segment(false, FIN_ACK, 0, 1 + PAYLOAD, 2 + PAYLOAD),
    segment(true, flags::ACK, 0, 2 + PAYLOAD, 2 + PAYLOAD),
];

struct Run {
    switch: Switch,
    pool: Pool,
    now: Instant,
    random: u64,
    /// Open connections, and places of the table.
    open: u32,
    places: u32,
    has_services: bool,
    /// The next client that was not there yet.
    next: u32,
    /// By client, who answers it.
    backends: Vec<u8>,
    template: Vec<u8>,
    /// By port, frames that it has read.
    bursts: [Vec<Frame>; BACKENDS as usize + 1],
    sent: u64,
}

impl Run {
    fn new(open: u32, has_services: bool) -> Run {
        let places = DEFAULT_CONNECTIONS.max(2 * open);
        let frame = eth(ROUTER, SERVICE.0).ipv4(SERVICE.1, SERVICE.1).tcp(1, 1, 0).ack(0, 1000);
        let mut run = Run {
            switch: Switch::new(&program(places, has_services), 1).expect("a sound program"),
            pool: Pool::new(PoolLimits { small: 8 * BURST, medium: 0, large: 0 }),
            now: Instant(1_000_000_000),
            random: 0x2545_f491_4f6c_dd1d,
            open,
            places,
            has_services,
            next: 0,
            backends: (0..open).map(|n| (n % BACKENDS) as u8).collect(),
            template: frame.payload(vec![0; PAYLOAD as usize]).bytes(),
            bursts: std::array::from_fn(|_| Vec::with_capacity(BURST as usize)),
            sent: 0,
        };
        if has_services {
            let clients: Vec<u32> = (0..open).collect();
            for part in clients.chunks(BURST as usize) {
                for segment in &LIFE[..3] {
                    run.pass(segment, part);
                }
            }
            run.next = open;
        }
        run
    }

    /// Does `ops` operations in parts, after others that are not measured; of the median part, the
    /// time of one in ns.
    fn time(&mut self, ops: u32, warm_up: u32, burst: fn(&mut Run)) -> f64 {
        for _ in 0..warm_up / BURST {
            burst(self);
        }
        let mut parts: Vec<f64> = (0..ops / PART)
            .map(|_| {
                let start = Clock::now();
                (0..PART / BURST).for_each(|_| burst(self));
                start.elapsed().as_nanos() as f64 / f64::from(PART)
            })
            .collect();
        parts.sort_by(f64::total_cmp);
        parts[parts.len() / 2]
    }

    /// A backend is removed: one line of JSON.
    fn remove(&mut self) -> String {
        let mut service = program(self.places, true).services[0].clone();
        service.backends.pop();
        let start = Clock::now();
        let change = Change::Service(ServiceId(0), Some(service));
        self.switch.change(&mut self.pool, self.now, change).expect("it fits");
        let change_us = start.elapsed().as_nanos() as f64 / 1000.0;
        let mut parts_us = Vec::new();
        while self.switch.is_sweeping() {
            let start = Clock::now();
            self.switch.sweep();
            parts_us.push(start.elapsed().as_nanos() as f64 / 1000.0);
        }
        parts_us.sort_by(f64::total_cmp);
        let at = |n: usize| parts_us.get(n).copied().unwrap_or_default();
        let (parts, all_ms) = (parts_us.len(), parts_us.iter().sum::<f64>() / 1000.0);
        let (median, longest) = (at(parts / 2), at(parts.saturating_sub(1)));
        let (open, left) = (self.open, self.switch.connections().0);
        format!(
            "{{\"mode\":\"remove\",\"open\":{open},\"left\":{left},\"change_us\":{change_us:.1},\"parts\":{parts},\
             \"median_us\":{median:.1},\"longest_us\":{longest:.1},\"all_ms\":{all_ms:.1}}}"
        )
    }

    /// Open connections, drawn (Marsaglia's xorshift, 2003).
    fn draw(&mut self) -> [u32; BURST as usize] {
        std::array::from_fn(|_| {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            (((self.random >> 32) * u64::from(self.open)) >> 32) as u32
        })
    }

    /// Clients that were not there yet, or so long ago that nothing is known of them.
    fn strangers(&mut self) -> [u32; BURST as usize] {
        const CLIENTS: u32 = 1 << 24;
        if self.next + BURST > CLIENTS {
            self.next = self.open;
        }
        let first = self.next;
        self.next += BURST;
        if self.backends.len() < self.next as usize {
            self.backends.resize(self.next as usize, 0);
        }
        std::array::from_fn(|n| first + n as u32)
    }

    /// A request and an answer, of connections that are open.
    fn talk(&mut self) {
        let clients = self.draw();
        self.pass(&REQUEST, &clients);
        self.pass(&ANSWER, &clients);
    }

    fn ask(&mut self) {
        let clients = self.strangers();
        self.pass(&ASKS, &clients);
    }

    fn live(&mut self) {
        let clients = self.strangers();
        LIFE.iter().for_each(|segment| self.pass(segment, &clients));
    }

    /// One segment of each of some connections, in by one port and out by another.
    fn pass(&mut self, segment: &Segment, clients: &[u32]) {
        for &number in clients {
            let backend = u32::from(self.backends[number as usize]);
            let port = if segment.from_client { OUTSIDE } else { PortId(backend) };
            self.write(segment, number, backend);
            let len = self.template.len() - (PAYLOAD - segment.payload) as usize;
            let frame = self.pool.alloc_from(&self.template[..len]).expect("nothing is left from before");
            self.bursts[port.0 as usize].push(frame);
        }
        for (port, burst) in (0..).map(PortId).zip(&mut self.bursts) {
            self.switch.read_ahead(&self.pool, port, burst);
            for frame in burst.drain(..) {
                self.now = self.now.plus_ns(FRAME_NS);
                black_box(self.switch.rx(&mut self.pool, self.now, port, frame));
            }
        }
        let due = self.sent + clients.len() as u64;
        while self.sent < due {
            match self.switch.tx(&mut self.pool, self.now) {
                Some((port, frame)) => {
                    if segment.flags == flags::SYN {
                        let [a, b, c, d] = self.pool.bytes(&frame)[26..30] else { panic!("a slice of four") };
                        let number = u32::from_be_bytes([a, b, c, d]) - FIRST_CLIENT;
                        self.backends[number as usize] = port.0 as u8;
                    }
                    self.pool.free(frame);
                    self.sent += 1;
                }
                None => self.now = self.now.max(self.switch.poll_timeout().expect("a frame waits")),
            }
        }
    }

    /// The frame's bytes.
    fn write(&mut self, segment: &Segment, number: u32, backend: u32) {
        let (client, server) = (client(number), server(backend));
        let (far, mac, port) = match self.has_services && segment.from_client {
            true => (SERVICE.1, SERVICE.0, SERVICE.2),
            false => (server.1, server.0, TARGET_PORT),
        };
        let (client, far) = ((ROUTER, client.0, client.1, CLIENT_FIRST), (mac, far, port, SERVER_FIRST));
        let (from, to) = if segment.from_client { (client, far) } else { (far, client) };
        let bytes = &mut self.template;
        bytes[..6].copy_from_slice(&to.0.0);
        bytes[6..12].copy_from_slice(&from.0.0);
        bytes[16..18].copy_from_slice(&(40 + segment.payload as u16).to_be_bytes());
        bytes[26..30].copy_from_slice(&from.1.octets());
        bytes[30..34].copy_from_slice(&to.1.octets());
        bytes[34..36].copy_from_slice(&from.2.to_be_bytes());
        bytes[36..38].copy_from_slice(&to.2.to_be_bytes());
        bytes[38..42].copy_from_slice(&(from.3 + segment.sent).to_be_bytes());
        bytes[42..46].copy_from_slice(&(to.3 + segment.acknowledged).to_be_bytes());
        bytes[47] = segment.flags;
    }
}
