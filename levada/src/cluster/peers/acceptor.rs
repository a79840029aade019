//! The acceptor: who may connect to this host.
//!
//! Who cannot show that packets reach him where he says he is costs one small packet and no memory
//! (address validation by Retry, RFC 9000 section 8.1.2). Who can must show a certificate of the
//! cluster, which costs a signature: so attempts have a bucket for each member's address, and one
//! for all other addresses together, and few may be under way at a time. In the end he must be a
//! member, and has one connection.

use super::line::shown;
use super::rate::{BURST, Bucket, RATE};
use super::status::{Refusal, Status};
use super::{CLOSED_AT_REST, Hear, NOT_A_MEMBER, REPLACED};
use quinn::{Connection, ConnectionError, Incoming};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use tokio::sync::{Notify, Semaphore};

/// Attempts under way at a time: each has some ten KiB.
const UNDER_WAY: usize = 64;
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// Attempts a second and at once from the address of a member; a host that comes back makes one.
const KNOWN: (u32, u32) = (10, 20);
/// Attempts a second and at once from all other addresses together. A member whose packets come
/// from another address than it has in the list is one of these.
const UNKNOWN: (u32, u32) = (20, 20);
/// Answers a second to those who have not shown where they are, and at once. More get none.
const RETRIES: (u32, u32) = (2000, 500);

/// The acceptor.
pub struct Acceptor {
    status: Arc<Status>,
    hear: Hear,
    under_way: Arc<Semaphore>,
    retries: Bucket,
    known: HashMap<IpAddr, Bucket>,
    unknown: Bucket,
    inside: Arc<Mutex<Inside>>,
}

/// Who is in.
#[derive(Default)]
struct Inside {
    /// Who may be, and who wants to know that a host is alive.
    members: HashMap<String, Arc<Notify>>,
    visitors: BTreeMap<String, Visitor>,
}

/// A host that has connected.
struct Visitor {
    connection: Connection,
    not_after: OffsetDateTime,
}

fn lock(inside: &Mutex<Inside>) -> MutexGuard<'_, Inside> {
    inside.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Acceptor {
    /// A acceptor through which nobody may go yet.
    pub fn new(status: Arc<Status>, hear: Hear) -> Acceptor {
        let now = Instant::now();
        Acceptor {
            status,
            hear,
            under_way: Arc::new(Semaphore::new(UNDER_WAY)),
            retries: Bucket::new(RETRIES.0, RETRIES.1, now),
            known: HashMap::new(),
            unknown: Bucket::new(UNKNOWN.0, UNKNOWN.1, now),
            inside: Arc::default(),
        }
    }

    /// These may go through it, and nobody else stays in.
    pub fn admit(&mut self, members: &BTreeMap<String, SocketAddr>) {
        let now = Instant::now();
        let addresses: Vec<IpAddr> = members.values().map(|address| address.ip().to_canonical()).collect();
        self.known.retain(|address, _| addresses.contains(address));
        for address in addresses {
            self.known.entry(address).or_insert_with(|| Bucket::new(KNOWN.0, KNOWN.1, now));
        }
        let mut inside = lock(&self.inside);
        inside.members.retain(|name, _| members.contains_key(name));
        for name in members.keys() {
            inside.members.entry(name.clone()).or_default();
        }
        inside.visitors.retain(|name, visitor| {
            let stays = members.contains_key(name);
            if !stays {
                visitor.connection.close(NOT_A_MEMBER, b"");
            }
            stays
        });
    }

    /// Rings when this member has connected.
    pub fn alive(&self, member: &str) -> Arc<Notify> {
        lock(&self.inside).members.get(member).cloned().unwrap_or_default()
    }

    /// Everybody has to come in again.
    pub fn clear(&self) {
        for visitor in std::mem::take(&mut lock(&self.inside).visitors).into_values() {
            visitor.connection.close(CLOSED_AT_REST, b"");
        }
    }

    /// Whose certificate has expired meanwhile has to go.
    pub fn expel_expired(&self, now: OffsetDateTime) {
        for visitor in lock(&self.inside).visitors.values().filter(|visitor| visitor.not_after < now) {
            visitor.connection.close(CLOSED_AT_REST, b"");
        }
    }

    /// That of the attempts from `address`. A socket that is also for IPv4 gives those addresses as
    /// IPv6's (RFC 4291, section 2.5.5.2).
    fn bucket(&mut self, address: IpAddr) -> &mut Bucket {
        self.known.get_mut(&address.to_canonical()).unwrap_or(&mut self.unknown)
    }

    /// Somebody wants to come in.
    pub fn meet(&mut self, incoming: Incoming) {
        let now = Instant::now();
        if !incoming.remote_address_validated() {
            if self.retries.take(now) {
                // It may not be asked to try again only where it has done so.
                let _ = incoming.retry();
            } else {
                incoming.ignore();
                self.status.refused(Refusal::Crowd);
            }
            return;
        }
        let is_due = self.bucket(incoming.remote_address().ip()).take(now);
        let place = is_due.then(|| Arc::clone(&self.under_way).try_acquire_owned().ok()).flatten();
        let Some(place) = place else {
            incoming.ignore();
            self.status.refused(Refusal::Crowd);
            return;
        };
        let (status, hear, inside) = (Arc::clone(&self.status), Arc::clone(&self.hear), Arc::clone(&self.inside));
        tokio::spawn(async move {
            let shaken = async { incoming.accept()?.await };
            match tokio::time::timeout(PATIENCE, shaken).await {
                // Of several attempts another was the first.
                Ok(Ok(connection)) if connection.close_reason().is_some() => {}
                Ok(Ok(connection)) => {
                    drop(place);
                    host_visitor(&status, &hear, &inside, connection).await;
                }
                Ok(Err(ConnectionError::TimedOut)) | Err(_) => status.refused(Refusal::Slow),
                Ok(Err(_)) => status.refused(Refusal::Unproven),
            }
        });
    }
}

/// Listens to a host whose certificate is good, if it is a member, until it goes.
async fn host_visitor(status: &Status, hear: &Hear, inside: &Mutex<Inside>, connection: Connection) {
    let parsed = shown(&connection).and_then(|parsed| Some((parsed.host?, parsed.not_after)));
    let Some((name, not_after)) = parsed else {
        connection.close(NOT_A_MEMBER, b"");
        return status.refused(Refusal::Stranger);
    };
    {
        let mut inside = lock(inside);
        let Some(alive) = inside.members.get(&name).cloned() else {
            connection.close(NOT_A_MEMBER, b"");
            return status.refused(Refusal::Stranger);
        };
        // What it had before, it has lost or does not need any more: it opens the next one only
        // then.
        let visitor = Visitor { connection: connection.clone(), not_after };
        if let Some(old) = inside.visitors.insert(name.clone(), visitor) {
            old.connection.close(REPLACED, b"");
        }
        alive.notify_waiters();
    }
    status.host(&name, |host| {
        host.incoming = Some(Instant::now());
        host.not_after = Some(not_after);
    });
    let mut bucket = Bucket::new(RATE, BURST, Instant::now());
    while let Ok(datagram) = connection.read_datagram().await {
        let taken = bucket.take(Instant::now()) && hear(&name, &datagram);
        status.host(&name, |host| if taken { host.received += 1 } else { host.untaken += 1 });
    }
    let mut inside = lock(inside);
    let is_it = |visitor: &Visitor| visitor.connection.stable_id() == connection.stable_id();
    if inside.visitors.get(&name).is_some_and(is_it) {
        inside.visitors.remove(&name);
    }
    if !inside.visitors.contains_key(&name) {
        status.host(&name, |host| host.incoming = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_no_stranger_at_a_socket_for_both_families() {
        let mut acceptor = Acceptor::new(Arc::default(), Arc::new(|_, _| true));
        let members = ["192.0.2.1:7370", "[::ffff:192.0.2.2]:7370", "[2001:db8::3]:7370"].map(|at| at.parse().unwrap());
        acceptor.admit(&["a", "b", "c"].map(str::to_owned).into_iter().zip(members).collect());
        let now = Instant::now();
        while acceptor.bucket("::ffff:192.0.2.9".parse().unwrap()).take(now) {}
        for (address, is_member) in [
            ("192.0.2.1", true),
            ("::ffff:192.0.2.1", true),
            ("192.0.2.2", true),
            ("::ffff:192.0.2.2", true),
            ("2001:db8::3", true),
            ("192.0.2.9", false),
        ] {
            assert_eq!(acceptor.bucket(address.parse().unwrap()).take(now), is_member, "{address}");
        }
    }
}
