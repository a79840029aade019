//! What a process tells the next one of its VDE directories and clients, beside their descriptors.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What is to be known of VDE directories and clients beside their descriptors.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
pub struct Papers {
    pub directories: Vec<DirectoryPaper>,
    /// Two descriptors each, in this order: stream and data socket.
    pub clients: Vec<ClientPaper>,
}

/// Of a directory.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
pub struct DirectoryPaper {
    /// Where, with links followed.
    pub path: PathBuf,
    /// It is to be removed in the end.
    pub made: bool,
}

/// Of a client.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
pub struct ClientPaper {
    /// The directory's path.
    pub directory: PathBuf,
    /// Its plug there.
    pub plug: u32,
    /// Where the data socket is bound.
    pub data: PathBuf,
    /// Where the client's own is.
    pub own: PathBuf,
    /// What it is called in the log.
    pub name: String,
}
