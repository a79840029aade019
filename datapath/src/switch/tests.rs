//! Frames through the whole switch: who gets them, who must not, and what is counted.

use super::*;
use crate::frame::PoolLimits;
use crate::guard::Identity;
use crate::offload::OffloadSupport;
use crate::program::{Attachment, Change, Endpoint, PortFeatures, Share, Tenant, Uplink};
use crate::units::Rate;
use crate::wire::build::{self, eth};
use std::net::Ipv4Addr;

mod agreed;
mod connections;
mod intake;
mod members;
mod numbered;
mod owners;
mod services;
mod vcc;

const UPLINK: PortId = PortId(0);
const NOW: Instant = Instant(1_000_000_000);

fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

fn ip(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

/// A switch in a test: tenants by their attachment, endpoints by their tenant and number of their
/// declared address (0 for none).
struct Rig {
    switch: Switch,
    pool: Pool,
    now: Instant,
}

impl Rig {
    fn new(tenants: &[Attachment], endpoints: &[(u32, u8)], edit: impl FnOnce(&mut Program)) -> Rig {
        let rate = Both { egress: Rate(Rate::GBIT), ingress: Rate(Rate::GBIT) };
        let mut program = Program {
            uplink: Some(Uplink::new(UPLINK, rate)),
            tenants: tenants.iter().map(|&attachment| Tenant { attachment, ..Tenant::default() }).collect(),
            ports: vec![PortFeatures::default(); endpoints.len() + 1].into(),
            fdb_age_ns: 300_000_000_000,
            ..Program::default()
        };
        for (index, &(tenant, n)) in endpoints.iter().enumerate() {
            program.endpoints.push(Endpoint {
                identity: Identity { macs: if n == 0 { vec![] } else { vec![mac(n)] }, ..Identity::default() },
                max_learned: 4,
                ..Endpoint::new(TenantId(tenant), PortId(index as u32 + 1))
            });
        }
        edit(&mut program);
        let switch = Switch::new(&program, 1).expect("a sound program");
        Rig { switch, pool: Pool::new(PoolLimits { small: 10_000, medium: 0, large: 64 }), now: NOW }
    }

    /// One frame in at `port`; all frames that come out within a second, by port, sorted.
    fn send(&mut self, port: u32, frame: &build::Build<'_>) -> (Verdict, Vec<u32>) {
        let (verdict, out) = self.send_for_bytes(port, frame);
        let mut ports: Vec<u32> = out.into_iter().map(|(port, _)| port).collect();
        ports.sort_unstable();
        (verdict, ports)
    }

    fn send_for_bytes(&mut self, port: u32, frame: &build::Build<'_>) -> (Verdict, Vec<(u32, Vec<u8>)>) {
        let frame = frame.frame(&mut self.pool).expect("a buffer");
        let verdict = self.switch.rx(&mut self.pool, self.now, PortId(port), frame);
        (verdict, self.drain())
    }

    fn drain(&mut self) -> Vec<(u32, Vec<u8>)> {
        let mut out = Vec::new();
        let end = self.now.plus_ns(1_000_000_000);
        loop {
            while let Some((port, frame)) = self.switch.tx(&mut self.pool, self.now) {
                out.push((port.0, self.pool.bytes(&frame).to_vec()));
                self.pool.free(frame);
            }
            match self.switch.poll_timeout() {
                Some(at) if at <= end => self.now = at.max(self.now.plus_ns(1)),
                _ => break,
            }
        }
        assert_eq!(self.pool.in_use(), 0, "a frame was lost");
        out
    }

    fn drops(&self, endpoint: u32) -> Vec<(Reason, u64)> {
        self.switch.endpoint_stats(EndpointId(endpoint)).drops.nonzero().collect()
    }
}

fn udp(from: u8, to: u8) -> build::Build<'static> {
    eth(mac(from), mac(to)).ipv4(ip(from), ip(to)).udp(1000, 2000).payload(vec![7; 100])
}

const FORWARDED: Verdict = Verdict::Forwarded;

fn dropped(reason: Reason) -> Verdict {
    Verdict::Dropped(reason)
}

#[test]
fn neighbours_strangers_and_broadcast() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2), (0, 3)], |_| {});
    assert_eq!(rig.send(1, &udp(1, 2)), (FORWARDED, vec![2]));
    assert_eq!(rig.send(1, &udp(1, 9)), (FORWARDED, vec![0]), "unknown addresses are outside");
    assert_eq!(rig.send(1, &build::arp_request(mac(1), ip(1), ip(9))), (FORWARDED, vec![0, 2, 3]));
    assert_eq!(rig.send(1, &udp(1, 1)), (dropped(Reason::Hairpin), vec![]));
    assert_eq!(rig.send(0, &udp(9, 2).vlan(10)), (FORWARDED, vec![2]));
    assert_eq!(rig.send(0, &udp(9, 8).vlan(10)), (dropped(Reason::Unreachable), vec![]));
    assert_eq!(rig.send(0, &udp(2, 1).vlan(10)), (dropped(Reason::Loop), vec![]));
    assert_eq!(rig.send(7, &udp(1, 2)), (dropped(Reason::Unknown), vec![]));
}

#[test]
fn the_tag_goes_on_at_the_uplink_and_off_behind_it() {
    let mut rig = Rig::new(&[Attachment::Vlan(10), Attachment::Untagged], &[(0, 1), (1, 2)], |_| {});
    let (_, out) = rig.send_for_bytes(1, &udp(1, 9));
    assert_eq!(out, vec![(0, udp(1, 9).vlan(10).bytes())]);
    let (_, out) = rig.send_for_bytes(0, &udp(9, 1).vlan(10));
    assert_eq!(out, vec![(1, udp(9, 1).bytes())]);
    let (_, out) = rig.send_for_bytes(2, &udp(2, 9));
    assert_eq!(out, vec![(0, udp(2, 9).bytes())]);
    assert_eq!(rig.send(0, &udp(9, 1).vlan(11)), (dropped(Reason::BadVlan), vec![]));
    assert_eq!(rig.send(1, &udp(1, 9).vlan(10)), (dropped(Reason::BadVlan), vec![]), "endpoints may not tag");
}

#[test]
fn tenants_are_isolated_even_with_the_same_addresses() {
    let tenants = [Attachment::Vlan(10), Attachment::Isolated, Attachment::Vlan(30)];
    let mut rig = Rig::new(&tenants, &[(0, 1), (0, 2), (1, 1), (1, 2), (2, 0), (2, 0)], |_| {});
    assert_eq!(rig.send(1, &udp(1, 2)), (FORWARDED, vec![2]));
    assert_eq!(rig.send(3, &udp(1, 2)), (FORWARDED, vec![4]));
    assert_eq!(rig.send(3, &udp(1, 5)), (dropped(Reason::Unreachable), vec![]), "no way out of an isolated network");
    assert_eq!(rig.send(3, &build::arp_request(mac(1), ip(1), ip(2))), (FORWARDED, vec![4]));
    assert_eq!(rig.send(1, &build::arp_request(mac(1), ip(1), ip(2))), (FORWARDED, vec![0, 2]));
    assert_eq!(rig.send(5, &build::arp_request(mac(2), ip(2), ip(1))), (FORWARDED, vec![0, 6]));
    assert_eq!(rig.send(0, &build::arp_request(mac(9), ip(9), ip(1)).vlan(30)), (FORWARDED, vec![5, 6]));
}

#[test]
fn tenants_may_share_the_untagged_network() {
    let mut rig = Rig::new(&[Attachment::Untagged, Attachment::Untagged], &[(0, 1), (1, 2)], |_| {});
    assert_eq!(rig.send(1, &udp(1, 2)), (FORWARDED, vec![2]));
    assert_eq!(rig.send(0, &build::arp_request(mac(9), ip(9), ip(1))), (FORWARDED, vec![1, 2]));
}

#[test]
fn learned_addresses_age_and_are_bounded() {
    let mut rig = Rig::new(&[Attachment::Isolated], &[(0, 0), (0, 0), (0, 0)], |_| {});
    assert_eq!(rig.send(1, &udp(1, 2)), (FORWARDED, vec![2, 3]), "unknown: everyone who may have it");
    assert_eq!(rig.send(2, &udp(2, 1)), (FORWARDED, vec![1]), "learned");
    assert_eq!(rig.send(1, &udp(1, 2)), (FORWARDED, vec![2]));
    for n in 10..13 {
        assert_eq!(rig.send(1, &udp(n, 2)).0, FORWARDED);
    }
    assert_eq!(rig.send(1, &udp(13, 2)).0, dropped(Reason::FdbFull));
    assert_eq!(rig.send(3, &udp(30, 2)).0, FORWARDED, "one endpoint's flood is not another's");
    rig.now = rig.now.plus_ns(301_000_000_000);
    assert_eq!(rig.send(3, &udp(30, 1)), (FORWARDED, vec![1, 2]), "forgotten");
    for _ in 0..4 {
        rig.send(3, &udp(31, 1));
    }
    assert_eq!(rig.send(1, &udp(13, 2)).0, FORWARDED, "there is room again");
}

#[test]
fn a_flapping_address_is_contained_and_reported() {
    let mut rig = Rig::new(&[Attachment::Isolated], &[(0, 0), (0, 0), (0, 0)], |_| {});
    rig.send(1, &udp(1, 9));
    assert_eq!(rig.send(2, &udp(1, 9)).0, FORWARDED, "a machine may move once");
    assert_eq!(rig.send(1, &udp(1, 9)).0, dropped(Reason::Flapping));
    assert_eq!(rig.send(1, &udp(1, 9)).0, dropped(Reason::Flapping));
    let event = Event::Flapping { from: EndpointId(1), to: EndpointId(0), mac: mac(1) };
    assert_eq!(rig.switch.poll_event(), Some(event));
    assert_eq!(rig.switch.poll_event(), None, "said once");
    assert_eq!(rig.send(3, &udp(3, 1)), (FORWARDED, vec![2]), "it stays where it was");
    rig.now = rig.now.plus_ns(2_000_000_000);
    assert_eq!(rig.send(1, &udp(1, 9)).0, FORWARDED);
}

#[test]
fn who_flaps_at_frame_rate_silences_nobody() {
    let mut rig = Rig::new(&[Attachment::Isolated, Attachment::Isolated], &[(0, 0), (0, 0), (1, 0), (1, 0)], |_| {});
    let claim = |rig: &mut Rig, port: u32, n: u8| rig.send(port, &udp(n, 99));
    // Addresses 1 to 4 of the first tenant and 5 of the second, which have moved once.
    for n in 1..=5 {
        let ports = if n < 5 { [1, 2] } else { [3, 4] };
        for port in ports {
            claim(&mut rig, port, n);
        }
    }
    for n in 0..1000 {
        assert_eq!(claim(&mut rig, 1, 1 + (n % 4) as u8).0, dropped(Reason::Flapping));
    }
    claim(&mut rig, 3, 5);
    let other = Event::Flapping { from: EndpointId(3), to: EndpointId(2), mac: mac(5) };
    let first = [rig.switch.poll_event(), rig.switch.poll_event()];
    assert!(first.contains(&Some(other)), "{first:?}");
    // An endpoint that goes takes its own with it; the one that it took from is told of again.
    claim(&mut rig, 1, 1);
    assert!(rig.switch.poll_event().is_some_and(|Event::Flapping { to, .. }| to == EndpointId(0)));
    claim(&mut rig, 1, 1);
    rig.switch.change(&mut rig.pool, rig.now, Change::Endpoint(EndpointId(1), None)).expect("it goes");
    assert_eq!(rig.switch.poll_event(), None);
    assert!(!rig.switch.tallies[0].is_told);
}

#[test]
fn a_tenant_that_flaps_at_all_its_endpoints_keeps_nobody_elses_event_waiting() {
    const MANY: u32 = 300;
    let endpoints: Vec<(u32, u8)> = (0..MANY).map(|_| (0, 0)).chain([(1, 0), (1, 0)]).collect();
    let mut rig = Rig::new(&[Attachment::Isolated, Attachment::Isolated], &endpoints, |_| {});
    // An address of each tenant moves once.
    for port in [1, 2] {
        rig.send(port, &udp(1, 99));
        rig.send(MANY + port, &udp(5, 99));
    }
    for port in (1..=MANY).filter(|&port| port != 2) {
        assert_eq!(rig.send(port, &udp(1, 99)).0, dropped(Reason::Flapping));
    }
    rig.send(MANY + 1, &udp(5, 99));
    let events: Vec<EndpointId> =
        std::iter::from_fn(|| rig.switch.poll_event()).map(|Event::Flapping { to, .. }| to).collect();
    assert!(events[..2].contains(&EndpointId(MANY)), "{events:?}");
    assert_eq!(events.len(), Switch::MAX_TENANT_EVENTS + 1);
    // Who was told of makes room for others.
    rig.send(MANY, &udp(1, 99));
    assert!(rig.switch.poll_event().is_some_and(|Event::Flapping { to, .. }| to == EndpointId(MANY - 1)));
}

#[test]
fn tenants_that_flap_together_leave_room_for_another() {
    let most = Switch::MAX_TENANT_EVENTS as u32;
    let tenants = Switch::MAX_EVENTS as u32 / most;
    let endpoints = (0..tenants).flat_map(|tenant| (0..most + 4).map(move |_| (tenant, 0)));
    let endpoints: Vec<(u32, u8)> = endpoints.chain([(tenants, 0); 3]).collect();
    let mut rig = Rig::new(&vec![Attachment::Isolated; tenants as usize + 1], &endpoints, |_| {});
    // Each port of a tenant claims the address of its first one: of the second it is then.
    for (at, &(tenant, _)) in endpoints.iter().enumerate() {
        rig.send(at as u32 + 1, &udp(1 + tenant as u8, 99));
    }
    let events: Vec<EndpointId> =
        std::iter::from_fn(|| rig.switch.poll_event()).map(|Event::Flapping { to, .. }| to).collect();
    assert_eq!(events.len(), Switch::MAX_EVENTS);
    assert!(events.contains(&EndpointId(endpoints.len() as u32 - 1)), "the last one's, too");
}

#[test]
fn a_declared_address_wins_over_a_learned_one() {
    let mut rig = Rig::new(&[Attachment::Isolated], &[(0, 1), (0, 0), (0, 0)], |_| {});
    assert_eq!(rig.send(2, &udp(1, 9)), (dropped(Reason::SpoofedMac), vec![]));
    assert_eq!(rig.send(3, &udp(3, 1)), (FORWARDED, vec![1]));
    assert_eq!(rig.send(1, &udp(7, 3)).0, dropped(Reason::SpoofedMac));
    assert_eq!(rig.drops(0), vec![(Reason::SpoofedMac, 1)]);
    assert_eq!(rig.drops(1), vec![(Reason::SpoofedMac, 1)]);
}

#[test]
fn a_storm_is_held_to_its_budget() {
    let mut rig = Rig::new(&[Attachment::Isolated], &[(0, 1), (0, 2)], |_| {});
    let storm = build::arp_request(mac(1), ip(1), ip(9));
    let passed = (0..1000).filter(|_| rig.send(1, &storm).0 == FORWARDED).count();
    assert_eq!(passed, 250);
    assert_eq!(rig.drops(0), vec![(Reason::FloodLimit, 750)]);
    assert_eq!(rig.send(1, &udp(1, 2)).0, FORWARDED, "what is not flooded passes");
}

#[test]
fn what_may_be_outside_goes_there_beyond_the_budget() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 0), (0, 0)], |_| {});
    let sent: Vec<_> = (0..1000).map(|_| rig.send(1, &udp(1, 9))).collect();
    assert!(sent.iter().all(|(verdict, out)| *verdict == FORWARDED && out.contains(&0)));
    let copied = sent.iter().filter(|(_, out)| *out == [0, 2, 3]).count();
    // Of 250, what is not kept for ARP, and what comes meanwhile.
    assert!((187..=190).contains(&copied), "copies to neighbours within the budget: {copied}");
    assert_eq!(rig.drops(0), vec![]);
    let mut alone = Rig::new(&[Attachment::Vlan(10)], &[(0, 0)], |_| {});
    assert!((0..1000).all(|_| alone.send(1, &udp(1, 9)) == (FORWARDED, vec![0])));
    let mut inside = Rig::new(&[Attachment::Isolated], &[(0, 1), (0, 0)], |_| {});
    let passed = (0..1000).filter(|_| inside.send(1, &udp(1, 9)).0 == FORWARDED).count();
    assert_eq!(passed, 187, "without an uplink the budget is all there is, but for what is kept");
}

#[test]
fn reserved_addresses_and_pause_stop_here() {
    let mut rig = Rig::new(&[Attachment::Isolated], &[(0, 1), (0, 0)], |program| program.endpoints[1].trunk = true);
    let bridge_group = Mac([1, 0x80, 0xc2, 0, 0, 0]);
    let pause = eth(mac(1), Mac([1, 0x80, 0xc2, 0, 0, 1])).ethertype(0x8808).payload(vec![0; 46]);
    assert_eq!(rig.send(1, &pause).0, dropped(Reason::Reserved));
    assert_eq!(
        rig.send(1, &eth(mac(1), bridge_group).ethertype(0x1234).payload(vec![0; 46])).0,
        dropped(Reason::Reserved)
    );
    assert_eq!(rig.send(2, &pause).0, dropped(Reason::Reserved), "not through a trunk either");
}

#[test]
fn a_trunk_passes_tags_and_keeps_them_apart() {
    let mut rig = Rig::new(&[Attachment::Isolated], &[(0, 0), (0, 0), (0, 0)], |program| {
        for endpoint in program.endpoints.values_mut() {
            endpoint.trunk = true;
        }
    });
    rig.send(1, &udp(1, 9).vlan(10));
    rig.send(2, &udp(1, 9).vlan(20));
    let (_, out) = rig.send_for_bytes(3, &udp(3, 1).vlan(10));
    assert_eq!(out, vec![(1, udp(3, 1).vlan(10).bytes())]);
    assert_eq!(rig.send(3, &udp(3, 1).vlan(20)), (FORWARDED, vec![2]));
    assert_eq!(rig.send(3, &udp(3, 1).vlan(30)), (FORWARDED, vec![1, 2]));
}

#[test]
fn a_trunk_gets_back_by_the_uplink_what_it_sends_there() {
    let trunks = |program: &mut Program| {
        program.endpoints[0].trunk = true;
        program.endpoints[1].trunk = true;
    };
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 0), (0, 0)], trunks);
    let (_, out) = rig.send_for_bytes(1, &udp(1, 9));
    assert!(out.contains(&(0, udp(1, 9).vlan(10).bytes())), "{out:?}");
    let (_, out) = rig.send_for_bytes(0, &udp(9, 1).vlan(10));
    assert_eq!(out, vec![(1, udp(9, 1).bytes())]);
    // The same with a tag of its own, below the uplink's.
    let twice = |frame: build::Build<'_>| {
        let mut bytes = frame.bytes();
        bytes.splice(12..12, [0x81, 0, 0, 10]);
        bytes
    };
    let (_, out) = rig.send_for_bytes(1, &udp(2, 9).vlan(30));
    assert!(out.contains(&(0, twice(udp(2, 9).vlan(30)))), "{out:?}");
    let bytes = twice(udp(9, 2).vlan(30));
    let answer = eth(mac(9), mac(2)).ethertype(0x8100).payload(&bytes[14..]);
    assert_eq!(answer.bytes(), bytes);
    let (_, out) = rig.send_for_bytes(0, &answer);
    assert_eq!(out, vec![(1, udp(9, 2).vlan(30).bytes())], "to the one trunk that it is behind");
    let (_, out) = rig.send_for_bytes(0, &udp(9, 2).vlan(10));
    assert_eq!(out.len(), 2, "in no VLAN of the trunk's it is unknown: {out:?}");
}

#[test]
fn a_tag_from_outside_that_is_no_vlan_of_the_uplink_stays_on_for_a_trunk() {
    let mut rig = Rig::new(&[Attachment::Untagged], &[(0, 0)], |program| program.endpoints[0].trunk = true);
    rig.send(1, &udp(1, 9));
    let priority = udp(9, 1).vlan(5 << 13);
    assert_eq!(rig.send_for_bytes(0, &priority).1, vec![(1, priority.bytes())]);
}

#[test]
fn limits_hold_between_neighbours_too() {
    for (sender, receiver) in [(true, false), (false, true), (true, true)] {
        let mut rig = Rig::new(&[Attachment::Isolated], &[(0, 1), (0, 2)], |program| {
            let limited = Share { limit: Rate(1_000_000), ..Share::default() };
            if sender {
                program.endpoints[0].share.egress = limited;
            }
            if receiver {
                program.endpoints[1].share.ingress = limited;
            }
        });
        let start = rig.now;
        let frame = eth(mac(1), mac(2)).ipv4(ip(1), ip(2)).udp(1, 2).payload(vec![0; 1000]);
        for _ in 0..100 {
            let frame = frame.frame(&mut rig.pool).expect("a buffer");
            rig.switch.rx(&mut rig.pool, rig.now, PortId(1), frame);
        }
        let passed = rig.drain().len() as u64;
        let bytes = passed * (1042 + 24);
        let elapsed = rig.now.since(start);
        let rate = bytes * 8_000 / (elapsed / 1_000_000).max(1);
        assert!((900_000..1_200_000).contains(&rate), "{rate} bit/s in {elapsed} ns, {passed} frames");
    }
}

#[test]
fn a_flood_to_the_uplink_and_neighbours_survives_a_limit() {
    let mut rig = Rig::new(&[Attachment::Vlan(5)], &[(0, 1), (0, 2), (0, 3)], |program| {
        program.endpoints[0].share.egress.limit = Rate(1_000_000);
        program.endpoints[1].share.ingress.limit = Rate(1_000_000);
    });
    assert_eq!(rig.send(1, &build::arp_request(mac(1), ip(1), ip(9))), (FORWARDED, vec![0, 2, 3]));
    let stats = rig.switch.endpoint_stats(EndpointId(0));
    assert_eq!((stats.egress.traffic.frames, stats.local_egress.traffic.frames), (1, 1), "counted once at the sender");
    assert_eq!(rig.switch.endpoint_stats(EndpointId(2)).local_ingress.traffic.frames, 1);
}

#[test]
fn offloads_are_done_in_software_where_the_port_cannot() {
    let mut rig = Rig::new(&[Attachment::Isolated], &[(0, 1), (0, 2), (0, 3)], |program| {
        program.ports[2].offload = OffloadSupport::NONE;
    });
    let big = eth(mac(1), mac(2)).ipv4(ip(1), ip(2)).tcp(1, 2, 100).payload(vec![3; 10_000]).gso(1000);
    let (_, out) = rig.send_for_bytes(1, &big);
    assert_eq!(out.len(), 10);
    assert!(out.iter().all(|(port, bytes)| *port == 2 && bytes.len() == 1054));
    let (_, out) = rig
        .send_for_bytes(1, &eth(mac(1), mac(3)).ipv4(ip(1), ip(3)).tcp(1, 2, 100).payload(vec![3; 10_000]).gso(1000));
    assert_eq!(out.len(), 1, "the other port takes it whole");
}

#[test]
fn frames_too_long_for_the_leaving_port_are_counted() {
    let mut rig = Rig::new(&[Attachment::Isolated], &[(0, 1), (0, 2)], |_| {});
    let jumbo = eth(mac(1), mac(2)).ipv4(ip(1), ip(2)).udp(1, 2).payload(vec![3; 4000]);
    assert_eq!(rig.send(1, &jumbo).1, Vec::<u32>::new());
    assert_eq!(rig.drops(1), vec![(Reason::TooLong, 1)]);
}

#[test]
fn policed_ingress_counts_what_it_drops() {
    // The published bucket has banked the second before the first frame: 813 packets at 10 Mbit/s.
    for (mode, expected) in [(IngressMode::Police, 45..=46), (IngressMode::PolicePublished, 100..=100)] {
        let mut rig = Rig::new(&[Attachment::Vlan(1)], &[(0, 1)], |program| {
            program.ingress = mode;
            if let Some(uplink) = &mut program.uplink {
                uplink.members[0].rate.ingress = Rate(10_000_000);
            }
        });
        let passed: usize = (0..100).map(|_| rig.send(0, &udp(9, 1).vlan(1)).1.len()).sum();
        let stats = rig.switch.endpoint_stats(EndpointId(0));
        assert_eq!(stats.ingress.traffic.frames, passed as u64);
        assert_eq!(stats.drops.get(Reason::Policed), 100 - passed as u64);
        assert!(expected.contains(&passed), "{mode:?}: {passed}");
    }
}

/// A token is one packet on the wire: what is dropped is counted so, too.
#[test]
fn of_an_offloaded_frame_the_policer_counts_segments() {
    let mut rig = Rig::new(&[Attachment::Vlan(1)], &[(0, 1)], |program| {
        program.ingress = IngressMode::Police;
        if let Some(uplink) = &mut program.uplink {
            uplink.members[0].rate.ingress = Rate(10_000_000);
        }
    });
    // The bucket holds 45.
    for dropped in [0, 35, 75] {
        let frame = eth(mac(9), mac(1)).vlan(1).ipv4(ip(9), ip(1)).tcp(1, 2, 3).payload(vec![0; 56_000]).gso(1400);
        let frame = frame.frame(&mut rig.pool).expect("a buffer");
        assert_eq!(rig.switch.rx(&mut rig.pool, rig.now, UPLINK, frame), FORWARDED);
        assert_eq!(rig.switch.endpoint_stats(EndpointId(0)).drops.get(Reason::Policed), dropped);
    }
    let passed = rig.switch.endpoint_stats(EndpointId(0)).ingress.traffic;
    assert_eq!((passed.frames, passed.segments), (2, 45));
}

/// An endpoint that did not react.
fn paused() -> Rig {
    let mut rig = Rig::new(&[Attachment::Vlan(1)], &[(0, 1)], |program| {
        program.endpoints[0].share.egress.limit = Rate(10_000_000);
        program.endpoints[0].queue_bytes = 64 << 10;
    });
    let frame = eth(mac(1), mac(9)).ipv4(ip(1), ip(9)).udp(1, 2).payload(vec![0; 1400]);
    let mut paused_at = None;
    for _ in 0..100_000 {
        if rig.switch.is_paused(PortId(1), rig.now) {
            paused_at.get_or_insert(rig.now);
            break;
        }
        let frame = frame.frame(&mut rig.pool).expect("a buffer");
        rig.switch.rx(&mut rig.pool, rig.now, PortId(1), frame);
        while let Some((_, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
            rig.pool.free(frame);
        }
        rig.now = rig.now.plus_ns(20_000);
    }
    assert!(paused_at.is_some_and(|at| at.since(NOW) > 50_000_000), "paused at {paused_at:?}");
    rig
}

#[test]
fn an_endpoint_that_never_reacts_is_paused_and_comes_back() {
    let mut rig = paused();
    rig.drain();
    assert!(!rig.switch.is_paused(PortId(1), rig.now));
}

#[test]
fn an_endpoint_that_is_paused_comes_back_although_its_uplink_goes() {
    let mut rig = paused();
    rig.switch.change(&mut rig.pool, rig.now, Change::Uplink(None)).unwrap();
    assert!(!rig.switch.is_paused(PortId(1), rig.now));
}
