//! That nobody waits for what somebody else's frames are made into, and that nothing of it is lost,
//! doubled or overtaken.

use crate::aqm::Discipline;
use crate::offload::OffloadSupport;
use crate::program::{Attachment, Change, EndpointId, PortFeatures, PortId, Program, TenantId};
use crate::switch::chaos::{
    OUTSIDE, Rig, endpoint, ip, learning, limited, mac, program, tenant, udp, uplink, uplink_at,
};
use crate::verdict::Reason;
use crate::wire::Mac;
use crate::wire::build::{Build, eth};

const SEGMENTS: usize = 2000;

/// A frame of so many segments of eight bytes.
fn many(from: u32, to: u32) -> Build<'static> {
    eth(mac(from), mac(to)).ipv4(ip(), ip()).tcp(1, 2, 0).payload(vec![7; 8 * SEGMENTS]).gso(8)
}

fn everybody(from: u32, n: u8) -> Build<'static> {
    eth(mac(from), Mac::BROADCAST).ipv4(ip(), ip()).udp(1, 2).payload(vec![n; 60])
}

/// Endpoints 0 to 3 of tenant 0, the last of which has a port without offloads, and 4 of tenant 1.
fn five() -> Program {
    let mut program = program(&[endpoint(0, 0), endpoint(1, 0), endpoint(2, 0), endpoint(3, 0), endpoint(4, 1)]);
    program.ports.set(4, Some(PortFeatures { offload: OffloadSupport::NONE, ..PortFeatures::default() }));
    program
}

/// What is due without anybody's turn: ports.
fn due(rig: &mut Rig) -> Vec<u32> {
    let mut ports = Vec::new();
    while let Some((port, frame)) = rig.switch.tx_due(&mut rig.pool, rig.now) {
        ports.push(port.0);
        rig.pool.free(frame);
    }
    ports
}

/// One turn's piece of who is at `port`, and what came of it.
fn turn(rig: &mut Rig, port: u32) -> Vec<u32> {
    assert!(rig.switch.work(&mut rig.pool, rig.now, PortId(port)).is_some(), "nothing to do at {port}");
    due(rig)
}

#[test]
fn a_frame_for_the_wire_waits_for_none_of_thousands_of_segments() {
    let mut rig = Rig::new(&five());
    rig.rx(1, &many(0, 3));
    assert_eq!((rig.switch.poll_work(), rig.switch.poll_work()), (Some(PortId(1)), None));
    assert_eq!(rig.switch.poll_due(), None, "it waits for its owner's turn");
    for _ in 0..10 {
        rig.rx(5, &udp(4, OUTSIDE, vec![0; 100]));
        assert_eq!(due(&mut rig), [0]);
        assert_eq!(turn(&mut rig, 1), [4], "one piece a time");
        rig.now = rig.now.plus_ns(1_000_000);
    }
    let mut rest = 0;
    while rig.switch.has_work(PortId(1)) {
        rest += turn(&mut rig, 1).len();
    }
    assert_eq!(rest, SEGMENTS - 10);
    assert_eq!(rig.pool.in_use(), 0);
}

#[test]
fn pieces_are_charged_to_who_sent_them() {
    let mut rig = Rig::new(&five());
    rig.rx(1, &many(0, 3));
    rig.rx(2, &everybody(1, 0));
    rig.rx(5, &udp(4, OUTSIDE, vec![0; 100]));
    rig.rx(0, &udp(OUTSIDE, 2, vec![0; 100]).vlan(10));
    let mut payers = std::collections::BTreeMap::new();
    while let Some((port, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
        *payers.entry((rig.pool.meta(&frame).payer().unwrap().0, port.0)).or_insert(0) += 1;
        rig.pool.free(frame);
    }
    // The broadcast goes to the uplink and to three neighbours; what comes from outside is the
    // uplink's.
    let wanted = [((0, 3), 1), ((1, 4), SEGMENTS), ((2, 0), 1), ((2, 1), 1), ((2, 3), 1), ((2, 4), 1), ((5, 0), 1)];
    assert_eq!(payers.into_iter().collect::<Vec<_>>(), wanted);
}

#[test]
fn what_one_sends_afterwards_comes_behind_and_what_others_send_does_not() {
    let mut rig = Rig::new(&five());
    rig.rx(1, &many(0, 3));
    rig.rx(1, &udp(0, 3, vec![1; 100]));
    rig.rx(1, &udp(0, 1, vec![1; 100]));
    rig.rx(1, &udp(0, OUTSIDE, vec![1; 100]));
    rig.rx(3, &udp(2, 3, vec![1; 100]));
    assert_eq!(due(&mut rig), [4, 0], "of somebody else, and the uplink's");
    let rest: Vec<u32> = rig.due().into_iter().map(|(port, _)| port).collect();
    assert_eq!(rest, [vec![4; SEGMENTS], vec![4, 2]].concat());
}

#[test]
fn a_flood_meets_each_who_stays_once_whoever_comes_and_goes() {
    let all: Vec<_> = (0..9).map(|n| endpoint(n, 0)).collect();
    for gone in [0, 1, 3, 7, 8] {
        let mut rig = Rig::new(&program(&all));
        rig.remove(5);
        rig.rx(5, &everybody(4, 0));
        assert_eq!(due(&mut rig), [0], "the uplink has its copy at once");
        let mut ports = [turn(&mut rig, 5), turn(&mut rig, 5)].concat();
        rig.remove(gone);
        // Another one comes to the slot of each who went.
        rig.add(5, endpoint(5, 0));
        rig.add(gone, endpoint(gone, 0));
        while rig.switch.has_work(PortId(5)) {
            ports.extend(turn(&mut rig, 5));
        }
        for stays in (0..9).filter(|n| ![gone, 4, 5].contains(n)) {
            let copies = ports.iter().filter(|&&port| port == stays + 1).count();
            assert_eq!(copies, 1, "endpoint {stays} of {ports:?}, without {gone}");
        }
        assert_eq!(rig.pool.in_use(), 0);
    }
}

#[test]
fn who_is_removed_leaves_nothing_behind_and_who_has_its_slot_gets_nothing_of_it() {
    let mut rig = Rig::new(&five());
    let send = |rig: &mut Rig| {
        rig.rx(1, &many(0, 3));
        rig.rx(1, &udp(0, 3, vec![1; 100]));
        rig.rx(1, &everybody(0, 1));
        assert_eq!(due(rig), [0]);
        assert_eq!(turn(rig, 1), [4]);
        rig.now = rig.now.plus_ns(1);
    };
    // Its receiver goes, and one of the other tenant has its slot and its port.
    send(&mut rig);
    rig.remove(3);
    rig.add(3, endpoint(3, 1));
    assert_eq!(rig.ports(), [2, 3], "only the broadcast is left, for two");
    assert_eq!(rig.drops(0, Reason::Removed), 2, "the rest of the frame that was being cut, and the one behind");
    rig.remove(3);
    rig.now = rig.now.plus_ns(1);
    rig.add(3, endpoint(3, 0));
    rig.now = rig.now.plus_ns(1);
    send(&mut rig);
    rig.remove(0);
    assert_eq!(rig.pool.in_use(), 0);
    rig.add(0, endpoint(0, 1));
    assert_eq!((rig.ports(), rig.switch.has_work(PortId(1))), (vec![], false));
}

#[test]
fn storms_from_outside_have_turns_by_network_and_what_is_for_one_does_not_wait() {
    let mut endpoints: Vec<_> = (0..8).map(|n| endpoint(n, 0)).collect();
    endpoints.extend([endpoint(8, 1), endpoint(9, 1)]);
    let mut rig = Rig::new(&program(&endpoints));
    for n in 0..100 {
        rig.rx(0, &everybody(OUTSIDE, n).vlan(10));
    }
    rig.rx(0, &everybody(OUTSIDE, 0).vlan(11));
    rig.rx(0, &udp(OUTSIDE, 9, vec![2; 60]).vlan(11));
    assert_eq!((rig.switch.poll_work(), rig.switch.poll_work()), (Some(PortId(0)), None));
    assert_eq!(due(&mut rig), [10], "what is for one");
    assert_eq!(rig.switch.uplink_drops().get(Reason::NoBuffer), 100 - 64, "as many as may wait");
    let ports: Vec<u32> = (0..4).flat_map(|_| turn(&mut rig, 0)).collect();
    assert_eq!(ports, [1, 9, 2, 10], "one network's storm leaves another's whole");
    // A tenant that is attached otherwise is another network's: what was for the old one is not
    // copied to it.
    for n in 0..8 {
        rig.remove(n);
    }
    rig.change(Change::Tenant(TenantId(0), Some(tenant(Attachment::Vlan(20))))).unwrap();
    rig.add(0, endpoint(0, 0));
    assert_eq!((rig.ports(), rig.pool.in_use()), (vec![], 0));
}

#[test]
fn limits_hold_and_nothing_is_overtaken_where_a_receiver_has_one() {
    let mut program = five();
    program.endpoints[3].share = limited(10);
    // Of flows with queues of their own, one may overtake another.
    program.endpoints[3].aqm = Some(Discipline::Codel);
    let mut rig = Rig::new(&program);
    rig.rx(1, &many(0, 3));
    rig.rx(1, &udp(0, 3, vec![9; 100]));
    let out = rig.run(3_000_000_000);
    // The queue's management takes some off.
    assert!((SEGMENTS * 9 / 10..=SEGMENTS + 1).contains(&out.len()), "{}", out.len());
    assert!(out.iter().all(|(port, _)| *port == 4) && out.last().unwrap().1.ends_with(&[9; 100]));
}

#[test]
fn what_is_let_go_is_cut_into_few_before_the_next_is_looked_at() {
    let mut program = five();
    program.uplink = Some(uplink(100_000));
    program.ports.set(0, Some(PortFeatures { offload: OffloadSupport::NONE, ..PortFeatures::default() }));
    let mut rig = Rig::new(&program);
    rig.rx(1, &many(0, OUTSIDE));
    rig.rx(5, &udp(4, OUTSIDE, vec![0; 100]));
    let mut sent = 0;
    while let Some((_, frame)) = rig.switch.tx_due(&mut rig.pool, rig.now) {
        rig.pool.free(frame);
        assert!(rig.switch.out.len() < 64, "{} leave together", rig.switch.out.len());
        sent += 1;
        if rig.switch.out.is_empty() {
            rig.now = rig.now.plus_ns(1_000_000);
        }
    }
    assert_eq!((sent, rig.pool.in_use()), (SEGMENTS + 1, 0));
}

#[test]
fn unknown_addresses_reach_those_who_may_have_them() {
    let mut rig = Rig::new(&program(&[endpoint(0, 0), learning(1, 0), endpoint(2, 0), learning(3, 0)]));
    rig.rx(1, &udp(0, 77, vec![0; 60]));
    assert_eq!(rig.ports(), [0, 2, 4]);
    rig.rx(0, &udp(OUTSIDE, 77, vec![0; 60]).vlan(10));
    assert_eq!(rig.ports(), [2, 4]);
    let only = EndpointId(3);
    rig.change(Change::Endpoint(only, Some(endpoint(3, 0)))).unwrap();
    rig.rx(0, &udp(OUTSIDE, 77, vec![0; 60]).vlan(10));
    assert_eq!(rig.ports(), [2]);
}

#[test]
fn another_port_that_is_the_first_of_the_uplink_is_told_of_what_is_to_be_copied() {
    let mut rig = Rig::new(&program(&[endpoint(0, 0), endpoint(1, 0)]));
    rig.rx(0, &everybody(OUTSIDE, 0).vlan(10));
    assert_eq!((rig.switch.poll_work(), rig.switch.poll_work()), (Some(PortId(0)), None));
    rig.change(Change::Uplink(Some(uplink_at(9, 1000)))).unwrap();
    assert_eq!((rig.switch.poll_work(), rig.switch.poll_work()), (Some(PortId(9)), None));
    assert_eq!([turn(&mut rig, 9), turn(&mut rig, 9)].concat(), [1, 2]);
    // Where nothing is, nobody is told.
    rig.change(Change::Uplink(Some(uplink_at(0, 1000)))).unwrap();
    assert_eq!((rig.switch.poll_work(), rig.pool.in_use()), (None, 0));
}
