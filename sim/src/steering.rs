//! Steering: what runs an agent beside its switch, as a daemon's worker does.
//!
//! The agent says when it wants to look at what arrived; what it wants limited goes to the switch,
//! what it has to say into the mail. Agents read clocks of their own: each starts at another time,
//! and may jump ahead.

use agent::Agent;
use agent::events::{Arrival, QueueSample, Toward};
use datapath::frame::Pool;
use datapath::program::EndpointId;
use datapath::switch::Switch;
use datapath::units::Instant;

use crate::mail::{Letter, Mail};
use crate::topology::AgentSpec;

/// Between two looks at what arrived while the agent asks for none: as often as while it does,
/// since the next frame may be a flood's.
const LOOK_NS: u64 = 1_000_000;

/// An agent and what it needs to run.
#[derive(Debug)]
pub struct Steering {
    spec: AgentSpec,
    agent: Agent,
    /// Times it was started.
    life: u64,
    /// What its clock shows more than the world's, in nanoseconds.
    ahead_ns: u64,
    /// Whether the switch may have limits of an earlier life.
    is_new: bool,
    /// When what arrived was looked at last.
    sampled: Instant,
    arrivals: Vec<Arrival>,
    queues: Vec<QueueSample>,
    /// Datagrams that it refused to heed.
    refused: u64,
}

impl Steering {
    /// An agent that has just started.
    #[must_use]
    pub fn new(spec: &AgentSpec) -> Self {
        Steering {
            agent: start(spec, 1),
            spec: spec.clone(),
            life: 1,
            ahead_ns: spec.ahead_ns,
            is_new: false,
            sampled: Instant::ZERO,
            arrivals: Vec::new(),
            queues: Vec::new(),
            refused: 0,
        }
    }

    /// The agent.
    #[must_use]
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Datagrams that it refused to heed.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// The agent is killed and starts anew. It knows nothing of the limits that the switch has:
    /// whoever starts an agent lifts those.
    pub fn restart(&mut self) {
        self.life += 1;
        self.agent = start(&self.spec, self.life);
        self.is_new = true;
    }

    /// Its clock jumps.
    pub fn step(&mut self, ahead_ns: u64) {
        self.ahead_ns += ahead_ns;
    }

    /// A datagram has come.
    pub fn hear(&mut self, now: Instant, letter: &Letter) {
        let from = &self.spec.names[letter.from];
        let heard = self.agent.hear(now.plus_ns(self.ahead_ns), from, &letter.bytes);
        self.refused += u64::from(heard.is_err());
    }

    /// Does what is due.
    pub fn on_time(&mut self, pool: &mut Pool, now: Instant, switch: &mut Switch, mail: &mut Mail) {
        if std::mem::take(&mut self.is_new) {
            lift_all(pool, now, switch);
        }
        let own = now.plus_ns(self.ahead_ns);
        if now.since(self.sampled) >= LOOK_NS {
            self.arrivals.clear();
            self.queues.clear();
            switch.take_arrivals(&mut self.arrivals, &mut self.queues);
            if let Some(carries) = switch.carried_rate() {
                self.agent.set_link(carries);
            }
            self.agent.sample(own, now.since(self.sampled), &self.arrivals, &self.queues);
            self.sampled = now;
        }
        while let Some(tuning) = self.agent.poll_tuning() {
            // Refused where the switch knows no such endpoint any more.
            let _ = switch.limit_pair(pool, now, tuning.from, tuning.to, tuning.rate);
            tuning.phase.into_iter().for_each(|phase| switch.take_turn(now, tuning.from, tuning.to, phase));
        }
        while let Some((to, bytes)) = self.agent.poll_message() {
            let Some(to) = self.spec.names.iter().position(|name| *name == to) else { continue };
            mail.send(now, Letter { from: self.spec.place, to, bytes });
        }
    }

    /// When there is something to do, if nothing is heard before; by the world's clock.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let look = self.sampled.plus_ns(LOOK_NS);
        // What is due before the next look can wait for it, so that nothing can be due again and
        // again.
        Some(if self.is_new { self.sampled } else { look })
    }
}

fn lift_all(pool: &mut Pool, now: Instant, switch: &mut Switch) {
    let endpoints: Vec<EndpointId> = switch.program().endpoints.iter().map(|(id, _)| EndpointId(id)).collect();
    for from in endpoints {
        let limited: Vec<Toward> = switch.pairs(from).map(|pair| pair.to).collect();
        for to in limited {
            // There is such a limit, or else nothing to do.
            let _ = switch.limit_pair(pool, now, from, to, None);
        }
    }
}

fn start(spec: &AgentSpec, life: u64) -> Agent {
    Agent::new(spec.settings, &spec.names[spec.place], life, spec.directory.clone())
}
