//! Orders: what other threads want of the worker, which it does between two rounds.
//!
//! None may take long: what does is done a part at a time, in as many requests
//! ([`Request::Learned`]) or in as many rounds ([`Request::Snapshot`], [`Request::Edit`]), at the
//! worker's own turns.

use super::agents::AgentPart;
use super::answer::Reply;
use super::edit::Edits;
use super::services::{ConnectionsPart, ServicesPart};
use super::snapshot::{Count, Snapshot};
use super::tables::LearnedPart;
use super::trace::{Armed, Trace};
use super::vcc::VccPart;
use super::{AnyPort, Backing, Lent, Task, Worker};
use crate::cluster::peers::Voice;
use crate::worker::ends::Wanted;
use control::bond::LinkState;
use datapath::bond::MemberId;
use datapath::frame_trace::FrameTrace;
use datapath::offload::Offload;
use datapath::program::PortId;
use datapath::service::{Backend, ServiceId};
use datapath::stats::Traffic;
use datapath::switch::State;
use datapath::units::Both;
use datapath::vcc::early::Part;
use datapath::verdict::Reason;
use ports::Inherited;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};

/// A port that the worker cannot watch.
pub struct Unwatched {
    /// The port.
    pub port: AnyPort,
    /// Why, and what helps.
    pub why: String,
}

/// What another thread wants of the worker.
pub enum Request {
    /// Fill in the numbers, a part in each round, and send them back.
    Snapshot {
        /// What to fill: made by who asks, with room for all, so that the worker allocates nothing.
        into: Box<Snapshot>,
        /// Where to send it.
        reply: Reply<Box<Snapshot>>,
    },
    /// Say what endpoints of a switch have learned.
    Learned {
        /// The switch.
        switch: usize,
        /// The endpoint to begin at.
        from: u32,
        /// Where to send the answer.
        reply: Reply<LearnedPart>,
    },
    /// Say what is counted of a switch's services.
    Services {
        /// The switch.
        switch: usize,
        /// The numbers of those that are wanted.
        which: Range<u32>,
        /// Where to send the answer.
        reply: Reply<ServicesPart>,
    },
    /// Say which connections a service has.
    Connections {
        /// The switch.
        switch: usize,
        /// The service.
        service: ServiceId,
        /// Whose, where not everybody's.
        client: Option<IpAddr>,
        /// The place of the table to begin at.
        from: u32,
        /// Where to send the answer.
        reply: Reply<ConnectionsPart>,
    },
    /// A server has reported its load.
    Load {
        /// The switch.
        switch: usize,
        /// The service.
        service: ServiceId,
        /// The backend.
        backend: Box<Backend>,
        /// Its load average, in thousandths.
        load: u64,
    },
    /// Say what virtual congestion control does for endpoints of a switch.
    Vcc {
        /// The switch.
        switch: usize,
        /// The endpoint to begin at.
        from: u32,
        /// Connections of each at most.
        most: usize,
        /// Only these, where it is about some.
        wanted: Option<Box<Wanted>>,
        /// Where to send the answer.
        reply: Reply<VccPart>,
    },
    /// A device lost frames: before they could be read, or on their way to one of several clients.
    Drops {
        /// Its number.
        device: usize,
        /// How many since the last such request.
        frames: u64,
        /// Whether they could not be read in time.
        are_unread: bool,
    },
    /// Frames from and for these devices went past their switches.
    Passed(Vec<(usize, Both<Traffic>)>),
    /// A device is gone.
    Gone {
        /// Its number.
        device: usize,
        /// How.
        why: String,
    },
    /// A device that was lost, or was yet to come, is open; or its port is to be replaced by
    /// another.
    Restore {
        /// Its number.
        device: usize,
        /// The port.
        port: AnyPort,
        /// Where it goes back to its maker where it cannot be watched. Has room for one. Without,
        /// the device is lost.
        back: Option<SyncSender<Unwatched>>,
    },
    /// The link of a member of an uplink is so now.
    Link {
        /// The device's number.
        device: usize,
        /// How.
        link: LinkState,
    },
    /// The operator has chosen the active member of a switch's bond. Nothing where it is not up.
    Active {
        /// The switch.
        switch: usize,
        /// The member.
        member: MemberId,
    },
    /// Send a device's port back, and have none until [`Request::Restore`]: it is about to be
    /// another.
    Take {
        /// Its number.
        device: usize,
        /// Where to. Has room for one.
        reply: SyncSender<Option<AnyPort>>,
    },
    /// A device whose port was taken has none for now, as when it is lost: it is not about to be
    /// another.
    Absent {
        /// Its number.
        device: usize,
    },
    /// Send back second descriptors of the devices, with their numbers.
    Lend {
        /// Of which.
        which: Lent,
        /// Where to. Has room for one.
        reply: SyncSender<Vec<(usize, Inherited)>>,
    },
    /// Write down connections of a switch for the next process, while frames go on.
    Early {
        /// The switch.
        switch: usize,
        /// Where to: made by who asks, with room for all.
        part: Box<Part>,
        /// Where to send it. Has room for one.
        reply: SyncSender<Box<Part>>,
    },
    /// Stop reading, send what can be sent, and say when that is done.
    Yield {
        /// By switch, what was written early.
        early: Vec<Vec<Part>>,
        /// To whom. Has room for one.
        reply: SyncSender<Vec<State>>,
    },
    /// Say that the worker answers.
    Ping {
        /// To whom. Has room for one.
        reply: SyncSender<()>,
    },
    /// Go on after [`Request::Yield`].
    Resume,
    /// Send what is left after [`Request::Yield`], and end.
    Finish,
    /// Trace frames. Where a trace runs already, this one is dropped, and with it its channel.
    Trace(Box<Trace>),
    /// Say what would become of a frame.
    Explain {
        /// Its switch.
        switch: usize,
        /// The port it would come in by.
        port: PortId,
        /// The frame.
        bytes: Vec<u8>,
        /// What is yet to be done with it.
        offload: Offload,
        /// Where to send the answer: `None` where there is no buffer. Has room for one.
        reply: SyncSender<Option<FrameTrace>>,
    },
    /// A device's line has got a carrier, or lost it.
    Carrier {
        /// Its number.
        device: usize,
        /// Whether it has one.
        is_up: bool,
    },
    /// Another daemon's agent has said something.
    Heard {
        /// Its host, authenticated.
        from: Arc<str>,
        /// What it said.
        datagram: Vec<u8>,
    },
    /// Another way to the agents of other daemons.
    Voice(Option<Voice>),
    /// A frame, as if it came from a port.
    Speak {
        /// Number of the switch.
        switch: usize,
        /// The port.
        port: PortId,
        /// The frame.
        bytes: Vec<u8>,
    },
    /// Say outside where a service is.
    Announce {
        /// Number of the switch.
        switch: usize,
        /// The service.
        service: ServiceId,
    },
    /// Say what the agent of a switch is doing.
    Agent {
        /// The switch.
        switch: usize,
        /// The receiver to begin at.
        from: u32,
        /// Where to send the answer.
        reply: Reply<AgentPart>,
    },
    /// Do these, while frames go on.
    Edit(Edits),
    /// End.
    Stop,
}

impl Worker {
    /// Does what other threads asked for. True: stop.
    pub(super) fn obey(&mut self) -> bool {
        while let Ok(request) = self.inbox.try_recv() {
            if self.carry_out(request) {
                return true;
            }
        }
        self.outside.look();
        false
    }

    /// Does what was asked for before the worker runs.
    pub fn obey_all(&mut self) {
        let _stops_at_once = self.obey();
    }

    /// Does one request. True: stop.
    pub(super) fn carry_out(&mut self, request: Request) -> bool {
        match request {
            Request::Snapshot { into, reply } => self.ask_for_count(Count::new(into, reply)),
            Request::Learned { .. }
            | Request::Services { .. }
            | Request::Connections { .. }
            | Request::Vcc { .. }
            | Request::Agent { .. } => self.ask(request),
            Request::Load { switch, service, backend, load } => self.take_load(switch, service, &backend, load),
            Request::Drops { device, frames, are_unread } => self.count_drops(device, frames, are_unread),
            Request::Passed(all) => self.count_past(&all),
            Request::Gone { device, why } => self.lose(device, why),
            Request::Restore { device, port, back } => self.restore(device, port, back),
            Request::Link { device, link } => self.hear_of_link(device, link),
            Request::Active { switch, member } => self.choose_active(switch, member),
            Request::Take { device, reply } => {
                self.paused.retain(|&paused| paused != device);
                self.unwatch(device);
                let _ = reply.try_send(self.outside.devices[device].rest());
            }
            Request::Absent { device } => self.note_absence(device),
            Request::Trace(trace) => {
                let now = self.outside.now;
                if self.trace.as_ref().is_none_or(|running| running.is_over(now)) {
                    self.trace = Some(Box::new(Armed::new(*trace, now)));
                }
            }
            Request::Explain { switch, port, bytes, offload, reply } => {
                let _ = reply.try_send(self.explain(switch, port, &bytes, offload));
            }
            Request::Carrier { device, is_up } => self.carrier(device, is_up),
            Request::Heard { from, datagram } => self.receive(&from, &datagram),
            Request::Voice(voice) => self.set_voice(voice),
            Request::Speak { switch, port, bytes } => self.speak(switch, port, &bytes),
            Request::Announce { switch, service } => {
                if let Some(switch_slot) = self.switch_slots.get_mut(switch) {
                    switch_slot.switch.announce_service(&mut self.pool, self.outside.now, service);
                    switch_slot.touched = true;
                }
            }
            Request::Edit(edits) => self.edits.push_back(edits),
            Request::Lend { which, reply } => {
                let _ = reply.try_send(self.lend(which));
            }
            Request::Early { switch, mut part, reply } => {
                self.write_part(switch, &mut part);
                let _ = reply.try_send(part);
            }
            Request::Yield { early, reply } => return self.give_way(early, &reply),
            Request::Ping { reply } => {
                let _ = reply.try_send(());
            }
            Request::Resume => {}
            Request::Finish | Request::Stop => return true,
        }
        false
    }

    fn count_past(&mut self, all: &[(usize, Both<Traffic>)]) {
        for (index, traffic) in all {
            let device = self.outside.devices.get(*index).filter(|device| device.port.is_some());
            if let Some((device, switch_slot)) = device.and_then(|d| Some((d, self.switch_slots.get_mut(d.switch)?))) {
                switch_slot.switch.count_past(device.id, traffic);
            }
        }
    }

    fn count_drops(&mut self, index: usize, frames: u64, are_unread: bool) {
        let device = &self.outside.devices[index];
        let reason = if device.is_paused { Reason::Paused } else { Reason::PortRing };
        if let Some(switch_slot) = self.switch_slots.get_mut(device.switch).filter(|_| device.port.is_some()) {
            switch_slot.switch.port_drops(device.id, reason, frames);
            let is_late = are_unread && reason == Reason::PortRing;
            if let Some(payer) = self.seats.payer(Backing::Device(index)).filter(|_| is_late) {
                self.look.note_loss(device.switch, payer);
            }
        }
    }

    fn explain(&mut self, switch: usize, port: PortId, bytes: &[u8], offload: Offload) -> Option<FrameTrace> {
        let frame = self.pool.alloc_from(bytes)?;
        self.pool.meta_mut(&frame).offload = offload;
        let frame_trace = self.switch_slots.get(switch).map(|switch_slot| {
            // Who describes a frame from a bond means none of its members.
            let port = switch_slot.switch.receiving_port(port);
            switch_slot.switch.explain(&self.pool, self.outside.now, port, &frame)
        });
        self.pool.free(frame);
        frame_trace
    }

    fn speak(&mut self, switch: usize, port: PortId, bytes: &[u8]) {
        // Without a buffer it is lost, as any frame would be; a port that is gone takes none.
        let Some(switch_slot) = self.switch_slots.get_mut(switch) else { return };
        if let Some(frame) = self.pool.alloc_from(bytes) {
            switch_slot.switch.rx(&mut self.pool, self.outside.now, port, frame);
            switch_slot.touched = true;
        }
    }

    fn restore(&mut self, index: usize, port: AnyPort, back: Option<SyncSender<Unwatched>>) {
        let watched = port.fd().map(|fd| self.wake.watch(index, fd));
        if let Some(Err(error)) = watched {
            let why = format!("it cannot be watched (epoll): {error}; raise fs.epoll.max_user_watches");
            return self.give_back(index, Unwatched { port, why }, back);
        }
        // One that it takes the place of.
        self.unwatch(index);
        let device = &mut self.outside.devices[index];
        device.restore(port);
        let (switch, id) = (device.switch, device.id);
        if let Some(switch_slot) = self.switch_slots.get_mut(switch).filter(|slot| slot.switch.is_uplink(id)) {
            switch_slot.switch.tell_thinned_again();
        }
        self.open_member(index, true);
        self.seats.wake(Backing::Device(index));
    }

    /// Gives a port that cannot be watched to its maker; where that waits for it no more, or there
    /// is none, it is lost.
    fn give_back(&mut self, index: usize, mut unwatched: Unwatched, back: Option<SyncSender<Unwatched>>) {
        if let Some(back) = back {
            match back.try_send(unwatched) {
                Ok(()) => return,
                Err(TrySendError::Full(left) | TrySendError::Disconnected(left)) => unwatched = left,
            }
        }
        let Unwatched { port, why } = unwatched;
        self.hand_over(Task::Lost { device: index, port, why });
    }

    /// Watches a device's port no more, which is about to leave.
    pub(super) fn unwatch(&self, index: usize) {
        let port = self.outside.devices.get(index).and_then(|device| device.port.as_ref());
        port.and_then(|port| port.fd()).into_iter().for_each(|fd| self.wake.unwatch(fd));
    }
}
