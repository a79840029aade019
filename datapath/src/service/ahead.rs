//! What the frames of a burst will look up in the table of connections, read all at once.
//!
//! With a million connections each lookup waits for memory: for a bucket, then for an entry. One
//! frame after the other waits each time. Here the buckets of all frames are read first, which wait
//! together, and then the entries. Nothing is decided and nothing changed: a frame for which the
//! wrong place is read, or none, only waits longer when its turn comes. So only what most frames
//! are is recognized: TCP and UDP over IPv4 without options, of clients and of backends.

use super::Services;
use super::entry::Key;
use crate::network::Network;
use crate::wire::{be16, be32, ipv4, protocol};
use core::hint::black_box;

/// Entries from which on it pays: what fewer take lies in the processor's caches.
const LEAST: u32 = 16_384;
/// Frames whose places are read together: as many as a worker reads at most.
const TOGETHER: usize = 32;

/// What a frame shows without being parsed: where its IPv4 header may be, and its VLAN tag.
pub struct Glance<'a> {
    packet: &'a [u8],
    /// Its tag, if it has one.
    pub vlan: Option<u16>,
}

impl<'a> Glance<'a> {
    /// `None` where it is no IPv4 packet, or has more tags.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Option<Glance<'a>> {
        const ETHERTYPE: usize = 12;
        const IPV4: u16 = 0x0800;
        const TAGGED: u16 = 0x8100;
        let (header, rest) = bytes.split_at_checked(ETHERTYPE + 6)?;
        match (be16(header, ETHERTYPE), be16(header, ETHERTYPE + 4)) {
            (IPV4, _) => Some(Glance { packet: bytes.get(ETHERTYPE + 2..)?, vlan: None }),
            (TAGGED, IPV4) => Some(Glance { packet: rest, vlan: Some(be16(header, ETHERTYPE + 2) & 0xfff) }),
            _ => None,
        }
    }
}

impl Services {
    /// Whether there are so many connections that reading ahead pays.
    #[must_use]
    #[inline]
    pub fn reads_ahead(&self) -> bool {
        self.connections.len().0 >= LEAST
    }

    /// Reads what the first of these frames, of these networks, will look up. `is_outside`: they
    /// come from there, so most are clients'.
    pub fn read_ahead<'a>(&self, is_outside: bool, frames: impl Iterator<Item = (Network, Glance<'a>)>) {
        let mut hashes = [0; TOGETHER];
        let mut count = 0;
        for (place, (network, glance)) in hashes.iter_mut().zip(frames) {
            let Some(key) = self.key_of(network, is_outside, &glance) else { continue };
            *place = self.connections.hash(&key);
            count += 1;
        }
        let hashes = if count > 1 { &hashes[..] } else { return };
        let table = self.connections.table();
        black_box(hashes.iter().fold(0, |all, &hash| all ^ table.warm(hash)));
        black_box(hashes.iter().fold(0, |all, &hash| all ^ table.warm_entry(hash)));
    }

    /// The connection that a frame is most likely of.
    pub(crate) fn key_of(&self, network: Network, is_outside: bool, glance: &Glance<'_>) -> Option<Key> {
        let (ip, rest) = glance.packet.split_first_chunk::<{ ipv4::LEN }>()?;
        let is_whole = be16(ip, 6) & 0x3fff == 0;
        if ip[0] != 0x45 || !is_whole || !matches!(ip[9], protocol::TCP | protocol::UDP) || rest.len() < 4 {
            return None;
        }
        let (source, destination) =
            ((be32(ip, 12).to_be_bytes(), be16(rest, 0)), (be32(ip, 16).to_be_bytes(), be16(rest, 2)));
        let role = |address: [u8; 4]| self.fronts.role(network, address.into());
        let as_client = || {
            let front = role(destination.0)?.front(ip[9], destination.1)?;
            Some(Key::of_v4(source.0, source.1, front))
        };
        let as_backend = || {
            let (front, _) = role(source.0)?.targets(ip[9], source.1).next()?;
            Some(Key::of_v4(destination.0, destination.1, front))
        };
        if is_outside { as_client().or_else(as_backend) } else { as_backend().or_else(as_client) }
    }
}
