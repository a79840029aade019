//! The timing wheel: nodes that wait until their limit lets them send again.
//!
//! One ring of [`SLOTS`] slots of 8.192 us (33 ms in all), with a two-level bitmap, so that adding,
//! removing and finding the next due node take constant time (Varghese and Lauck 1987;
//! find-first-set as in Eiffel, 2019). Who waits longer than the ring sits in its last slot and is
//! put back by the caller when it turns out not to be due. Due times are rounded up to a slot;
//! since rates are kept by tags and not by wake-up times, this costs latency but no rate.

use crate::units::Instant;

const SLOT_BITS: u32 = 13;
const SLOTS: usize = 4096;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct WheelEntry {
    next: u32,
    prev: u32,
    slot: u32,
}

/// Nodes 0..n, each waiting or not.
#[derive(Debug)]
pub struct Wheel {
    heads: Vec<u32>,
    words: Vec<u64>,
    summary: u64,
    links: Vec<WheelEntry>,
    /// The slot number (not wrapped) up to which everything was taken out.
    done: u64,
    waiting: u32,
}

impl Wheel {
    /// A wheel for nodes 0..`nodes`.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        Wheel {
            heads: vec![NONE; SLOTS],
            words: vec![0; SLOTS / 64],
            summary: 0,
            links: vec![WheelEntry { next: NONE, prev: NONE, slot: NONE }; nodes],
            done: 0,
            waiting: 0,
        }
    }

    /// Takes memory for nodes 0..`nodes`.
    pub fn reserve(&mut self, nodes: usize) {
        self.links.reserve(nodes.saturating_sub(self.links.len()));
    }

    /// Makes room for nodes 0..`nodes`; those that there are stay.
    pub fn grow(&mut self, nodes: usize) {
        if nodes > self.links.len() {
            self.links.resize(nodes, WheelEntry { next: NONE, prev: NONE, slot: NONE });
        }
    }

    /// Whether no node waits.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Whether `node` waits.
    #[must_use]
    pub fn contains(&self, node: u32) -> bool {
        self.links[node as usize].slot != NONE
    }

    /// Lets `node` wait until `due`; what it waited for before is forgotten.
    pub fn insert(&mut self, node: u32, now: Instant, due: Instant) {
        self.remove(node);
        if self.waiting == 0 {
            self.done = self.done.max(now.0 >> SLOT_BITS);
        }
        let wanted = (due.0 + (1 << SLOT_BITS) - 1) >> SLOT_BITS;
        let slot = wanted.clamp(self.done + 1, self.done + SLOTS as u64) as usize % SLOTS;
        let head = self.heads[slot];
        self.links[node as usize] = WheelEntry { next: head, prev: NONE, slot: slot as u32 };
        if head != NONE {
            self.links[head as usize].prev = node;
        }
        self.heads[slot] = node;
        self.words[slot / 64] |= 1 << (slot % 64);
        self.summary |= 1 << (slot / 64);
        self.waiting += 1;
    }

    /// Takes `node` out, waiting or not.
    pub fn remove(&mut self, node: u32) {
        let WheelEntry { next, prev, slot } = self.links[node as usize];
        if slot == NONE {
            return;
        }
        if prev == NONE {
            self.heads[slot as usize] = next;
        } else {
            self.links[prev as usize].next = next;
        }
        if next != NONE {
            self.links[next as usize].prev = prev;
        }
        self.links[node as usize].slot = NONE;
        self.waiting -= 1;
        if self.heads[slot as usize] == NONE {
            self.words[slot as usize / 64] &= !(1 << (slot % 64));
            if self.words[slot as usize / 64] == 0 {
                self.summary &= !(1 << (slot / 64));
            }
        }
    }

    /// Takes out one node whose slot is due; call until `None`.
    pub fn expire(&mut self, now: Instant) -> Option<u32> {
        let slot = self.first()?;
        if slot << SLOT_BITS > now.0 {
            self.done = self.done.max((now.0 >> SLOT_BITS).min(slot - 1));
            return None;
        }
        self.done = self.done.max(slot - 1);
        let node = self.heads[slot as usize % SLOTS];
        self.remove(node);
        Some(node)
    }

    /// When the first node is due.
    #[must_use]
    #[inline]
    pub fn next_due(&self) -> Option<Instant> {
        self.first().map(|slot| Instant(slot << SLOT_BITS))
    }

    /// Whether a node is due.
    #[must_use]
    #[inline(never)]
    pub fn is_due(&self, now: Instant) -> bool {
        self.next_due().is_some_and(|due| due <= now)
    }

    /// The number (not wrapped) of the first occupied slot.
    fn first(&self) -> Option<u64> {
        if self.waiting == 0 {
            return None;
        }
        let start = (self.done + 1) as usize % SLOTS;
        let (word, bit) = (start / 64, start % 64);
        let here = self.words[word] >> bit;
        let ahead = if here != 0 {
            u64::from(here.trailing_zeros())
        } else {
            // The words behind this one, round the ring; the low bits of this word come last.
            let turned = self.summary.rotate_right(word as u32 + 1);
            let skip = u64::from(turned.trailing_zeros());
            let found = (word + 1 + skip as usize) % (SLOTS / 64);
            let low = u64::from(self.words[found].trailing_zeros());
            (64 - bit as u64) + skip * 64 + low
        };
        Some(self.done + 1 + ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_nodes_back_in_order_and_never_early() {
        let mut wheel = Wheel::new(1000);
        let mut seed = 7u64;
        let mut due = vec![0u64; 1000];
        for node in 0..1000u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            due[node as usize] = seed >> 39; // up to 33.5 ms
            wheel.insert(node, Instant(0), Instant(due[node as usize]));
        }
        for node in (0..1000).step_by(3) {
            wheel.remove(node);
            assert!(!wheel.contains(node));
        }
        let mut seen = 0;
        let mut last = 0;
        while let Some(next) = wheel.next_due() {
            assert!(next.0 >= last);
            last = next.0;
            assert!(wheel.expire(Instant(next.0 - 1)).is_none());
            while let Some(node) = wheel.expire(next) {
                assert!(due[node as usize] <= next.0 && next.0 - due[node as usize] <= 1 << SLOT_BITS, "late or early");
                assert_ne!(node % 3, 0);
                seen += 1;
            }
        }
        assert_eq!(seen, 666);
    }

    #[test]
    fn far_away_waits_at_the_end_of_the_ring() {
        let mut wheel = Wheel::new(2);
        let year = Instant(31_536_000_000_000_000);
        wheel.insert(0, year, year.plus_ns(20_000));
        wheel.insert(1, year, year.plus_ns(10_000_000_000));
        assert!(wheel.expire(year).is_none());
        assert_eq!(wheel.expire(year.plus_ns(30_000)), Some(0));
        let next = wheel.next_due().expect("the second still waits");
        assert!(next < year.plus_ns(10_000_000_000), "early, for the caller to put back");
        assert_eq!(wheel.expire(next), Some(1));
        assert!(wheel.next_due().is_none());
    }
}
