//! The receiving side, controller `rate`: an explicit rate for each pair of sender and receiver.
//!
//! Senders of other hosts meet in the network's queue before this host, where nobody isolates. What
//! they send together must stay under the link's rate, or frames of tenants within their guarantees
//! are lost with the others'. So the receiver, which knows what it promised and sees what arrives,
//! computes what each sender may send to each endpoint, and tells the senders' switches, which hold
//! it there, for that pair only.
//!
//! Each sample (1 ms); with many senders only the first step each sample, and all of them (a
//! *turn*) each 8 ms and at once when there is news ([`news`]):
//! 1. **Measure** what arrives for each endpoint, and from each sender, over 2 ms and over 16 ms
//!    ([`super::meter`]).
//! 2. **Demand.** Whoever is not limited wants what arrives. Who is limited and uses it up wants
//!    more: any amount. There is contention while at least two endpoints receive something; one
//!    alone has the whole link, without headroom ([`alone`] has the exception).
//! 3. **Divide** the link's rate less the headroom by the fluid model of guarantees, limits and
//!    weights ([`divide`]). The height at which the water stands says what anyone could have who
//!    wanted more, as RCP's one rate does for a router: so a sender that slows down needs no new
//!    limit, and one that grows finds its share at once.
//! 4. **Limit** the largest senders of an endpoint that receives more than its share, max-min among
//!    them: what one does not use of its limit, for 64 ms, the others have, and sooner where few
//!    are limited ([`stretch`]). No pair within its share has a limit, which leaves a growing TCP
//!    alone. Limits go when for 50 ms nobody wanted more than there is.
//! 5. **Tell** the hosts ([`tell`]): new limits and large cuts at once, the rest gathered;
//!    everything again before its lease runs out.
//!
//! Three things make up for what cannot be seen from here:
//! - *A flood begins*: the link is full and an endpoint receives more than its share from senders
//!   that have no limit. How much more they send is unknown, since the network drops it, and so is
//!   what the others lose. For 8 ms each endpoint that received anything lately counts as wanting
//!   all of its guarantee.
//! - *A standing queue*: at (1 - h) C inflow a queue of 256 KiB in the network would need 105 ms to
//!   drain. While the link stays full although all are limited, those are held an eighth of the
//!   link lower, for 24 ms at most, not more often than each 100 ms.
//! - *Who ignores its limit* still counts for its arrivals, so that the others keep what is left,
//!   in order and without loss in the network, and never less than their guarantees; it is named in
//!   the report. A sender that cannot be told, because no host of the cluster has it, is held at
//!   the receiver by scheduler and CoDel, and treated likewise if that does not slow it down.
//!
//! Literature: EyeQ (NSDI 2013) for rates from the receiver at all, each 200 us, with 10 %
//! headroom; RCP (Dukkipati 2008) for one explicit rate instead of probing; Gatekeeper (2011) for
//! the promise; hClock (2013) for guarantee, limit and share in two levels. Unlike EyeQ, nothing is
//! held back without contention (of a link that one alone fills, what clocks differ and now and
//! then a probe: [`alone`]), and demand is measured for each pair, so that what one does not use is
//! another's within some samples.

mod addresses;
mod alone;
mod cycle;
mod divide;
mod news;
mod pair;
mod stretch;
mod tell;
#[cfg(test)]
mod tests;

use super::Counters;
use super::directory::{AccessLink, Directory};
use super::events::Arrival;
pub use super::meter::SAMPLE_NS;
use super::meter::{FAST_NS, Meter, SLOW_NS, Scale, toward};
use super::post::Post;
use super::report::{Contention, Limited};
use cycle::Cycle;
use datapath::program::EndpointId;
use datapath::units::{Instant, Rate};
use divide::Divider;
use news::{News, Turns};
use pair::Pair;
use std::ops::Range;

/// Over what the link counts as staying full: longer than one offloaded frame of a bursty sender
/// makes it so.
const FULL_NS: u64 = 4_000_000;
/// An endpoint contends for so long after a frame: as the scheduler's `CONTENDED_NS`.
const ACTIVE_NS: u64 = 100_000_000;
/// For so long guarantees count as wanted after a flood began, and after the link was full then:
/// two samples, a round trip, and a network queue of 256 KiB, twice.
const SUSPECT_NS: u64 = 8_000_000;
/// For so long nobody must have wanted more than there is before limits go.
const CALM_NS: u64 = 50_000_000;
/// Without a flood before it, the link is full for so long until a queue is taken to stand.
const STANDS_NS: u64 = 8_000_000;
/// An undershoot lasts no longer, and the next begins no earlier.
const DRAIN_NS: u64 = 24_000_000;
const DRAIN_AGAIN_NS: u64 = 100_000_000;
/// What an undershoot takes off the limited senders together, as a part of the link (one in), and
/// at most half of what they have.
const DRAIN_PART: u64 = 8;
/// What a rate over [`FAST_NS`] may be above the truth because frames are not divisible, as a part
/// of the link (one in): a burst of 6 KB.
const NOISE_PART: u64 = 40;
/// What a sample may have more than the link carries, as a part of it (one in), because frames and
/// the loop's turns are not divisible; on a slow link it is a longest frame. What is beyond was
/// piled up by a stall.
const PILED_PART: u64 = 8;
/// A slow link counts as staying full over so many longest frames.
const FULL_FRAMES: u64 = 3;
/// What is held back under contention counts as no more than this part of the link (one in) where
/// it says how much arrives beyond a share: with a half held back, half of the link would be full.
const SLACK_PART: u64 = 4;
/// Over what the wire's own rate is measured: some times longer than a host stalls.
const WIRE_NS: u64 = 256_000_000;
/// A receiver whose fast rate is above its slow one by this part (one in) grows; then this part of
/// its rate (one in) is kept for it beyond what arrives, and given back over such a time when it
/// does not grow any more.
const GROWS_PART: u64 = 16;
const AHEAD_PART: u64 = 8;
const AHEAD_NS: u64 = 16 * SAMPLE_NS;
/// What a receiver wanted of its tenant's guarantee on a link that was full it goes on wanting for
/// about so long: a TCP that lost something is back after some round trips, and should not find its
/// place taken.
const HOLD_NS: u64 = 64_000_000;
/// A receiver whose senders' level is stretched gets too much at this part beyond its share (one
/// in).
const FLOODS_PART: u64 = 8;
/// There is room on the link while this part of what may be divided (one in) does not arrive.
const ROOM_PART: u64 = 32;
/// Senders of one endpoint that are told apart; beyond these they count for the endpoint only.
const MOST_PAIRS: usize = 256;
/// The same for all endpoints together.
const MOST_PAIRS_ALL: usize = 16_384;
/// A sender that was silent for so long is forgotten.
const FORGET_NS: u64 = 1_000_000_000;
/// How often endpoints are looked through for such.
const SWEEP_NS: u64 = 250_000_000;
/// With no more senders than these there is a turn each sample: it costs little, and what some of
/// them have of the link deserves it.
const FEW_PAIRS: usize = 64;
/// With more, there is a turn this often without news: half of the time over which steady traffic
/// is measured.
const TURN_NS: u64 = 8_000_000;

/// An endpoint that receives.
#[derive(Debug, Default)]
struct Receiver {
    tenant: u32,
    /// Addresses that limits are told for.
    addresses: u32,
    /// In this sample.
    bytes: u64,
    /// When something arrived last, and up to when the meter is fed.
    seen: Instant,
    fed: Instant,
    meter: Meter,
    /// Who sends to it, by address.
    pairs: Vec<Pair>,
    /// Of these, how many are limited.
    limited: u32,
    /// What it wants, in bits a second, and of this what comes from senders that nobody holds.
    demand: u64,
    loose: u64,
    /// What of it is limited traffic as it was told.
    held: u64,
    /// What comes from senders that ignore their limit.
    ignoring: u64,
    /// What is kept for it because it grows, and what arrived lately.
    ahead: u64,
    recent: u64,
    /// What of its tenant's guarantee it may go on wanting beyond its demand.
    kept: u64,
    /// What the level of its limited senders is stretched by.
    stretch: stretch::Stretch,
    /// What it could have if it wanted more.
    share: u64,
    /// The share for which its senders' limits are what they ought to be, all using them up.
    settled: Option<u64>,
    /// Until when its senders' hosts need not be told anything of a settled one.
    told_until: Option<Instant>,
    /// Where its limited senders are in their cycle.
    cycle: Cycle,
}

/// Computes the limits of all that send to this host.
#[derive(Debug, Default)]
pub(super) struct Controller {
    receivers: Vec<Receiver>,
    /// Receivers that were seen lately, by tenant.
    active: Vec<u32>,
    /// Of these, those for which something arrived in this sample.
    touched: Vec<u32>,
    pairs: usize,
    limited: usize,
    /// Senders that ignored their limits in the last turn.
    ignoring: u64,
    divider: Divider,
    turns: Turns,
    /// Whether and how the link is contended.
    state: State,
    /// When the first sample was, and the last.
    born: Option<Instant>,
    sampled: Option<Instant>,
    swept: Instant,
    scratch: pair::Scratch,
    post: tell::Scratch,
}

/// What is known of the link.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// What arrives, over [`FULL_NS`] and over [`alone::STEADY_NS`], in bits a second.
    total: u64,
    steady: u64,
    /// What the wire brings, over [`WIRE_NS`], be it more than the link carries.
    wire: u64,
    contended: bool,
    /// Since when nobody wants more than there is, while there are limits.
    calm_since: Option<Instant>,
    /// Until when guarantees count as wanted.
    suspect_until: Instant,
    /// When the last undershoot began, whether it goes on, and when it did so last.
    drain_since: Option<Instant>,
    draining: bool,
    drained_at: Option<Instant>,
    /// When the last turn was, and how long after the one before it.
    turned: Option<Instant>,
    elapsed_ns: u64,
    /// When losses in the network were possible last.
    full_at: Option<Instant>,
    /// Over [`SLOW_NS`] there was room on the link.
    has_room: bool,
    /// Since when the link has been full.
    full_since: Option<Instant>,
    /// Something that is urgent was not said yet.
    owes: bool,
    /// Whether a queue stands before one alone.
    probe: alone::Probe,
}

impl Receiver {
    /// Nothing has come since it was fed.
    fn catch_up(&mut self, now: Instant) {
        let silent = now.since(self.fed);
        if silent > 0 {
            self.meter.rest(silent);
            self.fed = now;
        }
    }

    /// What it wants: what arrives, and where that grows while the link is full, an eighth more. So
    /// the others make room in a few steps and not with a word to each of their senders every
    /// millisecond.
    fn foresee(&mut self, estimate: u64, is_full: bool, elapsed_ns: u64) -> u64 {
        let grows = self.meter.fast > self.meter.slow + self.meter.slow / GROWS_PART + pair::FRAME_FAST;
        if is_full && grows && estimate > self.ahead {
            self.ahead = estimate + estimate / AHEAD_PART;
        } else if !grows {
            let over = self.ahead.saturating_sub(estimate);
            self.ahead -= over.saturating_mul(elapsed_ns.min(AHEAD_NS)) / AHEAD_NS;
        }
        let over = self.recent.saturating_sub(self.meter.slow);
        self.recent -= over.saturating_mul(elapsed_ns.min(HOLD_NS)) / HOLD_NS;
        self.recent = self.recent.max(self.meter.slow);
        self.ahead.max(estimate)
    }
}

/// What a rate over [`FAST_NS`] may be above the truth because frames are not divisible: on a slow
/// link what a longest frame has beyond what it brings in a sample.
fn noise(link: AccessLink) -> u64 {
    let beyond = u64::from(link.longest).saturating_sub(link.ingress.bytes_in(SAMPLE_NS) / PILED_PART);
    (link.ingress.0 / NOISE_PART).max(beyond * 8_000_000_000 / FAST_NS)
}

/// Over what a link counts as staying full.
fn full_ns(link: AccessLink) -> u64 {
    FULL_NS.max(FULL_FRAMES * u64::from(link.longest) * 8_000_000_000 / link.ingress.0.max(1))
}

impl Controller {
    /// Takes in what arrived during the last `span_ns`, and limits who sends too much.
    pub fn sample(
        &mut self,
        now: Instant,
        span_ns: u64,
        arrivals: &[Arrival],
        directory: &Directory,
        post: &mut Post,
        counters: &mut Counters,
    ) {
        let Some(link) = directory.link.filter(|_| span_ns > 0) else { return };
        self.sampled = Some(now);
        let counted: u64 = arrivals.iter().map(|arrival| arrival.wire_bytes).sum();
        let scale = self.scale(span_ns, counted, link);
        let noise = noise(link);
        let capacity = link.contended().0;
        // With this much arriving, losses in the network are possible; with less they are not.
        let slack = (link.ingress.0 - capacity).clamp(link.ingress.0 / 100, link.ingress.0 / SLACK_PART);
        let total = scale.rate(counted);
        let may_lose = total >= link.ingress.0 - 2 * slack;
        if may_lose {
            self.state.full_at = Some(now);
        }
        self.state.total = toward(self.state.total, total, span_ns, full_ns(link));
        self.state.steady = toward(self.state.steady, total, span_ns, alone::STEADY_NS);
        let is_full = self.state.total >= link.ingress.0 - slack / 2;
        self.state.full_since = is_full.then(|| self.state.full_since.unwrap_or(now));
        let mut is_news = self.goes_on(now);
        for arrival in arrivals {
            is_news |= self.arrive(now, arrival, scale, span_ns, noise, directory, counters);
        }
        let news = self.take_in(now, span_ns, scale, noise, may_lose, slack).max(News::of(is_news));
        if !self.is_turn(now, news) {
            return;
        }
        let elapsed_ns = self.state.turned.replace(now).map_or(SAMPLE_NS, |at| now.since(at));
        self.state.elapsed_ns = elapsed_ns;
        self.forget(now);
        self.state.contended = self.active.len() > 1;
        if !self.state.contended {
            self.alone(now, noise, link, directory, post, counters);
            return;
        }
        self.state.probe = alone::Probe::default();
        for &index in &self.active {
            self.receivers[index as usize].catch_up(now);
        }
        self.demands(now, noise, is_full, capacity, counters);
        if is_full && now < self.state.suspect_until {
            self.state.suspect_until = now.plus_ns(SUSPECT_NS);
        }
        let bounded = self.divide(now, capacity, total, may_lose.then_some(slack), directory);
        if !bounded {
            self.calm(now, directory, post, counters);
        } else {
            self.state.calm_since = None;
        }
        let held_back = self.undershoot(now, total, is_full && bounded, link.ingress.0);
        if bounded {
            self.limit(now, slack / 2, noise, held_back, directory, post);
        }
        self.state.owes = false;
        if self.limited > 0 {
            self.tell(now, noise, directory, post);
        }
    }

    /// How the bytes of a sample become rates. More than the link carries was piled up by a stall,
    /// unless it goes on: then the wire is faster than the uplink was said to be, and what arrives
    /// is what is sent. A frame counts as a whole when it ends, however long the link took for it.
    fn scale(&mut self, span_ns: u64, counted: u64, link: AccessLink) -> Scale {
        let scale = Scale::new(span_ns);
        let carries = link.ingress;
        self.state.wire = toward(self.state.wire, scale.rate(counted), span_ns, WIRE_NS);
        if self.state.wire > carries.0 + carries.0 / PILED_PART {
            return scale;
        }
        let possible = carries.bytes_in(span_ns);
        scale.bounded(counted, possible.saturating_add((possible / PILED_PART).max(link.longest.into())))
    }

    /// What arrived from one sender. True where that is news.
    #[expect(clippy::too_many_arguments, reason = "what arrived, how it is measured, and what it is compared with")]
    fn arrive(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        scale: Scale,
        span_ns: u64,
        noise: u64,
        directory: &Directory,
        counters: &mut Counters,
    ) -> bool {
        if arrival.wire_bytes == 0 {
            return false;
        }
        let index = arrival.to.0 as usize;
        let is_known = self.receivers.get(index).is_some_and(|receiver| receiver.seen != Instant::ZERO);
        if !is_known && !self.appear(arrival.to, directory) {
            return false;
        }
        let receiver = &mut self.receivers[index];
        if receiver.bytes == 0 {
            self.touched.push(index as u32);
        }
        receiver.seen = now.max(Instant(1));
        receiver.bytes += arrival.wire_bytes;
        let Some(from) = arrival.from else { return !is_known };
        let bps = scale.rate(arrival.wire_bytes);
        let sought = pair::key(from);
        match receiver.pairs.binary_search_by_key(&sought, |pair| pair.key) {
            Ok(at) => {
                let pair = &mut receiver.pairs[at];
                pair.arrive(now, bps, span_ns);
                if pair.meter.estimate(noise) <= pair.quiet {
                    return !is_known;
                }
                let is_news = pair.limit.as_ref().is_some_and(|limit| limit.is_news(now, &pair.meter, noise));
                if is_news {
                    receiver.settled = None;
                }
                is_news
            }
            Err(_) if receiver.pairs.len() >= MOST_PAIRS || self.pairs >= MOST_PAIRS_ALL => {
                counters.crowded += 1;
                !is_known
            }
            Err(at) => {
                let mut pair = Pair::new(from, now);
                pair.arrive(now, bps, span_ns);
                receiver.pairs.insert(at, pair);
                receiver.settled = None;
                self.pairs += 1;
                true
            }
        }
    }

    /// An endpoint receives for the first time, or again. False where there is no such endpoint.
    fn appear(&mut self, to: EndpointId, directory: &Directory) -> bool {
        let Some(endpoint) = directory.endpoints.get(to.0) else { return false };
        let index = to.0 as usize;
        if self.receivers.len() <= index {
            self.receivers.resize_with(index + 1, Receiver::default);
        }
        self.receivers[index].tenant = endpoint.tenant.0;
        self.receivers[index].addresses = endpoint.addresses.len() as u32;
        let tenant = |&other: &u32| self.receivers[other as usize].tenant;
        let at = self.active.partition_point(|other| tenant(other) <= endpoint.tenant.0);
        self.active.insert(at, to.0);
        true
    }

    /// Forgets receivers that have been silent, and senders.
    fn forget(&mut self, now: Instant) {
        let receivers = &mut self.receivers;
        self.active.retain(|&index| {
            let receiver = &mut receivers[index as usize];
            let is_active = now.since(receiver.seen) <= ACTIVE_NS || receiver.limited > 0;
            if !is_active {
                self.pairs -= receiver.pairs.len();
                *receiver = Receiver::default();
            }
            is_active
        });
        if now.since(self.swept) >= SWEEP_NS {
            self.swept = now;
            for &index in &self.active {
                let pairs = &mut receivers[index as usize].pairs;
                let before = pairs.len();
                pairs.retain(|pair| pair.limit.is_some() || now.since(pair.seen) <= FORGET_NS);
                self.pairs -= before - pairs.len();
            }
        }
    }

    /// What each receiver wants, and which of its senders ignore their limits.
    fn demands(&mut self, now: Instant, noise: u64, is_full: bool, capacity: u64, counters: &mut Counters) {
        // While the link stays full, who grows must not wait until it is above the noise.
        let above = if is_full { 0 } else { noise };
        let elapsed_ns = self.state.elapsed_ns;
        let keeps = self.state.full_at.is_some_and(|at| now.since(at) < HOLD_NS);
        let mut total = 0;
        self.ignoring = 0;
        for &index in &self.active {
            let receiver = &mut self.receivers[index as usize];
            total += receiver.meter.slow;
            let estimate = receiver.meter.estimate(above);
            (receiver.demand, receiver.loose) = (receiver.foresee(estimate, is_full, elapsed_ns), estimate);
            receiver.kept = if keeps { receiver.recent.saturating_sub(receiver.demand) } else { 0 };
            (receiver.held, receiver.ignoring) = (0, 0);
            if receiver.limited == 0 {
                continue;
            }
            for pair in &mut receiver.pairs {
                pair.catch_up(now);
                let arrives = pair.meter.estimate(above);
                let Some(limit) = &mut pair.limit else { continue };
                counters.ignored += u64::from(limit.watch(now, &pair.meter));
                limit.judge(now, &pair.meter, arrives);
                let held = limit.held(now, &pair.meter);
                receiver.held += held;
                receiver.loose = receiver.loose.saturating_sub(held);
                let is_other = (limit.ignores || limit.taken > 0) && limit.count(&pair.meter);
                if limit.ignores {
                    receiver.ignoring += limit.taken;
                    self.ignoring += 1;
                } else if limit.wants_more {
                    receiver.demand = u64::MAX;
                }
                if !limit.wants_more || is_other || limit.is_content(now) {
                    receiver.settled = None;
                }
            }
            // What a stretched level lets through that is too much nobody holds.
            if receiver.stretch.is_some() && estimate > receiver.share + receiver.share / FLOODS_PART {
                receiver.loose = estimate;
            }
        }
        self.state.has_room = total < capacity - capacity / ROOM_PART;
    }

    /// Computes every receiver's share of `capacity`. False where nobody wants more than there is.
    /// Where losses in the network are possible, senders without limits that take more than `slack`
    /// beyond the shares are a flood.
    fn divide(&mut self, now: Instant, capacity: u64, total: u64, slack: Option<u64>, directory: &Directory) -> bool {
        let mut suspect = now < self.state.suspect_until;
        // With all guarantees wanted, none has less than its own: often this is enough to see that
        // there is no flood.
        let guarantee = |index| directory.endpoints.get(index).map_or(0, |endpoint| endpoint.ingress.guarantee.0);
        let receivers = self.active.iter().map(|&index| (index, &self.receivers[index as usize]));
        let most: u64 = receivers.map(|(index, receiver)| receiver.loose.saturating_sub(guarantee(index))).sum();
        if let Some(slack) = slack.filter(|&slack| !suspect && most > slack) {
            self.divider.divide(capacity, true, &self.active, &mut self.receivers, directory);
            let receivers = self.active.iter().map(|&index| &self.receivers[index as usize]);
            let beyond: u64 = receivers.map(|receiver| receiver.loose.saturating_sub(receiver.share)).sum();
            suspect = beyond > slack;
            if suspect {
                self.state.suspect_until = now.plus_ns(SUSPECT_NS);
                self.state.total = self.state.total.max(total);
            }
        }
        self.divider.divide(capacity, suspect, &self.active, &mut self.receivers, directory)
    }

    /// Nobody wants more than there is: limits stay as they are, and go when it has been so for
    /// long.
    fn calm(&mut self, now: Instant, directory: &Directory, post: &mut Post, counters: &mut Counters) {
        let since = *self.state.calm_since.get_or_insert(now);
        if now.since(since) >= CALM_NS {
            self.release(now, directory, post, counters);
        }
    }

    /// How much less the limited senders get, as a part in 2^16, so that a queue that stands in the
    /// network drains.
    fn undershoot(&mut self, now: Instant, total: u64, is_full: bool, link: u64) -> u64 {
        let may_begin = self.state.drain_since.is_none_or(|since| now.since(since) >= DRAIN_AGAIN_NS);
        // A few frames more than usual are no queue that stands.
        let stands = now < self.state.suspect_until || self.state.stands(now);
        if is_full && !self.state.draining && may_begin && stands && self.limited > 0 {
            (self.state.draining, self.state.drain_since) = (true, Some(now));
        }
        // As soon as nothing stands any more, what arrives is what is sent. In a sample one frame
        // may be missing.
        let is_drained = total + pair::FRAME_SAMPLE < link - link / DRAIN_PART / 2;
        let is_over = self.state.drain_since.is_none_or(|since| now.since(since) >= DRAIN_NS);
        self.state.draining &= !is_drained && !is_over;
        if !self.state.draining {
            return 0;
        }
        self.state.drained_at = Some(now);
        self.held_back(link)
    }

    /// The part of their rates, in 2^16, that the limited senders give for an undershoot.
    fn held_back(&self, link: u64) -> u64 {
        let receivers = self.active.iter().map(|&index| &self.receivers[index as usize]);
        let limited: u64 = receivers.filter(|r| r.demand == u64::MAX).map(|r| r.share.min(link)).sum();
        let part = u128::from(link / DRAIN_PART) << 16;
        u64::try_from(part / u128::from(limited.max(1))).unwrap_or(u64::MAX).min(1 << 15)
    }

    /// Lifts all limits.
    fn release(&mut self, now: Instant, directory: &Directory, post: &mut Post, counters: &mut Counters) {
        if self.limited == 0 {
            return;
        }
        counters.releases += 1;
        self.say_lifted(now, directory, post);
        for receiver in &mut self.receivers {
            (receiver.limited, receiver.held) = (0, 0);
            for pair in &mut receiver.pairs {
                (pair.limit, pair.quiet) = (None, 0);
            }
            receiver.settled = None;
        }
        self.limited = 0;
        self.state.calm_since = None;
        self.state.draining = false;
    }

    /// The link carries another rate, or others have other shares of it: what limits there are is
    /// looked at anew, at once.
    pub fn remeasure(&mut self) {
        self.state.turned = None;
        for receiver in &mut self.receivers {
            receiver.settled = None;
        }
    }

    /// The world has changed: who is no more is forgotten, and where senders are is asked anew.
    pub fn revise(&mut self, directory: &Directory) {
        self.remeasure();
        for (index, receiver) in self.receivers.iter_mut().enumerate() {
            let tenant = directory.endpoints.get(index as u32).map(|endpoint| endpoint.tenant.0);
            receiver.addresses = directory.endpoints.get(index as u32).map_or(0, |e| e.addresses.len() as u32);
            for pair in &mut receiver.pairs {
                pair.host = None;
            }
            if receiver.seen != Instant::ZERO && tenant != Some(receiver.tenant) {
                self.limited -= receiver.limited as usize;
                self.pairs -= receiver.pairs.len();
                *receiver = Receiver::default();
            }
        }
        let receivers = &self.receivers;
        self.active.retain(|&index| receivers[index as usize].seen != Instant::ZERO);
    }

    /// When the next sample is due; `None` where nothing is going on.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let is_busy = !self.active.is_empty();
        self.sampled.filter(|_| is_busy).map(|at| at.plus_ns(SAMPLE_NS))
    }

    /// How it stands with the link.
    pub fn contention(&self, now: Instant) -> Contention {
        Contention {
            contended: self.state.contended,
            flood: self.state.contended && now < self.state.suspect_until,
            draining: self.state.draining,
            arriving: Rate(self.state.total),
        }
    }

    /// Who is limited, of these receivers.
    pub fn report(&self, which: Range<u32>) -> impl Iterator<Item = Limited> + '_ {
        let all = self.receivers.iter().enumerate().take(which.end as usize).skip(which.start as usize);
        all.filter(|(_, receiver)| receiver.limited > 0).flat_map(|(index, receiver)| {
            receiver.pairs.iter().filter_map(move |pair| pair.report(EndpointId(index as u32), receiver.share))
        })
    }

    /// The receiver before which so many are limited, from one on, or so many receivers are; `None`
    /// where there is none.
    pub fn part_end(&self, from: u32, limited: u32, receivers: u32) -> Option<u32> {
        let (mut told, all) = (0, self.receivers.len());
        let last = all.min(from.saturating_add(receivers) as usize);
        let ends = self.receivers.iter().enumerate().take(last).skip(from as usize).find_map(|(index, receiver)| {
            told += receiver.limited;
            (told >= limited).then_some(index + 1)
        });
        Some(ends.unwrap_or(last)).filter(|&end| end < all).map(|end| end as u32)
    }
}
