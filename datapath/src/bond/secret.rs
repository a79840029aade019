//! Secret: only hellos under it are accepted, and only if they answer the challenge that this end
//! has for the member. There is a new challenge each time that the member comes up, and for each
//! peer. A sender that does not know the challenge yet receives it, and nothing else is done. So
//! recorded hellos of a peer that is gone are not accepted, nor those sent on another member, nor
//! any hello twice. This end's own hello that answers its own challenge has arrived over a cable
//! that leads back. On a member of the peer, an own hello is a recorded one, and is refused.

use super::MemberId;
use super::hello::{Challenge, Hello, HelloKey};
use super::peer::{End, NUMBERS_ON_NS, Peer};
use crate::frame::Pool;
use crate::random::Keyed;
use crate::units::Instant;
use crate::verdict::Reason;
use std::hash::BuildHasher as _;

impl Peer {
    /// Whether only hellos under a secret are sent and accepted. Until it is known none are.
    pub fn set_keyed(&mut self, pool: &mut Pool, now: Instant, is_keyed: bool) {
        if is_keyed != self.is_keyed {
            self.is_keyed = is_keyed;
            self.key = None;
            self.forget(pool, now);
        }
    }

    /// The secret. A peer that was known without it is forgotten.
    pub fn set_key(&mut self, pool: &mut Pool, now: Instant, key: Option<HelloKey>) {
        let is_known = self.key.is_none() && self.restored.is_some();
        if key == self.key || !self.is_keyed {
            return;
        }
        self.key = key;
        if !is_known {
            self.forget(pool, now);
        }
        self.say(now);
    }

    /// Whether this end would forget the peer with this secret.
    pub fn is_other_key(&self, key: Option<&HelloKey>) -> bool {
        self.is_keyed && self.key.as_ref() != key
    }

    /// Whether hellos may be sent and accepted.
    pub(super) fn may_speak(&self) -> bool {
        !self.is_keyed || self.key.is_some()
    }

    /// Forgets the other end. It may still number until it notices.
    fn forget(&mut self, pool: &mut Pool, now: Instant) {
        (self.other, self.before, self.agreed_at, self.refused_at) = (None, None, None, None);
        self.order.restart(pool, now);
        for (member, line) in (0..).map(MemberId).zip(&mut self.lines) {
            if line.end == End::Peer {
                line.end = End::Unknown(now.plus_ns(NUMBERS_ON_NS));
            }
            (line.is_received, line.is_silent) = (false, false);
            self.order.set_live(now, member, false);
        }
        self.order.expect_no_replay();
        self.challenge_all();
    }

    /// Gives each member a new challenge.
    pub(super) fn challenge_all(&mut self) {
        for line in &mut self.lines {
            self.challenges += 1;
            (line.challenge, line.greets, line.last) = (challenge(self.epoch, self.challenges), None, None);
        }
    }

    /// Whether a hello under the secret answers this member's challenge. If not, this end sends the
    /// challenge, and nothing else is done.
    ///
    /// # Errors
    /// [`Reason::BondControl`]: it was received before; or it is this bond's own, and this member
    /// leads to the peer.
    pub(super) fn is_answered(
        &mut self,
        now: Instant,
        at: usize,
        hello: &Hello,
        challenge: Challenge,
    ) -> Result<bool, Reason> {
        let line = &mut self.lines[at];
        let is_old = |last: u32| hello.count == last || last.wrapping_sub(hello.count) < 1 << 31;
        let is_own = hello.epoch == self.epoch;
        if is_own && line.end == End::Peer || self.other == Some(hello.epoch) && line.last.is_some_and(is_old) {
            self.refused += 1;
            return Err(Reason::BondControl);
        }
        if challenge.answer == line.challenge {
            if !is_own {
                (line.answer, line.last) = (challenge.own, Some(hello.count));
            }
            return Ok(true);
        }
        line.greets = Some(challenge.own);
        self.hellos_due = self.hellos_due.min(line.say(now));
        Ok(false)
    }
}

/// A different one for each count and each epoch.
pub(super) fn challenge(epoch: u64, count: u64) -> u64 {
    Keyed::new(epoch).hash_one(count)
}
