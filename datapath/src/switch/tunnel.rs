//! Tunnels: how a tenant that is on other hosts too gets out of this one, and in.
//!
//! Out: forward finds the host -> egress queue, where the frame counts with a tunnel's headers
//! around each of its segments -> cut into segments -> headers put around each -> uplink. The
//! headers come last, so a frame that is queued is the endpoint's own: limits toward its
//! destination, marks and trims are as for any other, and where it is sent is looked up again when
//! it goes. In: the headers come off first, and what was inside goes the way of every frame from
//! the uplink. Where the port can cut TCP in a tunnel, a frame of TCP goes whole, with one set of
//! outer headers; where it can cut UDP, the segments of others go as UDP GSO packets
//! (`encap/udp_gso.rs`).
//!
//! What is too long with the headers around it, for the uplink or for the way to a host as a router
//! on it has said, is dropped under a name of its own, and the sender told, if it wants to be
//! (`encap/too_big.rs`).

use super::parse::{count_wire_bytes, destination, drop_for, longest_segment, parse, segments, source};
use super::route::Seen;
use super::{OUT, Switch};
use crate::bond::number::Number;
use crate::encap::vxlan::{Received, Tunnel};
use crate::encap::{too_big, udp_gso, vxlan};
use crate::frame::{Frame, Out, Pool};
use crate::guard;
use crate::ids::PeerId;
use crate::network::Network;
use crate::offload::{Offload, OffloadSupport};
use crate::overlay::Vtep;
use crate::program::{EndpointId, MemberId, PortFeatures, PortId, TenantId};
use crate::segment;
use crate::service::Decision;
use crate::units::Instant;
use crate::verdict::Reason;
use crate::wire::ETHERNET_HEADER;
use core::net::IpAddr;

impl Switch {
    /// Tells the sender of a frame for all hosts where the way to one of them is too narrow for it.
    pub(super) fn tell_narrowest(&mut self, pool: &mut Pool, now: Instant, from: EndpointId, frame: &Frame) {
        if !self.tunnels.is_any_narrow(now) {
            return;
        }
        let (tenant, longest) = (tenant_of(self.forward.network(from)), longest_segment(pool, frame));
        let ways = self.tunnels.peers_of(tenant).iter().map(|&peer| self.longest_to(peer, now));
        if let Some(narrowest) = ways.min().filter(|&most| longest > most) {
            self.tell_path(pool, now, from, frame, narrowest);
        }
    }

    /// Whether a copy of a frame for all hosts may go to one of them.
    pub(super) fn may_copy_to(
        &self,
        pool: &Pool,
        now: Instant,
        to: (TenantId, PeerId),
        frame: &Frame,
    ) -> Result<(), Reason> {
        let (tenant, peer) = to;
        if longest_segment(pool, frame) > self.longest_to(peer, now) {
            return Err(Reason::PathMtu);
        }
        self.may_enter(tenant, peer, pool.meta(frame).layout.vlan)
    }

    /// Into the sender's egress lane, for one host.
    pub(super) fn send_tunnel(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        from: EndpointId,
        peer: PeerId,
        frame: Frame,
    ) -> Result<(), Reason> {
        let meta = pool.meta_mut(&frame);
        meta.set_out(Out::Host(peer));
        meta.outer = self.tunnels.outer() as u8;
        count_wire_bytes(pool, &frame);
        self.enqueue_wire(pool, now, from, frame)
    }

    /// Whether there is a tunnel for a frame with this tag. In a tunnel, frames have none (RFC
    /// 7348, section 6.1).
    pub(super) fn may_enter(&self, tenant: TenantId, peer: PeerId, vlan: Option<u16>) -> Result<(), Reason> {
        if vlan.is_some() {
            return Err(Reason::BadVlan);
        }
        self.tunnels.to(tenant, peer).map(drop).ok_or(Reason::NoRoute)
    }

    /// The longest frame in bytes, Ethernet header included, that fits through the uplink with a
    /// tunnel's headers.
    pub(super) fn longest_out(&self) -> u32 {
        self.program
            .uplink_features()
            .map_or(0, |features| features.max_frame)
            .saturating_sub(self.tunnels.outer() as u32)
    }

    /// The same for the whole way to a host.
    pub(super) fn longest_to(&self, peer: PeerId, now: Instant) -> u32 {
        let most = self.longest_out();
        let Some(mtu) = self.tunnels.path_mtu(peer, now) else { return most };
        most.min((u32::from(mtu) + ETHERNET_HEADER as u32).saturating_sub(self.tunnels.outer() as u32))
    }

    /// A frame from the uplink, which goes its way in any case, may be a router's word that the way
    /// to a host is narrow.
    pub(super) fn hear_path(&mut self, pool: &Pool, now: Instant, frame: &Frame) {
        let layout = &pool.meta(frame).layout;
        if let Some(local) = self.tunnels.local()
            && layout.vlan.is_none()
            && let Some((to, mtu)) = too_big::told(pool.bytes(frame), layout, (local.address, local.mac))
        {
            self.tunnels.narrow(to, mtu, now);
        }
    }

    /// The hosts to which the way is narrower than the uplink, and how long packets to them may be,
    /// as routers have said.
    pub fn narrow_paths(&self, now: Instant) -> impl Iterator<Item = (IpAddr, u16)> + '_ {
        self.tunnels.narrow_paths(now)
    }

    /// Tells the sender of a frame how long its packets may be. Such answers are taken from its
    /// flood budget, so that they are no flood themselves.
    pub(super) fn tell_path(&mut self, pool: &mut Pool, now: Instant, from: EndpointId, frame: &Frame, longest: u32) {
        let Ok(mtu) = u16::try_from(longest.saturating_sub(ETHERNET_HEADER as u32)) else { return };
        // Its frames are somebody else's, outside.
        if self.program.endpoints.get(from.0).is_some_and(|endpoint| endpoint.is_director) {
            return;
        }
        if !self.take_flood(pool, now, from, 1, frame) {
            return;
        }
        let Some(answer) = too_big::answer(pool, frame, mtu) else { return };
        match parse(pool, &answer) {
            Ok(()) => {
                self.translate_error(pool, now, from, &answer);
                self.arrive_local(pool, now, from, from, answer);
            }
            Err(_) => pool.free(answer),
        }
    }

    /// What the frame was that an error is about, its sender knows without the services' stage,
    /// where that translated it.
    fn translate_error(&self, pool: &mut Pool, now: Instant, from: EndpointId, error: &Frame) {
        let network = self.forward.network(from);
        if !self.services.are_in(network) {
            return;
        }
        let (bytes, meta) = pool.parts_mut(error);
        if let Decision::Error(known, to_backend) = self.services.decide(now, network, None, bytes, &meta.layout) {
            self.services.error(&known, to_backend, bytes, &meta.layout, &meta.offload);
        }
    }

    /// To the uplink: whole, in UDP GSO packets or cut into segments, with a tunnel's headers.
    /// Drops are counted for `endpoint`.
    pub(super) fn emit_tunnel(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        port: PortId,
        endpoint: EndpointId,
        frame: Frame,
    ) {
        let Some(features) = self.program.uplink_features() else { return pool.free(frame) };
        let Out::Host(peer) = pool.meta(&frame).out() else { return pool.free(frame) };
        let tenant = tenant_of(self.forward.network(endpoint));
        let tunnel = match self.tunnels.to(tenant, peer) {
            Some(_) if self.out.len() >= OUT => Err(Reason::NoBuffer),
            tunnel => tunnel.ok_or(Reason::NoRoute),
        };
        let tunnel = match tunnel {
            Ok(tunnel) => tunnel,
            Err(reason) => {
                pool.free(frame);
                return self.count_drop(endpoint, reason);
            }
        };
        pool.meta_mut(&frame).set_out(Out::Payer(self.port_of(endpoint, port)));
        let put = self.put_in_tunnel(pool, port, &tunnel, &features, frame);
        self.send_tunnelled(pool, now, endpoint);
        self.tallies[endpoint.0 as usize].drops.add(Reason::NoBuffer, put.lost);
        if let Some(reason) = put.refused {
            self.count_drop(endpoint, reason);
        }
    }

    /// Out of the switch's own mouth, into a tunnel: an answer to the host that asked, or what is
    /// for an address there. As [`Switch::answer_outside`], which calls it.
    pub(super) fn answer_tunnel(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        port: PortId,
        tenant: TenantId,
        frame: Frame,
    ) -> Result<(), Reason> {
        let peer = match pool.meta(&frame).out() {
            Out::Host(asked) => Some(asked),
            _ => self.tunnels.find(tenant, destination(pool.bytes(&frame))),
        };
        let tunnel = peer.and_then(|peer| Some((peer, self.tunnels.to(tenant, peer)?)));
        let (Some((peer, tunnel)), Some(features)) = (tunnel, self.program.uplink_features()) else {
            return drop_for(pool, frame, Reason::NoRoute);
        };
        if let Err(reason) = self.may_copy_to(pool, now, (tenant, peer), &frame) {
            return drop_for(pool, frame, reason);
        }
        pool.meta_mut(&frame).outer = self.tunnels.outer() as u8;
        count_wire_bytes(pool, &frame);
        let meta = pool.meta_mut(&frame);
        meta.set_out(Out::Payer(port));
        self.egress.occupy(now, meta.wire_bytes);
        let put = self.put_in_tunnel(pool, port, &tunnel, &features, frame);
        let mut refused = put.refused.or((put.lost > 0).then_some(Reason::NoBuffer));
        while let Some(frame) = self.for_bond.pop_front() {
            self.mark_for_bond(pool, &frame);
            refused = refused.or(self.send_own(pool, now, frame).err());
        }
        refused.map_or(Ok(()), Err)
    }

    /// Puts a frame that has a payer into a tunnel, whole or in pieces: to the port, or to where
    /// the bond takes it from.
    fn put_in_tunnel(
        &mut self,
        pool: &mut Pool,
        port: PortId,
        tunnel: &Tunnel,
        features: &PortFeatures,
        frame: Frame,
    ) -> Put {
        let source_port = self.tunnels.source_port(pool.bytes(&frame), &pool.meta(&frame).layout);
        let support = match Pieces::of(Seen::of(pool, &frame), tunnel, features) {
            Pieces::Trains(most) => return self.put_trains(pool, port, (tunnel, source_port), most, frame),
            Pieces::Segments(support) => support,
        };
        let (csum, outer) = (support.csum, vxlan::outer(&tunnel.to.0));
        let max = (features.max_frame as usize).saturating_sub(outer);
        let (out, mut for_bond, mut lost) = (&mut self.out, self.bond.is_some().then_some(&mut self.for_bond), 0);
        let done = segment::software(pool, frame, support, max, &mut |pool, part| {
            if for_bond.is_some() {
                count_wire_bytes(pool, &part);
            }
            let meta = pool.meta_mut(&part);
            meta.outer = 0;
            meta.set_in_tunnel(tunnel.to.0.is_ipv4());
            if !vxlan::push(pool, &part, tunnel, source_port, csum) {
                pool.free(part);
                lost += 1;
            } else if let Some(for_bond) = &mut for_bond {
                for_bond.push_back(part);
            } else {
                out.push_back((port, part));
            }
        });
        let refused = done.err().map(|reason| if reason == Reason::TooLong { Reason::PathMtu } else { reason });
        Put { lost, refused }
    }

    /// What was put into a tunnel goes to the members that the bond chooses, as any other frame.
    fn send_tunnelled(&mut self, pool: &mut Pool, now: Instant, endpoint: EndpointId) {
        while let Some(frame) = self.for_bond.pop_front() {
            self.mark_for_bond(pool, &frame);
            self.send_member(pool, now, endpoint, frame);
        }
    }

    /// Where frames may have numbers none goes whole, so all can take the way that has no queue of
    /// the host's in it.
    fn mark_for_bond(&self, pool: &mut Pool, frame: &Frame) {
        if self.bond.as_ref().is_some_and(|bond| bond.settings().may_number()) {
            pool.meta_mut(frame).set_in_tunnel(false);
        }
    }

    /// All segments of a frame, at most `most` in a UDP GSO packet.
    fn put_trains(
        &mut self,
        pool: &mut Pool,
        port: PortId,
        (tunnel, source_port): (&Tunnel, u16),
        most: u32,
        frame: Frame,
    ) -> Put {
        let (all, mut first, mut lost) = (segments(pool, &frame), 0, 0);
        while first < all {
            let count = most.min(all - first);
            match udp_gso::couple(pool, &frame, first..first + count, tunnel, source_port) {
                Some(train) => {
                    let out = pool.meta(&frame).out();
                    pool.meta_mut(&train).set_out(out);
                    if self.bond.is_some() {
                        count_wire_bytes(pool, &train);
                        self.for_bond.push_back(train);
                    } else {
                        self.out.push_back((port, train));
                    }
                }
                None => lost += u64::from(count),
            }
            first += count;
        }
        pool.free(frame);
        Put { lost, refused: None }
    }

    /// A frame from the uplink that is for this host's end of the tunnels; where that is a bond, in
    /// its order.
    pub(super) fn receive_tunnel(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        (member, number): (MemberId, Option<Number>),
        frame: Frame,
    ) -> Result<(), Reason> {
        if self.bond.is_none() {
            return self.rx_tunnel(pool, now, frame);
        }
        let looked = look_outside(pool, &frame).and_then(|()| self.receive_member(pool, (member, number), &frame));
        if let Err(reason) = looked {
            return drop_for(pool, frame, reason);
        }
        match number {
            Some(number) => self.put_in_order(pool, now, member, number, frame),
            None => {
                self.end_order(pool, now);
                self.rx_tunnel(pool, now, frame)
            }
        }
    }

    /// From a bond, in its order.
    pub(super) fn enter_ordered(&mut self, pool: &mut Pool, now: Instant, frame: Frame) -> Result<(), Reason> {
        let is_for = |local: Vtep| vxlan::is_for(pool.bytes(&frame), local.address, local.mac);
        if self.tunnels.local().is_some_and(is_for) {
            return self.rx_tunnel(pool, now, frame);
        }
        self.enter_uplink(pool, now, frame)
    }

    /// A frame from the uplink that is for this host's end of the tunnels: out of its headers, and
    /// on.
    pub(super) fn rx_tunnel(&mut self, pool: &mut Pool, now: Instant, frame: Frame) -> Result<(), Reason> {
        if vxlan::is_train(pool.bytes(&frame), &pool.meta(&frame).offload) {
            return self.rx_train(pool, now, frame);
        }
        match vxlan::pop(pool, &frame) {
            Ok(received) => self.rx_inner(pool, now, &received, frame),
            Err(reason) => drop_for(pool, frame, reason),
        }
    }

    fn rx_train(&mut self, pool: &mut Pool, now: Instant, frame: Frame) -> Result<(), Reason> {
        if let Err(reason) = parse(pool, &frame) {
            return drop_for(pool, frame, reason);
        }
        let (all, mut first) = (segments(pool, &frame), 0);
        while first < all {
            let (count, opened) = udp_gso::uncouple(pool, &frame, first);
            // Of many, some may have arrived: what is lost of them is counted, and no verdict on
            // all.
            if let Err(reason) = opened.and_then(|(received, inner)| self.rx_inner(pool, now, &received, inner)) {
                self.uplink_drops.add(reason, u64::from(count));
            }
            first += count;
        }
        pool.free(frame);
        Ok(())
    }

    /// What was in a tunnel.
    fn rx_inner(&mut self, pool: &mut Pool, now: Instant, received: &Received, frame: Frame) -> Result<(), Reason> {
        match self.check_inner(pool, received, &frame) {
            Ok(network) => self.enter(pool, now, network, frame),
            Err(reason) => drop_for(pool, frame, reason),
        }
    }

    /// Whether it may come in, marked as its tunnel was; says into which network.
    fn check_inner(&self, pool: &mut Pool, received: &Received, frame: &Frame) -> Result<Network, Reason> {
        let (network, from) = self.tunnel_network(received)?;
        let meta = pool.meta_mut(frame);
        meta.outer = vxlan::outer(&received.from) as u8;
        meta.set_in_tunnel(false);
        // Where an answer to it goes.
        meta.set_out(Out::Host(from));
        parse(pool, frame)?;
        let (bytes, meta) = pool.parts_mut(frame);
        if meta.layout.vlan.is_some() {
            return Err(Reason::BadVlan);
        }
        guard::check_transit(bytes)?;
        self.check_host(network, received, bytes)?;
        vxlan::merge_ecn(bytes, &meta.layout, received.ecn)?;
        Ok(network)
    }

    /// Whether what came from a host may come from there: the addresses of another's endpoints are
    /// at that one.
    pub(super) fn check_host(&self, network: Network, received: &Received, bytes: &[u8]) -> Result<(), Reason> {
        let at = self.tunnels.find(tenant_of(network), source(bytes)).and_then(|peer| self.tunnels.address(peer));
        if at.is_some_and(|at| at != received.from) { Err(Reason::UnknownVtep) } else { Ok(()) }
    }

    /// The network that a frame from a tunnel is for, and the host that it is from.
    pub(super) fn tunnel_network(&self, received: &Received) -> Result<(Network, PeerId), Reason> {
        let tenant = self.tunnels.tenant_of(received.vni).ok_or(Reason::BadVni)?;
        let from = self.tunnels.host_with(received.from, tenant).ok_or(Reason::UnknownVtep)?;
        Ok((Network(tenant.0), from))
    }
}

/// In which pieces a frame goes into a tunnel.
pub(super) enum Pieces {
    /// In UDP GSO packets of so many segments at most.
    Trains(u32),
    /// Whole where this takes it, and one segment each where it does not.
    Segments(OffloadSupport),
}

impl Pieces {
    pub fn of(seen: Seen<'_>, tunnel: &Tunnel, features: &PortFeatures) -> Pieces {
        let Seen { bytes, layout, offload } = seen;
        let fits = seen.longest() + vxlan::outer(&tunnel.to.0) as u32 <= features.max_frame;
        let whole = features.offload.tunnel && vxlan::may_go_whole(bytes.len(), tunnel);
        let csum = features.offload.csum;
        let support = OffloadSupport { csum, tso4: whole, tso6: whole, tso_ecn: whole, ..OffloadSupport::NONE };
        let most = udp_gso::most(layout, offload, tunnel);
        if most > 1 && fits && features.offload.uso && csum && !support.takes(offload) {
            return Pieces::Trains(most);
        }
        Pieces::Segments(support)
    }

    /// How many they are, of a frame of so many segments.
    pub fn count(&self, segments: u32, offload: &Offload) -> u32 {
        match self {
            Pieces::Trains(most) => segments.div_ceil(*most),
            Pieces::Segments(support) if support.takes(offload) => 1,
            Pieces::Segments(_) => segments,
        }
    }
}

/// What became of a frame that was put into a tunnel.
struct Put {
    /// Segments for which there was no buffer.
    lost: u64,
    /// Why the frame, or the rest of it, could not go.
    refused: Option<Reason>,
}

/// What a bond counts of a frame in its tunnel.
fn look_outside(pool: &mut Pool, frame: &Frame) -> Result<(), Reason> {
    let (bytes, meta) = pool.parts_mut(frame);
    (meta.layout, meta.wire_bytes) = vxlan::look(bytes, &meta.offload)?;
    meta.flow = None;
    Ok(())
}

/// The tenant whose own network it is.
pub(super) fn tenant_of(network: Network) -> TenantId {
    TenantId(network.0)
}

#[cfg(test)]
mod tests;
