#![forbid(unsafe_code)]
#![doc = include_str!("../README.md")]

pub mod attack;
pub mod chaos;
pub mod costs;
pub mod crowd;
pub mod fabric;
pub mod flow;
pub mod fluid;
pub mod host;
pub mod mail;
pub mod meter;
pub mod node;
pub mod packet;
pub mod rack;
pub mod random;
pub mod scenario;
pub mod shuffle;
pub mod siege;
pub mod site;
pub mod star;
pub mod steering;
pub mod tcp;
pub mod topology;
pub mod work;
pub mod worker;
pub mod world;
