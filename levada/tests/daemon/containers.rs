//! Containers: network namespaces that a process is in and that have no name. The daemon may not
//! look at processes, so whoever changes it passes the namespace on.

use crate::privileges::assert_confined;
use crate::restart::Manager;
use crate::testbed::{Bed, Container, Daemon, soon, turn};
use rustix::process::Signal;
use std::fs::File;
use std::io::{IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;

const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Endpoint b, in a namespace with a name.
const ONE: &str = r#"
[daemon]
name = "NAME"
[[switch]]
name = "s1"
[[switch.tenant]]
name = "home"
[[switch.tenant.endpoint]]
name = "b"
port = "tap://tap0"
netns = "NS-b"
address = "10.0.0.2/24"
"#;

/// Endpoint a, in a container.
fn with_a(port: &str, container: &Container) -> String {
    format!(
        "{ONE}\n[[switch.tenant.endpoint]]\nname = \"a\"\nport = \"{port}\"\nnetns = \"{}\"\naddress = \"10.0.0.1/24\"\n",
        container.path()
    )
}

/// What a command of the program prints; it must succeed.
fn run(bed: &Bed, words: &[&str]) -> String {
    let output = bed.run(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn is_lost(daemon: &Daemon) -> bool {
    let a = daemon.endpoint("a");
    a["state"] == "down" && a["lost"].as_str().is_some_and(|why| why.contains("levada set endpoint s1/home/a netns="))
}

#[test]
fn a_container_that_starts_after_the_daemon_is_attached_and_may_end() {
    let Some(_turn) = turn("a_container_that_starts_after_the_daemon_is_attached_and_may_end") else { return };
    attached_later("tap://tap0");
}

#[test]
fn a_container_with_a_pair_that_starts_after_the_daemon_is_attached_and_may_end() {
    let Some(_turn) = turn("a_container_with_a_pair_that_starts_after_the_daemon_is_attached_and_may_end") else {
        return;
    };
    attached_later("veth://tap0");
}

fn attached_later(port: &str) {
    let bed = Bed::new(&["b"]);
    let mut daemon = bed.start(ONE);
    let _echo = bed.echo("b", B);
    let container = Container::new();
    let netns = format!("netns={}", container.path());
    let port = format!("port={port}");
    let add = ["add", "endpoint", "s1/home/a", &port, &netns, "address=10.0.0.1/24"];
    run(&bed, &[&add[..], &["--dry-run"]].concat());
    run(&bed, &add);
    assert_eq!(bed.ask_from(&container.space(), B, 3), 3);
    // It still has no right to look at processes.
    assert_confined(&daemon);
    let change = ["set", "endpoint", "s1/home/a", "mtu=1400", "address=10.0.0.7/24"];
    if port.contains("veth") {
        // The container's end is changed in its namespace, which is passed again.
        let refused = bed.run(&change);
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && text.contains("add its netns= to the change"), "{text}");
        run(&bed, &[&change[..], &[&netns]].concat());
    } else {
        // What needs no way into the namespace goes on.
        run(&bed, &change);
    }
    let shown = container.ip("address show dev tap0");
    assert!(shown.contains("mtu 1400") && shown.contains("10.0.0.7/24"), "{shown}");
    assert!(daemon.endpoint("a")["device"]["unsettled"].is_null());
    // A device that is deleted in it: the same command brings it back, though nothing differs.
    container.ip("link del dev tap0");
    soon("it is lost", || is_lost(&daemon));
    let set = ["set", "endpoint", "s1/home/a", &netns];
    assert!(run(&bed, &["show", "ports"]).contains(" lost "), "{}", run(&bed, &["show", "ports"]));
    run(&bed, &set);
    soon("it is back", || daemon.endpoint("a")["state"] == "up");
    // The kernel lets frames through once it gets to the news that the link is there.
    soon("frames pass", || bed.ask_from(&container.space(), B, 1) == 1);
    assert_eq!(bed.ask_from(&container.space(), B, 3), 3);
    // The container ends, and its namespace with it: the daemon has not kept it.
    drop(container);
    soon("it is lost with its container", || is_lost(&daemon));
    let why = daemon.endpoint("a")["lost"].as_str().unwrap().to_owned();
    assert!(why.contains("gone") || why.contains("deleted") || why.contains("has ended"), "{why}");
    let next = Container::new();
    run(&bed, &["set", "endpoint", "s1/home/a", &format!("netns={}", next.path())]);
    assert_eq!(bed.ask_from(&next.space(), B, 3), 3);
    assert_confined(&daemon);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn after_a_kill_a_container_returns_or_is_shown_lost_with_its_cure() {
    let Some(_turn) = turn("after_a_kill_a_container_returns_or_is_shown_lost_with_its_cure") else { return };
    for port in ["tap://tap0", "veth://tap0"] {
        returns_after_a_kill(port);
    }
}

fn returns_after_a_kill(port: &str) {
    let bed = Bed::new(&["b"]);
    let container = Container::new();
    let text = with_a(port, &container);
    let mut daemon = bed.start(&text);
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask_from(&container.space(), B, 3), 3);
    daemon.end(Signal::KILL);
    let mut daemon = bed.start(&text);
    assert_eq!(bed.ask_from(&container.space(), B, 3), 3);
    // The container ends while no daemon runs: that keeps none of the others from starting.
    daemon.end(Signal::KILL);
    drop(container);
    let mut daemon = bed.start(&text);
    assert!(is_lost(&daemon), "{}", daemon.endpoint("a"));
    assert_eq!(daemon.endpoint("b")["state"], "up");
    let shown = run(&bed, &["show", "ports"]);
    assert!(
        shown.contains("lost") && shown.contains("levada set endpoint s1/home/a netns=/proc/PID/ns/net"),
        "{shown}"
    );
    let next = Container::new();
    run(&bed, &["set", "endpoint", "s1/home/a", &format!("netns={}", next.path())]);
    assert_eq!(bed.ask_from(&next.space(), B, 3), 3);
    assert!(daemon.endpoint("a")["lost"].is_null());
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn after_a_kill_another_process_with_the_same_number_is_not_taken_for_the_container() {
    let Some(_turn) = turn("after_a_kill_another_process_with_the_same_number_is_not_taken_for_the_container") else {
        return;
    };
    not_taken_for_the_container(|bed, text| {
        let mut daemon = bed.start(text);
        daemon.end(Signal::KILL);
        None
    });
}

#[test]
fn nor_is_it_after_a_restart_by_the_service_manager() {
    let Some(_turn) = turn("nor_is_it_after_a_restart_by_the_service_manager") else { return };
    not_taken_for_the_container(|bed, text| {
        let mut manager = Manager::new(bed);
        let mut daemon = manager.start_as(bed, text);
        manager.keeps(2);
        daemon.signal(Signal::TERM);
        manager.hears("BARRIER=1");
        assert!(daemon.wait().success(), "{}", daemon.log());
        // The container's device ends with its namespace, which the manager sees.
        manager.store.retain(|(name, _)| !name.contains("/proc/"));
        Some(manager)
    });
}

#[test]
fn a_takeover_that_fails_leaves_what_is_noted_of_processes() {
    let Some(_turn) = turn("a_takeover_that_fails_leaves_what_is_noted_of_processes") else { return };
    let bed = Bed::new(&["b"]);
    let (container, other) = (Container::new(), Container::new());
    let text = with_a("tap://tap0", &container);
    let mut daemon = bed.start(&text);
    let home = bed.directory.join("run").join(&bed.tag);
    let noted = || std::fs::read_to_string(home.join("processes")).unwrap();
    let before = noted();
    assert!(before.contains(&container.path()), "{before}");
    // It has another container, and fails where it is to listen.
    let wanted = with_a("tap://tap0", &other);
    let (program, file) = (env!("CARGO_BIN_EXE_levada"), bed.configuration(&wanted));
    let place = format!("{}/handover.sock.$$", home.display());
    let script = format!("mkdir {place}; exec {program} run --takeover -c {}", file.display());
    let failed = Command::new("sh").args(["-c", &script]).env("LEVADA_RUN_DIR", bed.directory.join("run")).output();
    let said = String::from_utf8(failed.unwrap().stderr).unwrap();
    assert!(said.contains("cannot listen on the takeover socket"), "{said}");
    assert_eq!(noted(), before);
    soon("the old one goes on", || daemon.log().contains("a takeover failed, and this process goes on"));
    let mut next = bed.take_over(&wanted);
    assert!(daemon.wait().success(), "{}", daemon.log());
    soon("the next one notes its own", || noted().contains(&other.path()) && !noted().contains(&container.path()));
    let left = std::fs::read_dir(&home).unwrap().flatten().map(|entry| entry.path()).find(|path| path.is_dir());
    std::fs::remove_dir(left.unwrap()).unwrap();
    assert!(next.end(Signal::TERM).success());
}

fn not_taken_for_the_container(run_once: impl FnOnce(&Bed, &str) -> Option<Manager>) {
    let bed = Bed::new(&["b"]);
    let container = Container::new();
    let text = with_a("tap://tap0", &container);
    let manager = run_once(&bed, &text);
    // Numbers come around: the process is there, and is not the one that was meant.
    let place = bed.directory.join("run").join(bed.name("").trim_end_matches('-')).join("processes");
    let noted = std::fs::read_to_string(&place).unwrap();
    let (started, path) = noted.trim().split_once(' ').unwrap();
    assert_eq!(path, container.path());
    std::fs::write(&place, format!("{} {path}\n", started.parse::<u64>().unwrap() - 1)).unwrap();
    let mut daemon = manager.map_or_else(|| bed.start(&text), |manager| manager.start_as(&bed, &text));
    assert!(is_lost(&daemon), "{}", daemon.endpoint("a"));
    assert!(!container.ip("link").contains("tap0"), "a stranger has got the device");
    // Who names it anew means it.
    run(&bed, &["set", "endpoint", "s1/home/a", &format!("netns={}", container.path())]);
    assert!(daemon.endpoint("a")["lost"].is_null(), "{}", daemon.endpoint("a"));
    assert_eq!(std::fs::read_to_string(&place).unwrap(), noted);
    assert!(daemon.end(Signal::TERM).success());
}

/// Sends a request for changes with descriptors beside it, and reads the answer.
fn post(bed: &Bed, body: &str, descriptors: &[BorrowedFd<'_>]) -> String {
    let name = bed.name("").trim_end_matches('-').to_owned();
    let mut stream = UnixStream::connect(bed.directory.join("run").join(name).join("control.sock")).unwrap();
    let head = format!("POST /v1/actions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
    let mut beside = rustix::net::SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(beside.push(rustix::net::SendAncillaryMessage::ScmRights(descriptors)));
    }
    let flags = rustix::net::SendFlags::NOSIGNAL;
    rustix::net::sendmsg(&stream, &[IoSlice::new(head.as_bytes())], &mut beside, flags).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn descriptors_of_anything_but_the_named_namespaces_are_refused_and_closed() {
    let Some(_turn) = turn("descriptors_of_anything_but_the_named_namespaces_are_refused_and_closed") else { return };
    let bed = Bed::new(&["b"]);
    let daemon = bed.start(ONE);
    let container = Container::new();
    let open = || std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    let before = open();
    let (space, mounts, null) = (container.path(), "/proc/self/ns/mnt", "/dev/null");
    let files = [&space, mounts, null].map(|path| File::open(path).unwrap());
    let [space_fd, mounts_fd, null_fd] = files.each_ref().map(|file| file.as_fd());
    let body = |names: &[&str]| {
        format!(
            r#"{{"actions": [{{"action": "add", "kind": "endpoint", "path": "s1/home/a", "keys": {{"port": "tap://tap0", "netns": "{space}"}}}}], "namespaces": {}}}"#,
            serde_json::to_string(names).unwrap()
        )
    };
    for (names, descriptors, why) in [
        (&[space.as_str()][..], &[][..], "names 1 namespaces, and 0 descriptors"),
        (&[], &[space_fd][..], "names 0 namespaces, and 1 descriptors"),
        (&[&space], &[mounts_fd], "it is no network namespace"),
        (&[&space], &[null_fd], "it is no network namespace"),
        (&[&space], &[space_fd; 100], "names 1 namespaces, and 64 descriptors"),
        // Of another path: it is not what the endpoint names.
        (&["/proc/1/ns/net"], &[space_fd], "may not look at processes"),
    ] {
        let answer = post(&bed, &body(names), descriptors);
        assert!(answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.1 5"), "{why}: {answer}");
        assert!(answer.contains(why), "{why}: {answer}");
    }
    soon("all that came is closed", || open() <= before);
    let answer = post(&bed, &body(&[&space]), &[space_fd]);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(container.ip("link show dev tap0").contains("tap0"));
}
