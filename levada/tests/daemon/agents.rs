//! Congestion agents of a running daemon whose switches are the hosts: a flood from one host is
//! held there for the sake of another's guarantee.

use crate::testbed::{Bed, soon, turn};
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Three hosts around a fabric. Both tenants send to h1.
const HOSTS: &str = r#"
[daemon]
name = "NAME"
[cluster]
host = "lab"
#CONTROLLER
[[switch]]
name = "h1"
[switch.uplink]
port = "link://w1/a"
rate = "20 Mbit/s"
[[switch.tenant]]
name = "red"
vlan = 10
guarantee = "14 Mbit/s"
[[switch.tenant.endpoint]]
name = "red1"
port = "tap://tap0"
netns = "NS-red1"
mac = "02:00:00:00:08:01"
address = "10.8.0.1/24"
ipv6 = false
[[switch.tenant]]
name = "blue"
vlan = 20
guarantee = "5 Mbit/s"
[[switch.tenant.endpoint]]
name = "blue1"
port = "tap://tap0"
netns = "NS-blue1"
mac = "02:00:00:00:08:11"
address = "10.8.0.1/24"
ipv6 = false
[[switch]]
name = "h2"
[switch.uplink]
port = "link://w2/a"
rate = "20 Mbit/s"
[[switch.tenant]]
name = "red"
vlan = 10
[[switch.tenant.endpoint]]
name = "red2"
port = "tap://tap0"
netns = "NS-red2"
mac = "02:00:00:00:08:02"
address = "10.8.0.2/24"
ipv6 = false
[[switch]]
name = "h3"
[switch.uplink]
port = "link://w3/a"
rate = "20 Mbit/s"
[[switch.tenant]]
name = "blue"
vlan = 20
[[switch.tenant.endpoint]]
name = "blue3"
port = "tap://tap0"
netns = "NS-blue3"
mac = "02:00:00:00:08:13"
address = "10.8.0.3/24"
ipv6 = false
[[switch]]
name = "fabric"
[[switch.tenant]]
name = "fabric"
[[switch.tenant.endpoint]]
name = "p1"
port = "link://w1/b"
trunk = true
[[switch.tenant.endpoint]]
name = "p2"
port = "link://w2/b"
trunk = true
[[switch.tenant.endpoint]]
name = "p3"
port = "link://w3/b"
trunk = true
[[link]]
name = "w1"
rate = "20 Mbit/s"
[[link]]
name = "w2"
rate = "20 Mbit/s"
[[link]]
name = "w3"
rate = "20 Mbit/s"
"#;

const NAMES: [&str; 4] = ["red1", "blue1", "red2", "blue3"];
const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
const BLUE3: &str = "02:00:00:00:08:13";

fn hosts(controller: &str) -> String {
    HOSTS.replace("#CONTROLLER\n", &format!("controller = \"{controller}\"\n"))
}

/// The same hosts, whose tenants reach each other through tunnels.
fn in_tunnels(text: &str) -> String {
    (1..=3).fold(text.replace("vlan =", "vni ="), |text, host| {
        let port = format!("port = \"link://w{host}/a\"\n");
        text.replace(&port, &format!("{port}vtep = \"192.0.2.{host}\"\n"))
    })
}

/// Datagrams at a rate until dropped.
pub struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// So many datagrams of 1400 bytes each millisecond, to 10.8.0.1.
    pub fn new(bed: &Bed, space: &str, per_ms: u32) -> Flood {
        Flood::to(bed, space, per_ms, RECEIVER)
    }

    fn to(bed: &Bed, space: &str, per_ms: u32, receiver: Ipv4Addr) -> Flood {
        let socket = bed.socket(space, (Ipv4Addr::UNSPECIFIED, 0));
        Flood::by(socket, per_ms, (receiver, 9).into())
    }

    fn by(socket: UdpSocket, per_ms: u32, receiver: SocketAddr) -> Flood {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                for _ in 0..per_ms {
                    // Refused while nobody has answered ARP yet, or the queue is full.
                    let _ = socket.send_to(&[0; 1400], receiver);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Flood { stop, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn agent(bed: &Bed, host: &str) -> Value {
    let output = bed.run(&["show", "agents", "--json"]);
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let all = reply["agents"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|agent| agent["host"] == format!("lab/{host}")).unwrap_or_default()
}

/// Whether the flood is limited to what its receiver can take, at both ends.
fn is_held(bed: &Bed) -> bool {
    let (receiver, sender) = (agent(bed, "h1"), agent(bed, "h3"));
    let limit = receiver["limits"].as_array().and_then(|all| all.iter().find(|limit| limit["from"] == BLUE3).cloned());
    let own = &sender["limited"][0];
    limit.is_some_and(|limit| limit["rate_bps"].as_u64().unwrap() < 12_000_000)
        && own["from"] == "h3/blue/blue3"
        && own["rate_bps"].as_u64().unwrap() < 12_000_000
        && agent(bed, "h2")["limited"].as_array().is_some_and(|all| all.iter().all(within_guarantee))
}

/// A limit that leaves red what it was promised.
fn within_guarantee(limit: &Value) -> bool {
    limit["rate_bps"].as_u64().unwrap() >= 14_000_000
}

fn nobody_is_limited(bed: &Bed) -> bool {
    ["h1", "h2", "h3"].iter().all(|host| {
        let agent = agent(bed, host);
        [&agent["limits"], &agent["limited"]].iter().all(|list| list.as_array().is_some_and(Vec::is_empty))
    })
}

#[test]
fn a_flood_from_another_host_is_held_there_and_freed_when_it_is_over() {
    let Some(_turn) = turn("a_flood_from_another_host_is_held_there_and_freed_when_it_is_over") else { return };
    let bed = Bed::new(&NAMES);
    let daemon = bed.start(&hosts("rate"));
    let victim = Flood::new(&bed, "red2", 1);
    let flood = Flood::new(&bed, "blue3", 5);
    soon("the flood is held", || is_held(&bed));
    let text = String::from_utf8(bed.run(&["show", "agents"]).stdout).unwrap();
    assert!(text.contains("h1/blue/blue1") && text.contains("asked by"), "{text}");
    // What is beyond the limit is dropped where it is sent, and said to be.
    soon("drops are named", || daemon.endpoint("blue3")["drops"]["pair-limit"].as_u64().unwrap_or(0) > 0);
    drop(flood);
    drop(victim);
    soon("nobody is limited any more", || nobody_is_limited(&bed));
}

/// The same in tunnels: what arrives counts for the sender inside.
#[test]
fn a_flood_in_a_tunnel_is_held_where_it_is_sent() {
    let Some(_turn) = turn("a_flood_in_a_tunnel_is_held_where_it_is_sent") else { return };
    let bed = Bed::new(&NAMES);
    let daemon = bed.start(&in_tunnels(&hosts("rate")));
    let _victim = Flood::new(&bed, "red2", 1);
    let _flood = Flood::new(&bed, "blue3", 5);
    soon("the flood is held", || is_held(&bed));
    soon("drops are named", || daemon.endpoint("blue3")["drops"]["pair-limit"].as_u64().unwrap_or(0) > 0);
    let reply = bed.run(&["show", "tunnels"]);
    assert!(String::from_utf8_lossy(&reply.stdout).contains("over link://w1/a (up"));
}

/// A service has no endpoint's address: what is sent to it is held all the same, for the backend
/// that receives it, in a VLAN and in a tunnel.
#[test]
fn a_flood_toward_a_service_is_held_where_it_is_sent() {
    let Some(_turn) = turn("a_flood_toward_a_service_is_held_where_it_is_sent") else { return };
    let service = "[[switch.tenant.service]]\nname = \"sink\"\naddress = \"udp://10.8.0.100:9\"\n\
                   backend = [{ name = \"blue1\" }]\n[[switch]]\nname = \"h2\"\n";
    let in_vlan = hosts("rate").replace("[[switch]]\nname = \"h2\"\n", service);
    for text in [in_vlan.clone(), in_tunnels(&in_vlan)] {
        let bed = Bed::new(&NAMES);
        let daemon = bed.start(&text);
        let victim = Flood::new(&bed, "red2", 1);
        let flood = Flood::to(&bed, "blue3", 5, Ipv4Addr::new(10, 8, 0, 100));
        soon("the flood is held", || is_held(&bed));
        // Where its limit is one toward the service.
        let before = || daemon.endpoint("blue3")["drops"]["pair-limit"].as_u64().unwrap_or(0);
        soon("drops are named", || before() > 0);
        let mac = daemon.show_part("services")["services"][0]["mac"].clone();
        let own = agent(&bed, "h3")["limited"].as_array().cloned().unwrap_or_default();
        assert!(own.iter().any(|limit| limit["to"] == mac), "{own:?}");
        drop(flood);
        drop(victim);
        soon("nobody is limited any more", || nobody_is_limited(&bed));
    }
}

/// And what a service answers is held where its backend sends it.
#[test]
fn a_flood_of_a_service_is_held_where_it_is_sent() {
    let Some(_turn) = turn("a_flood_of_a_service_is_held_where_it_is_sent") else { return };
    let service = "[[switch.tenant.service]]\nname = \"source\"\naddress = \"udp://10.8.0.100:9\"\n\
                   backend = [{ name = \"blue3\" }]\n[[switch]]\nname = \"fabric\"\n";
    let in_vlan = hosts("rate").replace("[[switch]]\nname = \"fabric\"\n", service);
    for text in [in_vlan.clone(), in_tunnels(&in_vlan)] {
        let bed = Bed::new(&NAMES);
        let daemon = bed.start(&text);
        let _victim = Flood::new(&bed, "red2", 1);
        let at = |space: &str, port: u16| {
            let socket = bed.socket(space, (Ipv4Addr::UNSPECIFIED, port));
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            socket
        };
        let (server, client) = (at("blue3", 9), at("blue1", 0));
        let mut asked = None;
        soon("the service is asked", || {
            let _ = client.send_to(b"more", (Ipv4Addr::new(10, 8, 0, 100), 9));
            asked = server.recv_from(&mut [0; 4]).ok().map(|(_, from)| from);
            asked.is_some()
        });
        let _flood = Flood::by(server, 5, asked.unwrap());
        soon("the service answers", || {
            client.recv_from(&mut [0; 1400]).is_ok_and(|(_, from)| from.to_string() == "10.8.0.100:9")
        });
        soon("the flood is held", || is_held(&bed));
        soon("drops are named", || daemon.endpoint("blue3")["drops"]["pair-limit"].as_u64().unwrap_or(0) > 0);
    }
}

#[test]
fn the_published_controller_halves_and_recovers() {
    let Some(_turn) = turn("the_published_controller_halves_and_recovers") else { return };
    let bed = Bed::new(&NAMES);
    let _daemon = bed.start(&hosts("gatekeeper"));
    let victim = Flood::new(&bed, "red2", 1);
    let flood = Flood::new(&bed, "blue3", 5);
    soon("a notification has halved the sender's limit", || {
        agent(&bed, "h1")["notified"].as_u64().unwrap_or(0) > 0 && agent(&bed, "h3")["limited"][0]["to"] == "everyone"
    });
    drop(flood);
    drop(victim);
    soon("the limit has grown back", || nobody_is_limited(&bed));
}

#[test]
fn limits_outlive_a_takeover_and_end_with_the_cluster() {
    let Some(_turn) = turn("limits_outlive_a_takeover_and_end_with_the_cluster") else { return };
    let bed = Bed::new(&NAMES);
    let mut old = bed.start(&hosts("rate"));
    let _victim = Flood::new(&bed, "red2", 1);
    let _flood = Flood::new(&bed, "blue3", 5);
    soon("the flood is held", || is_held(&bed));
    let daemon = bed.take_over(&hosts("rate"));
    assert!(old.wait().success());
    soon("the flood is held by the new process", || is_held(&bed));
    // Without a cluster nobody speaks for a limit.
    bed.configuration(&HOSTS.replace("[cluster]\nhost = \"lab\"\n#CONTROLLER\n", ""));
    daemon.signal(rustix::process::Signal::HUP);
    soon("there are no agents", || {
        let output = bed.run(&["show", "agents"]);
        String::from_utf8_lossy(&output.stdout).contains("no agents")
    });
    let before = daemon.endpoint("blue3")["drops"]["pair-limit"].as_u64().unwrap_or(0);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(daemon.endpoint("blue3")["drops"]["pair-limit"].as_u64().unwrap_or(0), before, "the limit is lifted");
}
