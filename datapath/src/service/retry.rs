//! A second try: a new connection that its backend refuses, or does not answer, goes to another one
//! before its client notices.
//!
//! A copy of the SYN is kept until the backend answers. A reset in answer to it becomes that SYN,
//! in the reset's own buffer, and goes to another backend: who refuses pays. So does an ICMP error
//! that says that the backend does not take it. A SYN that its client sends again, since nobody
//! answered, is chosen for anew. Each tenant and bucket has places of its own for copies; who needs
//! more takes from the tenant's common ones. A copy is overwritten when its connection has been
//! answered, and else only in a common place: so a flood overwrites its own and what others have
//! beyond their own.
//!
//! What a client can make up moves no more than its own connection, and says nothing of a backend:
//! a segment counts that comes from the backend's endpoint, and an error that does, with the number
//! of the SYN. An error about a backend outside counts where its client is here, as nothing that
//! comes from there is its client's.

use super::connections::{BUCKETS, Opener};
use super::decide::{Known, segment};
use super::entry::{Entry, Key, Segment, State};
use super::inner::Quoted;
use super::{Decision, Services};
use crate::ids::EndpointId;
use crate::offload::Offload;
use crate::table::Id;
use crate::units::Instant;
use crate::wire::vlan::{TAG, TAG_AT};
use crate::wire::{Layout, Tcp, tcp_flags};

/// Bytes of a SYN at most, without a tag: Ethernet, IPv4 with all options, TCP with all options.
const SYN_BYTES: usize = 14 + 60 + 60;
/// Places of one bucket, and common ones of a tenant.
const OF_BUCKET: usize = 4;
const COMMON: usize = 256;
/// Places of a tenant.
const OF_TENANT: usize = BUCKETS as usize * OF_BUCKET + COMMON;
/// How many common places are looked at.
const LOOKS: usize = 4;
/// How often a reset is kept back and another backend asked.
const MOST_TRIES: u8 = 2;
/// A SYN that comes again so late was not answered, in nanoseconds: RFC 6298 asks for 1 s, and
/// clocks differ.
const SILENT_NS: u64 = 900_000_000;

/// Why a connection is given to another backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The backend refused it.
    Refused,
    /// An error says so that its client may have made up: it does not count.
    Alleged,
    /// The backend did not answer.
    Silent,
}

/// Another choice for a connection: not this backend, and how many were tried before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Again {
    /// The backend that failed.
    pub avoid: u8,
    /// How.
    pub failure: Failure,
    /// Tries before.
    pub tries: u8,
}

/// A SYN as its client sent it, without tag.
#[derive(Clone, Debug)]
struct Kept {
    key: Key,
    id: Id,
    offload: Offload,
    /// Its number, and what an answer to it acknowledges.
    sequence: u32,
    next: u32,
    len: u8,
    bytes: [u8; SYN_BYTES],
}

/// Copies of SYNs, by tenant: those of its buckets, and behind them the common ones. Tenants
/// without services have none.
#[derive(Debug, Default)]
pub(super) struct Syns {
    tenants: Vec<Box<[Option<Kept>]>>,
}

impl Syns {
    /// Says whether an owner has services: who has none needs no room.
    pub(super) fn set_owner(&mut self, owner: u32, is_in: bool) {
        let at = owner as usize;
        if self.tenants.len() <= at {
            self.tenants.resize_with(at + 1, Box::default);
        }
        if self.tenants[at].is_empty() == is_in {
            self.tenants[at] = vec![None; if is_in { OF_TENANT } else { 0 }].into();
        }
    }

    fn get(&self, owner: u32) -> Option<&[Option<Kept>]> {
        self.tenants.get(owner as usize).map(AsRef::as_ref).filter(|places| !places.is_empty())
    }

    fn get_mut(&mut self, owner: u32) -> Option<&mut [Option<Kept>]> {
        self.tenants.get_mut(owner as usize).map(AsMut::as_mut).filter(|places| !places.is_empty())
    }
}

/// The places of its tenant's that a copy may have: its bucket's own, then some of the common ones.
fn places(bucket: u32, hash: u64) -> impl Iterator<Item = usize> {
    let own = bucket as usize * OF_BUCKET;
    let common = BUCKETS as usize * OF_BUCKET;
    let looked_at = (0..LOOKS).map(move |n| common + (hash as usize % COMMON + n) % COMMON);
    (own..own + OF_BUCKET).chain(looked_at)
}

/// A SYN that is sent again: its bytes, and what is to be known of them.
#[derive(Clone, Debug)]
pub(crate) struct Syn {
    bytes: [u8; SYN_BYTES + TAG],
    len: usize,
    pub(crate) offload: Offload,
}

impl Syn {
    /// Bytes of one at most.
    pub(crate) const MOST: usize = SYN_BYTES + TAG;

    /// A copy of a SYN, with the tag that it has.
    pub(crate) fn of(bytes: &[u8], offload: &Offload) -> Option<Syn> {
        let mut syn = Syn { bytes: [0; Syn::MOST], len: bytes.len(), offload: *offload };
        syn.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(syn)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Kept {
    /// As it would come from where a frame with this tag came from.
    fn with_tag(&self, tag: Option<[u8; TAG]>) -> Syn {
        let mut syn = Syn { bytes: [0; SYN_BYTES + TAG], len: usize::from(self.len), offload: self.offload };
        let (head, rest) = self.bytes[..syn.len].split_at(TAG_AT);
        syn.bytes[..TAG_AT].copy_from_slice(head);
        let mut at = TAG_AT;
        if let Some(tag) = tag {
            syn.bytes[at..at + TAG].copy_from_slice(&tag);
            at += TAG;
            syn.len += TAG;
            if syn.offload.needs_csum {
                syn.offload.csum_start += TAG as u16;
            }
        }
        syn.bytes[at..syn.len].copy_from_slice(rest);
        syn
    }
}

impl Services {
    /// Keeps a copy of the SYN of a connection that was just given to a backend.
    pub fn keep(&mut self, known: &Known, bytes: &[u8], layout: &Layout, offload: &Offload) {
        let Some(opener) = self.opener_of(known) else { return };
        let Some(hash) = self.connections.hash_of(known.id) else { return };
        let Some(all) = self.syns.get(opener.owner) else { return };
        let mut old = None;
        let mut free = None;
        for place in places(opener.bucket, hash) {
            let kept = all[place].as_ref();
            let is_old = kept.is_some_and(|kept| kept.key == known.key);
            if is_old {
                old = Some(place);
            }
            if free.is_none() && kept.is_none_or(|kept| is_old || !self.is_asked(kept)) {
                free = Some(place);
            }
        }
        if let Some(old) = old
            && let Some(all) = self.syns.get_mut(opener.owner)
        {
            // What the client sent with the same ports before is no longer true.
            all[old] = None;
        }
        let tag = if layout.vlan.is_some() { TAG } else { 0 };
        let len = bytes.len() - tag;
        if len > SYN_BYTES || bytes.len() < TAG_AT + tag {
            return;
        }
        let Some(place) = free.or_else(|| places(opener.bucket, hash).nth(OF_BUCKET)) else { return };
        let Segment { sequence, len: payload, .. } = segment(bytes, layout);
        let next = sequence.wrapping_add(1).wrapping_add(payload);
        let (key, id, offload) = (known.key, known.id, *offload);
        let mut kept = Kept { key, id, offload, sequence, next, len: len as u8, bytes: [0; SYN_BYTES] };
        kept.bytes[..TAG_AT].copy_from_slice(&bytes[..TAG_AT]);
        kept.bytes[TAG_AT..len].copy_from_slice(&bytes[TAG_AT + tag..]);
        if kept.offload.needs_csum {
            kept.offload.csum_start = kept.offload.csum_start.saturating_sub(tag as u16);
        }
        if let Some(all) = self.syns.get_mut(opener.owner) {
            all[place] = Some(kept);
        }
    }

    fn opener_of(&self, known: &Known) -> Option<Opener> {
        let (running, _) = self.running(known.key.front)?;
        Some(Opener { owner: running.service.tenant.0, bucket: self.connections.bucket(known.id) })
    }

    fn kept(&self, known: &Known) -> Option<&Kept> {
        let opener = self.opener_of(known)?;
        let all = self.syns.get(opener.owner)?;
        let mut places = places(opener.bucket, self.connections.hash(&known.key));
        places.find_map(|place| all[place].as_ref().filter(|kept| kept.key == known.key))
    }

    /// Whether a connection is there and has not been answered: then its SYN may be needed.
    fn is_asked(&self, kept: &Kept) -> bool {
        self.connections.get_of(kept.id, &kept.key).is_some_and(|entry| entry.state == State::Asked)
    }

    /// The SYN of a connection, to be sent again in the place of a frame, whose tag it gets.
    pub(crate) fn syn(&self, known: &Known, bytes: &[u8], layout: &Layout) -> Option<Syn> {
        let tag = layout.vlan.and_then(|_| bytes.get(TAG_AT..TAG_AT + TAG)?.try_into().ok());
        Some(self.kept(known)?.with_tag(tag))
    }

    /// How many backends a connection was given to before its own.
    pub(crate) fn tries(&self, known: &Known) -> u8 {
        self.connections.get(known.id).map_or(0, Entry::asked)
    }

    /// Whether a reset is kept back, since it answers the SYN that was kept and another backend can
    /// be asked.
    pub(super) fn decide_refused(&self, now: Instant, (known, entry): (&Known, &Entry), reset: Tcp<'_>) -> bool {
        entry.state == State::Asked
            && entry.asked() < MOST_TRIES
            // Without this flag it answers no SYN, whatever its number is.
            && reset.flags() & tcp_flags::ACK != 0
            && self.kept(known).is_some_and(|kept| kept.next == reset.acknowledgement())
            && self.has_other(now, known, self.is_turned(known))
    }

    /// Whether a segment that has a backend's address is its own: nobody but its endpoint sends
    /// what is of one here. Nobody here has the address of one outside (see [`crate::guard`]).
    pub(super) fn is_its_own(&self, known: &Known, from: Option<EndpointId>) -> bool {
        self.endpoint_of(known).is_none_or(|endpoint| endpoint.is_none() || endpoint == from)
    }

    /// Where a backend is, if it is still there; outside, where that is `None`.
    fn endpoint_of(&self, known: &Known) -> Option<Option<EndpointId>> {
        let (running, _) = self.running(known.key.front)?;
        Some(running.servers.get(usize::from(known.backend))?.backend.as_ref()?.endpoint)
    }

    /// An ICMP error about what a backend was to get: where it answers the SYN that was kept,
    /// another backend is asked. It may have any address, so it has to come from where the backend
    /// is. Of a connection that is turned around the client is there too.
    pub(super) fn decide_unreachable(
        &self,
        (now, from): (Instant, Option<EndpointId>),
        known: Known,
        quoted: &Quoted,
    ) -> Decision {
        let asked = self.connections.get(known.id).filter(|entry| entry.state == State::Asked);
        let Some(entry) = asked.filter(|_| quoted.is_refused && self.endpoint_of(&known) == Some(from)) else {
            return Decision::Error(known, false);
        };
        if self.kept(&known).is_none_or(|kept| kept.sequence != quoted.sequence) {
            return Decision::Error(known, false);
        }
        let is_turned = self.is_turned(&known);
        // A firewall that turns a client away does not say so of the others.
        let is_alleged = is_turned || self.has_accepted(now, &known);
        match entry.asked() < MOST_TRIES && self.has_other(now, &known, is_turned) {
            true if is_alleged => Decision::Retry(known, Failure::Alleged),
            true => Decision::Retry(known, Failure::Refused),
            false if is_alleged => Decision::Error(known, false),
            false => Decision::Refuse(known),
        }
    }

    /// Whether the backend of a connection has accepted one lately.
    fn has_accepted(&self, now: Instant, known: &Known) -> bool {
        let server =
            self.running(known.key.front).and_then(|(running, _)| running.servers.get(usize::from(known.backend)));
        server.is_some_and(|server| server.has_accepted(now))
    }

    /// A backend has refused a connection that nobody else can have.
    pub fn refuse(&mut self, now: Instant, known: &Known) {
        self.close(now, known);
        if let Some(server) = self.server_mut(&known.key, known.backend) {
            server.stats.refused += 1;
            if server.failed(now) {
                self.fall_silent(now, &known.key, known.backend);
            }
        }
    }

    /// A connection is over that no backend has taken.
    pub(crate) fn close(&mut self, now: Instant, known: &Known) {
        let change = self.connections.update(now, known.id, Entry::close);
        self.recount(&known.key, change);
    }

    /// A SYN of a connection that is known: sent again, as its backend did not answer?
    pub(super) fn decide_silent(&self, now: Instant, known: &Known, entry: &Entry, outside: bool) -> Option<Decision> {
        let seen = self.connections.seen(known.id)?;
        let is_late = entry.state == State::Asked && now.since(seen) >= SILENT_NS;
        (is_late && self.has_other(now, known, outside)).then(|| {
            let again = Again { avoid: known.backend, failure: Failure::Silent, tries: entry.asked() };
            Decision::Choose(known.key, Some(again))
        })
    }

    /// Whether a backend other than that of a connection would get it.
    pub(super) fn has_other(&self, now: Instant, known: &Known, outside: bool) -> bool {
        let Some((running, front)) = self.running(known.key.front) else { return false };
        let server = |&(at, _): &(usize, _)| at != usize::from(known.backend);
        running.servers.iter().enumerate().filter(server).any(|(_, server)| {
            let fits = server.backend.as_ref().is_some_and(|backend| {
                let own = backend.ip(front.address.ip).map(super::octets);
                let fits = running.fits(backend, front.address.ip, outside);
                backend.weight > 0 && fits && own.is_some_and(|own| own != known.key.client)
            });
            fits && server.is_well(now) && !server.is_full()
        })
    }

    /// What a backend's failure to take a connection says of it.
    pub(super) fn count_failure(&mut self, now: Instant, key: &Key, again: &Again) {
        let asked = self.connections.find(key).and_then(|id| self.connections.seen(id));
        let Some(running) = self.running_mut(key) else { return };
        running.stats.redirected += 1;
        let Some(server) = running.servers.get_mut(usize::from(again.avoid)) else { return };
        // Who answers others meanwhile may have been sent what nobody would answer: a wrong
        // checksum, say.
        let (count, is_its_failure) = match again.failure {
            Failure::Refused => (&mut server.stats.refused, true),
            Failure::Silent => (&mut server.stats.silent, server.accepted <= asked),
            Failure::Alleged => return,
        };
        *count += 1;
        if is_its_failure && server.failed(now) {
            self.fall_silent(now, key, again.avoid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tenants_with_services_have_room() {
        let mut syns = Syns::default();
        syns.set_owner(4000, true);
        syns.set_owner(4000, true);
        assert_eq!(syns.tenants.iter().map(|places| places.len()).sum::<usize>(), OF_TENANT);
        syns.set_owner(4000, false);
        assert!(syns.get(4000).is_none() && syns.get_mut(7).is_none());
        assert!(places(BUCKETS - 1, u64::MAX).all(|place| place < OF_TENANT));
    }
}
