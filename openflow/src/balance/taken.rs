//! Which backends a client's port is in use at.
//!
//! Services may share backends. What a backend receives names the client and itself, not the
//! service: of two connections of one client port, to two services, it could have one only, and
//! the second would end the first. So a new one goes to another backend.

use super::{Balancer, Key, LIVE, Refused};
use crate::rules::{Client, Rules};
use datapath::random::Keyed;
use datapath::units::Instant;
use datapath::wire::protocol;
use std::collections::HashMap;

/// Backends that are tried for a connection: so one frame does not wait for all of many.
const TRIES: usize = 16;

/// Whether a client's port is in use at a backend.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Taken {
    Free,
    /// By a connection without flows.
    Remembered,
    Live,
}

/// Where backends listen, and which fronts lead there.
#[derive(Debug)]
pub(super) struct Targets {
    /// By front and backend.
    at: Vec<Vec<Client>>,
    protocols: Vec<u8>,
    fronts: HashMap<(Client, u8), Vec<(usize, usize)>, Keyed>,
}

impl Targets {
    pub fn of(rules: &Rules) -> Targets {
        let at = |front: usize| rules.targets[front].iter().map(|target| target.at()).collect::<Vec<_>>();
        let mut targets = Targets {
            at: (0..rules.fronts.len()).map(at).collect(),
            protocols: rules.fronts.iter().map(|front| front.protocol).collect(),
            fronts: HashMap::with_hasher(Keyed::new(0)),
        };
        for (front, (all, &protocol)) in targets.at.iter().zip(&targets.protocols).enumerate() {
            for (backend, &at) in all.iter().enumerate() {
                targets.fronts.entry((at, protocol)).or_default().push((front, backend));
            }
        }
        targets
    }

    pub fn is_tcp(&self, front: usize) -> bool {
        self.protocols.get(front) == Some(&protocol::TCP)
    }

    /// The fronts, and their backends, that lead where this one does.
    pub fn alike(&self, front: usize, backend: usize) -> impl Iterator<Item = (usize, usize)> {
        let at = self.at.get(front).and_then(|all| all.get(backend)).zip(self.protocols.get(front));
        let all = at.and_then(|(&at, &protocol)| self.fronts.get(&(at, protocol)));
        all.into_iter().flatten().copied()
    }
}

impl Balancer {
    /// What the policy makes of a new connection: if that can be, a backend at which the client's
    /// port is free.
    ///
    /// # Errors
    /// [`Refused::Taken`].
    pub(super) fn pick(&mut self, now: Instant, key: Key) -> Result<Option<usize>, Refused> {
        let mut best: Option<(Taken, usize)> = None;
        let mut left_out = [None; TRIES];
        for out in &mut left_out {
            let Some(at) = self.policy(now, key) else { break };
            let taken = self.taken(key, at);
            best = best.into_iter().chain([(taken, at)]).min_by_key(|&(taken, _)| taken);
            if taken == Taken::Free {
                break;
            }
            *out = self.let_take(key, at, false).then_some(at);
        }
        for at in left_out.into_iter().flatten() {
            self.let_take(key, at, true);
        }
        match best {
            // A datagram's answer may go to either.
            Some((Taken::Live, _)) if self.targets.is_tcp(key.front) => {
                if let Some(service) = self.service_of.get(key.front).and_then(|&s| self.services.get_mut(s)) {
                    service.total.refused += 1;
                }
                Err(Refused::Taken)
            }
            best => Ok(best.map(|(_, at)| at)),
        }
    }

    /// Has the policy choose among others, and then as before.
    fn let_take(&mut self, key: Key, backend: usize, takes: bool) -> bool {
        let service = self.service_of.get(key.front).and_then(|&s| self.services.get_mut(s));
        let load = service.and_then(|one| one.loads.get_mut(backend));
        load.is_some_and(|load| std::mem::replace(&mut load.takes, takes))
    }

    /// Whether the client's port is in use at a backend, by a connection to another front: the
    /// backend cannot tell the two apart.
    pub(super) fn taken(&self, key: Key, backend: usize) -> Taken {
        let others = self.targets.alike(key.front, backend).filter(|&(front, _)| front != key.front);
        let taken = others.filter_map(|(front, backend)| {
            let id = self.connections.find(&Key { front, ..key })?;
            self.connections.get(id).filter(|at| at.backend == backend && !at.is_cut)?;
            let is_live = self.connections.list(id) == Some(LIVE);
            Some(if is_live { Taken::Live } else { Taken::Remembered })
        });
        taken.max().unwrap_or(Taken::Free)
    }
}
