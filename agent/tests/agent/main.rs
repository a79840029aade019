//! The agents in closed loop: a fluid model of network, senders and victims is driven by them under
//! a virtual clock.

mod fault;
mod flat;
mod flood;
mod gatekeeper;
mod scale;
mod service;
mod share;
mod world;
