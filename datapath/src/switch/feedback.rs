//! What congestion agents ask of the switch: to be told what arrives from the uplink, and to hold
//! back what goes to it, pair by pair.
//!
//! Both cost nothing where no agent runs: see [`crate::pair`] and [`crate::arrivals`].

use super::Switch;
use crate::arrivals::{Arrival, QueueSample};
use crate::frame::{Frame, Pool};
use crate::pair::{PairError, PairStats, Toward};
use crate::program::EndpointId;
use crate::sched::lane::Lane;
use crate::sched::limits::Plane;
use crate::stats::LaneStats;
use crate::units::{Instant, Rate};
use crate::verdict::Reason;

impl Switch {
    /// Limits what endpoint `from` sends over the uplink toward `to` to `rate`, in wire bits a
    /// second and no less than [`Rate::MIN`]; another rate takes effect at once. `None` lifts the
    /// limit, if there is one: what waits for it goes on to the egress queue now, in its order. A
    /// frame toward a limited address meets that limit first and then the one toward everyone.
    /// Limits go with their endpoint, and nothing else ends them: whoever sets one sees to it that
    /// it is lifted.
    ///
    /// # Errors
    /// The slot is vacant, the address is a group's, or there are too many pairs; nothing was done.
    pub fn limit_pair(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        from: EndpointId,
        to: Toward,
        rate: Option<Rate>,
    ) -> Result<(), PairError> {
        let endpoint = self.program.endpoints.get(from.0).ok_or(PairError::Vacant(from))?;
        if let Some(rate) = rate.filter(|rate| rate.is_limited()) {
            let owner = self.memory.owner(from, endpoint.tenant);
            return self.pairs.limit(now, from, to, rate, (endpoint.queue_bytes, owner));
        }
        if let Some(mut lane) = self.pairs.lift(from, to) {
            self.keep_signals(from, &lane);
            while let Some(frame) = lane.give_up(pool) {
                self.let_go(pool, now, from, to, frame);
            }
        }
        Ok(())
    }

    /// What is sent under a limit takes its turn after so much of the time of a frame, of 256:
    /// whoever limits several senders to one receiver gives each another. Without effect where
    /// there is no such limit, or nothing waits for it that was there before.
    pub fn take_turn(&mut self, now: Instant, from: EndpointId, to: Toward, phase: u8) {
        self.pairs.take_turn(now, from, to, phase);
    }

    /// The limits of an endpoint, by address, the one toward everyone last: their rates, and what
    /// each has counted since it was set.
    pub fn pairs(&self, from: EndpointId) -> impl Iterator<Item = PairStats> + '_ {
        self.pairs.of(from)
    }

    /// Starts counting what arrives from the uplink, from nothing, or stops.
    pub fn watch_arrivals(&mut self, on: bool) {
        if on == self.arrivals.is_watched() {
            return;
        }
        self.arrivals.watch(on);
        self.ingress.tree_mut(Plane::Wire).losses().watch(on);
        if on {
            for (id, _) in self.program.endpoints.iter() {
                self.arrivals.expect(EndpointId(id));
            }
        }
    }

    /// What arrived from the uplink since the last call, by endpoint and source and by endpoint,
    /// and what of it was dropped or trimmed before it was delivered; only what is not zero. Both
    /// lists are emptied first. Nothing where arrivals are not watched.
    pub fn take_arrivals(&mut self, arrivals: &mut Vec<Arrival>, queues: &mut Vec<QueueSample>) {
        let tree = self.ingress.tree(Plane::Wire);
        self.arrivals.take(arrivals, queues, |endpoint| tree.lane(endpoint).backlog());
    }

    /// Into the sender's egress lane, or where the limit toward its destination lets it wait first.
    pub(super) fn enqueue_wire(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        from: EndpointId,
        frame: Frame,
    ) -> Result<(), Reason> {
        // What agents say is not held back by what others' agents have asked for.
        let is_talk = || {
            let ahead = self.egress.tree(Plane::Wire).ahead(from);
            ahead.is_some_and(|ahead| ahead.concerns(pool.bytes(&frame), &pool.meta(&frame).layout))
        };
        if !self.pairs.concern(from) || is_talk() {
            return self.egress.enqueue(pool, now, Plane::Wire, from, frame);
        }
        match self.pairs.hold(pool, now, from, frame)? {
            Some(frame) => self.egress.enqueue(pool, now, Plane::Wire, from, frame),
            None => Ok(()),
        }
    }

    /// Lets everything go on that the limits of pairs allow now.
    pub(super) fn let_pairs_go(&mut self, pool: &mut Pool, now: Instant) {
        while let Some((from, limit, frame)) =
            self.pairs.dequeue(pool, now, |endpoint| self.egress.tree(Plane::Wire).longest(endpoint))
        {
            self.let_go(pool, now, from, limit, frame);
        }
    }

    /// A frame that a pair's limit lets go, on its way: to the limit toward everyone, if that comes
    /// next, or into the sender's egress lane.
    pub(super) fn let_go(&mut self, pool: &mut Pool, now: Instant, from: EndpointId, limit: Toward, frame: Frame) {
        let went = match self.pairs.hold_on(pool, now, from, limit, frame) {
            Ok(Some(frame)) => self.egress.enqueue(pool, now, Plane::Wire, from, frame),
            Ok(None) => Ok(()),
            Err(reason) => Err(reason),
        };
        if let Err(reason) = went {
            self.count_drop(from, reason);
        }
    }

    /// Lifts all limits of an endpoint that goes; returns how many frames were freed.
    pub(super) fn remove_pairs(&mut self, pool: &mut Pool, from: EndpointId) -> u32 {
        let mut freed = 0;
        while let Some(mut lane) = self.pairs.any(from).and_then(|to| self.pairs.lift(from, to)) {
            self.keep_signals(from, &lane);
            freed += lane.clear(pool);
        }
        freed
    }

    /// What an ingress queue has just lost, for the sources that had sent it.
    #[inline]
    pub(super) fn note_losses(&mut self, endpoint: EndpointId) {
        let losses = self.ingress.tree_mut(Plane::Wire).losses();
        if losses.is_empty() {
            return;
        }
        while let Some(loss) = losses.take() {
            self.arrivals.lose(endpoint, loss.from, loss.wire_bytes);
        }
    }

    /// What the queue of a limit that is lifted has counted goes on as the endpoint's.
    fn keep_signals(&mut self, from: EndpointId, lane: &Lane) {
        let LaneStats { marks, trims, .. } = lane.stats();
        let signals = LaneStats { marks, trims, ..LaneStats::default() };
        self.egress.tree_mut(Plane::Wire).restore_endpoint(from, &signals);
        self.tallies[from.0 as usize].drops.add(Reason::Aqm, lane.aqm_drops());
    }
}

#[cfg(test)]
mod tests;
