#![forbid(unsafe_code)]
#![doc = include_str!("../README.md")]

pub mod attack;
pub mod chaos;
pub mod flow;
pub mod fluid;
pub mod host;
pub mod meter;
pub mod packet;
pub mod random;
pub mod scenario;
pub mod site;
pub mod tcp;
pub mod topology;
pub mod world;
