//! A configuration while actions are done to it. Things are found by their name in constant time,
//! so that a list of a hundred thousand actions takes a hundred thousand steps.

use super::{Kind, Refused};
use crate::config::{Backend, Cluster, Config, Endpoint, Link, Member, Service, Switch, Tenant};
use crate::problem::nearest;
use std::collections::HashMap;
use std::mem::take;

/// A thing that is in a list under a name.
pub(super) trait Named: Default {
    fn name(&self) -> &str;
}

macro_rules! named {
    ($($thing:ty),*) => { $(impl Named for $thing { fn name(&self) -> &str { &self.name } })* };
}
named!(Switch, Tenant, Endpoint, Service, Backend, Link, Member);

/// Which list of a configuration: tenants by their switch's place in its list, endpoints and
/// services by their switch's and tenant's, backends by their service's as well.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum List {
    Switches,
    Links,
    Members,
    Tenants(usize),
    Endpoints(usize, usize),
    Services(usize, usize),
    Backends(usize, usize, usize),
}

/// A configuration that is being changed.
pub(super) struct Draft {
    /// What is deleted lies in its list without a name until the end, so that the others keep their
    /// places.
    config: Config,
    /// Where the things of a list are, by name: of lists that were asked for.
    places: HashMap<List, HashMap<String, usize>>,
    has_deleted: bool,
    /// Members that are to be active, with their switches.
    pub active: Vec<(String, String)>,
}

/// A list of things of one kind.
pub(super) struct Things<'a, T> {
    kind: Kind,
    list: &'a mut Vec<T>,
    places: &'a mut HashMap<String, usize>,
    has_deleted: &'a mut bool,
}

impl<T: Named> Things<'_, T> {
    pub fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    pub fn get(&mut self, name: &str) -> Result<&mut T, Refused> {
        let at = self.place(name)?;
        Ok(&mut self.list[at])
    }

    /// Where in its list a thing is.
    pub fn place(&self, name: &str) -> Result<usize, Refused> {
        let names = || self.list.iter().map(Named::name).filter(|name| !name.is_empty());
        self.places.get(name).copied().ok_or_else(|| missing(self.kind, name, nearest(name, names())))
    }

    /// Adds a thing of a name that there is not.
    pub fn add(&mut self, thing: T) {
        self.places.insert(thing.name().to_owned(), self.list.len());
        self.list.push(thing);
    }

    pub fn delete(&mut self, name: &str) -> Result<(), Refused> {
        let at = self.place(name)?;
        self.places.remove(name);
        drop(take(&mut self.list[at]));
        *self.has_deleted = true;
        Ok(())
    }
}

impl Draft {
    pub fn new(config: &Config) -> Draft {
        Draft { config: config.clone(), places: HashMap::new(), has_deleted: false, active: Vec::new() }
    }

    /// What it is now, and who is to be active.
    pub fn finish(mut self) -> (Config, Vec<(String, String)>) {
        fn keep<T: Named>(list: &mut Vec<T>) {
            list.retain(|one| !one.name().is_empty());
        }
        if self.has_deleted {
            keep(&mut self.config.links);
            keep(&mut self.config.switches);
            self.config.cluster.iter_mut().for_each(|cluster| keep(&mut cluster.members));
            for switch in &mut self.config.switches {
                keep(&mut switch.tenants);
                for tenant in &mut switch.tenants {
                    keep(&mut tenant.endpoints);
                    keep(&mut tenant.services);
                    tenant.services.iter_mut().for_each(|service| keep(&mut service.backends));
                }
            }
        }
        (self.config, self.active)
    }

    /// What of it is in no list.
    pub fn config(&mut self) -> &mut Config {
        &mut self.config
    }

    pub fn switches(&mut self) -> Things<'_, Switch> {
        self.things(Kind::Switch, List::Switches, |config| &mut config.switches)
    }

    pub fn links(&mut self) -> Things<'_, Link> {
        self.things(Kind::Link, List::Links, |config| &mut config.links)
    }

    /// The cluster, where there is one.
    pub fn cluster(&mut self) -> Result<&mut Cluster, Refused> {
        self.config.cluster.as_mut().ok_or_else(|| missing(Kind::Cluster, "", None))
    }

    /// There is another cluster, or none.
    pub fn set_cluster(&mut self, cluster: Option<Cluster>) {
        self.places.remove(&List::Members);
        self.config.cluster = cluster;
    }

    pub fn members(&mut self) -> Result<Things<'_, Member>, Refused> {
        self.cluster()?;
        Ok(self.things(Kind::Member, List::Members, |config| &mut config.cluster.get_or_insert_default().members))
    }

    pub fn tenants(&mut self, switch: &str) -> Result<Things<'_, Tenant>, Refused> {
        let s = self.switches().place(switch)?;
        Ok(self.things(Kind::Tenant, List::Tenants(s), |config| &mut config.switches[s].tenants))
    }

    pub fn endpoints(&mut self, switch: &str, tenant: &str) -> Result<Things<'_, Endpoint>, Refused> {
        let s = self.switches().place(switch)?;
        let t = self.tenants(switch)?.place(tenant)?;
        let list = List::Endpoints(s, t);
        Ok(self.things(Kind::Endpoint, list, |config| &mut config.switches[s].tenants[t].endpoints))
    }

    pub fn services(&mut self, switch: &str, tenant: &str) -> Result<Things<'_, Service>, Refused> {
        let s = self.switches().place(switch)?;
        let t = self.tenants(switch)?.place(tenant)?;
        let list = List::Services(s, t);
        Ok(self.things(Kind::Service, list, |config| &mut config.switches[s].tenants[t].services))
    }

    pub fn backends(&mut self, switch: &str, tenant: &str, service: &str) -> Result<Things<'_, Backend>, Refused> {
        let s = self.switches().place(switch)?;
        let t = self.tenants(switch)?.place(tenant)?;
        let v = self.services(switch, tenant)?.place(service)?;
        let list = List::Backends(s, t, v);
        Ok(self.things(Kind::Backend, list, |config| &mut config.switches[s].tenants[t].services[v].backends))
    }

    fn things<T: Named>(
        &mut self,
        kind: Kind,
        list: List,
        of: impl FnOnce(&mut Config) -> &mut Vec<T>,
    ) -> Things<'_, T> {
        let things = of(&mut self.config);
        let places = self.places.entry(list).or_insert_with(|| {
            things.iter().enumerate().map(|(place, thing)| (thing.name().to_owned(), place)).collect()
        });
        Things { kind, list: things, places, has_deleted: &mut self.has_deleted }
    }
}

pub(super) fn missing(kind: Kind, name: &str, near: Option<&str>) -> Refused {
    let what = if name.is_empty() { kind.word().to_owned() } else { format!("{} \"{name}\"", kind.word()) };
    let remedy = near.map_or_else(|| "add it first".to_owned(), |near| format!("did you mean \"{near}\"?"));
    Refused::new(format!("there is no {what}"), remedy)
}
