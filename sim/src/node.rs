//! Node: a switch, its agent, and the worker of one machine that runs them.

use std::collections::VecDeque;

use datapath::bond::{MemberId, MemberState};
use datapath::frame::{Frame, Pool};
use datapath::program::{Change, EndpointId, PortId, Program};
use datapath::protocol::Protocols;
use datapath::switch::Switch;
use datapath::units::Instant;
use datapath::verdict::Reason;

use crate::mail::{Letter, Mail};
use crate::meter::{MAX_FRAME_MOST, Meter};
use crate::steering::Steering;
use crate::topology::Plug;
use crate::worker::{Worker, WorkerSpec};

/// Frames that wait at a switch whose loop lags; more are lost, as in a TAP's ring.
const LAG_FRAMES: usize = 1000;

/// Bytes of the longest segment on the wire here.
const SEGMENT_MOST: u64 = 1542;

/// A switch that runs.
#[derive(Debug)]
pub struct Node {
    /// The switch.
    pub switch: Switch,
    /// Its agent, where it has one.
    pub steering: Option<Steering>,
    /// What else runs beside it.
    pub protocols: Protocols,
    /// Whose time and memory it takes; without, it has what it needs.
    pub worker: Option<Box<Worker>>,
    /// What each port is plugged into.
    pub peers: Vec<Option<Plug>>,
    lags_until: Instant,
    waiting: VecDeque<(PortId, Frame)>,
    /// What has left by the uplink.
    meter: Option<(PortId, Meter)>,
}

impl Node {
    /// A switch that runs `program`.
    ///
    /// # Panics
    /// The program contradicts itself: that is a mistake in the test that made it.
    #[must_use]
    pub fn new(program: &Program, steering: Option<Steering>, worker: Option<&WorkerSpec>, seed: u64) -> Self {
        let uplink = program.uplink.as_ref();
        let mut switch = Switch::new(program, seed).expect("a topology's programs are sound");
        switch.watch_arrivals(steering.is_some());
        Node {
            peers: vec![None; program.ports.len()],
            meter: uplink.map(|uplink| (uplink.port(), Meter::new(uplink))),
            switch,
            steering,
            protocols: Protocols::default(),
            worker: worker.map(|spec| Box::new(Worker::new(spec, program))),
            lags_until: Instant::ZERO,
            waiting: VecDeque::new(),
        }
    }

    /// Frames of the world that it holds.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.waiting.len() + self.worker.as_ref().map_or_else(|| self.switch.frames(), |worker| worker.frames())
    }

    /// The pool of the switch's frames: its worker's, or the world's.
    fn pool<'a>(worker: &'a mut Option<Box<Worker>>, world: &'a mut Pool) -> &'a mut Pool {
        worker.as_mut().map_or(world, |worker| &mut worker.pool)
    }

    /// Somebody changes the switch. A change that does not fit is refused, and nothing happens.
    pub fn change(&mut self, world: &mut Pool, now: Instant, change: Change) {
        let pool = Self::pool(&mut self.worker, world);
        // Refused changes are a test as well.
        let _ = self.switch.change(pool, now, change);
    }

    /// The link of a member of its bond is up, or is not.
    pub fn set_member(&mut self, world: &mut Pool, now: Instant, member: MemberId, is_up: bool) {
        let pool = Self::pool(&mut self.worker, world);
        let state = if is_up { MemberState::Distributing } else { MemberState::Down };
        self.switch.set_member_state(pool, now, member, state);
    }

    /// Its loop is not run until then.
    pub fn lag(&mut self, until: Instant) {
        self.lags_until = self.lags_until.max(until);
    }

    /// A frame has come to a port.
    pub fn rx(&mut self, pool: &mut Pool, now: Instant, port: PortId, frame: Frame) {
        if let Some(worker) = &mut self.worker {
            worker.receive(pool, &mut self.switch, port, frame);
        } else if self.switch.is_paused(port, now) {
            self.switch.port_drops(port, Reason::Paused, 1);
            pool.free(frame);
        } else if now >= self.lags_until {
            self.switch.rx(pool, now, port, frame);
        } else if self.waiting.len() < LAG_FRAMES {
            self.waiting.push_back((port, frame));
        } else {
            self.switch.port_drops(port, Reason::PortRing, 1);
            pool.free(frame);
        }
    }

    /// A letter for its agent has come. What it makes of it, `on_time` sees to.
    pub fn hear(&mut self, now: Instant, letter: &Letter) {
        if let Some(steering) = &mut self.steering {
            steering.hear(now, letter);
        }
    }

    /// What is due before frames are sent: those that waited for the loop, then the agent; then the
    /// worker, where there is one. False where the loop lags, and nothing is sent.
    ///
    /// # Errors
    /// See [`Meter::count`].
    pub fn on_time(&mut self, pool: &mut Pool, now: Instant, mail: &mut Mail) -> Result<bool, String> {
        if now < self.lags_until {
            return Ok(false);
        }
        while let Some((port, frame)) = self.waiting.pop_front() {
            self.switch.rx(pool, now, port, frame);
        }
        if let Some(steering) = &mut self.steering {
            steering.on_time(Self::pool(&mut self.worker, pool), now, &mut self.switch, mail);
        }
        self.protocols.run(Self::pool(&mut self.worker, pool), now, &mut self.switch);
        if let Some(worker) = &mut self.worker {
            let meter = &mut self.meter;
            worker.run(pool, now, &mut self.switch, &mut |at, port, wire_bytes| count(meter, at, port, wire_bytes))?;
        }
        Ok(true)
    }

    /// The next frame it sends, and the port. The error says that the uplink was sent more than its
    /// rate.
    ///
    /// # Errors
    /// See [`Meter::count`].
    pub fn tx(&mut self, pool: &mut Pool, now: Instant) -> Result<Option<(PortId, Frame)>, String> {
        if let Some(worker) = &mut self.worker {
            return Ok(worker.poll(now));
        }
        let Some((port, frame)) = self.switch.tx(pool, now) else { return Ok(None) };
        // Here links carry the frames themselves.
        if self.switch.wants_back(pool, port, &frame)
            && let Some(copy) = pool.duplicate(&frame)
        {
            self.switch.give_back(pool, now, port, copy);
        }
        count(&mut self.meter, now, port, pool.meta(&frame).wire_bytes)?;
        Ok(Some((port, frame)))
    }

    /// An endpoint's queues hold at most their bound, or one frame.
    ///
    /// # Errors
    /// Which one does not.
    pub fn check_lanes(&self) -> Result<(), String> {
        if let Some(worker) = &self.worker
            && worker.pool.in_use() != self.switch.frames()
        {
            let (pool, switch) = (worker.pool.in_use(), self.switch.frames());
            return Err(format!("{pool} frames in the worker's pool, but {switch} held by its switch"));
        }
        let endpoints = &self.switch.program().endpoints;
        for (index, endpoint) in endpoints.iter() {
            // What a frame is trimmed to is reckoned in segments of the average length: the last
            // one is shorter.
            let bound = u64::from(endpoint.queue_bytes).max(MAX_FRAME_MOST) + SEGMENT_MOST;
            for waits in self.switch.backlogs_bytes(EndpointId(index)) {
                if waits > bound {
                    return Err(format!("endpoint {index}: {waits} bytes wait where {bound} may"));
                }
            }
        }
        Ok(())
    }

    /// When there is something to do, if nothing arrives before.
    #[must_use]
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let waiting = (!self.waiting.is_empty()).then_some(now);
        let agent = self.steering.as_ref().and_then(Steering::deadline);
        let control = self.switch.has_control().then_some(now);
        let work = match &self.worker {
            Some(worker) => worker.deadline(now, &self.switch),
            None => self.switch.poll_timeout(),
        };
        let due = [waiting, agent, control, self.protocols.poll_timeout(), work].into_iter().flatten().min();
        due.map(|at| at.max(self.lags_until).max(now))
    }
}

/// Counts what leaves by the uplink.
fn count(meter: &mut Option<(PortId, Meter)>, now: Instant, port: PortId, wire_bytes: u32) -> Result<(), String> {
    match meter {
        Some((uplink, meter)) if *uplink == port => meter.count(now, wire_bytes),
        _ => Ok(()),
    }
}
