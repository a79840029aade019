//! Veth pairs: what a container sends meets the switch and nobody else, and a pair that nobody
//! wants is gone.

use crate::management::say;
use crate::restart::Datagrams;
use crate::testbed::{Bed, Container, soon, turn};
use crate::traffic::{A, B, NEIGHBOURS};
use rustix::process::Signal;
use serde_json::Value;
use std::net::Ipv4Addr;

/// Of the daemon's namespace.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

fn pairs() -> String {
    NEIGHBOURS.replace("tap://", "veth://")
}

/// The number of its network namespace.
fn number(container: &Container) -> String {
    let link = std::fs::read_link(container.path()).unwrap();
    link.to_str().unwrap().trim_start_matches("net:[").trim_end_matches(']').to_owned()
}

fn shown_ports(bed: &Bed) -> String {
    String::from_utf8(bed.run(&["show", "ports"]).stdout).unwrap()
}

/// Waits until `show ports` says this of endpoint a.
fn is_shown(bed: &Bed, words: &str) {
    let line = || shown_ports(bed).lines().find(|line| line.contains("s1/home/a ")).unwrap_or_default().to_owned();
    soon(&format!("{words}, after {}", line()), || {
        line().contains(&format!(" {words} ")) || line().contains(&format!(" {words}; "))
    });
}

#[test]
fn a_container_with_a_pair_reaches_its_neighbours_and_never_the_host() {
    let Some(_turn) = turn("a_container_with_a_pair_reaches_its_neighbours_and_never_the_host") else { return };
    let bed = Bed::new(&["a", "b", "c", "home"]);
    // The daemon's own namespace has an address that a container may ask for.
    bed.ip("home", "link add dummy type bridge").unwrap();
    bed.ip("home", &format!("addr add {HOST}/24 dev dummy")).unwrap();
    bed.ip("home", "link set dev dummy up").unwrap();
    let mut daemon = bed.space("home").run(|| bed.start(&pairs())).unwrap();
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3);
    // By ARP, which its kernel would answer for any address of its own.
    bed.ip("a", &format!("route add {HOST} dev tap0")).unwrap();
    let _host = bed.echo("home", HOST);
    assert_eq!(bed.ask("a", HOST, 2), 0);
    let neighbour = bed.ip("a", &format!("neigh show {HOST} dev tap0")).unwrap();
    assert!(!neighbour.contains("lladdr"), "{neighbour}");
    // The daemon's namespace has none of it.
    assert!(!bed.ip("home", "link show type veth").unwrap().contains("veth"));
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_pair_goes_with_its_endpoint_and_its_name_is_free_again() {
    let Some(_turn) = turn("a_pair_goes_with_its_endpoint_and_its_name_is_free_again") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let mut daemon = bed.start(&pairs());
    let run = |words: &[&str]| {
        let output = bed.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["set", "endpoint", "s1/home/a", "mtu=1400", "mac=02:00:00:00:07:09"]);
    let shown = bed.ip("a", "link show dev tap0").unwrap();
    assert!(shown.contains("mtu 1400") && shown.contains("02:00:00:00:07:09"), "{shown}");
    run(&["del", "endpoint", "s1/home/a"]);
    assert!(bed.ip("a", "link show dev tap0").is_err());
    // With the address that its neighbours have for it.
    let address = "address=10.7.0.1/24";
    let add = ["add", "endpoint", "s1/home/a", "port=veth://tap0", "mac=02:00:00:00:07:09", address];
    run(&[&add[..], &[&format!("netns={}", bed.name("a"))]].concat());
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3);
    // A name that another's device has is refused by name, and nothing is left of the attempt.
    bed.ip("a", "link add other type bridge").unwrap();
    let netns = format!("netns={}", bed.name("a"));
    let refused = bed.run(&["add", "endpoint", "s1/home/d", "port=veth://other", &netns]);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && text.contains("veth other: an interface of this name exists"), "{text}");
    assert!(bed.ip("a", "link show type veth").unwrap().matches("tap0").count() == 1);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_takeover_that_cannot_open_all_leaves_the_pairs_of_the_process_that_runs() {
    let Some(_turn) = turn("a_takeover_that_cannot_open_all_leaves_the_pairs_of_the_process_that_runs") else {
        return;
    };
    let bed = Bed::new(&["a", "b", "c"]);
    let mut daemon = bed.start(&pairs());
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 1), 1);
    let more = "[[switch.tenant.endpoint]]\nname = \"d\"\nport = \"veth://tap0\"\nnetns = \"levada-never-made\"\n";
    let file = bed.configuration(&(pairs() + more));
    let failed = bed.run(&["run", "-c", file.to_str().unwrap(), "--takeover"]);
    let text = String::from_utf8(failed.stderr).unwrap();
    assert!(!failed.status.success() && text.contains("levada-never-made"), "{text}");
    assert_eq!(bed.ask("a", B, 3), 3);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_pair_that_is_moved_into_a_container_stays_the_endpoints() {
    let Some(_turn) = turn("a_pair_that_is_moved_into_a_container_stays_the_endpoints") else { return };
    let bed = Bed::new(&["b", "home"]);
    let text = pairs();
    let (head, rest) = text.split_once("[[switch.tenant.endpoint]]").unwrap();
    let mut endpoints = rest.split("[[switch.tenant.endpoint]]");
    let a = endpoints.next().unwrap().replace("veth://tap0", "veth://toa").replace("netns = \"NS-a\"\n", "");
    let text = format!("{head}[[switch.tenant.endpoint]]{a}[[switch.tenant.endpoint]]{}", endpoints.next().unwrap());
    let mut daemon = bed.space("home").run(|| bed.start(&text)).unwrap();
    let container = Container::new();
    bed.ip("home", &format!("link set dev toa netns {} name eth0", container.pid())).unwrap();
    container.ip("addr add 10.7.0.1/24 dev eth0");
    container.ip("link set dev eth0 up");
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask_from(&container.space(), B, 3), 3);
    // Another's device has the name by now: it is not touched.
    bed.ip("home", "link add toa type veth peer name toz").unwrap();
    let next = bed.space("home").run(|| bed.take_over(&text)).unwrap();
    assert!(daemon.wait().success(), "{}", daemon.log());
    assert_eq!(bed.ask_from(&container.space(), B, 3), 3);
    let moved = format!("moved to net:[{}] of process {}, renamed to eth0", number(&container), container.pid());
    soon("it is shown where it is", || shown_ports(&bed).contains(&format!("up: {moved}")));
    assert!(!bed.ip("home", "link show dev toa").unwrap().contains("alias"));
    bed.ip("home", "link del dev toa").unwrap();
    drop(container);
    soon("it is made again", || next.log().contains("is back") && bed.ip("home", "link show dev toa").is_ok());
    let shown: Value = next.endpoint("a");
    assert_eq!(shown["state"], "up", "{shown}");
    let mut next = next;
    assert!(next.end(Signal::TERM).success());
}

#[test]
fn a_takeover_that_names_a_namespace_by_another_path_keeps_its_pair() {
    let Some(_turn) = turn("a_takeover_that_names_a_namespace_by_another_path_keeps_its_pair") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    // Somebody in each namespace, by whom it may be named.
    let inside = ["a", "b", "c"].map(|space| bed.space(space).run(Container::here).unwrap());
    let by_process = ["a", "b", "c"].iter().zip(&inside).fold(pairs(), |text, (space, container)| {
        text.replace(&format!("netns = \"NS-{space}\""), &format!("netns = \"{}\"", container.path()))
    });
    let index = |space: &str| bed.ip(space, "-o link show dev tap0").unwrap().split(':').next().unwrap().to_owned();
    let mut daemon = bed.start(&by_process);
    let before = ["a", "b", "c"].map(index);
    let datagrams = Datagrams::between(&bed, "a", "b", B);
    datagrams.goes_on();
    // All are spelled otherwise, then one alone, then all are again as they were first.
    let one = pairs().replacen("netns = \"NS-a\"", &format!("netns = \"{}\"", inside[0].path()), 1);
    for text in [&pairs(), &one, &by_process, &by_process] {
        let next = bed.take_over(text);
        assert!(daemon.wait().success(), "{}", daemon.log());
        daemon = next;
        datagrams.goes_on();
        assert_eq!(["a", "b", "c"].map(index), before);
    }
    datagrams.arrived_once();
    assert!(!daemon.log().contains("is back"), "{}", daemon.log());
    // Each endpoint has its own.
    let _echo = bed.echo("c", Ipv4Addr::new(10, 7, 0, 3));
    assert_eq!(bed.ask("b", Ipv4Addr::new(10, 7, 0, 3), 3), 3);
    assert!(daemon.end(Signal::TERM).success());
    soon("the pairs go with the daemon", || bed.ip("a", "link show dev tap0").is_err());
}

#[test]
fn what_is_done_with_a_containers_end_is_shown() {
    let Some(_turn) = turn("what_is_done_with_a_containers_end_is_shown") else { return };
    let bed = Bed::new(&["a", "b", "c", "d"]);
    let mut daemon = bed.start(&pairs());
    let _echo = bed.echo("b", B);
    let ip = |space: &str, words: &str| drop(bed.ip(space, words).unwrap());
    let device = || daemon.endpoint("a")["device"].clone();
    let as_made = serde_json::json!({
        "set_up": true, "carrier": true, "moved": null, "renamed": null, "unsettled": null,
    });
    assert_eq!(device(), as_made);
    // Set down by who has the container.
    ip("a", "link set dev tap0 down");
    is_shown(&bed, "down: set down");
    assert!(!device()["set_up"].as_bool().unwrap() && daemon.endpoint("a")["state"] == "down");
    assert!(daemon.log().contains("has changed: set down"), "{}", daemon.log());
    assert!(!daemon.log().contains("no carrier"), "it is said once: {}", daemon.log());
    let metrics = say(&bed, "GET /v1/metrics HTTP/1.1\r\nhost: x\r\n\r\n");
    let of_a = "switch=\"s1\",tenant=\"home\",endpoint=\"a\"";
    assert!(metrics.contains(&format!("levada_endpoint_up{{{of_a}}} 0")), "{metrics}");
    assert!(metrics.contains(&format!("levada_endpoint_device{{{of_a},state=\"set_down\"}} 1")), "{metrics}");
    // What neighbours send to it is counted.
    let dropped = || ["a", "b"].map(|e| daemon.endpoint(e)["drops"]["port-down"].as_u64().unwrap_or(0)).iter().sum();
    let before: u64 = dropped();
    assert_eq!(bed.ask("b", A, 1), 0);
    assert!(dropped() > before, "{} {}", daemon.endpoint("a"), daemon.endpoint("b"));
    ip("a", "link set dev tap0 up");
    is_shown(&bed, "up");
    assert!(daemon.log().contains("has changed: where it should be, and up"), "{}", daemon.log());
    // Renamed where it is.
    ip("a", "link set dev tap0 down");
    ip("a", "link set dev tap0 name eth0");
    ip("a", "link set dev eth0 up");
    is_shown(&bed, "up: renamed to eth0");
    assert_eq!(bed.ask("a", B, 3), 3);
    // Moved, to where there is a name, and to where there is none.
    let d = bed.name("d");
    ip("a", &format!("link set dev eth0 netns {d}"));
    is_shown(&bed, &format!("down: moved to {d}, renamed to eth0, set down"));
    ip("d", "address add 10.7.0.1/24 dev eth0");
    ip("d", "link set dev eth0 up");
    is_shown(&bed, &format!("up: moved to {d}, renamed to eth0"));
    assert_eq!(device()["moved"]["name"], d);
    assert_eq!(bed.ask("d", B, 3), 3, "frames flow wherever it is");
    let container = Container::new();
    ip("d", &format!("link set dev eth0 netns {} name eth9", container.pid()));
    container.ip("link set dev eth9 up");
    let there = format!("moved to net:[{}] of process {}, renamed to eth9", number(&container), container.pid());
    is_shown(&bed, &format!("up: {there}"));
    assert!(daemon.log().contains(&format!("moved to net:[{}]", number(&container))), "{}", daemon.log());
    let links = container.ip("-o link");
    assert_eq!(links.lines().count(), 2, "nothing else is left there: {links}");
    // A namespace that has ended leaves its number, and its id, to the next: the end is not there.
    bed.remove("d");
    bed.add("d");
    std::thread::sleep(std::time::Duration::from_secs(2));
    is_shown(&bed, &format!("up: {there}"));
    // Home again: it is as it was made.
    container.ip(&format!("link set dev eth9 netns {} name tap0", bed.name("a")));
    is_shown(&bed, "up");
    soon("it has its address again", || bed.ip("a", "address show dev tap0").unwrap().contains("10.7.0.1/24"));
    assert_eq!(device(), as_made);
    assert_eq!(bed.ask("a", B, 3), 3);
    // Deleted: it is made again.
    ip("a", "link del dev tap0");
    soon("it is lost", || daemon.log().contains("veth tap0: it was deleted"));
    soon("it is made again", || daemon.endpoint("a")["losses"] == 1 && daemon.endpoint("a")["state"] == "up");
    assert_eq!(device(), as_made);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn takeovers_and_changes_follow_a_containers_end_wherever_it_is() {
    let Some(_turn) = turn("takeovers_and_changes_follow_a_containers_end_wherever_it_is") else { return };
    for is_home_named in [true, false] {
        follows_a_moved_end(is_home_named);
    }
}

fn follows_a_moved_end(is_home_named: bool) {
    let bed = Bed::new(&["a", "b", "c", "home"]);
    let text = if is_home_named { pairs() } else { pairs().replace("netns = \"NS-a\"\n", "") };
    let from = if is_home_named { "a" } else { "home" };
    let mut daemon = bed.space("home").run(|| bed.start(&text)).unwrap();
    let container = Container::new();
    bed.ip(from, &format!("link set dev tap0 netns {} name eth0", container.pid())).unwrap();
    container.ip("address add 10.7.0.1/24 dev eth0");
    container.ip("link set dev eth0 up");
    let there = format!("moved to net:[{}] of process {}, renamed to eth0", number(&container), container.pid());
    is_shown(&bed, &format!("up: {there}"));
    let index = || container.ip("-o link show dev eth0").split(':').next().unwrap().to_owned();
    let first = index();
    // The container's end sends what b counts, over takeovers.
    let stream = Datagrams::from(&container.space(), (&bed, "b"), B);
    for _ in 0..3 {
        stream.goes_on();
        let next = bed.space("home").run(|| bed.take_over(&text)).unwrap();
        assert!(daemon.wait().success(), "{}", daemon.log());
        daemon = next;
        is_shown(&bed, &format!("up: {there}"));
        assert_eq!(index(), first);
    }
    // An apply of the same file changes nothing.
    let file = bed.configuration(&text);
    let output = bed.run(&["apply", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    stream.goes_on();
    stream.arrived_once();
    assert_eq!(index(), first);
    assert_eq!(daemon.log().contains("are left to who moved it"), is_home_named, "{}", daemon.log());
    assert_eq!(daemon.endpoint("a")["device"]["unsettled"].is_string(), is_home_named);
    // What is the device's own is set where it is; so are addresses that are new.
    let change = [
        "mtu=1400",
        "mac=02:00:00:00:07:0b",
        "ip=[\"10.7.0.1\",\"10.7.9.9\"]",
        "address=[\"10.7.0.1/24\",\"10.7.9.9/32\"]",
    ];
    let output = bed.run(&[&["set", "endpoint", "s1/home/a"], &change[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown = container.ip("address show dev eth0");
    assert!(shown.contains("mtu 1400") && shown.contains("02:00:00:00:07:0b"), "{shown}");
    assert!(shown.contains("10.7.9.9/32"), "{shown}");
    // Set down by who has it: a takeover leaves it so, and brings the rest to the file's words.
    container.ip("link set dev eth0 down");
    is_shown(&bed, &format!("down: {there}, set down"));
    let next = bed.space("home").run(|| bed.take_over(&text)).unwrap();
    assert!(daemon.wait().success(), "{}", daemon.log());
    daemon = next;
    soon("it has the file's MTU", || container.ip("link show dev eth0").contains("mtu 1500"));
    assert!(!container.ip("link show dev eth0").contains(",UP"));
    assert_eq!(index(), first);
    // Where the configuration has the place that it was moved to, it is taken over from there.
    let other = if is_home_named {
        text.replacen("netns = \"NS-a\"", &format!("netns = \"{}\"", container.path()), 1)
    } else {
        text.replacen("name = \"a\"", &format!("name = \"a\"\nnetns = \"{}\"", container.path()), 1)
    };
    let other = other.replacen("veth://tap0", "veth://eth0", 1);
    let mut last = bed.space("home").run(|| bed.take_over(&other)).unwrap();
    assert!(daemon.wait().success(), "{}", daemon.log());
    assert_eq!(index(), first);
    is_shown(&bed, "down: set down");
    assert!(last.endpoint("a")["device"]["moved"].is_null());
    assert!(last.end(Signal::TERM).success());
}
