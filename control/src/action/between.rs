//! The actions that turn one configuration into another.

use super::{Action, Kind, Named, find};
use crate::config::Config;
use crate::write::{self, Keys};
use serde_json::Value;

/// The actions that turn `old` into `new`: deletions first, then what is in what is deleted; then links, switches, uplinks, tenants,
/// endpoints, cluster and members, set or added. The order of things in a list is not kept: it means nothing.
///
/// The daemon's name is not a key: who compares two daemons looks at it himself.
#[must_use]
pub fn between(old: &Config, new: &Config) -> Vec<Action> {
    let mut list = List::default();
    list.set(Kind::Daemon, "", write::daemon(&old.daemon), write::daemon(&new.daemon));
    list.things(Kind::Link, "", &old.links, &new.links, write::link);
    list.things(Kind::Switch, "", &old.switches, &new.switches, write::switch);
    for switch in &new.switches {
        let none = crate::config::Switch::default();
        let before = find(&old.switches, &switch.name).unwrap_or(&none);
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
        for tenant in &switch.tenants {
            let path = format!("{name}/{}", tenant.name);
            let before = find(&before.tenants, &tenant.name).map_or(&[][..], |t| &t.endpoints);
            list.things(Kind::Endpoint, &path, before, &tenant.endpoints, write::endpoint);
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

#[derive(Default)]
struct List {
    deletions: Vec<Action>,
    rest: Vec<Action>,
}

impl List {
    fn things<T: Named>(&mut self, kind: Kind, within: &str, old: &[T], new: &[T], keys: fn(&T) -> Keys) {
        use std::collections::BTreeMap;
        let path = |name: &str| if within.is_empty() { name.to_owned() } else { format!("{within}/{name}") };
        // By name, so that ten thousand endpoints are not compared with each other.
        let by_name = |list: &'_ [T]| list.iter().enumerate().map(|(i, one)| (one.name().to_owned(), i)).collect();
        let (before, after): (BTreeMap<String, usize>, BTreeMap<String, usize>) = (by_name(old), by_name(new));
        for one in old.iter().filter(|one| !after.contains_key(one.name())) {
            self.deletions.push(Action::Del { kind, path: path(one.name()) });
        }
        for one in new {
            match before.get(one.name()) {
                None => self.add(kind, &path(one.name()), keys(one)),
                Some(&at) => self.set(kind, &path(one.name()), keys(&old[at]), keys(one)),
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
