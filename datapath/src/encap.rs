//! What is put around a frame and taken off again, inside its headroom: VLAN tags, VXLAN tunnels,
//! and the datagrams of one tunnel that leave as one; the answers to frames too big for a tunnel.

pub mod too_big;
pub mod udp_gso;
pub mod vlan;
pub mod vxlan;
