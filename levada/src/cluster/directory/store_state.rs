//! The store state: what a store has said, what this host is to say in it, and what follows from
//! both. It does no I/O; `etcd` carries what it wants written.
//!
//! - **An endpoint is where its key says.** Who has one in its configuration writes the key if
//!   nobody has; a key is changed and deleted only as it was seen, by compare-and-swap. Of two
//!   hosts that claim one endpoint the first has it; the other is told, and has it as soon as the
//!   first lets it go, or is away.
//! - **Away is who has no `alive` key**: its daemon has ended, or has not reached the store for as
//!   long as its lease lasts. What is known of such a host stays known: it may well be forwarding
//!   frames. Only a host that has the same endpoint in its own configuration takes it over.
//! - **A service is where its key says too**, though several hosts may have it: the first has the
//!   key, and others look for the service there; when it is away, another of them takes the key.
//! - **What is wrong is refused by name**, and the rest is used.

use super::entry::{Entry, Key, Told};
use control::config::{Member, Remote, RemoteService};
use control::names::show_mac;
use datapath::wire::Mac;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// Most endpoints that are kept: three times 1000 hosts with 20 each.
pub const MOST_ENDPOINTS: usize = 1 << 16;
/// Most other entries, of which a host has two. Apart from the endpoints, as these come first when
/// everything is read: too many of them must not hide hosts.
pub const MOST_HOST_ENTRIES: usize = 1 << 13;
/// Most refusals that are said; more are counted.
pub const MOST_SAID: usize = 32;

/// Another host, as a store knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    /// What it is.
    pub member: Member,
    /// The store has not heard of its daemon for a while.
    pub is_away: bool,
}

/// What this host is to say.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Own {
    /// Its name.
    pub host: String,
    /// Which daemon it is.
    pub from: String,
    /// Where its agents listen; `None`: the host is to go from the store.
    pub address: Option<SocketAddr>,
    /// Its end of tunnels, if it has one.
    pub vtep: Option<IpAddr>,
    /// Its endpoints and services, by tenant and address.
    pub endpoints: BTreeMap<(String, Mac), Told>,
}

/// An entry of the store.
#[derive(Clone, Debug)]
struct StoreEntry {
    /// At which revision the key came to be.
    since: i64,
    /// At which revision it was written.
    revision: i64,
    /// Under which lease; 0: none.
    lease: i64,
    entry: Result<Entry, String>,
}

/// What must be so for something to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum If {
    /// There is no such key.
    Absent(Key),
    /// It was last written at this revision.
    Unchanged(Key, i64),
}

/// Something to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// Which key.
    pub key: Key,
    /// Its value; `None`: it is to go.
    pub value: Option<Vec<u8>>,
    /// Whether it goes with the lease.
    pub leased: bool,
    /// If all of this is so.
    pub conditions: Vec<If>,
}

/// An endpoint or a service of this host that another has.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Contest {
    /// Its tenant.
    pub tenant: String,
    /// Its address.
    pub mac: Mac,
    /// `TENANT/NAME (MAC)`.
    pub endpoint: String,
    /// It is a service.
    pub is_service: bool,
    /// Who has it.
    pub holder: String,
}

/// What follows from everything that is known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// The other hosts.
    pub members: Vec<Known>,
    /// What of this host's is this host's by the store.
    pub held: BTreeSet<(String, Mac)>,
    /// What is not.
    pub contests: Vec<Contest>,
    /// Entries that are not used, and why; the first of them.
    pub refused: Vec<String>,
    /// All of them.
    pub refusals: usize,
}

/// The store state.
#[derive(Debug, Default)]
pub struct StoreState {
    prefix: String,
    own: Own,
    lease: i64,
    known: BTreeMap<Key, StoreEntry>,
    /// How many of them are endpoints.
    endpoints: usize,
    /// Keys that are none.
    strange: BTreeMap<String, String>,
    /// Whether there was no room for some endpoint, and for some other entry.
    left_out: [bool; 2],
    /// Something has gone since.
    has_room: bool,
    revision: i64,
}

impl StoreState {
    /// An empty store state of the keys below `prefix`.
    pub fn new(prefix: &str, own: Own) -> StoreState {
        StoreState { prefix: prefix.to_owned(), own, ..StoreState::default() }
    }

    /// Up to where it knows the store.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// This is what the host is to say from now on.
    pub fn set_own(&mut self, own: Own) {
        self.own = own;
    }

    /// What is written with a lease is written with this one.
    pub fn set_lease(&mut self, lease: i64) {
        self.lease = lease;
    }

    /// Everything up to this revision is known.
    pub fn reach(&mut self, revision: i64) {
        self.revision = self.revision.max(revision);
    }

    /// Whether there may be room by now for what was left out: that is known when everything is
    /// read anew.
    pub fn has_room(&self) -> bool {
        self.has_room
    }

    /// A key has this value, written at a revision under a lease; it has been there since another
    /// revision, or this one.
    pub fn put(&mut self, path: &str, value: &[u8], revisions: (i64, i64), lease: i64) {
        self.take(path, value, revisions, lease, false);
    }

    /// The same of a key that was looked at since something was to be written: there is always room
    /// for it, or it would be tried again without end.
    pub fn put_looked_at(&mut self, path: &str, value: &[u8], revisions: (i64, i64), lease: i64) {
        self.take(path, value, revisions, lease, true);
    }

    fn take(&mut self, path: &str, value: &[u8], (since, revision): (i64, i64), lease: i64, must: bool) {
        let key = match Key::read(&self.prefix, path) {
            Ok(key) => key,
            Err(why) => {
                if self.strange.len() < MOST_SAID {
                    self.strange.insert(
                        path.chars().take(200).collect(),
                        format!("{why}; no daemon uses it: delete it (etcdctl del)"),
                    );
                }
                return;
            }
        };
        if self.known.get(&key).is_some_and(|held| held.revision > revision) {
            return;
        }
        let (many, most, what) = match key {
            Key::Endpoint(..) => (self.endpoints, MOST_ENDPOINTS, "endpoints"),
            _ => (self.known.len() - self.endpoints, MOST_HOST_ENTRIES, "entries of hosts"),
        };
        if many >= most && !must && !self.known.contains_key(&key) && !self.is_own(&key) {
            self.left_out[usize::from(!matches!(key, Key::Endpoint(..)))] = true;
            self.strange
                .insert(format!("(other {what})"), format!("there are more than {most}; delete what is of no use"));
            return;
        }
        let (entry, is_endpoint) = (Entry::read(&key, value), matches!(key, Key::Endpoint(..)));
        if self.known.insert(key, StoreEntry { since, revision, lease, entry }).is_none() {
            self.endpoints += usize::from(is_endpoint);
        }
    }

    /// Since when a key has been there, if it has; else, this revision.
    pub fn since(&self, key: &Key, revision: i64) -> i64 {
        self.known.get(key).map_or(revision, |held| held.since)
    }

    /// A key is gone, since a revision.
    pub fn delete(&mut self, path: &str, revision: i64) {
        self.strange.remove(path);
        let Ok(key) = Key::read(&self.prefix, path) else { return };
        let is_endpoint = matches!(key, Key::Endpoint(..));
        // What it was of those that were left out, nobody knows.
        self.has_room |= self.left_out[usize::from(!is_endpoint)];
        if self.known.get(&key).is_some_and(|held| held.revision <= revision) {
            self.known.remove(&key);
            self.endpoints -= usize::from(is_endpoint);
        }
    }

    fn is_own(&self, key: &Key) -> bool {
        match key {
            Key::Alive(host) | Key::Host(host) => *host == self.own.host,
            Key::Endpoint(tenant, mac) => self.own.endpoints.contains_key(&(tenant.clone(), *mac)),
        }
    }

    fn entry(&self, key: &Key) -> Option<&Entry> {
        self.known.get(key)?.entry.as_ref().ok()
    }

    /// Whether the store has heard of a host's daemon within its lease.
    pub fn is_alive(&self, host: &str) -> bool {
        self.known.contains_key(&Key::Alive(host.to_owned()))
    }

    /// Another daemon that says that it is this host. What is under the own lease is of this one,
    /// whatever it was called then.
    pub fn rival(&self) -> Option<&str> {
        let held = self.known.get(&Key::Alive(self.own.host.clone()))?;
        match &held.entry {
            Ok(Entry::Alive(alive)) if alive.from != self.own.from => Some(&alive.from),
            _ => None,
        }
        .filter(|_| held.lease != self.lease || self.lease == 0)
        .map(String::as_str)
    }

    /// What is to be written next, until nothing is. What became of it is to be told by
    /// [`StoreState::put`] and [`StoreState::delete`] first.
    pub fn next_write(&self) -> Option<Write> {
        if self.rival().is_some() || self.own.host.is_empty() {
            return None;
        }
        let (alive, host) = (Key::Alive(self.own.host.clone()), Key::Host(self.own.host.clone()));
        let Some(address) = self.own.address else {
            return self.stale().or_else(|| self.removal(host)).or_else(|| self.removal(alive));
        };
        let is_ours = self.known.get(&alive).is_some_and(|held| held.lease == self.lease);
        if !is_ours || self.entry(&alive) != Some(&Entry::alive(&self.own.from)) {
            return Some(self.writing(alive, Entry::alive(&self.own.from), true));
        }
        let entry = Entry::host(address, self.own.vtep);
        if self.entry(&host) != Some(&entry) {
            return Some(self.writing(host, entry, false));
        }
        self.stale().or_else(|| self.own.endpoints.iter().find_map(|(place, what)| self.claim(place, what)))
    }

    fn writing(&self, key: Key, entry: Entry, leased: bool) -> Write {
        let conditions = vec![self.as_known(&key)];
        Write { value: Some(entry.write()), key, leased, conditions }
    }

    fn as_known(&self, key: &Key) -> If {
        match self.known.get(key) {
            Some(held) => If::Unchanged(key.clone(), held.revision),
            None => If::Absent(key.clone()),
        }
    }

    fn removal(&self, key: Key) -> Option<Write> {
        let held = self.known.get(&key)?;
        Some(Write { conditions: vec![If::Unchanged(key.clone(), held.revision)], key, value: None, leased: false })
    }

    /// An endpoint that the store has here, and that is not here any more.
    fn stale(&self) -> Option<Write> {
        let gone = self.known.iter().find_map(|(key, held)| match (key, &held.entry) {
            (Key::Endpoint(tenant, mac), Ok(Entry::Endpoint(endpoint)))
                if endpoint.host == self.own.host && !self.own.endpoints.contains_key(&(tenant.clone(), *mac)) =>
            {
                Some(key.clone())
            }
            _ => None,
        });
        self.removal(gone?)
    }

    fn claim(&self, (tenant, mac): &(String, Mac), told: &Told) -> Option<Write> {
        let key = Key::Endpoint(tenant.clone(), *mac);
        let entry = Entry::endpoint(&self.own.host, told);
        match self.entry(&key) {
            Some(held) if *held == entry => None,
            Some(Entry::Endpoint(held)) if held.host != self.own.host => {
                let alive = Key::Alive(held.host.clone());
                let mut write = self.writing(key, entry, false);
                write.conditions.push(If::Absent(alive.clone()));
                (!self.known.contains_key(&alive)).then_some(write)
            }
            // What cannot be read is nobody's.
            _ => Some(self.writing(key, entry, false)),
        }
    }

    /// What follows from everything that is known.
    pub fn outcome(&self) -> Outcome {
        let mut outcome = Outcome::default();
        let mut refuse = |key: &str, why: &str| {
            outcome.refusals += 1;
            if outcome.refused.len() < MOST_SAID {
                outcome.refused.push(format!("{key}: {why}"));
            }
        };
        let mut members: BTreeMap<&str, Known> = BTreeMap::new();
        let mut addresses: BTreeMap<SocketAddr, &str> = BTreeMap::new();
        if let Some(address) = self.own.address {
            addresses.insert(address, &self.own.host);
        }
        let mut vteps: BTreeMap<IpAddr, &str> = self.own.vtep.iter().map(|&vtep| (vtep, &*self.own.host)).collect();
        // Who came first has an address.
        let mut hosts: Vec<_> = self.known.iter().filter(|(key, _)| matches!(key, Key::Host(_))).collect();
        hosts.sort_by_key(|(_, held)| held.since);
        for (key, held) in hosts {
            let (Key::Host(name), Ok(Entry::Host(host))) = (key, &held.entry) else { continue };
            if *name == self.own.host {
                continue;
            }
            if let Some(other) = addresses.get(&host.address) {
                let why = format!(
                    "{} is host \"{other}\"'s address; give one of the two another, or levada cluster forget the one that is no more",
                    host.address
                );
                refuse(&key.path(&self.prefix), &why);
                continue;
            }
            addresses.insert(host.address, name);
            let vtep = host.vtep.filter(|vtep| {
                let other = vteps.get(vtep).copied();
                if let Some(other) = other {
                    let why =
                        format!("{vtep} is host \"{other}\"'s end of tunnels; give one of the two another `vtep`");
                    refuse(&key.path(&self.prefix), &why);
                }
                other.is_none()
            });
            vteps.extend(vtep.map(|vtep| (vtep, name.as_str())));
            let member = Member { name: name.clone(), address: Some(host.address), vtep, ..Member::default() };
            members.insert(name, Known { member, is_away: !self.is_alive(name) });
        }
        let mut numbers: BTreeMap<(&String, &String, &String), usize> = BTreeMap::new();
        for (key, held) in &self.known {
            let entry = match &held.entry {
                Ok(entry) => entry,
                Err(why) => {
                    refuse(&key.path(&self.prefix), why);
                    continue;
                }
            };
            let (Key::Endpoint(tenant, mac), Entry::Endpoint(endpoint)) = (key, entry) else { continue };
            if endpoint.host == self.own.host {
                outcome.held.insert((tenant.clone(), *mac));
                continue;
            }
            // Several hosts may have one service in tunnels: one is where others look for it.
            let own = self.own.endpoints.get(&(tenant.clone(), *mac));
            if let Some(told) = own.filter(|told| !told.is_shared || !endpoint.service) {
                let endpoint_name = format!("{tenant}/{} ({})", told.name, show_mac(*mac));
                let (is_service, holder) = (told.is_service, endpoint.host.clone());
                let (tenant, mac) = (tenant.clone(), *mac);
                outcome.contests.push(Contest { tenant, mac, endpoint: endpoint_name, is_service, holder });
            }
            let Some(known) = members.get_mut(endpoint.host.as_str()) else {
                let why = format!(
                    "its host \"{0}\" is not in the store; if it is no more: levada cluster forget {0}",
                    endpoint.host
                );
                refuse(&key.path(&self.prefix), &why);
                continue;
            };
            if endpoint.service {
                let (tenant, name) = (tenant.clone(), endpoint.name.clone());
                // What cannot be read is refused above.
                let ips = endpoint.service_ips().unwrap_or_default();
                known.member.services.push(RemoteService { tenant, name, ips, mac: Some(*mac) });
                continue;
            }
            let endpoints = &mut known.member.endpoints;
            let at = *numbers.entry((&endpoint.host, tenant, &endpoint.name)).or_insert(endpoints.len());
            if at == endpoints.len() {
                let (tenant, name) = (tenant.clone(), endpoint.name.clone());
                endpoints.push(Remote { tenant, name, ..Remote::default() });
            }
            endpoints[at].macs.push(*mac);
            // What cannot be read is refused above.
            endpoints[at].ips.extend(endpoint.own_ips().unwrap_or_default());
        }
        // Each of an endpoint's keys has all of them.
        for endpoint in members.values_mut().flat_map(|known| &mut known.member.endpoints) {
            endpoint.ips.sort_unstable();
            endpoint.ips.dedup();
        }
        for (path, why) in &self.strange {
            refuse(path, why);
        }
        outcome.members = members.into_values().collect();
        outcome
    }
}

#[cfg(test)]
// Where it is also seen from the fuzz target.
#[path = "store_state/tests.rs"]
mod tests;
