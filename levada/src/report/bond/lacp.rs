//! What `show` says of LACP: of the bond, and of each member what both ends say, by name.

use crate::api::lacp::{AggregatorReport, EndReport, LacpReport, PortReport};
use datapath::bond::MemberState;
use datapath::bond::lacp::pdu::{Information, State};
use datapath::bond::lacp::{LacpSettings, LacpView, Mux, Receive, Selected};

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
            "the other end sends the system ID of this end: a cable leads back, or ad_actor_system is not its own"
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
