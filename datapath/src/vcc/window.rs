//! Window arithmetic: what a guest is told that it may send.
//!
//! With `a` the acknowledgement number, `w` the window field and `s` the peer's scale as the guest
//! was told it (see [`super::syn`]), the receiver allows up to `a + (w << s)`. The controller
//! allows up to the *edge*. The guest is told the lower of both, rounded up to what the scale can
//! express, and never more than the field said.
//!
//! - The controller allows whole segments: what is left of its window stays until it is one, as a
//!   native's congestion window does. A part of a segment is no gift to the guest: with windows of
//!   three segments translated guests had 3 % more than natives, and Linux sends the part as a
//!   packet of its own.
//! - The edge never moves left, and never lies before what the guest has sent: Linux refuses to
//!   retransmit what lies beyond a window that shrank, takes a smaller window only with an
//!   acknowledgement that advances, and counts no duplicate whose window grew.
//! - While more is in flight than the window allows, the edge follows the acknowledgements in
//!   proportion (RFC 6937's idea): there is no silence of half a round after a reduction.
//! - Never less than two segments, unless the receiver says so: with less than one the sender's
//!   persist timer would rule, and for the second of two a receiver does not delay its
//!   acknowledgement (RFC 9293, section 3.8.6.3), which with one may take 40 ms. Where the
//!   controller allows less, the acknowledgement waits: see [`super::hold`].

use super::connection::{Connection, bit, later};
use super::{Mode, Policy};

/// The least that the controller lets a guest send, in segments.
pub(super) const LEAST_SEGMENTS: u32 = 2;

/// The window field for an acknowledgement of `ack` that said `field`; `acked` bytes are new, none
/// where it does not advance. `None` where the field stays.
pub fn tell(connection: &mut Connection, policy: &Policy, ack: u32, field: u16, acked: u32) -> Option<u16> {
    let told = told(connection, policy, ack, field, acked);
    (told != field).then_some(told)
}

/// The same, whether it stays or not.
#[inline(always)]
pub(super) fn told(connection: &mut Connection, policy: &Policy, ack: u32, field: u16, acked: u32) -> u16 {
    if !connection.is(bit::ENGAGED) {
        connection.edge = later(connection.edge, connection.receiver_edge(ack, field));
        return field;
    }
    if policy.mode == Mode::EchoPublished {
        return published(connection, ack, field);
    }
    let mss = u32::from(connection.mss);
    if acked > 0 {
        let flight = connection.nxt.wrapping_sub(ack);
        let window = connection.window.max(LEAST_SEGMENTS * mss);
        let moved = if flight > window {
            connection.edge.wrapping_add(((u64::from(acked) * u64::from(connection.pace)) >> 8) as u32)
        } else {
            later(connection.edge, ack.wrapping_add(window - window.checked_rem(mss).unwrap_or(0)))
        };
        connection.edge = later(moved, connection.nxt);
    }
    let (bytes, scale) = (u64::from(connection.edge.wrapping_sub(ack)), connection.scale.told());
    let rounded = ((bytes + (1 << scale) - 1) >> scale).min(u64::from(field)) as u16;
    connection.edge = later(connection.edge, connection.receiver_edge(ack, rounded));
    rounded
}

/// As the published code has it: the window alone counts, the edge may move left, and what is
/// rounded down gets one more. (There it is also cut to 16 bits, and may be above the receiver's
/// own window; neither is reproduced, since both break connections.)
fn published(connection: &mut Connection, ack: u32, field: u16) -> u16 {
    let told = (connection.window >> connection.scale.told()).saturating_add(1).min(u32::from(field)) as u16;
    connection.edge = later(connection.edge, connection.receiver_edge(ack, told));
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vcc::connection::Scale;
    use crate::vcc::segment::Options;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_guest_that_uses_its_window_is_told_of_whole_segments(
            mss in 28u16..9000, segments in 2u32..60, part in 0u16.., scale in 0u8..=10, first in any::<u32>(),
        ) {
            let part = u32::from(part % mss);
            let mut connection = Connection::new(&Options { mss: Some(mss), ..Options::default() });
            let mss = u32::from(connection.mss);
            connection.scale = Scale::of(scale);
            connection.set(bit::ENGAGED, true);
            connection.window = segments * mss + part;
            // One segment is acknowledged, the others are in flight.
            let ack = first.wrapping_add(mss);
            (connection.una, connection.nxt) = (ack, first.wrapping_add(segments * mss));
            connection.edge = connection.nxt;
            let told = tell(&mut connection, &Policy::default(), ack, u16::MAX, mss);
            let allowed = u32::from(told.unwrap_or(u16::MAX)) << scale;
            let most = u32::from(u16::MAX) << scale;
            prop_assert!(allowed >= (segments * mss).min(most), "{allowed}");
            prop_assert!(allowed < segments * mss + (1 << scale), "{allowed}");
        }
    }
}
