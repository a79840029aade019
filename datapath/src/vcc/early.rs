//! Connections that are handed over early: while the switch before still forwards.
//!
//! A handover takes as long as nothing is forwarded, so it should not depend on how many
//! connections there are. The old switch writes them down a [`Part`] at a time, some microseconds
//! each, and keeps the parts; the new one takes them in. When the old one has stopped, it compares
//! each connection with what it wrote, and says which are unchanged; only the others are written
//! again. That nothing notes what changes is on purpose: frames would pay for it.
//!
//! An early connection is known by its number: the first record of the first part has 0.

use super::connection::Connection;
use super::connections::Key;
use super::saved::{BYTES, Record, read, us, write};
use super::{MOST_FLOWS, Vcc};
use crate::table::Id;
use crate::units::Instant;

/// Places of the table that one part is made of.
pub const PLACES: u32 = 1000;

/// The connections at some places of the table, as they were at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    from: u32,
    written_at: Instant,
    /// The place of each record, in ascending order.
    places: Vec<u32>,
    records: Vec<u8>,
    /// See [`Part::next`].
    next: Option<u32>,
}

impl Part {
    /// One with nothing in it that begins at place `from`, and memory for all it may have that was
    /// touched, so that whoever fills it waits for none.
    #[must_use]
    pub fn new(from: u32) -> Part {
        let (mut places, mut records) = (vec![u32::MAX; PLACES as usize], vec![u8::MAX; PLACES as usize * BYTES]);
        places.clear();
        records.clear();
        Part { from, written_at: Instant(0), places, records, next: None }
    }

    /// Gives back the memory that is not needed: few connections may be at many places.
    pub fn shrink(&mut self) {
        self.places.shrink_to_fit();
        self.records.shrink_to_fit();
    }

    /// What was written.
    #[must_use]
    pub fn records(&self) -> &[u8] {
        &self.records
    }

    /// Where the next part begins; `None` behind the last, and where nothing was written.
    #[must_use]
    pub fn next(&self) -> Option<u32> {
        self.next
    }

    fn iter(&self) -> impl Iterator<Item = (u32, Instant, &Record)> {
        let records = self.places.iter().zip(self.records.as_chunks::<BYTES>().0);
        records.map(|(&place, record)| (place, self.written_at, record))
    }
}

/// Connections that were taken in before the rest.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// By number; `None` where there was no room, or no sense.
    ids: Vec<Option<Id>>,
    /// Those for which there was no room, or whose flow had another: by then there may be.
    waiting: Vec<(usize, Key, Connection)>,
}

/// What has become of early connections.
#[derive(Default)]
pub(super) struct Sorted {
    /// How many go on.
    pub taken: usize,
    /// Those that changed or ended.
    pub stale: Stale,
    /// Unchanged ones that are to be taken in once more.
    pub again: Vec<(Key, Connection)>,
}

/// Entries of the table that are to be changed or forgotten.
#[derive(Default)]
pub(super) struct Stale {
    /// By place.
    is_in: Vec<bool>,
    count: usize,
}

impl Stale {
    fn insert(&mut self, id: Id) {
        let at = id.0 as usize;
        if self.is_in.len() <= at {
            self.is_in.resize(at + 1, false);
        }
        self.count += usize::from(!self.is_in[at]);
        self.is_in[at] = true;
    }

    /// Whether it was in.
    pub fn remove(&mut self, id: Id) -> bool {
        let was_in = self.is_in.get_mut(id.0 as usize).is_some_and(std::mem::take);
        self.count -= usize::from(was_in);
        was_in
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn clear(&mut self) {
        *self = Stale::default();
    }

    pub fn ids(&self) -> impl Iterator<Item = Id> + '_ {
        self.is_in.iter().zip(0..).filter(|&(&is_in, _)| is_in).map(|(_, at)| Id(at))
    }
}

fn bit(bits: &[u8], number: usize) -> bool {
    bits.get(number / 8).is_some_and(|byte| byte >> (number % 8) & 1 == 1)
}

impl Vcc {
    /// Writes the connections of its places into a part that has none.
    pub fn write_part(&self, now: Instant, part: &mut Part) {
        let (end, mut record) = (part.from.saturating_add(PLACES), [0; BYTES]);
        part.written_at = now;
        part.next = (end < self.connections.places()).then_some(end);
        for (id, key, connection) in self.connections.iter_in(part.from..end) {
            if write(&mut record, now, key, connection) {
                part.places.push(id.0);
                part.records.extend_from_slice(&record);
            }
        }
    }

    /// The connections that are not as `parts` say, one record behind the other, and a bit for each
    /// that is, by its number, the lowest of a byte first.
    #[must_use]
    pub fn export_since(&self, now: Instant, parts: &[Part]) -> (Vec<u8>, Vec<u8>) {
        let count: usize = parts.iter().map(|part| part.places.len()).sum();
        let mut unchanged = vec![0; count.div_ceil(8)];
        let mut records = Vec::with_capacity((self.connections.len() as usize).saturating_sub(count) * BYTES);
        let mut early = parts.iter().flat_map(Part::iter).enumerate().peekable();
        let mut record = [0; BYTES];
        for (id, key, connection) in self.connections.iter() {
            while early.next_if(|&(_, (place, ..))| place < id.0).is_some() {}
            if let Some((number, (_, at, before))) = early.next_if(|&(_, (place, ..))| place == id.0)
                && write(&mut record, at, key, connection)
                && record == *before
            {
                unchanged[number / 8] |= 1 << (number % 8);
            } else if write(&mut record, now, key, connection) {
                records.extend_from_slice(&record);
            }
        }
        (records, unchanged)
    }

    /// Takes in the records of the next part, which was written `age_ns` ago. [`Vcc::import`] is to
    /// follow, before the first frame: it says which of them go on.
    pub fn import_early(&mut self, now: Instant, age_ns: u64, records: &[u8]) {
        let at_us = us(now).wrapping_sub((age_ns / 1000) as u32);
        let mut early = self.early.take().unwrap_or_default();
        // A switch has no more, though it may have had more than it has now.
        let room = (MOST_FLOWS as usize).saturating_sub(early.ids.len());
        for record in records.as_chunks::<BYTES>().0.iter().take(room) {
            let one = read(record, at_us);
            let new = one.filter(|(key, _)| self.connections.find(key).is_none());
            let id = new.and_then(|(key, connection)| self.add(now, key, connection));
            if let (Some((key, connection)), None) = (one, id) {
                early.waiting.push((early.ids.len(), key, connection));
            }
            early.ids.push(id);
        }
        self.early = Some(early);
    }

    /// Which of the early connections go on.
    pub(super) fn sort_early(&mut self, unchanged: &[u8]) -> Sorted {
        let mut sorted = Sorted::default();
        let Some(early) = self.early.take() else { return sorted };
        for (number, id) in early.ids.iter().enumerate() {
            match id {
                Some(_) if bit(unchanged, number) => sorted.taken += 1,
                Some(id) => sorted.stale.insert(*id),
                None => {}
            }
        }
        let again = early.waiting.into_iter().filter(|&(number, ..)| bit(unchanged, number));
        sorted.again = again.map(|(_, key, connection)| (key, connection)).collect();
        sorted
    }
}
