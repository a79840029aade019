//! The wire format of vhost-user requests: QEMU, `docs/interop/vhost-user.rst`, sections "Message
//! Specification" and "Front-end message types".
//!
//! A message is a header of three 32-bit words (request, flags, size of the payload) and a payload,
//! in the byte order of the machine. Descriptors come beside the first byte. Parsing is pure: bytes
//! in, a [`Request`] or a [`Fault`] out.

use std::fmt;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 12;
/// Longest payload that is read, in bytes. The longest that is known, a table of [`MOST_REGIONS`]
/// regions, has 1032.
pub const MOST_PAYLOAD: usize = 2048;
/// Regions of memory at most, as GET_MAX_MEM_SLOTS tells. QEMU has 2 to 4 without pluggable memory.
pub const MOST_REGIONS: usize = 32;

/// Version of the protocol, in the two lowest bits of the flags.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// In the payload of SET_VRING_KICK, CALL and ERR: no descriptor comes with it.
const NO_DESCRIPTOR: u64 = 1 << 8;
const RING_MASK: u64 = 0xff;

/// A region of the machine's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Where it is for the guest.
    pub guest: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Where it is for the front end.
    pub user: u64,
    /// Where it begins in its file.
    pub offset: u64,
}

/// Where the parts of a ring are, in the front end's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingAddresses {
    /// The descriptors.
    pub descriptors: u64,
    /// What the guest makes available.
    pub available: u64,
    /// What was used.
    pub used: u64,
}

/// What a front end wants.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Each is named as in the specification.
pub enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<Region>),
    SetVringNum(u32, u32),
    SetVringAddr(u32, RingAddresses),
    SetVringBase(u32, u32),
    GetVringBase(u32),
    /// The ring; whether a descriptor comes with it.
    SetVringKick(u32, bool),
    SetVringCall(u32, bool),
    SetVringErr(u32, bool),
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetVringEnable(u32, bool),
    NetSetMtu(u64),
    GetMaxMemSlots,
    AddMemReg(Region),
    RemMemReg(Region),
    SetStatus(u64),
    GetStatus,
    /// One that is not answered here, by its number.
    Other(u32),
}

/// The first three words of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Number of the request.
    pub request: u32,
    /// Whether it is to be acknowledged.
    pub need_reply: bool,
    /// Bytes that follow.
    pub size: usize,
}

/// Why bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Of another version.
    Version(u32),
    /// An answer to what nobody asked.
    Reply,
    /// Longer than any.
    Long(usize),
    /// The payload of this request has not as many bytes as it takes.
    Size(u32, usize),
    /// More regions than [`MOST_REGIONS`].
    Regions(u32),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Version(version) => {
                write!(f, "a message has version {version} of the protocol instead of {VERSION}")
            }
            Fault::Reply => write!(f, "a message is an answer, and nothing was asked"),
            Fault::Long(size) => write!(f, "a message has {size} bytes of payload, more than {MOST_PAYLOAD}"),
            Fault::Size(request, size) => {
                write!(f, "request {request} has {size} bytes of payload, which it cannot have")
            }
            Fault::Regions(count) => {
                write!(f, "its memory has {count} regions, more than {MOST_REGIONS}; give it fewer memory devices")
            }
        }
    }
}

impl std::error::Error for Fault {}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// [`Fault`]: no front end sends such.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Fault> {
        let (request, flags, size) = (u32_at(bytes, 0), u32_at(bytes, 4), u32_at(bytes, 8) as usize);
        if flags & VERSION_MASK != VERSION {
            return Err(Fault::Version(flags & VERSION_MASK));
        }
        if flags & REPLY != 0 {
            return Err(Fault::Reply);
        }
        if size > MOST_PAYLOAD {
            return Err(Fault::Long(size));
        }
        Ok(Header { request, need_reply: flags & NEED_REPLY != 0, size })
    }
}

impl Request {
    /// Reads the payload of a message with number `request`.
    ///
    /// # Errors
    /// [`Fault`]: its length does not fit, or it is too much.
    pub fn parse(request: u32, payload: &[u8]) -> Result<Request, Fault> {
        let long =
            |bytes: usize| if payload.len() == bytes { Ok(()) } else { Err(Fault::Size(request, payload.len())) };
        let word = || long(8).map(|()| u64_at(payload, 0));
        let state = || long(8).map(|()| (u32_at(payload, 0), u32_at(payload, 4)));
        let descriptor = || word().map(|word| ((word & RING_MASK) as u32, word & NO_DESCRIPTOR == 0));
        Ok(match request {
            1 => Request::GetFeatures,
            2 => Request::SetFeatures(word()?),
            3 => Request::SetOwner,
            4 => Request::ResetOwner,
            5 => Request::SetMemTable(table(payload)?),
            8 => state().map(|(ring, num)| Request::SetVringNum(ring, num))?,
            9 => {
                long(40)?;
                let (descriptors, used, available) = (u64_at(payload, 8), u64_at(payload, 16), u64_at(payload, 24));
                Request::SetVringAddr(u32_at(payload, 0), RingAddresses { descriptors, available, used })
            }
            10 => state().map(|(ring, base)| Request::SetVringBase(ring, base))?,
            11 => state().map(|(ring, _)| Request::GetVringBase(ring))?,
            12 => descriptor().map(|(ring, comes)| Request::SetVringKick(ring, comes))?,
            13 => descriptor().map(|(ring, comes)| Request::SetVringCall(ring, comes))?,
            14 => descriptor().map(|(ring, comes)| Request::SetVringErr(ring, comes))?,
            15 => Request::GetProtocolFeatures,
            16 => Request::SetProtocolFeatures(word()?),
            17 => Request::GetQueueNum,
            18 => state().map(|(ring, on)| Request::SetVringEnable(ring, on != 0))?,
            20 => Request::NetSetMtu(word()?),
            36 => Request::GetMaxMemSlots,
            37 => long(40).map(|()| Request::AddMemReg(region(payload, 8)))?,
            38 => long(40).map(|()| Request::RemMemReg(region(payload, 8)))?,
            39 => Request::SetStatus(word()?),
            40 => Request::GetStatus,
            other => Request::Other(other),
        })
    }

    /// The message of this request, for a front end's side; none for [`Request::Other`].
    #[must_use]
    pub fn message(&self, need_reply: bool) -> Option<Vec<u8>> {
        let state = |ring: u32, num: u32| [ring.to_ne_bytes(), num.to_ne_bytes()].concat();
        let descriptor =
            |ring: u32, comes: bool| (u64::from(ring) | if comes { 0 } else { NO_DESCRIPTOR }).to_ne_bytes().to_vec();
        let (number, payload) = match self {
            Request::GetFeatures => (1, vec![]),
            Request::SetFeatures(bits) => (2, bits.to_ne_bytes().to_vec()),
            Request::SetOwner => (3, vec![]),
            Request::ResetOwner => (4, vec![]),
            Request::SetMemTable(regions) => {
                let count = regions.len() as u32;
                (5, regions.iter().fold(state(count, 0), |all, region| [all, words(region)].concat()))
            }
            Request::SetVringNum(ring, num) => (8, state(*ring, *num)),
            Request::SetVringAddr(ring, place) => {
                let words = [place.descriptors, place.used, place.available, 0].map(u64::to_ne_bytes).concat();
                (9, [state(*ring, 0), words].concat())
            }
            Request::SetVringBase(ring, base) => (10, state(*ring, *base)),
            Request::GetVringBase(ring) => (11, state(*ring, 0)),
            Request::SetVringKick(ring, comes) => (12, descriptor(*ring, *comes)),
            Request::SetVringCall(ring, comes) => (13, descriptor(*ring, *comes)),
            Request::SetVringErr(ring, comes) => (14, descriptor(*ring, *comes)),
            Request::GetProtocolFeatures => (15, vec![]),
            Request::SetProtocolFeatures(bits) => (16, bits.to_ne_bytes().to_vec()),
            Request::GetQueueNum => (17, vec![]),
            Request::SetVringEnable(ring, on) => (18, state(*ring, u32::from(*on))),
            Request::NetSetMtu(mtu) => (20, mtu.to_ne_bytes().to_vec()),
            Request::GetMaxMemSlots => (36, vec![]),
            Request::AddMemReg(region) => (37, [0u64.to_ne_bytes().to_vec(), words(region)].concat()),
            Request::RemMemReg(region) => (38, [0u64.to_ne_bytes().to_vec(), words(region)].concat()),
            Request::SetStatus(status) => (39, status.to_ne_bytes().to_vec()),
            Request::GetStatus => (40, vec![]),
            Request::Other(_) => return None,
        };
        Some(message(number, VERSION | if need_reply { NEED_REPLY } else { 0 }, &payload))
    }
}

/// The answer to message number `request`.
#[must_use]
pub fn answer(request: u32, payload: &[u8]) -> Vec<u8> {
    message(request, VERSION | REPLY, payload)
}

fn message(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [request, flags, payload.len() as u32].map(u32::to_ne_bytes).concat();
    bytes.extend_from_slice(payload);
    bytes
}

fn table(payload: &[u8]) -> Result<Vec<Region>, Fault> {
    const REGION: usize = 32;
    let wrong = Fault::Size(5, payload.len());
    if payload.len() < 8 {
        return Err(wrong);
    }
    let count = u32_at(payload, 0);
    if count as usize > MOST_REGIONS {
        return Err(Fault::Regions(count));
    }
    // QEMU sends what is there; others always a table for eight.
    if payload.len() < 8 + REGION * count as usize {
        return Err(wrong);
    }
    Ok((0..count as usize).map(|i| region(payload, 8 + REGION * i)).collect())
}

fn region(bytes: &[u8], at: usize) -> Region {
    let [guest, bytes, user, offset] = [0, 8, 16, 24].map(|i| u64_at(bytes, at + i));
    Region { guest, bytes, user, offset }
}

fn words(region: &Region) -> Vec<u8> {
    [region.guest, region.bytes, region.user, region.offset].map(u64::to_ne_bytes).concat()
}

/// A word; its place has been looked at.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(bytes: &[u8]) -> Result<Request, Fault> {
        let header = Header::parse(bytes[..HEADER_BYTES].try_into().unwrap())?;
        assert_eq!(header.size, bytes.len() - HEADER_BYTES);
        Request::parse(header.request, &bytes[HEADER_BYTES..])
    }

    #[test]
    fn what_is_written_is_read() {
        let region = Region { guest: 1, bytes: 2, user: 3, offset: 4 };
        let place = RingAddresses { descriptors: 16, available: 32, used: 48 };
        for request in [
            Request::GetFeatures,
            Request::SetFeatures(u64::MAX),
            Request::SetOwner,
            Request::ResetOwner,
            Request::SetMemTable(vec![]),
            Request::SetMemTable(vec![region; MOST_REGIONS]),
            Request::SetVringNum(1, 1024),
            Request::SetVringAddr(2, place),
            Request::SetVringBase(3, 7),
            Request::GetVringBase(4),
            Request::SetVringKick(5, true),
            Request::SetVringCall(6, false),
            Request::SetVringErr(7, true),
            Request::GetProtocolFeatures,
            Request::SetProtocolFeatures(9),
            Request::GetQueueNum,
            Request::SetVringEnable(8, true),
            Request::NetSetMtu(1500),
            Request::GetMaxMemSlots,
            Request::AddMemReg(region),
            Request::RemMemReg(region),
            Request::SetStatus(15),
            Request::GetStatus,
        ] {
            let message = request.message(true).unwrap();
            assert_eq!(parsed(&message), Ok(request));
        }
    }

    #[test]
    fn what_is_no_message_is_refused_by_name() {
        let header = |request: u32, flags: u32, size: u32| {
            Header::parse([request, flags, size].map(u32::to_ne_bytes).concat().as_slice().try_into().unwrap())
        };
        assert_eq!(header(1, 2, 0), Err(Fault::Version(2)));
        assert_eq!(header(1, 5, 0), Err(Fault::Reply));
        assert_eq!(header(1, 1, 2049), Err(Fault::Long(2049)));
        assert_eq!(Request::parse(2, &[0; 7]), Err(Fault::Size(2, 7)));
        assert_eq!(Request::parse(9, &[0; 39]), Err(Fault::Size(9, 39)));
        assert_eq!(Request::parse(5, &[0; 4]), Err(Fault::Size(5, 4)));
        let many = [33u32.to_ne_bytes(), [0; 4]].concat();
        assert_eq!(Request::parse(5, &many), Err(Fault::Regions(33)));
        let short = [2u32.to_ne_bytes().to_vec(), vec![0; 4 + 63]].concat();
        assert_eq!(Request::parse(5, &short), Err(Fault::Size(5, 71)));
        assert_eq!(Request::parse(99, &[]), Ok(Request::Other(99)));
    }
}
