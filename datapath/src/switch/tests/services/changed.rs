//! Services change beside others.

use super::*;
use crate::program::Outside;
use std::time::Instant as Clock;

/// A service of its own address, with a backend that many services have.
fn other(n: u32) -> (ServiceId, Option<Service>) {
    let [.., a, b] = n.to_be_bytes();
    let address = Address { ip: IpAddr::from([10, 1, a, b]), protocol: protocol::TCP, port: 80 };
    let backend = Backend { ipv4: Some([10, 2, a, b].into()), ipv6: None, ..backend(2, Some(1)) };
    (ServiceId(n), Some(Service { addresses: vec![address], ..service(Policy::P2c, vec![backend]) }))
}

impl Rig {
    fn set(&mut self, (id, service): (ServiceId, Option<Service>)) {
        let change = crate::program::Change::Service(id, service);
        self.switch.change(&mut self.pool, self.now, change).expect("it fits");
    }
}

#[test]
fn a_backend_of_many_ports_answers_from_each() {
    let mut rig = rig(Policy::RoundRobin);
    let ports = 80..140;
    let at = |port| Address { ip: ip(100).into(), protocol: protocol::TCP, port };
    let backend = Backend { port: None, ..backend(2, Some(1)) };
    rig.change_service(Service { addresses: ports.clone().map(at).collect(), ..service(Policy::P2c, vec![backend]) });
    for port in ports {
        assert_eq!(rig.one(1, &tcp((1, 5), (100, port), SYN, (99, 0))).0, 2);
        let (to, bytes) = rig.one(2, &tcp((2, port), (1, 5), SYN_ACK, (499, 100)));
        assert_eq!((to, bytes), (1, tcp((100, port), (1, 5), SYN_ACK, (499, 100)).bytes()));
    }
}

#[test]
fn who_was_at_an_address_that_went_is_not_at_the_one_that_came() {
    let mut rig = rig(Policy::RoundRobin);
    let backend_port = u32::from(rig.open(5));
    let at = |last: u8| Address { ip: ip(last).into(), protocol: protocol::TCP, port: 80 };
    let moved = Service {
        addresses: vec![at(101)],
        ..service(Policy::RoundRobin, vec![backend(2, Some(1)), backend(3, Some(2))])
    };
    rig.change_service(moved);
    assert_eq!(rig.in_flight(), [(1, 0, 0), (0, 0, 0)]);
    // What its backend still says is not the new address's.
    let (_, out) = rig.send_for_bytes(backend_port, &answer(2, 5, ACK, (500, 100)));
    assert!(out.iter().all(|(_, bytes)| !bytes.windows(4).any(|octets| octets == ip(101).octets())), "{out:?}");
}

#[test]
fn what_is_known_of_addresses_is_the_same_whatever_changed_before() {
    let mut rig = rig(Policy::RoundRobin);
    for n in 1..200 {
        rig.set(other(n));
    }
    for n in (1..200).filter(|n| n % 3 > 0) {
        rig.set((ServiceId(n), None));
    }
    for n in (1..200).filter(|n| n % 3 == 1) {
        rig.set(other(n));
    }
    for n in 1..200u32 {
        let to = IpAddr::from([10, 1, 0, n as u8]);
        let IpAddr::V4(to) = to else { unreachable!() };
        let syn = eth(mac(1), MAC).ipv4(ip(1), to).tcp(5, 80, 1).flags(SYN);
        let (verdict, out) = rig.send_for_bytes(1, &syn);
        let is_served = n % 3 != 2;
        assert_eq!(out.iter().any(|&(port, _)| port == 2), is_served, "{n}: {verdict:?}");
    }
}

#[test]
fn a_change_costs_as_much_beside_many_services_as_beside_few() {
    let time = |others: u32| {
        let mut rig = rig(Policy::RoundRobin);
        (1..others).for_each(|n| rig.set(other(n)));
        let once = || {
            let began = Clock::now();
            (others..others + 100).for_each(|n| rig.set(other(n)));
            began.elapsed()
        };
        std::iter::repeat_with(once).take(9).min().expect("several")
    };
    // Twenty times as many would cost twenty times as much, or four hundred times.
    let (few, many) = (time(200), time(4000));
    assert!(many < few * 8, "{few:?} beside 200, {many:?} beside 4000");
}

/// So many services of a tenant, each of its own address, as they are compiled.
fn compiled(rig: &Rig, services: u32) -> Program {
    let one = |n: u32| {
        let [.., a, b] = n.to_be_bytes();
        Service { mac: Mac([2, 1, 0, 0, a, b]), ..other(n).1.expect("it is there") }
    };
    let services: Vec<Service> = (1..=services).map(one).collect();
    let macs = services.iter().map(|service| service.mac).collect();
    let ips = services.iter().map(|service| service.addresses[0].ip).collect();
    let mut program = rig.switch.program().clone();
    (program.tenants[0].outside, program.services) = (Outside { macs, ips }, services.into());
    program
}

#[test]
fn one_more_service_costs_as_much_in_a_tenant_that_has_many_as_in_one_that_has_few() {
    let time = |others: u32| {
        let mut rig = rig(Policy::P2c);
        let (one, other) = (compiled(&rig, others), compiled(&rig, others + 1));
        let steps = |to: &Program, from: &Program| to.changes_from(from).expect("the same order");
        let take = |rig: &mut Rig, changes: Vec<crate::program::Change>| {
            let began = Clock::now();
            for change in changes {
                rig.switch.change(&mut rig.pool, rig.now, change).expect("it fits");
            }
            began.elapsed()
        };
        let first = steps(&one, rig.switch.program());
        take(&mut rig, first);
        let there_and_back = steps(&other, &one).into_iter().chain(steps(&one, &other)).collect::<Vec<_>>();
        std::iter::repeat_with(|| take(&mut rig, there_and_back.clone())).take(20).min().expect("several")
    };
    let (few, many) = (time(200), time(4000));
    assert!(many < few * 8, "{few:?} beside 200, {many:?} beside 4000");
}

#[test]
fn a_service_with_affinity_costs_as_much_beside_many_tenants_that_have_one_as_beside_few() {
    let time = |tenants: u32| {
        let mut rig = Rig::new(&vec![Attachment::Isolated; tenants as usize + 20], &[], |_| {});
        let one = |n: u32| {
            let sticky = Service { tenant: TenantId(n), affinity_ns: 1, ..service(Policy::P2c, vec![]) };
            (ServiceId(n), Some(sticky))
        };
        (0..tenants).for_each(|n| rig.set(one(n)));
        let once = || {
            let began = Clock::now();
            (tenants..tenants + 20).for_each(|n| rig.set(one(n)));
            (tenants..tenants + 20).for_each(|n| rig.set((ServiceId(n), None)));
            began.elapsed()
        };
        std::iter::repeat_with(once).take(9).min().expect("several")
    };
    let (few, many) = (time(50), time(1000));
    assert!(many < few * 8, "{few:?} beside 50, {many:?} beside 1000");
}

#[test]
fn what_services_answer_to_outside_takes_from_no_guarantee() {
    // 30 services of one tenant, each asked 2000 times a second with the longest pings.
    let mut rig = rig(Policy::RoundRobin);
    for n in 1..30 {
        rig.set(other(n));
    }
    let mut bytes = 0;
    let end = rig.now.plus_ns(1_000_000_000);
    while rig.now < end {
        for n in 1..30u8 {
            let ping = eth(mac(77), MAC).ipv4(ip(77), [10, 1, 0, n].into()).icmp(8, 0, 7).payload(vec![0; 1400]);
            let frame = ping.vlan(10).frame(&mut rig.pool).expect("a buffer");
            let _ = rig.switch.rx(&mut rig.pool, rig.now, UPLINK, frame);
        }
        while let Some((port, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
            assert_eq!(port, UPLINK);
            bytes += u64::from(rig.pool.meta(&frame).wire_bytes);
            rig.pool.free(frame);
        }
        rig.now = rig.now.plus_ns(500_000);
    }
    // A hundredth of 1 Gbit/s, and what was saved.
    assert!((1_000_000..=1_600_000).contains(&bytes), "{bytes} bytes in a second");
}

/// TCP at these addresses and ports, with the first backend.
fn served(mac: Mac, at: &[(u8, u16)]) -> Service {
    let at = at.iter().map(|&(last, port)| Address { ip: ip(last).into(), protocol: protocol::TCP, port });
    Service { mac, addresses: at.collect(), ..service(Policy::RoundRobin, vec![backend(2, Some(1))]) }
}

impl Rig {
    /// These services instead of those that there are, by the steps of [`Program::changes_from`].
    fn become_these(&mut self, services: &[Service]) {
        let there = self.switch.program().clone();
        let to = Program { services: services.to_vec().into(), ..there.clone() };
        for change in to.changes_from(&there).expect("the same order") {
            let step = format!("{change:?}");
            assert_eq!(self.switch.change(&mut self.pool, self.now, change), Ok(()), "{step}");
        }
        assert_eq!(*self.switch.program(), to);
    }

    /// Opens a connection from a port to an address.
    fn open_at(&mut self, port: u16, at: (u8, u16)) {
        assert_eq!(self.one(1, &tcp((1, port), at, SYN, (99, 0))).0, 2);
        self.one(2, &tcp((2, 8080), (1, port), SYN_ACK, (499, 100)));
        self.one(1, &tcp((1, port), at, ACK, (100, 500)));
    }

    /// A connection goes on, of a service that has looked for none since it lost it.
    fn goes_on(&mut self, port: u16, at: (u8, u16), (id, mac): (u32, Mac)) {
        assert_eq!(self.one(1, &tcp((1, port), at, ACK, (100, 500))).0, 2);
        let (_, bytes) = self.one(2, &tcp((2, 8080), (1, port), ACK, (500, 100)).payload(vec![1; 9]));
        let seen = eth(mac, super::mac(1)).ipv4(ip(at.0), ip(1)).tcp(at.1, port, 500).ack(100, 1000);
        assert_eq!(bytes, seen.flags(ACK).payload(vec![1; 9]).bytes());
        assert_eq!(self.switch.service_stats(ServiceId(id)).map(|stats| (stats.new, stats.sought)), Some((1, 0)));
    }
}

#[test]
fn an_address_passes_from_one_service_to_another_whatever_their_numbers() {
    let mut rig = rig(Policy::RoundRobin);
    rig.become_these(&[served(MAC, &[(100, 80)]), served(MAC, &[(101, 80), (102, 80)])]);
    rig.open_at(5, (100, 80));
    rig.open_at(6, (101, 80));
    let both = [served(MAC, &[(100, 80), (102, 80)]), served(MAC, &[(101, 80)])];
    let back = [served(MAC, &[(100, 80)]), served(MAC, &[(102, 80), (101, 80)])];
    let swapped = [served(MAC, &[(100, 80), (102, 80), (104, 80)]), served(MAC, &[(101, 80), (103, 80)])];
    let again = [served(MAC, &[(103, 80), (100, 80)]), served(MAC, &[(104, 80), (101, 80), (102, 80)])];
    for services in [both, back, swapped, again] {
        rig.become_these(&services);
        rig.goes_on(5, (100, 80), (0, MAC));
        rig.goes_on(6, (101, 80), (1, MAC));
    }
    assert_eq!(rig.one(1, &tcp((1, 7), (103, 80), SYN, (99, 0))).0, 2);
    assert_eq!([0, 1].map(|id| rig.switch.service_stats(ServiceId(id)).expect("it is there").new), [2, 1]);
}

#[test]
fn services_at_one_ip_address_get_another_mac_address_and_keep_their_connections() {
    let mut rig = rig(Policy::RoundRobin);
    let (other, third) = (mac(98), mac(99));
    let all = |mac: Mac| [80, 81, 82].map(|port| served(mac, &[(100, port)]));
    rig.become_these(&all(MAC));
    (0..3).for_each(|n| rig.open_at(5 + n, (100, 80 + n)));
    rig.become_these(&all(other));
    (0..3).for_each(|n| rig.goes_on(5 + n, (100, 80 + n), (n.into(), other)));
    // The first one goes elsewhere, and comes back when the address has a third.
    let [_, second, last] = all(other);
    rig.become_these(&[served(MAC, &[(101, 80)]), second, last]);
    let [_, _, last] = all(third);
    rig.become_these(&[served(third, &[(101, 80), (100, 80)]), served(MAC, &[(102, 81)]), last]);
    rig.goes_on(7, (100, 82), (2, third));
    let (_, bytes) = rig.one(1, &build::arp_request(mac(1), ip(1), ip(100)));
    assert_eq!(bytes[6..12], third.0);
}
