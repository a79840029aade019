//! Members come and go at one end, while the other end's cables stay as they are.

use super::*;

/// Members of one side by their cables, each up. The side numbers them anew.
fn set_members(pair: &mut Pair, side: usize, cables: &[u32]) {
    let rates = vec![GBIT; pair.members];
    let all = program(Mode::BalanceRr, true, &rates, 1518, side as u8 + 1).uplink.expect("it is one");
    let members = cables.iter().map(|&cable| all.members[cable as usize]).collect();
    let change = Change::Uplink(Some(Uplink { members, ..all }));
    pair.switches[side].change(&mut pair.pool, pair.now, change).expect("it fits");
    (0..cables.len()).for_each(|member| pair.set(side, member, MemberState::Distributing));
}

/// The other end learns by the first hello which members are left: it sends nothing to the others,
/// though their links are up, and sends again what was on the way.
#[test]
fn members_that_come_and_go_at_either_end_lose_nothing() {
    for side in 0..2 {
        for steps in [
            [&[1u32, 2][..], &[0, 1, 2]],
            [&[0, 2], &[0, 1, 2]],
            [&[2, 1], &[1, 2]],
            [&[2], &[0, 2]],
            [&[2, 1, 0], &[0, 1, 2]],
        ] {
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
            assert_eq!((pair.lost(), twice), (0, 0), "side {side}, {steps:?}");
            // What waits for a member that has another number by then may go on too soon.
            assert!(disorder <= 1, "side {side}, {steps:?}: {disorder}");
            pair.clear();
        }
    }
}
