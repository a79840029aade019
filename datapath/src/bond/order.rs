//! Order restored: frames that a peer has numbered and sent over several members leave here in the
//! order of their numbers.
//!
//! A member is first-in first-out, so what it shows tells what it no longer can: number e is **lost
//! as soon as every live member has shown a later one** (the rule of RFC 1990, section 4.1, for
//! fragments over several links), and nobody waits for a timer. Else a frame waits at most `hold`.
//! Numbers are counted modulo [`MODULUS`], and compared by serial arithmetic.
//!
//! A number may be shared by consecutive frames that went over one member ("many"); it is complete
//! when that member shows a later one. A frame whose number has passed is late: it goes on,
//! counted, since whatever it carries can bear that better than its loss. A number that was seen
//! already is a duplicate, which is how the copies of `broadcast` are taken out.

use super::number::{MODULUS, Number};
use super::{MOST_MEMBERS, MemberId};
use crate::frame::{Fifo, Frame, Owner, Pool};
use crate::units::{Instant, earlier};
use crate::verdict::Reason;
use std::collections::VecDeque;

/// Places for numbers: a power of two, and at least as many as can be told apart from those that
/// have passed, half of [`MODULUS`]. A peer has fewer on the way at a time.
pub const WINDOW: u16 = 2048;
const _: () = assert!(WINDOW.is_power_of_two() && WINDOW > MODULUS / 2);
/// Bytes of buffers that may wait.
pub const MOST_BYTES: u64 = 4 << 20;
/// Longest time that a frame waits for an earlier one where a member tells nothing, in nanoseconds.
/// A peer notices a silent member within 12.5 ms, and sends again what went that way, but for what
/// has been given up.
pub const DEFAULT_HOLD_NS: u64 = 15_000_000;
/// How long what went over a member that died is waited for, in nanoseconds: the peer learns it by
/// the next hello, and sends it again.
pub const REPLAY_NS: u64 = 15_000_000;
/// No frame waits longer than this for that, whatever members die meanwhile.
pub const MOST_REPLAY_NS: u64 = 20_000_000;

/// Whose number nothing shows.
const NO_MEMBER: u8 = u8::MAX;

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OrderStats {
    /// Frames that came with a number.
    pub received: u64,
    /// Of these, those that waited for an earlier one.
    pub held: u64,
    /// Those whose number had passed.
    pub late: u64,
    /// Those whose number was seen already.
    pub duplicates: u64,
    /// Numbers that were given up.
    pub lost: u64,
    /// Frames with the number of another that came over the same member, although it did not say
    /// that others may have it: pieces of what was one frame.
    pub pieces: u64,
    /// Frames that wait now.
    pub waiting: u32,
    /// Longest time that a frame was held, in nanoseconds.
    pub hold_max_ns: u64,
}

/// When a frame with a number goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// At once, and none waits.
    Next,
    /// At once, before those that wait for it.
    First,
    /// Behind earlier ones.
    Later,
    /// Its turn has passed: behind those that go on now.
    Late,
}

/// Restores order: `rx`, `mark`, `set_live` and `restart` in, frames out by `poll` until it gives
/// `None`; come back at `poll_timeout`.
#[derive(Debug)]
pub struct Order {
    hold_ns: u64,
    /// The number that is next, counted on from the first; `None` before it.
    next: Option<u64>,
    /// By number modulo [`WINDOW`]: what waits, or has passed.
    places: Vec<Place>,
    /// What may go on.
    ready: Fifo,
    /// When the first frame of each number that waits came, in the order in which they came.
    waiting: VecDeque<(Instant, u64)>,
    waiting_bytes: u64,
    frames: u32,
    owner: Owner,
    members: [Member; MOST_MEMBERS],
    /// Until then what went over a member that died may come again by another.
    replay_until: Instant,
    stats: OrderStats,
}

#[derive(Debug, Default)]
struct Place {
    /// Whose place it is now.
    number: u64,
    frames: Fifo,
    /// It was seen, by this member; and whether others may follow there.
    seen: Option<(u8, bool)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Member {
    is_live: bool,
    /// Numbers below this come over this member no more.
    passed: u64,
    /// The number of the last frame that came over it; 0 for none. Pieces of a frame, and frames
    /// that share a number, come one behind the other; what comes again later is a copy.
    last: u64,
    /// Numbers that came over it, whatever became of them.
    come: u32,
}

impl Order {
    /// With nothing seen yet.
    #[must_use]
    pub fn new(hold_ns: u64) -> Order {
        Order {
            hold_ns,
            next: None,
            places: (0..WINDOW).map(|_| Place::default()).collect(),
            ready: Fifo::default(),
            waiting: VecDeque::with_capacity(usize::from(WINDOW) * 2),
            waiting_bytes: 0,
            frames: 0,
            owner: Owner::NOBODY,
            members: [Member::default(); MOST_MEMBERS],
            replay_until: Instant::ZERO,
            stats: OrderStats::default(),
        }
    }

    /// What was counted.
    #[must_use]
    pub fn stats(&self) -> OrderStats {
        OrderStats { waiting: self.frames, ..self.stats }
    }

    /// How long a frame may wait, in nanoseconds.
    pub fn set_hold(&mut self, hold_ns: u64) {
        self.hold_ns = hold_ns;
    }

    /// Whose memory takes what waits.
    pub fn set_owner(&mut self, pool: &mut Pool, owner: Owner) {
        self.owner = owner;
        self.ready.set_owner(pool, owner);
        self.places.iter_mut().for_each(|place| place.frames.set_owner(pool, owner));
    }

    /// The first number, where none was seen yet.
    pub fn begin(&mut self, number: u16) {
        self.next.get_or_insert(u64::from(MODULUS) + u64::from(number % MODULUS));
    }

    /// Numbers below this come over a member no more.
    #[must_use]
    pub fn passed(&self, member: MemberId) -> u64 {
        self.members.get(usize::from(member.0)).map_or(0, |member| member.passed)
    }

    /// Numbers that came over a member, counted on from wherever; pieces of one frame have one.
    #[must_use]
    pub fn come(&self, member: MemberId) -> u32 {
        self.members.get(usize::from(member.0)).map_or(0, |member| member.come)
    }

    /// The furthest that any member in use has come.
    #[must_use]
    pub fn furthest(&self) -> u64 {
        self.members.iter().filter(|member| member.is_live).map(|member| member.passed).max().unwrap_or(0)
    }

    /// Nothing will come again of what went over members that are gone.
    pub fn expect_no_replay(&mut self) {
        self.replay_until = Instant::ZERO;
    }

    /// Lets go what need not wait any more, now that members have changed.
    pub fn look(&mut self, pool: &mut Pool, now: Instant) {
        self.advance(pool, now);
    }

    /// The number that is next; `None` before any was seen.
    #[must_use]
    pub fn next(&self) -> Option<u16> {
        self.next.map(|next| (next % u64::from(MODULUS)) as u16)
    }

    /// The number that is next, counted on from the first.
    #[must_use]
    pub fn expected(&self) -> Option<u64> {
        self.next
    }

    /// Goes on from this number. With copies, all before it was seen; else what comes of that is
    /// late.
    pub fn go_on(&mut self, expected: Option<u64>, has_copies: bool) {
        self.next = expected;
        let Some(expected) = expected.filter(|_| has_copies) else { return };
        for full in expected.saturating_sub(u64::from(WINDOW))..expected {
            let place = &mut self.places[(full % u64::from(WINDOW)) as usize];
            (place.number, place.seen) = (full, Some((NO_MEMBER, false)));
        }
    }

    /// Whether any frame waits.
    #[inline]
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.frames > 0
    }

    /// Lets all go on that waits, in order.
    pub fn let_go(&mut self, pool: &mut Pool, now: Instant) {
        while self.release_next(pool, now) {}
    }

    /// Whether a member is in use. One that is not shows nothing more: nobody waits for what it may
    /// still have, but for its replay.
    pub fn set_live(&mut self, now: Instant, member: MemberId, is_live: bool) {
        let Some(found) = self.members.get_mut(usize::from(member.0)) else { return };
        if found.is_live && !is_live {
            self.replay_until = now.plus_ns(REPLAY_NS);
        }
        if is_live && !found.is_live {
            // What it carried before tells nothing of what it will.
            (found.passed, found.last) = (0, 0);
        }
        found.is_live = is_live;
    }

    /// Members are others: by place, which one each was before. What those that are gone carried
    /// may come again by the others.
    pub fn set_members(&mut self, now: Instant, was: &[Option<MemberId>]) {
        let before = self.members;
        let place = |old: u8| was.iter().position(|was| *was == Some(MemberId(old)));
        for (n, member) in self.members.iter_mut().enumerate() {
            let was = was.get(n).copied().flatten();
            *member = was.and_then(|was| before.get(usize::from(was.0)).copied()).unwrap_or_default();
        }
        if (0..).zip(&before).any(|(old, member)| member.is_live && place(old).is_none()) {
            self.replay_until = now.plus_ns(REPLAY_NS);
        }
        for (by, _) in self.places.iter_mut().filter_map(|place| place.seen.as_mut()) {
            *by = place(*by).map_or(NO_MEMBER, |new| new as u8);
        }
    }

    /// The peer began anew: what waits goes on, in order, and the next number is whichever comes
    /// first.
    pub fn restart(&mut self, pool: &mut Pool, now: Instant) {
        self.let_go(pool, now);
        self.next = None;
        for member in &mut self.members {
            (member.passed, member.last) = (0, 0);
        }
        for place in &mut self.places {
            (place.number, place.seen) = (0, None);
        }
        self.waiting.clear();
    }

    /// A frame came over a member with this number, which was taken off it. Gives it back where it
    /// goes on at once, before all that [`Order::poll`] gives.
    ///
    /// # Errors
    /// [`Reason::Duplicate`]: it was seen already; the frame is freed.
    #[inline]
    pub fn rx(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        member: MemberId,
        number: Number,
        frame: Frame,
    ) -> Result<Option<Frame>, Reason> {
        self.stats.received += 1;
        let next = *self.next.get_or_insert(u64::from(MODULUS) + u64::from(number.value));
        if self.is_alone(next, number)
            && let Some(found) = self.members.get_mut(usize::from(member.0))
            && let Some(place) = self.places.get_mut((next % u64::from(WINDOW)) as usize)
            && (place.number != next || place.seen.is_none())
        {
            (place.number, place.seen, found.last) = (next, Some((member.0, false)), next);
            self.next = Some(next + 1);
            found.passed = found.passed.max(next + 1);
            found.come = found.come.wrapping_add(1);
            return Ok(Some(frame));
        }
        self.rx_later(pool, now, member, (next, number), frame).map(|()| None)
    }

    /// What [`Order::rx`] would make of a frame that came over a member with this number.
    ///
    /// # Errors
    /// As there.
    pub fn turn_of(&self, member: MemberId, number: Number) -> Result<Turn, Reason> {
        let next = self.next.unwrap_or(u64::from(MODULUS) + u64::from(number.value));
        let full = expand(next, number.value);
        let found = self.members.get(usize::from(member.0));
        let place = &self.places[(full % u64::from(WINDOW)) as usize];
        let seen = place.seen.filter(|_| place.number == full);
        if self.is_alone(next, number) && found.is_some() && seen.is_none() {
            return Ok(Turn::Next);
        }
        match seen {
            // Pieces, and frames that share a number, come one behind the other.
            Some((by, _)) if by != member.0 || found.is_none_or(|found| found.last != full) => Err(Reason::Duplicate),
            _ if full < next => Ok(Turn::Late),
            _ if full == next => Ok(Turn::First),
            _ => Ok(Turn::Later),
        }
    }

    /// Whether a number is the next, and nothing waits.
    #[inline]
    fn is_alone(&self, next: u64, number: Number) -> bool {
        !number.is_shared
            && next % u64::from(MODULUS) == u64::from(number.value)
            && self.waiting.is_empty()
            && self.ready.is_empty()
    }

    /// A frame that is not the next, or not alone.
    #[inline(never)]
    fn rx_later(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        member: MemberId,
        (next, number): (u64, Number),
        frame: Frame,
    ) -> Result<(), Reason> {
        let full = expand(next, number.value);
        let follows = self.show(member, full, number.is_shared);
        let result = if full < next {
            self.late(pool, (member, follows), full, number.is_shared, frame)
        } else {
            self.keep(pool, now, (member, follows), full, number.is_shared, frame)
        };
        self.advance(pool, now);
        result
    }

    /// A member shows that numbers below this do not come over it any more.
    pub fn mark(&mut self, pool: &mut Pool, now: Instant, member: MemberId, below: u16) {
        let Some(next) = self.next else { return };
        if let (Some(found), full) = (self.members.get_mut(usize::from(member.0)), expand(next, below % MODULUS)) {
            // A mark moves no more than the window: a forged one does not let the bond wait for
            // what is far ahead.
            found.passed = found.passed.max(full.min(next + u64::from(WINDOW)));
        }
        self.advance(pool, now);
    }

    /// The next frame in order.
    pub fn poll(&mut self, pool: &mut Pool, now: Instant) -> Option<Frame> {
        if self.ready.is_empty() && self.poll_timeout().is_some_and(|due| due <= now) {
            self.advance(pool, now);
        }
        let frame = self.ready.pop(pool)?;
        self.frames -= 1;
        Some(frame)
    }

    /// When `poll` will have something to do, if nothing comes before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.ready.is_empty() {
            return Some(Instant::ZERO);
        }
        let expires = self.expires(self.waiting.front()?.0);
        // When no replay is waited for any more, members tell again what is lost.
        let replay = (self.replay_until > Instant::ZERO).then_some(self.replay_until);
        earlier(Some(expires), replay)
    }

    /// Frees every frame; returns how many there were.
    pub fn clear(&mut self, pool: &mut Pool) -> u32 {
        self.waiting.clear();
        (self.waiting_bytes, self.frames) = (0, 0);
        self.ready.clear(pool) + self.places.iter_mut().map(|place| place.frames.clear(pool)).sum::<u32>()
    }

    /// Members are first-in first-out: behind a frame nothing earlier comes. Others with its number
    /// may, where it is shared. Returns whether the one before had the same number.
    fn show(&mut self, member: MemberId, full: u64, is_shared: bool) -> bool {
        let Some(found) = self.members.get_mut(usize::from(member.0)) else { return false };
        found.passed = found.passed.max(full + u64::from(!is_shared));
        let follows = std::mem::replace(&mut found.last, full) == full;
        found.come = found.come.wrapping_add(u32::from(!follows));
        follows
    }

    /// A frame whose number has passed.
    fn late(
        &mut self,
        pool: &mut Pool,
        (member, follows): (MemberId, bool),
        full: u64,
        is_shared: bool,
        frame: Frame,
    ) -> Result<(), Reason> {
        let place = &mut self.places[(full % u64::from(WINDOW)) as usize];
        if place.number == full
            && let Some((by, was_shared)) = place.seen
        {
            if by != member.0 || !follows {
                return self.drop_duplicate(pool, frame);
            }
            self.stats.pieces += u64::from(!was_shared);
        }
        if place.number == full {
            place.seen = Some((member.0, is_shared));
        }
        self.stats.late += 1;
        self.frames += 1;
        self.ready.push(pool, frame);
        Ok(())
    }

    fn drop_duplicate(&mut self, pool: &mut Pool, frame: Frame) -> Result<(), Reason> {
        self.stats.duplicates += 1;
        pool.free(frame);
        Err(Reason::Duplicate)
    }

    /// Puts a frame in its place.
    fn keep(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        (member, follows): (MemberId, bool),
        full: u64,
        is_shared: bool,
        frame: Frame,
    ) -> Result<(), Reason> {
        // Where memory is short, what waits longest goes on, and what it waits for is given up.
        while self.next.is_some_and(|next| next < full)
            && !self.waiting.is_empty()
            && !pool.may_wait(self.owner, pool.class(&frame), self.waiting_bytes)
        {
            self.pass(pool, now);
        }
        let place = &mut self.places[(full % u64::from(WINDOW)) as usize];
        if place.number != full {
            debug_assert!(place.frames.is_empty());
            (place.number, place.seen) = (full, None);
        }
        match place.seen {
            Some((by, was_shared)) if by == member.0 && follows => self.stats.pieces += u64::from(!was_shared),
            Some(_) => return self.drop_duplicate(pool, frame),
            None => self.waiting.push_back((now, full)),
        }
        place.seen = Some((member.0, is_shared));
        self.waiting_bytes += u64::from(pool.truesize(&frame));
        self.frames += 1;
        pool.meta_mut(&frame).queued = now;
        place.frames.push(pool, frame);
        self.stats.held += u64::from(self.next != Some(full));
        Ok(())
    }

    /// Lets go what is next, as far as it is there or does not come any more.
    fn advance(&mut self, pool: &mut Pool, now: Instant) {
        if self.replay_until <= now {
            self.replay_until = Instant::ZERO;
        }
        while let Some(next) = self.next {
            self.forget_passed(next);
            let place = &self.places[(next % u64::from(WINDOW)) as usize];
            let seen = place.seen.filter(|_| place.number == next);
            let is_done = match seen {
                Some((_, false)) => true,
                Some((by, true)) => {
                    self.release(pool, now, next);
                    self.has_passed(by, next) || self.has_expired(now)
                }
                None => self.is_lost(next) || self.has_expired(now) || self.waiting_bytes > MOST_BYTES,
            };
            if !is_done {
                break;
            }
            self.pass(pool, now);
        }
    }

    fn has_passed(&self, member: u8, number: u64) -> bool {
        self.members.get(usize::from(member)).is_none_or(|member| member.passed > number)
    }

    /// Whether every live member has shown a later number, by a frame or by a word, whether a frame
    /// waits or not: where all on the way were lost, the other end may send nothing before it is
    /// told so. With a replay to come, that says nothing.
    fn is_lost(&self, next: u64) -> bool {
        let mut live = self.members.iter().filter(|member| member.is_live).peekable();
        self.replay_until == Instant::ZERO && live.peek().is_some() && live.all(|member| member.passed > next)
    }

    /// Whether what waits longest has waited long enough.
    fn has_expired(&self, now: Instant) -> bool {
        self.waiting.front().is_some_and(|&(since, _)| now >= self.expires(since))
    }

    /// When what has waited since then has waited long enough.
    fn expires(&self, since: Instant) -> Instant {
        since.plus_ns(self.hold_ns).max(self.replay_until.min(since.plus_ns(MOST_REPLAY_NS)))
    }

    fn forget_passed(&mut self, next: u64) {
        while self.waiting.front().is_some_and(|&(_, number)| number < next) {
            self.waiting.pop_front();
        }
        if self.waiting.len() >= usize::from(WINDOW) * 2 {
            self.waiting.retain(|&(_, number)| number >= next);
        }
    }

    /// Goes on behind the next number, with its frames or without.
    fn pass(&mut self, pool: &mut Pool, now: Instant) {
        let Some(next) = self.next else { return };
        let place = &mut self.places[(next % u64::from(WINDOW)) as usize];
        if place.number != next {
            (place.number, place.seen) = (next, None);
        }
        self.stats.lost += u64::from(place.seen.is_none());
        self.release(pool, now, next);
        self.next = Some(next + 1);
        self.forget_passed(next + 1);
    }

    fn release(&mut self, pool: &mut Pool, now: Instant, number: u64) {
        let place = &mut self.places[(number % u64::from(WINDOW)) as usize];
        while place.number == number
            && let Some(frame) = place.frames.pop(pool)
        {
            self.waiting_bytes -= u64::from(pool.truesize(&frame));
            self.stats.hold_max_ns = self.stats.hold_max_ns.max(now.since(pool.meta(&frame).queued));
            self.ready.push(pool, frame);
        }
    }

    /// The next number that waits goes on, with all before it given up. False where none waits.
    fn release_next(&mut self, pool: &mut Pool, now: Instant) -> bool {
        let Some(&next) = self.next.as_ref() else { return false };
        self.forget_passed(next);
        if self.waiting.is_empty() {
            return false;
        }
        self.pass(pool, now);
        true
    }
}

/// The number nearest to `next` that is shown as `value`.
fn expand(next: u64, value: u16) -> u64 {
    let (modulus, value) = (u64::from(MODULUS), u64::from(value % MODULUS));
    let ahead = (value + modulus - next % modulus) % modulus;
    if ahead < modulus / 2 { next + ahead } else { (next + ahead).saturating_sub(modulus) }
}

#[cfg(test)]
mod tests;
