//! Virtual machines by vhost-user, played by a front end in memory; and front ends that die, lie or shout.

use crate::testbed::{Bed, Daemon, soon, turn};
use ports::vhost::feature;
use ports::vhost::front_end::FrontEnd;
use rustix::process::Signal;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

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
        let frame = frame(from, to, mark);
        self.front_end.reclaim(0);
        other.front_end.offer(0, 8, 1536);
        other.front_end.kick(0);
        assert!(self.front_end.send(0, &[], &frame));
        self.front_end.kick(1);
        for _ in 0..500 {
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
    assert!(daemon.end(Signal::TERM).success());
    assert!(!socket(&bed, "b").exists() && socket(&bed, "a").exists(), "its own is gone");
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
    let mut a = Machine::with(a.front_end, accept(&listener));
    let mut b = Machine::with(b.front_end, UnixStream::connect(socket(&bed, "b")).unwrap());
    soon("both are up again", || is_up(&daemon, "a") && is_up(&daemon, "b"));
    assert!(a.reaches(&mut b, 1, 2, 21) && b.reaches(&mut a, 2, 1, 22));
}

#[test]
fn machines_go_on_behind_a_process_that_takes_over() {
    let Some(_turn) = turn("machines_go_on_behind_a_process_that_takes_over") else { return };
    let bed = Bed::new(&[]);
    let mut old = bed.start(&text(&bed));
    let listener = UnixListener::bind(socket(&bed, "a")).unwrap();
    let a = Machine::new(accept(&listener));
    let b = Machine::new(UnixStream::connect(socket(&bed, "b")).unwrap());
    soon("both are up", || is_up(&old, "a") && is_up(&old, "b"));
    let daemon = bed.take_over(&text(&bed));
    assert!(old.wait().success());
    let mut a = Machine::with(a.front_end, accept(&listener));
    let mut b = Machine::with(b.front_end, UnixStream::connect(socket(&bed, "b")).unwrap());
    soon("both are up again", || is_up(&daemon, "a") && is_up(&daemon, "b"));
    assert!(a.reaches(&mut b, 1, 2, 1) && b.reaches(&mut a, 2, 1, 2));
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
    ends(&words(&[3, 1, 0]).repeat(1100), "more than 1000 things in a second");
    assert!(is_up(&daemon, "a"));
    let mut a = a;
    let mut b = Machine::new(UnixStream::connect(socket(&bed, "b")).unwrap());
    soon("b is up", || is_up(&daemon, "b"));
    assert!(a.reaches(&mut b, 1, 2, 1));
    drop(a.stream);
}
