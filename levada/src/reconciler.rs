//! The reconciler: what is open and what runs at the worker, and how it becomes another.
//!
//! A change has three steps. Everything that it needs is opened and made, while nothing else is
//! touched: where that fails, what was opened is closed again, and all is as it was. Then the
//! worker gets one list of edits, which it does while frames go on. Last, what nobody needs any
//! more is closed. A daemon starts by the same steps from a reconciler where nothing runs.

mod device;
mod edits;
mod ready;

use crate::guests::front_ends::{FrontEndId, FrontEnds};
use crate::guests::vde_server::{Otherwise, PlugId, VdeServer};
use crate::maintenance::Seen;
use crate::next_hops::NextHops;
use crate::next_hops::report::tunnels;
use crate::notify::Notifier;
use crate::processes::Processes;
use crate::recipe::{Recipe, Reopen, Slower, owner};
use crate::report::Facts;
use crate::report::whereabouts::Sights;
use crate::shortcut::Shortcuts;
use crate::system::log::{Level, Log};
use crate::worker::{Edit, Edits, Post, Request, Task, Waker};
use agent::Cluster;
use control::plan::{Plan, SwitchPlan};
use control::scale::scale;
use control::shortcut::shortcuts;
use datapath::program::{PortFeatures, PortId, Program};
use datapath::units::Both;
use device::{Key, Kind, OpenDevice, known_as};
pub use edits::random;
use edits::{Keys, List, list};
use ports::packet::Shortcut;
use ports::{Features, Inherited, Survey, netns};
use ready::{Altered, Fresh, Ready, adopted};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the worker may take for a list of edits: it does thousands in a second, and the machine
/// may stand still.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is open and what runs.
pub struct Reconciler {
    plan: Plan,
    /// By number of the switch: what it runs.
    programs: BTreeMap<u32, Program>,
    /// By the worker's number.
    devices: Vec<Option<OpenDevice>>,
    inbox: SyncSender<Request>,
    waker: Waker,
    tasks: SyncSender<Task>,
    plugs: VdeServer,
    front_ends: FrontEnds,
    shortcuts: Shortcuts,
    sights: Sights,
    /// By number of the switch: the ways of its tunnels.
    hops: BTreeMap<u32, NextHops>,
    /// Larger at each start of the daemon and at each change: which of its agents' messages are
    /// new. An agent that is made anew in the same process counts them from the beginning.
    life: u64,
    keys: Keys,
    /// What agents know of the cluster.
    known: Arc<Cluster>,
    /// By number of the switch: what agents were told, and what they are told by the change that is
    /// being made.
    told: BTreeMap<u32, Post>,
    to_tell: BTreeMap<u32, Post>,
    earlier: Earlier,
    /// Holds descriptors of devices, too.
    manager: Notifier,
    /// See [`Reconciler::waiting`].
    waits: bool,
}

/// What a daemon before has left in the run directory.
pub struct Earlier {
    /// See `Switch::set_service_key`.
    pub service_key: u64,
    /// Whom namespaces are named by.
    pub processes: Processes,
    /// See [`Reconciler::lines`].
    pub lines: BTreeMap<String, u64>,
}

/// What a daemon begins with: for the worker, for maintenance, for the plugs, for the handler, and
/// for the devices that another process left.
pub struct Beginning {
    /// For the worker before it runs.
    pub edits: Vec<Edit>,
    /// For maintenance.
    pub task: Task,
    /// VdeServer and their devices, to be joined when the worker runs.
    pub plugs: Vec<(PlugId, usize)>,
    /// The same of virtual machines.
    pub machines: Vec<(FrontEndId, usize)>,
    /// What reports are made from.
    pub facts: Facts,
    /// To be settled when nobody else has them, with their numbers.
    pub adopted: Vec<(usize, Recipe, OwnedFd)>,
    /// What a process that takes over knows the devices by.
    pub known_as: BTreeSet<String>,
    /// How many devices it begins without.
    pub lost: usize,
}

impl Reconciler {
    /// A reconciler where nothing of `plan` runs yet, with the worker behind `inbox` and `waker`
    /// and maintenance behind `tasks`.
    pub fn new(
        plan: &Plan,
        inbox: SyncSender<Request>,
        waker: Waker,
        tasks: SyncSender<Task>,
        plugs: VdeServer,
        front_ends: FrontEnds,
        earlier: Earlier,
    ) -> Reconciler {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let life = since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        let (shortcuts, sights) = (Shortcuts::default(), Sights::default());
        Reconciler {
            plan: plan.empty(),
            programs: BTreeMap::new(),
            devices: Vec::new(),
            inbox,
            waker,
            tasks,
            plugs,
            front_ends,
            shortcuts,
            sights,
            hops: BTreeMap::new(),
            life,
            keys: Keys::new(),
            known: Arc::default(),
            told: BTreeMap::new(),
            to_tell: BTreeMap::new(),
            earlier,
            manager: Notifier::default(),
            waits: false,
        }
    }

    /// With devices that it begins without, where what they are to be in is not there yet: a
    /// machine's interfaces come when they come, and one that is gone is one tenant's loss. A
    /// process that takes over leaves all to the one that runs instead.
    #[must_use]
    pub fn waiting(self, waits: bool) -> Reconciler {
        Reconciler { waits, ..self }
    }

    /// With a service manager that holds descriptors of its devices.
    #[must_use]
    pub fn held_by(self, manager: Notifier) -> Reconciler {
        Reconciler { manager, ..self }
    }

    /// What runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The shortcuts past its switches.
    pub fn shortcuts(&self) -> Shortcuts {
        self.shortcuts.clone()
    }

    /// Where its devices are.
    pub fn sights(&self) -> Sights {
        self.sights.clone()
    }

    /// Opens what `plan` names, what is not among the descriptors that another process has left and
    /// `survey` knows. The worker, which does not run yet, is to do the edits of the answer.
    ///
    /// # Errors
    /// What could not be had, in words; nothing is left open.
    pub fn begin(&mut self, mut plan: Plan, survey: Survey, log: &Log) -> Result<Beginning, String> {
        let known_as = known_as(&plan);
        let keys = self.read_keys(&plan, log)?;
        survey.expect(&known_as);
        let (mut ready, adopted, hops) = netns::roaming(|| {
            // What nobody took is closed here.
            let survey = survey;
            // A daemon starts whatever one tenant has in its VDE directory.
            let ready = self.prepare(&plan, &survey, log, Otherwise::Wait)?;
            let adopted = ready.fresh.iter().filter_map(|fresh| adopted(fresh, &ready)).collect();
            Ok::<_, String>((ready, adopted, self.look_for_hops(&plan)))
        })?;
        self.hops = hops;
        self.remember_lines(&plan, &mut ready);
        slow_down(&mut plan, &ready.devices);
        let programs = programs(&plan, &ready, &self.hops);
        let fresh = std::mem::take(&mut ready.fresh);
        let lost = fresh.iter().filter(|fresh| fresh.lost.is_some()).count();
        let edits = self.edits(&plan, &programs, &ready, &keys)?;
        self.keys = keys;
        let List { edits, new, plugs, machines } = list(edits, fresh, &ready.devices);
        let facts = self.facts(&plan, &programs, &ready.devices);
        let (done, _nobody_waits) = sync_channel(1);
        let task = Task::Devices { plan: Arc::new(plan.clone()), gone: Vec::new(), new, done };
        (self.plan, self.programs, self.devices) = (plan, programs, ready.devices);
        self.told = std::mem::take(&mut self.to_tell);
        Ok(Beginning { edits, task, plugs, machines, facts, adopted, known_as, lost })
    }

    /// Becomes what `plan` says, whose numbers follow from those of [`Reconciler::plan`].
    /// Namespaces that were `passed` are entered by their descriptors; devices in them that are
    /// lost return.
    ///
    /// # Errors
    /// What could not be had, in words; nothing was changed. Where it is made but for something,
    /// that comes beside the facts.
    pub fn change(&mut self, mut plan: Plan, passed: Survey, log: &Log) -> Result<(Facts, Option<String>), String> {
        let named = passed.named();
        let keys = self.read_keys(&plan, log)?;
        let prepared = netns::roaming(|| {
            let passed = passed;
            let ready = self.prepare(&plan, &passed, log, Otherwise::Refuse)?;
            Ok((ready, self.look_for_hops(&plan)))
        });
        let (ready, hops) = prepared.inspect_err(|_: &String| self.put_in_shortcuts(log))?;
        self.hops = hops;
        self.life = self.life.saturating_add(1);
        slow_down(&mut plan, &ready.devices);
        let programs = programs(&plan, &ready, &self.hops);
        let edits = match self.edits(&plan, &programs, &ready, &keys) {
            Ok(edits) => edits,
            Err(why) => {
                self.undo(&ready);
                self.put_in_shortcuts(log);
                return Err(why);
            }
        };
        let facts = self.facts(&plan, &programs, &ready.devices);
        self.take_out_shortcuts(&plan, &ready);
        let made = self.carry_out(&plan, edits, ready.fresh, ready.altered, ready.attended, &ready.devices);
        let but = made.inspect_err(|_| self.put_in_shortcuts(log))?;
        // Also where not all was made: what was opened is, and what comes next is compared with it.
        self.plan = plan;
        self.keys = keys;
        self.programs = programs;
        self.devices = ready.devices;
        self.told = std::mem::take(&mut self.to_tell);
        self.note_processes(&named);
        self.put_in_shortcuts(log);
        Ok((facts, but))
    }

    /// Writes down whom namespaces are named by, of which those that are `named` are meant anew.
    /// Not before the run directory is this process's.
    pub fn note_processes(&mut self, named: &[PathBuf]) {
        let recipes = self.devices.iter().flatten().filter_map(|held| match &held.kind {
            Kind::Opened(recipe, _) => Some(recipe),
            _ => None,
        });
        self.earlier.processes.note(recipes, named);
    }

    /// Takes out what does not hold in `plan`, after telling what was taken so far: a device's
    /// number may be another's then.
    fn take_out_shortcuts(&self, plan: &Plan, ready: &Ready) {
        self.shortcuts.tell(|news| self.inbox.send(Request::Passed(news)).is_ok());
        let mut wanted = wanted_shortcuts(plan, &ready.devices);
        // Their sockets have plain filters by now, or soon.
        for altered in &ready.altered {
            if let Altered::Device { number, .. } = altered {
                wanted.remove(number);
            }
        }
        for (number, _) in &ready.attended {
            wanted.remove(number);
        }
        self.shortcuts.keep(&wanted);
    }

    /// Puts in what may be and is not yet. The worker must run.
    pub fn put_in_shortcuts(&self, log: &Log) {
        let wanted = wanted_shortcuts(&self.plan, &self.devices);
        let missing = self.shortcuts.missing(&wanted, log);
        if missing.is_empty() {
            return;
        }
        netns::roaming(|| {
            // Those that are lost are put in when they return.
            let open = missing.iter().filter_map(|&number| Some((number, self.descriptor(number)?)));
            for (number, socket) in open {
                if let Err(error) = self.shortcuts.put_in(number, &wanted[&number], socket) {
                    let owner = self.devices[number].as_ref().map(|held| owner(&self.plan, held.place.0, held.place.1));
                    let text = format!("{}: its frames take no shortcut: {error}", owner.unwrap_or_default());
                    log.line(Level::Warning, &text);
                }
            }
        });
    }

    /// An interface may be another, or have a plain filter.
    pub fn renew_shortcut(&self, device: usize, log: &Log) {
        self.shortcuts.forget(device);
        self.put_in_shortcuts(log);
    }

    /// The ways of the tunnels of `plan`: as they are known, and asked for where others are wanted
    /// than before. What has changed besides, maintenance finds out.
    fn look_for_hops(&self, plan: &Plan) -> BTreeMap<u32, NextHops> {
        let look = |(id, switch): (u32, &SwitchPlan)| {
            let wanted = switch.underlay.as_ref()?;
            let before = self.plan.switches.get(id).and_then(|before| before.underlay.as_ref());
            let known = self.hops.get(&id).filter(|_| before == Some(wanted)).cloned();
            known.or_else(|| NextHops::look(wanted)).map(|hops| (id, hops))
        };
        plan.switches.iter().filter_map(look).collect()
    }

    /// Takes note of the ways of a switch's tunnels, also where they could not be asked for when it
    /// came. True: they are not what they were.
    pub fn learn_hops(&mut self, switch: u32, hops: &NextHops) -> bool {
        let underlay = self.plan.switches.get(switch).and_then(|switch| switch.underlay.as_ref());
        let is_asked = underlay.is_some_and(|underlay| underlay.interface.is_some());
        if !is_asked || self.hops.get(&switch) == Some(hops) {
            return false;
        }
        self.hops.insert(switch, hops.clone());
        true
    }

    /// Takes note of what a virtual machine's guest can do. True: the plan, made anew, would have
    /// another outcome.
    pub fn learn_guest(&mut self, device: usize, news: Features) -> bool {
        let Some(Some(OpenDevice { kind: Kind::Machine(_, _, features), .. })) = self.devices.get_mut(device) else {
            return false;
        };
        std::mem::replace(features, news).offload != news.offload
    }

    /// By switch and its uplink's port, the most that the line there has carried, in bit/s, where
    /// it carries less now: who sees only what it carries would take that for what it was
    /// configured for.
    pub fn lines(&self) -> BTreeMap<String, u64> {
        let line = |OpenDevice { place: (switch, port), slower, .. }: &OpenDevice| {
            let switch = self.plan.switches.get(*switch as u32).filter(|switch| is_line_of(switch, *port))?;
            Some((line_name(switch), slower.as_ref()?.once.0))
        };
        self.devices.iter().flatten().filter_map(line).collect()
    }

    /// The lines that an earlier process knew to be slower may be so still.
    fn remember_lines(&self, plan: &Plan, ready: &mut Ready) {
        for fresh in &ready.fresh {
            let Some(Some(held)) = ready.devices.get_mut(fresh.number) else { continue };
            let (switch, port) = held.place;
            let switch = plan.switches.get(switch as u32).filter(|switch| is_line_of(switch, port));
            let once = switch.and_then(|switch| self.earlier.lines.get(&line_name(switch)));
            let carries = fresh.watched.as_ref().and_then(|port| port.line().bits_per_second);
            held.slower = once.zip(carries).and_then(|(&once, carries)| Slower::of(carries, once));
        }
    }

    fn facts(&self, plan: &Plan, programs: &BTreeMap<u32, Program>, devices: &[Option<OpenDevice>]) -> Facts {
        let sights = self.sights.clone();
        Facts { tunnels: tunnels(plan, programs, &self.hops), sights, ..facts(plan, devices, &self.shortcuts) }
    }

    /// Takes note of what an interface is like now. True: the plan, made anew, would have another
    /// outcome.
    pub fn learn(&mut self, news: &Seen) -> bool {
        let Some(Some(held)) = self.devices.get_mut(news.device) else { return false };
        let Kind::Opened(recipe, features) = &mut held.kind else { return false };
        if Key::of(recipe) != Key::of(&news.recipe) {
            return false;
        }
        let Some((seen, slower)) = news.seen else { return true };
        let differs = (*features, held.slower) != (seen, slower);
        (*features, held.slower) = (seen, slower);
        differs
    }

    /// Devices that were opened and that the service manager holds, too, from now on.
    fn to_be_kept(&self, fresh: &[Fresh]) -> Vec<Inherited> {
        let ports = fresh.iter().filter_map(|fresh| fresh.port.as_ref()).filter(|port| port.may_wait());
        ports.filter(|_| self.manager.is_there()).flat_map(|port| Inherited::all_of(&**port)).collect()
    }

    /// Devices that end, with a descriptor of each that others hold, too.
    fn to_be_removed(&self, devices: &[Option<OpenDevice>]) -> Vec<(Recipe, Option<OwnedFd>)> {
        let ends = |number: usize| match self.devices.get(number) {
            Some(Some(OpenDevice { kind: Kind::Opened(recipe, _), .. })) => {
                let is_held = self.manager.is_there() && matches!(recipe, Recipe::Tap(_));
                Some((recipe.clone(), is_held.then(|| self.descriptor(number)).flatten()))
            }
            _ => None,
        };
        self.gone(devices).filter_map(ends).collect()
    }

    /// Tells maintenance, lets the worker do it, and closes what is left over. What could not be
    /// done of it.
    ///
    /// # Errors
    /// The worker was told nothing.
    fn carry_out(
        &self,
        plan: &Plan,
        edits: Vec<Edit>,
        fresh: Vec<Fresh>,
        altered: Vec<Altered>,
        attended: Vec<(usize, Reopen)>,
        devices: &[Option<OpenDevice>],
    ) -> Result<Option<String>, String> {
        let kept: Vec<Inherited> = self.to_be_kept(&fresh);
        let removed = self.to_be_removed(devices);
        let List { edits, mut new, plugs, machines } = list(edits, fresh, devices);
        // What was set up otherwise is to be opened again in that way where it is lost.
        let mut changed = Vec::new();
        new.extend(altered.into_iter().filter_map(|altered| match altered {
            Altered::Device { number, recipes, label, .. } => {
                let [_, recipe] = *recipes;
                Some((number, Reopen { recipe: Some(recipe), label, lost: None, once: None }, None))
            }
            Altered::Machine(id, plans, label) => {
                changed.push((id, plans, label));
                None
            }
            Altered::Plug(..) => None,
        }));
        new.extend(attended.into_iter().map(|(number, reopen)| (number, reopen, None)));
        // From here on nothing can be refused. VdeServer that go are closed first, so that no
        // client's port comes to a number that is another's.
        for number in self.gone(devices) {
            match self.devices.get(number) {
                Some(Some(OpenDevice { kind: Kind::Plug(_, id), .. })) => self.plugs.close(*id),
                Some(Some(OpenDevice { kind: Kind::Machine(_, id, _), .. })) => self.front_ends.close(*id),
                _ => {}
            }
        }
        let (done, told) = sync_channel(1);
        let task = Task::Devices { plan: Arc::new(plan.clone()), gone: self.gone(devices).collect(), new, done };
        let ended = |_| "the daemon is stopping; try again when it runs".to_owned();
        self.tasks.send(task).map_err(|_| ended(()))?;
        let told = told
            .recv_timeout(PATIENCE)
            .map_err(|_| "the thread levada-maint did not answer; see the log, then restart the daemon".to_owned());
        let (reply, edited) = sync_channel(1);
        let sent = told.and_then(|()| self.inbox.send(Request::Edit(Edits::new(edits, reply))).map_err(|_| ended(())));
        if let Err(why) = sent {
            // Nobody else says so: until then the links of bonds' members are not looked after.
            let _ = self.tasks.try_send(Task::Placed);
            return Err(why);
        }
        self.waker.ring();
        let edited = edited.recv_timeout(PATIENCE);
        let _ = self.tasks.send(Task::Placed);
        let Ok(edited) = edited else {
            return Ok(Some("the worker did not answer; see the log, then restart the daemon".to_owned()));
        };
        drop(edited.rest);
        self.manager.forget(removed.iter().filter_map(|(recipe, _)| recipe.known_as()));
        netns::roaming(|| removed.iter().for_each(|(recipe, fd)| recipe.remove(fd.as_ref().map(AsFd::as_fd))));
        self.manager.keep(&kept);
        for (plug, number) in plugs {
            self.plugs.join(plug, number);
        }
        for (machine, plans, label) in changed {
            self.front_ends.change(machine, &plans[1], &label);
        }
        for (machine, number) in machines {
            self.front_ends.join(machine, number);
        }
        Ok(edited.failed.map(|why| {
            format!(
                "the change was made, except for this, a fault of levada: {why}; restart the daemon to apply all of it"
            )
        }))
    }
}

/// What the switches are to run, with what the opened devices can do.
fn programs(plan: &Plan, ready: &Ready, hops: &BTreeMap<u32, NextHops>) -> BTreeMap<u32, Program> {
    let mut programs: BTreeMap<u32, Program> =
        plan.switches.iter().map(|(id, switch)| (id, plan.scaled_program(switch))).collect();
    for (id, program) in &mut programs {
        if let (Some(hops), Some(switch)) = (hops.get(id), plan.switches.get(*id)) {
            hops.fill(switch, &mut program.overlay);
        }
    }
    for held in ready.devices.iter().flatten() {
        let program = programs.get_mut(&(held.place.0 as u32));
        let Some(port) = program.and_then(|program| program.ports.get_mut(held.place.1.0)) else { continue };
        match &held.kind {
            Kind::Opened(recipe, features) => adapt(port, recipe, features),
            Kind::Machine(_, _, features) => port.offload = features.offload,
            Kind::Absent(_) | Kind::Plug(..) => {}
        }
    }
    programs
}

/// What the opened device can do. An interface that exists has its own MTU; a tap has that of the
/// plan.
fn adapt(port: &mut PortFeatures, recipe: &Recipe, opened: &Features) {
    port.offload = opened.offload;
    if let Recipe::Packet(..) | Recipe::Host(_) = recipe {
        port.max_frame = u32::try_from(opened.max_frame).unwrap_or(u32::MAX);
    }
}

/// Writes into the plan which uplinks carry less than they did.
fn slow_down(plan: &mut Plan, devices: &[Option<OpenDevice>]) {
    for OpenDevice { place: (switch, port), slower, .. } in devices.iter().flatten() {
        let switch = plan.switches.get_mut(*switch as u32);
        if let Some(switch) = switch.filter(|switch| is_line_of(switch, *port)) {
            switch.line = slower.map(|slower| slower.carries);
        }
    }
}

/// What a switch's line is called: with another interface it is another one.
fn line_name(switch: &SwitchPlan) -> String {
    format!("{} {}", switch.name, switch.uplink_ports().unwrap_or_default())
}

/// Whether a port is all of a switch's uplink.
fn is_line_of(switch: &SwitchPlan, port: PortId) -> bool {
    switch.program.uplink.as_ref().is_some_and(|uplink| uplink.bond.is_none() && uplink.port() == port)
}

/// What of the devices' traffic may take shortcuts.
fn wanted_shortcuts(plan: &Plan, devices: &[Option<OpenDevice>]) -> BTreeMap<usize, Shortcut> {
    let mut places = BTreeMap::new();
    for (number, held) in devices.iter().enumerate() {
        if let Some(OpenDevice { kind: Kind::Opened(Recipe::Packet(..) | Recipe::Veth(_), features), place, .. }) = held
        {
            places.insert(*place, (number, u32::try_from(features.max_frame).unwrap_or(u32::MAX)));
        }
    }
    let mut wanted = BTreeMap::new();
    for (index, switch) in plan.switches.iter() {
        for (id, shortcut) in shortcuts(switch) {
            let may = Both { egress: shortcut.egress.is_ok(), ingress: shortcut.ingress.is_ok() };
            let endpoint = &switch.program.endpoints[id as usize];
            if let Some(&(number, max_frame)) = places.get(&(index as usize, endpoint.port))
                && (may.egress || may.ingress)
            {
                let (place, identity) = ((index, endpoint.tenant.0), endpoint.identity.clone());
                wanted.insert(number, Shortcut { place, identity, may, max_frame });
            }
        }
    }
    wanted
}

fn facts(plan: &Plan, devices: &[Option<OpenDevice>], shortcuts: &Shortcuts) -> Facts {
    let uplinks = plan.switches.iter().filter_map(|(id, switch)| {
        let rate = plan.uplink_rate(switch)?;
        Some((id, (rate, scale(&switch.program, rate)?.promise)))
    });
    let places = devices.iter().enumerate().filter_map(|(number, held)| Some((held.as_ref()?.place, number)));
    let shortcuts = shortcuts.clone();
    let (plan, uplinks, devices) = (plan.clone(), uplinks.collect(), places.collect());
    Facts { plan, uplinks, devices, shortcuts, sights: Sights::default(), tunnels: Vec::new() }
}
