//! Backlogs: what frames are yet to be made into, at the expense of who sent them.
//!
//! One frame may become thousands: segments for a port that cannot cut, a copy for each member of a
//! network, or for each other host. These are not made at once, or all others would wait for them,
//! but one at a time ([`Switch::work`]), when it is the turn of whose they are: an endpoint, or the
//! uplink for what is copied to a network from outside. Where a frame is one piece, nothing waits.
//! What an endpoint sends to neighbours afterwards waits behind its backlog, so nothing is
//! overtaken; what the schedulers let go for the uplink, or from it for one endpoint, is no part of
//! this, and of that at most 64 segments leave together (`sched/lane.rs`).
//!
//! Who has a backlog should not be read on: its port's ring is what tells it to slow down. So a
//! backlog is short: what one turn has read.

use super::{OUT, Role, Switch};
use crate::frame::{Fifo, Frame, Out, Owner, Pool};
use crate::network::{Network, slot};
use crate::program::{EndpointId, MemberId, PortId};
use crate::segment;
use crate::switch::parse::{longest_segment, segments};
use crate::switch::tunnel::tenant_of;
use crate::units::Instant;
use crate::verdict::Reason;
use std::collections::VecDeque;

/// Frames that may wait to be made into others, of one endpoint, or for one network from outside:
/// more than are read at a turn.
const MOST: u32 = 64;

/// The backlogs of one switch.
#[derive(Debug, Default)]
pub(super) struct Backlogs {
    endpoints: Vec<Backlog>,
    /// Endpoints that have got one, and nobody has asked since.
    woken: VecDeque<EndpointId>,
    /// By network, what is copied to it from outside; the untagged one, whose number is the
    /// largest, is the first.
    storms: Vec<Backlog>,
    /// Networks that have one, in turn.
    stormy: VecDeque<Network>,
    /// The uplink has got one, and nobody has asked since.
    uplink_woke: bool,
}

/// What one owner's frames are yet to be made into. They wait in one queue, also what is being cut
/// or copied, so that all of it is charged to its owner's share of the frame memory.
#[derive(Debug, Default)]
struct Backlog {
    waiting: Fifo,
    /// The first frame is what is left to be cut for this endpoint's port.
    cut_for: Option<EndpointId>,
    /// The first frame, or the one behind what is cut, is being copied: members, or hosts, with
    /// smaller numbers have had theirs.
    copied_to: Option<u32>,
    /// It is among [`Backlogs::woken`].
    is_listed: bool,
}

impl Backlog {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn frames(&self) -> usize {
        self.waiting.frames() as usize
    }

    fn clear(&mut self, pool: &mut Pool) -> u32 {
        (self.cut_for, self.copied_to) = (None, None);
        self.waiting.clear(pool)
    }

    /// Whether one more frame may wait: there is room for it, and in its owner's part of the
    /// memory.
    fn takes(&self, pool: &Pool, frame: &Frame) -> bool {
        let Backlog { waiting, .. } = self;
        waiting.frames() < MOST && pool.may_wait(waiting.owner(), pool.class(frame), waiting.truesize())
    }
}

impl Backlogs {
    /// Makes room for endpoints 0..`endpoints`.
    pub fn reserve(&mut self, endpoints: usize) {
        self.endpoints.reserve(endpoints.saturating_sub(self.endpoints.len()));
        self.woken.reserve(endpoints.saturating_sub(self.woken.len()));
    }

    /// Makes a place for an endpoint.
    pub fn add(&mut self, endpoint: EndpointId) {
        let wanted = endpoint.0 as usize + 1;
        if self.endpoints.len() < wanted {
            self.endpoints.resize_with(wanted, Backlog::default);
            self.woken.reserve(wanted - self.woken.len());
        }
    }

    /// Makes a place for a network.
    pub fn add_network(&mut self, network: Network) {
        let wanted = slot(network) + 1;
        if self.storms.len() < wanted {
            self.storms.resize_with(wanted, Backlog::default);
            self.stormy.reserve(wanted - self.stormy.len());
        }
    }

    /// Whether the endpoint's frames go straight to neighbours.
    #[inline]
    pub fn is_empty(&self, endpoint: EndpointId) -> bool {
        self.endpoints[endpoint.0 as usize].is_empty()
    }

    /// Frees what an endpoint has yet to send to neighbours; returns how many frames.
    pub fn clear_endpoint(&mut self, pool: &mut Pool, endpoint: EndpointId) -> u32 {
        self.endpoints[endpoint.0 as usize].clear(pool)
    }

    /// Frees what is to be copied to a network from outside; returns how many frames.
    pub fn clear_network(&mut self, pool: &mut Pool, network: Network) -> u32 {
        self.stormy.retain(|stormy| *stormy != network);
        self.storms.get_mut(slot(network)).map_or(0, |storm| storm.clear(pool))
    }

    /// Frees what is to be copied from outside; returns how many frames.
    pub fn clear_storms(&mut self, pool: &mut Pool) -> u32 {
        self.stormy.clear();
        self.storms.iter_mut().map(|storm| storm.clear(pool)).sum()
    }

    /// Frees everything.
    pub fn clear(&mut self, pool: &mut Pool) {
        self.clear_storms(pool);
        for backlog in &mut self.endpoints {
            backlog.clear(pool);
        }
        while let Some(endpoint) = self.woken.pop_front() {
            self.endpoints[endpoint.0 as usize].is_listed = false;
        }
    }

    /// Charges what waits of an endpoint's, and what will, to another account.
    pub fn set_owner(&mut self, pool: &mut Pool, endpoint: EndpointId, owner: Owner) {
        if let Some(backlog) = self.endpoints.get_mut(endpoint.0 as usize) {
            backlog.waiting.set_owner(pool, owner);
        }
    }

    /// The same for what is to be copied to a network from outside.
    pub fn set_network_owner(&mut self, pool: &mut Pool, network: Network, owner: Owner) {
        if let Some(storm) = self.storms.get_mut(slot(network)) {
            storm.waiting.set_owner(pool, owner);
        }
    }

    /// Frames in all of them. Of the networks' only those are asked that have some.
    pub fn frames(&self) -> usize {
        let storms = self.stormy.iter().filter_map(|network| self.storms.get(slot(*network)));
        self.endpoints.iter().chain(storms).map(Backlog::frames).sum()
    }

    /// Whether nobody has one that has not been asked for.
    pub fn is_quiet(&self) -> bool {
        self.woken.is_empty() && self.stormy.is_empty()
    }

    /// The uplink's first port is to be told of what there is to copy.
    pub fn wake_uplink(&mut self) {
        self.uplink_woke |= !self.stormy.is_empty();
    }

    /// The endpoint's backlog, which gets something.
    fn wake(&mut self, endpoint: EndpointId) -> &mut Backlog {
        let backlog = &mut self.endpoints[endpoint.0 as usize];
        if !backlog.is_listed {
            backlog.is_listed = true;
            self.woken.push_back(endpoint);
        }
        backlog
    }
}

impl Switch {
    /// Whether frames of who is at `port` are yet to be made into others: then it should have turns
    /// to [work](Switch::work), and not be read.
    #[must_use]
    pub fn has_work(&self, port: PortId) -> bool {
        match self.role(port) {
            Role::Endpoint(endpoint) => !self.backlogs.is_empty(endpoint),
            Role::Uplink(MemberId(0)) => !self.backlogs.stormy.is_empty(),
            Role::Uplink(_) => false,
            Role::Nothing => false,
        }
    }

    /// Whether a port is one of the uplink's.
    #[must_use]
    pub fn is_uplink(&self, port: PortId) -> bool {
        matches!(self.role(port), Role::Uplink(_))
    }

    /// A port that has got work since it was asked last.
    pub fn poll_work(&mut self) -> Option<PortId> {
        if std::mem::take(&mut self.backlogs.uplink_woke)
            && let Some(uplink) = &self.program.uplink
        {
            return Some(uplink.port());
        }
        loop {
            let endpoint = self.backlogs.woken.pop_front()?;
            self.backlogs.endpoints[endpoint.0 as usize].is_listed = false;
            if let Some(owner) = self.program.endpoints.get(endpoint.0)
                && !self.backlogs.is_empty(endpoint)
            {
                return Some(owner.port);
            }
        }
    }

    /// Makes one segment or copy of what who is at `port` has to send; `tx_due` hands it out. Of
    /// how many bytes it was; `None` where there is nothing to do.
    pub fn work(&mut self, pool: &mut Pool, now: Instant, port: PortId) -> Option<usize> {
        match self.role(port) {
            Role::Endpoint(endpoint) => self.work_for(pool, now, endpoint),
            Role::Uplink(MemberId(0)) => self.work_on_storms(pool, now),
            Role::Uplink(_) => None,
            Role::Nothing => None,
        }
    }

    /// Makes one of anybody's, all in turn.
    pub(super) fn work_for_any(&mut self, pool: &mut Pool, now: Instant) -> bool {
        if self.work_on_storms(pool, now).is_some() {
            return true;
        }
        while let Some(endpoint) = self.backlogs.woken.pop_front() {
            self.backlogs.endpoints[endpoint.0 as usize].is_listed = false;
            if self.work_for(pool, now, endpoint).is_some() {
                if !self.backlogs.is_empty(endpoint) {
                    self.backlogs.wake(endpoint);
                }
                return true;
            }
        }
        false
    }

    /// A frame for neighbours that is to be made into others, or comes behind such.
    pub(super) fn put_off(&mut self, pool: &mut Pool, now: Instant, from: EndpointId, frame: Frame) {
        let backlog = self.backlogs.wake(from);
        if !backlog.takes(pool, &frame) {
            pool.free(frame);
            return self.count_drop(from, Reason::NoBuffer);
        }
        pool.meta_mut(&frame).queued = now;
        backlog.waiting.push(pool, frame);
    }

    /// A frame from outside that is to be copied to a network.
    pub(super) fn put_off_storm(&mut self, pool: &mut Pool, network: Network, everyone: bool, frame: Frame) {
        let Some(storm) = self.backlogs.storms.get_mut(slot(network)).filter(|storm| storm.takes(pool, &frame)) else {
            pool.free(frame);
            return self.uplink_drops.add(Reason::NoBuffer, 1);
        };
        if storm.is_empty() {
            self.backlogs.uplink_woke |= self.backlogs.stormy.is_empty();
            self.backlogs.stormy.push_back(network);
        }
        pool.meta_mut(&frame).set_out(if everyone { Out::Members } else { Out::Learners });
        storm.waiting.push(pool, frame);
    }

    /// A neighbour's frame for `to`, whose port cannot cut it.
    pub(super) fn cut_in_turn(&mut self, pool: &mut Pool, now: Instant, from: EndpointId, to: EndpointId, rest: Frame) {
        let payer = self.program.endpoints.get(from.0).map_or(Out::Unknown, |sender| Out::Payer(sender.port));
        let meta = pool.meta_mut(&rest);
        meta.queued = now;
        meta.set_out(payer);
        let backlog = self.backlogs.wake(from);
        debug_assert!(backlog.cut_for.is_none(), "one at a time");
        backlog.waiting.push_front(pool, rest);
        backlog.cut_for = Some(to);
    }

    fn work_for(&mut self, pool: &mut Pool, now: Instant, from: EndpointId) -> Option<usize> {
        let backlog = &mut self.backlogs.endpoints[from.0 as usize];
        let frame = backlog.waiting.pop(pool)?;
        let (bytes, meta) = (pool.len(&frame), pool.meta(&frame));
        if let Some(to) = backlog.cut_for.take() {
            let piece = meta.layout.headers() + usize::from(meta.offload.gso_size);
            self.go_on_cutting(pool, from, to, frame);
            return Some(piece);
        }
        let copied_to = backlog.copied_to.take().unwrap_or(0);
        match meta.out() {
            Out::Endpoint(to) if !self.is_gone(to, meta.queued) => self.arrive_local(pool, now, from, to, frame),
            Out::Endpoint(_) => {
                pool.free(frame);
                self.count_drop(from, Reason::Removed);
            }
            Out::Hosts => self.go_on_to_hosts(pool, now, from, copied_to, frame),
            out => self.go_on_copying(pool, now, from, out == Out::Members, copied_to, frame),
        }
        Some(bytes)
    }

    fn go_on_cutting(&mut self, pool: &mut Pool, from: EndpointId, to: EndpointId, rest: Frame) {
        let port = self.program.endpoints.get(to.0).map(|endpoint| endpoint.port);
        let features = port.and_then(|port| Some((port, *self.program.ports.get(port.0)?)));
        let Some((port, features)) = features.filter(|_| !self.is_gone(to, pool.meta(&rest).queued)) else {
            pool.free(rest);
            return self.count_drop(from, Reason::Removed);
        };
        let too_long = longest_segment(pool, &rest) > features.max_frame;
        if too_long || self.out.len() >= OUT {
            pool.free(rest);
            return self.count_drop(to, if too_long { Reason::TooLong } else { Reason::NoBuffer });
        }
        match segment::piece(pool, rest, features.offload) {
            Ok((piece, rest)) => {
                self.out.push_back((port, piece));
                if let Some(rest) = rest {
                    let backlog = &mut self.backlogs.endpoints[from.0 as usize];
                    backlog.waiting.push_front(pool, rest);
                    backlog.cut_for = Some(to);
                }
            }
            Err(reason) => self.count_drop(to, reason),
        }
    }

    fn go_on_copying(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        from: EndpointId,
        everyone: bool,
        copied_to: u32,
        frame: Frame,
    ) {
        let network = self.forward.network(from);
        match self.forward.next_members(network, everyone, copied_to, Some(from)) {
            (None, _) => pool.free(frame),
            (Some(to), None) => self.arrive_local(pool, now, from, to, frame),
            (Some(to), Some(_)) => {
                let copy = pool.duplicate(&frame);
                let backlog = &mut self.backlogs.endpoints[from.0 as usize];
                backlog.waiting.push_front(pool, frame);
                backlog.copied_to = Some(to.0 + 1);
                match copy {
                    Some(copy) => self.arrive_local(pool, now, from, to, copy),
                    None => self.count_drop(to, Reason::NoBuffer),
                }
            }
        }
    }

    /// The copy for the next host. What it dies of is counted by itself.
    fn go_on_to_hosts(&mut self, pool: &mut Pool, now: Instant, from: EndpointId, copied_to: u32, frame: Frame) {
        let tenant = tenant_of(self.forward.network(from));
        let Some((peer, has_more)) = self.tunnels.next_peer(tenant, copied_to) else { return pool.free(frame) };
        let (copy, rest) = match (self.may_copy_to(pool, now, (tenant, peer), &frame), has_more) {
            (Ok(()), false) => (Ok(frame), None),
            (Ok(()), true) => (pool.duplicate(&frame).ok_or(Reason::NoBuffer), Some(frame)),
            (Err(reason), _) => (Err(reason), Some(frame)),
        };
        match rest {
            Some(rest) if has_more => {
                let backlog = &mut self.backlogs.endpoints[from.0 as usize];
                backlog.waiting.push_front(pool, rest);
                backlog.copied_to = Some(peer.0 + 1);
            }
            rest => rest.into_iter().for_each(|frame| pool.free(frame)),
        }
        if let Err(reason) = copy.and_then(|copy| self.send_tunnel(pool, now, from, peer, copy)) {
            self.count_drop(from, reason);
        }
    }

    fn work_on_storms(&mut self, pool: &mut Pool, now: Instant) -> Option<usize> {
        let network = self.backlogs.stormy.pop_front()?;
        let storm = &mut self.backlogs.storms[slot(network)];
        let frame = storm.waiting.pop(pool)?;
        let (bytes, everyone) = (pool.len(&frame), pool.meta(&frame).out() == Out::Members);
        let copied_to = storm.copied_to.take().unwrap_or(0);
        let (to, more) = self.forward.next_members(network, everyone, copied_to, None);
        let copy = match (to, more) {
            (Some(to), Some(_)) => {
                let copy = pool.duplicate(&frame);
                storm.waiting.push_front(pool, frame);
                storm.copied_to = Some(to.0 + 1);
                copy
            }
            _ => Some(frame),
        };
        if !storm.is_empty() {
            self.backlogs.stormy.push_back(network);
        }
        match (to, copy) {
            (Some(to), Some(copy)) => self.arrive(pool, now, to, copy),
            (Some(to), None) => self.count_drop(to, Reason::NoBuffer),
            (None, copy) => copy.into_iter().for_each(|frame| pool.free(frame)),
        }
        Some(bytes)
    }

    /// Whether what was for `to` when it was put off at `queued` was for one who is gone.
    pub(super) fn is_gone(&self, to: EndpointId, queued: Instant) -> bool {
        self.gone.get(to.0 as usize).is_some_and(|gone| gone.had(queued))
    }

    /// Whether a port takes a frame only in pieces.
    pub(super) fn is_in_pieces(&self, pool: &Pool, port: PortId, frame: &Frame) -> bool {
        let features = self.program.ports.get(port.0);
        segments(pool, frame) > 1 && features.is_some_and(|f| !f.offload.takes(&pool.meta(frame).offload))
    }
}

#[cfg(test)]
mod tests;
