//! The socket on which a host listens. It is kept apart from who reads it, so that it can pass from
//! one process to the next while it stays bound: what arrives in between waits in it, and nobody is
//! told that there is no such port.
//!
//! What a descriptor is open on is asked of the kernel, as for devices (`ports::Survey`).

use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The socket, where there is one.
#[derive(Clone, Debug, Default)]
pub struct Socket(Arc<Mutex<Option<UdpSocket>>>);

impl Socket {
    /// The one that another process has left among `descriptors`, which is taken away from them.
    pub fn among<T: AsFd + Into<OwnedFd>>(descriptors: &mut Vec<T>) -> Socket {
        let is_it = |fd: &T| {
            let internet =
                socket_domain(fd).is_ok_and(|domain| matches!(domain, AddressFamily::INET | AddressFamily::INET6));
            internet && socket_type(fd).is_ok_and(|kind| kind == SocketType::DGRAM)
        };
        let found = descriptors.iter().position(is_it).map(|at| descriptors.swap_remove(at));
        Socket(Arc::new(Mutex::new(found.map(|fd| UdpSocket::from(fd.into())))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<UdpSocket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A second descriptor, for another process.
    pub fn lend(&self) -> Option<OwnedFd> {
        self.lock().as_ref()?.try_clone().ok().map(OwnedFd::from)
    }

    /// A descriptor of the socket at `at`: of the one that there is, if it is that; else it is
    /// made, and the other is closed.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn open(&self, at: SocketAddr) -> io::Result<UdpSocket> {
        let mut held = self.lock();
        if held.as_ref().is_none_or(|socket| !socket.local_addr().is_ok_and(|is| is == at)) {
            // First, since the two addresses may exclude each other.
            *held = None;
            *held = Some(UdpSocket::bind(at)?);
        }
        held.as_ref().map_or_else(|| Err(io::ErrorKind::NotFound.into()), UdpSocket::try_clone)
    }

    /// Nobody listens any more, when who reads it has ended, too.
    pub fn close(&self) {
        *self.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_socket_passes_on_with_what_waits_in_it() {
        let before = Socket::default();
        let at = before.open("127.0.0.1:0".parse().unwrap()).unwrap().local_addr().unwrap();
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"early", at).unwrap();
        let (unix, _other) = UnixDatagram::pair().unwrap();
        let null = File::open("/dev/null").unwrap();
        let mut descriptors = vec![unix.into(), before.lend().unwrap(), null.into()];
        let after = Socket::among(&mut descriptors);
        assert_eq!(descriptors.len(), 2);
        before.close();
        assert!(before.lend().is_none());
        let socket = after.open(at).unwrap();
        let mut buffer = [0; 16];
        let (length, _) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"early");
        // Another address is another socket, and the first is closed with its readers.
        after.open("127.0.0.1:0".parse().unwrap()).unwrap();
        drop(socket);
        assert!(UdpSocket::bind(at).is_ok());
        assert!(Socket::among(&mut descriptors).lend().is_none());
    }
}
