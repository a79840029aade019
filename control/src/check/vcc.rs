//! What endpoints say of virtual congestion control.

use super::Findings;
use crate::config::{Endpoint, Tenant};
use crate::place::Place;
use crate::read::vcc::misfit;

/// The keys, and which of them are given.
pub(super) fn given(endpoint: &Endpoint) -> [(&'static str, bool); 3] {
    let &Endpoint { vcc, strips_multipath, ignores_loss, .. } = endpoint;
    [("vcc", vcc.is_some()), ("mptcp", strips_multipath.is_some()), ("loss", ignores_loss.is_some())]
}

pub(super) fn check(findings: &mut Findings, tenant: &Tenant, endpoint: &Endpoint, place: &Place) {
    if endpoint.trunk {
        for (key, _) in given(endpoint).iter().filter(|(_, given)| *given) {
            findings.error(
                place.key(*key),
                "behind a trunk are many guests: nothing is done for their TCP",
                format!("remove `{key}`, or trunk"),
            );
        }
        return;
    }
    let mode = endpoint.vcc.unwrap_or(tenant.vcc.mode);
    let asked = [("mptcp", endpoint.strips_multipath), ("loss", endpoint.ignores_loss)];
    let asked = asked.iter().filter(|(_, is_asked)| *is_asked == Some(true));
    findings.0.extend(asked.filter_map(|(key, _)| misfit(place, key, mode)));
}
