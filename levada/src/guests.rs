//! Guests that connect by themselves: VDE clients and virtual machines. Each kind has a thread that
//! speaks with them over sockets and gives the worker their ports.

pub mod front_ends;
mod handed;
pub mod vde_server;
