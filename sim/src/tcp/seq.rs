//! Sequence numbers: 32 bits on the wire, 64 in the connections, so that no stream ever wraps.

/// Selective acknowledgement blocks that fit beside timestamps (RFC 2018).
pub const MAX_BLOCKS: usize = 3;

/// Up to [`MAX_BLOCKS`] ranges, first one the most recent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Blocks<T> {
    blocks: [(T, T); MAX_BLOCKS],
    len: usize,
}

impl<T: Copy + Default> Blocks<T> {
    /// Adds a block; what does not fit is left out.
    pub fn push(&mut self, block: (T, T)) {
        if self.len < MAX_BLOCKS {
            self.blocks[self.len] = block;
            self.len += 1;
        }
    }

    /// The blocks.
    #[must_use]
    pub fn as_slice(&self) -> &[(T, T)] {
        &self.blocks[..self.len]
    }

    /// Bytes of the TCP option, padding included.
    #[must_use]
    pub fn option_bytes(&self) -> usize {
        if self.len == 0 { 0 } else { 4 + 8 * self.len }
    }
}

/// The position nearest to `near` that has `wire` as its sequence number in a stream that starts at
/// `base`.
#[must_use]
pub fn unwrap(wire: u32, base: u32, near: u64) -> u64 {
    let low = wire.wrapping_sub(base);
    let ahead = low.wrapping_sub(near as u32) as i32;
    near.saturating_add_signed(i64::from(ahead))
}

/// The sequence number of a position.
#[must_use]
pub fn wrap(position: u64, base: u32) -> u32 {
    base.wrapping_add(position as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_survive_the_wire() {
        for base in [0, 1, u32::MAX, 0x8000_0000] {
            for position in [0u64, 1, 0xffff_ffff, 0x1_0000_0000, 0x1_0000_0001, 0x7_1234_5678] {
                for near in [position, position.saturating_sub(1_000_000), position + 1_000_000] {
                    assert_eq!(unwrap(wrap(position, base), base, near), position);
                }
            }
        }
    }
}
