//! `vde://DIR`: the control directory of a VDE switch, into which whatever knows libvdeplug plugs
//! itself: QEMU's `-netdev vde`, `vde_plug`, `vde_plug2tap`, User-mode Linux, VirtualBox.
//!
//! The protocol, as libvdeplug speaks it (vde-2 and vdeplug4; there is no document of it but the
//! man pages vde_switch(1) and vde_plug(1)):
//!
//! 1. The client connects to the stream socket `DIR/ctl`, and binds a datagram socket:
//!    `DIR/.PID-N`, or `/var/run/vde.PID-N`, `/var/tmp/...`, `/tmp/...` where it may not write to
//!    the directory.
//! 2. It sends a request ([`request`]) with that address, the number of the plug it wants, and a
//!    line about itself.
//! 3. The switch makes a datagram socket, connects it to the client's, binds it in the directory,
//!    and answers with its address, a `struct sockaddr_un`. The client connects its own socket to
//!    it. Since both are connected, each takes datagrams from the other only.
//! 4. Each datagram is one Ethernet frame without preamble and FCS. There is no word about
//!    offloads, so checksums are filled in and segments cut before a frame gets here.
//! 5. When either closes the stream, the client is unplugged.
//!
//! | file | what |
//! |---|---|
//! | `request.rs` | the wire format of step 2 and 3 |
//! | `directory.rs` | `DIR` and `DIR/ctl`: made, taken over from a switch that was killed, and removed; step 3 |
//! | `left.rs` | what is in a directory that such a switch, its clients or strangers left there |
//! | `port.rs` | the [`Port`](crate::Port) of step 4: one client, or the several of a hub |
//!
//! Who decides which client gets which plug, and who watches the streams, is whoever uses this
//! module; nothing here waits.

mod directory;
mod left;
mod port;
pub mod request;

pub use directory::{Directory, DirectoryOptions, OpenError, Plugged, Refusal};
pub use left::{listens, remove_left};
pub use port::{Counts, MAX_CLIENTS, VdePort};
