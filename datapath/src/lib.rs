#![forbid(unsafe_code)]
#![doc = include_str!("../README.md")]

pub mod aqm;
pub mod arrivals;
pub mod bond;
pub mod checksum;
pub mod fdb;
pub mod flood;
pub mod forward;
pub mod frame;
pub mod frame_trace;
pub mod guard;
pub mod link;
pub mod offload;
mod outside;
pub mod overlay;
pub mod owners;
pub mod pair;
pub mod police;
pub mod program;
pub mod protocol;
pub mod sched;
pub mod segment;
pub mod service;
pub mod sojourn;
pub mod stats;
pub mod switch;
pub mod table;
pub mod turns;
pub mod udp_gso;
pub mod units;
pub mod vcc;
pub mod verdict;
pub mod wire;
