//! Reading big-endian numbers from bytes that may end anywhere.

use std::fmt;

/// Why bytes are not what they are said to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bad {
    /// What was being read.
    pub what: &'static str,
    /// What is wrong with it.
    pub why: &'static str,
}

impl Bad {
    pub(super) const fn new(what: &'static str, why: &'static str) -> Bad {
        Bad { what, why }
    }
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.what, self.why)
    }
}

/// Bytes that are read from the front.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Bytes<'a> {
    pub(super) fn new(rest: &'a [u8], what: &'static str) -> Bytes<'a> {
        Bytes { rest, what }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], Bad> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Bad::new(self.what, "ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn skip(&mut self, count: usize) -> Result<(), Bad> {
        self.take(count).map(drop)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Bad> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Bad::new(self.what, "ends too early"))?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Bad> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Bad> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Bad> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Bad> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn u128(&mut self) -> Result<u128, Bad> {
        self.array().map(u128::from_be_bytes)
    }

    /// A part whose length, which counts the part's own header of `header` bytes from here on,
    /// stands `at` bytes from here. The part without nothing left out.
    pub(super) fn part(&mut self, at: usize, header: usize, what: &'static str) -> Result<Bytes<'a>, Bad> {
        let mut ahead = Bytes::new(self.rest, what);
        ahead.skip(at)?;
        let length = usize::from(ahead.u16()?);
        if length < header {
            return Err(Bad::new(what, "says that it is shorter than its own header"));
        }
        let taken = self.rest.get(..length).ok_or(Bad::new(what, "says that it is longer than what holds it"))?;
        self.rest = &self.rest[length..];
        Ok(Bytes::new(taken, what))
    }
}

/// Fills up with zeros to a multiple of 8 from `start` on, which is how OpenFlow aligns.
pub(super) fn pad(out: &mut Vec<u8>, start: usize) {
    let length = (out.len() - start).next_multiple_of(8);
    out.resize(start + length, 0);
}

pub(super) fn put16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// Writes the length of what began at `start` into the two bytes at `at`; at most 65 535: a message
/// that is longer is not sent.
pub(super) fn set_length(out: &mut [u8], start: usize, at: usize) {
    let length = (out.len() - start).min(usize::from(u16::MAX)) as u16;
    out[at..at + 2].copy_from_slice(&length.to_be_bytes());
}
