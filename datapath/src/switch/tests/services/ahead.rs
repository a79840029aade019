//! What is read ahead for a frame is what its turn looks up.

use super::*;
use crate::network::Network;
use crate::service::Decision;
use crate::service::ahead::Glance;
use crate::service::entry::Key;
use proptest::prelude::*;

impl Rig {
    /// The connection that a frame at a port is guessed to be of, and the one that it is of.
    fn guessed(&mut self, port: u32, frame: &build::Build<'_>) -> (Option<Key>, Option<Key>) {
        let bytes = frame.bytes();
        let (layout, glance) = (parse(&bytes).unwrap(), Glance::of(&bytes));
        let from = (port > 0).then(|| EndpointId(port - 1));
        let network = match from {
            Some(from) => self.switch.forward.network(from),
            None => self.switch.forward.network_of_vlan(layout.vlan).unwrap_or(Network::UNTAGGED),
        };
        let services = &self.switch.services;
        let guess = glance.and_then(|glance| services.key_of(network, from.is_none(), &glance));
        let key = match services.decide(self.now, network, from, &bytes, &layout) {
            Decision::Forward(known) | Decision::Back(known) => Some(known.key),
            Decision::Choose(key, _) => Some(key),
            _ => None,
        };
        (guess, key)
    }
}

#[test]
fn a_frame_is_guessed_to_be_of_the_connection_that_it_is_of() {
    let mut rig = rig(Policy::RoundRobin);
    let backend = rig.open(7);
    let outside = |flags, numbers| tcp((77, 5), (100, 80), flags, numbers).vlan(10);
    assert_eq!(rig.one(0, &outside(SYN, (99, 0))).0, 3);
    let of_udp = eth(mac(1), MAC).ipv4(ip(1), ip(100)).udp(9, 53);
    let at = u32::from(backend);
    for (port, frame) in [
        (1, ask(7, ACK, (100, 500)).payload(vec![0; 9])),
        (1, ask(8, SYN, (1, 0))),
        (1, of_udp),
        (0, outside(ACK, (100, 500))),
        (0, tcp((78, 6), (100, 80), SYN, (1, 0)).vlan(10)),
        (at, answer(backend, 7, ACK, (500, 100)).payload(vec![0; 3000]).gso(1000)),
        (3, tcp((3, 8080), (77, 5), SYN_ACK, (9, 100))),
    ] {
        let (guess, key) = rig.guessed(port, &frame);
        assert!(key.is_some(), "{port}");
        assert_eq!(guess, key, "{port}");
    }
    // Where nothing is looked up, nothing is read: no service's, no first fragment, no IPv4.
    let none = [udp(1, 4), ask(7, ACK, (1, 1)).fragment(64, true), build::arp_request(mac(1), ip(1), ip(100))];
    for frame in none {
        assert_eq!(rig.guessed(1, &frame).0, None);
    }
}

proptest! {
    #[test]
    fn whatever_comes_is_looked_at_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..80), cut in 0..80usize) {
        let rig = rig(Policy::RoundRobin);
        let frame = ask(7, ACK, (100, 500)).bytes();
        for bytes in [&bytes[..], &frame[..cut.min(frame.len())]] {
            if let Some(glance) = Glance::of(bytes) {
                rig.switch.services.key_of(Network::UNTAGGED, true, &glance);
            }
        }
    }
}
