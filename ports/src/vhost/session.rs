//! A session: what one front end has said, from its first message to the end of its connection.
//!
//! It has no socket. [`Session::handle`] takes a message and gives the answer; [`Session::port`]
//! makes the port of the rings that run. While such a port is in use, the messages of which
//! [`Session::must_rest`] says so wait until it is dropped: they say how rings and memory are, and
//! where a ring goes on ([`super::ring::Kept`]).

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::Arc;

use datapath::frame::MAX_FRAME;
use datapath::offload::OffloadSupport;
use rustix::event::{EventfdFlags, eventfd};

use super::foreign::{Closer, Foreign};
use super::memory::{Memory, MemoryError, Sharing};
use super::message::{self, Header, MOST_REGIONS, Region, Request, RingAddresses};
use super::port::{Form, LONG_HEADER_BYTES, Pair, VhostPort};
use super::ring::{Broken, Kept, MOST_ENTRIES, MOST_SLOW_US, Ring, Setup};
use crate::Features;
use crate::vnet::HEADER_BYTES;

/// Features of virtio (virtio 1.2, sections 5.1.3 and 6) and of vhost-user, by their bits.
pub mod feature {
    #![allow(missing_docs)] // Each is named as in the specification.
    pub const CSUM: u64 = 1 << 0;
    pub const GUEST_CSUM: u64 = 1 << 1;
    pub const MTU: u64 = 1 << 3;
    pub const GUEST_TSO4: u64 = 1 << 7;
    pub const GUEST_TSO6: u64 = 1 << 8;
    pub const GUEST_ECN: u64 = 1 << 9;
    pub const HOST_TSO4: u64 = 1 << 11;
    pub const HOST_TSO6: u64 = 1 << 12;
    pub const HOST_ECN: u64 = 1 << 13;
    pub const MRG_RXBUF: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
    pub const GUEST_ANNOUNCE: u64 = 1 << 21;
    pub const MQ: u64 = 1 << 22;
    pub const INDIRECT_DESC: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
    pub const IN_ORDER: u64 = 1 << 35;
    pub const GUEST_USO4: u64 = 1 << 54;
    pub const GUEST_USO6: u64 = 1 << 55;
    pub const HOST_USO: u64 = 1 << 56;
    /// All that take work off the guest, and off whom it speaks to.
    pub const OFFLOADS: u64 = CSUM
        | GUEST_CSUM
        | GUEST_TSO4
        | GUEST_TSO6
        | GUEST_ECN
        | HOST_TSO4
        | HOST_TSO6
        | HOST_ECN
        | GUEST_USO4
        | GUEST_USO6
        | HOST_USO;
}

/// Features of the protocol (`VHOST_USER_PROTOCOL_F_*`).
pub mod protocol {
    #![allow(missing_docs)] // Each is named as in the specification.
    pub const MQ: u64 = 1 << 0;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const MTU: u64 = 1 << 4;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
}

/// The most pairs of rings of a port.
pub const MOST_PAIRS: u32 = 8;
/// Bytes of an Ethernet header with a tag.
const HEADERS: usize = 18;

/// What is offered to a front end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Pairs of rings, 1 to [`MOST_PAIRS`].
    pub pairs: u32,
    /// Whether frames may be yet to be segmented and summed.
    pub offload: bool,
    /// Whether memory that its owner could cut short is refused.
    pub must_be_sealed: bool,
    /// Longest packet in bytes.
    pub mtu: u32,
}

impl Offer {
    /// The most that any port has.
    const MOST: Offer = Offer { pairs: MOST_PAIRS, offload: true, must_be_sealed: true, mtu: 0 };

    fn features(&self) -> u64 {
        use feature as f;
        let always = f::MTU
            | f::MRG_RXBUF
            | f::STATUS
            | f::GUEST_ANNOUNCE
            | f::INDIRECT_DESC
            | f::EVENT_IDX
            | f::PROTOCOL_FEATURES
            | f::VERSION_1
            | f::IN_ORDER;
        let pairs = if self.pairs > 1 { f::MQ } else { 0 };
        always | pairs | if self.offload { f::OFFLOADS } else { 0 }
    }

    fn protocol(&self) -> u64 {
        use protocol as p;
        p::MQ | p::REPLY_ACK | p::MTU | p::CONFIGURE_MEM_SLOTS | p::STATUS
    }
}

/// Why a session ends.
#[derive(Debug)]
pub enum Fault {
    /// A message makes no sense.
    Message(message::Fault),
    /// Its memory cannot be used.
    Memory(MemoryError),
    /// It speaks of a ring that there is not.
    Ring(u32),
    /// A ring has so many entries.
    Entries(u32),
    /// A ring goes on at such a place.
    Base(u32),
    /// A ring does not lie in its memory.
    Place(u32),
    /// It acknowledges features that were not offered.
    Features(u64),
    /// A message takes a descriptor, or one of another kind.
    Descriptor(&'static str),
    /// It wants a longer MTU.
    Mtu(u64, u32),
    /// The file of its memory is shorter than it was.
    Lost,
    /// Calling its guest takes long.
    Slow,
    /// The kernel refused.
    Kernel(&'static str, io::Error),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Message(fault) => write!(f, "{fault}"),
            Fault::Memory(error) => write!(f, "{error}"),
            Fault::Ring(ring) => {
                write!(f, "it speaks of ring {ring}, which was not offered; raise `queues`, or give the machine fewer")
            }
            Fault::Entries(entries) => {
                write!(f, "a ring has {entries} entries, which is no power of two from 2 to {MOST_ENTRIES}")
            }
            Fault::Base(base) => write!(f, "a ring goes on at {base}, which is no 16 bits"),
            Fault::Place(ring) => write!(f, "ring {ring} does not lie in the memory that it shares"),
            Fault::Features(bits) => write!(f, "it takes features that were not offered: {bits:#x}"),
            Fault::Descriptor(what) => write!(f, "{what}"),
            Fault::Mtu(wanted, has) => {
                write!(
                    f,
                    "it wants an MTU of {wanted} bytes, and this endpoint's is {has}; set `mtu`, or host_mtu of the machine"
                )
            }
            Fault::Lost => write!(f, "it took away some of the memory that it shares"),
            Fault::Slow => write!(f, "so many wait for its calls that each call keeps others waiting"),
            Fault::Kernel(step, error) => write!(f, "{step}: {error}"),
        }
    }
}

impl std::error::Error for Fault {}

impl From<message::Fault> for Fault {
    fn from(fault: message::Fault) -> Fault {
        Fault::Message(fault)
    }
}

impl From<MemoryError> for Fault {
    fn from(error: MemoryError) -> Fault {
        Fault::Memory(error)
    }
}

/// A ring as it was described.
#[derive(Debug)]
struct Described {
    entries: u16,
    place: Option<RingAddresses>,
    kept: Arc<Kept>,
    /// There while it runs.
    kick: Option<Foreign>,
    /// Where the guest is called: one descriptor for the whole session, of which what it is
    /// changes, so that a port need not rest for that.
    call: Arc<OwnedFd>,
    error: Option<Foreign>,
    is_enabled: bool,
    /// Whether it was since it runs: from then on what is in a ring that is not enabled is taken
    /// and forgotten. Before, it waits, as from one session to the next.
    was_enabled: bool,
    /// Its fault was told.
    is_told: bool,
}

/// What a message led to.
#[derive(Debug, Default)]
pub struct Done {
    /// What is to be sent back.
    pub answer: Option<Vec<u8>>,
    /// Whether the port, if there was one, is to be made anew.
    pub is_changed: bool,
    /// What the operator should know, once.
    pub note: Option<String>,
}

/// A session.
#[derive(Debug)]
pub struct Session {
    offer: Offer,
    /// Features that are offered besides.
    also_offered: u64,
    features: u64,
    protocol: u64,
    status: u64,
    memory: Memory,
    rings: Vec<Described>,
    unknown: u64,
    /// Who closes what the front end has sent.
    closer: Option<Arc<dyn Closer>>,
}

impl Session {
    /// A session of which nothing is known.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn new(offer: Offer) -> Result<Session, Fault> {
        super::prepare();
        let pairs = offer.pairs.clamp(1, MOST_PAIRS);
        let rings = (0..2 * pairs).map(|_| Described::new()).collect::<Result<_, _>>()?;
        let memory = Memory::default();
        Ok(Session {
            offer,
            also_offered: 0,
            features: 0,
            protocol: 0,
            status: 0,
            memory,
            rings,
            unknown: 0,
            closer: None,
        })
    }

    /// Leaves to `closer` what the front end has sent, when it is not wanted any more. Else it is
    /// closed at once, however long that takes.
    #[must_use]
    pub fn left_to(mut self, closer: &Arc<dyn Closer>) -> Session {
        self.closer = Some(Arc::clone(closer));
        self
    }

    /// Offers what its machine has taken before, too, as far as there is such: QEMU does not go on
    /// where that is missing. It is not used.
    #[must_use]
    pub fn offering(mut self, taken: u64) -> Session {
        self.also_offered |= taken & Offer::MOST.features();
        self
    }

    /// Features that its front end has taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.features
    }

    fn offered(&self) -> u64 {
        self.offer.features() | self.also_offered
    }

    /// Whether the port must be dropped before this can be handled.
    #[must_use]
    pub fn must_rest(request: &Request) -> bool {
        use Request as R;
        match request {
            R::SetFeatures(_)
            | R::ResetOwner
            | R::SetMemTable(_)
            | R::SetVringNum(..)
            | R::SetVringAddr(..)
            | R::SetVringBase(..)
            | R::GetVringBase(_)
            | R::SetVringKick(..)
            | R::SetVringEnable(..)
            | R::AddMemReg(_)
            | R::RemMemReg(_)
            | R::SetStatus(_) => true,
            R::GetFeatures
            | R::SetOwner
            | R::SetVringCall(..)
            | R::SetVringErr(..)
            | R::GetProtocolFeatures
            | R::SetProtocolFeatures(_)
            | R::GetQueueNum
            | R::NetSetMtu(_)
            | R::GetMaxMemSlots
            | R::GetStatus
            | R::Other(_) => false,
        }
    }

    /// Does what a message says. Descriptors that it does not take are let go.
    ///
    /// # Errors
    /// [`Fault`]: the session is to be ended.
    pub fn handle<D: Into<Foreign>>(
        &mut self,
        header: Header,
        request: Request,
        descriptors: Vec<D>,
    ) -> Result<Done, Fault> {
        let own = |descriptor: D| descriptor.into().left_to(self.closer.as_ref());
        let descriptors: Vec<Foreign> = descriptors.into_iter().map(own).collect();
        let must_acknowledge = header.need_reply && self.protocol & protocol::REPLY_ACK != 0;
        let is_changed = Session::must_rest(&request);
        let note = self.note(&request);
        let payload = self.act(request, descriptors)?;
        let answer = match payload {
            Some(payload) => Some(message::answer(header.request, &payload)),
            // Zero for what was done, else one.
            None if must_acknowledge => Some(message::answer(header.request, &u64::from(note.is_some()).to_ne_bytes())),
            None => None,
        };
        Ok(Done { answer, is_changed, note })
    }

    /// The first message of a kind that is not understood is worth a line.
    fn note(&mut self, request: &Request) -> Option<String> {
        let Request::Other(number) = request else { return None };
        let bit = 1u64.checked_shl(*number).unwrap_or(1);
        let is_new = self.unknown & bit == 0;
        self.unknown |= bit;
        Some(if is_new { format!("request {number} is not understood, and ignored") } else { String::new() })
    }

    fn act(&mut self, request: Request, descriptors: Vec<Foreign>) -> Result<Option<Vec<u8>>, Fault> {
        let word = |word: u64| Ok(Some(word.to_ne_bytes().to_vec()));
        match request {
            Request::GetFeatures => return word(self.offered()),
            Request::GetProtocolFeatures => return word(self.offer.protocol()),
            Request::GetQueueNum => return word(self.rings.len() as u64 / 2),
            Request::GetMaxMemSlots => return word(MOST_REGIONS as u64),
            Request::GetStatus => return word(self.status),
            Request::GetVringBase(number) => {
                let ring = self.ring(number)?;
                ring.stop();
                let base = u32::from(ring.kept.next());
                return Ok(Some([number.to_ne_bytes(), base.to_ne_bytes()].concat()));
            }
            Request::SetFeatures(bits) => {
                if bits & !self.offered() != 0 {
                    return Err(Fault::Features(bits & !self.offered()));
                }
                self.features = bits;
            }
            Request::SetProtocolFeatures(bits) => self.protocol = bits & self.offer.protocol(),
            Request::ResetOwner => {
                for ring in &mut self.rings {
                    ring.stop();
                    ring.is_enabled = false;
                }
            }
            Request::SetStatus(status) => {
                self.status = status;
                if status == 0 {
                    self.rings.iter_mut().for_each(Described::stop);
                }
            }
            Request::SetMemTable(regions) => self.set_memory(regions, descriptors)?,
            Request::AddMemReg(region) => {
                let file = descriptors.into_iter().next().ok_or(MemoryError::Unshared)?;
                // QEMU 7.2 tells of each region that comes or goes once for each pair of rings.
                if !self.memory.has(region) {
                    let sharing = self.sharing();
                    self.memory = std::mem::take(&mut self.memory).with(region, file, &sharing)?;
                }
            }
            Request::RemMemReg(region) => self.memory = std::mem::take(&mut self.memory).without(region),
            Request::NetSetMtu(mtu) if mtu > u64::from(self.offer.mtu) => return Err(Fault::Mtu(mtu, self.offer.mtu)),
            Request::SetOwner | Request::NetSetMtu(_) | Request::Other(_) => {}
            ring => self.act_on_ring(ring, descriptors)?,
        }
        Ok(None)
    }

    fn act_on_ring(&mut self, request: Request, descriptors: Vec<Foreign>) -> Result<(), Fault> {
        let mut descriptors = descriptors.into_iter();
        let mut event = |comes: bool| match (comes, descriptors.next()) {
            (true, Some(descriptor)) => notice(descriptor).map(Some),
            (true, None) => Err(Fault::Descriptor("a message about a ring comes without its descriptor")),
            (false, _) => Ok(None),
        };
        match request {
            Request::SetVringNum(number, entries) => {
                let good = entries.is_power_of_two() && (2..=MOST_ENTRIES).contains(&entries);
                self.ring(number)?.entries = if good { entries as u16 } else { return Err(Fault::Entries(entries)) };
            }
            Request::SetVringAddr(number, place) => self.ring(number)?.place = Some(place),
            Request::SetVringBase(number, base) => {
                let base = u16::try_from(base).map_err(|_| Fault::Base(base))?;
                let ring = self.ring(number)?;
                ring.kept.begin(base);
                ring.is_told = false;
            }
            Request::SetVringKick(number, comes) => {
                let kick = event(comes)?.ok_or(Fault::Descriptor(
                    "it wants a ring to be looked at without being kicked, which is not done here",
                ))?;
                let has_protocol = self.features & feature::PROTOCOL_FEATURES != 0;
                let ring = self.ring(number)?;
                ring.kick = Some(kick);
                // Without these, there is nobody to enable it.
                ring.is_enabled |= !has_protocol;
                ring.was_enabled |= ring.is_enabled;
                ring.call_once();
            }
            Request::SetVringCall(number, comes) => {
                let call = match event(comes)? {
                    Some(call) => call,
                    None => silent()?.into(),
                };
                let closer = self.closer.clone();
                let ring = self.ring(number)?;
                // What it was goes as all descriptors do.
                let _before = ring.call.try_clone().map(|before| Foreign::from(before).left_to(closer.as_ref()));
                // What the port writes to becomes another, in one step.
                // SAFETY: both are open; the number stays what it was.
                if unsafe { libc::dup3(call.as_raw_fd(), ring.call.as_raw_fd(), libc::O_CLOEXEC) } < 0 {
                    return Err(Fault::Kernel("taking a ring's descriptor", io::Error::last_os_error()));
                }
                ring.call_once();
            }
            Request::SetVringErr(number, comes) => self.ring(number)?.error = event(comes)?,
            Request::SetVringEnable(number, on) => {
                let ring = self.ring(number)?;
                ring.is_enabled = on;
                ring.was_enabled |= on;
            }
            _ => {}
        }
        Ok(())
    }

    fn ring(&mut self, number: u32) -> Result<&mut Described, Fault> {
        self.rings.get_mut(number as usize).ok_or(Fault::Ring(number))
    }

    fn set_memory(&mut self, regions: Vec<Region>, descriptors: Vec<Foreign>) -> Result<(), Fault> {
        if regions.len() != descriptors.len() || regions.is_empty() {
            return Err(MemoryError::Unshared.into());
        }
        // What was goes first: it may be the same.
        self.memory = Memory::default();
        let regions = regions.into_iter().zip(descriptors).collect();
        self.memory = Memory::new(regions, &self.sharing())?;
        Ok(())
    }

    fn sharing(&self) -> Sharing {
        Sharing { must_be_sealed: self.offer.must_be_sealed, closer: self.closer.clone() }
    }

    /// The messages that make a new session what this one is, each with its descriptors: what
    /// another process goes on with. The port must be dropped before: where a ring goes on is said
    /// when it is.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn retold(&self) -> io::Result<Vec<(Vec<u8>, Vec<OwnedFd>)>> {
        let mut told =
            vec![(Request::SetProtocolFeatures(self.protocol), vec![]), (Request::SetFeatures(self.features), vec![])];
        if self.status != 0 {
            told.push((Request::SetStatus(self.status), vec![]));
        }
        if !self.memory.is_empty() {
            let (regions, files): (Vec<_>, Vec<_>) = self.memory.regions().unzip();
            let files = files.into_iter().map(|file| file.try_clone_to_owned()).collect::<io::Result<_>>()?;
            told.push((Request::SetMemTable(regions), files));
        }
        for (number, ring) in (0u32..).zip(&self.rings) {
            ring.retell(number, &mut told)?;
        }
        Ok(told.into_iter().filter_map(|(request, descriptors)| Some((request.message(false)?, descriptors))).collect())
    }

    /// Does what one of the messages of [`Session::retold`] says.
    ///
    /// # Errors
    /// [`Fault`]: the session is to be ended.
    pub fn learn(&mut self, message: &[u8], descriptors: Vec<OwnedFd>) -> Result<(), Fault> {
        let cut = || message::Fault::Size(0, message.len());
        let (header, payload) = message.split_first_chunk().ok_or_else(cut)?;
        let header = Header::parse(header)?;
        let request = Request::parse(header.request, payload)?;
        if let Request::SetFeatures(bits) = request {
            self.also_offered |= bits & Offer::MOST.features();
        }
        self.handle(header, request, descriptors).map(drop)
    }

    /// How the guest reads and writes frames, as far as it is known.
    #[must_use]
    pub fn form(&self) -> Form {
        let has = |bits: u64| self.features & bits == bits;
        // What was offered for the machine's sake alone is not used.
        let csum = self.offer.offload && has(feature::GUEST_CSUM);
        let offload = OffloadSupport {
            csum,
            tso4: csum && has(feature::GUEST_TSO4),
            tso6: csum && has(feature::GUEST_TSO6),
            tso_ecn: csum && has(feature::GUEST_ECN),
            uso: csum && has(feature::GUEST_USO4 | feature::GUEST_USO6),
            tunnel: false,
        };
        let is_mergeable = has(feature::MRG_RXBUF);
        let header_bytes = if is_mergeable || has(feature::VERSION_1) { LONG_HEADER_BYTES } else { HEADER_BYTES };
        let max_frame =
            if offload.tso4 || offload.tso6 || offload.uso { MAX_FRAME } else { self.offer.mtu as usize + HEADERS };
        let features = Features { offload, can_pause: true, reports_drops: false, max_frame };
        Form { features, is_mergeable, header_bytes }
    }

    /// A port of the rings that run; `None` where there is none. It must be dropped before the next
    /// is made.
    ///
    /// # Errors
    /// [`Fault`]: the session is to be ended.
    pub fn port(&self) -> Result<Option<VhostPort>, Fault> {
        let (mut pairs, mut kicks) = (Vec::new(), Vec::new());
        for (number, rings) in (0u32..).step_by(2).zip(self.rings.chunks_exact(2)) {
            let to_guest = if rings[0].is_enabled { self.run(number, &rings[0])? } else { None };
            let from_guest = if rings[1].was_enabled { self.run(number + 1, &rings[1])? } else { None };
            if to_guest.is_some() || from_guest.is_some() {
                kicks.extend(rings[1].kick.as_ref().map(AsFd::as_fd));
                pairs.push(Pair { from_guest: from_guest.map(|ring| (ring, rings[1].is_enabled)), to_guest });
            }
        }
        if pairs.is_empty() {
            return Ok(None);
        }
        let port = VhostPort::new(pairs, kicks, self.form());
        port.map(Some).map_err(|error| Fault::Kernel("making its port", error))
    }

    fn run(&self, number: u32, ring: &Described) -> Result<Option<Ring>, Fault> {
        let (Some(_), Some(place)) = (&ring.kick, ring.place) else { return Ok(None) };
        let setup = Setup {
            memory: &self.memory,
            place,
            entries: ring.entries,
            event_idx: self.features & feature::EVENT_IDX != 0,
            kept: Arc::clone(&ring.kept),
            call: Arc::clone(&ring.call),
        };
        Ring::new(setup).map(Some).ok_or(Fault::Place(number))
    }

    /// Rings that broke since the last call, with why; their front end is told.
    pub fn broken(&mut self) -> Vec<(usize, Broken)> {
        let mut all = Vec::new();
        for (number, ring) in self.rings.iter_mut().enumerate().filter(|(_, ring)| !ring.is_told) {
            let Some(broken) = ring.kept.broken() else { continue };
            ring.is_told = true;
            all.push((number, broken));
            if let Some(error) = &ring.error {
                ring.kept.call(error);
            }
        }
        all
    }

    /// Whether the front end has taken memory away.
    #[must_use]
    pub fn has_lost_memory(&self) -> bool {
        self.memory.is_lost()
    }

    /// Whether calling its guest takes so long that others would wait for it.
    #[must_use]
    pub fn has_slow_calls(&self) -> bool {
        let all = self.rings.iter().fold(0u32, |sum, ring| sum.saturating_add(ring.kept.slow_calls_us()));
        all >= MOST_SLOW_US
    }

    /// A second has passed: what calls took before counts less.
    pub fn forget_slow_calls(&self) {
        self.rings.iter().for_each(|ring| ring.kept.forget_slow_calls());
    }

    /// Whether rings run in which the guest, by what can be seen here, has never put anything: its
    /// memory is not the one that is shared.
    #[must_use]
    pub fn looks_unshared(&self) -> bool {
        let runs = |number: u32| self.run(number, &self.rings[number as usize]).ok().flatten();
        self.rings.len() >= 2 && runs(0).zip(runs(1)).is_some_and(|(a, b)| a.is_untouched() && b.is_untouched())
    }

    /// Pairs of rings that run.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.rings
            .chunks_exact(2)
            .filter(|rings| rings.iter().all(|ring| ring.kick.is_some() && ring.is_enabled))
            .count()
    }
}

impl Described {
    fn new() -> Result<Described, Fault> {
        let (kept, call) = (Arc::default(), Arc::new(silent()?));
        Ok(Described {
            entries: 0,
            place: None,
            kept,
            kick: None,
            call,
            error: None,
            is_enabled: false,
            was_enabled: false,
            is_told: false,
        })
    }
}

impl Described {
    /// From here on it does not run.
    fn stop(&mut self) {
        (self.kick, self.was_enabled) = (None, false);
    }

    /// Calls the guest, whatever it wants: a process before this one may have been killed between
    /// using chains and calling for them, and there may be no others for which it would be called.
    fn call_once(&self) {
        if self.kick.is_some() {
            self.kept.call(&self.call);
        }
    }

    /// See [`Session::retold`].
    fn retell(&self, number: u32, told: &mut Vec<(Request, Vec<OwnedFd>)>) -> io::Result<()> {
        if self.entries > 0 {
            told.push((Request::SetVringNum(number, self.entries.into()), vec![]));
        }
        told.push((Request::SetVringBase(number, self.kept.next().into()), vec![]));
        told.extend(self.place.map(|place| (Request::SetVringAddr(number, place), vec![])));
        told.push((Request::SetVringCall(number, true), vec![self.call.try_clone()?]));
        if let Some(error) = &self.error {
            told.push((Request::SetVringErr(number, true), vec![error.try_clone()?]));
        }
        if let Some(kick) = &self.kick {
            told.push((Request::SetVringKick(number, true), vec![kick.try_clone()?]));
        }
        if self.was_enabled {
            told.push((Request::SetVringEnable(number, true), vec![]));
        }
        // Last: without protocol features, a kick enables it.
        told.push((Request::SetVringEnable(number, self.is_enabled), vec![]));
        Ok(())
    }
}

/// A descriptor that nobody looks at.
fn silent() -> Result<OwnedFd, Fault> {
    let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    made.map_err(|error| Fault::Kernel("making a descriptor", error.into()))
}

/// A descriptor for notices. Anything but an eventfd might keep who writes to it waiting for ever.
fn notice(descriptor: Foreign) -> Result<Foreign, Fault> {
    let kernel = |error: rustix::io::Errno| Fault::Kernel("looking at a ring's descriptor", error.into());
    let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let kind = rustix::fs::readlink(link, Vec::new()).map_err(kernel)?;
    if kind.as_bytes() != b"anon_inode:[eventfd]" {
        return Err(Fault::Descriptor("a ring's descriptor is no eventfd"));
    }
    let flags = rustix::fs::fcntl_getfl(&descriptor).map_err(kernel)?;
    rustix::fs::fcntl_setfl(&descriptor, flags | rustix::fs::OFlags::NONBLOCK).map_err(kernel)?;
    Ok(descriptor)
}
