//! Services: names of endpoints become numbers, and what a backend does not say is taken from its
//! endpoint.

use super::tunnels::ServiceAt;
use super::{Numbers, number};
use crate::config::{Names, Service, Switch, Tenant};
use crate::plan::{ServicePlan, SwitchPlan};
use datapath::program::{Attachment, EndpointId, Outside, Slots, TenantId};
use datapath::service::{self, Backend};
use std::collections::BTreeMap;

/// The services of a switch, and what they are called. Who is there before keeps its number.
pub(super) fn services(
    switch: &Switch,
    numbers: &Numbers,
    before: Option<&SwitchPlan>,
) -> (Slots<service::Service>, Slots<ServicePlan>) {
    let mut had = BTreeMap::new();
    for (plan, (id, compiled)) in
        before.into_iter().flat_map(|plan| plan.program.services.iter().map(move |s| (plan, s)))
    {
        let tenant = plan.tenants[compiled.tenant.0 as usize].clone();
        had.insert((tenant, plan.services[id as usize].name.clone()), id);
    }
    let all = || switch.tenants.iter().flat_map(|t| t.services.iter().map(move |s| (t, s)));
    let ids = number(all().map(|(t, s)| (t.name.clone(), s.name.clone())), &had);
    let (mut programs, mut plans) = (Slots::default(), Slots::default());
    let mut first_endpoint = 0;
    let mut ids = ids.into_iter();
    for (tenant, &number) in switch.tenants.iter().zip(&numbers.tenants) {
        let places = &numbers.endpoints[first_endpoint..first_endpoint + tenant.endpoints.len()];
        first_endpoint += tenant.endpoints.len();
        if tenant.services.is_empty() {
            continue;
        }
        let names = Names::of(tenant);
        for (service, id) in tenant.services.iter().zip(ids.by_ref()) {
            let endpoint = |at: usize| EndpointId(places[at].0);
            programs.set(id, Some(compiled((tenant, &names), service, TenantId(number), endpoint)));
            let backends = service.backends.iter().map(|backend| backend.name.clone()).collect();
            plans.set(id, Some(ServicePlan { name: service.name.clone(), backends }));
        }
    }
    (programs, plans)
}

fn compiled(
    (tenant, names): (&Tenant, &Names),
    service: &Service,
    number: TenantId,
    endpoint: impl Fn(usize) -> EndpointId,
) -> service::Service {
    let backends = service.backends.iter().map(|backend| {
        let at = backend.endpoint_of(names);
        let own = at.map(|at| &tenant.endpoints[at]);
        let (ipv4, ipv6) = backend.addresses(own);
        Backend {
            ipv4,
            ipv6,
            // Only a wrong configuration has none, and that is not compiled.
            mac: backend.mac(own).unwrap_or_default(),
            port: backend.port,
            weight: backend.weight_now(),
            drain_ns: backend.drain_ns.unwrap_or(service.drain_ns),
            cores: backend.cores,
            max_connections: backend.max_connections.or(service.max_connections),
            endpoint: at.map(&endpoint),
        }
    });
    service::Service {
        tenant: number,
        mac: service.mac(&tenant.name),
        addresses: service.addresses.iter().map(|address| address.0).collect(),
        policy: service.policy,
        backends: backends.collect(),
        when_down: service.when_down,
        ping: service.ping,
        report_period_ns: service.report_period_ns,
        slow_start_ns: service.slow_start_ns,
        check: service.check.clone(),
        on_failure: service.on_failure,
        panic_ppm: service.panic_ppm,
        affinity_ns: if service.affinity { service.affinity_ns } else { 0 },
        hold_ns: service.hold_ns,
        director: service.director_of(tenant, names).map(endpoint),
    }
}

/// What no endpoint may claim: what the tenant says, and its services' addresses, also of services
/// that are `elsewhere`.
pub(super) fn outside(tenant: &Tenant, elsewhere: &[ServiceAt]) -> Outside {
    let mut outside = tenant.outside.clone();
    // Where the network ends here, a tenant elsewhere is only called the same.
    for (mac, ips) in elsewhere.iter().filter(|_| tenant.attachment != Attachment::Isolated) {
        outside.macs.push(*mac);
        outside.ips.extend(ips);
    }
    for service in &tenant.services {
        outside.macs.push(service.mac(&tenant.name));
        outside.ips.extend(service.addresses.iter().map(|address| address.0.ip));
    }
    outside.macs.sort_unstable();
    outside.macs.dedup();
    outside.ips.sort_unstable();
    outside.ips.dedup();
    outside
}
