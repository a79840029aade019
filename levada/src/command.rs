//! The command line, and the commands that are for a person alone. `client` speaks with the daemon
//! for them.

pub mod clean;
pub mod cli;
pub mod cluster;
pub mod edit;
pub mod save;
pub mod show;
pub mod top;
