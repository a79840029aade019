//! What addresses are in their networks: looked up twice for each frame of a network that has
//! services.
//!
//! Only the operator puts something in. So a hash does that is quick and that strangers can work
//! out: whoever asks for what hashes alike finds nothing, after as few steps.

use crate::network::Network;
use crate::wire::Mac;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::net::IpAddr;

use super::octets;

/// An IP address in its network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct At(u32, u128);

/// An Ethernet address in its network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MacAt(u32, u64);

/// By IP address.
pub(super) type Roles<V> = HashMap<At, V, BuildHasherDefault<Quick>>;
/// By Ethernet address.
pub(super) type Macs<V> = HashMap<MacAt, V, BuildHasherDefault<Quick>>;

impl At {
    #[inline]
    pub(super) fn new(network: Network, ip: IpAddr) -> At {
        At(network.0, u128::from_be_bytes(octets(ip)))
    }
}

impl MacAt {
    #[inline]
    pub(super) fn new(network: Network, mac: Mac) -> MacAt {
        let [a, b, c, d, e, f] = mac.0;
        MacAt(network.0, u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }
}

impl Hash for At {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64((self.1 >> 64) as u64 ^ u64::from(self.0) << 32);
        state.write_u64(self.1 as u64);
    }
}

impl Hash for MacAt {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.1 ^ u64::from(self.0) << 48);
    }
}

/// A multiplication a word, by 2^64 over the golden ratio (Knuth, volume 3, 6.4).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Quick(u64);

impl Hasher for Quick {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    #[inline]
    fn finish(&self) -> u64 {
        // The table takes its position from the low bits, and compares the high ones.
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}
