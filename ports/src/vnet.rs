//! The header that TAP and AF_PACKET carry beside each frame: `struct virtio_net_hdr`, virtio 1.2,
//! section 5.1.6, in the byte order of the machine (the "legacy" form, which a TAP uses until it is
//! told otherwise).
//!
//! | bytes | field |
//! |---|---|
//! | 0 | flags: 1 the checksum is partial, 2 the checksum was checked |
//! | 1 | segmentation: 0 none, 1 TCP/IPv4, 4 TCP/IPv6, 5 UDP; with 0x80 for TCP with ECN |
//! | 2-3 | length of the headers, a hint for how much the kernel lays out in one piece |
//! | 4-5 | payload bytes of each segment |
//! | 6-7, 8-9 | where the checksum's sum starts; where it is stored, from there |

use datapath::offload::{Gso, GsoEcn, Offload};

/// Bytes of the header (without the `num_buffers` field of the 12-byte form).
pub const HEADER_BYTES: usize = 10;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// Bytes that the kernel is asked to lay out in one piece where the headers' length is unknown:
/// Ethernet, a VLAN tag, the longest IPv4 and TCP headers (138) are rare beyond it, and it pulls in
/// the rest when needed.
const USUAL_HEADERS: usize = 128;

/// What a header says. Nothing in it is believed yet: `segment::check_offload` compares it with the
/// frame. A kind of segmentation that is not known here becomes one into segments of 0 bytes, which
/// that check refuses, so that the frame is dropped with a counter.
#[must_use]
pub fn decode(header: &[u8; HEADER_BYTES]) -> Offload {
    let field = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let (gso, gso_size) = match header[1] & !GSO_ECN {
        GSO_NONE => (Gso::None, 0),
        GSO_TCPV4 => (Gso::Tcp4, field(4)),
        GSO_TCPV6 => (Gso::Tcp6, field(4)),
        GSO_UDP_L4 => (Gso::Udp, field(4)),
        _ => (Gso::Tcp4, 0),
    };
    let needs_csum = header[0] & NEEDS_CSUM != 0;
    Offload {
        gso,
        gso_ecn: if header[1] & GSO_ECN != 0 { GsoEcn::Cwr } else { GsoEcn::None },
        gso_size,
        needs_csum,
        csum_valid: header[0] & DATA_VALID != 0,
        csum_start: if needs_csum { field(6) } else { 0 },
        csum_offset: if needs_csum { field(8) } else { 0 },
    }
}

/// The header of a frame with `bytes` and `offload`.
#[must_use]
pub fn encode(offload: &Offload, bytes: &[u8]) -> [u8; HEADER_BYTES] {
    let kind = match offload.gso {
        Gso::None => GSO_NONE,
        Gso::Tcp4 => GSO_TCPV4,
        Gso::Tcp6 => GSO_TCPV6,
        Gso::Udp => GSO_UDP_L4,
    };
    let tcp = matches!(offload.gso, Gso::Tcp4 | Gso::Tcp6);
    let mut header = [0; HEADER_BYTES];
    header[0] = match (offload.needs_csum, offload.csum_valid) {
        (true, _) => NEEDS_CSUM,
        (false, true) => DATA_VALID,
        (false, false) => 0,
    };
    header[1] = if tcp && offload.gso_ecn == GsoEcn::Cwr { kind | GSO_ECN } else { kind };
    header[2..4].copy_from_slice(&header_bytes(offload, bytes).to_ne_bytes());
    if offload.gso != Gso::None {
        header[4..6].copy_from_slice(&offload.gso_size.to_ne_bytes());
    }
    if offload.needs_csum {
        header[6..8].copy_from_slice(&offload.csum_start.to_ne_bytes());
        header[8..10].copy_from_slice(&offload.csum_offset.to_ne_bytes());
    }
    header
}

/// Length of the headers. Without it the kernel lays out the whole frame in one piece, which for 64
/// KiB is slow and fails when memory is fragmented; more than the frame's length is refused.
fn header_bytes(offload: &Offload, bytes: &[u8]) -> u16 {
    let transport = usize::from(offload.csum_start);
    let headers = match offload.gso {
        Gso::Udp if offload.needs_csum => transport + 8,
        // The upper half of TCP's byte 12 is its header's length in words of 4 bytes (RFC 9293,
        // section 3.1).
        Gso::Tcp4 | Gso::Tcp6 if offload.needs_csum => {
            let words = bytes.get(transport + 12).map_or(5, |byte| usize::from(byte >> 4));
            transport + words * 4
        }
        _ => USUAL_HEADERS,
    };
    // Both bounds fit: a frame is at most 65557 bytes, and what does not fit 16 bits is only a
    // hint.
    headers.min(bytes.len()).min(usize::from(u16::MAX)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flags: u8, kind: u8, fields: [u16; 4]) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0] = flags;
        header[1] = kind;
        for (i, field) in fields.iter().enumerate() {
            header[2 + 2 * i..4 + 2 * i].copy_from_slice(&field.to_ne_bytes());
        }
        header
    }

    #[test]
    fn a_plain_frame_has_a_header_of_zeros_but_for_the_hint() {
        assert_eq!(decode(&[0; HEADER_BYTES]), Offload::default());
        assert_eq!(encode(&Offload::default(), &[0; 60]), header(0, 0, [60, 0, 0, 0]));
        assert_eq!(encode(&Offload::default(), &[0; 9000]), header(0, 0, [128, 0, 0, 0]));
    }

    #[test]
    fn segmentation_survives_the_way_there_and_back() {
        let mut bytes = vec![0; 3000];
        bytes[34 + 12] = 8 << 4; // TCP with 12 bytes of options
        for (gso, kind, ecn, hint) in [
            (Gso::Tcp4, 1, false, 66),
            (Gso::Tcp4, 0x81, true, 66),
            (Gso::Tcp6, 4, false, 66),
            (Gso::Tcp6, 0x84, true, 66),
            (Gso::Udp, 5, false, 42),
        ] {
            let offload = Offload {
                gso,
                gso_ecn: if ecn { GsoEcn::Cwr } else { GsoEcn::None },
                gso_size: 1400,
                needs_csum: true,
                csum_valid: false,
                csum_start: 34,
                csum_offset: if gso == Gso::Udp { 6 } else { 16 },
            };
            let expected = header(1, kind, [hint, 1400, 34, offload.csum_offset]);
            assert_eq!(encode(&offload, &bytes), expected);
            assert_eq!(decode(&expected), offload);
        }
    }

    #[test]
    fn a_checked_checksum_is_passed_on_and_a_partial_one_wins_over_it() {
        let checked = Offload { csum_valid: true, ..Offload::default() };
        assert_eq!(encode(&checked, &[0; 60])[0], DATA_VALID);
        assert_eq!(decode(&header(DATA_VALID, 0, [0; 4])), checked);
        let both = Offload { needs_csum: true, ..checked };
        assert_eq!(encode(&both, &[0; 60])[0], NEEDS_CSUM);
    }

    #[test]
    fn every_header_decodes_and_unknown_segmentation_is_one_of_no_bytes() {
        for flags in 0..=u8::MAX {
            for kind in 0..=u8::MAX {
                for value in [0, 1, 0x7fff, u16::MAX] {
                    let offload = decode(&header(flags, kind, [value; 4]));
                    let known = [GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4].contains(&(kind & !GSO_ECN));
                    assert!(known || (offload.gso != Gso::None && offload.gso_size == 0));
                }
            }
        }
    }

    #[test]
    fn lying_offsets_do_not_reach_behind_the_frame() {
        for gso in [Gso::None, Gso::Tcp4, Gso::Tcp6, Gso::Udp] {
            for start in [0, 1, 33, 34, 40, u16::MAX - 8, u16::MAX] {
                for len in [0, 1, 14, 47, 60, 65_557] {
                    let offload = Offload {
                        gso,
                        needs_csum: true,
                        csum_start: start,
                        csum_offset: u16::MAX,
                        gso_size: u16::MAX,
                        ..Offload::default()
                    };
                    let header = encode(&offload, &vec![0xff; len]);
                    assert!(usize::from(u16::from_ne_bytes([header[2], header[3]])) <= len);
                }
            }
        }
    }
}
