//! Hosts: flow ends behind one NIC.
//!
//! Call `rx` (frames in), `on_time` when `deadline` has come, then `poll_tx` until it gives `None`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use core::net::Ipv6Addr;

use datapath::frame::{Fifo, Frame, Pool};
use datapath::units::{Instant, Rate};
use datapath::wire::Mac;

use crate::attack;
use crate::flow::{FlowEnd, Role};
use crate::packet::{self, Address};
use crate::topology::{HostSpec, tenant_of};

/// Frames that wait for a host that stalls, as in a TAP's ring; the kernel's default length.
const STALLED_FRAMES: u32 = 1000;

/// How fast a host's CPU sends: what one thread of a Linux stack was measured to reach between two TAP devices with offloaded frames.
const SEND_RATE: Rate = Rate(30 * Rate::GBIT);
/// What a frame costs beside its bytes, in nanoseconds: a system call and the stack, as measured for small frames.
const SEND_FRAME_NS: u64 = 1_700;
/// How far a host may run ahead of that, in nanoseconds: it is woken less often, and frames are only this much too early.
const SEND_AHEAD_NS: u64 = 20_000;

/// What is counted for a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostStats {
    /// Frames that were for others: flooded.
    pub strays: u64,
    /// Of these, frames of control protocols that are the switches' own.
    pub controls: u64,
    /// Frames that its stack could not read.
    pub unreadable: u64,
    /// Frames for a port on which nothing listens.
    pub unexpected: u64,
    /// Frames lost because it stalled too long.
    pub stall_drops: u64,
}

/// One host.
#[derive(Debug)]
pub struct Host {
    spec: HostSpec,
    address: Address,
    ends: Vec<End>,
    by_port: HashMap<u16, usize>,
    /// Ends that may have something to send, each once.
    ready: VecDeque<usize>,
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    /// When its CPU has sent what it sent.
    busy_until: Instant,
    stalled_until: Instant,
    stalled: Fifo,
    stats: HostStats,
}

#[derive(Debug)]
struct End {
    flow: FlowEnd,
    ready: bool,
    /// The earliest entry in the heap that is still to be heeded.
    armed: Option<Instant>,
}

impl Host {
    /// A host without flows.
    #[must_use]
    pub fn new(spec: HostSpec, address: Address) -> Self {
        Host {
            spec,
            address,
            ends: Vec::new(),
            by_port: HashMap::new(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            busy_until: Instant::ZERO,
            stalled_until: Instant::ZERO,
            stalled: Fifo::default(),
            stats: HostStats::default(),
        }
    }

    /// Adds an end of a flow; its place among this host's.
    pub fn add(&mut self, flow: FlowEnd) -> usize {
        let place = self.ends.len();
        if !matches!(flow.role, Role::Attack { .. }) {
            self.by_port.insert(flow.envelope.port, place);
        }
        self.ends.push(End { flow, ready: false, armed: None });
        self.arm(place);
        place
    }

    /// What it was made of.
    #[must_use]
    pub fn spec(&self) -> &HostSpec {
        &self.spec
    }

    /// What was counted.
    #[must_use]
    pub fn stats(&self) -> HostStats {
        self.stats
    }

    /// An end of a flow.
    #[must_use]
    pub fn end(&self, place: usize) -> &FlowEnd {
        &self.ends[place].flow
    }

    /// An end whose time had not come begins at `now`.
    pub fn start(&mut self, place: usize, now: Instant) {
        self.ends[place].flow.from_until.0 = now;
        self.wake(place);
    }

    /// Frames it holds.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.stalled.frames() as usize
    }

    /// When there is something to do, if nothing arrives before.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let backlog = (!self.stalled.is_empty()).then_some(self.stalled_until);
        let turn = (!self.ready.is_empty()).then_some(self.busy_until);
        [timer, turn, backlog].into_iter().flatten().min().map(|at| at.max(self.stalled_until))
    }

    /// Neither reads nor sends until then.
    pub fn stall(&mut self, until: Instant) {
        self.stalled_until = self.stalled_until.max(until);
    }

    /// A frame arrived. The error says what it proves to be wrong with the network.
    pub fn rx(&mut self, pool: &mut Pool, now: Instant, frame: Frame) -> Result<(), String> {
        if now < self.stalled_until {
            if self.stalled.frames() < STALLED_FRAMES {
                self.stalled.push(pool, frame);
            } else {
                self.stats.stall_drops += 1;
                pool.free(frame);
            }
            return Ok(());
        }
        let result = self.read(pool, now, &frame);
        pool.free(frame);
        result
    }

    /// Time passed `deadline`.
    pub fn on_time(&mut self, pool: &mut Pool, now: Instant) -> Result<(), String> {
        if now < self.stalled_until {
            return Ok(());
        }
        while let Some(frame) = self.stalled.pop(pool) {
            self.rx(pool, now, frame)?;
        }
        while let Some(&Reverse((at, place))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            if self.ends[place].armed != Some(at) {
                continue;
            }
            self.ends[place].armed = None;
            if self.ends[place].flow.deadline().is_some_and(|deadline| deadline <= now) {
                self.ends[place].flow.on_timer(now);
                self.wake(place);
            } else {
                self.arm(place);
            }
        }
        Ok(())
    }

    /// The next frame it sends. Ends take turns.
    pub fn poll_tx(&mut self, pool: &mut Pool, now: Instant) -> Option<Frame> {
        if now < self.stalled_until || now.plus_ns(SEND_AHEAD_NS) < self.busy_until {
            return None;
        }
        while let Some(place) = self.ready.pop_front() {
            let sent = self.ends[place].flow.poll_tx(pool, now);
            if let Some(frame) = sent {
                self.ready.push_back(place);
                let bytes = pool.len(&frame) as u64;
                self.busy_until = self.busy_until.max(now).plus_ns(SEND_FRAME_NS + SEND_RATE.time_ns(bytes));
                return Some(frame);
            }
            self.ends[place].ready = false;
            self.arm(place);
        }
        None
    }

    fn read(&mut self, pool: &Pool, now: Instant, frame: &Frame) -> Result<(), String> {
        let bytes = pool.bytes(frame);
        let macs = bytes.get(..12).and_then(|macs| macs.split_first_chunk::<6>());
        let Some((to, from)) = macs.and_then(|(to, from)| Some((Mac(*to), Mac(from.try_into().ok()?)))) else {
            return Err(format!("a frame of {} bytes was delivered: no room for addresses", bytes.len()));
        };
        if tenant_of(from) != self.spec.tenant {
            return Err(format!(
                "tenant {}: was delivered a frame from {from:?}, of tenant {}",
                self.spec.tenant,
                tenant_of(from)
            ));
        }
        if let Some((neighbour, mac)) = attack::read_advertisement(bytes) {
            self.believe(neighbour, mac);
            return Ok(());
        }
        if to != self.address.mac && to != Mac::BROADCAST {
            self.stats.strays += 1;
            self.stats.controls += u64::from(attack::is_control(to));
            return Ok(());
        }
        let packet = match packet::read(pool, frame) {
            Ok(packet) if to == self.address.mac || packet.to_ip == self.address.ip => packet,
            Ok(_) => {
                self.stats.strays += 1;
                return Ok(());
            }
            Err(_) => {
                self.stats.unreadable += 1;
                return Ok(());
            }
        };
        let Some(&place) = self.by_port.get(&packet.port) else {
            self.stats.unexpected += 1;
            return Ok(());
        };
        self.ends[place].flow.rx(now, &packet, bytes)?;
        self.wake(place);
        Ok(())
    }

    /// A neighbour says where it is. As hosts do, this one believes it, and sends there from now on.
    fn believe(&mut self, neighbour: Ipv6Addr, mac: Mac) {
        for end in &mut self.ends {
            let to = &mut end.flow.envelope.to;
            if attack::link_local(to) == neighbour && to.mac != Mac::BROADCAST {
                to.mac = mac;
            }
        }
    }

    fn wake(&mut self, place: usize) {
        if !self.ends[place].ready {
            self.ends[place].ready = true;
            self.ready.push_back(place);
        }
    }

    /// Puts an end's deadline into the heap, where it is earlier than what is there.
    fn arm(&mut self, place: usize) {
        let end = &mut self.ends[place];
        if let Some(at) = end.flow.deadline()
            && end.armed.is_none_or(|armed| at < armed)
        {
            end.armed = Some(at);
            self.timers.push(Reverse((at, place)));
        }
    }
}
