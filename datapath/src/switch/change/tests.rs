//! Changes while frames wait: who must not notice, what must be freed, and what must never reach the next owner of a number.

use crate::frame::{Pool, PoolLimits};
use crate::guard::Identity;
use crate::program::{
    Attachment, Change, ChangeError, Endpoint, EndpointId, IngressMode, OrderKind, PortFeatures, PortId, Program,
    Share, Tenant, TenantId, Uplink,
};
use crate::switch::{Event, Switch};
use crate::units::{Both, Instant, Rate};
use crate::verdict::{Reason, Verdict};
use crate::wire::Mac;
use crate::wire::build::{Build, arp_request, eth};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;

const MBIT: u64 = 1_000_000;
const MS: u64 = 1_000_000;
const NOW: Instant = Instant(1_000_000_000);
const ORDERS: [OrderKind; 4] = [OrderKind::Fair, OrderKind::Wf2q, OrderKind::Vtrr, OrderKind::VtrrBytes];
/// An address that is nobody's here.
const OUTSIDE: u32 = 0xff_0000;

fn mac(n: u32) -> Mac {
    let [a, b, c, d] = n.to_be_bytes();
    Mac([2, 0, a, b, c, d])
}

fn ip() -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1)
}

fn udp(from: u32, to: u32, payload: Vec<u8>) -> Build<'static> {
    eth(mac(from), mac(to)).ipv4(ip(), ip()).udp(1000, 2000).payload(payload)
}

fn both<T: Copy>(value: T) -> Both<T> {
    Both { egress: value, ingress: value }
}

fn limited(mbit: u64) -> Both<Share> {
    both(Share { limit: Rate(mbit * MBIT), ..Share::default() })
}

/// On the port of its number plus one; number `n` has address `n`.
fn endpoint(n: u32, tenant: u32) -> Endpoint {
    Endpoint {
        tenant: TenantId(tenant),
        port: PortId(n + 1),
        identity: Identity { macs: vec![mac(n)], ..Identity::default() },
        trunk: false,
        share: Both::default(),
        queue_bytes: 1 << 20,
        flood_per_second: 1000,
        max_learned: 4,
    }
}

fn learning(n: u32, tenant: u32) -> Endpoint {
    Endpoint { identity: Identity::default(), ..endpoint(n, tenant) }
}

fn uplink(mbit: u64) -> Uplink {
    Uplink { port: PortId(0), rate: both(Rate(mbit * MBIT)), headroom_ppm: 0 }
}

fn tenant(attachment: Attachment) -> Tenant {
    Tenant { attachment, ..Tenant::default() }
}

/// `endpoints` of as many tenants as their numbers say, all with VLANs of their own.
fn program(endpoints: &[Endpoint]) -> Program {
    let tenants = endpoints.iter().map(|e| e.tenant.0 + 1).max().unwrap_or(0);
    Program {
        uplink: Some(uplink(1000)),
        tenants: (0..tenants).map(|t| tenant(Attachment::Vlan(10 + t as u16))).collect(),
        endpoints: endpoints.to_vec().into(),
        ports: vec![PortFeatures::default(); 12].into(),
        fdb_age_ns: 300_000_000_000,
        ..Program::default()
    }
}

struct Rig {
    switch: Switch,
    pool: Pool,
    now: Instant,
}

impl Rig {
    fn new(program: &Program) -> Rig {
        let switch = Switch::new(program, 1).expect("a sound program");
        Rig { switch, pool: Pool::new(PoolLimits { small: 10_000, large: 64 }), now: NOW }
    }

    fn change(&mut self, change: Change) -> Result<(), ChangeError> {
        let before = self.switch.program().clone();
        let result = self.switch.change(&mut self.pool, self.now, change);
        assert_eq!(self.switch.frames(), self.pool.in_use(), "a frame was lost");
        if result.is_err() {
            assert_eq!(*self.switch.program(), before, "what is refused is not done");
        }
        result
    }

    fn add(&mut self, id: u32, endpoint: Endpoint) {
        self.change(Change::Endpoint(EndpointId(id), Some(endpoint))).expect("room");
    }

    fn remove(&mut self, id: u32) {
        self.change(Change::Endpoint(EndpointId(id), None)).expect("an endpoint");
    }

    fn rx(&mut self, port: u32, frame: &Build<'_>) -> Verdict {
        let frame = frame.frame(&mut self.pool).expect("a buffer");
        self.switch.rx(&mut self.pool, self.now, PortId(port), frame)
    }

    /// What is due now, by port.
    fn due(&mut self) -> Vec<(u32, Vec<u8>)> {
        let mut out = Vec::new();
        while let Some((port, frame)) = self.switch.tx(&mut self.pool, self.now) {
            out.push((port.0, self.pool.bytes(&frame).to_vec()));
            self.pool.free(frame);
        }
        out
    }

    /// What comes out within a time.
    fn run(&mut self, ns: u64) -> Vec<(u32, Vec<u8>)> {
        let end = self.now.plus_ns(ns);
        let mut out = self.due();
        while let Some(at) = self.switch.poll_timeout().filter(|&at| at <= end) {
            self.now = at.max(self.now.plus_ns(1));
            out.append(&mut self.due());
        }
        self.now = end;
        out
    }

    /// Ports of what comes out within a second, sorted.
    fn ports(&mut self) -> Vec<u32> {
        let mut ports: Vec<u32> = self.run(1_000_000_000).into_iter().map(|(port, _)| port).collect();
        ports.sort_unstable();
        ports
    }

    fn drops(&self, endpoint: u32, reason: Reason) -> u64 {
        self.switch.endpoint_stats(EndpointId(endpoint)).drops.get(reason)
    }
}

#[test]
fn an_empty_switch_grows() {
    let mut rig = Rig::new(&Program::default());
    assert_eq!(rig.rx(3, &udp(1, 2, vec![])), Verdict::Dropped(Reason::Unknown));
    for port in 0..3 {
        rig.change(Change::Port(PortId(port), Some(PortFeatures::default()))).unwrap();
    }
    rig.change(Change::Tenant(TenantId(0), Some(tenant(Attachment::Vlan(10))))).unwrap();
    rig.add(0, endpoint(0, 0));
    assert_eq!(rig.rx(1, &udp(0, OUTSIDE, vec![])), Verdict::Dropped(Reason::Unreachable));
    rig.change(Change::Uplink(Some(Uplink { port: PortId(2), ..uplink(100) }))).unwrap();
    rig.rx(1, &udp(0, OUTSIDE, vec![]));
    assert_eq!(rig.ports(), [2]);
    rig.rx(2, &udp(OUTSIDE, 0, vec![]).vlan(10));
    assert_eq!(rig.ports(), [1]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut rig = Rig::new(&program(&[endpoint(0, 0), endpoint(1, 1)]));
    let far = 1 << 20;
    let moved = |port: u32| Some(Endpoint { port: PortId(port), ..endpoint(0, 0) });
    let mut twin = endpoint(5, 0);
    twin.identity.macs.push(mac(0));
    let cases = [
        (Change::Port(PortId(far), Some(PortFeatures::default())), ChangeError::NoSuchSlot(far)),
        (Change::Port(PortId(20), None), ChangeError::Vacant(20)),
        (Change::Port(PortId(1), None), ChangeError::PortInUse(PortId(1))),
        (Change::Port(PortId(0), None), ChangeError::PortInUse(PortId(0))),
        (Change::Uplink(Some(Uplink { port: PortId(2), ..uplink(1) })), ChangeError::PortInUse(PortId(2))),
        (Change::Uplink(Some(Uplink { port: PortId(20), ..uplink(1) })), ChangeError::UnknownPort(PortId(20))),
        (Change::Tenant(TenantId(0), None), ChangeError::TenantInUse(TenantId(0))),
        (Change::Tenant(TenantId(7), None), ChangeError::Vacant(7)),
        (Change::Tenant(TenantId(far), Some(Tenant::default())), ChangeError::NoSuchSlot(far)),
        (Change::Tenant(TenantId(0), Some(Tenant::default())), ChangeError::TenantInUse(TenantId(0))),
        (Change::Tenant(TenantId(7), Some(tenant(Attachment::Vlan(0)))), ChangeError::BadVlan(0)),
        (Change::Tenant(TenantId(7), Some(tenant(Attachment::Vlan(4095)))), ChangeError::BadVlan(4095)),
        (Change::Tenant(TenantId(7), Some(tenant(Attachment::Vlan(11)))), ChangeError::VlanInUse(11, TenantId(1))),
        (Change::Endpoint(EndpointId(9), None), ChangeError::Vacant(9)),
        (Change::Endpoint(EndpointId(far), Some(endpoint(5, 0))), ChangeError::NoSuchSlot(far)),
        (Change::Endpoint(EndpointId(5), Some(endpoint(5, 7))), ChangeError::UnknownTenant(TenantId(7))),
        (Change::Endpoint(EndpointId(0), Some(endpoint(0, 1))), ChangeError::OtherTenant(EndpointId(0))),
        (Change::Endpoint(EndpointId(0), moved(2)), ChangeError::PortInUse(PortId(2))),
        (Change::Endpoint(EndpointId(0), moved(0)), ChangeError::PortInUse(PortId(0))),
        (Change::Endpoint(EndpointId(0), moved(20)), ChangeError::UnknownPort(PortId(20))),
        (Change::Endpoint(EndpointId(5), Some(twin)), ChangeError::AddressInUse(mac(0), EndpointId(0))),
    ];
    for (change, error) in cases {
        assert_eq!(rig.change(change.clone()), Err(error), "{change:?}");
        assert!(!error.to_string().is_empty());
    }
    rig.rx(1, &udp(0, OUTSIDE, vec![]));
    assert_eq!(rig.ports(), [0]);
}

#[test]
fn a_replaced_endpoint_keeps_its_queue_and_counters() {
    let mut rig = Rig::new(&program(&[Endpoint { share: limited(1), ..endpoint(0, 0) }, endpoint(1, 0)]));
    for n in 0..20 {
        rig.rx(1, &udp(0, OUTSIDE, vec![n; 1000]));
    }
    let before = rig.run(2 * MS).len();
    assert!((1..20).contains(&before));
    rig.add(0, Endpoint { identity: Identity { macs: vec![mac(7)], ..Identity::default() }, ..endpoint(0, 0) });
    let bytes: Vec<u8> = rig.run(1000 * MS).iter().map(|(port, bytes)| bytes[bytes.len() - 1] + *port as u8).collect();
    assert_eq!(bytes, (before as u8..20).collect::<Vec<_>>(), "the rest, in order");
    assert_eq!(rig.switch.endpoint_stats(EndpointId(0)).egress.traffic.frames, 20);
    assert_eq!(rig.rx(1, &udp(0, OUTSIDE, vec![])), Verdict::Dropped(Reason::SpoofedMac));
    rig.rx(1, &udp(7, OUTSIDE, vec![]));
    rig.rx(2, &udp(1, 7, vec![]));
    assert_eq!(rig.ports(), [0, 1]);
    // To another port, and back to addresses that are learned.
    rig.add(0, Endpoint { port: PortId(9), ..learning(0, 0) });
    assert_eq!(rig.rx(1, &udp(7, OUTSIDE, vec![])), Verdict::Dropped(Reason::Unknown));
    rig.rx(10 - 1, &udp(50, 1, vec![]));
    rig.rx(2, &udp(1, 50, vec![]));
    assert_eq!(rig.ports(), [2, 9]);
    rig.add(0, endpoint(0, 0));
    assert_eq!(rig.switch.learned(), 0);
    rig.rx(2, &udp(1, 50, vec![]));
    assert_eq!(rig.ports(), [0], "nobody here has it any more");
}

#[test]
fn what_a_removed_endpoint_had_queued_is_freed_and_counted() {
    let slow = |n, tenant| Endpoint { share: limited(1), ..endpoint(n, tenant) };
    let mut rig = Rig::new(&program(&[slow(0, 0), endpoint(1, 0), endpoint(2, 1)]));
    for n in 0..10u8 {
        rig.rx(1, &udp(0, OUTSIDE, vec![n; 1000]));
        rig.rx(1, &udp(0, 1, vec![n; 1000]));
        rig.rx(2, &udp(1, 0, vec![n; 1000]));
        rig.rx(0, &udp(OUTSIDE, 0, vec![n; 1000]).vlan(10));
        rig.rx(3, &udp(2, OUTSIDE, vec![n; 1000]));
    }
    let waiting = rig.switch.frames();
    rig.remove(0);
    let freed = rig.switch.uplink_drops().get(Reason::Removed);
    assert_eq!(freed, (waiting - rig.switch.frames()) as u64);
    assert!(freed >= 35, "{freed}");
    let out = rig.run(1000 * MS);
    assert_eq!(out.iter().filter(|(port, _)| *port == 0).count(), 10, "the other tenant's, all of them");
    assert_eq!(rig.pool.in_use(), 0);
    assert_eq!(rig.rx(1, &udp(0, 1, vec![])), Verdict::Dropped(Reason::Unknown));
    // Nothing of it is left for the next owner of its number.
    rig.add(0, endpoint(5, 1));
    assert_eq!(rig.switch.endpoint_stats(EndpointId(0)).egress, Default::default());
    assert_eq!(rig.drops(0, Reason::Removed), 0);
}

#[test]
fn frames_for_a_removed_endpoint_do_not_reach_the_next_owner_of_its_number() {
    let sender = Endpoint { share: limited(1), ..endpoint(0, 0) };
    let mut rig = Rig::new(&program(&[sender, endpoint(1, 0), endpoint(2, 1)]));
    for _ in 0..40 {
        rig.rx(1, &udp(0, 1, vec![0; 1000]));
    }
    rig.due();
    rig.remove(1);
    rig.add(1, Endpoint { port: PortId(2), ..endpoint(9, 1) });
    assert_eq!(rig.ports(), Vec::<u32>::new());
    assert!(rig.drops(0, Reason::Removed) > 5);
    // In the same network, its own frames do arrive.
    rig.remove(1);
    rig.now = rig.now.plus_ns(1);
    rig.add(1, endpoint(1, 0));
    rig.rx(1, &udp(0, 1, vec![0; 1000]));
    assert_eq!(rig.ports(), [2]);
}

#[test]
fn frames_on_their_way_to_a_port_do_not_reach_its_next_owner() {
    let mut rig = Rig::new(&program(&[endpoint(0, 0), endpoint(1, 0), endpoint(2, 1)]));
    rig.rx(1, &udp(0, 1, vec![]));
    rig.rx(2, &udp(1, 0, vec![]));
    rig.remove(1);
    rig.add(1, Endpoint { port: PortId(2), ..endpoint(9, 1) });
    assert_eq!(rig.ports(), [1]);
    assert_eq!(rig.switch.uplink_drops().get(Reason::Removed), 1);
    // Likewise where the uplink's port becomes an endpoint's.
    rig.change(Change::Uplink(Some(Uplink { port: PortId(8), ..uplink(1000) }))).unwrap();
    rig.add(7, Endpoint { port: PortId(0), ..endpoint(7, 1) });
    rig.rx(1, &udp(0, OUTSIDE, vec![]));
    rig.rx(0, &udp(7, 9, vec![]));
    assert_eq!(rig.ports(), [2, 8]);
}

#[test]
fn learned_addresses_and_events_go_with_their_endpoint() {
    let mut rig = Rig::new(&program(&[learning(0, 0), learning(1, 0), endpoint(2, 0)]));
    for n in 20..24 {
        rig.rx(1, &udp(n, OUTSIDE, vec![]));
    }
    rig.rx(2, &udp(30, OUTSIDE, vec![]));
    assert_eq!(rig.rx(2, &udp(20, OUTSIDE, vec![])), Verdict::Forwarded, "it moved");
    assert_eq!(rig.rx(1, &udp(20, OUTSIDE, vec![])), Verdict::Dropped(Reason::Flapping));
    rig.rx(3, &arp_request(mac(2), ip(), ip()));
    rig.ports();
    assert_eq!(rig.switch.learned(), 5);
    rig.remove(0);
    assert_eq!(rig.switch.learned(), 2, "the other's stay");
    assert_eq!(rig.switch.poll_event(), None::<Event>);
    rig.add(0, Endpoint { max_learned: 1, ..learning(0, 0) });
    rig.rx(3, &udp(2, 30, vec![]));
    assert_eq!(rig.ports(), [2]);
    assert_eq!(rig.rx(1, &udp(21, OUTSIDE, vec![])), Verdict::Forwarded);
    assert_eq!(rig.rx(1, &udp(22, OUTSIDE, vec![])), Verdict::Dropped(Reason::FdbFull));
    // Who declares what another had learned has it.
    rig.add(3, Endpoint { port: PortId(5), ..endpoint(30, 0) });
    assert_eq!(rig.switch.learned(), 2);
    assert_eq!(rig.rx(2, &udp(30, OUTSIDE, vec![])), Verdict::Dropped(Reason::SpoofedMac));
}

#[test]
fn without_its_uplink_a_switch_goes_on() {
    let mut rig = Rig::new(&program(&[Endpoint { share: limited(1), ..endpoint(0, 0) }, endpoint(1, 0)]));
    for _ in 0..10 {
        rig.rx(1, &udp(0, OUTSIDE, vec![0; 1000]));
    }
    let sent = rig.due().len() as u64;
    rig.change(Change::Uplink(None)).unwrap();
    assert_eq!(rig.drops(0, Reason::Removed), 10 - sent);
    assert_eq!(rig.rx(1, &udp(0, OUTSIDE, vec![])), Verdict::Dropped(Reason::Unreachable));
    assert_eq!(rig.rx(0, &udp(OUTSIDE, 0, vec![]).vlan(10)), Verdict::Dropped(Reason::Unknown));
    rig.rx(2, &udp(1, 0, vec![]));
    assert_eq!(rig.ports(), [1]);
    rig.change(Change::Uplink(Some(uplink(10)))).unwrap();
    rig.rx(2, &udp(1, OUTSIDE, vec![]));
    rig.rx(0, &udp(OUTSIDE, 0, vec![]).vlan(10));
    assert_eq!(rig.ports(), [0, 1]);
}

/// A load that keeps every queue of four endpoints busy, and what came out of it: when, where and what.
fn loaded(switch: Switch, mut meanwhile: impl FnMut(&mut Rig, u32)) -> Vec<(u64, u32, Vec<u8>)> {
    let mut rig = Rig { switch, pool: Pool::new(PoolLimits { small: 20_000, large: 64 }), now: NOW };
    let mut trace = Vec::new();
    for round in 0..300u32 {
        for n in 0..4 {
            for copy in 0..=n {
                let payload = [round as u8, copy as u8].repeat(20 + 200 * n as usize);
                rig.rx(n + 1, &udp(n, OUTSIDE, payload.clone()));
                rig.rx(n + 1, &udp(n, n ^ 1, payload.clone()));
                rig.rx(0, &udp(OUTSIDE, n, payload).vlan(10 + n as u16 / 2));
            }
        }
        meanwhile(&mut rig, round);
        let end = rig.now.plus_ns(100_000);
        while let Some(at) = rig.switch.poll_timeout().filter(|&at| at <= end) {
            rig.now = rig.now.max(at);
            let now = rig.now.0;
            let due = rig.due();
            rig.now = rig.now.plus_ns(u64::from(due.is_empty()));
            trace.extend(due.into_iter().map(|(port, bytes)| (now, port, bytes)));
        }
        rig.now = end;
    }
    assert!(trace.len() > 400);
    trace
}

/// Four endpoints of two tenants with guarantees, weights and limits.
fn busy(order: OrderKind) -> Program {
    let share = |n: u32| Share {
        guarantee: Rate(u64::from(n) * 3 * MBIT),
        limit: if n == 3 { Rate(30 * MBIT) } else { Rate::UNLIMITED },
        weight: 1 + n,
    };
    let endpoints = [0, 1, 2, 3].map(|n| Endpoint { share: both(share(n)), ..endpoint(n, n / 2) });
    Program { order, uplink: Some(uplink(100)), ..program(&endpoints) }
}

#[test]
fn a_switch_grown_by_changes_is_the_same_as_one_built_at_once() {
    for order in ORDERS {
        let program = busy(order);
        let mut grown = Rig::new(&Program { order, ..Program::default() });
        // What needs the uplink's rate comes before the uplink does, which is what makes the difference.
        let mut changes = program.changes();
        let uplink = changes.iter().position(|change| matches!(change, Change::Uplink(_))).expect("an uplink");
        let uplink = changes.remove(uplink);
        for change in changes {
            grown.change(change).expect("a step");
        }
        grown.change(Change::Uplink(Some(Uplink { rate: both(Rate(7 * MBIT)), ..self::uplink(1) }))).expect("a step");
        grown.change(uplink).expect("a step");
        assert_eq!(*grown.switch.program(), program);
        let built = Switch::new(&program, 1).expect("a sound program");
        assert!(loaded(built, |_, _| {}) == loaded(grown.switch, |_, _| {}), "{order:?}");
    }
}

#[test]
fn idle_endpoints_that_come_and_go_do_not_change_the_time_of_a_single_frame() {
    for order in [OrderKind::Fair, OrderKind::Wf2q] {
        let switch = || Switch::new(&busy(order), 1).expect("a sound program");
        let changed = loaded(switch(), |rig, round| {
            let n = 4 + round % 7;
            match round % 3 {
                0 if round % 2 == 0 => rig.add(n, Endpoint { share: limited(5), ..endpoint(n, n % 2) }),
                0 => rig.add(n, endpoint(n, n % 2)),
                _ if rig.switch.program().endpoints.get(n).is_some() => rig.remove(n),
                1 => rig.change(Change::Tenant(TenantId(2 + n), Some(tenant(Attachment::Isolated)))).unwrap(),
                _ => {
                    let there = rig.switch.program().tenants.get(2 + n).is_some();
                    assert_eq!(rig.change(Change::Tenant(TenantId(2 + n), None)).is_ok(), there);
                }
            }
        });
        assert!(loaded(switch(), |_, _| {}) == changed, "{order:?}");
    }
}

/// A generator (SplitMix64; Steele, Lea, Flood 2014).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Who has a slot now. Numbers of owners are never used again, and their address is made of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Owner(u32);

/// The network of the untagged; others are called by their tenant's owner.
const UNTAGGED: Owner = Owner(u32::MAX);

/// A switch under random changes and traffic, and what is known of its owners.
struct Chaos {
    rig: Rig,
    dice: Dice,
    owners: u32,
    tenants: HashMap<u32, Owner>,
    endpoints: HashMap<u32, Owner>,
    /// Networks of all who ever were.
    networks: HashMap<Owner, Owner>,
    /// Those who were sent what was for unknown addresses, once.
    learned: HashSet<Owner>,
    sent: u32,
    /// The last number that got from one to another, and from whom it is in the frame's last bytes.
    seen: HashMap<(Owner, Owner), u32>,
}

impl Chaos {
    fn new(seed: u64) -> Chaos {
        let mut dice = Dice(seed);
        let modes = [IngressMode::Queue, IngressMode::Queue, IngressMode::Police, IngressMode::PolicePublished];
        let program = Program { order: dice.of(&ORDERS), ingress: dice.of(&modes), ..Program::default() };
        Chaos {
            rig: Rig::new(&program),
            dice,
            owners: 0,
            tenants: HashMap::new(),
            endpoints: HashMap::new(),
            networks: HashMap::new(),
            learned: HashSet::new(),
            sent: 0,
            seen: HashMap::new(),
        }
    }

    fn step(&mut self) {
        match self.dice.below(16) {
            0..=2 => self.change(),
            3 => self.rig.now = self.rig.now.plus_ns(self.dice.below(3) * self.dice.below(40 * MS)),
            4 => self.take(usize::MAX),
            5 | 6 => self.take(2),
            7 | 8 => self.send_from_outside(),
            _ => self.send(),
        }
        assert_eq!(self.rig.switch.frames(), self.rig.pool.in_use(), "a frame was lost");
    }

    fn share(&mut self) -> Both<Share> {
        both(Share {
            guarantee: Rate(self.dice.below(3) * MBIT),
            limit: self.dice.of(&[Rate::UNLIMITED, Rate(2 * MBIT), Rate(50 * MBIT)]),
            weight: 1 + self.dice.below(9) as u32,
        })
    }

    fn change(&mut self) {
        let (now, id) = (self.rig.now, self.dice.below(8) as u32);
        let gone = self.dice.below(4) == 0;
        let change = match self.dice.below(12) {
            0 => Change::Port(PortId(id), (!gone).then(PortFeatures::default)),
            1 if gone => Change::Uplink(None),
            1 => {
                let mbit = self.dice.of(&[1, 10, 1000]);
                Change::Uplink(Some(Uplink { port: PortId(id % 2), ..uplink(mbit) }))
            }
            2 => Change::FdbAge(self.dice.below(100) * MS),
            3..=5 => {
                let attachments =
                    [Attachment::Isolated, Attachment::Untagged, Attachment::Vlan(10), Attachment::Vlan(20)];
                let tenant = Tenant { attachment: self.dice.of(&attachments), share: self.share() };
                Change::Tenant(TenantId(id % 4), (!gone).then_some(tenant))
            }
            _ if gone => Change::Endpoint(EndpointId(id), None),
            _ => {
                let owner = self.endpoints.get(&id).map_or(self.owners, |owner| owner.0);
                let tenant = self.rig.switch.program().endpoints.get(id).map(|e| e.tenant.0);
                let tenant = tenant.unwrap_or_else(|| self.dice.below(4) as u32);
                let declared = self.dice.below(3) > 0;
                let like = if declared { endpoint(owner, tenant) } else { learning(owner, tenant) };
                let port = PortId(self.dice.below(8) as u32);
                Change::Endpoint(EndpointId(id), Some(Endpoint { port, share: self.share(), ..like }))
            }
        };
        let there = self.rig.switch.program().clone();
        if self.rig.change(change.clone()).is_err() {
            return;
        }
        match change {
            Change::Tenant(id, Some(tenant)) => {
                // One that is attached otherwise has no endpoints, and so is as good as another.
                if there.tenants.get(id.0).is_none_or(|before| before.attachment != tenant.attachment) {
                    self.tenants.insert(id.0, Owner(self.owners));
                    self.owners += 1;
                }
            }
            Change::Tenant(id, None) => drop(self.tenants.remove(&id.0)),
            Change::Endpoint(id, Some(endpoint)) if there.endpoints.get(id.0).is_none() => {
                let owner = Owner(self.owners);
                self.owners += 1;
                self.endpoints.insert(id.0, owner);
                self.networks.insert(owner, self.network(endpoint.tenant));
            }
            Change::Endpoint(id, None) => drop(self.endpoints.remove(&id.0)),
            _ => {}
        }
        for (id, endpoint) in self.rig.switch.program().endpoints.iter() {
            if endpoint.identity.macs.is_empty() {
                self.learned.insert(self.endpoints[&id]);
            }
        }
        self.rig.now = now.plus_ns(self.dice.below(2));
    }

    fn network(&self, tenant: TenantId) -> Owner {
        match self.rig.switch.program().tenants[tenant.0 as usize].attachment {
            Attachment::Untagged => UNTAGGED,
            _ => self.tenants[&tenant.0],
        }
    }

    /// The end of every frame: who sent it, and its number.
    fn stamp(&mut self, from: Owner) -> Vec<u8> {
        self.sent += 1;
        let size = self.dice.of(&[8, 8, 700, 1400]);
        let mut payload = vec![0; size];
        payload[size - 8..size - 4].copy_from_slice(&from.0.to_be_bytes());
        payload[size - 4..].copy_from_slice(&self.sent.to_be_bytes());
        payload
    }

    /// Anybody who ever was, nobody, or everybody.
    fn anyone(&mut self) -> Mac {
        match self.dice.below(8) {
            0 => Mac([0xff; 6]),
            1 => mac(OUTSIDE),
            _ => mac(self.dice.below(u64::from(self.owners) + 1) as u32),
        }
    }

    fn send(&mut self) {
        let id = self.dice.below(8) as u32;
        let Some(&owner) = self.endpoints.get(&id) else { return };
        let (to, payload) = (self.anyone(), self.stamp(owner));
        let port = self.rig.switch.program().endpoints[id as usize].port.0;
        self.rig.rx(port, &eth(mac(owner.0), to).ipv4(ip(), ip()).udp(1, 2).payload(payload));
    }

    fn send_from_outside(&mut self) {
        let program = self.rig.switch.program();
        let Some(port) = program.uplink.as_ref().map(|uplink| uplink.port.0) else { return };
        let tagged = |vlan| program.tenants.iter().find(|(_, t)| t.attachment == Attachment::Vlan(vlan));
        let vlan = self.dice.of(&[0, 10, 20]);
        let network = tagged(vlan).map_or(UNTAGGED, |(id, _)| self.tenants[&id]);
        let payload = self.stamp(network);
        let frame = eth(mac(OUTSIDE), self.anyone()).ipv4(ip(), ip()).udp(3, 4).payload(payload);
        self.rig.rx(port, &if vlan == 0 { frame } else { frame.vlan(vlan) });
    }

    /// Takes out what is due, and looks whether it may be where it is.
    fn take(&mut self, most: usize) {
        for _ in 0..most {
            let Some((port, frame)) = self.rig.switch.tx(&mut self.rig.pool, self.rig.now) else { return };
            let bytes = self.rig.pool.bytes(&frame).to_vec();
            let tag = (bytes[12..14] == [0x81, 0]).then(|| u16::from_be_bytes([bytes[14], bytes[15]]));
            self.rig.pool.free(frame);
            self.check(port, tag, &bytes);
        }
    }

    fn check(&mut self, port: PortId, tag: Option<u16>, bytes: &[u8]) {
        let program = self.rig.switch.program();
        let word = |back: usize| u32::from_be_bytes(bytes[bytes.len() - back..][..4].try_into().unwrap());
        let (from, number) = (Owner(word(8)), word(4));
        let from_outside = bytes[6..12] == mac(OUTSIDE).0;
        let network = if from_outside { from } else { self.networks[&from] };
        if program.uplink.as_ref().is_some_and(|uplink| uplink.port == port) {
            let (id, _) = self.endpoints.iter().find(|&(_, &owner)| owner == from).expect("its sender is still there");
            let tenant = program.endpoints[*id as usize].tenant;
            let attachment = match tag {
                Some(vlan) => Attachment::Vlan(vlan),
                None => Attachment::Untagged,
            };
            assert_eq!(program.tenants[tenant.0 as usize].attachment, attachment);
            return;
        }
        let (id, _) = program.endpoints.iter().find(|(_, e)| e.port == port).expect("somebody has the port");
        let owner = self.endpoints[&id];
        assert_eq!(network, self.networks[&owner], "from another network");
        assert_eq!(tag, None, "a tag came through");
        let group = bytes[0] & 1 == 1;
        assert!(group || self.learned.contains(&owner) || bytes[..6] == mac(owner.0).0, "for another owner");
        let last = self.seen.insert((from, owner), number);
        assert!(last.is_none_or(|last| last < number), "overtaken");
    }

    /// What changed any number of times is as good as new: each frame goes where it goes through a new switch.
    fn compare(mut self) {
        self.rig.run(60_000_000_000);
        assert_eq!(self.rig.pool.in_use(), 0, "all that waits is sent in a minute");
        let program = self.rig.switch.program().clone();
        let mut fresh = Rig::new(&program);
        fresh.now = self.rig.now;
        for _ in 0..100 {
            let port = self.dice.below(8) as u32;
            let owner = program.endpoints.iter().find(|(_, e)| e.port.0 == port);
            let from = owner.map_or(OUTSIDE, |(id, _)| self.endpoints[&id].0);
            let frame = eth(mac(from), self.anyone()).ipv4(ip(), ip()).udp(1, 2).payload(vec![1; 100]);
            let frame = if from == OUTSIDE { frame.vlan(self.dice.of(&[0, 10, 20])) } else { frame };
            let play = |rig: &mut Rig| {
                let verdict = rig.rx(port, &frame);
                let mut out = rig.run(1_000_000_000);
                out.sort_unstable();
                // Both forget what they learned.
                rig.now = rig.now.plus_ns(program.fdb_age_ns);
                (verdict, out)
            };
            assert_eq!(play(&mut self.rig), play(&mut fresh), "{frame:?} at port {port} of {program:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn owners_may_change_at_any_time(seed in any::<u64>(), steps in 50usize..800) {
        let mut chaos = Chaos::new(seed);
        for _ in 0..steps {
            chaos.step();
        }
        chaos.compare();
    }

    #[test]
    fn any_sound_program_can_become_any_other(seed in any::<u64>(), steps in 10usize..200) {
        let mut chaos = Chaos::new(seed);
        for _ in 0..steps {
            chaos.step();
        }
        let from = chaos.rig.switch.program().clone();
        for _ in 0..steps {
            chaos.change();
        }
        let to = chaos.rig.switch.program().clone();
        for program in [from, to] {
            let there = chaos.rig.switch.program().clone();
            for change in program.changes_from(&there).expect("the same order") {
                prop_assert_eq!(chaos.rig.change(change), Ok(()));
            }
            prop_assert_eq!(chaos.rig.switch.program(), &program);
            prop_assert_eq!(program.changes_from(&program), Some(vec![]));
        }
    }
}
