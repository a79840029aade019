//! Fragments: only the first of a packet shows its ports, so what was done with it is done with
//! those that follow (RFC 791; RFC 8200, 4.5).

use super::connections::{BUCKETS, Opener};
use super::octets;
use super::shared::Shared;
use super::translate::{End, identification, set_end, set_mac, set_packet};
use crate::ids::EndpointId;
use crate::network::Network;
use crate::offload::Offload;
use crate::random::Keyed;
use crate::table::Id;
use crate::units::Instant;
use crate::wire::{L3, Layout, Mac, destination, source};
use std::net::IpAddr;

/// Packets in fragments that are remembered at once, by all owners.
const MOST: u32 = 4096;
/// For how long, in nanoseconds: as long as Linux waits for the rest of a packet.
const AGE_NS: u64 = 30_000_000_000;

/// What the fragments of a packet have in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct FragmentKey {
    network: u32,
    source: [u8; 16],
    destination: [u8; 16],
    identification: u32,
}

impl FragmentKey {
    /// That of a fragment.
    pub(super) fn of(network: Network, (from, to): (IpAddr, IpAddr), bytes: &[u8], layout: &Layout) -> FragmentKey {
        let number = identification(bytes, layout);
        let identification = match layout.l3 {
            L3::Ipv4 => number << 8 | u32::from(bytes[usize::from(layout.l3_offset) + 9]),
            _ => number,
        };
        FragmentKey { network: network.0, source: octets(from), destination: octets(to), identification }
    }
}

/// What is done with each fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Change {
    source: (Mac, IpAddr),
    destination: (Mac, IpAddr),
    /// The number of their packet, where that was changed.
    packet: u32,
    /// Who pays, where they go out again.
    pub(super) director: Option<EndpointId>,
}

impl Change {
    /// What makes another fragment like the first, which was changed already.
    pub(super) fn to(
        bytes: &[u8],
        layout: &Layout,
        (from, to): (IpAddr, IpAddr),
        director: Option<EndpointId>,
    ) -> Change {
        let packet = identification(bytes, layout);
        Change { source: (source(bytes), from), destination: (destination(bytes), to), packet, director }
    }

    /// Does it. Ports are not shown by later fragments.
    pub(super) fn apply(&self, bytes: &mut [u8], layout: &Layout, offload: &Offload) {
        for (end, (mac, ip)) in [(End::Source, self.source), (End::Destination, self.destination)] {
            set_mac(bytes, end, mac);
            set_end(bytes, layout, offload, end, (ip, 0));
        }
        set_packet(bytes, layout, self.packet);
    }
}

/// The packets that come in fragments, by owner.
#[derive(Debug)]
pub(super) struct Fragments {
    all: Shared<FragmentKey, Change, 1>,
    /// How many have services.
    owners: u32,
    /// The bucket whose old entries go next.
    cursor: u32,
}

impl Fragments {
    pub(super) fn new(keyed: Keyed) -> Fragments {
        Fragments { all: Shared::new(keyed, MOST), owners: 0, cursor: 0 }
    }

    /// Makes room for an owner, of so many that have services.
    pub(super) fn set_owner(&mut self, owner: u32, owners: u32) {
        self.owners = owners;
        self.all.reserve(owner);
    }

    pub(super) fn find(&self, key: &FragmentKey) -> Option<Id> {
        self.all.find(key)
    }

    pub(super) fn get(&self, id: Id) -> Option<Change> {
        self.all.get(id).copied()
    }

    /// Remembers what was done with the first fragment of a packet. Each owner has its part of the
    /// table.
    pub(super) fn insert(&mut self, now: Instant, opener: Opener, key: FragmentKey, change: Change) {
        let owner = opener.owner;
        if let Some(id) = self.all.find(&key) {
            self.all.remove(id);
        }
        self.cursor = (self.cursor + 1) % BUCKETS;
        for bucket in [opener.bucket, self.cursor] {
            while let Some(id) = self.all.aged(now, Opener { owner, bucket }, 0, AGE_NS) {
                self.all.remove(id);
            }
        }
        if self.all.count(owner) >= MOST / self.owners.max(1)
            && let Some(id) = self.all.first_to_go(owner, 0)
        {
            self.all.remove(id);
        }
        // Where others came to have services, who was there before may have more than its part.
        if self.all.is_full()
            && let Some(id) = self.all.fullest().and_then(|owner| self.all.first_to_go(owner, 0))
        {
            self.all.remove(id);
        }
        self.all.insert(now, opener, 0, (key, change));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> FragmentKey {
        FragmentKey { network: 0, source: [0; 16], destination: [0; 16], identification: n }
    }

    fn change() -> Change {
        let end = (Mac([0; 6]), IpAddr::from([10, 0, 0, 1]));
        Change { source: end, destination: end, packet: 0, director: None }
    }

    fn from(owner: u32, bucket: u32) -> Opener {
        Opener { owner, bucket }
    }

    #[test]
    fn a_part_is_that_of_tenants_with_services_whatever_their_numbers() {
        let mut fragments = Fragments::new(Keyed::new(1));
        fragments.set_owner(999, 1);
        for n in 0..MOST {
            fragments.insert(Instant(1), from(999, 7), key(n), change());
        }
        assert!((0..MOST).all(|n| fragments.find(&key(n)).is_some()), "it has them all");
        fragments.set_owner(3, 2);
        for n in MOST..2 * MOST {
            fragments.insert(Instant(1), from(3, 9), key(n), change());
        }
        let mine = (MOST..2 * MOST).filter(|&n| fragments.find(&key(n)).is_some()).count() as u32;
        assert_eq!(mine, MOST / 2, "another one has its part at once");
    }

    #[test]
    fn who_sends_many_has_its_own_forgotten() {
        let mut fragments = Fragments::new(Keyed::new(1));
        fragments.set_owner(0, 1);
        fragments.insert(Instant(1), from(0, 2), key(0), change());
        for n in 1..5000 {
            fragments.insert(Instant(2), from(0, 1), key(n), change());
        }
        assert!(fragments.find(&key(0)).is_some());
        assert_eq!((1..5000).filter(|&n| fragments.find(&key(n)).is_some()).count() as u32, MOST - 1);
        // What is old goes, whoever sends.
        for n in 5000..5000 + BUCKETS {
            fragments.insert(Instant(2 + AGE_NS), from(0, 3), key(n), change());
        }
        assert!((0..5000).all(|n| fragments.find(&key(n)).is_none()));
        assert_eq!(fragments.all.len(), BUCKETS);
    }
}
