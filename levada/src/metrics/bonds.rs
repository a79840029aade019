//! Metrics of bonds.

use super::{Families, Seconds, labels};
use crate::api::bonds::BondReport;

pub(super) fn bond(all: &mut Families, of_switch: (&str, &str), bond: &BondReport) {
    all.gauge(
        "levada_bond_rate_bytes_per_second",
        "What the members that may send carry.",
        &labels(&[of_switch]),
        bond.rate_bps / 8,
    );
    if let Some(order) = &bond.order {
        let to = labels(&[of_switch]);
        let numbered = u8::from(order.numbered);
        all.gauge("levada_bond_numbered", "Whether frames leave with numbers.", &to, numbered);
        all.counter(
            "levada_bond_hellos_refused",
            "Hellos that were not under the secret, or were received before.",
            &to,
            order.refused,
        );
        for (what, count) in [
            ("received", order.received),
            ("held", order.held),
            ("late", order.late),
            ("lost", order.lost),
            ("duplicate", order.duplicate),
        ] {
            let to = labels(&[of_switch, ("what", what)]);
            all.counter("levada_bond_order_frames", "Numbered frames, by result.", &to, count);
        }
        let help = "Longest time that a frame waited for an earlier one.";
        all.gauge("levada_bond_order_hold_max_seconds", help, &to, Seconds(order.hold_max_us.saturating_mul(1000)));
    }
    for member in &bond.members {
        let of = [of_switch, ("member", member.name.as_str())];
        let to = labels(&of);
        for state in ["down", "standby", "collecting", "distributing"] {
            let is_so = u8::from(member.state == state);
            let to = labels(&[&of[..], &[("state", state)]].concat());
            all.gauge("levada_bond_member_state", "Whether it has this state.", &to, is_so);
        }
        if bond.mode == "active-backup" {
            let is_active = u8::from(bond.active.as_deref() == Some(member.name.as_str()));
            all.gauge("levada_bond_member_active", "Whether it is the active one.", &to, is_active);
        }
        for (name, help, is_so) in [
            ("levada_bond_member_admin_up", "0 while an operator has taken it out by hand.", member.admin == "up"),
            (
                "levada_bond_member_left_out",
                "Whether no frames are sent over it: no bond at its other end answers, or it leads back.",
                member.left_out,
            ),
        ] {
            all.gauge(name, help, &to, u8::from(is_so));
        }
        for (name, help, bps) in [
            ("levada_bond_member_rate_bytes_per_second", "What it is paced at.", member.rate_bps),
            ("levada_bond_member_configured_bytes_per_second", "What it is configured for.", member.configured_bps),
        ] {
            all.gauge(name, help, &to, bps / 8);
        }
        if let Some(bps) = member.speed_bps {
            all.gauge("levada_bond_member_speed_bytes_per_second", "What its link has negotiated.", &to, bps / 8);
        }
        if let Some(duplex) = &member.duplex {
            let is_full = u8::from(duplex == "full");
            all.gauge(
                "levada_bond_member_full_duplex",
                "Whether both ends of its link may send at once.",
                &to,
                is_full,
            );
        }
        all.counter("levada_bond_member_failures", "How often it stopped distributing.", &to, member.failures);
        for (direction, carried) in [("egress", &member.sent), ("ingress", &member.received)] {
            let to = labels(&[&of[..], &[("direction", direction)]].concat());
            all.counter("levada_bond_member_segments", "Frames on the wire.", &to, carried.segments);
            all.counter("levada_bond_member_wire_bytes", "Bytes on the wire.", &to, carried.wire_bytes);
        }
        let again = "Numbered frames that were sent over a failed member, or waited there, and that it sent.";
        all.counter("levada_bond_member_replayed", again, &to, member.replayed);
        all.gauge("levada_bond_member_waiting_bytes", "Wire bytes that wait for it.", &to, member.waiting_bytes);
        all.counter("levada_bond_member_full", "Frames that it had no room for.", &to, member.full);
        all.counter("levada_bond_member_marks", "Segments that it marked (ECN).", &to, member.marks);
        if bond.order.is_some() {
            let help = "Numbered frames that the other end has sent over it, and that did not arrive.";
            all.counter("levada_bond_member_lost_frames", help, &to, member.lost_frames);
        }
        let Some(port) = &member.lacp else { continue };
        for (what, count) in [("received", port.received), ("sent", port.sent), ("bad", port.bad)] {
            let to = labels(&[&of[..], &[("what", what)]].concat());
            all.counter("levada_bond_lacpdus", "LACPDUs.", &to, count);
        }
        let looped = u8::from(port.looped);
        all.gauge("levada_bond_member_looped", "Whether the other end sends the system ID of this end.", &to, looped);
        for (end, churned) in [("actor", port.actor_churned), ("partner", port.partner_churned)] {
            let to = labels(&[&of[..], &[("end", end)]].concat());
            all.counter("levada_bond_churned", "How often an end was out of sync for a minute.", &to, churned);
        }
    }
}
