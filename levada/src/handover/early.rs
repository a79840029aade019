//! Connections of virtual congestion control that cross to the next process before the rest, while
//! the old one still forwards: see `datapath::vcc::early`.

use control::plan::{Plan, SwitchPlan};
use datapath::program::EndpointId;
use datapath::vcc::saved::{endpoints, renumber};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

/// Some connections of one switch; each part counts on where the last one ended.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
#[serde(default)]
pub struct Early {
    /// Its name.
    switch: String,
    /// When they were so, on CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// The numbers of their endpoints, by path.
    endpoints: BTreeMap<String, u32>,
    /// Bytes of records: they follow the message.
    bytes: u64,
    #[serde(skip)]
    records: Vec<u8>,
}

impl Early {
    /// What says whose `records` are, which are to be sent behind it.
    #[must_use]
    pub fn new(switch: &SwitchPlan, at_ns: u64, records: &[u8]) -> Early {
        let whose: BTreeSet<EndpointId> = endpoints(records).collect();
        let whose = whose.into_iter().map(|id| (switch.endpoint_path(id), id.0)).collect();
        let (switch, bytes) = (switch.name.clone(), records.len() as u64);
        Early { switch, at_ns, endpoints: whose, bytes, records: Vec::new() }
    }

    /// Reads the records that follow it, which take some of the `room` that there is for all.
    ///
    /// # Errors
    /// They take more, or do not come.
    pub fn read(&mut self, from: impl Read, room: &mut u64) -> io::Result<()> {
        let bytes = self.bytes;
        *room = room.checked_sub(bytes).ok_or_else(|| {
            io::Error::other(format!("{bytes} more bytes of early connections are too many: start without --takeover"))
        })?;
        self.records = read_all(from, bytes)?;
        Ok(())
    }

    /// The records for the switch of `plan` that has the name, by its number.
    #[must_use]
    pub fn of(mut self, plan: &Plan) -> Option<(usize, Vec<u8>)> {
        let (number, switch) = plan.switches.iter().find(|(_, switch)| switch.name == self.switch)?;
        renumber_for(switch, &mut self.records, |path| self.endpoints.get(path).copied());
        Some((number as usize, self.records))
    }
}

/// Reads so many bytes; whoever asks has seen to it that they are not too many.
///
/// # Errors
/// They do not come.
pub fn read_all(from: impl Read, bytes: u64) -> io::Result<Vec<u8>> {
    let mut all = Vec::with_capacity(bytes as usize);
    if from.take(bytes).read_to_end(&mut all)? as u64 != bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(all)
}

/// Gives records the numbers that their endpoints have in `switch`; `before` says which they had,
/// by path.
pub fn renumber_for(switch: &SwitchPlan, records: &mut [u8], before: impl Fn(&str) -> Option<u32>) {
    if records.is_empty() {
        return;
    }
    let now = switch.program.endpoints.iter().map(|(id, _)| EndpointId(id));
    let numbers = now.filter_map(|id| Some((before(&switch.endpoint_path(id))?, id)));
    let numbers: BTreeMap<u32, EndpointId> = numbers.collect();
    renumber(records, |before| numbers.get(&before.0).copied());
}

/// Whether endpoints have the same numbers in both, so that records of one are those of the other.
#[must_use]
pub fn are_numbered_alike(one: &Plan, other: &Plan) -> bool {
    let paths = |plan: &Plan| -> Vec<_> {
        let of = |(number, switch): (u32, &SwitchPlan)| {
            let ids = switch.program.endpoints.iter().map(|(id, _)| (id, switch.endpoint_path(EndpointId(id))));
            (number, ids.collect::<Vec<_>>())
        };
        plan.switches.iter().map(of).collect()
    };
    paths(one) == paths(other)
}
