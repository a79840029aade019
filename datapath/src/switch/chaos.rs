//! For tests: small switches to change, and one under random changes and traffic whose owners are
//! all known.

use crate::encap::vxlan;
use crate::frame::{Pool, PoolLimits};
use crate::guard::Identity;
use crate::network::network_of;
use crate::offload::OffloadSupport;
use crate::overlay::{Overlay, Peer, Vtep};
use crate::pair::{PairError, Toward};
use crate::program::{
    Attachment, Change, ChangeError, Elsewhere, Endpoint, EndpointId, IngressMode, OrderKind, Outside, PortFeatures,
    PortId, Program, Share, Tenant, TenantId, Uplink,
};
use crate::service::{Address, Service, ServiceId};
use crate::switch::Switch;
use crate::units::{Both, Instant, Rate};
use crate::verdict::{Reason, Verdict};
use crate::wire::build::{Build, eth};
use crate::wire::{Mac, protocol};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

pub const MBIT: u64 = 1_000_000;
pub const MS: u64 = 1_000_000;
pub const NOW: Instant = Instant(1_000_000_000);
pub const ORDERS: [OrderKind; 4] = [OrderKind::Fair, OrderKind::Wf2q, OrderKind::Vtrr, OrderKind::VtrrBytes];
/// An address that is nobody's here.
pub const OUTSIDE: u32 = 0xff_0000;
/// The uplink's own address.
const NIC: u32 = 0xff_0001;

pub fn mac(n: u32) -> Mac {
    let [a, b, c, d] = n.to_be_bytes();
    Mac([2, 0, a, b, c, d])
}

pub fn ip() -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1)
}

pub fn host(n: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, n])
}

pub fn udp(from: u32, to: u32, payload: Vec<u8>) -> Build<'static> {
    eth(mac(from), mac(to)).ipv4(ip(), ip()).udp(1000, 2000).payload(payload)
}

pub fn both<T: Copy>(value: T) -> Both<T> {
    Both { egress: value, ingress: value }
}

pub fn limited(mbit: u64) -> Both<Share> {
    both(Share { limit: Rate(mbit * MBIT), ..Share::default() })
}

/// On the port of its number plus one; number `n` has address `n`.
pub fn endpoint(n: u32, tenant: u32) -> Endpoint {
    Endpoint {
        identity: Identity { macs: vec![mac(n)], ..Identity::default() },
        max_learned: 4,
        ..Endpoint::new(TenantId(tenant), PortId(n + 1))
    }
}

pub fn learning(n: u32, tenant: u32) -> Endpoint {
    Endpoint { identity: Identity::default(), ..endpoint(n, tenant) }
}

pub fn uplink(mbit: u64) -> Uplink {
    uplink_at(0, mbit)
}

pub fn uplink_at(port: u32, mbit: u64) -> Uplink {
    Uplink::new(PortId(port), both(Rate(mbit * MBIT)))
}

pub fn tenant(attachment: Attachment) -> Tenant {
    Tenant { attachment, ..Tenant::default() }
}

/// `endpoints` of as many tenants as their numbers say, all with VLANs of their own.
pub fn program(endpoints: &[Endpoint]) -> Program {
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

pub struct Rig {
    pub switch: Switch,
    pub pool: Pool,
    pub now: Instant,
}

impl Rig {
    pub fn new(program: &Program) -> Rig {
        let switch = Switch::new(program, 1).expect("a sound program");
        Rig { switch, pool: Pool::new(PoolLimits { small: 10_000, medium: 32, large: 64 }), now: NOW }
    }

    pub fn change(&mut self, change: Change) -> Result<(), ChangeError> {
        let before = self.switch.program().clone();
        let result = self.switch.change(&mut self.pool, self.now, change);
        assert_eq!(self.switch.frames(), self.pool.in_use(), "a frame was lost");
        if result.is_err() {
            assert_eq!(*self.switch.program(), before, "what is refused is not done");
        }
        result
    }

    pub fn add(&mut self, id: u32, endpoint: Endpoint) {
        self.change(Change::Endpoint(EndpointId(id), Some(endpoint))).expect("room");
    }

    pub fn remove(&mut self, id: u32) {
        self.change(Change::Endpoint(EndpointId(id), None)).expect("an endpoint");
    }

    pub fn rx(&mut self, port: u32, frame: &Build<'_>) -> Verdict {
        let frame = frame.frame(&mut self.pool).expect("a buffer");
        self.switch.rx(&mut self.pool, self.now, PortId(port), frame)
    }

    /// What is due now, by port.
    pub fn due(&mut self) -> Vec<(u32, Vec<u8>)> {
        let mut out = Vec::new();
        while let Some((port, frame)) = self.switch.tx(&mut self.pool, self.now) {
            out.push((port.0, self.pool.bytes(&frame).to_vec()));
            self.pool.free(frame);
        }
        out
    }

    /// What comes out within a time.
    pub fn run(&mut self, ns: u64) -> Vec<(u32, Vec<u8>)> {
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
    pub fn ports(&mut self) -> Vec<u32> {
        let mut ports: Vec<u32> = self.run(1_000_000_000).into_iter().map(|(port, _)| port).collect();
        ports.sort_unstable();
        ports
    }

    pub fn drops(&self, endpoint: u32, reason: Reason) -> u64 {
        self.switch.endpoint_stats(EndpointId(endpoint)).drops.get(reason)
    }
}

/// A generator (SplitMix64; Steele, Lea, Flood 2014).
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: u64) -> u64 {
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
pub struct Owner(u32);

/// The network of the untagged; others are called by their tenant's owner.
pub const UNTAGGED: Owner = Owner(u32::MAX);

/// A switch under random changes and traffic, and what is known of its owners.
pub struct Chaos {
    pub rig: Rig,
    pub dice: Dice,
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
    /// The same for what left by the uplink, toward an address.
    left: HashMap<(Owner, Mac), u32>,
}

impl Chaos {
    pub fn new(seed: u64) -> Chaos {
        let mut dice = Dice(seed);
        let modes = [IngressMode::Queue, IngressMode::Queue, IngressMode::Police, IngressMode::PolicePublished];
        let overlay = Overlay {
            local: Some(Vtep { address: host(1), mac: mac(NIC) }),
            peers: [(host(2), Peer { next_hop: Some(mac(OUTSIDE)), tenants: (0..4).map(TenantId).collect() })].into(),
            remotes: BTreeMap::new(),
        };
        let program = Program { order: dice.of(&ORDERS), ingress: dice.of(&modes), overlay, ..Program::default() };
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
            left: HashMap::new(),
        }
    }

    pub fn step(&mut self) {
        match self.dice.below(19) {
            18 => self.work(),
            0..=2 => self.change(),
            16 => self.limit_pair(),
            17 => self.watch(),
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

    pub fn change(&mut self) {
        let (now, id) = (self.rig.now, self.dice.below(8) as u32);
        let gone = self.dice.below(4) == 0;
        let change = match self.dice.below(12) {
            0 => {
                let offload = self.dice.of(&[OffloadSupport::ALL, OffloadSupport::NONE]);
                let features = PortFeatures { offload, ..PortFeatures::default() };
                Change::Port(PortId(id), (!gone).then_some(features))
            }
            1 if gone => Change::Uplink(None),
            1 => {
                let mbit = self.dice.of(&[1, 10, 1000]);
                Change::Uplink(Some(uplink_at(id % 2, mbit)))
            }
            2 if gone => {
                let is_there = self.dice.below(2) == 0;
                let ip = Elsewhere::Ip([10, 0, 0, self.dice.below(4) as u8].into());
                let mac = Elsewhere::Mac(mac(self.dice.below(16) as u32));
                let address = self.dice.of(&[ip, mac]);
                Change::Elsewhere(TenantId(id % 4), address, is_there)
            }
            2 => Change::FdbAge(self.dice.below(100) * MS),
            3..=5 => {
                let attachments = [
                    Attachment::Isolated,
                    Attachment::Untagged,
                    Attachment::Vlan(10),
                    Attachment::Vlan(20),
                    Attachment::Vxlan(30),
                ];
                let (attachment, share) = (self.dice.of(&attachments), self.share());
                let macs = vec![mac(self.dice.below(16) as u32)];
                let ips = vec![std::net::IpAddr::from([10, 0, 0, self.dice.below(4) as u8])];
                let flood_rate = Rate(self.dice.below(100) * MBIT);
                let outside = Outside { macs, ips };
                let tenant = Tenant { attachment, share, flood_rate, outside, ..Tenant::default() };
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
            // One that is attached otherwise has no endpoints, and so is as good as another.
            Change::Tenant(id, Some(tenant))
                if there.tenants.get(id.0).is_none_or(|before| before.attachment != tenant.attachment) =>
            {
                self.tenants.insert(id.0, Owner(self.owners));
                self.owners += 1;
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

    /// Changes a service to another of few addresses, so that they pass from one to another.
    pub fn change_service(&mut self) {
        let id = self.dice.below(4) as u32;
        let program = self.rig.switch.program();
        let service = match program.services.get(id).map(|before| before.tenant) {
            Some(_) if self.dice.below(6) == 0 => None,
            tenant => {
                let tenant = tenant.unwrap_or_else(|| TenantId(self.dice.below(4) as u32));
                let all = [(1, 80), (1, 81), (2, 80), (2, 81)].map(|(last, port)| Address {
                    ip: [10, 0, 1, last].into(),
                    protocol: protocol::TCP,
                    port,
                });
                let chosen = self.dice.below(16);
                let is_chosen = |at: &usize| chosen >> at & 1 == 1;
                let addresses = (0..all.len()).filter(is_chosen).map(|at| all[at]).collect();
                let mac = mac(OUTSIDE + 2 + self.dice.below(3) as u32);
                Some(Service { tenant, mac, addresses, ..Service::default() })
            }
        };
        if self.has_one_mac_each(id, service.as_ref()) {
            let _ = self.rig.change(Change::Service(ServiceId(id), service));
        }
    }

    /// Whether each IP address has one MAC address, with this service in place of another.
    fn has_one_mac_each(&self, id: u32, service: Option<&Service>) -> bool {
        let program = self.rig.switch.program();
        let others = program.services.iter().filter(|&(other, _)| other != id).map(|(_, other)| other);
        let mut macs = HashMap::new();
        others.chain(service).all(|service| {
            let Some(tenant) = program.tenants.get(service.tenant.0) else { return false };
            let network = network_of(service.tenant, tenant.attachment);
            let mut ips = service.addresses.iter().map(|address| address.ip);
            ips.all(|ip| *macs.entry((network, ip)).or_insert(service.mac) == service.mac)
        })
    }

    /// Limits what an endpoint sends to somebody or to all, or lifts that.
    fn limit_pair(&mut self) {
        let id = EndpointId(self.dice.below(8) as u32);
        let to = match self.dice.below(4) {
            0 => Toward::Everyone,
            1 => Toward::Address(mac(OUTSIDE)),
            _ => Toward::Address(self.anyone()),
        };
        let rate = self.dice.of(&[None, Some(Rate(MBIT)), Some(Rate(20 * MBIT)), Some(Rate(900 * MBIT))]);
        let Rig { switch, pool, now } = &mut self.rig;
        let before = switch.pairs(id).count();
        let had = switch.pairs(id).any(|pair| pair.to == to);
        match switch.limit_pair(pool, *now, id, to, rate) {
            Ok(()) => {
                let has = switch.pairs(id).find(|pair| pair.to == to).map(|pair| pair.rate);
                assert_eq!(has, rate);
                switch.take_turn(*now, id, to, self.dice.below(256) as u8);
            }
            Err(PairError::Vacant(_)) => assert!(!self.endpoints.contains_key(&id.0)),
            Err(PairError::NotAnAddress(mac)) => assert!(mac.is_group() && !had),
            Err(error) => panic!("{before} pairs: {error}"),
        }
    }

    /// Lifts every limit on pairs.
    pub fn lift_all(&mut self) {
        let Rig { switch, pool, now } = &mut self.rig;
        for id in (0..12).map(EndpointId) {
            let limited: Vec<Toward> = switch.pairs(id).map(|pair| pair.to).collect();
            for to in limited {
                switch.limit_pair(pool, *now, id, to, None).expect("an endpoint");
            }
        }
    }

    /// Looks at what arrived; sometimes for the first or the last time.
    fn watch(&mut self) {
        let (mut arrivals, mut queues) = (vec![], vec![]);
        self.rig.switch.take_arrivals(&mut arrivals, &mut queues);
        assert!(arrivals.iter().all(|arrival| self.endpoints.contains_key(&arrival.to.0)), "for one who is gone");
        assert!(queues.iter().all(|queue| self.endpoints.contains_key(&queue.endpoint.0)), "for one who is gone");
        assert!(arrivals.iter().all(|arrival| arrival.from == Some(mac(OUTSIDE))));
        let sum = |to| {
            arrivals
                .iter()
                .filter(|a| a.to == to)
                .fold((0, 0), |sum, a| (sum.0 + a.wire_bytes, sum.1 + a.dropped_bytes))
        };
        assert!(queues.iter().all(|queue| sum(queue.endpoint) == (queue.arrived_bytes, queue.dropped_bytes)));
        let on = self.dice.below(4) > 0;
        self.rig.switch.watch_arrivals(on);
    }

    fn network(&self, tenant: TenantId) -> Owner {
        match self.rig.switch.program().tenants[tenant.0 as usize].attachment {
            Attachment::Untagged => UNTAGGED,
            _ => self.tenants[&tenant.0],
        }
    }

    /// The end of every frame: who sent it, and its number.
    fn stamp(&mut self, from: Owner) -> Vec<u8> {
        let size = self.dice.of(&[8, 8, 700, 1400]);
        self.stamp_of(from, size)
    }

    fn stamp_of(&mut self, from: Owner, size: usize) -> Vec<u8> {
        self.sent += 1;
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
        let port = self.rig.switch.program().endpoints[id as usize].port.0;
        let to = self.anyone();
        let frame = eth(mac(owner.0), to).ipv4(ip(), ip()).udp(1, 2);
        if self.dice.below(4) == 0 {
            // Each of many segments has a number of its own.
            let stamps: Vec<u8> = (0..100).flat_map(|_| self.stamp_of(owner, 8)).collect();
            self.rig.rx(port, &frame.payload(stamps).gso(8));
        } else {
            let payload = self.stamp(owner);
            self.rig.rx(port, &frame.payload(payload));
        }
    }

    fn send_from_outside(&mut self) {
        let program = self.rig.switch.program();
        let Some(port) = program.uplink.as_ref().map(|uplink| uplink.port().0) else { return };
        let attachments = [Attachment::Untagged, Attachment::Vlan(10), Attachment::Vlan(20), Attachment::Vxlan(30)];
        let attachment = self.dice.of(&attachments);
        let owner = program.tenants.iter().find(|(_, t)| t.attachment == attachment).map(|(id, _)| self.tenants[&id]);
        let network = owner.filter(|_| attachment != Attachment::Untagged).unwrap_or(UNTAGGED);
        let payload = self.stamp(network);
        let frame = eth(mac(OUTSIDE), self.anyone()).ipv4(ip(), ip()).udp(3, 4).payload(payload);
        let frame = match attachment {
            Attachment::Vlan(vlan) => frame.vlan(vlan),
            Attachment::Vxlan(vni) => {
                let payload = [&[8, 0, 0, 0][..], &(vni << 8).to_be_bytes(), &frame.bytes()].concat();
                eth(mac(OUTSIDE), mac(NIC)).ip(host(2), host(1)).udp(50_000, 4789).payload(payload)
            }
            Attachment::Isolated | Attachment::Untagged => frame,
        };
        self.rig.rx(port, &frame);
    }

    /// Somebody has a turn.
    fn work(&mut self) {
        let Rig { switch, pool, now } = &mut self.rig;
        let port = PortId(self.dice.below(8) as u32);
        let had = switch.has_work(port);
        for _ in 0..self.dice.below(20) {
            assert!(switch.work(pool, *now, port).is_some() || !switch.has_work(port));
        }
        assert!(had || !switch.has_work(port), "work from nowhere");
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
        if program.uplink.as_ref().is_some_and(|uplink| uplink.port() == port) {
            let (id, _) = self.endpoints.iter().find(|&(_, &owner)| owner == from).expect("its sender is still there");
            let tenant = program.endpoints[*id as usize].tenant;
            let (attachment, inner) = match tag {
                Some(vlan) => (Attachment::Vlan(vlan), bytes),
                None if vxlan::is_for(bytes, host(2), mac(OUTSIDE)) => {
                    let vni = u32::from_be_bytes(bytes[46..50].try_into().unwrap()) >> 8;
                    (Attachment::Vxlan(vni), &bytes[vxlan::OUTER_V4..])
                }
                None => (Attachment::Untagged, bytes),
            };
            assert_eq!(program.tenants[tenant.0 as usize].attachment, attachment);
            let to = Mac(inner[..6].try_into().unwrap());
            let last = self.left.insert((from, to), number);
            assert!(last.is_none_or(|last| last < number), "overtaken on its way out");
            return;
        }
        let (id, _) = program.endpoints.iter().find(|(_, e)| e.port == port).expect("somebody has the port");
        let owner = self.endpoints[&id];
        assert_eq!(network, self.networks[&owner], "from another network");
        assert_eq!(tag, None, "a tag came through");
        let group = bytes[0] & 1 == 1;
        assert!(group || self.learned.contains(&owner) || bytes[..6] == mac(owner.0).0, "for another owner");
        // What is copied from outside has its turns, and what is for one endpoint does not wait for
        // it.
        if !from_outside || (!group && !self.learned.contains(&owner)) {
            let last = self.seen.insert((from, owner), number);
            assert!(last.is_none_or(|last| last < number), "overtaken");
        }
    }

    /// What changed any number of times is as good as new: each frame goes where it goes through a
    /// new switch.
    pub fn compare(mut self) {
        self.lift_all();
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
