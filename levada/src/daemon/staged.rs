//! Threads that are there before they have anything to do.

use super::failed;
use crate::error::Failure;
use crate::system::log::{Level, Log};
use crate::system::privileges::{Duty, confine};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// A thread that waits for what it is to do; it ends where that does not come.
pub(super) struct Staged<T> {
    thread: JoinHandle<()>,
    work: SyncSender<Box<dyn FnOnce(T) + Send>>,
}

impl<T: 'static> Staged<T> {
    /// Starts a thread that has no more rights than its duty takes. `before` is done while it still
    /// has those of its parent, and what it made is handed on.
    pub fn new(
        before: impl FnOnce() -> T + Send + 'static,
        name: &str,
        duty: Duty,
        log: &Log,
    ) -> Result<Staged<T>, Failure> {
        let log = log.clone();
        let (work, awaited) = sync_channel::<Box<dyn FnOnce(T) + Send>>(1);
        let thread = move || {
            let made = before();
            if let Err(why) = confine(duty) {
                log.line(Level::Warning, &why);
            }
            if let Ok(work) = awaited.recv() {
                work(made);
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(thread);
        let thread = thread.map_err(failed("cannot start a thread (see ulimit -u and TasksMax=)"))?;
        Ok(Staged { thread, work })
    }

    /// Has it do this.
    pub fn begin(self, work: impl FnOnce(T) + Send + 'static) -> JoinHandle<()> {
        let _ = self.work.send(Box::new(work));
        self.thread
    }
}
