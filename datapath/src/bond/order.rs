//! Order: frames that a peer has numbered and sent over several members leave here in the order of
//! their numbers.
//!
//! A member is first-in first-out: after a number, no lower one arrives over it. So a number is
//! **lost as soon as every live member has shown a later one**, without a timer. (RFC 1990, section
//! 4.1, has this rule for fragments over several links.) Otherwise a frame waits at most `hold`.
//! Numbers are counted modulo [`MODULUS`], and compared by serial arithmetic.
//!
//! Consecutive frames that were sent over one member may share a number; it is complete when that
//! member shows a later one. A frame whose number has passed is late. It is counted and passed on:
//! that does less harm than its loss. A frame whose number was seen already is a duplicate, and is
//! dropped: so are the copies of `broadcast`.

use super::number::{MODULUS, Number};
use super::{MOST_MEMBERS, MemberId};
use crate::frame::{Fifo, Frame, Owner, Pool};
use crate::units::{Instant, earlier};
use crate::verdict::Reason;
use std::collections::VecDeque;
use std::ops::Range;

/// Places for numbers: a power of two, and at least half of [`MODULUS`], as many as differ from
/// numbers that have passed. A peer has fewer on the way at a time.
pub const WINDOW: u16 = 2048;
const _: () = assert!(WINDOW.is_power_of_two() && WINDOW > MODULUS / 2);
/// Bytes of buffers that may wait.
pub const MOST_BYTES: u64 = 4 << 20;
/// Longest time that a frame waits for an earlier one, in nanoseconds, if a member is silent. A
/// peer notices that within 12.5 ms, and sends again the frames sent there that are not given up.
pub const DEFAULT_HOLD_NS: u64 = 15_000_000;
/// How long to wait for frames that were sent over a failed member, in nanoseconds. The peer learns
/// of that by the next hello, and sends them again.
pub const REPLAY_NS: u64 = 15_000_000;
/// No frame waits longer than this for such frames, in nanoseconds, even if more members fail.
pub const MOST_REPLAY_NS: u64 = 20_000_000;

/// The member is gone or not known.
const NO_MEMBER: u8 = u8::MAX;

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OrderStats {
    /// Frames that arrived with a number.
    pub received: u64,
    /// Of these, frames that waited for an earlier one.
    pub held: u64,
    /// Of these, frames whose number had passed.
    pub late: u64,
    /// Of these, frames whose number was seen already.
    pub duplicates: u64,
    /// Numbers that were given up.
    pub lost: u64,
    /// Frames with the number of the frame before, over the same member, although it was not
    /// shared: pieces of what was one frame.
    pub pieces: u64,
    /// Frames that wait now.
    pub waiting: u32,
    /// Longest time that a frame was held, in nanoseconds.
    pub hold_max_ns: u64,
}

/// When a frame with a number is passed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderDecision {
    /// At once, and no frame waits.
    Next,
    /// At once, before frames that wait for it.
    First,
    /// Behind earlier ones.
    Later,
    /// Its turn has passed: behind frames that are passed on now.
    Late,
}

/// Restores order: `rx`, `mark`, `set_live` and `restart` in, frames out by `poll` until it returns
/// `None`; call it again at `poll_timeout`.
#[derive(Debug)]
pub struct Order {
    hold_ns: u64,
    /// The next number, without modulus; `None` before the first.
    next: Option<u64>,
    /// By number modulo [`WINDOW`]: frames that wait, and numbers that were seen.
    places: Vec<WindowEntry>,
    /// Frames that may leave.
    ready: Fifo,
    /// For each number that waits, when its first frame arrived, in order of arrival.
    waiting: VecDeque<(Instant, u64)>,
    waiting_bytes: u64,
    frames: u32,
    owner: Owner,
    members: [Member; MOST_MEMBERS],
    /// Until then frames sent over a failed member may arrive again over another.
    replay_until: Instant,
    stats: OrderStats,
}

#[derive(Debug, Default)]
struct WindowEntry {
    /// The number that has the place now.
    number: u64,
    frames: Fifo,
    /// The member over which it was seen, and whether it is shared.
    seen: Option<(u8, bool)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Member {
    is_live: bool,
    /// Numbers below this do not arrive over this member any more.
    passed: u64,
    /// The number of the last frame that arrived over it; 0 for none. Pieces of a frame, and frames
    /// that share a number, arrive in succession. A number that arrives again later is a copy.
    last: u64,
    /// Numbers that arrived over it, late ones and copies included.
    come: u32,
}

impl Order {
    /// An instance that has seen no number.
    #[must_use]
    pub fn new(hold_ns: u64) -> Order {
        Order {
            hold_ns,
            next: None,
            places: (0..WINDOW).map(|_| WindowEntry::default()).collect(),
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

    /// Sets whose memory is charged for frames that wait.
    pub fn set_owner(&mut self, pool: &mut Pool, owner: Owner) {
        self.owner = owner;
        self.ready.set_owner(pool, owner);
        self.places.iter_mut().for_each(|place| place.frames.set_owner(pool, owner));
    }

    /// Sets the next number if there is none yet.
    pub fn begin(&mut self, number: u16) {
        self.next.get_or_insert(u64::from(MODULUS) + u64::from(number % MODULUS));
    }

    /// Numbers below this do not arrive over a member any more.
    #[must_use]
    pub fn passed(&self, member: MemberId) -> u64 {
        self.members.get(usize::from(member.0)).map_or(0, |member| member.passed)
    }

    /// A wrapping count of the numbers that arrived over a member; pieces of one frame count once.
    #[must_use]
    pub fn come(&self, member: MemberId) -> u32 {
        self.members.get(usize::from(member.0)).map_or(0, |member| member.come)
    }

    /// The highest [`Order::passed`] of the live members.
    #[must_use]
    pub fn furthest(&self) -> u64 {
        self.members.iter().filter(|member| member.is_live).map(|member| member.passed).max().unwrap_or(0)
    }

    /// Frames sent over failed members will not be sent again.
    pub fn expect_no_replay(&mut self) {
        self.replay_until = Instant::ZERO;
    }

    /// Releases frames that need not wait any more after members have changed.
    pub fn look(&mut self, pool: &mut Pool, now: Instant) {
        self.advance(pool, now);
    }

    /// The next number; `None` before any was seen.
    #[must_use]
    pub fn next(&self) -> Option<u16> {
        self.next.map(|next| (next % u64::from(MODULUS)) as u16)
    }

    /// The next number, without modulus.
    #[must_use]
    pub fn expected(&self) -> Option<u64> {
        self.next
    }

    /// Numbers that have passed and may still come: those that were given up, and each member's
    /// last one, of which pieces may follow.
    #[must_use]
    pub fn missing(&self) -> Vec<u64> {
        let Some(next) = self.next else { return Vec::new() };
        let given_up = self.places.iter().filter(|place| place.seen.is_none()).map(|place| place.number);
        let last = self.members.iter().map(|member| member.last);
        given_up.chain(last).filter(|number| before(next).contains(number)).collect()
    }

    /// Continues from this number. All before it count as seen, except those that are `missing`;
    /// where these are not known (`None`), frames with such numbers are late.
    pub fn go_on(&mut self, expected: Option<u64>, missing: Option<&[u64]>) {
        self.next = expected;
        let (Some(expected), Some(missing)) = (expected, missing) else { return };
        let seen = before(expected).map(|full| (full, Some((NO_MEMBER, false))));
        let missing = missing.iter().filter(|full| before(expected).contains(full)).map(|&full| (full, None));
        for (full, seen) in seen.chain(missing) {
            let place = &mut self.places[(full % u64::from(WINDOW)) as usize];
            (place.number, place.seen) = (full, seen);
        }
    }

    /// Whether any frame waits.
    #[inline]
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.frames > 0
    }

    /// Members that may bring the number that frames wait for, the furthest behind first.
    #[must_use]
    pub fn awaited(&self) -> Vec<MemberId> {
        let Some(next) = self.next.filter(|_| self.is_waiting()) else { return Vec::new() };
        let members = (0..).map(MemberId).zip(&self.members);
        let mut behind: Vec<_> = members.filter(|(_, member)| member.is_live && member.passed <= next).collect();
        behind.sort_by_key(|(_, member)| member.passed);
        behind.into_iter().map(|(id, _)| id).collect()
    }

    /// Releases all frames that wait, in order.
    pub fn let_go(&mut self, pool: &mut Pool, now: Instant) {
        while self.release_next(pool, now) {}
    }

    /// Sets whether a member is live. Numbers are no longer expected over one that is not, only
    /// their replay over others.
    pub fn set_live(&mut self, now: Instant, member: MemberId, is_live: bool) {
        let Some(found) = self.members.get_mut(usize::from(member.0)) else { return };
        if found.is_live && !is_live {
            self.replay_until = now.plus_ns(REPLAY_NS);
        }
        if is_live && !found.is_live {
            // What it carried before does not limit what it will carry.
            (found.passed, found.last) = (0, 0);
        }
        found.is_live = is_live;
    }

    /// Changes the members: `was` has, by place, which one each was before. Frames of removed
    /// members may arrive again over others.
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

    /// The peer has restarted: frames that wait are released in order, and the first number that
    /// arrives is the next.
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

    /// Receives a frame over a member with this number, which was taken off it. Returns it if it is
    /// next: before all that [`Order::poll`] returns.
    ///
    /// # Errors
    /// [`Reason::Duplicate`]: the number was seen already; the frame is freed.
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

    /// What [`Order::rx`] would do with a frame over a member with this number.
    ///
    /// # Errors
    /// As [`Order::rx`].
    pub fn turn_of(&self, member: MemberId, number: Number) -> Result<OrderDecision, Reason> {
        let next = self.next.unwrap_or(u64::from(MODULUS) + u64::from(number.value));
        let full = expand(next, number.value);
        let found = self.members.get(usize::from(member.0));
        let place = &self.places[(full % u64::from(WINDOW)) as usize];
        let seen = place.seen.filter(|_| place.number == full);
        if self.is_alone(next, number) && found.is_some() && seen.is_none() {
            return Ok(OrderDecision::Next);
        }
        match seen {
            // Pieces, and frames that share a number, arrive in succession.
            Some((by, _)) if by != member.0 || found.is_none_or(|found| found.last != full) => Err(Reason::Duplicate),
            _ if full < next => Ok(OrderDecision::Late),
            _ if full == next => Ok(OrderDecision::First),
            _ => Ok(OrderDecision::Later),
        }
    }

    /// Whether a number is the next and not shared, and no frame waits.
    #[inline]
    fn is_alone(&self, next: u64, number: Number) -> bool {
        !number.is_shared
            && next % u64::from(MODULUS) == u64::from(number.value)
            && self.waiting.is_empty()
            && self.ready.is_empty()
    }

    /// A frame for which [`Order::is_alone`] is false, or whose number was seen.
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

    /// A member shows that numbers below this do not arrive over it any more.
    pub fn mark(&mut self, pool: &mut Pool, now: Instant, member: MemberId, below: u16) {
        let Some(next) = self.next else { return };
        if let (Some(found), full) = (self.members.get_mut(usize::from(member.0)), expand(next, below % MODULUS)) {
            // A mark moves at most by the window: so a forged one cannot move far ahead.
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

    /// When `poll` will have something to do, if nothing arrives before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.ready.is_empty() {
            return Some(Instant::ZERO);
        }
        let expires = self.expires(self.waiting.front()?.0);
        // When the wait for a replay ends, numbers may be lost by what members have shown.
        let replay = (self.replay_until > Instant::ZERO).then_some(self.replay_until);
        earlier(Some(expires), replay)
    }

    /// Frees every frame; returns how many there were.
    pub fn clear(&mut self, pool: &mut Pool) -> u32 {
        self.waiting.clear();
        (self.waiting_bytes, self.frames) = (0, 0);
        self.ready.clear(pool) + self.places.iter_mut().map(|place| place.frames.clear(pool)).sum::<u32>()
    }

    /// Members are first-in first-out: no lower number arrives after a frame; the same one may, if
    /// it is shared. Returns whether the previous frame had the same number.
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
        // If memory is short, numbers that frames wait for are given up.
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

    /// Releases the next numbers, as far as they are there or given up.
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

    /// Whether every live member has shown a later number, by a frame or a hello. That holds even
    /// if no frame waits: if all on the way are lost, the other end may wait for this end's report.
    /// While a replay is expected, no number is lost.
    fn is_lost(&self, next: u64) -> bool {
        let mut live = self.members.iter().filter(|member| member.is_live).peekable();
        self.replay_until == Instant::ZERO && live.peek().is_some() && live.all(|member| member.passed > next)
    }

    /// Whether the frame that has waited longest has waited long enough.
    fn has_expired(&self, now: Instant) -> bool {
        self.waiting.front().is_some_and(|&(since, _)| now >= self.expires(since))
    }

    /// When a frame that has waited since `since` has waited long enough.
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

    /// Passes the next number, with its frames or without.
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

    /// Passes the next number, if frames wait. False if none waits.
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

/// The numbers before this one that have places.
fn before(next: u64) -> Range<u64> {
    next.saturating_sub(u64::from(WINDOW))..next
}

/// The number nearest to `next` that is shown as `value`.
fn expand(next: u64, value: u16) -> u64 {
    let (modulus, value) = (u64::from(MODULUS), u64::from(value % MODULUS));
    let ahead = (value + modulus - next % modulus) % modulus;
    if ahead < modulus / 2 { next + ahead } else { (next + ahead).saturating_sub(modulus) }
}

#[cfg(test)]
mod tests;
