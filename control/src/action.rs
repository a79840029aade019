//! Actions: the whole management surface. The command line, HTTP and the file only translate into
//! them.
//!
//! An action adds, sets or deletes one *thing*: the daemon's settings, a switch, its uplink, the
//! uplink's bond or a member of that, a tenant, an endpoint, a service, its backend, a link, the
//! cluster or a member of it. Its keys are those of the file (`docs/reference/configuration.md`),
//! read by the same reader. [`apply`] does a list of actions to a configuration, all or none of
//! them; [`between`] is the list that turns one configuration into another, so that a file is the
//! list from nothing to what it says.
//!
//! ```
//! use control::action::{Action, apply};
//! let file = control::load("[daemon]\nname = \"demo\"\n[[switch]]\nname = \"s1\"\n").config;
//! let action: Action = serde_json::from_str(r#"{"action": "add", "kind": "tenant", "path": "s1/red"}"#).unwrap();
//! let changed = apply(&file, &[action]).unwrap();
//! assert_eq!(changed.config.switches[0].tenants[0].name, "red");
//! ```

use crate::config::{Cluster, Config, Service, Switch, Tenant};
use crate::names;
use crate::place::Place;
use crate::problem::{Problem, Severity};
use crate::read::thing;
use crate::write::{self, Keys};
use serde::{Deserialize, Serialize};
use std::fmt;

mod between;
mod bond;
mod draft;
pub use between::between;
pub use bond::ACTIVE;
use draft::{Draft, Named, Things, missing};

/// What kind of thing an action is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The settings of the process; its path is empty.
    Daemon,
    /// `SWITCH`.
    Switch,
    /// The uplink of the switch `SWITCH`.
    Uplink,
    /// The bond that the uplink of the switch `SWITCH` is.
    Bond,
    /// `SWITCH/MEMBER`: one of its ports.
    BondMember,
    /// `SWITCH/TENANT`.
    Tenant,
    /// `SWITCH/TENANT/ENDPOINT`.
    Endpoint,
    /// `SWITCH/TENANT/SERVICE`.
    Service,
    /// `SWITCH/TENANT/SERVICE/BACKEND`.
    Backend,
    /// `LINK`.
    Link,
    /// The cluster that the host is in; its path is empty.
    Cluster,
    /// A host of the cluster: `HOST`.
    Member,
}

impl Kind {
    /// All kinds, containers before what they contain.
    pub const ALL: [Kind; 12] = [
        Kind::Daemon,
        Kind::Link,
        Kind::Switch,
        Kind::Uplink,
        Kind::Bond,
        Kind::BondMember,
        Kind::Tenant,
        Kind::Endpoint,
        Kind::Service,
        Kind::Backend,
        Kind::Cluster,
        Kind::Member,
    ];

    /// How it is written.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Kind::Daemon => "daemon",
            Kind::Switch => "switch",
            Kind::Uplink => "uplink",
            Kind::Bond => "bond",
            Kind::BondMember => "bond-member",
            Kind::Tenant => "tenant",
            Kind::Endpoint => "endpoint",
            Kind::Service => "service",
            Kind::Backend => "backend",
            Kind::Link => "link",
            Kind::Cluster => "cluster",
            Kind::Member => "member",
        }
    }

    /// How the path of such a thing is written.
    #[must_use]
    pub fn path_form(self) -> &'static str {
        match self {
            Kind::Daemon | Kind::Cluster => "",
            Kind::Switch | Kind::Uplink | Kind::Bond => "SWITCH",
            Kind::BondMember => "SWITCH/MEMBER",
            Kind::Tenant => "SWITCH/TENANT",
            Kind::Endpoint => "SWITCH/TENANT/ENDPOINT",
            Kind::Service => "SWITCH/TENANT/SERVICE",
            Kind::Backend => "SWITCH/TENANT/SERVICE/BACKEND",
            Kind::Link => "LINK",
            Kind::Member => "HOST",
        }
    }
}

/// One change of a configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Action {
    /// Adds a thing that is not there. What the keys do not say has its default.
    Add {
        /// What kind of thing.
        kind: Kind,
        /// Which: its name behind those of what it is in.
        path: String,
        /// What it is like.
        #[serde(default, skip_serializing_if = "Keys::is_empty")]
        keys: Keys,
    },
    /// Changes some keys of a thing that is there; `null` gives a key its default again.
    Set {
        /// What kind of thing.
        kind: Kind,
        /// Which.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        path: String,
        /// The keys to change.
        keys: Keys,
    },
    /// Deletes a thing and all that is in it.
    Del {
        /// What kind of thing.
        kind: Kind,
        /// Which.
        path: String,
    },
}

impl Action {
    /// What it is about.
    #[must_use]
    pub fn thing(&self) -> (Kind, &str) {
        match self {
            Action::Add { kind, path, .. } | Action::Set { kind, path, .. } | Action::Del { kind, path } => {
                (*kind, path)
            }
        }
    }
}

/// As the command line takes it: `set endpoint s1/red/red1 limit="20 Mbit/s"`.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, keys) = match self {
            Action::Add { keys, .. } => ("add", Some(keys)),
            Action::Set { keys, .. } => ("set", Some(keys)),
            Action::Del { .. } => ("del", None),
        };
        let (kind, path) = self.thing();
        write!(f, "{word} {}", kind.word())?;
        if !path.is_empty() {
            write!(f, " {path}")?;
        }
        for (key, value) in keys.into_iter().flatten() {
            match value {
                serde_json::Value::String(text) if !text.contains([' ', '"', '\'']) => write!(f, " {key}={text}")?,
                serde_json::Value::String(text) => write!(f, " {key}={text:?}")?,
                serde_json::Value::Null => write!(f, " {key}=")?,
                other => write!(f, " {key}='{other}'")?,
            }
        }
        Ok(())
    }
}

/// A configuration that actions were done to, and that can run.
#[derive(Clone, Debug)]
pub struct Changed {
    /// The configuration.
    pub config: Config,
    /// What in it has no effect or cannot be kept.
    pub warnings: Vec<Problem>,
    /// Members that are to be active from now on, with their switches: no configuration has that.
    pub active: Vec<(String, String)>,
}

/// Does `actions` to `config`, in order, and checks what comes out as a whole.
///
/// # Errors
/// Everything that is wrong; where an action cannot be done, only that.
pub fn apply(config: &Config, actions: &[Action]) -> Result<Changed, Vec<Problem>> {
    let mut draft = Draft::new(config);
    for action in actions {
        do_one(&mut draft, action)?;
    }
    let (config, active) = draft.finish();
    let (errors, warnings): (Vec<_>, Vec<_>) =
        crate::problems(&config).into_iter().partition(|p| p.severity == Severity::Error);
    if errors.is_empty() { Ok(Changed { config, warnings, active }) } else { Err(errors) }
}

/// Why an action cannot be done, before it is known whose it is.
struct Refused {
    /// The key in question; empty for the thing itself.
    key: &'static str,
    message: String,
    remedy: String,
}

impl Refused {
    fn new(message: impl Into<String>, remedy: impl Into<String>) -> Refused {
        Refused { key: "", message: message.into(), remedy: remedy.into() }
    }
}

fn do_one(draft: &mut Draft, action: &Action) -> Result<(), Vec<Problem>> {
    let (kind, path) = action.thing();
    let outcome = names_in(kind, path).map_err(Fault::Refused).and_then(|names| match action {
        Action::Add { keys, .. } => add(draft, kind, &names, keys),
        Action::Set { keys, .. } => set(draft, kind, &names, keys),
        Action::Del { .. } => delete(draft, kind, &names).map_err(Fault::Refused),
    });
    let about = |key: &str| {
        let thing = format!("{} {path}", kind.word());
        if key.is_empty() { thing.trim_end().to_owned() } else { format!("{}, {key}", thing.trim_end()) }
    };
    outcome.map_err(|fault| match fault {
        Fault::Refused(Refused { key, message, remedy }) => {
            vec![Problem { key: about(key), ..Problem::error(Place::root(), message, remedy) }]
        }
        Fault::Keys(problems) => {
            problems.into_iter().map(|p| Problem { key: about(&p.key), span: None, ..p }).collect()
        }
    })
}

enum Fault {
    Refused(Refused),
    /// The keys are wrong; each problem says which.
    Keys(Vec<Problem>),
}

/// The names in a path.
fn names_in(kind: Kind, path: &str) -> Result<Vec<&str>, Refused> {
    let form = kind.path_form();
    let names: Vec<&str> = if path.is_empty() { Vec::new() } else { path.split('/').collect() };
    let wanted = if form.is_empty() { 0 } else { form.split('/').count() };
    if names.len() != wanted {
        let (message, remedy) = match wanted {
            0 => (format!("the {} has no path", kind.word()), "leave it out".to_owned()),
            _ => (format!("\"{path}\" is not a path of kind {}", kind.word()), format!("write {form}")),
        };
        return Err(Refused::new(message, remedy));
    }
    // A member is called as its device, whose name may have other characters.
    let checked = if kind == Kind::BondMember { 1 } else { names.len() };
    for name in &names[..checked] {
        names::name(name).map_err(|wrong| Refused::new(wrong.message, wrong.remedy))?;
    }
    Ok(names)
}

fn add(draft: &mut Draft, kind: Kind, names: &[&str], keys: &Keys) -> Result<(), Fault> {
    fn push<T: Named>(
        mut things: Things<'_, T>,
        name: &str,
        keys: &Keys,
        read: fn(&str, &Keys) -> Result<T, Vec<Problem>>,
    ) -> Result<(), Fault> {
        if things.has(name) {
            return Err(exists());
        }
        things.add(read(name, keys).map_err(Fault::Keys)?);
        Ok(())
    }
    fn exists() -> Fault {
        Fault::Refused(Refused::new("it is there already", "set its keys, or delete it before"))
    }
    match (kind, names) {
        (Kind::Switch, [name]) => push(draft.switches(), name, keys, thing::switch),
        (Kind::Link, [name]) => push(draft.links(), name, keys, thing::link),
        (Kind::Member, [name]) => push(draft.members()?, name, keys, thing::member),
        (Kind::Tenant, [switch, name]) => push(draft.tenants(switch)?, name, keys, thing::tenant),
        (Kind::Endpoint, [switch, tenant, name]) => push(draft.endpoints(switch, tenant)?, name, keys, thing::endpoint),
        (Kind::Service, [switch, tenant, name]) => push(draft.services(switch, tenant)?, name, keys, thing::service),
        (Kind::Backend, [switch, tenant, service, name]) => {
            push(draft.backends(switch, tenant, service)?, name, keys, thing::backend)
        }
        (Kind::Uplink, [switch]) => {
            let mut switches = draft.switches();
            let switch = switches.get(switch)?;
            if switch.uplink.is_some() {
                return Err(exists());
            }
            switch.uplink = Some(thing::uplink(keys).map_err(Fault::Keys)?);
            Ok(())
        }
        (Kind::BondMember, [switch, name]) => bond::add(draft, switch, name, keys),
        (Kind::Bond, _) => Err(Fault::Refused(Refused::new(
            "a bond comes with its uplink",
            "set the uplink's keys: port= rate= bond='{\"mode\": \"balance-rr\", \"member\": [...]}'",
        ))),
        (Kind::Cluster, _) if draft.cluster().is_ok() => Err(exists()),
        (Kind::Cluster, _) => {
            draft.set_cluster(Some(thing::cluster(keys).map_err(Fault::Keys)?));
            Ok(())
        }
        _ => Err(Fault::Refused(Refused::new("there is one daemon", "set its keys"))),
    }
}

fn set(draft: &mut Draft, kind: Kind, names: &[&str], keys: &Keys) -> Result<(), Fault> {
    let merged = |mut old: Keys| {
        for (key, value) in keys {
            if value.is_null() && old.remove(key).is_some() {
                continue;
            }
            // A key that was not there and is to have its default is left to the reader, who knows
            // the names.
            old.insert(key.clone(), value.clone());
        }
        old
    };
    match (kind, names) {
        (Kind::Switch, [name]) => {
            let mut switches = draft.switches();
            let old = switches.get(name)?;
            let new = thing::switch(name, &merged(write::switch(old))).map_err(Fault::Keys)?;
            *old = Switch { uplink: old.uplink.take(), tenants: std::mem::take(&mut old.tenants), ..new };
        }
        (Kind::Uplink, [switch]) => {
            let mut switches = draft.switches();
            let uplink = switches.get(switch)?.uplink.as_mut().ok_or_else(|| missing(Kind::Uplink, "", None))?;
            *uplink = thing::uplink(&merged(write::uplink(uplink))).map_err(Fault::Keys)?;
        }
        (Kind::Bond, [switch]) => bond::set(draft, switch, keys, merged)?,
        (Kind::BondMember, [switch, name]) => bond::set_member(draft, switch, name, merged)?,
        (Kind::Tenant, [switch, name]) => {
            let mut tenants = draft.tenants(switch)?;
            let old = tenants.get(name)?;
            let new = thing::tenant(name, &merged(write::tenant(old))).map_err(Fault::Keys)?;
            let services = std::mem::take(&mut old.services);
            *old = Tenant { endpoints: std::mem::take(&mut old.endpoints), services, ..new };
        }
        (Kind::Service, [switch, tenant, name]) => {
            let mut services = draft.services(switch, tenant)?;
            let old = services.get(name)?;
            let new = thing::service(name, &merged(write::service(old))).map_err(Fault::Keys)?;
            *old = Service { backends: std::mem::take(&mut old.backends), ..new };
        }
        (Kind::Backend, [switch, tenant, service, name]) => {
            let mut backends = draft.backends(switch, tenant, service)?;
            let old = backends.get(name)?;
            *old = thing::backend(name, &merged(write::backend(old))).map_err(Fault::Keys)?;
        }
        (Kind::Endpoint, [switch, tenant, name]) => {
            let mut endpoints = draft.endpoints(switch, tenant)?;
            let old = endpoints.get(name)?;
            *old = thing::endpoint(name, &merged(write::endpoint(old))).map_err(Fault::Keys)?;
        }
        (Kind::Link, [name]) => {
            let mut links = draft.links();
            let old = links.get(name)?;
            *old = thing::link(name, &merged(write::link(old))).map_err(Fault::Keys)?;
        }
        (Kind::Cluster, _) => {
            let old = draft.cluster()?;
            let new = thing::cluster(&merged(write::cluster(old))).map_err(Fault::Keys)?;
            *old = Cluster { members: std::mem::take(&mut old.members), ..new };
        }
        (Kind::Member, [name]) => {
            let mut members = draft.members()?;
            let old = members.get(name)?;
            *old = thing::member(name, &merged(write::member(old))).map_err(Fault::Keys)?;
        }
        _ => {
            let daemon = &mut draft.config().daemon;
            *daemon = thing::daemon(&daemon.name, &merged(write::daemon(daemon))).map_err(Fault::Keys)?;
        }
    }
    Ok(())
}

fn delete(draft: &mut Draft, kind: Kind, names: &[&str]) -> Result<(), Refused> {
    match (kind, names) {
        (Kind::Switch, [name]) => draft.switches().delete(name),
        (Kind::Link, [name]) => draft.links().delete(name),
        (Kind::Member, [name]) => draft.members()?.delete(name),
        (Kind::Tenant, [switch, name]) => draft.tenants(switch)?.delete(name),
        (Kind::Endpoint, [switch, tenant, name]) => draft.endpoints(switch, tenant)?.delete(name),
        (Kind::Service, [switch, tenant, name]) => draft.services(switch, tenant)?.delete(name),
        (Kind::Backend, [switch, tenant, service, name]) => draft.backends(switch, tenant, service)?.delete(name),
        (Kind::BondMember, [switch, name]) => bond::delete(draft, switch, name),
        (Kind::Bond, _) => Err(Refused::new("an uplink has ports", "give it another: bond= port=... rate=...")),
        (Kind::Uplink, [switch]) => {
            let uplink = draft.switches().get(switch)?.uplink.take();
            uplink.map(drop).ok_or_else(|| missing(Kind::Uplink, "", None))
        }
        (Kind::Cluster, _) => {
            draft.cluster()?;
            draft.set_cluster(None);
            Ok(())
        }
        _ => Err(Refused::new("the daemon cannot be deleted", "stop it")),
    }
}

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Fault {
        Fault::Refused(refused)
    }
}

#[cfg(test)]
mod tests;
