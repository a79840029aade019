//! What the switch tells an agent, and what an agent tells the switch.

use datapath::program::EndpointId;
use datapath::units::Rate;

pub use datapath::arrivals::{Arrival, QueueSample};
pub use datapath::pair::Toward;

/// A limit that the switch is to set, or with `None` to lift.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// The sending endpoint.
    pub from: EndpointId,
    /// Which of its traffic.
    pub to: Toward,
    /// At most this much.
    pub rate: Option<Rate>,
    /// When its turn among those to the same receiver is, if that asked for it: after so much of
    /// the time of a frame, of 256.
    pub phase: Option<u8>,
}
