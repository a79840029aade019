//! Restart: a switch's process is killed, and another begins anew; or it gives way to another, as
//! the daemon's worker does (`levada/src/worker/leave.rs`).

use datapath::frame::{Frame, Pool};
use datapath::program::PortId;
use datapath::switch::{State, Switch};
use datapath::units::Instant;

/// How long a process that gives way sends what it holds before its state is exported, in
/// nanoseconds.
const DRAIN_NS: u64 = 5_000_000;
/// How long, then, what has waited for order.
const ORDERED_NS: u64 = 200_000;
/// How long a process that gives way works on, in nanoseconds.
pub const GIVES_WAY_NS: u64 = DRAIN_NS + ORDERED_NS;
/// How long it goes on with the rest beside the next process.
const FINISH_NS: u64 = 200_000_000;

/// How far a restart is.
#[derive(Debug)]
pub enum Restart {
    /// The process was killed, and the next one begins then.
    Away(Instant),
    /// It reads only what frames wait for, and sends what it holds, until then; the next one is
    /// away for so long.
    Drains(Instant, u64),
    /// It reads nothing, and sends as one that leaves.
    Leaves(Instant, u64),
    /// It stands still until the next one begins, which has this state of then.
    HandedOver(Instant, Box<State>, Instant),
}

impl Restart {
    /// A switch gives way to the next process, which takes so long to begin.
    #[must_use]
    pub fn takeover(now: Instant, away_ns: u64) -> Restart {
        Restart::Drains(now.plus_ns(DRAIN_NS), away_ns)
    }

    /// When it goes on.
    #[must_use]
    pub fn due(&self) -> Instant {
        match self {
            Restart::Away(until) | Restart::HandedOver(until, ..) => *until,
            Restart::Drains(until, _) | Restart::Leaves(until, _) => *until,
        }
    }

    /// Whether anybody sends.
    #[must_use]
    pub fn sends(&self) -> bool {
        matches!(self, Restart::Drains(..) | Restart::Leaves(..))
    }

    /// Whether it still reads what frames wait for that have come.
    #[must_use]
    pub fn reads_awaited(&self) -> bool {
        matches!(self, Restart::Drains(..))
    }

    /// Whether what comes is lost: nobody has the ports open.
    #[must_use]
    pub fn loses(&self) -> bool {
        matches!(self, Restart::Away(_))
    }

    /// Its next step, which is due.
    #[must_use]
    pub fn step(self, pool: &mut Pool, now: Instant, switch: &mut Switch) -> Step {
        match self {
            Restart::Away(_) => Step::Begins(None),
            Restart::Drains(_, away_ns) => {
                switch.set_leaving(pool, now, true);
                Step::Goes(Restart::Leaves(now.plus_ns(ORDERED_NS), away_ns))
            }
            Restart::Leaves(_, away_ns) => {
                Step::Goes(Restart::HandedOver(now.plus_ns(away_ns), Box::new(switch.export(now)), now))
            }
            Restart::HandedOver(_, state, at) => Step::Begins(Some((state, now.since(at)))),
        }
    }
}

/// What follows in a restart.
#[derive(Debug)]
pub enum Step {
    /// It is so far.
    Goes(Restart),
    /// The next process begins, with what there is of a state, and how many nanoseconds old that
    /// is.
    Begins(Option<(Box<State>, u64)>),
}

/// The process before, which sends what it still holds.
#[derive(Debug)]
pub struct Former {
    switch: Switch,
    until: Instant,
}

impl Former {
    /// Goes on for a while.
    #[must_use]
    pub fn new(now: Instant, switch: Switch) -> Former {
        Former { switch, until: now.plus_ns(FINISH_NS) }
    }

    /// Frames that it holds.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.switch.frames()
    }

    /// The next frame that it sends.
    pub fn tx(&mut self, pool: &mut Pool, now: Instant) -> Option<(PortId, Frame)> {
        self.switch.tx(pool, now)
    }

    /// When it has something to do.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.switch.poll_timeout().map_or(self.until, |at| at.min(self.until))
    }

    /// Whether it has ended; what it held then is lost.
    pub fn has_ended(&mut self, pool: &mut Pool, now: Instant) -> bool {
        let has_ended = now >= self.until || self.switch.frames() == 0;
        if has_ended {
            self.clear(pool);
        }
        has_ended
    }

    /// Frees what it holds.
    pub fn clear(&mut self, pool: &mut Pool) {
        self.switch.clear(pool);
    }
}
