//! Changes: the one thread that changes what runs, and has the capabilities for it. Whoever wants a
//! change gives it to this thread and waits for what comes of it: clients (`http`), the signal to
//! read the file again (`daemon`), what maintenance saw and what other hosts said, a takeover that
//! failed. So those who read what comes from outside need no capabilities, and changes are made one
//! after the other.

use crate::guests::front_ends::FrontEnds;
use crate::guests::vde_server::VdeServer;
use crate::handler::{Fault, Handler};
use crate::system::os::Behind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Changes that wait at most; whoever brings more waits to be let in. Each who brings any waits for
/// it, and they are fewer.
const WAITING: usize = 8;

/// How often VDE directories and sockets of machines are tended.
const TEND: Duration = Duration::from_secs(1);

/// What is to be done at the handler.
pub type Change = Box<dyn FnOnce(&Handler) + Send>;

/// The way to the thread that makes changes.
#[derive(Clone)]
pub struct Changes(SyncSender<Change>);

impl Changes {
    /// The way, and its other end, for [`make_all`].
    #[must_use]
    pub fn new() -> (Changes, Receiver<Change>) {
        let (into, changes) = sync_channel(WAITING);
        (Changes(into), changes)
    }

    /// Has a change made, and waits for what comes of it.
    ///
    /// # Errors
    /// It was not made to its end.
    pub fn make<T: Send + 'static>(&self, change: impl FnOnce(&Handler) -> T + Send + 'static) -> Result<T, Fault> {
        let (reply, answer) = sync_channel(1);
        self.post(move |handler| {
            let _ = reply.try_send(change(handler));
        })?;
        answer.recv().map_err(|_| Fault::Failed("the change failed by a fault of levada; see its log".to_owned()))
    }

    /// Has a change made, when its turn comes.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn post(&self, change: impl FnOnce(&Handler) + Send + 'static) -> Result<(), Fault> {
        self.0.send(Box::new(change)).map_err(|_| Fault::Busy("the daemon is stopping; try again when it runs"))
    }
}

/// Makes `changes` at `handler` until nobody can bring any more, and tends `plugs` and
/// `front_ends`.
pub fn make_all(handler: &Handler, plugs: &VdeServer, front_ends: &FrontEnds, changes: &Receiver<Change>) {
    let mut tend = Instant::now() + TEND;
    loop {
        let change = changes.recv_timeout(tend.saturating_duration_since(Instant::now()));
        let _behind = Behind::begin();
        match change {
            // Who brought one that fails so is told; the next is none the worse for it.
            Ok(change) => drop(catch_unwind(AssertUnwindSafe(|| change(handler)))),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if Instant::now() >= tend {
            plugs.tend();
            front_ends.tend();
            tend = Instant::now() + TEND;
        }
    }
}
