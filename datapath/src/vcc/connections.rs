//! The table of connections: one entry for each connection of each endpoint.
//!
//! Strangers choose its keys, so it is bounded, keyed and aged ([`crate::table`]), and shared: an
//! endpoint and its tenant may have as many together as they leave free (dynamic thresholds,
//! Choudhury and Hahne 1998), and [`LEAST`] in any case, so who comes later finds some. Of those
//! that are not open an endpoint has at most [`HALF_OPEN_MOST`] that its guest began, and as many
//! that strangers began. A new one makes room among the entries of its endpoint, and of another by
//! turns: those that linger after their end, are half-open for too long, or idle, which is a longer
//! time where half of the table is free. Never is an open connection that lives forgotten; a new
//! one that finds no room is left untouched, and counted.

use super::Owner;
use super::connection::{Connection, Treatment, bit};
use crate::ids::{EndpointId, TenantId};
use crate::random::{Keyed, dice};
use crate::table::{Id, Left, Table};
use crate::units::Instant;
use crate::wire::{FlowKey, TcpFlow};
use std::hash::{Hash, Hasher};
use std::ops::Range;

/// Entries that an endpoint may have whatever others of its tenant have, while any are free.
const LEAST: u32 = 64;
/// Entries of an endpoint that are not open yet, of either class.
const HALF_OPEN_MOST: u32 = 1024;
/// How long an entry stays after its end, in nanoseconds: for retransmissions of the last segments.
const LINGER_NS: u64 = 2_000_000_000;
/// How long a handshake may take: Linux's five retransmissions of a SYN-ACK end after 63 s.
const HALF_OPEN_NS: u64 = 75_000_000_000;
/// The same where there is no room.
const HALF_OPEN_PRESSED_NS: u64 = 3_000_000_000;
/// How long an open connection may say nothing, in nanoseconds: 2 h 4 min (RFC 5382, section 5).
const IDLE_NS: u64 = 7_440_000_000_000;
/// The same where half of the table is taken.
const IDLE_PRESSED_NS: u64 = 900_000_000_000;
/// An entry's place in the order of age is renewed so often at most, in nanoseconds. That of an
/// open connection more seldom, so that of thousands by turns few take the longer way for it.
const TOUCH_NS: u64 = 1_000_000_000;
const TOUCH_OPEN_NS: u64 = 8_000_000_000;
/// Entries of an endpoint that one new one looks at to make room.
const SWEEP: usize = 8;
/// Entries that are looked at for one that may go, where the oldest may not.
const LOOK: usize = 16;

/// A connection of an endpoint, in the direction in which its guest sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Whose it is.
    pub endpoint: EndpointId,
    /// Addresses and ports.
    pub flow: FlowKey,
}

impl Key {
    /// That of a connection's successor: see [`super::successor`].
    #[must_use]
    pub(super) fn second(self) -> Key {
        Key { flow: self.flow.second(), ..self }
    }
}

/// All are of TCP.
impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.flow.hash_with(self.endpoint.0, state);
    }
}

/// The lists of an endpoint, in which its entries grow old.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The guest has asked for it; the handshake is not complete.
    Asked,
    /// The same where its peer has asked, and has not acknowledged the guest's answer.
    Offered,
    /// It is open.
    Open,
    /// Both sides have ended it, or one has aborted it.
    Lingering,
}

impl Class {
    /// Every class.
    pub const ALL: [Class; 4] = [Class::Asked, Class::Offered, Class::Open, Class::Lingering];

    /// That of a connection which is not open yet.
    fn opening(connection: &Connection) -> Class {
        if connection.is(bit::ACTIVE) { Class::Asked } else { Class::Offered }
    }

    /// That of a connection that was not aborted.
    #[inline]
    pub(super) fn of(connection: &Connection) -> Class {
        const BOTH: u16 = bit::FIN_IN | bit::FIN_OUT;
        if connection.bits & BOTH == BOTH {
            return Class::Lingering;
        }
        // Whoever has not had the answer may be a stranger under a forged address.
        let is_half_open = !connection.is(bit::ACTIVE) && connection.una == connection.first[0];
        if is_open(connection) && !is_half_open { Class::Open } else { Class::opening(connection) }
    }
}

const CLASSES: u32 = Class::ALL.len() as u32;

/// Guesses that share a place. Where more connections do, these take it from each other at each
/// turn: of 10 000 by turns that are 4 or so, and of 65 536 one in seven.
const SHARING: usize = 4;
/// Guesses where there is a place for each of so many connections.
type Guesses = [Id; SHARING];
/// Places for guesses at most: 512 KiB.
const PLACES_MOST: u32 = 32_768;

/// How many places there are for guesses, a power of two.
fn guesses_of(entries: u32) -> usize {
    entries.div_ceil(2).next_power_of_two().min(PLACES_MOST) as usize
}

#[inline]
fn list(endpoint: EndpointId, class: Class) -> u32 {
    endpoint.0 * CLASSES + class as u32
}

/// Why there is no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

/// See the module.
#[derive(Debug)]
pub struct Connections {
    table: Table<Key, Connection>,
    /// Guesses where a connection is, of those that share a place, the one that was found last
    /// first: most are right, and cost a tenth of what the table's hash does. One that is wrong
    /// costs a look.
    guesses: Vec<Guesses>,
    guess_key: [u64; 2],
    /// By tenant, how many entries.
    tenants: Vec<u32>,
    /// By endpoint, whose it was when it last had a new entry.
    owners: Vec<TenantId>,
    /// Of these, the one whose old entries are looked at next.
    turn: usize,
}

impl Connections {
    /// An empty table of no more than `most` entries.
    pub(crate) fn new(seed: u64, most: u32) -> Connections {
        let mut state = seed;
        let guess_key = std::array::from_fn(|_| u64::from(dice(&mut state)) << 32 | u64::from(dice(&mut state)));
        Connections {
            table: Table::new(Keyed::new(seed), most),
            guesses: Vec::new(),
            guess_key,
            tenants: Vec::new(),
            owners: Vec::new(),
            turn: 0,
        }
    }

    /// Memory of a table of so many connections, in bytes.
    #[must_use]
    pub fn bytes_of(entries: u32) -> u64 {
        Table::<Key, Connection>::bytes_of(entries) + (size_of::<Guesses>() * guesses_of(entries)) as u64
    }

    /// Changes how many there may be, for which memory is taken: at once, or a part at a time
    /// ([`Connections::go_on`]).
    pub fn grow_to(&mut self, most: u32, endpoints: usize, tenants: usize) {
        self.table.grow_to(most);
        self.table.reserve_lists(endpoints * CLASSES as usize);
        if self.guesses.len() < guesses_of(most) {
            self.guesses.resize(guesses_of(most), [Id(0); SHARING]);
        }
        self.tenants.reserve(tenants.saturating_sub(self.tenants.len()));
        if self.tenants.len() < tenants {
            self.tenants.resize(tenants, 0);
        }
        if self.owners.len() < endpoints {
            self.owners.resize(endpoints, TenantId(0));
        }
    }

    /// Whether the table becomes longer.
    #[must_use]
    pub fn is_growing(&self) -> bool {
        self.table.is_growing()
    }

    /// Makes a part of what it becomes longer by; see [`Table::go_on`].
    pub fn go_on(&mut self) -> u32 {
        self.table.go_on()
    }

    /// What it does not need any more since it grew.
    pub fn take_left(&mut self) -> Option<Left> {
        self.table.take_left()
    }

    /// Whether memory was taken.
    pub(super) fn has_room_for_any(&self) -> bool {
        self.table.most() > 0
    }

    /// How many entries there may be.
    #[must_use]
    pub fn most(&self) -> u32 {
        self.table.most()
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.table.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// How many of an endpoint are in a class.
    #[must_use]
    pub fn count(&self, endpoint: EndpointId, class: Class) -> u32 {
        self.table.count(list(endpoint, class))
    }

    /// Where a connection's entry is.
    #[must_use]
    #[inline]
    pub fn find(&self, key: &Key) -> Option<Id> {
        self.table.find(key)
    }

    /// A hash of where a flow goes, under a key that nobody knows.
    #[must_use]
    pub(super) fn destination(&self, flow: &FlowKey) -> u64 {
        flow.destination(self.guess_key)
    }

    /// Where guesses are.
    #[inline(always)]
    fn place(&self, guess: u64) -> usize {
        guess as usize & self.guesses.len().wrapping_sub(1)
    }

    /// The same, for one frame of many: where it was found last is tried first.
    #[must_use]
    pub fn find_again(&mut self, key: &Key) -> Option<Id> {
        let place = self.place(key.flow.guess(self.guess_key, key.endpoint.0));
        let guesses = *self.guesses.get(place)?;
        let at = guesses.iter().position(|&id| self.table.is_of(id, key));
        let found = at.map_or_else(|| self.find(key), |at| Some(guesses[at]))?;
        // Those before it make room.
        let guesses = &mut self.guesses[place][..=at.unwrap_or(SHARING - 1)];
        guesses.rotate_right(1);
        guesses[0] = found;
        Some(found)
    }

    /// The entry of an open connection that has its place in the order of age, where it is here.
    #[must_use]
    #[inline(always)]
    pub(crate) fn used(
        &mut self,
        now: Instant,
        id: Id,
        endpoint: EndpointId,
        flow: impl TcpFlow,
    ) -> Option<&mut Connection> {
        // A list is of one endpoint.
        let open = (list(endpoint, Class::Open), TOUCH_OPEN_NS);
        if self.table.is_fresh_and(now, id, open, |key| flow.is(&key.flow)) { self.table.fresh_mut(id) } else { None }
    }

    /// The same where a guess is right.
    #[must_use]
    #[inline(always)]
    pub(crate) fn guess(
        &mut self,
        now: Instant,
        endpoint: EndpointId,
        flow: impl TcpFlow,
    ) -> Option<(Id, &mut Connection)> {
        let guesses = self.guesses.get(self.place(flow.guess(self.guess_key, endpoint.0)))?;
        let open = (list(endpoint, Class::Open), TOUCH_OPEN_NS);
        for &id in guesses {
            // Each by itself, so that what was looked at is not looked at again.
            if self.table.is_fresh_and(now, id, open, |key| flow.is(&key.flow)) {
                return self.table.fresh_mut(id).map(|connection| (id, connection));
            }
        }
        None
    }

    /// An entry.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, id: Id) -> Option<&mut Connection> {
        self.table.get_mut(id)
    }

    /// The same, to look at.
    #[must_use]
    pub fn get(&self, id: Id) -> Option<&Connection> {
        self.table.get(id)
    }

    /// All entries, by their places.
    pub fn iter(&self) -> impl Iterator<Item = (Id, &Key, &Connection)> {
        self.table.iter()
    }

    /// The entries at these places.
    pub fn iter_in(&self, places: Range<u32>) -> impl Iterator<Item = (Id, &Key, &Connection)> {
        self.table.iter_in(places)
    }

    /// Places of entries are below this.
    #[must_use]
    pub fn places(&self) -> u32 {
        self.table.places()
    }

    /// How long ago an entry was used, or made.
    #[must_use]
    pub(super) fn age_ns(&self, now: Instant, id: Id) -> u64 {
        self.table.seen(id).map_or(u64::MAX, |seen| now.since(seen))
    }

    /// Whose an entry is.
    #[must_use]
    pub fn key(&self, id: Id) -> Option<&Key> {
        self.table.key(id)
    }

    /// All entries of an endpoint in a class, the newest first.
    pub fn of(&self, endpoint: EndpointId, class: Class) -> impl Iterator<Item = (&Key, &Connection)> {
        self.table.newest_first(list(endpoint, class)).map(|(_, key, value)| (key, value))
    }

    /// Whether an owner has room for one more, or something old to forget for it.
    #[must_use]
    pub fn may_insert(&self, now: Instant, Owner { tenant, endpoint }: Owner, connection: &Connection) -> bool {
        let is_aged = |(class, age_ns)| self.old(now, endpoint, class, age_ns).is_some();
        self.has_room(tenant, endpoint, Class::opening(connection)) || ages(true, true).into_iter().any(is_aged)
    }

    /// Adds a half-open connection.
    ///
    /// # Errors
    /// The endpoint, its tenant or the table has no room.
    pub fn insert(&mut self, now: Instant, tenant: TenantId, key: Key, connection: Connection) -> Result<Id, NoRoom> {
        self.insert_as(now, tenant, key, connection, Class::opening(&connection))
    }

    /// Adds a connection of a class.
    fn insert_as(
        &mut self,
        now: Instant,
        tenant: TenantId,
        key: Key,
        connection: Connection,
        class: Class,
    ) -> Result<Id, NoRoom> {
        let pressed = !self.has_room(tenant, key.endpoint, class);
        self.sweep(now, tenant, key.endpoint, pressed);
        let id = self.put(now, tenant, key, connection, class);
        // Another's are no room for this one, which would otherwise depend on whose turn it is.
        self.sweep_another(now);
        id
    }

    /// Adds a connection of a class where there is room: nothing is forgotten for it.
    ///
    /// # Errors
    /// See [`Connections::insert`].
    pub fn put(
        &mut self,
        now: Instant,
        tenant: TenantId,
        key: Key,
        connection: Connection,
        class: Class,
    ) -> Result<Id, NoRoom> {
        let endpoint = key.endpoint;
        if !self.has_room(tenant, endpoint, class) {
            return Err(NoRoom);
        }
        let id = self.table.insert(now, list(endpoint, class), key, connection).map_err(|_| NoRoom)?;
        if let Some(count) = self.tenants.get_mut(tenant.0 as usize) {
            *count += 1;
        }
        if let Some(owner) = self.owners.get_mut(endpoint.0 as usize) {
            *owner = tenant;
        }
        Ok(id)
    }

    /// An entry was used, and is in this class from now on.
    #[inline]
    pub fn touch(&mut self, now: Instant, id: Id, endpoint: EndpointId, class: Class) {
        let list = list(endpoint, class);
        let often_ns = if class == Class::Open { TOUCH_OPEN_NS } else { TOUCH_NS };
        if !self.table.is_fresh(now, id, list, often_ns) {
            self.table.touch(now, id, list);
        }
    }

    /// Forgets all of an endpoint that goes.
    pub fn clear(&mut self, tenant: TenantId, endpoint: EndpointId) {
        for class in Class::ALL {
            while let Some(id) = self.table.oldest(list(endpoint, class)) {
                self.remove(tenant, id);
            }
        }
    }

    /// Forgets all of an endpoint, but for connections whose sides would not understand each other:
    /// these go on without ECN.
    pub(super) fn silence(&mut self, tenant: TenantId, endpoint: EndpointId) {
        let of_class = |class| self.table.oldest_first(list(endpoint, class)).map(|(id, ..)| id);
        let all: Vec<Id> = Class::ALL.into_iter().flat_map(of_class).collect();
        for id in all {
            match self.table.get_mut(id) {
                Some(connection) if connection.is_between() => connection.treatment = Treatment::Plain,
                _ => self.remove(tenant, id),
            }
        }
    }

    /// Forgets what is old of an endpoint, a few entries at most.
    pub(super) fn age(&mut self, now: Instant, Owner { tenant, endpoint }: Owner) {
        self.sweep(now, tenant, endpoint, false);
    }

    /// Forgets an entry.
    pub fn remove(&mut self, tenant: TenantId, id: Id) {
        if self.table.remove(id).is_some()
            && let Some(count) = self.tenants.get_mut(tenant.0 as usize)
        {
            *count = count.saturating_sub(1);
        }
    }

    /// How many entries an endpoint has.
    pub(super) fn of_endpoint(&self, endpoint: EndpointId) -> u32 {
        Class::ALL.iter().map(|&class| self.count(endpoint, class)).sum()
    }

    fn has_room(&self, tenant: TenantId, endpoint: EndpointId, class: Class) -> bool {
        let free = self.table.most().saturating_sub(self.table.len());
        let of_tenant = self.tenants.get(tenant.0 as usize).copied().unwrap_or(0);
        let is_opening = matches!(class, Class::Asked | Class::Offered);
        let of_endpoint = self.of_endpoint(endpoint);
        let has_part = of_endpoint < LEAST && free > 0 || of_endpoint + of_tenant < free;
        has_part && !(is_opening && self.count(endpoint, class) >= HALF_OPEN_MOST)
    }

    /// Forgets what is old of an endpoint by turns: who opens nothing more makes no room by itself.
    fn sweep_another(&mut self, now: Instant) {
        let Some(&tenant) = self.owners.get(self.turn) else {
            self.turn = 0;
            return;
        };
        // One that has more such entries has its turn once more.
        if self.sweep(now, tenant, EndpointId(self.turn as u32), false) == 0 {
            self.turn += 1;
        }
    }

    /// The oldest of a class that may go. Those whose sides do not understand each other stay for
    /// as long as an idle connection lives at most, whatever else finds no room.
    fn old(&self, now: Instant, endpoint: EndpointId, class: Class, age_ns: u64) -> Option<Id> {
        let list = list(endpoint, class);
        let id = self.table.aged(now, list, age_ns)?;
        let stays = |id, connection: &Connection| {
            let is_idle = self.table.seen(id).is_some_and(|seen| now.since(seen) >= IDLE_NS);
            class == Class::Open && connection.is_between() && !is_idle
        };
        if !self.table.get(id).is_some_and(|connection| stays(id, connection)) {
            return Some(id);
        }
        let oldest = self.table.oldest_first(list).take(LOOK);
        let aged = oldest.filter(|&(id, ..)| self.table.seen(id).is_some_and(|seen| now.since(seen) >= age_ns));
        aged.filter(|&(id, _, connection)| !stays(id, connection)).map(|(id, ..)| id).next()
    }

    /// Forgets what is old of the endpoint, a few entries at most; says how many.
    fn sweep(&mut self, now: Instant, tenant: TenantId, endpoint: EndpointId, pressed: bool) -> usize {
        let mut left = SWEEP;
        let is_half_full = self.table.len() > self.table.most() / 2;
        for (class, age_ns) in ages(pressed, pressed || is_half_full) {
            while left > 0
                && let Some(id) = self.old(now, endpoint, class, age_ns)
            {
                self.remove(tenant, id);
                left -= 1;
            }
        }
        SWEEP - left
    }
}

/// How old an entry of a class is before it may go.
fn ages(pressed: bool, idle_goes: bool) -> [(Class, u64); 4] {
    let (half_open_ns, linger_ns) = if pressed { (HALF_OPEN_PRESSED_NS, 0) } else { (HALF_OPEN_NS, LINGER_NS) };
    [
        (Class::Lingering, linger_ns),
        (Class::Offered, half_open_ns),
        (Class::Asked, half_open_ns),
        (Class::Open, if idle_goes { IDLE_PRESSED_NS } else { IDLE_NS }),
    ]
}

/// Whether a connection that is treated so is open.
#[must_use]
#[inline]
pub fn is_open(connection: &Connection) -> bool {
    !matches!(connection.treatment, Treatment::Opening)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vcc::segment::Options;
    use crate::wire::build::eth;
    use crate::wire::{Mac, parse};
    use core::net::Ipv4Addr;

    fn key(port: u16) -> Key {
        let addresses = [1, 2].map(|number| Ipv4Addr::new(10, 0, 0, number));
        let bytes = eth(Mac([2; 6]), Mac([4; 6])).ipv4(addresses[0], addresses[1]).tcp(port, 80, 1).bytes();
        let flow = FlowKey::of(&bytes, &parse(&bytes).expect("sound")).expect("TCP");
        Key { endpoint: EndpointId(0), flow }
    }

    #[test]
    fn two_tenants_with_all_that_they_get_leave_a_third_its_part() {
        let mut all = Connections::new(1, 0);
        all.grow_to(16_384, 16, 3);
        while all.go_on() > 0 {}
        let open = |all: &mut Connections, tenant: u32, endpoint: u32| {
            let connection = Connection::new(&Options::default());
            let took = (0..8000u16).filter(|&port| {
                let key = Key { endpoint: EndpointId(endpoint), ..key(port) };
                all.insert_as(Instant(1), TenantId(tenant), key, connection, Class::Open).is_ok()
            });
            took.count()
        };
        for endpoint in 0..10 {
            open(&mut all, endpoint / 5, endpoint);
        }
        let third = open(&mut all, 2, 10);
        assert!(third >= 16_384 / 16, "{third}");
        let neighbour = open(&mut all, 0, 11);
        assert_eq!(neighbour, LEAST as usize, "of a tenant whose others have much");
    }

    #[test]
    fn who_is_idle_is_forgotten_sooner_where_half_of_the_table_is_taken() {
        const MINUTE: u64 = 60_000_000_000;
        for (others, is_between, stays) in [(6, false, true), (7, false, false), (7, true, true)] {
            let mut all = Connections::new(1, 0);
            all.grow_to(16, 2, 1);
            let mut open = |minute: u64, endpoint, port| {
                let (key, now) = (Key { endpoint: EndpointId(endpoint), ..key(port) }, Instant(minute * MINUTE));
                let mut connection = Connection::new(&Options::default());
                connection.treatment = Treatment::Translated;
                connection.asked = connection.asked.answered(is_between && (endpoint, port) == (0, 1));
                all.insert_as(now, TenantId(0), key, connection, Class::Open).unwrap();
                all.find(&Key { endpoint: EndpointId(0), ..self::key(1) }).is_some()
            };
            open(1, 0, 1);
            for port in 0..others {
                assert!(open(1, 1, port));
            }
            assert!(open(15, 0, 2));
            assert_eq!(open(17, 0, 3), stays, "{others}, {is_between}");
            assert!(!open(126, 0, 4));
        }
    }

    #[test]
    fn who_opens_nothing_more_keeps_nothing_for_ever() {
        const HOUR: u64 = 3_600_000_000_000;
        let mut all = Connections::new(1, 0);
        all.grow_to(128, 9, 2);
        let open = |all: &mut Connections, hour: u64, endpoint: u32, ports: Range<u16>| {
            let connection = Connection::new(&Options::default());
            for port in ports {
                let key = Key { endpoint: EndpointId(endpoint), ..key(port) };
                all.insert_as(Instant(hour * HOUR), TenantId(endpoint / 5), key, connection, Class::Open).unwrap();
            }
        };
        open(&mut all, 1, 0, 0..30);
        open(&mut all, 3, 8, 0..9);
        assert_eq!(all.of_endpoint(EndpointId(0)), 30, "they are not old");
        open(&mut all, 4, 8, 9..22);
        assert_eq!((all.of_endpoint(EndpointId(0)), all.of_endpoint(EndpointId(8))), (0, 22));
        assert_eq!(all.tenants, [0, 22]);
    }

    #[test]
    fn a_wrong_guess_is_only_a_look_more() {
        let mut all = Connections::new(1, 0);
        // Of two connections that share the one guess there is.
        all.grow_to(1, 1, 1);
        assert_eq!(all.guesses.len(), 1);
        all.table.set_most(16);
        let connection = Connection::new(&Options::default());
        let add = |all: &mut Connections, port| all.insert(Instant(1), TenantId(0), key(port), connection);
        assert_eq!(all.find_again(&key(1)), None, "there is none");
        let (first, second) = (add(&mut all, 1).unwrap(), add(&mut all, 2).unwrap());
        for _ in 0..3 {
            assert_eq!((all.find_again(&key(1)), all.find_again(&key(2))), (Some(first), Some(second)));
            assert_eq!(all.find_again(&key(3)), None);
        }
        all.remove(TenantId(0), second);
        assert_eq!(all.find_again(&key(2)), None, "it is gone");
        assert_eq!(add(&mut all, 3), Ok(second), "its place is another's");
        assert_eq!((all.find_again(&key(2)), all.find_again(&key(3))), (None, Some(second)));
    }
}
