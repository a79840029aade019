use super::*;
use pdu::Lacpdu;
use std::collections::VecDeque;

const MS: u64 = 1_000_000;
const GBIT: Rate = Rate(Rate::GBIT);
/// Time between two steps.
const STEP_NS: u64 = 10 * MS;
const DELAY_NS: u64 = MS;

/// Port of an end.
type At = (usize, usize);

/// Ends with cables between their ports.
struct World {
    ends: Vec<Lacp>,
    cables: Vec<Cable>,
    arriving: VecDeque<Arriving>,
    now: Instant,
    states: Vec<Vec<MemberState>>,
    /// When each port sent its LACPDUs.
    sent: Vec<Vec<Vec<Instant>>>,
    /// By port: whether the sender of the last LACPDU received was attached then, and meant this
    /// port.
    agreed: Vec<Vec<bool>>,
    /// One LACPDU is lost in this many; 0: none.
    loss: u64,
    count: u64,
    /// A member began to distribute although the other end was not in sync.
    unsafe_at: Option<(Instant, At)>,
}

struct Cable {
    ends: [At; 2],
    carries: bool,
}

struct Arriving {
    at: Instant,
    to: At,
    bytes: Vec<u8>,
    is_agreed: bool,
}

fn settings(system: u8) -> LacpSettings {
    LacpSettings { system: Mac([2, 0, 0, 0, 1, system]), is_fast: true, ..LacpSettings::default() }
}

fn end(settings: LacpSettings, rates: &[Rate]) -> Lacp {
    let mut end = Lacp::default();
    end.set_members(START, &settings, rates, |_| None, |_| false);
    end
}

const START: Instant = Instant(1_000_000_000);

impl World {
    fn new(ends: Vec<Lacp>) -> World {
        let by_port = |end: &Lacp| end.members.len();
        World {
            states: ends.iter().map(|end| vec![MemberState::Down; by_port(end)]).collect(),
            sent: ends.iter().map(|end| vec![Vec::new(); by_port(end)]).collect(),
            agreed: ends.iter().map(|end| vec![false; by_port(end)]).collect(),
            ends,
            cables: Vec::new(),
            arriving: VecDeque::new(),
            now: START,
            loss: 0,
            count: 0,
            unsafe_at: None,
        }
    }

    /// Two ends with this many cables.
    fn pair(one: LacpSettings, two: LacpSettings, cables: usize) -> World {
        let rates = vec![GBIT; cables];
        let mut world = World::new(vec![end(one, &rates), end(two, &rates)]);
        (0..cables).for_each(|n| world.join((0, n), (1, n)));
        world
    }

    fn join(&mut self, one: At, two: At) {
        self.cables.push(Cable { ends: [one, two], carries: true });
        self.carrier(self.cables.len() - 1, true);
    }

    fn carrier(&mut self, cable: usize, is_up: bool) {
        for (end, port) in self.cables[cable].ends {
            self.ends[end].set_link(self.now, MemberId(port as u8), is_up);
        }
    }

    fn change(&mut self, end: usize, settings: LacpSettings) {
        let rates: Vec<Rate> = self.ends[end].members.iter().map(|line| line.rate).collect();
        self.ends[end].set_members(self.now, &settings, &rates, |n| Some(MemberId(n as u8)), |_| false);
    }

    fn run(&mut self, ns: u64) {
        let end = self.now.plus_ns(ns);
        while self.now < end {
            self.step();
            self.now = self.now.plus_ns(STEP_NS);
        }
    }

    fn step(&mut self) {
        while self.arriving.front().is_some_and(|next| next.at <= self.now) {
            let Some(next) = self.arriving.pop_front() else { break };
            let (end, port) = next.to;
            assert_eq!(self.ends[end].hear(self.now, MemberId(port as u8), &next.bytes), Some(Ok(())));
            self.agreed[end][port] = next.is_agreed;
            self.look(end);
        }
        for end in 0..self.ends.len() {
            self.look(end);
            while let Some((member, frame)) = self.ends[end].poll(self.now) {
                let port = usize::from(member.0);
                self.sent[end][port].push(self.now);
                self.send((end, port), &frame);
            }
            assert!(self.ends[end].poll_timeout().is_none_or(|due| due > self.now), "it is done for now");
        }
    }

    /// Advances an end, and records its members' states.
    fn look(&mut self, end: usize) {
        self.ends[end].advance(self.now);
        for port in 0..self.states[end].len() {
            let state = self.ends[end].state(MemberId(port as u8));
            let before = std::mem::replace(&mut self.states[end][port], state);
            let has_partner = self.ends[end].members[port].port.has_partner();
            if state == MemberState::Distributing && before != state && has_partner && !self.agreed[end][port] {
                self.unsafe_at.get_or_insert((self.now, (end, port)));
            }
        }
    }

    fn send(&mut self, from: At, bytes: &[u8]) {
        self.count += 1;
        let is_lost = self.loss > 0 && self.count.is_multiple_of(self.loss);
        let port = &self.ends[from.0].members[from.1].port;
        let in_sync = port.mux >= Mux::Attached;
        for cable in self.cables.iter().filter(|cable| cable.carries && cable.ends.contains(&from) && !is_lost) {
            let to = if cable.ends[0] == from { cable.ends[1] } else { cable.ends[0] };
            let is_meant = port.partner.port == self.ends[to.0].members[to.1].port.actor.port;
            let at = self.now.plus_ns(DELAY_NS);
            self.arriving.push_back(Arriving { at, to, bytes: bytes.to_vec(), is_agreed: in_sync && is_meant });
        }
    }

    /// Runs until all members of an end have these states, for at most `ns`. Returns how long that
    /// took.
    fn until(&mut self, end: usize, states: &[MemberState], ns: u64) -> u64 {
        let begin = self.now;
        while self.now.since(begin) < ns {
            self.step();
            if self.states[end] == states {
                return self.now.since(begin);
            }
            self.now = self.now.plus_ns(STEP_NS);
        }
        panic!("{:?} after {} ms: {:#?}", self.states[end], ns / MS, self.ends[end].views().collect::<Vec<_>>());
    }

    /// The most LACPDUs that a port has sent in any second.
    fn densest(&self) -> usize {
        let of = |times: &Vec<Instant>| {
            let within = |&from: &Instant| times.iter().filter(|at| **at >= from && at.since(from) < SECOND_NS).count();
            times.iter().map(within).max().unwrap_or(0)
        };
        self.sent.iter().flatten().map(of).max().unwrap_or(0)
    }

    fn view(&self, (end, port): At) -> LacpView {
        self.ends[end].views().nth(port).expect("a port")
    }
}

use MemberState::{Collecting, Distributing, Down, Standby};

/// Two ends with three cables, which came up in time, safely, and with few LACPDUs.
fn up_in_time(ends: [LacpSettings; 2]) -> World {
    let mut world = World::pair(ends[0], ends[1], 3);
    let took = world.until(0, &[Distributing; 3], 10_000 * MS);
    assert!((2000 * MS..=3500 * MS).contains(&took), "{} ms", took / MS);
    world.until(1, &[Distributing; 3], 500 * MS);
    world.run(100_000 * MS);
    assert_eq!(world.states, [vec![Distributing; 3], vec![Distributing; 3]]);
    assert_eq!(world.unsafe_at, None);
    assert!(world.densest() <= 3, "{}", world.densest());
    world
}

#[test]
fn two_ends_are_up_in_time_and_never_before_both_are_in_sync() {
    for [one, two] in [[true, true], [true, false], [false, true]] {
        let ends = [(1, one), (2, two)].map(|(n, is_active)| LacpSettings { is_active, ..settings(n) });
        let world = up_in_time(ends);
        let view = world.view((0, 0));
        let all = State(0x3f).with(State::ACTIVITY, one);
        assert_eq!((view.actor.state, view.receive, view.aggregator), (all, Receive::Current, 1));
        assert_eq!((view.partner.system, view.partner.port), (Mac([2, 0, 0, 0, 1, 2]), 1));
    }
}

/// Either end may have independent control: a coupled end reports that it receives as soon as it is
/// in sync.
#[test]
fn with_independent_control_two_ends_are_up_as_with_coupled() {
    for [one, two] in [[false, false], [false, true], [true, false]] {
        let ends = [(1, one), (2, two)].map(|(n, is_coupled)| LacpSettings { is_coupled, ..settings(n) });
        up_in_time(ends);
    }
}

/// A partner that is in sync and does not receive is received from, and not sent to.
#[test]
fn with_independent_control_who_does_not_receive_is_not_sent_to() {
    let coupled = settings(1);
    let independent = LacpSettings { is_coupled: false, ..coupled };
    let mut one = end(independent, &[GBIT]);
    one.set_link(START, MemberId(0), true);
    let mut half_seconds = 0;
    let mut hear = |one: &mut Lacp, receives: bool| {
        half_seconds += 5;
        let now = START.plus_ns(half_seconds * 500 * MS);
        let view = one.views().next().expect("a port");
        let state = State(State::ACTIVITY.0 | State::AGGREGATION.0 | State::SYNCHRONIZATION.0)
            .with(State::COLLECTING, receives)
            .with(State::DISTRIBUTING, receives);
        let actor = Information { system: Mac([2; 6]), port: 1, key: 9, state, ..Information::default() };
        let pdu = Lacpdu { actor, partner: view.actor };
        assert_eq!(one.hear(now, MemberId(0), &pdu.frame(Mac([2; 6]))), Some(Ok(())));
        one.advance(now);
        let view = one.views().next().expect("a port");
        let says = [State::COLLECTING, State::DISTRIBUTING].map(|bit| view.actor.state.has(bit));
        (one.state(MemberId(0)), says)
    };
    assert_eq!(hear(&mut one, false), (Standby, [false; 2]));
    assert_eq!(hear(&mut one, false), (Collecting, [true, false]));
    assert_eq!(hear(&mut one, true), (Distributing, [true; 2]));
    assert_eq!(hear(&mut one, false), (Collecting, [true, false]), "nothing is lost that is on the way");
    // Coupled from now on, the default of Linux.
    one.set_members(START, &coupled, &[GBIT], |n| Some(MemberId(n as u8)), |_| true);
    assert_eq!(hear(&mut one, false), (Distributing, [true; 2]));
    one.set_members(START, &independent, &[GBIT], |n| Some(MemberId(n as u8)), |_| true);
    assert_eq!(hear(&mut one, false), (Collecting, [true, false]));
}

#[test]
fn two_passive_ends_say_nothing() {
    let [one, two] = [1, 2].map(|n| LacpSettings { is_active: false, ..settings(n) });
    let mut world = World::pair(one, two, 1);
    world.run(100_000 * MS);
    assert_eq!(world.count, 0);
}

#[test]
fn slow_partners_say_so_each_half_minute() {
    let [one, two] = [1, 2].map(|n| LacpSettings { is_fast: false, ..settings(n) });
    let mut world = World::pair(one, two, 1);
    world.until(0, &[Distributing], 4000 * MS);
    world.run(3000 * MS);
    let before = world.sent[0][0].len();
    world.run(300_000 * MS);
    let sent = world.sent[0][0].len() - before;
    assert!((9..=11).contains(&sent), "{sent}");
    assert_eq!(world.states[0], [Distributing]);
    // Fast from now on: that is sent at once, and has effect at once.
    let before = world.sent[1][0].len();
    world.change(0, settings(1));
    world.run(3000 * MS);
    assert!((3..=5).contains(&(world.sent[1][0].len() - before)), "{:?}", world.sent[1]);
    assert_eq!(world.states[0], [Distributing], "which changes nothing else");
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

/// A link carries nothing any more, although both ends have a carrier.
#[test]
fn a_silent_link_is_given_up_after_three_seconds_or_ninety() {
    for (is_fast, least, most) in [(true, 2000, 3200), (false, 60_000, 92_000)] {
        let [one, two] = [1, 2].map(|n| LacpSettings { is_fast, ..settings(n) });
        let mut world = World::pair(one, two, 2);
        world.until(0, &[Distributing; 2], 4000 * MS);
        world.run(1500 * MS);
        world.cables[1].carries = false;
        let took = world.until(0, &[Distributing, Standby], 95_000 * MS);
        assert!((least * MS..=most * MS).contains(&took), "{} ms", took / MS);
        assert_eq!(world.view((0, 1)).receive, Receive::Expired);
        world.run(4000 * MS);
        assert_eq!(world.view((0, 1)).receive, Receive::Defaulted);
        assert_eq!(world.states[0], [Distributing, Standby], "another has a partner");
        world.cables[1].carries = true;
        world.until(0, &[Distributing; 2], 40_000 * MS);
        assert_eq!(world.unsafe_at, None);
    }
}

#[test]
fn a_partner_of_another_key_is_attached_anew() {
    let mut world = World::pair(settings(1), settings(2), 2);
    world.until(0, &[Distributing; 2], 4000 * MS);
    // The LACPDUs of the agreement no longer count for the limit per second.
    world.run(1500 * MS);
    world.change(1, LacpSettings { user_key: 7, ..settings(2) });
    // An end that changes its key leaves its aggregator, and sends that at once.
    world.run(100 * MS);
    assert!(world.states.iter().flatten().all(|&state| state == Standby), "{:?}", world.states);
    let took = world.until(0, &[Distributing; 2], 4000 * MS);
    assert!((1900 * MS..3200 * MS).contains(&took), "{} ms", took / MS);
    assert_eq!(world.view((0, 0)).partner.key, 7 << 6 | 4 << 1 | 1);
    assert_eq!(world.unsafe_at, None);
}

/// The far end of one cable sends another key: the other cables are not affected.
#[test]
fn a_port_whose_partner_changes_leaves_the_others() {
    let mut world = World::pair(settings(1), settings(2), 3);
    world.until(0, &[Distributing; 3], 4000 * MS);
    let actor = world.ends[1].members[1].port.actor;
    world.ends[1].members[1].port.set_actor(Information { key: 77, ..actor });
    (world.ends[1].is_due, world.ends[1].due) = (true, Some(world.now));
    world.run(6000 * MS);
    assert_eq!(world.states[0], [Distributing, Standby, Distributing]);
    let aggregators: Vec<u16> = world.ends[0].views().map(|view| view.aggregator).collect();
    assert_eq!(aggregators, [1, 2, 1]);
}

#[test]
fn cables_to_two_systems_are_two_aggregators_of_which_one_is_used() {
    let ends = vec![end(settings(1), &[GBIT; 3]), end(settings(2), &[GBIT]), end(settings(3), &[GBIT; 2])];
    let mut world = World::new(ends);
    world.join((0, 0), (1, 0));
    world.join((0, 1), (2, 0));
    world.join((0, 2), (2, 1));
    world.run(6000 * MS);
    assert_eq!(world.states[0], [Standby, Distributing, Distributing], "the one of more bandwidth");
    let aggregators: Vec<u16> = world.ends[0].views().map(|view| view.aggregator).collect();
    assert_eq!(aggregators, [1, 2, 2]);
    assert_eq!(world.states[1], [Standby], "it is told that it is not in sync");
    // `stable`: the used one stays as long as it has a port.
    world.carrier(1, false);
    world.run(6000 * MS);
    assert_eq!(world.states[0], [Standby, Down, Distributing]);
    world.carrier(2, false);
    world.run(6000 * MS);
    assert_eq!(world.states[0], [Distributing, Down, Down]);
}

/// Two slow ports to one system, one fast port to another.
#[test]
fn the_aggregator_is_chosen_by_bandwidth_or_by_count() {
    const MBIT: u64 = 1_000_000;
    let slow = Rate(100 * MBIT);
    for (select, wanted) in
        [(Select::Bandwidth, [Distributing, Standby, Standby]), (Select::Count, [Standby, Distributing, Distributing])]
    {
        let one = end(LacpSettings { select, ..settings(1) }, &[GBIT, slow, slow]);
        let mut world = World::new(vec![one, end(settings(2), &[GBIT]), end(settings(3), &[slow; 2])]);
        world.join((0, 1), (2, 0));
        world.join((0, 2), (2, 1));
        world.run(4000 * MS);
        assert_eq!(world.states[0], [Down, Distributing, Distributing], "the only one");
        world.join((0, 0), (1, 0));
        world.run(4000 * MS);
        assert_eq!(world.states[0], wanted, "{}", select.name());
    }
}

/// Three ports of usual priority to one system, one of more than theirs together to another.
#[test]
fn the_aggregator_is_chosen_by_the_sum_of_priorities() {
    for (priority, wanted) in
        [(766, [Distributing, Standby, Standby, Standby]), (764, [Standby, Distributing, Distributing, Distributing])]
    {
        let mut first = LacpSettings { select: Select::PortPriority, ..settings(1) };
        first.members[0].priority = priority;
        let ends = vec![end(first, &[GBIT; 4]), end(settings(2), &[GBIT]), end(settings(3), &[GBIT; 3])];
        let mut world = World::new(ends);
        (0..3).for_each(|n| world.join((0, n + 1), (2, n)));
        world.run(4000 * MS);
        world.join((0, 0), (1, 0));
        world.run(4000 * MS);
        assert_eq!(world.states[0], wanted, "{priority}");
        // A port that is down does not count.
        world.carrier(0, false);
        world.run(4000 * MS);
        assert_eq!(world.states[0], [Distributing, Down, Standby, Standby], "{priority}");
    }
}

/// A port of another rate has another key, so it is an aggregator of its own.
#[test]
fn ports_of_unequal_rate_are_not_used_together() {
    let rates = [GBIT, Rate(10 * Rate::GBIT), GBIT];
    let mut world = World::new(vec![end(settings(1), &rates), end(settings(2), &rates)]);
    (0..3).for_each(|n| world.join((0, n), (1, n)));
    world.run(5000 * MS);
    assert_eq!(world.states, [[Standby, Distributing, Standby]; 2]);
}

#[test]
fn a_cable_back_to_the_same_system_is_not_used() {
    let mut world = World::new(vec![end(settings(1), &[GBIT; 2])]);
    world.join((0, 0), (0, 1));
    world.run(10_000 * MS);
    assert_eq!(world.states[0], [Standby; 2]);
    assert!(world.ends[0].views().all(|view| view.is_loop));
    assert_eq!(world.ends[0].looped(), 0b11);
    // Until no own LACPDU arrives any more.
    world.cables[0].carries = false;
    world.run(10_000 * MS);
    assert!(world.ends[0].views().all(|view| !view.is_loop));
    assert_eq!(world.ends[0].looped(), 0);
}

#[test]
fn without_a_partner_one_link_is_used_alone() {
    let mut world = World::new(vec![end(settings(1), &[GBIT; 2])]);
    (0..2).for_each(|n| world.ends[0].set_link(world.now, MemberId(n), true));
    world.run(2900 * MS);
    assert_eq!(world.states[0], [Standby; 2], "a partner may still speak up");
    world.run(3000 * MS);
    assert_eq!(world.states[0], [Distributing, Standby]);
}

#[test]
fn without_a_partner_no_link_is_used_where_that_is_strict() {
    let strict = LacpSettings { is_strict: true, ..settings(1) };
    let mut world = World::pair(strict, settings(2), 2);
    world.until(0, &[Distributing; 2], 4000 * MS);
    world.cables.iter_mut().for_each(|cable| cable.carries = false);
    world.run(20_000 * MS);
    assert_eq!(world.states, [[Standby, Standby], [Distributing, Standby]]);
    assert_eq!(world.view((0, 0)).receive, Receive::Defaulted);
    world.cables.iter_mut().for_each(|cable| cable.carries = true);
    world.until(0, &[Distributing; 2], 8000 * MS);
    world.until(1, &[Distributing; 2], 500 * MS);
    assert_eq!(world.unsafe_at, None);
    // The operator changes it while there is no partner.
    world.cables.iter_mut().for_each(|cable| cable.carries = false);
    world.run(20_000 * MS);
    world.change(0, settings(1));
    world.until(0, &[Distributing, Standby], 4000 * MS);
    world.change(0, strict);
    world.run(100 * MS);
    assert_eq!(world.states[0], [Standby; 2]);
}

/// A partner that may not aggregate has one link in use, even if it sends the same on two cables.
#[test]
fn a_partner_that_does_not_aggregate_has_one_link() {
    let mut world = World::pair(settings(1), settings(2), 2);
    for line in &mut world.ends[1].members {
        line.port.actor.state = line.port.actor.state.with(State::AGGREGATION, false);
    }
    world.run(6000 * MS);
    assert_eq!(world.states, [[Distributing, Standby]; 2]);
    assert_eq!(world.unsafe_at, None);
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

/// A member that the operator takes out is not sent to any more, and sends that at once. Frames of
/// its partner that are on the way are received. Then it is on standby, and its link stays up.
#[test]
fn a_member_that_is_taken_out_by_hand_leaves_after_what_is_on_its_way() {
    let mut world = up_in_time([settings(1), settings(2)]);
    let mut out = settings(1);
    out.down = 1;
    world.change(0, out);
    world.look(0);
    assert_eq!(world.states[0], [Collecting, Distributing, Distributing], "not sent to, and received from");
    let ns = world.until(1, &[Standby, Distributing, Distributing], 10 * SECOND_NS);
    assert!(ns <= 100 * MS, "its partner takes it out after {ns} ns");
    let ns = world.until(0, &[Standby, Distributing, Distributing], 10 * SECOND_NS);
    assert!(ns <= 100 * MS, "it waits for its partner for {ns} ns");
    world.run(200 * SECOND_NS);
    assert_eq!(world.states, [[Standby, Distributing, Distributing]; 2], "it stays out");
    assert_eq!(world.view((0, 0)).receive, Receive::Current, "and both know of each other");
    world.change(0, settings(1));
    world.until(0, &[Distributing; 3], 4 * SECOND_NS);
    world.until(1, &[Distributing; 3], SECOND_NS);
    assert_eq!(world.unsafe_at, None);
}

/// A partner that does not react is received from for a second.
#[test]
fn a_member_that_is_taken_out_by_hand_does_not_wait_for_a_deaf_partner() {
    let mut world = up_in_time([settings(1), settings(2)]);
    world.cables[0].carries = false;
    let mut out = settings(1);
    out.down = 1;
    world.change(0, out);
    world.look(0);
    assert_eq!(world.states[0], [Collecting, Distributing, Distributing]);
    let ns = world.until(0, &[Standby, Distributing, Distributing], 10 * SECOND_NS);
    assert!((900 * MS..=1100 * MS).contains(&ns), "after {ns} ns");
}

#[test]
fn a_member_that_is_taken_out_by_hand_does_not_churn() {
    let mut world = up_in_time([settings(1), settings(2)]);
    let mut out = settings(1);
    out.down = 1;
    world.change(0, out);
    world.run(70_000 * MS);
    let view = world.view((0, 0));
    assert_eq!((view.actor_churn, view.counts.actor_churned, view.counts.partner_churned), (Churn::None, 0, 0));
    assert_eq!(world.ends[0].churned(), [0, 0]);
    // One that its partner keeps out of sync does churn when it may be used again.
    world.change(1, LacpSettings { down: 1, ..settings(2) });
    world.run(1000 * MS);
    world.change(0, settings(1));
    world.run(70_000 * MS);
    assert_eq!(world.view((0, 0)).partner_churn, Churn::Churned);
}

#[test]
fn who_never_comes_into_sync_churns() {
    // Another aggregator is in use.
    let mut world =
        World::new(vec![end(settings(1), &[GBIT; 2]), end(settings(2), &[GBIT]), end(settings(3), &[GBIT])]);
    world.join((0, 0), (1, 0));
    world.run(3000 * MS);
    world.join((0, 1), (2, 0));
    world.run(50_000 * MS);
    assert!(matches!(world.view((0, 1)).actor_churn, Churn::Monitor(_)));
    world.run(15_000 * MS);
    let view = world.view((0, 1));
    assert_eq!((view.actor_churn, view.counts.actor_churned), (Churn::Churned, 1));
    assert_eq!((view.partner_churn, view.counts.partner_churned), (Churn::None, 0), "it would");
    let view = world.view((2, 0));
    assert_eq!((view.partner_churn, view.counts.partner_churned), (Churn::Churned, 1));
    assert_eq!(world.view((0, 0)).actor_churn, Churn::None);
    assert_eq!([0, 2].map(|end| world.ends[end].churned()), [[1 << 1, 0], [0, 1]]);
}

#[test]
fn a_port_that_was_elsewhere_is_known_there_no_more() {
    let mut world = World::new(vec![end(settings(1), &[GBIT; 2]), end(settings(2), &[GBIT])]);
    world.join((0, 0), (1, 0));
    world.run(3000 * MS);
    world.carrier(0, false);
    world.cables.clear();
    world.join((0, 1), (1, 0));
    world.run(4000 * MS);
    assert_eq!(world.states[0], [Down, Distributing]);
    assert_eq!(world.view((0, 0)).partner.system, Mac([0; 6]));
}

#[test]
fn markers_are_answered_and_no_more_than_so_many() {
    let mut one = end(settings(1), &[GBIT]);
    one.set_link(START, MemberId(0), true);
    let mut frame = Lacpdu::default().frame(Mac([2; 6]));
    frame[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&[2, 1, 1, 16]);
    let mut answers = 0;
    for _ in 0..50 {
        let _ = one.hear(START, MemberId(0), &frame);
        while let Some((_, answer)) = one.poll(START) {
            answers += u32::from(answer[HEADER_BYTES..HEADER_BYTES + 4] == [2, 1, 2, 16]);
        }
    }
    assert_eq!(answers, HEARD_MOST);
    let counts = one.views().next().expect("one").counts;
    assert_eq!((counts.markers, counts.bad), (u64::from(HEARD_MOST), 50 - u64::from(HEARD_MOST)));
    assert_eq!(one.hear(START, MemberId(9), &frame), None, "no such member");
    assert_eq!(one.hear(START, MemberId(0), &frame[..13]), None);
    assert_eq!(one.hear(START, MemberId(0), &frame[..16]), Some(Err(Reason::BondControl)));
}

#[test]
fn more_lacpdus_than_a_partner_may_send_are_not_read() {
    let mut one = end(settings(1), &[GBIT]);
    one.set_link(START, MemberId(0), true);
    let heard = (0..50).filter(|&port| {
        let actor = Information { system: Mac([2; 6]), port, ..Information::default() };
        let pdu = Lacpdu { actor, ..Lacpdu::default() };
        one.hear(START, MemberId(0), &pdu.frame(Mac([2; 6]))) == Some(Ok(()))
    });
    assert_eq!(heard.count() as u32, HEARD_MOST);
}

#[test]
fn the_key_says_speed_and_duplex() {
    assert_eq!(key(0, GBIT, true), 4 << 1 | 1);
    assert_eq!(key(1023, Rate(10_000_000_000), true), 1023 << 6 | 7 << 1 | 1);
    assert_eq!(key(5, Rate(1), true), 5 << 6 | 1);
    assert_eq!(key(0, Rate::MAX, true), 16 << 1 | 1);
    assert_eq!(key(5, Rate(100_000_000), false), 5 << 6 | 3 << 1);
}

/// Sets what both ends of a cable have negotiated.
fn negotiate(world: &mut World, cable: usize, mbit: Option<u32>, duplex: Duplex) {
    for (end, port) in world.cables[cable].ends {
        world.ends[end].set_negotiated(MemberId(port as u8), Negotiated { mbit, duplex });
    }
}

#[test]
fn a_half_duplex_port_aggregates_with_no_other() {
    let mut world = World::pair(settings(1), settings(2), 2);
    world.until(0, &[Distributing; 2], 4000 * MS);
    // One end knows it, and sends it to the other.
    world.ends[0].set_negotiated(MemberId(1), Negotiated { mbit: Some(1000), duplex: Duplex::Half });
    world.run(6000 * MS);
    assert_eq!(world.states, [[Distributing, Standby]; 2]);
    let actor = world.view((0, 1)).actor;
    assert_eq!((actor.key, actor.state.has(State::AGGREGATION)), (4 << 1, false));
    assert!(!world.view((1, 1)).partner.state.has(State::AGGREGATION));
    assert_eq!(world.unsafe_at, None);
    // If there is no other, one is used alone.
    negotiate(&mut world, 0, Some(1000), Duplex::Half);
    negotiate(&mut world, 1, Some(1000), Duplex::Half);
    world.run(6000 * MS);
    assert_eq!(world.states, [[Distributing, Standby]; 2]);
    negotiate(&mut world, 0, Some(1000), Duplex::Full);
    negotiate(&mut world, 1, Some(1000), Duplex::Full);
    world.until(0, &[Distributing; 2], 6000 * MS);
    assert_eq!(world.unsafe_at, None);
}

#[test]
fn a_port_that_has_negotiated_less_is_another_aggregator() {
    const SLOW: Option<u32> = Some(100);
    for (select, wanted) in
        [(Select::Bandwidth, [Distributing, Standby, Standby]), (Select::Count, [Standby, Distributing, Distributing])]
    {
        let mut world = World::pair(LacpSettings { select, ..settings(1) }, LacpSettings { select, ..settings(2) }, 3);
        world.until(0, &[Distributing; 3], 4000 * MS);
        negotiate(&mut world, 1, SLOW, Duplex::Full);
        negotiate(&mut world, 2, SLOW, Duplex::Full);
        world.run(6000 * MS);
        assert_eq!(world.states, [wanted; 2], "{}", select.name());
        assert_eq!(world.view((0, 2)).actor.key, 3 << 1 | 1);
        // More than is configured, and nothing at all, change nothing.
        negotiate(&mut world, 1, Some(10_000), Duplex::Full);
        negotiate(&mut world, 2, None, Duplex::Unknown);
        world.until(0, &[Distributing; 3], 6000 * MS);
        world.run(1000 * MS);
        negotiate(&mut world, 0, Some(1000), Duplex::Full);
        for _ in 0..300 {
            world.run(STEP_NS);
            assert_eq!(world.states, [[Distributing; 3]; 2], "what is said of the port is the same");
        }
    }
}

#[test]
fn the_next_process_knows_what_links_have_negotiated() {
    let mut world = World::pair(settings(1), settings(2), 2);
    (0..2).for_each(|cable| negotiate(&mut world, cable, Some(100), Duplex::Full));
    world.until(0, &[Distributing; 2], 4000 * MS);
    world.run(1000 * MS);
    let records = world.ends[0].export();
    let mut next = end(settings(1), &[GBIT; 2]);
    assert!(next.restore(world.now, &records));
    (0..2).for_each(|n| next.set_link(world.now, MemberId(n), true));
    world.ends[0] = next;
    world.run(100 * MS);
    (0..2).for_each(|cable| negotiate(&mut world, cable, Some(100), Duplex::Full));
    for _ in 0..500 {
        world.run(STEP_NS);
        assert_eq!(world.states, [[Distributing; 2]; 2]);
    }
}

#[test]
fn members_keep_their_numbers_and_what_they_have_agreed() {
    let mut world = World::pair(settings(1), settings(2), 3);
    world.until(0, &[Distributing; 3], 4000 * MS);
    let rates = [GBIT; 3];
    // The first is removed, the others move up, and a new one is added.
    let was = [Some(MemberId(1)), Some(MemberId(2)), None];
    world.ends[0].set_members(world.now, &settings(1), &rates, |n| was[n], |_| false);
    world.ends[0].advance(world.now);
    let states: Vec<_> = (0..3).map(|n| world.ends[0].state(MemberId(n))).collect();
    assert_eq!(states, [Distributing, Distributing, Down]);
    let numbers: Vec<u16> = world.ends[0].views().map(|view| view.actor.port).collect();
    assert_eq!(numbers, [2, 3, 1]);
}

#[test]
fn the_next_process_goes_on_and_the_partner_does_not_notice() {
    let mut world = World::pair(settings(1), settings(2), 2);
    world.until(0, &[Distributing; 2], 4000 * MS);
    world.run(1000 * MS);
    world.ends[0].set_leaving(true);
    let records = world.ends[0].export();
    assert_eq!(records.len(), 2);
    let mut next = end(settings(1), &[GBIT; 2]);
    assert!(next.restore(world.now, &records));
    (0..2).for_each(|n| next.set_link(world.now, MemberId(n), true));
    next.advance(world.now);
    assert_eq!([0, 1].map(|n| next.state(MemberId(n))), [Distributing; 2]);
    world.ends[0] = next;
    for _ in 0..1000 {
        world.run(STEP_NS);
        assert_eq!(world.states, [[Distributing; 2]; 2]);
    }
    assert_eq!(world.view((0, 0)).receive, Receive::Current);

    // Records do not hold for longer than a takeover may take.
    let mut late = end(settings(1), &[GBIT; 2]);
    assert!(late.restore(world.now, &records));
    late.set_link(world.now.plus_ns(COMES_UP_NS + 1), MemberId(0), true);
    late.advance(world.now.plus_ns(COMES_UP_NS + 1));
    assert_eq!(late.state(MemberId(0)), Standby);
    // Records that do not fit are refused.
    let twice = [records[0], (MemberId(1), records[0].1)];
    for bad in [vec![(MemberId(2), records[0].1)], twice.to_vec(), vec![(MemberId(0), Record::default())]] {
        assert!(!end(settings(1), &[GBIT; 2]).restore(world.now, &bad), "{bad:?}");
    }
}

mod random {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Cables fail, carriers and keys change, LACPDUs are forged or lost. A port sends at most
        /// three LACPDUs in any second, and in the end all members are up again.
        #[test]
        fn whatever_happens(
            loss in 0..6u64,
            events in proptest::collection::vec((0..5u8, 0..3usize, any::<[u8; 18]>(), 1..40u64), 0..20),
        ) {
            let mut world = World::pair(settings(1), settings(2), 3);
            world.loss = if loss == 1 { 0 } else { loss };
            for (what, cable, said, wait) in events {
                match what {
                    0 => world.cables[cable].carries ^= true,
                    1 => world.carrier(cable, false),
                    2 => world.carrier(cable, true),
                    3 => world.change(1, LacpSettings { user_key: u16::from(said[0]), ..settings(2) }),
                    _ => {
                        let mut frame = Lacpdu::default().frame(Mac([2; 6]));
                        frame[HEADER_BYTES + 4..HEADER_BYTES + 22].copy_from_slice(&said);
                        let _ = world.ends[0].hear(world.now, MemberId(cable as u8), &frame);
                        world.agreed[0][cable] = false;
                    }
                }
                world.run(wait * 100 * MS);
            }
            for cable in 0..3 {
                world.cables[cable].carries = true;
                world.carrier(cable, true);
            }
            world.loss = 0;
            world.run(15_000 * MS);
            prop_assert_eq!(&world.states, &[vec![Distributing; 3], vec![Distributing; 3]]);
            prop_assert!(world.densest() <= 3, "{}", world.densest());
        }

        /// The same without forged LACPDUs: no member distributes before both ends are in sync.
        #[test]
        fn no_frame_before_both_are_in_sync(
            loss in 0..6u64,
            events in proptest::collection::vec((0..4u8, 0..3usize, 0..64u16, 1..40u64), 0..20),
        ) {
            let mut world = World::pair(settings(1), settings(2), 3);
            world.loss = if loss == 1 { 0 } else { loss };
            for (what, cable, key, wait) in events {
                match what {
                    0 => world.cables[cable].carries ^= true,
                    1 => world.carrier(cable, false),
                    2 => world.carrier(cable, true),
                    _ => world.change(cable % 2, LacpSettings { user_key: key, ..settings(1 + (cable % 2) as u8) }),
                }
                world.run(wait * 100 * MS);
                prop_assert_eq!(world.unsafe_at, None);
            }
        }

        /// No bytes that are received cause a panic.
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut one = end(settings(1), &[GBIT]);
            one.set_link(START, MemberId(0), true);
            let _ = one.hear(START, MemberId(0), &bytes);
            let mut slow = Lacpdu::default().frame(Mac([2; 6])).to_vec();
            slow.truncate(HEADER_BYTES);
            slow.extend(&bytes);
            let _ = one.hear(START, MemberId(0), &slow);
            one.advance(START);
            prop_assert!(one.views().next().is_some());
        }
    }
}
