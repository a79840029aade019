//! What becomes of a process that may give its work away and may be told to end, both at once.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Whose the work is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Stage {
    #[default]
    Ours,
    /// The next process has all, and has not yet said that it takes it.
    Giving,
    Given,
    /// This process ends, and gives nothing away any more.
    Ended,
}

/// Decided once: the work is given away, or this process ends with it.
#[derive(Clone, Default, Debug)]
pub struct Outcome(Arc<(Mutex<Stage>, Condvar)>);

impl Outcome {
    /// The next process is about to have all. False: this one is ending.
    pub fn begin(&self) -> bool {
        self.pass(Stage::Ours, Stage::Giving)
    }

    /// It has taken it.
    pub fn succeed(&self) {
        self.pass(Stage::Giving, Stage::Given);
    }

    /// It has not.
    pub fn fail(&self) {
        self.pass(Stage::Giving, Stage::Ours);
    }

    fn pass(&self, from: Stage, to: Stage) -> bool {
        let (stage, has_changed) = &*self.0;
        let mut stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
        let is_so = *stage == from;
        if is_so {
            *stage = to;
            has_changed.notify_all();
        }
        is_so
    }

    /// This process is to end. What is being given away has its outcome first, if that comes within
    /// `patience`. True: it is given away.
    pub fn end(&self, patience: Duration) -> bool {
        let (stage, has_changed) = &*self.0;
        let stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
        let decided = has_changed.wait_timeout_while(stage, patience, |stage| *stage == Stage::Giving);
        let (mut stage, _) = decided.unwrap_or_else(PoisonError::into_inner);
        if *stage != Stage::Given {
            *stage = Stage::Ended;
        }
        *stage == Stage::Given
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn who_ends_waits_for_what_is_being_given_away_and_gives_nothing_more() {
        let (outcome, long) = (Outcome::default(), Duration::from_secs(60));
        assert!(outcome.begin());
        outcome.fail();
        assert!(outcome.begin());
        let (other, short) = (outcome.clone(), Duration::from_millis(50));
        let giver = thread::spawn(move || {
            thread::sleep(short);
            other.succeed();
        });
        assert!(outcome.end(long), "it is given away");
        giver.join().unwrap();
        assert!(outcome.end(Duration::ZERO), "and stays so");
        for is_giving in [false, true] {
            let outcome = Outcome::default();
            assert!(!is_giving || outcome.begin());
            assert!(!outcome.end(Duration::from_millis(1)));
            outcome.succeed();
            assert!(!outcome.end(Duration::ZERO) && !outcome.begin(), "too late");
        }
    }
}
