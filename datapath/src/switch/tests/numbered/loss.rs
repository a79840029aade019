//! What each cable loses is counted where it was to arrive, frame by frame.

use super::*;

/// What side 1 has counted as lost, by member.
fn counted(pair: &Pair) -> Vec<u64> {
    pair.switches[1].members().map(|view| view.counts.lost).collect()
}

/// What the cables to side 1 have lost.
fn dropped(pair: &Pair) -> Vec<u64> {
    pair.wires[0].iter().map(|wire| wire.lost).collect()
}

/// Frames pass while the third of four cables loses some, and then until each member has said how
/// many it has sent.
fn lose(pair: &mut Pair) {
    pair.wires[0][2].loses_one_of = 50;
    pair.send(1000, 10_000, 50 * MS);
    pair.wires[0][2].loses_one_of = 0;
    pair.run(1_500 * MS);
}

#[test]
fn what_a_cable_loses_is_counted_at_its_member() {
    for (mode, seed) in [(Mode::BalanceRr, 5), (Mode::BalanceRr, 6), (Mode::Broadcast, 7)] {
        let mut pair = Pair::new(mode, &[GBIT; 4], seed).agreed();
        pair.wires[0][1].delay_ns = 300_000;
        lose(&mut pair);
        assert_eq!(counted(&pair), dropped(&pair), "{mode:?}");
        assert!(dropped(&pair)[2] > 5, "{mode:?}: {:?}", dropped(&pair));
        // One that falls silent: what it had carried comes again by the others, and was lost there.
        pair.wires[0][3].is_dead = true;
        pair.send(1000, 10_000, 30 * MS);
        pair.wires[0][3].is_dead = false;
        pair.run(1_500 * MS);
        pair.send(1000, 10_000, 5 * MS);
        pair.run(1_500 * MS);
        assert_eq!(counted(&pair), dropped(&pair), "{mode:?}: silent");
        assert!(dropped(&pair)[3] > 5, "{mode:?}: {:?}", dropped(&pair));
        pair.clear();
    }
}

/// A cable that flaps, either end that begins anew, and a takeover of either: it is counted from
/// then on, and nothing that was not lost.
#[test]
fn whatever_begins_anew_is_counted_anew() {
    let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 4], 8).agreed();
    lose(&mut pair);
    pair.send(1000, 10_000, 2 * MS);
    pair.flap(1);
    pair.send(1000, 10_000, 20 * MS);
    pair.run(1_500 * MS);
    assert_eq!(counted(&pair), dropped(&pair), "a cable flaps");
    for (side, is_takeover) in [(0, true), (1, true), (0, false), (1, false)] {
        let before = dropped(&pair);
        let known = counted(&pair);
        let now = pair.now;
        pair.switches[side].set_leaving(&mut pair.pool, now, is_takeover);
        pair.work();
        let state = pair.switches[side].export(now);
        pair.switches[side].clear(&mut pair.pool);
        let program = program(Mode::BalanceRr, true, &[GBIT; 4], 1518, side as u8 + 1);
        pair.switches[side] = Switch::new(&program, 99 + side as u64).expect("sound");
        if is_takeover {
            pair.switches[side].import(now, 0, &state).expect("the own version");
        }
        (0..4).for_each(|member| pair.set(side, member, MemberState::Distributing));
        pair.run(1_500 * MS);
        lose(&mut pair);
        // A switch that begins has counted nothing yet.
        let known = if side == 0 { known } else { vec![0; 4] };
        let more =
            |now: Vec<u64>, before: &[u64]| now.iter().zip(before).map(|(now, was)| now - was).collect::<Vec<_>>();
        let what = format!("side {side}, takeover {is_takeover}");
        assert_eq!(more(counted(&pair), &known), more(dropped(&pair), &before), "{what}");
        assert!(dropped(&pair)[2] > before[2] + 5, "{what}");
    }
    pair.clear();
}
