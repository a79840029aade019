//! Maintenance: what the worker has no time for. A thread that asks devices for what they dropped,
//! closes those that are lost, opens them again, hands on the lines of the log, and tells when an
//! interface that is somebody else's is not what it was. All of these may wait for the kernel's
//! lock on network devices, which is taken for as long as namespaces are deleted.

mod listen;
mod services;
mod shortage;
#[cfg(test)]
mod tests;

use crate::alarms::Alarms;
use crate::alarms::services::ServiceAlarms;
use crate::carriers::Watchers;
use crate::next_hops::NextHops;
use crate::notify::Notifier;
use crate::recipe::{Recipe, Reopen, Slower, Unopened};
use crate::report::whereabouts::Sights;
use crate::rundir::Mark;
use crate::system::log::{Level, Log};
use crate::worker::{AnyPort, BondNews, Request, Task, Waker};
use control::bond::Command;
use control::names::show_mac;
use control::plan::{Plan, SwitchPlan};
use control::units::show_rate;
use datapath::bond::MemberId;
use datapath::offload::OffloadSupport;
use datapath::program::EndpointId;
use datapath::switch::Event;
use listen::Monitors;
use ports::{Features, InterfaceStatus, PortError, Survey};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

/// How long after a loss a device is tried again; twice as long after each failure.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest time between two tries: a namespace that is made anew has its endpoint back within
/// it.
const LAST_RETRY: Duration = Duration::from_secs(16);
/// How soon after a try a device is tried again where interfaces have changed: links may flap.
const BETWEEN_TRIES: Duration = Duration::from_millis(250);
/// How soon after a change the ways of tunnels are asked for again: neighbours answer within a
/// millisecond or so. Twice as long each time.
const FIRST_LOOK: Duration = Duration::from_millis(4);
/// How often every device is asked for what it dropped.
const ASK: Duration = Duration::from_secs(1);
/// Log lines about what guests can cause, in each second: events in switches, and as many about
/// what is done with devices.
const EVENT_LINES: u32 = 4;

/// What has changed outside.
pub enum News {
    /// An interface that is somebody else's.
    Interface(Seen),
    /// The ways of the tunnels of a switch, by its number.
    NextHops(u32, NextHops),
    /// What the guest of a virtual machine can do, by its driver's word.
    Guest {
        /// The device's number.
        device: usize,
        /// What it can be handed.
        features: Features,
    },
}

/// What has become of an interface that is somebody else's.
pub struct Seen {
    /// The device's number.
    pub device: usize,
    /// How it was opened.
    pub recipe: Recipe,
    /// What it can do now, and what its line carries where that once was more. `None`: it is gone,
    /// or cannot be used as it was.
    pub seen: Option<(Features, Option<Slower>)>,
}

/// A device that is watched: a second handle on it, the drops already told, and what it was like.
struct Watched {
    device: usize,
    port: AnyPort,
    told: u64,
    features: Features,
    line: InterfaceStatus,
}

impl Watched {
    fn new(device: usize, port: AnyPort) -> Watched {
        let (features, line) = (port.features(), port.line());
        Watched { device, port, told: 0, features, line }
    }

    /// What is different from the last call, for the log; `None` where nothing is.
    fn changes(&mut self) -> Option<String> {
        let before = (self.features, self.line);
        (self.features, self.line) = (self.port.features(), self.port.line());
        let mut texts = Vec::new();
        if self.features.max_frame != before.0.max_frame {
            texts.push(format!("frames of {} bytes instead of {}", self.features.max_frame, before.0.max_frame));
        }
        let (offload, earlier) = (self.features.offload, before.0.offload);
        if offload.tunnel != earlier.tunnel {
            let how = if offload.tunnel { "whole" } else { "in segments" };
            texts.push(format!("frames of TCP go into tunnels {how}"));
        }
        if (OffloadSupport { tunnel: offload.tunnel, ..earlier }) != offload {
            texts.push("other offloads".to_owned());
        }
        if self.line.mac != before.1.mac {
            texts.push(format!("address {}", self.line.mac.map_or("none".to_owned(), show_mac)));
        }
        // Of the other end of a pair more is known.
        let is_told = self.port.whereabouts().is_some() || self.line.has_carrier == before.1.has_carrier;
        if let Some(is_up) = self.line.has_carrier.filter(|_| !is_told) {
            texts.push(if is_up { "a carrier" } else { "no carrier" }.to_owned());
        }
        if self.line.bits_per_second != before.1.bits_per_second {
            let mbit = |bits: Option<u64>| bits.map_or("unknown".to_owned(), |b| format!("{} Mbit/s", b / 1_000_000));
            texts.push(format!(
                "speed {} instead of {}",
                mbit(self.line.bits_per_second),
                mbit(before.1.bits_per_second)
            ));
        }
        (!texts.is_empty()).then(|| texts.join(", "))
    }
}

/// A device that is gone.
struct Lost {
    device: usize,
    tried: Instant,
    next: Instant,
    pause: Duration,
    /// What the last failure was: the same is not logged again.
    failure: String,
}

/// Why a device is lost, and what brings it back where it does not return by itself.
fn with_cure(why: &str, reopen: &Reopen) -> String {
    reopen.cure().map_or_else(|| why.to_owned(), |cure| format!("{why}; {cure}"))
}

/// Whether there may be another line about what guests can cause, of those in the second that began
/// at the first of `lines`.
fn may_say(lines: &mut (Instant, u32)) -> bool {
    if lines.0.elapsed() >= Duration::from_secs(1) {
        *lines = (Instant::now(), 0);
    }
    lines.1 += 1;
    lines.1 <= EVENT_LINES
}

/// The maintenance thread's state.
pub struct Maintenance {
    plan: Arc<Plan>,
    devices: BTreeMap<usize, Reopen>,
    log: Log,
    inbox: SyncSender<Request>,
    waker: Waker,
    watched: Vec<Watched>,
    news: SyncSender<News>,
    /// Where devices are that somebody may move.
    sights: Sights,
    /// Devices of which there is news that found the queue full.
    untold: BTreeSet<usize>,
    /// The most that a device's line has carried, in bit/s.
    fastest: BTreeMap<usize, u64>,
    ask: Instant,
    lost: Vec<Lost>,
    /// By number of the switch: the ways of its tunnels as they were last told.
    hops: BTreeMap<u32, NextHops>,
    /// Who say that something may have changed.
    monitors: Monitors,
    /// Tells the worker of the links of uplinks' members.
    watchers: Watchers,
    /// The worker has what the plan says.
    is_placed: bool,
    /// Tells ourselves.
    tasks: SyncSender<Task>,
    /// When they are asked for next, and how long after the last time.
    hops_next: Instant,
    hops_pause: Duration,
    /// Lines about events, and about devices, in the second that began then.
    event_lines: (Instant, u32),
    device_lines: (Instant, u32),
    /// Of bonds, and when it is looked whether there are some that time brings.
    alarms: Alarms,
    alarms_next: Instant,
    /// Of services, and the switch and service that the next look begins at.
    service_alarms: ServiceAlarms,
    services_from: (u32, u32),
    /// Holds descriptors of devices, too.
    manager: Notifier,
    /// Of the run directory, as long as that is there.
    home: Option<Mark>,
}

impl Maintenance {
    /// Maintenance for the worker behind `inbox` and `waker`, with no devices yet
    /// ([`Task::Devices`]), which sends `news`. What comes to it goes through `tasks`.
    pub fn new(
        plan: Plan,
        log: Log,
        inbox: SyncSender<Request>,
        waker: Waker,
        news: SyncSender<News>,
        tasks: SyncSender<Task>,
        sights: Sights,
    ) -> Maintenance {
        let now = Instant::now();
        Maintenance {
            plan: Arc::new(plan),
            devices: BTreeMap::new(),
            log,
            inbox,
            waker,
            watched: Vec::new(),
            news,
            sights,
            untold: BTreeSet::new(),
            fastest: BTreeMap::new(),
            ask: now + ASK,
            lost: Vec::new(),
            hops: BTreeMap::new(),
            monitors: Monitors::default(),
            watchers: Watchers::default(),
            is_placed: false,
            tasks,
            hops_next: now,
            hops_pause: FIRST_LOOK,
            event_lines: (now, 0),
            device_lines: (now, 0),
            alarms: Alarms::default(),
            alarms_next: now,
            service_alarms: ServiceAlarms::default(),
            services_from: (0, 0),
            manager: Notifier::default(),
            home: None,
        }
    }

    /// With a run directory that somebody may remove.
    #[must_use]
    pub fn at(self, home: Mark) -> Maintenance {
        Maintenance { home: Some(home), ..self }
    }

    /// With a service manager that holds descriptors of its devices.
    #[must_use]
    pub fn held_by(self, manager: Notifier) -> Maintenance {
        Maintenance { manager, ..self }
    }

    /// Works until told to stop.
    pub fn run(mut self, tasks: &Receiver<Task>) {
        loop {
            self.look_for_hops();
            self.look_for_alarms();
            let next = self.lost.iter().map(|l| l.next).fold(self.ask.min(self.hops_next), Instant::min);
            match tasks.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Task::Lost { device, port, why }) => {
                    drop(port);
                    // Its copy may keep a namespace from ending.
                    self.manager.forget(self.devices.get(&device).and_then(|one| one.recipe.as_ref()?.known_as()));
                    self.watched.retain(|watched| watched.device != device);
                    self.sights.forget(&[device]);
                    self.begin(device, "is gone", &why);
                }
                Ok(Task::Event { switch, event }) => self.event(switch, event),
                Ok(Task::Bond { switch, news }) => self.bond(switch, news),
                Ok(Task::Shortage(shortage)) => self.shortage(&shortage),
                Ok(Task::Devices { plan, gone, new, done }) => {
                    (self.plan, self.is_placed) = (plan, false);
                    // Whoever made the change has looked for himself: what was told before may not
                    // be what he knows.
                    self.hops.clear();
                    (self.hops_next, self.hops_pause) = (Instant::now() + FIRST_LOOK, FIRST_LOOK);
                    self.forget(&gone);
                    new.into_iter().for_each(|(device, reopen, port)| self.attend(device, reopen, port));
                    let _ = done.try_send(());
                }
                Ok(Task::Placed) => {
                    self.is_placed = true;
                    self.watch_links();
                }
                Ok(Task::Ways) => {
                    self.monitors.ways.is_taken();
                    let soon = Instant::now() + FIRST_LOOK;
                    (self.hops_next, self.hops_pause) = (self.hops_next.min(soon), FIRST_LOOK);
                }
                Ok(Task::Links) => {
                    self.monitors.links.is_taken();
                    self.ask(|watched| watched.line.has_carrier.is_some());
                    self.hope();
                }
                Ok(Task::Unwanted(_)) => {}
                Ok(Task::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            // Behind each task: somebody may see to it that there is always one.
            self.retry();
            self.ask_for_drops();
        }
    }

    /// Watches the links of the members of uplinks. Not before the worker has them: what a watcher
    /// says of one it says once.
    fn watch_links(&mut self) {
        let devices = self.devices.iter().filter_map(|(&device, reopen)| Some((device, reopen.recipe.as_ref()?)));
        let tell = || (self.inbox.clone(), self.waker.clone());
        for complaint in self.watchers.follow(&self.plan, devices, tell) {
            self.log.line(Level::Warning, &complaint);
        }
    }

    /// Says of bonds what is due by the clock, and what has become of services.
    fn look_for_alarms(&mut self) {
        let now = Instant::now();
        if now >= self.alarms_next {
            self.alarms_next = now + ASK;
            self.alarms.tick(now, &self.plan).iter().for_each(|(level, text)| self.log.line(*level, text));
            if self.is_placed {
                self.look_at_services();
            }
        }
    }

    /// Says what has become of a bond's members.
    fn bond(&mut self, switch: usize, news: BondNews) {
        let Some(plan) = self.plan.switches.get(switch as u32) else { return };
        let (now, of) = (Instant::now(), (switch as u32, plan));
        let (may_be_said, alarms) = match news {
            BondNews::Command(Command::State(member, state)) => self.alarms.state(now, of, member, state),
            BondNews::Partner(member, systems) => {
                (false, self.alarms.partner(now, of, member, systems).into_iter().collect())
            }
            _ => (true, Vec::new()),
        };
        // What happens again and again the log itself counts; what happens once is said.
        if may_be_said && let Some((level, text)) = line_of_bond(plan, news) {
            self.log.line(level, &text);
        }
        alarms.iter().for_each(|(level, text)| self.log.line(*level, text));
    }

    fn forget(&mut self, gone: &[usize]) {
        self.sights.forget(gone);
        let gone: BTreeSet<usize> = gone.iter().copied().collect();
        self.watched.retain(|watched| !gone.contains(&watched.device));
        self.lost.retain(|lost| !gone.contains(&lost.device));
        self.devices.retain(|device, _| !gone.contains(device));
        self.untold.retain(|device| !gone.contains(device));
        self.fastest.retain(|device, _| !gone.contains(device));
    }

    /// Has an eye on a device from now on, or has it on one in another way.
    fn attend(&mut self, device: usize, reopen: Reopen, port: Option<AnyPort>) {
        let lost = reopen.lost.clone();
        if let Some(once) = reopen.once {
            let fastest = self.fastest.entry(device).or_default();
            *fastest = once.0.max(*fastest);
        }
        self.devices.insert(device, reopen);
        match (port, lost) {
            (_, Some(why)) => self.begin(device, "is not there", &why),
            (Some(port), None) => self.watch(device, port),
            (None, None) => {
                self.bring_in_line(device);
                self.lost.iter_mut().filter(|lost| lost.device == device).for_each(|lost| lost.next = Instant::now());
                self.retry();
            }
        }
        // A namespace that was passed is kept open no longer: it could not end.
        if let Some(Reopen { recipe: Some(recipe), .. }) = self.devices.get_mut(&device) {
            *recipe = recipe.by_path();
        }
    }

    fn watch(&mut self, device: usize, port: AnyPort) {
        if let Some(seen) = port.whereabouts() {
            self.sights.see(device, seen);
        }
        let watched = Watched::new(device, port);
        self.note_speed(device, watched.line);
        self.sights.hear(device, watched.line);
        self.watched.push(watched);
    }

    fn note_speed(&mut self, device: usize, line: InterfaceStatus) {
        if let Some(bits) = line.bits_per_second {
            let fastest = self.fastest.entry(device).or_default();
            *fastest = bits.max(*fastest);
        }
    }

    /// Uses an open device as its recipe says, where that or the device has changed.
    fn bring_in_line(&mut self, device: usize) {
        let Some(Reopen { recipe: Some(recipe), .. }) = self.devices.get(&device) else { return };
        let Some(watched) = self.watched.iter().find(|watched| watched.device == device) else { return };
        let Some(settled) = watched.port.fd().map(|fd| recipe.settle(fd)) else { return };
        match (settled, recipe) {
            (Err(why), Recipe::Packet(..) | Recipe::Host(_)) => self.order(Request::Gone { device, why }),
            // It is ours wherever it is: what cannot be set stays as it is.
            (settled, Recipe::Tap(_) | Recipe::Veth(_)) => self.sights.complain(device, settled.unwrap_or_else(Some)),
            (Ok(_), _) => {}
        }
    }

    /// Takes note of where devices are by now, and says what has become of them; sets those up that
    /// have come back to where they should be.
    fn look_around(&mut self) {
        for watched in &self.watched {
            let Some(seen) = watched.port.whereabouts() else { continue };
            let device = watched.device;
            let before = self.sights.of(device);
            let Some(report) = self.sights.see(device, seen) else { continue };
            let Some(Reopen { label, recipe: Some(recipe), .. }) = self.devices.get(&device) else { continue };
            let text = report.text();
            let text = if text.is_empty() { "where it should be, and up" } else { &text };
            if may_say(&mut self.device_lines) {
                self.log.line(Level::Info, &format!("{label} has changed: {text}"));
            }
            let is_back = before.is_some_and(|b| b.moved.is_some() || b.renamed.is_some())
                && report.moved.is_none()
                && report.renamed.is_none();
            if let Some(fd) = watched.port.fd().filter(|_| is_back) {
                let welcomed = recipe.welcome(fd);
                if let Err(why) = &welcomed {
                    self.log.line(Level::Warning, &format!("{label}: {why}"));
                }
                self.sights.complain(device, welcomed.unwrap_or_else(Some));
                // The switch's end has a plain filter now, where it had a shortcut.
                self.untold.insert(device);
            }
        }
    }

    /// Tells of devices that are not what they were; of those that it cannot, later.
    fn tell(&mut self) {
        for device in std::mem::take(&mut self.untold) {
            let Some(Reopen { recipe: Some(recipe), .. }) = self.devices.get(&device) else { continue };
            let fastest = self.fastest.get(&device).copied().unwrap_or_default();
            let slower = |line: InterfaceStatus| Slower::of(line.bits_per_second?, fastest);
            let watched = self.watched.iter().find(|watched| watched.device == device);
            let seen = watched.map(|watched| (watched.features, slower(watched.line)));
            if seen.is_none() && matches!(recipe, Recipe::Tap(_) | Recipe::Veth(_)) {
                // Nothing of the plan depends on whether it is there.
                continue;
            }
            let news = News::Interface(Seen { device, recipe: recipe.clone(), seen });
            if self.news.try_send(news).is_err() {
                self.untold.insert(device);
            }
        }
    }

    /// Tells the worker. Where it has ended, so has all else.
    fn order(&self, order: Request) {
        let _ = self.inbox.send(order);
        self.waker.ring();
    }

    fn ask_for_drops(&mut self) {
        if Instant::now() >= self.ask {
            self.ask(|_| true);
            self.look_after_home();
            // A namespace may have been made anew since its watcher ended.
            if self.is_placed && self.watchers.is_blind() {
                self.watch_links();
            }
            self.ask = Instant::now() + ASK;
        }
    }

    /// Says, once, that somebody has removed the run directory: nobody finds this process any more.
    fn look_after_home(&mut self) {
        if self.home.take_if(|home| !home.is_there()).is_some() {
            let text = "the run directory, or the lock in it, was removed: levada show, set and run --takeover do not find this process; restart the daemon";
            self.log.line(Level::Warning, text);
        }
    }

    /// Asks devices for what they dropped and what they are like, and tells what is not as it was.
    fn ask(&mut self, which: impl Fn(&Watched) -> bool) {
        let (mut orders, mut changed) = (Vec::new(), Vec::new());
        for watched in self.watched.iter_mut().filter(|watched| which(watched)) {
            let (device, before) = (watched.device, watched.line);
            match watched.port.drops_before_us() {
                Ok(total) => {
                    let frames = total.saturating_sub(watched.told);
                    orders.extend((frames > 0).then_some(Request::Drops { device, frames, are_unread: true }));
                    watched.told = total;
                    changed.extend(watched.changes().map(|how| (device, watched.line, how)));
                    if watched.line != before {
                        self.sights.hear(device, watched.line);
                    }
                    let has_changed = watched.line.has_carrier != before.has_carrier;
                    if let Some(is_up) = watched.line.has_carrier.filter(|_| has_changed) {
                        orders.push(Request::Carrier { device, is_up });
                    }
                    watched.port.complaint().iter().for_each(|what| self.log.line(Level::Warning, what));
                }
                Err(PortError::Io(_)) => {}
                Err(PortError::Gone(why)) => orders.push(Request::Gone { device, why }),
            }
        }
        self.look_around();
        for order in orders {
            self.order(order);
        }
        for (device, line, how) in changed {
            let Some(Reopen { label, recipe, .. }) = self.devices.get(&device) else { continue };
            self.log.line(Level::Info, &format!("{label} has changed: {how}"));
            let is_pair = matches!(recipe, Some(Recipe::Veth(_)));
            self.note_speed(device, line);
            // The switch's end of a pair is nobody else's to change.
            if !is_pair {
                self.bring_in_line(device);
            }
            self.untold.insert(device);
        }
        self.tell();
    }

    /// Asks for the ways of tunnels, and tells those that are not what they were: each second, and
    /// sooner after changes and while an answer is on its way.
    fn look_for_hops(&mut self) {
        if Instant::now() < self.hops_next {
            return;
        }
        let plan = Arc::clone(&self.plan);
        self.listen(&plan);
        let mut is_waiting = false;
        for (id, switch) in plan.switches.iter() {
            let Some(hops) = switch.underlay.as_ref().and_then(NextHops::look) else { continue };
            is_waiting |= hops.is_waiting();
            let before = self.hops.get(&id);
            if before == Some(&hops) {
                continue;
            }
            if let Some(why) = hops.error().filter(|why| before.and_then(NextHops::error) != Some(why)) {
                self.log.line(Level::Warning, &format!("the tunnels of switch {} are down: {why}", switch.name));
            }
            if self.news.try_send(News::NextHops(id, hops.clone())).is_ok() {
                self.hops.insert(id, hops);
            } else {
                is_waiting = true;
            }
        }
        self.hops_pause = if is_waiting { (self.hops_pause * 2).min(ASK) } else { ASK };
        self.hops_next = Instant::now() + self.hops_pause;
    }

    fn begin(&mut self, device: usize, how: &str, why: &str) {
        // Only a device that was not taken away meanwhile, and that is opened by us, is a loss.
        let Some(reopen @ Reopen { label, recipe: Some(_), .. }) = self.devices.get(&device) else { return };
        self.sights.lose(device, with_cure(why, reopen));
        let text = format!("{label} {how} ({why}): its frames are dropped (port-down) until it can be opened");
        self.log.line(Level::Warning, &text);
        let now = Instant::now();
        let (next, pause) = (now + FIRST_RETRY, FIRST_RETRY);
        self.lost.push(Lost { device, tried: now, next, pause, failure: String::new() });
        self.untold.insert(device);
        self.tell();
    }

    /// Interfaces that are somebody else's may be back, however long they were away. What is heard
    /// right behind a try may be that try's own doing.
    fn hope(&mut self) {
        let now = Instant::now();
        for lost in &mut self.lost {
            let recipe = self.devices.get(&lost.device).and_then(|reopen| reopen.recipe.as_ref());
            if matches!(recipe, Some(Recipe::Packet(..) | Recipe::Host(_))) {
                let is_own = now < lost.tried + BETWEEN_TRIES;
                lost.next = lost.next.min(if is_own { lost.tried + FIRST_RETRY } else { now });
            }
        }
    }

    fn retry(&mut self) {
        let (now, survey) = (Instant::now(), Survey::default());
        for mut lost in std::mem::take(&mut self.lost) {
            if lost.next > now {
                self.lost.push(lost);
                continue;
            }
            let Some(reopen) = self.devices.get(&lost.device) else { continue };
            let Some(recipe) = &reopen.recipe else { continue };
            match recipe.open(&survey) {
                Ok(fresh) => {
                    self.log.line(Level::Info, &format!("{} is back", reopen.label));
                    self.sights.forget(&[lost.device]);
                    fresh.notes.iter().for_each(|note| self.log.line(Level::Warning, note));
                    let second = fresh.port.second();
                    self.order(Request::Restore { device: lost.device, port: fresh.port, back: None });
                    if let Some(port) = second {
                        self.manager.keep_port(&port);
                        self.watch(lost.device, port);
                    }
                    self.untold.insert(lost.device);
                }
                Err(Unopened { why: failure, .. }) => {
                    if failure != lost.failure {
                        let text = with_cure(&failure, reopen);
                        self.log.line(Level::Warning, &format!("{}: {text}", reopen.label));
                        self.sights.lose(lost.device, text);
                        lost.failure = failure;
                        self.untold.insert(lost.device);
                    }
                    lost.pause = (lost.pause * 2).min(LAST_RETRY);
                    lost.tried = Instant::now();
                    lost.next = lost.tried + lost.pause;
                    self.lost.push(lost);
                }
            }
        }
        self.tell();
    }

    fn event(&mut self, switch: usize, event: Event) {
        if !may_say(&mut self.event_lines) {
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

/// What the log says of a bond.
fn line_of_bond(plan: &SwitchPlan, news: BondNews) -> Option<(Level, String)> {
    let names = plan.bond.as_ref().map_or(&[][..], |bond| &bond.names);
    let name = |member: MemberId| names.get(usize::from(member.0)).map_or("?", String::as_str);
    let mut level = Level::Info;
    let text = match news {
        BondNews::Looped(member) => {
            level = Level::Warning;
            format!("{}/uplink/{}: the other end is this very system: a cable leads back", plan.name, name(member))
        }
        BondNews::Plain(None) => format!("{}/uplink: frames are numbered", plan.name),
        BondNews::Plain(Some(why)) => {
            level = Level::Warning;
            format!("{}/uplink: frames are not numbered: {}", plan.name, why.name())
        }
        BondNews::Churned(member, is_other, is_so) => {
            let end = if is_other { "the other end" } else { "this end" };
            if is_so {
                level = Level::Warning;
                format!(
                    "{}/uplink/{}: {end} has been out of sync for a minute (churn); compare both ends' keys, speeds and modes: levada show bonds",
                    plan.name,
                    name(member)
                )
            } else {
                format!("{}/uplink/{}: {end} churns no more", plan.name, name(member))
            }
        }
        BondNews::LeftOut(member, true) => {
            level = Level::Warning;
            format!(
                "{}/uplink/{} is left out: no Levada bond answers there, as on other members; look at the cable and at the other end, or let bridges between them carry numbers: order = \"switched\"",
                plan.name,
                name(member)
            )
        }
        BondNews::LeftOut(member, false) => {
            format!("{}/uplink/{} is left out no more", plan.name, name(member))
        }
        BondNews::Negotiated(member, negotiated, wanted) => {
            let speed = negotiated.speed().map_or("an unknown speed".to_owned(), show_rate);
            let duplex = negotiated.duplex.name().unwrap_or("unknown");
            let paced = wanted.map_or_else(String::new, |rate| {
                level = Level::Warning;
                format!(", and is paced at that instead of its rate of {}", show_rate(rate))
            });
            format!("{}/uplink/{} has a link of {speed}, {duplex} duplex{paced}", plan.name, name(member))
        }
        BondNews::Command(Command::State(member, state)) => {
            format!("{}/uplink/{} is {}", plan.name, name(member), state.name())
        }
        BondNews::Command(Command::Active(Some(member))) => {
            format!("{}/uplink: {} is active", plan.name, name(member))
        }
        BondNews::Command(Command::Active(None)) => format!("{}/uplink: no member is active", plan.name),
        BondNews::Command(Command::Notify(_)) | BondNews::Partner(..) => return None,
    };
    Some((level, text))
}
