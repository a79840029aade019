//! What a sample says of links that are slow, or of which much is held back.

use super::*;
use datapath::wire::Mac;

fn directory(ingress: u64, headroom_ppm: u32) -> Directory {
    let mut directory = Directory::default();
    let ingress = Rate(ingress);
    directory.link = Some(AccessLink { ingress, egress: ingress, headroom_ppm, longest: 1538 });
    directory
}

fn arrival(wire_bytes: u64) -> Arrival {
    Arrival { to: EndpointId(0), from: Some(Mac([2, 0, 0, 0, 0, 1])), wire_bytes, dropped_bytes: 0 }
}

#[test]
fn with_half_of_a_link_held_back_an_idle_one_is_not_full_and_a_full_one_is() {
    for ingress in [333_333_333, 1_000_000_000] {
        for (bytes, is_full) in [(0, false), (ingress / 8000 / 4, false), (ingress / 8000, true)] {
            let mut controller = Controller::default();
            let now = Instant(SAMPLE_NS);
            let (mut post, mut counters) = (Post::new(1), Counters::default());
            let directory = directory(ingress, 500_000);
            controller.sample(now, SAMPLE_NS, &[arrival(bytes)], &directory, &mut post, &mut counters);
            assert_eq!(controller.state.full_at.is_some(), is_full, "{bytes} bytes of {ingress} bit/s");
        }
    }
}

#[test]
fn what_arrives_over_a_slow_link_is_counted_whole() {
    for mbit in [1, 2, 5, 10, 30, 100] {
        let (mut controller, directory) = (Controller::default(), directory(mbit * 1_000_000, 100_000));
        let (mut post, mut counters) = (Post::new(1), Counters::default());
        let (mut due, mut sum, samples) = (0, 0, 2000);
        for ms in 1..=2 * samples {
            let now = Instant(ms * SAMPLE_NS);
            let mut bytes = 0;
            while due < now.0 {
                (due, bytes) = (due + 1538 * 8000 / mbit, bytes + 1538);
            }
            let arrivals = [arrival(bytes)];
            let arrivals = if bytes > 0 { &arrivals[..] } else { &[] };
            controller.sample(now, SAMPLE_NS, arrivals, &directory, &mut post, &mut counters);
            if ms > samples {
                sum += controller.contention(now).arriving.0;
            }
        }
        let part = sum / samples / mbit;
        assert!((990_000..1_010_000).contains(&part), "{part} millionths of {mbit} Mbit/s");
    }
}

#[test]
fn what_a_stall_piled_up_is_not_the_rate_of_a_sample() {
    let (mut controller, directory) = (Controller::default(), directory(10_000_000, 100_000));
    let (mut post, mut counters) = (Post::new(1), Counters::default());
    let piled = [arrival(16 * 1538)];
    controller.sample(Instant(SAMPLE_NS), SAMPLE_NS, &piled, &directory, &mut post, &mut counters);
    assert!(controller.contention(Instant(SAMPLE_NS)).arriving.0 < 10_000_000);
}
