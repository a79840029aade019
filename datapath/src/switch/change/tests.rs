//! Changes while frames wait: who must not notice, what must be freed, and what must never reach
//! the next owner of a number.

use super::only_in;
use crate::frame::{Pool, PoolLimits};
use crate::guard::Identity;
use crate::program::{
    Attachment, Change, ChangeError, Endpoint, EndpointId, IngressMode, Member, MemberId, OrderKind, PortFeatures,
    PortId, Program, Share, Tenant, TenantId, Uplink,
};
use crate::switch::chaos::{
    Chaos, MBIT, MS, NOW, ORDERS, OUTSIDE, Rig, both, endpoint, ip, learning, limited, mac, program, tenant, udp,
    uplink, uplink_at,
};
use crate::switch::{Event, Switch};
use crate::units::Rate;
use crate::verdict::{Reason, Verdict};
use crate::wire::build::arp_request;
use proptest::prelude::*;

#[test]
fn an_empty_switch_grows() {
    let mut rig = Rig::new(&Program::default());
    assert_eq!(rig.rx(3, &udp(1, 2, vec![])), Verdict::Dropped(Reason::Unknown));
    for port in 0..3 {
        rig.change(Change::Port(PortId(port), Some(PortFeatures::default()))).unwrap();
    }
    rig.change(Change::Tenant(TenantId(0), Some(tenant(Attachment::Vlan(10))))).unwrap();
    rig.add(0, endpoint(0, 0));
    assert_eq!(rig.rx(1, &udp(0, OUTSIDE, vec![])), Verdict::Dropped(Reason::Unreachable));
    rig.change(Change::Uplink(Some(uplink_at(2, 100)))).unwrap();
    rig.rx(1, &udp(0, OUTSIDE, vec![]));
    assert_eq!(rig.ports(), [2]);
    rig.rx(2, &udp(OUTSIDE, 0, vec![]).vlan(10));
    assert_eq!(rig.ports(), [1]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut rig = Rig::new(&program(&[endpoint(0, 0), endpoint(1, 1)]));
    let far = 1 << 20;
    let moved = |port: u32| Some(Endpoint { port: PortId(port), ..endpoint(0, 0) });
    let mut twin = endpoint(5, 0);
    twin.identity.macs.push(mac(0));
    let cases = [
        (Change::Port(PortId(far), Some(PortFeatures::default())), ChangeError::NoSuchSlot(far)),
        (Change::Port(PortId(20), None), ChangeError::Vacant(20)),
        (Change::Port(PortId(1), None), ChangeError::PortInUse(PortId(1))),
        (Change::Port(PortId(0), None), ChangeError::PortInUse(PortId(0))),
        (Change::Uplink(Some(uplink_at(2, 1))), ChangeError::PortInUse(PortId(2))),
        (Change::Uplink(Some(uplink_at(20, 1))), ChangeError::UnknownPort(PortId(20))),
        (Change::Tenant(TenantId(0), None), ChangeError::TenantInUse(TenantId(0))),
        (Change::Tenant(TenantId(7), None), ChangeError::Vacant(7)),
        (Change::Tenant(TenantId(far), Some(Tenant::default())), ChangeError::NoSuchSlot(far)),
        (Change::Tenant(TenantId(0), Some(Tenant::default())), ChangeError::TenantInUse(TenantId(0))),
        (Change::Tenant(TenantId(7), Some(tenant(Attachment::Vlan(0)))), ChangeError::BadVlan(0)),
        (Change::Tenant(TenantId(7), Some(tenant(Attachment::Vlan(4095)))), ChangeError::BadVlan(4095)),
        (Change::Tenant(TenantId(7), Some(tenant(Attachment::Vlan(11)))), ChangeError::VlanInUse(11, TenantId(1))),
        (Change::Endpoint(EndpointId(9), None), ChangeError::Vacant(9)),
        (Change::Endpoint(EndpointId(far), Some(endpoint(5, 0))), ChangeError::NoSuchSlot(far)),
        (Change::Endpoint(EndpointId(5), Some(endpoint(5, 7))), ChangeError::UnknownTenant(TenantId(7))),
        (Change::Endpoint(EndpointId(0), Some(endpoint(0, 1))), ChangeError::OtherTenant(EndpointId(0))),
        (Change::Endpoint(EndpointId(0), moved(2)), ChangeError::PortInUse(PortId(2))),
        (Change::Endpoint(EndpointId(0), moved(0)), ChangeError::PortInUse(PortId(0))),
        (Change::Endpoint(EndpointId(0), moved(20)), ChangeError::UnknownPort(PortId(20))),
        (Change::Endpoint(EndpointId(5), Some(twin)), ChangeError::AddressInUse(mac(0), EndpointId(0))),
    ];
    for (change, error) in cases {
        assert_eq!(rig.change(change.clone()), Err(error), "{change:?}");
        assert!(!error.to_string().is_empty());
    }
    rig.rx(1, &udp(0, OUTSIDE, vec![]));
    assert_eq!(rig.ports(), [0]);
}

#[test]
fn a_replaced_endpoint_keeps_its_queue_and_counters() {
    let mut rig = Rig::new(&program(&[Endpoint { share: limited(1), ..endpoint(0, 0) }, endpoint(1, 0)]));
    for n in 0..20 {
        rig.rx(1, &udp(0, OUTSIDE, vec![n; 1000]));
    }
    let before = rig.run(2 * MS).len();
    assert!((1..20).contains(&before));
    rig.add(0, Endpoint { identity: Identity { macs: vec![mac(7)], ..Identity::default() }, ..endpoint(0, 0) });
    let bytes: Vec<u8> = rig.run(1000 * MS).iter().map(|(port, bytes)| bytes[bytes.len() - 1] + *port as u8).collect();
    assert_eq!(bytes, (before as u8..20).collect::<Vec<_>>(), "the rest, in order");
    assert_eq!(rig.switch.endpoint_stats(EndpointId(0)).egress.traffic.frames, 20);
    assert_eq!(rig.rx(1, &udp(0, OUTSIDE, vec![])), Verdict::Dropped(Reason::SpoofedMac));
    rig.rx(1, &udp(7, OUTSIDE, vec![]));
    rig.rx(2, &udp(1, 7, vec![]));
    assert_eq!(rig.ports(), [0, 1]);
    // To another port, and back to addresses that are learned.
    rig.add(0, Endpoint { port: PortId(9), ..learning(0, 0) });
    assert_eq!(rig.rx(1, &udp(7, OUTSIDE, vec![])), Verdict::Dropped(Reason::Unknown));
    rig.rx(10 - 1, &udp(50, 1, vec![]));
    rig.rx(2, &udp(1, 50, vec![]));
    assert_eq!(rig.ports(), [2, 9]);
    rig.add(0, endpoint(0, 0));
    assert_eq!(rig.switch.learned(), 0);
    rig.rx(2, &udp(1, 50, vec![]));
    assert_eq!(rig.ports(), [0], "nobody here has it any more");
}

#[test]
fn what_a_tenant_sent_that_is_gone_stays_in_the_uplinks_counters() {
    for ingress in [IngressMode::Queue, IngressMode::Police] {
        let mut rig = Rig::new(&Program { ingress, ..program(&[endpoint(0, 0), endpoint(1, 1)]) });
        for n in 0..10u8 {
            rig.rx(1, &udp(0, OUTSIDE, vec![n; 1000]));
            rig.rx(2, &udp(1, OUTSIDE, vec![n; 1000]));
            rig.rx(0, &udp(OUTSIDE, 0, vec![n; 1000]).vlan(10));
        }
        rig.ports();
        let before = rig.switch.uplink_stats();
        assert_eq!((before.egress.traffic.frames, before.ingress.traffic.frames), (20, 10));
        rig.remove(0);
        rig.change(Change::Tenant(TenantId(0), None)).unwrap();
        assert_eq!(rig.switch.uplink_stats(), before);
        // Nor does the next owner of its number begin with it, or take it along.
        rig.change(Change::Tenant(TenantId(0), Some(tenant(Attachment::Vlan(12))))).unwrap();
        assert_eq!(rig.switch.tenant_stats(TenantId(0)).egress, Default::default());
        rig.change(Change::Tenant(TenantId(0), None)).unwrap();
        assert_eq!(rig.switch.uplink_stats(), before);
        // After a restart it is known, and so is what a tenant had that is not in the next program.
        let state = rig.switch.export(rig.now);
        let mut next = Rig::new(&program(&[]));
        next.switch.import(next.now, 0, &state).expect("the same version");
        assert_eq!(next.switch.uplink_stats(), before);
    }
}

#[test]
fn what_a_removed_endpoint_had_queued_is_freed_and_counted() {
    let slow = |n, tenant| Endpoint { share: limited(1), ..endpoint(n, tenant) };
    let mut rig = Rig::new(&program(&[slow(0, 0), endpoint(1, 0), endpoint(2, 1)]));
    // What its limits let go at once is used up first, in both directions.
    for n in 0..20u8 {
        rig.rx(1, &udp(0, 1, vec![n; 1000]));
        rig.rx(2, &udp(1, 0, vec![n; 1000]));
    }
    rig.due();
    for n in 0..10u8 {
        rig.rx(1, &udp(0, OUTSIDE, vec![n; 1000]));
        rig.rx(1, &udp(0, 1, vec![n; 1000]));
        rig.rx(2, &udp(1, 0, vec![n; 1000]));
        rig.rx(0, &udp(OUTSIDE, 0, vec![n; 1000]).vlan(10));
        rig.rx(3, &udp(2, OUTSIDE, vec![n; 1000]));
    }
    let waiting = rig.switch.frames();
    rig.remove(0);
    let freed = rig.switch.uplink_drops().get(Reason::Removed);
    assert_eq!(freed, (waiting - rig.switch.frames()) as u64);
    assert!(freed >= 35, "{freed}");
    let out = rig.run(1000 * MS);
    assert_eq!(out.iter().filter(|(port, _)| *port == 0).count(), 10, "the other tenant's, all of them");
    assert_eq!(rig.pool.in_use(), 0);
    assert_eq!(rig.rx(1, &udp(0, 1, vec![])), Verdict::Dropped(Reason::Unknown));
    // Nothing of it is left for the next owner of its number.
    rig.add(0, endpoint(5, 1));
    assert_eq!(rig.switch.endpoint_stats(EndpointId(0)).egress, Default::default());
    assert_eq!(rig.drops(0, Reason::Removed), 0);
}

#[test]
fn frames_for_a_removed_endpoint_do_not_reach_the_next_owner_of_its_number() {
    let sender = Endpoint { share: limited(1), ..endpoint(0, 0) };
    let mut rig = Rig::new(&program(&[sender, endpoint(1, 0), endpoint(2, 1)]));
    for _ in 0..40 {
        rig.rx(1, &udp(0, 1, vec![0; 1000]));
    }
    rig.due();
    rig.remove(1);
    rig.add(1, Endpoint { port: PortId(2), ..endpoint(9, 1) });
    assert_eq!(rig.ports(), Vec::<u32>::new());
    assert!(rig.drops(0, Reason::Removed) > 5);
    // In the same network, its own frames do arrive.
    rig.remove(1);
    rig.now = rig.now.plus_ns(1);
    rig.add(1, endpoint(1, 0));
    rig.rx(1, &udp(0, 1, vec![0; 1000]));
    assert_eq!(rig.ports(), [2]);
}

#[test]
fn a_limit_that_is_lifted_lets_nothing_overtake_what_it_had_held_back() {
    let slow = Endpoint { share: limited(1), ..endpoint(0, 0) };
    for (first, second) in [(slow, endpoint(1, 0)), (endpoint(0, 0), Endpoint { share: limited(1), ..endpoint(1, 0) })]
    {
        let mut rig = Rig::new(&program(&[first, second]));
        for n in 0..40 {
            rig.rx(1, &udp(0, 1, vec![n; 1000]));
        }
        let mut out = rig.due();
        assert!((1..30).contains(&out.len()));
        rig.add(0, endpoint(0, 0));
        rig.add(1, endpoint(1, 0));
        for n in 40..50 {
            rig.rx(1, &udp(0, 1, vec![n; 1000]));
        }
        out.append(&mut rig.run(1000 * MS));
        let numbers: Vec<u8> = out.iter().map(|(_, bytes)| bytes[bytes.len() - 1]).collect();
        assert_eq!(numbers, (0..50).collect::<Vec<_>>());
        // Nothing is queued any more for what once was.
        let mut fresh = Rig::new(rig.switch.program());
        fresh.now = rig.now;
        let explained = [&mut rig, &mut fresh].map(|rig| {
            let frame = udp(0, 1, vec![]).frame(&mut rig.pool).expect("a buffer");
            let explained = rig.switch.explain(&rig.pool, rig.now, PortId(1), &frame);
            rig.pool.free(frame);
            explained
        });
        assert_eq!(explained[0], explained[1]);
    }
}

#[test]
fn frames_on_their_way_to_a_port_do_not_reach_its_next_owner() {
    let mut rig = Rig::new(&program(&[endpoint(0, 0), endpoint(1, 0), endpoint(2, 1)]));
    rig.rx(1, &udp(0, 1, vec![]));
    rig.rx(2, &udp(1, 0, vec![]));
    rig.remove(1);
    rig.add(1, Endpoint { port: PortId(2), ..endpoint(9, 1) });
    assert_eq!(rig.ports(), [1]);
    assert_eq!(rig.switch.uplink_drops().get(Reason::Removed), 1);
    // Likewise where the uplink's port becomes an endpoint's.
    rig.change(Change::Uplink(Some(uplink_at(8, 1000)))).unwrap();
    rig.add(7, Endpoint { port: PortId(0), ..endpoint(7, 1) });
    rig.rx(1, &udp(0, OUTSIDE, vec![]));
    rig.rx(0, &udp(7, 9, vec![]));
    assert_eq!(rig.ports(), [2, 8]);
}

#[test]
fn learned_addresses_and_events_go_with_their_endpoint() {
    let mut rig = Rig::new(&program(&[learning(0, 0), learning(1, 0), endpoint(2, 0)]));
    for n in 20..24 {
        rig.rx(1, &udp(n, OUTSIDE, vec![]));
    }
    rig.rx(2, &udp(30, OUTSIDE, vec![]));
    assert_eq!(rig.rx(2, &udp(20, OUTSIDE, vec![])), Verdict::Forwarded, "it moved");
    assert_eq!(rig.rx(1, &udp(20, OUTSIDE, vec![])), Verdict::Dropped(Reason::Flapping));
    rig.rx(3, &arp_request(mac(2), ip(), ip()));
    rig.ports();
    assert_eq!(rig.switch.learned(), 5);
    rig.remove(0);
    assert_eq!(rig.switch.learned(), 2, "the other's stay");
    assert_eq!(rig.switch.poll_event(), None::<Event>);
    rig.add(0, Endpoint { max_learned: 1, ..learning(0, 0) });
    rig.rx(3, &udp(2, 30, vec![]));
    assert_eq!(rig.ports(), [2]);
    assert_eq!(rig.rx(1, &udp(21, OUTSIDE, vec![])), Verdict::Forwarded);
    assert_eq!(rig.rx(1, &udp(22, OUTSIDE, vec![])), Verdict::Dropped(Reason::FdbFull));
    // Who declares what another had learned has it.
    rig.add(3, Endpoint { port: PortId(5), ..endpoint(30, 0) });
    assert_eq!(rig.switch.learned(), 2);
    assert_eq!(rig.rx(2, &udp(30, OUTSIDE, vec![])), Verdict::Dropped(Reason::SpoofedMac));
}

#[test]
fn what_a_trunk_has_learned_behind_tags_goes_with_the_tags() {
    let trunk = Endpoint { trunk: true, max_learned: 3, ..learning(0, 0) };
    let mut rig = Rig::new(&program(&[trunk.clone(), learning(1, 0)]));
    rig.rx(1, &udp(20, OUTSIDE, vec![]));
    for n in 21..23 {
        rig.rx(1, &udp(n, OUTSIDE, vec![]).vlan(30));
    }
    rig.rx(2, &udp(30, OUTSIDE, vec![]));
    assert_eq!(rig.switch.learned(), 4);
    rig.add(0, Endpoint { trunk: false, ..trunk });
    assert_eq!(rig.switch.learned(), 2, "that without a tag, and the other's");
    for n in 21..23 {
        assert_eq!(rig.rx(1, &udp(n, OUTSIDE, vec![])), Verdict::Forwarded, "there is room");
    }
    assert_eq!(rig.rx(1, &udp(23, OUTSIDE, vec![])), Verdict::Dropped(Reason::FdbFull));
}

#[test]
fn what_was_seen_outside_is_forgotten_with_what_was_outside() {
    let (vlan, untagged) = (Attachment::Vlan(10), Attachment::Untagged);
    for (before, after) in [
        (vlan, Some(Attachment::Vlan(20))),
        (vlan, Some(Attachment::Isolated)),
        (vlan, Some(untagged)),
        (untagged, Some(vlan)),
        // The uplink goes instead, and comes back.
        (vlan, None),
        (untagged, None),
    ] {
        let of = |attachment| Change::Tenant(TenantId(0), Some(tenant(attachment)));
        let mut rig = Rig::new(&program(&[learning(0, 0)]));
        let attach = |rig: &mut Rig, attachment| {
            rig.remove(0);
            rig.change(of(attachment)).unwrap();
            rig.add(0, learning(0, 0));
        };
        attach(&mut rig, before);
        // More than are remembered of a network.
        for n in 0..5000 {
            let frame = udp(1000 + n, 0, vec![]);
            rig.rx(0, &if before == vlan { frame.vlan(10) } else { frame });
            rig.due();
        }
        assert_eq!(rig.rx(1, &udp(1000, OUTSIDE, vec![])), Verdict::Dropped(Reason::SeenOutside));
        assert_eq!(rig.rx(1, &udp(20_000, OUTSIDE, vec![])), Verdict::Dropped(Reason::OutsideFull));
        rig.now = rig.now.plus_ns(1);
        match after {
            Some(after) => attach(&mut rig, after),
            None => {
                rig.change(Change::Uplink(None)).unwrap();
                rig.change(Change::Uplink(Some(uplink(1000)))).unwrap();
            }
        }
        for n in [1000, 20_000] {
            let verdict = rig.rx(1, &udp(n, OUTSIDE, vec![]));
            let is_refused = matches!(verdict, Verdict::Dropped(Reason::SeenOutside | Reason::OutsideFull));
            assert!(!is_refused, "{before:?}, {after:?}: {verdict:?}");
        }
        assert_eq!(rig.switch.learned(), 2);
        // Where it comes back, nothing is outside of it either.
        if after.is_some() {
            attach(&mut rig, before);
            assert_eq!(rig.rx(1, &udp(1000, OUTSIDE, vec![])), Verdict::Forwarded);
        }
    }
}

#[test]
fn without_its_uplink_a_switch_goes_on() {
    let mut rig = Rig::new(&program(&[Endpoint { share: limited(1), ..endpoint(0, 0) }, endpoint(1, 0)]));
    for _ in 0..10 {
        rig.rx(1, &udp(0, OUTSIDE, vec![0; 1000]));
    }
    let sent = rig.due().len() as u64;
    rig.change(Change::Uplink(None)).unwrap();
    assert_eq!(rig.drops(0, Reason::Removed), 10 - sent);
    assert_eq!(rig.rx(1, &udp(0, OUTSIDE, vec![])), Verdict::Dropped(Reason::Unreachable));
    assert_eq!(rig.rx(0, &udp(OUTSIDE, 0, vec![]).vlan(10)), Verdict::Dropped(Reason::Unknown));
    rig.rx(2, &udp(1, 0, vec![]));
    assert_eq!(rig.ports(), [1]);
    rig.change(Change::Uplink(Some(uplink(10)))).unwrap();
    rig.rx(2, &udp(1, OUTSIDE, vec![]));
    rig.rx(0, &udp(OUTSIDE, 0, vec![]).vlan(10));
    assert_eq!(rig.ports(), [0, 1]);
}

/// One frame at 1 kbit/s takes 8 s.
#[test]
fn an_uplink_that_is_raised_or_comes_back_sends_at_once() {
    for goes in [false, true] {
        let slow = Some(Uplink::new(PortId(0), both(Rate(1000))));
        let mut rig = Rig::new(&Program { uplink: slow, ..program(&[endpoint(0, 0), endpoint(1, 1)]) });
        rig.rx(1, &udp(0, OUTSIDE, vec![0; 1000]));
        rig.rx(0, &udp(OUTSIDE, 1, vec![0; 1000]).vlan(11));
        assert_eq!(rig.run(MS).len(), 2);
        if goes {
            rig.change(Change::Uplink(None)).unwrap();
        }
        rig.change(Change::Uplink(Some(uplink(1000)))).unwrap();
        rig.rx(2, &udp(1, OUTSIDE, vec![]));
        rig.rx(0, &udp(OUTSIDE, 0, vec![]).vlan(10));
        let mut ports: Vec<u32> = rig.run(MS).into_iter().map(|(port, _)| port).collect();
        ports.sort_unstable();
        assert_eq!(ports, [0, 1]);
    }
}

#[test]
fn of_several_owners_of_an_address_the_same_one_is_named_whoever_was_changed_last() {
    let lists = |n| {
        let mut endpoint = endpoint(n, 0);
        endpoint.identity.ipv4 = vec![(ip(), 32)];
        endpoint
    };
    let program = program(&[lists(0), lists(1), endpoint(2, 0)]);
    let mut changed = Rig::new(&program);
    changed.add(0, endpoint(0, 0));
    changed.add(0, lists(0));
    let explained = [&mut changed, &mut Rig::new(&program)].map(|rig| {
        let frame = arp_request(mac(2), ip(), ip()).frame(&mut rig.pool).expect("a buffer");
        rig.switch.explain(&rig.pool, rig.now, PortId(3), &frame)
    });
    assert_eq!(explained[0].verdict, Verdict::Dropped(Reason::SpoofedArp));
    assert_eq!(explained[0], explained[1]);
}

/// A load that keeps every queue of four endpoints busy, and what came out of it: when, where and
/// what.
fn loaded(switch: Switch, mut meanwhile: impl FnMut(&mut Rig, u32)) -> Vec<(u64, u32, Vec<u8>)> {
    let mut rig = Rig { switch, pool: Pool::new(PoolLimits { small: 20_000, medium: 0, large: 64 }), now: NOW };
    let mut trace = Vec::new();
    for round in 0..300u32 {
        for n in 0..4 {
            for copy in 0..=n {
                let payload = [round as u8, copy as u8].repeat(20 + 200 * n as usize);
                rig.rx(n + 1, &udp(n, OUTSIDE, payload.clone()));
                rig.rx(n + 1, &udp(n, n ^ 1, payload.clone()));
                rig.rx(0, &udp(OUTSIDE, n, payload).vlan(10 + n as u16 / 2));
            }
        }
        meanwhile(&mut rig, round);
        let end = rig.now.plus_ns(100_000);
        while let Some(at) = rig.switch.poll_timeout().filter(|&at| at <= end) {
            rig.now = rig.now.max(at);
            let now = rig.now.0;
            let due = rig.due();
            rig.now = rig.now.plus_ns(u64::from(due.is_empty()));
            trace.extend(due.into_iter().map(|(port, bytes)| (now, port, bytes)));
        }
        rig.now = end;
    }
    assert!(trace.len() > 400);
    trace
}

/// Four endpoints of two tenants with guarantees, weights and limits.
fn busy(order: OrderKind) -> Program {
    let share = |n: u32| Share {
        guarantee: Rate(u64::from(n) * 3 * MBIT),
        limit: if n == 3 { Rate(30 * MBIT) } else { Rate::UNLIMITED },
        weight: 1 + n,
    };
    let endpoints = [0, 1, 2, 3].map(|n| Endpoint { share: both(share(n)), ..endpoint(n, n / 2) });
    Program { order, uplink: Some(uplink(100)), ..program(&endpoints) }
}

#[test]
fn a_switch_grown_by_changes_is_the_same_as_one_built_at_once() {
    for order in ORDERS {
        let program = busy(order);
        let mut grown = Rig::new(&Program { order, ..Program::default() });
        // What needs the uplink's rate comes before the uplink does, which is what makes the
        // difference.
        let mut changes = program.changes();
        let uplink = changes.iter().position(|change| matches!(change, Change::Uplink(_))).expect("an uplink");
        let uplink = changes.remove(uplink);
        for change in changes {
            grown.change(change).expect("a step");
        }
        grown.change(Change::Uplink(Some(self::uplink(7)))).expect("a step");
        grown.change(uplink).expect("a step");
        assert_eq!(*grown.switch.program(), program);
        let built = Switch::new(&program, 1).expect("a sound program");
        assert!(loaded(built, |_, _| {}) == loaded(grown.switch, |_, _| {}), "{order:?}");
    }
}

#[test]
fn idle_endpoints_that_come_and_go_do_not_change_the_time_of_a_single_frame() {
    for order in [OrderKind::Fair, OrderKind::Wf2q] {
        let switch = || Switch::new(&busy(order), 1).expect("a sound program");
        let changed = loaded(switch(), |rig, round| {
            let n = 4 + round % 7;
            match round % 3 {
                0 if round % 2 == 0 => rig.add(n, Endpoint { share: limited(5), ..endpoint(n, n % 2) }),
                0 => rig.add(n, endpoint(n, n % 2)),
                _ if rig.switch.program().endpoints.get(n).is_some() => rig.remove(n),
                1 => rig.change(Change::Tenant(TenantId(2 + n), Some(tenant(Attachment::Isolated)))).unwrap(),
                _ => {
                    let there = rig.switch.program().tenants.get(2 + n).is_some();
                    assert_eq!(rig.change(Change::Tenant(TenantId(2 + n), None)).is_ok(), there);
                }
            }
        });
        assert!(loaded(switch(), |_, _| {}) == changed, "{order:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn owners_may_change_at_any_time(seed in any::<u64>(), steps in 50usize..800) {
        let mut chaos = Chaos::new(seed);
        for _ in 0..steps {
            chaos.step();
        }
        chaos.compare();
    }

    #[test]
    fn any_sound_program_can_become_any_other(seed in any::<u64>(), steps in 10usize..200) {
        let mut chaos = Chaos::new(seed);
        for _ in 0..steps {
            chaos.step();
            chaos.change_service();
        }
        let from = chaos.rig.switch.program().clone();
        for _ in 0..steps {
            chaos.change();
            chaos.change_service();
        }
        let to = chaos.rig.switch.program().clone();
        for program in [from, to] {
            let there = chaos.rig.switch.program().clone();
            for change in program.changes_from(&there).expect("the same order") {
                prop_assert_eq!(chaos.rig.change(change), Ok(()));
            }
            prop_assert_eq!(chaos.rig.switch.program(), &program);
            prop_assert_eq!(program.changes_from(&program), Some(vec![]));
        }
    }
}

/// Two ports carry the uplink; which of them a frame came by is known until it leaves.
#[test]
fn an_uplink_may_have_members_and_each_is_charged_for_what_came_by_it() {
    let mut rig = Rig::new(&program(&[endpoint(0, 0)]));
    let two = |ports: [u32; 2]| {
        let members = ports.map(|port| Member { port: PortId(port), rate: both(Rate(100 * MBIT)) });
        Uplink { members: members.into(), ..uplink(1) }
    };
    rig.change(Change::Uplink(Some(two([0, 5])))).unwrap();
    assert_eq!(rig.switch.program().uplink.as_ref().map(Uplink::rate), Some(both(Rate(200 * MBIT))));
    for port in [0, 5] {
        rig.rx(port, &udp(OUTSIDE, 0, vec![0; 100]).vlan(10));
        let (to, frame) = rig.switch.tx(&mut rig.pool, rig.now).expect("it arrives");
        assert_eq!((to, rig.pool.meta(&frame).payer()), (PortId(1), Some(PortId(port))));
        rig.pool.free(frame);
    }
    // The members change places, and one goes while a frame of it waits.
    rig.rx(5, &udp(OUTSIDE, 0, vec![0; 100]).vlan(10));
    rig.change(Change::Uplink(Some(uplink_at(0, 100)))).unwrap();
    let (_, frame) = rig.switch.tx(&mut rig.pool, rig.now).expect("it is not the port's");
    assert_eq!(rig.pool.meta(&frame).payer(), Some(PortId(0)));
    rig.pool.free(frame);
    assert_eq!(rig.rx(5, &udp(OUTSIDE, 0, vec![0; 100]).vlan(10)), Verdict::Dropped(Reason::Unknown));
    // A port is one member, and nobody else's.
    for (ports, wrong) in [([0, 0], 0), ([0, 1], 1)] {
        let refused = rig.change(Change::Uplink(Some(two(ports))));
        assert_eq!(refused, Err(ChangeError::PortInUse(PortId(wrong))));
    }
    let many = |count| Uplink { members: vec![two([0, 5]).members[0]; count], ..uplink(1) };
    for count in [0, Uplink::MOST_MEMBERS + 1] {
        assert_eq!(rig.change(Change::Uplink(Some(many(count)))), Err(ChangeError::BadMembers(count)));
    }
    let slower = two([0, 5]).at_rate(both(Rate(50 * MBIT)));
    assert_eq!(slower.members.iter().map(|member| member.rate.egress).collect::<Vec<_>>(), [Rate(25 * MBIT); 2]);
    assert_eq!((slower.member_at(PortId(5)), slower.port_of(MemberId(7))), (Some(MemberId(1)), PortId(0)));
}

#[test]
fn only_what_differs_is_listed_anew_in_whatever_order() {
    let case = |before: &[u8], after: &[u8], gone: &[u8], come: &[u8]| {
        assert_eq!(only_in(before, after), (gone.to_vec(), come.to_vec()), "{before:?} {after:?}");
    };
    case(&[], &[], &[], &[]);
    case(&[1, 2, 3], &[1, 2, 3, 4], &[], &[4]);
    case(&[1, 2, 3], &[0, 2], &[1, 3], &[0]);
    case(&[3, 1, 2], &[2, 3, 9, 1], &[], &[9]);
    case(&[7, 7], &[7], &[7], &[]);
    case(&[1, 2, 5, 9], &[1, 3, 4, 9], &[2, 5], &[3, 4]);
    case(&[5], &[6, 7, 6], &[5], &[6, 6, 7]);
}
