//! Uplinks in `802.3ad`: with Open vSwitch at the other end, and with Levada.

use crate::cables::{Taps, set_link};
use crate::management::described;
use crate::ovs::Ovs;
use crate::privileges::assert_confined;
use crate::testbed::{Bed, Daemon, soon, turn};
use rustix::process::Signal;
use serde_json::Value;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

const TWO: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Two cables between `host` of one bed and a namespace of another or the same.
fn cables(bed: &Bed, far: &Bed, space: &str) {
    for cable in ["up0", "up1"] {
        let far_name = far.name(space);
        bed.ip("host", &format!("link add {cable} type veth peer name {cable} netns {far_name}")).unwrap();
        for (bed, space) in [(bed, "host"), (far, space)] {
            // Whoever reads from a packet socket or a tap takes checksums as they are.
            bed.tool("ethtool", space, &format!("-K {cable} tx off")).unwrap();
            bed.ip(space, &format!("link set {cable} up")).unwrap();
        }
    }
}

fn text(number: u8, options: &str) -> String {
    let member = |cable: &str| {
        format!(
            "[[switch.uplink.bond.member]]\nport = \"packet://{cable}\"\nnetns = \"NS-host\"\nrate = \"200 Mbit/s\"\n"
        )
    };
    format!(
        "[daemon]\nname = \"NAME\"\n[[switch]]\nname = \"s1\"\n[switch.uplink.bond]\nmode = \"802.3ad\"\n{options}{}{}\
         [[switch.tenant]]\nname = \"red\"\nvlan = \"untagged\"\n[[switch.tenant.endpoint]]\nname = \"red{number}\"\n\
         port = \"tap://red\"\nnetns = \"NS-red\"\naddress = \"10.0.0.{number}/24\"\nmac = \"02:00:00:00:05:0{number}\"\n",
        member("up0"),
        member("up1")
    )
}

fn bond(daemon: &Daemon) -> Value {
    daemon.show()["switches"][0]["uplink"]["bond"].clone()
}

/// The states of both members.
fn states(bond: &Value) -> [String; 2] {
    [0, 1].map(|member| bond["members"][member]["state"].as_str().unwrap_or_default().to_owned())
}

fn are(daemon: &Daemon, wanted: [&str; 2]) -> bool {
    states(&bond(daemon)) == wanted
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Says how long something took: for whoever reads the log; a machine that is busy takes longer.
fn took(what: &str, since: Instant) -> Duration {
    let took = since.elapsed();
    writeln!(std::io::stderr(), "{what}: after {} ms", took.as_millis()).expect("standard error can be written");
    took
}

/// A line of `lacp/show` about one member: what is behind `key`.
fn ovs_says(shown: &str, member: &str, key: &str) -> String {
    let of = shown.split("member: ").find(|part| part.starts_with(&format!("{member}:"))).unwrap_or_default();
    let line = of.lines().find_map(|line| line.trim().strip_prefix(key)).unwrap_or_default();
    line.trim().to_owned()
}

/// Open vSwitch's words for state bits, in the order of the bits, as ours.
fn ours(words: &str) -> Vec<&str> {
    let names = [
        ("activity", "activity"),
        ("timeout", "short-timeout"),
        ("aggregation", "aggregation"),
        ("synchronized", "synchronization"),
        ("collecting", "collecting"),
        ("distributing", "distributing"),
        ("defaulted", "defaulted"),
        ("expired", "expired"),
    ];
    names.iter().filter(|(theirs, _)| words.split(' ').any(|word| word == *theirs)).map(|&(_, ours)| ours).collect()
}

#[test]
fn open_vswitch_and_levada_agree_on_members() {
    const NAME: &str = "open_vswitch_and_levada_agree_on_members";
    let Some(_turn) = turn(NAME) else { return };
    let bed = Bed::new(&["host", "red", "sw", "c"]);
    bed.ip("c", "link set lo up").unwrap();
    cables(&bed, &bed, "sw");
    let Some(mut ovs) = Ovs::start(&bed, NAME, "standalone") else { return };
    ovs.guest("c", 2);
    ovs.set("add-bond br0 bond0 up0 up1 bond_mode=balance-tcp lacp=active other_config:lacp-time=fast");
    let _echo = bed.echo("c", TWO);
    let daemon = bed.start(&text(1, "lacp_rate = \"fast\"\nxmit_hash_policy = \"layer3+4\"\nmin_links = 1\n"));
    let begin = Instant::now();

    // No frame leaves or is received before both agree. Somebody asks all the time.
    soon("both members carry frames", || {
        let _ = bed.ask("red", TWO, 1);
        let bond = bond(&daemon);
        for member in bond["members"].as_array().unwrap() {
            let in_sync = |end: &str| member["lacp"][end]["state"].to_string().contains("synchronization");
            let carried = count(&member["sent"]["segments"]) + count(&member["received"]["segments"]);
            assert!(carried == 0 || in_sync("actor") && in_sync("partner"), "{member}");
        }
        states(&bond) == ["distributing"; 2]
    });
    took("two members up with Open vSwitch", begin);
    soon("frames pass", || bed.ask("red", TWO, 1) == 1);
    assert_eq!(bed.ask("red", TWO, 3), 3);

    // Each end says of the other what that says of itself.
    let mut seen = String::new();
    soon("both ends have the same view", || {
        let (bond, shown) = (bond(&daemon), ovs.ask("lacp/show bond0"));
        seen = format!("{bond}\n{shown}");
        ["up0", "up1"].iter().zip(bond["members"].as_array().unwrap()).all(|(name, member)| {
            let lacp = &member["lacp"];
            let state = |end: &str| lacp[end]["state"].as_array().unwrap().clone();
            let number = |key: &str| ovs_says(&shown, name, key).parse().ok();
            ovs_says(&shown, name, &format!("{name}: ")) == "current attached"
                && ovs_says(&shown, name, "partner sys_id:") == lacp["actor"]["system"]
                && number("partner key:") == lacp["actor"]["key"].as_u64()
                && number("partner port_id:") == lacp["actor"]["port"].as_u64()
                && ovs_says(&shown, name, "actor sys_id:") == lacp["partner"]["system"]
                && ours(&ovs_says(&shown, name, "partner state:")) == state("actor")
                && ours(&ovs_says(&shown, name, "actor state:")) == state("partner")
        })
    });
    let whole = bond(&daemon);
    assert_eq!(whole["lacp"]["aggregator"]["ports"], 2, "{seen}");
    assert_eq!(whole["rate_bps"], 400_000_000, "{seen}");
    assert!(whole["members"].as_array().unwrap().iter().all(|member| member["lacp"]["bad"] == 0), "{seen}");

    // A cable is pulled, and put back.
    bed.ip("host", "link set up1 down").unwrap();
    soon("it is down", || are(&daemon, ["distributing", "down"]));
    soon("frames pass by the other", || bed.ask("red", TWO, 1) == 1);
    assert_eq!(bond(&daemon)["rate_bps"], 200_000_000);
    bed.ip("host", "link set up1 up").unwrap();
    soon("it is agreed on again", || are(&daemon, ["distributing"; 2]));

    // The other end has another key. Open vSwitch gives all members that of its first.
    let keys = ["up0", "up1"].map(|port| format!("set interface {port} other_config:lacp-aggregation-key=77"));
    ovs.set(&keys.join(" -- "));
    soon("both are agreed on with the new key", || {
        let bond = bond(&daemon);
        states(&bond) == ["distributing"; 2] && bond["lacp"]["aggregator"]["partner_key"] == 77
    });
    soon("frames pass", || bed.ask("red", TWO, 1) == 1);

    // The other end speaks on one cable no more, and that keeps its carrier.
    ovs.set("del-bond-iface bond0 up1");
    let silent = Instant::now();
    soon("the silent one is given up", || states(&bond(&daemon))[1] == "standby");
    let least = took("a silent member given up", silent);
    assert!(least > Duration::from_millis(1500), "it is believed for three seconds from its last LACPDU");
    soon("frames pass by the other", || bed.ask("red", TWO, 1) == 1);
    ovs.set("add-bond-iface bond0 up1");
    soon("it is agreed on again", || are(&daemon, ["distributing"; 2]));

    // The other end is killed. Then one member is used alone, as one plain link; and all are when
    // it is back.
    ovs.kill();
    soon("nobody is there", || {
        let bond = bond(&daemon);
        bond["members"].as_array().unwrap().iter().all(|member| member["lacp"]["receive"] == "defaulted")
    });
    soon("one is used alone", || are(&daemon, ["distributing", "standby"]));
    ovs.switch();
    soon("both agree again", || {
        let bond = bond(&daemon);
        let current = |member: &Value| member["lacp"]["receive"] == "current";
        states(&bond) == ["distributing"; 2] && bond["members"].as_array().unwrap().iter().all(current)
    });
    let text = String::from_utf8(bed.run(&["show", "bonds"]).stdout).unwrap();
    assert!(text.contains("aggregator 1 of 2 ports") && text.contains("collecting-distributing"), "{text}");
    assert!(daemon.log().contains("s1/uplink/up1 is standby"), "{}", daemon.log());
}

/// Both members' cable is one, with an end at each.
#[test]
fn a_cable_that_leads_back_is_said_and_carries_nothing() {
    const NAME: &str = "a_cable_that_leads_back_is_said_and_carries_nothing";
    let Some(_turn) = turn(NAME) else { return };
    let bed = Bed::new(&["host", "red"]);
    bed.ip("host", "link add up0 type veth peer name up1").unwrap();
    for cable in ["up0", "up1"] {
        bed.ip("host", &format!("link set {cable} up")).unwrap();
    }
    let daemon = bed.start(&text(1, "lacp_rate = \"fast\"\n"));
    soon("both ends say that it leads back", || {
        let bond = described(&bed, "/v1/bonds")["bonds"][0].clone();
        [0, 1].iter().all(|&member| bond["members"][member]["lacp"]["looped"] == true)
    });
    assert_eq!(states(&bond(&daemon)), ["standby"; 2]);
    let names = assert_confined(&daemon);
    assert!(names.contains_key("levada-links"), "{names:?}");
    soon("it is in the log", || {
        let log = daemon.log();
        ["up0", "up1"]
            .iter()
            .all(|cable| log.contains(&format!("s1/uplink/{cable}: the other end is this very system")))
    });
    let text = String::from_utf8(bed.run(&["show", "bonds"]).stdout).unwrap();
    assert!(text.contains("a cable leads back"), "{text}");
}

#[test]
fn two_daemons_agree_and_a_takeover_changes_nothing() {
    const NAME: &str = "two_daemons_agree_and_a_takeover_changes_nothing";
    let Some(_turn) = turn(NAME) else { return };
    let beds = [Bed::new(&["host", "red"]), Bed::new(&["host", "red"])];
    cables(&beds[0], &beds[1], "host");
    // Believed for 90 s: a machine that stalls is no partner that is gone.
    let texts = [text(1, "lacp_active = \"off\"\n"), text(2, "coupled_control = \"off\"\nlacp_strict = \"on\"\n")];
    let mut one = beds[0].start(&texts[0]);
    let mut two = beds[1].start(&texts[1]);
    soon("both members carry frames", || are(&one, ["distributing"; 2]) && are(&two, ["distributing"; 2]));
    let _echo = beds[1].echo("red", TWO);
    soon("frames pass", || beds[0].ask("red", TWO, 1) == 1);

    for side in 0..2 {
        let failures = |daemon: &Daemon| [0, 1].map(|n| count(&bond(daemon)["members"][n]["failures"]));
        let before = if side == 0 { failures(&two) } else { failures(&one) };
        let next = beds[side].take_over(&texts[side]);
        let mut old = std::mem::replace(if side == 0 { &mut one } else { &mut two }, next);
        assert!(old.wait().success(), "{}", old.log());
        let (new, other) = if side == 0 { (&one, &two) } else { (&two, &one) };
        assert!(are(new, ["distributing"; 2]), "{}", bond(new));
        assert_eq!(beds[0].ask("red", TWO, 3), 3);
        assert_eq!((failures(new), failures(other)), ([0; 2], before), "no member has ceased to carry frames");
    }

    // Killed: the next process has agreed with nobody, and says so.
    assert!(!two.end(Signal::KILL).success());
    two = beds[1].start(&texts[1]);
    soon("the other has noticed", || bond(&one)["members"][0]["failures"] != 0);
    soon("both agree again", || are(&one, ["distributing"; 2]) && are(&two, ["distributing"; 2]));
    soon("frames pass to the next process", || beds[0].ask("red", TWO, 1) == 1);
}

#[test]
fn a_link_that_is_half_duplex_or_slower_is_said_and_does_not_aggregate() {
    const NAME: &str = "a_link_that_is_half_duplex_or_slower_is_said_and_does_not_aggregate";
    let Some(_turn) = turn(NAME) else { return };
    let beds = [Bed::new(&["host", "red"]), Bed::new(&["host", "red"])];
    let _cables = Taps::new(&beds);
    let texts = [1, 2].map(|number| text(number, "lacp_rate = \"fast\"\n"));
    let mut one = beds[0].start(&texts[0]);
    let two = beds[1].start(&texts[1]);
    let both = |daemon: &Daemon| are(daemon, ["distributing"; 2]);
    soon("both members carry frames", || both(&one) && both(&two));
    let _echo = beds[1].echo("red", TWO);
    soon("frames pass", || beds[0].ask("red", TWO, 1) == 1);
    let member = || described(&beds[0], "/v1/bonds")["bonds"][0]["members"][1].clone();
    let said = |member: &Value| (member["speed_bps"].as_u64(), member["duplex"].as_str().map(str::to_owned));
    assert_eq!(said(&member()), (Some(1_000_000_000), Some("full".to_owned())));
    let key = count(&member()["lacp"]["actor"]["key"]);

    // One end is half duplex: both leave it out.
    set_link(&beds[0], "up1", "1000", "half");
    soon("it carries nothing", || are(&one, ["distributing", "standby"]) && are(&two, ["distributing", "standby"]));
    let half = member();
    assert_eq!(said(&half), (Some(1_000_000_000), Some("half".to_owned())));
    assert_eq!(count(&half["lacp"]["actor"]["key"]), key - 1, "{half}");
    assert!(!half["lacp"]["actor"]["state"].to_string().contains("aggregation"), "{half}");
    assert!(half["lacp"]["why_not"].to_string().contains("half duplex"), "{half}");
    let shown = String::from_utf8(beds[0].run(&["show", "bonds"]).stdout).unwrap();
    assert!(shown.contains("1 Gbit/s half") && shown.contains("1 Gbit/s full"), "{shown}");
    soon("it is in the log", || one.log().contains("s1/uplink/up1 has a link of 1 Gbit/s, half duplex"));
    assert_eq!(beds[0].ask("red", TWO, 3), 3);

    // One that is slower is another aggregator.
    set_link(&beds[0], "up1", "10", "full");
    soon("its speed is said", || said(&member()) == (Some(10_000_000), Some("full".to_owned())));
    soon("it carries nothing", || are(&one, ["distributing", "standby"]));
    soon("it is said why", || member()["lacp"]["why_not"] == "another aggregator is used");

    // Both are as slow, and used together. The next process goes on so.
    for bed in &beds {
        ["up0", "up1"].iter().for_each(|cable| set_link(bed, cable, "10", "full"));
    }
    soon("both are used", || both(&one) && both(&two));
    let failures = |daemon: &Daemon| [0, 1].map(|n| count(&bond(daemon)["members"][n]["failures"]));
    let before = failures(&two);
    let next = beds[0].take_over(&texts[0]);
    let mut old = std::mem::replace(&mut one, next);
    assert!(old.wait().success(), "{}", old.log());
    soon("it knows the speed", || said(&member()) == (Some(10_000_000), Some("full".to_owned())));
    assert_eq!(beds[0].ask("red", TWO, 3), 3);
    assert!(both(&one), "{}", bond(&one));
    assert_eq!((failures(&one), failures(&two)), ([0; 2], before), "no member has ceased to carry frames");
}
