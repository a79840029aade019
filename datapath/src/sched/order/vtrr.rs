//! `vtrr` and `vtrr-bytes`: Virtual-Time Round-Robin (Nieh, Vaill and Zhong, USENIX 2001), which
//! FS-VDE used; here for comparison.
//!
//! The children are kept in one list by falling weight. A scheduling *cycle* gives each child as
//! many turns as its weight. After a turn the next child of the list has its turn if it has more
//! turns left in the cycle than the one just served, or if it is due: its start tag is before the V
//! that follows one more turn. Otherwise the list starts again from its head. Weights 5, 3, 1 give
//! 1 2 3 1 2 1 2 1 1. A child whose queue is empty is passed over; one that joins in mid-cycle gets
//! the part of its turns that the cycle still holds.
//!
//! `vtrr` counts a frame as one turn, as published, so a child with small frames loses.
//! `vtrr-bytes` counts bytes: a turn lasts until the longest frame's worth of bytes is used up, and
//! what a frame overdraws is taken from the child's next turn. Neither has a useful bound: with one
//! weight of 50 and fifty of 1 the heavy child is served in one run at the end of the cycle, 24.5
//! frames late.
//!
//! The list is sorted again at the first `peek` after a weight changed. Finding the next child that
//! is backlogged and has turns left is a walk over words of 64 bits, one a level.

use super::tag::{Clock, Tag, Weight, later};

/// Turns that one `peek` passes over because their child is overdrawn; the next is served overdrawn
/// as it is.
const SKIPPED_A_PEEK: u32 = 8;

#[derive(Clone, Debug, Default)]
struct Child {
    tag: Tag,
    active: bool,
    /// Position in the list.
    rank: u32,
    /// The cycle of which `turns` and `credit` speak.
    cycle: u32,
    /// Turns left in it.
    turns: u32,
    /// Bytes left of the turn; negative where frames overdrew it.
    credit: i64,
}

/// VTRR over one level.
#[derive(Clone, Debug)]
pub(super) struct Vtrr {
    clock: Clock,
    by_bytes: bool,
    /// Bytes of a turn; by frames, what a frame of any length counts.
    turn_bytes: u32,
    children: Vec<Child>,
    /// The list: children by falling weight.
    list: Vec<u32>,
    /// Whether a weight changed since the list was sorted; the sets of ranks are void then.
    unsorted: bool,
    backlogged: u32,
    /// Ranks of backlogged children, and of those that have turns left.
    waiting: Ranks,
    due: Ranks,
    cycle: u32,
    /// Turns left in this cycle, of all backlogged children, and those that a whole cycle has.
    turns_left: u64,
    turns: u64,
    /// The child whose turn it is.
    current: Option<u32>,
    /// Rank of the last turn, and the turns that its child had left.
    last: Option<(u32, u32)>,
}

impl Vtrr {
    pub fn new(clock: Clock, max_frame: u32, by_bytes: bool) -> Self {
        Vtrr {
            clock,
            by_bytes,
            turn_bytes: max_frame,
            children: Vec::new(),
            list: Vec::new(),
            unsorted: false,
            backlogged: 0,
            waiting: Ranks::default(),
            due: Ranks::default(),
            cycle: 0,
            turns_left: 0,
            turns: 0,
            current: None,
            last: None,
        }
    }

    pub fn set_weight(&mut self, child: u32, weight: Weight) {
        let at = child as usize;
        if at >= self.children.len() {
            self.list.extend(self.children.len() as u32..=child);
            self.children.resize(at + 1, Child::default());
            self.waiting.resize(at + 1);
            self.due.resize(at + 1);
        }
        let c = &mut self.children[at];
        self.clock.reweigh(&mut c.tag, weight, c.active);
        self.unsorted = true;
    }

    pub fn activate(&mut self, child: u32) {
        let Some(c) = self.children.get_mut(child as usize) else { return };
        if c.active || !c.tag.is_known() {
            return;
        }
        c.active = true;
        self.clock.join(&mut c.tag);
        self.backlogged += 1;
        if self.unsorted {
            return;
        }
        let weight = u64::from(c.tag.share());
        let share = if self.turns == 0 { weight } else { (weight * self.turns_left).div_ceil(self.turns) };
        let known = if c.cycle == self.cycle { c.turns } else { u32::MAX };
        if c.cycle != self.cycle {
            c.credit = c.credit.min(0);
        }
        (c.cycle, c.turns) = (self.cycle, known.min(share as u32));
        self.turns += weight;
        self.turns_left += u64::from(c.turns);
        self.waiting.insert(c.rank);
        if c.turns > 0 {
            self.due.insert(c.rank);
        }
    }

    pub fn deactivate(&mut self, child: u32) {
        if !self.is_active(child) {
            return;
        }
        self.settle_cycle(child);
        let c = &mut self.children[child as usize];
        c.active = false;
        self.clock.leave(&mut c.tag);
        self.backlogged -= 1;
        if self.current == Some(child) {
            self.current = None;
            self.last = Some((c.rank, c.turns));
        }
        if !self.unsorted {
            self.turns -= u64::from(c.tag.share());
            self.turns_left -= u64::from(c.turns);
            self.waiting.remove(c.rank);
            self.due.remove(c.rank);
        }
    }

    pub fn is_active(&self, child: u32) -> bool {
        self.children.get(child as usize).is_some_and(|c| c.active)
    }

    pub fn is_empty(&self) -> bool {
        self.backlogged == 0
    }

    pub fn peek(&mut self) -> Option<u32> {
        if self.backlogged == 0 {
            return None;
        }
        if self.unsorted {
            self.sort();
        }
        for _ in 0..SKIPPED_A_PEEK {
            if self.current.is_some() {
                break;
            }
            let child = self.next()?;
            self.current = Some(child);
            if self.by_bytes {
                let c = &mut self.children[child as usize];
                if c.credit <= 0 {
                    c.credit += i64::from(self.turn_bytes);
                }
                if c.credit <= 0 {
                    self.end_turn(child);
                }
            }
        }
        if self.current.is_none() {
            self.current = self.next();
        }
        self.current
    }

    pub fn charge(&mut self, child: u32, len: u32, backlogged: bool) {
        if !self.is_active(child) {
            return;
        }
        if len > 0 {
            let c = &mut self.children[child as usize];
            self.clock.serve(&mut c.tag, if self.by_bytes { len } else { self.turn_bytes });
            c.credit -= i64::from(len);
            if self.current == Some(child) && (!self.by_bytes || c.credit <= 0) {
                self.end_turn(child);
            }
        }
        if !backlogged {
            self.deactivate(child);
        }
    }

    /// The child whose turn follows the last. Needs a backlogged child and a sorted list.
    fn next(&mut self) -> Option<u32> {
        if self.due.first().is_none() {
            self.start_cycle();
        }
        let follower = self.last.and_then(|(rank, turns)| {
            let child = self.list[self.due.after(rank)? as usize];
            self.settle_cycle(child);
            (self.children[child as usize].turns > turns || self.is_due(child)).then_some(child)
        });
        follower.or_else(|| {
            let child = self.list[self.due.first()? as usize];
            self.settle_cycle(child);
            Some(child)
        })
    }

    /// The paper's inequality: the child's finish tag is less than its turn's span past the V that
    /// follows one more turn.
    fn is_due(&self, child: u32) -> bool {
        let turn = (u64::from(self.turn_bytes) << super::tag::SHARE_UNIT_BITS) / self.turns.max(1);
        later(self.clock.v().wrapping_add(turn), self.children[child as usize].tag.start)
    }

    fn end_turn(&mut self, child: u32) {
        self.settle_cycle(child);
        let c = &mut self.children[child as usize];
        if c.turns > 0 {
            c.turns -= 1;
            self.turns_left -= 1;
        }
        if c.turns == 0 {
            self.due.remove(c.rank);
        }
        self.current = None;
        self.last = Some((c.rank, c.turns));
    }

    /// Every backlogged child gets its turns again; each child's own count follows when it is
    /// looked at.
    fn start_cycle(&mut self) {
        self.cycle = self.cycle.wrapping_add(1);
        self.due.copy(&self.waiting);
        self.turns_left = self.turns;
        self.last = None;
    }

    /// Brings the child's counts into this cycle.
    fn settle_cycle(&mut self, child: u32) {
        let c = &mut self.children[child as usize];
        if c.cycle != self.cycle {
            (c.cycle, c.turns, c.credit) = (self.cycle, c.tag.share(), c.credit.min(0));
        }
    }

    /// Sorts the list by falling weight and starts a cycle.
    fn sort(&mut self) {
        let children = &self.children;
        self.list.sort_unstable_by_key(|&child| (u32::MAX - children[child as usize].tag.share(), child));
        self.waiting.clear();
        self.turns = 0;
        for (rank, &child) in self.list.iter().enumerate() {
            let c = &mut self.children[child as usize];
            c.rank = rank as u32;
            if c.active {
                self.waiting.insert(c.rank);
                self.turns += u64::from(c.tag.share());
            }
        }
        self.unsorted = false;
        self.current = None;
        self.start_cycle();
    }

    /// Forgets a child; it keeps its place in the list until that is sorted again.
    pub fn forget(&mut self, child: u32) {
        self.deactivate(child);
        if let Some(c) = self.children.get_mut(child as usize) {
            *c = Child { rank: c.rank, ..Child::default() };
        }
    }

    /// A turn is `max_frame` bytes from now on, and from a new cycle on.
    pub fn set_max_frame(&mut self, max_frame: u32) {
        self.unsorted |= max_frame != self.turn_bytes;
        self.turn_bytes = max_frame;
    }

    #[cfg(test)]
    pub fn clock(&mut self) -> &mut Clock {
        &mut self.clock
    }

    /// The counts are those of the children, and so are the clock's sums.
    #[cfg(test)]
    pub fn check(&self) {
        let active = || self.children.iter().filter(|c| c.active);
        assert_eq!(active().count(), self.backlogged as usize);
        self.clock.check(active().map(|c| &c.tag));
        if self.unsorted {
            return;
        }
        let turns_of = |c: &Child| if c.cycle == self.cycle { c.turns } else { c.tag.share() };
        assert_eq!(active().map(|c| u64::from(c.tag.share())).sum::<u64>(), self.turns);
        assert_eq!(active().map(|c| u64::from(turns_of(c))).sum::<u64>(), self.turns_left);
        for c in &self.children {
            assert_eq!(self.waiting.contains(c.rank), c.active);
            assert_eq!(self.due.contains(c.rank), c.active && turns_of(c) > 0);
        }
    }
}

/// A set of ranks: a bit each, and above every 64 words a word of summary bits.
#[derive(Clone, Debug, Default)]
struct Ranks {
    levels: Vec<Vec<u64>>,
}

impl Ranks {
    /// Makes room for `ranks`; keeps what is in the set.
    fn resize(&mut self, ranks: usize) {
        let mut words = ranks.div_ceil(64);
        for level in &mut self.levels {
            level.resize(words, 0);
            words = words.div_ceil(64);
        }
        while self.levels.last().is_none_or(|top| top.len() > 1) {
            let below = self.levels.last().map_or(ranks, Vec::len);
            self.levels.push(vec![0; below.div_ceil(64)]);
            let top = self.levels.len() - 1;
            if top > 0 {
                for at in 0..below {
                    let any = u64::from(self.levels[top - 1][at] != 0);
                    self.levels[top][at / 64] |= any << (at % 64);
                }
            }
        }
    }

    fn insert(&mut self, rank: u32) {
        let mut at = rank as usize;
        for level in &mut self.levels {
            level[at / 64] |= 1 << (at % 64);
            at /= 64;
        }
    }

    fn remove(&mut self, rank: u32) {
        let mut at = rank as usize;
        for level in &mut self.levels {
            level[at / 64] &= !(1 << (at % 64));
            if level[at / 64] != 0 {
                return;
            }
            at /= 64;
        }
    }

    /// The lowest rank above `rank`.
    fn after(&self, rank: u32) -> Option<u32> {
        let mut at = rank as usize;
        for (height, level) in self.levels.iter().enumerate() {
            let above = (u64::MAX << (at % 64)) << 1;
            let bits = level[at / 64] & above;
            if bits != 0 {
                return Some(self.descend(height, at / 64 * 64 + bits.trailing_zeros() as usize));
            }
            at /= 64;
        }
        None
    }

    /// The lowest rank.
    fn first(&self) -> Option<u32> {
        let top = self.levels.last()?[0];
        (top != 0).then(|| self.descend(self.levels.len() - 1, top.trailing_zeros() as usize))
    }

    /// The lowest rank below bit `at` of a level.
    fn descend(&self, height: usize, mut at: usize) -> u32 {
        for level in self.levels[..height].iter().rev() {
            at = at * 64 + level[at].trailing_zeros() as usize;
        }
        at as u32
    }

    fn copy(&mut self, from: &Ranks) {
        for (to, from) in self.levels.iter_mut().zip(&from.levels) {
            to.copy_from_slice(from);
        }
    }

    fn clear(&mut self) {
        for level in &mut self.levels {
            level.fill(0);
        }
    }

    #[cfg(test)]
    fn contains(&self, rank: u32) -> bool {
        self.levels[0][rank as usize / 64] >> (rank % 64) & 1 == 1
    }
}
