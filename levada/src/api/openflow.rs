//! A controller's switches, and its services in the form of a daemon's.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /v1/openflow`.
#[derive(Serialize, Deserialize, JsonSchema, Debug, PartialEq, Eq)]
pub struct OpenFlowReply {
    /// 1.
    pub version: u32,
    /// reactive or hash.
    pub mode: String,
    /// What the switches' spreading leaves out, in words; empty where nothing.
    pub remarks: Vec<String>,
    /// Connected switches.
    pub switches: Vec<SwitchReport>,
}

/// One switch.
#[derive(Serialize, Deserialize, JsonSchema, Debug, PartialEq, Eq)]
pub struct SwitchReport {
    /// Its number, 16 digits.
    pub datapath: String,
    /// What it is.
    pub software: String,
    /// hello, features, role, flows, adding, removing, ready or watching.
    pub phase: String,
    /// equal, master or slave; none before it is agreed on.
    pub role: String,
    /// Flows that do not depend on connections.
    pub rules: usize,
    /// Frames that came to the controller.
    pub packet_ins: u64,
    /// Of them, those that were no connection's, or are too long for a message back.
    pub ignored: u64,
    /// Connections whose flows were sent.
    pub set_up: u64,
    /// Errors that the switch sent.
    pub errors: u64,
    /// The last of them.
    pub last_error: Option<String>,
}
