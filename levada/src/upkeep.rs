//! Upkeep: what the worker has no time for. A thread that closes devices that are lost, opens them again, and writes the log.

use crate::log::{Level, Log};
use crate::worker::{Bell, Chore, Order};
use control::names::show_mac;
use control::plan::Plan;
use datapath::program::EndpointId;
use datapath::switch::Event;
use ports::tap::{Tap, TapOptions};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

/// How long after a loss a device is tried again; twice as long after each failure.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest time between two tries: a namespace that is made anew has its endpoint back within it.
const LAST_RETRY: Duration = Duration::from_secs(16);
/// Log lines about events in switches, in each second.
const EVENT_LINES: u32 = 4;

/// A device that can be opened again.
#[derive(Clone, Debug)]
pub struct Reopen {
    /// How.
    pub options: TapOptions,
    /// What it is called in the log: `tap://red1 of s1/red/red1`.
    pub label: String,
}

/// A device that is gone.
struct Lost {
    device: usize,
    next: Instant,
    pause: Duration,
    /// What the last failure was: the same is not logged again.
    failure: String,
}

/// The upkeep thread's state.
pub struct Upkeep {
    plan: Plan,
    devices: Vec<Reopen>,
    log: Log,
    inbox: SyncSender<Order>,
    bell: Bell,
    lost: Vec<Lost>,
    /// Lines about events in the second that began then.
    lines: (Instant, u32),
}

impl Upkeep {
    /// Upkeep for the worker behind `inbox` and `bell`. `devices` are by the worker's number.
    pub fn new(plan: Plan, devices: Vec<Reopen>, log: Log, inbox: SyncSender<Order>, bell: Bell) -> Upkeep {
        Upkeep { plan, devices, log, inbox, bell, lost: Vec::new(), lines: (Instant::now(), 0) }
    }

    /// Works until told to stop.
    pub fn run(mut self, chores: &Receiver<Chore>) {
        loop {
            let now = Instant::now();
            let chore = match self.lost.iter().map(|l| l.next).min() {
                Some(next) => chores.recv_timeout(next.saturating_duration_since(now)),
                None => chores.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match chore {
                Ok(Chore::Lost { device, port, why }) => {
                    // Closing a device takes the kernel milliseconds.
                    drop(port);
                    self.begin(device, &why);
                }
                Ok(Chore::Event { switch, event }) => self.event(switch, event),
                Ok(Chore::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => self.retry(),
            }
        }
    }

    fn begin(&mut self, device: usize, why: &str) {
        let label = &self.devices[device].label;
        let text = format!("{label} is gone ({why}): its frames are dropped (port-down) until it can be opened again");
        self.log.line(Level::Warning, &text);
        let next = Instant::now() + FIRST_RETRY;
        self.lost.push(Lost { device, next, pause: FIRST_RETRY, failure: String::new() });
    }

    fn retry(&mut self) {
        let now = Instant::now();
        for mut lost in std::mem::take(&mut self.lost) {
            if lost.next > now {
                self.lost.push(lost);
                continue;
            }
            let reopen = &self.devices[lost.device];
            match Tap::open(&reopen.options) {
                Ok(tap) => {
                    self.log.line(Level::Info, &format!("{} is back", reopen.label));
                    let order = Order::Restore { device: lost.device, port: Box::new(tap) };
                    // Where the worker has ended, so has all else.
                    let _ = self.inbox.send(order);
                    self.bell.ring();
                }
                Err(error) => {
                    let failure = error.to_string();
                    if failure != lost.failure {
                        self.log.line(Level::Warning, &format!("{}: {failure}", reopen.label));
                        lost.failure = failure;
                    }
                    lost.pause = (lost.pause * 2).min(LAST_RETRY);
                    lost.next = Instant::now() + lost.pause;
                    self.lost.push(lost);
                }
            }
        }
    }

    fn event(&mut self, switch: usize, event: Event) {
        if self.lines.0.elapsed() >= Duration::from_secs(1) {
            self.lines = (Instant::now(), 0);
        }
        self.lines.1 += 1;
        if self.lines.1 > EVENT_LINES {
            return;
        }
        let plan = &self.plan.switches[switch];
        let path = |e: EndpointId| plan.endpoint_path(e);
        let Event::Flapping { from, to, mac } = event;
        let text = format!(
            "{} moves between {} and {}: a loop behind them, or a spoof; it stays at the first",
            show_mac(mac),
            path(from),
            path(to)
        );
        self.log.line(Level::Warning, &text);
    }
}
