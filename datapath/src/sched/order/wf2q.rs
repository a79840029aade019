//! `wf2q`, the reference order: WF2Q+ (Bennett and Zhang, "Hierarchical Packet Fair Queueing
//! Algorithms", SIGCOMM 1996) with two heaps.
//!
//! Of the children whose start tag is at or before V (eligible) the one with the smallest finish
//! tag is served. Eligible children are in a heap by finish tag, the others in a heap by start tag;
//! both know where a child is, so that it leaves in O(log n).
//!
//! With L the longest frame, w the child's weight and W the sum of the backlogged weights, a child
//! is at most L ahead of its ideal share (it starts only if `S <= V`) and at most `L + L w / W`
//! behind (`V <= F + L / W`, by the argument in [`super::fair`] with each child a group of its
//! own). Measured against the fluid, through random bursts: one frame either way.

use super::tag::{Clock, MAX_CHARGE, Tag, Weight, later};

/// A real order forgives a debt of more than this many of the level's longest frames.
const FORGIVEN_FRAMES: u64 = 4;

/// Which heap a child is in; kept in `tag.place[0]`.
const NEITHER: u8 = 0;
/// Eligible children, by finish tag.
const ELIGIBLE: u8 = 1;
/// Children that are not eligible yet, by start tag.
const WAITING: u8 = 2;

#[derive(Clone, Debug, Default)]
struct Child {
    tag: Tag,
    finish: u64,
    /// Index in its heap.
    at: u32,
}

/// A binary heap whose children know their places in it.
#[derive(Clone, Debug, Default)]
struct Heap {
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    child: u32,
}

impl Entry {
    /// Whether this comes first; of equal keys the lower index does.
    fn before(self, other: Entry) -> bool {
        later(other.key, self.key) || (self.key == other.key && self.child < other.child)
    }
}

impl Heap {
    fn first(&self) -> Option<u32> {
        self.entries.first().map(|entry| entry.child)
    }

    fn push(&mut self, children: &mut [Child], entry: Entry) {
        self.entries.push(entry);
        self.restore(children, self.entries.len() - 1, entry);
    }

    fn remove(&mut self, children: &mut [Child], at: usize) {
        self.entries.swap_remove(at);
        if let Some(&moved) = self.entries.get(at) {
            self.restore(children, at, moved);
        }
    }

    /// Puts `entry` at `at`, or up or down from there until the heap is a heap again.
    fn restore(&mut self, children: &mut [Child], mut at: usize, entry: Entry) {
        while at > 0 && entry.before(self.entries[(at - 1) / 2]) {
            self.set(children, at, self.entries[(at - 1) / 2]);
            at = (at - 1) / 2;
        }
        loop {
            let mut least = 2 * at + 1;
            if least + 1 < self.entries.len() && self.entries[least + 1].before(self.entries[least]) {
                least += 1;
            }
            if least >= self.entries.len() || !self.entries[least].before(entry) {
                break;
            }
            self.set(children, at, self.entries[least]);
            at = least;
        }
        self.set(children, at, entry);
    }

    fn set(&mut self, children: &mut [Child], at: usize, entry: Entry) {
        self.entries[at] = entry;
        children[entry.child as usize].at = at as u32;
    }
}

/// WF2Q+ over one level.
#[derive(Clone, Debug)]
pub(super) struct Wf2q {
    clock: Clock,
    max_frame: u32,
    children: Vec<Child>,
    eligible: Heap,
    waiting: Heap,
}

impl Wf2q {
    pub fn new(clock: Clock, max_frame: u32) -> Self {
        Wf2q { clock, max_frame, children: Vec::new(), eligible: Heap::default(), waiting: Heap::default() }
    }

    pub fn set_weight(&mut self, child: u32, weight: Weight) {
        let at = child as usize;
        if at >= self.children.len() {
            self.children.resize(at + 1, Child::default());
            for heap in [&mut self.eligible.entries, &mut self.waiting.entries] {
                heap.reserve(self.children.len() - heap.len());
            }
        }
        let active = self.is_active(child);
        if active {
            self.remove(child);
        }
        let c = &mut self.children[at];
        // The head frame's length is not kept, but what it costs.
        let cost = c.finish.wrapping_sub(c.tag.start);
        let (from, to) = (c.tag.weight().span(MAX_CHARGE).max(1), weight.span(MAX_CHARGE));
        self.clock.reweigh(&mut c.tag, weight, active);
        let cost = u128::from(cost) * u128::from(to) / u128::from(from);
        c.finish = c.tag.start.wrapping_add(u64::try_from(cost).unwrap_or(0));
        if active {
            self.insert(child);
        }
    }

    pub fn activate(&mut self, child: u32, len: u32, v: u64) {
        self.clock.observe(v);
        if let Some(c) = self.children.get_mut(child as usize)
            && c.tag.is_known()
            && c.tag.place[0] == NEITHER
        {
            self.clock.join(&mut c.tag);
            c.finish = c.tag.start.wrapping_add(c.tag.weight().span(len));
            self.insert(child);
        }
    }

    pub fn deactivate(&mut self, child: u32) {
        if self.is_active(child) {
            self.remove(child);
            self.clock.leave(&mut self.children[child as usize].tag);
        }
    }

    pub fn is_active(&self, child: u32) -> bool {
        self.children.get(child as usize).is_some_and(|c| c.tag.place[0] != NEITHER)
    }

    pub fn is_empty(&self) -> bool {
        self.eligible.entries.is_empty() && self.waiting.entries.is_empty()
    }

    /// Unlike `fair`, one call may move many children whose start tags have come: O(log n) each,
    /// and each only once a frame.
    pub fn peek(&mut self, v: u64) -> Option<u32> {
        self.clock.observe(v);
        while let Some(child) = self.waiting.first().filter(|&child| self.is_eligible(child)) {
            self.remove(child);
            self.insert(child);
        }
        // V may have slipped back since a child became eligible.
        while let Some(child) = self.eligible.first().filter(|&child| !self.is_eligible(child)) {
            self.remove(child);
            self.insert(child);
        }
        let earliest = if self.clock.is_real() { None } else { self.waiting.first() };
        self.eligible.first().or(earliest)
    }

    pub fn charge(&mut self, child: u32, len: u32, next: Option<u32>) {
        if !self.is_active(child) {
            return;
        }
        let tag = &mut self.children[child as usize].tag;
        if len > 0 {
            self.clock.forgive(tag, tag.weight().span(self.max_frame).saturating_mul(FORGIVEN_FRAMES));
            self.clock.serve(tag, len);
        }
        let Some(next) = next else { return self.deactivate(child) };
        let c = &mut self.children[child as usize];
        c.finish = c.tag.start.wrapping_add(c.tag.weight().span(next));
        let (key, at) = (c.finish, c.at as usize);
        if c.tag.place[0] == ELIGIBLE && self.is_eligible(child) {
            self.eligible.restore(&mut self.children, at, Entry { key, child });
        } else {
            self.remove(child);
            self.insert(child);
        }
    }

    /// Whether the child's start tag has come.
    fn is_eligible(&self, child: u32) -> bool {
        !later(self.children[child as usize].tag.start, self.clock.v())
    }

    /// Puts a child into the heap where it belongs now.
    fn insert(&mut self, child: u32) {
        let eligible = self.is_eligible(child);
        let c = &mut self.children[child as usize];
        let (key, heap, place) = match eligible {
            true => (c.finish, &mut self.eligible, ELIGIBLE),
            false => (c.tag.start, &mut self.waiting, WAITING),
        };
        c.tag.place[0] = place;
        heap.push(&mut self.children, Entry { key, child });
    }

    /// Takes a child out of its heap.
    fn remove(&mut self, child: u32) {
        let c = &mut self.children[child as usize];
        let heap = if c.tag.place[0] == ELIGIBLE { &mut self.eligible } else { &mut self.waiting };
        c.tag.place[0] = NEITHER;
        let at = c.at as usize;
        heap.remove(&mut self.children, at);
    }

    /// Forgets a child.
    pub fn forget(&mut self, child: u32) {
        self.deactivate(child);
        if let Some(c) = self.children.get_mut(child as usize) {
            *c = Child::default();
        }
    }

    /// The longest frame is `max_frame` bytes from now on.
    pub fn set_max_frame(&mut self, max_frame: u32) {
        self.max_frame = max_frame;
    }

    #[cfg(test)]
    pub fn clock(&mut self) -> &mut Clock {
        &mut self.clock
    }

    /// Both heaps are heaps, every child knows its place, and the clock's sums are those of the
    /// children.
    #[cfg(test)]
    pub fn check(&self) {
        for (place, heap) in [(ELIGIBLE, &self.eligible), (WAITING, &self.waiting)] {
            for (at, &entry) in heap.entries.iter().enumerate() {
                let c = &self.children[entry.child as usize];
                assert_eq!((c.tag.place[0], c.at as usize), (place, at));
                assert_eq!(entry.key, if place == ELIGIBLE { c.finish } else { c.tag.start });
                assert!(at == 0 || heap.entries[(at - 1) / 2].before(entry));
            }
        }
        let listed = self.eligible.entries.len() + self.waiting.entries.len();
        assert_eq!(listed, self.children.iter().filter(|c| c.tag.place[0] != NEITHER).count());
        self.clock.check(self.children.iter().filter(|c| c.tag.place[0] != NEITHER).map(|c| &c.tag));
    }
}
