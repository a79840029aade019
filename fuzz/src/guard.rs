//! Any frame before the guard: no panic; what passes is from whom it says; who may do more is
//! refused no more. And any frames through a switch, where the same bytes are choices: nobody
//! steals an address (`theft.rs`).

#[path = "theft.rs"]
pub mod theft;

use core::net::{Ipv4Addr, Ipv6Addr};
use datapath::guard::{Allow, Identity, check};
use datapath::wire::{Arp, Ipv4, Ipv6, Mac, Udp, destination, parse, source};

/// The addresses of the endpoint, which the seeds use too.
pub const MAC: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
/// Its IPv4 address.
pub const IPV4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Its IPv6 address.
pub const IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

/// `data` is a frame.
pub fn run(data: &[u8]) {
    theft::run(data);
    let Ok(layout) = parse(data) else { return };
    let strict = Identity { macs: vec![MAC], ipv4: vec![(IPV4, 32)], ipv6: vec![(IPV6, 128)], allow: Allow::default() };
    let allowed = Identity { allow: Allow { dhcp_server: true, router: true, ..Allow::default() }, ..strict.clone() };
    let any_ip = Identity { macs: vec![MAC], ..Identity::default() };
    let any = Identity { allow: allowed.allow, ..Identity::default() };
    let passes = |identity| check(data, &layout, identity).is_ok();
    if passes(&strict) {
        assert!(passes(&allowed) && passes(&any_ip));
        assert!(!speaks_as_server(data));
    }
    if passes(&allowed) {
        from_itself(data);
        assert!(passes(&any));
    }
    if passes(&any_ip) {
        assert_eq!(source(data), MAC);
        assert!(passes(&any));
    }
    if passes(&any) {
        assert!(!source(data).is_group() && !destination(data).is_reserved());
    }
}

/// From the server's port of the DHCP that the packet's IP version has.
fn speaks_as_server(data: &[u8]) -> bool {
    let Ok(layout) = parse(data) else { return false };
    let port = if Ipv4::of(data, &layout).is_some() { 67 } else { 547 };
    Udp::of(data, &layout).is_some_and(|udp| udp.source() == port)
}

fn from_itself(data: &[u8]) {
    let Ok(layout) = parse(data) else { return };
    assert_eq!(source(data), MAC);
    if let Some(ip) = Ipv4::of(data, &layout) {
        assert!(ip.source() == IPV4 || ip.source().is_unspecified());
    }
    if let Some(ip) = Ipv6::of(data, &layout) {
        let own = ip.source() == IPV6 || ip.source().is_unspecified() || ip.source().segments()[0] == 0xfe80;
        assert!(own && ip.source() != Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));
    }
    if let Some(arp) = Arp::of(data, &layout) {
        assert!(arp.sender_mac() == MAC && (arp.sender_ip() == IPV4 || arp.sender_ip().is_unspecified()));
    }
}
