//! What of a loop's lateness a link makes good.
//!
//! What is made good stands in the queue of the network device from then on, until the link idles: everybody's delay. But a link behind
//! which less is queued than its loop is late idles instead, and that comes off guarantees that leave no room. So what is made good lies
//! between two bounds and follows what the link loses, as Linux's byte queue limits do with interrupts (`lib/dynamic_queue_limits.c`):
//! it grows by a quarter of a loss, and shrinks by 1/4096 of the time that the link is busy. Both are in balance where 0.1 % is lost.
//! To shrink, the link keeps silent for as long, so that the queue behind it shrinks too.

use super::tag::{TAG_BITS, Tag};

/// The part of a loss by which it grows, as a shift.
const GROWTH: u32 = 2;
/// The part of the busy time by which it shrinks, as a shift.
const DECAY: u32 = 12;

/// What lateness is made good, in link time.
#[derive(Clone, Copy, Debug, Default)]
pub struct CatchUp {
    least: Tag,
    most: Tag,
    allowed: Tag,
    /// Busy time for which it has not shrunk yet.
    busy: Tag,
}

impl CatchUp {
    /// Between `least_ns` and `most_ns`, and at least `floor`.
    #[must_use]
    pub fn between(least_ns: u64, most_ns: u64, floor: Tag) -> Self {
        let least = (least_ns << TAG_BITS).max(floor);
        CatchUp { least, most: least.max(most_ns << TAG_BITS), allowed: least, busy: 0 }
    }

    /// What is made good now.
    #[must_use]
    pub fn allowed(&self) -> Tag {
        self.allowed
    }

    /// The link was later than that by `over`. A stall longer than could ever be made good teaches no more than one as long.
    pub fn lost(&mut self, over: Tag) {
        self.allowed = self.most.min(self.allowed + (over.min(self.most) >> GROWTH));
    }

    /// The link is busy for `cost`; returns for how long it is silent after it.
    pub fn pay(&mut self, cost: Tag) -> Tag {
        if self.allowed == self.least {
            return 0;
        }
        self.busy += cost;
        let step = (self.busy >> DECAY).min(self.allowed - self.least);
        self.busy &= (1 << DECAY) - 1;
        self.allowed -= step;
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Tag = 1000 << TAG_BITS;

    #[test]
    fn it_grows_with_losses_and_shrinks_with_time_between_its_bounds() {
        let mut catch_up = CatchUp::between(100_000, 1_000_000, 0);
        assert_eq!(catch_up.pay(1_000 * US), 0, "at its least it costs nothing");
        catch_up.lost(200 * US);
        assert_eq!(catch_up.allowed(), 150 * US);
        catch_up.lost(1_000_000 * US);
        assert_eq!(catch_up.allowed(), 400 * US, "a long stall counts as the longest that can be made good");
        for _ in 0..10 {
            catch_up.lost(1_000 * US);
        }
        assert_eq!(catch_up.allowed(), 1_000 * US);
        let silent: Tag = (0..1_000_000).map(|_| catch_up.pay(US)).sum();
        assert_eq!(1_000 * US - catch_up.allowed(), silent);
        assert_eq!(silent, (1_000_000 * US) >> DECAY, "however short what is paid for is");
        assert!((0..4).map(|_| catch_up.pay(1_000_000 * US)).sum::<Tag>() + silent == 900 * US);
        assert_eq!(catch_up.allowed(), 100 * US);
    }

    #[test]
    fn what_slow_links_need_counts_more_than_the_bounds() {
        let mut catch_up = CatchUp::between(100_000, 1_000_000, 1_600 * US);
        catch_up.lost(1_000 * US);
        assert_eq!(catch_up.allowed(), 1_600 * US);
    }
}
