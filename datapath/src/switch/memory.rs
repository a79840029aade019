//! Whose part of the frame memory is how large: what is promised of it (`frame/accounts.rs`) is
//! divided as the link would be if everyone wanted all of it. A tenant has its guarantee and its
//! part of the rest by weight, up to its limit; of that, an endpoint with a guarantee has an
//! account of its own.
//!
//! One change of a tenant changes the parts of all, so they are set anew some at a time, as frames
//! go on ([`Switch::settle_memory`]).

use super::Switch;
use crate::frame::{Owner, Part, Pool, PoolLimits};
use crate::network::Network;
use crate::program::{Endpoint, EndpointId, Share, Tenant, TenantId};
use crate::units::{Both, Direction, Rate};

/// The bond's part beside the tenants' parts, in eighths: for what waits to be put in order, or
/// waits for its member.
const BOND_EIGHTHS: u64 = 1;
/// What a tenant has of the memory for what the bond keeps to be sent again, in eighths of what it
/// has of the rest.
const KEPT_EIGHTHS: u64 = 1;
/// Tenants and endpoints that are looked at in one go: some microseconds.
const AT_ONCE: usize = 64;

/// Sums of guarantees and weights in one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    guarantee: u64,
    weight: u64,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    owner: Owner,
    /// Who pays for what the uplink's bond keeps of what it has sent.
    kept: Owner,
    /// What its endpoints are guaranteed.
    guaranteed: Both<u64>,
}

impl Member {
    const VACANT: Member =
        Member { owner: Owner::NOBODY, kept: Owner::NOBODY, guaranteed: Both { egress: 0, ingress: 0 } };
}

/// What a switch keeps of it.
#[derive(Debug, Default)]
pub(super) struct Memory {
    tenants: Vec<Member>,
    /// Accounts of endpoints that have a guarantee.
    endpoints: Vec<Option<Owner>>,
    sums: Both<Sums>,
    /// Where the round goes on that sets parts anew: tenants, then endpoints. A new round begins
    /// with the tenants: accounts of endpoints are parts of theirs.
    place: usize,
    /// For which version of the pool this round began; zero where something has changed since, and
    /// another round is to follow.
    round: u32,
    /// For which version of the pool all is set; zero where it is not.
    settled: u32,
    /// Whether it is one of the pool's holders.
    holds: bool,
    /// The account of the uplink's bond, where it has one.
    bond: Option<Owner>,
}

impl Memory {
    pub fn reserve(&mut self, endpoints: usize) {
        self.endpoints.reserve(endpoints.saturating_sub(self.endpoints.len()));
    }

    /// A tenant comes, has another share, or goes.
    pub fn change_tenant(&mut self, id: TenantId, before: Option<&Tenant>, after: Option<&Tenant>) {
        if self.tenants.len() <= id.0 as usize {
            self.tenants.resize(id.0 as usize + 1, Member::VACANT);
        }
        for direction in Direction::ALL {
            let sums = self.sums.get_mut(direction);
            for (tenant, add) in [(before, false), (after, true)] {
                let Some(tenant) = tenant else { continue };
                let Share { guarantee, weight, .. } = *tenant.share.get(direction);
                sums.guarantee = change(sums.guarantee, guarantee.0, add);
                sums.weight = change(sums.weight, u64::from(weight), add);
            }
        }
        self.unsettle();
    }

    /// An endpoint comes, has another share, or goes.
    pub fn change_endpoint(&mut self, id: EndpointId, before: Option<&Endpoint>, after: Option<&Endpoint>) {
        if self.endpoints.len() <= id.0 as usize {
            self.endpoints.resize(id.0 as usize + 1, None);
        }
        for (endpoint, add) in [(before, false), (after, true)] {
            let Some(endpoint) = endpoint else { continue };
            let Some(tenant) = self.tenants.get_mut(endpoint.tenant.0 as usize) else { continue };
            for direction in Direction::ALL {
                let sum = tenant.guaranteed.get_mut(direction);
                *sum = change(*sum, endpoint.share.get(direction).guarantee.0, add);
            }
        }
    }

    /// All is to be set anew.
    pub fn unsettle(&mut self) {
        (self.round, self.settled) = (0, 0);
    }

    /// Who a new queue of an endpoint is charged to.
    pub fn owner(&self, id: EndpointId, tenant: TenantId) -> Owner {
        let own = self.endpoints.get(id.0 as usize).copied().flatten();
        own.unwrap_or_else(|| self.tenants.get(tenant.0 as usize).map_or(Owner::NOBODY, |tenant| tenant.owner))
    }
}

fn change(sum: u64, by: u64, add: bool) -> u64 {
    if add { sum.saturating_add(by) } else { sum.saturating_sub(by) }
}

fn has_guarantee(endpoint: &Endpoint) -> bool {
    Direction::ALL.iter().any(|direction| endpoint.share.get(*direction).guarantee > Rate(0))
}

impl Switch {
    /// Gives some more of the tenants and endpoints their part of the memory, where not all have it
    /// yet.
    #[inline]
    pub(super) fn settle_memory(&mut self, pool: &mut Pool) {
        if self.memory.settled != pool.version() {
            self.settle_some(pool);
        }
    }

    /// An endpoint has come, or has another share: its tenant's part and its own are other ones,
    /// and nobody else's.
    pub(super) fn settle_change(&mut self, pool: &mut Pool, id: EndpointId, tenant: TenantId) {
        if self.memory.holds {
            self.settle_tenant(pool, tenant);
            self.settle_endpoint(pool, id);
        }
    }

    /// What the uplink's bond keeps is charged to an account of its own: what the outside sends has
    /// no owner before it is in order.
    fn settle_bond(&mut self, pool: &mut Pool) {
        let Some(bond) = &mut self.bond else { return self.close_bond(pool) };
        let owner = *self.memory.bond.get_or_insert_with(|| pool.open_account(Owner::NOBODY));
        pool.set_part(owner, Part::of(BOND_EIGHTHS, 8));
        bond.set_owner(pool, owner);
    }

    fn close_bond(&mut self, pool: &mut Pool) {
        if let Some(bond) = &mut self.bond {
            bond.set_owner(pool, Owner::NOBODY);
        }
        let Some(owner) = self.memory.bond.take() else { return };
        // Where the bond is gone, so is what it kept.
        for tenant in &mut self.memory.tenants {
            pool.close_account(std::mem::replace(&mut tenant.kept, Owner::NOBODY));
        }
        pool.close_account(owner);
    }

    /// Closes all accounts: the switch goes.
    pub(super) fn leave_memory(&mut self, pool: &mut Pool) {
        for at in 0..self.memory.endpoints.len() {
            self.close_endpoint(pool, EndpointId(at as u32));
        }
        for at in 0..self.memory.tenants.len() {
            self.close_tenant(pool, TenantId(at as u32));
        }
        self.close_bond(pool);
        if std::mem::take(&mut self.memory.holds) {
            pool.set_holder(false);
        }
        self.memory.unsettle();
    }

    /// Nothing of an endpoint's waits any more.
    pub(super) fn close_endpoint(&mut self, pool: &mut Pool, id: EndpointId) {
        self.charge_to(pool, id, Owner::NOBODY);
        if let Some(bond) = &mut self.bond {
            bond.set_keeper(pool, id, Owner::NOBODY);
        }
        self.close_own(pool, id);
    }

    /// Nothing of an endpoint's waits in its own account any more.
    fn close_own(&mut self, pool: &mut Pool, id: EndpointId) {
        if let Some(owner) = self.memory.endpoints.get_mut(id.0 as usize).and_then(Option::take) {
            pool.close_account(owner);
        }
    }

    /// A tenant has no endpoints any more, or nothing of theirs waits.
    pub(super) fn close_tenant(&mut self, pool: &mut Pool, id: TenantId) {
        let Some(tenant) = self.memory.tenants.get_mut(id.0 as usize) else { return };
        let owner = std::mem::replace(&mut tenant.owner, Owner::NOBODY);
        let kept = std::mem::replace(&mut tenant.kept, Owner::NOBODY);
        self.backlogs.set_network_owner(pool, Network(id.0), Owner::NOBODY);
        pool.close_account(owner);
        pool.close_account(kept);
    }

    #[cold]
    fn settle_some(&mut self, pool: &mut Pool) {
        let holds = !self.program.tenants.is_empty();
        let begins = self.memory.holds != holds;
        if begins {
            self.memory.holds = holds;
            pool.set_holder(holds);
        }
        let tenants = self.memory.tenants.len();
        let all = tenants + self.memory.endpoints.len();
        if begins || self.memory.settled != 0 {
            // Nothing is set in this pool, or for another version of it.
            self.memory.unsettle();
            self.memory.place = 0;
        }
        if self.memory.place == 0 {
            self.memory.round = pool.version();
        }
        self.settle_bond(pool);
        let end = all.min(self.memory.place + AT_ONCE);
        for place in self.memory.place..end {
            if place < tenants {
                self.settle_tenant(pool, TenantId(place as u32));
            } else {
                self.settle_endpoint(pool, EndpointId((place - tenants) as u32));
            }
        }
        self.memory.place = end;
        if end == all {
            self.memory.place = 0;
            if self.memory.round == pool.version() {
                self.memory.settled = self.memory.round;
            }
        }
    }

    fn settle_tenant(&mut self, pool: &mut Pool, id: TenantId) {
        let Some(tenant) = self.program.tenants.get(id.0) else { return };
        let Member { owner, kept, guaranteed } = self.memory.tenants[id.0 as usize];
        let whole = |direction| self.part(direction, tenant.share.get(direction));
        let part = |direction| whole(direction).without(self.guaranteed_part(direction, *guaranteed.get(direction)));
        let part = part(Direction::Egress).mean(part(Direction::Ingress));
        let sends = whole(Direction::Egress);
        if let Some(bond) = self.memory.bond {
            let kept = if kept == Owner::NOBODY { pool.open_account(bond) } else { kept };
            self.memory.tenants[id.0 as usize].kept = kept;
            pool.set_part(kept, sends.eighths(KEPT_EIGHTHS));
        }
        let owner = if owner == Owner::NOBODY { pool.open_account(Owner::NOBODY) } else { owner };
        self.memory.tenants[id.0 as usize].owner = owner;
        self.backlogs.set_network_owner(pool, Network(id.0), owner);
        pool.set_part(owner, part);
    }

    fn settle_endpoint(&mut self, pool: &mut Pool, id: EndpointId) {
        let Some(endpoint) = self.program.endpoints.get(id.0) else { return };
        let Member { owner: tenant, kept, .. } = self.memory.tenants[endpoint.tenant.0 as usize];
        if let Some(bond) = &mut self.bond {
            bond.set_keeper(pool, id, kept);
        }
        if !has_guarantee(endpoint) {
            self.charge_to(pool, id, tenant);
            return self.close_own(pool, id);
        }
        let part = |direction| self.guaranteed_part(direction, endpoint.share.get(direction).guarantee.0);
        let part = part(Direction::Egress).mean(part(Direction::Ingress));
        let owner = self.memory.endpoints[id.0 as usize].unwrap_or_else(|| pool.open_account(tenant));
        self.memory.endpoints[id.0 as usize] = Some(owner);
        pool.set_part(owner, part);
        self.charge_to(pool, id, owner);
    }

    fn charge_to(&mut self, pool: &mut Pool, id: EndpointId, owner: Owner) {
        self.pairs.set_owner(pool, id, owner);
        self.backlogs.set_owner(pool, id, owner);
        self.vcc.set_owner(pool, id, owner);
        self.egress.set_owner(pool, id, owner);
        self.ingress.set_owner(pool, id, owner);
    }

    /// What a share would get of one direction of the link if everyone wanted all of it.
    fn part(&self, direction: Direction, share: &Share) -> Part {
        let Sums { guarantee, weight } = *self.memory.sums.get(direction);
        let all = self.whole(direction);
        if all == 0 {
            return Part::of(u64::from(share.weight), weight);
        }
        let rest = Rate(all.saturating_sub(guarantee)).scaled(u64::from(share.weight), weight);
        Part::of(share.guarantee.0.saturating_add(rest.0).min(share.limit.0), all)
    }

    fn guaranteed_part(&self, direction: Direction, guarantee: u64) -> Part {
        Part::of(guarantee, self.whole(direction))
    }

    /// What there is to divide: what the link carries, or what was promised, where that is more;
    /// nothing without a link.
    fn whole(&self, direction: Direction) -> u64 {
        let Some(uplink) = &self.program.uplink else { return 0 };
        uplink.rate().get(direction).0.max(self.memory.sums.get(direction).guarantee)
    }

    /// What waits of a tenant's frames, and its share of what is promised, but for what its
    /// endpoints have by themselves ([`Switch::endpoint_memory`]).
    #[must_use]
    pub fn tenant_own_memory(&self, pool: &Pool, tenant: TenantId) -> MemoryStats {
        let Some(member) = self.memory.tenants.get(tenant.0 as usize) else { return MemoryStats::default() };
        MemoryStats { held: pool.held(member.owner).bytes(), share: pool.share(member.owner).bytes() }
    }

    /// What waits of the frames of an endpoint that has a guarantee, within its own share; what is
    /// beyond is its tenant's.
    #[must_use]
    pub fn endpoint_memory(&self, pool: &Pool, endpoint: EndpointId) -> MemoryStats {
        let Some(owner) = self.memory.endpoints.get(endpoint.0 as usize).copied().flatten() else {
            return MemoryStats::default();
        };
        let (held, share) = (pool.held(owner), pool.share(owner));
        let within = PoolLimits {
            small: held.small.min(share.small),
            medium: held.medium.min(share.medium),
            large: held.large.min(share.large),
        };
        MemoryStats { held: within.bytes(), share: share.bytes() }
    }
}

/// Frame memory of one owner, in bytes of buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryStats {
    /// What its frames take that wait.
    pub held: u64,
    /// What it can always have.
    pub share: u64,
}

impl MemoryStats {
    /// Adds another's.
    pub fn add(&mut self, other: MemoryStats) {
        self.held += other.held;
        self.share += other.share;
    }
}

#[cfg(test)]
mod tests;
