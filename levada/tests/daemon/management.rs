//! Changes of a running daemon: what does not change loses nothing, what is refused changes
//! nothing, and who may ask.

use crate::testbed::{Bed, Daemon, TICK, bpf_turn, soon, turn};
use crate::traffic::{A, B, C, NEIGHBOURS};
use crate::{interfaces, vde};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Datagrams a second in a stream: enough that a gap of a millisecond loses some.
const STREAM_PAUSE: Duration = Duration::from_micros(500);
const STREAM_PORT: u16 = 7008;

/// Numbered datagrams from one endpoint to another until it is ended.
pub struct Stream {
    stop: Arc<AtomicBool>,
    sender: std::thread::JoinHandle<u64>,
    receiver: std::thread::JoinHandle<Vec<u64>>,
}

impl Stream {
    fn start(bed: &Bed) -> Stream {
        Stream::between(bed, "a", "b", B)
    }

    /// From namespace `from` to `to`, which has `address`.
    pub fn between(bed: &Bed, from: &str, to: &str, address: Ipv4Addr) -> Stream {
        let stop = Arc::new(AtomicBool::new(false));
        let sink = bed.socket(to, (address, STREAM_PORT));
        let source = bed.socket(from, (Ipv4Addr::UNSPECIFIED, 0));
        sink.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let receiver = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let mut numbers = Vec::new();
                let mut bytes = [0; 8];
                loop {
                    match sink.recv(&mut bytes) {
                        Ok(_) => numbers.push(u64::from_le_bytes(bytes)),
                        // A process that was stopped and goes on is interrupted (signal(7)), and a
                        // machine may stand still.
                        Err(_) if !stop.load(Ordering::Relaxed) => {}
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(_) => return numbers,
                    }
                }
            }
        });
        let sender = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let mut sent = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    source.send_to(&sent.to_le_bytes(), (address, STREAM_PORT)).unwrap();
                    sent += 1;
                    std::thread::sleep(STREAM_PAUSE);
                }
                sent
            }
        });
        Stream { stop, sender, receiver }
    }

    /// How many were sent. All must have arrived, in order.
    pub fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap();
        let numbers = self.receiver.join().unwrap();
        let wanted: Vec<u64> = (0..sent).collect();
        let lost: Vec<_> = wanted.iter().filter(|n| numbers.binary_search(n).is_err()).collect();
        assert!(lost.is_empty(), "lost {} of {sent}, between {:?} and {:?}", lost.len(), lost.first(), lost.last());
        assert_eq!(numbers, wanted, "in order, each once");
        sent
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

pub fn good(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(output));
    text(output)
}

fn revision(bed: &Bed) -> u64 {
    let reply: Value = serde_json::from_str(&good(&bed.run(&["show", "config", "--json"]))).unwrap();
    reply["revision"].as_u64().unwrap()
}

/// Drops that the daemon has counted for an endpoint.
fn drops(daemon: &Daemon, endpoint: &str) -> Value {
    daemon.endpoint(endpoint)["drops"].clone()
}

#[test]
fn a_revision_of_the_process_before_is_no_revision_of_the_next() {
    let Some(_turn) = turn("a_revision_of_the_process_before_is_no_revision_of_the_next") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let mut daemon = bed.start(NEIGHBOURS);
    let others = NEIGHBOURS.replacen("name = \"a\"", "name = \"a\"\nweight = 2", 1);
    let set = |known: u64| {
        let known = known.to_string();
        bed.run(&["set", "endpoint", "s1/home/a", "weight=3", "--revision", &known])
    };
    for by_takeover in [false, true] {
        let known = revision(&bed);
        if by_takeover {
            let next = bed.take_over(&others);
            assert!(daemon.wait().success());
            daemon = next;
        } else {
            assert!(daemon.end(Signal::TERM).success());
            daemon = bed.start(&others);
        }
        let refused = set(known);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        let now = revision(&bed);
        assert!(refused.status.code() == Some(1) && text.contains(&format!("at revision {now}; read it")), "{text}");
        assert!(now > known);
        good(&set(now));
    }
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn what_a_killed_daemon_left_is_no_other_instance() {
    let Some(_turn) = turn("what_a_killed_daemon_left_is_no_other_instance") else { return };
    let bed = Bed::new(&[]);
    let text = "[daemon]\nname = \"NAME\"\n[[switch]]\nname = \"s1\"\n";
    let mut killed = bed.start_as("killed", text);
    let mut runs = bed.start(text);
    let several = bed.run(&["show"]);
    assert!(!several.status.success() && String::from_utf8_lossy(&several.stderr).contains("several instances run"));
    assert!(!killed.end(Signal::KILL).success());
    assert!(bed.directory.join("run/killed/control.sock").exists());
    good(&bed.run(&["show"]));
    assert!(runs.end(Signal::TERM).success());
    let left = bed.run(&["show"]);
    let said = String::from_utf8(left.stderr).unwrap();
    assert!(!left.status.success() && said.contains("it was killed; start it again (levada run"), "{said}");
}

/// After a crash a daemon is started again: nothing that is said on the way to it costs devices.
#[test]
fn what_a_killed_daemon_needs_again_is_removed_by_its_name_only() {
    let Some(_turn) = turn("what_a_killed_daemon_needs_again_is_removed_by_its_name_only") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let text = crate::restart::persistent();
    let has_device = || bed.ip("a", "link show dev tap0").is_ok();
    let mut daemon = bed.start(&text);
    let key = bed.directory.join("run").join(&bed.tag).join("service-key");
    let before = std::fs::read(&key).unwrap();
    assert!(!daemon.end(Signal::KILL).success());
    let shown = bed.run(&["show"]);
    let said = String::from_utf8(shown.stderr).unwrap();
    assert!(!shown.status.success() && said.contains("start it again (levada run, systemctl start)"), "{said}");
    assert!(said.contains(&format!("levada clean --name {} removes what it left, its persistent", bed.tag)), "{said}");
    let cleaned = bed.run(&["clean"]);
    good(&cleaned);
    let said = String::from_utf8(cleaned.stdout).unwrap();
    assert!(said.contains("removes its persistent devices") && has_device(), "{said}");
    assert_eq!(std::fs::read(&key).unwrap(), before, "what its next start needs beside them");
    // A start that fails takes nothing from the one behind it.
    let file = bed.configuration(&text.replace("[daemon]", "[daemon]\nsocket_group = \"nobody-has-this\""));
    assert!(!bed.run(&["run", "-c", file.to_str().unwrap()]).status.success());
    assert_eq!(std::fs::read(&key).unwrap(), before);
    // One that ended in order has left nothing that is to be cleaned unasked.
    let mut daemon = bed.start(&text);
    assert!(daemon.end(Signal::TERM).success());
    let cleaned = bed.run(&["clean"]);
    good(&cleaned);
    let said = String::from_utf8(cleaned.stdout).unwrap();
    assert!(said.contains("nothing to clean") && key.exists() && has_device(), "{said}");
    good(&bed.run(&["clean", "--name", &bed.tag]));
    assert!(!key.exists() && !has_device());
}

#[test]
fn endpoints_come_change_and_go_and_the_others_lose_nothing() {
    let Some(_turn) = turn("endpoints_come_change_and_go_and_the_others_lose_nothing") else { return };
    let bed = Bed::new(&["a", "b", "c", "d"]);
    let daemon = bed.start(NEIGHBOURS);
    let first = revision(&bed);
    let (_b, _c) = (bed.echo("b", B), bed.echo("c", C));
    assert_eq!(bed.ask("a", B, 3), 3);
    let stream = Stream::start(&bed);
    let d = format!("netns={}", bed.name("d"));
    let add = [
        "add",
        "endpoint",
        "s1/home/d",
        "port=tap://tap0",
        &d,
        "mac=02:00:00:00:07:04",
        "ip=10.7.0.4",
        "address=10.7.0.4/24",
        "ipv6=false",
    ];
    for round in 0..3 {
        good(&bed.run(&add));
        assert_eq!(daemon.endpoint("d")["state"], "up");
        assert_eq!(bed.ask("d", C, 5), 5, "round {round}: what is new works at once");
        good(&bed.run(&["set", "endpoint", "s1/home/d", "limit=5 Mbit/s", "weight=3"]));
        assert_eq!(daemon.endpoint("d")["egress"]["limit_bps"], 5_000_000);
        assert_eq!(bed.ask("d", C, 5), 5);
        good(&bed.run(&["add", "tenant", "s1/other"]));
        good(&bed.run(&["set", "endpoint", "s1/home/d", "mtu=1400"]));
        assert!(bed.ip("d", "link show dev tap0").unwrap().contains("mtu 1400"));
        good(&bed.run(&["del", "endpoint", "s1/home/d"]));
        assert!(bed.ip("d", "link show dev tap0").is_err(), "its device is gone");
        good(&bed.run(&["del", "tenant", "s1/other"]));
    }
    good(&bed.run(&["set", "endpoint", "s1/home/c", "port=tap://tap1"]));
    assert!(bed.ip("c", "link show dev tap0").is_err() && bed.ip("c", "link show dev tap1").is_ok());
    assert!(stream.end() > 100);
    assert_eq!((drops(&daemon, "a"), drops(&daemon, "b")), (json!({}), json!({})));
    assert_eq!(revision(&bed), first + 3 * 6 + 1);
}

#[test]
fn a_file_is_applied_by_what_differs() {
    let Some(_turn) = turn("a_file_is_applied_by_what_differs") else { return };
    let bed = Bed::new(&["a", "b", "c", "d"]);
    let daemon = bed.start(NEIGHBOURS);
    let first = revision(&bed);
    let stream = Stream::start(&bed);
    let with_d = format!(
        "{NEIGHBOURS}[[switch.tenant.endpoint]]\nname = \"d\"\nport = \"tap://tap0\"\nnetns = \"NS-d\"\n\
         mac = \"02:00:00:00:07:04\"\naddress = \"10.7.0.4/24\"\n[[switch]]\nname = \"s2\"\n"
    );
    let file = bed.configuration(&with_d);
    let file = file.to_str().unwrap();
    let plan = good(&bed.run(&["apply", file, "--dry-run"]));
    assert!(
        plan.contains("add switch s2")
            && plan.contains("add endpoint s1/home/d ")
            && plan.contains(&format!("would be made; revision {first}")),
        "{plan}"
    );
    assert_eq!(daemon.show()["switches"].as_array().unwrap().len(), 1, "a dry run changes nothing");
    assert!(good(&bed.run(&["apply", file])).contains(&format!("2 changes made; revision {}", first + 1)));
    assert!(good(&bed.run(&["apply", file])).contains("nothing differs"));
    let _c = bed.echo("c", C);
    assert_eq!(bed.ask("d", C, 3), 3);
    let back = bed.configuration(NEIGHBOURS);
    let plan = good(&bed.run(&["apply", back.to_str().unwrap(), "--json"]));
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let wanted = json!([{"action": "del", "kind": "switch", "path": "s2"}, {"action": "del", "kind": "endpoint", "path": "s1/home/d"}]);
    assert_eq!((&plan["actions"], &plan["version"]), (&wanted, &json!(1)));
    stream.end();
    // A switch made anew keeps its devices.
    good(&bed.run(&["set", "switch", "s1", "order=wf2q"]));
    assert_eq!(bed.ask("a", C, 3), 3);
    assert_eq!(daemon.show()["switches"][0]["order"], "wf2q");
}

#[test]
fn live_changes_are_saved_in_the_file() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    let Some(_turn) = turn("live_changes_are_saved_in_the_file") else { return };
    let bed = Bed::new(&["a", "b", "c", "d"]);
    let text = format!("# Rack 4.\n{NEIGHBOURS}");
    let daemon = bed.start(&text);
    let file = bed.configuration(&text);
    let link = file.with_extension("link");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    symlink(&file, &link).unwrap();
    let (path, link_path) = (file.to_str().unwrap(), link.to_str().unwrap());
    let before = std::fs::read_to_string(&file).unwrap();
    let first = revision(&bed);
    assert!(good(&bed.run(&["save", path])).contains(&format!("describes what runs; revision {first}")));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);

    good(&bed.run(&["set", "endpoint", "s1/home/a", "limit=5 Mbit/s"]));
    good(&bed.run(&["del", "endpoint", "s1/home/c"]));
    let printed = good(&bed.run(&["save", path, "--dry-run"]));
    assert!(
        printed.contains("set endpoint s1/home/a limit=\"5 Mbit/s\"")
            && printed.contains("del endpoint s1/home/c")
            && printed.contains("2 changes would be written"),
        "{printed}"
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before, "a dry run writes nothing");
    let wrong = bed.run(&["save", path, "--revision", &first.to_string()]);
    let now = format!("at revision {}", first + 2);
    assert!(!wrong.status.success() && String::from_utf8_lossy(&wrong.stderr).contains(&now));
    assert!(good(&bed.run(&["save", link_path])).contains("2 changes written"));
    let after = std::fs::read_to_string(&file).unwrap();
    assert!(after.starts_with("# Rack 4.") && after.contains("limit = \"5 Mbit/s\""), "{after}");
    assert!(link.is_symlink() && file.metadata().unwrap().mode() & 0o7777 == 0o640);
    let printed = good(&bed.run(&["apply", path]));
    assert!(printed.contains("nothing differs"), "{printed}");

    // A file that is not there is written whole; one that is not good, or another's, stays.
    let fresh = file.with_extension("fresh");
    let printed = good(&bed.run(&["save", fresh.to_str().unwrap(), "--json"]));
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((&printed["written"], &printed["revision"]), (&json!(true), &json!(revision(&bed))));
    assert!(good(&bed.run(&["apply", fresh.to_str().unwrap()])).contains("nothing differs"));
    for (bad, why) in
        [("[daemon]\nname = ", "Cure it"), ("[daemon]\nname = \"other\"\n[[switch]]\nname = \"s\"\n", "not of")]
    {
        std::fs::write(&file, bad).unwrap();
        let refused = bed.run(&["save", path, "--name", &bed.tag]);
        assert!(!refused.status.success(), "{bad}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(why), "{refused:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), bad);
    }
    let names = std::fs::read_dir(file.parent().unwrap()).unwrap();
    assert!(!names.flatten().any(|entry| entry.file_name().to_string_lossy().ends_with(".new")));
    drop(daemon);
}

#[test]
fn what_is_refused_changes_nothing_and_says_why() {
    let Some(_turn) = turn("what_is_refused_changes_nothing_and_says_why") else { return };
    let bed = Bed::new(&["a", "b", "c", "d"]);
    let daemon = bed.start(NEIGHBOURS);
    let before = good(&bed.run(&["show", "config", "--json"]));
    let now = format!("at revision {}", revision(&bed));
    let stream = Stream::start(&bed);
    let d = format!("netns={}", bed.name("d"));
    let nowhere = format!("netns={}", bed.name("nowhere"));
    bed.ip("d", "tuntap add dev foreign mode tap").unwrap();
    for (arguments, why) in [
        (&["set", "endpoint", "s1/home/c", "limit=5 MB/s"][..], "bits a second"),
        (&["set", "endpoint", "s1/home/x", "limit=5 Mbit/s"], "there is no endpoint \"x\""),
        (&["set", "endpoint", "s1/home/c", "guarantee=1 Mbit/s"], "no uplink"),
        (&["set", "endpoint", "s1/home/c", "mac=02:00:00:00:07:01"], "endpoint \"a\"'s in the same network"),
        (&["set", "daemon", "name=other"], "a name cannot be changed"),
        (&["set", "daemon", "socket_group=levada-never-made"], "groupadd"),
        (&["add", "endpoint", "s1/home/d", "port=tap://foreign", &d], "is not Levada's"),
        (&["add", "endpoint", "s1/home/d", "port=tap://tap0", &nowhere], "make it first"),
        (&["del", "switch", "s1"], "there is no switch"),
        (&["del", "endpoint", "s1/home/c", "--revision", "7"], &now),
    ] {
        let output = bed.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output));
        assert!(text(&output).contains(why), "{arguments:?}: {}", text(&output));
    }
    for wrong in [&["set", "endpoint", "s1/home/c", "limit"][..], &["add", "thing", "x"], &["del", "endpoint"]] {
        assert_ne!(bed.run(wrong).status.code(), Some(0), "{wrong:?}");
    }
    stream.end();
    assert_eq!(good(&bed.run(&["show", "config", "--json"])), before);
    for endpoint in ["a", "b", "c"] {
        assert_eq!(daemon.endpoint(endpoint)["state"], "up");
    }
}

#[test]
fn keys_of_the_daemon_and_of_open_devices_change_while_frames_go_on() {
    let Some(_turn) = turn("keys_of_the_daemon_and_of_open_devices_change_while_frames_go_on") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let mut daemon = bed.start(NEIGHBOURS);
    let stream = Stream::start(&bed);
    let index = |bed: &Bed| bed.ip("c", "-o link show dev tap0").map(|text| text.split(':').next().unwrap().to_owned());
    let first = index(&bed).unwrap();
    let has_ipv6 = || bed.ip("c", "-6 address show dev tap0").unwrap().contains("inet6");
    // IPv6 on and off again, on the device that is open.
    assert!(!has_ipv6());
    good(&bed.run(&[
        "set",
        "endpoint",
        "s1/home/c",
        "ipv6=true",
        "ip=[\"10.7.0.3\", \"fd07::3\"]",
        "address=[\"10.7.0.3/24\", \"fd07::3/64\"]",
    ]));
    assert!(has_ipv6() && bed.ip("c", "-6 address show dev tap0").unwrap().contains("fd07::3/64"));
    good(&bed.run(&["set", "endpoint", "s1/home/c", "ipv6=false", "ip=10.7.0.3", "address=10.7.0.3/24"]));
    assert!(!has_ipv6());
    // Frame memory: less than is in use by now, then more than at first.
    for memory in ["4 MiB", "96 MiB", "48 MiB"] {
        good(&bed.run(&["set", "daemon", &format!("memory={memory}")]));
        std::thread::sleep(Duration::from_millis(100));
    }
    // What is persistent outlives the daemon; what is not any more does not.
    good(&bed.run(&["set", "endpoint", "s1/home/a", "persistent=true"]));
    good(&bed.run(&["set", "endpoint", "s1/home/a", "persistent=false"]));
    good(&bed.run(&["set", "endpoint", "s1/home/c", "persistent=true"]));
    assert_eq!(index(&bed).as_ref(), Ok(&first), "it is the same device");
    // A change that fails at another device is taken back on this one.
    let text = NEIGHBOURS.replacen("ip = \"10.7.0.3\"", "ip = \"10.7.0.3\"\nring = 77", 1)
        + "[[switch.tenant.endpoint]]\nname = \"d\"\nport = \"tap://tap0\"\nnetns = \"NS-nowhere\"\n";
    assert!(!bed.run(&["apply", bed.configuration(&text).to_str().unwrap()]).status.success());
    stream.end();
    assert!(daemon.end(Signal::TERM).success());
    assert_eq!(index(&bed).as_ref(), Ok(&first), "what was to become transient is persistent as before");
    assert!(bed.ip("a", "link show dev tap0").is_err());
    bed.run(&["clean", "--name", bed.name("").trim_end_matches('-')]);
    assert!(index(&bed).is_err());
}

#[test]
fn a_device_that_was_set_up_otherwise_returns_as_it_was_last() {
    let Some(_turn) = turn("a_device_that_was_set_up_otherwise_returns_as_it_was_last") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = bed.start(NEIGHBOURS);
    good(&bed.run(&["set", "endpoint", "s1/home/c", "mtu=1300"]));
    bed.ip("c", "link delete dev tap0").unwrap();
    soon("it is back", || daemon.log().contains("is back"));
    assert!(bed.ip("c", "link show dev tap0").unwrap().contains("mtu 1300"));
}

#[test]
fn the_host_joins_and_leaves_a_taken_interface_while_it_is_in_use() {
    let Some(_turn) = bpf_turn("the_host_joins_and_leaves_a_taken_interface_while_it_is_in_use") else { return };
    let bed = interfaces::bed();
    let _daemon = bed.start(interfaces::TAKEN);
    let session = interfaces::Session::begin(&bed);
    let programs = || {
        let hooks = interfaces::hooks_of(&bed);
        (hooks.ingress, hooks.egress)
    };
    let space = format!("netns={}", bed.name("host"));
    for _ in 0..2 {
        session.step("the host is an endpoint", 10);
        assert_eq!(programs(), (1, 1));
        good(&bed.run(&["del", "endpoint", "s1/ops/host"]));
        assert_eq!(programs(), (0, 0));
        session.step("the host goes past the switch", 10);
        good(&bed.run(&["set", "uplink", "s1", "ring=64"]));
        good(&bed.run(&["add", "endpoint", "s1/ops/host", "port=host://up0", &space, "guarantee=8 Mbit/s"]));
    }
    session.step("the host is an endpoint again", 10);
    good(&bed.run(&["set", "endpoint", "s1/ops/host", "ring=100"]));
    assert!(bed.ip("host", "link show type tun").unwrap().contains("qlen 100"));
    session.end();
}

#[test]
fn keys_of_an_open_vde_plug_change_and_its_clients_stay() {
    let name = "keys_of_an_open_vde_plug_change_and_its_clients_stay";
    let Some(_turn) = vde::vde_turn(name, &["vde_plug2tap"]) else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = bed.start(&vde::here(&bed, vde::THREE));
    let mut plugs = vec![vde::plug(&bed, "a", 1, &["-p", "1"]), vde::plug(&bed, "b", 12, &["-p", "3"])];
    let _echo = bed.echo("a", A);
    soon("both are plugged in", || bed.ask("b", A, 1) == 1);
    assert_eq!(bed.ask("b", A, 3), 3);
    good(&bed.run(&["set", "endpoint", "s1/home/c", "hub=true", "mtu=1400"]));
    plugs.push(vde::plug(&bed, "c", 13, &["-p", "3"]));
    assert_eq!(["b", "c"].map(|space| bed.ask(space, A, 3)), [3, 3]);
    let refused = bed.run(&["set", "endpoint", "s1/home/c", "hub=false"]);
    assert!(!refused.status.success() && text(&refused).contains("it has 2 clients"), "{}", text(&refused));
    assert_eq!(["b", "c"].map(|space| bed.ask(space, A, 3)), [3, 3]);
    let ctl = || {
        let status = std::fs::metadata(vde::directory(&bed).join("ctl")).unwrap();
        std::os::unix::fs::PermissionsExt::mode(&status.permissions()) & 0o777
    };
    assert_eq!(ctl(), 0o600);
    let applied = vde::THREE
        .replace("name = \"b\"", "name = \"b\"\nmode = \"0660\"")
        .replace("name = \"a\"", "name = \"a\"\nmode = \"0660\"");
    let applied = format!("{applied}hub = true\nmode = \"0660\"\nmtu = 1400\n");
    good(&bed.run(&["apply", bed.configuration(&vde::here(&bed, &applied)).to_str().unwrap()]));
    assert_eq!(ctl(), 0o660);
    drop(plugs.pop());
    soon("one client is left", || bed.run(&["set", "endpoint", "s1/home/c", "hub=false"]).status.success());
    assert_eq!(bed.ask("b", A, 3), 3);
    assert_eq!(daemon.log().matches("plugged in by").count(), 3, "nobody had to come again: {}", daemon.log());
}

/// A copy of the program in the bed's directory, within reach of somebody who is not root. Another
/// process makes it: were it open for writing here, programs that other tests begin meanwhile would
/// hold it open, too, and it could not be run (`ETXTBSY`).
fn program_for_others(bed: &Bed) -> std::path::PathBuf {
    let program = bed.directory.join("levada");
    let copied = std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_levada")).arg(&program).status().unwrap();
    assert!(copied.success());
    program
}

#[test]
fn the_group_that_may_look_changes_while_the_daemon_runs() {
    let Some(_turn) = turn("the_group_that_may_look_changes_while_the_daemon_runs") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let _daemon = bed.start(NEIGHBOURS);
    let program = program_for_others(&bed);
    let name = bed.name("");
    let name = name.trim_end_matches('-');
    let looks = |group: &str| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", "54000", "--regid", "54000", "--groups", group]).arg(&program);
        command.args(["show", "--name", name]).env("LEVADA_RUN_DIR", bed.directory.join("run"));
        command.output().unwrap().status.success()
    };
    assert_eq!(["54321", "54322"].map(looks), [false, false]);
    for (group, expected) in
        [("54321", [true, false]), ("54322", [false, true]), ("", [false, false]), ("54321", [true, false])]
    {
        good(&bed.run(&["set", "daemon", &format!("socket_group={group}")]));
        assert_eq!(["54321", "54322"].map(looks), expected, "{group:?}");
    }
}

#[test]
fn a_batch_that_fails_at_its_last_device_leaves_all_as_it_was() {
    let Some(_turn) = turn("a_batch_that_fails_at_its_last_device_leaves_all_as_it_was") else { return };
    let bed = Bed::new(&["a", "b", "c", "d"]);
    let _daemon = bed.start(NEIGHBOURS);
    let first = revision(&bed);
    let more = |name: &str, space: &str| {
        format!("[[switch.tenant.endpoint]]\nname = \"{name}\"\nport = \"tap://{name}\"\nnetns = \"NS-{space}\"\n")
    };
    let changed = NEIGHBOURS.replacen("ip = \"10.7.0.3\"", "mtu = 1400\nip = \"10.7.0.3\"", 1);
    let file = bed.configuration(&(changed + &more("x1", "d") + &more("x2", "nowhere")));
    let output = bed.run(&["apply", file.to_str().unwrap()]);
    assert!(!output.status.success() && text(&output).contains("nowhere"), "{}", text(&output));
    assert!(bed.ip("d", "link show dev x1").is_err(), "what was opened is closed again");
    assert!(bed.ip("c", "link show dev tap0").unwrap().contains("mtu 1500"), "what was set up is as it was");
    assert_eq!(revision(&bed), first);
}

#[test]
fn a_hangup_reloads_the_file_and_a_bad_one_changes_nothing() {
    let Some(_turn) = turn("a_hangup_reloads_the_file_and_a_bad_one_changes_nothing") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let mut daemon = bed.start(NEIGHBOURS);
    let reloaded = format!("reloaded: 1 change made; revision {}", revision(&bed) + 1);
    let stream = Stream::start(&bed);
    bed.configuration(&NEIGHBOURS.replace("name = \"c\"", "limit = \"7 Mbit/s\"\nname = \"c\""));
    daemon.signal(Signal::HUP);
    soon("it is reloaded", || daemon.log().contains(&reloaded));
    assert_eq!(daemon.endpoint("c")["egress"]["limit_bps"], 7_000_000);
    bed.configuration(&NEIGHBOURS.replace("name = \"c\"", "limmit = \"7 Mbit/s\"\nname = \"c\""));
    daemon.signal(Signal::HUP);
    soon("it is refused", || daemon.log().contains("not reloaded, nothing was changed"));
    assert!(daemon.log().contains("did you mean `limit`?"), "{}", daemon.log());
    assert_eq!(daemon.endpoint("c")["egress"]["limit_bps"], 7_000_000);
    bed.configuration(&NEIGHBOURS.replace("NAME", "other"));
    daemon.signal(Signal::HUP);
    soon("another's file is refused", || daemon.log().contains("keeps its name"));
    stream.end();
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn others_may_look_if_they_are_in_the_group_and_change_nothing() {
    let Some(_turn) = turn("others_may_look_if_they_are_in_the_group_and_change_nothing") else { return };
    const GROUP: &str = "54321";
    let bed = Bed::new(&["a", "b", "c"]);
    let _daemon = bed.start(&NEIGHBOURS.replace("[daemon]", &format!("[daemon]\nsocket_group = \"{GROUP}\"")));
    let first = revision(&bed);
    let program = program_for_others(&bed);
    let as_other = |groups: &str, arguments: &[&str]| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", "54000", "--regid", "54000", "--groups", groups]).arg(&program).args(arguments);
        command.env("LEVADA_RUN_DIR", bed.directory.join("run")).output().unwrap()
    };
    let name = bed.name("");
    let name = name.trim_end_matches('-');
    assert!(good(&as_other(GROUP, &["show", "endpoints", "--name", name])).contains("s1/home/a"));
    good(&as_other(GROUP, &["show", "vcc", "--flow", "10.7.0.1", "--name", name]));
    let none = as_other(GROUP, &["show", "connections", "s1/home/none", "--name", name]);
    assert!(text(&none).contains("there is no service"), "{}", text(&none));
    let refused = as_other(GROUP, &["del", "endpoint", "s1/home/c", "--name", name]);
    assert!(!refused.status.success() && text(&refused).contains("only root"), "{}", text(&refused));
    let stranger = as_other("54001", &["show", "--name", name]);
    assert!(!stranger.status.success() && text(&stranger).contains("ermission denied"), "{}", text(&stranger));
    // Even one who gets at the socket is asked who it is.
    let socket = bed.directory.join("run").join(name).join("control.sock");
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(socket.parent().unwrap(), mode(0o755)).unwrap();
    std::fs::set_permissions(&socket, mode(0o666)).unwrap();
    let stranger = as_other("54001", &["show", "--name", name]);
    assert!(!stranger.status.success() && text(&stranger).contains("socket_group"), "{}", text(&stranger));
    assert_eq!(revision(&bed), first);
}

/// Links added at once, each with an endpoint at both ends: as many endpoints as taps would take
/// half a minute to make.
const MANY: usize = 500;

/// The duration that 99 of 100 do not exceed, of those counted in `after` and not in `before`.
fn p99(before: &Value, after: &Value) -> u64 {
    let counts = |report: &Value| -> std::collections::BTreeMap<u64, u64> {
        let pairs = report.as_array().unwrap().iter();
        pairs.map(|pair| (pair[0].as_u64().unwrap(), pair[1].as_u64().unwrap())).collect()
    };
    let (before, mut window) = (counts(before), counts(after));
    for (end, count) in &mut window {
        *count -= before.get(end).copied().unwrap_or(0);
    }
    let total: u64 = window.values().sum();
    let mut left = (total * 99).div_ceil(100);
    for (end, count) in window {
        if left <= count {
            return end;
        }
        left -= count;
    }
    0
}

/// Two neighbours, the first with a limit, and so many links between two switches beside them.
fn with_links(links: usize) -> String {
    let mut text = NEIGHBOURS.replacen("name = \"a\"", "name = \"a\"\nlimit = \"100 Mbit/s\"", 1);
    for end in ["a", "b"] {
        text += &format!("[[switch]]\nname = \"many-{end}\"\n[[switch.tenant]]\nname = \"t\"\n");
        for n in 0..links {
            text += "[[switch.tenant.endpoint]]\n";
            text += &format!("name = \"e{n}\"\nport = \"link://l{n}/{end}\"\n");
        }
    }
    for n in 0..links {
        text += &format!("[[link]]\nname = \"l{n}\"\nrate = \"1 Gbit/s\"\n");
    }
    text
}

#[test]
fn a_thousand_endpoints_looked_at_ten_times_a_second_cost_a_stream_nothing() {
    let Some(_turn) = turn("a_thousand_endpoints_looked_at_ten_times_a_second_cost_a_stream_nothing") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = bed.start(&with_links(MANY));
    let own_ns = || daemon.show()["worker"]["own_ns"].as_u64().unwrap();
    let (stream, before, start) = (Stream::start(&bed), own_ns(), std::time::Instant::now());
    for look in 1..=30 {
        assert_eq!(daemon.show()["switches"][1]["tenants"][0]["endpoints"].as_array().unwrap().len(), MANY);
        std::thread::sleep(Duration::from_millis(100 * look).saturating_sub(start.elapsed()));
    }
    let (own, elapsed) = (own_ns() - before, start.elapsed().as_nanos() as u64);
    let sent = stream.end();
    println!("{sent} datagrams, none lost; the worker spent {own} of {elapsed} ns on who looked");
    assert_eq!(drops(&daemon, "b"), json!({}));
    assert!(own > 0 && own <= elapsed / 20, "{own} of {elapsed} ns");
}

#[test]
fn a_thousand_endpoints_come_and_go_and_a_stream_loses_nothing() {
    let Some(_turn) = turn("a_thousand_endpoints_come_and_go_and_a_stream_loses_nothing") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    // With a limit the scheduler has times to keep, so that the loop can be late.
    let (few, many) = (with_links(1), with_links(MANY));
    let daemon = bed.start(&few);
    let first = revision(&bed);
    let stream = Stream::start(&bed);
    let before = daemon.show()["worker"].clone();
    let applied = good(&bed.run(&["apply", bed.configuration(&many).to_str().unwrap()]));
    assert!(applied.contains(&format!("revision {}", first + 1)), "{applied}");
    let during = daemon.show()["worker"].clone();
    let with_limits = many.replacen("name = \"e7\"", "limit = \"9 Mbit/s\"\nname = \"e7\"", 2);
    good(&bed.run(&["apply", bed.configuration(&with_limits).to_str().unwrap()]));
    good(&bed.run(&["apply", bed.configuration(&few).to_str().unwrap()]));
    let after = daemon.show()["worker"].clone();
    let lag = |from: &Value, to: &Value| p99(&from["loop_lag_buckets"], &to["loop_lag_buckets"]);
    let round = |from: &Value, to: &Value| p99(&from["round_buckets"], &to["round_buckets"]);
    let sent = stream.end();
    // Shown with --nocapture: how late the loop was depends on the machine, whether frames were
    // lost does not.
    println!(
        "{} endpoints added: lag p99 {} us, round p99 {} us; removed: {} us, {} us; {sent} datagrams, none lost",
        2 * (MANY - 1),
        lag(&before, &during) / 1000,
        round(&before, &during) / 1000,
        lag(&during, &after) / 1000,
        round(&during, &after) / 1000
    );
    assert_eq!(drops(&daemon, "b"), json!({}));
    assert_eq!(daemon.show()["links"].as_array().unwrap().len(), 1);
}

#[test]
fn of_changes_at_the_same_time_each_is_made_whole_or_refused() {
    let Some(_turn) = turn("of_changes_at_the_same_time_each_is_made_whole_or_refused") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = bed.start(NEIGHBOURS);
    let first = revision(&bed);
    let stream = Stream::start(&bed);
    let netns = format!("netns={}", bed.name("c"));
    let add = |name: &str| {
        let (path, port) = (format!("s1/home/{name}"), format!("port=tap://{name}"));
        bed.run(&["add", "endpoint", &path, &port, &netns])
    };
    // Four want an endpoint of their own, and four the same.
    let (own, same) = std::thread::scope(|scope| {
        let add = &add;
        let own: Vec<_> = (0..4).map(|n| scope.spawn(move || add(&format!("own{n}")))).collect();
        let same: Vec<_> = (0..4).map(|_| scope.spawn(move || add("same"))).collect();
        let ends = |threads: Vec<std::thread::ScopedJoinHandle<'_, Output>>| -> Vec<Output> {
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        };
        (ends(own), ends(same))
    });
    own.iter().for_each(|output| drop(good(output)));
    let (made, refused): (Vec<_>, Vec<_>) = same.iter().partition(|output| output.status.success());
    assert_eq!((made.len(), refused.len()), (1, 3));
    assert!(refused.iter().all(|output| text(output).contains("s1/home/same")), "{}", text(refused[0]));
    assert_eq!(revision(&bed), first + 4 + 1);
    for name in ["own0", "own1", "own2", "own3", "same"] {
        assert_eq!(daemon.endpoint(name)["state"], "up");
    }
    assert!(stream.end() > 0);
}

/// Sends a request over the control socket and reads the answer.
pub fn say(bed: &Bed, request: &str) -> String {
    let name = bed.name("");
    let socket = bed.directory.join("run").join(name.trim_end_matches('-')).join("control.sock");
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// What a path answers, which is as the daemon's own description has it.
pub fn described(bed: &Bed, path: &str) -> Value {
    let get = |path: &str| -> Value {
        let answer = say(bed, &format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        serde_json::from_str(body).unwrap()
    };
    let mut document = get("/v1/openapi.json");
    let mut schema = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"].take();
    schema["components"] = document["components"].take();
    let answer = get(path);
    if let Err(fault) = jsonschema::validator_for(&schema).unwrap().validate(&answer) {
        panic!("{path}: {fault}: {answer}");
    }
    answer
}

fn post(bed: &Bed, body: &str) -> String {
    let length = body.len();
    say(bed, &format!("POST /v1/actions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}"))
}

#[test]
fn a_hundred_thousand_changes_in_one_request_keep_nobody_waiting() {
    let Some(_turn) = turn("a_hundred_thousand_changes_in_one_request_keep_nobody_waiting") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = bed.start(NEIGHBOURS);
    let _echo = bed.echo("b", B);
    let body = |count: usize| {
        let add = |n: usize| {
            let (mac, port) =
                (format!("02:01:00:{:02x}:{:02x}:{:02x}", n >> 16, n >> 8 & 255, n & 255), format!("tap://t{n}"));
            json!({"action": "add", "kind": "endpoint", "path": format!("s1/home/n{n}"), "keys": {"port": port, "mac": mac}})
        };
        let set = |n: usize| {
            let keys = json!({"limit": format!("{} Mbit/s", 100 + n % 7)});
            json!({"action": "set", "kind": "endpoint", "path": format!("s1/home/n{n}"), "keys": keys})
        };
        let del = |n: usize| json!({"action": "del", "kind": "endpoint", "path": format!("s1/home/n{n}")});
        // Nothing is left of these but a limit, so that no devices need be made.
        let one = |n| [add(n), set(n), del(n)];
        let last = json!({"action": "set", "kind": "endpoint", "path": "s1/home/c", "keys": {"limit": "7 Mbit/s"}});
        let actions: Vec<_> = (0..count / 3).flat_map(one).chain([last]).collect();
        json!({"actions": actions}).to_string()
    };
    let took = |count: usize| {
        let body = body(count);
        let (before, is_done) = (daemon.processor_time(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let looked = scope.spawn(|| {
                let mut looks = 0;
                while !is_done.load(Ordering::Relaxed) {
                    assert!(say(&bed, "GET /v1/report HTTP/1.1\r\nhost: x\r\n\r\n").starts_with("HTTP/1.1 200"));
                    looks += 1;
                }
                looks
            });
            let answer = post(&bed, &body);
            let took = daemon.processor_time() - before;
            is_done.store(true, Ordering::Relaxed);
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            (took, looked.join().unwrap())
        })
    };
    let (few, _) = took(10_000);
    let (many, mut looks) = took(100_000);
    // Of the processor, reports included; a tick of the kernel's clock more or less.
    assert!(many < (few + TICK) * 40, "10 000 take {few:?}, 100 000 {many:?}");
    // On a busy machine the change may be over before who looks has had his turns.
    for _ in 0..20 {
        if looks <= 2 {
            looks = took(100_000).1;
        }
    }
    assert!(looks > 2, "{looks} reports in {many:?}");
    assert_eq!(daemon.endpoint("c")["egress"]["limit_bps"], 7_000_000);
    assert_eq!(bed.ask("a", B, 5), 5);
    // More than is taken at once is refused before it is read, and harms nothing.
    let many = format!("{{\"actions\": [{}]}}", vec!["{}"; 1_100_000].join(","));
    let answer = post(&bed, &many);
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("at most 2000000 values"), "{answer}");
    let answer = post(&bed, &body(200_001));
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("at most 200000 actions"), "{answer}");
    assert_eq!(bed.ask("a", B, 5), 5);
}

#[test]
fn a_hundred_mistakes_are_shown_and_the_others_counted() {
    let bed = Bed::new(&[]);
    let mut text = String::from("[daemon]\nname = \"x\"\n[[switch]]\nname = \"s\"\n[[switch.tenant]]\nname = \"t\"\n");
    (0..100_000).for_each(|_| text += "[[switch.tenant.endpoint]]\n");
    let file = bed.directory.join("wrong.toml");
    std::fs::write(&file, text).unwrap();
    let output = bed.run(&["check", file.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    let shown = said.matches("error: ").count() + said.matches("warning: ").count();
    assert_eq!(shown - usize::from(said.starts_with("error: ")), 100, "{said}");
    assert!(said.contains("more are not shown: correct these first") && said.contains("200000 errors"), "{said}");
}
