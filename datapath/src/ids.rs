//! The numbers by which the parts of a program, and frames, name each other.
//!
//! Each is a slot that its owner keeps for as long as it lives ([`crate::slots::Slots`]).

/// A port, by its slot in [`crate::program::Program::ports`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PortId(pub u32);

/// A tenant, by its slot in [`crate::program::Program::tenants`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TenantId(pub u32);

/// An endpoint, by its slot in [`crate::program::Program::endpoints`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EndpointId(pub u32);

/// One port of the uplink, by its place in [`crate::program::Uplink::members`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct MemberId(pub u8);

impl MemberId {
    /// Most members of an uplink, which is what a frame's metadata can number and what Linux's
    /// bonds may have.
    pub const MOST: usize = 16;
}

/// Another host, for as long as it is in the table. In `Meta::out` of a frame that waits to go
/// there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PeerId(pub u32);
