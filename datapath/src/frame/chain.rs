//! A chain of frames through the pool's slots: an order, without counts. [`super::Fifo`] counts
//! what is in one, or in several.

use super::{Class, Frame, Meta, NONE, Pool};

/// See the module. What is in it must be taken out before it is dropped.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    pub(super) head: u32,
    pub(super) tail: u32,
}

impl Default for Chain {
    fn default() -> Self {
        Chain { head: NONE, tail: NONE }
    }
}

impl Chain {
    /// Whether nothing is in it.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// Appends a frame.
    #[inline]
    pub fn push(&mut self, pool: &mut Pool, frame: Frame) {
        let index = frame.0;
        pool.slots[index as usize].next = NONE;
        if self.tail == NONE {
            self.head = index;
        } else {
            pool.slots[self.tail as usize].next = index;
        }
        self.tail = index;
    }

    /// Puts a frame at the front.
    #[inline]
    pub fn push_front(&mut self, pool: &mut Pool, frame: Frame) {
        let index = frame.0;
        pool.slots[index as usize].next = self.head;
        self.head = index;
        if self.tail == NONE {
            self.tail = index;
        }
    }

    /// Puts a frame behind the first `before`, or at the end where there are fewer. Takes time in
    /// proportion to them.
    pub fn insert(&mut self, pool: &mut Pool, before: u32, frame: Frame) {
        let Some(last) = self.nth(pool, before) else { return self.push_front(pool, frame) };
        let next = pool.slots[last as usize].next;
        if next == NONE {
            return self.push(pool, frame);
        }
        pool.slots[frame.0 as usize].next = next;
        pool.slots[last as usize].next = frame.0;
    }

    /// Takes the first frame.
    #[inline]
    pub fn pop(&mut self, pool: &mut Pool) -> Option<Frame> {
        self.pop_where(pool, |_, _| true)
    }

    /// Takes the first frame where that may be, by what is known about it and which buffer it has.
    #[inline]
    pub fn pop_where(&mut self, pool: &mut Pool, may: impl FnOnce(&Meta, Class) -> bool) -> Option<Frame> {
        if self.head == NONE {
            return None;
        }
        let index = self.head;
        let slot = &mut pool.slots[index as usize];
        if !may(&slot.meta, slot.class) {
            return None;
        }
        self.head = slot.next;
        slot.next = NONE;
        if self.head == NONE {
            self.tail = NONE;
        }
        Some(Frame(index))
    }

    /// What is known about the first frame.
    #[inline]
    #[must_use]
    pub fn front<'a>(&self, pool: &'a Pool) -> Option<&'a Meta> {
        (self.head != NONE).then(|| &pool.slots[self.head as usize].meta)
    }

    /// The frame behind the first `before`, to look at its bytes.
    pub fn behind<T>(&self, pool: &Pool, before: u32, look: impl FnOnce(&[u8], &Meta) -> T) -> Option<T> {
        let at = match self.nth(pool, before) {
            None => self.head,
            Some(last) => pool.slots[last as usize].next,
        };
        (at != NONE).then(|| {
            let frame = Frame(at);
            look(pool.bytes(&frame), pool.meta(&frame))
        })
    }

    /// What its first `count` frames take on the wire, in bytes.
    #[must_use]
    pub fn first_wire_bytes(&self, pool: &Pool, count: u32) -> u32 {
        self.slots(pool).take(count as usize).map(|index| pool.slots[index as usize].meta.wire_bytes).sum()
    }

    /// All its frames, first to last: what is known about each, and its buffer.
    pub fn metas<'a>(&self, pool: &'a Pool) -> impl Iterator<Item = (&'a Meta, Class)> + use<'a> {
        self.slots(pool).map(|index| {
            let slot = &pool.slots[index as usize];
            (&slot.meta, slot.class)
        })
    }

    /// Cuts it behind the first `before`; what follows comes back.
    pub fn split_off(&mut self, pool: &mut Pool, before: u32) -> Chain {
        let Some(last) = self.nth(pool, before) else { return std::mem::take(self) };
        let next = std::mem::replace(&mut pool.slots[last as usize].next, NONE);
        if next == NONE {
            return Chain::default();
        }
        let tail = std::mem::replace(&mut self.tail, last);
        Chain { head: next, tail }
    }

    /// Puts another behind it.
    pub fn append(&mut self, pool: &mut Pool, other: Chain) {
        if other.head == NONE {
            return;
        }
        if self.tail == NONE {
            self.head = other.head;
        } else {
            pool.slots[self.tail as usize].next = other.head;
        }
        self.tail = other.tail;
    }

    /// All its frames, first to last.
    pub(in crate::frame) fn slots<'a>(&self, pool: &'a Pool) -> impl Iterator<Item = u32> + use<'a> {
        let next = |index: u32| (index != NONE).then_some(index);
        std::iter::successors(next(self.head), move |&index| next(pool.slots[index as usize].next))
    }

    /// The last of the first `count` frames; `None` for none.
    fn nth(&self, pool: &Pool, count: u32) -> Option<u32> {
        self.slots(pool).take(count as usize).last()
    }
}
