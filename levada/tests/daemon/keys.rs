//! Changes of keys of devices that are open: what is refused is on no device, and who comes to an
//! endpoint meets nothing of who was there before.

use crate::management::good;
use crate::testbed::{Bed, turn};
use crate::traffic::{B, NEIGHBOURS};
use std::collections::BTreeSet;

/// A device as `ip` tells of it, and its addresses.
fn seen(bed: &Bed, space: &str, device: &str) -> (String, BTreeSet<String>) {
    let shown = bed.ip(space, &format!("-o address show dev {device}")).unwrap();
    let addresses = shown.lines().filter_map(|line| line.split_whitespace().nth(3)).map(str::to_owned);
    (bed.ip(space, &format!("-o link show dev {device}")).unwrap(), addresses.collect())
}

fn apply(bed: &Bed, text: &str) -> bool {
    bed.run(&["apply", bed.configuration(text).to_str().unwrap()]).status.success()
}

fn endpoint(keys: &str) -> String {
    format!("[[switch.tenant.endpoint]]\n{keys}\n")
}

/// What no key says the kernel has chosen, or somebody has set by hand.
#[test]
fn what_a_refused_change_set_on_devices_is_as_it_was() {
    let Some(_turn) = turn("what_a_refused_change_set_on_devices_is_as_it_was") else { return };
    let bed = Bed::new(&["a", "b", "c", "d"]);
    let of_c = "mac = \"02:00:00:00:07:03\"\nip = \"10.7.0.3\"\naddress = \"10.7.0.3/24\"\nipv6 = false\n";
    let tap = "address = \"10.7.0.3/24\"\nipv6 = false\n";
    let veth = endpoint("name = \"v\"\nport = \"veth://v0\"\nnetns = \"NS-d\"");
    let before = NEIGHBOURS.replacen(of_c, tap, 1) + &veth;
    let _daemon = bed.start(&before);
    bed.ip("c", "address add 10.7.0.77/24 dev tap0").unwrap();
    bed.ip("c", "link set dev tap0 txqueuelen 321").unwrap();
    bed.ip("d", "address add fd07::44/64 dev v0 nodad").unwrap();
    let was = [seen(&bed, "c", "tap0"), seen(&bed, "d", "v0")];
    assert!(was[1].1.len() >= 2, "{was:?}");
    let tap = "mac = \"02:00:00:00:07:33\"\nring = 77\nmtu = 1400\npersistent = true\n\
        address = [\"10.7.0.3/24\", \"10.9.9.3/24\", \"fd07::3/64\"]\n";
    let nowhere = endpoint("name = \"n\"\nport = \"tap://tap0\"\nnetns = \"NS-nowhere\"");
    let keys = "mac = \"02:00:00:00:07:44\"\nring = 9\nmtu = 1300\nipv6 = false\naddress = \"10.7.0.4/24\"\n";
    let after = NEIGHBOURS.replacen(of_c, tap, 1) + &veth + keys;
    assert!(!apply(&bed, &(after.clone() + &nowhere)));
    assert_eq!([seen(&bed, "c", "tap0"), seen(&bed, "d", "v0")], was);
    // Where it is made, it is so; and who is to have no ring of its own any more has none.
    assert!(apply(&bed, &after.replacen("mtu = 1400\npersistent = true\n", "", 1)));
    let (link, addresses) = seen(&bed, "c", "tap0");
    assert!(link.contains("02:00:00:00:07:33") && link.contains("qlen 77"), "{link}");
    assert!(addresses.contains("fd07::3/64") && addresses.contains("10.7.0.77/24"), "{addresses:?}");
    assert!(!seen(&bed, "d", "v0").1.contains("fd07::44/64"));
    assert!(apply(&bed, &before));
    assert!(seen(&bed, "c", "tap0").0.contains("qlen 500"));
}

#[test]
fn a_refused_change_leaves_no_new_device_and_takes_none_that_was_there() {
    let Some(_turn) = turn("a_refused_change_leaves_no_new_device_and_takes_none_that_was_there") else { return };
    let bed = Bed::new(&["a", "b", "c", "d"]);
    let _daemon = bed.start(NEIGHBOURS);
    let nowhere = endpoint("name = \"n\"\nport = \"tap://tap0\"\nnetns = \"NS-nowhere\"");
    let one = |persistent: bool| {
        let keys = format!("name = \"x\"\nport = \"tap://x0\"\nnetns = \"NS-d\"\npersistent = {persistent}");
        NEIGHBOURS.to_owned() + &endpoint(&keys)
    };
    let is_there = || bed.ip("d", "link show dev x0").is_ok();
    assert!(!apply(&bed, &(one(true) + &nowhere)));
    assert!(!is_there(), "it was made for what was refused");
    // Left by an endpoint that is gone.
    assert!(apply(&bed, &one(true)) && apply(&bed, NEIGHBOURS) && is_there());
    for persistent in [true, false] {
        assert!(!apply(&bed, &(one(persistent) + &nowhere)));
        assert!(is_there(), "it was there");
    }
    assert!(apply(&bed, &one(false)) && apply(&bed, NEIGHBOURS) && !is_there());
}

/// The addresses of a guest that is gone, and what was counted of it, are not the next one's.
#[test]
fn an_endpoint_at_another_port_begins_anew() {
    let Some(_turn) = turn("an_endpoint_at_another_port_begins_anew") else { return };
    let bed = Bed::new(&["a", "b", "c", "d"]);
    let keys = "mac = \"02:00:00:00:07:03\"\nip = \"10.7.0.3\"\naddress = \"10.7.0.3/24\"\nipv6 = false\n";
    let undeclared = "max_learned = 1\naddress = \"10.7.0.3/24\"\nipv6 = false\n";
    let daemon = bed.start(&NEIGHBOURS.replacen(keys, undeclared, 1));
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("c", B, 3), 3);
    let d = format!("netns={}", bed.name("d"));
    for (space, key) in [("c", "port=tap://tap1"), ("d", &d)] {
        good(&bed.run(&["set", "endpoint", "s1/home/c", key]));
        assert_eq!(daemon.endpoint("c")["local_egress"]["frames"], 0, "nothing is sent yet");
        assert_eq!(bed.ask(space, B, 3), 3, "its address is another, and there is room for one");
        assert!(daemon.endpoint("c")["drops"]["fdb-full"].is_null());
    }
}
