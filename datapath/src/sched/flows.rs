//! Flow queues: an endpoint's own traffic does not wait behind itself.
//!
//! A lane in which frames of several flows wait has a queue for each, served by deficit round
//! robin, new flows first, each with CoDel (FQ-CoDel, RFC 8290). Three things differ.
//!
//! - A quantum is the longest frame that the lane sends at once, since frames are offloaded ones.
//! - A flow whose queue was emptied before its quantum was used up is new again when its next frame
//!   comes, with what is left of the quantum. So what is sparse (requests, acknowledgements, pings)
//!   never waits for a round of all others, and no flow has more than a quantum a round.
//! - New flows may send [`NEW_QUANTA`] in a row. Then one of the others has a turn, so a flood of
//!   ever new flows does not stop what goes on.
//!
//! Queues are made when a second flow waits in a lane, and go when only one is left. All lanes of a
//! tree share one store of them, bounded in number. A lane and its tenant may have as many together
//! as they leave free (dynamic thresholds, Choudhury and Hahne 1998), so one tenant never has more
//! than half. Frames of a flow for which there is no queue go with another flow of their lane. A
//! flow is found in one cache line, by a hash under a secret key.

use crate::aqm::codel::Codel;
use crate::frame::{Chain, Frame, Pool};
use crate::wire::{FlowHash, Layout};

/// Queues of all lanes of a tree: of a hundred lanes each as many as there are connections in the
/// worst case of the tests; 512 KiB, which are not touched before they are needed.
const MOST: u32 = 8192;
/// Queues of one lane at most: RFC 8290's default.
const MOST_OF_LANE: u32 = 1024;
/// Places of a line; two lines in a thousand have more than eight when all queues are in use.
const PLACES: usize = 8;
/// Lines: half of the places stay free.
const LINES: usize = 2 * MOST as usize / PLACES;
/// None.
const NONE: u32 = u32::MAX;
/// How many queues are looked at for one that has much, or for the one that is likely next.
const LOOKS: usize = 8;
/// Quanta of new flows before one of the others has a turn: these keep a fifth of the rate at
/// least, and a new flow waits a quarter longer at most.
const NEW_QUANTA: i32 = 4;

/// The queue of a flow: one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Queue {
    pub chain: Chain,
    /// What is in the chain, in wire bytes.
    pub wire_bytes: u32,
    /// What it may send before others have had their turn, in wire bytes.
    pub deficit: i32,
    next: u32,
    prev: u32,
    /// The flow, and the lane by its [`Spread`].
    pub hash: u32,
    spread: u32,
    is_new: bool,
    pub codel: Codel,
}

const _: () = assert!(size_of::<Queue>() == 64);

/// The flow that waits in a lane when it gets queues.
#[derive(Debug)]
pub(crate) struct First {
    pub chain: Chain,
    pub wire_bytes: u32,
    pub hash: u32,
    pub codel: Codel,
}

/// Queues in the order of their turns.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

/// A lane with several flows.
#[derive(Debug)]
struct Spread {
    new: List,
    old: List,
    queues: u32,
    /// Whose queues they are, by the tree's number of the tenant.
    tenant: u32,
    /// The queue that had the most when a frame came last to one that had more.
    fat: u32,
    /// Wire bytes of new flows since one of the others had its turn.
    new_bytes: i32,
}

/// A bucket of the index: a hash above, and below the number of a queue; [`FREE`] where there is
/// none.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct CacheLine([u64; PLACES]);

const FREE: u64 = u64::MAX;

/// The flow queues of all lanes of a tree.
#[derive(Debug)]
pub(crate) struct Flows {
    key: FlowHash,
    queues: Vec<Queue>,
    free_queue: u32,
    spreads: Vec<Spread>,
    free_spreads: Vec<u32>,
    /// None before a lane has queues: most trees never have any.
    lines: Vec<CacheLine>,
    /// Queues in use, and by tenant.
    used: u32,
    tenants: Vec<u32>,
}

impl Flows {
    /// No queue. `seed` keys the hash.
    pub(crate) fn new(seed: u64) -> Flows {
        Flows {
            key: FlowHash::new(seed),
            queues: Vec::with_capacity(MOST as usize),
            free_queue: NONE,
            spreads: Vec::with_capacity(MOST as usize / 2),
            free_spreads: Vec::with_capacity(MOST as usize / 2),
            lines: Vec::new(),
            used: 0,
            tenants: Vec::new(),
        }
    }

    /// Makes room to count for tenants 0..`tenants`.
    pub(crate) fn reserve(&mut self, tenants: usize) {
        if self.tenants.len() < tenants {
            self.tenants.resize(tenants, 0);
        }
    }

    /// The flow of a frame.
    #[inline]
    pub fn hash(&self, bytes: &[u8], layout: &Layout) -> u32 {
        self.key.of(bytes, layout)
    }

    /// A lane of a tenant gets queues, with one that has what waits in it. `None` where there is no
    /// room.
    pub fn spread(&mut self, tenant: u32, first: First, quantum: u32) -> Option<u32> {
        let spread = Spread { new: List::EMPTY, old: List::EMPTY, queues: 0, tenant, fat: NONE, new_bytes: 0 };
        let at = match self.free_spreads.pop() {
            Some(at) => {
                self.spreads[at as usize] = spread;
                at
            }
            None if self.spreads.len() < self.spreads.capacity().min(MOST as usize / 2) => {
                self.spreads.push(spread);
                self.spreads.len() as u32 - 1
            }
            None => return None,
        };
        if self.lines.is_empty() {
            self.lines = vec![CacheLine([FREE; PLACES]); LINES];
        }
        let Some(opened) = self.open(at, first.hash, quantum) else {
            self.free_spreads.push(at);
            return None;
        };
        let queue = &mut self.queues[opened as usize];
        (queue.chain, queue.wire_bytes, queue.codel) = (first.chain, first.wire_bytes, first.codel);
        self.unlink(opened);
        self.link(opened, false);
        self.spreads[at as usize].fat = opened;
        Some(at)
    }

    /// How many queues a lane has.
    pub fn count(&self, spread: u32) -> u32 {
        self.spreads[spread as usize].queues
    }

    pub fn queue(&mut self, at: u32) -> &mut Queue {
        &mut self.queues[at as usize]
    }

    /// What a queue holds: its chain, and its wire bytes.
    pub fn held(&self, at: u32) -> (Chain, u32) {
        let Queue { chain, wire_bytes, .. } = self.queues[at as usize];
        (chain, wire_bytes)
    }

    /// Puts a frame into a queue.
    #[inline]
    pub fn push(&mut self, pool: &mut Pool, at: u32, frame: Frame) {
        let queue = &mut self.queues[at as usize];
        queue.wire_bytes += pool.meta(&frame).wire_bytes;
        let (was_empty, wire_bytes, spread) = (queue.chain.is_empty(), queue.wire_bytes, queue.spread);
        queue.chain.push(pool, frame);
        if was_empty {
            self.wake(at);
        }
        let fat = self.spreads[spread as usize].fat;
        if fat == NONE || self.queues[fat as usize].wire_bytes < wire_bytes {
            self.spreads[spread as usize].fat = at;
        }
    }

    /// So many wire bytes of a queue have left.
    #[inline]
    pub fn serve(&mut self, at: u32, wire_bytes: u32) {
        let queue = &mut self.queues[at as usize];
        queue.deficit -= wire_bytes as i32;
        let new_bytes = &mut self.spreads[queue.spread as usize].new_bytes;
        *new_bytes = if queue.is_new { new_bytes.saturating_add(wire_bytes as i32) } else { 0 };
    }

    /// The queue of a flow, made where there is none; another of the lane's where there is no room.
    #[inline]
    pub fn find_or_open(&mut self, spread: u32, hash: u32, quantum: u32) -> u32 {
        if let Some(at) = self.find(spread, hash) {
            return at;
        }
        if let Some(at) = self.open(spread, hash, quantum) {
            return at;
        }
        let Spread { new, old, .. } = self.spreads[spread as usize];
        if old.head == NONE { new.head } else { old.head }
    }

    /// The queue of a flow.
    #[inline]
    pub fn find(&self, spread: u32, hash: u32) -> Option<u32> {
        let CacheLine(places) = &self.lines[line(spread, hash)];
        // A hash has 31 bits, so none is like what stands in a free place.
        let is_it = |place: u64| (place >> 32) as u32 == hash && self.queues[place as u32 as usize].spread == spread;
        (0..PLACES).map(|n| places[(hash as usize + n) % PLACES]).find(|&place| is_it(place)).map(|place| place as u32)
    }

    /// A frame has been put into a queue, which was empty.
    #[inline]
    fn wake(&mut self, at: u32) {
        let Queue { deficit, is_new, .. } = self.queues[at as usize];
        if !is_new && deficit > 0 {
            self.unlink(at);
            self.link(at, true);
        }
    }

    /// The queue whose turn it is; `None` where nothing waits, and all queues of the lane are gone.
    #[inline]
    pub fn pick(&mut self, spread: u32, quantum: u32) -> Option<u32> {
        loop {
            let Spread { new, old, new_bytes, .. } = self.spreads[spread as usize];
            let turn = old.head != NONE && new_bytes >= NEW_QUANTA * quantum as i32;
            let at = if new.head == NONE || turn { old.head } else { new.head };
            if at == NONE {
                self.free_spreads.push(spread);
                return None;
            }
            let queue = &mut self.queues[at as usize];
            let is_new = queue.is_new;
            if queue.deficit <= 0 {
                // Who owes more than a quantum, by a frame that could not be cut, pays no more than
                // that.
                queue.deficit = (queue.deficit + quantum as i32).max(1);
            } else if !queue.chain.is_empty() {
                return Some(at);
            } else if !is_new {
                self.close(at);
                continue;
            }
            self.unlink(at);
            self.link(at, false);
        }
    }

    /// The first frame's wire bytes of the queue that is likely next; a quantum where none of the
    /// first few has any.
    pub fn head(&self, spread: u32, pool: &Pool) -> u32 {
        let mut chains = self.chains(spread).take(LOOKS);
        chains.find_map(|chain| chain.front(pool).map(|meta| meta.wire_bytes)).unwrap_or(u32::MAX)
    }

    /// What waits in a lane's queues.
    pub fn chains(&self, spread: u32) -> impl Iterator<Item = Chain> {
        let Spread { new, old, .. } = self.spreads[spread as usize];
        let from = |head: u32| {
            let next = |at: u32| (at != NONE).then_some(at);
            std::iter::successors(next(head), move |&at| next(self.queues[at as usize].next))
        };
        from(new.head).chain(from(old.head)).map(|at| self.queues[at as usize].chain)
    }

    /// A queue of the lane that holds much: the one that was the fattest when something came, or
    /// one of the next few in turn that has more by now.
    pub fn fat(&self, spread: u32) -> u32 {
        let Spread { new, old, fat, .. } = self.spreads[spread as usize];
        let mut at = if old.head == NONE { new.head } else { old.head };
        let mut fattest = if fat == NONE { at } else { fat };
        for _ in 0..LOOKS {
            if at == NONE {
                break;
            }
            if self.queues[at as usize].wire_bytes > self.queues[fattest as usize].wire_bytes {
                fattest = at;
            }
            at = self.queues[at as usize].next;
        }
        fattest
    }

    /// All queues of a lane go; what waited in them comes back, in the order of their turns.
    pub fn gather(&mut self, pool: &mut Pool, spread: u32) -> Chain {
        let mut all = Chain::default();
        loop {
            let Spread { new, old, .. } = self.spreads[spread as usize];
            let at = if new.head == NONE { old.head } else { new.head };
            if at == NONE {
                self.free_spreads.push(spread);
                return all;
            }
            all.append(pool, std::mem::take(&mut self.queues[at as usize].chain));
            self.close(at);
        }
    }

    /// A queue for a flow that has none, at the end of the new ones.
    fn open(&mut self, spread: u32, hash: u32, quantum: u32) -> Option<u32> {
        let Spread { queues, tenant, .. } = self.spreads[spread as usize];
        let of_tenant = *self.tenants.get(tenant as usize)?;
        if queues >= MOST_OF_LANE || queues + of_tenant >= MOST - self.used {
            return None;
        }
        let CacheLine(places) = &self.lines[line(spread, hash)];
        let place = (0..PLACES).map(|n| (hash as usize + n) % PLACES).find(|&place| places[place] == FREE)?;
        let queue = Queue {
            chain: Chain::default(),
            wire_bytes: 0,
            deficit: quantum as i32,
            next: NONE,
            prev: NONE,
            hash,
            spread,
            is_new: true,
            codel: Codel::default(),
        };
        let at = match self.free_queue {
            NONE if self.queues.len() < MOST as usize => {
                self.queues.push(queue);
                self.queues.len() as u32 - 1
            }
            NONE => return None,
            at => {
                self.free_queue = std::mem::replace(&mut self.queues[at as usize], queue).next;
                at
            }
        };
        self.lines[line(spread, hash)].0[place] = u64::from(hash) << 32 | u64::from(at);
        self.spreads[spread as usize].queues += 1;
        self.tenants[tenant as usize] += 1;
        self.used += 1;
        self.link(at, true);
        Some(at)
    }

    /// A queue goes; nothing is in it.
    fn close(&mut self, at: u32) {
        self.unlink(at);
        let Queue { hash, spread, .. } = self.queues[at as usize];
        let is_it = |place: &&mut u64| **place == u64::from(hash) << 32 | u64::from(at);
        if let Some(place) = self.lines[line(spread, hash)].0.iter_mut().find(is_it) {
            *place = FREE;
        }
        let lane = &mut self.spreads[spread as usize];
        lane.queues -= 1;
        if lane.fat == at {
            lane.fat = NONE;
        }
        self.tenants[lane.tenant as usize] -= 1;
        self.used -= 1;
        self.queues[at as usize].next = std::mem::replace(&mut self.free_queue, at);
    }

    fn list(&mut self, spread: u32, is_new: bool) -> &mut List {
        let spread = &mut self.spreads[spread as usize];
        if is_new { &mut spread.new } else { &mut spread.old }
    }

    /// Puts a queue last among the new ones or the old ones.
    fn link(&mut self, at: u32, is_new: bool) {
        let spread = self.queues[at as usize].spread;
        let list = self.list(spread, is_new);
        let prev = std::mem::replace(&mut list.tail, at);
        if prev == NONE {
            list.head = at;
        } else {
            self.queues[prev as usize].next = at;
        }
        let queue = &mut self.queues[at as usize];
        (queue.next, queue.prev, queue.is_new) = (NONE, prev, is_new);
    }

    fn unlink(&mut self, at: u32) {
        let Queue { next, prev, spread, is_new, .. } = self.queues[at as usize];
        match next {
            NONE => self.list(spread, is_new).tail = prev,
            next => self.queues[next as usize].prev = prev,
        }
        match prev {
            NONE => self.list(spread, is_new).head = next,
            prev => self.queues[prev as usize].next = next,
        }
    }
}

impl List {
    const EMPTY: List = List { head: NONE, tail: NONE };
}

/// The line of a flow: the lane's number turns the hash, so that a flow in several lanes has
/// several. The low bits of the hash say where in the line it is looked for first.
#[inline]
fn line(spread: u32, hash: u32) -> usize {
    (hash ^ spread.wrapping_mul(0x9e37_79b9)) as usize / PLACES % LINES
}
