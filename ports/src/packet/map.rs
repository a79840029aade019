//! Maps: what BPF programs share with each other and with this process (bpf(2), `linux/bpf.h`).
//!
//! Keys and values are bytes in the machine's order, of a length that is fixed when the map is
//! made. A map of a kind that is kept for each processor has as many values under a key as
//! processors are possible: a program sees that of the one it runs on.

use std::ffi::c_int;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::bpf::{bpf, bpf_fd};

/// Commands of bpf(2).
const BPF_MAP_CREATE: c_int = 0;
const BPF_MAP_LOOKUP_ELEM: c_int = 1;
const BPF_MAP_UPDATE_ELEM: c_int = 2;
const BPF_MAP_DELETE_ELEM: c_int = 3;
/// Memory for an entry when it comes, not for all that may come (`BPF_F_NO_PREALLOC`).
const NO_PREALLOC: u32 = 1;
/// Which processors there may be.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// `BPF_MAP_TYPE_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Hash = 1,
    Array = 2,
    PerCpuHash = 5,
    PerCpuArray = 6,
}

/// A map that this process has made.
#[derive(Debug)]
pub(super) struct Map {
    fd: OwnedFd,
    key: usize,
    value: usize,
    /// Values under a key.
    copies: usize,
}

/// `struct` of BPF_MAP_CREATE, as far as it is used.
#[repr(C)]
struct Create {
    kind: u32,
    key: u32,
    value: u32,
    most: u32,
    flags: u32,
    inner: u32,
    numa_node: u32,
    name: [u8; 16],
}

/// The same of the commands that concern one entry.
#[repr(C)]
struct Entry {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl Map {
    /// A map for `most` entries of so many bytes; those of values are a multiple of 8 where there
    /// is one for each processor.
    pub fn new(kind: Kind, key: usize, value: usize, most: u32) -> io::Result<Map> {
        let is_hash = matches!(kind, Kind::Hash | Kind::PerCpuHash);
        let copies = if matches!(kind, Kind::PerCpuHash | Kind::PerCpuArray) { possible_processors()? } else { 1 };
        let mut create = Create {
            kind: kind as u32,
            key: key as u32,
            value: value as u32,
            most,
            flags: if is_hash { NO_PREALLOC } else { 0 },
            inner: 0,
            numa_node: 0,
            name: *b"levada\0\0\0\0\0\0\0\0\0\0",
        };
        if copies > 1 && !value.is_multiple_of(8) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: `Create` is BPF_MAP_CREATE's layout as far as it goes, and points to nothing.
        let fd = unsafe { bpf_fd(BPF_MAP_CREATE, &mut create) }?;
        Ok(Map { fd, key, value, copies })
    }

    /// The number by which a program that is loaded by this process names it.
    pub fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Puts `value` under `key`, for each processor.
    pub fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if value.len() != self.value {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut values = value.repeat(self.copies);
        self.do_with(BPF_MAP_UPDATE_ELEM, key, &mut values)
    }

    /// The values under `key`, one behind the other; `None` where there is no such entry.
    pub fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut values = vec![0; self.value * self.copies];
        match self.do_with(BPF_MAP_LOOKUP_ELEM, key, &mut values) {
            Ok(()) => Ok(Some(values)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes an entry away, if it is there.
    pub fn remove(&self, key: &[u8]) -> io::Result<()> {
        match self.do_with(BPF_MAP_DELETE_ELEM, key, &mut []) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// `values` has room for all values under a key, or the command does not touch them.
    fn do_with(&self, command: c_int, key: &[u8], values: &mut [u8]) -> io::Result<()> {
        if key.len() != self.key {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut entry = Entry {
            map: self.fd.as_raw_fd() as u32,
            padding: 0,
            key: key.as_ptr() as u64,
            // A command without one wants none.
            value: if values.is_empty() { 0 } else { values.as_mut_ptr() as u64 },
            flags: 0,
        };
        // SAFETY: `Entry` is the commands' layout. The kernel reads as many bytes of the key as the
        // map was made with, which are checked above, and reads or writes a value for each possible
        // processor, for which the callers have room.
        unsafe { bpf(command, &mut entry) }.map(drop)
    }
}

/// As many processors as there can ever be, or more: what the kernel writes when it is asked for
/// the values of all.
fn possible_processors() -> io::Result<usize> {
    let text = fs::read_to_string(POSSIBLE)?;
    let wrong = || io::Error::other(format!("{POSSIBLE} says {text:?}"));
    // Ranges in ascending order: `0-3` or `0-3,8-11`.
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.and_then(|last| last.checked_add(1)).ok_or_else(wrong)
}
