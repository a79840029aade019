//! What an agent costs: processor time for each millisecond, at a host with 100 endpoints that 50
//! others send to, all over their shares.
//!
//! ```text
//! agent_cost [heeding|partly|ignoring] [SAMPLES]    a millisecond each (20 000)
//! ```
//! The senders' frames of 1538 bytes wait in one queue of the network before the link of 1 Gbit/s,
//! and each sender keeps the limit that it was told (`heeding`), or one in ten (`partly`) or all
//! (`ignoring`) send four times their share whatever they are told; where all do, the network drops
//! so much that about the shares arrive. A sample is what a daemon's worker does in a millisecond:
//! the switch's counts are taken, the agent works on them and says what it has to say. Meanwhile
//! the others' agents say as much to this one, of its own endpoints' sending; that is counted
//! apart. Not counted: what the switch does with each frame, QUIC, and the switch's lanes.
//!
//! For instructions, which do not depend on what else the machine does, build it without link-time
//! optimisation and run it twice; divide the difference of `Collected` by that of the samples:
//!
//! ```text
//! for n in 2000 4000; do
//!   valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no --toggle-collect='*agent_cost*Station*work*' \
//!     target/release/examples/agent_cost heeding $n
//! done
//! ```

use agent::Agent;
use agent::directory::{Cluster, Directory};
use agent::events::{Arrival, QueueSample};
use agent::message::{Message, Pair, Say, Writer};
use agent::settings::Settings;
use datapath::arrivals::Arrivals;
use datapath::guard::Identity;
use datapath::program::{Attachment, Endpoint, EndpointId, PortId, Program, Share, Slots, Tenant, TenantId, Uplink};
use datapath::units::{Both, Instant, Rate};
use datapath::wire::Mac;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

const ENDPOINTS: u32 = 100;
const TENANTS: u32 = 10;
const HOSTS: u32 = 50;
/// Senders of each endpoint, each on another host.
const SENDERS: u32 = 5;
/// Wire bytes of a full frame of a 1500-byte MTU.
const FRAME: u32 = 1538;
const LINK: u64 = Rate::GBIT;
/// What each sender would send: four times its share.
const WANTED: u64 = 4 * LINK / (ENDPOINTS * SENDERS) as u64;
/// The network's queue before the link, as time: 256 KiB.
const QUEUE_NS: u64 = 262_144 * 8 * 1_000_000_000 / LINK;
const SAMPLE_NS: u64 = 1_000_000;
/// Samples whose mean is taken: many turns of the controller.
const BATCH: usize = 200;
/// Until limits and averages have settled.
const WARM_UP: u64 = 2000;

/// Which senders heed their limits.
struct Mode {
    name: &'static str,
    heeds: fn(u32) -> bool,
    says: &'static str,
}

const MODES: [Mode; 3] = [
    Mode { name: "heeding", heeds: |_| true, says: "senders heed their limits" },
    Mode {
        name: "partly",
        heeds: |sender| !(sender + sender / ENDPOINTS).is_multiple_of(10),
        says: "one sender in ten ignores its limit",
    },
    Mode { name: "ignoring", heeds: |_| false, says: "senders ignore their limits" },
];

fn main() {
    let mut args = std::env::args().skip(1);
    let modes: Vec<&Mode> = match args.next().as_deref() {
        None => MODES.iter().collect(),
        Some(name) => vec![MODES.iter().find(|mode| mode.name == name).expect("heeding, partly or ignoring")],
    };
    let samples: u64 = args.next().map_or(20_000, |n| n.parse().expect("a number of samples"));
    for mode in modes {
        measure(mode, samples);
    }
}

fn measure(mode: &Mode, samples: u64) {
    let mut station = Station::new();
    let mut network = Network::new();
    let mut now = Instant(1_000_000_000);
    let (mut spent, mut heard_in) = (Vec::new(), 0);
    let (mut arrivals, mut datagrams) = (0, 0);
    for sample in 0..WARM_UP + samples {
        now = now.plus_ns(SAMPLE_NS);
        network.deliver(now, &mut station.table);
        let clock = Clock::now();
        station.work(now);
        let worked = clock.elapsed();
        let said = std::mem::take(&mut station.said);
        let answers: Vec<_> = said.iter().map(|(host, datagram)| answer(host, datagram)).collect();
        let clock = Clock::now();
        station.hear(now, &answers);
        let heard = clock.elapsed();
        said.iter().for_each(|(host, datagram)| network.heed(host, datagram, mode.heeds));
        if sample >= WARM_UP {
            spent.push((worked, heard));
            arrivals += station.arrivals.len() as u64;
            datagrams += said.len() as u64;
            heard_in += answers.iter().map(|(.., pairs)| pairs).sum::<u64>();
        }
    }
    let report = station.agent.report(now);
    let worked = median_ns(&spent, |spent| spent.0);
    let heard = median_ns(&spent, |spent| spent.1);
    let ignore = report.limited.iter().filter(|limited| limited.ignores.is_some()).count();
    let second = |n: u64| n * 1_000_000_000 / SAMPLE_NS / samples;
    println!(
        "{}: {:.2} % of a core: {:.1} us a sample of {} arrivals; {} pairs limited, {ignore} ignore it, {} datagrams a second",
        mode.says,
        worked / SAMPLE_NS as f64 * 100.0,
        worked / 1000.0,
        arrivals / samples,
        report.limited.len(),
        second(datagrams),
    );
    println!(
        "  hearing as many datagrams of {} pairs a second: {:.2} % more",
        second(heard_in),
        heard / SAMPLE_NS as f64 * 100.0
    );
}

/// What a sample takes: the median of the means of [`BATCH`] samples each, so that what else the
/// machine does is left out as far as it comes and goes.
fn median_ns(spent: &[(Duration, Duration)], of: impl Fn(&(Duration, Duration)) -> Duration) -> f64 {
    let mean = |batch: &[_]| batch.iter().map(&of).sum::<Duration>().as_nanos() as f64 / batch.len() as f64;
    let mut means: Vec<f64> = spent.chunks(BATCH).map(mean).collect();
    means.sort_unstable_by(f64::total_cmp);
    means[means.len() / 2]
}

/// What a worker has at a switch.
struct Station {
    table: Arrivals,
    agent: Agent,
    arrivals: Vec<Arrival>,
    queues: Vec<QueueSample>,
    said: Vec<(Arc<str>, Vec<u8>)>,
}

impl Station {
    fn new() -> Station {
        let mut table = Arrivals::new(1);
        table.watch(true);
        let agent = Agent::new(Settings::default(), "h0", 1, directory());
        Station { table, agent, arrivals: Vec::new(), queues: Vec::new(), said: Vec::new() }
    }

    /// A sample.
    #[inline(never)]
    fn work(&mut self, now: Instant) {
        self.table.take(&mut self.arrivals, &mut self.queues, |_| 0);
        self.agent.sample(now, SAMPLE_NS, &self.arrivals, &self.queues);
        while let Some(said) = self.agent.poll_message() {
            self.said.push(said);
        }
    }

    /// What other hosts say.
    #[inline(never)]
    fn hear(&mut self, now: Instant, answers: &[(Arc<str>, Vec<u8>, u64)]) {
        for (host, datagram, _) in answers {
            self.agent.hear(now, host, datagram).expect("a host may say this");
        }
        while self.agent.poll_tuning().is_some() {}
    }
}

/// What a host would say that is as busy as this one: as many pairs, the other way round, and where
/// they were from.
fn answer(host: &Arc<str>, datagram: &[u8]) -> (Arc<str>, Vec<u8>, u64) {
    let message = Message::read(datagram).expect("a message");
    let mut writer = Writer::new(message.lease_ms, 1, message.sequence);
    for pair in &message.pairs {
        assert!(writer.add(&Pair { to: pair.from, from: pair.to, ..*pair }), "what was in one fits into one");
    }
    (host.clone(), writer.finish(), message.pairs.len() as u64)
}

/// The senders, and the queue before this host.
struct Network {
    /// What each may send.
    rates: Vec<u64>,
    /// When each sends its next frame.
    next: BinaryHeap<Reverse<(u64, u32)>>,
    /// When the link has sent all that waits, and who sent the frame that has not arrived in full.
    free_at: u64,
    late: Vec<(u64, u32)>,
}

impl Network {
    fn new() -> Network {
        // Any order does in which senders do not go together.
        let next = |sender| Reverse((1_000_000_000 + u64::from(sender) * 7_919_011 % 20_000_000, sender));
        let all = ENDPOINTS * SENDERS;
        Network { rates: vec![WANTED; all as usize], next: (0..all).map(next).collect(), free_at: 0, late: Vec::new() }
    }

    /// Counts what arrives until `now`.
    fn deliver(&mut self, now: Instant, table: &mut Arrivals) {
        let bits_ns = u64::from(FRAME) * 8 * 1_000_000_000;
        while self.next.peek().is_some_and(|next| next.0.0 <= now.0) {
            let Some(Reverse((at, sender))) = self.next.pop() else { break };
            self.next.push(Reverse((at + bits_ns / self.rates[sender as usize], sender)));
            if self.free_at <= at + QUEUE_NS {
                self.free_at = self.free_at.max(at) + bits_ns / LINK;
                self.late.push((self.free_at, sender));
            }
        }
        self.late.retain(|&(at, sender)| {
            let is_late = at > now.0;
            if !is_late {
                let (to, host) = pair(sender);
                table.arrive(EndpointId(to), mac(host, to), FRAME);
            }
            is_late
        });
    }

    /// A host does what it was told.
    fn heed(&mut self, host: &str, datagram: &[u8], heeds: fn(u32) -> bool) {
        let message = Message::read(datagram).expect("a message");
        for said in &message.pairs {
            let Some(at) = (0..ENDPOINTS * SENDERS).filter(|&sender| heeds(sender)).find(|&sender| {
                let (to, from) = pair(sender);
                mac(0, to) == said.to && mac(from, to) == said.from && host == name(from)
            }) else {
                continue;
            };
            self.rates[at as usize] = match said.say {
                Say::Rate(rate, _) => rate.0.min(WANTED),
                Say::Lift | Say::Halve => WANTED,
            };
        }
    }
}

/// The endpoint that a sender sends to, and its host.
fn pair(sender: u32) -> (u32, u32) {
    let (to, nth) = (sender % ENDPOINTS, sender / ENDPOINTS);
    (to, 1 + (to + 7 * nth) % HOSTS)
}

fn name(host: u32) -> String {
    format!("h{host}")
}

fn mac(host: u32, endpoint: u32) -> Mac {
    Mac([2, 0, 0, host as u8, 0, endpoint as u8])
}

fn directory() -> Directory {
    let mut cluster = Cluster::default();
    let mut program = Program::default();
    let mut names = Slots::default();
    let share = |bps| Share { guarantee: Rate(bps), ..Share::default() };
    let both = |share| Both { egress: Share::default(), ingress: share };
    let rate = Both { egress: Rate(LINK), ingress: Rate(LINK) };
    program.uplink = Some(Uplink { headroom_ppm: 20_000, ..Uplink::new(PortId(0), rate) });
    for tenant in 0..TENANTS {
        program.tenants.push(Tenant {
            attachment: Attachment::Untagged,
            share: both(share(50_000_000)),
            ..Tenant::default()
        });
        names.push(format!("tenant-{tenant}"));
    }
    for endpoint in 0..ENDPOINTS {
        let tenant = endpoint % TENANTS;
        program.endpoints.push(Endpoint {
            identity: Identity { macs: vec![mac(0, endpoint)], ..Identity::default() },
            share: both(share(5_000_000)),
            max_learned: 64,
            ..Endpoint::new(TenantId(tenant), PortId(1 + endpoint))
        });
        cluster.place(&name(0), &names[tenant as usize], mac(0, endpoint));
        for host in 1..=HOSTS {
            cluster.place(&name(host), &names[tenant as usize], mac(host, endpoint));
        }
    }
    Directory::new(Arc::new(cluster), &program, &names)
}
