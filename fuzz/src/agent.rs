//! Any bytes as datagrams of other hosts, and any arrivals: no agent panics, what is read as a
//! message is written as it was read, whoever speaks limits only own endpoints toward endpoints at
//! its host, and with nothing more heard, every limit ends in the stated time.

use agent::Agent;
use agent::directory::{Cluster, Directory};
use agent::events::{Arrival, QueueSample, Toward};
use agent::leases::{MAX_LEASE_MS, free_within_ns};
use agent::message::{MAX_DATAGRAM, Message, Writer};
use agent::settings::{ControllerKind, Settings};
use datapath::program::EndpointId;
use datapath::units::{Instant, Rate};
use datapath::wire::Mac;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// The switch, whose endpoints are 02:00:00:00:00:01, :02 and :05.
const SWITCH: &str = r#"
[daemon]
name = "t"
[[switch]]
name = "s1"
[switch.uplink]
port = "tap://up"
rate = "1 Gbit/s"
[[switch.tenant]]
name = "red"
vlan = 10
[[switch.tenant.endpoint]]
name = "red1"
port = "tap://red1"
mac = "02:00:00:00:00:01"
guarantee = "400 Mbit/s"
[[switch.tenant]]
name = "blue"
vlan = 20
[[switch.tenant.endpoint]]
name = "blue1"
port = "tap://blue1"
mac = "02:00:00:00:00:02"
limit = "100 Mbit/s"
[[switch.tenant]]
name = "ops"
vlan = "untagged"
[[switch.tenant.endpoint]]
name = "ops1"
port = "tap://ops1"
mac = "02:00:00:00:00:05"
"#;

/// The untagged endpoint, the last of three.
const UNTAGGED: EndpointId = EndpointId(2);

/// Of every tenant with a VLAN, on host `h1` and `h2`.
const AWAY: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 3]), Mac([2, 0, 0, 0, 0, 4])];

/// Of a tenant that is not here, on host `h1`.
const GUEST: Mac = Mac([2, 0, 0, 0, 0, 6]);

/// `data` is a list of things that happen: a byte that says what, and what it needs.
pub fn run(data: &[u8]) {
    let (&first, mut rest) = data.split_first().unwrap_or((&0, data));
    let controller = if first & 1 == 0 { ControllerKind::Rate } else { ControllerKind::Gatekeeper };
    let mut agent = Agent::new(Settings { controller, ..Settings::default() }, "h0", 1, directory());
    let (mut now, mut limits) = (Instant(1_000_000_000), BTreeMap::new());
    while let Some((&what, more)) = rest.split_first() {
        rest = more;
        match what % 4 {
            0 => {
                let (&low, after) = more.split_first().unwrap_or((&0, more));
                let length = usize::from(low) + 256 * (usize::from(what) / 16 % 8);
                let (datagram, after) = after.split_at(length.min(after.len()));
                rest = after;
                let from = ["h1", "h2", "h0", "h9"][usize::from(what) / 4 % 4];
                let heard = agent.hear(now, from, datagram);
                if !matches!(from, "h1" | "h2") {
                    assert!(heard.is_err(), "{from} is no other host of the cluster");
                }
                rewrite(datagram);
            }
            1 => now = now.plus_ns(u64::from(what) * 100_000),
            2 => drop(agent.set_directory(now, directory())),
            _ => {
                let (numbers, after) = more.split_at(more.len().min(8));
                rest = after;
                sample(&mut agent, now, what, numbers);
            }
        }
        follow(&mut agent, &mut limits);
    }
    // Nothing more is heard and nothing arrives; the shell goes on sampling for as long as it is
    // asked to.
    let end = now.plus_ns(11_000_000_000 + free_within_ns(MAX_LEASE_MS, Rate(Rate::GBIT)));
    let mut steps = 0;
    while let Some(due) = agent.poll_timeout().filter(|_| !limits.is_empty()) {
        assert!(due <= end && steps < 20_000, "a limit outlives its lease: {limits:?}");
        now = now.max(due);
        agent.sample(now, 1_000_000, &[], &[]);
        follow(&mut agent, &mut limits);
        steps += 1;
    }
    assert!(limits.is_empty(), "{limits:?}");
}

fn directory() -> Directory {
    static DIRECTORY: OnceLock<Directory> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let plan = control::load(SWITCH).plan.expect("a good configuration");
        let mut cluster = Cluster::default();
        for tenant in ["red", "blue"] {
            cluster.place("h1", tenant, AWAY[0]);
            cluster.place("h2", tenant, AWAY[1]);
            cluster.place("h0", tenant, Mac([2, 0, 0, 0, 0, 1]));
        }
        cluster.place("h1", "guests", GUEST);
        Directory::new(Arc::new(cluster), &plan.switches[0].program, &plan.switches[0].tenants)
    });
    directory.clone()
}

fn sample(agent: &mut Agent, now: Instant, what: u8, numbers: &[u8]) {
    let mut arrivals = Vec::new();
    let mut queues = Vec::new();
    for (index, &number) in numbers.iter().enumerate() {
        let (to, bytes) = (EndpointId(u32::from(number) % 4), u64::from(number) << (what % 64));
        let from = (number != 0).then_some([AWAY[0], AWAY[1], GUEST][index % 3]);
        arrivals.push(Arrival { to, from, wire_bytes: bytes % (1 << 40), dropped_bytes: 0 });
        queues.push(QueueSample {
            endpoint: to,
            arrived_bytes: bytes % (1 << 40),
            dropped_bytes: bytes % (1 << 40),
            last_dropped: from,
            backlog_bytes: 0,
        });
    }
    agent.sample(now, u64::from(what) * 40_000, &arrivals, &queues);
    let _shown = agent.report(now);
}

/// What the agent wants done, and whether it may.
fn follow(agent: &mut Agent, limits: &mut BTreeMap<(EndpointId, Toward), Rate>) {
    while let Some(tuning) = agent.poll_tuning() {
        assert!(tuning.from <= UNTAGGED, "{tuning:?}: no own endpoint");
        if let Toward::Address(to) = tuning.to {
            let may = if tuning.from == UNTAGGED { to == GUEST } else { AWAY.contains(&to) };
            assert!(may, "{tuning:?}: not at the host that can have spoken");
        }
        match tuning.rate {
            Some(rate) => limits.insert((tuning.from, tuning.to), rate),
            None => limits.remove(&(tuning.from, tuning.to)),
        };
    }
    while let Some((_, datagram)) = agent.poll_message() {
        assert!(datagram.len() <= MAX_DATAGRAM && Message::read(&datagram).is_ok(), "{datagram:?}");
    }
}

/// What is read can be written, and is then read as the same.
fn rewrite(datagram: &[u8]) {
    let Ok(message) = Message::read(datagram) else { return };
    let mut writer = Writer::new(message.lease_ms, message.life, message.sequence);
    if message.pairs.iter().all(|pair| writer.add(pair)) {
        let again = writer.finish();
        assert_eq!(Message::read(&again), Ok(message));
    }
}
