//! A VDE control directory: making it, taking it over from a switch that was killed, plugging
//! clients in, and removing it.
//!
//! Who holds the lock on the directory (flock(2)) is its switch, and the kernel gives the lock back
//! at any death of the process. vde_switch takes no lock, so whether one runs is asked by
//! connecting to its socket.
//!
//! **A client says where its socket is, and may lie.** Frames must not go to somebody else's socket
//! because a client has named it (`/dev/log`, say), the less so as this may run as root. So a
//! client's socket lies directly in the directory, or in one of the three where libvdeplug puts it
//! otherwise; it is opened without following a link, and must be a socket that belongs to the user
//! at the other end of the stream (SO_PEERCRED, unix(7)); and what is connected to is what was
//! looked at (through `/proc/self/fd`), whatever the path means by then. Abstract addresses, which
//! the old transport of User-mode Linux has, have no owner to check and are refused.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, UCred, sockopt};

use super::left::{Names, clear, lock, remove_dead};
use super::request::{self, Request};
use crate::group;
use crate::survey::Survey;

/// The control socket, in the directory.
pub(super) const CTL: &str = "ctl";
/// Where libvdeplug binds a client's socket that it cannot bind in the directory
/// (`fallback_dirname`), and what `/var/run` is a link to.
const FALLBACKS: [&str; 4] = ["/var/run", "/run", "/var/tmp", "/tmp"];
/// The longest path of a Unix socket, in bytes (unix(7)).
const LONGEST_SOCKET: usize = 107;
/// The longest name of a client's socket in the directory, with its slash: seven digits of a
/// process id, five that count.
const LONGEST_CLIENT: usize = "/.4194304-00000".len();
/// Who may plug in where nothing is said: the owner, as with vde_switch.
const DEFAULT_MODE: u32 = 0o600;
/// Set on the directory whatever its mode: what is made in it gets its group, as with vde_switch;
/// and nobody deletes what is another's.
const DIRECTORY_BITS: u32 = 0o3000;
/// Names tried for a data socket, in order and then at random: who may plug in may have made any of
/// the first.
const NAMES_TRIED: usize = 16;
/// Sockets of clients that have left, kept to be looked at: the oldest give way.
const LEFTOVERS: usize = 256;
/// Looks at each of them: who has it open for so long lives.
const LOOKS: u32 = 60;
/// Steps that a name in the directory can make fail.
const LISTENING: &str = "listening on its socket `ctl`";
pub(super) const ASKING: &str = "connecting to its socket `ctl`";
/// How much may wait in the kernel for a client, in bytes of the kernel's memory for it: some 450
/// full frames, 5 ms at 1 Gbit/s. The kernel's default of 208 KiB is 92 frames (2304 bytes each),
/// which a client that waits 0.4 ms for a processor overflows at 2 Gbit/s.
const SEND_BYTES: usize = 1 << 20;

/// How a directory is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryOptions {
    /// Where: absolute.
    pub path: PathBuf,
    /// The permission bits of the control socket; the directory's follow from them. `None`: the
    /// owner only.
    pub mode: Option<u32>,
    /// Its group, by name or number; `None` leaves the process's.
    pub group: Option<String>,
}

/// Why a directory cannot be had.
#[derive(Debug)]
pub enum OpenError {
    /// Another switch listens there: who, where that is known.
    InUse(PathBuf, &'static str),
    /// It exists and holds something that is no socket.
    Foreign(PathBuf, PathBuf),
    /// What was left in it is removed, but for this, and so it is still there.
    Strays(PathBuf, PathBuf),
    /// There is no such group.
    Group(PathBuf, String),
    /// With links followed, its path is too long for the sockets in it.
    TooLong(PathBuf),
    /// The kernel refused.
    Kernel(PathBuf, &'static str, io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::InUse(path, who) => {
                write!(f, "vde {}: {who} has it open; stop that first, or choose another directory", path.display())
            }
            OpenError::Foreign(path, file) => write!(
                f,
                "vde {}: this is not the directory of a VDE switch: {} is not a socket; remove it, or choose an empty or a new directory",
                path.display(),
                file.display()
            ),
            OpenError::Strays(path, file) => write!(
                f,
                "vde {}: {} is not Levada's, and is not removed; remove it, then the directory",
                path.display(),
                file.display()
            ),
            OpenError::Group(path, group) => {
                write!(
                    f,
                    "vde {}: there is no group \"{group}\" on this host; make it (groupadd), or correct `group`",
                    path.display()
                )
            }
            OpenError::TooLong(path) => write!(
                f,
                "vde {}: its path has more than {} bytes: clients could not make their sockets in it; choose a shorter one",
                path.display(),
                LONGEST_SOCKET - LONGEST_CLIENT
            ),
            OpenError::Kernel(path, step, error) => {
                let remedy = match error.kind() {
                    io::ErrorKind::PermissionDenied => "; run as root, or as a user with write permission there",
                    _ => "",
                };
                write!(f, "vde {}: {step}: {error}{remedy}", path.display())
            }
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Kernel(_, _, error) => Some(error),
            _ => None,
        }
    }
}

impl OpenError {
    /// Whether somebody can have brought it about who may do no more than plug in: a name or a lock
    /// in the directory is enough.
    #[must_use]
    pub fn is_of_others(&self) -> bool {
        match self {
            OpenError::InUse(..) | OpenError::Foreign(..) | OpenError::Strays(..) => true,
            OpenError::Kernel(_, step, _) => [LISTENING, ASKING].contains(step),
            OpenError::Group(..) | OpenError::TooLong(_) => false,
        }
    }
}

/// Why a client was not plugged in.
#[derive(Debug)]
pub enum Refusal {
    /// Its socket lies where no client's does.
    Place(PathBuf),
    /// There is no socket, or it cannot be opened.
    NotThere(PathBuf, io::Error),
    /// It is somebody else's.
    NotTheirs(PathBuf),
    /// The kernel refused.
    Kernel(&'static str, io::Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Place(path) => {
                write!(f, "its socket {path:?} is neither in the directory nor in /run, /var/tmp or /tmp")
            }
            Refusal::NotThere(path, error) => write!(f, "its socket {path:?}: {error}"),
            Refusal::NotTheirs(path) => write!(f, "{path:?} is no socket of its user"),
            Refusal::Kernel(step, error) => write!(f, "{step}: {error}"),
        }
    }
}

/// An open directory. Dropping it removes the sockets that it made, and the directory where it made
/// that too.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Open on it, and locked.
    handle: OwnedFd,
    listener: UnixListener,
    /// The control socket's device and number: it may be removed, or another's by now.
    ctl: Option<(u64, u64)>,
    mode: u32,
    group: Option<Gid>,
    /// Whether it was made, or was left by a switch that was killed.
    ours: bool,
    /// Counts the data sockets, for their names.
    next: u32,
    /// Sockets of clients that have left, and how many sweeps have found them open: where these
    /// died they are still there. At most [`LEFTOVERS`].
    leftovers: Vec<(PathBuf, u32)>,
    /// Names that were there before, and that nobody has looked at yet.
    unread: Option<Names>,
    /// It is another process's: nothing of it is removed.
    is_theirs: bool,
}

/// A client that is plugged in.
#[derive(Debug)]
pub struct Plugged {
    /// The datagram socket, connected to the client's; does not block.
    pub data: OwnedFd,
    /// Where it is bound.
    path: PathBuf,
    /// The client's own.
    client: PathBuf,
}

impl Plugged {
    /// A client that an earlier process plugged in: its data socket, and where that and the
    /// client's own are bound.
    #[must_use]
    pub fn inherit(data: OwnedFd, path: PathBuf, client: PathBuf) -> Plugged {
        Plugged { data, path, client }
    }

    /// Where the data socket and the client's own are bound.
    #[must_use]
    pub fn paths(&self) -> (&Path, &Path) {
        (&self.path, &self.client)
    }
}

impl Directory {
    /// Makes the directory, or takes it over where no switch has it open, and listens in it.
    ///
    /// # Errors
    /// See [`OpenError`]. A directory that was made is gone again.
    pub fn open(options: &DirectoryOptions) -> Result<Directory, OpenError> {
        let failed = |step| move |error: io::Error| OpenError::Kernel(options.path.clone(), step, error);
        let made = make(&options.path).map_err(failed("making it"))?;
        let opened = Directory::occupy(options, made);
        if opened.is_err() && made {
            let _ = fs::remove_dir(&options.path);
        }
        opened
    }

    fn occupy(options: &DirectoryOptions, made: bool) -> Result<Directory, OpenError> {
        let failed = |step| move |error: io::Error| OpenError::Kernel(options.path.clone(), step, error);
        // Clients follow links before they say where their socket is.
        let path = fs::canonicalize(&options.path).map_err(failed("opening it"))?;
        if path.as_os_str().len() > LONGEST_SOCKET - LONGEST_CLIENT {
            return Err(OpenError::TooLong(path));
        }
        let handle = lock(&path)?;
        let (stale, unread) = clear(&path)?;
        let ctl = path.join(CTL);
        let listener = UnixListener::bind(&ctl).map_err(failed(LISTENING))?;
        let ours = made || stale;
        let mut directory = Directory::new(path, handle, listener, ours);
        directory.unread = unread;
        directory.change(options)?;
        directory.listener.set_nonblocking(true).map_err(failed("listening"))?;
        Ok(directory)
    }

    fn new(path: PathBuf, handle: OwnedFd, listener: UnixListener, ours: bool) -> Directory {
        let (mode, group, leftovers, ctl) = (DEFAULT_MODE, None, Vec::new(), identity(&path.join(CTL)));
        Directory { path, handle, listener, ctl, mode, group, ours, next: 0, leftovers, unread: None, is_theirs: false }
    }

    /// The directory that an earlier process opened, where the `survey` has it: as it is, and that
    /// process's until [`Directory::take`].
    #[must_use]
    pub fn inherit(path: &Path, survey: &Survey) -> Option<Directory> {
        let path = fs::canonicalize(path).ok()?;
        let (handle, listener) = survey.directory(&path, CTL)?;
        let mut directory = Directory::new(path, handle, listener.into(), false);
        directory.is_theirs = true;
        Some(directory)
    }

    /// From now on it is this process's. `made`: it is to be removed in the end
    /// ([`Directory::is_made`] of the earlier one).
    ///
    /// # Errors
    /// As [`Directory::change`]; it is taken all the same.
    pub fn take(&mut self, made: bool, options: &DirectoryOptions) -> Result<(), OpenError> {
        (self.is_theirs, self.ours) = (false, made);
        self.change(options)
    }

    /// From now on it is another process's, which has inherited it.
    pub fn leave(&mut self) {
        self.is_theirs = true;
    }

    /// Whether it was made, or was left by a switch that was killed: then it is removed in the end.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.ours
    }

    /// What a process that goes on after this one needs of it.
    #[must_use]
    pub fn lent(&self) -> [BorrowedFd<'_>; 2] {
        [self.handle.as_fd(), self.listener.as_fd()]
    }

    /// Whether who looks for its control socket finds it.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.is_theirs || self.ctl.is_some() && identity(&self.path.join(CTL)) == self.ctl
    }

    /// Makes it anew where it was removed, or its control socket; clients that are plugged in stay.
    /// The socket that nobody finds any more comes back.
    ///
    /// # Errors
    /// See [`OpenError`]; it is as it was.
    pub fn mend(&mut self, options: &DirectoryOptions) -> Result<UnixListener, OpenError> {
        let made = make(&self.path).map_err(|error| OpenError::Kernel(self.path.clone(), "making it", error))?;
        let mended = self.listen_anew(options);
        match &mended {
            Ok(_) => self.ours |= made,
            Err(_) if made => drop(fs::remove_dir(&self.path)),
            Err(_) => {}
        }
        mended
    }

    fn listen_anew(&mut self, options: &DirectoryOptions) -> Result<UnixListener, OpenError> {
        let own = self.path.clone();
        let path = own.as_path();
        let failed = |step| move |error: io::Error| OpenError::Kernel(path.to_owned(), step, error);
        let status = rustix::fs::fstat(&self.handle).map_err(|errno| failed("looking at it")(errno.into()))?;
        // Who still has its lock cannot have it once more.
        let is_same = identity(path) == Some((status.st_dev, status.st_ino));
        let handle = if is_same { None } else { Some(lock(path)?) };
        let (_, unread) = clear(path)?;
        let ctl = path.join(CTL);
        let listener = UnixListener::bind(&ctl).map_err(failed(LISTENING))?;
        let ready = self.change(options).and_then(|()| listener.set_nonblocking(true).map_err(failed("listening")));
        if let Err(error) = ready {
            let _ = fs::remove_file(&ctl);
            return Err(error);
        }
        (self.ctl, self.unread) = (identity(&ctl), unread);
        if let Some(handle) = handle {
            self.handle = handle;
        }
        Ok(std::mem::replace(&mut self.listener, listener))
    }

    /// Changes who may plug in; clients that have stay.
    ///
    /// # Errors
    /// There is no such group, or the process may not.
    pub fn change(&mut self, options: &DirectoryOptions) -> Result<(), OpenError> {
        self.group = match &options.group {
            Some(name) => {
                let number = group::number(name)
                    .map_err(|error| OpenError::Kernel(self.path.clone(), "reading the system's groups", error))?;
                let number = number.ok_or_else(|| OpenError::Group(self.path.clone(), name.clone()))?;
                Some(Gid::from_raw(number))
            }
            // The process's again, where it was another.
            None => self.group.map(|_| rustix::process::getegid()),
        };
        self.mode = options.mode.unwrap_or(DEFAULT_MODE);
        let permitted = self
            .permit(&self.path.join(CTL), self.mode)
            .and_then(|()| self.permit(&self.path, DIRECTORY_BITS | searchable(self.mode)));
        permitted.map_err(|error| OpenError::Kernel(self.path.clone(), "setting its permissions", error))
    }

    fn permit(&self, path: &Path, mode: u32) -> io::Result<()> {
        let give = |group| rustix::fs::chownat(rustix::fs::CWD, path, None, Some(group), AtFlags::SYMLINK_NOFOLLOW);
        let Some(group) = self.group else { return fs::set_permissions(path, Permissions::from_mode(mode)) };
        // Who is not in the group, and has not CAP_FSETID, would lose the setgid bit without a word
        // (chmod(2)): so the group comes last.
        give(rustix::process::getegid())?;
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        Ok(give(group)?)
    }

    /// Where it is, with links followed.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What becomes readable when a client connects.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// A client that has connected, and who it is; its stream does not block. `None` where none
    /// waits.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn accept(&self) -> io::Result<Option<(UnixStream, UCred)>> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(true)?;
        let peer = sockopt::socket_peercred(&stream)?;
        Ok(Some((stream, peer)))
    }

    /// Joins a client to plug number `plug`: connects to its socket and answers it.
    ///
    /// # Errors
    /// [`Refusal`]: it is not plugged in, and its stream should be closed.
    pub fn plug(
        &mut self,
        stream: &UnixStream,
        peer: &UCred,
        request: &Request,
        plug: u32,
    ) -> Result<Plugged, Refusal> {
        let theirs = self.look_at(&request.socket, peer.uid)?;
        let kernel = |step| move |error: io::Error| Refusal::Kernel(step, error);
        let data = datagram_socket().map_err(kernel("making a socket"))?;
        // Root may exceed the host's limit (net.core.wmem_max); others get what it allows.
        let _ = sockopt::set_socket_send_buffer_size_force(&data, SEND_BYTES / 2)
            .or_else(|_| sockopt::set_socket_send_buffer_size(&data, SEND_BYTES / 2));
        connect(&data, &through(&theirs)).map_err(|error| Refusal::NotThere(request.socket.clone(), error))?;
        let path = self.bind(&data, plug).map_err(kernel("binding a socket in the directory"))?;
        let plugged = Plugged { data, path, client: request.socket.clone() };
        let answered = self.admit(&plugged.path, peer).and_then(|()| {
            let answer = request::answer(&plugged.path).ok_or(io::ErrorKind::InvalidFilename)?;
            (&mut &*stream).write_all(&answer)
        });
        match answered {
            Ok(()) => Ok(plugged),
            Err(error) => {
                let _ = fs::remove_file(&plugged.path);
                Err(Refusal::Kernel("answering", error))
            }
        }
    }

    /// Opens the socket at `path` for nothing but being connected to, if it is one of a client that
    /// is `user`.
    fn look_at(&self, path: &Path, user: Uid) -> Result<OwnedFd, Refusal> {
        let there = |error: Errno| Refusal::NotThere(path.to_owned(), error.into());
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Refusal::Place(path.to_owned()));
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = if parent == self.path {
            rustix::fs::openat(&self.handle, name, flags, Mode::empty())
        } else if FALLBACKS.iter().any(|place| parent == Path::new(place)) {
            rustix::fs::open(path, flags, Mode::empty())
        } else {
            return Err(Refusal::Place(path.to_owned()));
        };
        let socket = socket.map_err(there)?;
        let status = rustix::fs::fstat(&socket).map_err(there)?;
        let is_socket = FileType::from_raw_mode(status.st_mode) == FileType::Socket;
        if is_socket && (status.st_uid == user.as_raw() || user.is_root()) {
            Ok(socket)
        } else {
            Err(Refusal::NotTheirs(path.to_owned()))
        }
    }

    /// Binds a data socket of plug number `plug` under a name that is free: `003.17`, as vde_switch
    /// calls them.
    fn bind(&mut self, data: &OwnedFd, plug: u32) -> io::Result<PathBuf> {
        /// Names are used again after so many; then they are still short.
        const NAMES: u32 = 100_000;
        for attempt in 0..2 * NAMES_TRIED {
            self.next = (self.next + 1) % NAMES;
            let name = match attempt < NAMES_TRIED {
                true => format!("{plug:03}.{}", self.next),
                false => format!("{plug:03}.{:08x}", random()),
            };
            let path = self.path.join(name);
            match rustix::net::bind(data, &SocketAddrUnix::new(&path)?) {
                Ok(()) => return Ok(path),
                Err(Errno::ADDRINUSE) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    /// Lets the client, and no other user, connect to its data socket. (Another could not either:
    /// the socket is connected to the client's.)
    fn admit(&self, path: &Path, peer: &UCred) -> io::Result<()> {
        if rustix::process::geteuid() == peer.uid {
            fs::set_permissions(path, Permissions::from_mode(0o600))
        } else if rustix::process::geteuid().is_root() {
            fs::set_permissions(path, Permissions::from_mode(0o600))?;
            let name = path.file_name().unwrap_or(OsStr::new(CTL));
            Ok(rustix::fs::chownat(&self.handle, name, Some(peer.uid), None, AtFlags::SYMLINK_NOFOLLOW)?)
        } else {
            self.permit(path, self.mode)
        }
    }

    /// Takes a client's sockets away. The data socket itself is closed by whoever has it.
    pub fn unplug(&mut self, plugged: Plugged) {
        let _ = fs::remove_file(&plugged.path);
        if plugged.client.parent() == Some(&self.path) {
            if self.leftovers.len() == LEFTOVERS {
                self.leftovers.remove(0);
            }
            self.leftovers.push((plugged.client, 0));
        }
    }

    /// Removes what clients that died have left in the directory. To be called some time after they
    /// left, when they have closed all they had. What is open still is looked at again: the kernel
    /// closes a dying process's sockets one by one, and may have to wait between.
    pub fn sweep(&mut self) {
        self.leftovers.retain_mut(|(path, looks)| {
            *looks += 1;
            !remove_dead(path) && path.exists() && *looks < LOOKS
        });
        if let Some(names) = &mut self.unread
            && names.sweep()
        {
            self.unread = None;
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.is_theirs {
            return;
        }
        self.sweep();
        if self.is_there() {
            let _ = fs::remove_file(self.path.join(CTL));
        }
        if self.ours {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// The device and number of what is at a path; no link is followed.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let status = fs::symlink_metadata(path).ok()?;
    Some((status.dev(), status.ino()))
}

/// Makes a directory and those above it. False: it was there.
fn make(path: &Path) -> io::Result<bool> {
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn datagram_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?)
}

pub(super) fn connect(socket: &OwnedFd, path: &Path) -> io::Result<()> {
    Ok(rustix::net::connect(socket, &SocketAddrUnix::new(path)?)?)
}

/// A number that nobody knows before: the standard library keys its hash tables with such.
fn random() -> u32 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish() as u32
}

/// A path to what a descriptor is open on.
fn through(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// The directory's permissions: who may use the socket may also look and write there.
fn searchable(mode: u32) -> u32 {
    let bits = [0o600, 0o060, 0o006].into_iter().filter(|bits| mode & bits != 0);
    bits.fold(0, |all, bits| all | (mode & bits) | (bits >> 1 & 0o111))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
