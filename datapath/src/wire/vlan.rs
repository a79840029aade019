//! The 802.1Q tag.

/// Bytes of a tag.
pub const TAG: usize = 4;
/// The largest VLAN id that a tag can hold.
pub const MOST: u16 = 0x0fff;
