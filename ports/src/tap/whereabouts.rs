//! Where a TAP device is by now.
//!
//! Whoever may administer the network moves a device to another namespace, renames it, or sets it
//! down; a container's manager does all three. The descriptor goes on being that of the device, so
//! the device is asked for by it, and by nothing else: its name may be another's by now.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::ioctl;
use crate::netns::{Identity, run_in};
use crate::rtnl::{KernelLink, Netlink, Which};

/// How often a device is looked for: between asking where it is and looking there, it may be moved
/// or renamed.
pub(crate) const LOOKS: u32 = 8;

/// The name of a device that is sent after another; the kernel puts a number in.
const SCOUT: &str = "levada%d";

/// Where a device is and what it is like there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Whereabouts {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub netns: Identity,
    /// Whether that is another than it was opened for.
    pub is_moved: bool,
    /// Whether its name is another than it was opened by.
    pub is_renamed: bool,
    /// Whether it is set up; who has it may set it down.
    pub is_up: bool,
    /// Whether it can carry frames: it is up, and nobody has taken its carrier away.
    pub has_carrier: bool,
}

/// A namespace with a device in it, and the device's name there.
pub(super) struct Spot {
    pub netns: File,
    pub identity: Identity,
    pub name: String,
}

impl Spot {
    /// That of the device of a descriptor.
    pub fn of(tap: BorrowedFd<'_>) -> io::Result<Spot> {
        let netns = ioctl::netns(tap)?;
        Ok(Spot { identity: Identity::of(&netns)?, netns, name: ioctl::name(tap)? })
    }
}

/// Runs `work` in the namespace that the device is in, with what the kernel says of the device
/// there.
pub(super) fn visit<T: Send>(
    tap: BorrowedFd<'_>,
    work: impl FnOnce(&mut Netlink, &KernelLink, Identity) -> T + Send,
) -> io::Result<T> {
    let mut work = Some(work);
    for _ in 0..LOOKS {
        let Spot { netns, identity, name } = Spot::of(tap)?;
        let mut look = || -> io::Result<Option<T>> {
            let mut netlink = Netlink::open()?;
            let link = netlink.link(Which::Name(&name))?;
            Ok(link.and_then(|link| work.take().map(|work| work(&mut netlink, &link, identity))))
        };
        let done = if identity == Identity::own()? { look()? } else { run_in(netns.as_fd(), look)?? };
        if let Some(done) = done {
            return Ok(done);
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// The namespace that the calling thread's has this id for. The kernel tells it of no id, but of a
/// TAP device (Linux 5.5): one is made, goes there without being set up, and ends when that is
/// told.
pub(crate) fn namespace_of_id(netlink: &mut Netlink, id: i32) -> io::Result<File> {
    let scout = ioctl::open()?;
    let name = ioctl::attach(scout.as_fd(), SCOUT, true)?;
    let link = netlink.link(Which::Name(&name))?.ok_or(io::ErrorKind::NotFound)?;
    netlink.move_to_id(link.index, id, SCOUT)?;
    ioctl::netns(scout.as_fd())
}
