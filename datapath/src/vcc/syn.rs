//! What is changed in the options of SYNs and SYN-ACKs.
//!
//! Where Multipath TCP is stripped, all options of its kind become NOPs in both directions, so the
//! length of the header stays. Without MP_CAPABLE in the SYN or in its answer both ends have plain
//! TCP (RFC 8684, sections 3.1 and 3.7). A SYN with MP_JOIN becomes a plain one: where nobody
//! listens at that port it is refused, and where somebody does, the answer has no MP_JOIN. Who
//! wanted to join must then reset it (section 3.2) before the other side takes it for open, and
//! goes on by its other subflows. The SYN is not dropped, since then it would come again and again.
//!
//! A window field counts units of 2^s bytes, and where these are more than half of a segment, no
//! window of a few segments can be told. Where a switch rescales, a guest is told [`FINE`] instead
//! of such a scale, and each window field that it is shown from then on is in that unit
//! ([`Connection::shown`]), at most 65535 of it. That holds as long as the entry does, however the
//! connection is treated. Without it the guest sees windows that are too small, never too large.
//! Where it is not sure that both sides use the scale that was told, fields stay as they are, for
//! the same reason.

use super::Policy;
use super::connection::{Connection, Scale};
use super::option::{self, NOP};
use super::segment::{Options, each_option};
use crate::offload::Offload;
use crate::wire::transport::TCP_LEN;

/// The kind of Multipath TCP's options (RFC 8684, section 3).
pub(super) const MULTIPATH: u8 = 30;

/// The kind of the window scale (RFC 7323, section 2.2).
pub(super) const SCALE: u8 = 3;
/// The scale that is told instead of a coarse one: windows of 8 MiB, in units of 128 bytes.
pub(super) const FINE: u8 = 7;

/// The scale of a peer, and what a guest is told: less where its unit is more than half of a
/// connection's segment.
pub(super) fn fine(policy: &Policy, scale: u8, mss: u16) -> Scale {
    let is_coarse = scale > FINE && 2 << scale.min(Scale::MOST) > u32::from(mss);
    if policy.rescales && is_coarse { Scale::lowered(FINE, scale - FINE) } else { Scale::of(scale) }
}

/// What a guest is told in a SYN or SYN-ACK of its peer with these options. One without a scale,
/// behind another with one, leaves open what either side uses, and one that is signed is not
/// changed.
pub(super) fn scale(connection: &mut Connection, options: &Options) -> Option<u8> {
    if connection.scale.lowered_by() == 0 {
        return None;
    }
    if options.scale.is_none() || options.is_signed {
        connection.scale = connection.scale.kept();
        return None;
    }
    Some(connection.scale.told())
}

/// Writes it.
#[cold]
pub(super) fn tell_scale(tcp: &mut [u8; TCP_LEN], options: &mut [u8], offload: &Offload, scale: u8) {
    let is_other = |option: &[u8]| matches!(*option, [SCALE, 3, said] if said != scale);
    // An option has three bytes.
    for _ in 0..options.len() / 3 {
        let found = each_option(options).find(|(_, option)| is_other(option));
        let Some((at, _)) = found else { return };
        option::fill(tcp, options, offload, at + 2..at + 3, scale);
    }
}

/// Overwrites all options of Multipath TCP that a receiver would find.
#[cold]
pub(super) fn strip(tcp: &mut [u8; TCP_LEN], options: &mut [u8], offload: &Offload) {
    // An option has two bytes at least.
    for _ in 0..options.len() / 2 {
        let found = each_option(options).find(|(_, option)| option[0] == MULTIPATH);
        let Some(range) = found.map(|(at, option)| at..at + option.len()) else { return };
        option::fill(tcp, options, offload, range, NOP);
    }
}
