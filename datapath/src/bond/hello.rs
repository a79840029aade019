//! Hellos: what two Levada bonds send each other on every member.
//!
//! A hello names its sender, the bond that the sender receives, and the members on which it does
//! so. It also has the number below which nothing more is sent over this member. Its destination is
//! a group address that bridges do not forward, so only the other end of the cable receives it. Its
//! tag is a number's: if it arrives, numbers arrive too. With bridges between the two bonds, the
//! address is one that they forward, and the tag is a shim ([`Encoding::Shim`]).
//!
//! If both ends have a secret, a hello ends with a hash of all of it under that secret. The hash is
//! SipHash-2-4 of 128 bits (Aumasson and Bernstein 2012), a message authentication code. The hello
//! also repeats the other end's challenge on this member. So a recorded hello is of no use on
//! another member, or later.

use super::number::{Encoding, MODULUS, Number};
use crate::wire::{Mac, be16, be32};
use siphasher::sip128::{Hasher128 as _, SipHasher24};
use std::fmt;
use std::hash::Hasher as _;

/// The group address of link-layer discovery (nearest bridge), which no bridge forwards (IEEE
/// 802.1Q-2018, table 8-1).
const GROUP: Mac = Mac([0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e]);
/// EtherType for local experiments (IEEE 802-2014, table 1).
const ETHERTYPE: u16 = 0x88b5;
/// A hello begins with this, and its form: without a secret, or with one.
const MAGIC: [u8; 3] = *b"LvB";
const PLAIN: u8 = 1;
const KEYED: u8 = 2;
/// Bytes of the headers before the contents, tag included.
const HEADERS: usize = 18;
/// Bytes of a hello, headers included: what fits into the shortest frame with a tag.
pub const HELLO_BYTES: usize = HEADERS + 46;
/// The same with a secret: both challenges and the hash.
pub const KEYED_BYTES: usize = HASH_AT + HASH;
const CHALLENGE_AT: usize = HELLO_BYTES;
const ANSWER_AT: usize = CHALLENGE_AT + 8;
const HASH_AT: usize = ANSWER_AT + 8;
const HASH: usize = 16;

const NUMBERED: u8 = 1;
const PIECES: u8 = 1 << 1;
const KNOWS_NEXT: u8 = 1 << 2;
const ASKS: u8 = 1 << 3;

/// The secret of two bonds, as hellos are hashed with it. It is never shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HelloKey(pub [u8; 16]);

impl fmt::Debug for HelloKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HelloKey")
    }
}

impl HelloKey {
    /// The hash of all bytes before it.
    fn hash(&self, bytes: &[u8]) -> [u8; HASH] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(bytes);
        hasher.finish128().as_bytes()
    }
}

/// What a hello under a secret also has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Challenge {
    /// What the next hello of the other end on this member must repeat.
    pub own: u64,
    /// The other end's last challenge.
    pub answer: u64,
}

/// A hello as a frame.
#[derive(Clone, Copy, Debug)]
pub struct HelloFrame {
    bytes: [u8; KEYED_BYTES],
    len: usize,
}

impl HelloFrame {
    /// The frame.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The destination of hellos with this encoding.
fn group(encoding: Encoding) -> Mac {
    match encoding {
        Encoding::Tag => GROUP,
        Encoding::Shim => Mac::BONDS,
    }
}

/// Whether a frame is a hello, of any form.
#[must_use]
pub fn is_hello(bytes: &[u8]) -> bool {
    let group_of = |encoding: Encoding| bytes[..6] == group(encoding).0 && be16(bytes, 12) == encoding.ethertype();
    bytes.len() >= HELLO_BYTES
        && [Encoding::Tag, Encoding::Shim].into_iter().any(group_of)
        && be16(bytes, 16) == ETHERTYPE
        && bytes[HEADERS..HEADERS + 3] == MAGIC
        && matches!(bytes[HEADERS + 3], PLAIN | KEYED)
}

/// What a bond sends on a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hello {
    /// Identifies the bond that sends it, and its run.
    pub epoch: u64,
    /// The bond that it receives hellos of; 0 for none.
    pub heard: u64,
    /// Counts its hellos, over all members.
    pub count: u32,
    /// The member over which it is sent, by the sender's number.
    pub member: u8,
    /// The members on which it receives from the other end, a bit each.
    pub receives: u16,
    /// Whether its frames have numbers.
    pub is_numbered: bool,
    /// Whether several frames with one number arrived that were one frame.
    pub has_pieces: bool,
    /// Whether it asks for a hello on each member now.
    pub asks: bool,
    /// It sends no number below this over this member any more.
    pub below: u16,
    /// The number that it waits for.
    pub next: Option<u16>,
    /// Numbered frames sent over this member.
    pub sent: u32,
    /// Longest frame that it receives, in bytes.
    pub max_frame: u16,
    /// How the hello and numbers are sent.
    pub encoding: Encoding,
}

impl Hello {
    /// The frame, with a secret or without.
    #[must_use]
    pub fn frame(&self, keyed: Option<(&HelloKey, Challenge)>) -> HelloFrame {
        let mut frame = HelloFrame { bytes: [0; KEYED_BYTES], len: HELLO_BYTES };
        frame.bytes[..HELLO_BYTES].copy_from_slice(&self.bytes());
        if let Some((key, challenge)) = keyed {
            frame.len = KEYED_BYTES;
            let bytes = &mut frame.bytes;
            bytes[HEADERS + 3] = KEYED;
            bytes[CHALLENGE_AT..ANSWER_AT].copy_from_slice(&challenge.own.to_be_bytes());
            bytes[ANSWER_AT..HASH_AT].copy_from_slice(&challenge.answer.to_be_bytes());
            let hash = key.hash(&bytes[..HASH_AT]);
            bytes[HASH_AT..].copy_from_slice(&hash);
        }
        frame
    }

    /// The same without a secret.
    #[must_use]
    pub fn bytes(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..6].copy_from_slice(&group(self.encoding).0);
        // Locally administered and derived from the epoch: no host has it.
        bytes[6] = 0x02;
        bytes[7..12].copy_from_slice(&self.epoch.to_be_bytes()[..5]);
        if self.encoding == Encoding::Shim {
            // A bridge that several members are connected to learns a different address at each
            // port.
            bytes[11] ^= self.member;
        }
        bytes[12..14].copy_from_slice(&self.encoding.ethertype().to_be_bytes());
        let shown = Number { value: self.below % MODULUS, is_shared: false };
        bytes[14..16].copy_from_slice(&shown.tci().to_be_bytes());
        bytes[16..18].copy_from_slice(&ETHERTYPE.to_be_bytes());
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.is_numbered, NUMBERED)
            | flag(self.has_pieces, PIECES)
            | flag(self.next.is_some(), KNOWS_NEXT)
            | flag(self.asks, ASKS);
        let said = &mut bytes[HEADERS..];
        said[..3].copy_from_slice(&MAGIC);
        said[3] = PLAIN;
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

    /// Reads a hello, with the challenges if there is a secret. `None` if the frame is no hello,
    /// has the other form or a wrong hash. The other end may send anything.
    #[must_use]
    pub fn read(bytes: &[u8], key: Option<&HelloKey>) -> Option<(Hello, Challenge)> {
        if !is_hello(bytes) || (bytes[HEADERS + 3] == KEYED) != key.is_some() {
            return None;
        }
        let wide = |at: usize| u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4));
        let challenge = match key {
            None => Challenge::default(),
            Some(key) if bytes.len() < KEYED_BYTES || !is_equal(&key.hash(&bytes[..HASH_AT]), &bytes[HASH_AT..]) => {
                return None;
            }
            Some(_) => Challenge { own: wide(CHALLENGE_AT), answer: wide(ANSWER_AT) },
        };
        let encoding = if bytes[..6] == GROUP.0 { Encoding::Tag } else { Encoding::Shim };
        Some((Hello { encoding, ..Hello::of(&bytes[HEADERS..HELLO_BYTES]) }, challenge))
    }

    fn of(said: &[u8]) -> Hello {
        let wide = |at: usize| u64::from(be32(said, at)) << 32 | u64::from(be32(said, at + 4));
        Hello {
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
            encoding: Encoding::Tag,
        }
    }
}

/// Whether a hash is right; the time does not depend on which byte is wrong.
fn is_equal(hash: &[u8; HASH], shown: &[u8]) -> bool {
    shown.len() >= HASH && hash.iter().zip(shown).fold(0, |wrong, (one, other)| wrong | (one ^ other)) == 0
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
            encoding: Encoding::Tag,
        };
        let read = |hello: &Hello| Hello::read(&hello.bytes(), None).map(|(read, _)| read);
        assert_eq!(read(&hello), Some(hello));
        let shimmed = Hello { encoding: Encoding::Shim, ..hello };
        assert_eq!(read(&shimmed), Some(shimmed));
        assert_eq!(read(&Hello { next: None, ..hello }), Some(Hello { next: None, ..hello }));
        let (key, challenge) = (HelloKey([7; 16]), Challenge { own: u64::MAX - 1, answer: 0x0102_0304_0506_0708 });
        let frame = hello.frame(Some((&key, challenge)));
        assert_eq!(Hello::read(frame.bytes(), Some(&key)), Some((hello, challenge)));
        assert_eq!(hello.frame(None).bytes(), hello.bytes());
    }

    /// Any changed bit, no secret, or another secret.
    #[test]
    fn what_was_changed_on_the_way_is_not_read() {
        let key = HelloKey(*b"0123456789abcdef");
        let hello = Hello { epoch: 1, heard: 2, count: 3, ..Hello::default() };
        let frame = hello.frame(Some((&key, Challenge { own: 4, answer: 5 })));
        for bit in 0..KEYED_BYTES * 8 {
            let mut bytes = frame.bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Hello::read(&bytes, Some(&key)), None, "bit {bit}");
        }
        assert_eq!(Hello::read(frame.bytes(), Some(&HelloKey([0; 16]))), None);
        assert_eq!(Hello::read(frame.bytes(), None), None);
        assert_eq!(Hello::read(&hello.bytes(), Some(&key)), None);
        assert!((0..KEYED_BYTES).all(|len| Hello::read(&frame.bytes()[..len], Some(&key)).is_none()));
        assert!(is_hello(frame.bytes()) && is_hello(&hello.bytes()), "but for the bond it is");
        assert_eq!(format!("{key:?}"), "HelloKey");
    }

    /// The test vector of the authors' reference code, for the key 0 to 15.
    #[test]
    fn the_hash_is_siphash() {
        let key = HelloKey(std::array::from_fn(|n| n as u8));
        let wanted = [0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93];
        assert_eq!(key.hash(&[]), wanted);
    }

    #[test]
    fn what_is_cut_off_or_something_else_is_no_hello() {
        let bytes = Hello::default().bytes();
        assert!((0..HELLO_BYTES).all(|len| Hello::read(&bytes[..len], None).is_none()));
        for at in [0, 12, 16, HEADERS] {
            let mut wrong = bytes;
            wrong[at] ^= 1;
            assert_eq!(Hello::read(&wrong, None), None, "byte {at}");
        }
    }
}
