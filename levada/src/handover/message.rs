//! The messages of a takeover: a length (four bytes, the lowest first) and JSON.

use super::{Early, MESSAGE_BYTES, Papers, SessionPaper, State};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::PathBuf;

/// What the two processes say to each other. A key that is missing has its default, one that is
/// unknown is ignored.
#[derive(Serialize, Deserialize, PartialEq, Debug)]
#[serde(tag = "message", rename_all = "kebab-case")]
pub enum Message {
    Hello {
        protocol: u32,
        version: String,
        pid: u32,
        /// Whether it reads the connections that follow a state.
        #[serde(default)]
        reads_connections: bool,
        /// Whether it takes connections before the state.
        #[serde(default)]
        takes_early: bool,
    },
    Offer {
        version: String,
        pid: u32,
        descriptors: usize,
        /// What the devices behind the first of these, after the lock, are known by.
        #[serde(default)]
        known_as: Vec<Option<String>>,
        /// By switch, the most that the line of its uplink has carried, in bit/s, where it carries
        /// less now.
        #[serde(default)]
        lines: BTreeMap<String, u64>,
        /// What services' connections are given to backends by. Nothing else keeps it where the
        /// run directory is full.
        #[serde(default)]
        service_key: Option<u64>,
    },
    Refusal {
        why: String,
    },
    Ready {},
    /// Any number of them, each with its records behind it.
    Early(Early),
    State {
        state: State,
        #[serde(default)]
        plugs: Papers,
        /// Of virtual machines; their descriptors come behind those of VDE clients.
        #[serde(default)]
        machines: Vec<SessionPaper>,
    },
    Taken {
        #[serde(default)]
        directories: Vec<PathBuf>,
    },
}

impl Papers {
    /// How many descriptors belong to them.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        2 * self.clients.len()
    }
}

/// A message as it is written.
///
/// # Errors
/// It is longer than the other end reads.
pub fn written(message: &Message) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - 4;
    match u32::try_from(length) {
        Ok(length) if length <= MESSAGE_BYTES => bytes[..4].copy_from_slice(&length.to_le_bytes()),
        _ => {
            return Err(io::Error::other(format!(
                "what is to be handed over takes {length} bytes, and at most {MESSAGE_BYTES} are read: stop the old \
                 process (systemctl stop, or SIGTERM), then start the new one"
            )));
        }
    }
    Ok(bytes)
}

/// Writes a message.
///
/// # Errors
/// The other end is gone, or would not read so long a message.
pub fn send(mut to: impl Write, message: &Message) -> io::Result<()> {
    to.write_all(&written(message)?)
}

/// Reads a message; takes no more memory than comes.
///
/// # Errors
/// The other end is gone, or says something that is no message.
pub fn receive(mut from: impl Read) -> io::Result<Message> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MESSAGE_BYTES {
        return Err(io::Error::other(format!(
            "a message of {length} bytes is above {MESSAGE_BYTES} bytes: the other process is not a levada that can hand over"
        )));
    }
    let mut text = Vec::new();
    from.take(u64::from(length)).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}
