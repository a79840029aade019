//! Protocols of a switch: state machines beside it that exchange control frames with what is
//! outside, and change the switch by what they learn. Health checks are not such
//! ([`crate::service`]): what a backend answers waits nowhere. What concerns a bond's members alone
//! is the bond's ([`crate::bond`]).
//!
//! A protocol has no I/O and no clock. A shell calls [`Protocols::run`] in each of its rounds:
//! frames that the switch has taken aside ([`Switch::poll_control`]) come in, and frames and
//! commands go out. Whether a port has a carrier is told as it changes. [`Protocols::poll_timeout`]
//! says when the shell is to come back.

use crate::frame::{Frame, Pool};
use crate::pair::Toward;
use crate::program::{Change, EndpointId, PortId};
use crate::switch::Switch;
use crate::units::{Instant, Rate};
use core::fmt::Debug;

/// Frames that one protocol may send in a round: one that has more goes on in the next.
const SENT_MOST: usize = 64;

/// What a protocol wants done to its switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// A step to another program. Where it does not fit any more, what it is about is gone.
    Change(Box<Change>),
    /// A limit on what an endpoint sends over the uplink.
    Limit {
        /// The sender.
        from: EndpointId,
        /// Which of its traffic.
        to: Toward,
        /// At most this much; `None` lifts the limit.
        rate: Option<Rate>,
        /// When its turn is among those to one receiver, in 1/256 of the time of a frame.
        phase: Option<u8>,
    },
}

/// A state machine beside a switch. Same inputs, same outputs.
pub trait Protocol: Debug {
    /// A control frame came by a port, as it was on the wire. True where it is this protocol's:
    /// then no other is asked. Whoever is outside may send anything.
    fn rx(&mut self, now: Instant, port: PortId, frame: &[u8]) -> bool;

    /// A port has got a carrier, or lost it.
    fn carrier(&mut self, now: Instant, port: PortId, is_up: bool) {
        let _ = (now, port, is_up);
    }

    /// Does what is due, and takes from the switch what it counts. Called in each round: it must
    /// cost next to nothing where nothing is due.
    fn advance(&mut self, now: Instant, switch: &mut Switch);

    /// When something is due, if nothing comes before.
    fn poll_timeout(&self) -> Option<Instant>;

    /// The next frame to send, in a buffer of the pool, and the port that it leaves by. Where the
    /// pool has no buffer it is lost, as on a wire.
    fn poll_tx(&mut self, pool: &mut Pool) -> Option<(PortId, Frame)> {
        let _ = pool;
        None
    }

    /// The next command.
    fn poll_command(&mut self) -> Option<Command>;
}

/// The protocols of one switch.
#[derive(Debug, Default)]
pub struct Protocols(Vec<Box<dyn Protocol + Send>>);

impl Protocols {
    /// Adds one. Those that came first are asked first.
    pub fn add(&mut self, protocol: Box<dyn Protocol + Send>) {
        self.0.push(protocol);
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A port has got a carrier, or lost it.
    pub fn carrier(&mut self, now: Instant, port: PortId, is_up: bool) {
        self.0.iter_mut().for_each(|protocol| protocol.carrier(now, port, is_up));
    }

    /// When something is due, if nothing comes before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.0.iter().filter_map(|protocol| protocol.poll_timeout()).min()
    }

    /// One round: what came for them, what is due, and what they want. True where something was
    /// done to the switch, which then may have something to send.
    pub fn run(&mut self, pool: &mut Pool, now: Instant, switch: &mut Switch) -> bool {
        if self.is_empty() {
            return false;
        }
        while let Some((port, frame)) = switch.poll_control() {
            let bytes = pool.bytes(&frame);
            if self.0.iter_mut().any(|protocol| protocol.rx(now, port, bytes)) {
                pool.free(frame);
            } else {
                switch.refuse_control(pool, frame);
            }
        }
        let mut has_done = false;
        for protocol in &mut self.0 {
            protocol.advance(now, switch);
            has_done |= obey(&mut **protocol, pool, now, switch);
        }
        has_done
    }
}

/// Does to a switch what a protocol wants, and sends its frames. True where there was something.
pub fn obey(protocol: &mut dyn Protocol, pool: &mut Pool, now: Instant, switch: &mut Switch) -> bool {
    let mut has_done = false;
    while let Some(command) = protocol.poll_command() {
        has_done = true;
        match command {
            // Refused where what it concerns is gone, and then there is nothing to do.
            Command::Change(change) => drop(switch.change(pool, now, *change)),
            Command::Limit { from, to, rate, phase } => {
                // Where there is no room for more, whoever asked for it sees that nothing came of
                // it.
                let _ = switch.limit_pair(pool, now, from, to, rate);
                phase.into_iter().for_each(|phase| switch.take_turn(now, from, to, phase));
            }
        }
    }
    for _ in 0..SENT_MOST {
        let Some((port, frame)) = protocol.poll_tx(pool) else { break };
        has_done = true;
        switch.send_control(pool, port, frame);
    }
    has_done
}
