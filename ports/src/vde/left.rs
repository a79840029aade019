//! What a switch that was killed, and its clients, left in a VDE directory.
//!
//! Whoever may plug in may make names there: a hundred thousand of them, a file, a socket that
//! somebody listens on. So what is read at once is bounded, and nothing here waits for anybody.

use std::fs::{self, ReadDir};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::directory::{ASKING, CTL, OpenError, connect, datagram_socket};

/// Names read when a directory is opened, some 40 ms where all are sockets of the dead.
const NAMES_AT_OPENING: usize = 4096;
/// Names read of the others in each sweep: some 3 ms.
const NAMES_IN_SWEEP: usize = 256;

/// The names in a directory, read a part at a time.
#[derive(Debug)]
pub(super) struct Names(ReadDir);

impl Names {
    /// Removes dead sockets among the next few. True: there are no more.
    pub(super) fn sweep(&mut self) -> bool {
        let mut left = NAMES_IN_SWEEP;
        while left > 0 {
            // What cannot be read is as good as not there.
            let Some(Ok(entry)) = self.0.next() else { return true };
            if entry.file_type().is_ok_and(|kind| kind.is_socket()) && entry.file_name() != CTL {
                remove_dead(&entry.path());
            }
            left -= 1;
        }
        false
    }
}

/// Opens a directory and locks it for its switch.
pub(super) fn lock(path: &Path) -> Result<OwnedFd, OpenError> {
    let failed = |step, error: Errno| OpenError::Kernel(path.to_owned(), step, error.into());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed("opening it", error))?;
    match rustix::fs::flock(&handle, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(handle),
        Err(Errno::WOULDBLOCK) => Err(OpenError::InUse(path.to_owned(), "another levada")),
        Err(error) => Err(failed("locking it", error)),
    }
}

/// Removes what a switch that was killed, and its clients, left in `path`. True: there was one.
/// Where there are very many names, those that are still to be looked at come back; that something
/// is no socket is then noticed only of the first.
pub(super) fn clear(path: &Path) -> Result<(bool, Option<Names>), OpenError> {
    let failed = |error| OpenError::Kernel(path.to_owned(), "reading it", error);
    let mut names = Names(fs::read_dir(path).map_err(failed)?);
    let mut sockets = Vec::new();
    let mut unread = true;
    for _ in 0..NAMES_AT_OPENING {
        let Some(entry) = names.0.next() else {
            unread = false;
            break;
        };
        let entry = entry.map_err(failed)?;
        // What is gone by now is no obstacle.
        let Ok(kind) = entry.file_type() else { continue };
        if !kind.is_socket() {
            return Err(OpenError::Foreign(path.to_owned(), entry.file_name().into()));
        }
        sockets.push(entry.path());
    }
    let stale = is_left(path)?;
    let ctl = path.join(CTL);
    if stale {
        let _ = fs::remove_file(&ctl);
    }
    for socket in sockets.iter().filter(|socket| **socket != ctl) {
        remove_dead(socket);
    }
    Ok((stale, unread.then_some(names)))
}

/// Whether there is a control socket that nobody listens on.
fn is_left(path: &Path) -> Result<bool, OpenError> {
    let ctl = path.join(CTL);
    match fs::symlink_metadata(&ctl) {
        Err(_) => return Ok(false),
        Ok(status) if !status.file_type().is_socket() => {
            return Err(OpenError::Foreign(path.to_owned(), PathBuf::from(CTL)));
        }
        Ok(_) => {}
    }
    match listens(&ctl) {
        Ok(false) => Ok(true),
        Ok(true) => Err(OpenError::InUse(path.to_owned(), "another VDE switch")),
        Err(error) => Err(OpenError::Kernel(path.to_owned(), ASKING, error)),
    }
}

/// Removes what a switch that was killed left at `path`: its sockets, and the directory, at most
/// `most` names. `made`: the switch was about to make the directory, so that it is one's own
/// without a socket, too. False: nothing was left there, or another switch has it open now.
///
/// # Errors
/// [`OpenError`]: the directory is still there; where it holds what is not Levada's, without all
/// that is.
pub fn remove_left(path: &Path, made: bool, most: usize) -> Result<bool, OpenError> {
    let handle = match lock(path) {
        Ok(handle) => handle,
        Err(OpenError::Kernel(_, _, error)) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(OpenError::InUse(..)) => return Ok(false),
        Err(error) => return Err(error),
    };
    let stale = match is_left(path) {
        Ok(stale) => stale,
        Err(OpenError::InUse(..)) => return Ok(false),
        Err(error) => return Err(error),
    };
    if !stale && !made {
        return Ok(false);
    }
    let failed = |step, error| OpenError::Kernel(path.to_owned(), step, error);
    let mut stray = None;
    for entry in fs::read_dir(path).map_err(|error| failed("reading it", error))?.flatten().take(most) {
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_socket && entry.file_name() == CTL {
            // Last: it says whose this was while anything is left.
        } else if !is_socket || !remove_dead(&entry.path()) {
            stray = Some(PathBuf::from(entry.file_name()));
        }
    }
    if let Some(stray) = stray {
        return Err(OpenError::Strays(path.to_owned(), stray));
    }
    if stale {
        let _ = fs::remove_file(path.join(CTL));
    }
    let removed = fs::remove_dir(path).map_err(|error| failed("removing it", error));
    drop(handle);
    removed.map(|()| true)
}

/// Whether somebody listens on a stream socket.
///
/// # Errors
/// As connect(2), which does not wait.
pub fn listens(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        // EAGAIN: so many wait already.
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Removes a datagram socket that nobody has open any more. False: it is still there.
pub(super) fn remove_dead(path: &Path) -> bool {
    let dead = datagram_socket().and_then(|socket| connect(&socket, path));
    dead.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) && fs::remove_file(path).is_ok()
}
