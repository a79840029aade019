//! What the agents of hosts say to each other, through the whole switch: it passes when its
//! endpoint's own flood fills the link and the queue, it is bounded, and nobody else can say it.

use super::*;
use crate::aqm::Discipline;
use crate::program::AgentTraffic;
use crate::units::Both;
use std::net::Ipv4Addr;

const PORT: u16 = 7370;

/// Endpoint 0 is the host's own; endpoint 1 is a tenant's, in the same network.
fn rig_of_host() -> Rig {
    let rate = Rate(10 * MBIT);
    let agent_traffic = AgentTraffic { address: ip().into(), port: PORT, rate: Both { egress: rate, ingress: rate } };
    Rig::new(&program(&[Endpoint { agent_traffic: Some(agent_traffic), ..endpoint(0, 0) }, endpoint(1, 0)]))
}

/// An endpoint has one queue for all its flows.
fn one_queue(rig: &mut Rig, n: u32) {
    let mut endpoint = rig.switch.program().endpoints[n as usize].clone();
    endpoint.aqm = Some(Discipline::Codel);
    rig.change(Change::Endpoint(EndpointId(n), Some(endpoint))).unwrap();
}

/// A datagram of the agents of `from`.
fn said(from: u32, to: u32) -> Build<'static> {
    eth(mac(from), mac(to)).ipv4(ip(), Ipv4Addr::new(10, 0, 0, 2)).udp(PORT, PORT).payload(vec![0; 100])
}

/// Sends so many frames of each kind every 100 us for a tenth of a second; how many of `said` left,
/// and how late the last one was.
fn flooded(rig: &mut Rig, port: u32, flood: &Build<'_>, said: &Build<'_>, times: u32, out: u32) -> (u32, u64) {
    let (mut left, mut late) = (0, 0);
    let length = said.bytes().len();
    for step in 0..1000 {
        for _ in 0..20 {
            rig.rx(port, flood);
        }
        for _ in 0..if step % 10 == 0 { times } else { 0 } {
            rig.rx(port, said);
        }
        let end = rig.now.plus_ns(100_000);
        while rig.now < end {
            while let Some((port, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
                if port == PortId(out) && rig.pool.bytes(&frame).len() < length + 8 {
                    left += 1;
                    late = late.max(rig.now.since(rig.pool.meta(&frame).queued));
                }
                rig.pool.free(frame);
            }
            rig.now = rig.switch.poll_timeout().unwrap_or(end).clamp(rig.now.plus_ns(1), end);
        }
    }
    (left, late)
}

#[test]
fn what_agents_say_passes_when_the_host_itself_fills_the_link() {
    let mut rig = rig_of_host();
    // Twenty full frames in 100 us are 2.4 Gbit/s over a link of 1.
    let (left, late) = flooded(&mut rig, 1, &full(OUTSIDE), &said(0, OUTSIDE), 1, 0);
    assert_eq!(left, 100);
    assert!(late < 100_000, "{late} ns");
    assert!(rig.drops(0, Reason::QueueFull) + rig.drops(0, Reason::Aqm) > 1000, "the flood was dropped");
    assert!(!rig.switch.is_paused(PortId(1), rig.now), "what is not read cannot pass");
    assert_eq!(rig.switch.frames(), rig.pool.in_use(), "a frame was lost");
    rig.switch.clear(&mut rig.pool);
    assert_eq!(rig.pool.in_use(), 0);
}

#[test]
fn what_agents_hear_passes_when_the_hosts_queue_is_full() {
    let mut rig = rig_of_host();
    let heard = eth(mac(OUTSIDE), mac(0)).vlan(10).ipv4(Ipv4Addr::new(10, 0, 0, 2), ip()).udp(PORT, PORT);
    let flood = eth(mac(OUTSIDE), mac(0)).vlan(10).ipv4(Ipv4Addr::new(10, 0, 0, 3), ip()).udp(1, 2);
    let (left, late) = flooded(&mut rig, 0, &flood.payload(vec![0; 1458]), &heard.payload(vec![0; 100]), 1, 1);
    assert_eq!(left, 100);
    assert!(late < 100_000, "{late} ns");
}

#[test]
fn nobody_else_goes_ahead_and_nobody_for_long() {
    // A tenant that speaks from the same address and port waits in its queue like all, and loses
    // like all: with one queue for all its flows.
    let mut rig = rig_of_host();
    one_queue(&mut rig, 1);
    let flood = udp(1, OUTSIDE, vec![0; 1458]);
    let (left, late) = flooded(&mut rig, 2, &flood, &said(1, OUTSIDE), 1, 0);
    assert!(left < 100 && late > MS, "{left} of 100, {late} ns");
    // The host's own are bounded: 100 in a millisecond, 136 Mbit/s, get 10 of them, and the rest
    // waits.
    let mut rig = rig_of_host();
    one_queue(&mut rig, 0);
    let (left, _) = flooded(&mut rig, 1, &full(OUTSIDE), &said(0, OUTSIDE), 100, 0);
    let at_rate = 10 * MBIT / 8 / 10 / 170;
    assert!(u64::from(left) < 10_000 * 8 / 10 && u64::from(left) > at_rate, "{left}");
}

#[test]
fn limits_of_pairs_do_not_hold_agents_back() {
    let mut rig = rig_of_host();
    limit(&mut rig, Toward::Everyone, 64_000);
    limit(&mut rig, toward(OUTSIDE), 64_000);
    let (left, late) = flooded(&mut rig, 1, &full(OUTSIDE), &said(0, OUTSIDE), 1, 0);
    assert_eq!(left, 100);
    assert!(late < 100_000, "{late} ns");
    assert!(rig.drops(0, Reason::PairLimit) > 1000);
}

/// The agents' words are no contention: who is alone with them has the whole link, and other agents
/// do not hear of an endpoint that receives.
#[test]
fn what_agents_hear_is_no_contention() {
    let rate = Rate(10 * MBIT);
    let agent_traffic = AgentTraffic { address: ip().into(), port: PORT, rate: Both { egress: rate, ingress: rate } };
    let mut program = program(&[Endpoint { agent_traffic: Some(agent_traffic), ..endpoint(0, 0) }, endpoint(1, 1)]);
    program.uplink = Some(crate::program::Uplink { headroom_ppm: 200_000, ..uplink(1000) });
    let flood = eth(mac(OUTSIDE), mac(1)).vlan(11).ipv4(Ipv4Addr::new(10, 0, 0, 2), ip()).udp(1, 2);
    let (flood, words) = (flood.payload(vec![0; 1458]), |port| {
        let heard = eth(mac(OUTSIDE), mac(0)).vlan(10).ipv4(Ipv4Addr::new(10, 0, 0, 2), ip());
        heard.udp(PORT, port).payload(vec![0; 100])
    });
    let of_flood = |heard: &Build<'_>, times: u32| {
        let mut rig = Rig::new(&program);
        rig.switch.watch_arrivals(true);
        let passed = |rig: &Rig| rig.switch.endpoint_stats(EndpointId(1)).ingress.traffic.wire_bytes * 8 / 100_000;
        flooded(&mut rig, 0, &flood, heard, times, 1);
        let before = passed(&rig);
        flooded(&mut rig, 0, &flood, heard, times, 1);
        let (mut arrivals, mut queues) = (Vec::new(), Vec::new());
        rig.switch.take_arrivals(&mut arrivals, &mut queues);
        (
            passed(&rig) - before,
            arrivals.iter().filter(|arrival| arrival.to == EndpointId(0)).map(|a| a.wire_bytes).sum::<u64>(),
        )
    };
    let (alone, counted) = of_flood(&words(PORT), 1);
    assert!((980..=1001).contains(&alone), "{alone} Mbit/s");
    assert_eq!(counted, 0);
    let (beside, counted) = of_flood(&words(9), 1);
    assert!((780..=820).contains(&beside), "{beside} Mbit/s beside another tenant's");
    assert!(counted > 100 * 100);
    // A flood of what looks like agents is traffic.
    let (beside, counted) = of_flood(&words(PORT), 100);
    assert!(beside <= 820, "{beside} Mbit/s");
    assert!(counted > 5_000 * 100);
}
