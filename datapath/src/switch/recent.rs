//! Where frames went last: the next one mostly goes there too, and need not be looked up.
//!
//! Where no address of a network is learned, the program alone says who has one and what is
//! outside. So what was found holds until the program changes, and any change makes all of it
//! forgotten. An endpoint has one entry, for the destination of its last frame, and a network has
//! one, for the last source outside: nobody makes another's forgotten, and what strangers send
//! makes nothing grow.

use super::Switch;
use crate::forward::Target;
use crate::network::{Network, slot};
use crate::program::EndpointId;
use crate::units::Instant;
use crate::wire::Mac;

/// What was found for an address, and after how many changes.
#[derive(Clone, Copy, Debug)]
struct Found<T> {
    mac: Mac,
    changes: u64,
    what: T,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// Changes so far. No entry was found after none.
    changes: u64,
    /// By endpoint.
    targets: Vec<Found<Target>>,
    /// By network.
    outside: Vec<Found<()>>,
}

impl Recent {
    /// Makes room for endpoints 0..`endpoints`.
    pub fn reserve(&mut self, endpoints: usize) {
        self.targets.reserve(endpoints.saturating_sub(self.targets.len()));
    }

    /// The program is to change: nothing that was found holds, and there may be as many endpoints
    /// and networks.
    pub fn forget(&mut self, endpoints: usize, networks: usize) {
        self.changes += 1;
        let none = Found { mac: Mac::default(), changes: 0, what: Target::Nowhere };
        if self.targets.len() < endpoints {
            self.targets.resize(endpoints, none);
        }
        if self.outside.len() < networks {
            self.outside.resize(networks, Found { mac: none.mac, changes: 0, what: () });
        }
    }

    #[inline]
    pub fn target(&self, from: EndpointId, mac: Mac) -> Option<Target> {
        let found = self.targets.get(from.0 as usize)?;
        (found.mac == mac && found.changes == self.changes).then_some(found.what)
    }

    #[inline]
    fn is_outside(&self, network: Network, mac: Mac) -> bool {
        let found = self.outside.get(slot(network));
        found.is_some_and(|found| found.mac == mac && found.changes == self.changes)
    }
}

impl Switch {
    /// [`Switch::target`], from what was found for the endpoint's last frame where that was for the
    /// same address.
    #[inline]
    pub(super) fn recent_target(&mut self, now: Instant, from: EndpointId, vlan: u16, mac: Mac) -> Target {
        if let Some(target) = self.recent.target(from, mac) {
            debug_assert_eq!(target, self.forward.target(&self.fdb, now, self.forward.network(from), vlan, mac));
            return target;
        }
        self.find_target(now, from, vlan, mac)
    }

    #[inline(never)]
    fn find_target(&mut self, now: Instant, from: EndpointId, vlan: u16, mac: Mac) -> Target {
        let network = self.forward.network(from);
        let what = self.forward.target(&self.fdb, now, network, vlan, mac);
        if !self.forward.learns(network)
            && let Some(found) = self.recent.targets.get_mut(from.0 as usize)
        {
            *found = Found { mac, changes: self.recent.changes, what };
        }
        what
    }

    /// Whether an address was the source of the last frame from outside, which nobody here has.
    #[inline]
    pub(super) fn was_outside(&self, network: Network, mac: Mac) -> bool {
        let was = self.recent.is_outside(network, mac);
        debug_assert!(!was || !self.forward.learns(network) && self.fdb.declared(network, mac).is_none());
        was
    }

    /// Nobody here has the address of a frame from outside.
    #[inline]
    pub(super) fn note_outside(&mut self, network: Network, mac: Mac) {
        let changes = self.recent.changes;
        if let Some(found) = self.recent.outside.get_mut(slot(network)) {
            *found = Found { mac, changes, what: () };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::guard::Identity;
    use crate::program::Endpoint;
    use crate::switch::chaos::{OUTSIDE, Rig, endpoint, learning, mac, program, udp};
    use crate::verdict::{Reason, Verdict};

    /// Each frame is sent twice, so that the second finds what the first has left.
    fn goes_to(rig: &mut Rig, port: u32, from: u32, to: u32) -> Vec<u32> {
        for _ in 0..2 {
            rig.rx(port, &udp(from, to, vec![]));
        }
        rig.ports()
    }

    #[test]
    fn a_change_makes_what_was_found_forgotten() {
        let mut rig = Rig::new(&program(&[endpoint(0, 0), endpoint(1, 0), endpoint(2, 0)]));
        assert_eq!(goes_to(&mut rig, 1, 0, 1), [2, 2]);
        let identity = Identity { macs: vec![mac(7)], ..Identity::default() };
        rig.add(1, Endpoint { identity, ..endpoint(1, 0) });
        assert_eq!(goes_to(&mut rig, 1, 0, 1), [0, 0], "nobody here has it");
        let identity = Identity { macs: vec![mac(1), mac(2)], ..Identity::default() };
        rig.add(2, Endpoint { identity, ..endpoint(2, 0) });
        assert_eq!(goes_to(&mut rig, 1, 0, 1), [3, 3]);
        rig.remove(2);
        assert_eq!(goes_to(&mut rig, 1, 0, 1), [0, 0]);
        rig.add(2, learning(2, 0));
        assert_eq!(goes_to(&mut rig, 1, 0, 1), [0, 0, 3, 3], "it may be behind one that is learned");
    }

    #[test]
    fn who_was_outside_may_be_here_after_a_change() {
        let mut rig = Rig::new(&program(&[endpoint(0, 0), endpoint(1, 0)]));
        let from_outside = udp(OUTSIDE, 0, vec![]).vlan(10);
        for _ in 0..3 {
            assert_eq!(rig.rx(0, &from_outside), Verdict::Forwarded);
        }
        let identity = Identity { macs: vec![mac(OUTSIDE)], ..Identity::default() };
        rig.add(1, Endpoint { identity, ..endpoint(1, 0) });
        assert_eq!(rig.rx(0, &from_outside), Verdict::Dropped(Reason::Loop));
        assert_eq!(rig.ports(), [1, 1, 1]);
    }
}
