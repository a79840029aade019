#![forbid(unsafe_code)]
#![doc = include_str!("../README.md")]

pub mod frame;
pub mod offload;
pub mod units;
pub mod verdict;
pub mod wire;
