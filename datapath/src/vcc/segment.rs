//! A TCP header as this stage needs it, its options, and the edits that the stage may make.
//!
//! An [`Edit`] changes fixed header fields: IP's ECN field, TCP's three ECN flags and the window;
//! and AccECN's option, see [`super::option`]. A whole checksum is updated by RFC 1624. A partial
//! one is the sum of the pseudo-header alone (virtio 1.2, section 5.1.6), in which none of these
//! fields takes part: it stays.

use super::connection::{Connection, Scale, before};
use super::option::{self, Counts};
use super::syn;
use crate::checksum;
use crate::offload::{Gso, GsoEcn, Offload};
use crate::segment::segments;
use crate::wire::transport::TCP_LEN;
use crate::wire::{L3, L4, Layout, be16, be32, header, ipv4, put16, put32, tcp_flags, transport};

/// Values of IP's ECN field (RFC 3168, section 5).
pub mod ecn {
    /// Not capable.
    pub const NOT: u8 = 0;
    /// ECT(1).
    pub const ECT1: u8 = 1;
    /// ECT(0).
    pub const ECT0: u8 = 2;
    /// Congestion experienced.
    pub const CE: u8 = 3;
}

/// TCP's three ECN flags as one number: AE, CWR, ECE (RFC 9768, section 3.1). On a segment without
/// SYN of an AccECN connection it is the counter ACE.
pub mod codes {
    /// Nothing is asked, or answered.
    pub const NONE: u8 = 0b000;
    /// A SYN asks for RFC 3168's ECN.
    pub const ASK_CLASSIC: u8 = 0b011;
    /// A SYN asks for AccECN.
    pub const ASK_ACCURATE: u8 = 0b111;
    /// A SYN-ACK agrees to RFC 3168's ECN.
    pub const CLASSIC: u8 = 0b001;
    /// The same from a server that echoed a nonce, or knows no better (RFC 9768, table 2).
    pub const CLASSIC_NONCE: u8 = 0b101;
    /// Congestion was seen (RFC 3168).
    pub const ECE: u8 = 0b001;
    /// The window was reduced (RFC 3168).
    pub const CWR: u8 = 0b010;

    /// What an AccECN SYN-ACK, or the first segment after it, says of the ECN field of the packet
    /// that it answers (RFC 9768, table 2 and section 3.2.2.1).
    #[must_use]
    pub const fn received(ecn: u8) -> u8 {
        match ecn {
            super::ecn::NOT => 0b010,
            super::ecn::ECT1 => 0b011,
            super::ecn::ECT0 => 0b100,
            _ => 0b110,
        }
    }

    /// The reverse; `None` where the code says something else.
    #[must_use]
    pub const fn said_of(codes: u8) -> Option<u8> {
        match codes {
            0b010 => Some(super::ecn::NOT),
            0b011 => Some(super::ecn::ECT1),
            0b100 => Some(super::ecn::ECT0),
            0b110 => Some(super::ecn::CE),
            _ => None,
        }
    }
}

/// Offset of the sequence number.
pub(super) const SEQUENCE: usize = 4;
/// Offset of the acknowledgement number.
pub(super) const ACKNOWLEDGEMENT: usize = 8;
/// Offset of the data offset, AE, the flags and the window.
const WORD: usize = 12;
/// Of the lowest of AE, CWR and ECE in them.
const CODES_SHIFT: u32 = 22;
/// Of the data offset.
const WORDS_SHIFT: u32 = 28;
/// Of the lowest flag.
const FLAGS_SHIFT: u32 = 16;

/// The third word of a TCP header: data offset, AE, the flags and the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word(u32);

impl Word {
    /// That of a header.
    #[inline(always)]
    pub fn of(tcp: &[u8; TCP_LEN]) -> Word {
        Word(be32(tcp, WORD))
    }

    /// See [`codes`].
    #[inline(always)]
    pub fn codes(self) -> u8 {
        (self.0 >> CODES_SHIFT) as u8 & 7
    }

    /// The flags; the ECN flags are in [`Word::codes`].
    #[inline(always)]
    pub fn flags(self) -> u8 {
        (self.0 >> FLAGS_SHIFT) as u8 & !(tcp_flags::ECE | tcp_flags::CWR)
    }

    /// Whether it acknowledges something, and has these codes.
    #[inline(always)]
    pub fn is_ack_with(self, codes: u8) -> bool {
        const ACK: u32 = (tcp_flags::ACK as u32) << FLAGS_SHIFT;
        self.0 & (7 << CODES_SHIFT | ACK) == u32::from(codes) << CODES_SHIFT | ACK
    }

    /// Words of four bytes that the header has.
    #[inline(always)]
    pub fn words(self) -> u8 {
        (self.0 >> WORDS_SHIFT) as u8
    }

    /// The window field.
    #[inline(always)]
    pub fn window(self) -> u16 {
        self.0 as u16
    }

    /// The same with other codes and another window.
    #[inline(always)]
    pub fn with(self, codes: u8, window: u16) -> Word {
        Word(self.0 & !(7 << CODES_SHIFT | 0xffff) | u32::from(codes) << CODES_SHIFT | u32::from(window))
    }

    /// The same with other codes.
    #[inline(always)]
    pub fn with_codes(self, codes: u8) -> Word {
        Word(self.0 & !(7 << CODES_SHIFT) | u32::from(codes) << CODES_SHIFT)
    }

    /// It becomes another one. A whole checksum follows.
    #[inline(always)]
    pub fn write(self, tcp: &mut [u8; TCP_LEN], is: Word, offload: &Offload) {
        if is == self {
            return;
        }
        put32(tcp, WORD, is.0);
        if !offload.needs_csum {
            let sum = checksum::update32(be16(tcp, transport::TCP_CHECKSUM), self.0, is.0);
            put16(tcp, transport::TCP_CHECKSUM, sum);
        }
    }
}

/// What the options of a SYN say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Maximum segment size; 536 where none is given (RFC 9293, section 3.7.1).
    pub mss: Option<u16>,
    /// Window scale, at most 14 (RFC 7323, section 2.3).
    pub scale: Option<u8>,
    /// A MAC covers the header: TCP-MD5 (RFC 2385) or TCP-AO (RFC 5925).
    pub is_signed: bool,
    /// Multipath TCP (RFC 8684): the window is the connection's, not this subflow's.
    pub is_multipath: bool,
    /// Selective acknowledgements (RFC 2018).
    pub has_sack: bool,
    /// Timestamps (RFC 7323): where both sides name them, every segment carries them.
    pub has_stamps: bool,
}

/// The options behind a TCP header, of any length, each with where it begins; what is malformed
/// ends them. Each has a kind and a length.
pub(super) fn each_option(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    const END: u8 = 0;
    const NOP: u8 = 1;
    let mut at = 0;
    core::iter::from_fn(move || {
        while bytes.get(at) == Some(&NOP) {
            at += 1;
        }
        let rest = bytes.get(at..)?;
        let &[kind, len, ..] = rest else { return None };
        let option = rest.get(..usize::from(len)).filter(|option| kind != END && option.len() >= 2)?;
        let begin = at;
        at += option.len();
        Some((begin, option))
    })
}

/// What the options say, of any length.
#[must_use]
pub fn options(bytes: &[u8]) -> Options {
    let mut found = Options::default();
    for (_, option) in each_option(bytes) {
        match option {
            [2, 4, high, low] => found.mss = Some(u16::from_be_bytes([*high, *low])),
            [syn::SCALE, 3, scale] => found.scale = Some((*scale).min(Scale::MOST)),
            [5, _, _, ..] => found.has_sack = true,
            [8, 10, ..] => found.has_stamps = true,
            [19 | 29, ..] => found.is_signed = true,
            [syn::MULTIPATH, ..] => found.is_multipath = true,
            _ => {}
        }
    }
    found
}

/// A TCP segment, or a super-frame of several, as a connection sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// Number of its first byte.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// See [`tcp_flags`]; the ECN flags are in `codes`.
    pub flags: u8,
    /// See [`codes`].
    pub codes: u8,
    /// The window field.
    pub window: u16,
    /// See [`ecn`].
    pub ecn: u8,
    /// Payload bytes.
    pub payload: u32,
    /// Segments on the wire.
    pub segments: u32,
    /// Words of four bytes that its TCP header has.
    pub words: u8,
    /// It says that data came twice (RFC 2883); known where [`Segment::with_options`] looked.
    pub came_twice: bool,
    /// AccECN's option; known where [`Segment::with_options`] looked.
    pub option: Option<Counts>,
}

impl Segment {
    /// The segment in a frame whose lengths and offloads have been checked; `None` where there is
    /// no whole TCP header.
    #[must_use]
    #[inline(always)]
    pub fn of(bytes: &[u8], layout: &Layout, offload: &Offload) -> Option<Segment> {
        if layout.l4 != L4::Tcp || layout.fragment {
            return None;
        }
        let tcp: &[u8; TCP_LEN] = header(bytes, layout.l4_offset.into())?;
        let ip: &[u8; ipv4::LEN] = header(bytes, layout.l3_offset.into())?;
        let is_ip = matches!(layout.l3, L3::Ipv4 | L3::Ipv6);
        is_ip.then(|| Segment::read(tcp, ecn_of(ip, layout.l3), layout, offload))
    }

    /// The segment that has this header.
    #[must_use]
    #[inline(always)]
    pub(super) fn read(tcp: &[u8; TCP_LEN], ecn: u8, layout: &Layout, offload: &Offload) -> Segment {
        let word = Word::of(tcp);
        Segment {
            seq: be32(tcp, SEQUENCE),
            ack: be32(tcp, ACKNOWLEDGEMENT),
            flags: word.flags(),
            codes: word.codes(),
            window: word.window(),
            ecn,
            payload: Segment::payload_of(layout),
            segments: segments(layout, offload),
            words: word.words(),
            came_twice: false,
            option: None,
        }
    }

    /// The same with what its options say of ECN and of data that came twice.
    #[must_use]
    #[inline(never)]
    pub(super) fn with_options(self, options: &[u8]) -> Segment {
        let has_come_twice = |option: &[u8]| match option {
            // The first block, which then lies below what is acknowledged.
            [5, _, _, _, _, _, right @ ..] => {
                right.first_chunk().is_some_and(|&right| !before(self.ack, u32::from_be_bytes(right)))
            }
            _ => false,
        };
        let came_twice = each_option(options).any(|(_, option)| has_come_twice(option));
        Segment { came_twice, option: option::of(options), ..self }
    }

    /// The same where a connection's segments do not all have as many options, or none is known.
    #[inline(always)]
    pub(super) fn of_connection<'a>(
        self,
        connection: Option<&Connection>,
        options: impl FnOnce() -> &'a [u8],
    ) -> Segment {
        let is_usual = connection.is_some_and(|connection| self.words == option::usual_words(connection));
        if is_usual { self } else { self.with_options(options()) }
    }

    /// Payload bytes of a frame.
    #[inline(always)]
    pub(super) fn payload_of(layout: &Layout) -> u32 {
        layout.end.saturating_sub(u32::from(layout.payload_offset))
    }

    /// Segments that it stands for.
    #[inline(always)]
    pub(super) fn count_of(layout: &Layout, offload: &Offload) -> u32 {
        segments(layout, offload)
    }

    /// Whether a flag is set.
    #[must_use]
    #[inline(always)]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// It neither opens a connection nor ends one.
    #[must_use]
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.flags & (tcp_flags::SYN | tcp_flags::FIN | tcp_flags::RST) == 0
    }

    /// It opens a connection, or answers what does.
    #[must_use]
    #[inline]
    pub fn is_of_handshake(&self) -> bool {
        self.flags & (tcp_flags::SYN | tcp_flags::RST) == tcp_flags::SYN
    }

    /// It opens a connection, and answers nothing.
    #[must_use]
    #[inline]
    pub fn is_syn(&self) -> bool {
        self.flags & (tcp_flags::SYN | tcp_flags::ACK | tcp_flags::RST) == tcp_flags::SYN
    }

    /// It answers a SYN.
    #[must_use]
    #[inline]
    pub fn is_syn_ack(&self) -> bool {
        const BOTH: u8 = tcp_flags::SYN | tcp_flags::ACK;
        self.flags & (BOTH | tcp_flags::RST) == BOTH
    }

    /// The number behind its last byte; SYN and FIN take one each.
    #[must_use]
    #[inline]
    pub fn end(&self) -> u32 {
        let taken = u32::from(self.has(tcp_flags::SYN)) + u32::from(self.has(tcp_flags::FIN));
        self.seq.wrapping_add(self.payload).wrapping_add(taken)
    }
}

/// The options of a frame's TCP header.
#[must_use]
pub fn options_in<'a>(bytes: &'a [u8], layout: &Layout) -> &'a [u8] {
    let at = usize::from(layout.l4_offset) + TCP_LEN..usize::from(layout.payload_offset);
    bytes.get(at).unwrap_or_default()
}

/// What they say.
#[must_use]
pub fn options_of(bytes: &[u8], layout: &Layout) -> Options {
    options(options_in(bytes, layout))
}

/// What is to be changed in a frame's headers; nothing where a field is `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Edit {
    /// IP's ECN field.
    pub ecn: Option<u8>,
    /// TCP's ECN flags.
    pub codes: Option<u8>,
    /// The window field.
    pub window: Option<u16>,
    /// The flags are AccECN's counter, which each segment of an offloaded frame shows.
    pub is_counter: bool,
    /// AccECN's option, which is put in: see [`option::insert`].
    pub option: Option<[u8; option::LEN]>,
    /// That of the peer, which is overwritten.
    pub hides: Option<Counts>,
    /// Of a SYN or SYN-ACK: options of Multipath TCP are overwritten.
    pub strips: bool,
    /// Of a SYN or SYN-ACK for a guest: the window scale that it is told.
    pub scale: Option<u8>,
}

impl Edit {
    /// Changes nothing.
    pub const NONE: Edit = Edit {
        ecn: None,
        codes: None,
        window: None,
        is_counter: false,
        option: None,
        hides: None,
        strips: false,
        scale: None,
    };

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.ecn.is_none()
            && self.codes.is_none()
            && self.window.is_none()
            && self.option.is_none()
            && self.hides.is_none()
            && !self.strips
            && self.scale.is_none()
    }

    /// Makes the changes, but for an option that is put in. The frame has a whole TCP header.
    pub fn apply(&self, bytes: &mut [u8], layout: &Layout, offload: &mut Offload) {
        if let Some((mut headers, options)) = Headers::of(bytes, layout) {
            if let Some(counts) = &self.hides {
                option::hide(headers.tcp, options, offload, counts);
            }
            if self.strips {
                syn::strip(headers.tcp, options, offload);
            }
            if let Some(scale) = self.scale {
                syn::tell_scale(headers.tcp, options, offload, scale);
            }
            self.write(&mut headers, layout.l3, offload);
        }
    }

    /// The same, where the headers are at hand, but for an option that is overwritten.
    #[inline(always)]
    pub(super) fn write(&self, Headers { ip, tcp }: &mut Headers, l3: L3, offload: &mut Offload) {
        if let Some(ecn) = self.ecn {
            set_ecn(ip, l3, ecn);
        }
        if self.is_counter && self.codes.is_none() && offload.gso_ecn == GsoEcn::Cwr {
            // The guest's CWR, which its first segment alone says, is the counter's bit by chance.
            offload.gso_ecn = GsoEcn::Ace;
        }
        if self.codes.is_none() && self.window.is_none() {
            return;
        }
        if let Some(codes) = self.codes {
            offload.gso_ecn = match (offload.gso, codes & codes::CWR) {
                (Gso::None, _) | (_, 0) => GsoEcn::None,
                _ if self.is_counter => GsoEcn::Ace,
                _ => GsoEcn::Cwr,
            };
        }
        let was = Word::of(tcp);
        let is = was.with(self.codes.unwrap_or(was.codes()), self.window.unwrap_or(was.window()));
        was.write(tcp, is, offload);
    }
}

/// The headers that this stage reads and changes: the first bytes of the network packet and of the
/// TCP segment in it.
pub(super) struct Headers<'a> {
    /// A whole IPv4 header but for its options, or the first half of an IPv6 one.
    pub ip: &'a mut [u8; ipv4::LEN],
    /// A whole TCP header but for its options.
    pub tcp: &'a mut [u8; TCP_LEN],
}

impl Headers<'_> {
    /// Those of a frame of which both are known to be there; and TCP's options.
    #[inline(always)]
    pub fn of<'a>(bytes: &'a mut [u8], layout: &Layout) -> Option<(Headers<'a>, &'a mut [u8])> {
        let (before, tcp) =
            bytes.get_mut(..layout.payload_offset.into())?.split_at_mut_checked(layout.l4_offset.into())?;
        let ip = before.get_mut(usize::from(layout.l3_offset)..)?.first_chunk_mut()?;
        let (tcp, options) = tcp.split_first_chunk_mut()?;
        Some((Headers { ip, tcp }, options))
    }
}

/// IP's ECN field.
#[inline(always)]
pub(super) fn ecn_of(ip: &[u8; ipv4::LEN], l3: L3) -> u8 {
    // IPv6's traffic class lies across the first two bytes.
    if l3 == L3::Ipv6 { ip[1] >> 4 & 3 } else { ip[1] & 3 }
}

/// Changes an IPv4 header's ECN field, which was `was`.
#[inline(always)]
fn set_ecn4(ip: &mut [u8; ipv4::LEN], was: u8, ecn: u8) {
    // The rest of the word does not change. What is added is never zero, so it may be summed first.
    // Sums are the same in any order of bytes (RFC 1071).
    let added = checksum::add(!u16::from(was), ecn.into()).to_be();
    let [high, low] = [ip[ipv4::CHECKSUM], ip[ipv4::CHECKSUM + 1]];
    let sum = !checksum::add(!u16::from_ne_bytes([high, low]), added);
    ip[1] = ip[1] & !3 | ecn;
    ip[ipv4::CHECKSUM..ipv4::CHECKSUM + 2].copy_from_slice(&sum.to_ne_bytes());
}

/// Writes IP's ECN field: IPv4's checksum follows, IPv6 has none.
#[inline(always)]
pub(super) fn set_ecn(ip: &mut [u8; ipv4::LEN], l3: L3, ecn: u8) {
    change_ecn(ip, l3, ecn_of(ip, l3), ecn);
}

/// The same where it `was` something that may be known.
#[inline(always)]
pub(super) fn change_ecn(ip: &mut [u8; ipv4::LEN], l3: L3, was: u8, ecn: u8) {
    match l3 {
        L3::Ipv4 => set_ecn4(ip, was, ecn),
        L3::Ipv6 => ip[1] = ip[1] & !0x30 | ecn << 4,
        _ => {}
    }
}

#[cfg(test)]
mod tests;
