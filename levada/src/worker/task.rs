//! Tasks: what the worker wants of `maintenance`, because it may take long.

use super::{AnyPort, BondNews, Shortage, Worker};
use crate::recipe::Reopen;
use control::plan::Plan;
use datapath::switch::Event;
use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};

/// Events handed on at a time, of all switches by turns: as many as there may be lines about them.
/// The others wait.
const EVENTS: usize = 4;

/// What the worker wants of `maintenance`.
pub enum Task {
    /// A device is gone.
    Lost {
        /// Its number.
        device: usize,
        /// Its port, to be closed.
        port: AnyPort,
        /// How it went, for the log.
        why: String,
    },
    /// Other devices are to be watched, and opened again when they are lost.
    Devices {
        /// What they belong to.
        plan: Arc<Plan>,
        /// Numbers of those that are to be forgotten.
        gone: Vec<usize>,
        /// New ones: their numbers, how they are opened again, and second handles on them; and such
        /// as are to be opened otherwise from now on, without a handle.
        new: Vec<(usize, Reopen, Option<AnyPort>)>,
        /// Told when it is done.
        done: SyncSender<()>,
    },
    /// The worker has the devices of [`Task::Devices`] in their places, and bonds their members.
    Placed,
    /// Something happened in a switch.
    Event {
        /// Its number.
        switch: usize,
        /// What.
        event: Event,
    },
    /// A bond's members have changed.
    Bond {
        /// The number of its switch.
        switch: usize,
        /// How.
        news: BondNews,
    },
    /// Tenants want more of the processor than there is.
    Shortage(Box<Shortage>),
    /// The ways of tunnels may have changed.
    Ways,
    /// Interfaces may have changed.
    Links,
    /// Numbers that nobody waits for any more, or what a table does not need since it grew: to be
    /// freed.
    Unwanted(#[expect(dead_code, reason = "only to be dropped")] Box<dyn Any + Send>),
    /// End.
    Stop,
}

impl Worker {
    /// Hands on what happened in the switches, and what could not be handed on before.
    pub(super) fn report_events(&mut self) {
        for task in std::mem::take(&mut self.waiting) {
            self.hand_over(task);
        }
        let switches = self.switch_slots.len();
        for _ in 0..EVENTS {
            let mut others = (0..switches).map(|at| (at + self.teller) % switches);
            let next = others.find_map(|at| Some((at, self.switch_slots[at].switch.poll_event()?)));
            let Some((switch, event)) = next else { break };
            self.teller = switch + 1;
            // A full queue of tasks has enough to log.
            let _ = self.tasks.try_send(Task::Event { switch, event });
        }
    }

    /// Takes a device out that is gone.
    pub(super) fn lose(&mut self, index: usize, why: String) {
        self.paused.retain(|&paused| paused != index);
        self.unwatch(index);
        if let Some(port) = self.outside.devices[index].lose() {
            self.hand_over(Task::Lost { device: index, port, why });
            self.open_member(index, false);
        }
    }

    /// A port that was taken out does not come back for now.
    pub(super) fn note_absence(&mut self, index: usize) {
        let Some(device) = self.outside.devices.get_mut(index).filter(|device| device.port.is_none()) else { return };
        device.use_.losses += 1;
        self.open_member(index, false);
    }

    /// Hands a task to maintenance that must not be lost: where its queue is full, it is tried
    /// again later.
    pub(super) fn hand_over(&mut self, task: Task) {
        if let Err(TrySendError::Full(task)) = self.tasks.try_send(task) {
            self.waiting.push(task);
        }
    }
}
