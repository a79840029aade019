//! What endpoints say of virtual congestion control.

use super::Findings;
use crate::config::{Endpoint, Tenant};
use crate::place::Place;
use crate::read::vcc::misfit;

/// The keys, and which of them are given.
pub(super) fn given(endpoint: &Endpoint) -> [(&'static str, bool); 4] {
    let &Endpoint { vcc, strips_multipath, ignores_loss, passes_classic, .. } = endpoint;
    [
        ("vcc", vcc.is_some()),
        ("mptcp", strips_multipath.is_some()),
        ("loss", ignores_loss.is_some()),
        ("classic", passes_classic.is_some()),
    ]
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
    let &Endpoint { strips_multipath, ignores_loss, passes_classic, .. } = endpoint;
    let asked = [("mptcp", strips_multipath), ("loss", ignores_loss), ("classic", passes_classic)];
    let asked = asked.iter().filter(|(_, is_asked)| *is_asked == Some(true));
    findings.0.extend(asked.filter_map(|(key, _)| misfit(place, key, mode)));
}
