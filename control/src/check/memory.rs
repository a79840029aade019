//! Frame memory: what queues may hold, against what there is.

use super::Findings;
use crate::config::{Config, MAX_MEMORY_BYTES};
use crate::place::Place;
use crate::units::{show_size, write_size};
use datapath::vcc::connections::Connections;

/// What remedies are rounded up to, in bytes.
const STEP_BYTES: u64 = 16 << 20;
/// Connections of which a table is no mistake.
const MILLION: u32 = 1_000_000;

/// Where all queues together are longer than the memory, they cannot all be full. That is no
/// mistake, for queues seldom are.
pub(super) fn check(findings: &mut Findings, config: &Config) {
    check_flows(findings, config);
    let endpoints = config.switches.iter().flat_map(|s| &s.tenants).flat_map(|t| &t.endpoints);
    // Each has a queue in each direction, and so has a link at each end.
    let queues = endpoints.map(|e| e.queue_bytes).chain(config.links.iter().map(|l| l.queue_bytes.into()));
    let all = queues.fold(0u64, |sum, queue| sum.saturating_add(2 * queue));
    let memory = config.daemon.memory_bytes;
    if all <= memory {
        return;
    }
    let remedy = match all.div_ceil(STEP_BYTES) * STEP_BYTES {
        enough if enough <= MAX_MEMORY_BYTES => {
            format!("write memory = \"{}\", or give endpoints a smaller `queue`; or leave it so", write_size(enough))
        }
        _ => "give endpoints a smaller `queue`, or leave it so".to_owned(),
    };
    findings.warning(
        Place::root().key("daemon").key("memory"),
        format!(
            "all queues together may hold {}, and the memory for frames is {}: while many of them are full, each tenant has its share of \
             the memory, by guarantees and weights, and frames beyond it are dropped before their queue is full (no-buffer)",
            show_size(all),
            show_size(memory)
        ),
        remedy,
    );
}

/// Tables of connections that take more than the memory for frames, and than one of a million
/// takes, are perhaps a digit too many.
fn check_flows(findings: &mut Findings, config: &Config) {
    let whole = |bytes: u64| bytes.next_multiple_of(1 << 20);
    let (mut all, memory) = (0, config.daemon.memory_bytes);
    let usual = memory.max(Connections::bytes_of(MILLION));
    for (i, switch) in config.switches.iter().enumerate() {
        let Some(flows) = switch.flows else { continue };
        let bytes = Connections::bytes_of(flows);
        all += bytes;
        if all > usual {
            findings.warning(
                Place::root().key("switch").item(i).key("vcc").key("flows"),
                format!(
                    "connections of vcc take {} beside the memory for frames, which is {}: the table of this switch \
                     takes {} as soon as anybody has `vcc`",
                    show_size(whole(all)),
                    show_size(memory),
                    show_size(whole(bytes))
                ),
                "write fewer `flows`, which take 200 bytes each at most; or leave it so",
            );
        }
    }
}
