//! Lines that change: interfaces whose owner gives them another MTU, address or speed while the
//! switch uses them, and such as are taken and given back while it runs. Who has nothing to do with
//! them loses nothing.

use crate::interfaces::{B, NIC, REMOTE, TAKEN, assert_given_back, bed, hooks_of, ping, plug_in};
use crate::management::Stream;
use crate::testbed::{Bed, Calm, Daemon, bpf_turn, skipped, soon, turn};
use ports::packet::Hooks;
use serde_json::Value;
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

const TAKEN_BY_SWITCH: Hooks = Hooks { ingress: 1, egress: 1 };
const LEFT_TO_HOST: Hooks = Hooks { ingress: 0, egress: 0 };

fn uplink(daemon: &Daemon) -> Value {
    daemon.show()["switches"][0]["uplink"].clone()
}

/// Whether a datagram of `bytes` that must not be fragmented comes from `a` to the remote host.
fn passes(bed: &Bed, bytes: usize) -> bool {
    let sink = bed.socket("remote", (REMOTE, 9));
    sink.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let source = bed.socket("a", (Ipv4Addr::UNSPECIFIED, 0));
    let mut buffer = vec![0; bytes + 1];
    (0..4).any(|_| {
        source.send_to(&vec![7; bytes], (REMOTE, 9)).unwrap();
        sink.recv(&mut buffer).is_ok_and(|length| length == bytes)
    })
}

#[test]
fn a_cable_that_is_pulled_and_put_back_is_told() {
    let Some(_turn) = bpf_turn("a_cable_that_is_pulled_and_put_back_is_told") else { return };
    let bed = bed();
    let daemon = bed.start(TAKEN);
    for (state, told) in [("down", "has changed: no carrier"), ("up", "has changed: a carrier")] {
        bed.ip("remote", &format!("link set dev eth0 {state}")).unwrap();
        soon(told, || daemon.log().contains(&format!("packet://up0 of s1/uplink {told}")));
    }
    let _remote = bed.echo("remote", REMOTE);
    soon("frames pass again", || bed.ask("a", REMOTE, 3) == 3);
    assert_eq!(daemon.endpoint("host")["losses"], 0);
}

#[test]
fn another_mtu_is_told_to_the_switch_and_nothing_else_is_lost() {
    let Some(_turn) = bpf_turn("another_mtu_is_told_to_the_switch_and_nothing_else_is_lost") else { return };
    let bed = bed();
    let daemon = bed.start(TAKEN);
    let _remote = bed.echo("remote", REMOTE);
    assert_eq!(bed.ask("a", REMOTE, 3), 3);
    let too_long = || daemon.endpoint("a")["drops"]["too-long"].as_u64().unwrap_or(0);
    let stream = Stream::between(&bed, "a", "b", B);
    assert!(passes(&bed, 1472), "1500 bytes with their headers");
    bed.ip("host", "link set dev up0 mtu 1400").unwrap();
    soon("the switch drops what is too long now", || {
        passes(&bed, 1372);
        !passes(&bed, 1472) && too_long() > 0
    });
    assert!(passes(&bed, 1372), "1400 bytes with their headers");
    let tap = || bed.ip("host", "-o link show type tun").unwrap();
    soon("the host's device has it too", || tap().contains("mtu 1400"));
    let told = "packet://up0 of s1/uplink has changed: frames of 1414 bytes instead of 1514";
    soon("it is told", || daemon.log().contains(told));
    // The host goes on the same way, by the same programs.
    assert_eq!(hooks_of(&bed), TAKEN_BY_SWITCH);
    assert_eq!(bed.ask("host", REMOTE, 3), 3);
    for device in ["host up0", "remote eth0"] {
        let (space, device) = device.split_once(' ').unwrap();
        bed.ip(space, &format!("link set dev {device} mtu 9000")).unwrap();
    }
    soon("and lets it pass again", || passes(&bed, 1472));
    assert_eq!(daemon.endpoint("host")["losses"], 0);
    assert!(!daemon.log().contains("is gone"), "{}", daemon.log());
    // A change of something else finds what is so, and leaves it.
    let set = bed.run(&["set", "endpoint", "s1/red/a", "weight=2"]);
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    assert!(passes(&bed, 1472));
    assert!(stream.end() > 100);
}

#[test]
fn another_address_is_followed_where_none_is_declared() {
    let Some(_turn) = bpf_turn("another_address_is_followed_where_none_is_declared") else { return };
    let bed = bed();
    let daemon = bed.start(TAKEN);
    let _remote = bed.echo("remote", REMOTE);
    assert_eq!(bed.ask("host", REMOTE, 3), 3);
    let stream = Stream::between(&bed, "a", "b", B);
    bed.ip("host", "link set dev up0 address 02:00:00:00:08:77").unwrap();
    soon("the host's port is bent anew", || {
        let host = daemon.endpoint("host");
        host["losses"] == 1 && host["state"] == "up" && hooks_of(&bed) == TAKEN_BY_SWITCH
    });
    bed.ip("remote", "neighbour flush dev eth0").unwrap();
    ping(&bed);
    assert_eq!(bed.ask("host", REMOTE, 3), 3, "what it sends is not taken for a spoof");
    // What was for the host while its port was bent anew may have found none.
    let mut drops = daemon.endpoint("host")["drops"].clone();
    drops.as_object_mut().unwrap().remove("port-down");
    assert_eq!(drops, serde_json::json!({}));
    assert!(!daemon.log().contains("packet://up0 of s1/uplink is gone"), "{}", daemon.log());
    assert!(stream.end() > 100);
}

#[test]
fn another_address_than_declared_does_not_cut_the_host_off() {
    let Some(_turn) = bpf_turn("another_address_than_declared_does_not_cut_the_host_off") else { return };
    let bed = bed();
    let daemon = bed.start(&TAKEN.replacen("guarantee", &format!("mac = \"{NIC}\"\nguarantee"), 1));
    bed.ip("host", "link set dev up0 address 02:00:00:00:08:77").unwrap();
    soon("it is noticed", || daemon.log().contains("02:00:00:00:08:77, which is not among"));
    soon("the host uses it past the switch", || hooks_of(&bed) == LEFT_TO_HOST);
    ping(&bed);
    bed.ip("host", &format!("link set dev up0 address {NIC}")).unwrap();
    soon("the host's port is back", || daemon.endpoint("host")["state"] == "up");
    bed.ip("remote", "neighbour flush dev eth0").unwrap();
    ping(&bed);
}

#[test]
fn another_interface_of_the_same_name_is_taken_as_it_is() {
    let Some(_turn) = bpf_turn("another_interface_of_the_same_name_is_taken_as_it_is") else { return };
    let bed = bed();
    let daemon = bed.start(TAKEN);
    let stream = Stream::between(&bed, "a", "b", B);
    bed.ip("host", "link delete dev up0").unwrap();
    soon("the loss is noticed", || uplink(&daemon)["state"] == "down" && daemon.endpoint("host")["state"] == "down");
    plug_in(&bed);
    bed.ip("host", "link set dev up0 address 02:00:00:00:08:77 mtu 1400").unwrap();
    soon("both are back", || uplink(&daemon)["state"] == "up" && daemon.endpoint("host")["state"] == "up");
    assert_eq!(hooks_of(&bed), TAKEN_BY_SWITCH);
    bed.ip("remote", "neighbour flush dev eth0").unwrap();
    ping(&bed);
    let _remote = bed.echo("remote", REMOTE);
    assert_eq!(bed.ask("host", REMOTE, 3), 3);
    soon("its MTU is known", || !passes(&bed, 1472) && daemon.endpoint("a")["drops"]["too-long"].as_u64() > Some(0));
    assert!(passes(&bed, 1372));
    assert!(stream.end() > 100);
}

#[test]
fn an_interface_that_was_away_for_long_is_taken_as_soon_as_it_is_back() {
    let Some(_turn) = bpf_turn("an_interface_that_was_away_for_long_is_taken_as_soon_as_it_is_back") else { return };
    let bed = bed();
    let daemon = bed.start(TAKEN);
    bed.ip("host", "link delete dev up0").unwrap();
    soon("the loss is noticed", || uplink(&daemon)["state"] == "down" && daemon.endpoint("host")["state"] == "down");
    // The next try by the clock is 15 s away then.
    std::thread::sleep(Duration::from_secs(16));
    plug_in(&bed);
    let start = Calm::now();
    soon("both are back", || uplink(&daemon)["state"] == "up" && daemon.endpoint("host")["state"] == "up");
    println!("taken after {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(7), "after {:?}", start.elapsed());
}

#[test]
fn a_slower_line_shrinks_the_guarantees_until_it_is_as_fast_again() {
    const TEST: &str = "a_slower_line_shrinks_the_guarantees_until_it_is_as_fast_again";
    let Some(_turn) = turn(TEST) else { return };
    if Command::new("ethtool").arg("--version").output().is_err() {
        skipped(TEST, "there is no `ethtool` to set a speed with");
        return;
    }
    let bed = Bed::new(&["host", "a", "b"]);
    bed.ip("host", "tuntap add dev up0 mode tap").unwrap();
    bed.ip("host", "link set dev up0 up").unwrap();
    let speed = |mbit: u32| {
        let change = || Command::new("ethtool").args(["-s", "up0", "speed", &mbit.to_string()]).output().unwrap();
        let output = bed.space("host").run(change).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    speed(1000);
    let (before, rest) = TAKEN.split_once("[[switch.tenant]]\nname = \"ops\"").unwrap();
    let configuration = format!("{before}[[switch.tenant]]{}", rest.split_once("[[switch.tenant]]").unwrap().1);
    let daemon = bed.start(&configuration);
    let stream = Stream::between(&bed, "a", "b", B);
    let rate = |daemon: &Daemon| {
        let egress = &uplink(daemon)["egress"];
        (egress["rate_bps"].as_u64().unwrap(), egress["met"].as_bool().unwrap())
    };
    assert_eq!(rate(&daemon), (40_000_000, true));
    speed(14);
    soon("the rate is the line's, and 28 Mbit/s are promised", || rate(&daemon) == (14_000_000, false));
    assert!(daemon.log().contains("packet://up0 of s1/uplink has changed: speed 14 Mbit/s instead of 1000 Mbit/s"));
    // Another change keeps to what is so.
    let set = bed.run(&["set", "endpoint", "s1/red/b", "weight=2"]);
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    assert_eq!(rate(&daemon), (14_000_000, false));
    // So does a process that has never seen the line faster, and it sees when it is.
    let mut old = daemon;
    let daemon = bed.take_over(&configuration);
    assert!(old.wait().success());
    assert_eq!(rate(&daemon), (14_000_000, false));
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(rate(&daemon), (14_000_000, false), "after it has looked for itself");
    speed(1000);
    soon("all is as before", || rate(&daemon) == (40_000_000, true));
    assert!(stream.end() > 100);
}

#[test]
fn interfaces_are_taken_and_given_back_while_a_stream_runs() {
    let Some(_turn) = bpf_turn("interfaces_are_taken_and_given_back_while_a_stream_runs") else { return };
    let bed = bed();
    bed.add("guest");
    let far = format!("peer name eth0 netns {}", bed.name("guest"));
    bed.ip("host", &format!("link add name v0 type veth {far}")).unwrap();
    bed.ip("host", "link set dev v0 up").unwrap();
    bed.ip("guest", "link set dev eth0 address 02:00:00:00:08:0c").unwrap();
    bed.ip("guest", "addr add 10.8.0.13/24 dev eth0").unwrap();
    bed.ip("guest", "link set dev eth0 up").unwrap();
    // The uplink's tap is in there, too: the kernel is not to answer on it for the address of eth0.
    bed.space("guest").run(|| std::fs::write("/proc/sys/net/ipv4/conf/all/arp_ignore", "1")).unwrap().unwrap();
    let (start, rest) = TAKEN.split_once("[[switch.tenant]]\nname = \"ops\"").unwrap();
    let (_, red) = rest.split_once("[[switch.tenant]]").unwrap();
    let start = start.replace("packet://up0", "tap://u0").replace("NS-host", "NS-guest");
    let daemon = bed.start(&format!("{start}[[switch.tenant]]{red}"));
    let stream = Stream::between(&bed, "a", "b", B);
    let (_b, _remote) = (bed.echo("b", B), bed.echo("remote", REMOTE));
    let [here, there] = ["host", "guest"].map(|space| format!("netns={}", bed.name(space)));
    let act = |words: &[&str]| {
        let output = bed.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    for round in 0..2 {
        // An endpoint on an interface that exists.
        act(&["add", "endpoint", "s1/red/v", "port=packet://v0", &here, "mac=02:00:00:00:08:0c"]);
        assert_eq!(bed.ask("guest", B, 3), 3, "round {round}");
        act(&["set", "endpoint", "s1/red/v", "limit=50 Mbit/s", "ring=64", "mtu=1400"]);
        assert_eq!(bed.ask("guest", B, 3), 3);
        act(&["del", "endpoint", "s1/red/v"]);
        assert!(bed.ip("host", "-d link show dev v0").unwrap().contains("promiscuity 0"));
        assert_eq!(bed.ask("guest", B, 1), 0);
        // An uplink beside the host.
        act(&["set", "uplink", "s1", "port=packet://up0", &here]);
        assert_eq!(bed.ask("a", REMOTE, 3), 3);
        assert_eq!(uplink(&daemon)["sharing"], "shared");
        ping(&bed);
        // The host becomes an endpoint, changes, and is its own again.
        act(&["add", "tenant", "s1/ops", "vlan=untagged"]);
        act(&["add", "endpoint", "s1/ops/host", "port=host://up0", &here, "guarantee=5 Mbit/s"]);
        assert_eq!((uplink(&daemon)["sharing"].as_str(), hooks_of(&bed)), (Some("exclusive"), TAKEN_BY_SWITCH));
        ping(&bed);
        assert_eq!(bed.ask("host", REMOTE, 3), 3);
        assert!(daemon.endpoint("host")["egress"]["frames"].as_u64() > Some(0), "through the switch");
        act(&["set", "endpoint", "s1/ops/host", "guarantee=2 Mbit/s", "ring=100"]);
        assert!(bed.ip("host", "-o link show type tun").unwrap().contains("qlen 100"));
        assert_eq!(bed.ask("host", REMOTE, 3), 3);
        act(&["del", "endpoint", "s1/ops/host"]);
        assert_eq!((uplink(&daemon)["sharing"].as_str(), hooks_of(&bed)), (Some("shared"), LEFT_TO_HOST));
        ping(&bed);
        assert_eq!(bed.ask("a", REMOTE, 3), 3);
        act(&["del", "tenant", "s1/ops"]);
        act(&["set", "uplink", "s1", "port=tap://u0", &there]);
        assert_given_back(&bed);
    }
    assert!(stream.end() > 100);
    for endpoint in ["a", "b"] {
        let drops = daemon.endpoint(endpoint)["drops"].clone();
        assert!(drops["port-down"].is_null() && drops["removed"].is_null(), "{drops}");
    }
}
