//! That a daemon ends when it is told to, whatever its threads are doing: what does not end by
//! itself is ended by force.
//!
//! Signals have a thread of their own, since the main thread, too, may wait for something: while a
//! daemon starts, or reads its file again. What an end by force leaves behind is what kill -9
//! leaves, and the next start or `levada clean` removes it.

use crate::system::log::{Level, Log};
use crate::system::os::{Signal, Signals};
use crate::system::privileges::{Duty, confine};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, recv};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long the main thread may take to come to it that the daemon is to end: it may be starting,
/// or waiting for a change.
const HEEDING: Duration = Duration::from_secs(10);
/// How long a daemon may then take to end, in all: closing a thousand devices takes many seconds.
/// With [`HEEDING`] less than systemd waits before it kills (TimeoutStopSec, 60 s).
pub const ENDING: Duration = Duration::from_secs(45);
/// What signals are passed on as; the end is the greater.
const RELOAD: u8 = 0;
/// See [`RELOAD`].
const END: u8 = 1;
/// How often it is looked whether a thread has ended.
const LOOK: Duration = Duration::from_millis(2);

/// What signals have asked for: readable when there is something new.
#[derive(Debug)]
pub struct Asked {
    news: UnixStream,
    is_heeded: Arc<AtomicBool>,
}

impl Asked {
    /// Listens to `signals` from now on. After one that asks for the end, [`Asked::heed`] is
    /// to be called soon, or the process ends by force.
    ///
    /// # Errors
    /// No thread or descriptor is left.
    pub fn of(signals: Signals, log: Log) -> io::Result<Asked> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        let is_heeded = Arc::new(AtomicBool::new(false));
        let heeded = Arc::clone(&is_heeded);
        let listen = move || {
            if let Err(why) = confine(Duty::Passing) {
                log.line(Level::Warning, &why);
            }
            loop {
                // An error is an interruption by a signal that is not ours.
                let _ = poll(&mut [PollFd::new(&signals, PollFlags::IN)], None);
                let Some(signal) = signals.next() else { continue };
                // Where so much is unread already, that is as good.
                let _ = (&theirs).write(&[if signal == Signal::End { END } else { RELOAD }]);
                if signal == Signal::End {
                    thread::sleep(HEEDING);
                    if !heeded.load(Ordering::Acquire) {
                        end_by_force(HEEDING, &log);
                    }
                }
            }
        };
        thread::Builder::new().name("levada-signals".to_owned()).spawn(listen)?;
        Ok(Asked { news: ours, is_heeded })
    }

    /// What was asked for since the last time; the end, if that was among it.
    #[must_use]
    pub fn next(&mut self) -> Option<Signal> {
        let mut bytes = [0; 64];
        let read = self.news.read(&mut bytes).ok()?;
        let last = bytes[..read].iter().max()?;
        Some(if *last == END { Signal::End } else { Signal::Reload })
    }

    /// Whether the end is among what was asked for. It stays to be taken with the rest by
    /// [`Asked::next`].
    #[must_use]
    pub fn is_end(&self) -> bool {
        // More than the socket has room for, at a byte each.
        let mut bytes = [0; 1024];
        let read = recv(&self.news, &mut bytes[..], RecvFlags::PEEK).map_or(0, |(read, _)| read);
        bytes[..read].contains(&END)
    }

    /// The daemon ends from now on, for whatever reason, and has [`ENDING`] for it.
    pub fn heed(&self, log: &Log) {
        self.is_heeded.store(true, Ordering::Release);
        let log = log.clone();
        let wait = move || {
            // Of a thread that may do more than it needs, others tell.
            let _ = confine(Duty::Passing);
            thread::sleep(ENDING);
            end_by_force(ENDING, &log);
        };
        // Without a thread left, each of the others is waited for, for its time.
        let _ = thread::Builder::new().name("levada-ending".to_owned()).spawn(wait);
    }
}

impl AsFd for Asked {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }
}

fn end_by_force(after: Duration, log: &Log) -> ! {
    let text = format!(
        "it has not ended within {} s and is ended by force; start it again, or remove what is left with levada clean --name",
        after.as_secs()
    );
    log.line(Level::Warning, &text);
    log.flush();
    std::process::exit(1);
}

/// Waits for the end of a thread, but not longer than `patience`. `None`: it goes on.
/// `Some(false)`: it has crashed.
pub fn join(thread: JoinHandle<()>, patience: Duration) -> Option<bool> {
    let until = Instant::now() + patience;
    while !thread.is_finished() {
        if Instant::now() >= until {
            return None;
        }
        thread::sleep(LOOK);
    }
    Some(thread.join().is_ok())
}

/// Sends to a thread that may have stopped taking, but does not wait longer than `patience`.
pub fn send<T>(to: &SyncSender<T>, mut what: T, patience: Duration) {
    let until = Instant::now() + patience;
    while let Err(TrySendError::Full(back)) = to.try_send(what) {
        if Instant::now() >= until {
            return;
        }
        what = back;
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{channel, sync_channel};

    #[test]
    fn a_thread_that_goes_on_is_not_waited_for() {
        let (stop, stopped) = channel::<()>();
        let stuck = thread::spawn(move || stopped.recv().unwrap_or_default());
        assert_eq!(join(stuck, Duration::from_millis(10)), None);
        drop(stop);
        assert_eq!(join(thread::spawn(|| {}), ENDING), Some(true));
        assert_eq!(join(thread::spawn(|| std::panic::resume_unwind(Box::new(()))), ENDING), Some(false));
    }

    #[test]
    fn the_unit_leaves_time_for_an_end_by_force() {
        let unit = include_str!("../../../packaging/levada@.service");
        let stop = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
        assert!(Duration::from_secs(stop.parse().unwrap()) > HEEDING + ENDING + crate::system::log::LAST_WORD);
    }

    #[test]
    fn nor_is_one_that_takes_nothing_more() {
        let (to, taken) = sync_channel(1);
        send(&to, 1, ENDING);
        send(&to, 2, Duration::from_millis(10));
        assert_eq!(taken.try_iter().collect::<Vec<_>>(), [1]);
        drop(taken);
        send(&to, 3, ENDING);
    }
}
