//! What an agent can tell people: who is limited, by whom and why, who ignores it, and whom it
//! talks to.

pub use super::leases::Obeyed;
pub use super::post::PeerCounts;
use datapath::program::EndpointId;
use datapath::units::Rate;
use datapath::wire::Mac;
use std::sync::Arc;

/// Why a sender's limit has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ignores {
    /// Its host was told, and does not hold it back.
    Limit,
    /// No host of the cluster has it, so there is nobody to tell.
    Unreachable,
}

/// A sender that is limited, or should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limited {
    /// The own endpoint that it sends to.
    pub to: EndpointId,
    /// The sender's address.
    pub from: Mac,
    /// Its host; `None` where no host of the cluster has it.
    pub host: Option<Arc<str>>,
    /// What it may send to that endpoint.
    pub rate: Rate,
    /// What arrives from it.
    pub arriving: Rate,
    /// What all senders together may send to that endpoint.
    pub share: Rate,
    /// Whether it sends more all the same, and why.
    pub ignores: Option<Ignores>,
}

/// How it stands with the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Contention {
    /// At least two endpoints receive something.
    pub contended: bool,
    /// A flood has just begun: guarantees count as wanted.
    pub flood: bool,
    /// Limits are lower for a moment, to drain a queue in the network.
    pub draining: bool,
    /// What arrives.
    pub arriving: Rate,
}

/// Another host that was heard or told something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerReport {
    /// Its name.
    pub host: Arc<str>,
    /// What was said.
    pub counts: PeerCounts,
}

/// What has happened since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Samples that were looked at.
    pub samples: u64,
    /// Times that all limits were lifted.
    pub releases: u64,
    /// Senders that were found to ignore their limit.
    pub ignored: u64,
    /// Notifications of Gatekeeper's controller.
    pub notified: u64,
    /// Arrivals that were counted for their endpoint only, since there were too many senders.
    pub crowded: u64,
    /// Datagrams of who is no host of the cluster.
    pub strangers: u64,
    /// Datagrams that are no messages.
    pub garbage: u64,
    /// Datagrams that were heard before, or are too old.
    pub replays: u64,
    /// Datagrams beyond what one host may send.
    pub floods: u64,
    /// Pairs whose receiver is not at the host that spoke, or of which it said what it may not:
    /// Gatekeeper's notifications where that is not set.
    pub lies: u64,
    /// Pairs whose sender is not here.
    pub foreign: u64,
    /// Limits for which there was no room.
    pub full: u64,
}

/// Everything at once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// How it stands with the link.
    pub contention: Contention,
    /// Senders that this host limits.
    pub limited: Vec<Limited>,
    /// Limits of own endpoints that other hosts asked for.
    pub obeyed: Vec<Obeyed>,
    /// The hosts that it talks to.
    pub peers: Vec<PeerReport>,
    /// What has happened.
    pub counters: Counters,
}
