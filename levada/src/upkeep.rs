//! Upkeep: what the worker has no time for. A thread that asks devices for what they dropped, closes those that are lost, opens them again,
//! and writes the log. All of these may wait for the kernel's lock on network devices, which is taken for as long as namespaces are deleted.

use crate::log::{Level, Log};
use crate::recipe::Recipe;
use crate::worker::{AnyPort, Bell, Chore, Order};
use control::names::show_mac;
use control::plan::Plan;
use datapath::program::EndpointId;
use datapath::switch::Event;
use ports::{PortError, Survey};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

/// How long after a loss a device is tried again; twice as long after each failure.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest time between two tries: a namespace that is made anew has its endpoint back within it.
const LAST_RETRY: Duration = Duration::from_secs(16);
/// How often every device is asked for what it dropped.
const ASK: Duration = Duration::from_secs(1);
/// Log lines about events in switches, in each second.
const EVENT_LINES: u32 = 4;

/// A device that can be opened again.
#[derive(Clone, Debug)]
pub struct Reopen {
    /// How; `None` where there is nothing to open, or it is there when somebody plugs in: that is not upkeep's affair.
    pub recipe: Option<Recipe>,
    /// What it is called in the log: `tap://red1 of s1/red/red1`.
    pub label: String,
}

/// A device that is watched: a second handle on it, and the drops already told.
struct Watched {
    device: usize,
    port: AnyPort,
    told: u64,
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
    plan: Arc<Plan>,
    devices: BTreeMap<usize, Reopen>,
    log: Log,
    inbox: SyncSender<Order>,
    bell: Bell,
    watched: Vec<Watched>,
    ask: Instant,
    lost: Vec<Lost>,
    /// Lines about events in the second that began then.
    lines: (Instant, u32),
}

impl Upkeep {
    /// Upkeep for the worker behind `inbox` and `bell`, with no devices yet ([`Chore::Devices`]).
    pub fn new(plan: Plan, log: Log, inbox: SyncSender<Order>, bell: Bell) -> Upkeep {
        let now = Instant::now();
        let (watched, lost) = (Vec::new(), Vec::new());
        let devices = BTreeMap::new();
        Upkeep { plan: Arc::new(plan), devices, log, inbox, bell, watched, ask: now + ASK, lost, lines: (now, 0) }
    }

    /// Works until told to stop.
    pub fn run(mut self, chores: &Receiver<Chore>) {
        loop {
            let next = self.lost.iter().map(|l| l.next).fold(self.ask, Instant::min);
            match chores.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Chore::Lost { device, port, why }) => {
                    drop(port);
                    self.watched.retain(|watched| watched.device != device);
                    self.begin(device, &why);
                }
                Ok(Chore::Event { switch, event }) => self.event(switch, event),
                Ok(Chore::Devices { plan, gone, new, done }) => {
                    self.plan = plan;
                    self.watched.retain(|watched| !gone.contains(&watched.device));
                    self.lost.retain(|lost| !gone.contains(&lost.device));
                    self.devices.retain(|device, _| !gone.contains(device));
                    for (device, reopen, port) in new {
                        self.devices.insert(device, reopen);
                        self.watched.extend(port.map(|port| Watched { device, port, told: 0 }));
                    }
                    let _ = done.try_send(());
                }
                Ok(Chore::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    self.retry();
                    self.ask_for_drops();
                }
            }
        }
    }

    /// Tells the worker. Where it has ended, so has all else.
    fn order(&self, order: Order) {
        let _ = self.inbox.send(order);
        self.bell.ring();
    }

    fn ask_for_drops(&mut self) {
        if Instant::now() < self.ask {
            return;
        }
        let mut orders = Vec::new();
        for watched in &mut self.watched {
            let device = watched.device;
            match watched.port.drops_before_us() {
                Ok(total) if total > watched.told => {
                    orders.push(Order::Drops { device, frames: total - watched.told });
                    watched.told = total;
                }
                Ok(_) | Err(PortError::Io(_)) => {}
                Err(PortError::Gone(why)) => orders.push(Order::Gone { device, why }),
            }
        }
        for order in orders {
            self.order(order);
        }
        self.ask = Instant::now() + ASK;
    }

    fn begin(&mut self, device: usize, why: &str) {
        // Only a device that was not taken away meanwhile, and that is opened by us, is a loss.
        let Some(Reopen { label, recipe: Some(_) }) = self.devices.get(&device) else { return };
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
            let Some(reopen) = self.devices.get(&lost.device) else { continue };
            let Some(recipe) = &reopen.recipe else { continue };
            match recipe.open(&Survey::default()) {
                Ok(fresh) => {
                    self.log.line(Level::Info, &format!("{} is back", reopen.label));
                    fresh.notes.iter().for_each(|note| self.log.line(Level::Warning, note));
                    let watched = fresh.port.second().map(|port| Watched { device: lost.device, port, told: 0 });
                    self.watched.extend(watched);
                    self.order(Order::Restore { device: lost.device, port: fresh.port });
                }
                Err(failure) => {
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
        let Some(plan) = self.plan.switches.get(switch as u32) else { return };
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
