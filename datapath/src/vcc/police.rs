//! What a guest that is held to its window may say of ECN for itself.
//!
//! Nobody is to be marked who has nobody to heed the marks: queues drop what is not ECN-capable
//! where they mark the rest. So nothing is capable of such a guest's connections that are unknown,
//! plain or left alone; their flags stay its own. Natives whose peers have ECN are watched instead:
//! see [`super::watch`].
//!
//! Nor is a guest left alone for what it asks for or answers in a handshake: flags that no standard
//! has there are taken for none at all, and the switch speaks for it as for a guest without ECN.

use super::Policy;
use super::connection::{Connection, Treatment, Wire};
use super::segment::{Edit, Segment, codes, ecn, set_ecn};
use crate::wire::{Ipv4, Ipv6, Layout};

/// What becomes of a frame whose codepoint the switch has no say in, of a guest that is policed.
#[inline]
pub(super) fn uncapable(policy: &Policy, segment: &Segment, edit: Edit) -> Edit {
    let is_capable = policy.polices && segment.ecn != ecn::NOT;
    if is_capable { Edit { ecn: Some(ecn::NOT), ..edit } } else { edit }
}

/// The same of a packet whose segment is none to look at.
#[cold]
pub(super) fn uncapable_packet(policy: &Policy, bytes: &mut [u8], layout: &Layout) {
    let is_capable = policy.polices && ecn_of(bytes, layout) != ecn::NOT;
    let ip = bytes.get_mut(layout.l3_offset.into()..).and_then(|bytes| bytes.first_chunk_mut());
    if let Some(ip) = ip.filter(|_| is_capable) {
        set_ecn(ip, layout.l3, ecn::NOT);
    }
}

/// The ECN field of a packet.
pub(super) fn ecn_of(bytes: &[u8], layout: &Layout) -> u8 {
    Ipv4::of(bytes, layout).map(Ipv4::ecn).or_else(|| Ipv6::of(bytes, layout).map(Ipv6::ecn)).unwrap_or(ecn::NOT)
}

/// The same of an open connection that is not translated.
#[inline]
pub(super) fn native(connection: &Connection, policy: &Policy, segment: &Segment, edit: Edit) -> Edit {
    let is_watched = connection.treatment == Treatment::Native && connection.wire != Wire::Plain;
    if is_watched { edit } else { uncapable(policy, segment, edit) }
}

/// What a guest asks for with its SYN.
pub(super) fn asks(policy: &Policy, says: u8) -> u8 {
    let is_known = matches!(says, codes::NONE | codes::ASK_CLASSIC | codes::ASK_ACCURATE);
    if is_known || !policy.polices { says } else { codes::NONE }
}

/// What its peer asked for, and what it answers with its SYN-ACK.
pub(super) fn answers(policy: &Policy, asked: u8, says: u8) -> (u8, u8) {
    let asked = asks(policy, asked);
    let is_known = match says {
        codes::NONE => true,
        codes::CLASSIC | codes::CLASSIC_NONCE => asked != codes::NONE,
        _ => asked == codes::ASK_ACCURATE && codes::said_of(says).is_some(),
    };
    (asked, if is_known || !policy.polices { says } else { codes::NONE })
}
