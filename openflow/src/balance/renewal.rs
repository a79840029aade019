//! Another configuration: what is known goes over to it.

use super::{Balancer, Connection, Key, LIVE, Presence, REMEMBERED, Running, network};
use crate::rules::Rules;
use control::config::openflow::{OpenFlow, Role};
use datapath::service::choose::Report;
use datapath::units::Instant;
use datapath::wire::protocol;
use std::collections::{BTreeMap, HashMap};

impl Balancer {
    /// Another configuration: its rules instead of those `before`. Connections are remembered, each
    /// where its service's address and its backend's are still; the switches that are connected
    /// tell anew which are live. Loads are known on, and so are clients that stay at their
    /// backends, and, until somebody has asked them, backends that are down. Where nobody will ask,
    /// all are up.
    pub fn renew(&mut self, now: Instant, config: &OpenFlow, before: &Rules, rules: &Rules, seed: u64) {
        let mut switches = std::mem::take(&mut self.switches);
        switches.retain(|_, switch| switch.presence == Presence::Here);
        for switch in switches.values_mut() {
            switch.counted.clear();
            switch.seen.clear();
        }
        let old = std::mem::replace(self, Balancer { switches, ..Balancer::new(config, rules, seed) });
        self.inherit(now, &old, |key, backend| moved(key, backend, before, rules));
        let place = |(s, one): (usize, &Running)| (0..one.called.len()).map(move |b| (s, b)).collect::<Vec<_>>();
        let places: Vec<(usize, usize)> = self.services.iter().enumerate().flat_map(place).collect();
        let named: HashMap<&str, (usize, usize)> =
            places.into_iter().map(|(s, b)| (self.services[s].called[b].as_str(), (s, b))).collect();
        let called = |s: usize, b: usize| old.services.get(s)?.called.get(b);
        self.stays.inherit(&old.stays, |s, b| named.get(called(s, b)?.as_str()).copied());
        let known: BTreeMap<&str, (Option<Report>, Option<Instant>, bool)> = old
            .services
            .iter()
            .flat_map(|one| one.called.iter().zip(one.loads.iter().zip(&one.reported).zip(&one.is_down)))
            .map(|(called, ((load, at), is_down))| (called.as_str(), (load.report, *at, *is_down)))
            .collect();
        let asks = |s: usize| rules.fronts.iter().any(|front| front.service == s && front.protocol == protocol::TCP);
        for (s, one) in self.services.iter_mut().enumerate() {
            let is_asked = config.probe_ns > 0 && config.role != Role::Slave && asks(s);
            let fresh = one.loads.iter_mut().zip(&mut one.reported).zip(&mut one.is_down);
            for (called, ((load, at), is_down)) in one.called.iter().zip(fresh) {
                (load.report, *at, *is_down) = known.get(called.as_str()).copied().unwrap_or_default();
                *is_down &= is_asked;
            }
        }
        (0..self.services.len()).for_each(|service| self.weigh(service));
    }

    /// Goes on with another's connections; `place` says where each is here. None counts as live
    /// until a switch says so. Where there is less room, those go that were remembered longest.
    fn inherit(&mut self, now: Instant, old: &Balancer, place: impl Fn(Key, usize) -> Option<(Key, usize)>) {
        let seen = |id| old.connections.seen(id).unwrap_or(now);
        let remembered = old.connections.oldest_first(REMEMBERED).map(|(id, key, at)| (seen(id), *key, *at));
        let live = old.connections.oldest_first(LIVE).map(|(_, key, at)| (now, *key, *at));
        let moved = |(seen, key, at): (Instant, Key, Connection)| {
            place(key, at.backend).map(|(key, backend)| (seen, key, Connection { backend, ..at }))
        };
        let all: Vec<(Instant, Key, Connection)> = remembered.chain(live).filter_map(moved).collect();
        let beyond = all.len().saturating_sub(self.most as usize);
        for (seen, key, connection) in all.into_iter().skip(beyond) {
            if self.connections.insert(seen, REMEMBERED, key, connection).is_ok() {
                *self.of_client.entry(network(key.client.ip)).or_default() += 1;
                *self.of_switch.entry(connection.switch).or_default() += 1;
            }
        }
    }
}

/// Where a connection is by other rules. It is at a backend's address, whatever that is called.
fn moved(key: Key, backend: usize, before: &Rules, rules: &Rules) -> Option<(Key, usize)> {
    let (front, target) = before.pair(key.front, backend)?;
    let front = rules.front_at(front.at(), front.protocol)?;
    let backend = rules.targets[front].iter().position(|one| one.at() == target.at())?;
    Some((Key { front, ..key }, backend))
}
