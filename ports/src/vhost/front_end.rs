//! A front end and the driver of its guest, in memory: what a virtual machine does to a session,
//! without a machine. For tests, fuzzing and measurements of what is built on sessions.

use std::fs::File;
use std::io::{self, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::message::{HEADER_BYTES, Region, Request, RingAddresses};
use super::session::{feature, protocol};

/// Where the memory is for the guest, and for the front end.
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7f00_0000_0000;
/// Bytes of a ring with all that belongs to it.
const RING_BYTES: usize = 0x1_0000;
const AVAILABLE: usize = 0x8000;
const USED: usize = 0xa000;
/// Bytes of the buffer that each descriptor has, where nothing else was said.
pub const BUFFER_BYTES: usize = 2048;
/// Its memory's file keeps its length.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// The longest ring that it makes.
pub const MOST_ENTRIES: u16 = 1024;

/// One ring, as its driver sees it.
#[derive(Debug)]
struct Driver {
    free: Vec<u16>,
    available: u16,
    used: u16,
    /// Up to where the device was told.
    told: u16,
    kick: OwnedFd,
    call: OwnedFd,
}

/// A machine's memory and its driver.
#[derive(Debug)]
pub struct FrontEnd {
    file: File,
    map: NonNull<u8>,
    bytes: usize,
    entries: u16,
    buffer_bytes: usize,
    features: u64,
    drivers: Vec<Driver>,
}

// SAFETY: the mapping is its own, and only used through it.
unsafe impl Send for FrontEnd {}

impl Drop for FrontEnd {
    fn drop(&mut self) {
        // SAFETY: this is what was mapped, and nobody has a pointer into it.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.bytes) };
    }
}

impl FrontEnd {
    /// A machine with so many pairs of rings of so many entries, whose driver takes these features.
    ///
    /// # Errors
    /// The kernel has no memory or descriptor left.
    pub fn new(pairs: usize, entries: u16, features: u64) -> io::Result<FrontEnd> {
        FrontEnd::with_seals(pairs, entries, features, SEALS)
    }

    /// The same, with buffers of so many bytes.
    ///
    /// # Errors
    /// See [`FrontEnd::new`].
    pub fn with_buffers(pairs: usize, entries: u16, features: u64, buffer_bytes: usize) -> io::Result<FrontEnd> {
        FrontEnd::make(pairs, entries, features, SEALS, buffer_bytes)
    }

    /// The same, with memory whose file has these seals.
    ///
    /// # Errors
    /// See [`FrontEnd::new`].
    pub fn with_seals(pairs: usize, entries: u16, features: u64, seals: SealFlags) -> io::Result<FrontEnd> {
        FrontEnd::make(pairs, entries, features, seals, BUFFER_BYTES)
    }

    fn make(pairs: usize, entries: u16, features: u64, seals: SealFlags, buffer_bytes: usize) -> io::Result<FrontEnd> {
        assert!(entries.is_power_of_two() && entries <= MOST_ENTRIES, "{entries} entries");
        let rings = 2 * pairs;
        let bytes = rings * (RING_BYTES + usize::from(entries) * buffer_bytes);
        let file = rustix::fs::memfd_create("levada-front-end", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let map = unsafe {
            let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), bytes, rights, flags, file.as_raw_fd(), 0)
        };
        let map = match NonNull::new(map.cast::<u8>()) {
            Some(map) if map.as_ptr().cast() != libc::MAP_FAILED => map,
            _ => return Err(io::Error::last_os_error()),
        };
        let event = || Ok::<_, io::Error>(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let driver = |_| {
            let free = (0..entries).rev().collect();
            Ok(Driver { free, available: 0, used: 0, told: 0, kick: event()?, call: event()? })
        };
        let drivers = (0..rings).map(driver).collect::<io::Result<_>>()?;
        Ok(FrontEnd { file: File::from(file), map, bytes, entries, buffer_bytes, features, drivers })
    }

    /// The memory's file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its one region.
    pub fn region(&self) -> Region {
        Region { guest: GUEST, bytes: self.bytes as u64, user: USER, offset: 0 }
    }

    /// The guest's address of a byte of the memory.
    pub fn guest_address(&self, at: usize) -> u64 {
        GUEST + at as u64
    }

    /// Where a ring's descriptors, available and used part begin in the memory.
    pub fn parts(&self, ring: usize) -> [usize; 3] {
        [0, AVAILABLE, USED].map(|part| ring * RING_BYTES + part)
    }

    /// What is said to begin, in QEMU's order, from ring entry `base` on.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn opening(&self, base: u16) -> io::Result<Vec<(Request, Vec<OwnedFd>)>> {
        let mut all = vec![
            (Request::GetFeatures, vec![]),
            (Request::GetProtocolFeatures, vec![]),
            // The least that back ends offer: some end the session for more than they do.
            (Request::SetProtocolFeatures(protocol::MQ), vec![]),
            (Request::SetOwner, vec![]),
            (Request::SetFeatures(self.features), vec![]),
            (Request::SetMemTable(vec![self.region()]), vec![self.file.as_fd().try_clone_to_owned()?]),
        ];
        for (number, driver) in (0u32..).zip(&self.drivers) {
            let [descriptors, available, used] = self.parts(number as usize).map(|at| USER + at as u64);
            all.extend([
                (Request::SetVringNum(number, self.entries.into()), vec![]),
                (Request::SetVringBase(number, base.into()), vec![]),
                (Request::SetVringAddr(number, RingAddresses { descriptors, available, used }), vec![]),
                (Request::SetVringKick(number, true), vec![driver.kick.try_clone()?]),
                (Request::SetVringCall(number, true), vec![driver.call.try_clone()?]),
                (Request::SetVringEnable(number, true), vec![]),
            ]);
        }
        Ok(all)
    }

    /// Says all of that over a socket, each ring from where the device last used it, and returns
    /// when it was understood.
    ///
    /// # Errors
    /// The other side has closed, or answers something else.
    pub fn speak(&self, mut stream: &UnixStream) -> io::Result<()> {
        let mut messages = self.opening(0)?;
        messages.push((Request::GetQueueNum, vec![]));
        for (request, descriptors) in messages {
            let request = match request {
                Request::SetVringBase(ring, _) => Request::SetVringBase(ring, self.used(ring as usize).into()),
                other => other,
            };
            let bytes = request.message(false).ok_or(io::ErrorKind::InvalidInput)?;
            let lent: Vec<_> = descriptors.iter().map(OwnedFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut beside = SendAncillaryBuffer::new(&mut space);
            if !lent.is_empty() {
                beside.push(SendAncillaryMessage::ScmRights(&lent));
            }
            sendmsg(stream, &[io::IoSlice::new(&bytes)], &mut beside, SendFlags::NOSIGNAL)?;
            if matches!(request, Request::GetFeatures | Request::GetProtocolFeatures | Request::GetQueueNum) {
                stream.read_exact(&mut [0; HEADER_BYTES + 8])?;
            }
        }
        Ok(())
    }

    /// How many chains of a ring the device has used so far, as 16 bits.
    pub fn used(&self, ring: usize) -> u16 {
        u16::from_le(self.word(self.parts(ring)[2] + 2).load(Ordering::Acquire))
    }

    fn word(&self, at: usize) -> &AtomicU16 {
        assert!(at.is_multiple_of(2) && at + 2 <= self.bytes);
        // SAFETY: it is within the mapping and aligned.
        unsafe { AtomicU16::from_ptr(self.map.as_ptr().add(at).cast()) }
    }

    /// Writes bytes of the memory.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.bytes);
        // SAFETY: it is within the mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_ptr().add(at), bytes.len()) };
    }

    /// Reads a few bytes of the memory.
    pub fn array<const BYTES: usize>(&self, at: usize) -> [u8; BYTES] {
        assert!(at + BYTES <= self.bytes);
        // SAFETY: it is within the mapping; an array of bytes lies at any address.
        unsafe { self.map.as_ptr().add(at).cast::<[u8; BYTES]>().read_volatile() }
    }

    /// Reads bytes of the memory.
    pub fn get(&self, at: usize, bytes: usize) -> Vec<u8> {
        assert!(at + bytes <= self.bytes);
        let mut copy = vec![0; bytes];
        // SAFETY: it is within the mapping.
        unsafe { std::ptr::copy_nonoverlapping(self.map.as_ptr().add(at), copy.as_mut_ptr(), bytes) };
        copy
    }

    /// Where the buffer of a descriptor is in the memory.
    pub fn buffer(&self, ring: usize, descriptor: u16) -> usize {
        let before = self.drivers.len() * RING_BYTES;
        before + (ring * usize::from(self.entries) + usize::from(descriptor)) * self.buffer_bytes
    }

    fn has_event_idx(&self) -> bool {
        self.features & feature::EVENT_IDX != 0
    }

    /// Bytes of the header before each frame.
    pub fn header_bytes(&self) -> usize {
        if self.features & (feature::VERSION_1 | feature::MRG_RXBUF) != 0 { 12 } else { 10 }
    }

    /// Makes a chain of buffers with so many bytes available, which the device reads or writes.
    /// False: there are not as many.
    fn make_available(&mut self, ring: usize, bytes: usize, is_writable: bool, content: &[u8]) -> bool {
        let room = self.buffer_bytes;
        let count = bytes.div_ceil(room).max(1);
        let driver = &mut self.drivers[ring];
        if driver.free.len() < count {
            return false;
        }
        let chain = driver.free.split_off(driver.free.len() - count);
        let descriptors = self.parts(ring)[0];
        for (i, &descriptor) in chain.iter().enumerate() {
            let length = (bytes - i * room).min(room);
            let at = self.buffer(ring, descriptor);
            if let Some(content) = content.get(i * room..) {
                self.put(at, &content[..content.len().min(length)]);
            }
            let next = chain.get(i + 1);
            let flags = u16::from(next.is_some()) | if is_writable { 2 } else { 0 };
            let entry = [
                self.guest_address(at).to_le_bytes().to_vec(),
                (length as u32).to_le_bytes().to_vec(),
                flags.to_le_bytes().to_vec(),
                next.copied().unwrap_or_default().to_le_bytes().to_vec(),
            ];
            self.put(descriptors + 16 * usize::from(descriptor), &entry.concat());
        }
        self.again(ring, &chain[..1]);
        true
    }

    /// Makes chains available, once more where they were used, as their descriptors are; by their
    /// first descriptors. The device sees them together.
    pub fn again(&mut self, ring: usize, heads: &[u16]) {
        let available = self.parts(ring)[1];
        let mut index = self.drivers[ring].available;
        for head in heads {
            let slot = usize::from(index % self.entries);
            self.word(available + 4 + 2 * slot).store(head.to_le(), Ordering::Relaxed);
            index = index.wrapping_add(1);
        }
        self.drivers[ring].available = index;
        self.word(available + 2).store(index.to_le(), Ordering::Release);
    }

    /// Goes on as a driver that has made so many chains available, all of which were used.
    pub fn go_on(&mut self, ring: usize, chains: u16) {
        let driver = &mut self.drivers[ring];
        (driver.available, driver.used, driver.told) = (chains, chains, chains);
    }

    /// Tells the device of what was made available since the last call, where it wants to know.
    /// True: it did.
    pub fn kick(&mut self, ring: usize) -> bool {
        fence(Ordering::SeqCst);
        let [_, _, used] = self.parts(ring);
        let (from, to) = (self.drivers[ring].told, self.drivers[ring].available);
        self.drivers[ring].told = to;
        let load = |at: usize| u16::from_le(self.word(at).load(Ordering::Relaxed));
        let wants = if self.has_event_idx() {
            let event = load(used + 4 + 8 * usize::from(self.entries));
            to.wrapping_sub(event).wrapping_sub(1) < to.wrapping_sub(from)
        } else {
            load(used) & 1 == 0
        };
        if wants && from != to {
            self.kick_anyway(ring);
        }
        wants && from != to
    }

    /// Tells the device of something, whether it wants to know or not.
    pub fn kick_anyway(&self, ring: usize) {
        let _ = rustix::io::write(&self.drivers[ring].kick, &1u64.to_ne_bytes());
    }

    /// Sends a frame by a pair, with a header before it. False: the ring is full.
    pub fn send(&mut self, pair: usize, header: &[u8], frame: &[u8]) -> bool {
        let mut bytes = header.to_vec();
        bytes.resize(self.header_bytes(), 0);
        bytes.extend_from_slice(frame);
        self.make_available(2 * pair + 1, bytes.len(), false, &bytes)
    }

    /// Gives a pair so many chains of so many bytes for frames, as far as there is room.
    pub fn offer(&mut self, pair: usize, chains: usize, bytes: usize) -> usize {
        (0..chains).take_while(|_| self.make_available(2 * pair, bytes, true, &[])).count()
    }

    /// The next chain that a ring's device has used: its first descriptor, and the bytes that were
    /// written. Its descriptors stay as they are, for [`FrontEnd::again`].
    pub fn used_chain(&mut self, ring: usize) -> Option<(u16, usize)> {
        let used = self.parts(ring)[2];
        let seen = self.drivers[ring].used;
        if self.used(ring) == seen {
            return None;
        }
        self.drivers[ring].used = seen.wrapping_add(1);
        let at = used + 4 + 8 * usize::from(seen % self.entries);
        let [head, bytes] = [at, at + 4].map(|at| u32::from_le_bytes(self.array(at)));
        Some((head as u16, bytes as usize))
    }

    /// Takes what a ring's device has used: the chains' buffers, as far as they were written.
    fn take(&mut self, ring: usize) -> Option<Vec<u8>> {
        let descriptors = self.parts(ring)[0];
        let (mut descriptor, mut left) = self.used_chain(ring)?;
        let mut bytes = Vec::new();
        loop {
            let entry = self.array::<16>(descriptors + 16 * usize::from(descriptor));
            let part = left.min(self.buffer_bytes);
            bytes.extend(self.get(self.buffer(ring, descriptor), part));
            left -= part;
            self.drivers[ring].free.push(descriptor);
            if u16::from_le_bytes([entry[12], entry[13]]) & 1 == 0 {
                break;
            }
            descriptor = u16::from_le_bytes([entry[14], entry[15]]);
        }
        Some(bytes)
    }

    /// A frame that came by a pair, with its header; several chains are joined where the header
    /// says so.
    pub fn receive(&mut self, pair: usize) -> Option<(Vec<u8>, Vec<u8>)> {
        let ring = 2 * pair;
        let mut bytes = self.take(ring)?;
        let header_bytes = self.header_bytes();
        let buffers = match bytes.get(10..12) {
            Some(&[a, b]) if header_bytes == 12 => u16::from_le_bytes([a, b]),
            _ => 1,
        };
        for _ in 1..buffers {
            // Linux drops a frame of which not all is there.
            bytes.extend(self.take(ring)?);
        }
        let frame = bytes.split_off(header_bytes.min(bytes.len()));
        Some((bytes, frame))
    }

    /// Chains of frames sent by a pair that the device has given back.
    pub fn reclaim(&mut self, pair: usize) -> usize {
        std::iter::from_fn(|| self.take(2 * pair + 1)).count()
    }

    /// Wants to be called for what a ring's device uses from now on.
    pub fn listen(&mut self, ring: usize) {
        let [_, available, _] = self.parts(ring);
        let used = self.drivers[ring].used;
        self.word(available + 4 + 2 * usize::from(self.entries)).store(used.to_le(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Where a ring's device calls.
    pub fn call(&self, ring: usize) -> &OwnedFd {
        &self.drivers[ring].call
    }

    /// How often a ring's device has called since the last time this was asked.
    pub fn calls(&self, ring: usize) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(&self.drivers[ring].call, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    /// Cuts the memory's file short, as a hostile front end may where it is not sealed.
    ///
    /// # Errors
    /// It is sealed.
    pub fn shrink(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
}
