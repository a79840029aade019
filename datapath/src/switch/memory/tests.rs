//! The frame memory of a switch under those who take all they get: who is within his share finds a
//! buffer, whatever the others hold.

use super::*;
use crate::bond::{BondSettings, Mode};
use crate::frame::Class;
use crate::program::{Attachment, Change, PortFeatures, Program, Uplink};
use crate::switch::chaos::{MBIT, OUTSIDE, Rig, both, endpoint, ip, limited, mac, program, tenant, udp, uplink};
use crate::verdict::{Reason, Verdict};
use crate::wire::build::{Build, eth};

/// Endpoints of the tenant that takes all it gets, and who begins with number [`VICTIMS`].
const GREEDY: u32 = 300;
const VICTIMS: u32 = 2;

fn guaranteed(mbit: u64) -> Both<Share> {
    both(Share { guarantee: Rate(mbit * MBIT), ..Share::default() })
}

/// Blue is promised half of the link, all of it for its first endpoint; red has a limit of 1 Mbit/s
/// and many endpoints.
fn two_tenants() -> Program {
    let victims = [0, 1].map(|n| endpoint(n, 0));
    let greedy = (VICTIMS..VICTIMS + GREEDY).map(|n| endpoint(n, 1));
    let endpoints: Vec<Endpoint> = victims.into_iter().chain(greedy).collect();
    let mut program =
        Program { ports: vec![PortFeatures::default(); endpoints.len() + 1].into(), ..program(&endpoints) };
    program.tenants[0].share = guaranteed(500);
    program.tenants[1].share = limited(1);
    program.endpoints[0].share = guaranteed(500);
    // Its queue is no bound here.
    program.endpoints[0].queue_bytes = 1 << 28;
    program
}

fn rig(program: &Program) -> Rig {
    let mut rig = Rig::new(program);
    rig.pool = Pool::new(PoolLimits::within(48 << 20));
    // Some go at each look.
    for _ in 0..20 {
        assert!(rig.due().is_empty());
    }
    rig
}

/// A frame to the outside whose buffer is of this class, of several segments where it is long.
fn frame(from: u32, class: Class) -> Build<'static> {
    let segments = |payload| eth(mac(from), mac(OUTSIDE)).ipv4(ip(), ip()).tcp(1000, 2000, 1).payload(vec![7; payload]);
    match class {
        Class::Small => udp(from, OUTSIDE, vec![7; 18]),
        Class::Medium => segments(10_000).gso(1448),
        Class::Large => segments(60_000).gso(1448),
    }
}

/// Everybody of the greedy sends until he is refused; how many frames wait.
fn fill(rig: &mut Rig, class: Class, everyone: impl Iterator<Item = u32>) -> u32 {
    let mut went = 0;
    for from in everyone {
        while rig.rx(from + 1, &frame(from, class)) == Verdict::Forwarded {
            went += 1;
        }
    }
    went
}

fn told(rig: &Rig, tenant: u32) -> MemoryStats {
    let mut sum = rig.switch.tenant_own_memory(&rig.pool, TenantId(tenant));
    for (id, _) in rig.switch.program().endpoints.iter().filter(|(_, endpoint)| endpoint.tenant == TenantId(tenant)) {
        sum.add(rig.switch.endpoint_memory(&rig.pool, EndpointId(id)));
    }
    sum
}

#[test]
fn who_is_within_his_share_finds_a_buffer_of_each_class() {
    for class in Class::ALL {
        let mut rig = rig(&two_tenants());
        let all = rig.pool.limits().of(class);
        let waits = fill(&mut rig, class, VICTIMS..VICTIMS + GREEDY);
        assert!((all / 8..=all / 3).contains(&waits), "{class:?}: {waits} of {all} are borrowed, and as much is left");
        let refused = (VICTIMS..VICTIMS + GREEDY).filter(|&n| rig.drops(n, Reason::NoBuffer) > 0).count();
        assert!(refused > GREEDY as usize / 2, "{class:?}: {refused} were told why");
        let owned = fill(&mut rig, class, 0..1);
        assert!(
            owned >= all / 5,
            "{class:?}: {owned} of {all}: its guarantee is half of the link, and half is promised"
        );
        assert_eq!(rig.rx(2, &frame(1, class)), Verdict::Forwarded, "{class:?}: its tenant's other endpoint");
        rig.switch.clear(&mut rig.pool);
        assert_eq!(rig.pool.in_use(), 0);
    }
}

#[test]
fn endpoints_that_send_nothing_cost_nothing() {
    let took = |idle: u32| {
        let mut program = two_tenants();
        let endpoints: Vec<Endpoint> = program.endpoints.values().take((VICTIMS + idle) as usize).cloned().collect();
        program.endpoints = endpoints.into();
        fill(&mut rig(&program), Class::Large, 0..1)
    };
    assert_eq!(took(1), took(GREEDY));
}

#[test]
fn what_is_held_is_told_by_tenant() {
    let mut rig = rig(&two_tenants());
    let promised = told(&rig, 0).share + told(&rig, 1).share;
    assert!((15 << 20..=18 << 20).contains(&promised), "three quarters of half: red has a limit; {promised}");
    fill(&mut rig, Class::Large, 0..VICTIMS + GREEDY);
    fill(&mut rig, Class::Small, 0..VICTIMS + GREEDY);
    let held = told(&rig, 0).held + told(&rig, 1).held;
    let (all, free) = (rig.pool.limits().bytes(), rig.pool.available().bytes());
    assert_eq!(held, all - free, "everything that is in use waits, and is somebody's");
    // An endpoint goes with what waited, another loses its guarantee: it is its tenant's then.
    rig.remove(VICTIMS);
    let before = told(&rig, 0);
    let without = Endpoint { share: both(Share::default()), ..rig.switch.program().endpoints[0].clone() };
    rig.change(Change::Endpoint(EndpointId(0), Some(without))).expect("a change");
    assert_eq!(told(&rig, 0).held, before.held);
    assert_eq!(rig.switch.endpoint_memory(&rig.pool, EndpointId(0)), MemoryStats::default());
    rig.switch.clear(&mut rig.pool);
    assert_eq!((told(&rig, 0), told(&rig, 1)), (MemoryStats::default(), MemoryStats::default()));
}

#[test]
fn shares_follow_the_link_and_the_other_tenants() {
    let mut rig = rig(&two_tenants());
    let share = |rig: &Rig, tenant| told(rig, tenant).share;
    let before = share(&rig, 0);
    let green = Tenant { share: guaranteed(250), ..tenant(Attachment::Vlan(30)) };
    rig.change(Change::Tenant(TenantId(2), Some(green))).expect("room");
    for _ in 0..20 {
        rig.due();
    }
    // Blue has 500 and a third of 250, green 250 and as much.
    let (blue, green) = (share(&rig, 0), share(&rig, 2));
    assert!(blue < before && (blue * 10 / green).abs_diff(17) <= 1, "{blue} and {green}");
    rig.change(Change::Tenant(TenantId(2), None)).expect("no endpoints");
    for _ in 0..20 {
        rig.due();
    }
    assert_eq!(share(&rig, 0), before);
    // A pool with other bounds.
    drop(rig.pool.set_limits(PoolLimits::within(24 << 20)));
    for _ in 0..20 {
        rig.due();
    }
    assert!((share(&rig, 0) * 2).abs_diff(before) < before / 20);
}

#[test]
fn what_waits_for_limits_of_agents_is_counted_too() {
    let mut rig = rig(&two_tenants());
    let slow = Some(Rate(1000));
    for from in VICTIMS..VICTIMS + GREEDY {
        let to = crate::pair::Toward::Address(mac(OUTSIDE));
        rig.switch.limit_pair(&mut rig.pool, rig.now, EndpointId(from), to, slow).expect("room");
    }
    let waits = fill(&mut rig, Class::Large, VICTIMS..VICTIMS + GREEDY);
    let all = rig.pool.limits().large;
    assert!((all / 8..=all / 3).contains(&waits), "{waits} of {all}");
    assert!(fill(&mut rig, Class::Large, 0..1) >= all / 5);
}

/// The share of each tenant, then of each endpoint.
fn shares(rig: &Rig) -> Vec<u64> {
    let program = rig.switch.program();
    let tenants = program.tenants.iter().map(|(id, _)| rig.switch.tenant_own_memory(&rig.pool, TenantId(id)).share);
    let endpoints = program.endpoints.iter().map(|(id, _)| rig.switch.endpoint_memory(&rig.pool, EndpointId(id)).share);
    tenants.chain(endpoints).collect()
}

#[test]
fn shares_are_those_of_a_new_switch_also_where_endpoints_come_in_the_same_commit() {
    let promised = |n, tenant| Endpoint { share: guaranteed(300), ..endpoint(n, tenant) };
    let come = |rig: &mut Rig, number, tenant| rig.add(number, endpoint(number, tenant));
    // The uplink is slower, and an endpoint comes.
    let mut slower = rig(&program(&[endpoint(0, 0), promised(1, 1)]));
    slower.change(Change::Uplink(Some(uplink(500)))).expect("a change");
    come(&mut slower, 2, 0);
    // A tenant comes, with more endpoints than there were owners.
    let mut more = rig(&program(&[endpoint(0, 0), promised(1, 1), endpoint(2, 2)]));
    more.change(Change::Tenant(TenantId(3), Some(tenant(Attachment::Vlan(13))))).expect("room");
    (3..9).for_each(|number| come(&mut more, number, 3));
    // They come in the middle of a round, of which more than one look is left.
    let mut amid = rig(&two_tenants());
    amid.change(Change::Uplink(Some(uplink(2000)))).expect("a change");
    amid.remove(9);
    amid.due();
    amid.change(Change::Tenant(TenantId(2), Some(tenant(Attachment::Vlan(30))))).expect("room");
    come(&mut amid, 9, 2);
    for mut changed in [slower, more, amid] {
        (0..20).for_each(|_| drop(changed.due()));
        assert_eq!(shares(&changed), shares(&rig(changed.switch.program())));
    }
}

#[test]
fn what_a_bond_keeps_is_its_senders_tenants_also_where_it_comes_in_the_middle_of_a_round() {
    let mut rig = rig(&two_tenants());
    let again = rig.switch.program().tenants[1].clone();
    rig.change(Change::Tenant(TenantId(1), Some(again))).expect("a change");
    // The round is among the endpoints.
    (0..2).for_each(|_| drop(rig.due()));
    let bond = Some(BondSettings { mode: Mode::BalanceRr, order: true, ..BondSettings::default() });
    rig.change(Change::Uplink(Some(Uplink { bond, ..uplink(1000) }))).expect("a change");
    (0..20).for_each(|_| drop(rig.due()));
    let bond = rig.switch.bond.as_ref().expect("it is one");
    for (id, endpoint) in rig.switch.program().endpoints.iter() {
        let kept = rig.switch.memory.tenants[endpoint.tenant.0 as usize].kept;
        assert_ne!(kept, Owner::NOBODY);
        assert_eq!(bond.keeper(EndpointId(id)), kept, "{id}");
    }
}
