//! Loss by member: a hello has how many numbers the other end has sent over a member, and this end
//! counts those that arrived. A hello leaves after the frames that it counts, so those that have
//! not arrived are lost. Frames that left after it may arrive before it; the next hello counts
//! them.

/// What was lost over a member, and the counts at the last hello.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    /// Numbers that the other end had sent, and that had arrived.
    last: Option<(u32, u32)>,
    /// How many more had arrived than it had sent.
    ahead: i64,
    lost: u64,
}

impl Loss {
    pub const NONE: Loss = Loss { last: None, ahead: 0, lost: 0 };

    /// Frames that did not arrive.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Another member of the other end, or another run of it, counts from now on. What was lost
    /// before stays counted.
    pub fn begin(&mut self) {
        (self.last, self.ahead) = (None, 0);
    }

    /// A hello reports that `sent` numbers were sent, and `come` have arrived.
    pub fn count(&mut self, sent: u32, come: u32) {
        let Some((was_sent, had_come)) = self.last.replace((sent, come)) else { return };
        let more = sent.wrapping_sub(was_sent);
        if more >= 1 << 31 {
            // It has restarted.
            self.ahead = 0;
            return;
        }
        let ahead = self.ahead + i64::from(come.wrapping_sub(had_come)) - i64::from(more);
        if ahead < 0 {
            self.lost = self.lost.saturating_add(ahead.unsigned_abs());
        }
        self.ahead = ahead.max(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(hellos: &[(u32, u32)]) -> u64 {
        let mut loss = Loss::NONE;
        hellos.iter().for_each(|&(sent, come)| loss.count(sent, come));
        loss.lost()
    }

    #[test]
    fn what_was_sent_and_did_not_come_is_lost() {
        assert_eq!(counted(&[(1000, 40)]), 0, "from the first hello on");
        assert_eq!(counted(&[(1000, 40), (1010, 50), (1020, 57), (1020, 57)]), 3);
        assert_eq!(counted(&[(u32::MAX - 1, u32::MAX), (8, 5)]), 4, "both counts begin again at 0");
    }

    /// Frames arrive before a hello that does not count them. They are not lost, and later loss
    /// counts.
    #[test]
    fn what_overtakes_a_hello_is_not_counted_against_later_loss() {
        assert_eq!(counted(&[(0, 0), (10, 13), (20, 20)]), 0);
        assert_eq!(counted(&[(0, 0), (10, 13), (20, 18)]), 2);
        assert_eq!(counted(&[(0, 0), (10, 8), (20, 20), (30, 28)]), 2, "two overtook the third");
    }

    #[test]
    fn another_run_counts_anew() {
        let mut loss = Loss::NONE;
        [(0, 0), (10, 5)].into_iter().for_each(|(sent, come)| loss.count(sent, come));
        loss.begin();
        [(7, 100), (9, 102)].into_iter().for_each(|(sent, come)| loss.count(sent, come));
        // Its count is less than before, without another run.
        [(2, 200), (4, 201)].into_iter().for_each(|(sent, come)| loss.count(sent, come));
        assert_eq!(loss.lost(), 5 + 1);
    }
}
