//! Pair limits and arrivals through the whole switch: the rate, who is not harmed, what is counted,
//! and what changes do.

use super::*;
use crate::pair::{MOST_OF_ENDPOINT, PairError};
use crate::program::{Change, Endpoint, IngressMode, PortId, Program};
use crate::sched::tree::QUANTUM_MIN;
use crate::segment;
use crate::switch::chaos::{Dice, MBIT, MS, OUTSIDE, Rig, endpoint, ip, limited, mac, program, udp, uplink};
use crate::verdict::Verdict;
use crate::wire::Mac;
use crate::wire::build::{Build, arp_request, eth};
use std::collections::BTreeMap;

mod talk;

const SECOND: u64 = 1_000_000_000;
/// Wire bytes of `udp(.., vec![0; 1458])`, tagged: a full frame.
const FULL: u64 = 1528;
const PEER: u32 = OUTSIDE + 1;
const ME: EndpointId = EndpointId(0);

fn full(to: u32) -> Build<'static> {
    udp(0, to, vec![0; 1458])
}

fn toward(n: u32) -> Toward {
    Toward::Address(mac(n))
}

fn limit(rig: &mut Rig, to: Toward, bps: u64) {
    let rate = (bps > 0).then_some(Rate(bps));
    rig.switch.limit_pair(&mut rig.pool, rig.now, ME, to, rate).expect("room");
    assert_eq!(rig.switch.frames(), rig.pool.in_use(), "a frame was lost");
}

/// Wire bytes that left by the uplink, by destination.
type Sent = BTreeMap<Mac, u64>;

/// Sends each of `frames` so many times every `step_ns`, for `ns`; what left meanwhile.
fn load(rig: &mut Rig, ns: u64, step_ns: u64, frames: &[(u32, Build<'_>)]) -> Sent {
    let mut sent = Sent::new();
    let end = rig.now.plus_ns(ns);
    while rig.now < end {
        for (times, frame) in frames {
            for _ in 0..*times {
                rig.rx(1, frame);
            }
        }
        pass(rig, step_ns.min(end.since(rig.now)), &mut sent);
    }
    sent
}

fn pass(rig: &mut Rig, ns: u64, sent: &mut Sent) {
    let end = rig.now.plus_ns(ns);
    loop {
        while let Some((port, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
            if port == PortId(0) {
                let to = Mac(*rig.pool.bytes(&frame).first_chunk().expect("an address"));
                *sent.entry(to).or_default() += u64::from(rig.pool.meta(&frame).wire_bytes);
            }
            rig.pool.free(frame);
        }
        match rig.switch.poll_timeout().filter(|&at| at <= end) {
            Some(at) => rig.now = at.max(rig.now.plus_ns(1)),
            None => break,
        }
    }
    rig.now = end;
}

fn to(sent: &Sent, n: u32) -> u64 {
    sent.get(&mac(n)).copied().unwrap_or(0)
}

fn backlog(rig: &Rig, n: u32) -> u64 {
    rig.switch.pairs(ME).find(|pair| pair.to == toward(n)).map_or(0, |pair| pair.stats.backlog_bytes)
}

#[test]
fn the_rate_is_exact_within_two_frames() {
    for mbit in [1, 7, 100, 333, 900] {
        let mut rig = Rig::new(&program(&[endpoint(0, 0)]));
        limit(&mut rig, toward(OUTSIDE), mbit * MBIT);
        // A frame each 250 us is 49 Mbit/s.
        let times = (mbit / 25).max(1) as u32;
        let frame = 1542.max(Rate(mbit * MBIT).bytes_in(100_000));
        for second in 0..2 {
            let sent = to(&load(&mut rig, SECOND, 250_000, &[(times, full(OUTSIDE))]), OUTSIDE);
            let allowed = mbit * MBIT / 8;
            assert!(sent.abs_diff(allowed) <= 2 * frame, "{mbit} Mbit/s, second {second}: {sent} of {allowed}");
            assert!(backlog(&rig, OUTSIDE) > 0, "{mbit} Mbit/s: it must have been in need all the time");
        }
        rig.switch.clear(&mut rig.pool);
        assert_eq!(rig.pool.in_use(), 0);
    }
}

#[test]
fn other_destinations_are_not_harmed() {
    let mut rig = Rig::new(&program(&[endpoint(0, 0), endpoint(1, 0)]));
    limit(&mut rig, toward(OUTSIDE), 10 * MBIT);
    // 500 Mbit/s and more toward one that takes 10, and 300 toward another.
    let frames = [(10, full(OUTSIDE)), (6, full(PEER))];
    let sent = load(&mut rig, SECOND, 244_480, &frames);
    let offered = SECOND / 244_480 * 6 * FULL;
    assert!(to(&sent, PEER) * 1000 >= offered * 999, "{} of {offered}", to(&sent, PEER));
    assert!(to(&sent, OUTSIDE).abs_diff(10 * MBIT / 8) <= 2 * 1542);
    assert!(rig.drops(0, Reason::PairLimit) > 10_000);
    let stats = rig.switch.endpoint_stats(ME);
    assert!(stats.egress.sojourn_max_ns < MS, "nobody else waits: {} ns", stats.egress.sojourn_max_ns);
    assert_eq!((stats.drops.get(Reason::QueueFull), stats.drops.get(Reason::NoBuffer)), (0, 0));
    assert!(!rig.switch.is_paused(PortId(1), rig.now), "it may read on for the others");
    assert_eq!(rig.rx(1, &udp(0, 1, vec![1])), Verdict::Forwarded, "nor do neighbours");
    assert_eq!(rig.due().iter().filter(|(port, _)| *port == 2).count(), 1);
}

#[test]
fn a_lifted_limit_lets_go_at_once_and_in_order() {
    let mut rig = Rig::new(&program(&[endpoint(0, 0)]));
    limit(&mut rig, toward(OUTSIDE), MBIT);
    let mut number = 0..;
    let mut send = |rig: &mut Rig, times| {
        for n in number.by_ref().take(times) {
            rig.rx(1, &udp(0, OUTSIDE, vec![n; 1000]));
        }
    };
    send(&mut rig, 60);
    let mut out = rig.run(MS);
    assert!(out.len() < 3, "held back");
    limit(&mut rig, toward(OUTSIDE), 0);
    send(&mut rig, 20);
    assert_eq!(rig.switch.pairs(ME).count(), 0);
    // 80 frames of about 1100 bytes at 1 Gbit/s take 0.7 ms.
    out.append(&mut rig.run(MS));
    let numbers: Vec<u8> = out.iter().map(|(_, bytes)| *bytes.last().expect("a number")).collect();
    assert_eq!(numbers, (0..80).collect::<Vec<u8>>());
    assert_eq!(rig.drops(0, Reason::PairLimit) + rig.drops(0, Reason::QueueFull), 0);
}

#[test]
fn another_rate_takes_effect_at_once() {
    let mut rig = Rig::new(&program(&[endpoint(0, 0)]));
    let frames = [(8, full(OUTSIDE))];
    let check = |rig: &mut Rig, mbit: u64| {
        limit(rig, toward(OUTSIDE), mbit * MBIT);
        let sent = to(&load(rig, 10 * MS, 100_000, &frames), OUTSIDE);
        let frame = 1542.max(Rate(mbit * MBIT).bytes_in(100_000));
        assert!(sent.abs_diff(mbit * MBIT / 800) <= 2 * frame, "{mbit} Mbit/s: {sent} in 10 ms");
    };
    for mbit in [500, 20, 900, 2, 100, 101, 99, 100] {
        check(&mut rig, mbit);
    }
    // A frame at 1 kbit/s takes twelve seconds, but not if the rate is another one meanwhile.
    limit(&mut rig, toward(OUTSIDE), 1000);
    let mut sent = load(&mut rig, 20 * MS, MS, &frames);
    assert!(to(&sent, OUTSIDE) <= 2 * 1542);
    limit(&mut rig, toward(OUTSIDE), 100 * MBIT);
    sent.clear();
    pass(&mut rig, MS, &mut sent);
    assert!(to(&sent, OUTSIDE) >= 12_500 - 2 * 1542);
}

#[test]
fn a_rate_that_changes_all_the_time_is_still_exact() {
    let mut rig = Rig::new(&program(&[endpoint(0, 0)]));
    let (mut sent, mut allowed, mut dice) = (0, 0, Dice(5));
    for _ in 0..1000 {
        let mbit = 50 + dice.below(200);
        limit(&mut rig, toward(OUTSIDE), mbit * MBIT);
        sent += to(&load(&mut rig, MS, 250_000, &[(6, full(OUTSIDE))]), OUTSIDE);
        allowed += mbit * MBIT / 8000;
    }
    assert!(sent.abs_diff(allowed) <= 2 * 3125 + 1000, "{sent} of {allowed}");
}

#[test]
fn its_queue_signals_by_marks_and_trims() {
    for (tos, marked) in [(2, true), (0, false)] {
        let mut rig = Rig::new(&program(&[endpoint(0, 0)]));
        limit(&mut rig, toward(OUTSIDE), 50 * MBIT);
        let long = eth(mac(0), mac(OUTSIDE)).ipv4(ip(), ip()).tos(tos).tcp(1, 2, 3).payload(vec![0; 14_480]).gso(1448);
        // 60 Mbit/s: a little too much, so that the queue stands before it is full.
        let sent = to(&load(&mut rig, 100 * MS, 2 * MS, &[(1, long)]), OUTSIDE);
        assert!(sent.abs_diff(625_000) <= 2 * 1542, "{sent}");
        let pair = rig.switch.pairs(ME).next().expect("a pair").stats;
        assert_eq!((pair.marks > 0, pair.trims + rig.drops(0, Reason::Aqm) > 0), (marked, !marked), "{pair:?}");
        let (stats, uplink) = (rig.switch.endpoint_stats(ME), rig.switch.uplink_stats().egress);
        assert_eq!((stats.egress.marks, uplink.marks, uplink.trims), (pair.marks, pair.marks, pair.trims));
        let aqm = rig.drops(0, Reason::Aqm);
        limit(&mut rig, toward(OUTSIDE), 0);
        let after = rig.switch.endpoint_stats(ME);
        assert_eq!((after.egress.marks, after.egress.trims), (pair.marks, pair.trims), "they stay counted");
        assert_eq!(rig.drops(0, Reason::Aqm), aqm);
    }
}

#[test]
fn a_flood_of_small_frames_is_held_to_the_rate_and_to_its_memory() {
    let mut rig = Rig::new(&program(&[endpoint(0, 0)]));
    let small = |n| udp(0, n, vec![0; 18]);
    let frames: Vec<(u32, Build<'_>)> = (0..40).map(|n| (4, small(OUTSIDE + n))).collect();
    for n in 0..40 {
        limit(&mut rig, toward(OUTSIDE + n), MBIT);
    }
    let sent = load(&mut rig, SECOND, MS, &frames);
    for n in 0..40 {
        // A limit begins somewhere within the time of the longest frame that it sends at once.
        let missing = QUANTUM_MIN + 2 * 88;
        assert!(to(&sent, OUTSIDE + n).abs_diff(MBIT / 8) <= missing, "{n}: {}", to(&sent, OUTSIDE + n));
    }
    // Eight times the queue's 1 MiB, in buffers of 2 KiB; one limited pair alone may have a quarter
    // of it.
    assert!(rig.pool.in_use() <= 4096 + 40, "{} buffers", rig.pool.in_use());
    let mut alone = Rig::new(&program(&[endpoint(0, 0)]));
    limit(&mut alone, toward(OUTSIDE), 400 * MBIT);
    load(&mut alone, 100 * MS, MS, &[(2000, small(OUTSIDE))]);
    assert!(alone.pool.in_use() <= 1024, "{} buffers", alone.pool.in_use());
    assert!(alone.drops(0, Reason::PairLimit) > 0);
    assert_eq!(alone.drops(0, Reason::NoBuffer), 0);
}

#[test]
fn toward_everyone_is_all_that_leaves_the_host() {
    let mut rig = Rig::new(&program(&[endpoint(0, 0), endpoint(1, 0)]));
    limit(&mut rig, Toward::Everyone, 20 * MBIT);
    limit(&mut rig, toward(PEER), 5 * MBIT);
    let everybody = arp_request(mac(0), ip(), ip());
    let frames = [(4, full(OUTSIDE)), (2, full(PEER)), (1, everybody.clone())];
    let sent = load(&mut rig, SECOND, MS, &frames);
    let all: u64 = sent.values().sum();
    assert!(all.abs_diff(20 * MBIT / 8) <= 2 * 1542, "{all}");
    assert!(sent.contains_key(&Mac::BROADCAST));
    let peer = to(&sent, PEER);
    assert!(peer > 0 && peer <= 5 * MBIT / 8 + 2 * 1542, "both limits hold: {peer}");
    let pairs: Vec<(Toward, Rate)> = rig.switch.pairs(ME).map(|pair| (pair.to, pair.rate)).collect();
    assert_eq!(pairs, [(toward(PEER), Rate(5 * MBIT)), (Toward::Everyone, Rate(20 * MBIT))]);
    // A limit toward one address concerns no group, and neighbours are not over the uplink.
    limit(&mut rig, Toward::Everyone, 0);
    rig.run(SECOND);
    rig.rx(1, &everybody);
    rig.rx(1, &udp(0, 1, vec![0; 30]));
    assert_eq!(rig.due().iter().map(|(port, _)| *port).collect::<Vec<_>>(), [0, 2, 2]);
}

#[test]
fn the_limits_of_endpoint_and_tenant_hold_behind_it() {
    let mut rig = Rig::new(&program(&[Endpoint { share: limited(30), ..endpoint(0, 0) }]));
    limit(&mut rig, toward(OUTSIDE), 20 * MBIT);
    limit(&mut rig, toward(PEER), 20 * MBIT);
    let sent = load(&mut rig, SECOND, MS, &[(4, full(OUTSIDE)), (4, full(PEER))]);
    let all: u64 = sent.values().sum();
    assert!(all.abs_diff(30 * MBIT / 8) <= 12_500 + 2 * 1542, "{all}");
}

#[test]
fn what_cannot_be_limited_is_refused() {
    let mut rig = Rig::new(&program(&[endpoint(0, 0)]));
    let mut ask = |from, to| rig.switch.limit_pair(&mut rig.pool, rig.now, EndpointId(from), to, Some(Rate(MBIT)));
    assert_eq!(ask(1, Toward::Everyone), Err(PairError::Vacant(EndpointId(1))));
    for mac in [Mac::BROADCAST, Mac([1, 0, 0x5e, 0, 0, 1]), Mac::default()] {
        assert_eq!(ask(0, Toward::Address(mac)), Err(PairError::NotAnAddress(mac)));
    }
    for n in 0..MOST_OF_ENDPOINT {
        assert_eq!(ask(0, toward(100 + n)), Ok(()));
    }
    let full = PairError::TooManyOfEndpoint(ME);
    assert_eq!(ask(0, Toward::Everyone), Err(full));
    assert_eq!(full.to_string(), "endpoint 0 is limited toward 1024 destinations already; lift one first");
    assert_eq!(ask(0, toward(100)), Ok(()), "one that there is may change");
    limit(&mut rig, toward(100), 0);
    limit(&mut rig, Toward::Everyone, MBIT);
}

#[test]
fn limits_go_with_their_endpoint_and_stay_through_its_changes() {
    let mut rig = Rig::new(&program(&[endpoint(0, 0), endpoint(1, 0)]));
    limit(&mut rig, toward(OUTSIDE), MBIT);
    limit(&mut rig, Toward::Everyone, 2 * MBIT);
    let send = |rig: &mut Rig, times| (0..times).for_each(|_| _ = rig.rx(1, &full(OUTSIDE)));
    let leave = |rig: &mut Rig| rig.run(MS).iter().filter(|(port, _)| *port == 0).count();
    send(&mut rig, 40);
    rig.add(0, Endpoint { queue_bytes: 30_000, ..endpoint(0, 0) });
    let first = (0..40).map(|_| leave(&mut rig)).find(|&frames| frames > 0);
    assert_eq!((rig.switch.pairs(ME).count(), first), (2, Some(1)), "changed: all that waits stays");
    send(&mut rig, 1);
    assert_eq!(rig.drops(0, Reason::PairLimit), 1, "and it has the new bound");
    rig.change(Change::Uplink(None)).expect("no endpoint needs it");
    assert_eq!((rig.drops(0, Reason::Removed), rig.switch.frames()), (39, 0));
    rig.change(Change::Uplink(Some(uplink(1000)))).expect("a port");
    send(&mut rig, 5);
    assert!(leave(&mut rig) <= 1, "the limits are still there");
    rig.remove(0);
    assert_eq!((rig.switch.pairs(ME).count(), rig.switch.frames()), (0, 0));
    assert!(rig.switch.uplink_drops().get(Reason::Removed) >= 4);
    rig.add(0, endpoint(0, 0));
    send(&mut rig, 20);
    assert_eq!(leave(&mut rig), 20, "the next owner is not limited");
}

/// What was told of arrivals in all, by receiver and source, and what waits.
#[derive(Default, Debug)]
struct Told {
    arrived: BTreeMap<(u32, Option<Mac>), u64>,
    dropped: BTreeMap<(u32, Option<Mac>), u64>,
    backlog: BTreeMap<u32, u64>,
    last_dropped: BTreeMap<u32, Mac>,
}

impl Told {
    fn sample(&mut self, rig: &mut Rig) {
        let (mut arrivals, mut queues) = (vec![], vec![]);
        rig.switch.take_arrivals(&mut arrivals, &mut queues);
        self.backlog.clear();
        for queue in &queues {
            let of: Vec<&Arrival> = arrivals.iter().filter(|arrival| arrival.to == queue.endpoint).collect();
            let sums = (of.iter().map(|a| a.wire_bytes).sum(), of.iter().map(|a| a.dropped_bytes).sum());
            assert_eq!((queue.arrived_bytes, queue.dropped_bytes), sums, "all of it has a source");
            assert_eq!(queue.last_dropped.is_some(), queue.dropped_bytes > 0);
            self.backlog.insert(queue.endpoint.0, queue.backlog_bytes);
            if let Some(mac) = queue.last_dropped {
                self.last_dropped.insert(queue.endpoint.0, mac);
            }
        }
        for Arrival { to, from, wire_bytes, dropped_bytes } in arrivals {
            assert!(wire_bytes + dropped_bytes > 0, "only what is not zero");
            *self.arrived.entry((to.0, from)).or_default() += wire_bytes;
            *self.dropped.entry((to.0, from)).or_default() += dropped_bytes;
        }
    }
}

fn from_outside(from: u32, to: Mac, bytes: usize, gso: bool) -> Build<'static> {
    let frame = eth(mac(from), to).ipv4(ip(), ip()).udp(1, 2).payload(vec![0; bytes]).vlan(10);
    if gso { frame.gso(1000) } else { frame }
}

/// Frames from three sources for two endpoints over a slow link, some offloaded, some for everyone.
/// By endpoint and source, wire bytes that were received, and that were delivered.
#[allow(clippy::type_complexity)]
fn receive(rig: &mut Rig, told: &mut Told) -> [BTreeMap<(u32, Option<Mac>), u64>; 2] {
    let (mut received, mut delivered) = (BTreeMap::new(), BTreeMap::new());
    let mut dice = Dice(11);
    for round in 0..3000 {
        let from = OUTSIDE + dice.below(3) as u32;
        // Segments that need no padding, with or without a tag.
        let (to, bytes) = (dice.below(5) as u32, dice.below(5) as usize * 1000 + 100);
        let bytes = if bytes > 1000 { bytes - 100 } else { bytes };
        let for_all = to == 4;
        let frame = from_outside(from, if for_all { Mac::BROADCAST } else { mac(to / 2) }, bytes, bytes > 1000);
        let handle = frame.frame(&mut rig.pool).expect("a buffer");
        let verdict = rig.switch.rx(&mut rig.pool, rig.now, PortId(0), handle);
        if verdict == Verdict::Forwarded {
            let wire = wire_bytes(rig, &frame);
            for to in (0..2).filter(|&e| for_all || e == to / 2) {
                *received.entry((to, Some(mac(from)))).or_default() += wire;
            }
        }
        let end = rig.now.plus_ns(100_000);
        while let Some(at) = rig.switch.poll_timeout().filter(|&at| at <= end) {
            rig.now = at.max(rig.now.plus_ns(1));
            while let Some((port, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
                let meta = *rig.pool.meta(&frame);
                // The tag is off by now, of each segment.
                let wire = u64::from(segment::wire_bytes(rig.pool.len(&frame), &meta.layout, &meta.offload))
                    + 4 * u64::from(segment::segments(&meta.layout, &meta.offload));
                let source = Mac(rig.pool.bytes(&frame)[6..12].try_into().expect("six bytes"));
                *delivered.entry((port.0 - 1, Some(source))).or_default() += wire;
                rig.pool.free(frame);
            }
        }
        rig.now = end;
        if round % 7 == 0 {
            told.sample(rig);
        }
    }
    told.sample(rig);
    [received, delivered]
}

/// Wire bytes of a frame as it is received.
fn wire_bytes(rig: &mut Rig, frame: &Build<'_>) -> u64 {
    let handle = frame.frame(&mut rig.pool).expect("a buffer");
    let layout = crate::wire::parse(rig.pool.bytes(&handle)).expect("headers");
    let bytes = segment::wire_bytes(rig.pool.len(&handle), &layout, &rig.pool.meta(&handle).offload);
    rig.pool.free(handle);
    u64::from(bytes)
}

fn slow(ingress: IngressMode) -> Rig {
    let like = |n| Endpoint { queue_bytes: 40_000, ..endpoint(n, 0) };
    Rig::new(&Program { uplink: Some(uplink(100)), ingress, ..program(&[like(0), like(1)]) })
}

#[test]
fn arrivals_are_what_was_received_and_losses_what_was_not_delivered() {
    for mode in [IngressMode::Queue, IngressMode::Police] {
        let mut rig = slow(mode);
        let mut told = Told::default();
        told.sample(&mut rig);
        rig.switch.watch_arrivals(true);
        let [received, delivered] = receive(&mut rig, &mut told);
        assert_eq!(told.arrived, received, "{mode:?}");
        assert!(told.dropped.values().sum::<u64>() > 100_000, "{mode:?}: it must have been too much");
        for to in 0..2 {
            let of = |bytes: &BTreeMap<(u32, Option<Mac>), u64>| -> u64 {
                bytes.iter().filter(|(key, _)| key.0 == to).map(|(_, bytes)| bytes).sum()
            };
            let waits = told.backlog.get(&to).copied().unwrap_or(0);
            assert_eq!(of(&received), of(&delivered) + of(&told.dropped) + waits, "{mode:?}, endpoint {to}");
        }
        // Source by source, once nothing waits any more.
        rig.switch.clear(&mut rig.pool);
        told.sample(&mut rig);
        for (key, bytes) in &received {
            let gone = bytes - delivered[key] - told.dropped[key];
            assert!(gone <= 40_000 + 5000, "{mode:?}, {key:?}: {gone} bytes are lost without a trace");
        }
        assert_eq!(told.last_dropped.len(), 2);
    }
}

#[test]
fn drops_are_their_senders() {
    let mut rig = slow(IngressMode::Queue);
    rig.switch.watch_arrivals(true);
    let mut told = Told::default();
    // A flood for the first endpoint; one that sends little does so to the other.
    for step in 0..200 {
        for _ in 0..20 {
            rig.rx(0, &from_outside(OUTSIDE, mac(0), 1400, false));
        }
        if step % 10 == 0 {
            rig.rx(0, &from_outside(PEER, mac(1), 1400, false));
        }
        rig.run(MS);
        told.sample(&mut rig);
    }
    assert!(told.dropped[&(0, Some(mac(OUTSIDE)))] > 1_000_000);
    assert_eq!(told.dropped[&(1, Some(mac(PEER)))], 0);
    assert_eq!(told.last_dropped, BTreeMap::from([(0, mac(OUTSIDE))]));
    // A standing queue without a sample's arrivals is still told of; then nothing is.
    rig.rx(0, &from_outside(OUTSIDE, mac(0), 1400, false));
    let (mut arrivals, mut queues) = (vec![], vec![]);
    rig.switch.take_arrivals(&mut arrivals, &mut queues);
    assert_eq!((arrivals.len(), queues.len()), (1, 1));
    rig.switch.take_arrivals(&mut arrivals, &mut queues);
    assert_eq!((arrivals.len(), queues.len(), queues[0].arrived_bytes), (0, 1, 0));
    assert!(queues[0].backlog_bytes > 0);
    rig.run(SECOND);
    rig.switch.take_arrivals(&mut arrivals, &mut queues);
    rig.switch.take_arrivals(&mut arrivals, &mut queues);
    assert_eq!((arrivals.len(), queues.len()), (0, 0));
}

#[test]
fn what_arrived_for_a_removed_endpoint_is_not_its_successors() {
    let mut rig = slow(IngressMode::Queue);
    rig.switch.watch_arrivals(true);
    for _ in 0..100 {
        rig.rx(0, &from_outside(OUTSIDE, mac(0), 1400, false));
    }
    rig.remove(0);
    rig.add(0, endpoint(0, 0));
    let (mut arrivals, mut queues) = (vec![], vec![]);
    rig.switch.take_arrivals(&mut arrivals, &mut queues);
    assert_eq!((arrivals.len(), queues.len()), (0, 0));
    rig.rx(0, &from_outside(OUTSIDE, mac(0), 1400, false));
    rig.switch.watch_arrivals(false);
    rig.switch.watch_arrivals(true);
    rig.switch.take_arrivals(&mut arrivals, &mut queues);
    assert_eq!(arrivals.len(), 0, "counted from nothing");
    assert_eq!(queues[0].backlog_bytes, 1400 + 42 + 4 + 24, "but what waits does");
}
