//! What goes wrong around a daemon, and that it leaves nothing behind.

use crate::restart::{Manager, answer, speak};
use crate::testbed::{Bed, Container, Daemon, Group, skipped, soon, turn};
use crate::traffic::{A, B, C, NEIGHBOURS};
use crate::vde;
use rustix::process::{Resource, Rlimit, Signal};
use std::ffi::OsString;
use std::fs::File;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_signal_ends_it_and_nothing_is_left() {
    let Some(_turn) = turn("a_signal_ends_it_and_nothing_is_left") else { return };
    for signal in [Signal::INT, Signal::TERM] {
        let bed = Bed::new(&["a", "b", "c"]);
        let mut daemon = bed.start(NEIGHBOURS);
        assert!(bed.ip("a", "link show dev tap0").is_ok());
        assert!(daemon.end(signal).success(), "{}", daemon.log());
        assert!(bed.ip("a", "link show dev tap0").is_err(), "the device is gone");
        let left: Vec<_> = std::fs::read_dir(bed.directory.join("run")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn what_is_persistent_stays_is_taken_up_again_and_cleaned() {
    let Some(_turn) = turn("what_is_persistent_stays_is_taken_up_again_and_cleaned") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let persistent = NEIGHBOURS.replacen("ip = \"10.7.0.1\"", "persistent = true\nip = \"10.7.0.1\"", 1);
    let index = |bed: &Bed| bed.ip("a", "-o link show dev tap0").map(|text| text.split(':').next().unwrap().to_owned());
    let mut daemon = bed.start(&persistent);
    let first = index(&bed).unwrap();
    assert!(daemon.end(Signal::TERM).success());
    assert_eq!(index(&bed).as_ref(), Ok(&first), "it outlives the daemon");
    assert!(bed.ip("b", "link show dev tap0").is_err(), "the others do not");
    let mut daemon = bed.start(&persistent);
    assert_eq!(index(&bed).as_ref(), Ok(&first), "it is the same device");
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3);
    assert!(daemon.end(Signal::TERM).success());
    let name = bed.name("");
    let output = bed.run(&["clean", "--name", name.trim_end_matches('-')]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("removed tap tap0"), "{text}");
    assert!(index(&bed).is_err());
}

#[test]
fn after_a_kill_it_starts_again_and_clean_removes_the_rest() {
    let Some(_turn) = turn("after_a_kill_it_starts_again_and_clean_removes_the_rest") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let mut daemon = bed.start(NEIGHBOURS);
    daemon.end(Signal::KILL);
    let shown = bed.run(&["show"]);
    let text = String::from_utf8(shown.stderr).unwrap();
    assert!(!shown.status.success() && text.contains("levada clean"), "{text}");
    let mut daemon = bed.start(NEIGHBOURS);
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3);
    daemon.end(Signal::KILL);
    let cleaned = bed.run(&["clean"]);
    assert!(cleaned.status.success(), "{}", String::from_utf8_lossy(&cleaned.stderr));
    let left: Vec<_> = std::fs::read_dir(bed.directory.join("run")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_second_daemon_is_told_who_runs_and_changes_nothing() {
    let Some(_turn) = turn("a_second_daemon_is_told_who_runs_and_changes_nothing") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = bed.start(NEIGHBOURS);
    let file = bed.configuration(NEIGHBOURS);
    let second = bed.run(&["run", "-c", file.to_str().unwrap()]);
    let text = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(text.contains(&format!("runs already as process {}", daemon.pid())), "{text}");
    let cleaned = bed.run(&["clean", "--name", bed.name("").trim_end_matches('-')]);
    assert!(!cleaned.status.success() && String::from_utf8_lossy(&cleaned.stderr).contains("stop it first"));
    // Another name, but the same devices.
    let other = bed.configuration(&NEIGHBOURS.replace("NAME", "other"));
    let third = bed.run(&["run", "-c", other.to_str().unwrap()]);
    let text = String::from_utf8(third.stderr).unwrap();
    assert!(!third.status.success() && text.contains("tap0"), "{text}");
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3, "the first is undisturbed");
}

#[test]
fn a_namespace_that_is_missing_is_named_and_the_others_work() {
    let Some(_turn) = turn("a_namespace_that_is_missing_is_named_and_the_others_work") else { return };
    let bed = Bed::new(&["a", "b"]);
    let mut daemon = bed.start(NEIGHBOURS);
    let warning = format!("warning: tap://tap0 of s1/home/c is not there (tap tap0: namespace {}:", bed.name("c"));
    soon("it is said", || daemon.log().contains(&warning));
    assert_eq!(daemon.endpoint("c")["state"], "down");
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3, "the others work");
    bed.add("c");
    soon("it is there", || daemon.endpoint("c")["state"] == "up");
    assert!(daemon.end(Signal::TERM).success());
}

/// A switch on an interface of its host, behind which is [`FAR`].
const ON_UP0: &str = r#"
[daemon]
name = "NAME"
[[switch]]
name = "s1"
[switch.uplink]
port = "packet://up0"
netns = "NS-host"
rate = "100 Mbit/s"
[[switch.tenant]]
name = "red"
vlan = "untagged"
[[switch.tenant.endpoint]]
name = "red"
port = "tap://red"
netns = "NS-red"
address = "10.9.0.1/24"
"#;
const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// Makes the interface.
fn add_up0(bed: &Bed) {
    bed.ip("host", "link add up0 type veth peer name far").unwrap();
    bed.ip("host", "link set up0 up").unwrap();
    bed.ip("host", "link set far up").unwrap();
    bed.ip("host", &format!("address add {FAR}/24 dev far")).unwrap();
}

#[test]
fn an_interface_that_is_missing_at_the_start_is_named_and_taken_when_it_comes() {
    let name = "an_interface_that_is_missing_at_the_start_is_named_and_taken_when_it_comes";
    let Some(_turn) = turn(name) else { return };
    let bed = Bed::new(&["host", "red"]);
    let mut daemon = bed.start(ON_UP0);
    let warning = "warning: packet://up0 of s1/uplink is not there (interface up0 in namespace ";
    soon("it is said", || daemon.log().contains(warning));
    // One who changes what runs is told at once.
    let port = format!("netns={}", bed.name("host"));
    let output = bed.run(&["add", "endpoint", "s1/red/more", "port=packet://none", &port]);
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && why.contains("interface none"), "{why}");
    add_up0(&bed);
    soon("it is there", || daemon.log().contains("packet://up0 of s1/uplink is back"));
    let _echo = bed.echo("host", FAR);
    assert_eq!(bed.ask("red", FAR, 3), 3);
    assert!(daemon.end(Signal::TERM).success());
}

/// A control group whose processes may have no more than so many threads in all.
fn threads(bed: &Bed) -> Option<Group> {
    Group::new(&bed.tag, "pids", &["pids.max"])
}

#[test]
fn a_takeover_that_lacks_a_thread_fails_before_the_old_process_has_given_anything_up() {
    let name = "a_takeover_that_lacks_a_thread_fails_before_the_old_process_has_given_anything_up";
    let Some(_turn) = turn(name) else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let Some(threads) = threads(&bed) else {
        skipped(name, "no control group can be made here");
        return;
    };
    // Under a manager, which has a watchdog.
    let mut manager = Manager::new(&bed);
    let socket = manager.path().to_owned();
    let mut daemon = manager.start_as(&bed, NEIGHBOURS);
    let needed = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count();
    let (mut failures, mut next) = (0, None);
    for most in needed - 4..needed + 8 {
        threads.limit(most);
        let attempt = || {
            bed.attempt(&bed.tag, "run", NEIGHBOURS, |command| {
                command.arg("--takeover").env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "200000");
                threads.around(command);
            })
        };
        match manager.meanwhile(attempt) {
            Ok(one) => {
                next = Some(one);
                break;
            }
            Err(said) => {
                failures += 1;
                assert!(said.contains("TasksMax="), "{said}");
                let failed = || daemon.log().matches("a takeover failed, and this process goes on").count();
                manager.meanwhile(|| soon("the old process goes on", || failed() == failures));
            }
        }
    }
    drop(threads);
    let mut next = next.expect("one that has all it needs takes over");
    assert!(failures > 0 && manager.meanwhile(|| daemon.wait().success()), "{}", daemon.log());
    manager.hears("WATCHDOG=1");
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3);
    assert!(manager.meanwhile(|| next.end(Signal::TERM).success()));
}

#[test]
fn a_moment_without_threads_to_be_had_costs_no_device_and_no_later_change() {
    const TEST: &str = "a_moment_without_threads_to_be_had_costs_no_device_and_no_later_change";
    let Some(_turn) = turn(TEST) else { return };
    let bed = Bed::new(&["host", "red"]);
    add_up0(&bed);
    let mut daemon = bed.start(ON_UP0);
    let Some(threads) = threads(&bed) else {
        skipped(TEST, "no control group can be made here");
        return;
    };
    std::fs::write(threads.procs(), daemon.pid().to_string()).unwrap();
    threads.limit(1);
    // It is asked for what it dropped each second.
    std::thread::sleep(Duration::from_millis(2500));
    drop(threads);
    assert!(!daemon.log().contains("panicked") && !daemon.log().contains("is gone"), "{}", daemon.log());
    let changed = bed.run(&["set", "endpoint", "s1/red/red", "limit=5 Mbit/s"]);
    assert!(changed.status.success(), "{}", String::from_utf8_lossy(&changed.stderr));
    bed.ip("host", "link delete dev up0").unwrap();
    soon("the loss is noticed", || daemon.log().contains("packet://up0 of s1/uplink is gone"));
    add_up0(&bed);
    soon("it is back", || daemon.log().contains("packet://up0 of s1/uplink is back"));
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_moment_without_descriptors_costs_no_device() {
    let Some(_turn) = turn("a_moment_without_descriptors_costs_no_device") else { return };
    let bed = Bed::new(&["host", "red"]);
    add_up0(&bed);
    let mut daemon = bed.start(ON_UP0);
    let pid = rustix::process::Pid::from_raw(daemon.pid() as i32);
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    for current in [Some(1), maximum] {
        rustix::process::prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).unwrap();
        // It is asked for what it dropped each second.
        std::thread::sleep(Duration::from_millis(2500));
    }
    let _echo = bed.echo("host", FAR);
    assert_eq!(bed.ask("red", FAR, 3), 3);
    let uplink = daemon.show()["switches"][0]["uplink"].clone();
    assert_eq!((&uplink["state"], &uplink["losses"]), (&"up".into(), &0.into()), "{}", daemon.log());
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn who_starts_while_the_run_directory_is_cleaned_waits_for_it() {
    let Some(_turn) = turn("who_starts_while_the_run_directory_is_cleaned_waits_for_it") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let home = bed.directory.join("run").join(&bed.tag);
    std::fs::create_dir_all(&home).unwrap();
    // As levada clean does: it has the lock, and answers nobody.
    let lock = File::create(home.join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let cleaner = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        drop(lock);
    });
    let mut daemon = bed.start(NEIGHBOURS);
    cleaner.join().unwrap();
    assert!(daemon.end(Signal::TERM).success());
}

/// A file system on a directory, until it is dropped.
struct Small(PathBuf);

impl Small {
    fn on(path: PathBuf) -> Small {
        std::fs::create_dir_all(&path).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "levada"]).arg(&path).status();
        assert!(mounted.unwrap().success());
        Small(path)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// The key of services that a daemon offers to who takes over; it goes on.
fn offered_key(daemon: &Daemon, bed: &Bed) -> u64 {
    let hello = br#"{"message":"hello","protocol":1,"version":"9.0.0","pid":1}"#;
    let stream = speak(daemon, bed, &[hello]);
    let offer: serde_json::Value = serde_json::from_str(&answer(&stream)).unwrap();
    drop(stream);
    soon("the daemon goes on", || daemon.log().contains("a takeover failed, and this process goes on"));
    offer["service_key"].as_u64().expect("there is a key")
}

#[test]
fn on_a_full_file_system_for_its_run_directory_it_starts_and_is_taken_over_from() {
    let Some(_turn) = turn("on_a_full_file_system_for_its_run_directory_it_starts_and_is_taken_over_from") else {
        return;
    };
    let bed = Bed::new(&["a", "b", "c"]);
    let run = Small::on(bed.directory.join("run"));
    assert!(std::fs::write(run.0.join("full"), vec![0; 128 << 10]).is_err());
    let mut daemon = bed.start(NEIGHBOURS);
    let file = run.0.join(&bed.tag).join("service-key");
    let warning = format!("the key of services cannot be kept in {}: No space left", file.display());
    assert!(daemon.log().contains(&warning) && daemon.log().contains("make room there"), "{}", daemon.log());
    let key = offered_key(&daemon, &bed);
    let mut next = bed.take_over(NEIGHBOURS);
    assert!(daemon.wait().success(), "{}", daemon.log());
    assert_eq!(offered_key(&next, &bed), key, "open connections go on by it");
    let again = bed.run(&["run", "-c", bed.configuration(NEIGHBOURS).to_str().unwrap()]);
    let said = String::from_utf8(again.stderr).unwrap();
    assert!(said.contains("runs already as an unknown process"), "{said}");
    // With room there again it is kept, and it is still the same.
    std::fs::remove_file(run.0.join("full")).unwrap();
    let mut last = bed.take_over(NEIGHBOURS);
    assert!(next.wait().success(), "{}", next.log());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{key:016x}\n"));
    assert!(!last.log().contains("cannot be kept"), "{}", last.log());
    assert!(last.end(Signal::TERM).success());
    let left: Vec<_> = std::fs::read_dir(&run.0).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, Vec::<OsString>::new());
}

#[test]
fn a_run_directory_that_is_removed_is_told_of_and_costs_no_devices() {
    let Some(_turn) = turn("a_run_directory_that_is_removed_is_told_of_and_costs_no_devices") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let mut daemon = bed.start(NEIGHBOURS);
    let home = bed.directory.join("run").join(&bed.tag);
    std::fs::remove_file(home.join("lock")).unwrap();
    let removed = Instant::now();
    soon("it is told of", || daemon.log().contains("the run directory, or the lock in it, was removed"));
    println!("told of after {:?}", removed.elapsed());
    let cleaned = bed.run(&["clean", "--name", &bed.tag]);
    let said = String::from_utf8(cleaned.stderr).unwrap();
    assert!(cleaned.status.code() == Some(1) && said.contains(&format!("runs as process {}", daemon.pid())), "{said}");
    let again = bed.run(&["run", "-c", bed.configuration(NEIGHBOURS).to_str().unwrap()]);
    let said = String::from_utf8(again.stderr).unwrap();
    assert!(said.contains(&format!("runs already as process {}", daemon.pid())), "{said}");
    assert_eq!(daemon.endpoint("a")["state"], "up", "its sockets are there");
    // All of it.
    std::fs::remove_dir_all(&home).unwrap();
    let cleaned = bed.run(&["clean", "--name", &bed.tag]);
    let said = String::from_utf8(cleaned.stdout).unwrap();
    assert_eq!(said.matches("stays: a process has it open").count(), 3, "{said}");
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3, "its devices are there");
    assert!(daemon.end(Signal::TERM).success());
    assert_eq!(daemon.log().matches("was removed").count(), 1, "{}", daemon.log());
    assert!(bed.ip("a", "link show dev tap0").is_err());
}

#[test]
fn a_device_deleted_under_traffic_comes_back_and_the_others_go_on() {
    let Some(_turn) = turn("a_device_deleted_under_traffic_comes_back_and_the_others_go_on") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = bed.start(NEIGHBOURS);
    let (_b, _c) = (bed.echo("b", B), bed.echo("c", C));
    // A knows C's address, so that it goes on sending after C is gone.
    assert_eq!(bed.ask("a", C, 3), 3);
    bed.ip("a", "neighbour replace 10.7.0.3 lladdr 02:00:00:00:07:03 dev tap0").unwrap();
    bed.ip("c", "link delete dev tap0").unwrap();
    soon("the loss is noticed", || daemon.endpoint("c")["state"] == "down" || daemon.log().contains("is gone"));
    let lost = bed.ask("a", C, 1);
    assert_eq!(bed.ask("a", B, 20), 20, "the others go on");
    if lost == 0 {
        let drops = daemon.endpoint("c")["drops"]["port-down"].as_u64().unwrap_or(0);
        assert!(drops > 0, "what is for it is counted: {}", daemon.endpoint("c"));
    }
    soon("the device is back", || daemon.endpoint("c")["state"] == "up" && bed.ip("c", "link show dev tap0").is_ok());
    drop(_c);
    let _c = bed.echo("c", C);
    assert_eq!(bed.ask("a", C, 3), 3);
    let log = daemon.log();
    assert_eq!(log.matches("is gone").count(), 1, "said once: {log}");
    assert!(log.contains("is back"), "{log}");
    assert_eq!(daemon.endpoint("c")["losses"], 1);
}

#[test]
fn a_namespace_deleted_and_made_again_gets_its_device_back() {
    let Some(_turn) = turn("a_namespace_deleted_and_made_again_gets_its_device_back") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = bed.start(NEIGHBOURS);
    let _a = bed.echo("a", A);
    bed.remove("c");
    soon("the loss is noticed", || daemon.endpoint("c")["state"] == "down");
    assert_eq!(bed.ask("b", A, 5), 5, "the others go on");
    bed.add("c");
    soon("the device is back", || daemon.endpoint("c")["state"] == "up");
    assert_eq!(bed.ask("c", A, 3), 3);
}

#[test]
fn frames_lost_in_a_device_before_they_are_read_are_counted() {
    let Some(_turn) = turn("frames_lost_in_a_device_before_they_are_read_are_counted") else { return };
    const RING: u64 = 8;
    const SENT: u64 = 100;
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = bed.start(&NEIGHBOURS.replacen("ipv6 = false", &format!("ipv6 = false\nring = {RING}"), 1));
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 1), 1, "addresses are known");
    daemon.freeze();
    let socket = bed.space("a").run(|| std::net::UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    for _ in 0..SENT {
        socket.send_to(b"lost", (B, 9)).unwrap();
    }
    daemon.signal(Signal::CONT);
    let mut drops = 0;
    soon("the drops are told", || {
        drops = daemon.endpoint("a")["drops"]["port-ring"].as_u64().unwrap_or(0);
        drops > 0
    });
    assert_eq!(drops, SENT - RING);
}

/// A namespace mounted on a file outside the usual directory.
struct Mounted(PathBuf);

impl Mounted {
    fn new(bed: &Bed, of: &Container) -> Mounted {
        let path = bed.directory.join("space");
        std::fs::write(&path, "").unwrap();
        assert!(Command::new("mount").arg("--bind").arg(of.path()).arg(&path).status().unwrap().success());
        Mounted(path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn clean_finds_devices_in_namespaces_that_have_only_a_path() {
    let Some(_turn) = turn("clean_finds_devices_in_namespaces_that_have_only_a_path") else { return };
    let bed = Bed::new(&["a"]);
    let contained = Container::new();
    let mounted = Mounted::new(&bed, &Container::new());
    let spaces = [contained.path(), mounted.0.to_str().unwrap().to_owned(), format!("/run/netns/{}", bed.name("a"))];
    let mut text = "[daemon]\nname = \"NAME\"\n[[switch]]\nname = \"s\"\n[[switch.tenant]]\nname = \"t\"\n".to_owned();
    for (number, space) in spaces.iter().enumerate() {
        text += &format!(
            "[[switch.tenant.endpoint]]\nname = \"e{number}\"\nport = \"tap://tap0\"\npersistent = true\nnetns = \"{space}\"\n"
        );
    }
    let has = |space: &str| {
        let look = || Command::new("ip").args(["link", "show", "dev", "tap0"]).output().unwrap().status.success();
        ports::netns::Netns::new(space).run(look).unwrap()
    };
    let mut daemon = bed.start(&text);
    assert!(daemon.end(Signal::TERM).success());
    assert_eq!(spaces.each_ref().map(|space| has(space)), [true; 3], "they are persistent");
    let name = bed.name("");
    let output = bed.run(&["clean", "--name", name.trim_end_matches('-')]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(spaces.each_ref().map(|space| has(space)), [false; 3], "{said}");
    assert_eq!(said.matches("removed tap tap0 in ").count(), 3, "{said}");
    assert!(said.contains(&format!("removed tap tap0 in {} of", spaces[0])), "{said}");
}

#[test]
fn a_full_disk_for_the_log_harms_nothing_else() {
    let Some(_turn) = turn("a_full_disk_for_the_log_harms_nothing_else") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let file = bed.configuration(NEIGHBOURS);
    let mut daemon = Ended(bed.levada(&["run", "-c", file.to_str().unwrap()]).stderr(full()).spawn().unwrap());
    soon("it answers", || bed.run(&["show"]).status.success());
    let pid = rustix::process::Pid::from_child(&daemon.0);
    let _echo = bed.echo("b", B);
    for _ in 0..3 {
        rustix::process::kill_process(pid, Signal::HUP).unwrap();
        assert_eq!(bed.ask("a", B, 3), 3);
    }
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert!(daemon.0.wait().unwrap().success());
    // Nor is what cannot be said a panic.
    let status = bed.levada(&["run", "-c", "/nowhere"]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn a_log_that_nobody_reads_stops_nobody() {
    let Some(_turn) = turn("a_log_that_nobody_reads_stops_nobody") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let file = bed.configuration(NEIGHBOURS);
    let mut command = bed.levada(&["run", "-c", file.to_str().unwrap()]);
    let mut daemon = Ended(command.stderr(Stdio::piped()).spawn().unwrap());
    let unread = daemon.0.stderr.take().unwrap();
    rustix::pipe::fcntl_setpipe_size(&unread, 4096).unwrap();
    soon("it answers", || bed.run(&["show"]).status.success());
    let pid = rustix::process::Pid::from_child(&daemon.0);
    // More than the pipe holds, in the threads that make changes and wait for signals.
    for round in 0..3 {
        let switches = (0..50).map(|n| format!("[[switch]]\nname = \"x{round}-{n}\"\nheadroom = \"2 %\"\n"));
        bed.configuration(&(NEIGHBOURS.to_owned() + &switches.collect::<String>()));
        rustix::process::kill_process(pid, Signal::HUP).unwrap();
        let shown = || String::from_utf8(bed.run(&["show"]).stdout).unwrap();
        soon("it has reloaded", || shown().contains(&format!("switch x{round}-49")));
    }
    assert!(bed.run(&["set", "endpoint", "s1/home/a", "limit=5 Mbit/s"]).status.success());
    assert!(bed.ip("a", "link del dev tap0").is_ok());
    soon("maintenance goes on", || bed.ip("a", "link show dev tap0").is_ok());
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    // By force it would end otherwise.
    assert!(daemon.0.wait().unwrap().success());
    drop(unread);
}

/// A process that is killed at the end of its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is left of a daemon: its run directory, and the VDE directory that it had open.
fn remains(bed: &Bed) -> [bool; 2] {
    let run = bed.directory.join("run");
    [run.exists() && run.read_dir().unwrap().next().is_some(), vde::directory(bed).exists()]
}

/// The same, and of the sockets of [`MUCH`] and the directories made for them.
fn much_remains(bed: &Bed) -> Vec<&'static str> {
    let all = ["vm", "vm/inner", "vm/inner/m.sock", "there/m.sock"];
    let [run, vde] = remains(bed);
    let more = [(run, "its run directory"), (vde, "its VDE directory")];
    let more = more.into_iter().filter_map(|(is_left, what)| is_left.then_some(what));
    all.into_iter().filter(|name| bed.directory.join(name).exists()).chain(more).collect()
}

#[test]
fn what_a_watchdogs_signal_leaves_is_removed_by_the_next_start_and_by_clean() {
    let Some(_turn) = turn("what_a_watchdogs_signal_leaves_is_removed_by_the_next_start_and_by_clean") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    // First the one that systemd sends when the watchdog has waited long enough (WatchdogSignal=),
    // then the one after that.
    for signal in [Signal::ABORT, Signal::KILL] {
        let die = || {
            let mut daemon = vde::start(&bed, vde::THREE);
            let pid = rustix::process::Pid::from_raw(daemon.pid() as i32);
            let none = Rlimit { current: Some(0), maximum: Some(0) };
            rustix::process::prlimit(pid, Resource::Core, none).unwrap();
            assert!(!daemon.end(signal).success());
            assert_eq!(remains(&bed), [true, true]);
        };
        die();
        // The next one has no VDE directory, and does not need what the last one had.
        let mut daemon = bed.start(NEIGHBOURS);
        assert_eq!(remains(&bed), [true, false]);
        assert!(daemon.end(Signal::TERM).success());
        assert_eq!(remains(&bed), [false, false]);
        die();
        let cleaned = bed.run(&["clean"]);
        let text = String::from_utf8(cleaned.stdout).unwrap();
        assert!(cleaned.status.success() && text.contains("removed the VDE directory"), "{text}");
        assert_eq!(remains(&bed), [false, false]);
    }
}

/// Two VDE directories and two sockets for machines, one of each in a directory that was there
/// before; a device that is persistent, one that is not, and a pair.
const MUCH: &str = r#"
[daemon]
name = "NAME"
[[switch]]
name = "s1"
[[switch.tenant]]
name = "red"
[[switch.tenant.endpoint]]
name = "a"
port = "vde://DIR/red"
[[switch.tenant.endpoint]]
name = "tap"
port = "tap://tap0"
netns = "NS-a"
persistent = true
[[switch.tenant]]
name = "blue"
[[switch.tenant.endpoint]]
name = "b"
port = "vde://DIR/blue"
[[switch.tenant.endpoint]]
name = "tap"
port = "tap://tap1"
netns = "NS-a"
[[switch.tenant.endpoint]]
name = "pair"
port = "veth://tap2"
netns = "NS-a"
[[switch.tenant.endpoint]]
name = "m"
port = "vhost-user://DIR/vm/inner/m.sock"
listen = true
[[switch.tenant.endpoint]]
name = "n"
port = "vhost-user://DIR/there/m.sock"
listen = true
"#;

#[test]
fn whatever_moment_a_daemon_is_killed_at_clean_leaves_nothing() {
    const KILLS: u32 = 60;
    let Some(_turn) = turn("whatever_moment_a_daemon_is_killed_at_clean_leaves_nothing") else { return };
    let bed = Bed::new(&["a"]);
    let [blue, there] = ["blue", "there"].map(|name| bed.directory.join(name));
    std::fs::create_dir(&blue).unwrap();
    std::fs::create_dir(&there).unwrap();
    let file = bed.configuration(&vde::here(&bed, MUCH));
    let begin = || {
        let mut command = bed.levada(&["run", "-c", file.to_str().unwrap()]);
        Ended(command.stderr(std::process::Stdio::null()).spawn().unwrap())
    };
    // How long a start takes, and an end: kills are spread over both.
    let start = Instant::now();
    let mut whole = begin();
    soon("it is ready", || bed.run(&["show"]).status.success());
    let span = start.elapsed();
    rustix::process::kill_process(rustix::process::Pid::from_child(&whole.0), Signal::TERM).unwrap();
    whole.0.wait().unwrap();
    // Beside what the persistent device's next daemon is to know.
    assert_eq!(much_remains(&bed), ["its run directory"], "at an end in order");
    let _ = bed.run(&["clean", "--name", bed.name("").trim_end_matches('-')]);
    let (mut left, mut sockets_left) = (0, 0);
    for kill in 0..KILLS {
        let mut daemon = begin();
        if kill % 2 == 0 {
            std::thread::sleep(span * kill / KILLS);
        } else {
            soon("it is ready", || bed.run(&["show"]).status.success());
            rustix::process::kill_process(rustix::process::Pid::from_child(&daemon.0), Signal::TERM).unwrap();
            std::thread::sleep(Duration::from_micros(500 * u64::from(kill)));
        }
        let _ = daemon.0.kill();
        daemon.0.wait().unwrap();
        left += usize::from(!much_remains(&bed).is_empty());
        sockets_left += usize::from(much_remains(&bed).contains(&"vm/inner/m.sock"));
        // The kernel takes a device away a moment after the process.
        soon("nothing is left", || {
            let cleaned = bed.run(&["clean", "--name", bed.name("").trim_end_matches('-')]);
            assert!(cleaned.status.success(), "{}", String::from_utf8_lossy(&cleaned.stderr));
            bed.ip("a", "-o link show").unwrap().lines().all(|line| !line.contains("tap"))
        });
        let text = format!("killed after {kill} of {KILLS} parts of {span:?}");
        assert_eq!(much_remains(&bed), Vec::<&str>::new(), "{text}");
        assert!(there.is_dir(), "{text}");
        // What was there before stays, and its control socket does not.
        let inside = std::fs::read_dir(&blue).map(Iterator::count);
        assert!(inside.is_err() || inside.unwrap() == 0, "{text}");
        let _ = std::fs::create_dir(&blue);
    }
    assert!(left > 0 && sockets_left > 0, "no kill came in time to leave anything: {left}, {sockets_left}");
}
