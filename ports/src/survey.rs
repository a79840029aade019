//! What there is already when devices are opened: descriptors that an earlier process left, and the
//! devices of all instances, wherever they are.
//!
//! What a descriptor is open on is asked of the kernel, so that it needs no description, and none
//! can be wrong: a packet socket has an interface and a namespace, a link an id that is found at
//! its interface's hook, a directory is the same as another by device and inode, and a socket that
//! listens has a path. A TAP has a name and a namespace, but both may be others than they were: of
//! it the earlier process says what it knew it by. What nobody takes is closed with the survey.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FileType;

use crate::Port;
use crate::netns::{Identity, Netns};
use crate::rtnl::KernelLink;

/// How long whoever held a device for an earlier process may take to close it: a service manager
/// does so at a time of its own.
pub(crate) const RELEASE: Duration = Duration::from_millis(500);

/// See the module. Looking for the devices of all instances is done once for all, when the first is
/// wanted: looking for each of 100 by itself in 100 namespaces took seconds.
#[derive(Default)]
pub struct Survey {
    inherited: Descriptors,
    /// What they are open on.
    sockets: Index<(i32, Identity)>,
    links: Index<u32>,
    taps: Index<(String, Identity)>,
    listeners: Index<Vec<u8>>,
    folders: Index<(u64, u64)>,
    known_as: Index<String>,
    elsewhere: Vec<Netns>,
    passed: Vec<Netns>,
    asked: RefCell<BTreeSet<String>>,
    known: OnceCell<Vec<(Option<Netns>, KernelLink)>>,
    /// How long to wait for what an earlier process's manager still holds.
    patience: OnceCell<Instant>,
}

/// Descriptors that an earlier process left; `None` for those that were taken.
type Descriptors = RefCell<Vec<Option<Inherited>>>;

/// By what they are open on, which of the descriptors are. Each is asked once, when the first is
/// wanted, and once more before it is taken: of thousands, each for each took minutes.
struct Index<K>(OnceCell<BTreeMap<K, Vec<usize>>>);

impl<K> Default for Index<K> {
    fn default() -> Index<K> {
        Index(OnceCell::new())
    }
}

impl<K: Ord> Index<K> {
    /// Takes the first descriptor that is open on `wanted`, as `ask` says of it, and that `may` be
    /// taken.
    fn take(
        &self,
        all: &Descriptors,
        wanted: &K,
        ask: impl Fn(&Inherited) -> Option<K>,
        may: impl Fn(&Inherited) -> bool,
    ) -> Option<OwnedFd> {
        let mut all = all.borrow_mut();
        let places = self.0.get_or_init(|| {
            let mut places: BTreeMap<K, Vec<usize>> = BTreeMap::new();
            for (at, one) in all.iter().enumerate() {
                if let Some(key) = one.as_ref().and_then(&ask) {
                    places.entry(key).or_default().push(at);
                }
            }
            places
        });
        let is_it = |one: &Inherited| may(one) && ask(one).is_some_and(|is| is == *wanted);
        let at = places.get(wanted)?.iter().find(|&&at| all[at].as_ref().is_some_and(is_it))?;
        all[*at].take().map(OwnedFd::from)
    }
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
        let inherited = RefCell::new(inherited.into_iter().map(Some).collect());
        Survey { inherited, elsewhere, ..Survey::default() }
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

    /// What was known as `wanted`, where `is_there` says that its device is.
    pub(crate) fn known_as(&self, wanted: &str, is_there: impl Fn(&Inherited) -> bool) -> Option<OwnedFd> {
        self.known_as.take(&self.inherited, &wanted.to_owned(), |one| one.known_as.clone(), is_there)
    }

    /// The packet socket on the interface with this index, in this namespace, which `may` be taken;
    /// `on` asks the kernel where one is.
    pub(crate) fn socket(
        &self,
        wanted: (i32, Identity),
        on: impl Fn(BorrowedFd<'_>) -> Option<(i32, Identity)>,
        may: impl Fn(&Inherited) -> bool,
    ) -> Option<OwnedFd> {
        self.sockets.take(&self.inherited, &wanted, |one| on(one.as_fd()), may)
    }

    /// The link with one of these ids; `id_of` asks the kernel for one.
    pub(crate) fn link(&self, ids: &[u32], id_of: impl Fn(BorrowedFd<'_>) -> Option<u32>) -> Option<OwnedFd> {
        let ask = |one: &Inherited| id_of(one.as_fd());
        ids.iter().find_map(|id| self.links.take(&self.inherited, id, ask, |_| true))
    }

    /// What is attached to the TAP device with this name, in this namespace, where nobody asks for
    /// it by what it was known as; `on` asks the kernel which one that is.
    pub(crate) fn tap(
        &self,
        wanted: (String, Identity),
        on: impl Fn(BorrowedFd<'_>) -> Option<(String, Identity)>,
    ) -> Option<OwnedFd> {
        self.taps.take(&self.inherited, &wanted, |one| on(one.as_fd()), |one| self.is_free(one))
    }

    /// What `what` says of the first descriptor of which it says something.
    pub(crate) fn find<T>(&self, what: impl Fn(&Inherited) -> Option<T>) -> Option<T> {
        self.inherited.borrow().iter().flatten().find_map(what)
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
        let bound_to = |one: &Inherited| {
            let fd = one.as_fd();
            rustix::net::sockopt::socket_acceptconn(fd).ok().filter(|listens| *listens)?;
            let address = rustix::net::getsockname(fd).ok()?;
            let address = rustix::net::SocketAddrUnix::try_from(address).ok()?;
            Some(address.path()?.to_bytes().to_vec())
        };
        let folder = |one: &Inherited| {
            let status = rustix::fs::fstat(one).ok()?;
            let is_one = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
            is_one.then_some((status.st_dev, status.st_ino))
        };
        let socket = path.join(name).into_os_string().into_encoded_bytes();
        let listener = self.listeners.take(&self.inherited, &socket, bound_to, |_| true)?;
        let handle = self.folders.take(&self.inherited, &(wanted.st_dev, wanted.st_ino), folder, |_| true)?;
        Some((handle, listener))
    }

    /// The devices of all instances; `find` looks for them.
    pub(crate) fn devices(
        &self,
        find: impl FnOnce() -> io::Result<Vec<(Option<Netns>, KernelLink)>>,
    ) -> io::Result<&[(Option<Netns>, KernelLink)]> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::fs::File;

    fn inherited(count: usize) -> Vec<Inherited> {
        let null = File::open("/dev/null").unwrap();
        let one = |n| Inherited { fd: null.try_clone().unwrap().into(), known_as: Some(format!("d{n}")) };
        (0..count).map(one).collect()
    }

    #[test]
    fn however_many_are_taken_each_descriptor_is_asked_twice() {
        const COUNT: usize = 200;
        for from_the_last in [false, true] {
            let (all, index, asked) =
                (RefCell::new(inherited(COUNT).into_iter().map(Some).collect()), Index::default(), Cell::new(0));
            let ask = |one: &Inherited| {
                asked.set(asked.get() + 1);
                one.known_as.clone()
            };
            for n in 0..COUNT {
                let n = if from_the_last { COUNT - 1 - n } else { n };
                let wanted = format!("d{n}");
                assert!(index.take(&all, &wanted, ask, |_| true).is_some());
                assert!(index.take(&all, &wanted, ask, |_| true).is_none(), "it was taken");
            }
            assert!(asked.get() <= 2 * COUNT, "{} times", asked.get());
        }
    }

    #[test]
    fn what_is_open_on_something_else_by_now_is_not_taken() {
        let (all, index) = (RefCell::new(inherited(3).into_iter().map(Some).collect()), Index::default());
        let by_name = |one: &Inherited| one.known_as.clone();
        assert!(index.take(&all, &"d0".to_owned(), by_name, |_| true).is_some());
        assert!(index.take(&all, &"d1".to_owned(), |_| Some("d2".to_owned()), |_| true).is_none());
        assert!(index.take(&all, &"d1".to_owned(), by_name, |_| false).is_none());
        assert!(index.take(&all, &"d1".to_owned(), by_name, |_| true).is_some());
    }
}
