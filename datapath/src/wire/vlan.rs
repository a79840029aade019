//! The 802.1Q tag.

/// Bytes of a tag.
pub const TAG: usize = 4;
/// Where it lies: behind the addresses.
pub const TAG_AT: usize = 12;
/// The largest VLAN id that a tag can hold.
pub const MOST: u16 = 0x0fff;
