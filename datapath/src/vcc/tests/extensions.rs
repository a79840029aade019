//! IPv6 with extension headers: all goes the longer way, and is treated as without them.

use super::*;
use core::net::Ipv6Addr;

/// Destination options (RFC 8200, section 4.6): the header's number, and 8 bytes that say nothing,
/// without the first.
const OPTIONS: (u8, [u8; 7]) = (60, [0, 1, 4, 0, 0, 0, 0]);

/// Two switches that see the same of one connection, whose frames have extension headers at the
/// second.
struct Twins {
    pool: Pool,
    sides: [Vcc; 2],
    now: Instant,
}

impl Twins {
    /// A guest that is spoken for by AccECN, or by RFC 3168.
    fn new(settings: Settings, is_accurate: bool) -> Twins {
        let sides = [(); 2].map(|()| {
            let mut vcc = Vcc::new(7);
            vcc.set(Owner { tenant: TenantId(0), endpoint: ENDPOINT }, settings);
            vcc
        });
        let mut twins = Twins { pool: Pool::new(POOL), sides, now: Instant(1_000_000) };
        let syn = Says { seq: 100, flags: SYN, window: 64_240, options: LINUX, ..Says::default() };
        assert!(twins.pass(true, &syn));
        let (codes, ecn) =
            if is_accurate { (codes::received(ecn::ECT0), ecn::ECT0) } else { (codes::CLASSIC, ecn::NOT) };
        twins.pass(false, &Says { seq: 200, ack: 101, flags: SYN | ACK, codes, ecn, ..syn });
        twins
    }

    fn frame(&mut self, is_sent: bool, is_extended: bool, says: &Says) -> Frame {
        let ip = |n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n);
        let ([from, to], ports) = if is_sent { ([1, 2], [40_000, 80]) } else { ([2, 1], [80, 40_000]) };
        let build = eth(Mac([2; 6]), Mac([4; 6])).ipv6(ip(from), ip(to)).tos(says.ecn);
        let build = if is_extended { build.extension(OPTIONS.0, &OPTIONS.1) } else { build };
        let (bytes, layout) = says.behind(build, ports);
        let frame = self.pool.alloc_from(&bytes).unwrap();
        self.pool.meta_mut(&frame).layout = layout;
        frame
    }

    /// The guest sends, or is to have, the same with and without: whether it passes.
    fn pass(&mut self, is_sent: bool, says: &Says) -> bool {
        let done = [false, true].map(|is_extended| {
            let frame = self.frame(is_sent, is_extended, says);
            let is_plain = usual::seen::<Both6>(&mut self.pool, &frame, Direction::Egress).is_some();
            assert_eq!(is_plain, !is_extended && says.flags & SYN == 0);
            let side = &mut self.sides[usize::from(is_extended)];
            let mut sent = Ok(());
            if is_sent {
                sent = side.send(&mut self.pool, self.now, ENDPOINT, &frame);
            } else if !side.receive_usual(&mut self.pool, self.now, ENDPOINT, &frame) {
                side.receive(&mut self.pool, self.now, ENDPOINT, &frame);
            }
            let (bytes, meta) = (self.pool.bytes(&frame), *self.pool.meta(&frame));
            assert_eq!(parse(bytes).unwrap(), meta.layout);
            let tcp = bytes[usize::from(meta.layout.l4_offset)..].to_vec();
            let done = (sent, tcp, police::ecn_of(bytes, &meta.layout), meta.offload);
            self.pool.free(frame);
            (
                done,
                format!("{:?}", side.connections.iter().collect::<Vec<_>>()),
                format!("{:?}", side.endpoints[0].siblings),
            )
        });
        let [without, with] = done;
        assert_eq!(without, with, "{says:?}");
        assert_eq!(self.sides[0].counters(ENDPOINT), self.sides[1].counters(ENDPOINT));
        without.0.0.is_ok()
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// The guest sends so much.
    Send(usize),
    /// The peer acknowledges all but so much, tells of so many marks, and has this codepoint.
    Answer { left: u32, marks: u8, ecn: u8, payload: usize },
    /// Time passes.
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let payload = || prop_oneof![Just(0), Just(1428), 1usize..1428];
    let mostly_none = prop_oneof![8 => Just(0u8), 1 => 1u8..3];
    let ecn = prop_oneof![4 => Just(ecn::ECT0), 1 => Just(ecn::CE), 1 => Just(ecn::NOT)];
    prop_oneof![
        5 => payload().prop_map(Step::Send),
        4 => (0u32..4, mostly_none, ecn, payload())
            .prop_map(|(left, marks, ecn, payload)| Step::Answer { left: left * 1428, marks, ecn, payload }),
        1 => (0u64..20_000_000).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_has_extension_headers_is_treated_as_without(
        polices: bool,
        is_dctcp: bool,
        is_accurate: bool,
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mode = if is_dctcp { Mode::Dctcp } else { Mode::Echo };
        let mut twins = Twins::new(Settings { polices, ..mode.into() }, is_accurate);
        let (mut sent, mut acked, mut received, mut marks) = (101u32, 101u32, 201u32, 5u8);
        for step in steps {
            twins.now = twins.now.plus_ns(20_000);
            match step {
                Step::Send(payload) => {
                    let says = Says { seq: sent, ack: received, flags: ACK, window: 502, payload, ..Says::default() };
                    if twins.pass(true, &says) {
                        sent += payload as u32;
                    }
                }
                Step::Answer { left, marks: more, ecn, payload } => {
                    acked = acked.max(sent.saturating_sub(left));
                    marks += more;
                    let codes = if is_accurate { marks & 7 } else { u8::from(more > 0) * codes::ECE };
                    let says = Says { seq: received, ack: acked, flags: ACK, codes, ecn, window: 509, payload, options: &[] };
                    twins.pass(false, &says);
                    received += payload as u32;
                }
                Step::Wait(ns) => twins.now = twins.now.plus_ns(ns),
            }
        }
    }
}
