//! How often is done what others cause, and may cause again and again: a key in the store that
//! flips, an interface that comes and goes, clients that look. Once is at once. What comes soon
//! after is gathered and done together, after a pause; who goes on gets longer ones, but for what
//! somebody waits for ([`Pace::resting`]).

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// A pause is at least so many times as long as the work before it took: all of it takes a fifth of
/// a processor at most, unless it takes longer than a quarter of the longest pause.
const REST: u32 = 4;

/// When something may be done again.
#[derive(Clone, Debug)]
pub struct Pace {
    least: Duration,
    most: Duration,
    /// Who goes on gets longer pauses.
    grows: bool,
    pause: Duration,
    next: Option<Instant>,
}

impl Pace {
    /// Pauses from `least` on, which double while each is followed at once by more work, up to
    /// `most`.
    #[must_use]
    pub fn new(least: Duration, most: Duration) -> Pace {
        Pace { least, most, grows: true, pause: Duration::ZERO, next: None }
    }

    /// Pauses for what somebody waits for: only as long as the work before needs ([`REST`]), up to
    /// `most`, however long it goes on.
    #[must_use]
    pub fn resting(most: Duration) -> Pace {
        Pace { grows: false, ..Pace::new(Duration::ZERO, most) }
    }

    /// How long to wait at `now` before it is done again.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Duration {
        self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now))
    }

    /// It was done from `begun` to `ended`.
    pub fn done(&mut self, begun: Instant, ended: Instant) {
        let is_pressed = self.grows && self.next.is_some_and(|next| begun.saturating_duration_since(next) < self.pause);
        let grown = if is_pressed { self.pause * 2 } else { self.least };
        let rest = ended.saturating_duration_since(begun) * REST;
        self.pause = grown.max(self.least).min(self.most).max(rest.min(self.most));
        self.next = Some(ended + self.pause);
    }
}

/// How long to wait before what failed is done again: at first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(16));

/// Works on what is heard until nobody can say anything more, at such a pace. What is heard in a
/// pause is one piece of work. Where that fails (false), it is repeated with nothing new, or with
/// what is heard next, until it works.
pub fn gathered<T>(heard: &Receiver<T>, mut pace: Pace, mut work: impl FnMut(Vec<T>) -> bool) {
    let mut again = None;
    loop {
        let first = match again {
            None => heard.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(wait) => heard.recv_timeout(wait),
        };
        match first {
            Ok(_) => std::thread::sleep(pace.wait(Instant::now())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let all = first.into_iter().chain(heard.try_iter()).collect();
        let begun = Instant::now();
        let works = work(all);
        pace.done(begun, Instant::now());
        again = (!works).then(|| again.map_or(AGAIN.0, |wait: Duration| (wait * 2).min(AGAIN.1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    const MS: Duration = Duration::from_millis(1);

    /// What is caused every `every` for a minute, where doing it takes `took`: how often it is
    /// done, and the longest that anything waited.
    fn minute(every: Duration, took: Duration) -> (u32, Duration) {
        let mut pace = Pace::new(50 * MS, 2000 * MS);
        let start = Instant::now();
        let (mut now, mut cause) = (start, start);
        let (mut times, mut longest) = (0, Duration::ZERO);
        while now < start + 60_000 * MS {
            let begun = now.max(cause) + pace.wait(now.max(cause));
            longest = longest.max(begun - cause);
            now = begun + took;
            pace.done(begun, now);
            times += 1;
            // What was caused meanwhile is done with it.
            while cause <= begun {
                cause += every;
            }
        }
        (times, longest)
    }

    #[test]
    fn a_key_that_flips_takes_a_small_part_of_a_processor() {
        let (times, longest) = minute(MS, 40 * MS);
        assert!((25..=40).contains(&times), "{times} times in a minute");
        assert!(longest <= 2041 * MS, "{longest:?}");
        // What takes long has the longer rest.
        let (times, longest) = minute(MS, 400 * MS);
        assert!(times * 400 * MS <= 13_000 * MS, "{times} times of 400 ms in a minute");
        assert!(longest <= 2401 * MS, "{longest:?}");
    }

    #[test]
    fn what_is_waited_for_again_and_again_waits_no_longer() {
        let mut pace = Pace::resting(2000 * MS);
        let start = Instant::now();
        let mut now = start;
        for _ in 0..1000 {
            now += pace.wait(now) + MS;
            pace.done(now - MS, now);
        }
        assert_eq!(now - start, 1000 * MS * (1 + REST) - MS * REST, "a fifth of a processor");
        now += pace.wait(now) + 5000 * MS;
        pace.done(now - 5000 * MS, now);
        assert_eq!(pace.wait(now), 2000 * MS);
    }

    #[test]
    fn what_comes_now_and_then_is_done_at_once() {
        let (times, longest) = minute(500 * MS, 5 * MS);
        assert!((120..=121).contains(&times) && longest.is_zero(), "{times} times, {longest:?}");
        // After a crowd, too.
        let mut pace = Pace::new(50 * MS, 2000 * MS);
        let mut now = Instant::now();
        for _ in 0..10 {
            now += pace.wait(now);
            pace.done(now, now);
        }
        assert!(pace.wait(now) == 2000 * MS);
        now += 5000 * MS;
        assert!(pace.wait(now).is_zero());
        pace.done(now, now);
        assert_eq!(pace.wait(now), 50 * MS);
    }

    #[test]
    fn what_is_heard_in_a_pause_is_one_piece_of_work() {
        let (tell, heard) = sync_channel(256);
        let told = std::thread::spawn(move || (0..1000).try_for_each(|n| tell.send(n)).unwrap());
        let (mut works, mut all) = (0, Vec::new());
        gathered(&heard, Pace::new(20 * MS, 40 * MS), |some: Vec<u32>| {
            works += 1;
            all.extend(some);
            true
        });
        told.join().unwrap();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
        assert!(works <= 10, "{works}");
    }

    #[test]
    fn what_fails_is_repeated_until_it_works() {
        let (tell, heard) = sync_channel(1);
        tell.send(1).unwrap();
        let mut works = Vec::new();
        let mut tell = Some(tell);
        gathered(&heard, Pace::new(MS, MS), |some: Vec<u32>| {
            works.push((some, Instant::now()));
            if works.len() == 3 {
                tell = None;
            }
            works.len() == 3
        });
        let all: Vec<&[u32]> = works.iter().map(|(some, _)| &some[..]).collect();
        assert_eq!(all, [&[1][..], &[], &[]]);
        assert!(works[1].1 - works[0].1 >= AGAIN.0 && works[2].1 - works[1].1 >= 2 * AGAIN.0);
    }
}
