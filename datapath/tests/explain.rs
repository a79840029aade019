//! What the switch explains is what it does: for random traffic through random switches, `explain`
//! says beforehand what `rx` then says, and names the reason that is counted. That explaining
//! changes nothing is the compiler's to check: it borrows the switch immutably.

use datapath::frame::{Pool, PoolLimits};
use datapath::frame_trace::{FrameTrace, Step};
use datapath::guard::Identity;
use datapath::offload::OffloadSupport;
use datapath::overlay::{Overlay, Peer, Vtep};
use datapath::pair::Toward;
use datapath::program::{
    Attachment, Endpoint, EndpointId, IngressMode, PortFeatures, PortId, Program, Share, Tenant, TenantId, Uplink,
};
use datapath::sched::lane::Admission;
use datapath::switch::Switch;
use datapath::units::{Both, Instant, Rate};
use datapath::verdict::{Reason, Verdict};
use datapath::wire::Mac;
use datapath::wire::build::{Build, arp_request, eth};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr};

const ENDPOINTS: u32 = 6;
const VNI: u32 = 7;

fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

fn ip(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

/// A switch whose endpoints differ in what they may do.
fn program(choices: [u8; 8]) -> Program {
    let rate = Both { egress: Rate(10_000_000), ingress: Rate(10_000_000) };
    let mut program = Program {
        ingress: [IngressMode::Queue, IngressMode::Police, IngressMode::PolicePublished][usize::from(choices[0] % 3)],
        uplink: (choices[1] & 3 != 0).then_some(Uplink { headroom_ppm: 20_000, ..Uplink::new(PortId(0), rate) }),
        ports: vec![PortFeatures::default(); ENDPOINTS as usize + 1].into(),
        fdb_age_ns: 50_000_000,
        ..Program::default()
    };
    let attachments = [Attachment::Vlan(10), Attachment::Isolated, Attachment::Untagged, Attachment::Vxlan(VNI)];
    for t in 0..2 {
        let attachment = attachments[(usize::from(choices[2]) + t) % 4];
        let limit = if choices[3] & 1 << t == 0 { Rate::UNLIMITED } else { Rate(5_000_000) };
        let share = Share { limit, ..Share::default() };
        let (share, flood_rate) = (Both { egress: share, ingress: share }, Rate(4_000_000));
        program.tenants.push(Tenant { attachment, share, flood_rate, ..Tenant::default() });
    }
    for e in 0..ENDPOINTS {
        let bit = |choice: u8| choice >> e & 1 == 1;
        let limit = if bit(choices[4]) { Rate(2_000_000) } else { Rate::UNLIMITED };
        let share = Share { limit, ..Share::default() };
        program.ports[e as usize + 1].offload =
            if bit(choices[5]) { OffloadSupport::NONE } else { OffloadSupport::ALL };
        let (declared, narrow) = (bit(choices[6]), bit(choices[7]));
        program.endpoints.push(Endpoint {
            identity: Identity {
                macs: if declared { vec![mac(e as u8 + 1)] } else { vec![] },
                ipv4: if narrow { vec![(ip(e as u8 + 1), 32)] } else { vec![] },
                ..Identity::default()
            },
            trunk: !declared && narrow,
            share: Both { egress: share, ingress: share },
            queue_bytes: 6000,
            flood_per_second: 100,
            flood_rate: Rate(1_000_000),
            max_learned: 2,
            ..Endpoint::new(TenantId(e % 2), PortId(e + 1))
        });
    }
    let next_hop = (choices[3] & 4 == 0).then_some(mac(0xf2));
    program.overlay = Overlay {
        local: Some(Vtep { address: host(1), mac: mac(0xf1) }),
        peers: (2..=3).map(|n| (host(n), Peer { next_hop, tenants: vec![TenantId(u32::from(n) - 2)] })).collect(),
        remotes: (0..2).map(|t| ((TenantId(t), mac(ENDPOINTS as u8 + 1)), host(2 + t as u8))).collect(),
    };
    if choices[3] & 8 != 0 {
        program.ports[0].max_frame = 1200;
    }
    program
}

fn host(n: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, n])
}

/// One frame of the traffic.
#[derive(Clone, Debug)]
struct Sent {
    port: u32,
    from: u8,
    to: u8,
    kind: u8,
    payload: u16,
    vlan: Option<u16>,
    later_us: u16,
    drain: bool,
}

impl Sent {
    fn build(&self) -> Build<'static> {
        let to = if self.to == 0 { Mac([0xff; 6]) } else { mac(self.to) };
        let (source, destination) = (ip(self.from), ip(self.to));
        let payload = vec![7; usize::from(self.payload)];
        let frame = match self.kind {
            0 => arp_request(mac(self.from), source, destination),
            1 => eth(mac(self.from), to).ipv4(source, destination).tcp(1, 80, 9).payload(payload).gso(1000),
            2 => eth(mac(self.from), to).ipv4(source, destination).udp(67, 68).payload(payload),
            3 => eth(mac(self.from), to).ethertype(0x88b5).payload(payload),
            _ => eth(mac(self.from), to).ipv4(source, destination).udp(9, 9).payload(payload),
        };
        let frame = match self.vlan {
            Some(vlan) => frame.vlan(vlan),
            None => frame,
        };
        if self.port != 0 || self.kind < 4 {
            return frame;
        }
        let header = [&[8, 0, 0, 0][..], &(VNI << 8).to_be_bytes()].concat();
        let outer = eth(mac(0xf2), mac(0xf1)).ip(host(self.kind - 2), host(1)).tos(self.kind & 3).udp(9, 4789);
        outer.payload([header, frame.bytes()].concat())
    }
}

fn sent() -> impl Strategy<Value = Sent> {
    let vlan = prop_oneof![6 => Just(None), 3 => Just(Some(10)), 1 => Just(Some(0)), 1 => Just(Some(11))];
    let endpoint = 0..=ENDPOINTS as u8 + 1;
    let port = 0..ENDPOINTS + 2;
    (port, endpoint.clone(), endpoint, 0..8_u8, 40..4000_u16, vlan, any::<u16>(), any::<bool>(), any::<bool>())
        .prop_map(|(port, from, to, kind, payload, vlan, later_us, drain, own)| Sent {
            port,
            from: if own { port as u8 } else { from },
            to,
            kind,
            payload,
            vlan,
            later_us,
            drain,
        })
}

/// All drops of one reason, whoever has them.
fn dropped(switch: &Switch, reason: Reason) -> u64 {
    let of_endpoints = (0..ENDPOINTS).map(|e| switch.endpoint_stats(EndpointId(e)).drops.get(reason));
    of_endpoints.sum::<u64>() + switch.uplink_drops().get(reason)
}

/// Whether it is decided at once what becomes of the frame: it does not wait anywhere.
fn at_once(frame_trace: &FrameTrace) -> bool {
    let waits = |admission| !matches!(admission, Admission::Refused(_));
    !frame_trace.steps.iter().any(|step| match step {
        Step::Queue(queue) => waits(queue.admission),
        Step::Pair(_, pair) => waits(pair.admission),
        _ => false,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_explanation_is_what_is_done(choices in any::<[u8; 8]>(), traffic in prop::collection::vec(sent(), 1..120)) {
        let mut switch = Switch::new(&program(choices), 3).expect("a sound program");
        let mut pool = Pool::new(PoolLimits { small: 200, medium: 10, large: 20 });
        let mut now = Instant(1_000_000_000);
        // Toward some of those who may be outside, and sometimes toward all.
        for e in 0..ENDPOINTS {
            let to = [Toward::Address(mac(choices[e as usize] % 8 + 1)), Toward::Everyone];
            for to in &to[usize::from(choices[e as usize] >> 6).min(2)..] {
                let rate = Some(Rate(1_000_000));
                switch.limit_pair(&mut pool, now, EndpointId(e), *to, rate).expect("room");
            }
        }
        for sent in traffic {
            now = now.plus_ns(u64::from(sent.later_us) * 100);
            let Some(frame) = sent.build().frame(&mut pool) else { continue };
            let told = switch.explain(&pool, now, PortId(sent.port), &frame);
            prop_assert_eq!(&told, &switch.explain(&pool, now, PortId(sent.port), &frame));
            prop_assert!(!told.to_string().is_empty());
            let fate = told.fate();
            let before = if let Verdict::Dropped(reason) = fate { dropped(&switch, reason) } else { 0 };
            // What comes behind a backlog meets its fate when its turn comes.
            let waits = switch.has_work(PortId(sent.port));
            let verdict = switch.rx(&mut pool, now, PortId(sent.port), frame);
            prop_assert_eq!(verdict, told.verdict, "{}", told);
            match fate {
                Verdict::Dropped(reason) if at_once(&told) && !waits => {
                    prop_assert!(dropped(&switch, reason) > before, "not counted: {}", told);
                }
                Verdict::Forwarded => prop_assert_eq!(verdict, Verdict::Forwarded),
                Verdict::Dropped(_) => {}
            }
            if sent.drain {
                while let Some((_, frame)) = switch.tx(&mut pool, now) {
                    pool.free(frame);
                }
            }
        }
        switch.clear(&mut pool);
        prop_assert_eq!(pool.in_use(), 0);
    }
}

/// The uplink's tag comes off for a trunk, too.
#[test]
fn what_comes_back_to_a_trunk_is_told_without_the_uplinks_tag() {
    let mut program = program([0, 1, 0, 0, 1, 0, 0, 0xff]);
    program.tenants[0].attachment = Attachment::Vlan(10);
    assert!(program.endpoints[0].trunk);
    let mut switch = Switch::new(&program, 3).expect("a sound program");
    let mut pool = Pool::new(PoolLimits { small: 20, medium: 0, large: 4 });
    let out = eth(mac(1), mac(9)).ipv4(ip(1), ip(9)).udp(1, 2).frame(&mut pool).expect("a buffer");
    assert_eq!(switch.rx(&mut pool, Instant(9), PortId(1), out), Verdict::Forwarded);
    let back = eth(mac(9), mac(1)).ipv4(ip(9), ip(1)).udp(2, 1).vlan(10).frame(&mut pool).expect("a buffer");
    let told = switch.explain(&pool, Instant(9), PortId(0), &back);
    let untagged = |step: &Step| matches!(step, Step::Emit(emit) if emit.untag == Some(10));
    assert!(told.steps.iter().any(untagged), "{told}");
    assert!(told.to_string().contains("learned"), "{told}");
    pool.free(back);
    switch.clear(&mut pool);
}

/// The words, as `levada trace` prints them.
#[test]
fn the_words_name_what_decided() {
    let mut program = program([0, 1, 0, 0, 1, 0, 0xff, 0xff]);
    program.tenants[0].attachment = Attachment::Vlan(10);
    program.ports[0].offload = OffloadSupport::NONE;
    let mut switch = Switch::new(&program, 3).expect("a sound program");
    let mut pool = Pool::new(PoolLimits { small: 20, medium: 0, large: 40 });
    let mut tell = |port, frame: Build<'_>| {
        let frame = frame.frame(&mut pool).expect("a buffer");
        let told = switch.explain(&pool, Instant(9), PortId(port), &frame).to_string();
        switch.rx(&mut pool, Instant(9), PortId(port), frame);
        told
    };
    let to = |n| eth(mac(1), mac(n)).ipv4(ip(1), ip(n));
    assert_eq!(
        tell(1, to(9).tcp(5, 80, 1).payload(vec![0; 2500]).gso(1000)),
        "arrive  at port 1, from endpoint 0
look    02:00:00:00:00:01 to 02:00:00:00:00:09, TCP 10.0.0.1:5 to 10.0.0.9:80; 2554 bytes in 3 segments, 2734 on the wire, checksum unfinished
guard   passes: 02:00:00:00:00:01 is declared, 10.0.0.1 is in the declared 10.0.0.1/32
forward to the uplink: nobody here has 02:00:00:00:00:09
queue   waits in the sender's egress queue (endpoint 0) behind 0 frames, 0 of 6000 bytes; at most 2.000 Mbit/s, weight 1
emit    by port 0, tagged with VLAN 10, cut into 3 frames by the switch, its checksum finished by the switch
forwarded"
    );
    assert_eq!(
        tell(1, eth(mac(1), mac(3)).ipv4(ip(7), ip(3)).udp(1, 2).payload(vec![0; 60])),
        "arrive  at port 1, from endpoint 0
look    02:00:00:00:00:01 to 02:00:00:00:00:03, UDP 10.0.0.7:1 to 10.0.0.3:2; 102 bytes, 126 on the wire
guard   refused (spoofed-ipv4): 02:00:00:00:00:01 is declared, 10.0.0.7 is not in the declared 10.0.0.1/32
dropped (spoofed-ipv4)"
    );
    assert!(tell(1, to(3).udp(1, 2).payload(vec![0; 60])).contains("to endpoint 2, which has declared"));
    switch
        .limit_pair(&mut pool, Instant(9), EndpointId(2), Toward::Address(mac(9)), Some(Rate(1_000_000)))
        .expect("room");
    // A limit begins within the time of its first frame: by then it lets one go.
    let (mut last, later) = (String::new(), Instant(20_000_000));
    for _ in 0..2 {
        let frame = eth(mac(3), mac(9)).ipv4(ip(3), ip(9)).udp(1, 2).payload(vec![0; 1000]).frame(&mut pool);
        let frame = frame.expect("a buffer");
        last = switch.explain(&pool, later, PortId(3), &frame).to_string();
        assert_eq!(switch.rx(&mut pool, later, PortId(3), frame), Verdict::Forwarded);
        while let Some((_, frame)) = switch.tx(&mut pool, later) {
            pool.free(frame);
        }
    }
    let pair = "pair    waits in the queue from endpoint 2 toward 02:00:00:00:00:09 behind 0 frames, 0 of 6000 bytes; \
                at most 1.000 Mbit/s; over a limit, which opens in 8560 us";
    assert!(last.contains(pair), "{last}");
}
