//! Disciplines against plain models in floating point, and offloaded frames against the packets
//! that they stand for.

use super::*;
use crate::frame::PoolLimits;
use crate::wire::build::{Build, eth};
use crate::wire::{Mac, be32, parse};
use proptest::prelude::*;

mod model;

/// Payload bytes of a segment, and what it takes on the wire.
const PAYLOAD: u32 = 1000;
const SEGMENT: u32 = PAYLOAD + 54 + 24;
/// At which a segment takes a microsecond.
const RATE: Rate = Rate(8 * SEGMENT as u64 * 1_000_000);
const RED: Red = Red { min_bytes: 10_000, max_bytes: 30_000, probability_ppm: 100_000, weight_log: 3, ..Red::VCC_RED1 };

fn pool() -> Pool {
    Pool::new(PoolLimits { small: 4096, medium: 1000, large: 200 })
}

fn tcp(segments: u32, ecn: u8, flags: u8) -> Build<'static> {
    eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]))
        .ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
        .tos(ecn)
        .tcp(1, 2, 0)
        .flags(flags)
        .payload(vec![0; (segments * PAYLOAD) as usize])
}

/// A TCP frame of so many segments with this ECN field, whose first byte has number `sequence`.
fn frame(pool: &mut Pool, segments: u32, ecn: u8, sequence: u32) -> Frame {
    let build = tcp(segments, ecn, tcp_flags::ACK);
    let build = if segments > 1 { build.partial().gso(PAYLOAD as u16) } else { build };
    let frame = ready(pool, &build);
    let at = usize::from(pool.meta(&frame).layout.l4_offset) + 4;
    pool.bytes_mut(&frame)[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
    frame
}

fn ready(pool: &mut Pool, build: &Build<'_>) -> Frame {
    let frame = build.frame(pool).expect("a buffer");
    let (bytes, meta) = pool.parts_mut(&frame);
    meta.layout = parse(bytes).expect("well formed");
    meta.wire_bytes = segment::wire_bytes(bytes.len(), &meta.layout, &meta.offload);
    frame
}

/// Each packet of a queue, from its front: number of its first byte, and whether it is marked.
fn packets(pool: &mut Pool, queue: &mut Fifo) -> Vec<(u32, bool)> {
    let mut packets = Vec::new();
    while let Some(frame) = queue.pop(pool) {
        let (bytes, meta) = (pool.bytes(&frame), pool.meta(&frame));
        let sequence = be32(bytes, usize::from(meta.layout.l4_offset) + 4);
        let marked = bytes[15] & 3 == 3;
        packets.extend((0..segment::segments(&meta.layout, &meta.offload)).map(|n| (sequence + n * PAYLOAD, marked)));
        pool.free(frame);
    }
    packets
}

fn arrive(aqm: &mut Aqm, pool: &mut Pool, now: Instant, queue: &mut Fifo, frame: Frame) {
    aqm.arrive(pool, now, queue.wire_bytes(), frame, (queue, &mut |_, _, _| {}));
}

#[test]
fn red_decides_as_the_papers_formulas() {
    for (case, (gentle, bytes)) in [(false, false), (true, false), (false, true), (true, true)].into_iter().enumerate()
    {
        for weight_log in [1, 3, 6, 9] {
            let red = Red { gentle, bytes, weight_log, ..RED };
            let (mut average, mut model) = (Average::default(), model::Red::new(red, 1e9));
            let (mut random, mut queue, mut differ, mut marks) = (case as u64, 0u64, 0, 0);
            let mut now = Instant(1);
            for n in 0..50_000 {
                let (step, throw) = (dice(&mut random) % 3001, dice(&mut random));
                let wire = 84 + dice(&mut random) % 1455;
                queue = (queue + u64::from(step)).saturating_sub(1500).min(90_000);
                // Now and then the queue is empty for up to a millisecond.
                let empty = (n % 1000 == 999).then_some(now);
                now = now.plus_ns(if empty.is_some() { u64::from(dice(&mut random) % 1_000_000) } else { 10_000 });
                queue = if empty.is_some() { 0 } else { queue };
                let ours = average.arrives(&red, Rate(Rate::GBIT), (now, empty), (queue, wire), throw);
                let theirs = model.arrives(queue, wire, empty.map(|since| now.since(since)), throw);
                differ += u32::from(ours != theirs);
                marks += u32::from(theirs);
                if ours != theirs {
                    // The next marks are spread from this one, so the models go on from the same.
                    average.since = model.since;
                }
                let (a, b) = (average.average as f64 / 65_536.0, model.average);
                assert!((a - b).abs() <= 1.0 + b / 1000.0, "{red:?}: average {a}, not {b}");
            }
            assert!(marks > 300, "{red:?}: {marks} marks");
            assert!(differ <= 2 + marks / 500, "{red:?}: {differ} of {marks} differ");
        }
    }
}

#[test]
fn reds_signals_are_spread_evenly() {
    let red = Red { weight_log: 0, ..RED };
    // At a quarter of the way, 2.5 %: every 20th on average, and never more than 40 apart.
    let (mut average, mut random, mut since) = (Average::default(), 7, 0);
    let mut gaps = Vec::new();
    for n in 0..40_000u64 {
        since += 1;
        if average.arrives(&red, RATE, (Instant(n), None), (15_000, SEGMENT), dice(&mut random)) {
            gaps.push(std::mem::take(&mut since));
        }
    }
    let mean = 40_000 / gaps.len();
    assert!((19..=22).contains(&mean) && gaps.iter().all(|&gap| gap <= 40), "one in {mean}");
}

#[test]
fn reds_average_falls_while_all_that_comes_to_an_empty_queue_is_lost() {
    let (mut pool, mut queue) = (pool(), Fifo::default());
    let mut aqm = Aqm::new(Discipline::Red(Red { weight_log: 6, ..RED }), RATE, 1);
    let mut now = Instant(1);
    for n in 0..400 {
        let frame = frame(&mut pool, 1, 2, n * PAYLOAD);
        arrive(&mut aqm, &mut pool, now, &mut queue, frame);
    }
    while let Some(frame) = queue.pop(&mut pool) {
        let frame = aqm.leave(&mut pool, now, frame, (&mut queue, &mut |_, _, _| {})).expect("it leaves");
        pool.free(frame);
        now = now.plus_ns(1_000);
    }
    let average = |aqm: &Aqm| aqm.queue_state().average_bytes.unwrap();
    let before = average(&aqm);
    assert!(before > u64::from(RED.max_bytes), "{before}");
    // What cannot be marked comes from time to time: after 1 ms in which a thousand could leave.
    let mut comes = |aqm: &mut Aqm, after_ns| {
        now = now.plus_ns(after_ns);
        let frame = frame(&mut pool, 1, 0, 0);
        arrive(aqm, &mut pool, now, &mut queue, frame);
        let got_in = !queue.is_empty();
        assert!(!got_in || packets(&mut pool, &mut queue).len() == 1);
        got_in
    };
    assert!(!comes(&mut aqm, 1_000), "the average is as it was");
    assert!(!comes(&mut aqm, 10_000));
    assert!(average(&aqm) < before);
    assert!(comes(&mut aqm, 1_000_000), "{}", average(&aqm));
}

#[test]
fn the_presets_are_a_step_and_a_slow_average() {
    let mut random = 1;
    let mut signalled = |red: &Red, queue: u64, arrivals: u64| {
        let mut average = Average::default();
        (0..arrivals)
            .filter(|&n| average.arrives(red, RATE, (Instant(n), None), (queue, 1538), dice(&mut random)))
            .count()
    };
    assert_eq!(signalled(&Red::VCC_RED1, 89_000, 1000), 0);
    // The average of weight 1/2 is above the threshold after a few segments.
    assert!(signalled(&Red::VCC_RED1, 91_000, 1000) > 990);
    assert!((8..40).contains(&signalled(&Red::VCC_RED2, 89_999, 1000)), "about one in 50, and spread evenly");
    assert!(signalled(&Red::VCC_RED3, 89_999, 1000) > 800);
    assert_eq!(signalled(&Red::VCC_RED2, 29_999, 1000), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A super-frame is, to a discipline that looks at arrivals, the packets that it stands for.
    #[test]
    fn an_offloaded_frame_is_marked_as_its_packets(
        trains in proptest::collection::vec(1u32..45, 1..12),
        seed: u64,
        kind in 0usize..3,
    ) {
        let step = Step { mark_bytes: 20_000, at: At::Arrival };
        let discipline = [Discipline::Red(RED), Discipline::Step(step), Discipline::Red(Red { gentle: true, ..RED })][kind];
        let mut pool = pool();
        let mut whole = (Aqm::new(discipline, RATE, seed), Fifo::default());
        let mut single = (Aqm::new(discipline, RATE, seed), Fifo::default());
        let mut sequence = 0;
        for segments in trains {
            let one = frame(&mut pool, segments, 2, sequence);
            arrive(&mut whole.0, &mut pool, Instant(1), &mut whole.1, one);
            for _ in 0..segments {
                let one = frame(&mut pool, 1, 2, sequence);
                arrive(&mut single.0, &mut pool, Instant(1), &mut single.1, one);
                sequence += PAYLOAD;
            }
        }
        let (whole_bytes, single_bytes) = (whole.1.wire_bytes(), single.1.wire_bytes());
        prop_assert_eq!(whole_bytes, single_bytes);
        let (a, b) = (packets(&mut pool, &mut whole.1), packets(&mut pool, &mut single.1));
        prop_assert_eq!(whole.0.stats().marks, a.iter().filter(|(_, marked)| *marked).count() as u64);
        prop_assert_eq!(a, b);
        prop_assert_eq!(pool.in_use(), 0);
    }

    /// Nothing is lost or made up, and order is kept, whatever the discipline: what does not leave
    /// is counted.
    #[test]
    fn what_arrives_leaves_or_is_counted(
        trains in proptest::collection::vec((1u32..45, 0u8..4, 0u64..3_000_000), 1..40),
        seed: u64,
        kind in 0usize..7,
        few in any::<bool>(),
    ) {
        let step = |at| Discipline::Step(Step { mark_bytes: 5_000, at });
        let discipline = [
            Discipline::DropTail,
            Discipline::Codel,
            Discipline::Red(RED),
            step(At::Arrival),
            step(At::Departure),
            Discipline::Sojourn { target_ns: 100_000 },
            Discipline::Auto,
        ][kind];
        // With few buffers, some cuts fail.
        let mut pool = if few { Pool::new(PoolLimits { small: 2, medium: 2, large: 60 }) } else { pool() };
        let (mut aqm, mut queue, mut sequence) = (Aqm::new(discipline, RATE, seed), Fifo::default(), 0);
        let (mut now, mut came, mut left) = (Instant(1), 0, Vec::new());
        let mut passed = Fifo::default();
        for (segments, ecn, pause_ns) in trains {
            now = now.plus_ns(pause_ns);
            if pool.available().large == 0 {
                break;
            }
            let one = frame(&mut pool, segments, ecn, sequence);
            (came, sequence) = (came + u64::from(segments), sequence + segments * PAYLOAD);
            arrive(&mut aqm, &mut pool, now, &mut queue, one);
            if pause_ns % 2 == 0 && let Some(one) = queue.pop(&mut pool)
                && let Some(one) = aqm.leave(&mut pool, now, one, (&mut queue, &mut |_, _, _| {}))
            {
                passed.push(&mut pool, one);
                left.extend(packets(&mut pool, &mut passed));
            }
        }
        while let Some(one) = queue.pop(&mut pool) {
            if let Some(one) = aqm.leave(&mut pool, now, one, (&mut queue, &mut |_, _, _| {})) {
                passed.push(&mut pool, one);
                left.extend(packets(&mut pool, &mut passed));
            }
        }
        prop_assert_eq!(left.len() as u64 + aqm.stats().dropped.total(), came);
        prop_assert!(left.windows(2).all(|two| two[0].0 < two[1].0));
        prop_assert_eq!(aqm.stats().dropped.ect, 0);
        prop_assert_eq!(pool.in_use(), 0);
    }
}

#[test]
fn red_loses_what_cannot_be_marked_off_the_tail() {
    let certain = Red { probability_ppm: 1_000_000, weight_log: 0, min_bytes: 10_000, max_bytes: 10_001, ..RED };
    let (mut pool, mut queue) = (pool(), Fifo::default());
    let mut aqm = Aqm::new(Discipline::Red(certain), RATE, 1);
    let mut lost = 0;
    for (segments, sequence) in [(20, 0), (1, 20 * PAYLOAD)] {
        let one = frame(&mut pool, segments, 0, sequence);
        let waiting = queue.wire_bytes();
        aqm.arrive(&mut pool, Instant(1), waiting, one, (&mut queue, &mut |_, _, wire| lost += wire));
    }
    // Ten segments are 10 780 bytes: what comes then is lost.
    assert_eq!((queue.wire_bytes(), lost), (u64::from(10 * SEGMENT), 11 * SEGMENT));
    let syn = ready(&mut pool, &tcp(0, 0, tcp_flags::SYN));
    let ack = ready(&mut pool, &tcp(0, 0, tcp_flags::ACK));
    for one in [syn, ack] {
        arrive(&mut aqm, &mut pool, Instant(1), &mut queue, one);
    }
    assert_eq!(aqm.stats().dropped, Lost { syn: 1, ack: 1, other: 11, ect: 0 });
    assert_eq!(packets(&mut pool, &mut queue).len(), 10);
}

#[test]
fn a_step_and_a_wait_spare_what_cannot_be_marked() {
    let step = |at| Discipline::Step(Step { mark_bytes: 1000, at });
    for discipline in [step(At::Arrival), step(At::Departure), Discipline::Sojourn { target_ns: 1 }] {
        let (mut pool, mut queue) = (pool(), Fifo::default());
        let mut aqm = Aqm::new(discipline, RATE, 1);
        for n in 0..4 {
            let one = frame(&mut pool, 10, 0, n);
            arrive(&mut aqm, &mut pool, Instant(1), &mut queue, one);
        }
        while let Some(one) = queue.pop(&mut pool) {
            let left = aqm.leave(&mut pool, Instant(1_000_000), one, (&mut queue, &mut |_, _, _| {}));
            let left = left.expect("nothing is lost");
            assert_eq!(pool.meta(&left).wire_bytes, 10 * SEGMENT);
            pool.free(left);
        }
        assert_eq!(*aqm.stats(), AqmStats::default(), "{discipline:?}");
    }
}

/// What of four UDP GSO packets of ten segments, that came at once, is marked where they leave one
/// after the other at [`RATE`].
fn marked_in_turn(discipline: Discipline) -> Vec<bool> {
    let (mut pool, mut queue, mut passed) = (pool(), Fifo::default(), Fifo::default());
    let mut aqm = Aqm::new(discipline, RATE, 1);
    for n in 0..4 {
        let one = frame(&mut pool, 10, 2, n * 10 * PAYLOAD);
        arrive(&mut aqm, &mut pool, Instant(1), &mut queue, one);
    }
    let mut now = Instant(1);
    while let Some(one) = queue.pop(&mut pool) {
        if let Some(left) = aqm.leave(&mut pool, now, one, (&mut queue, &mut |_, _, _| {})) {
            now = now.plus_ns(RATE.time_ns(u64::from(pool.meta(&left).wire_bytes)));
            passed.push(&mut pool, left);
        }
    }
    packets(&mut pool, &mut passed).into_iter().map(|(_, marked)| marked).collect()
}

#[test]
fn what_leaves_is_cut_where_the_mark_falls() {
    let each_ns = RATE.time_ns(u64::from(SEGMENT));
    // The 14th waited for 13 segments' time: one nanosecond too long.
    let late = marked_in_turn(Discipline::Sojourn { target_ns: 13 * each_ns - 1 });
    assert_eq!(late, (0..40).map(|n| n >= 13).collect::<Vec<_>>());
    // Behind the 25th there are 15.
    let step = Step { mark_bytes: 15 * SEGMENT, at: At::Departure };
    assert_eq!(marked_in_turn(Discipline::Step(step)), (0..40).map(|n| n < 24).collect::<Vec<_>>());
}

#[test]
fn a_signal_of_codel_marks_one_packet() {
    let (mut pool, mut queue, mut passed) = (pool(), Fifo::default(), Fifo::default());
    let mut aqm = Aqm::new(Discipline::Codel, RATE, 1);
    for n in 0..4 {
        let one = frame(&mut pool, 40, 2, n * 40 * PAYLOAD);
        arrive(&mut aqm, &mut pool, Instant(1), &mut queue, one);
    }
    for ms in [10, 40] {
        let one = queue.pop(&mut pool).expect("a frame");
        let left = aqm.leave(&mut pool, Instant(ms * 1_000_000), one, (&mut queue, &mut |_, _, _| {}));
        passed.push(&mut pool, left.expect("nothing is lost"));
    }
    let marked: Vec<bool> = packets(&mut pool, &mut passed).into_iter().map(|(_, marked)| marked).collect();
    assert_eq!(marked, (0..41).map(|n| n == 40).collect::<Vec<_>>(), "the first of the second frame alone");
    queue.clear(&mut pool);
}

#[test]
fn a_connection_begins_whatever_auto_signals() {
    let (mut pool, mut queue) = (pool(), Fifo::default());
    let mut aqm = Aqm::new(Discipline::Auto, RATE, 1);
    // A frame is always there, so that the queue never runs dry.
    let first = frame(&mut pool, 1, 0, 0);
    arrive(&mut aqm, &mut pool, Instant(1), &mut queue, first);
    let mut ms = 0;
    let mut leave = |pool: &mut Pool, build: &Build<'_>, frames: u32| {
        let mut left = 0;
        for _ in 0..frames {
            ms += 1;
            let one = ready(pool, build);
            arrive(&mut aqm, pool, Instant(ms * 1_000_000), &mut queue, one);
            let one = queue.pop(pool).expect("a frame");
            if let Some(one) = aqm.leave(pool, Instant(ms * 1_000_000), one, (&mut queue, &mut |_, _, _| {})) {
                pool.free(one);
                left += 1;
            }
        }
        left
    };
    // All waited too long: of what cannot be marked a quarter is lost.
    leave(&mut pool, &tcp(1, 0, tcp_flags::ACK), 20_000);
    let data = leave(&mut pool, &tcp(1, 0, tcp_flags::ACK), 2000);
    assert!((1400..1600).contains(&data), "{data} of 2000 left");
    // The frame that waited when they began was data.
    assert!(leave(&mut pool, &tcp(0, 0, tcp_flags::SYN), 2000) >= 1999);
}

#[test]
fn auto_loses_nothing_of_a_queue_that_has_been_short_for_long() {
    for mbit in [10, 1_000, 10_000, 100_000] {
        let mut auto = Auto::new(Rate(mbit * 1_000_000));
        let mut leave = |wait_ns| (0..100_000).for_each(|n| _ = auto.leaves(Instant(n), wait_ns));
        leave(10_000_000);
        leave(0);
        assert!(!auto.drops(0), "at {mbit} Mbit/s");
    }
}

/// A queue of `auto` at so many Mbit/s in which much waited too long, and how it goes on with
/// frames that cannot be marked, each so long behind the last: how many of them it loses.
fn lost_after(mbit: u64, pause_ns: u64, frames: u32) -> u64 {
    let (mut pool, mut queue) = (pool(), Fifo::default());
    let mut aqm = Aqm::new(Discipline::Auto, Rate(mbit * 1_000_000), 1);
    let mut now = Instant(1);
    // All waited for 10 ms, so of what cannot be marked a quarter is lost.
    for _ in 0..10_000 {
        let one = frame(&mut pool, 1, 2, 0);
        arrive(&mut aqm, &mut pool, now, &mut queue, one);
        now = now.plus_ns(10_000_000);
        let one = queue.pop(&mut pool).expect("a frame");
        let one = aqm.leave(&mut pool, now, one, (&mut queue, &mut |_, _, _| {})).expect("it is marked");
        pool.free(one);
    }
    for _ in 0..frames {
        now = now.plus_ns(pause_ns);
        let one = frame(&mut pool, 1, 0, 0);
        if aqm.pass(&pool, now, &one) {
            pool.free(one);
            continue;
        }
        arrive(&mut aqm, &mut pool, now, &mut queue, one);
        let one = queue.pop(&mut pool).expect("a frame");
        if let Some(one) = aqm.leave(&mut pool, now, one, (&mut queue, &mut |_, _, _| {})) {
            pool.free(one);
        }
    }
    aqm.stats().dropped.total()
}

#[test]
fn auto_loses_nothing_of_an_empty_queue_behind_a_pause() {
    for mbit in [10, 1_000, 100_000] {
        assert_eq!(lost_after(mbit, 1_000_000_000, 1000), 0, "at {mbit} Mbit/s");
        // However rare frames are: the rate falls as time passes, not as frames do.
        for pause_ns in [1_000_000, 9_000_000] {
            let lost = lost_after(mbit, pause_ns, 1000);
            assert!(lost <= 10, "{lost} at {mbit} Mbit/s, {pause_ns} ns apart");
        }
    }
}

#[test]
fn a_pause_of_the_senders_own_does_not_raise_autos_threshold() {
    // Bursts that wait up to a millisecond, and a pause that is longer than any wait.
    for pause_ns in [20_000_000, 1_000_000_000] {
        let mut auto = Auto::new(Rate(Rate::GBIT));
        let mut now = Instant(1);
        for _ in 0..30 {
            for n in 0..100 {
                now = now.plus_ns(12_304);
                auto.leaves(now, n * 10_000);
            }
            let since = now;
            now = now.plus_ns(pause_ns);
            auto.arrives_dry(now, since);
        }
        assert_eq!(auto.target_ns(), auto::ROUND_TRIP_NS, "{pause_ns}");
    }
    // But marks that leave a link idle for a part of each round trip do.
    let mut auto = Auto::new(Rate(Rate::GBIT));
    let mut now = Instant(1);
    for _ in 0..100 {
        for n in 0..50 {
            now = now.plus_ns(12_304);
            auto.leaves(now, n * 10_000);
        }
        let since = now;
        now = now.plus_ns(100_000);
        auto.arrives_dry(now, since);
    }
    assert!(auto.target_ns() > auto::ROUND_TRIP_NS);
}
