//! Who closes what front ends have sent: threads that hold no lock, and whom nobody waits for.
//!
//! close(2) may take any time, and who sent a descriptor says how long. So each machine's are
//! closed one after the other by a thread of their own, which is there while there are some; one
//! that never returns keeps only its own machine waiting. A machine for which much waits is not
//! served ([`Closing::is_full`]).

use ports::vhost::{Closer, Leaving, most_bytes};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// What may wait for a machine: a whole session of eight pairs of rings and all its memory, twice.
const MOST: usize = 256;
/// Stack of a thread that only closes.
const STACK: usize = 64 << 10;

/// What one machine has sent and is yet to be closed.
#[derive(Clone, Debug)]
pub struct Closing(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    waiting: Mutex<Waiting>,
    starter: Sender<Closing>,
}

#[derive(Debug, Default)]
struct Waiting {
    all: VecDeque<Leaving>,
    /// Bytes of memory among them.
    bytes: u64,
    /// A thread closes them, or is about to.
    has_thread: bool,
}

/// Starts threads for those who have something to close. It has few rights, and so have they.
#[derive(Debug)]
pub struct Starter(Receiver<Closing>);

/// Who starts threads, and how to tell.
pub fn starter() -> (Sender<Closing>, Starter) {
    // At most one request of each machine is under way.
    let (sender, receiver) = channel();
    (sender, Starter(receiver))
}

impl Starter {
    /// Starts threads, until nobody can ask any more.
    pub fn run(self) {
        for closing in self.0 {
            let close = closing.clone();
            let thread = thread::Builder::new().name("levada-closing".to_owned()).stack_size(STACK);
            if thread.spawn(move || close.close_all()).is_err() {
                // The next that comes is another attempt.
                closing.waiting().has_thread = false;
            }
        }
    }
}

impl Closing {
    /// Of one machine, for which nothing waits.
    pub fn new(starter: Sender<Closing>) -> Closing {
        Closing(Arc::new(Shared { waiting: Mutex::default(), starter }))
    }

    /// As what ports know it.
    pub fn closer(&self) -> Arc<dyn Closer> {
        Arc::new(self.clone())
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether so much waits that its machine is to send no more: descriptors, or more memory than
    /// a session may have.
    pub fn is_full(&self) -> bool {
        let waiting = self.waiting();
        waiting.all.len() >= MOST || waiting.bytes > most_bytes()
    }

    /// Has what waits closed, where no thread could be started before.
    pub fn go_on(&self) {
        let mut waiting = self.waiting();
        if !waiting.all.is_empty() && !waiting.has_thread {
            waiting.has_thread = self.0.starter.send(self.clone()).is_ok();
        }
    }

    fn close_all(&self) {
        loop {
            let mut waiting = self.waiting();
            let Some(next) = waiting.all.pop_front() else {
                waiting.has_thread = false;
                return;
            };
            waiting.bytes = waiting.bytes.saturating_sub(bytes(&next));
            drop(waiting);
            drop(next);
        }
    }
}

fn bytes(leaving: &Leaving) -> u64 {
    match leaving {
        Leaving::Memory(mapped) => mapped.bytes() as u64,
        Leaving::Descriptor(_) => 0,
    }
}

impl Closer for Closing {
    fn take(&self, leaving: Leaving) {
        let mut waiting = self.waiting();
        waiting.bytes = waiting.bytes.saturating_add(bytes(&leaving));
        waiting.all.push_back(leaving);
        drop(waiting);
        self.go_on();
    }
}
