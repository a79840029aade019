//! Who is at the other end of the socket, and what that gives the right to.

use crate::system::os;
use tokio::net::UnixStream;
use tokio::net::unix::UCred;

/// What a client may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    /// Everything: root and the daemon's own user.
    Change,
    /// Look: members of the configured group.
    Look,
    /// Nothing.
    None,
}

/// The user and the rights of the process that made the connection, as it was then.
pub fn rights(stream: &UnixStream, group: Option<u32>) -> (u32, Rights) {
    let Ok(peer) = stream.peer_cred() else { return (u32::MAX, Rights::None) };
    let rights = rights_of(&peer, stream, group);
    (peer.uid(), rights)
}

fn rights_of(peer: &UCred, stream: &UnixStream, group: Option<u32>) -> Rights {
    if peer.uid() == 0 || peer.uid() == rustix::process::geteuid().as_raw() {
        return Rights::Change;
    }
    match group {
        Some(group) if peer.gid() == group || os::peer_groups(stream).contains(&group) => Rights::Look,
        _ => Rights::None,
    }
}
