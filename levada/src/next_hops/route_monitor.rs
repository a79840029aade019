//! Ears: a thread for each network namespace that tunnels leave by, and one for each that taken
//! interfaces are in, which has maintenance look again as soon as the kernel says that something
//! there has changed. Without them, it would be seen by the look that there is each second anyway.

use crate::system::privileges::{Duty, confine};
use ports::neighbours::{Changes, Subject};
use ports::netns::Netns;
use std::io;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a change is waited for until it is looked whether anybody still wants to know.
const PATIENCE: Duration = Duration::from_secs(1);
/// After a change, those that follow within this time are told as one: neighbours come and go by
/// the hundred.
const REST: Duration = Duration::from_millis(250);
/// The same for links at first: a cable that is pulled and put back is two changes, and who bonds
/// links wants each soon. With each change it doubles, up to [`REST`], and for each [`REST`]
/// without one it is a quarter: whoever has a container can have its link change some hundred times
/// a second, and each time all taken interfaces are looked at. With changes that come now and then
/// it stays short.
const LINK_REST: Duration = Duration::from_millis(1);

/// A route monitor in a namespace, for as long as it is kept.
pub struct RouteMonitor {
    _wanted: Arc<()>,
    thread: JoinHandle<()>,
}

impl RouteMonitor {
    /// Calls `tell` after each change of what `subject` says from now on.
    ///
    /// # Errors
    /// The namespace is not there, or the kernel does not tell of changes.
    pub fn open(subject: Subject, netns: Option<&str>, tell: impl Fn() + Send + 'static) -> io::Result<RouteMonitor> {
        let changes = Changes::open(subject, netns.map(Netns::new).as_ref())?;
        let wanted = Arc::new(());
        let is_wanted = Arc::downgrade(&wanted);
        let rest = Rest::of(subject);
        let thread = thread::Builder::new()
            .name("levada-routes".to_owned())
            .spawn(move || listen(&changes, &is_wanted, rest, tell))?;
        Ok(RouteMonitor { _wanted: wanted, thread })
    }

    /// Whether it hears nothing any more: its namespace is gone.
    pub fn is_deaf(&self) -> bool {
        self.thread.is_finished()
    }
}

/// How long is rested after the next change.
struct Rest {
    least: Duration,
    next: Duration,
}

impl Rest {
    fn of(subject: Subject) -> Rest {
        let least = match subject {
            Subject::Ways => REST,
            Subject::Links => LINK_REST,
        };
        Rest { least, next: least }
    }

    /// There was a change: how long to rest.
    fn take(&mut self) -> Duration {
        let longer = (self.next * 2).min(REST);
        std::mem::replace(&mut self.next, longer)
    }

    /// Nothing has changed for so long.
    fn was_quiet(&mut self, time: Duration) {
        let times = (time.as_millis() / REST.as_millis()).min(15) as u32;
        self.next = (self.next / (1 << (2 * times))).max(self.least);
    }
}

fn listen(changes: &Changes, is_wanted: &Weak<()>, mut rest: Rest, tell: impl Fn()) {
    // With more rights than it needs it does without; the look each second does as well.
    if confine(Duty::Looking).is_err() {
        return;
    }
    while is_wanted.strong_count() > 0 {
        let began = Instant::now();
        match changes.wait(PATIENCE) {
            Ok(false) => rest.was_quiet(began.elapsed()),
            Ok(true) => {
                tell();
                rest.was_quiet(began.elapsed());
                thread::sleep(rest.take());
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_change_without_end_are_looked_at_four_times_a_second_and_others_at_once() {
        let mut rest = Rest::of(Subject::Links);
        let ms = |rest: &mut Rest, times| (0..times).map(|_| rest.take().as_millis()).collect::<Vec<_>>();
        assert_eq!(ms(&mut rest, 11), [1, 2, 4, 8, 16, 32, 64, 128, 250, 250, 250]);
        rest.was_quiet(PATIENCE);
        assert_eq!(ms(&mut rest, 2), [1, 2]);
        // Quiet counts in parts as well: of changes that go on and on, there is none.
        ms(&mut rest, 20);
        rest.was_quiet(REST / 2);
        assert_eq!(ms(&mut rest, 1), [250]);
        let mut rest = Rest::of(Subject::Ways);
        assert_eq!(ms(&mut rest, 2), [250, 250]);
    }

    #[test]
    fn links_that_change_now_and_then_are_looked_at_at_once_again_soon_after_a_flood() {
        let mut rest = Rest::of(Subject::Links);
        for _ in 0..20 {
            rest.take();
        }
        let apart = Duration::from_millis(600);
        let rests: Vec<u128> = (0..10)
            .map(|_| {
                rest.was_quiet(apart);
                rest.take().as_millis()
            })
            .collect();
        assert_eq!(rests, [15, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    }
}
