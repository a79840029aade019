//! The receiving side, controller `rate`: an explicit rate for each pair of sender and receiver.
//!
//! Senders of other hosts meet in the network's queue before this host, where nobody isolates. What they send together must stay under the link's
//! rate, or frames of tenants within their guarantees are lost with the others'. So the receiver, which knows what it promised and sees what
//! arrives, computes what each sender may send to each endpoint, and tells the senders' switches, which hold it there, for that pair only.
//!
//! Each sample (1 ms):
//! 1. **Measure** what arrives for each endpoint, and from each sender, over 2 ms and over 16 ms ([`super::meter`]).
//! 2. **Demand.** Whoever is not limited wants what arrives. Who is limited and uses it up wants more: any amount. There is contention while
//!    at least two endpoints receive something; one alone has the whole link, without limit or headroom.
//! 3. **Divide** the link's rate less the headroom by the fluid model of guarantees, limits and weights ([`divide`]). The height at which the
//!    water stands says what anyone could have who wanted more, as RCP's one rate does for a router: so a sender that slows down needs no new
//!    limit, and one that grows finds its share at once.
//! 4. **Limit** the largest senders of an endpoint that receives more than its share, max-min among them. No pair within its share has a
//!    limit, which leaves a growing TCP alone. Limits go when for 50 ms nobody wanted more than there is.
//! 5. **Tell** the hosts ([`tell`]): new limits and large cuts at once, the rest gathered; everything again before its lease runs out.
//!
//! Three things make up for what cannot be seen from here:
//! - *A flood begins*: the link is full and an endpoint receives more than its share from senders that have no limit. How much more they send is
//!   unknown, since the network drops it, and so is what the others lose. For 8 ms each endpoint that received anything lately counts as wanting
//!   all of its guarantee.
//! - *A standing queue*: at (1 - h) C inflow a queue of 256 KiB in the network would need 105 ms to drain. While the link stays full although all
//!   are limited, those are held an eighth of the link lower, for 24 ms at most, not more often than each 100 ms.
//! - *Who ignores its limit* still counts for its arrivals, so that the others keep what is left, in order and without loss in the network, and
//!   never less than their guarantees; it is named in the report. A sender that cannot be told, because no host of the cluster has it, is held
//!   at the receiver by scheduler and CoDel, and treated likewise if that does not slow it down.
//!
//! Literature: EyeQ (NSDI 2013) for rates from the receiver at all, each 200 us, with 10 % headroom; RCP (Dukkipati 2008) for one explicit rate
//! instead of probing; Gatekeeper (2011) for the promise; hClock (2013) for guarantee, limit and share in two levels. Unlike EyeQ, nothing is
//! held back without contention, and demand is measured for each pair, so that what one does not use is another's within some samples.

mod divide;
mod pair;
mod tell;

use super::Counters;
use super::directory::Directory;
use super::events::Arrival;
use super::meter::{Meter, Scale, toward};
use super::post::Post;
use super::report::{Contention, Limited};
use datapath::program::EndpointId;
use datapath::units::Instant;
use divide::Divider;
use pair::Pair;

/// Time between two samples, in nanoseconds: some times the round trip of a data centre, and with it half of what a victim waits.
pub const SAMPLE_NS: u64 = 1_000_000;
/// Over what a flood is recognised: two samples.
pub(super) const FAST_NS: u64 = 2_000_000;
/// Over what steady traffic is measured: at 10 Mbit/s 13 frames, enough for shares of a hundred endpoints, and short enough to hand over what an
/// endpoint leaves within some tens of milliseconds.
pub(super) const SLOW_NS: u64 = 16_000_000;
/// Over what the link counts as staying full: longer than one offloaded frame of a bursty sender makes it so.
const FULL_NS: u64 = 4_000_000;
/// An endpoint contends for so long after a frame: as the scheduler's `CONTENDED_NS`.
const ACTIVE_NS: u64 = 100_000_000;
/// For so long guarantees count as wanted after a flood began, and after the link was full then: two samples, a round trip, and a network queue of 256 KiB, twice.
const SUSPECT_NS: u64 = 8_000_000;
/// For so long nobody must have wanted more than there is before limits go.
const CALM_NS: u64 = 50_000_000;
/// An undershoot lasts no longer, and the next begins no earlier.
const DRAIN_NS: u64 = 24_000_000;
const DRAIN_AGAIN_NS: u64 = 100_000_000;
/// What an undershoot takes off the limited senders together, as a part of the link (one in), and at most half of what they have.
const DRAIN_PART: u64 = 8;
/// What a rate over [`FAST_NS`] may be above the truth because frames are not divisible, as a part of the link (one in): a burst of 6 KB.
const NOISE_PART: u64 = 40;
/// What a sample may have more than the link carries, as a part of it (one in), because frames and the loop's turns are not divisible. What is
/// beyond was piled up by a stall.
const PILED_PART: u64 = 8;
/// A receiver whose fast rate is above its slow one by this part (one in) grows; then this part of its rate (one in) is kept for it beyond what
/// arrives, and given back over so many samples when it does not grow any more.
const GROWS_PART: u64 = 16;
const AHEAD_PART: u64 = 8;
const AHEAD_SAMPLES: u64 = 16;
/// Senders of one endpoint that are told apart; beyond these they count for the endpoint only.
const MOST_PAIRS: usize = 256;
/// The same for all endpoints together.
const MOST_PAIRS_ALL: usize = 16_384;
/// A sender that was silent for so long is forgotten.
const FORGET_NS: u64 = 1_000_000_000;
/// How often endpoints are looked through for such.
const SWEEP_NS: u64 = 250_000_000;

/// An endpoint that receives.
#[derive(Debug, Default)]
struct Receiver {
    tenant: u32,
    /// In this sample.
    bytes: u64,
    seen: Instant,
    meter: Meter,
    /// Who sends to it, by address.
    pairs: Vec<Pair>,
    /// Of these, how many are limited.
    limited: u32,
    /// What it wants, in bits a second, and of this what comes from senders that nobody holds.
    demand: u64,
    loose: u64,
    /// What comes from senders that ignore their limit.
    ignoring: u64,
    /// What is kept for it because it grows.
    ahead: u64,
    /// What it could have if it wanted more.
    share: u64,
}

/// Computes the limits of all that send to this host.
#[derive(Debug, Default)]
pub(super) struct Controller {
    receivers: Vec<Receiver>,
    /// Receivers that were seen lately, by tenant.
    active: Vec<u32>,
    pairs: usize,
    limited: usize,
    divider: Divider,
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
    /// What arrives, over [`FULL_NS`], in bits a second.
    total: u64,
    contended: bool,
    /// Since when nobody wants more than there is, while there are limits.
    calm_since: Option<Instant>,
    /// Until when guarantees count as wanted.
    suspect_until: Instant,
    /// When the last undershoot began, whether it goes on, and when it did so last.
    drain_since: Option<Instant>,
    draining: bool,
    drained_at: Option<Instant>,
}

impl Receiver {
    /// What it wants: what arrives, and where that grows while the link is full, an eighth more. So the others make room in a few steps and
    /// not with a word to each of their senders every millisecond.
    fn foresee(&mut self, noise: u64, is_full: bool) -> u64 {
        let estimate = self.meter.estimate(noise);
        let grows = self.meter.fast > self.meter.slow + self.meter.slow / GROWS_PART;
        if is_full && grows && estimate > self.ahead {
            self.ahead = estimate + estimate / AHEAD_PART;
        } else if !grows {
            self.ahead -= self.ahead.saturating_sub(estimate) / AHEAD_SAMPLES;
        }
        self.ahead.max(estimate)
    }
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
        let possible = link.ingress.bytes_in(span_ns);
        let scale = Scale::new(span_ns).bounded(counted, possible + possible / PILED_PART);
        let noise = link.ingress.0 / NOISE_PART;
        for arrival in arrivals {
            self.arrive(now, arrival, scale, span_ns, directory, counters);
        }
        for &index in &self.active {
            let receiver = &mut self.receivers[index as usize];
            receiver.meter.feed(scale.rate(receiver.bytes), span_ns);
            receiver.bytes = 0;
        }
        let total = scale.rate(counted);
        self.state.total = toward(self.state.total, total, span_ns, FULL_NS);
        self.forget(now);
        self.state.contended = self.active.len() > 1;
        if !self.state.contended {
            self.release(now, directory, post, counters);
            return;
        }
        let capacity = link.contended().0;
        // With this much arriving, losses in the network are possible; with less they are not.
        let slack = (link.ingress.0 - capacity).max(link.ingress.0 / 100);
        let may_lose = total >= link.ingress.0 - 2 * slack;
        let is_full = self.state.total >= link.ingress.0 - slack / 2;
        // While the link stays full, who grows must not wait until it is above the noise.
        self.demands(now, if is_full { 0 } else { noise }, is_full);
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
        if self.limited > 0 {
            self.watch(now, noise, counters);
            self.tell(now, noise, directory, post);
        }
    }

    /// What arrived from one sender.
    fn arrive(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        scale: Scale,
        span_ns: u64,
        directory: &Directory,
        counters: &mut Counters,
    ) {
        let index = arrival.to.0 as usize;
        let Some(endpoint) = directory.endpoints.get(arrival.to.0) else { return };
        if self.receivers.len() <= index {
            self.receivers.resize_with(index + 1, Receiver::default);
        }
        let receiver = &mut self.receivers[index];
        if receiver.seen == Instant::ZERO {
            receiver.tenant = endpoint.tenant.0;
            let tenant = |&other: &u32| self.receivers[other as usize].tenant;
            let at = self.active.partition_point(|other| tenant(other) <= endpoint.tenant.0);
            self.active.insert(at, index as u32);
        }
        let receiver = &mut self.receivers[index];
        receiver.seen = now.max(Instant(1));
        receiver.bytes += arrival.wire_bytes;
        let Some(from) = arrival.from else { return };
        let at = match receiver.pairs.binary_search_by_key(&from, |pair| pair.from) {
            Ok(at) => at,
            Err(_) if receiver.pairs.len() >= MOST_PAIRS || self.pairs >= MOST_PAIRS_ALL => {
                counters.crowded += 1;
                return;
            }
            Err(at) => {
                receiver.pairs.insert(at, Pair::new(from, now));
                self.pairs += 1;
                at
            }
        };
        receiver.pairs[at].arrive(now, scale.rate(arrival.wire_bytes), span_ns);
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

    /// What each receiver wants.
    fn demands(&mut self, now: Instant, noise: u64, is_full: bool) {
        for &index in &self.active {
            let receiver = &mut self.receivers[index as usize];
            let estimate = receiver.foresee(noise, is_full);
            (receiver.demand, receiver.loose, receiver.ignoring) = (estimate, estimate, 0);
            if receiver.limited == 0 {
                continue;
            }
            for pair in &mut receiver.pairs {
                pair.catch_up(now);
                let arrives = pair.meter.estimate(noise);
                let Some(limit) = &mut pair.limit else { continue };
                limit.judge(now, &pair.meter, arrives);
                let held = pair.meter.fast.max(pair.meter.slow).min(limit.allowed(now));
                receiver.loose = receiver.loose.saturating_sub(held);
                if limit.ignores {
                    receiver.ignoring += pair.meter.slow;
                } else if limit.wants_more {
                    receiver.demand = u64::MAX;
                }
            }
        }
    }

    /// Computes every receiver's share of `capacity`. False where nobody wants more than there is. Where losses in the network are possible,
    /// senders without limits that take more than `slack` beyond the shares are a flood.
    fn divide(&mut self, now: Instant, capacity: u64, total: u64, slack: Option<u64>, directory: &Directory) -> bool {
        let mut suspect = now < self.state.suspect_until;
        if let Some(slack) = slack.filter(|_| !suspect) {
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

    /// Nobody wants more than there is: limits stay as they are, and go when it has been so for long.
    fn calm(&mut self, now: Instant, directory: &Directory, post: &mut Post, counters: &mut Counters) {
        let since = *self.state.calm_since.get_or_insert(now);
        if now.since(since) >= CALM_NS {
            self.release(now, directory, post, counters);
        }
    }

    /// How much less the limited senders get, as a part in 2^16, so that a queue that stands in the network drains.
    fn undershoot(&mut self, now: Instant, total: u64, is_full: bool, link: u64) -> u64 {
        let may_begin = self.state.drain_since.is_none_or(|since| now.since(since) >= DRAIN_AGAIN_NS);
        if is_full && !self.state.draining && may_begin && self.limited > 0 {
            (self.state.draining, self.state.drain_since) = (true, Some(now));
        }
        // As soon as nothing stands any more, what arrives is what is sent.
        let is_drained = total < link - link / DRAIN_PART / 2;
        let is_over = self.state.drain_since.is_none_or(|since| now.since(since) >= DRAIN_NS);
        self.state.draining &= !is_drained && !is_over;
        if !self.state.draining {
            return 0;
        }
        self.state.drained_at = Some(now);
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
            receiver.limited = 0;
            for pair in &mut receiver.pairs {
                pair.limit = None;
            }
        }
        self.limited = 0;
        self.state.calm_since = None;
        self.state.draining = false;
    }

    /// The world has changed: who is no more is forgotten, and where senders are is asked anew.
    pub fn revise(&mut self, directory: &Directory) {
        for (index, receiver) in self.receivers.iter_mut().enumerate() {
            let tenant = directory.endpoints.get(index as u32).map(|endpoint| endpoint.tenant.0);
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
            arriving: datapath::units::Rate(self.state.total),
        }
    }

    /// Who is limited.
    pub fn report(&self) -> impl Iterator<Item = Limited> + '_ {
        let receivers = self.receivers.iter().enumerate().filter(|(_, receiver)| receiver.limited > 0);
        receivers.flat_map(|(index, receiver)| {
            receiver.pairs.iter().filter_map(move |pair| pair.report(EndpointId(index as u32), receiver.share))
        })
    }
}
