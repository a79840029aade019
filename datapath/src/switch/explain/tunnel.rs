//! What the switch would do with a frame that goes into a tunnel or comes out of one.

use super::arrived::Arrived;
use super::{Memory, Switch, Traveller, headers, refuse};
use crate::bond::number::Number;
use crate::encap::vxlan::{self, Tunnel};
use crate::frame::HEADROOM;
use crate::frame_trace::{Emit, Step};
use crate::guard;
use crate::ids::PeerId;
use crate::program::{EndpointId, MemberId};
use crate::segment;
use crate::switch::OUT;
use crate::switch::route::{Away, Flood};
use crate::switch::tunnel::{Pieces, tenant_of};
use crate::units::Instant;
use crate::verdict::Reason;
use crate::wire;

/// A datagram of a tunnel, by whose headers a bond chooses.
fn outer_of(tunnel: &Tunnel, source_port: u16) -> Vec<u8> {
    let [(from, own), (to, next_hop)] = [tunnel.from, tunnel.to];
    wire::build::eth(own, next_hop).ip(from, to).udp(source_port, vxlan::PORT).payload(vec![0; 8]).bytes()
}

impl Switch {
    /// Copies for neighbours, and one for each host.
    pub(super) fn explain_flood_away(
        &self,
        now: Instant,
        from: EndpointId,
        flood: &Flood,
        seen: &Traveller<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Reason> {
        let mut result = Ok(());
        if flood.others > 0 {
            result = match seen.copy_class {
                None => refuse(steps, Reason::NoBuffer),
                Some(class) => {
                    let memory = seen.memory.with_copy(class);
                    self.explain_local(now, from, &Traveller { class, headroom: HEADROOM, memory, ..*seen }, steps)
                }
            };
            if result.is_ok() {
                steps.push(Step::Copies(flood.others));
            }
        }
        let Away::Hosts(hosts) = flood.away else {
            steps.push(Step::Refuse(Reason::PathMtu));
            return if flood.others > 0 { result } else { Err(Reason::PathMtu) };
        };
        let peers = self.tunnels.peers_of(tenant_of(self.forward.network(from))).iter();
        let reached = peers.filter(|&&peer| seen.longest_segment() <= self.longest_to(peer, now)).count();
        if reached > 0 {
            steps.push(Step::Hosts(reached as u32));
        }
        if reached < hosts as usize {
            steps.push(Step::Refuse(Reason::PathMtu));
        }
        result
    }

    /// The sender's lane, then the uplink.
    pub(super) fn explain_tunnel(
        &self,
        now: Instant,
        from: EndpointId,
        peer: PeerId,
        seen: &Traveller<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Reason> {
        let outer = self.tunnels.outer() as u8;
        let wire_bytes = segment::tunnelled_wire_bytes(seen.bytes.len(), &seen.layout, &seen.offload, outer);
        if !self.explain_enqueue(now, from, &Traveller { wire_bytes, ..*seen }, steps)?.is_told {
            return Ok(());
        }
        let (Some(uplink), Some(tunnel)) =
            (&self.program.uplink, self.tunnels.to(tenant_of(self.forward.network(from)), peer))
        else {
            return Ok(());
        };
        let Some(features) = self.program.uplink_features() else { return Ok(()) };
        let source_port = self.tunnels.source_port(seen.bytes, &seen.layout);
        let port = match self.bond {
            Some(_) => self.explain_member(now, &outer_of(&tunnel, source_port), wire_bytes, steps),
            None => Some(uplink.port()),
        };
        let Some(port) = port else { return Ok(()) };
        steps.push(Step::Emit(Emit {
            port,
            tag: None,
            untag: None,
            tunnel: Some((tunnel.vni, tunnel.to.0)),
            cut: Pieces::of(seen.seen(), &tunnel, &features).count(seen.segments(), &seen.offload),
            checksum: seen.offload.needs_csum && !features.offload.csum,
            refused: (self.out.len() >= OUT).then_some(Reason::NoBuffer),
        }));
        Ok(())
    }

    /// A frame from the uplink that is for this host's end of the tunnels.
    pub(super) fn explain_tunnelled(
        &self,
        now: Instant,
        (member, number): (MemberId, Option<Number>),
        arrived: &Arrived<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Reason> {
        let Arrived { pool, bytes, offload, class, headroom } = *arrived;
        if let Some(bond) = &self.bond
            && let Err(reason) = vxlan::look(bytes, &offload).map(drop).and_then(|()| bond.may_receive(member))
        {
            steps.push(Step::Open(Err(reason)));
            return Err(reason);
        }
        self.explain_turn((member, number), steps)?;
        if vxlan::is_train(bytes, &offload) {
            let seen = arrived.see()?;
            steps.push(Step::Look(Ok(headers(&seen))));
            steps.push(Step::Train(seen.segments()));
            return Ok(());
        }
        let opened = vxlan::open(bytes, &offload).and_then(|(received, inner, mut offload)| {
            let (network, _) = self.tunnel_network(&received)?;
            let headroom = headroom + inner.start;
            let bytes = &bytes[inner];
            let layout = wire::parse(bytes)?;
            segment::check_offload(bytes, &layout, &offload)?;
            offload.gso_ecn = segment::meaning_of_cwr(bytes, &layout, &offload);
            if layout.vlan.is_some() {
                return Err(Reason::BadVlan);
            }
            guard::check_transit(bytes)?;
            self.check_host(network, &received, bytes)?;
            vxlan::would_merge(bytes, &layout, received.ecn)?;
            let outer = vxlan::outer(&received.from) as u8;
            let seen = Traveller {
                bytes,
                layout,
                offload,
                wire_bytes: segment::tunnelled_wire_bytes(bytes.len(), &layout, &offload, outer),
                class,
                headroom,
                memory: Memory::new(pool),
                copy_class: pool.class_for(bytes.len()),
            };
            Ok((received, network, seen))
        });
        match opened {
            Err(reason) => {
                steps.push(Step::Open(Err(reason)));
                Err(reason)
            }
            Ok((received, network, seen)) => {
                steps.push(Step::Open(Ok((received.vni, received.from))));
                steps.push(Step::Look(Ok(headers(&seen))));
                if let Err(reason) = self.check_outside(now, network, seen.bytes, &seen.layout) {
                    return refuse(steps, reason);
                }
                self.explain_inside(now, network, &seen, steps)
            }
        }
    }
}
