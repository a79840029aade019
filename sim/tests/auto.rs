//! `auto` and the round trip that it was made for.

use datapath::aqm::Discipline;
use datapath::units::Rate;
use datapath::vcc::{Mode, Settings};
use sim::star::{Guest, Sender, Star};
use sim::tcp::congestion::Algorithm;

const MS: u64 = 1_000_000;
const RATE: Rate = Rate(Rate::GBIT);
const FULL_FRAME: u64 = 1538;

/// The part of a link that one flow uses, whose round trip is so long without queues.
fn used(round_trip_ns: u64, guest: Guest) -> f64 {
    let star = Star {
        rate: RATE,
        // Two links each way, and what a frame takes on them.
        delay_ns: (round_trip_ns / 2 - 2 * RATE.time_ns(FULL_FRAME)) / 2,
        queue: (Discipline::Auto, 4_000_000),
        service: Mode::Echo.into(),
        of_natives: Settings::default(),
        senders: vec![Sender::honest(guest, Algorithm::Cubic)],
        begin_ns: 0,
        seed: 1,
    };
    star.run(1000 * MS, 1000 * MS).expect("it is safe").used(RATE)
}

#[test]
fn one_flow_fills_a_link_of_auto_up_to_a_round_trip_of_200_us() {
    for guest in [Guest::Virtual, Guest::Native] {
        for us in [100, 200] {
            let used = used(1000 * us, guest);
            assert!(used >= 0.99, "{guest:?}, {us} us: {used}");
        }
    }
}
