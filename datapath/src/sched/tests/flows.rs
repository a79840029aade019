//! Flow queues: an endpoint's own flows do not wait for each other, and nobody else notices.

use super::*;
use crate::aqm::codel::Codel;
use crate::frame::Chain;
use crate::sched::flows::{First, Flows};
use crate::stats::LaneStats;
use crate::wire::build::eth;
use crate::wire::{Mac, parse};

/// Wire bytes of a full frame of a flow here, and of a short one.
const FULL: u32 = 1538;
const SHORT: u32 = 124;

/// A UDP frame of flow `flow`.
fn of(rig: &mut Rig, flow: u16, wire: u32) -> Frame {
    let frame = eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]))
        .ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
        .udp(flow, 53)
        .payload(vec![0; wire as usize - 24 - 42])
        .frame(&mut rig.pool)
        .expect("a buffer");
    let (bytes, meta) = rig.pool.parts_mut(&frame);
    (meta.layout, meta.wire_bytes) = (parse(bytes).expect("well formed"), wire);
    frame
}

fn flow_of(rig: &Rig, frame: &Frame) -> u16 {
    let bytes = rig.pool.bytes(frame);
    u16::from_be_bytes([bytes[34], bytes[35]])
}

fn rig(endpoints: usize) -> Rig {
    let shares = vec![share(0, 0, 1); endpoints];
    Rig::new(OrderKind::Fair, 100, &[(share(0, 0, 1), &shares)])
}

fn put(rig: &mut Rig, endpoint: u32, flow: u16, wire: u32) -> Result<(), Reason> {
    let frame = of(rig, flow, wire);
    rig.scheduler.enqueue(&mut rig.pool, rig.now, Plane::Wire, EndpointId(endpoint), frame)
}

/// The flows of the next `frames` that leave, as fast as the link lets them.
fn take(rig: &mut Rig, frames: usize) -> Vec<u16> {
    let mut flows = Vec::new();
    while flows.len() < frames && rig.scheduler.frames() > 0 {
        match rig.scheduler.dequeue(&mut rig.pool, rig.now, Plane::Wire) {
            Some((_, frame)) => {
                flows.push(flow_of(rig, &frame));
                rig.pool.free(frame);
            }
            None => rig.now = rig.now.plus_ns(1000),
        }
    }
    flows
}

fn stats(rig: &Rig, endpoint: u32) -> (LaneStats, u64) {
    let lane = rig.scheduler.tree(Plane::Wire).lane(EndpointId(endpoint));
    (lane.stats(), lane.aqm_drops())
}

fn done(mut rig: Rig) {
    rig.scheduler.clear(&mut rig.pool);
    assert_eq!((rig.pool.in_use(), rig.scheduler.frames()), (0, 0));
}

#[test]
fn a_sparse_flow_goes_first_however_many_wait() {
    let mut rig = rig(1);
    for n in 0..200 {
        put(&mut rig, 0, 1 + n % 40, FULL).expect("room");
    }
    // All have had their turn as new ones, with two frames each (the first is a little less than a
    // quantum), and those that were before them theirs in between.
    take(&mut rig, 120);
    for _ in 0..10 {
        put(&mut rig, 0, 1000, SHORT).expect("room");
        let next = take(&mut rig, 1);
        assert_eq!(next, [1000], "it is served before the round of all others is over");
    }
    done(rig);
}

#[test]
fn flows_share_alike_and_each_in_its_order() {
    let mut rig = rig(1);
    // The second sends twice as much, and the third in frames of a third.
    for _ in 0..60 {
        put(&mut rig, 0, 1, FULL).expect("room");
        put(&mut rig, 0, 2, FULL).expect("room");
        put(&mut rig, 0, 2, FULL).expect("room");
        (0..3).for_each(|_| put(&mut rig, 0, 3, FULL / 3).expect("room"));
    }
    let mut bytes = [0u32; 4];
    for flow in take(&mut rig, 150) {
        bytes[usize::from(flow)] += if flow == 3 { FULL / 3 } else { FULL };
    }
    let most = bytes[1..].iter().max().unwrap() - bytes[1..].iter().min().unwrap();
    assert!(most <= 2 * 1600, "{bytes:?}");
    done(rig);
}

#[test]
fn who_comes_again_and_again_has_no_more_than_its_part() {
    let mut rig = rig(1);
    // Flow 1 always waits; flow 2 puts in a frame whenever its last one has left, so that it is new
    // each time.
    for _ in 0..300 {
        put(&mut rig, 0, 1, FULL).expect("room");
    }
    put(&mut rig, 0, 2, FULL).expect("room");
    let mut counts = [0; 3];
    for _ in 0..300 {
        let [flow] = take(&mut rig, 1)[..] else { panic!("something waits") };
        counts[usize::from(flow)] += 1;
        if flow == 2 {
            put(&mut rig, 0, 2, FULL).expect("room");
        }
    }
    assert!((145..=155).contains(&counts[2]), "{counts:?}");
    done(rig);
}

#[test]
fn a_flood_of_new_flows_does_not_stop_one_that_goes_on() {
    let mut rig = rig(1);
    for _ in 0..200 {
        put(&mut rig, 0, 1, FULL).expect("room");
    }
    // For each frame that leaves come two of flows that were never seen.
    let (mut next, mut of_first) = (1000, 0);
    for _ in 0..300 {
        put(&mut rig, 0, next, FULL).expect("room");
        put(&mut rig, 0, next + 1, FULL).expect("room");
        next += 2;
        of_first += take(&mut rig, 1).iter().filter(|&&flow| flow == 1).count();
    }
    assert!(of_first >= 300 / 6, "{of_first} of 300");
    done(rig);
}

#[test]
fn however_much_new_flows_have_sent_one_that_goes_on_has_its_turn() {
    const QUANTUM: u32 = 80_000;
    let (mut flows, mut pool) = (Flows::new(7), Pool::new(PoolLimits { small: 64, medium: 0, large: 0 }));
    flows.reserve(1);
    let first = First { chain: Chain::default(), wire_bytes: 0, hash: 1, codel: Codel::default() };
    let spread = flows.spread(0, first, QUANTUM).expect("room for a lane");
    let put = |flows: &mut Flows, pool: &mut Pool, hash: u32| {
        let at = flows.find_or_open(spread, hash, QUANTUM);
        let frame = pool.alloc(60).expect("a buffer");
        pool.meta_mut(&frame).wire_bytes = QUANTUM;
        flows.push(pool, at, frame);
    };
    let take = |flows: &mut Flows, pool: &mut Pool| {
        let at = flows.pick(spread, QUANTUM).expect("something waits");
        let queue = flows.queue(at);
        let (frame, hash) = (queue.chain.pop(pool).expect("it waits there"), queue.hash);
        queue.wire_bytes -= QUANTUM;
        pool.free(frame);
        flows.serve(at, QUANTUM);
        hash
    };
    // More than 31 bits of bytes, each flow with one frame, so that none goes on.
    for n in 0..30_000 {
        put(&mut flows, &mut pool, 100 + n);
        take(&mut flows, &mut pool);
    }
    for _ in 0..3 {
        put(&mut flows, &mut pool, 7);
    }
    let served = (0..12).filter(|n| {
        put(&mut flows, &mut pool, 50_000 + n);
        take(&mut flows, &mut pool) == 7
    });
    assert_eq!(served.count(), 3);
}

#[test]
fn no_tenant_uses_up_the_queues() {
    let mut flows = Flows::new(7);
    flows.reserve(2);
    let hash = |n: u32| (u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u32;
    let first = |n| First { chain: Chain::default(), wire_bytes: 0, hash: hash(n), codel: Codel::default() };
    // Eight lanes of one tenant open as many as they get.
    let mut opened = 0;
    for lane in 0..8 {
        let spread = flows.spread(0, first(lane), 1538).expect("room for a lane");
        for n in 0..2000 {
            flows.find_or_open(spread, hash(100 + lane * 2000 + n), 1538);
        }
        opened += flows.count(spread);
    }
    assert!((3000..=4096).contains(&opened), "{opened}: half at most");
    let spread = flows.spread(1, first(9), 1538).expect("room for another tenant");
    for n in 0..2000 {
        flows.find_or_open(spread, hash(50_000 + n), 1538);
    }
    assert!(flows.count(spread) >= 900, "{}", flows.count(spread));
}

#[test]
fn a_full_lane_takes_what_a_small_flow_sends() {
    let mut rig = rig(1);
    while put(&mut rig, 0, 1, FULL).is_ok() {}
    assert!(put(&mut rig, 0, 1, FULL).is_err(), "the flow that filled it gets no more");
    for n in 0..100 {
        put(&mut rig, 0, 100 + n, FULL).expect("a flow that has less than its part does");
    }
    let (lane, dropped) = stats(&rig, 0);
    assert!(lane.backlog_bytes <= 1 << 20 && (1..=101).contains(&dropped), "{dropped} of the first flow's went");
    done(rig);
}

#[test]
fn each_flow_has_its_own_signals() {
    let mut rig = rig(1);
    // Flow 1 keeps the lane full; flow 2 sends a frame each millisecond, a tenth of the link.
    let end = rig.now.plus_ns(SECOND);
    let (mut sent, mut came) = (0, 0);
    while rig.now < end {
        for _ in 0..10 {
            // What does not fit is lost.
            let _ = put(&mut rig, 0, 1, FULL);
        }
        put(&mut rig, 0, 2, FULL).expect("nothing of it is lost");
        sent += 1;
        while let Some((_, frame)) = rig.scheduler.dequeue(&mut rig.pool, rig.now, Plane::Wire) {
            came += u32::from(flow_of(&rig, &frame) == 2);
            rig.pool.free(frame);
        }
        rig.now = rig.now.plus_ns(1_000_000);
    }
    assert!(stats(&rig, 0).1 > 10, "flow 1 is signalled");
    assert!(sent - came <= 2, "{came} of {sent}");
    done(rig);
}

#[test]
fn more_flows_than_there_are_queues_for_are_served_all_the_same() {
    let mut rig = rig(8);
    for n in 0..8 {
        rig.program.endpoints[n].queue_bytes = 1 << 24;
        rig.scheduler.set_endpoint(&rig.pool, rig.now, EndpointId(n as u32), &rig.program.endpoints[n]);
    }
    let mut put_in = 0;
    for flow in 0..2000 {
        for endpoint in 0..8 {
            put_in += usize::from(put(&mut rig, endpoint, flow, SHORT).is_ok());
        }
    }
    let mut flows = take(&mut rig, put_in);
    let (_, dropped): (Vec<_>, Vec<_>) = (0..8).map(|endpoint| stats(&rig, endpoint)).unzip();
    assert_eq!(flows.len() + dropped.iter().sum::<u64>() as usize, put_in);
    flows.sort_unstable();
    flows.dedup();
    assert!(flows.len() > 1900, "{} flows were served", flows.len());
    done(rig);
}

#[test]
fn changes_and_removal_keep_what_waits() {
    for order in [OrderKind::Fair, OrderKind::Wf2q, OrderKind::VtrrBytes] {
        let mut rig = Rig::new(order, 100, &[(share(0, 0, 1), &[share(0, 0, 1), share(0, 0, 1)])]);
        for n in 0..60 {
            put(&mut rig, n % 2, (n % 7) as u16, FULL).expect("room");
        }
        take(&mut rig, 5);
        // Another discipline makes it one queue; the lane's own parts it again.
        rig.program.endpoints[0].aqm = Some(crate::aqm::Discipline::DropTail);
        rig.scheduler.set_endpoint(&rig.pool, rig.now, EndpointId(0), &rig.program.endpoints[0]);
        take(&mut rig, 5);
        rig.program.endpoints[0].aqm = None;
        rig.scheduler.set_endpoint(&rig.pool, rig.now, EndpointId(0), &rig.program.endpoints[0]);
        let owner = rig.pool.open_account(Owner::NOBODY);
        rig.scheduler.set_owner(&mut rig.pool, EndpointId(1), owner);
        put(&mut rig, 0, 77, SHORT).expect("room");
        assert_eq!(take(&mut rig, 40).len(), 40);
        let freed = rig.scheduler.remove_endpoint(&mut rig.pool, EndpointId(1));
        let left = take(&mut rig, 60).len();
        assert_eq!(freed as usize + left, 60 + 1 - 50, "{order:?}");
        rig.scheduler.clear(&mut rig.pool);
        assert_eq!(rig.pool.in_use(), 0);
    }
}
