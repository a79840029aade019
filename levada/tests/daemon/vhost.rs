//! Virtual machines by vhost-user, played by a front end in memory; and front ends that die, lie or
//! shout.

use crate::privileges::assert_confined;
use crate::restart::{answer, say, speak};
use crate::testbed::{Bed, Calm, Daemon, PATIENCE, soon, turn};
use ports::vhost::feature;
use ports::vhost::front_end::FrontEnd;
use ports::vhost::message::{HEADER_BYTES, Request};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Signal;
use std::io::{IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Endpoints a, which the switch connects to, and b, which connects to it.
const TWO: &str = r#"
[daemon]
name = "NAME"
[[switch]]
name = "s1"
[[switch.tenant]]
name = "home"
[[switch.tenant.endpoint]]
name = "a"
port = "vhost-user://DIR/a.sock"
mac = "02:00:00:00:07:01"
[[switch.tenant.endpoint]]
name = "b"
port = "vhost-user://DIR/b.sock"
mac = "02:00:00:00:07:02"
listen = true
"#;

const FEATURES: u64 =
    feature::VERSION_1 | feature::PROTOCOL_FEATURES | feature::MRG_RXBUF | feature::EVENT_IDX | feature::OFFLOADS;
const ENTRIES: u16 = 64;

fn socket(bed: &Bed, name: &str) -> PathBuf {
    bed.directory.join(format!("{name}.sock"))
}

fn text(bed: &Bed) -> String {
    TWO.replace("DIR", bed.directory.to_str().unwrap())
}

fn is_up(daemon: &Daemon, endpoint: &str) -> bool {
    daemon.endpoint(endpoint)["state"] == "up"
}

/// A machine whose rings run.
struct Machine {
    front_end: FrontEnd,
    stream: UnixStream,
}

impl Machine {
    fn new(stream: UnixStream) -> Machine {
        Machine::with(FrontEnd::new(1, ENTRIES, FEATURES).unwrap(), stream)
    }

    fn with(front_end: FrontEnd, stream: UnixStream) -> Machine {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        front_end.speak(&stream).unwrap();
        Machine { front_end, stream }
    }

    /// Sends a frame to another; false where it does not arrive soon.
    fn reaches(&mut self, other: &mut Machine, from: u8, to: u8, mark: u8) -> bool {
        self.reaches_in(500, other, [from, to, mark])
    }

    /// The same within so many looks, 2 ms apart.
    fn reaches_in(&mut self, looks: usize, other: &mut Machine, [from, to, mark]: [u8; 3]) -> bool {
        let frame = frame(from, to, mark);
        self.front_end.reclaim(0);
        other.front_end.offer(0, 8, 1536);
        other.front_end.kick(0);
        assert!(self.front_end.send(0, &[], &frame));
        self.front_end.kick(1);
        for _ in 0..looks {
            while let Some((_, got)) = other.front_end.receive(0) {
                if got == frame {
                    return true;
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }
}

fn frame(from: u8, to: u8, mark: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 7, to, 2, 0, 0, 0, 7, from, 0x88, 0xb5];
    frame.resize(60, mark);
    frame
}

fn accept(listener: &UnixListener) -> UnixStream {
    listener.set_nonblocking(false).unwrap();
    listener.accept().unwrap().0
}

#[test]
fn machines_come_and_go_whoever_connects_and_their_frames_pass() {
    let Some(_turn) = turn("machines_come_and_go_whoever_connects_and_their_frames_pass") else { return };
    let bed = Bed::new(&[]);
    let mut daemon = bed.start(&text(&bed));
    let mode = std::fs::metadata(socket(&bed, "b")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let listener = UnixListener::bind(socket(&bed, "a")).unwrap();
    let mut a = Machine::new(accept(&listener));
    let mut b = Machine::new(UnixStream::connect(socket(&bed, "b")).unwrap());
    soon("both are up", || is_up(&daemon, "a") && is_up(&daemon, "b"));
    assert!(a.reaches(&mut b, 1, 2, 1) && b.reaches(&mut a, 2, 1, 2));
    assert_eq!(daemon.endpoint("a")["drops"], serde_json::json!({}));
    // One machine a port.
    let mut second = UnixStream::connect(socket(&bed, "b")).unwrap();
    assert_eq!(second.read(&mut [0; 8]).unwrap(), 0);
    soon("it is said", || daemon.log().contains("is refused: another is connected"));
    assert!(a.reaches(&mut b, 1, 2, 3));
    // A machine ends, and another comes.
    drop(a);
    soon("a is down", || !is_up(&daemon, "a"));
    let mut a = Machine::new(accept(&listener));
    drop(b);
    soon("b is down", || !is_up(&daemon, "b"));
    let mut b = Machine::new(UnixStream::connect(socket(&bed, "b")).unwrap());
    soon("both are up again", || is_up(&daemon, "a") && is_up(&daemon, "b"));
    assert!(a.reaches(&mut b, 1, 2, 4) && b.reaches(&mut a, 2, 1, 5));
    // Its socket is another's that has gone, as after a takeover that failed: it makes it again.
    std::fs::remove_file(socket(&bed, "b")).unwrap();
    drop(UnixListener::bind(socket(&bed, "b")).unwrap());
    soon("it is said", || daemon.log().contains("its socket was gone, and is made again"));
    drop(b);
    soon("b is down", || !is_up(&daemon, "b"));
    let mut b = Machine::new(UnixStream::connect(socket(&bed, "b")).unwrap());
    soon("b is up again", || is_up(&daemon, "b"));
    assert!(a.reaches(&mut b, 1, 2, 6));
    assert!(daemon.end(Signal::TERM).success());
    assert!(!socket(&bed, "b").exists() && socket(&bed, "a").exists(), "its own is gone");
}

#[test]
fn a_socket_whose_directory_is_removed_is_made_again_for_its_group() {
    let name = "a_socket_whose_directory_is_removed_is_made_again_for_its_group";
    let Some(_turn) = turn(name) else { return };
    let bed = Bed::new(&[]);
    let text = text(&bed).replace("b.sock", "vm/b.sock");
    let daemon = bed.start(&format!("{text}group = \"root\"\n"));
    let (directory, socket) = (bed.directory.join("vm"), bed.directory.join("vm/b.sock"));
    let again = || daemon.log().matches("its socket was gone, and is made again").count();
    for round in 1..=2 {
        std::fs::remove_dir_all(&directory).unwrap();
        soon("it is made again", || again() == round);
        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let _b = Machine::new(UnixStream::connect(&socket).unwrap());
        soon("b is up", || is_up(&daemon, "b"));
    }
    // What cannot be is said once.
    std::fs::remove_file(&socket).unwrap();
    std::fs::create_dir(&socket).unwrap();
    soon("it is said", || daemon.log().contains("it is no socket"));
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(daemon.log().matches("it is no socket").count(), 1, "{}", daemon.log());
    std::fs::remove_dir(&socket).unwrap();
    soon("and then it can", || again() == 3);
}

#[test]
fn a_machine_outlives_the_daemon_and_goes_on_with_its_rings() {
    let Some(_turn) = turn("a_machine_outlives_the_daemon_and_goes_on_with_its_rings") else { return };
    let bed = Bed::new(&[]);
    let mut daemon = bed.start(&text(&bed));
    let listener = UnixListener::bind(socket(&bed, "a")).unwrap();
    let mut a = Machine::new(accept(&listener));
    let mut b = Machine::new(UnixStream::connect(socket(&bed, "b")).unwrap());
    for mark in 0..20 {
        assert!(a.reaches(&mut b, 1, 2, mark), "{mark}");
    }
    daemon.end(Signal::KILL);
    let daemon = bed.start(&text(&bed));
    let ready = Instant::now();
    let mut a = Machine::with(a.front_end, accept(&listener));
    let mut b = Machine::with(b.front_end, UnixStream::connect(socket(&bed, "b")).unwrap());
    while !a.reaches_in(2, &mut b, [1, 2, 21]) {
        assert!(ready.elapsed() < Duration::from_secs(60), "{}", daemon.log());
    }
    println!("the first frame {} us after the new process was ready", ready.elapsed().as_micros());
    assert!(is_up(&daemon, "a") && is_up(&daemon, "b"));
    assert!(a.reaches(&mut b, 1, 2, 22) && b.reaches(&mut a, 2, 1, 23));
}

/// Numbered frames from one machine to another, a few at a time.
struct Flow {
    from: u8,
    to: u8,
    sent: u64,
    got: u64,
}

/// Frames of a flow that are under way at most: fewer than a ring has buffers.
const WINDOW: u64 = 16;

impl Flow {
    fn new(from: u8, to: u8) -> Flow {
        Flow { from, to, sent: 0, got: 0 }
    }

    /// Sends what may be sent, and takes what has come: each frame once, and in order.
    fn step(&mut self, sender: &mut Machine, receiver: &mut Machine) {
        receiver.front_end.offer(0, ENTRIES.into(), 1536);
        receiver.front_end.kick(0);
        sender.front_end.reclaim(0);
        while self.sent - self.got < WINDOW {
            let mut frame = frame(self.from, self.to, 0);
            frame[14..22].copy_from_slice(&self.sent.to_be_bytes());
            if !sender.front_end.send(0, &[], &frame) {
                break;
            }
            self.sent += 1;
        }
        sender.front_end.kick(1);
        while let Some((_, frame)) = receiver.front_end.receive(0) {
            if frame[12..14] == [0x88, 0xb5] {
                assert_eq!(u64::from_be_bytes(frame[14..22].try_into().unwrap()), self.got);
                self.got += 1;
            }
        }
    }
}

/// Frames both ways between two machines.
struct Both {
    machines: [Machine; 2],
    flows: [Flow; 2],
}

impl Both {
    /// Two machines at the ports of [`TWO`], whose frames pass.
    fn begin(bed: &Bed, daemon: &Daemon, listener: &UnixListener) -> Both {
        let a = Machine::new(accept(listener));
        let b = Machine::new(UnixStream::connect(socket(bed, "b")).unwrap());
        soon("both are up", || is_up(daemon, "a") && is_up(daemon, "b"));
        let mut both = Both { machines: [a, b], flows: [Flow::new(1, 2), Flow::new(2, 1)] };
        both.go_on();
        both
    }

    fn step(&mut self) {
        let [a, b] = &mut self.machines;
        self.flows[0].step(a, b);
        self.flows[1].step(b, a);
    }

    /// Until a thousand more have come each way.
    fn go_on(&mut self) {
        let wanted = self.flows.each_ref().map(|flow| flow.got + 1000);
        soon("frames go on", || {
            (0..200).for_each(|_| self.step());
            self.flows.iter().zip(wanted).all(|(flow, wanted)| flow.got >= wanted)
        });
    }

    /// Whatever is under way arrives.
    fn end(&mut self) {
        let sent = self.flows.each_ref().map(|flow| flow.sent);
        soon("all that was sent has come", || {
            self.step();
            self.flows.iter().zip(sent).all(|(flow, sent)| flow.got >= sent)
        });
    }

    /// Both sockets are served: a request is answered.
    fn ask(&mut self) {
        for machine in &mut self.machines {
            machine.stream.write_all(&Request::GetQueueNum.message(false).unwrap()).unwrap();
            machine.stream.read_exact(&mut [0; HEADER_BYTES + 8]).unwrap();
        }
    }
}

#[test]
fn machines_go_on_behind_a_process_that_takes_over_and_no_frame_is_lost() {
    let Some(_turn) = turn("machines_go_on_behind_a_process_that_takes_over_and_no_frame_is_lost") else { return };
    let bed = Bed::new(&[]);
    let mut daemon = bed.start(&text(&bed));
    let listener = UnixListener::bind(socket(&bed, "a")).unwrap();
    let mut both = Both::begin(&bed, &daemon, &listener);
    for _ in 0..5 {
        let next = std::thread::scope(|scope| {
            let taking = scope.spawn(|| bed.take_over(&text(&bed)));
            while !taking.is_finished() {
                both.step();
            }
            taking.join().unwrap()
        });
        assert!(daemon.wait().success(), "{}", daemon.log());
        daemon = next;
        both.go_on();
        both.ask();
        assert!(is_up(&daemon, "a") && is_up(&daemon, "b"), "{}", daemon.log());
        assert_eq!(daemon.endpoint("a")["drops"], serde_json::json!({}));
    }
    both.end();
    // A guest that reboots is told where its rings stand.
    let [mut a, _b] = both.machines;
    a.stream.write_all(&Request::GetVringBase(1).message(false).unwrap()).unwrap();
    let mut answer = [0; HEADER_BYTES + 8];
    a.stream.read_exact(&mut answer).unwrap();
    // What was still under way may be taken until the ring stands.
    let used = a.front_end.used(1);
    assert_eq!(u32::from_ne_bytes(answer[HEADER_BYTES + 4..].try_into().unwrap()), u32::from(used));
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_takeover_that_fails_at_its_last_step_costs_machines_nothing() {
    let Some(_turn) = turn("a_takeover_that_fails_at_its_last_step_costs_machines_nothing") else { return };
    let bed = Bed::new(&[]);
    let daemon = bed.start(&text(&bed));
    let listener = UnixListener::bind(socket(&bed, "a")).unwrap();
    let mut both = Both::begin(&bed, &daemon, &listener);
    for _ in 0..3 {
        let mut stream = speak(&daemon, &bed, &[br#"{"message": "hello", "protocol": 1, "version": "0", "pid": 1}"#]);
        assert!(answer(&stream).contains("offer"));
        // Beside it come descriptors, which are closed unseen.
        stream.read_exact(&mut [0]).unwrap();
        say(&stream, br#"{"message": "ready"}"#);
        let state = answer(&stream);
        assert!(state.contains("a.sock") && state.contains("b.sock"), "{state}");
        // These wait in rings that nobody uses now.
        both.step();
        drop(stream);
        both.go_on();
        both.ask();
    }
    both.end();
    assert!(is_up(&daemon, "a") && is_up(&daemon, "b"));
    assert_eq!(daemon.log().matches("this process goes on").count(), 3, "{}", daemon.log());
    assert_eq!(daemon.endpoint("a")["drops"], serde_json::json!({}));
}

#[test]
fn front_ends_that_make_no_sense_are_ended_by_name_and_others_notice_nothing() {
    let name = "front_ends_that_make_no_sense_are_ended_by_name_and_others_notice_nothing";
    let Some(_turn) = turn(name) else { return };
    let bed = Bed::new(&[]);
    let daemon = bed.start(&text(&bed));
    let listener = UnixListener::bind(socket(&bed, "a")).unwrap();
    let a = Machine::new(accept(&listener));
    let ends = |bytes: &[u8], why: &str| {
        let mut stream = UnixStream::connect(socket(&bed, "b")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answers = Vec::new();
        // It may be ended with some of what was sent unread.
        let _ = stream.read_to_end(&mut answers);
        soon(why, || daemon.log().contains(why));
    };
    let words = |all: &[u32]| all.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
    ends(&words(&[1, 2, 0]), "a message has version 2");
    ends(&words(&[5, 1, 1 << 20]), "more than 2048");
    ends(&words(&[5, 1, 8, 0, 0]), "its memory is not shared");
    ends(&words(&[8, 1, 8, 9, 256]), "it speaks of ring 9");
    ends(&words(&[1, 1]), "half a message");
    ends(&words(&[3, 1, 0]).repeat(1100), "more than 1000 messages in a second");
    assert!(is_up(&daemon, "a"));
    let mut a = a;
    let mut b = Machine::new(UnixStream::connect(socket(&bed, "b")).unwrap());
    soon("b is up", || is_up(&daemon, "b"));
    assert!(a.reaches(&mut b, 1, 2, 1));
    drop(a.stream);
}

/// Whoever closes what [`lingering`] gives waits for so long.
const LINGERS: Duration = Duration::from_secs(30);

/// A socket that keeps who closes it waiting for half a minute.
fn lingering() -> (TcpListener, TcpStream, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    near.set_nonblocking(true).unwrap();
    while near.write(&[0; 1 << 16]).is_ok() {}
    near.set_nonblocking(false).unwrap();
    rustix::net::sockopt::set_socket_linger(&near, Some(LINGERS)).unwrap();
    (listener, far, near.into())
}

/// Sends bytes, and a descriptor of which there is no other.
fn give(stream: &UnixStream, bytes: &[u8], descriptor: OwnedFd) {
    let lent = [descriptor.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    assert!(beside.push(SendAncillaryMessage::ScmRights(&lent)));
    if sendmsg(stream, &[IoSlice::new(bytes)], &mut beside, SendFlags::NOSIGNAL).is_err() {
        // Whoever closes it waits, so nobody does.
        std::mem::forget(descriptor);
    }
}

#[test]
fn descriptors_that_take_long_to_be_closed_keep_nobody_waiting() {
    let Some(_turn) = turn("descriptors_that_take_long_to_be_closed_keep_nobody_waiting") else { return };
    let bed = Bed::new(&[]);
    let daemon = bed.start(&text(&bed));
    let listener = UnixListener::bind(socket(&bed, "a")).unwrap();
    let a = Machine::new(accept(&listener));
    let question = Request::GetQueueNum.message(false).unwrap();
    let asks = |mut stream: &UnixStream| {
        stream.set_read_timeout(Some(LINGERS * 2 / 3)).unwrap();
        stream.write_all(&question).unwrap();
        stream.read_exact(&mut [0; HEADER_BYTES + 8]).unwrap();
    };
    let is_served = |why: &str, weight: u32| {
        let began = Calm::now();
        asks(&a.stream);
        let output = bed.run(&["set", "endpoint", "s1/home/a", &format!("weight={weight}")]);
        assert!(output.status.success(), "{why}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(began.elapsed() < Duration::from_secs(2), "{why}: {:?}", began.elapsed());
    };
    // Of a message that does not take it, half of which comes first: so the daemon's is the last.
    let (_tcp, _far, descriptor) = lingering();
    let mut b = UnixStream::connect(socket(&bed, "b")).unwrap();
    give(&b, &question[..4], descriptor);
    b.write_all(&question[4..]).unwrap();
    is_served("beside a message", 2);
    b.set_read_timeout(Some(LINGERS * 2 / 3)).unwrap();
    b.read_exact(&mut [0; HEADER_BYTES + 8]).unwrap();
    // Behind what ends the session, unread; and its own next session is served as well.
    let (_tcp, _far, descriptor) = lingering();
    b.write_all(&[1, 2, 0].map(u32::to_ne_bytes).concat()).unwrap();
    give(&b, &question[..4], descriptor);
    drop(b);
    is_served("behind the last message", 3);
    // The one that waits has no more rights than the one that has started it.
    let names = assert_confined(&daemon);
    assert_eq!((names["levada-vhost"], names["levada-closing"]), (1, 2), "{names:?}");
    let b = UnixStream::connect(socket(&bed, "b")).unwrap();
    asks(&b);
    // Of who is refused.
    let (_tcp, _far, descriptor) = lingering();
    let second = UnixStream::connect(socket(&bed, "b")).unwrap();
    give(&second, &question[..4], descriptor);
    drop(second);
    is_served("refused", 4);
    asks(&b);
    // More than may wait: the session ends by name, and others do not.
    for _ in 0..400 {
        let (one, _other) = UnixStream::pair().unwrap();
        give(&b, &question, one.into());
    }
    soon("it is said", || daemon.log().contains("what it has sent takes long to be closed"));
    is_served("full", 5);
}

#[test]
fn a_front_end_that_always_fails_is_told_of_once() {
    let Some(_turn) = turn("a_front_end_that_always_fails_is_told_of_once") else { return };
    let bed = Bed::new(&[]);
    let daemon = bed.start(&text(&bed));
    let fails = || {
        let mut stream = UnixStream::connect(socket(&bed, "b")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // SET_MEM_TABLE without a descriptor.
        stream.write_all(&[5u32, 1, 8, 0, 0].map(u32::to_ne_bytes).concat()).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    };
    let lines =
        |what: &str| daemon.log().lines().filter(|line| line.contains("s1/home/b: ") && line.contains(what)).count();
    fails();
    soon("it is said why", || lines("its session has ended") == 1);
    for _ in 0..4 {
        fails();
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!((lines("connected with"), lines("its session has ended")), (1, 1), "{}", daemon.log());
    // One that runs is told of, and so is its end.
    let b = Machine::new(UnixStream::connect(socket(&bed, "b")).unwrap());
    soon("b is up", || is_up(&daemon, "b") && lines("its guest runs") > 0);
    drop(b);
    soon("its end is said", || lines("its session has ended") == 2);
    fails();
    soon("and the next failure", || lines("its session has ended") == 3);
}

#[test]
fn a_change_that_is_refused_leaves_sessions_as_they_are() {
    let Some(_turn) = turn("a_change_that_is_refused_leaves_sessions_as_they_are") else { return };
    let bed = Bed::new(&[]);
    let daemon = bed.start(&text(&bed));
    let listener = UnixListener::bind(socket(&bed, "a")).unwrap();
    let mut both = Both::begin(&bed, &daemon, &listener);
    let other = text(&bed)
        .replace("a.sock\"\n", "a.sock\"\nmtu = 9000\n")
        .replace("listen = true", "listen = true\nmtu = 9000");
    let refused = format!("{other}[[switch.tenant.endpoint]]\nname = \"x\"\nport = \"tap://x\"\nnetns = \"/no\"\n");
    let output = bed.run(&["apply", bed.configuration(&refused).to_str().unwrap()]);
    assert!(!output.status.success());
    both.go_on();
    both.ask();
    assert!(!daemon.log().contains("its session has ended"), "{}", daemon.log());
    // One that is made offers it anew.
    let output = bed.run(&["apply", bed.configuration(&other).to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    soon("they end", || daemon.log().matches("its session has ended: its configuration has changed").count() == 2);
    assert_eq!(daemon.endpoint("a")["losses"], 1, "it counts as one");
    drop(both);
    Both::begin(&bed, &daemon, &listener).go_on();
}

#[test]
fn who_shouts_silences_nobody_else() {
    let Some(_turn) = turn("who_shouts_silences_nobody_else") else { return };
    let bed = Bed::new(&[]);
    let daemon = bed.start(&text(&bed));
    let listener = UnixListener::bind(socket(&bed, "a")).unwrap();
    let a = Machine::new(accept(&listener));
    soon("a is up", || is_up(&daemon, "a"));
    let fails = |version: u32| {
        let mut stream = UnixStream::connect(socket(&bed, "b")).unwrap();
        stream.write_all(&[1, version, 0].map(u32::to_ne_bytes).concat()).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    };
    // Each ends for another reason than the one before.
    let lines = || daemon.log().matches("s1/home/b: its session has ended").count();
    let began = Instant::now();
    let mut a = Some(a);
    while began.elapsed() < Duration::from_millis(2500) || began.elapsed() < PATIENCE && lines() < 4 {
        fails(2);
        fails(3);
        if began.elapsed() > Duration::from_millis(1500) {
            a = None;
        }
    }
    assert!(a.is_none());
    soon("it is said", || daemon.log().contains("s1/home/a: its session has ended"));
    let (before, seconds) = (lines(), began.elapsed().as_secs() as usize);
    assert!((4..=4 * (seconds + 2)).contains(&before), "{before} lines in {seconds} s");
    // What was dropped is told the next time; what was not, is not.
    std::thread::sleep(Duration::from_millis(1100));
    fails(2);
    fails(3);
    soon("it is told", || lines() > before);
}

#[test]
fn a_machine_is_called_by_the_name_that_its_endpoint_has_now() {
    let Some(_turn) = turn("a_machine_is_called_by_the_name_that_its_endpoint_has_now") else { return };
    let bed = Bed::new(&[]);
    let daemon = bed.start(&text(&bed));
    let b = Machine::new(UnixStream::connect(socket(&bed, "b")).unwrap());
    soon("b is up", || is_up(&daemon, "b"));
    let renamed = text(&bed).replace("name = \"b\"", "name = \"bee\"");
    let output = bed.run(&["apply", bed.configuration(&renamed).to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(is_up(&daemon, "bee"), "its session goes on");
    drop(b);
    soon("it is called so", || daemon.log().contains("s1/home/bee: its session has ended"));
}
