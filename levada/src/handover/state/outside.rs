//! What was seen outside, as it is written down.

use control::plan::SwitchPlan;
use datapath::program::TenantId;
use datapath::switch::{Crowded as KnownCrowded, SeenOutside};
use datapath::wire::Mac;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// An address that was seen outside.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
pub struct Outside {
    /// The untagged network where there is none.
    tenant: Option<String>,
    mac: [u8; 6],
    /// The address that it was given for, and whether by a router.
    address: Option<(IpAddr, bool)>,
    left_ns: u64,
}

/// A network in which more may be outside than that.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
pub struct Crowded {
    tenant: Option<String>,
    macs_ns: u64,
    ips_ns: u64,
}

fn name_of(switch: &SwitchPlan, tenant: Option<TenantId>) -> Option<String> {
    tenant.map(|id| switch.tenants[id.0 as usize].clone())
}

/// The tenants of a switch by name.
struct Tenants<'a>(BTreeMap<&'a str, TenantId>);

impl Tenants<'_> {
    fn of(switch: &SwitchPlan) -> Tenants<'_> {
        Tenants(switch.tenants.iter().map(|(id, name)| (name.as_str(), TenantId(id))).collect())
    }

    /// Its number; `Some(None)`: nobody's. `None` where there is no such tenant.
    fn find(&self, name: Option<&String>) -> Option<Option<TenantId>> {
        match name {
            Some(name) => self.0.get(name.as_str()).map(|&id| Some(id)),
            None => Some(None),
        }
    }
}

pub fn outside_out(switch: &SwitchPlan, seen: &SeenOutside) -> Outside {
    let &SeenOutside { tenant, mac, address, left_ns } = seen;
    Outside { tenant: name_of(switch, tenant), mac: mac.0, address, left_ns }
}

pub fn outside_in(switch: &SwitchPlan, all: &[Outside]) -> Vec<SeenOutside> {
    let tenants = Tenants::of(switch);
    let one = |seen: &Outside| {
        let &Outside { mac, address, left_ns, .. } = seen;
        Some(SeenOutside { tenant: tenants.find(seen.tenant.as_ref())?, mac: Mac(mac), address, left_ns })
    };
    all.iter().filter_map(one).collect()
}

pub fn crowded_out(switch: &SwitchPlan, crowded: &KnownCrowded) -> Crowded {
    let &KnownCrowded { tenant, macs_ns, ips_ns } = crowded;
    Crowded { tenant: name_of(switch, tenant), macs_ns, ips_ns }
}

pub fn crowded_in(switch: &SwitchPlan, all: &[Crowded]) -> Vec<KnownCrowded> {
    let tenants = Tenants::of(switch);
    let one = |crowded: &Crowded| {
        let &Crowded { macs_ns, ips_ns, .. } = crowded;
        Some(KnownCrowded { tenant: tenants.find(crowded.tenant.as_ref())?, macs_ns, ips_ns })
    };
    all.iter().filter_map(one).collect()
}
