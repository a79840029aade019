//! What services have counted, a part at a time, and their connections.

use super::Worker;
use datapath::service::{Backend, BackendStats, ServiceId, ServiceStats, Shown};
use datapath::units::Instant;
use std::net::IpAddr;
use std::ops::Range;

/// Backends after which a part ends: some ten microseconds.
const PART_BACKENDS: usize = 256;
/// Services that are looked at for a part.
const PART_SERVICES: u32 = 2048;
/// Places of the table of connections that are looked at for a part: at 50 ns each, as where none
/// is in the cache, some 50 us.
const PART_PLACES: u32 = 1024;

/// What one service has counted.
#[derive(Debug)]
pub struct ServiceCount {
    /// Which one.
    pub service: ServiceId,
    /// When it was so.
    pub now: Instant,
    /// All of it.
    pub stats: ServiceStats,
    /// Of each backend: the number that connections know it by, who it is, and what it has.
    pub backends: Vec<(usize, Backend, BackendStats)>,
    /// Connections of the switch, and how many it may have.
    pub table: (u32, u32),
}

/// Services of one switch, from one on.
#[derive(Debug, Default)]
pub struct ServicesPart {
    /// What they have counted.
    pub services: Vec<ServiceCount>,
    /// Where the next part begins; `None` at the end.
    pub next: Option<u32>,
}

/// Connections of a service, from a place of the table on.
#[derive(Debug, Default)]
pub struct ConnectionsPart {
    /// Those that were asked for.
    pub connections: Vec<Shown>,
    /// Where the next part begins; `None` at the end.
    pub next: Option<u32>,
}

impl Worker {
    /// The counts of a switch's services of these numbers, or of the first of them.
    pub(super) fn services(&self, switch: usize, which: Range<u32>) -> ServicesPart {
        let mut part = ServicesPart::default();
        let Some(switch_slot) = self.switch_slots.get(switch) else { return part };
        let (switch, now) = (&switch_slot.switch, self.outside.now);
        let (mut told, end) = (0, which.end.min(switch.program().services.len() as u32));
        for number in which.start..end {
            if told >= PART_BACKENDS || number - which.start >= PART_SERVICES {
                part.next = Some(number);
                break;
            }
            let service = ServiceId(number);
            let Some(stats) = switch.service_stats(service) else { continue };
            let backends = switch.service_backends(service).map(|(at, backend, stats)| (at, backend.clone(), stats));
            let (backends, table) = (backends.collect::<Vec<_>>(), switch.connections());
            told += 1 + backends.len();
            part.services.push(ServiceCount { service, now, stats, backends, table });
        }
        part
    }

    /// The connections of a service, or of one of its clients, from a place on.
    pub(super) fn connections(
        &self,
        switch: usize,
        (service, client): (ServiceId, Option<IpAddr>),
        from: u32,
    ) -> ConnectionsPart {
        let Some(switch_slot) = self.switch_slots.get(switch) else { return ConnectionsPart::default() };
        let (switch, end) = (&switch_slot.switch, from.saturating_add(PART_PLACES));
        let all = switch.service_connections(self.outside.now, service, from..end);
        let connections = all.filter(|shown| client.is_none_or(|client| shown.client == client)).collect();
        ConnectionsPart { connections, next: (end < switch.connection_places()).then_some(end) }
    }

    /// A server has reported its load. One that is gone meanwhile is not there any more.
    pub(super) fn take_load(&mut self, switch: usize, service: ServiceId, backend: &Backend, load: u64) {
        let now = self.outside.now;
        let Some(switch_slot) = self.switch_slots.get_mut(switch) else { return };
        let found = switch_slot.switch.service_backends(service).find(|(_, one, _)| *one == backend).map(|(at, ..)| at);
        if let Some(at) = found {
            switch_slot.switch.report_load(now, service, at, load);
        }
    }
}
