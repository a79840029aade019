//! Shares of time at every level, whatever leaves cost and however they come and go.

use super::*;

/// Leaves that all have something to do all the time; one that is served costs its `cost`.
struct Bed {
    turns: Turns,
    leaves: Vec<(Seat, u64)>,
    used: Vec<u64>,
}

impl Bed {
    fn new() -> Bed {
        Bed { turns: Turns::default(), leaves: Vec::new(), used: Vec::new() }
    }

    fn leaf(&mut self, group: Seat, weight: u32, cost_ns: u64) -> usize {
        let seat = self.turns.add_leaf(group, weight);
        self.turns.wake(seat);
        self.leaves.push((seat, cost_ns));
        self.used.push(0);
        self.leaves.len() - 1
    }

    /// Serves the next; who it was.
    fn serve(&mut self) -> usize {
        let turn = self.turns.next_turn().expect("somebody is ready");
        let leaf = self.leaves.iter().position(|leaf| leaf.0 == turn.seat).expect("a leaf");
        self.turns.charge(turn.seat, self.leaves[leaf].1);
        self.used[leaf] += self.leaves[leaf].1;
        leaf
    }

    fn run(&mut self, total_ns: u64) {
        self.used.fill(0);
        while self.used.iter().sum::<u64>() < total_ns {
            self.serve();
        }
    }
}

/// Whether `part` is `wanted` thousandths of `all`, but for 2 %.
fn is_share(part: u64, all: u64, wanted: u64) -> bool {
    (part * 1000).abs_diff(all * wanted) <= all * wanted / 50
}

#[test]
fn time_is_shared_alike_whatever_a_turn_costs() {
    let mut bed = Bed::new();
    for cost in [1_000, 3_000, 40_000, 700] {
        bed.leaf(Turns::ROOT, 1, cost);
    }
    bed.run(100_000_000);
    assert!(bed.used.iter().all(|&used| is_share(used, 100_000_000, 250)), "{:?}", bed.used);
}

#[test]
fn a_tenant_with_many_ports_has_no_more_than_its_share() {
    let mut bed = Bed::new();
    let (victim, other) = (bed.turns.add_group(Turns::ROOT, 3), bed.turns.add_group(Turns::ROOT, 1));
    let first = bed.leaf(victim, 1, 20_000);
    bed.leaf(victim, 2, 5_000);
    for _ in 0..300 {
        bed.leaf(other, 1, 90_000);
    }
    bed.run(1_000_000_000);
    assert!(is_share(bed.used[first], 1_000_000_000, 250), "{:?}", &bed.used[..2]);
    assert!(is_share(bed.used[1], 1_000_000_000, 500), "{:?}", &bed.used[..2]);
    // Within the other tenant they are alike: each 1/1200 of the time, but for a turn.
    assert!(bed.used[2..].iter().all(|&used| used.abs_diff(833_333) <= 100_000), "{:?}", &bed.used[2..]);
}

#[test]
fn one_that_was_idle_goes_next_however_many_are_busy_but_not_again_and_again() {
    let mut bed = Bed::new();
    let (victim, other) = (bed.turns.add_group(Turns::ROOT, 1), bed.turns.add_group(Turns::ROOT, 1));
    for _ in 0..300 {
        bed.leaf(other, 1, 25_000);
    }
    bed.run(50_000_000);
    let leaf = bed.leaf(victim, 1, 2_000);
    assert_eq!(bed.serve(), leaf, "it waits for the turn that is, and for nobody else's");
    // It has a frame whenever the last one was read: it must not have more than half.
    let mut left = 0;
    bed.used.fill(0);
    while bed.used.iter().sum::<u64>() < 100_000_000 {
        if bed.serve() == leaf {
            bed.turns.sleep(bed.leaves[leaf].0);
            bed.turns.wake(bed.leaves[leaf].0);
            left += 1;
        }
    }
    assert!(left > 1000 && is_share(bed.used[leaf], 100_000_000, 500), "{}", bed.used[leaf]);
}

#[test]
fn many_that_come_and_go_do_not_take_the_time_of_one_that_stays() {
    let mut bed = Bed::new();
    let (victim, other) = (bed.turns.add_group(Turns::ROOT, 1), bed.turns.add_group(Turns::ROOT, 1));
    let stays = bed.leaf(victim, 1, 10_000);
    for _ in 0..50 {
        bed.leaf(other, 1, 30_000);
    }
    bed.used.fill(0);
    while bed.used.iter().sum::<u64>() < 500_000_000 {
        let served = bed.serve();
        if served != stays {
            bed.turns.sleep(bed.leaves[served].0);
            bed.turns.wake(bed.leaves[1 + (served + 24) % 50].0);
        }
    }
    assert!(is_share(bed.used[stays], 500_000_000, 500), "{}", bed.used[stays]);
}

#[test]
fn what_somebody_caused_is_charged_whether_it_has_a_turn_or_not() {
    let mut bed = Bed::new();
    let groups = [1, 1].map(|weight| bed.turns.add_group(Turns::ROOT, weight));
    let [cheap, dear] = groups.map(|group| bed.leaf(group, 1, 5_000));
    let quiet = bed.turns.add_leaf(groups[1], 1);
    // Each read of `dear` is followed by 100 us of copies, and what never has a turn itself costs
    // as much: its tenant pays.
    let mut paid = 0;
    for _ in 0..20_000 {
        if bed.serve() == dear {
            bed.turns.charge(bed.leaves[dear].0, 100_000);
            bed.turns.charge(quiet, 100_000);
            paid += 205_000;
        }
    }
    let all = paid + bed.used[cheap];
    assert!(is_share(paid, all, 500), "{paid} of {all}");
    let spent = |seat| bed.turns.spent(seat).used_ns;
    assert_eq!(spent(groups[1]), spent(bed.leaves[dear].0) + spent(quiet));
}

#[test]
fn what_comes_unasked_is_paid_within_its_group_of_the_root_and_does_not_hold_up_that() {
    let mut bed = Bed::new();
    let [near, far] = [1, 1].map(|weight| bed.turns.add_group(Turns::ROOT, weight));
    let sender = bed.leaf(near, 1, 10_000);
    let (uplink, tenants) = (bed.turns.add_group(far, 1), bed.turns.add_group(far, 1));
    let link = bed.turns.add_leaf(uplink, 1);
    let victim = bed.leaf(tenants, 1, 1_000);
    bed.turns.sleep(bed.leaves[victim].0);
    for round in 0..2_000 {
        // Each turn of the sender makes work in the other group, where nobody can refuse it.
        bed.turns.charge_unasked(link, 90_000);
        if round % 10 == 9 {
            bed.turns.wake(bed.leaves[victim].0);
            assert_eq!(bed.serve(), victim, "it does not wait for what others sent there: round {round}");
            bed.turns.sleep(bed.leaves[victim].0);
        }
        assert_eq!(bed.serve(), sender);
    }
    assert_eq!(bed.turns.spent(far).used_ns, 2_000 * 90_000 + 200 * 1_000, "all of it is counted");
    // Within the group it is owed.
    bed.turns.wake(link);
    bed.turns.wake(bed.leaves[victim].0);
    for _ in 0..1_000 {
        assert_ne!(bed.turns.next_turn().unwrap().seat, link);
        bed.serve();
    }
}

#[test]
fn what_comes_unasked_is_all_the_same_time_of_the_linked_beside_others() {
    let mut bed = Bed::new();
    let own = bed.leaf(Turns::ROOT, 1, 10_000);
    let all = bed.turns.add_group(Turns::ROOT, 19);
    bed.turns.set_linked(all);
    let groups = [1; 4].map(|weight| bed.turns.add_group(all, weight));
    let [sender, _, _, victim] = groups.map(|group| bed.leaf(group, 1, 10_000));
    let link = bed.turns.add_leaf(groups[3], 1);
    for _ in 0..20_000 {
        if bed.serve() == sender {
            bed.turns.charge_unasked(link, 10_000);
        }
    }
    let total = bed.used.iter().sum::<u64>() + bed.used[sender];
    assert!(is_share(bed.used[own], total, 50), "{} of {total}", bed.used[own]);
    // The others of the group do not wait for what came there.
    assert!(is_share(bed.used[victim], bed.used[sender], 1000), "{:?}", bed.used);
}

#[test]
fn who_is_alone_owes_nothing_afterwards() {
    let mut bed = Bed::new();
    let (a, b) = (bed.leaf(Turns::ROOT, 1, 25_000), bed.leaf(Turns::ROOT, 1, 25_000));
    bed.turns.sleep(bed.leaves[b].0);
    bed.run(1_000_000_000);
    bed.turns.charge(bed.leaves[a].0, u64::MAX);
    assert_eq!(bed.serve(), a, "alone, it goes on at once");
    bed.turns.wake(bed.leaves[b].0);
    bed.run(10_000_000);
    assert!(is_share(bed.used[a], 10_000_000, 500), "{:?}", bed.used);
    for (seat, _) in bed.leaves.clone() {
        bed.turns.sleep(seat);
    }
    assert_eq!((bed.turns.next_turn(), bed.turns.any_ready()), (None, false));
}

#[test]
fn what_was_waited_is_counted_while_there_is_something_to_do() {
    let mut bed = Bed::new();
    let group = bed.turns.add_group(Turns::ROOT, 1);
    let (a, b) = (bed.leaf(group, 1, 10_000), bed.leaf(Turns::ROOT, 1, 10_000));
    bed.run(10_000_000);
    bed.turns.sleep(bed.leaves[b].0);
    bed.run(10_000_000);
    bed.turns.next_turn();
    for (seat, waited) in [(bed.leaves[a].0, 5_000_000), (group, 5_000_000), (bed.leaves[b].0, 5_000_000)] {
        let spent = bed.turns.spent(seat);
        assert!(spent.waited_ns.abs_diff(waited) <= 100_000, "{spent:?}");
    }
    assert!(bed.turns.spent(group).used_ns >= 14_900_000);
}

#[test]
fn seats_are_given_again_without_what_was_owed() {
    let mut bed = Bed::new();
    let group = bed.turns.add_group(Turns::ROOT, 1);
    let a = bed.leaf(group, 1, 1_000);
    let b = bed.leaf(Turns::ROOT, 1, 1_000);
    bed.turns.charge(bed.leaves[a].0, 500_000_000);
    bed.turns.remove(group);
    assert!(bed.turns.has_members(group), "a group with members stays");
    bed.turns.remove(bed.leaves[a].0);
    bed.turns.remove(group);
    assert_eq!((bed.serve(), bed.serve()), (b, b), "nobody else is left");
    let again = bed.turns.add_leaf(Turns::ROOT, 1);
    bed.leaves[a].0 = again;
    bed.turns.wake(again);
    bed.run(10_000_000);
    assert!(is_share(bed.used[a], 10_000_000, 500), "{:?}", bed.used);
}

#[test]
fn weights_may_change_while_all_are_busy() {
    let mut bed = Bed::new();
    let (a, b) = (bed.leaf(Turns::ROOT, 1, 7_000), bed.leaf(Turns::ROOT, 1, 11_000));
    bed.run(10_000_000);
    bed.turns.set_weight(bed.leaves[b].0, 4);
    bed.run(100_000_000);
    assert!(is_share(bed.used[a], 100_000_000, 200), "{:?}", bed.used);
}

#[test]
fn costs_are_learned_apart_and_outliers_do_not_count() {
    let mut cost = Cost::new(5_000, 1_000);
    for round in 0..2_000u64 {
        // Every tenth time the worker is interrupted for a millisecond.
        let stall = if round % 10 == 0 { 1_000_000 } else { 0 };
        cost.learn(8, 8 * 64, 8 * 2_500 + 8 * 64 / 10 + stall);
        cost.learn(1, 65_536, 2_500 + 6_554 + stall);
    }
    assert!(cost.of(1, 0).abs_diff(2_500) < 250, "{cost:?}");
    assert!(cost.of(0, 65_536).abs_diff(6_554) < 700, "{cost:?}");
}

#[test]
fn a_few_dear_frames_among_cheap_ones_are_in_the_mean_unless_they_are_far() {
    let (mut cost, mut charged, mut took) = (Cost::new(2_000, 100), 0, 0);
    for round in 0..20_000u64 {
        // One of eight takes ten times as long, and one of 100 a thousand times.
        let ns = match round {
            _ if round % 100 == 0 => 2_000_000,
            _ if round % 8 == 0 => 20_000,
            _ => 2_000,
        };
        let is_far = cost.is_far(1, 64, ns);
        assert_eq!(is_far, ns == 2_000_000, "round {round}: {cost:?}");
        charged += if is_far { ns } else { cost.of(1, 64) };
        took += ns;
        cost.follow(1, 64, ns);
    }
    assert!(is_share(charged, took, 1000), "{charged} of {took}: {cost:?}");
    // From far too dear it comes back, and from nothing too.
    for mut cost in [Cost::new(1_000_000, 100), Cost::new(0, 0)] {
        (0..1_000).for_each(|_| cost.follow(1, 64, 2_000));
        assert!(cost.of(1, 64).abs_diff(2_000) < 100, "{cost:?}");
    }
    let mut cost = Cost::new(2_000, 0);
    (0..1_000).for_each(|_| cost.follow(1, 65_536, 8_500));
    assert!(cost.of(1, 65_536).abs_diff(8_500) < 500 && cost.of(1, 0) == 2_000, "{cost:?}");
}
