//! This daemon's membership in its cluster: it knows the others from a store (`directory`), speaks
//! with them (`peers`), and follows the configuration.
//!
//! Whatever is wrong with the cluster (a certificate that has expired, an address that is not there
//! yet), the switch goes on: a daemon starts without, tries again, and says in `levada show
//! cluster` what it waits for.

use crate::api::VERSION;
use crate::api::cluster::{ClusterReply, ClusterReport, ContestReport, MemberReport, StoreReport};
use crate::cluster::directory::{Contest, Etcd, Health, Known, Store, merged, others, own, set_aside};
use crate::cluster::peers::status::Host;
use crate::cluster::peers::{Hear, Peers, Settings, Socket, Voice};
use crate::system::log::{Level, Log};

use control::config::{Cluster, Config, Etcd as EtcdConfig, Member};
use control::names::{CONTROLLERS, name_of};
use datapath::wire::Mac;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use time::OffsetDateTime;

/// Services of a member that are shown.
const MOST_SERVICES: usize = 256;

/// The membership; there may be no cluster.
pub struct Membership {
    log: Log,
    hear: Hear,
    changed: Changed,
    socket: Socket,
    taken: Mutex<Option<Taken>>,
    /// Another process speaks, or is about to.
    is_silent: AtomicBool,
}

/// Called when the store has something new; it may not block.
pub type Changed = Arc<dyn Fn() + Send + Sync>;

/// What there is where there is a cluster.
struct Taken {
    cluster: Cluster,
    /// Besides the file.
    store: Option<Etcd>,
    /// This host's and all others, of the file and the store.
    members: Vec<Member>,
    /// None while another process is about to speak.
    peers: Option<Peers>,
}

impl Membership {
    /// A membership in no cluster yet, which is to listen at `socket`. What other hosts say goes to
    /// `hear`; when others come, go or have something else, `changed` is called.
    pub fn new(log: Log, socket: Socket, hear: Hear, changed: Changed) -> Membership {
        Membership { log, hear, changed, socket, taken: Mutex::new(None), is_silent: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Taken>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Becomes what the configuration says. Connections with hosts that stay remain.
    pub fn follow(&self, config: &Config) {
        let mut taken = self.lock();
        if self.is_silent.load(Ordering::Relaxed) {
            return;
        }
        let cluster = config.cluster.as_ref();
        let Some((cluster, listen)) = cluster.and_then(|cluster| Some((cluster, cluster.listen?))) else {
            if let Some(store) = taken.take().and_then(|mut taken| taken.store.take()) {
                store.withdraw();
            }
            self.socket.close();
            return;
        };
        let before = taken.as_mut().and_then(|taken| Some((taken.cluster.host == cluster.host, taken.store.take()?)));
        let store = self.store(config, cluster, before);
        let known = store.as_ref().map(Store::members).unwrap_or_default();
        let members = merged(&cluster.members, &known);
        let settings = Settings {
            host: cluster.host.clone(),
            listen,
            directory: PathBuf::from(&cluster.directory),
            others: others(&members, &cluster.host).collect(),
        };
        let cluster = cluster.clone();
        let peers = match taken.take().and_then(|taken| taken.peers) {
            Some(peers) => {
                peers.change(settings);
                Ok(peers)
            }
            None => Peers::start(settings, self.socket.clone(), self.log.clone(), Arc::clone(&self.hear)),
        };
        match peers {
            Ok(peers) => *taken = Some(Taken { cluster, store, members, peers: Some(peers) }),
            Err(error) => self.log.line(
                Level::Warning,
                &format!("cannot exchange messages with other hosts: {error}; see ulimit -n, ulimit -u and TasksMax="),
            ),
        }
    }

    /// The store that the configuration names: the one that there is, told what is so now, or
    /// another.
    fn store(&self, config: &Config, cluster: &Cluster, before: Option<(bool, Etcd)>) -> Option<Etcd> {
        let mut known = None;
        if let Some((is_same_host, store)) = before {
            match cluster.etcd.as_ref().filter(|_| is_same_host) {
                Some(etcd) if etcd == store.config() => {
                    store.tell(own(config, cluster));
                    return Some(store);
                }
                // The host does not go: it speaks with its store in another way from now on.
                Some(etcd) if is_same_store(etcd, store.config()) => known = Some(store.give_way()),
                _ => store.withdraw(),
            }
        }
        let (etcd, own) = (cluster.etcd.as_ref()?, own(config, cluster));
        let known = known.unwrap_or_default();
        let started = Etcd::start(etcd, own, known, self.log.clone(), Arc::clone(&self.changed));
        started
            .map_err(|error| {
                self.log.line(
                    Level::Warning,
                    &format!("cannot start the client of the etcd: {error}; see ulimit -n, ulimit -u and TasksMax="),
                )
            })
            .ok()
    }

    /// The configuration with the hosts that the store knows besides, and without what is theirs. A
    /// store that [`Membership::follow`] will leave for another says nothing any more.
    pub fn complete(&self, config: &Config) -> Config {
        let mut config = config.clone();
        if let (Some(taken), Some(cluster)) = (self.lock().as_ref(), config.cluster.as_mut())
            && let Some(store) = &taken.store
            && cluster.host == taken.cluster.host
            && cluster.etcd.as_ref().is_some_and(|etcd| etcd == store.config() || is_same_store(etcd, store.config()))
        {
            cluster.members = merged(&cluster.members, &store.members());
            set_aside(&mut config, &store.contests());
        }
        config
    }

    /// Whether an endpoint of the configuration is this host's: nobody else has it. `None` where
    /// there is no cluster.
    pub fn holds(&self, tenant: &str, mac: Mac) -> Option<bool> {
        let taken = self.lock();
        let taken = taken.as_ref()?;
        Some(taken.store.as_ref().is_none_or(|store| store.holds(tenant, mac)))
    }

    /// What speaks to other hosts; `None` while there are none.
    pub fn voice(&self) -> Option<Voice> {
        self.lock().as_ref().and_then(|taken| taken.peers.as_ref()).map(Peers::voice)
    }

    /// The socket on which others reach this host, for another process; none where nobody listens.
    pub fn lend(&self) -> Option<OwnedFd> {
        self.socket.lend()
    }

    /// Says nothing more and hears nothing more, for another process to go on: what others say from
    /// now on waits in the socket.
    pub fn fall_silent(&self) {
        let mut taken = self.lock();
        self.is_silent.store(true, Ordering::Relaxed);
        if let Some(peers) = taken.as_mut().and_then(|taken| taken.peers.take()) {
            peers.hand_over();
        }
    }

    /// No other process goes on: [`Membership::follow`] begins again.
    pub fn speak_again(&self) {
        let _taken = self.lock();
        self.is_silent.store(false, Ordering::Relaxed);
    }

    /// Says goodbye to the others, unless another process is this host from now on.
    pub fn leave(&self, is_given_away: bool) {
        let taken = self.lock().take();
        if let Some(store) = taken.as_ref().and_then(|taken| taken.store.as_ref()).filter(|_| is_given_away) {
            store.give_away();
        }
    }

    /// What is known of the cluster.
    pub fn report(&self) -> ClusterReply {
        ClusterReply { version: VERSION, cluster: self.lock().as_ref().map(Taken::report) }
    }
}

impl Taken {
    fn report(&self) -> ClusterReport {
        let seen = self.peers.as_ref().map(Peers::seen).unwrap_or_default();
        let cluster = &self.cluster;
        let known = self.store.as_ref().map(Store::members).unwrap_or_default();
        // Whoever speaks with others may not know yet that one was just forgotten.
        let is_known = |name: &str| {
            known.iter().any(|known| known.member.name == name) || cluster.members.iter().any(|one| one.name == name)
        };
        let reports = seen.hosts.iter().filter(|(name, _)| is_known(name)).map(|(name, host)| {
            let member = self.members.iter().find(|member| member.name == *name);
            member_report(name, host, member, known.iter().find(|known| known.member.name == *name))
        });
        ClusterReport {
            host: cluster.host.clone(),
            controller: name_of(&CONTROLLERS, cluster.settings.controller).to_owned(),
            store: if self.store.is_some() { "etcd" } else { "file" }.to_owned(),
            etcd: self.store.as_ref().map(|store| store_report(store.health(), &store.contests())),
            listen: cluster.listen.map_or_else(String::new, |listen| listen.to_string()),
            up: seen.own.listening.is_some(),
            error: seen.own.error,
            certificate_expires_s: seen.own.not_after.map(OffsetDateTime::unix_timestamp),
            authority_expires_s: seen.own.authorities.map(|(end, _)| end.unix_timestamp()),
            authorities: seen.own.authorities.map_or(0, |(_, count)| count as u64),
            refused: seen.refused.into_iter().map(|(why, count)| (why.to_owned(), count)).collect(),
            unposted: seen.unposted,
            members: reports.collect(),
        }
    }
}

/// Whether two ways to speak with a store lead to the same keys of the same one.
fn is_same_store(one: &EtcdConfig, other: &EtcdConfig) -> bool {
    one.prefix == other.prefix && one.endpoints.iter().any(|url| other.endpoints.contains(url))
}

fn store_report(health: Health, contests: &[Contest]) -> StoreReport {
    StoreReport {
        connected: health.is_connected,
        since_ns: health.since.elapsed().as_nanos() as u64,
        at: health.at,
        revision: health.revision,
        error: health.error,
        rival: health.rival,
        contests: contests
            .iter()
            .map(|contest| ContestReport { endpoint: contest.endpoint.clone(), holder: contest.holder.clone() })
            .collect(),
        refused: health.refused,
        refusals: health.refusals as u64,
    }
}

fn member_report(name: &str, host: &Host, member: Option<&Member>, known: Option<&Known>) -> MemberReport {
    let ns = |since: Option<Instant>| since.map(|since| since.elapsed().as_nanos() as u64);
    MemberReport {
        name: name.to_owned(),
        address: host.address.to_string(),
        endpoints: member.map_or(0, |member| member.endpoints.len() as u64),
        services: member.map_or_else(Vec::new, |member| {
            let named = member.services.iter().map(|service| format!("{}/{}", service.tenant, service.name));
            named.take(MOST_SERVICES).collect()
        }),
        known_from: if known.is_some() { "etcd" } else { "file" }.to_owned(),
        away: known.map(|known| known.is_away),
        outgoing_ns: ns(host.outgoing),
        incoming_ns: ns(host.incoming),
        connections: host.connections,
        sent: host.sent,
        unsent: host.unsent,
        received: host.received,
        untaken: host.untaken,
        certificate_expires_s: host.not_after.map(OffsetDateTime::unix_timestamp),
        error: host.error.as_ref().map(|(_, why)| why.clone()),
        error_ago_ns: ns(host.error.as_ref().map(|(at, _)| *at)),
    }
}
