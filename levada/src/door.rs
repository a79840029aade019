//! The control socket's door: who may come in by it.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
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
    /// one, only the daemon's own user can connect.
    ///
    /// # Errors
    /// The path is too long, the directory cannot be written, or the group is not to be had.
    pub fn open(path: &Path, socket: PathBuf, group: Option<u32>) -> io::Result<(Door, UnixListener)> {
        let listener = UnixListener::bind(path)?;
        permit(path, None, group)?;
        listener.set_nonblocking(true)?;
        Ok((Door { socket, group: Mutex::new(group) }, listener))
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
        permit(&self.socket, *now, group)?;
        *now = group;
        Ok(())
    }
}

/// Gives the socket and its directory to `group` instead of `before`. At no time do they belong to
/// a group with more than that group's rights.
fn permit(socket: &Path, before: Option<u32>, group: Option<u32>) -> io::Result<()> {
    let mode = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode));
    let directory = socket.parent().unwrap_or(socket);
    mode(socket, 0o600)?;
    if before.is_some() {
        mode(directory, 0o700)?;
    }
    let owner = rustix::process::getegid().as_raw();
    if before.is_some() || group.is_some() {
        for path in [socket, directory] {
            chown(path, None, Some(group.unwrap_or(owner)))?;
        }
    }
    if group.is_some() {
        mode(socket, 0o660)?;
        mode(directory, 0o710)?;
    }
    Ok(())
}
