//! Disciplines on an endpoint's queue: they signal its senders, and cost nobody else anything.

use super::*;
use crate::aqm::{At, Discipline, Red, Step};
use crate::wire::build::eth;
use crate::wire::{Mac, parse};

const RED: Red = Red { min_bytes: 20_000, max_bytes: 40_000, probability_ppm: 500_000, weight_log: 2, ..Red::VCC_RED1 };
const DISCIPLINES: [Discipline; 6] = [
    Discipline::DropTail,
    Discipline::Codel,
    Discipline::Red(RED),
    Discipline::Step(Step { mark_bytes: 20_000, at: At::Departure }),
    Discipline::Sojourn { target_ns: 1_000_000 },
    Discipline::Auto,
];

/// A TCP frame of one segment of 1000 bytes, with this ECN field; and one without end that comes at
/// once at 100 Mbit/s.
fn tcp(rig: &mut Rig, ecn: u8) -> Frame {
    let frame = eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]))
        .ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
        .tos(ecn)
        .tcp(1, 2, 0)
        .payload(vec![0; 1000])
        .frame(&mut rig.pool)
        .expect("a buffer");
    let (bytes, meta) = rig.pool.parts_mut(&frame);
    (meta.layout, meta.wire_bytes) = (parse(bytes).expect("well formed"), 1078);
    frame
}

/// What became of two endpoints' frames in a second of 100 Mbit/s: bytes sent by each, and what of
/// the first's was marked and dropped.
fn second(discipline: Option<Discipline>, ecn: u8) -> ([u64; 2], u64, u64) {
    let mut rig = Rig::new(OrderKind::Fair, 100, &[(share(0, 0, 1), &[share(0, 0, 1), share(0, 0, 1)])]);
    rig.program.endpoints[0].aqm = discipline;
    rig.scheduler.set_endpoint(&rig.pool, rig.now, EndpointId(0), &rig.program.endpoints[0]);
    let (mut sent, mut refused) = ([0, 0], 0);
    let end = rig.now.plus_ns(SECOND);
    while rig.now < end {
        // More than the link carries, from both.
        for endpoint in [0, 0, 1, 1] {
            let frame = tcp(&mut rig, ecn);
            let id = EndpointId(endpoint);
            let taken = rig.scheduler.enqueue(&mut rig.pool, rig.now, Plane::Wire, id, frame);
            refused += u64::from(taken.is_err() && endpoint == 0);
        }
        while let Some((endpoint, frame)) = rig.scheduler.dequeue(&mut rig.pool, rig.now, Plane::Wire) {
            sent[endpoint.0 as usize] += u64::from(rig.pool.meta(&frame).wire_bytes);
            rig.pool.free(frame);
        }
        rig.now = rig.now.plus_ns(200_000);
    }
    let lane = rig.scheduler.tree(Plane::Wire).lane(EndpointId(0));
    let (marks, dropped) = (lane.stats().marks, lane.aqm_drops() + lane.stats().trims);
    if let Some(aqm) = rig.scheduler.tree(Plane::Wire).aqm(EndpointId(0)) {
        assert_eq!((marks, dropped), (aqm.stats().marks, aqm.stats().dropped.total()));
        assert_eq!(aqm.stats().overflowed.total(), refused, "{discipline:?}");
    }
    rig.scheduler.clear(&mut rig.pool);
    assert_eq!(rig.pool.in_use(), 0);
    (sent, marks, dropped)
}

#[test]
fn a_discipline_signals_and_takes_no_share() {
    for discipline in DISCIPLINES {
        let (sent, marks, dropped) = second(Some(discipline), 2);
        let half = SECOND / 8 * 100 / 1000 / 2;
        assert!(sent.iter().all(|sent| sent.abs_diff(half) < half / 50), "{discipline:?}: {sent:?}");
        assert_eq!((marks > 0, dropped), (discipline != Discipline::DropTail, 0), "{discipline:?}");
        let (sent, marks, dropped) = second(Some(discipline), 0);
        assert!(sent.iter().all(|sent| sent.abs_diff(half) < half / 50), "{discipline:?}: {sent:?}");
        let loses = matches!(discipline, Discipline::Codel | Discipline::Red(_) | Discipline::Auto);
        assert_eq!((marks, dropped > 0), (0, loses), "{discipline:?}");
    }
}
