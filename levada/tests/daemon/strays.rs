//! TAP devices that somebody else has moved into a container, renamed or set down: they stay the
//! daemon's, wherever they are.

use crate::restart::{Datagrams, Manager};
use crate::testbed::{Bed, Container, Daemon, soon, turn};
use crate::traffic::{A, B};
use rustix::process::Signal;
use std::process::Command;

/// How many takeovers a device lives through.
const TAKEOVERS: usize = 20;

/// A switch whose endpoint `a` has a device that is to be moved; `OF-A` is what more there is of
/// it. Rings have room for a slow machine.
const TEXT: &str = r#"
[daemon]
name = "NAME"
[[switch]]
name = "s1"
[[switch.tenant]]
name = "home"
[[switch.tenant.endpoint]]
name = "a"
port = "tap://NAME"
mac = "02:00:00:00:07:01"
ip = "10.7.0.1"
ipv6 = false
ring = 10000
OF-A
[[switch.tenant.endpoint]]
name = "b"
port = "tap://tap0"
netns = "NS-b"
mac = "02:00:00:00:07:02"
ip = "10.7.0.2"
address = "10.7.0.2/24"
ipv6 = false
ring = 10000
"#;

/// What runs `ip` and fails where that does.
fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Moves `a`'s device from where it was made (`None`: the daemon's own namespace) into a namespace,
/// renames it and sets it up there, as a container's manager does.
fn move_away(bed: &Bed, from: Option<&str>, to: &str) {
    let name = bed.name("").trim_end_matches('-').to_owned();
    let words = format!("link set dev {name} netns {} name eth0", bed.name(to));
    match from {
        None => ip(&words),
        Some(space) => drop(bed.ip(space, &words).unwrap()),
    }
    bed.ip(to, "address add 10.7.0.1/24 dev eth0").unwrap();
    bed.ip(to, "link set dev eth0 up").unwrap();
}

fn index(bed: &Bed, space: &str) -> String {
    bed.ip(space, "-o link show dev eth0").unwrap().split(':').next().unwrap().to_owned()
}

fn shown_ports(bed: &Bed) -> String {
    String::from_utf8(bed.run(&["show", "ports"]).stdout).unwrap()
}

/// Waits until the daemon knows where `a`'s device is.
fn is_shown(bed: &Bed, daemon: &Daemon, space: &str) {
    soon("it is shown where the device is", || {
        let a = daemon.endpoint("a");
        a["state"] == "up" && a["device"]["moved"]["name"] == bed.name(space) && a["device"]["renamed"] == "eth0"
    });
    let text = shown_ports(bed);
    assert!(text.contains(&format!("up: moved to {}, renamed to eth0", bed.name(space))), "{text}");
}

fn survives_takeovers(from: Option<&str>, more: &str) {
    let bed = Bed::new(&["a", "b", "home"]);
    let text = TEXT.replace("OF-A", more);
    let mut daemon = bed.start(&text);
    move_away(&bed, from, "a");
    let first = index(&bed, "a");
    let echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3);
    drop(echo);
    let streams = [Datagrams::between(&bed, "a", "b", B), Datagrams::between(&bed, "b", "a", A)];
    for number in 0..TAKEOVERS {
        streams.iter().for_each(Datagrams::goes_on);
        let next = bed.take_over(&text);
        assert!(daemon.wait().success(), "{}", daemon.log());
        daemon = next;
        assert_eq!(index(&bed, "a"), first, "takeover {number}: {}", daemon.log());
    }
    is_shown(&bed, &daemon, "a");
    streams.iter().for_each(Datagrams::goes_on);
    let sent = streams.map(Datagrams::arrived_once);
    println!("{more:?}: {TAKEOVERS} takeovers, none lost of {sent:?}");
    assert!(daemon.end(Signal::TERM).success());
    let persistent = more.contains("persistent");
    assert_eq!(bed.ip("a", "link show dev eth0").is_ok(), persistent, "it goes with the daemon, or is persistent");
    bed.run(&["clean", "--name", bed.name("").trim_end_matches('-')]);
    assert!(bed.ip("a", "link show dev eth0").is_err());
}

#[test]
fn a_moved_tap_is_kept_over_takeovers_and_loses_nothing() {
    let Some(_turn) = turn("a_moved_tap_is_kept_over_takeovers_and_loses_nothing") else { return };
    survives_takeovers(None, "");
    survives_takeovers(Some("home"), "netns = \"NS-home\"\naddress = \"10.7.0.1/24\"");
}

#[test]
fn a_moved_persistent_tap_is_kept_over_takeovers_and_loses_nothing() {
    let Some(_turn) = turn("a_moved_persistent_tap_is_kept_over_takeovers_and_loses_nothing") else { return };
    survives_takeovers(None, "persistent = true");
    survives_takeovers(Some("home"), "netns = \"NS-home\"\naddress = \"10.7.0.1/24\"\npersistent = true");
}

#[test]
fn changes_and_looks_follow_a_tap_wherever_it_is() {
    let Some(_turn) = turn("changes_and_looks_follow_a_tap_wherever_it_is") else { return };
    let bed = Bed::new(&["a", "b", "home"]);
    let name = bed.name("").trim_end_matches('-').to_owned();
    let text = TEXT.replace("OF-A", "netns = \"NS-home\"\naddress = \"10.7.0.1/24\"");
    let mut daemon = bed.start(&text);
    let set = |words: &[&str]| {
        let output = bed.run(&[&["set", "endpoint", "s1/home/a"], words].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    // Renamed where it is.
    bed.ip("home", &format!("link set dev {name} down")).unwrap();
    bed.ip("home", &format!("link set dev {name} name other")).unwrap();
    soon("it is down and has another name", || {
        let a = daemon.endpoint("a");
        a["state"] == "down" && a["device"]["renamed"] == "other" && a["device"]["moved"].is_null()
    });
    assert!(shown_ports(&bed).contains("down: renamed to other, set down"), "{}", shown_ports(&bed));
    let metrics = || String::from_utf8(bed.run(&["show", "--json"]).stdout).unwrap();
    assert!(metrics().contains("\"set_up\": false"));
    bed.ip("home", &format!("link set dev other name {name}")).unwrap();
    soon("it is set up again where it should be", || daemon.endpoint("a")["state"] == "up");
    move_away(&bed, Some("home"), "a");
    let first = index(&bed, "a");
    is_shown(&bed, &daemon, "a");
    assert!(daemon.log().contains("has changed: moved to"), "{}", daemon.log());
    let two = ["ip=[\"10.7.0.1\",\"10.7.9.9\"]", "address=[\"10.7.0.1/24\",\"10.7.9.9/32\"]"];
    set(&["mtu=1400", "ring=77", two[0], two[1]]);
    let link = || bed.ip("a", "link show dev eth0").unwrap();
    assert!(link().contains("mtu 1400") && link().contains("qlen 77"), "{}", link());
    assert!(bed.ip("a", "address show dev eth0").unwrap().contains("10.7.9.9/32"));
    // Set down by who has it: a takeover leaves it so, and brings to the file's words what is the
    // device's own.
    bed.ip("a", "link set dev eth0 down").unwrap();
    soon("it is shown", || daemon.endpoint("a")["state"] == "down");
    let next = bed.take_over(&text);
    assert!(daemon.wait().success());
    daemon = next;
    soon("it has the file's MTU", || link().contains("mtu 1500") && link().contains("qlen 10000"));
    assert!(!link().contains(",UP") && index(&bed, "a") == first, "{}", link());
    assert!(daemon.log().contains("are left to who moved it"), "{}", daemon.log());
    let a = daemon.endpoint("a");
    assert!(a["state"] == "down" && a["device"]["unsettled"].is_string(), "{a}");
    assert!(shown_ports(&bed).contains("the configuration has it in"), "{}", shown_ports(&bed));
    // Frames flow when the other side sets it up.
    bed.ip("a", "link set dev eth0 up").unwrap();
    let echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3);
    // It comes home, and is as it was made.
    bed.ip("a", &format!("link set dev eth0 netns {} name {name}", bed.name("home"))).unwrap();
    soon("it is as it was made", || {
        let a = daemon.endpoint("a");
        a["state"] == "up" && a["device"]["moved"].is_null() && a["device"]["unsettled"].is_null()
    });
    assert!(bed.ip("home", &format!("address show dev {name}")).unwrap().contains("10.7.0.1/24"));
    assert_eq!(bed.ask("home", B, 3), 3);
    drop(echo);
    // Where the configuration has the namespace that somebody moved it to, it is taken over from
    // there, too.
    move_away(&bed, Some("home"), "a");
    let first = index(&bed, "a");
    let other = text.replace("NS-home", "NS-a").replace("tap://NAME", "tap://eth0");
    let mut last = bed.take_over(&other);
    assert!(daemon.wait().success());
    assert_eq!(index(&bed, "a"), first);
    assert!(last.endpoint("a")["device"]["moved"].is_null());
    assert!(last.end(Signal::TERM).success());
}

#[test]
fn a_service_manager_keeps_a_tap_that_was_moved() {
    let Some(_turn) = turn("a_service_manager_keeps_a_tap_that_was_moved") else { return };
    let bed = Bed::new(&["a", "b"]);
    let text = TEXT.replace("OF-A", "");
    bed.configuration(&text);
    let mut manager = Manager::new(&bed);
    let mut daemon = manager.start_as(&bed, &text);
    move_away(&bed, None, "a");
    let first = index(&bed, "a");
    for _ in 0..2 {
        daemon.signal(Signal::TERM);
        manager.hears("BARRIER=1");
        assert!(daemon.wait().success(), "{}", daemon.log());
        assert_eq!(manager.store.len(), 2);
        daemon = manager.start_as(&bed, &text);
        manager.keeps(2);
        assert_eq!(index(&bed, "a"), first);
        is_shown(&bed, &daemon, "a");
    }
    let _echo = bed.echo("b", B);
    let answered = bed.ask("a", B, 3);
    let state = || [bed.ip("a", "address").unwrap(), bed.ip("a", "neigh").unwrap(), shown_ports(&bed)].join("\n");
    assert_eq!(answered, 3, "{}\n{}", state(), daemon.log());
}

#[test]
fn a_persistent_tap_in_a_container_is_found_again_after_a_kill() {
    let Some(_turn) = turn("a_persistent_tap_in_a_container_is_found_again_after_a_kill") else { return };
    let bed = Bed::new(&["b"]);
    let container = Container::new();
    let name = bed.name("").trim_end_matches('-').to_owned();
    let text = TEXT.replace("OF-A", "persistent = true");
    let mut daemon = bed.start(&text);
    ip(&format!("link set dev {name} netns {} name eth0", container.pid()));
    container.ip("link set dev eth0 up");
    let first = container.ip("-o link show dev eth0").split(':').next().unwrap().to_owned();
    daemon.end(Signal::KILL);
    let mut daemon = bed.start(&text);
    assert_eq!(container.ip("-o link show dev eth0").split(':').next(), Some(first.as_str()), "{}", daemon.log());
    assert!(std::fs::metadata(format!("/sys/class/net/{name}")).is_err(), "there is no second one");
    let a = daemon.endpoint("a");
    assert!(a["state"] == "up" && a["device"]["renamed"] == "eth0", "{a}");
    assert!(shown_ports(&bed).contains(&format!("of process {}, renamed", container.pid())), "{}", shown_ports(&bed));
    // Another that says it were that one: neither is believed, and the log says so.
    daemon.end(Signal::KILL);
    let liar = Container::new();
    liar.ip("tuntap add dev tap7 mode tap");
    liar.ip(&format!("link set dev tap7 alias levada:{name}:s1/home/a"));
    let mut daemon = bed.start(&text);
    assert!(daemon.log().contains("both have its tag"), "{}", daemon.log());
    assert!(daemon.endpoint("a")["device"]["moved"].is_null());
    assert!(daemon.end(Signal::TERM).success());
    drop((container, liar));
    bed.run(&["clean", "--name", &name]);
    assert!(std::fs::metadata(format!("/sys/class/net/{name}")).is_err());
}
