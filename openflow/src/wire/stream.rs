//! A stream of bytes, cut into messages.

use super::message::{HEADER, VERSION};
use std::fmt;

/// Bytes that wait for the rest of their message at most: the longest message there can be.
const MOST: usize = 65_535;
/// What is read at once at most, beside that.
const ROOM: usize = 64 << 10;

/// Why nothing of a stream can be read any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// A message says that it is shorter than its header.
    Length(u16),
    /// A message of a version that was not agreed on.
    Version(u8),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Length(length) => {
                write!(f, "a message says that it is {length} bytes long, which is less than its header")
            }
            Broken::Version(version) => {
                write!(f, "a message is of OpenFlow version 0x{version:02x}, and 1.3 (0x04) was agreed on")
            }
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Stream {
    bytes: Vec<u8>,
    /// What of them was taken.
    taken: usize,
}

impl Stream {
    /// Adds what was received: as much of it as there is room for. Take what there is and add the
    /// rest.
    pub fn add(&mut self, bytes: &[u8]) -> usize {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        let room = (MOST + ROOM).saturating_sub(self.bytes.len()).min(bytes.len());
        self.bytes.extend_from_slice(&bytes[..room]);
        room
    }

    /// The next whole message; `None` where more must be received first. Before the versions are
    /// agreed on, `any_version` lets any hello pass.
    ///
    /// # Errors
    /// The stream is not OpenFlow any more.
    pub fn next(&mut self, any_version: bool) -> Result<Option<&[u8]>, Broken> {
        let rest = &self.bytes[self.taken..];
        let Some(&[version, _, a, b, ..]) = rest.first_chunk::<HEADER>() else { return Ok(None) };
        let length = u16::from_be_bytes([a, b]);
        if version != VERSION && !any_version {
            return Err(Broken::Version(version));
        }
        if usize::from(length) < HEADER {
            return Err(Broken::Length(length));
        }
        let Some(message) = rest.get(..length.into()) else { return Ok(None) };
        self.taken += message.len();
        Ok(Some(message))
    }
}
