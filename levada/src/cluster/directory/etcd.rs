//! An etcd as the store: every host writes there who it is and what it has, and reads what the
//! others have.
//!
//! One thread beside all others has a *session* with one member of the etcd at a time: it reads
//! everything, then watches from that revision on, keeps a lease, and writes what the `store_state`
//! wants, each key only if it is as it was seen. Where the session ends, whatever the reason, the
//! next one is with the next member, reads everything anew (so that a revision that was compacted
//! away meanwhile is no case of its own), and reconciles. Until then what was known is true: nobody
//! waits for an etcd. A session ends by itself after ten minutes.
//!
//! The lease is asked for again every third of its time. Who does not get it in time has a member
//! that is dead, slow or without a leader: all of them end the session.

use super::entry::root;
use super::gateway::{Gateway, decode, encode, number, tls, unreadable};
use super::store_state::{Contest, If, Outcome, Own, StoreState, Write};
use super::{Health, Known, Store};
use crate::system::log::{Level, Log};
use crate::system::privileges::{Duty, confine};
use control::config::{Etcd as Config, EtcdUrl};
use datapath::wire::Mac;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::{interval, sleep, timeout};
use tokio_rustls::TlsConnector;

/// For how long a host counts as there after it was last heard of by the etcd. Longer than all
/// waits below together.
const TTL_S: i64 = 15;
/// How often it is heard of.
const KEEP: Duration = Duration::from_secs(TTL_S as u64 / 3);
/// For how long it writes, or hears, before everybody is told and the lease is looked at again.
/// With the longest call it is still far from the end of a lease.
const TURN: Duration = Duration::from_secs(1);
/// How long a session lasts at most: one that tells nothing, behind an address that several members
/// share, cannot be told from a store in which nothing happens.
const ANEW: Duration = Duration::from_secs(600);
/// How long one lasts at least that has left out what there may be room for by now.
const ANEW_FOR_ROOM: Duration = Duration::from_secs(60);
/// Who was there for so long is asked again at once when it is away. One that breaks off sooner may
/// do so each time: it refuses what is written.
const LASTED: Duration = Duration::from_secs(3);
/// Waits between two rounds of attempts: the first, and the longest.
const WAIT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(3));
/// Entries of a page when everything is read.
const PAGE: usize = 1000;
/// How long a host that goes may take to say so.
const FAREWELL: Duration = Duration::from_secs(1);

/// The store.
pub struct Etcd {
    config: Config,
    own: watch::Sender<Own>,
    shared: Arc<Mutex<Shared>>,
    thread: Option<JoinHandle<()>>,
}

/// What a store has said.
#[derive(Clone, Default)]
pub struct Already {
    members: Arc<[Known]>,
    held: Arc<BTreeSet<(String, Mac)>>,
    contests: Arc<[Contest]>,
}

/// What the thread knows, for others.
struct Shared {
    known: Already,
    health: Health,
    /// What the store is to be told, it was told.
    is_settled: bool,
    /// Another process is this host: the lease is not ended, but left to run out.
    is_given_away: bool,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Etcd {
    /// Begins, in a thread of its own, with what is `known` of the store. `changed` is called
    /// whenever there is something new; it may not block.
    ///
    /// # Errors
    /// The system has no thread or descriptor left. Everything else is tried again and again.
    pub fn start(
        config: &Config,
        own: Own,
        known: Already,
        log: Log,
        changed: Arc<dyn Fn() + Send + Sync>,
    ) -> io::Result<Etcd> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let health = Health::new();
        let shared = Shared { known, health, is_settled: false, is_given_away: false };
        let shared = Arc::new(Mutex::new(shared));
        let (sender, receiver) = watch::channel(own.clone());
        let mut thread = Session {
            config: config.clone(),
            own: receiver,
            store_state: StoreState::new(&config.prefix, own),
            shared: Arc::clone(&shared),
            log,
            changed,
            lease: 0,
            said: BTreeSet::new(),
        };
        let thread = std::thread::Builder::new().name("levada-store".to_owned()).spawn(move || {
            if let Err(why) = confine(Duty::Store) {
                thread.log.line(Level::Warning, &why);
            }
            run_alone(runtime, thread.run());
        })?;
        Ok(Etcd { config: config.clone(), own: sender, shared, thread: Some(thread) })
    }

    /// How it is spoken with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Another process goes on as this host. The host does not seem away in between: others would
    /// take over its services.
    pub fn give_away(&self) {
        lock(&self.shared).is_given_away = true;
    }

    /// Ends, for another to go on as this host in the same store. What it knew.
    pub fn give_way(self) -> Already {
        self.give_away();
        lock(&self.shared).known.clone()
    }

    /// Takes this host out of the store, as far as that can be done at once.
    pub fn withdraw(&self) {
        lock(&self.shared).is_settled = false;
        self.own.send_modify(|own| (own.address, own.endpoints) = (None, Default::default()));
        let begin = Instant::now();
        while begin.elapsed() < FAREWELL && !lock(&self.shared).is_settled {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Store for Etcd {
    fn members(&self) -> Arc<[Known]> {
        Arc::clone(&lock(&self.shared).known.members)
    }

    fn holds(&self, tenant: &str, mac: Mac) -> bool {
        lock(&self.shared).known.held.contains(&(tenant.to_owned(), mac))
    }

    fn contests(&self) -> Arc<[Contest]> {
        Arc::clone(&lock(&self.shared).known.contests)
    }

    fn health(&self) -> Health {
        lock(&self.shared).health.clone()
    }

    fn tell(&self, own: Own) {
        self.own.send_if_modified(|before| {
            let is_new = *before != own;
            *before = own;
            is_new
        });
    }
}

impl Drop for Etcd {
    /// The lease ends, so that the others know, unless this host goes on; the entries stay.
    fn drop(&mut self) {
        let own = self.own.borrow().clone();
        self.own = watch::channel(own).0;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Does `work`, and waits for nothing else: names are resolved in threads that may take long.
fn run_alone(runtime: Runtime, work: impl Future<Output = ()>) {
    runtime.block_on(work);
    runtime.shutdown_background();
}

/// Why a session ended that did not break.
enum End {
    /// Nobody needs it.
    Over,
    /// Everything is to be read anew, at the same member.
    Anew,
}

/// The thread's own state.
struct Session {
    config: Config,
    own: watch::Receiver<Own>,
    store_state: StoreState,
    shared: Arc<Mutex<Shared>>,
    log: Log,
    changed: Arc<dyn Fn() + Send + Sync>,
    lease: i64,
    /// What the log has been told, and is still so.
    said: BTreeSet<String>,
}

impl Session {
    async fn run(&mut self) {
        let (mut number, mut wait) = (0, WAIT.0);
        loop {
            let Some(url) = self.config.endpoints.get(number % self.config.endpoints.len().max(1)).cloned() else {
                return;
            };
            let mut own = self.own.clone();
            let ended = async move {
                while own.changed().await.is_ok() {}
                // A session may be taking its leave.
                sleep(2 * FAREWELL).await;
            };
            let session = tokio::select! {
                session = self.session(&url) => session,
                () = ended => return,
            };
            let why = match session {
                Ok(End::Over) => return,
                Ok(End::Anew) => continue,
                Err(why) => why,
            };
            if self.own.has_changed().is_err() {
                return;
            }
            if self.away(&url, why) {
                (number, wait) = (number + 1, WAIT.0);
                continue;
            }
            number += 1;
            if number % self.config.endpoints.len() != 0 {
                continue;
            }
            // What is to be told changes nothing while nobody hears it; the end does.
            let until = tokio::time::Instant::now() + wait;
            while let Ok(told) = tokio::time::timeout_at(until, self.own.changed()).await {
                if told.is_err() {
                    return;
                }
            }
            wait = (wait * 2).min(WAIT.1);
        }
    }

    /// One connection, until it breaks, or is to be made anew, or nobody needs it any more.
    async fn session(&mut self, url: &EtcdUrl) -> Result<End, String> {
        let begun = Instant::now();
        let tls = tls(&self.config)?;
        let mut gateway = enter(&self.config, url, tls.as_ref()).await?;
        if self.lease == 0 || !keep(&mut gateway, self.lease).await? {
            self.borrow(&mut gateway).await?;
        }
        let own = self.own.borrow().clone();
        self.store_state = read(&mut gateway, &self.config.prefix, own, self.lease).await?;
        let watching = gateway.beside(url, tls.as_ref()).await?;
        let (from, to) = range(&self.config.prefix);
        let create = json!({"create_request": {"key": encode(from), "range_end": encode(to), "start_revision": (self.store_state.revision() + 1).to_string()}});
        let mut events = watching.stream("/v3/watch", &create).await?;
        let mut keeping = interval(KEEP);
        keeping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        keeping.tick().await;
        loop {
            let own = self.own.borrow_and_update().clone();
            self.store_state.set_own(own);
            let settled = self.settle(&mut gateway).await;
            // What others have is so although something cannot be written.
            self.publish(url);
            let is_more = settled?;
            self.connected(url);
            tokio::select! {
                // The lease before what never ends.
                biased;
                told = self.own.changed() => if told.is_err() {
                    if lock(&self.shared).is_given_away {
                        return Ok(End::Over);
                    }
                    let _ = timeout(FAREWELL, gateway.call("/v3/lease/revoke", &json!({"ID": self.lease.to_string()}))).await;
                    return Ok(End::Over);
                },
                _ = keeping.tick() => {
                    if !keep(&mut gateway, self.lease).await? {
                        // It has run out, perhaps while this machine slept: with another all is as
                        // before.
                        self.borrow(&mut gateway).await?;
                    }
                    let age = begun.elapsed();
                    if age >= ANEW || self.store_state.has_room() && age >= ANEW_FOR_ROOM {
                        return Ok(End::Anew);
                    }
                }
                event = events.next() => self.hear(&event?)?,
                () = std::future::ready(()), if is_more => {}
            }
            // What came with it is taken at once.
            let begin = Instant::now();
            while begin.elapsed() < TURN
                && let Ok(event) = timeout(Duration::ZERO, events.next()).await
            {
                self.hear(&event?)?;
            }
        }
    }

    /// Gets a new lease.
    async fn borrow(&mut self, gateway: &mut Gateway) -> Result<(), String> {
        let granted = gateway.call("/v3/lease/grant", &json!({"TTL": TTL_S.to_string()})).await?;
        self.lease = number(&granted["ID"]);
        self.store_state.set_lease(self.lease);
        Ok(())
    }

    /// Takes what a watch tells.
    fn hear(&mut self, told: &Value) -> Result<(), String> {
        let result = &told["result"];
        if result["canceled"].as_bool().unwrap_or(false) {
            let why = result["cancel_reason"].as_str().unwrap_or("no reason is given");
            return Err(format!("it tells no more: {}", why.chars().take(200).collect::<String>()));
        }
        let revision = number(&result["header"]["revision"]);
        for event in result["events"].as_array().into_iter().flatten() {
            let entry = &event["kv"];
            if event["type"] == "DELETE" {
                let key = decode(&entry["key"])?;
                self.store_state.delete(&String::from_utf8_lossy(&key), number(&entry["mod_revision"]));
            } else {
                put(&mut self.store_state, entry)?;
            }
        }
        self.store_state.reach(revision);
        Ok(())
    }

    /// Writes what is to be written, for a while. Whether more is left.
    async fn settle(&mut self, gateway: &mut Gateway) -> Result<bool, String> {
        let begin = Instant::now();
        while let Some(wanted) = self.store_state.next_write() {
            if begin.elapsed() >= TURN {
                return Ok(true);
            }
            write(gateway, &self.config.prefix, &mut self.store_state, &wanted, self.lease).await?;
        }
        lock(&self.shared).is_settled = true;
        Ok(false)
    }

    /// It is there, and takes what is written.
    fn connected(&mut self, url: &EtcdUrl) {
        let mut shared = lock(&self.shared);
        if shared.health.is_connected {
            return;
        }
        self.log.line(Level::Info, &format!("the store is there: {url}, revision {}", self.store_state.revision()));
        shared.health.is_connected = true;
        shared.health.since = Instant::now();
        shared.health.at = Some(url.to_string());
    }

    /// It is away. True: it was there until now, and for a while.
    fn away(&mut self, url: &EtcdUrl, why: String) -> bool {
        let why = format!("{url}: {why}");
        let mut shared = lock(&self.shared);
        let was = std::mem::replace(&mut shared.health.is_connected, false);
        let lasted = was && shared.health.since.elapsed() >= LASTED;
        if was {
            shared.health.since = Instant::now();
        }
        if was || shared.health.error.as_ref() != Some(&why) {
            self.log.line(
                Level::Warning,
                &format!("the etcd is away, and the last known state of the cluster stays in use: {why}"),
            );
        }
        shared.health.error = Some(why);
        lasted
    }

    /// Tells everybody what is so now.
    fn publish(&mut self, url: &EtcdUrl) {
        let Outcome { members, held, contests, refused, refusals } = self.store_state.outcome();
        let rival = self.store_state.rival().map(|from| {
            format!("another daemon, {from}, has the same host name, and this one writes nothing to the etcd; give one of them another [cluster] host")
        });
        let contested = contests.iter().map(|Contest { endpoint: name, holder, is_service, .. }| {
            if *is_service {
                return format!(
                    "service {name} is on host \"{holder}\" too, and both answer requests for its address; delete one (levada del service)"
                );
            }
            format!(
                "endpoint {name} is on host \"{holder}\", and is not used here; to move it, delete it there (levada del endpoint)"
            )
        });
        let refused_text = refused.iter().map(|why| format!("in the etcd, not used: {why}"));
        let now: BTreeSet<String> = rival.iter().cloned().chain(contested).chain(refused_text).collect();
        for text in now.difference(&self.said) {
            self.log.line(Level::Warning, text);
        }
        self.said = now;
        let mut shared = lock(&self.shared);
        let known = &shared.known;
        let differs = *known.members != members[..] || *known.held != held || *known.contests != contests[..];
        if differs {
            let contests = contests.into();
            shared.known = Already { members: members.into(), held: Arc::new(held), contests };
        }
        shared.health.revision = self.store_state.revision();
        shared.health.at = Some(url.to_string());
        shared.health.rival = rival;
        (shared.health.refused, shared.health.refusals) = (refused, refusals);
        drop(shared);
        if differs {
            (self.changed)();
        }
    }
}

/// Connects, and says who this host is there.
pub async fn enter(config: &Config, url: &EtcdUrl, tls: Option<&TlsConnector>) -> Result<Gateway, String> {
    let mut gateway = Gateway::open(url, tls).await?;
    if let (Some(user), Some(file)) = (&config.user, &config.password_file) {
        gateway.log_in(user, password(Path::new(file))?.trim_end()).await?;
    }
    Ok(gateway)
}

/// Reads everything, as of one revision.
pub async fn read(gateway: &mut Gateway, prefix: &str, own: Own, lease: i64) -> Result<StoreState, String> {
    let (mut from, to) = range(prefix);
    let mut store_state = StoreState::new(prefix, own);
    store_state.set_lease(lease);
    let mut revision = 0;
    loop {
        let ask = json!({"key": encode(&from), "range_end": encode(&to), "limit": PAGE.to_string(), "revision": revision.to_string()});
        let page = gateway.call("/v3/kv/range", &ask).await?;
        if revision == 0 {
            revision = number(&page["header"]["revision"]);
        }
        let entries = page["kvs"].as_array().map(Vec::as_slice).unwrap_or_default();
        for entry in entries {
            put(&mut store_state, entry)?;
        }
        match entries.last() {
            Some(last) if page["more"].as_bool().unwrap_or(false) => {
                from = [decode(&last["key"])?, vec![0]].concat();
            }
            _ => break,
        }
    }
    store_state.reach(revision);
    Ok(store_state)
}

/// Writes something, and tells the store state what became of it. False: somebody was first, and it
/// is otherwise now.
pub async fn write(
    gateway: &mut Gateway,
    prefix: &str,
    store_state: &mut StoreState,
    wanted: &Write,
    lease: i64,
) -> Result<bool, String> {
    let (request, looked_at) = transaction(prefix, wanted, lease);
    let answer = gateway.call("/v3/kv/txn", &request).await?;
    let revision = number(&answer["header"]["revision"]);
    if answer["succeeded"].as_bool().unwrap_or(false) {
        let path = wanted.key.path(prefix);
        let lease = if wanted.leased { lease } else { 0 };
        match &wanted.value {
            Some(value) => {
                let since = store_state.since(&wanted.key, revision);
                store_state.put(&path, value, (since, revision), lease);
            }
            None => store_state.delete(&path, revision),
        }
        return Ok(true);
    }
    for (path, response) in looked_at.iter().zip(answer["responses"].as_array().into_iter().flatten()) {
        match response["response_range"]["kvs"].as_array().and_then(|all| all.first()) {
            Some(entry) => take(entry, |path, value, revisions, lease| {
                store_state.put_looked_at(path, value, revisions, lease);
            })?,
            None => store_state.delete(path, revision),
        }
    }
    Ok(false)
}

/// All keys of a cluster: from, and up to but without.
fn range(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    let from = root(prefix).into_bytes();
    let mut to = from.clone();
    if let Some(last) = to.last_mut() {
        *last += 1;
    }
    (from, to)
}

fn put(store_state: &mut StoreState, entry: &Value) -> Result<(), String> {
    take(entry, |path, value, revisions, lease| store_state.put(path, value, revisions, lease))
}

/// What an entry is, for whom it is for.
fn take(entry: &Value, into: impl FnOnce(&str, &[u8], (i64, i64), i64)) -> Result<(), String> {
    let (key, value) = (decode(&entry["key"])?, decode(&entry["value"])?);
    let revisions = (number(&entry["create_revision"]), number(&entry["mod_revision"]));
    into(&String::from_utf8_lossy(&key), &value, revisions, number(&entry["lease"]));
    Ok(())
}

/// What writes if all conditions hold, and else looks at the keys that they are about.
fn transaction(prefix: &str, write: &Write, lease: i64) -> (Value, Vec<String>) {
    let key = encode(write.key.path(prefix));
    let done = match &write.value {
        Some(value) => {
            let lease = if write.leased { lease } else { 0 };
            json!({"request_put": {"key": key, "value": encode(value), "lease": lease.to_string()}})
        }
        None => json!({"request_delete_range": {"key": key}}),
    };
    let (mut compare, mut otherwise, mut paths) = (Vec::new(), Vec::new(), Vec::new());
    for condition in &write.conditions {
        let (key, revision) = match condition {
            If::Absent(key) => (key, 0),
            If::Unchanged(key, revision) => (key, *revision),
        };
        let path = key.path(prefix);
        compare.push(
            json!({"target": "MOD", "result": "EQUAL", "key": encode(&path), "mod_revision": revision.to_string()}),
        );
        otherwise.push(json!({"request_range": {"key": encode(&path)}}));
        paths.push(path);
    }
    (json!({"compare": compare, "success": [done], "failure": otherwise}), paths)
}

/// Asks for the lease again. False: it has run out.
async fn keep(gateway: &mut Gateway, lease: i64) -> Result<bool, String> {
    let answer = gateway.call("/v3/lease/keepalive", &json!({"ID": lease.to_string()})).await?;
    Ok(number(&answer["result"]["TTL"]) > 0)
}

/// What is wrong with the files with which an etcd is spoken to.
pub fn look(config: &Config) -> Vec<String> {
    let files = [
        ("authority", &config.authority),
        ("certificate", &config.certificate),
        ("key", &config.key),
        ("password_file", &config.password_file),
    ];
    let named = files.into_iter().filter_map(|(key, file)| Some((key, Path::new(file.as_deref()?))));
    let missing = named.filter_map(|(key, file)| Some(unreadable(key, file, &std::fs::File::open(file).err()?)));
    let missing: Vec<String> = missing.collect();
    if missing.is_empty() { tls(config).err().into_iter().collect() } else { missing }
}

fn password(file: &Path) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|error| unreadable("password_file", file, &error))
}

#[cfg(test)]
mod tests;
