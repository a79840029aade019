//! News: what arrived that does not wait for the next turn.
//!
//! A turn looks at every sender that is limited, and that is most of what an agent costs where
//! there are many. In a steady state it changes little, so then it need not be each sample. What
//! must be seen at once is seen from what has just arrived, against what the last turn made of it:
//! - a flood, by the same measure as in a turn, and a queue that is taken to stand in the network:
//!   these are followed sample by sample until they are over;
//! - an endpoint or a sender that is new;
//! - an endpoint without limits that receives more than its share, or an eighth more than it did;
//! - a sender that uses less than its limit and begins to use it up, and one that should have heard
//!   of its limit and has not.
//!
//! What sends less than it did is seen by the next turn.
//!
//! Turns for news are on an allowance: senders that ignore their limits, or many that come and go,
//! would otherwise make one of every sample.

use super::super::meter::Scale;
use super::super::post::Allowance;
use super::{Controller, FEW_PAIRS, Instant, Receiver, STANDS_NS, State, TURN_NS};

/// Turns for news, when it goes on for long, and so many that are saved for when it begins. What
/// has not been put right by then is followed more slowly: by the turns that are due anyway, of
/// which there are four times as many.
const TURNS_PER_SECOND: u64 = 32;
const SAVED_TURNS: u64 = 128;
/// Of these, how many only a flood that begins may use.
const RESERVE: u64 = 16;

/// An endpoint without limits is news when it grows by this part of what it wanted (one in), and by
/// this part of the headroom: some frames.
const GROWN_PART: u64 = 8;
const GROWN_SLACK_PART: u64 = 4;

/// Whether something does not wait for the next turn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum News {
    None,
    Some,
    /// A flood begins.
    Flood,
}

impl News {
    pub fn of(is_news: bool) -> News {
        if is_news { News::Some } else { News::None }
    }
}

/// How many turns there may be besides those that are due.
#[derive(Debug)]
pub(super) struct Turns(Allowance);

impl Default for Turns {
    fn default() -> Turns {
        Turns(Allowance::new(TURNS_PER_SECOND, SAVED_TURNS))
    }
}

impl Controller {
    /// There are so many senders that what has not changed is passed over.
    pub(super) fn has_many(&self) -> bool {
        self.pairs > FEW_PAIRS
    }

    /// Whether something goes on that is followed sample by sample. After the last turn about it
    /// another one sees its end.
    pub(super) fn goes_on(&self, now: Instant) -> bool {
        let state = &self.state;
        let suspected = state.turned.is_some_and(|at| at < state.suspect_until);
        suspected || state.draining || state.owes || state.stands(now)
    }

    /// Whether there is a turn now.
    pub(super) fn is_turn(&mut self, now: Instant, news: News) -> bool {
        let every_ns = if self.has_many() { TURN_NS } else { 0 };
        let is_due = self.state.turned.is_none_or(|at| now.since(at) >= every_ns);
        is_due
            || match news {
                News::None => false,
                News::Some => self.turns.0.take(now, RESERVE),
                News::Flood => self.turns.0.take(now, 0),
            }
    }

    /// Feeds the meters of the endpoints for which something arrived. Whether that is news; `slack`
    /// is what a link that is not quite divided can bear, and with `may_lose` losses in the network
    /// are possible.
    pub(super) fn take_in(
        &mut self,
        now: Instant,
        span_ns: u64,
        scale: Scale,
        noise: u64,
        may_lose: bool,
        slack: u64,
    ) -> News {
        let (mut beyond, mut is_news) = (0_u64, false);
        for &index in &self.touched {
            let receiver = &mut self.receivers[index as usize];
            receiver.feed(now, scale, span_ns);
            let estimate = receiver.meter.estimate(noise);
            let held = receiver.held.saturating_add(receiver.share);
            beyond = u64::saturating_add(beyond, estimate.saturating_sub(held));
            if receiver.limited == 0 {
                // Who wanted any amount does not grow.
                let part = receiver.demand / GROWN_PART + slack / GROWN_SLACK_PART;
                let grown = receiver.demand.saturating_add(part);
                is_news |= estimate > receiver.share.saturating_add(receiver.spare(slack / 2)).min(grown);
            }
        }
        self.touched.clear();
        let is_known = now < self.state.suspect_until;
        let may_flood = may_lose && !is_known;
        if may_flood && beyond > slack { News::Flood } else { News::of(is_news || may_flood && self.limited == 0) }
    }
}

impl State {
    /// Whether a queue is taken to stand in the network: a few frames more than usual are none.
    pub(super) fn stands(&self, now: Instant) -> bool {
        self.full_since.is_some_and(|at| now.since(at) >= STANDS_NS)
    }
}

impl Receiver {
    /// Something has arrived for it in the sample that ends now.
    fn feed(&mut self, now: Instant, scale: Scale, span_ns: u64) {
        let silent = now.since(self.fed).saturating_sub(span_ns);
        if silent > 0 {
            self.meter.rest(silent);
        }
        self.meter.feed(scale.rate(std::mem::take(&mut self.bytes)), span_ns);
        self.fed = now;
    }

    /// What it may have beyond its share without a limit, where so much can be borne.
    pub(super) fn spare(&self, tolerance: u64) -> u64 {
        tolerance.min(self.share / 128)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many turns there are in ten seconds in which every sample brings `news`, with so many
    /// senders.
    fn turns(pairs: usize, news: News) -> u64 {
        let mut controller = Controller { pairs, ..Controller::default() };
        let turn = |ms: u64| {
            let now = Instant(ms * 1_000_000);
            let is_turn = controller.is_turn(now, news);
            if is_turn {
                controller.state.turned = Some(now);
            }
            u64::from(is_turn)
        };
        (1..=10_000).map(turn).sum()
    }

    #[test]
    fn endless_news_about_many_senders_does_not_make_a_turn_of_every_sample() {
        let due = turns(FEW_PAIRS + 1, News::None);
        assert_eq!(due, 1250);
        for news in [News::Some, News::Flood] {
            let more = turns(FEW_PAIRS + 1, news) - due;
            assert!(
                (SAVED_TURNS - RESERVE - 16..=SAVED_TURNS + 10 * TURNS_PER_SECOND).contains(&more),
                "{news:?}: {more}"
            );
        }
        assert_eq!(turns(FEW_PAIRS, News::None), 10_000);
    }

    #[test]
    fn a_flood_that_begins_amid_endless_news_has_its_turn_at_once() {
        let mut controller = Controller { pairs: FEW_PAIRS + 1, ..Controller::default() };
        for ms in 1..=1000 {
            let now = Instant(ms * 1_000_000);
            if controller.is_turn(now, News::Some) {
                controller.state.turned = Some(now);
            }
        }
        assert!((1001..1008).all(|ms| controller.is_turn(Instant(ms * 1_000_000), News::Flood)));
    }
}
