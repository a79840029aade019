//! Changes while the switch runs: one slot or the uplink at a time, between two frames.
//!
//! A change looks first whether it fits what there is, and does nothing where it does not. Then
//! every stage follows: what it keeps for a slot is added, changed or taken away, and nothing of
//! the others is touched. So a change takes time in proportion to what belongs to its own slot
//! (frames queued there, addresses learned there; for a tenant, its endpoints) and to nothing else,
//! but for the uplink's, which concerns every queue, and that of an endpoint whose frames were the
//! longest of a bond, which looks for another with frames as long.
//!
//! A slot may have another owner at once. What may still carry the number of the one before, and
//! where that is dealt with:
//! - frames in its queues, those before a pair limit included, and in its backlog: freed here, as
//!   [`Reason::Removed`], and so are frames that left the queues for its port, and what was to be
//!   copied to its network from outside;
//! - frames in a neighbour's queue or backlog that were sent to it: `Gone` tells them by when they
//!   were queued, and they are dropped then;
//! - learned addresses, lists of members, limits that wait, pair limits, arrivals, events: taken
//!   out here.
//!
//! An endpoint that is only changed keeps its pair limits, and so does one whose uplink comes and
//! goes: whoever set them lifts them.

use super::{Event, Role, Switch, Tally};
use crate::fdb::Fdb;
use crate::flood::{CopyBudget, FloodBudget, FloodLimits};
use crate::frame::Pool;
use crate::network::{Network, network_of, slot};
use crate::overlay::{MOST_REMOTES, OverlayChange};
use crate::owners::Owners;
use crate::program::{
    Attachment, Change, ChangeError, Elsewhere, Endpoint, EndpointId, Member, MemberId, Outside, PortFeatures, PortId,
    Slots, Tenant, TenantId, Uplink,
};
use crate::units::{Instant, Rate};
use crate::vcc;
use crate::verdict::Reason;
use crate::wire::Mac;
use std::borrow::Cow;

impl Switch {
    /// Takes one step to another program. `now` may not be earlier than any `now` before.
    ///
    /// # Errors
    /// The change does not fit what there is; nothing was done.
    pub fn change(&mut self, pool: &mut Pool, now: Instant, change: Change) -> Result<(), ChangeError> {
        let networks = self.program.tenants.len() + 2;
        self.recent.forget(self.tallies.len() + 1, networks);
        let done = match change {
            Change::Port(id, features) => self.change_port(pool, now, id, features),
            Change::Uplink(uplink) => self.change_uplink(pool, now, uplink),
            Change::Tenant(id, Some(tenant)) => self.set_tenant(pool, now, id, tenant),
            Change::Tenant(id, None) => self.remove_tenant(pool, id),
            Change::Endpoint(id, Some(endpoint)) => self.set_endpoint(pool, now, id, endpoint),
            Change::Endpoint(id, None) => self.remove_endpoint(pool, now, id),
            Change::Overlay(change) => self.change_overlay(change),
            Change::Elsewhere(tenant, address, is_there) => self.change_elsewhere(tenant, address, is_there),
            Change::Service(id, service) => self.change_service(now, id, service),
            Change::Connections(most) => {
                self.program.connections = Some(most);
                self.services.set_most(most);
                Ok(())
            }
            Change::Flows(most) => {
                self.program.flows = Some(most);
                self.vcc.set_flows(most);
                Ok(())
            }
            Change::Rescale(rescales) => {
                self.program.rescales = rescales;
                self.vcc.set_rescales(rescales);
                Ok(())
            }
            Change::FdbAge(age_ns) => {
                self.program.fdb_age_ns = age_ns;
                self.fdb.set_age(age_ns);
                self.owners.set_age(age_ns);
                Ok(())
            }
            Change::UplinkFlood(limits) => {
                self.program.uplink_flood = limits;
                self.uplink_floods.iter_mut().for_each(|budget| budget.set_limits(now, limits));
                Ok(())
            }
        };
        self.note_growth();
        done
    }

    fn change_elsewhere(&mut self, tenant: TenantId, address: Elsewhere, is_there: bool) -> Result<(), ChangeError> {
        check_slot(tenant.0)?;
        let all = &mut self.program.elsewhere;
        if is_there && all.len() >= MOST_REMOTES {
            return Err(ChangeError::OverlayFull);
        }
        let is_news = if is_there { all.insert((tenant, address)) } else { all.remove(&(tenant, address)) };
        if is_news && let Some(owner) = self.program.tenants.get(tenant.0) {
            let network = network_of(tenant, owner.attachment);
            set_elsewhere((&mut self.fdb, &mut self.owners), network, address, is_there);
        }
        Ok(())
    }

    fn change_overlay(&mut self, change: OverlayChange) -> Result<(), ChangeError> {
        self.tunnels.change(&change)?;
        let overlay = &mut self.program.overlay;
        if let OverlayChange::Remote(tenant, mac, at) = change
            && at.is_some() != overlay.remotes.contains_key(&(tenant, mac))
        {
            self.fdb.set_elsewhere(Network(tenant.0), mac, at.is_some());
        }
        match change {
            OverlayChange::Local(local) => overlay.local = local,
            OverlayChange::Peer(address, Some(peer)) => drop(overlay.peers.insert(address, peer)),
            OverlayChange::Peer(address, None) => drop(overlay.peers.remove(&address)),
            OverlayChange::Remote(tenant, mac, Some(at)) => drop(overlay.remotes.insert((tenant, mac), at)),
            OverlayChange::Remote(tenant, mac, None) => drop(overlay.remotes.remove(&(tenant, mac))),
        }
        Ok(())
    }

    /// Makes room for endpoints 0..`endpoints`, and a port for each.
    pub(super) fn reserve(&mut self, endpoints: usize) {
        self.program.endpoints.reserve(endpoints);
        self.program.ports.reserve(endpoints + 1);
        self.egress.reserve(endpoints);
        self.ingress.reserve(endpoints);
        self.fdb.reserve(endpoints);
        self.forward.reserve(endpoints);
        self.roles.reserve(endpoints + 1);
        self.tallies.reserve(endpoints);
        self.recent.reserve(endpoints);
        self.floods.reserve(endpoints);
        self.backlogs.reserve(endpoints);
        self.gone.reserve(endpoints);
        self.vcc.reserve(endpoints);
        self.memory.reserve(endpoints);
    }

    fn change_port(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        id: PortId,
        features: Option<PortFeatures>,
    ) -> Result<(), ChangeError> {
        check_slot(id.0)?;
        if features.is_none() {
            self.program.ports.get(id.0).ok_or(ChangeError::Vacant(id.0))?;
            if self.role(id) != Role::Nothing {
                return Err(ChangeError::PortInUse(id));
            }
        }
        let before = self.program.ports.get(id.0).copied();
        self.program.ports.set(id.0, features);
        self.fit_port(pool, now, id, before);
        Ok(())
    }

    fn change_uplink(&mut self, pool: &mut Pool, now: Instant, uplink: Option<Uplink>) -> Result<(), ChangeError> {
        if let Some(uplink) = &uplink {
            self.check_uplink(uplink)?;
        }
        let before = std::mem::replace(&mut self.program.uplink, uplink);
        let is_there = self.program.uplink.is_some();
        self.memory.unsettle();
        self.intake.thinning().tell_again();
        self.move_members(pool, before.as_ref());
        self.change_bond(pool, now, before.as_ref());
        self.follow_members(now);
        if before.is_some() != is_there {
            for (id, tenant) in self.program.tenants.iter() {
                self.forward.attach(TenantId(id), is_there.then_some(tenant.attachment));
            }
            self.attach_untagged();
        }
        // Another port may be the first now, at whose turns they are worked on.
        self.backlogs.wake_uplink();
        if !is_there {
            self.fdb.clear_all_outside(now);
            self.owners.clear_all(now);
            let freed = self.backlogs.clear_storms(pool);
            self.uplink_drops.add(Reason::Removed, u64::from(freed));
            for (id, _) in self.program.endpoints.iter() {
                let id = EndpointId(id);
                let freed = self.pairs.clear_endpoint(pool, id)
                    + self.egress.clear_wire(pool, id)
                    + self.ingress.clear_wire(pool, id);
                self.tallies[id.0 as usize].drops.add(Reason::Removed, u64::from(freed));
            }
        }
        Ok(())
    }

    /// Ports that are no members any more have no role, and those that are have theirs.
    fn move_members(&mut self, pool: &mut Pool, before: Option<&Uplink>) {
        let after: Vec<PortId> =
            self.program.uplink.iter().flat_map(|u| &u.members).map(|member| member.port).collect();
        for old in before.into_iter().flat_map(|uplink| &uplink.members).filter(|old| !after.contains(&old.port)) {
            self.move_role(pool, Some(old.port), None, Role::Nothing);
        }
        for (member, port) in (0..).map(MemberId).zip(after) {
            self.move_role(pool, None, Some(port), Role::Uplink(member));
        }
    }

    fn set_tenant(&mut self, pool: &mut Pool, now: Instant, id: TenantId, tenant: Tenant) -> Result<(), ChangeError> {
        check_slot(id.0)?;
        let before = self.program.tenants.get(id.0).map(|tenant| tenant.attachment);
        if before != Some(tenant.attachment) {
            if self.is_in_use(id) {
                return Err(ChangeError::TenantInUse(id));
            }
            self.check_vlan(id, tenant.attachment)?;
            self.tunnels.check(id, tenant.attachment)?;
        }
        self.egress.set_tenant(now, id, &tenant);
        self.ingress.set_tenant(now, id, &tenant);
        if let Some(policer) = &mut self.policer {
            policer.set_tenant(id, Some(&tenant));
        }
        self.set_outside(id, Some(&tenant));
        self.attach(pool, id, before, Some(tenant.attachment));
        self.set_tenant_flood(now, id, before.is_none(), tenant.flood_rate);
        self.memory.change_tenant(id, self.program.tenants.get(id.0), Some(&tenant));
        if self.program.tenants.get(id.0).is_some_and(|before| before.vcc != tenant.vcc) {
            // One that says otherwise itself goes on as it is.
            let follows = |(_, one): &(u32, &Endpoint)| one.tenant == id && one.is_guest() && one.vcc.is_none();
            for (endpoint, _) in self.program.endpoints.iter().filter(follows) {
                self.vcc.set(vcc::Owner { tenant: id, endpoint: EndpointId(endpoint) }, tenant.vcc);
            }
        }
        self.program.tenants.set(id.0, Some(tenant));
        Ok(())
    }

    /// A tenant's budgets, which are full where its slot has a new owner.
    fn set_tenant_flood(&mut self, now: Instant, id: TenantId, is_new: bool, rate: Rate) {
        let (at, network) = (id.0 as usize, slot(Network(id.0)));
        if self.tenant_floods.len() <= at {
            self.tenant_floods.resize(at + 1, CopyBudget::new(Rate(0)));
            self.uplink_floods.resize(network + 1, FloodBudget::new(self.program.uplink_flood));
        }
        if is_new {
            self.tenant_floods[at] = CopyBudget::new(rate);
            self.uplink_floods[network] = FloodBudget::new(self.program.uplink_flood);
        }
        self.tenant_floods[at].set_rate(now, rate);
    }

    fn remove_tenant(&mut self, pool: &mut Pool, id: TenantId) -> Result<(), ChangeError> {
        let before = self.program.tenants.get(id.0).ok_or(ChangeError::Vacant(id.0))?.attachment;
        if self.is_in_use(id) {
            return Err(ChangeError::TenantInUse(id));
        }
        self.count_former(&self.tenant_stats(id));
        self.egress.remove_tenant(id);
        self.ingress.remove_tenant(id);
        if let Some(policer) = &mut self.policer {
            policer.set_tenant(id, None);
        }
        self.set_outside(id, None);
        self.attach(pool, id, Some(before), None);
        self.memory.change_tenant(id, self.program.tenants.get(id.0), None);
        self.close_tenant(pool, id);
        self.program.tenants.set(id.0, None);
        Ok(())
    }

    /// What a tenant says, and the directory, to be outside of its network; its owner before is
    /// still in the program.
    fn set_outside(&mut self, id: TenantId, tenant: Option<&Tenant>) {
        let before = self.program.tenants.get(id.0);
        let network = |tenant: &Tenant| network_of(id, tenant.attachment);
        if before.map(network) != tenant.map(network) {
            for (tenant, is_there) in [(before, false), (tenant, true)] {
                let Some(network) = tenant.map(network) else { continue };
                let all = self.program.elsewhere.range((id, Elsewhere::Mac(Mac([0; 6])))..);
                for &(_, address) in all.take_while(|(tenant, _)| *tenant == id) {
                    set_elsewhere((&mut self.fdb, &mut self.owners), network, address, is_there);
                }
            }
        }
        let none = Outside::default();
        let (old, new) = (before.map_or(&none, |old| &old.outside), tenant.map_or(&none, |new| &new.outside));
        let (gone, come) = match (before, tenant) {
            // Each service has an address here: with one more, thousands are listed as before.
            (Some(before), Some(tenant)) if network(before) == network(tenant) => difference(old, new),
            _ => (old.clone(), new.clone()),
        };
        for (tenant, list, is_there) in [(tenant, &come, true), (before, &gone, false)] {
            let Some(network) = tenant.map(network) else { continue };
            list.macs.iter().for_each(|&mac| self.fdb.set_elsewhere(network, mac, is_there));
            let (gone, come) = if is_there { (&[][..], &list.ips[..]) } else { (&list.ips[..], &[][..]) };
            self.owners.list(network, gone, come);
        }
    }

    /// Forgets what was seen outside of a network.
    fn clear_outside(&mut self, network: Network) {
        self.fdb.clear_outside(network);
        self.owners.clear(network);
    }

    fn set_endpoint(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        id: EndpointId,
        endpoint: Endpoint,
    ) -> Result<(), ChangeError> {
        let network = self.check_endpoint(id, &endpoint)?;
        let longest = self.longest_of(id);
        // Who may learn nothing gets nothing that is for nobody known.
        let (macs, learning) = (&endpoint.identity.macs, endpoint.identity.macs.is_empty() && endpoint.max_learned > 0);
        if let Some(before) = self.program.endpoints.get(id.0) {
            let port = before.port;
            self.pairs.set_queue(id, endpoint.queue_bytes);
            self.egress.set_endpoint(pool, now, id, &endpoint);
            self.ingress.set_endpoint(pool, now, id, &endpoint);
            self.fdb.undeclare(network, &before.identity.macs);
            if before.trunk && !endpoint.trunk {
                self.fdb.forget_tagged(id);
            }
            self.forward.set_learning(id, learning);
            self.floods[id.0 as usize].set_limits(now, floods(&endpoint));
            if port != endpoint.port {
                self.move_role(pool, Some(port), Some(endpoint.port), Role::Endpoint(id));
            }
        } else {
            let at = id.0 as usize;
            if self.tallies.len() <= at {
                self.tallies.resize_with(at + 1, Tally::default);
                self.floods.resize(at + 1, FloodBudget::new(FloodLimits { per_second: 0, rate: Rate(0) }));
                self.gone.resize(at + 1, Gone::NEVER);
            }
            self.floods[at] = FloodBudget::new(floods(&endpoint));
            self.arrivals.set_owner(id, endpoint.tenant);
            self.backlogs.add(id);
            self.egress.add_endpoint(id, &endpoint);
            self.ingress.add_endpoint(id, &endpoint);
            self.forward.add(id, network, learning);
            self.move_role(pool, None, Some(endpoint.port), Role::Endpoint(id));
            self.counts[endpoint.tenant.0 as usize] += 1;
        }
        self.forward.set_hidden(id, endpoint.is_director);
        self.fdb.set(id, endpoint.tenant, network, macs, endpoint.max_learned);
        if learning {
            self.fdb.reserve_outside(self.program.tenants.len());
        }
        self.owners.reserve(self.program.tenants.len());
        let before = self.program.endpoints.get(id.0).map(|before| &before.identity);
        self.owners.set(id, network, before, Some(&endpoint.identity));
        if let Some(policer) = &mut self.policer {
            policer.set_endpoint(id, Some(&endpoint));
        }
        self.memory.change_endpoint(id, self.program.endpoints.get(id.0), Some(&endpoint));
        let tenant = endpoint.tenant;
        let settings = self.program.vcc(&endpoint);
        if self.program.endpoints.get(id.0).is_none_or(|before| self.program.vcc(before) != settings) {
            self.vcc.set(vcc::Owner { tenant, endpoint: id }, settings);
        }
        self.program.endpoints.set(id.0, Some(endpoint));
        self.settle_change(pool, id, tenant);
        self.fit_endpoint(pool, now, id, longest);
        Ok(())
    }

    fn remove_endpoint(&mut self, pool: &mut Pool, now: Instant, id: EndpointId) -> Result<(), ChangeError> {
        let endpoint = self.program.endpoints.get(id.0).ok_or(ChangeError::Vacant(id.0))?;
        let (port, tenant) = (endpoint.port, endpoint.tenant);
        let (network, longest) = (self.forward.network(id), self.longest_of(id));
        self.fdb.undeclare(network, &endpoint.identity.macs);
        self.fdb.set(id, tenant, network, &[], 0);
        self.owners.set(id, network, Some(&endpoint.identity), None);
        self.forward.remove(id);
        let freed = self.remove_pairs(pool, id)
            + self.backlogs.clear_endpoint(pool, id)
            + self.egress.remove_endpoint(pool, id)
            + self.ingress.remove_endpoint(pool, id)
            + self.vcc.remove(pool, id);
        self.arrivals.forget(id);
        self.uplink_drops.add(Reason::Removed, u64::from(freed));
        self.move_role(pool, Some(port), None, Role::Endpoint(id));
        self.tallies[id.0 as usize] = Tally::default();
        self.gone[id.0 as usize] = Gone::at(now);
        self.services.release_lost(Some(id));
        self.counts[tenant.0 as usize] -= 1;
        self.forget_events(id);
        if let Some(policer) = &mut self.policer {
            policer.set_endpoint(id, None);
        }
        self.memory.change_endpoint(id, self.program.endpoints.get(id.0), None);
        self.close_endpoint(pool, id);
        self.program.endpoints.set(id.0, None);
        self.settle_change(pool, id, tenant);
        self.fit_endpoint(pool, now, id, longest);
        Ok(())
    }

    /// Takes out the events that an endpoint has to do with.
    fn forget_events(&mut self, id: EndpointId) {
        for _ in 0..self.events.len() {
            let Some(event) = self.events.pop_front() else { break };
            let Event::Flapping { from, to, .. } = event;
            if from == id || to == id {
                self.forget_event(&event);
            } else {
                self.events.push_back(event);
            }
        }
    }

    /// Whether an endpoint fits what there is, and the network it is to be in.
    fn check_endpoint(&self, id: EndpointId, endpoint: &Endpoint) -> Result<Network, ChangeError> {
        check_slot(id.0)?;
        let tenant = self.program.tenants.get(endpoint.tenant.0);
        let tenant = tenant.ok_or(ChangeError::UnknownTenant(endpoint.tenant))?;
        if self.program.endpoints.get(id.0).is_some_and(|before| before.tenant != endpoint.tenant) {
            return Err(ChangeError::OtherTenant(id));
        }
        self.check_port(endpoint.port, Role::Endpoint(id))?;
        let network = network_of(endpoint.tenant, tenant.attachment);
        for &mac in &endpoint.identity.macs {
            match self.fdb.declared(network, mac) {
                Some(owner) if owner != id => return Err(ChangeError::AddressInUse(mac, owner)),
                _ => {}
            }
        }
        Ok(network)
    }

    /// Whether an uplink has ports that are there, each once, and free or the uplink's already.
    fn check_uplink(&self, uplink: &Uplink) -> Result<(), ChangeError> {
        let count = uplink.members.len();
        if !(1..=Uplink::MOST_MEMBERS).contains(&count) {
            return Err(ChangeError::BadMembers(count));
        }
        for (member, &Member { port, .. }) in uplink.members.iter().enumerate() {
            self.program.ports.get(port.0).ok_or(ChangeError::UnknownPort(port))?;
            let is_taken = matches!(self.role(port), Role::Endpoint(_));
            if is_taken || uplink.member_at(port) != Some(MemberId(member as u8)) {
                return Err(ChangeError::PortInUse(port));
            }
        }
        Ok(())
    }

    /// Whether a port is there, and free or used for `role` already.
    fn check_port(&self, port: PortId, role: Role) -> Result<(), ChangeError> {
        self.program.ports.get(port.0).ok_or(ChangeError::UnknownPort(port))?;
        let now = self.role(port);
        if now == Role::Nothing || now == role { Ok(()) } else { Err(ChangeError::PortInUse(port)) }
    }

    fn check_vlan(&self, id: TenantId, attachment: Attachment) -> Result<(), ChangeError> {
        let Attachment::Vlan(vlan) = attachment else { return Ok(()) };
        if !(1..=4094).contains(&vlan) {
            return Err(ChangeError::BadVlan(vlan));
        }
        match self.vlans.get(u32::from(vlan)) {
            Some(&owner) if owner != id => Err(ChangeError::VlanInUse(vlan, owner)),
            _ => Ok(()),
        }
    }

    fn is_in_use(&self, id: TenantId) -> bool {
        self.counts.get(id.0 as usize).is_some_and(|&endpoints| endpoints > 0)
            || self.program.services.values().any(|service| service.tenant == id)
    }

    /// A tenant's attachment was `before` and is `after`; `None` where its slot is vacant.
    fn attach(&mut self, pool: &mut Pool, id: TenantId, before: Option<Attachment>, after: Option<Attachment>) {
        if self.counts.len() <= id.0 as usize {
            self.counts.resize(id.0 as usize + 1, 0);
            self.waiting.resize(id.0 as usize + 1, 0);
        }
        if before == after {
            return;
        }
        let freed = self.backlogs.clear_network(pool, Network(id.0));
        self.uplink_drops.add(Reason::Removed, u64::from(freed));
        self.backlogs.add_network(Network::UNTAGGED);
        self.backlogs.add_network(Network(id.0));
        if let Some(Attachment::Vlan(vlan)) = before {
            self.vlans.set(u32::from(vlan), None);
        }
        if let Some(Attachment::Vlan(vlan)) = after {
            self.vlans.set(u32::from(vlan), Some(id));
        }
        self.tunnels.attach(id, after);
        self.untagged -= u32::from(before == Some(Attachment::Untagged));
        self.untagged += u32::from(after == Some(Attachment::Untagged));
        self.forward.attach(id, after.filter(|_| self.program.uplink.is_some()));
        self.attach_untagged();
        self.clear_outside(Network(id.0));
        if before == Some(Attachment::Untagged) && self.untagged == 0 {
            self.clear_outside(Network::UNTAGGED);
        }
    }

    fn attach_untagged(&mut self) {
        self.forward.attach_untagged(self.untagged > 0 && self.program.uplink.is_some());
    }

    /// Who had port `before` has `after`. What waits to leave by the old port is freed: the port
    /// may be another's next. So is what the uplink was to have of who was there.
    pub(super) fn move_role(&mut self, pool: &mut Pool, before: Option<PortId>, after: Option<PortId>, role: Role) {
        if let Some(port) = before {
            self.roles[port.0 as usize] = Role::Nothing;
            let mut freed = self.control.clear(pool, Some(port));
            for _ in 0..self.out.len() {
                let Some((to, frame)) = self.out.pop_front() else { break };
                let to_wire = matches!(self.role(to), Role::Uplink(_));
                if to == port || (to_wire && pool.meta(&frame).payer() == Some(port)) {
                    pool.free(frame);
                    freed += 1;
                } else {
                    self.out.push_back((to, frame));
                }
            }
            self.uplink_drops.add(Reason::Removed, freed);
        }
        if let Some(port) = after {
            if self.roles.len() <= port.0 as usize {
                self.roles.resize(port.0 as usize + 1, Role::Nothing);
            }
            self.roles[port.0 as usize] = role;
        }
    }
}

/// When the last owner of an endpoint's slot was removed: what was queued for that number until
/// then was for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone(Option<Instant>);

impl Gone {
    /// The slot never had another owner.
    const NEVER: Gone = Gone(None);

    fn at(now: Instant) -> Gone {
        Gone(Some(now))
    }

    /// Whether what was queued at `queued` was for an owner who is gone. What a new owner is sent
    /// in the nanosecond of the change is taken for the old one's.
    pub(super) fn had(self, queued: Instant) -> bool {
        self.0.is_some_and(|gone| queued <= gone)
    }
}

/// What only the first lists, and only the second.
fn difference(before: &Outside, after: &Outside) -> (Outside, Outside) {
    let (macs, ips) = (only_in(&before.macs, &after.macs), only_in(&before.ips, &after.ips));
    (Outside { macs: macs.0, ips: ips.0 }, Outside { macs: macs.1, ips: ips.1 })
}

/// What only the first list has, and only the second; where one has it twice, once more.
fn only_in<T: Ord + Copy>(first: &[T], second: &[T]) -> (Vec<T>, Vec<T>) {
    // As a rule they differ in one place, and what is before and behind it need not be compared
    // twice.
    let is_same = |(one, other): &(&T, &T)| one == other;
    let start = first.iter().zip(second).take_while(is_same).count();
    let (first, second) = (&first[start..], &second[start..]);
    let end = first.iter().rev().zip(second.iter().rev()).take_while(is_same).count();
    let (first, second) = (sorted(&first[..first.len() - end]), sorted(&second[..second.len() - end]));
    let (mut first, mut second, mut only) = (&first[..], &second[..], (Vec::new(), Vec::new()));
    while let (Some(one), Some(other)) = (first.first(), second.first()) {
        let order = one.cmp(other);
        if order.is_lt() {
            only.0.push(*one);
        } else if order.is_gt() {
            only.1.push(*other);
        }
        first = &first[usize::from(order.is_le())..];
        second = &second[usize::from(order.is_ge())..];
    }
    only.0.extend(first);
    only.1.extend(second);
    only
}

/// Lists are in order as they are compiled.
fn sorted<T: Ord + Copy>(list: &[T]) -> Cow<'_, [T]> {
    let mut list = Cow::Borrowed(list);
    if !list.is_sorted() {
        list.to_mut().sort_unstable();
    }
    list
}

fn floods(endpoint: &Endpoint) -> FloodLimits {
    FloodLimits { per_second: endpoint.flood_per_second, rate: endpoint.flood_rate }
}

/// An endpoint of another host has declared an address of a network, or no longer does.
fn set_elsewhere((fdb, owners): (&mut Fdb, &mut Owners), network: Network, address: Elsewhere, is_there: bool) {
    match address {
        Elsewhere::Mac(mac) => fdb.set_elsewhere(network, mac, is_there),
        Elsewhere::Ip(ip) => owners.set_elsewhere(network, ip, is_there),
    }
}

fn check_slot(id: u32) -> Result<(), ChangeError> {
    if id < Slots::<()>::MOST { Ok(()) } else { Err(ChangeError::NoSuchSlot(id)) }
}

#[cfg(test)]
mod tests;
