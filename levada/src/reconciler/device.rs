//! The devices of a reconciler: what is open, what a plan wants, and which of them are the same.

use crate::guests::front_ends::FrontEndId;
use crate::guests::vde_server::PlugId;
use crate::recipe::{Recipe, Slower, owner_of};
use control::plan::{Plan, PortKind, VdePlan, VhostPlan};
use datapath::program::{EndpointId, PortId};
use ports::veth::VethOptions;
use ports::{Features, netns};
use std::collections::{BTreeMap, BTreeSet};

/// A port of a switch, by their numbers.
pub type SwitchPort = (usize, PortId);

/// A device that is open.
#[derive(Clone)]
pub struct OpenDevice {
    pub kind: Kind,
    pub place: SwitchPort,
    /// What its line carries, where it once carried more.
    pub slower: Option<Slower>,
}

/// What kind of device it is, and what it was opened with.
#[derive(Clone)]
pub enum Kind {
    Opened(Recipe, Features),
    /// The host's own traffic, where the switch cannot have it.
    Absent(String),
    /// A plug of a VDE directory: its port comes and goes with its clients.
    Plug(VdePlan, PlugId),
    /// A virtual machine: its port comes and goes with its guest, which says what it can do.
    Machine(VhostPlan, FrontEndId, Features),
}

/// A device that a plan wants.
pub struct Wanted {
    pub kind: Want,
    pub label: String,
    pub place: SwitchPort,
}

pub enum Want {
    Opened(Recipe),
    Absent(String),
    Plug(VdePlan),
    Machine(VhostPlan),
}

/// What makes a device the same one.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Tap(String, Option<String>),
    Veth(String, Option<String>),
    Packet(String, Option<String>),
    Host(String, Option<String>),
    Absent(String),
    Plug(String, u32),
    Machine(String),
}

impl Key {
    pub fn of(recipe: &Recipe) -> Key {
        let place = |netns: &Option<netns::Netns>| netns.as_ref().map(ToString::to_string);
        match recipe {
            Recipe::Tap(options) => Key::Tap(options.name.clone(), place(&options.netns)),
            Recipe::Veth(VethOptions { end, .. }) => Key::Veth(end.name.clone(), place(&end.netns)),
            Recipe::Packet(options, _) => Key::Packet(options.name.clone(), place(&options.netns)),
            Recipe::Host(options) => Key::Host(options.interface.clone(), place(&options.netns)),
        }
    }

    pub fn of_plug(plan: &VdePlan) -> Key {
        Key::Plug(plan.directory.clone(), plan.plug)
    }
}

/// The devices of a plan.
pub fn wanted(plan: &Plan) -> Vec<Wanted> {
    let mut all = Vec::new();
    for (index, switch) in plan.switches.iter() {
        let endpoints = switch.program.endpoints.iter();
        let endpoints: BTreeMap<PortId, u32> = endpoints.map(|(id, endpoint)| (endpoint.port, id)).collect();
        for (id, port) in switch.ports.iter() {
            let id = PortId(id);
            let endpoint = endpoints.get(&id).map(|&endpoint| EndpointId(endpoint));
            let owner = owner_of(switch, endpoint);
            let label = format!("{} of {owner}", port.locator);
            let kind = match (&port.kind, Recipe::of(plan, index as usize, id, endpoint)) {
                (PortKind::Link { .. } | PortKind::Director, _) => continue,
                (PortKind::Vde(plan), _) => Want::Plug(plan.clone()),
                (PortKind::VhostUser(plan), _) => Want::Machine(plan.clone()),
                (_, Some(recipe)) => Want::Opened(recipe),
                (_, None) => Want::Absent(owner),
            };
            all.push(Wanted { kind, label, place: (index as usize, id) });
        }
    }
    all
}

/// What another process may know the devices of a plan by.
pub fn known_as(plan: &Plan) -> BTreeSet<String> {
    let known_as = |wanted: Wanted| if let Want::Opened(recipe) = wanted.kind { recipe.known_as() } else { None };
    wanted(plan).into_iter().filter_map(known_as).collect()
}
