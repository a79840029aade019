//! Whether the worker has the port that it was handed. One that cannot be made, or that comes back
//! since it cannot be watched, is made and handed over again each second; that frames do not pass
//! is said once, and so is that they do again.

use crate::worker::Unwatched;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// What is known of the port of a device.
#[derive(Default)]
pub struct Handed {
    /// By which the last one comes back.
    back: Option<Receiver<Unwatched>>,
    /// Another is to be handed over.
    is_due: bool,
    /// Why frames do not pass, as was last told; nothing where they do.
    failure: String,
}

impl Handed {
    /// A port is handed over: by this it comes back.
    pub fn begin(&mut self) -> SyncSender<Unwatched> {
        let (back, returned) = sync_channel(1);
        (self.back, self.is_due) = (Some(returned), false);
        back
    }

    /// The worker is to have no port for now.
    pub fn cancel(&mut self) {
        (self.back, self.is_due) = (None, false);
    }

    /// Why the last port has come back, if it has since this was last asked.
    pub fn refusal(&mut self) -> Option<String> {
        let Unwatched { port, why } = self.back.as_ref()?.try_recv().ok()?;
        drop(port);
        self.back = None;
        Some(why)
    }

    /// The worker has no port, and is to be handed one. Whether the reason is yet to be told.
    pub fn fail(&mut self, why: &str) -> bool {
        self.is_due = true;
        self.failure != why
    }

    /// It was told why frames do not pass; or, with nothing, that they do.
    pub fn note(&mut self, told: String) {
        self.failure = told;
    }

    /// Whether another is to be handed over.
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// Whether frames pass of which it was told that they do not. To be asked some time after the
    /// last port was handed over.
    pub fn is_mended(&self) -> bool {
        !self.is_due && !self.failure.is_empty()
    }
}
