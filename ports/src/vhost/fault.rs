//! SIGBUS: a front end cut its memory's file short, or the host has no page for it.
//!
//! Whoever touches such a page would be ended by the kernel, and with it all other tenants' ports. A signal handler puts empty memory
//! over the whole mapping that was touched, marks it, and lets the instruction be done again; the session ends as soon as it sees the
//! mark. At every other address all is as it was without the handler.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Mappings of a process at most: 128 machines with as many regions as one may have.
const MOST: usize = 4096;

/// A mapping that the handler knows. Lengths are written last and read first.
struct Slot {
    is_taken: AtomicBool,
    start: AtomicUsize,
    bytes: AtomicUsize,
    is_lost: AtomicBool,
}

impl Slot {
    const fn free() -> Slot {
        Slot {
            is_taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            is_lost: AtomicBool::new(false),
        }
    }
}

static SLOTS: [Slot; MOST] = [const { Slot::free() }; MOST];
static INSTALL: Once = Once::new();
/// What was done about SIGBUS before; never freed.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// A mapping is watched for as long as this exists.
#[derive(Debug)]
pub struct Watch(usize);

impl Watch {
    /// Watches the mapping of `bytes` bytes at `start`.
    ///
    /// # Errors
    /// There are [`MOST`] already.
    pub fn new(start: *mut u8, bytes: usize) -> io::Result<Watch> {
        INSTALL.call_once(install);
        for (number, slot) in SLOTS.iter().enumerate() {
            if slot.is_taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                slot.is_lost.store(false, Ordering::Relaxed);
                slot.start.store(start as usize, Ordering::Relaxed);
                slot.bytes.store(bytes, Ordering::Release);
                return Ok(Watch(number));
            }
        }
        Err(io::Error::other(format!("there are {MOST} mappings of machines' memory already")))
    }

    /// Whether the memory behind it is lost.
    pub fn is_lost(&self) -> bool {
        SLOTS[self.0].is_lost.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let slot = &SLOTS[self.0];
        slot.bytes.store(0, Ordering::Release);
        slot.is_taken.store(false, Ordering::Release);
    }
}

fn install() {
    // SAFETY: a zeroed sigaction is a valid one; both pointers are to such, and the handler does only what a signal handler may.
    unsafe {
        let before = Box::into_raw(Box::new(std::mem::zeroed::<libc::sigaction>()));
        let mut ours = std::mem::zeroed::<libc::sigaction>();
        ours.sa_sigaction = on_bus_error as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        if libc::sigaction(libc::SIGBUS, &raw const ours, before) == 0 {
            BEFORE.store(before, Ordering::Release);
        }
    }
}

/// The handler. It allocates nothing and takes no lock.
extern "C" fn on_bus_error(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid siginfo; for SIGBUS it has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    for slot in &SLOTS {
        let (bytes, start) = (slot.bytes.load(Ordering::Acquire), slot.start.load(Ordering::Relaxed));
        if bytes == 0 || !(start..start + bytes).contains(&address) {
            continue;
        }
        slot.is_lost.store(true, Ordering::Relaxed);
        // SAFETY: the range is a mapping of ours that its owner has not given back; mmap(2) is a plain system call.
        let mapped = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
            libc::mmap(start as *mut c_void, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if mapped != libc::MAP_FAILED {
            return;
        }
    }
    // Somebody else's fault: as it was before, and the instruction fails again.
    let before = BEFORE.load(Ordering::Acquire);
    // SAFETY: it is null or what sigaction(2) has filled in; without one the default is asked for.
    unsafe {
        if before.is_null() {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
        } else {
            libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut());
        }
    }
}
