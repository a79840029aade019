//! What `show` says of LACP: of the bond, and of each member what both ends say, by name.

use datapath::bond::MemberState;
use datapath::bond::lacp::pdu::{Information, State};
use datapath::bond::lacp::{LacpSettings, LacpView, Mux, Receive, Selected};
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
    /// Whether a member that is received from is sent to, whatever the other end says of that.
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
    /// Address of the other end's system; zeros where nobody is there.
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
    /// Whether the other end says that it is this system: a cable leads back.
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

pub(super) fn whole(settings: &LacpSettings, views: &[LacpView]) -> LacpReport {
    let used = views.iter().find(|view| view.selected == Selected::Selected);
    let aggregator = used.map(|used| AggregatorReport {
        id: used.aggregator,
        ports: views.iter().filter(|view| view.aggregator == used.aggregator).count(),
        actor_key: used.actor.key,
        partner_key: used.partner.key,
        partner_system: used.partner.system.to_string(),
    });
    LacpReport {
        rate: if settings.is_fast { "fast" } else { "slow" }.to_owned(),
        active: settings.is_active,
        ad_select: settings.select.name().to_owned(),
        coupled_control: settings.is_coupled,
        strict: settings.is_strict,
        min_links: settings.min_links,
        system: settings.system.to_string(),
        system_priority: settings.system_priority,
        aggregator,
    }
}

pub(super) fn port(view: &LacpView, state: MemberState, settings: &LacpSettings) -> PortReport {
    PortReport {
        aggregator: view.aggregator,
        selected: view.selected.name().to_owned(),
        why_not: why_not(view, state, settings).map(str::to_owned),
        looped: view.is_loop,
        receive: view.receive.name().to_owned(),
        mux: view.mux.name(settings.is_coupled).to_owned(),
        actor: end(&view.actor),
        partner: end(&view.partner),
        actor_churn: view.actor_churn.name().to_owned(),
        partner_churn: view.partner_churn.name().to_owned(),
        actor_churned: view.counts.actor_churned,
        partner_churned: view.counts.partner_churned,
        received: view.counts.received,
        sent: view.counts.sent,
        bad: view.counts.bad,
        markers: view.counts.markers,
    }
}

fn end(end: &Information) -> EndReport {
    let state = State::NAMES.iter().filter(|(bit, _)| end.state.has(*bit)).map(|(_, name)| (*name).to_owned());
    EndReport {
        system: end.system.to_string(),
        system_priority: end.system_priority,
        port: end.port,
        port_priority: end.port_priority,
        key: end.key,
        state: state.collect(),
    }
}

/// Why a member is not sent to; `None` where it is, or its link is down.
fn why_not(view: &LacpView, state: MemberState, settings: &LacpSettings) -> Option<&'static str> {
    Some(match (view.receive, view.selected, view.mux) {
        (Receive::PortDisabled, ..) => return None,
        _ if state == MemberState::Distributing => return None,
        _ if view.is_loop => {
            "the other end says that it is this system: a cable leads back, or ad_actor_system is not its own"
        }
        (_, Selected::Standby, _) if !view.actor.state.has(State::AGGREGATION) => {
            "its link is half duplex: it does not aggregate, and another aggregator is used"
        }
        _ if state == MemberState::Collecting => "the other end does not receive from it",
        (_, _, Mux::Collecting | Mux::Distributing) => "fewer members than min_links",
        (Receive::Expired, ..) => "no LACPDU comes",
        (Receive::Defaulted, Selected::Unselected, _) if settings.is_strict => "no LACPDU comes, and lacp_strict is on",
        (Receive::Defaulted, Selected::Standby, _) => "no LACPDU comes, and another member is used",
        (_, Selected::Standby, _) => "another aggregator is used",
        (_, Selected::Selected, Mux::Attached) => "the other end is not in sync",
        _ => "it waits for others of its aggregator",
    })
}
