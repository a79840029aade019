//! Bonds that are operated by hand, under datagrams that are counted: another member becomes the
//! active one, and one is taken out before its cable is pulled. Nothing is lost.

use crate::management::{described, say};
use crate::testbed::{Bed, Daemon, soon, turn, waited};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const ONE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const TWO: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// A datagram each half millisecond from one namespace to another, each with a number.
struct Stream {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<BTreeSet<u64>>,
}

impl Stream {
    fn between(from: (&Bed, &str), to: (&Bed, &str), address: Ipv4Addr) -> Stream {
        const PORT: u16 = 7012;
        let bind = |(bed, space): (&Bed, &str), address, port| bed.socket(space, (address, port));
        let (sends, receives) = (bind(from, Ipv4Addr::UNSPECIFIED, 0), bind(to, address, PORT));
        receives.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let sender = std::thread::spawn(move || {
            let mut count = 0u64;
            while !is_over.load(Ordering::Relaxed) {
                sends.send_to(&count.to_be_bytes(), (address, PORT)).unwrap();
                count += 1;
                std::thread::sleep(Duration::from_micros(500));
            }
            count
        });
        let receiver = std::thread::spawn(move || {
            let (mut all, mut buffer) = (BTreeSet::new(), [0; 8]);
            while receives.recv(&mut buffer).is_ok() {
                all.insert(u64::from_be_bytes(buffer));
            }
            all
        });
        Stream { stop, sender, receiver }
    }

    /// How many were sent, and how many of them did not arrive.
    fn end(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap();
        let arrived = self.receiver.join().unwrap();
        (sent, sent - arrived.len() as u64)
    }
}

fn text(number: u8, options: &str) -> String {
    let member = |cable: &str| {
        format!(
            "[[switch.uplink.bond.member]]\nport = \"packet://{cable}\"\nnetns = \"NS-host\"\nmtu = 1504\nrate = \"200 Mbit/s\"\n"
        )
    };
    format!(
        "[daemon]\nname = \"NAME\"\n[[switch]]\nname = \"s1\"\n[switch.uplink.bond]\n{options}\n{}{}\
         [[switch.tenant]]\nname = \"red\"\nvlan = \"untagged\"\n[[switch.tenant.endpoint]]\nname = \"red{number}\"\n\
         port = \"tap://red\"\nnetns = \"NS-red\"\naddress = \"10.0.0.{number}/24\"\nmac = \"02:00:00:00:05:0{number}\"\n",
        member("up0"),
        member("up1")
    )
}

fn bond(daemon: &Daemon) -> Value {
    daemon.show()["switches"][0]["uplink"]["bond"].clone()
}

fn state(daemon: &Daemon, member: usize) -> String {
    bond(daemon)["members"][member]["state"].as_str().unwrap_or_default().to_owned()
}

fn order(bed: &Bed, words: &[&str]) {
    let output = bed.run(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The hosts' own IPv6 would speak on the cables.
fn quiet(bed: &Bed, space: &str) {
    let off = || std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    bed.space(space).run(off).unwrap().unwrap();
}

/// One host with two cables to a bridge, at which somebody else is.
#[test]
fn the_active_member_is_changed_by_hand_and_nothing_is_lost() {
    let Some(_turn) = turn("the_active_member_is_changed_by_hand_and_nothing_is_lost") else { return };
    let bed = Bed::new(&["host", "red", "wire", "far"]);
    ["host", "wire", "far"].iter().for_each(|space| quiet(&bed, space));
    let wire = bed.name("wire");
    bed.ip("wire", "link add br0 type bridge").unwrap();
    for (space, device, port) in [("host", "up0", "a"), ("host", "up1", "b"), ("far", "eth", "c")] {
        bed.ip(space, &format!("link add {device} mtu 1504 type veth peer name {port} netns {wire}")).unwrap();
        bed.ip(space, &format!("link set {device} up")).unwrap();
        bed.ip("wire", &format!("link set dev {port} mtu 1504 master br0 up")).unwrap();
    }
    bed.ip("wire", "link set br0 up").unwrap();
    bed.ip("far", "address add 10.0.0.2/24 dev eth").unwrap();
    let mut one = bed.start(&text(1, "mode = \"active-backup\""));
    soon("a member is active", || bond(&one)["active"] == "up0" && state(&one, 1) == "distributing");
    let _echo = bed.echo("far", TWO);
    soon("frames pass", || bed.ask("red", TWO, 1) == 1);

    let out = Stream::between((&bed, "red"), (&bed, "far"), TWO);
    let back = Stream::between((&bed, "far"), (&bed, "red"), ONE);
    for round in 0..10 {
        let next = ["up1", "up0"][round % 2];
        order(&bed, &["set", "bond", "s1", &format!("active={next}")]);
        soon("it is active", || bond(&one)["active"] == next);
        std::thread::sleep(Duration::from_millis(50));
    }
    // The active one is taken out: the other is it at once. Its cable may be pulled, and nobody
    // notices.
    order(&bed, &["set", "bond-member", "s1/up0", "admin=down"]);
    soon("the other is active", || bond(&one)["active"] == "up1" && state(&one, 0) == "standby");
    std::thread::sleep(Duration::from_millis(50));
    bed.ip("wire", "link set dev a down").unwrap();
    soon("it is down", || state(&one, 0) == "down");
    bed.ip("wire", "link set dev a up").unwrap();
    soon("its link is up", || state(&one, 0) == "standby");
    // The kernel tells both ends of a cable at different times, up to 1 s apart (linkwatch): until
    // it has told the bridge, that drops what comes by the member.
    let forwards = |bed: &Bed| bed.ip("wire", "-d link show dev a").unwrap().contains("state forwarding");
    soon("the bridge forwards again", || forwards(&bed));
    order(&bed, &["set", "bond-member", "s1/up0", "admin=up"]);
    soon("it is used again", || state(&one, 0) == "distributing");
    // Made the primary, it takes over; so it does where it is that and the other was chosen.
    order(&bed, &["set", "bond", "s1", "primary=up0", "primary_reselect=failure"]);
    soon("the primary is active", || bond(&one)["active"] == "up0");
    std::thread::sleep(Duration::from_millis(50));
    order(&bed, &["set", "bond", "s1", "active=up1"]);
    soon("another was chosen", || bond(&one)["active"] == "up1");
    let lost = [out.end(), back.end()];
    // What is on its way to the member before is not received any more: one datagram for some of
    // the 14 changes.
    assert!(lost.iter().all(|&(sent, _)| sent > 500), "sent and lost: {lost:?}");
    assert!(lost[0].1 == 0 && lost[1].1 <= 14, "sent and lost, out and back: {lost:?}");

    // What cannot be is refused, and nothing changes.
    order(&bed, &["set", "bond-member", "s1/up0", "admin=down"]);
    for (words, why) in [
        (["set", "bond", "s1", "active=up0"], "down by hand"),
        (["set", "bond", "s1", "active=up7"], "there is no bond-member \"up7\""),
        (["set", "bond-member", "s1/up7", "admin=down"], "did you mean"),
    ] {
        let output = bed.run(&words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{words:?}: {said}");
    }
    order(&bed, &["set", "bond-member", "s1/up0", "admin=up"]);
    bed.ip("host", "link set up0 down").unwrap();
    soon("its link is down", || state(&one, 0) == "down");
    let output = bed.run(&["set", "bond", "s1", "active=up0"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("member \"up0\" is not up"), "{said}");
    assert_eq!(bond(&one)["active"], "up1");

    // All that /proc/net/bonding has.
    let shown = String::from_utf8(bed.run(&["show", "bonds"]).stdout).unwrap();
    let options = "primary up0, primary_reselect failure, peer_notif_delay 100 ms";
    assert!(shown.contains(options) && shown.contains("active up1"), "{shown}");
    let address = bed.ip("host", "-br link show up1").unwrap();
    let address = address.split_whitespace().nth(2).unwrap();
    let answer = described(&bed, "/v1/bonds")["bonds"][0].clone();
    assert_eq!((&answer["primary"], &answer["primary_reselect"]), (&"up0".into(), &"failure".into()));
    let member = &answer["members"][1];
    assert_eq!((&member["mac"], &member["admin"]), (&address.into(), &"up".into()), "{member}");
    let age = |member: usize| bond(&one)["members"][member]["state_ms"].as_u64().unwrap();
    assert!(age(1) > age(0), "one has changed after the other: {} ms, {} ms", age(0), age(1));
    assert!(shown.contains(address), "{shown}");

    let metrics = say(&bed, "GET /v1/metrics HTTP/1.1\r\nhost: x\r\n\r\n");
    for (member, is_active) in [("up0", 0), ("up1", 1)] {
        let sample = format!("levada_bond_member_active{{switch=\"s1\",member=\"{member}\"}} {is_active}\n");
        assert!(metrics.contains(&sample), "{sample}: {metrics}");
    }

    // Alarms: nobody is up, which is over; and one does not stay so.
    bed.ip("wire", "link set dev b down").unwrap();
    let none = "s1/uplink: no member is up, so no frame is carried";
    soon("that nobody is up is in the log", || one.log().contains(none));
    bed.ip("wire", "link set dev b up").unwrap();
    soon("and that it is over", || one.log().contains("s1/uplink: frames are carried again"));
    for _ in 0..3 {
        soon("it is up", || state(&one, 1) == "distributing");
        bed.ip("wire", "link set dev b down").unwrap();
        soon("it is down", || state(&one, 1) == "down");
        bed.ip("wire", "link set dev b up").unwrap();
    }
    soon("that it flaps is in the log", || one.log().contains("s1/uplink/up1 flaps: it has failed 3 times"));

    // Whom the operator chose stays the active one under other changes and another process, though
    // the primary is up.
    bed.ip("host", "link set up0 up").unwrap();
    soon("both are up", || [0, 1].iter().all(|&member| state(&one, member) == "distributing"));
    order(&bed, &["set", "bond", "s1", "active=up1"]);
    soon("another was chosen", || bond(&one)["active"] == "up1");
    order(&bed, &["set", "bond", "s1", "primary_reselect=always", "num_grat_arp=2"]);
    assert_eq!(bond(&one)["active"], "up1");
    let next = bed.take_over(&text(1, "mode = \"active-backup\"\nprimary = \"up0\"\nupdelay = \"3600 s\""));
    assert!(one.wait().success(), "{}", one.log());
    soon("the active one is known", || !bond(&next)["active"].is_null());
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(
        (bond(&next)["active"].clone(), state(&next, 0), state(&next, 1)),
        ("up1".into(), "distributing".into(), "distributing".into())
    );

    // Why a member is as it is, and what it waits for.
    let shown = || String::from_utf8(bed.run(&["show", "bonds"]).stdout).unwrap();
    let waits = |is: &str, carrier: &str, text: &str| {
        soon(text, || {
            let member = bond(&next)["members"][0].clone();
            let left = member["turns_ms"].as_u64().unwrap_or(0);
            (member["state"] == is && member["carrier"] == carrier) && (3_500_000..=3_600_000).contains(&left)
        });
        assert!(shown().contains(text), "{text}: {}", shown());
    };
    bed.ip("wire", "link set dev a down").unwrap();
    soon("it is down", || state(&next, 0) == "down");
    assert!(shown().contains("down (no carrier)"), "{}", shown());
    bed.ip("wire", "link set dev a up").unwrap();
    waits("down", "up", "down (used in ");
    order(&bed, &["set", "bond", "s1", "updelay=0 ms", "downdelay=3600 s"]);
    soon("it is used", || state(&next, 0) == "distributing");
    bed.ip("wire", "link set dev a down").unwrap();
    waits("distributing", "down", "distributing (carrier lost, given up in ");
    assert_eq!(described(&bed, "/v1/bonds")["bonds"][0]["members"][0]["carrier"], "down");
}

/// A host with the cables up0 and up1 to a bridge, at whose ports a and b they end.
fn cabled() -> Bed {
    let bed = Bed::new(&["host", "red", "wire"]);
    ["host", "wire"].iter().for_each(|space| quiet(&bed, space));
    let wire = bed.name("wire");
    bed.ip("wire", "link add br0 type bridge").unwrap();
    for (device, port) in [("up0", "a"), ("up1", "b")] {
        bed.ip("host", &format!("link add {device} mtu 1504 type veth peer name {port} netns {wire}")).unwrap();
        bed.ip("host", &format!("link set {device} up")).unwrap();
        bed.ip("wire", &format!("link set dev {port} mtu 1504 master br0 up")).unwrap();
    }
    bed.ip("wire", "link set br0 up").unwrap();
    bed
}

/// Waits until a member is down, a second at most in which nobody waited for a processor.
fn is_soon_down(daemon: &Daemon, member: usize) {
    let (start, before) = (Instant::now(), waited());
    while state(daemon, member) != "down" {
        let busy = waited().saturating_sub(before);
        assert!(start.elapsed() < Duration::from_secs(1) + busy, "{}\n{}", bond(daemon), daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What is heard of a link first is heard of the member that it is, and is not lost.
#[test]
fn a_member_that_is_added_again_without_a_cable_is_down_and_the_other_goes_on() {
    let Some(_turn) = turn("a_member_that_is_added_again_without_a_cable_is_down_and_the_other_goes_on") else {
        return;
    };
    let bed = cabled();
    let daemon = bed.start(&text(1, "mode = \"active-backup\""));
    let netns = format!("netns={}", bed.name("host"));
    for _ in 0..10 {
        soon("both are up", || [0, 1].iter().all(|&member| state(&daemon, member) == "distributing"));
        order(&bed, &["del", "bond-member", "s1/up1"]);
        bed.ip("wire", "link set dev b down").unwrap();
        order(&bed, &["add", "bond-member", "s1/up1", "port=packet://up1", &netns, "mtu=1504", "rate=200 Mbit/s"]);
        is_soon_down(&daemon, 1);
        assert_eq!((state(&daemon, 0).as_str(), &bond(&daemon)["active"]), ("distributing", &"up0".into()));
        bed.ip("wire", "link set dev b up").unwrap();
    }
    assert!(!daemon.log().contains("up0 is down"), "{}", daemon.log());
}

#[test]
fn a_port_without_a_cable_that_becomes_a_member_is_down() {
    let Some(_turn) = turn("a_port_without_a_cable_that_becomes_a_member_is_down") else { return };
    let bed = cabled();
    bed.ip("wire", "link set dev a down").unwrap();
    let two = text(1, "mode = \"active-backup\"");
    let (head, rest) = two.split_once("[switch.uplink.bond]").unwrap();
    let (_, rest) = rest.split_once("[[switch.uplink.bond.member]]").unwrap();
    let (member, rest) = rest.split_once("[[switch.uplink.bond.member]]").unwrap();
    let (_, tenant) = rest.split_once("[[switch.tenant]]").unwrap();
    let one = format!("{head}[switch.uplink]{member}[[switch.tenant]]{tenant}");
    let daemon = bed.start(&one);
    for _ in 0..10 {
        order(&bed, &["apply", bed.configuration(&two).to_str().unwrap()]);
        is_soon_down(&daemon, 0);
        soon("the other carries", || state(&daemon, 1) == "distributing");
        order(&bed, &["apply", bed.configuration(&one).to_str().unwrap()]);
    }
}

/// Two hosts with two cables between them.
fn hosts() -> [Bed; 2] {
    let beds = [Bed::new(&["host", "red"]), Bed::new(&["host", "red"])];
    beds.iter().for_each(|bed| quiet(bed, "host"));
    let far = beds[1].name("host");
    for cable in ["up0", "up1"] {
        beds[0].ip("host", &format!("link add {cable} mtu 1504 type veth peer name {cable} netns {far}")).unwrap();
        for bed in &beds {
            bed.ip("host", &format!("link set {cable} mtu 1504 up")).unwrap();
        }
    }
    beds
}

/// A member is taken out at one end, its cable is pulled and put back, and it is used again.
fn taken_out(options: &str, is_ready: impl Fn(&Daemon) -> bool) {
    let beds = hosts();
    let [one, two] = [0, 1].map(|side| beds[side].start(&text(side as u8 + 1, options)));
    soon("both are ready", || is_ready(&one) && is_ready(&two));
    let _echo = beds[1].echo("red", TWO);
    soon("frames pass", || beds[0].ask("red", TWO, 1) == 1);
    let out = Stream::between((&beds[0], "red"), (&beds[1], "red"), TWO);
    let back = Stream::between((&beds[1], "red"), (&beds[0], "red"), ONE);
    let sent = |daemon: &Daemon| bond(daemon)["members"][1]["sent"]["segments"].as_u64().unwrap();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(100));
        order(&beds[0], &["set", "bond-member", "s1/up1", "admin=down"]);
        soon("it is out", || state(&one, 1) == "standby" && bond(&one)["members"][1]["admin"] == "down");
        if options.contains("xor") {
            // Nobody tells the other end.
            order(&beds[1], &["set", "bond-member", "s1/up1", "admin=down"]);
        }
        // With numbers the member's state stays, and what is known of its other end is another.
        soon("the other end has stopped", || {
            let member = bond(&two)["members"][1].clone();
            member["state"] != "distributing" || !member["peer"].is_null()
        });
        let before = [&one, &two].map(sent);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!([&one, &two].map(sent), before, "it carries nothing: {} {}", bond(&one), bond(&two));
        // One end of a pair that is set down takes the other's carrier.
        beds[1].ip("host", "link set up1 down").unwrap();
        soon("it is down", || state(&one, 1) == "down" && state(&two, 1) == "down");
        beds[1].ip("host", "link set up1 up").unwrap();
        soon("the other end is back", || {
            bond(&two)["members"][1]["device"] == "up" && state(&one, 1) == "standby" && state(&two, 1) != "down"
        });
        order(&beds[0], &["set", "bond-member", "s1/up1", "admin=up"]);
        if options.contains("xor") {
            order(&beds[1], &["set", "bond-member", "s1/up1", "admin=up"]);
        }
        soon("it is used again", || is_ready(&one) && is_ready(&two));
    }
    let lost = [out.end(), back.end()];
    assert!(lost.iter().all(|&(sent, lost)| sent > 500 && lost == 0), "{options}, sent and lost: {lost:?}");
    let drops = one.show()["switches"][0]["uplink"]["drops"].clone();
    assert!(drops["bond-control"].as_u64().unwrap_or(0) < 1000, "numbers are known all the time: {drops}");
    let said = String::from_utf8(beds[0].run(&["show", "bonds"]).stdout).unwrap();
    assert!(said.contains("distributing"), "{said}");
}

fn both_carry(daemon: &Daemon) -> bool {
    (0..2).all(|member| state(daemon, member) == "distributing")
}

#[test]
fn a_member_with_numbers_is_taken_out_by_hand_and_nothing_is_lost() {
    let Some(_turn) = turn("a_member_with_numbers_is_taken_out_by_hand_and_nothing_is_lost") else { return };
    let is_ready = |daemon: &Daemon| {
        let bond = bond(daemon);
        let is_whole = |member: usize| bond["members"][member]["peer"].is_null();
        both_carry(daemon) && bond["order"]["numbered"] == true && is_whole(0) && is_whole(1)
    };
    taken_out("mode = \"balance-rr\"\nhold = \"100 ms\"", is_ready);
}

#[test]
fn a_member_without_numbers_is_taken_out_by_hand_and_nothing_is_lost() {
    let Some(_turn) = turn("a_member_without_numbers_is_taken_out_by_hand_and_nothing_is_lost") else { return };
    taken_out("mode = \"balance-xor\"\nxmit_hash_policy = \"layer3+4\"", both_carry);
}

#[test]
fn a_member_of_lacp_is_taken_out_by_hand_and_nothing_is_lost() {
    let Some(_turn) = turn("a_member_of_lacp_is_taken_out_by_hand_and_nothing_is_lost") else { return };
    taken_out("mode = \"802.3ad\"\nxmit_hash_policy = \"layer3+4\"", both_carry);
}
