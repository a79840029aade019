//! Learned addresses, copied a part at a time between two rounds, so that no frame waits for a
//! whole table.

use super::Worker;
use datapath::program::EndpointId;
use datapath::switch::Learned;

/// Addresses of one endpoint that are told at most, of those that it learned last: one with a flood
/// of them takes no more.
const ENDPOINT_ADDRESSES: usize = 256;
/// Addresses after which a part ends: some ten microseconds.
const PART_ADDRESSES: usize = 512;
/// Endpoints that are looked at for a part.
const PART_ENDPOINTS: usize = 2048;

/// What endpoints of one switch have learned, from one on.
#[derive(Default, Debug)]
pub struct LearnedPart {
    /// Endpoints that have learned any: how many addresses, and the last of them.
    pub endpoints: Vec<(EndpointId, u32, Vec<Learned>)>,
    /// How long an address lives that is not seen again, in nanoseconds.
    pub age_ns: u64,
    /// Where the next part begins; `None` at the end.
    pub next: Option<u32>,
}

impl Worker {
    /// The part of a switch's table that begins at endpoint `from`.
    pub(super) fn learned(&self, switch: usize, from: u32) -> LearnedPart {
        let mut part = LearnedPart::default();
        let Some(switch_slot) = self.switch_slots.get(switch) else { return part };
        let program = switch_slot.switch.program();
        part.age_ns = program.fdb_age_ns;
        let (mut addresses, end) = (0, program.endpoints.len() as u32);
        for endpoint in from..end {
            if addresses >= PART_ADDRESSES || endpoint - from >= PART_ENDPOINTS as u32 {
                part.next = Some(endpoint);
                break;
            }
            let (count, learned) =
                switch_slot.switch.learned_by(self.outside.now, EndpointId(endpoint), ENDPOINT_ADDRESSES);
            if count > 0 {
                let learned: Vec<Learned> = learned.collect();
                addresses += learned.len();
                part.endpoints.push((EndpointId(endpoint), count, learned));
            }
        }
        part
    }
}
