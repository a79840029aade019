//! Two switches whose uplinks are bonds with cables between them: frames in order, none twice,
//! whatever the cables do.

use super::*;
use crate::bond::hello::{Challenge, HELLO_BYTES, Hello, HelloKey, KEYED_BYTES, is_hello};
use crate::bond::lacp::LacpSettings;
use crate::bond::number::{self, Encoding};
use crate::bond::order::OrderDecision;
use crate::bond::{BondSettings, Duplex, MemberState, Mode, Negotiated, Plain, Way};
use crate::frame_trace::{Found, Step};
use crate::program::{Change, Member};
use crate::service::{Address, Backend, Service, ServiceId};
use crate::wire::protocol;
use std::collections::{BTreeSet, VecDeque};

mod away;
mod changed;
mod loss;
mod miswired;
mod switched;
mod tunnels;

const MS: u64 = 1_000_000;
const GBIT: u64 = Rate::GBIT;
const MBIT: u64 = GBIT / 1000;
/// The endpoint's port; members' are behind it.
const GUEST: PortId = PortId(1);
/// Where the payload of an untagged UDP frame begins.
const PAYLOAD: usize = 42;

/// One direction of a cable.
#[derive(Default)]
pub(super) struct Wire {
    rate: u64,
    delay_ns: u64,
    free_at: Instant,
    arriving: VecDeque<(Instant, Frame)>,
    pub is_dead: bool,
    /// One of so many frames is lost; 0 for none.
    loses_one_of: u64,
    /// Frames with numbers that it has lost.
    lost: u64,
}

pub(super) struct Pair {
    pub pool: Pool,
    pub switches: [Switch; 2],
    /// By sender, then member.
    pub wires: [Vec<Wire>; 2],
    /// By sender, then member: the side and the member that its cable leads to.
    leads: [Vec<(usize, usize)>; 2],
    pub now: Instant,
    random: u64,
    /// Labels that the endpoint of the second switch received.
    pub received: Vec<u64>,
    received_bytes: u64,
    sent: u64,
    members: usize,
    /// The first switch has sent without numbers since [`Pair::agreed`].
    was_plain: bool,
    /// By side: until then its process does not run.
    stalls_until: [Instant; 2],
    /// By side: its clock is so far behind, in nanoseconds: it stood still with its host.
    lags: [u64; 2],
    /// By sender: what it says as a bond is lost.
    loses_hellos: [bool; 2],
    /// Hellos that were seen on the wires, with who sent them over which member.
    seen: Vec<(usize, usize, Vec<u8>)>,
    /// Between two frames of a second tenant, in nanoseconds: more than both links carry.
    every: u64,
    /// Cables lead to bridges.
    has_bridges: bool,
    /// Longest time that a frame has waited in a device for those before it, in nanoseconds.
    most_queued: u64,
}

pub(super) fn program(mode: Mode, order: bool, rates: &[u64], max_frame: u32, address: u8) -> Program {
    let member = |(n, &rate): (usize, &u64)| {
        let rate = Rate(rate);
        Member { port: PortId(n as u32 + 2), rate: Both { egress: rate, ingress: rate } }
    };
    let members: Vec<Member> = rates.iter().enumerate().map(member).collect();
    let lacp = LacpSettings { system: mac(address), is_fast: true, ..LacpSettings::default() };
    let bond = Some(BondSettings { mode, order, lacp, ..BondSettings::default() });
    let whole = Both { egress: Rate(GBIT), ingress: Rate(GBIT) };
    let mut ports = vec![PortFeatures::default(); 2];
    ports.resize(rates.len() + 2, PortFeatures { max_frame, ..PortFeatures::default() });
    Program {
        uplink: Some(Uplink { members, bond, ..Uplink::new(UPLINK, whole) }),
        tenants: vec![Tenant { attachment: Attachment::Vlan(10), ..Tenant::default() }].into(),
        endpoints: vec![Endpoint {
            identity: Identity { macs: vec![mac(address)], ..Identity::default() },
            queue_bytes: 4 << 20,
            ..Endpoint::new(TenantId(0), GUEST)
        }]
        .into(),
        ports: ports.into(),
        fdb_age_ns: 300_000_000_000,
        ..Program::default()
    }
}

impl Pair {
    pub fn new(mode: Mode, rates: &[u64], seed: u64) -> Pair {
        Pair::of(mode, [true, true], rates, 1518, seed)
    }

    fn of(mode: Mode, order: [bool; 2], rates: &[u64], max_frame: u32, seed: u64) -> Pair {
        let of = |side: usize| program(mode, order[side], rates, max_frame, side as u8 + 1);
        Pair::with([of(0), of(1)], rates, seed)
    }

    /// Switches that run these programs.
    fn with(programs: [Program; 2], rates: &[u64], seed: u64) -> Pair {
        let switch = |side: usize| Switch::new(&programs[side], seed * 2 + side as u64).expect("sound");
        let wires = || rates.iter().map(|&rate| Wire { rate, delay_ns: 20_000, ..Wire::default() }).collect();
        let mut pair = Pair {
            pool: Pool::new(PoolLimits { small: 40_000, medium: 1000, large: 200 }),
            switches: [switch(0), switch(1)],
            wires: [wires(), wires()],
            leads: [1, 0].map(|to| (0..rates.len()).map(|member| (to, member)).collect()),
            now: NOW,
            random: seed,
            received: Vec::new(),
            received_bytes: 0,
            sent: 0,
            members: rates.len(),
            was_plain: false,
            stalls_until: [Instant::ZERO; 2],
            lags: [0; 2],
            loses_hellos: [false; 2],
            seen: Vec::new(),
            every: 300,
            has_bridges: false,
            most_queued: 0,
        };
        for member in 0..rates.len() {
            for side in 0..2 {
                pair.set(side, member, MemberState::Distributing);
            }
        }
        pair
    }

    pub fn set(&mut self, side: usize, member: usize, state: MemberState) {
        let now = self.clock(side);
        self.switches[side].set_member_state(&mut self.pool, now, MemberId(member as u8), state);
    }

    /// What a side's clock says.
    fn clock(&self, side: usize) -> Instant {
        Instant(self.now.0 - self.lags[side])
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn plain(&self, side: usize) -> Option<Plain> {
        self.switches[side].bond_peer().expect("it is asked for").plain
    }

    /// Until both number their frames.
    fn agreed(mut self) -> Pair {
        self.run(20 * MS);
        assert_eq!((self.plain(0), self.plain(1)), (None, None));
        self.was_plain = false;
        self
    }

    pub fn run(&mut self, ns: u64) {
        self.run_until(self.now.plus_ns(ns));
    }

    fn run_until(&mut self, end: Instant) {
        loop {
            self.work();
            self.was_plain |= self.switches[0].bond_peer().is_none_or(|peer| peer.plain.is_some());
            // What comes to who stalls waits for him.
            let due = [0, 1].into_iter().filter_map(|side| {
                let leads = self.wires.iter().flatten().zip(self.leads.iter().flatten());
                let here = leads.filter(|(_, (to, _))| *to == side).map(|(wire, _)| wire);
                let arriving = here.filter_map(|wire| Some(wire.arriving.front()?.0));
                let timeout = self.switches[side].poll_timeout().map(|due| due.plus_ns(self.lags[side]));
                let due = arriving.chain(timeout).min()?;
                Some(due.max(self.stalls_until[side]))
            });
            match due.min() {
                Some(at) if at <= end => self.now = self.now.max(at),
                _ => break,
            }
        }
        self.now = end;
    }

    /// All that is to be done now.
    fn work(&mut self) {
        for side in 0..2 {
            if self.stalls_until[side] > self.now {
                continue;
            }
            let now = self.clock(side);
            for (from, cable) in [1 - side, side].into_iter().flat_map(|from| (0..self.members).map(move |n| (from, n)))
            {
                let (to, member) = self.leads[from][cable];
                while let Some(&(at, _)) = self.wires[from][cable].arriving.front().filter(|_| to == side) {
                    if at > self.now {
                        break;
                    }
                    let Some((_, frame)) = self.wires[from][cable].arriving.pop_front() else { break };
                    let port = PortId(member as u32 + 2);
                    let is_explained = !parse::destination(self.pool.bytes(&frame)).is_reserved();
                    let told = is_explained.then(|| self.switches[side].explain(&self.pool, now, port, &frame));
                    let verdict = self.switches[side].rx(&mut self.pool, now, port, frame);
                    if let Some(told) = told {
                        assert_eq!(told.verdict, verdict, "{told}");
                    }
                }
            }
            while let Some((port, frame)) = self.switches[side].tx(&mut self.pool, now) {
                if port == GUEST {
                    self.arrive(side, frame);
                } else if port.0 as usize >= self.members + 2 {
                    self.pool.free(frame);
                } else {
                    // A cable takes the frame itself.
                    if self.switches[side].wants_back(&self.pool, port, &frame) {
                        let copy = self.pool.duplicate(&frame).expect("there is a buffer");
                        self.switches[side].give_back(&mut self.pool, now, port, copy);
                    }
                    self.travel(side, port.0 as usize - 2, frame);
                }
            }
        }
    }

    fn arrive(&mut self, side: usize, frame: Frame) {
        if side == 1 {
            let bytes = self.pool.bytes(&frame);
            let label = bytes[PAYLOAD..PAYLOAD + 8].try_into().expect("eight bytes");
            self.received.push(u64::from_be_bytes(label));
            self.received_bytes += u64::from(self.pool.meta(&frame).wire_bytes);
        }
        self.pool.free(frame);
    }

    fn travel(&mut self, side: usize, member: usize, frame: Frame) {
        if is_hello(self.pool.bytes(&frame)) {
            self.seen.push((side, member, self.pool.bytes(&frame).to_vec()));
            if self.loses_hellos[side] {
                return self.pool.free(frame);
            }
        }
        let dice = self.random(u64::from(u32::MAX));
        let bytes = u64::from(self.pool.meta(&frame).wire_bytes);
        let wire = &mut self.wires[side][member];
        let start = wire.free_at.max(self.now);
        self.most_queued = self.most_queued.max(start.since(self.now));
        wire.free_at = start.plus_ns(bytes * 8 * 1_000_000_000 / wire.rate);
        let to = parse::destination(self.pool.bytes(&frame));
        let is_filtered = self.has_bridges && to.is_reserved() && to != Mac::BONDS;
        if is_filtered || wire.is_dead || wire.loses_one_of > 0 && dice.is_multiple_of(wire.loses_one_of) {
            wire.lost += u64::from(number::read(self.pool.bytes(&frame)).is_some());
            return self.pool.free(frame);
        }
        wire.arriving.push_back((wire.free_at.plus_ns(wire.delay_ns), frame));
    }

    /// A side sends what is due, and reads nothing.
    fn flush(&mut self, side: usize) {
        while let Some((port, frame)) = self.switches[side].tx(&mut self.pool, self.now) {
            if port == GUEST {
                self.arrive(side, frame);
            } else {
                self.travel(side, port.0 as usize - 2, frame);
            }
        }
    }

    /// A port of the second switch at which a frame is that others may wait for.
    fn awaited(&self) -> Option<PortId> {
        let has_come = |port: &PortId| {
            let first = self.wires[0][port.0 as usize - 2].arriving.front();
            first.is_some_and(|&(at, _)| at <= self.now)
        };
        self.switches[1].awaited_ports().into_iter().find(has_come)
    }

    /// The first endpoint sends `bytes` of payload each `gap_ns`, for so long.
    pub fn send(&mut self, bytes: usize, gap_ns: u64, for_ns: u64) {
        let end = self.now.plus_ns(for_ns);
        while self.now < end {
            let mut payload = vec![0; bytes];
            payload[..8].copy_from_slice(&self.sent.to_be_bytes());
            self.sent += 1;
            let frame = eth(mac(1), mac(2)).ipv4(ip(1), ip(2)).udp(1000, 2000).payload(payload);
            let frame = frame.frame(&mut self.pool).expect("a buffer");
            let now = self.clock(0);
            self.switches[0].rx(&mut self.pool, now, GUEST, frame);
            self.run(gap_ns);
        }
    }

    pub fn finish(&mut self) -> &[u64] {
        self.run(100 * MS);
        &self.received
    }

    pub fn lost(&self) -> u64 {
        self.sent - self.received.iter().collect::<BTreeSet<_>>().len() as u64
    }

    fn order(&self) -> crate::bond::order::OrderStats {
        self.switches[1].bond_peer().expect("it is asked for").order
    }

    pub fn clear(&mut self) {
        for wire in self.wires.iter_mut().flatten() {
            for (_, frame) in wire.arriving.drain(..) {
                self.pool.free(frame);
            }
        }
        for switch in &mut self.switches {
            switch.clear(&mut self.pool);
        }
        assert_eq!(self.pool.in_use(), 0, "a frame was lost");
    }
}

#[test]
fn idle_links_carry_in_turn() {
    // Each frame is out before the next one comes, as the acknowledgements of a connection are.
    let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 3], 17).agreed();
    pair.send(100, 200_000, 60 * MS);
    assert_eq!(pair.finish(), (0..300).collect::<Vec<_>>());
    let sent: Vec<u64> = pair.switches[0].members().map(|view| view.counts.traffic.egress.segments).collect();
    assert_eq!(sent, [100; 3]);
}

/// A slow member carries nothing while a fast one does. What it says of that is no debt that it has
/// to pay off when it is alone.
#[test]
fn a_slow_member_is_free_when_the_fast_one_fails() {
    for slow in [MBIT, MBIT / 4] {
        let mut pair = Pair::new(Mode::BalanceRr, &[GBIT, slow], 7).agreed();
        pair.send(1400, 200_000, 1_000 * MS);
        let queued = pair.wires[0][1].free_at.since(pair.now);
        assert!(queued < 10 * MS, "hellos wait for {queued} ns on the slow wire");
        (0..2).for_each(|side| pair.set(side, 0, MemberState::Down));
        let before = pair.received.len() as u64;
        pair.send(100, 20 * MS, 300 * MS);
        pair.finish();
        assert!(pair.received.len() as u64 >= before + 10, "{slow}: {} of 15", pair.received.len() as u64 - before);
        pair.clear();
    }
}

/// A frame takes a member of 64 kbit/s longer than others may wait for it, one of 10 Mbit/s not.
#[test]
fn a_member_that_is_much_too_slow_carries_nothing_beside_a_fast_one() {
    for (slow, is_used) in [(64_000, false), (2 * MBIT, false), (10 * MBIT, true), (GBIT / 10, true)] {
        let mut pair = Pair::new(Mode::BalanceRr, &[GBIT / 10, slow], 7).agreed();
        pair.send(100, 5 * MS, 500 * MS);
        let asked_one_by_one = pair.received.len();
        assert!(asked_one_by_one >= 99, "{slow}: {asked_one_by_one}");
        pair.send(1400, 110_000, 200 * MS);
        assert!(pair.finish().is_sorted());
        // It was more than both links carry: queues have dropped some, and no cable.
        assert_eq!((pair.order().lost, pair.order().late), (0, 0), "{slow}: {:?}", pair.order());
        let sent: Vec<u64> = pair.switches[0].members().map(|view| view.counts.traffic.egress.segments).collect();
        assert_eq!(sent[1] > 0, is_used, "{slow}: {sent:?}");
        pair.clear();
    }
}

#[test]
fn a_trace_names_the_number_and_its_member() {
    let mut pair = Pair::new(Mode::BalanceRr, &[GBIT, GBIT / 2, GBIT], 17).agreed();
    let mut used = BTreeSet::new();
    for n in 0..60u16 {
        let frame = eth(mac(1), mac(2)).ipv4(ip(1), ip(2)).udp(n, 2000).payload(vec![0; 700]);
        let frame = frame.frame(&mut pair.pool).expect("a buffer");
        let trace = pair.switches[0].explain(&pair.pool, pair.now, GUEST, &frame);
        let step = trace.steps.iter().find_map(|step| if let Step::Member(way) = step { Some(*way) } else { None });
        let Some(Ok(Way::Numbered(member, number))) = step else { panic!("{trace}") };
        pair.switches[0].rx(&mut pair.pool, pair.now, GUEST, frame);
        // Hellos have none.
        let (port, is) = loop {
            let (port, out) = pair.switches[0].tx(&mut pair.pool, pair.now).expect("it leaves at once");
            let is = number::read(pair.pool.bytes(&out)).map(|number| number.value);
            pair.pool.free(out);
            if is.is_some() {
                break (port, is);
            }
        };
        assert_eq!((pair.switches[0].program().uplink.as_ref().unwrap().port_of(member), Some(number)), (port, is));
        used.insert(member);
        pair.now = pair.now.plus_ns(100_000);
    }
    assert!(used.len() > 1);
    pair.clear();
}

/// What a trace says of a frame with a number: whether it is its turn, and what it meets behind.
#[test]
fn a_trace_looks_behind_the_number_and_knows_a_copy() {
    let mut pair = Pair::new(Mode::Broadcast, &[GBIT; 2], 17).agreed();
    let leave = |pair: &mut Pair, label: u8| {
        let frame = eth(mac(1), mac(2)).ipv4(ip(1), ip(2)).udp(1000, 2000).payload(vec![label; 700]);
        let frame = frame.frame(&mut pair.pool).expect("a buffer");
        pair.switches[0].rx(&mut pair.pool, pair.now, GUEST, frame);
        let mut copies = Vec::new();
        while let Some((port, frame)) = pair.switches[0].tx(&mut pair.pool, pair.now) {
            if is_hello(pair.pool.bytes(&frame)) {
                pair.pool.free(frame);
            } else {
                copies.push((port, frame));
            }
        }
        assert_eq!(copies.len(), 2);
        pair.now = pair.now.plus_ns(20_000);
        copies
    };
    let (first, second) = (leave(&mut pair, 1), leave(&mut pair, 2));
    let arrive = |pair: &mut Pair, (port, frame): (PortId, Frame)| {
        let told = pair.switches[1].explain(&pair.pool, pair.now, port, &frame);
        assert_eq!(told.verdict, pair.switches[1].rx(&mut pair.pool, pair.now, port, frame), "{told}");
        let is_seen = |step: &Step| matches!(step, Step::Look(Ok(headers)) if headers.destination == mac(2));
        assert!(told.steps.iter().any(is_seen), "{told}");
        let turn = |step: &Step| if let Step::Turn(turn) = step { Some(*turn) } else { None };
        let goes = told.steps.iter().any(|step| matches!(step, Step::Forward(_, Found::Declared(EndpointId(0)))));
        (told.steps.iter().find_map(turn).expect("it has a number"), goes, told.fate())
    };
    let [[a, b], [c, d]] = [first, second].map(|copies| <[(PortId, Frame); 2]>::try_from(copies).expect("two"));
    // The second one comes before the first.
    assert_eq!(arrive(&mut pair, c), (Ok(OrderDecision::Later), true, Verdict::Forwarded));
    assert_eq!(arrive(&mut pair, a), (Ok(OrderDecision::First), true, Verdict::Forwarded));
    for copy in [b, d] {
        let duplicate = (Err(Reason::Duplicate), false, Verdict::Dropped(Reason::Duplicate));
        assert_eq!(arrive(&mut pair, copy), duplicate);
    }
    pair.clear();
}

#[test]
fn two_bonds_agree_and_their_frames_have_numbers() {
    let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], 1);
    pair.run(MS);
    assert_eq!((pair.plain(0), pair.plain(1)), (None, None), "within some round trips");
    pair.send(1000, 3_000, 20 * MS);
    assert!(pair.finish().is_sorted());
    assert_eq!((pair.lost(), pair.order().late, pair.order().lost), (0, 0, 0));
    assert_eq!(pair.order().received, pair.sent);
    pair.clear();
}

/// What a member has sent is what the other end's has received.
#[test]
fn both_ends_count_numbers_alike() {
    let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], 5).agreed();
    for bytes in [8, 30, 1000] {
        pair.send(bytes, 10_000, 2 * MS);
    }
    for n in 0..10u8 {
        let frame = eth(mac(1), mac(2)).ipv4(ip(1), ip(2)).tcp(1000, 80, 7).payload(vec![n; 14_000]).gso(1400);
        let frame = frame.frame(&mut pair.pool).expect("a buffer");
        pair.switches[0].rx(&mut pair.pool, pair.now, GUEST, frame);
        pair.run(MS);
    }
    pair.finish();
    let [sent, received] = [0, 1].map(|side: usize| {
        let views = pair.switches[side].members().map(|view| view.counts.traffic);
        views.map(|both| if side == 0 { both.egress } else { both.ingress }).collect::<Vec<_>>()
    });
    assert!(sent.iter().all(|traffic| traffic.segments > traffic.frames), "some were offloaded");
    assert_eq!(sent, received);
    pair.clear();
}

/// What a switch says itself to somebody outside, as the answer of a service to ARP, has a number
/// as all that goes into a network: without, the other end would take it for the end of order.
#[test]
fn what_a_switch_answers_is_in_order_too() {
    for mode in [Mode::BalanceRr, Mode::Broadcast] {
        answers_are_in_order(Pair::new(mode, &[GBIT; 2], 3), mode, Some(10));
    }
}

/// Frames of endpoints and answers of the switch by turns.
fn answers_are_in_order(mut pair: Pair, mode: Mode, vlan: Option<u16>) {
    pair.wires[0][1].delay_ns = 300_000;
    let mut pair = pair.agreed();
    for _ in 0..50 {
        pair.send(1000, 10_000, MS);
        let mut payload = vec![0; 100];
        payload[..8].copy_from_slice(&pair.sent.to_be_bytes());
        pair.sent += 1;
        let answer = eth(mac(1), mac(2));
        let answer = vlan.into_iter().fold(answer, |answer, vlan| answer.vlan(vlan));
        let answer = answer.ipv4(ip(1), ip(2)).udp(1000, 2000).payload(payload);
        let frame = answer.frame(&mut pair.pool).expect("a buffer");
        parse::parse(&mut pair.pool, &frame).expect("sound");
        assert_eq!(pair.switches[0].answer_outside(&mut pair.pool, pair.now, Network(0), frame), Ok(()));
    }
    assert!(pair.finish().is_sorted(), "{mode:?}");
    let copies = if mode == Mode::Broadcast { 2 } else { 1 };
    let order = pair.order();
    assert_eq!((pair.lost(), order.late, order.received), (0, 0, copies * pair.sent), "{mode:?}");
    pair.clear();
}

/// Cables of other lengths and rates: nothing out of order, and the links' sum is carried.
#[test]
fn order_is_kept_at_the_links_whole_rate() {
    let fast = [GBIT; 8];
    for (rates, percent) in [(&fast[..2], 98), (&fast[..4], 98), (&fast[..8], 98), (&[GBIT, GBIT / 10][..], 97)] {
        for seed in 1..4 {
            let mut pair = Pair::new(Mode::BalanceRr, rates, seed);
            for member in 0..rates.len() {
                pair.wires[0][member].delay_ns = 5_000 + pair.random(300_000);
            }
            let mut pair = pair.agreed();
            let sum: u64 = rates.iter().sum();
            // A tag and a number on the wire beside what the receiver gets, and 2 % more than fits.
            let wire = 1472 + 42 + 8 + u64::from(crate::segment::WIRE_OVERHEAD);
            let gap_ns = wire * 8 * 980_000_000 / sum;
            pair.send(1472, gap_ns, 5 * MS);
            pair.received_bytes = 0;
            pair.send(1472, gap_ns, 40 * MS);
            let got = pair.received_bytes * 8 * 1000 / 40;
            assert!(got * 100 >= sum * percent * (wire - 8) / wire, "{} links: {got} of {sum}", rates.len());
            assert!(pair.finish().is_sorted(), "{} links, seed {seed}", rates.len());
            let order = pair.order();
            assert_eq!((order.late, order.lost, order.duplicates), (0, 0, 0), "{} links, seed {seed}", rates.len());
            pair.clear();
        }
    }
}

/// A link on which a frame takes longer than a member may say nothing: while frames leave there is
/// nothing to say, and all that the links carry is data.
#[test]
fn slow_links_that_are_busy_carry_no_marks() {
    for rate in [100, 20, 5] {
        let mut pair = Pair::new(Mode::BalanceRr, &[rate * MBIT; 2], 5).agreed();
        let wire = 1472 + 42 + 8 + u64::from(crate::segment::WIRE_OVERHEAD);
        let gap_ns = wire * 8 * 980 / (2 * rate);
        pair.send(1472, gap_ns, 100 * MS);
        (pair.seen, pair.received_bytes) = (Vec::new(), 0);
        pair.send(1472, gap_ns, 900 * MS);
        let marks = pair.seen.iter().filter(|(side, ..)| *side == 0).count();
        assert!(marks <= 4, "{rate} Mbit/s: {marks} hellos where one a second and member is due");
        let got = pair.received_bytes * 8 * 1000 / 900;
        let sum = 2 * rate * MBIT * (wire - 8) / wire;
        assert!(got * 1000 >= sum * 997, "{rate} Mbit/s: {got} of {sum}");
        assert_eq!(pair.order().late + pair.order().lost, 0, "{rate} Mbit/s");
        pair.clear();
    }
}

/// A link that has negotiated less than its member's rate, and one that does so later: neither has
/// more to send than it carries, so its device queues nothing, and nothing is late for it.
#[test]
fn a_link_slower_than_its_rate_is_sent_no_more_than_it_carries() {
    for speed in [100, 10] {
        let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], speed).agreed();
        pair.send(1472, 7_000, 5 * MS);
        pair.run(5 * MS);
        pair.wires.iter_mut().for_each(|wires| wires[1].rate = speed * MBIT);
        let negotiated = Some(Negotiated { mbit: Some(speed as u32), duplex: Duplex::Full });
        for switch in &mut pair.switches {
            switch.set_member_negotiated(&mut pair.pool, pair.now, MemberId(1), negotiated);
        }
        let sum = GBIT + speed * MBIT;
        assert_eq!(pair.switches[0].uplink_rate().expect("an uplink").egress, Rate(sum));
        // A tag and a number on the wire beside what the receiver gets, and 2 % more than fits.
        let wire = 1472 + 42 + 8 + u64::from(crate::segment::WIRE_OVERHEAD);
        (pair.received_bytes, pair.most_queued) = (0, 0);
        pair.send(1472, wire * 8 * 980_000_000 / sum, 100 * MS);
        let got = pair.received_bytes * 8 * 10;
        assert!(got * 100 >= sum * 97 * (wire - 8) / wire, "{speed} Mbit/s: {got} of {sum}");
        assert!(pair.finish().is_sorted(), "{speed} Mbit/s");
        let order = pair.order();
        assert_eq!((pair.lost(), order.late, order.lost), (0, 0, 0), "{speed} Mbit/s: {order:?}");
        assert!(pair.most_queued <= MS, "{speed} Mbit/s: a frame waited {} ns in its device", pair.most_queued);
        pair.clear();
    }
}

/// What is lost on a cable holds nobody longer than the other members' next frames.
#[test]
fn loss_is_inferred_and_leaves_order_as_it_is() {
    for seed in 1..6 {
        let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 3], seed).agreed();
        pair.wires[0][1].loses_one_of = 50;
        pair.send(1400, 5_000, 40 * MS);
        assert!(pair.finish().is_sorted(), "seed {seed}");
        assert!(pair.lost() > 10, "seed {seed}");
        assert_eq!(pair.order().lost, pair.lost(), "seed {seed}: each that was lost, and no other");
        assert!(pair.order().hold_max_ns < 1_000_000, "{} ns", pair.order().hold_max_ns);
        pair.clear();
    }
}

/// A cable is silent in one direction, and no end loses its carrier: what was on the way comes
/// again over the others.
#[test]
fn a_silent_cable_loses_nothing() {
    for seed in 1..6 {
        let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], seed).agreed();
        pair.send(1400, 30_000, 10 * MS + seed * 77_777);
        pair.wires[0][1].is_dead = true;
        let before = pair.received.len();
        pair.send(1400, 30_000, 20 * MS);
        assert!(pair.received.len() > before + 500, "seed {seed}: it goes on within 20 ms");
        pair.run(MS);
        assert_eq!(pair.lost(), 0, "seed {seed}");
        pair.send(1400, 30_000, 20 * MS);
        assert!(pair.finish().is_sorted(), "seed {seed}");
        assert_eq!((pair.lost(), pair.order().lost), (0, 0), "seed {seed}");
        // It comes back, and is used again.
        pair.wires[0][1].is_dead = false;
        pair.run(1000 * MS);
        let carried = |pair: &Pair| pair.switches[0].members().nth(1).expect("two").counts.traffic.egress.frames;
        let was = carried(&pair);
        pair.send(1400, 10_000, 5 * MS);
        assert!(carried(&pair) > was + 100, "seed {seed}");
        assert!(pair.finish().is_sorted(), "seed {seed}");
        pair.clear();
    }
}

/// A process that stands still, at either end and at any moment, for longer than a silent cable
/// takes to be noticed: no cable is taken for silent, nothing is lost or comes twice.
#[test]
fn who_stalls_is_not_taken_for_a_silent_cable() {
    for (side, seed) in (0..2).flat_map(|side| (0..24).map(move |seed| (side, seed))) {
        let mut pair = Pair::new(Mode::BalanceRr, &[GBIT, GBIT / 2, GBIT], seed).agreed();
        for member in 0..3 {
            pair.wires[0][member].delay_ns = 5_000 + pair.random(300_000);
        }
        for stall_ms in [11, 30, 200] {
            pair.send(1400, 8_000, 2 * MS + seed * 77_777);
            pair.stalls_until[side] = pair.now.plus_ns(stall_ms * MS);
            pair.run(stall_ms * MS);
            for n in 0..2 {
                let peer = pair.switches[n].bond_peer().expect("it is asked for");
                let are_heard = peer.members[..3].iter().all(|&(is_there, is_heard, _)| is_there && is_heard);
                assert!(are_heard, "side {side}, seed {seed}, {stall_ms} ms: {:?}", &peer.members[..3]);
            }
            pair.run(MS);
            for n in 0..2 {
                let peer = pair.switches[n].bond_peer().expect("it is asked for");
                assert!(peer.members[..3].iter().all(|&member| member == (true, true, true)), "seed {seed}: {peer:?}");
            }
        }
        pair.finish();
        let replayed: u64 = pair.switches[0].members().map(|view| view.counts.replayed).sum();
        assert_eq!((pair.lost(), replayed, pair.order().duplicates), (0, 0, 0), "side {side}, seed {seed}");
        pair.clear();
    }
}

/// Both ends lose their carrier, as when a cable is pulled.
#[test]
fn after_all_that_is_on_the_way_was_lost_frames_go_on() {
    for outage_ms in [300, 1_000, 2_000] {
        let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], 7).agreed();
        pair.run(100 * MS);
        // Carriers stay: nobody is told. More is sent than may be on the way.
        pair.wires[0].iter_mut().for_each(|wire| wire.is_dead = true);
        pair.send(60, 20_000, 100 * MS);
        pair.run((outage_ms - 100) * MS);
        pair.wires[0].iter_mut().for_each(|wire| wire.is_dead = false);
        pair.run(50 * MS);
        let before = pair.received.len();
        pair.send(60, 20_000, 20 * MS);
        pair.run(50 * MS);
        assert!(pair.received.len() > before + 900, "{} of 1000 after {outage_ms} ms", pair.received.len() - before);
        pair.finish();
    }
}

#[test]
fn a_pulled_cable_loses_nothing() {
    for seed in 1..6 {
        let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], seed).agreed();
        pair.send(1400, 20_000, 10 * MS + seed * 55_555);
        (pair.wires[0][1].is_dead, pair.wires[1][1].is_dead) = (true, true);
        pair.send(1400, 20_000, MS);
        (0..2).for_each(|side| pair.set(side, 1, MemberState::Down));
        let before = pair.received.len();
        pair.send(1400, 20_000, 5 * MS);
        assert!(pair.received.len() > before + 100, "seed {seed}: it goes on within 5 ms");
        assert!(pair.finish().is_sorted(), "seed {seed}");
        assert_eq!((pair.lost(), pair.order().lost), (0, 0), "seed {seed}");
        pair.clear();
    }
}

#[test]
fn either_side_begins_anew() {
    for side in 0..2 {
        let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], 7).agreed();
        pair.send(1000, 20_000, 5 * MS);
        pair.switches[side].clear(&mut pair.pool);
        let program = program(Mode::BalanceRr, true, &[GBIT; 2], 1518, side as u8 + 1);
        pair.switches[side] = Switch::new(&program, 99).expect("sound");
        (0..2).for_each(|member| pair.set(side, member, MemberState::Distributing));
        pair.run(5 * MS);
        assert_eq!((pair.plain(0), pair.plain(1)), (None, None), "side {side}");
        pair.received.clear();
        pair.sent = 0;
        pair.send(1000, 20_000, 10 * MS);
        assert!(pair.finish().is_sorted(), "side {side}");
        assert_eq!(pair.lost(), 0, "side {side}");
        pair.clear();
    }
}

/// Over links whose delays differ, and while frames pass. Until both know each other again, one
/// link carries all, and then numbers begin on that one.
#[test]
fn who_begins_anew_sends_nothing_out_of_order() {
    for (side, seed) in (0..2).flat_map(|side| (0..24).map(move |seed| (side, seed))) {
        let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 3], seed).agreed();
        for (from, member) in (0..2).flat_map(|from| (0..3).map(move |member| (from, member))) {
            pair.wires[from][member].delay_ns = 5_000 + pair.random(300_000);
        }
        pair.send(1000, 15_000, 2 * MS + seed * 33_333);
        // What is on its way to it is lost, and what it holds.
        pair.stalls_until[side] = pair.now.plus_ns(4 * MS);
        pair.switches[side].clear(&mut pair.pool);
        if side == 1 {
            pair.send(1000, 15_000, 3 * MS);
        } else {
            pair.run(3 * MS);
        }
        let Pair { pool, wires, now, .. } = &mut pair;
        for wire in &mut wires[1 - side] {
            while wire.arriving.front().is_some_and(|&(at, _)| at <= *now) {
                pool.free(wire.arriving.pop_front().expect("it has come").1);
            }
        }
        pair.stalls_until[side] = Instant::ZERO;
        pair.switches[side] = Switch::new(pair.switches[side].program(), 99).expect("sound");
        (0..3).for_each(|member| pair.set(side, member, MemberState::Distributing));
        let before = pair.sent;
        pair.send(1000, 15_000, 20 * MS);
        assert_eq!((pair.plain(0), pair.plain(1)), (None, None), "side {side}, seed {seed}");
        assert!(pair.finish().is_sorted(), "side {side}, seed {seed}");
        // Those that were sent with numbers before the other end knew of it.
        let lost = (before..pair.sent).filter(|label| !pair.received.contains(label)).max();
        let most = if side == 1 { MS / 15_000 } else { 0 };
        assert!(lost.is_none_or(|lost| lost < before + most), "side {side}, seed {seed}: {lost:?} of {before}");
        pair.clear();
    }
}

/// With a partner that says no hello, one link carries all for five milliseconds, and then each.
#[test]
fn one_link_carries_all_at_first_and_then_each() {
    let mut pair = Pair::of(Mode::BalanceRr, [true, false], &[GBIT; 3], 1518, 1);
    let carried = |pair: &Pair| -> Vec<u64> {
        pair.switches[0].members().map(|view| view.counts.traffic.egress.segments).collect()
    };
    let rate = |pair: &Pair| pair.switches[0].carried_rate().expect("an uplink").egress.0;
    assert_eq!(rate(&pair), GBIT);
    pair.send(1000, 10_000, 5 * MS);
    assert_eq!((carried(&pair), rate(&pair)), (vec![500, 0, 0], 3 * GBIT));
    pair.send(1000, 10_000, 3 * MS);
    assert_eq!(carried(&pair), [600, 100, 100]);
    pair.finish();
    assert_eq!(pair.lost(), 0);
    // Another link does not begin that again, nor does the first one where another is up.
    pair.set(0, 0, MemberState::Down);
    pair.set(0, 0, MemberState::Distributing);
    pair.send(1000, 10_000, 3 * MS);
    assert_eq!(carried(&pair), [700, 200, 200]);
    pair.finish();
    assert_eq!(pair.lost(), 0);
    pair.clear();
}

/// The link that is to carry all is dead: after five milliseconds the others do.
#[test]
fn a_dead_link_carries_all_for_five_milliseconds_only() {
    let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 3], 1);
    (pair.wires[0][0].is_dead, pair.wires[1][0].is_dead) = (true, true);
    pair.run(5 * MS);
    pair.send(1000, 10_000, 20 * MS);
    assert_eq!((pair.plain(0), pair.plain(1)), (None, None));
    assert!(pair.finish().is_sorted());
    assert_eq!(pair.lost(), 0);
    pair.clear();
}

/// Another process goes on at an end, at once.
fn take_over(pair: &mut Pair, mode: Mode, rates: &[u64], side: usize) {
    let now = pair.now;
    pair.switches[side].set_leaving(&mut pair.pool, now, true);
    pair.flush(side);
    let state = pair.switches[side].export(now);
    pair.switches[side].clear(&mut pair.pool);
    let program = program(mode, true, rates, 1518, side as u8 + 1);
    let mut next = Switch::new(&program, 99).expect("sound");
    assert_eq!(next.import(now, 0, &state).map(|imported| imported.ignored), Ok(0));
    pair.switches[side] = next;
    pair.stalls_until[side] = Instant::ZERO;
    (0..rates.len()).for_each(|member| pair.set(side, member, MemberState::Distributing));
}

/// Another process goes on at either end, while frames pass and some are on the way.
#[test]
fn a_takeover_loses_nothing_and_numbers_go_on() {
    let rr = Mode::BalanceRr;
    for (mode, side, seed) in [(rr, 0, 1), (rr, 1, 2), (Mode::Broadcast, 0, 3), (Mode::Broadcast, 1, 4)] {
        let mut pair = Pair::new(mode, &[GBIT; 2], seed).agreed();
        pair.wires[0][1].delay_ns = 300_000;
        pair.send(1000, 20_000, 5 * MS);
        pair.work();
        take_over(&mut pair, mode, &[GBIT; 2], side);
        assert_eq!((pair.plain(0), pair.plain(1)), (None, None), "{mode:?}, side {side}: at once");
        pair.send(1000, 20_000, 20 * MS);
        pair.finish();
        assert_eq!(pair.lost(), 0, "{mode:?}, side {side}");
        assert_eq!(pair.received.len() as u64, pair.sent, "{mode:?}, side {side}: none twice");
        let drops = [0, 1].map(|n: usize| pair.switches[n].uplink_drops().get(Reason::BondControl));
        assert_eq!(drops, [0, 0], "{mode:?}, side {side}");
        // What waited for order in the one before went on.
        let disorder = pair.received.windows(2).filter(|two| two[1] < two[0]).count();
        assert!(disorder <= if side == 0 { 0 } else { 16 }, "{mode:?}, side {side}: {disorder}");
        pair.clear();
    }
}

/// The process that leaves reads what frames wait for that have come, and nothing else. Then none
/// waits, and the next one goes on in order.
#[test]
fn a_takeover_keeps_order() {
    let mut waited = 0;
    for seed in 0..24 {
        let mut pair = Pair::new(Mode::BalanceRr, &[GBIT, GBIT, GBIT / 2], seed).agreed();
        for member in 0..3 {
            pair.wires[0][member].delay_ns = 5_000 + pair.random(300_000);
        }
        pair.send(1000, 10_000, 5 * MS + seed * 33_333);
        waited += u8::from(!pair.switches[1].awaited_ports().is_empty());
        // So it drains for a millisecond.
        let leaves_at = pair.now.plus_ns(MS);
        pair.stalls_until[1] = leaves_at.plus_ns(MS);
        while pair.now < leaves_at {
            pair.send(1000, 10_000, 1);
            pair.flush(1);
            let now = pair.now;
            while let Some(port) = pair.awaited() {
                let (_, frame) = pair.wires[0][port.0 as usize - 2].arriving.pop_front().expect("it has come");
                pair.switches[1].rx(&mut pair.pool, now, port, frame);
            }
        }
        assert_eq!(pair.switches[1].awaited_ports(), [], "seed {seed}");
        take_over(&mut pair, Mode::BalanceRr, &[GBIT, GBIT, GBIT / 2], 1);
        pair.send(1000, 10_000, 20 * MS);
        assert!(pair.finish().is_sorted(), "seed {seed}");
        assert_eq!((pair.lost(), pair.order().late, pair.order().lost), (0, 0, 0), "seed {seed}");
        pair.clear();
    }
    assert!(waited > 12, "frames waited {waited} times");
}

/// One that does not leave after all goes on.
#[test]
fn a_takeover_that_fails_changes_nothing() {
    let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], 5).agreed();
    pair.send(1000, 20_000, 5 * MS);
    for is_leaving in [true, false] {
        let now = pair.now;
        pair.switches[0].set_leaving(&mut pair.pool, now, is_leaving);
    }
    assert_eq!(pair.plain(0), None);
    pair.send(1000, 20_000, 5 * MS);
    assert!(pair.finish().is_sorted());
    assert_eq!((pair.lost(), pair.order().late), (0, 0));
    pair.clear();
}

#[test]
fn copies_are_taken_out_and_a_pulled_cable_loses_nothing() {
    for seed in 1..4 {
        let mut pair = Pair::new(Mode::Broadcast, &[GBIT; 3], seed).agreed();
        pair.wires[0][1].delay_ns = 400_000;
        pair.wires[0][2].loses_one_of = 20;
        pair.send(1000, 20_000, 10 * MS);
        (pair.wires[0][0].is_dead, pair.wires[1][0].is_dead) = (true, true);
        pair.send(1000, 20_000, 20 * MS);
        assert!(pair.finish().is_sorted(), "seed {seed}");
        assert_eq!((pair.lost(), pair.received.len() as u64), (0, pair.sent), "seed {seed}: each once");
        pair.clear();
    }
}

#[test]
fn with_any_other_partner_frames_are_plain() {
    let mut pair = Pair::of(Mode::BalanceRr, [true, false], &[GBIT; 2], 1518, 1);
    pair.run(2000 * MS);
    assert_eq!(pair.plain(0), Some(Plain::NoPeer));
    pair.send(1000, 20_000, 5 * MS);
    pair.finish();
    assert_eq!((pair.lost(), pair.received.len() as u64), (0, pair.sent));
    pair.clear();
}

/// A tenant's tag below a number makes the longest frame too long for ports that take one tag.
#[test]
fn without_room_for_the_number_frames_are_plain() {
    let mut pair = Pair::of(Mode::BalanceRr, [true, true], &[GBIT; 2], 1514, 1);
    pair.run(50 * MS);
    assert_eq!((pair.plain(0), pair.plain(1)), (Some(Plain::TooLong), Some(Plain::TooLong)));
    pair.send(1472, 20_000, 5 * MS);
    pair.finish();
    assert_eq!(pair.lost(), 0);
    pair.clear();
}

/// A director has the members' own MTU: what it turns around has come over them. That takes the
/// room of no number from others; what is too long with one is its loss.
#[test]
fn a_director_leaves_others_their_numbers() {
    for (encoding, max_frame) in [(Encoding::Tag, 1518), (Encoding::Shim, 1522)] {
        let programs = [0, 1].map(|side| {
            let mut program = program(Mode::BalanceRr, true, &[GBIT; 2], max_frame, side + 1);
            program.uplink.as_mut().and_then(|uplink| uplink.bond.as_mut()).expect("a bond").encoding = encoding;
            program
        });
        let mut pair = Pair::with(programs, &[GBIT; 2], 3).agreed();
        let (port, far) = (PortId(4), mac(9));
        let backend = Backend { ipv4: Some(ip(9)), mac: far, port: None, weight: 1, ..no_backend() };
        let address = Address { ip: ip(100).into(), protocol: protocol::UDP, port: 53 };
        let director = Endpoint { is_director: true, ..Endpoint::new(TenantId(0), port) };
        let service = Service {
            mac: mac(100),
            addresses: vec![address],
            backends: vec![backend],
            director: Some(EndpointId(1)),
            ..Service::default()
        };
        for change in [
            Change::Port(port, Some(PortFeatures { max_frame, ..PortFeatures::default() })),
            Change::Endpoint(EndpointId(1), Some(director)),
            Change::Service(ServiceId(0), Some(service)),
        ] {
            pair.switches[0].change(&mut pair.pool, pair.now, change).expect("it fits");
        }
        pair.run(50 * MS);
        assert_eq!((pair.plain(0), pair.plain(1)), (None, None), "{encoding:?}");
        pair.send(1472, 20_000, 5 * MS);
        // From a client outside to a backend outside: as much as has room beside a number, and a
        // byte more.
        for payload in [1472, 1473] {
            let asks = eth(mac(8), mac(100)).vlan(10).ipv4(ip(8), ip(100)).udp(1000, 53).payload(vec![0; payload]);
            let frame = asks.frame(&mut pair.pool).expect("a buffer");
            pair.switches[0].rx(&mut pair.pool, pair.now, PortId(2), frame);
            pair.run(MS);
        }
        pair.send(1472, 20_000, 5 * MS);
        assert!(pair.finish().is_sorted());
        let stats = pair.switches[0].endpoint_stats(EndpointId(1));
        assert_eq!(stats.drops.nonzero().collect::<Vec<_>>(), [(Reason::TooLong, 1)], "{encoding:?}");
        assert_eq!((pair.lost(), stats.egress.traffic.frames), (0, 2), "{encoding:?}");
        pair.clear();
    }
}

fn no_backend() -> Backend {
    Backend {
        ipv4: None,
        ipv6: None,
        mac: Mac::default(),
        port: None,
        weight: 0,
        drain_ns: 0,
        cores: 1,
        max_connections: None,
        endpoint: None,
    }
}

/// Until the other end of a member is known, a number is no tenant's tag.
#[test]
fn a_number_never_becomes_a_tag() {
    let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], 1);
    let number = crate::bond::number::Number { value: 9, is_shared: false };
    let frame = udp(9, 1).vlan(10).frame(&mut pair.pool).expect("a buffer");
    pair.pool.bytes_mut(&frame)[14..16].copy_from_slice(&number.tci().to_be_bytes());
    let verdict = pair.switches[0].rx(&mut pair.pool, NOW, PortId(2), frame);
    assert_eq!(verdict, dropped(Reason::BondControl));
    pair.clear();
}

/// Both ends want a secret, and have these.
fn with_secrets(keys: [Option<HelloKey>; 2]) -> Pair {
    with_secrets_in(Mode::BalanceRr, keys)
}

fn with_secrets_in(mode: Mode, keys: [Option<HelloKey>; 2]) -> Pair {
    let mut pair = Pair::new(mode, &[GBIT; 2], 21);
    for (side, key) in keys.into_iter().enumerate() {
        let mut program = program(mode, true, &[GBIT; 2], 1518, side as u8 + 1);
        if let Some(settings) = program.uplink.as_mut().and_then(|uplink| uplink.bond.as_mut()) {
            settings.is_keyed = true;
        }
        pair.switches[side].clear(&mut pair.pool);
        pair.switches[side] = Switch::new(&program, 40 + side as u64).expect("sound");
        pair.switches[side].set_bond_key(&mut pair.pool, NOW, key);
        (0..2).for_each(|member| pair.set(side, member, MemberState::Distributing));
    }
    pair
}

const SECRET: HelloKey = HelloKey(*b"both ends know's");

impl Pair {
    fn refused(&self, side: usize) -> u64 {
        self.switches[side].bond_peer().expect("it is asked for").refused
    }

    /// Somebody puts a frame on a wire.
    fn inject(&mut self, side: usize, member: usize, bytes: &[u8]) {
        let frame = self.pool.alloc_from(bytes).expect("room");
        self.switches[side].rx(&mut self.pool, self.now, PortId(member as u32 + 2), frame);
    }

    /// The other end of a cable is plugged in anew, or another one.
    fn flap(&mut self, member: usize) {
        for state in [MemberState::Down, MemberState::Distributing] {
            (0..2).for_each(|side| self.set(side, member, state));
        }
    }
}

#[test]
fn two_bonds_with_a_secret_agree_and_go_on_after_all_that_happens() {
    let mut pair = with_secrets([Some(SECRET); 2]);
    pair.run(2 * MS);
    assert_eq!((pair.plain(0), pair.plain(1)), (None, None), "within some round trips");
    pair.send(1000, 10_000, 10 * MS);
    // A cable flaps; either side begins anew; another process goes on.
    pair.flap(1);
    pair.run(2 * MS);
    assert_eq!((pair.plain(0), pair.plain(1)), (None, None), "a cable flaps");
    for side in 0..2 {
        let mut program = program(Mode::BalanceRr, true, &[GBIT; 2], 1518, side as u8 + 1);
        program.uplink.as_mut().and_then(|uplink| uplink.bond.as_mut()).expect("a bond").is_keyed = true;
        let now = pair.now;
        pair.switches[side].set_leaving(&mut pair.pool, now, true);
        pair.work();
        let state = pair.switches[side].export(now);
        pair.switches[side].clear(&mut pair.pool);
        let mut next = Switch::new(&program, 99).expect("sound");
        assert_eq!(next.import(now, 0, &state).map(|imported| imported.ignored), Ok(0));
        next.set_bond_key(&mut pair.pool, now, Some(SECRET));
        pair.switches[side] = next;
        (0..2).for_each(|member| pair.set(side, member, MemberState::Distributing));
        assert_eq!((pair.plain(0), pair.plain(1)), (None, None), "side {side}: a takeover, at once");
        pair.send(1000, 20_000, 20 * MS);
        assert_eq!((pair.plain(0), pair.plain(1)), (None, None), "side {side}: a takeover");
        pair.switches[side].clear(&mut pair.pool);
        pair.switches[side] = Switch::new(&program, 55 + side as u64).expect("sound");
        let now = pair.now;
        pair.switches[side].set_bond_key(&mut pair.pool, now, Some(SECRET));
        (0..2).for_each(|member| pair.set(side, member, MemberState::Distributing));
        pair.run(5 * MS);
        assert_eq!((pair.plain(0), pair.plain(1)), (None, None), "side {side}: begun anew");
    }
    pair.received.clear();
    pair.sent = 0;
    pair.send(1000, 10_000, 50 * MS);
    pair.run(5000 * MS);
    assert!(pair.finish().is_sorted());
    assert_eq!((pair.lost(), pair.plain(0), pair.plain(1)), (0, None, None));
    assert_eq!((pair.refused(0), pair.refused(1)), (0, 0), "nobody is taken for another");
    pair.clear();
}

#[test]
fn without_the_same_secret_frames_are_plain_and_it_is_said_why() {
    let other = HelloKey([1; 16]);
    for keys in [[Some(SECRET), Some(other)], [Some(SECRET), None]] {
        let mut pair = with_secrets(keys);
        pair.run(2000 * MS);
        let wanted = if keys[1].is_some() { Plain::Secret } else { Plain::NoSecret };
        assert_eq!(pair.plain(1), Some(wanted));
        pair.send(1000, 20_000, 5 * MS);
        pair.finish();
        assert_eq!((pair.lost(), pair.received.len() as u64), (0, pair.sent));
        // The operator gives it the right one.
        let now = pair.now;
        pair.switches[1].set_bond_key(&mut pair.pool, now, Some(SECRET));
        pair.run(1500 * MS);
        assert_eq!((pair.plain(0), pair.plain(1)), (None, None));
        // And takes it away.
        let now = pair.now;
        pair.switches[0].set_bond_key(&mut pair.pool, now, None);
        pair.run(10 * MS);
        assert_eq!(pair.plain(0), Some(Plain::NoSecret));
        pair.clear();
    }
    // One end has none, and wants none.
    let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], 1);
    let keyed = Hello { epoch: 7, count: 1, ..Hello::default() }.frame(Some((&SECRET, Challenge::default())));
    (0..2).for_each(|member| pair.wires[1][member].is_dead = true);
    pair.run(1000 * MS);
    pair.inject(0, 0, keyed.bytes());
    pair.run(1500 * MS);
    assert_eq!((pair.plain(0), pair.refused(0)), (Some(Plain::Secret), 1));
    pair.clear();
}

/// Whoever is on a cable may say what was said: before, on the other cable, by a peer that is gone,
/// by the other end itself; or make something up.
#[test]
fn what_was_said_before_or_is_made_up_changes_nothing() {
    let mut pair = with_secrets([Some(SECRET); 2]);
    pair.send(1000, 20_000, 50 * MS);
    // The sender begins anew: what it said before is of a peer that is gone.
    let mut program = program(Mode::BalanceRr, true, &[GBIT; 2], 1518, 1);
    program.uplink.as_mut().and_then(|uplink| uplink.bond.as_mut()).expect("a bond").is_keyed = true;
    pair.switches[0].clear(&mut pair.pool);
    pair.switches[0] = Switch::new(&program, 99).expect("sound");
    let now = pair.now;
    pair.switches[0].set_bond_key(&mut pair.pool, now, Some(SECRET));
    (0..2).for_each(|member| pair.set(0, member, MemberState::Distributing));
    pair.run(20 * MS);
    pair.received.clear();
    pair.sent = 0;
    let was_received = pair.order().received;
    pair.was_plain = false;
    let mut forged = 0;
    for round in 0..400 {
        let seen = pair.seen.len();
        assert!(seen > 60 && pair.seen.iter().all(|(_, _, bytes)| bytes.len() == KEYED_BYTES));
        for _ in 0..4 {
            let which = pair.random(seen as u64) as usize;
            let (_, _, mut bytes) = pair.seen[which].clone();
            let (side, member) = (pair.random(2) as usize, pair.random(2) as usize);
            if round % 2 == 0 {
                let bit = pair.random(8 * 46) as usize + 8 * (HELLO_BYTES - 46);
                bytes[bit / 8] ^= 1 << (bit % 8);
                forged += 1;
            }
            pair.inject(side, member, &bytes);
        }
        pair.send(1000, 20_000, MS / 2);
    }
    assert!(!pair.was_plain);
    assert!(pair.finish().is_sorted());
    let order = pair.order();
    assert_eq!((pair.lost(), order.late, order.lost, order.duplicates), (0, 0, 0, 0));
    assert_eq!(order.received - was_received, pair.sent, "all had numbers");
    assert!(pair.refused(0) + pair.refused(1) >= forged, "{forged}");
    let peer = pair.switches[1].bond_peer().expect("it is asked for");
    assert_eq!(peer.members[..2], [(true, true, true); 2]);
    pair.clear();
}

/// A second tenant at each switch, which floods: whatever of the bond it uses up is no other's.
mod neighbours {
    use super::*;

    /// Tenant 1's endpoint is behind the members' ports.
    fn crowded(rates: &[u64], pool: PoolLimits, seed: u64) -> Pair {
        let mut pair = Pair::of(Mode::BalanceRr, [true, true], rates, 1518, seed);
        for side in 0..2 {
            let mut program = program(Mode::BalanceRr, true, rates, 1518, side as u8 + 1);
            let port = flooder(rates.len());
            let tenant = Tenant { attachment: Attachment::Vlan(20), ..Tenant::default() };
            program.tenants.set(1, Some(tenant));
            let identity = Identity { macs: vec![mac(side as u8 + 11)], ..Identity::default() };
            let one = Endpoint { identity, queue_bytes: 4 << 20, ..Endpoint::new(TenantId(1), port) };
            program.endpoints.set(1, Some(one));
            program.ports.set(port.0, Some(PortFeatures::default()));
            pair.switches[side].clear(&mut pair.pool);
            pair.switches[side] = Switch::new(&program, seed * 2 + side as u64).expect("sound");
        }
        pair.pool = Pool::new(pool);
        for (side, member) in (0..2).flat_map(|side| (0..rates.len()).map(move |member| (side, member))) {
            pair.set(side, member, MemberState::Distributing);
        }
        pair.agreed()
    }

    fn flooder(members: usize) -> PortId {
        PortId(members as u32 + 2)
    }

    impl Pair {
        /// The first tenant sends a frame each `gap_ns`; the second one of the shortest each
        /// `every` nanoseconds.
        fn send_among(&mut self, gap_ns: u64, for_ns: u64) {
            let end = self.now.plus_ns(for_ns);
            let mut due = self.now;
            while self.now < end {
                if due <= self.now {
                    due = due.plus_ns(gap_ns);
                    self.send(1000, 1, 1);
                }
                let frame = eth(mac(11), mac(12)).ipv4(ip(11), ip(12)).udp(7, 9).payload(vec![0; 18]);
                if let Some(frame) = frame.frame(&mut self.pool) {
                    let port = flooder(self.members);
                    self.switches[0].rx(&mut self.pool, self.now, port, frame);
                }
                self.run(self.every);
            }
        }
    }

    #[test]
    fn a_flood_of_short_frames_leaves_others_in_order() {
        // Over a cable that is longer by more than numbers can tell apart, fewer leave.
        for (seed, delay_ns, least) in [(1, 320_000, 70_000), (2, 320_000, 70_000), (3, MS, 40_000)] {
            let pool = PoolLimits { small: 40_000, medium: 1000, large: 200 };
            let mut pair = crowded(&[GBIT; 2], pool, seed);
            pair.wires[0][1].delay_ns = delay_ns;
            pair.send_among(50_000, 30 * MS);
            assert!(pair.finish().is_sorted(), "seed {seed}: {:?}", pair.order());
            let order = pair.order();
            assert!(order.received > least, "{order:?}");
            assert_eq!((pair.lost(), order.late, order.lost), (0, 0, 0), "seed {seed}: {order:?}");
            pair.clear();
        }
    }

    /// Numbers are used up faster than a silent cable is noticed. So no more are on the way than
    /// can be waited for: what went over it comes again, frames pass again in the time that takes,
    /// and nobody but who floods loses any.
    #[test]
    fn in_a_flood_a_silent_cable_loses_nothing_of_others() {
        for seed in 1..4 {
            let pool = PoolLimits { small: 12_000, medium: 1000, large: 200 };
            let mut pair = crowded(&[GBIT; 2], pool, seed);
            pair.send_among(50_000, 12 * MS + seed * 777_777);
            pair.wires[0][1].is_dead = true;
            let before = pair.received.len();
            pair.send_among(50_000, 25 * MS);
            assert!(pair.received.len() > before + 400, "seed {seed}: {} of 500", pair.received.len() - before);
            pair.send_among(50_000, 15 * MS);
            assert!(pair.finish().is_sorted(), "seed {seed}: {:?}", pair.order());
            assert_eq!((pair.lost(), pair.order().late), (0, 0), "seed {seed}: {:?}", pair.order());
            pair.clear();
        }
    }

    /// What the other end says of what it has is lost, too, and asked for: a flood goes on.
    #[test]
    fn where_answers_are_lost_a_flood_goes_on() {
        let pool = PoolLimits { small: 12_000, medium: 1000, large: 200 };
        let mut pair = crowded(&[GBIT; 2], pool, 1);
        pair.wires[1].iter_mut().for_each(|wire| wire.loses_one_of = 2);
        pair.send_among(50_000, 30 * MS);
        assert!(pair.finish().is_sorted());
        let order = pair.order();
        assert!(order.received > 70_000, "{order:?}");
        assert_eq!((pair.lost(), order.late, order.lost), (0, 0, 0), "{order:?}");
        pair.clear();
    }

    /// With fewer numbers than fit into the time, nobody waits, and nothing of anybody is lost.
    #[test]
    fn with_a_neighbour_of_less_a_silent_cable_loses_nothing() {
        for seed in 1..4 {
            let pool = PoolLimits { small: 12_000, medium: 1000, large: 200 };
            let mut pair = crowded(&[GBIT; 2], pool, seed);
            pair.every = 18_000;
            pair.send_among(90_000, 12 * MS + seed * 777_777);
            pair.wires[0][1].is_dead = true;
            pair.send_among(90_000, 40 * MS);
            pair.finish();
            assert_eq!((pair.lost(), pair.order().lost), (0, 0), "seed {seed}: {:?}", pair.order());
            pair.clear();
        }
    }

    /// The other end says nothing of what it has, so all is kept for 20 ms, and memory is for less
    /// than that: who floods has no more kept than his part, and all of who sends little is kept.
    #[test]
    fn who_floods_has_no_more_kept_than_his_part() {
        for seed in 1..4 {
            let pool = PoolLimits { small: 1000, medium: 0, large: 0 };
            let mut pair = crowded(&[GBIT; 2], pool, seed);
            pair.every = 18_000;
            pair.wires[1].iter_mut().for_each(|wire| wire.is_dead = true);
            pair.send_among(2 * MS, 25 * MS);
            let bond = pair.switches[0].bond.as_ref().expect("one");
            let kept = |id| bond.kept_bytes(EndpointId(id)) / u64::from(crate::frame::Class::Small.bytes());
            assert!((10..=11).contains(&kept(0)), "seed {seed}: {} of 20 ms", kept(0));
            assert!((100..500).contains(&kept(1)), "seed {seed}: {} of 1111 in 20 ms", kept(1));
            pair.clear();
        }
    }

    /// What is kept is nobody's any more when its endpoint goes, and gone when the bond goes.
    #[test]
    fn who_goes_leaves_nothing_charged() {
        let pool = PoolLimits { small: 12_000, medium: 1000, large: 200 };
        let mut pair = crowded(&[GBIT; 2], pool, 1);
        pair.send_among(50_000, 5 * MS);
        let kept = |pair: &Pair, id| pair.switches[0].bond.as_ref().map_or(0, |bond| bond.kept_bytes(EndpointId(id)));
        assert!(kept(&pair, 0) > 0 && kept(&pair, 1) > 0);
        let Pair { pool, switches, now, .. } = &mut pair;
        switches[0].change(pool, *now, Change::Endpoint(EndpointId(1), None)).expect("it is there");
        switches[0].change(pool, *now, Change::Tenant(TenantId(1), None)).expect("it is empty");
        assert!(kept(&pair, 1) > 0, "it may be sent again all the same");
        pair.send(1000, 50_000, 5 * MS);
        pair.run(30 * MS);
        assert_eq!((kept(&pair, 0), kept(&pair, 1)), (0, 0), "the other end has it, or it is old");
        pair.send(1000, 50_000, 5 * MS);
        let Pair { pool, switches, now, .. } = &mut pair;
        switches[0].change(pool, *now, Change::Uplink(None)).expect("it may go");
        pair.run(MS);
        pair.clear();
    }
}

mod random {
    use super::*;
    use crate::bond::order::MOST_REPLAY_NS;
    use crate::bond::{LineState, PeerState};
    use crate::switch::State;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        /// Cables of any length that lose, die and come back: in order but for what is late, while
        /// frames have numbers; nothing twice, nothing lost to the pool.
        #[test]
        fn whatever_cables_do(seed in 0..1_000_000u64, links in 2..5usize, is_broadcast: bool,
                              events in proptest::collection::vec((0..4u8, 0..4usize, 1..8u64), 0..12)) {
            let mode = if is_broadcast { Mode::Broadcast } else { Mode::BalanceRr };
            let mut pair = Pair::new(mode, &[GBIT; 4][..links], seed).agreed();
            for member in 0..links {
                pair.wires[0][member].delay_ns = 1_000 + pair.random(500_000);
            }
            for (what, member, ms) in events {
                let member = member % links;
                match what {
                    0 => pair.wires[0][member].loses_one_of = ms * 30,
                    1 => pair.wires[0][member].is_dead ^= true,
                    2 => (0..2).for_each(|side| pair.set(side, member, MemberState::Down)),
                    _ => (0..2).for_each(|side| pair.set(side, member, MemberState::Distributing)),
                }
                pair.send(1200, 25_000, ms * MS);
            }
            pair.finish();
            // Where all members fail, frames go without numbers for a while. What was sent before
            // may then come after them over another cable, and each copy comes.
            let all: BTreeSet<_> = pair.received.iter().collect();
            prop_assert!(pair.was_plain || all.len() == pair.received.len(), "{} twice", pair.received.len() - all.len());
            let out_of_order = pair.received.windows(2).filter(|pair| pair[1] < pair[0]).count() as u64;
            prop_assert!(pair.was_plain || out_of_order <= pair.order().late, "{} and {:?}", out_of_order, pair.order());
            prop_assert!(pair.order().hold_max_ns <= MOST_REPLAY_NS + 1, "{:?}", pair.order());
            pair.clear();
        }

        /// Whatever another process hands over: nothing is lost to the pool, and frames pass.
        #[test]
        fn whatever_is_handed_over(
            (epoch, other, said, heard) in any::<(u64, u64, u32, u32)>(),
            next in prop_oneof![any::<u64>(), 4000..5000u64],
            expected in prop_oneof![Just(None), any::<u64>().prop_map(Some), (4000..5000u64).prop_map(Some)],
            missing in proptest::option::of(proptest::collection::vec(prop_oneof![any::<u64>(), 2000..5000u64], 0..9)),
            are_cut: bool,
            lines in proptest::collection::vec((0..18u8, 0..18u8, any::<(u16, bool, u32)>()), 0..4),
        ) {
            let line = |&(member, theirs, (max_frame, is_received, sent)): &(u8, u8, (u16, bool, u32))| {
                (MemberId(member), LineState { own: None, theirs, max_frame, is_received, sent })
            };
            let members = lines.iter().map(line).collect();
            let bond = Some(PeerState { epoch, other, said, heard, next, expected, missing, are_cut, members });
            let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], 3).agreed();
            pair.switches[1].clear(&mut pair.pool);
            let program = program(Mode::BalanceRr, true, &[GBIT; 2], 1518, 2);
            let mut switch = Switch::new(&program, 99).expect("sound");
            let state = State { bond, ..switch.export(pair.now) };
            switch.import(pair.now, 0, &state).expect("the own version");
            pair.switches[1] = switch;
            (0..2).for_each(|member| pair.set(1, member, MemberState::Distributing));
            pair.send(1000, 100_000, 10 * MS);
            pair.run(3000 * MS);
            pair.received.clear();
            pair.sent = 0;
            pair.send(1000, 100_000, 10 * MS);
            pair.finish();
            prop_assert_eq!((pair.lost(), pair.received.len() as u64), (0, pair.sent));
            pair.clear();
        }

        /// Whatever the other end says and numbers: nothing is lost to the pool, and what the bond
        /// holds leaves within a replay's time.
        #[test]
        fn whatever_the_other_end_says(words in proptest::collection::vec(
            (any::<[u64; 2]>(), any::<[u16; 5]>(), 0..8u8, 0..2usize, 0..2_000_000u64), 1..150)) {
            let mut pair = Pair::new(Mode::BalanceRr, &[GBIT; 2], 3).agreed();
            for ([epoch, heard], [receives, below, next, value, size], flags, member, wait) in words {
                let hello = Hello {
                    epoch: epoch % 4,
                    heard: heard % 4,
                    count: u32::from(size),
                    member: (value % 20) as u8,
                    receives,
                    is_numbered: flags & 1 != 0,
                    has_pieces: flags & 2 != 0,
                    asks: receives & 64 != 0,
                    below: below % 4094,
                    next: (flags & 4 != 0).then_some(next % 4094),
                    sent: 0,
                    max_frame: size,
                    encoding: if flags & 5 == 5 { Encoding::Shim } else { Encoding::Tag },
                };
                let bytes = hello.bytes();
                let frame = pair.pool.alloc_from(&bytes).expect("room");
                pair.switches[1].rx(&mut pair.pool, pair.now, PortId(member as u32 + 2), frame);
                let number = crate::bond::number::Number { value: value % 4094, is_shared: flags & 2 != 0 };
                let frame = udp(9, 2).vlan(10).frame(&mut pair.pool).expect("a buffer");
                pair.pool.bytes_mut(&frame)[14..16].copy_from_slice(&number.tci().to_be_bytes());
                pair.switches[1].rx(&mut pair.pool, pair.now, PortId(member as u32 + 2), frame);
                pair.run(wait);
            }
            pair.run(20 * MS);
            prop_assert_eq!(pair.order().waiting, 0);
            pair.clear();
        }
    }
}
