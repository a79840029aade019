//! Whose budgets a flooded frame is taken from: its endpoint's and its tenant's, or, from the
//! uplink, its network's. All have enough, or nothing is taken.

use super::Switch;
use crate::flood::{Flooded, Whose};
use crate::frame::{Frame, Pool};
use crate::network::{Network, slot};
use crate::program::{EndpointId, TenantId};
use crate::units::Instant;
use crate::wire::{Icmp, L3, L4, Layout, icmpv6};

impl Switch {
    /// Whether a frame of an endpoint may be copied so many times; if so, it is charged to the
    /// endpoint and its tenant.
    pub(super) fn take_flood(
        &mut self,
        pool: &Pool,
        now: Instant,
        from: EndpointId,
        copies: usize,
        frame: &Frame,
    ) -> bool {
        let may = self.flood_left(now, from, asks(pool.bytes(frame), &pool.meta(frame).layout)).0 > 0;
        if may {
            self.charge_flood(pool, now, from, copies, frame);
        }
        may
    }

    /// A frame of an endpoint is copied so many times, at the expense of the endpoint and its
    /// tenant.
    pub(super) fn charge_flood(&mut self, pool: &Pool, now: Instant, from: EndpointId, copies: usize, frame: &Frame) {
        let flooded = flooded(pool, frame, copies);
        if let Some(tenant) = self.tenant_of(from) {
            self.floods[from.0 as usize].charge(now, flooded);
            self.tenant_floods[tenant.0 as usize].charge(now, flooded.bytes);
        }
    }

    /// A frame from the uplink is copied so many times, at the expense of the network.
    pub(super) fn charge_uplink_flood(
        &mut self,
        pool: &Pool,
        now: Instant,
        network: Network,
        copies: usize,
        frame: &Frame,
    ) {
        self.uplink_floods[slot(network)].charge(now, flooded(pool, frame, copies));
    }

    /// Frames that an endpoint may flood at once, and whose budget says so.
    pub(super) fn flood_left(&self, now: Instant, from: EndpointId, asks: bool) -> (u64, Whose) {
        match self.tenant_of(from) {
            Some(tenant) if self.tenant_floods[tenant.0 as usize].allows(now, asks) => {
                (self.floods[from.0 as usize].left(now, asks), Whose::Sender)
            }
            _ => (0, Whose::Tenant),
        }
    }

    /// Frames that may be flooded at once in a network from the uplink.
    pub(super) fn uplink_flood_left(&self, now: Instant, network: Network, asks: bool) -> u64 {
        self.uplink_floods[slot(network)].left(now, asks)
    }

    fn tenant_of(&self, endpoint: EndpointId) -> Option<TenantId> {
        self.program.endpoints.get(endpoint.0).map(|endpoint| endpoint.tenant)
    }
}

fn flooded(pool: &Pool, frame: &Frame, copies: usize) -> Flooded {
    let meta = pool.meta(frame);
    Flooded { bytes: u64::from(meta.wire_bytes) * copies as u64, asks: asks(pool.bytes(frame), &meta.layout) }
}

/// Whether a frame asks for an address, or tells one: without it, nobody is reached.
pub(super) fn asks(bytes: &[u8], layout: &Layout) -> bool {
    let is_discovery =
        |icmp: Icmp<'_>| matches!(icmp.kind(), icmpv6::NEIGHBOUR_SOLICITATION | icmpv6::NEIGHBOUR_ADVERTISEMENT);
    layout.l3 == L3::Arp || layout.l4 == L4::Icmpv6 && Icmp::of(bytes, layout).is_some_and(is_discovery)
}

#[cfg(test)]
mod tests;
