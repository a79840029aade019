//! Hosts around a fabric, with a daemon each, whose agents trust each other by certificates and
//! speak over the network between them; and floods from one to another.

use crate::testbed::{Bed, Daemon, soon};
use serde_json::Value;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What all have in common; `ENDPOINTS` and `MEMBERS` follow.
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
/// A tenant and its VLAN.
pub type Tenant = (&'static str, u8);
/// An endpoint, in a namespace of its name: its tenant, and the number of its host.
pub type TestEndpoint = (Tenant, u8);
/// It is promised 14 Mbit/s, the other 4.
pub const RED: Tenant = ("red", 10);
pub const BLUE: Tenant = ("blue", 20);
/// The endpoints of three hosts, of which the first receives.
pub const THREE: [TestEndpoint; 4] = [(RED, 1), (BLUE, 1), (RED, 2), (BLUE, 3)];

/// One host.
pub struct Host {
    pub number: u8,
    pub bed: Bed,
    /// Its configuration, until it is started.
    pub text: String,
}

pub fn mac((_, vlan): Tenant, host: u8) -> String {
    format!("02:00:00:00:{vlan:02x}:{host:02x}")
}

impl Host {
    /// Host `number` of so many.
    fn new(number: u8, count: u8, places: &[TestEndpoint]) -> Host {
        let own = places.iter().filter(|(_, host)| *host == number);
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
        let members: String = (1..=count)
            .filter(|member| *member != number)
            .map(|member| {
                let theirs = places.iter().filter(|(_, host)| *host == member);
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
    pub fn start(&self) -> Daemon {
        self.start_with(|_| {})
    }

    /// The same with another command.
    pub fn start_with(&self, change: impl FnOnce(&mut Command) + Send) -> Daemon {
        self.bed.space("host").run(|| self.bed.start_with(&self.text, change)).unwrap()
    }

    /// Runs the program on it.
    pub fn run(&self, words: &[&str]) -> String {
        let output = self.bed.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn agent(&self) -> Value {
        let output = self.bed.run(&["show", "agents", "--json"]);
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        reply["agents"][0].clone()
    }

    /// Whether something has gone wrong with another host since then, by `levada show cluster`.
    pub fn says_of(&self, other: u8, since: Instant) -> bool {
        let output = self.bed.run(&["show", "cluster", "--json"]);
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let members = reply["cluster"]["members"].as_array().cloned().unwrap_or_default();
        let other = members.into_iter().find(|member| member["name"] == format!("h{other}")).unwrap_or_default();
        other["error"].is_string()
            && other["error_ago_ns"].as_u64().is_some_and(|ago| u128::from(ago) < since.elapsed().as_nanos())
    }

    /// From now on, nothing that this host itself says reaches the other; what its endpoints say
    /// does.
    pub fn cut_off(&self, from: u8) {
        self.bed.ip("host", &format!("route add blackhole 192.0.2.{from}/32")).unwrap();
    }

    pub fn heal(&self, from: u8) {
        self.bed.ip("host", &format!("route del blackhole 192.0.2.{from}/32")).unwrap();
    }
}

/// Hosts at a bridge, with certificates. The bridge is in the first's namespace `fabric`, and port
/// `pN` leads to host N.
pub fn hosts<const N: usize>(places: &[TestEndpoint]) -> [Host; N] {
    let hosts: [Host; N] = std::array::from_fn(|n| Host::new(n as u8 + 1, N as u8, places));
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
    hosts[1..].iter().for_each(|host| host.cluster(&["join", "--via", &via]));
    hosts
}

/// The network's ports toward these hosts are as fast as their uplinks and hold 64 KiB; what is
/// more is lost there.
pub fn narrow(hosts: &[Host], numbers: &[u8]) {
    for number in numbers {
        let queue = format!("qdisc add dev p{number} root tbf rate 20mbit burst 16k limit 64k");
        hosts[0].bed.tool("tc", "fabric", &queue).unwrap();
    }
}

/// A thread that does something again and again until this is dropped.
pub struct Again {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Again {
    pub fn new(mut turn: impl FnMut() + Send + 'static) -> Again {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                turn();
            }
        });
        Again { over, thread: Some(thread) }
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// For how long a flood may be late and still make up for it, in milliseconds.
const LATE_MS: u32 = 20;

/// Full datagrams until dropped.
pub struct Flood {
    sent: Arc<AtomicU64>,
    _thread: Again,
}

impl Flood {
    /// From an endpoint to that of its tenant at the first host, some in each millisecond.
    pub fn new(from: &Host, tenant: Tenant, per_ms: u32) -> Flood {
        Flood::to(from, tenant, 1, per_ms)
    }

    /// To that of a host.
    pub fn to(from: &Host, (tenant, vlan): Tenant, to: u8, per_ms: u32) -> Flood {
        let socket = from.bed.socket(&format!("{tenant}{}", from.number), (Ipv4Addr::UNSPECIFIED, 0));
        let sent = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&sent);
        let (mut begin, mut turns) = (Instant::now(), 0);
        let thread = Again::new(move || {
            // By the clock, so that a busy machine makes it uneven and not slower; who was late for
            // too long begins anew.
            let due = begin.elapsed().as_millis() as u32;
            if due - turns > LATE_MS {
                (begin, turns) = (Instant::now(), 0);
                return;
            }
            for _ in 0..(due - turns) * per_ms {
                // Refused while the device is away with its daemon, or nobody has answered ARP yet.
                let taken = socket.send_to(&[0; 1400], (Ipv4Addr::new(10, 8, vlan, to), 9));
                count.fetch_add(u64::from(taken.is_ok()), Ordering::Relaxed);
            }
            turns = due;
            std::thread::sleep(Duration::from_millis(1));
        });
        Flood { sent, _thread: thread }
    }

    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// When the datagrams of floods came to an endpoint; it is there as long as the endpoint's device.
pub struct Arrivals {
    came: Arc<Mutex<Vec<Instant>>>,
    _thread: Again,
}

impl Arrivals {
    /// At the endpoint of a host, in the namespace of this name.
    pub fn new(at: &Host, space: &str) -> Arrivals {
        let socket = at.bed.socket(space, (Ipv4Addr::UNSPECIFIED, 9));
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let came = Arc::new(Mutex::new(Vec::new()));
        let (all, mut buffer) = (Arc::clone(&came), [0; 2048]);
        let thread = Again::new(move || {
            if socket.recv(&mut buffer).is_ok() {
                all.lock().unwrap().push(Instant::now());
            }
        });
        Arrivals { came, _thread: thread }
    }

    /// How many came from then on until then.
    pub fn between(&self, from: Instant, to: Instant) -> u64 {
        self.came.lock().unwrap().iter().filter(|&at| (from..to).contains(at)).count() as u64
    }
}

/// Whether the flood is held where it is sent, by what its receiver has said.
pub fn is_held(receiver: &Host, sender: &Host) -> bool {
    let of = |host: &Host, list: &str| host.agent()[list].as_array().cloned().unwrap_or_default();
    let (from, to) = (mac(BLUE, sender.number), mac(BLUE, receiver.number));
    let name = format!("/blue{}", sender.number);
    let is_of = |limit: &Value| limit["from"].as_str().is_some_and(|from| from.ends_with(&name)) && limit["to"] == to;
    let is_low = |limit: &Value| limit["rate_bps"].as_u64().is_some_and(|rate| rate < 12_000_000);
    of(receiver, "limits").iter().any(|limit| limit["from"] == from.as_str())
        && of(sender, "limited").iter().any(|own| is_of(own) && is_low(own))
}

/// What a host holds back for others' sake.
pub fn limited(host: &Host) -> Vec<Value> {
    host.agent()["limited"].as_array().cloned().unwrap_or_default()
}

/// How many datagrams their agents have said.
pub fn said(hosts: &[Host]) -> u64 {
    let of = |host: &Host| {
        let peers = host.agent()["peers"].as_array().cloned().unwrap_or_default();
        peers.iter().filter_map(|peer| peer["sent"].as_u64()).sum::<u64>()
    };
    hosts.iter().map(of).sum()
}

pub fn nobody_is_limited(host: &Host) -> bool {
    host.agent()["limited"].as_array().is_some_and(Vec::is_empty)
}

/// Until red of the first host has in some second nearly all that the second host's sends, which is
/// less than what it was promised.
pub fn has_its_guarantee(daemons: &[Daemon]) {
    let count = |daemon: &Daemon, name: &str, direction: &str| {
        let (endpoint, at) = daemon.endpoint_at(name);
        (endpoint[direction]["frames"].as_u64().unwrap_or_default(), at)
    };
    let counts = || [count(&daemons[1], "red2", "egress"), count(&daemons[0], "red1", "ingress")];
    soon("red has its guarantee", || {
        let before = counts();
        std::thread::sleep(Duration::from_secs(1));
        let after = counts();
        let per_s = |n: usize| {
            let ((from, began), (to, ended)) = (before[n], after[n]);
            to.saturating_sub(from) as f64 / ended.saturating_sub(began).as_secs_f64()
        };
        let (sent, came) = (per_s(0), per_s(1));
        sent > 100.0 && came >= 0.95 * sent
    });
}
