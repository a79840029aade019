//! The congestion agents of the worker's switches: one for each switch that a cluster has as a
//! host.
//!
//! A round asks an agent only where something has arrived since its last sample, or when its time
//! has come; so a daemon at rest sleeps. What agents of switches in this daemon say to each other
//! is handed over at once; what is for other daemons goes to `peers`, which does not make the
//! worker wait.

use super::edit::Rest;
use super::{Edit, Worker};
use crate::cluster::peers::Voice;
use agent::events::Tuning;
use agent::report::Report;
use agent::settings::ControllerKind;
use agent::{Agent, Directory, Settings};
use datapath::arrivals::{Arrival, QueueSample};
use datapath::frame::Pool;
use datapath::program::{EndpointId, PortId};
use datapath::protocol::{Command, Protocol};
use datapath::switch::Switch;
use datapath::units::Instant;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How often the controller `rate` looks at what arrives, in nanoseconds.
const SAMPLE_NS: u64 = 1_000_000;

/// Pairs after which a part of a report ends: some ten microseconds.
const PART_PAIRS: u32 = 256;
/// Receivers that are looked at for a part.
const PART_RECEIVERS: u32 = 2048;

/// What an agent is to be.
#[derive(Clone)]
pub struct Post {
    /// Its switch's name as a host of the cluster.
    pub host: Arc<str>,
    /// How it decides.
    pub settings: Settings,
    /// What it knows.
    pub directory: Directory,
    /// Larger than that of any before it; that of who stays is its own.
    pub life: u64,
}

impl Post {
    /// Whether an agent that was told this needs not be told `other`.
    #[must_use]
    pub fn says(&self, other: &Post) -> bool {
        (&self.host, self.settings, &self.directory) == (&other.host, other.settings, &other.directory)
    }
}

/// What an agent is doing: to the receivers from one on.
#[derive(Debug, Default)]
pub struct AgentPart {
    /// Its switch's name as a host, where that has an agent.
    pub host: Option<Arc<str>>,
    /// [`Post::life`] of the agent: with another it is another agent.
    pub life: u64,
    /// What it is doing. What is not of receivers is in the first part.
    pub report: Report,
    /// Where the next part begins; `None` at the end.
    pub next: Option<u32>,
}

/// An agent at its switch.
#[derive(Debug)]
pub struct Station {
    host: Arc<str>,
    life: u64,
    settings: Settings,
    agent: Agent,
    /// When the switch's counts were taken last.
    sampled: Instant,
    arrivals: Vec<Arrival>,
    queues: Vec<QueueSample>,
}

impl Station {
    fn new(post: Post, now: Instant) -> Station {
        let Post { host, settings, directory, life } = post;
        let agent = Agent::new(settings, &host, life, directory);
        Station { host, life, settings, agent, sampled: now, arrivals: Vec::new(), queues: Vec::new() }
    }

    fn interval_ns(&self) -> u64 {
        match self.settings.controller {
            ControllerKind::Rate => SAMPLE_NS,
            ControllerKind::Gatekeeper => self.settings.gatekeeper.sample_ns,
        }
    }
}

impl Protocol for Station {
    /// Agents speak over the network between hosts, not in control frames.
    fn rx(&mut self, _now: Instant, _port: PortId, _frame: &[u8]) -> bool {
        false
    }

    /// Takes the switch's counts where it is time, and lets the agent work on them.
    fn advance(&mut self, now: Instant, switch: &mut Switch) {
        let is_due = self.poll_timeout().is_some_and(|due| due <= now);
        let span_ns = now.since(self.sampled);
        if span_ns >= self.interval_ns() {
            if let Some(carries) = switch.carried_rate() {
                self.agent.set_link(carries);
            }
            switch.take_arrivals(&mut self.arrivals, &mut self.queues);
            self.sampled = now;
            if is_due || !self.queues.is_empty() {
                return self.agent.sample(now, span_ns, &self.arrivals, &self.queues);
            }
        }
        if is_due {
            self.agent.advance(now);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.agent.poll_timeout()
    }

    fn poll_command(&mut self) -> Option<Command> {
        let Tuning { from, to, rate, phase } = self.agent.poll_tuning()?;
        Some(Command::Limit { from, to, rate, phase })
    }
}

/// What other daemons' agents have said, and what they are to be told.
#[derive(Default)]
pub(super) struct Mail {
    /// The switches of this daemon by their names as hosts.
    here: BTreeMap<Arc<str>, usize>,
    voice: Option<Voice>,
    /// From whom, to the switch of which number, and what.
    round: Vec<(Arc<str>, usize, Vec<u8>)>,
}

impl Worker {
    /// What speaks to other daemons.
    pub(super) fn set_voice(&mut self, voice: Option<Voice>) {
        self.mail.voice = voice;
    }

    /// Puts an agent at a switch, tells the one that is there what is so now, or takes it away with
    /// all its limits. What it leaves over is freed elsewhere.
    pub(super) fn appoint(&mut self, index: usize, post: Option<Box<Post>>) -> Option<Rest> {
        let now = self.outside.now;
        let switch_slot = &mut self.switch_slots[index];
        let goes = match (&mut switch_slot.station, post) {
            (Some(station), Some(mut post)) if (&station.host, station.settings) == (&post.host, post.settings) => {
                let directory = std::mem::take(&mut post.directory);
                post.directory = station.agent.set_directory(now, directory);
                Some(Rest::Edit(Box::new(Edit::Agent(index, Some(post)))))
            }
            (station, post) => {
                let there = post.is_some();
                let before = std::mem::replace(station, post.map(|post| Box::new(Station::new(*post, now))));
                switch_slot.switch.watch_arrivals(there);
                lift_all(&mut switch_slot.switch, &mut self.pool, now);
                switch_slot.touched = true;
                before.map(Rest::Agent)
            }
        };
        self.mail.here = self.stations().map(|(index, station)| (Arc::clone(&station.host), index)).collect();
        goes
    }

    /// Makes the limits that a switch already has those of its agent; without one they end.
    pub(super) fn adopt_limits(&mut self, index: usize) {
        let (now, switch_slot) = (self.outside.now, &mut self.switch_slots[index]);
        let Some(station) = &mut switch_slot.station else {
            return lift_all(&mut switch_slot.switch, &mut self.pool, now);
        };
        for endpoint in (0..switch_slot.switch.program().endpoints.len() as u32).map(EndpointId) {
            for pair in switch_slot.switch.pairs(endpoint) {
                station.agent.adopt(now, endpoint, pair.to, pair.rate);
            }
        }
    }

    /// Carries what agents say to each other.
    pub(super) fn carry_mail(&mut self) {
        self.collect();
        let mut round = std::mem::take(&mut self.mail.round);
        for (from, index, datagram) in round.drain(..) {
            self.hear(index, &from, &datagram);
        }
        self.mail.round = round;
    }

    /// A host's agent said something to the agent of switch `index`.
    pub(super) fn hear(&mut self, index: usize, from: &str, datagram: &[u8]) {
        let now = self.outside.now;
        if let Some(station) = self.switch_slots.get_mut(index).and_then(|switch_slot| switch_slot.station.as_mut()) {
            // What is not heeded is counted by the agent.
            let _ = station.agent.hear(now, from, datagram);
        }
    }

    /// A datagram from another daemon, whose host was authenticated.
    pub(super) fn receive(&mut self, from: &str, datagram: &[u8]) {
        // Only a daemon with one agent is known to others.
        let index = self.stations().map(|(index, _)| index).next();
        if let Some(index) = index {
            self.hear(index, from, datagram);
        }
    }

    /// What the agent of a switch is doing, from a receiver on.
    pub(super) fn agent(&self, switch: usize, from: u32) -> AgentPart {
        let station = self.switch_slots.get(switch).and_then(|switch_slot| switch_slot.station.as_deref());
        let Some(station) = station else { return AgentPart::default() };
        let (report, next) = station.agent.report_part(self.outside.now, from, (PART_PAIRS, PART_RECEIVERS));
        AgentPart { host: Some(Arc::clone(&station.host)), life: station.life, report, next }
    }

    fn stations(&self) -> impl Iterator<Item = (usize, &Station)> {
        self.switch_slots
            .iter()
            .enumerate()
            .filter_map(|(index, switch_slot)| Some((index, switch_slot.station.as_deref()?)))
    }

    /// Takes what agents say: to whom is here, for the next round; to others by `peers`.
    fn collect(&mut self) {
        let Mail { here, voice, round } = &mut self.mail;
        for switch_slot in &mut self.switch_slots {
            let Some(station) = &mut switch_slot.station else { continue };
            while let Some((to, datagram)) = station.agent.poll_message() {
                match (here.get(&to), &voice) {
                    (Some(&index), _) => round.push((Arc::clone(&station.host), index, datagram)),
                    (None, Some(voice)) => voice.send(&to, datagram),
                    (None, None) => {}
                }
            }
        }
    }
}

/// Limits that nobody speaks for would never end.
fn lift_all(switch: &mut Switch, pool: &mut Pool, now: Instant) {
    for endpoint in (0..switch.program().endpoints.len() as u32).map(EndpointId) {
        let limited: Vec<_> = switch.pairs(endpoint).map(|pair| pair.to).collect();
        for to in limited {
            let _ = switch.limit_pair(pool, now, endpoint, to, None);
        }
    }
}
