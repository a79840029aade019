//! The control socket's door: who may come in by it.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The socket, and the group that may look.
#[derive(Debug)]
pub struct Door {
    /// Where it will be when it is in its place.
    socket: PathBuf,
    group: Mutex<Option<u32>>,
}

impl Door {
    /// Listens at `path`, which will be moved to `socket`. `group` may look at everything; without
    /// one, only the daemon's own user can connect. The directory is left to who has it until
    /// [`Door::announce`].
    ///
    /// # Errors
    /// The path is too long, the directory cannot be written, or the group is not to be had.
    pub fn open(path: &Path, socket: PathBuf, group: Option<u32>) -> io::Result<(Door, UnixListener)> {
        let listener = UnixListener::bind(path)?;
        permit(path, group, SOCKET)?;
        listener.set_nonblocking(true)?;
        Ok((Door { socket, group: Mutex::new(group) }, listener))
    }

    /// Lets the group into the directory, which is this process's from now on.
    ///
    /// # Errors
    /// It is not this process's.
    pub fn announce(&self) -> io::Result<()> {
        permit(directory(&self.socket), self.group(), DIRECTORY)
    }

    /// The group that may look.
    #[must_use]
    pub fn group(&self) -> Option<u32> {
        *self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets another group look, or none. Who is connected stays.
    ///
    /// # Errors
    /// The group is not to be had.
    pub fn admit(&self, group: Option<u32>) -> io::Result<()> {
        let mut now = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        permit(&self.socket, group, SOCKET)?;
        permit(directory(&self.socket), group, DIRECTORY)?;
        *now = group;
        Ok(())
    }
}

/// A socket's modes without a group, and with one.
const SOCKET: (u32, u32) = (0o600, 0o660);
/// The same of its directory.
const DIRECTORY: (u32, u32) = (0o700, 0o710);

fn directory(socket: &Path) -> &Path {
    socket.parent().unwrap_or(socket)
}

/// Gives `path` to `group`, or to nobody's, with the mode that belongs to that. At no time does it
/// belong to a group with more than that group's rights.
fn permit(path: &Path, group: Option<u32>, (alone, shared): (u32, u32)) -> io::Result<()> {
    let mode = |mode| std::fs::set_permissions(path, Permissions::from_mode(mode));
    let wanted = group.unwrap_or_else(|| rustix::process::getegid().as_raw());
    let now = std::fs::metadata(path)?;
    let is_so = now.gid() == wanted && now.mode() & 0o777 == if group.is_some() { shared } else { alone };
    if is_so {
        return Ok(());
    }
    mode(alone)?;
    if now.gid() != wanted {
        chown(path, None, Some(wanted))?;
    }
    if group.is_some() {
        mode(shared)?;
    }
    Ok(())
}
