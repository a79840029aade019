//! The stage that says where a frame goes: written once. What decides (`route`, `route_inside`)
//! changes nothing and is all that [`Switch::explain`] asks; what acts on it (`follow`,
//! `follow_inside`) decides nothing.

use super::floods::asks;
use super::parse::{destination, drop_for, longest_of};
use super::tunnel::tenant_of;
use super::{Switch, count_wire_bytes};
use crate::encap;
use crate::flood::Whose;
use crate::forward::{Outside, Target};
use crate::frame::{Frame, Out, Pool};
use crate::ids::PeerId;
use crate::network::Network;
use crate::offload::Offload;
use crate::program::EndpointId;
use crate::units::Instant;
use crate::verdict::Reason;
use crate::wire::{Layout, vlan};

/// Where a frame of an endpoint goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Route {
    /// Nowhere.
    Drop(Reason),
    /// Nowhere, since this flood budget is used up.
    Spent(Whose),
    /// To this neighbour.
    Neighbour(EndpointId),
    /// By the uplink; alone where neighbours would get copies if this flood budget were not used
    /// up.
    Wire { alone: Option<Whose> },
    /// Through a tunnel to this host.
    Host(PeerId),
    /// With a tunnel's headers it is longer than the way takes, which is as long as this.
    Narrow(u32),
    /// Copied.
    Flood(Flood),
}

/// To whom a frame is copied, and what of the sender's budget is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Flood {
    /// To everyone in the network, or to those whose addresses are learned.
    pub everyone: bool,
    /// How many neighbours that is, its sender not among them.
    pub others: u32,
    /// What of it goes outside.
    pub away: Away,
    /// Frames that its sender may flood at once.
    pub left: u64,
}

/// What of a flood goes outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Away {
    /// Nothing: the network ends at this switch.
    Nothing,
    /// One copy, by the uplink.
    Wire,
    /// A copy for each of so many hosts.
    Hosts(u32),
    /// It is too long for any of so many hosts; this much would fit.
    Narrow(u32, u32),
}

/// Where a frame from outside goes in its network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Inside {
    /// Nowhere.
    Drop(Reason),
    /// To this endpoint.
    Endpoint(EndpointId),
    /// Copied to so many, of everyone or of those whose addresses are learned; so many frames may
    /// be at once.
    Copies { everyone: bool, receivers: u32, left: u64 },
}

/// What the stage looks at of a frame.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    pub bytes: &'a [u8],
    pub layout: &'a Layout,
    pub offload: &'a Offload,
}

impl<'a> Seen<'a> {
    /// Of a real frame.
    #[inline]
    pub fn of(pool: &'a Pool, frame: &Frame) -> Seen<'a> {
        let meta = pool.meta(frame);
        Seen { bytes: pool.bytes(frame), layout: &meta.layout, offload: &meta.offload }
    }

    /// Bytes of the longest frame that it will be on the wire, without a VLAN tag.
    pub fn longest(&self) -> u32 {
        longest_of(self.bytes.len(), self.layout, self.offload)
    }
}

impl Switch {
    /// Where the table of an endpoint's network says that a frame goes.
    #[inline]
    pub(super) fn target(&self, now: Instant, from: EndpointId, seen: Seen<'_>) -> Target {
        let (vlan, mac) = (seen.layout.vlan.unwrap_or(0), destination(seen.bytes));
        self.forward.target(&self.fdb, now, self.forward.network(from), vlan, mac)
    }

    /// Where a frame goes that is turned around at the expense of a director: it is copied to
    /// nobody.
    pub(super) fn route_out(&self, now: Instant, director: EndpointId, seen: Seen<'_>) -> Route {
        match self.route(now, director, self.target(now, director, seen), seen) {
            Route::Flood(Flood { away: Away::Wire, .. }) => Route::Wire { alone: None },
            Route::Flood(_) => Route::Drop(Reason::NoRoute),
            route => route,
        }
    }

    /// Where a frame of an endpoint goes that is for `target`.
    #[inline]
    pub(super) fn route(&self, now: Instant, from: EndpointId, target: Target, seen: Seen<'_>) -> Route {
        match target {
            Target::Endpoint(to) if to == from => Route::Drop(Reason::Hairpin),
            Target::Endpoint(to) => Route::Neighbour(to),
            Target::Uplink => Route::Wire { alone: None },
            Target::Nowhere => Route::Drop(Reason::Unreachable),
            Target::Tunnels => self.route_away(now, from, seen),
            Target::Group | Target::Unknown => self.route_flood(now, from, target == Target::Group, seen),
        }
    }

    /// To the host that has the destination, or to each that may have it.
    fn route_away(&self, now: Instant, from: EndpointId, seen: Seen<'_>) -> Route {
        let tenant = tenant_of(self.forward.network(from));
        let Some(peer) = self.tunnels.find(tenant, destination(seen.bytes)) else {
            return self.route_flood(now, from, false, seen);
        };
        let longest = self.longest_to(peer, now);
        if seen.longest() > longest {
            return Route::Narrow(longest);
        }
        self.may_enter(tenant, peer, seen.layout.vlan).map_or_else(Route::Drop, |()| Route::Host(peer))
    }

    /// To everyone in the network, or wherever an unknown address may be. Outside is one place:
    /// what may be there is sent there without a budget, which is for the copies to neighbours.
    fn route_flood(&self, now: Instant, from: EndpointId, everyone: bool, seen: Seen<'_>) -> Route {
        let network = self.forward.network(from);
        let others = self.forward.others(network, everyone, from) as u32;
        let away = match self.forward.outside(network) {
            None => Away::Nothing,
            Some(Outside::Untagged | Outside::Vlan(_)) => Away::Wire,
            Some(Outside::Tunnels) => {
                match (self.tunnels.peers_of(tenant_of(network)).len() as u32, self.longest_out()) {
                    (hosts, longest) if hosts > 0 && seen.longest() > longest => Away::Narrow(hosts, longest),
                    (hosts, _) => Away::Hosts(hosts),
                }
            }
        };
        match (away, everyone, others) {
            (Away::Wire, false, 0) => return Route::Wire { alone: None },
            (Away::Hosts(0), false, 0) => return Route::Drop(Reason::Unreachable),
            _ => {}
        }
        match self.flood_left(now, from, asks(seen.bytes, seen.layout)) {
            (0, whose) if away == Away::Wire && !everyone => Route::Wire { alone: Some(whose) },
            (0, whose) => Route::Spent(whose),
            (left, _) => Route::Flood(Flood { everyone, others, away, left }),
        }
    }

    /// Sends a frame of an endpoint where it goes.
    #[inline]
    pub(super) fn follow(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        from: EndpointId,
        route: Route,
        frame: Frame,
    ) -> Result<(), Reason> {
        match route {
            Route::Drop(reason) => drop_for(pool, frame, reason),
            Route::Spent(_) => drop_for(pool, frame, Reason::FloodLimit),
            Route::Neighbour(to) => self.send_neighbour(pool, now, from, to, frame),
            Route::Wire { .. } => self.send_wire(pool, now, from, frame),
            Route::Host(peer) => self.send_tunnel(pool, now, from, peer, frame),
            Route::Narrow(longest) => {
                self.tell_path(pool, now, from, &frame, longest);
                drop_for(pool, frame, Reason::PathMtu)
            }
            Route::Flood(flood) => self.flood(pool, now, from, &flood, frame),
        }
    }

    /// Makes the copies of a flood. What one of several dies of is counted by itself; the others
    /// still go.
    fn flood(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        from: EndpointId,
        flood: &Flood,
        frame: Frame,
    ) -> Result<(), Reason> {
        let outside = match flood.away {
            Away::Nothing => 0,
            Away::Wire => 1,
            Away::Hosts(hosts) | Away::Narrow(hosts, _) => hosts,
        };
        self.charge_flood(pool, now, from, (flood.others + outside) as usize, &frame);
        let members = if flood.everyone { Out::Members } else { Out::Learners };
        if let Away::Nothing | Away::Wire = flood.away {
            if flood.away == Away::Wire {
                let sent = match pool.duplicate(&frame) {
                    Some(copy) => self.send_wire(pool, now, from, copy),
                    None => Err(Reason::NoBuffer),
                };
                if let Err(reason) = sent {
                    self.count_drop(from, reason);
                }
            }
            if flood.others == 0 {
                pool.free(frame);
                return Ok(());
            }
            return self.send_local(pool, now, from, members, frame);
        }
        let mut result = Ok(());
        if flood.others > 0 {
            result = match pool.duplicate(&frame) {
                Some(copy) => self.send_local(pool, now, from, members, copy),
                None => Err(Reason::NoBuffer),
            };
        }
        if let Away::Narrow(_, longest) = flood.away {
            self.tell_path(pool, now, from, &frame, longest);
            if flood.others > 0 {
                self.count_drop(from, Reason::PathMtu);
            } else {
                result = Err(Reason::PathMtu);
            }
        } else {
            self.tell_narrowest(pool, now, from, &frame);
            pool.meta_mut(&frame).set_out(Out::Hosts);
            self.put_off(pool, now, from, frame);
            return result;
        }
        pool.free(frame);
        result
    }

    /// A frame of the shell's own leaves in an endpoint's name, as one that only the uplink is to
    /// have: it says where an address is that was learned from the endpoint. It passes the guard
    /// and waits where the endpoint's own frames do. Nothing is learned of it, so the address lives
    /// no longer.
    pub fn announce(&mut self, pool: &mut Pool, now: Instant, from: EndpointId, frame: Frame) {
        let is_outside = matches!(
            self.program.endpoints.get(from.0).and_then(|_| self.forward.outside(self.forward.network(from))),
            Some(Outside::Vlan(_) | Outside::Untagged)
        );
        if !is_outside {
            return pool.free(frame);
        }
        let sent = match self.look(pool, from, &frame) {
            Ok(_) => self.send_wire(pool, now, from, frame),
            Err(reason) => drop_for(pool, frame, reason),
        };
        if let Err(reason) = sent {
            self.count_drop(from, reason);
        }
    }

    /// To the uplink: tagged, and into the sender's egress lane, or where the limit toward its
    /// destination lets it wait first.
    fn send_wire(&mut self, pool: &mut Pool, now: Instant, from: EndpointId, frame: Frame) -> Result<(), Reason> {
        if let Some(vlan) = self.tag_of(from) {
            if !encap::vlan::push(pool, &frame, vlan) {
                return drop_for(pool, frame, Reason::NoBuffer);
            }
            count_wire_bytes(pool, &frame);
        }
        self.enqueue_wire(pool, now, from, frame)
    }

    /// Whether the tag of a frame from outside comes off for an endpoint. A trunk keeps its own;
    /// where the network is a VLAN the uplink's lies before it.
    #[inline]
    pub(super) fn is_untagged(&self, to: EndpointId, is_trunk: bool) -> bool {
        !is_trunk || self.tag_of(to).is_some()
    }

    /// The VLAN of a network's own, behind trunks, that a frame from outside is in; 0 for none.
    pub(super) fn vlan_inside(&self, network: Network, seen: Seen<'_>) -> u16 {
        match self.forward.outside(network) {
            Some(Outside::Vlan(_)) if seen.layout.vlan.is_some() => vlan::behind(seen.bytes),
            Some(Outside::Vlan(_)) => 0,
            _ => seen.layout.vlan.unwrap_or(0),
        }
    }

    /// The VLAN under which an endpoint's frames go to the uplink.
    pub(super) fn tag_of(&self, from: EndpointId) -> Option<u16> {
        match self.forward.outside(self.forward.network(from)) {
            Some(Outside::Vlan(vlan)) => Some(vlan),
            _ => None,
        }
    }

    /// Where a frame from outside goes in its network.
    #[inline]
    pub(super) fn route_inside(&self, now: Instant, network: Network, target: Target, seen: Seen<'_>) -> Inside {
        match target {
            Target::Endpoint(to) => Inside::Endpoint(to),
            Target::Nowhere | Target::Uplink | Target::Tunnels => Inside::Drop(Reason::Unreachable),
            Target::Group | Target::Unknown => {
                let everyone = target == Target::Group;
                let receivers = self.forward.members(network, everyone).len() as u32;
                match self.uplink_flood_left(now, network, asks(seen.bytes, seen.layout)) {
                    0 => Inside::Drop(Reason::FloodLimit),
                    left => Inside::Copies { everyone, receivers, left },
                }
            }
        }
    }

    /// Sends a frame from outside where it goes.
    #[inline]
    pub(super) fn follow_inside(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        network: Network,
        inside: Inside,
        frame: Frame,
    ) -> Result<(), Reason> {
        match inside {
            Inside::Drop(reason) => return drop_for(pool, frame, reason),
            Inside::Endpoint(to) => self.arrive(pool, now, to, frame),
            Inside::Copies { everyone, receivers, .. } => {
                self.charge_uplink_flood(pool, now, network, receivers as usize, &frame);
                self.put_off_storm(pool, network, everyone, frame);
            }
        }
        Ok(())
    }
}
