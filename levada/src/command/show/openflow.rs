//! `levada show openflow`.

use super::columns;
use crate::api::openflow::{OpenFlowReply, SwitchReport};
use std::fmt::Write as _;

/// The switches of a controller.
pub fn text(reply: &OpenFlowReply) -> String {
    let mut out = format!("mode {}\n", reply.mode);
    for remark in &reply.remarks {
        let _ = writeln!(out, "  {remark}");
    }
    let head = ["switch", "role", "phase", "rules", "packet-ins", "set up", "errors", "software"].map(str::to_owned);
    let row = |switch: &SwitchReport| {
        let numbers = [switch.rules as u64, switch.packet_ins, switch.set_up, switch.errors];
        let [rules, packet_ins, set_up, errors] = numbers.map(|number| number.to_string());
        let (datapath, software) = (switch.datapath.clone(), switch.software.clone());
        [datapath, switch.role.clone(), switch.phase.clone(), rules, packet_ins, set_up, errors, software]
    };
    out += &columns(&[head].into_iter().chain(reply.switches.iter().map(row)).collect::<Vec<_>>());
    for switch in &reply.switches {
        if let Some(error) = &switch.last_error {
            let _ = writeln!(out, "switch {} refused last {error}", switch.datapath);
        }
    }
    out
}
