//! Connections written down, for the switch that goes on after this one.
//!
//! A record has [`BYTES`] bytes, whatever its connection; numbers are in network byte order. What
//! is open goes along, but for what is left alone, which is not told from what is unknown. Reading
//! trusts nothing: a record that fits no endpoint, or whose values no connection has, is left out.
//! Segments that were being timed are not, and every connection counts as used just now.

use super::connection::{Asked, Connection, Count, GUEST, PEER, Scales, Treatment, Wire, bit};
use super::connections::{Class, Key};
use super::segment::Options;
use super::{Owner, Vcc, control};
use crate::ids::EndpointId;
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
/// The largest window scale (RFC 7323, section 2.3).
const MOST_SCALE: u8 = 14;
/// The furthest that a policed window's beginning lies ahead, in microseconds.
const MOST_ARMED_US: u32 = 1 << 31;

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

fn write(record: &mut [u8; BYTES], now: Instant, key: &Key, c: &Connection) -> bool {
    let treatment = match (c.treatment, c.wire) {
        (Treatment::Plain, _) => 0,
        (Treatment::Native, Wire::Plain) => 1,
        (Treatment::Native, Wire::Classic) => 4,
        (Treatment::Native, Wire::Accurate) => 5,
        (Treatment::Translated, Wire::Classic) => 2,
        (Treatment::Translated, Wire::Accurate) => 3,
        _ => return false,
    };
    let armed_us = c.armed_at.wrapping_sub((now.0 / 1000) as u32);
    let armed_us = if armed_us < MOST_ARMED_US { armed_us } else { 0 };
    let mut out = Writer(record, 0);
    out.put([VERSION, treatment]);
    out.put((c.bits & !bit::TIMED).to_be_bytes());
    out.put(key.endpoint.0.to_be_bytes());
    out.put(key.flow.to_bytes());
    let words = [c.una, c.nxt, c.edge, c.window, c.ssthresh, c.round_end, c.reduced_to, c.acked, c.marked, c.grown];
    words.into_iter().for_each(|word| out.put(word.to_be_bytes()));
    let words = [c.first[0], c.first[1], c.ce_untold.into(), c.ace_told.into(), c.srtt, c.alpha, armed_us];
    words.into_iter().for_each(|word| out.put(word.to_be_bytes()));
    out.put(c.mss.to_be_bytes());
    out.put(c.pace.to_be_bytes());
    let scales = [GUEST, PEER].map(|side| c.scales.of(side));
    let (asked, met) = (c.asked.code(), c.asked.met());
    out.put([scales[0], scales[1], c.ace_seen, c.tries, asked, met, c.idle_rounds, c.zero_codes]);
    [c.ect_bytes, c.ce_bytes, c.ce_bytes_seen].into_iter().for_each(|count| out.put(count.bytes()));
    out.put([c.option, c.arrived]);
    true
}

fn read(record: &[u8; BYTES], now: Instant) -> Option<(Key, Connection)> {
    let (treatment, wire) = match (record[0], record[1]) {
        (VERSION, 0) => (Treatment::Plain, Wire::Plain),
        (VERSION, 1) => (Treatment::Native, Wire::Plain),
        (VERSION, 2) => (Treatment::Translated, Wire::Classic),
        (VERSION, 3) => (Treatment::Translated, Wire::Accurate),
        (VERSION, 4) => (Treatment::Native, Wire::Classic),
        (VERSION, 5) => (Treatment::Native, Wire::Accurate),
        _ => return None,
    };
    let flow = FlowKey::from_bytes(record[FLOW..WORDS].try_into().ok()?)?;
    let key = Key { endpoint: EndpointId(be32(record, ENDPOINT)), flow };
    let word = |number: usize| be32(record, WORDS + 4 * number);
    let rest = WORDS + 4 * 17;
    let &[scale, peer_scale, ace_seen, tries, asked, met, idle_rounds, zero_codes] =
        record[rest + 4..].first_chunk::<8>()?;
    let counts = rest + 12;
    let mut c = Connection::new(&Options { mss: Some(be16(record, rest)), ..Options::default() });
    c.bits = be16(record, 2) & !bit::TIMED;
    (c.una, c.nxt, c.edge, c.window, c.ssthresh) = (word(0), word(1), word(2), word(3), word(4));
    (c.round_end, c.reduced_to, c.acked, c.marked, c.grown) = (word(5), word(6), word(7), word(8), word(9));
    (c.first, c.ce_untold, c.ace_told) = ([word(10), word(11)], word(12) as u16, word(13) as u8);
    (c.srtt, c.alpha) = (word(14), word(15));
    c.armed_at = ((now.0 / 1000) as u32).wrapping_add(word(16));
    c.pace = be16(record, rest + 2).min(256);
    c.scales = Scales::default().with(GUEST, scale).with(PEER, peer_scale);
    (c.ace_seen, c.tries, c.asked) = (ace_seen & 7, tries, Asked::new(asked, met));
    (c.idle_rounds, c.zero_codes) = (idle_rounds, zero_codes);
    let count = |number: usize| Count::of(be32(record, counts + 3 * number) >> 8);
    (c.ect_bytes, c.ce_bytes, c.ce_bytes_seen) = (count(0), count(1), count(2));
    (c.option, c.arrived) = (record[counts + 9], record[counts + 10]);
    (c.treatment, c.wire) = (treatment, wire);
    let is_sound = c.mss == be16(record, rest)
        && scale.max(peer_scale) <= MOST_SCALE
        && control::is_sound(&c)
        && word(16) < MOST_ARMED_US;
    is_sound.then_some((key, c))
}

impl Vcc {
    /// All connections that are open and not left alone, one record behind the other.
    #[must_use]
    pub fn export(&self, now: Instant) -> Vec<u8> {
        let mut records = Vec::with_capacity(self.connections.len() as usize * BYTES);
        let mut record = [0; BYTES];
        for (key, connection) in self.connections.iter() {
            if write(&mut record, now, key, connection) {
                records.extend_from_slice(&record);
            }
        }
        records
    }

    /// Goes on with connections that were exported: how many, and how many not.
    pub fn import(&mut self, now: Instant, records: &[u8]) -> (usize, usize) {
        let (mut taken, (records, rest)) = (0, records.as_chunks::<BYTES>());
        for record in records {
            taken += usize::from(read(record, now).is_some_and(|(key, c)| self.restore(now, key, c)));
        }
        (taken, records.len() - taken + usize::from(!rest.is_empty()))
    }

    fn restore(&mut self, now: Instant, key: Key, connection: Connection) -> bool {
        let Some(place) = self.endpoints.get(key.endpoint.0 as usize) else { return false };
        let Owner { tenant, endpoint } = place.owner;
        let fits = place.policy.translates() && endpoint == key.endpoint && self.connections.find(&key).is_none();
        fits && self.connections.insert_as(now, tenant, key, connection, Class::Open).is_ok()
    }
}
