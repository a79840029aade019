//! Connections of a backend, an address or a service that is removed are over at once, and
//! forgotten bit by bit.

use super::*;
use crate::program::Change;
use crate::service::SWEPT_PLACES;

/// Many more than one call visits.
const MANY: u16 = 4000;

impl Rig {
    /// Sends a frame. Nothing is swept meanwhile.
    fn only_pass(&mut self, port: u32, frame: &build::Build<'_>) -> Vec<(u32, Vec<u8>)> {
        let frame = frame.frame(&mut self.pool).expect("a buffer");
        let _ = self.switch.rx(&mut self.pool, self.now, PortId(port), frame);
        let mut out = Vec::new();
        while let Some((port, frame)) = self.switch.tx_due(&mut self.pool, self.now) {
            out.push((port.0, self.pool.bytes(&frame).to_vec()));
            self.pool.free(frame);
        }
        out
    }

    /// Opens a connection; the port of its backend.
    fn open_only(&mut self, port: u16) -> u8 {
        let to = self.only_pass(1, &ask(port, SYN, (99, 0)))[0].0;
        self.only_pass(to, &answer(to as u8, port, SYN_ACK, (499, 100)));
        self.only_pass(1, &ask(port, ACK, (100, 500)));
        to as u8
    }

    /// The backends of connections from ports up to [`MANY`], which are open.
    fn open_many(&mut self) -> Vec<(u16, u8)> {
        (1..=MANY).map(|port| (port, self.open_only(port))).collect()
    }

    fn set_only(&mut self, id: ServiceId, service: Option<Service>) {
        let before = self.switch.connections().0;
        self.switch.change(&mut self.pool, self.now, Change::Service(id, service)).expect("it fits");
        assert!(before - self.switch.connections().0 <= SWEPT_PLACES, "a change visits no more than a call");
    }

    /// Sweeps to the end; how many calls that takes.
    fn sweep_all(&mut self) -> u32 {
        let mut calls = 0;
        while self.switch.is_sweeping() {
            let before = self.switch.connections().0;
            let visited = self.switch.sweep();
            assert!(before - self.switch.connections().0 <= visited && visited <= SWEPT_PLACES);
            calls += 1;
        }
        calls
    }

    /// What is counted of backends is what the table has.
    fn counts_are_right(&self) {
        let mut counts = std::collections::BTreeMap::new();
        for shown in
            self.switch.service_connections(self.now, FIRST, 0..u32::MAX).filter(|shown| shown.state.is_counted())
        {
            *counts.entry(usize::from(shown.backend)).or_insert(0) += 1;
        }
        for (number, _, stats) in self.switch.service_backends(FIRST) {
            assert_eq!(stats.busy + stats.idle, counts.get(&number).copied().unwrap_or(0), "backend {number}");
        }
    }
}

fn with(backends: Vec<Backend>) -> Service {
    service(Policy::RoundRobin, backends)
}

fn endpoint(n: u8) -> Backend {
    backend(n, Some(u32::from(n) - 1))
}

#[test]
fn no_call_visits_many_places_and_no_connection_of_a_removed_backend_is_used() {
    let mut rig = rig(Policy::RoundRobin);
    let opened = rig.open_many();
    rig.set_only(FIRST, Some(with(vec![endpoint(3)])));
    assert!(rig.switch.is_sweeping() && rig.switch.poll_timeout() == Some(Instant::ZERO));
    let half = u32::from(MANY) / 2;
    let shown = rig.switch.service_connections(rig.now, FIRST, 0..u32::MAX).count() as u32;
    assert_eq!(shown, half, "the others are over");
    assert!(rig.switch.connections().0 > half + 1000, "and still take places");
    assert_eq!(rig.in_flight(), [(half.into(), half, 0)]);
    // The last ones are visited last. The client's next segment asks who is there, the backend's
    // is its own again, and the same port again is a new connection.
    let gone: Vec<u16> = opened.iter().filter(|(_, backend)| *backend == 2).map(|(port, _)| *port).rev().collect();
    let [a, b, c, ..] = gone[..] else { panic!("half of them") };
    assert_eq!(rig.only_pass(1, &ask(a, ACK, (100, 500)))[0].0, 3);
    let said = answer(2, b, ACK, (500, 100));
    assert_eq!(rig.only_pass(2, &said), [(1, said.bytes())]);
    assert_eq!(rig.open_only(c), 3);
    let kept = opened.iter().rev().find(|(_, backend)| *backend == 3).expect("half of them").0;
    assert_eq!(rig.only_pass(1, &ask(kept, ACK, (100, 500)))[0].0, 3);
    assert!(rig.switch.is_sweeping());
    assert_eq!(rig.sweep_all(), u32::from(MANY).div_ceil(SWEPT_PLACES) - 1, "the change began it");
    // The one that asks is there, and the new one.
    assert_eq!(rig.switch.connections().0, half + 2);
    assert_eq!(rig.in_flight(), [(u64::from(half) + 1, half + 1, 0)]);
    rig.counts_are_right();
}

#[test]
fn who_comes_during_a_sweep_has_none_of_the_connections_of_who_went() {
    let mut rig = rig(Policy::RoundRobin);
    let opened = rig.open_many();
    // Gone, come back, and gone again: each time with numbers of its own.
    rig.set_only(FIRST, Some(with(vec![endpoint(3)])));
    rig.set_only(FIRST, Some(with(vec![endpoint(3), endpoint(2), endpoint(4)])));
    let numbers: Vec<usize> = rig.switch.service_backends(FIRST).map(|(number, ..)| number).collect();
    assert_eq!(numbers, [1, 2, 3], "number 0 is not free yet");
    let (port, _) = *opened.iter().rev().find(|(_, backend)| *backend == 2).expect("half of them");
    let said = answer(2, port, ACK, (500, 100));
    assert_eq!(rig.only_pass(2, &said), [(1, said.bytes())], "the connection ended with the backend that went");
    rig.set_only(FIRST, Some(with(vec![endpoint(3), endpoint(4)])));
    assert!(rig.sweep_all() > u32::from(MANY).div_ceil(SWEPT_PLACES), "the sweep that was under way, and the next");
    rig.set_only(FIRST, Some(with(vec![endpoint(3), endpoint(4), endpoint(2)])));
    let numbers: Vec<usize> = rig.switch.service_backends(FIRST).map(|(number, ..)| number).collect();
    assert_eq!(numbers, [0, 1, 3]);
    assert_eq!(rig.switch.connections().0, u32::from(MANY) / 2);
    rig.counts_are_right();
}

#[test]
fn a_number_comes_again_under_a_generation_that_no_connection_has() {
    // As many backends as there may be, so that no number is free but the one that was just left.
    let mut rig = rig(Policy::RoundRobin);
    rig.switch.change(&mut rig.pool, rig.now, Change::Connections(1 << 19)).expect("it fits");
    let other = |n: u8| Backend { port: Some(9000 + u16::from(n)), ..endpoint(4) };
    let all = |first: Backend| with(std::iter::once(first).chain((1..255).map(other)).collect());
    rig.set_only(FIRST, Some(all(endpoint(2))));
    rig.sweep_all();
    // More than are visited in 255 changes.
    for (from, port) in [1, 4].into_iter().flat_map(|from| (1..=40_000).map(move |port| (from, port))) {
        rig.only_pass(from.into(), &eth(mac(from), MAC).ipv4(ip(from), ip(100)).udp(port, 53));
    }
    let of_first = |rig: &Rig| {
        let first = |(_, backend, _): &(usize, &Backend, _)| backend.endpoint == Some(EndpointId(1));
        let number = rig.switch.service_backends(FIRST).find(first).expect("it is there").0;
        rig.switch
            .service_connections(rig.now, FIRST, 0..u32::MAX)
            .filter(|shown| usize::from(shown.backend) == number)
            .count()
    };
    let (before, all_open) = (of_first(&rig), rig.switch.connections().0 as usize);
    assert!(before > 100 && all_open > 79_000, "{before} of {all_open}");
    for n in 0..300u16 {
        // The 255th waits for the sweep.
        rig.change_service(all(Backend { port: Some(10_000 + n), ..endpoint(2) }));
        assert_eq!(if n < 250 { 0 } else { of_first(&rig) }, 0, "after {n}");
    }
    rig.sweep_all();
    assert_eq!((of_first(&rig), rig.switch.connections().0 as usize), (0, all_open - before));
    rig.counts_are_right();
}

#[test]
fn connections_of_an_address_that_went_are_counted_no_more_when_the_sweep_is_over() {
    let mut rig = rig(Policy::RoundRobin);
    rig.open_many();
    let without = |mut service: Service| {
        service.addresses.remove(0);
        service
    };
    let backends = || vec![endpoint(2), endpoint(3)];
    rig.set_only(FIRST, Some(without(with(backends()))));
    rig.set_only(FIRST, Some(with(backends())));
    // The same address again is another front.
    assert_eq!(rig.switch.service_connections(rig.now, FIRST, 0..u32::MAX).count(), 0);
    let to = rig.only_pass(1, &ask(MANY, SYN, (99, 0)))[0].0;
    rig.sweep_all();
    assert_eq!(rig.in_flight().iter().map(|(_, busy, idle)| busy + idle).sum::<u32>(), 1);
    assert_eq!((rig.switch.connections().0, [2, 3].contains(&to)), (1, true));
    rig.counts_are_right();
}

#[test]
fn a_service_that_gets_the_number_of_one_that_went_counts_its_own() {
    let mut rig = rig(Policy::RoundRobin);
    rig.open_many();
    rig.set_only(FIRST, None);
    rig.set_only(FIRST, Some(with(vec![endpoint(2), endpoint(3)])));
    for port in 1..=10 {
        rig.open_only(port);
    }
    assert_eq!(rig.in_flight(), [(5, 5, 0), (5, 5, 0)]);
    rig.sweep_all();
    assert_eq!((rig.switch.connections().0, rig.in_flight()), (10, vec![(5, 5, 0), (5, 5, 0)]));
    // It goes while no connection is, and so does its tenant's last.
    rig.set_only(FIRST, None);
    rig.sweep_all();
    assert_eq!(rig.switch.connections().0, 0);
}

#[test]
fn a_takeover_during_a_sweep_goes_on_with_what_is_left() {
    let mut rig = rig(Policy::RoundRobin);
    let opened = rig.open_many();
    rig.set_only(FIRST, Some(with(vec![endpoint(3), endpoint(4)])));
    let state = rig.switch.export(rig.now);
    assert!(rig.switch.is_sweeping() && state.services[0].1.connections.len() == usize::from(MANY) / 2);
    let mut next = super::rig(Policy::RoundRobin);
    next.set_only(FIRST, Some(with(vec![endpoint(4), endpoint(3)])));
    next.now = rig.now;
    let imported = next.switch.import(next.now, 0, &state).expect("the same version");
    assert_eq!((imported.connections, imported.ignored), (usize::from(MANY) / 2, 0));
    next.counts_are_right();
    for (port, backend) in opened.iter().rev().take(100) {
        let to = next.only_pass(1, &ask(*port, ACK, (100, 500)))[0].0;
        assert!(to == 3 || *backend == 2);
    }
}

#[test]
fn what_is_counted_is_right_whatever_changes_and_however_far_the_sweep_is() {
    let mut rig = rig(Policy::LeastInflight);
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let mut draw = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 32) % below
    };
    let mut is_there = true;
    for round in 0..1500 {
        match draw(40) {
            0 => {
                let backends = (2..=4).filter(|_| draw(3) > 0).map(endpoint).collect();
                let mut service = service(Policy::LeastInflight, backends);
                if draw(4) == 0 {
                    service.addresses.remove(0);
                }
                rig.set_only(FIRST, Some(service));
                is_there = true;
            }
            1 if is_there => {
                rig.set_only(FIRST, None);
                is_there = false;
            }
            2..=5 => drop(rig.switch.sweep()),
            _ => {
                for _ in 0..8 {
                    let port = 1 + draw(3000) as u16;
                    let flags = [SYN, SYN, ACK, FIN_ACK][draw(4) as usize];
                    for (to, _) in rig.only_pass(1, &ask(port, flags, (99 + u32::from(flags != SYN), 500))) {
                        if flags == SYN && to > 1 {
                            rig.only_pass(to, &answer(to as u8, port, SYN_ACK, (499, 100)));
                        }
                    }
                }
            }
        }
        if is_there && round % 100 == 99 {
            rig.sweep_all();
            rig.counts_are_right();
            let open = rig.switch.service_connections(rig.now, FIRST, 0..u32::MAX).count();
            assert_eq!(open, rig.switch.connections().0 as usize, "nothing else is in the table");
        }
    }
}

#[test]
fn a_longer_table_is_made_a_part_at_a_time_while_connections_go_on() {
    let mut rig = rig(Policy::RoundRobin);
    let opened = rig.open_many();
    let most = rig.switch.connections().1;
    rig.switch.change(&mut rig.pool, rig.now, Change::Connections(1 << 19)).expect("it fits");
    assert_eq!((rig.switch.connections().1, rig.switch.is_sweeping()), (most, true), "it did not wait for the table");
    let (mut calls, mut next) = (0u32, opened.iter().cycle());
    while rig.switch.is_sweeping() {
        assert_eq!(rig.switch.connections().1, most);
        let (port, backend) = next.next().unwrap();
        assert_eq!(rig.only_pass(1, &ask(*port, ACK, (100, 500)))[0].0, u32::from(*backend));
        rig.open_only(MANY + 1 + calls as u16);
        assert!(rig.switch.sweep() <= SWEPT_PLACES);
        calls += 1;
    }
    assert!(calls > (1 << 19) / 6 / SWEPT_PLACES, "{calls}");
    assert_eq!(rig.switch.connections(), (u32::from(MANY) + calls, 1 << 19));
    assert!(rig.switch.take_left().is_some(), "the shell is to free it");
    rig.counts_are_right();
    for (port, backend) in opened {
        assert_eq!(rig.only_pass(1, &ask(port, ACK, (100, 500)))[0].0, u32::from(backend));
    }
}
