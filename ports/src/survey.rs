//! What there is already when devices are opened: descriptors that an earlier process left, and the
//! devices of all instances, wherever they are.
//!
//! What a descriptor is open on is asked of the kernel, so that it needs no description, and none
//! can be wrong: a packet socket has an interface and a namespace, a link an id that is found at
//! its interface's hook, a directory is the same as another by device and inode, and a socket that
//! listens has a path. A TAP has a name and a namespace, but both may be others than they were: of
//! it the earlier process says what it knew it by. What nobody takes is closed with the survey.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FileType;

use crate::Port;
use crate::netns::{Identity, Netns};
use crate::rtnl::Link;

/// How long whoever held a device for an earlier process may take to close it: a service manager
/// does so at a time of its own.
pub(crate) const RELEASE: Duration = Duration::from_millis(500);

/// See the module. Looking for the devices of all instances is done once for all, when the first is
/// wanted: looking for each of 100 by itself in 100 namespaces took seconds.
#[derive(Default)]
pub struct Survey {
    inherited: RefCell<Vec<Inherited>>,
    elsewhere: Vec<Netns>,
    passed: Vec<Netns>,
    asked: RefCell<BTreeSet<String>>,
    known: OnceCell<Vec<(Option<Netns>, Link)>>,
    /// How long to wait for what an earlier process's manager still holds.
    patience: OnceCell<Instant>,
}

/// A descriptor that an earlier process left.
#[derive(Debug)]
pub struct Inherited {
    /// It.
    pub fd: OwnedFd,
    /// What that process knew it by ([`crate::Port::known_as`]), where it said so.
    pub known_as: Option<String>,
}

impl Inherited {
    /// Second descriptors of a port, for a process that goes on after this one. Where there is none
    /// to be had, that process opens what it does not get, and says so where it cannot.
    #[must_use]
    pub fn all_of(port: &dyn Port) -> Vec<Inherited> {
        let known_as = || port.known_as().map(str::to_owned);
        let copy = |fd: BorrowedFd<'_>| Some(Inherited { fd: fd.try_clone_to_owned().ok()?, known_as: known_as() });
        port.lent().into_iter().filter_map(copy).collect()
    }
}

impl From<OwnedFd> for Inherited {
    fn from(fd: OwnedFd) -> Inherited {
        Inherited { fd, known_as: None }
    }
}

impl From<Inherited> for OwnedFd {
    fn from(inherited: Inherited) -> OwnedFd {
        inherited.fd
    }
}

impl AsFd for Inherited {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Survey {
    /// A survey that knows descriptors of an earlier process, and namespaces without a name where
    /// devices may be, too.
    #[must_use]
    pub fn of(inherited: Vec<Inherited>, elsewhere: Vec<Netns>) -> Survey {
        Survey { inherited: RefCell::new(inherited), elsewhere, ..Survey::default() }
    }

    /// A survey that knows namespaces which another process has passed ([`Netns::passed`]).
    #[must_use]
    pub fn with_passed(passed: Vec<Netns>) -> Survey {
        Survey { elsewhere: passed.clone(), passed, ..Survey::default() }
    }

    /// The namespace as it was passed, if it was.
    #[must_use]
    pub fn passed(&self, netns: &Netns) -> Option<Netns> {
        self.passed.iter().find(|passed| *passed == netns).cloned()
    }

    /// The paths of the namespaces that were passed.
    #[must_use]
    pub fn named(&self) -> Vec<PathBuf> {
        self.passed.iter().map(|netns| netns.path().to_owned()).collect()
    }

    /// A namespace as it is to be entered: by the descriptor that was passed, if one was.
    pub(crate) fn entrance(&self, netns: Option<&Netns>) -> Option<Netns> {
        netns.map(|netns| self.passed(netns).unwrap_or_else(|| netns.clone()))
    }

    /// Takes note of all that will be asked for. What a descriptor was known as and nobody asks
    /// for, it is not called any more: it may be had by the name and the namespace that its device
    /// has now ([`Survey::is_free`]).
    pub fn expect(&self, wanted: &BTreeSet<String>) {
        self.asked.borrow_mut().extend(wanted.iter().cloned());
    }

    /// Whether nobody asks for a descriptor by what it was known as.
    pub(crate) fn is_free(&self, one: &Inherited) -> bool {
        let asked = self.asked.borrow();
        one.known_as.as_ref().is_none_or(|known_as| !asked.is_empty() && !asked.contains(known_as))
    }

    /// The first descriptor of which `what` says something, with what it says.
    pub(crate) fn take<T>(&self, what: impl Fn(&Inherited) -> Option<T>) -> Option<(OwnedFd, T)> {
        let mut inherited = self.inherited.borrow_mut();
        let (at, said) = inherited.iter().enumerate().find_map(|(at, one)| Some((at, what(one)?)))?;
        Some((inherited.swap_remove(at).fd, said))
    }

    /// What `what` says of the first descriptor of which it says something.
    pub(crate) fn find<T>(&self, what: impl Fn(&Inherited) -> Option<T>) -> Option<T> {
        self.inherited.borrow().iter().find_map(what)
    }

    /// Whether a device that is held by somebody may yet be let go: for [`RELEASE`] from when that
    /// was asked first, for all devices together.
    pub(crate) fn may_wait(&self) -> bool {
        let now = Instant::now();
        now < *self.patience.get_or_init(|| now + RELEASE)
    }

    /// Namespaces without a name where devices may be.
    pub(crate) fn elsewhere(&self) -> &[Netns] {
        &self.elsewhere
    }

    /// Those of the directory at `path`, and of the socket that listens in it as `name`.
    pub(crate) fn directory(&self, path: &Path, name: &str) -> Option<(OwnedFd, OwnedFd)> {
        let wanted = rustix::fs::stat(path).ok()?;
        let listens = |one: &Inherited| {
            let fd = one.as_fd();
            rustix::net::sockopt::socket_acceptconn(fd).ok().filter(|listens| *listens)?;
            let address = rustix::net::getsockname(fd).ok()?;
            let address = rustix::net::SocketAddrUnix::try_from(address).ok()?;
            (address.path()?.to_bytes() == path.join(name).as_os_str().as_encoded_bytes()).then_some(())
        };
        let is_it = |one: &Inherited| {
            let status = rustix::fs::fstat(one).ok()?;
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

/// The namespace that options name; without one our own.
pub(crate) fn place(netns: Option<&Netns>) -> Option<Identity> {
    netns.map_or_else(Identity::own, Netns::identity).ok()
}
