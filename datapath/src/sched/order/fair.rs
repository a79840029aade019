//! `fair`, the default order: a constant number of steps for any number of children, within a proven distance of the ideal.
//!
//! It is QFQ (Checconi, Rizzo and Valente, "QFQ: Efficient Packet Scheduling With Tight Guarantees", IEEE/ACM ToN 2013). With L the
//! level's longest frame and w a child's weight, children whose `L / w` rounds up to the same power of two s form a *group*. A group has
//! a ring of *slots* of width s; a child is filed by its start tag S in the slot `floor(S / s)`, first in, first out, so nothing is ever
//! sorted. The group's own tags are those of its first slot: `S_g = slot x s` and `F_g = S_g + 2 s`. Among the groups with `S_g <= V`
//! (eligible) the one with the smallest `F_g` is served. Groups differ by powers of two, so weights of 65535:1 need 17 of them, and rates
//! of 1 kbit/s to 400 Gbit/s need 30; a level allocates the groups that its weights use. Finding the next slot is one find-first-set.
//!
//! Where QFQ keeps four bitmaps of groups (ready or blocked, eligible or not) whose upkeep relies on the theorem below, this looks at the
//! two tags of every busy group: at most 17 (30) pairs that lie in the first-level cache, and nothing to go wrong when a rate changes,
//! a clock jumps or a level has promised too much.
//!
//! # What is proven
//! Let V advance as in [`super::tag`], W be the sum of the backlogged weights, and the set of backlogged children be stable.
//! 1. *Ahead*: a child is served only if `S_g <= V`, so `S < V + s`, and then pays at most `L / w <= s`: `S < V + 2 s` at all times.
//! 2. *Behind*: `V <= F_g + L / W` for every busy group. Let t0 be the last time a group j with `F_j > F_g` was served. Every group whose
//!    F was at most `F_g` was then not eligible, so all its tags were later than V(t0). Since t0 only such groups were served, and each
//!    service ended at `S < S_slot + 2 s <= F_g`: together at most `W x (F_g - V(t0))` bytes, which moves V to at most `F_g`; j's own
//!    frame adds `L / W`. Hence `S >= S_g >= V - 2 s - L / W`.
//!
//! In bytes (`w s` is L where `L / w` is a power of two, below 2 L otherwise): a child is less than `2 w s < 4 L` ahead and at most
//! `2 w s + L w / W < 5 L` behind its ideal share, in every interval since it became backlogged; never more than the sum of both between
//! any two moments. Real orders: the same with the guarantees' sum at most the link's rate C, `L / C` for `L / W`, and a further frame
//! that others may have on the wire. "Early" is thus bounded by `2 w s` as well: a child may receive up to that much at once.
//!
//! A child charged with more than L is filed in the last slot its group has and moved on from there until its true slot is reached.

use super::tag::{Clock, Tag, Weight, later};

/// Slots of a group. The theorem needs 7 (start tags from `V - 3 s` to below `V + 2 s`, and one for rounding).
const SLOTS: u32 = 16;
/// The furthest slot in which a child is filed, from the group's first: it leaves room for the first to move back.
const FARTHEST: u32 = SLOTS - 5;
/// Children filed too early that one `peek` moves on; more of them and the next is served early, which its tag remembers.
const MOVED_ON_A_PEEK: u32 = 4;
/// A real order forgives a debt of more than this many slots: the theorem allows three, and a frame of others.
const FORGIVEN_SLOTS: u32 = 4;
/// The end of a list.
const NONE: u32 = u32::MAX;
/// `place[1]` of a child that is not backlogged.
const IDLE: u8 = u8::MAX;
/// `group_of` a width that no child has needed.
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
    /// A slot's width in tag units, as a power of two.
    width_bits: u32,
    /// One bit a slot that holds children.
    busy: u16,
    heads: [u32; SLOTS as usize],
    tails: [u32; SLOTS as usize],
}

impl Group {
    fn new(width_bits: u32) -> Self {
        let empty = [NONE; SLOTS as usize];
        Group { first: 0, width_bits, busy: 0, heads: empty, tails: empty }
    }

    /// The slot of the ring that holds `tag`.
    fn slot_of(&self, tag: u64) -> u32 {
        (tag >> self.width_bits) as u32 % SLOTS
    }

    /// The start of the slot that holds `tag`.
    fn floor(&self, tag: u64) -> u64 {
        tag >> self.width_bits << self.width_bits
    }

    /// Slots from the first busy one to the next that is busy (0: the first itself). Needs a busy slot.
    fn to_next_busy(&self) -> u32 {
        self.busy.rotate_right(self.slot_of(self.first)).trailing_zeros()
    }

    /// Slots from the first busy one to the last. Needs a busy slot.
    fn to_last_busy(&self) -> u32 {
        SLOTS - 1 - self.busy.rotate_right(self.slot_of(self.first)).leading_zeros()
    }

    /// The slot in which a child starting at `start` is to be filed; moves the group's first slot back where it is earlier than that.
    fn admit(&mut self, start: u64) -> u32 {
        let floor = self.floor(start);
        if self.busy == 0 {
            self.first = floor;
            return self.slot_of(floor);
        }
        let slots = (floor.wrapping_sub(self.first) as i64) >> self.width_bits;
        if slots < 0 {
            let room = SLOTS - 1 - self.to_last_busy();
            let back = slots.unsigned_abs().min(u64::from(room));
            self.first = self.first.wrapping_sub(back << self.width_bits);
            return self.slot_of(self.first);
        }
        let forward = (slots as u64).min(u64::from(FARTHEST));
        self.slot_of(self.first.wrapping_add(forward << self.width_bits))
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
            self.link(child);
        }
    }

    /// The group of this weight; allocates it where no child had needed it.
    fn group_for(&mut self, weight: Weight) -> u8 {
        let width_bits = weight.span(self.max_frame).max(1).next_power_of_two().trailing_zeros();
        let known = &mut self.group_of[width_bits as usize % 64];
        if *known == NO_GROUP {
            *known = self.groups.len() as u8;
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
            self.link(child);
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

    pub fn is_empty(&self) -> bool {
        self.active == 0
    }

    pub fn peek(&mut self, v: u64) -> Option<u32> {
        self.clock.observe(v);
        let mut moves_left = MOVED_ON_A_PEEK;
        loop {
            let group = &self.groups[self.next_group()?];
            let child = group.heads[group.slot_of(group.first) as usize];
            let start = group.floor(self.children[child as usize].tag.start);
            if moves_left == 0 || !later(start, group.first) {
                return Some(child);
            }
            self.unlink(child);
            self.link(child);
            moves_left -= 1;
        }
    }

    /// The eligible group with the smallest finish tag. A share order always has one; should rounding hide it, the earliest will do.
    fn next_group(&self) -> Option<usize> {
        let v = self.clock.v();
        let (mut best, mut best_finish) = (None, i64::MAX);
        let (mut earliest, mut earliest_start) = (None, i64::MAX);
        let mut left = self.busy;
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            left &= left - 1;
            let group = &self.groups[at];
            let start = group.first.wrapping_sub(v) as i64;
            let finish = start.saturating_add(2 << group.width_bits);
            if start <= 0 && finish < best_finish {
                (best, best_finish) = (Some(at), finish);
            } else if start < earliest_start {
                (earliest, earliest_start) = (Some(at), start);
            }
        }
        if best.is_none() && !self.clock.is_real() { earliest } else { best }
    }

    pub fn charge(&mut self, child: u32, len: u32, backlogged: bool) {
        if !self.is_active(child) {
            return;
        }
        let tag = &mut self.children[child as usize].tag;
        if len > 0 {
            let group = &self.groups[tag.place[0] as usize];
            self.clock.forgive(tag, u64::from(FORGIVEN_SLOTS) << group.width_bits);
            self.clock.serve(tag, len);
        }
        if !backlogged {
            self.deactivate(child);
        } else if len > 0 {
            self.refile(child);
        }
    }

    /// Files a child that was served where its new start tag belongs: behind the others, where the slot is the same.
    fn refile(&mut self, child: u32) {
        let tag = self.children[child as usize].tag;
        let group = &self.groups[tag.place[0] as usize];
        let slot = tag.place[1] as usize;
        let alone = group.heads[slot] == group.tails[slot];
        if !(alone && group.floor(tag.start) == group.first) {
            self.unlink(child);
            self.link(child);
        }
    }

    /// Files a child at the end of its slot.
    fn link(&mut self, child: u32) {
        let tag = self.children[child as usize].tag;
        let at = tag.place[0];
        let group = &mut self.groups[at as usize];
        let slot = group.admit(tag.start);
        let tail = std::mem::replace(&mut group.tails[slot as usize], child);
        if tail == NONE {
            group.heads[slot as usize] = child;
            group.busy |= 1 << slot;
            self.busy |= 1 << at;
        } else {
            self.children[tail as usize].next = child;
        }
        let c = &mut self.children[child as usize];
        (c.prev, c.next) = (tail, NONE);
        c.tag.place[1] = slot as u8;
    }

    /// Takes a child out of its slot.
    fn unlink(&mut self, child: u32) {
        let c = &mut self.children[child as usize];
        let (prev, next, [at, slot]) = (c.prev, c.next, c.tag.place);
        c.tag.place[1] = IDLE;
        let group = &mut self.groups[at as usize];
        let slot = slot as usize;
        if next == NONE {
            group.tails[slot] = prev;
        } else {
            self.children[next as usize].prev = prev;
        }
        if prev != NONE {
            self.children[prev as usize].next = next;
            return;
        }
        group.heads[slot] = next;
        if next == NONE {
            group.busy &= !(1 << slot);
            if group.busy == 0 {
                self.busy &= !(1 << at);
            } else {
                group.first = group.first.wrapping_add(u64::from(group.to_next_busy()) << group.width_bits);
            }
        }
    }

    /// Forgets the children from `len` on.
    pub fn truncate(&mut self, len: u32) {
        for child in len..self.children.len() as u32 {
            self.deactivate(child);
        }
        self.children.truncate(len as usize);
    }

    #[cfg(test)]
    pub fn clock(&mut self) -> &mut Clock {
        &mut self.clock
    }

    /// Every list is whole, every busy bit tells the truth, and the clock's sums are those of the children.
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
