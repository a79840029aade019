//! The fluid model over the receivers that are active.

use super::super::fill::{Child, Water, fill};
use super::{Directory, Receiver};
use std::ops::Range;

/// Memory that is used again.
#[derive(Debug, Default)]
pub(super) struct Divider {
    endpoints: Vec<Child>,
    tenants: Vec<Child>,
    /// Of each tenant: its number, and which of `endpoints` are its.
    groups: Vec<(u32, Range<usize>)>,
    rates: Vec<u64>,
    inner: Vec<u64>,
    order: Vec<(u64, u32)>,
}

impl Divider {
    /// Sets the share of each active receiver: what it could have of `capacity` if it wanted any
    /// amount while the others want what they want. With `suspect` all want their guarantees at
    /// least. False where nobody wants more than there is for it.
    pub fn divide(
        &mut self,
        capacity: u64,
        suspect: bool,
        active: &[u32],
        receivers: &mut [Receiver],
        directory: &Directory,
    ) -> bool {
        let mut is_short = self.claims(suspect, active, receivers, directory);
        let floors = self.tenants.iter().map(|tenant| tenant.floor).sum();
        let intrudes = active.iter().any(|&index| receivers[index as usize].ignoring > 0);
        // Promises do not shrink because somebody ignores its limit.
        let total = if intrudes { capacity.max(floors) } else { capacity };
        let top = fill(total, &self.tenants, &mut self.rates, &mut self.order);
        is_short |= top.is_bounded();
        let free = total.saturating_sub(self.rates.iter().sum());
        for (&rate, (tenant, range)) in self.rates.iter().zip(&self.groups) {
            let Some(tenant) = directory.tenants.get(*tenant) else { continue };
            let share = &tenant.ingress;
            let floor = share.guarantee.0.min(share.limit.0);
            let most = if top.is_bounded() { top.level(floor, u64::from(share.weight)) } else { rate + free };
            let most = most.min(share.limit.0).max(rate);
            let water = fill(rate, &self.endpoints[range.clone()], &mut self.inner, &mut self.order);
            for (&index, &own) in active[range.clone()].iter().zip(&self.inner) {
                let receiver = &mut receivers[index as usize];
                let Some(endpoint) = directory.endpoints.get(index) else { continue };
                receiver.share = level(water, endpoint, most, most - (rate - own)).min(capacity);
            }
        }
        is_short
    }

    /// Writes down what tenants and endpoints claim. True where one of them wants more than its own
    /// limit.
    fn claims(&mut self, suspect: bool, active: &[u32], receivers: &[Receiver], directory: &Directory) -> bool {
        self.endpoints.clear();
        self.tenants.clear();
        self.groups.clear();
        let mut is_short = false;
        let of = |index: &u32| receivers[*index as usize].tenant;
        for group in active.chunk_by(|a, b| of(a) == of(b)) {
            let from = self.endpoints.len();
            let (mut wanted, mut floors, mut intrudes) = (0u64, 0u64, false);
            for &index in group {
                let receiver = &receivers[index as usize];
                let share = directory.endpoints.get(index).map_or_else(Default::default, |endpoint| endpoint.ingress);
                let demand = if suspect { receiver.demand.max(share.guarantee.0) } else { receiver.demand };
                is_short |= demand > share.limit.0;
                let ceiling = demand.min(share.limit.0);
                let floor = share.guarantee.0.min(ceiling).max(receiver.ignoring);
                let child = Child { floor, ceiling: ceiling.max(floor), weight: u64::from(share.weight) };
                wanted = wanted.saturating_add(child.ceiling);
                floors = floors.saturating_add(floor);
                intrudes |= receiver.ignoring > 0;
                self.endpoints.push(child);
            }
            let tenant = of(&group[0]);
            let share = directory.tenants.get(tenant).map_or_else(Default::default, |tenant| tenant.ingress);
            // What was wanted lately, as far as the guarantee goes.
            let mut room = share.guarantee.0.saturating_sub(wanted);
            for (&index, child) in group.iter().zip(&mut self.endpoints[from..]) {
                let receiver = &receivers[index as usize];
                let own = directory.endpoints.get(index).map_or_else(Default::default, |endpoint| endpoint.ingress);
                let kept = receiver.kept.min(room).min(own.limit.0.saturating_sub(child.ceiling));
                child.ceiling += kept;
                child.floor = child.floor.max(own.guarantee.0.min(child.ceiling));
                (wanted, room) = (wanted + kept, room - kept);
            }
            is_short |= wanted > share.limit.0;
            let ceiling = wanted.min(share.limit.0);
            let floor = share.guarantee.0.min(ceiling).max(if intrudes { floors } else { 0 });
            let child = Child { floor, ceiling: ceiling.max(floor), weight: u64::from(share.weight) };
            self.tenants.push(child);
            self.groups.push((tenant, from..self.endpoints.len()));
        }
        is_short
    }
}

/// What an endpoint could have: at the height of its tenant's water, or all that its tenant has
/// left.
fn level(water: Water, endpoint: &super::super::directory::Endpoint, most: u64, rest: u64) -> u64 {
    let share = &endpoint.ingress;
    let level = if water.is_bounded() {
        water.level(share.guarantee.0.min(share.limit.0), u64::from(share.weight)).min(most)
    } else {
        rest
    };
    level.min(share.limit.0)
}
