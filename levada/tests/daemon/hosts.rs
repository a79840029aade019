//! Three hosts with a daemon each: what becomes of guarantees and limits when a daemon is killed,
//! when two hosts cannot hear each other, when the receiver goes, and on a network that loses and
//! doubles what they say while somebody else sends them garbage.

use crate::fabric::{
    Again, BLUE, Flood, Host, RED, THREE, has_its_guarantee, hosts, is_held, mac, nobody_is_limited, said,
};
use crate::testbed::{soon, turn};
use rustix::process::Signal;
use serde_json::Value;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

/// Priorities of the filters that lose and that double what agents say.
const LOST: [u8; 2] = [1, 2];
const DOUBLED: u8 = 3;

/// The network loses three in ten of what agents say, and brings what is left twice. Which are lost
/// is told by a byte of what is encrypted, and so by chance, as the kernel may have no action that
/// drops.
fn distort(hosts: &[Host; 3]) {
    let tc = |arguments: &str| hosts[0].bed.tool("tc", "fabric", arguments).unwrap();
    hosts[0].bed.ip("fabric", "link add nowhere type bridge").unwrap();
    hosts[0].bed.ip("fabric", "link set nowhere up").unwrap();
    for from in 1..=3 {
        tc(&format!("qdisc add dev p{from} clsact"));
        let filter = |prio: u8, also: &str, action: &str| {
            let agents = "u32 match ip protocol 17 0xff match ip dport 7370 0xffff";
            tc(&format!(
                "filter add dev p{from} ingress protocol ip prio {prio} {agents} {also} action mirred egress {action}"
            ));
        };
        // A quarter, and a sixteenth.
        filter(LOST[0], "match u8 0x00 0xc0 at 60", "redirect dev nowhere");
        filter(LOST[1], "match u8 0x40 0xf0 at 60", "redirect dev nowhere");
        for to in (1..=3).filter(|to| *to != from) {
            filter(DOUBLED, &format!("match ip dst 192.0.2.{to}/32"), &format!("mirror dev p{to}"));
        }
    }
}

/// What tc counts of agents' datagrams at the ports: those that were lost, and those that were
/// doubled.
fn distorted(hosts: &[Host; 3]) -> (u64, u64) {
    let of = |prio: u8| {
        let count = |port: u8| {
            let shown = format!("-s -j filter show dev p{port} ingress prio {prio}");
            let filters: Value = serde_json::from_str(&hosts[0].bed.tool("tc", "fabric", &shown).unwrap()).unwrap();
            let filters = filters.as_array().cloned().unwrap_or_default();
            let actions = filters.iter().filter_map(|one| one["options"]["actions"].as_array()).flatten();
            actions.filter_map(|action| action["stats"]["packets"].as_u64()).sum::<u64>()
        };
        (1..=3).map(count).sum::<u64>()
    };
    (LOST.map(of).iter().sum(), of(DOUBLED))
}

/// Datagrams of all lengths that mean nothing, one in each millisecond, from an address of the
/// network itself to two of the agents.
fn garbage(fabric: &Host) -> Again {
    fabric.bed.ip("fabric", "address add 192.0.2.9/24 dev br0").unwrap();
    let socket = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let socket = fabric.bed.space("fabric").run(socket).unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    Again::new(move || {
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let bytes: Vec<u8> = (0..random() % 1472).map(|_| random() as u8).collect();
        let to = if bytes.len().is_multiple_of(2) { 1 } else { 3 };
        let _ = socket.send_to(&bytes, (Ipv4Addr::new(192, 0, 2, to), 7370));
        std::thread::sleep(Duration::from_millis(1));
    })
}

#[test]
fn guarantees_return_and_limits_end_when_daemons_die_and_hosts_are_cut_off() {
    let Some(_turn) = turn("guarantees_return_and_limits_end_when_daemons_die_and_hosts_are_cut_off") else { return };
    let hosts: [Host; 3] = hosts(&THREE);
    let mut daemons = [0, 1, 2].map(|n: usize| hosts[n].start());
    let victim = Flood::new(&hosts[1], RED, 1);
    let flood = Flood::new(&hosts[2], BLUE, 5);
    soon("the flood is held", || is_held(&hosts[0], &hosts[2]));
    has_its_guarantee(&daemons);

    // Who has asked for the limit dies: it ends, and is asked for again by the next process.
    assert!(!daemons[0].end(Signal::KILL).success());
    soon("nobody is limited for somebody dead", || nobody_is_limited(&hosts[2]) && nobody_is_limited(&hosts[1]));
    daemons[0] = hosts[0].start();
    soon("the flood is held for the new process", || is_held(&hosts[0], &hosts[2]));
    has_its_guarantee(&daemons);

    // Who is to hold it dies.
    assert!(!daemons[2].end(Signal::KILL).success());
    daemons[2] = hosts[2].start();
    soon("the flood is held by the new process", || is_held(&hosts[0], &hosts[2]));
    has_its_guarantee(&daemons);

    // The two do not hear each other: the limit ends, and red keeps what it was promised all the
    // same, by the receiver's own schedule.
    let cut = Instant::now();
    hosts[0].cut_off(3);
    hosts[2].cut_off(1);
    soon("nobody is limited by what is out of reach", || nobody_is_limited(&hosts[2]));
    has_its_guarantee(&daemons);
    soon("it is said", || hosts[0].says_of(3, cut));
    hosts[0].heal(3);
    hosts[2].heal(1);
    soon("the flood is held again", || is_held(&hosts[0], &hosts[2]));
    has_its_guarantee(&daemons);

    // The endpoint that the flood goes to leaves: what was asked for its sake ends, though the
    // flood goes on.
    let output = hosts[0].bed.run(&["del", "endpoint", "s1/blue/blue1"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    soon("nobody is limited for what is gone", || nobody_is_limited(&hosts[2]));
    drop((victim, flood));
    soon("nobody is limited any more", || hosts.iter().all(nobody_is_limited));
    soon("agents at rest say nothing", || {
        let before = said(&hosts);
        std::thread::sleep(Duration::from_secs(2));
        before > 0 && said(&hosts) == before
    });
}

#[test]
fn guarantees_hold_while_messages_are_lost_and_doubled_and_garbage_arrives() {
    let Some(_turn) = turn("guarantees_hold_while_messages_are_lost_and_doubled_and_garbage_arrives") else { return };
    let hosts: [Host; 3] = hosts(&THREE);
    distort(&hosts);
    let _garbage = garbage(&hosts[0]);
    let mut daemons = [0, 1, 2].map(|n: usize| hosts[n].start());
    let victim = Flood::new(&hosts[1], RED, 1);
    let flood = Flood::new(&hosts[2], BLUE, 5);
    soon("the flood is held", || is_held(&hosts[0], &hosts[2]));
    has_its_guarantee(&daemons);

    assert!(!daemons[0].end(Signal::KILL).success());
    soon("nobody is limited for somebody dead", || nobody_is_limited(&hosts[2]));
    daemons[0] = hosts[0].start();
    soon("the flood is held for the new process", || is_held(&hosts[0], &hosts[2]));
    has_its_guarantee(&daemons);

    drop((victim, flood));
    soon("nobody is limited any more", || hosts.iter().all(nobody_is_limited));
    let (lost, doubled) = distorted(&hosts);
    assert!(lost > 10 && doubled > 10, "{lost} lost, {doubled} doubled: the network was in order");
}

#[test]
fn a_flood_is_held_again_soon_after_its_receivers_agent_was_made_anew() {
    let Some(_turn) = turn("a_flood_is_held_again_soon_after_its_receivers_agent_was_made_anew") else { return };
    let hosts: [Host; 3] = hosts(&THREE);
    let _daemons = [0, 1, 2].map(|n: usize| hosts[n].start());
    let _victim = Flood::new(&hosts[1], RED, 1);
    let _flood = Flood::new(&hosts[2], BLUE, 5);
    let peer = |host: &Host, other: &str, what: &str| {
        let peers = host.agent()["peers"].as_array().cloned().unwrap_or_default();
        peers.iter().find(|peer| peer["host"] == other).and_then(|peer| peer[what].as_u64()).unwrap_or(0)
    };
    // Far more than the numbers that the other remembers one by one.
    let said = || peer(&hosts[0], "h3", "sent");
    soon("the flood is held, and much was said", || is_held(&hosts[0], &hosts[2]) && said() > 1000);
    let before = peer(&hosts[2], "h1", "refused");
    hosts[0].run(&["set", "cluster", "controller=gatekeeper"]);
    hosts[0].run(&["set", "cluster", "controller=rate"]);
    assert!(said() < 1000, "the agent is the same");
    // What the agent before it had asked for has run out.
    std::thread::sleep(Duration::from_secs(3));
    soon("the flood is held again", || is_held(&hosts[0], &hosts[2]));
    let refused = peer(&hosts[2], "h1", "refused") - before;
    assert!(refused < 100, "{refused} were refused");
}

#[test]
fn a_host_that_loses_its_address_says_so_until_it_is_back() {
    let Some(_turn) = turn("a_host_that_loses_its_address_says_so_until_it_is_back") else { return };
    let [host]: [Host; 1] = hosts(&[(RED, 1)]);
    let _daemon = host.start();
    let seen = || {
        let reply: Value = serde_json::from_str(&host.run(&["show", "cluster", "--json"])).unwrap();
        (reply["cluster"]["up"] == true, reply["cluster"]["error"].as_str().unwrap_or_default().to_owned())
    };
    soon("it listens", || seen() == (true, String::new()));
    host.bed.ip("host", "address del 192.0.2.1/24 dev eth0").unwrap();
    // It looks now and then, and when it is told to.
    let file = host.bed.configuration(&host.text);
    host.run(&["apply", file.to_str().unwrap()]);
    soon("it says so", || matches!(seen(), (false, why) if why.contains("no interface of this host")));
    host.bed.ip("host", "address add 192.0.2.1/24 dev eth0").unwrap();
    soon("it listens again", || seen() == (true, String::new()));
}

/// What the first host's agent says of the flood that comes from the third: its host, and in what
/// way it keeps to no limit.
fn named(hosts: &[Host; 3]) -> Option<(Value, Value)> {
    let limits = hosts[0].agent()["limits"].clone();
    let of_flood = limits.as_array()?.iter().find(|limit| limit["from"] == mac(BLUE, 3).as_str())?.clone();
    Some((of_flood["host"].clone(), of_flood["ignores"].clone()))
}

#[test]
fn who_keeps_to_no_limit_is_named_and_takes_nothing_from_others() {
    let Some(_turn) = turn("who_keeps_to_no_limit_is_named_and_takes_nothing_from_others") else { return };
    let mut hosts: [Host; 3] = hosts(&THREE);
    // The third host is a member, as the first one knows, but has no agent, so nobody holds what it
    // sends.
    let whole = hosts[2].text.clone();
    hosts[2].text = whole.split_once("[cluster]").unwrap().0.to_owned();
    let mut daemons = [0, 1, 2].map(|n: usize| hosts[n].start());
    let _victim = Flood::new(&hosts[1], RED, 1);
    let _flood = Flood::new(&hosts[2], BLUE, 5);
    soon("it is named", || named(&hosts) == Some(("h3".into(), "limit".into())));
    let shown = hosts[0].run(&["show", "agents"]);
    assert!(shown.contains("does not keep to it"), "{shown}");
    has_its_guarantee(&daemons);

    // It hears, and is held where it is sent.
    assert!(!daemons[2].end(Signal::KILL).success());
    hosts[2].text = whole;
    daemons[2] = hosts[2].start();
    soon("it is held, and named no more", || {
        is_held(&hosts[0], &hosts[2]) && named(&hosts) == Some(("h3".into(), Value::Null))
    });
    has_its_guarantee(&daemons);

    // Nobody knows where it is.
    assert!(!daemons[0].end(Signal::KILL).success());
    hosts[0].text = hosts[0].text.replace(&mac(BLUE, 3), "02:00:00:00:ff:ff");
    daemons[0] = hosts[0].start();
    soon("it is named all the same", || named(&hosts) == Some((Value::Null, "unreachable".into())));
    has_its_guarantee(&daemons);
}
