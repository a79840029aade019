//! The switch.

use crate::frame::{Frame, Pool};
use crate::program::{EndpointId, PortId, Program, TenantId, Tuning};
use crate::stats::{EndpointStats, LaneStats};
use crate::units::{Both, Instant};
use crate::verdict::{Reason, Verdict};

/// Something that the shell should know. At most [`Switch::MAX_EVENTS`] wait; more are counted, not kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A source address moves between endpoints: a loop behind them, or a spoof. It stays where it was.
    Flapping {
        /// The endpoint that had it.
        from: EndpointId,
        /// The endpoint that claims it.
        to: EndpointId,
    },
}

/// The switch: a state machine for frames. Call, in this order: `rx` and `port_drops` (what happened outside), `install` and `tune`
/// (what the operator wants), then `tx` until it gives `None`, `poll_event` likewise, and come back at `poll_timeout`.
#[derive(Debug)]
pub struct Switch {
    program: Program,
    endpoints: Vec<EndpointStats>,
    out: std::collections::VecDeque<(PortId, Frame)>,
}

impl Switch {
    /// Events kept for the shell.
    pub const MAX_EVENTS: usize = 256;

    /// A switch that runs `program`. `seed` keys the hash tables; the same seed and inputs give the same outputs.
    #[must_use]
    pub fn new(program: Program, _seed: u64) -> Self {
        let endpoints = vec![EndpointStats::default(); program.endpoints.len()];
        Switch { program, endpoints, out: Default::default() }
    }

    /// The program that runs.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Counters of one endpoint.
    #[must_use]
    pub fn endpoint_stats(&self, endpoint: EndpointId) -> EndpointStats {
        self.endpoints[endpoint.0 as usize].clone()
    }

    /// Counters of one tenant's traffic over the uplink.
    #[must_use]
    pub fn tenant_stats(&self, _tenant: TenantId) -> Both<LaneStats> {
        Both::default()
    }

    /// Counters of the uplink.
    #[must_use]
    pub fn uplink_stats(&self) -> Both<LaneStats> {
        Both::default()
    }

    /// Drops of frames that belong to no endpoint: from the uplink, for nobody.
    #[must_use]
    pub fn uplink_drops(&self) -> crate::verdict::DropCounters {
        Default::default()
    }

    /// A frame arrived at `port`. Takes it over; says what became of it.
    pub fn rx(&mut self, pool: &mut Pool, _now: Instant, port: PortId, frame: Frame) -> Verdict {
        let to = self
            .program
            .endpoints
            .iter()
            .find(|e| e.port != port && e.identity.macs.iter().any(|m| m.0[..] == pool.bytes(&frame)[..6]));
        match to {
            Some(endpoint) => {
                self.out.push_back((endpoint.port, frame));
                Verdict::Forwarded
            }
            None => {
                for endpoint in self.program.endpoints.iter().filter(|e| e.port != port) {
                    if let Some(copy) = pool.duplicate(&frame) {
                        self.out.push_back((endpoint.port, copy));
                    }
                }
                pool.free(frame);
                Verdict::Forwarded
            }
        }
    }

    /// A port reports that it lost frames before the switch could read them, or could not deliver them.
    pub fn port_drops(&mut self, port: PortId, reason: Reason, frames: u64) {
        if let Some(i) = self.program.endpoints.iter().position(|e| e.port == port) {
            self.endpoints[i].drops.add(reason, frames);
        }
    }

    /// A small live change.
    pub fn tune(&mut self, _now: Instant, _tuning: Tuning) {}

    /// The next frame that is due, and the port it leaves by.
    pub fn tx(&mut self, _pool: &mut Pool, _now: Instant) -> Option<(PortId, Frame)> {
        self.out.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        None
    }

    /// When `tx` will have something to do, if nothing arrives before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}
