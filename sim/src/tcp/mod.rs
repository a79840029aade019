//! TCP: as much of it as fills links and reacts to them. A connection carries bytes one way.

pub mod congestion;
pub mod receiver;
pub mod rtt;
pub mod sender;
pub mod seq;
