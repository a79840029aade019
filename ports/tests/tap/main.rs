//! TAP devices in real network namespaces. Needs root and `/dev/net/tun`; says so and skips where it has not.

mod life;
mod testbed;
mod traffic;
