//! One port of a client has connections to two services that share their backends.

use super::*;

const OTHER: u8 = 101;
const OTHER_MAC: Mac = Mac([2, 0, 0, 0, 0, OTHER]);

/// A second service, of the same backends.
fn rig_of_two(policy: Policy, affinity_ns: u64, backends: &[Backend]) -> Rig {
    Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2), (0, 3), (0, 4)], |program| {
        let first = Service { affinity_ns, ..service(policy, backends.to_vec()) };
        let mut other = Service { mac: OTHER_MAC, ..first.clone() };
        other.addresses.iter_mut().for_each(|address| match &mut address.ip {
            IpAddr::V4(address) => *address = ip(OTHER),
            IpAddr::V6(address) => *address = v6(OTHER),
        });
        program.services.push(first);
        program.services.push(other);
    })
}

fn ask_other(port: u16, flags: u8, numbers: (u32, u32)) -> build::Build<'static> {
    tcp((1, port), (OTHER, 80), flags, numbers)
}

fn open_other(rig: &mut Rig, port: u16) -> u8 {
    let backend = rig.one(1, &ask_other(port, SYN, (99, 0))).0;
    let seen = rig.one(backend, &answer(backend as u8, port, SYN_ACK, (499, 100)));
    assert_eq!(seen, (1, tcp((OTHER, 80), (1, port), SYN_ACK, (499, 100)).bytes()));
    rig.one(1, &ask_other(port, ACK, (100, 500)));
    backend as u8
}

#[test]
fn a_client_port_is_used_at_a_backend_by_one_service_at_a_time() {
    for policy in Policy::ALL {
        for affinity_ns in [0, 60_000_000_000] {
            let mut rig = rig_of_two(policy, affinity_ns, &[backend(2, Some(1)), backend(3, Some(2))]);
            for port in 1..60 {
                let first = rig.open(port);
                assert_eq!(open_other(&mut rig, port), 5 - first, "{policy:?}");
                // Each goes on where it is.
                for (ask, from) in [(ask as fn(u16, u8, (u32, u32)) -> _, first), (ask_other, 5 - first)] {
                    assert_eq!(rig.one(1, &ask(port, ACK, (100, 500)).payload(vec![1; 9])).0, u32::from(from));
                }
                assert_eq!(rig.one(first.into(), &answer(first, port, ACK, (500, 109))).1, seen(port, ACK, (500, 109)));
            }
        }
    }
}

#[test]
fn where_no_backend_is_free_the_open_connection_goes_on_and_the_new_one_opens_behind_it() {
    let mut rig = rig_of_two(Policy::P2c, 0, &[backend(2, Some(1))]);
    rig.open(1);
    assert_eq!(rig.one(1, &ask_other(1, SYN, (3000, 0))).0, 2);
    // The backend takes the SYN for the open connection's, and says where that is (RFC 5961).
    let numbers = (500, 100);
    assert_eq!(rig.one(2, &answer(2, 1, ACK, numbers)).1, seen(1, ACK, numbers), "its client is told, not the new one");
    assert_eq!(rig.one(1, &ask(1, ACK, (100, 500)).payload(vec![1; 9])).0, 2);
    // It ends, and the next SYN is answered.
    rig.one(1, &ask(1, FIN_ACK, (109, 500)));
    rig.one(2, &answer(2, 1, FIN_ACK, (500, 110)));
    rig.one(1, &ask(1, ACK, (110, 501)));
    rig.one(1, &ask_other(1, SYN, (3000, 0)));
    let seen = rig.one(2, &answer(2, 1, SYN_ACK, (7000, 3001)));
    assert_eq!(seen, (1, tcp((OTHER, 80), (1, 1), SYN_ACK, (7000, 3001)).bytes()));
}

#[test]
fn services_share_backends_while_both_have_them() {
    let mut rig = rig_of_two(Policy::P2c, 0, &[backend(2, Some(1)), backend(3, Some(2))]);
    let shares = |rig: &Rig| rig.switch.services.share_backends();
    assert!(shares(&rig));
    let first = service(Policy::P2c, vec![backend(2, Some(1)), backend(3, Some(2))]);
    for (backends, wanted) in [(vec![backend(4, Some(3))], false), (first.backends.clone(), true), (vec![], false)] {
        rig.change_service(Service { backends, ..first.clone() });
        assert_eq!(shares(&rig), wanted);
    }
    // Two addresses of one service share them too.
    let mut both = first.clone();
    both.addresses.push(Address { port: 443, ..both.addresses[0] });
    rig.change_service(both);
    assert!(shares(&rig));
}

#[test]
fn what_is_over_is_not_in_the_way_and_no_answer_goes_to_it() {
    let mut rig = rig_of_two(Policy::Maglev, 0, &[backend(2, Some(1)), backend(3, Some(2))]);
    let port = (1..200).find(|&port| {
        let first = rig.open(port);
        rig.one(1, &ask(port, FIN_ACK, (100, 500)));
        rig.one(first.into(), &answer(first, port, FIN_ACK, (500, 101)));
        rig.one(1, &ask(port, ACK, (101, 501)));
        // What the backend answers is the new one's, though the entry of the old is there still.
        open_other(&mut rig, port) == first
    });
    assert!(port.is_some(), "the second service has candidates of its own");
}
