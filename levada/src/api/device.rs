//! A device that another program or an operator has moved, renamed or set down.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is known of a device that Levada made.
#[derive(Serialize, Deserialize, JsonSchema, Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceReport {
    /// Whether it is set up. Whatever has the device may set it down.
    pub set_up: bool,
    /// Whether it is up and has a carrier.
    pub carrier: bool,
    /// The namespace that it was moved to; `null` where it is where the configuration has
    /// it.
    pub moved: Option<NetnsReport>,
    /// The name that it was given; `null` where it is that of `port`.
    pub renamed: Option<String>,
    /// What the configuration says of it and could not be set, or is left to who moved it.
    pub unsettled: Option<String>,
}

/// A network namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, PartialEq, Eq, Debug, Default)]
pub struct NetnsReport {
    /// Its name below `/run/netns`, where it has one.
    pub name: Option<String>,
    /// Its number: `net:[NUMBER]` in `/proc/PID/ns/net`; 0 where it could not be found out.
    pub number: u32,
    /// A process that is in it, where it has no name. The daemon does not look at other processes;
    /// `levada show` does.
    pub pid: Option<u32>,
}
