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
use crate::program::{EndpointId, TenantId};
use crate::table::Id;
use crate::units::Instant;
use crate::verdict::Reason;
use crate::wire::{FlowKey, Ipv4, L3, L4, Layout, protocol, tcp_flags};
use connection::{Connection, Treatment, Why, before, bit};
use connections::{Class, Connections, Key};
use hold::Holds;
use segment::{Edit, Segment, options_of};

pub mod connection;
pub mod connections;
pub mod control;
pub mod handshake;
mod hold;
mod open;
pub mod saved;
pub mod segment;
mod told;
mod watch;
pub mod window;

pub use told::Told;

#[cfg(test)]
mod tests;

/// What is done for an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// Nothing.
    #[default]
    Off,
    /// Connections are observed and counted; nothing is changed.
    Count,
    /// The switch reacts as RFC 3168's senders do: for networks whose natives are these.
    Echo,
    /// As the published systems do, with what they lack; for comparison.
    EchoPublished,
    /// The switch reacts as DCTCP does: for networks whose natives are these.
    Dctcp,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 5] = [Mode::Off, Mode::Count, Mode::Echo, Mode::EchoPublished, Mode::Dctcp];

    /// Whether frames are changed.
    #[must_use]
    pub const fn translates(self) -> bool {
        !matches!(self, Mode::Off | Mode::Count)
    }

    /// The name by which configuration calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Count => "count",
            Mode::Echo => "echo",
            Mode::EchoPublished => "echo-published",
            Mode::Dctcp => "dctcp",
        }
    }
}

/// What a tenant asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Settings {
    /// What is done for its endpoints.
    pub mode: Mode,
    /// Whether they are held to it: see [`Policy::polices`].
    pub polices: bool,
    /// Whether acknowledgements may wait: see [`Policy::holds`].
    pub holds: bool,
}

impl From<Mode> for Settings {
    fn from(mode: Mode) -> Settings {
        Settings { mode, ..Settings::default() }
    }
}

/// Which frames say that they are ECN-capable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Marking {
    /// All of a translated connection, SYN and pure acknowledgements too (RFC 8311 allows it):
    /// what is not capable is dropped where capable frames are marked.
    #[default]
    All,
    /// New data only, as RFC 3168 has it.
    Data,
}

/// What holds for one endpoint's connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// What is done.
    pub mode: Mode,
    /// Which frames are capable.
    pub marking: Marking,
    /// A guest that knows RFC 3168 only is translated where the peer knows AccECN.
    pub translates_classic: bool,
    /// What a guest sends beyond the window that it was told is dropped, and natives that do not
    /// heed marks are told one.
    pub polices: bool,
    /// Acknowledgements wait where the window is below two segments. Beside natives, which do not
    /// go below two, a guest would starve.
    pub holds: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Policy { mode: Mode::Echo, marking: Marking::All, translates_classic: true, polices: false, holds: false }
    }
}

impl Policy {
    /// Whether frames are changed.
    #[must_use]
    pub fn translates(&self) -> bool {
        self.mode.translates()
    }

    /// Whether all frames of a translated connection are capable.
    #[must_use]
    pub fn marks_all(&self) -> bool {
        self.marking == Marking::All && self.mode != Mode::EchoPublished
    }
}

/// What is counted for an endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Connections that opened, by how they are treated: translated, native, plain.
    pub opened: [u64; 3],
    /// Connections, or frames of none, that were left alone, by [`Why`].
    pub untouched: [u64; Why::ALL.len()],
    /// Bytes that peers acknowledged to translated guests.
    pub acked_bytes: u64,
    /// Of these, bytes whose mark was reported.
    pub marked_bytes: u64,
    /// Marked segments that arrived, and were hidden.
    pub hidden_marks: u64,
    /// Acknowledgements whose window was lowered.
    pub lowered: u64,
    /// Reductions of a window.
    pub reductions: u64,
    /// Segments dropped since they lay beyond the window.
    pub policed: u64,
    /// Native connections that did not heed marks, and have the controller's window since.
    pub deaf: u64,
    /// Acknowledgements that waited, the later ones that took the place of such included.
    pub held: u64,
}

impl Counters {
    fn count_on(&mut self, before: &Counters) {
        let arrays = self.opened.iter_mut().zip(before.opened);
        arrays.chain(self.untouched.iter_mut().zip(before.untouched)).for_each(|(n, m)| *n = n.saturating_add(m));
        for (n, m) in [
            (&mut self.acked_bytes, before.acked_bytes),
            (&mut self.marked_bytes, before.marked_bytes),
            (&mut self.hidden_marks, before.hidden_marks),
            (&mut self.lowered, before.lowered),
            (&mut self.reductions, before.reductions),
            (&mut self.policed, before.policed),
            (&mut self.deaf, before.deaf),
            (&mut self.held, before.held),
        ] {
            *n = n.saturating_add(m);
        }
    }
}

/// Connections of a switch at most.
pub const FLOWS: u32 = 65_536;

/// See the module.
#[derive(Debug)]
pub struct Vcc {
    connections: Connections,
    /// By endpoint: whose it is, and what is done for it.
    endpoints: Vec<Place>,
    /// Where an endpoint wants it: acknowledgements that wait.
    holds: Option<Box<Holds>>,
}

/// What is kept for an endpoint.
#[derive(Clone, Debug)]
struct Place {
    owner: Owner,
    settings: Settings,
    /// Whose part of the frame memory has what waits.
    memory: frame::Owner,
    /// Where anything is done, or was: most endpoints have none.
    counters: Option<Box<Counters>>,
}

impl Vcc {
    /// Without connections, and without room for any.
    #[must_use]
    pub fn new(seed: u64) -> Vcc {
        Vcc { connections: Connections::new(seed, 0), endpoints: Vec::new(), holds: None }
    }

    /// Makes room for endpoints 0..`endpoints`.
    pub fn reserve(&mut self, endpoints: usize) {
        self.endpoints.reserve(endpoints.saturating_sub(self.endpoints.len()));
    }

    /// What is done for an endpoint from now on. Connections that are open go on as they began,
    /// until it is nothing; with it they are forgotten, and their guests go on by themselves.
    pub fn set(&mut self, owner: Owner, settings: Settings) {
        let at = owner.endpoint.0 as usize;
        if self.endpoints.len() <= at {
            let nobody = |endpoint: usize| Place {
                owner: Owner { tenant: TenantId(0), endpoint: EndpointId(endpoint as u32) },
                settings: Settings::default(),
                memory: frame::Owner::NOBODY,
                counters: None,
            };
            let next = self.endpoints.len();
            self.endpoints.extend((next..=at).map(nobody));
        }
        if settings.mode == Mode::Off {
            self.connections.clear(owner.tenant, owner.endpoint);
        } else {
            self.connections.reserve(FLOWS, at + 1, owner.tenant.0 as usize + 1);
        }
        if settings.holds {
            self.holds.get_or_insert_with(|| Box::new(Holds::new())).expect(owner);
        }
        let place = &mut self.endpoints[at];
        (place.owner, place.settings) = (owner, settings);
        if settings.mode != Mode::Off && place.counters.is_none() {
            place.counters = Some(Box::default());
        }
    }

    /// Whether frames of an endpoint are to be shown here.
    #[must_use]
    #[inline]
    pub fn concerns(&self, endpoint: EndpointId) -> bool {
        self.endpoints.get(endpoint.0 as usize).is_some_and(|place| place.settings.mode != Mode::Off)
    }

    fn call(&self, now: Instant, endpoint: EndpointId) -> Option<Call> {
        let place = self.endpoints.get(endpoint.0 as usize).filter(|place| place.settings.mode != Mode::Off)?;
        let Settings { mode, polices, holds } = place.settings;
        let is_ours = matches!(mode, Mode::Echo | Mode::Dctcp);
        let policy = Policy { mode, polices: polices && is_ours, holds: holds && is_ours, ..Policy::default() };
        Some(Call { now, owner: place.owner, policy, memory: place.memory })
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
        self.endpoints.get(endpoint.0 as usize).map_or(Mode::Off, |place| place.settings.mode)
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
            place.settings = Settings::default();
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
    /// its numbers as a fragment, and the endpoint is policed.
    pub fn send(&mut self, pool: &mut Pool, now: Instant, from: EndpointId, frame: &Frame) -> Result<(), Reason> {
        let Some(call) = self.call(now, from) else { return Ok(()) };
        let (bytes, meta) = pool.parts_mut(frame);
        if meta.layout.fragment && is_tcp(bytes, &meta.layout) {
            self.leave(call.owner, Why::Fragment);
            return if call.policy.polices { Err(Reason::VccWindow) } else { Ok(()) };
        }
        if meta.layout.l4 != L4::Tcp {
            return Ok(());
        }
        let Some((segment, flow)) = Segment::of(bytes, &meta.layout, &meta.offload)
            .and_then(|segment| Some((segment, FlowKey::of(bytes, &meta.layout)?)))
        else {
            return Ok(());
        };
        let key = Key { endpoint: call.owner.endpoint, flow };
        let found = self.connections.find(&key);
        let beyond = found
            .and_then(|id| self.connections.get(id))
            .map_or(0, |connection| open::beyond(connection, now, &call.policy, &segment, meta.offload.gso_size));
        if beyond > 0 {
            if let Some(counters) = self.counters_mut(from) {
                counters.policed += u64::from(beyond);
            }
            if beyond >= segment.segments || crate::segment::trim(pool, frame, beyond) < beyond {
                return Err(Reason::VccWindow);
            }
        }
        let (bytes, meta) = pool.parts_mut(frame);
        let Some(segment) = Segment::of(bytes, &meta.layout, &meta.offload) else { return Ok(()) };
        let edit = if segment.is_syn() {
            let options = options_of(bytes, &meta.layout);
            self.send_syn(&call, (key, found), &segment, &options)
        } else if let Some(id) = found {
            self.send_known(&call, id, &segment, || options_of(bytes, &meta.layout))
        } else {
            self.leave(call.owner, Why::Unknown);
            return Ok(());
        };
        edit.apply(bytes, &meta.layout, &mut meta.offload);
        Ok(())
    }

    /// A frame is about to be delivered to a guest.
    pub fn receive(&mut self, pool: &mut Pool, now: Instant, to: EndpointId, frame: &Frame) {
        let Some(call) = self.call(now, to) else { return };
        if let Some((id, news)) = self.show(pool, &call, frame)
            && news.supersedes
        {
            self.supersede(pool, id);
        }
    }

    /// The same of one that has come by the network: it goes on, or waits for [`Vcc::dequeue`].
    pub fn receive_or_hold(&mut self, pool: &mut Pool, now: Instant, to: EndpointId, frame: Frame) -> Option<Frame> {
        let Some(call) = self.call(now, to) else { return Some(frame) };
        match self.show(pool, &call, &frame) {
            Some((id, news)) => self.hold(pool, &call, id, &news, frame),
            None => Some(frame),
        }
    }

    /// Makes of a frame what its guest is shown. Where it is of an open connection: which that is,
    /// and what it told.
    fn show(&mut self, pool: &mut Pool, call: &Call, frame: &Frame) -> Option<(Id, open::News)> {
        let (bytes, meta) = pool.parts_mut(frame);
        if meta.layout.l4 != L4::Tcp {
            return None;
        }
        let segment = Segment::of(bytes, &meta.layout, &meta.offload)?;
        let flow = FlowKey::of(bytes, &meta.layout)?;
        let key = Key { endpoint: call.owner.endpoint, flow: flow.reversed() };
        let found = self.connections.find(&key);
        let mut news = open::News::default();
        let edit = if segment.is_syn() {
            let options = options_of(bytes, &meta.layout);
            self.receive_syn(call, (key, found), &segment, &options)
        } else {
            self.receive_known(call, (found?, &mut news), &segment, || options_of(bytes, &meta.layout))
        };
        edit.apply(bytes, &meta.layout, &mut meta.offload);
        Some((found?, news))
    }

    /// Lets an acknowledgement wait that should, where there is room.
    fn hold(&mut self, pool: &mut Pool, call: &Call, id: Id, news: &open::News, frame: Frame) -> Option<Frame> {
        if news.wait_us == 0 {
            if news.supersedes {
                self.supersede(pool, id);
            }
            return Some(frame);
        }
        let Call { now, owner, memory, .. } = *call;
        let (Some(holds), Some(connection)) = (&mut self.holds, self.connections.get_mut(id)) else {
            return Some(frame);
        };
        let whose = (owner, id, connection.held);
        match holds.hold(pool, (now, news.wait_us), whose, memory, frame) {
            Ok(place) => connection.held = place,
            Err(frame) => return Some(frame),
        }
        if let Some(counters) = self.counters_mut(owner.endpoint) {
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

    fn send_syn(
        &mut self,
        call: &Call,
        (key, found): (Key, Option<Id>),
        syn: &Segment,
        options: &segment::Options,
    ) -> Edit {
        if let Some(id) = found {
            let known = self.connections.get_mut(id);
            match known {
                Some(connection) if connection.is(bit::ACTIVE) && connection.first[0] == syn.seq => {
                    return handshake::ask_again(connection, &call.policy);
                }
                // Both have sent a SYN: which flags count would depend on whose came first.
                Some(connection) if connection.treatment == Treatment::Opening && !connection.is(bit::ACTIVE) => {
                    connection.treatment = Treatment::Untouched(Why::Simultaneous);
                    self.leave(call.owner, Why::Simultaneous);
                    return Edit::NONE;
                }
                // The port is used again.
                _ => self.connections.remove(call.owner.tenant, id),
            }
        }
        let (connection, edit) = handshake::ask(&call.policy, syn, options);
        self.insert(call, key, connection, edit)
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
                self.leave(call.owner, Why::Simultaneous);
                return Edit::NONE;
            }
            if !connection.is(bit::ACTIVE) && connection.first[1] == syn.seq {
                // A later try may ask for less: what it asks is what its answer must fit.
                connection.asked = (syn.codes, syn.ecn);
                return handshake::offer(&call.policy, syn);
            }
            // A stranger may have forged it. While the old connection lives the guest answers with
            // an acknowledgement of that, so the old entry stays until it has ended.
            if !connection.is(bit::FIN_IN | bit::FIN_OUT) && connection.treatment != Treatment::Opening {
                return handshake::offer(&call.policy, syn);
            }
            replaced = Some(id);
        }
        if let Some(id) = replaced {
            self.connections.remove(call.owner.tenant, id);
        }
        let edit = handshake::offer(&call.policy, syn);
        self.insert(call, key, handshake::offered(syn, options), edit)
    }

    fn insert(&mut self, call: &Call, key: Key, connection: Connection, edit: Edit) -> Edit {
        let treatment = connection.treatment;
        if self.connections.insert(call.now, call.owner.tenant, key, connection).is_err() {
            self.leave(call.owner, Why::Full);
            return Edit::NONE;
        }
        if let Treatment::Untouched(why) = treatment {
            self.leave(call.owner, why);
        }
        edit
    }

    fn send_known(
        &mut self,
        call: &Call,
        id: Id,
        segment: &Segment,
        options: impl FnOnce() -> segment::Options,
    ) -> Edit {
        let Some(connection) = self.connections.get_mut(id) else { return Edit::NONE };
        let edit = if segment.is_syn_ack() {
            if connection.is(bit::ACTIVE) || segment.ack != connection.first[1].wrapping_add(1) {
                // The guest has taken another connection for this one, and knows best.
                self.connections.remove(call.owner.tenant, id);
                self.leave(call.owner, Why::Unknown);
                return Edit::NONE;
            }
            let was = connection.treatment;
            let edit = handshake::answer(connection, &call.policy, segment, &options());
            let is = connection.treatment;
            if is != was {
                self.opened(call.owner, is);
            }
            edit
        } else {
            open::send(connection, call.now, &call.policy, segment)
        };
        self.settle(call, id, segment);
        edit
    }

    fn receive_known(
        &mut self,
        call: &Call,
        (id, news): (Id, &mut open::News),
        segment: &Segment,
        options: impl FnOnce() -> segment::Options,
    ) -> Edit {
        let Some(connection) = self.connections.get_mut(id) else { return Edit::NONE };
        let edit = if segment.is_syn_ack() {
            let expected = connection.first[0].wrapping_add(1);
            let fits = !before(segment.ack, expected) && !before(connection.nxt, segment.ack);
            if !connection.is(bit::ACTIVE) || !fits {
                return Edit::NONE;
            }
            let was = connection.treatment;
            let edit = handshake::answered(connection, &call.policy, segment, &options());
            let is = connection.treatment;
            if is != was {
                self.opened(call.owner, is);
            }
            edit
        } else {
            let edit = open::receive(connection, call.now, &call.policy, segment, news);
            // What tells of losses is wanted at once.
            if news.wait_us > 0 && options().has_sack {
                (news.wait_us, news.supersedes) = (0, true);
            }
            edit
        };
        if let Some(counters) = self.counters_mut(call.owner.endpoint) {
            news.count(counters);
        }
        self.settle(call, id, segment);
        edit
    }

    /// An entry was used: which class it is in now.
    fn settle(&mut self, call: &Call, id: Id, segment: &Segment) {
        let Some(connection) = self.connections.get(id) else { return };
        let both = bit::FIN_IN | bit::FIN_OUT;
        let class = if connection.bits & both == both || segment.has(tcp_flags::RST) {
            Class::Lingering
        } else if connections::is_open(connection) {
            Class::Open
        } else {
            Class::HalfOpen
        };
        self.connections.touch(call.now, id, call.owner.endpoint, class);
    }

    fn opened(&mut self, owner: Owner, treatment: Treatment) {
        let Some(counters) = self.counters_mut(owner.endpoint) else { return };
        match treatment {
            Treatment::Translated => counters.opened[0] += 1,
            Treatment::Native => counters.opened[1] += 1,
            Treatment::Plain => counters.opened[2] += 1,
            Treatment::Untouched(why) => counters.untouched[why as usize] += 1,
            Treatment::Opening => {}
        }
    }

    fn leave(&mut self, owner: Owner, why: Why) {
        if let Some(counters) = self.counters_mut(owner.endpoint) {
            counters.untouched[why as usize] += 1;
        }
    }
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

/// What holds while one frame is looked at.
#[derive(Clone, Copy, Debug)]
struct Call {
    now: Instant,
    owner: Owner,
    policy: Policy,
    memory: frame::Owner,
}

/// Whose a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The endpoint's tenant.
    pub tenant: TenantId,
    /// The endpoint.
    pub endpoint: EndpointId,
}
