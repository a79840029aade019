//! What agents say to each other, as bytes.
//!
//! A datagram is at most [`MAX_DATAGRAM`] bytes and stands alone: what it says of one pair does not
//! depend on another datagram having come. Numbers are big-endian.
//!
//! ```text
//! version 1 | reserved 1 (0) | lease 2 (ms) | life 8 | sequence 8
//! then until the end groups: length of name 1 | receiver's tenant's name | pairs 1 | pairs x (receiver 6 | sender 6 | rate 7 | phase 1)
//! ```
//! Rates are in 256 bit/s. Rate and phase of 0 lift the limit, of all ones they halve what the
//! sender may send to everyone (Gatekeeper's notification). `life` grows with each start of the
//! speaker, `sequence` with each of its datagrams to this host; what came before is told by them
//! from what is new.

use datapath::units::Rate;
use datapath::wire::Mac;
use std::fmt;

/// The version that is spoken and understood.
pub const VERSION: u8 = 1;
/// Most bytes of a datagram: fits every path that carries IPv6 (RFC 8200, 1280 bytes) with QUIC's
/// and UDP's headers around it.
pub const MAX_DATAGRAM: usize = 1200;
/// Bytes before the groups.
const HEAD: usize = 20;
/// Bytes of a pair.
const PAIR: usize = 20;
/// The bits of the phase.
const PHASE: u64 = 0xff;
/// Longest name of a tenant, in bytes.
pub const MAX_NAME: usize = 48;
/// Most pairs of a group: their number is one byte.
const MAX_GROUP: usize = 255;

/// What is said of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Say {
    /// The sender may send this much to the receiver, for as long as the lease runs. If that is a
    /// new limit for it, it waits for so much of the time of a frame, of 256, before it sends the
    /// first: then those that have to share do not meet on the way.
    Rate(Rate, u8),
    /// It may send what it likes.
    Lift,
    /// Its sending, to whomever, is to be halved.
    Halve,
}

/// One pair, and what is said of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair<'a> {
    /// The receiver's tenant. In the untagged network the sender may be another's.
    pub tenant: &'a str,
    /// The receiving endpoint's address.
    pub to: Mac,
    /// The sending endpoint's address.
    pub from: Mac,
    /// What is said.
    pub say: Say,
}

/// A datagram's fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// For how long rates hold, in milliseconds.
    pub lease_ms: u16,
    /// Which start of the speaker this is.
    pub life: u64,
    /// Which datagram to this host since then.
    pub sequence: u64,
    /// What it says.
    pub pairs: Vec<Pair<'a>>,
}

/// Why bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageError {
    /// Longer than any message.
    TooLong(usize),
    /// It ends in the middle of something.
    Cut,
    /// A version that is not understood.
    Version(u8),
    /// A tenant's name that is empty, too long or no text, a group without pairs, or a reserved
    /// byte that is set.
    Malformed,
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MessageError::TooLong(bytes) => write!(f, "{bytes} bytes are more than {MAX_DATAGRAM}"),
            MessageError::Cut => write!(f, "the message ends too early"),
            MessageError::Version(version) => write!(f, "version {version} is not understood, {VERSION} is"),
            MessageError::Malformed => write!(f, "the message is malformed"),
        }
    }
}

impl std::error::Error for MessageError {}

impl<'a> Message<'a> {
    /// Reads a datagram.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(datagram: &'a [u8]) -> Result<Message<'a>, MessageError> {
        if datagram.len() > MAX_DATAGRAM {
            return Err(MessageError::TooLong(datagram.len()));
        }
        let mut rest = Reader(datagram);
        let version = rest.byte()?;
        if version != VERSION {
            return Err(MessageError::Version(version));
        }
        if rest.byte()? != 0 {
            return Err(MessageError::Malformed);
        }
        let lease_ms = u16::from_be_bytes(rest.array()?);
        let (life, sequence) = (rest.number()?, rest.number()?);
        let mut pairs = Vec::new();
        while !rest.0.is_empty() {
            let length = usize::from(rest.byte()?);
            let tenant = std::str::from_utf8(rest.bytes(length)?).map_err(|_| MessageError::Malformed)?;
            let count = rest.byte()?;
            if tenant.is_empty() || tenant.len() > MAX_NAME || count == 0 {
                return Err(MessageError::Malformed);
            }
            for _ in 0..count {
                let (to, from) = (Mac(rest.array()?), Mac(rest.array()?));
                let say = match rest.number()? {
                    0 => Say::Lift,
                    u64::MAX => Say::Halve,
                    bps => Say::Rate(Rate(bps & !PHASE), (bps & PHASE) as u8),
                };
                pairs.push(Pair { tenant, to, from, say });
            }
        }
        Ok(Message { lease_ms, life, sequence, pairs })
    }
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, n: usize) -> Result<&'a [u8], MessageError> {
        let (bytes, rest) = self.0.split_at_checked(n).ok_or(MessageError::Cut)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8, MessageError> {
        Ok(self.array::<1>()?[0])
    }

    fn number(&mut self) -> Result<u64, MessageError> {
        Ok(u64::from_be_bytes(self.array()?))
    }
}

/// A datagram that is being written.
#[derive(Debug)]
pub struct Writer {
    bytes: Vec<u8>,
    /// Where the length of the open group's name stands; none is open before the first pair.
    group: Option<usize>,
}

impl Writer {
    /// A datagram without pairs.
    #[must_use]
    pub fn new(lease_ms: u16, life: u64, sequence: u64) -> Writer {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend([VERSION, 0]);
        bytes.extend(lease_ms.to_be_bytes());
        bytes.extend(life.to_be_bytes());
        bytes.extend(sequence.to_be_bytes());
        Writer { bytes, group: None }
    }

    /// Adds a pair; false, and nothing is added, where it does not fit any more. The tenant's name
    /// must be one that a configuration may have.
    pub fn add(&mut self, pair: &Pair<'_>) -> bool {
        let group = self.group.filter(|&at| {
            let name = &self.bytes[at + 1..][..usize::from(self.bytes[at])];
            name == pair.tenant.as_bytes() && usize::from(self.bytes[at + 1 + name.len()]) < MAX_GROUP
        });
        let opens = if group.is_some() { 0 } else { 2 + pair.tenant.len() };
        if self.bytes.len() + opens + PAIR > MAX_DATAGRAM || pair.tenant.is_empty() || pair.tenant.len() > MAX_NAME {
            return false;
        }
        let at = group.unwrap_or_else(|| {
            let at = self.bytes.len();
            self.bytes.push(pair.tenant.len() as u8);
            self.bytes.extend(pair.tenant.as_bytes());
            self.bytes.push(0);
            self.group = Some(at);
            at
        });
        let count = at + 1 + pair.tenant.len();
        self.bytes[count] += 1;
        self.bytes.extend(pair.to.0);
        self.bytes.extend(pair.from.0);
        let number = match pair.say {
            Say::Lift => 0,
            Say::Halve => u64::MAX,
            Say::Rate(Rate(bps), phase) => (bps & !PHASE | u64::from(phase)).clamp(1, u64::MAX - 1),
        };
        self.bytes.extend(number.to_be_bytes());
        true
    }

    /// Whether there is any pair in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == HEAD
    }

    /// The datagram.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(tenant: &str, n: u8, say: Say) -> Pair<'_> {
        Pair { tenant, to: Mac([2, 0, 0, 0, 0, n]), from: Mac([2, 0, 0, 0, 1, n]), say }
    }

    #[test]
    fn what_is_written_is_read() {
        let pairs = [
            pair("red", 1, Say::Rate(Rate(256), 0)),
            pair("red", 2, Say::Lift),
            pair("blue", 1, Say::Halve),
            pair("red", 3, Say::Rate(Rate(400_000_000_000), 255)),
        ];
        let mut writer = Writer::new(250, 7, 9);
        assert!(writer.is_empty());
        assert!(pairs.iter().all(|pair| writer.add(pair)));
        let bytes = writer.finish();
        let message = Message::read(&bytes).unwrap();
        assert_eq!(message, Message { lease_ms: 250, life: 7, sequence: 9, pairs: pairs.to_vec() });
    }

    #[test]
    fn a_datagram_has_a_bound_and_says_when_it_is_full() {
        let mut writer = Writer::new(250, 7, 9);
        let long = "a-name-as-long-as-any-that-configurations-may-hav";
        assert_eq!(long.len(), MAX_NAME + 1);
        assert!(!writer.add(&pair(long, 0, Say::Lift)));
        let mut added = 0;
        while writer.add(&pair("red", added, Say::Lift)) {
            added += 1;
        }
        let bytes = writer.finish();
        assert!(added >= 58 && bytes.len() <= MAX_DATAGRAM, "{added} pairs in {} bytes", bytes.len());
        assert_eq!(Message::read(&bytes).unwrap().pairs.len(), usize::from(added));
    }

    #[test]
    fn every_cut_and_every_wrong_byte_of_the_frame_is_refused() {
        let mut writer = Writer::new(250, 7, 9);
        assert!(writer.add(&pair("red", 1, Say::Lift)));
        let bytes = writer.finish();
        for length in (0..bytes.len()).filter(|&length| length != HEAD) {
            assert_eq!(Message::read(&bytes[..length]), Err(MessageError::Cut), "{length} bytes");
        }
        let spoilt = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            Message::read(&bytes).map(|message| message.pairs.len())
        };
        assert_eq!(spoilt(0, 2), Err(MessageError::Version(2)));
        assert_eq!(spoilt(1, 1), Err(MessageError::Malformed));
        assert_eq!(spoilt(HEAD, 0), Err(MessageError::Malformed));
        assert_eq!(spoilt(HEAD + 1, 0xff), Err(MessageError::Malformed), "no text");
        assert_eq!(spoilt(HEAD + 4, 0), Err(MessageError::Malformed), "no pairs");
        assert_eq!(spoilt(HEAD + 4, 2), Err(MessageError::Cut));
        assert_eq!(Message::read(&[1; MAX_DATAGRAM + 1]), Err(MessageError::TooLong(MAX_DATAGRAM + 1)));
    }
}
