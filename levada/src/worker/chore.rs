//! Chores: what the worker wants of `upkeep`, because it may take long.

use super::{AnyPort, Shortage, Worker};
use crate::recipe::Reopen;
use control::plan::Plan;
use datapath::switch::Event;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};

/// Switch events handed on at a time: a storm of them must not fill the queue of chores.
const EVENTS: usize = 16;

/// What the worker wants of `upkeep`.
pub enum Chore {
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
        /// New ones: their numbers, how they are opened again, and second handles on them; and such as are to be opened otherwise from now on,
        /// without a handle.
        new: Vec<(usize, Reopen, Option<AnyPort>)>,
        /// Told when it is done.
        done: SyncSender<()>,
    },
    /// Something happened in a switch.
    Event {
        /// Its number.
        switch: usize,
        /// What.
        event: Event,
    },
    /// Tenants want more of the processor than there is.
    Shortage(Box<Shortage>),
    /// The ways of tunnels may have changed.
    Ways,
    /// Interfaces may have changed.
    Links,
    /// End.
    Stop,
}

impl Worker {
    /// Hands on what happened in the switches, and what could not be handed on before.
    pub(super) fn report_events(&mut self) {
        for chore in std::mem::take(&mut self.waiting) {
            self.hand_over(chore);
        }
        for (switch, unit) in self.units.iter_mut().enumerate() {
            for _ in 0..EVENTS {
                let Some(event) = unit.switch.poll_event() else { break };
                // A full queue of chores has enough to log.
                let _ = self.chores.try_send(Chore::Event { switch, event });
            }
        }
    }

    /// Takes a device out that is gone.
    pub(super) fn lose(&mut self, index: usize, why: String) {
        self.paused.retain(|&paused| paused != index);
        if let Some(port) = self.outside.devices[index].lose() {
            self.hand_over(Chore::Lost { device: index, port, why });
        }
    }

    /// Hands a chore to upkeep that must not be lost: where its queue is full, it is tried again later.
    pub(super) fn hand_over(&mut self, chore: Chore) {
        if let Err(TrySendError::Full(chore)) = self.chores.try_send(chore) {
            self.waiting.push(chore);
        }
    }
}
