use super::*;
use crate::ids::{PortId, TenantId};
use crate::intake::{FULL, Intake, Prices};
use crate::turns::Cost;

/// To read a frame takes 1 us, and to pass it on 3 us more: 1 000 000 or 250 000 a second.
const PRICES: Prices = Prices { read: Cost::new(1_000, 0), pass: Cost::new(3_000, 0) };
/// Frames that have room in the ring.
const RING: usize = 20_000;
/// Frames that wait where the ring begins to fill, and where it has stopped to.
const FILLS: (usize, usize) = (200, 50);

fn destination(n: u32) -> Destination {
    Destination { vlan: Some(10 + n as u16), mac: Mac([2, 0, 0, 0, 0, n as u8]) }
}

/// A core that does nothing but read a ring and pass on what is in it. Each tenant has an endpoint.
struct Model {
    intake: Intake,
    chance: u64,
    now_ns: u64,
    busy_until_ns: u64,
    ring: std::collections::VecDeque<(u32, u64)>,
    fills: bool,
    list: Vec<Thinned>,
    /// Whether the port does what it is told.
    is_obeyed: bool,
    /// Whether all endpoints are of one tenant.
    is_one_tenant: bool,
    /// The worker has no processor.
    is_still: bool,
    longest: usize,
}

/// What became of a sender's frames.
#[derive(Clone, Copy, Default, Debug)]
struct Fate {
    sent: u64,
    passed: u64,
    by_share: u64,
    by_filter: u64,
    /// By what the intake says.
    told: u64,
    ring_full: u64,
    longest_wait_ns: u64,
}

/// All but what is on its way when it ends.
fn has_all(fate: Fate) -> bool {
    fate.ring_full + fate.by_filter + fate.by_share == 0 && fate.passed.abs_diff(fate.sent) <= 30
}

impl Model {
    fn new() -> Model {
        let mut intake = Intake::default();
        (0..16).for_each(|n| intake.set_weights((TenantId(n), 30_000), (PortId(n), 30_000)));
        Model {
            intake,
            chance: 7,
            now_ns: 1_000_000_000,
            busy_until_ns: 0,
            ring: std::collections::VecDeque::new(),
            fills: false,
            list: Vec::new(),
            is_obeyed: true,
            is_one_tenant: false,
            is_still: false,
            longest: 0,
        }
    }

    /// A random number (splitmix64).
    fn chance(&mut self) -> u32 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.chance ^ self.chance >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 32) as u32
    }

    fn keep(&self, n: u32) -> Option<u32> {
        self.list.iter().find(|thinned| thinned.to == destination(n)).map(|thinned| thinned.keep)
    }

    /// So many milliseconds in which senders send so many frames each millisecond.
    fn run(&mut self, ms: u64, senders: &[(u32, u64)]) -> Vec<Fate> {
        let mut fates = vec![Fate::default(); 16];
        self.longest = 0;
        for _ in 0..ms * 1_000 {
            let step = self.now_ns / 1_000 % 1_000;
            for &(sender, a_ms) in senders {
                for _ in step * a_ms / 1_000..(step + 1) * a_ms / 1_000 {
                    self.arrive(sender, &mut fates[sender as usize]);
                }
            }
            self.now_ns += 1_000;
            if self.is_still {
                self.busy_until_ns = self.now_ns;
            } else {
                self.work(&mut fates);
            }
            self.longest = self.longest.max(self.ring.len());
        }
        fates
    }

    fn arrive(&mut self, sender: u32, fate: &mut Fate) {
        fate.sent += 1;
        let keep = self.keep(sender);
        let is_kept = keep.is_none_or(|keep| self.chance() < keep);
        if self.is_obeyed && !is_kept {
            fate.by_filter += 1;
        } else if self.ring.len() >= RING {
            fate.ring_full += 1;
        } else {
            self.ring.push_back((sender, self.now_ns));
        }
    }

    fn work(&mut self, fates: &mut [Fate]) {
        while self.busy_until_ns < self.now_ns {
            self.fills = self.ring.len() >= if self.fills { FILLS.1 } else { FILLS.0 };
            let full = self.ring.len() as u32 * FULL / RING as u32;
            self.intake.set_prices(self.fills.then_some(PRICES), full);
            let now = Instant(self.now_ns);
            let Some((sender, came_ns)) = self.ring.pop_front() else {
                self.busy_until_ns = self.now_ns;
                break;
            };
            let fate = &mut fates[sender as usize];
            let tenant = TenantId(if self.is_one_tenant { 0 } else { sender });
            let passes = self.intake.passes(now, tenant, Some(PortId(sender)), 60);
            if self.intake.is_awake() {
                fate.told += self.intake.note(now, destination(sender), 60, passes);
            }
            fate.longest_wait_ns = fate.longest_wait_ns.max(self.now_ns - came_ns);
            *(if passes { &mut fate.passed } else { &mut fate.by_share }) += 1;
            self.busy_until_ns += if passes { 4_000 } else { 1_000 };
        }
        if let Some(list) = self.intake.thinning().news(Instant(self.now_ns)) {
            self.list = list.to_vec();
            self.intake.thinning().set_told(true);
        }
    }
}

#[test]
fn a_flood_of_ten_times_what_can_be_read_leaves_the_ring_to_others() {
    let mut model = Model::new();
    // A victim with 20 000 a second beside 10 000 000.
    let senders = [(0, 10_000), (1, 20)];
    model.run(100, &senders);
    let fates = model.run(400, &senders);
    let (flood, victim) = (fates[0], fates[1]);
    assert!(has_all(victim), "{victim:?}");
    assert!(victim.longest_wait_ns < 5_000_000, "{victim:?}");
    assert!(model.longest < RING / 2, "{}", model.longest);
    let read = flood.passed + flood.by_share;
    assert!(read < flood.sent / 8, "{flood:?}");
    assert!(flood.passed > 40_000, "it has what the core can pass on beside: {flood:?}");
    assert!(model.keep(1).is_none(), "a neighbour is not thinned");
    // What is told is about what was dropped.
    assert!(flood.told.abs_diff(flood.by_filter) < flood.by_filter / 10, "{flood:?}");

    // Without it, the ring is full and frames of all are lost.
    let mut model = Model { is_obeyed: false, ..Model::new() };
    model.run(100, &senders);
    let fates = model.run(200, &senders);
    assert!(fates[1].ring_full > fates[1].sent / 2, "{fates:?}");
}

/// Rates of a flood in frames a millisecond: more than can be passed on, up to ten times what can
/// be read.
const FLOODS: [u64; 5] = [300, 500, 1_000, 3_000, 10_000];

#[test]
fn who_sends_now_and_then_loses_nothing_beside_floods_that_nobody_shares_with() {
    for flood in FLOODS {
        for floods in [&[(0, flood)][..], &[(0, flood / 2), (2, flood / 2)], &[(0, flood), (2, 20)]] {
            let mut model = Model::new();
            model.run(200, floods);
            for pause_ms in [1_000, 100, 50, 50, 20, 30] {
                let fates = model.run(pause_ms, floods);
                assert!(fates[0].passed > pause_ms * 20, "{floods:?}: {fates:?}");
                let others: Vec<_> = floods.iter().copied().chain([(1, 1)]).collect();
                let sent = model.run(1, &others)[1];
                let later = model.run(100, floods)[1];
                assert_eq!((sent.sent, sent.passed + later.passed), (1, 1), "{floods:?}: {sent:?} {later:?}");
            }
        }
    }
}

#[test]
fn in_the_only_tenant_a_flood_for_one_leaves_the_ring_to_its_others() {
    // Of 250 that could be passed on.
    for (flood, others) in FLOODS.into_iter().flat_map(|flood| [(flood, 20), (flood, 80)]) {
        let mut model = Model { is_one_tenant: true, ..Model::new() };
        let senders = [(0, flood), (1, others)];
        model.run(200, &senders);
        let fates = model.run(400, &senders);
        assert_eq!(fates[1].ring_full + fates[1].by_share + fates[1].by_filter, 0, "{flood}: {fates:?}");
        assert!(fates[1].longest_wait_ns < 5_000_000, "{flood}: {fates:?}");
        assert!(fates[0].passed > 20_000, "{flood}: {fates:?}");
    }
}

#[test]
fn one_that_was_flooded_for_a_moment_has_its_own_soon_beside_a_flood_that_lasts() {
    for (flood, pulse, pulse_ms, pause_ms) in
        [(10_000, 10_000, 3, 347), (10_000, 10_000, 10, 340), (10_000, 2_000, 20, 980), (1_000, 3_000, 20, 480)]
    {
        let mut model = Model::new();
        model.run(300, &[(0, flood), (1, 20)]);
        let (mut sent, mut lost) = (0, 0);
        for _ in 0..5 {
            model.run(pulse_ms, &[(0, flood), (1, pulse)]);
            let fate = model.run(pause_ms, &[(0, flood), (1, 20)])[1];
            (sent, lost) = (sent + fate.sent, lost + fate.sent - fate.passed.min(fate.sent));
        }
        assert!(20 * lost < sent, "{flood} {pulse} {pulse_ms}: {lost} of {sent}");
    }
}

#[test]
fn a_worker_that_stood_still_does_not_end_thinning() {
    for stall_ms in [20, 50, 100, 200] {
        let mut model = Model::new();
        let senders = [(0, 10_000), (1, 20)];
        model.run(400, &senders);
        model.is_still = true;
        model.run(stall_ms, &senders);
        model.is_still = false;
        let victim = model.run(120, &senders)[1];
        assert!(victim.ring_full < victim.sent / 20, "{stall_ms} ms: {victim:?}");
    }
}

#[test]
fn all_is_read_again_when_the_flood_has_ended() {
    let mut model = Model::new();
    model.run(200, &[(0, 10_000), (1, 20)]);
    assert!(model.keep(0).is_some_and(|keep| keep < 1 << 30));
    // It goes on with little, and soon loses nothing.
    model.run(150, &[(0, 10), (1, 20)]);
    assert_eq!((model.list.len(), model.intake.due()), (0, None));
    let fates = model.run(100, &[(0, 10), (1, 20)]);
    assert!(has_all(fates[0]) && has_all(fates[1]), "{fates:?}");
    assert!(!model.intake.is_awake());
}

#[test]
fn all_is_read_again_where_nothing_comes_any_more() {
    let mut model = Model::new();
    model.run(200, &[(0, 10_000), (1, 20)]);
    model.ring.clear();
    let due = model.intake.due().expect("it is to be looked at");
    assert!(due.0 > model.now_ns && due.0 <= model.now_ns + WINDOW_NS);
    // The worker slept longer than that.
    let later = Instant(model.now_ns + 3_600_000_000_000);
    assert_eq!(model.intake.thinning().news(later), Some(&[][..]));
    model.intake.thinning().set_told(true);
    assert_eq!(model.intake.thinning().news(later.plus_ns(WINDOW_NS)), None);
    assert_eq!(model.intake.due(), None);
}

#[test]
fn of_two_floods_each_is_thinned() {
    let mut model = Model::new();
    let senders = [(0, 3_000), (1, 20), (2, 3_000)];
    model.run(200, &senders);
    let fates = model.run(400, &senders);
    assert!(has_all(fates[1]), "{fates:?}");
    assert!(model.keep(0).is_some() && model.keep(2).is_some() && model.list.len() == 2, "{:?}", model.list);
    let least = fates[0].passed.min(fates[2].passed);
    assert!(least > 20_000 && fates[0].passed.abs_diff(fates[2].passed) < least / 2, "{fates:?}");
}

#[test]
fn a_ring_that_fills_by_little_thins_nobody() {
    let mut model = Model::new();
    // A third more than can be passed on: less than half of it is dropped.
    model.run(100, &[(0, 300), (1, 20)]);
    let fates = model.run(300, &[(0, 300), (1, 20)]);
    assert!(has_all(fates[1]) && fates[0].by_filter == 0, "{fates:?}");
}

/// A window in which the ring fills and so many frames are read for each, of which so many of eight
/// are dropped; what ports are told then.
fn window(thinning: &mut Thinning, number: u64, floods: &[(u32, u64)], of_eight: u64) -> Option<Vec<Thinned>> {
    let now = Instant(number * WINDOW_NS);
    let most = floods.iter().map(|&(_, frames)| frames).max().unwrap_or(0);
    for n in 0..most {
        thinning.note_read(true);
        for &(to, _) in floods.iter().filter(|(_, frames)| n * frames / most != (n + 1) * frames / most) {
            thinning.note(now, destination(to), n % 8 >= of_eight, 1_000);
        }
    }
    thinning.news(now.plus_ns(WINDOW_NS)).map(<[Thinned]>::to_vec)
}

#[test]
fn no_more_than_its_places_are_thinned_and_the_worst_have_them() {
    let (mut thinning, mut number) = (Thinning::default(), 1);
    let mut next = |floods: &[(u32, u64)]| {
        let list = window(&mut thinning, number, floods, 8);
        number += 1;
        thinning.set_told(true);
        assert!(thinning.places.capacity() == MOST && thinning.others.capacity() == MOST);
        list.unwrap_or_default()
    };
    let small = |from: u32| (from..from + 6).map(|to| (to, 200));
    assert_eq!(next(&small(0).collect::<Vec<_>>()).len(), 6);
    // Twelve and a large one want the eight places.
    let list = next(&small(0).chain([(20, 3_000), (6, 200)]).collect::<Vec<_>>());
    assert!(list.len() == MOST && list.iter().any(|thinned| thinned.to == destination(20)), "{list:?}");
    let list = next(&small(0).chain([(20, 400), (6, 200), (7, 300), (21, 9_000)]).collect::<Vec<_>>());
    assert!(list.len() == MOST && list.iter().any(|thinned| thinned.to == destination(21)), "{list:?}");
    assert!(list.iter().all(|thinned| thinned.to != destination(7)), "no worse than who has one: {list:?}");
    // So many that none is seen beside the one.
    let list = next(&(30..60).map(|to| (to, 100)).chain([(22, 9_000)]).collect::<Vec<_>>());
    assert!(list.len() <= MOST && list.iter().any(|thinned| thinned.to == destination(22)), "{list:?}");
}

#[test]
fn a_part_is_never_less_than_the_least() {
    let mut thinning = Thinning::default();
    for number in 1..30 {
        window(&mut thinning, number, &[(0, 500)], 8);
        thinning.set_told(true);
    }
    assert_eq!(thinning.places[0].keep, LEAST);
    // Of 1024 one is read.
    assert_eq!(thinning.note(Instant(30 * WINDOW_NS), destination(0), false, 1_000), 1023);
}

#[test]
fn a_ring_that_has_room_now_and_then_thins_nobody() {
    let mut thinning = Thinning::default();
    thinning.look(Instant(WINDOW_NS));
    for number in 1..10 {
        (0..300).for_each(|_| thinning.note_read(false));
        assert_eq!(window(&mut thinning, number, &[(0, 500)], 8), None);
    }
    assert_eq!(window(&mut thinning, 10, &[(0, 496)], 4), None, "half is dropped");
    assert_eq!(window(&mut thinning, 11, &[(0, 60)], 8), None, "few are");
    assert!(window(&mut thinning, 12, &[(0, 500)], 5).is_some());
}

#[test]
fn a_part_rises_by_and_by_while_much_is_sent_and_the_ring_has_room() {
    let mut thinning = Thinning::default();
    let mut told = window(&mut thinning, 1, &[(0, 500)], 8);
    thinning.set_told(true);
    let mut number = 2;
    while thinning.is_any() {
        let now = Instant(number * WINDOW_NS);
        // 500 000 a second are sent.
        let read = 5_000 * thinning.places[0].set / ALL;
        thinning.note_read(false);
        (0..read).for_each(|_| _ = thinning.note(now, destination(0), true, 1_000));
        told = thinning.news(now.plus_ns(WINDOW_NS)).map(<[Thinned]>::to_vec).or(told);
        if !thinning.is_told {
            thinning.set_told(true);
        }
        number += 1;
    }
    assert!((20..60).contains(&number), "{number} windows");
    assert_eq!(told, Some(vec![]), "ports read all again");
}

#[test]
fn ports_that_cannot_are_not_asked_again_soon() {
    let mut thinning = Thinning::default();
    let mut asked = Vec::new();
    for number in 1..250 {
        if window(&mut thinning, number, &[(0, 500)], 8).is_some() {
            asked.push(number);
            thinning.set_told(false);
            assert!(!thinning.is_any());
        }
    }
    assert!((2..=3).contains(&asked.len()) && asked[1] >= asked[0] + AGAIN, "{asked:?}");
}

#[test]
fn ports_are_told_again_after_a_second() {
    let mut thinning = Thinning::default();
    let mut told = Vec::new();
    for number in 1..350 {
        // Three of eight: the part stays as it is.
        if window(&mut thinning, number, &[(0, 496)], if told.is_empty() { 8 } else { 3 }).is_some() {
            told.push(number);
            thinning.set_told(true);
        }
    }
    assert_eq!(told, [1, 2 + AGAIN, 3 + 2 * AGAIN, 4 + 3 * AGAIN]);
}
