//! `wf2q`, the reference order: WF2Q+ (Bennett and Zhang, "Hierarchical Packet Fair Queueing Algorithms", SIGCOMM 1996) with two heaps.
//!
//! Of the children whose start tag is at or before V (eligible) the one with the smallest finish tag is served. Eligible children are in a
//! heap by finish tag, the others in a heap by start tag; both know where a child is, so that it leaves in O(log n). A child is at most
//! one of its frames ahead of its ideal share (it starts only if `S <= V`), and at most one of its own and one of others behind.

use super::tag::{Clock, Tag, Weight, later};

/// A real order forgives a debt of more than this many of the level's longest frames.
const FORGIVEN_FRAMES: u32 = 4;

/// Which heap a child is in; kept in `tag.place[0]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum In {
    Neither,
    /// Eligible, by finish tag.
    Eligible,
    /// Not yet eligible, by start tag.
    Waiting,
}

#[derive(Clone, Debug, Default)]
struct Child {
    tag: Tag,
    finish: u64,
    /// Index in its heap.
    at: u32,
}

impl Child {
    fn place(&self) -> In {
        match self.tag.place[0] {
            1 => In::Eligible,
            2 => In::Waiting,
            _ => In::Neither,
        }
    }

    /// What orders the child in its heap.
    fn key(&self) -> u64 {
        if self.place() == In::Eligible { self.finish } else { self.tag.start }
    }
}

/// WF2Q+ over one level.
#[derive(Clone, Debug)]
pub(super) struct Wf2q {
    clock: Clock,
    max_frame: u32,
    children: Vec<Child>,
    eligible: Vec<u32>,
    waiting: Vec<u32>,
}

impl Wf2q {
    pub fn new(clock: Clock, max_frame: u32) -> Self {
        Wf2q { clock, max_frame, children: Vec::new(), eligible: Vec::new(), waiting: Vec::new() }
    }

    pub fn set_weight(&mut self, child: u32, weight: Weight) {
        let at = child as usize;
        if at >= self.children.len() {
            self.children.resize(at + 1, Child::default());
            let more = self.children.len() - self.eligible.len();
            self.eligible.reserve(more);
            let more = self.children.len() - self.waiting.len();
            self.waiting.reserve(more);
        }
        let active = self.is_active(child);
        if active {
            self.remove(child);
        }
        let c = &mut self.children[at];
        // The head frame's length is not kept: its cost scales with the weight as the tags do.
        let head = c.finish.wrapping_sub(c.tag.start);
        let before = if c.tag.is_known() { c.tag.weight().span(1 << 16).max(1) } else { 1 };
        self.clock.reweigh(&mut c.tag, weight, active);
        let head = u128::from(head) * u128::from(weight.span(1 << 16)) / u128::from(before);
        c.finish = c.tag.start.wrapping_add(u64::try_from(head).unwrap_or(0));
        if active {
            self.insert(child);
        }
    }

    pub fn activate(&mut self, child: u32, len: u32, v: u64) {
        self.clock.observe(v);
        if let Some(c) = self.children.get_mut(child as usize)
            && c.tag.is_known()
            && c.place() == In::Neither
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
        self.children.get(child as usize).is_some_and(|c| c.place() != In::Neither)
    }

    pub fn is_empty(&self) -> bool {
        self.eligible.is_empty() && self.waiting.is_empty()
    }

    pub fn peek(&mut self, v: u64) -> Option<u32> {
        self.clock.observe(v);
        while let Some(&child) = self.waiting.first()
            && !later(self.children[child as usize].tag.start, self.clock.v())
        {
            self.remove(child);
            self.insert(child);
        }
        // V may have slipped back since a child became eligible.
        while let Some(&child) = self.eligible.first() {
            if !later(self.children[child as usize].tag.start, self.clock.v()) {
                return Some(child);
            }
            self.remove(child);
            self.insert(child);
        }
        if self.clock.is_real() { None } else { self.waiting.first().copied() }
    }

    pub fn charge(&mut self, child: u32, len: u32, next: Option<u32>) {
        if !self.is_active(child) {
            return;
        }
        let tag = &mut self.children[child as usize].tag;
        if len > 0 {
            self.clock.forgive(tag, tag.weight().span(self.max_frame).saturating_mul(u64::from(FORGIVEN_FRAMES)));
            self.clock.serve(tag, len);
        }
        let Some(next) = next else { return self.deactivate(child) };
        let c = &mut self.children[child as usize];
        let finish = c.tag.start.wrapping_add(c.tag.weight().span(next));
        if c.place() == In::Eligible && !later(c.tag.start, self.clock.v()) {
            c.finish = finish;
            let at = c.at as usize;
            self.restore(In::Eligible, at);
        } else {
            self.remove(child);
            self.children[child as usize].finish = finish;
            self.insert(child);
        }
    }

    fn heap(&mut self, which: In) -> &mut Vec<u32> {
        if which == In::Eligible { &mut self.eligible } else { &mut self.waiting }
    }

    /// Puts a child into the heap where it belongs now.
    fn insert(&mut self, child: u32) {
        let v = self.clock.v();
        let c = &mut self.children[child as usize];
        let which = if later(c.tag.start, v) { In::Waiting } else { In::Eligible };
        c.tag.place[0] = which as u8;
        let heap = self.heap(which);
        heap.push(child);
        let at = heap.len() - 1;
        self.children[child as usize].at = at as u32;
        self.restore(which, at);
    }

    /// Takes a child out of its heap.
    fn remove(&mut self, child: u32) {
        let c = &mut self.children[child as usize];
        let (which, at) = (c.place(), c.at as usize);
        c.tag.place[0] = In::Neither as u8;
        let heap = self.heap(which);
        heap.swap_remove(at);
        if let Some(&moved) = heap.get(at) {
            self.children[moved as usize].at = at as u32;
            self.restore(which, at);
        }
    }

    /// Whether `a` comes before `b` in their heap; ties go to the lower index.
    fn before(&self, a: u32, b: u32) -> bool {
        let (key_a, key_b) = (self.children[a as usize].key(), self.children[b as usize].key());
        later(key_b, key_a) || (key_a == key_b && a < b)
    }

    /// Moves the child at `at` up or down until the heap is a heap again.
    fn restore(&mut self, which: In, mut at: usize) {
        let mut heap = std::mem::take(self.heap(which));
        let child = heap[at];
        while at > 0 && self.before(child, heap[(at - 1) / 2]) {
            at = self.shift(&mut heap, at, (at - 1) / 2);
        }
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let least = if right < heap.len() && self.before(heap[right], heap[left]) { right } else { left };
            if least >= heap.len() || !self.before(heap[least], child) {
                break;
            }
            at = self.shift(&mut heap, at, least);
        }
        heap[at] = child;
        self.children[child as usize].at = at as u32;
        *self.heap(which) = heap;
    }

    /// Moves what is at `from` to `to`, whose child is held apart; the place now free.
    fn shift(&mut self, heap: &mut [u32], to: usize, from: usize) -> usize {
        heap[to] = heap[from];
        self.children[heap[to] as usize].at = to as u32;
        from
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

    /// Both heaps are heaps, every child knows its place, and the clock's sums are those of the children.
    #[cfg(test)]
    pub fn check(&self) {
        for (which, heap) in [(In::Eligible, &self.eligible), (In::Waiting, &self.waiting)] {
            for (at, &child) in heap.iter().enumerate() {
                let c = &self.children[child as usize];
                assert_eq!((c.place(), c.at as usize), (which, at));
                assert!(at == 0 || self.before(heap[(at - 1) / 2], child));
            }
        }
        self.clock.check(self.children.iter().filter(|c| c.place() != In::Neither).map(|c| &c.tag));
    }
}
