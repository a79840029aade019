use super::*;
use crate::frame::PoolLimits;
use crate::wire::build::{Build, eth};
use crate::wire::{Mac, parse};
use core::net::Ipv4Addr;

const GBIT: Rate = Rate(Rate::GBIT);

struct World {
    pool: Pool,
    bond: Bond,
    now: Instant,
    /// Frames that left as soon as they were sent.
    passed: Vec<(MemberId, Frame)>,
}

fn world(settings: BondSettings, rates: &[Rate]) -> World {
    let mut pool = Pool::new(PoolLimits { small: 4096, medium: 0, large: 0 });
    let mut bond = Bond::new(settings, rates, 1);
    let now = Instant(1_000_000_000);
    for member in 0..rates.len() {
        bond.set_state(&mut pool, now, MemberId(member as u8), MemberState::Distributing);
    }
    bond.set_active(&mut pool, now, Some(MemberId(0)));
    World { pool, bond, now, passed: Vec::new() }
}

fn mode(mode: Mode) -> BondSettings {
    BondSettings { mode, ..BondSettings::default() }
}

fn udp(port: u16) -> Build<'static> {
    let (a, b) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])).ipv4(a, b).udp(port, 53).payload(vec![0; 958])
}

impl World {
    fn frame(&mut self, build: &Build<'_>) -> Frame {
        let frame = self.pool.alloc_from(&build.bytes()).expect("room");
        let layout = parse(self.pool.bytes(&frame)).expect("sound");
        let meta = self.pool.meta_mut(&frame);
        meta.layout = layout;
        meta.wire_bytes = 1000 + crate::segment::WIRE_OVERHEAD;
        frame
    }

    fn send(&mut self, port: u16) -> Result<(), Reason> {
        let frame = self.frame(&udp(port));
        self.passed.extend(self.bond.send(&mut self.pool, self.now, frame)?);
        Ok(())
    }

    /// All frames that leave up to `until`: member, and UDP source port.
    fn leave(&mut self, until: Instant) -> Vec<(u8, u16)> {
        let mut left = Vec::new();
        loop {
            while let Some((member, frame)) = self.poll() {
                left.push((member.0, crate::wire::be16(self.pool.bytes(&frame), 34)));
                self.pool.free(frame);
            }
            match self.bond.poll_timeout().filter(|&due| due <= until) {
                Some(due) => self.now = due,
                None => {
                    self.now = until;
                    return left;
                }
            }
        }
    }

    /// The link of a member has negotiated this many Mbit/s, full duplex.
    fn link(&mut self, member: u8, mbit: Option<u32>) {
        let negotiated = Some(Negotiated { mbit, duplex: Duplex::Full });
        self.bond.set_negotiated(&mut self.pool, self.now, MemberId(member), negotiated);
    }

    fn poll(&mut self) -> Option<(MemberId, Frame)> {
        if self.passed.is_empty() { self.bond.poll(&mut self.pool, self.now) } else { Some(self.passed.remove(0)) }
    }

    fn later(&self, ns: u64) -> Instant {
        self.now.plus_ns(ns)
    }
}

fn members(left: &[(u8, u16)]) -> Vec<u8> {
    left.iter().map(|&(member, _)| member).collect()
}

#[test]
fn round_robin_takes_turns_of_so_many_frames() {
    for (packets, wanted) in [(1, [0, 1, 2, 0, 1, 2]), (2, [0, 0, 1, 1, 2, 2])] {
        let settings = BondSettings { packets_per_member: packets, ..mode(Mode::BalanceRr) };
        let mut w = world(settings, &[GBIT; 3]);
        let mut all = Vec::new();
        for port in 0..6 {
            w.send(port).expect("room");
            all.extend(w.leave(w.later(20_000)));
        }
        assert_eq!(members(&all), wanted);
        assert_eq!(all.iter().map(|&(_, port)| port).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    }
}

#[test]
fn round_robin_at_random_uses_all_members() {
    let settings = BondSettings { packets_per_member: 0, ..mode(Mode::BalanceRr) };
    let mut w = world(settings, &[GBIT; 4]);
    let mut counts = [0; 4];
    for port in 0..400 {
        w.send(port).expect("room");
        w.leave(w.later(20_000)).iter().for_each(|&(member, _)| counts[usize::from(member)] += 1);
    }
    assert!(counts.iter().all(|&count| count > 60), "{counts:?}");
}

#[test]
fn hash_modes_send_by_the_hash_modulo_those_that_may_send() {
    let settings = BondSettings { hash: HashPolicy::Layer34, ..mode(Mode::BalanceXor) };
    let mut w = world(settings, &[GBIT; 3]);
    w.bond.set_state(&mut w.pool, w.now, MemberId(1), MemberState::Standby);
    for port in 1000..1020 {
        let bytes = udp(port).bytes();
        let wanted = [0, 2][(HashPolicy::Layer34.hash(&bytes, &parse(&bytes).expect("sound")) % 2) as usize];
        w.send(port).expect("room");
        assert_eq!(w.leave(w.later(20_000)), [(wanted, port)]);
    }
}

#[test]
fn what_will_wait_for_long_at_a_member_is_marked() {
    for (ecn, marked) in [(2u8, 3u8), (1, 3), (0, 0)] {
        let mut w = world(mode(Mode::ActiveBackup), &[GBIT; 2]);
        // A frame takes 8.2 us on the wire: some 120 wait for less than 1 ms, and 610 for 5 ms.
        let mut full = 0;
        for _ in 0..700 {
            let frame = w.frame(&udp(7).tos(ecn));
            match w.bond.send(&mut w.pool, w.now, frame) {
                Ok(passed) => w.passed.extend(passed),
                Err(reason) => full += u32::from(reason == Reason::MemberFull),
            }
        }
        let mut seen = Vec::new();
        while !w.passed.is_empty() || w.bond.waiting() > 0 {
            match w.poll() {
                Some((_, frame)) => {
                    seen.push(w.pool.bytes(&frame)[15]);
                    w.pool.free(frame);
                }
                None => w.now = w.bond.poll_timeout().expect("something waits"),
            }
        }
        let first = seen.iter().position(|&tos| tos == 3).unwrap_or(seen.len());
        assert!(seen[first..].iter().all(|&tos| tos == marked) && seen[..first].iter().all(|&tos| tos == ecn));
        assert_eq!(w.bond.counts(MemberId(0)).marks, (seen.len() - first) as u64);
        assert!(full > 0 && (marked == 0 || (115..140).contains(&first)), "{first} of {}", seen.len());
    }
}

#[test]
fn a_backup_neither_sends_nor_receives() {
    let mut w = world(mode(Mode::ActiveBackup), &[GBIT; 2]);
    w.send(1).expect("room");
    assert_eq!(w.leave(w.later(20_000)), [(0, 1)]);
    let frame = w.frame(&udp(1));
    assert_eq!(w.bond.receive(&w.pool, MemberId(0), &frame, false), Ok(()));
    assert_eq!(w.bond.receive(&w.pool, MemberId(1), &frame, false), Err(Reason::MemberInactive));
    w.bond.set_settings(BondSettings { all_members_active: true, ..mode(Mode::ActiveBackup) });
    assert_eq!(w.bond.receive(&w.pool, MemberId(1), &frame, false), Ok(()));
    w.pool.free(frame);
    w.bond.set_active(&mut w.pool, w.now, Some(MemberId(1)));
    w.send(2).expect("room");
    assert_eq!(w.leave(w.later(20_000)), [(1, 2)]);
}

/// As in the failover policy, the next one is active before the failed one is down.
#[test]
fn what_waits_at_an_active_member_that_fails_is_sent_by_the_next() {
    let mut w = world(mode(Mode::ActiveBackup), &[GBIT; 2]);
    for port in 1..=50 {
        w.send(port).expect("room");
    }
    let waiting = w.bond.waiting();
    assert!(waiting > 20);
    let freed = w.bond.set_active(&mut w.pool, w.now, Some(MemberId(1)))
        + w.bond.set_state(&mut w.pool, w.now, MemberId(0), MemberState::Down);
    assert_eq!((freed, w.bond.waiting()), (0, waiting));
    let left = w.leave(w.later(10_000_000));
    assert!(left[left.len() - waiting as usize..].iter().all(|&(member, _)| member == 1));
    assert!(left.iter().map(|&(_, port)| port).eq(1..=50), "in order");
}

#[test]
fn broadcast_sends_by_all() {
    let mut w = world(mode(Mode::Broadcast), &[GBIT; 3]);
    w.send(7).expect("room");
    let mut left = w.leave(w.later(20_000));
    left.sort_unstable();
    assert_eq!(left, [(0, 7), (1, 7), (2, 7)]);
}

#[test]
fn the_rate_follows_the_members() {
    let rates = [GBIT, Rate(100_000_000)];
    for (mode_, both, second) in [
        (Mode::BalanceRr, 1_100_000_000, 100_000_000),
        (Mode::BalanceXor, 1_100_000_000, 100_000_000),
        (Mode::Broadcast, 100_000_000, 100_000_000),
        (Mode::ActiveBackup, 1_000_000_000, 0),
    ] {
        let mut w = world(mode(mode_), &rates);
        assert_eq!(w.bond.rate(), Rate(both), "{mode_:?}");
        // A member carries no more than its link's speed.
        w.bond.take_changed();
        for (speed, less, has_changed) in [(Some(200), 800_000_000, true), (Some(10_000), 0, true), (None, 0, false)] {
            w.link(0, speed);
            let wanted = if mode_ == Mode::Broadcast { both } else { both - less };
            assert_eq!((w.bond.rate(), w.bond.take_changed()), (Rate(wanted), has_changed), "{mode_:?}, {speed:?}");
        }
        w.bond.set_state(&mut w.pool, w.now, MemberId(0), MemberState::Down);
        assert_eq!(w.bond.rate(), Rate(second), "{mode_:?}: the active member is down");
        w.bond.set_state(&mut w.pool, w.now, MemberId(1), MemberState::Collecting);
        assert_eq!(w.bond.rate(), Rate(0), "{mode_:?}");
        assert_eq!(w.send(1), Err(Reason::PortDown));
        assert_eq!(w.pool.in_use(), 0);
    }
}

/// A member is paced at its own rate, or its link's speed if that is less.
#[test]
fn a_member_is_paced_at_its_own_rate_or_at_its_links_speed() {
    for (speed, carries) in [(None, 100), (Some(1000), 100), (Some(50), 50), (Some(10), 10)] {
        is_paced(speed, carries);
    }
}

fn is_paced(speed: Option<u32>, carries: i64) {
    let mut w = world(mode(Mode::ActiveBackup), &[Rate(100_000_000)]);
    w.link(0, speed);
    let end = w.later(1_000_000_000);
    let (mut sent, mut full, mut left) = (0, 0, 0);
    while w.now < end {
        match w.send(1) {
            Ok(()) => sent += 1,
            Err(reason) => {
                assert_eq!(reason, Reason::MemberFull);
                full += 1;
            }
        }
        left += w.leave(w.later(50_000)).len();
    }
    let wanted = carries * 1_000_000 / 8 / (1000 + i64::from(crate::segment::WIRE_OVERHEAD));
    // A burst may leave early.
    assert!((left as i64 - wanted).abs() <= 3, "{speed:?}: {left} left, {wanted} fit");
    assert!(full > 0 && sent - left <= 65, "{sent} taken, {left} left, {full} refused");
    assert_eq!(w.bond.counts(MemberId(0)).full, full);
    w.bond.clear(&mut w.pool);
    assert_eq!(w.pool.in_use(), 0);
}

/// Frames that wait leave at the link's present speed: neither all at once into the device's queue,
/// nor at their former turns.
#[test]
fn what_waits_leaves_at_the_speed_that_its_link_has_now() {
    for (speeds, ns, wanted) in [([100, 10], 8_000_000, 9..=11), ([10, 100], 1_500_000, 6..=6)] {
        let mut w = world(mode(Mode::ActiveBackup), &[Rate(100_000_000)]);
        w.link(0, Some(speeds[0]));
        let mut sent = 0;
        while w.send(sent).is_ok() {
            sent += 1;
        }
        let mut all = w.leave(w.now);
        w.link(0, Some(speeds[1]));
        let soon = w.leave(w.later(ns));
        assert!(wanted.contains(&soon.len()), "{speeds:?}: {} of {sent}", soon.len());
        all.extend(soon);
        all.extend(w.leave(w.later(1_000_000_000)));
        assert_eq!(all, (0..sent).map(|port| (0, port)).collect::<Vec<_>>(), "{speeds:?}");
        assert_eq!(w.pool.in_use(), 0);
    }
}

#[test]
fn what_waits_at_a_member_that_fails_is_sent_by_the_others_in_order() {
    let mut w = world(mode(Mode::ActiveBackup), &[Rate(100_000_000), GBIT]);
    for port in 0..20 {
        w.send(port).expect("room");
    }
    let early = w.leave(w.now);
    assert!(!early.is_empty() && early.len() < 10, "{early:?}");
    w.bond.set_state(&mut w.pool, w.now, MemberId(0), MemberState::Down);
    assert_eq!(w.bond.waiting(), 0, "nobody may send yet");
    assert_eq!(w.pool.in_use(), 0);

    let mut w = world(mode(Mode::BalanceRr), &[Rate(100_000_000), GBIT]);
    for port in 0..20 {
        w.send(port).expect("room");
    }
    let mut all = w.leave(w.now);
    let freed = w.bond.set_state(&mut w.pool, w.now, MemberId(0), MemberState::Down);
    assert_eq!(freed, 0);
    let rest = w.leave(w.later(10_000_000));
    assert!(rest.iter().all(|&(member, _)| member == 1));
    let evens: Vec<u16> = rest.iter().map(|&(_, port)| port).filter(|port| port % 2 == 0).collect();
    assert!(evens.is_sorted() && !evens.is_empty(), "{rest:?}");
    all.extend(rest);
    let mut ports: Vec<u16> = all.iter().map(|&(_, port)| port).collect();
    ports.sort_unstable();
    assert_eq!(ports, (0..20).collect::<Vec<_>>(), "each once");
    assert_eq!(w.bond.counts(MemberId(0)).failures, 1);
}

#[test]
fn reports_of_group_membership_leave_by_one_member() {
    let mut w = world(mode(Mode::BalanceRr), &[GBIT; 2]);
    let group = Mac([1, 0, 0x5e, 1, 1, 1]);
    let (host, to) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(224, 1, 1, 1));
    for _ in 0..3 {
        let report = eth(Mac([2, 0, 0, 0, 0, 1]), group).ipv4(host, to).protocol(protocol::IGMP).payload(vec![0; 8]);
        let frame = w.frame(&report);
        w.passed.extend(w.bond.send(&mut w.pool, w.now, frame).expect("room"));
        assert_eq!(members(&w.leave(w.later(20_000))), [0]);
    }
}

mod random {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Send(u16),
        State(u8, u8),
        Active(Option<u8>),
        Speed(u8, Option<u32>),
        Later(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => any::<u16>().prop_map(Step::Send),
            1 => (0..5u8, 0..4u8).prop_map(|(member, state)| Step::State(member, state)),
            1 => proptest::option::of(0..5u8).prop_map(Step::Active),
            1 => (0..5u8, proptest::option::of(1..1000u32)).prop_map(|(member, mbit)| Step::Speed(member, mbit)),
            3 => (0..200_000u32).prop_map(Step::Later),
        ]
    }

    proptest! {
        /// With any changes of members, the pool gets every frame back. No frame leaves by a member
        /// that may not send, and none waits longer than it may.
        #[test]
        fn nothing_is_lost(mode_ in 0..4usize, steps in proptest::collection::vec(step(), 1..120)) {
            let settings = mode(Mode::ALL[mode_].1);
            let mut w = world(settings, &[GBIT, Rate(100_000_000), GBIT, Rate(10_000_000)]);
            for step in steps {
                match step {
                    Step::Send(port) => {
                        let _ = w.send(port);
                    }
                    Step::State(member, state) => {
                        use MemberState::{Collecting, Distributing, Down, Standby};
                        let state = [Down, Standby, Collecting, Distributing][usize::from(state)];
                        w.bond.set_state(&mut w.pool, w.now, MemberId(member), state);
                    }
                    Step::Active(active) => {
                        w.bond.set_active(&mut w.pool, w.now, active.map(MemberId));
                    }
                    Step::Speed(member, mbit) => w.link(member, mbit),
                    Step::Later(ns) => w.now = w.later(ns.into()),
                }
                while let Some((member, frame)) = w.poll() {
                    prop_assert_eq!(w.bond.state(member), MemberState::Distributing);
                    w.pool.free(frame);
                }
                prop_assert_eq!(w.pool.in_use() as u32, w.bond.waiting());
                // A frame that waited at a faster link waits for the previous one: 8.2 ms at the
                // slowest rate.
                let most = MOST_WAIT_NS + 8_200_000;
                prop_assert!(w.bond.poll_timeout().is_none_or(|due| due.since(w.now) <= most));
            }
            w.bond.clear(&mut w.pool);
            prop_assert_eq!(w.pool.in_use(), 0);
        }
    }
}
