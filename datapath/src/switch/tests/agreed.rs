//! Two switches whose uplinks are bonds of `802.3ad` with cables between them.

use super::numbered::{Pair, program};
use super::*;
use crate::bond::lacp::{Churn, Mux};
use crate::bond::{BondSettings, MemberState, Mode};
use crate::program::Change;
use MemberState::{Distributing, Down, Standby};

const MS: u64 = 1_000_000;
const GBIT: u64 = Rate::GBIT;

fn pair() -> Pair {
    Pair::new(Mode::Lacp, &[GBIT; 2], 1)
}

fn states(pair: &Pair, side: usize) -> Vec<MemberState> {
    pair.switches[side].members().map(|view| view.state).collect()
}

fn rate(pair: &Pair) -> u64 {
    pair.switches[0].uplink_rate().expect("an uplink").egress.0
}

fn uplink(mode: Mode) -> Uplink {
    program(mode, true, &[GBIT; 2], 1518, 1).uplink.expect("one")
}

fn change(pair: &mut Pair, side: usize, uplink: Uplink) {
    let change = Change::Uplink(Some(uplink));
    pair.switches[side].change(&mut pair.pool, pair.now, change).expect("sound");
}

#[test]
fn frames_pass_once_both_ends_agree_and_none_before() {
    let mut pair = pair();
    pair.send(1000, 100 * MS, 1900 * MS);
    assert_eq!(pair.received.len(), 0, "both are waiting");
    assert_eq!((states(&pair, 0), states(&pair, 1)), (vec![Standby; 2], vec![Standby; 2]));
    pair.run(1600 * MS);
    assert_eq!((states(&pair, 0), states(&pair, 1)), (vec![Distributing; 2], vec![Distributing; 2]));
    let before = pair.received.len();
    assert_eq!(before, 0, "what was dropped comes no more");
    pair.send(1000, MS, 100 * MS);
    pair.finish();
    assert_eq!(pair.received.len(), 100);
    let view = pair.switches[0].lacp().next().expect("two");
    assert_eq!((view.mux, view.actor_churn, view.is_loop), (Mux::Distributing, Churn::None, false));
    assert!(view.counts.sent > 0 && view.counts.received > 0 && view.counts.bad == 0);
    pair.clear();
}

#[test]
fn the_rate_follows_the_members_that_carry_frames() {
    let mut pair = pair();
    pair.run(4000 * MS);
    assert_eq!(rate(&pair), 2 * GBIT);
    pair.set(0, 1, Down);
    assert_eq!(rate(&pair), GBIT);
    pair.run(100 * MS);
    assert_eq!(states(&pair, 0), [Distributing, Down]);
    pair.send(1000, MS, 50 * MS);
    pair.finish();
    assert_eq!(pair.lost(), 0);
    pair.set(0, 1, Distributing);
    assert_eq!(rate(&pair), GBIT, "its link is up, and nothing is agreed yet");
    pair.set(0, 0, Down);
    let carried = pair.switches[0].carried_rate().map(|rate| (rate.egress, rate.ingress));
    assert_eq!((carried, rate(&pair)), (Some((Rate(0), Rate(0))), 2 * GBIT), "nobody sends, and no frame waits");
    pair.set(0, 0, Distributing);
    pair.run(4000 * MS);
    assert_eq!(rate(&pair), 2 * GBIT);
    pair.clear();
}

#[test]
fn a_silent_member_is_given_up_at_both_ends() {
    let mut pair = pair();
    pair.run(5000 * MS);
    (pair.wires[0][1].is_dead, pair.wires[1][1].is_dead) = (true, true);
    pair.run(3200 * MS);
    assert_eq!((states(&pair, 0), states(&pair, 1)), (vec![Distributing, Standby], vec![Distributing, Standby]));
    pair.send(1000, MS, 50 * MS);
    pair.finish();
    assert_eq!(pair.lost(), 0, "frames leave by the other");
    (pair.wires[0][1].is_dead, pair.wires[1][1].is_dead) = (false, false);
    pair.run(5000 * MS);
    assert_eq!(states(&pair, 0), [Distributing; 2]);
    pair.clear();
}

/// One direction is dead: who hears nothing says so, and neither sends there.
#[test]
fn a_member_that_is_dead_in_one_direction_is_used_in_neither() {
    let mut pair = pair();
    pair.run(5000 * MS);
    pair.wires[0][1].is_dead = true;
    pair.run(3300 * MS);
    assert_eq!((states(&pair, 0), states(&pair, 1)), (vec![Distributing, Standby], vec![Distributing, Standby]));
    pair.clear();
}

#[test]
fn a_frame_over_a_member_that_is_not_agreed_is_dropped() {
    let mut pair = pair();
    pair.run(100 * MS);
    let frame = eth(mac(2), mac(1)).ipv4(ip(2), ip(1)).udp(1, 2).payload(vec![0; 20]).vlan(10);
    let frame = frame.frame(&mut pair.pool).expect("a buffer");
    let foretold = pair.switches[0].explain(&pair.pool, pair.now, PortId(2), &frame).verdict;
    let verdict = pair.switches[0].rx(&mut pair.pool, pair.now, PortId(2), frame);
    assert_eq!(foretold, verdict);
    assert_eq!(verdict, Verdict::Dropped(Reason::MemberInactive));
    pair.clear();
}

/// From a mode without agreement to this one and back, with links that stay up.
#[test]
fn the_mode_changes_under_frames() {
    let mut pair = Pair::new(Mode::BalanceXor, &[GBIT; 2], 1);
    assert_eq!(states(&pair, 0), [Distributing; 2]);
    change(&mut pair, 0, uplink(Mode::Lacp));
    assert_eq!(states(&pair, 0), [Standby; 2]);
    change(&mut pair, 1, program(Mode::Lacp, true, &[GBIT; 2], 1518, 2).uplink.expect("one"));
    pair.run(4000 * MS);
    assert_eq!((states(&pair, 0), states(&pair, 1)), (vec![Distributing; 2], vec![Distributing; 2]));
    // What the operator changes of the protocol stays agreed where it concerns nobody else.
    let mut slow = uplink(Mode::Lacp);
    let lacp = slow.bond.map(|bond| crate::bond::lacp::LacpSettings { is_fast: false, ..bond.lacp });
    slow.bond = slow.bond.zip(lacp).map(|(bond, lacp)| BondSettings { lacp, ..bond });
    change(&mut pair, 0, slow);
    assert_eq!(states(&pair, 0), [Distributing; 2]);
    pair.run(MS);
    change(&mut pair, 0, uplink(Mode::BalanceXor));
    assert_eq!(states(&pair, 0), [Distributing; 2]);
    assert_eq!(pair.switches[0].lacp().count(), 0);
    pair.clear();
}

#[test]
fn what_is_agreed_is_handed_over() {
    let mut pair = pair();
    pair.run(4000 * MS);
    pair.switches[0].set_leaving(&mut pair.pool, pair.now, true);
    let state = pair.switches[0].export(pair.now);
    assert_eq!(state.lacp.len(), 2);
    let mut next = Switch::new(&program(Mode::Lacp, true, &[GBIT; 2], 1518, 1), 9).expect("sound");
    assert_eq!(next.import(pair.now, 0, &state).expect("its version").ignored, 0);
    let mut old = std::mem::replace(&mut pair.switches[0], next);
    old.clear(&mut pair.pool);
    (0..2).for_each(|member| pair.set(0, member, Distributing));
    assert_eq!(states(&pair, 0), [Distributing; 2]);
    for _ in 0..100 {
        pair.run(50 * MS);
        assert_eq!((states(&pair, 0), states(&pair, 1)), (vec![Distributing; 2], vec![Distributing; 2]));
    }
    // A bond of another mode has no use for it.
    let mut other = Switch::new(&program(Mode::BalanceXor, true, &[GBIT; 2], 1518, 1), 9).expect("sound");
    assert_eq!(other.import(pair.now, 0, &state).expect("its version").ignored, 1);
    pair.clear();
}

/// One end after the other goes on in a mode that numbers: its members waited for an agreement in
/// between, and then the other end may send to each of them.
#[test]
fn from_agreed_members_to_numbers_one_end_after_the_other() {
    for mode in [Mode::BalanceRr, Mode::Broadcast] {
        let mut pair = pair();
        pair.run(4000 * MS);
        for (side, ms) in [(0, 8000), (1, 2000)] {
            let uplink = program(mode, true, &[GBIT; 2], 1518, side as u8 + 1).uplink;
            change(&mut pair, side, uplink.expect("one"));
            pair.run(ms * MS);
        }
        for switch in &pair.switches {
            let peer = switch.bond_peer().expect("it is asked for");
            assert_eq!((peer.plain, &peer.members[..2]), (None, &[(true, true, true); 2][..]), "{mode:?}");
        }
        pair.clear();
    }
}
