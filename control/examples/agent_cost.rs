//! What an agent costs: the time of one sample, at a host with 100 endpoints that 50 others send to, all over their shares.
//!
//! ```text
//! agent_cost [SAMPLES]    a millisecond each (20 000)
//! ```
//! One line tells the time of a sample, the arrivals in one, and the datagrams a second. For instructions, which do not depend on what else the machine
//! does, run it twice under callgrind and divide the difference by that of the samples:
//!
//! ```text
//! for n in 2000 4000; do valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/agent_cost $n; done
//! ```

use control::agent::Agent;
use control::agent::directory::{Cluster, Directory};
use control::agent::events::Arrival;
use control::agent::settings::Settings;
use datapath::guard::Identity;
use datapath::program::{Attachment, Endpoint, EndpointId, PortId, Program, Share, Slots, Tenant, TenantId, Uplink};
use datapath::units::{Both, Instant, Rate};
use datapath::wire::Mac;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

const ENDPOINTS: u32 = 100;
const TENANTS: u32 = 10;
const HOSTS: u32 = 50;
/// Senders of each endpoint, each on another host.
const SENDERS: u32 = 5;
/// Wire bytes of a full frame of a 1500-byte MTU.
const FRAME: u64 = 1538;
/// One millisecond of 1 Gbit/s is 81 of them.
const FRAMES: u32 = 81;
const SAMPLE_NS: u64 = 1_000_000;

fn main() {
    let samples: u64 = std::env::args().nth(1).map_or(20_000, |n| n.parse().expect("a number of samples"));
    let mut agent = Agent::new(Settings::default(), "h0", 1, directory());
    let (mut now, mut turn, mut datagrams) = (Instant(1_000_000_000), 0, 0u64);
    let mut arrivals = Vec::new();
    let warm_up = 2000;
    let mut spent = Duration::ZERO;
    for sample in 0..warm_up + samples {
        arrivals.clear();
        for _ in 0..FRAMES {
            // Each frame is of the next sender of the next endpoint, so that no two are of one pair.
            let (to, sender) = (turn % ENDPOINTS, turn / ENDPOINTS % SENDERS);
            let from = Some(mac(1 + (to + 7 * sender) % HOSTS, to));
            arrivals.push(Arrival { to: EndpointId(to), from, wire_bytes: FRAME, dropped_bytes: 0 });
            turn += 1;
        }
        now = now.plus_ns(SAMPLE_NS);
        let clock = Clock::now();
        agent.sample(now, SAMPLE_NS, &arrivals, &[]);
        let mut sent = 0;
        while agent.poll_message().is_some() {
            sent += 1;
        }
        if sample >= warm_up {
            spent += clock.elapsed();
            datagrams += sent;
        }
    }
    let limited = agent.report(now).limited.len();
    println!(
        "{} ns a sample of {FRAMES} arrivals, {limited} pairs limited, {} datagrams a second",
        spent.as_nanos() / u128::from(samples),
        datagrams * 1000 / samples
    );
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
    let rate = Both { egress: Rate(Rate::GBIT), ingress: Rate(Rate::GBIT) };
    program.uplink = Some(Uplink { port: PortId(0), rate, headroom_ppm: 20_000 });
    for tenant in 0..TENANTS {
        program.tenants.push(Tenant { attachment: Attachment::Untagged, share: both(share(50_000_000)) });
        names.push(format!("tenant-{tenant}"));
    }
    for endpoint in 0..ENDPOINTS {
        let tenant = endpoint % TENANTS;
        program.endpoints.push(Endpoint {
            tenant: TenantId(tenant),
            port: PortId(1 + endpoint),
            identity: Identity { macs: vec![mac(0, endpoint)], ..Identity::default() },
            trunk: false,
            share: both(share(5_000_000)),
            queue_bytes: 1 << 20,
            flood_per_second: 1000,
            max_learned: 64,
            talk: None,
        });
        cluster.place("h0", &names[tenant as usize], mac(0, endpoint));
        for host in 1..=HOSTS {
            cluster.place(&format!("h{host}"), &names[tenant as usize], mac(host, endpoint));
        }
    }
    Directory::new(Arc::new(cluster), &program, &names)
}
