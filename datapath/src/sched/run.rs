//! A run: frames of one sender that follow each other to the same receiver, and pass a tree in one
//! go.

use crate::stats::Traffic;

/// What trees and counters are to know of a run. None of its frames is to be cut, and each lies in
/// a small buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// How many they are.
    pub frames: u32,
    /// Their bytes.
    pub bytes: u64,
    /// The same on the wire.
    pub wire_bytes: u32,
    /// Those of the last one.
    pub last: u32,
    /// Those of the longest.
    pub longest: u32,
}

impl Run {
    /// One frame more, of so many bytes, and so many on the wire.
    #[inline(always)]
    pub fn add(&mut self, bytes: usize, wire_bytes: u32) {
        self.frames += 1;
        self.bytes += bytes as u64;
        self.wire_bytes += wire_bytes;
        self.last = wire_bytes;
        self.longest = self.longest.max(wire_bytes);
    }

    /// Wire bytes of all but the last one: what is to be paid for before that one goes.
    #[must_use]
    pub fn before_last(&self) -> u32 {
        self.wire_bytes - self.last
    }

    /// What they count for.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let frames = u64::from(self.frames);
        Traffic { frames, segments: frames, bytes: self.bytes, wire_bytes: u64::from(self.wire_bytes) }
    }
}
