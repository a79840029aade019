//! Frames, and the pool that owns their memory.
//!
//! A [`Frame`] is a token for one slot of a [`Pool`]: it cannot be copied, so a frame is in exactly
//! one place, and the pool's count of slots in use proves that none was lost. Bytes lie in one of
//! three size classes behind [`HEADROOM`] bytes that later stages may grow into (outer headers,
//! tags). Queues are chains through the slots ([`Fifo`]), so that a queue costs no memory of its
//! own. Buffers are made on first use and kept; the pool never holds more than its limits.

mod accounts;
mod build;
mod chain;

use crate::ids::{EndpointId, MemberId, PeerId, PortId};
use crate::offload::Offload;
use crate::units::Instant;
use crate::wire::Layout;
use accounts::Accounts;
use core::num::NonZeroU32;
use core::ops::Range;

pub use accounts::{Holding, Owner, Part, Standing};
pub use chain::Chain;

/// Bytes kept free before a frame: an outer Ethernet, IPv6, UDP and VXLAN header with VLAN tag
/// (74), a bond sequence and a TCP option.
pub const HEADROOM: usize = 128;
/// The longest frame: 65535 bytes of IP packet behind an Ethernet header with two tags.
pub const MAX_FRAME: usize = 65_535 + 22;
/// Bytes of a small buffer, headroom included: holds any frame of a 1500-byte MTU.
pub const SMALL: usize = 2048;
/// Bytes of a medium buffer, headroom included: for what the scheduler cuts off longer frames at up
/// to 5 Gbit/s.
pub const MEDIUM: usize = 16_384;
/// Bytes of a large buffer, headroom included.
pub const LARGE: usize = HEADROOM + MAX_FRAME + 23;
/// Bytes of a buffer of each [`Class`].
const SIZES: [usize; Class::ALL.len()] = [SMALL, MEDIUM, LARGE];
/// How many buffers of each class.
type Counts = [u32; Class::ALL.len()];

const NONE: u32 = u32::MAX;

/// Which of the sizes a buffer has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// [`SMALL`].
    Small,
    /// [`MEDIUM`].
    Medium,
    /// [`LARGE`].
    Large,
}

impl Class {
    /// From the smallest.
    pub const ALL: [Class; 3] = [Class::Small, Class::Medium, Class::Large];

    /// Bytes of its buffers.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u32 {
        SIZES[self as usize] as u32
    }

    /// The smallest whose buffers hold `len` bytes and the headroom.
    #[inline]
    fn of(len: usize) -> Class {
        if len <= SMALL - HEADROOM {
            Class::Small
        } else if len <= MEDIUM - HEADROOM {
            Class::Medium
        } else {
            Class::Large
        }
    }

    /// This one and all that are larger.
    fn and_larger(self) -> impl Iterator<Item = Class> {
        Class::ALL.into_iter().skip(self as usize)
    }
}

/// The token of one frame in its pool. Give it back with [`Pool::free`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a frame that is forgotten is lost to its pool"]
pub struct Frame(u32);

/// Where a frame goes, while it waits, or whose it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Out {
    /// Not decided.
    #[default]
    Unknown,
    /// It waits at its sender's, for this neighbour.
    Endpoint(EndpointId),
    /// It waits to be copied to everyone in its network.
    Members,
    /// It waits to be copied to endpoints whose addresses are learned.
    Learners,
    /// It waits at its receiver's; this neighbour sent it.
    From(EndpointId),
    /// It waits to go to this other host, through a tunnel.
    Host(PeerId),
    /// It waits to be copied to each other host of its network.
    Hosts,
    /// It leaves; the owner of this port is charged for that.
    Payer(PortId),
}

/// An entry of a flow table: what one stage has found for a frame, for a later one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowIndex(NonZeroU32);

impl FlowIndex {
    /// The entry with this number, which must be less than `u32::MAX`.
    #[inline]
    #[must_use]
    pub const fn new(index: u32) -> Option<FlowIndex> {
        match NonZeroU32::new(index.wrapping_add(1)) {
            Some(next) => Some(FlowIndex(next)),
            None => None,
        }
    }

    /// Its number.
    #[inline]
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0.get() - 1
    }
}

/// Bits of [`Meta::flags`] that say which variant of [`Out`] it is; its number is in [`Meta::to`].
const OUT_KIND: u8 = 0b111;
/// Bit of [`Meta::flags`]: see [`Meta::in_tunnel`].
const IN_TUNNEL: u8 = 1 << 3;
/// Where in [`Meta::flags`] the member begins that a frame came by: 4 bits, for
/// `Uplink::MOST_MEMBERS`.
const MEMBER: u32 = 4;

/// What the switch knows about a frame beside its bytes. `queued` alone would want to lie at a
/// multiple of 8 bytes; without `packed` that would cost 4, which the slot does not have.
#[derive(Clone, Copy, Debug, Default)]
#[repr(Rust, packed(4))]
pub struct Meta {
    /// Segmentation and checksum work that is still to be done.
    pub offload: Offload,
    /// Where the headers lie; set by the switch when the frame enters.
    pub layout: Layout,
    /// Bytes this frame takes on the wire, all its segments together; see `segment::wire_bytes`.
    pub wire_bytes: u32,
    /// When it entered its queue.
    pub queued: Instant,
    /// Bytes of a tunnel's headers that each of its segments has around it on the wire, beside what
    /// lies in the buffer.
    pub outer: u8,
    /// The entry of its flow; none where no stage has looked.
    pub flow: Option<FlowIndex>,
    /// The number that belongs to `out`.
    to: u32,
    flags: u8,
}

impl Meta {
    /// Where it goes, while it waits, or whose it is.
    #[inline]
    #[must_use]
    pub fn out(&self) -> Out {
        match self.flags & OUT_KIND {
            1 => Out::Endpoint(EndpointId(self.to)),
            2 => Out::Members,
            3 => Out::Learners,
            4 => Out::From(EndpointId(self.to)),
            5 => Out::Host(PeerId(self.to)),
            6 => Out::Payer(PortId(self.to)),
            7 => Out::Hosts,
            _ => Out::Unknown,
        }
    }

    /// Sets where it goes, or whose it is.
    #[inline]
    pub fn set_out(&mut self, out: Out) {
        let (kind, to) = match out {
            Out::Unknown => (0, 0),
            Out::Endpoint(EndpointId(to)) => (1, to),
            Out::Members => (2, 0),
            Out::Learners => (3, 0),
            Out::From(EndpointId(from)) => (4, from),
            Out::Host(PeerId(host)) => (5, host),
            Out::Payer(PortId(port)) => (6, port),
            Out::Hosts => (7, 0),
        };
        self.flags = self.flags & !OUT_KIND | kind;
        self.to = to;
    }

    /// The port whose owner is charged for a frame that leaves; none where that is gone.
    #[inline]
    #[must_use]
    pub fn payer(&self) -> Option<PortId> {
        match self.out() {
            Out::Payer(port) => Some(port),
            _ => None,
        }
    }

    /// The switch has put it into a tunnel over IPv4: its port keeps such frames in order,
    /// offloaded or not.
    #[inline]
    #[must_use]
    pub fn in_tunnel(&self) -> bool {
        self.flags & IN_TUNNEL != 0
    }

    /// The member of the uplink by which it came, where it came from there.
    #[inline]
    #[must_use]
    pub fn member(&self) -> MemberId {
        MemberId(self.flags >> MEMBER)
    }

    /// Says by which member of the uplink it came.
    #[inline]
    pub fn set_member(&mut self, member: MemberId) {
        self.flags = self.flags & ((1 << MEMBER) - 1) | member.0 << MEMBER;
    }

    /// Says whether it is in a tunnel over IPv4.
    #[inline]
    pub fn set_in_tunnel(&mut self, is_so: bool) {
        self.flags = self.flags & !IN_TUNNEL | if is_so { IN_TUNNEL } else { 0 };
    }
}

/// All but the bytes: one cache line, since a queue that waited long finds nothing of its frames
/// cached.
#[derive(Debug)]
#[repr(align(64))]
struct Slot {
    start: u16,
    len: u32,
    next: u32,
    class: Class,
    in_use: bool,
    meta: Meta,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    fn room(&self) -> usize {
        SIZES[self.class as usize]
    }

    /// Where in the buffer the frame lies.
    #[inline]
    fn range(&self) -> Range<usize> {
        let start = usize::from(self.start);
        start..start + self.len as usize
    }
}

/// The bound of a pool, in buffers of each size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Buffers of [`SMALL`] bytes.
    pub small: u32,
    /// Buffers of [`MEDIUM`] bytes.
    pub medium: u32,
    /// Buffers of [`LARGE`] bytes.
    pub large: u32,
}

impl Default for PoolLimits {
    /// What fits in 48 MiB.
    fn default() -> Self {
        PoolLimits::within(48 << 20)
    }
}

impl PoolLimits {
    /// So many buffers that they take at most `bytes`: a third of it for small ones, a sixth for
    /// medium ones, half for large ones; each bounded by what a token can number.
    #[must_use]
    pub fn within(bytes: u64) -> PoolLimits {
        let buffers = |bytes: u64, size: usize| u32::try_from(bytes / size as u64).unwrap_or(u32::MAX / 4);
        PoolLimits {
            small: buffers(bytes / 3, SMALL),
            medium: buffers(bytes / 6, MEDIUM),
            large: buffers(bytes / 2, LARGE),
        }
    }

    /// Bytes of all these buffers.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> u64 {
        Counts::from(*self).into_iter().zip(SIZES).map(|(count, size)| u64::from(count) * size as u64).sum()
    }

    /// How many there are of a class.
    #[must_use]
    pub fn of(&self, class: Class) -> u32 {
        Counts::from(*self)[class as usize]
    }

    /// No buffer of any class.
    pub(crate) const NONE: PoolLimits = PoolLimits { small: 0, medium: 0, large: 0 };

    /// Buffers of all classes.
    #[must_use]
    pub fn buffers(&self) -> u32 {
        self.small + self.medium + self.large
    }

    /// One more of a class.
    pub(crate) fn add(&mut self, class: Class) {
        let mut counts = Counts::from(*self);
        counts[class as usize] += 1;
        *self = counts.into();
    }
}

impl From<PoolLimits> for Counts {
    fn from(limits: PoolLimits) -> Counts {
        [limits.small, limits.medium, limits.large]
    }
}

impl From<Counts> for PoolLimits {
    fn from([small, medium, large]: Counts) -> PoolLimits {
        PoolLimits { small, medium, large }
    }
}

/// Owns the memory of all frames of one worker.
#[derive(Debug)]
pub struct Pool {
    slots: Vec<Slot>,
    /// The bytes of each slot.
    data: Vec<Box<[u8]>>,
    /// The free slots of each class.
    free: [Vec<u32>; Class::ALL.len()],
    /// Slots whose buffer was given back ([`Pool::set_limits`]).
    bare: Vec<u32>,
    made: Counts,
    /// The bounds.
    most: Counts,
    /// Of each class, how many must be free so that nobody is in anybody's way.
    plenty: Counts,
    accounts: Accounts,
}

impl Pool {
    /// An empty pool; buffers are made when first asked for.
    #[must_use]
    pub fn new(limits: PoolLimits) -> Self {
        let most = Counts::from(limits);
        let each = most.map(|count| count as usize);
        let mut pool = Pool {
            slots: Vec::with_capacity(each.iter().sum()),
            data: Vec::with_capacity(each.iter().sum()),
            free: each.map(Vec::with_capacity),
            bare: Vec::new(),
            made: Counts::default(),
            most,
            plenty: Counts::default(),
            accounts: Accounts::new(),
        };
        Class::ALL.into_iter().for_each(|class| pool.set_plenty(class));
        pool
    }

    /// Changes the bounds while frames are in use. Free buffers beyond them come back to be freed
    /// by the caller; those in use are freed when their frames are.
    #[must_use]
    pub fn set_limits(&mut self, limits: PoolLimits) -> Vec<Box<[u8]>> {
        self.most = limits.into();
        self.accounts.renew();
        let most = self.most.map(|most| most as usize);
        let slots = most.iter().sum::<usize>();
        self.slots.reserve(slots.saturating_sub(self.slots.len()));
        self.data.reserve(slots.saturating_sub(self.data.len()));
        for (free, most) in self.free.iter_mut().zip(most) {
            free.reserve(most.saturating_sub(free.len()));
        }
        self.bare.reserve(self.slots.len() - self.bare.len());
        let mut spare = Vec::new();
        for class in 0..SIZES.len() {
            while self.made[class] > self.most[class]
                && let Some(index) = self.free[class].pop()
            {
                spare.push(self.strip(index));
            }
        }
        Class::ALL.into_iter().for_each(|class| self.set_plenty(class));
        spare
    }

    /// Takes its buffer from a slot that is not in use.
    #[cold]
    fn strip(&mut self, index: u32) -> Box<[u8]> {
        let class = self.slots[index as usize].class;
        self.made[class as usize] -= 1;
        self.set_plenty(class);
        self.bare.push(index);
        std::mem::take(&mut self.data[index as usize])
    }

    /// A frame with room for `len` bytes, all of them zero or left from before. `None` where the
    /// pool has reached its limit or `len` is more than [`MAX_FRAME`]. Where the buffers of a size
    /// are used up, the frame gets a larger one.
    #[inline]
    pub fn alloc(&mut self, len: usize) -> Option<Frame> {
        if len > MAX_FRAME {
            return None;
        }
        let class = Class::of(len);
        let frame = match self.take(class) {
            Some(frame) => frame,
            None => self.take_larger(class)?,
        };
        self.slots[frame.0 as usize].len = len as u32;
        Some(frame)
    }

    #[cold]
    fn take_larger(&mut self, class: Class) -> Option<Frame> {
        class.and_larger().skip(1).find_map(|class| self.take(class))
    }

    /// A copy of `bytes` as a new frame.
    #[inline]
    pub fn alloc_from(&mut self, bytes: &[u8]) -> Option<Frame> {
        let frame = self.alloc(bytes.len())?;
        self.bytes_mut(&frame).copy_from_slice(bytes);
        Some(frame)
    }

    /// A copy of a frame with its metadata.
    pub fn duplicate(&mut self, frame: &Frame) -> Option<Frame> {
        let len = self.len(frame);
        let copy = self.alloc(len)?;
        self.copy(frame, 0, &copy, 0, len);
        *self.meta_mut(&copy) = *self.meta(frame);
        Some(copy)
    }

    /// Copies `len` bytes at `at` of one frame to `to_at` of another. Panics where either is
    /// shorter.
    pub fn copy(&mut self, from: &Frame, at: usize, to: &Frame, to_at: usize, len: usize) {
        let a = self.slots[from.0 as usize].start as usize + at;
        let b = self.slots[to.0 as usize].start as usize + to_at;
        let (source, target) = self.two(from.0, to.0);
        target[b..b + len].copy_from_slice(&source[a..a + len]);
    }

    /// Gives a frame's buffer back.
    #[inline]
    pub fn free(&mut self, frame: Frame) {
        let slot = &mut self.slots[frame.0 as usize];
        debug_assert!(slot.in_use);
        slot.in_use = false;
        let class = slot.class as usize;
        if self.made[class] > self.most[class] {
            drop(self.strip(frame.0));
        } else {
            self.free[class].push(frame.0);
        }
    }

    /// After a driver read into a large buffer: moves a shorter frame to a smaller one, so that
    /// large buffers stay for what needs them.
    pub fn compact(&mut self, frame: Frame) -> Frame {
        let len = self.len(&frame);
        let (class, had) = (Class::of(len), self.class(&frame));
        if class >= had {
            return frame;
        }
        let Some(copy) = class.and_larger().take_while(|class| *class < had).find_map(|class| self.take(class)) else {
            return frame;
        };
        self.copy(&frame, 0, &copy, 0, len);
        self.set_len(&copy, len);
        *self.meta_mut(&copy) = *self.meta(&frame);
        self.free(frame);
        copy
    }

    /// The frame's bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self, frame: &Frame) -> &[u8] {
        let slot = &self.slots[frame.0 as usize];
        &self.data[frame.0 as usize][slot.range()]
    }

    /// The frame's bytes, to change them.
    #[inline]
    pub fn bytes_mut(&mut self, frame: &Frame) -> &mut [u8] {
        self.parts_mut(frame).0
    }

    /// The bytes and the metadata together, to change both.
    #[inline(always)]
    pub fn parts_mut(&mut self, frame: &Frame) -> (&mut [u8], &mut Meta) {
        let slot = &mut self.slots[frame.0 as usize];
        let bytes = &mut self.data[frame.0 as usize][slot.range()];
        (bytes, &mut slot.meta)
    }

    /// Headers of a frame that is known to have them, `at` bytes from its begin, and its metadata.
    /// `None` where the buffer ends before they do.
    #[inline(always)]
    pub(crate) fn headers_mut<const N: usize>(
        &mut self,
        frame: &Frame,
        at: usize,
    ) -> Option<(&mut [u8; N], &mut Meta)> {
        let slot = &mut self.slots[frame.0 as usize];
        let at = usize::from(slot.start) + at;
        let bytes = self.data[frame.0 as usize].get_mut(at..at + N)?;
        Some((bytes.first_chunk_mut()?, &mut slot.meta))
    }

    /// The bytes of two different frames, of the first to read, of the second to change.
    pub fn both(&mut self, from: &Frame, to: &Frame) -> (&[u8], &mut [u8]) {
        let (a, b) = (self.slots[from.0 as usize].range(), self.slots[to.0 as usize].range());
        let (source, target) = self.two(from.0, to.0);
        (&source[a], &mut target[b])
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self, frame: &Frame) -> usize {
        self.slots[frame.0 as usize].len as usize
    }

    /// Sets the length; what the frame had before stays, what is new is undefined. Stops at the
    /// buffer's end.
    pub fn set_len(&mut self, frame: &Frame, len: usize) {
        let slot = &mut self.slots[frame.0 as usize];
        slot.len = len.min(slot.room() - slot.start as usize) as u32;
    }

    /// Grows the frame by `n` bytes at its front, out of the headroom. False where there is no
    /// room.
    pub fn push_front(&mut self, frame: &Frame, n: usize) -> bool {
        let slot = &mut self.slots[frame.0 as usize];
        if (slot.start as usize) < n {
            return false;
        }
        slot.start -= n as u16;
        slot.len += n as u32;
        true
    }

    /// The same, and gives the bytes and the metadata, to change both. `None` where there is no
    /// room.
    #[inline(always)]
    pub fn grow_front(&mut self, frame: &Frame, n: u16) -> Option<(&mut [u8], &mut Meta)> {
        self.grow_front_where(frame, n, |_| true)
    }

    /// The same where that may be, by what is known about the frame.
    #[inline(always)]
    pub fn grow_front_where(
        &mut self,
        frame: &Frame,
        n: u16,
        may: impl FnOnce(&Meta) -> bool,
    ) -> Option<(&mut [u8], &mut Meta)> {
        let slot = &mut self.slots[frame.0 as usize];
        if !may(&slot.meta) {
            return None;
        }
        slot.start = slot.start.checked_sub(n)?;
        slot.len += u32::from(n);
        let bytes = &mut self.data[frame.0 as usize][slot.range()];
        Some((bytes, &mut slot.meta))
    }

    /// Takes `n` bytes off the frame's front. False where it has fewer, or would begin behind what
    /// 16 bits can say; see [`Pool::may_begin_later`].
    #[inline]
    pub fn pull_front(&mut self, frame: &Frame, n: usize) -> bool {
        let slot = &mut self.slots[frame.0 as usize];
        let start = u16::try_from(usize::from(slot.start) + n);
        let (Ok(start), Some(len)) = (start, (slot.len as usize).checked_sub(n)) else { return false };
        (slot.start, slot.len) = (start, len as u32);
        true
    }

    /// The same, and gives the bytes as they were before, those taken off in front, and the
    /// metadata. `None`, and nothing changed, where that may not be.
    #[inline]
    pub fn shrink_front(&mut self, frame: &Frame, n: u16) -> Option<(&mut [u8], &mut Meta)> {
        let slot = &mut self.slots[frame.0 as usize];
        let before = slot.range();
        let (start, len) = (slot.start.checked_add(n)?, slot.len.checked_sub(u32::from(n))?);
        (slot.start, slot.len) = (start, len);
        Some((&mut self.data[frame.0 as usize][before], &mut slot.meta))
    }

    /// Whether a frame may begin `n` bytes later in its buffer, and still have all that may be
    /// taken off its front after that: no more than [`HEADROOM`], headers.
    #[must_use]
    pub fn may_begin_later(&self, frame: &Frame, n: usize) -> bool {
        usize::from(self.slots[frame.0 as usize].start) + n <= usize::from(u16::MAX) - HEADROOM
    }

    /// What is known about the frame.
    #[inline]
    #[must_use]
    pub fn meta(&self, frame: &Frame) -> &Meta {
        &self.slots[frame.0 as usize].meta
    }

    /// What is known about the frame, to change it.
    #[inline]
    pub fn meta_mut(&mut self, frame: &Frame) -> &mut Meta {
        &mut self.slots[frame.0 as usize].meta
    }

    /// Bytes of memory the frame's buffer takes, which is what queue bounds count.
    #[must_use]
    pub fn truesize(&self, frame: &Frame) -> u32 {
        self.slots[frame.0 as usize].room() as u32
    }

    /// Which buffer the frame has.
    #[inline]
    #[must_use]
    pub fn class(&self, frame: &Frame) -> Class {
        self.slots[frame.0 as usize].class
    }

    /// Which one a frame of `len` bytes made now would have; `None` where there is none for it.
    #[must_use]
    pub fn class_for(&self, len: usize) -> Option<Class> {
        let class = Class::of(len).and_larger().find(|class| self.left(*class) > 0)?;
        (len <= MAX_FRAME).then_some(class)
    }

    /// Bytes by which the frame may grow at its front.
    #[must_use]
    pub fn headroom(&self, frame: &Frame) -> usize {
        self.slots[frame.0 as usize].start as usize
    }

    /// Frames that are somewhere in the switch.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.slots.len() - self.free.iter().map(Vec::len).sum::<usize>() - self.bare.len()
    }

    /// Buffers that can still be had, in each class.
    #[must_use]
    pub fn available(&self) -> PoolLimits {
        Class::ALL.map(|class| self.left(class)).into()
    }

    #[inline]
    fn left(&self, class: Class) -> u32 {
        let class = class as usize;
        self.most[class].saturating_sub(self.made[class]) + self.free[class].len() as u32
    }

    /// The bounds given to [`Pool::new`], or last to [`Pool::set_limits`].
    #[must_use]
    pub fn limits(&self) -> PoolLimits {
        self.most.into()
    }

    #[inline]
    fn take(&mut self, class: Class) -> Option<Frame> {
        let index = match self.free[class as usize].pop() {
            Some(index) => index,
            None => self.make(class)?,
        };
        let slot = &mut self.slots[index as usize];
        slot.in_use = true;
        slot.start = HEADROOM as u16;
        slot.len = 0;
        slot.next = NONE;
        slot.meta = Meta::default();
        Some(Frame(index))
    }

    #[cold]
    fn make(&mut self, class: Class) -> Option<u32> {
        if self.made[class as usize] >= self.most[class as usize] {
            return None;
        }
        self.made[class as usize] += 1;
        self.set_plenty(class);
        let buffer = vec![0; SIZES[class as usize]].into_boxed_slice();
        let slot = Slot { start: 0, len: 0, next: NONE, class, in_use: false, meta: Meta::default() };
        if let Some(index) = self.bare.pop() {
            (self.data[index as usize], self.slots[index as usize]) = (buffer, slot);
            return Some(index);
        }
        self.data.push(buffer);
        self.slots.push(slot);
        Some(self.slots.len() as u32 - 1)
    }

    /// The buffers of two different frames, the first to read from, the second to write to.
    fn two(&mut self, from: u32, to: u32) -> (&[u8], &mut [u8]) {
        let (from, to) = (from as usize, to as usize);
        if from < to {
            let (a, b) = self.data.split_at_mut(to);
            (&a[from], &mut b[0])
        } else {
            let (a, b) = self.data.split_at_mut(from);
            (&b[0], &mut a[to])
        }
    }
}

/// A first-in first-out queue of frames, chained through the pool's slots. It may count frames that
/// its owner keeps in other chains ([`Fifo::count_in`]); what its own chain holds comes out of it
/// first in, first out.
#[derive(Debug)]
pub struct Fifo {
    chain: Chain,
    frames: u32,
    /// Whoever bounds a queue keeps both below 4 GiB; the pool's memory is the last bound.
    truesize: u32,
    wire_bytes: u32,
    owner: Owner,
}

impl Default for Fifo {
    fn default() -> Self {
        Fifo { chain: Chain::default(), frames: 0, truesize: 0, wire_bytes: 0, owner: Owner::NOBODY }
    }
}

impl Fifo {
    /// Appends a frame. Its `wire_bytes` must not change while it is queued.
    #[inline]
    pub fn push(&mut self, pool: &mut Pool, frame: Frame) {
        let index = frame.0;
        let slot = &mut pool.slots[index as usize];
        slot.next = NONE;
        self.enter(slot, &mut pool.accounts);
        if self.chain.tail == NONE {
            self.chain.head = index;
        } else {
            pool.slots[self.chain.tail as usize].next = index;
        }
        self.chain.tail = index;
    }

    /// Puts a frame back at the front.
    pub fn push_front(&mut self, pool: &mut Pool, frame: Frame) {
        self.count_in(pool, &frame);
        self.chain.push_front(pool, frame);
    }

    /// Puts a frame behind the first `before`, or at the end where there are fewer. Takes time in
    /// proportion to them.
    pub fn insert(&mut self, pool: &mut Pool, before: u32, frame: Frame) {
        self.count_in(pool, &frame);
        self.chain.insert(pool, before, frame);
    }

    /// Counts a frame that goes into another chain of the same queue.
    #[inline]
    pub fn count_in(&mut self, pool: &mut Pool, frame: &Frame) {
        self.enter(&pool.slots[frame.0 as usize], &mut pool.accounts);
    }

    #[inline]
    fn enter(&mut self, slot: &Slot, accounts: &mut Accounts) {
        self.truesize += slot.room() as u32;
        self.wire_bytes += slot.meta.wire_bytes;
        self.frames += 1;
        accounts.charge(self.owner, slot.class);
    }

    #[inline]
    fn leave(&mut self, slot: &Slot, accounts: &mut Accounts) {
        self.frames -= 1;
        self.truesize -= slot.room() as u32;
        self.wire_bytes -= slot.meta.wire_bytes;
        accounts.discharge(self.owner, slot.class);
    }

    /// Counts a frame out that was taken from another chain of the same queue.
    #[inline]
    pub fn count_out(&mut self, pool: &mut Pool, frame: &Frame) {
        self.leave(&pool.slots[frame.0 as usize], &mut pool.accounts);
    }

    /// Its own chain.
    #[inline]
    #[must_use]
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Its own chain, to move frames between that and others; the counts stay.
    pub fn chain_mut(&mut self) -> &mut Chain {
        &mut self.chain
    }

    /// Who its frames are charged to.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Charges what will wait to an owner; nothing waits yet.
    pub fn own(&mut self, owner: Owner) {
        debug_assert!(self.is_empty());
        self.owner = owner;
    }

    /// Charges what waits, and what will, to another. Takes time in proportion to what waits.
    pub fn set_owner(&mut self, pool: &mut Pool, owner: Owner) {
        self.set_owner_of(pool, owner, std::iter::empty());
    }

    /// The same where frames of the queue are in other chains too.
    pub fn set_owner_of(&mut self, pool: &mut Pool, owner: Owner, others: impl Iterator<Item = Chain>) {
        let before = std::mem::replace(&mut self.owner, owner);
        if before == owner {
            return;
        }
        for chain in std::iter::once(self.chain).chain(others) {
            let mut next = chain.slots(pool).next();
            while let Some(index) = next {
                let slot = &pool.slots[index as usize];
                pool.accounts.discharge(before, slot.class);
                pool.accounts.charge(owner, slot.class);
                next = (slot.next != NONE).then_some(slot.next);
            }
        }
    }

    /// Takes the first frame of its own chain.
    #[inline]
    pub fn pop(&mut self, pool: &mut Pool) -> Option<Frame> {
        let index = self.chain.head;
        if index == NONE {
            return None;
        }
        let slot = &mut pool.slots[index as usize];
        self.chain.head = std::mem::replace(&mut slot.next, NONE);
        if self.chain.head == NONE {
            self.chain.tail = NONE;
        }
        self.leave(slot, &mut pool.accounts);
        Some(Frame(index))
    }

    /// What is known about the first frame of its own chain.
    #[must_use]
    pub fn front<'a>(&self, pool: &'a Pool) -> Option<&'a Meta> {
        self.chain.front(pool)
    }

    /// Frames queued.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Whether nothing is queued.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Memory of the queued frames' buffers, in bytes.
    #[must_use]
    pub fn truesize(&self) -> u64 {
        u64::from(self.truesize)
    }

    /// Wire bytes of the queued frames.
    #[must_use]
    pub fn wire_bytes(&self) -> u64 {
        u64::from(self.wire_bytes)
    }

    /// Frees every frame of its own chain; returns how many there were.
    pub fn clear(&mut self, pool: &mut Pool) -> u32 {
        let frames = self.frames;
        while let Some(frame) = self.pop(pool) {
            pool.free(frame);
        }
        frames - self.frames
    }
}

#[cfg(test)]
mod tests;
