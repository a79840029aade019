//! Work: what a switch does again and again, so that it can be counted and timed.
//!
//! `levada-sim work KIND OPERATIONS` does it, under callgrind say: the difference of two runs is
//! what the operations between them take.

use core::net::Ipv4Addr;

use datapath::aqm::Discipline;
use datapath::frame::{Frame, Pool, PoolLimits};
use datapath::guard::Identity;
use datapath::offload::OffloadSupport;
use datapath::program::{Attachment, Endpoint, PortFeatures, PortId, Program, Share, Tenant, TenantId, Uplink};
use datapath::switch::Switch;
use datapath::units::{Both, Instant, Rate};
use datapath::vcc::Mode;
use datapath::wire::Mac;

use crate::attack::{self, Kind};
use crate::packet::{self, Address, Ecn, Envelope, Nic, Tcp};
use crate::random::Random;
use crate::tcp::flag;
use crate::topology::{HostSpec, Topology};

/// Endpoints; the second one's port has no offloads.
const ENDPOINTS: usize = 100;
/// Of the uplink: nothing waits.
const UPLINK: Rate = Rate(100 * Rate::GBIT);
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
    /// A frame of one of so many TCP connections with the network, data out and acknowledgements
    /// in by turns, of an endpoint for which virtual congestion control does this. Windows are
    /// lowered.
    Vcc(Mode, u16),
    /// A frame of 64 KiB, or an acknowledgement of two, of one TCP connection between neighbours
    /// with limits far above what they send, for both of which virtual congestion control does
    /// this. Their queues are as configuration makes them.
    Bulk(Mode),
}

impl Work {
    /// Every kind, by the name that the command line has for it.
    pub const ALL: [(&str, Work); 12] = [
        ("forward", Work::Forward),
        ("cut-32", Work::Cut(32)),
        ("cut-1400", Work::Cut(1400)),
        ("copy", Work::Copy),
        ("vcc-off", Work::Vcc(Mode::Off, 1)),
        ("vcc-echo", Work::Vcc(Mode::Echo, 1)),
        ("vcc-dctcp", Work::Vcc(Mode::Dctcp, 1)),
        ("vcc-echo-10000", Work::Vcc(Mode::Echo, 10_000)),
        ("vcc-dctcp-10000", Work::Vcc(Mode::Dctcp, 10_000)),
        ("vcc-bulk-off", Work::Bulk(Mode::Off)),
        ("vcc-bulk-echo", Work::Bulk(Mode::Echo)),
        ("vcc-bulk-dctcp", Work::Bulk(Mode::Dctcp)),
    ];
}

/// A switch that works.
#[derive(Debug)]
pub struct Workplace {
    work: Work,
    switch: Switch,
    pool: Pool,
    template: Frame,
    now: Instant,
    /// Of the connection whose turn it is: from the guest, and from its peer; and their ports.
    envelopes: [Envelope; 2],
    ports: [PortId; 2],
    /// By connection, what the guest has sent of it; and whose turn it is.
    sent: Vec<u32>,
    turn: usize,
}

/// Payload of a segment of the connection.
const SEGMENT: usize = 1448;
/// Segments of it in flight.
const FLIGHT: u32 = 8;
/// Payload of a frame of bulk data: 45 segments; how many are read together, and how long it takes
/// until each is written, in nanoseconds.
const BULK: usize = 45 * SEGMENT;
const BULK_FRAMES: u32 = 4;
const BULK_NS: u64 = 7_000;
/// The guest's TCP port of the first connection.
const PORT: u16 = 1024;
/// The port that leads to the network.
const OUTSIDE: PortId = PortId(ENDPOINTS as u32);

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
            Work::Vcc(..) | Work::Bulk(_) => Kind::Shortest,
        };
        let (from, to): (Address, Address) = (topology.address(0), topology.address(1));
        let envelope = Envelope { from, to, tenant: 1, port: 0, nic: Nic::default() };
        let template = attack::frame(&mut pool, &envelope, kind, &mut Random::new(1)).expect("the pool is empty");
        let switch = Switch::new(&program(&topology, work), 1).expect("the program is sound");
        let (peer, outside) = match work {
            Work::Bulk(_) => (to, PortId(1)),
            _ => (Address { mac: Mac([2, 0, 0, 9, 0, 9]), ip: Ipv4Addr::new(10, 9, 9, 9) }, OUTSIDE),
        };
        let port = PORT;
        let envelopes =
            [(from, peer), (peer, from)].map(|(from, to)| Envelope { from, to, tenant: 1, port, nic: Nic::default() });
        let now = Instant(1_000_000_000);
        let ports = [PortId(0), outside];
        let mut place = Workplace { work, switch, pool, template, now, envelopes, ports, sent: Vec::new(), turn: 0 };
        let (connections, knows) = match work {
            Work::Vcc(_, connections) => (connections, flag::ECE),
            Work::Bulk(_) => (1, 0),
            _ => (0, 0),
        };
        place.sent = vec![0; connections.into()];
        (0..connections).for_each(|_| place.open(knows));
        place
    }

    /// It is the next connection's turn.
    fn turn(&mut self) {
        self.turn = (self.turn + 1) % self.sent.len();
        self.envelopes.iter_mut().for_each(|envelope| envelope.port = PORT + self.turn as u16);
    }

    /// The handshake, in which the peer says of ECN what it `knows`. Then as many segments as will
    /// be in flight.
    fn open(&mut self, knows: u8) {
        self.turn();
        self.now = self.now.plus_ns(20_000);
        let syn = Some((1460, 7));
        self.pass(0, &Tcp { flags: flag::SYN, window: u16::MAX, syn, ..Tcp::default() }, 0);
        let answer = flag::SYN | flag::ACK | knows;
        self.pass(1, &Tcp { ack: 1, flags: answer, window: u16::MAX, syn, ..Tcp::default() }, 0);
        for _ in 0..FLIGHT {
            self.data(SEGMENT);
            self.take(1);
        }
    }

    /// The guest sends so much.
    fn data(&mut self, payload: usize) {
        let seq = self.sent[self.turn].wrapping_add(1);
        self.put(0, &Tcp { seq, ack: 1, flags: flag::ACK, window: 512, ..Tcp::default() }, payload);
        self.sent[self.turn] = self.sent[self.turn].wrapping_add(payload as u32);
    }

    /// The guest's (0) or the peer's (1) segment enters the switch.
    fn put(&mut self, from: usize, tcp: &Tcp, payload: usize) {
        let frame = packet::write_tcp(&mut self.pool, &self.envelopes[from], Ecn::Not, tcp, payload, 0);
        self.switch.rx(&mut self.pool, self.now, self.ports[from], frame.expect("nothing is left from before"));
    }

    /// A frame leaves it for the guest (0) or the peer (1).
    fn take(&mut self, for_whom: usize) {
        let (to, frame) = self.switch.tx(&mut self.pool, self.now).expect("it comes out");
        assert_eq!(to, self.ports[for_whom]);
        self.pool.free(frame);
    }

    /// A segment through the switch.
    fn pass(&mut self, from: usize, tcp: &Tcp, payload: usize) {
        self.put(from, tcp, payload);
        self.take(1 - from);
    }

    /// Some frames of data, of which none is told to be marked, and their acknowledgements.
    fn bulk(&mut self) -> u64 {
        self.now = self.now.plus_ns(u64::from(BULK_FRAMES) * BULK_NS);
        let acked = self.sent[0].wrapping_add(1);
        (0..BULK_FRAMES).for_each(|_| self.data(BULK));
        for _ in 0..BULK_FRAMES {
            self.now = self.now.plus_ns(BULK_NS);
            self.take(1);
        }
        for frames in [BULK_FRAMES / 2, BULK_FRAMES] {
            let ack = acked.wrapping_add(frames * BULK as u32);
            self.put(1, &Tcp { seq: 1, ack, flags: flag::ACK, window: u16::MAX, ..Tcp::default() }, 0);
        }
        (0..2).for_each(|_| self.take(0));
        u64::from(BULK_FRAMES) + 2
    }

    /// A segment out and an acknowledgement in, of which each hundredth tells of a mark.
    fn exchange(&mut self) -> u64 {
        self.now = self.now.plus_ns(20_000);
        self.turn();
        self.data(SEGMENT);
        self.take(1);
        let sent = self.sent[self.turn];
        let ack = sent.wrapping_sub((FLIGHT - 1) * SEGMENT as u32).wrapping_add(1);
        let is_marked = (sent / SEGMENT as u32 + self.turn as u32).is_multiple_of(100);
        let flags = flag::ACK | if is_marked { flag::ECE } else { 0 };
        self.pass(1, &Tcp { seq: 1, ack, flags, window: 512, ..Tcp::default() }, 0);
        2
    }

    /// Works for a short while, and says how many operations that were.
    pub fn step(&mut self) -> u64 {
        match self.work {
            Work::Vcc(..) => return self.exchange(),
            Work::Bulk(_) => return self.bulk(),
            _ => {}
        }
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
    let (mut limit, mut aqm) = (Rate::UNLIMITED, None);
    if let Work::Bulk(mode) = work {
        limit = UPLINK;
        aqm = mode.translates().then_some(Discipline::Auto);
    }
    let share = Share { limit, ..Share::default() };
    let endpoint = |host: usize| Endpoint {
        share: Both { egress: share, ingress: share },
        aqm,
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
    let mut tenant = Tenant::default();
    let mut uplink = None;
    if let Work::Bulk(mode) = work {
        tenant.vcc = mode.into();
    }
    if let Work::Vcc(mode, _) = work {
        (tenant.vcc, tenant.attachment) = (mode.into(), Attachment::Untagged);
        ports.push(PortFeatures::default());
        uplink = Some(Uplink::new(OUTSIDE, Both { egress: UPLINK, ingress: UPLINK }));
    }
    Program {
        uplink,
        tenants: vec![tenant].into(),
        endpoints: (0..ENDPOINTS).map(endpoint).collect(),
        ports: ports.into(),
        fdb_age_ns: 300_000_000_000,
        ..Program::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_works() {
        for (name, work) in Work::ALL {
            let mut place = Workplace::new(work);
            let operations: u64 = (0..200).map(|_| place.step()).sum();
            assert!(operations >= 200, "{name}: {operations}");
        }
    }
}
