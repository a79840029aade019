#![forbid(unsafe_code)]
//! A controller of OpenFlow 1.3 switches that balances by the same policies as the switch.
//!
//! Everything here is a function of its arguments: no I/O, no clock. [`wire`] reads and writes
//! messages, [`rules`] says which flows and groups a switch is to have, [`balance`] chooses
//! backends and remembers connections, [`health`] asks backends whether they are there, and
//! [`session`] is the state machine of one connection to one switch. What comes from a switch never
//! causes a panic; what is kept of it has a bound.

pub mod balance;
mod ending;
pub mod fault;
pub mod health;
pub mod rules;
pub mod session;
pub mod wire;
