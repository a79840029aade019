use super::*;
use crate::frame::PoolLimits;

const HOLD_NS: u64 = 2_000_000;

const US: u64 = 1000;

struct World {
    pool: Pool,
    order: Order,
}

fn world(members: u8) -> World {
    let mut order = Order::new(HOLD_NS);
    for member in 0..members {
        order.set_live(Instant::ZERO, MemberId(member), true);
    }
    World { pool: Pool::new(PoolLimits { small: 8192, medium: 0, large: 0 }), order }
}

fn at(us: u64) -> Instant {
    Instant(us * US)
}

fn one(value: u16) -> Number {
    Number { value: value % MODULUS, is_shared: false }
}

fn shared(value: u16) -> Number {
    Number { is_shared: true, ..one(value) }
}

impl World {
    /// Receives a frame that carries `label`. Returns the labels that leave at once.
    fn rx(&mut self, us: u64, member: u8, number: Number, label: u32) -> Vec<u32> {
        let frame = self.pool.alloc_from(&label.to_be_bytes()).expect("room");
        let first = self.order.rx(&mut self.pool, at(us), MemberId(member), number, frame);
        let mut out: Vec<u32> = first.ok().flatten().map(|frame| self.label(frame)).into_iter().collect();
        out.extend(self.poll(us));
        out
    }

    fn poll(&mut self, us: u64) -> Vec<u32> {
        let mut out = Vec::new();
        while let Some(frame) = self.order.poll(&mut self.pool, at(us)) {
            out.push(self.label(frame));
        }
        out
    }

    fn label(&mut self, frame: Frame) -> u32 {
        let label = u32::from_be_bytes(self.pool.bytes(&frame).try_into().expect("four bytes"));
        self.pool.free(frame);
        label
    }
}

/// What frames wait for is with a member that has not shown a later number: the one that is
/// furthest behind comes first, and where no frame waits there is none.
#[test]
fn who_may_bring_what_is_waited_for_is_told() {
    let mut world = world(3);
    let awaited = |world: &World| world.order.awaited().iter().map(|member| member.0).collect::<Vec<_>>();
    assert_eq!(world.rx(0, 0, one(0), 0), [0]);
    assert_eq!(world.rx(1, 1, one(1), 1), [1]);
    assert_eq!(awaited(&world), [] as [u8; 0]);
    assert_eq!(world.rx(2, 0, one(4), 4), [] as [u32; 0]);
    assert_eq!(awaited(&world), [2, 1], "2 is with one of them");
    assert_eq!(world.rx(3, 2, one(3), 3), [] as [u32; 0]);
    assert_eq!(awaited(&world), [1]);
    assert_eq!(world.rx(4, 1, one(2), 2), [2, 3, 4]);
    assert_eq!(awaited(&world), [] as [u8; 0]);
}

/// Who goes on for another drops what has come already, and lets through what was given up and the
/// pieces of each member's last frame.
#[test]
fn who_goes_on_knows_what_has_come() {
    let mut former = world(2);
    let mut next = world(2);
    let came = [0, 1, 3, 4].map(|number| former.rx(0, (number % 2) as u8, one(number), number.into()));
    assert_eq!(came.concat(), [0, 1, 3, 4], "2 is given up");
    let missing = former.order.missing();
    assert_eq!(missing.iter().map(|number| number % u64::from(MODULUS)).collect::<Vec<_>>(), [2, 4, 3]);
    next.order.go_on(former.order.expected(), Some(&missing));
    for (number, member, passes) in [(0, 0, 0), (1, 1, 0), (2, 0, 1), (2, 1, 0), (3, 1, 1), (4, 0, 1), (5, 1, 1)] {
        let out = next.rx(2, member, one(number), number.into());
        assert_eq!(out.len(), passes, "{number} over {member}: {out:?}");
    }
    assert_eq!((next.order.stats().duplicates, next.order.stats().late), (3, 3));
}

/// `turn_of` predicts what `rx` does, for random numbers, members and times.
#[test]
fn the_turn_that_is_told_is_the_turn_that_it_gets() {
    let mut seen = [0; 5];
    for seed in 1..20u64 {
        let (mut w, mut random, mut us) = (world(3), seed, 0);
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            random >> 33
        };
        for n in 0..2000u64 {
            us += next() % 400;
            let (member, value) = (MemberId((next() % 4) as u8), ((n / 2 + next() % 6) % u64::from(MODULUS)) as u16);
            let number = if next() % 4 == 0 { shared(value) } else { one(value) };
            let (told, before) = (w.order.turn_of(member, number), w.order.stats());
            let next = w.order.next();
            let frame = w.pool.alloc_from(&[7; 4]).expect("room");
            let done = w.order.rx(&mut w.pool, at(us), member, number, frame);
            let is_late = w.order.stats().late > before.late;
            let (wanted, which) = match &done {
                Err(reason) => (Err(*reason), 0),
                Ok(Some(_)) => (Ok(OrderDecision::Next), 1),
                Ok(None) if is_late => (Ok(OrderDecision::Late), 2),
                Ok(None) if next.is_none_or(|next| next == value) => (Ok(OrderDecision::First), 3),
                Ok(None) => (Ok(OrderDecision::Later), 4),
            };
            assert_eq!(told, wanted, "seed {seed}, frame {n}: {number:?} over {member:?}");
            seen[which] += 1;
            if let Ok(Some(frame)) = done {
                w.pool.free(frame);
            }
            w.poll(us);
        }
        w.order.clear(&mut w.pool);
    }
    assert!(seen.iter().all(|&count| count > 100), "{seen:?}");
}

#[test]
fn what_comes_in_order_waits_for_nothing() {
    let mut w = world(2);
    for number in 0..10_000u32 {
        let value = (number % u32::from(MODULUS)) as u16;
        assert_eq!(w.rx(number.into(), (number % 2) as u8, one(value), number), [number]);
        assert_eq!(w.order.poll_timeout(), None);
    }
    assert_eq!(w.order.stats(), OrderStats { received: 10_000, ..OrderStats::default() });
}

#[test]
fn a_later_number_waits_for_the_earlier_one() {
    let mut w = world(2);
    assert_eq!(w.rx(0, 0, one(4092), 0), [0]);
    assert_eq!(w.rx(1, 1, one(0), 2), [0; 0], "it wraps");
    assert_eq!(w.rx(2, 1, one(2), 4), [0; 0]);
    assert_eq!(w.rx(3, 0, one(4093), 1), [1, 2]);
    assert_eq!(w.rx(4, 0, one(1), 3), [3, 4]);
    assert_eq!((w.order.stats().held, w.order.stats().lost), (2, 0));
}

#[test]
fn a_number_is_lost_as_soon_as_every_live_member_has_shown_a_later_one() {
    let mut w = world(3);
    assert_eq!(w.rx(0, 0, one(10), 10), [10]);
    // 11 is lost.
    assert_eq!(w.rx(1, 1, one(12), 12), [0; 0]);
    assert_eq!(w.rx(2, 0, one(13), 13), [0; 0]);
    assert_eq!(w.rx(3, 2, one(14), 14), [12, 13, 14], "member 2 was the last that could still have it");
    assert_eq!(w.order.stats().lost, 1);
    assert_eq!(w.rx(4, 0, one(11), 11), [11], "late, and not dropped");
    assert_eq!(w.order.stats().late, 1);
    // A mark shows the same for a member that has nothing to send.
    assert_eq!(w.rx(5, 0, one(16), 16), [0; 0]);
    assert_eq!(w.rx(6, 1, one(17), 17), [0; 0]);
    w.order.mark(&mut w.pool, at(7), MemberId(2), 18);
    assert_eq!(w.poll(7), [16, 17]);
}

#[test]
fn without_a_word_of_a_member_it_is_the_time_that_ends_the_wait() {
    let mut w = world(2);
    w.rx(0, 0, one(0), 0);
    assert_eq!(w.rx(10, 1, one(2), 2), [0; 0]);
    assert_eq!(w.rx(500, 1, one(4), 4), [0; 0]);
    assert_eq!(w.order.poll_timeout(), Some(at(2010)));
    assert_eq!(w.poll(2009), [0; 0]);
    assert_eq!(w.poll(2010), [2], "a number is given up, not the window");
    assert_eq!(w.order.poll_timeout(), Some(at(2500)));
    assert_eq!(w.poll(2500), [4]);
    assert_eq!((w.order.stats().lost, w.order.stats().hold_max_ns), (2, 2_000_000));
}

#[test]
fn copies_leave_once() {
    let mut w = world(3);
    assert_eq!(w.rx(0, 0, one(0), 0), [0]);
    assert_eq!(w.rx(1, 1, one(0), 0), [0; 0]);
    assert_eq!(w.rx(2, 1, one(2), 2), [0; 0], "1 may still come");
    assert_eq!(w.rx(3, 0, one(2), 2), [0; 0]);
    assert_eq!(w.rx(4, 2, one(1), 1), [1, 2]);
    assert_eq!(w.rx(5, 2, one(2), 2), [0; 0]);
    assert_eq!((w.order.stats().duplicates, w.order.stats().lost, w.pool.in_use()), (3, 0, 0));
}

#[test]
fn frames_that_share_a_number_leave_in_the_order_of_their_member() {
    let mut w = world(2);
    assert_eq!(w.rx(0, 0, shared(0), 100), [100]);
    assert_eq!(w.rx(1, 1, one(1), 1), [0; 0], "0 may go on");
    assert_eq!(w.rx(2, 0, shared(0), 101), [101]);
    assert_eq!(w.rx(3, 0, one(2), 2), [1, 2], "member 0 has gone on");
    assert_eq!(w.rx(4, 0, shared(3), 300), [300]);
    w.order.mark(&mut w.pool, at(5), MemberId(0), 4);
    assert_eq!(w.rx(6, 1, one(4), 4), [4], "the mark has said that 3 is complete");
    assert_eq!(w.order.stats().duplicates, 0);
}

#[test]
fn what_went_over_a_member_that_died_is_waited_for_until_it_is_sent_again() {
    let mut w = world(2);
    w.rx(0, 0, one(0), 0);
    assert_eq!(w.rx(1, 0, one(2), 2), [0; 0]);
    w.order.set_live(at(2), MemberId(1), false);
    assert_eq!(w.rx(3, 0, one(4), 4), [0; 0], "1 and 3 will come over member 0");
    assert_eq!(w.rx(5000, 0, one(1), 1), [1, 2]);
    assert_eq!(w.rx(5001, 0, one(3), 3), [3, 4]);
    assert_eq!(w.rx(5002, 0, one(6), 6), [0; 0]);
    assert_eq!(w.poll(2 + REPLAY_NS / US), [6], "no longer than a replay takes");
    assert_eq!((w.order.stats().lost, w.order.stats().late), (1, 0));
}

#[test]
fn what_comes_again_over_its_own_member_is_a_copy_and_no_piece() {
    let mut w = world(2);
    assert_eq!(w.rx(0, 1, one(0), 0), [0]);
    assert_eq!(w.rx(1, 1, one(0), 1), [1], "a piece comes at once");
    assert_eq!(w.rx(2, 1, one(1), 2), [2]);
    assert_eq!(w.rx(3, 1, one(0), 3), [0; 0], "its copy had gone by a member that died");
    // Nothing has arrived yet over a member that is live again.
    w.order.set_live(at(4), MemberId(1), false);
    w.order.set_live(at(5), MemberId(1), true);
    assert_eq!(w.rx(6, 1, one(1), 4), [0; 0]);
    assert_eq!((w.order.stats().duplicates, w.order.stats().pieces, w.pool.in_use()), (2, 1, 0));
}

#[test]
fn a_peer_that_begins_anew_lets_go_what_waits() {
    let mut w = world(2);
    w.rx(0, 0, one(100), 0);
    assert_eq!(w.rx(1, 1, one(103), 3), [0; 0]);
    assert_eq!(w.rx(2, 1, one(102), 2), [0; 0]);
    w.order.restart(&mut w.pool, at(3));
    assert_eq!(w.poll(3), [2, 3]);
    assert_eq!(w.rx(4, 0, one(7), 7), [7]);
    assert_eq!(w.order.stats().duplicates, 0);
}

/// A NIC or kernel has cut a frame that the sender numbered as one. Its pieces are passed on and
/// counted, so that this end can report it.
#[test]
fn pieces_of_a_frame_are_no_duplicates() {
    let mut w = world(3);
    assert_eq!(w.rx(0, 0, one(0), 0), [0]);
    assert_eq!(w.rx(1, 0, one(0), 100), [100]);
    assert_eq!(w.rx(2, 1, one(2), 2), [0; 0]);
    assert_eq!(w.rx(3, 1, one(2), 102), [0; 0]);
    assert_eq!(w.rx(4, 0, one(2), 202), [0; 0], "another member's is a copy");
    assert_eq!(w.rx(5, 2, one(1), 1), [1, 2, 102]);
    assert_eq!((w.order.stats().pieces, w.order.stats().duplicates), (2, 1));
    assert_eq!([0, 1, 2].map(|member| w.order.come(MemberId(member))), [2, 1, 1], "each number once a member");
}

mod random {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Frames over first-in first-out members, with skew below `hold`: all leave once and in
        /// order, and none waits longer than `hold`.
        #[test]
        fn order_is_restored(members in 1..5u8, start in 0..MODULUS,
                             travels in proptest::collection::vec((0..5u8, 0..1_500_000u32, 0..40u8), 1..400)) {
            let mut w = world(members);
            let mut free = [0u64; 5];
            let mut arrivals = Vec::new();
            let mut sent = Vec::new();
            for (label, &(member, delay, fate)) in travels.iter().enumerate() {
                let (label, member) = (label as u32, member % members);
                let begin = u64::from(label) * 10_000;
                let number = one(((u32::from(start) + label) % u32::from(MODULUS)) as u16);
                // The first sets where counting begins.
                let is_lost = fate == 0 && label > 0;
                if !is_lost {
                    sent.push(label);
                    let delay = if label == 0 { 0 } else { delay };
                    let came = (begin + u64::from(delay)).max(free[usize::from(member)]);
                    free[usize::from(member)] = came;
                    arrivals.push((came, label, member, number));
                }
            }
            arrivals.sort_unstable_by_key(|&(came, label, ..)| (came, label));
            let mut out = Vec::new();
            let mut now = Instant::ZERO;
            let poll = |w: &mut World, now: Instant, out: &mut Vec<u32>| {
                while let Some(frame) = w.order.poll(&mut w.pool, now) {
                    out.push(u32::from_be_bytes(w.pool.bytes(&frame).try_into().expect("four bytes")));
                    w.pool.free(frame);
                }
            };
            for (came, label, member, number) in arrivals {
                while let Some(due) = w.order.poll_timeout().filter(|due| due.0 <= came) {
                    now = now.max(due);
                    poll(&mut w, now, &mut out);
                }
                now = now.max(Instant(came));
                let frame = w.pool.alloc_from(&label.to_be_bytes()).expect("room");
                let first = w.order.rx(&mut w.pool, now, MemberId(member), number, frame).expect("no copy");
                out.extend(first.map(|frame| w.label(frame)));
                poll(&mut w, now, &mut out);
            }
            while let Some(due) = w.order.poll_timeout() {
                now = now.max(due);
                poll(&mut w, now, &mut out);
            }
            let stats = w.order.stats();
            // First-in first-out may delay a frame by more than `hold`; then it is late, and still
            // leaves.
            if stats.late == 0 {
                prop_assert_eq!(&out, &sent);
            } else {
                out.sort_unstable();
                prop_assert_eq!(&out, &sent);
            }
            prop_assert!(stats.hold_max_ns <= HOLD_NS);
            prop_assert_eq!(stats.duplicates, 0);
            prop_assert_eq!(w.pool.in_use(), 0);
        }

        /// With any numbers, marks and changes: the pool gets every frame back, the number of
        /// waiting frames is bounded, and all leave in time.
        #[test]
        fn anything_may_come(steps in proptest::collection::vec((0..10u8, 0..17u8, any::<u16>(), any::<bool>(), 0..3_000_000u32), 1..600)) {
            let mut w = world(4);
            let mut now = Instant::ZERO;
            let (mut came, mut left) = (0u64, 0u64);
            for (what, member, value, is_shared, wait) in steps {
                now = now.plus_ns(wait.into());
                match what {
                    0 => w.order.mark(&mut w.pool, now, MemberId(member), value),
                    1 => w.order.set_live(now, MemberId(member), is_shared),
                    2 if value < 300 => w.order.restart(&mut w.pool, now),
                    _ => {
                        // Most are near to each other.
                        let value = if value & 7 == 0 { value } else { 2000 + value % 64 };
                        let frame = w.pool.alloc_from(&[0; 4]).expect("room");
                        let number = Number { value: value % MODULUS, is_shared };
                        let result = w.order.rx(&mut w.pool, now, MemberId(member), number, frame);
                        came += u64::from(result.is_ok());
                        if let Ok(Some(frame)) = result {
                            w.pool.free(frame);
                            left += 1;
                        }
                    }
                }
                while let Some(frame) = w.order.poll(&mut w.pool, now) {
                    w.pool.free(frame);
                    left += 1;
                }
                prop_assert!(w.order.poll_timeout().is_none_or(|due| due > now));
                prop_assert_eq!(w.pool.in_use() as u64, came - left);
                prop_assert!(w.order.waiting.len() <= 2 * usize::from(WINDOW));
            }
            while let Some(due) = w.order.poll_timeout() {
                prop_assert!(due <= now.plus_ns(MOST_REPLAY_NS));
                while let Some(frame) = w.order.poll(&mut w.pool, due) {
                    w.pool.free(frame);
                }
            }
            prop_assert_eq!(w.pool.in_use(), 0);
        }
    }
}
