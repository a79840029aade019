//! What is known of the connections with other hosts, for `levada show cluster` and metrics. The
//! thread of `peers` writes it, the handler reads it; the worker has nothing to do with it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use time::OffsetDateTime;

/// Why nobody gets in, and what for was refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Refusal {
    /// No certificate, or one that no authority of the cluster vouches for, or one that has
    /// expired.
    Unproven,
    /// A certificate of the cluster, but none of the hosts that are members of it.
    Stranger,
    /// It did not say in time who it is.
    Slow,
    /// Too many attempts.
    Crowd,
}

impl Refusal {
    /// How it is called.
    pub fn word(self) -> &'static str {
        match self {
            Refusal::Unproven => "unproven",
            Refusal::Stranger => "not-a-member",
            Refusal::Slow => "too-slow",
            Refusal::Crowd => "too-many",
        }
    }
}

/// One other host.
#[derive(Clone, Debug)]
pub struct Host {
    /// Where it is reached.
    pub address: SocketAddr,
    /// Since when there is a connection to it.
    pub outgoing: Option<Instant>,
    /// Since when there is a connection from it.
    pub incoming: Option<Instant>,
    /// Datagrams given to the network for it.
    pub sent: u64,
    /// Datagrams of it that were taken.
    pub received: u64,
    /// Datagrams for it that were not sent.
    pub unsent: u64,
    /// Datagrams of it that were not taken.
    pub untaken: u64,
    /// Connections to it that came about.
    pub connections: u64,
    /// Until when its certificate is good, where it has shown one.
    pub not_after: Option<OffsetDateTime>,
    /// What last went wrong with it.
    pub error: Option<(Instant, String)>,
}

impl Host {
    /// One at `address`, of which nothing is known yet.
    pub fn new(address: SocketAddr) -> Host {
        Host {
            address,
            outgoing: None,
            incoming: None,
            sent: 0,
            received: 0,
            unsent: 0,
            untaken: 0,
            connections: 0,
            not_after: None,
            error: None,
        }
    }
}

/// This host.
#[derive(Clone, Debug, Default)]
pub struct Own {
    /// Where it listens; `None`: it cannot yet.
    pub listening: Option<SocketAddr>,
    /// Until when its certificate is good.
    pub not_after: Option<OffsetDateTime>,
    /// Until when the last of its authorities is good, and how many they are.
    pub authorities: Option<(OffsetDateTime, usize)>,
    /// What is wrong with socket or certificate.
    pub error: Option<String>,
}

/// Everything that is known.
#[derive(Debug, Default)]
pub struct Status {
    own: Mutex<Own>,
    hosts: Mutex<BTreeMap<String, Host>>,
    refused: Mutex<BTreeMap<Refusal, u64>>,
    /// Datagrams that the thread could not take over.
    pub unposted: AtomicU64,
}

/// What it was at one time.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// This host.
    pub own: Own,
    /// The others.
    pub hosts: BTreeMap<String, Host>,
    /// Attempts that were refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Datagrams that the thread could not take over.
    pub unposted: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Status {
    /// What it is now.
    pub fn seen(&self) -> Seen {
        Seen {
            own: lock(&self.own).clone(),
            hosts: lock(&self.hosts).clone(),
            refused: lock(&self.refused).iter().map(|(why, &n)| (why.word(), n)).collect(),
            unposted: self.unposted.load(Ordering::Relaxed),
        }
    }

    /// Changes what is known of this host.
    pub fn own(&self, change: impl FnOnce(&mut Own)) {
        change(&mut lock(&self.own));
    }

    /// Changes what is known of another, if it is one.
    pub fn host(&self, name: &str, change: impl FnOnce(&mut Host)) {
        if let Some(host) = lock(&self.hosts).get_mut(name) {
            change(host);
        }
    }

    /// What went wrong with a host.
    pub fn failed(&self, name: &str, why: impl Into<String>) {
        let error = (Instant::now(), why.into());
        self.host(name, |host| host.error = Some(error));
    }

    /// These are the others from now on.
    pub fn become_hosts(&self, addresses: &BTreeMap<String, SocketAddr>) {
        let mut hosts = lock(&self.hosts);
        hosts.retain(|name, _| addresses.contains_key(name));
        for (name, &address) in addresses {
            hosts.entry(name.clone()).or_insert_with(|| Host::new(address)).address = address;
        }
    }

    /// Somebody was refused.
    pub fn refused(&self, why: Refusal) {
        *lock(&self.refused).entry(why).or_default() += 1;
    }
}
