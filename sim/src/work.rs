//! Work: what a switch does again and again, so that it can be counted and timed.
//!
//! `levada-sim work KIND OPERATIONS` does it, under callgrind say: the difference of two runs is
//! what the operations between them take.

use datapath::frame::{Frame, Pool, PoolLimits};
use datapath::guard::Identity;
use datapath::offload::OffloadSupport;
use datapath::program::{Endpoint, PortFeatures, PortId, Program, Tenant, TenantId};
use datapath::switch::Switch;
use datapath::units::Instant;

use crate::attack::{self, Kind};
use crate::packet::{Address, Envelope, Nic};
use crate::random::Random;
use crate::topology::{HostSpec, Topology};

/// Endpoints; the second one's port has no offloads.
const ENDPOINTS: usize = 100;
/// Frames that are read together.
const BURST: u64 = 32;

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// A frame of 60 bytes from one endpoint to another.
    Forward,
    /// A segment with so many bytes of payload cut off a frame of almost 64 KiB, with its checksum.
    Cut(u16),
    /// A copy of a frame of 60 bytes to a group.
    Copy,
}

impl Work {
    /// Every kind, by the name that the command line has for it.
    pub const ALL: [(&str, Work); 4] =
        [("forward", Work::Forward), ("cut-32", Work::Cut(32)), ("cut-1400", Work::Cut(1400)), ("copy", Work::Copy)];
}

/// A switch that works.
#[derive(Debug)]
pub struct Workplace {
    work: Work,
    switch: Switch,
    pool: Pool,
    template: Frame,
    now: Instant,
}

impl Workplace {
    /// A switch that does `work`.
    ///
    /// # Panics
    /// Where the switch or the pool is too small: that is a mistake in here.
    #[must_use]
    pub fn new(work: Work) -> Workplace {
        let hosts = vec![HostSpec { tenant: 1, ..HostSpec::default() }; ENDPOINTS];
        let topology = Topology { hosts, ..Topology::default() };
        let mut pool = Pool::new(PoolLimits::default());
        let kind = match work {
            Work::Forward => Kind::Shortest,
            Work::Cut(segment) => Kind::Crumbs(segment),
            Work::Copy => Kind::Broadcast,
        };
        let (from, to): (Address, Address) = (topology.address(0), topology.address(1));
        let envelope = Envelope { from, to, tenant: 1, port: 0, nic: Nic::default() };
        let template = attack::frame(&mut pool, &envelope, kind, &mut Random::new(1)).expect("the pool is empty");
        let switch = Switch::new(&program(&topology, work), 1).expect("the program is sound");
        Workplace { work, switch, pool, template, now: Instant(1_000_000_000) }
    }

    /// Works for a short while, and says how many operations that were.
    pub fn step(&mut self) -> u64 {
        let frames = if self.work == Work::Forward { BURST } else { 1 };
        self.now = self.now.plus_ns(1_000_000);
        for _ in 0..frames {
            let frame = self.pool.duplicate(&self.template).expect("nothing is left from before");
            self.switch.rx(&mut self.pool, self.now, PortId(0), frame);
        }
        let mut sent = 0;
        while let Some((_, frame)) = self.switch.tx(&mut self.pool, self.now) {
            self.pool.free(frame);
            sent += 1;
        }
        assert!(sent >= frames, "{sent} frames came out");
        sent
    }
}

fn program(topology: &Topology, work: Work) -> Program {
    let endpoint = |host: usize| Endpoint {
        identity: Identity {
            macs: vec![topology.address(host).mac],
            ipv4: vec![(topology.address(host).ip, 32)],
            ..Identity::default()
        },
        flood_per_second: u32::MAX,
        ..Endpoint::new(TenantId(0), PortId(host as u32))
    };
    let mut ports = vec![PortFeatures::default(); ENDPOINTS];
    if let Work::Cut(_) = work {
        ports[1].offload = OffloadSupport::NONE;
    }
    Program {
        tenants: vec![Tenant::default()].into(),
        endpoints: (0..ENDPOINTS).map(endpoint).collect(),
        ports: ports.into(),
        fdb_age_ns: 300_000_000_000,
        ..Program::default()
    }
}
