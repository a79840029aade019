//! The 802.1Q tag.

use super::header;

/// Bytes of a tag.
pub const TAG: usize = 4;
/// Where it lies: behind the addresses.
pub const TAG_AT: usize = 12;
/// The largest VLAN id that a tag can hold.
pub const MOST: u16 = 0x0fff;

/// The VLAN id of a second tag, in a frame that has a first; 0 where it has none.
#[must_use]
pub fn behind(bytes: &[u8]) -> u16 {
    match header(bytes, TAG_AT + TAG) {
        Some(&[0x81, 0, high, low]) => u16::from_be_bytes([high, low]) & MOST,
        _ => 0,
    }
}
