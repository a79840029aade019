//! Members come and go at one end, while the other end's cables stay as they are.

use super::*;

/// Members of one side by their cables, each up.
fn set_members(pair: &mut Pair, side: usize, cables: &[u32]) {
    let all =
        program(Mode::BalanceRr, true, &vec![GBIT; pair.members], 1518, side as u8 + 1).uplink.expect("it is one");
    let members = cables.iter().map(|&cable| all.members[cable as usize]).collect();
    let change = Change::Uplink(Some(Uplink { members, ..all }));
    pair.switches[side].change(&mut pair.pool, pair.now, change).expect("it fits");
    (0..cables.len()).for_each(|member| pair.set(side, member, MemberState::Distributing));
}

/// Whichever end takes its first member away, the other's link stays up, and learns it from the
/// hellos: nothing is sent where nobody receives.
#[test]
fn a_member_that_is_taken_away_at_one_end_is_sent_nothing_by_the_other() {
    for side in 0..2 {
        for cables in [&[1u32, 2][..], &[0, 2], &[2], &[2, 1], &[2, 0]] {
            let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 3], 3).agreed();
            pair.send(1000, 20_000, 5 * MS);
            set_members(&mut pair, side, cables);
            pair.send(1000, 20_000, 40 * MS);
            pair.finish();
            let before = pair.lost();
            pair.send(1000, 100_000, 4_000 * MS);
            pair.finish();
            assert_eq!(pair.lost() - before, 0, "side {side}, {cables:?}");
            pair.clear();
        }
    }
}

/// The same while frames pass: what was on the way is sent again, and in order.
#[test]
fn members_that_come_and_go_leave_order_and_lose_nothing() {
    for side in 0..2 {
        for steps in [[&[1u32, 2][..], &[0, 1, 2]], [&[2, 1], &[1, 2]], [&[2], &[0, 2]], [&[2, 1, 0], &[0, 1, 2]]] {
            let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 3], 3).agreed();
            pair.wires[0][1].delay_ns = 300_000;
            pair.send(1000, 10_000, 5 * MS);
            for cables in steps {
                set_members(&mut pair, side, cables);
                pair.send(1000, 10_000, 700 * MS);
            }
            pair.finish();
            let disorder = pair.received.windows(2).filter(|two| two[1] < two[0]).count();
            let twice = pair.received.len() as u64 + pair.lost() - pair.sent;
            println!("side {side}, {steps:?}: lost {}, disorder {disorder}, twice {twice}", pair.lost());
            assert_eq!((pair.lost(), disorder, twice), (0, 0, 0), "side {side}, {steps:?}");
            pair.clear();
        }
    }
}
