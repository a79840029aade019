use super::*;
use crate::aqm::{At, Step};
use crate::frame::PoolLimits;
use crate::wire::{Mac, build, parse};

const QUICK: LinkConfig = LinkConfig {
    rate: Rate(Rate::GBIT),
    delay_ns: 50_000,
    queue_bytes: 256 << 10,
    discipline: Discipline::DropTail,
    loss_ppm: 0,
    seed: 1,
};

fn pool() -> Pool {
    Pool::new(PoolLimits { small: 4096, medium: 0, large: 16 })
}

fn frame(pool: &mut Pool, len: usize) -> Frame {
    pool.alloc(len).expect("the pool is large enough")
}

/// Polls to the end; the arrivals with side and time.
fn drain(link: &mut Link, pool: &mut Pool) -> Vec<(Side, Instant, usize)> {
    let mut arrivals = Vec::new();
    while let Some(at) = link.poll_timeout() {
        while let Some((side, frame)) = link.poll(pool, at) {
            arrivals.push((side, at, pool.len(&frame)));
            pool.free(frame);
        }
    }
    arrivals
}

#[test]
fn a_frame_takes_its_serialisation_and_the_delay() {
    let (mut pool, mut link) = (pool(), Link::new(QUICK));
    let sent = frame(&mut pool, 1514);
    link.send(&mut pool, Instant(1000), Side::A, sent);
    // 1538 bytes at 1 Gbit/s are 12 304 ns.
    assert_eq!(drain(&mut link, &mut pool), [(Side::B, Instant(1000 + 12_304 + 50_000), 1514)]);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn short_frames_are_padded_and_directions_are_independent() {
    let (mut pool, mut link) = (pool(), Link::new(QUICK));
    for side in Side::ALL {
        let sent = frame(&mut pool, 42);
        link.send(&mut pool, Instant(0), side, sent);
    }
    // 84 bytes are 672 ns.
    let arrival = Instant(672 + 50_000);
    assert_eq!(drain(&mut link, &mut pool), [(Side::B, arrival, 42), (Side::A, arrival, 42)]);
}

#[test]
fn pacing_keeps_what_is_left_of_a_nanosecond() {
    // 84 bytes at 7 Gbit/s are 96 ns exactly; at 7 Gbit/s and 1 bit they are not, nor at 3.
    for bps in [3_000_000_000, 7_000_000_001, 999_999_937, 64_000] {
        let mut pool = pool();
        let mut link = Link::new(LinkConfig { rate: Rate(bps), delay_ns: 0, ..QUICK });
        for _ in 0..1000 {
            let sent = frame(&mut pool, 60);
            link.send(&mut pool, Instant(0), Side::A, sent);
        }
        let arrivals = drain(&mut link, &mut pool);
        for (i, &(_, at, _)) in arrivals.iter().enumerate() {
            let exact = (84 * (i as u128 + 1) * 8_000_000_000).div_ceil(u128::from(bps));
            assert_eq!(u128::from(at.0), exact, "frame {i} at {bps} bit/s");
        }
        assert_eq!(arrivals.len(), 1000);
    }
}

#[test]
fn a_late_caller_loses_no_rate() {
    let (mut pool, mut link) = (pool(), Link::new(QUICK));
    for _ in 0..10 {
        let sent = frame(&mut pool, 1514);
        link.send(&mut pool, Instant(0), Side::A, sent);
    }
    let late = Instant(10 * 12_304 + 50_000);
    let mut arrived = 0;
    while let Some((_, frame)) = link.poll(&mut pool, late) {
        pool.free(frame);
        arrived += 1;
    }
    assert_eq!(arrived, 10);
}

#[test]
fn the_queue_is_bounded() {
    let (mut pool, mut link) = (pool(), Link::new(LinkConfig { queue_bytes: 10 * 1538, ..QUICK }));
    for _ in 0..30 {
        let sent = frame(&mut pool, 1514);
        link.send(&mut pool, Instant(0), Side::A, sent);
    }
    // The bound holds the frame being sent, whose bytes are all left yet.
    let stats = link.stats(Side::A);
    assert_eq!((stats.drops, stats.backlog_bytes, stats.backlog_max_bytes), (20, 9 * 1538, 9 * 1538));
    assert_eq!((pool.in_use(), link.frames()), (10, 10));
    assert_eq!(drain(&mut link, &mut pool).len(), 10);
    let stats = link.stats(Side::A);
    assert_eq!((stats.frames, stats.bytes, stats.backlog_bytes), (10, 15_380, 0));
}

#[test]
fn a_change_of_rate_applies_to_what_waits() {
    let (mut pool, mut link) = (pool(), Link::new(LinkConfig { delay_ns: 0, ..QUICK }));
    for _ in 0..2 {
        let sent = frame(&mut pool, 1514);
        link.send(&mut pool, Instant(0), Side::A, sent);
    }
    link.set_rate(&mut pool, Instant(100), Rate(Rate::GBIT / 10));
    let arrivals = drain(&mut link, &mut pool);
    assert_eq!(arrivals, [(Side::B, Instant(12_304), 1514), (Side::B, Instant(12_304 + 123_040), 1514)]);
}

#[test]
fn a_rate_of_zero_holds_what_waits_until_it_returns() {
    let (mut pool, mut link) = (pool(), Link::new(LinkConfig { delay_ns: 0, ..QUICK }));
    link.set_rate(&mut pool, Instant(0), Rate(0));
    let sent = frame(&mut pool, 1514);
    link.send(&mut pool, Instant(5), Side::A, sent);
    assert_eq!(link.poll_timeout(), None);
    link.set_rate(&mut pool, Instant(1_000_000), Rate(Rate::GBIT));
    assert_eq!(drain(&mut link, &mut pool), [(Side::B, Instant(1_012_304), 1514)]);
}

#[test]
fn loss_is_as_asked_and_repeats_with_the_seed() {
    let run = |seed| {
        let mut pool = pool();
        let mut link = Link::new(LinkConfig { loss_ppm: 100_000, seed, ..QUICK });
        for i in 0..20_000 {
            let sent = frame(&mut pool, 60);
            link.send(&mut pool, Instant(i * 1000), Side::A, sent);
            while let Some((_, frame)) = link.poll(&mut pool, Instant(i * 1000)) {
                pool.free(frame);
            }
        }
        let arrived: Vec<_> = drain(&mut link, &mut pool);
        assert_eq!(pool.in_use(), 0);
        (link.stats(Side::A).losses, arrived)
    };
    let (losses, arrived) = run(7);
    // 2000 expected; five standard deviations are 212.
    assert!((1788..=2212).contains(&losses), "{losses} lost");
    assert_eq!((losses, arrived), run(7));
    assert_ne!(losses, run(8).0);
}

#[test]
fn nothing_passes_a_cable_that_is_pulled_out() {
    let (mut pool, mut link) = (pool(), Link::new(QUICK));
    link.set_loss(&mut pool, Instant(0), CERTAIN_PPM);
    let sent = frame(&mut pool, 60);
    link.send(&mut pool, Instant(0), Side::B, sent);
    assert!(drain(&mut link, &mut pool).is_empty());
    assert_eq!((pool.in_use(), link.stats(Side::B).losses), (0, 1));
}

/// An offloaded TCP frame of ten segments of 1000 bytes, which may be marked.
fn train(pool: &mut Pool) -> Frame {
    let macs = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let frame = build::eth(macs.0, macs.1)
        .ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
        .tos(2)
        .tcp(1, 2, 0)
        .payload(vec![0; 10_000])
        .partial()
        .gso(1000)
        .frame(pool)
        .expect("the pool is large enough");
    let (bytes, meta) = pool.parts_mut(&frame);
    meta.layout = parse(bytes).expect("well formed");
    frame
}

/// Wire bytes of one segment of a UDP GSO packet.
const SEGMENT: u32 = 1000 + 54 + 24;

#[test]
fn a_train_loses_its_tail_to_a_full_queue() {
    let (mut pool, mut link) = (pool(), Link::new(LinkConfig { queue_bytes: 13 * SEGMENT + 500, ..QUICK }));
    for _ in 0..3 {
        let sent = train(&mut pool);
        link.send(&mut pool, Instant(0), Side::A, sent);
    }
    let arrivals: Vec<usize> = drain(&mut link, &mut pool).iter().map(|&(_, _, len)| len).collect();
    assert_eq!(arrivals, [10_054, 3_054]);
    assert_eq!((link.stats(Side::A).drops, link.stats(Side::A).bytes), (17, u64::from(13 * SEGMENT)));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_long_queue_marks_what_can_be_marked() {
    let discipline = Discipline::Step(Step { mark_bytes: 15 * SEGMENT, at: At::Arrival });
    let (mut pool, mut link) = (pool(), Link::new(LinkConfig { discipline, ..QUICK }));
    for _ in 0..4 {
        let sent = train(&mut pool);
        link.send(&mut pool, Instant(0), Side::A, sent);
    }
    let mut marked = Vec::new();
    while let Some(at) = link.poll_timeout() {
        while let Some((_, frame)) = link.poll(&mut pool, at) {
            marked.push(pool.bytes(&frame)[15] & 3 == 3);
            pool.free(frame);
        }
    }
    // The second UDP GSO packet is cut where the queue crosses the threshold.
    assert_eq!(marked, [false, false, true, true, true]);
    assert_eq!(link.stats(Side::A).queue.stats.marks, 24);
}

#[test]
fn a_train_loses_single_segments_on_the_wire() {
    let (mut pool, mut link) = (pool(), Link::new(LinkConfig { loss_ppm: 100_000, ..QUICK }));
    let (mut bytes, mut whole) = (0, 0);
    for i in 0..1000u64 {
        let at = Instant(i * 1_000_000);
        let sent = train(&mut pool);
        link.send(&mut pool, at, Side::A, sent);
        for (_, _, len) in drain(&mut link, &mut pool) {
            bytes += len as u64 - 54;
            whole += u32::from(len == 10_054);
        }
    }
    let losses = link.stats(Side::A).losses;
    assert_eq!(bytes, (10_000 - losses) * 1000, "what was not lost arrived");
    // 1000 expected, standard deviation 30; and 0.9^10 of the UDP GSO packets come through whole:
    // 349, standard deviation 15.
    assert!((850..1150).contains(&losses) && (274..424).contains(&whole), "{losses} lost, {whole} whole");
    assert_eq!(pool.in_use(), 0);
}
