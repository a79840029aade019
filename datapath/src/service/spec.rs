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
/// Addresses that the services of a switch have at most, as configured: while a change replaces all
/// of them, both those before and those behind it have fronts.
pub const MOST_ADDRESSES: usize = MOST_FRONTS / 2;
/// Fronts that may have one backend's address and port as their target: so many lookups a frame of
/// the backend takes at most.
pub const MOST_FRONTS_OF_TARGET: usize = 8;

/// The part of the weight that is to be well for health to count, in parts per million: half, as
/// Envoy has it.
pub const DEFAULT_PANIC_PPM: u32 = 500_000;

/// What becomes of a new connection when no backend is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WhenDown {
    /// It is refused at once: RST, or port unreachable.
    #[default]
    Reset,
    /// It is dropped.
    Drop,
}

/// What becomes of the connections of a backend that checks find down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnFailure {
    /// They stay: it may come back.
    #[default]
    Keep,
    /// Both sides get a reset, so that clients connect again.
    Reset,
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
#[derive(Clone, PartialEq, Eq, Debug)]
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
    /// What becomes of the connections of a backend that checks find down.
    pub on_failure: OnFailure,
    /// Health is ignored while less of the weight than this is well, in parts per million.
    pub panic_ppm: u32,
    /// For how long a client stays at its backend after its last connection, in nanoseconds; 0 for
    /// not at all.
    pub affinity_ns: u64,
    /// For how long a new connection waits while all backends have as many as they may have, in
    /// nanoseconds.
    pub hold_ns: u64,
    /// Who pays where a client and its backend are both outside: an endpoint of the tenant that is
    /// a director ([`crate::program::Endpoint::is_director`]). `None` where a client outside gets
    /// no backend outside.
    pub director: Option<EndpointId>,
}

impl Default for Service {
    fn default() -> Service {
        Service {
            tenant: TenantId::default(),
            mac: Mac::default(),
            addresses: Vec::new(),
            policy: Policy::default(),
            backends: Vec::new(),
            when_down: WhenDown::default(),
            ping: false,
            report_period_ns: 0,
            slow_start_ns: 0,
            check: None,
            on_failure: OnFailure::default(),
            panic_ppm: DEFAULT_PANIC_PPM,
            affinity_ns: 0,
            hold_ns: 0,
            director: None,
        }
    }
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
    /// For how long it keeps its connections when it is drained (weight 0), in nanoseconds; 0 for
    /// as long as they last.
    pub drain_ns: u64,
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
