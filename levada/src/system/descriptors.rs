//! Descriptors that pass from process to process: over Unix sockets with SCM_RIGHTS (unix(7)),
//! beside messages, or beside what a client of the control socket sends.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

/// Descriptors in one message at most; the kernel allows 253 (SCM_MAX_FD).
pub const MOST: usize = 64;

/// Sends `bytes` with up to [`MOST`] descriptors, which stay open here too.
///
/// # Errors
/// The other end is gone, or has no room.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other(format!("more than {MOST} descriptors in one message")));
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives one message into `bytes` and adds its descriptors to `into`. Says how many bytes came;
/// none is the end.
///
/// # Errors
/// Nothing came in the socket's time, or this process has no room for all descriptors.
pub fn receive(socket: impl AsFd, bytes: &mut [u8], into: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let (bytes, are_all) = receive_some(socket, bytes, into)?;
    // What is cut from such a message, the kernel has closed (unix(7)): with room for as many as
    // are sent, it was the limit of open files.
    if are_all { Ok(bytes) } else { Err(Errno::MFILE.into()) }
}

/// The same, with the descriptors for which there was room, and whether these are all.
fn receive_some(socket: impl AsFd, bytes: &mut [u8], into: &mut Vec<OwnedFd>) -> io::Result<(usize, bool)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            into.extend(descriptors);
        }
    }
    Ok((received.bytes, !received.flags.contains(ReturnFlags::CTRUNC)))
}

/// Descriptors that have come over a connection; of more than [`MOST`] the last are closed.
#[derive(Clone, Default)]
pub struct Came(Arc<Mutex<Vec<OwnedFd>>>);

impl Came {
    fn add(&self, new: Vec<OwnedFd>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MOST.saturating_sub(all.len());
        all.extend(new.into_iter().take(room));
    }

    /// Takes them.
    #[must_use]
    pub fn take(&self) -> Vec<OwnedFd> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A connection over which descriptors pass beside the bytes.
pub struct Stream {
    stream: UnixStream,
    came: Came,
    /// Those that go with the next byte that is sent.
    goes: Vec<OwnedFd>,
}

impl Stream {
    /// A connection that takes note of what comes in `came`, and sends `goes`, [`MOST`] at most,
    /// with its first byte.
    #[must_use]
    pub fn new(stream: UnixStream, came: Came, goes: Vec<OwnedFd>) -> Stream {
        Stream { stream, came, goes }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            ready!(this.stream.poll_read_ready(cx))?;
            let mut new = Vec::new();
            let into = buf.initialize_unfilled();
            match this.stream.try_io(Interest::READABLE, || receive_some(&this.stream, into, &mut new)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                // Who asks counts them.
                Ok((bytes, _)) => {
                    buf.advance(bytes);
                    this.came.add(new);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.goes.is_empty() || bytes.is_empty() {
            return Pin::new(&mut this.stream).poll_write(cx, bytes);
        }
        loop {
            ready!(this.stream.poll_write_ready(cx))?;
            let goes: Vec<_> = this.goes.iter().map(AsFd::as_fd).collect();
            match this.stream.try_io(Interest::WRITABLE, || send(&this.stream, &bytes[..1], &goes)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(()) => {
                    this.goes.clear();
                    return Poll::Ready(Ok(1));
                }
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
