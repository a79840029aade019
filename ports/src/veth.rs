//! `veth://NAME`: a pair of virtual Ethernet devices (veth(4)), made for a container. One end,
//! NAME, is the container's; the other is read and written like an interface that exists
//! ([`crate::packet`]), with its shortcuts.
//!
//! The switch's ends of a process lie together in a network namespace without a name, which only
//! the process keeps open. There nothing has an address and nothing is forwarded: what a container
//! sends meets the switch and no host. When the process ends, however it ends, the namespace goes,
//! and all pairs with it, unless a service manager has their sockets. A process that takes over, or
//! is given those, finds the namespace by the sockets in it.
//!
//! The container's end is set up like a TAP device, and has the same tag. Where it is that somebody
//! has moved is in `far.rs`.

mod far;
mod port;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::netns::{Identity, Netns};
use crate::packet::{self, InterfaceName, Packet};
use crate::rtnl::{Change, KernelLink, Netlink, Which};
use crate::survey::{Inherited, Survey};
use crate::tap::{self, Extent, Tag, TapOptions};
use far::{Ends, Far};

pub use port::Veth;

/// What messages call the namespace of the switch's ends.
const CALLED: &str = "of the switch";
/// What a pair's `known_as` begins with: no device's name has a colon.
const KNOWN: &str = "veth:";
/// A pair of a process that has just ended is there for a moment longer.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// The namespace of the switch's ends, once there is one.
static ENDS: Mutex<Option<Ends>> = Mutex::new(None);

/// How a pair is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VethOptions {
    /// The container's end: what of it is not for TAP devices alone.
    pub end: TapOptions,
    /// Frames of 64 KiB that may wait to be read; see [`packet::PacketOptions::room`].
    pub room: Option<u32>,
}

impl VethOptions {
    /// What another process knows such a pair by.
    #[must_use]
    pub fn known_as(&self) -> String {
        format!("{KNOWN}{}", self.end.known_as())
    }

    fn own_name(&self) -> String {
        own_name(&self.known_as())
    }
}

/// The name of the switch's end, which is found by it: of 56 bits of FNV-1a.
fn own_name(known_as: &str) -> String {
    let hash = known_as
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("v{:014x}", hash >> 8)
}

/// Why a pair could not be made or set up.
#[derive(Debug)]
pub enum OpenError {
    /// The container's end.
    End(tap::OpenError),
    /// The switch's.
    Own(packet::OpenError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::End(error) => error.write("veth", f),
            OpenError::Own(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl OpenError {
    /// Whether what the container's end is to be in is not there: it may come.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(self, OpenError::End(error) if error.is_absence())
    }
}

impl From<tap::OpenError> for OpenError {
    fn from(error: tap::OpenError) -> OpenError {
        OpenError::End(error)
    }
}

impl From<packet::OpenError> for OpenError {
    fn from(error: packet::OpenError) -> OpenError {
        OpenError::Own(error)
    }
}

/// Makes a pair, sets it up and opens the switch's end; or goes on with that of an earlier process
/// in `survey`.
///
/// # Errors
/// See [`OpenError`]. What was made is gone again.
pub fn open(options: &VethOptions, survey: &Survey) -> Result<Veth, OpenError> {
    tap::check_names(&options.end)?;
    let netns = survey.entrance(options.end.netns.as_ref());
    let end = TapOptions { netns, ..options.end.clone() };
    let failed = |step| move |error| tap::kernel(&options.end, step, error);
    let ends = ends(survey).map_err(failed("making a namespace for the switch's ends"))?;
    let known_as = options.known_as();
    // A service manager may have a socket whose pair went with its container.
    let is_there = |one: &Inherited| packet::socket_on(one.as_fd()).is_some();
    let known = survey.known_as(&known_as, is_there).map(|socket| (socket, options.own_name()));
    let found = known.or_else(|| spelled_otherwise(&end, &ends, survey));
    let is_new = found.is_none();
    let (inherited, name) = found.map_or((None, options.own_name()), |(socket, name)| (Some(socket), name));
    let own = InterfaceName { name, netns: Some(ends.netns.clone()) };
    if is_new {
        // One that its container has moved may be left.
        remove(options);
        make(&end, &ends, &own.name)?;
    }
    let opened = Packet::open_own(&own, options.room, inherited, ends.netlink.clone()).map_err(OpenError::from);
    if opened.is_err() && is_new {
        remove(options);
    }
    let far = Far::new(ends, end.name.clone(), end.netns);
    Ok(Veth::new(opened?, far, end.name, known_as))
}

/// The namespace of the switch's ends of this process, or of the one that it takes over from.
fn ends(survey: &Survey) -> io::Result<Ends> {
    let mut ends = ENDS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(ends) = &*ends {
        return Ok(ends.clone());
    }
    let of_pair =
        |one: &Inherited| one.known_as.as_ref()?.starts_with(KNOWN).then(|| packet::namespace_of(one.as_fd()))?;
    let found = match survey.find(of_pair) {
        Some(file) => Netns::of(CALLED, file),
        None => Netns::nameless(CALLED)?,
    };
    Ok(ends.insert(Ends::new(found)?).clone())
}

/// A pair that the process before knew by another path to the same namespace: its end is where
/// this one's is to be. The socket, and what its end in `ends` is called, until it is settled.
fn spelled_otherwise(end: &TapOptions, ends: &Ends, survey: &Survey) -> Option<(OwnedFd, String)> {
    let home = ends.netns.identity().ok()?;
    let may = |one: &Inherited| {
        let is_pair = one.known_as.as_ref().is_some_and(|known_as| known_as.starts_with(KNOWN));
        is_pair && survey.is_free(one)
    };
    survey.find(|one| may(one).then(|| packet::socket_on(one.as_fd()))?.filter(|(_, netns)| *netns == home))?;
    let there = end.netns.clone().map_or_else(Netns::own, Ok).ok()?;
    let file = there.open().ok()?;
    let at = there.run(|| Netlink::open()?.link(Which::Name(&end.name))).ok()?.ok()??.index;
    // Asked of the switch's ends: nobody else can make one look like another.
    let own = |netlink: &mut Netlink| -> io::Result<Option<KernelLink>> {
        let id = netlink.id_of(file.as_fd())?;
        Ok(netlink.links()?.into_iter().find(|link| link.kind == "veth" && link.elsewhere == Some((at, id))))
    };
    let own = ends.ask(own).ok()??;
    let socket = survey.socket((own.index, home), packet::socket_on, may)?;
    Some((socket, own.name))
}

/// Makes a pair, and sets it up.
fn make(end: &TapOptions, ends: &Ends, own: &str) -> Result<(), OpenError> {
    let failed = |step| move |error| tap::kernel(end, step, error);
    let there = match &end.netns {
        Some(netns) => netns.clone(),
        None => Netns::own().map_err(failed("looking at the own namespace"))?,
    };
    let file = open_namespace(end, &there)?;
    let make = |netlink: &mut Netlink| netlink.make_veth(own, (file.as_fd(), &end.name));
    let mut left = TRIES;
    while let Err(error) = ends.ask(make) {
        if error.raw_os_error() != Some(libc::EEXIST) || left == 0 {
            return Err(failed("making it")(error).into());
        }
        left -= 1;
        remove_left(end)?;
        std::thread::sleep(PAUSE);
    }
    let up = |netlink: &mut Netlink| {
        let link = netlink.link(Which::Name(own))?.ok_or(io::ErrorKind::NotFound)?;
        netlink.change(link.index, &Change { mtu: end.mtu, up: true, ..Change::default() })
    };
    let set = set_up(end).and_then(|()| Ok(ends.ask(up).map_err(failed("setting it up"))?));
    if set.is_err() {
        let _ = ends.ask(|netlink| delete(netlink, own));
    }
    set
}

fn open_namespace(end: &TapOptions, netns: &Netns) -> Result<File, OpenError> {
    let failed = |error| tap::OpenError::Namespace { device: end.name.clone(), netns: netns.clone(), error };
    Ok(netns.open().map_err(failed)?)
}

/// Takes away what has the name and is of a process of this instance that has ended.
fn remove_left(end: &TapOptions) -> Result<(), OpenError> {
    let found = tap::within(end, end.netns.as_ref(), || Netlink::open()?.link(Which::Name(&end.name)))?;
    let Ok(Some(link)) = found else { return Ok(()) };
    let owner = Tag::parse(&link.alias);
    if link.kind != "veth" || owner.as_ref().is_none_or(|tag| tag.instance != end.tag.instance) {
        return Err(tap::OpenError::Foreign { device: end.name.clone(), netns: end.netns.clone(), owner }.into());
    }
    let _ = tap::within(end, end.netns.as_ref(), || Netlink::open()?.delete(link.index))?;
    Ok(())
}

/// Sets up the container's end of a new pair.
fn set_up(end: &TapOptions) -> Result<(), OpenError> {
    let all = Extent { up: true, ipv6: true, addresses: &end.addresses };
    let set = || -> Result<(), tap::OpenError> {
        let failed = |error| tap::kernel(end, "looking for it", error);
        let mut netlink = Netlink::open().map_err(failed)?;
        let link = netlink.link(Which::Name(&end.name)).map_err(failed)?;
        let link = link.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        tap::configure(end, &mut netlink, &link, all)
    };
    Ok(tap::within(end, end.netns.as_ref(), set)??)
}

/// Brings a pair that is open, of which `socket` is the descriptor, to what the options say, but
/// for whether it is up. Where somebody has moved the container's end from the namespace that the
/// options name, what belongs to that is left as it is, and the answer says so.
///
/// # Errors
/// See [`OpenError`]. It goes on as it is.
pub fn settle(options: &VethOptions, socket: BorrowedFd<'_>) -> Result<Option<String>, OpenError> {
    let addresses = &options.end.addresses;
    bring(options, socket, |is_away| Extent {
        up: false,
        ipv6: !is_away,
        addresses: if is_away { &[] } else { addresses },
    })
}

/// As [`settle`], of a pair whose end has come back to where it should be: that is also set up.
///
/// # Errors
/// See [`OpenError`]. It goes on as it is.
pub fn welcome(options: &VethOptions, socket: BorrowedFd<'_>) -> Result<Option<String>, OpenError> {
    let addresses = &options.end.addresses;
    bring(options, socket, |is_away| Extent {
        up: !is_away,
        ipv6: !is_away,
        addresses: if is_away { &[] } else { addresses },
    })
}

/// Sets up a pair otherwise than it was by `old`, wherever the container's end is; addresses are
/// added, and none is taken away. One that is not where it should be gets what is new only.
///
/// # Errors
/// See [`OpenError`]: it is not there, or the kernel refused.
pub fn reconfigure(old: &VethOptions, options: &VethOptions, socket: BorrowedFd<'_>) -> Result<(), OpenError> {
    let (before, end) = (&old.end, &options.end);
    let new: Vec<_> = end.addresses.iter().filter(|address| !before.addresses.contains(address)).copied().collect();
    let extent = |is_away| {
        if is_away {
            Extent { up: false, ipv6: before.without_ipv6 != end.without_ipv6, addresses: &new }
        } else {
            Extent { up: false, ipv6: true, addresses: &end.addresses }
        }
    };
    bring(options, socket, extent).map(drop)
}

/// These options of a pair that is open, of which `socket` is the descriptor, with what the
/// container's end is now in place of what they say or leave open ([`tap::as_it_is`]).
///
/// # Errors
/// See [`OpenError`]: it is not there, or the kernel refused.
pub fn as_it_is(options: &VethOptions, socket: BorrowedFd<'_>) -> Result<VethOptions, OpenError> {
    let end = &options.end;
    let failed = |step| move |error| tap::kernel(end, step, error);
    let ends = ends(&Survey::default()).map_err(failed("entering the namespace of the switch's ends"))?;
    let found = packet::socket_on(socket).ok_or_else(|| failed("finding where it is")(io::ErrorKind::NotFound.into()));
    let look = |netlink: &mut Netlink, link: &KernelLink, _| tap::look(end, netlink, link);
    let visited = ends.visit(found?.0, end.netns.as_ref(), look);
    let was = visited.map_err(failed("finding where the container's end is"))??;
    // Both ends have the MTU of the options.
    Ok(VethOptions { end: TapOptions { mtu: end.mtu, txqueuelen: None, ..was }, room: options.room })
}

/// Makes a pair that is open what it was `before` ([`as_it_is`]) somebody began to set it up as
/// `options` say.
///
/// # Errors
/// See [`OpenError`]: it is not there, or the kernel refused.
pub fn take_back(before: &VethOptions, options: &VethOptions, socket: BorrowedFd<'_>) -> Result<(), OpenError> {
    set_both(before, socket, |netlink, link, _| tap::put_back(&before.end, &options.end, netlink, link))
}

/// Sets both ends as the options say, the container's as far as `extent` says of one that is away
/// or is not. The answer says what is left to somebody who has moved it.
fn bring<'a>(
    options: &'a VethOptions,
    socket: BorrowedFd<'_>,
    extent: impl Fn(bool) -> Extent<'a> + Sync,
) -> Result<Option<String>, OpenError> {
    let end = &options.end;
    let configure = |netlink: &mut Netlink, link: &KernelLink, identity| {
        let is_away = end.is_away(identity);
        tap::configure(end, netlink, link, extent(is_away)).map(|()| is_away.then(|| (link.name.clone(), identity)))
    };
    let away = set_both(options, socket, configure)?;
    Ok(away.map(|(name, identity)| tap::is_left("veth", end, &name, identity)))
}

/// Sets the switch's end as the options say, and the container's by `configure`.
fn set_both<T: Send>(
    options: &VethOptions,
    socket: BorrowedFd<'_>,
    configure: impl FnOnce(&mut Netlink, &KernelLink, Identity) -> Result<T, tap::OpenError> + Send,
) -> Result<T, OpenError> {
    let end = &options.end;
    let failed = |step| move |error| tap::kernel(end, step, error);
    let ends = ends(&Survey::default()).map_err(failed("entering the namespace of the switch's ends"))?;
    let own = InterfaceName { name: options.own_name(), netns: Some(ends.netns.clone()) };
    Packet::settle_own(options.room, &own, socket)?;
    let (index, _) =
        packet::socket_on(socket).ok_or_else(|| failed("finding where it is")(io::ErrorKind::NotFound.into()))?;
    let set = |netlink: &mut Netlink| {
        // It may still be called by another spelling. (Linux before 6.2 renames none that is up:
        // the pair is then made anew.)
        let is = netlink.link(Which::Index(index))?.ok_or(io::ErrorKind::NotFound)?;
        let name = Some(own.name.as_str()).filter(|name| *name != is.name);
        netlink.change(index, &Change { mtu: end.mtu, name, ..Change::default() })
    };
    ends.ask(set).map_err(failed("setting its MTU"))?;
    // Where it should be must be there: else nobody can say whether it is away.
    let _home = end.netns.as_ref().map(|netns| open_namespace(end, netns)).transpose()?;
    let visited = ends.visit(index, end.netns.as_ref(), configure);
    Ok(visited.map_err(failed("finding where the container's end is"))??)
}

/// Ends a pair. Where there is none, nothing is done.
pub fn remove(options: &VethOptions) {
    let ends = ENDS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let own = options.own_name();
    // What cannot be deleted goes with the process.
    let _ = ends.map(|ends| ends.ask(|netlink| delete(netlink, &own)));
}

/// Ends the pairs that an earlier process has left and that are not among those `known_as`. To be
/// called when that process has ended, and what is kept is settled.
pub fn keep(known_as: &BTreeSet<String>) {
    let kept: BTreeSet<String> = known_as.iter().map(|known_as| own_name(known_as)).collect();
    let ends = ENDS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let end_others = |netlink: &mut Netlink| {
        let links = netlink.links()?;
        let mut others = links.iter().filter(|link| link.kind == "veth" && !kept.contains(&link.name));
        others.try_for_each(|link| netlink.delete(link.index))
    };
    // What cannot be deleted goes with the process.
    let _ = ends.map(|ends| ends.ask(end_others));
}

fn delete(netlink: &mut Netlink, name: &str) -> io::Result<()> {
    netlink.link(Which::Name(name))?.map_or(Ok(()), |link| netlink.delete(link.index))
}
