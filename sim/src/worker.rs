//! Worker: the time and the memory that a machine has for its switch.
//!
//! Without one, a simulated switch is infinitely fast. With one, frames wait in the ring of their
//! port until the worker reads them, and everything it does keeps it busy for a while ([`Costs`]).
//! Its loop is the live one's: look what has come, move what is due, let one port have its turn,
//! move what is due again. Whose turn it is says `datapath::turns`.
//!
//! Rings belong to the kernel, and so to the world's pool; the worker reads frames into a pool of
//! its own, whose bound is the daemon's.

use std::collections::{BTreeMap, VecDeque};

use datapath::frame::{Frame, HEADROOM, Pool, PoolLimits, SMALL};
use datapath::intake::thin::{Destination, Thinned};
use datapath::intake::{FULL, Prices};
use datapath::program::{Endpoint, EndpointId, PortId, Program, TenantId};
use datapath::switch::Switch;
use datapath::turns::{Cost, Seat, Spent, Turn, Turns};
use datapath::units::Instant;
use datapath::verdict::Reason;
use datapath::wire::Mac;

use crate::costs::Costs;
use crate::random::Random;

/// Frames that wait at a port; more are lost. The length of a TAP's queue as the daemon sets it.
pub const RING: usize = 500;
/// The same of the shortest frames at an interface.
const INTERFACE_RING: usize = 20_000;
/// Most frames read at a turn, and least where so many wait (`levada/src/worker.rs`).
const BURST: (u64, u64) = (4, 128);
/// Bytes read at a turn, after which no further frame is begun (`ports::BURST_BYTES`).
const BURST_BYTES: u64 = 256 << 10;
/// The uplink's ring fills from where on what comes next would wait for so long, and does so until
/// it would for so long only, in nanoseconds (`levada/src/worker/device.rs`).
const FILLS_NS: u64 = 200_000;
const FILLS_STILL_NS: u64 = 50_000;
/// Most frames moved before the ports are looked at again, where none is as cheap as a machine's.
const PUMP: usize = 64;
/// Bytes of the longest segment here, tag included.
const SEGMENT_MOST: usize = 1518;
/// How long to wait for buffers where the pool has none left, in nanoseconds.
const STARVED_NS: u64 = 50_000;
/// How often a port that the switch does not want to read is thought about again, in nanoseconds.
const PAUSE_NS: u64 = 1_000_000;

/// What is told of each frame that leaves: when, by which port, and its bytes on the wire.
pub type Sent<'a> = dyn FnMut(Instant, PortId, u32) -> Result<(), String> + 'a;

/// What a worker has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerSpec {
    /// Bound of its frame memory.
    pub pool: PoolLimits,
    /// What its operations cost.
    pub costs: Costs,
    /// Its uplink is an interface, and no TAP: more frames wait in its ring, and it drops a part of
    /// those for whom it is told to (`datapath::intake::thin`).
    pub by_interface: bool,
}

impl Default for WorkerSpec {
    /// As a daemon's where its configuration says nothing.
    fn default() -> Self {
        WorkerSpec { pool: PoolLimits::default(), costs: Costs::default(), by_interface: false }
    }
}

/// One worker.
#[derive(Debug)]
pub struct Worker {
    /// Frame memory.
    pub pool: Pool,
    costs: Costs,
    by_interface: bool,
    /// Of what its uplink drops a part.
    thinned: Vec<Thinned>,
    random: Random,
    turns: Turns,
    ports: Vec<Port>,
    /// Frames in the rings of all.
    unread: usize,
    /// What was written, and when writing it was over; in the world's pool.
    written: VecDeque<(Instant, PortId, Frame)>,
    paused: Vec<usize>,
    starved: bool,
    /// When it is at the end of its round.
    free_at: Instant,
    /// Picoseconds beyond the clock.
    rest_ps: u64,
}

#[derive(Debug)]
struct Port {
    seat: Seat,
    ring: VecDeque<Frame>,
    is_paused: bool,
    /// The uplink's: its ring fills.
    fills: bool,
    /// What one of its frames has cost lately, in nanoseconds.
    frame_ns: u64,
}

impl Worker {
    /// A worker that runs `program`.
    #[must_use]
    pub fn new(spec: &WorkerSpec, program: &Program, switch: &mut Switch) -> Worker {
        let (mut turns, shares) = (Turns::default(), control::time::shares(program));
        for (id, endpoint) in program.endpoints.iter() {
            let of_tenant = (endpoint.tenant, shares.tenants[&endpoint.tenant]);
            switch.set_intake_weights(of_tenant, (endpoint.port, shares.endpoints[&EndpointId(id)]));
        }
        // As `levada/src/worker/seats.rs` has them; this worker does nothing for itself.
        let whole = turns.add_group(Turns::ROOT, 1);
        let uplink = turns.add_leaf(whole, 1);
        let tenants = turns.add_group(whole, 1);
        let groups: BTreeMap<TenantId, Seat> =
            shares.tenants.iter().map(|(&tenant, &weight)| (tenant, turns.add_group(tenants, weight))).collect();
        let owner = |port: usize| program.endpoints.iter().find(|(_, endpoint)| endpoint.port.0 as usize == port);
        let port = |port: usize| {
            let leaf = |(id, endpoint): (u32, &Endpoint)| {
                turns.add_leaf(groups[&endpoint.tenant], shares.endpoints[&EndpointId(id)])
            };
            let seat = owner(port).map_or(uplink, leaf);
            Port { seat, ring: VecDeque::new(), is_paused: false, fills: false, frame_ns: 10_000 }
        };
        let ports: Vec<Port> = (0..program.ports.len()).map(port).collect();
        Worker {
            pool: Pool::new(spec.pool),
            costs: spec.costs,
            by_interface: spec.by_interface,
            thinned: Vec::new(),
            random: Random::new(0),
            turns,
            ports,
            unread: 0,
            written: VecDeque::new(),
            paused: Vec::new(),
            starved: false,
            free_at: Instant::ZERO,
            rest_ps: 0,
        }
    }

    /// Frames of the world that it holds.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.unread + self.written.len()
    }

    /// What who is at a port has had of its time, and has waited for it.
    #[must_use]
    pub fn spent(&self, port: PortId) -> Spent {
        self.turns.spent(self.ports[port.0 as usize].seat)
    }

    /// A frame has come to a port.
    pub fn receive(&mut self, world: &mut Pool, switch: &mut Switch, port: PortId, frame: Frame) {
        let from_interface = self.by_interface && switch.is_uplink(port);
        if from_interface && self.drops(world.bytes(&frame)) {
            return world.free(frame);
        }
        let place = &mut self.ports[port.0 as usize];
        if place.ring.len() == if from_interface { INTERFACE_RING } else { RING } {
            switch.port_drops(port, Reason::PortRing, 1);
            return world.free(frame);
        }
        place.ring.push_back(frame);
        self.unread += 1;
        if !place.is_paused {
            self.turns.wake(place.seat);
        }
    }

    /// Whether the uplink's interface is to drop this frame, before it takes a place in the ring.
    fn drops(&mut self, bytes: &[u8]) -> bool {
        let to = destination(bytes);
        let thinned = self.thinned.iter().find(|thinned| Some(thinned.to) == to);
        thinned.is_some_and(|thinned| self.random.word() as u32 >= thinned.keep)
    }

    /// Tells the uplink's interface of what to read a part.
    fn thin(&mut self, switch: &mut Switch) {
        if let Some(thinned) = switch.thinned(self.free_at) {
            self.thinned = thinned.to_vec();
            switch.set_thinned(true);
        }
    }

    /// Goes round its loop once, if it is free and there is something to do.
    ///
    /// # Errors
    /// What `sent` says of a frame that left.
    pub fn run(&mut self, world: &mut Pool, now: Instant, switch: &mut Switch, sent: &mut Sent) -> Result<(), String> {
        if self.due(switch).is_none_or(|due| due > now) {
            return Ok(());
        }
        self.free_at = now.plus_ns(self.costs.round_ns);
        self.look_at_paused(switch);
        self.starved = false;
        if self.by_interface {
            self.thin(switch);
        }
        self.pump(world, switch, sent)?;
        switch.sweep();
        drop(switch.take_left());
        if let Some(turn) = self.turns.next_turn()
            && let Some(port) = self.ports.iter().position(|port| port.seat == turn.seat)
        {
            let id = PortId(port as u32);
            // Copies of what came by the uplink do not keep it from being read while its ring
            // fills.
            let most_ns = if self.ports[port].fills { turn.credit_ns / 4 } else { turn.credit_ns };
            let left_ns = self.make(switch, port, most_ns);
            // An uplink is read whatever is yet to be copied of it: what is for one endpoint does
            // not wait for that.
            if left_ns > 0 && !switch.has_work(id) || switch.is_uplink(id) {
                self.read(world, switch, port, turn);
            }
            if self.ports[port].ring.is_empty() && !switch.has_work(id) {
                self.turns.sleep(turn.seat);
            }
            self.pump(world, switch, sent)?;
        }
        Ok(())
    }

    /// The next frame whose writing is over.
    pub fn poll(&mut self, now: Instant) -> Option<(PortId, Frame)> {
        let &(at, ..) = self.written.front()?;
        if at > now {
            return None;
        }
        self.written.pop_front().map(|(_, port, frame)| (port, frame))
    }

    /// When there is something to do, if nothing comes before.
    #[must_use]
    pub fn deadline(&self, now: Instant, switch: &Switch) -> Option<Instant> {
        let written = self.written.front().map(|&(at, ..)| at);
        [written, self.due(switch)].into_iter().flatten().min().map(|at| at.max(now))
    }

    /// When its next round begins, if nothing comes before.
    fn due(&self, switch: &Switch) -> Option<Instant> {
        let is_ready = self.turns.any_ready() || switch.is_sweeping();
        let ready = is_ready.then_some(if self.starved { STARVED_NS } else { 0 });
        let paused = (!self.paused.is_empty()).then_some(PAUSE_NS);
        let wait = [ready, paused].into_iter().flatten().min().map(|ns| self.free_at.plus_ns(ns));
        let thins = switch.thinned_due().filter(|_| self.by_interface);
        let due = [switch.poll_due(), thins].into_iter().flatten().min().map(|at| at.max(self.free_at));
        [wait, due].into_iter().flatten().min()
    }

    /// Lets a port be read for its turn.
    fn read(&mut self, world: &mut Pool, switch: &mut Switch, port: usize, turn: Turn) {
        let (start, id) = (self.free_at, PortId(port as u32));
        let burst = (turn.credit_ns / self.ports[port].frame_ns.max(1)).clamp(BURST.0, BURST.1);
        if switch.is_uplink(id) {
            let place = &mut self.ports[port];
            let wait_ns = place.ring.len() as u64 * place.frame_ns;
            place.fills = wait_ns >= if place.fills { FILLS_STILL_NS } else { FILLS_NS };
            let full = if self.by_interface { place.ring.len() as u32 * FULL / INTERFACE_RING as u32 } else { 0 };
            switch.share_intake(place.fills.then(|| prices(&self.costs)), full);
        }
        let (mut frames, mut bytes) = (0, 0);
        while frames < burst && bytes < BURST_BYTES {
            let Some(waiting) = self.ports[port].ring.front() else { break };
            let len = world.len(waiting);
            // A frame is read into a large buffer, since nobody knows how long it is; where there
            // is none, into a small one, and cut.
            let PoolLimits { small, large, .. } = self.pool.available();
            if large == 0 && small == 0 {
                break;
            }
            let is_cut = large == 0 && len > SMALL - HEADROOM;
            let frame = if is_cut { None } else { carry(world, waiting, &mut self.pool) };
            if let Some(waiting) = self.ports[port].ring.pop_front() {
                self.unread -= 1;
                world.free(waiting);
            }
            let Some(frame) = frame else {
                switch.port_drops(id, Reason::PortRing, 1);
                break;
            };
            (frames, bytes) = (frames + 1, bytes + len as u64);
            self.busy(self.costs.read.of(1, len as u64) + self.costs.forward.of(1, len as u64));
            switch.rx(&mut self.pool, start, id, frame);
        }
        self.starved = frames < burst && self.pool.available().large == 0;
        if switch.is_paused(id, start) {
            self.ports[port].is_paused = true;
            self.paused.push(port);
            self.turns.sleep(turn.seat);
        }
        let took = self.free_at.since(start);
        if frames > 0 {
            let cost = took + self.costs.write.of(frames, bytes) / 1000;
            self.ports[port].frame_ns = (self.ports[port].frame_ns * 3 + cost / frames) / 4;
        }
        self.turns.charge(turn.seat, if frames == 0 && self.starved { turn.credit_ns } else { took });
    }

    /// Makes of a port's frames what is yet to be made of them, for so much time, writing included.
    /// What of that is left.
    fn make(&mut self, switch: &mut Switch, port: usize, credit_ns: u64) -> u64 {
        let (start, mut cost_ns) = (self.free_at, 0);
        while cost_ns < credit_ns
            && let Some(made) = switch.work(&mut self.pool, start, PortId(port as u32))
        {
            // What is longer than a segment can be is a copy; what is not may be one too, and costs
            // less than this then.
            let cost = if made > SEGMENT_MOST { self.costs.copy } else { self.costs.cut };
            self.busy(cost.of(1, made as u64));
            cost_ns += (cost.of(1, made as u64) + self.costs.write.of(1, made as u64)) / 1000;
        }
        self.turns.charge(self.ports[port].seat, self.free_at.since(start));
        credit_ns.saturating_sub(cost_ns)
    }

    /// Moves what the switch lets go.
    fn pump(&mut self, world: &mut Pool, switch: &mut Switch, sent: &mut Sent) -> Result<(), String> {
        for _ in 0..PUMP {
            let Some((port, frame)) = switch.tx_due(&mut self.pool, self.free_at) else { break };
            self.write(world, switch, port, frame, sent)?;
        }
        self.wake_workers(switch);
        Ok(())
    }

    /// Writes a frame, at the expense of whose it is.
    fn write(
        &mut self,
        world: &mut Pool,
        switch: &mut Switch,
        port: PortId,
        frame: Frame,
        sent: &mut Sent,
    ) -> Result<(), String> {
        let (start, meta) = (self.free_at, *self.pool.meta(&frame));
        sent(start, port, meta.wire_bytes)?;
        self.busy(self.costs.write.of(1, self.pool.len(&frame) as u64));
        if let Some(payer) = meta.payer() {
            self.turns.charge(self.ports[payer.0 as usize].seat, self.free_at.since(start));
        }
        let copy = carry(&self.pool, &frame, world).ok_or("the world's pool is too small for what is on its way")?;
        switch.give_back(&mut self.pool, self.free_at, port, frame);
        self.written.push_back((self.free_at, port, copy));
        Ok(())
    }

    /// Who has got something to make has turns for it.
    fn wake_workers(&mut self, switch: &mut Switch) {
        while let Some(port) = switch.poll_work() {
            self.turns.wake(self.ports[port.0 as usize].seat);
        }
    }

    fn busy(&mut self, ps: u64) {
        let ps = ps + self.rest_ps;
        self.free_at = self.free_at.plus_ns(ps / 1000);
        self.rest_ps = ps % 1000;
    }

    fn look_at_paused(&mut self, switch: &Switch) {
        let Worker { paused, ports, turns, free_at, .. } = self;
        paused.retain(|&port| {
            ports[port].is_paused = switch.is_paused(PortId(port as u32), *free_at);
            if !ports[port].is_paused && !ports[port].ring.is_empty() {
                turns.wake(ports[port].seat);
            }
            ports[port].is_paused
        });
    }
}

/// Where a frame goes, as the uplink's wire says it (IEEE 802.1Q).
fn destination(bytes: &[u8]) -> Option<Destination> {
    let mac = Mac(*bytes.first_chunk()?);
    let tag = bytes.get(12..16)?;
    let vlan = (tag[..2] == [0x81, 0x00]).then(|| u16::from_be_bytes([tag[2], tag[3]]) & 0x0fff);
    Some(Destination { vlan, mac })
}

/// What a frame from the uplink costs, as the live worker would have measured it.
fn prices(costs: &Costs) -> Prices {
    let cost = |[a, b]: [crate::costs::Cost; 2]| {
        let (each_ps, byte_ps) = (a.each_ps + b.each_ps, a.byte_ps + b.byte_ps);
        Cost::new(each_ps / 1000, (byte_ps << 10) / 1000)
    };
    Prices { read: cost([costs.read, costs.forward]), pass: cost([costs.write, crate::costs::Cost::default()]) }
}

/// A copy of a frame in another pool, as between the kernel and a process.
fn carry(from: &Pool, frame: &Frame, to: &mut Pool) -> Option<Frame> {
    let copy = to.alloc_from(from.bytes(frame))?;
    *to.meta_mut(&copy) = *from.meta(frame);
    Some(copy)
}
