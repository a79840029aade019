//! AccECN's option (RFC 9768, section 3.2.3): how many bytes arrived in each codepoint.
//!
//! The counter ACE in TCP's flags has three bits, and a guest whose host joins what arrives (GRO)
//! acknowledges 45 segments at a time. Of so many the counter cannot tell 0, 8, 16 marks apart; the
//! option can. The switch puts it into what a guest sends where it is needed and there is room:
//!
//! - marks arrived that the peer has not been told of; and [`REPEATS`] times more, since one may be
//!   lost, and tell of more than it acknowledges,
//! - more than [`SEGMENTS_APART`] segments arrived since the guest last acknowledged, so the peer
//!   cannot tell how often the counter wrapped,
//! - a counter of bytes has moved by [`BYTES_APART`],
//! - the handshake, where it shows that the path lets options through.
//!
//! A counter of ECT and one of CE are kept. A peer whose data have both ECT codepoints would need a
//! third; it gets no option. For a guest the option is overwritten, as ECN is hidden from it.
//!
//! A box on the path may drop segments with options that it does not know. If a SYN-ACK is sent
//! again, the connection uses no options. A lost acknowledgement is repaired by the next one,
//! unless that has the option too: then the peer sends data again, and the guest says that they
//! came twice (D-SACK, RFC 2883). After [`STRIKES_MOST`] such answers the connection uses no
//! options.

use super::connection::{Connection, Count};
use super::segment::{Segment, each_option, ecn};
use crate::checksum;
use crate::frame::{Frame, Pool};
use crate::offload::Offload;
use crate::wire::transport::{TCP_CHECKSUM, TCP_LEN};
use crate::wire::{L3, Layout, be16, ipv4, put16, tcp_flags};
use core::ops::Range;

/// Kinds by the order of the fields: ECT(0), CE, ECT(1), or the reverse.
const KINDS: [u8; 2] = [172, 174];
/// Bytes of the option as it is written here: kind, length, the counters of ECT and of CE.
pub const LEN: usize = 8;
/// Bytes of a counter.
const COUNTER: usize = 3;
/// Beyond it a counter has not gone on, but back.
const AHEAD_MOST: u32 = (1 << 23) - 1;
/// Where IPv6 has the length of its payload.
const IPV6_PAYLOAD_LEN: usize = 4;
/// Where TCP's header has its length, in words, in the upper half of a byte.
const TCP_WORDS: usize = 12;
/// The longest TCP header.
const TCP_MOST: u8 = 60;
/// Of no more segments than this the counter ACE tells how many are marked.
const SEGMENTS_APART: u8 = 7;
/// Payload at most of a segment that is made longer: so far below what any path carries (576 bytes,
/// RFC 1122) that it still fits, whatever the guest has found the path's MTU to be.
const PAYLOAD_MOST: u32 = 256;
/// How often marks are told again.
const REPEATS: u8 = 3;
/// The option comes at the latest when so many bytes were counted, as a power of two: each counter
/// at least once each 2^22 bytes (RFC 9768, section 3.2.3.3).
const BYTES_APART: u32 = 21;
/// Both begin with 1, so that a box that clears them is noticed (RFC 9768, section 3.2.1).
pub(super) const FIRST_ECT: u32 = 1;
/// So often data may come again that were acknowledged with an option.
const STRIKES_MOST: u8 = 3;
/// An option that says nothing.
pub(super) const NOP: u8 = 1;

/// Facts of a connection about the option, one bit each.
pub(super) mod flag {
    /// None is sent any more.
    pub const OFF: u8 = 1;
    /// The peer's options are not believed.
    pub const IGNORED: u8 = 1 << 1;
    /// What the guest sent last had it.
    pub const WAS_SENT: u8 = 1 << 2;
    /// Each segment has timestamps.
    pub const STAMPED: u8 = 1 << 3;
    /// The lowest bit of the count of strikes.
    pub const STRIKE: u8 = 1 << 4;
    /// The whole count.
    pub const STRIKES: u8 = 3 << 4;
    /// The lowest bit of the ECT codepoint whose bytes are counted; none before data came.
    pub const ECT: u8 = 1 << 6;
}

/// Where an option is in a TCP header, and what it tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Offset of its first byte behind the fixed header, and its length.
    pub at: u8,
    /// See `at`.
    pub len: u8,
    /// Bytes that came marked, modulo 2^24, if it says so.
    pub ce_bytes: Option<u32>,
    /// The counter of a codepoint that begins with 1 is 0.
    pub is_zeroed: bool,
}

/// AccECN's option among those of a TCP header. Of any length, the whole counters in it are read
/// (RFC 9768, section 3.2.3).
#[must_use]
pub fn of(options: &[u8]) -> Option<Counts> {
    let (start, option) = each_option(options).find(|(_, option)| KINDS.contains(&option[0]))?;
    let counter = |number: usize| {
        let field = option.get(2 + COUNTER * number..)?.first_chunk::<COUNTER>()?;
        Some(u32::from(field[0]) << 16 | u32::from(field[1]) << 8 | u32::from(field[2]))
    };
    let is_zeroed = [0, 2].into_iter().any(|number| counter(number) == Some(0));
    Some(Counts { at: start as u8, len: option.len() as u8, ce_bytes: counter(1), is_zeroed })
}

/// Overwrites it in a TCP header, so that a guest sees none.
pub fn hide(tcp: &mut [u8; TCP_LEN], options: &mut [u8], offload: &Offload, counts: &Counts) {
    fill(tcp, options, offload, usize::from(counts.at)..usize::from(counts.at) + usize::from(counts.len), NOP);
}

/// Makes each of these bytes of a TCP header's options `byte`.
pub(super) fn fill(tcp: &mut [u8; TCP_LEN], options: &mut [u8], offload: &Offload, range: Range<usize>, byte: u8) {
    // Whole words of 16 bits, as the checksum has them. Options end with one of 32.
    let words = range.start & !1..range.end.next_multiple_of(2);
    if words.end > options.len() {
        return;
    }
    let before = checksum::sum(&options[words.clone()]);
    options[range].fill(byte);
    if !offload.needs_csum {
        let sum = checksum::update(be16(tcp, TCP_CHECKSUM), before, checksum::sum(&options[words]));
        put16(tcp, TCP_CHECKSUM, sum);
    }
}

/// Puts an option, if there is one, behind those of a frame's TCP header, where the frame may grow.
#[inline(always)]
pub fn insert(pool: &mut Pool, frame: &Frame, option: Option<[u8; LEN]>) {
    if let Some(option) = option {
        grow(pool, frame, option);
    }
}

#[inline(never)]
fn grow(pool: &mut Pool, frame: &Frame, option: [u8; LEN]) {
    if let Some((bytes, meta)) = pool.grow_front(frame, LEN as u16) {
        write(bytes, &mut meta.layout, &meta.offload, option);
        meta.wire_bytes = crate::segment::wire_bytes(bytes.len(), &meta.layout, &meta.offload);
    }
}

/// The same of bytes that begin with room for it. The layout is that without the room.
pub fn write(bytes: &mut [u8], layout: &mut Layout, offload: &Offload, option: [u8; LEN]) {
    let (l3, l4) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset));
    let end = usize::from(layout.payload_offset);
    if bytes.len() < end + LEN {
        return;
    }
    bytes.copy_within(LEN..LEN + end, 0);
    bytes[end..end + LEN].copy_from_slice(&option);
    layout.payload_offset += LEN as u16;
    layout.end += LEN as u32;
    let longer = |bytes: &mut [u8], at: usize| {
        let was = be16(bytes, at);
        put16(bytes, at, was.wrapping_add(LEN as u16));
        (was, was.wrapping_add(LEN as u16))
    };
    match layout.l3 {
        L3::Ipv4 => {
            let (was, is) = longer(bytes, l3 + ipv4::TOTAL_LEN);
            let sum = checksum::update(be16(bytes, l3 + ipv4::CHECKSUM), was, is);
            put16(bytes, l3 + ipv4::CHECKSUM, sum);
        }
        L3::Ipv6 => drop(longer(bytes, l3 + IPV6_PAYLOAD_LEN)),
        _ => {}
    }
    let tcp = &mut bytes[l4..end + LEN];
    let was = be16(tcp, TCP_WORDS);
    tcp[TCP_WORDS] += (LEN as u8 / 4) << 4;
    let sum = be16(tcp, TCP_CHECKSUM);
    let sum = if offload.needs_csum {
        // The pseudo-header's sum alone, in which the length is.
        checksum::add(sum, LEN as u16)
    } else {
        let added = checksum::add(checksum::sum(&option), LEN as u16);
        checksum::update(checksum::update(sum, was, be16(tcp, TCP_WORDS)), 0, added)
    };
    put16(tcp, TCP_CHECKSUM, sum);
}

/// Words of four bytes that a connection's TCP header has where a segment has no options of its
/// own.
#[inline(always)]
pub(super) fn usual_words(connection: &Connection) -> u8 {
    const PLAIN: u8 = 5;
    const STAMPS: u8 = 3;
    PLAIN + STAMPS * u8::from(connection.option & flag::STAMPED != 0)
}

/// The ECT codepoint whose bytes are counted.
#[inline(always)]
fn ect(connection: &Connection) -> u8 {
    connection.option / flag::ECT
}

/// What a connection's peer is told of the bytes that arrived.
fn written(connection: &Connection) -> [u8; LEN] {
    let kind = KINDS[usize::from(ect(connection) == ecn::ECT1)];
    let ([a, b, c], [d, e, f]) = (connection.ect_bytes.bytes(), connection.ce_bytes.bytes());
    [kind, LEN as u8, a, b, c, d, e, f]
}

/// The option for a segment of a guest, where there is room. Where data came twice, an
/// acknowledgement with an option may have been lost: then without.
pub(super) fn with(connection: &Connection, segment: &Segment) -> Option<[u8; LEN]> {
    let has_room = segment.segments == 1
        && 4 * segment.words + LEN as u8 <= TCP_MOST
        && segment.payload <= PAYLOAD_MOST.min(u32::from(connection.mss).saturating_sub(LEN as u32));
    let may = connection.option & flag::OFF == 0 && !segment.has(tcp_flags::RST) && !segment.came_twice;
    (has_room && may).then(|| written(connection))
}

/// Data have arrived for a guest: so many segments and bytes, in one codepoint.
#[inline(always)]
pub(super) fn count(connection: &mut Connection, segments: u32, payload: u32, codepoint: u8) {
    connection.arrived = connection.arrived.saturating_add(segments.min(255) as u8);
    let counted = ect(connection);
    let counter = match codepoint {
        ecn::NOT => return,
        ecn::CE => &mut connection.ce_bytes,
        ecn if ecn == counted => &mut connection.ect_bytes,
        ecn => {
            // Both would need a third counter.
            connection.option |= if counted == ecn::NOT { ecn * flag::ECT } else { flag::OFF };
            &mut connection.ect_bytes
        }
    };
    let was = counter.get();
    *counter = counter.plus(payload);
    if (was ^ counter.get()) >> BYTES_APART != 0 {
        connection.arrived = u8::MAX;
    }
}

/// Whether a peer could not tell from the counter ACE alone what has arrived.
#[inline(always)]
pub(super) fn is_due(connection: &Connection) -> bool {
    connection.arrived > SEGMENTS_APART
}

/// Whether what a guest sends next may have an option, or what it sent last had one.
#[inline(always)]
pub(super) fn has_news(connection: &Connection) -> bool {
    is_due(connection) || connection.option & flag::WAS_SENT != 0
}

/// A guest sends something. Whether an option goes with it; whether it says that data came twice.
pub(super) fn sent(connection: &mut Connection, has_option: bool, came_twice: bool) {
    connection.arrived = match connection.arrived {
        _ if !has_option => 0,
        _ if connection.ce_untold > 0 => SEGMENTS_APART + REPEATS,
        // One of the repeats.
        arrived if arrived > SEGMENTS_APART + 1 && arrived <= SEGMENTS_APART + REPEATS => arrived - 1,
        _ => 0,
    };
    let is_strike = came_twice && connection.option & flag::WAS_SENT != 0;
    let strikes = (connection.option & flag::STRIKES) / flag::STRIKE + u8::from(is_strike);
    let strikes = strikes.min(STRIKES_MOST);
    let off = if strikes >= STRIKES_MOST { flag::OFF } else { 0 };
    let is_sent = if has_option { flag::WAS_SENT } else { 0 };
    connection.option =
        connection.option & !(flag::WAS_SENT | flag::STRIKES) | (strikes * flag::STRIKE) | is_sent | off;
}

/// Bytes that a peer tells as marked and has not told before, as many as it acknowledges: data are
/// counted as they are delivered, and acknowledged later. The rest is told of again. `None` where
/// it tells nothing; any number where it acknowledges nothing.
pub(super) fn news(connection: &mut Connection, told: Option<Counts>, acked: u32) -> Option<u32> {
    let ce_bytes = told?.ce_bytes.filter(|_| connection.option & flag::IGNORED == 0)?;
    // What is older, or was told by the counter ACE before, is no news.
    let more = Count::of(ce_bytes.wrapping_sub(connection.ce_bytes_seen.get())).get();
    let more = if more > AHEAD_MOST { 0 } else { more };
    connection.ce_bytes_seen = connection.ce_bytes_seen.plus(more.min(acked));
    Some(if acked > 0 { more.min(acked) } else { more })
}
