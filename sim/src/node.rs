//! Node: a switch, its agent, and the worker of one machine that runs them.

use std::collections::VecDeque;

use datapath::bond::{MemberId, MemberState};
use datapath::frame::{Frame, Pool};
use datapath::program::{Change, EndpointId, PortId, Program};
use datapath::protocol::Protocols;
use datapath::switch::{State, Switch};
use datapath::units::Instant;
use datapath::verdict::Reason;

use crate::mail::{Letter, Mail};
use crate::meter::{MAX_FRAME_MOST, Meter};
use crate::random::Random;
use crate::restart::{Former, Restart, Step};
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
    restart: Option<Restart>,
    former: Option<Former>,
    /// The members whose links are up.
    up: Vec<MemberId>,
    /// Where the next process has its seed from.
    random: Random,
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
        let worker = worker.map(|spec| Box::new(Worker::new(spec, program, &mut switch)));
        Node {
            peers: vec![None; program.ports.len()],
            meter: uplink.map(|uplink| (uplink.port(), Meter::new(uplink))),
            switch,
            steering,
            protocols: Protocols::default(),
            worker,
            lags_until: Instant::ZERO,
            waiting: VecDeque::new(),
            restart: None,
            former: None,
            up: Vec::new(),
            random: Random::new(seed),
        }
    }

    /// Frames of the world that it holds.
    #[must_use]
    pub fn frames(&self) -> usize {
        let former = self.former.as_ref().map_or(0, Former::frames);
        let own = self.worker.as_ref().map_or_else(|| self.switch.frames(), |worker| worker.frames());
        self.waiting.len() + former + own
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
        self.up.retain(|&other| other != member);
        self.up.extend(is_up.then_some(member));
    }

    /// Its process is killed, and begins anew after a while. Not for one with a worker.
    pub fn kill(&mut self, pool: &mut Pool, now: Instant, away_ns: u64) {
        self.switch.clear(pool);
        if let Some(mut former) = self.former.take() {
            former.clear(pool);
        }
        self.waiting.drain(..).for_each(|(_, frame)| pool.free(frame));
        self.restart = Some(Restart::Away(now.plus_ns(away_ns)));
    }

    /// Its process gives way to another, where no restart is under way. Not for one with a worker.
    pub fn take_over(&mut self, now: Instant, away_ns: u64) {
        self.restart.get_or_insert_with(|| Restart::takeover(now, away_ns));
    }

    /// Goes on with a restart that is due. False where nobody sends.
    fn restart(&mut self, pool: &mut Pool, now: Instant) -> bool {
        while let Some(restart) = self.restart.take_if(|restart| restart.due() <= now) {
            match restart.step(pool, now, &mut self.switch) {
                Step::Goes(restart) => self.restart = Some(restart),
                Step::Begins(state) => {
                    self.begin(pool, now, state.as_ref().map(|(state, away_ns)| (&**state, *away_ns)))
                }
            }
        }
        self.former.take_if(|former| former.has_ended(pool, now));
        self.restart.as_ref().is_none_or(Restart::sends)
    }

    /// A frame that has come which others may wait for.
    fn awaited(&mut self) -> Option<(PortId, Frame)> {
        let place = |port: PortId| self.waiting.iter().position(|&(from, _)| from == port);
        let at = self.switch.awaited_ports().into_iter().find_map(place)?;
        self.waiting.remove(at)
    }

    /// The next process begins.
    fn begin(&mut self, pool: &mut Pool, now: Instant, state: Option<(&State, u64)>) {
        let next = Switch::new(self.switch.program(), self.random.word()).expect("it is the program of before");
        let former = std::mem::replace(&mut self.switch, next);
        self.switch.watch_arrivals(self.steering.is_some());
        if let Some((state, away_ns)) = state {
            self.former = Some(Former::new(now, former));
            self.switch.import(now, away_ns, state).expect("it is of the same version");
        }
        for &member in &self.up {
            self.switch.set_member_state(pool, now, member, MemberState::Distributing);
        }
    }

    /// Its loop is not run until then.
    pub fn lag(&mut self, until: Instant) {
        self.lags_until = self.lags_until.max(until);
    }

    /// A frame has come to a port.
    pub fn rx(&mut self, pool: &mut Pool, now: Instant, port: PortId, frame: Frame) {
        if let Some(worker) = &mut self.worker {
            worker.receive(pool, &mut self.switch, port, frame);
        } else if self.restart.as_ref().is_some_and(Restart::loses) {
            pool.free(frame);
        } else if self.switch.is_paused(port, now) {
            self.switch.port_drops(port, Reason::Paused, 1);
            pool.free(frame);
        } else if now >= self.lags_until && self.restart.is_none() {
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
        if !self.restart(pool, now) {
            return Ok(false);
        }
        if self.restart.as_ref().is_some_and(Restart::reads_awaited) {
            while let Some((port, frame)) = self.awaited() {
                self.switch.rx(pool, now, port, frame);
            }
        }
        if self.restart.is_none() {
            while let Some((port, frame)) = self.waiting.pop_front() {
                self.switch.rx(pool, now, port, frame);
            }
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
        if let Some(sent) = self.former.as_mut().and_then(|former| former.tx(pool, now)) {
            return Ok(Some(sent));
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
        if let Some(restart) = &self.restart {
            let work = self.switch.poll_timeout().filter(|_| restart.sends());
            return Some(restart.due().min(work.unwrap_or(restart.due())).max(self.lags_until).max(now));
        }
        let waiting = (!self.waiting.is_empty()).then_some(now);
        let agent = self.steering.as_ref().and_then(Steering::deadline);
        let control = self.switch.has_control().then_some(now);
        let work = match &self.worker {
            Some(worker) => worker.deadline(now, &self.switch),
            None => self.switch.poll_timeout(),
        };
        let former = self.former.as_ref().map(Former::deadline);
        let due = [waiting, agent, control, self.protocols.poll_timeout(), work, former].into_iter().flatten().min();
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
