//! Virtual congestion control in the switch: between neighbours, behind a service, and as a trace
//! tells it.

use super::*;
use crate::aqm::{At, Discipline, Step};
use crate::offload::Gso;
use crate::service::choose::Policy;
use crate::service::{Address, Ask, Backend, Check, Http, Service, ServiceId, WhenDown};
use crate::vcc::connection::Why;
use crate::vcc::connections::Class;
use crate::vcc::segment::{Segment, codes, ecn};
use crate::vcc::{Counters, Mode, Settings};
use crate::wire::{Tcp, protocol, tcp_flags};
use core::net::IpAddr;

mod limits;
mod settings;
mod tunnels;

const SYN: u8 = tcp_flags::SYN;
const ACK: u8 = tcp_flags::ACK;
const MS: u64 = 1_000_000;

/// Guests without ECN at ports 1 and 2, the second with an ingress limit.
fn neighbours(mode: Mode) -> Rig {
    Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2)], |program| {
        program.tenants[0].vcc = mode.into();
        program.endpoints[1].share.ingress = Share { limit: Rate(10_000_000), ..Share::default() };
    })
}

/// A segment between two of the tenant's guests, or to an address.
fn tcp(from: (u8, u16), to: (u8, u16), flags: u8, (seq, ack): (u32, u32)) -> build::Build<'static> {
    let frame = eth(mac(from.0), mac(to.0)).ipv4(ip(from.0), ip(to.0)).tcp(from.1, to.1, seq);
    if flags & ACK == 0 { frame.flags(flags) } else { frame.ack(ack, 65_000).flags(flags) }
}

fn segment(bytes: &[u8]) -> Segment {
    Segment::of(bytes, &crate::wire::parse(bytes).unwrap(), &crate::offload::Offload::default()).unwrap()
}

/// The ECN flags and field of a frame.
fn shown(bytes: &[u8]) -> (u8, u8) {
    let Segment { codes, ecn, .. } = segment(bytes);
    (codes, ecn)
}

impl Rig {
    /// Sends a frame for which one leaves; what is said of it beforehand, and that one.
    fn explained(&mut self, port: u32, frame: &build::Build<'_>) -> (String, u32, Vec<u8>) {
        let frame_trace = {
            let frame = frame.frame(&mut self.pool).expect("a buffer");
            let frame_trace = self.switch.explain(&self.pool, self.now, PortId(port), &frame);
            self.pool.free(frame);
            frame_trace
        };
        let (verdict, mut out) = self.send_for_bytes(port, frame);
        assert_eq!((frame_trace.fate(), out.len()), (verdict, 1), "{frame_trace}");
        let (port, bytes) = out.remove(0);
        (frame_trace.to_string(), port, bytes)
    }

    /// The handshake of two guests without ECN, and what each sees of it.
    fn shake(&mut self) {
        let (said, _, syn) = self.explained(1, &tcp((1, 7), (2, 80), SYN, (99, 0)));
        assert_eq!(shown(&syn), (codes::ASK_ACCURATE, ecn::ECT0), "it is delivered as it was asked: {said}");
        assert!(said.contains("vcc     a connection opens; made ECN-capable; asks for AccECN\n"), "{said}");
        let (said, _, answer) = self.explained(2, &tcp((2, 80), (1, 7), SYN | ACK, (499, 100)));
        assert_eq!(shown(&answer), (codes::NONE, ecn::NOT), "{said}");
        for words in ["agrees to ECN; tells how many bytes", "its ECN flags hidden; AccECN's option hidden\n"] {
            assert!(said.contains(words), "{words}: {said}");
        }
        let (_, _, ack) = self.explained(1, &tcp((1, 7), (2, 80), ACK, (100, 500)));
        assert_eq!(shown(&ack), (codes::NONE, ecn::NOT));
    }

    /// The ports of what leaves within so many nanoseconds.
    fn drain_for(&mut self, ns: u64) -> Vec<PortId> {
        let (mut out, end) = (Vec::new(), self.now.plus_ns(ns));
        loop {
            while let Some((port, frame)) = self.switch.tx(&mut self.pool, self.now) {
                out.push(port);
                self.pool.free(frame);
            }
            match self.switch.poll_timeout() {
                Some(due) if due <= end => self.now = due.max(self.now.plus_ns(1)),
                _ => break,
            }
        }
        self.now = self.now.max(end);
        out
    }

    /// Frames of neighbours that the first endpoint has had.
    fn delivered(&self) -> u64 {
        self.switch.endpoint_stats(EndpointId(0)).local_ingress.traffic.frames
    }

    fn counted(&self, endpoint: u32) -> &Counters {
        self.switch.vcc().counters(EndpointId(endpoint)).expect("its tenant has vcc")
    }
}

#[test]
fn between_neighbours_a_queue_marks_and_neither_guest_sees_it() {
    let mut rig = neighbours(Mode::Dctcp);
    rig.shake();
    assert_eq!([0, 1].map(|endpoint| rig.counted(endpoint).opened[0]), [1, 1]);
    // Twice the limit's rate, and an acknowledgement for each segment that arrives.
    let (mut seq, mut arrived, mut told) = (100u32, None, String::new());
    for _ in 0..400 {
        let data = tcp((1, 7), (2, 80), ACK, (seq, 500)).payload(vec![0; 1200]).frame(&mut rig.pool).unwrap();
        assert_eq!(rig.switch.rx(&mut rig.pool, rig.now, PortId(1), data), FORWARDED);
        seq += 1200;
        let end = rig.now.plus_ns(MS / 2);
        while rig.now < end {
            while let Some((port, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
                let bytes = rig.pool.bytes(&frame);
                assert_eq!(shown(bytes), (codes::NONE, ecn::NOT), "neither guest sees a mark or a flag");
                if port == PortId(2) {
                    arrived = Some(segment(bytes).end());
                }
                rig.pool.free(frame);
            }
            if let Some(end) = arrived.take() {
                let ack = tcp((2, 80), (1, 7), ACK, (500, end)).frame(&mut rig.pool).unwrap();
                told += &rig.switch.explain(&rig.pool, rig.now, PortId(2), &ack).to_string();
                assert_eq!(rig.switch.rx(&mut rig.pool, rig.now, PortId(2), ack), FORWARDED);
                continue;
            }
            rig.now = rig.switch.poll_timeout().unwrap_or(end).clamp(rig.now.plus_ns(1), end);
        }
    }
    assert!(rig.drops(0).is_empty() && rig.drops(1).is_empty(), "{:?} {:?}", rig.drops(0), rig.drops(1));
    assert!(rig.counted(1).hidden_marks > 0, "the queue before the limit marks");
    for words in
        ["in the counter of marks; tells how many bytes arrived marked", "; window 65000 lowered to ", " % marked\n"]
    {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert!(rig.counted(0).marked_bytes > 0 && rig.counted(0).lowered > 0, "{:?}", rig.counted(0));
    assert_eq!([0, 1].map(|endpoint| rig.counted(endpoint).untouched.iter().sum::<u64>()), [0, 0]);
}

#[test]
fn where_a_window_is_below_two_segments_a_neighbours_acknowledgement_waits() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2)], |program| {
        program.tenants[0].vcc = Settings { holds: true, ..Mode::Dctcp.into() };
        let ingress = Share { limit: Rate(10_000_000), ..Share::default() };
        program.endpoints[1].share.ingress = ingress;
        // What stood behind another is marked.
        program.endpoints[1].aqm = Some(Discipline::Step(Step { mark_bytes: 0, at: At::Arrival }));
    });
    rig.shake();
    let (mut seq, mut said, mut waited) = (100u32, String::new(), 0);
    for _ in 0..40 {
        // Two segments; the second is marked, then both are acknowledged.
        for _ in 0..2 {
            let data = tcp((1, 7), (2, 80), ACK, (seq, 500)).payload(vec![0; 500]).frame(&mut rig.pool).unwrap();
            assert_eq!(rig.switch.rx(&mut rig.pool, rig.now, PortId(1), data), FORWARDED);
            seq += 500;
        }
        rig.drain_for(10 * MS);
        let ack = tcp((2, 80), (1, 7), ACK, (500, seq)).frame(&mut rig.pool).unwrap();
        let told = rig.switch.explain(&rig.pool, rig.now, PortId(2), &ack).to_string();
        let received = rig.delivered();
        assert_eq!(rig.switch.rx(&mut rig.pool, rig.now, PortId(2), ack), FORWARDED);
        let out = rig.drain_for(0);
        if out.is_empty() {
            assert!(told.contains("; waits ") && told.contains(" us, as the window is below two segments"), "{told}");
            assert_eq!(rig.delivered(), received, "it is delivered later");
            let due = rig.switch.poll_timeout().expect("it is due");
            assert!(due > rig.now && due <= rig.now.plus_ns(21 * MS));
            waited += 1;
            said = told;
            assert_eq!(rig.drain_for(21 * MS), [PortId(1)]);
        } else {
            assert_eq!(out, [PortId(1)]);
            assert!(!told.contains("; waits "), "{told}");
        }
        assert_eq!(rig.delivered(), received + 1);
    }
    assert!(waited > 10, "{waited} waited; {said}");
    assert_eq!(rig.counted(0).held, waited);
    // The guest is told of two segments all the same.
    assert!(said.contains("; window 65000 lowered to 10"), "{said}");
}

#[test]
fn what_is_policed_is_said_to_be_before_it_is() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2)], |program| {
        program.tenants[0].vcc = Settings { polices: true, ..Mode::Echo.into() };
    });
    rig.shake();
    // The window is ten segments of 536 bytes.
    let far = tcp((1, 7), (2, 80), ACK, (100 + 100_000, 500)).payload(vec![0; 500]);
    let frame = far.frame(&mut rig.pool).unwrap();
    let frame_trace = rig.switch.explain(&rig.pool, rig.now, PortId(1), &frame);
    let said = frame_trace.to_string();
    assert_eq!(rig.switch.rx(&mut rig.pool, rig.now, PortId(1), frame), dropped(Reason::VccWindow), "{said}");
    assert_eq!(frame_trace.fate(), dropped(Reason::VccWindow));
    assert!(said.contains("refused (vcc-window): it lies beyond the window that the guest was told"), "{said}");
    let fragment = eth(mac(1), mac(2)).ipv4(ip(1), ip(2)).fragment(64, false).protocol(protocol::TCP);
    let fragment = fragment.payload(vec![0; 64]).frame(&mut rig.pool).unwrap();
    let said = rig.switch.explain(&rig.pool, rig.now, PortId(1), &fragment).to_string();
    rig.pool.free(fragment);
    assert!(said.contains("refused (vcc-window): it is a fragment, which hides its numbers"), "{said}");
}

/// TCP at port 80 of an address, with the second guest as its backend.
fn one_backend() -> Service {
    Service {
        tenant: TenantId(0),
        mac: mac(100),
        addresses: vec![Address { ip: ip(100).into(), protocol: protocol::TCP, port: 80 }],
        policy: Policy::RoundRobin,
        backends: vec![Backend {
            ipv4: Some(ip(2)),
            ipv6: None,
            mac: mac(2),
            port: Some(8080),
            weight: 1,
            drain_ns: 0,
            cores: 1,
            max_connections: None,
            endpoint: Some(EndpointId(1)),
        }],
        when_down: WhenDown::Reset,
        ping: true,
        report_period_ns: 5_000_000_000,
        ..Service::default()
    }
}

#[test]
fn a_backend_without_ecn_is_known_by_the_addresses_that_it_sees() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2)], |program| {
        program.tenants[0].vcc = Mode::Echo.into();
        program.services.push(one_backend());
    });
    // Of a guest of the same tenant, and of one outside, who speaks for itself.
    let ask = |from: u8, flags, numbers| tcp((from, 7), (100, 80), flags, numbers);
    let answer = |to: u8, flags, numbers| tcp((2, 8080), (to, 7), flags, numbers);
    let (_, to, syn) = rig.explained(1, &ask(1, SYN, (99, 0)));
    assert_eq!((to, shown(&syn)), (2, (codes::ASK_ACCURATE, ecn::ECT0)));
    let (_, to, seen) = rig.explained(2, &answer(1, SYN | ACK, (499, 100)));
    assert_eq!((to, shown(&seen)), (1, (codes::NONE, ecn::NOT)));
    rig.explained(1, &ask(1, ACK, (100, 500)).payload(vec![1; 100]));
    let (_, _, seen) = rig.explained(2, &answer(1, ACK, (500, 200)).payload(vec![1; 100]));
    assert_eq!(shown(&seen), (codes::NONE, ecn::NOT));

    let asks = ask(9, SYN | tcp_flags::ECE | tcp_flags::CWR, (99, 0)).vlan(10);
    assert_eq!(rig.explained(0, &asks).1, 2);
    let (said, to, seen) = rig.explained(2, &answer(9, SYN | ACK, (499, 100)));
    assert_eq!((to, shown(&seen)), (0, (codes::CLASSIC, ecn::NOT)), "the backend's switch answers for it: {said}");
    assert_eq!(rig.explained(0, &ask(9, ACK, (100, 500)).payload(vec![1; 100]).vlan(10)).1, 2);
    let (_, _, seen) = rig.explained(2, &answer(9, ACK, (500, 200)).payload(vec![1; 100]));
    assert_eq!(shown(&seen), (codes::NONE, ecn::ECT0), "its data are ECN-capable");

    let ends = |endpoint: u32| -> Vec<_> {
        let open = rig.switch.vcc().connections().of(EndpointId(endpoint), Class::Open);
        open.map(|(key, _)| key.flow.ends()).collect()
    };
    let at = |n: u8, port: u16| (IpAddr::V4(ip(n)), port);
    assert_eq!(ends(0), [[at(1, 7), at(100, 80)]], "a client sees the service");
    assert_eq!(ends(1), [[at(2, 8080), at(9, 7)], [at(2, 8080), at(1, 7)]], "a backend sees itself and its clients");
    assert_eq!(rig.counted(1).opened[0], 2);
    assert_eq!([0, 1].map(|endpoint| rig.counted(endpoint).untouched.iter().sum::<u64>()), [0, 0]);
}

#[test]
fn behind_a_trunk_nothing_is_translated() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 0), (0, 2)], |program| {
        program.tenants[0].vcc = Mode::Echo.into();
        program.endpoints[0].trunk = true;
    });
    let (said, _, bytes) = rig.explained(1, &tcp((1, 7), (2, 80), SYN, (99, 0)));
    assert_eq!(shown(&bytes), (codes::NONE, ecn::NOT), "{said}");
    assert!(rig.switch.vcc().counters(EndpointId(0)).is_none());
}

/// Linux clears CWR behind the first segment of what it cuts: a counter would be another one there.
#[test]
fn a_counter_of_marks_is_the_same_in_each_segment_of_an_offloaded_frame() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2)], |_| {});
    let data = || tcp((1, 7), (2, 80), ACK | tcp_flags::CWR, (100, 500)).payload(vec![0; 4000]).gso(1000);
    let frames = |rig: &mut Rig, frame| {
        assert_eq!(rig.switch.rx(&mut rig.pool, rig.now, PortId(1), frame), FORWARDED);
        let mut all = Vec::new();
        while let Some((_, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
            all.push((rig.pool.meta(&frame).offload.gso, segment(rig.pool.bytes(&frame)).codes));
            rig.pool.free(frame);
        }
        all
    };
    // RFC 3168's CWR, by virtio's bit, goes whole; without the bit it is part of a counter.
    let frame = data().frame(&mut rig.pool).unwrap();
    assert_eq!(frames(&mut rig, frame), [(Gso::Tcp4, codes::CWR)]);
    let frame = data().frame(&mut rig.pool).unwrap();
    rig.pool.meta_mut(&frame).offload.gso_ecn = crate::offload::GsoEcn::None;
    assert_eq!(frames(&mut rig, frame), [(Gso::None, codes::CWR); 4]);
}

#[test]
fn what_backends_answer_to_checks_counts_as_no_connection_that_is_unknown() {
    for ask in [Ask::Port, Ask::Http(Http::default())] {
        let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2)], |program| {
            program.tenants[0].vcc = Mode::Echo.into();
            let mut service = one_backend();
            service.check = Some(Check { ask, ..Check::default() });
            program.services.push(service);
        });
        let unknown = |rig: &Rig| rig.counted(1).untouched[Why::Unknown as usize];
        let (mut asked, end) = (0, rig.now.plus_ns(20_000 * MS));
        while let Some(due) = rig.switch.poll_timeout().filter(|&due| due <= end) {
            rig.now = rig.now.max(due);
            while let Some((port, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
                let (bytes, layout) = (rig.pool.bytes(&frame), rig.pool.meta(&frame).layout);
                let tcp = Tcp::of(bytes, &layout).expect("a check");
                let (from, next) = (tcp.source(), tcp.sequence() + layout.end - u32::from(layout.payload_offset));
                let (flags, has_request) = (tcp.flags(), layout.end > u32::from(layout.payload_offset));
                rig.pool.free(frame);
                assert_eq!(port, PortId(2));
                let frame = |seq, ack| eth(mac(2), mac(100)).ipv4(ip(2), ip(100)).tcp(8080, from, seq).ack(ack, 9000);
                let page = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
                // What a server says behind its page, the switch has not waited for.
                let all = match (flags, has_request) {
                    (SYN, _) => vec![frame(7000, next + 1).flags(SYN | ACK)],
                    (_, true) => {
                        let end = 7001 + page.len() as u32;
                        vec![frame(7001, next).payload(page), frame(end, next).flags(tcp_flags::FIN | ACK)]
                    }
                    _ => Vec::new(),
                };
                asked += u32::from(flags == SYN);
                for said in all {
                    let frame = said.frame(&mut rig.pool).expect("a buffer");
                    let _ = rig.switch.rx(&mut rig.pool, rig.now, PortId(2), frame);
                }
            }
        }
        let (_, _, stats) = rig.switch.service_backends(ServiceId(0)).next().expect("one");
        assert!(asked >= 18 && stats.checks >= 18 && stats.failed_checks == 0, "{stats:?}");
        assert_eq!(unknown(&rig), 0);
        // What it says of a connection that is older than the switch is still counted.
        let old = tcp((2, 8080), (1, 7), ACK, (500, 100)).payload(vec![1; 9]);
        let _ = rig.send(2, &old);
        assert_eq!(unknown(&rig), 1);
    }
}
