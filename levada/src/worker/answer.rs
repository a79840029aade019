//! Answers: what other threads wait for. None is made that nobody waits for any more: who asks
//! again and again, and goes away each time, is not to fill the worker's memory.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Where an answer goes.
#[derive(Debug)]
pub struct Reply<T> {
    sender: SyncSender<T>,
    asker: Weak<()>,
}

/// Where it comes out, and is waited for as long as this is kept.
#[derive(Debug)]
pub struct Answer<T> {
    receiver: Receiver<T>,
    _asker: Arc<()>,
}

/// Both ends of the way of one answer.
pub fn answer<T>() -> (Reply<T>, Answer<T>) {
    let (sender, receiver) = sync_channel(1);
    let asker = Arc::new(());
    (Reply { sender, asker: Arc::downgrade(&asker) }, Answer { receiver, _asker: asker })
}

impl<T> Reply<T> {
    /// Whether anybody waits for it.
    pub fn is_wanted(&self) -> bool {
        self.asker.strong_count() > 0
    }

    /// Gives the answer.
    pub fn give(self, answer: T) {
        let _ = self.sender.try_send(answer);
    }
}

impl<T> Answer<T> {
    /// The answer, if it comes within such a time.
    pub fn wait(&self, most: Duration) -> Option<T> {
        self.receiver.recv_timeout(most).ok()
    }
}
