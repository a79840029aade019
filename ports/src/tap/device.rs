//! Making TAP devices, finding them again, and removing them.
//!
//! Levada's devices carry a tag in their alias (`ip link` shows it): `levada:INSTANCE:ENDPOINT`. A
//! device without it is never touched. Where Levada took IPv6 from a device, the tag says so, so
//! that whoever takes the device up later knows that it may give it back.
//!
//! A new device for another namespace is made in our own under a passing name and then moved,
//! tagged. The other way, opening `/dev/net/tun` inside that namespace, would let our descriptor
//! keep the namespace alive: deleting it would then neither end the device nor tell us. Taking up a
//! persistent device that sits in another namespace leaves no choice, so there the namespace's name
//! is watched instead.
//!
//! Whoever has administered a device away from where it should be (`whereabouts.rs`) has it: what
//! belongs to the device follows the options there too, what belongs to the place (addresses, IPv6,
//! up or down) is left to him.

use std::error::Error;
use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use datapath::wire::Mac;
use rustix::io::Errno;

use super::ioctl;
use super::tag::{Tag, WITHOUT_IPV6};
use super::whereabouts::visit;
use crate::netns::{Identity, Netns, cure_of_want};
use crate::rtnl::{Change, KernelLink, Netlink, Which};
use crate::survey::{RELEASE, Survey, place};
use crate::vnet::HEADER_BYTES;

/// The name under which a device is made that is then moved; the kernel puts a number in.
const PASSING_NAME: &str = "levada%d";
/// The longest name of an interface, in bytes (`IFNAMSIZ` less the closing zero).
const LONGEST_NAME: usize = 15;
/// Frames that a device's ring holds where nobody says otherwise (TUN_READQ_SIZE).
pub(crate) const DEFAULT_RING: u32 = 500;

/// How a TAP device is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TapOptions {
    /// Name of the interface, at most 15 bytes.
    pub name: String,
    /// The namespace to put it in; `None` leaves a new one in ours, and an existing one where its
    /// owner moved it.
    pub netns: Option<Netns>,
    /// Its MAC address; `None` leaves the kernel's choice.
    pub mac: Option<Mac>,
    /// Its MTU in bytes, up to 65521; `None` leaves it (1500 for a new device).
    pub mtu: Option<u32>,
    /// Longest packet that its kernel is to offload, in bytes; `None` leaves it (65536 for a new
    /// device). A device that cannot be told goes on as it is.
    pub longest_offload: Option<u32>,
    /// Addresses with their prefix lengths. None is ever taken away.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Whether it outlives the process.
    pub persistent: bool,
    /// Frames that its ring holds; `None` leaves it (500 for a new device).
    pub txqueuelen: Option<u32>,
    /// Keep the interface free of IPv6, also of link-local addresses.
    pub without_ipv6: bool,
    /// Whose it is.
    pub tag: Tag,
}

impl TapOptions {
    /// What another process knows such a device by, wherever it is: no name contains a slash.
    #[must_use]
    pub fn known_as(&self) -> String {
        match &self.netns {
            None => self.name.clone(),
            Some(netns) => format!("{netns}/{}", self.name),
        }
    }

    /// Whether the options say that it should be in another namespace than `is`.
    pub(crate) fn is_away(&self, is: Identity) -> bool {
        self.netns.as_ref().is_some_and(|netns| netns.is_another(is))
    }
}

/// Why a TAP device could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// The name, or the tag, cannot be one.
    Name(String),
    /// The namespace is not there, or may not be entered.
    Namespace {
        /// The device wanted.
        device: String,
        /// The namespace.
        netns: Netns,
        /// Why.
        error: io::Error,
    },
    /// A device of this name exists and is not ours.
    Foreign {
        /// Its name.
        device: String,
        /// Where it is; `None` is our own namespace.
        netns: Option<Netns>,
        /// Whose it is, where it is another instance's.
        owner: Option<Tag>,
    },
    /// The device is ours, and another process has it open.
    InUse {
        /// Its name.
        device: String,
    },
    /// The kernel refused.
    Kernel {
        /// The device wanted.
        device: String,
        /// What was tried.
        step: &'static str,
        /// Why not.
        error: io::Error,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write("tap", f)
    }
}

impl OpenError {
    /// Whether what the device is to be in is not there: it may come.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(self, OpenError::Namespace { error, .. } if is_no_namespace(error))
    }

    /// As a sentence about a device of this kind.
    pub(crate) fn write(&self, kind: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Name(why) => write!(f, "{why}"),
            OpenError::Namespace { device, netns, error } => {
                let remedy = cure_of_want(error).unwrap_or_else(|| match error.kind() {
                    io::ErrorKind::NotFound if netns.is_of_process() => "the process has ended; correct `netns`",
                    io::ErrorKind::NotFound => "make it first (ip netns add), or correct `netns`",
                    io::ErrorKind::PermissionDenied => {
                        "a daemon that was started without a namespace below /proc may not look at processes; levada add, set and apply, as root, pass the namespace on: add its netns= to the change"
                    }
                    _ => "`netns` must name a network namespace",
                });
                write!(f, "{kind} {device}: namespace {netns}: {error}; {remedy}")
            }
            OpenError::Foreign { device, netns, owner } => {
                write!(f, "{kind} {device}: an interface of this name exists")?;
                if let Some(netns) = netns {
                    write!(f, " in namespace {netns}")?;
                }
                match owner {
                    Some(tag) => write!(f, " and belongs to the instance {:?}", tag.instance)?,
                    None => write!(f, " and is not Levada's")?,
                }
                write!(f, "; choose another name, or delete it")
            }
            OpenError::InUse { device } => {
                write!(f, "{kind} {device}: another process has it open; is this configuration already running?")
            }
            OpenError::Kernel { device, step, error } => {
                let remedy = match error.raw_os_error() {
                    Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) if kind == "tap" => {
                        "; load the kernel module `tun`"
                    }
                    Some(libc::EOPNOTSUPP) if kind == "veth" => "; load the kernel module `veth`",
                    Some(libc::EPERM | libc::EACCES) => "; run as root, or in a user and network namespace of your own",
                    _ => "",
                };
                write!(f, "{kind} {device}: {step}: {error}{remedy}")
            }
        }
    }
}

/// Whether an error of entering a namespace says that none is there: no file, or one on which none
/// is mounted (yet).
pub(crate) fn is_no_namespace(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL)) || error.kind() == io::ErrorKind::NotFound
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            OpenError::Namespace { error, .. } | OpenError::Kernel { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// An open, configured device.
pub(super) struct Device {
    pub fd: OwnedFd,
    pub name: String,
    pub udp_segmentation: bool,
    pub pinned: Option<(Netns, Identity)>,
    /// It was inherited and is still as another process left it.
    pub adopted: bool,
    /// It was not there before.
    pub made: bool,
    /// What the operator should know.
    pub notes: Vec<String>,
}

/// A descriptor on a device.
struct Attached {
    fd: OwnedFd,
    name: String,
    pinned: Option<(Netns, Identity)>,
}

/// What an earlier process had of a TAP device, wherever the device is by now. Of those of which
/// nothing was said, that of the device which has the name and is where it should be.
fn inherited(survey: &Survey, options: &TapOptions) -> Option<OwnedFd> {
    let known = survey.known_as(&options.known_as(), |one| is_attached(one.as_fd()));
    known.or_else(|| survey.tap((options.name.clone(), place(options.netns.as_ref())?), attached_to))
}

/// See [`super::Tap::open`].
pub(super) fn open(options: &TapOptions, survey: &Survey) -> Result<Device, OpenError> {
    check_names(options)?;
    if let Some(inherited) = inherited(survey, options) {
        return adopt(options, inherited);
    }
    let mut notes = Vec::new();
    let (attached, made) = match find(options, survey, &mut notes)? {
        Some((place, link)) => (take_up(options, (place, &link), survey, &mut notes)?, false),
        None => (make(options)?, true),
    };
    let failed = |step| move |error: Errno| kernel(options, step, error.into());
    let tap = attached.fd.as_fd();
    ioctl::set_header_bytes(tap, HEADER_BYTES).map_err(failed("setting the header's length"))?;
    let udp_segmentation = ioctl::set_offload(tap).map_err(failed("asking for offloaded frames"))?;
    let all = Extent { up: true, ipv6: true, addresses: &options.addresses };
    visit(tap, |netlink, link, _| configure(options, netlink, link, all)).map_err(lost(options))??;
    ioctl::set_persistent(tap, options.persistent).map_err(failed("making it persistent"))?;
    Ok(Device {
        fd: attached.fd,
        name: attached.name,
        udp_segmentation,
        pinned: attached.pinned,
        adopted: false,
        made,
        notes,
    })
}

/// The device was not found by its descriptor.
pub(super) fn lost(options: &TapOptions) -> impl Fn(io::Error) -> OpenError + '_ {
    |error| kernel(options, "finding where it is", error)
}

pub(crate) fn check_names(options: &TapOptions) -> Result<(), OpenError> {
    let name = &options.name;
    let fits = (1..=LONGEST_NAME).contains(&name.len()) && name != "." && name != "..";
    if !fits || name.contains(|c: char| c == '/' || c == '%' || c == ':' || c.is_whitespace() || c.is_control()) {
        return Err(OpenError::Name(format!(
            "{name:?}: an interface's name has 1 to {LONGEST_NAME} bytes without space, slash, colon or percent sign"
        )));
    }
    if options.tag.instance.contains(':') {
        return Err(OpenError::Name(format!("instance {:?}: its name must not contain a colon", options.tag.instance)));
    }
    Ok(())
}

pub(crate) fn kernel(options: &TapOptions, step: &'static str, error: io::Error) -> OpenError {
    OpenError::Kernel { device: options.name.clone(), step, error }
}

/// Runs `work` in a namespace, `None` being ours.
pub(crate) fn within<T: Send>(
    options: &TapOptions,
    netns: Option<&Netns>,
    work: impl FnOnce() -> T + Send,
) -> Result<T, OpenError> {
    match netns {
        None => Ok(work()),
        Some(netns) => netns.run(work).map_err(|error| OpenError::Namespace {
            device: options.name.clone(),
            netns: netns.clone(),
            error,
        }),
    }
}

/// Looks for a device of ours: by name where it should be, and where it is to be persistent also by
/// its tag wherever it may be by now.
fn find(
    options: &TapOptions,
    survey: &Survey,
    notes: &mut Vec<String>,
) -> Result<Option<(Option<Netns>, KernelLink)>, OpenError> {
    let netns = options.netns.as_ref();
    let link = within(options, netns, || Netlink::open()?.link(Which::Name(&options.name)))?
        .map_err(|error| kernel(options, "looking for it", error))?;
    if let Some(link) = link {
        let owner = Tag::parse(&link.alias);
        if link.kind == "tun" && owner.as_ref().is_some_and(|tag| tag.instance == options.tag.instance) {
            return Ok(Some((netns.cloned(), link)));
        }
        return Err(OpenError::Foreign { device: options.name.clone(), netns: netns.cloned(), owner });
    }
    if !options.persistent {
        return Ok(None);
    }
    let devices = survey
        .devices(|| tagged(survey.elsewhere(), |_| true))
        .map_err(|error| kernel(options, "looking for it", error))?;
    let mut all = devices.iter().filter(|(_, link)| Tag::parse(&link.alias).as_ref() == Some(&options.tag));
    let Some(one) = all.next() else { return Ok(None) };
    let Some(other) = all.next() else { return Ok(Some(one.clone())) };
    // Whoever has a namespace gives devices there any alias: taking the wrong one would put him
    // into another's network.
    let text = |(netns, link): &(Option<Netns>, KernelLink)| match netns {
        None => link.name.escape_debug().to_string(),
        Some(netns) => format!("{} in {netns}", link.name.escape_debug()),
    };
    notes.push(format!(
        "tap {}: {} and {} both have its tag ({}): neither is used, and a new device is made; delete the wrong one and the new \
         one (ip link delete), then start again",
        options.name,
        text(one),
        text(other),
        options.tag
    ));
    Ok(None)
}

/// The device that a descriptor is attached to, and the namespace that is in; `None` where it is no
/// TAP device's, or the device is gone.
fn attached_to(fd: BorrowedFd<'_>) -> Option<(String, Identity)> {
    let name = ioctl::name(fd).ok()?;
    Some((name, Identity::of(&ioctl::netns(fd).ok()?).ok()?))
}

/// The name of the device that a descriptor is attached to; `None` where it is gone.
pub(crate) fn name(fd: BorrowedFd<'_>) -> Option<String> {
    ioctl::name(fd).ok()
}

/// Whether a descriptor is attached to a TAP device that is there.
fn is_attached(fd: BorrowedFd<'_>) -> bool {
    ioctl::name(fd).is_ok()
}

/// Goes on with a device that another process may still be reading: nothing of it is changed. See
/// [`settle`].
fn adopt(options: &TapOptions, fd: OwnedFd) -> Result<Device, OpenError> {
    // Asking for it again changes nothing, and tells what there is.
    let udp_segmentation =
        ioctl::set_offload(fd.as_fd()).map_err(|error| kernel(options, "asking for offloaded frames", error.into()))?;
    // Who made the descriptor, and where, is not known: it may keep the namespace alive.
    let pinned = options.netns.as_ref().and_then(|netns| Some((netns.released(), netns.identity().ok()?)));
    let (name, notes) = (options.name.clone(), Vec::new());
    Ok(Device { fd, name, udp_segmentation, pinned, adopted: true, made: false, notes })
}

/// See [`super::Tap::settle`]. With `up`, a device that is where it should be is also set up.
pub(crate) fn settle(options: &TapOptions, tap: BorrowedFd<'_>, up: bool) -> Result<Option<String>, OpenError> {
    ioctl::set_persistent(tap, options.persistent)
        .map_err(|error| kernel(options, "making it persistent", error.into()))?;
    let settled = visit(tap, |netlink, link, identity| {
        let away = options.is_away(identity);
        let extent = Extent { up: up && !away, ipv6: !away, addresses: if away { &[] } else { &options.addresses } };
        configure(options, netlink, link, extent).map(|()| away.then(|| (link.name.clone(), identity)))
    });
    let away = settled.map_err(lost(options))??;
    Ok(away.map(|(name, identity)| is_left("tap", options, &name, identity)))
}

/// Says of a device that is not in the namespace of its options what is not set there.
pub(crate) fn is_left(kind: &str, options: &TapOptions, name: &str, identity: Identity) -> String {
    let netns = options.netns.as_ref().map_or_else(|| "the daemon's namespace".to_owned(), ToString::to_string);
    format!(
        "{kind} {} is in another namespace (net:[{}]) as {}, and the configuration has it in {netns}: it goes on there, and its \
         addresses, IPv6 and whether it is up are left to who moved it; moved back, it is set up again",
        options.name,
        identity.number(),
        name.escape_debug()
    )
}

/// Deletes a device, wherever it is, of which others than us may have a descriptor.
pub fn remove(tap: BorrowedFd<'_>) {
    // What is gone already is gone; what cannot be deleted ends with the last descriptor.
    let _ = visit(tap, |netlink, link, _| netlink.delete(link.index));
}

/// All tagged devices that `wanted` accepts, in our own namespace, in the named ones and in `more`.
fn tagged(more: &[Netns], wanted: impl Fn(&Tag) -> bool + Sync) -> io::Result<Vec<(Option<Netns>, KernelLink)>> {
    let ours = || -> io::Result<Vec<KernelLink>> {
        let mut links = Netlink::open()?.links()?;
        links.retain(|link| link.kind == "tun" && Tag::parse(&link.alias).is_some_and(|tag| wanted(&tag)));
        Ok(links)
    };
    let mut seen = vec![Identity::own()?];
    let mut found: Vec<_> = ours()?.into_iter().map(|link| (None, link)).collect();
    for netns in Netns::named()?.iter().chain(more) {
        // A name without a namespace is a leftover of someone's crash: nothing can be in it.
        let Ok(identity) = netns.identity() else { continue };
        if seen.contains(&identity) {
            continue;
        }
        seen.push(identity);
        if let Ok(links) = netns.run(ours) {
            found.extend(links?.into_iter().map(|link| (Some(netns.clone()), link)));
        }
    }
    Ok(found)
}

/// Attaches to a device of ours that exists, and moves it to the namespace that it should be in.
fn take_up(
    options: &TapOptions,
    (place, link): (Option<Netns>, &KernelLink),
    survey: &Survey,
    notes: &mut Vec<String>,
) -> Result<Attached, OpenError> {
    let attach = || {
        let fd = ioctl::open()?;
        ioctl::attach(fd.as_fd(), &link.name, false).map(|_| fd)
    };
    let attached = loop {
        match within(options, place.as_ref(), attach)? {
            Err(Errno::BUSY) if survey.may_wait() => std::thread::sleep(RELEASE / 100),
            attached => break attached,
        }
    };
    let fd = attached.map_err(|errno| match errno {
        Errno::BUSY => OpenError::InUse { device: link.name.clone() },
        errno => kernel(options, "taking it up again", errno.into()),
    })?;
    // One that is named by a process may go on when that has ended.
    let watched = place.as_ref().filter(|netns| netns.name().is_some() || options.netns.as_ref() == Some(*netns));
    let pinned = watched.and_then(|netns| Some((netns.released(), netns.identity().ok()?)));
    match &options.netns {
        Some(target) if place.as_ref() != Some(target) => {
            move_to(options, place.as_ref(), link.index, target)?;
            let from = place.map_or_else(|| "the daemon's namespace".to_owned(), |netns| netns.to_string());
            notes.push(format!(
                "tap {}: it was in {from} as {}, and is back in {target}",
                options.name,
                link.name.escape_debug()
            ));
            // The descriptor keeps the namespace it was opened in alive, not the one the device is
            // in now.
            Ok(Attached { fd, name: options.name.clone(), pinned: None })
        }
        _ => Ok(Attached { fd, name: link.name.clone(), pinned }),
    }
}

/// Makes a device, tags it, and moves it to its namespace.
fn make(options: &TapOptions) -> Result<Attached, OpenError> {
    let fd = ioctl::open().map_err(|errno| kernel(options, "opening /dev/net/tun", errno.into()))?;
    let wanted = if options.netns.is_some() { PASSING_NAME } else { &options.name };
    let name = ioctl::attach(fd.as_fd(), wanted, true).map_err(|errno| match errno {
        // Between looking and making, another process made it.
        Errno::BUSY => OpenError::InUse { device: options.name.clone() },
        errno => kernel(options, "making it", errno.into()),
    })?;
    let tag = || -> io::Result<i32> {
        let mut netlink = Netlink::open()?;
        let link = netlink.link(Which::Name(&name))?.ok_or(io::ErrorKind::NotFound)?;
        netlink.change(link.index, &Change { alias: Some(&options.tag.to_string()), ..Change::default() })?;
        Ok(link.index)
    };
    let index = tag().map_err(|error| kernel(options, "tagging it", error))?;
    if let Some(target) = &options.netns {
        move_to(options, None, index, target)?;
    }
    Ok(Attached { fd, name: options.name.clone(), pinned: None })
}

fn move_to(options: &TapOptions, from: Option<&Netns>, index: i32, target: &Netns) -> Result<(), OpenError> {
    let file = target.open().map_err(|error| OpenError::Namespace {
        device: options.name.clone(),
        netns: target.clone(),
        error,
    })?;
    let change = Change { to: Some((file.as_fd(), &options.name)), ..Change::default() };
    within(options, from, || Netlink::open()?.change(index, &change))?.map_err(|error| match error.raw_os_error() {
        Some(libc::EEXIST) => OpenError::InUse { device: options.name.clone() },
        _ => kernel(options, "moving it to its namespace", error),
    })
}

/// Sets up an open device, of which `tap` is a descriptor, otherwise than it was by `old`, wherever
/// it is; addresses are added, none is taken away, except that the kernel takes those of IPv6 where
/// that is not wanted any more. A device that is not where it should be gets what is new only.
///
/// # Errors
/// See [`OpenError`]: the device is not there, or the kernel refused.
pub fn reconfigure(old: &TapOptions, options: &TapOptions, tap: BorrowedFd<'_>) -> Result<(), OpenError> {
    let new: Vec<_> = options.addresses.iter().filter(|address| !old.addresses.contains(address)).copied().collect();
    // Who is to have no ring of its own any more has the one that it would have had.
    let ring = options.txqueuelen.or(old.txqueuelen.map(|_| DEFAULT_RING));
    let options = &TapOptions { txqueuelen: ring, ..options.clone() };
    let set = visit(tap, |netlink, link, identity| {
        let extent = if options.is_away(identity) {
            Extent { up: false, ipv6: old.without_ipv6 != options.without_ipv6, addresses: &new }
        } else {
            Extent { up: false, ipv6: true, addresses: &options.addresses }
        };
        configure(options, netlink, link, extent)
    });
    set.map_err(lost(options))??;
    if old.persistent == options.persistent {
        return Ok(());
    }
    ioctl::set_persistent(tap, options.persistent)
        .map_err(|error| kernel(options, "making it persistent or not", error.into()))
}

/// In the device's namespace. A kernel without IPv6 has nothing to disable.
fn disable_ipv6(name: &str, disable: bool) -> io::Result<()> {
    match fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), if disable { "1" } else { "0" }) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// How much of the options is set.
#[derive(Clone, Copy)]
pub(crate) struct Extent<'a> {
    /// Set it up.
    pub up: bool,
    /// Take IPv6 from it, or give it back.
    pub ipv6: bool,
    /// Give it these addresses.
    pub addresses: &'a [(IpAddr, u8)],
}

/// Sets what the options say, inside the device's namespace.
pub(crate) fn configure(
    options: &TapOptions,
    netlink: &mut Netlink,
    link: &KernelLink,
    extent: Extent<'_>,
) -> Result<(), OpenError> {
    let failed = |step| move |error| kernel(options, step, error);
    let name = &link.name;
    let without_ipv6 = if extent.ipv6 { options.without_ipv6 } else { link.alias.ends_with(WITHOUT_IPV6) };
    // Before the tag says that it has IPv6, and below, after the tag says that it has none: so a
    // death in between leaves no lie.
    if !without_ipv6 && link.alias.ends_with(WITHOUT_IPV6) {
        disable_ipv6(name, false).map_err(failed("enabling IPv6"))?;
    }
    if options.persistent {
        // While no process has it, it has no carrier. The endpoint is to keep its neighbours
        // meanwhile (ip-sysctl.rst; Linux 5.16): asking for them again took 1.4 s where the first
        // request was lost. Older kernels, and those without IPv6, have no such files.
        for file in [format!("ipv4/conf/{name}/arp_evict_nocarrier"), format!("ipv6/conf/{name}/ndisc_evict_nocarrier")]
        {
            let _ = fs::write(format!("/proc/sys/net/{file}"), "0");
        }
    }
    // What is so already is left alone: setting a MAC address again would make the endpoint's
    // kernel forget its neighbours.
    let tag = format!("{}{}", options.tag, if without_ipv6 { WITHOUT_IPV6 } else { "" });
    let change = Change {
        alias: Some(&*tag).filter(|tag| *tag != link.alias),
        mac: options.mac.map(|mac| mac.0).filter(|mac| Some(*mac) != link.mac),
        mtu: options.mtu.filter(|mtu| *mtu != link.mtu),
        txqueuelen: options.txqueuelen.filter(|frames| *frames != link.txqueuelen),
        ..Change::default()
    };
    if change.alias.is_some() || change.mac.is_some() || change.mtu.is_some() || change.txqueuelen.is_some() {
        netlink.change(link.index, &change).map_err(failed("setting its MAC address, MTU and queue length"))?;
    }
    if let Some(bytes) = options.longest_offload.filter(|bytes| *bytes != link.gso_max_size) {
        // It is about speed only.
        let _ = netlink.change(link.index, &Change { gso_max_size: Some(bytes), ..Change::default() });
    }
    // Before it is up, so that it never has a link-local address.
    if extent.ipv6 && without_ipv6 {
        disable_ipv6(name, true).map_err(failed("disabling IPv6"))?;
    }
    if extent.up && !link.is_up {
        netlink.change(link.index, &Change { up: true, ..Change::default() }).map_err(failed("setting it up"))?;
    }
    for &(address, prefix) in extent.addresses {
        netlink.add_address(link.index, address, prefix).map_err(failed("giving it its addresses"))?;
    }
    Ok(())
}

/// A device that [`remove_tagged`] found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// Where it was; `None` is our own namespace.
    pub netns: Option<Netns>,
    /// The endpoint it belongs to.
    pub endpoint: String,
    /// A process has it open: it was not deleted.
    pub is_in_use: bool,
}

/// Whether an instance has left devices, here or in one of these namespaces.
///
/// # Errors
/// The kernel's answer.
pub fn has_tagged(instance: &str, more: &[Netns]) -> io::Result<bool> {
    Ok(!tagged(more, |tag| tag.instance == instance)?.is_empty())
}

/// Deletes the devices that an instance made and that no process has open, in our own namespace, in
/// all named ones, and in `more` (where the daemon knows to have put some). Devices of others stay.
///
/// # Errors
/// The kernel refused: the process is not root, for example.
pub fn remove_tagged(instance: &str, more: &[Netns]) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for (netns, link) in tagged(more, |tag| tag.instance == instance)? {
        let delete = || -> io::Result<bool> {
            // One that cannot be had has somebody. Deleted while it is ours, it is nobody else's.
            let fd = ioctl::open();
            if fd.as_ref().is_ok_and(|fd| ioctl::attach(fd.as_fd(), &link.name, false) == Err(Errno::BUSY)) {
                return Ok(true);
            }
            Netlink::open()?.delete(link.index).map(|()| false)
        };
        let is_in_use = match &netns {
            None => delete()?,
            Some(netns) => netns.run(delete)??,
        };
        let endpoint = Tag::parse(&link.alias).map(|tag| tag.endpoint).unwrap_or_default();
        found.push(Found { name: link.name, netns, endpoint, is_in_use });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(name: &str) -> TapOptions {
        TapOptions {
            name: name.into(),
            netns: None,
            mac: None,
            mtu: None,
            longest_offload: None,
            addresses: Vec::new(),
            persistent: false,
            txqueuelen: None,
            without_ipv6: false,
            tag: Tag { instance: "i".into(), endpoint: "e".into() },
        }
    }

    #[test]
    fn names_that_the_kernel_would_refuse_or_change_are_refused() {
        for name in ["", "a-name-of-sixteen", "a b", "a/b", "tap%d", "..", "a:b", "a\n"] {
            assert!(matches!(open(&options(name), &Survey::default()), Err(OpenError::Name(_))), "{name:?}");
        }
        let mut with_colon = options("tap0");
        with_colon.tag.instance = "a:b".into();
        assert!(matches!(open(&with_colon, &Survey::default()), Err(OpenError::Name(_))));
    }

    #[test]
    fn a_missing_namespace_is_named_with_its_remedy() {
        let mut options = options("tap0");
        options.netns = Some(Netns::new("levada-never-made"));
        let message = open(&options, &Survey::default()).err().expect("there is no such namespace").to_string();
        assert!(message.contains("levada-never-made") && message.contains("ip netns add"), "{message}");
    }
}
