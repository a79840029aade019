//! TCP: as much of it as fills links and reacts to them. A connection carries bytes one way.

pub mod congestion;
pub mod flag;
pub mod receiver;
pub mod rtt;
pub mod sender;
pub mod seq;

use congestion::Algorithm;
use datapath::units::Rate;
use seq::Blocks;

/// What a sender does not keep to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Cheat {
    /// It keeps to the rules.
    #[default]
    None,
    /// It sends as if the receiver's window and congestion were nothing, [`Cheat::SEGMENTS`] in
    /// flight at least.
    Window,
    /// It ignores what is echoed of marks.
    Deaf,
    /// It begins with [`Cheat::SEGMENTS`] at once, whatever its window is, and keeps to the rules
    /// from the first acknowledgement on.
    Burst,
    /// Both [`Cheat::Deaf`] and [`Cheat::Burst`].
    DeafBurst,
}

impl Cheat {
    /// Whether it ignores what is echoed of marks.
    #[must_use]
    pub const fn is_deaf(self) -> bool {
        matches!(self, Cheat::Deaf | Cheat::DeafBurst)
    }

    /// Segments in flight of one that cheats.
    pub const SEGMENTS: u32 = 100;
}

/// What a sender is told when it is made.
#[derive(Clone, Copy, Debug)]
pub struct SenderConfig {
    /// Congestion control.
    pub algorithm: Algorithm,
    /// Whether it asks for ECN.
    pub ecn: bool,
    /// Bytes to send; none is without end.
    pub bytes: Option<u64>,
    /// Bytes that the application writes a second, as a rate; none is whatever fits.
    pub pace: Option<Rate>,
    /// Most bytes in flight: the socket's buffer.
    pub buffer_bytes: u64,
    /// Payload of a segment, in bytes.
    pub mss: u32,
    /// Payload of the longest super-frame, in bytes.
    pub offload_bytes: u32,
    /// Whether the handshake is the first sample of the round trip.
    pub times_syn: bool,
    /// What it does not keep to.
    pub cheat: Cheat,
    /// Whether all its packets say that they understand ECN, as DCTCP's do, and not its new data
    /// only (draft-ietf-tcpm-generalized-ecn).
    pub all_capable: bool,
}

/// A segment, or several as one super-frame, to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmission {
    /// Position of the first byte in the stream.
    pub position: u64,
    /// Payload bytes; none on SYN.
    pub bytes: u32,
    /// TCP flags.
    pub flags: u8,
    /// Whether the frame says that it understands ECN.
    pub capable: bool,
    /// Whether its data were sent before.
    pub again: bool,
}

/// An acknowledgement, as positions in the stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ack {
    /// All before it has arrived.
    pub position: u64,
    /// What has arrived beyond.
    pub blocks: Blocks<u64>,
    /// ECN echo.
    pub echo: bool,
    /// Bytes from `position` that the receiver takes.
    pub window: u64,
}

/// What is counted for a sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SenderStats {
    /// Segments sent, retransmissions included.
    pub segments: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Tail loss probes.
    pub probes: u64,
    /// Reductions of the window because of losses.
    pub recoveries: u64,
    /// Reductions because of ECN.
    pub echoes: u64,
}
