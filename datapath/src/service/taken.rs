//! Client ports that are in use at a backend.
//!
//! Services, and addresses of one service, may share backends. What a backend receives names the
//! client and itself, not the service: of two connections of one client port it could have one
//! only, and the second SYN would end the first. So a new connection goes to a backend at which its
//! client's port is free. Where there is none, what the backend sends is the open connection's, and
//! the new one waits for that one's end.

use super::choose::Load;
use super::decide::Known;
use super::entry::{Entry, Key, State};
use super::running::Asker;
use super::{Role, Services, octets};
use crate::units::Instant;
use std::net::IpAddr;

impl Services {
    #[cfg(test)]
    pub(crate) fn share_backends(&self) -> bool {
        self.fronts.share_targets()
    }

    /// Whether a new connection's client has its port in use at a backend, in a connection to
    /// another front.
    pub(super) fn is_taken(&self, key: &Key, asker: &Asker, backend: usize) -> bool {
        let is_taken = || {
            let (running, front) = self.running(key.front)?;
            let backend = running.servers.get(backend)?.backend.as_ref()?;
            // One that is turned around comes from a port of its own.
            let is_turned = asker.is_outside && backend.endpoint.is_none();
            let role = self.fronts.role(running.network, backend.ip(asker.like)?).filter(|_| !is_turned)?;
            let port = backend.port.unwrap_or(front.address.port);
            let is_in_use = |(front, number): (u16, u8)| {
                let found = self.find(&Key { front, ..*key }).filter(|(_, entry)| entry.backend == number);
                found.is_some_and(|(id, entry)| entry.state != State::Closed && self.turns.get(id).is_none())
            };
            let others = role.targets(front.address.protocol, port).filter(|&(front, _)| front != key.front);
            Some({ others }.any(is_in_use))
        };
        self.fronts.share_targets() && is_taken().unwrap_or(false)
    }

    /// Of backends that take connections, only those are left at which the client's port is free,
    /// unless it is so at none.
    pub(super) fn leave_free(&self, key: &Key, asker: &Asker, loads: &mut [Load]) {
        let is_free = |(at, load): (usize, &Load)| load.is_eligible() && !self.is_taken(key, asker, at);
        if loads.iter().enumerate().any(is_free) {
            for (at, load) in loads.iter_mut().enumerate() {
                load.takes = is_free((at, load));
            }
        }
    }

    /// The backend that the policy chooses among those at which the client's port is free, and its
    /// candidates.
    pub(super) fn choose_free(
        &mut self,
        now: Instant,
        key: &Key,
        asker: Asker,
        candidates: [usize; 2],
    ) -> Option<usize> {
        let mut loads = std::mem::take(&mut self.running_mut(key)?.loads);
        if let Some((running, _)) = self.running(key.front) {
            running.fill(&mut loads, now, asker, None);
            self.leave_free(key, &asker, &mut loads);
        }
        let running = self.running_mut(key)?;
        let chosen = running.chooser.choose(running.service.policy, &loads, candidates);
        running.loads = loads;
        chosen
    }

    /// The connection that a backend answers. `is_answer` says whether that is the answer to a SYN.
    pub(super) fn answered(
        &self,
        by: &Role,
        (number, port): (u8, u16),
        (client, client_port): (IpAddr, u16),
        is_answer: impl Fn() -> bool,
    ) -> Option<Known> {
        let mut all = by.targets(number, port).filter_map(|(front, backend)| {
            let key = Key { client: octets(client), port: client_port, front };
            let (id, entry) = self.find(&key)?;
            let is_its = entry.backend == backend && entry.state != State::Direct;
            is_its.then_some((Known { id, key, backend, is_plain: false }, entry))
        });
        let first = all.next()?;
        let of_several = |one, other| {
            let is_answer = is_answer();
            let rank = |(known, entry): &(Known, &Entry)| (rank(entry, is_answer), self.connections.seen(known.id));
            if rank(&other) > rank(&one) { other } else { one }
        };
        Some(all.fold(first, of_several).0)
    }
}

/// Of several connections of one port, the higher the more likely it is the one that is spoken of.
fn rank(entry: &Entry, is_answer: bool) -> u8 {
    match entry.state {
        State::Asked if is_answer => 4,
        State::Open => 3,
        // Datagrams: the one that waits for an answer.
        State::OneWay | State::TwoWay if entry.is_busy() => 3,
        State::Closing | State::TwoWay => 2,
        State::Closed | State::Direct => 0,
        _ => 1,
    }
}
