//! The tables: who has which address. What `levada show tables` prints, and what `GET /v1/tables`
//! answers.

use crate::api::tables::{Address, TenantTable};
use crate::worker::LearnedPart;
use control::names::show_mac;
use control::plan::SwitchPlan;
use std::collections::BTreeMap;

/// Addresses of a tenant that are listed at most.
pub const TENANT_ADDRESSES: usize = 4096;

/// The tables of one switch, of which `parts` were told.
#[must_use]
pub fn of_switch(plan: &SwitchPlan, parts: &[LearnedPart]) -> Vec<TenantTable> {
    let table = |name: &String| TenantTable { path: format!("{}/{name}", plan.name), ..TenantTable::default() };
    let mut tables: BTreeMap<u32, TenantTable> = plan.tenants.iter().map(|(id, name)| (id, table(name))).collect();
    for (id, compiled) in plan.program.endpoints.iter() {
        let Some(table) = tables.get_mut(&compiled.tenant.0) else { continue };
        table.declared += compiled.identity.macs.len() as u64;
        for &mac in &compiled.identity.macs {
            table.add(Address {
                mac: show_mac(mac),
                vlan: None,
                endpoint: plan.endpoints[id as usize].clone(),
                declared: true,
                seen_ns: None,
                left_ns: None,
            });
        }
    }
    for part in parts {
        for (endpoint, count, learned) in &part.endpoints {
            // A change may have taken the endpoint away since, or given its number to another.
            let Some(compiled) = plan.program.endpoints.get(endpoint.0) else { continue };
            let Some(table) = tables.get_mut(&compiled.tenant.0) else { continue };
            table.learned += u64::from(*count);
            for one in learned {
                table.add(Address {
                    mac: show_mac(one.mac),
                    vlan: Some(one.vlan).filter(|&vlan| vlan != 0),
                    endpoint: plan.endpoints[endpoint.0 as usize].clone(),
                    declared: false,
                    seen_ns: Some(part.age_ns.saturating_sub(one.left_ns)),
                    left_ns: Some(one.left_ns),
                });
            }
        }
    }
    tables.into_values().collect()
}

impl TenantTable {
    fn add(&mut self, address: Address) {
        if self.addresses.len() < TENANT_ADDRESSES {
            self.addresses.push(address);
        }
    }

    /// How many addresses are not listed.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        (self.declared + self.learned).saturating_sub(self.addresses.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::program::EndpointId;
    use datapath::switch::Learned;
    use datapath::wire::Mac;

    const FILE: &str = "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s1\"\n[[switch.tenant]]\nname = \"red\"\n\
        [[switch.tenant.endpoint]]\nname = \"a\"\nport = \"tap://a\"\nmac = \"02:00:00:00:00:01\"\n\
        [[switch.tenant.endpoint]]\nname = \"b\"\nport = \"tap://b\"\n[[switch.tenant]]\nname = \"blue\"\n";

    #[test]
    fn declared_and_learned_are_listed_by_tenant_up_to_a_bound() {
        let plan = control::load(FILE).plan.unwrap();
        let switch = &plan.switches[0];
        let learned = |n: u16| Learned { mac: Mac([2, 0, 0, 0, (n >> 8) as u8, n as u8]), vlan: n % 2, left_ns: 40 };
        let part = |endpoint, count, addresses: Vec<Learned>| LearnedPart {
            endpoints: vec![(EndpointId(endpoint), count, addresses)],
            age_ns: 100,
            next: None,
        };
        let tables = of_switch(switch, &[part(1, 7, vec![learned(258), learned(3)]), part(9, 1, vec![learned(4)])]);
        let [red, blue] = &tables[..] else { panic!("{tables:?}") };
        assert_eq!((red.path.as_str(), red.declared, red.learned, red.left_out()), ("s1/red", 1, 7, 5));
        assert_eq!((blue.path.as_str(), blue.addresses.len(), blue.left_out()), ("s1/blue", 0, 0));
        let told: Vec<_> =
            red.addresses.iter().map(|a| (a.mac.as_str(), a.endpoint.as_str(), a.vlan, a.seen_ns)).collect();
        let wanted = [
            ("02:00:00:00:00:01", "a", None, None),
            ("02:00:00:00:01:02", "b", None, Some(60)),
            ("02:00:00:00:00:03", "b", Some(1), Some(60)),
        ];
        assert_eq!(told, wanted);
        let many = (0..5000).map(learned).collect();
        let tables = of_switch(switch, &[part(1, 5000, many)]);
        assert_eq!((tables[0].addresses.len(), tables[0].left_out()), (TENANT_ADDRESSES, 5001 - 4096));
    }
}
