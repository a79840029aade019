//! What the agents of hosts say to each other passes when the link is full of what a guest and the
//! host itself send, and when the host's own queue is full of what arrives. The test speaks in
//! place of the agents, at their address and port.

use crate::testbed::{Bed, Daemon, PATIENCE, turn};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A host whose interface is taken; nobody has given its endpoint a guarantee, and the guest has
/// nearly all of the link.
const HOST: &str = r#"
[daemon]
name = "NAME"
[[switch]]
name = "s1"
[switch.uplink]
port = "packet://eth0"
netns = "NS-host"
rate = "20 Mbit/s"
[[switch.tenant]]
name = "ops"
vlan = "untagged"
[[switch.tenant.endpoint]]
name = "host"
port = "host://eth0"
netns = "NS-host"
[[switch.tenant]]
name = "red"
vlan = "untagged"
guarantee = "19 Mbit/s"
[[switch.tenant.endpoint]]
name = "red1"
port = "tap://tap0"
netns = "NS-red"
mac = "02:00:00:00:08:01"
address = "192.0.2.3/24"
ipv6 = false
[cluster]
host = "host1"
listen = "192.0.2.1:7370"
directory = "/nonexistent"
[[cluster.member]]
name = "host2"
address = "192.0.2.2:7370"
"#;

const HERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const AGENTS: u16 = 7370;
/// Messages of one look, and between two of them: 70 kbit/s, a third of what the agents may use of
/// this link.
const MESSAGES: u8 = 100;
const BETWEEN: Duration = Duration::from_millis(20);

/// Full datagrams to port 9 until it is dropped: some 45 Mbit/s.
struct Flood {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    fn new(bed: &Bed, space: &str, to: Ipv4Addr) -> Flood {
        let over = Arc::new(AtomicBool::new(false));
        let socket = bed.socket(space, (Ipv4Addr::UNSPECIFIED, 0));
        let is_over = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                for _ in 0..4 {
                    // Refused where nobody listens, or while nobody has answered ARP yet.
                    let _ = socket.send_to(&[0; 1400], (to, 9));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Flood { over, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Two ends of a conversation at the port of agents.
struct AgentTraffic {
    from: UdpSocket,
    to: UdpSocket,
    at: SocketAddrV4,
}

impl AgentTraffic {
    fn new([from, to]: [(&Bed, &str, Ipv4Addr); 2]) -> AgentTraffic {
        let [at, from_at] = [to, from].map(|(_, _, address)| SocketAddrV4::new(address, AGENTS));
        let (from, to) = (from.0.socket(from.1, from_at), to.0.socket(to.1, at));
        to.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        AgentTraffic { from, to, at }
    }

    fn say(&self, number: u8) {
        let _ = self.from.send_to(&[number; 100], self.at);
    }

    /// How many different ones have come.
    fn heard(&self) -> usize {
        let (mut heard, mut buffer) = ([false; MESSAGES as usize], [0; 128]);
        while self.to.recv(&mut buffer).is_ok() {
            heard[usize::from(buffer[0])] = true;
        }
        heard.into_iter().filter(|heard| *heard).count()
    }
}

/// Frames of the host's endpoint that were dropped, each direction's.
fn dropped(daemon: &Daemon) -> u64 {
    let drops = daemon.endpoint("host")["drops"].clone();
    drops.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
}

/// Until what agents say passes, while the host's endpoint loses more frames than they are. That
/// others of the endpoint's lose frames is shown by count: flow queues let a quiet flow pass too.
fn compare(what: &str, daemon: &Daemon, ends: [(&Bed, &str, Ipv4Addr); 2]) {
    let begin = Instant::now();
    loop {
        let (talk, before) = (AgentTraffic::new(ends), dropped(daemon));
        for number in 0..MESSAGES {
            talk.say(number);
            std::thread::sleep(BETWEEN);
        }
        let lost = dropped(daemon) - before;
        let heard = talk.heard();
        if heard >= 98 && lost > 10 * u64::from(MESSAGES) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: of {MESSAGES}, {heard} came, and others lost {lost}");
    }
}

#[test]
fn what_agents_say_passes_through_a_full_link() {
    let Some(_turn) = turn("what_agents_say_passes_through_a_full_link") else { return };
    let bed = Bed::new(&["host", "red", "far"]);
    bed.ip("host", &format!("link add eth0 type veth peer name eth0 netns {}", bed.name("far"))).unwrap();
    for (space, address) in [("host", HERE), ("far", THERE)] {
        bed.ip(space, &format!("address add {address}/24 dev eth0")).unwrap();
        bed.ip(space, "link set eth0 up").unwrap();
    }
    let daemon = bed.start(HOST);
    // 1 % of the link, without having been given one.
    assert_eq!(daemon.endpoint("host")["egress"]["guarantee_bps"], 200_000, "{}", daemon.endpoint("host"));
    let _sinks = [("host", HERE), ("far", THERE)].map(|(space, at)| bed.socket(space, (at, 9)));
    let (here, there) = ((&bed, "host", HERE), (&bed, "far", THERE));
    {
        let _of_guest = Flood::new(&bed, "red", THERE);
        let _of_host = Flood::new(&bed, "host", THERE);
        compare("to another host", &daemon, [here, there]);
    }
    let _from_there = [(); 2].map(|()| Flood::new(&bed, "far", HERE));
    compare("from another host", &daemon, [there, here]);
}
