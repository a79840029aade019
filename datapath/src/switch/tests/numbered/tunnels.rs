//! Tunnels over a bond: what they carry is numbered, chosen a member and put in order as any other
//! frame.

use super::*;
use crate::encap::vxlan;
use crate::offload::Gso;
use crate::overlay::{Overlay, Peer, Vtep};
use crate::wire::{L4, be16, parse};
use core::net::IpAddr;
use std::collections::HashMap;

const VNI: u32 = 5001;

fn host(side: usize) -> IpAddr {
    IpAddr::from([192, 0, 2, side as u8 + 1])
}

fn nic(side: usize) -> Mac {
    Mac([2, 0, 0, 0, 0xff, side as u8])
}

/// One of two hosts whose endpoint is in a tunnel to the other's.
fn tunnelled(mode: Mode, order: bool, rates: &[u64], side: usize) -> Program {
    let mut program = program(mode, order, rates, 1564, side as u8 + 1);
    program.tenants[0].attachment = Attachment::Vxlan(VNI);
    let other = 1 - side;
    let peer = Peer { next_hop: Some(nic(other)), tenants: vec![TenantId(0)] };
    program.overlay = Overlay {
        local: Some(Vtep { address: host(side), mac: nic(side) }),
        peers: [(host(other), peer)].into(),
        remotes: [((TenantId(0), mac(other as u8 + 1)), host(other))].into(),
    };
    program
}

fn pair(mode: Mode, order: bool, rates: &[u64], seed: u64) -> Pair {
    Pair::with([0, 1].map(|side| tunnelled(mode, order, rates, side)), rates, seed)
}

#[test]
fn order_is_kept_over_unequal_cables_and_nothing_is_lost_with_one_that_dies() {
    let mut pair = pair(Mode::BalanceRr, true, &[GBIT, GBIT / 2], 3);
    pair.wires[0][1].delay_ns = 200_000;
    let mut pair = pair.agreed();
    pair.send(1000, 8_000, 20 * MS);
    pair.run(MS);
    assert_eq!((pair.order().late, pair.order().lost), (0, 0));
    assert_eq!(pair.order().received, pair.sent, "each has a number");
    assert!(pair.order().held > 100, "those of the shorter cable wait");
    pair.wires[0][0].is_dead = true;
    pair.send(1000, 40_000, 60 * MS);
    assert!(pair.finish().is_sorted());
    assert_eq!((pair.lost(), pair.order().late), (0, 0));
    pair.clear();
}

/// A tunnel's frames are as long as the members take them.
#[test]
fn a_member_that_is_much_too_slow_carries_no_tunnel_beside_a_fast_one() {
    for (slow, is_used) in [(2 * MBIT, false), (10 * MBIT, true)] {
        let mut pair = pair(Mode::BalanceRr, true, &[GBIT / 10, slow], 3).agreed();
        pair.send(1400, 110_000, 100 * MS);
        assert!(pair.finish().is_sorted());
        let sent: Vec<u64> = pair.switches[0].members().map(|view| view.counts.traffic.egress.segments).collect();
        assert_eq!(sent[1] > 0, is_used, "{slow}: {sent:?}");
        pair.clear();
    }
}

/// What a service answers to a host in a tunnel is numbered as what it forwards.
#[test]
fn what_a_switch_answers_through_a_tunnel_is_in_order_too() {
    for mode in [Mode::BalanceRr, Mode::Broadcast] {
        answers_are_in_order(pair(mode, true, &[GBIT; 2], 3), mode, None);
    }
}

/// What a side sends of an offloaded frame of each flow: over which member, and what it looks like.
fn sent(program: &Program, payload: usize, flows: u16) -> (Vec<u32>, HashMap<Gso, usize>) {
    let mut rates = [GBIT; 2].map(|rate| rate * 100).to_vec();
    rates.truncate(program.uplink.as_ref().expect("it has one").members.len());
    let mut pair = Pair::with([program.clone(), tunnelled(Mode::BalanceXor, false, &rates, 1)], &rates, 5);
    let (mut members, mut kinds) = (vec![0; rates.len()], HashMap::new());
    for flow in 0..flows {
        let build = eth(mac(1), mac(2)).ipv4(ip(1), ip(2)).tcp(1000 + flow, 80, 7).payload(vec![7; payload]).gso(1400);
        let frame = build.frame(&mut pair.pool).expect("a buffer");
        pair.switches[0].rx(&mut pair.pool, pair.now, GUEST, frame);
        // Its segments leave one by one, or together.
        for _ in 0..1000 {
            pair.now = pair.now.plus_ns(10_000);
            while let Some((port, frame)) = pair.switches[0].tx(&mut pair.pool, pair.now) {
                let (bytes, meta) = (pair.pool.bytes(&frame), *pair.pool.meta(&frame));
                if is_hello(bytes) {
                    pair.pool.free(frame);
                    continue;
                }
                let layout = parse(bytes).expect("sound");
                assert_eq!((layout.l4, be16(bytes, 36)), (L4::Udp, vxlan::PORT));
                members[port.0 as usize - 2] += 1;
                *kinds.entry(meta.offload.gso).or_default() += 1;
                pair.switches[1].rx(&mut pair.pool, pair.now, port, frame);
            }
        }
        while let Some((_, frame)) = pair.switches[1].tx(&mut pair.pool, pair.now) {
            pair.received_bytes += pair.pool.len(&frame) as u64;
            pair.pool.free(frame);
        }
    }
    pair.clear();
    (members, kinds)
}

#[test]
fn a_hash_of_the_outer_ports_spreads_flows_and_frames_go_whole_where_all_members_take_them() {
    let rates = [100 * GBIT; 2];
    let mut program = tunnelled(Mode::BalanceXor, false, &rates, 0);
    program.uplink.as_mut().expect("it has one").bond.as_mut().expect("and is one").hash =
        crate::bond::HashPolicy::Layer34;
    (2..4).for_each(|port| program.ports[port].offload.tunnel = true);
    let (members, kinds) = sent(&program, 14_000, 64);
    assert!(members.iter().all(|&count| count > 16), "{members:?}");
    assert_eq!(kinds, [(Gso::Tcp4, 64)].into(), "whole");
    program.ports[3].offload.tunnel = false;
    assert_eq!(sent(&program, 14_000, 2).1, [(Gso::Udp, 2)].into(), "one member takes none whole");
    program.ports[2].offload.uso = false;
    assert_eq!(sent(&program, 14_000, 2).1, [(Gso::None, 20)].into(), "the other cuts no datagrams");
}

/// A number is before the tunnel's headers, so nothing goes whole.
#[test]
fn frames_that_may_have_numbers_go_together_and_not_whole() {
    let rates = [100 * GBIT; 2];
    let mut program = tunnelled(Mode::BalanceRr, true, &rates, 0);
    (2..4).for_each(|port| program.ports[port].offload.tunnel = true);
    assert_eq!(sent(&program, 14_000, 2).1, [(Gso::Udp, 2)].into());
}

/// Where members take frames of other lengths, the shortest says what fits into a tunnel.
#[test]
fn the_least_member_says_what_fits() {
    let mut program = tunnelled(Mode::ActiveBackup, false, &[GBIT; 2], 0);
    program.ports[3].max_frame = 1514;
    let switch = Switch::new(&program, 1).expect("sound");
    assert_eq!(switch.longest_out() as usize, 1514 - vxlan::OUTER_V4);
}

/// In `active-backup` what comes over another member is dropped, in a tunnel as outside, and
/// `explain` knows it.
#[test]
fn a_tunnel_over_an_inactive_member_is_closed() {
    let mut pair = pair(Mode::ActiveBackup, false, &[GBIT; 2], 1);
    for (side, switch) in pair.switches.iter_mut().enumerate() {
        switch.set_active_member(&mut pair.pool, pair.now, Some(MemberId(side as u8)));
    }
    let build = eth(mac(1), mac(2)).ipv4(ip(1), ip(2)).udp(1000, 2000).payload(vec![7; 100]);
    for active in [1, 0] {
        pair.switches[1].set_active_member(&mut pair.pool, pair.now, Some(MemberId(active)));
        let frame = build.frame(&mut pair.pool).expect("a buffer");
        pair.switches[0].rx(&mut pair.pool, pair.now, GUEST, frame);
        let (port, frame) = pair.switches[0].tx(&mut pair.pool, pair.now).expect("it leaves");
        assert_eq!(port, PortId(2));
        let told = pair.switches[1].explain(&pair.pool, pair.now, port, &frame);
        let verdict = pair.switches[1].rx(&mut pair.pool, pair.now, port, frame);
        assert_eq!(told.verdict, verdict, "{told}");
        let wanted = if active == 0 { Verdict::Forwarded } else { Verdict::Dropped(Reason::MemberInactive) };
        assert_eq!(verdict, wanted);
        let carried = pair.switches[1].members().next().expect("it is there").counts.traffic.ingress;
        assert_eq!((carried.segments, carried.wire_bytes > 100), (u64::from(active == 0), active == 0));
    }
    pair.clear();
}
