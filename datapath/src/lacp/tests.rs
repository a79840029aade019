use super::*;
use crate::frame::PoolLimits;
use crate::program::Program;
use std::collections::VecDeque;

const MS: u64 = 1_000_000;
const GBIT: Rate = Rate(Rate::GBIT);
/// Between two looks at what is due.
const STEP_NS: u64 = 10 * MS;
const DELAY_NS: u64 = MS;

/// Ends with cables between their ports: an end is a system, a cable joins two ends' ports.
struct World {
    pool: Pool,
    switch: Switch,
    ends: Vec<Lacp>,
    /// End and port of either side, and whether the cable carries.
    cables: Vec<([(usize, u32); 2], bool)>,
    arriving: VecDeque<(Instant, (usize, u32), Vec<u8>)>,
    now: Instant,
    states: Vec<Vec<MemberState>>,
    /// LACPDUs sent by each end.
    sent: Vec<u64>,
    /// When frames could first be sent and not be received.
    unsafe_at: Option<Instant>,
}

fn settings(system: u8) -> LacpSettings {
    LacpSettings { system: Mac([2, 0, 0, 0, 1, system]), is_fast: true, ..LacpSettings::default() }
}

fn members(count: u32) -> Vec<LacpMember> {
    let member = |n| LacpMember { port: PortId(n), mac: Mac([2, 0, 0, 0, 2, n as u8]), rate: GBIT, priority: 255 };
    (0..count).map(member).collect()
}

impl World {
    fn new(ends: Vec<Lacp>) -> World {
        let states = ends.iter().map(|end| vec![MemberState::Down; end.members.len()]).collect();
        World {
            pool: Pool::new(PoolLimits { small: 64, medium: 0, large: 0 }),
            switch: Switch::new(&Program::default(), 1).expect("sound"),
            sent: vec![0; ends.len()],
            ends,
            cables: Vec::new(),
            arriving: VecDeque::new(),
            now: Instant(1_000_000_000),
            states,
            unsafe_at: None,
        }
    }

    /// Two ends with so many cables.
    fn pair(one: LacpSettings, two: LacpSettings, cables: u32) -> World {
        let mut world = World::new(vec![Lacp::new(one, &members(cables)), Lacp::new(two, &members(cables))]);
        (0..cables).for_each(|n| world.join((0, n), (1, n)));
        world
    }

    fn join(&mut self, one: (usize, u32), two: (usize, u32)) {
        self.cables.push(([one, two], true));
        for (end, port) in [one, two] {
            self.ends[end].carrier(self.now, PortId(port), true);
        }
    }

    fn carrier(&mut self, cable: usize, is_up: bool) {
        for (end, port) in self.cables[cable].0 {
            self.ends[end].carrier(self.now, PortId(port), is_up);
        }
    }

    fn run(&mut self, ns: u64) {
        let end = self.now.plus_ns(ns);
        while self.now < end {
            self.step();
            self.now = self.now.plus_ns(STEP_NS);
        }
    }

    fn step(&mut self) {
        while self.arriving.front().is_some_and(|&(at, ..)| at <= self.now) {
            let Some((_, (end, port), bytes)) = self.arriving.pop_front() else { break };
            assert!(self.ends[end].rx(self.now, PortId(port), &bytes));
        }
        for end in 0..self.ends.len() {
            for _ in 0..8 {
                self.ends[end].advance(self.now, &mut self.switch);
                while let Some(command) = self.ends[end].poll_command() {
                    let Command::Member(member, state) = command else { panic!("{command:?}") };
                    self.states[end][usize::from(member.0)] = state;
                }
                while let Some((port, frame)) = self.ends[end].poll_tx(&mut self.pool) {
                    self.sent[end] += 1;
                    let bytes = self.pool.bytes(&frame).to_vec();
                    self.pool.free(frame);
                    self.send((end, port.0), bytes);
                }
            }
        }
        self.look();
        assert_eq!(self.pool.in_use(), 0);
    }

    fn send(&mut self, from: (usize, u32), bytes: Vec<u8>) {
        for (ends, carries) in &self.cables {
            let to = if ends[0] == from { ends[1] } else { ends[0] };
            if ends.contains(&from) && *carries {
                self.arriving.push_back((self.now.plus_ns(DELAY_NS), to, bytes.clone()));
            }
        }
    }

    /// Where one end may send, the other has attached the port and says so.
    fn look(&mut self) {
        for ([one, two], _) in &self.cables {
            for (from, to) in [(one, two), (two, one)] {
                let sends = self.states[from.0][from.1 as usize] == MemberState::Distributing;
                let port = &self.ends[to.0].members[to.1 as usize].port;
                if sends && port.has_partner() && port.mux < Mux::Attached && port.is_enabled {
                    self.unsafe_at.get_or_insert(self.now);
                }
            }
        }
    }

    /// When all members of an end have this state; within `ns`.
    fn until(&mut self, end: usize, states: &[MemberState], ns: u64) -> u64 {
        let begin = self.now;
        while self.now.since(begin) < ns {
            self.step();
            if self.states[end] == states {
                return self.now.since(begin);
            }
            self.now = self.now.plus_ns(STEP_NS);
        }
        panic!("{:?} after {} ms: {:#?}", self.states[end], ns / MS, self.ends[end].members().collect::<Vec<_>>());
    }
}

use MemberState::{Collecting, Distributing, Down, Standby};

#[test]
fn two_ends_are_up_in_time_and_never_before_both_are_in_sync() {
    for [one, two] in [[true, true], [true, false], [false, true]] {
        let ends = [(1, one), (2, two)].map(|(n, is_active)| LacpSettings { is_active, ..settings(n) });
        let mut world = World::pair(ends[0], ends[1], 3);
        let took = world.until(0, &[Distributing; 3], 10_000 * MS);
        assert!((2000 * MS..=3500 * MS).contains(&took), "{} ms", took / MS);
        world.until(1, &[Distributing; 3], 500 * MS);
        world.run(100_000 * MS);
        assert_eq!(world.states, [vec![Distributing; 3], vec![Distributing; 3]]);
        assert_eq!(world.unsafe_at, None);
        let view = world.ends[0].members().next().expect("three");
        let all = State(0x3f).with(State::ACTIVITY, one);
        assert_eq!((view.actor.state, view.receive, view.aggregator), (all, Receive::Current, 0));
        assert_eq!((view.partner.system, view.partner.port), (Mac([2, 0, 0, 0, 1, 2]), 1));
    }
}

#[test]
fn slow_partners_say_so_each_half_minute() {
    let [one, two] = [1, 2].map(|n| LacpSettings { is_fast: false, ..settings(n) });
    let mut world = World::pair(one, two, 1);
    world.until(0, &[Distributing], 4000 * MS);
    world.run(3000 * MS);
    let before = world.sent[0];
    world.run(300_000 * MS);
    assert!((9..=11).contains(&(world.sent[0] - before)), "{}", world.sent[0] - before);
    assert_eq!(world.states[0], [Distributing]);
}

#[test]
fn a_link_that_goes_leaves_the_others_as_they_are() {
    let mut world = World::pair(settings(1), settings(2), 2);
    world.until(0, &[Distributing; 2], 4000 * MS);
    world.carrier(1, false);
    world.run(STEP_NS * 2);
    assert_eq!(world.states, [vec![Distributing, Down], vec![Distributing, Down]]);
    world.run(5000 * MS);
    world.carrier(1, true);
    let took = world.until(0, &[Distributing; 2], 4000 * MS);
    assert!(took >= 2000 * MS, "{took} ns");
    assert_eq!(world.unsafe_at, None);
}

/// A link that carries nothing any more, though both ends have a carrier.
#[test]
fn a_silent_link_is_given_up_after_three_seconds() {
    let mut world = World::pair(settings(1), settings(2), 2);
    world.until(0, &[Distributing; 2], 4000 * MS);
    world.run(1500 * MS);
    world.cables[1].1 = false;
    let took = world.until(0, &[Distributing, Standby], 5000 * MS);
    assert!((2000 * MS..=3200 * MS).contains(&took), "{} ms", took / MS);
    world.cables[1].1 = true;
    world.until(0, &[Distributing; 2], 5000 * MS);
    assert_eq!(world.states[0], [Distributing; 2]);
}

#[test]
fn a_partner_of_another_key_is_attached_anew() {
    let mut world = World::pair(settings(1), settings(2), 2);
    world.until(0, &[Distributing; 2], 4000 * MS);
    for line in &mut world.ends[1].members {
        line.port.actor.key = 77;
    }
    // Whoever changes its key leaves its aggregator, and says so.
    world.run(1100 * MS);
    assert!(world.states[0].iter().all(|&state| state == Standby), "{:?}", world.states);
    let took = world.until(0, &[Distributing; 2], 4000 * MS);
    assert!(took <= 2500 * MS, "{took} ns");
}

#[test]
fn cables_to_two_systems_are_two_aggregators_of_which_one_is_used() {
    let ends = vec![
        Lacp::new(settings(1), &members(3)),
        Lacp::new(settings(2), &members(1)),
        Lacp::new(settings(3), &members(2)),
    ];
    let mut world = World::new(ends);
    world.join((0, 0), (1, 0));
    world.join((0, 1), (2, 0));
    world.join((0, 2), (2, 1));
    world.run(6000 * MS);
    assert_eq!(world.states[0], [Standby, Distributing, Distributing], "the one of more bandwidth");
    let aggregators: Vec<usize> = world.ends[0].members().map(|view| view.aggregator).collect();
    assert_eq!(aggregators, [0, 1, 1]);
    assert_eq!(world.states[1], [Standby], "it is told that it is not in sync");
    // `stable`: the used one stays as long as it has a port.
    world.carrier(1, false);
    world.run(6000 * MS);
    assert_eq!(world.states[0], [Standby, Down, Distributing]);
    world.carrier(2, false);
    world.run(6000 * MS);
    assert_eq!(world.states[0], [Distributing, Down, Down]);
}

#[test]
fn a_cable_back_to_the_same_system_is_not_used() {
    let mut world = World::new(vec![Lacp::new(settings(1), &members(2))]);
    world.join((0, 0), (0, 1));
    world.run(10_000 * MS);
    assert_eq!(world.states[0], [Standby; 2]);
    assert!(world.ends[0].members().all(|view| view.is_loop));
}

#[test]
fn without_a_partner_one_link_is_used_alone() {
    let mut world = World::new(vec![Lacp::new(settings(1), &members(2))]);
    (0..2).for_each(|n| world.ends[0].carrier(world.now, PortId(n), true));
    world.run(2900 * MS);
    assert_eq!(world.states[0], [Standby; 2], "a partner may still speak up");
    world.run(3000 * MS);
    assert_eq!(world.states[0], [Distributing, Standby]);
}

#[test]
fn fewer_links_than_the_least_are_none() {
    let mut world = World::pair(LacpSettings { min_links: 2, ..settings(1) }, settings(2), 3);
    world.until(0, &[Distributing; 3], 4000 * MS);
    world.carrier(0, false);
    world.run(100 * MS);
    assert_eq!(world.states[0], [Down, Distributing, Distributing]);
    world.carrier(1, false);
    world.run(100 * MS);
    assert_eq!(world.states[0], [Down, Down, Standby]);
}

#[test]
fn independent_control_collects_before_it_distributes() {
    let one = LacpSettings { is_coupled: false, ..settings(1) };
    let mut world = World::pair(one, LacpSettings { is_coupled: false, ..settings(2) }, 1);
    world.until(0, &[Collecting], 4000 * MS);
    assert_ne!(world.states[1], [Distributing], "this end had not collected");
    world.until(0, &[Distributing], 1000 * MS);
    world.until(1, &[Distributing], 1000 * MS);
}

#[test]
fn markers_are_answered_and_no_more_than_so_many() {
    let mut world = World::pair(settings(1), settings(2), 1);
    world.run(100 * MS);
    let mut frame = Lacpdu::default().frame(Mac([2; 6]));
    frame[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&[2, 1, 1, 16]);
    let mut answers = 0;
    for _ in 0..50 {
        assert!(world.ends[0].rx(world.now, PortId(0), &frame));
        while let Some((_, answer)) = world.ends[0].poll_tx(&mut world.pool) {
            let is_answer = world.pool.bytes(&answer)[HEADER_BYTES..HEADER_BYTES + 4] == [2, 1, 2, 16];
            answers += u32::from(is_answer);
            world.pool.free(answer);
        }
    }
    assert_eq!(answers, HEARD_MOST);
    let counts = world.ends[0].members().next().expect("one").counts;
    assert_eq!((counts.markers, counts.bad), (u64::from(HEARD_MOST), 50 - u64::from(HEARD_MOST)));
    assert!(!world.ends[0].rx(world.now, PortId(9), &frame), "not this bond's port");
    assert!(!world.ends[0].rx(world.now, PortId(0), &frame[..13]));
}

#[test]
fn the_key_says_speed_and_duplex() {
    assert_eq!(key(0, GBIT), 4 << 1 | 1);
    assert_eq!(key(1023, Rate(10_000_000_000)), 0xffff & (1023 << 6 | 7 << 1 | 1));
    assert_eq!(key(5, Rate(1)), 5 << 6 | 1);
}

use pdu::Lacpdu;

mod random {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Cables that carry or do not, carriers that come and go, keys that change, and LACPDUs of
        /// anybody: nobody sends where the other has not attached, no more than three LACPDUs a
        /// second leave by a port, and when it is over all is up again.
        #[test]
        fn whatever_happens(events in proptest::collection::vec((0..5u8, 0..3usize, any::<[u8; 20]>(), 1..40u64), 0..25)) {
            let mut world = World::pair(settings(1), settings(2), 3);
            for (what, cable, said, wait) in events {
                match what {
                    0 => world.cables[cable].1 ^= true,
                    1 => world.carrier(cable, false),
                    2 => world.carrier(cable, true),
                    3 => world.ends[1].members[cable].port.actor.key ^= 1,
                    _ => {
                        let mut frame = Lacpdu::default().frame(Mac([2; 6]));
                        frame[HEADER_BYTES + 4..HEADER_BYTES + 22].copy_from_slice(&said[..18]);
                        world.ends[0].rx(world.now, PortId(cable as u32), &frame);
                    }
                }
                let (before, begin) = (world.sent.clone(), world.now);
                world.run(wait * 100 * MS);
                let seconds = world.now.since(begin) / SECOND_NS + 2;
                for end in 0..2 {
                    prop_assert!(world.sent[end] - before[end] <= seconds * 3 * 3);
                }
            }
            for cable in 0..3 {
                world.cables[cable].1 = true;
                world.carrier(cable, true);
                world.ends[1].members[cable].port.actor.key = 9;
            }
            world.run(12_000 * MS);
            prop_assert_eq!(&world.states, &[vec![Distributing; 3], vec![Distributing; 3]]);
        }
    }
}
