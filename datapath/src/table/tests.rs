use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn table(most: u32) -> Table<u64, u64> {
    Table::new(Keyed::new(42), most)
}

#[test]
fn what_was_seen_longest_ago_is_the_oldest() {
    let mut table = table(10);
    let ids: Vec<Id> = (0..4).map(|key| table.insert(Instant(key), 0, key, key).unwrap()).collect();
    table.touch(Instant(10), ids[0], 0);
    assert_eq!(table.oldest(0), Some(ids[1]));
    assert_eq!(table.newest_first(0).map(|(_, &key, _)| key).collect::<Vec<_>>(), [0, 3, 2, 1]);
    assert_eq!(table.aged(Instant(10), 0, 10), None);
    assert_eq!(table.aged(Instant(11), 0, 10), Some(ids[1]));
    table.touch(Instant(11), ids[1], 3);
    assert_eq!((table.count(0), table.count(3), table.list(ids[1])), (3, 1, Some(3)));
    assert_eq!(table.oldest(3), table.newest(3));
}

#[test]
fn who_is_seen_again_within_a_period_keeps_its_place() {
    let mut table = table(10);
    let ids: Vec<Id> = (0..3).map(|key| table.insert(Instant(key), 1, key, key).unwrap()).collect();
    ids.iter().for_each(|&id| table.see(Instant(20), id, 0, 4));
    assert_eq!((table.count(0), table.count(1), table.list(ids[2])), (3, 0, Some(0)));
    table.see(Instant(31), ids[0], 0, 4);
    assert_eq!((table.oldest(0), table.seen(ids[0])), (Some(ids[0]), Some(Instant(31))));
    table.see(Instant(32), ids[0], 0, 4);
    assert_eq!((table.oldest(0), table.newest(0)), (Some(ids[1]), Some(ids[0])));
    // Two periods later by a gap, not by one step after the other.
    table.see(Instant(64), ids[1], 0, 4);
    assert_eq!((table.oldest(0), table.newest(0)), (Some(ids[2]), Some(ids[1])));
}

proptest! {
    /// Nobody stands before another who was seen a period earlier.
    #[test]
    fn an_order_is_exact_to_a_period(steps in prop::collection::vec((0usize..8, 0u64..40), 1..200)) {
        let mut table = table(8);
        let ids: Vec<Id> = (0..8).map(|key| table.insert(Instant::ZERO, 1, key, key).unwrap()).collect();
        let mut now = Instant::ZERO;
        for (which, gap) in steps {
            now = now.plus_ns(gap);
            table.see(now, ids[which], 0, 4);
            prop_assert_eq!(table.seen(ids[which]), Some(now));
            let mut latest = Instant::ZERO;
            for (id, ..) in table.oldest_first(0) {
                let seen = table.seen(id).unwrap();
                prop_assert!(seen.0 + 16 > latest.0, "{:?} stands behind {:?}", seen, latest);
                latest = latest.max(seen);
            }
        }
    }
}

#[test]
fn it_is_bounded_and_a_removed_entrys_place_is_used_again() {
    let mut table = table(3);
    let ids: Vec<Id> = (0..3).map(|key| table.insert(Instant::ZERO, 0, key, 0).unwrap()).collect();
    assert_eq!(table.insert(Instant::ZERO, 0, 9, 0), Err(Full));
    assert_eq!(table.remove(ids[1]), Some((1, 0)));
    assert_eq!(table.remove(ids[1]), None);
    assert_eq!((table.get(ids[1]), table.find(&1)), (None, None));
    assert_eq!(table.insert(Instant::ZERO, 0, 9, 5), Ok(ids[1]));
    assert_eq!(table.get(ids[1]), Some(&5));
    table.set_most(2);
    assert_eq!((table.len(), table.most()), (3, 2), "what is there stays");
}

#[test]
fn a_million_entries_are_found_with_one_bucket_each() {
    let mut table = table(1 << 20);
    table.reserve(1);
    for key in 0..1 << 20 {
        table.insert(Instant::ZERO, 0, key, key * 3).unwrap();
    }
    let (mut looked, mut guessed) = (0, 0);
    for key in (0..1 << 20).step_by(7) {
        let hash = table.hash(&key);
        let id = table.find_hashed(hash, &key).unwrap();
        assert_eq!(table.get(id), Some(&(key * 3)));
        looked += 1;
        guessed += u32::from(table.index.likely(hash) == Some(id.0));
        let _ = (table.warm(hash), table.warm_entry(hash));
    }
    assert!(guessed * 100 >= looked * 96, "{guessed} of {looked} are read ahead where they are");
    assert_eq!(table.find(&(1 << 20)), None);
}

/// What may be done to a table.
#[derive(Clone, Debug)]
enum Step {
    Insert(u64, u32),
    Remove(u64),
    Touch(u64, u32),
    Age(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let (key, list) = (0..40u64, 0..3u32);
    prop_oneof![
        3 => (key.clone(), list.clone()).prop_map(|(key, list)| Step::Insert(key, list)),
        1 => key.clone().prop_map(Step::Remove),
        1 => (key, list.clone()).prop_map(|(key, list)| Step::Touch(key, list)),
        1 => list.prop_map(Step::Age),
    ]
}

proptest! {
    #[test]
    fn it_is_what_a_map_and_lists_are(steps in prop::collection::vec(step(), 1..300)) {
        const AGE_NS: u64 = 25;
        let mut table = table(24);
        let mut model: BTreeMap<u64, (Id, u32)> = BTreeMap::new();
        let mut lists: [Vec<(u64, u64)>; 3] = Default::default();
        for (step, now) in steps.into_iter().zip(0..) {
            match step {
                Step::Insert(key, list) if !model.contains_key(&key) => {
                    let inserted = table.insert(Instant(now), list, key, key + 1);
                    prop_assert_eq!(inserted.is_ok(), model.len() < 24);
                    if let Ok(id) = inserted {
                        model.insert(key, (id, list));
                        lists[list as usize].push((key, now));
                    }
                }
                Step::Insert(..) => {}
                Step::Remove(key) => {
                    if let Some((id, list)) = model.remove(&key) {
                        prop_assert_eq!(table.remove(id), Some((key, key + 1)));
                        lists[list as usize].retain(|&(other, _)| other != key);
                    }
                }
                Step::Touch(key, list) => {
                    if let Some((id, old)) = model.get_mut(&key) {
                        table.touch(Instant(now), *id, list);
                        lists[*old as usize].retain(|&(other, _)| other != key);
                        lists[list as usize].push((key, now));
                        *old = list;
                    }
                }
                Step::Age(list) => {
                    while let Some(id) = table.aged(Instant(now), list, AGE_NS) {
                        let (key, _) = table.remove(id).unwrap();
                        let (oldest, seen) = lists[list as usize].remove(0);
                        prop_assert!(oldest == key && now - seen >= AGE_NS);
                        model.remove(&key);
                    }
                }
            }
            prop_assert_eq!(table.len() as usize, model.len());
            for key in 0..40 {
                prop_assert_eq!(table.find(&key), model.get(&key).map(|&(id, _)| id));
            }
            for (list, entries) in lists.iter().enumerate() {
                let found: Vec<u64> = table.newest_first(list as u32).map(|(_, &key, _)| key).collect();
                let expected: Vec<u64> = entries.iter().rev().map(|&(key, _)| key).collect();
                prop_assert_eq!(found, expected);
                prop_assert_eq!(table.count(list as u32) as usize, entries.len());
            }
        }
    }
}

/// A table, and what it is to be: places of keys, and lists, the oldest first.
struct Twin {
    table: Table<u64, u64>,
    ids: BTreeMap<u64, Id>,
    lists: [Vec<u64>; 3],
    dice: u64,
}

impl Twin {
    fn draw(&mut self, below: u64) -> u64 {
        (u64::from(crate::random::dice(&mut self.dice)) * below) >> 32
    }

    /// Adds, removes or touches an entry, whichever may be.
    fn step(&mut self, now: u64) {
        let (key, list) = (self.draw(9000), self.draw(3) as u32);
        let is_there = self.ids.contains_key(&key);
        match (is_there, self.draw(4)) {
            (false, _) => {
                let inserted = self.table.insert(Instant(now), list, key, key + 1);
                assert_eq!(inserted.is_ok(), (self.ids.len() as u32) < self.table.most());
                if let Ok(id) = inserted {
                    self.ids.insert(key, id);
                    self.lists[list as usize].push(key);
                }
            }
            (true, 0) => {
                let id = self.ids.remove(&key).unwrap();
                assert_eq!(self.table.remove(id), Some((key, key + 1)));
                self.lists.iter_mut().for_each(|keys| keys.retain(|&other| other != key));
            }
            (true, _) => {
                self.table.touch(Instant(now), self.ids[&key], list);
                self.lists.iter_mut().for_each(|keys| keys.retain(|&other| other != key));
                self.lists[list as usize].push(key);
            }
        }
    }

    fn is_right(&self) {
        assert_eq!(self.table.len() as usize, self.ids.len());
        for key in 0..9000 {
            assert_eq!(self.table.find(&key), self.ids.get(&key).copied(), "{key}");
        }
        let all: Vec<(Id, u64)> = self.table.iter().map(|(id, &key, _)| (id, key)).collect();
        let mut wanted: Vec<(Id, u64)> = self.ids.iter().map(|(&key, &id)| (id, key)).collect();
        wanted.sort_unstable();
        assert_eq!(all, wanted);
        let middle = |(id, _): &&(Id, u64)| (200..700).contains(&id.0);
        let some: Vec<(Id, u64)> = self.table.iter_in(200..700).map(|(id, &key, _)| (id, key)).collect();
        assert_eq!(some, all.iter().filter(middle).copied().collect::<Vec<_>>());
        for (list, keys) in self.lists.iter().enumerate() {
            let found: Vec<u64> = self.table.oldest_first(list as u32).map(|(_, &key, _)| key).collect();
            assert_eq!(&found, keys);
        }
    }
}

#[test]
fn a_table_that_becomes_longer_is_at_every_part_what_it_was() {
    let mut table = table(1024);
    table.reserve(3);
    let mut twin = Twin { table, ids: BTreeMap::new(), lists: Default::default(), dice: 7 };
    let mut now = 0;
    (0..3000).for_each(|at| twin.step(at));
    for (most, wanted) in [(5000, 5000), (9000, 9000), (300, 300), (20_000, 20_000), (40_000, 7000)] {
        twin.table.grow_to(most);
        let mut parts = 0;
        while twin.table.is_growing() {
            if wanted != most {
                twin.table.grow_to(wanted);
            }
            assert!(twin.table.most() < most, "it may not have more yet");
            let made = twin.table.go_on();
            assert!(made > 0 && made <= GROWN_PLACES);
            for _ in 0..40 {
                now += 1;
                twin.step(now);
            }
            twin.is_right();
            parts += 1;
        }
        assert_eq!((twin.table.most(), twin.table.go_on()), (wanted, 0));
        assert_eq!(twin.table.take_left().is_some(), parts > 0);
        (0..3000).for_each(|at| twin.step(now + at));
        twin.is_right();
        now += 3000;
    }
}

#[test]
fn an_empty_table_has_room_for_some_at_once() {
    let mut table = table(0);
    table.grow_to(1 << 20);
    assert_eq!((table.most(), table.is_growing()), (4096, true));
    let id = table.insert(Instant(1), 0, 5, 6).unwrap();
    let mut parts = 0;
    while table.go_on() > 0 {
        assert_eq!(table.find(&5), Some(id));
        parts += 1;
    }
    assert_eq!((table.most(), table.find(&5), table.get(id)), (1 << 20, Some(id), Some(&6)));
    assert!(parts > (1 << 20) / 6 / 256, "{parts}");
    table.grow_to(4_000_000);
    table.set_most(100);
    while table.go_on() > 0 {}
    assert_eq!(table.most(), 100, "nobody wants it any more");
}
