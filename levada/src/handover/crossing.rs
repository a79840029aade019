//! Connections on their way to the next process.

use super::monotonic_ns;
use crate::state::State;
use control::plan::Plan;
use datapath::switch::Switch as Datapath;
use datapath::units::Instant;
use datapath::vcc::saved::BYTES;
use std::io::{Read as _, Write as _};
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

/// Takes `each` connections of every switch across a socket to switches of another process, as a
/// takeover does; how many arrive, and after how many nanoseconds.
fn across(plan: &Plan, each: u32) -> (usize, [u64; 3]) {
    let (mut before, mut after) = (switches(plan), switches(plan));
    let records: Vec<u8> = (0..each).flat_map(|number| record(number, number % 50)).collect();
    for switch in &mut before {
        let known = datapath::switch::State { vcc: records.clone(), ..switch.export(Instant(0)) };
        assert_eq!(switch.import(Instant(1), 0, &known).map(|imported| imported.vcc), Ok(each as usize));
    }
    let (mut out, into) = UnixStream::pair().unwrap();
    let start = monotonic_ns();
    let mut known: Vec<_> = before.iter().map(|switch| switch.export(Instant(2))).collect();
    let mut state = State::new(start, plan, &mut known);
    let exported = monotonic_ns();
    let sender = std::thread::spawn(move || {
        let connections = state.take_connections();
        let text = serde_json::to_vec(&state).unwrap();
        out.write_all(&(text.len() as u64).to_le_bytes()).unwrap();
        out.write_all(&text).unwrap();
        connections.iter().for_each(|connections| out.write_all(connections).unwrap());
    });
    let mut length = [0; 8];
    (&into).read_exact(&mut length).unwrap();
    let mut text = Vec::new();
    (&into).take(u64::from_le_bytes(length)).read_to_end(&mut text).unwrap();
    let mut state: State = serde_json::from_slice(&text).unwrap();
    state.read_connections(&into).unwrap();
    let read = monotonic_ns();
    let all = state.known(plan);
    let taken = all.iter().map(|(number, known)| after[*number].import(Instant(3), 0, known).unwrap().vcc);
    let taken = taken.sum();
    let end = monotonic_ns();
    sender.join().unwrap();
    (taken, [exported - start, read - exported, end - read])
}

#[test]
fn connections_cross_to_the_endpoints_of_their_names() {
    let plan = plan(2);
    assert_eq!(across(&plan, 100).0, 200);
    // Another configuration has fewer, and counts otherwise.
    let text = "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s1\"\n[[switch.tenant]]\nname = \"t1\"\nvcc = \"echo\"\n\
        [[switch.tenant.endpoint]]\nname = \"e7\"\nport = \"tap://x\"\n";
    let other = control::load(text).plan.unwrap();
    let mut before = switches(&plan);
    let records: Vec<u8> = (0..50).flat_map(|number| record(number, number)).collect();
    let known = datapath::switch::State { vcc: records, ..before[1].export(Instant(0)) };
    before[1].import(Instant(1), 0, &known).unwrap();
    let mut known: Vec<_> = before.iter().map(|switch| switch.export(Instant(2))).collect();
    let mut state = State::new(0, &plan, &mut known);
    let mut next = Datapath::new(&other.switches[0].program, 7).unwrap();
    let (_, known) = state.known(&other).remove(0);
    let imported = next.import(Instant(3), 0, &known).unwrap();
    assert_eq!((imported.vcc, imported.ignored), (1, 49));
    assert_eq!(next.vcc().connections().len(), 1);
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

/// How long 100 000 connections take, of which four switches have a quarter each. To be run by
/// itself:
/// `cargo test -p levada --release --bin levada a_hundred_thousand -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn a_hundred_thousand_connections_cross() {
    let plan = plan(4);
    for _ in 0..5 {
        let (taken, ns) = across(&plan, 25_000);
        assert_eq!(taken, 100_000);
        println!("us: exported {}, across the socket {}, imported {}", ns[0] / 1000, ns[1] / 1000, ns[2] / 1000);
    }
}
