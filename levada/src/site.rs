//! The site: what is open and what runs at the worker, and how it becomes another.
//!
//! A change has three steps. Everything that it needs is opened and made, while nothing else is touched: where that fails, what was opened is
//! closed again, and all is as it was. Then the worker gets one list of edits, which it does while frames go on. Last, what nobody
//! needs any more is closed. A daemon starts by the same steps from a site where nothing runs.

use crate::agents;
use crate::hops::Hops;
use crate::hops::report::tunnels;
use crate::log::{Level, Log};
use crate::plugs::{PlugId, Plugs};
use crate::recipe::{Recipe, owner};
use crate::report::Facts;
use crate::shortcut::Shortcuts;
use crate::upkeep::{Reopen, Seen};
use crate::worker::{AnyPort, Bell, Cable, Chore, Device, Edit, Edits, Lent, Order, Way};
use control::plan::{Plan, PortKind, SwitchPlan, VdePlan};
use control::scale::scale;
use control::shortcut::shortcuts;
use datapath::link::Side;
use datapath::program::{PortFeatures, PortId, Program};
use datapath::switch::Switch;
use datapath::units::{Both, Rate};
use ports::packet::Way as Shortcut;
use ports::{Features, Survey, netns};
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the worker may take for a list of edits: it does thousands in a second, and the machine may stand still.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is open and what runs.
pub struct Site {
    plan: Plan,
    /// By number of the switch: what it runs.
    programs: BTreeMap<u32, Program>,
    /// By the worker's number.
    devices: Vec<Option<Held>>,
    inbox: SyncSender<Order>,
    bell: Bell,
    chores: SyncSender<Chore>,
    plugs: Plugs,
    shortcuts: Shortcuts,
    /// By number of the switch: the ways of its tunnels.
    hops: BTreeMap<u32, Hops>,
    /// Larger at each start of the daemon: which of its agents' messages are new.
    life: u64,
}

/// A port of a switch, by their numbers.
type Place = (usize, PortId);

/// A device that is open.
#[derive(Clone)]
struct Held {
    kind: Kind,
    place: Place,
    weight: u32,
    /// What its line carries, where it once carried more.
    slower: Option<Rate>,
}

/// What kind of device it is, and what it was opened with.
#[derive(Clone)]
enum Kind {
    Opened(Recipe, Features),
    /// The host's own traffic, where the switch cannot have it.
    Absent(String),
    /// A plug of a VDE directory: its port comes and goes with its clients.
    Plug(VdePlan, PlugId),
}

/// A device that a plan wants.
struct Wanted {
    kind: Want,
    label: String,
    place: Place,
    weight: u32,
}

enum Want {
    Opened(Recipe),
    Absent(String),
    Plug(VdePlan),
}

/// What makes a device the same one.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Tap(String, Option<String>),
    Packet(String, Option<String>),
    Host(String, Option<String>),
    Absent(String),
    Plug(String, u32),
}

impl Key {
    fn of(recipe: &Recipe) -> Key {
        let place = |netns: &Option<netns::Netns>| netns.as_ref().map(ToString::to_string);
        match recipe {
            Recipe::Tap(options) => Key::Tap(options.name.clone(), place(&options.netns)),
            Recipe::Packet(options, _) => Key::Packet(options.name.clone(), place(&options.netns)),
            Recipe::Host(options) => Key::Host(options.interface.clone(), place(&options.netns)),
        }
    }

    fn of_plug(plan: &VdePlan) -> Key {
        Key::Plug(plan.directory.clone(), plan.plug)
    }
}

/// A device opened for a change.
struct Fresh {
    number: usize,
    port: Option<AnyPort>,
    watched: Option<AnyPort>,
    label: String,
    is_adopted: bool,
}

/// What a daemon begins with: for the worker, for upkeep, for the plugs, for the desk, and for the devices that another process left.
pub struct Beginning {
    /// For the worker before it runs.
    pub edits: Vec<Edit>,
    /// For upkeep.
    pub chore: Chore,
    /// Plugs and their devices, to be joined when the worker runs.
    pub plugs: Vec<(PlugId, usize)>,
    /// What reports are made from.
    pub facts: Facts,
    /// To be settled when nobody else has them.
    pub adopted: Vec<(Recipe, OwnedFd)>,
}

/// What a change comes to.
struct List {
    edits: Vec<Edit>,
    new: Vec<(usize, Reopen, Option<AnyPort>)>,
    plugs: Vec<(PlugId, usize)>,
}

/// What a change needs, ready.
#[derive(Default)]
struct Ready {
    /// By the worker's number, as it will be.
    devices: Vec<Option<Held>>,
    fresh: Vec<Fresh>,
    /// Devices that stay and were set up otherwise.
    altered: Vec<Altered>,
}

/// How a device that stays was set up otherwise.
enum Altered {
    /// Its number, as it was and as it is, its name, and a descriptor; none where it is lost, and will return as it is to be.
    Device { number: usize, recipes: Box<[Recipe; 2]>, label: String, fd: Option<OwnedFd> },
    /// A plug, as it was.
    Plug(PlugId, VdePlan),
}

impl Site {
    /// A site where nothing of `plan` runs yet, with the worker behind `inbox` and `bell` and upkeep behind `chores`.
    pub fn new(plan: &Plan, inbox: SyncSender<Order>, bell: Bell, chores: SyncSender<Chore>, plugs: Plugs) -> Site {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let life = since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        let shortcuts = Shortcuts::default();
        Site {
            plan: plan.empty(),
            programs: BTreeMap::new(),
            devices: Vec::new(),
            inbox,
            bell,
            chores,
            plugs,
            shortcuts,
            hops: BTreeMap::new(),
            life,
        }
    }

    /// What runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The shortcuts past its switches.
    pub fn shortcuts(&self) -> Shortcuts {
        self.shortcuts.clone()
    }

    /// Opens what `plan` names, what is not among `descriptors` that another process has left. The worker, which does not run yet, is to do the
    /// edits of the answer.
    ///
    /// # Errors
    /// What could not be had, in words; nothing is left open.
    pub fn begin(&mut self, plan: Plan, descriptors: Vec<OwnedFd>, log: &Log) -> Result<Beginning, String> {
        let (mut ready, adopted, hops) = netns::roaming(|| {
            let survey = Survey::of(descriptors);
            let ready = self.prepare(&plan, &survey, log)?;
            let adopted = ready.fresh.iter().filter_map(|fresh| adopted(fresh, &ready)).collect();
            Ok::<_, String>((ready, adopted, self.look_for_hops(&plan)))
        })?;
        self.hops = hops;
        let programs = programs(&plan, &ready, &self.hops);
        let fresh = std::mem::take(&mut ready.fresh);
        let List { edits, new, plugs } = list(self.edits(&plan, &programs, &ready)?, fresh, &ready.devices);
        let facts = self.facts(&plan, &programs, &ready.devices);
        let (done, _nobody_waits) = sync_channel(1);
        let chore = Chore::Devices { plan: Arc::new(plan.clone()), gone: Vec::new(), new, done };
        (self.plan, self.programs, self.devices) = (plan, programs, ready.devices);
        Ok(Beginning { edits, chore, plugs, facts, adopted })
    }

    /// Becomes what `plan` says, whose numbers follow from those of [`Site::plan`].
    ///
    /// # Errors
    /// What could not be had, in words; nothing was changed.
    pub fn change(&mut self, mut plan: Plan, log: &Log) -> Result<Facts, String> {
        let prepared = netns::roaming(|| {
            let ready = self.prepare(&plan, &Survey::default(), log)?;
            Ok((ready, self.look_for_hops(&plan)))
        });
        let (ready, hops) = prepared.inspect_err(|_: &String| self.put_in_shortcuts(log))?;
        self.hops = hops;
        slow_down(&mut plan, &ready.devices);
        let programs = programs(&plan, &ready, &self.hops);
        let edits = match self.edits(&plan, &programs, &ready) {
            Ok(edits) => edits,
            Err(why) => {
                self.undo(&ready);
                self.put_in_shortcuts(log);
                return Err(why);
            }
        };
        let facts = self.facts(&plan, &programs, &ready.devices);
        self.take_out_shortcuts(&plan, &ready);
        self.carry_out(&plan, edits, ready.fresh, ready.altered, &ready.devices)?;
        self.plan = plan;
        self.programs = programs;
        self.devices = ready.devices;
        self.put_in_shortcuts(log);
        Ok(facts)
    }

    /// Takes out what does not hold in `plan`, after telling what was taken so far: a device's number may be another's then.
    fn take_out_shortcuts(&self, plan: &Plan, ready: &Ready) {
        self.shortcuts.tell(|news| self.inbox.send(Order::Passed(news)).is_ok());
        let mut wanted = wanted_shortcuts(plan, &ready.devices);
        // Their sockets have plain filters by now.
        for altered in &ready.altered {
            if let Altered::Device { number, .. } = altered {
                wanted.remove(number);
            }
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

    /// The ways of the tunnels of `plan`: as they are known, and asked for where others are wanted than before. What has changed besides, upkeep
    /// finds out.
    fn look_for_hops(&self, plan: &Plan) -> BTreeMap<u32, Hops> {
        let look = |(id, switch): (u32, &SwitchPlan)| {
            let wanted = switch.underlay.as_ref()?;
            let before = self.plan.switches.get(id).and_then(|before| before.underlay.as_ref());
            let known = self.hops.get(&id).filter(|_| before == Some(wanted)).cloned();
            known.or_else(|| Hops::look(wanted)).map(|hops| (id, hops))
        };
        plan.switches.iter().filter_map(look).collect()
    }

    /// Takes note of the ways of a switch's tunnels. True: they are not what they were.
    pub fn learn_hops(&mut self, switch: u32, hops: &Hops) -> bool {
        let known = self.hops.get_mut(&switch).filter(|known| *known != hops);
        known.map(|known| known.clone_from(hops)).is_some()
    }

    fn facts(&self, plan: &Plan, programs: &BTreeMap<u32, Program>, devices: &[Option<Held>]) -> Facts {
        Facts { tunnels: tunnels(plan, programs, &self.hops), ..facts(plan, devices, &self.shortcuts) }
    }

    /// Takes note of what an interface is like now. True: the plan, made anew, would have another outcome.
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

    /// Opens what is new and sets up what changes.
    fn prepare(&self, plan: &Plan, survey: &Survey, log: &Log) -> Result<Ready, String> {
        let key = |held: &Held| match &held.kind {
            Kind::Opened(recipe, _) => Key::of(recipe),
            Kind::Absent(owner) => Key::Absent(owner.clone()),
            Kind::Plug(plan, _) => Key::of_plug(plan),
        };
        let held: BTreeMap<Key, usize> =
            self.devices.iter().enumerate().filter_map(|(i, held)| Some((key(held.as_ref()?), i))).collect();
        let mut free = (0..).filter(|&i| self.devices.get(i).is_none_or(Option::is_none));
        let mut ready = Ready::default();
        for wanted in wanted(plan) {
            let key = match &wanted.kind {
                Want::Opened(recipe) => Key::of(recipe),
                Want::Absent(owner) => Key::Absent(owner.clone()),
                Want::Plug(plan) => Key::of_plug(plan),
            };
            let made = match held.get(&key).and_then(|&number| Some((number, self.devices[number].as_ref()?))) {
                Some((number, before)) => self.keep(number, before, wanted, &mut ready),
                None => self.open(free.next().unwrap_or(usize::MAX), wanted, survey, log, &mut ready),
            };
            if let Err(why) = made {
                self.undo(&ready);
                return Err(why);
            }
        }
        Ok(ready)
    }

    /// Opens a device.
    fn open(&self, number: usize, wanted: Wanted, survey: &Survey, log: &Log, ready: &mut Ready) -> Result<(), String> {
        let Wanted { kind, label, place, weight } = wanted;
        let mut fresh = Fresh { number, port: None, watched: None, label, is_adopted: false };
        let kind = match kind {
            Want::Opened(recipe) => {
                let opened = recipe.open(survey)?;
                opened.notes.iter().for_each(|note| log.line(Level::Warning, note));
                let features = opened.port.features();
                fresh.is_adopted = opened.is_adopted;
                fresh.watched = opened.port.second();
                fresh.port = Some(opened.port);
                Kind::Opened(recipe, features)
            }
            Want::Absent(owner) => Kind::Absent(owner),
            Want::Plug(plan) => {
                let id = self.plugs.open(&plan, fresh.label.clone(), survey).map_err(|error| error.to_string())?;
                Kind::Plug(plan, id)
            }
        };
        put(&mut ready.devices, number, Held { kind, place, weight, slower: None });
        ready.fresh.push(fresh);
        Ok(())
    }

    /// A second descriptor of device `number`, where it is open.
    fn descriptor(&self, number: usize) -> Option<OwnedFd> {
        let (reply, answer) = sync_channel(1);
        self.inbox.send(Order::Lend { which: Lent::Of(number), reply }).ok()?;
        self.bell.ring();
        let all = answer.recv_timeout(PATIENCE).ok()?;
        all.into_iter().find(|(of, _)| *of == number).map(|(_, fd)| fd)
    }

    /// A device that is open stays, maybe set up otherwise.
    fn keep(&self, number: usize, before: &Held, wanted: Wanted, ready: &mut Ready) -> Result<(), String> {
        let Wanted { kind, place, weight, label } = wanted;
        let kind = match (&before.kind, kind) {
            (Kind::Opened(old, features), Want::Opened(recipe)) => {
                if *old != recipe {
                    let fd = self.descriptor(number);
                    // Before the attempt, so that one that fails half way is undone, too.
                    let second = fd.as_ref().map(OwnedFd::try_clone).transpose();
                    let second = second.map_err(|error| format!("{label}: {error}"))?;
                    let recipes = Box::new([old.clone(), recipe.clone()]);
                    ready.altered.push(Altered::Device { number, recipes, label, fd: second });
                    fd.map_or(Ok(()), |fd| recipe.change(old, fd.as_fd()))?;
                }
                Kind::Opened(recipe, *features)
            }
            (Kind::Absent(_), Want::Absent(owner)) => Kind::Absent(owner),
            (Kind::Plug(old, id), Want::Plug(plan)) => {
                if *old != plan {
                    ready.altered.push(Altered::Plug(*id, old.clone()));
                    self.plugs.change(*id, &plan)?;
                }
                Kind::Plug(plan, *id)
            }
            _ => return Err(format!("{label} is something else than what is open; this is a fault of levada")),
        };
        put(&mut ready.devices, number, Held { kind, place, weight, slower: before.slower });
        Ok(())
    }

    /// Closes the plugs that were opened and sets up devices as they were. Other devices are closed when they are dropped.
    fn undo(&self, ready: &Ready) {
        for fresh in &ready.fresh {
            if let Some(Some(Held { kind: Kind::Plug(_, id), .. })) = ready.devices.get(fresh.number) {
                self.plugs.close(*id);
            }
        }
        // It was so before; where it cannot be so again, the device's loss will show.
        for altered in &ready.altered {
            let _ = match altered {
                Altered::Device { number, recipes, fd, .. } => {
                    // Its socket has a plain filter by then.
                    self.shortcuts.forget(*number);
                    fd.as_ref().map_or(Ok(()), |fd| recipes[0].change(&recipes[1], fd.as_fd()))
                }
                Altered::Plug(id, plan) => self.plugs.change(*id, plan),
            };
        }
    }

    /// The edits from what runs to `plan`.
    fn edits(&self, plan: &Plan, programs: &BTreeMap<u32, Program>, ready: &Ready) -> Result<Vec<Edit>, String> {
        let mut edits = Vec::new();
        for (id, switch) in plan.switches.iter() {
            if !self.programs.contains_key(&id) {
                edits.push(Edit::Switch(id as usize, Box::new(make(&programs[&id], &switch.name)?)));
            }
        }
        let (before, after) = (ways(&self.plan, &self.devices), ways(plan, &ready.devices));
        let new_ways = after.iter().filter(|(place, way)| before.get(*place) != Some(way));
        edits.extend(new_ways.map(|(&(switch, port), &way)| Edit::Way(switch, port, Some(way))));
        for (id, (_, config)) in plan.links.iter() {
            let Some(ends) = ends(plan, id) else { continue };
            match self.plan.links.get(id) {
                None => edits.push(Edit::Cable(id as usize, Some(Box::new(Cable::new(*config, ends))))),
                Some((_, old)) => {
                    edits.extend((old != config).then_some(Edit::Link(id as usize, *config)));
                    edits.extend((self::ends(&self.plan, id) != Some(ends)).then_some(Edit::Ends(id as usize, ends)));
                }
            }
        }
        for (id, program) in programs {
            let Some(old) = self.programs.get(id) else { continue };
            let changes = program.changes_from(old).ok_or("a switch cannot change its order")?;
            edits.extend(changes.into_iter().map(|change| Edit::Change(*id as usize, change)));
        }
        for (number, held) in ready.devices.iter().enumerate().filter_map(|(i, held)| Some((i, held.as_ref()?))) {
            let old = self.devices.get(number).and_then(Option::as_ref);
            if old.is_some_and(|old| (old.place, old.weight) != (held.place, held.weight)) {
                edits.push(Edit::Move(number, held.place.0, held.place.1, held.weight));
            }
        }
        self.removals(plan, ready, &mut edits)?;
        edits.extend(self.agents(plan, programs));
        edits.extend((plan.spin != self.plan.spin).then_some(Edit::Spin(plan.spin)));
        edits.extend((plan.pool != self.plan.pool).then_some(Edit::Memory(plan.pool)));
        Ok(edits)
    }

    /// Tells the agents what is so now. Where there are none, and were none, nothing is to be said.
    fn agents(&self, plan: &Plan, programs: &BTreeMap<u32, Program>) -> Vec<Edit> {
        if plan.cluster.is_none() && self.plan.cluster.is_none() {
            return Vec::new();
        }
        let mut posts = agents::posts(plan, programs, self.life);
        let gone = self.plan.switches.iter().filter(|(id, _)| plan.switches.get(*id).is_none());
        let switches = gone.chain(plan.switches.iter()).map(|(id, _)| id);
        switches.map(|id| Edit::Agent(id as usize, posts.remove(&id).map(Box::new))).collect()
    }

    /// Takes away what `plan` has no more.
    fn removals(&self, plan: &Plan, ready: &Ready, edits: &mut Vec<Edit>) -> Result<(), String> {
        edits.extend(self.gone(&ready.devices).map(|number| Edit::Device(number, None)));
        let (before, after) = (ways(&self.plan, &self.devices), ways(plan, &ready.devices));
        for &(switch, port) in before.keys().filter(|place| !after.contains_key(place)) {
            edits.push(Edit::Way(switch, port, None));
        }
        let links = self.plan.links.iter().filter(|(id, _)| plan.links.get(*id).is_none());
        edits.extend(links.map(|(id, _)| Edit::Cable(id as usize, None)));
        for (id, switch) in self.plan.switches.iter().filter(|(id, _)| plan.switches.get(*id).is_none()) {
            edits.push(Edit::Switch(id as usize, Box::new(make(&Program::default(), &switch.name)?)));
        }
        Ok(())
    }

    /// Numbers of the devices that are not in `after`.
    fn gone(&self, after: &[Option<Held>]) -> impl Iterator<Item = usize> {
        let stays = |number: usize| after.get(number).is_some_and(Option::is_some);
        let gone = self.devices.iter().enumerate().filter(|(number, held)| held.is_some() && !stays(*number));
        gone.map(|(number, _)| number).collect::<Vec<_>>().into_iter()
    }

    /// Tells upkeep, lets the worker do it, and closes what is left over.
    fn carry_out(
        &self,
        plan: &Plan,
        edits: Vec<Edit>,
        fresh: Vec<Fresh>,
        altered: Vec<Altered>,
        devices: &[Option<Held>],
    ) -> Result<(), String> {
        let List { edits, mut new, plugs } = list(edits, fresh, devices);
        // What was set up otherwise is to be opened again in that way where it is lost.
        new.extend(altered.into_iter().filter_map(|altered| match altered {
            Altered::Device { number, recipes, label, .. } => {
                let [_, recipe] = *recipes;
                Some((number, Reopen { recipe: Some(recipe), label }, None))
            }
            Altered::Plug(..) => None,
        }));
        // From here on nothing can be refused. Plugs that go are closed first, so that no client's port comes to a number that is another's.
        for number in self.gone(devices) {
            if let Some(Some(Held { kind: Kind::Plug(_, id), .. })) = self.devices.get(number) {
                self.plugs.close(*id);
            }
        }
        let (done, told) = sync_channel(1);
        let chore = Chore::Devices { plan: Arc::new(plan.clone()), gone: self.gone(devices).collect(), new, done };
        let ended = |_| "the daemon ends".to_owned();
        self.chores.send(chore).map_err(|_| ended(()))?;
        told.recv_timeout(PATIENCE).map_err(|_| "upkeep does not answer".to_owned())?;
        let (reply, edited) = sync_channel(1);
        self.inbox.send(Order::Edit(Edits::new(edits, reply))).map_err(|_| ended(()))?;
        self.bell.ring();
        let edited = edited.recv_timeout(PATIENCE).map_err(|_| "the worker does not answer".to_owned())?;
        drop(edited.rest);
        for (plug, number) in plugs {
            self.plugs.join(plug, number);
        }
        edited.failed.map_or(Ok(()), |why| Err(format!("the change was made but for this, a fault of levada: {why}")))
    }
}

/// The whole list of edits, and what others are to be told.
fn list(mut edits: Vec<Edit>, fresh: Vec<Fresh>, devices: &[Option<Held>]) -> List {
    let mut new = Vec::new();
    let mut places = Vec::new();
    let mut plugs = Vec::new();
    for Fresh { number, port, watched, label, .. } in fresh {
        let Some(Some(Held { kind, place: (switch, id), weight, .. })) = devices.get(number) else { continue };
        let recipe = match kind {
            Kind::Opened(recipe, _) => Some(recipe.clone()),
            Kind::Absent(_) => None,
            Kind::Plug(_, plug) => {
                plugs.push((*plug, number));
                None
            }
        };
        new.push((number, Reopen { recipe, label }, watched));
        let device = port.map_or_else(|| Device::absent(*switch, *id), |port| Device::new(port, *switch, *id));
        places.push(Edit::Device(number, Some((Box::new(device), *weight))));
    }
    // Before removals, behind the changes: a port's owner is there when its frames come.
    let at = edits.iter().position(|edit| matches!(edit, Edit::Device(_, None))).unwrap_or(edits.len());
    edits.splice(at..at, places);
    List { edits, new, plugs }
}

/// A device that is still as another process left it.
fn adopted(fresh: &Fresh, ready: &Ready) -> Option<(Recipe, OwnedFd)> {
    let Some(Some(Held { kind: Kind::Opened(recipe, _), .. })) = ready.devices.get(fresh.number) else { return None };
    if !fresh.is_adopted {
        return None;
    }
    let fd = fresh.port.as_ref()?.fd()?.try_clone_to_owned().ok()?;
    Some((recipe.clone(), fd))
}

fn put(devices: &mut Vec<Option<Held>>, number: usize, held: Held) {
    if devices.len() <= number {
        devices.resize_with(number + 1, || None);
    }
    devices[number] = Some(held);
}

/// A switch that runs `program`.
fn make(program: &Program, name: &str) -> Result<Switch, String> {
    Switch::new(program, random()).map_err(|error| format!("switch {name}: {error}"))
}

/// A number that nobody outside can guess: the standard library keys its hash tables with such.
fn random() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish()
}

/// The devices of a plan.
fn wanted(plan: &Plan) -> Vec<Wanted> {
    let mut all = Vec::new();
    for (index, switch) in plan.switches.iter() {
        for (id, port) in switch.ports.iter() {
            let id = PortId(id);
            let owner = owner(plan, index as usize, id);
            let label = format!("{} of {owner}", port.locator);
            let kind = match (&port.kind, Recipe::of(plan, index as usize, id)) {
                (PortKind::Link { .. }, _) => continue,
                (PortKind::Vde(plan), _) => Want::Plug(plan.clone()),
                (_, Some(recipe)) => Want::Opened(recipe),
                (_, None) => Want::Absent(owner),
            };
            all.push(Wanted { kind, label, place: (index as usize, id), weight: time_weight(switch, id) });
        }
    }
    all
}

/// Through an uplink comes what is for all endpoints, so it has the time of all of them.
fn time_weight(switch: &SwitchPlan, id: PortId) -> u32 {
    let is_uplink = switch.program.uplink.as_ref().is_some_and(|uplink| uplink.port == id);
    if is_uplink { switch.program.endpoints.values().count().max(1) as u32 } else { 1 }
}

/// What the switches are to run, with what the opened devices can do.
fn programs(plan: &Plan, ready: &Ready, hops: &BTreeMap<u32, Hops>) -> BTreeMap<u32, Program> {
    let mut programs: BTreeMap<u32, Program> =
        plan.switches.iter().map(|(id, switch)| (id, plan.scaled_program(switch))).collect();
    for (id, program) in &mut programs {
        if let (Some(hops), Some(switch)) = (hops.get(id), plan.switches.get(*id)) {
            hops.fill(switch, &mut program.overlay);
        }
    }
    for held in ready.devices.iter().flatten() {
        let Kind::Opened(recipe, features) = &held.kind else { continue };
        let program = programs.get_mut(&(held.place.0 as u32));
        if let Some(port) = program.and_then(|program| program.ports.get_mut(held.place.1.0)) {
            adapt(port, recipe, features);
        }
    }
    programs
}

/// What the opened device can do. An interface that exists has its own MTU; a tap has that of the plan.
fn adapt(port: &mut PortFeatures, recipe: &Recipe, opened: &Features) {
    port.offload = opened.offload;
    if let Recipe::Packet(..) | Recipe::Host(_) = recipe {
        port.max_frame = u32::try_from(opened.max_frame).unwrap_or(u32::MAX);
    }
}

/// Writes into the plan which uplinks carry less than they did.
fn slow_down(plan: &mut Plan, devices: &[Option<Held>]) {
    for Held { place: (switch, port), slower, .. } in devices.iter().flatten() {
        let switch = plan.switches.get_mut(*switch as u32);
        if let Some(switch) = switch.filter(|s| s.program.uplink.as_ref().is_some_and(|u| u.port == *port)) {
            switch.line = *slower;
        }
    }
}

/// What is behind each port.
fn ways(plan: &Plan, devices: &[Option<Held>]) -> BTreeMap<Place, Way> {
    let held =
        devices.iter().enumerate().filter_map(|(number, held)| Some((held.as_ref()?.place, Way::Device(number))));
    let mut ways: BTreeMap<Place, Way> = held.collect();
    for (index, switch) in plan.switches.iter() {
        for (id, port) in switch.ports.iter() {
            if let PortKind::Link { link, side } = port.kind {
                ways.insert((index as usize, PortId(id)), Way::Link(link, side));
            }
        }
    }
    ways
}

/// The ports at the ends of a link, which the configuration's check has found.
fn ends(plan: &Plan, number: u32) -> Option<[Place; 2]> {
    let end = |wanted: Side| {
        plan.switches.iter().find_map(|(index, switch)| {
            let is_it = |port: &control::plan::PortPlan| {
                matches!(port.kind, PortKind::Link { link, side } if link == number as usize && side == wanted)
            };
            switch.ports.iter().find(|(_, port)| is_it(port)).map(|(id, _)| (index as usize, PortId(id)))
        })
    };
    Some([end(Side::A)?, end(Side::B)?])
}

/// What of the devices' traffic may take shortcuts.
fn wanted_shortcuts(plan: &Plan, devices: &[Option<Held>]) -> BTreeMap<usize, Shortcut> {
    let mut places = BTreeMap::new();
    for (number, held) in devices.iter().enumerate() {
        if let Some(Held { kind: Kind::Opened(Recipe::Packet(..), features), place, .. }) = held {
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

fn facts(plan: &Plan, devices: &[Option<Held>], shortcuts: &Shortcuts) -> Facts {
    let uplinks = plan.switches.iter().filter_map(|(id, switch)| {
        let rate = plan.uplink_rate(switch)?;
        Some((id, (rate, scale(&switch.program, rate)?.promise)))
    });
    let places = devices.iter().enumerate().filter_map(|(number, held)| Some((held.as_ref()?.place, number)));
    let shortcuts = shortcuts.clone();
    Facts { plan: plan.clone(), uplinks: uplinks.collect(), devices: places.collect(), shortcuts, tunnels: Vec::new() }
}
