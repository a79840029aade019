//! May this frame be sent by whom it is from? From an endpoint: guard, learning, and what it claims
//! beyond its own list. From outside: nothing of what somebody here has.

use super::parse::{destination, parse_parts, source};
use super::{Event, Switch};
use crate::fdb::{Fdb, Learning};
use crate::forward::Target;
use crate::frame::{Frame, Pool};
use crate::guard::{self, Claim, Kind, Right, claims};
use crate::network::Network;
use crate::owners::{By, Owner, Role};
use crate::program::{Attachment, Endpoint, EndpointId};
use crate::units::Instant;
use crate::verdict::Reason;
use crate::wire::{L3, L4, Layout};

/// That an endpoint may send a frame, and what of it is to be remembered.
pub(super) struct Source {
    /// What it claims beyond its own list.
    claims: [Option<Claim>; 2],
    /// Nothing is new in that.
    is_known: bool,
    /// The endpoint has declared no address: this one is learned.
    pub learns: bool,
}

/// Why it may not.
pub(super) struct Refused {
    pub reason: Reason,
    /// The claim that is another's, and whose, where the endpoint's own list allows it.
    pub claim: Option<(Claim, Owner)>,
}

/// What one look at an endpoint's frame says.
pub(super) struct Look {
    pub right: Right,
    /// It is what most are, and may be sent: all that says so lies in the headers up to TCP's or
    /// UDP's ports.
    pub is_plain: bool,
    /// It claims nothing beyond the endpoint's own list, and nothing is learned of it.
    pub is_known: bool,
    /// Where the endpoint's last frame went, where that was for the same address.
    pub target: Option<Target>,
}

impl Switch {
    /// Reads a frame's headers and asks the guard.
    #[inline(always)]
    pub(super) fn look(&self, pool: &mut Pool, from: EndpointId, frame: &Frame) -> Result<Look, Reason> {
        let (bytes, meta) = pool.parts_mut(frame);
        parse_parts(bytes, meta)?;
        let endpoint = self.program.endpoints.get(from.0).ok_or(Reason::Unknown)?;
        let is_plain = !endpoint.trunk && guard::is_plain(bytes, &meta.layout, &endpoint.identity);
        let right = if is_plain { Right::Declared } else { self.guard(bytes, &meta.layout, endpoint)? };
        let is_known = right == Right::Declared && !endpoint.identity.macs.is_empty();
        Ok(Look { right, is_plain, is_known, target: self.recent.target(from, destination(bytes)) })
    }

    /// Learning: may this endpoint send a frame that claims more than its own list has? What is
    /// seen of it is remembered.
    #[inline(never)]
    pub(super) fn check_claims(
        &mut self,
        pool: &Pool,
        now: Instant,
        from: EndpointId,
        frame: &Frame,
        right: Right,
    ) -> Result<(), Reason> {
        let endpoint = self.program.endpoints.get(from.0).ok_or(Reason::Unknown)?;
        let (bytes, layout) = (pool.bytes(frame), &pool.meta(frame).layout);
        let source =
            self.judge_claims(now, from, endpoint, (bytes, layout), right).map_err(|refused| refused.reason)?;
        if source.is_known && !source.learns {
            return Ok(());
        }
        self.note_source(now, from, bytes, layout, &source)
    }

    /// Whether an endpoint may send a frame, but for what the table of addresses says when it is
    /// learned.
    pub(super) fn judge_source(
        &self,
        now: Instant,
        from: EndpointId,
        endpoint: &Endpoint,
        bytes: &[u8],
        layout: &Layout,
    ) -> Result<Source, Refused> {
        let right = self.guard(bytes, layout, endpoint).map_err(|reason| Refused { reason, claim: None })?;
        self.judge_claims(now, from, endpoint, (bytes, layout), right)
    }

    /// The same of one that the guard has looked at.
    fn judge_claims(
        &self,
        now: Instant,
        from: EndpointId,
        endpoint: &Endpoint,
        (bytes, layout): (&[u8], &Layout),
        right: Right,
    ) -> Result<Source, Refused> {
        let learns = endpoint.identity.macs.is_empty();
        if right == Right::Declared {
            return Ok(Source { claims: [None; 2], is_known: true, learns });
        }
        let (network, claims) = (self.forward.network(from), claims(bytes, layout));
        let is_known = match &claims {
            [Some(claim), None] if claim.kind == Kind::Source => self.owners.was_good(now, network, from, claim),
            all => all.iter().all(Option::is_none),
        };
        if !is_known {
            let by = by(from, endpoint);
            for claim in claims.iter().flatten() {
                let refused =
                    |owner| Refused { reason: refusal(owner, layout.l3, claim), claim: Some((*claim, owner)) };
                self.owners.check(now, network, &self.fdb, by, claim).map_err(refused)?;
            }
        }
        Ok(Source { claims, is_known, learns })
    }

    /// Learns the address of a frame that may be sent, and remembers what it claims.
    fn note_source(
        &mut self,
        now: Instant,
        from: EndpointId,
        bytes: &[u8],
        layout: &Layout,
        seen: &Source,
    ) -> Result<(), Reason> {
        let network = self.forward.network(from);
        if seen.learns {
            let (mac, vlan) = (source(bytes), layout.vlan.unwrap_or(0));
            let learning = self.fdb.learn(now, network, vlan, mac, from);
            if let Learning::Flapping(owner) = learning {
                self.note_event(Event::Flapping { from: owner, to: from, mac });
            }
            unlearned(learning)?;
        }
        if let Some(endpoint) = self.program.endpoints.get(from.0).filter(|_| !seen.is_known) {
            self.owners.remember(now, network, &self.fdb, by(from, endpoint), &seen.claims);
        }
        Ok(())
    }

    /// What the guard says of a frame from this endpoint.
    #[inline(never)]
    fn guard(&self, bytes: &[u8], layout: &Layout, endpoint: &Endpoint) -> Result<Right, Reason> {
        if endpoint.trunk {
            let is_taken = self.leaves_with_its_tags(endpoint).then_some(|vlan| self.forward.has_vlan(vlan));
            return guard::check_trunk(bytes, layout, endpoint.identity.allow, is_taken);
        }
        if layout.vlan.is_some() {
            return Err(Reason::BadVlan);
        }
        guard::check(bytes, layout, &endpoint.identity)
    }

    fn leaves_with_its_tags(&self, endpoint: &Endpoint) -> bool {
        let tenant = self.program.tenants.get(endpoint.tenant.0);
        tenant.is_some_and(|tenant| tenant.attachment == Attachment::Untagged)
    }

    /// Whether a frame from outside may be from whom it says; if so, that one is outside.
    pub(super) fn see_outside(
        &mut self,
        pool: &Pool,
        now: Instant,
        network: Network,
        frame: &Frame,
    ) -> Result<(), Reason> {
        let (bytes, layout) = (pool.bytes(frame), &pool.meta(frame).layout);
        self.check_outside(now, network, bytes, layout)?;
        if self.forward.learns(network) {
            self.fdb.see_outside(now, network, source(bytes));
        } else {
            self.note_outside(network, source(bytes));
        }
        if is_told(layout) {
            self.owners.remember(now, network, &self.fdb, By::Outside, &claims(bytes, layout));
        }
        Ok(())
    }

    /// The same without remembering it.
    pub(super) fn check_outside(
        &self,
        now: Instant,
        network: Network,
        bytes: &[u8],
        layout: &Layout,
    ) -> Result<(), Reason> {
        let mac = source(bytes);
        let here = if self.was_outside(network, mac) {
            None
        } else if self.forward.learns(network) {
            Fdb::find(&self.fdb, now, network, 0, mac)
        } else {
            self.fdb.declared(network, mac)
        };
        if here.is_some() {
            return Err(Reason::Loop);
        }
        if is_told(layout) {
            for claim in claims(bytes, layout).iter().flatten() {
                let checked = self.owners.check(now, network, &self.fdb, By::Outside, claim);
                checked.map_err(|_| Reason::Loop)?;
            }
        }
        Ok(())
    }
}

/// Whether a frame may tell who has an address.
fn is_told(layout: &Layout) -> bool {
    layout.l3 == L3::Arp || layout.l4 == L4::Icmpv6
}

/// An endpoint, for who asks whose an address is.
fn by(id: EndpointId, endpoint: &Endpoint) -> By<'_> {
    let is_forwarder = endpoint.trunk || endpoint.identity.allow.router;
    let role = if is_forwarder { Role::Forwarder } else { Role::Host };
    By::Endpoint(id, endpoint.tenant, &endpoint.identity, role)
}

/// The name of what a frame does that claims another's address.
fn refusal(owner: Owner, l3: L3, claim: &Claim) -> Reason {
    match (owner, l3, claim.kind) {
        (Owner::Unknown, ..) => Reason::OutsideFull,
        (_, L3::Arp, _) => Reason::SpoofedArp,
        (_, L3::Ipv4, _) => Reason::SpoofedIpv4,
        (_, _, Kind::Source) => Reason::SpoofedIpv6,
        _ => Reason::SpoofedNd,
    }
}

/// What became of a source address, as a verdict.
pub(super) fn unlearned(learning: Learning) -> Result<(), Reason> {
    match learning {
        Learning::Known => Ok(()),
        Learning::Declared | Learning::Taken(_) | Learning::Elsewhere => Err(Reason::SpoofedMac),
        Learning::Outside => Err(Reason::SeenOutside),
        Learning::Crowded => Err(Reason::OutsideFull),
        Learning::Full => Err(Reason::FdbFull),
        Learning::Forbidden => Err(Reason::Undeclared),
        Learning::Flapping(_) => Err(Reason::Flapping),
    }
}

/// Whose a source address is that was not learned.
pub(super) fn learned_by(learning: Learning, declared: Option<EndpointId>) -> Option<EndpointId> {
    match learning {
        Learning::Declared => declared,
        Learning::Taken(owner) | Learning::Flapping(owner) => Some(owner),
        _ => None,
    }
}
