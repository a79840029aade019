//! Calling a guest: adding one to an eventfd that somebody else has, too.
//!
//! write(2) is no way for that. A descriptor's O_NONBLOCK belongs to what it is open on, so whoever
//! sent it may take the flag away at any moment, fill the counter, and keep who writes waiting for
//! ever: the worker, and with it everybody. The kernel has one way to add to an eventfd that waits
//! in no case: the notice of a completed asynchronous operation (`IOCB_FLAG_RESFD`, io_submit(2),
//! `linux/aio_abi.h`). So reading nothing from /dev/null is submitted, which is done at once. It
//! costs three times what write(2) does, once a burst.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Completed operations that may wait to be forgotten; the kernel rounds up.
const EVENTS: libc::c_long = 128;
/// After so many operations those that are completed are forgotten.
const FORGET: u32 = 32;
const IOCB_CMD_PREAD: u16 = 0;
const IOCB_FLAG_RESFD: u32 = 1;

/// `struct iocb` (`linux/aio_abi.h`); the two words of the second line change places on big-endian
/// machines, and are zero here.
#[repr(C)]
#[derive(Default)]
struct Operation {
    data: u64,
    key: [u32; 2],
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    notify: u32,
}

const _: () = assert!(size_of::<Operation>() == 64);

/// `struct io_event`, of which nothing is wanted.
type Event = [u64; 4];

/// The process's place for asynchronous operations.
#[derive(Debug)]
struct Context {
    id: libc::c_ulong,
    nothing: File,
    done: AtomicU32,
}

static CONTEXT: OnceLock<Option<Context>> = OnceLock::new();

/// Makes what [`call`] needs. To be called by a thread that may; where it is not called, or the
/// kernel has no such operations, [`call`] writes. False: it does.
pub fn prepare() -> bool {
    CONTEXT.get_or_init(|| Context::new().ok()).is_some()
}

/// Adds one to an eventfd, and waits in no case. A full one stays full; what is none gets nothing.
pub fn call(descriptor: impl AsFd) {
    let descriptor = descriptor.as_fd();
    match CONTEXT.get() {
        Some(Some(context)) => context.notify(descriptor.as_raw_fd() as u32),
        _ => {
            let _ = rustix::io::write(descriptor, &1u64.to_ne_bytes());
        }
    }
}

impl Context {
    fn new() -> io::Result<Context> {
        let nothing = File::open("/dev/null")?;
        let mut id: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's number to where the pointer points.
        if unsafe { libc::syscall(libc::SYS_io_setup, EVENTS, &raw mut id) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Context { id, nothing, done: AtomicU32::new(0) })
    }

    fn notify(&self, descriptor: u32) {
        let mut operation = Operation {
            opcode: IOCB_CMD_PREAD,
            descriptor: self.nothing.as_raw_fd() as u32,
            flags: IOCB_FLAG_RESFD,
            notify: descriptor,
            ..Operation::default()
        };
        let list = [&raw mut operation];
        // SAFETY: the list has one operation, which reads no bytes to nowhere, and which the kernel
        // has copied when the call returns.
        let submit = || unsafe { libc::syscall(libc::SYS_io_submit, self.id, 1 as libc::c_long, list.as_ptr()) };
        let full = submit() < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN);
        if full || self.done.fetch_add(1, Ordering::Relaxed) % FORGET == FORGET - 1 {
            self.forget();
        }
        if full {
            submit();
        }
    }

    /// Makes room for more.
    fn forget(&self) {
        let mut events = [Event::default(); EVENTS as usize];
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: there is room for so many events; the time is a valid one.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.id,
                0 as libc::c_long,
                EVENTS,
                events.as_mut_ptr(),
                &raw const now,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn who_fills_its_eventfd_and_makes_it_wait_keeps_nobody_waiting() {
        assert!(prepare());
        assert!(matches!(CONTEXT.get(), Some(Some(_))), "this kernel has asynchronous operations");
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let read = || {
            let mut count = [0; 8];
            rustix::io::read(&event, &mut count).unwrap();
            u64::from_ne_bytes(count)
        };
        for _ in 0..1000 {
            call(&event);
        }
        assert_eq!(read(), 1000);
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        // It blocks who writes now; this test would not end.
        (0..100).for_each(|_| call(&event));
        assert!(read() >= u64::MAX - 1);
        call(&event);
        assert_eq!(read(), 1);
        call(File::open("/dev/null").unwrap());
    }
}
