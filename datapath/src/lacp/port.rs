//! A port of the link aggregation control protocol: the receive, periodic transmission, mux and
//! churn machines of IEEE 802.1AX-2020, clause 6.4, and when its next LACPDU may be sent.
//!
//! Each machine is a function of its state and of what it looks at, called until none moves. What
//! they need of other ports, and which aggregator is selected, is told from outside
//! ([`super::Lacp`]).

use super::pdu::{Information, Lacpdu, State};
use crate::units::Instant;

/// Between LACPDUs where the partner wants them often, in nanoseconds; and seldom. Table 6-1 of the
/// standard has these and what follows.
pub const FAST_NS: u64 = 1_000_000_000;
pub const SLOW_NS: u64 = 30_000_000_000;
/// A partner is believed for three times that.
const SHORT_TIMEOUT_NS: u64 = 3 * FAST_NS;
const LONG_TIMEOUT_NS: u64 = 3 * SLOW_NS;
/// A port waits for others of its aggregator for so long before it attaches.
pub const WAIT_NS: u64 = 2_000_000_000;
/// Out of sync for longer than that is churn.
const CHURN_NS: u64 = 60_000_000_000;
/// LACPDUs in [`FAST_NS`] at most.
const SENT_MOST: u8 = 3;

/// The receive machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receive {
    /// The link is down.
    PortDisabled,
    /// Nothing has come for a while; the partner is given three seconds.
    Expired,
    /// Nobody is there.
    Defaulted,
    /// The partner is known.
    Current,
}

/// The mux machine. With coupled control `Collecting` is passed through.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Mux {
    /// In no aggregator.
    Detached,
    /// Waits for others.
    Waiting,
    /// In its aggregator.
    Attached,
    /// Received from.
    Collecting,
    /// Sent to, too.
    Distributing,
}

/// Whether an aggregator is selected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Selected {
    /// None yet.
    Unselected,
    /// One that is not used.
    Standby,
    /// The one that is used.
    Selected,
}

/// Whether one end has come into sync in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Churn {
    /// It has until then.
    Monitor(Instant),
    /// It is.
    None,
    /// It is not.
    Churned,
}

/// A port.
#[derive(Clone, Debug)]
pub struct Port {
    /// This end.
    pub actor: Information,
    /// The other, as it last described itself.
    pub partner: Information,
    /// What is so of the link, as far as it may be used.
    pub is_enabled: bool,
    /// The partner is this very system.
    pub is_loop: bool,
    pub receive: Receive,
    pub mux: Mux,
    pub selected: Selected,
    /// Whether its wait is over.
    pub is_ready: bool,
    /// All of its aggregator that wait are ready.
    pub may_attach: bool,
    pub actor_churn: Churn,
    pub partner_churn: Churn,
    is_coupled: bool,
    /// A LACPDU is to be sent.
    needs_to_send: bool,
    current_until: Option<Instant>,
    wait_until: Option<Instant>,
    periodic_due: Option<(Instant, bool)>,
    sent: u8,
    sent_since: Instant,
    /// What was counted.
    pub counts: Counts,
}

/// What a port has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// LACPDUs received.
    pub received: u64,
    /// LACPDUs sent.
    pub sent: u64,
    /// Malformed, unknown, or more than are read in a second.
    pub bad: u64,
    /// Markers answered.
    pub markers: u64,
    /// How often an end was out of sync for long.
    pub churned: u64,
}

impl Port {
    pub fn new(actor: Information, is_coupled: bool) -> Port {
        Port {
            actor,
            partner: nobody(),
            is_enabled: false,
            is_loop: false,
            receive: Receive::PortDisabled,
            mux: Mux::Detached,
            selected: Selected::Unselected,
            is_ready: false,
            may_attach: false,
            actor_churn: Churn::None,
            partner_churn: Churn::None,
            is_coupled,
            needs_to_send: false,
            current_until: None,
            wait_until: None,
            periodic_due: None,
            sent: 0,
            sent_since: Instant::ZERO,
            counts: Counts::default(),
        }
    }

    /// Whether it forms an aggregator alone: nobody is there, or who is may not aggregate.
    pub fn is_individual(&self) -> bool {
        !self.actor.state.has(State::AGGREGATION) || !self.partner.state.has(State::AGGREGATION)
    }

    pub fn has_partner(&self) -> bool {
        matches!(self.receive, Receive::Current | Receive::Expired) && self.partner.system.0 != [0; 6]
    }

    /// Whether the link may be used.
    pub fn set_enabled(&mut self, now: Instant, is_enabled: bool) {
        if self.is_enabled == is_enabled {
            return;
        }
        self.is_enabled = is_enabled;
        if is_enabled {
            self.expire(now);
            self.actor_churn = Churn::Monitor(now.plus_ns(CHURN_NS));
            self.partner_churn = self.actor_churn;
        } else {
            self.receive = Receive::PortDisabled;
            set(&mut self.partner, State::SYNCHRONIZATION, false);
            (self.current_until, self.is_loop) = (None, false);
            (self.actor_churn, self.partner_churn) = (Churn::None, Churn::None);
            self.selected = Selected::Unselected;
        }
    }

    /// The receive machine's EXPIRED.
    fn expire(&mut self, now: Instant) {
        self.receive = Receive::Expired;
        set(&mut self.partner, State::SYNCHRONIZATION, false);
        set(&mut self.partner, State::SHORT_TIMEOUT, true);
        set(&mut self.actor, State::EXPIRED, true);
        self.current_until = Some(now.plus_ns(SHORT_TIMEOUT_NS));
    }

    /// Its DEFAULTED.
    pub fn default_partner(&mut self) {
        let default = nobody();
        if !is_same(&self.partner, &default) {
            self.selected = Selected::Unselected;
        }
        self.receive = Receive::Defaulted;
        self.partner = default;
        set(&mut self.actor, State::EXPIRED, false);
        set(&mut self.actor, State::DEFAULTED, true);
        self.current_until = None;
    }

    /// Its CURRENT: a LACPDU has come.
    pub fn hear(&mut self, now: Instant, pdu: &Lacpdu) {
        if !self.is_enabled {
            return;
        }
        if !is_same(&self.partner, &pdu.actor) || self.actor.state.has(State::DEFAULTED) {
            self.selected = Selected::Unselected;
        }
        const SEEN: [State; 4] = [State::ACTIVITY, State::SHORT_TIMEOUT, State::AGGREGATION, State::SYNCHRONIZATION];
        let is_known = is_same(&self.actor, &pdu.partner);
        let sees_state = SEEN.iter().all(|&bit| self.actor.state.has(bit) == pdu.partner.state.has(bit));
        self.needs_to_send |= !is_known || !sees_state;
        self.partner = pdu.actor;
        // In sync is who says so, and means this port.
        let is_meant = is_known || !pdu.actor.state.has(State::AGGREGATION);
        let is_active = pdu.actor.state.has(State::ACTIVITY)
            || self.actor.state.has(State::ACTIVITY) && pdu.partner.state.has(State::ACTIVITY);
        let in_sync = is_meant && is_active && pdu.actor.state.has(State::SYNCHRONIZATION);
        set(&mut self.partner, State::SYNCHRONIZATION, in_sync);
        set(&mut self.actor, State::DEFAULTED, false);
        set(&mut self.actor, State::EXPIRED, false);
        let is_short = self.actor.state.has(State::SHORT_TIMEOUT);
        self.current_until = Some(now.plus_ns(if is_short { SHORT_TIMEOUT_NS } else { LONG_TIMEOUT_NS }));
        self.receive = Receive::Current;
    }

    /// The receive machine, where time moves it.
    pub fn run_receive(&mut self, now: Instant) {
        if self.current_until.is_none_or(|until| until > now) {
            return;
        }
        match self.receive {
            Receive::Current => self.expire(now),
            Receive::Expired => self.default_partner(),
            Receive::Defaulted | Receive::PortDisabled => self.current_until = None,
        }
    }

    /// One step of the mux machine. True where it moved.
    pub fn run_mux(&mut self, now: Instant) -> bool {
        let is_selected = self.selected == Selected::Selected && self.is_enabled && !self.is_loop;
        let in_sync = self.partner.state.has(State::SYNCHRONIZATION);
        let collects = self.partner.state.has(State::COLLECTING);
        if self.mux == Mux::Waiting && self.wait_until.is_some_and(|until| until <= now) {
            (self.wait_until, self.is_ready) = (None, true);
        }
        let next = match self.mux {
            Mux::Detached if self.selected != Selected::Unselected && self.is_enabled => Mux::Waiting,
            Mux::Waiting if self.selected == Selected::Unselected || !self.is_enabled => Mux::Detached,
            Mux::Waiting if is_selected && self.is_ready && self.may_attach => Mux::Attached,
            Mux::Attached if !is_selected => Mux::Detached,
            Mux::Attached if in_sync && self.is_coupled => Mux::Distributing,
            Mux::Attached if in_sync => Mux::Collecting,
            Mux::Collecting if !is_selected || !in_sync => Mux::Attached,
            Mux::Collecting if collects => Mux::Distributing,
            Mux::Distributing if !is_selected || !in_sync => {
                if self.is_coupled {
                    Mux::Attached
                } else {
                    Mux::Collecting
                }
            }
            Mux::Distributing if !self.is_coupled && !collects => Mux::Collecting,
            same => same,
        };
        if next == self.mux {
            return false;
        }
        self.mux = next;
        (self.wait_until, self.is_ready) = (None, false);
        match next {
            Mux::Waiting => self.wait_until = Some(now.plus_ns(WAIT_NS)),
            _ => {
                set(&mut self.actor, State::SYNCHRONIZATION, next >= Mux::Attached);
                set(&mut self.actor, State::COLLECTING, next >= Mux::Collecting);
                set(&mut self.actor, State::DISTRIBUTING, next == Mux::Distributing);
                self.needs_to_send = true;
            }
        }
        true
    }

    /// The periodic machine: none where both ends are passive; else as often as the partner wants.
    pub fn run_periodic(&mut self, now: Instant) {
        let is_active = self.actor.state.has(State::ACTIVITY) || self.partner.state.has(State::ACTIVITY);
        if !self.is_enabled || !is_active {
            self.periodic_due = None;
            return;
        }
        let is_fast = self.partner.state.has(State::SHORT_TIMEOUT);
        let next = now.plus_ns(if is_fast { FAST_NS } else { SLOW_NS });
        match self.periodic_due {
            None => self.periodic_due = Some((now, is_fast)),
            Some((due, was_fast)) if due <= now || is_fast && !was_fast => {
                self.needs_to_send = true;
                self.periodic_due = Some((next, is_fast));
            }
            Some((due, was_fast)) if was_fast != is_fast => self.periodic_due = Some((due, is_fast)),
            Some(_) => {}
        }
    }

    /// The churn machines.
    pub fn run_churn(&mut self, now: Instant) {
        let ends = [(&mut self.actor_churn, self.actor.state), (&mut self.partner_churn, self.partner.state)];
        for (churn, state) in ends {
            let in_sync = state.has(State::SYNCHRONIZATION);
            *churn = match *churn {
                _ if !self.is_enabled => Churn::None,
                _ if in_sync => Churn::None,
                Churn::None => Churn::Monitor(now.plus_ns(CHURN_NS)),
                Churn::Monitor(until) if until <= now => {
                    self.counts.churned += 1;
                    Churn::Churned
                }
                same => same,
            };
        }
    }

    /// The next LACPDU, where one is to be sent and may be.
    pub fn poll_pdu(&mut self, now: Instant) -> Option<Lacpdu> {
        let is_active = self.actor.state.has(State::ACTIVITY) || self.partner.state.has(State::ACTIVITY);
        if !self.needs_to_send || !self.is_enabled || !is_active {
            return None;
        }
        if now.since(self.sent_since) >= FAST_NS {
            (self.sent, self.sent_since) = (0, now);
        }
        if self.sent >= SENT_MOST {
            return None;
        }
        self.sent += 1;
        self.counts.sent += 1;
        self.needs_to_send = false;
        Some(Lacpdu { actor: self.actor, partner: self.partner })
    }

    /// When a machine will move, if nothing comes before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.is_enabled {
            return None;
        }
        let waits = (self.needs_to_send && self.sent >= SENT_MOST).then(|| self.sent_since.plus_ns(FAST_NS));
        let churn = |churn: Churn| match churn {
            Churn::Monitor(until) => Some(until),
            Churn::None | Churn::Churned => None,
        };
        let periodic = self.periodic_due.map(|(due, _)| due);
        let all =
            [self.current_until, self.wait_until, periodic, waits, churn(self.actor_churn), churn(self.partner_churn)];
        all.into_iter().flatten().min()
    }
}

/// What is taken for the partner where nobody has described himself: one that may be sent to,
/// alone.
fn nobody() -> Information {
    let state = State::default()
        .with(State::SYNCHRONIZATION, true)
        .with(State::COLLECTING, true)
        .with(State::DISTRIBUTING, true);
    Information { state, ..Information::default() }
}

fn set(end: &mut Information, bit: State, is_set: bool) {
    end.state = end.state.with(bit, is_set);
}

/// Whether two describe the same end of the same aggregation.
fn is_same(one: &Information, other: &Information) -> bool {
    let of = |end: &Information| {
        (end.system_priority, end.system, end.key, end.port_priority, end.port, end.state.has(State::AGGREGATION))
    };
    of(one) == of(other)
}
