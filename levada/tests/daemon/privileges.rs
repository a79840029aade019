//! What each thread of a running daemon may do, as the kernel says it: capabilities(7) and
//! seccomp(2) in /proc.

use crate::interfaces::{B, TAKEN, bed};
use crate::testbed::{Bed, Daemon, bpf_turn, soon, turn};
use crate::vde::request;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Numbers of capabilities (linux/capability.h).
const CHOWN: u64 = 1 << 0;
const DAC_OVERRIDE: u64 = 1 << 1;
const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;
const SYS_PTRACE: u64 = 1 << 19;
const SYS_ADMIN: u64 = 1 << 21;
const SYS_NICE: u64 = 1 << 23;
const PERFMON: u64 = 1 << 38;
const BPF: u64 = 1 << 39;

/// What devices take.
const DEVICES: u64 = NET_ADMIN | NET_RAW | SYS_ADMIN | PERFMON | BPF | DAC_OVERRIDE;
/// What no thread has is gone for the process.
const BOUNDS: u64 = DEVICES | CHOWN | SYS_NICE;

/// By the thread's name: its capabilities, and how many filters its calls pass: one that all have,
/// and for those without devices their own.
const EXPECTED: [(&str, u64, u32); 23] = [
    ("levada", DAC_OVERRIDE, 1),
    ("levada-changes", DEVICES | CHOWN, 1),
    ("levada-maint", DEVICES, 1),
    ("levada-vde", NET_ADMIN | CHOWN | DAC_OVERRIDE, 2),
    ("levada-vhost", CHOWN | DAC_OVERRIDE, 2),
    ("levada-worker", 0, 2),
    ("levada-closing", 0, 2),
    ("levada-news", 0, 2),
    ("levada-others", 0, 2),
    ("levada-herald", 0, 2),
    ("levada-reports", 0, 2),
    ("levada-http", 0, 2),
    ("levada-clerk", 0, 2),
    ("levada-door", 0, 2),
    ("levada-handover", 0, 2),
    ("levada-peers", 0, 2),
    ("levada-store", 0, 2),
    ("levada-routes", 0, 2),
    ("levada-links", 0, 2),
    ("levada-watchdog", 0, 2),
    ("levada-log", 0, 2),
    ("levada-signals", 0, 2),
    ("levada-ending", 0, 2),
];

/// The lines of a thread's status, by their words; `None` where it has ended.
fn status(thread: &Path) -> Option<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(thread.join("status")).ok()?;
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    Some(lines.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect())
}

/// Whether a thread is as expected, where those that make devices have `more`; how it is not.
fn judge(status: &BTreeMap<String, String>, more: u64) -> Result<(), String> {
    let name = status["Name"].as_str();
    let word = |key: &str| u64::from_str_radix(&status[key], 16).unwrap();
    let &(_, capabilities, filters) = EXPECTED
        .iter()
        .find(|(expected, ..)| *expected == name)
        .ok_or_else(|| format!("{name} is not expected: say in `privileges` what it is there for"))?;
    let capabilities = capabilities | if capabilities & SYS_ADMIN == 0 { 0 } else { more };
    let sets = ["CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd"].map(word);
    let wanted = [capabilities, capabilities, 0, 0, BOUNDS | more];
    let seccomp =
        (status["Seccomp"].as_str(), status["Seccomp_filters"].parse().unwrap(), status["NoNewPrivs"].as_str());
    if sets == wanted && seccomp == ("2", filters, "1") {
        return Ok(());
    }
    Err(format!("{name}: {sets:x?} instead of {wanted:x?}, {seccomp:?} instead of {filters} filters"))
}

/// All threads of a daemon may do what they are expected to, and no more; their names, and how many
/// have each.
pub fn assert_confined(daemon: &Daemon) -> BTreeMap<String, usize> {
    confined(daemon, 0)
}

fn confined(daemon: &Daemon, more: u64) -> BTreeMap<String, usize> {
    let (mut names, mut wrong) = (BTreeMap::new(), Vec::new());
    // A thread that has just begun may have what its parent has, and its name.
    for _ in 0..50 {
        names.clear();
        wrong.clear();
        for thread in std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().flatten() {
            let Some(status) = status(&thread.path()) else { continue };
            wrong.extend(judge(&status, more).err());
            *names.entry(status["Name"].clone()).or_default() += 1;
        }
        if wrong.is_empty() {
            return names;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{wrong:#?}");
}

/// A VDE client: the sockets that keep it plugged in.
fn plug_in(bed: &Bed) -> (UnixStream, UnixDatagram) {
    let directory = bed.directory.join("red");
    let own = directory.join(".00001-00000");
    let data = UnixDatagram::bind(&own).unwrap();
    let mut stream = UnixStream::connect(directory.join("ctl")).unwrap();
    stream.write_all(&request(&own, |_| {})).unwrap();
    assert!(stream.read(&mut [0; 256]).unwrap() > 0, "it is answered");
    (stream, data)
}

/// The host's interface, taps, and a plug.
fn all_kinds(bed: &Bed) -> String {
    let plug =
        format!("\n[[switch.tenant.endpoint]]\nname = \"v\"\nport = \"vde://{}/red\"\n", bed.directory.display());
    TAKEN.to_owned() + &plug
}

#[test]
fn each_thread_may_do_what_it_is_there_for() {
    let Some(_turn) = bpf_turn("each_thread_may_do_what_it_is_there_for") else { return };
    let bed = bed();
    let text = all_kinds(&bed);
    let mut daemon = bed.start(&text);
    assert!(
        !daemon.log().contains("rights that it does not need") && !daemon.log().contains("seccomp"),
        "{}",
        daemon.log()
    );
    assert_confined(&daemon);
    // All kinds of ports are used, and the control socket, for looking and for a change that opens
    // a device.
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3);
    let plugged = plug_in(&bed);
    soon("the plug is up", || daemon.endpoint("v")["state"] == "up");
    bed.add("c");
    let port = format!("netns={}", bed.name("c"));
    let run = |words: &[&str]| {
        let output = bed.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["add", "endpoint", "s1/red/c", "port=tap://tap0", &port]);
    assert!(bed.ip("c", "link show dev tap0").is_ok());
    run(&["set", "endpoint", "s1/red/c", "limit=5 Mbit/s"]);
    run(&["show", "cluster"]);
    run(&["trace", "--count", "1", "--seconds", "1"]);
    let names = assert_confined(&daemon);
    for name in ["levada-http", "levada-clerk", "levada-vde", "levada-worker", "levada-changes"] {
        assert!(names.contains_key(name), "{names:?}");
    }
    // A device that is lost is opened again.
    bed.ip("c", "link del dev tap0").unwrap();
    soon("it is back", || bed.ip("c", "link show dev tap0").is_ok());
    // The file is read again: the endpoint that it does not have goes.
    daemon.signal(Signal::HUP);
    soon("it has reloaded", || daemon.log().contains("reloaded: "));
    assert!(bed.ip("c", "link show dev tap0").is_err(), "{}", daemon.log());
    assert_confined(&daemon);
    // A takeover that fails, and one that does not.
    let failed = bed.levada(&["run", "-c", "/levada/nothing", "--takeover"]).output().unwrap();
    assert!(!failed.status.success());
    let next = bed.take_over(&text);
    assert!(daemon.wait().success(), "{}", daemon.log());
    daemon = next;
    assert_eq!(daemon.endpoint("v")["state"], "up", "the client came along: {}", daemon.log());
    assert_confined(&daemon);
    assert_eq!(bed.ask("a", B, 3), 3);
    drop(plugged);
    soon("the plug is down", || daemon.endpoint("v")["state"] != "up");
    assert!(daemon.end(Signal::TERM).success());
    let left: Vec<_> = std::fs::read_dir(bed.directory.join("run")).unwrap().collect();
    assert!(left.is_empty() && !bed.directory.join("red").exists(), "{left:?}");
}

/// A network namespace that has no name but a process.
const NAMELESS: &str = r#"
[daemon]
name = "NAME"
[[switch]]
name = "s1"
[[switch.tenant]]
name = "home"
[[switch.tenant.endpoint]]
name = "a"
port = "tap://tap0"
netns = "/proc/PID/ns/net"
"#;

#[test]
fn looking_at_processes_is_for_those_who_make_devices_and_only_where_it_must_be() {
    let Some(_turn) = turn("looking_at_processes_is_for_those_who_make_devices_and_only_where_it_must_be") else {
        return;
    };
    let bed = Bed::new(&["a"]);
    let mut inside = bed.space("a").run(|| Command::new("sleep").arg("600").spawn().unwrap()).unwrap();
    let daemon = bed.start(&NAMELESS.replace("PID", &inside.id().to_string()));
    confined(&daemon, SYS_PTRACE);
    bed.ip("a", "link del dev tap0").unwrap();
    soon("maintenance has found its way back", || bed.ip("a", "link show dev tap0").is_ok());
    confined(&daemon, SYS_PTRACE);
    inside.kill().unwrap();
    inside.wait().unwrap();
}
