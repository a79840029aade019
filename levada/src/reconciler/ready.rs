//! The first step of a change: everything that a plan needs is opened and set up, while nothing
//! else is touched; or all is as it was.

use super::device::{Key, Kind, OpenDevice, Want, Wanted, wanted};
use super::{PATIENCE, Reconciler};
use crate::guests::front_ends::FrontEndId;
use crate::guests::vde_server::{Otherwise, PlugId};
use crate::recipe::{Recipe, Reopen, Unopened};
use crate::system::log::{Level, Log};
use crate::worker::{AnyPort, Lent, Request};
use control::plan::{Plan, VdePlan, VhostPlan};
use datapath::frame::MAX_FRAME;
use datapath::offload::OffloadSupport;
use ports::{Features, Survey};
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::sync_channel;

/// A device opened for a change.
pub struct Fresh {
    pub number: usize,
    pub port: Option<AnyPort>,
    pub watched: Option<AnyPort>,
    pub label: String,
    pub is_adopted: bool,
    /// It was not there before.
    pub is_made: bool,
    /// Why it could not be opened, where the daemon begins without it.
    pub lost: Option<String>,
}

/// What a change needs, ready.
#[derive(Default)]
pub struct Ready {
    /// By the worker's number, as it will be.
    pub devices: Vec<Option<OpenDevice>>,
    pub fresh: Vec<Fresh>,
    /// Devices that stay and were set up otherwise.
    pub altered: Vec<Altered>,
    /// Devices that stay and of which maintenance is told: of those in namespaces that were passed,
    /// since where they are lost, they return; and of those that are another's now.
    pub attended: Vec<(usize, Reopen)>,
}

/// How a device that stays was set up otherwise.
pub enum Altered {
    /// Its number, what it was and as it is to be, its name, and a descriptor; none where it is
    /// lost, and will return as it is to be.
    Device { number: usize, recipes: Box<[Recipe; 2]>, label: String, fd: Option<OwnedFd> },
    /// A plug, as it was, and what it was called.
    Plug(PlugId, VdePlan, String),
    /// A virtual machine's port, as it was, as it is to be, and what it is to be called: its
    /// session goes on until the change is made.
    Machine(FrontEndId, Box<[VhostPlan; 2]>, String),
}

impl Reconciler {
    /// Opens what is new and sets up what changes. VDE directories that others keep from being
    /// opened are dealt with as `otherwise` says.
    pub(super) fn prepare(
        &self,
        plan: &Plan,
        survey: &Survey,
        log: &Log,
        otherwise: Otherwise,
    ) -> Result<Ready, String> {
        let key = |held: &OpenDevice| match &held.kind {
            Kind::Opened(recipe, _) => Key::of(recipe),
            Kind::Absent(owner) => Key::Absent(owner.clone()),
            Kind::Plug(plan, _) => Key::of_plug(plan),
            Kind::Machine(plan, ..) => Key::Machine(plan.socket.clone()),
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
                Want::Machine(plan) => Key::Machine(plan.socket.clone()),
            };
            let made = match held.get(&key).and_then(|&number| Some((number, self.devices[number].as_ref()?))) {
                Some((number, before)) => self.keep(number, before, wanted, survey, &mut ready),
                None => self.open(free.next().unwrap_or(usize::MAX), wanted, survey, log, otherwise, &mut ready),
            };
            if let Err(why) = made {
                self.undo(&ready);
                return Err(why);
            }
        }
        Ok(ready)
    }

    /// Opens a device.
    pub(super) fn open(
        &self,
        number: usize,
        wanted: Wanted,
        survey: &Survey,
        log: &Log,
        otherwise: Otherwise,
        ready: &mut Ready,
    ) -> Result<(), String> {
        let Wanted { kind, label, place } = wanted;
        let (is_adopted, is_made) = (false, false);
        let mut fresh = Fresh { number, port: None, watched: None, label, is_adopted, is_made, lost: None };
        let kind = match kind {
            Want::Opened(recipe) => {
                // A daemon that starts means those whom the one before meant.
                let recipe = if otherwise == Otherwise::Wait { self.earlier.processes.meant(recipe) } else { recipe };
                let features = match recipe.open(survey) {
                    Ok(opened) => {
                        opened.notes.iter().for_each(|note| log.line(Level::Warning, note));
                        let features = opened.port.features();
                        (fresh.is_adopted, fresh.is_made) = (opened.is_adopted, opened.is_made);
                        fresh.watched = opened.port.second();
                        fresh.port = Some(opened.port);
                        features
                    }
                    // Nor whatever interface is not there, nor whichever container has ended.
                    Err(Unopened { why, is_absence })
                        if otherwise == Otherwise::Wait && (has_ended(&recipe) || is_absence && self.waits) =>
                    {
                        fresh.lost = Some(why);
                        Features {
                            offload: OffloadSupport::NONE,
                            can_pause: false,
                            reports_drops: true,
                            max_frame: MAX_FRAME,
                        }
                    }
                    Err(Unopened { why, .. }) => return Err(why),
                };
                Kind::Opened(recipe, features)
            }
            Want::Absent(owner) => Kind::Absent(owner),
            Want::Plug(plan) => {
                let id = self.plugs.open(&plan, fresh.label.clone(), survey, otherwise);
                let id = id.map_err(|error| error.to_string())?;
                Kind::Plug(plan, id)
            }
            Want::Machine(plan) => {
                let id = self.front_ends.open(&plan, fresh.label.clone())?;
                let max_frame = plan.mtu as usize;
                // Until its guest has said something.
                let features =
                    Features { offload: OffloadSupport::NONE, can_pause: true, reports_drops: false, max_frame };
                Kind::Machine(plan, id, features)
            }
        };
        put(&mut ready.devices, number, OpenDevice { kind, place, slower: None });
        ready.fresh.push(fresh);
        Ok(())
    }

    /// A second descriptor of device `number`, where it is open.
    pub(super) fn descriptor(&self, number: usize) -> Option<OwnedFd> {
        let (reply, answer) = sync_channel(1);
        self.inbox.send(Request::Lend { which: Lent::Of(number), reply }).ok()?;
        self.waker.ring();
        let all = answer.recv_timeout(PATIENCE).ok()?;
        all.into_iter().find(|(of, _)| *of == number).map(|(_, lent)| lent.fd)
    }

    /// A device that is open stays, maybe set up otherwise.
    pub(super) fn keep(
        &self,
        number: usize,
        before: &OpenDevice,
        wanted: Wanted,
        survey: &Survey,
        ready: &mut Ready,
    ) -> Result<(), String> {
        let Wanted { kind, place, label } = wanted;
        let kind = match (&before.kind, kind) {
            (Kind::Opened(old, features), Want::Opened(recipe)) => {
                let by_passed = recipe.by_passed(survey);
                // Nothing but its place says of an interface whose it is, so nothing else is news.
                let is_anothers = before.place != place && matches!(recipe, Recipe::Packet(..));
                if let Some(recipe) = by_passed.as_ref().or(is_anothers.then_some(&recipe)) {
                    let reopen = Reopen { recipe: Some(recipe.clone()), label: label.clone(), lost: None, once: None };
                    ready.attended.push((number, reopen));
                }
                if *old != recipe {
                    let fd = self.descriptor(number);
                    let second = fd.as_ref().map(OwnedFd::try_clone).transpose();
                    let second = second.map_err(|error| format!("{label}: {error}"))?;
                    let entered = old.by_passed(survey).unwrap_or_else(|| old.clone());
                    let was = second.as_ref().map(|fd| entered.as_it_is(fd.as_fd())).transpose()?;
                    // Before the attempt, so that one that fails half way is undone, too.
                    let recipes = Box::new([was.unwrap_or(entered), recipe.clone()]);
                    ready.altered.push(Altered::Device { number, recipes, label, fd: second });
                    let entering = by_passed.as_ref().unwrap_or(&recipe);
                    fd.map_or(Ok(()), |fd| entering.change(old, fd.as_fd()))?;
                }
                Kind::Opened(recipe, *features)
            }
            (Kind::Absent(_), Want::Absent(owner)) => Kind::Absent(owner),
            (Kind::Plug(old, id), Want::Plug(plan)) => {
                let called = self.plugs.label(*id);
                if (old, &called) != (&plan, &label) {
                    ready.altered.push(Altered::Plug(*id, old.clone(), called));
                    self.plugs.change(*id, &plan, &label)?;
                }
                Kind::Plug(plan, *id)
            }
            (Kind::Machine(old, id, features), Want::Machine(plan)) => {
                let called = self.front_ends.label(*id);
                if (old, &called) != (&plan, &label) {
                    ready.altered.push(Altered::Machine(*id, Box::new([old.clone(), plan.clone()]), label));
                    self.front_ends.prepare(*id, &plan)?;
                }
                Kind::Machine(plan, *id, *features)
            }
            _ => return Err(format!("{label} is something else than what is open; this is a fault of levada")),
        };
        put(&mut ready.devices, number, OpenDevice { kind, place, slower: before.slower });
        Ok(())
    }

    /// Closes the plugs that were opened and sets up devices as they were. Other devices are
    /// closed, and end where they were made, when they are dropped.
    pub(super) fn undo(&self, ready: &Ready) {
        for fresh in &ready.fresh {
            match ready.devices.get(fresh.number) {
                Some(Some(OpenDevice { kind: Kind::Plug(_, id), .. })) => self.plugs.close(*id),
                Some(Some(OpenDevice { kind: Kind::Machine(_, id, _), .. })) => self.front_ends.close(*id),
                // What is another process's stays.
                Some(Some(OpenDevice { kind: Kind::Opened(recipe, _), .. })) if !fresh.is_adopted => {
                    recipe.give_up(fresh.is_made, fresh.port.as_ref().and_then(|port| port.fd()));
                }
                _ => {}
            }
        }
        // It was so before; where it cannot be so again, the device's loss will show.
        for altered in &ready.altered {
            let _ = match altered {
                Altered::Device { number, recipes, fd, .. } => {
                    // Its socket has a plain filter by then.
                    self.shortcuts.forget(*number);
                    fd.as_ref().map_or(Ok(()), |fd| recipes[1].take_back(&recipes[0], fd.as_fd()))
                }
                Altered::Plug(id, plan, label) => self.plugs.change(*id, plan, label),
                Altered::Machine(id, plans, _) => {
                    self.front_ends.undo(*id, &plans[0]);
                    Ok(())
                }
            };
        }
    }
}

/// Whether its namespace is that of a process which is there no more.
fn has_ended(recipe: &Recipe) -> bool {
    recipe.netns().is_some_and(|netns| netns.is_of_process() && netns.identity().is_err())
}

/// A device that is still as another process left it.
pub fn adopted(fresh: &Fresh, ready: &Ready) -> Option<(usize, Recipe, OwnedFd)> {
    let Some(Some(OpenDevice { kind: Kind::Opened(recipe, _), .. })) = ready.devices.get(fresh.number) else {
        return None;
    };
    if !fresh.is_adopted {
        return None;
    }
    let fd = fresh.port.as_ref()?.fd()?.try_clone_to_owned().ok()?;
    Some((fresh.number, recipe.clone(), fd))
}

pub fn put(devices: &mut Vec<Option<OpenDevice>>, number: usize, held: OpenDevice) {
    if devices.len() <= number {
        devices.resize_with(number + 1, || None);
    }
    devices[number] = Some(held);
}
