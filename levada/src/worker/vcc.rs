//! Virtual congestion control, copied a part at a time between two rounds.

use super::Worker;
use crate::worker::ends::Wanted;
use datapath::program::EndpointId;
use datapath::vcc::connection::Connection;
use datapath::vcc::connections::{Class, Connections, Key, is_open};
use datapath::vcc::{Counters, Mode};

/// Connections of one endpoint that are told at most, where any are: those used last.
pub const ENDPOINT_CONNECTIONS: usize = 64;
/// The same of those that were asked for.
pub const WANTED_CONNECTIONS: usize = 1000;
/// Connections of an endpoint that are looked at for those.
const MOST_SEEN: u32 = 20_000;
/// Connections after which a part ends.
const PART_CONNECTIONS: usize = 512;
/// Endpoints that are looked at for a part.
const PART_ENDPOINTS: u32 = 2048;

/// What there is of an endpoint.
#[derive(Debug)]
pub struct EndpointVcc {
    /// Which.
    pub endpoint: EndpointId,
    /// What is done for it.
    pub mode: Mode,
    /// What was counted.
    pub counters: Counters,
    /// Its connections that are open, and those that are not yet.
    pub open: u32,
    /// See there.
    pub half_open: u32,
    /// Some that are open, those used last.
    pub connections: Vec<(Key, Connection)>,
}

/// Endpoints of one switch, from one on.
#[derive(Default, Debug)]
pub struct VccPart {
    /// Those for which anything is done.
    pub endpoints: Vec<EndpointVcc>,
    /// Where the next part begins; `None` at the end.
    pub next: Option<u32>,
}

/// Some of an endpoint's connections that are open, those used last.
fn connections_of(
    all: &Connections,
    endpoint: EndpointId,
    most: usize,
    wanted: Option<&Wanted>,
) -> Vec<(Key, Connection)> {
    if let Some(flows) = wanted.and_then(Wanted::flows) {
        let found = flows.into_iter().filter_map(|flow| {
            let id = all.find(&Key { endpoint, flow })?;
            Some((*all.key(id)?, *all.get(id)?))
        });
        return found.filter(|(_, connection)| is_open(connection)).collect();
    }
    let seen = if wanted.is_some() { MOST_SEEN as usize } else { most };
    let newest = all.of(endpoint, Class::Open).take(seen);
    let wanted = newest.filter(|(key, _)| wanted.is_none_or(|wanted| wanted.is(&key.flow)));
    wanted.take(most).map(|(&key, &connection)| (key, connection)).collect()
}

impl Worker {
    /// The part that begins at endpoint `from`, with at most `most` connections of each; where some
    /// are `wanted`, of these only.
    pub(super) fn vcc(&self, switch: usize, from: u32, most: usize, wanted: Option<&Wanted>) -> VccPart {
        let mut part = VccPart::default();
        let Some(switch_slot) = self.switch_slots.get(switch) else { return part };
        let vcc = switch_slot.switch.vcc();
        let mut told = 0;
        for number in from..switch_slot.switch.program().endpoints.len() as u32 {
            if told >= PART_CONNECTIONS || number - from >= PART_ENDPOINTS {
                part.next = Some(number);
                break;
            }
            let endpoint = EndpointId(number);
            let (mode, Some(counters)) = (vcc.mode(endpoint), vcc.counters(endpoint)) else { continue };
            let all = vcc.connections();
            let connections = connections_of(all, endpoint, most, wanted);
            told += connections.len();
            if wanted.is_some() {
                // Looking takes time as well.
                told +=
                    PART_CONNECTIONS * all.count(endpoint, Class::Open).min(MOST_SEEN) as usize / MOST_SEEN as usize;
            }
            part.endpoints.push(EndpointVcc {
                endpoint,
                mode,
                counters: counters.clone(),
                open: all.count(endpoint, Class::Open),
                half_open: all.count(endpoint, Class::Asked) + all.count(endpoint, Class::Offered),
                connections,
            });
        }
        part
    }
}
