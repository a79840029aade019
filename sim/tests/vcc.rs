//! Virtual congestion control and guests that keep to the rules.

use datapath::aqm::{At, Discipline, Red, Step};
use datapath::units::Rate;
use datapath::vcc::{Mode, Settings};
use sim::star::{Guest, Seen, Sender, Star, jain};
use sim::tcp::congestion::Algorithm;

const MS: u64 = 1_000_000;

/// Queues that mark, that mark all above a step, and that are short and lose segments, too.
const QUEUES: [(Discipline, u32); 5] = {
    const STEP: Discipline = Discipline::Step(Step { mark_bytes: 30_000, at: At::Arrival });
    [
        (Discipline::Red(Red::VCC_RED1), 1_000_000),
        (Discipline::Red(Red::VCC_RED2), 400_000),
        (Discipline::Auto, 1_000_000),
        (STEP, 60_000),
        (STEP, 36_000),
    ]
};

/// So many natives of a tenant with `vcc`, policed or not, in the second behind the first half.
fn natives(polices: bool, one: Sender, queue: (Discipline, u32), (senders, seed): (usize, u64)) -> Seen {
    let algorithm = one.algorithm;
    let mode = if algorithm == Algorithm::Dctcp { Mode::Dctcp } else { Mode::Echo };
    let star = Star {
        rate: Rate(100_000_000),
        delay_ns: MS / 4,
        queue,
        service: Settings::default(),
        of_natives: Settings { polices, ..mode.into() },
        senders: vec![one; senders],
        begin_ns: 200 * MS,
        seed,
    };
    star.run(500 * MS, 1000 * MS).expect("it is safe")
}

/// Each of what natives send is where it is without: none was taken for one that does not heed
/// marks, or a window would have been lowered.
#[test]
fn natives_that_keep_to_the_rules_do_not_notice_that_they_are_policed() {
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno, Algorithm::Dctcp] {
        let one = Sender::honest(Guest::Native, algorithm);
        for queue in QUEUES {
            for many in [(2, 1), (10, 2), (30, 3)] {
                let [free, policed] = [false, true].map(|polices| natives(polices, one, queue, many));
                assert_eq!(free, policed, "{algorithm:?}, {queue:?}, {many:?}");
            }
        }
    }
}

/// The same where they begin one connection after the other: what one did in its few rounds counts
/// for the next.
#[test]
fn nor_do_they_where_their_connections_are_short() {
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno, Algorithm::Dctcp] {
        for each in [100_000, 1_000_000, 5_000_000] {
            let one = Sender { each: Some(each), ..Sender::honest(Guest::Native, algorithm) };
            for queue in QUEUES {
                for many in [(2, 1), (10, 2)] {
                    let [free, policed] = [false, true].map(|polices| natives(polices, one, queue, many));
                    assert_eq!(free, policed, "{algorithm:?}, {each} bytes, {queue:?}, {many:?}");
                }
            }
        }
    }
}

/// A queue that marks all that finds another packet in it: windows are at their floor, each has its
/// part of a full link, nothing is lost and nobody waits for a timer.
#[test]
fn where_all_is_marked_translated_guests_share_the_link_and_none_stands_still() {
    let red = Red { min_bytes: 1, max_bytes: 2, ..Red::VCC_RED1 };
    for mode in [Mode::Echo, Mode::Dctcp] {
        let star = Star {
            rate: Rate(100_000_000),
            delay_ns: MS / 4,
            queue: (Discipline::Red(red), 1_000_000),
            service: mode.into(),
            of_natives: Settings::default(),
            senders: vec![Sender::honest(Guest::Virtual, Algorithm::Cubic); 10],
            begin_ns: 200 * MS,
            seed: 1,
        };
        let seen = star.run(500 * MS, 1000 * MS).expect("it is safe");
        let rates: Vec<f64> = (0..10).map(|sender| seen.bps(sender)).collect();
        assert_eq!((seen.timeouts, seen.retransmits, seen.lost), (0, 0, 0), "{mode:?}");
        assert!(seen.used(star.rate) > 0.95 && jain(&rates) > 0.9, "{mode:?}: {} {rates:?}", seen.used(star.rate));
    }
}

/// Of a queue with room for `room` segments, one of which is sent in each step, and to which pairs
/// come at random times, `offered` segments in a step: the part of the link that is used, and the
/// part of the segments that is lost.
fn pairs_at_random(offered: f64, room: usize) -> (f64, f64) {
    let mut pairs = vec![(-offered / 2.0).exp()];
    for k in 1..20 {
        pairs.push(pairs[k - 1] * offered / 2.0 / k as f64);
    }
    // How likely it is that so many wait at the start of a step, until that no longer moves.
    let mut waiting = vec![1.0 / (room + 1) as f64; room + 1];
    for _ in 0..20_000 {
        let mut next = vec![0.0; room + 1];
        for (before, likely) in waiting.iter().enumerate() {
            for (k, pair) in pairs.iter().enumerate() {
                next[(before.saturating_sub(1) + 2 * k).min(room)] += likely * pair;
            }
        }
        waiting = next;
    }
    let used = 1.0 - waiting[0];
    (used, 1.0 - used / offered)
}

/// What `docs/results/vcc-star.md` compares 256 senders with.
#[test]
fn pairs_that_come_at_random_cannot_fill_a_link_and_lose_nothing() {
    for (offered, expected) in [(0.96, (0.956, 0.004)), (1.0, (0.983, 0.017)), (1.01, (0.988, 0.022))] {
        let (used, lost) = pairs_at_random(offered, 59);
        assert!((used - expected.0).abs() < 6e-4 && (lost - expected.1).abs() < 6e-4, "{offered}: {used}, {lost}");
    }
}
