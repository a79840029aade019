//! Sockets in files: one that is made here, and one that is connected to. Nothing waits.

use crate::rundir::Ledger;
use ports::vhost::{Closer, Foreign};
use rustix::fs::{AtFlags, Gid, Mode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Who may connect to a socket that is made here: its owner; with a group, that too.
const OWNER: u32 = 0o600;
const GROUP: u32 = 0o660;
/// Others may write, and may take away what is not theirs.
const WRITABLE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Directories that were made here, the outermost first. Dropping it takes away what is empty.
#[derive(Debug)]
struct Made(Vec<PathBuf>);

impl Drop for Made {
    fn drop(&mut self) {
        self.0.iter().rev().for_each(|directory| drop(fs::remove_dir(directory)));
    }
}

/// A socket that was made here. Dropping it takes it away, and directories made for it.
#[derive(Debug)]
pub struct Listening {
    path: PathBuf,
    /// What of the configuration asks for it, in errors.
    what: String,
    /// The file's device and number: another process may have put its own in its place.
    file: (u64, u64),
    /// With it, what those have sent is closed who wait to be let in.
    listener: Foreign<UnixListener>,
    made: Made,
}

impl Listening {
    /// Makes a socket at `path`, which `what` of the configuration asks for, in the place of one
    /// that a process has left that is gone; with `replaces`, also of one on which a process
    /// listens. What is made is written down in `ledger` before.
    ///
    /// # Errors
    /// Why not, and what helps.
    pub fn open(
        path: &str,
        what: &str,
        group: Option<&str>,
        replaces: bool,
        ledger: Option<&Ledger>,
    ) -> Result<Listening, String> {
        let failed = |step: &str, error: &dyn std::fmt::Display| format!("{what}: {step}: {error}");
        let place = Path::new(path);
        let made = Made(to_be_made(place, ledger));
        if let Some(ledger) = ledger {
            made.0.iter().for_each(|directory| ledger.add(directory, true));
            ledger.add(place, false);
        }
        if let Some(directory) = place.parent() {
            if !directory.is_dir() {
                DirBuilder::new()
                    .recursive(true)
                    .mode(0o755)
                    .create(directory)
                    .map_err(|error| failed("making its directory", &error))?;
            }
            let status = fs::metadata(directory).map_err(|error| failed("looking at its directory", &error))?;
            if status.mode() & (WRITABLE | STICKY) == WRITABLE {
                return Err(format!(
                    "{what}: anybody could put another socket there; choose a directory that only its owner may write (chmod o-w {})",
                    directory.display()
                ));
            }
        }
        if let Err(error) = remove_left(place, replaces) {
            return Err(failed("removing what was there", &error));
        }
        let listener = UnixListener::bind(place).map_err(|error| failed("making it", &error))?;
        let file = file(place).map_err(|error| failed("looking at it", &error))?;
        let (path, what) = (place.to_owned(), what.to_owned());
        let listening = Listening { path, what, file, listener: listener.into(), made };
        listening.listener.set_nonblocking(true).map_err(|error| failed("making it", &error))?;
        listening.give(group)?;
        Ok(listening)
    }

    /// Where it is, and the directories made for it, as a [`Ledger`] has them.
    pub fn places(&self) -> impl Iterator<Item = (&Path, bool)> {
        let made = self.made.0.iter().map(|directory| (directory.as_path(), true));
        made.chain([(self.path.as_path(), false)])
    }

    /// Has it closed by `closer`.
    #[must_use]
    pub fn left_to(mut self, closer: &Arc<dyn Closer>) -> Listening {
        self.listener.leave_to(closer);
        self
    }

    /// Gives it to a group, or to its owner alone.
    ///
    /// # Errors
    /// Why not, and what helps.
    pub fn give(&self, group: Option<&str>) -> Result<(), String> {
        let what = &self.what;
        let failed = |error: io::Error| format!("{what}: setting its permissions: {error}");
        let at = |mode: u32| {
            rustix::fs::chmodat(rustix::fs::CWD, &self.path, Mode::from_raw_mode(mode), AtFlags::empty())
                .map_err(|error| failed(error.into()))
        };
        let Some(name) = group else { return at(OWNER) };
        let number = ports::group::number(name).map_err(failed)?.ok_or_else(|| {
            format!("{what}: there is no group \"{name}\" on this host; make it (groupadd), or correct `group`")
        })?;
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(rustix::fs::CWD, &self.path, None, Some(Gid::from_raw(number)), flags)
            .map_err(|error| failed(error.into()))?;
        at(GROUP)
    }

    /// What becomes readable when somebody connects.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Whether who looks for it by its path finds it.
    pub fn is_there(&self) -> bool {
        file(&self.path).is_ok_and(|file| file == self.file)
    }

    /// Who has connected; `None` where nobody has.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn accept(&self) -> io::Result<Option<UnixStream>> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(true)?;
        Ok(Some(stream))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The directories of a path that are not there, or that were made for another socket and are
/// recorded as such; the outermost first.
fn to_be_made(place: &Path, ledger: Option<&Ledger>) -> Vec<PathBuf> {
    let known = ledger.map(Ledger::made).unwrap_or_default();
    let is_one = |directory: &&Path| known.contains(*directory) || fs::symlink_metadata(directory).is_err();
    let mut made: Vec<PathBuf> = place.ancestors().skip(1).take_while(is_one).map(Path::to_owned).collect();
    made.reverse();
    made
}

fn file(path: &Path) -> io::Result<(u64, u64)> {
    let status = fs::symlink_metadata(path)?;
    Ok((status.dev(), status.ino()))
}

/// Removes a socket on which nobody listens, or whoever does.
fn remove_left(path: &Path, any: bool) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(status) if !status.file_type().is_socket() => {
            return Err(io::Error::other("it is no socket; remove it, or choose another path"));
        }
        Ok(_) => {}
    }
    match connect(path.to_str().unwrap_or_default()) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Ok(_) if any => fs::remove_file(path),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::other("somebody listens there; stop that first, or choose another path")),
    }
}

/// Connects to a socket.
///
/// # Errors
/// As connect(2); it is never waited for.
pub fn connect(path: &str) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// The number of the process at the other end; zero where it is not known.
pub fn process(stream: &UnixStream) -> i32 {
    sockopt::socket_peercred(stream).map_or(0, |peer| peer.pid.as_raw_nonzero().get())
}

/// Who is at the other end.
pub fn who(stream: &UnixStream) -> String {
    match sockopt::socket_peercred(stream) {
        Ok(peer) => format!("process {} of user {}", peer.pid.as_raw_nonzero(), peer.uid.as_raw()),
        Err(_) => "a process that nothing is known of".to_owned(),
    }
}
