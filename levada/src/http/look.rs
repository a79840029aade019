//! Looking: what many ask for is made once for all who wait, and not so often that those who look
//! take a processor from those who send.
//!
//! An answer is never older than its question. Who asks while one is being made waits for the next,
//! with all others who do.

use super::routes::Answer;
use crate::system::pace::Pace;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest pause between two answers. The answers on reports of a thousand endpoints take some
/// milliseconds, and pauses a few times that.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The pace of all who look.
pub struct Lookers(Mutex<Pace>);

/// One thing that can be looked at.
#[derive(Default)]
pub struct Look {
    /// The last answer, and when making it began, while somebody waits for it.
    last: tokio::sync::Mutex<Option<(Instant, Answer)>>,
    waiting: AtomicUsize,
}

impl Default for Lookers {
    fn default() -> Lookers {
        Lookers(Mutex::new(Pace::resting(LONGEST_PAUSE)))
    }
}

impl Lookers {
    fn pace(&self) -> std::sync::MutexGuard<'_, Pace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Look {
    /// The answer that `make` makes, or made for another who asked later.
    pub async fn answer(&self, lookers: &Lookers, make: impl Future<Output = Answer>) -> Answer {
        let asked = Instant::now();
        let waiting = Waiting::new(&self.waiting);
        let mut last = self.last.lock().await;
        if let Some((_, answer)) = last.as_ref().filter(|(begun, _)| *begun >= asked) {
            let answer = answer.clone();
            if waiting.is_last() {
                *last = None;
            }
            return answer;
        }
        *last = None;
        let wait = lookers.pace().wait(Instant::now());
        tokio::time::sleep(wait).await;
        let begun = Instant::now();
        let answer = make.await;
        lookers.pace().done(begun, Instant::now());
        if !waiting.is_last() {
            *last = Some((begun, answer.clone()));
        }
        answer
    }

    /// The answer that `make` makes for one alone, who has asked for what nobody else has.
    pub async fn answer_one(&self, lookers: &Lookers, make: impl Future<Output = Answer>) -> Answer {
        let _turn = self.last.lock().await;
        let wait = lookers.pace().wait(Instant::now());
        tokio::time::sleep(wait).await;
        let begun = Instant::now();
        let answer = make.await;
        lookers.pace().done(begun, Instant::now());
        answer
    }
}

/// One who waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn new(count: &AtomicUsize) -> Waiting<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        Waiting(count)
    }

    fn is_last(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 1
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use hyper::body::Bytes;
    use std::sync::Arc;

    #[test]
    fn many_who_look_at_once_get_answers_that_were_made_once_or_twice() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (look, lookers, made) =
            (Arc::new(Look::default()), Arc::new(Lookers::default()), Arc::<AtomicUsize>::default());
        runtime.block_on(async {
            let ask = || {
                let (look, lookers, made) = (Arc::clone(&look), Arc::clone(&lookers), Arc::clone(&made));
                tokio::spawn(async move {
                    let asked = Instant::now();
                    let make = async {
                        made.fetch_add(1, Ordering::Relaxed);
                        let begun = Instant::now();
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        Answer::new(Full::new(Bytes::from(format!("{begun:?}"))))
                    };
                    look.answer(&lookers, make).await;
                    asked.elapsed()
                })
            };
            let start = Instant::now();
            for one in (0..1000).map(|_| ask()).collect::<Vec<_>>() {
                one.await.unwrap();
            }
            assert!(made.load(Ordering::Relaxed) <= 2, "{made:?} for a thousand");
            assert!(look.last.lock().await.is_none(), "what nobody waits for is not kept");
            // One after the other, each has a new one, and there are pauses between them.
            for _ in 0..3 {
                ask().await.unwrap();
            }
            let made = made.load(Ordering::Relaxed);
            assert!((4..=5).contains(&made), "{made}");
            assert!(start.elapsed() >= Duration::from_millis(20 * made as u64 + 80 * (made as u64 - 1)));
        });
    }

    #[test]
    fn questions_that_nobody_shares_are_answered_one_after_the_other_with_pauses() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (look, lookers, busy) =
            (Arc::new(Look::default()), Arc::new(Lookers::default()), Arc::<AtomicUsize>::default());
        runtime.block_on(async {
            let start = Instant::now();
            let ask = |question: usize| {
                let (look, lookers, busy) = (Arc::clone(&look), Arc::clone(&lookers), Arc::clone(&busy));
                tokio::spawn(async move {
                    let make = async {
                        assert_eq!(busy.fetch_add(1, Ordering::Relaxed), 0, "one at a time");
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        busy.fetch_sub(1, Ordering::Relaxed);
                        Answer::new(Full::new(Bytes::from(question.to_string())))
                    };
                    look.answer_one(&lookers, make).await.into_body()
                })
            };
            for (question, one) in (0..3).map(ask).collect::<Vec<_>>().into_iter().enumerate() {
                let body = http_body_util::BodyExt::collect(one.await.unwrap()).await.unwrap().to_bytes();
                assert_eq!(body, question.to_string(), "each has its own");
            }
            assert!(start.elapsed() >= Duration::from_millis(3 * 20 + 2 * 80));
        });
    }
}
