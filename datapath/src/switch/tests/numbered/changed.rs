//! Members come and go at one end, while the other end's cables stay as they are.

use super::*;

/// A side whose members are these cables.
fn with_members(pair: &Pair, side: usize, cables: &[u32]) -> Program {
    let rates = vec![GBIT; pair.members];
    let mut program = program(Mode::BalanceRr, true, &rates, 1518, side as u8 + 1);
    let uplink = program.uplink.as_mut().expect("it is one");
    uplink.members = cables.iter().map(|&cable| uplink.members[cable as usize]).collect();
    program
}

/// Members of one side by their cables, each up.
fn set_members(pair: &mut Pair, side: usize, cables: &[u32]) {
    let change = Change::Uplink(with_members(pair, side, cables).uplink);
    pair.switches[side].change(&mut pair.pool, pair.now, change).expect("it fits");
    (0..cables.len()).for_each(|member| pair.set(side, member, MemberState::Distributing));
}

/// Whichever end takes members away, the other's links stay up, and it learns that from the hellos:
/// nothing is sent where nobody receives.
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
            assert_eq!((pair.lost(), disorder, twice), (0, 0, 0), "side {side}, {steps:?}");
            pair.clear();
        }
    }
}

/// A member that one end puts on standby, and back: the other end sends nothing there, and both
/// still know of each other, so that it is used again at once. Nothing is lost.
#[test]
fn a_member_on_standby_is_sent_nothing_and_comes_back_at_once() {
    for side in 0..2 {
        let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], 2).agreed();
        pair.wires[0][1].delay_ns = 300_000;
        let sent = |pair: &Pair| {
            let of = |switch: &Switch| switch.members().nth(1).expect("two members").counts.traffic.egress.segments;
            [of(&pair.switches[0]), of(&pair.switches[1])]
        };
        for _ in 0..3 {
            pair.send(1000, 10_000, 20 * MS);
            pair.set(side, 1, MemberState::Standby);
            pair.send(1000, 10_000, 5 * MS);
            let before = sent(&pair);
            pair.send(1000, 100_000, 5_000 * MS);
            assert_eq!(sent(&pair), before, "side {side}");
            let known = pair.switches.each_ref().map(|switch| switch.bond_peer().expect("a peer").members[1].0);
            assert_eq!(known, [true; 2], "side {side}");
            pair.set(side, 1, MemberState::Distributing);
            pair.send(1000, 10_000, 20 * MS);
            assert!(sent(&pair)[0] > before[0], "side {side}: it is used again");
        }
        pair.finish();
        let disorder = pair.received.windows(2).filter(|two| two[1] < two[0]).count();
        let twice = pair.received.len() as u64 + pair.lost() - pair.sent;
        assert_eq!((pair.lost(), disorder, twice), (0, 0, 0), "side {side}");
        pair.clear();
    }
}

/// A cable behind which nobody answers, though its link is up: at the start, and one that comes
/// later. It is left out, in whichever direction nothing comes; nothing is lost, and frames have
/// numbers all the time. Once there is an answer it is used.
#[test]
fn a_member_whose_other_end_does_not_answer_is_left_out() {
    for mode in [Mode::BalanceRr, Mode::Broadcast] {
        for (dead, is_late) in
            [[true, true], [true, false], [false, true]].into_iter().flat_map(|d| [(d, false), (d, true)])
        {
            let what = format!("{mode:?}, dead {dead:?}, late {is_late}");
            let mut pair = Pair::new(mode, &[GBIT; 3], 5);
            (pair.wires[0][2].is_dead, pair.wires[1][2].is_dead) = (dead[0], dead[1]);
            if is_late {
                (0..2).for_each(|side| pair.set(side, 2, MemberState::Down));
            }
            let mut pair = pair.agreed();
            (0..2).for_each(|side| pair.set(side, 2, MemberState::Distributing));
            pair.send(1000, 20_000, 1_000 * MS);
            pair.finish();
            assert_eq!((pair.lost(), pair.received.len() as u64), (0, pair.sent), "{what}");
            assert!(pair.received.is_sorted() && !pair.was_plain, "{what}");
            let left_out = pair.switches.each_ref().map(|switch| switch.left_out_members());
            // Who receives hellos there knows of the peer, and who receives none leaves it out.
            assert_eq!(left_out, [u16::from(dead[1]) << 2, u16::from(dead[0]) << 2], "{what}");

            (pair.wires[0][2].is_dead, pair.wires[1][2].is_dead) = (false, false);
            pair.run(1_500 * MS);
            assert_eq!(pair.switches.each_ref().map(|switch| switch.left_out_members()), [0; 2], "{what}");
            let sent = |pair: &Pair| pair.switches[0].members().nth(2).map(|view| view.counts.traffic.egress.segments);
            let before = sent(&pair);
            pair.send(1000, 20_000, 20 * MS);
            assert!(sent(&pair) > before, "{what}: it is used");
            pair.finish();
            assert_eq!((pair.lost(), pair.received.len() as u64), (0, pair.sent), "{what}");
            assert!(pair.received.is_sorted() && !pair.was_plain, "{what}");
            pair.clear();
        }
    }
}

/// While the other end begins anew, and says another secret, frames are plain: not over the cable
/// that nobody answers, which the other end has no member for.
#[test]
fn a_member_that_is_left_out_is_left_out_of_plain_frames_too() {
    let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 3], 6);
    set_members(&mut pair, 1, &[0, 1]);
    let mut pair = pair.agreed();
    pair.run(600 * MS);
    let sent = |pair: &Pair| pair.switches[0].members().nth(2).map(|view| view.counts.traffic.egress.segments);
    let (left_out, before) = (|pair: &Pair| pair.switches[0].left_out_members(), sent(&pair));
    assert_eq!(left_out(&pair), 1 << 2);
    for secret in [None, Some(HelloKey([1; 16]))] {
        pair.switches[1].clear(&mut pair.pool);
        let mut program = with_members(&pair, 1, &[0, 1]);
        if let Some(bond) = program.uplink.as_mut().and_then(|uplink| uplink.bond.as_mut()) {
            bond.is_keyed = secret.is_some();
        }
        pair.switches[1] = Switch::new(&program, 99).expect("sound");
        let now = pair.now;
        pair.switches[1].set_bond_key(&mut pair.pool, now, secret);
        (0..2).for_each(|member| pair.set(1, member, MemberState::Distributing));
        // With a secret of its own it is a peer no more, which is noticed after some seconds.
        for _ in 0..20 {
            pair.send(1000, 20_000, 100 * MS);
            assert_eq!((left_out(&pair), sent(&pair)), (1 << 2, before), "{:?}", pair.plain(0));
        }
    }
    pair.run(4_000 * MS);
    assert!(pair.plain(0).is_some() && left_out(&pair) == 0, "nobody is known any more");
    pair.clear();
}

/// A member that takes shorter frames than all others, and that nobody answers, is no reason to do
/// without numbers.
#[test]
fn a_member_that_is_left_out_may_have_less_room() {
    let programs = [0, 1].map(|side| {
        let mut program = program(Mode::BalanceRr, true, &[GBIT; 3], 1518, side + 1);
        program.ports[4].max_frame = 1514;
        program
    });
    let mut pair = Pair::with(programs, &[GBIT; 3], 8);
    for wires in &mut pair.wires {
        wires[2].is_dead = true;
    }
    let mut pair = pair.agreed();
    pair.send(1472, 20_000, 1_000 * MS);
    pair.finish();
    assert_eq!((pair.plain(0), pair.plain(1), pair.lost()), (None, None, 0));
    for wires in &mut pair.wires {
        wires[2].is_dead = false;
    }
    pair.run(1_500 * MS);
    assert_eq!((pair.plain(0), pair.plain(1)), (Some(Plain::TooLong), Some(Plain::TooLong)), "it is used");
    pair.clear();
}

/// Another process goes on with members whose numbers are not their places, and gets the third
/// back.
#[test]
fn a_takeover_keeps_the_numbers_of_members() {
    for side in 0..2 {
        let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 3], 4).agreed();
        set_members(&mut pair, side, &[1, 2]);
        pair.send(1000, 20_000, 40 * MS);
        pair.finish();
        let now = pair.now;
        pair.switches[side].set_leaving(&mut pair.pool, now, true);
        pair.work();
        let state = pair.switches[side].export(now);
        pair.switches[side].clear(&mut pair.pool);
        let mut next = Switch::new(&with_members(&pair, side, &[1, 2]), 99).expect("sound");
        assert_eq!(next.import(now, 0, &state).map(|imported| imported.ignored), Ok(0));
        pair.switches[side] = next;
        (0..2).for_each(|member| pair.set(side, member, MemberState::Distributing));
        pair.send(1000, 20_000, 40 * MS);
        let after = pair.switches[side].export(pair.now);
        for state in [&state, &after] {
            let members = &state.bond.as_ref().expect("they agreed").members;
            let numbers: Vec<_> = members.iter().map(|(_, line)| line.own).collect();
            assert_eq!(numbers, [Some(1), Some(2)], "side {side}");
        }
        set_members(&mut pair, side, &[0, 1, 2]);
        pair.send(1000, 20_000, 700 * MS);
        pair.finish();
        assert_eq!((pair.lost(), pair.received.len() as u64), (0, pair.sent), "side {side}");
        pair.clear();
    }
}

/// VLAN of the second tenant; a number that is passed while frames are sent would be its tag.
pub(super) const OTHERS: u16 = 800;

/// Side 1 has a second tenant, whose endpoint gets what is for nobody known.
pub(super) fn with_others(pair: &mut Pair) {
    let port = PortId(pair.members as u32 + 2);
    let tenant = Tenant { attachment: Attachment::Vlan(OTHERS), ..Tenant::default() };
    let one = Endpoint { max_learned: 4, ..Endpoint::new(TenantId(1), port) };
    for change in [
        Change::Port(port, Some(PortFeatures::default())),
        Change::Tenant(TenantId(1), Some(tenant)),
        Change::Endpoint(EndpointId(1), Some(one)),
    ] {
        pair.switches[1].change(&mut pair.pool, pair.now, change).expect("it fits");
    }
}

/// Frames at side 1 whose number was taken for a tag: of nobody's network, and of another tenant's.
pub(super) fn taken_for_tags(pair: &Pair) -> (u64, u64) {
    let others = pair.switches[1].endpoint_stats(EndpointId(1)).ingress.traffic.frames;
    (pair.switches[1].uplink_drops().get(Reason::BadVlan), others)
}

/// What makes side 1 number no more.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Ends {
    OrderOff,
    OtherMode,
    OnePort,
    Keyed,
    OtherKey,
}

pub(super) fn end(pair: &mut Pair, ends: Ends) {
    let mut uplink = pair.switches[1].program().uplink.clone().expect("one");
    let key = if ends == Ends::OtherKey { HelloKey([1; 16]) } else { SECRET };
    match (ends, &mut uplink.bond) {
        (Ends::OrderOff, Some(bond)) => bond.order = false,
        (Ends::OtherMode, Some(bond)) => bond.mode = Mode::BalanceXor,
        (Ends::Keyed, Some(bond)) => bond.is_keyed = true,
        (Ends::OnePort, bond) => {
            *bond = None;
            uplink.members.truncate(1);
        }
        _ => {}
    }
    if ends != Ends::OtherKey {
        pair.switches[1].change(&mut pair.pool, pair.now, Change::Uplink(Some(uplink))).expect("it fits");
    }
    pair.switches[1].set_bond_key(&mut pair.pool, pair.now, Some(key));
}

/// One end is changed so that it numbers no more. The other end is told, and loses next to nothing;
/// where it does not hear that, it goes on for a while, and no number becomes a tenant's tag.
#[test]
fn an_end_that_numbers_no_more_takes_no_number_for_a_tag() {
    for ends in [Ends::OrderOff, Ends::OtherMode, Ends::OnePort, Ends::Keyed, Ends::OtherKey] {
        for is_told in [false, true] {
            let what = format!("{ends:?}, told {is_told}");
            let pair = match ends {
                Ends::OtherKey => with_secrets([Some(SECRET); 2]),
                _ => Pair::new(Mode::BalanceRr, &[GBIT; 2], 2),
            };
            let mut pair = pair.agreed();
            with_others(&mut pair);
            pair.send(1000, MS, 100 * MS);
            pair.wires[1].iter_mut().for_each(|wire| wire.is_dead = !is_told);
            end(&mut pair, ends);
            pair.send(1000, MS, MS);
            assert_eq!(pair.plain(0).is_some(), is_told, "{what}");
            if ends == Ends::OnePort {
                pair.set(0, 1, MemberState::Down);
            }
            pair.send(1000, MS, 4_500 * MS);
            pair.finish();
            assert_eq!(taken_for_tags(&pair), (0, 0), "{what}");
            assert!(!is_told || pair.lost() <= 2, "{what}: {} lost", pair.lost());
            pair.clear();
        }
    }
}

/// Another process goes on that does not number: of that the other end hears nothing.
#[test]
fn a_takeover_by_who_numbers_no_more_takes_no_number_for_a_tag() {
    let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], 2).agreed();
    pair.send(1000, MS, 100 * MS);
    let now = pair.now;
    pair.switches[1].set_leaving(&mut pair.pool, now, true);
    let (state, mut program) = (pair.switches[1].export(now), pair.switches[1].program().clone());
    pair.switches[1].clear(&mut pair.pool);
    program.uplink.as_mut().and_then(|uplink| uplink.bond.as_mut()).expect("a bond").order = false;
    pair.switches[1] = Switch::new(&program, 99).expect("sound");
    pair.switches[1].import(now, 0, &state).expect("the own version");
    with_others(&mut pair);
    (0..2).for_each(|member| pair.set(1, member, MemberState::Distributing));
    pair.send(1000, MS, 4_500 * MS);
    pair.finish();
    assert_eq!(taken_for_tags(&pair), (0, 0));
    let before = pair.lost();
    pair.send(1000, MS, 100 * MS);
    pair.finish();
    assert_eq!(pair.lost(), before, "frames are plain");
    pair.clear();
}

/// A process that stood still for longer than a peer may be silent reads what came meanwhile before
/// it takes the peer for gone, though its timers are due first.
#[test]
fn who_stood_still_for_long_reads_before_it_judges() {
    let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], 2).agreed();
    with_others(&mut pair);
    pair.send(1000, MS, 100 * MS);
    pair.stalls_until[1] = pair.now.plus_ns(4_000 * MS + 1);
    pair.send(1000, MS, 4_000 * MS);
    pair.now = pair.stalls_until[1];
    let before = pair.received.len();
    while let Some((port, frame)) = pair.switches[1].tx(&mut pair.pool, pair.now) {
        pair.travel(1, port.0 as usize - 2, frame);
    }
    pair.run(100 * MS);
    let control = pair.switches[1].uplink_drops().get(Reason::BondControl);
    assert_eq!((taken_for_tags(&pair), control), ((0, 0), 0));
    assert!(pair.received.len() >= before + 1900, "{} of what came", pair.received.len() - before);
    assert_eq!((pair.plain(0), pair.plain(1)), (None, None), "both number again");
    pair.clear();
}

/// Frames have no numbers since they would be too long, and one direction of a cable dies with its
/// carrier up: once the other end has said that it hears nothing there, nothing is sent there.
#[test]
fn plain_frames_leave_out_a_direction_that_the_other_end_hears_nothing_of() {
    let mut pair = Pair::of(Mode::BalanceRr, [true; 2], &[GBIT; 2], 1514, 1);
    pair.run(100 * MS);
    assert_eq!((pair.plain(0), pair.plain(1)), (Some(Plain::TooLong), Some(Plain::TooLong)));
    pair.wires[0][1].is_dead = true;
    pair.run(6_000 * MS);
    pair.send(200, 20_000, 20 * MS);
    pair.finish();
    assert_eq!((pair.lost(), pair.switches[0].left_out_members()), (0, 1 << 1));
    assert_eq!(pair.switches[1].left_out_members(), 0, "the other direction is used");
    pair.wires[0][1].is_dead = false;
    pair.run(1_500 * MS);
    assert_eq!(pair.switches[0].left_out_members(), 0);
    let sent = |pair: &Pair| pair.switches[0].members().nth(1).map(|view| view.counts.traffic.egress.segments);
    let before = sent(&pair);
    pair.send(200, 20_000, 20 * MS);
    assert!(sent(&pair) > before, "it is used again");
    pair.finish();
    assert_eq!(pair.lost(), 0);
    pair.clear();
}

/// What was too long has gone: frames have numbers again, without a restart.
#[test]
fn numbers_come_back_when_the_longest_frames_have_gone() {
    let mut pair = Pair::of(Mode::BalanceRr, [true; 2], &[GBIT; 2], 1514, 1);
    let check = |pair: &mut Pair, changes: Vec<Change>, plain: Option<Plain>, what: &str| {
        for side in 0..2 {
            for change in &changes {
                pair.switches[side].change(&mut pair.pool, pair.now, change.clone()).expect("it fits");
            }
        }
        pair.run(50 * MS);
        assert_eq!((pair.plain(0), pair.plain(1)), (plain, plain), "{what}");
    };
    let one = |tenant, port| Endpoint { max_learned: 4, ..Endpoint::new(TenantId(tenant), PortId(port)) };
    let endpoint = |id, endpoint| Change::Endpoint(EndpointId(id), endpoint);
    let tenant = |attachment| Change::Tenant(TenantId(0), Some(Tenant { attachment, ..Tenant::default() }));
    let port = |id, max_frame| Change::Port(PortId(id), Some(PortFeatures { max_frame, ..PortFeatures::default() }));
    let (long, fits) = (Some(Plain::TooLong), None);
    check(&mut pair, vec![], long, "a tag and a number");
    let untagged = || vec![endpoint(0, None), tenant(Attachment::Untagged), endpoint(0, Some(one(0, 1)))];
    check(&mut pair, untagged(), fits, "its tenant has no tag any more");
    let trunk = Endpoint { trunk: true, ..one(0, 1) };
    check(&mut pair, vec![endpoint(0, Some(trunk.clone()))], long, "a trunk has tags");
    check(&mut pair, vec![endpoint(0, Some(one(0, 1)))], fits, "it is none any more");
    // Of two that are too long, both are to go.
    let two = vec![port(4, 1514), port(5, 1514), endpoint(1, Some(Endpoint { port: PortId(4), ..trunk.clone() }))];
    check(&mut pair, two, long, "another trunk");
    check(&mut pair, vec![endpoint(2, Some(Endpoint { port: PortId(5), ..trunk }))], long, "and one more");
    check(&mut pair, vec![endpoint(1, None)], long, "one is still there");
    check(&mut pair, vec![endpoint(2, None)], fits, "its port stays");
    // One that moves to a port of shorter frames.
    check(&mut pair, vec![port(4, 1600), endpoint(1, Some(one(0, 4)))], long, "longer than all members take");
    check(&mut pair, vec![endpoint(1, Some(one(0, 5)))], fits, "it moves");
    check(&mut pair, vec![port(5, 1600)], long, "its port takes longer ones");
    check(&mut pair, vec![port(5, 1500)], fits, "and shorter ones");
    pair.clear();
}
