//! What becomes of frames, stage by stage: `POST /v1/trace`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `POST /v1/trace`: frames that come, or one that is described.
#[derive(Serialize, Deserialize, JsonSchema, Clone, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum TraceRequest {
    /// The next frames that a filter means.
    Frames {
        /// The filter; empty for all frames.
        #[serde(default)]
        filter: String,
        /// How many, 1 to 1000.
        count: u32,
        /// For how many seconds at most, 1 to 60.
        seconds: u32,
        /// Whether their bytes are wanted too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        bytes: bool,
    },
    /// What would happen to a frame.
    Frame(Described),
}

/// The answer to it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, PartialEq, Eq, Debug)]
pub struct TraceReply {
    /// 1.
    pub version: u32,
    /// What became of each frame.
    pub frames: Vec<Traced>,
    /// When `at_ns` was zero, in nanoseconds since 1970.
    #[serde(default)]
    pub epoch_unix_ns: Option<u64>,
}

/// What became of a frame.
#[derive(Serialize, Deserialize, JsonSchema, Clone, PartialEq, Eq, Debug)]
pub struct Traced {
    /// When it was read, since the daemon's start; `null` for a described one.
    pub at_ns: Option<u64>,
    /// Its switch.
    pub switch: String,
    /// `forwarded` or `dropped`: what became of it, as far as can be said when it comes. What waits
    /// may still be dropped.
    pub fate: String,
    /// Why it was dropped.
    pub reason: Option<String>,
    /// What each stage saw and decided, in order.
    pub steps: Vec<TracedStep>,
    /// Its bytes in all, where they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u32>,
    /// The first 2048 of them, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<String>,
}

/// One stage.
#[derive(Serialize, Deserialize, JsonSchema, Clone, PartialEq, Eq, Debug)]
pub struct TracedStep {
    /// Its name: `arrive`, `look`, `guard`, `learn`, `vcc`, `tunnel`, `order`, `control`, `enter`,
    /// `service`, `forward`, `flood`, `pair`, `queue`, `police`, `member`, `emit` or `shortcut`.
    pub stage: String,
    /// What it did, for people.
    pub text: String,
}

/// A frame, described.
#[derive(Serialize, Deserialize, JsonSchema, Clone, PartialEq, Eq, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Described {
    /// `SWITCH/TENANT/ENDPOINT` or `SWITCH/uplink`.
    pub from: String,
    /// The whole frame in hexadecimal digits; then nothing else is taken.
    #[serde(default)]
    pub hex: Option<String>,
    /// Its source MAC address; without it, the first that the endpoint has declared.
    #[serde(default)]
    pub source: Option<String>,
    /// Its destination: a MAC address, or the path of an endpoint that has declared one.
    #[serde(default)]
    pub to: Option<String>,
    /// What is in it: `tcp`, `udp` or `icmp` and two addresses (with ports: `10.0.0.1:1000`), or
    /// `arp` and two addresses.
    #[serde(default)]
    pub what: Vec<String>,
    /// Bytes of payload.
    #[serde(default)]
    pub length: Option<u32>,
    /// Payload bytes of each segment.
    #[serde(default)]
    pub gso: Option<u16>,
    /// VLAN tag.
    #[serde(default)]
    pub vlan: Option<u16>,
}
