//! Cables that lead back to their own bond, or to two hosts.

use super::*;

impl Pair {
    /// Members that are said to lead back, and that frames leave out.
    fn looped(&self, side: usize) -> (u16, u16) {
        (self.switches[side].looped_members(), self.switches[side].left_out_members())
    }

    /// Frames that the members of a side have sent, and that have come over them.
    fn carried(&self, side: usize) -> (u64, u64) {
        let counts = self.switches[side].members().map(|view| view.counts.traffic);
        let both = counts.map(|traffic| (traffic.egress.segments, traffic.ingress.segments));
        both.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// These cables of the first side lead to these members of its own.
    fn lead_back(&mut self, cables: &[(usize, usize)]) {
        for &(cable, to) in cables {
            self.leads[0][cable] = (0, to);
            self.wires[1][cable].is_dead = true;
        }
    }

    fn put_right(&mut self, cables: &[(usize, usize)]) {
        for &(cable, _) in cables {
            self.leads[0][cable] = (1, cable);
            self.wires[1][cable].is_dead = false;
        }
    }
}

/// Two members of one bond at the two ends of one cable, or each at a plug that leads back: that is
/// said, and frames go on without numbers, since a switch that passes hellos on looks the same.
/// Nothing that comes back gets in. Once the cables are put right there are numbers, also where no
/// link was down.
#[test]
fn a_bond_that_is_all_loop_says_so() {
    for (mode, key) in
        [Mode::BalanceRr, Mode::Broadcast].into_iter().flat_map(|mode| [None, Some(SECRET)].map(|key| (mode, key)))
    {
        for cables in [[(0, 1), (1, 0)], [(0, 0), (1, 1)]] {
            for has_flapped in [true, false] {
                let what = format!("{mode:?}, keyed {}, {cables:?}, flap {has_flapped}", key.is_some());
                let mut pair = match key {
                    Some(key) => with_secrets_in(mode, [Some(key); 2]),
                    None => Pair::new(mode, &[GBIT; 2], 1),
                };
                pair.lead_back(&cables);
                pair.run(5 * MS);
                for _ in 0..50 {
                    assert_eq!((pair.plain(0), pair.looped(0)), (Some(Plain::Looped), (0b11, 0)), "{what}");
                    pair.send(1000, MS, 100 * MS);
                }
                let drops = pair.switches[0].endpoint_stats(EndpointId(0)).drops;
                assert_eq!(drops.nonzero().count(), 0, "{what}");
                assert!(pair.carried(0).0 >= 5000, "{what}");
                assert_eq!(
                    (pair.switches[0].endpoint_stats(EndpointId(0)).ingress.traffic.frames, pair.refused(0)),
                    (0, 0),
                    "{what}"
                );
                let said = pair.seen.iter().filter(|(side, ..)| *side == 0).count();
                assert!(said < 200, "{what}: {said} hellos in five seconds");

                pair.put_right(&cables);
                if has_flapped {
                    (0..2).for_each(|member| pair.flap(member));
                }
                pair.run(if has_flapped { 20 * MS } else { 2000 * MS });
                assert_eq!((pair.plain(0), pair.plain(1), pair.looped(0)), (None, None, (0, 0)), "{what}");
                (pair.sent, pair.received) = (0, Vec::new());
                pair.send(1000, 20_000, 20 * MS);
                assert!(pair.finish().is_sorted(), "{what}");
                assert_eq!((pair.lost(), pair.received.len() as u64), (0, pair.sent), "{what}");
                pair.clear();
            }
        }
    }
}

/// The cable between two members that lead back is dead in one direction.
#[test]
fn a_loop_in_one_direction_is_noticed() {
    let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], 1);
    pair.lead_back(&[(0, 1), (1, 0)]);
    pair.wires[0][1].is_dead = true;
    pair.run(5 * MS);
    assert_eq!((pair.plain(0), pair.looped(0)), (Some(Plain::Looped), (0b11, 0)));
    pair.clear();
}

/// Two of four members lead back: the others go on with numbers, and nothing is lost, also while
/// this end stands still.
#[test]
fn members_that_lead_back_leave_the_others_their_numbers() {
    for mode in [Mode::BalanceRr, Mode::Broadcast] {
        let mut pair = Pair::new(mode, &[GBIT; 4], 4);
        pair.lead_back(&[(0, 3), (3, 0)]);
        let mut pair = pair.agreed();
        for _ in 0..20 {
            assert_eq!(pair.looped(0), (0b1001, 0b1001), "{mode:?}");
            pair.send(1000, 20_000, 200 * MS);
        }
        assert!(!pair.was_plain && pair.finish().is_sorted(), "{mode:?}");
        assert_eq!((pair.lost(), pair.received.len() as u64), (0, pair.sent), "{mode:?}");
        pair.stalls_until[0] = pair.now.plus_ns(3_200 * MS);
        pair.run(3_200 * MS);
        for _ in 0..20 {
            assert_eq!(pair.looped(0), (0b1001, 0b1001), "{mode:?}");
            pair.run(100_000);
        }
        pair.clear();
    }
}

/// Each member leads to another host, and both answer: frames stay plain, over both, and that is
/// said all the time and not by turns. Once the second cable is out there are numbers.
#[test]
fn a_bond_between_two_hosts_says_so() {
    let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], 6);
    (pair.wires[0][1].is_dead, pair.wires[1][1].is_dead) = (true, true);
    let mut count = 0;
    for round in 0..800 {
        let heard = pair.seen.iter().rfind(|(side, member, _)| (*side, *member) == (0, 1));
        let heard = heard.and_then(|(.., bytes)| Hello::read(bytes, None)).map_or(0, |(hello, _)| hello.epoch);
        // As a bond does: it answers, and says hello each second.
        if round < 300 || round % 100 == 0 {
            count += 1;
            let hello = Hello { epoch: 0x77, heard, count, member: 1, receives: 0b10, ..Hello::default() };
            pair.inject(0, 1, &hello.bytes());
        }
        pair.send(1000, MS, 10 * MS);
        if round >= 100 {
            assert_eq!((pair.plain(0), pair.looped(0)), (Some(Plain::Miswired), (0, 0)), "round {round}");
        }
    }
    pair.set(0, 1, MemberState::Down);
    pair.run(3_500 * MS);
    assert_eq!((pair.plain(0), pair.plain(1)), (None, None));
    pair.clear();
}

/// Members that lead to one network, and back, over bridges: that is said, and frames leave all the
/// same, as others may be there.
#[test]
fn over_bridges_a_loop_is_said() {
    let mut pair = switched::pair(Mode::BalanceRr, Attachment::Untagged, 1518);
    pair.lead_back(&[(0, 1), (1, 0)]);
    pair.run(5 * MS);
    assert_eq!((pair.plain(0), pair.looped(0)), (Some(Plain::Looped), (0b11, 0)));
    pair.send(1000, 20_000, 5 * MS);
    assert!(pair.carried(0).0 >= 250);
    pair.clear();
}
