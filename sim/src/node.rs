//! Node: a switch and its agent, as the worker of one machine runs them.

use std::collections::VecDeque;

use datapath::frame::{Frame, Pool};
use datapath::program::{EndpointId, PortId, Program};
use datapath::switch::Switch;
use datapath::units::Instant;
use datapath::verdict::Reason;

use crate::mail::{Letter, Mail};
use crate::meter::{MAX_FRAME_MOST, Meter};
use crate::steering::Steering;
use crate::topology::Plug;

/// Frames that wait at a switch whose loop lags; more are lost, as in a TAP's ring.
const LAG_FRAMES: usize = 1000;

/// A switch that runs.
#[derive(Debug)]
pub struct Node {
    /// The switch.
    pub switch: Switch,
    /// Its agent, where it has one.
    pub steering: Option<Steering>,
    /// What each port is plugged into.
    pub peers: Vec<Option<Plug>>,
    lags_until: Instant,
    waiting: VecDeque<(PortId, Frame)>,
    /// What has left by the uplink.
    meter: Option<(PortId, Meter)>,
}

impl Node {
    /// A switch that runs `program`.
    ///
    /// # Panics
    /// The program contradicts itself: that is a mistake in the test that made it.
    #[must_use]
    pub fn new(program: &Program, steering: Option<Steering>, seed: u64) -> Self {
        let uplink = program.uplink.as_ref();
        let mut switch = Switch::new(program, seed).expect("a topology's programs are sound");
        switch.watch_arrivals(steering.is_some());
        Node {
            peers: vec![None; program.ports.len()],
            meter: uplink.map(|uplink| (uplink.port, Meter::new(uplink))),
            switch,
            steering,
            lags_until: Instant::ZERO,
            waiting: VecDeque::new(),
        }
    }

    /// Frames it holds.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.waiting.len() + self.switch.frames()
    }

    /// Its loop is not run until then.
    pub fn lag(&mut self, until: Instant) {
        self.lags_until = self.lags_until.max(until);
    }

    /// A frame has come to a port.
    pub fn rx(&mut self, pool: &mut Pool, now: Instant, port: PortId, frame: Frame) {
        if self.switch.is_paused(port, now) {
            self.switch.port_drops(port, Reason::Paused, 1);
            pool.free(frame);
        } else if now >= self.lags_until {
            self.switch.rx(pool, now, port, frame);
        } else if self.waiting.len() < LAG_FRAMES {
            self.waiting.push_back((port, frame));
        } else {
            self.switch.port_drops(port, Reason::PortRing, 1);
            pool.free(frame);
        }
    }

    /// A letter for its agent has come. What it makes of it, `on_time` sees to.
    pub fn hear(&mut self, now: Instant, letter: &Letter) {
        if let Some(steering) = &mut self.steering {
            steering.hear(now, letter);
        }
    }

    /// What is due before frames are sent: those that waited for the loop, then the agent. False where the loop lags, and nothing is sent.
    pub fn on_time(&mut self, pool: &mut Pool, now: Instant, mail: &mut Mail) -> bool {
        if now < self.lags_until {
            return false;
        }
        while let Some((port, frame)) = self.waiting.pop_front() {
            self.switch.rx(pool, now, port, frame);
        }
        if let Some(steering) = &mut self.steering {
            steering.on_time(pool, now, &mut self.switch, mail);
        }
        true
    }

    /// The next frame it sends, and the port. The error says that the uplink was sent more than its rate.
    ///
    /// # Errors
    /// See [`Meter::count`].
    pub fn tx(&mut self, pool: &mut Pool, now: Instant) -> Result<Option<(PortId, Frame)>, String> {
        let Some((port, frame)) = self.switch.tx(pool, now) else { return Ok(None) };
        if let Some((_, meter)) = self.meter.as_mut().filter(|(uplink, _)| *uplink == port) {
            meter.count(now, pool.meta(&frame).wire_bytes)?;
        }
        Ok(Some((port, frame)))
    }

    /// An endpoint's queues hold at most their bound, or one frame.
    ///
    /// # Errors
    /// Which one does not.
    pub fn check_lanes(&self) -> Result<(), String> {
        let endpoints = &self.switch.program().endpoints;
        for (index, endpoint) in endpoints.iter() {
            let stats = self.switch.endpoint_stats(EndpointId(index));
            let bound = u64::from(endpoint.queue_bytes).max(MAX_FRAME_MOST);
            for lane in [stats.egress, stats.ingress, stats.local_egress, stats.local_ingress] {
                if lane.backlog_bytes > bound {
                    return Err(format!("endpoint {index}: {} bytes wait where {bound} may", lane.backlog_bytes));
                }
            }
        }
        Ok(())
    }

    /// When there is something to do, if nothing arrives before.
    #[must_use]
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let waiting = (!self.waiting.is_empty()).then_some(now);
        let agent = self.steering.as_ref().and_then(Steering::deadline);
        let due = [waiting, agent, self.switch.poll_timeout()].into_iter().flatten().min();
        due.map(|at| at.max(self.lags_until).max(now))
    }
}
