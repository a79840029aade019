//! Filters against frames that a switch explains.

use super::*;
use datapath::frame::Pool;
use datapath::program::PortId;
use datapath::switch::Switch;
use datapath::units::Instant;
use datapath::wire::build::{Build, arp_request, eth};
use std::net::Ipv4Addr;

const CONFIG: &str = r#"
[daemon]
name = "demo"
[[switch]]
name = "s1"
[[switch.tenant]]
name = "red"
[[switch.tenant.endpoint]]
name = "red1"
port = "tap://red1"
mac = "02:00:00:00:00:01"
ip = ["10.0.0.1"]
[[switch.tenant.endpoint]]
name = "red2"
port = "tap://red2"
mac = "02:00:00:00:00:02"
[[switch.tenant]]
name = "blue"
"#;

fn plan() -> Plan {
    let checked = crate::load(CONFIG);
    checked.plan.unwrap_or_else(|| panic!("{:?}", checked.problems))
}

fn frame_trace(frame: &Build<'_>) -> FrameTrace {
    let plan = plan();
    let switch = Switch::new(&plan.switches[0].program, 1).expect("a sound program");
    let mut pool = Pool::new(plan.pool);
    let frame = frame.frame(&mut pool).expect("a buffer");
    switch.explain(&pool, Instant(1), PortId(0), &frame)
}

fn to_red2() -> Build<'static> {
    let (one, two) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])).ipv4(one, two).tcp(5000, 80, 1)
}

#[test]
fn words_mean_what_they_say() {
    let tcp = frame_trace(&to_red2());
    assert_eq!(tcp.verdict, Verdict::Forwarded, "{tcp}");
    let arp =
        frame_trace(&arp_request(Mac([2, 0, 0, 0, 0, 9]), Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::new(10, 0, 0, 2)));
    for (text, of_tcp, of_arp) in [
        ("", true, true),
        ("tcp", true, false),
        ("arp", false, true),
        ("ip", true, false),
        ("ip6 or udp or icmp", false, false),
        ("endpoint red1 and tcp and port 80", true, false),
        ("endpoint s1/red/red2", true, false),
        ("endpoint red1", true, true),
        ("tenant s1/red", true, true),
        ("tenant blue", false, false),
        ("switch s1 not tcp", false, true),
        ("drop", false, true),
        ("drop spoofed-mac", false, true),
        ("drop loop", false, false),
        ("forwarded", true, false),
        ("uplink", false, false),
        ("vlan or vlan 3", false, false),
        ("ether src 02:00:00:00:00:01", true, false),
        ("dst ether 02:00:00:00:00:01", false, false),
        ("host 10.0.0.0/24 and src host 10.0.0.1", true, false),
        ("dst host 10.0.0.1", false, false),
        ("src port 80", false, false),
        ("dst port 80 (udp or tcp)", true, false),
        ("not (tcp or arp)", false, false),
        ("not not tcp", true, false),
        ("arp or tcp and port 81", false, true),
    ] {
        let filter = Filter::parse(text, &plan()).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!((filter.matches(0, &tcp), filter.matches(0, &arp)), (of_tcp, of_arp), "{text}");
    }
}

#[test]
fn what_goes_to_another_host_goes_to_the_uplink() {
    let uplink = Filter::parse("uplink", &plan()).expect("a filter");
    let nobody = Found::Unknown { receivers: 2, uplink: false };
    for (found, goes) in [(Found::Host([192, 0, 2, 2].into()), true), (Found::Uplink, true), (nobody, false)] {
        let steps = vec![Step::Arrive(PortId(0), Some(EndpointId(0))), Step::Forward(Mac([2, 0, 0, 0, 0, 9]), found)];
        let trace = FrameTrace { steps, verdict: Verdict::Forwarded };
        assert_eq!(uplink.matches(0, &trace), goes, "{trace}");
    }
}

#[test]
fn what_is_no_filter_is_refused_in_words() {
    let deep = format!("{}tcp{}", "(".repeat(17), ")".repeat(17));
    let nots = "not ".repeat(18) + "tcp";
    let long = "tcp ".repeat(300);
    for (text, said) in [
        ("endpoint", "ends where the name of an endpoint"),
        ("endpoint nobody", "has the endpoint \"nobody\", which there is not"),
        ("tenant s2/red", "has the tenant"),
        ("switch s2", "has the switch"),
        ("tcp and", "ends where a word"),
        ("or tcp", "unknown word \"or\""),
        ("(tcp", "without its"),
        ("tcp)", "has \")\" where"),
        ("port http", "where a port"),
        ("src tcp", "where \"ether\""),
        ("ether 02:00", "an Ethernet address that is none"),
        ("host 10.0.0.1/33", "not 0 to 32"),
        ("host red1", "where an IP address"),
        (&deep, "more than 16 brackets"),
        (&nots, "more than 16 brackets"),
        (&long, "longer than 1000 bytes"),
    ] {
        let error = Filter::parse(text, &plan()).expect_err(text).to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
}
