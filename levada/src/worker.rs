//! The worker: one thread that owns the frame memory, all switches, links and ports of the daemon,
//! and moves every frame.
//!
//! Each round of its loop: wait (not at all while somebody has something to do), do what is due
//! (`pump`: what the schedulers let go, what has arrived over links), then let one port have its
//! turn (`seats.rs`), and do what is due again. At its turn a port is read, unless frames of it are
//! yet to be made into others; then these are made. So a frame's way through the switch never waits
//! for the reading of other ports, and no tenant can take the time of others. What a frame costs is
//! charged to whose it is when it is spent.
//!
//! The worker takes no lock, writes no file and no log: other threads ask it by [`Request`], which
//! it answers between two rounds, and it hands what may take long (closing and opening devices, log
//! lines) to `maintenance` as a [`Task`].

mod agents;
pub mod announce;
mod answer;
mod bonds;
mod device;
mod edit;
pub mod ends;
mod histogram;
mod leave;
mod prices;
mod protocols;
mod questions;
mod request;
mod seats;
mod services;
mod shortage;
mod snapshot;
mod tables;
mod task;
mod thin;
mod trace;
mod vcc;
mod wake;

#[cfg(test)]
mod tests;

pub use agents::{AgentPart, Post};
use agents::{Mail, Station};
pub use answer::{Reply, answer};
use bonds::Bonded;
pub use bonds::{BondNews, BondPost};
use datapath::frame::{Frame, Pool};
use datapath::intake::Prices;
use datapath::link::{Link, Side};
use datapath::program::PortId;
use datapath::protocol::{Protocol, Protocols};
use datapath::switch::Switch;
use datapath::units::Instant;
use device::Costs;
pub use device::Device;
pub use edit::{Edit, Edits};
pub use histogram::Histogram;
pub use leave::Lent;
pub use ports::AnyPort;
use ports::{BURST_BYTES, PortError, Refused, Unsent};
pub use prices::Stalls;
use prices::{Run, STALLED_NS, Target, Written, measured_price, price};
pub use request::{Request, Unwatched};
pub use seats::{Claim, Payer};
use seats::{Duty, Seats, ends_of};
pub use services::{ServiceCount, ServicesPart};
use shortage::Look;
pub use shortage::Shortage;
use snapshot::Count;
pub use snapshot::{Snapshot, SwitchNumbers};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender};
pub use tables::LearnedPart;
pub use task::Task;
use trace::Armed;
pub use trace::Trace;
pub use vcc::{ENDPOINT_CONNECTIONS, EndpointVcc, VccPart, WANTED_CONNECTIONS};
pub use wake::{Clock, Wake, Waker};

/// Most frames read at a turn, which are this many only where they are cheap: of a machine's
/// memory. Beyond it what a turn costs is nothing beside the frames.
const BURST: u64 = 128;
/// Frames read at a turn at least, where so many wait: one or two at a time woke the receiver for
/// each, and with the niceness it had then cost a sixth of a TCP connection's throughput. A turn
/// that was too long is taken off the next ones.
const BURST_LEAST: u64 = 4;
/// Frames moved before the ports are looked at again, so that their rings (500 frames) do not
/// overflow meanwhile.
const PUMP: usize = 64;
/// Frames of one switch or link moved before the next has its turn, so that one with a flood does
/// not keep the others waiting.
const VISIT: usize = 16;
/// More are moved where they cost less each, in nanoseconds, as where a write is a copy in memory:
/// what is done once for all of them would cost as much as they do.
const CHEAP_NS: u64 = 1_000;
/// Most of these.
const CHEAP_MOST: usize = 128;
/// How long to wait for buffers where the pool has none left, in nanoseconds: some frames' time on
/// a fast link.
const STARVED_NS: u64 = 50_000;
/// How often a port that the switch does not want to read is thought about again, in nanoseconds.
const PAUSE_NS: u64 = 1_000_000;
/// How often events in switches are handed on, in nanoseconds.
const EVENTS_NS: u64 = 1_000_000_000;

/// What a turn of the worker's own takes at most, in nanoseconds, but for some questions. Where it
/// took longer, others may have run meanwhile.
const MOST_OWN_NS: u64 = 100_000;

/// What is behind a port of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// A device, by its number.
    Device(usize),
    /// An end of a link, by its number.
    Link(usize, Side),
}

/// A switch, and when it has something to do.
pub struct SwitchSlot {
    /// The switch.
    pub switch: Switch,
    /// What is behind its ports; `None` for a port that is not in use.
    pub ways: Vec<Option<Backing>>,
    /// Frames came in, or were left over: look at it whatever the time.
    touched: bool,
    /// When it has something to do otherwise.
    due: Option<Instant>,
    /// Its congestion agent, where it has one.
    station: Option<Box<Station>>,
    /// The policy of its bond, where its uplink has several ports.
    bond: Option<Box<Bonded>>,
    /// What else runs beside it.
    protocols: Protocols,
}

impl SwitchSlot {
    /// A switch with the ways behind its ports, by [`PortId`].
    pub fn new(switch: Switch, ways: Vec<Option<Backing>>) -> SwitchSlot {
        SwitchSlot {
            switch,
            ways,
            touched: true,
            due: None,
            station: None,
            protocols: Protocols::default(),
            bond: None,
        }
    }

    /// What is behind a port, and where a frame goes that leaves by it and is somebody's.
    fn target(&self, port: PortId, payer: Option<PortId>) -> (Option<Backing>, Option<Target>) {
        let behind = |port: PortId| self.ways.get(port.0 as usize).copied().flatten();
        let target = match behind(port) {
            Some(Backing::Device(device)) => {
                let is_uplink = self.switch.is_uplink(port);
                Some(Target { payer: payer.and_then(behind), device, is_uplink })
            }
            _ => None,
        };
        (behind(port), target)
    }
}

/// A link, and the switch ports at its ends.
pub struct LinkSlot {
    /// The link.
    pub link: Link,
    /// Switch and port at [`Side::A`] and [`Side::B`].
    pub ends: [(usize, PortId); 2],
    /// What senders have paid for the writing of what arrived at each end, and nobody has used yet,
    /// in nanoseconds.
    prepaid_ns: [u64; 2],
}

/// What is outside the switches.
struct Outside {
    devices: Vec<Device>,
    /// By number; `None` where the number is not in use.
    link_slots: Vec<Option<Box<LinkSlot>>>,
    /// Devices that were handed frames at this visit, each as the first of them goes there: to be
    /// flushed.
    written: Vec<Target>,
    /// What was written last and is not charged yet.
    run: Option<Run>,
    costs: Costs,
    stalls: Stalls,
    clock: Clock,
    now: Instant,
}

/// Frames that were moved, and what that usually costs.
#[derive(Clone, Copy, Default)]
struct Moved {
    frames: usize,
    cost_ns: u64,
}

impl Moved {
    fn add(&mut self, frames: usize, cost_ns: u64) {
        self.frames += frames;
        self.cost_ns += cost_ns;
    }

    /// Whether they are enough, where so many are that are not cheap.
    fn is_enough(&self, frames: usize) -> bool {
        self.frames >= CHEAP_MOST || self.frames >= frames && self.cost_ns >= CHEAP_NS * frames as u64
    }
}

/// What the worker has spent its time on.
#[derive(Clone, Default)]
pub struct Effort {
    /// How late what was due was done, in nanoseconds.
    pub lag: Histogram,
    /// How long a round took: how long a frame may have waited to be noticed.
    pub round: Histogram,
    /// Time not spent waiting.
    pub busy_ns: u64,
    /// Rounds of the loop.
    pub rounds: u64,
}

/// What a worker is made of.
pub struct Parts {
    /// Frame memory.
    pub pool: Pool,
    /// Its switches.
    pub switch_slots: Vec<SwitchSlot>,
    /// Links between them.
    pub link_slots: Vec<LinkSlot>,
    /// Devices.
    pub devices: Vec<Device>,
    /// Whether never to sleep.
    pub spin: bool,
    /// What to wait on.
    pub wake: Wake,
    /// Time.
    pub clock: Clock,
    /// Orders from other threads, each followed by a ring of the waker.
    pub inbox: Receiver<Request>,
    /// Tasks for another thread.
    pub tasks: SyncSender<Task>,
}

/// The worker.
pub struct Worker {
    pool: Pool,
    switch_slots: Vec<SwitchSlot>,
    outside: Outside,
    seats: Seats,
    spin: bool,
    wake: Wake,
    inbox: Receiver<Request>,
    tasks: SyncSender<Task>,
    effort: Effort,
    /// Who was short of the processor.
    look: Look,
    /// The trace that runs.
    trace: Option<Box<Armed>>,
    /// Where frames lie between port and switch.
    burst: Vec<Frame>,
    /// Devices that are not read for now.
    paused: Vec<usize>,
    /// Devices without a descriptor to wait on: asked at every round.
    polled: Vec<usize>,
    /// The pool had no buffer for what a port had.
    starved: bool,
    /// What is to be done to switches, links and devices.
    edits: VecDeque<Edits>,
    /// Snapshots that were asked for.
    counts: VecDeque<Count>,
    /// Questions, and whether the next one is answered before what else is the worker's own.
    questions: VecDeque<Request>,
    is_answering: bool,
    /// Tasks that found the queue full.
    waiting: Vec<Task>,
    /// When events are handed on again.
    events_due: Instant,
    /// The switch whose event is the next to be handed on, if it has any.
    teller: usize,
    /// What agents say to each other.
    mail: Mail,
    /// Where moving frames goes on: first the switches are counted, then the links.
    place: usize,
}

impl Worker {
    /// A worker that waits on its devices.
    ///
    /// # Errors
    /// A device cannot be watched.
    pub fn new(parts: Parts) -> std::io::Result<Worker> {
        let mut seats = Seats::new();
        let mut polled = Vec::new();
        for (index, device) in parts.devices.iter().enumerate() {
            seats.claim_any(Backing::Device(index), device.switch);
            if let Some(port) = &device.port {
                match port.fd() {
                    Some(fd) => parts.wake.watch(index, fd)?,
                    None => polled.push(index),
                }
                seats.wake(Backing::Device(index));
            }
        }
        Ok(Worker {
            pool: parts.pool,
            switch_slots: parts.switch_slots,
            outside: Outside {
                devices: parts.devices,
                link_slots: parts.link_slots.into_iter().map(|link_slot| Some(Box::new(link_slot))).collect(),
                written: Vec::with_capacity(CHEAP_MOST),
                run: None,
                costs: Costs::default(),
                stalls: Stalls::default(),
                clock: parts.clock,
                now: parts.clock.now(),
            },
            seats,
            spin: parts.spin,
            wake: parts.wake,
            inbox: parts.inbox,
            tasks: parts.tasks,
            effort: Effort::default(),
            look: Look::default(),
            trace: None,
            burst: Vec::with_capacity(BURST as usize),
            paused: Vec::new(),
            polled,
            starved: false,
            edits: VecDeque::new(),
            counts: VecDeque::new(),
            questions: VecDeque::new(),
            is_answering: false,
            waiting: Vec::new(),
            events_due: Instant::ZERO,
            teller: 0,
            mail: Mail::default(),
            place: 0,
        })
    }

    /// Runs until told to stop; `stalls` are of the thread that it runs in.
    pub fn run(mut self, stalls: Stalls) {
        self.outside.stalls = stalls;
        let mut woke = self.outside.look();
        loop {
            let worked = self.outside.look();
            self.effort.busy_ns += worked.since(woke);
            self.effort.round.record(worked.since(woke));
            self.effort.rounds += 1;
            let timeout = self.timeout();
            let seats = &mut self.seats;
            let rung = self.wake.wait(timeout, |device| seats.wake(Backing::Device(device)));
            woke = self.outside.look();
            if rung && self.obey() {
                return;
            }
            self.seats.set_own(self.has_own_work());
            self.do_what_is_due();
            self.pump();
            if self.take_a_turn() {
                self.pump();
            }
        }
    }

    /// Whoever's turn it is does what it has to do. False where nobody has anything.
    fn take_a_turn(&mut self) -> bool {
        let Some((duty, credit_ns)) = self.seats.next_turn() else { return false };
        match duty {
            Duty::Own => self.work_for_itself(),
            Duty::Port(way @ Backing::Device(device)) => {
                let Device { switch, id, fills, .. } = self.outside.devices[device];
                // Copies of what came by the uplink do not keep it from being read while its ring
                // fills.
                let left_ns = self.make(way, (switch, id), if fills { credit_ns / 4 } else { credit_ns });
                // An uplink is read whatever is yet to be copied of it: what is for one endpoint
                // does not wait for that.
                let switch = &self.switch_slots[switch].switch;
                if left_ns > 0 && !switch.has_work(id) || switch.is_uplink(id) {
                    self.read(device, credit_ns);
                }
            }
            Duty::Port(way @ Backing::Link(link, side)) => {
                let end = self
                    .outside
                    .link_slots
                    .get(link)
                    .and_then(|link_slot| Some(link_slot.as_ref()?.ends[side as usize]));
                if let Some((switch, id)) = end {
                    self.make(way, (switch, id), credit_ns);
                }
                if end.is_none_or(|(switch, id)| !self.switch_slots[switch].switch.has_work(id)) {
                    self.seats.sleep(way);
                }
            }
        }
        true
    }

    /// Changes and what follows them, and numbers for who looks: questions and the rest take turns.
    fn work_for_itself(&mut self) {
        let start = self.outside.look();
        let has_others = self.has_edits() || self.has_counts();
        if self.has_questions() && (self.is_answering || !has_others) {
            self.is_answering = false;
            self.answer();
        } else {
            self.is_answering = true;
            if self.has_edits() && !self.must_count() {
                self.edit();
            } else {
                self.count();
            }
        }
        for index in 0..self.switch_slots.len() {
            let switch = &mut self.switch_slots[index].switch;
            switch.sweep();
            if let Some(left) = switch.take_left() {
                self.hand_over(Task::Unwanted(Box::new(left)));
            }
        }
        let took_ns = self.outside.look().since(start);
        self.seats.charge_own(measured_price(&mut self.outside.stalls, MOST_OWN_NS, took_ns));
        self.seats.set_own(self.has_own_work());
    }

    fn has_own_work(&self) -> bool {
        self.has_edits()
            || self.has_counts()
            || self.has_questions()
            || self.switch_slots.iter().any(|slot| slot.switch.is_sweeping())
    }

    /// Makes of a port's frames what is yet to be made of them, for so much time, writing included.
    /// What of that is left.
    fn make(&mut self, way: Backing, (switch, id): (usize, PortId), credit_ns: u64) -> u64 {
        let Some(switch_slot) = self.switch_slots.get_mut(switch).filter(|switch_slot| switch_slot.switch.has_work(id))
        else {
            return credit_ns;
        };
        let start = self.outside.now;
        let costs = &mut self.outside.costs;
        let (mut frames, mut bytes, mut cost_ns) = (0, 0, 0);
        while cost_ns < credit_ns
            && let Some(made) = switch_slot.switch.work(&mut self.pool, start, id)
        {
            frames += 1;
            bytes += made as u64;
            cost_ns = costs.make.of(frames, bytes) + costs.write.of(frames, bytes);
        }
        switch_slot.touched = true;
        let took_ns = self.outside.clock.now().since(start);
        let charged_ns = price(&mut costs.make, &mut self.outside.stalls, (frames, bytes), took_ns);
        self.seats.charge(way, charged_ns);
        self.outside.look();
        credit_ns.saturating_sub(cost_ns)
    }

    /// How long nothing needs to be done; `None` for ever.
    fn timeout(&mut self) -> Option<u64> {
        if self.spin
            || (self.seats.any_ready() && !self.starved)
            || self.has_own_work()
            || self.switch_slots.iter().any(|u| u.touched || u.switch.has_control())
        {
            return Some(0);
        }
        let now = self.outside.now;
        let mut wait = self.events_due.since(now);
        let links = self.outside.link_slots.iter().flatten().filter_map(|c| c.link.poll_timeout());
        let agents = self.switch_slots.iter().filter_map(|u| u.station.as_ref()?.poll_timeout());
        let protocols = self.switch_slots.iter().filter_map(|u| u.protocols.poll_timeout());
        let bonds = self.switch_slots.iter().filter_map(|u| u.bond.as_ref()?.due());
        let thinned = self.switch_slots.iter().filter_map(|u| u.switch.thinned_due());
        let switches = self.switch_slots.iter().filter_map(|u| u.due).chain(thinned);
        for due in switches.chain(links).chain(agents).chain(protocols).chain(bonds) {
            wait = wait.min(due.since(now));
        }
        if !self.paused.is_empty() {
            wait = wait.min(PAUSE_NS);
        }
        if std::mem::take(&mut self.starved) || !self.polled.is_empty() {
            wait = wait.min(STARVED_NS);
        }
        Some(wait)
    }

    /// Lets a device be read for so much time.
    fn read(&mut self, index: usize, credit_ns: u64) {
        let start = self.outside.now;
        let way = Backing::Device(index);
        let device = &mut self.outside.devices[index];
        // A device that rests is read again when the switch wants it, whatever the kernel says of
        // it meanwhile.
        let Some(port) = device.port.as_mut().filter(|_| !device.is_paused) else {
            self.seats.charge(way, self.outside.costs.read.of(1, 0));
            // What came by a bond's other members is copied at the turns of the first, which may be
            // gone.
            if !self.switch_slots[device.switch].switch.has_work(device.id) {
                self.seats.sleep(way);
            }
            return;
        };
        let burst = (credit_ns / device.frame_ns.max(1)).clamp(BURST_LEAST, BURST) as usize;
        let read = match port.rx(&mut self.pool, burst, &mut self.burst) {
            Ok(read) => read,
            Err(PortError::Gone(why)) => return self.lose(index, why),
            Err(PortError::Io(_)) => 0,
        };
        // Where the pool had no more, and not the port, the port will not call again for what it
        // has.
        self.starved = read < burst && self.pool.available().large == 0;
        let switch_slot = &mut self.switch_slots[device.switch];
        let bytes: usize = self.burst.iter().map(|frame| self.pool.len(frame)).sum();
        let is_enough = read >= burst || bytes >= BURST_BYTES;
        if switch_slot.switch.is_uplink(device.id) {
            let fills = device.note_left(start, is_enough, bytes as u64 / read.max(1) as u64);
            let prices = Prices { read: device.read, pass: self.outside.costs.write };
            switch_slot.switch.share_intake(fills.then_some(prices), device.full);
        }
        switch_slot.switch.read_ahead(&self.pool, device.id, &self.burst);
        match &mut self.trace {
            None => switch_slot.switch.rx_burst(&mut self.pool, start, device.id, &mut self.burst),
            Some(trace) => {
                for frame in self.burst.drain(..) {
                    trace.rx((device.switch, &mut switch_slot.switch), &mut self.pool, start, device.id, frame);
                }
            }
        }
        switch_slot.touched = true;
        // What it has yet to make of frames is done at its turns too.
        let has_work = switch_slot.switch.has_work(device.id);
        if !is_enough && !self.starved && !has_work {
            self.seats.sleep(way);
        }
        if switch_slot.switch.is_paused(device.id, start) {
            device.is_paused = true;
            self.paused.push(index);
            if !has_work {
                self.seats.sleep(way);
            }
        }
        let took = self.outside.look().since(start);
        let cost_ns = self.account(index, read as u64, bytes as u64, took);
        self.seats.charge(way, if read == 0 && self.starved { cost_ns.max(credit_ns) } else { cost_ns });
    }

    /// What reading cost by estimate.
    fn account(&mut self, index: usize, frames: u64, bytes: u64, took_ns: u64) -> u64 {
        let device = &mut self.outside.devices[index];
        device.use_.read_ns += took_ns;
        if frames == 0 {
            // Much may have been looked at: a guest says how many chains are in a ring that runs
            // and is not wanted.
            return measured_price(&mut self.outside.stalls, STALLED_NS, took_ns);
        }
        let costs = &mut self.outside.costs;
        costs.read.learn(frames, bytes, took_ns);
        let cost_ns = price(&mut device.read, &mut self.outside.stalls, (frames, bytes), took_ns);
        // How many fit into a turn depends on what writing them costs, too.
        device.frame_ns = (device.frame_ns * 3 + (cost_ns + costs.write.of(frames, bytes)) / frames) / 4;
        cost_ns
    }

    /// Moves what the switches let go and what has arrived over links: until nothing is due, or
    /// [`PUMP`] frames were moved. The next call goes on behind where this one stopped.
    fn pump(&mut self) {
        let (switches, all) = (self.switch_slots.len(), self.switch_slots.len() + self.outside.link_slots.len());
        let (mut moved, mut quiet) = (Moved::default(), 0);
        while !moved.is_enough(PUMP) && quiet < all {
            let index = self.place;
            let now = if index < switches { self.pump_switch(index) } else { self.pump_link(index - switches) };
            self.place = (index + 1) % all;
            quiet = if now.frames == 0 { quiet + 1 } else { 0 };
            moved.add(now.frames, now.cost_ns);
        }
    }

    fn pump_switch(&mut self, index: usize) -> Moved {
        let Worker { pool, switch_slots, outside, effort, seats, .. } = self;
        let switch_slot = &mut switch_slots[index];
        match switch_slot.due {
            Some(due) if due <= outside.now => effort.lag.record(outside.now.since(due)),
            _ if !switch_slot.touched => return Moved::default(),
            _ => {}
        }
        let (mut moved, mut lost, mut is_elsewhere) = (Moved::default(), None, false);
        // Where the last frame left, and whose it was: mostly the next one is of the same.
        let (mut last, mut way, mut target) = (None, None, None);
        switch_slot.touched = loop {
            if moved.is_enough(VISIT) {
                break true;
            }
            let Some((port, frame)) = switch_slot.switch.tx_due(pool, outside.now) else { break false };
            let payer = pool.meta(&frame).payer();
            if last != Some((port, payer)) {
                last = Some((port, payer));
                (way, target) = switch_slot.target(port, payer);
                outside.end_run_of_others(seats, target);
                outside.written.extend(target.filter(|target| {
                    let device = &mut outside.devices[target.device];
                    !std::mem::replace(&mut device.is_written, true)
                }));
            }
            let written = Written::of(pool, &frame, &outside.costs.write);
            moved.add(1, written.usual_ns);
            let left = outside.leave(pool, &mut switch_slot.switch, port, way, frame);
            is_elsewhere = target.is_none();
            if let Some(target) = target {
                outside.note_write(seats, target, written, left.is_ok());
            }
            if let Err(refused) = left {
                switch_slot.switch.port_drops(port, refused.reason(), 1);
                if let (Refused::Gone, Some(Backing::Device(device))) = (refused, way) {
                    lost = Some(device);
                }
            }
        };
        outside.end_run(seats);
        if is_elsewhere && !outside.written.is_empty() {
            // What went to no device is no device's to pay for.
            outside.now = outside.clock.now();
        }
        lost = outside.flush(pool, &mut switch_slot.switch, seats).or(lost);
        // What is left over now is not late.
        switch_slot.due = if switch_slot.touched { None } else { switch_slot.switch.poll_due() };
        while let Some(port) = switch_slot.switch.poll_work() {
            if let Some(way) = switch_slot.ways.get(port.0 as usize).copied().flatten() {
                seats.wake(way);
            }
        }
        if let Some(device) = lost.filter(|&d| outside.devices[d].port.is_some()) {
            self.lose(device, "the device refused a frame: it was deleted".to_owned());
        }
        moved
    }

    fn pump_link(&mut self, index: usize) -> Moved {
        let Worker { pool, switch_slots, outside, effort, trace, seats, .. } = self;
        let mut moved = Moved::default();
        let Some(link_slot) = &mut outside.link_slots[index] else { return moved };
        match link_slot.link.poll_timeout() {
            Some(due) if due <= outside.now => effort.lag.record(outside.now.since(due)),
            _ => return moved,
        }
        while !moved.is_enough(VISIT) {
            let Some((side, frame)) = link_slot.link.poll(pool, outside.now) else { break };
            let (switch, port) = link_slot.ends[side as usize];
            let (from, _) = link_slot.ends[side.other() as usize];
            let ways = &switch_slots[from].ways;
            let sender = pool.meta(&frame).payer().and_then(|port| *ways.get(port.0 as usize)?);
            let Costs { make, write, .. } = &outside.costs;
            let bytes = pool.len(&frame) as u64;
            let (make_ns, write_ns) = (make.of(1, bytes), write.of(1, bytes));
            moved.add(1, make_ns);
            link_slot.charge_crossing(seats, (index, side), sender, (make_ns, write_ns));
            match trace {
                None => {
                    switch_slots[switch].switch.rx(pool, outside.now, port, frame);
                }
                Some(trace) => trace.rx((switch, &mut switch_slots[switch].switch), pool, outside.now, port, frame),
            }
            switch_slots[switch].touched = true;
        }
        moved
    }

    /// What is done by the clock: devices that rest, and events.
    fn do_what_is_due(&mut self) {
        let now = self.outside.now;
        let (seats, outside, switch_slots) = (&mut self.seats, &mut self.outside, &self.switch_slots);
        self.paused.retain(|&index| {
            let device = &mut outside.devices[index];
            device.is_paused = switch_slots[device.switch].switch.is_paused(device.id, now);
            if !device.is_paused {
                seats.wake(Backing::Device(index));
            }
            device.is_paused
        });
        for &index in &self.polled {
            if outside.devices[index].port.is_some() && !outside.devices[index].is_paused {
                seats.wake(Backing::Device(index));
            }
        }
        if self.trace.as_ref().is_some_and(|trace| trace.is_over(now)) {
            self.trace = None;
        }
        self.run_protocols();
        self.run_bonds();
        self.thin();
        if now >= self.events_due {
            self.events_due = now.plus_ns(EVENTS_NS);
            self.end_needless_thinning();
            self.report_events();
            self.look_for_shortage();
            // No read pays for that.
            self.outside.look();
        }
    }
}

impl Outside {
    /// Reads the clock.
    fn look(&mut self) -> Instant {
        self.now = self.clock.now();
        self.now
    }

    /// Sends a frame out of its switch by a port, which gets it back.
    fn leave(
        &mut self,
        pool: &mut Pool,
        switch: &mut Switch,
        port: PortId,
        way: Option<Backing>,
        frame: Frame,
    ) -> Result<(), Refused> {
        match way {
            None => {
                switch.give_back(pool, self.now, port, frame);
                Err(Refused::Down)
            }
            Some(Backing::Link(index, side)) => {
                if switch.wants_back(pool, port, &frame)
                    && let Some(copy) = pool.duplicate(&frame)
                {
                    switch.give_back(pool, self.now, port, copy);
                }
                match &mut self.link_slots[index] {
                    Some(link_slot) => link_slot.link.send(pool, self.now, side, frame),
                    None => pool.free(frame),
                }
                Ok(())
            }
            Some(Backing::Device(index)) => {
                let device = &mut self.devices[index];
                let Some(open) = &mut device.port else {
                    switch.give_back(pool, self.now, port, frame);
                    return Err(Refused::Down);
                };
                let result = open.write(pool, &frame);
                switch.give_back(pool, self.now, port, frame);
                result
            }
        }
    }

    /// Lets the devices that a switch has written to publish their bursts. Gives a device that is
    /// gone.
    fn flush(&mut self, pool: &mut Pool, switch: &mut Switch, seats: &mut Seats) -> Option<usize> {
        let (mut lost, mut written) = (None, std::mem::take(&mut self.written));
        for target in written.drain(..) {
            let index = target.device;
            let device = &mut self.devices[index];
            device.is_written = false;
            let Some(port) = &mut device.port else { continue };
            let flushed = port.flush(pool);
            if flushed == Ok(false) {
                continue;
            }
            self.note_flush(seats, target);
            if let Err(Unsent { frames, refused }) = flushed {
                switch.port_drops(self.devices[index].id, refused.reason(), frames);
                if refused == Refused::Gone {
                    lost = Some(index);
                }
            }
        }
        self.written = written;
        lost
    }
}
