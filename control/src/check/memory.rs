//! Frame memory: what queues may hold, against what there is.

use super::Findings;
use crate::config::{Config, MAX_MEMORY_BYTES};
use crate::place::Place;
use crate::units::{show_size, write_size};

/// What remedies are rounded up to, in bytes.
const STEP_BYTES: u64 = 16 << 20;

/// Where all queues together are longer than the memory, they cannot all be full. That is no
/// mistake, for queues seldom are.
pub(super) fn check(findings: &mut Findings, config: &Config) {
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
