//! Servers of a service behind one switch, each at a port of its own, and a client at the first.

use datapath::guard::Identity;
use datapath::program::{Endpoint, EndpointId, PortFeatures, PortId, Program, Tenant, TenantId};
use datapath::service::choose::Policy;
use datapath::service::{Address, Backend, Service, ServiceId, WhenDown};
use datapath::wire::{Mac, protocol};
use std::net::Ipv4Addr;

/// Where the service is, and its number.
pub(super) const SERVICE: (Mac, Ipv4Addr) = (Mac([2, 0, 0, 0, 0, 100]), Ipv4Addr::new(10, 0, 0, 100));
pub(super) const WEB: ServiceId = ServiceId(0);
pub(super) const CLIENT: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// Where a server is.
pub(super) fn server_ends(n: u8) -> (Mac, Ipv4Addr) {
    (Mac([2, 0, 0, 0, 0, 10 + n]), Ipv4Addr::new(10, 0, 0, 10 + n))
}

/// A server as a backend.
pub(super) fn backend(n: u8) -> Backend {
    let (mac, ip) = server_ends(n);
    Backend {
        ipv4: Some(ip),
        ipv6: None,
        mac,
        port: Some(8080),
        weight: 1,
        drain_ns: 0,
        cores: 1,
        max_connections: None,
        endpoint: Some(EndpointId(u32::from(n) + 1)),
    }
}

/// The service, with so many servers.
pub(super) fn service(policy: Policy, servers: u8) -> Service {
    Service {
        tenant: TenantId(0),
        mac: SERVICE.0,
        addresses: vec![Address { ip: SERVICE.1.into(), protocol: protocol::TCP, port: 80 }],
        policy,
        backends: (0..servers).map(backend).collect(),
        when_down: WhenDown::Reset,
        ping: true,
        report_period_ns: 5_000_000_000,
        ..Service::default()
    }
}

/// A switch with this service, and so many servers.
pub(super) fn program(service: Service, servers: u8) -> Program {
    let mut program = Program {
        tenants: vec![Tenant::default()].into(),
        ports: vec![PortFeatures::default(); usize::from(servers) + 1].into(),
        fdb_age_ns: 300_000_000_000,
        ..Program::default()
    };
    let macs = std::iter::once(CLIENT).chain((0..servers).map(|n| server_ends(n).0));
    for (mac, port) in macs.zip(0..) {
        let identity = Identity { macs: vec![mac], ..Identity::default() };
        program.endpoints.push(Endpoint { identity, ..Endpoint::new(TenantId(0), PortId(port)) });
    }
    program.services.push(service);
    program
}
