//! `vhost-user://SOCKET`: the network card of a virtual machine, whose rings lie in memory that the
//! machine shares. Frames are copied between them and the pool; there is no device on the host and
//! no system call for a frame. The protocol is QEMU's (`docs/interop/vhost-user.rst`), the rings
//! are virtio's (version 1.2, sections 2.7 and 5.1).
//!
//! | noun | meaning |
//! |---|---|
//! | front end | the process that has the machine's memory: QEMU, Cloud Hypervisor, DPDK's virtio-user |
//! | guest | what writes the rings: not to be believed |
//! | session | one connection of a front end: memory, features, rings; it ends with the socket |
//! | pair | a ring for frames to the guest and one for frames from it; a port has 1 to 8 |
//!
//! | file | what |
//! |---|---|
//! | `message.rs` | the wire format of requests |
//! | `stream.rs` | messages out of a socket, with the descriptors beside them |
//! | `session.rs` | what requests do; makes the port of the rings that run |
//! | `foreign.rs` | who closes what a front end has sent |
//! | `memory.rs`, `fault.rs` | the machine's memory, and what is done where the front end takes it away |
//! | `ring.rs` | the split ring |
//! | `call.rs` | how a guest is called |
//! | `port.rs` | the [`Port`](crate::Port) |
//! | `front_end.rs` | a front end and a guest in memory, for tests |
//!
//! Who connects to whom, and who watches the sockets, is whoever uses this module; nothing here
//! waits. (Crates were looked at: `virtio-queue` publishes each chain by itself, so that a guest
//! may see a merged frame by halves, and `vhost` reads a message to its end, so that half of one
//! stops who reads.)

mod call;
mod fault;
mod foreign;
pub mod front_end;
mod memory;
pub mod message;
mod port;
mod ring;
mod session;
mod stream;

pub use foreign::{Closer, Foreign, Leaving};
pub use memory::{Mapped, MemoryError, most_bytes};
pub use port::{Form, VhostPort};
pub use ring::Broken;
pub use session::{Done, Fault, MOST_PAIRS, Offer, Session, feature, protocol};
pub use stream::{End, Incoming, Message};

/// Looks at what the host has. To be called by a thread that may; others get no better an answer
/// later. False: guests cannot be called without waiting (`call.rs`).
pub fn prepare() -> bool {
    memory::most_bytes();
    call::prepare()
}

#[cfg(test)]
mod tests;
