//! Three hosts with a daemon each, whose agents trust each other by certificates and speak over the network between them: what becomes of guarantees
//! and limits when a daemon is killed, when two hosts cannot hear each other, when the receiver goes, and on a network that loses and doubles what
//! they say while somebody else sends them garbage.

use crate::testbed::{Bed, Daemon, soon, turn};
use rustix::process::Signal;
use serde_json::Value;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What the three have in common; `ENDPOINTS` and `MEMBERS` follow.
const HOST: &str = r#"
[daemon]
name = "NAME"
[[switch]]
name = "s1"
[switch.uplink]
port = "packet://eth0"
netns = "NS-host"
rate = "20 Mbit/s"
ENDPOINTS
[cluster]
host = "hHERE"
listen = "192.0.2.HERE:7370"
directory = "DIRECTORY"
"#;
/// Tenants and their VLANs.
const RED: (&str, u8) = ("red", 10);
const BLUE: (&str, u8) = ("blue", 20);
/// Priorities of the filters that lose and that double what agents say.
const LOST: [u8; 2] = [1, 2];
const DOUBLED: u8 = 3;
/// The endpoints, each in a namespace of its name: tenant, and number of the host.
const ENDPOINTS: [((&str, u8), u8); 4] = [(RED, 1), (BLUE, 1), (RED, 2), (BLUE, 3)];

/// One host.
struct Host {
    number: u8,
    bed: Bed,
    text: String,
}

fn mac((_, vlan): (&str, u8), host: u8) -> String {
    format!("02:00:00:00:{vlan:02x}:{host:02x}")
}

impl Host {
    fn new(number: u8) -> Host {
        let own = ENDPOINTS.iter().filter(|(_, host)| *host == number);
        let names: Vec<String> = own.clone().map(|((tenant, _), host)| format!("{tenant}{host}")).collect();
        let bed = Bed::new(&["host", "fabric"]);
        names.iter().for_each(|name| bed.add(name));
        let endpoints: String = own
            .map(|&(tenant, host)| {
                let ((name, vlan), mac) = (tenant, mac(tenant, host));
                let guarantee = if tenant == RED { 14 } else { 4 };
                format!(
                    "[[switch.tenant]]\nname = \"{name}\"\nvlan = {vlan}\nguarantee = \"{guarantee} Mbit/s\"\n\
                     [[switch.tenant.endpoint]]\nname = \"{name}{host}\"\nport = \"tap://tap0\"\nnetns = \"NS-{name}{host}\"\n\
                     mac = \"{mac}\"\naddress = \"10.8.{vlan}.{host}/24\"\nipv6 = false\n"
                )
            })
            .collect();
        let members: String = (1..=3)
            .filter(|member| *member != number)
            .map(|member| {
                let theirs = ENDPOINTS.iter().filter(|(_, host)| *host == member);
                let theirs: Vec<String> = theirs
                    .map(|&(tenant, host)| {
                        let name = tenant.0;
                        format!("{{ name = \"{name}{host}\", tenant = \"{name}\", mac = \"{}\" }}", mac(tenant, host))
                    })
                    .collect();
                format!(
                    "[[cluster.member]]\nname = \"h{member}\"\naddress = \"192.0.2.{member}:7370\"\nendpoint = [{}]\n",
                    theirs.join(", ")
                )
            })
            .collect();
        let directory = bed.directory.join("cluster");
        let text = HOST.replace("ENDPOINTS", &endpoints).replace("DIRECTORY", directory.to_str().unwrap());
        let text = text.replace("HERE", &number.to_string()) + &members;
        Host { number, bed, text }
    }

    fn cluster(&self, words: &[&str]) {
        let directory = self.bed.directory.join("cluster");
        let name = format!("h{}", self.number);
        let all = [&["cluster", words[0], "-d", directory.to_str().unwrap(), "--host", &name], &words[1..]].concat();
        let output = self.bed.run(&all);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Starts its daemon where its address is.
    fn start(&self) -> Daemon {
        self.start_with(&self.text)
    }

    fn start_with(&self, text: &str) -> Daemon {
        self.bed.space("host").run(|| self.bed.start(text)).unwrap()
    }

    fn agent(&self) -> Value {
        let output = self.bed.run(&["show", "agents", "--json"]);
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        reply["agents"][0].clone()
    }

    /// Whether something has gone wrong with another host since then, by `levada show cluster`.
    fn says_of(&self, other: u8, since: Instant) -> bool {
        let output = self.bed.run(&["show", "cluster", "--json"]);
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let members = reply["cluster"]["members"].as_array().cloned().unwrap_or_default();
        let other = members.into_iter().find(|member| member["name"] == format!("h{other}")).unwrap_or_default();
        other["error"].is_string()
            && other["error_ago_ns"].as_u64().is_some_and(|ago| u128::from(ago) < since.elapsed().as_nanos())
    }

    /// From now on, nothing that this host itself says reaches the other; what its endpoints say does.
    fn cut_off(&self, from: u8) {
        self.bed.ip("host", &format!("route add blackhole 192.0.2.{from}/32")).unwrap();
    }

    fn heal(&self, from: u8) {
        self.bed.ip("host", &format!("route del blackhole 192.0.2.{from}/32")).unwrap();
    }
}

/// Three hosts at a bridge, with certificates.
fn hosts() -> [Host; 3] {
    let hosts = [1, 2, 3].map(Host::new);
    let fabric = &hosts[0].bed;
    fabric.ip("fabric", "link add br0 type bridge").unwrap();
    fabric.ip("fabric", "link set br0 up").unwrap();
    for Host { number, bed, .. } in &hosts {
        let host = bed.name("host");
        fabric.ip("fabric", &format!("link add p{number} type veth peer name eth0 netns {host}")).unwrap();
        fabric.ip("fabric", &format!("link set p{number} master br0 up")).unwrap();
        bed.ip("host", &format!("address add 192.0.2.{number}/24 dev eth0")).unwrap();
        bed.ip("host", "link set eth0 up").unwrap();
    }
    let authority = hosts[0].bed.directory.join("cluster");
    let via = format!("{} cluster sign -d {}", env!("CARGO_BIN_EXE_levada"), authority.display());
    hosts[0].cluster(&["init"]);
    hosts[1].cluster(&["join", "--via", &via]);
    hosts[2].cluster(&["join", "--via", &via]);
    hosts
}

/// The network loses three in ten of what agents say, and brings what is left twice. Which are lost is told by a byte of what is encrypted, and so
/// by chance, as the kernel may have no action that drops.
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

/// What tc counts of agents' datagrams at the ports: those that were lost, and those that were doubled.
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

/// Full datagrams until dropped.
struct Flood {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// From an endpoint to that of its tenant at the first host, some in each millisecond.
    fn new(from: &Host, (tenant, vlan): (&str, u8), per_ms: u32) -> Flood {
        let over = Arc::new(AtomicBool::new(false));
        let (space, is_over) = (from.bed.space(&format!("{tenant}{}", from.number)), Arc::clone(&over));
        let thread = std::thread::spawn(move || {
            let socket = space.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap()).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                for _ in 0..per_ms {
                    // Refused while the device is away with its daemon, or nobody has answered ARP yet.
                    let _ = socket.send_to(&[0; 1400], (Ipv4Addr::new(10, 8, vlan, 1), 9));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Flood { over, thread: Some(thread) }
    }
}

/// Datagrams of all lengths that mean nothing, one in each millisecond, from an address of the network itself to two of the agents.
fn garbage(fabric: &Host) -> Flood {
    fabric.bed.ip("fabric", "address add 192.0.2.9/24 dev br0").unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let (space, is_over) = (fabric.bed.space("fabric"), Arc::clone(&over));
    let thread = std::thread::spawn(move || {
        let socket = space.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap()).unwrap();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        while !is_over.load(Ordering::Relaxed) {
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
        }
    });
    Flood { over, thread: Some(thread) }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Whether the flood is held where it is sent, by what its receiver has said.
fn is_held(hosts: &[Host; 3]) -> bool {
    let flood = mac(BLUE, 3);
    let limits = hosts[0].agent()["limits"].clone();
    let said = limits.as_array().is_some_and(|all| all.iter().any(|limit| limit["from"] == flood.as_str()));
    let own = hosts[2].agent()["limited"][0].clone();
    said && own["from"] == "s1/blue/blue3" && own["rate_bps"].as_u64().is_some_and(|rate| rate < 12_000_000)
}

/// What the first host's agent says of the flood that comes from the third: its host, and in what way it keeps to no limit.
fn named(hosts: &[Host; 3]) -> Option<(Value, Value)> {
    let limits = hosts[0].agent()["limits"].clone();
    let of_flood = limits.as_array()?.iter().find(|limit| limit["from"] == mac(BLUE, 3).as_str())?.clone();
    Some((of_flood["host"].clone(), of_flood["ignores"].clone()))
}

/// How many datagrams their agents have said.
fn said(hosts: &[Host; 3]) -> u64 {
    let of = |host: &Host| {
        let peers = host.agent()["peers"].as_array().cloned().unwrap_or_default();
        peers.iter().filter_map(|peer| peer["sent"].as_u64()).sum::<u64>()
    };
    hosts.iter().map(of).sum()
}

fn nobody_is_limited(host: &Host) -> bool {
    host.agent()["limited"].as_array().is_some_and(Vec::is_empty)
}

/// Until red has in some second nearly all that it sends, which is less than what it was promised.
fn has_its_guarantee(daemons: &[Daemon; 3]) {
    let frames = |daemon: &Daemon, name: &str, direction: &str| {
        daemon.endpoint(name)[direction]["frames"].as_u64().unwrap_or_default()
    };
    soon("red has its guarantee", || {
        let counts = || (frames(&daemons[1], "red2", "egress"), frames(&daemons[0], "red1", "ingress"));
        let before = counts();
        std::thread::sleep(Duration::from_secs(1));
        let after = counts();
        let (sent, came) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
        sent > 100 && came * 100 >= sent * 95
    });
}

#[test]
fn guarantees_return_and_limits_end_when_daemons_die_and_hosts_are_cut_off() {
    let Some(_turn) = turn("guarantees_return_and_limits_end_when_daemons_die_and_hosts_are_cut_off") else { return };
    let hosts = hosts();
    let mut daemons = [0, 1, 2].map(|n: usize| hosts[n].start());
    let victim = Flood::new(&hosts[1], RED, 1);
    let flood = Flood::new(&hosts[2], BLUE, 5);
    soon("the flood is held", || is_held(&hosts));
    has_its_guarantee(&daemons);

    // Who has asked for the limit dies: it ends, and is asked for again by the next process.
    assert!(!daemons[0].end(Signal::KILL).success());
    soon("nobody is limited for somebody dead", || nobody_is_limited(&hosts[2]) && nobody_is_limited(&hosts[1]));
    daemons[0] = hosts[0].start();
    soon("the flood is held for the new process", || is_held(&hosts));
    has_its_guarantee(&daemons);

    // Who is to hold it dies.
    assert!(!daemons[2].end(Signal::KILL).success());
    daemons[2] = hosts[2].start();
    soon("the flood is held by the new process", || is_held(&hosts));
    has_its_guarantee(&daemons);

    // The two do not hear each other: the limit ends, and red keeps what it was promised all the same, by the receiver's own schedule.
    let cut = Instant::now();
    hosts[0].cut_off(3);
    hosts[2].cut_off(1);
    soon("nobody is limited by what is out of reach", || nobody_is_limited(&hosts[2]));
    has_its_guarantee(&daemons);
    soon("it is said", || hosts[0].says_of(3, cut));
    hosts[0].heal(3);
    hosts[2].heal(1);
    soon("the flood is held again", || is_held(&hosts));
    has_its_guarantee(&daemons);

    // The endpoint that the flood goes to leaves: what was asked for its sake ends, though the flood goes on.
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
    let hosts = hosts();
    distort(&hosts);
    let _garbage = garbage(&hosts[0]);
    let mut daemons = [0, 1, 2].map(|n: usize| hosts[n].start());
    let victim = Flood::new(&hosts[1], RED, 1);
    let flood = Flood::new(&hosts[2], BLUE, 5);
    soon("the flood is held", || is_held(&hosts));
    has_its_guarantee(&daemons);

    assert!(!daemons[0].end(Signal::KILL).success());
    soon("nobody is limited for somebody dead", || nobody_is_limited(&hosts[2]));
    daemons[0] = hosts[0].start();
    soon("the flood is held for the new process", || is_held(&hosts));
    has_its_guarantee(&daemons);

    drop((victim, flood));
    soon("nobody is limited any more", || hosts.iter().all(nobody_is_limited));
    let (lost, doubled) = distorted(&hosts);
    assert!(lost > 10 && doubled > 10, "{lost} lost, {doubled} doubled: the network was in order");
}

#[test]
fn who_keeps_to_no_limit_is_named_and_takes_nothing_from_others() {
    let Some(_turn) = turn("who_keeps_to_no_limit_is_named_and_takes_nothing_from_others") else { return };
    let hosts = hosts();
    // The third host is a member, as the first one knows, but has no agent, so nobody holds what it sends.
    let (deaf, _) = hosts[2].text.split_once("[cluster]").unwrap();
    let mut daemons = [hosts[0].start(), hosts[1].start(), hosts[2].start_with(deaf)];
    let _victim = Flood::new(&hosts[1], RED, 1);
    let _flood = Flood::new(&hosts[2], BLUE, 5);
    soon("it is named", || named(&hosts) == Some(("h3".into(), "limit".into())));
    let shown = String::from_utf8(hosts[0].bed.run(&["show", "agents"]).stdout).unwrap();
    assert!(shown.contains("does not keep to it"), "{shown}");
    has_its_guarantee(&daemons);

    // It hears, and is held where it is sent.
    assert!(!daemons[2].end(Signal::KILL).success());
    daemons[2] = hosts[2].start();
    soon("it is held, and named no more", || is_held(&hosts) && named(&hosts) == Some(("h3".into(), Value::Null)));
    has_its_guarantee(&daemons);

    // Nobody knows where it is.
    assert!(!daemons[0].end(Signal::KILL).success());
    let unlisted = hosts[0].text.replace(&mac(BLUE, 3), "02:00:00:00:ff:ff");
    daemons[0] = hosts[0].start_with(&unlisted);
    soon("it is named all the same", || named(&hosts) == Some((Value::Null, "unreachable".into())));
    has_its_guarantee(&daemons);
}
