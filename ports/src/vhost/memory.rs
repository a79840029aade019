//! The memory that a machine shares: regions, and copies from and to them.
//!
//! The guest and its front end write there at any moment. So there is never a Rust reference into
//! it: bytes are copied by raw pointers, once, and judged afterwards; single words are read and
//! written as volatile ones or as atomics.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use rustix::fs::SealFlags;

use super::fault::Watch;
use super::foreign::{Closer, Foreign, Leaving, leave};
use super::message::{MOST_REGIONS, Region};
use super::port::LONG_HEADER_BYTES;

/// What a processor fetches at a time; where it is another number, some is fetched in vain.
pub(super) const LINE_BYTES: usize = 64;
/// Of the memory that is written next so much is fetched at once: a processor has 10 to 16 fetches
/// under way.
const FETCHED_BYTES: usize = 512;

/// Why memory cannot be used.
#[derive(Debug)]
pub enum MemoryError {
    /// It cannot be mapped.
    Kernel(&'static str, io::Error),
    /// A region is empty, wraps, or lies over another.
    Layout(Region),
    /// A region is longer than its file.
    Short(Region, u64),
    /// The front end could cut its file short at any moment.
    Unsealed,
    /// Its file lies where who touches it may have to wait.
    Elsewhere,
    /// A region has no descriptor.
    Unshared,
    /// There are too many.
    Many,
    /// They are longer together than may be: see [`most_bytes`].
    Large(u64),
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryError::Kernel(step, error) => write!(f, "its memory cannot be had: {step}: {error}"),
            MemoryError::Layout(region) => write!(
                f,
                "its memory has a region of {} bytes at {:#x} that is empty, ends beyond all addresses, or lies over another",
                region.bytes, region.guest
            ),
            MemoryError::Short(region, bytes) => {
                write!(f, "its memory has a region of {} bytes at {} of a file of {bytes}", region.bytes, region.offset)
            }
            MemoryError::Unsealed => write!(
                f,
                "its memory is a file that it could cut short; give the machine its memory by memory-backend-memfd (which seals it), \
                 or set `sealed = false` for this endpoint"
            ),
            MemoryError::Elsewhere => write!(
                f,
                "its memory is a file of a file system that could keep the switch waiting; give the machine its memory by \
                 memory-backend-memfd, or by memory-backend-file in /dev/shm or of huge pages (hugetlbfs)"
            ),
            MemoryError::Unshared => write!(
                f,
                "its memory is not shared; start QEMU with -object memory-backend-memfd,id=m,size=SIZE,share=on and -machine memory-backend=m"
            ),
            MemoryError::Large(bytes) => write!(
                f,
                "its memory has {bytes} bytes, more than a machine of this host may have ({}); give the machine less",
                most_bytes()
            ),
            MemoryError::Many => write!(f, "its memory has more than {MOST_REGIONS} regions"),
        }
    }
}

impl std::error::Error for MemoryError {}

/// What a machine may have at least, whatever the host has.
const LEAST_BYTES: u64 = 256 << 30;

/// Four times the memory of the host with its swap: a machine may be promised more than there is,
/// and reserve what it may get later. Without bound where that cannot be asked.
pub fn most_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        // SAFETY: a zeroed one is valid, and the kernel fills it in.
        let (asked, info) = unsafe {
            let mut info = std::mem::zeroed::<libc::sysinfo>();
            (libc::sysinfo(&raw mut info), info)
        };
        let all = info.totalram.saturating_add(info.totalswap).saturating_mul(info.mem_unit.into());
        if asked == 0 { all.saturating_mul(4).max(LEAST_BYTES) } else { u64::MAX }
    })
}

/// A region that is mapped here.
#[derive(Debug)]
struct Mapping {
    region: Region,
    /// Kept for a process that takes over.
    file: Foreign,
    /// Where its first byte is.
    start: NonNull<u8>,
    /// There until it is dropped.
    mapped: Option<Mapped>,
    /// There until it is about to be unmapped.
    watch: Option<Watch>,
    closer: Option<Arc<dyn Closer>>,
}

/// What was mapped: whole pages of the file. Dropping it unmaps them; where nobody else has them,
/// that takes some 0.1 s a gigabyte.
#[derive(Debug)]
pub struct Mapped {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory that other processes write to in any case; what is done to it here is safe
// from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}
// SAFETY: as above; it may be unmapped by any thread.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this is what mmap gave, and nobody has a pointer into it any more: rings hold the
        // memory that they point into.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Before another mapping may be there.
        self.watch = None;
        if let Some(mapped) = self.mapped.take() {
            leave(self.closer.as_ref(), Leaving::Memory(mapped));
        }
    }
}

impl Mapping {
    fn new(region: Region, file: Foreign, sharing: &Sharing) -> Result<Mapping, MemoryError> {
        let layout = || MemoryError::Layout(region);
        region.guest.checked_add(region.bytes).ok_or_else(layout)?;
        region.user.checked_add(region.bytes).ok_or_else(layout)?;
        let end = region.offset.checked_add(region.bytes).ok_or_else(layout)?;
        if region.bytes == 0 {
            return Err(layout());
        }
        let kernel = |step| move |error: rustix::io::Errno| MemoryError::Kernel(step, error.into());
        // First: only memory files have seals, also those in /dev/shm and of huge pages. Of others,
        // already fstat(2) may wait for whoever serves their file system, and so may each access.
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| MemoryError::Elsewhere);
        let is_sealed = seals.as_ref().is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if sharing.must_be_sealed && !is_sealed {
            return Err(MemoryError::Unsealed);
        }
        seals?;
        let status = rustix::fs::fstat(&file).map_err(kernel("looking at its file"))?;
        let file_bytes = u64::try_from(status.st_size).unwrap_or_default();
        if file_bytes < end {
            return Err(MemoryError::Short(region, file_bytes));
        }
        // A mapping begins at a page of the file, of whatever size its pages are.
        let page = u64::try_from(status.st_blksize).unwrap_or_default().max(4096).next_power_of_two();
        let head = region.offset % page;
        // It ends at one, too: of huge pages, no part of one can be unmapped or put away.
        let mapped_bytes = (region.bytes + head).checked_next_multiple_of(page).ok_or_else(layout)?;
        let mapped_bytes = usize::try_from(mapped_bytes).map_err(|_| layout())?;
        let offset = libc::off_t::try_from(region.offset - head).map_err(|_| layout())?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe {
            let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
            libc::mmap(std::ptr::null_mut(), mapped_bytes, rights, flags, file.as_raw_fd(), offset)
        };
        let mapped = match NonNull::new(mapped.cast::<u8>()) {
            Some(mapped) if mapped.as_ptr().cast() != libc::MAP_FAILED => mapped,
            _ => return Err(MemoryError::Kernel("mapping it", io::Error::last_os_error())),
        };
        let mapped = Mapped { start: mapped, bytes: mapped_bytes };
        let watch = Watch::new(mapped.start.as_ptr(), mapped_bytes);
        let watch = watch.map_err(|error| MemoryError::Kernel("watching it", error))?;
        // SAFETY: `head` is less than what was mapped.
        let start = unsafe { mapped.start.add(head as usize) };
        let closer = sharing.closer.clone();
        Ok(Mapping { region, file, start, mapped: Some(mapped), watch: Some(watch), closer })
    }
}

/// How memory is shared.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// Whether a file that its owner could cut short is refused.
    pub must_be_sealed: bool,
    /// Who unmaps it.
    pub closer: Option<Arc<dyn Closer>>,
}

/// All of it. Copies of this are of the same memory.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// By their addresses for the guest.
    mappings: Vec<Arc<Mapping>>,
}

impl Memory {
    /// Memory of these regions; each has its file.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn new(regions: Vec<(Region, Foreign)>, sharing: &Sharing) -> Result<Memory, MemoryError> {
        regions.into_iter().try_fold(Memory::default(), |memory, (region, file)| memory.with(region, file, sharing))
    }

    /// With a region more.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn with(mut self, region: Region, file: Foreign, sharing: &Sharing) -> Result<Memory, MemoryError> {
        if self.mappings.len() == MOST_REGIONS {
            return Err(MemoryError::Many);
        }
        // Holes cost no memory, but addresses, which all machines have together.
        let all = self.mappings.iter().fold(region.bytes, |sum, one| sum.saturating_add(one.region.bytes));
        if all > most_bytes() && region.guest.checked_add(region.bytes).is_some() {
            return Err(MemoryError::Large(all));
        }
        let new = Mapping::new(region, file, sharing)?;
        let apart = |a: u64, b: u64, other: &Region| a + region.bytes <= b || b + other.bytes <= a;
        let is_clear =
            |other: &Region| apart(region.guest, other.guest, other) && apart(region.user, other.user, other);
        if !self.mappings.iter().all(|mapping| is_clear(&mapping.region)) {
            return Err(MemoryError::Layout(region));
        }
        let at = self.mappings.partition_point(|mapping| mapping.region.guest < region.guest);
        self.mappings.insert(at, Arc::new(new));
        Ok(self)
    }

    /// Whether it has this region.
    #[must_use]
    pub fn has(&self, region: Region) -> bool {
        self.mappings.iter().any(|mapping| mapping.region == region)
    }

    /// Without a region; one that is not there is gone already.
    #[must_use]
    pub fn without(mut self, region: Region) -> Memory {
        let place = |one: &Region| (one.guest, one.bytes, one.user);
        self.mappings.retain(|mapping| place(&mapping.region) != place(&region));
        self
    }

    /// Its regions, with their files.
    pub fn regions(&self) -> impl Iterator<Item = (Region, BorrowedFd<'_>)> {
        self.mappings.iter().map(|mapping| (mapping.region, mapping.file.as_fd()))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// Whether the front end took some of it away behind our back.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.mappings.iter().any(|mapping| mapping.watch.as_ref().is_some_and(Watch::is_lost))
    }

    /// The place of `bytes` bytes at a guest's address, all in one region.
    pub(super) fn at_guest(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        self.place(address, bytes, |region| region.guest)
    }

    /// The place of `bytes` bytes at a front end's address, all in one region, at a multiple of
    /// `align`.
    pub(super) fn at_user(&self, address: u64, bytes: u64, align: usize) -> Option<NonNull<u8>> {
        self.place(address, bytes, |region| region.user).filter(|place| place.as_ptr().align_offset(align) == 0)
    }

    fn place(&self, address: u64, bytes: u64, of: impl Fn(&Region) -> u64) -> Option<NonNull<u8>> {
        self.mappings.iter().find_map(|mapping| {
            let at = address.checked_sub(of(&mapping.region))?;
            let left = mapping.region.bytes.checked_sub(at)?;
            // SAFETY: it is within the region, which is mapped whole.
            (bytes <= left && left > 0).then(|| unsafe { mapping.start.add(at as usize) })
        })
    }

    /// Calls `copy` with each piece of the memory at a guest's address and its place in the buffer:
    /// a copy may go on in the next region where that adjoins. False: some of it is nowhere.
    fn pieces(&self, mut address: u64, bytes: usize, mut copy: impl FnMut(NonNull<u8>, usize, usize)) -> bool {
        let mut done = 0;
        while done < bytes {
            let at = |mapping: &&Arc<Mapping>| {
                address.checked_sub(mapping.region.guest).is_some_and(|at| at < mapping.region.bytes)
            };
            let Some(mapping) = self.mappings.iter().find(at) else { return false };
            let at = address - mapping.region.guest;
            let piece = (bytes - done).min(usize::try_from(mapping.region.bytes - at).unwrap_or(usize::MAX));
            // SAFETY: it is within the region, which is mapped whole.
            copy(unsafe { mapping.start.add(at as usize) }, done, piece);
            done += piece;
            let Some(next) = address.checked_add(piece as u64) else { return done == bytes };
            address = next;
        }
        true
    }

    /// Copies from a guest's address to a header and a frame, the one behind the other. False: some
    /// of it is nowhere, and what is in them means nothing.
    #[must_use]
    pub fn read(&self, address: u64, into: [&mut [u8]; 2]) -> bool {
        let bytes = into.iter().map(|part| part.len()).sum::<usize>();
        let whole = self.at_guest(address, bytes as u64);
        let (mut is_there, mut done) = (true, 0);
        for part in into {
            let (to, bytes) = (part.as_mut_ptr(), part.len());
            if let Some(from) = whole {
                // SAFETY: all of it is there from `from` on, and so many bytes are in `part`; they
                // are different memory.
                unsafe { copy(from.as_ptr().add(done), to, bytes) };
            } else {
                // SAFETY: `from` has so many bytes, and so has `part` from there on; they are
                // different memory.
                is_there &= self.pieces(address.wrapping_add(done as u64), bytes, |from, at, piece| unsafe {
                    copy(from.as_ptr(), to.add(at), piece);
                });
            }
            done += bytes;
        }
        is_there
    }

    /// Copies a header and a frame to a guest's address, the one behind the other. False: some of
    /// it is nowhere. `next` is where the frame goes on, if it does, and the bytes of that: fetched
    /// meanwhile.
    #[must_use]
    pub fn write(&self, address: u64, from: [&[u8]; 2], next: Option<(u64, u32)>) -> bool {
        let next = next.and_then(|(at, bytes)| Some((self.at_guest(at, bytes.into())?, bytes as usize)));
        let bytes = from.iter().map(|part| part.len()).sum::<usize>();
        let whole = self.at_guest(address, bytes as u64);
        let (mut is_there, mut done) = (true, 0);
        for part in from {
            let (from, bytes) = (part.as_ptr(), part.len());
            if let Some(to) = whole {
                // SAFETY: all of it is there from `to` on, and so many bytes are in `part`; they
                // are different memory.
                unsafe { copy_and_fetch(from, to.as_ptr().add(done), bytes, next) };
            } else {
                // SAFETY: `to` has so many bytes, and so has `part` from there on; they are
                // different memory.
                is_there &= self.pieces(address.wrapping_add(done as u64), bytes, |to, at, piece| unsafe {
                    copy(from.add(at), to.as_ptr(), piece);
                });
            }
            done += bytes;
        }
        is_there
    }
}

/// Copies, and has the processor fetch as many bytes of what is written next, beside each part: it
/// does not see by itself where a frame goes on in another page.
///
/// # Safety
/// As of [`std::ptr::copy_nonoverlapping`]; so many bytes are at `next`.
#[inline]
unsafe fn copy_and_fetch(from: *const u8, to: *mut u8, bytes: usize, next: Option<(NonNull<u8>, usize)>) {
    let Some((next, most)) = next.filter(|_| bytes >= FETCHED_BYTES) else {
        // SAFETY: the caller's word.
        return unsafe { copy(from, to, bytes) };
    };
    for start in (0..bytes).step_by(FETCHED_BYTES) {
        let end = bytes.min(start + FETCHED_BYTES);
        for at in (start..end.min(most)).step_by(LINE_BYTES) {
            // SAFETY: so many bytes are there.
            fetch(unsafe { next.add(at) }, true);
        }
        // SAFETY: the caller's word; this is within both.
        unsafe { std::ptr::copy_nonoverlapping(from.add(start), to.add(start), end - start) };
    }
}

/// Copies, and a header without a call.
///
/// # Safety
/// As of [`std::ptr::copy_nonoverlapping`].
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's word.
    unsafe {
        if bytes == LONG_HEADER_BYTES {
            std::ptr::copy_nonoverlapping(from, to, LONG_HEADER_BYTES);
        } else {
            std::ptr::copy_nonoverlapping(from, to, bytes);
        }
    }
}

/// Has the processor fetch the memory at an address, to write to it or to read it. A hint.
#[inline]
pub(super) fn fetch(place: NonNull<u8>, to_write: bool) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: neither instruction reads or writes memory as far as the program can tell, and
    // neither faults. Processors without PREFETCHW do nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        if to_write {
            std::arch::asm!("prefetchw [{}]", in(reg) place.as_ptr(), options(nostack, preserves_flags, readonly));
        } else {
            _mm_prefetch::<_MM_HINT_T0>(place.as_ptr().cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (place, to_write);
}
