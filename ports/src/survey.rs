//! What there is already when devices are opened: descriptors that an earlier process left, and the devices of all instances, wherever
//! they are.
//!
//! What a descriptor is open on is asked of the kernel, so that it needs no description, and none can be wrong: a TAP has a name and a
//! namespace, a packet socket an interface and a namespace, a link an id that is found at its interface's hook, a directory is the same as
//! another by device and inode, and a socket that listens has a path. What nobody takes is closed with the survey.

use std::cell::{OnceCell, RefCell};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::FileType;

use crate::netns::{Identity, Netns};
use crate::packet;
use crate::rtnl::Link;
use crate::tap;

/// See the module. Looking for the devices of all instances is done once for all, when the first is wanted: looking for each of 100 by itself
/// in 100 namespaces took seconds.
#[derive(Default)]
pub struct Survey {
    inherited: RefCell<Vec<OwnedFd>>,
    known: OnceCell<Vec<(Option<Netns>, Link)>>,
}

/// An inherited descriptor on an attached TAP device.
pub(crate) struct InheritedTap {
    pub fd: OwnedFd,
    pub name: String,
    pub netns: Identity,
}

impl Survey {
    /// A survey that knows descriptors of an earlier process.
    #[must_use]
    pub fn of(descriptors: Vec<OwnedFd>) -> Survey {
        Survey { inherited: RefCell::new(descriptors), known: OnceCell::new() }
    }

    /// The first descriptor of which `what` says something, with what it says.
    fn take<T>(&self, what: impl Fn(BorrowedFd<'_>) -> Option<T>) -> Option<(OwnedFd, T)> {
        let mut inherited = self.inherited.borrow_mut();
        let (at, said) = inherited.iter().enumerate().find_map(|(at, fd)| Some((at, what(fd.as_fd())?)))?;
        Some((inherited.swap_remove(at), said))
    }

    /// That of the TAP device of this name, in this namespace (`None`: ours).
    pub(crate) fn tap(&self, name: &str, netns: Option<&Netns>) -> Option<InheritedTap> {
        let wanted = place(netns)?;
        let is_it = |fd: BorrowedFd<'_>| {
            let (is, at) = tap::attached_to(fd)?;
            (is == name && at == wanted).then_some(())
        };
        let (fd, ()) = self.take(is_it)?;
        Some(InheritedTap { fd, name: name.to_owned(), netns: wanted })
    }

    /// That of a packet socket on the interface with this index, in this namespace (`None`: ours).
    pub(crate) fn packet_socket(&self, index: i32, netns: Option<&Netns>) -> Option<OwnedFd> {
        let wanted = place(netns)?;
        let is_it = |fd: BorrowedFd<'_>| (packet::socket_on(fd)? == (index, wanted)).then_some(());
        self.take(is_it).map(|(fd, ())| fd)
    }

    /// That of the link with one of these ids.
    pub(crate) fn link(&self, ids: &[u32]) -> Option<OwnedFd> {
        self.take(|fd| packet::link_id(fd).filter(|id| ids.contains(id))).map(|(fd, _)| fd)
    }

    /// Those of the directory at `path`, and of the socket that listens in it as `name`.
    pub(crate) fn directory(&self, path: &Path, name: &str) -> Option<(OwnedFd, OwnedFd)> {
        let wanted = rustix::fs::stat(path).ok()?;
        let listens = |fd: BorrowedFd<'_>| {
            rustix::net::sockopt::socket_acceptconn(fd).ok().filter(|listens| *listens)?;
            let address = rustix::net::getsockname(fd).ok()?;
            let address = rustix::net::SocketAddrUnix::try_from(address).ok()?;
            (address.path()?.to_bytes() == path.join(name).as_os_str().as_encoded_bytes()).then_some(())
        };
        let is_it = |fd: BorrowedFd<'_>| {
            let status = rustix::fs::fstat(fd).ok()?;
            let same = (status.st_dev, status.st_ino) == (wanted.st_dev, wanted.st_ino);
            (same && FileType::from_raw_mode(status.st_mode) == FileType::Directory).then_some(())
        };
        let (listener, ()) = self.take(listens)?;
        let (handle, ()) = self.take(is_it)?;
        Some((handle, listener))
    }

    /// The devices of all instances; `find` looks for them.
    pub(crate) fn devices(
        &self,
        find: impl FnOnce() -> io::Result<Vec<(Option<Netns>, Link)>>,
    ) -> io::Result<&[(Option<Netns>, Link)]> {
        if let Some(known) = self.known.get() {
            return Ok(known);
        }
        let found = find()?;
        Ok(self.known.get_or_init(|| found))
    }
}

fn place(netns: Option<&Netns>) -> Option<Identity> {
    netns.map_or_else(Identity::own, Netns::identity).ok()
}
