//! `packet://` and `host://`: an operator's session over an interface that the switch takes, and
//! guarantees behind it. A veth is the NIC, its other end a remote host on the wire.

use crate::management::say;
use crate::testbed::{Bed, Daemon, bpf_turn, soon, turn};
use ports::packet::{Hooks, hooks};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const HOST: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
pub const REMOTE: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 9);
pub const B: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 12);

pub const NIC: &str = "02:00:00:00:08:01";

/// A slow link, so that a test on a loaded machine fills it.
pub const TAKEN: &str = r#"
[daemon]
name = "NAME"

[[switch]]
name = "s1"

[switch.uplink]
port = "packet://up0"
netns = "NS-host"
rate = "40 Mbit/s"

[[switch.tenant]]
name = "ops"
vlan = "untagged"

[[switch.tenant.endpoint]]
name = "host"
port = "host://up0"
netns = "NS-host"
guarantee = "8 Mbit/s"

[[switch.tenant]]
name = "red"
vlan = "untagged"

[[switch.tenant.endpoint]]
name = "a"
port = "tap://tap0"
netns = "NS-a"
mac = "02:00:00:00:08:0a"
address = "10.8.0.11/24"
guarantee = "20 Mbit/s"
ipv6 = false

[[switch.tenant.endpoint]]
name = "b"
port = "tap://tap0"
netns = "NS-b"
mac = "02:00:00:00:08:0b"
address = "10.8.0.12/24"
guarantee = "8 Mbit/s"
ipv6 = false
"#;

/// The host with its NIC `up0`, a remote host on the same wire, and two tenants' namespaces.
pub fn bed() -> Bed {
    let bed = Bed::new(&["host", "remote", "a", "b"]);
    for space in ["host", "remote"] {
        bed.space(space).run(|| std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")).unwrap().ok();
    }
    plug_in(&bed);
    bed
}

/// Makes the NIC, with the address it always has, and its wire.
pub fn plug_in(bed: &Bed) {
    let far = format!("peer name eth0 netns {}", bed.name("remote"));
    bed.ip("host", &format!("link add name up0 address {NIC} type veth {far}")).unwrap();
    for (space, device, address) in [("host", "up0", HOST), ("remote", "eth0", REMOTE)] {
        bed.ip(space, &format!("addr add {address}/24 dev {device}")).unwrap();
        bed.ip(space, &format!("link set dev {device} up")).unwrap();
    }
}

fn index(bed: &Bed) -> u32 {
    bed.ip("host", "-o link show dev up0").unwrap().split(':').next().unwrap().trim().parse().unwrap()
}

pub fn hooks_of(bed: &Bed) -> Hooks {
    let index = index(bed);
    bed.space("host").run(|| hooks(index)).unwrap().unwrap()
}

/// The interface is as it was: no program, no device of ours, not promiscuous, and its owner's
/// address.
pub fn assert_given_back(bed: &Bed) {
    assert_eq!(hooks_of(bed), Hooks { ingress: 0, egress: 0 });
    let links = bed.ip("host", "-d link show").unwrap();
    assert!(!links.contains("levada"), "{links}");
    assert!(bed.ip("host", "-d link show dev up0").unwrap().contains("promiscuity 0"), "{links}");
    assert!(bed.ip("host", "addr show dev up0").unwrap().contains("10.8.0.1/24"));
    ping(bed);
}

pub fn ping(bed: &Bed) {
    let ping = || std::process::Command::new("ping").args(["-c", "2", "-i", "0.1", "-W", "5", "10.8.0.1"]).output();
    let output = bed.space("remote").run(ping).unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn end(daemon: &mut Daemon, signal: Signal) {
    daemon.end(signal);
}

/// A session as an operator has it: a few bytes to the host and back every 20 ms, over one
/// connection and as datagrams.
pub struct Session {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    tcp: Arc<Gaps>,
    udp: Arc<Gaps>,
}

/// When answers came.
#[derive(Default)]
struct Gaps {
    count: AtomicU64,
    last: Mutex<Option<Instant>>,
    worst: Mutex<Duration>,
}

impl Gaps {
    fn answer(&self) {
        let now = Instant::now();
        let mut worst = self.worst.lock().unwrap();
        if let Some(before) = self.last.lock().unwrap().replace(now) {
            *worst = worst.max(now - before);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// The longest time between two answers since the last call.
    fn take(&self) -> Duration {
        std::mem::take(&mut self.worst.lock().unwrap())
    }
}

const TICK: Duration = Duration::from_millis(20);

impl Session {
    pub fn begin(bed: &Bed) -> Session {
        let listener = bed.listener("host", (HOST, 22));
        let socket = bed.socket("host", (HOST, 22));
        let connect =
            || TcpStream::connect_timeout(&SocketAddrV4::new(HOST, 22).into(), Duration::from_secs(10)).unwrap();
        let mut client = bed.space("remote").run(connect).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let probe = bed.socket("remote", (REMOTE, 0));
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        probe.set_read_timeout(Some(TICK)).unwrap();
        socket.set_read_timeout(Some(TICK)).unwrap();
        let (tcp, udp) = (Arc::<Gaps>::default(), Arc::<Gaps>::default());
        let stop = Arc::new(AtomicBool::new(false));
        let threads = vec![
            std::thread::spawn(move || {
                let mut bytes = [0; 8];
                while server.read_exact(&mut bytes).is_ok() && server.write_all(&bytes).is_ok() {}
            }),
            std::thread::spawn({
                let (stop, tcp) = (Arc::clone(&stop), Arc::clone(&tcp));
                move || {
                    for number in 0u64.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let mut bytes = [0; 8];
                        client.write_all(&number.to_be_bytes()).expect("the connection lives");
                        client.read_exact(&mut bytes).expect("the connection lives");
                        assert_eq!(u64::from_be_bytes(bytes), number);
                        tcp.answer();
                        std::thread::sleep(TICK);
                    }
                }
            }),
            std::thread::spawn({
                let (stop, udp) = (Arc::clone(&stop), Arc::clone(&udp));
                move || {
                    let mut bytes = [0; 8];
                    while !stop.load(Ordering::Relaxed) {
                        let _ = probe.send_to(&[1; 8], (HOST, 22));
                        if let Ok((length, from)) = socket.recv_from(&mut bytes) {
                            let _ = socket.send_to(&bytes[..length], from);
                            if probe.recv(&mut bytes).is_ok() {
                                udp.answer();
                            }
                        }
                        std::thread::sleep(TICK);
                    }
                }
            }),
        ];
        Session { stop, threads, tcp, udp }
    }

    /// Waits until both were answered `count` times more, and tells the longest gaps since the last
    /// step: for how long a connection that lives stands still, TCP's waits decide, which double.
    pub fn step(&self, what: &str, count: u64) -> [Duration; 2] {
        let counts = || [&self.tcp, &self.udp].map(|gaps| gaps.count.load(Ordering::Relaxed));
        let before = counts();
        soon(what, || {
            assert!(!self.threads[1].is_finished(), "{what}: the connection was lost");
            std::iter::zip(counts(), before).all(|(now, before)| now >= before + count)
        });
        let gaps = [self.tcp.take(), self.udp.take()];
        println!("{what}: longest gap {:?} (TCP), {:?} (datagrams)", gaps[0], gaps[1]);
        gaps
    }

    pub fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

#[test]
fn a_session_over_the_taken_interface_survives_start_kill_and_restart() {
    let Some(_turn) = bpf_turn("a_session_over_the_taken_interface_survives_start_kill_and_restart") else { return };
    let bed = bed();
    let session = Session::begin(&bed);
    session.step("without a switch", 25);
    let mut daemon = bed.start(TAKEN);
    session.step("start", 50);
    assert_eq!(hooks_of(&bed), Hooks { ingress: 1, egress: 1 });
    let switched = |daemon: &Daemon| daemon.endpoint("host")["egress"]["frames"].as_u64().unwrap();
    assert!(switched(&daemon) > 50, "the session passes the switch");
    let report = daemon.show();
    assert_eq!(report["switches"][0]["uplink"]["sharing"], "exclusive");
    ping(&bed);
    end(&mut daemon, Signal::KILL);
    session.step("kill -9", 50);
    assert_given_back(&bed);
    drop(daemon);
    let mut daemon = bed.start(TAKEN);
    session.step("restart", 50);
    assert!(switched(&daemon) > 50);
    // Somebody deletes the host's tap: it is made again.
    bed.ip("host", &format!("link delete dev levada.{}", index(&bed))).unwrap();
    session.step("the host's tap deleted", 50);
    soon("the host's port is back", || daemon.endpoint("host")["state"] == "up" && daemon.log().contains("is back"));
    session.step("and back", 25);
    assert!(daemon.endpoint("host")["losses"] == 1);
    end(&mut daemon, Signal::TERM);
    session.step("stop", 25);
    assert_given_back(&bed);
    session.end();
}

/// Sends datagrams to the remote host at `bits` a second until stopped.
fn sender(bed: &Bed, space: &str, port: u16, bits: u64, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let socket = bed.socket(space, (Ipv4Addr::UNSPECIFIED, 0));
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let start = Instant::now();
        let mut sent = 0;
        while !stop.load(Ordering::Relaxed) {
            let due = start.elapsed().as_micros() as u64 * bits / 1_000_000;
            while sent < due {
                let _ = socket.send_to(&[7; PAYLOAD], (REMOTE, port));
                sent += WIRE * 8;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    })
}

const PAYLOAD: usize = 1400;
/// Bytes of such a datagram on the wire: UDP, IPv4 and Ethernet headers, FCS, preamble and gap.
const WIRE: u64 = PAYLOAD as u64 + 8 + 20 + 14 + 24;

#[test]
fn endpoints_and_the_host_have_their_guarantees_behind_a_taken_interface() {
    let Some(_turn) = bpf_turn("endpoints_and_the_host_have_their_guarantees_behind_a_taken_interface") else { return };
    let bed = bed();
    let daemon = bed.start(TAKEN);
    // Of 40 Mbit/s 36 are promised; the rest is shared by the two tenants alike, and alike again by
    // the endpoints of one.
    let expected = [("host", 8.0 + 2.0), ("a", 20.0 + 1.0), ("b", 8.0 + 1.0)];
    let stop = Arc::new(AtomicBool::new(false));
    let mut senders = Vec::new();
    let mut sinks = Vec::new();
    for (number, (space, _)) in expected.iter().enumerate() {
        let sink = bed.socket("remote", (REMOTE, 9000 + number as u16));
        sink.set_nonblocking(true).unwrap();
        sinks.push(sink);
        senders.push(sender(&bed, space, 9000 + number as u16, 45_000_000, &stop));
    }
    let mut buffer = [0; 2048];
    let mut window = |length: Duration| {
        let start = Instant::now();
        let mut datagrams = [0u64; 3];
        while start.elapsed() < length {
            for (sink, count) in sinks.iter().zip(&mut datagrams) {
                while sink.recv(&mut buffer).is_ok() {
                    *count += 1;
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let seconds = start.elapsed().as_secs_f64();
        datagrams.map(|count| (count * WIRE * 8) as f64 / seconds / 1e6)
    };
    window(Duration::from_secs(1));
    // Where others have the machine a window may show their doings; a switch that shares wrongly
    // does so in each.
    let right = |got: &[f64; 3]| expected.iter().zip(got).all(|((_, right), got)| (got / right - 1.0).abs() < 0.05);
    let mut seen = Vec::new();
    while !seen.last().is_some_and(right) && seen.len() < 10 {
        seen.push(window(Duration::from_secs(3)));
    }
    stop.store(true, Ordering::Relaxed);
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    println!("Mbit/s: expected {expected:?}, got {seen:.2?}");
    assert!(seen.last().is_some_and(right), "Mbit/s: expected {expected:?}, got {seen:.2?}");
    assert!(daemon.endpoint("host")["egress"]["guaranteed_bytes"].as_u64().unwrap() > 1_000_000);
}

#[test]
fn without_a_host_endpoint_the_interface_is_shared_and_said_to_be() {
    let Some(_turn) = turn("without_a_host_endpoint_the_interface_is_shared_and_said_to_be") else { return };
    let bed = bed();
    let (before, rest) = TAKEN.split_once("[[switch.tenant]]\nname = \"ops\"").unwrap();
    let text = format!("{before}[[switch.tenant]]{}", rest.split_once("[[switch.tenant]]").unwrap().1);
    let daemon = bed.start(&text);
    assert_eq!(hooks_of(&bed), Hooks { ingress: 0, egress: 0 });
    ping(&bed);
    let (_remote, _b) = (bed.echo("remote", REMOTE), bed.echo("b", B));
    assert_eq!(bed.ask("a", REMOTE, 5), 5, "an endpoint reaches the wire");
    assert_eq!(bed.ask("remote", B, 5), 5, "and is reached from it");
    assert_eq!(bed.ask("a", B, 5), 5);
    assert_eq!(daemon.show()["switches"][0]["uplink"]["sharing"], "shared");
    let output = bed.run(&["show"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("packet://up0 (up, shared: the host's own traffic is not scheduled)"), "{text}");
    drop(daemon);
    assert_given_back(&bed);
}

#[test]
fn an_interface_that_returns_is_taken_again() {
    let Some(_turn) = bpf_turn("an_interface_that_returns_is_taken_again") else { return };
    let bed = bed();
    let daemon = bed.start(TAKEN);
    let _remote = bed.echo("remote", REMOTE);
    assert_eq!(bed.ask("a", REMOTE, 3), 3);
    bed.ip("host", "link delete dev up0").unwrap();
    let state = |port: &str| daemon.show()["switches"][0]["uplink"][port].as_str().unwrap_or_default().to_owned();
    soon("the loss is noticed", || state("state") == "down" && daemon.endpoint("host")["state"] == "down");
    let _b = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3, "the others go on");
    plug_in(&bed);
    soon("both are back", || state("state") == "up" && daemon.endpoint("host")["state"] == "up");
    assert_eq!(hooks_of(&bed), Hooks { ingress: 1, egress: 1 });
    ping(&bed);
    drop(_remote);
    let _remote = bed.echo("remote", REMOTE);
    assert_eq!(bed.ask("a", REMOTE, 3), 3);
    assert_eq!(bed.ask("host", REMOTE, 3), 3);
}

#[test]
fn an_interface_that_is_renamed_goes_on_whatever_else_changes_of_it() {
    let Some(_turn) = bpf_turn("an_interface_that_is_renamed_goes_on_whatever_else_changes_of_it") else { return };
    let bed = bed();
    let daemon = bed.start(TAKEN);
    let _remote = bed.echo("remote", REMOTE);
    assert_eq!(bed.ask("a", REMOTE, 3), 3);
    let is = |state: &str| daemon.show()["switches"][0]["uplink"]["state"] == state;
    let up = |is: u8| {
        let metrics = say(&bed, "GET /v1/metrics HTTP/1.1\r\nhost: x\r\n\r\n");
        assert!(metrics.contains(&format!("levada_uplink_up{{switch=\"s1\"}} {is}\n")), "{metrics}");
    };
    soon("it is shown", || is("up"));
    up(1);
    bed.ip("host", "link set dev up0 down").unwrap();
    soon("that it is set down is shown", || is("down"));
    up(0);
    bed.ip("host", "link set dev up0 name nic1").unwrap();
    bed.ip("host", "link set dev nic1 up").unwrap();
    for mtu in [1400, 1450] {
        let changed = format!("frames of {} bytes instead of", mtu + 14);
        bed.ip("host", &format!("link set dev nic1 mtu {mtu}")).unwrap();
        let says = |port: &str| daemon.log().lines().any(|line| line.contains(port) && line.contains(&changed));
        soon("it is noticed", || says("packet://up0 of s1/uplink") && says("host://up0 of s1/ops/host"));
    }
    // What is lost is lost by the second at the latest.
    std::thread::sleep(Duration::from_millis(1500));
    let (uplink, host) = (daemon.show()["switches"][0]["uplink"].clone(), daemon.endpoint("host"));
    assert_eq!((&uplink["state"], &host["state"]), (&"up".into(), &"up".into()), "{}", daemon.log());
    assert!(!daemon.log().contains("is gone") && host["losses"] == 0, "{}", daemon.log());
    ping(&bed);
    assert_eq!([bed.ask("a", REMOTE, 3), bed.ask("host", REMOTE, 3)], [3, 3]);
}

#[test]
fn an_interface_that_is_another_endpoints_by_now_is_told_of_by_that_name() {
    let Some(_turn) = turn("an_interface_that_is_another_endpoints_by_now_is_told_of_by_that_name") else { return };
    let bed = bed();
    let text = |name: &str| {
        format!(
            "[daemon]\nname = \"NAME\"\n[[switch]]\nname = \"s1\"\n[[switch.tenant]]\nname = \"red\"\n\
             [[switch.tenant.endpoint]]\nname = \"{name}\"\nport = \"packet://up0\"\nnetns = \"NS-host\"\n"
        )
    };
    let daemon = bed.start(&text("old"));
    let applied = bed.run(&["apply", bed.configuration(&text("new")).to_str().unwrap()]);
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    bed.ip("host", "link delete up0").unwrap();
    soon("it is gone", || daemon.log().contains(" is gone ("));
    assert!(daemon.log().contains("packet://up0 of s1/red/new is gone ("), "{}", daemon.log());
}
