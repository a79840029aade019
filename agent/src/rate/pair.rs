//! One sender of an endpoint, and its limit.

use super::super::fill::{Child, fill};
use super::super::meter::Meter;
use super::super::report::{Ignores, Limited};
use super::addresses::Each;
use super::{Controller, Directory, FAST_NS, Instant, Post, Receiver, SAMPLE_NS, SLOW_NS, stretch};
use crate::leases::SLOWEST;
use datapath::program::EndpointId;
use datapath::units::Rate;
use datapath::wire::Mac;

/// After a limit was lowered, what had been allowed before may arrive for so long: a sample, a
/// round trip, a network queue of 256 KiB, and the two samples over which arrivals are measured.
pub(super) const GRACE_NS: u64 = 6_000_000;
/// A limit that is not used up counts as such only so long after it was raised: senders need to
/// grow into it, and the average to follow.
const RAISED_NS: u64 = 2 * SLOW_NS;
/// Who has sent more than it may for so long, by this part of it (one in) and a frame, ignores its
/// limit, if that came to as much as may pass in such a time and to a burst of two longest frames;
/// who does not for so long does not any more.
const IGNORES_NS: u64 = 50_000_000;
const IGNORES_PART: u64 = 16;
const TOLERATED_NS: u64 = 25_000_000;
const TOLERATED_BITS: u64 = 2 * 65_536 * 8;
/// What such a sender takes is counted anew when it differs by this part of it (one in) and a
/// frame: each new count is a new share for everybody.
const TAKEN_PART: u64 = 128;
/// A sender that uses less than this part of its limit (of 8) for so long gets none.
const UNUSED: u64 = 6;
const UNUSED_NS: u64 = 100_000_000;
/// A sender that for so long has stayed under its limit, by this part of it (one in) and a frame,
/// leaves the rest to others of its endpoint.
const CLOSE_NS: u64 = 4 * SLOW_NS;
const CLOSE_PART: u64 = 64;
/// Bits of the frame that a rate is made of, with all that it has on the wire (MTU 1500).
pub(super) const FRAME_BITS: u64 = 1538 * 8;
/// What one frame adds to a rate over [`FAST_NS`].
pub(super) const FRAME_FAST: u64 = FRAME_BITS * 1_000_000_000 / FAST_NS;
/// What one frame adds to a rate over [`SLOW_NS`].
pub(super) const FRAME_SLOW: u64 = FRAME_BITS * 1_000_000_000 / SLOW_NS;
/// What it makes of a sample.
pub(super) const FRAME_SAMPLE: u64 = FRAME_BITS * 1_000_000_000 / SAMPLE_NS;
/// Whoever sends so few frames that averages fall between two of them is judged no sooner than so
/// many should have come, up to a time.
const JUDGED_FRAMES: u64 = 2;
const JUDGED_NS: u64 = 200_000_000;

/// A sender of an endpoint.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub from: Mac,
    /// By this they are in order.
    pub key: u64,
    pub meter: Meter,
    /// When something arrived last, and up to when the meter is fed.
    pub seen: Instant,
    pub fed: Instant,
    pub limit: Option<Box<Limit>>,
    /// Up to this nothing that arrives can be news about its limit.
    pub quiet: u64,
    /// The number of its host; `Some(None)` where no host of the cluster has it, `None` where it
    /// was not asked yet.
    pub host: Option<Option<u32>>,
}

/// What a sender may send.
#[derive(Clone, Debug)]
pub(super) struct Limit {
    /// As it should be, and as it was told last, in bits a second.
    pub rate: u64,
    pub told: Option<u64>,
    told_at: Instant,
    /// When it was told something, be it the same.
    pub said_at: Instant,
    /// The highest of what was told before, until the sender can have heard of `told`.
    before: u64,
    /// When it was raised by more than a sixteenth.
    pub raised_at: Instant,
    /// When it was told the same once more, in case it had not heard of that.
    pub repeated_at: Instant,
    /// Whether it uses the limit up.
    pub wants_more: bool,
    /// Since when it has stayed a little under it.
    close_since: Option<Instant>,
    /// Since when it does not seem to.
    short_since: Option<Instant>,
    /// Since when less is used.
    unused_since: Option<Instant>,
    /// Since when it has been as `ignores` does not say.
    otherwise_since: Option<Instant>,
    /// Bits that it has sent beyond what it may, and when they were counted.
    beyond: u64,
    watched_at: Instant,
    pub ignores: bool,
    /// What it takes while it ignores its limit, as it was counted last.
    pub taken: u64,
    /// When in the cycle its turn is, of 2^16.
    pub place: u16,
    /// What of it is told for each of its receiver's addresses.
    pub each: Each,
}

/// Memory that is used again.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    children: Vec<Child>,
    rates: Vec<u64>,
    order: Vec<(u64, u32)>,
}

/// An address in one word, which is compared sooner.
pub(super) fn key(address: Mac) -> u64 {
    let [a, b, c, d, e, f] = address.0;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

impl Pair {
    pub fn new(from: Mac, now: Instant) -> Pair {
        Pair { from, key: key(from), meter: Meter::default(), seen: now, fed: now, limit: None, quiet: 0, host: None }
    }

    /// In the sample that ends now, it sent `bps`.
    pub fn arrive(&mut self, now: Instant, bps: u64, span_ns: u64) {
        let silent = now.since(self.fed).saturating_sub(span_ns);
        if silent > 0 {
            self.meter.rest(silent);
        }
        self.meter.feed(bps, span_ns);
        (self.seen, self.fed) = (now, now);
    }

    /// Nothing has come since it was fed.
    pub fn catch_up(&mut self, now: Instant) {
        let silent = now.since(self.fed);
        if silent > 0 {
            self.meter.rest(silent);
            self.fed = now;
        }
    }

    pub fn report(&self, to: EndpointId, share: u64) -> Option<Limited> {
        let limit = self.limit.as_ref()?;
        let known = self.host.is_some_and(|host| host.is_some());
        Some(Limited {
            to,
            from: self.from,
            rate: Rate(limit.rate),
            share: Rate(share),
            arriving: Rate(self.meter.slow),
            host: None,
            ignores: limit.ignores.then_some(if known { Ignores::Limit } else { Ignores::Unreachable }),
        })
    }
}

impl Limit {
    /// The limit of a sender that had none.
    pub fn new(now: Instant, place: u16) -> Limit {
        Limit {
            rate: u64::MAX,
            told: None,
            told_at: now,
            said_at: now,
            before: u64::MAX,
            raised_at: now,
            repeated_at: now,
            wants_more: true,
            close_since: None,
            short_since: None,
            unused_since: None,
            otherwise_since: None,
            beyond: 0,
            watched_at: now,
            ignores: false,
            taken: 0,
            place,
            each: Each::new(now),
        }
    }

    /// What may arrive without its sender being at fault.
    pub fn allowed(&self, now: Instant) -> u64 {
        match self.told {
            Some(told) if now.since(self.told_at) > GRACE_NS => told,
            Some(told) => told.max(self.before),
            None => u64::MAX,
        }
    }

    /// What of its traffic is no more than was told: one frame more may be in a short measurement.
    pub fn held(&self, now: Instant, meter: &Meter) -> u64 {
        meter.fast.max(meter.slow).min(self.allowed(now).saturating_add(FRAME_FAST))
    }

    /// The sender is told the rate now.
    pub fn tell(&mut self, now: Instant) {
        let told = self.told.unwrap_or(u64::MAX);
        if self.rate < told {
            self.before = self.allowed(now);
            self.told_at = now;
        } else if self.rate - told > told / 16 {
            self.raised_at = now;
        }
        self.told = Some(self.rate);
        self.said_at = now;
        self.each.tell(now);
    }

    /// Judges by what arrives whether the sender would send more.
    pub fn judge(&mut self, now: Instant, meter: &Meter, arrives: u64) {
        let told = self.told.unwrap_or(self.rate);
        if arrives >= told - told / 16 {
            self.wants_more = true;
            (self.short_since, self.unused_since) = (None, None);
        } else if meter.slow < told - told / 8 && now.since(self.raised_at) >= RAISED_NS {
            let since = *self.short_since.get_or_insert(now);
            let patience_ns = (JUDGED_FRAMES * FRAME_BITS * 1_000_000_000 / told.max(1)).min(JUDGED_NS);
            self.wants_more &= now.since(since) < patience_ns;
        }
        if meter.slow + FRAME_SLOW < told - told / CLOSE_PART {
            self.close_since.get_or_insert(now);
        } else {
            self.close_since = None;
        }
        if meter.slow.max(meter.fast) < told / 8 * UNUSED && !self.wants_more {
            self.unused_since.get_or_insert(now);
        } else {
            self.unused_since = None;
        }
    }

    /// Whether what has just arrived does not wait for the next turn: its sender wants more again,
    /// or has not heard what it was told.
    pub fn is_news(&self, now: Instant, meter: &Meter, noise: u64) -> bool {
        let told = self.told.unwrap_or(self.rate);
        if !self.wants_more && meter.estimate(noise) >= told - told / 16 {
            return true;
        }
        let is_said = !self.ignores && now.since(self.said_at) > GRACE_NS;
        is_said && (self.exceeds(now, meter.fast, noise) || self.overruns(now, meter, noise))
    }

    /// Up to this nothing that arrives is news: the least that [`Limit::is_news`] asks for.
    fn quiet(&self, noise: u64) -> u64 {
        let least = self.told.map_or(self.rate, |told| told.min(self.rate));
        if self.wants_more { least + (least / 4).min(least / 8 + noise / 8) } else { least - least / 8 }
    }

    /// Counts what it takes although it was told less. True where that is another than before.
    pub fn count(&mut self, meter: &Meter) -> bool {
        let takes = if self.ignores { meter.slow.max(1) } else { 0 };
        let is_other =
            self.ignores != (self.taken > 0) || takes.abs_diff(self.taken) > self.taken / TAKEN_PART + FRAME_SLOW;
        if is_other {
            self.taken = takes;
        }
        is_other
    }

    /// While its receiver's share stays, nothing of it changes but by news and by what
    /// [`Limit::judge`] and [`Limit::count`] find.
    fn is_settled(&self, now: Instant, meter: &Meter, noise: u64) -> bool {
        let is_known = self.told.is_some() && now.since(self.told_at) > GRACE_NS;
        self.wants_more && !self.is_content(now) && is_known && (self.ignores || !self.overruns(now, meter, noise))
    }

    /// Whether it has all that it wants although it is close to its limit.
    pub fn is_content(&self, now: Instant) -> bool {
        self.close_since.is_some_and(|since| now.since(since) >= CLOSE_NS)
    }

    fn is_unused(&self, now: Instant) -> bool {
        self.unused_since.is_some_and(|since| now.since(since) >= UNUSED_NS)
    }

    /// Whether more arrives than was told, over both times: a word was lost that lowered it by less
    /// than `exceeds` would see.
    pub fn overruns(&self, now: Instant, meter: &Meter, noise: u64) -> bool {
        let allowed = self.allowed(now);
        meter.slow.min(meter.fast) > allowed.saturating_add(allowed / 8).saturating_add(noise / 8)
    }

    /// Whether more arrives than may.
    pub fn exceeds(&self, now: Instant, arrives: u64, noise: u64) -> bool {
        let allowed = self.allowed(now);
        arrives > allowed.saturating_add(allowed / 4).saturating_add(noise)
    }

    /// Follows whether the sender heeds its limit; true where it has just been found out. What it
    /// sends beyond is summed up, as by a policer's bucket, so that a little counts if it goes on.
    pub fn watch(&mut self, now: Instant, meter: &Meter) -> bool {
        let elapsed_ns = now.since(std::mem::replace(&mut self.watched_at, now));
        let bits = |rate: u64| rate.saturating_mul(elapsed_ns) / 1_000_000_000;
        let allowed = self.allowed(now);
        let most = allowed.saturating_add(allowed / IGNORES_PART).saturating_add(FRAME_SLOW);
        // The slow rate goes on falling after the sender has heard, the fast one jumps with each
        // frame: both have to say so.
        let arrives = meter.slow.min(meter.fast);
        let tolerated = allowed / (1_000_000_000 / TOLERATED_NS) + TOLERATED_BITS;
        if arrives > most {
            self.beyond = self.beyond.saturating_add(bits(arrives - most)).min(2 * tolerated);
        } else if meter.slow <= most {
            self.beyond = self.beyond.saturating_sub(bits(most - meter.slow));
        }
        let is_otherwise = if self.ignores { arrives <= most } else { self.beyond > 0 };
        if !is_otherwise {
            self.otherwise_since = None;
            return false;
        }
        let since = *self.otherwise_since.get_or_insert(now);
        let is_found = arrives > most && self.beyond > tolerated;
        if now.since(since) < IGNORES_NS || !self.ignores && !is_found {
            return false;
        }
        self.ignores = !self.ignores;
        (self.otherwise_since, self.beyond) = (None, 0);
        self.ignores
    }
}

impl Controller {
    /// Limits the largest senders of the receivers that have more than their share, and gives those
    /// that are limited their new rates. `tolerance` is what a link that is not quite divided can
    /// bear, `held_back` a part in 2^16 that is taken off for a while.
    pub(super) fn limit(
        &mut self,
        now: Instant,
        tolerance: u64,
        noise: u64,
        held_back: u64,
        directory: &Directory,
        post: &mut Post,
    ) {
        let (floods, has_many) = (now < self.state.suspect_until, self.has_many());
        let is_draining = self.state.drained_at.is_some_and(|at| now.since(at) < SLOW_NS);
        // Not because of room that a flood or an undershoot has made; nor where there are many to
        // be told, which hear of it late.
        let is_settling = floods || self.state.drained_at.is_some_and(|at| now.since(at) < stretch::GROWS_NS);
        let may_grow = self.state.contended && self.state.has_room && !is_settling;
        let growing_ns = if may_grow && !has_many { self.state.elapsed_ns } else { 0 };
        for at in 0..self.active.len() {
            let receiver = &mut self.receivers[self.active[at] as usize];
            let spare = receiver.spare(tolerance);
            // What comes out of a queue that drains is not what is sent now, but what it was filled
            // with.
            let spare = if is_draining { receiver.share / 2 } else { spare };
            let exceeds = receiver.meter.estimate(noise) > receiver.share.saturating_add(spare);
            if !exceeds && receiver.limited == 0 {
                continue;
            }
            if receiver.limited == 0 || has_many {
                receiver.stretch = stretch::Stretch::default();
            }
            if has_many && receiver.settled == Some(receiver.share) && held_back == 0 && !floods {
                continue;
            }
            receiver.told_until = None;
            let before = receiver.limited;
            let lifted =
                receiver.limit(now, growing_ns, exceeds, exceeds && floods, noise, held_back, &mut self.scratch);
            self.limited = self.limited + receiver.limited as usize - before as usize;
            if lifted {
                let index = self.active[at];
                self.lift_unused(now, index, directory, post);
            }
        }
    }
}

impl Receiver {
    /// Divides the share among the senders, max-min. While it `floods`, each of them may be what
    /// fills the network, however little of it comes through. True where there are limits that
    /// nobody needs any more.
    #[expect(clippy::too_many_arguments, reason = "what arrives, and how it is to be read")]
    fn limit(
        &mut self,
        now: Instant,
        growing_ns: u64,
        exceeds: bool,
        floods: bool,
        noise: u64,
        held_back: u64,
        scratch: &mut Scratch,
    ) -> bool {
        scratch.children.clear();
        for pair in &mut self.pairs {
            pair.catch_up(now);
            let arrives = pair.meter.estimate(noise);
            let (floor, ceiling) = match &pair.limit {
                // It has what it takes.
                Some(limit) if limit.ignores => (limit.taken, limit.taken),
                // What it may have more than it takes is enough for it to be seen that it grows.
                Some(limit) if limit.wants_more && limit.is_content(now) => {
                    (0, pair.meter.slow + limit.rate.min(u64::MAX / 2) / CLOSE_PART / 2)
                }
                Some(limit) if limit.wants_more => (0, u64::MAX),
                None if floods && now.since(pair.seen) <= FAST_NS => (0, u64::MAX),
                _ => (0, arrives),
            };
            scratch.children.push(Child { floor, ceiling, weight: 1 });
        }
        // One that ignores its limit does not take everything from the others to the same endpoint.
        let total = self.share.max(self.ignoring + self.share / 4 * u64::from(self.ignoring > 0));
        let water = fill(total, &scratch.children, &mut scratch.rates, &mut scratch.order);
        let free = total.saturating_sub(scratch.rates.iter().sum());
        let held = |level: u64| level - ((u128::from(level) * u128::from(held_back)) >> 16) as u64;
        self.stretch.follow(self.meter.estimate(noise), self.meter.slow, self.share, growing_ns);
        let addresses = self.addresses;
        let level = water.is_bounded().then(|| self.stretch.of(water.level(0, 1), self.share));
        level.into_iter().for_each(|level| self.cycle.turn(now, held(level)));
        let (mut is_unused, mut is_settled) = (false, held_back == 0);
        for (pair, (&rate, child)) in self.pairs.iter_mut().zip(scratch.rates.iter().zip(&scratch.children)) {
            if pair.limit.is_none() {
                if !exceeds || child.ceiling <= rate {
                    is_settled = false;
                    continue;
                }
                pair.limit = Some(Box::new(Limit::new(now, self.cycle.join())));
                self.limited += 1;
            }
            let Some(limit) = &mut pair.limit else { continue };
            let level = level.unwrap_or(rate.saturating_add(free));
            // Who ignores its limit has what it takes, but is told what it may: when it can hear
            // again, that is right at once.
            let level = if limit.ignores { level.min(self.share / u64::from(self.limited)) } else { level };
            let level = if limit.told.is_some() && limit.wants_more { held(level) } else { level };
            limit.rate = level.max(SLOWEST.0);
            let allowed = limit.allowed(now);
            is_settled &= !limit.each.follow(now, &pair.meter, allowed, addresses);
            pair.quiet = limit.quiet(noise);
            is_settled &= limit.is_settled(now, &pair.meter, noise);
            is_unused |= limit.is_unused(now);
        }
        self.settled = is_settled.then_some(self.share);
        is_unused
    }

    /// What is known of a sender.
    pub(super) fn pair(&self, from: Mac) -> Option<&Pair> {
        let sought = key(from);
        let at = self.pairs.binary_search_by_key(&sought, |pair| pair.key).ok()?;
        Some(&self.pairs[at])
    }

    /// Takes the limits off that nobody needs; what they were for.
    pub(super) fn take_unused(&mut self, now: Instant) -> Vec<(Mac, Option<u32>)> {
        self.settled = None;
        let mut taken = Vec::new();
        for pair in &mut self.pairs {
            if pair.limit.as_ref().is_some_and(|limit| limit.is_unused(now)) {
                (pair.limit, pair.quiet) = (None, 0);
                self.limited -= 1;
                taken.push((pair.from, pair.host.flatten()));
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 1_000_000;

    /// What the second of two senders may send after `ms`, that have been told half of 940 Mbit/s
    /// each, where the first sends `arrives`.
    fn left(arrives: u64, ms: u64) -> u64 {
        let (start, now) = (Instant(1), Instant(1 + ms * MBIT));
        let mut receiver = Receiver { share: 940 * MBIT, limited: 2, ..Receiver::default() };
        for (n, rate) in [(1, arrives), (2, 470 * MBIT)] {
            let mut pair = Pair::new(Mac([2, 0, 0, 0, 0, n]), now);
            pair.meter = Meter { fast: rate, slow: rate };
            let mut limit = Limit::new(start, 0);
            limit.rate = 470 * MBIT;
            limit.tell(start);
            (start.0..=now.0).step_by(1 << 20).for_each(|at| limit.judge(Instant(at), &pair.meter, rate));
            pair.limit = Some(Box::new(limit));
            receiver.pairs.push(pair);
        }
        receiver.limit(now, 0, true, false, 25 * MBIT, 0, &mut Scratch::default());
        receiver.pairs[1].limit.as_ref().unwrap().rate / MBIT
    }

    /// After how many milliseconds a sender that was told 10 Mbit/s, and of which `arrives(ms)`
    /// comes, is found to ignore it, within two seconds.
    fn found_after(arrives: impl Fn(u64) -> u64) -> Option<u64> {
        let mut limit = Limit::new(Instant(1), 0);
        limit.rate = 10 * MBIT;
        limit.tell(Instant(1));
        let mut meter = Meter { fast: 400 * MBIT, slow: 400 * MBIT };
        (1..2000).find(|&ms| {
            meter.feed(arrives(ms), SAMPLE_NS);
            limit.watch(Instant(1 + ms * MBIT), &meter)
        })
    }

    #[test]
    fn who_keeps_sending_a_little_more_than_it_may_is_found() {
        assert!((51..60).contains(&found_after(|_| 400 * MBIT).unwrap()));
        assert!((60..200).contains(&found_after(|_| 20 * MBIT).unwrap()));
        assert!((200..2000).contains(&found_after(|_| 13 * MBIT).unwrap()));
    }

    #[test]
    fn who_heeds_what_it_was_told_is_not_said_to_ignore_it() {
        assert_eq!(found_after(|_| 10 * MBIT), None);
        // Frame by frame; with a longest frame at once each 50 ms; and heard after 40 ms.
        let frames = |every_ms, bits: u64| move |ms| if ms % every_ms == 0 { bits * 1000 } else { 0 };
        assert_eq!(found_after(frames(5, 4 * FRAME_BITS)), None);
        assert_eq!(found_after(frames(50, 40 * FRAME_BITS)), None);
        assert_eq!(found_after(|ms| if ms < 40 { 400 * MBIT } else { 10 * MBIT }), None);
    }

    #[test]
    fn what_is_taken_in_spite_of_a_limit_is_counted_anew_where_it_is_another() {
        let mut limit = Limit::new(Instant(1), 0);
        let mut count = |ignores, takes: u64| {
            limit.ignores = ignores;
            let is_other = limit.count(&Meter { fast: 0, slow: takes * MBIT });
            (is_other, limit.taken.div_ceil(MBIT))
        };
        assert_eq!(count(false, 300), (false, 0));
        assert_eq!(count(true, 300), (true, 300));
        assert_eq!(count(true, 303), (false, 300));
        assert_eq!(count(true, 296), (true, 296));
        assert_eq!(count(false, 296), (true, 0));
        assert_eq!(count(true, 0), (true, 1), "however little it is, it counts");
        assert_eq!(count(true, 0), (false, 1));
    }

    #[test]
    fn what_a_sender_close_to_its_limit_leaves_is_its_neighbours() {
        assert_eq!(left(470 * MBIT, 200), 470, "both would send more");
        assert_eq!(left(430 * MBIT, 40), 470, "it may be on its way up");
        assert!((500..=510).contains(&left(430 * MBIT, 200)), "{}", left(430 * MBIT, 200));
        assert_eq!(left(468 * MBIT, 200), 470, "that is as near as frames let it come");
    }
}
