//! `host://NAME`: the host's own traffic over an interface that the switch has taken, as a port of
//! the switch.
//!
//! The port is a TAP device, and three programs bend the host's ways through it (`bpf.rs`). The
//! interface keeps its name, addresses and routes, and the host's programs notice nothing:
//!
//! | at | a frame | goes |
//! |---|---|---|
//! | the interface's ingress | from the wire | nowhere: the packet socket has read it |
//! | the interface's egress | that the host sends | to the TAP, where the switch reads it |
//! | the TAP's ingress | that the switch writes for the host | into the interface's ingress, marked, where it passes |
//!
//! What the switch itself sends over the interface passes by its egress hook, or through a program
//! before (`tunnel.rs`). The programs are held by descriptors and the TAP is not persistent: when
//! the process ends, however it ends, the host uses the interface as before. When only the TAP
//! goes, reading it says so, and closing the port takes the programs away, so that the host is cut
//! off for a moment at most.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use datapath::frame::{Frame, Pool};
use datapath::wire::Mac;

use super::bpf::{self, AtHooks, Links};
use super::{InterfaceName, OpenError, find_which, inspect, pin, within};
use crate::netns::{Identity, Netns};
use crate::rtnl::{KernelLink, Netlink, Which};
use crate::survey::Survey;
use crate::tap::{self, Tag, Tap, TapOptions};
use crate::{Features, InterfaceStatus, Port, PortError, Refused};

/// What the TAP of an interface is called, before its index.
const DEVICE: &str = "levada.";

/// The host's side of which interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostOptions {
    /// Name of the interface.
    pub interface: String,
    /// The namespace it is in, whose traffic is "the host's"; `None` for ours.
    pub netns: Option<Netns>,
    /// The addresses that the switch lets the host use; none for any.
    pub macs: Vec<Mac>,
    /// Frames that wait to be read; `None` leaves the kernel's default (500).
    pub ring: Option<u32>,
    /// Whose the TAP is.
    pub tag: Tag,
}

/// The host's traffic over one interface. Dropping it gives the interface back to the host.
#[derive(Debug)]
pub struct Host {
    /// Dropped first: the host's way out must not lead into a device that is gone.
    links: Arc<Links>,
    tap: Tap,
    place: InterfaceName,
    pinned: Option<Identity>,
    /// The interface as it was when last looked at.
    link: KernelLink,
}

/// Whether an interface can be taken for the switch alone here.
///
/// # Errors
/// Why not, as a sentence for people.
pub fn probe() -> Result<(), String> {
    bpf::probe().map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "this process may not load BPF programs: run it as root".to_owned(),
        Some(libc::ENOSYS | libc::EINVAL) => format!("this kernel takes no BPF programs ({error})"),
        _ => format!("a BPF program cannot be loaded: {error}"),
    })?;
    // Hooks of the loopback interface can be asked for wherever there are such hooks.
    bpf::hooks(1)
        .map(drop)
        .map_err(|error| format!("this kernel has no TCX hooks, which came with Linux 6.6 ({error})"))
}

impl Host {
    /// Bends the host's traffic over the interface through the new port. Open the interface itself
    /// before.
    ///
    /// # Errors
    /// See [`OpenError`]. What was changed is undone.
    pub fn open(options: &HostOptions) -> Result<Host, OpenError> {
        Host::open_among(options, &Survey::default())
    }

    /// As [`Host::open`]. Where the `survey` has what an earlier process did so with, the port goes
    /// on with that: at no time does the host go another way.
    ///
    /// # Errors
    /// As [`Host::open`].
    pub fn open_among(options: &HostOptions, survey: &Survey) -> Result<Host, OpenError> {
        let place =
            InterfaceName { name: options.interface.clone(), netns: options.netns.as_ref().map(Netns::released) };
        let entrance = InterfaceName { netns: survey.entrance(options.netns.as_ref()), ..place.clone() };
        let pinned = pin(&entrance)?;
        let link = find_known(options, &entrance, None)?;
        let tap = Tap::open_among(&tap_options(options, &link), survey).map_err(OpenError::Tap)?;
        let kernel = |error| OpenError::Kernel(place.clone(), "attaching the programs that take it", error);
        let look = || -> io::Result<(i32, AtHooks)> {
            let device = Netlink::open()?.link(Which::Name(tap.name()))?.ok_or(io::ErrorKind::NotFound)?;
            Ok((device.index, AtHooks::look(link.index, device.index)?))
        };
        let (device, at_hooks) = within(&entrance, look)?.map_err(kernel)?;
        let inherited = if tap.is_adopted() { Links::inherit(&at_hooks, survey) } else { None };
        let links = match inherited {
            Some(links) => links,
            None => within(&entrance, || Links::attach(link.index, device))?.map_err(kernel)?,
        };
        Ok(Host { links: Arc::new(links), tap, place, pinned, link })
    }

    /// Whether it was inherited and is still as another process left it: [`Host::settle`] is to be
    /// called when that process has ended.
    #[must_use]
    pub fn is_adopted(&self) -> bool {
        self.tap.is_adopted()
    }

    /// Brings a port that is open, of which `tap` is the descriptor, to what the options say. The
    /// interface may have another name by now.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn settle(options: &HostOptions, tap: BorrowedFd<'_>) -> Result<(), OpenError> {
        let place = InterfaceName { name: options.interface.clone(), netns: options.netns.clone() };
        let link = find_known(options, &place, index_in(tap))?;
        tap::settle(&tap_options(options, &link), tap, true).map(drop).map_err(OpenError::Tap)
    }
}

/// The interface, by its index where that is known, where the switch knows the host by its address.
fn find_known(options: &HostOptions, place: &InterfaceName, index: Option<i32>) -> Result<KernelLink, OpenError> {
    let which = index.map_or(Which::Name(&place.name), Which::Index);
    let link = within(place, || find_which(place, which))??;
    match link.mac.map(Mac).filter(|mac| !options.macs.is_empty() && !options.macs.contains(mac)) {
        Some(mac) => Err(OpenError::OtherAddress(place.clone(), mac)),
        None => Ok(link),
    }
}

/// The index of the interface that a TAP is for, which it is called by; `None` where somebody has
/// renamed it.
fn index_in(tap: BorrowedFd<'_>) -> Option<i32> {
    tap::name(tap)?.strip_prefix(DEVICE)?.parse().ok()
}

/// The TAP for the host's traffic over the interface `link`.
fn tap_options(options: &HostOptions, link: &KernelLink) -> TapOptions {
    TapOptions {
        name: format!("{DEVICE}{}", link.index),
        netns: options.netns.clone(),
        mac: None,
        mtu: Some(link.mtu),
        longest_offload: None,
        addresses: Vec::new(),
        persistent: false,
        // Nobody else sets it, so it need not be left.
        txqueuelen: Some(options.ring.unwrap_or(tap::DEFAULT_RING)),
        without_ipv6: true,
        tag: options.tag.clone(),
    }
}

impl Port for Host {
    fn features(&self) -> Features {
        Features { max_frame: self.link.max_frame(), ..self.tap.features() }
    }

    fn line(&self) -> InterfaceStatus {
        InterfaceStatus { mac: self.link.mac.map(Mac), bits_per_second: None, has_carrier: None }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.tap.fd()
    }

    fn rx(&mut self, pool: &mut Pool, burst: usize, out: &mut Vec<Frame>) -> Result<usize, PortError> {
        self.tap.rx(pool, burst, out)
    }

    fn write(&mut self, pool: &mut Pool, frame: &Frame) -> Result<(), Refused> {
        self.tap.write(pool, frame)
    }

    fn drops_before_us(&mut self) -> Result<u64, PortError> {
        if let Some(link) = inspect(&self.place, self.pinned, self.link.index, None)? {
            self.link = link;
        }
        if !self.links.hold() {
            return Err(PortError::Gone(format!("{}: the programs that take it were taken off", self.place)));
        }
        self.tap.drops_before_us()
    }

    fn may_wait(&self) -> bool {
        false
    }

    fn lent(&self) -> Vec<BorrowedFd<'_>> {
        self.tap.fd().into_iter().chain(self.links.descriptors()).collect()
    }

    fn second(&self) -> Option<Box<dyn Port + Send>> {
        Some(Box::new(Host {
            links: Arc::clone(&self.links),
            tap: self.tap.twin()?,
            place: self.place.clone(),
            pinned: self.pinned,
            link: self.link.clone(),
        }))
    }
}
