//! A controller's numbers as OpenMetrics text, in the form of a daemon's: of its switches and its
//! services.

use super::{House, report};
use crate::metrics::{Families, labels, services};

pub(super) fn text(house: &House) -> String {
    let mut all = Families::default();
    let (connected, (held, most)) = (report::switches(house).switches, house.balancer.borrow().room());
    for datapath in house.seen.borrow().iter() {
        let name = format!("{datapath:016x}");
        let to = labels(&[("switch", &name)]);
        let switch = connected.iter().find(|switch| switch.datapath == name);
        let help = "Whether the switch is connected; 0 of one that was, since the start.";
        all.gauge("levada_openflow_switch_connected", help, &to, u8::from(switch.is_some()));
        let is_ready = switch.is_some_and(|switch| matches!(&*switch.phase, "ready" | "watching"));
        let help = "Whether the switch has all its rules, or the controller looks on there.";
        all.gauge("levada_openflow_switch_ready", help, &to, u8::from(is_ready));
        let Some(switch) = switch else { continue };
        let help = "Flows that the switch has as long as the configuration is; connections' come and go.";
        all.gauge("levada_openflow_switch_flows", help, &to, switch.rules);
        for (name, help, count) in [
            (
                "levada_openflow_switch_packet_ins",
                "Frames that came to the controller, since the switch connected.",
                switch.packet_ins,
            ),
            (
                "levada_openflow_switch_ignored",
                "Of these, those of no connection, or too long for a message back.",
                switch.ignored,
            ),
            ("levada_openflow_switch_set_up", "Connections whose flows were sent.", switch.set_up),
            ("levada_openflow_switch_errors", "Errors that the switch sent.", switch.errors),
        ] {
            all.counter(name, help, &to, count);
        }
    }
    all.gauge("levada_openflow_connections", "Connections that are remembered.", "", held);
    all.gauge("levada_openflow_connections_limit", "Connections that are remembered at most.", "", most);
    services::families(&mut all, &report::services(house));
    all.text()
}
