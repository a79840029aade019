//! LACP: of the bond, and of each member what both ends report, by name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is agreed with the other end.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq)]
pub struct LacpReport {
    /// How often the other end is to speak: `slow` or `fast`.
    pub rate: String,
    /// Whether LACPDUs are sent unasked.
    pub active: bool,
    /// How the aggregator is chosen.
    pub ad_select: String,
    /// Whether a member that is received from is sent to, whatever the other end reports of that.
    pub coupled_control: bool,
    /// Whether no frame is carried without a partner.
    pub strict: bool,
    /// With fewer members that carry frames, none does.
    pub min_links: u8,
    /// Address of this system.
    pub system: String,
    /// Its priority.
    pub system_priority: u16,
    /// The aggregator that is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregator: Option<AggregatorReport>,
}

/// Members that are used together.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq)]
pub struct AggregatorReport {
    /// Its number: that of its first port.
    pub id: u16,
    /// Ports that it has.
    pub ports: usize,
    /// Key of these ports.
    pub actor_key: u16,
    /// Key of the ports at the other end.
    pub partner_key: u16,
    /// Address of the other end's system; zeros where there is none.
    pub partner_system: String,
}

/// A member in LACP.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq)]
pub struct PortReport {
    /// Number of its aggregator.
    pub aggregator: u16,
    /// Whether that is used: `selected`, `standby` or `unselected`.
    pub selected: String,
    /// Why it is not sent to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
    /// Whether the other end sends the system ID of this end: a cable leads back.
    #[serde(default)]
    pub looped: bool,
    /// State of the receive machine.
    pub receive: String,
    /// State of the mux machine.
    pub mux: String,
    /// This end.
    pub actor: EndReport,
    /// The other end, as it last described itself.
    pub partner: EndReport,
    /// Whether this end came into sync in time: `none`, `monitoring` or `churned`.
    pub actor_churn: String,
    /// Whether the other did.
    pub partner_churn: String,
    /// How often this end did not.
    pub actor_churned: u64,
    /// How often the other did not.
    pub partner_churned: u64,
    /// LACPDUs received.
    pub received: u64,
    /// LACPDUs sent.
    pub sent: u64,
    /// Frames of slow protocols that were malformed, unknown, or more than are read.
    pub bad: u64,
    /// Markers answered.
    pub markers: u64,
}

/// One end of a link.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq)]
pub struct EndReport {
    /// Address of its system.
    pub system: String,
    /// Priority of its system.
    pub system_priority: u16,
    /// Number of its port.
    pub port: u16,
    /// Priority of its port.
    pub port_priority: u16,
    /// Its key.
    pub key: u16,
    /// Its state, bit by bit.
    pub state: Vec<String>,
}
