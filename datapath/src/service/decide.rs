//! What is to be done with a frame: a reply to be translated back, a connection that is known or
//! new, a question to be answered.

use super::answer::Answer;
use super::check::Checked;
use super::entry::{Entry, Key, Segment, State};
use super::fragments::FragmentKey;
use super::inner::Quoted;
use super::retry::{Again, Failure};
use super::running::Running;
use super::{OnFailure, Role, Services, octets};
use crate::ids::EndpointId;
use crate::network::Network;
use crate::table::Id;
use crate::units::Instant;
use crate::verdict::Reason;
use crate::wire::{Arp, Icmp, L3, L4, Layout, Tcp, be16, icmpv6, ipv4, ipv6, protocol, source, tcp_flags};
use std::net::{IpAddr, Ipv4Addr};

/// What is to be done with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Nothing: no service is concerned.
    Pass,
    /// A connection that is known, to its backend.
    Forward(Known),
    /// A new one: a backend is to be chosen.
    Choose(Key, Option<Again>),
    /// A new one that waits, as all backends have as many as they may have.
    Hold(Key),
    /// The SYN of one that waits, again.
    Held(Key),
    /// A segment of a connection that is not known: a candidate is asked.
    Seek(Key),
    /// What a backend answers, to the client.
    Back(Known),
    /// The same, of a connection that is not known; `true`: its client asks for it too.
    Hear(Known, bool),
    /// A backend and who opened a connection to it speak without the service.
    Direct(Known),
    /// A backend's reset or ICMP error in answer to a SYN: another backend gets the SYN in its
    /// place.
    Retry(Known, Failure),
    /// A backend's ICMP error in answer to a SYN that nobody else can have: to the client, and the
    /// connection is over.
    Refuse(Known),
    /// A backend's reset, as it does not know a connection: another is asked.
    Deny(Known),
    /// A client's reset, as it does not know a connection that its backend was heard of.
    Disown(Known),
    /// Of a connection whose backend was drained, or is down, and is let go: both sides get a
    /// reset. It is from the client (`true`), or from the backend.
    Cut(Known, bool),
    /// A later fragment of a packet whose first one was translated.
    Fragment(Id),
    /// An ICMP error about what was translated, to the backend (`true`) or to the client.
    Error(Known, bool),
    /// To be answered at once.
    Answer(Answer),
    /// A backend's answer to a check of the switch.
    Check(Checked),
    /// To be dropped.
    Drop(Reason),
}

/// A connection that is in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// Its entry.
    pub id: Id,
    /// Whose entry.
    pub key: Key,
    /// The backend.
    pub backend: u8,
    /// Whether this follows from one address alone: whatever else is opened, the next such frame is
    /// this connection's too.
    pub is_plain: bool,
}

impl Known {
    /// A connection that is not in the table.
    #[must_use]
    pub const fn new(key: Key, backend: u8) -> Known {
        Known { id: Id(u32::MAX), key, backend, is_plain: false }
    }
}

impl Services {
    /// What is to be done with a frame that `from` sent, or that came from outside. Changes
    /// nothing.
    #[must_use]
    pub fn decide(
        &self,
        now: Instant,
        network: Network,
        from: Option<EndpointId>,
        bytes: &[u8],
        layout: &Layout,
    ) -> Decision {
        let spoofed = |of_endpoint: Reason| Decision::Drop(if from.is_some() { of_endpoint } else { Reason::Loop });
        // What endpoints send has been guarded; nobody outside has a service's address either.
        if from.is_none() && self.fronts.has_mac(network, source(bytes)) {
            return Decision::Drop(Reason::Loop);
        }
        match layout.l3 {
            L3::Arp => self.decide_arp(network, bytes, layout, spoofed),
            L3::Ipv4 | L3::Ipv6 => {
                let Some((source, destination)) = ends(bytes, layout) else { return Decision::Pass };
                let [to, by] = [destination, source].map(|ip| self.fronts.role(network, ip));
                if to.is_none() && by.is_none() && !matches!(layout.l4, L4::Icmp | L4::Icmpv6) {
                    return Decision::Pass;
                }
                if by.is_some_and(|role| role.mac.is_some()) {
                    return spoofed(if layout.l3 == L3::Ipv4 { Reason::SpoofedIpv4 } else { Reason::SpoofedIpv6 });
                }
                self.decide_ip((now, network, from), (by, to), (source, destination), bytes, layout, spoofed)
            }
            L3::Other => Decision::Pass,
        }
    }

    fn decide_arp(
        &self,
        network: Network,
        bytes: &[u8],
        layout: &Layout,
        spoofed: impl Fn(Reason) -> Decision,
    ) -> Decision {
        let Some(arp) = Arp::of(bytes, layout) else { return Decision::Pass };
        let mac = |ip: Ipv4Addr| self.fronts.role(network, ip.into())?.mac;
        if mac(arp.sender_ip()).is_some() {
            return spoofed(Reason::SpoofedArp);
        }
        match mac(arp.target_ip()) {
            Some((mac, service)) if arp.operation() == Arp::REQUEST => Decision::Answer(Answer::Arp(mac, service)),
            Some(_) => spoofed(Reason::SpoofedArp),
            None => Decision::Pass,
        }
    }

    fn decide_ip(
        &self,
        (now, network, from): (Instant, Network, Option<EndpointId>),
        (by, to): (Option<&Role>, Option<&Role>),
        (source, destination): (IpAddr, IpAddr),
        bytes: &[u8],
        layout: &Layout,
        spoofed: impl Fn(Reason) -> Decision,
    ) -> Decision {
        let outside = from.is_none();
        if layout.later_fragment {
            if to.is_none_or(|role| role.mac.is_none()) && by.is_none() {
                return Decision::Pass;
            }
            let found = self.fragments.find(&FragmentKey::of(network, (source, destination), bytes, layout));
            return match found {
                Some(id) => Decision::Fragment(id),
                None if to.is_some_and(|role| role.mac.is_some()) => Decision::Drop(Reason::NoFirstFragment),
                None => Decision::Pass,
            };
        }
        match layout.l4 {
            L4::Tcp | L4::Udp => {
                let number = if layout.l4 == L4::Tcp { protocol::TCP } else { protocol::UDP };
                let at = usize::from(layout.l4_offset);
                let (from_port, to_port) = (be16(bytes, at), be16(bytes, at + 2));
                if by.is_some()
                    && let Some(known) = self.turned(network, number, (source, from_port), (destination, to_port))
                {
                    return self.decide_back(now, from, known, bytes, layout);
                }
                if let Some(by) = by {
                    let client = if to.is_some_and(|role| role.mac.is_some()) { source } else { destination };
                    let is_answer = || layout.l4 == L4::Tcp && segment(bytes, layout).answers();
                    let found = self.answered(by, (number, from_port), (client, to_port), is_answer);
                    if let Some(mut known) = found {
                        known.is_plain = to.is_none() && by.targets(number, from_port).nth(1).is_none();
                        return self.decide_back(now, from, known, bytes, layout);
                    }
                    let is_tcp = layout.l4 == L4::Tcp && by.is_backend();
                    if is_tcp
                        && to.is_some_and(|role| role.mac.is_some())
                        && let Some(check) = self.decide_check((by, from_port, from), (destination, to_port), layout)
                    {
                        return check;
                    }
                    // Nobody outside has a connection with itself.
                    if is_tcp && !(outside && to.is_some_and(|role| role.mac.is_some())) {
                        let (at, client) = ((by, number, from_port), (client, to_port));
                        if let Some(decision) = self.decide_heard(now, at, client, (bytes, layout)) {
                            return decision;
                        }
                    }
                }
                if let Some(role) = to.filter(|role| layout.l4 == L4::Tcp && role.is_backend())
                    && let Some(decision) =
                        self.decide_direct(now, (role, to_port), (source, from_port), (bytes, layout))
                {
                    return decision;
                }
                let Some(to) = to.filter(|role| role.mac.is_some()) else { return Decision::Pass };
                let Some(front) = to.front(number, to_port) else {
                    let is_lost = outside && self.is_lost(now, by, (number, from_port), to_port);
                    return if is_lost { Decision::Drop(Reason::ServiceUnknown) } else { self.closed_port(to, layout) };
                };
                let key = Key { client: octets(source), port: from_port, front };
                self.decide_front((now, from), (key, by.is_none()), bytes, layout)
            }
            L4::Icmp | L4::Icmpv6 => self.decide_icmp((now, network, from), to, bytes, layout, spoofed),
            L4::Other if to.is_some_and(|role| role.mac.is_some()) => Decision::Drop(Reason::Unreachable),
            L4::Other => Decision::Pass,
        }
    }

    fn decide_front(
        &self,
        (now, from): (Instant, Option<EndpointId>),
        (key, is_plain): (Key, bool),
        bytes: &[u8],
        layout: &Layout,
    ) -> Decision {
        let known = self.find(&key).map(|(id, entry)| (Known { id, key, backend: entry.backend, is_plain }, entry));
        let is_let_go = known.is_some_and(|(known, _)| self.is_let_go(now, &known));
        if layout.l4 == L4::Udp {
            let known = known.filter(|(known, entry)| !is_let_go && !self.is_left(now, known, entry, from.is_none()));
            return known.map_or(Decision::Choose(key, None), |(known, _)| Decision::Forward(known));
        }
        let segment = segment(bytes, layout);
        match known {
            Some(_) if segment.opens() && is_let_go => self.decide_open(now, key, from, bytes.len()),
            Some((known, entry)) if is_let_go && !segment.resets() => self.decide_cut(known, entry, true),
            Some((_, entry)) if segment.opens() && entry.is_replaced() => self.decide_open(now, key, from, bytes.len()),
            Some((known, entry)) if entry.is_heard() && segment.resets() => Decision::Disown(known),
            Some((known, entry)) if segment.opens() => {
                self.decide_silent(now, &known, entry, from.is_none()).unwrap_or(Decision::Forward(known))
            }
            Some((known, entry)) if entry.state != State::Direct => Decision::Forward(known),
            None if segment.opens() => self.decide_open(now, key, from, bytes.len()),
            _ => self.decide_seek(key, &segment),
        }
    }

    /// What a backend says of a connection that is known.
    fn decide_back(
        &self,
        now: Instant,
        from: Option<EndpointId>,
        known: Known,
        bytes: &[u8],
        layout: &Layout,
    ) -> Decision {
        if let Some(reset) = Tcp::of(bytes, layout).filter(|tcp| tcp.flags() & tcp_flags::RST != 0)
            && let Some(entry) = self.connections.get(known.id)
        {
            if self.decide_denied(&known, entry) {
                return Decision::Deny(known);
            }
            if self.is_its_own(&known, from) && self.decide_refused(now, (&known, entry), reset) {
                return Decision::Retry(known, Failure::Refused);
            }
            return Decision::Back(known);
        }
        match self.connections.get(known.id) {
            Some(entry) if layout.l4 == L4::Tcp && self.is_let_go(now, &known) => self.decide_cut(known, entry, false),
            _ => Decision::Back(known),
        }
    }

    /// Whether the backend of a connection was drained, and its time for that is over; or it is
    /// down, where that ends connections.
    fn is_let_go(&self, now: Instant, known: &Known) -> bool {
        let Some((running, _)) = self.running(known.key.front) else { return false };
        let Some(server) = running.servers.get(usize::from(known.backend)) else { return false };
        let is_lost = running.service.on_failure == OnFailure::Reset && server.is_down();
        is_lost || server.drained_at().is_some_and(|at| at <= now)
    }

    /// Whether a flow of datagrams is better off with another backend: its own was found down, has
    /// said nothing of it since, and is not well yet. Who sends datagrams does not connect again.
    fn is_left(&self, now: Instant, known: &Known, entry: &Entry, is_outside: bool) -> bool {
        let is_well =
            |running: &Running| running.servers.get(usize::from(known.backend)).is_some_and(|s| s.is_well(now));
        entry.is_silent()
            && self.running(known.key.front).is_some_and(|(running, _)| !is_well(running))
            && self.has_other(now, known, is_outside)
    }

    /// A segment of a connection that is to end. Who goes on after that is told so again.
    fn decide_cut(&self, known: Known, entry: &Entry, is_client: bool) -> Decision {
        let service = self.running(known.key.front).map(|(_, front)| front.service);
        match (entry.state, service) {
            (State::Closed | State::Sought, Some(service)) => Decision::Answer(Answer::Reset(service)),
            _ => Decision::Cut(known, is_client),
        }
    }

    /// To a port of a service's address at which no service is.
    fn closed_port(&self, role: &Role, layout: &Layout) -> Decision {
        match role.mac {
            Some((_, service)) if layout.l4 == L4::Tcp => Decision::Answer(Answer::Reset(service)),
            Some((_, service)) => Decision::Answer(Answer::PortUnreachable(service)),
            None => Decision::Pass,
        }
    }

    fn decide_icmp(
        &self,
        (now, network, from): (Instant, Network, Option<EndpointId>),
        to: Option<&Role>,
        bytes: &[u8],
        layout: &Layout,
        spoofed: impl Fn(Reason) -> Decision,
    ) -> Decision {
        let Some(icmp) = Icmp::of(bytes, layout) else { return Decision::Pass };
        if layout.l4 == L4::Icmpv6
            && let icmpv6::NEIGHBOUR_SOLICITATION | icmpv6::NEIGHBOUR_ADVERTISEMENT = icmp.kind()
        {
            let target = icmp.nd_target().and_then(|ip| self.fronts.role(network, ip.into())?.mac);
            return match target {
                Some((mac, service)) if icmp.kind() == icmpv6::NEIGHBOUR_SOLICITATION => {
                    Decision::Answer(Answer::Neighbour(mac, service))
                }
                Some(_) => spoofed(Reason::SpoofedNd),
                None => Decision::Pass,
            };
        }
        if let Some(quoted) = Quoted::of(bytes, layout) {
            return self.decide_error((now, network, from), to, &quoted);
        }
        let Some((_, service)) = to.and_then(|role| role.mac) else { return Decision::Pass };
        let echo = if layout.l4 == L4::Icmp { 8 } else { 128 };
        let pings = self.all.get(service.0).is_some_and(|running| running.service.ping && running.takes_any(now));
        match icmp.kind() == echo && pings && !layout.fragment {
            true => Decision::Answer(Answer::Echo(service)),
            false => Decision::Drop(Reason::Unreachable),
        }
    }

    /// An error from a client's side quotes what the service had sent to it; one from a backend's
    /// side, be it of the backend or of a router before it, what the backend was to get from a
    /// client.
    fn decide_error(
        &self,
        (now, network, from): (Instant, Network, Option<EndpointId>),
        to: Option<&Role>,
        quoted: &Quoted,
    ) -> Decision {
        if let Some(to) = to.filter(|role| role.mac.is_some()) {
            let (number, (_, port)) = (quoted.protocol, quoted.source);
            if let Some(known) = self.turned(network, number, quoted.destination, quoted.source) {
                return self.decide_unreachable((now, from), known, quoted);
            }
            let known = to.front(number, port).and_then(|front| {
                let (client, port) = quoted.destination;
                let key = Key { client: octets(client), port, front };
                let (id, entry) = self.find(&key)?;
                Some(Known { id, key, backend: entry.backend, is_plain: false })
            });
            return known.map_or(Decision::Drop(Reason::ServiceUnknown), |known| Decision::Error(known, true));
        }
        let (ip, port) = quoted.destination;
        let backend = self.fronts.role(network, ip);
        match backend.and_then(|role| self.answered(role, (quoted.protocol, port), quoted.source, || false)) {
            Some(known) => self.decide_unreachable((now, from), known, quoted),
            None => Decision::Pass,
        }
    }
}

/// The addresses of an IP packet.
pub(super) fn ends(bytes: &[u8], layout: &Layout) -> Option<(IpAddr, IpAddr)> {
    match layout.l3 {
        L3::Ipv4 => ipv4::Ipv4::of(bytes, layout).map(|ip| (ip.source().into(), ip.destination().into())),
        L3::Ipv6 => ipv6::Ipv6::of(bytes, layout).map(|ip| (ip.source().into(), ip.destination().into())),
        L3::Arp | L3::Other => None,
    }
}

/// What a frame of TCP says.
pub(crate) fn segment(bytes: &[u8], layout: &Layout) -> Segment {
    Tcp::of(bytes, layout).map_or_else(Segment::default, |tcp| Segment {
        flags: tcp.flags(),
        sequence: tcp.sequence(),
        ack: tcp.acknowledgement(),
        len: layout.end.saturating_sub(u32::from(layout.payload_offset)),
    })
}
