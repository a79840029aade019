//! Hellos: what two Levada bonds send each other on every member.
//!
//! A hello says which bond sends it, whose frames that one receives on which of its members, and of
//! what number on nothing more comes over this member. It goes to a group address that bridges do
//! not forward, so that only who is at the other end of the cable receives it; its tag is a
//! number's, so that what arrives shows that numbers do.

use super::number::{MODULUS, Number};
use crate::wire::{Mac, be16, be32, ethertype};

/// Nearest non-TPMR bridges' relatives: the group of link-layer discovery, which no bridge forwards
/// (IEEE 802.1Q-2018, table 8-1).
const GROUP: Mac = Mac([0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e]);
/// EtherType for local experiments (IEEE 802-2014, table 1).
const ETHERTYPE: u16 = 0x88b5;
/// What is said here, in its first version.
const MAGIC: [u8; 4] = *b"LvB\x01";
/// Bytes of the headers before what is said, tag included.
const HEADERS: usize = 18;
/// Bytes of a hello, headers included: what fits into the shortest frame with a tag.
pub const HELLO_BYTES: usize = HEADERS + 46;

const NUMBERED: u8 = 1;
const PIECES: u8 = 1 << 1;
const KNOWS_NEXT: u8 = 1 << 2;
const ASKS: u8 = 1 << 3;

/// What a bond says on a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hello {
    /// Which run of which bond says it.
    pub epoch: u64,
    /// Whose hellos it receives; 0 for nobody's.
    pub heard: u64,
    /// Counts its hellos, over all members.
    pub count: u32,
    /// The member over which it sends this, by its own number.
    pub member: u8,
    /// On which of its members it receives what the other sends, a bit each.
    pub receives: u16,
    /// Whether its frames have numbers.
    pub is_numbered: bool,
    /// Whether one number came with several frames that were one.
    pub has_pieces: bool,
    /// Whether it wants to be told of each member now.
    pub asks: bool,
    /// Numbers before this one it sends over this member no more.
    pub below: u16,
    /// The number that it waits for.
    pub next: Option<u16>,
    /// Numbered frames that it has sent over this member.
    pub sent: u32,
    /// Longest frame that it receives, in bytes.
    pub max_frame: u16,
}

impl Hello {
    /// The frame that says it.
    #[must_use]
    pub fn bytes(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..6].copy_from_slice(&GROUP.0);
        // Locally administered, and of nobody else's: no bridge learns it, no host has it.
        bytes[6] = 0x02;
        bytes[7..12].copy_from_slice(&self.epoch.to_be_bytes()[..5]);
        bytes[12..14].copy_from_slice(&ethertype::VLAN.to_be_bytes());
        let shown = Number { value: self.below % MODULUS, is_shared: false };
        bytes[14..16].copy_from_slice(&shown.tci().to_be_bytes());
        bytes[16..18].copy_from_slice(&ETHERTYPE.to_be_bytes());
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.is_numbered, NUMBERED)
            | flag(self.has_pieces, PIECES)
            | flag(self.next.is_some(), KNOWS_NEXT)
            | flag(self.asks, ASKS);
        let said = &mut bytes[HEADERS..];
        said[..4].copy_from_slice(&MAGIC);
        (said[4], said[5]) = (flags, self.member);
        said[6..8].copy_from_slice(&self.receives.to_be_bytes());
        said[8..16].copy_from_slice(&self.epoch.to_be_bytes());
        said[16..24].copy_from_slice(&self.heard.to_be_bytes());
        said[24..28].copy_from_slice(&self.count.to_be_bytes());
        said[28..30].copy_from_slice(&self.below.to_be_bytes());
        said[30..32].copy_from_slice(&self.next.unwrap_or_default().to_be_bytes());
        said[32..36].copy_from_slice(&self.sent.to_be_bytes());
        said[36..38].copy_from_slice(&self.max_frame.to_be_bytes());
        bytes
    }

    /// What a frame says. `None` where it is no hello. Whoever is at the other end may send
    /// anything.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Hello> {
        let said = bytes.get(HEADERS..HELLO_BYTES)?;
        let is_hello = bytes[..6] == GROUP.0
            && be16(bytes, 12) == ethertype::VLAN
            && be16(bytes, 16) == ETHERTYPE
            && said[..4] == MAGIC;
        if !is_hello {
            return None;
        }
        let wide = |at: usize| u64::from(be32(said, at)) << 32 | u64::from(be32(said, at + 4));
        Some(Hello {
            epoch: wide(8),
            heard: wide(16),
            count: be32(said, 24),
            member: said[5],
            receives: be16(said, 6),
            is_numbered: said[4] & NUMBERED != 0,
            has_pieces: said[4] & PIECES != 0,
            asks: said[4] & ASKS != 0,
            below: be16(said, 28) % MODULUS,
            next: (said[4] & KNOWS_NEXT != 0).then(|| be16(said, 30) % MODULUS),
            sent: be32(said, 32),
            max_frame: be16(said, 36),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read() {
        let hello = Hello {
            epoch: 0x0102_0304_0506_0708,
            heard: u64::MAX,
            count: 77,
            member: 3,
            receives: 0x8001,
            is_numbered: true,
            has_pieces: true,
            asks: true,
            below: 4093,
            next: Some(17),
            sent: u32::MAX,
            max_frame: 1518,
        };
        assert_eq!(Hello::read(&hello.bytes()), Some(hello));
        assert_eq!(Hello::read(&Hello { next: None, ..hello }.bytes()), Some(Hello { next: None, ..hello }));
    }

    #[test]
    fn what_is_cut_off_or_something_else_is_no_hello() {
        let bytes = Hello::default().bytes();
        assert!((0..HELLO_BYTES).all(|len| Hello::read(&bytes[..len]).is_none()));
        for at in [0, 12, 16, HEADERS] {
            let mut wrong = bytes;
            wrong[at] ^= 1;
            assert_eq!(Hello::read(&wrong), None, "byte {at}");
        }
    }
}
