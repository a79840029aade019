//! What passes an empty scheduler is as if it had been queued and had come out: two schedulers have
//! the same frames, changes and looks, and one of them lets pass what may.

use super::*;
use crate::aqm::Discipline;
use crate::random::dice;
use crate::segment;
use crate::wire::build::eth;
use crate::wire::{Mac, parse};

/// Frames, changes and looks of one run, and the runs of each order.
const STEPS: u32 = 2_000;
const RUNS: u64 = 100;

/// Two schedulers of the same program, each with its pool; the first passes frames.
struct Twins {
    program: Program,
    schedulers: [Scheduler; 2],
    pools: [Pool; 2],
    now: Instant,
    state: u64,
    /// A frame's number, in its bytes.
    number: u32,
    passed: u32,
    /// Of these, of several segments.
    passed_whole: u32,
    waited: u32,
}

impl Twins {
    fn new(order: OrderKind, seed: u64) -> Twins {
        let (mut state, mut program) = (seed, Program { order, ..Program::default() });
        let rate = Rate(u64::from(10 + dice(&mut state) % 990) * MBIT);
        if !dice(&mut state).is_multiple_of(4) {
            program.uplink = Some(Uplink::new(PortId(0), Both { egress: rate, ingress: rate }));
        }
        for _ in 0..1 + dice(&mut state) % 3 {
            program.tenants.push(Tenant { share: any_share(&mut state), ..Tenant::default() });
        }
        for index in 0..1 + dice(&mut state) % 6 {
            let tenant = TenantId(index % program.tenants.len() as u32);
            program.endpoints.push(any_endpoint(&mut state, tenant));
        }
        let limits = PoolLimits { small: 400, medium: 40, large: 0 };
        Twins {
            schedulers: [0, 1].map(|_| Scheduler::new(&program, Direction::Ingress, 7)),
            pools: [0, 1].map(|_| Pool::new(limits)),
            program,
            now: Instant(SECOND),
            state,
            number: 0,
            passed: 0,
            passed_whole: 0,
            waited: 0,
        }
    }

    fn below(&mut self, n: u32) -> u32 {
        dice(&mut self.state) % n
    }

    /// A frame comes. In the second scheduler it is queued; what passes the first one comes out of
    /// the second at once.
    fn arrive(&mut self, plane: Plane) {
        let endpoint = EndpointId(self.below(self.program.endpoints.len() as u32));
        // Of TCP data in one frame, and in segments: 2, 9, and more than leave at one turn.
        let (data, size) = match self.below(16) {
            0..=7 => (0, 0),
            8..=9 => (1448, 0),
            10..=11 => (2946, 0),
            12..=13 => (2896, 1448),
            14 => (12_001, 1448),
            _ => (2896, 40),
        };
        let ecn = self.below(3) as u8;
        self.number += 1;
        let mut to = [0; 6];
        to[..4].copy_from_slice(&self.number.to_be_bytes());
        let build = eth(Mac(to), Mac([2; 6])).ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).tos(ecn);
        let build = build.tcp(1, 2, 0).payload(vec![0; data]);
        let build = if size > 0 { build.partial().gso(size) } else { build };
        let [first, second] = &mut self.pools;
        let frames = [first, second].map(|pool| {
            let frame = build.frame(pool)?;
            let (bytes, meta) = pool.parts_mut(&frame);
            meta.layout = parse(bytes).expect("well formed");
            meta.wire_bytes = segment::wire_bytes(bytes.len(), &meta.layout, &meta.offload);
            Some(frame)
        });
        let [Some(one), Some(other)] = frames else {
            assert_eq!(frames, [None, None], "one has a buffer that the other has not");
            return;
        };
        let [a, b] = &mut self.schedulers;
        let queued = b.enqueue(&mut self.pools[1], self.now, plane, endpoint, other);
        let passes = match size {
            0 => a.pass(&mut self.pools[0], self.now, plane, endpoint, &one),
            _ => a.pass_segments(&mut self.pools[0], self.now, plane, endpoint, &one),
        };
        if passes {
            self.passed += 1;
            self.passed_whole += u32::from(size > 0);
            assert_eq!(queued, Ok(()), "what passes would have been taken");
            let (of, same) = b.dequeue(&mut self.pools[1], self.now, plane).expect("what passes would have gone");
            assert_eq!(of, endpoint);
            let bytes = [(&self.pools[0], &one), (&self.pools[1], &same)].map(|(pool, frame)| pool.bytes(frame));
            assert_eq!(bytes[0], bytes[1]);
            self.pools[0].free(one);
            self.pools[1].free(same);
            return;
        }
        self.waited += 1;
        assert_eq!(a.enqueue(&mut self.pools[0], self.now, plane, endpoint, one), queued);
    }

    /// Takes out what may go, up to so many frames.
    fn take(&mut self, plane: Plane, most: u32) {
        for _ in 0..most {
            let mut out = [0, 1].map(|which| {
                let (scheduler, pool) = (&mut self.schedulers[which], &mut self.pools[which]);
                let (endpoint, frame) = scheduler.dequeue(pool, self.now, plane)?;
                let number = pool.bytes(&frame)[..4].to_vec();
                let meta = (pool.len(&frame), pool.meta(&frame).queued);
                pool.free(frame);
                Some((endpoint, number, meta))
            });
            assert_eq!(out[0].take(), out[1].clone());
            if out[1].is_none() {
                return;
            }
        }
    }

    fn change(&mut self) {
        let index = self.below(self.program.endpoints.len() as u32);
        let tenant = self.below(self.program.tenants.len() as u32);
        match self.below(4) {
            0 => {
                let changed = Tenant { share: any_share(&mut self.state), ..Tenant::default() };
                self.schedulers.iter_mut().for_each(|one| one.set_tenant(self.now, TenantId(tenant), &changed));
            }
            1 => {
                let of = self.program.endpoints[index as usize].tenant;
                let changed = any_endpoint(&mut self.state, of);
                for (one, pool) in self.schedulers.iter_mut().zip(&self.pools) {
                    one.set_endpoint(pool, self.now, EndpointId(index), &changed);
                }
            }
            2 => {
                let rate = Rate(u64::from(10 + self.below(990)) * MBIT);
                let uplink = Uplink::new(PortId(0), Both { egress: rate, ingress: rate });
                self.schedulers.iter_mut().for_each(|one| one.set_uplink(self.now, Some(&uplink)));
            }
            _ => {
                let changed = any_endpoint(&mut self.state, TenantId(tenant));
                for (one, pool) in self.schedulers.iter_mut().zip(&mut self.pools) {
                    one.remove_endpoint(pool, EndpointId(index));
                    one.add_endpoint(EndpointId(index), &changed);
                }
                self.program.endpoints[index as usize] = changed;
            }
        }
    }

    /// All that can be seen from outside is the same.
    fn compare(&self) {
        let [a, b] = &self.schedulers;
        assert_eq!(a.poll_timeout(), b.poll_timeout());
        assert_eq!(self.pools[0].in_use(), self.pools[1].in_use());
        for (id, endpoint) in self.program.endpoints.iter() {
            let id = EndpointId(id);
            assert_eq!(a.sojourn(id), b.sojourn(id));
            assert_eq!(a.wait_ns(id, endpoint.tenant, self.now), b.wait_ns(id, endpoint.tenant, self.now));
            for plane in [Plane::Wire, Plane::Local] {
                assert_eq!(a.tree(plane).endpoint_stats(id), b.tree(plane).endpoint_stats(id));
                let aqms = [a, b].map(|one| one.tree(plane).aqm(id).map(|aqm| aqm.queue_state()));
                assert_eq!(aqms[0], aqms[1]);
                let tenants = [a, b].map(|one| one.tree(plane).tenant_stats(endpoint.tenant));
                assert_eq!(tenants[0], tenants[1]);
            }
        }
    }

    fn step(&mut self) {
        let plane = if self.below(2) == 0 { Plane::Wire } else { Plane::Local };
        match self.below(40) {
            0..=19 => self.arrive(plane),
            20..=29 => {
                let most = 1 + self.below(8);
                self.take(plane, most);
            }
            30..=36 => self.now = self.now.plus_ns(u64::from(self.below(5_000_000))),
            37 => self.now = self.now.plus_ns(u64::from(self.below(50_000_000))),
            38 => self.take(plane, u32::MAX),
            _ if self.below(8) == 0 => self.change(),
            _ => self.compare(),
        }
    }
}

fn any_share(state: &mut u64) -> Both<Share> {
    let mut any = || {
        let limit = [0, 0, 5, 50, 500][dice(state) as usize % 5];
        share([0, 0, 1, 20, 200][dice(state) as usize % 5], limit, 1 + dice(state) % 1000)
    };
    Both { egress: any(), ingress: any() }
}

fn any_endpoint(state: &mut u64, tenant: TenantId) -> Endpoint {
    let share = any_share(state);
    let queue_bytes = [2_000, 20_000, 1_000_000][dice(state) as usize % 3];
    let aqm = [None, None, Some(Discipline::Auto), Some(Discipline::Codel)][dice(state) as usize % 4];
    Endpoint { share, queue_bytes, aqm, ..Endpoint::new(tenant, PortId(1)) }
}

#[test]
fn what_passes_is_as_if_it_had_been_queued() {
    for order in [OrderKind::Fair, OrderKind::Wf2q, OrderKind::Vtrr, OrderKind::VtrrBytes] {
        let (mut passed, mut whole, mut waited) = (0, 0, 0);
        for seed in 0..RUNS {
            let mut twins = Twins::new(order, seed);
            for _ in 0..STEPS {
                twins.step();
            }
            for _ in 0..1000 {
                twins.now = twins.now.plus_ns(10_000_000);
                [Plane::Wire, Plane::Local].into_iter().for_each(|plane| twins.take(plane, u32::MAX));
            }
            twins.compare();
            (passed, waited) = (passed + twins.passed, waited + twins.waited);
            whole += twins.passed_whole;
        }
        assert!(passed > 5_000 && waited > 5_000, "{order:?}: {passed} passed and {waited} waited");
        assert!(whole > 300, "{order:?}: {whole} passed in segments");
    }
}

/// Frames between neighbours come whenever their tenant's limit has just let one go; what waits for
/// the uplink waits for a slot of the wheel.
#[test]
fn who_passes_leaves_the_other_plane_its_turn() {
    let mut rig = Rig::new(OrderKind::Fair, 1000, &[(share(0, 100, 1), &[share(0, 0, 1), share(0, 0, 1)])]);
    let end = rig.now.plus_ns(SECOND / 5);
    let (mut wire_bytes, mut passed) = (0, 0);
    (0..20).for_each(|_| rig.feed(0));
    while rig.now < end {
        rig.now = rig.now.plus_ns(1000);
        let frame = rig.pool.alloc(60).expect("a buffer");
        rig.pool.meta_mut(&frame).wire_bytes = 1538;
        passed += u32::from(rig.scheduler.pass(&mut rig.pool, rig.now, Plane::Local, EndpointId(1), &frame));
        rig.pool.free(frame);
        while let Some((_, frame)) = rig.scheduler.dequeue(&mut rig.pool, rig.now, Plane::Wire) {
            wire_bytes += u64::from(rig.pool.meta(&frame).wire_bytes);
            rig.pool.free(frame);
            rig.feed(0);
        }
    }
    let mbit = wire_bytes * 8 * 5 / MBIT;
    assert!(passed > 0 && mbit >= 50, "{mbit} Mbit/s of 100 to the uplink; {passed} frames passed");
}
