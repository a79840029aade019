//! Ports that a guest uses again.
//!
//! A SYN begins a connection, and what is known of its ports goes. But a guest's own SYN ends
//! nothing: while its peer has the old connection, it answers by an acknowledgement of that (RFC
//! 5961, section 4), and both may go on with it. So where a guest is held to its window, the old
//! entry stays, and what the SYN begins waits beside it: the *successor*, a half-open entry like
//! others. It takes the old one's place when the peer's SYN-ACK acknowledges its number. A SYN-ACK
//! of the guest that answers nothing changes nothing, for the same reason.
//!
//! An entry has one successor. A SYN of a third number is dropped until the second is
//! [`PATIENCE_NS`] old: of two on their way the peer may answer either, and of the one that had
//! made room nobody would know the numbers. A guest whose SYN was lost sends the same again.

use super::connection::{Connection, Treatment, bit};
use super::connections::{Class, Key};
use super::segment::Segment;
use super::{Call, Policy, Vcc, handshake};
use crate::table::Id;

/// An answer that is not lost comes within this time.
const PATIENCE_NS: u64 = 3_000_000_000;

/// What a guest's SYN is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Opening {
    /// The one that made this entry, once more.
    Again(Id),
    /// Both sides open at once.
    Crossed(Id),
    /// It makes an entry under this key. Another one goes.
    New(Key, Option<Id>),
    /// One too many of its ports.
    Refused,
}

/// Whether a guest is held to a connection until its peer has another.
pub(super) fn stays(connection: &Connection, policy: &Policy) -> bool {
    policy.polices && (connection.is_governed() || connection.treatment == Treatment::Native)
}

impl Vcc {
    /// What a guest's SYN is, whose ports have this entry.
    pub(super) fn opening(&self, call: &Call, key: Key, found: Option<Id>, syn: &Segment) -> Opening {
        let known = found.and_then(|id| Some((id, self.connections.get(id)?)));
        let Some((id, connection)) = known else { return Opening::New(key, found) };
        if handshake::is_sent_again(connection, syn) {
            return Opening::Again(id);
        }
        // Which flags count would depend on whose SYN came first.
        if connection.treatment == Treatment::Opening && !connection.is(bit::ACTIVE) {
            return Opening::Crossed(id);
        }
        if !stays(connection, &call.policy) {
            return Opening::New(key, found);
        }
        let key = key.second();
        let next = self.connections.find(&key);
        match next.and_then(|next| Some((next, self.connections.get(next)?))) {
            Some((next, connection)) if handshake::is_sent_again(connection, syn) => Opening::Again(next),
            Some((next, _)) if self.connections.age_ns(call.now, next) < PATIENCE_NS => Opening::Refused,
            _ => Opening::New(key, next),
        }
    }

    /// The entry whose SYN a SYN-ACK for the guest answers, if any does: the one of its ports, or
    /// that one's successor.
    pub(super) fn answered(&self, key: Key, found: Option<Id>, answer: &Segment) -> Option<Id> {
        let waits = |id: &Id| {
            let connection = self.connections.get(*id);
            connection.is_some_and(|one| one.una == one.first[0] && handshake::is_answered(one, answer))
        };
        if found.as_ref().is_some_and(waits) {
            return found;
        }
        self.connections.find(&key.second()).filter(waits).or(found)
    }

    /// A successor takes the place of the entry of its ports, where that is still there.
    pub(super) fn succeed(&mut self, call: &Call, key: Key, found: Option<Id>, next: Id) -> Option<Id> {
        let connection = *self.connections.get(next)?;
        for id in found.into_iter().chain([next]) {
            self.connections.remove(call.owner.tenant, id);
        }
        self.connections.put(call.now, call.owner.tenant, key, connection, Class::Asked).ok()
    }
}
