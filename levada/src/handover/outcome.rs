//! What becomes of a process that may give its work away and may be told to end, both at once.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What who gives may need to find out that nothing more can come.
const FINDING_OUT: Duration = Duration::from_secs(5);

/// Whose the work is.
#[derive(Default, Debug)]
enum Stage {
    #[default]
    Ours,
    /// The next process is given all over this, and has not yet said that it takes it.
    Giving(UnixStream),
    Given,
    /// This process ends, and gives nothing away any more.
    Ended,
}

impl Stage {
    fn is_open(&mut self) -> bool {
        matches!(self, Stage::Giving(_))
    }
}

/// Decided once, and by who gives: the work is given away, or this process ends with it.
#[derive(Clone, Default, Debug)]
pub struct Outcome(Arc<(Mutex<Stage>, Condvar)>);

impl Outcome {
    /// The next process is about to have all, over `stream`. False: this one is ending.
    pub fn begin(&self, stream: UnixStream) -> bool {
        let mut stage = self.stage();
        let is_ours = matches!(*stage, Stage::Ours);
        if is_ours {
            *stage = Stage::Giving(stream);
        }
        is_ours
    }

    /// It has taken it.
    pub fn succeed(&self) {
        self.decide(Stage::Given);
    }

    /// It has not, and cannot any more.
    pub fn fail(&self) {
        self.decide(Stage::Ours);
    }

    fn decide(&self, now: Stage) {
        let mut stage = self.stage();
        if stage.is_open() {
            *stage = now;
            self.0.1.notify_all();
        }
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This process is to end. What is being given away has its outcome first. If that does not
    /// come within `patience`, the next process is kept from taking it; but it may have done so
    /// just before, which only who gives finds out. That takes a moment; if who gives hangs, this
    /// process ends with its work. True: it is given away.
    pub fn end(&self, patience: Duration) -> bool {
        let has_changed = &self.0.1;
        let waited = has_changed.wait_timeout_while(self.stage(), patience, Stage::is_open);
        let (mut stage, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Stage::Giving(stream) = &*stage {
            let _ = stream.shutdown(Shutdown::Both);
            let waited = has_changed.wait_timeout_while(stage, FINDING_OUT, Stage::is_open);
            (stage, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let is_given = matches!(*stage, Stage::Given);
        if !is_given {
            *stage = Stage::Ended;
        }
        is_given
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::thread;

    #[test]
    fn who_ends_waits_for_what_is_being_given_away_and_gives_nothing_more() {
        let (outcome, long) = (Outcome::default(), Duration::from_secs(60));
        let (stream, mut next) = UnixStream::pair().unwrap();
        let again = || stream.try_clone().unwrap();
        assert!(outcome.begin(again()));
        outcome.fail();
        assert!(outcome.begin(again()));
        let (other, short) = (outcome.clone(), Duration::from_millis(50));
        let giver = thread::spawn(move || {
            thread::sleep(short);
            other.succeed();
        });
        assert!(outcome.end(long), "it is given away");
        giver.join().unwrap();
        assert!(outcome.end(Duration::ZERO), "and stays so");
        let outcome = Outcome::default();
        assert!(!outcome.end(Duration::from_millis(1)));
        outcome.succeed();
        assert!(!outcome.end(Duration::ZERO) && !outcome.begin(again()), "too late");
        // Who gives has not found out when that is over, but sees that nothing more can come.
        for is_taken in [true, false] {
            let (outcome, (stream, mut read)) = (Outcome::default(), UnixStream::pair().unwrap());
            assert!(outcome.begin(stream));
            let other = outcome.clone();
            let giver = thread::spawn(move || {
                assert_eq!(read.read(&mut [0]).unwrap(), 0);
                if is_taken { other.succeed() } else { other.fail() }
            });
            assert_eq!(outcome.end(Duration::from_millis(1)), is_taken);
            giver.join().unwrap();
        }
        next.set_nonblocking(true).unwrap();
        assert!(next.read(&mut [0]).is_err(), "what had its outcome is not shut");
    }
}
