//! The Internet checksum: RFC 1071, and its incremental update, RFC 1624.
//!
//! Sums are in one's complement: 16 bits with the carry added back in. A sum is the checksum's
//! complement; both are numbers as they are read from the wire (big-endian).

/// The one's-complement sum of `bytes` as 16-bit words, an odd last byte padded with zero.
///
/// Words are added as they lie in memory, 32 bits at a time in independent lanes, which the
/// compiler turns into vector code; RFC 1071 (section 2) shows that byte order and word size do not
/// matter until the sum is folded.
#[must_use]
pub fn sum(bytes: &[u8]) -> u16 {
    const LANES: usize = 8;
    let mut lanes = [0u64; LANES];
    let mut blocks = bytes.chunks_exact(4 * LANES);
    for block in &mut blocks {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(4)) {
            *lane += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        }
    }
    let mut total: u64 = lanes.iter().sum();
    let mut pairs = blocks.remainder().chunks_exact(2);
    for pair in &mut pairs {
        total += u64::from(u16::from_ne_bytes([pair[0], pair[1]]));
    }
    if let [last] = pairs.remainder() {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    u16::from_be_bytes(fold(total).to_ne_bytes())
}

/// One's-complement addition.
#[must_use]
#[inline]
pub const fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u16
}

/// The sum of the pseudo-header of `len` bytes of transport header and payload (RFC 9293, section
/// 3.1; RFC 8200, section 8.1).
#[must_use]
pub fn pseudo(addresses: &[u8], number: u8, len: usize) -> u16 {
    add(add(sum(addresses), u16::from(number)), len as u16)
}

/// A checksum after one 16-bit word under it changed from `old` to `new` (RFC 1624, equation 3).
#[must_use]
#[inline]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    !add(add(!checksum, !old), new)
}

/// The same of two words that lie side by side, each as one number.
#[must_use]
#[inline]
pub const fn update32(checksum: u16, old: u32, new: u32) -> u16 {
    let sum = !checksum as u64 + !old as u64 + new as u64;
    // A word's two halves count alike, and so do carries.
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16 + (sum >> 16) as u16)
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 by its letter.
    fn slow(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += (u32::from(pair[0]) << 8) + u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn the_examples_of_the_standards() {
        // RFC 1071, section 3.
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
        // RFC 1624, section 4: 0x0000, where the older equation gave 0xffff.
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn nothing_carries_over() {
        assert_eq!(sum(&[]), 0);
        assert_eq!(sum(&[0xff]), 0xff00);
        assert_eq!(sum(&[0xff; 65_536]), 0xffff);
    }

    proptest! {
        #[test]
        fn is_the_plain_sum(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(sum(&bytes), slow(&bytes));
        }

        #[test]
        fn an_update_is_a_new_sum(mut bytes in prop::collection::vec(any::<u8>(), 4..64), new: u16) {
            bytes[0] |= 1; // all zero has two checksums
            let (before, old) = (!sum(&bytes), u16::from_be_bytes([bytes[2], bytes[3]]));
            bytes[2..4].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update(before, old, new), !slow(&bytes));
        }

        #[test]
        fn an_update_of_two_words_is_a_new_sum(mut bytes in prop::collection::vec(any::<u8>(), 6..64), new: u32) {
            bytes[0] |= 1; // all zero has two checksums
            let (before, old) = (!sum(&bytes), u32::from_be_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]));
            bytes[2..6].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update32(before, old, new), !slow(&bytes));
        }
    }
}
