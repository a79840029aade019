//! What the operator says of services: part of the program.

use super::check::Check;
use super::choose::Policy;
use crate::ids::{EndpointId, TenantId};
use crate::wire::Mac;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A service, by its slot in [`crate::program::Program::services`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ServiceId(pub u32);

/// Fronts (address, protocol and port) of a switch at most: a connection's key has two bytes for
/// them.
pub const MOST_FRONTS: usize = 65_535;
/// Fronts that may have one backend's address and port as their target: so many lookups a frame of
/// the backend takes at most.
pub const MOST_FRONTS_OF_TARGET: usize = 8;

/// What becomes of a new connection when no backend is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WhenDown {
    /// It is refused at once: RST, or port unreachable.
    #[default]
    Reset,
    /// It is dropped.
    Drop,
}

/// Where a service is reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Address {
    /// The address, which nobody else has.
    pub ip: IpAddr,
    /// TCP or UDP; see [`crate::wire::protocol`].
    pub protocol: u8,
    /// The port.
    pub port: u16,
}

/// A service.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Service {
    /// Whose it is, and in whose network it is reached.
    pub tenant: TenantId,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Where it is reached.
    pub addresses: Vec<Address>,
    /// Who gets new connections.
    pub policy: Policy,
    /// At most [`super::choose::MOST_BACKENDS`].
    pub backends: Vec<Backend>,
    /// What a client gets when no backend is up.
    pub when_down: WhenDown,
    /// Whether echo requests to its addresses are answered while a backend is up.
    pub ping: bool,
    /// How often servers report their load, in nanoseconds.
    pub report_period_ns: u64,
    /// For how long a backend that comes, or comes back, has a smaller weight, in nanoseconds.
    pub slow_start_ns: u64,
    /// How backends are asked whether they are well; `None` for not at all.
    pub check: Option<Check>,
    /// For how long a backend that is drained (weight 0) keeps its connections, in nanoseconds; 0
    /// for as long as they last.
    pub drain_ns: u64,
    /// For how long a client stays at its backend after its last connection, in nanoseconds; 0 for
    /// not at all.
    pub affinity_ns: u64,
    /// For how long a new connection waits while all backends have as many as they may have, in
    /// nanoseconds.
    pub hold_ns: u64,
}

/// Who answers for a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backend {
    /// Its IPv4 address, for the service's.
    pub ipv4: Option<Ipv4Addr>,
    /// Its IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// Its Ethernet address.
    pub mac: Mac,
    /// The port it listens at; `None` for the one that the client asked.
    pub port: Option<u16>,
    /// Its part of new connections, 1 to 256; 0 for none, while those that are open stay.
    pub weight: u32,
    /// Processors, for [`Policy::LoadavgCorrected`].
    pub cores: u32,
    /// Connections that it may have; `None` for any number.
    pub max_connections: Option<u32>,
    /// The endpoint that it is; `None` for one outside.
    pub endpoint: Option<EndpointId>,
}

impl Backend {
    /// Its address of the same IP version as another.
    pub(super) fn ip(&self, like: IpAddr) -> Option<IpAddr> {
        match like {
            IpAddr::V4(_) => self.ipv4.map(IpAddr::V4),
            IpAddr::V6(_) => self.ipv6.map(IpAddr::V6),
        }
    }

    /// Whether this is the same one with other settings.
    #[must_use]
    pub fn is(&self, other: &Backend) -> bool {
        (self.ipv4, self.ipv6, self.port, self.endpoint) == (other.ipv4, other.ipv6, other.port, other.endpoint)
    }
}
