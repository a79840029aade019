//! Scaling: what is promised when the uplink is slower than configured.
//!
//! A link negotiated down, or a bond that lost a member, cannot carry what was admitted. Then every
//! guarantee of that direction shrinks by the same factor, so that all tenants lose alike; limits
//! and weights stay. When the rate comes back, so do the guarantees.
//!
//! Nobody writes smaller guarantees into the program for that: the trees run on link time
//! ([decision 4](../../docs/decisions/004-guarantees-run-on-link-time.md)), agents and shares of
//! processor time divide what there is. So what was promised stays known, and whoever gets less is
//! short and said to be.

use crate::admission::{Promise, capacity};
use datapath::program::{Attachment, Program, Uplink};
use datapath::units::{Both, Direction, Rate};

/// What becomes of an uplink that carries `actual`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scaled {
    /// What the switch is to be told.
    pub uplink: Uplink,
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

/// The uplink of a switch whose uplink carries `actual` now. `program` is what was compiled. One
/// that is faster than configured is used as configured; `None` without uplink.
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
    Some(Scaled { uplink: uplink.at_rate(rate), promise })
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::program::{Endpoint, PortId, Share, Tenant, TenantId};

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

    #[test]
    fn a_link_at_a_tenth_cannot_keep_what_was_promised_and_says_how_much_it_can() {
        let scaled = scale(&program(&[600, 0, 380]), both(100)).unwrap();
        assert!(!scaled.met());
        assert_eq!(scaled.uplink.rate(), both(100));
        let promised = Rate(980 * MBIT);
        assert_eq!(scaled.promise.ingress, Promise { promised, capacity: Rate(98 * MBIT) });
        assert_eq!(scaled.promise.egress, Promise { promised, capacity: Rate(100 * MBIT) });
    }

    #[test]
    fn what_still_fits_is_met_and_a_faster_link_is_used_as_configured() {
        let program = program(&[100, 200]);
        assert!(scale(&program, both(400)).unwrap().met());
        assert!(!scale(&program, both(200)).unwrap().met());
        let back = scale(&program, both(2000)).unwrap();
        assert_eq!((Some(&back.uplink), back.met()), (program.uplink.as_ref(), true));
    }

    #[test]
    fn no_uplink_promises_nothing() {
        assert_eq!(scale(&Program::default(), both(100)), None);
    }
}
