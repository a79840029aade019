//! A member of the cluster that lies: its agent asks for next to nothing, for an endpoint that it
//! has and for one that another host has. The first is heeded, and concerns nobody else; the second
//! is counted, shown, and nothing more.

use crate::fabric::{Arrivals, Flood, Host, RED, TestEndpoint, hosts, limited, mac};
use crate::testbed::{soon, turn};
use serde_json::Value;
use std::time::{Duration, Instant};

/// The third is the liar.
const PLACES: [TestEndpoint; 3] = [(RED, 1), (RED, 2), (RED, 3)];

/// What a host says of the liar's agent: how much was heard, and how much refused.
fn heard(host: &Host) -> [u64; 2] {
    let peers = host.agent()["peers"].as_array().cloned().unwrap_or_default();
    let liar = peers.into_iter().find(|peer| peer["host"] == "h3").unwrap_or_default();
    ["heard", "refused"].map(|key| liar[key].as_u64().unwrap_or(0))
}

#[test]
fn a_member_that_lies_holds_back_only_what_is_sent_to_itself() {
    let Some(_turn) = turn("a_member_that_lies_holds_back_only_what_is_sent_to_itself") else { return };
    let mut hosts: [Host; 3] = hosts(&PLACES);
    let (honest, stolen) = (mac(RED, 1), mac(RED, 3));
    // It has a link of next to nothing, says that the first host's endpoint is its own, and knows
    // of no other place where that is.
    let liar = &mut hosts[2];
    liar.bed.add("claimed");
    let claim = format!(
        "[[switch.tenant.endpoint]]\nname = \"claimed\"\nport = \"tap://tap0\"\nnetns = \"NS-claimed\"\nmac = \"{honest}\"\nipv6 = false\n"
    );
    let known = format!("{{ name = \"red1\", tenant = \"red\", mac = \"{honest}\" }}");
    assert!(liar.text.contains(&known));
    liar.text = liar.text.replace(&known, "").replace("guarantee = \"14 Mbit/s\"\n", "");
    liar.text = liar.text.replace("20 Mbit/s", "500 kbit/s").replace("[cluster]\n", &format!("{claim}[cluster]\n"));
    // The network keeps to the truth of where the endpoint is, and gives the liar a copy of all
    // that goes there.
    let fabric = &hosts[0].bed;
    fabric.tool("bridge", "fabric", &format!("fdb replace {honest} dev p1 master static sticky")).unwrap();
    fabric.tool("tc", "fabric", "qdisc add dev p2 clsact").unwrap();
    let its_own = "u32 match u16 0x0200 0xffff at -14 match u32 0x00000a01 0xffffffff at -12";
    let copy = format!("filter add dev p2 ingress protocol all {its_own} action mirred egress mirror dev p3");
    fabric.tool("tc", "fabric", &copy).unwrap();
    let _daemons = hosts.each_ref().map(Host::start);

    let arrivals = Arrivals::new(&hosts[0], "red1");
    let stream = Flood::new(&hosts[1], RED, 1);
    // The same endpoint sends to the liar's own, too.
    let other = Flood::to(&hosts[1], RED, 3, 1);
    let is_low = |limit: &Value| limit["rate_bps"].as_u64().is_some_and(|rate| rate < 1_000_000);
    soon("what is sent to the liar is held", || {
        limited(&hosts[1]).iter().any(|limit| limit["to"] == stolen && limit["host"] == "h3" && is_low(limit))
    });
    let before = heard(&hosts[1])[1];
    soon("the stream comes to where it is sent, whole", || {
        let (sent, from) = (stream.sent(), Instant::now());
        std::thread::sleep(Duration::from_secs(1));
        let (sent, came) = (stream.sent() - sent, arrivals.between(from, Instant::now()));
        let limited = limited(&hosts[1]);
        assert!(limited.iter().all(|limit| limit["to"] != honest), "a lie is believed: {limited:?}");
        sent > 100 && came * 100 >= sent * 95
    });
    soon("lies are counted", || heard(&hosts[1])[1] > before + 20);
    let agent = hosts[1].agent();
    assert!(agent["refused"].as_u64() > Some(before + 20), "{agent}");
    let shown = hosts[1].run(&["show", "agents"]);
    assert!(shown.contains("refused of other hosts") && shown.contains("of host h3: "), "{shown}");
    drop((stream, other));
    soon("nobody is limited any more", || limited(&hosts[1]).is_empty());
}
