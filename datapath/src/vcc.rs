//! Virtual congestion control: the switch speaks ECN for guests whose TCP does not, and lowers the
//! window that they are told, so that they share queues with ECN and DCTCP traffic as equals.
//!
//! The guest's TCP is not changed. Toward the network its connections are those of RFC 3168 or of
//! AccECN (RFC 9768), whose flags and codepoints the switch sets and removes; marks that arrive are
//! counted, told to the peer, and hidden from the guest. What the peer reports moves a window
//! ([`control`]), which is told to the guest as the receiver's ([`window`]). Each switch speaks for
//! its own guest in the standards' own fields, so it need not know what is at the other end.
//!
//! Literature: Cronkite-Ratcliff et al. (vCC) and He et al. (AC/DC TCP), both SIGCOMM 2016; RFC
//! 3168, RFC 8257 (DCTCP), RFC 8311, RFC 9293, RFC 9768.
//!
//! [`Vcc::send`] is called for a frame that a guest sends, behind the guard and before services
//! translate it: a connection is known by the addresses that its guest sees. [`Vcc::receive`] is
//! called for one that is about to be delivered, behind services and the queues, which may have
//! marked it. Both are called between neighbours too, whether or not a limit makes a queue there:
//! limits come and go, and how a connection is treated does not. Nothing here is called where an
//! endpoint's mode is `off`.

use crate::frame::{self, Frame, Pool};
use crate::ids::{EndpointId, TenantId};
use crate::table::{Id, Left};
use crate::units::{Direction, Instant};
use crate::verdict::Reason;
use crate::wire::{FlowKey, Ipv4, L3, L4, Layout, ipv6, protocol, tcp_flags};
use connection::{Connection, Kind, Treatment, Why, bit};
use connections::{Class, Connections, Key, NoRoom};
use hold::Holds;
use segment::{Edit, Segment, options_in, options_of};
use siblings::Siblings;
use successor::Opening;
use usual::{Both, Both4, Both6};

pub mod connection;
pub mod connections;
pub mod control;
mod counters;
pub mod early;
pub mod handshake;
mod hold;
mod open;
pub mod option;
mod police;
pub mod saved;
pub mod segment;
mod settings;
mod siblings;
mod successor;
mod syn;
mod told;
mod usual;
mod watch;
pub mod window;

pub use counters::Counters;
pub use settings::{Mode, Policy, Settings};
pub use told::Told;

#[cfg(test)]
mod tests;

/// Connections of a switch where nothing is said.
pub const DEFAULT_FLOWS: u32 = 65_536;
/// Connections of a switch at least: each endpoint is to have some.
pub const LEAST_FLOWS: u32 = 1024;
/// Connections of a switch at most: 800 MB.
pub const MOST_FLOWS: u32 = 1 << 22;

/// See the module.
#[derive(Debug)]
pub struct Vcc {
    connections: Connections,
    /// Connections that are kept at most.
    flows: u32,
    /// See [`Policy::rescales`].
    rescales: bool,
    /// By endpoint: whose it is, and what is done for it.
    endpoints: Vec<VccEndpoint>,
    /// Where an endpoint wants it: acknowledgements that wait.
    holds: Option<Box<Holds>>,
    /// While a switch takes over: connections that it has before the rest.
    early: Option<Box<early::Early>>,
}

/// What is kept for an endpoint.
#[derive(Clone, Debug)]
struct VccEndpoint {
    owner: Owner,
    policy: Policy,
    /// Whether anything is done: also with the mode `off` while there are connections that are not
    /// to be left alone ([`Connection::is_between`]).
    is_in: bool,
    /// The policy asks for nothing that [`usual`] does not do: for what the guest sends, and for
    /// what it is to have.
    is_usual: [bool; 2],
    /// What is tried first with the next frame that the guest sends, and with the next for it: what
    /// the last one was.
    ways: [TryUsual; 2],
    /// The connection of its last frame that was as most are.
    last: Id,
    /// Whose part of the frame memory has what waits.
    memory: frame::Owner,
    /// Where it is policed: how far its connections are slowed.
    siblings: Option<Box<Siblings>>,
    /// Where anything is done, or was: most endpoints have none.
    counters: Option<Box<Counters>>,
}

impl VccEndpoint {
    /// Whether anything is done.
    #[inline]
    fn is_in(&self) -> bool {
        self.is_in
    }

    fn set(&mut self, settings: Settings, rescales: bool) {
        self.policy = settings.policy(rescales);
        self.is_in = settings.mode != Mode::Off;
        self.siblings = self.policy.polices.then(|| self.siblings.take().unwrap_or_default());
        self.is_usual = usual::of(&self.policy);
        self.ways = [none; 2];
    }

    /// A frame in this direction is of this connection. The next one may be, too, where the frame
    /// before was; of many by turns none is.
    #[inline(always)]
    fn saw<B: Both>(&mut self, id: Id, direction: Direction) {
        let is_again = id == self.last;
        self.last = id;
        self.ways[direction as usize] = match direction {
            _ if !self.is_usual[direction as usize] => none,
            Direction::Egress if is_again => send_as_last::<B>,
            Direction::Egress => send_as_guessed::<B>,
            Direction::Ingress if is_again => receive_as_last::<B>,
            Direction::Ingress => none,
        };
    }

    /// It was not as most are, and so may the next one be.
    fn saw_other(&mut self, direction: Direction) {
        self.ways[direction as usize] = none;
    }
}

impl Vcc {
    /// Without connections, and without room for any.
    #[must_use]
    pub fn new(seed: u64) -> Vcc {
        let connections = Connections::new(seed, 0);
        Vcc { connections, flows: DEFAULT_FLOWS, rescales: false, endpoints: Vec::new(), holds: None, early: None }
    }

    /// How many connections are kept at most. Those beyond stay until they end; where none are
    /// kept yet, memory is taken when some are to be.
    pub fn set_flows(&mut self, flows: u32) {
        self.flows = flows.min(MOST_FLOWS);
        if self.connections.has_room_for_any() {
            self.connections.grow_to(self.flows, self.endpoints.len(), 0);
        }
    }

    /// Whether the table becomes longer: then [`Vcc::go_on`] is to be called.
    #[must_use]
    pub fn is_growing(&self) -> bool {
        self.connections.is_growing()
    }

    /// Makes a part of what the table becomes longer by; see [`crate::table::Table::go_on`].
    pub fn go_on(&mut self) -> u32 {
        self.connections.go_on()
    }

    /// What the table does not need any more since it grew.
    pub fn take_left(&mut self) -> Option<Left> {
        self.connections.take_left()
    }

    /// Whether guests of connections that open from now on are told a finer window scale than a
    /// coarse one.
    pub fn set_rescales(&mut self, rescales: bool) {
        self.rescales = rescales;
        for VccEndpoint { policy, .. } in &mut self.endpoints {
            policy.rescales = rescales && policy.mode.is_ours();
        }
    }

    /// Makes room for endpoints 0..`endpoints`.
    pub fn reserve(&mut self, endpoints: usize) {
        self.endpoints.reserve(endpoints.saturating_sub(self.endpoints.len()));
    }

    /// What is done for an endpoint from now on. Connections that are open go on as they began,
    /// until it is nothing; with it they are forgotten, and their guests go on by themselves, but
    /// for those who would not understand their peers: these go on without ECN.
    pub fn set(&mut self, owner: Owner, settings: Settings) {
        let at = owner.endpoint.0 as usize;
        if self.endpoints.len() <= at {
            let nobody = |endpoint: usize| VccEndpoint {
                owner: Owner { tenant: TenantId(0), endpoint: EndpointId(endpoint as u32) },
                policy: Settings::default().policy(false),
                is_in: false,
                is_usual: [false; 2],
                ways: [none; 2],
                last: Id(0),
                memory: frame::Owner::NOBODY,
                siblings: None,
                counters: None,
            };
            let next = self.endpoints.len();
            self.endpoints.extend((next..=at).map(nobody));
        }
        if settings.mode == Mode::Off {
            self.connections.silence(owner.tenant, owner.endpoint);
        } else {
            self.make_room(owner);
        }
        if settings.holds {
            self.holds.get_or_insert_with(|| Box::new(Holds::new())).expect(owner);
        }
        let is_needed = self.connections.of_endpoint(owner.endpoint) > 0;
        let place = &mut self.endpoints[at];
        place.owner = owner;
        place.set(settings, self.rescales);
        place.is_in |= is_needed;
        if settings.mode != Mode::Off && place.counters.is_none() {
            place.counters = Some(Box::default());
        }
    }

    /// Takes the memory of connections, where an endpoint is the first that has any.
    fn make_room(&mut self, Owner { tenant, endpoint }: Owner) {
        self.connections.grow_to(self.flows, endpoint.0 as usize + 1, tenant.0 as usize + 1);
    }

    /// Nothing is done with a frame of no connection, or one that begins one, where the mode is
    /// `off`; and soon with none of the endpoint's, if it has no connections left.
    #[cold]
    fn pass_off(&mut self, now: Instant, owner: Owner) {
        self.connections.age(now, owner);
        let is_needed = self.connections.of_endpoint(owner.endpoint) > 0;
        if let Some(place) = self.endpoints.get_mut(owner.endpoint.0 as usize) {
            place.is_in = is_needed;
        }
    }

    /// Whether frames of an endpoint are to be shown here.
    #[must_use]
    #[inline]
    pub fn concerns(&self, endpoint: EndpointId) -> bool {
        self.endpoints.get(endpoint.0 as usize).is_some_and(VccEndpoint::is_in)
    }

    fn call(&self, now: Instant, endpoint: EndpointId) -> Option<Call> {
        let place = self.endpoints.get(endpoint.0 as usize).filter(|place| place.is_in())?;
        Some(Call { now, owner: place.owner, policy: place.policy })
    }

    fn counters_mut(&mut self, endpoint: EndpointId) -> Option<&mut Counters> {
        self.endpoints.get_mut(endpoint.0 as usize)?.counters.as_deref_mut()
    }

    /// The connections.
    #[must_use]
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// What is done for an endpoint.
    #[must_use]
    pub fn mode(&self, endpoint: EndpointId) -> Mode {
        self.endpoints.get(endpoint.0 as usize).map_or(Mode::Off, |place| place.policy.mode)
    }

    /// What was counted for an endpoint.
    #[must_use]
    pub fn counters(&self, endpoint: EndpointId) -> Option<&Counters> {
        self.endpoints.get(endpoint.0 as usize)?.counters.as_deref()
    }

    /// Counters go on where others were, as far as anything is done for the endpoint.
    pub fn count_on(&mut self, endpoint: EndpointId, before: &Counters) {
        if let Some(counters) = self.counters_mut(endpoint) {
            counters.count_on(before);
        }
    }

    /// An endpoint goes; how many frames for it were freed.
    pub fn remove(&mut self, pool: &mut Pool, endpoint: EndpointId) -> u32 {
        if let Some(place) = self.endpoints.get_mut(endpoint.0 as usize) {
            place.set(Settings::default(), false);
            place.counters = None;
            self.connections.clear(place.owner.tenant, endpoint);
        }
        self.holds.as_mut().map_or(0, |holds| holds.clear_endpoint(pool, endpoint))
    }

    /// What of an endpoint's waits is charged to this part of the frame memory.
    pub fn set_owner(&mut self, pool: &mut Pool, endpoint: EndpointId, memory: frame::Owner) {
        if let Some(place) = self.endpoints.get_mut(endpoint.0 as usize) {
            place.memory = memory;
        }
        if let Some(holds) = &mut self.holds {
            holds.set_owner(pool, endpoint, memory);
        }
    }

    /// The next acknowledgement that has waited for long enough, and whom it is for.
    #[inline]
    pub fn dequeue(&mut self, pool: &mut Pool, now: Instant) -> Option<(EndpointId, Frame)> {
        let (endpoint, id, place, frame) = self.holds.as_mut()?.due(pool, now)?;
        if let Some(connection) = self.connections.get_mut(id).filter(|connection| connection.held == place) {
            connection.held = hold::NONE;
        }
        Some((endpoint, frame))
    }

    /// When [`Vcc::dequeue`] will have one.
    #[must_use]
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.holds.as_ref()?.next_due()
    }

    /// Frames that wait.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.holds.as_ref().map_or(0, |holds| holds.frames())
    }

    /// Frees all that waits.
    pub fn clear(&mut self, pool: &mut Pool) {
        if let Some(holds) = &mut self.holds {
            holds.clear(pool);
        }
    }

    /// A guest sends a frame, of which segments may be cut off.
    ///
    /// # Errors
    /// [`Reason::VccWindow`]: all of it lies beyond the window that the guest was told, or it hides
    /// its numbers as a fragment, or it is one SYN too many of its ports, and the endpoint is
    /// policed. [`Stop::Unknown`] of what goes on all the same.
    #[inline(always)]
    pub fn send(&mut self, pool: &mut Pool, now: Instant, from: EndpointId, frame: &Frame) -> Result<(), Stop> {
        if self.is_usual(pool, now, (from, Direction::Egress), frame) {
            return Ok(());
        }
        self.send_other(pool, now, from, frame)
    }

    /// Whether a frame is as most are, as its endpoint's last one was. Then it is done with.
    #[inline(always)]
    fn is_usual(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        (endpoint, direction): (EndpointId, Direction),
        frame: &Frame,
    ) -> bool {
        let Some(place) = self.endpoints.get_mut(endpoint.0 as usize) else { return false };
        let way = place.ways[direction as usize];
        way(&mut self.connections, place, pool, now, endpoint, frame)
    }

    /// The same of one that is not as was expected.
    #[inline(never)]
    fn send_other(&mut self, pool: &mut Pool, now: Instant, from: EndpointId, frame: &Frame) -> Result<(), Stop> {
        let is_sent = match pool.meta(frame).layout.l3 {
            L3::Ipv4 => self.send_guessed::<Both4>(pool, now, from, frame),
            L3::Ipv6 => self.send_guessed::<Both6>(pool, now, from, frame),
            _ => false,
        };
        if is_sent { Ok(()) } else { self.send_any(pool, now, from, frame) }
    }

    /// The same where it is as most are, and of a connection that is guessed. Whether it was.
    #[inline(always)]
    fn send_guessed<B: Both>(&mut self, pool: &mut Pool, now: Instant, from: EndpointId, frame: &Frame) -> bool {
        if let Some(mut found) = self.find::<B>(pool, now, from, frame, Direction::Egress)
            && (!found.place.policy.polices || found.is_within(now))
        {
            let Found { place, connection, mut seen, .. } = found;
            let is_usual = place.is_usual[Direction::Egress as usize];
            if !(is_usual && usual::send(connection, now, &place.policy, &mut seen)) {
                let option = usual::send_slowly(connection, now, &place.policy, &mut seen);
                option::insert(pool, frame, option);
                place.saw_other(Direction::Egress);
            }
            return true;
        }
        false
    }

    /// The connection of a frame that is as most are, of an endpoint that sends it or is to have
    /// it, where it is guessed.
    #[inline(always)]
    fn find<'a, 'p, B: Both>(
        &'a mut self,
        pool: &'p mut Pool,
        now: Instant,
        endpoint: EndpointId,
        frame: &Frame,
        direction: Direction,
    ) -> Option<Found<'a, 'p, B>> {
        let place = self.endpoints.get_mut(endpoint.0 as usize)?;
        let (seen, flow) = usual::seen(pool, frame, direction)?;
        let (id, connection) = self.connections.guess(now, endpoint, flow)?;
        place.saw::<B>(id, direction);
        Some(Found { place, id, connection, seen })
    }

    /// The same of any frame.
    #[inline(never)]
    fn send_any(&mut self, pool: &mut Pool, now: Instant, from: EndpointId, frame: &Frame) -> Result<(), Stop> {
        let Some(call) = self.call(now, from) else { return Ok(()) };
        let (mut bytes, mut meta) = pool.parts_mut(frame);
        if is_authenticated(bytes, &meta.layout) && call.policy.mode != Mode::Off {
            police::uncapable_packet(&call.policy, bytes, &meta.layout);
            self.leave(from, Why::Signed);
            return Ok(());
        }
        let Some(mut segment) = Segment::of(bytes, &meta.layout, &meta.offload) else {
            let is_hidden = meta.layout.fragment && is_tcp(bytes, &meta.layout) && call.policy.mode != Mode::Off;
            return if is_hidden { self.send_fragment(from) } else { Ok(()) };
        };
        let Some(flow) = FlowKey::of(bytes, &meta.layout) else { return Ok(()) };
        let key = Key { endpoint: from, flow };
        let found = self.connections.find_again(&key);
        if let Some(connection) = found.and_then(|id| self.connections.get(id)) {
            let beyond = open::beyond(connection, now, &call.policy, &segment, meta.offload.gso_size);
            if beyond > 0 {
                self.cut(pool, frame, (key.endpoint, beyond), &segment)?;
                (bytes, meta) = pool.parts_mut(frame);
                let Some(rest) = Segment::of(bytes, &meta.layout, &meta.offload) else { return Ok(()) };
                segment = rest;
            }
        }
        if call.policy.mode == Mode::Off && (found.is_none() || segment.is_syn()) {
            // The port is used again.
            found.into_iter().for_each(|id| self.connections.remove(call.owner.tenant, id));
            self.pass_off(now, call.owner);
            return Ok(());
        }
        let known = found.and_then(|id| self.connections.get(id));
        segment = segment.of_connection(known, || options_in(bytes, &meta.layout));
        let edit = if segment.is_syn() {
            let options = options_of(bytes, &meta.layout);
            self.send_syn(&call, (key, found), &segment, &options)?
        } else if let Some(id) = found {
            self.send_known(&call, id, &segment, || options_of(bytes, &meta.layout))
        } else {
            let edit = police::uncapable(&call.policy, &segment, Edit::NONE);
            if !edit.is_none() {
                edit.apply(bytes, &meta.layout, &mut meta.offload);
            }
            return Err(Stop::Unknown);
        };
        edit.apply(bytes, &meta.layout, &mut meta.offload);
        option::insert(pool, frame, edit.option);
        Ok(())
    }

    /// A fragment hides its numbers.
    #[cold]
    fn send_fragment(&mut self, from: EndpointId) -> Result<(), Stop> {
        self.leave(from, Why::Fragment);
        let polices = self.endpoints.get(from.0 as usize).is_some_and(|place| place.policy.polices);
        if polices { Err(Stop::Drop(Reason::VccWindow)) } else { Ok(()) }
    }

    /// Cuts off what lies beyond the window.
    #[cold]
    fn cut(
        &mut self,
        pool: &mut Pool,
        frame: &Frame,
        (from, beyond): (EndpointId, u32),
        segment: &Segment,
    ) -> Result<(), Stop> {
        if let Some(counters) = self.counters_mut(from) {
            counters.policed += u64::from(beyond);
        }
        let is_cut = beyond < segment.segments && crate::segment::trim(pool, frame, beyond) == beyond;
        is_cut.then_some(()).ok_or(Stop::Drop(Reason::VccWindow))
    }

    /// Whether acknowledgements of any endpoint may wait.
    #[must_use]
    #[inline]
    pub fn may_hold(&self) -> bool {
        self.holds.is_some()
    }

    /// A frame is about to be delivered to a guest, and is as most are. Whether it was one; else
    /// nothing is changed, and [`Vcc::receive`] or [`Vcc::receive_or_hold`] does it.
    #[must_use]
    #[inline(always)]
    pub fn receive_usual(&mut self, pool: &mut Pool, now: Instant, to: EndpointId, frame: &Frame) -> bool {
        self.is_usual(pool, now, (to, Direction::Ingress), frame)
    }

    /// A frame is about to be delivered to a guest, where none may wait.
    #[inline(never)]
    pub fn receive(&mut self, pool: &mut Pool, now: Instant, to: EndpointId, frame: &Frame) {
        if let Some((id, effects)) = self.show(pool, now, to, frame)
            && effects.heeding(pool, frame).supersedes
        {
            self.supersede(pool, id);
        }
    }

    /// The same where it may: it goes on, or waits for [`Vcc::dequeue`].
    #[inline(never)]
    pub fn receive_or_hold(&mut self, pool: &mut Pool, now: Instant, to: EndpointId, frame: Frame) -> Option<Frame> {
        match self.show(pool, now, to, &frame) {
            Some((id, effects)) if effects != Effects::default() => self.wait(pool, now, (to, id, effects), frame),
            _ => Some(frame),
        }
    }

    /// Makes of a frame what its guest is shown. Where it is of an open connection of which
    /// something may wait: which that is, and whether the frame should.
    fn show(&mut self, pool: &mut Pool, now: Instant, to: EndpointId, frame: &Frame) -> Option<(Id, Effects)> {
        let shown = match pool.meta(frame).layout.l3 {
            L3::Ipv4 => self.show_guessed::<Both4>(pool, now, to, frame),
            L3::Ipv6 => self.show_guessed::<Both6>(pool, now, to, frame),
            _ => None,
        };
        shown.unwrap_or_else(|| self.show_any(pool, now, to, frame))
    }

    /// The same where it is as most are, and of a connection that is guessed.
    #[inline(always)]
    fn show_guessed<B: Both>(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        to: EndpointId,
        frame: &Frame,
    ) -> Option<Option<(Id, Effects)>> {
        let found = self.find::<B>(pool, now, to, frame, Direction::Ingress)?;
        let is_for_now = found.is_for_now();
        let Found { place, id, connection, mut seen } = found;
        if is_for_now && usual::receive(connection, now, place, &mut seen) {
            return Some(None);
        }
        let round_end = connection.round_end;
        let mut effects = usual::receive_slowly(connection, now, place, &mut seen);
        place.saw_other(Direction::Ingress);
        if place.siblings.is_some() && (siblings::is_slowed(connection, round_end) || effects.heed.is_some()) {
            self.note(now, id, &mut effects);
        }
        Some(Some((id, effects)))
    }

    /// The same of any frame.
    #[inline(never)]
    fn show_any(&mut self, pool: &mut Pool, now: Instant, to: EndpointId, frame: &Frame) -> Option<(Id, Effects)> {
        let place = self.endpoints.get_mut(to.0 as usize).filter(|place| place.is_in())?;
        let (bytes, meta) = pool.parts_mut(frame);
        let segment = Segment::of(bytes, &meta.layout, &meta.offload)?;
        if is_authenticated(bytes, &meta.layout) {
            return None;
        }
        let key = Key { endpoint: to, flow: FlowKey::of(bytes, &meta.layout)?.reversed() };
        let found = self.connections.find_again(&key);
        let known = found.and_then(|id| self.connections.get(id));
        if place.policy.mode == Mode::Off && (known.is_none() || segment.is_syn()) {
            let owner = place.owner;
            if let Some(id) = found.filter(|_| known.is_some_and(handshake::gives_way)) {
                self.connections.remove(owner.tenant, id);
            }
            self.pass_off(now, owner);
            return None;
        }
        let segment = segment.of_connection(known, || options_in(bytes, &meta.layout));
        if segment.has(tcp_flags::RST) && segment.has(tcp_flags::ACK) && place.policy.polices {
            // The peer has refused a successor: nobody else knows its number.
            let next = self.connections.find(&key.second());
            let is_refused =
                |id: &Id| self.connections.get(*id).is_some_and(|one| handshake::is_answered(one, &segment));
            if let Some(id) = next.filter(is_refused) {
                self.connections.remove(place.owner.tenant, id);
            }
        }
        let mut effects = Effects::default();
        let edit = if segment.is_of_handshake() {
            self.receive_handshake(now, (key, found), &segment, || options_of(bytes, &meta.layout))
        } else {
            let (connection, counters) = (self.connections.get_mut(found?)?, place.counters.as_deref_mut()?);
            let (was, was_in, round_end) = (connection.treatment, Class::of(connection), connection.round_end);
            let edit = open::receive(connection, now, &place.policy, &segment, (counters, &mut effects));
            if was_in == Class::Offered && Class::of(connection) == Class::Open && !is_left(was) {
                counters.opens(Treatment::Opening, was);
            }
            let is_end = segment.has(tcp_flags::RST) && open::is_of_peer(connection, &segment);
            let class = if is_end { Class::Lingering } else { Class::of(connection) };
            let is_slowed = siblings::is_slowed(connection, round_end) || effects.heed.is_some();
            let is_noted = place.siblings.is_some() && is_slowed;
            self.connections.touch(now, found?, to, class);
            if is_noted {
                self.note(now, found?, &mut effects);
            }
            edit
        };
        edit.apply(bytes, &meta.layout, &mut meta.offload);
        Some((found?, effects))
    }

    /// A round of a connection is over whose endpoint is policed. Where its window was reduced in
    /// it, what it has now is what the next one to its peer begins with. Where it is a native's,
    /// what it did with marks counts for the next one too.
    fn note(&mut self, now: Instant, id: Id, effects: &mut Effects) {
        let heed = effects.heed.take();
        let (Some(key), Some(connection)) = (self.connections.key(id), self.connections.get(id)) else { return };
        let is_slowed = connection.is_governed() && connection.ssthresh < u32::MAX;
        let place = self.endpoints.get_mut(key.endpoint.0 as usize);
        let Some(siblings) = place.and_then(|place| place.siblings.as_mut()) else { return };
        let to = self.connections.destination(&key.flow);
        if let Some(heed) = heed {
            siblings.judge(now, to, heed);
        }
        if is_slowed {
            siblings.note(now, to, connection.window);
        }
    }

    /// A connection begins that may have siblings. Where its guest is held to a window, it is from
    /// the start.
    fn heed_siblings(&self, call: &Call, key: &Key, connection: &mut Connection) {
        let place = self.endpoints.get(key.endpoint.0 as usize);
        let siblings = place.and_then(|place| place.siblings.as_ref());
        let Some(siblings) = siblings else { return };
        let to = self.connections.destination(&key.flow);
        connection.ssthresh = siblings.window(call.now, to).unwrap_or(u32::MAX);
        connection.zero_codes = siblings.distrust(call.now, to);
    }

    /// Lets an acknowledgement wait, where it should and there is room.
    #[inline(never)]
    fn wait(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        (to, id, effects): (EndpointId, Id, Effects),
        frame: Frame,
    ) -> Option<Frame> {
        let Effects { us: wait_us, supersedes, .. } = effects.heeding(pool, &frame);
        if wait_us == 0 {
            if supersedes {
                self.supersede(pool, id);
            }
            return Some(frame);
        }
        let place = self.endpoints.get_mut(to.0 as usize);
        let (Some(holds), Some(connection), Some(place)) = (&mut self.holds, self.connections.get_mut(id), place)
        else {
            return Some(frame);
        };
        let whose = (place.owner, id, connection.held);
        match holds.hold(pool, (now, wait_us), whose, place.memory, frame) {
            Ok(place) => connection.held = place,
            Err(frame) => return Some(frame),
        }
        if let Some(counters) = &mut place.counters {
            counters.held += 1;
        }
        None
    }

    /// What waits of a connection was said by a later frame.
    fn supersede(&mut self, pool: &mut Pool, id: Id) {
        if let (Some(holds), Some(connection)) = (&mut self.holds, self.connections.get_mut(id)) {
            holds.supersede(pool, id, std::mem::replace(&mut connection.held, hold::NONE));
        }
    }

    fn send_known(
        &mut self,
        call: &Call,
        id: Id,
        segment: &Segment,
        options: impl FnOnce() -> segment::Options,
    ) -> Edit {
        let Some(connection) = self.connections.get_mut(id) else { return Edit::NONE };
        let endpoint = call.owner.endpoint;
        let (was, was_deaf) = (connection.treatment, connection.is(bit::DEAF));
        let edit = if !segment.is_syn_ack() {
            open::send(connection, call.now, &call.policy, segment)
        } else if !connection.is_answered_by(segment) {
            // The guest has taken another connection for this one, and knows best.
            if !successor::stays(connection, &call.policy) {
                self.connections.remove(call.owner.tenant, id);
            }
            self.leave(endpoint, Why::Unknown);
            return police::uncapable(&call.policy, segment, Edit::NONE);
        } else {
            let edit = handshake::answer(connection, &call.policy, segment, &options());
            if was == Treatment::Opening {
                // A SYN says what its sender is; it counts once it is answered.
                let peer = Kind::of_syn(connection.asked.code(), connection.asked.met());
                let guest = Kind::of_answer(segment.codes, segment.ecn);
                let place = self.endpoints.get_mut(endpoint.0 as usize);
                count_kinds(place.and_then(|place| place.counters.as_deref_mut()), [guest, peer]);
            }
            edit
        };
        let (is, class) = (connection.treatment, class_of(connection, segment));
        let is_deaf = connection.is(bit::DEAF) && !was_deaf;
        self.connections.touch(call.now, id, endpoint, class);
        if is_deaf {
            self.count_deaf(endpoint);
        }
        // What a peer began counts when it acknowledges the answer.
        if class != Class::Offered || is_left(is) || was == Treatment::Translated {
            self.opened(endpoint, was, is);
        }
        edit
    }

    /// A SYN or SYN-ACK for a guest.
    #[cold]
    fn receive_handshake(
        &mut self,
        now: Instant,
        (key, found): (Key, Option<Id>),
        segment: &Segment,
        options: impl FnOnce() -> segment::Options,
    ) -> Edit {
        let Some(call) = self.call(now, key.endpoint) else { return Edit::NONE };
        if segment.is_syn() {
            return self.receive_syn(&call, (key, found), segment, &options());
        }
        let mut of = self.answered(key, found, segment);
        if let Some(next) = of.filter(|_| of != found) {
            of = self.succeed(&call, key, found, next);
        }
        let Some((id, connection)) = of.and_then(|id| Some((id, self.connections.get_mut(id)?))) else {
            return Edit::NONE;
        };
        if !handshake::is_answered(connection, segment) {
            return handshake::cross(connection, &options());
        }
        let (was, is_first) = (connection.treatment, connection.una == connection.first[0]);
        let was_deaf = connection.is(bit::DEAF);
        let edit = handshake::answered(connection, &call.policy, segment, &options());
        let (is, class) = (connection.treatment, Class::of(connection));
        let is_deaf = connection.is(bit::DEAF) && !was_deaf;
        let is_third = handshake::is_third_answered(connection, &call.policy);
        self.connections.touch(now, id, key.endpoint, class);
        if was == Treatment::Opening
            && is == Treatment::Plain
            && is_third
            && let Some(counters) = self.counters_mut(key.endpoint)
        {
            counters.unanswered_asks += 1;
        }
        if is_first && !matches!(was, Treatment::Untouched(_)) {
            count_kinds(self.counters_mut(key.endpoint), [None, Kind::of_answer(segment.codes, segment.ecn)]);
        }
        self.opened(key.endpoint, was, is);
        if is_deaf {
            self.count_deaf(key.endpoint);
        }
        edit
    }

    fn send_syn(
        &mut self,
        call: &Call,
        (key, found): (Key, Option<Id>),
        syn: &Segment,
        options: &segment::Options,
    ) -> Result<Edit, Stop> {
        let (key, old) = match self.opening(call, key, found, syn) {
            Opening::Again(id) => {
                let connection = self.connections.get_mut(id);
                return Ok(connection.map_or(Edit::NONE, |one| handshake::ask_again(one, &call.policy, syn, options)));
            }
            Opening::Crossed(id) => {
                self.leave(key.endpoint, Why::Simultaneous);
                let connection = self.connections.get_mut(id);
                return Ok(connection.map_or(Edit::NONE, |one| handshake::collide(one, &call.policy, syn, options)));
            }
            Opening::New(key, old) => (key, old),
            Opening::Refused => return Err(self.refuse_syn(key.endpoint)),
        };
        // The port is used again.
        old.into_iter().for_each(|id| self.connections.remove(call.owner.tenant, id));
        let (mut connection, edit) = handshake::ask(&call.policy, syn, options);
        self.heed_siblings(call, &key, &mut connection);
        if connection.treatment == Treatment::Native {
            count_kinds(self.counters_mut(key.endpoint), [Kind::of_syn(syn.codes, syn.ecn), None]);
        }
        match self.insert(call, key, connection, edit) {
            Ok(edit) => Ok(edit),
            // The old entry would be taken for that of the new connection.
            Err(NoRoom) if key.flow.is_second() => Err(self.refuse_syn(key.endpoint)),
            Err(NoRoom) => Ok(police::uncapable(&call.policy, syn, Edit::NONE)),
        }
    }

    #[cold]
    fn refuse_syn(&mut self, from: EndpointId) -> Stop {
        if let Some(counters) = self.counters_mut(from) {
            counters.policed += 1;
        }
        Stop::Drop(Reason::VccWindow)
    }

    fn receive_syn(
        &mut self,
        call: &Call,
        (key, found): (Key, Option<Id>),
        syn: &Segment,
        options: &segment::Options,
    ) -> Edit {
        let mut replaced = None;
        if let Some(id) = found {
            let Some(connection) = self.connections.get_mut(id) else { return Edit::NONE };
            if connection.treatment == Treatment::Opening && connection.is(bit::ACTIVE) {
                connection.treatment = Treatment::Untouched(Why::Simultaneous);
                self.leave(key.endpoint, Why::Simultaneous);
                return Edit::NONE;
            }
            if handshake::repeats(connection, syn) {
                // A later try may ask for less: what it asks is what its answer must fit.
                connection.asked = connection.asked.again(syn.codes, syn.ecn);
                if connection.treatment == Treatment::Opening {
                    // It may leave its data to later; an answer to either try may come.
                    connection.usual_wait = connection.usual_wait.max(handshake::early(syn));
                }
                return handshake::offer(&call.policy, Some(connection), syn, options);
            }
            // A stranger may have forged it. While the old connection lives the guest answers with
            // an acknowledgement of that, so the old entry stays until it has ended.
            if !handshake::gives_way(connection) {
                return handshake::offer(&call.policy, None, syn, options);
            }
            replaced = Some(id);
        }
        if let Some(id) = replaced {
            self.connections.remove(call.owner.tenant, id);
        }
        let mut connection = handshake::offered(&call.policy, syn, options);
        self.heed_siblings(call, &key, &mut connection);
        let edit = handshake::offer(&call.policy, Some(&mut connection), syn, options);
        self.insert(call, key, connection, edit).unwrap_or(Edit::NONE)
    }

    fn insert(&mut self, call: &Call, key: Key, connection: Connection, edit: Edit) -> Result<Edit, NoRoom> {
        let treatment = connection.treatment;
        if let Err(NoRoom) = self.connections.insert(call.now, call.owner.tenant, key, connection) {
            self.leave(key.endpoint, Why::Full);
            return Err(NoRoom);
        }
        if let Treatment::Untouched(why) = treatment {
            self.leave(key.endpoint, why);
        }
        Ok(edit)
    }

    /// A handshake has decided how a connection is treated, where it was treated otherwise before.
    fn opened(&mut self, endpoint: EndpointId, before: Treatment, treatment: Treatment) {
        if let Some(counters) = self.counters_mut(endpoint).filter(|_| before != treatment) {
            counters.opens(before, treatment);
        }
    }

    /// A native is held to a window from the start.
    #[cold]
    fn count_deaf(&mut self, endpoint: EndpointId) {
        if let Some(counters) = self.counters_mut(endpoint) {
            counters.deaf += 1;
        }
    }

    /// Counts a frame of a connection whose handshake was not seen: see [`Stop::Unknown`].
    pub fn leave_unknown(&mut self, endpoint: EndpointId) {
        self.leave(endpoint, Why::Unknown);
    }

    fn leave(&mut self, endpoint: EndpointId, why: Why) {
        if let Some(counters) = self.counters_mut(endpoint) {
            counters.untouched[why as usize] += 1;
        }
    }
}

/// Counts what a guest and its peer have said of themselves.
fn count_kinds(counters: Option<&mut Counters>, [guest, peer]: [Option<Kind>; 2]) {
    let Some(counters) = counters else { return };
    guest.into_iter().for_each(|kind| counters.guests[kind as usize] += 1);
    peer.into_iter().for_each(|kind| counters.peers[kind as usize] += 1);
}

/// A frame that is as most are: see [`usual`].
struct Found<'a, 'p, B> {
    place: &'a mut VccEndpoint,
    id: Id,
    connection: &'a mut Connection,
    seen: usual::Seen<'p, B>,
}

impl<B: Both> Found<'_, '_, B> {
    /// Nothing waits of the connection, or will.
    #[inline(always)]
    fn is_for_now(&self) -> bool {
        self.place.is_usual[1] && self.connection.held == hold::NONE
    }

    /// All of it lies within the window that the guest was told.
    #[inline(never)]
    fn is_within(&mut self, now: Instant) -> bool {
        let Found { place, connection, seen, .. } = self;
        let segment = seen.segment();
        open::beyond(connection, now, &place.policy, &segment, seen.meta.offload.gso_size) == 0
    }
}

/// A frame of an endpoint that sends it or is to have it is tried to be as most are. Whether it was
/// one, and is done with; else nothing is changed.
type TryUsual = fn(&mut Connections, &mut VccEndpoint, &mut Pool, Instant, EndpointId, &Frame) -> bool;

/// Nothing is tried.
fn none(_: &mut Connections, _: &mut VccEndpoint, _: &mut Pool, _: Instant, _: EndpointId, _: &Frame) -> bool {
    false
}

/// The connection of a frame that is as most are, where it is that of its endpoint's last frame.
#[inline(always)]
fn of_last<'a, 'p, B: Both>(
    connections: &'a mut Connections,
    place: &VccEndpoint,
    pool: &'p mut Pool,
    now: Instant,
    (endpoint, direction): (EndpointId, Direction),
    frame: &Frame,
) -> Option<(&'a mut Connection, usual::Seen<'p, B>)> {
    let (seen, flow) = usual::seen_head(pool, frame, direction)?;
    Some((connections.used(now, place.last, endpoint, flow)?, seen))
}

/// A guest sends a frame of the same connection as the last.
fn send_as_last<B: Both>(
    connections: &mut Connections,
    place: &mut VccEndpoint,
    pool: &mut Pool,
    now: Instant,
    from: EndpointId,
    frame: &Frame,
) -> bool {
    let found = of_last::<B>(connections, place, pool, now, (from, Direction::Egress), frame);
    let Some((connection, mut seen)) = found else { return false };
    usual::send(connection, now, &place.policy, &mut seen)
}

/// The same of a frame whose connection is guessed.
fn send_as_guessed<B: Both>(
    connections: &mut Connections,
    place: &mut VccEndpoint,
    pool: &mut Pool,
    now: Instant,
    from: EndpointId,
    frame: &Frame,
) -> bool {
    let Some((mut seen, flow)) = usual::seen_head::<B>(pool, frame, Direction::Egress) else { return false };
    let Some((id, connection)) = connections.guess(now, from, flow) else { return false };
    if id == place.last {
        place.ways[Direction::Egress as usize] = send_as_last::<B>;
    }
    place.last = id;
    usual::send(connection, now, &place.policy, &mut seen)
}

/// A frame for a guest is of the same connection as the last, of which nothing waits.
fn receive_as_last<B: Both>(
    connections: &mut Connections,
    place: &mut VccEndpoint,
    pool: &mut Pool,
    now: Instant,
    to: EndpointId,
    frame: &Frame,
) -> bool {
    let found = of_last::<B>(connections, place, pool, now, (to, Direction::Ingress), frame);
    let Some((connection, mut seen)) = found else { return false };
    connection.held == hold::NONE && usual::receive(connection, now, place, &mut seen)
}

/// What a segment for a guest leads to, beside what it is made to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Effects {
    /// How long the acknowledgement should wait, in microseconds; not at all where it is 0.
    us: u32,
    /// It says all that an earlier one said that waits.
    supersedes: bool,
    /// A native that is watched ends a round with it: see [`watch`].
    heed: Option<watch::Heed>,
}

impl Effects {
    /// The same, but for what tells of losses: that is wanted at once.
    fn heeding(self, pool: &Pool, frame: &Frame) -> Effects {
        let tells_of_loss = || options_of(pool.bytes(frame), &pool.meta(frame).layout).has_sack;
        if self.us > 0 && tells_of_loss() { Effects { us: 0, supersedes: true, ..self } } else { self }
    }
}

/// The class that a connection is in after a segment of its guest, which resets its own.
#[inline]
fn class_of(connection: &Connection, segment: &Segment) -> Class {
    if segment.has(tcp_flags::RST) { Class::Lingering } else { Class::of(connection) }
}

/// Whether a connection that is treated so is left alone.
fn is_left(treatment: Treatment) -> bool {
    matches!(treatment, Treatment::Untouched(_))
}

/// Whether a fragment is one of TCP.
fn is_tcp(bytes: &[u8], layout: &Layout) -> bool {
    match layout.l3 {
        L3::Ipv4 => Ipv4::of(bytes, layout).is_some_and(|ip| ip.protocol() == protocol::TCP),
        // Without the first fragment, which shows the whole header (RFC 7112), the later ones are
        // nothing.
        L3::Ipv6 => layout.l4 == L4::Tcp,
        L3::Arp | L3::Other => false,
    }
}

/// Whether it is a segment of TCP behind IPsec's authentication header (RFC 4302), whose MAC covers
/// it.
fn is_authenticated(bytes: &[u8], layout: &Layout) -> bool {
    let (l3, l4) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset));
    if layout.fragment {
        return false;
    }
    match layout.l3 {
        // The first byte of the header is the number of what follows it.
        L3::Ipv4 => {
            layout.l4 == L4::Other
                && Ipv4::of(bytes, layout).is_some_and(|ip| ip.protocol() == protocol::AUTHENTICATION)
                && bytes.get(l4) == Some(&protocol::TCP)
        }
        L3::Ipv6 => {
            let packet = bytes.get(l3..l4).unwrap_or_default();
            layout.l4 == L4::Tcp
                && l4 > l3 + ipv6::LEN
                && ipv6::headers(packet).any(|(number, _)| number == protocol::AUTHENTICATION)
        }
        L3::Arp | L3::Other => false,
    }
}

/// What holds while one frame is looked at.
#[derive(Clone, Copy, Debug)]
struct Call {
    now: Instant,
    owner: Owner,
    policy: Policy,
}

/// Why a frame that a guest sends does not simply go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// It is to be dropped.
    Drop(Reason),
    /// It goes on as it is, but the handshake of its connection was not seen. Where it is the
    /// guest's connection, that is to be counted: [`Vcc::leave_unknown`].
    Unknown,
}

/// Whose a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The endpoint's tenant.
    pub tenant: TenantId,
    /// The endpoint.
    pub endpoint: EndpointId,
}
