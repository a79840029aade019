#![forbid(unsafe_code)]
//! The congestion agent: the part of a switch that sees what arrives from other hosts and has their
//! switches slow down who sends too much.
//!
//! There is one for each switch with an uplink. It receives on behalf of its endpoints (controller
//! [`rate`], or [`gatekeeper`] as published), and it obeys on behalf of its senders ([`leases`]):
//! limits of pairs whatever controller is set, the published notifications, which halve all that an
//! endpoint sends, only where that controller is. It has no clock, no socket and no thread: a shell
//! calls it, in this order:
//!
//! - outside events in: [`Agent::sample`] each millisecond while [`Agent::poll_timeout`] says so,
//!   with what the switch counted ([`events`]); [`Agent::hear`] for each datagram of another agent,
//!   after whose host was authenticated; [`Agent::advance`] when `poll_timeout` has come and there
//!   is nothing to sample;
//! - mutators: [`Agent::set_directory`] when the program, the configuration or the cluster changed;
//!   [`Agent::set_link`] before samples, with what the uplink carries then;
//! - work out, after any of these, until they give nothing: [`Agent::poll_tuning`] for the switch,
//!   [`Agent::poll_message`] for other hosts.
//!
//! What a peer can do is bounded: it may speak only for endpoints that the directory has at its
//! host, and only about endpoints here, so what it can hold back is what is sent to it; how often
//! is bounded, how many limits there are is bounded, of one host and of all, and each ends by
//! itself ([`leases::free_within_ns`]). Nothing that is lost, doubled, late or forged does more
//! than that. Where the published controller is set, a peer can have everything halved that an
//! endpoint sends which also sends to it: that is how it was published. State grows with the hosts
//! that it talks to, not with the cluster.

pub mod directory;
pub mod events;
pub mod fill;
pub mod gatekeeper;
pub mod leases;
pub mod message;
mod meter;
mod post;
pub mod rate;
pub mod report;
pub mod settings;

pub use directory::{Cluster, Directory};
pub use settings::Settings;

use datapath::program::EndpointId;
use datapath::units::{Both, Instant, Rate};
use events::{Arrival, QueueSample, Toward, Tuning};
use leases::{Asked, Leases};
use message::{Message, MessageError, Say};
use post::Post;
use report::{Counters, PeerReport, Report};
use settings::ControllerKind;
use std::fmt;
use std::sync::Arc;

/// Why a datagram, or a part of it, was not heeded. It is counted, and nothing else is to be done
/// about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HearError {
    /// It is from no host of the cluster.
    Stranger,
    /// The host says more than a host may.
    TooMuch,
    /// It is no message.
    Message(MessageError),
    /// It was heard before, is too old, or the first of another life, which the next is to bear
    /// out.
    Replay,
    /// So many of its pairs were not heeded: the receiver is not at the host that spoke, the sender
    /// is not here, or there was no room.
    Pairs(u32),
}

impl fmt::Display for HearError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HearError::Stranger => write!(f, "it is from no host of the cluster"),
            HearError::TooMuch => write!(f, "the host sends too many"),
            HearError::Message(error) => write!(f, "{error}"),
            HearError::Replay => write!(f, "it was heard before, is too old, or as yet alone in its life"),
            HearError::Pairs(pairs) => {
                write!(f, "{pairs} of its pairs are not for this host to ask, or not for us to heed")
            }
        }
    }
}

impl std::error::Error for HearError {}

/// The agent of one switch. The module says in which order it is called.
#[derive(Debug)]
pub struct Agent {
    settings: Settings,
    me: Arc<str>,
    directory: Directory,
    rate: rate::Controller,
    gatekeeper: gatekeeper::Controller,
    leases: Leases,
    post: Post,
    counters: Counters,
}

impl Agent {
    /// The agent of host `me`, which is to be a host of the directory's cluster. `life` is to be
    /// larger than that of any agent of this host before: wall-clock nanoseconds do.
    #[must_use]
    pub fn new(settings: Settings, me: &str, life: u64, directory: Directory) -> Agent {
        Agent {
            settings,
            me: me.into(),
            directory,
            rate: rate::Controller::default(),
            gatekeeper: gatekeeper::Controller::default(),
            leases: Leases::default(),
            post: Post::new(life),
            counters: Counters::default(),
        }
    }

    /// When [`Agent::sample`] or [`Agent::advance`] is to be called next, without anything
    /// arriving; `None`: not before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let sample = match self.settings.controller {
            ControllerKind::Rate => self.rate.poll_timeout(),
            ControllerKind::Gatekeeper => self.gatekeeper.poll_timeout(&self.settings.gatekeeper),
        };
        sample.into_iter().chain(self.leases.poll_timeout()).min()
    }

    /// What is going on.
    #[must_use]
    pub fn report(&self, now: Instant) -> Report {
        self.report_part(now, 0, (u32::MAX, u32::MAX)).0
    }

    /// The same a part at a time: of receivers from number `from` on until so many pairs are told,
    /// or so many receivers looked at, and of all else in the part from 0 on. Where the next part
    /// begins; `None` at the end.
    #[must_use]
    pub fn report_part(&self, now: Instant, from: u32, (pairs, receivers): (u32, u32)) -> (Report, Option<u32>) {
        let next = self.rate.part_end(from, pairs, receivers);
        let host = |limited: &report::Limited| self.directory.host_seen_by(limited.to, limited.from).cloned();
        let limited = self.rate.report(from..next.unwrap_or(u32::MAX));
        let limited = limited.map(|limited| report::Limited { host: host(&limited), ..limited }).collect();
        if from > 0 {
            return (Report { limited, ..Report::default() }, next);
        }
        let peers = self.post.peers().iter();
        let report = Report {
            contention: self.rate.contention(now),
            limited,
            obeyed: self.leases.report().collect(),
            peers: peers.map(|peer| PeerReport { host: peer.name.clone(), counts: peer.counts }).collect(),
            counters: self.counters,
        };
        (report, next)
    }

    /// The switch has counted for `span_ns`: what arrived from the uplink, each pair at most once,
    /// and what became of the ingress queues.
    pub fn sample(&mut self, now: Instant, span_ns: u64, arrivals: &[Arrival], queues: &[QueueSample]) {
        self.counters.samples += 1;
        self.advance(now);
        let (directory, post, counters) = (&self.directory, &mut self.post, &mut self.counters);
        match self.settings.controller {
            ControllerKind::Rate => {
                self.rate.sample(now, span_ns, arrivals, directory, post, counters);
                self.rate.greet(now, directory, post);
            }
            ControllerKind::Gatekeeper => {
                self.gatekeeper.sample(now, &self.settings.gatekeeper, queues, directory, post, counters);
            }
        }
    }

    /// Time has passed: limits whose lease ran out are relaxed.
    pub fn advance(&mut self, now: Instant) {
        self.leases.advance(now, self.egress(), &self.settings);
    }

    /// The agent of host `from` said something. How many pairs it asked about.
    ///
    /// # Errors
    /// Why it, or a part of it, was not heeded.
    pub fn hear(&mut self, now: Instant, from: &str, datagram: &[u8]) -> Result<u32, HearError> {
        let Some(host) = self.directory.cluster().host(from).filter(|&host| *host != self.me).cloned() else {
            self.counters.strangers += 1;
            return Err(HearError::Stranger);
        };
        let number = self.post.number(&host);
        let heard = self.heed(now, number, &host, datagram);
        let counts = &mut self.post.peer(number).counts;
        match heard {
            Ok(_) | Err(HearError::Pairs(_)) => {
                counts.heard += 1;
                counts.heard_at = Some(now);
            }
            Err(HearError::Stranger | HearError::TooMuch | HearError::Message(_) | HearError::Replay) => {}
        }
        counts.refused += match heard {
            Ok(_) => 0,
            Err(HearError::Pairs(pairs)) => u64::from(pairs),
            Err(_) => 1,
        };
        heard
    }

    fn heed(&mut self, now: Instant, number: u32, host: &Arc<str>, datagram: &[u8]) -> Result<u32, HearError> {
        let peer = self.post.peer(number);
        if !peer.may_speak(now) {
            self.counters.floods += 1;
            return Err(HearError::TooMuch);
        }
        let message = Message::read(datagram).map_err(|error| {
            self.counters.garbage += 1;
            HearError::Message(error)
        })?;
        let life = peer.life();
        if !peer.is_new(now, message.life, message.sequence) {
            self.counters.replays += 1;
            return Err(HearError::Replay);
        }
        if life != message.life {
            self.leases.orphan(now, host, message.life);
        }
        let (asked, link) = ((message.life, message.sequence), self.egress());
        let (mut heeded, mut refused) = (0, 0);
        let halves = self.settings.controller == ControllerKind::Gatekeeper;
        for pair in &message.pairs {
            let from = self.directory.own(pair.tenant, pair.from);
            let place = match from {
                Some(from) => self.directory.host_seen_by(from, pair.to),
                None => self.directory.cluster().host_of(pair.tenant, pair.to),
            };
            // What halves everything that an endpoint sends concerns other receivers too: only
            // where that is the way that was chosen.
            let may = place == Some(host) && (pair.say != Say::Halve || halves);
            let Some(from) = from.filter(|_| may) else {
                let counter = if may { &mut self.counters.foreign } else { &mut self.counters.lies };
                *counter += 1;
                refused += 1;
                continue;
            };
            let became = match pair.say {
                Say::Rate(rate, phase) => {
                    let lease = (rate, message.lease_ms);
                    self.leases.limit(now, host, asked, (from, pair.to), lease, phase)
                }
                Say::Lift => self.leases.lift(now, host, asked, from, pair.to),
                Say::Halve => self.leases.halve(now, host, from, link, &self.settings),
            };
            match became {
                Asked::Done => heeded += 1,
                Asked::Old => {}
                Asked::Full => {
                    self.counters.full += 1;
                    refused += 1;
                }
            }
        }
        if refused > 0 { Err(HearError::Pairs(refused)) } else { Ok(heeded) }
    }

    /// The world has changed. Limits of receivers that are elsewhere now are relaxed, and what is
    /// gone is forgotten. What was known before is given back: to free it takes as long as the
    /// cluster is large.
    #[must_use]
    pub fn set_directory(&mut self, now: Instant, directory: Directory) -> Directory {
        let before = std::mem::replace(&mut self.directory, directory);
        let directory = &self.directory;
        self.post.keep(|host| directory.cluster().host(host).is_some());
        self.rate.revise(directory);
        self.gatekeeper.revise(directory);
        let place = |from, to| directory.host_seen_by(from, to).cloned();
        self.leases.revise(now, |endpoint| directory.endpoints.get(endpoint.0).is_some(), place);
        before
    }

    /// The uplink carries so much now: less than the directory says where members of a bond are
    /// down, or have negotiated less. What it carries nothing changes nothing.
    pub fn set_link(&mut self, carries: Both<Rate>) {
        if self.directory.set_link(carries) {
            self.rate.remeasure();
        }
    }

    /// The switch has this limit since before this agent was there, at a planned restart. It runs
    /// out unless its receiver asks for it again.
    pub fn adopt(&mut self, now: Instant, from: EndpointId, to: Toward, rate: Rate) {
        let directory = &self.directory;
        let host = match to {
            Toward::Address(to) => directory.host_seen_by(from, to),
            Toward::Everyone => None,
        };
        self.leases.adopt(now, host.cloned().unwrap_or_else(|| "".into()), from, to, rate);
    }

    /// The next limit that the switch is to set or lift.
    pub fn poll_tuning(&mut self) -> Option<Tuning> {
        self.leases.poll()
    }

    /// The next datagram, of at most [`message::MAX_DATAGRAM`] bytes, and the host whose agent it
    /// is for.
    pub fn poll_message(&mut self) -> Option<(Arc<str>, Vec<u8>)> {
        self.post.poll()
    }

    /// What the uplink sends at most.
    fn egress(&self) -> Rate {
        self.directory.link.map_or(Rate(0), |link| link.egress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::program::{Attachment, Endpoint, PortId, Program, Slots, Tenant, TenantId};
    use datapath::service::Service;
    use datapath::wire::Mac;

    #[test]
    fn a_limit_for_a_services_address_holds_its_director() {
        let (service, receiver) = (Mac([2, 0, 0, 3, 0, 0]), Mac([2, 0, 0, 1, 0, 0]));
        for attachment in [Attachment::Vlan(10), Attachment::Untagged] {
            // In the untagged network the receiver may be another tenant's.
            let of = if attachment == Attachment::Untagged { "guests" } else { "a" };
            let mut program = Program::default();
            program.tenants.push(Tenant { attachment, ..Tenant::default() });
            let director = Endpoint { is_director: true, ..Endpoint::new(TenantId(0), PortId(1)) };
            program.endpoints.push(director);
            let director = Some(EndpointId(0));
            program.services.push(Service { tenant: TenantId(0), mac: service, director, ..Service::default() });
            let mut names: Slots<String> = Slots::default();
            names.push("a".to_owned());
            let mut cluster = Cluster::default();
            cluster.add_host("h1");
            cluster.place("h1", "a", service);
            cluster.place("h2", of, receiver);
            let directory = Directory::new(Arc::new(cluster), &program, &names);
            let mut agent = Agent::new(Settings::default(), "h1", 1, directory);
            let mut writer = message::Writer::new(1000, 7, 1);
            let say = Say::Rate(Rate(51_200_000), 0);
            assert!(writer.add(&message::Pair { tenant: of, to: receiver, from: service, say }));
            assert_eq!(agent.hear(Instant(1_000_000), "h2", &writer.finish()), Ok(1));
            let tuning = agent.poll_tuning().expect("it is limited");
            assert_eq!((tuning.from, tuning.to), (EndpointId(0), Toward::Address(receiver)));
            assert_eq!((tuning.rate, agent.counters.foreign), (Some(Rate(51_200_000)), 0));
        }
    }

    #[test]
    fn what_an_agent_knew_is_given_back_and_not_freed() {
        let cluster = Arc::new(Cluster::default());
        let known = Arc::downgrade(&cluster);
        let directory = Directory::new(cluster, &Program::default(), &Slots::default());
        let mut agent = Agent::new(Settings::default(), "h1", 1, directory);
        let before = agent.set_directory(Instant(1), Directory::default());
        assert!(known.upgrade().is_some());
        drop(before);
        assert!(known.upgrade().is_none());
    }
}
