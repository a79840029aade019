//! When a lane's management signals.

use super::*;
use crate::frame::PoolLimits;
use crate::wire::transport::TCP_FLAGS;
use crate::wire::{L4, tcp_flags};

const MS: u64 = 1_000_000;

/// How many of the frames that went into a lane at once its management took, where one leaves each
/// `every_ns` and another comes. They have `len` bytes, take `wire` on the wire, and are TCP
/// segments with these flags, or UDP.
fn taken(waiting: u32, every_ns: u64, (len, wire): (usize, u32), flags: Option<u8>) -> u64 {
    let mut pool = Pool::new(PoolLimits { small: 1000, medium: 1000, large: 20 });
    let (mut lane, mut losses, mut flows) = (Lane::new(1 << 24), Losses::default(), Flows::new(1));
    let among = Among { quantum: 1538, ahead: 0, tenant: 0 };
    flows.reserve(1);
    let frame = |pool: &mut Pool| {
        let frame = pool.alloc(len).expect("a buffer");
        let (bytes, meta) = pool.parts_mut(&frame);
        (meta.wire_bytes, meta.layout.l4_offset) = (wire, 34);
        meta.layout.l4 = if flags.is_some() { L4::Tcp } else { L4::Udp };
        bytes[34 + TCP_FLAGS] = flags.unwrap_or(0);
        frame
    };
    let mut now = Instant(MS);
    for n in 0..waiting + 1000 {
        let one = frame(&mut pool);
        lane.enqueue(&mut pool, now, one, (&mut flows, among), &mut losses).expect("room");
        if n >= waiting {
            now = now.plus_ns(every_ns);
            let served = lane.dequeue(&mut pool, now, 1538, &mut flows, &mut losses).expect("a frame");
            pool.free(served.frame);
        }
    }
    lane.aqm_drops()
}

#[test]
fn a_segment_that_is_alone_is_not_lost_to_the_queues_management() {
    let (full, short, ack) = ((1514, 1538), (200, 224), tcp_flags::ACK);
    assert!(taken(40, MS / 2, full, Some(ack)) > 10);
    assert!(taken(200, MS / 2, short, None) > 10, "UDP");
    let all = taken(200, MS / 2, short, None);
    let half = all / 4..=all * 3 / 4;
    assert!(half.contains(&taken(200, MS / 2, short, Some(ack))), "short ones alone, every second");
    assert_eq!(taken(200, MS / 2, short, Some(tcp_flags::SYN)), 0, "beginnings");
}

#[test]
fn a_few_segments_on_a_slow_link_are_no_standing_queue() {
    let full = (1514, 1538);
    assert_eq!(taken(14, MS / 2, full, None), 0, "7 ms at 25 Mbit/s");
    assert!(taken(30, MS / 2, full, None) > 10, "15 ms");
    assert!(taken(14, 2 * MS, full, None) > 0, "28 ms at 6 Mbit/s");
}

#[test]
fn a_lane_that_has_just_filled_is_not_stuck_whatever_the_clock_says() {
    for begin in [1, MS, 1 << 52, (1 << 52) + MS, u64::MAX - 100 * MS] {
        let mut lane = Lane::new(1 << 24);
        lane.fills(Instant(begin));
        let is_stuck = [1, 10 * MS, 60 * MS].map(|later| lane.is_stuck(Instant(begin + later)));
        assert_eq!(is_stuck, [false, false, true], "{begin}");
    }
}
