//! A port of the link aggregation control protocol. It has the receive, periodic transmission, mux
//! and churn machines of IEEE 802.1AX-2020, clause 6.4, and the time of its next LACPDU.
//!
//! Each machine is a function of its state and inputs, called until none moves. [`super::Lacp`]
//! sets what they need of other ports, and which aggregator is selected. With coupled control, a
//! port that the mux machine lets receive also sends. With independent control, it sends once its
//! partner receives from it.

use super::Negotiated;
use super::pdu::{Information, Lacpdu, State};
use crate::units::Instant;

/// Time between LACPDUs in nanoseconds, if the partner requests short timeouts; and long ones.
/// Table 6-1 of the standard has these and the following times.
const FAST_NS: u64 = 1_000_000_000;
const SLOW_NS: u64 = 30_000_000_000;
/// What a partner has sent holds for three times that.
const SHORT_TIMEOUT_NS: u64 = 3 * FAST_NS;
const LONG_TIMEOUT_NS: u64 = 3 * SLOW_NS;
/// A port waits this long for others of its aggregator before it attaches.
const WAIT_NS: u64 = 2_000_000_000;
/// An end that is out of sync for longer than this churns.
const CHURN_NS: u64 = 60_000_000_000;
/// Most LACPDUs in any [`FAST_NS`].
const SENT_MOST: usize = 3;

/// The receive machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receive {
    /// The link is down.
    PortDisabled,
    /// No LACPDU has arrived in time; three seconds are left for one.
    Expired,
    /// There is no partner.
    Defaulted,
    /// The partner is known.
    Current,
}

impl Receive {
    /// Its name in the standard.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Receive::PortDisabled => "port-disabled",
            Receive::Expired => "expired",
            Receive::Defaulted => "defaulted",
            Receive::Current => "current",
        }
    }
}

/// The mux machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Mux {
    /// In no aggregator.
    Detached,
    /// Waits for others.
    Waiting,
    /// In its aggregator.
    Attached,
    /// Received from, with independent control.
    Collecting,
    /// Received from, and sent to.
    Distributing,
}

impl Mux {
    /// Its name in the standard, with coupled control or without.
    #[must_use]
    pub fn name(self, is_coupled: bool) -> &'static str {
        match self {
            Mux::Detached => "detached",
            Mux::Waiting => "waiting",
            Mux::Attached => "attached",
            Mux::Collecting => "collecting",
            Mux::Distributing if is_coupled => "collecting-distributing",
            Mux::Distributing => "distributing",
        }
    }
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

impl Selected {
    /// Its name in the standard.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Selected::Unselected => "unselected",
            Selected::Standby => "standby",
            Selected::Selected => "selected",
        }
    }
}

/// Whether one end came into sync in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Churn {
    /// It has time until then.
    Monitor(Instant),
    /// It is in sync.
    None,
    /// It is not.
    Churned,
}

impl Churn {
    /// Its name in Linux.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Churn::Monitor(_) => "monitoring",
            Churn::None => "none",
            Churn::Churned => "churned",
        }
    }
}

/// A port.
#[derive(Clone, Debug)]
pub struct Port {
    /// This end.
    pub actor: Information,
    /// The other end, as it last described itself.
    pub partner: Information,
    /// Whether the link may be used.
    pub is_enabled: bool,
    /// Until when the partner counts as this system.
    pub loop_until: Option<Instant>,
    /// The receive machine.
    pub receive: Receive,
    /// The mux machine.
    pub mux: Mux,
    /// Whether its aggregator is the used one.
    pub selected: Selected,
    /// Whether its wait is over.
    pub is_ready: bool,
    /// All ports of its aggregator that wait are ready.
    pub may_attach: bool,
    /// Whether this end came into sync in time.
    pub actor_churn: Churn,
    /// Whether the other end did.
    pub partner_churn: Churn,
    /// A LACPDU is to be sent.
    needs_to_send: bool,
    current_until: Option<Instant>,
    wait_until: Option<Instant>,
    periodic_due: Option<(Instant, bool)>,
    /// When the last LACPDUs were sent, the oldest first.
    sent_at: [Option<Instant>; SENT_MOST],
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
    /// PDUs that were malformed, unknown, or too many in a second.
    pub bad: u64,
    /// Markers answered.
    pub markers: u64,
    /// How often this end was out of sync for long.
    pub actor_churned: u64,
    /// How often the other end was.
    pub partner_churned: u64,
}

impl Port {
    /// A port with its link down.
    pub fn new(actor: Information) -> Port {
        Port {
            actor,
            partner: nobody(actor.state.has(State::SHORT_TIMEOUT)),
            is_enabled: false,
            loop_until: None,
            receive: Receive::PortDisabled,
            mux: Mux::Detached,
            selected: Selected::Unselected,
            is_ready: false,
            may_attach: false,
            actor_churn: Churn::None,
            partner_churn: Churn::None,
            needs_to_send: false,
            current_until: None,
            wait_until: None,
            periodic_due: None,
            sent_at: [None; SENT_MOST],
            counts: Counts::default(),
        }
    }

    /// Whether it forms an aggregator alone: there is no partner, or one end may not aggregate.
    pub fn is_individual(&self) -> bool {
        !self.actor.state.has(State::AGGREGATION) || !self.partner.state.has(State::AGGREGATION)
    }

    /// Whether a partner has described itself, and that still holds.
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
            (self.current_until, self.loop_until, self.periodic_due) = (None, None, None);
            self.needs_to_send = false;
            (self.actor_churn, self.partner_churn) = (Churn::None, Churn::None);
            self.selected = Selected::Unselected;
        }
    }

    /// Changes what this end sends of itself, and makes a LACPDU due. If its identity changes, it
    /// leaves its aggregator.
    pub fn set_actor(&mut self, actor: Information) {
        let kept = State::SYNCHRONIZATION.0
            | State::COLLECTING.0
            | State::DISTRIBUTING.0
            | State::DEFAULTED.0
            | State::EXPIRED.0;
        let state = State(self.actor.state.0 & kept | actor.state.0 & !kept);
        let actor = Information { state, ..actor };
        if !is_same(&self.actor, &actor) {
            self.selected = Selected::Unselected;
        }
        self.needs_to_send |= self.actor != actor;
        self.actor = actor;
    }

    /// The partner is this system: the cable leads back.
    pub fn hear_self(&mut self, now: Instant) {
        if self.is_enabled {
            self.loop_until = Some(now.plus_ns(SHORT_TIMEOUT_NS));
            self.selected = Selected::Unselected;
        }
    }

    /// The receive machine's state EXPIRED.
    fn expire(&mut self, now: Instant) {
        self.receive = Receive::Expired;
        set(&mut self.partner, State::SYNCHRONIZATION, false);
        set(&mut self.partner, State::SHORT_TIMEOUT, true);
        set(&mut self.actor, State::EXPIRED, true);
        self.current_until = Some(now.plus_ns(SHORT_TIMEOUT_NS));
    }

    /// Its state DEFAULTED.
    pub fn default_partner(&mut self) {
        let default = nobody(self.actor.state.has(State::SHORT_TIMEOUT));
        if !is_same(&self.partner, &default) {
            self.selected = Selected::Unselected;
        }
        self.receive = Receive::Defaulted;
        self.partner = default;
        set(&mut self.actor, State::EXPIRED, false);
        set(&mut self.actor, State::DEFAULTED, true);
        self.current_until = None;
    }

    /// Its state INITIALIZE: the partner is at another port now.
    pub fn initialize(&mut self) {
        self.default_partner();
        self.receive = Receive::PortDisabled;
    }

    /// Its state CURRENT: a LACPDU has arrived.
    pub fn hear(&mut self, now: Instant, pdu: &Lacpdu) {
        if !self.is_enabled {
            return;
        }
        self.loop_until = None;
        if !is_same(&self.partner, &pdu.actor) || self.actor.state.has(State::DEFAULTED) {
            self.selected = Selected::Unselected;
        }
        const SEEN: [State; 4] = [State::ACTIVITY, State::SHORT_TIMEOUT, State::AGGREGATION, State::SYNCHRONIZATION];
        let is_known = is_same(&self.actor, &pdu.partner);
        let sees_state = SEEN.iter().all(|&bit| self.actor.state.has(bit) == pdu.partner.state.has(bit));
        self.needs_to_send |= !is_known || !sees_state;
        self.partner = pdu.actor;
        // The partner is in sync if it reports that, and means this port.
        let is_meant = is_known || !pdu.actor.state.has(State::AGGREGATION);
        let is_active = pdu.actor.state.has(State::ACTIVITY)
            || self.actor.state.has(State::ACTIVITY) && pdu.partner.state.has(State::ACTIVITY);
        // By the standard, a partner that receives nothing for three seconds may report sync for
        // three more. But what is sent to it is lost.
        let hears = !pdu.actor.state.has(State::EXPIRED);
        let in_sync = is_meant && is_active && hears && pdu.actor.state.has(State::SYNCHRONIZATION);
        set(&mut self.partner, State::SYNCHRONIZATION, in_sync);
        set(&mut self.actor, State::DEFAULTED, false);
        set(&mut self.actor, State::EXPIRED, false);
        let is_short = self.actor.state.has(State::SHORT_TIMEOUT);
        self.current_until = Some(now.plus_ns(if is_short { SHORT_TIMEOUT_NS } else { LONG_TIMEOUT_NS }));
        self.receive = Receive::Current;
    }

    /// The receive machine's timeouts.
    pub fn run_receive(&mut self, now: Instant) {
        self.loop_until = self.loop_until.filter(|&until| until > now);
        if self.current_until.is_none_or(|until| until > now) {
            return;
        }
        match self.receive {
            Receive::Current => self.expire(now),
            Receive::Expired => self.default_partner(),
            Receive::Defaulted | Receive::PortDisabled => self.current_until = None,
        }
    }

    /// The end of the mux machine's wait.
    pub fn run_wait(&mut self, now: Instant) {
        if self.wait_until.is_some_and(|until| until <= now) {
            (self.wait_until, self.is_ready) = (None, true);
        }
    }

    /// One step of the mux machine. True if it moved.
    pub fn run_mux(&mut self, now: Instant, is_coupled: bool) -> bool {
        let is_selected = self.selected == Selected::Selected;
        let in_sync = self.partner.state.has(State::SYNCHRONIZATION);
        let is_received = is_coupled || self.partner.state.has(State::COLLECTING);
        let next = match self.mux {
            Mux::Detached if self.selected != Selected::Unselected => Mux::Waiting,
            Mux::Waiting if self.selected == Selected::Unselected => Mux::Detached,
            Mux::Waiting if is_selected && self.is_ready && self.may_attach => Mux::Attached,
            Mux::Attached if !is_selected => Mux::Detached,
            Mux::Attached if in_sync && is_coupled => Mux::Distributing,
            Mux::Attached if in_sync => Mux::Collecting,
            Mux::Collecting if !is_selected || !in_sync => Mux::Attached,
            Mux::Collecting if is_received => Mux::Distributing,
            Mux::Distributing if is_coupled && (!is_selected || !in_sync) => Mux::Attached,
            Mux::Distributing if !is_selected || !in_sync || !is_received => Mux::Collecting,
            same => same,
        };
        if next == self.mux {
            return false;
        }
        (self.mux, self.wait_until, self.is_ready) = (next, None, false);
        if next == Mux::Waiting {
            self.wait_until = Some(now.plus_ns(WAIT_NS));
            return true;
        }
        set(&mut self.actor, State::SYNCHRONIZATION, next >= Mux::Attached);
        set(&mut self.actor, State::COLLECTING, next >= Mux::Collecting);
        set(&mut self.actor, State::DISTRIBUTING, next == Mux::Distributing);
        self.needs_to_send = true;
        true
    }

    /// The periodic machine: no LACPDUs if both ends are passive; else as often as the partner
    /// requests.
    pub fn run_periodic(&mut self, now: Instant) {
        let is_active = self.actor.state.has(State::ACTIVITY) || self.partner.state.has(State::ACTIVITY);
        if !self.is_enabled || !is_active {
            self.periodic_due = None;
            return;
        }
        let is_fast = self.partner.state.has(State::SHORT_TIMEOUT);
        let next = now.plus_ns(if is_fast { FAST_NS } else { SLOW_NS });
        match self.periodic_due {
            Some((due, was_fast)) if due > now && (was_fast || !is_fast) => self.periodic_due = Some((due, is_fast)),
            _ => {
                self.needs_to_send = true;
                self.periodic_due = Some((next, is_fast));
            }
        }
    }

    /// The churn machines. A port that the operator has taken down does not churn.
    pub fn run_churn(&mut self, now: Instant, is_down: bool) {
        let Counts { actor_churned, partner_churned, .. } = &mut self.counts;
        let ends = [
            (&mut self.actor_churn, self.actor.state, actor_churned),
            (&mut self.partner_churn, self.partner.state, partner_churned),
        ];
        for (churn, state, count) in ends {
            *churn = match *churn {
                _ if !self.is_enabled || is_down || state.has(State::SYNCHRONIZATION) => Churn::None,
                Churn::None => Churn::Monitor(now.plus_ns(CHURN_NS)),
                Churn::Monitor(until) if until <= now => {
                    *count += 1;
                    Churn::Churned
                }
                same => same,
            };
        }
    }

    /// When the next LACPDU may be sent; `None` if none is to be sent.
    pub fn send_due(&self) -> Option<Instant> {
        let is_active = self.actor.state.has(State::ACTIVITY) || self.partner.state.has(State::ACTIVITY);
        let earliest = self.sent_at[0].map_or(Instant::ZERO, |oldest| oldest.plus_ns(FAST_NS));
        (self.needs_to_send && self.is_enabled && is_active).then_some(earliest)
    }

    /// The next LACPDU, if one is to be sent and may be.
    pub fn poll_pdu(&mut self, now: Instant) -> Option<Lacpdu> {
        if self.send_due()? > now {
            return None;
        }
        self.sent_at.rotate_left(1);
        self.sent_at[SENT_MOST - 1] = Some(now);
        self.counts.sent += 1;
        self.needs_to_send = false;
        Some(Lacpdu { actor: self.actor, partner: self.partner })
    }

    /// When a machine will move, if nothing arrives before. [`Port::send_due`] is not included.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.is_enabled {
            return None;
        }
        let churn = |churn: Churn| match churn {
            Churn::Monitor(until) => Some(until),
            Churn::None | Churn::Churned => None,
        };
        let all = [
            self.current_until,
            self.loop_until,
            self.wait_until,
            self.periodic_due.map(|(due, _)| due),
            churn(self.actor_churn),
            churn(self.partner_churn),
        ];
        all.into_iter().flatten().min()
    }

    /// What the next process should know; `None` if there is no agreement.
    pub fn record(&self, negotiated: Negotiated) -> Option<Record> {
        let has_agreed = self.receive == Receive::Current && self.mux == Mux::Distributing && self.has_partner();
        has_agreed.then_some(Record { port: self.actor.port, negotiated, partner: self.partner })
    }

    /// Continues where another process was, in which the port was received from and sent to. The
    /// partner notices nothing.
    pub fn go_on(&mut self, now: Instant, partner: Information) {
        (self.is_enabled, self.partner, self.selected) = (true, partner, Selected::Selected);
        (self.receive, self.mux, self.is_ready) = (Receive::Current, Mux::Distributing, false);
        let agreed = State::SYNCHRONIZATION.0 | State::COLLECTING.0 | State::DISTRIBUTING.0;
        set(&mut self.actor, State(agreed), true);
        set(&mut self.actor, State(State::DEFAULTED.0 | State::EXPIRED.0), false);
        let is_short = self.actor.state.has(State::SHORT_TIMEOUT);
        self.current_until = Some(now.plus_ns(if is_short { SHORT_TIMEOUT_NS } else { LONG_TIMEOUT_NS }));
        self.needs_to_send = true;
    }
}

/// What the next process gets of a port that has agreed with its partner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// Its number.
    pub port: u16,
    /// What its link has negotiated.
    pub negotiated: Negotiated,
    /// The partner, as it last described itself.
    pub partner: Information,
}

/// The default partner, while none has described itself: it is alone and in sync, so it may be sent
/// to. It gets LACPDUs as often as this end requests them.
fn nobody(is_fast: bool) -> Information {
    let state = State::default()
        .with(State::SHORT_TIMEOUT, is_fast)
        .with(State::SYNCHRONIZATION, true)
        .with(State::COLLECTING, true)
        .with(State::DISTRIBUTING, true);
    Information { state, ..Information::default() }
}

fn set(end: &mut Information, bit: State, is_set: bool) {
    end.state = end.state.with(bit, is_set);
}

/// Whether both describe the same end of the same aggregation.
fn is_same(one: &Information, other: &Information) -> bool {
    let of = |end: &Information| {
        (end.system_priority, end.system, end.key, end.port_priority, end.port, end.state.has(State::AGGREGATION))
    };
    of(one) == of(other)
}
