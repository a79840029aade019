//! One connection as one endpoint sees it: what its guest sends, and what it receives.
//!
//! Sequence numbers are compared by difference (RFC 9293, section 3.4), so that they may wrap.

use super::segment::{Options, Segment, codes, ecn};
use super::{hold, option};

/// What was negotiated toward the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wire {
    /// Nothing.
    #[default]
    Plain,
    /// RFC 3168.
    Classic,
    /// AccECN (RFC 9768).
    Accurate,
}

/// What somebody who speaks ECN says of himself in a handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// RFC 3168, whose SYN and SYN-ACK are not ECN-capable (section 6.1.1).
    Classic,
    /// RFC 3168's flags on a SYN or SYN-ACK that is ECN-capable: so does Linux where its congestion
    /// control needs ECN, as DCTCP does.
    Dctcp,
    /// AccECN, whatever the congestion control is; or a switch that speaks for its guest.
    Accurate,
}

impl Kind {
    /// Every kind, in the order of the counters.
    pub const ALL: [Kind; 3] = [Kind::Classic, Kind::Dctcp, Kind::Accurate];

    /// The name by which counters call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Classic => "classic",
            Kind::Dctcp => "dctcp",
            Kind::Accurate => "accecn",
        }
    }

    const fn classic(met: u8) -> Kind {
        if met == ecn::NOT { Kind::Classic } else { Kind::Dctcp }
    }

    /// That of a SYN, by its flags and its ECN field.
    #[must_use]
    pub const fn of_syn(says: u8, met: u8) -> Option<Kind> {
        match says {
            codes::ASK_CLASSIC => Some(Kind::classic(met)),
            codes::ASK_ACCURATE => Some(Kind::Accurate),
            _ => None,
        }
    }

    /// That of a SYN-ACK.
    #[must_use]
    pub const fn of_answer(says: u8, met: u8) -> Option<Kind> {
        match says {
            codes::CLASSIC | codes::CLASSIC_NONCE => Some(Kind::classic(met)),
            _ if codes::said_of(says).is_some() => Some(Kind::Accurate),
            _ => None,
        }
    }
}

/// How the switch treats a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Treatment {
    /// It is not open yet.
    Opening,
    /// The switch speaks ECN for the guest.
    Translated,
    /// The guest speaks ECN itself: nothing is changed.
    Native,
    /// The peer has no ECN.
    Plain,
    /// The switch must not, or cannot.
    Untouched(Why),
}

macro_rules! reasons_why {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Why a connection, or a frame of none, is left as it is.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Why { $($(#[$doc])* $variant,)* }

        impl Why {
            /// Every reason, in the order of the counters.
            pub const ALL: &'static [Why] = &[$(Why::$variant,)*];

            /// The name by which counters call it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Why::$variant => $name,)* }
            }
        }
    };
}

reasons_why! {
    /// A MAC covers the header (TCP-MD5, TCP-AO, IPsec's AH).
    Signed = "signed",
    /// Multipath TCP.
    Multipath = "multipath",
    /// Both sides opened at once.
    Simultaneous = "simultaneous-open",
    /// The handshake was not seen: it is older than the switch, or its entry was forgotten.
    Unknown = "unknown",
    /// There was no room for an entry.
    Full = "table-full",
    /// The flags of the handshake are none that a standard knows.
    Codes = "ecn-codes",
    /// A fragment: it shows no ports, or no numbers.
    Fragment = "fragment",
    /// Its acknowledgement is outside of what the guest has sent (RFC 5961).
    Outside = "outside-window",
}

/// Whether `a` lies before `b`.
#[must_use]
#[inline]
pub const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// The later of two numbers.
#[must_use]
#[inline]
pub const fn later(a: u32, b: u32) -> u32 {
    if before(a, b) { b } else { a }
}

/// The earlier of two numbers.
#[must_use]
#[inline]
pub const fn earlier(a: u32, b: u32) -> u32 {
    if before(a, b) { a } else { b }
}

/// The peer's window scale, at most 14 (RFC 7323, section 2.3), and what the guest was told
/// instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scale(u8);

impl Scale {
    /// The largest that there is.
    pub const MOST: u8 = 14;

    /// One that the guest was told as it is.
    #[must_use]
    pub const fn of(scale: u8) -> Scale {
        Scale(scale & 15)
    }

    /// The guest was told a scale that is lower by so much.
    #[must_use]
    pub const fn lowered(told: u8, by: u8) -> Scale {
        Scale(by << 4 | told & 15)
    }

    /// The same where window fields are shown as they come from now on.
    #[must_use]
    pub const fn kept(self) -> Scale {
        Scale::of(self.told())
    }

    /// What the guest was told.
    #[must_use]
    #[inline(always)]
    pub const fn told(self) -> u8 {
        self.0 & 15
    }

    /// Whether that is the peer's own.
    #[must_use]
    #[inline(always)]
    pub const fn is_own(self) -> bool {
        self.0 < 16
    }

    /// By how much less that is than the peer's own.
    #[must_use]
    #[inline(always)]
    pub const fn lowered_by(self) -> u8 {
        self.0 >> 4
    }
}

/// The code that a SYN asked with, the ECN field that the peer's SYN or SYN-ACK had, and whether
/// the guest has answered by RFC 3168 what asked for AccECN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked(u8);

impl Asked {
    const IS_CLASSIC: u8 = 1 << 5;

    /// The first two.
    #[must_use]
    pub const fn new(code: u8, met: u8) -> Asked {
        Asked(code & 7 | (met & 3) << 3)
    }

    /// See [`super::segment::codes`].
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0 & 7
    }

    /// See [`super::segment::ecn`].
    #[must_use]
    #[inline(always)]
    pub const fn met(self) -> u8 {
        self.0 >> 3 & 3
    }

    /// The same where it is asked once more.
    #[must_use]
    pub const fn again(self, code: u8, met: u8) -> Asked {
        Asked::new(code, met).answered(self.is_classic())
    }

    /// The same where the guest has answered by RFC 3168, or not.
    #[must_use]
    pub const fn answered(self, is_classic: bool) -> Asked {
        Asked(self.0 & !Asked::IS_CLASSIC | if is_classic { Asked::IS_CLASSIC } else { 0 })
    }

    /// Whether it has.
    #[must_use]
    pub const fn is_classic(self) -> bool {
        self.0 & Asked::IS_CLASSIC != 0
    }
}

/// A counter of bytes as AccECN's option has it, modulo 2^24 (RFC 9768, section 3.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count([u8; 3]);

impl Count {
    /// So many.
    #[must_use]
    #[inline(always)]
    pub const fn of(bytes: u32) -> Count {
        let [_, a, b, c] = bytes.to_be_bytes();
        Count([a, b, c])
    }

    /// How many.
    #[must_use]
    #[inline(always)]
    pub const fn get(self) -> u32 {
        let Count([a, b, c]) = self;
        u32::from_be_bytes([0, a, b, c])
    }

    /// The same and so many more.
    #[must_use]
    #[inline(always)]
    pub const fn plus(self, bytes: u32) -> Count {
        Count::of(self.get().wrapping_add(bytes))
    }

    /// As it is written.
    #[must_use]
    pub const fn bytes(self) -> [u8; 3] {
        self.0
    }
}

/// Facts of a connection, one bit each.
pub mod bit {
    /// The guest sent the SYN.
    pub const ACTIVE: u16 = 1;
    /// Both sides have a window scale.
    pub const SCALED: u16 = 1 << 1;
    /// The window is the controller's.
    pub const ENGAGED: u16 = 1 << 2;
    /// A signal came with an acknowledgement that did not advance.
    pub const PENDING: u16 = 1 << 3;
    /// Classic wire: the receiver tells of a mark: until it sees CWR, or see [`ECHOES_LAST`].
    pub const LATCHED: u16 = 1 << 4;
    /// Classic wire: the next new data say that the window was reduced.
    pub const CWR_DUE: u16 = 1 << 5;
    /// AccECN wire: the first segment after the handshake is still to be sent.
    pub const FIRST_OUT: u16 = 1 << 6;
    /// AccECN wire: the same of the peer.
    pub const FIRST_IN: u16 = 1 << 7;
    /// Classic wire: the peer is a DCTCP sender, which is told of the mark of the last data alone
    /// (RFC 8257, section 3.2). The wire tells it from [`FIRST_IN`].
    pub const ECHOES_LAST: u16 = FIRST_IN;
    /// A segment is being timed.
    pub const TIMED: u16 = 1 << 8;
    /// The guest used its window in this round. Until it is answered: its SYN names timestamps.
    pub const USED: u16 = 1 << 9;
    /// The guest has sent FIN or RST.
    pub const FIN_OUT: u16 = 1 << 10;
    /// The peer has sent FIN or RST, as one who knows the connection.
    pub const FIN_IN: u16 = 1 << 11;
    /// A window was reduced for a mark before.
    pub const MARKED: u16 = 1 << 12;
    /// A loss was seen in this round. Of natives that are watched: or CWR was said.
    pub const LOST: u16 = 1 << 13;
    /// The network clears the codepoint: nothing more is sent as capable.
    pub const BLEACHED: u16 = 1 << 14;
    /// The guest speaks ECN itself and did not heed marks, in this connection or in those before.
    /// It has the controller's window too.
    pub const DEAF: u16 = 1 << 15;
}

/// See the module. All windows are payload bytes.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// First number that the peer has not acknowledged.
    pub una: u32,
    /// Next number that the guest sends.
    pub nxt: u32,
    /// The number up to which the guest was told that it may send.
    pub edge: u32,
    /// What the controller allows.
    pub window: u32,
    /// Below it the window grows by what is acknowledged.
    pub ssthresh: u32,
    /// The round ends when this is acknowledged.
    pub round_end: u32,
    /// The next reduction may come when this is acknowledged.
    pub reduced_to: u32,
    /// Bytes acknowledged in this round.
    pub acked: u32,
    /// Of these, bytes whose mark was reported.
    pub marked: u32,
    /// What the window was before the last reduction.
    pub prior: u32,
    /// Of what is to be added to the window, what is no whole byte yet, in bytes of a window.
    pub grown: u32,
    /// What is timed: until when it is acknowledged, and when it was sent, in us.
    pub timed: (u32, u32),
    /// From when on what lies beyond the edge is no longer what was allowed before, in us; 0 where
    /// it is not any more.
    pub armed_at: u32,
    /// First sequence numbers: the guest's, the peer's.
    pub first: [u32; 2],
    /// Smoothed round trip in us.
    pub srtt: u32,
    /// DCTCP's estimate of the marked fraction, in 1/65536.
    pub alpha: u32,
    /// How long acknowledgements wait on average, in us. Until the peer's first one comes: payload
    /// of its SYN (TCP Fast Open, RFC 7413).
    pub usual_wait: u16,
    /// Where an acknowledgement for the guest waits, or [`hold::NONE`].
    pub held: u16,
    /// Marked segments that arrived and the peer has not been told of.
    pub ce_untold: u16,
    /// Largest payload of a segment.
    pub mss: u16,
    /// See [`bit`].
    pub bits: u16,
    /// While more is in flight than the window allows: how far the edge moves for a byte that is
    /// acknowledged, in 1/256.
    pub pace: u16,
    /// The peer's window scale.
    pub scale: Scale,
    /// The counter of marks that the peer last showed, three bits.
    pub ace_seen: u8,
    /// The counter of marks that the guest last showed; its low three bits count.
    pub ace_told: u8,
    /// Times that the SYN or SYN-ACK was sent.
    pub tries: u8,
    /// What the SYN asked with.
    pub asked: Asked,
    /// Rounds without a signal in which the guest did not use the window.
    pub idle_rounds: u8,
    /// Segments of the peer in a row without any sign of ECN. Natives: see [`super::watch`].
    pub zero_codes: u8,
    /// AccECN wire: payload bytes that came as ECT.
    pub ect_bytes: Count,
    /// The same of those that came marked.
    pub ce_bytes: Count,
    /// The same of those of which the peer has told.
    pub ce_bytes_seen: Count,
    /// AccECN wire: segments with data that came since the guest last sent something, at most 255.
    pub arrived: u8,
    /// Facts of its options: see [`super::option::flag`].
    pub option: u8,
    /// See [`Wire`].
    pub wire: Wire,
    /// See [`Treatment`].
    pub treatment: Treatment,
}

/// An entry of the table has 72 bytes more: hash, time, list, links, endpoint, key.
const _: () = assert!(size_of::<Connection>() <= 104);

/// Payload of a segment where a SYN names no size (RFC 9293, section 3.7.1).
const DEFAULT_MSS: u16 = 536;
/// The least that is believed: what an IPv4 datagram of 68 bytes leaves (RFC 791).
const LEAST_MSS: u16 = 28;
/// Bytes of a segment that timestamps take, padded (RFC 7323, appendix A).
const STAMPS: u16 = 12;

impl Connection {
    /// A connection of which a SYN was seen.
    #[must_use]
    pub fn new(options: &Options) -> Connection {
        let mut connection = Connection {
            una: 0,
            nxt: 0,
            edge: 0,
            window: 0,
            ssthresh: u32::MAX,
            round_end: 0,
            reduced_to: 0,
            acked: 0,
            marked: 0,
            prior: 0,
            grown: 0,
            timed: (0, 0),
            armed_at: 0,
            first: [0; 2],
            srtt: 0,
            alpha: 0,
            usual_wait: 0,
            held: hold::NONE,
            ce_untold: 0,
            mss: u16::MAX,
            bits: 0,
            pace: 0,
            scale: Scale::default(),
            ace_seen: 0,
            ace_told: 0,
            tries: 0,
            asked: Asked::default(),
            idle_rounds: 0,
            zero_codes: 0,
            ect_bytes: Count::of(option::FIRST_ECT),
            ce_bytes: Count::default(),
            ce_bytes_seen: Count::default(),
            arrived: 0,
            option: 0,
            wire: Wire::Plain,
            treatment: Treatment::Opening,
        };
        connection.heed_mss(options);
        connection.set(bit::USED, options.has_stamps);
        connection
    }

    /// Whether a fact holds.
    #[must_use]
    #[inline]
    pub fn is(&self, bit: u16) -> bool {
        self.bits & bit != 0
    }

    /// Makes a fact hold, or not.
    #[inline]
    pub fn set(&mut self, bit: u16, value: bool) {
        self.bits = if value { self.bits | bit } else { self.bits & !bit };
    }

    /// Whether the switch speaks for the guest.
    #[must_use]
    #[inline]
    pub fn is_translated(&self) -> bool {
        matches!(self.treatment, Treatment::Translated)
    }

    /// Whether the guest speaks RFC 3168's ECN, and its peer AccECN. Without the switch between
    /// them the guest takes its peer's counter for reports of marks, for ever, and its peer knows
    /// nothing of the marks on what the guest sends as capable.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.asked.is_classic() && matches!(self.treatment, Treatment::Translated | Treatment::Plain)
    }

    /// Whether it is one of these that is not translated any more: it goes on without any ECN.
    #[must_use]
    #[inline]
    pub fn is_silenced(&self) -> bool {
        self.treatment == Treatment::Plain && self.asked.is_classic()
    }

    /// Whether the controller's window is the guest's.
    #[must_use]
    #[inline]
    pub fn is_governed(&self) -> bool {
        self.is_translated() || self.is(bit::DEAF)
    }

    /// Whether a SYN-ACK of the guest answers the peer's SYN: for the first time, or once more.
    #[must_use]
    pub fn is_answered_by(&self, answer: &Segment) -> bool {
        let is_again = self.tries > 0 && self.first[0] == answer.seq;
        !self.is(bit::ACTIVE) && (is_again || self.follows_syn(answer.ack, self.usual_wait.into()))
    }

    /// Whether `number` is what may follow the peer's SYN, of whose `payload` (TCP Fast Open) all,
    /// a part or nothing was taken.
    #[must_use]
    pub fn follows_syn(&self, number: u32, payload: u32) -> bool {
        number.wrapping_sub(self.first[1]).wrapping_sub(1) <= payload
    }

    /// Whether its handshake passes as it came.
    #[must_use]
    pub fn is_left(&self) -> bool {
        matches!(self.treatment, Treatment::Untouched(Why::Signed | Why::Multipath))
    }

    /// Bytes that the guest has sent and the peer has not acknowledged.
    #[must_use]
    #[inline]
    pub fn flight(&self) -> u32 {
        self.nxt.wrapping_sub(self.una)
    }

    /// A window field of the peer by the scale that the guest was told: what does not fit it is
    /// less.
    #[must_use]
    #[inline(always)]
    pub fn shown(&self, field: u16) -> u16 {
        if self.scale.is_own() {
            return field;
        }
        (u32::from(field) << self.scale.lowered_by()).min(u16::MAX.into()) as u16
    }

    /// Where the receiver's window ends that the guest is told with an acknowledgement of `ack`.
    #[must_use]
    #[inline]
    pub fn receiver_edge(&self, ack: u32, field: u16) -> u32 {
        ack.wrapping_add(u32::from(field) << self.scale.told())
    }

    /// A SYN-ACK names a segment size too. Timestamps of both leave less of it (RFC 6691).
    pub fn heed_answer(&mut self, options: &Options) {
        self.heed_mss(options);
        if self.is(bit::USED) && options.has_stamps {
            self.mss = self.mss.saturating_sub(STAMPS).max(LEAST_MSS);
            self.option |= option::flag::STAMPED;
        }
        self.set(bit::USED, false);
    }

    /// A SYN or SYN-ACK names a segment size: the lower of both counts.
    fn heed_mss(&mut self, options: &Options) {
        let named = options.mss.unwrap_or(DEFAULT_MSS).max(LEAST_MSS);
        self.mss = self.mss.min(named);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_leave_less_of_a_segment_where_both_sides_name_them() {
        let named = |mss, has_stamps| Options { mss: Some(mss), has_stamps, ..Options::default() };
        let cases = [(true, true, 1388), (true, false, 1400), (false, true, 1400), (false, false, 1400)];
        for (asks, answers, left) in cases {
            let mut connection = Connection::new(&named(1460, asks));
            // The SYN-ACK may come twice.
            for _ in 0..2 {
                connection.heed_answer(&named(1400, answers));
                assert_eq!(connection.mss, left, "{asks}, {answers}");
            }
        }
        let mut least = Connection::new(&named(0, true));
        least.heed_answer(&named(0, true));
        assert_eq!(least.mss, LEAST_MSS);
    }
}
