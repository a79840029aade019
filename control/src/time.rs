//! Shares of the worker's time: what the link promises, in time.
//!
//! At 64 bytes a frame the processor runs out before the link, and then it is the processor that is
//! promised. Who would get a third of the link if all wanted more than there is, guarantees and
//! limits and weights considered (the fluid model), is to have a third of the tenants' time; within
//! a tenant, its endpoints likewise. Of the two directions the larger part counts: reading serves
//! the one, writing the other.

use agent::fill::{Child, fill};
use datapath::program::{EndpointId, Program, Share, TenantId};
use datapath::units::{Both, Direction, Rate};
use std::collections::BTreeMap;

/// All of what is shared: the weight of one who has everything, and the largest that there is.
pub const ALL: u32 = 65_535;

/// Weights in the sharing of a worker's time among the tenants of one switch, and among the
/// endpoints of each. None is 0.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TimeShares {
    /// By tenant.
    pub tenants: BTreeMap<TenantId, u32>,
    /// By endpoint, its part of its tenant's.
    pub endpoints: BTreeMap<EndpointId, u32>,
}

/// A tenant or an endpoint by its number, and its share.
type Claim = (u32, Both<Share>);

/// The shares of a switch that runs `program`. Without an uplink guarantees mean nothing, and
/// weights and limits are left.
#[must_use]
pub fn shares(program: &Program) -> TimeShares {
    let link = program.uplink.as_ref().map(datapath::program::Uplink::rate);
    let tenants: Vec<Claim> = program.tenants.iter().map(|(id, tenant)| (id, tenant.share)).collect();
    let mut members: BTreeMap<u32, Vec<Claim>> = BTreeMap::new();
    for (id, endpoint) in program.endpoints.iter() {
        members.entry(endpoint.tenant.0).or_default().push((id, endpoint.share));
    }
    let all = link.unwrap_or(Both { egress: Rate::MAX, ingress: Rate::MAX });
    let mut shares = TimeShares::default();
    for (id, weight, rate) in parts(&tenants, all, link.is_some()) {
        shares.tenants.insert(TenantId(id), weight);
        for (id, weight, _) in parts(members.get(&id).map_or(&[], Vec::as_slice), rate, link.is_some()) {
            shares.endpoints.insert(EndpointId(id), weight);
        }
    }
    shares
}

/// Of each its part of [`ALL`], and what it has of `rate` if everybody wants as much as he may
/// have.
fn parts(claims: &[Claim], rate: Both<Rate>, has_link: bool) -> Vec<(u32, u32, Both<Rate>)> {
    let pour = |direction| {
        let child = |(_, share): &Claim| {
            let Share { guarantee, limit, weight } = *share.get(direction);
            let ceiling = if limit.is_limited() { limit.0.min(Rate::MAX.0) } else { u64::MAX };
            let floor = if has_link { guarantee.0.min(ceiling).min(Rate::MAX.0) } else { 0 };
            Child { floor, ceiling, weight: u64::from(weight) }
        };
        let mut rates = Vec::new();
        fill(rate.get(direction).0, &claims.iter().map(child).collect::<Vec<_>>(), &mut rates, &mut Vec::new());
        rates
    };
    let (egress, ingress) = (pour(Direction::Egress), pour(Direction::Ingress));
    let part = |of: u64, all: Rate| (u128::from(of) * u128::from(ALL) / u128::from(all.0.max(1))) as u32;
    let each = claims.iter().zip(egress.into_iter().zip(ingress));
    each.map(|((id, _), (out, into))| {
        let weight = part(out, rate.egress).max(part(into, rate.ingress)).clamp(1, ALL);
        (*id, weight, Both { egress: Rate(out), ingress: Rate(into) })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load;

    fn shares_of(tenants: &str, uplink: bool) -> TimeShares {
        let uplink = if uplink { "[switch.uplink]\nport = \"tap://up\"\nrate = \"1 Gbit/s\"\n" } else { "" };
        let text = format!("[daemon]\nname = \"t\"\n[[switch]]\nname = \"s1\"\n{uplink}{tenants}");
        let loaded = load(&text);
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
        shares(&loaded.plan.expect("a plan").switches[0].program)
    }

    fn tenant(name: &str, share: &str, endpoints: &[&str]) -> String {
        let endpoint = |(n, share): (usize, &&str)| {
            format!("[[switch.tenant.endpoint]]\nname = \"{name}{n}\"\nport = \"tap://{name}{n}\"\n{share}\n")
        };
        let endpoints: String = endpoints.iter().enumerate().map(endpoint).collect();
        format!("[[switch.tenant]]\nname = \"{name}\"\n{share}\n{endpoints}")
    }

    /// Whether a weight is so many thousandths of all, rounded.
    fn is(weight: u32, thousandths: u32) -> bool {
        weight.abs_diff(thousandths * ALL / 1000) <= ALL / 2000 + 2
    }

    #[test]
    fn time_is_shared_as_the_link_would_be_if_all_were_greedy() {
        let text = [
            tenant("a", "vlan = 10\nguarantee = \"500 Mbit/s\"", &["guarantee = \"400 Mbit/s\"", ""]),
            tenant("b", "vlan = 11\nweight = 3", &[""; 4]),
            tenant("c", "vlan = 12\nlimit = \"20 Mbit/s\"", &[""]),
        ]
        .concat();
        let shares = shares_of(&text, true);
        let tenants: Vec<u32> = shares.tenants.values().copied().collect();
        // 500 are promised, c takes 20, and 480 are left by weights of 1 and 3.
        assert!(is(tenants[0], 620) && is(tenants[1], 360) && is(tenants[2], 20), "{tenants:?}");
        let endpoints: Vec<u32> = shares.endpoints.values().copied().collect();
        // Of 620: 400 and half of the rest; of others equal parts.
        assert!(is(endpoints[0], 823) && is(endpoints[1], 177) && is(endpoints[2], 250), "{endpoints:?}");
        assert!(is(endpoints[6], 1000), "{endpoints:?}");
    }

    #[test]
    fn without_a_link_weights_are_left_and_nobody_has_nothing() {
        let text =
            [tenant("a", "", &["weight = 1", "weight = 3"]), tenant("b", "limit = \"1 kbit/s\"", &[""])].concat();
        let shares = shares_of(&text, false);
        assert_eq!(shares.tenants[&TenantId(1)], 1, "a limit of next to nothing");
        assert!(is(shares.endpoints[&EndpointId(0)], 250) && is(shares.endpoints[&EndpointId(1)], 750), "{shares:?}");
    }
}
