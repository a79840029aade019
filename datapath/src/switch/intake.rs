//! Frames from the uplink while its ring fills: whose share of the worker's time they take
//! ([`crate::intake`]).

use super::Switch;
use super::parse::{destination, source};
use super::route::Seen;
use super::tunnel::tenant_of;
use crate::forward::Target;
use crate::frame::{Frame, Pool};
use crate::intake::Prices;
use crate::network::Network;
use crate::program::{PortId, Program, TenantId};
use crate::units::Instant;
use crate::verdict::Reason;

impl Switch {
    /// Gives who is at a port its weight in its tenant's time, and the tenant its weight among all
    /// tenants. Of those that the program does not have nothing is kept.
    pub fn set_intake_weights(&mut self, tenant: (TenantId, u32), port: (PortId, u32)) {
        let Program { tenants, ports, .. } = &self.program;
        if tenants.get(tenant.0.0).is_some() && ports.get(port.0.0).is_some() {
            self.intake.set_weights(tenant, port);
        }
    }

    /// What is read from the uplink next comes from a ring that fills, and a frame costs so much;
    /// with `None`, from one that does not.
    pub fn share_intake(&mut self, prices: Option<Prices>) {
        self.intake.set_prices(prices);
    }

    /// Passes a frame from outside on where it is within the share of those that it is for. Else it
    /// is dropped: counted as the endpoint's, or to be counted as the uplink's. In a network that
    /// tenants share, what is for none of their endpoints is nobody's, and passes; so does what
    /// agents of other hosts say.
    #[cold]
    pub(super) fn take_in(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        network: Network,
        frame: Frame,
    ) -> Result<Option<Frame>, Reason> {
        let seen = Seen::of(pool, &frame);
        let (vlan, mac) = (self.vlan_inside(network, seen), destination(seen.bytes));
        let to = match self.forward.target_inside(&self.fdb, now, network, vlan, mac) {
            Target::Endpoint(to) => Some(to),
            _ => None,
        };
        let (tenant, port) = match to.and_then(|to| self.program.endpoints.get(to.0)) {
            Some(endpoint) => (endpoint.tenant, Some(endpoint.port)),
            None if network != Network::UNTAGGED => (tenant_of(network), None),
            None => return Ok(Some(frame)),
        };
        let (from, bytes) = (source(seen.bytes), seen.bytes.len() as u64);
        if to.is_some_and(|to| self.is_talk(pool, now, to, &frame)) {
            return Ok(Some(frame));
        }
        if self.intake.passes(now, tenant, port, bytes) {
            return Ok(Some(frame));
        }
        let wire_bytes = pool.meta(&frame).wire_bytes;
        pool.free(frame);
        let Some(to) = to else { return Err(Reason::UplinkShare) };
        self.count_drop(to, Reason::UplinkShare);
        if self.arrivals.is_watched() {
            self.arrivals.arrive(to, from, wire_bytes);
            self.arrivals.lose(to, from, wire_bytes);
        }
        Ok(None)
    }
}
