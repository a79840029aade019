//! Any bytes as a frame: no panic, offsets in the frame and in order, tags that come off as they
//! went on.

use datapath::encap::vlan;
use datapath::frame::{Pool, PoolLimits};
use datapath::wire::{Arp, Icmp, Ipv4, Ipv6, L3, L4, Layout, Tcp, Udp, parse};

/// `data` is a frame.
pub fn run(data: &[u8]) {
    let Ok(layout) = parse(data) else { return };
    in_order(data, &layout);
    assert_eq!(Arp::of(data, &layout).is_some(), layout.l3 == L3::Arp);
    assert_eq!(Ipv4::of(data, &layout).is_some(), layout.l3 == L3::Ipv4);
    assert_eq!(Ipv6::of(data, &layout).is_some(), layout.l3 == L3::Ipv6);
    assert_eq!(Tcp::of(data, &layout).is_some(), layout.l4 == L4::Tcp);
    assert_eq!(Udp::of(data, &layout).is_some(), layout.l4 == L4::Udp);
    let icmp = Icmp::of(data, &layout);
    assert_eq!(icmp.is_some(), matches!(layout.l4, L4::Icmp | L4::Icmpv6));
    if let Some(icmp) = icmp {
        let _ = (icmp.nd_target(), icmp.nd_options().count());
    }
    tags(data, layout);
}

fn in_order(data: &[u8], layout: &Layout) {
    let [l3, l4, payload] = [layout.l3_offset, layout.l4_offset, layout.payload_offset].map(u32::from);
    assert!(14 <= l3 && l3 <= layout.end && layout.end as usize <= data.len());
    if matches!(layout.l3, L3::Ipv4 | L3::Ipv6) {
        assert!(l3 < l4 && l4 <= layout.end);
    } else {
        assert_eq!(l4, 0);
    }
    if matches!(layout.l4, L4::Tcp | L4::Udp) {
        assert!(l4 < payload && payload <= layout.end);
    } else {
        assert_eq!(payload, 0);
    }
    assert!(layout.fragment || !layout.later_fragment);
    assert!(!layout.later_fragment || layout.l4 == L4::Other);
}

/// A tag pushed and popped leaves the frame as it was; popping the frame's own gives what is behind
/// it.
fn tags(data: &[u8], layout: Layout) {
    let mut pool = Pool::new(PoolLimits { small: 1, medium: 0, large: 1 });
    let Some(frame) = pool.alloc_from(data) else { return };
    pool.meta_mut(&frame).layout = layout;
    assert!(vlan::push(&mut pool, &frame, 0x1fff));
    assert_eq!(parse(pool.bytes(&frame)).ok().and_then(|l| l.vlan), Some(0xfff));
    if layout.vlan.is_none() {
        assert_eq!(parse(pool.bytes(&frame)), Ok(pool.meta(&frame).layout));
    }
    assert_eq!(vlan::pop(&mut pool, &frame), Some(0x1fff));
    assert_eq!(pool.bytes(&frame), data);
    assert_eq!(pool.meta(&frame).layout, layout);
    if vlan::pop(&mut pool, &frame).is_some() {
        let inner = parse(pool.bytes(&frame));
        assert!(inner.is_err() || inner == Ok(pool.meta(&frame).layout));
    }
    pool.free(frame);
}
