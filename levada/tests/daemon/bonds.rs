//! Two daemons with two cables between them, each uplink a bond: frames have numbers, arrive in
//! order, and survive a cable and a process.

use crate::cables::{Taps, set_link};
use crate::management::{described, say};
use crate::restart::Transfer;
use crate::testbed::{Bed, Daemon, PATIENCE, soon, turn};
use crate::vcc::{marks_seen, shown};
use datapath::frame::{Pool, PoolLimits};
use ports::Port as _;
use ports::packet::{Packet, PacketOptions};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TWO: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Payload of a transfer, in bytes: some thousand frames.
const TRANSFER: usize = 4 << 20;

/// Two hosts with two cables between them, whose interfaces take a second tag. The hosts' own IPv6
/// is off there: what it says when a cable comes up has no tag, and counts as `bad-vlan`.
fn hosts() -> [Bed; 2] {
    let beds = [Bed::new(&["host", "red"]), Bed::new(&["host", "red"])];
    for bed in &beds {
        let off = || std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        bed.space("host").run(off).unwrap().unwrap();
    }
    ["up0", "up1"].iter().for_each(|cable| connect(&beds, cable));
    beds
}

fn connect(beds: &[Bed; 2], cable: &str) {
    let far = beds[1].name("host");
    beds[0].ip("host", &format!("link add {cable} mtu 1504 type veth peer name {cable} netns {far}")).unwrap();
    for bed in beds {
        bed.ip("host", &format!("link set {cable} mtu 1504 up")).unwrap();
    }
}

fn text(number: u8, mode: &str) -> String {
    let member = |cable: &str| {
        format!(
            "[[switch.uplink.bond.member]]\nport = \"packet://{cable}\"\nnetns = \"NS-host\"\nmtu = 1504\nrate = \"200 Mbit/s\"\n"
        )
    };
    // Long enough that a host which stalls is waited for.
    format!(
        "[daemon]\nname = \"NAME\"\n[[switch]]\nname = \"s1\"\n[switch.uplink.bond]\nmode = \"{mode}\"\nhold = \"100 ms\"\n{}{}\
         [[switch.tenant]]\nname = \"red\"\nvlan = 10\n[[switch.tenant.endpoint]]\nname = \"red{number}\"\n\
         port = \"tap://red\"\nnetns = \"NS-red\"\naddress = \"10.0.0.{number}/24\"\nmac = \"02:00:00:00:05:0{number}\"\n",
        member("up0"),
        member("up1")
    )
}

fn bond(daemon: &Daemon) -> Value {
    daemon.show()["switches"][0]["uplink"]["bond"].clone()
}

fn is_numbered(daemon: &Daemon) -> bool {
    bond(daemon)["order"]["numbered"] == true
}

/// Frames that were dropped since nobody knew what their numbers are.
fn unknown(daemon: &Daemon) -> u64 {
    daemon.show()["switches"][0]["uplink"]["drops"]["bond-control"].as_u64().unwrap_or(0)
}

fn state(daemon: &Daemon, member: usize) -> String {
    bond(daemon)["members"][member]["state"].as_str().unwrap_or_default().to_owned()
}

/// Sends bytes over TCP and waits for the answer that they have come.
fn transfer([one, two]: &[Bed; 2], meanwhile: impl FnOnce()) {
    let listener = two.listener("red", (TWO, 7009));
    let receiver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = vec![0; TRANSFER];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(b"k").unwrap();
    });
    let mut stream = one.space("red").run(|| TcpStream::connect((TWO, 7009)).unwrap()).unwrap();
    stream.write_all(&vec![7; TRANSFER / 2]).unwrap();
    meanwhile();
    stream.write_all(&vec![7; TRANSFER - TRANSFER / 2]).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    receiver.join().unwrap();
}

#[test]
fn all_members_are_told_of_and_the_uplink_is_up_while_one_may_send() {
    let Some(_turn) = turn("all_members_are_told_of_and_the_uplink_is_up_while_one_may_send") else { return };
    let beds = hosts();
    let text = text(1, "active-backup").replace("hold = \"100 ms\"\n", "");
    let one = beds[0].start(&text);
    let uplink = || one.show()["switches"][0]["uplink"].clone();
    let ports = || String::from_utf8(beds[0].run(&["show", "ports"]).stdout).unwrap();
    let is_shown = |member: &str, state: &str| {
        ports().lines().any(|line| line.contains(&format!("s1/uplink/{member} ")) && line.contains(state))
    };
    soon("both are up", || (0..2).all(|member| state(&one, member) == "distributing"));
    assert_eq!((uplink()["state"].as_str(), uplink()["losses"].as_u64()), (Some("up"), Some(0)));
    assert!(is_shown("up0", "up: distributing") && is_shown("up1", "up: distributing"), "{}", ports());
    // The other carries everything.
    beds[0].ip("host", "link delete dev up0").unwrap();
    soon("the first is lost", || bond(&one)["members"][0]["device"] == "down" && state(&one, 0) == "down");
    assert_eq!((uplink()["state"].as_str(), uplink()["losses"].as_u64()), (Some("up"), Some(1)), "{}", uplink());
    soon("it is said why", || bond(&one)["members"][0]["lost"].is_string());
    assert!(
        is_shown("up0", "lost") && is_shown("up1", "up: distributing") && uplink()["lost"].is_null(),
        "{}",
        ports()
    );
    let lines = one.show_part("ports");
    let line =
        |path: &str| lines["ports"].as_array().unwrap().iter().find(|line| line["path"] == path).unwrap().clone();
    assert_eq!((&line("s1/uplink")["state"], &line("s1/uplink/up0")["losses"]), (&"up".into(), &1.into()));
    beds[1].ip("host", "link set up1 down").unwrap();
    soon("no member may send", || state(&one, 1) == "down");
    assert_eq!(uplink()["state"], "down", "{}", uplink());
    assert!(is_shown("up1", "down"), "{}", ports());
}

#[test]
fn frames_over_two_cables_arrive_in_order_and_survive_a_cable_and_a_process() {
    let Some(_turn) = turn("frames_over_two_cables_arrive_in_order_and_survive_a_cable_and_a_process") else { return };
    let beds = hosts();
    let texts = [text(1, "balance-rr"), text(2, "balance-rr")];
    let one = beds[0].start(&texts[0]);
    let mut two = beds[1].start(&texts[1]);
    soon("both number their frames", || is_numbered(&one) && is_numbered(&two));
    let _echo = beds[1].echo("red", TWO);
    soon("frames pass", || beds[0].ask("red", TWO, 1) == 1);
    transfer(&beds, || {});
    let order = bond(&two)["order"].clone();
    assert!(order["received"].as_u64().unwrap() > 100, "{order}");
    // A host that stalls between two cables has one of them taken for silent, and what went over it
    // comes again: such a duplicate is taken out, and nothing is late.
    assert_eq!((&order["late"], &order["pieces"]), (&0.into(), &0.into()), "{order}");
    for daemon in [&one, &two] {
        for member in 0..2 {
            assert!(bond(daemon)["members"][member]["sent"]["segments"].as_u64().unwrap() > 50, "{}", bond(daemon));
        }
    }

    // The API has the same, each bond with its switch.
    let answer = described(&beds[1], "/v1/bonds");
    assert_eq!((&answer["bonds"][0]["switch"], &answer["bonds"][0]["order"]["numbered"]), (&"s1".into(), &true.into()));
    let shown = two.show_part("bonds");
    assert_eq!(shown["bonds"][0]["members"][1]["name"], answer["bonds"][0]["members"][1]["name"]);

    // A cable is pulled under a connection, and put back.
    transfer(&beds, || {
        beds[0].ip("host", "link set up1 down").unwrap();
        soon("both have noticed", || state(&one, 1) == "down" && state(&two, 1) == "down");
    });
    assert_eq!(beds[0].ask("red", TWO, 3), 3);
    beds[0].ip("host", "link set up1 up").unwrap();
    soon("it is used again", || {
        let is_used = |daemon: &Daemon| state(daemon, 1) == "distributing" && is_numbered(daemon);
        is_used(&one) && is_used(&two) && bond(&one)["members"][1]["peer"].is_null()
    });
    assert_eq!(beds[0].ask("red", TWO, 3), 3);
    // Before the takeovers: see the tunnels.
    for daemon in [&one, &two] {
        let order = bond(daemon)["order"].clone();
        assert_eq!(order["late"], 0, "{order}");
    }

    // Another process goes on for either, under a connection: numbers do, and nobody notices.
    let mut one = one;
    for side in 0..2 {
        let daemons = [&one, &two];
        let before = daemons.map(unknown);
        transfer(&beds, || {
            let next = beds[side].take_over(&texts[side]);
            let mut old = std::mem::replace(if side == 0 { &mut one } else { &mut two }, next);
            assert!(old.wait().success(), "{}", old.log());
        });
        assert_eq!([&one, &two].map(unknown), before, "numbers are known at both ends");
        assert!(is_numbered(&one) && is_numbered(&two));
    }

    // The other process is another one.
    assert!(!two.end(Signal::KILL).success());
    two = beds[1].start(&texts[1]);
    soon("frames pass to the next process", || beds[0].ask("red", TWO, 1) == 1);
    soon("and have numbers", || is_numbered(&one) && is_numbered(&two));
    transfer(&beds, || {});
    let order = bond(&two)["order"].clone();
    assert_eq!(order["late"], 0, "{order}");
    for daemon in [&one, &two] {
        let drops = daemon.show()["switches"][0]["uplink"]["drops"].clone();
        assert!(drops["bad-vlan"].is_null(), "a number is no tenant's tag: {drops}");
    }
}

#[test]
fn a_daemon_starts_without_a_member_that_is_gone_and_takes_it_when_it_comes() {
    let Some(_turn) = turn("a_daemon_starts_without_a_member_that_is_gone_and_takes_it_when_it_comes") else { return };
    let beds = hosts();
    let texts = [text(1, "balance-rr"), text(2, "balance-rr")];
    let mut one = beds[0].start(&texts[0]);
    let two = beds[1].start(&texts[1]);
    soon("both number their frames", || is_numbered(&one) && is_numbered(&two));
    let _echo = beds[1].echo("red", TWO);
    beds[0].ip("host", "link delete dev up1").unwrap();
    assert!(!one.end(Signal::KILL).success());
    one = beds[0].start(&texts[0]);
    soon("it is said", || one.log().contains("packet://up1 of s1/uplink is not there (interface up1 in namespace"));
    assert_ne!(state(&one, 1), "distributing", "{}", bond(&one));
    soon("frames pass by the other", || beds[0].ask("red", TWO, 1) == 1);
    assert_eq!(beds[0].ask("red", TWO, 5), 5);
    connect(&beds, "up1");
    soon("it is used", || {
        let is_used = |daemon: &Daemon| state(daemon, 1) == "distributing" && is_numbered(daemon);
        is_used(&one) && is_used(&two)
    });
    transfer(&beds, || {});
    assert!(bond(&one)["members"][1]["sent"]["segments"].as_u64().unwrap() > 50, "{}", bond(&one));
}

#[test]
fn a_member_in_a_namespace_that_comes_late_or_is_made_anew_is_used() {
    let Some(_turn) = turn("a_member_in_a_namespace_that_comes_late_or_is_made_anew_is_used") else { return };
    let beds = [Bed::new(&["host", "red"]), Bed::new(&["host", "red"])];
    connect(&beds, "up0");
    let text = text(1, "active-backup").replace("hold = \"100 ms\"\n", "");
    let one = beds[0].start(&text.replace("packet://up1\"\nnetns = \"NS-host", "packet://up1\"\nnetns = \"NS-more"));
    soon("one member is up", || state(&one, 0) == "distributing");
    for _ in 0..2 {
        beds[0].add("more");
        let add = format!("link add up1 mtu 1504 type veth peer name up1 netns {}", beds[1].name("host"));
        soon("the cable before is gone", || beds[0].ip("more", &add).is_ok());
        beds[0].ip("more", "link set up1 up").unwrap();
        beds[1].ip("host", "link set up1 up").unwrap();
        soon("the other is used", || state(&one, 1) == "distributing");
        beds[0].remove("more");
        soon("it is noticed", || state(&one, 1) == "down");
    }
}

/// The same in a tunnel, which ends at a device of the host behind the bond.
fn tunnelled(number: u8, mode: &str) -> String {
    let other = 3 - number;
    let host = format!(
        "[[switch.tenant]]\nname = \"ops\"\nvlan = \"untagged\"\n[[switch.tenant.endpoint]]\nname = \"host\"\n\
         port = \"tap://host0\"\nnetns = \"NS-host\"\naddress = \"192.0.2.{number}/24\"\n\
         mac = \"02:00:00:00:06:0{number}\"\nip = \"192.0.2.{number}\"\n\
         [cluster]\nhost = \"host{number}\"\n[[cluster.member]]\nname = \"host{other}\"\nvtep = \"192.0.2.{other}\"\n\
         endpoint = [{{ name = \"red{other}\", tenant = \"red\", mac = \"02:00:00:00:05:0{other}\" }}]\n"
    );
    let uplink = format!("[switch.uplink]\nvtep = \"192.0.2.{number}\"\n[switch.uplink.bond]");
    text(number, mode).replace("vlan = 10", "vni = 5001").replace("[switch.uplink.bond]", &uplink) + &host
}

#[test]
fn tunnels_over_two_cables_keep_order_and_survive_a_cable_and_a_process() {
    let Some(_turn) = turn("tunnels_over_two_cables_keep_order_and_survive_a_cable_and_a_process") else { return };
    let beds = hosts();
    let texts = [tunnelled(1, "balance-rr"), tunnelled(2, "balance-rr")];
    let mut one = beds[0].start(&texts[0]);
    let mut two = beds[1].start(&texts[1]);
    soon("both number their frames", || is_numbered(&one) && is_numbered(&two));
    let _echo = beds[1].echo("red", TWO);
    soon("frames pass", || beds[0].ask("red", TWO, 1) == 1);
    let tunnels = one.show_part("tunnels")["switches"][0].clone();
    let over = "packet://up0, packet://up1 (balance-rr)";
    assert_eq!((&tunnels["over"], &tunnels["tcp"], &tunnels["error"]), (&over.into(), &"trains".into(), &Value::Null));
    assert_eq!((&tunnels["mtu"], &tunnels["mac"]), (&1454.into(), &"02:00:00:00:06:01".into()));
    assert_eq!(tunnels["hosts"][0]["next_hop"], "02:00:00:00:06:02", "asked over the device behind the bond");

    transfer(&beds, || {
        beds[0].ip("host", "link set up1 down").unwrap();
        soon("both have noticed", || state(&one, 1) == "down" && state(&two, 1) == "down");
    });
    assert_eq!(beds[0].ask("red", TWO, 3), 3);
    beds[0].ip("host", "link set up1 up").unwrap();
    let is_used = |daemon: &Daemon| state(daemon, 1) == "distributing" && is_numbered(daemon);
    soon("it is used again", || is_used(&one) && is_used(&two));
    // Before the takeovers: frames of the two processes may overtake each other in the kernel,
    // which has a queue between a pair's ends for each processor; and of what is sent again to a
    // process that stood still, the next one does not know what had come.
    let order = bond(&two)["order"].clone();
    assert!(order["received"].as_u64().unwrap() > 100 && order["late"] == 0, "{order}");
    for side in 0..2 {
        transfer(&beds, || {
            let next = beds[side].take_over(&texts[side]);
            let mut old = std::mem::replace(if side == 0 { &mut one } else { &mut two }, next);
            assert!(old.wait().success(), "{}", old.log());
        });
    }
    assert!(is_numbered(&one) && is_numbered(&two));
    for daemon in [&one, &two] {
        let drops = daemon.show()["switches"][0]["uplink"]["drops"].clone();
        assert!(drops["unknown-vtep"].is_null() && drops["bad-vni"].is_null(), "{drops}");
    }
}

/// Guests without ECN, in a tunnel over both cables: the uplink's queue marks, members bring frames
/// in any order, and neither guest sees a mark.
#[test]
fn old_guests_speak_accecn_in_a_tunnel_over_two_cables() {
    let Some(_turn) = turn("old_guests_speak_accecn_in_a_tunnel_over_two_cables") else { return };
    let beds = hosts();
    for bed in &beds {
        bed.space("red").run(|| std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "0")).unwrap().unwrap();
    }
    let with_vcc = |number| {
        let text = tunnelled(number, "balance-rr").replace("vni = 5001", "vni = 5001\nvcc = \"dctcp\"");
        text.replace("200 Mbit/s", "25 Mbit/s")
    };
    let (one, two) = (beds[0].start(&with_vcc(1)), beds[1].start(&with_vcc(2)));
    soon("both number their frames", || is_numbered(&one) && is_numbered(&two));
    let transfer = Transfer::over((&beds[0], "red"), (&beds[1], "red"), TWO);
    let [first, second] = [(&one, 1), (&two, 2)].map(|(daemon, n)| move || shown(daemon, &format!("s1/red/red{n}")));
    let count = |endpoint: &Value, key: &str| endpoint[key].as_u64().unwrap();
    soon("marks are hidden from one guest and told to the other's host", || {
        let first = first();
        count(&second(), "hidden_marks") > 0 && count(&first, "marked_bytes") > 0 && count(&first, "lowered") > 0
    });
    for endpoint in [first(), second()] {
        assert_eq!((&endpoint["translated"], &endpoint["lapsed"]), (&1.into(), &0.into()), "{endpoint}");
        assert_eq!(endpoint["connections"][0]["wire"], "accecn", "{endpoint}");
    }
    transfer.goes_on();
    transfer.end();
    let (order, members) = (bond(&two)["order"].clone(), bond(&one)["members"].clone());
    assert!(order["numbered"] == true && order["late"] == 0, "{order}");
    let sent = [0, 1].map(|member| members[member]["sent"]["segments"].as_u64().unwrap());
    assert!(sent[0].min(sent[1]) * 2 > sent[0].max(sent[1]), "both carry: {members}");
    assert_eq!(beds.each_ref().map(|bed| marks_seen(bed, "red")), [0, 0]);
}

/// Two hosts with a bridge of Linux on each of two ways between them, which forwards no reserved
/// address. In each are the ports `a` and `b` with its number, to one host and the other.
fn bridged() -> [Bed; 2] {
    let beds = [Bed::new(&["host", "red", "wire"]), Bed::new(&["host", "red"])];
    for bed in &beds {
        let off = || std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        bed.space("host").run(off).unwrap().unwrap();
    }
    let wire = beds[0].name("wire");
    for way in 0..2 {
        beds[0].ip("wire", &format!("link add br{way} mtu 1508 type bridge")).unwrap();
        for (bed, port) in beds.iter().zip(["a", "b"]) {
            let up = format!("up{way}");
            bed.ip("host", &format!("link add {up} mtu 1508 type veth peer name {port}{way} netns {wire}")).unwrap();
            bed.ip("host", &format!("link set {up} up")).unwrap();
            beds[0].ip("wire", &format!("link set {port}{way} mtu 1508 master br{way} up")).unwrap();
        }
        beds[0].ip("wire", &format!("link set br{way} mtu 1508 up")).unwrap();
    }
    beds
}

#[test]
fn over_bridges_frames_arrive_in_order_and_survive_one() {
    let Some(_turn) = turn("over_bridges_frames_arrive_in_order_and_survive_one") else { return };
    let beds = bridged();
    let wider = |text: String| text.replace("mtu = 1504", "mtu = 1508");
    let plain = [1, 2].map(|number| wider(text(number, "balance-rr")));
    let texts = plain.clone().map(|text| text.replace("hold =", "order = \"switched\"\nhold ="));
    let one = beds[0].start(&plain[0]);
    let two = beds[1].start(&plain[1]);
    let why = |daemon: &Daemon| bond(daemon)["order"]["why_not"].as_str().unwrap_or_default().to_owned();
    soon("at cables they would answer", || why(&one).contains("no Levada bond answers"));
    assert!(!is_numbered(&one) && !is_numbered(&two));
    for (bed, text) in beds.iter().zip(&texts) {
        let output = bed.run(&["apply", bed.configuration(text).to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    soon("both number their frames", || is_numbered(&one) && is_numbered(&two));
    let _echo = beds[1].echo("red", TWO);
    soon("frames pass", || beds[0].ask("red", TWO, 1) == 1);
    transfer(&beds, || {});
    let order = bond(&two)["order"].clone();
    assert!(order["received"].as_u64().unwrap() > 1000 && order["late"] == 0, "{order}");
    // The way fails behind the bridge: one of the hosts keeps its carrier.
    transfer(&beds, || {
        beds[0].ip("wire", "link set b1 down").unwrap();
        soon("the other has noticed", || state(&two, 1) == "down");
    });
    assert_eq!(beds[0].ask("red", TWO, 3), 3);
    assert_eq!((state(&one, 1).as_str(), is_numbered(&one)), ("distributing", true), "{}", bond(&one));
    beds[0].ip("wire", "link set b1 up").unwrap();
    soon("it is used again", || state(&two, 1) == "distributing" && is_numbered(&two));
    let order = bond(&two)["order"].clone();
    assert_eq!(order["late"], 0, "{order}");
    let mut one = one;
    transfer(&beds, || {
        let next = beds[0].take_over(&texts[0]);
        let mut old = std::mem::replace(&mut one, next);
        assert!(old.wait().success(), "{}", old.log());
    });
    assert!(is_numbered(&one) && is_numbered(&two));
}

/// Without numbers nothing is before a tunnel's headers, so frames of TCP may leave whole.
#[test]
fn frames_in_tunnels_go_whole_over_a_bond_without_numbers() {
    let Some(_turn) = turn("frames_in_tunnels_go_whole_over_a_bond_without_numbers") else { return };
    let beds = hosts();
    let hashed = "mode = \"balance-xor\"\nxmit_hash_policy = \"layer3+4\"";
    let xor = |number| tunnelled(number, "balance-xor").replace("mode = \"balance-xor\"\nhold = \"100 ms\"", hashed);
    let [one, two] = [0, 1].map(|side| beds[side].start(&xor(side as u8 + 1)));
    let _echo = beds[1].echo("red", TWO);
    soon("frames pass", || beds[0].ask("red", TWO, 1) == 1);
    // The members are plain, and the host has the address on another device: it answers over that.
    let kernel = || std::fs::read_to_string("/proc/sys/net/ipv4/conf/up1/arp_ignore").unwrap();
    assert_eq!(beds[0].space("host").run(kernel).unwrap().trim(), "1");
    assert_eq!(one.show_part("tunnels")["switches"][0]["hosts"][0]["next_hop"], "02:00:00:00:06:02");
    let way = |daemon: &Daemon| daemon.show_part("tunnels")["switches"][0]["tcp"].clone();
    // A member is made ready when something goes over it in a tunnel. Each question is a flow of
    // its own.
    soon("they may go whole", || {
        beds[0].ask("red", TWO, 1);
        way(&one) == "whole" && way(&two) == "whole"
    });
    transfer(&beds, || {});
    for daemon in [&one, &two] {
        let drops = daemon.show()["switches"][0]["uplink"]["drops"].clone();
        assert!(drops["bad-offload"].is_null() && drops["malformed"].is_null(), "{drops}");
    }
    // Connections have other outer ports, and with them other members.
    let sent = |member: usize| bond(&one)["members"][member]["sent"]["segments"].as_u64().unwrap();
    soon("both are used", || {
        transfer(&beds, || {});
        sent(0) > 1000 && sent(1) > 1000
    });
}

#[test]
fn with_a_secret_only_who_knows_it_is_heard() {
    let Some(_turn) = turn("with_a_secret_only_who_knows_it_is_heard") else { return };
    let beds = hosts();
    let secrets = ["a secret of two hosts\n", "a secret of somebody else\n"];
    let keyed = |bed: &Bed, number: u8, secret: usize| {
        let file = bed.directory.join(format!("{secret}.secret"));
        std::fs::write(&file, secrets[secret]).unwrap();
        let line = format!("secret_file = \"{}\"\nhold", file.display());
        text(number, "balance-rr").replacen("hold", &line, 1)
    };
    let texts = [keyed(&beds[0], 1, 0), keyed(&beds[1], 2, 0)];
    let mut one = beds[0].start(&texts[0]);
    let mut two = beds[1].start(&keyed(&beds[1], 2, 1));
    let why = |daemon: &Daemon| bond(daemon)["order"]["why_not"].as_str().unwrap_or_default().to_owned();
    soon("both say why frames have no numbers", || [&one, &two].iter().all(|daemon| why(daemon).contains("secret")));
    assert!(bond(&one)["order"]["refused"].as_u64().unwrap() > 0, "{}", bond(&one));
    let _echo = beds[1].echo("red", TWO);
    soon("frames pass all the same", || beds[0].ask("red", TWO, 1) == 1);

    // The other gets the right one, and numbers go on over takeovers.
    let file = beds[1].configuration(&texts[1]);
    let output = beds[1].run(&["apply", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    soon("both number their frames", || is_numbered(&one) && is_numbered(&two));
    transfer(&beds, || {});
    for side in 0..2 {
        let before = [&one, &two].map(unknown);
        transfer(&beds, || {
            let next = beds[side].take_over(&texts[side]);
            let mut old = std::mem::replace(if side == 0 { &mut one } else { &mut two }, next);
            assert!(old.wait().success(), "{}", old.log());
        });
        assert!(is_numbered(&one) && is_numbered(&two));
        assert_eq!([&one, &two].map(unknown), before, "side {side}");
    }
    let shown = String::from_utf8(beds[0].run(&["show", "bonds"]).stdout).unwrap();
    assert!(shown.contains("hellos are under a secret") && !shown.contains("two hosts"), "{shown}");

    // A secret that cannot be had is refused, and nothing changes.
    let gone = texts[1].replace("0.secret", "none.secret");
    let output = beds[1].run(&["apply", beds[1].configuration(&gone).to_str().unwrap()]);
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && why.contains("none.secret cannot be read"), "{why}");
    assert!(is_numbered(&one) && is_numbered(&two));

    // One that was read and is gone keeps nothing else from being changed.
    std::fs::remove_file(beds[1].directory.join("0.secret")).unwrap();
    let output = beds[1].run(&["set", "endpoint", "s1/red/red2", "weight=2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(two.log().contains("0.secret cannot be read") && two.log().contains("stays in use"), "{}", two.log());
    transfer(&beds, || {});
    assert!(is_numbered(&one) && is_numbered(&two));
}

/// Rounds that are to count, and that have to on a machine where a round takes seconds.
const STALLS: u32 = 20;
const LEAST_STALLS: u32 = 5;

/// A process that stands still for longer than a silent cable takes to be noticed.
#[test]
fn a_process_that_stalls_is_no_silent_cable() {
    let Some(_turn) = turn("a_process_that_stalls_is_no_silent_cable") else { return };
    let beds = hosts();
    let one = beds[0].start(&text(1, "balance-rr"));
    let two = beds[1].start(&text(2, "balance-rr"));
    soon("both number their frames", || is_numbered(&one) && is_numbered(&two));
    // Somebody sends all the time.
    let socket = beds[0].socket("red", (Ipv4Addr::UNSPECIFIED, 0));
    let stop = Arc::new(AtomicBool::new(false));
    let sender = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            while !stop.load(Ordering::Relaxed) {
                let _ = socket.send_to(&[7; 1000], (TWO, 7010));
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    });
    soon("frames have numbers", || bond(&two)["order"]["received"].as_u64().unwrap() > 100);
    let silent = || (0..2).filter(|&n| bond(&two)["members"][n]["peer"].to_string().contains("silent")).count();
    let (mut rounds, mut counted, mut given_up) = (0, 0, 0);
    let begin = Instant::now();
    while counted < STALLS && (counted < LEAST_STALLS || begin.elapsed() < PATIENCE) {
        assert!(begin.elapsed() < 5 * PATIENCE, "{counted} of {rounds} rounds count: the other has no processor");
        // What was given up between rounds is none of this one's.
        soon("no member is silent", || silent() == 0);
        let before = two.worker_waited();
        one.freeze();
        std::thread::sleep(Duration::from_millis(60));
        // Asked first: a wait is counted when it is over, and by its answer the worker has run.
        let seen = silent();
        let waited = two.worker_waited() - before;
        one.signal(Signal::CONT);
        std::thread::sleep(Duration::from_millis(20));
        rounds += 1;
        // Where the other has no processor either, frames of one cable may be lost before it reads.
        if waited < Duration::from_millis(20) {
            (counted, given_up) = (counted + 1, given_up + seen);
        }
    }
    println!("{given_up} members given up in {counted} of {rounds} rounds, which count");
    assert_eq!(given_up, 0, "{}", bond(&two));
    soon("no member is silent", || silent() == 0);
    stop.store(true, Ordering::Relaxed);
    sender.join().unwrap();
}

#[test]
fn copies_over_two_cables_are_taken_out() {
    let Some(_turn) = turn("copies_over_two_cables_are_taken_out") else { return };
    let beds = hosts();
    let one = beds[0].start(&text(1, "broadcast"));
    let two = beds[1].start(&text(2, "broadcast"));
    soon("both number their frames", || is_numbered(&one) && is_numbered(&two));
    let _echo = beds[1].echo("red", TWO);
    soon("frames pass", || beds[0].ask("red", TWO, 1) == 1);
    transfer(&beds, || beds[1].ip("host", "link set up0 down").map(drop).unwrap());
    assert_eq!(beds[0].ask("red", TWO, 3), 3);
    let order = bond(&two)["order"].clone();
    let (received, duplicate) = (order["received"].as_u64().unwrap(), order["duplicate"].as_u64().unwrap());
    assert!(duplicate > 100 && duplicate * 2 <= received, "{order}");
    assert_eq!(order["lost"], 0, "{order}");
    soon("copies go by one member", || state(&one, 0) == "down");
}

/// A third cable is a member at one end only, at first: it carries nothing, and that is said.
#[test]
fn a_member_that_nobody_answers_is_left_out_until_somebody_does() {
    let Some(_turn) = turn("a_member_that_nobody_answers_is_left_out_until_somebody_does") else { return };
    let beds = hosts();
    let far = beds[1].name("host");
    beds[0].ip("host", &format!("link add up2 mtu 1504 type veth peer name up2 netns {far}")).unwrap();
    beds.iter().for_each(|bed| bed.ip("host", "link set up2 up").map(drop).unwrap());
    let one = beds[0].start(&text(1, "balance-rr"));
    let two = beds[1].start(&text(2, "balance-rr"));
    soon("both number their frames", || is_numbered(&one) && is_numbered(&two));
    let _echo = beds[1].echo("red", TWO);
    soon("frames pass", || beds[0].ask("red", TWO, 1) == 1);
    let add = |bed: &Bed| {
        let netns = format!("netns={}", bed.name("host"));
        let line = ["add", "bond-member", "s1/up2", "port=packet://up2", &netns, "mtu=1504", "rate=200 Mbit/s"];
        let output = bed.run(&line);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let sent = |daemon: &Daemon| bond(daemon)["members"][2]["sent"]["segments"].as_u64().unwrap_or(0);
    add(&beds[0]);
    soon("it is said", || one.log().contains("s1/uplink/up2 is left out: no Levada bond answers there"));
    assert!(is_numbered(&one) && is_numbered(&two), "{}", bond(&one));
    let shown = String::from_utf8(beds[0].run(&["show", "bonds"]).stdout).unwrap();
    assert!(shown.contains("left out: no hello has come"), "{shown}");
    let metrics = say(&beds[0], "GET /v1/metrics HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(metrics.contains("levada_bond_member_left_out{switch=\"s1\",member=\"up2\"} 1"), "{metrics}");
    let before = sent(&one);
    assert_eq!(beds[0].ask("red", TWO, 50), 50);
    assert_eq!(sent(&one), before, "{}", bond(&one));
    add(&beds[1]);
    soon("it is used", || one.log().contains("s1/uplink/up2 is left out no more"));
    soon("it carries frames", || beds[0].ask("red", TWO, 3) == 3 && sent(&one) > before);
}

/// A link that has negotiated less than its member's rate is not sent more than it carries.
#[test]
fn a_link_that_is_slower_is_paced_at_its_speed() {
    const MBIT: u64 = 1_000_000;
    let Some(_turn) = turn("a_link_that_is_slower_is_paced_at_its_speed") else { return };
    let beds = [Bed::new(&["host", "red"]), Bed::new(&["host", "red"])];
    let _cables = Taps::new(&beds);
    let one = beds[0].start(&text(1, "balance-rr"));
    let two = beds[1].start(&text(2, "balance-rr"));
    soon("both number their frames", || is_numbered(&one) && is_numbered(&two));
    let rates = |daemon: &Daemon| {
        let bond = bond(daemon);
        let of = |value: &Value, key: &str| value[key].as_u64().unwrap() / MBIT;
        let member = &bond["members"][1];
        (of(&bond, "rate_bps"), of(member, "rate_bps"), of(member, "configured_bps"), member["paced_by"].clone())
    };
    assert_eq!(rates(&one), (400, 200, 200, "rate".into()), "both links say 1 Gbit/s");

    for bed in &beds {
        set_link(bed, "up1", "10", "full");
    }
    soon("the rates follow", || [&one, &two].iter().all(|daemon| rates(daemon) == (210, 10, 200, "link".into())));
    // The uplink carries so much, and so much of it may be promised.
    let uplink = one.show()["switches"][0]["uplink"]["egress"].clone();
    let part = |key: &str| uplink[key].as_u64().unwrap() / MBIT;
    assert_eq!((part("rate_bps"), part("capacity_bps") <= 210), (210, true), "{uplink}");
    let shown = String::from_utf8(beds[0].run(&["show", "bonds"]).stdout).unwrap();
    assert!(shown.contains("carries 210 Mbit/s of 400 Mbit/s"), "{shown}");
    assert!(shown.contains("10 Mbit/s by link, of 200 Mbit/s"), "{shown}");
    let said =
        "s1/uplink/up1 has a link of 10 Mbit/s, full duplex, and is paced at that instead of its rate of 200 Mbit/s";
    soon("it is in the log", || one.log().contains(said));
    assert_eq!(described(&beds[0], "/v1/bonds")["bonds"][0]["members"][1]["paced_by"], "link");
    let metrics = say(&beds[0], "GET /v1/metrics HTTP/1.1\r\nhost: x\r\n\r\n");
    let metric = |name: &str, bytes: u64| {
        let line = format!("levada_bond_member_{name}_bytes_per_second{{switch=\"s1\",member=\"up1\"}} {bytes}");
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
    };
    metric("rate", 10 * MBIT / 8);
    metric("configured", 200 * MBIT / 8);

    // Beside the other it carries what its link does.
    let sent = || [0, 1].map(|member| bond(&one)["members"][member]["sent"]["wire_bytes"].as_u64().unwrap());
    let before = sent();
    transfer(&beds, || {});
    let [fast, slow] = [0, 1].map(|member| sent()[member] - before[member]);
    assert!(slow * 8 < fast, "{slow} bytes over 10 Mbit/s, {fast} over 200");

    // What it has negotiated for more than its rate is no concern.
    for bed in &beds {
        set_link(bed, "up1", "1000", "full");
    }
    soon("the rates come back", || rates(&one) == (400, 200, 200, "rate".into()));
}

/// A cable's other end, where frames are read as they come.
fn listen(bed: &Bed, cable: &str) -> Packet {
    let place = PacketOptions { name: cable.into(), netns: Some(bed.space("host")), room: None, is_exclusive: false };
    Packet::open(&place).unwrap()
}

/// What has come to it of the endpoint, by what it says: `rarp`, `arp`, `nd`, `igmp`, `mld`; and of
/// the service: `its arp`, `its nd`.
fn said(packet: &mut Packet, pool: &mut Pool) -> Vec<&'static str> {
    let (mut said, mut frames) = (Vec::new(), Vec::new());
    packet.rx(pool, 128, &mut frames).unwrap();
    for frame in frames {
        let bytes = pool.bytes(&frame);
        let [mine, its] = [1, 0x64].map(|last| bytes[6..12] == [2, 0, 0, 0, 5, last]);
        let what = match (&bytes[12..14], bytes.get(14 + 6), bytes.get(14 + 9), bytes.get(14 + 40), bytes.get(14 + 48))
        {
            ([0x80, 0x35], ..) => "rarp",
            ([8, 6], ..) => "arp",
            ([8, 0], _, Some(2), ..) => "igmp",
            // Membership reports begin with the router alert, in options before.
            ([0x86, 0xdd], Some(0), .., Some(143)) => "mld",
            ([0x86, 0xdd], Some(58), _, Some(136), _) => "nd",
            _ => "",
        };
        match what {
            "arp" if its => said.push("its arp"),
            "nd" if its => said.push("its nd"),
            what if mine && !what.is_empty() => said.push(what),
            _ => {}
        }
        pool.free(frame);
    }
    said
}

/// Behind a failover of `active-backup` a switch outside is told over the other cable where the
/// addresses are, and which groups a guest receives.
#[test]
fn a_failover_says_where_addresses_are_and_groups_are_received() {
    let Some(_turn) = turn("a_failover_says_where_addresses_are_and_groups_are_received") else { return };
    let beds = hosts();
    let text = text(1, "active-backup")
        .replace("hold = \"100 ms\"", "resend_igmp = 3\nnum_grat_arp = 2")
        .replace("vlan = 10", "vlan = \"untagged\"")
        + "ip = [\"10.0.0.1\", \"2001:db8::1\"]\nipv6 = true\n\
           [[switch.tenant.service]]\nname = \"web\"\nmac = \"02:00:00:00:05:64\"\n\
           address = [\"10.0.0.100:80\", \"[2001:db8::100]:80\"]\nbackend = [{ name = \"red1\" }]\n";
    let mut pool = Pool::new(PoolLimits { small: 256, medium: 0, large: 0 });
    let mut active = listen(&beds[1], "up0");
    let one = beds[0].start(&text);
    let mut all = BTreeSet::new();
    soon("where the service is, is said as it comes", || {
        all.extend(said(&mut active, &mut pool));
        all.contains("its arp") && all.contains("its nd")
    });
    soon("a member is active", || bond(&one)["active"] == "up0");
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let _receiver = beds[0].space("red").run(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 7011)).unwrap();
        socket.join_multicast_v4(&group, &Ipv4Addr::new(10, 0, 0, 1)).unwrap();
        socket
    });
    // Its first reports are over.
    std::thread::sleep(Duration::from_secs(2));
    let mut backup = listen(&beds[1], "up1");
    said(&mut backup, &mut pool);
    beds[0].ip("host", "link set up0 down").unwrap();
    let mut all = Vec::new();
    soon("all is said over the other cable", || {
        all.extend(said(&mut backup, &mut pool));
        all.iter().collect::<BTreeSet<_>>().len() == 7
    });
    let is_twice = |all: &[&str]| all.iter().filter(|what| **what == "rarp").count() == 2;
    soon("it is said again", || {
        all.extend(said(&mut backup, &mut pool));
        is_twice(&all)
    });
    std::thread::sleep(Duration::from_secs(1));
    all.extend(said(&mut backup, &mut pool));
    assert!(is_twice(&all), "num_grat_arp is 2: {all:?}");
    let kinds: BTreeSet<&str> = all.into_iter().collect();
    assert_eq!(kinds, ["arp", "igmp", "its arp", "its nd", "mld", "nd", "rarp"].into());
}
