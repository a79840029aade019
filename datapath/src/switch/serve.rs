//! Services in the switch: what the stage ([`crate::service`]) decides is done here, and what it
//! says is shown.

mod retry;

use super::parse::{destination, drop_for, parse, source};
use super::route::{Route, Seen};
use super::tunnel::tenant_of;
use super::{OUT, Role, Switch};
use crate::encap;
use crate::forward::Outside;
use crate::frame::{Frame, Out, Pool};
use crate::network::{Network, network_of};
use crate::offload::Offload;
use crate::program::{Attachment, ChangeError, EndpointId, PortId, Slots, Uplink};
use crate::service::ahead::Glance;
use crate::service::answer::{self, Answer};
use crate::service::translate;
use crate::service::{
    Again, BackendStats, Checked, Decision, Key, Known, Probe, Released, Service, ServiceId, ServiceStats, Shown,
    WhenDown, Words, segment,
};
use crate::table::Left;
use crate::units::{Instant, Rate};
use crate::verdict::Reason;
use crate::wire::{L4, Layout, Mac, build};
use core::net::IpAddr;
use std::ops::Range;

/// IP addresses of a service that are announced at once at most: with each of them its Ethernet
/// address is.
const MOST_ANNOUNCED: usize = 64;

/// New connections that waited and are let go in one go at most: each costs as much as a frame that
/// is read, and nobody's turns.
pub(super) const MOST_RELEASED: u32 = 32;

/// What became of a frame at the services' stage.
pub(super) enum Served {
    /// It goes on, translated or not; perhaps to the endpoint that it is from.
    On(Frame, bool),
    /// It goes out again, as a frame of this endpoint.
    Turned(Frame, EndpointId),
    /// It became the answer to itself.
    Answer(Frame),
    /// It was for the switch.
    Taken,
}

impl Served {
    fn to(frame: Frame, may_return: bool, director: Option<EndpointId>) -> Served {
        match director {
            Some(director) => Served::Turned(frame, director),
            None => Served::On(frame, may_return),
        }
    }
}

impl Switch {
    /// The services' stage for a frame of a connection that sent lately: see
    /// [`Services::pass_recent`](crate::service::Services::pass_recent). Others go to
    /// [`Switch::serve`].
    #[inline(always)]
    pub(super) fn pass_recent(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        network: Network,
        is_outside: bool,
        frame: &Frame,
    ) -> Result<(), Option<Words>> {
        let (bytes, meta) = pool.parts_mut(frame);
        self.services.pass_recent(now, network, is_outside, bytes, &meta.layout, &meta.offload)
    }

    /// A port has read these frames, and they will come by [`Switch::rx_burst`]: what the services'
    /// stage will look up for them is read now, all at once, where that is long to wait for.
    /// Changes nothing.
    pub fn read_ahead(&self, pool: &Pool, port: PortId, frames: &[Frame]) {
        if frames.len() < 2 || !self.services.reads_ahead() {
            return;
        }
        let from = match self.role(port) {
            Role::Endpoint(from) => Some(self.forward.network(from)),
            Role::Uplink(_) => None,
            Role::Nothing => return,
        };
        let seen = frames.iter().filter_map(|frame| {
            let glance = Glance::of(pool.bytes(frame))?;
            let network = from.or_else(|| self.forward.network_of_vlan(glance.vlan))?;
            Some((network, glance))
        });
        self.services.read_ahead(from.is_none(), seen);
    }

    /// The services' stage, for a frame that `from` sent, or that came from outside; `words` are
    /// what the next ones of its connection may be recognized by.
    pub(super) fn serve(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        (network, from): (Network, Option<EndpointId>),
        frame: Frame,
        words: Option<Words>,
    ) -> Result<Served, Reason> {
        let meta = *pool.meta(&frame);
        let (layout, offload) = (&meta.layout, &meta.offload);
        if is_behind_trunk(from, layout) {
            return Ok(Served::On(frame, false));
        }
        let decision = self.services.decide(now, network, from, pool.bytes(&frame), layout);
        let own = source(pool.bytes(&frame));
        let turned = match &decision {
            Decision::Forward(known) if from.is_some() => {
                self.services.turn_off(known);
                Ok(None)
            }
            Decision::Forward(known) => self.services.turn_on(now, known, pool.bytes(&frame), layout),
            other => self.services.director_of(other),
        };
        let mut director = match turned {
            Ok(director) => director,
            Err(reason) => return dropped(pool, frame, reason),
        };
        let may_return = match decision {
            Decision::Pass => false,
            Decision::Forward(known) | Decision::Back(known) => {
                let is_client = matches!(decision, Decision::Forward(_));
                let bytes = pool.bytes_mut(&frame);
                let may_return = match is_client {
                    true => self.services.forward(now, &known, bytes, layout, offload),
                    false => self.services.back((now, from), &known, bytes, layout, offload),
                };
                self.keep_own(pool, now, from, &frame, own);
                if let Some(words) = words.filter(|_| director.is_none()) {
                    self.services.note(now, &words, &known, is_client, pool.bytes_mut(&frame), layout);
                }
                may_return
            }
            Decision::Choose(key, again) => return self.open(pool, now, (key, again), from, frame),
            Decision::Hold(key) => {
                self.services.hold(now, key, from, pool.bytes(&frame), offload);
                pool.free(frame);
                return Ok(Served::Taken);
            }
            Decision::Held(_) => {
                pool.free(frame);
                return Ok(Served::Taken);
            }
            Decision::Seek(key) => match self.services.seek(now, key, from) {
                Ok(known) => match self.turn_around(now, from, &known, own) {
                    Ok(turned) => {
                        director = turned;
                        self.services.forward(now, &known, pool.bytes_mut(&frame), layout, offload)
                    }
                    Err(reason) => return dropped(pool, frame, reason),
                },
                Err(reason) => return dropped(pool, frame, reason),
            },
            Decision::Hear(known, client_asks) => match self.services.hear(now, &known, client_asks) {
                Some(known) => self.services.back((now, from), &known, pool.bytes_mut(&frame), layout, offload),
                None => return dropped(pool, frame, Reason::ServiceFull),
            },
            Decision::Direct(known) => {
                self.services.speak_directly(now, &known);
                false
            }
            Decision::Retry(known, failure) => {
                return self.retry(pool, now, (&known, failure), (network, from), frame);
            }
            Decision::Deny(known) => {
                self.services.deny(now, &known);
                return dropped(pool, frame, Reason::ServiceRetry);
            }
            Decision::Disown(known) => {
                self.services.speak_directly(now, &known);
                return dropped(pool, frame, Reason::ServiceUnknown);
            }
            Decision::Cut(known, is_client) => return self.cut(pool, now, (network, from), (&known, is_client), frame),
            Decision::Fragment(id) => {
                self.services.fragment(id, pool.bytes_mut(&frame), layout, offload);
                true
            }
            Decision::Error(known, to_backend) => {
                self.services.error(&known, to_backend, pool.bytes_mut(&frame), layout, offload);
                false
            }
            Decision::Refuse(known) => {
                self.services.refuse(now, &known);
                self.services.error(&known, false, pool.bytes_mut(&frame), layout, offload);
                false
            }
            Decision::Answer(answer) => return self.answer(pool, now, from, answer, frame),
            Decision::Check(of) => {
                self.hear_check(pool, now, of, frame);
                return Ok(Served::Taken);
            }
            Decision::Drop(reason) => return dropped(pool, frame, reason),
        };
        if from.is_some() && director.take().is_some() {
            // Who is here pays for itself.
            self.services.set_own_mac(network, pool.bytes_mut(&frame), layout);
        }
        self.keep_own(pool, now, from, &frame, own);
        Ok(Served::to(frame, may_return, director))
    }

    /// Who pays for a client's frame, where both it and its backend are outside.
    #[inline]
    fn turn_around(
        &mut self,
        now: Instant,
        client: Option<EndpointId>,
        known: &Known,
        own: Mac,
    ) -> Result<Option<EndpointId>, Reason> {
        if client.is_some() { Ok(None) } else { self.services.turn_around(now, known, own) }
    }

    /// A frame that goes out again has passed its director's queue from outside, and leaves as one
    /// that this endpoint sends.
    pub(super) fn go_out(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        director: EndpointId,
        frame: Frame,
    ) -> Result<(), Reason> {
        let (bytes, meta) = pool.parts_mut(&frame);
        if !translate::hop(bytes, &meta.layout) {
            return drop_for(pool, frame, Reason::Loop);
        }
        self.services.set_own_mac(self.forward.network(director), bytes, &meta.layout);
        match self.route_out(now, director, Seen::of(pool, &frame)) {
            // As it would from outside.
            Route::Neighbour(to) => {
                self.arrive(pool, now, to, frame);
                Ok(())
            }
            route => self.follow(pool, now, director, route, frame),
        }
    }

    /// The same at once, where no queue of those from outside is passed.
    pub(super) fn turn_now(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        (network, director): (Network, EndpointId),
        frame: Frame,
    ) -> Result<(), Reason> {
        if !self.is_director(network, director) {
            return drop_for(pool, frame, Reason::Unreachable);
        }
        // A SYN that was held is as it came; of others the tag goes behind the queue.
        encap::vlan::pop(pool, &frame);
        self.go_out(pool, now, director, frame)
    }

    /// Whether an endpoint is a director in a network.
    pub(super) fn is_director(&self, network: Network, endpoint: EndpointId) -> bool {
        let found = self.program.endpoints.get(endpoint.0);
        found.is_some_and(|found| found.is_director) && self.forward.network(endpoint) == network
    }

    /// What an endpoint says for a service to somebody outside goes under its own Ethernet address:
    /// agents of other hosts know who it is.
    fn keep_own(&self, pool: &mut Pool, now: Instant, from: Option<EndpointId>, frame: &Frame, own: Mac) {
        if let Some(from) = from
            && self.asker(now, Some(from), pool.bytes(frame), &pool.meta(frame).layout).is_none()
        {
            pool.bytes_mut(frame)[6..12].copy_from_slice(&own.0);
        }
    }

    /// A new connection gets a backend, or is refused.
    fn open(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        (key, again): (Key, Option<Again>),
        from: Option<EndpointId>,
        frame: Frame,
    ) -> Result<Served, Reason> {
        let meta = *pool.meta(&frame);
        let is_tcp = meta.layout.l4 == L4::Tcp;
        match self.services.choose(now, key, from, is_tcp, again) {
            Ok(known) => {
                let director = match self.turn_around(now, from, &known, source(pool.bytes(&frame))) {
                    Ok(director) => director,
                    Err(reason) => return dropped(pool, frame, reason),
                };
                if is_tcp {
                    self.services.keep(&known, pool.bytes(&frame), &meta.layout, &meta.offload);
                }
                let bytes = pool.bytes_mut(&frame);
                let may_return = self.services.forward(now, &known, bytes, &meta.layout, &meta.offload);
                Ok(Served::to(frame, may_return, director))
            }
            Err(Reason::ServiceDown) => self.refuse(pool, now, &key, from, frame),
            Err(reason) => dropped(pool, frame, reason),
        }
    }

    /// No backend takes a new connection.
    fn refuse(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        key: &Key,
        from: Option<EndpointId>,
        frame: Frame,
    ) -> Result<Served, Reason> {
        let is_tcp = pool.meta(&frame).layout.l4 == L4::Tcp;
        match self.services.when_down(key) {
            Some((service, WhenDown::Reset)) => {
                let answer = if is_tcp { Answer::Reset(service) } else { Answer::PortUnreachable(service) };
                self.answer(pool, now, from, answer, frame)
            }
            Some((_, WhenDown::Drop)) | None => dropped(pool, frame, Reason::ServiceDown),
        }
    }

    /// New connections that wait no longer: to a backend that has a place, or refused. Where they
    /// are many, the rest is due when time has gone on, or these have left.
    pub(super) fn release_held(&mut self, pool: &mut Pool, now: Instant) {
        if self.released.0 != now {
            self.released = (now, 0);
        }
        while self.released.1 < MOST_RELEASED
            && let Some(Released { key, from, network, syn, has_place }) = self.services.next_held(now)
        {
            self.released.1 += 1;
            // Where there is no room for it, its client sends it again.
            let Some(frame) = pool.alloc_from(syn.bytes()) else { continue };
            pool.meta_mut(&frame).offload = syn.offload;
            if parse(pool, &frame).is_err() {
                pool.free(frame);
                continue;
            }
            let served = match has_place {
                true => self.open(pool, now, (key, None), from, frame),
                false => self.refuse(pool, now, &key, from, frame),
            };
            let done = match (served, from) {
                (Ok(Served::On(frame, may_return)), Some(from)) => self.go_on(pool, now, from, frame, may_return),
                (Ok(Served::On(frame, _)), None) => self.go_inside(pool, now, network, frame),
                (Ok(Served::Turned(frame, director)), _) => self.turn_now(pool, now, (network, director), frame),
                (Ok(Served::Answer(answer)), from) => {
                    self.send_answer(pool, now, (network, from), answer);
                    Ok(())
                }
                (Ok(Served::Taken), _) => Ok(()),
                (Err(reason), _) => Err(reason),
            };
            match (done, from) {
                (Err(reason), Some(from)) => self.count_drop(from, reason),
                (Err(reason), None) => self.uplink_drops.add(reason, 1),
                (Ok(()), _) => {}
            }
        }
    }

    /// The client of a connection whose backend sends this, where it is here.
    pub(super) fn client(&self, now: Instant, network: Network, known: &Known, bytes: &[u8]) -> Option<EndpointId> {
        if self.services.is_turned(known) {
            return None;
        }
        self.fdb.find(now, network, 0, destination(bytes))
    }

    /// The client that a backend answers, where it is here.
    pub(super) fn asker(
        &self,
        now: Instant,
        from: Option<EndpointId>,
        bytes: &[u8],
        layout: &Layout,
    ) -> Option<EndpointId> {
        let network = self.forward.network(from?);
        self.fdb.find(now, network, layout.vlan.unwrap_or(0), destination(bytes))
    }

    /// Makes a frame the answer to itself. Clients outside get few: their answers wait in no queue.
    fn answer(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        from: Option<EndpointId>,
        answer: Answer,
        frame: Frame,
    ) -> Result<Served, Reason> {
        let service = answer.service();
        let Some(mac) = self.services.mac(service) else { return dropped(pool, frame, Reason::Unknown) };
        if from.is_none() {
            let uplink = self.program.uplink.as_ref().map_or(Rate(0), |uplink| uplink.rate().egress);
            let wire_bytes = u64::from(pool.meta(&frame).wire_bytes);
            if !self.services.may_answer(now, answer, wire_bytes, uplink) {
                return dropped(pool, frame, Reason::ServiceBudget);
            }
        }
        if !answer.write(pool, &frame, mac) {
            return dropped(pool, frame, Reason::Unreachable);
        }
        match parse(pool, &frame) {
            Ok(()) => Ok(Served::Answer(frame)),
            Err(reason) => dropped(pool, frame, reason),
        }
    }

    /// A connection ends: who sends is answered with a reset, and what it sends becomes one.
    #[cold]
    fn cut(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        (network, from): (Network, Option<EndpointId>),
        (known, is_client): (&Known, bool),
        frame: Frame,
    ) -> Result<Served, Reason> {
        let service = self.services.concerned(&Decision::Cut(*known, is_client)).map(|(service, _)| service);
        if let Some((service, copy)) = service.and_then(|service| Some((service, pool.duplicate(&frame)?))) {
            match self.answer(pool, now, from, Answer::Reset(service), copy) {
                Ok(Served::Answer(answer)) => self.send_answer(pool, now, (network, from), answer),
                // Then its next segment is answered.
                Ok(Served::On(other, _) | Served::Turned(other, _)) => pool.free(other),
                Ok(Served::Taken) | Err(_) => {}
            }
        }
        let (meta, own) = (*pool.meta(&frame), source(pool.bytes(&frame)));
        self.services.cut_bytes(known, is_client, pool.bytes_mut(&frame), &meta.layout, &meta.offload);
        self.keep_own(pool, now, from, &frame, own);
        let (may_return, director) =
            (self.services.is_hairpin(known), self.services.director(known).filter(|_| from.is_none()));
        self.services.end(now, known);
        let Some(len) = answer::cut(pool.bytes_mut(&frame), &meta.layout) else {
            return dropped(pool, frame, Reason::ServiceUnknown);
        };
        pool.set_len(&frame, len);
        pool.meta_mut(&frame).offload = Offload::default();
        match parse(pool, &frame) {
            Ok(()) => Ok(Served::to(frame, may_return, director)),
            Err(reason) => dropped(pool, frame, reason),
        }
    }

    /// An answer goes to who asked.
    fn send_answer(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        (network, from): (Network, Option<EndpointId>),
        answer: Frame,
    ) {
        let sent = match from {
            Some(from) => self.send_local(pool, now, from, Out::Endpoint(from), answer),
            None => self.answer_outside(pool, now, network, answer),
        };
        match (sent, from) {
            (Err(reason), Some(from)) => self.count_drop(from, reason),
            (Err(reason), None) => self.uplink_drops.add(reason, 1),
            (Ok(()), _) => {}
        }
    }

    /// A backend answers a check.
    fn hear_check(&mut self, pool: &mut Pool, now: Instant, of: Checked, frame: Frame) {
        let layout = pool.meta(&frame).layout;
        let bytes = pool.bytes(&frame);
        let payload = bytes.get(usize::from(layout.payload_offset)..layout.end as usize).unwrap_or_default();
        let says = self.services.hear_check(now, of, &segment(bytes, &layout), payload);
        pool.free(frame);
        if let Some(probe) = says {
            self.send_probe(pool, now, &probe);
        }
    }

    /// Counts a frame of an endpoint whose connection virtual congestion control does not know.
    /// What a backend says to a check is of none: the check has gone past that stage.
    #[cold]
    #[inline(never)]
    pub(super) fn leave_unknown(&mut self, pool: &Pool, from: EndpointId, frame: &Frame) {
        let (network, layout) = (self.forward.network(from), &pool.meta(frame).layout);
        if !self.services.is_of_check(network, from, pool.bytes(frame), layout) {
            self.vcc.leave_unknown(from);
        }
    }

    /// Begins the checks of backends that are due.
    pub(super) fn check_backends(&mut self, pool: &mut Pool, now: Instant) {
        while let Some(probe) = self.services.next_check(now) {
            if !self.send_probe(pool, now, &probe) {
                self.services.skip_check(probe.of);
            }
        }
    }

    /// A frame of a check passes the queue of its backend, whose turns it is charged to: how full
    /// that is says nothing of the backend's health. False where there is no room for it.
    fn send_probe(&mut self, pool: &mut Pool, now: Instant, probe: &Probe) -> bool {
        let service = self.program.services.get(probe.of.service.0);
        let Some(tenant) = service.map(|service| service.tenant) else { return false };
        let Some(attachment) = self.program.tenants.get(tenant.0).map(|tenant| tenant.attachment) else { return false };
        let build = match (probe.endpoint, attachment) {
            (None, Attachment::Vlan(id)) => probe.build().vlan(id),
            _ => probe.build(),
        };
        let Some(frame) = build.frame(pool) else { return false };
        if parse(pool, &frame).is_err() {
            pool.free(frame);
            return false;
        }
        match probe.endpoint {
            Some(to) => self.deliver_local(pool, to, to, frame),
            None => return self.answer_outside(pool, now, network_of(tenant, attachment), frame).is_ok(),
        }
        true
    }

    /// Says outside where a service is, by an ARP announcement (RFC 5227, section 3) or an
    /// unsolicited neighbour advertisement (RFC 4861, section 7.2.6) for each of its addresses:
    /// switches there learn its Ethernet address from nothing that its backends send. Nothing is
    /// said into tunnels.
    pub fn announce_service(&mut self, pool: &mut Pool, now: Instant, id: ServiceId) {
        let Some(service) = self.program.services.get(id.0) else { return };
        let Some(tenant) = self.program.tenants.get(service.tenant.0) else { return };
        let (network, mac) = (network_of(service.tenant, tenant.attachment), service.mac);
        let vlan = match self.forward.outside(network) {
            Some(Outside::Vlan(vlan)) => Some(vlan),
            Some(Outside::Untagged) => None,
            Some(Outside::Tunnels) | None => return,
        };
        let mut ips: Vec<IpAddr> = service.addresses.iter().map(|address| address.ip).collect();
        ips.sort_unstable();
        ips.dedup();
        for ip in ips.into_iter().take(MOST_ANNOUNCED) {
            let build = match ip {
                IpAddr::V4(ip) => build::arp_request(mac, ip, ip),
                IpAddr::V6(ip) => build::unsolicited_advertisement(mac, ip),
            };
            let build = vlan.into_iter().fold(build, |build, vlan| build.vlan(vlan));
            let Some(frame) = build.frame(pool) else { return };
            match parse(pool, &frame) {
                // What cannot leave is said again.
                Ok(()) => drop(self.answer_outside(pool, now, network, frame)),
                Err(_) => pool.free(frame),
            }
        }
    }

    /// An answer to somebody outside leaves by the uplink, with the tag that its question had, or
    /// through the tunnel that it came from. It waits in no lane; the link is paid for it.
    pub(super) fn answer_outside(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        network: Network,
        frame: Frame,
    ) -> Result<(), Reason> {
        let Some(port) = self.program.uplink.as_ref().map(Uplink::port) else {
            return drop_for(pool, frame, Reason::Unreachable);
        };
        if self.out.len() >= OUT {
            return drop_for(pool, frame, Reason::NoBuffer);
        }
        if self.bond.as_ref().is_some_and(|bond| bond.room_at().is_none()) {
            // It cannot wait where its owner's share is: it has none.
            return drop_for(pool, frame, Reason::MemberFull);
        }
        if self.forward.outside(network) == Some(Outside::Tunnels) {
            return self.answer_tunnel(pool, now, port, tenant_of(network), frame);
        }
        let meta = pool.meta_mut(&frame);
        meta.set_out(Out::Payer(port));
        self.egress.occupy(now, meta.wire_bytes);
        if self.bond.is_some() {
            return self.send_own(pool, now, frame);
        }
        self.out.push_back((port, frame));
        Ok(())
    }

    pub(super) fn change_service(
        &mut self,
        now: Instant,
        id: ServiceId,
        service: Option<Service>,
    ) -> Result<(), ChangeError> {
        if id.0 >= Slots::<()>::MOST {
            return Err(ChangeError::NoSuchSlot(id.0));
        }
        let before = self.program.services.get(id.0);
        let Some(service) = service else {
            before.ok_or(ChangeError::Vacant(id.0))?;
            self.services.set(now, id, Network::UNTAGGED, None);
            self.program.services.set(id.0, None);
            return Ok(());
        };
        let tenant = self.program.tenants.get(service.tenant.0).ok_or(ChangeError::UnknownTenant(service.tenant))?;
        if before.is_some_and(|before| before.tenant != service.tenant) {
            return Err(ChangeError::TenantInUse(service.tenant));
        }
        let network = network_of(service.tenant, tenant.attachment);
        self.services.check(id, network, &service)?;
        self.services.set(now, id, network, Some(service.clone()));
        self.program.services.set(id.0, Some(service));
        Ok(())
    }

    /// Whether connections of what was removed are yet to be forgotten, or a table of connections
    /// becomes longer: then the shell calls [`Switch::sweep`] in turns of its own.
    #[must_use]
    pub fn is_sweeping(&self) -> bool {
        self.services.is_sweeping() || self.is_growing
    }

    /// Forgets some of them, or makes a part of what tables become longer by. How many places were
    /// visited: at most [`crate::service::SWEPT_PLACES`].
    pub fn sweep(&mut self) -> u32 {
        let visited = self.services.sweep();
        if visited > 0 || !self.is_growing { visited } else { self.grow_tables() }
    }

    /// Makes a part of what the tables of connections become longer by.
    pub(super) fn grow_tables(&mut self) -> u32 {
        let made = match self.services.go_on() {
            0 => self.vcc.go_on(),
            made => made,
        };
        self.note_growth();
        made
    }

    /// To be said after each change, and when a table has grown.
    pub(super) fn note_growth(&mut self) {
        self.is_growing = self.services.are_growing() || self.vcc.is_growing();
    }

    /// What tables do not need any more since they grew: to be dropped by who has time.
    pub fn take_left(&mut self) -> Option<Left> {
        self.services.take_left().or_else(|| self.vcc.take_left())
    }

    /// The key that connections' candidates are drawn by, which is to be the same after a restart:
    /// to be said before the first frame.
    pub fn set_service_key(&mut self, key: u64) {
        self.services.set_key(key);
    }

    /// Connections to services may be open that this switch does not know: those of a switch that
    /// ended without handover.
    pub fn recover_services(&mut self, now: Instant) {
        self.services.recover(now);
    }

    /// What is counted of a service; `None` where there is none.
    #[must_use]
    pub fn service_stats(&self, service: ServiceId) -> Option<ServiceStats> {
        self.services.stats(service)
    }

    /// Its backends: the number that connections know each by, where it is, and what is counted.
    pub fn service_backends(
        &self,
        service: ServiceId,
    ) -> impl Iterator<Item = (usize, &crate::service::Backend, BackendStats)> {
        self.services.backends(service)
    }

    /// Those of its connections that are at these places of the table.
    pub fn service_connections(
        &self,
        now: Instant,
        service: ServiceId,
        places: Range<u32>,
    ) -> impl Iterator<Item = Shown> {
        self.services.connections(now, service, places)
    }

    /// Connections to services are at places below this.
    #[must_use]
    pub fn connection_places(&self) -> u32 {
        self.services.places()
    }

    /// Connections to services, of all tenants, and how many there may be.
    #[must_use]
    pub fn connections(&self) -> (u32, u32) {
        self.services.table()
    }

    /// A server reports its load, times [`crate::service::choose::LOAD_ONE`]; `backend` is its
    /// number.
    pub fn report_load(&mut self, now: Instant, service: ServiceId, backend: usize, load: u64) {
        self.services.report(now, service, backend, load);
    }
}

/// The layout of a frame as an endpoint would send it, where one is its sender.
pub(super) fn untagged_for(sender: Option<EndpointId>, layout: &Layout) -> Layout {
    Layout { vlan: layout.vlan.filter(|_| sender.is_none()), ..*layout }
}

/// What has a tag from inside is another network's.
pub(super) fn is_behind_trunk(from: Option<EndpointId>, layout: &Layout) -> bool {
    from.is_some() && layout.vlan.is_some()
}

fn dropped(pool: &mut Pool, frame: Frame, reason: Reason) -> Result<Served, Reason> {
    pool.free(frame);
    Err(reason)
}
