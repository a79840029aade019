//! What the switch tells an agent, and what an agent tells the switch.

use datapath::program::EndpointId;
use datapath::units::Rate;
use datapath::wire::Mac;

/// Which traffic of an endpoint over the uplink a limit is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Toward {
    /// What goes to this address.
    Address(Mac),
    /// All of it: Gatekeeper's LIM.
    Everyone,
}

/// What arrived from the uplink for an endpoint from one sender since the last sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// The endpoint that it is for.
    pub to: EndpointId,
    /// The sender's address; `None`: senders that there was no room to tell apart.
    pub from: Option<Mac>,
    /// Bytes on the wire.
    pub wire_bytes: u64,
    /// Of these, what was dropped before it was delivered.
    pub dropped_bytes: u64,
}

/// What became of an endpoint's ingress queue since the last sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueSample {
    /// Whose queue.
    pub endpoint: EndpointId,
    /// Bytes on the wire that arrived for it from the uplink.
    pub arrived_bytes: u64,
    /// Of these, what was dropped.
    pub dropped_bytes: u64,
    /// Who sent what was dropped last.
    pub last_dropped: Option<Mac>,
    /// Bytes that wait now.
    pub backlog_bytes: u64,
}

/// A limit that the switch is to set, or with `None` to lift.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// The sending endpoint.
    pub from: EndpointId,
    /// Which of its traffic.
    pub to: Toward,
    /// At most this much.
    pub rate: Option<Rate>,
}
