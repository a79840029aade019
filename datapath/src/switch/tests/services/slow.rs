//! Backends that start slowly.

use super::*;

const SECOND: u64 = 1_000_000_000;

fn slow(backends: Vec<Backend>) -> Service {
    Service { slow_start_ns: 10 * SECOND, ..service(Policy::RoundRobin, backends) }
}

fn two() -> Vec<Backend> {
    vec![backend(2, Some(1)), backend(3, Some(2))]
}

fn drained(mut backends: Vec<Backend>, number: usize) -> Vec<Backend> {
    backends[number].weight = 0;
    backends
}

/// Of so many new connections, how many a backend gets.
fn gets(rig: &mut Rig, backend: u32, of: u16, from: &mut u16) -> usize {
    let ports = *from..*from + of;
    *from += of;
    ports.filter(|&port| rig.one(1, &ask(port, SYN, (99, 0))).0 == backend).count()
}

fn slow_for_ns(rig: &Rig, number: usize) -> u64 {
    let stats = rig.switch.service_backends(FIRST).find(|(at, ..)| *at == number).expect("it is there").2;
    stats.slow_until.map_or(0, |until| until.since(rig.now))
}

#[test]
fn one_that_comes_gets_a_tenth_and_more_each_second() {
    let mut rig = rig(Policy::RoundRobin);
    let mut port = 1;
    rig.change_service(slow(two()));
    assert_eq!(gets(&mut rig, 2, 20, &mut port), 10, "who was there is not slow");
    let three = || [two(), vec![backend(4, Some(3))]].concat();
    rig.change_service(slow(three()));
    // Of weights 1, 1 and 0.1, then 0.55, then 1.
    assert_eq!(gets(&mut rig, 4, 210, &mut port), 10);
    assert_eq!((slow_for_ns(&rig, 0), slow_for_ns(&rig, 2)), (0, 10 * SECOND));
    rig.now = rig.now.plus_ns(5 * SECOND);
    assert!((54..=56).contains(&gets(&mut rig, 4, 255, &mut port)));
    rig.now = rig.now.plus_ns(5 * SECOND);
    assert!((9..=11).contains(&gets(&mut rig, 4, 30, &mut port)));
    assert_eq!(slow_for_ns(&rig, 2), 0);
    // A change that leaves it where it is does not begin it anew.
    rig.change_service(Service { ping: false, ..slow(three()) });
    assert!((9..=11).contains(&gets(&mut rig, 4, 30, &mut port)));
}

#[test]
fn one_that_comes_back_from_a_drain_or_an_ejection_starts_slowly_too() {
    let mut rig = rig(Policy::RoundRobin);
    let mut port = 1;
    rig.change_service(slow(drained(two(), 1)));
    assert_eq!(gets(&mut rig, 3, 20, &mut port), 0);
    rig.change_service(slow(two()));
    assert_eq!(gets(&mut rig, 3, 110, &mut port), 10);
    rig.now = rig.now.plus_ns(10 * SECOND);
    // Five refuse.
    let mut refused = 0;
    while refused < 5 {
        if rig.one(1, &ask(port, SYN, (99, 0))).0 == 3 {
            rig.one(3, &answer(3, port, RST | ACK, (0, 100)));
            refused += 1;
        }
        port += 1;
    }
    assert_eq!(gets(&mut rig, 3, 20, &mut port), 0);
    rig.now = rig.now.plus_ns(30 * SECOND);
    assert!((9..=11).contains(&gets(&mut rig, 3, 110, &mut port)));
}

#[test]
fn where_all_begin_together_or_one_is_alone_nobody_is_slow() {
    let mut rig = rig(Policy::RoundRobin);
    let mut port = 1;
    rig.change_service(slow(vec![]));
    rig.change_service(slow(two()));
    assert_eq!((slow_for_ns(&rig, 0), slow_for_ns(&rig, 1)), (0, 0));
    rig.change_service(slow(drained(two(), 0)));
    assert_eq!(gets(&mut rig, 3, 10, &mut port), 10);
}
