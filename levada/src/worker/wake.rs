//! What the worker waits on: its ports, and a waker for other threads to ring.
//!
//! Ports are watched edge-triggered (epoll(7)): the worker is told once that frames have come, and
//! keeps in mind itself which ports have some left. So a wait costs what is new, not what is busy.
//! Waits are timed to the nanosecond (epoll_pwait2(2), Linux 5.11; rustix calls it only with its
//! feature `linux_5_11`, and rounds up to milliseconds without).

use datapath::units::Instant;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Events fetched at a time; more wait in the kernel.
const EVENTS: usize = 64;
/// The waker's place among the watched.
const BELL: u64 = u64::MAX;

/// The worker's epoll instance.
#[derive(Debug)]
pub struct Wake {
    epoll: OwnedFd,
    waker: Arc<OwnedFd>,
}

/// Wakes the worker from another thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Wakes it, or keeps it from falling asleep.
    pub fn ring(&self) {
        // It fails only where the counter is full, and then the worker is awake.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

impl Wake {
    /// Watches nothing but the waker. It waits once for no time: where it cannot do that, no thread
    /// of the daemon could wait for events.
    ///
    /// # Errors
    /// The process has no descriptor left; or it cannot wait, and what that takes.
    pub fn new() -> io::Result<Wake> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &waker, EventData::new_u64(BELL), EventFlags::IN)?;
        let (mut events, no_time) = ([MaybeUninit::uninit()], Timespec { tv_sec: 0, tv_nsec: 0 });
        match epoll::wait(&epoll, &mut events, Some(&no_time)) {
            Ok(_) | Err(Errno::INTR) => Ok(Wake { epoll, waker: Arc::new(waker) }),
            Err(errno) => Err(io::Error::other(format!(
                "epoll_pwait2: {errno}; it takes Linux 5.11 or later, and a sandbox that allows this call"
            ))),
        }
    }

    /// A waker for another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.waker))
    }

    /// Watches a device, until [`Wake::unwatch`].
    ///
    /// # Errors
    /// The kernel's limit of watches is reached (fs.epoll.max_user_watches).
    pub fn watch(&self, device: usize, fd: BorrowedFd<'_>) -> io::Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(device as u64), EventFlags::IN | EventFlags::ET)?;
        Ok(())
    }

    /// Watches a device no more that is about to be closed. Where others have copies of its
    /// descriptor the kernel would go on, and another that gets its number could not be watched.
    pub fn unwatch(&self, fd: BorrowedFd<'_>) {
        // What is not watched need not be taken out.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits until something happens, or for `timeout_ns` (`None`: for ever). Calls `ready` for
    /// each device that may have frames; says whether the waker was rung.
    pub fn wait(&self, timeout_ns: Option<u64>, mut ready: impl FnMut(usize)) -> bool {
        let timeout = timeout_ns.map(|ns| Timespec {
            tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (ns % 1_000_000_000) as _,
        });
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        // An error is an interruption: the caller comes back.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, timeout.as_ref()) else { return false };
        let mut rung = false;
        for event in events {
            match event.data.u64() {
                BELL => {
                    let _ = rustix::io::read(&*self.waker, &mut [0; 8]);
                    rung = true;
                }
                device => ready(device as usize),
            }
        }
        rung
    }
}

/// The worker's clock: nanoseconds since it was made (CLOCK_MONOTONIC). It is read for every frame
/// that is written, hence not by way of the standard library, which checks more than is needed
/// here.
#[derive(Clone, Copy, Debug)]
pub struct Clock(u64);

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Clock {
        Clock(read_ns())
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant(read_ns().saturating_sub(self.0))
    }
}

#[cfg(not(test))]
use monotonic_ns as read_ns;

#[cfg(test)]
thread_local! {
    /// What clocks of this thread read: tests whose judgement the machine's stalls would change put
    /// another one here.
    pub static READ_NS: std::cell::Cell<fn() -> u64> = const { std::cell::Cell::new(monotonic_ns) };
}

#[cfg(test)]
fn read_ns() -> u64 {
    READ_NS.get()()
}

fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use ports::seccomp::{Rule, restrict};

    /// As in a sandbox whose list of calls is older than 2021.
    #[test]
    fn a_process_that_may_not_wait_is_refused_by_name() {
        const CALLS: [Rule; 14] = [
            Rule::Always(libc::SYS_epoll_create1),
            Rule::Always(libc::SYS_epoll_ctl),
            Rule::Always(libc::SYS_eventfd2),
            Rule::Always(libc::SYS_futex),
            Rule::Always(libc::SYS_mmap),
            Rule::Always(libc::SYS_mprotect),
            Rule::Always(libc::SYS_munmap),
            Rule::Always(libc::SYS_madvise),
            Rule::Always(libc::SYS_brk),
            Rule::Always(libc::SYS_sigaltstack),
            Rule::Always(libc::SYS_rt_sigprocmask),
            Rule::Always(libc::SYS_write),
            Rule::Always(libc::SYS_close),
            Rule::Always(libc::SYS_exit),
        ];
        let thread = std::thread::spawn(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            restrict(&[&CALLS]).unwrap();
            Wake::new().map(drop).map_err(|error| error.to_string())
        });
        let why = thread.join().unwrap().unwrap_err();
        assert!(why.contains("epoll_pwait2") && why.contains("Linux 5.11"), "{why}");
    }

    #[test]
    fn a_wait_is_not_rounded_up_to_milliseconds() {
        let wake = Wake::new().unwrap();
        let waited = |_| {
            let clock = Clock::start();
            wake.wait(Some(100_000), |_| {});
            clock.now().0
        };
        // The shortest of several: a loaded machine may be late, but not every time.
        let shortest = (0..50).map(waited).min().unwrap();
        assert!((100_000..900_000).contains(&shortest), "{shortest} ns");
    }
}
