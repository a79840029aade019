//! Cut: a direction of a link in which nothing arrives any more, while both ends' carriers stay.
//! What is under way is lost, and so is what is sent meanwhile.

use datapath::units::Instant;

/// One direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cut {
    is_silent: bool,
    /// What arrives before this was sent while nothing got through.
    clear_at: Instant,
}

impl Cut {
    /// Nothing gets through from now on, or all does again; a frame takes so long on the link.
    pub fn set(&mut self, now: Instant, delay_ns: u64, is_silent: bool) {
        if self.is_silent && !is_silent {
            self.clear_at = now.plus_ns(delay_ns);
        }
        self.is_silent = is_silent;
    }

    /// Whether a frame that is through now is lost.
    #[must_use]
    pub fn takes(&self, now: Instant) -> bool {
        self.is_silent || now < self.clear_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_while_it_was_cut_is_lost() {
        let mut cut = Cut::default();
        assert!(!cut.takes(Instant(5)));
        cut.set(Instant(10), 100, true);
        assert!(cut.takes(Instant(11)), "it was under way");
        cut.set(Instant(50), 100, false);
        assert!(cut.takes(Instant(149)), "it was sent at 49");
        assert!(!cut.takes(Instant(150)));
    }
}
