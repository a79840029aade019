//! What is fuzzed: one function a target, from bytes to nothing, that panics where something does
//! not hold.
//!
//! The functions know nothing of the fuzzer, so that ordinary tests replay the corpus with them
//! (`datapath/tests/corpus.rs`, `control/tests/corpus.rs`, `ports/tests/corpus.rs`,
//! `levada/tests/corpus.rs`).

pub mod action;
pub mod agent;
pub mod bond;
pub mod config;
pub mod filter;
pub mod guard;
pub mod handover;
pub mod lacp;
pub mod offload;
pub mod openflow;
pub mod parse;
pub mod report;
pub mod service;
pub mod store;
pub mod switch;
pub mod vcc;
pub mod vde;
pub mod vhost;
pub mod vxlan;
