//! Restarts under load: a connection survives with its data whole, and a takeover that fails leaves
//! the old process at work.

use crate::interfaces::{REMOTE, Session, TAKEN, hooks_of};
use crate::testbed::{Bed, Daemon, bpf_turn, soon, turn};
use crate::traffic::{A, B, NEIGHBOURS};
use crate::vde;
use ports::netns::Netns;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PORT: u16 = 7008;
/// Bytes written at a time; a few milliseconds apart, so that a transfer lasts as long as a test
/// needs it.
const PIECE: usize = 64 << 10;
const PAUSE: Duration = Duration::from_millis(2);

/// The configuration with devices that outlive the daemon.
pub fn persistent() -> String {
    NEIGHBOURS.replace("ipv6 = false", "ipv6 = false\npersistent = true")
}

/// A TCP connection that sends until it is told to stop.
pub struct Transfer {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    sender: JoinHandle<(u64, u64)>,
    receiver: JoinHandle<(u64, u64)>,
}

/// Bytes that differ from place to place, and a sum that notices any that is missing, changed or
/// out of place (FNV-1a).
fn fold(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

impl Transfer {
    fn begin(bed: &Bed) -> Transfer {
        Transfer::between(bed, "a", "b", B)
    }

    fn between(bed: &Bed, from: &str, to: &str, address: Ipv4Addr) -> Transfer {
        Transfer::over((bed, from), (bed, to), address)
    }

    /// From a namespace of a bed to `address` in one of another.
    pub fn over((near, from): (&Bed, &str), (far, to): (&Bed, &str), address: Ipv4Addr) -> Transfer {
        let listener = far.listener(to, (address, PORT));
        let mut out = near.space(from).run(|| TcpStream::connect((address, PORT)).unwrap()).unwrap();
        let (mut into, _) = listener.accept().unwrap();
        let (stop, received) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let stopped = Arc::clone(&stop);
        let sender = std::thread::spawn(move || {
            let (mut sent, mut sum) = (0u64, 0);
            while !stopped.load(Ordering::Relaxed) {
                let piece: Vec<u8> = (0..PIECE as u64).map(|i| (((sent + i) * 2_654_435_761) >> 13) as u8).collect();
                out.write_all(&piece).expect("the connection lives");
                (sent, sum) = (sent + PIECE as u64, fold(sum, &piece));
                std::thread::sleep(PAUSE);
            }
            (sent, sum)
        });
        let count = Arc::clone(&received);
        let receiver = std::thread::spawn(move || {
            let (mut got, mut sum, mut piece) = (0u64, 0, vec![0; PIECE]);
            loop {
                let read = into.read(&mut piece).expect("the connection lives");
                if read == 0 {
                    return (got, sum);
                }
                (got, sum) = (got + read as u64, fold(sum, &piece[..read]));
                count.store(got, Ordering::Relaxed);
            }
        });
        Transfer { stop, received, sender, receiver }
    }

    /// Waits until some more has come through.
    pub fn goes_on(&self) {
        let before = self.received.load(Ordering::Relaxed);
        soon("the transfer goes on", || self.received.load(Ordering::Relaxed) > before + 8 * PIECE as u64);
    }

    /// Ends the connection: all that was sent has arrived, in order.
    pub fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap();
        assert!(sent.0 > 0);
        assert_eq!(self.receiver.join().unwrap(), sent);
    }
}

#[test]
fn a_connection_survives_kills() {
    let Some(_turn) = turn("a_connection_survives_kills") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let mut daemon = bed.start(&persistent());
    let transfer = Transfer::begin(&bed);
    for _ in 0..3 {
        transfer.goes_on();
        daemon.end(Signal::KILL);
        daemon = bed.start(&persistent());
    }
    transfer.goes_on();
    transfer.end();
    assert!(daemon.end(Signal::TERM).success());
    bed.run(&["clean", "--name", bed.name("").trim_end_matches('-')]);
}

/// The niceness of each thread of a daemon (proc_pid_stat(5)).
fn niceness(daemon: &Daemon) -> Vec<(String, i32)> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let one = |stat: String| {
        let (name, fields) = stat.split_once('(')?.1.rsplit_once(')')?;
        Some((name.to_owned(), fields.split_whitespace().nth(16)?.parse().ok()?))
    };
    threads.filter_map(|thread| one(std::fs::read_to_string(thread.ok()?.path().join("stat")).ok()?)).collect()
}

/// Whether this process may let another be less nice (CAP_SYS_RESOURCE).
fn may_raise_limits() -> bool {
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    let limit = Rlimit { current: Some(20), maximum: Some(20) };
    let raised = prlimit(Some(Pid::from_child(&other)), Resource::Nice, limit);
    other.kill().unwrap();
    other.wait().unwrap();
    raised.is_ok()
}

/// Each thread of a killed process ends at its own niceness, and the last one closes the devices.
/// An asynchronous context lets that one wait for the kernel first (exit_aio, two grace periods).
#[test]
fn nothing_keeps_a_killed_daemon_from_its_end() {
    let Some(_turn) = turn("nothing_keeps_a_killed_daemon_from_its_end") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let mut daemon = bed.start(&persistent());
    let has_context = || std::fs::read_to_string(format!("/proc/{}/maps", daemon.pid())).unwrap().contains("[aio]");
    assert!(!has_context());
    daemon.show();
    let run = |words: &[&str]| {
        let output = bed.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["set", "endpoint", "s1/home/a", "limit=5 Mbit/s"]);
    if may_raise_limits() {
        for thread in ["levada-http", "levada-clerk", "levada-changes"] {
            assert!(niceness(&daemon).iter().any(|(name, _)| name == thread), "{thread} is there");
        }
        soon("no thread stands back while it waits", || niceness(&daemon).iter().all(|(_, nice)| *nice <= 0));
    }
    let machine = format!("port=vhost-user://{}/v.sock", bed.directory.display());
    run(&["add", "endpoint", "s1/home/v", &machine]);
    assert!(has_context(), "who has machines has one");
    daemon.end(Signal::KILL);
    drop(daemon);
    bed.run(&["clean", "--name", bed.name("").trim_end_matches('-')]);
}

#[test]
fn a_connection_survives_takeovers_and_nothing_is_left_behind() {
    let Some(_turn) = turn("a_connection_survives_takeovers_and_nothing_is_left_behind") else { return };
    survives_takeovers(NEIGHBOURS);
    survives_takeovers(&pairs());
}

/// The configuration with veth pairs.
fn pairs() -> String {
    NEIGHBOURS.replace("tap://", "veth://")
}

fn survives_takeovers(text: &str) {
    let bed = Bed::new(&["a", "b", "c"]);
    let index = |bed: &Bed| bed.ip("a", "-o link show dev tap0").unwrap().split(':').next().unwrap().to_owned();
    let mut daemon = bed.start(text);
    let first = index(&bed);
    let transfer = Transfer::begin(&bed);
    for _ in 0..4 {
        transfer.goes_on();
        let next = bed.take_over(text);
        assert!(daemon.wait().success(), "{}", daemon.log());
        assert!(next.log().contains(&format!("has taken over from process {}", daemon.pid())), "{}", next.log());
        daemon = next;
        assert_eq!(daemon.endpoint("a")["state"], "up", "the control socket is the new one's");
    }
    transfer.goes_on();
    transfer.end();
    assert_eq!(index(&bed), first, "it is the same device, though not persistent");
    let again = bed.run(&["run", "-c", bed.configuration(text).to_str().unwrap()]);
    let said = String::from_utf8(again.stderr).unwrap();
    assert!(said.contains(&format!("runs already as process {}", daemon.pid())), "the lock went along: {said}");
    assert!(daemon.end(Signal::TERM).success());
    // The kernel ends a namespace, and the pairs in it, behind the process's back.
    soon("the device is gone", || bed.ip("a", "link show dev tap0").is_err());
    let left: Vec<_> = std::fs::read_dir(bed.directory.join("run")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_takeover_may_change_the_configuration() {
    let Some(_turn) = turn("a_takeover_may_change_the_configuration") else { return };
    takeover_may_change(NEIGHBOURS);
    takeover_may_change(&pairs());
}

fn takeover_may_change(three: &str) {
    let bed = Bed::new(&["a", "b", "c"]);
    let (two, _) = three.rsplit_once("[[switch.tenant.endpoint]]").unwrap();
    let mut old = bed.start(&two.replacen("ipv6 = false", "ipv6 = false\nmtu = 1400", 1));
    let transfer = Transfer::begin(&bed);
    transfer.goes_on();
    // A third endpoint is opened, and the first has another MTU.
    let mut daemon = bed.take_over(three);
    assert!(old.wait().success());
    transfer.goes_on();
    transfer.end();
    assert_eq!(daemon.endpoint("c")["state"], "up");
    assert!(bed.ip("a", "link show dev tap0").unwrap().contains("mtu 1500"));
    let inet6 = |space: &str| bed.ip(space, "addr show dev tap0").unwrap().contains("inet6");
    assert!(!inet6("a") && !inet6("b"));
    let mut last = bed.take_over(&two.replacen("ipv6 = false", "ipv6 = true", 1));
    assert!(daemon.wait().success());
    soon("what is not wanted any more is gone", || bed.ip("c", "link show dev tap0").is_err());
    soon("it has IPv6 again", || inet6("a"));
    assert!(!inet6("b"));
    assert!(last.end(Signal::TERM).success());
}

/// Numbered datagrams, one in a millisecond, until they are counted.
pub struct Datagrams {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    sender: JoinHandle<u64>,
    sink: UdpSocket,
}

impl Datagrams {
    pub fn between(bed: &Bed, from: &str, to: &str, address: Ipv4Addr) -> Datagrams {
        Datagrams::from(&bed.space(from), (bed, to), address)
    }

    /// From any namespace.
    pub fn from(from: &Netns, (bed, to): (&Bed, &str), address: Ipv4Addr) -> Datagrams {
        let sink = bed.socket(to, (address, PORT));
        let source = from.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap()).unwrap();
        // Nobody reads before the end: all must have room.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&sink, 64 << 20).unwrap();
        sink.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&count));
        let sender = std::thread::spawn(move || {
            let mut sent = 0u64;
            while !stopped.load(Ordering::Relaxed) {
                source.send_to(&sent.to_le_bytes(), (address, PORT)).unwrap();
                sent += 1;
                counted.store(sent, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
            sent
        });
        Datagrams { stop, sent: count, sender, sink }
    }

    /// Waits until some more have been sent.
    pub fn goes_on(&self) {
        let before = self.sent.load(Ordering::Relaxed);
        soon("datagrams are sent", || self.sent.load(Ordering::Relaxed) > before + 20);
    }

    /// Each has arrived, and none twice. How many there were.
    pub fn arrived_once(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap();
        let (mut times, mut bytes) = (vec![0u32; sent as usize], [0; 8]);
        while self.sink.recv(&mut bytes).is_ok() {
            times[u64::from_le_bytes(bytes) as usize] += 1;
        }
        let lost = times.iter().filter(|times| **times == 0).count();
        let twice = times.iter().filter(|times| **times > 1).count();
        assert_eq!((lost, twice), (0, 0), "lost and doubled of {sent}");
        sent
    }
}

#[test]
fn a_takeover_of_an_interface_and_of_the_host_on_it_loses_and_doubles_nothing() {
    let name = "a_takeover_of_an_interface_and_of_the_host_on_it_loses_and_doubles_nothing";
    let Some(_turn) = bpf_turn(name) else { return };
    let bed = crate::interfaces::bed();
    let taps = |bed: &Bed| bed.ip("host", "-o link show type tun").unwrap().split(':').next().unwrap().to_owned();
    let mut daemon = bed.start(TAKEN);
    let (hooks, tap) = (hooks_of(&bed), taps(&bed));
    assert_eq!((hooks.ingress, hooks.egress), (1, 1));
    let session = Session::begin(&bed);
    let transfer = Transfer::between(&bed, "a", "remote", REMOTE);
    transfer.goes_on();
    let inward = Datagrams::between(&bed, "remote", "b", Ipv4Addr::new(10, 8, 0, 12));
    for number in 0..4 {
        session.step("before a takeover", 10);
        transfer.goes_on();
        let next = bed.take_over(TAKEN);
        assert!(daemon.wait().success(), "{}", daemon.log());
        // What is said of the configuration is not of the takeover.
        let log = next.log();
        let mut warnings = log.lines().filter(|line| line.starts_with("levada: ") && line.contains("warning"));
        assert!(warnings.all(|line| line.ends_with("the configuration has warnings:")), "{log}");
        assert_eq!(hooks_of(&bed), hooks, "takeover {number}: the same programs, once");
        assert_eq!(taps(&bed), tap, "the host's device is the same");
        daemon = next;
    }
    let gaps = session.step("after the takeovers", 10);
    transfer.goes_on();
    transfer.end();
    session.end();
    inward.arrived_once();
    println!("longest gap {gaps:?}");
    // What another configuration says of the same interface is set when the old process has gone.
    let (before, rest) = TAKEN.split_once("[[switch.tenant]]\nname = \"ops\"").unwrap();
    let shared = format!("{before}[[switch.tenant]]{}", rest.split_once("[[switch.tenant]]").unwrap().1);
    let mut next = bed.take_over(&shared);
    assert!(daemon.wait().success());
    let hooks = hooks_of(&bed);
    assert_eq!((hooks.ingress, hooks.egress), (0, 0), "the host goes past the switch again");
    let _echo = bed.echo("host", Ipv4Addr::new(10, 8, 0, 1));
    assert_eq!(bed.ask("remote", Ipv4Addr::new(10, 8, 0, 1), 3), 3);
    assert_eq!(next.endpoint("b")["state"], "up");
    assert!(next.end(Signal::TERM).success());
}

#[test]
fn a_takeover_of_a_vde_directory_keeps_its_clients_plugged_in() {
    let name = "a_takeover_of_a_vde_directory_keeps_its_clients_plugged_in";
    let Some(_turn) = vde::vde_turn(name, &["vde_plug2tap"]) else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let text = vde::here(&bed, &format!("{}hub = true\n", vde::THREE));
    let mut daemon = bed.start(&text);
    let mut plugs = vec![vde::plug(&bed, "a", 1, &["-p", "1"]), vde::plug(&bed, "b", 2, &["-p", "2"])];
    soon("both are up", || vde::is_up(&daemon, "a") && vde::is_up(&daemon, "b"));
    let transfer = Transfer::begin(&bed);
    transfer.goes_on();
    let datagrams = Datagrams::between(&bed, "b", "a", A);
    for number in 0..4 {
        transfer.goes_on();
        let next = bed.take_over(&text);
        assert!(daemon.wait().success(), "{}", daemon.log());
        daemon = next;
        assert!(!daemon.log().contains("plugged in by"), "takeover {number}: they do not plug in again");
        soon("they are up", || vde::is_up(&daemon, "a") && vde::is_up(&daemon, "b"));
    }
    transfer.goes_on();
    transfer.end();
    datagrams.arrived_once();
    // The directory is the new process's, with all that belongs to it.
    plugs.push(vde::plug(&bed, "c", 3, &["-p", "3"]));
    soon("a new client is plugged in", || vde::is_up(&daemon, "c"));
    let mut second = bed.start_as("other", &text);
    soon("the lock went along", || second.log().contains("another levada has it open"));
    assert!(second.end(Signal::TERM).success());
    // A takeover that fails leaves them where they are.
    let wrong = text.clone() + "[[switch.tenant.endpoint]]\nname = \"d\"\nport = \"tap://tap0\"\nnetns = \"NS-none\"\n";
    let failed = bed.run(&["run", "--takeover", "-c", bed.configuration(&wrong).to_str().unwrap()]);
    assert!(!failed.status.success());
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3);
    // Whose plug is gone is unplugged, and the others stay.
    let mut one = daemon;
    let (before, rest) = text.split_once("[[switch.tenant.endpoint]]\nname = \"b\"").unwrap();
    let two = format!("{before}[[switch.tenant.endpoint]]{}", rest.split_once("[[switch.tenant.endpoint]]").unwrap().1);
    let mut daemon = bed.take_over(&two);
    assert!(one.wait().success());
    plugs.remove(1).ends();
    assert!(daemon.log().contains("there is no plug for it any more"), "{}", daemon.log());
    soon("the others are up", || vde::is_up(&daemon, "a") && vde::is_up(&daemon, "c"));
    // A directory that is not wanted any more goes with all its clients.
    let none = "[daemon]\nname = \"NAME\"\n[[switch]]\nname = \"s1\"\n";
    let mut last = bed.take_over(none);
    assert!(daemon.wait().success());
    plugs.iter_mut().for_each(vde::Running::ends);
    assert!(!vde::directory(&bed).exists(), "nothing is left");
    // What is made by one and taken by another is removed in the end, too.
    let mut first = bed.take_over(&text);
    assert!(last.wait().success());
    let mut second = bed.take_over(&text);
    assert!(first.wait().success());
    assert_eq!(vde::names(&vde::directory(&bed)), ["ctl"]);
    assert!(second.end(Signal::TERM).success());
    assert!(!vde::directory(&bed).exists());
}

/// What `a` may send: a frame of 9000 bytes takes 3.6 s.
const TRICKLE: &str = "20 kbit/s";
/// When such a frame is paid for at the earliest, less what a busy machine takes to receive it. A
/// new burst would come at once.
const PAID: Duration = Duration::from_millis(2300);

#[test]
fn what_is_learned_counted_and_owed_goes_along_with_a_takeover_and_not_over_a_kill() {
    let name = "what_is_learned_counted_and_owed_goes_along_with_a_takeover_and_not_over_a_kill";
    let Some(_turn) = turn(name) else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    // The addresses of b are learned; a may send little.
    let text = NEIGHBOURS
        .replace("mac = \"02:00:00:00:07:02\"\nip = \"10.7.0.2\"\n", "")
        .replace("name = \"a\"", &format!("name = \"a\"\nlimit = {{ egress = \"{TRICKLE}\" }}"))
        .replace("ipv6 = false", "ipv6 = false\nmtu = 9000");
    let mut daemon = bed.start(&text);
    let _echo = bed.echo("a", A);
    assert_eq!(bed.ask("b", A, 1), 1);
    // c lies, and is counted.
    bed.ip("c", "address add 10.7.0.66/24 dev tap0").unwrap();
    bed.ip("c", "route change 10.7.0.0/24 dev tap0 src 10.7.0.66").unwrap();
    assert_eq!(bed.ask("c", A, 1), 0);
    let lies = |daemon: &Daemon| daemon.endpoint("c")["drops"]["spoofed-arp"].as_u64().unwrap_or(0);
    let learned = |daemon: &Daemon| daemon.show()["switches"][0]["learned"].as_u64().unwrap();
    let frames =
        |daemon: &Daemon| ["a", "b"].map(|name| daemon.endpoint(name)["local_egress"]["frames"].as_u64().unwrap());
    assert!(lies(&daemon) > 0 && learned(&daemon) > 0);
    let sink = bed.socket("b", (B, PORT));
    let source = bed.socket("a", (A, 0));
    sink.set_read_timeout(Some(crate::testbed::PATIENCE)).unwrap();
    let mut bytes = [0; 9000];
    // The first takes what was saved up; the second leaves when that is paid for.
    for _ in 0..2 {
        source.send_to(&[1; 8900], (B, PORT)).unwrap();
    }
    for _ in 0..2 {
        assert_eq!(sink.recv(&mut bytes).unwrap(), 8900);
    }
    // From here on a owes.
    let sent = Instant::now();
    let before = (lies(&daemon), learned(&daemon), frames(&daemon));
    let next = bed.take_over(&text);
    assert!(daemon.wait().success());
    daemon = next;
    source.send_to(&[2], (B, PORT)).unwrap();
    let after = (lies(&daemon), learned(&daemon), frames(&daemon));
    assert!(after.0 >= before.0 && std::iter::zip(after.2, before.2).all(|(now, then)| now >= then), "{after:?}");
    assert_eq!(after.1, before.1, "learned addresses are known without having been seen again");
    assert_eq!(sink.recv(&mut bytes).unwrap(), 1);
    assert!(sent.elapsed() >= PAID, "a new burst after {:?}", sent.elapsed());
    // A process that was killed has told nobody.
    daemon.end(Signal::KILL);
    let daemon = bed.start(&text);
    assert_eq!(lies(&daemon), 0);
    assert!(frames(&daemon)[0] < after.2[0]);
}

/// Sends a message of a takeover.
pub fn say(mut stream: &UnixStream, message: &[u8]) {
    stream.write_all(&(message.len() as u32).to_le_bytes()).unwrap();
    stream.write_all(message).unwrap();
}

/// A client that says `messages`; the daemon must live on.
pub fn speak(daemon: &Daemon, bed: &Bed, messages: &[&[u8]]) -> UnixStream {
    let socket = bed.directory.join("run").join(bed.name("").trim_end_matches('-')).join("handover.sock");
    let stream = UnixStream::connect(socket).unwrap();
    messages.iter().for_each(|message| say(&stream, message));
    assert!(daemon.pid() > 0);
    stream
}

/// The next message of a takeover.
pub fn answer(mut stream: &UnixStream) -> String {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut text = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn a_takeover_that_fails_leaves_the_old_process_at_work() {
    let Some(_turn) = turn("a_takeover_that_fails_leaves_the_old_process_at_work") else { return };
    let hello = br#"{"message":"hello","protocol":1,"version":"9.0.0","pid":1,"weather":"fine"}"#;
    let bed = Bed::new(&["a", "b", "c"]);
    let mut daemon = bed.start(NEIGHBOURS);
    let transfer = Transfer::begin(&bed);
    let failed = |text: &str| {
        let output = bed.run(&["run", "--takeover", "-c", bed.configuration(text).to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    // A wrong configuration, one that cannot be opened, and another instance's name.
    assert!(failed("[daemon]\nname = \"NAME\"\nnonsense = 1\n").contains("nonsense"));
    assert!(failed(&NEIGHBOURS.replace("NS-c", "levada-never-made")).contains("levada-never-made"));
    let stranger = failed(&NEIGHBOURS.replace("NAME", "nobody"));
    assert!(stranger.contains("nobody"), "{stranger}");
    transfer.goes_on();
    // The daemon takes its time to see that somebody has gone; until then it is busy.
    let failures = |count| {
        let gone = || daemon.log().matches("a takeover failed, and this process goes on").count() >= count;
        soon("the daemon has seen that it failed", gone);
    };
    failures(1);
    assert!(daemon.log().contains("the new process ended before it was ready; see its message"), "{}", daemon.log());
    // Another version of the messages.
    let stream = speak(&daemon, &bed, &[br#"{"message":"hello","protocol":99,"version":"9.0.0","pid":1}"#]);
    assert!(answer(&stream).contains("speaks handover 99"));
    failures(2);
    assert!(daemon.log().contains("speaks handover 99"));
    // One that takes the offer and dies; one that dies when the worker has stopped for it; garbage.
    drop(speak(&daemon, &bed, &[hello]));
    failures(3);
    for last in [&b""[..], b"{}"] {
        soon("it is free again", || {
            let stream = speak(&daemon, &bed, &[hello]);
            let offer = answer(&stream);
            if offer.contains("under way") {
                return false;
            }
            assert!(offer.contains("\"descriptors\":4"), "{offer}");
            // The descriptors come with a byte, which a plain read takes too.
            (&stream).read_exact(&mut [0]).unwrap();
            for message in [&br#"{"message":"ready"}"#[..], last] {
                if !message.is_empty() {
                    (&stream).write_all(&(message.len() as u32).to_le_bytes()).unwrap();
                    (&stream).write_all(message).unwrap();
                }
            }
            assert!(answer(&stream).contains("\"state\""));
            true
        });
        transfer.goes_on();
    }
    failures(5);
    // After all that, a good one.
    let mut next = bed.take_over(NEIGHBOURS);
    assert!(daemon.wait().success());
    transfer.goes_on();
    transfer.end();
    assert!(next.end(Signal::TERM).success());
}

#[test]
fn who_is_told_to_end_before_it_takes_over_leaves_the_old_process_at_work() {
    let Some(_turn) = turn("who_is_told_to_end_before_it_takes_over_leaves_the_old_process_at_work") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let mut daemon = bed.start(NEIGHBOURS);
    let transfer = Transfer::begin(&bed);
    transfer.goes_on();
    let file = bed.configuration(NEIGHBOURS);
    for signal in [Signal::INT, Signal::TERM] {
        // It waits for the old one's offer.
        daemon.freeze();
        let mut command = bed.levada(&["run", "--takeover", "-c", file.to_str().unwrap()]);
        let new = command.stderr(Stdio::piped()).spawn().unwrap();
        let threads = format!("/proc/{}/task", new.id());
        let names = || std::fs::read_dir(&threads).into_iter().flatten().flatten().map(|thread| thread.path());
        let is_signals = |path: std::path::PathBuf| {
            std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "levada-signals")
        };
        soon("it has a thread for signals", || names().any(is_signals));
        rustix::process::kill_process(Pid::from_child(&new), signal).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        daemon.signal(Signal::CONT);
        let output = new.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains("the old process continues"), "{said}");
        assert!(said.contains("this one was told to end"), "{said}");
        transfer.goes_on();
    }
    transfer.end();
    soon("the old one says so", || daemon.log().matches("a takeover failed, and this process goes on").count() == 2);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn who_is_told_to_end_while_the_next_process_takes_over_leaves_it_the_work() {
    let Some(_turn) = turn("who_is_told_to_end_while_the_next_process_takes_over_leaves_it_the_work") else { return };
    let hello = br#"{"message":"hello","protocol":1,"version":"9.0.0","pid":1}"#;
    let bed = Bed::new(&["a", "b", "c"]);
    let home = bed.directory.join("run").join(&bed.tag);
    for is_taken in [true, false] {
        let mut daemon = bed.start(NEIGHBOURS);
        let stream = speak(&daemon, &bed, &[hello]);
        answer(&stream);
        (&stream).read_exact(&mut [0]).unwrap();
        say(&stream, br#"{"message":"ready"}"#);
        assert!(answer(&stream).contains("\"state\""));
        std::fs::write(home.join("control.sock.1"), "").unwrap();
        daemon.signal(Signal::TERM);
        std::thread::sleep(Duration::from_millis(10));
        if is_taken {
            say(&stream, br#"{"message":"taken"}"#);
        }
        assert!(daemon.wait().success(), "{}", daemon.log());
        // The run directory is the next one's, or nobody's.
        assert_eq!(daemon.log().contains("process 1 has taken over"), is_taken, "{}", daemon.log());
        assert_eq!([home.join("control.sock.1"), home.join("lock")].map(|path| path.exists()), [is_taken; 2]);
    }
}

#[test]
fn who_has_taken_over_goes_on_where_the_run_directory_was_removed_meanwhile() {
    let name = "who_has_taken_over_goes_on_where_the_run_directory_was_removed_meanwhile";
    let Some(_turn) = turn(name) else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let home = bed.directory.join("run").join(&bed.tag);
    std::fs::create_dir_all(&home).unwrap();
    let lock = std::fs::File::create(home.join("lock")).unwrap();
    let listener = UnixListener::bind(home.join("handover.sock")).unwrap();
    // The old process, which has no devices.
    let old = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        answer(&stream);
        say(&stream, br#"{"message":"offer","version":"9.0.0","pid":1,"descriptors":1}"#);
        let descriptors = [lock.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        assert!(beside.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(&stream, &[IoSlice::new(b"d")], &mut beside, SendFlags::NOSIGNAL).unwrap();
        assert!(answer(&stream).contains("\"ready\""));
        std::fs::remove_dir_all(&home).unwrap();
        say(&stream, br#"{"message":"state","state":{}}"#);
        assert!(answer(&stream).contains("\"taken\""));
    });
    let mut daemon = bed.take_over(NEIGHBOURS);
    old.join().unwrap();
    assert!(daemon.log().contains("the sockets cannot be renamed in the run directory"), "{}", daemon.log());
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_takeover_of_more_devices_than_a_shell_allows_files_raises_the_limit_or_says_so() {
    let name = "a_takeover_of_more_devices_than_a_shell_allows_files_raises_the_limit_or_says_so";
    let Some(_turn) = turn(name) else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let more = |n| format!("[[switch.tenant.endpoint]]\nname = \"x{n}\"\nport = \"tap://x{n}\"\nnetns = \"NS-c\"\n");
    let text = NEIGHBOURS.to_owned() + &(0..60).map(more).collect::<String>();
    let mut daemon = bed.start(&text);
    let limit = |command: &mut Command, how: &str| {
        let file = bed.directory.join("levada.toml");
        let script =
            format!("ulimit {how} 64; exec {} run --takeover -c {}", env!("CARGO_BIN_EXE_levada"), file.display());
        let mut shell = Command::new("bash");
        shell.args(["-c", &script]).env("LEVADA_RUN_DIR", bed.directory.join("run")).stderr(Stdio::piped());
        *command = shell;
    };
    let mut limited = Command::new("true");
    limit(&mut limited, "-n");
    let output = limited.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("raise the limit of open files (LimitNOFILE="), "{said}");
    soon("the old one goes on", || daemon.log().contains("a takeover failed, and this process goes on"));
    let mut next = bed.start_with(&text, |command| limit(command, "-Sn"));
    assert!(daemon.wait().success());
    assert!(next.end(Signal::TERM).success());
}

#[test]
fn a_takeover_that_fails_keeps_nobody_out_of_the_run_directory() {
    use std::os::unix::fs::MetadataExt as _;
    let Some(_turn) = turn("a_takeover_that_fails_keeps_nobody_out_of_the_run_directory") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let with = |group: &str| NEIGHBOURS.replace("[daemon]", &format!("[daemon]\nsocket_group = \"{group}\""));
    let mut daemon = bed.start(&with("54321"));
    let home = bed.directory.join("run").join(&bed.tag);
    let seen = || {
        let of = |path: &std::path::Path| path.metadata().map(|data| (data.gid(), data.mode() & 0o777)).unwrap();
        (of(&home), of(&home.join("control.sock")))
    };
    assert_eq!(seen(), ((54321, 0o710), (54321, 0o660)));
    // It fails behind its control socket, at the one of takeovers, in whose place something is.
    let file = bed.configuration(&with("54322"));
    let (program, file) = (env!("CARGO_BIN_EXE_levada"), file.display());
    let script = format!("mkdir {}/handover.sock.$$; exec {program} run --takeover -c {file}", home.display());
    let output = Command::new("sh").args(["-c", &script]).env("LEVADA_RUN_DIR", bed.directory.join("run")).output();
    let said = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(said.contains("cannot listen on the takeover socket"), "{said}");
    assert_eq!(seen(), ((54321, 0o710), (54321, 0o660)));
    soon("the old one goes on", || daemon.log().contains("a takeover failed, and this process goes on"));
    let mut next = bed.take_over(&with("54322"));
    assert!(daemon.wait().success());
    assert_eq!(seen(), ((54322, 0o710), (54322, 0o660)));
    let mut last = bed.take_over(NEIGHBOURS);
    assert!(next.wait().success());
    let (directory, socket) = seen();
    assert_eq!((directory.1, socket.1), (0o700, 0o600));
    let left = std::fs::read_dir(&home).unwrap().flatten().map(|entry| entry.path()).find(|path| path.is_dir());
    std::fs::remove_dir(left.unwrap()).unwrap();
    assert!(last.end(Signal::TERM).success());
}

#[test]
fn while_a_takeover_runs_changes_are_refused() {
    let Some(_turn) = turn("while_a_takeover_runs_changes_are_refused") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let mut daemon = bed.start(NEIGHBOURS);
    let set = ["set", "endpoint", "s1/home/a", "limit=5 Mbit/s"];
    let stream = speak(&daemon, &bed, &[br#"{"message":"hello","protocol":1,"version":"9.0.0","pid":1}"#]);
    assert!(answer(&stream).contains("\"offer\""));
    let output = bed.run(&set);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("a takeover runs; try again when it has ended"), "{said}");
    assert!(bed.run(&[&set[..], &["--dry-run"]].concat()).status.success(), "a dry run makes nothing");
    bed.configuration(&NEIGHBOURS.replacen("name = \"a\"", "name = \"a\"\nweight = 2", 1));
    daemon.signal(Signal::HUP);
    soon("nor is the file read", || daemon.log().contains("not reloaded, a takeover runs"));
    assert!(daemon.endpoint("a")["egress"]["limit_bps"].is_null());
    drop(stream);
    soon("the takeover has failed", || daemon.log().contains("a takeover failed, and this process goes on"));
    let output = bed.run(&set);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_process_that_is_silent_when_it_should_take_loses_its_chance() {
    let Some(_turn) = turn("a_process_that_is_silent_when_it_should_take_loses_its_chance") else { return };
    let hello = br#"{"message":"hello","protocol":1,"version":"9.0.0","pid":1}"#;
    let bed = Bed::new(&["a", "b", "c"]);
    let mut daemon = bed.start(NEIGHBOURS);
    let transfer = Transfer::begin(&bed);
    let stream = speak(&daemon, &bed, &[hello]);
    answer(&stream);
    (&stream).read_exact(&mut [0]).unwrap();
    let ready = br#"{"message":"ready"}"#;
    (&stream).write_all(&(ready.len() as u32).to_le_bytes()).unwrap();
    (&stream).write_all(ready).unwrap();
    answer(&stream);
    soon("the daemon has waited enough", || daemon.log().contains("a takeover failed"));
    transfer.goes_on();
    let late = (&stream).write_all(b"\x13\0\0\0{\"message\":\"taken\"}");
    assert!(late.is_err(), "too late");
    transfer.end();
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn of_two_takeovers_at_once_at_most_one_succeeds_at_a_time() {
    let Some(_turn) = turn("of_two_takeovers_at_once_at_most_one_succeeds_at_a_time") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let mut old = bed.start(NEIGHBOURS);
    let transfer = Transfer::begin(&bed);
    transfer.goes_on();
    let file = bed.configuration(NEIGHBOURS);
    let arguments = ["run", "--takeover", "-c", file.to_str().unwrap()];
    let mut two: Vec<_> = (0..2).map(|_| bed.levada(&arguments).stderr(Stdio::null()).spawn().unwrap()).collect();
    assert!(old.wait().success());
    transfer.goes_on();
    // Either the second is refused, or it comes later and takes over from the first, which then
    // ends well.
    let mut running = Vec::new();
    soon("one of them runs", || {
        running = two.iter_mut().map(|child| child.try_wait().unwrap().is_none()).collect::<Vec<_>>();
        running.iter().filter(|runs| **runs).count() < 2
    });
    let output = bed.run(&["show", "--json"]);
    for child in &mut two {
        let _ = child.kill();
        let _ = child.wait();
    }
    assert_eq!(running.iter().filter(|r| **r).count(), 1, "{running:?}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    transfer.stop.store(true, Ordering::Relaxed);
}

/// A service manager's socket: what came, and the descriptors that it stores, with their names.
pub struct Manager {
    path: std::path::PathBuf,
    socket: UnixDatagram,
    said: String,
    pub store: Vec<(String, OwnedFd)>,
}

impl Manager {
    pub fn new(bed: &Bed) -> Manager {
        let path = bed.directory.join("notify.sock");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        Manager { path, socket, said: String::new(), store: Vec::new() }
    }

    /// Reads until `text` has come.
    pub fn hears(&mut self, text: &str) {
        soon(text, || {
            self.listen();
            self.said.contains(text)
        });
        self.said.clear();
    }

    /// Reads until it stores so many descriptors.
    pub fn keeps(&mut self, count: usize) {
        soon(&format!("{count} descriptors in the store"), || {
            while self.listen() {}
            self.store.len() == count
        });
        self.said.clear();
    }

    /// Where it listens.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Reads what comes while something is done: a manager that does not has its messages dropped.
    pub fn meanwhile<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let work = scope.spawn(work);
            while !work.is_finished() {
                self.listen();
            }
            work.join().unwrap()
        })
    }

    /// Reads a message. False: none waits.
    fn listen(&mut self) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 4096];
        let into = &mut [IoSliceMut::new(&mut bytes)];
        // Not for the processes that other tests start meanwhile.
        let flags = RecvFlags::CMSG_CLOEXEC;
        let Ok(got) = recvmsg(&self.socket, into, &mut ancillary, flags) else { return false };
        let message = String::from_utf8(bytes[..got.bytes].to_vec()).unwrap();
        let named = |what: &str| message.strip_prefix(what).and_then(|rest| rest.strip_prefix("=1\nFDNAME="));
        // As systemd does: what ended is left out, and what is there already is not taken again.
        self.store.retain(|(_, fd)| {
            let mut seen = [PollFd::new(fd, PollFlags::empty())];
            let _ = poll(&mut seen, Some(&Timespec::default()));
            !seen[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
        });
        for part in ancillary.drain() {
            if let (RecvAncillaryMessage::ScmRights(fds), Some(name)) = (part, named("FDSTORE"))
                && self.store.iter().all(|(known, _)| known != name)
            {
                self.store.extend(fds.map(|fd| (name.to_owned(), fd)));
            }
        }
        if let Some(gone) = named("FDSTOREREMOVE") {
            self.store.retain(|(name, _)| name != gone);
        }
        self.said += &(message + "\n");
        true
    }

    /// Starts a daemon as a manager does, which stays the same process when it becomes the daemon.
    fn start(&self, bed: &Bed) -> Daemon {
        self.start_as(bed, NEIGHBOURS)
    }

    pub fn start_as(&self, bed: &Bed, text: &str) -> Daemon {
        // Above those that the shell gives: else one may be overwritten before it is copied.
        let inherited = |(_, fd): &(String, OwnedFd)| {
            let copy = fcntl_dupfd_cloexec(fd, 500).unwrap();
            fcntl_setfd(&copy, FdFlags::empty()).unwrap();
            copy
        };
        let inherited: Vec<OwnedFd> = self.store.iter().map(inherited).collect();
        bed.start_with(text, |command| {
            let number = |(at, fd): (usize, &OwnedFd)| format!("{}<&{}", at + 3, fd.as_raw_fd());
            let names: Vec<&str> = self.store.iter().map(|(name, _)| name.as_str()).collect();
            let words: Vec<String> = inherited.iter().enumerate().map(number).collect();
            let environment = format!("LISTEN_PID=$$ LISTEN_FDS={} WATCHDOG_USEC=200000", self.store.len());
            let daemon = env!("CARGO_BIN_EXE_levada");
            let file = bed.directory.join("levada.toml");
            let environment = format!("{environment} LISTEN_FDNAMES='{}'", names.join(":"));
            let script = format!("export {environment}; exec {daemon} run -c {} {}", file.display(), words.join(" "));
            // dash takes one digit as the number of a descriptor; a test may have more open.
            let mut shell = std::process::Command::new("bash");
            shell.args(["-c", &script]).env("LEVADA_RUN_DIR", bed.directory.join("run"));
            shell.env("NOTIFY_SOCKET", &self.path).stderr(Stdio::piped());
            *command = shell;
        })
    }
}

#[test]
fn a_service_manager_is_not_left_with_an_interface_that_the_host_needs() {
    let Some(_turn) = bpf_turn("a_service_manager_is_not_left_with_an_interface_that_the_host_needs") else { return };
    let bed = crate::interfaces::bed();
    let mut manager = Manager::new(&bed);
    let mut daemon = manager.start_as(&bed, TAKEN);
    let session = Session::begin(&bed);
    for _ in 0..2 {
        session.step("with a switch", 10);
        daemon.signal(Signal::TERM);
        manager.hears("BARRIER=1");
        assert!(daemon.wait().success(), "{}", daemon.log());
        assert_eq!(manager.store.len(), 2, "the endpoints' devices");
        let hooks = hooks_of(&bed);
        assert_eq!((hooks.ingress, hooks.egress), (0, 0));
        session.step("without one", 10);
        daemon = manager.start_as(&bed, TAKEN);
        manager.keeps(2);
    }
    session.end();
}

#[test]
fn with_a_service_manager_devices_outlive_a_kill() {
    let Some(_turn) = turn("with_a_service_manager_devices_outlive_a_kill") else { return };
    outlive_kills(NEIGHBOURS);
}

#[test]
fn with_a_service_manager_pairs_outlive_a_kill_too() {
    let Some(_turn) = turn("with_a_service_manager_pairs_outlive_a_kill_too") else { return };
    outlive_kills(&pairs().replace("[[switch]]", "[[switch]]\nshortcut = false"));
}

/// What a shortcut would take is lost until the next daemon is there, and sent again.
#[test]
fn with_a_service_manager_a_connection_over_a_shortcut_outlives_a_kill() {
    let Some(_turn) = turn("with_a_service_manager_a_connection_over_a_shortcut_outlives_a_kill") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let mut manager = Manager::new(&bed);
    let mut daemon = manager.start_as(&bed, &pairs());
    manager.keeps(3);
    let transfer = Transfer::begin(&bed);
    for _ in 0..3 {
        transfer.goes_on();
        daemon.end(Signal::KILL);
        daemon = manager.start_as(&bed, &pairs());
        manager.keeps(3);
    }
    transfer.goes_on();
    transfer.end();
    soon("it has its shortcut again", || daemon.endpoint("a")["shortcut"]["egress"] == "on");
    assert!(daemon.end(Signal::TERM).success());
}

fn outlive_kills(text: &str) {
    let bed = Bed::new(&["a", "b", "c"]);
    let mut manager = Manager::new(&bed);
    let index = |space| bed.ip(space, "-o link show dev tap0").map(|text| text.split(':').next().unwrap().to_owned());
    let mut daemon = manager.start_as(&bed, text);
    manager.keeps(3);
    let (first, transfer) = (index("a").unwrap(), Transfer::begin(&bed));
    for _ in 0..3 {
        transfer.goes_on();
        daemon.end(Signal::KILL);
        assert_eq!(index("a").unwrap(), first, "nobody runs, and the device is there");
        daemon = manager.start_as(&bed, text);
        manager.keeps(3);
    }
    transfer.goes_on();
    transfer.end();
    // What an endpoint sends while nobody runs waits in its ring.
    let receiver = bed.socket("b", (B, PORT));
    receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let sender = bed.socket("a", (A, 0));
    daemon.end(Signal::KILL);
    for number in 0..100u8 {
        sender.send_to(&[number], (B, PORT)).unwrap();
    }
    daemon = manager.start_as(&bed, text);
    for number in 0..100u8 {
        let mut byte = [0];
        receiver.recv(&mut byte).expect("none of them is lost");
        assert_eq!(byte, [number]);
    }
    // An endpoint that is deleted takes its device along, whatever the manager still holds.
    let less = text.split_inclusive("[[switch.tenant.endpoint]]").take(3).collect::<String>();
    let less = less.trim_end_matches("[[switch.tenant.endpoint]]");
    manager.keeps(3);
    let apply = |wanted: &str| {
        let file = bed.configuration(wanted);
        let output = bed.run(&["apply", file.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    for _ in 0..5 {
        manager.meanwhile(|| apply(less));
        assert!(index("c").is_err(), "its device is gone");
        manager.meanwhile(|| apply(text));
        assert!(index("c").is_ok(), "{}", daemon.log());
        manager.keeps(3);
    }
    manager.meanwhile(|| apply(less));
    manager.keeps(2);
    // One that others delete is made again, and stored again.
    bed.ip("a", "link delete dev tap0").unwrap();
    soon("it is made again", || index("a").is_ok_and(|now| now != first));
    manager.keeps(2);
    let again = index("a").unwrap();
    daemon.end(Signal::KILL);
    daemon = manager.start_as(&bed, less);
    assert_eq!(index("a").unwrap(), again);
    // One that went while nobody ran, with its container or by hand, is made anew.
    daemon.end(Signal::KILL);
    bed.ip("a", "link delete dev tap0").unwrap();
    daemon = manager.start_as(&bed, less);
    soon("it is made anew", || index("a").is_ok_and(|now| now != again));
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_service_manager_is_told_and_keeps_the_devices() {
    let Some(_turn) = turn("a_service_manager_is_told_and_keeps_the_devices") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let mut manager = Manager::new(&bed);
    let index = |bed: &Bed| bed.ip("a", "-o link show dev tap0").unwrap().split(':').next().unwrap().to_owned();
    let mut daemon = manager.start(&bed);
    manager.hears("READY=1\nSTATUS=");
    manager.keeps(3);
    let (first, transfer) = (index(&bed), Transfer::begin(&bed));
    for _ in 0..2 {
        transfer.goes_on();
        manager.hears("WATCHDOG=1");
        daemon.signal(Signal::HUP);
        manager.hears("RELOADING=1\nMONOTONIC_USEC=");
        manager.hears("READY=1\nSTATUS=reloaded");
        daemon.signal(Signal::TERM);
        manager.hears("STOPPING=1");
        // The daemon waits until the manager has read all of it.
        manager.hears("BARRIER=1");
        assert!(daemon.wait().success(), "{}", daemon.log());
        assert_eq!(manager.store.len(), 3);
        assert_eq!(index(&bed), first, "nobody runs, and the device is there");
        daemon = manager.start(&bed);
        manager.hears("READY=1\nSTATUS=");
        manager.keeps(3);
        assert_eq!(index(&bed), first, "it goes on with the same device");
    }
    transfer.goes_on();
    transfer.end();
    // A worker that does not answer is not vouched for.
    manager.hears("WATCHDOG=1");
    daemon.freeze();
    while manager.socket.recv(&mut [0; 4096]).is_ok() {}
    std::thread::sleep(Duration::from_millis(500));
    assert!(manager.socket.recv(&mut [0; 4096]).is_err(), "nothing more is said");
    daemon.signal(Signal::CONT);
    manager.hears("WATCHDOG=1");
    // It keeps the rights that ports need, and no way to others.
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let rights = |key: &str| {
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        u64::from_str_radix(line.split_whitespace().last().unwrap(), 16).unwrap()
    };
    // CHOWN, DAC_OVERRIDE, NET_ADMIN, NET_RAW, SYS_ADMIN, SYS_NICE, PERFMON, BPF
    // (linux/capability.h).
    let kept = [0, 1, 12, 13, 21, 23, 38, 39].iter().fold(0, |set, bit| set | 1u64 << bit);
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        assert_eq!(rights(set) & !kept, 0, "{set}");
    }
    assert_eq!(rights("NoNewPrivs"), 1);
}
