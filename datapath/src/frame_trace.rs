//! The trace of one frame, explained: what each stage sees of it and decides, and by which entry
//! of which table.
//!
//! [`crate::switch::Switch::explain`] makes it without changing anything. Steps are plain values;
//! [`FrameTrace::lines`] puts them into words, with the names that the caller gives to endpoints
//! and ports, which are numbers here.

use crate::bond::Way;
use crate::bond::number::Number;
use crate::bond::order::OrderDecision;
use crate::flood::Whose;
use crate::frame::PoolLimits;
use crate::guard::Finding;
use crate::offload::Gso;
use crate::owners::Owner;
use crate::pair;
use crate::program::{EndpointId, MemberId, PortId, Share};
use crate::sched::lane::Admission;
use crate::sched::limits::Plane;
use crate::service::ServiceId;
use crate::units::{Direction, Rate};
use crate::vcc::Told;
use crate::verdict::{Reason, Verdict};
use crate::wire::Mac;
use core::fmt;
use core::net::IpAddr;

/// What became, or would become, of a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrameTrace {
    /// Stage by stage, in the frame's order.
    pub steps: Vec<Step>,
    /// What `Switch::rx` says of it.
    pub verdict: Verdict,
}

/// The headers, as the switch sees them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Headers {
    /// Bytes, without preamble and FCS.
    pub len: usize,
    /// Ethernet source.
    pub source: Mac,
    /// Ethernet destination.
    pub destination: Mac,
    /// The outermost tag's VLAN id.
    pub vlan: Option<u16>,
    /// EtherType behind the tag.
    pub ethertype: u16,
    /// Source and destination on the network layer (of ARP: the sender, and who is asked for).
    pub addresses: Option<(IpAddr, IpAddr)>,
    /// What follows the network layer.
    pub transport: Transport,
    /// It is a fragment.
    pub fragment: bool,
    /// How it is to be cut.
    pub gso: Gso,
    /// Frames that it is on the wire.
    pub segments: u32,
    /// Bytes that it takes there.
    pub wire_bytes: u32,
    /// Its checksum is yet to be finished.
    pub needs_csum: bool,
}

/// The transport layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// ARP, which has none.
    Arp,
    /// TCP with its ports.
    Tcp(u16, u16),
    /// UDP with its ports.
    Udp(u16, u16),
    /// ICMP of either version: type and code.
    Icmp(u8, u8),
    /// Something else.
    Other,
}

/// What the table of a network says of a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The endpoint has declared the address.
    Declared(EndpointId),
    /// The address was learned from the endpoint, and last seen so many nanoseconds ago.
    Learned(EndpointId, u64),
    /// Nobody here has it: the uplink.
    Uplink,
    /// This other host has it.
    Host(IpAddr),
    /// A group address: everyone, the uplink included where `uplink` says so.
    Group {
        /// Endpoints that get a copy.
        receivers: u32,
        /// Whether one goes to the uplink.
        uplink: bool,
    },
    /// Nobody has declared it: those whose addresses are learned, and the uplink.
    Unknown {
        /// Endpoints that get a copy.
        receivers: u32,
        /// Whether one goes to the uplink.
        uplink: bool,
    },
    /// Nobody has it, and there is no way out.
    Nowhere,
}

/// A lane, as the frame would find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queue {
    /// Whose.
    pub endpoint: EndpointId,
    /// Which way.
    pub direction: Direction,
    /// Over the uplink, or between neighbours.
    pub plane: Plane,
    /// Frames that wait before it.
    pub frames: u32,
    /// Their wire bytes.
    pub bytes: u64,
    /// The most that may wait.
    pub bound: u32,
    /// The endpoint's knobs.
    pub share: Share,
    /// For how long its limit, or its tenant's, lets nothing go.
    pub wait_ns: u64,
    /// How much of the frame it takes.
    pub admission: Admission,
    /// The buffers of another flow's frames that go for it.
    pub displaced: PoolLimits,
}

/// How a frame is given to its port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Emit {
    /// The port.
    pub port: PortId,
    /// A tag that is put on before.
    pub tag: Option<u16>,
    /// The tag that is taken off before.
    pub untag: Option<u16>,
    /// The tunnel whose headers are put around: its network identifier, and the host at its other
    /// end.
    pub tunnel: Option<(u32, IpAddr)>,
    /// Frames that the switch cuts it into because the port cannot; 1 where it leaves whole.
    pub cut: u32,
    /// Whether the switch finishes its checksum because the port cannot.
    pub checksum: bool,
    /// Why it cannot leave.
    pub refused: Option<Reason>,
}

/// What is done with a frame of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Served {
    /// Its connection is known: to this backend.
    Known(IpAddr, u16),
    /// It opens a connection, which this backend gets; or would get, as nothing is remembered of
    /// what is only explained.
    New(IpAddr, u16),
    /// Its connection is not known: this backend, which may have it, is asked.
    Sought(IpAddr, u16),
    /// It is from this backend, of a connection that is not known, and gets the service's address.
    Heard(IpAddr, u16),
    /// It is between a client and this backend without the service.
    Direct(IpAddr, u16),
    /// A backend refused it: this one is asked instead.
    Retry(IpAddr, u16),
    /// This backend does not know the connection: another is asked.
    Denied(IpAddr, u16),
    /// This backend is let go: its connection ends with a reset to both.
    Cut(IpAddr, u16),
    /// All backends have as many connections as they may have: it waits.
    Held,
    /// No backend takes it.
    Down,
    /// It is from this backend, and gets the service's address.
    Back(IpAddr, u16),
    /// It is an ICMP error about a connection with this backend.
    Error(IpAddr, u16),
    /// It is answered at once, with this.
    Answer(&'static str),
    /// It answers a check of its backend.
    Check,
}

/// One stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Which port it came in by, and what for that port is.
    Arrive(PortId, Option<EndpointId>),
    /// The headers and offload metadata; or why they make no sense.
    Look(Result<Headers, Reason>),
    /// May this endpoint send it?
    Guard(Box<Finding>),
    /// It claims this address, which is somebody else's.
    Claim(IpAddr, Reason, Owner),
    /// Its source address is learned, or why not; and the endpoint that has it.
    Learn(Mac, Result<(), Reason>, Option<EndpointId>),
    /// From the uplink, out of a tunnel: its network identifier and the host that sent it; or why
    /// it is refused.
    Open(Result<(u32, IpAddr), Reason>),
    /// So many datagrams of tunnels, which are cut from each other and not followed further.
    Train(u32),
    /// From a bond's member, with a number, which is taken off; or why it is not.
    Number(Result<Number, Reason>),
    /// When it goes on, by its number, or why it does not. What it meets then is told as it is now.
    Turn(Result<OrderDecision, Reason>),
    /// From the uplink: the transit checks, its network's VLAN, and the endpoint that has declared
    /// its source.
    Enter(Result<Option<u16>, Reason>),
    /// Virtual congestion control, for the guest of this endpoint.
    Vcc(EndpointId, Box<Told>),
    /// It concerns a service: which one, and what is done.
    Service(ServiceId, Served),
    /// Client and backend are both outside: it goes out again, as a frame of this endpoint.
    Turned(EndpointId),
    /// Taken aside for the protocols beside the switch, or too many of such frames wait.
    Control(Result<(), Reason>),
    /// Where it goes.
    Forward(Mac, Found),
    /// It goes nowhere.
    Refuse(Reason),
    /// The flood budget: how many frames are left of it, and whose it is.
    Flood(u64, Whose),
    /// This flood budget is used up, and what may be outside goes there alone.
    OnlyOutside(Whose),
    /// This flood budget is used up.
    Spent(Whose),
    /// The queue before a limit on what this endpoint sends toward its destination, or in all.
    Pair(EndpointId, pair::Found),
    /// A lane.
    Queue(Queue),
    /// The ingress policer: for whom, segments that pass, and of how many.
    Police(EndpointId, u32, u32),
    /// The copies that neighbours get, which are not followed further.
    Copies(u32),
    /// The copies that other hosts get through tunnels, which are not followed further.
    Hosts(u32),
    /// Over which member of a bond it leaves, as it is now, and with which number; or why none can
    /// send it.
    Member(Result<Way, Reason>),
    /// The port.
    Emit(Emit),
}

impl Step {
    /// The stage's name, as the documentation has it.
    #[must_use]
    pub fn stage(&self) -> &'static str {
        match self {
            Step::Arrive(..) => "arrive",
            Step::Look(_) => "look",
            Step::Guard(_) | Step::Claim(..) => "guard",
            Step::Learn(..) => "learn",
            Step::Number(_) | Step::Turn(_) => "order",
            Step::Enter(_) => "enter",
            Step::Vcc(..) => "vcc",
            Step::Service(..) | Step::Turned(_) => "service",
            Step::Control(_) => "control",
            Step::Open(_) | Step::Train(_) => "tunnel",
            Step::Forward(..) | Step::Refuse(_) | Step::Copies(_) | Step::Hosts(_) => "forward",
            Step::Flood(..) | Step::OnlyOutside(_) | Step::Spent(_) => "flood",
            Step::Pair(..) => "pair",
            Step::Queue(_) => "queue",
            Step::Police(..) => "police",
            Step::Emit(_) => "emit",
            Step::Member(_) => "member",
        }
    }

    /// Why the frame ends here, where it does.
    #[must_use]
    pub fn refusal(&self) -> Option<Reason> {
        match *self {
            Step::Look(Err(reason))
            | Step::Claim(_, reason, _)
            | Step::Learn(_, Err(reason), _)
            | Step::Enter(Err(reason))
            | Step::Number(Err(reason))
            | Step::Turn(Err(reason))
            | Step::Control(Err(reason))
            | Step::Open(Err(reason))
            | Step::Member(Err(reason))
            | Step::Refuse(reason)
            | Step::Pair(_, pair::Found { admission: Admission::Refused(reason), .. })
            | Step::Queue(Queue { admission: Admission::Refused(reason), .. })
            | Step::Emit(Emit { refused: Some(reason), .. }) => Some(reason),
            Step::Guard(ref finding) => finding.verdict.err(),
            Step::Spent(_) => Some(Reason::FloodLimit),
            Step::Police(_, 0, _) => Some(Reason::Policed),
            Step::Vcc(_, ref told) if told.is_refused => Some(Reason::VccWindow),
            _ => None,
        }
    }
}

/// Names for what the switch knows by number.
pub trait Names {
    /// An endpoint.
    fn endpoint(&self, endpoint: EndpointId) -> String;
    /// A port.
    fn port(&self, port: PortId) -> String;
    /// A service.
    fn service(&self, service: ServiceId) -> String {
        format!("service {}", service.0)
    }
}

/// The numbers themselves.
#[derive(Clone, Copy, Debug)]
pub struct Numbers;

impl Names for Numbers {
    fn endpoint(&self, endpoint: EndpointId) -> String {
        format!("endpoint {}", endpoint.0)
    }

    fn port(&self, port: PortId) -> String {
        format!("port {}", port.0)
    }
}

impl FrameTrace {
    /// What becomes of the frame in the end, as far as can be said now: behind a queue it may still
    /// be dropped, and of a flood each copy has its own end.
    #[must_use]
    pub fn fate(&self) -> Verdict {
        let flooded = self.steps.iter().any(|step| matches!(step, Step::Flood(..)));
        match self.steps.iter().find_map(Step::refusal) {
            Some(reason) if !flooded => Verdict::Dropped(reason),
            _ => self.verdict,
        }
    }

    /// Each stage's name, and what it says.
    pub fn lines<'a>(&'a self, names: &'a dyn Names) -> impl Iterator<Item = (&'static str, String)> + 'a {
        self.steps.iter().map(move |step| (step.stage(), Words(step, names).to_string()))
    }
}

impl fmt::Display for FrameTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (stage, text) in self.lines(&Numbers) {
            writeln!(f, "{stage:<8}{text}")?;
        }
        write!(f, "{}", self.fate())
    }
}

/// An address with its port.
struct Socket<'a>(&'a IpAddr, &'a u16);

impl fmt::Display for Socket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::SocketAddr::new(*self.0, *self.1).fmt(f)
    }
}

/// A step in words.
struct Words<'a>(&'a Step, &'a dyn Names);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Words(step, names) = *self;
        match step {
            Step::Arrive(port, None) => write!(f, "at {}, the uplink", names.port(*port)),
            Step::Arrive(port, Some(endpoint)) => {
                write!(f, "at {}, from {}", names.port(*port), names.endpoint(*endpoint))
            }
            Step::Look(Ok(headers)) => write!(f, "{headers}"),
            Step::Look(Err(reason)) => write!(f, "refused ({}): its headers or offloads make no sense", reason.name()),
            Step::Guard(finding) => write!(f, "{finding}"),
            Step::Learn(mac, Ok(()), _) => write!(f, "{mac} is, or stays, learned here"),
            Step::Learn(mac, Err(reason), owner) => {
                write!(f, "refused ({}): {mac} ", reason.name())?;
                not_learned(f, *reason, owner.map(|owner| names.endpoint(owner)))
            }
            Step::Claim(address, reason, owner) => {
                write!(f, "refused ({}): {address} ", reason.name())?;
                claimed(f, *owner, names)
            }
            Step::Number(Ok(number)) => write!(f, "number {} of the bond", number.value),
            Step::Turn(Ok(OrderDecision::Next | OrderDecision::First)) => write!(f, "it is its turn"),
            Step::Turn(Ok(OrderDecision::Later)) => write!(f, "it waits for its turn behind earlier ones"),
            Step::Turn(Ok(OrderDecision::Late)) => write!(f, "its turn has passed: it goes on out of order"),
            Step::Turn(Err(Reason::Duplicate)) => write!(f, "refused (duplicate): it has come already"),
            Step::Enter(Ok(None)) => write!(f, "into the untagged network"),
            Step::Enter(Ok(Some(vlan))) => write!(f, "into the network of VLAN {vlan}"),
            Step::Control(Ok(())) => write!(f, "a control frame, for the switch itself"),
            Step::Enter(Err(reason))
            | Step::Number(Err(reason))
            | Step::Turn(Err(reason))
            | Step::Open(Err(reason))
            | Step::Control(Err(reason)) => {
                write!(f, "refused ({})", reason.name())
            }
            Step::Open(Ok((vni, from))) => write!(f, "out of VXLAN {vni}, from {from}"),
            Step::Vcc(_, told) => write!(f, "{told}"),
            Step::Service(service, what) => {
                write!(f, "{}: ", names.service(*service))?;
                match what {
                    Served::Known(ip, port) => write!(f, "connection known, to backend {}", Socket(ip, port)),
                    Served::New(ip, port) => write!(f, "new connection, to backend {}", Socket(ip, port)),
                    Served::Sought(ip, port) => {
                        write!(f, "connection not known, asked of backend {}", Socket(ip, port))
                    }
                    Served::Heard(ip, port) => {
                        write!(f, "connection not known, of backend {}, with the service's address", Socket(ip, port))
                    }
                    Served::Direct(ip, port) => {
                        write!(f, "between a client and backend {} without the service", Socket(ip, port))
                    }
                    Served::Retry(ip, port) => {
                        write!(f, "refused: the connection goes to backend {} instead", Socket(ip, port))
                    }
                    Served::Denied(ip, port) => {
                        write!(f, "not known to backend {}: another is asked", Socket(ip, port))
                    }
                    Served::Cut(ip, port) => {
                        write!(f, "backend {} is let go: both sides get a reset", Socket(ip, port))
                    }
                    Served::Held => write!(f, "all backends are at max_connections: a copy of it waits"),
                    Served::Down => write!(f, "no backend is up"),
                    Served::Back(ip, port) => {
                        write!(f, "from backend {}, with the service's address", Socket(ip, port))
                    }
                    Served::Error(ip, port) => {
                        write!(f, "an error about a connection with backend {}", Socket(ip, port))
                    }
                    Served::Answer(what) => write!(f, "answered with {what}"),
                    Served::Check => write!(f, "the answer to a health check, for the switch"),
                }
            }
            Step::Turned(director) => {
                write!(f, "turned around, as a frame of endpoint {}", names.endpoint(*director))
            }
            Step::Train(datagrams) => write!(f, "cut into {datagrams} datagrams, each of which goes its own way"),
            Step::Forward(mac, found) => forward(f, *mac, *found, names),
            Step::OnlyOutside(whose) => write!(f, "to the uplink alone: the {} is used up", budget(*whose)),
            Step::Spent(whose) => write!(f, "refused (flood-limit): the {} is used up", budget(*whose)),
            Step::Refuse(reason) => write!(f, "refused ({})", reason.name()),
            Step::Flood(left, whose) => write!(f, "passes: {left} frames are left of the {}", budget(*whose)),
            Step::Pair(from, found) => pair_words(f, *from, found, names),
            Step::Queue(queue) => queue_words(f, queue, names),
            Step::Police(endpoint, passed, of) => {
                write!(f, "the bucket of {} lets {passed} of {of} segments pass", names.endpoint(*endpoint))
            }
            Step::Copies(receivers) => write!(f, "a copy for each of {receivers} neighbours"),
            Step::Hosts(hosts) => write!(f, "a copy for each of {hosts} hosts that have the tenant"),
            Step::Emit(emit) => emit_words(f, emit, names),
            Step::Member(way) => member_words(f, *way),
        }
    }
}

fn budget(whose: Whose) -> &'static str {
    match whose {
        Whose::Sender => "sender's flood budget",
        Whose::Tenant => "flood budget of the sender's tenant",
        Whose::Network => "network's flood budget for frames from the uplink",
    }
}

fn not_learned(f: &mut fmt::Formatter<'_>, reason: Reason, owner: Option<String>) -> fmt::Result {
    match (owner, reason) {
        (Some(owner), _) => write!(f, "belongs to {owner}"),
        (None, Reason::SeenOutside) => write!(f, "was seen outside: it is learned once it has aged there"),
        (None, Reason::OutsideFull) => write!(f, "may be outside, where there are more addresses than are remembered"),
        (None, Reason::Undeclared) => write!(f, "is not declared, and tenants share the network"),
        (None, Reason::SpoofedMac) => write!(f, "is listed as outside, or belongs to an endpoint of another host"),
        (None, _) => write!(f, "is one address too many"),
    }
}

fn claimed(f: &mut fmt::Formatter<'_>, owner: Owner, names: &dyn Names) -> fmt::Result {
    match owner {
        Owner::Declared(owner) => {
            write!(f, "belongs to {}, which has declared it or its MAC address", names.endpoint(owner))
        }
        Owner::Held(owner) => write!(f, "belongs to {}, which came first", names.endpoint(owner)),
        Owner::Listed => write!(
            f,
            "is listed as outside or by an endpoint of another host, or made from a MAC address that is not the sender's"
        ),
        Owner::Outside => write!(f, "was seen outside"),
        Owner::Unknown => write!(f, "may be outside, where there are more addresses than are remembered"),
    }
}

fn forward(f: &mut fmt::Formatter<'_>, mac: Mac, found: Found, names: &dyn Names) -> fmt::Result {
    let out = |uplink| if uplink { " and to the uplink" } else { "" };
    match found {
        Found::Declared(to) => write!(f, "to {}, which has declared {mac}", names.endpoint(to)),
        Found::Learned(to, age_ns) => {
            let seconds = age_ns / 1_000_000_000;
            write!(f, "to {}, from which {mac} was learned; last seen {seconds} s ago", names.endpoint(to))
        }
        Found::Host(host) => write!(f, "to the host {host}, which has {mac}"),
        Found::Uplink => write!(f, "to the uplink: nobody here has {mac}"),
        Found::Group { receivers, uplink } => {
            write!(f, "{mac} is a group: to {receivers} neighbours{}", out(uplink))
        }
        Found::Unknown { receivers, uplink } => {
            write!(f, "nobody has declared {mac}: to {receivers} neighbours whose addresses are learned{}", out(uplink))
        }
        Found::Nowhere => write!(f, "nobody in this network has {mac}"),
    }
}

fn admission_words(f: &mut fmt::Formatter<'_>, admission: Admission, displaced: PoolLimits) -> fmt::Result {
    match admission {
        Admission::Whole => write!(f, "waits ")?,
        Admission::Trimmed(surplus) => write!(f, "waits, less {surplus} segments that do not fit, ")?,
        Admission::Refused(reason) => return write!(f, "refused ({}) by ", reason.name()),
    }
    match displaced.buffers() {
        0 => write!(f, "in "),
        frames => write!(f, "in place of {frames} frames of another flow, in "),
    }
}

fn pair_words(f: &mut fmt::Formatter<'_>, from: EndpointId, found: &pair::Found, names: &dyn Names) -> fmt::Result {
    admission_words(f, found.admission, found.displaced)?;
    let pair::Found { pair: pair::PairStats { to, rate, stats }, bound, wait_ns, .. } = found;
    write!(f, "the queue from {} toward {to} ", names.endpoint(from))?;
    write!(f, "behind {} frames, {} of {bound} bytes; at most {rate}", stats.backlog_frames, stats.backlog_bytes)?;
    wait_words(f, *wait_ns)
}

fn wait_words(f: &mut fmt::Formatter<'_>, wait_ns: u64) -> fmt::Result {
    match wait_ns {
        0 => Ok(()),
        ns => write!(f, "; over a limit, which opens in {} us", ns.div_ceil(1000)),
    }
}

fn queue_words(f: &mut fmt::Formatter<'_>, queue: &Queue, names: &dyn Names) -> fmt::Result {
    let (way, whose) = match queue.direction {
        Direction::Egress => ("egress", "sender"),
        Direction::Ingress => ("ingress", "receiver"),
    };
    let plane = if queue.plane == Plane::Local { " between neighbours" } else { "" };
    admission_words(f, queue.admission, queue.displaced)?;
    let bound = queue.bound;
    write!(f, "the {whose}'s {way} queue{plane} ({}) ", names.endpoint(queue.endpoint))?;
    write!(f, "behind {} frames, {} of {bound} bytes; ", queue.frames, queue.bytes)?;
    let Share { guarantee, limit, weight } = queue.share;
    if guarantee > Rate(0) && queue.plane == Plane::Wire {
        write!(f, "at least {guarantee}, ")?;
    }
    if limit.is_limited() {
        write!(f, "at most {limit}, ")?;
    }
    write!(f, "weight {weight}")?;
    wait_words(f, queue.wait_ns)
}

fn member_words(f: &mut fmt::Formatter<'_>, way: Result<Way, Reason>) -> fmt::Result {
    match way {
        Ok(Way::Over(MemberId(member))) => write!(f, "over member {member} of the bond"),
        Ok(Way::Numbered(MemberId(member), number)) => {
            write!(f, "over member {member} of the bond, which has it out first now, with number {number}")
        }
        Ok(Way::Copies(members, None)) => write!(f, "a copy over each of {members} members of the bond"),
        Ok(Way::Copies(members, Some(number))) => {
            write!(f, "a copy over each of {members} members of the bond, with number {number}")
        }
        Err(reason) => write!(f, "refused ({}): no member of the bond may send it", reason.name()),
    }
}

fn emit_words(f: &mut fmt::Formatter<'_>, emit: &Emit, names: &dyn Names) -> fmt::Result {
    if let Some(reason) = emit.refused {
        return write!(
            f,
            "refused ({}): {} takes no frame so long, or too many wait",
            reason.name(),
            names.port(emit.port)
        );
    }
    write!(f, "by {}", names.port(emit.port))?;
    if let Some(tag) = emit.tag {
        write!(f, ", tagged with VLAN {tag}")?;
    }
    if let Some(tag) = emit.untag {
        write!(f, ", the tag of VLAN {tag} taken off")?;
    }
    if let Some((vni, host)) = emit.tunnel {
        write!(f, ", in VXLAN {vni} to {host}")?;
    }
    if emit.cut > 1 {
        write!(f, ", cut into {} frames by the switch", emit.cut)?;
    }
    if emit.checksum {
        write!(f, ", its checksum finished by the switch")?;
    }
    Ok(())
}

impl fmt::Display for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.source, self.destination)?;
        if let Some(vlan) = self.vlan {
            write!(f, ", VLAN {vlan}")?;
        }
        let ends = |f: &mut fmt::Formatter<'_>, word, from: u16, to: u16| match self.addresses {
            Some((a, b)) if a.is_ipv6() => write!(f, ", {word} [{a}]:{from} to [{b}]:{to}"),
            Some((a, b)) => write!(f, ", {word} {a}:{from} to {b}:{to}"),
            None => Ok(()),
        };
        match (self.transport, self.addresses) {
            (Transport::Tcp(from, to), _) => ends(f, "TCP", from, to)?,
            (Transport::Udp(from, to), _) => ends(f, "UDP", from, to)?,
            (Transport::Icmp(kind, code), Some((a, b))) => write!(f, ", ICMP type {kind} code {code}, {a} to {b}")?,
            (Transport::Arp, Some((a, b))) => write!(f, ", ARP of {a} about {b}")?,
            (_, Some((a, b))) => write!(f, ", IP {a} to {b}")?,
            (_, None) => write!(f, ", EtherType {:#06x}", self.ethertype)?,
        }
        if self.fragment {
            write!(f, ", a fragment")?;
        }
        write!(f, "; {} bytes", self.len)?;
        if self.gso != Gso::None {
            write!(f, " in {} segments", self.segments)?;
        }
        write!(f, ", {} on the wire", self.wire_bytes)?;
        if self.needs_csum {
            write!(f, ", checksum unfinished")?;
        }
        Ok(())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Forwarded => write!(f, "forwarded"),
            Verdict::Dropped(reason) => write!(f, "dropped ({})", reason.name()),
        }
    }
}
