//! News: what arrived that does not wait for the next turn.
//!
//! A turn looks at every sender that is limited, and that is most of what an agent costs where there are many. In a steady state it changes little, so
//! then it need not be each sample. What must be seen at once is seen from what has just arrived, against what the last turn made of it:
//! - a flood, by the same measure as in a turn, and a link that is full, whatever is known of it: these are followed sample by sample until they are over;
//! - an endpoint or a sender that is new;
//! - an endpoint without limits that receives more than its share, or an eighth more than it did;
//! - a sender that uses less than its limit and begins to use it up, and one that should have heard of its limit and has not.
//!
//! What sends less than it did is seen by the next turn.

use super::super::meter::Scale;
use super::{BUSY_NS, BUSY_TURN_NS, Controller, FEW_PAIRS, Instant, Receiver, TURN_NS};

/// An endpoint without limits is news when it grows by this part of what it wanted (one in), and by this part of the headroom: some frames.
const GROWN_PART: u64 = 8;
const GROWN_SLACK_PART: u64 = 4;

impl Controller {
    /// There are so many senders that what has not changed is passed over.
    pub(super) fn has_many(&self) -> bool {
        self.pairs > FEW_PAIRS
    }

    /// Whether there is a turn whatever has arrived.
    pub(super) fn is_turn(&self, now: Instant, is_full: bool) -> bool {
        let state = &self.state;
        let every_ns = match state.busy_since {
            _ if !self.has_many() => 0,
            Some(since) if now.since(since) >= BUSY_NS => BUSY_TURN_NS,
            Some(_) => 0,
            None if is_full || state.owes => 0,
            None => TURN_NS,
        };
        state.turned.is_none_or(|at| now.since(at) >= every_ns)
    }

    /// Feeds the meters of the endpoints for which something arrived. True where that is news; `slack` is what a link that is not quite divided
    /// can bear, and with `may_lose` losses in the network are possible.
    pub(super) fn take_in(
        &mut self,
        now: Instant,
        span_ns: u64,
        scale: Scale,
        noise: u64,
        may_lose: bool,
        slack: u64,
    ) -> bool {
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
        is_news || (may_lose && !is_known && (self.limited == 0 || beyond > slack))
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
        tolerance.min(self.share / 64)
    }
}
