//! Frames from the uplink while its ring fills: whose share of the worker's time they take
//! ([`crate::intake`]), and of what ports are to read a part only.

use super::Switch;
use super::parse::{destination, source};
use super::route::Seen;
use super::tunnel::tenant_of;
use crate::forward::{Outside, Target};
use crate::frame::{Frame, Pool};
use crate::intake::Prices;
use crate::intake::thin::{Destination, Thinned};
use crate::network::Network;
use crate::program::{EndpointId, PortId, Program, TenantId};
use crate::sched::limits::Plane;
use crate::units::Instant;
use crate::verdict::Reason;
use crate::wire::Mac;

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
    /// with `None`, from one that does not. How full it is: see [`crate::intake::Intake`].
    pub fn share_intake(&mut self, prices: Option<Prices>, full: u32) {
        self.intake.set_prices(prices, full);
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
        let destination = to.and_then(|to| self.destination_outside(pool, (network, vlan), to, &frame));
        let passes = self.intake.passes(now, tenant, port, bytes);
        // About: who sent them, and how long they were, is taken to be as with this one.
        let missed = destination.map_or(0, |to| self.intake.note(now, to, bytes, passes));
        let wire_bytes = pool.meta(&frame).wire_bytes;
        if let Some(to) = to {
            self.count_lost(to, from, wire_bytes, missed + u64::from(!passes));
        }
        if passes {
            return Ok(Some(frame));
        }
        pool.free(frame);
        if to.is_none() { Err(Reason::UplinkShare) } else { Ok(None) }
    }

    /// So many frames for an endpoint were dropped by share.
    fn count_lost(&mut self, to: EndpointId, from: Mac, wire_bytes: u32, frames: u64) {
        if frames == 0 {
            return;
        }
        self.tallies[to.0 as usize].drops.add(Reason::UplinkShare, frames);
        if self.arrivals.is_watched() {
            let wire_bytes = u32::try_from(u64::from(wire_bytes) * frames).unwrap_or(u32::MAX);
            self.arrivals.arrive(to, from, wire_bytes);
            self.arrivals.lose(to, from, wire_bytes);
        }
    }

    /// How a port tells for which endpoint a frame is, where it can by VLAN and address and may
    /// drop it. It may not where agents of other hosts speak to the endpoint, nor what has a bond's
    /// number, since the bond would wait for it, nor what goes to the address of tunnels. A tag
    /// behind that of the network it does not see.
    fn destination_outside(
        &self,
        pool: &Pool,
        (network, inside): (Network, u16),
        to: EndpointId,
        frame: &Frame,
    ) -> Option<Destination> {
        let mac = destination(pool.bytes(frame));
        let vlan = match self.forward.outside(network)? {
            Outside::Vlan(vlan) if inside == 0 => Some(vlan),
            Outside::Untagged if pool.meta(frame).layout.vlan.is_none() => None,
            Outside::Vlan(_) | Outside::Untagged | Outside::Tunnels => return None,
        };
        let is_heard = self.ingress.tree(Plane::Wire).ahead(to).is_some();
        let has_numbers = self.bond.as_ref().is_some_and(|bond| bond.may_have_numbers());
        let is_of_tunnels = self.tunnels.local().is_some_and(|local| local.mac == mac);
        (!is_heard && !has_numbers && !is_of_tunnels).then_some(Destination { vlan, mac })
    }

    /// Of what all ports of the uplink are to read a part from now on, and all of everything else;
    /// `None` where that is as they were told. To be asked when [`Switch::thinned_due`] says, and
    /// answered by [`Switch::set_thinned`].
    pub fn thinned(&mut self, now: Instant) -> Option<&[Thinned]> {
        self.intake.due()?;
        self.intake.thinning().news(now)
    }

    /// A port has become one of the uplink's, or is open again, and reads all.
    pub fn tell_thinned_again(&mut self) {
        self.intake.thinning().tell_again();
    }

    /// They do; or one cannot, and all read everything.
    pub fn set_thinned(&mut self, is_done: bool) {
        self.intake.thinning().set_told(is_done);
    }

    /// When [`Switch::thinned`] may have something to say.
    #[must_use]
    pub fn thinned_due(&self) -> Option<Instant> {
        self.intake.due()
    }
}
