//! Selection: which ports form one aggregator, and which aggregator is used.

use super::Lacp;
use super::port::{Mux, Receive, Selected};
use crate::wire::Mac;

/// How the used aggregator is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Select {
    /// `stable`: by bandwidth; then it is kept as long as it has a port that is up.
    #[default]
    Stable,
    /// `bandwidth`: the one with the highest rate.
    Bandwidth,
    /// `count`: the one with most ports.
    Count,
    /// `actor_port_prio`: the one whose ports' priorities have the largest sum.
    PortPriority,
}

impl Select {
    /// Each with the name that Linux gives it.
    pub const ALL: [(&'static str, Select); 4] = [
        ("stable", Select::Stable),
        ("bandwidth", Select::Bandwidth),
        ("count", Select::Count),
        ("actor_port_prio", Select::PortPriority),
    ];

    /// The name that Linux gives it.
    #[must_use]
    pub fn name(self) -> &'static str {
        Select::ALL[self as usize].0
    }
}

/// What ports of one aggregator have in common: own key, partner's system and key; or one port
/// alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Group {
    Of { key: u16, system: (u16, Mac), partner_key: u16 },
    Alone(usize),
}

impl Lacp {
    pub(super) fn group(&self, at: usize) -> Group {
        let port = &self.members[at].port;
        if port.is_individual() {
            return Group::Alone(at);
        }
        let system = (port.partner.system_priority, port.partner.system);
        Group::Of { key: port.actor.key, system, partner_key: port.partner.key }
    }

    /// Whether a port may be in an aggregator. Its link is up, does not lead back, and is not taken
    /// down by the operator; and it has a partner, or needs none.
    fn may_select(&self, at: usize) -> bool {
        let port = &self.members[at].port;
        let is_known = match port.receive {
            Receive::PortDisabled => false,
            // Within the three seconds a partner may still send a LACPDU.
            Receive::Expired => port.has_partner(),
            Receive::Defaulted => !self.settings.is_strict,
            Receive::Current => true,
        };
        port.is_enabled && !self.settings.is_down(at) && port.loop_until.is_none() && is_known
    }

    fn ports(&self, group: Group) -> impl Iterator<Item = usize> + '_ {
        (0..self.members.len()).filter(move |&at| self.may_select(at) && self.group(at) == group)
    }

    /// Selects the used aggregator, and with it which ports are selected and which on standby.
    pub(super) fn select(&mut self) {
        self.used = self.best();
        for at in 0..self.members.len() {
            let selected = match self.used {
                _ if !self.may_select(at) => Selected::Unselected,
                Some(used) if used == self.group(at) => Selected::Selected,
                _ => Selected::Standby,
            };
            let port = &mut self.members[at].port;
            // Its aggregator has changed: it detaches first.
            let leaves = port.selected == Selected::Unselected && port.mux != Mux::Detached;
            if !leaves {
                port.selected = selected;
            }
        }
    }

    fn best(&self) -> Option<Group> {
        let all = (0..self.members.len()).filter(|&at| self.may_select(at)).map(|at| self.group(at));
        let mut best = self.used.filter(|&used| self.ports(used).next().is_some());
        // Until one of its ports is attached, another aggregator may become better.
        let carries = |used: Group| self.ports(used).any(|at| self.members[at].port.mux >= Mux::Attached);
        let is_kept = |used: Group| self.settings.select == Select::Stable && self.has_partner(used) && carries(used);
        if let Some(used) = best.filter(|&used| is_kept(used)) {
            return Some(used);
        }
        for group in all {
            if best.is_none_or(|best| self.rank(group) > self.rank(best)) {
                best = Some(group);
            }
        }
        best
    }

    fn has_partner(&self, group: Group) -> bool {
        self.ports(group).any(|at| self.members[at].port.has_partner())
    }

    /// Rank of an aggregator: whether it has a partner, then whether its ports may aggregate, then
    /// rate and number of ports, or as configured. Of equals the used one is best, then the first.
    fn rank(&self, group: Group) -> (bool, bool, [u64; 3]) {
        let ports = || self.ports(group).map(|at| &self.members[at]);
        let rate = ports().map(|line| line.negotiated.carries(line.rate).0).sum();
        let count = ports().count() as u64;
        let priority = ports().map(|line| u64::from(line.port.actor.port_priority)).sum();
        let by = match self.settings.select {
            Select::Stable | Select::Bandwidth => [rate, count, 0],
            Select::Count => [count, rate, 0],
            Select::PortPriority => [priority, count, rate],
        };
        (self.has_partner(group), !matches!(group, Group::Alone(_)), by)
    }
}
