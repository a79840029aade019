//! `packet://NAME`: an interface that exists, a NIC or a veth, as a port. `host://NAME`: the host's
//! own traffic over it.
//!
//! Frames are read and written through an AF_PACKET socket (packet(7)) behind a virtio header
//! ([`crate::vnet`]), so that offloaded frames cross whole in both directions. A frame is read with
//! recvmsg(2) straight into a buffer of the pool: the kernel queues references, so it is copied
//! once. (A ring shared with the kernel, PACKET_RX_RING, is slower even where frames are sent
//! straight from it: `docs/decisions/016-no-ring-shared-with-the-kernel.md` has the figures.)
//! Sending passes the host's queueing discipline (PACKET_QDISC_BYPASS), but for what the switch has
//! put into tunnels (`tunnel.rs`); what the host itself sends is not read back
//! (PACKET_IGNORE_OUTGOING).
//!
//! *Shared*: the host goes on using the interface past the switch, and frames to the interface's
//! own address are left to it. *Exclusive*: all of the host's traffic passes the switch as well,
//! through [`Host`]; `host.rs` says how. The interface's addresses, routes and name stay as they
//! are in both, and the kernel undoes everything when the process dies.

mod bpf;
mod host;
mod map;
mod shortcut;
mod socket;
mod thin;
mod tunnel;

use std::error::Error;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use datapath::frame::{Frame, HEADROOM, MAX_FRAME, Pool, SMALL};
use datapath::intake::thin::Thinned;
use datapath::offload::OffloadSupport;
use datapath::wire::Mac;
use rustix::io::Errno;

use crate::ethtool;
use crate::netns::{Identity, Netns, cure_of_want};
use crate::rtnl::{KernelLink, Netlink, Which};
use crate::survey::{Survey, place};
use crate::vnet::{self, HEADER_BYTES};
use crate::{BURST_BYTES, Features, InterfaceStatus, Port, PortError, Refused, Waiting};
use tunnel::Tunnels;

pub use bpf::{Hooks, hooks};
pub use host::{Host, HostOptions, probe};
pub use shortcut::{Shortcut, Shortcuts, takes};
pub(crate) use socket::{namespace_of, socket_on};

/// Kernel memory of the longest frame, headers and bookkeeping included, in bytes: what `room`
/// counts in.
const LONGEST_FRAME_MEMORY: usize = 68 << 10;
/// Frames of 64 KiB that may wait where nothing is said: 17 MiB. Of 1500 bytes about 7000 have
/// room.
pub const DEFAULT_ROOM: u32 = 256;
/// Memory of frames that the device has taken and not sent yet, in bytes.
const SEND_ROOM: usize = 16 << 20;
/// Bytes of an Ethernet header without tag.
const ETHERNET_HEADER: usize = 14;
/// Bytes of a VLAN tag, and of the two addresses before it (IEEE 802.1Q).
const TAG: usize = 4;
const ADDRESSES: usize = 12;
/// `ARPHRD_ETHER`.
const ETHERNET: u16 = 1;

/// Which interface, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketOptions {
    /// Its name.
    pub name: String,
    /// The namespace it is in; `None` for ours.
    pub netns: Option<Netns>,
    /// Frames of 64 KiB that may wait to be read; `None` for [`DEFAULT_ROOM`].
    pub room: Option<u32>,
    /// Whether the host's traffic passes the switch too. If not, frames to the interface's own
    /// address are left to the host.
    pub is_exclusive: bool,
}

/// Why an interface could not be taken.
#[derive(Debug)]
pub enum OpenError {
    /// The namespace is not there, or may not be entered.
    Namespace(InterfaceName, io::Error),
    /// There is no such interface.
    Missing(InterfaceName),
    /// It does not carry Ethernet frames.
    NotEthernet(InterfaceName),
    /// The kernel refused a step.
    Kernel(InterfaceName, &'static str, io::Error),
    /// It has this address, which the switch does not know the host by.
    OtherAddress(InterfaceName, Mac),
    /// The device for the host's traffic cannot be made.
    Tap(crate::tap::OpenError),
}

/// An interface: its name, and its namespace where that is not ours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InterfaceName {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub netns: Option<Netns>,
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interface {}", self.name)?;
        self.netns.as_ref().map_or(Ok(()), |netns| write!(f, " in namespace {netns}"))
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Namespace(place, error) => {
                let is_hidden = error.kind() == io::ErrorKind::PermissionDenied;
                let remedy = if is_hidden && place.netns.as_ref().is_some_and(Netns::is_of_process) {
                    "a daemon that was started without a namespace below /proc may not look at processes; levada add, set and apply, as root, pass the namespace on"
                } else {
                    cure_of_want(error).unwrap_or("make the namespace first (ip netns add), or correct `netns`")
                };
                write!(f, "{place}: {error}; {remedy}")
            }
            OpenError::Missing(place) => {
                write!(f, "{place}: there is none of this name; `ip link` lists those there are")
            }
            OpenError::NotEthernet(place) => {
                write!(f, "{place}: it does not carry Ethernet frames; use a NIC, a veth, a bond or a bridge")
            }
            OpenError::Kernel(place, step, error) => {
                let remedy = match error.raw_os_error() {
                    Some(libc::EPERM | libc::EACCES) => "; run as root",
                    Some(libc::EAFNOSUPPORT) => "; load the kernel module `af_packet`",
                    _ => "",
                };
                write!(f, "{place}: {step}: {error}{remedy}")
            }
            OpenError::OtherAddress(place, Mac(m)) => write!(
                f,
                "{place}: its address is {:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}, which is not among the host endpoint's `mac`: \
                 its frames would be dropped; add it, or remove `mac` and start anew",
                m[0], m[1], m[2], m[3], m[4], m[5]
            ),
            OpenError::Tap(error) => write!(f, "{error}"),
        }
    }
}

impl Error for OpenError {}

impl OpenError {
    /// Whether the interface, or its namespace, is not there: it may come.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        match self {
            OpenError::Namespace(_, error) => crate::tap::is_no_namespace(error),
            OpenError::Missing(_) => true,
            // It went between two steps.
            OpenError::Kernel(_, _, error) => matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)),
            OpenError::Tap(error) => error.is_absence(),
            OpenError::NotEthernet(_) | OpenError::OtherAddress(..) => false,
        }
    }
}

/// An interface in use as a port.
#[derive(Debug)]
pub struct Packet {
    socket: OwnedFd,
    place: InterfaceName,
    features: Features,
    /// The namespace as it was: the socket keeps it alive, so its deletion shows only in its name.
    pinned: Option<Identity>,
    /// The interface as it was when last looked at.
    link: KernelLink,
    bits_per_second: Option<u64>,
    drops: Arc<Drops>,
    tunnels: Arc<Tunnels>,
    /// What the operator should know.
    notes: Vec<String>,
    is_adopted: bool,
    /// A socket of its namespace, where all ports of that share one. (Entering it takes a thread.)
    netlink: Option<Asker>,
}

/// A socket to the network configuration of a namespace, for who has much to ask there.
pub(crate) type Asker = Arc<Mutex<Netlink>>;

/// Frames lost before they were read, counted by both handles.
#[derive(Debug, Default)]
struct Drops {
    /// That found no room: the kernel forgets them when asked.
    full: AtomicU64,
    /// That could not be read whole.
    cut: AtomicU64,
}

impl Packet {
    /// Begins to use an interface. Its own configuration stays, but for large receive offload,
    /// which is set off.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(options: &PacketOptions) -> Result<Packet, OpenError> {
        Packet::open_among(options, &Survey::default())
    }

    /// As [`Packet::open`]. Where the `survey` has an earlier process's socket on the interface,
    /// the port goes on with that: no frame comes twice, and none is missing.
    ///
    /// # Errors
    /// As [`Packet::open`].
    pub fn open_among(options: &PacketOptions, survey: &Survey) -> Result<Packet, OpenError> {
        let place = InterfaceName { name: options.name.clone(), netns: options.netns.as_ref().map(Netns::released) };
        let entrance = InterfaceName { netns: survey.entrance(options.netns.as_ref()), ..place.clone() };
        let pinned = pin(&entrance)?;
        let inherit = |link: &KernelLink| inherited_socket(survey, link.index, entrance.netns.as_ref());
        let inherited = within(&entrance, || find(&place))?.ok().and_then(|link| Some((inherit(&link)?, link)));
        let is_adopted = inherited.is_some();
        let (socket, link, notes) = match inherited {
            Some((socket, link)) => (socket, link, Vec::new()),
            None => within(&entrance, || open_here(&place, room(options.room), options.is_exclusive))??,
        };
        Ok(Packet::new(place, pinned, socket, link, notes, is_adopted))
    }

    /// A port on the interface with this name, all of whose frames are the switch's, or on the
    /// `inherited` socket. `netlink` is of its namespace.
    pub(crate) fn open_own(
        place: &InterfaceName,
        rings: Option<u32>,
        inherited: Option<OwnedFd>,
        netlink: Asker,
    ) -> Result<Packet, OpenError> {
        let is_adopted = inherited.is_some();
        let (socket, link, notes) = within(place, || match inherited {
            Some(socket) => Ok((socket, find(place)?, Vec::new())),
            None => open_here(place, room(rings), true),
        })??;
        let mut packet = Packet::new(place.clone(), None, socket, link, notes, is_adopted);
        packet.netlink = Some(netlink);
        Ok(packet)
    }

    /// As [`Packet::settle`], of what [`Packet::open_own`] has opened.
    pub(crate) fn settle_own(
        rings: Option<u32>,
        place: &InterfaceName,
        socket: BorrowedFd<'_>,
    ) -> Result<(), OpenError> {
        let kernel = |step, error| OpenError::Kernel(place.clone(), step, error);
        socket::attach_filter(socket, None).map_err(|error| kernel("setting the filter", error))?;
        socket::set_room(socket, room(rings)).map(drop).map_err(|error| kernel("bounding its memory", error))
    }

    fn new(
        place: InterfaceName,
        pinned: Option<Identity>,
        socket: OwnedFd,
        link: KernelLink,
        notes: Vec<String>,
        is_adopted: bool,
    ) -> Packet {
        let bits_per_second = bits_per_second(socket.as_fd(), &link.name);
        let offload = offload(socket.as_fd(), &link);
        Packet {
            socket,
            place,
            features: Features { offload, can_pause: false, reports_drops: true, max_frame: link.max_frame() },
            pinned,
            link,
            bits_per_second,
            drops: Arc::default(),
            tunnels: Arc::default(),
            notes,
            is_adopted,
            netlink: None,
        }
    }

    /// Whether it was inherited and is still as another process left it: [`Packet::settle`] is to
    /// be called when that process has ended.
    #[must_use]
    pub fn is_adopted(&self) -> bool {
        self.is_adopted
    }

    /// Brings a port that is open, of which `socket` is the descriptor, to what the options say.
    /// The interface may have another name by now.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn settle(options: &PacketOptions, socket: BorrowedFd<'_>) -> Result<(), OpenError> {
        let place = InterfaceName { name: options.name.clone(), netns: options.netns.clone() };
        let (index, _) = socket_on(socket).ok_or_else(|| OpenError::Missing(place.clone()))?;
        let link = within(&place, || find_which(&place, Which::Index(index)))??;
        let kernel = |step, error| OpenError::Kernel(place.clone(), step, error);
        let leave = link.mac.filter(|_| !options.is_exclusive);
        socket::attach_filter(socket, leave).map_err(|error| kernel("setting the filter", error))?;
        socket::set_room(socket, room(options.room)).map(drop).map_err(|error| kernel("bounding its memory", error))
    }

    /// Another handle on the same interface.
    pub(crate) fn twin(&self) -> Option<Packet> {
        Some(Packet {
            socket: self.socket.try_clone().ok()?,
            place: self.place.clone(),
            features: self.features,
            pinned: self.pinned,
            link: self.link.clone(),
            bits_per_second: self.bits_per_second,
            drops: Arc::clone(&self.drops),
            tunnels: Arc::clone(&self.tunnels),
            notes: Vec::new(),
            is_adopted: self.is_adopted,
            netlink: self.netlink.clone(),
        })
    }

    /// The interface as it was when last looked at.
    pub(crate) fn link(&self) -> &KernelLink {
        &self.link
    }

    /// The interface's MTU when it was opened, in bytes.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.link.mtu
    }

    /// What works less well than it could, each as a sentence for the log.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Reads one frame. `None`: none waits, or the pool has no buffer; `Some(None)`: one was lost,
    /// since the pool had only a small buffer. What is no frame for the switch is one without
    /// bytes, which it counts as malformed.
    fn read_frame(&mut self, pool: &mut Pool) -> Result<Option<Option<Frame>>, PortError> {
        // Where others hold all large buffers, endpoints with short frames still get through.
        let Some(frame) = pool.alloc(MAX_FRAME).or_else(|| pool.alloc(SMALL - HEADROOM)) else {
            return Ok(None);
        };
        // In one piece with its header, which is taken off again: cheaper for the kernel than a
        // vector of two.
        pool.push_front(&frame, HEADER_BYTES);
        let read = match self.receive(pool.bytes_mut(&frame)) {
            Ok(read) if !read.is_cut => read,
            Err(Errno::AGAIN | Errno::INTR) => {
                pool.free(frame);
                return Ok(None);
            }
            Ok(_) if pool.len(&frame) < MAX_FRAME => {
                pool.free(frame);
                self.drops.cut.fetch_add(1, Ordering::Relaxed);
                return Ok(Some(None));
            }
            // Longer than any frame, or segmented in a way that the header has no word for: it is
            // consumed.
            Ok(_) | Err(Errno::INVAL) => {
                pool.pull_front(&frame, HEADER_BYTES);
                pool.set_len(&frame, 0);
                return Ok(Some(Some(pool.compact(frame))));
            }
            Err(errno) => {
                pool.free(frame);
                return Err(self.diagnose(errno));
            }
        };
        let header = pool.bytes(&frame).first_chunk().copied().unwrap_or_default();
        pool.pull_front(&frame, HEADER_BYTES);
        pool.set_len(&frame, read.len.saturating_sub(HEADER_BYTES));
        let mut offload = vnet::decode(&header);
        if let Some((protocol, contents)) = read.tag {
            put_back(pool, &frame, protocol, contents);
            if offload.needs_csum {
                offload.csum_start = offload.csum_start.saturating_add(TAG as u16);
            }
        }
        pool.meta_mut(&frame).offload = offload;
        Ok(Some(Some(pool.compact(frame))))
    }

    /// Reads one frame behind its header. That the interface was set down is an event, which the
    /// socket tells once and before the frames that it received until then: these are read at once,
    /// since nothing calls for them again until another comes.
    fn receive(&self, into: &mut [u8]) -> Result<socket::Read, Errno> {
        let socket = self.socket.as_fd();
        match socket::read(socket, into) {
            Err(Errno::NETDOWN) if socket::is_bound(socket) => socket::read(socket, into),
            read => read,
        }
    }

    fn diagnose(&self, errno: Errno) -> PortError {
        // The socket says ENETDOWN once, both when the interface is set down and when it is
        // deleted.
        if socket::is_bound(self.socket.as_fd()) { PortError::Io(errno.into()) } else { self.deleted() }
    }

    fn deleted(&self) -> PortError {
        PortError::Gone(format!("{}: it was deleted, or moved to another namespace", self.place))
    }
}

/// The address of an interface.
///
/// # Errors
/// There is no such interface, or it has none.
pub fn address(name: &str, netns: Option<&Netns>) -> Result<Mac, OpenError> {
    let place = InterfaceName { name: name.to_owned(), netns: netns.cloned() };
    let link = within(&place, || find(&place))??;
    link.mac.map(Mac).ok_or(OpenError::NotEthernet(place))
}

/// A packet socket of an earlier process on the interface with this index, in this namespace
/// (`None`: ours).
fn inherited_socket(survey: &Survey, index: i32, netns: Option<&Netns>) -> Option<OwnedFd> {
    survey.socket((index, place(netns)?), socket_on, |_| true)
}

/// Memory for what waits to be read, in bytes.
fn room(rings: Option<u32>) -> usize {
    rings.unwrap_or(DEFAULT_ROOM) as usize * LONGEST_FRAME_MEMORY
}

/// Opens, in the namespace that the interface is in.
fn open_here(
    place: &InterfaceName,
    room: usize,
    is_exclusive: bool,
) -> Result<(OwnedFd, KernelLink, Vec<String>), OpenError> {
    let kernel = |(step, error)| OpenError::Kernel(place.clone(), step, error);
    let link = find(place)?;
    let mut notes = Vec::new();
    let socket = socket::open(link.mac.filter(|_| !is_exclusive)).map_err(kernel)?;
    let has_room = socket::set_room(socket.as_fd(), room).map_err(|e| kernel(("bounding its memory", e)))?;
    if !has_room {
        notes.push(format!(
            "{place}: without the right to more, only net.core.rmem_max of the kernel's memory holds frames that wait: bursts are lost; \
             run as root, or raise it to {}",
            room / 2
        ));
    }
    socket::set_send_room(socket.as_fd(), SEND_ROOM).map_err(|e| kernel(("bounding its memory", e)))?;
    if let Err(error) = socket::set_lro_off(socket.as_fd(), &place.name) {
        notes.push(format!(
            "{place}: large receive offload cannot be disabled: {error}; frames that it joined are not split as sent; run ethtool -K {} lro off", place.name
        ));
    }
    socket::bind(socket.as_fd(), link.index).map_err(kernel)?;
    Ok((socket, link, notes))
}

/// The interface, in the calling thread's namespace.
fn find(place: &InterfaceName) -> Result<KernelLink, OpenError> {
    find_which(place, Which::Name(&place.name))
}

/// The same, by what is known of it.
fn find_which(place: &InterfaceName, which: Which<'_>) -> Result<KernelLink, OpenError> {
    let link = Netlink::open().and_then(|mut netlink| netlink.link(which));
    let link = link.map_err(|error| OpenError::Kernel(place.clone(), "looking for it", error))?;
    let link = link.ok_or_else(|| OpenError::Missing(place.clone()))?;
    if link.hardware == ETHERNET { Ok(link) } else { Err(OpenError::NotEthernet(place.clone())) }
}

fn pin(place: &InterfaceName) -> Result<Option<Identity>, OpenError> {
    let identity = place.netns.as_ref().map(Netns::identity).transpose();
    identity.map_err(|error| OpenError::Namespace(place.clone(), error))
}

/// Runs `work` in the interface's namespace.
fn within<T: Send>(place: &InterfaceName, work: impl FnOnce() -> T + Send) -> Result<T, OpenError> {
    match &place.netns {
        None => Ok(work()),
        Some(netns) => netns.run(work).map_err(|error| OpenError::Namespace(place.clone(), error)),
    }
}

/// What has become of an interface: an error where it is to be opened anew, `None` where the kernel
/// is busy. It may have another name by now.
fn inspect(
    place: &InterfaceName,
    pinned: Option<Identity>,
    index: i32,
    netlink: Option<&Asker>,
) -> Result<Option<KernelLink>, PortError> {
    let gone = |how: String| Err(PortError::Gone(format!("{place}: {how}")));
    if let (Some(netns), Some(pinned)) = (&place.netns, pinned)
        && netns.is_another(pinned)
    {
        return gone("its namespace was deleted".to_owned());
    }
    let link = match netlink {
        Some(netlink) => netlink.lock().unwrap_or_else(PoisonError::into_inner).link(Which::Index(index)),
        None => within(place, || Netlink::open()?.link(Which::Index(index)))
            .unwrap_or_else(|_| Err(io::ErrorKind::NotFound.into())),
    };
    let Ok(link) = link else {
        // The next call will tell.
        return Ok(None);
    };
    match link {
        None => gone("it was deleted, or moved to another namespace".to_owned()),
        Some(link) => Ok(Some(link)),
    }
}

impl KernelLink {
    /// The longest frame in bytes, a VLAN tag not counted.
    fn max_frame(&self) -> usize {
        (self.mtu as usize).saturating_add(ETHERNET_HEADER)
    }
}

/// Puts a VLAN tag behind the addresses of a frame, into the pool's headroom.
fn put_back(pool: &mut Pool, frame: &Frame, protocol: u16, contents: u16) {
    if pool.len(frame) < ADDRESSES || !pool.push_front(frame, TAG) {
        return;
    }
    let bytes = pool.bytes_mut(frame);
    bytes.copy_within(TAG..TAG + ADDRESSES, 0);
    bytes[ADDRESSES..ADDRESSES + 2].copy_from_slice(&protocol.to_be_bytes());
    bytes[ADDRESSES + 2..ADDRESSES + TAG].copy_from_slice(&contents.to_be_bytes());
}

/// What the interface carries, in bit/s; `None` where it does not know.
fn bits_per_second(socket: BorrowedFd<'_>, name: &str) -> Option<u64> {
    ethtool::negotiated(socket, name).ok()?.speed().map(|speed| speed.0)
}

/// What the interface takes through the socket.
fn offload(socket: BorrowedFd<'_>, link: &KernelLink) -> OffloadSupport {
    let offload = socket::offload(socket, &link.name);
    OffloadSupport { uso: offload.uso && has_udp_segmentation(), ..offload }
}

/// Whether a packet socket takes UDP segmentation: from Linux 6.2.
fn has_udp_segmentation() -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(2))
}

impl Port for Packet {
    fn features(&self) -> Features {
        self.features
    }

    fn line(&self) -> InterfaceStatus {
        InterfaceStatus {
            mac: self.link.mac.map(Mac),
            bits_per_second: self.bits_per_second,
            has_carrier: Some(self.link.has_carrier),
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn rx(&mut self, pool: &mut Pool, burst: usize, out: &mut Vec<Frame>) -> Result<usize, PortError> {
        let (mut read, mut bytes) = (0, 0);
        // What is lost counts, too.
        for _ in 0..burst {
            match self.read_frame(pool) {
                Ok(Some(Some(frame))) => {
                    bytes += pool.len(&frame);
                    out.push(frame);
                    read += 1;
                    if bytes >= BURST_BYTES {
                        break;
                    }
                }
                Ok(Some(None)) => {}
                Err(error) if read == 0 => return Err(error),
                Ok(None) | Err(_) => break,
            }
        }
        Ok(read)
    }

    fn write(&mut self, pool: &mut Pool, frame: &Frame) -> Result<(), Refused> {
        let header = vnet::encode(&pool.meta(frame).offload, pool.bytes(frame));
        let through = if pool.meta(frame).in_tunnel() { self.tunnels.socket() } else { None };
        let socket = through.unwrap_or(self.socket.as_fd());
        if !pool.push_front(frame, HEADER_BYTES) {
            return Err(Refused::Invalid);
        }
        let bytes = pool.bytes_mut(frame);
        bytes[..HEADER_BYTES].copy_from_slice(&header);
        let written = rustix::io::write(socket, bytes);
        pool.pull_front(frame, HEADER_BYTES);
        match written {
            Ok(_) => Ok(()),
            Err(Errno::NETDOWN) => Err(Refused::Down),
            Err(Errno::NXIO | Errno::NODEV) => Err(Refused::Gone),
            Err(Errno::INVAL | Errno::MSGSIZE | Errno::FAULT) => Err(Refused::Invalid),
            // The device, or its queue, has no room.
            Err(_) => Err(Refused::Full),
        }
    }

    fn drops_before_us(&mut self) -> Result<u64, PortError> {
        if !socket::is_bound(self.socket.as_fd()) {
            return Err(self.deleted());
        }
        if let Some(link) = inspect(&self.place, self.pinned, self.link.index, self.netlink.as_ref())? {
            self.bits_per_second = bits_per_second(self.socket.as_fd(), &link.name);
            self.features.max_frame = link.max_frame();
            self.tunnels.tend(&self.place, link.index);
            let tunnel = self.tunnels.is_up();
            self.features.offload = OffloadSupport { tunnel, ..offload(self.socket.as_fd(), &link) };
            self.link = link;
        }
        let now = socket::drops(self.socket.as_fd()).unwrap_or(0);
        let full = self.drops.full.fetch_add(now, Ordering::Relaxed) + now;
        Ok(full + self.drops.cut.load(Ordering::Relaxed))
    }

    fn waiting(&self) -> Option<Waiting> {
        socket::waiting(self.socket.as_fd()).ok()
    }

    fn thin(&mut self, thinned: &[Thinned]) -> bool {
        thin::thin(self.socket.as_fd(), thinned).is_ok()
    }

    fn complaint(&mut self) -> Option<String> {
        let why = self.tunnels.complaint()?;
        let place = &self.place;
        Some(format!("{place}: frames do not go into tunnels whole, which costs time: {why}"))
    }

    fn may_wait(&self) -> bool {
        false
    }

    fn second(&self) -> Option<Box<dyn Port + Send>> {
        Some(Box::new(self.twin()?))
    }
}
