//! One end stands still for longer than the other remembers it, and then numbers on. Where it was a
//! guest that was paused, its clock has stood still too.

use super::changed::{Ends, OTHERS, end, taken_for_tags, with_others};
use super::*;
use crate::switch::State;

/// So long: more than the 8.5 s after which a member's other end counts as another.
const AWAY: u64 = 9_000 * MS;

/// Two bonds that number, of which side 1 has another tenant's network.
fn numbering() -> Pair {
    let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], 2).agreed();
    with_others(&mut pair);
    pair.send(1000, MS, 100 * MS);
    pair
}

/// Side 0 stands still from now on, for so long, and so does its clock.
fn pause(pair: &mut Pair, ns: u64) {
    (pair.stalls_until[0], pair.lags[0]) = (pair.now.plus_ns(ns), ns - 1);
}

/// Runs until just before side 0 goes on. What came for it meanwhile is lost.
fn run_to_the_end(pair: &mut Pair) {
    pair.run(pair.stalls_until[0].since(pair.now) - 1);
    let Pair { pool, wires, .. } = pair;
    for (_, frame) in wires[1].iter_mut().flat_map(|wire| wire.arriving.drain(..)) {
        pool.free(frame);
    }
}

/// Frames that side 1 dropped as it did not know what their numbers were.
fn refused(pair: &Pair) -> u64 {
    pair.switches[1].uplink_drops().get(Reason::BondControl)
}

/// Side 0 goes on without hearing or saying hello: it numbers, and nobody takes that for tags.
fn numbers_on(pair: &mut Pair, what: &str) {
    pair.loses_hellos = [true; 2];
    let before = refused(pair);
    pair.send(1000, 20_000, 40 * MS);
    assert_eq!(taken_for_tags(pair), (0, 0), "{what}");
    assert!(refused(pair) > before + 500, "{what}: {} came with numbers", refused(pair) - before);
}

/// A frame with a tag that looks like a number comes to side 1: what becomes of it.
fn tagged(pair: &mut Pair, member: u32, encoding: Encoding) -> Verdict {
    let number = number::Number { value: OTHERS - 1, is_shared: false };
    let frame = udp(9, 2).vlan(10).frame(&mut pair.pool).expect("a buffer");
    pair.pool.bytes_mut(&frame)[12..14].copy_from_slice(&encoding.ethertype().to_be_bytes());
    pair.pool.bytes_mut(&frame)[14..16].copy_from_slice(&number.tci().to_be_bytes());
    let port = PortId(member + 2);
    let told = pair.switches[1].explain(&pair.pool, pair.now, port, &frame);
    let verdict = pair.switches[1].rx(&mut pair.pool, pair.now, port, frame);
    assert_eq!(told.verdict, verdict, "{told}");
    verdict
}

const REFUSED: Verdict = Verdict::Dropped(Reason::BondControl);

/// It goes on numbering as if no time had passed. By its clock it gives up after 3.5 s, and both
/// number again when they hear of each other.
#[test]
fn who_was_paused_numbers_into_no_tenants_network() {
    let mut pair = numbering();
    pause(&mut pair, AWAY);
    run_to_the_end(&mut pair);
    numbers_on(&mut pair, "nothing is heard");
    pair.run(4_000 * MS);
    assert!(pair.plain(0).is_some() && pair.plain(1).is_some());
    let before = pair.lost();
    pair.send(1000, 20_000, 5 * MS);
    pair.run(20 * MS);
    assert_eq!((pair.lost(), taken_for_tags(&pair)), (before, (0, 0)), "frames are plain");
    pair.loses_hellos = [false; 2];
    pair.run(1_500 * MS);
    assert_eq!((pair.plain(0), pair.plain(1)), (None, None));
    pair.send(1000, 20_000, 5 * MS);
    pair.finish();
    assert_eq!(pair.lost(), before);
    pair.clear();
}

/// What the other end has said meanwhile, that it hears nobody, ends numbers before the first.
#[test]
fn who_hears_that_it_is_forgotten_numbers_no_more() {
    let mut pair = numbering();
    pause(&mut pair, AWAY);
    pair.run(AWAY - 1);
    // It says nothing that could be heard before its frames.
    pair.loses_hellos[0] = true;
    let lost = pair.lost();
    pair.send(1000, 20_000, 5 * MS);
    pair.run(20 * MS);
    assert_eq!((taken_for_tags(&pair), refused(&pair), pair.lost()), ((0, 0), 0, lost));
    assert_eq!(pair.plain(0), Some(Plain::NoPeer));
    pair.loses_hellos[0] = false;
    pair.run(1_500 * MS);
    assert_eq!((pair.plain(0), pair.plain(1)), (None, None));
    pair.clear();
}

/// The same where it is only stopped, and notices: that is too long to go on with numbers.
#[test]
fn who_was_stopped_for_ten_seconds_numbers_nothing_before_it_is_heard() {
    let mut pair = numbering();
    pair.stalls_until[0] = pair.now.plus_ns(10_000 * MS);
    run_to_the_end(&mut pair);
    pair.loses_hellos = [true; 2];
    let lost = pair.lost();
    pair.send(1000, 20_000, 40 * MS);
    pair.run(20 * MS);
    assert_eq!((taken_for_tags(&pair), refused(&pair), pair.lost()), ((0, 0), 0, lost));
    pair.clear();
}

/// Side 1 is changed meanwhile so that it numbers no more, and cannot tell.
#[test]
fn who_was_paused_while_the_other_end_was_changed_numbers_into_no_tenants_network() {
    for ends in [Ends::OrderOff, Ends::OtherMode, Ends::OnePort, Ends::Keyed] {
        let mut pair = numbering();
        pause(&mut pair, AWAY);
        end(&mut pair, ends);
        run_to_the_end(&mut pair);
        numbers_on(&mut pair, &format!("{ends:?}"));
        pair.clear();
    }
}

/// Another process goes on at side 1 meanwhile, before and after it has forgotten side 0; with
/// numbers and without, and where the one before was an older build.
#[test]
fn who_was_paused_while_the_other_end_was_taken_over_numbers_into_no_tenants_network() {
    for (after_ms, order, is_old) in [(1_000, true, false), (6_000, true, false), (1_000, true, true)]
        .into_iter()
        .flat_map(|(ms, order, is_old)| [(ms, order, is_old), (ms, !order, is_old)])
    {
        let mut pair = numbering();
        pause(&mut pair, AWAY);
        pair.run(after_ms * MS);
        let now = pair.now;
        pair.switches[1].set_leaving(&mut pair.pool, now, true);
        let (state, mut program) = (pair.switches[1].export(now), pair.switches[1].program().clone());
        let state = if is_old { State { numbers: None, ..state } } else { state };
        pair.switches[1].clear(&mut pair.pool);
        program.uplink.as_mut().and_then(|uplink| uplink.bond.as_mut()).expect("a bond").order = order;
        pair.switches[1] = Switch::new(&program, 99).expect("sound");
        pair.switches[1].import(now, 0, &state).expect("the own version");
        (0..2).for_each(|member| pair.set(1, member, MemberState::Distributing));
        run_to_the_end(&mut pair);
        numbers_on(&mut pair, &format!("after {after_ms} ms, order {order}, old {is_old}"));
        pair.clear();
    }
}

/// Only when the links over which it was heard were down may another be there: then a tag is one.
#[test]
fn tags_are_tags_again_after_the_links_were_down() {
    let mut pair = numbering();
    pair.stalls_until[0] = Instant(u64::MAX);
    pair.run(AWAY);
    for member in 0..2 {
        assert_eq!([0, 1].map(|member| tagged(&mut pair, member, Encoding::Tag)), [REFUSED; 2]);
        pair.set(1, member, MemberState::Standby);
        pair.set(1, member, MemberState::Distributing);
        assert_eq!(tagged(&mut pair, 0, Encoding::Tag), REFUSED, "by hand is no other cable");
        pair.set(1, member, MemberState::Down);
        pair.set(1, member, MemberState::Distributing);
        pair.run(600 * MS);
    }
    assert!([0, 1].map(|member| tagged(&mut pair, member, Encoding::Tag)).iter().all(|&verdict| verdict != REFUSED));
    pair.clear();
}

/// Over bridges links never go down. What comes there is no doubt a number, and a tag is none; so
/// it is for who has just begun.
#[test]
fn over_bridges_a_shim_is_always_a_number_and_a_tag_is_none() {
    for begins_anew in [false, true] {
        let attachment = Attachment::Vlan(10);
        let mut pair = switched::pair(Mode::BalanceRr, attachment, 1522).agreed();
        with_others(&mut pair);
        pair.send(1000, MS, 100 * MS);
        // Until then what looks like a number is dropped, as nobody knows what is there.
        pause(&mut pair, AWAY + 3_000 * MS);
        if begins_anew {
            let program = pair.switches[1].program().clone();
            pair.switches[1].clear(&mut pair.pool);
            pair.switches[1] = Switch::new(&program, 99).expect("sound");
            (0..2).for_each(|member| pair.set(1, member, MemberState::Distributing));
        }
        run_to_the_end(&mut pair);
        pair.loses_hellos = [true; 2];
        let verdicts = [Encoding::Shim, Encoding::Tag].map(|encoding| tagged(&mut pair, 0, encoding) == REFUSED);
        assert_eq!(verdicts, [true, false], "begins anew: {begins_anew}");
        pair.run(MS);
        let (others, before) = (taken_for_tags(&pair), refused(&pair));
        pair.send(1000, 20_000, 40 * MS);
        assert_eq!(taken_for_tags(&pair), others, "begins anew: {begins_anew}");
        assert!(refused(&pair) > before + 500);
        pair.clear();
    }
}
