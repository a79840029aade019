//! Turns: whose frames the worker reads next, and for how long.
//!
//! At 64 bytes a frame the processor runs out long before the link does, and a scheduler of the link never sees that. So the worker's time is
//! itself shared: ports that have frames to be read take turns by deficit round robin (Shreedhar and Varghese 1996), where a turn is
//! not a number of frames but of nanoseconds, estimated from what frames have cost lately ([`Cost`]). A port that was idle goes before those
//! that are busy, once (the two lists of FQ-CoDel, RFC 8290 section 4.2): what sends little, a ping say, does not wait for those that send
//! as much as they can.
//!
//! Call order: [`Turns::wake`] when a port becomes readable; [`Turns::next_turn`]; read frames until the credit is used or none is left;
//! [`Turns::charge`] what they cost, and [`Turns::sleep`] where none is left.

use std::collections::VecDeque;

/// How long a port of weight one may be served at a time: about one offloaded frame of 64 KiB read and written (design: copies of
/// 10-20 GB/s and a receiver's stack), so that a turn is never less than a frame, and four busy neighbours cost a quiet one 100 us at most.
pub const QUANTUM_NS: u64 = 25_000;
/// Most debt that is remembered, in quanta: a host's stall during a turn must not silence the port that had it.
const MOST_DEBT: i64 = 8;

/// A turn: read this port's frames until they have cost this much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// The port, as numbered by [`Turns::add`].
    pub port: usize,
    /// What is left of its credit, in nanoseconds; at least 1.
    pub credit_ns: u64,
}

/// Which list a port is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum List {
    None,
    Fresh,
    Busy,
}

#[derive(Clone, Copy, Debug)]
struct Port {
    quantum_ns: i64,
    credit_ns: i64,
    list: List,
    ready: bool,
}

/// Deficit round robin over the ports of one worker, in time.
#[derive(Debug, Default)]
pub struct Turns {
    ports: Vec<Port>,
    fresh: VecDeque<usize>,
    busy: VecDeque<usize>,
    ready: usize,
}

impl Turns {
    /// Adds a port with `weight` (at least 1) times a port's usual share; ports are numbered from 0 in this order.
    pub fn add(&mut self, weight: u32) -> usize {
        let quantum_ns = (QUANTUM_NS * u64::from(weight.max(1))) as i64;
        self.ports.push(Port { quantum_ns, credit_ns: 0, list: List::None, ready: false });
        self.fresh.reserve(self.ports.len());
        self.busy.reserve(self.ports.len());
        self.ports.len() - 1
    }

    /// Gives a port another weight.
    pub fn set_weight(&mut self, port: usize, weight: u32) {
        self.ports[port].quantum_ns = (QUANTUM_NS * u64::from(weight.max(1))) as i64;
    }

    /// Frames wait at `port`.
    pub fn wake(&mut self, port: usize) {
        let entry = &mut self.ports[port];
        if !entry.ready {
            entry.ready = true;
            self.ready += 1;
        }
        if entry.list == List::None {
            entry.list = List::Fresh;
            entry.credit_ns = entry.credit_ns.min(0) + entry.quantum_ns;
            self.fresh.push_back(port);
        }
    }

    /// No frames wait at `port` any more. It keeps its place in the round, so that it is not fresh again before the others had theirs.
    pub fn sleep(&mut self, port: usize) {
        let entry = &mut self.ports[port];
        if entry.ready {
            entry.ready = false;
            self.ready -= 1;
        }
    }

    /// Whether any port has frames.
    #[must_use]
    pub fn any_ready(&self) -> bool {
        self.ready > 0
    }

    /// Whose turn it is; `None` where no port has frames. The same port again until its credit is used or it sleeps.
    pub fn next_turn(&mut self) -> Option<Turn> {
        if self.ready == 0 {
            return None;
        }
        while let Some(&port) = self.fresh.front() {
            if let Some(turn) = self.turn(port) {
                return Some(turn);
            }
            self.fresh.pop_front();
            self.ports[port].list = List::Busy;
            self.busy.push_back(port);
        }
        while let Some(&port) = self.busy.front() {
            if let Some(turn) = self.turn(port) {
                return Some(turn);
            }
            self.busy.pop_front();
            let entry = &mut self.ports[port];
            if entry.ready || entry.credit_ns < 0 {
                entry.credit_ns += entry.quantum_ns;
                self.busy.push_back(port);
            } else {
                entry.list = List::None;
            }
        }
        None
    }

    /// `port` was served for `cost_ns`.
    pub fn charge(&mut self, port: usize, cost_ns: u64) {
        let entry = &mut self.ports[port];
        let cost = i64::try_from(cost_ns).unwrap_or(i64::MAX);
        entry.credit_ns = entry.credit_ns.saturating_sub(cost).max(-MOST_DEBT * entry.quantum_ns);
    }

    fn turn(&self, port: usize) -> Option<Turn> {
        let entry = &self.ports[port];
        (entry.ready && entry.credit_ns > 0).then_some(Turn { port, credit_ns: entry.credit_ns as u64 })
    }
}

/// Fixed point of [`Cost`]: 1/1024 ns.
const SHIFT: u32 = 10;
/// The estimate moves by one part in `1 << STEP` with each measurement.
const STEP: u32 = 6;
/// The least estimate, in its fixed point: it must be able to rise again.
const LEAST: u64 = 8;
/// Frames of at least this many bytes on average tell what a byte costs, shorter ones what a frame costs.
const LONG: u64 = 8192;

/// What handling frames costs: so much a frame and so much a byte, learned from measurements as they come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    frame: u64,
    byte: u64,
}

impl Cost {
    /// An estimate to begin with.
    #[must_use]
    pub const fn new(frame_ns: u64, kibibyte_ns: u64) -> Cost {
        Cost { frame: frame_ns << SHIFT, byte: kibibyte_ns }
    }

    /// What `frames` with `bytes` in all cost, in nanoseconds.
    #[must_use]
    pub fn of(&self, frames: u64, bytes: u64) -> u64 {
        (frames * self.frame + bytes * self.byte) >> SHIFT
    }

    /// `frames` with `bytes` in all took `ns`. The estimate follows the median: it moves by the same small step whichever way a
    /// measurement lies, so that the few during which the worker was interrupted, however long, count no more than others.
    pub fn learn(&mut self, frames: u64, bytes: u64, ns: u64) {
        if frames == 0 {
            return;
        }
        let rises = ns > self.of(frames, bytes);
        let estimate = if bytes / frames >= LONG { &mut self.byte } else { &mut self.frame };
        let step = (*estimate >> STEP).max(1);
        *estimate = if rises { estimate.saturating_add(step) } else { (*estimate - step).max(LEAST) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `turns` for `total_ns`; a port that is served burns `cost` a frame, and all of `always` have frames all the time.
    fn run(turns: &mut Turns, cost: &[u64], always: &[usize], total_ns: u64) -> Vec<u64> {
        let mut used = vec![0; cost.len()];
        for &port in always {
            turns.wake(port);
        }
        while used.iter().sum::<u64>() < total_ns {
            let turn = turns.next_turn().unwrap();
            turns.charge(turn.port, cost[turn.port]);
            used[turn.port] += cost[turn.port];
        }
        used
    }

    #[test]
    fn time_is_shared_alike_whatever_a_frame_costs() {
        let mut turns = Turns::default();
        let cost = [1_000, 3_000, 40_000, 700];
        for _ in cost {
            turns.add(1);
        }
        let used = run(&mut turns, &cost, &[0, 1, 2, 3], 100_000_000);
        for time in &used {
            // Deficit round robin is off by at most a quantum and the dearest frame.
            assert!(time.abs_diff(25_000_000) <= QUANTUM_NS + 40_000, "{used:?}");
        }
    }

    #[test]
    fn weights_give_longer_turns() {
        let mut turns = Turns::default();
        turns.add(3);
        turns.add(1);
        let used = run(&mut turns, &[2_000, 2_000], &[0, 1], 100_000_000);
        assert!(used[0].abs_diff(75_000_000) <= 4 * QUANTUM_NS, "{used:?}");
    }

    #[test]
    fn one_that_was_idle_goes_first_but_not_again_and_again() {
        let mut turns = Turns::default();
        for _ in 0..3 {
            turns.add(1);
        }
        run(&mut turns, &[1_000, 1_000, 1_000], &[0, 1], 1_000_000);
        turns.wake(2);
        assert_eq!(turns.next_turn().unwrap().port, 2);
        // It sends a frame whenever the last one was read: it must not take more than its third.
        let mut used = [0u64; 3];
        for _ in 0..100_000 {
            let port = turns.next_turn().unwrap().port;
            turns.charge(port, 1_000);
            used[port] += 1_000;
            if port == 2 {
                turns.sleep(2);
                turns.wake(2);
            }
        }
        assert!(used[2] <= 34_000_000, "{used:?}");
        assert!(used[0] >= 32_000_000, "{used:?}");
    }

    #[test]
    fn debt_is_paid_even_by_one_that_goes_idle() {
        let mut turns = Turns::default();
        for _ in 0..2 {
            turns.add(1);
        }
        // Port 0 sends dear bursts with pauses, port 1 always: neither may have much more than half.
        let mut used = [0u64; 2];
        turns.wake(0);
        turns.wake(1);
        for _ in 0..10_000 {
            let port = turns.next_turn().unwrap().port;
            let cost = if port == 0 { 3 * QUANTUM_NS } else { 5_000 };
            turns.charge(port, cost);
            used[port] += cost;
            if port == 0 {
                turns.sleep(0);
                turns.wake(0);
            }
        }
        let half = used.iter().sum::<u64>() / 2;
        assert!(used[0].abs_diff(half) <= 4 * QUANTUM_NS, "{used:?}");
    }

    #[test]
    fn nobody_ready_means_no_turn_and_a_stall_is_forgiven() {
        let mut turns = Turns::default();
        turns.add(1);
        assert_eq!(turns.next_turn(), None);
        turns.wake(0);
        turns.charge(0, u64::MAX);
        assert!(turns.next_turn().is_some(), "alone, it goes on at once");
        turns.sleep(0);
        assert_eq!(turns.next_turn(), None);
        assert!(!turns.any_ready());
    }

    #[test]
    fn costs_are_learned_apart_and_outliers_do_not_count() {
        let mut cost = Cost::new(5_000, 1_000);
        for round in 0..2_000u64 {
            // Every tenth time the worker is interrupted for a millisecond.
            let stall = if round % 10 == 0 { 1_000_000 } else { 0 };
            cost.learn(8, 8 * 64, 8 * 2_500 + 8 * 64 / 10 + stall);
            cost.learn(1, 65_536, 2_500 + 6_554 + stall);
        }
        assert!(cost.of(1, 0).abs_diff(2_500) < 250, "{cost:?}");
        assert!(cost.of(0, 65_536).abs_diff(6_554) < 700, "{cost:?}");
    }
}
