//! The daemon in real network namespaces. Needs root and `/dev/net/tun`; says so and skips where it
//! has not.

mod agents;
mod bonds;
mod clocks;
mod containers;
mod costs;
mod delays;
mod fabric;
mod faults;
mod flat;
mod hosts;
mod interfaces;
mod lacp;
mod liars;
mod lines;
mod management;
mod members;
mod moves;
mod ovs;
mod pairs;
mod privileges;
mod reporter;
mod reports;
mod restart;
mod services;
mod shortcuts;
mod strays;
mod talk;
mod terminal;
mod testbed;
mod traffic;
mod tunnels;
mod vcc;
mod vde;
mod vhost;
mod watching;
