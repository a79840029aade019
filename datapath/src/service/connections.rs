//! Connections: which backend has a client's flow.
//!
//! One entry for both directions, 64 bytes in [`Table`] and 16 in its index, IPv4 and IPv6 alike.
//! An entry belongs to a tenant: half of the table is shared out evenly among tenants that have
//! services, the other half is taken by whoever comes first. Within a tenant, connections of which
//! one side was not heard may take a quarter. Where there is no room, those go that are worth
//! least; a connection that was open within the last minute is not evicted by others of its
//! tenant, and by those of another tenant nothing is.
//!
//! Within a tenant, who opens connections (an endpoint, or a client outside) is in one of
//! [`BUCKETS`] by a keyed hash, and what has to go is taken from the fullest bucket, the oldest
//! first: a flood evicts what is its own. One bucket has at most half of what its tenant may have.

use super::entry::{Entry, Key, SECOND, State};
use crate::random::Keyed;
use crate::table::{Id, Left, Table};
use crate::units::Instant;

/// Connections of a switch where nothing is said.
pub const DEFAULT_CONNECTIONS: u32 = 65_536;
/// Connections of a switch at least: each of its tenants is to have some.
pub const LEAST_CONNECTIONS: u32 = 1024;
/// Connections of a switch at most.
pub const MOST_CONNECTIONS: u32 = 1 << 22;
/// Part of a tenant's entries that connections may take of which one side was not heard.
const HALF_OPEN_PART: u32 = 4;
/// Part of a tenant's entries that one bucket may take.
const BUCKET_PART: u32 = 2;
/// Groups of those who open connections: another one shares a flood's with this chance.
pub(super) const BUCKETS: u32 = 64;
/// An open connection that was idle for so long may be evicted, in nanoseconds.
const EVICTABLE_NS: u64 = 60 * SECOND;
/// How exact it is known when an entry was seen last: so a frame of a busy connection moves it in
/// no list.
pub(super) const SEEN_NS: u64 = SECOND;
/// How exact the order is of connections that live for long, as a power of two: 8.6 s. With a
/// million that all send, few are moved when they are seen, and none that can be evicted has to
/// wait for another for longer than that.
const ORDER: u32 = 33;
/// Entries forgotten for their age when one is added, of each class: as many as come, and one more.
const FORGET: usize = 2;

/// States whose connections live and go alike, the least worth first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Closed,
    Direct,
    HalfOpen,
    Closing,
    TwoWay,
    Open,
}

impl Class {
    const BY_WORTH: [Class; 6] =
        [Class::Closed, Class::Direct, Class::HalfOpen, Class::Closing, Class::TwoWay, Class::Open];
    const COUNT: u32 = Self::BY_WORTH.len() as u32;

    const fn of(state: State) -> Class {
        match state {
            State::Closed => Class::Closed,
            State::Direct => Class::Direct,
            State::Asked | State::Answered | State::OneWay | State::Sought => Class::HalfOpen,
            State::Closing => Class::Closing,
            State::TwoWay => Class::TwoWay,
            State::Open => Class::Open,
        }
    }

    /// Whether one that was seen then may go for others.
    fn may_go(self, now: Instant, seen: Instant) -> bool {
        let is_kept = matches!(self, Class::Open | Class::TwoWay);
        !is_kept || now.since(seen) >= EVICTABLE_NS
    }
}

/// How much a connection matters beside others.
pub(super) fn worth_of(state: State) -> u32 {
    Class::of(state) as u32
}

/// Lists of the table for each owner.
const LISTS: u32 = Class::COUNT * BUCKETS;

/// What a tenant holds of the table.
#[derive(Clone, Copy, Debug, Default)]
struct Holding {
    /// Whether it has services.
    is_in: bool,
    entries: u32,
    half_open: u32,
    /// The bucket whose old entries go next.
    cursor: u32,
}

/// Why there is no entry for a new connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

/// An entry that is gone: its place, the connection, and what was known of it.
pub type Removed = (Id, Key, Entry);

/// Who opens connections: a tenant's slot, and one of its buckets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opener {
    /// The tenant.
    pub owner: u32,
    /// Below [`BUCKETS`].
    pub bucket: u32,
}

/// The table. Owners are tenants' slots.
#[derive(Debug)]
pub struct Connections {
    table: Table<Key, Entry>,
    holdings: Vec<Holding>,
    /// Owners with services.
    owners: u32,
    /// Entries of owners beyond their own part.
    common: u32,
}

impl Connections {
    /// An empty table of at most `most` entries, under a key.
    pub(crate) fn new(keyed: Keyed, most: u32) -> Connections {
        Connections { table: Table::new(keyed, most), holdings: Vec::new(), owners: 0, common: 0 }
    }

    /// Changes how many there may be: at once, or as soon as the table has grown a part at a time
    /// ([`Connections::go_on`]).
    pub fn grow_to(&mut self, most: u32) {
        self.table.grow_to(most);
        self.table.reserve_lists(self.holdings.len() * LISTS as usize);
        self.recount();
    }

    /// Whether the table becomes longer.
    #[must_use]
    pub fn is_growing(&self) -> bool {
        self.table.is_growing()
    }

    /// Makes a part of what it becomes longer by; see [`Table::go_on`].
    pub fn go_on(&mut self) -> u32 {
        let most = self.table.most();
        let done = self.table.go_on();
        if self.table.most() != most {
            self.recount();
        }
        done
    }

    /// What it does not need any more since it grew.
    pub fn take_left(&mut self) -> Option<Left> {
        self.table.take_left()
    }

    /// Says whether an owner has services. What it has in the table stays until it is removed.
    pub fn set_owner(&mut self, owner: u32, is_in: bool) {
        if self.holdings.len() <= owner as usize {
            self.holdings.resize(owner as usize + 1, Holding::default());
        }
        let holding = &mut self.holdings[owner as usize];
        if holding.is_in != is_in {
            holding.is_in = is_in;
            self.owners = if is_in { self.owners + 1 } else { self.owners - 1 };
        }
        self.table.reserve_lists(self.holdings.len() * LISTS as usize);
        self.recount();
    }

    /// Entries that an owner may have whatever others do.
    #[must_use]
    pub fn own_part(&self) -> u32 {
        self.table.most() / 2 / self.owners.max(1)
    }

    /// Entries that one owner may have if no other has any.
    #[must_use]
    pub fn most_of_one(&self) -> u32 {
        self.own_part() + self.common_part()
    }

    fn common_part(&self) -> u32 {
        self.table.most() - self.own_part() * self.owners.max(1)
    }

    fn recount(&mut self) {
        let own = self.own_part();
        self.common = self.holdings.iter().map(|holding| holding.entries.saturating_sub(own)).sum();
    }

    /// How many there are, and how many fit.
    #[must_use]
    pub fn len(&self) -> (u32, u32) {
        (self.table.len(), self.table.most())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Owners' numbers are below this.
    #[must_use]
    pub fn owners(&self) -> u32 {
        self.holdings.len() as u32
    }

    /// How many an owner has.
    #[must_use]
    pub fn count(&self, owner: u32) -> u32 {
        self.holdings.get(owner as usize).map_or(0, |holding| holding.entries)
    }

    /// Where a connection is.
    #[must_use]
    #[inline]
    pub fn find(&self, key: &Key) -> Option<Id> {
        self.table.find(key)
    }

    /// The table itself, to read ahead.
    #[must_use]
    pub(super) fn table(&self) -> &Table<Key, Entry> {
        &self.table
    }

    /// The hash of a connection, for [`Connections::find_hashed`] and [`Connections::insert`].
    #[must_use]
    #[inline]
    pub(super) fn hash(&self, key: &Key) -> u64 {
        self.table.hash(key)
    }

    /// The same of one that is in the table.
    #[must_use]
    #[inline]
    pub(super) fn hash_of(&self, id: Id) -> Option<u64> {
        self.table.hash_of(id)
    }

    /// Where a connection is, whose hash is known.
    #[must_use]
    #[inline]
    pub(super) fn find_hashed(&self, hash: u64, key: &Key) -> Option<Id> {
        self.table.find_hashed(hash, key)
    }

    /// What is known of it.
    #[must_use]
    #[inline]
    pub fn get(&self, id: Id) -> Option<&Entry> {
        self.table.get(id)
    }

    /// The same where the entry still is that of a connection, and not another's by now.
    #[must_use]
    pub fn get_of(&self, id: Id, key: &Key) -> Option<&Entry> {
        self.table.get(id).filter(|_| self.table.is_of(id, key))
    }

    /// When it was seen last, to within a second.
    #[must_use]
    pub fn seen(&self, id: Id) -> Option<Instant> {
        self.table.seen(id)
    }

    /// Entries' places are below this.
    #[must_use]
    pub fn places(&self) -> u32 {
        self.table.places()
    }

    /// The entry at a place, if there is one, and whose it is.
    #[must_use]
    pub fn at(&self, id: Id) -> Option<(u32, &Key, &Entry)> {
        let list = self.table.list(id)?;
        Some((list / LISTS, self.table.key(id)?, self.table.get(id)?))
    }

    /// The same to change it, whose it is, and when it was seen last; [`Connections::saw`] follows.
    #[inline(always)]
    pub fn get_mut(&mut self, id: Id) -> Option<(&Key, &mut Entry, Instant)> {
        self.table.entry_mut(id)
    }

    /// Changes an entry, which was seen `now`. What it was before, and is.
    #[inline]
    pub fn update(&mut self, now: Instant, id: Id, change: impl FnOnce(&mut Entry)) -> Option<(Entry, Entry)> {
        let (_, entry, seen) = self.get_mut(id)?;
        let before = *entry;
        change(entry);
        let change = (before, *entry);
        self.saw(now, (id, seen), change);
        Some(change)
    }

    /// An entry was seen, and before that then: it is in the list of its class, and not among the
    /// oldest there.
    #[inline(always)]
    pub fn saw(&mut self, now: Instant, (id, seen): (Id, Instant), (before, after): (Entry, Entry)) {
        if before.state != after.state || now.since(seen) >= SEEN_NS {
            self.touch(now, id, (before, after));
        }
    }

    #[inline(never)]
    fn touch(&mut self, now: Instant, id: Id, (before, after): (Entry, Entry)) {
        let Some(list) = self.table.list(id) else { return };
        let opener = Opener { owner: list / LISTS, bucket: list % BUCKETS };
        let holding = &mut self.holdings[opener.owner as usize];
        holding.half_open += u32::from(after.state.is_half_open());
        holding.half_open -= u32::from(before.state.is_half_open());
        if after.is_fresh()
            && before.state == after.state
            && let Some(entry) = self.table.get_mut(id)
        {
            entry.settle();
        }
        let class = Class::of(after.state);
        match class {
            Class::Open | Class::TwoWay => self.table.see(now, id, list_of(opener, class), ORDER),
            _ => self.table.touch(now, id, list_of(opener, class)),
        }
    }

    /// Adds a connection; what had to go for it, or for its age, is handed to `gone`. `seen` is
    /// when it was seen last, which is `now` but of one that was handed over; `hash` is that of
    /// `key` ([`Connections::hash`]).
    ///
    /// # Errors
    /// All entries that it could replace are worth more.
    pub fn insert(
        &mut self,
        (now, seen): (Instant, Instant),
        opener: Opener,
        (hash, key): (u64, Key),
        entry: Entry,
        mut gone: impl FnMut(Removed),
    ) -> Result<Id, NoRoom> {
        let owner = opener.owner;
        self.forget(now, opener, &mut gone);
        let half_open = self.holdings[owner as usize].half_open;
        if entry.state.is_half_open() && half_open >= self.most_of_one() / HALF_OPEN_PART {
            let id = self.oldest_of(now, owner, Class::HalfOpen).ok_or(NoRoom)?;
            self.remove(owner, id).map(&mut gone);
        }
        if self.in_bucket(opener) >= self.most_of_one() / BUCKET_PART {
            let id = self.least_worth(now, |all, class| all.table.oldest(list_of(opener, class))).ok_or(NoRoom)?;
            self.remove(owner, id).map(&mut gone);
        }
        if !self.has_room(owner) {
            let id = self.least_worth(now, |all, class| all.oldest_of(now, owner, class)).ok_or(NoRoom)?;
            self.remove(owner, id).map(&mut gone);
        }
        let list = list_of(opener, Class::of(entry.state));
        let id = self.table.insert_hashed(seen, list, (hash, key), entry).map_err(|_| NoRoom)?;
        let own = self.own_part();
        let holding = &mut self.holdings[owner as usize];
        holding.entries += 1;
        holding.half_open += u32::from(entry.state.is_half_open());
        self.common += u32::from(holding.entries > own);
        Ok(id)
    }

    /// Whether [`Connections::insert`] would find room for one more, where the entry `replaced`
    /// goes before. What would be forgotten for its age is among what may go.
    pub(super) fn has_place(&self, now: Instant, opener: Opener, replaced: Option<Id>) -> bool {
        let of_bucket = self.in_bucket(opener) - u32::from(replaced.is_some_and(|id| self.bucket(id) == opener.bucket));
        let oldest_here = |all: &Self, class| all.table.oldest(list_of(opener, class));
        let oldest = |all: &Self, class| all.oldest_of(now, opener.owner, class);
        (of_bucket < self.most_of_one() / BUCKET_PART || self.least_worth(now, oldest_here).is_some())
            && (replaced.is_some() || self.has_room(opener.owner) || self.least_worth(now, oldest).is_some())
    }

    /// Removes an entry of an owner.
    pub fn remove(&mut self, owner: u32, id: Id) -> Option<Removed> {
        let (key, entry) = self.table.remove(id)?;
        let own = self.own_part();
        let holding = &mut self.holdings[owner as usize];
        self.common -= u32::from(holding.entries > own);
        holding.entries -= 1;
        holding.half_open -= u32::from(entry.state.is_half_open());
        Some((id, key, entry))
    }

    /// Removes what is too old of an owner: at most a few of each class, of the opener's bucket and
    /// of one other, so that it is each one's turn.
    pub fn forget(&mut self, now: Instant, opener: Opener, gone: &mut impl FnMut(Removed)) {
        let holding = &mut self.holdings[opener.owner as usize];
        holding.cursor = (holding.cursor + 1) % BUCKETS;
        for bucket in [opener.bucket, holding.cursor] {
            for class in Class::BY_WORTH {
                for _ in 0..FORGET {
                    let oldest = self.table.oldest(list_of(Opener { bucket, ..opener }, class));
                    let is_old = |id: &Id| {
                        let age_ns = self.table.get(*id).map_or(0, |entry| entry.state.age_ns());
                        self.table.seen(*id).is_some_and(|seen| now.since(seen) >= age_ns)
                    };
                    let Some(id) = oldest.filter(is_old) else { break };
                    self.remove(opener.owner, id).map(&mut *gone);
                }
            }
        }
    }

    /// Connections of an owner, those that matter most first, and of one bucket those that were
    /// seen last.
    pub fn of(&self, owner: u32) -> impl Iterator<Item = (Id, &Key, &Entry)> {
        let classes = Class::BY_WORTH.into_iter().rev();
        let lists =
            classes.flat_map(move |class| (0..BUCKETS).map(move |bucket| list_of(Opener { owner, bucket }, class)));
        lists.flat_map(|list| self.table.newest_first(list))
    }

    fn has_room(&self, owner: u32) -> bool {
        self.holdings[owner as usize].entries < self.own_part() || self.common < self.common_part()
    }

    /// The bucket of an entry.
    pub(super) fn bucket(&self, id: Id) -> u32 {
        self.table.list(id).unwrap_or_default() % BUCKETS
    }

    /// What an entry is worth that may go for others, the least first; `None` of one that stays.
    pub(super) fn worth(&self, now: Instant, id: Id) -> Option<(u32, Instant)> {
        let (class, seen) = (Class::of(self.table.get(id)?.state), self.table.seen(id)?);
        class.may_go(now, seen).then_some((class as u32, seen))
    }

    fn in_bucket(&self, opener: Opener) -> u32 {
        Class::BY_WORTH.into_iter().map(|class| self.table.count(list_of(opener, class))).sum()
    }

    /// The first that may go, the classes worth least asked first.
    fn least_worth(&self, now: Instant, of: impl Fn(&Self, Class) -> Option<Id>) -> Option<Id> {
        Class::BY_WORTH.into_iter().find_map(|class| {
            let id = of(self, class)?;
            class.may_go(now, self.table.seen(id)?).then_some(id)
        })
    }

    /// The oldest of a class, of the bucket that has most of those that may go.
    fn oldest_of(&self, now: Instant, owner: u32, class: Class) -> Option<Id> {
        let first = list_of(Opener { owner, bucket: 0 }, class);
        let counts = self.table.counts(first..first + BUCKETS);
        let most = counts.iter().copied().max().filter(|&most| most > 0)?;
        let is_kept = matches!(class, Class::Open | Class::TwoWay);
        let aged = |list: u32| self.table.aged(now, list, EVICTABLE_NS);
        if !is_kept {
            let fullest = counts.iter().rposition(|&count| count == most)?;
            return self.table.oldest(first + fullest as u32);
        }
        let may_go = counts.iter().zip(first..).filter(|&(&count, list)| count > 0 && aged(list).is_some());
        self.table.oldest(may_go.max_by_key(|&(count, _)| count)?.1)
    }
}

/// The list of a bucket's entries of a class.
const fn list_of(opener: Opener, class: Class) -> u32 {
    opener.owner * LISTS + class as u32 * BUCKETS + opener.bucket
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::{open, syn};
    use super::*;

    const AT_ZERO: (Instant, Instant) = (Instant(0), Instant(0));

    fn key(n: u32) -> Key {
        let mut client = [0; 16];
        client[..4].copy_from_slice(&n.to_be_bytes());
        Key { client, port: 1, front: 0 }
    }

    fn hashed(all: &Connections, n: u32) -> (u64, Key) {
        (all.hash(&key(n)), key(n))
    }

    fn at(s: u64) -> Instant {
        Instant(s * SECOND)
    }

    fn from(owner: u32, bucket: u32) -> Opener {
        Opener { owner, bucket }
    }

    fn table(most: u32, owners: u32) -> Connections {
        let mut all = Connections::new(Keyed::new(1), most);
        (0..owners).for_each(|owner| all.set_owner(owner, true));
        all.grow_to(most);
        while all.go_on() > 0 {}
        all
    }

    fn ask(all: &mut Connections, s: u64, opener: Opener, n: u32) -> Result<Id, NoRoom> {
        all.insert((at(s), at(s)), opener, hashed(all, n), syn(), |_| ())
    }

    fn make_open(all: &mut Connections, s: u64, opener: Opener, n: u32) -> Result<Id, NoRoom> {
        let id = ask(all, s, opener, n)?;
        all.update(at(s), id, |entry| *entry = open());
        Ok(id)
    }

    #[test]
    fn an_open_connection_is_not_evicted_by_a_flood_of_its_tenant_nor_by_another() {
        let mut all = table(64, 2);
        let mut lost = Vec::new();
        let opened: Vec<u32> = (0..8).collect();
        for &n in &opened {
            make_open(&mut all, 0, from(0, n), n).unwrap();
        }
        for n in 100..1000 {
            let now = (at(1), at(1));
            let key = hashed(&all, n);
            all.insert(now, from(0, n % BUCKETS), key, syn(), |gone| lost.push(gone)).unwrap();
        }
        assert!(lost.iter().all(|(.., entry)| entry.state == State::Asked));
        assert_eq!(all.count(0), 8 + all.most_of_one() / 4, "half-open ones have a quarter");
        // The other tenant opens as many as it can: what is the first one's stays.
        for n in 2000..3000 {
            let _ = make_open(&mut all, 1, from(1, n % BUCKETS), n);
        }
        assert!(opened.iter().all(|&n| all.find(&key(n)).is_some()));
        assert!(all.count(1) <= all.most_of_one() && all.count(0) + all.count(1) <= 64);
        // And the first one still gets what is its own.
        for n in 5000..5100 {
            let _ = make_open(&mut all, 1, from(0, n % BUCKETS), n);
        }
        assert!(all.count(0) >= all.own_part());
        assert_eq!(ask(&mut all, 1, from(0, 0), 9000), Err(NoRoom));
        assert!(ask(&mut all, 62, from(0, 0), 9001).is_ok(), "after a minute one that is idle goes");
    }

    #[test]
    fn a_flood_evicts_its_own_and_leaves_half_of_the_table_to_others() {
        let mut all = table(1024, 1);
        let quiet: Vec<u32> = (0..40).collect();
        for &n in &quiet {
            ask(&mut all, 0, from(0, 1 + n % 20), n).unwrap();
        }
        for n in 1000..10_240 {
            ask(&mut all, 1, from(0, 0), n).unwrap();
        }
        assert!(quiet.iter().all(|&n| all.find(&key(n)).is_some()), "asked before the flood, and still there");
        // One that opens all that it asks for.
        for n in 20_000..40_000 {
            let _ = make_open(&mut all, 2, from(0, 0), n);
        }
        assert_eq!(all.in_bucket(from(0, 0)), all.most_of_one() / 2);
        for n in 50_000..50_400 {
            make_open(&mut all, 2, from(0, 30), n).unwrap();
        }
        assert!((50_000..50_400).all(|n| all.find(&key(n)).is_some()));
    }

    #[test]
    fn what_is_old_is_forgotten_by_its_class() {
        let mut all = table(64, 1);
        make_open(&mut all, 0, from(0, 5), 1).unwrap();
        ask(&mut all, 0, from(0, 9), 2).unwrap();
        let mut gone = Vec::new();
        for _ in 0..BUCKETS {
            all.forget(at(11), from(0, 0), &mut |(_, key, _)| gone.push(key));
        }
        assert_eq!(gone, [key(2)]);
        all.forget(at(7441), from(0, 5), &mut |(_, key, _)| gone.push(key));
        assert_eq!(gone, [key(2), key(1)]);
        assert!(all.is_empty());
        let third = hashed(&all, 3);
        let id = all.insert(AT_ZERO, from(0, 1), third, syn(), |_| ()).unwrap();
        assert_eq!(all.remove(0, id).map(|(_, key, _)| key), Some(key(3)));
        assert_eq!(all.count(0), 0);
    }

    #[test]
    fn a_connection_takes_80_bytes() {
        assert_eq!(Table::<Key, Entry>::bytes_of(1 << 20) / (1 << 20), 80);
        assert!(Table::<Key, Entry>::bytes_of(DEFAULT_CONNECTIONS) / u64::from(DEFAULT_CONNECTIONS) <= 80);
    }
}
