//! Messages out of a stream, with the descriptors that come beside them.
//!
//! Nothing is waited for: a message of which half has come stays until the rest does. All
//! descriptors that came are let go at the latest with the message, or with the stream
//! (CVE-2022-0669 was one that kept them). The kernel closes none of them by itself, which might
//! take it long: there is always room for as many as can come.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use super::foreign::{Closer, Foreign};
use super::message::{self, HEADER_BYTES, Header, MOST_REGIONS, Request};

/// Descriptors beside a message at most: one for each region.
const MOST_DESCRIPTORS: usize = MOST_REGIONS;
/// Descriptors that come at once at most: `SCM_MAX_FD` (unix(7)).
const MOST_AT_ONCE: usize = 253;

/// A message and its descriptors.
pub type Message = (Header, Request, Vec<Foreign>);

/// Why there are no more messages.
#[derive(Debug)]
pub enum End {
    /// The other side has closed.
    Closed,
    /// It sent what is no message.
    Fault(message::Fault),
    /// It sent more descriptors than any message has.
    Descriptors,
    /// Reading failed.
    Io(io::Error),
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Closed => write!(f, "it has closed its socket"),
            End::Fault(fault) => write!(f, "{fault}"),
            End::Descriptors => write!(f, "a message comes with more than {MOST_DESCRIPTORS} descriptors"),
            End::Io(error) => write!(f, "reading from it failed: {error}"),
        }
    }
}

/// What has come of a message.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
    descriptors: Vec<Foreign>,
    closer: Option<Arc<dyn Closer>>,
}

impl Incoming {
    /// Nothing yet; what comes, and is not wanted, is left to `closer`.
    #[must_use]
    pub fn new(closer: &Arc<dyn Closer>) -> Incoming {
        Incoming { closer: Some(Arc::clone(closer)), ..Incoming::default() }
    }

    /// Whether there is half a message.
    #[must_use]
    pub fn is_within(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// The next message; `None` where it has not come whole.
    ///
    /// # Errors
    /// [`End`]: the stream is to be closed.
    pub fn next(&mut self, stream: &UnixStream) -> Result<Option<Message>, End> {
        loop {
            let header = match self.bytes.first_chunk::<HEADER_BYTES>() {
                Some(header) => Some(Header::parse(header).map_err(End::Fault)?),
                None => None,
            };
            let wanted = HEADER_BYTES + header.map_or(0, |header| header.size);
            if let Some(header) = header.filter(|_| self.bytes.len() == wanted) {
                let request = Request::parse(header.request, &self.bytes[HEADER_BYTES..]);
                self.bytes.clear();
                let descriptors = std::mem::take(&mut self.descriptors);
                return Ok(Some((header, request.map_err(End::Fault)?, descriptors)));
            }
            if !self.read(stream, wanted)? {
                return Ok(None);
            }
        }
    }

    /// Reads up to `wanted` bytes of a message, and no further. False: nothing has come.
    fn read(&mut self, stream: &UnixStream, wanted: usize) -> Result<bool, End> {
        let had = self.bytes.len();
        self.bytes.resize(wanted, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_AT_ONCE))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [io::IoSliceMut::new(&mut self.bytes[had..])];
        let read = recvmsg(stream, &mut parts, &mut beside, RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC);
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(all) = message {
                self.descriptors.extend(all.map(|one| Foreign::from(one).left_to(self.closer.as_ref())));
            }
        }
        let came = match &read {
            Ok(message) => message.bytes,
            Err(_) => 0,
        };
        self.bytes.truncate(had + came);
        match read {
            Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => Err(End::Descriptors),
            Ok(_) if self.descriptors.len() > MOST_DESCRIPTORS => Err(End::Descriptors),
            Ok(_) if came == 0 => Err(End::Closed),
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(End::Io(error.into())),
        }
    }
}
