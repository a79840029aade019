//! Connections that are handed over while the switch before still forwards.

use super::super::early::{PLACES, Part};
use super::super::saved::BYTES;
use super::*;
use std::collections::BTreeSet;

const OWNER: Owner = Owner { tenant: TenantId(0), endpoint: ENDPOINT };
/// Where a record has its flow's first port.
const PORT: usize = 40;
/// So many take three parts.
const MANY: u16 = 2500;

fn empty() -> Vcc {
    let mut vcc = Vcc::new(7);
    vcc.set(OWNER, Mode::Dctcp.into());
    while vcc.go_on() > 0 {}
    vcc
}

/// A record of one connection that is open, by its port.
fn record(port: u16) -> [u8; BYTES] {
    let mut rig = Rig::new([Mode::Dctcp; 2]);
    rig.open([99, 499], [false; 2]);
    let mut record: [u8; BYTES] = rig.sides[CLIENT].export(rig.now).try_into().unwrap();
    record[PORT..PORT + 2].copy_from_slice(&port.to_be_bytes());
    record
}

/// A switch with connections from these ports.
fn with(ports: impl Iterator<Item = u16>) -> Vcc {
    let (mut vcc, record) = (empty(), record(0));
    for port in ports {
        open(&mut vcc, &record, port);
    }
    vcc
}

fn open(vcc: &mut Vcc, record: &[u8; BYTES], port: u16) {
    let mut record = *record;
    record[PORT..PORT + 2].copy_from_slice(&port.to_be_bytes());
    assert_eq!(vcc.import(Instant(1), &record, &[]), (1, 0), "{port}");
}

fn id_of(vcc: &Vcc, port: u16) -> Option<Id> {
    vcc.connections.iter().find(|(_, key, _)| key.flow.to_bytes()[32..34] == port.to_be_bytes()).map(|(id, ..)| id)
}

fn change(vcc: &mut Vcc, port: u16, window: u32) {
    let id = id_of(vcc, port).unwrap();
    vcc.connections.get_mut(id).unwrap().window = window;
}

fn close(vcc: &mut Vcc, port: u16) {
    let id = id_of(vcc, port).unwrap();
    vcc.connections.remove(OWNER.tenant, id);
}

/// All parts; `between` happens before each but the first.
fn parts(vcc: &mut Vcc, now: Instant, mut between: impl FnMut(&mut Vcc, u32)) -> Vec<Part> {
    let (mut all, mut from) = (Vec::new(), Some(0));
    while let Some(place) = from {
        if place > 0 {
            between(vcc, place);
        }
        let mut part = Part::new(place);
        vcc.write_part(now, &mut part);
        from = part.next();
        all.push(part);
    }
    all
}

fn take_early(vcc: &mut Vcc, now: Instant, age_ns: u64, parts: &[Part]) {
    parts.iter().for_each(|part| vcc.import_early(now, age_ns, part.records()));
}

/// What a switch has, in no order, with times counted from `now`.
fn all_of(vcc: &Vcc, now: Instant) -> BTreeSet<Vec<u8>> {
    vcc.export(now).chunks(BYTES).map(<[u8]>::to_vec).collect()
}

#[test]
fn what_has_not_changed_is_not_written_again() {
    let mut old = with(0..MANY);
    let parts = parts(&mut old, Instant(5_000_000), |_, _| {});
    assert_eq!(parts.len(), MANY as usize / PLACES as usize + 1);
    let (records, unchanged) = old.export_since(Instant(9_000_000), &parts);
    assert_eq!(records, []);
    assert_eq!(unchanged.iter().map(|byte| byte.count_ones()).sum::<u32>(), MANY.into());
    let mut new = empty();
    take_early(&mut new, Instant(1), 0, &parts);
    assert_eq!(new.import(Instant(2), &records, &unchanged), (MANY.into(), 0));
    assert!(all_of(&new, Instant(2)) == all_of(&old, Instant(2)));
}

#[test]
fn what_changed_ended_or_is_new_is_as_if_all_were_written_at_the_end() {
    let mut old = with(0..MANY);
    let parts = parts(&mut old, Instant(5_000_000), |_, _| {});
    change(&mut old, 3, 77_777);
    change(&mut old, 2222, 88_888);
    close(&mut old, 4);
    close(&mut old, 1500);
    // In places of those, and in new ones.
    (MANY..MANY + 5).for_each(|port| open(&mut old, &record(0), port));
    let (records, unchanged) = old.export_since(Instant(9_000_000), &parts);
    assert_eq!(records.len(), 7 * BYTES, "two changed, five are new");
    let (mut new, mut full) = (empty(), empty());
    take_early(&mut new, Instant(1), 0, &parts);
    let all = old.export(Instant(9_000_000));
    assert_eq!(new.import(Instant(2), &records, &unchanged), full.import(Instant(2), &all, &[]));
    assert!(all_of(&new, Instant(2)) == all_of(&full, Instant(2)));
    assert_eq!(new.connections.len(), u32::from(MANY) + 3);
    assert_eq!(new.import(Instant(3), &[], &[]), (0, 0), "early ones are sorted once");
    assert_eq!(new.connections.len(), u32::from(MANY) + 3);
}

#[test]
fn nothing_that_was_taken_in_early_stays_where_nothing_follows() {
    let mut old = with(0..MANY);
    let parts = parts(&mut old, Instant(5_000_000), |_, _| {});
    let mut new = empty();
    take_early(&mut new, Instant(1), 0, &parts);
    assert_eq!(new.import(Instant(2), &[], &[]), (0, 0));
    assert!(new.connections.is_empty());
    open(&mut new, &record(0), 9);
    assert_eq!(new.connections.count(ENDPOINT, Class::Open), 1);
}

#[test]
fn a_connection_that_is_written_twice_is_the_last_one() {
    // It ends behind its place, and another of the same flow opens further on.
    let mut old = with(0..MANY);
    let last = Instant(9_000_000);
    let parts = parts(&mut old, Instant(5_000_000), |old, place| {
        if place == PLACES {
            close(old, 7);
            open(old, &record(0), MANY);
            open(old, &record(0), 7);
            change(old, 7, 99_999);
        }
    });
    let (records, unchanged) = old.export_since(last, &parts);
    assert_eq!(records.len(), BYTES, "that of the first one's place");
    let mut new = empty();
    take_early(&mut new, Instant(1), 0, &parts);
    assert_eq!(new.import(Instant(2), &records, &unchanged), (usize::from(MANY) + 1, 0));
    assert!(all_of(&new, Instant(2)) == all_of(&old, Instant(2)));
}

#[test]
fn who_finds_no_room_early_finds_that_of_others_later() {
    // One endpoint has as many as it leaves free twice.
    let most = (DEFAULT_FLOWS / 3) as u16 + 1;
    let mut old = with(0..most);
    let mut parts = parts(&mut old, Instant(5_000_000), |_, _| {});
    // Of another switch, whose connections count on.
    let mut other = with(most..most + 10);
    parts.extend(self::parts(&mut other, Instant(5_000_000), |_, _| {}));
    let mut new = empty();
    take_early(&mut new, Instant(1), 0, &parts);
    let mut unchanged = vec![u8::MAX; usize::from(most + 10).div_ceil(8)];
    unchanged[0] = 0;
    assert_eq!(new.import(Instant(2), &record(most + 11), &unchanged), (most.into(), 3));
    assert_eq!(new.connections.len(), most.into());
}

#[test]
fn a_policed_window_begins_when_it_would_have() {
    const MS: u64 = 1_000_000;
    let mut old = with(0..2);
    // Counted in microseconds: within the 20 ms that follow the part, and before it.
    for (port, armed_ms) in [(0, 112), (1, 95)] {
        let id = id_of(&old, port).unwrap();
        old.connections.get_mut(id).unwrap().armed_at = armed_ms * 1000;
    }
    let parts = parts(&mut old, Instant(100 * MS), |_, _| {});
    let (records, unchanged) = old.export_since(Instant(120 * MS), &parts);
    assert_eq!((records.len(), &unchanged[..]), (0, &[0b11][..]), "time alone changes nothing");
    let mut new = empty();
    // The new one's clock began 97 ms later, and the part was 5 ms under way.
    take_early(&mut new, Instant(8 * MS), 5 * MS, &parts);
    assert_eq!(new.import(Instant(30 * MS), &records, &unchanged), (2, 0));
    let armed = [0, 1].map(|port| new.connections.get(id_of(&new, port).unwrap()).unwrap().armed_at);
    assert_eq!(armed, [15_000, open::ARMED]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn early_and_late_together_are_as_all_at_once(
        steps in prop::collection::vec((0..4u8, 0..60u16, any::<u16>()), 0..80),
        cut in 0..80usize,
    ) {
        let mut old = with(0..40);
        let record = record(0);
        let go = |old: &mut Vcc, &(what, port, value): &(u8, u16, u16)| match (what, id_of(old, port)) {
            (0, Some(id)) => old.connections.get_mut(id).unwrap().window = value.into(),
            (1, Some(_)) => close(old, port),
            (2 | 3, None) => open(old, &record, port),
            _ => {}
        };
        let (before, after) = steps.split_at(cut.min(steps.len()));
        before.iter().for_each(|step| go(&mut old, step));
        let parts = parts(&mut old, Instant(5_000_000), |_, _| {});
        after.iter().for_each(|step| go(&mut old, step));
        let (records, unchanged) = old.export_since(Instant(9_000_000), &parts);
        let (mut new, mut full) = (empty(), empty());
        take_early(&mut new, Instant(1), 0, &parts);
        let all = old.export(Instant(9_000_000));
        prop_assert_eq!(new.import(Instant(2), &records, &unchanged), full.import(Instant(2), &all, &[]));
        prop_assert!(all_of(&new, Instant(2)) == all_of(&full, Instant(2)));
        prop_assert!(records.len() / BYTES <= after.len());
    }

    #[test]
    fn no_bits_and_no_parts_do_harm(
        unchanged in prop::collection::vec(any::<u8>(), 0..20),
        changes in prop::collection::vec((0..100 * BYTES, any::<u8>()), 0..200),
        twice in any::<bool>(),
    ) {
        let mut records = with(0..100).export(Instant(3));
        changes.iter().for_each(|&(at, byte)| records[at] = byte);
        let mut new = empty();
        for _ in 0..=u8::from(twice) {
            new.import_early(Instant(1), u64::MAX, &records);
        }
        let (taken, _) = new.import(Instant(2), &records, &unchanged);
        prop_assert_eq!(taken as u32, new.connections.len());
        let all = new.export(Instant(3));
        prop_assert_eq!(empty().import(Instant(4), &all, &[]), (taken, 0), "what is exported is read");
    }
}

#[test]
fn nothing_takes_the_place_of_an_early_connection_before_it_is_known_which_go_on() {
    let mut old = with(0..3);
    let id = id_of(&old, 0).unwrap();
    old.connections.get_mut(id).unwrap().bits |= bit::FIN_IN | bit::FIN_OUT;
    let parts = parts(&mut old, Instant(5_000_000), |_, _| {});
    let mut new = empty();
    take_early(&mut new, Instant(1), 0, &parts);
    close(&mut old, 0);
    open(&mut old, &record(0), 9);
    let (records, unchanged) = old.export_since(Instant(9_000_000), &parts);
    // So much later that what had ended is old.
    assert_eq!(new.import(Instant(10_000_000_000), &records, &unchanged), (3, 0));
    assert_eq!([0, 1, 2, 9].map(|port| id_of(&new, port).is_some()), [false, true, true, true]);
}

#[test]
fn one_that_ended_behind_its_part_is_not_open() {
    let mut old = with(0..1);
    let parts = parts(&mut old, Instant(5_000_000), |_, _| {});
    let id = id_of(&old, 0).unwrap();
    old.connections.get_mut(id).unwrap().bits |= bit::FIN_IN | bit::FIN_OUT;
    let (records, unchanged) = old.export_since(Instant(9_000_000), &parts);
    let mut new = empty();
    take_early(&mut new, Instant(1), 0, &parts);
    assert_eq!(new.import(Instant(2), &records, &unchanged), (1, 0));
    let count = |class| new.connections.count(ENDPOINT, class);
    assert_eq!((count(Class::Open), count(Class::Lingering)), (0, 1));
}
