//! Offload metadata: what segmentation and checksum work a frame still needs.
//!
//! The same facts as virtio's `struct virtio_net_hdr` (virtio 1.2, section 5.1.6), which TAP and
//! AF_PACKET carry beside each frame, but with offsets counted from the frame's first byte as it
//! lies in the pool.

/// How the payload is to be cut into segments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Gso {
    /// One frame, not to be cut.
    #[default]
    None,
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP datagrams of `size` bytes each (IPv4 or IPv6), as UDP_SEGMENT makes them.
    Udp,
}

/// What TCP's flag CWR means in a frame that is yet to be cut.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum GsoEcn {
    /// It is not set.
    #[default]
    None,
    /// RFC 3168's (section 6.1.2): it belongs to the first segment alone. What virtio's bit says.
    Cwr,
    /// A bit of AccECN's counter (RFC 9768, section 3.2.2): each segment shows it. No port can be
    /// told, and Linux clears the flag behind the first segment, so the switch cuts such a frame.
    Ace,
}

/// Offload metadata of one frame. `segment::check_offload` says whether it agrees with the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// The kind of segmentation.
    pub gso: Gso,
    /// What CWR means where the frame is cut.
    pub gso_ecn: GsoEcn,
    /// Payload bytes of each segment but the last; 0 without segmentation.
    pub gso_size: u16,
    /// The transport checksum is still partial: to be summed from `csum_start` and stored at
    /// `csum_start + csum_offset`.
    pub needs_csum: bool,
    /// The checksum was checked by whoever gave us the frame.
    pub csum_valid: bool,
    /// Where summing starts, from the frame's first byte.
    pub csum_start: u16,
    /// Where the checksum is stored, from `csum_start`.
    pub csum_offset: u16,
}

impl Offload {
    /// Whether the frame is whole: it is not to be cut, and its checksums are done.
    #[inline]
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.gso == Gso::None && self.gso_ecn == GsoEcn::None && !self.needs_csum
    }
}

/// What the leaving port can be handed; the rest is done in software before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OffloadSupport {
    /// Partial checksums.
    pub csum: bool,
    /// TCP segmentation over IPv4.
    pub tso4: bool,
    /// TCP segmentation over IPv6.
    pub tso6: bool,
    /// TCP segmentation with the ECN bit: [`GsoEcn::Cwr`].
    pub tso_ecn: bool,
    /// UDP segmentation, both IP versions.
    pub uso: bool,
    /// TCP segmentation of what lies in a tunnel over IPv4, both IP versions inside: each segment
    /// gets the outer headers too. The sum starts in the inner frame, and is partial.
    pub tunnel: bool,
}

impl OffloadSupport {
    /// Everything that needs no tunnel.
    pub const ALL: OffloadSupport =
        OffloadSupport { csum: true, tso4: true, tso6: true, tso_ecn: true, uso: true, tunnel: false };
    /// Nothing: plain frames with full checksums.
    pub const NONE: OffloadSupport =
        OffloadSupport { csum: false, tso4: false, tso6: false, tso_ecn: false, uso: false, tunnel: false };

    /// What both take.
    #[must_use]
    pub fn and(self, other: OffloadSupport) -> OffloadSupport {
        OffloadSupport {
            csum: self.csum && other.csum,
            tso4: self.tso4 && other.tso4,
            tso6: self.tso6 && other.tso6,
            tso_ecn: self.tso_ecn && other.tso_ecn,
            uso: self.uso && other.uso,
            tunnel: self.tunnel && other.tunnel,
        }
    }

    /// Whether a frame with `offload` can be handed over as it is.
    #[must_use]
    pub fn takes(self, offload: &Offload) -> bool {
        let gso = match offload.gso {
            Gso::None => true,
            Gso::Tcp4 => self.tso4,
            Gso::Tcp6 => self.tso6,
            Gso::Udp => self.uso,
        };
        let ecn = match offload.gso_ecn {
            GsoEcn::None => true,
            GsoEcn::Cwr => self.tso_ecn,
            GsoEcn::Ace => false,
        };
        gso && ecn && (self.csum || !offload.needs_csum)
    }
}

/// What the switch must know of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortFeatures {
    /// Offloads it can be handed.
    pub offload: OffloadSupport,
    /// Longest frame after segmentation, Ethernet header included (VLAN tag not).
    pub max_frame: u32,
}

impl Default for PortFeatures {
    fn default() -> Self {
        PortFeatures { offload: OffloadSupport::ALL, max_frame: 1514 }
    }
}
