//! The pool: which buffer a frame gets, and what compacting moves.

use super::*;

/// The longest frames that small and medium buffers hold.
const SHORT: usize = SMALL - HEADROOM;
const MIDDLE: usize = MEDIUM - HEADROOM;

#[test]
fn a_frame_gets_the_smallest_buffer_that_is_left_and_holds_it() {
    let mut pool = Pool::new(PoolLimits { small: 2, medium: 2, large: 2 });
    let mut frames = Vec::new();
    for (len, size) in [(SHORT, SMALL), (SHORT + 1, MEDIUM), (MIDDLE + 1, LARGE), (0, SMALL), (60, MEDIUM), (60, LARGE)]
    {
        assert_eq!(pool.class_for(len).map(Class::bytes), Some(size as u32), "{len}");
        let frame = pool.alloc(len).unwrap();
        assert_eq!((pool.len(&frame), pool.truesize(&frame)), (len, size as u32));
        frames.push(frame);
    }
    assert_eq!(pool.available(), PoolLimits { small: 0, medium: 0, large: 0 });
    assert!(pool.alloc(1).is_none() && pool.class_for(1).is_none());
    assert_eq!(pool.in_use(), 6);
    frames.drain(..).for_each(|frame| pool.free(frame));
    assert_eq!((pool.in_use(), pool.available()), (0, pool.limits()));
    assert!(pool.alloc(MAX_FRAME + 1).is_none() && pool.class_for(MAX_FRAME + 1).is_none());
    let longest = pool.alloc(MAX_FRAME).unwrap();
    assert_eq!(pool.len(&longest), MAX_FRAME);
    pool.free(longest);
}

#[test]
fn compacting_moves_a_frame_to_the_smallest_buffer_that_is_free() {
    let mut pool = Pool::new(PoolLimits { small: 1, medium: 1, large: 3 });
    let mut kept = Vec::new();
    for (len, size) in [(100, SMALL), (100, MEDIUM), (MIDDLE, LARGE), (MIDDLE + 1, LARGE)] {
        let frame = pool.alloc(MAX_FRAME).unwrap();
        pool.bytes_mut(&frame)[..len].fill(7);
        pool.set_len(&frame, len);
        pool.meta_mut(&frame).set_out(Out::Host(PeerId(5)));
        let frame = pool.compact(frame);
        assert_eq!(pool.truesize(&frame), size as u32, "{len}");
        assert_eq!((pool.meta(&frame).out(), pool.bytes(&frame)), (Out::Host(PeerId(5)), &vec![7; len][..]));
        if len == MIDDLE + 1 {
            pool.free(frame);
        } else {
            kept.push(frame);
        }
    }
    kept.into_iter().for_each(|frame| pool.free(frame));
    assert_eq!(pool.available(), pool.limits());
}

#[test]
fn memory_becomes_buffers_of_each_class() {
    let limits = PoolLimits::within(48 << 20);
    assert_eq!(limits.small as usize * SMALL, 16 << 20);
    assert_eq!(limits.medium as usize * MEDIUM, 8 << 20);
    assert!((23 << 20..=24 << 20).contains(&(limits.large as usize * LARGE)));
    assert!((47 << 20..=48 << 20).contains(&limits.bytes()));
    assert_eq!(Class::ALL.map(|class| limits.of(class)), [limits.small, limits.medium, limits.large]);
    assert!(PoolLimits::within(u64::MAX).small <= u32::MAX / 4);
}

/// Bytes of all buffers that there are.
fn memory(pool: &Pool) -> usize {
    pool.data.iter().map(|buffer| buffer.len()).sum()
}

#[test]
fn bounds_shrink_and_grow_under_frames_in_use() {
    let mut pool = Pool::new(PoolLimits { small: 4, medium: 0, large: 2 });
    let mut small: Vec<Frame> = (0..4).map(|n| pool.alloc_from(&[n; 60]).unwrap()).collect();
    let large: Vec<Frame> = (0..2).map(|n| pool.alloc_from(&[10 + n; 60_000]).unwrap()).collect();
    assert!(pool.alloc(60).is_none(), "both classes are full");
    pool.free(small.pop().unwrap());
    // One small buffer is free and goes at once; the others go with their frames.
    let spare = pool.set_limits(PoolLimits { small: 1, medium: 0, large: 1 });
    assert_eq!(spare.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), [SMALL]);
    assert_eq!((pool.in_use(), pool.available()), (5, PoolLimits { small: 0, medium: 0, large: 0 }));
    assert!(pool.alloc(60).is_none());
    for (n, frame) in small.iter().enumerate() {
        assert_eq!(pool.bytes(frame), [n as u8; 60], "what is in use is not touched");
    }
    for frame in small.into_iter().chain(large) {
        pool.free(frame);
    }
    assert_eq!((pool.in_use(), memory(&pool)), (0, SMALL + LARGE));
    assert_eq!(pool.available(), PoolLimits { small: 1, medium: 0, large: 1 });
    // More than before: slots without a buffer are used first.
    assert!(pool.set_limits(PoolLimits { small: 6, medium: 0, large: 3 }).is_empty());
    let frames: Vec<Frame> = (0..6).map(|n| pool.alloc_from(&[n; 60]).unwrap()).collect();
    let large: Vec<Frame> = (0..3).map(|n| pool.alloc_from(&[n; 60_000]).unwrap()).collect();
    assert!(pool.alloc(60).is_none());
    assert_eq!((pool.in_use(), pool.slots.len(), memory(&pool)), (9, 9, 6 * SMALL + 3 * LARGE));
    assert!(frames.iter().enumerate().all(|(n, frame)| pool.bytes(frame) == [n as u8; 60]));
    frames.into_iter().chain(large).for_each(|frame| pool.free(frame));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn what_shares_the_byte_of_flags_is_kept_apart() {
    let mut meta = Meta::default();
    assert_eq!((meta.out(), meta.in_tunnel(), meta.flow, meta.payer()), (Out::Unknown, false, None, None));
    let (number, last) = (7, u32::MAX);
    for in_tunnel in [true, false] {
        for out in [
            Out::Endpoint(EndpointId(number)),
            Out::Members,
            Out::Learners,
            Out::From(EndpointId(last)),
            Out::Host(PeerId(last)),
            Out::Hosts,
            Out::Payer(PortId(number)),
            Out::Unknown,
        ] {
            meta.set_in_tunnel(in_tunnel);
            meta.set_out(out);
            assert_eq!((meta.out(), meta.in_tunnel()), (out, in_tunnel));
            meta.set_in_tunnel(!in_tunnel);
            meta.set_member(MemberId(u8::from(in_tunnel) * 15));
            assert_eq!((meta.out(), meta.in_tunnel()), (out, !in_tunnel));
            assert_eq!(meta.member(), MemberId(u8::from(in_tunnel) * 15));
        }
    }
    meta.set_out(Out::Payer(PortId(number)));
    assert_eq!(meta.payer(), Some(PortId(number)));
}

#[test]
fn a_flow_has_any_number_but_the_last() {
    for number in [0, 1, u32::MAX - 1] {
        assert_eq!(FlowIndex::new(number).map(FlowIndex::index), Some(number));
    }
    assert_eq!(FlowIndex::new(u32::MAX), None);
    assert_eq!(size_of::<Option<FlowIndex>>(), 4);
}

#[test]
fn a_frame_begins_no_later_than_its_start_can_say() {
    let mut pool = Pool::new(PoolLimits { small: 0, medium: 0, large: 1 });
    let frame = pool.alloc(MAX_FRAME).unwrap();
    let most = usize::from(u16::MAX) - 2 * HEADROOM;
    assert!(pool.may_begin_later(&frame, most) && !pool.may_begin_later(&frame, most + 1));
    assert!(pool.pull_front(&frame, most) && pool.pull_front(&frame, HEADROOM));
    assert!(!pool.pull_front(&frame, 1), "it has more bytes, but no number for where they begin");
    assert_eq!(pool.len(&frame), MAX_FRAME - most - HEADROOM);
    pool.free(frame);
}
