//! Virtual congestion control: what `levada show vcc` prints, and what `GET /v1/vcc` answers.

use crate::api::vcc::{ConnectionReport, EndpointReport, EngagedReport, VccReply};
use crate::worker::VccPart;
use control::plan::SwitchPlan;
use datapath::vcc::connection::{Connection, Kind, Treatment, Why, Wire, bit};
use datapath::vcc::connections::Key;
use datapath::vcc::{Counters, Mode};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// What a part of a switch's answer says.
pub fn of_switch(plan: &SwitchPlan, part: &VccPart) -> Vec<EndpointReport> {
    let report = |told: &crate::worker::EndpointVcc| {
        // A change may have taken the endpoint away since.
        let compiled = plan.program.endpoints.get(told.endpoint.0)?;
        let tenant = plan.tenants.get(compiled.tenant.0)?;
        let counters = &told.counters;
        let untouched = Why::ALL.iter().map(|&why| (why.name().to_owned(), counters.untouched[why as usize]));
        let [translated, native, plain] = counters.opened;
        let of = |(key, connection): &(Key, Connection)| connection_report(key, connection);
        let connections: Vec<_> = told.connections.iter().map(of).collect();
        Some(EndpointReport {
            path: format!("{}/{tenant}/{}", plan.name, plan.endpoints[told.endpoint.0 as usize]),
            mode: told.mode.name().into(),
            open: told.open,
            half_open: told.half_open,
            translated,
            native,
            plain,
            untouched: untouched.filter(|&(_, count)| count > 0).collect(),
            acked_bytes: counters.acked_bytes,
            marked_bytes: counters.marked_bytes,
            hidden_marks: counters.hidden_marks,
            lowered: counters.lowered,
            reductions: counters.reductions,
            policed: counters.policed,
            deaf: counters.deaf,
            held: counters.held,
            lapsed: counters.lapsed,
            unanswered_asks: counters.unanswered_asks,
            guests: kinds(counters.guests),
            peers: kinds(counters.peers),
            warnings: warning(told.mode, counters).into_iter().collect(),
            engaged: engaged(&connections),
            connections,
        })
    };
    part.endpoints.iter().filter_map(report).collect()
}

/// Counts by kind, those that are none left out.
fn kinds(counts: [u64; Kind::ALL.len()]) -> BTreeMap<String, u64> {
    let all = Kind::ALL.iter().zip(counts).filter(|&(_, count)| count > 0);
    all.map(|(kind, count)| (kind.name().to_owned(), count)).collect()
}

/// Whether natives of another kind share the queues than the mode reacts like. How one reacts whose
/// flags are AccECN's is not known.
fn warning(mode: Mode, counters: &Counters) -> Option<String> {
    let [classic, dctcp, _] = std::array::from_fn(|kind| counters.guests[kind] + counters.peers[kind]);
    match mode {
        Mode::Dctcp if classic > 0 => Some(format!(
            "{classic} handshakes were of hosts with RFC 3168, which reduce by more than DCTCP at a mark and get less \
             beside it; where most are such, set vcc = \"echo\""
        )),
        Mode::Echo | Mode::EchoPublished if dctcp > 0 => Some(format!(
            "{dctcp} handshakes were of hosts with DCTCP, which reduces by less at a mark and gets more; where most \
             are such, set vcc = \"dctcp\""
        )),
        _ => None,
    }
}

/// Of those whose window is lowered.
fn engaged(connections: &[ConnectionReport]) -> Option<EngagedReport> {
    let lowered = || connections.iter().filter(|connection| connection.window_bytes.is_some());
    let mut windows: Vec<u32> = lowered().filter_map(|connection| connection.window_bytes).collect();
    let mut marked: Vec<u32> = lowered().map(|connection| connection.marked_ppm).collect();
    let both = |values: &mut Vec<u32>| {
        values.sort_unstable();
        Some([*values.get(values.len().div_ceil(2).checked_sub(1)?)?, *values.last()?])
    };
    let (window_bytes, marked_ppm) = (both(&mut windows)?, both(&mut marked)?);
    Some(EngagedReport { connections: windows.len() as u32, window_bytes, marked_ppm })
}

fn connection_report(key: &Key, connection: &Connection) -> ConnectionReport {
    let end = |(address, port): (std::net::IpAddr, u16)| std::net::SocketAddr::new(address, port).to_string();
    let [guest, peer] = key.flow.ends().map(end);
    let wire = match (connection.treatment, connection.wire) {
        (Treatment::Translated, Wire::Accurate) => "accecn",
        (Treatment::Translated, Wire::Classic) => "classic",
        (Treatment::Native, _) => "native",
        (Treatment::Untouched(_), _) => "untouched",
        _ => "plain",
    };
    let (state, why) = match connection.treatment {
        Treatment::Translated if connection.is(bit::ENGAGED) => ("engaged", None),
        Treatment::Translated => ("passive", None),
        Treatment::Native if connection.is(bit::DEAF) => ("deaf", None),
        Treatment::Native => ("native", None),
        Treatment::Untouched(why) => ("untouched", Some(why.words().to_owned())),
        Treatment::Plain | Treatment::Opening => ("plain", None),
    };
    let window = (connection.is_governed() && connection.is(bit::ENGAGED)).then_some(connection.window);
    ConnectionReport {
        guest,
        peer,
        wire: wire.into(),
        state: state.into(),
        why,
        window_bytes: window,
        flight_bytes: connection.flight(),
        marked_ppm: ((u64::from(connection.alpha) * 1_000_000) >> 16) as u32,
        round_trip_us: connection.srtt,
    }
}

/// The answer as text: a line an endpoint, and one for each of its connections.
pub fn text(reply: &VccReply) -> String {
    let mut out = String::new();
    for endpoint in &reply.endpoints {
        let marked = 100.0 * endpoint.marked_bytes as f64 / endpoint.acked_bytes.max(1) as f64;
        let _ = writeln!(
            out,
            "{}  {}; {} open, {} opening; so far {} translated, {} native, {} plain",
            endpoint.path,
            endpoint.mode,
            endpoint.open,
            endpoint.half_open,
            endpoint.translated,
            endpoint.native,
            endpoint.plain
        );
        let _ = writeln!(
            out,
            "  marked {marked:.1} % of what was acknowledged; {} windows lowered, {} reductions; {} marks hidden",
            endpoint.lowered, endpoint.reductions, endpoint.hidden_marks
        );
        if endpoint.policed > 0 {
            let _ = writeln!(out, "  dropped beyond the window: {} segments", endpoint.policed);
        }
        if endpoint.held > 0 {
            let _ = writeln!(out, "  windows below two segments: {} acknowledgements waited", endpoint.held);
        }
        if endpoint.deaf > 0 {
            let _ =
                writeln!(out, "  native, and deaf to marks: {} connections; their windows are lowered", endpoint.deaf);
        }
        if endpoint.lapsed > 0 {
            let _ = writeln!(out, "  became plain after they were translated: {} connections", endpoint.lapsed);
        }
        if endpoint.unanswered_asks > 0 {
            let count = endpoint.unanswered_asks;
            let _ = writeln!(out, "  opened 3 s late, as two SYNs with ECN had no answer: {count} connections");
        }
        let by_kind = |counts: &BTreeMap<String, u64>| -> String {
            counts.iter().map(|(kind, count)| format!(" {count} {kind}")).collect::<Vec<_>>().join(",")
        };
        for (whose, counts) in [("guests", &endpoint.guests), ("peers", &endpoint.peers)] {
            if !counts.is_empty() {
                let _ = writeln!(out, "  {whose} that spoke ECN:{}", by_kind(counts));
            }
        }
        for warning in &endpoint.warnings {
            let _ = writeln!(out, "  warning: {warning}");
        }
        let untouched: Vec<String> = endpoint.untouched.iter().map(|(why, count)| format!("{why} {count}")).collect();
        if !untouched.is_empty() {
            let _ = writeln!(out, "  untouched: {}", untouched.join(", "));
        }
        if let Some(engaged) = endpoint.engaged.as_ref().filter(|engaged| engaged.connections > 1) {
            let EngagedReport { connections, window_bytes: [window, most_window], marked_ppm } = engaged;
            let [marked, most_marked] = marked_ppm.map(|ppm| f64::from(ppm) / 1e4);
            let _ = writeln!(
                out,
                "  of {connections} with a window of the switch: median {window}, largest {most_window} bytes; \
                 {marked:.1}, {most_marked:.1} % marked"
            );
        }
        for connection in &endpoint.connections {
            let window = match connection.window_bytes {
                None => connection.why.clone().unwrap_or_else(|| "not lowered".to_owned()),
                Some(window) => format!(
                    "window {window}, {}.{} % marked",
                    connection.marked_ppm / 10_000,
                    connection.marked_ppm / 1000 % 10
                ),
            };
            let ConnectionReport { guest, peer, wire, state, flight_bytes, round_trip_us, .. } = connection;
            // Of most that are not translated both are the same word.
            let state = if state == wire { String::new() } else { format!(", {state}") };
            let _ = writeln!(
                out,
                "  {guest} > {peer}  {wire}{state}; {window}; {flight_bytes} in flight, {round_trip_us} us"
            );
        }
    }
    if out.is_empty() { "nobody has vcc\n".into() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::EndpointVcc;
    use datapath::program::EndpointId;
    use datapath::vcc::segment::Options;
    use datapath::wire::FlowKey;

    const FILE: &str = "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s1\"\n[[switch.tenant]]\nname = \"red\"\n\
        vcc = \"dctcp\"\n[[switch.tenant.endpoint]]\nname = \"a\"\nport = \"tap://a\"\n";

    #[test]
    fn an_endpoint_is_told_in_words_and_one_that_is_gone_is_not() {
        let plan = control::load(FILE).plan.unwrap();
        let mut counters = Counters { opened: [3, 1, 0], acked_bytes: 1000, marked_bytes: 120, ..Counters::default() };
        counters.untouched[Why::Unknown as usize] = 7;
        let told = |endpoint| EndpointVcc {
            endpoint: EndpointId(endpoint),
            mode: Mode::Dctcp,
            counters: counters.clone(),
            open: 2,
            half_open: 0,
            connections: Vec::new(),
        };
        let part = VccPart { endpoints: vec![told(0), told(9)], next: None };
        let reply = VccReply { version: 1, endpoints: of_switch(&plan.switches[0], &part) };
        assert_eq!(reply.endpoints.len(), 1);
        let text = text(&reply);
        assert!(
            text.starts_with("s1/red/a  dctcp; 2 open, 0 opening; so far 3 translated, 1 native, 0 plain\n"),
            "{text}"
        );
        assert!(text.contains("marked 12.0 %") && text.contains("untouched: unknown 7"), "{text}");
        assert!(!text.contains("spoke ECN") && !text.contains("became plain"), "{text}");
    }

    #[test]
    fn natives_are_told_by_kind_and_what_does_not_fit_the_mode_is_a_warning() {
        let plan = control::load(FILE).plan.unwrap();
        let of = |mode, [guests, peers]: [[u64; 3]; 2]| {
            let counters = Counters { guests, peers, lapsed: 5, unanswered_asks: 6, ..Counters::default() };
            let (endpoint, connections) = (EndpointId(0), Vec::new());
            let told = EndpointVcc { endpoint, mode, counters, open: 0, half_open: 0, connections };
            let part = VccPart { endpoints: vec![told], next: None };
            let reply = VccReply { version: 1, endpoints: of_switch(&plan.switches[0], &part) };
            (reply.endpoints[0].warnings.len(), text(&reply))
        };
        let (count, said) = of(Mode::Dctcp, [[1, 0, 0], [2, 3, 4]]);
        for words in [
            "guests that spoke ECN: 1 classic\n",
            "peers that spoke ECN: 4 accecn, 2 classic, 3 dctcp\n",
            "warning: 3 handshakes were of hosts with RFC 3168, ",
            "became plain after they were translated: 5 connections\n",
            "opened 3 s late, as two SYNs with ECN had no answer: 6 connections\n",
        ] {
            assert!(said.contains(words), "{said}");
        }
        assert_eq!(count, 1);
        let (count, said) = of(Mode::Echo, [[1, 0, 0], [2, 3, 4]]);
        assert!(count == 1 && said.contains("warning: 3 handshakes were of hosts with DCTCP, "), "{said}");
        for (mode, counts) in [
            (Mode::Dctcp, [[0, 1, 1]; 2]),
            (Mode::Echo, [[1, 0, 1]; 2]),
            (Mode::EchoPublished, [[0; 3]; 2]),
            (Mode::Count, [[1; 3]; 2]),
        ] {
            assert_eq!(of(mode, counts).0, 0, "{mode:?}");
        }
        assert_eq!(of(Mode::EchoPublished, [[0, 1, 0], [0; 3]]).0, 1);
    }

    #[test]
    fn windows_and_marks_of_many_connections_are_told_by_median_and_largest() {
        let plan = control::load(FILE).plan.unwrap();
        let one = |n: u16| {
            let mut connection = Connection::new(&Options::default());
            let n = u32::from(n);
            (connection.treatment, connection.window, connection.alpha) = (Treatment::Translated, 1000 * n, n);
            // One in two is as its guest has it.
            connection.set(bit::ENGAGED, n.is_multiple_of(2));
            let ends = [format!("10.0.0.1:{n}"), "10.0.0.2:80".to_owned()].map(|end| end.parse().unwrap());
            (Key { endpoint: EndpointId(0), flow: FlowKey::of_tcp(ends).unwrap() }, connection)
        };
        let of = |count: u16| {
            let connections = (1..=count).rev().map(one).collect();
            let (endpoint, mode, counters) = (EndpointId(0), Mode::Dctcp, Counters::default());
            let told = EndpointVcc { endpoint, mode, counters, open: 0, half_open: 0, connections };
            let part = VccPart { endpoints: vec![told], next: None };
            let reply = VccReply { version: 1, endpoints: of_switch(&plan.switches[0], &part) };
            (reply.endpoints[0].engaged.as_ref().map(|e| (e.connections, e.window_bytes)), text(&reply))
        };
        assert_eq!(of(1).0, None, "none is engaged");
        assert_eq!(of(3).0, Some((1, [2000, 2000])));
        assert_eq!(of(400).0, Some((200, [200_000, 400_000])));
        let said = of(400).1;
        // 200 and 400 of 65536.
        assert!(
            said.contains(
                "  of 200 with a window of the switch: median 200000, largest 400000 bytes; 0.3, 0.6 % marked\n"
            ),
            "{said}"
        );
        assert!(!of(3).1.contains("median"), "one says it itself");
    }

    #[test]
    fn a_connections_state_is_told_beside_its_wire() {
        let mut connection = Connection::new(&Options::default());
        let ends = ["10.0.0.1:7", "10.0.0.2:80"].map(|end| end.parse().unwrap());
        let key = Key { endpoint: EndpointId(0), flow: FlowKey::of_tcp(ends).unwrap() };
        let line = |connection: &Connection| {
            let endpoint = serde_json::json!({"path": "p", "mode": "dctcp", "open": 1, "half_open": 0,
                "translated": 1, "native": 0, "plain": 0, "untouched": {}, "acked_bytes": 0, "marked_bytes": 0,
                "hidden_marks": 0, "lowered": 0, "reductions": 0, "connections": []});
            let mut endpoint: EndpointReport = serde_json::from_value(endpoint).unwrap();
            endpoint.connections.push(connection_report(&key, connection));
            let said = text(&VccReply { version: 1, endpoints: vec![endpoint] });
            said.lines().last().unwrap().to_owned()
        };
        (connection.treatment, connection.wire) = (Treatment::Translated, Wire::Accurate);
        assert!(line(&connection).starts_with("  10.0.0.1:7 > 10.0.0.2:80  accecn, passive; not lowered; "));
        connection.set(bit::ENGAGED, true);
        assert!(line(&connection).contains("accecn, engaged; window "), "{}", line(&connection));
        connection.treatment = Treatment::Native;
        assert!(line(&connection).contains("  native; "), "{}", line(&connection));
        connection.set(bit::DEAF, true);
        assert!(line(&connection).contains("  native, deaf; window "), "{}", line(&connection));
        connection.treatment = Treatment::Untouched(Why::Signed);
        assert!(line(&connection).contains("  untouched; "), "{}", line(&connection));
    }
}
