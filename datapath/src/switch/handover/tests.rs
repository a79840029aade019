//! Handover: what goes on, what must not start anew, and that no lie does harm.

use super::*;
use crate::program::{Endpoint, IngressMode, PortId, Program};
use crate::sojourn::Sojourn;
use crate::stats::Traffic;
use crate::switch::chaos::{Chaos, MS, OUTSIDE, Rig, endpoint, ip, learning, limited, mac, program, udp};
use crate::verdict::{Reason, Verdict};
use crate::wire::build::arp_request;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

/// The switch after a restart that took `away_ns`; its clock starts anew.
fn restarted(rig: &Rig, away_ns: u64) -> (Rig, Imported) {
    let state = rig.switch.export(rig.now);
    let mut next = Rig::new(rig.switch.program());
    next.now = Instant(5 * MS);
    let imported = next.switch.import(next.now, away_ns, &state).expect("the same version");
    (next, imported)
}

#[test]
fn addresses_stay_known_for_as_long_as_they_would_have_been() {
    let trunk = Endpoint { trunk: true, port: PortId(7), ..learning(0, 0) };
    let plan = Program { fdb_age_ns: 10 * SECOND, ..program(&[learning(0, 0), trunk, endpoint(2, 0)]) };
    let mut rig = Rig::new(&plan);
    rig.rx(1, &udp(20, OUTSIDE, vec![]));
    rig.rx(7, &udp(21, OUTSIDE, vec![]).vlan(30));
    rig.run(4 * SECOND);
    rig.rx(1, &udp(22, OUTSIDE, vec![]));
    rig.run(0);
    let (mut next, imported) = restarted(&rig, 2 * SECOND);
    assert_eq!(
        imported,
        Imported { endpoints: 3, tenants: 1, learned: 3, pairs: 0, vcc: 0, connections: 0, ignored: 0 }
    );
    next.rx(3, &udp(2, 20, vec![]));
    assert_eq!(next.ports(), [1]);
    next.run(3 * SECOND + SECOND / 2);
    next.rx(3, &udp(2, 20, vec![]));
    assert_eq!(next.ports(), [0, 1, 7], "forgotten after ten seconds in all");
    next.rx(3, &udp(2, 22, vec![]));
    assert_eq!(next.ports(), [1], "seen later, so it is known for longer");
}

#[test]
fn what_is_held_or_outside_does_not_live_longer_by_a_restart() {
    let attachment = crate::program::Attachment::Untagged;
    let mut plan = Program { fdb_age_ns: 10 * SECOND, ..program(&[endpoint(0, 0), learning(1, 0)]) };
    plan.tenants[0].attachment = attachment;
    let mut rig = Rig::new(&plan);
    rig.rx(1, &arp_request(mac(0), ip(), [10, 0, 0, 9].into()));
    rig.rx(0, &udp(OUTSIDE, 0, vec![]));
    rig.run(4 * SECOND);
    let (mut next, _) = restarted(&rig, 0);
    let known = |rig: &Rig| {
        let state = rig.switch.export(rig.now);
        (state.endpoints.iter().map(|(_, of)| of.held.len()).sum::<usize>(), state.outside.len())
    };
    assert_eq!(known(&next), (1, 1));
    next.run(5 * SECOND);
    assert_eq!(known(&next), (1, 1));
    next.run(2 * SECOND);
    assert_eq!(known(&next), (0, 0), "forgotten after ten seconds in all");
}

/// Strangers show more addresses than are remembered: what is not may be one of theirs, after a
/// restart too.
#[test]
fn a_crowded_network_stays_so_for_as_long_as_it_would_have_been() {
    let plan = Program { fdb_age_ns: 10 * SECOND, ..program(&[learning(0, 0), endpoint(1, 0), learning(2, 1)]) };
    let mut rig = Rig::new(&plan);
    let comes_new = |rig: &mut Rig, port, n| {
        rig.rx(port, &udp(n, OUTSIDE, vec![]));
        let state = rig.switch.export(rig.now);
        state.endpoints.iter().any(|(_, of)| of.learned.iter().any(|learned| learned.mac == mac(n)))
    };
    assert!(comes_new(&mut rig, 1, 20));
    for n in 0..5000 {
        rig.rx(0, &udp(100 + n, 1, vec![]).vlan(10));
        rig.run(10_000);
    }
    assert!(!comes_new(&mut rig, 1, 21));
    let (mut next, _) = restarted(&rig, 2 * SECOND);
    assert!(!comes_new(&mut next, 1, 22));
    assert!(comes_new(&mut next, 3, 23), "in another's network");
    assert!(comes_new(&mut next, 1, 20), "it had that before");
    next.run(7 * SECOND);
    assert!(!comes_new(&mut next, 1, 24));
    next.run(2 * SECOND);
    assert!(comes_new(&mut next, 1, 25), "after ten seconds in all");
}

#[test]
fn a_restart_gives_no_new_burst() {
    let mut rig = Rig::new(&program(&[Endpoint { share: limited(1), ..endpoint(0, 0) }]));
    let burst = |rig: &mut Rig| {
        for _ in 0..40 {
            rig.rx(1, &udp(0, OUTSIDE, vec![0; 1000]));
        }
        rig.due().len()
    };
    assert!(burst(&mut rig) > 10, "a new one may send a burst");
    let (mut next, _) = restarted(&rig, 0);
    assert_eq!(burst(&mut next), 0, "what was sent is not paid for");
    // A frame takes 8.5 ms.
    assert_eq!(next.run(80 * MS).len(), 10);
    let (mut later, _) = restarted(&rig, 20 * MS);
    assert_eq!(burst(&mut later), 1, "it is, and no more");
}

#[test]
fn a_flood_budget_that_was_used_up_stays_so() {
    let mut rig = Rig::new(&program(&[endpoint(0, 0), endpoint(1, 0)]));
    let storm = |rig: &mut Rig| {
        let passed = (0..500).filter(|_| rig.rx(1, &arp_request(mac(0), ip(), ip())) == Verdict::Forwarded).count();
        rig.run(0);
        passed
    };
    assert_eq!(storm(&mut rig), 250);
    assert_eq!(storm(&mut restarted(&rig, 0).0), 0);
    assert_eq!(storm(&mut restarted(&rig, 100 * MS).0), 100, "a tenth of a second of a thousand");
}

#[test]
fn a_policers_bucket_is_not_filled_by_a_restart() {
    for ingress in [IngressMode::Police, IngressMode::PolicePublished] {
        let mut plan = Program { ingress, ..program(&[endpoint(0, 0)]) };
        plan.uplink.as_mut().expect("an uplink").members[0].rate.ingress = crate::units::Rate(10_000_000);
        let mut rig = Rig::new(&plan);
        let flood = |rig: &mut Rig| {
            for _ in 0..2000 {
                rig.rx(0, &udp(OUTSIDE, 0, vec![]).vlan(10));
            }
            rig.run(0).len()
        };
        assert!(flood(&mut rig) >= 45);
        let (mut next, _) = restarted(&rig, 0);
        let passed = rig.switch.endpoint_stats(EndpointId(0)).ingress.traffic;
        assert_eq!(flood(&mut next), 0, "{ingress:?}");
        assert_eq!(next.switch.endpoint_stats(EndpointId(0)).ingress.traffic, passed);
        assert_eq!(next.switch.tenant_stats(TenantId(0)).ingress.traffic, passed);
    }
}

#[test]
fn what_is_not_there_any_more_is_ignored_and_counted() {
    let mut rig = Rig::new(&program(&[learning(0, 0), endpoint(1, 1), learning(2, 0)]));
    rig.rx(1, &udp(20, OUTSIDE, vec![]));
    rig.rx(3, &udp(21, OUTSIDE, vec![]));
    rig.run(0);
    let mut state = rig.switch.export(rig.now);
    let mut next = Rig::new(&program(&[learning(0, 0)]));
    // Of the endpoints the shell knows one by name; the others are gone, and so is a tenant.
    assert_eq!(
        next.switch.import(next.now, 0, &state),
        Ok(Imported { endpoints: 1, tenants: 1, learned: 1, pairs: 0, vcc: 0, connections: 0, ignored: 3 })
    );
    assert_eq!(next.switch.learned(), 1);
    state.version += 1;
    assert_eq!(next.switch.import(next.now, 0, &state), Err(OtherVersion(2)));
}

/// Numbers that are wrong in every way, often at the edge.
fn wild() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(u64::MAX), Just(1 << 63), any::<u64>(), 0..1_000_000u64]
}

prop_compose! {
    fn wild_lane()(n in prop::collection::vec(wild(), 10)) -> LaneStats {
        LaneStats {
            traffic: Traffic { frames: n[0], segments: n[1], bytes: n[2], wire_bytes: n[3] },
            guaranteed_bytes: n[4],
            marks: n[5],
            trims: n[6],
            backlog_bytes: n[7],
            backlog_frames: n[7] as u32,
            sojourn_max_ns: n[8],
            unmet_ns: n[9],
        }
    }
}

prop_compose! {
    fn wild_sojourn()(total_us in wild(), counts in prop::collection::vec(wild(), 0..40)) -> Sojourn {
        Sojourn::from_parts(total_us, &counts)
    }
}

prop_compose! {
    fn wild_learned()(known in any::<bool>(), any in any::<[u8; 6]>(), n in 0..40u32, vlan in any::<u16>(), left_ns in wild())
        -> Learned {
        Learned { mac: if known { mac(n) } else { Mac(any) }, vlan: if known { 0 } else { vlan }, left_ns }
    }
}

prop_compose! {
    fn wild_pair()(everyone in any::<bool>(), any in any::<[u8; 6]>(), rate in wild(), owed_ns in wild()) -> PairState {
        let to = if everyone { Toward::Everyone } else { Toward::Address(Mac(any)) };
        PairState { to, rate: Rate(rate), owed_ns }
    }
}

prop_compose! {
    fn wild_held()(n in 0..40u32, six in any::<u128>(), is_six in any::<bool>(), left_ns in wild()) -> HeldAddress {
        let address = if is_six { IpAddr::from(six.to_be_bytes()) } else { IpAddr::from([10, 0, 0, n as u8]) };
        HeldAddress { address, mac: mac(n), left_ns }
    }
}

prop_compose! {
    fn wild_outside()(
        tenant in prop::option::of(0..12u32),
        held in wild_held(),
        address in any::<bool>(),
        router in any::<bool>(),
    ) -> SeenOutside {
        let address = address.then_some((held.address, router));
        SeenOutside { tenant: tenant.map(TenantId), mac: held.mac, address, left_ns: held.left_ns }
    }
}

prop_compose! {
    fn wild_endpoint()(
        lanes in prop::collection::vec(wild_lane(), 4),
        sojourns in prop::collection::vec(wild_sojourn(), 2),
        drops in wild(),
        learned in prop::collection::vec(wild_learned(), 0..20),
        held in prop::collection::vec(wild_held(), 0..20),
        n in prop::collection::vec(wild(), 5),
        tokens in any::<bool>(),
        pairs in prop::collection::vec(wild_pair(), 0..6),
    ) -> EndpointState {
        let mut counters = DropCounters::default();
        Reason::ALL.iter().for_each(|&reason| counters.add(reason, drops));
        EndpointState {
            stats: EndpointStats {
                egress: lanes[0],
                ingress: lanes[1],
                local_egress: lanes[2],
                local_ingress: lanes[3],
                sojourn: Both { egress: sojourns[0], ingress: sojourns[1] },
                drops: counters,
            },
            learned,
            held,
            owed_ns: Both { egress: n[0], ingress: n[1] },
            flood: Saved { frames: n[2], used_ns: n[3] },
            tokens: tokens.then_some(Tokens { packets: n[3], since_ns: n[4] }),
            pairs,
            vcc: None,
        }
    }
}

prop_compose! {
    fn wild_state()(
        endpoints in prop::collection::vec((0..12u32, wild_endpoint()), 0..12),
        tenants in prop::collection::vec((0..6u32, wild_lane(), wild()), 0..8),
        uplink_flood in wild(),
        former in wild_lane(),
        outside in prop::collection::vec(wild_outside(), 0..20),
        crowded in prop::collection::vec((prop::option::of(0..9u32), wild(), wild()), 0..9),
    ) -> State {
        let tenant = |(id, lane, owed): (u32, LaneStats, u64)| {
            let both = |lane| Both { egress: lane, ingress: lane };
            let owed_ns = Both { egress: owed, ingress: owed };
            let uplink_flood = Saved { frames: owed, used_ns: owed };
            (TenantId(id), TenantState { stats: both(lane), owed_ns, flood_used_ns: owed, uplink_flood })
        };
        let uplink_drops = endpoints.first().map(|(_, e)| e.stats.drops.clone()).unwrap_or_default();
        State {
            version: State::VERSION,
            endpoints: endpoints.into_iter().map(|(id, e)| (EndpointId(id), e)).collect(),
            tenants: tenants.into_iter().map(tenant).collect(),
            uplink_drops,
            former: Both { egress: former, ingress: former },
            uplink_flood: Saved { frames: uplink_flood, used_ns: uplink_flood },
            outside,
            crowded: crowded
                .into_iter()
                .map(|(tenant, macs_ns, ips_ns)| Crowded { tenant: tenant.map(TenantId), macs_ns, ips_ns })
                .collect(),
            vcc: Vec::new(),
            vcc_unchanged: Vec::new(),
            bond: None,
            numbers: Some(NumbersState::default()),
            lacp: Vec::new(),
            members: MembersState::default(),
            services: Vec::new(),
            recovers_ns: 0,
        }
    }
}

/// What is handed over, of a state: no order, and nothing about what waits.
fn plain(mut state: State, age_ns: u64) -> State {
    for (_, endpoint) in &mut state.endpoints {
        // A bucket that was not used since its rate changed holds what the next one, whose rate is
        // right, need not.
        endpoint.tokens = None;
        // What was learned before addresses lived shorter lives no longer than others behind the
        // next switch.
        endpoint.learned.iter_mut().for_each(|learned| learned.left_ns = learned.left_ns.min(age_ns));
        endpoint.learned.retain(|learned| learned.left_ns > 0);
        endpoint.learned.sort_unstable_by_key(|learned| (learned.mac, learned.vlan));
        let stats = &mut endpoint.stats;
        for lane in [&mut stats.egress, &mut stats.ingress, &mut stats.local_egress, &mut stats.local_ingress] {
            (lane.backlog_bytes, lane.backlog_frames) = (0, 0);
        }
    }
    for (_, tenant) in &mut state.tenants {
        for lane in [&mut tenant.stats.egress, &mut tenant.stats.ingress] {
            (lane.backlog_bytes, lane.backlog_frames) = (0, 0);
        }
    }
    state
}

#[test]
fn pair_limits_go_along() {
    let mut rig = Rig::new(&program(&[endpoint(0, 0), endpoint(1, 0)]));
    let (peer, frame) = (Toward::Address(mac(OUTSIDE)), udp(0, OUTSIDE, vec![0; 1000]));
    for (to, mbit) in [(peer, 1), (Toward::Everyone, 50)] {
        let rate = Some(Rate(mbit * 1_000_000));
        rig.switch.limit_pair(&mut rig.pool, rig.now, EndpointId(0), to, rate).expect("room");
    }
    rig.rx(1, &frame);
    // A limit begins somewhere within its first frame.
    assert_eq!((0..200).map(|_| rig.run(MS / 10).len()).find(|&frames| frames > 0), Some(1));
    let (mut next, imported) = restarted(&rig, 0);
    assert_eq!((imported.pairs, imported.ignored), (2, 0));
    assert!(
        next.switch
            .pairs(EndpointId(0))
            .map(|pair| (pair.to, pair.rate))
            .eq(rig.switch.pairs(EndpointId(0)).map(|pair| (pair.to, pair.rate)))
    );
    // A frame takes 8.6 ms, and the last one is not paid for.
    next.rx(1, &frame);
    assert_eq!((next.run(8 * MS).len(), next.run(MS).len()), (0, 1));
    let nonsense = [
        PairState { to: Toward::Address(Mac([0xff; 6])), rate: Rate(9000), owed_ns: 0 },
        PairState { to: peer, rate: Rate(0), owed_ns: 0 },
        PairState { to: peer, rate: Rate::UNLIMITED, owed_ns: 0 },
    ];
    let mut state = rig.switch.export(rig.now);
    state.endpoints[1].1.pairs = nonsense.to_vec();
    let (mut other, now) = (Rig::new(rig.switch.program()), rig.now);
    let imported = other.switch.import(now, 0, &state).expect("the same version");
    assert_eq!((imported.pairs, imported.ignored), (2, 3));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_on_the_way(seed in any::<u64>(), steps in 50usize..800) {
        let mut chaos = Chaos::new(seed);
        for _ in 0..steps {
            chaos.step();
        }
        let rig = &chaos.rig;
        let state = rig.switch.export(rig.now);
        let mut next = Rig::new(rig.switch.program());
        next.now = rig.now;
        let imported = next.switch.import(next.now, 0, &state).expect("the same version");
        prop_assert_eq!(imported.ignored, 0);
        let age_ns = rig.switch.program().fdb_age_ns;
        prop_assert_eq!(plain(next.switch.export(next.now), age_ns), plain(state, age_ns));
    }

    #[test]
    fn no_lie_does_harm(seed in any::<u64>(), states in prop::collection::vec((wild_state(), wild()), 1..6)) {
        let mut chaos = Chaos::new(seed);
        for (state, away_ns) in states {
            for _ in 0..100 {
                chaos.step();
            }
            let quota: u32 = chaos.rig.switch.program().endpoints.values().map(|e| e.max_learned).sum();
            let imported = chaos.rig.switch.import(chaos.rig.now, away_ns, &state).expect("the same version");
            let of = |e: &EndpointState| 1 + e.learned.len() + e.held.len() + e.pairs.len();
            let all = state.endpoints.iter().map(|(_, e)| of(e)).sum::<usize>() + state.outside.len();
            let Imported { endpoints, tenants, learned, pairs, connections, vcc, ignored } = imported;
            prop_assert_eq!((connections, vcc), (0, 0));
            prop_assert!(endpoints + tenants + learned + pairs + ignored <= all + state.tenants.len());
            prop_assert!(chaos.rig.switch.learned() <= quota as usize);
        }
        // Read, counted on, and nobody is silenced: once limits are lifted, all that waits is sent
        // in a minute.
        chaos.lift_all();
        let _ = (chaos.rig.switch.uplink_stats(), chaos.rig.switch.export(chaos.rig.now));
        chaos.rig.run(60 * SECOND);
        prop_assert_eq!(chaos.rig.pool.in_use(), 0);
        let state = chaos.rig.switch.export(chaos.rig.now);
        prop_assert!(state.endpoints.iter().all(|(_, e)| e.owed_ns.egress < SECOND && e.owed_ns.ingress < SECOND));
    }
}
