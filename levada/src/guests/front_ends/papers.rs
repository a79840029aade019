//! What a process tells the next one of the sessions of virtual machines, beside their descriptors.

use serde::{Deserialize, Serialize};

/// Of a session: the messages of vhost-user that make it what it is.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
pub struct SessionPaper {
    /// The path of the socket, by which the machine is known.
    pub socket: String,
    /// Each with how many descriptors belong to it. Before all of them comes that of the
    /// connection.
    pub messages: Vec<(Vec<u8>, usize)>,
}

impl SessionPaper {
    /// How many descriptors belong to it.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        self.messages.iter().fold(1, |sum, (_, descriptors)| sum.saturating_add(*descriptors))
    }
}
