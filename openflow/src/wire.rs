//! Messages of OpenFlow 1.3, those that balancing needs, read and written (OpenFlow 1.3.5; field
//! numbers of Open vSwitch's extensions in ovs-fields(7) and ovs-actions(7)).
//!
//! Reading never panics and believes no length: a message is at most 64 KiB, and what its parts
//! say of themselves must fit into it. [`Stream`] cuts a stream of bytes into messages. Both
//! directions are read and written, so that a switch can be played in tests.

mod action;
mod bytes;
mod field;
mod message;
mod multipart;
mod stream;

pub use action::{Action, Bucket, Instruction, Nat, WHOLE, port};
pub use bytes::Bad;
pub use field::{Field, Kind, MOST_FIELDS, Match};
pub use message::{
    Features, FlowCommand, FlowMod, FlowRemoved, GroupCommand, GroupMod, HEADER, Message, PacketIn, PacketOut, Role,
    VERSION, flag,
};
pub use multipart::{Description, FlowStats, GroupDescription, Multipart, Request};
pub use stream::{Broken, Stream};

#[cfg(test)]
mod tests;
