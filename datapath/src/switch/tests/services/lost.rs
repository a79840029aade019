//! Connections whose entry is lost: with a table that is not handed over, or to make room.

use super::*;
use crate::service::ConnectionState;
use crate::service::entry::OPEN_NS;

/// A data segment of the client behind the request, and what follows it.
fn request(port: u16) -> build::Build<'static> {
    ask(port, ACK, (100, 500)).payload(vec![1; 50])
}

fn reply(backend: u8, port: u16) -> build::Build<'static> {
    answer(backend, port, ACK, (500, 150)).payload(vec![2; 70])
}

/// A switch that goes on where another was killed: of the same key, as [`Rig`] has one seed.
fn after_a_kill(policy: Policy) -> Rig {
    let mut rig = four(policy);
    rig.switch.recover_services(rig.now);
    rig
}

/// The client at port 1 (and endpoint 5 beside it), backends 2, 3 and 4.
fn four(policy: Policy) -> Rig {
    Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)], |program| {
        let backends = (2..5).map(|n| backend(n, Some(u32::from(n) - 1))).collect();
        program.services.push(service(policy, backends));
    })
}

fn stats(rig: &Rig) -> crate::service::ServiceStats {
    rig.switch.service_stats(FIRST).expect("it is there")
}

/// Sends the client's segment again until its backend has it: as often as another one refused it.
fn found_again(rig: &mut Rig, port: u16, owner: u8) -> usize {
    for refused in 0..4 {
        let (to, bytes) = rig.one(1, &request(port));
        let wanted = tcp((1, port), (to as u8, 8080), ACK, (100, 500)).payload(vec![1; 50]);
        assert_eq!(bytes, wanted.bytes());
        if to == u32::from(owner) {
            assert_eq!(rig.one(to, &reply(owner, port)).1, super::seen_with(port, (500, 150), vec![2; 70]));
            return refused;
        }
        let reset = answer(to as u8, port, RST, (500, 0));
        assert_eq!(rig.send(to, &reset).0, dropped(Reason::ServiceRetry), "the client is not told");
    }
    panic!("backend {owner} was not asked");
}

#[test]
fn a_lost_connection_is_found_at_its_candidates() {
    for (policy, most) in [(Policy::Maglev, 0), (Policy::P2c, 1), (Policy::RoundRobin, 2)] {
        let mut before = four(policy);
        let owners: Vec<u8> = (1..=30).map(|port| before.open(port)).collect();
        assert_eq!(stats(&before).off_candidates, 0, "so few backends are candidates all");
        let mut after = after_a_kill(policy);
        for (port, &owner) in (1..).zip(&owners) {
            let refused = found_again(&mut after, port, owner);
            assert!(refused <= most, "{policy:?}: {refused} others were asked");
        }
        assert_eq!((stats(&after).sought, stats(&after).recovered), (30, 30));
        assert_eq!(after.in_flight().iter().map(|counts| counts.1).sum::<u32>(), 30);
    }
}

#[test]
fn what_nobody_knows_is_refused_by_the_last_one_asked() {
    let mut rig = four(Policy::P2c);
    let mut asked: Vec<u32> = (0..2)
        .map(|_| {
            let to = rig.one(1, &request(7)).0;
            assert_eq!(rig.send(to, &answer(to as u8, 7, RST, (500, 0))).0, dropped(Reason::ServiceRetry));
            to
        })
        .collect();
    let to = rig.one(1, &request(7)).0;
    let (client, bytes) = rig.one(to, &answer(to as u8, 7, RST, (500, 0)));
    assert_eq!((client, bytes), (1, seen(7, RST, (500, 0))));
    asked.push(to);
    asked.sort_unstable();
    assert_eq!(asked, [2, 3, 4]);
    assert_eq!((stats(&rig).sought, stats(&rig).recovered), (1, 0));
}

#[test]
fn a_backend_that_speaks_first_after_a_kill_is_translated() {
    let mut before = four(Policy::P2c);
    let owner = before.open(5);
    let mut rig = after_a_kill(Policy::P2c);
    let said = reply(owner, 5);
    assert_eq!(rig.one(owner.into(), &said).1, super::seen_with(5, (500, 150), vec![2; 70]));
    assert_eq!(rig.one(1, &ask(5, ACK, (150, 570))).0, owner.into());
    assert_eq!(stats(&rig).recovered, 1);
    // Or while the client asks another candidate.
    let mut rig = after_a_kill(Policy::P2c);
    let port = (6..).find(|&port| before.open(port) != rig.one(1, &request(port)).0 as u8).expect("some are off");
    let owner = before.one(1, &request(port)).0 as u8;
    assert_eq!(rig.one(owner.into(), &reply(owner, port)).1, super::seen_with(port, (500, 150), vec![2; 70]));
    assert_eq!(rig.one(1, &request(port)).0, owner.into());
}

/// The killed switch has passed a SYN. Its client is told nothing by the backend's address, or it
/// would reset what the backend has, and that may be its connection by then.
#[test]
fn an_answer_to_a_syn_that_nobody_saw_goes_nowhere() {
    for policy in [Policy::Maglev, Policy::P2c] {
        let mut before = four(policy);
        let owner = before.one(1, &ask(5, SYN, (99, 0))).0 as u8;
        let mut rig = after_a_kill(policy);
        let agrees = answer(owner, 5, SYN_ACK, (499, 100));
        assert_eq!(rig.send(owner.into(), &agrees), (dropped(Reason::ServiceUnknown), vec![]));
        // Both send again, the client first or last.
        let got = rig.one(1, &ask(5, SYN, (99, 0))).0 as u8;
        if got != owner {
            assert_eq!(rig.send(owner.into(), &agrees), (dropped(Reason::ServiceUnknown), vec![]));
        }
        assert_eq!(rig.one(got.into(), &answer(got, 5, SYN_ACK, (499, 100))).1, seen(5, SYN_ACK, (499, 100)));
        assert_eq!(rig.one(1, &request(5)).0, got.into());
        // The client has had the answer, and what it said to that was lost.
        let owner = before.open(6);
        let mut rig = after_a_kill(policy);
        let agrees = answer(owner, 6, SYN_ACK, (499, 100));
        assert_eq!(rig.send(owner.into(), &agrees), (dropped(Reason::ServiceUnknown), vec![]));
        let asked = rig.one(1, &request(6)).0 as u8;
        if asked != owner {
            assert_eq!(rig.send(owner.into(), &agrees), (dropped(Reason::ServiceUnknown), vec![]), "it is sought");
            rig.send(asked.into(), &answer(asked, 6, RST, (500, 0)));
        }
        found_again(&mut rig, 6, owner);
    }
}

#[test]
fn who_speaks_to_a_backend_without_the_service_goes_on_doing_so() {
    let mut rig = after_a_kill(Policy::P2c);
    // Opened since.
    let opening = [tcp((1, 7), (2, 8080), SYN, (1, 0)), tcp((2, 8080), (1, 7), SYN_ACK, (1, 2))];
    for (port, frame) in [1, 2].into_iter().zip(&opening) {
        assert_eq!(rig.one(port, frame).1, frame.bytes());
    }
    let data = tcp((2, 8080), (1, 7), ACK, (2, 2)).payload(vec![3; 9]);
    assert_eq!(rig.one(2, &data).1, data.bytes());
    // Who has sent its SYN before the kill sends it again.
    let agrees = tcp((2, 8080), (1, 6), SYN_ACK, (1, 2));
    assert_eq!(rig.send(2, &agrees), (dropped(Reason::ServiceUnknown), vec![]));
    assert_eq!(rig.one(1, &tcp((1, 6), (2, 8080), SYN, (1, 0))).0, 2);
    assert_eq!(rig.one(2, &agrees).1, agrees.bytes());
    // Open before: its client does not know a connection with the service.
    let data = tcp((2, 8080), (1, 8), ACK, (2, 2)).payload(vec![3; 9]);
    assert_ne!(rig.one(2, &data).1, data.bytes());
    assert_eq!(rig.send(1, &ask(8, RST, (2, 0))).0, dropped(Reason::ServiceUnknown));
    assert_eq!(rig.one(2, &data).1, data.bytes(), "sent again");
    // Both ports may be used for the service too.
    assert!([2, 3, 4].contains(&rig.open(7)));
    // When no connection can be left, nothing is taken for one.
    rig.now = rig.now.plus_ns(OPEN_NS);
    let data = tcp((2, 8080), (1, 9), ACK, (2, 2)).payload(vec![3; 9]);
    assert_eq!(rig.one(2, &data).1, data.bytes());
}

#[test]
fn connections_are_handed_over_with_what_is_known_of_them() {
    let mut before = four(Policy::RoundRobin);
    let owners: Vec<u8> = (1..=9).map(|port| before.open(port)).collect();
    before.one(1, &request(1));
    let state = before.switch.export(before.now);
    let shown = |rig: &Rig| {
        let mut all: Vec<_> =
            rig.switch.service_connections(rig.now, FIRST, 0..u32::MAX).map(|shown| format!("{shown:?}")).collect();
        all.sort_unstable();
        all
    };
    let mut after = four(Policy::RoundRobin);
    after.now = before.now;
    let imported = after.switch.import(after.now, 0, &state).expect("the same version");
    assert_eq!((imported.connections, imported.ignored), (9, 0));
    assert_eq!(shown(&after), shown(&before));
    assert_eq!(after.in_flight(), before.in_flight());
    assert_eq!(after.switch.export(after.now).services, state.services);
    for (port, &owner) in (1..).zip(&owners) {
        assert_eq!(after.one(1, &request(port)).0, owner.into());
        assert_eq!(after.one(owner.into(), &reply(owner, port)).1, super::seen_with(port, (500, 150), vec![2; 70]));
    }
    assert_eq!(stats(&after).sought, 0);
    // Twice, or of a backend that is no more: counted, and left out.
    let again = after.switch.import(after.now, 0, &state).expect("the same version");
    assert_eq!((again.connections, again.ignored), (0, 9));
    let mut other = rig(Policy::RoundRobin);
    other.now = before.now;
    let imported = other.switch.import(other.now, 0, &state).expect("the same version");
    // And an endpoint that is not there.
    assert_eq!((imported.connections, imported.ignored), (6, 4));
    let mut late = four(Policy::RoundRobin);
    late.now = before.now;
    assert_eq!(late.switch.import(late.now, OPEN_NS, &state).map(|imported| imported.connections), Ok(0));
}

#[test]
fn who_takes_over_from_one_that_looks_for_lost_connections_goes_on_looking() {
    const AWAY_NS: u64 = 1_000_000;
    let owner = four(Policy::P2c).open(5);
    let mut before = after_a_kill(Policy::P2c);
    let killed = before.now;
    before.now = killed.plus_ns(OPEN_NS / 2);
    let state = before.switch.export(before.now);
    let next = |recovers_ns, now| {
        let mut after = four(Policy::P2c);
        after.now = before.now.plus_ns(AWAY_NS);
        let state = crate::switch::State { recovers_ns, ..state.clone() };
        after.switch.import(after.now, AWAY_NS, &state).expect("the same version");
        after.now = now;
        let translated = super::seen_with(5, (500, 150), vec![2; 70]);
        after.one(owner.into(), &reply(owner, 5)).1 == translated
    };
    assert_eq!(state.recovers_ns, OPEN_NS / 2);
    let end = killed.plus_ns(OPEN_NS);
    assert!(next(state.recovers_ns, Instant(end.0 - 1_000_000_000)));
    assert!(!next(state.recovers_ns, end), "no longer than the one before would have");
    assert!(!next(0, before.now.plus_ns(AWAY_NS)), "who looks for none");
    assert!(!next(u64::MAX, before.now.plus_ns(AWAY_NS + OPEN_NS)), "whatever it is told");
}

#[test]
fn connections_that_were_left_out_are_looked_for() {
    for (left_out, is_known) in [(0, false), (1, true)] {
        let mut before = four(Policy::P2c);
        let owner = before.open(5);
        let mut state = before.switch.export(before.now);
        state.services[0].1.connections.clear();
        state.services[0].1.left_out = left_out;
        let mut after = four(Policy::P2c);
        after.now = before.now;
        after.switch.import(after.now, 0, &state).expect("the same version");
        // Its backend speaks first.
        let said = after.one(owner.into(), &reply(owner, 5)).1;
        assert_eq!(said == super::seen_with(5, (500, 150), vec![2; 70]), is_known);
    }
}

#[test]
fn a_tenant_hands_over_what_others_do_not_use() {
    let tenants = [Attachment::Isolated; 64];
    let mut rig = Rig::new(&tenants, &[(0, 1), (0, 2)], |program| {
        program.services.push(service(Policy::P2c, vec![backend(2, Some(1))]));
        for n in 1..64 {
            program.services.push(Service { tenant: TenantId(n), ..service(Policy::P2c, vec![]) });
        }
    });
    for port in 1..=5000 {
        assert_eq!(rig.send(1, &ask(port, SYN, (99, 0))), (FORWARDED, vec![2]));
    }
    let state = &rig.switch.export(rig.now).services[0].1;
    assert_eq!((state.connections.len(), state.left_out), (5000, 0), "a 64th is 4096");
}

#[test]
fn a_connection_that_is_written_down_is_read_as_it_was() {
    let mut rig = four(Policy::P2c);
    rig.open(1);
    let state = rig.switch.export(rig.now);
    let one = state.services[0].1.connections[0];
    assert_eq!(ConnectionState::from_bytes(&one.to_bytes()), Some(one));
    let mut wrong = one.to_bytes();
    wrong[21] = 99;
    assert_eq!(ConnectionState::from_bytes(&wrong), None);
}

#[test]
fn a_flood_of_one_endpoint_denies_nobody_else_a_connection() {
    let mut rig = four(Policy::P2c);
    let change = crate::program::Change::Connections(2048);
    rig.switch.change(&mut rig.pool, rig.now, change).expect("it fits");
    let opened: Vec<u8> = (1..=100).map(|port| rig.open(port)).collect();
    let table = rig.switch.connections().1;
    let mut failed = 0;
    for n in 0..10 * table {
        rig.now = rig.now.plus_ns(1000);
        // Another endpoint floods: of each port of each address that it says it has.
        let syn = eth(mac(5), MAC).ipv4(ip(5), ip(100)).tcp(n as u16, 80, 9).flags(SYN);
        let _ = rig.send(5, &syn);
        if n % 64 == 0 {
            // The flood goes on while a handshake takes its time.
            let port = 1000 + (n / 64) as u16;
            let to = rig.one(1, &ask(port, SYN, (99, 0))).0;
            for m in 0..16 {
                let _ = rig.send(5, &eth(mac(5), MAC).ipv4(ip(5), ip(100)).tcp(m, 80, 9).flags(SYN));
            }
            let is_known = rig.send_for_bytes(to, &answer(to as u8, port, SYN_ACK, (499, 100))).1;
            failed += u32::from(is_known != [(1, seen(port, SYN_ACK, (499, 100)))]);
        }
    }
    assert_eq!(failed, 0);
    for (port, &owner) in (1..).zip(&opened) {
        assert_eq!(rig.one(1, &request(port)).0, owner.into());
    }
    assert_eq!(stats(&rig).sought, 0, "the table has them all");
}
