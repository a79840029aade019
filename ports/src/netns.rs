//! Network namespaces by name or path, and running something inside one.
//!
//! A named namespace is a file under `/run/netns` on which the namespace is mounted, as iproute2
//! makes them (ip-netns(8)). Work inside a namespace is done on a thread of its own, which enters
//! it with setns(2) and then ends: the caller's namespace never changes. Who has much to do in many
//! namespaces does it [`roaming`]: one thread that goes from one to the next, because on a busy
//! machine each new thread may wait tens of milliseconds for a processor.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::hash::{Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use rustix::fs::FlockOperation;
use rustix::ioctl::{Opcode, opcode};
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use crate::rtnl::Netlink;

/// Where named namespaces are mounted.
const DIRECTORY: &str = "/run/netns";
/// The calling thread's own namespace.
const OWN: &str = "/proc/thread-self/ns/net";
/// Asks what kind a namespace is of (`linux/nsfs.h`).
const NS_GET_NSTYPE: Opcode = opcode::none(0xb7, 3);
/// The file system of namespaces (`linux/magic.h`).
const NSFS_MAGIC: u64 = 0x6e73_6673;
/// What is mounted where (proc_pid_mountinfo(5)).
const MOUNTS: &str = "/proc/self/mountinfo";

/// A network namespace that may or may not exist (yet, or any more).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Netns(PathBuf, NetnsFile);

/// What is known of a namespace besides its path. It does not make a [`Netns`] another: the path
/// does.
#[derive(Clone, Default, Debug)]
struct NetnsFile {
    /// It is open.
    file: Option<Arc<File>>,
    /// When the process that it is named by started: one that started later has only its number.
    started: Option<u64>,
}

impl PartialEq for NetnsFile {
    fn eq(&self, _: &NetnsFile) -> bool {
        true
    }
}

impl Eq for NetnsFile {}

impl Hash for NetnsFile {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// Which namespace it is: one that is made anew under the same name has another identity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Netns {
    /// The namespace `NAME` under `/run/netns`, or the one at an absolute path, such as
    /// `/proc/PID/ns/net`.
    #[must_use]
    pub fn new(name_or_path: &str) -> Netns {
        Netns(Path::new(DIRECTORY).join(name_or_path), NetnsFile::default())
    }

    /// The file that stands for the namespace.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// All named namespaces.
    ///
    /// # Errors
    /// `/run/netns` cannot be read. Where it does not exist there are none.
    pub fn named() -> io::Result<Vec<Netns>> {
        let entries = match fs::read_dir(DIRECTORY) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut all: Vec<Netns> =
            entries.map(|entry| entry.map(|entry| Netns::at(entry.path()))).collect::<io::Result<_>>()?;
        all.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(all)
    }

    /// All namespaces that anything in this mount namespace has a path to, named ones first:
    /// mounted ones, and those that processes are in, as `/proc/PID/ns/net`. One that nothing but
    /// an open descriptor keeps alive has no path and is not among them.
    ///
    /// # Errors
    /// `/proc` or `/run/netns` cannot be read.
    pub fn reachable() -> io::Result<Vec<Netns>> {
        let mut all = Netns::named()?;
        all.extend(mounted(&fs::read_to_string(MOUNTS)?).into_iter().map(Netns::at));
        let processes = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let processes = processes.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        all.extend(processes.map(|pid| Netns::at(Path::new("/proc").join(pid).join("ns/net"))));
        // Each once. What cannot be looked at has ended, or is another user's.
        let mut seen = HashSet::new();
        all.retain(|netns| netns.identity().is_ok_and(|identity| seen.insert(identity)));
        Ok(all)
    }

    /// Runs `work` in the namespace, on a thread of its own, and waits for it. A panic in it goes
    /// on in the caller.
    ///
    /// # Errors
    /// The namespace does not exist, or may not be entered, or there is no thread to be had.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let file = self.open()?;
        run_in(file.as_fd(), work)
    }

    /// Which namespace is there now.
    ///
    /// # Errors
    /// There is none.
    pub fn identity(&self) -> io::Result<Identity> {
        Identity::of(&self.open()?)
    }

    /// The same, kept open: it is there for as long as this value is, also where the right to look
    /// at the process that it is named by is given up meanwhile. What is meant by the path later
    /// may be another namespace.
    ///
    /// # Errors
    /// It does not exist, or may not be looked at.
    pub fn held(self) -> io::Result<Netns> {
        let file = self.open()?;
        Ok(Netns(self.0, NetnsFile { file: Some(Arc::new(file)), ..self.1 }))
    }

    /// The namespace that another process calls `path`, and of which it has sent a descriptor. It
    /// is held, as by [`Netns::held`].
    ///
    /// # Errors
    /// The descriptor is of something else.
    pub fn passed(path: &str, descriptor: OwnedFd) -> io::Result<Netns> {
        // On another file system the request might mean something else.
        let is_namespace = rustix::fs::fstatfs(&descriptor)?.f_type as u64 == NSFS_MAGIC;
        // SAFETY: NS_GET_NSTYPE takes no argument and touches none of our memory.
        let kind = || unsafe { libc::ioctl(descriptor.as_raw_fd(), libc::Ioctl::from(NS_GET_NSTYPE)) };
        if !is_namespace || kind() != libc::CLONE_NEWNET {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no network namespace"));
        }
        Ok(Netns::of(path, descriptor.into()))
    }

    /// The same by its path, not held. Where that is named by a process, it stands for this one,
    /// and not for a later one with the same number.
    #[must_use]
    pub fn released(&self) -> Netns {
        let started = self.1.started.or_else(|| self.started());
        Netns(self.0.clone(), NetnsFile { file: None, started })
    }

    /// When the process that it is named by started, in ticks of the kernel's clock (`starttime`
    /// of proc_pid_stat(5)); `None` where it is named otherwise, or there is no such process.
    #[must_use]
    pub fn started(&self) -> Option<u64> {
        let process = self.0.strip_prefix("/proc").ok()?.iter().next()?;
        let stat = fs::read_to_string(Path::new("/proc").join(process).join("stat")).ok()?;
        // The name in parentheses may have spaces and parentheses itself.
        stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
    }

    /// The same, of the process that started then.
    #[must_use]
    pub fn of_process(mut self, started: u64) -> Netns {
        self.1.started = Some(started);
        self
    }

    /// Whether the path stands for another namespace than this, or for none. One that cannot be
    /// looked at, for want of a right, a descriptor or memory, is taken for what it was.
    #[must_use]
    pub fn is_another(&self, than: Identity) -> bool {
        match self.identity() {
            Ok(identity) => identity != than,
            // ESRCH: a process that it is named by ends at this moment.
            Err(error) => {
                matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
                    || error.raw_os_error() == Some(libc::ESRCH)
            }
        }
    }

    /// Whether it is named by a process that is in it, with which it may end.
    #[must_use]
    pub fn is_of_process(&self) -> bool {
        self.0.starts_with("/proc")
    }

    /// The name below `/run/netns`; `None` where it has only a path.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.0.strip_prefix(DIRECTORY).ok()?.to_str()
    }

    pub(crate) fn open(&self) -> io::Result<File> {
        if let Some(held) = &self.1.file {
            return held.try_clone();
        }
        let file = File::open(&self.0)?;
        // Looked at afterwards: no other process has its number while it is there.
        if self.1.started.is_some_and(|started| self.started() != Some(started)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(file)
    }

    fn at(path: PathBuf) -> Netns {
        Netns(path, NetnsFile::default())
    }

    /// Makes a new named namespace, with its loopback interface up.
    ///
    /// # Errors
    /// It exists already, or the process may not: it takes root, or a user and mount namespace of
    /// its own.
    pub fn create(name: &str) -> io::Result<Netns> {
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no name of a namespace")));
        }
        share_directory()?;
        let netns = Netns::new(name);
        File::create_new(&netns.0)?;
        let made = apart(|| mount_new_at(&netns.0)).and_then(|made| made);
        if made.is_err() {
            let _ = fs::remove_file(&netns.0);
        }
        made.map(|()| netns)
    }

    /// A new namespace that has no name: it is there while a descriptor of it is open. Nothing in
    /// it is up, it has no IPv6, and it forwards nothing. `called` is what messages call it.
    ///
    /// # Errors
    /// The process may not: it takes root, or a user namespace of its own.
    pub(crate) fn nameless(called: &str) -> io::Result<Netns> {
        let made = apart(|| {
            unshare()?;
            // A kernel without IPv6 has no such file.
            let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
            fs::write("/proc/sys/net/ipv4/ip_forward", "0")?;
            File::open(OWN)
        });
        Ok(Netns::of(called, made??))
    }

    /// That of the calling thread, held.
    pub(crate) fn own() -> io::Result<Netns> {
        Ok(Netns::of(OWN, File::open(OWN)?))
    }

    /// The namespace that a descriptor is open on, with what messages call it.
    pub(crate) fn of(called: &str, file: File) -> Netns {
        Netns(Path::new(called).to_owned(), NetnsFile { file: Some(Arc::new(file)), started: None })
    }

    /// Takes the name away. The namespace itself goes when nothing in it is left running or open.
    ///
    /// # Errors
    /// There is none of this name, or the process may not.
    pub fn delete(&self) -> io::Result<()> {
        match rustix::mount::unmount(&self.0, UnmountFlags::DETACH) {
            // EINVAL: a file on which nothing is mounted, left by a crash.
            Ok(()) | Err(rustix::io::Errno::INVAL) => fs::remove_file(&self.0),
            Err(error) => Err(error.into()),
        }
    }
}

impl fmt::Display for Netns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.0.strip_prefix(DIRECTORY).ok();
        write!(f, "{}", named.unwrap_or(&self.0).display())
    }
}

impl Identity {
    /// Of a namespace that cannot be told from others: the kernel gives none this number.
    pub(crate) const UNKNOWN: Identity = Identity { device: 0, inode: 0 };

    /// The identity of the calling thread's namespace.
    ///
    /// # Errors
    /// `/proc` is not there.
    pub fn own() -> io::Result<Identity> {
        Identity::of(&File::open(OWN)?)
    }

    pub(crate) fn of(file: &File) -> io::Result<Identity> {
        let status = file.metadata()?;
        Ok(Identity { device: status.dev(), inode: status.ino() })
    }

    /// A number that no other namespace has while this one is there: the kernel gives them 32 bits
    /// (`ns_common::inum`).
    #[must_use]
    pub fn number(self) -> u32 {
        self.inode as u32
    }

    /// Whether it says which namespace it is.
    #[must_use]
    pub fn is_known(self) -> bool {
        self != Identity::UNKNOWN
    }
}

/// As [`Netns::run`], in the namespace that `netns` is open on.
pub(crate) fn run_in<T: Send>(netns: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    if let Some(home) = HOME.take() {
        let away = Away(Some(home));
        enter(netns)?;
        let done = work();
        drop(away);
        return Ok(done);
    }
    apart(|| {
        enter(netns)?;
        Ok(work())
    })?
}

/// Runs `work` on a thread of its own, which then ends, and waits for it. A panic in it goes on in
/// the caller.
///
/// # Errors
/// There is no thread to be had, as where the process has as many as it may have: `work` was not
/// begun.
fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| Ok(join(thread::Builder::new().spawn_scoped(scope, work)?)))
}

/// What helps where something failed for want of a thread or a descriptor, as a visit that did not
/// fail by the namespace.
#[must_use]
pub fn cure_of_want(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EAGAIN => Some("let the daemon have more threads (ulimit -u, TasksMax=)"),
        libc::EMFILE | libc::ENFILE => Some("raise the limit of open files (LimitNOFILE=, fs.file-max)"),
        _ => None,
    }
}

fn enter(netns: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))?)
}

thread_local! {
    /// On a roaming thread that is at home: its own namespace.
    static HOME: RefCell<Option<File>> = const { RefCell::new(None) };
}

/// A visit of a roaming thread to another namespace; dropping it goes home. A visit within it has a
/// thread of its own again.
struct Away(Option<File>);

impl Drop for Away {
    fn drop(&mut self) {
        if let Some(home) = self.0.take() {
            // Going on in another's namespace would do there what is meant for ours.
            enter(home.as_fd()).expect("the way back to the own network namespace is open");
            HOME.set(Some(home));
        }
    }
}

/// Runs `work` on one thread which enters the namespaces that it needs itself, and waits for it. A
/// panic in it goes on in the caller. Where there is no thread to be had, the caller does the work,
/// and its visits, which would have threads of their own, fail one by one.
pub fn roaming<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let mut work = Some(work);
    let mut begin = || work.take().expect("it is begun once")();
    let roam = || {
        // Without a way home it does not roam.
        HOME.set(File::open(OWN).ok());
        begin()
    };
    apart(roam).unwrap_or_else(|_| begin())
}

/// Where network namespaces are mounted, by the lines of [`MOUNTS`]: the fourth word is
/// `net:[NUMBER]`, the fifth the place.
fn mounted(table: &str) -> Vec<PathBuf> {
    let place = |line: &str| {
        let mut words = line.split(' ').skip(3);
        words.next().filter(|root| root.starts_with("net:["))?;
        Some(PathBuf::from(unescape(words.next()?)))
    };
    table.lines().filter_map(place).collect()
}

/// The kernel writes space, tab, newline and backslash in a path as three octal digits behind a
/// backslash.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escape, character)| text.replace(escape, character))
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Makes the directory, and makes it a shared mount, so that a name taken away here is taken away
/// in every mount namespace: the same as iproute2 does, under the same lock.
fn share_directory() -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(DIRECTORY)?;
    let directory = File::open(DIRECTORY)?;
    rustix::fs::flock(&directory, FlockOperation::LockExclusive)?;
    let share = || rustix::mount::mount_change(DIRECTORY, MountPropagationFlags::SHARED | MountPropagationFlags::REC);
    match share() {
        // EINVAL: it is no mount point yet.
        Err(rustix::io::Errno::INVAL) => {
            rustix::mount::mount_bind_recursive(DIRECTORY, DIRECTORY)?;
            Ok(share()?)
        }
        result => Ok(result?),
    }
}

/// On a thread that ends afterwards: enters a new namespace and mounts it on the file at `path`.
/// Puts the calling thread, which must do nothing else, into a new namespace.
fn unshare() -> io::Result<()> {
    // SAFETY: unsharing is unsound where it takes away what other threads believe they share, such
    // as descriptors; a network namespace belongs to the calling thread alone.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?)
}

fn mount_new_at(path: &Path) -> io::Result<()> {
    unshare()?;
    rustix::mount::mount_bind(OWN, path)?;
    let up = Netlink::open().and_then(|mut netlink| netlink.set_up("lo"));
    if up.is_err() {
        let _ = rustix::mount::unmount(path, UnmountFlags::DETACH);
    }
    up
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::{self, Rule};

    #[test]
    fn mounts_of_network_namespaces_are_found_in_the_table() {
        let table = "24 1 0:22 / /proc rw,nosuid shared:5 - proc proc rw\n\
                     300 24 0:4 net:[4026532200] /run/netns/red rw shared:9 - nsfs nsfs rw\n\
                     301 24 0:4 mnt:[4026532201] /run/mnt rw - nsfs nsfs rw\n\
                     302 24 0:4 net:[4026532202] /srv/two\\040words rw - nsfs nsfs rw\n\n300 24";
        assert_eq!(mounted(table), [PathBuf::from("/run/netns/red"), PathBuf::from("/srv/two words")]);
    }

    #[test]
    fn the_own_namespace_is_reachable_once() {
        let own = Identity::own().unwrap();
        let all = Netns::reachable().unwrap();
        assert_eq!(all.iter().filter(|netns| netns.identity().is_ok_and(|it| it == own)).count(), 1);
    }

    #[test]
    fn only_descriptors_of_network_namespaces_are_taken() {
        let open = |path: &str| OwnedFd::from(File::open(path).unwrap());
        let passed = Netns::passed("/proc/1/ns/net", open(OWN)).unwrap();
        assert_eq!(passed.identity().unwrap(), Identity::own().unwrap(), "the descriptor counts, not the path");
        assert_eq!(passed, Netns::new("/proc/1/ns/net"));
        assert!(!passed.is_another(Identity::own().unwrap()));
        for other in ["/proc/self/ns/mnt", "/proc/self/ns", "/dev/null", "/proc/self/status"] {
            let refused = Netns::passed("/proc/1/ns/net", open(other)).unwrap_err();
            assert!(refused.to_string().contains("no network namespace"), "{other}: {refused}");
        }
        assert!(Netns::new("/proc/4194305/ns/net").is_another(Identity::own().unwrap()), "there is no such process");
        assert!(passed.is_of_process() && !Netns::new("red").is_of_process());
    }

    #[test]
    fn without_a_thread_to_be_had_a_visit_fails_and_what_roams_is_done_all_the_same() {
        // On a thread that may start none, which a filter of calls makes sure of.
        const DENIED: &[libc::c_long] = &[libc::SYS_clone, libc::SYS_clone3];
        let calls: Vec<Rule> = (0..460).filter(|call| !DENIED.contains(call)).map(Rule::Always).collect();
        let alone = thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            seccomp::restrict(&[calls.as_slice()]).unwrap();
            let own = Netns::own().unwrap();
            let here = thread::current().id();
            let visit = || own.run(|| ()).map_err(|error| error.kind());
            let roamed = roaming(|| (thread::current().id() == here, visit()));
            (visit(), roamed, Netns::nameless("test").is_err())
        });
        let refused = Err(io::ErrorKind::PermissionDenied);
        assert_eq!(alone.join().unwrap(), (refused, (true, refused), true));
    }

    #[test]
    fn what_this_process_has_too_little_of_is_not_said_to_be_a_fault_of_the_namespace() {
        let netns = Netns::new("red");
        for (errno, cure) in
            [(libc::EAGAIN, "TasksMax="), (libc::EMFILE, "LimitNOFILE="), (libc::ENOENT, "ip netns add")]
        {
            let error = || io::Error::from_raw_os_error(errno);
            let of_tap =
                crate::tap::OpenError::Namespace { device: "tap0".into(), netns: netns.clone(), error: error() };
            let place = crate::packet::InterfaceName { name: "up0".into(), netns: Some(netns.clone()) };
            let of_packet = crate::packet::OpenError::Namespace(place, error());
            for text in [of_tap.to_string(), of_packet.to_string()] {
                assert!(text.contains(cure), "{text}");
            }
        }
    }

    #[test]
    fn a_roaming_thread_comes_home() {
        let home = Identity::own().unwrap();
        let before = thread::current().id();
        let (first, back, nested) = roaming(|| {
            assert_ne!(thread::current().id(), before);
            // Our own namespace can be entered wherever the process has the right to; elsewhere
            // there is nothing to test.
            let own = Netns::new("/proc/self/ns/net");
            let here = thread::current().id();
            let first = own.run(|| thread::current().id() == here);
            let nested = own.run(|| own.run(|| thread::current().id() == here).unwrap());
            (first, Identity::own().unwrap(), nested)
        });
        assert_eq!(back, home);
        if let (Ok(first), Ok(nested)) = (first, nested) {
            assert!(first, "a visit needs no thread");
            assert!(!nested, "a visit within a visit has its own");
        }
        assert!(HOME.take().is_none(), "the caller does not roam");
    }
}
