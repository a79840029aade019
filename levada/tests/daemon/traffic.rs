//! Frames through a running daemon.

use crate::testbed::{Bed, skipped, turn};
use std::net::Ipv4Addr;

/// A switch without uplink and three endpoints.
pub const NEIGHBOURS: &str = r#"
[daemon]
name = "NAME"
[[switch]]
name = "s1"
[[switch.tenant]]
name = "home"
[[switch.tenant.endpoint]]
name = "a"
port = "tap://tap0"
netns = "NS-a"
mac = "02:00:00:00:07:01"
ip = "10.7.0.1"
address = "10.7.0.1/24"
ipv6 = false
[[switch.tenant.endpoint]]
name = "b"
port = "tap://tap0"
netns = "NS-b"
mac = "02:00:00:00:07:02"
ip = "10.7.0.2"
address = "10.7.0.2/24"
ipv6 = false
[[switch.tenant.endpoint]]
name = "c"
port = "tap://tap0"
netns = "NS-c"
mac = "02:00:00:00:07:03"
ip = "10.7.0.3"
address = "10.7.0.3/24"
ipv6 = false
"#;

pub const A: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
pub const B: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);
pub const C: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 3);

#[test]
fn neighbours_reach_each_other_and_are_counted() {
    let Some(_turn) = turn("neighbours_reach_each_other_and_are_counted") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = bed.start(NEIGHBOURS);
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 20), 20);
    let (a, b) = (daemon.endpoint("a"), daemon.endpoint("b"));
    // Twenty datagrams and at least one ARP message each way.
    assert!(a["local_egress"]["frames"].as_u64().unwrap() >= 21, "{a}");
    assert!(b["local_egress"]["frames"].as_u64().unwrap() >= 21, "{b}");
    assert!(a["local_ingress"]["wire_bytes"].as_u64().unwrap() >= 20 * 84, "{a}");
    assert_eq!(a["drops"], serde_json::json!({}), "nothing is lost");
    assert_eq!(a["state"], "up");
    assert!(a["worker_ns"].as_u64().unwrap() > 0);
    let text = bed.run(&["show"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("switch s1") && text.contains("local"), "{text}");
}

#[test]
fn the_time_that_frames_take_is_charged_to_the_tenant_whose_they_are() {
    let Some(_turn) = turn("the_time_that_frames_take_is_charged_to_the_tenant_whose_they_are") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let second = "[[switch.tenant]]\nname = \"work\"\n[[switch.tenant.endpoint]]\nname = \"b\"";
    let text = NEIGHBOURS.replace("[[switch.tenant.endpoint]]\nname = \"b\"", second);
    let daemon = bed.start(&text);
    let used_ns = || {
        let report = daemon.show();
        let tenants = report["switches"][0]["tenants"].as_array().unwrap().clone();
        [0, 1].map(|tenant: usize| tenants[tenant]["processor"]["used_ns"].as_u64().unwrap())
    };
    let _echo = bed.echo("c", C);
    let before = used_ns();
    assert_eq!(bed.ask("b", C, 50), 50);
    let after = used_ns();
    let [home, work] = [0, 1].map(|tenant| after[tenant] - before[tenant]);
    assert!(work > 10 * home, "50 questions and answers of the second tenant: {home} and {work} ns");
}

#[test]
fn an_endpoint_that_lies_about_itself_is_counted_and_harms_nobody() {
    let Some(_turn) = turn("an_endpoint_that_lies_about_itself_is_counted_and_harms_nobody") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = bed.start(NEIGHBOURS);
    let _echo = bed.echo("b", B);
    bed.ip("c", "address add 10.7.0.66/24 dev tap0").unwrap();
    bed.ip("c", "route change 10.7.0.0/24 dev tap0 src 10.7.0.66").unwrap();
    assert_eq!(bed.ask("c", B, 1), 0);
    let drops = &daemon.endpoint("c")["drops"];
    assert!(drops["spoofed-arp"].as_u64().unwrap_or(0) > 0, "{drops}");
    assert_eq!(bed.ask("a", B, 5), 5);
}

/// Two hosts whose uplinks meet in a fabric; two tenants with the same addresses.
const HOSTS: &str = r#"
[daemon]
name = "NAME"
[[switch]]
name = "host1"
[switch.uplink]
port = "link://wire1/a"
rate = "100 Mbit/s"
[[switch.tenant]]
name = "red"
vlan = 10
guarantee = "50 Mbit/s"
[[switch.tenant.endpoint]]
name = "red1"
port = "tap://tap0"
netns = "NS-red1"
mac = "02:00:00:00:07:01"
ip = "10.7.0.1"
address = "10.7.0.1/24"
[[switch.tenant]]
name = "blue"
vlan = 20
[[switch.tenant.endpoint]]
name = "blue1"
port = "tap://tap0"
netns = "NS-blue1"
mac = "02:00:00:00:07:01"
ip = "10.7.0.1"
address = "10.7.0.1/24"
[[switch]]
name = "host2"
[switch.uplink]
port = "link://wire2/a"
rate = "100 Mbit/s"
[[switch.tenant]]
name = "red"
vlan = 10
[[switch.tenant.endpoint]]
name = "red2"
port = "tap://tap0"
netns = "NS-red2"
mac = "02:00:00:00:07:02"
ip = "10.7.0.2"
address = "10.7.0.2/24"
[[switch]]
name = "fabric"
[[switch.tenant]]
name = "wires"
[[switch.tenant.endpoint]]
name = "one"
port = "link://wire1/b"
trunk = true
[[switch.tenant.endpoint]]
name = "two"
port = "link://wire2/b"
trunk = true
[[link]]
name = "wire1"
rate = "80 Mbit/s"
delay = "1 ms"
[[link]]
name = "wire2"
rate = "100 Mbit/s"
delay = "1 ms"
"#;

#[test]
fn hosts_meet_over_links_and_tenants_stay_apart() {
    let Some(_turn) = turn("hosts_meet_over_links_and_tenants_stay_apart") else { return };
    let bed = Bed::new(&["red1", "red2", "blue1"]);
    let daemon = bed.start(HOSTS);
    assert!(daemon.log().contains("more than the 80 Mbit/s of link \"wire1\""), "{}", daemon.log());
    let _echo = bed.echo("red2", B);
    assert_eq!(bed.ask("red1", B, 20), 20);
    assert_eq!(bed.ask("blue1", B, 1), 0, "blue must not reach red");
    let report = daemon.show();
    let uplink = &report["switches"][0]["uplink"];
    assert_eq!(uplink["egress"]["rate_bps"], 80_000_000u64, "the link is slower than the uplink");
    assert_eq!(uplink["egress"]["met"], true);
    // An offloaded frame on the link would not be told from a tagged one by its length, so only the
    // least is certain.
    assert!(uplink["egress"]["wire_bytes"].as_u64().unwrap() >= 20 * 84, "{uplink}");
    assert!(report["links"][0]["a"]["frames"].as_u64().unwrap() >= 21);
    assert!(report["links"][1]["b"]["frames"].as_u64().unwrap() >= 21);
    let red1 = daemon.endpoint("red1");
    assert!(red1["egress"]["frames"].as_u64().unwrap() >= 21, "{red1}");
    assert!(red1["ingress"]["frames"].as_u64().unwrap() >= 20, "{red1}");
    assert!(report["worker"]["loop_lag_ns"]["max"].as_u64().unwrap() > 0, "links and schedulers had things due");
}

#[test]
fn what_cannot_be_met_is_said() {
    let Some(_turn) = turn("what_cannot_be_met_is_said") else { return };
    let bed = Bed::new(&["red1", "red2", "blue1"]);
    let daemon = bed.start(&HOSTS.replace("rate = \"80 Mbit/s\"", "rate = \"40 Mbit/s\""));
    let uplink = &daemon.show()["switches"][0]["uplink"];
    assert_eq!(uplink["egress"]["met"], false);
    assert_eq!(uplink["egress"]["promised_bps"], 50_000_000u64);
    assert_eq!(uplink["ingress"]["capacity_bps"], 39_200_000u64);
    let text = String::from_utf8(bed.run(&["show"]).stdout).unwrap();
    assert!(text.contains("cannot be met"), "{text}");
}

#[test]
fn it_runs_without_root_in_namespaces_of_its_own() {
    const TEST: &str = "it_runs_without_root_in_namespaces_of_its_own";
    let Some(_turn) = turn(TEST) else { return };
    let bed = Bed::new(&[]);
    let file = bed.configuration(
        "[daemon]\nname = \"NAME\"\n[[switch]]\nname = \"s\"\n[[switch.tenant]]\nname = \"t\"\n\
         [[switch.tenant.endpoint]]\nname = \"a\"\nport = \"tap://tap0\"\naddress = \"10.7.0.1/24\"\n\
         [[switch.tenant.endpoint]]\nname = \"b\"\nport = \"tap://tap1\"\nnetns = \"NS-b\"\naddress = \"10.7.0.2/24\"\n",
    );
    let script = format!(
        "mount -t tmpfs run /run && ip netns add {space} && \
         {{ \"$0\" run -c {file} 2>&1 & }} && \
         for i in $(seq 100); do \"$0\" show >/dev/null 2>&1 && break; sleep 0.1; done; \
         \"$0\" show && kill -TERM $! && wait $!",
        space = bed.name("b"),
        file = file.display(),
    );
    // Root of a user namespace has no privilege outside it, whoever made it. That it is root here
    // as well only opens /dev/net/tun where the system keeps that to root.
    let mut command = std::process::Command::new("unshare");
    command.args(["-Urmn", "sh", "-c", &script, env!("CARGO_BIN_EXE_levada")]);
    let output = command.env("LEVADA_RUN_DIR", bed.directory.join("run")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if text.contains("unshare failed") {
        skipped(TEST, format!("this system allows no user namespaces: {text}"));
        return;
    }
    assert!(output.status.success(), "{text}");
    assert!(text.contains(" ready") && text.contains("switch s"), "{text}");
    assert!(text.contains("the worker runs without niceness"), "what is not permitted is said: {text}");
}
