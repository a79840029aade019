//! A strict reader of the format, as far as it is used here, and what a report becomes.

use super::*;
use crate::api::cluster::MemberReport;
use crate::report::Facts;
use crate::worker::Snapshot;
use datapath::bond::MemberState;
use std::collections::HashSet;

/// Reads OpenMetrics text: every sample's name with its labels, and its value. Panics where the
/// text is not what the standard wants.
pub fn read(text: &str) -> BTreeMap<String, f64> {
    let body = text.strip_suffix("# EOF\n").expect("an end");
    let (mut family, mut kind, mut families) = (String::new(), String::new(), HashSet::new());
    let mut samples = BTreeMap::new();
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, word) = rest.split_once(' ').expect("a type");
            assert!(families.insert(name.to_owned()), "{name} comes twice");
            assert!(name.starts_with("levada_") && !name.ends_with("_total"), "{name}");
            (family, kind) = (name.to_owned(), word.to_owned());
            continue;
        }
        if let Some(rest) = line.strip_prefix("# UNIT ") {
            let (name, unit) = rest.split_once(' ').expect("a unit");
            assert!(name == family && name.ends_with(unit), "{line}");
            continue;
        }
        if let Some(rest) = line.strip_prefix("# HELP ") {
            assert!(rest.starts_with(&format!("{family} ")), "{line}");
            continue;
        }
        let (key, value) = line.rsplit_once(' ').expect("a sample");
        let name = key.split('{').next().unwrap();
        let suffix = name.strip_prefix(family.as_str()).unwrap_or_else(|| panic!("{name} is not of {family}"));
        match kind.as_str() {
            "counter" => assert_eq!(suffix, "_total", "{line}"),
            "gauge" => assert_eq!(suffix, "", "{line}"),
            "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}"),
            other => panic!("{other}"),
        }
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{name}");
        if let Some(rest) = key.strip_prefix(name).filter(|rest| !rest.is_empty()) {
            let inside = rest.strip_prefix('{').and_then(|r| r.strip_suffix('}')).expect("braces");
            assert!(inside.split("\",").all(|pair| pair.contains("=\"")), "{line}");
        }
        let value: f64 = value.parse().expect("a number");
        assert!(value >= 0.0 && samples.insert(key.to_owned(), value).is_none(), "{key} comes twice");
    }
    samples
}

const FILE: &str = "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s1\"\n[[switch.tenant]]\nname = \"red\"\n\
    [[switch.tenant.endpoint]]\nname = \"a\"\nport = \"tap://a\"\nmac = \"02:00:00:00:00:01\"\n\
    [[switch.tenant.endpoint]]\nname = \"b\"\nport = \"tap://b\"\nlimit = \"8 Mbit/s\"\n";

fn vcc() -> VccReply {
    let endpoint = serde_json::json!({"path": "s1/red/a", "mode": "echo", "open": 3, "half_open": 1, "translated": 4,
        "native": 1, "plain": 2, "untouched": {"unknown": 7}, "acked_bytes": 5000, "marked_bytes": 600,
        "hidden_marks": 8, "lowered": 9, "reductions": 10, "policed": 11, "deaf": 12, "lapsed": 13, "unanswered_asks": 17, "guests": {"classic": 14},
        "peers": {"dctcp": 15, "accecn": 16}, "connections": []});
    VccReply { version: 1, endpoints: vec![serde_json::from_value(endpoint).unwrap()] }
}

fn services() -> ServicesReply {
    let backend = |name: &str, state: &str| {
        serde_json::json!({"name": name, "weight": 2, "new": 40, "state": state, "refused": 5, "silent": 6,
            "ejections": 1, "busy": 7, "idle": 8, "load_milli": null})
    };
    let service = |name: &str| {
        serde_json::json!({"path": format!("s1/red/{name}"), "addresses": ["10.0.0.1:80"], "policy": "p2c",
            "new": 80, "refused": 1, "full": 2, "evicted": 3, "off_candidates": 4, "redirected": 9, "sought": 11,
            "recovered": 10, "table": 30, "table_most": 65536,
            "backends": [backend("a", "up"), backend("b", "ejected")]})
    };
    let services = serde_json::json!({"version": 1, "services": [service("web"), service("dns")],
        "reports": {"taken": 20, "malformed": 1, "foreign": 2, "forged": 3, "old": 4, "replayed": 5, "too_many": 6}});
    serde_json::from_value(services).unwrap()
}

#[test]
fn services_are_told_by_backend_and_the_table_once_by_switch() {
    let samples = read(&text(&report(), &cluster(), &vcc(), &services()));
    let of = "switch=\"s1\",tenant=\"red\",service=\"web\"";
    for (name, value) in [
        ("levada_switch_service_connections{switch=\"s1\"}".to_owned(), 30.0),
        ("levada_switch_service_connections_limit{switch=\"s1\"}".to_owned(), 65_536.0),
        ("levada_service_reports_total{verdict=\"forged\"}".to_owned(), 3.0),
        ("levada_service_reports_total{verdict=\"too-many\"}".to_owned(), 6.0),
        (format!("levada_service_new_total{{{of}}}"), 80.0),
        (format!("levada_service_refused_total{{{of}}}"), 1.0),
        (format!("levada_service_redirected_total{{{of}}}"), 9.0),
        (format!("levada_service_recovered_total{{{of}}}"), 10.0),
        (format!("levada_service_backend_up{{{of},backend=\"a\"}}"), 1.0),
        (format!("levada_service_backend_up{{{of},backend=\"b\"}}"), 0.0),
        (format!("levada_service_backend_connections{{{of},backend=\"b\",state=\"idle\"}}"), 8.0),
        (format!("levada_service_backend_refused_total{{{of},backend=\"a\"}}"), 5.0),
        (format!("levada_service_backend_ejections_total{{{of},backend=\"b\"}}"), 1.0),
    ] {
        assert_eq!(samples.get(&name), Some(&value), "{name}");
    }
}

#[test]
fn virtual_congestion_control_is_told_by_endpoint() {
    let samples = read(&text(&report(), &cluster(), &vcc(), &services()));
    let of = "switch=\"s1\",tenant=\"red\",endpoint=\"a\"";
    for (name, value) in [
        (format!("levada_endpoint_vcc_connections{{{of},state=\"open\"}}"), 3.0),
        (format!("levada_endpoint_vcc_opened_total{{{of},kind=\"translated\"}}"), 4.0),
        (format!("levada_endpoint_vcc_untouched_total{{{of},reason=\"unknown\"}}"), 7.0),
        (format!("levada_endpoint_vcc_marked_bytes_total{{{of}}}"), 600.0),
        (format!("levada_endpoint_vcc_policed_segments_total{{{of}}}"), 11.0),
        (format!("levada_endpoint_vcc_deaf_connections_total{{{of}}}"), 12.0),
        (format!("levada_endpoint_vcc_lapsed_connections_total{{{of}}}"), 13.0),
        (format!("levada_endpoint_vcc_unanswered_asks_total{{{of}}}"), 17.0),
        (format!("levada_endpoint_vcc_ecn_handshakes_total{{{of},who=\"guest\",kind=\"classic\"}}"), 14.0),
        (format!("levada_endpoint_vcc_ecn_handshakes_total{{{of},who=\"peer\",kind=\"dctcp\"}}"), 15.0),
    ] {
        assert_eq!(samples.get(&name), Some(&value), "{name}");
    }
}

fn report() -> Report {
    let plan = control::load(FILE).plan.unwrap();
    let mut shot = Snapshot { now: datapath::units::Instant(1_500_000_000), ..Snapshot::default() };
    for ns in [500, 1500, 1_000_000, u64::MAX] {
        shot.effort.lag.record(ns);
    }
    let mut switch = crate::worker::SwitchNumbers::default();
    switch.tenants.resize_with(1, Default::default);
    switch.time = vec![(datapath::turns::Spent { used_ns: 1_500_000_000, waited_ns: 250_000_000 }, 3_000_000_000)];
    switch.endpoints.resize_with(2, Default::default);
    switch.endpoints[1].egress.traffic.wire_bytes = 77;
    switch.endpoints[1].egress.unmet_ns = 2_500_000_000;
    switch.endpoints[1].sojourn.ingress =
        Sojourn::from_parts(2_000_000, &[5, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
    switch.endpoints[1].drops.add(datapath::verdict::Reason::SpoofedMac, 5);
    shot.switches.push(switch);
    shot.devices.resize_with(2, Default::default);
    let devices = [0u32, 1].map(|n| ((0, datapath::program::PortId(n)), n as usize)).into_iter().collect();
    Facts {
        plan,
        uplinks: BTreeMap::new(),
        devices,
        shortcuts: Default::default(),
        sights: Default::default(),
        tunnels: Vec::new(),
    }
    .report(&shot)
}

fn cluster() -> ClusterReply {
    let member = |name: &str, sent| MemberReport {
        services: Vec::new(),
        name: name.to_owned(),
        address: "192.0.2.2:7370".to_owned(),
        endpoints: 1,
        known_from: "file".to_owned(),
        away: None,
        outgoing_ns: Some(5),
        incoming_ns: None,
        connections: 1,
        sent,
        unsent: 1,
        received: 0,
        untaken: 0,
        certificate_expires_s: None,
        error: None,
        error_ago_ns: None,
    };
    let cluster = ClusterReport {
        host: "h1".to_owned(),
        controller: "rate".to_owned(),
        store: "file".to_owned(),
        etcd: None,
        listen: "192.0.2.1:7370".to_owned(),
        up: true,
        error: None,
        certificate_expires_s: Some(1_800_000_000),
        authority_expires_s: None,
        authorities: 1,
        refused: BTreeMap::from([("unproven".to_owned(), 3)]),
        unposted: 0,
        members: vec![member("h2", 7), member("h3", 0)],
    };
    ClusterReply { version: 1, cluster: Some(cluster) }
}

#[test]
fn the_cluster_is_in_it_where_there_is_one() {
    let samples = read(&text(&report(), &cluster(), &vcc(), &services()));
    let get = |key: &str| *samples.get(key).unwrap_or_else(|| panic!("no {key} in {samples:#?}")) as u64;
    assert_eq!(get("levada_cluster_up"), 1);
    assert_eq!(get("levada_cluster_connected{member=\"h3\",direction=\"to\"}"), 1);
    assert_eq!(get("levada_cluster_datagrams_total{member=\"h2\",direction=\"egress\",outcome=\"passed\"}"), 7);
    assert_eq!(get("levada_cluster_refused_attempts_total{reason=\"unproven\"}"), 3);
    assert_eq!(get("levada_cluster_certificate_expiry_timestamp_seconds{of=\"host\"}"), 1_800_000_000);
    let alone = read(&text(
        &report(),
        &ClusterReply { version: 1, cluster: None },
        &VccReply::default(),
        &ServicesReply::default(),
    ));
    assert!(!alone.keys().any(|key| key.contains("cluster")));
}

#[test]
fn the_report_is_sound_openmetrics() {
    let samples = read(&text(&report(), &cluster(), &vcc(), &services()));
    let get = |key: &str| *samples.get(key).unwrap_or_else(|| panic!("no {key} in {samples:#?}"));
    assert!((get("levada_uptime_seconds") - 1.5).abs() < 1e-9);
    let of_b = "switch=\"s1\",tenant=\"red\",endpoint=\"b\"";
    let wire = format!("levada_endpoint_wire_bytes_total{{{of_b},direction=\"egress\",path=\"uplink\"}}");
    assert_eq!(get(&wire) as u64, 77);
    assert_eq!(get(&format!("levada_endpoint_drops_total{{{of_b},reason=\"spoofed-mac\"}}")) as u64, 5);
    let limit = format!("levada_endpoint_limit_bytes_per_second{{{of_b},direction=\"egress\"}}");
    assert_eq!(get(&limit) as u64, 1_000_000);
    assert_eq!(get(&format!("levada_endpoint_unmet_seconds_total{{{of_b},direction=\"egress\"}}")).to_string(), "2.5");
    let red = "{switch=\"s1\",tenant=\"red\"}";
    for (name, seconds) in [("", 1.5), ("_waited", 0.25), ("_short", 3.0)] {
        assert_eq!(get(&format!("levada_tenant_processor{name}_seconds_total{red}")), seconds);
    }
    let of_uplink = read(&text(&bonded([MemberState::Down; 2]), &cluster(), &vcc(), &services()));
    for (name, seconds) in [("", 2.5), ("_waited", 0.5), ("_short", 4.0)] {
        let key = format!("levada_uplink_processor{name}_seconds_total{{switch=\"s1\"}}");
        assert_eq!(of_uplink.get(&key), Some(&seconds), "{key}");
    }
    assert_eq!(get("levada_tenant_unmet_seconds_total{switch=\"s1\",tenant=\"red\",direction=\"ingress\"}") as u64, 0);
    let sojourn = |suffix: &str, le: &str| {
        get(&format!("levada_endpoint_sojourn_seconds{suffix}{{{of_b},direction=\"ingress\"{le}}}"))
    };
    let counts = ["0.000032768", "0.000065536", "0.000131072", "0.536870912", "+Inf"]
        .map(|le| sojourn("_bucket", &format!(",le=\"{le}\"")) as u64);
    assert_eq!(counts, [5, 5, 6, 6, 9]);
    assert_eq!((sojourn("_count", "") as u64, sojourn("_sum", "").to_string()), (9, "2.048".to_owned()));
    assert!(!samples.keys().any(|key| key.contains("sojourn") && key.contains("egress")), "where nothing waited");
    // Buckets are cumulative, and the last has all.
    let lag: Vec<u64> = BUCKETS
        .map(|p| get(&format!("levada_worker_loop_lag_seconds_bucket{{le=\"{}\"}}", Seconds(1 << p))) as u64)
        .into();
    assert_eq!(lag, [1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]);
    assert_eq!(get("levada_worker_loop_lag_seconds_bucket{le=\"+Inf\"}") as u64, 4);
}

/// A switch whose uplink has two ports, with these states.
fn bonded(states: [MemberState; 2]) -> Report {
    let member = |n: u8| format!("[[switch.uplink.bond.member]]\nport = \"packet://up{n}\"\nrate = \"1 Gbit/s\"\n");
    let text = format!(
        "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s1\"\n[switch.uplink.bond]\nmode = \"active-backup\"\n{}{}",
        member(0),
        member(1)
    );
    let plan = control::load(&text).plan.unwrap();
    let switch = &plan.switches[0];
    let rate = plan.uplink_rate(switch).unwrap();
    let uplinks = BTreeMap::from([(0, (rate, control::scale::scale(&switch.program, rate).unwrap().promise))]);
    let ports: Vec<_> = switch.program.uplink.as_ref().unwrap().ports().collect();
    let devices = ports.iter().enumerate().map(|(device, port)| ((0, *port), device)).collect();
    let mut members: Vec<_> = datapath::switch::Switch::new(&switch.program, 1).expect("a switch").members().collect();
    members.iter_mut().zip(states).for_each(|(member, state)| member.state = state);
    let mut shot = Snapshot::default();
    let spent = datapath::turns::Spent { used_ns: 2_500_000_000, waited_ns: 500_000_000 };
    let uplink_time = (spent, 4_000_000_000);
    shot.switches.push(crate::worker::SwitchNumbers { members, uplink_time, ..Default::default() });
    shot.devices.resize_with(2, Default::default);
    // The interface of the first is gone.
    (shot.devices[0].losses, shot.devices[1].is_up) = (1, true);
    (shot.devices[0].read_ns, shot.devices[1].write_ns) = (1_000_000_000, 500_000_000);
    let (shortcuts, sights) = Default::default();
    Facts { plan, uplinks, devices, shortcuts, sights, tunnels: Vec::new() }.report(&shot)
}

#[test]
fn a_bond_is_up_where_a_member_may_send() {
    use MemberState::{Distributing, Down, Standby};
    for (states, is_up) in
        [([Down, Distributing], 1.0), ([Distributing, Down], 1.0), ([Down, Down], 0.0), ([Standby, Down], 0.0)]
    {
        let report = bonded(states);
        let samples = read(&text(&report, &cluster(), &vcc(), &services()));
        for (name, value) in [("up", is_up), ("port_losses_total", 1.0), ("worker_seconds_total", 1.5)] {
            assert_eq!(samples.get(&format!("levada_uplink_{name}{{switch=\"s1\"}}")), Some(&value), "{states:?}");
        }
        let members = &report.switches[0].uplink.as_ref().unwrap().bond.as_ref().unwrap().members;
        let seen: Vec<_> = members.iter().map(|member| (member.device.as_str(), member.losses)).collect();
        assert_eq!(seen, [("down", 1), ("up", 0)]);
    }
}

#[test]
fn a_bond_s_active_member_is_told_and_what_order_and_failures_cost() {
    let mut report = bonded([MemberState::Distributing; 2]);
    let bond = report.switches[0].uplink.as_mut().unwrap().bond.as_mut().unwrap();
    bond.active = Some("up1".to_owned());
    (bond.members[0].replayed, bond.members[0].waiting_bytes) = (7, 1538);
    let order = serde_json::json!({"numbered": true, "hold_us": 15_000, "received": 9, "held": 3, "waiting": 0,
        "hold_max_us": 1500, "late": 0, "lost": 0, "duplicate": 0, "pieces": 0});
    bond.order = Some(serde_json::from_value(order).unwrap());
    let samples = read(&text(&report, &cluster(), &vcc(), &services()));
    let get = |name: &str| *samples.get(name).unwrap_or_else(|| panic!("no {name} in {samples:#?}"));
    let of = |name: &str, member: u8| get(&format!("levada_bond_member_{name}{{switch=\"s1\",member=\"up{member}\"}}"));
    assert_eq!([0, 1].map(|member| of("active", member) as u64), [0, 1]);
    assert_eq!([0, 1].map(|member| of("replayed_total", member) as u64), [7, 0]);
    assert_eq!(of("waiting_bytes", 0) as u64, 1538);
    assert_eq!(get("levada_bond_order_hold_max_seconds{switch=\"s1\"}").to_string(), "0.0015");
    // Where none is the active one of all that send.
    report.switches[0].uplink.as_mut().unwrap().bond.as_mut().unwrap().mode = "balance-rr".to_owned();
    let samples = read(&text(&report, &cluster(), &vcc(), &services()));
    assert!(!samples.keys().any(|key| key.contains("_member_active")));
}

#[test]
fn what_a_member_of_a_bond_loses_is_told_where_frames_may_have_numbers() {
    let mut report = bonded([MemberState::Distributing; 2]);
    let key = "levada_bond_member_lost_frames_total{switch=\"s1\",member=\"up1\"}";
    assert!(!read(&text(&report, &cluster(), &vcc(), &services())).contains_key(key));
    let order = serde_json::json!({"numbered": true, "hold_us": 15_000, "received": 9, "held": 0, "waiting": 0,
        "hold_max_us": 0, "late": 0, "lost": 57, "duplicate": 0, "pieces": 0});
    let bond = report.switches[0].uplink.as_mut().and_then(|uplink| uplink.bond.as_mut()).expect("a bond");
    bond.order = Some(serde_json::from_value(order).expect("a report"));
    bond.members[1].lost_frames = 57;
    assert_eq!(read(&text(&report, &cluster(), &vcc(), &services())).get(key), Some(&57.0));
}

/// A queue that drops as a signal is not full.
#[test]
fn what_a_links_queue_lost_is_counted_whether_it_was_full_or_not() {
    let switch = |end: &str| {
        format!("[[switch]]\nname = \"{end}\"\n[switch.uplink]\nport = \"link://w/{end}\"\nrate = \"1 Gbit/s\"\n")
    };
    let link = "[[link]]\nname = \"w\"\nrate = \"1 Gbit/s\"\n";
    let file = format!("[daemon]\nname = \"t\"\n{}{}{link}", switch("a"), switch("b"));
    let plan = control::load(&file).plan.unwrap();
    let (uplinks, devices, shortcuts, sights, tunnels) = Default::default();
    let (facts, mut shot) = (Facts { plan, uplinks, devices, shortcuts, sights, tunnels }, Snapshot::default());
    let mut links = [datapath::link::LinkStats::default(); 2];
    links[1].drops = 5;
    links[1].queue.stats.marks = 3;
    links[1].queue.stats.dropped = datapath::aqm::Lost { syn: 1, ect: 2, ack: 4, other: 8 };
    shot.links.push(links);
    let report = facts.report(&shot);
    let samples = read(&text(&report, &cluster(), &vcc(), &services()));
    for (name, end, count) in [
        ("drops", "b", 5.0),
        ("aqm_drops", "b", 15.0),
        ("marks", "b", 3.0),
        ("losses", "b", 0.0),
        ("aqm_drops", "a", 0.0),
    ] {
        let key = format!("levada_link_{name}_total{{link=\"w\",end=\"{end}\"}}");
        assert_eq!(samples.get(&key), Some(&count), "{key}");
    }
    assert_eq!((report.links[0].a.all_drops(), report.links[0].b.all_drops()), (0, 20), "as levada show has it");
}

#[test]
fn labels_are_escaped() {
    assert_eq!(labels(&[("a", "x\"y\\z\n")]), "{a=\"x\\\"y\\\\z\\n\"}");
}
