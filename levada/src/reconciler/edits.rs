//! The second step of a change: the list of edits that turns what the worker runs into what a plan
//! says.

use super::Reconciler;
use super::device::{Kind, OpenDevice, SwitchPort};
use super::ready::{Fresh, Ready};
use crate::agents;
use crate::guests::front_ends::FrontEndId;
use crate::guests::vde_server::PlugId;
use crate::recipe::Reopen;
use crate::secrets::hello_key;
use crate::system::log::{Level, Log};
use crate::worker::{AnyPort, Backing, BondPost, Claim, Device, Edit, LinkSlot, Payer};
use control::plan::{Plan, PortKind, SwitchPlan};
use control::time;
use datapath::bond::hello::HelloKey;
use datapath::link::Side;
use datapath::program::{EndpointId, PortId, Program};
use datapath::switch::Switch;
use std::collections::BTreeMap;
use std::path::Path;

/// Claims in one edit: some microseconds' work.
const CLAIMS: usize = 64;

/// By number of the switch: the key of its bond, and the file that it is from.
pub type Keys = BTreeMap<u32, (String, HelloKey)>;

/// What a change comes to.
pub struct List {
    pub edits: Vec<Edit>,
    pub new: Vec<(usize, Reopen, Option<AnyPort>)>,
    pub plugs: Vec<(PlugId, usize)>,
    pub machines: Vec<(FrontEndId, usize)>,
}

impl Reconciler {
    /// A switch that runs `program`.
    fn make(&self, program: &Program, name: &str) -> Result<Switch, String> {
        let mut switch = Switch::new(program, random()).map_err(|error| format!("switch {name}: {error}"))?;
        switch.set_service_key(self.earlier.service_key);
        Ok(switch)
    }

    /// The edits from what runs to `plan`.
    pub(super) fn edits(
        &mut self,
        plan: &Plan,
        programs: &BTreeMap<u32, Program>,
        ready: &Ready,
        keys: &Keys,
    ) -> Result<Vec<Edit>, String> {
        let mut edits = Vec::new();
        for (id, switch) in plan.switches.iter() {
            if !self.programs.contains_key(&id) {
                edits.push(Edit::Switch(id as usize, Box::new(self.make(&programs[&id], &switch.name)?)));
                // One that is made anew has the services of the one before, and not their table.
                let is_anew = self.plan.switches.iter().any(|(_, before)| before.name == switch.name);
                edits.extend(is_anew.then_some(Edit::Recover(id as usize)));
            }
        }
        let (before, after) = (ways(&self.plan, &self.devices), ways(plan, &ready.devices));
        let new_ways = after.iter().filter(|(place, way)| before.get(*place) != Some(way));
        edits.extend(new_ways.map(|(&(switch, port), &way)| Edit::Backing(switch, port, Some(way))));
        let (ends_before, ends) = (ends(&self.plan), ends(plan));
        for (id, (_, config)) in plan.links.iter() {
            let Some(&ends) = ends.get(&id) else { continue };
            match self.plan.links.get(id) {
                None => edits.push(Edit::LinkSlot(id as usize, Some(Box::new(LinkSlot::new(*config, ends))))),
                Some((_, old)) => {
                    edits.extend((old != config).then_some(Edit::Link(id as usize, *config)));
                    edits.extend((ends_before.get(&id) != Some(&ends)).then_some(Edit::Ends(id as usize, ends)));
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
            if old.is_some_and(|old| old.place != held.place) {
                edits.push(Edit::Move(number, held.place.0, held.place.1));
            }
        }
        self.removals(plan, ready, &mut edits)?;
        edits.extend(new_claims(&claims(&self.programs, &before), &claims(programs, &after)));
        edits.extend(self.agents(plan, programs));
        edits.extend(self.bonds(plan, keys));
        edits.extend((plan.spin != self.plan.spin).then_some(Edit::Spin(plan.spin)));
        edits.extend((plan.pool != self.plan.pool).then_some(Edit::Memory(plan.pool)));
        Ok(edits)
    }

    /// Tells the agents what is another now.
    fn agents(&mut self, plan: &Plan, programs: &BTreeMap<u32, Program>) -> Vec<Edit> {
        let posts = agents::posts(plan, programs, self.life, &mut self.known);
        let news = agents::news(&self.told, &posts);
        self.to_tell = posts;
        news
    }

    /// Gives each bond its policy: the switch has its members by then, and the worker their
    /// devices. Where there is and was none, nothing is to be said.
    fn bonds(&self, plan: &Plan, keys: &Keys) -> Vec<Edit> {
        let post = |(id, switch): (u32, &SwitchPlan)| {
            let (bond, key) = (switch.bond.as_ref()?, keys.get(&id).map(|(_, key)| *key));
            Some(Box::new(BondPost { settings: bond.policy.clone(), notices: bond.notices, key }))
        };
        let had = |id: u32| self.plan.switches.get(id).is_some_and(|switch| switch.bond.is_some());
        let switches = plan.switches.iter().filter(|(id, switch)| switch.bond.is_some() || had(*id));
        switches.map(|(id, switch)| Edit::Bond(id as usize, post((id, switch)))).collect()
    }

    /// Reads the bonds' secrets anew. A file that gave the key that is in use and cannot be read
    /// now keeps nothing else from being changed.
    ///
    /// # Errors
    /// What is wrong with one that is new.
    pub(super) fn read_keys(&self, plan: &Plan, log: &Log) -> Result<Keys, String> {
        let files =
            plan.switches.iter().filter_map(|(id, switch)| Some((id, switch.bond.as_ref()?.secret_file.clone()?)));
        let read = |(id, file): (u32, String)| {
            let key = hello_key(Path::new(&file)).or_else(|why| {
                let (_, used) = self.keys.get(&id).filter(|(from, _)| *from == file).ok_or_else(|| why.clone())?;
                log.line(Level::Warning, &format!("{why}; the secret that was read before stays in use"));
                Ok::<_, String>(*used)
            })?;
            Ok((id, (file, key)))
        };
        files.map(read).collect()
    }

    /// Takes away what `plan` has no more.
    pub(super) fn removals(&self, plan: &Plan, ready: &Ready, edits: &mut Vec<Edit>) -> Result<(), String> {
        edits.extend(self.gone(&ready.devices).map(|number| Edit::Device(number, None)));
        let (before, after) = (ways(&self.plan, &self.devices), ways(plan, &ready.devices));
        for &(switch, port) in before.keys().filter(|place| !after.contains_key(place)) {
            edits.push(Edit::Backing(switch, port, None));
        }
        let links = self.plan.links.iter().filter(|(id, _)| plan.links.get(*id).is_none());
        edits.extend(links.map(|(id, _)| Edit::LinkSlot(id as usize, None)));
        for (id, switch) in self.plan.switches.iter().filter(|(id, _)| plan.switches.get(*id).is_none()) {
            edits.push(Edit::Switch(id as usize, Box::new(self.make(&Program::default(), &switch.name)?)));
        }
        Ok(())
    }

    /// Numbers of the devices that are not in `after`.
    pub(super) fn gone(&self, after: &[Option<OpenDevice>]) -> impl Iterator<Item = usize> {
        let stays = |number: usize| after.get(number).is_some_and(Option::is_some);
        let gone = self.devices.iter().enumerate().filter(|(number, held)| held.is_some() && !stays(*number));
        gone.map(|(number, _)| number).collect::<Vec<_>>().into_iter()
    }
}

/// The whole list of edits, and what others are to be told.
pub fn list(mut edits: Vec<Edit>, fresh: Vec<Fresh>, devices: &[Option<OpenDevice>]) -> List {
    let mut new = Vec::new();
    let mut places = Vec::new();
    let (mut plugs, mut machines) = (Vec::new(), Vec::new());
    for Fresh { number, port, watched, label, lost, .. } in fresh {
        let Some(Some(OpenDevice { kind, place: (switch, id), slower })) = devices.get(number) else { continue };
        let recipe = match kind {
            Kind::Opened(recipe, _) => Some(recipe.clone()),
            Kind::Absent(_) => None,
            Kind::Plug(_, plug) => {
                plugs.push((*plug, number));
                None
            }
            Kind::Machine(_, machine, _) => {
                machines.push((*machine, number));
                None
            }
        };
        new.push((number, Reopen { recipe, label, lost, once: slower.map(|slower| slower.once) }, watched));
        let device = port.map_or_else(|| Device::absent(*switch, *id), |port| Device::new(port, *switch, *id));
        places.push(Edit::Device(number, Some(Box::new(device))));
    }
    // Before removals, behind the changes: a port's owner is there when its frames come.
    let at = edits.iter().position(|edit| matches!(edit, Edit::Device(_, None))).unwrap_or(edits.len());
    edits.splice(at..at, places);
    List { edits, new, plugs, machines }
}

/// A number that nobody outside can guess: the standard library keys its hash tables with such.
pub fn random() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish()
}

/// What is behind each port.
pub fn ways(plan: &Plan, devices: &[Option<OpenDevice>]) -> BTreeMap<SwitchPort, Backing> {
    let held =
        devices.iter().enumerate().filter_map(|(number, held)| Some((held.as_ref()?.place, Backing::Device(number))));
    let mut ways: BTreeMap<SwitchPort, Backing> = held.collect();
    for (index, switch) in plan.switches.iter() {
        for (id, port) in switch.ports.iter() {
            if let PortKind::Link { link, side } = port.kind {
                ways.insert((index as usize, PortId(id)), Backing::Link(link, side));
            }
        }
    }
    ways
}

/// What part of the worker's time each port has.
fn claims(
    programs: &BTreeMap<u32, Program>,
    ways: &BTreeMap<SwitchPort, Backing>,
) -> BTreeMap<SwitchPort, (Backing, Claim)> {
    let mut claims = BTreeMap::new();
    for (&switch, program) in programs {
        let (shares, switch) = (time::shares(program), switch as usize);
        let mut claim = |port, payer, tenant_weight, weight| {
            if let Some(&way) = ways.get(&(switch, port)) {
                claims.insert((switch, port), (way, Claim { switch, payer, tenant_weight, weight }));
            }
        };
        for (id, endpoint) in program.endpoints.iter() {
            let (of_tenant, of_endpoint) = (shares.tenants[&endpoint.tenant], shares.endpoints[&EndpointId(id)]);
            claim(endpoint.port, Payer::Tenant(endpoint.tenant.0), of_tenant, of_endpoint);
        }
        let members = program.uplink.iter().flat_map(|uplink| &uplink.members);
        members.for_each(|member| claim(member.port, Payer::Uplink, time::ALL, time::ALL));
    }
    claims
}

/// Those that are not as they were, some at a time.
fn new_claims(
    before: &BTreeMap<SwitchPort, (Backing, Claim)>,
    after: &BTreeMap<SwitchPort, (Backing, Claim)>,
) -> Vec<Edit> {
    let new: Vec<_> = after.iter().filter(|(place, claim)| before.get(place) != Some(claim)).collect();
    new.chunks(CLAIMS).map(|claims| Edit::Claims(claims.iter().map(|(_, claim)| **claim).collect())).collect()
}

/// The ports at the ends of each link, by its number; the configuration's check has found both.
pub fn ends(plan: &Plan) -> BTreeMap<u32, [SwitchPort; 2]> {
    let mut found: BTreeMap<u32, [Option<SwitchPort>; 2]> = BTreeMap::new();
    for (index, switch) in plan.switches.iter() {
        for (id, port) in switch.ports.iter() {
            if let PortKind::Link { link, side } = port.kind {
                found.entry(link as u32).or_default()[usize::from(side == Side::B)] =
                    Some((index as usize, PortId(id)));
            }
        }
    }
    found.into_iter().filter_map(|(link, [a, b])| Some((link, [a?, b?]))).collect()
}
