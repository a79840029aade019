//! Virtual congestion control. No label is of a connection: strangers choose its values.

use super::{Families, labels};
use crate::api::vcc::EndpointReport;

/// What is known of an endpoint.
pub(super) fn families(all: &mut Families, endpoint: &EndpointReport) {
    let mut names = endpoint.path.splitn(3, '/');
    let mut name = || names.next().unwrap_or_default();
    let of = [("switch", name()), ("tenant", name()), ("endpoint", name())];
    let with = |key: &str, value: &str| labels(&[of[0], of[1], of[2], (key, value)]);
    for (state, count) in [("open", endpoint.open), ("half-open", endpoint.half_open)] {
        let help = "TCP connections that virtual congestion control tracks.";
        all.gauge("levada_endpoint_vcc_connections", help, &with("state", state), count);
    }
    let opened = [("translated", endpoint.translated), ("native", endpoint.native), ("plain", endpoint.plain)];
    for (kind, count) in opened {
        let help = "Connections that opened: the switch handles ECN, the guest does, or the peer has no ECN.";
        all.counter("levada_endpoint_vcc_opened", help, &with("kind", kind), count);
    }
    for (reason, count) in &endpoint.untouched {
        let help = "Connections, or frames of no connection, that were not changed.";
        all.counter("levada_endpoint_vcc_untouched", help, &with("reason", reason), count);
    }
    let to = labels(&of);
    let acknowledged = "Bytes that peers acknowledged to guests for which the switch handles ECN.";
    all.counter("levada_endpoint_vcc_acknowledged_bytes", acknowledged, &to, endpoint.acked_bytes);
    let marked = "Of these, bytes that peers reported as marked by the network.";
    all.counter("levada_endpoint_vcc_marked_bytes", marked, &to, endpoint.marked_bytes);
    let hidden = "Marked segments that arrived, and were hidden from the guest.";
    all.counter("levada_endpoint_vcc_hidden_marks", hidden, &to, endpoint.hidden_marks);
    let lowered = "Acknowledgements whose window was lowered.";
    all.counter("levada_endpoint_vcc_lowered_windows", lowered, &to, endpoint.lowered);
    all.counter("levada_endpoint_vcc_reductions", "Reductions of a window.", &to, endpoint.reductions);
    let policed = "Segments dropped as they were beyond the window that the guest had received.";
    all.counter("levada_endpoint_vcc_policed_segments", policed, &to, endpoint.policed);
    let held = "Acknowledgements that waited, as the window was below two segments.";
    all.counter("levada_endpoint_vcc_held_acknowledgements", held, &to, endpoint.held);
    let lapsed = "Connections that were translated and have become plain.";
    all.counter("levada_endpoint_vcc_lapsed_connections", lapsed, &to, endpoint.lapsed);
    let unanswered = "Connections that opened without ECN, after two SYNs with it had no answer.";
    all.counter("levada_endpoint_vcc_unanswered_asks", unanswered, &to, endpoint.unanswered_asks);
    for (who, counts) in [("guest", &endpoint.guests), ("peer", &endpoint.peers)] {
        for (kind, &count) in counts {
            let help = "Handshakes in which a guest or its peer used ECN itself.";
            let to = labels(&[of[0], of[1], of[2], ("who", who), ("kind", kind)]);
            all.counter("levada_endpoint_vcc_ecn_handshakes", help, &to, count);
        }
    }
    let deaf = "Native connections that did not react to marks, and have the switch's window since.";
    all.counter("levada_endpoint_vcc_deaf_connections", deaf, &to, endpoint.deaf);
}
