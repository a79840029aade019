//! Pair limits: what one endpoint sends over the uplink toward one destination, or in all, at most.
//!
//! Congestion agents set them: the receiver's host says how much it takes from a sender, and the
//! sender's switch holds back only that. What a limit concerns waits in a queue of its own before
//! it enters the endpoint's egress lane, so the endpoint's other destinations do not wait for it,
//! and no path goes round the limits of endpoint and tenant. The queue is a [`Lane`]: bounded,
//! marked and trimmed by CoDel. A limit is one tag, as in [`crate::sched::limits`]: the time at
//! which what was sent has been paid for. Who waits for it is on a timing wheel.
//!
//! No credit is banked: a queue that was empty starts at now, and while it was not, lateness of the
//! loop is made good up to 1 ms or one frame. So over any time a pair sends at most what its rate
//! allows and two frames, unless the loop was late before.
//!
//! Whoever limits several senders to one receiver can tell each when its *turn* is within the time
//! of a frame, so that they do not meet on the way: [`Pairs::take_turn`] moves what a pair has paid
//! for by half a frame at most, sooner or later.
//!
//! Where an endpoint has no limit, all of this is one look at a table that is empty in most
//! switches.

mod queue;

use crate::frame::{Frame, Owner, Pool, PoolLimits};
use crate::program::EndpointId;
use crate::sched::flows::Flows;
use crate::sched::lane::{Admission, Among, Lane, Offer, Room};
use crate::sched::losses::Losses;
use crate::sched::tag::{instant, tag};
use crate::stats::LaneStats;
use crate::units::{Instant, Rate};
use crate::verdict::Reason;
use crate::wheel::Wheel;
use crate::wire::{self, Mac};
use queue::{Pair, Sender, State};
use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::fmt;

/// Pairs of one endpoint that may be limited at a time: more destinations than a sender has that it
/// overwhelms.
pub const MOST_OF_ENDPOINT: u32 = 1024;
/// Pairs of a switch: 100 endpoints with 160 each; 6 MB where all are in use.
pub const MOST: u32 = 16_384;
/// No pair.
const NONE: u32 = u32::MAX;

/// What a limit concerns, of what an endpoint sends over the uplink.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Toward {
    /// What is for this address.
    Address(Mac),
    /// Everything, what is for a limited address or for a group included.
    Everyone,
}

impl fmt::Display for Toward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Toward::Address(mac) => write!(f, "{mac}"),
            Toward::Everyone => write!(f, "everyone"),
        }
    }
}

/// Why a pair cannot be limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PairError {
    /// There is no endpoint of this number.
    Vacant(EndpointId),
    /// The address is not one endpoint's: a group, or zero.
    NotAnAddress(Mac),
    /// The endpoint has [`MOST_OF_ENDPOINT`] already.
    TooManyOfEndpoint(EndpointId),
    /// The switch has [`MOST`] already.
    TooMany,
}

impl fmt::Display for PairError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PairError::Vacant(id) => write!(f, "there is no endpoint {} to be limited", id.0),
            PairError::NotAnAddress(mac) => {
                write!(f, "{mac} is not the address of one receiver; to limit all that is sent, limit toward everyone")
            }
            PairError::TooManyOfEndpoint(id) => {
                write!(f, "endpoint {} is limited toward {MOST_OF_ENDPOINT} destinations already; lift one first", id.0)
            }
            PairError::TooMany => write!(f, "the switch limits {MOST} pairs already; lift one first"),
        }
    }
}

impl Error for PairError {}

/// A pair that is limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PairStats {
    /// Toward whom.
    pub to: Toward,
    /// At most so much, in wire bits a second.
    pub rate: Rate,
    /// What its queue has counted since the limit was set, and what waits. Guarantee and unmet time
    /// are the lane's that follows: zero here.
    pub stats: LaneStats,
}

/// A queue that a frame would wait in, as the frame would find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The pair, as it is.
    pub pair: PairStats,
    /// The most that may wait, in wire bytes.
    pub bound: u32,
    /// For how long its limit lets nothing go.
    pub wait_ns: u64,
    /// How much of the frame it takes.
    pub admission: Admission,
    /// The buffers of another flow's frames that go for it.
    pub displaced: PoolLimits,
}

/// All pairs of a switch that are limited.
#[derive(Debug)]
pub struct Pairs {
    /// Ordered, not hashed: whom to limit is said by agents that are known, and nothing that
    /// strangers send makes it longer.
    index: BTreeMap<(EndpointId, Toward), u32>,
    pairs: Vec<Pair>,
    vacant: Vec<u32>,
    /// By endpoint, up to the last one that ever was limited.
    senders: Vec<Sender>,
    wheel: Wheel,
    ready: VecDeque<u32>,
    /// Queues of flows, where several wait for a limit.
    flows: Flows,
    /// Nobody watches them.
    losses: Losses,
    /// Pairs for which something waits.
    queued: u32,
}

impl Pairs {
    /// None. `seed` keys the hash of flows.
    #[must_use]
    pub fn new(seed: u64) -> Pairs {
        Pairs {
            index: BTreeMap::new(),
            pairs: Vec::new(),
            vacant: Vec::new(),
            senders: Vec::new(),
            wheel: Wheel::new(0),
            ready: VecDeque::new(),
            flows: Flows::new(seed),
            losses: Losses::default(),
            queued: 0,
        }
    }

    /// Limits a pair, or changes its rate; `queue_bytes` is the bound of the endpoint's own queue,
    /// and `owner` has what waits.
    ///
    /// # Errors
    /// There are too many.
    pub fn limit(
        &mut self,
        now: Instant,
        from: EndpointId,
        to: Toward,
        rate: Rate,
        (queue_bytes, owner): (u32, Owner),
    ) -> Result<(), PairError> {
        if let Toward::Address(mac) = to
            && (mac.is_group() || mac.is_zero())
        {
            return Err(PairError::NotAnAddress(mac));
        }
        if let Some(&slot) = self.index.get(&(from, to)) {
            let pair = &mut self.pairs[slot as usize];
            pair.set_rate(now, rate);
            pair.set_queue(queue_bytes);
            self.put_back(now, slot);
            return Ok(());
        }
        let at = from.0 as usize;
        if self.senders.len() <= at {
            self.senders.resize(at + 1, Sender::FREE);
            self.flows.reserve(at + 1);
        }
        let sender = &mut self.senders[at];
        if sender.pairs >= MOST_OF_ENDPOINT {
            return Err(PairError::TooManyOfEndpoint(from));
        }
        if self.index.len() >= MOST as usize {
            return Err(PairError::TooMany);
        }
        let mut pair = Pair::new(now, from, to, rate, queue_bytes);
        pair.lane.own(owner);
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.pairs[slot as usize] = pair;
                slot
            }
            None => {
                self.pairs.push(pair);
                self.wheel.grow(self.pairs.len());
                // Each is there at most once.
                self.ready.reserve(self.pairs.len() - self.ready.len());
                self.pairs.len() as u32 - 1
            }
        };
        sender.pairs += 1;
        sender.queue_bytes = queue_bytes;
        if to == Toward::Everyone {
            sender.everyone = slot;
        }
        self.index.insert((from, to), slot);
        Ok(())
    }

    /// A pair sends as if its first frame went when so much of the time that a frame takes, of 256,
    /// is over.
    pub fn take_turn(&mut self, now: Instant, from: EndpointId, to: Toward, phase: u8) {
        let Some(&slot) = self.index.get(&(from, to)) else { return };
        self.pairs[slot as usize].take_turn(now, phase);
        self.put_back(now, slot);
    }

    /// Lifts a limit: its queue comes back with what waits, if there was one.
    pub fn lift(&mut self, pool: &mut Pool, from: EndpointId, to: Toward) -> Option<Lane> {
        let slot = self.index.remove(&(from, to))?;
        self.take_out(slot);
        self.vacant.push(slot);
        let mut lane = std::mem::replace(&mut self.pairs[slot as usize].lane, Lane::new(0));
        lane.give_up_flows(pool, &mut self.flows);
        let sender = &mut self.senders[from.0 as usize];
        sender.memory -= lane.truesize();
        sender.pairs -= 1;
        if to == Toward::Everyone {
            sender.everyone = NONE;
        }
        Some(lane)
    }

    /// Any destination toward which an endpoint is limited: everyone comes last.
    #[must_use]
    pub fn any(&self, from: EndpointId) -> Option<Toward> {
        self.slots(from).next().map(|slot| self.pairs[slot as usize].to)
    }

    /// The bound of an endpoint's own queue is another.
    pub fn set_queue(&mut self, from: EndpointId, queue_bytes: u32) {
        let Some(sender) = self.senders.get_mut(from.0 as usize).filter(|sender| sender.pairs > 0) else { return };
        sender.queue_bytes = queue_bytes;
        for &slot in self.index.range(range(from)).map(|(_, slot)| slot) {
            self.pairs[slot as usize].set_queue(queue_bytes);
        }
    }

    /// Charges what waits for the limits of an endpoint, and what will, to another account.
    pub fn set_owner(&mut self, pool: &mut Pool, from: EndpointId, owner: Owner) {
        if self.concern(from) {
            for &slot in self.index.range(range(from)).map(|(_, slot)| slot) {
                self.pairs[slot as usize].lane.set_owner(pool, &self.flows, owner);
            }
        }
    }

    /// Whether anything that an endpoint sends over the uplink is limited.
    #[inline]
    #[must_use]
    pub fn concern(&self, from: EndpointId) -> bool {
        self.senders.get(from.0 as usize).is_some_and(|sender| sender.pairs > 0)
    }

    /// Lets a frame wait for the limit toward its destination, or toward everyone; gives it back
    /// where there is none.
    ///
    /// # Errors
    /// The frame is freed and the reason given where nothing of it may wait.
    pub fn hold(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        from: EndpointId,
        frame: Frame,
    ) -> Result<Option<Frame>, Reason> {
        let to = pool.bytes(&frame).first_chunk().map_or(Mac::BROADCAST, |&mac| Mac(mac));
        match self.first(from, to) {
            NONE => Ok(Some(frame)),
            slot => self.enqueue(pool, now, slot, frame).map(|()| None),
        }
    }

    /// Lets a frame that a limit has let go wait for the one that is behind it, if there is one;
    /// else gives it back.
    ///
    /// # Errors
    /// The frame is freed and the reason given where nothing of it may wait.
    pub fn hold_on(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        from: EndpointId,
        before: Toward,
        frame: Frame,
    ) -> Result<Option<Frame>, Reason> {
        match self.everyone(from) {
            slot if slot != NONE && before != Toward::Everyone => self.enqueue(pool, now, slot, frame).map(|()| None),
            _ => Ok(Some(frame)),
        }
    }

    /// Whether nothing waits.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// The next frame that its limit lets go at `now`, whose it is, and which limit it was. `fits`
    /// says how long a frame its endpoint sends.
    pub fn dequeue(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        fits: impl Fn(EndpointId) -> u32,
    ) -> Option<(EndpointId, Toward, Frame)> {
        while let Some(slot) = self.wheel.expire(now) {
            self.put(now, slot);
        }
        while let Some(slot) = self.ready.pop_front() {
            let pair = &mut self.pairs[slot as usize];
            let (from, to, before) = (pair.from, pair.to, pair.lane.truesize());
            let longest = pair.longest.min(fits(from));
            let served = pair.lane.dequeue(pool, now, longest, &mut self.flows, &mut self.losses);
            if let Some(served) = &served {
                pair.charge(now, pool.meta(&served.frame).wire_bytes);
            }
            let sender = &mut self.senders[from.0 as usize];
            // A part that was cut off may leave the rest in a buffer of another size.
            sender.memory = sender.memory + pair.lane.truesize() - before;
            if pair.lane.is_empty() {
                pair.state = State::Idle;
                self.queued -= 1;
            } else {
                self.put(now, slot);
            }
            if let Some(served) = served {
                return Some((from, to, served.frame));
            }
        }
        None
    }

    /// When `dequeue` may have something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.queued {
            0 => None,
            _ if !self.ready.is_empty() => Some(Instant::ZERO),
            _ => self.wheel.next_due(),
        }
    }

    /// The pairs of an endpoint, everyone last.
    pub fn of(&self, from: EndpointId) -> impl Iterator<Item = PairStats> + '_ {
        self.slots(from).map(|slot| self.pairs[slot as usize].stats())
    }

    /// How long, after `now`, nothing may be sent toward `to`, in nanoseconds.
    #[must_use]
    pub fn wait_ns(&self, now: Instant, from: EndpointId, to: Toward) -> u64 {
        self.index.get(&(from, to)).map_or(0, |&slot| self.pairs[slot as usize].wait_ns(now))
    }

    /// Continues where another switch's limit had to wait for `wait_ns`.
    pub fn restore(&mut self, now: Instant, from: EndpointId, to: Toward, wait_ns: u64) {
        let Some(&slot) = self.index.get(&(from, to)) else { return };
        self.pairs[slot as usize].restore(now, wait_ns);
        self.put_back(now, slot);
    }

    /// Marks, trims and drops of the queues' management that an endpoint's pairs have counted.
    #[must_use]
    pub fn signals(&self, from: EndpointId) -> (LaneStats, u64) {
        let (mut sum, mut drops) = (LaneStats::default(), 0);
        if self.concern(from) {
            for slot in self.slots(from) {
                let lane = &self.pairs[slot as usize].lane;
                let LaneStats { marks, trims, .. } = lane.stats();
                sum.sum(&LaneStats { marks, trims, ..LaneStats::default() });
                drops += lane.aqm_drops();
            }
        }
        (sum, drops)
    }

    /// The queues, one after the other, that a frame of these bytes would wait in; `may_wait` as in
    /// [`Pool::may_wait`].
    pub(crate) fn on_the_way<'a>(
        &'a self,
        pool: &'a Pool,
        now: Instant,
        from: EndpointId,
        may_wait: impl Fn(Owner, u64) -> bool,
        (offer, bytes): (Offer<'a>, &'a [u8]),
    ) -> impl Iterator<Item = Found> {
        let (first, last) = (self.first(from, wire::destination(bytes)), self.everyone(from));
        let slots = [first, if first == last { NONE } else { last }];
        slots.into_iter().filter(|&slot| slot != NONE).map(move |slot| {
            let pair = &self.pairs[slot as usize];
            let crowded = self.senders[from.0 as usize].is_crowded(pair.lane.truesize(), offer.class.bytes());
            let (admission, room) = match pair.lane.decide(pool, &offer, || bytes, &may_wait, (&self.flows, 0)) {
                _ if crowded => (Admission::Refused(Reason::PairLimit), Room::NONE),
                (Admission::Refused(reason), room) => (Admission::Refused(named(reason)), room),
                decided => decided,
            };
            let (bound, wait_ns, displaced) = (pair.lane.bound(), pair.wait_ns(now), room.frees());
            Found { pair: pair.stats(), bound, wait_ns, admission, displaced }
        })
    }

    /// Frames that wait.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.pairs.iter().map(|pair| pair.lane.frames() as usize).sum()
    }

    /// Frees what waits for the limits of an endpoint; returns how many frames.
    pub fn clear_endpoint(&mut self, pool: &mut Pool, from: EndpointId) -> u32 {
        let mut freed = 0;
        if self.senders.get(from.0 as usize).is_some_and(|sender| sender.memory > 0) {
            let slots: Vec<u32> = self.slots(from).collect();
            for slot in slots {
                self.take_out(slot);
                freed += self.pairs[slot as usize].lane.clear(pool, &mut self.flows);
            }
            self.senders[from.0 as usize].memory = 0;
        }
        freed
    }

    /// Frees everything that waits.
    pub fn clear(&mut self, pool: &mut Pool) {
        for from in 0..self.senders.len() as u32 {
            self.clear_endpoint(pool, EndpointId(from));
        }
    }

    fn slots(&self, from: EndpointId) -> impl Iterator<Item = u32> + '_ {
        self.index.range(range(from)).map(|(_, &slot)| slot)
    }

    /// The limit that a frame for `to` meets first.
    fn first(&self, from: EndpointId, to: Mac) -> u32 {
        let everyone = self.everyone(from);
        let others = self.senders.get(from.0 as usize).is_some_and(|s| s.pairs > u32::from(everyone != NONE));
        if !others {
            return everyone;
        }
        self.index.get(&(from, Toward::Address(to))).copied().unwrap_or(everyone)
    }

    fn everyone(&self, from: EndpointId) -> u32 {
        self.senders.get(from.0 as usize).map_or(NONE, |sender| sender.everyone)
    }

    fn enqueue(&mut self, pool: &mut Pool, now: Instant, slot: u32, frame: Frame) -> Result<(), Reason> {
        let pair = &mut self.pairs[slot as usize];
        let sender = &mut self.senders[pair.from.0 as usize];
        let before = pair.lane.truesize();
        if sender.is_crowded(before, pool.truesize(&frame)) {
            pool.free(frame);
            return Err(Reason::PairLimit);
        }
        let among = Among { quantum: pair.longest, ahead: 0, tenant: pair.from.0 };
        pair.lane.enqueue(pool, now, frame, (&mut self.flows, among), &mut self.losses).map_err(named)?;
        // A flow that had much may have lost more than came.
        sender.memory = sender.memory + pair.lane.truesize() - before;
        if pair.state == State::Idle {
            pair.begin(now);
            self.queued += 1;
            self.put(now, slot);
        }
        Ok(())
    }

    /// Puts a pair for which something waits where it belongs.
    fn put(&mut self, now: Instant, slot: u32) {
        let pair = &mut self.pairs[slot as usize];
        if pair.free_at <= tag(now) {
            pair.state = State::Ready;
            self.ready.push_back(slot);
        } else {
            pair.state = State::Waits;
            self.wheel.insert(slot, now, instant(pair.free_at));
        }
    }

    /// Puts a pair where it belongs now that its rate is another.
    fn put_back(&mut self, now: Instant, slot: u32) {
        if self.pairs[slot as usize].state == State::Waits {
            self.wheel.remove(slot);
            self.put(now, slot);
        }
    }

    /// Nothing waits any more for a pair, as far as the order goes.
    fn take_out(&mut self, slot: u32) {
        let pair = &mut self.pairs[slot as usize];
        match pair.state {
            State::Idle => return,
            State::Ready => self.ready.retain(|&other| other != slot),
            State::Waits => self.wheel.remove(slot),
        }
        pair.state = State::Idle;
        self.queued -= 1;
    }
}

/// All pairs of an endpoint.
fn range(from: EndpointId) -> std::ops::RangeInclusive<(EndpointId, Toward)> {
    (from, Toward::Address(Mac([0; 6])))..=(from, Toward::Everyone)
}

/// Why such a queue takes nothing: that it is full has a name of its own here.
fn named(reason: Reason) -> Reason {
    if reason == Reason::QueueFull { Reason::PairLimit } else { reason }
}

#[cfg(test)]
mod tests;
