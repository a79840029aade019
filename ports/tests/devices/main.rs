//! TAP devices and interfaces that exist, in real network namespaces. Needs root and
//! `/dev/net/tun`; says so and skips where it has not.

mod life;
mod neighbours;
mod packet;
mod shortcut;
mod testbed;
mod thin;
mod traffic;
mod tunnel;
