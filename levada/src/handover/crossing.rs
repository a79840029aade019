//! Connections on their way to the next process.

use super::*;
use control::plan::Plan;
use datapath::bond::MemberId;
use datapath::program::TenantId;
use datapath::switch::{Crowded, NumbersState, SeenOutside, State as Known, Switch as Datapath};
use datapath::units::Instant;
use datapath::vcc::saved::BYTES;
use datapath::wire::Mac;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;

/// Switches whose tenants have `vcc`: two of 25 endpoints each, which fill two thirds of the
/// table at most.
fn plan(switches: usize) -> Plan {
    let mut text = "[daemon]\nname = \"t\"\n".to_owned();
    for s in 0..switches {
        text += &format!("[[switch]]\nname = \"s{s}\"\n");
        for t in 0..2 {
            text += &format!("[[switch.tenant]]\nname = \"t{t}\"\nvcc = \"dctcp\"\n");
            for e in 0..25 {
                text += &format!("[[switch.tenant.endpoint]]\nname = \"e{e}\"\nport = \"tap://a{s}-{t}-{e}\"\n");
            }
        }
    }
    control::load(&text).plan.expect("a good configuration")
}

/// A record of a connection that is open and whose window is lowered: version, AccECN, bits,
/// endpoint, flow (38 bytes, mapped IPv4), words, and what is smaller.
fn record(number: u32, endpoint: u32) -> [u8; BYTES] {
    const ENGAGED: u16 = 1 << 2;
    let mut record = [0; BYTES];
    record[..2].copy_from_slice(&[2, 3]);
    record[2..4].copy_from_slice(&ENGAGED.to_be_bytes());
    record[4..8].copy_from_slice(&endpoint.to_be_bytes());
    for at in [8, 24] {
        record[at + 10..at + 12].fill(0xff);
    }
    record[20..24].copy_from_slice(&(0x0a00_0000 | number).to_be_bytes());
    (record[44], record[46 + 14]) = (6, 1);
    record[114..116].copy_from_slice(&1460_u16.to_be_bytes());
    record
}

fn switches(plan: &Plan) -> Vec<Datapath> {
    plan.switches.values().map(|switch| Datapath::new(&switch.program, 7).expect("a sound program")).collect()
}

/// Switches with `each` connections; of a hundred, `others` have another window.
fn filled(plan: &Plan, each: u32, others: u32) -> Vec<Datapath> {
    let mut all = switches(plan);
    let mut records: Vec<_> = (0..each).map(|number| record(number, number % 50)).collect();
    records.iter_mut().zip(0..).filter(|(_, number)| number % 100 < others).for_each(|(record, _)| record[61] = 9);
    for switch in &mut all {
        let known = Known { vcc: records.concat(), ..switch.export(Instant(0)) };
        assert_eq!(switch.import(Instant(1), 0, &known).map(|imported| imported.vcc), Ok(each as usize));
    }
    all
}

/// How long parts of a takeover took, in nanoseconds.
#[derive(Default)]
struct Took {
    /// Steps while the old process forwards, the longest of them, and all with what is between.
    steps: usize,
    step: u64,
    early: u64,
    /// While nothing is forwarded.
    exported: u64,
    crossed: u64,
    imported: u64,
}

/// Connections of `before` cross while it forwards. What was written, by switch.
fn cross_early(plan: &Plan, to: &Plan, before: &[Datapath], after: &mut [Datapath], took: &mut Took) -> Vec<Vec<Part>> {
    let (out, into) = UnixStream::pair().unwrap();
    let start = monotonic_ns();
    let parts = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let out = out;
            let mut all = Vec::new();
            for ((_, of), switch) in plan.switches.iter().zip(before) {
                let (mut from, mut parts) = (Some(0), Vec::new());
                while let Some(place) = from {
                    let mut part = Part::new(place);
                    let start = monotonic_ns();
                    switch.vcc().write_part(Instant(2), &mut part);
                    took.step = took.step.max(monotonic_ns() - start);
                    took.steps += 1;
                    from = part.next();
                    send_early(&out, of, part.records()).unwrap();
                    parts.push(part);
                }
                all.push(parts);
            }
            all
        });
        let mut room = CONNECTIONS_BYTES;
        while let Ok(Message::Early(mut early)) = receive(&into) {
            early.read(&into, &mut room).unwrap();
            if let Some((number, records)) = early.of(to) {
                after[number].import_early(Instant(3), 0, &records);
            }
        }
        sender.join().unwrap()
    });
    took.early = monotonic_ns() - start;
    parts
}

/// Takes `each` connections of every switch across a socket to switches of another process, as a
/// takeover does; with `others`, they cross early, and so many of a hundred have changed since. How
/// many arrive, and how long it takes.
fn across(plan: &Plan, each: u32, others: Option<u32>) -> (usize, Took) {
    let (before, then, mut after) = (filled(plan, each, 0), filled(plan, each, others.unwrap_or(0)), switches(plan));
    let (mut took, mut parts) = (Took::default(), vec![Vec::new(); before.len()]);
    if others.is_some() {
        parts = cross_early(plan, plan, &before, &mut after, &mut took);
    }
    let (mut out, into) = UnixStream::pair().unwrap();
    let start = monotonic_ns();
    let mut known: Vec<_> = then.iter().zip(&parts).map(|(switch, of)| switch.export_since(Instant(2), of)).collect();
    let mut state = State::new(start, plan, &mut known);
    took.exported = monotonic_ns() - start;
    let sender = std::thread::spawn(move || {
        let connections = state.take_connections();
        send(&out, &Message::State { state, plugs: Papers::default(), machines: Vec::new() }).unwrap();
        connections.iter().for_each(|connections| out.write_all(connections).unwrap());
    });
    let Ok(Message::State { mut state, .. }) = receive(&into) else { panic!("no state") };
    state.read_connections(&into).unwrap();
    took.crossed = monotonic_ns() - start - took.exported;
    let all = state.known(plan);
    let taken = all.iter().map(|(number, known)| after[*number].import(Instant(3), 0, known).unwrap().vcc);
    let taken = taken.sum();
    took.imported = monotonic_ns() - start - took.exported - took.crossed;
    sender.join().unwrap();
    let left = |all: &[Datapath]| all.iter().map(|switch| switch.vcc().export(Instant(4))).collect::<Vec<_>>();
    let is_as_it_was = left(&then).iter().zip(left(&after)).all(|(one, other)| sorted(one) == sorted(&other));
    assert!(is_as_it_was);
    (taken, took)
}

fn sorted(records: &[u8]) -> Vec<&[u8]> {
    let mut all: Vec<_> = records.chunks(BYTES).collect();
    all.sort_unstable();
    all
}

#[test]
fn connections_cross_to_the_endpoints_of_their_names() {
    let plan = plan(2);
    for others in [None, Some(0), Some(10)] {
        assert_eq!(across(&plan, 100, others).0, 200);
    }
    // Another configuration has fewer, and counts otherwise.
    let text = "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s1\"\n[[switch.tenant]]\nname = \"t1\"\nvcc = \"echo\"\n\
        [[switch.tenant.endpoint]]\nname = \"e7\"\nport = \"tap://x\"\n";
    let other = control::load(text).plan.unwrap();
    let mut before = switches(&plan);
    let records: Vec<u8> = (0..50).flat_map(|number| record(number, number)).collect();
    let known = Known { vcc: records, ..before[1].export(Instant(0)) };
    before[1].import(Instant(1), 0, &known).unwrap();
    let mut known: Vec<_> = before.iter().map(|switch| switch.export(Instant(2))).collect();
    let mut state = State::new(0, &plan, &mut known);
    let mut next = Datapath::new(&other.switches[0].program, 7).unwrap();
    let (_, known) = state.known(&other).remove(0);
    let imported = next.import(Instant(3), 0, &known).unwrap();
    assert_eq!((imported.vcc, imported.ignored), (1, 49));
    assert_eq!(next.vcc().connections().len(), 1);
    // The same where they cross early.
    let mut next = switches(&other);
    let parts = cross_early(&plan, &other, &before, &mut next, &mut Took::default());
    assert_eq!(next[0].vcc().connections().len(), 1, "while the old process forwards");
    let all = before.iter().zip(&parts).map(|(switch, parts)| switch.export_since(Instant(2), parts));
    let mut state = State::new(0, &plan, &mut all.collect::<Vec<_>>());
    assert!(state.take_connections().iter().all(Vec::is_empty));
    let (_, known) = state.known(&other).remove(0);
    let imported = next[0].import(Instant(3), 0, &known).unwrap();
    assert_eq!((imported.vcc, imported.ignored), (1, 49));
}

#[test]
fn connections_of_services_that_cannot_be_read_are_left_out() {
    let text = "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s\"\n[[switch.tenant]]\nname = \"t\"\n\
        [[switch.tenant.service]]\nname = \"web\"\naddress = \"10.0.0.100:80\"\n";
    let plan = control::load(text).plan.unwrap();
    // Two records of 39 bytes.
    for (version, text, left_out) in
        [(1, "A".repeat(104), 3), (2, "A".repeat(104), 5), (1, "?".repeat(104), 5), (2, String::new(), 3)]
    {
        let service = serde_json::json!({"connections_version": version, "connections": text, "left_out": 3});
        let state = serde_json::json!({"switches": {"s": {"services": {"t/web": service}}}});
        let mut state: State = serde_json::from_value(state).unwrap();
        let (_, known) = state.known(&plan).remove(0);
        let known = &known.services[0].1;
        assert_eq!(known.connections.len() as u64 + known.left_out, if text.is_empty() { 3 } else { 5 });
        assert_eq!(known.left_out, left_out, "version {version}");
    }
}

#[test]
fn what_crosses_early_is_bounded_and_must_come() {
    let with = |bytes: u64| -> Early { serde_json::from_value(serde_json::json!({ "bytes": bytes })).unwrap() };
    let mut room = 300;
    assert!(with(200).read(&[0; 199][..], &mut room).is_err());
    assert_eq!(room, 100);
    assert!(with(100).read(&[0; 100][..], &mut room).is_ok());
    assert!(with(1).read(&[0; 1][..], &mut room).unwrap_err().to_string().contains("too many"));
    assert!(with(u64::MAX).read(&[0; 1][..], &mut room).is_err());
    assert_eq!(with(0).of(&plan(1)), None, "of a switch that is not there");
}

#[test]
fn crowded_networks_cross_by_their_tenants_names() {
    let plan = plan(1);
    let crowded = |tenant, macs_ns, ips_ns| Crowded { tenant, macs_ns, ips_ns };
    let [a, b] = [TenantId(0), TenantId(1)].map(Some);
    let all = vec![crowded(None, 1, 2), crowded(a, 3, 4), crowded(b, 5, 6)];
    let mut known = [Known { crowded: all, ..switches(&plan)[0].export(Instant(0)) }];
    let text = serde_json::to_vec(&State::new(0, &plan, &mut known)).unwrap();
    let mut state: State = serde_json::from_slice(&text).unwrap();
    let other = "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s0\"\n[[switch.tenant]]\nname = \"t1\"\n";
    let (_, known) = state.known(&control::load(other).plan.unwrap()).remove(0);
    assert_eq!(known.crowded, [crowded(None, 1, 2), crowded(a, 5, 6)]);
}

#[test]
fn numbers_that_may_come_cross_by_their_members_names() {
    let plan = |uplink: &str| {
        let text = format!("[daemon]\nname = \"t\"\n[[switch]]\nname = \"s0\"\n{uplink}");
        control::load(&text).plan.expect("a good configuration")
    };
    let member =
        |name: &str| format!("[[switch.uplink.bond.member]]\nport = \"packet://{name}\"\nrate = \"1 Gbit/s\"\n");
    let bond = |names: &[&str]| {
        let members: String = names.iter().map(|name| member(name)).collect();
        plan(&format!("[switch.uplink.bond]\nmode = \"balance-rr\"\n{members}"))
    };
    let cross = |from: &Plan, to: &Plan, members: &[u8]| {
        let numbers = NumbersState { members: members.iter().copied().map(MemberId).collect(), has_shims: true };
        let mut known = [Known { numbers: Some(numbers), ..switches(from)[0].export(Instant(0)) }];
        let text = serde_json::to_vec(&State::new(0, from, &mut known)).unwrap();
        let mut state: State = serde_json::from_slice(&text).unwrap();
        let (_, known) = state.known(to).remove(0);
        let numbers = known.numbers.expect("they are written");
        assert!(numbers.has_shims);
        numbers.members.iter().map(|member| member.0).collect::<Vec<_>>()
    };
    let one = plan("[switch.uplink]\nport = \"packet://a\"\nrate = \"1 Gbit/s\"\n");
    let two = bond(&["c", "b"]);
    assert_eq!(cross(&bond(&["a", "b", "c"]), &two, &[0, 2]), [0], "the one that is the first now");
    assert_eq!(cross(&two, &one, &[1]), [0], "they may come by any port");
    assert_eq!(cross(&one, &two, &[0]), [0, 1]);
    assert!(cross(&two, &one, &[]).is_empty());
}

/// Strangers choose what was seen outside: a takeover does not fail by how much that is.
#[test]
fn however_much_was_seen_outside_a_state_crosses() {
    const MOST: u32 = 2 << 17;
    let plan = plan(3);
    let seen = |n: u32| SeenOutside {
        tenant: Some(TenantId(n / (MOST / 2))),
        mac: Mac([2, 0, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8]),
        address: n.is_multiple_of(2).then(|| (IpAddr::from([10, (n >> 16) as u8, (n >> 8) as u8, n as u8]), false)),
        left_ns: 300_000_000_000 - u64::from(n),
    };
    let empty = switches(&plan)[0].export(Instant(0));
    let known = || Known { outside: (0..MOST).map(seen).collect(), ..empty.clone() };
    let mut known = [known(), known(), known()];
    let state = State::new(0, &plan, &mut known);
    let kept: usize = known.iter().map(|known| known.outside.len()).sum();
    assert_eq!(kept + state.left_out, 3 * MOST as usize);
    assert!(kept > 100_000);
    let (out, into) = UnixStream::pair().unwrap();
    let sent = std::thread::spawn(move || {
        send(&out, &Message::State { state, plugs: Papers::default(), machines: Vec::new() })
    });
    let Ok(Message::State { mut state, .. }) = receive(&into) else { panic!("no state") };
    sent.join().unwrap().unwrap();
    let arrived = state.known(&plan);
    assert_eq!(arrived.iter().map(|(_, known)| known.outside.len()).collect::<Vec<_>>(), [kept / 3; 3]);
    let crowded = arrived.iter().map(|(_, known)| known.crowded.len());
    assert_eq!(crowded.collect::<Vec<_>>(), [2; 3], "of each network some were left out");
}

#[test]
fn what_the_other_end_would_refuse_is_not_sent() {
    let mut written = Vec::new();
    let why = "x".repeat(MESSAGE_BYTES as usize);
    assert!(send(&mut written, &Message::Refusal { why }).unwrap_err().to_string().contains("at most"));
    assert!(written.is_empty());
}

#[test]
fn endpoints_with_other_numbers_are_not_numbered_alike() {
    let load = |names: &[&str]| {
        let mut text = "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s\"\n[[switch.tenant]]\nname = \"t\"\n".to_owned();
        for name in names {
            text += &format!("[[switch.tenant.endpoint]]\nname = \"{name}\"\nport = \"tap://{name}\"\n");
        }
        control::load(&text).plan.unwrap()
    };
    let plan = load(&["a", "b"]);
    assert!(are_numbered_alike(&plan, &load(&["a", "b"])));
    for other in [&["b", "a"][..], &["a"], &["a", "c"]] {
        assert!(!are_numbered_alike(&plan, &load(other)), "{other:?}");
    }
}

#[test]
fn what_follows_a_state_is_bounded_and_must_come() {
    let with = |bytes: u64| -> State {
        serde_json::from_value(serde_json::json!({"switches": {"s0": {"connections_bytes": bytes}}})).unwrap()
    };
    assert!(with(200).read_connections(&[0; 199][..]).is_err());
    assert!(with(200).read_connections(&[0; 201][..]).is_ok());
    assert!(with(u64::MAX).read_connections(&[0; 201][..]).unwrap_err().to_string().contains("are above"));
    let mut state = with(200);
    state.forget_connections();
    assert!(state.read_connections(&[][..]).is_ok());
}

/// How long 100 000 connections take, of which four switches have a quarter each: as to a process
/// that takes none early, where none changes after they crossed early, where a tenth does, and
/// where all do. Where a tenth changes or fewer it is less than half as long as all at once; times
/// themselves are printed and not judged. To be run by itself:
/// `cargo test -p levada --release --bin levada a_hundred_thousand -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn a_hundred_thousand_connections_cross() {
    let plan = plan(4);
    let mut medians = Vec::new();
    for others in [None, Some(0), Some(10), Some(100)] {
        println!("{}", others.map_or("all at once".to_owned(), |others| format!("early, {others} % changed since")));
        let mut standstills = Vec::new();
        for _ in 0..5 {
            let (taken, took) = across(&plan, 25_000, others);
            assert_eq!(taken, 100_000);
            let Took { steps, step, early, exported, crossed, imported } = took;
            let all = [exported + crossed + imported, exported, crossed, imported, early, step].map(|ns| ns / 1000);
            standstills.push(all[0]);
            println!(
                "us: standstill {} (exported {}, across the socket {}, imported {}); early {}, the longest of {steps} \
                 steps {}",
                all[0], all[1], all[2], all[3], all[4], all[5]
            );
        }
        standstills.sort_unstable();
        medians.push(standstills[2]);
    }
    let [at_once, none, few, _all] = medians[..] else { unreachable!("four ways") };
    assert!(2 * none.max(few) < at_once, "medians of the standstills, in us: {medians:?}");
}
