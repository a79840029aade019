//! `fair`, the default order: a constant number of steps for any number of children, within a
//! proven distance of the ideal.
//!
//! It is QFQ (Checconi, Rizzo and Valente, "QFQ: Efficient Packet Scheduling With Tight
//! Guarantees", IEEE/ACM ToN 2013), with slots narrower than a frame. With L the level's longest
//! frame and w a child's weight, children whose `L / 4 w` rounds up to the same power of two s form
//! a *group*. A group has a ring of *slots* of width s; a child is filed by its start tag S in the
//! slot `floor(S / s)`, first in, first out, so nothing is ever sorted. The group's own tags are
//! those of its first slot: `S_g = slot x s` and `F_g = S_g + 5 s`. Among the groups with `S_g <=
//! V` (eligible) the one with the smallest `F_g` is served. Groups differ by powers of two, so
//! weights of 65535:1 need 17 of them, and rates of 1 kbit/s to 400 Gbit/s need 30; a level
//! allocates the groups that its weights use. Finding the next slot is one find-first-set.
//!
//! QFQ finds the group to serve with four bitmaps (ready or blocked, eligible or not) whose upkeep
//! relies on the theorem below. Here the choice is kept until a group's tags change or another
//! group becomes eligible, and then made anew from the tags of the busy groups: at most 17 (30)
//! pairs, and nothing to go wrong when a rate changes, a clock jumps or a level has promised too
//! much.
//!
//! QFQ's slots are as wide as the longest frame, so who comes into one waits for up to a frame of
//! each that is in those before it. With slots of a quarter of that who comes waits for less,
//! though frames are as long: what counts for a neighbour's delay is the slot. The price is a
//! longer ring.
//!
//! # What is proven
//! Let V advance as in [`super::tag`], W be the sum of the backlogged weights, and the set of
//! backlogged children be stable.
//! 1. *Priority*: a child is served only if `S_g <= V`, so `S < V + s`, and then pays at most `L /
//!    w <= 4 s`: `S < V + 5 s` at all times.
//! 2. *Behind*: `V <= F_g + L / W` for every busy group. Let t0 be the last time a group j with
//!    `F_j > F_g` was served. Every group whose F was at most `F_g` was then not eligible, so all
//!    its tags were later than V(t0). Since t0 only such groups were served, and each service ended
//!    at `S < S_slot + 5 s <= F_g`: together at most `W x (F_g - V(t0))` bytes, which moves V to at
//!    most `F_g`; j's own frame adds `L / W`. Hence `S >= S_g >= V - 5 s - L / W`.
//!
//! In bytes (`4 w s` is L where `L / 4 w` is a power of two, below 2 L otherwise): a child is less
//! than `5 w s < 2.5 L` ahead and at most `5 w s + L w / W < 3.5 L` behind its ideal share, in
//! every interval since it became backlogged; never more than the sum of both between any two
//! moments. Real orders: the same with the guarantees' sum at most the link's rate C, `L / C` for
//! `L / W`, and a further frame that others may have on the wire. "Early" is thus bounded by `5 w
//! s` as well: a child may receive up to that much at once.
//!
//! A child charged with more than L is filed in the last slot its group has and moved on from there
//! until its true slot is reached.

use super::tag::{Clock, Tag, Weight, later};

/// Slots that the longest frame of a group's lightest child takes.
const PARTS: u32 = 4;
/// Slots of a group. The theorem needs 16 (start tags from `V - 9 s` to below `V + 5 s`, and two
/// for rounding).
const SLOTS: u32 = 32;
/// The furthest slot in which a child is filed, from the group's first: it leaves room for the
/// first to move back.
const FARTHEST: u32 = SLOTS - PARTS - 4;
/// Children filed too early that one `peek` moves on; more of them and the next is served early,
/// which its tag remembers.
const MOVED_ON_A_PEEK: u32 = 4;
/// A real order forgives a debt of more than this many slots: the theorem allows nine, and a frame
/// of others.
const FORGIVEN_SLOTS: u32 = 3 * PARTS + 1;
/// The end of a list.
const NONE: u32 = u32::MAX;
/// `place[1]` of a child that is not backlogged.
const IDLE: u8 = u8::MAX;
/// No group: `groups` has at most 64.
const NO_GROUP: u8 = u8::MAX;

/// 32 bytes, half a cache line. `tag.place` holds the group and the slot.
#[derive(Clone, Debug)]
struct Child {
    tag: Tag,
    next: u32,
    prev: u32,
}

/// Children of like weight, in slots of one width.
#[derive(Clone, Debug)]
struct Group {
    /// Start tag of the first busy slot, a multiple of the width.
    first: u64,
    /// What the group's finish tag is later than its start tag: a width and a frame's.
    span: i64,
    /// A slot's width in tag units, as a power of two.
    width_bits: u32,
    /// One bit a slot that holds children.
    busy: u32,
    heads: [u32; SLOTS as usize],
    tails: [u32; SLOTS as usize],
}

impl Group {
    fn new(width_bits: u32) -> Self {
        let empty = [NONE; SLOTS as usize];
        Group { first: 0, span: i64::from(PARTS + 1) << width_bits, width_bits, busy: 0, heads: empty, tails: empty }
    }

    /// The slot of the ring that holds `tag`.
    fn slot_of(&self, tag: u64) -> u32 {
        (tag >> self.width_bits) as u32 % SLOTS
    }

    /// The start of the slot that holds `tag`.
    fn floor(&self, tag: u64) -> u64 {
        tag >> self.width_bits << self.width_bits
    }

    /// Slots from the first busy one to the next that is busy (0: the first itself). Needs a busy
    /// slot.
    fn to_next_busy(&self) -> u32 {
        self.busy.rotate_right(self.slot_of(self.first)).trailing_zeros()
    }

    /// Slots from the first busy one to the last. Needs a busy slot.
    fn to_last_busy(&self) -> u32 {
        SLOTS - 1 - self.busy.rotate_right(self.slot_of(self.first)).leading_zeros()
    }

    /// The slot in which a child starting at `start` is to be filed; moves the group's first slot
    /// where it is that one.
    fn admit(&mut self, start: u64) -> u32 {
        let floor = self.floor(start);
        let slots = (floor.wrapping_sub(self.first) as i64) >> self.width_bits;
        if self.busy == 0 {
            self.first = floor;
        } else if slots as u64 > u64::from(FARTHEST) {
            return self.admit_outside(slots);
        }
        self.slot_of(floor)
    }

    /// As `admit`, for a start `slots` before the first busy slot or far behind it.
    #[cold]
    fn admit_outside(&mut self, slots: i64) -> u32 {
        if slots > 0 {
            return self.slot_of(self.first.wrapping_add(u64::from(FARTHEST) << self.width_bits));
        }
        let room = SLOTS - 1 - self.to_last_busy();
        let back = slots.unsigned_abs().min(u64::from(room));
        self.first = self.first.wrapping_sub(back << self.width_bits);
        self.slot_of(self.first)
    }

    /// Files a child at the end of its slot, or before all others in it; whether the group's tags
    /// changed. What is proven knows slots only, so the order within one is free.
    fn push(&mut self, children: &mut [Child], child: u32, before: bool) -> bool {
        let (first, idle) = (self.first, self.busy == 0);
        let slot = self.admit(children[child as usize].tag.start);
        let head = self.heads[slot as usize];
        if before && head != NONE {
            self.heads[slot as usize] = child;
            children[head as usize].prev = child;
            let c = &mut children[child as usize];
            (c.prev, c.next) = (NONE, head);
            c.tag.place[1] = slot as u8;
            return first != self.first;
        }
        let tail = self.tails[slot as usize];
        self.tails[slot as usize] = child;
        if tail == NONE {
            self.heads[slot as usize] = child;
            self.busy |= 1 << slot;
        } else {
            children[tail as usize].next = child;
        }
        let c = &mut children[child as usize];
        (c.prev, c.next) = (tail, NONE);
        c.tag.place[1] = slot as u8;
        idle || first != self.first
    }

    /// Takes a child out of its slot; whether the group's tags changed.
    fn take(&mut self, children: &mut [Child], child: u32) -> bool {
        let c = &mut children[child as usize];
        let (prev, next, slot) = (c.prev, c.next, c.tag.place[1] as usize);
        c.tag.place[1] = IDLE;
        if next == NONE {
            self.tails[slot] = prev;
        } else {
            children[next as usize].prev = prev;
        }
        if prev != NONE {
            children[prev as usize].next = next;
            return false;
        }
        self.heads[slot] = next;
        if next != NONE {
            return false;
        }
        self.busy &= !(1 << slot);
        if self.busy == 0 {
            return true;
        }
        let slots = self.to_next_busy();
        self.first = self.first.wrapping_add(u64::from(slots) << self.width_bits);
        slots > 0
    }
}

/// Bytes of one child of this order.
#[cfg(test)]
pub(super) const fn child_bytes() -> usize {
    size_of::<Child>()
}

/// QFQ over one level.
#[derive(Clone, Debug)]
pub(super) struct Fair {
    clock: Clock,
    max_frame: u32,
    active: u32,
    /// One bit a group that holds children.
    busy: u64,
    children: Vec<Child>,
    groups: Vec<Group>,
    /// Index into `groups` by `width_bits`.
    group_of: [u8; 64],
    /// The group to serve while V is from `choice_from` on and before `choice_until`, unless a
    /// group's tags changed since.
    choice: u8,
    choice_from: u64,
    choice_until: u64,
    stale: bool,
}

impl Fair {
    pub fn new(clock: Clock, max_frame: u32) -> Self {
        Fair {
            clock,
            max_frame,
            active: 0,
            busy: 0,
            children: Vec::new(),
            groups: Vec::new(),
            group_of: [NO_GROUP; 64],
            choice: NO_GROUP,
            choice_from: 0,
            choice_until: 0,
            stale: true,
        }
    }

    pub fn set_weight(&mut self, child: u32, weight: Weight) {
        let at = child as usize;
        if at >= self.children.len() {
            let mut fresh = Child { tag: Tag::default(), next: NONE, prev: NONE };
            fresh.tag.place[1] = IDLE;
            self.children.resize(at + 1, fresh);
        }
        let active = self.is_active(child);
        if active {
            self.unlink(child);
        }
        let group = self.group_for(weight);
        let tag = &mut self.children[at].tag;
        self.clock.reweigh(tag, weight, active);
        tag.place[0] = group;
        if active {
            self.link(child, false);
        }
    }

    /// The group of this weight; allocates it where no child had needed it.
    fn group_for(&mut self, weight: Weight) -> u8 {
        let width = weight.span(self.max_frame).div_ceil(u64::from(PARTS)).max(1);
        let width_bits = width.next_power_of_two().trailing_zeros();
        let known = &mut self.group_of[width_bits as usize % 64];
        if *known == NO_GROUP {
            *known = self.groups.len() as u8;
            // One at a time: most levels need one or two.
            self.groups.reserve_exact(1);
            self.groups.push(Group::new(width_bits));
        }
        *known
    }

    pub fn activate(&mut self, child: u32, v: u64) {
        self.clock.observe(v);
        if let Some(c) = self.children.get_mut(child as usize)
            && c.tag.is_known()
            && c.tag.place[1] == IDLE
        {
            self.clock.join(&mut c.tag);
            self.active += 1;
            // Who comes without a debt goes first in its slot: what sends little, a ping say, would
            // else wait for a frame of everyone.
            let fresh = c.tag.start == self.clock.v();
            self.link(child, fresh);
        }
    }

    pub fn deactivate(&mut self, child: u32) {
        if self.is_active(child) {
            self.unlink(child);
            self.active -= 1;
            self.clock.leave(&mut self.children[child as usize].tag);
        }
    }

    pub fn is_active(&self, child: u32) -> bool {
        self.children.get(child as usize).is_some_and(|c| c.tag.place[1] != IDLE)
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.active == 0
    }

    pub fn peek(&mut self, v: u64) -> Option<u32> {
        self.clock.observe(v);
        if self.active == 0 {
            return None;
        }
        if self.is_alone() {
            return Some(0);
        }
        let (child, early) = self.first()?;
        if early { self.move_on() } else { Some(child) }
    }

    /// The first child of the group to serve, and whether it is filed before its true slot.
    fn first(&mut self) -> Option<(u32, bool)> {
        let at = self.next_group();
        let group = self.groups.get(usize::from(at))?;
        let child = group.heads[group.slot_of(group.first) as usize];
        let start = group.floor(self.children[child as usize].tag.start);
        Some((child, later(start, group.first)))
    }

    /// Files children that are next too early where they belong, until one is next in its turn.
    #[cold]
    fn move_on(&mut self) -> Option<u32> {
        for _ in 0..MOVED_ON_A_PEEK {
            let (child, early) = self.first()?;
            if !early {
                return Some(child);
            }
            self.unlink(child);
            self.link(child, false);
        }
        Some(self.first()?.0)
    }

    /// The group to serve: the last choice for as long as no group's tags change and no other group
    /// becomes eligible.
    fn next_group(&mut self) -> u8 {
        let v = self.clock.v();
        if self.stale || later(self.choice_from, v) || !later(self.choice_until, v) {
            self.choose(v);
        }
        self.choice
    }

    /// Chooses the eligible group with the smallest finish tag. A share order always has an
    /// eligible group; should rounding hide it, the earliest will do.
    #[inline(never)]
    fn choose(&mut self, v: u64) {
        let (mut best, mut best_finish) = (NO_GROUP, i64::MAX);
        let (mut next, mut next_start) = (NO_GROUP, i64::MAX);
        let mut left = self.busy;
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            left &= left - 1;
            let group = &self.groups[at];
            let start = group.first.wrapping_sub(v) as i64;
            let finish = start.wrapping_add(group.span);
            if start > 0 {
                if start < next_start {
                    (next, next_start) = (at as u8, start);
                }
            } else if finish < best_finish {
                (best, best_finish) = (at as u8, finish);
            }
        }
        self.stale = false;
        self.choice_from = self.groups.get(usize::from(best)).map_or(v, |group| group.first);
        self.choice_until = v.wrapping_add_signed(next_start);
        self.choice = if best == NO_GROUP && !self.clock.is_real() { next } else { best };
    }

    pub fn charge(&mut self, child: u32, len: u32, backlogged: bool) {
        if !self.is_active(child) {
            return;
        }
        let is_served = len > 0 && !self.is_alone();
        let tag = &mut self.children[child as usize].tag;
        if is_served {
            if self.clock.is_real() {
                let group = &self.groups[tag.place[0] as usize];
                self.clock.forgive(tag, u64::from(FORGIVEN_SLOTS) << group.width_bits);
            }
            self.clock.serve(tag, len);
        }
        if !backlogged {
            self.deactivate(child);
        } else if is_served {
            self.refile(child);
        }
    }

    /// Whether time is divided by weight and there is one child, with nobody else ever. Then there
    /// is nothing to be compared with: V stays, as the tag does.
    #[inline]
    fn is_alone(&self) -> bool {
        self.children.len() == 1 && !self.clock.is_real()
    }

    /// See [`super::Order::pass`].
    #[inline(always)]
    pub fn pass(&mut self, child: u32, len: u32, v: u64) -> bool {
        if self.clock.is_real() {
            return self.pass_if_due(child, len, v);
        }
        if self.is_alone() {
            return self.children[0].tag.is_known();
        }
        let Some(c) = self.children.get_mut(child as usize).filter(|c| c.tag.is_known()) else { return false };
        self.clock.pass(&mut c.tag, len);
        true
    }

    #[inline(never)]
    fn pass_if_due(&mut self, child: u32, len: u32, v: u64) -> bool {
        self.clock.observe(v);
        let Some(c) = self.children.get_mut(child as usize).filter(|c| c.tag.is_known()) else { return false };
        let group = &self.groups[c.tag.place[0] as usize];
        self.clock.pass_if_due(&mut c.tag, len, group.width_bits)
    }

    /// Files a child in its group.
    fn link(&mut self, child: u32, before: bool) {
        let at = self.children[child as usize].tag.place[0];
        self.stale |= self.groups[at as usize].push(&mut self.children, child, before);
        self.busy |= 1 << at;
    }

    /// Takes a child out of its group.
    fn unlink(&mut self, child: u32) {
        let at = self.children[child as usize].tag.place[0];
        let group = &mut self.groups[at as usize];
        self.stale |= group.take(&mut self.children, child);
        if group.busy == 0 {
            self.busy &= !(1 << at);
        }
    }

    /// Files a child that was served where its new start tag belongs: behind the others, where the
    /// slot is the same.
    fn refile(&mut self, child: u32) {
        let tag = &self.children[child as usize].tag;
        let group = &mut self.groups[tag.place[0] as usize];
        let slot = tag.place[1] as usize;
        if group.heads[slot] == group.tails[slot] && group.floor(tag.start) == group.first {
            return;
        }
        self.stale |= group.take(&mut self.children, child);
        self.stale |= group.push(&mut self.children, child, false);
    }

    /// Forgets a child.
    pub fn forget(&mut self, child: u32) {
        self.deactivate(child);
        if let Some(c) = self.children.get_mut(child as usize) {
            c.tag = Tag::default();
            c.tag.place[1] = IDLE;
        }
    }

    /// Makes the slots anew for frames of up to `max_frame` bytes, and files everyone where the tag
    /// belongs now.
    pub fn set_max_frame(&mut self, max_frame: u32) {
        if max_frame == self.max_frame {
            return;
        }
        self.max_frame = max_frame;
        self.groups.clear();
        (self.group_of, self.busy, self.stale) = ([NO_GROUP; 64], 0, true);
        let mut active = Vec::with_capacity(self.active as usize);
        for child in 0..self.children.len() as u32 {
            if self.is_active(child) {
                active.push(child);
            }
            let tag = self.children[child as usize].tag;
            if tag.is_known() {
                self.children[child as usize].tag.place = [self.group_for(tag.weight()), IDLE];
            }
        }
        // In order, so that each slot is found from the first on.
        let v = self.clock.v();
        active.sort_by_key(|&child| self.children[child as usize].tag.start.wrapping_sub(v) as i64);
        for child in active {
            self.link(child, false);
        }
    }

    #[cfg(test)]
    pub fn clock(&mut self) -> &mut Clock {
        &mut self.clock
    }

    /// Every list is whole, every busy bit tells the truth, and the clock's sums are those of the
    /// children.
    #[cfg(test)]
    pub fn check(&self) {
        let mut listed = 0;
        for (at, group) in self.groups.iter().enumerate() {
            assert_eq!(self.busy >> at & 1 == 1, group.busy != 0);
            assert!(group.busy == 0 || group.to_next_busy() == 0, "the first slot is busy");
            for slot in 0..SLOTS as usize {
                assert_eq!(group.busy >> slot & 1 == 1, group.heads[slot] != NONE);
                let (mut prev, mut child) = (NONE, group.heads[slot]);
                while child != NONE {
                    let c = &self.children[child as usize];
                    assert_eq!((c.prev, c.tag.place), (prev, [at as u8, slot as u8]));
                    (prev, child) = (child, c.next);
                    listed += 1;
                }
                assert_eq!(group.tails[slot], prev);
            }
        }
        assert_eq!(listed, self.active);
        self.clock.check(self.children.iter().filter(|c| c.tag.place[1] != IDLE).map(|c| &c.tag));
    }
}
