//! The frames of a plug: one client's datagram socket, or those of all clients of a hub.
//!
//! What a client sends waits in its socket, as many bytes as its own send buffer holds, and then
//! the client itself waits: nothing is lost before the switch reads it. What the switch sends waits
//! in ours, and where a client does not read, its frames are dropped: the switch never waits for
//! it.
//!
//! What is longer than the plug takes becomes a frame without bytes, which the switch counts as
//! malformed, as it does what is too short.
//!
//! The clients of a hub hear everything: what the switch sends, and what one of them sends to
//! whomever. To the switch they are one endpoint.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datapath::frame::{Frame, Pool};
use datapath::offload::OffloadSupport;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::{BURST_BYTES, Features, Port, PortError, Refused};

/// Clients of one hub at most: each costs a system call whenever the plug is read.
pub const MAX_CLIENTS: usize = 32;
/// Bytes of two VLAN tags, which a frame may have beyond its maximum length.
const TAGS: usize = 8;

/// What is counted of a plug, whichever clients it has had.
#[derive(Debug, Default)]
pub struct Counts {
    missed: AtomicU64,
}

impl Counts {
    /// Frames that one client of a hub has missed, because it did not read, and others or the
    /// switch have had.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }
}

/// The clients of a plug as a port. Which they are does not change: for another client there is
/// another port.
#[derive(Debug)]
pub struct VdePort {
    clients: Vec<OwnedFd>,
    /// Readable when one of several clients is.
    any: Option<OwnedFd>,
    /// Whose turn it is to be read.
    next: usize,
    max_frame: usize,
    counts: Arc<Counts>,
}

impl VdePort {
    /// A port for the sockets of at least one client, which do not block.
    ///
    /// # Errors
    /// The process has no descriptor left.
    ///
    /// # Panics
    /// There is no client.
    pub fn new(clients: Vec<OwnedFd>, max_frame: usize, counts: Arc<Counts>) -> io::Result<VdePort> {
        assert!(!clients.is_empty(), "a port has a client");
        let mut any = None;
        if clients.len() > 1 {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for client in &clients {
                epoll::add(&epoll, client, EventData::new_u64(0), EventFlags::IN)?;
            }
            any = Some(epoll);
        }
        Ok(VdePort { clients, any, next: 0, max_frame, counts })
    }

    /// Reads a frame of a client; `None` where none waits, or the pool has no buffer.
    fn read(&self, client: usize, pool: &mut Pool) -> Option<Frame> {
        let room = self.max_frame + TAGS;
        let frame = pool.alloc(room)?;
        let read =
            rustix::net::recv(&self.clients[client], pool.bytes_mut(&frame), RecvFlags::DONTWAIT | RecvFlags::TRUNC);
        match read {
            Ok((_, length)) => {
                pool.set_len(&frame, if length <= room { length } else { 0 });
                Some(pool.compact(frame))
            }
            // Whatever it is, the client's stream tells when it has left.
            Err(_) => {
                pool.free(frame);
                None
            }
        }
    }

    /// Reads from one client until nothing waits or enough was read. Returns frames and bytes.
    fn drain(&self, client: usize, pool: &mut Pool, burst: usize, out: &mut Vec<Frame>) -> (usize, usize) {
        let (mut read, mut bytes) = (0, 0);
        for _ in 0..burst {
            let Some(frame) = self.read(client, pool) else { break };
            for fellow in (0..self.clients.len()).filter(|&fellow| fellow != client) {
                if send(&self.clients[fellow], pool.bytes(&frame)).is_err() {
                    self.counts.missed.fetch_add(1, Ordering::Relaxed);
                }
            }
            bytes += pool.len(&frame);
            out.push(frame);
            read += 1;
            if bytes >= BURST_BYTES {
                break;
            }
        }
        (read, bytes)
    }
}

fn send(client: &OwnedFd, bytes: &[u8]) -> Result<(), Refused> {
    match rustix::net::send(client, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(_) => Ok(()),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => Err(Refused::Full),
        Err(Errno::MSGSIZE) => Err(Refused::Invalid),
        // It has closed its socket, or turned it elsewhere. Whether it left, its stream tells.
        Err(_) => Err(Refused::Down),
    }
}

impl Port for VdePort {
    fn features(&self) -> Features {
        Features { offload: OffloadSupport::NONE, can_pause: true, reports_drops: true, max_frame: self.max_frame }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.any.as_ref().unwrap_or(&self.clients[0]).as_fd())
    }

    fn rx(&mut self, pool: &mut Pool, burst: usize, out: &mut Vec<Frame>) -> Result<usize, PortError> {
        let (mut read, mut bytes) = (0, 0);
        for _ in 0..self.clients.len() {
            let (frames, length) = self.drain(self.next, pool, burst - read, out);
            (read, bytes) = (read + frames, bytes + length);
            if read == burst || bytes >= BURST_BYTES {
                // This one may have more, but the others come first.
                self.next = (self.next + 1) % self.clients.len();
                break;
            }
            self.next = (self.next + 1) % self.clients.len();
        }
        Ok(read)
    }

    fn write(&mut self, pool: &mut Pool, frame: &Frame) -> Result<(), Refused> {
        let bytes = pool.bytes(frame);
        let mut result = Err(Refused::Down);
        let mut missed = 0;
        for client in &self.clients {
            match send(client, bytes) {
                Ok(()) => result = Ok(()),
                Err(refused) => {
                    missed += 1;
                    if result.is_err() {
                        result = Err(refused);
                    }
                }
            }
        }
        // Where nobody took it, the switch counts it.
        if result.is_ok() {
            self.counts.missed.fetch_add(missed, Ordering::Relaxed);
        }
        result
    }

    fn drops_before_us(&mut self) -> Result<u64, PortError> {
        Ok(self.counts.missed())
    }
}
