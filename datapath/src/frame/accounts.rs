//! Accounts: whose frames wait in memory, and who may let one more wait.
//!
//! Half of each class of buffers is promised: each owner has a share of it that is his alone,
//! whatever others hold. The rest is common: who holds more than his share may have as much of the
//! common part as he leaves free (dynamic thresholds, Choudhury and Hahne 1998), so those who come
//! later find some, and who holds the most is refused first. Within what an owner may have, his
//! queues share by the same rule.
//!
//! A queue ([`super::Fifo`]) has an owner and charges each frame to him. An owner may be part of
//! another: what he holds beyond his own share is charged to that one. So an endpoint with a
//! guarantee has what belongs to it, and borrows as its tenant.
//!
//! All of it is counted in buffers of a class, since a class can be used up alone. What lies in no
//! queue (what is being read or sent) is counted for nobody: it makes the common part smaller.

use super::{Class, Counts, Frame, Pool, PoolLimits};

/// By class: a difference of counts.
type Differences = [i32; Class::ALL.len()];

/// Who a queue's frames are charged to: an account of one pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(u32);

impl Owner {
    /// Nobody: such frames are in nobody's share.
    pub const NOBODY: Owner = Owner(u32::MAX);
}

/// A part of one, in units of 2^-32.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Part(u32);

impl Part {
    /// `n` of `all`, rounded down; at most all.
    #[must_use]
    pub fn of(n: u64, all: u64) -> Part {
        let part = (u128::from(n) << 32).checked_div(u128::from(all)).unwrap_or(0);
        Part(u32::try_from(part).unwrap_or(u32::MAX))
    }

    /// The mean of two parts.
    #[must_use]
    pub fn mean(self, other: Part) -> Part {
        Part(self.0 / 2 + other.0 / 2)
    }

    /// So many eighths of this part, at most all.
    #[must_use]
    pub fn eighths(self, n: u64) -> Part {
        Part((u64::from(self.0) * n.min(8) / 8) as u32)
    }

    /// This part without another.
    #[must_use]
    pub fn without(self, other: Part) -> Part {
        Part(self.0.saturating_sub(other.0))
    }

    fn of_buffers(self, buffers: u32) -> i32 {
        ((u64::from(buffers) * u64::from(self.0)) >> 32) as i32
    }
}

/// Buffers of a class that no queue may take, so that ports can always read: 16 (a burst of long
/// frames), or a sixteenth where there are many; never more than half.
fn reserve(most: u32) -> u32 {
    (most / 16).max(16.min(most / 2))
}

/// What is promised of a class.
fn promised(most: u32) -> u32 {
    (most - reserve(most)) / 2
}

#[derive(Clone, Copy, Debug)]
struct Account {
    /// By class: its share, less what it holds.
    left: Differences,
    /// Who pays for what it holds beyond its share.
    parent: Owner,
}

impl Account {
    fn over(left: i32) -> i32 {
        (-left).max(0)
    }
}

/// All accounts of a pool.
#[derive(Debug)]
pub(super) struct Accounts {
    list: Vec<Account>,
    /// By account, its share of each class.
    shares: Vec<Differences>,
    closed: Vec<u32>,
    /// What is promised to all and not held by them, by class.
    owed: Differences,
    /// How many divide what is promised among their own.
    holders: u32,
    /// Goes up when all shares are to be set anew; never zero.
    version: u32,
}

impl Accounts {
    pub fn new() -> Accounts {
        Accounts {
            list: Vec::new(),
            shares: Vec::new(),
            closed: Vec::new(),
            owed: Differences::default(),
            holders: 0,
            version: 1,
        }
    }

    #[inline]
    pub fn charge(&mut self, owner: Owner, class: Class) {
        let mut at = owner;
        while let Some(account) = self.list.get_mut(at.0 as usize) {
            let left = &mut account.left[class as usize];
            *left -= 1;
            if *left >= 0 {
                self.owed[class as usize] -= 1;
                return;
            }
            at = account.parent;
        }
    }

    #[inline]
    pub fn discharge(&mut self, owner: Owner, class: Class) {
        let mut at = owner;
        while let Some(account) = self.list.get_mut(at.0 as usize) {
            let left = &mut account.left[class as usize];
            *left += 1;
            if *left > 0 {
                self.owed[class as usize] += 1;
                return;
            }
            at = account.parent;
        }
    }

    /// All shares are to be set anew.
    pub fn renew(&mut self) {
        self.version = self.version.wrapping_add(1).max(1);
    }

    /// Adds to what is left of an account, and takes what is no more beyond its share off its
    /// parent.
    fn shift(&mut self, owner: Owner, class: Class, by: i32) {
        let (mut at, mut by) = (owner, by);
        while by != 0
            && let Some(account) = self.list.get_mut(at.0 as usize)
        {
            let before = account.left[class as usize];
            let after = before + by;
            account.left[class as usize] = after;
            self.owed[class as usize] += after.max(0) - before.max(0);
            (at, by) = (account.parent, Account::over(before) - Account::over(after));
        }
    }
}

/// Frames that are charged to an owner wherever they are: those of one among many that lie in one
/// queue.
#[derive(Clone, Copy, Debug)]
pub struct Holding {
    owner: Owner,
    counts: Counts,
    bytes: u64,
}

impl Holding {
    /// Of nobody, and nothing.
    pub const NONE: Holding = Holding { owner: Owner::NOBODY, counts: [0; Class::ALL.len()], bytes: 0 };

    /// Whether one more frame may be held.
    #[inline]
    #[must_use]
    pub fn may_take(&self, pool: &Pool, frame: &Frame) -> bool {
        pool.may_wait(self.owner, pool.class(frame), self.bytes)
    }

    /// Holds a frame.
    #[inline]
    pub fn enter(&mut self, pool: &mut Pool, frame: &Frame) {
        let class = pool.class(frame);
        self.counts[class as usize] += 1;
        self.bytes += u64::from(class.bytes());
        pool.accounts.charge(self.owner, class);
    }

    /// Holds a frame no more.
    #[inline]
    pub fn leave(&mut self, pool: &mut Pool, frame: &Frame) {
        let class = pool.class(frame);
        self.counts[class as usize] -= 1;
        self.bytes -= u64::from(class.bytes());
        pool.accounts.discharge(self.owner, class);
    }

    /// Holds so many frames of a class no more.
    pub fn leave_all(&mut self, pool: &mut Pool, class: Class, frames: u32) {
        self.counts[class as usize] -= frames;
        self.bytes -= u64::from(class.bytes()) * u64::from(frames);
        pool.accounts.shift(self.owner, class, frames.cast_signed());
    }

    /// Charges what is held to another. Takes time in proportion to it.
    pub fn set_owner(&mut self, pool: &mut Pool, owner: Owner) {
        let before = std::mem::replace(&mut self.owner, owner);
        if before == owner {
            return;
        }
        for (class, count) in Class::ALL.into_iter().zip(self.counts) {
            for _ in 0..count {
                pool.accounts.discharge(before, class);
                pool.accounts.charge(owner, class);
            }
        }
    }

    /// Bytes of buffers that are held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whose they are.
    #[cfg(test)]
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.owner
    }
}

/// What decides whether one more frame may wait in a queue.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// What is left of the owner's share, and of that of whom it is part of; `None` where there is
    /// none.
    own: Option<i32>,
    whole: Option<i32>,
    owed: i32,
    free: u32,
    most: u32,
    /// Of a buffer.
    bytes: u32,
}

impl Standing {
    /// As it is when one more frame of the owner waits, for which a buffer was free.
    #[must_use]
    pub fn with_one_more(mut self) -> Standing {
        self.free = self.free.saturating_sub(1);
        for left in [&mut self.own, &mut self.whole].into_iter().flatten() {
            *left -= 1;
            if *left >= 0 {
                self.owed -= 1;
                break;
            }
        }
        self
    }

    /// As it is when so many of the owner's frames that wait are freed.
    #[must_use]
    pub fn with_fewer(mut self, frames: u32) -> Standing {
        self.free += frames;
        for _ in 0..frames {
            for left in [&mut self.own, &mut self.whole].into_iter().flatten() {
                *left += 1;
                if *left > 0 {
                    self.owed += 1;
                    break;
                }
            }
        }
        self
    }

    /// Whether a queue that holds `held` bytes of memory may have one more frame.
    #[must_use]
    pub fn takes(&self, held: u64) -> bool {
        if is_plenty_of(self.free, self.most) {
            return true;
        }
        let left = match (self.own, self.whole) {
            (Some(own), Some(_)) if own > 0 => return true,
            (_, Some(left)) | (Some(left), None) => left,
            (None, None) => 0,
        };
        let common = i64::from(self.free) - i64::from(reserve(self.most)) - i64::from(self.owed);
        let room = i64::from(left.max(0)) + (common - i64::from(Account::over(left))).max(0);
        room > 0 && held <= room.unsigned_abs() * u64::from(self.bytes)
    }
}

/// While no more than a quarter of a class is in use, nobody is in anybody's way.
#[inline]
fn is_plenty_of(free: u32, most: u32) -> bool {
    u64::from(free) * 4 > u64::from(most) * 3
}

impl Pool {
    /// Goes up when all shares are to be set anew ([`Pool::set_part`]): the pool is another, has
    /// other bounds, or another number of holders.
    #[inline]
    #[must_use]
    pub fn version(&self) -> u32 {
        self.accounts.version
    }

    /// One more, or one fewer, divides among its own accounts what is promised. All of these have
    /// the same part of it.
    pub fn set_holder(&mut self, holds: bool) {
        let holders = &mut self.accounts.holders;
        *holders = if holds { *holders + 1 } else { holders.saturating_sub(1) };
        self.accounts.renew();
    }

    /// Opens an account without a share, as a part of `parent`'s.
    pub fn open_account(&mut self, parent: Owner) -> Owner {
        let accounts = &mut self.accounts;
        let account = Account { left: Differences::default(), parent };
        let id = accounts.closed.pop().unwrap_or_else(|| {
            accounts.list.push(account);
            accounts.shares.push(Differences::default());
            accounts.list.len() as u32 - 1
        });
        accounts.list[id as usize] = account;
        Owner(id)
    }

    /// Closes an account; nothing of its frames may wait any more.
    pub fn close_account(&mut self, owner: Owner) {
        let Some(_) = self.accounts.list.get(owner.0 as usize) else { return };
        self.set_part(owner, Part(0));
        debug_assert!(
            self.accounts.list[owner.0 as usize].left == Differences::default(),
            "frames wait in an account that goes"
        );
        self.accounts.closed.push(owner.0);
    }

    /// Gives an account its part of what its holder has.
    pub fn set_part(&mut self, owner: Owner, part: Part) {
        let at = owner.0 as usize;
        if at >= self.accounts.list.len() {
            return;
        }
        for class in Class::ALL {
            let share = part.of_buffers(promised(self.most[class as usize]) / self.accounts.holders.max(1));
            let more = share - std::mem::replace(&mut self.accounts.shares[at][class as usize], share);
            self.accounts.shift(owner, class, more);
        }
    }

    /// An account's share.
    #[must_use]
    pub fn share(&self, owner: Owner) -> PoolLimits {
        let share = self.accounts.shares.get(owner.0 as usize).copied().unwrap_or_default();
        share.map(i32::cast_unsigned).into()
    }

    /// What waits of an account's frames, and what its parts hold beyond their shares.
    #[must_use]
    pub fn held(&self, owner: Owner) -> PoolLimits {
        let left = self.accounts.list.get(owner.0 as usize).map_or(Differences::default(), |account| account.left);
        let share: Counts = self.share(owner).into();
        Class::ALL.map(|class| share[class as usize].saturating_add_signed(-left[class as usize])).into()
    }

    /// Whether a queue of `owner` that holds `held` bytes of memory may have one more frame, in a
    /// buffer of this class.
    #[inline]
    #[must_use]
    pub fn may_wait(&self, owner: Owner, class: Class, held: u64) -> bool {
        self.is_plenty(class) || self.standing(owner, class, self.left(class)).takes(held)
    }

    /// Whether so few of a class are in use that nobody is in anybody's way.
    #[inline]
    #[must_use]
    pub fn is_plenty(&self, class: Class) -> bool {
        let is_plenty = self.free[class as usize].len() >= self.plenty[class as usize] as usize;
        debug_assert_eq!(is_plenty, is_plenty_of(self.left(class), self.most[class as usize]));
        is_plenty
    }

    /// The bounds of a class, or how many buffers it has, are other ones.
    pub(super) fn set_plenty(&mut self, class: Class) {
        let (made, most) = (self.made[class as usize], self.most[class as usize]);
        let least = u64::from(most) * 3 / 4 + 1;
        self.plenty[class as usize] = (least as u32).saturating_sub(most.saturating_sub(made));
    }

    /// What decides that, where so many buffers of the class are free.
    #[cold]
    #[must_use]
    pub fn standing(&self, owner: Owner, class: Class, free: u32) -> Standing {
        let own = self.accounts.list.get(owner.0 as usize);
        let whole = own.and_then(|own| self.accounts.list.get(own.parent.0 as usize));
        Standing {
            own: own.map(|account| account.left[class as usize]),
            whole: whole.map(|account| account.left[class as usize]),
            owed: self.accounts.owed[class as usize],
            free,
            most: self.most[class as usize],
            bytes: class.bytes(),
        }
    }
}

#[cfg(test)]
mod tests;
