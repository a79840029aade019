//! Services as they are shown: what is counted, and which connections there are.

use super::connections::worth_of;
use super::entry::Key;
use super::entry::State;
use super::running::Running;
use super::{Address, Backend, BackendStats, Decision, ServiceId, ServiceStats, Services, address};
use crate::units::Instant;
use crate::wire::Mac;
use std::cmp::Reverse;
use std::net::IpAddr;
use std::ops::Range;

/// A connection as it is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shown {
    /// The client.
    pub client: IpAddr,
    /// Its port.
    pub port: u16,
    /// Where it reached the service.
    pub address: Address,
    /// The backend's number.
    pub backend: u8,
    /// The port of the service's address that the backend is asked from, where client and backend
    /// are both outside.
    pub asked_from: Option<u16>,
    /// See [`State`].
    pub state: State,
    /// Whether the client waits or the server is sending.
    pub is_busy: bool,
    /// Since when nothing was seen of it, to within a second, in nanoseconds.
    pub idle_ns: u64,
}

impl Shown {
    /// In which order connections are shown: those that matter most first, and of these those that
    /// were seen last.
    #[must_use]
    pub fn rank(&self) -> (Reverse<u32>, u64) {
        (Reverse(worth_of(self.state)), self.idle_ns)
    }
}

impl Services {
    /// The service that a decision concerns, and the number of its backend, if it has one.
    #[must_use]
    pub fn concerned(&self, decision: &Decision) -> Option<(ServiceId, Option<u8>)> {
        let (front, backend) = match decision {
            Decision::Forward(known)
            | Decision::Back(known)
            | Decision::Error(known, _)
            | Decision::Hear(known, _)
            | Decision::Direct(known)
            | Decision::Retry(known, _)
            | Decision::Refuse(known)
            | Decision::Deny(known)
            | Decision::Disown(known)
            | Decision::Cut(known, _) => (known.key.front, Some(known.backend)),
            Decision::Choose(key, _) | Decision::Seek(key) | Decision::Hold(key) | Decision::Held(key) => {
                (key.front, None)
            }
            Decision::Answer(answer) => return Some((answer.service(), None)),
            Decision::Check(of) => return Some((of.service, Some(of.backend))),
            Decision::Pass | Decision::Fragment(_) | Decision::Drop(_) => return None,
        };
        self.running(front).map(|(_, front)| (front.service, backend))
    }

    /// Where a backend is reached through a front, and how many backends have how much in flight:
    /// for people.
    #[must_use]
    pub fn reached(&self, key: &Key, backend: u8) -> Option<(IpAddr, u16)> {
        let (running, front) = self.running(key.front)?;
        let backend = running.servers.get(usize::from(backend))?.backend.as_ref()?;
        Some((backend.ip(front.address.ip)?, backend.port.unwrap_or(front.address.port)))
    }

    /// The MAC address of a service.
    #[must_use]
    pub fn mac(&self, service: ServiceId) -> Option<Mac> {
        self.all.get(service.0).map(|running| running.service.mac)
    }

    /// What is counted of a service.
    #[must_use]
    pub fn stats(&self, service: ServiceId) -> Option<ServiceStats> {
        let with_now = |running: &Running| ServiceStats { holding: running.queue.len() as u32, ..running.stats };
        self.all.get(service.0).map(with_now)
    }

    /// What is counted of its backends, as they are numbered, and who they are.
    pub fn backends(&self, service: ServiceId) -> impl Iterator<Item = (usize, &Backend, BackendStats)> {
        let running = self.all.get(service.0);
        let slow_start_ns = running.map_or(0, |running| running.service.slow_start_ns);
        let servers = running.map(|running| running.servers.as_slice()).unwrap_or_default();
        servers.iter().enumerate().filter_map(move |(at, server)| {
            let (ejected_until, slow_until) = (server.health.ejected_until(), server.slow_until(slow_start_ns));
            let (is_down, drained_at) = (server.is_down(), server.drained_at());
            let stats = BackendStats { ejected_until, slow_until, is_down, drained_at, ..server.stats };
            Some((at, server.backend.as_ref()?, stats))
        })
    }

    /// Connections of a service at these places of the table: client, port, address of the service,
    /// backend, state, idle time.
    pub fn connections(&self, now: Instant, service: ServiceId, places: Range<u32>) -> impl Iterator<Item = Shown> {
        self.connections.table().iter_in(places).filter_map(move |(id, key, entry)| {
            let (_, front, _) = self.server(key, entry)?;
            (front.service == service).then(|| Shown {
                client: address(key.client, front.address.ip),
                port: key.port,
                address: front.address,
                backend: entry.backend,
                asked_from: self.turns.get(id).map(|(port, _)| port),
                state: entry.state,
                is_busy: entry.is_busy() && entry.state.is_counted(),
                idle_ns: self.connections.seen(id).map_or(0, |seen| now.since(seen)),
            })
        })
    }

    /// Connections are at places below this.
    #[must_use]
    pub fn places(&self) -> u32 {
        self.connections.places()
    }

    /// Connections in the table, and how many fit.
    #[must_use]
    pub fn table(&self) -> (u32, u32) {
        self.connections.len()
    }
}
