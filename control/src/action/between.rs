//! The actions that turn one configuration into another.

use super::{Action, Kind, Named};
use crate::config::Config;
use crate::write::{self, Keys};
use serde_json::Value;
use std::collections::BTreeMap;

/// The actions that turn `old` into `new`: deletions first, then what is in what is deleted; then
/// links, switches, uplinks, tenants, endpoints, services, backends, cluster and members, set or
/// added. The order of things in a list is not kept: it means nothing.
///
/// The daemon's name is not a key: who compares two daemons looks at it himself.
#[must_use]
pub fn between(old: &Config, new: &Config) -> Vec<Action> {
    let mut list = List::default();
    list.set(Kind::Daemon, "", write::daemon(&old.daemon), write::daemon(&new.daemon));
    list.things(Kind::Link, "", &old.links, &new.links, write::link);
    list.things(Kind::Switch, "", &old.switches, &new.switches, write::switch);
    let none = crate::config::Switch::default();
    let switches = by_name(&old.switches);
    for switch in &new.switches {
        let before = switches.get(switch.name.as_str()).copied().unwrap_or(&none);
        let name = &switch.name;
        match (&before.uplink, &switch.uplink) {
            (None, None) => {}
            (Some(_), None) => list.deletions.push(Action::Del { kind: Kind::Uplink, path: name.clone() }),
            (None, Some(uplink)) => list.add(Kind::Uplink, name, write::uplink(uplink)),
            (Some(before), Some(uplink)) => {
                list.set(Kind::Uplink, name, write::uplink(before), write::uplink(uplink));
            }
        }
        list.things(Kind::Tenant, name, &before.tenants, &switch.tenants, write::tenant);
        let tenants = by_name(&before.tenants);
        for tenant in &switch.tenants {
            let path = format!("{name}/{}", tenant.name);
            let before = tenants.get(tenant.name.as_str()).map_or(&[][..], |t| &t.endpoints);
            list.things(Kind::Endpoint, &path, before, &tenant.endpoints, write::endpoint);
            let before = tenants.get(tenant.name.as_str()).map_or(&[][..], |t| &t.services);
            list.things(Kind::Service, &path, before, &tenant.services, write::service);
            let services = by_name(before);
            for service in &tenant.services {
                let path = format!("{path}/{}", service.name);
                let before = services.get(service.name.as_str()).map_or(&[][..], |s| &s.backends);
                list.things(Kind::Backend, &path, before, &service.backends, write::backend);
            }
        }
    }
    match (&old.cluster, &new.cluster) {
        (None, None) => {}
        (Some(_), None) => list.deletions.push(Action::Del { kind: Kind::Cluster, path: String::new() }),
        (before, Some(cluster)) => {
            match before {
                None => list.add(Kind::Cluster, "", write::cluster(cluster)),
                Some(before) => list.set(Kind::Cluster, "", write::cluster(before), write::cluster(cluster)),
            }
            let members = before.as_ref().map_or(&[][..], |before| &before.members);
            list.things(Kind::Member, "", members, &cluster.members, write::member);
        }
    }
    list.deletions.append(&mut list.rest);
    list.deletions
}

/// Things by their name, so that ten thousand are not compared with each other.
fn by_name<T: Named>(list: &[T]) -> BTreeMap<&str, &T> {
    list.iter().map(|one| (one.name(), one)).collect()
}

#[derive(Default)]
struct List {
    deletions: Vec<Action>,
    rest: Vec<Action>,
}

impl List {
    fn things<T: Named>(&mut self, kind: Kind, within: &str, old: &[T], new: &[T], keys: fn(&T) -> Keys) {
        let path = |name: &str| if within.is_empty() { name.to_owned() } else { format!("{within}/{name}") };
        let (before, after) = (by_name(old), by_name(new));
        for one in old.iter().filter(|one| !after.contains_key(one.name())) {
            self.deletions.push(Action::Del { kind, path: path(one.name()) });
        }
        for one in new {
            match before.get(one.name()) {
                None => self.add(kind, &path(one.name()), keys(one)),
                Some(before) => self.set(kind, &path(one.name()), keys(before), keys(one)),
            }
        }
    }

    fn add(&mut self, kind: Kind, path: &str, keys: Keys) {
        self.rest.push(Action::Add { kind, path: path.to_owned(), keys });
    }

    /// The keys that differ.
    fn set(&mut self, kind: Kind, path: &str, old: Keys, new: Keys) {
        let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null));
        let mut keys: Keys = gone.collect();
        keys.extend(new.into_iter().filter(|(key, value)| old.get(key) != Some(value)));
        if !keys.is_empty() {
            self.rest.push(Action::Set { kind, path: path.to_owned(), keys });
        }
    }
}
