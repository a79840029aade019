//! What a front end has sent, on its way out.
//!
//! close(2) may take any time: of a socket that lingers, of a file of a file system that somebody
//! serves, of a machine's whole memory. So nothing that came from outside is closed by who stops
//! using it: it goes to whoever was named for that ([`Closer`]).

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::memory::Mapped;

/// What is left to be closed. Dropping it does that, however long it takes.
#[derive(Debug)]
pub enum Leaving {
    /// A descriptor.
    Descriptor(OwnedFd),
    /// A part of a machine's memory.
    Memory(Mapped),
}

/// Who closes.
pub trait Closer: fmt::Debug + Send + Sync {
    /// Takes what is to be closed, and returns at once.
    fn take(&self, leaving: Leaving);
}

/// Leaves something to whoever there is, else closes it.
pub(super) fn leave(closer: Option<&Arc<dyn Closer>>, leaving: Leaving) {
    match closer {
        Some(closer) => closer.take(leaving),
        None => drop(leaving),
    }
}

/// A descriptor of somebody else's. It is left to a [`Closer`] when it is dropped.
pub struct Foreign<T: Into<OwnedFd> = OwnedFd> {
    descriptor: ManuallyDrop<T>,
    closer: Option<Arc<dyn Closer>>,
}

impl<T: Into<OwnedFd>> Foreign<T> {
    /// One that `closer` closes.
    pub fn new(descriptor: T, closer: &Arc<dyn Closer>) -> Foreign<T> {
        Foreign { descriptor: ManuallyDrop::new(descriptor), closer: Some(Arc::clone(closer)) }
    }

    /// Has it closed by `closer`.
    pub fn leave_to(&mut self, closer: &Arc<dyn Closer>) {
        self.closer = Some(Arc::clone(closer));
    }

    /// Has it closed by `closer`, where nobody was named.
    #[must_use]
    pub fn left_to(mut self, closer: Option<&Arc<dyn Closer>>) -> Foreign<T> {
        self.closer = self.closer.take().or_else(|| closer.cloned());
        self
    }
}

/// Where nobody was named, it is closed at once.
impl<T: Into<OwnedFd>> From<T> for Foreign<T> {
    fn from(descriptor: T) -> Foreign<T> {
        Foreign { descriptor: ManuallyDrop::new(descriptor), closer: None }
    }
}

impl<T: Into<OwnedFd>> Drop for Foreign<T> {
    fn drop(&mut self) {
        // SAFETY: it is taken here alone, and not used afterwards.
        let descriptor = unsafe { ManuallyDrop::take(&mut self.descriptor) };
        leave(self.closer.as_ref(), Leaving::Descriptor(descriptor.into()));
    }
}

impl<T: Into<OwnedFd>> Deref for Foreign<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.descriptor
    }
}

impl<T: Into<OwnedFd> + AsFd> AsFd for Foreign<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl<T: Into<OwnedFd> + fmt::Debug> fmt::Debug for Foreign<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.descriptor.fmt(f)
    }
}
