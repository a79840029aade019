//! Guests on two hosts, and a tunnel between them: marks of the network are on the outer header.

use super::*;
use crate::checksum;
use crate::offload::OffloadSupport;
use crate::overlay::{Overlay, Peer, Vtep};
use crate::vcc::option;
use core::net::Ipv6Addr;

/// The longest frame of the uplink: 1500 bytes, and what Ethernet adds.
const MOST: u32 = 1514;
const ETH: usize = 14;

/// Guest 1 on the first host, guest 2 on the second.
struct Hosts {
    hosts: [Rig; 2],
    /// IP version of the tunnel, and of the guests.
    outer: u8,
    inner: u8,
}

fn hosts(outer: u8, inner: u8, offload: OffloadSupport) -> Hosts {
    let vtep = |n: u8| match outer {
        4 => IpAddr::from([192, 0, 2, n]),
        _ => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into()]),
    };
    let nic = |n: u8| Mac([2, 0, 0, 0, 0xff, n]);
    let host = |own: u8| {
        let other = 3 - own;
        Rig::new(&[Attachment::Vxlan(5001)], &[(0, own)], |program| {
            program.overlay = Overlay {
                local: Some(Vtep { address: vtep(own), mac: nic(own) }),
                peers: [(vtep(other), Peer { next_hop: Some(nic(other)), tenants: vec![TenantId(0)] })].into(),
                remotes: [((TenantId(0), mac(other)), vtep(other))].into(),
            };
            program.tenants[0].vcc = Mode::Dctcp.into();
            program.ports[0] = PortFeatures { max_frame: MOST, offload };
            program.ports[1].offload = OffloadSupport::ALL;
        })
    };
    Hosts { hosts: [1, 2].map(host), outer, inner }
}

/// The ECN field of a packet that begins here.
fn field(packet: &[u8]) -> u8 {
    if packet[0] >> 4 == 4 { packet[1] & 3 } else { packet[1] >> 4 & 3 }
}

/// A router on the way marks what can be marked.
fn mark(packet: &mut [u8]) {
    assert_ne!(field(packet), ecn::NOT, "it would be dropped");
    if packet[0] >> 4 == 4 {
        packet[1] |= ecn::CE;
        packet[10..12].fill(0);
        let sum = !checksum::sum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet[1] |= ecn::CE << 4;
    }
}

impl Hosts {
    /// Bytes before the inner frame.
    fn head(&self) -> usize {
        ETH + if self.outer == 4 { 20 } else { 40 } + 8 + 8
    }

    /// A segment of the guest of a host.
    fn segment(&self, from: usize, flags: u8, (seq, ack): (u32, u32)) -> build::Build<'static> {
        let [me, other] = [from as u8 + 1, 2 - from as u8];
        let v6 = |n: u8| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into());
        let [port, peer] = if from == 0 { [7, 80] } else { [80, 7] };
        let frame = eth(mac(me), mac(other));
        let frame = if self.inner == 4 { frame.ipv4(ip(me), ip(other)) } else { frame.ipv6(v6(me), v6(other)) };
        let frame = frame.tcp(port, peer, seq);
        if flags & ACK == 0 { frame.flags(flags) } else { frame.ack(ack, 65_000).flags(flags) }
    }

    /// What a guest sends, as it is on the wire between the hosts.
    fn send(&mut self, from: usize, frame: &build::Build<'_>) -> Vec<Vec<u8>> {
        let (verdict, out) = self.hosts[from].send_for_bytes(1, frame);
        assert_eq!(verdict, FORWARDED);
        let wire: Vec<_> =
            out.into_iter().map(|(port, bytes)| (port == 0).then_some(bytes).expect("all leave")).collect();
        for bytes in &wire {
            assert!(bytes.len() as u32 <= MOST, "{} bytes are too long for the uplink", bytes.len());
            let inner = &bytes[self.head() + ETH..];
            assert_eq!(field(&bytes[ETH..]), field(inner), "the inner codepoint is the outer one");
        }
        wire
    }

    /// It arrives at the other host, marked or not: what the guest there is shown.
    fn receive(&mut self, at: usize, mut wire: Vec<u8>, is_marked: bool) -> Segment {
        if is_marked {
            mark(&mut wire[ETH..]);
        }
        let rig = &mut self.hosts[at];
        let frame = rig.pool.alloc_from(&wire).expect("a buffer");
        assert_eq!(rig.switch.rx(&mut rig.pool, rig.now, UPLINK, frame), FORWARDED);
        let mut out = rig.drain();
        assert_eq!(out.len(), 1, "{out:?}");
        let (port, bytes) = out.remove(0);
        assert_eq!((port, shown(&bytes)), (1, (codes::NONE, ecn::NOT)), "the guest sees no ECN");
        segment(&bytes)
    }

    /// Both, of one frame.
    fn pass(&mut self, from: usize, frame: &build::Build<'_>, is_marked: bool) -> Segment {
        let mut wire = self.send(from, frame);
        assert_eq!(wire.len(), 1);
        self.receive(1 - from, wire.remove(0), is_marked)
    }

    fn shake(&mut self) {
        let syn = self.segment(0, SYN, (99, 0));
        let mut wire = self.send(0, &syn);
        let wire = wire.remove(0);
        assert_eq!(shown(&wire[self.head()..]), (codes::ASK_ACCURATE, ecn::ECT0));
        // The guest is shown what was asked.
        let rig = &mut self.hosts[1];
        let frame = rig.pool.alloc_from(&wire).expect("a buffer");
        assert_eq!(rig.switch.rx(&mut rig.pool, rig.now, UPLINK, frame), FORWARDED);
        assert_eq!(rig.drain().len(), 1);
        let answer = self.segment(1, SYN | ACK, (499, 100));
        self.pass(1, &answer, false);
        let first = self.segment(0, ACK, (100, 500));
        self.pass(0, &first, false);
    }

    fn counted(&self, host: usize) -> &Counters {
        self.hosts[host].counted(0)
    }
}

const CASES: [(u8, u8); 4] = [(4, 4), (4, 6), (6, 4), (6, 6)];

#[test]
fn a_mark_on_the_outer_header_is_told_to_the_sender_and_hidden_from_both_guests() {
    for (outer, inner) in CASES {
        let mut hosts = hosts(outer, inner, OffloadSupport::NONE);
        hosts.shake();
        assert_eq!([0, 1].map(|host| hosts.counted(host).opened), [[1, 0, 0]; 2]);
        let mut seq = 100;
        for is_marked in [false, true, true] {
            let data = hosts.segment(0, ACK, (seq, 500)).payload(vec![1; 1000]);
            assert_eq!(hosts.pass(0, &data, is_marked).payload, 1000);
            seq += 1000;
        }
        assert_eq!(hosts.counted(1).hidden_marks, 2, "v{inner} in v{outer}");
        // The other direction's marks are its own.
        assert_eq!(hosts.counted(0).hidden_marks, 0);
        let ack = hosts.segment(1, ACK, (500, seq));
        let window = hosts.pass(1, &ack, false).window;
        let counted = hosts.counted(0);
        assert!(counted.marked_bytes >= 2000 && counted.reductions == 1, "{counted:?}");
        assert!(window < 65_000 && counted.lowered == 1, "{window}");
        assert_eq!([0, 1].map(|host| hosts.counted(host).untouched.iter().sum::<u64>()), [0, 0]);
    }
}

#[test]
fn accecns_option_makes_no_segment_longer_than_the_tunnel_carries() {
    for (outer, inner) in CASES {
        let mut hosts = hosts(outer, inner, OffloadSupport::NONE);
        hosts.shake();
        // The longest that fits, and any shorter one.
        let room = MOST as usize - hosts.head() - ETH - if inner == 4 { 20 } else { 40 } - 20;
        let (mut seq, mut back, mut with_option) = (100, 500, 0);
        for payload in (0..=room).rev().step_by(7).chain([0, 1, 255, 256, 257]) {
            // A mark arrives, so that there is something to tell.
            let data = hosts.segment(1, ACK, (back, seq)).payload(vec![1; 100]);
            hosts.pass(1, &data, true);
            back += 100;
            let data = hosts.segment(0, ACK, (seq, back)).payload(vec![1; payload]);
            let wire = hosts.send(0, &data).remove(0);
            let has_option = segment(&wire[hosts.head()..]).end().wrapping_sub(seq) as usize == payload
                && wire.len() == MOST as usize - (room - payload) + option::LEN;
            with_option += usize::from(has_option);
            assert!(has_option || wire.len() == MOST as usize - (room - payload), "{payload}");
            assert_eq!(hosts.receive(1, wire, false).payload as usize, payload);
            seq += payload as u32;
        }
        assert!(with_option > 30, "{with_option} small ones had it");
    }
}

#[test]
fn an_offloaded_frame_shows_the_same_counter_in_each_segment_of_a_tunnel() {
    let whole = OffloadSupport { tunnel: true, ..OffloadSupport::ALL };
    for offload in [OffloadSupport::NONE, whole, OffloadSupport { uso: false, ..whole }] {
        let mut hosts = hosts(4, 4, offload);
        hosts.shake();
        // The counter of marks begins with five; with two it is seven, of which CWR is a part.
        let mut back = 500;
        for is_marked in [true, true, false] {
            let data = hosts.segment(1, ACK, (back, 100)).payload(vec![1; 1000]);
            hosts.pass(1, &data, is_marked);
            back += 1000;
        }
        let rig = &mut hosts.hosts[0];
        let frame = tcp((1, 7), (2, 80), ACK, (100, back)).payload(vec![0; 4000]).gso(1000);
        let frame = frame.frame(&mut rig.pool).unwrap();
        assert_eq!(rig.switch.rx(&mut rig.pool, rig.now, PortId(1), frame), FORWARDED);
        let mut parts = Vec::new();
        while let Some((_, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
            let gso = rig.pool.meta(&frame).offload.gso;
            parts.push((gso, shown(&rig.pool.bytes(&frame)[50..])));
            rig.pool.free(frame);
        }
        let said = (7, ecn::ECT0);
        match offload.uso {
            // A kernel cuts the outer datagrams, whose inner segments are whole.
            true => assert_eq!(parts, [(Gso::Udp, said)], "{offload:?}"),
            false => assert_eq!(parts, [(Gso::None, said); 4], "{offload:?}"),
        }
    }
}
