//! Connections written down, for the switch that goes on after this one.
//!
//! A record has [`BYTES`] bytes, whatever its connection; numbers are in network byte order. What
//! is open goes along, but for what is left alone, which is not told from what is unknown. Where a
//! guest was told a finer window scale than its peer's, all goes along, since its windows are to be
//! right: what a peer has begun, too, and what is left alone. So does a successor (see
//! [`super::successor`]), or what it opens would be taken for the old connection. A switch that
//! knows nothing of these leaves such records out, as it does those of any values that it does not
//! know. Reading trusts nothing: a record that fits no endpoint, or whose values no connection has,
//! is left out. Segments that were being timed are not, and every connection counts as used just
//! now.

use super::connection::{Asked, Connection, Count, Scale, Treatment, Why, Wire, bit};
use super::connections::{Class, Key};
use super::segment::Options;
use super::{Mode, Vcc, control, early, open, syn};
use crate::ids::{EndpointId, TenantId};
use crate::table::Id;
use crate::units::Instant;
use crate::wire::{FlowKey, be16, be32};

/// Bytes of a record.
pub const BYTES: usize = 138;
/// Goes up when a record's bytes change their meaning; it is the first of them.
const VERSION: u8 = 2;
/// Where an endpoint's number is.
const ENDPOINT: usize = 4;
/// Where a flow is.
const FLOW: usize = 8;
/// Where words of four bytes begin.
const WORDS: usize = FLOW + FlowKey::BYTES;
/// Of connections that go along for their window scale alone: those that are not open, and those
/// that are left alone, with [`Why`] added.
const OPENING: u8 = 6;
/// Of a successor.
const SUCCESSOR: u8 = 7;
const UNTOUCHED: u8 = 16;

/// A connection, written down.
pub type Record = [u8; BYTES];

/// Microseconds, which wrap.
pub(super) fn us(now: Instant) -> u32 {
    (now.0 / 1000) as u32
}

/// Writes fields one after the other.
struct Writer<'a>(&'a mut [u8], usize);

impl Writer<'_> {
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        self.0[self.1..self.1 + N].copy_from_slice(&bytes);
        self.1 += N;
    }
}

/// Gives records the numbers that their endpoints have in another program; a record whose endpoint
/// has none there fits nobody.
pub fn renumber(records: &mut [u8], number: impl Fn(EndpointId) -> Option<EndpointId>) {
    for record in records.as_chunks_mut::<BYTES>().0 {
        let endpoint = number(EndpointId(be32(record, ENDPOINT))).map_or(u32::MAX, |endpoint| endpoint.0);
        record[ENDPOINT..FLOW].copy_from_slice(&endpoint.to_be_bytes());
    }
}

/// The endpoints whose connections were written down.
pub fn endpoints(records: &[u8]) -> impl Iterator<Item = EndpointId> + '_ {
    records.as_chunks::<BYTES>().0.iter().map(|record| EndpointId(be32(record, ENDPOINT)))
}

/// False: the connection is not one that goes along.
pub(super) fn write(record: &mut Record, now: Instant, key: &Key, c: &Connection) -> bool {
    let is_rescaled = c.scale.lowered_by() > 0;
    let is_successor = key.flow.is_second();
    if is_successor && c.treatment != Treatment::Opening {
        return false;
    }
    let treatment = match (c.treatment, c.wire) {
        (Treatment::Plain, _) => 0,
        (Treatment::Native, Wire::Plain) => 1,
        (Treatment::Native, Wire::Classic) => 4,
        (Treatment::Native, Wire::Accurate) => 5,
        (Treatment::Translated, Wire::Classic) => 2,
        (Treatment::Translated, Wire::Accurate) => 3,
        (Treatment::Opening, _) if is_successor => SUCCESSOR,
        (Treatment::Opening, _) if is_rescaled => OPENING,
        (Treatment::Untouched(why), _) if is_rescaled => UNTOUCHED + why as u8,
        _ => return false,
    };
    let armed_us = open::until_armed_us(c, us(now));
    let mut out = Writer(record, 0);
    out.put([VERSION, treatment]);
    out.put((c.bits & !bit::TIMED).to_be_bytes());
    out.put(key.endpoint.0.to_be_bytes());
    out.put(key.flow.to_bytes());
    let words = [c.una, c.nxt, c.edge, c.window, c.ssthresh, c.round_end, c.reduced_to, c.acked, c.marked, c.grown];
    words.into_iter().for_each(|word| out.put(word.to_be_bytes()));
    // Nothing has been marked yet of what opens, which may have come with data.
    let alpha = if treatment == OPENING { c.usual_wait.into() } else { c.alpha };
    let words = [c.first[0], c.first[1], c.ce_untold.into(), c.ace_told.into(), c.srtt, alpha, armed_us];
    words.into_iter().for_each(|word| out.put(word.to_be_bytes()));
    out.put(c.mss.to_be_bytes());
    out.put(c.pace.to_be_bytes());
    let scale = c.scale.lowered_by() << 4 | c.scale.told();
    let (asked, met) = (c.asked.code(), c.asked.met());
    out.put([u8::from(c.asked.is_classic()), scale, c.ace_seen, c.tries, asked, met, c.idle_rounds, c.zero_codes]);
    [c.ect_bytes, c.ce_bytes, c.ce_bytes_seen].into_iter().for_each(|count| out.put(count.bytes()));
    out.put([c.option, c.arrived]);
    true
}

/// What was written at `at_us`.
pub(super) fn read(record: &Record, at_us: u32) -> Option<(Key, Connection)> {
    let (treatment, wire) = match (record[0], record[1]) {
        (VERSION, 0) => (Treatment::Plain, Wire::Plain),
        (VERSION, 1) => (Treatment::Native, Wire::Plain),
        (VERSION, 2) => (Treatment::Translated, Wire::Classic),
        (VERSION, 3) => (Treatment::Translated, Wire::Accurate),
        (VERSION, 4) => (Treatment::Native, Wire::Classic),
        (VERSION, 5) => (Treatment::Native, Wire::Accurate),
        (VERSION, OPENING | SUCCESSOR) => (Treatment::Opening, Wire::Plain),
        (VERSION, why @ UNTOUCHED..) => {
            (Treatment::Untouched(*Why::ALL.get(usize::from(why - UNTOUCHED))?), Wire::Plain)
        }
        _ => return None,
    };
    let flow = FlowKey::from_bytes(record[FLOW..WORDS].try_into().ok()?)?;
    let is_successor = record[1] == SUCCESSOR;
    let flow = if is_successor { flow.second() } else { flow };
    let key = Key { endpoint: EndpointId(be32(record, ENDPOINT)), flow };
    let word = |number: usize| be32(record, WORDS + 4 * number);
    let rest = WORDS + 4 * 17;
    let &[is_classic, scale, ace_seen, tries, asked, met, idle_rounds, zero_codes] =
        record[rest + 4..].first_chunk::<8>()?;
    let counts = rest + 12;
    let mut c = Connection::new(&Options { mss: Some(be16(record, rest)), ..Options::default() });
    c.bits = be16(record, 2) & !bit::TIMED;
    (c.una, c.nxt, c.edge, c.window, c.ssthresh) = (word(0), word(1), word(2), word(3), word(4));
    (c.round_end, c.reduced_to, c.acked, c.marked, c.grown) = (word(5), word(6), word(7), word(8), word(9));
    (c.first, c.ce_untold, c.ace_told) = ([word(10), word(11)], word(12) as u16, word(13) as u8);
    (c.srtt, c.alpha) = (word(14), word(15));
    c.armed_at = open::armed_at(at_us, word(16));
    c.pace = be16(record, rest + 2).min(256);
    let (told, by) = (scale & 15, scale >> 4);
    c.scale = Scale::lowered(told, by);
    (c.ace_seen, c.tries, c.asked) = (ace_seen & 7, tries, Asked::new(asked, met).answered(is_classic == 1));
    (c.idle_rounds, c.zero_codes) = (idle_rounds, zero_codes);
    let count = |number: usize| Count::of(be32(record, counts + 3 * number) >> 8);
    (c.ect_bytes, c.ce_bytes, c.ce_bytes_seen) = (count(0), count(1), count(2));
    (c.option, c.arrived) = (record[counts + 9], record[counts + 10]);
    (c.treatment, c.wire) = (treatment, wire);
    if treatment == Treatment::Opening {
        (c.usual_wait, c.alpha) = (c.alpha as u16, 0);
    }
    let is_rescaled = by > 0 && told == syn::FINE && c.is(bit::SCALED);
    let is_open = !matches!(treatment, Treatment::Opening | Treatment::Untouched(_));
    let is_sound = c.mss == be16(record, rest)
        && told + by <= Scale::MOST
        && (is_rescaled || by == 0 && (is_open || is_successor))
        && (is_open || !c.is(bit::ENGAGED | bit::DEAF))
        && (treatment != Treatment::Opening || c.is(bit::ACTIVE) == is_successor)
        && control::is_sound(&c);
    is_sound.then_some((key, c))
}

impl Vcc {
    /// All connections that are open and not left alone, one record behind the other.
    #[must_use]
    pub fn export(&self, now: Instant) -> Vec<u8> {
        self.export_since(now, &[]).0
    }

    /// Goes on with connections that were exported, and with those that were taken in early and are
    /// `unchanged` ([`Vcc::export_since`]); others of these are forgotten. How many go on, and how
    /// many not.
    pub fn import(&mut self, now: Instant, records: &[u8], unchanged: &[u8]) -> (usize, usize) {
        let early::Sorted { mut taken, mut stale, again } = self.sort_early(unchanged);
        let (records, rest) = records.as_chunks::<BYTES>();
        let sent = records.iter().map(|record| read(record, us(now)));
        let (mut ignored, mut late) = (usize::from(!rest.is_empty()), Vec::new());
        for one in sent.chain(again.into_iter().map(Some)) {
            match one {
                Some((key, c)) if self.restore(now, key, c, &mut stale) => taken += 1,
                // There may be room when others are gone.
                Some(one) if !stale.is_empty() => late.push(one),
                _ => ignored += 1,
            }
        }
        stale.ids().for_each(|id| self.forget(id));
        stale.clear();
        for (key, c) in late {
            let goes_on = self.restore(now, key, c, &mut stale);
            (taken, ignored) = (taken + usize::from(goes_on), ignored + usize::from(!goes_on));
        }
        (taken, ignored)
    }

    /// Adds a connection, or puts it in the place of one that is `stale`.
    fn restore(&mut self, now: Instant, key: Key, connection: Connection, stale: &mut early::Stale) -> bool {
        let Some(id) = self.connections.find(&key) else { return self.add(now, key, connection).is_some() };
        if !stale.remove(id) {
            return false;
        }
        let Some((_, connection)) = self.fitted(&key, connection) else {
            self.forget(id);
            return false;
        };
        if let Some(before) = self.connections.get_mut(id) {
            *before = connection;
        }
        self.connections.touch(now, id, key.endpoint, Class::of(&connection));
        true
    }

    /// Adds a connection whose flow has no other. Nothing is forgotten for it: the numbers of those
    /// that came early are known.
    pub(super) fn add(&mut self, now: Instant, key: Key, connection: Connection) -> Option<Id> {
        let (tenant, connection) = self.fitted(&key, connection)?;
        self.connections.put(now, tenant, key, connection, Class::of(&connection)).ok()
    }

    /// A connection as it goes on here, and whose it is.
    fn fitted(&mut self, key: &Key, mut connection: Connection) -> Option<(TenantId, Connection)> {
        let place = self.endpoints.get_mut(key.endpoint.0 as usize)?;
        let owner = place.owner;
        let is_off = place.policy.mode == Mode::Off;
        // Also with the mode `count`: what is open goes on as it began.
        if owner.endpoint != key.endpoint || is_off && !connection.is_between() {
            return None;
        }
        if is_off {
            connection.treatment = Treatment::Plain;
            place.is_in = true;
            place.counters.get_or_insert_default();
            self.make_room(owner);
        }
        Some((owner.tenant, connection))
    }

    fn forget(&mut self, id: Id) {
        let place = self.connections.key(id).and_then(|key| self.endpoints.get(key.endpoint.0 as usize));
        if let Some(tenant) = place.map(|place| place.owner.tenant) {
            self.connections.remove(tenant, id);
        }
    }
}
