//! Services by themselves.

use super::*;
use crate::ids::TenantId;
use crate::wire::{Mac, protocol};

const NETWORK: Network = Network(0);

fn at(ip: u32, port: u16) -> Address {
    Address { ip: Ipv4Addr::from_bits(ip).into(), protocol: protocol::TCP, port }
}

fn set(services: &mut Services, now: Instant, id: u32, addresses: Vec<Address>, backends: Vec<Backend>) {
    let service = Service { tenant: TenantId(0), addresses, backends, ..Service::default() };
    assert_eq!(services.check(ServiceId(id), NETWORK, &service), Ok(()), "{id}");
    services.set(now, ServiceId(id), NETWORK, Some(service));
}

#[test]
fn all_addresses_may_be_replaced_again_and_again_while_connections_are_looked_through() {
    let now = Instant(1_000_000_000);
    let mut services = Services::new(1);
    let backend = Backend {
        ipv4: Some(Ipv4Addr::from_bits(1)),
        ipv6: None,
        mac: Mac([2, 0, 0, 0, 0, 1]),
        port: None,
        weight: 1,
        drain_ns: 0,
        cores: 1,
        max_connections: None,
        endpoint: None,
    };
    set(&mut services, now, 0, vec![at(7, 80)], vec![backend]);
    while services.are_growing() {
        services.go_on();
        drop(services.take_left());
    }
    let front = services.fronts.number(NETWORK, ServiceId(0), &at(7, 80)).expect("it has one");
    // A sweep takes some twenty changes.
    for client in 0..6000 {
        let key = Key::of_v4((0x0a00_0000 + client * 7919u32).to_be_bytes(), 1000, front);
        services.choose(now, key, Some(EndpointId(client)), true, None).expect("room");
    }
    assert!(services.connections.places() > 16 * SWEPT_PLACES);
    // Nearly as many as there are numbers: in one service a third of them, and 40 with the rest.
    let all = (MOST_FRONTS - 1) as u32;
    let (large, small) = (all / 3, all * 2 / 3 / 40);
    for round in 0..3 {
        let of = |first: u32, count: u32| (first..first + count).map(|ip| at(1 << 24 | ip, 80 + round)).collect();
        set(&mut services, now, 1, of(0, large), vec![]);
        (0..40).for_each(|n| set(&mut services, now, 2 + n, of(large + n * small, small), vec![]));
        assert_eq!(services.fronts.in_use() as u32, 1 + large + 40 * small);
        let served = |id: u32, ip: u32| services.fronts.number(NETWORK, ServiceId(id), &at(1 << 24 | ip, 80 + round));
        assert!((0..large).all(|ip| served(1, ip).is_some()));
        assert!((0..40).all(|n| served(2 + n, large + n * small + small - 1).is_some()));
    }
    assert_eq!(services.fronts.number(NETWORK, ServiceId(0), &at(7, 80)), Some(front));
    assert_eq!(services.connections.len().0, 6000, "they stay");
}
