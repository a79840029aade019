//! The cluster: keys and certificates, who is in it and where, and what hosts send each other. The
//! commands for it are in `command/cluster.rs`.

pub mod directory;
pub mod membership;
pub mod peers;
pub mod pki;
