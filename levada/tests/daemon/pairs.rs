//! Veth pairs: what a container sends meets the switch and nobody else, and a pair that nobody
//! wants is gone.

use crate::restart::Datagrams;
use crate::testbed::{Bed, Container, soon, turn};
use crate::traffic::{B, NEIGHBOURS};
use rustix::process::Signal;
use serde_json::Value;
use std::net::Ipv4Addr;

/// Of the daemon's namespace.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

fn pairs() -> String {
    NEIGHBOURS.replace("tap://", "veth://")
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
    assert!(next.log().contains("it is not in the daemon's namespace under this name"), "{}", next.log());
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
