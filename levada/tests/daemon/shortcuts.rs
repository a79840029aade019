//! Shortcuts: frames between two `packet://` endpoints that the kernel takes past the switch. Each
//! end of a veth is made by the test; the near ones are all in one namespace.

use crate::testbed::{Bed, Container, Daemon, bpf_turn, soon};
use datapath::frame::{Pool, PoolLimits};
use datapath::wire::Mac;
use datapath::wire::build::eth;
use ports::Port as _;
use ports::packet::{Hooks, Packet, PacketOptions, hooks};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const A: Ipv4Addr = Ipv4Addr::new(10, 6, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 6, 0, 2);

/// Two that may, one that is limited, and one of another tenant with an address of the first.
const WIRED: &str = r#"
[daemon]
name = "NAME"
[[switch]]
name = "s1"
[[switch.tenant]]
name = "home"
[[switch.tenant.endpoint]]
name = "a"
port = "packet://a"
netns = "NS-near"
mac = "02:00:00:00:06:01"
ip = "10.6.0.1"
[[switch.tenant.endpoint]]
name = "b"
port = "packet://b"
netns = "NS-near"
mac = "02:00:00:00:06:02"
ip = "10.6.0.2"
[[switch.tenant.endpoint]]
name = "c"
port = "packet://c"
netns = "NS-near"
mac = "02:00:00:00:06:03"
ip = "10.6.0.3"
limit = "1 Gbit/s"
[[switch.tenant]]
name = "away"
[[switch.tenant.endpoint]]
name = "d"
port = "packet://d"
netns = "NS-near"
mac = "02:00:00:00:06:02"
ip = "10.6.0.2"
"#;

fn bed() -> Bed {
    let bed = Bed::new(&["near", "a", "b", "c", "d"]);
    for space in ["near", "a", "b", "c", "d"] {
        bed.space(space).run(|| std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")).unwrap().ok();
    }
    for (name, number) in [("a", 1), ("b", 2), ("c", 3), ("d", 2)] {
        wire(&bed, name, number);
    }
    bed
}

fn wire(bed: &Bed, name: &str, number: u8) {
    let far = format!("peer name eth0 address 02:00:00:00:06:0{number} netns {}", bed.name(name));
    bed.ip("near", &format!("link add name {name} type veth {far}")).unwrap();
    bed.ip("near", &format!("link set dev {name} up")).unwrap();
    bed.ip(name, &format!("addr add 10.6.0.{number}/24 dev eth0")).unwrap();
    bed.ip(name, "link set dev eth0 up").unwrap();
}

fn hooks_at(bed: &Bed, name: &str) -> Hooks {
    let shown = bed.ip("near", &format!("-o link show dev {name}")).unwrap();
    let index = shown.split(':').next().unwrap().trim().parse().unwrap();
    bed.space("near").run(|| hooks(index)).unwrap().unwrap()
}

fn shortcut(daemon: &Daemon, name: &str) -> (String, String) {
    let shown = daemon.endpoint(name)["shortcut"].clone();
    let text = |key: &str| shown[key].as_str().unwrap_or_default().to_owned();
    (text("egress"), text("ingress"))
}

fn on(daemon: &Daemon, name: &str) -> bool {
    shortcut(daemon, name) == ("on".to_owned(), "on".to_owned())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Numbered datagrams from `a` to `b`, in bursts, until it is ended: then none may be lost, and
/// none come twice.
struct Stream {
    stop: Arc<AtomicBool>,
    sender: std::thread::JoinHandle<u64>,
    receiver: std::thread::JoinHandle<Vec<u64>>,
}

impl Stream {
    fn start(bed: &Bed) -> Stream {
        let stop = Arc::new(AtomicBool::new(false));
        let sink = bed.socket("b", (B, 7009));
        let source = bed.socket("a", (A, 0));
        sink.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let receiver = std::thread::spawn(move || {
            let (mut numbers, mut bytes) = (Vec::new(), [0; 8]);
            while sink.recv(&mut bytes).is_ok() {
                numbers.push(u64::from_ne_bytes(bytes));
            }
            numbers
        });
        let ended = Arc::clone(&stop);
        let sender = std::thread::spawn(move || {
            let mut sent = 0u64;
            while !ended.load(Ordering::Relaxed) {
                for _ in 0..4 {
                    source.send_to(&sent.to_ne_bytes(), (B, 7009)).unwrap();
                    sent += 1;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            sent
        });
        Stream { stop, sender, receiver }
    }

    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap();
        let mut numbers = self.receiver.join().unwrap();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(0..sent), "{} of {sent} came", numbers.len());
        sent
    }
}

/// Sends so many bytes over one connection from `a` to `b`; all must come as they were sent.
fn bulk(bed: &Bed, bytes: usize) {
    let listener = bed.listener("b", (B, 7010));
    let mut sender = bed.space("a").run(|| TcpStream::connect((B, 7010)).unwrap()).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    let sent: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
    let expected = sent.clone();
    let sending = std::thread::spawn(move || sender.write_all(&sent).unwrap());
    let mut came = Vec::new();
    receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    receiver.read_to_end(&mut came).unwrap();
    sending.join().unwrap();
    assert!(came == expected, "{} of {bytes} bytes", came.len());
}

fn set(bed: &Bed, words: &[&str]) {
    let output = bed.run(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn frames_go_past_the_switch_and_are_counted_as_if_they_did_not() {
    let Some(_turn) = bpf_turn("frames_go_past_the_switch_and_are_counted_as_if_they_did_not") else { return };
    const BYTES: usize = 30_000_000;
    let bed = bed();
    let daemon = bed.start(WIRED);
    assert!(on(&daemon, "a") && on(&daemon, "b"), "{:?} {}", shortcut(&daemon, "a"), daemon.log());
    assert_eq!(shortcut(&daemon, "c"), ("it has a limit".into(), "it has a limit".into()));
    assert_eq!(shortcut(&daemon, "d").0, "no neighbour has one");
    let echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 1), 1, "and they know their neighbours");
    // The daemon has no part in it.
    daemon.freeze();
    bulk(&bed, BYTES);
    daemon.signal(Signal::CONT);
    let (a, b) = (daemon.endpoint("a"), daemon.endpoint("b"));
    let least = BYTES as u64;
    for counted in [&a["local_egress"], &b["local_ingress"]] {
        assert!((least..least + least / 5).contains(&number(&counted["bytes"])), "{counted}");
        assert!(number(&counted["segments"]) >= least / 1460, "{counted}");
    }
    assert_eq!(a["drops"], serde_json::json!({}));
    // Those without shortcuts go the usual way, and who is not of the tenant gets nothing.
    assert_eq!(bed.ask("c", B, 3), 3);
    drop(echo);
    assert_eq!(number(&daemon.endpoint("d")["local_ingress"]["frames"]), 0);
    let text = String::from_utf8(bed.run(&["show"]).stdout).unwrap();
    assert!(text.contains("shortcut past the switch: home/a, home/b"), "{text}");
    assert!(text.contains("no shortcut (it has a limit): home/c"), "{text}");
    // A described frame.
    let frame = ["trace", "--from", "s1/home/a", "--to", "s1/home/b"];
    let said = |words: &[&str]| String::from_utf8(bed.run(&[&frame[..], words].concat()).stdout).unwrap();
    let past = said(&["tcp", "10.6.0.1:5", "10.6.0.2:80", "--length", "4000", "--gso", "1400"]);
    assert!(past.contains("shortcut") && past.contains("packet://b"), "{past}");
    for words in
        [["icmp", "10.6.0.1", "10.6.0.2"], ["udp", "10.6.0.9:5", "10.6.0.2:6"], ["udp", "10.6.0.1:67", "10.6.0.2:6"]]
    {
        let usual = said(&words);
        assert!(!usual.contains("shortcut"), "{usual}");
    }
    let forged = bed.run(&["trace", "--from", "s1/home/a", "--to", "s1/home/c", "udp", "10.6.0.1:5", "10.6.0.3:6"]);
    assert!(!String::from_utf8(forged.stdout).unwrap().contains("shortcut"));
    drop(daemon);
    for name in ["a", "b", "c", "d"] {
        soon("nothing is left", || hooks_at(&bed, name) == Hooks { ingress: 0, egress: 0 });
    }
}

#[test]
fn what_an_endpoint_must_not_send_is_dropped_by_name_as_ever() {
    let Some(_turn) = bpf_turn("what_an_endpoint_must_not_send_is_dropped_by_name_as_ever") else { return };
    let bed = bed();
    let daemon = bed.start(WIRED);
    let sink = bed.socket("b", (Ipv4Addr::UNSPECIFIED, 7011));
    sink.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    // Real sockets, so that it is the addresses that are judged.
    let send = |from: (Ipv4Addr, u16), to: u16, bytes: usize| {
        let socket = bed.socket("a", from);
        let _ = socket.send_to(&vec![7; bytes], (B, to));
    };
    let drops = |name: &str, reason: &str| number(&daemon.endpoint(name)["drops"][reason]);
    let mut buffer = vec![0; 4096];
    send((A, 0), 7011, 100);
    soon("b is known", || sink.recv(&mut buffer).is_ok_and(|n| n == 100));
    let other = Ipv4Addr::new(10, 6, 0, 77);
    bed.ip("a", "addr add 10.6.0.77/32 dev eth0").unwrap();
    bed.ip("a", "neigh replace 10.6.0.2 lladdr 02:00:00:00:06:02 dev eth0").unwrap();
    send((other, 0), 7011, 100);
    soon("another address", || drops("a", "spoofed-ipv4") == 1);
    send((A, 67), 7011, 100);
    soon("a DHCP server", || drops("a", "dhcp-server") == 1);
    let far = PacketOptions { name: "eth0".into(), netns: Some(bed.space("a")), room: None, is_exclusive: true };
    let (mut far, mut pool) = (Packet::open(&far).unwrap(), Pool::new(PoolLimits::default()));
    let frame = eth(Mac([2, 0, 0, 0, 6, 1]), Mac([2, 0, 0, 0, 6, 2])).vlan(7);
    let frame = pool.alloc_from(&frame.ipv4(A, B).udp(5, 7011).payload(vec![7; 100]).bytes()).unwrap();
    far.tx(&mut pool, frame).unwrap();
    drop(far);
    soon("a tag", || drops("a", "bad-vlan") == 1);
    // Too long for the receiver.
    bed.ip("near", "link set dev a mtu 4000").unwrap();
    bed.ip("a", "link set dev eth0 mtu 4000").unwrap();
    soon("the switch knows", || daemon.log().contains("packet://a of s1/home/a has changed"));
    send((A, 0), 7011, 2000);
    soon("too long", || drops("b", "too-long") > 0);
    bed.ip("a", "link set dev eth0 mtu 1500").unwrap();
    assert!(sink.recv(&mut buffer).is_err(), "none of these has come");
    soon("it has its shortcut again", || on(&daemon, "a"));
    send((A, 0), 7011, 100);
    assert!(sink.recv(&mut buffer).is_ok_and(|n| n == 100));
    bed.ip("a", "link set dev eth0 address 02:00:00:00:06:66").unwrap();
    bed.ip("a", "neigh replace 10.6.0.2 lladdr 02:00:00:00:06:02 dev eth0").unwrap();
    let before = drops("a", "spoofed-mac");
    send((A, 0), 7011, 100);
    soon("another Ethernet address", || drops("a", "spoofed-mac") > before);
    assert!(sink.recv(&mut buffer).is_err());
}

#[test]
fn changes_take_it_out_and_put_it_back_and_nothing_is_lost() {
    let Some(_turn) = bpf_turn("changes_take_it_out_and_put_it_back_and_nothing_is_lost") else { return };
    let bed = bed();
    let daemon = bed.start(WIRED);
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 1), 1);
    let stream = Stream::start(&bed);
    let says =
        |name: &str, egress: &str, ingress: &str| shortcut(&daemon, name) == (egress.to_owned(), ingress.to_owned());
    set(&bed, &["set", "endpoint", "s1/home/a", "limit=1 Gbit/s"]);
    assert!(says("a", "it has a limit", "it has a limit"), "{:?}", shortcut(&daemon, "a"));
    assert!(says("b", "no neighbour has one", "no neighbour has one"));
    // The worker has them now.
    let waited = || -> u64 {
        let shown = daemon.endpoint("a");
        shown["sojourn"]["egress"]["buckets"].as_array().unwrap().iter().map(|bucket| number(&bucket[1])).sum()
    };
    let before = waited();
    soon("frames wait for the limit", || waited() > before + 20);
    set(&bed, &["set", "endpoint", "s1/home/a", "limit="]);
    assert!(on(&daemon, "a") && on(&daemon, "b"));
    set(&bed, &["set", "tenant", "s1/home", "limit={\"egress\": \"1 Gbit/s\"}"]);
    assert!(says("a", "its tenant has a limit", "no neighbour has one"), "{:?}", shortcut(&daemon, "a"));
    set(&bed, &["set", "tenant", "s1/home", "limit="]);
    set(&bed, &["set", "endpoint", "s1/home/b", "ip=[\"10.6.0.2\", \"10.6.0.22\"]"]);
    assert!(on(&daemon, "a") && on(&daemon, "b"));
    set(&bed, &["set", "switch", "s1", "shortcut=false"]);
    assert!(says("a", "`shortcut` is false", "`shortcut` is false"));
    set(&bed, &["set", "switch", "s1", "shortcut=true"]);
    // While a trace runs, every frame is seen.
    let trace = bed.levada(&["trace", "endpoint a and udp and port 7009", "--count", "50", "--json"]);
    let traced = { trace }.output().unwrap();
    let traced: Value = serde_json::from_slice(&traced.stdout).unwrap();
    assert_eq!(traced["frames"].as_array().unwrap().len(), 50);
    soon("it is back", || on(&daemon, "a"));
    // Another MTU, and another address of the near end.
    for change in ["mtu 1400", "mtu 1500", "address 02:00:00:00:06:e1"] {
        let lines = || daemon.log().matches("packet://a of s1/home/a has changed").count();
        let before = lines();
        bed.ip("near", &format!("link set dev a {change}")).unwrap();
        soon("it is noticed", || lines() > before);
        soon("it is there again", || on(&daemon, "a"));
    }
    let sent = stream.end();
    let counted = number(&daemon.endpoint("a")["local_egress"]["frames"]);
    assert!(counted >= sent, "{counted} of {sent}");
    assert_eq!(daemon.endpoint("a")["drops"], serde_json::json!({}));
}

#[test]
fn an_interface_that_goes_and_returns_has_it_again() {
    let Some(_turn) = bpf_turn("an_interface_that_goes_and_returns_has_it_again") else { return };
    let bed = bed();
    let daemon = bed.start(WIRED);
    let _echo = bed.echo("c", Ipv4Addr::new(10, 6, 0, 3));
    assert!(on(&daemon, "b"));
    bed.ip("near", "link delete dev b").unwrap();
    soon("it is out", || daemon.endpoint("b")["state"] == "down" && !on(&daemon, "b"));
    assert_eq!(bed.ask("a", Ipv4Addr::new(10, 6, 0, 3), 3), 3, "the others go on");
    wire(&bed, "b", 2);
    soon("it is in again", || on(&daemon, "b"));
    // And under another identity: its neighbours ask anew.
    bed.ip("a", "neigh flush dev eth0").unwrap();
    let _again = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3);
    daemon.freeze();
    bulk(&bed, 1_000_000);
    daemon.signal(Signal::CONT);
    set(&bed, &["del", "endpoint", "s1/home/b"]);
    soon("nothing is left of it", || hooks_at(&bed, "b") == Hooks { ingress: 0, egress: 0 });
    assert_eq!(bed.ask("a", B, 1), 0);
}

#[test]
fn restarts_leave_nothing_behind_and_a_planned_one_loses_nothing() {
    let Some(_turn) = bpf_turn("restarts_leave_nothing_behind_and_a_planned_one_loses_nothing") else { return };
    let bed = bed();
    let mut first = bed.start(WIRED);
    let echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 1), 1);
    let stream = Stream::start(&bed);
    let frames = |daemon: &Daemon| number(&daemon.endpoint("a")["local_egress"]["frames"]);
    soon("some have passed", || frames(&first) > 100);
    let counted = frames(&first);
    let mut second = bed.take_over(WIRED);
    first.wait();
    assert!(on(&second, "a") && on(&second, "b"), "{}", second.log());
    // Counters go along; the new process's programs are at the hooks, and no others.
    assert!(frames(&second) >= counted);
    assert_eq!(hooks_at(&bed, "a"), Hooks { ingress: 1, egress: 0 });
    std::thread::sleep(Duration::from_millis(200));
    let sent = stream.end();
    assert!(frames(&second) >= sent, "of {sent}");
    second.end(Signal::KILL);
    for name in ["a", "b"] {
        soon("nothing is left", || hooks_at(&bed, name) == Hooks { ingress: 0, egress: 0 });
    }
    assert_eq!(bed.ask("a", B, 1), 0, "without a switch nothing comes");
    let third = bed.start(WIRED);
    drop(echo);
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3);
    assert!(on(&third, "a"));
}

/// Two containers' ends of pairs.
const PAIRS: &str = r#"
[daemon]
name = "NAME"
[[switch]]
name = "s1"
[[switch.tenant]]
name = "home"
[[switch.tenant.endpoint]]
name = "a"
port = "veth://eth0"
netns = "NS-a"
mac = "02:00:00:00:06:01"
ip = "10.6.0.1"
address = "10.6.0.1/24"
ipv6 = false
[[switch.tenant.endpoint]]
name = "b"
port = "veth://eth0"
netns = "NS-b"
mac = "02:00:00:00:06:02"
ip = "10.6.0.2"
address = "10.6.0.2/24"
ipv6 = false
"#;

/// Frames that the kernel takes from `a` to `b` while the daemon stands still.
fn pass_without_the_daemon(bed: &Bed, daemon: &Daemon) {
    daemon.freeze();
    bulk(bed, 100_000);
    daemon.signal(Signal::CONT);
}

#[test]
fn an_end_that_was_away_and_is_back_takes_its_shortcut_again() {
    let Some(_turn) = bpf_turn("an_end_that_was_away_and_is_back_takes_its_shortcut_again") else { return };
    let bed = Bed::new(&["a", "b", "away"]);
    // A container, whose namespace is passed with changes.
    let container = bed.space("a").run(Container::here).unwrap();
    let daemon = bed.start(&PAIRS.replace("NS-a", &container.path()));
    let _echo = bed.echo("b", B);
    soon("frames pass", || bed.ask("a", B, 1) == 1);
    soon("they have shortcuts", || on(&daemon, "a") && on(&daemon, "b"));
    pass_without_the_daemon(&bed, &daemon);
    // Who has it moves it away, and gives it back.
    bed.ip("a", &format!("link set dev eth0 netns {}", bed.name("away"))).unwrap();
    soon("it is away", || !daemon.endpoint("a")["device"]["moved"].is_null());
    bed.ip("away", &format!("link set dev eth0 netns {}", bed.name("a"))).unwrap();
    soon("it is back", || daemon.log().contains("veth://eth0 of s1/home/a has changed: where it should be"));
    soon("frames pass", || bed.ask("a", B, 1) == 1);
    soon("it has its shortcut", || on(&daemon, "a"));
    pass_without_the_daemon(&bed, &daemon);
    // A change that passes its namespace, and changes nothing.
    set(&bed, &["set", "endpoint", "s1/home/a", &format!("netns={}", container.path())]);
    assert!(on(&daemon, "a"));
    pass_without_the_daemon(&bed, &daemon);
}
