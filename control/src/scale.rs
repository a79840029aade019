//! Scaling: what is promised when the uplink is slower than configured.
//!
//! A link negotiated down, or a bond that lost a member, cannot carry what was admitted. Then every
//! guarantee of that direction shrinks by the same factor, so that all tenants lose alike; limits
//! and weights stay. When the rate comes back, so do the guarantees.

use crate::admission::{Promise, capacity};
use datapath::program::{Attachment, Change, Endpoint, EndpointId, Program, Share, Tenant, TenantId};
use datapath::units::{Both, Direction, Rate};

/// What to do about an uplink that carries `actual`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scaled {
    /// What the switch is to be told, in this order.
    pub changes: Vec<Change>,
    /// What was promised, and what can be now.
    pub promise: Both<Promise>,
}

impl Scaled {
    /// Whether all guarantees can be met in both directions.
    #[must_use]
    pub fn met(&self) -> bool {
        self.promise.egress.fits() && self.promise.ingress.fits()
    }
}

/// Shares for a switch whose uplink carries `actual` now. `program` is what was compiled. An uplink
/// faster than configured is used as configured; `None` without uplink.
#[must_use]
pub fn scale(program: &Program, actual: Both<Rate>) -> Option<Scaled> {
    let uplink = program.uplink.as_ref()?;
    let rate = |d: Direction| *actual.get(d).min(uplink.rate().get(d));
    let promise = |d: Direction| {
        let attached = program.tenants.values().filter(|t| t.attachment != Attachment::Isolated);
        let promised = attached.fold(0u64, |sum, t| sum.saturating_add(t.share.get(d).guarantee.0));
        Promise { promised: Rate(promised), capacity: capacity(rate(d), uplink.headroom_ppm, d) }
    };
    let promise = Both { egress: promise(Direction::Egress), ingress: promise(Direction::Ingress) };
    let rate = Both { egress: rate(Direction::Egress), ingress: rate(Direction::Ingress) };
    let mut changes = vec![Change::Uplink(Some(uplink.at_rate(rate)))];
    let guaranteed = |share: &Both<Share>| share.egress.guarantee.0 > 0 || share.ingress.guarantee.0 > 0;
    for (id, tenant) in program.tenants.iter().filter(|(_, t)| guaranteed(&t.share)) {
        let share = shrink(&tenant.share, &promise);
        changes.push(Change::Tenant(TenantId(id), Some(Tenant { share, ..tenant.clone() })));
    }
    for (id, endpoint) in program.endpoints.iter().filter(|(_, e)| guaranteed(&e.share)) {
        let share = shrink(&endpoint.share, &promise);
        changes.push(Change::Endpoint(EndpointId(id), Some(Endpoint { share, ..endpoint.clone() })));
    }
    Some(Scaled { changes, promise })
}

/// A share whose guarantees fit, rounded down so that their sum fits as well.
fn shrink(share: &Both<Share>, promise: &Both<Promise>) -> Both<Share> {
    let one = |d: Direction| {
        let (share, promise) = (*share.get(d), promise.get(d));
        if promise.fits() {
            return share;
        }
        Share { guarantee: share.guarantee.scaled(promise.capacity.0, promise.promised.0), ..share }
    };
    Both { egress: one(Direction::Egress), ingress: one(Direction::Ingress) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::program::{PortId, Uplink};

    const MBIT: u64 = 1_000_000;

    fn program(guarantees: &[u64]) -> Program {
        let share = |mbit: u64| {
            let share = Share { guarantee: Rate(mbit * MBIT), ..Share::default() };
            Both { egress: share, ingress: share }
        };
        Program {
            uplink: Some(Uplink {
                headroom_ppm: 20_000,
                ..Uplink::new(PortId(0), Both { egress: Rate(1000 * MBIT), ingress: Rate(1000 * MBIT) })
            }),
            tenants: guarantees
                .iter()
                .map(|&g| Tenant { attachment: Attachment::Untagged, share: share(g), ..Tenant::default() })
                .collect(),
            endpoints: guarantees
                .iter()
                .enumerate()
                .map(|(i, &g)| Endpoint {
                    share: share(g),
                    queue_bytes: 0,
                    flood_per_second: 0,
                    ..Endpoint::new(TenantId(i as u32), PortId(i as u32 + 1))
                })
                .collect(),
            ..Program::default()
        }
    }

    fn both(mbit: u64) -> Both<Rate> {
        Both { egress: Rate(mbit * MBIT), ingress: Rate(mbit * MBIT) }
    }

    fn tenant_guarantees(scaled: &Scaled, d: Direction) -> Vec<u64> {
        let tenants = scaled.changes.iter().filter_map(|change| match change {
            Change::Tenant(_, Some(tenant)) => Some(tenant.share.get(d).guarantee.0),
            _ => None,
        });
        tenants.collect()
    }

    #[test]
    fn a_link_at_a_tenth_gives_each_a_tenth_where_all_was_promised() {
        let scaled = scale(&program(&[600, 0, 380]), both(100)).unwrap();
        assert!(!scaled.met());
        assert_eq!(tenant_guarantees(&scaled, Direction::Ingress), [60 * MBIT, 38 * MBIT]);
        let egress = tenant_guarantees(&scaled, Direction::Egress);
        assert_eq!(egress, [61_224_489, 38_775_510]);
        assert!(egress.iter().sum::<u64>() <= 100 * MBIT);
    }

    #[test]
    fn what_still_fits_is_not_touched_and_comes_back() {
        let program = program(&[100, 200]);
        let slow = scale(&program, both(400)).unwrap();
        assert!(slow.met());
        assert_eq!(tenant_guarantees(&slow, Direction::Egress), [100 * MBIT, 200 * MBIT]);
        assert!(!scale(&program, both(200)).unwrap().met());
        let back = scale(&program, both(2000)).unwrap();
        assert_eq!(back.changes[0], Change::Uplink(program.uplink.clone()));
        assert_eq!(tenant_guarantees(&back, Direction::Egress), [100 * MBIT, 200 * MBIT]);
    }

    #[test]
    fn no_uplink_promises_nothing() {
        assert_eq!(scale(&Program::default(), both(100)), None);
    }
}
