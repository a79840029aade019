//! Admission: do the promises fit the link?
//!
//! In each direction the tenants' guarantees together may be at most what the scheduler is sure to
//! deliver: the uplink's rate on egress, the rate less the headroom on ingress.

use crate::config::{Knobs, Switch, Tenant, Uplink};
use datapath::program::Attachment;
use datapath::units::{Direction, Rate};

/// What is promised in one direction of an uplink, and what can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promise {
    /// Sum of the tenants' guarantees.
    pub promised: Rate,
    /// What may be promised.
    pub capacity: Rate,
}

impl Promise {
    /// Whether the promise can be kept.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.promised <= self.capacity
    }
}

/// What may be promised on a link of `rate`.
#[must_use]
pub fn capacity(rate: Rate, headroom_ppm: u32, direction: Direction) -> Rate {
    match direction {
        Direction::Egress => rate,
        Direction::Ingress => rate.less_ppm(headroom_ppm),
    }
}

/// What the switch promises in `direction`; `None` without an uplink.
#[must_use]
pub fn promise(switch: &Switch, direction: Direction) -> Option<Promise> {
    let uplink: &Uplink = switch.uplink.as_ref()?;
    let attached = switch.tenants.iter().filter(|t| t.attachment != Attachment::Isolated);
    Some(Promise {
        promised: sum(attached.map(|t| tenant_guarantee(t, direction))),
        capacity: capacity(*uplink.rate.get(direction), switch.headroom(), direction),
    })
}

/// A tenant's guarantee: its own, or else its endpoints' together.
#[must_use]
pub fn tenant_guarantee(tenant: &Tenant, direction: Direction) -> Rate {
    tenant.knobs.guarantee.get(direction).unwrap_or_else(|| endpoints_guarantee(tenant, direction))
}

/// The guarantees of a tenant's endpoints together.
#[must_use]
pub fn endpoints_guarantee(tenant: &Tenant, direction: Direction) -> Rate {
    sum(tenant.endpoints.iter().filter_map(|e| guarantee(&e.knobs, direction)))
}

fn guarantee(knobs: &Knobs, direction: Direction) -> Option<Rate> {
    *knobs.guarantee.get(direction)
}

fn sum(rates: impl Iterator<Item = Rate>) -> Rate {
    Rate(rates.fold(0u64, |sum, r| sum.saturating_add(r.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headroom_is_held_back_on_ingress_only() {
        let gigabit = Rate(Rate::GBIT);
        assert_eq!(capacity(gigabit, 20_000, Direction::Egress), gigabit);
        assert_eq!(capacity(gigabit, 20_000, Direction::Ingress), Rate(980_000_000));
        assert_eq!(capacity(Rate::MAX, 0, Direction::Ingress), Rate::MAX);
    }
}
