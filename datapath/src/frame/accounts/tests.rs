//! Accounts against a simple model, and that who is within his share always finds a buffer.

use super::*;
use crate::frame::{Fifo, HEADROOM, LARGE, MEDIUM, SMALL};
use proptest::prelude::*;

const LIMITS: PoolLimits = PoolLimits { small: 200, medium: 64, large: 40 };
/// Length of a frame of each class.
const LENGTHS: [usize; 3] = [60, SMALL, MEDIUM];
/// Two tenants with half of it each; an endpoint of the first has a quarter of its own.
const PARTS: [(Option<usize>, u64); 3] = [(None, 1), (None, 2), (Some(0), 1)];

struct Bed {
    pool: Pool,
    owners: Vec<Owner>,
    /// Three queues of each owner.
    queues: Vec<Fifo>,
}

impl Bed {
    fn new() -> Bed {
        let mut pool = Pool::new(LIMITS);
        pool.set_holder(true);
        let mut owners: Vec<Owner> = Vec::new();
        for (parent, quarters) in PARTS {
            let owner = pool.open_account(parent.map_or(Owner::NOBODY, |parent| owners[parent]));
            pool.set_part(owner, Part::of(quarters, 4));
            owners.push(owner);
        }
        let queue = |n: usize| {
            let mut queue = Fifo::default();
            queue.own(owners[n / 3]);
            queue
        };
        let queues = (0..9).map(queue).collect();
        Bed { pool, owners, queues }
    }

    /// A frame for a queue, if it may wait there; whether it does. `None` where there is no buffer
    /// of the class.
    fn push(&mut self, queue: usize, class: Class) -> Option<bool> {
        let frame = self.pool.alloc(LENGTHS[class as usize])?;
        if self.pool.class(&frame) != class {
            self.pool.free(frame);
            return None;
        }
        let fifo = &mut self.queues[queue];
        let may = self.pool.may_wait(fifo.owner(), class, fifo.truesize());
        if may {
            fifo.push(&mut self.pool, frame);
        } else {
            self.pool.free(frame);
        }
        Some(may)
    }

    fn pop(&mut self, queue: usize) {
        if let Some(frame) = self.queues[queue].pop(&mut self.pool) {
            self.pool.free(frame);
        }
    }

    /// By class, what the queues of an owner hold.
    fn waits(&self, owner: usize) -> [i64; 3] {
        let mut held = [0; 3];
        for queue in &self.queues[3 * owner..3 * owner + 3] {
            for index in queue.chain().slots(&self.pool) {
                held[self.pool.slots[index as usize].class as usize] += 1;
            }
        }
        held
    }

    fn share(&self, owner: usize, class: Class) -> i64 {
        i64::from(self.pool.share(self.owners[owner]).of(class))
    }

    /// By class, what an owner is charged: his queues, and what those hold beyond their shares that
    /// are part of him.
    fn charged(&self, owner: usize, class: Class) -> i64 {
        let parts = (0..PARTS.len()).filter(|&part| PARTS[part].0 == Some(owner));
        let over = parts.map(|part| (self.waits(part)[class as usize] - self.share(part, class)).max(0));
        self.waits(owner)[class as usize] + over.sum::<i64>()
    }

    fn check(&self) {
        for class in Class::ALL {
            let mut owed = 0;
            for owner in 0..PARTS.len() {
                let (charged, share) = (self.charged(owner, class), self.share(owner, class));
                assert_eq!(i64::from(self.pool.held(self.owners[owner]).of(class)), charged, "{owner} {class:?}");
                owed += (share - charged).max(0);
            }
            assert_eq!(i64::from(self.pool.accounts.owed[class as usize]), owed, "{class:?}");
            let kept = owed + i64::from(reserve(LIMITS.of(class)));
            assert!(i64::from(self.pool.available().of(class)) >= kept, "what is promised is there: {class:?}");
        }
    }
}

proptest! {
    #[test]
    fn what_is_held_is_charged_and_what_is_promised_is_there(
        operations in prop::collection::vec((0..9usize, 0..3usize, 0..4u8), 1..1200),
    ) {
        let mut bed = Bed::new();
        for (queue, class, what) in operations {
            match what {
                0 => bed.pop(queue),
                _ => {
                    let (owner, class) = (queue / 3, Class::ALL[class]);
                    // An owner that is a part, or whose parts are within their shares, and this is
                    // the first of its queues.
                    let within = bed.charged(owner, class) < bed.share(owner, class);
                    let sure = within && (PARTS[owner].0.is_some() || bed.queues[queue].is_empty());
                    let went = bed.push(queue, class);
                    prop_assert!(!sure || went == Some(true), "within its share, {:?} found no buffer", class);
                }
            }
        }
        bed.check();
        for queue in &mut bed.queues {
            queue.clear(&mut bed.pool);
        }
        bed.check();
        prop_assert_eq!(bed.pool.in_use(), 0);
    }

    #[test]
    fn shares_and_owners_change_while_frames_wait(
        operations in prop::collection::vec((0..9usize, 0..3usize, 0..5u8, 0..5u64), 1..300),
    ) {
        let mut bed = Bed::new();
        for (queue, other, what, quarters) in operations {
            match what {
                0 => bed.pop(queue),
                // No more than each has at first: together they are promised no more than there is.
                1 => bed.pool.set_part(bed.owners[other], Part::of(quarters.min(2), 8)),
                2 => {
                    let owner = bed.owners[other];
                    bed.queues[queue].set_owner(&mut bed.pool, owner);
                    // The model knows queues by their place.
                    let owner = bed.owners[queue / 3];
                    bed.queues[queue].set_owner(&mut bed.pool, owner);
                }
                3 => drop(bed.pool.set_limits(PoolLimits { small: 100 + 50 * quarters as u32, ..LIMITS })),
                _ => drop(bed.push(queue, Class::ALL[other])),
            }
        }
        for queue in &mut bed.queues {
            queue.clear(&mut bed.pool);
        }
        drop(bed.pool.set_limits(LIMITS));
        bed.check();
        for owner in bed.owners {
            bed.pool.close_account(owner);
        }
        prop_assert_eq!(bed.pool.accounts.owed, [0; 3]);
    }
}

#[test]
fn a_sixteenth_is_kept_for_reading_and_half_of_the_rest_promised() {
    let limits = PoolLimits::within(48 << 20);
    assert_eq!(Class::ALL.map(|class| reserve(limits.of(class))), [512, 32, 23]);
    assert_eq!(promised(limits.small), (limits.small - 512) / 2);
    assert_eq!([0, 1, 24, 100].map(reserve), [0, 0, 12, 16]);
}

#[test]
fn two_holders_have_half_of_it_each() {
    let mut pool = Pool::new(LIMITS);
    let version = pool.version();
    let owners: Vec<Owner> = (0..2)
        .map(|_| {
            pool.set_holder(true);
            pool.open_account(Owner::NOBODY)
        })
        .collect();
    assert!(pool.version() != version, "whoever has set shares sets them again");
    for owner in owners {
        pool.set_part(owner, Part::of(1, 1));
        assert!(pool.share(owner).small.abs_diff(promised(LIMITS.small) / 2) <= 1);
    }
}

#[test]
fn who_comes_later_finds_some_of_what_is_common() {
    const { assert!(LARGE > MEDIUM && MEDIUM > HEADROOM) };
    let mut bed = Bed::new();
    for owner in &bed.owners {
        bed.pool.set_part(*owner, Part::default());
    }
    while bed.push(0, Class::Small) == Some(true) {}
    let first = bed.waits(0)[0];
    while bed.push(3, Class::Small) == Some(true) {}
    let second = bed.waits(1)[0];
    assert!(second >= first / 2 - 1 && second > 40, "{first} and then {second}");
    // And so do the queues of one owner.
    while bed.push(1, Class::Small) == Some(true) {}
    assert!(!bed.queues[1].is_empty());
}
