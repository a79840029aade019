//! A split virtqueue, seen from the device: virtio 1.2, section 2.7.
//!
//! | part | bytes | written by |
//! |---|---|---|
//! | descriptors | 16 each: address, length, flags, next | guest |
//! | available | flags, index, a word for each entry, then `used_event` | guest |
//! | used | flags, index, 8 for each entry (id, length), then `avail_event` | us |
//!
//! A guest may write anything at any time. Each word is read once, into a copy that is judged and
//! used. What cannot be made sense of as a ring breaks it ([`Broken`]): nothing more is read or
//! written until its driver sets it up anew.
//!
//! Chains are used in the order in which they were made available, and at once; the guest sees them
//! when [`Ring::publish`] says so, those of a burst together.

use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering, fence};

use super::call;
use super::memory::{LINE_BYTES, Memory, fetch};
use super::message::RingAddresses;

/// The longest ring (virtio 1.2, section 2.7).
pub const MOST_ENTRIES: u32 = 32_768;
/// Descriptors that one chain may have, in an indirect table too: as many as QEMU takes
/// (`VIRTQUEUE_MAX_SIZE`). Linux sends at most 19.
pub const MOST_DESCRIPTORS: usize = 1024;

/// A call that takes longer is slow: one costs 1 to 5 us, and as much for each who waits for it.
const SLOW_CALL_NS: u64 = 200_000;
/// So much of the processor's time for slow calls is no chance, in microseconds: of all rings of a
/// session, half of it forgotten each second ([`Kept::forget_slow_calls`]).
pub const MOST_SLOW_US: u32 = 20_000;

/// Chains whose memory is fetched together at least, where so many are known.
const TOGETHER: u16 = 16;

const DESCRIPTOR_BYTES: usize = 16;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT` and `VIRTQ_USED_F_NO_NOTIFY`.
const NO_NOTICE: u16 = 1;

/// Why a ring cannot be used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Broken {
    /// More chains are available than it has entries.
    Ahead = 1,
    /// A descriptor's number is beyond the ring or its table.
    Beyond,
    /// A chain does not end within as many descriptors as there are.
    Endless,
    /// An indirect table that is within another, has an odd length, or lies nowhere.
    Table,
}

impl Broken {
    const ALL: [Broken; 4] = [Broken::Ahead, Broken::Beyond, Broken::Endless, Broken::Table];
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Broken::Ahead => "more is available than it has entries",
            Broken::Beyond => "a descriptor's number is beyond it",
            Broken::Endless => "a chain of descriptors has no end",
            Broken::Table => "an indirect table is in another, has an odd length, or lies nowhere",
        })
    }
}

/// What a session knows of a ring that a port has.
#[derive(Debug, Default)]
pub struct Kept {
    /// The next available entry.
    next: AtomicU16,
    broken: AtomicU8,
    /// What slow calls took lately, in microseconds; 1 for the first.
    slow_us: AtomicU32,
}

impl Kept {
    /// The next available entry: what a ring that is made anew goes on with.
    pub fn next(&self) -> u16 {
        self.next.load(Ordering::Acquire)
    }

    /// Sets it, for a ring that is yet to be made, and which is whole again.
    pub fn begin(&self, next: u16) {
        self.broken.store(0, Ordering::Relaxed);
        self.next.store(next, Ordering::Release);
    }

    /// Calls the guest, and counts what calls take that take long. Where that is too much it is not
    /// called any more.
    pub fn call(&self, descriptor: &OwnedFd) {
        let slow_us = self.slow_us.load(Ordering::Relaxed);
        if slow_us >= MOST_SLOW_US {
            return;
        }
        // Others may run meanwhile, whom the call wakes: that is not what it costs. Where they do
        // not, what it took is enough, and asked faster.
        let clock = if slow_us == 0 { libc::CLOCK_MONOTONIC } else { libc::CLOCK_THREAD_CPUTIME_ID };
        let began = clock_ns(clock);
        call::call(descriptor);
        let took_ns = clock_ns(clock).saturating_sub(began);
        if took_ns > SLOW_CALL_NS {
            let more_us = if slow_us == 0 { 1 } else { u32::try_from(took_ns / 1000).unwrap_or(u32::MAX) };
            self.slow_us.store(slow_us.saturating_add(more_us), Ordering::Relaxed);
        }
    }

    /// What slow calls took lately, in microseconds.
    pub fn slow_calls_us(&self) -> u32 {
        self.slow_us.load(Ordering::Relaxed)
    }

    /// A second has passed.
    pub fn forget_slow_calls(&self) {
        let slow_us = self.slow_calls_us();
        if (1..MOST_SLOW_US).contains(&slow_us) {
            self.slow_us.store(slow_us / 2, Ordering::Relaxed);
        }
    }

    /// Why it cannot be used any more, if so.
    pub fn broken(&self) -> Option<Broken> {
        let broken = self.broken.load(Ordering::Relaxed);
        Broken::ALL.into_iter().find(|&one| one as u8 == broken)
    }
}

/// What a clock says now.
fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the time to where the pointer points.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// What a ring is made of.
pub struct Setup<'a> {
    /// The machine's memory.
    pub memory: &'a Memory,
    /// Where the ring is in it.
    pub place: RingAddresses,
    /// How many entries it has.
    pub entries: u16,
    /// Whether both say by index when they want a notice (VIRTIO_F_EVENT_IDX).
    pub event_idx: bool,
    /// Where it goes on.
    pub kept: Arc<Kept>,
    /// Where the guest is told.
    pub call: Arc<OwnedFd>,
}

/// One of the pieces of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The guest's address.
    pub address: u64,
    /// Its bytes.
    pub bytes: u32,
}

/// A chain that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chain {
    /// The number of its first descriptor.
    head: u16,
    /// Whether all its pieces are of the kind that was wanted.
    pub is_sound: bool,
    /// Their bytes together.
    pub bytes: u64,
    /// Descriptors that were read for it.
    pub descriptors: usize,
}

/// A ring that runs.
#[derive(Debug)]
pub struct Ring {
    memory: Memory,
    entries: u16,
    descriptors: NonNull<u8>,
    available: NonNull<u8>,
    used: NonNull<u8>,
    event_idx: bool,
    kept: Arc<Kept>,
    call: Arc<OwnedFd>,
    /// The next available entry to take.
    next: u16,
    /// How many were available when that was last looked at: not for each chain, since another
    /// processor writes the word.
    seen: u16,
    /// Up to which entry the memory of chains was fetched.
    fetched: u16,
    /// The next used entry to write, and that up to which the guest knows.
    use_next: u16,
    published: u16,
    /// Whether to call whatever the guest wants: of what was used before, nobody knows whether it
    /// was called.
    must_call: bool,
    /// Whether the guest was told that no notice is wanted (without event index).
    is_quiet: bool,
}

// SAFETY: its pointers are into memory that it holds, which is used from any thread (`Memory`).
unsafe impl Send for Ring {}

impl Ring {
    /// A ring, where its parts lie in the machine's memory.
    pub fn new(setup: Setup<'_>) -> Option<Ring> {
        let Setup { memory, place, entries, event_idx, kept, call } = setup;
        let n = u64::from(entries);
        if !entries.is_power_of_two() {
            return None;
        }
        let descriptors = memory.at_user(place.descriptors, DESCRIPTOR_BYTES as u64 * n, 8)?;
        let available = memory.at_user(place.available, 6 + 2 * n, 2)?;
        let used = memory.at_user(place.used, 6 + 8 * n, 4)?;
        let mut ring = Ring {
            memory: memory.clone(),
            entries,
            descriptors,
            available,
            used,
            event_idx,
            call,
            next: kept.next(),
            seen: kept.next(),
            fetched: kept.next(),
            kept,
            use_next: 0,
            published: 0,
            must_call: true,
            is_quiet: false,
        };
        // What was used is what the guest has seen as used, also where the process before this one
        // was killed.
        ring.use_next = ring.load(ring.used, 2, Ordering::Acquire);
        ring.published = ring.use_next;
        ring.is_quiet = ring.load(ring.used, 0, Ordering::Relaxed) & NO_NOTICE != 0;
        Some(ring)
    }

    /// A word of a part of the ring, of which `at` is within it.
    fn word(&self, part: NonNull<u8>, at: usize) -> &AtomicU16 {
        // SAFETY: the part was checked to hold `entries` entries and two words; it is aligned, and
        // mapped for as long as `self` is.
        unsafe { AtomicU16::from_ptr(part.as_ptr().add(at).cast()) }
    }

    /// What the guest's little-endian word is now.
    fn load(&self, part: NonNull<u8>, at: usize, order: Ordering) -> u16 {
        u16::from_le(self.word(part, at).load(order))
    }

    fn store(&self, part: NonNull<u8>, at: usize, value: u16, order: Ordering) {
        self.word(part, at).store(value.to_le(), order);
    }

    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.entries - 1))
    }

    /// The machine's memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Looks how many entries are available that were not taken.
    fn look(&mut self) -> u16 {
        let index = self.load(self.available, 2, Ordering::Acquire);
        if index.wrapping_sub(self.next) > self.entries {
            self.break_off(Broken::Ahead);
            return 0;
        }
        self.seen = index;
        self.seen.wrapping_sub(self.next)
    }

    /// The same, but looks only where it knows of none.
    fn waiting(&mut self) -> u16 {
        if self.seen == self.next { self.look() } else { self.seen.wrapping_sub(self.next) }
    }

    /// Has the processor fetch what will be needed of the next chains, `most` at most, while others
    /// are dealt with: it lies with the guest's processor. It judges nothing, and changes nothing.
    pub fn fetch_ahead(&mut self, most: u16, is_written: bool) {
        let known = self.waiting().min(most);
        let done = self.fetched.wrapping_sub(self.next);
        let done = if done <= known { done } else { 0 };
        // Several together: their descriptors are then waited for once. The last ones that are
        // known are as many as there are.
        if done > 0 && known == most && known - done < TOGETHER {
            return;
        }
        let new = done..known;
        // All descriptors first: reading one waits for it.
        let heads = |ring: &Ring, ahead: u16| {
            let at = 4 + 2 * ring.slot(ring.next.wrapping_add(ahead));
            Some(ring.load(ring.available, at, Ordering::Relaxed)).filter(|head| *head < ring.entries)
        };
        if new.len() > 1 {
            for head in new.clone().filter_map(|ahead| heads(self, ahead)) {
                // SAFETY: the part was checked to hold `entries` entries.
                fetch(unsafe { self.descriptors.add(DESCRIPTOR_BYTES * usize::from(head)) }, false);
            }
        }
        for ahead in new {
            let Some(head) = heads(self, ahead) else { continue };
            let descriptor = Descriptor::read(self.descriptors, usize::from(head));
            let bytes = u64::from(descriptor.bytes).min(2 * LINE_BYTES as u64);
            let Some(place) = self.memory.at_guest(descriptor.address, bytes) else { continue };
            let is_written = is_written && descriptor.flags & INDIRECT == 0;
            for at in (0..bytes as usize).step_by(LINE_BYTES) {
                // SAFETY: so many bytes are there.
                fetch(unsafe { place.add(at) }, is_written);
            }
            let at = 4 + 8 * self.slot(self.use_next.wrapping_add(ahead));
            // SAFETY: the part was checked to hold `entries` entries.
            fetch(unsafe { self.used.add(at) }, true);
        }
        self.fetched = self.next.wrapping_add(known);
    }

    /// Whether it runs.
    pub fn is_whole(&self) -> bool {
        self.kept.broken.load(Ordering::Relaxed) == 0
    }

    /// Whether the guest has never made anything available.
    pub fn is_untouched(&self) -> bool {
        self.load(self.available, 2, Ordering::Relaxed) == 0 && self.next == 0
    }

    fn break_off(&mut self, broken: Broken) {
        self.kept.broken.store(broken as u8, Ordering::Relaxed);
    }

    /// Takes the next chain; its pieces are appended to `pieces`. With `writable`, they are for us
    /// to write to, else to read. `None`: there is none, or the ring is broken.
    pub fn take(&mut self, writable: bool, pieces: &mut Vec<Piece>) -> Option<Chain> {
        if !self.is_whole() || self.waiting() == 0 {
            return None;
        }
        let head = self.load(self.available, 4 + 2 * self.slot(self.next), Ordering::Relaxed);
        match self.walk(head, writable, pieces) {
            Ok(chain) => {
                self.next = self.next.wrapping_add(1);
                Some(chain)
            }
            Err(broken) => {
                self.break_off(broken);
                None
            }
        }
    }

    /// Puts the last `chains` back that were taken and not used.
    pub fn put_back(&mut self, chains: u16) {
        self.next = self.next.wrapping_sub(chains);
    }

    fn walk(&self, head: u16, writable: bool, pieces: &mut Vec<Piece>) -> Result<Chain, Broken> {
        let mut chain = Chain { head, is_sound: true, bytes: 0, descriptors: 0 };
        let (mut table, mut length) = (self.descriptors, usize::from(self.entries));
        let (mut at, mut is_indirect) = (usize::from(head), false);
        loop {
            if at >= length {
                return Err(Broken::Beyond);
            }
            if chain.descriptors == length.min(MOST_DESCRIPTORS) + usize::from(is_indirect) {
                return Err(Broken::Endless);
            }
            chain.descriptors += 1;
            let descriptor = Descriptor::read(table, at);
            if descriptor.flags & INDIRECT != 0 {
                if is_indirect || chain.descriptors > 1 || descriptor.flags & NEXT != 0 {
                    return Err(Broken::Table);
                }
                let bytes = descriptor.bytes as usize;
                if bytes == 0 || !bytes.is_multiple_of(DESCRIPTOR_BYTES) {
                    return Err(Broken::Table);
                }
                table = self.memory.at_guest(descriptor.address, bytes as u64).ok_or(Broken::Table)?;
                (length, at, is_indirect) = (bytes / DESCRIPTOR_BYTES, 0, true);
                continue;
            }
            chain.is_sound &= (descriptor.flags & WRITE != 0) == writable;
            chain.bytes += u64::from(descriptor.bytes);
            if descriptor.bytes > 0 {
                pieces.push(Piece { address: descriptor.address, bytes: descriptor.bytes });
            }
            if descriptor.flags & NEXT == 0 {
                return Ok(chain);
            }
            at = usize::from(descriptor.next);
        }
    }

    /// Gives a chain back, of which `written` bytes were written to. The guest knows it from
    /// [`Ring::publish`] on.
    pub fn give_back(&mut self, chain: Chain, written: u32) {
        let at = 4 + 8 * self.slot(self.use_next);
        // SAFETY: the part was checked to hold `entries` entries; it is mapped for as long as
        // `self` is. The guest may read it meanwhile, and then reads what it was not told to.
        unsafe {
            let entry = self.used.as_ptr().add(at).cast::<u32>();
            entry.write_volatile(u32::from(chain.head).to_le());
            entry.add(1).write_volatile(written.to_le());
        }
        self.use_next = self.use_next.wrapping_add(1);
    }

    /// Lets the guest know what was used since the last call, and calls it where it wants to be.
    /// False: nothing was used.
    pub fn publish(&mut self) -> bool {
        let (from, to) = (self.published, self.use_next);
        if from == to {
            return false;
        }
        self.store(self.used, 2, to, Ordering::Release);
        self.published = to;
        self.kept.next.store(self.next, Ordering::Release);
        // What the guest wants is looked at after it can see what was used.
        fence(Ordering::SeqCst);
        let wants = if self.event_idx {
            let event = self.load(self.available, 4 + 2 * usize::from(self.entries), Ordering::Relaxed);
            // `vring_need_event` (virtio 1.2, section 2.7.7.1): whether the index went past the
            // event.
            to.wrapping_sub(event).wrapping_sub(1) < to.wrapping_sub(from)
        } else {
            self.load(self.available, 0, Ordering::Relaxed) & NO_NOTICE == 0
        };
        if std::mem::take(&mut self.must_call) || wants {
            self.kept.call(&self.call);
        }
        true
    }

    /// Asks for no notice of what is made available.
    pub fn be_quiet(&mut self) {
        // With an event index, one comes when the index passes the event, and not again.
        if !self.event_idx && !self.is_quiet {
            self.store(self.used, 0, NO_NOTICE, Ordering::Relaxed);
            self.is_quiet = true;
        }
    }

    /// Asks for a notice of what is made available from now on. True: some is already, and there
    /// may be no notice of it.
    pub fn listen(&mut self) -> bool {
        if self.event_idx {
            self.store(self.used, 4 + 8 * usize::from(self.entries), self.next, Ordering::Relaxed);
        } else if self.is_quiet {
            self.store(self.used, 0, 0, Ordering::Relaxed);
            self.is_quiet = false;
        }
        // The guest looks at this after it has made something available; we look at that after
        // this.
        fence(Ordering::SeqCst);
        self.is_whole() && self.look() > 0
    }
}

#[cfg(test)]
thread_local! {
    /// How many this thread has read.
    pub static DESCRIPTORS_READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A descriptor, as it was when it was read.
struct Descriptor {
    address: u64,
    bytes: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    /// Reads descriptor number `at` of a table that has one more at least.
    fn read(table: NonNull<u8>, at: usize) -> Descriptor {
        #[cfg(test)]
        DESCRIPTORS_READ.set(DESCRIPTORS_READ.get() + 1);
        // SAFETY: the table is mapped that far.
        let at = unsafe { table.as_ptr().add(at * DESCRIPTOR_BYTES) };
        // It may change meanwhile: then it is some mixture, which is judged like any other.
        let words: [u64; 2] = if at.align_offset(align_of::<u64>()) == 0 {
            // SAFETY: two words are there, aligned.
            unsafe { [at.cast::<u64>().read_volatile(), at.cast::<u64>().add(1).read_volatile()] }
        } else {
            // SAFETY: so many bytes are there. An indirect table may lie at any address.
            let bytes = unsafe { at.cast::<[u8; DESCRIPTOR_BYTES]>().read_volatile() };
            let half = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
            [half(0), half(8)]
        };
        let [address, rest] = words.map(u64::from_le);
        Descriptor { address, bytes: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }
}
