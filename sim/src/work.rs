//! Work: what a switch does again and again, so that it can be counted and timed.
//!
//! `levada-sim work KIND OPERATIONS` does it, under callgrind say: the difference of two runs is
//! what the operations between them take.

use core::net::Ipv4Addr;

use datapath::frame::{Frame, Pool, PoolLimits};
use datapath::guard::Identity;
use datapath::offload::OffloadSupport;
use datapath::program::{Attachment, Endpoint, PortFeatures, PortId, Program, Tenant, TenantId, Uplink};
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
}

impl Work {
    /// Every kind, by the name that the command line has for it.
    pub const ALL: [(&str, Work); 8] = [
        ("forward", Work::Forward),
        ("cut-32", Work::Cut(32)),
        ("cut-1400", Work::Cut(1400)),
        ("copy", Work::Copy),
        ("vcc-off", Work::Vcc(Mode::Off, 1)),
        ("vcc-echo", Work::Vcc(Mode::Echo, 1)),
        ("vcc-dctcp", Work::Vcc(Mode::Dctcp, 1)),
        ("vcc-echo-10000", Work::Vcc(Mode::Echo, 10_000)),
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
    /// Of the connection whose turn it is: from the guest, and from its peer.
    envelopes: [Envelope; 2],
    /// By connection, what the guest has sent of it; and whose turn it is.
    sent: Vec<u32>,
    turn: usize,
}

/// Payload of a segment of the connection.
const SEGMENT: usize = 1448;
/// Segments of it in flight.
const FLIGHT: u32 = 8;
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
            Work::Vcc(..) => Kind::Shortest,
        };
        let (from, to): (Address, Address) = (topology.address(0), topology.address(1));
        let envelope = Envelope { from, to, tenant: 1, port: 0, nic: Nic::default() };
        let template = attack::frame(&mut pool, &envelope, kind, &mut Random::new(1)).expect("the pool is empty");
        let switch = Switch::new(&program(&topology, work), 1).expect("the program is sound");
        let peer = Address { mac: Mac([2, 0, 0, 9, 0, 9]), ip: Ipv4Addr::new(10, 9, 9, 9) };
        let port = PORT;
        let envelopes =
            [(from, peer), (peer, from)].map(|(from, to)| Envelope { from, to, tenant: 1, port, nic: Nic::default() });
        let now = Instant(1_000_000_000);
        let mut place = Workplace { work, switch, pool, template, now, envelopes, sent: Vec::new(), turn: 0 };
        if let Work::Vcc(_, connections) = work {
            place.sent = vec![0; connections.into()];
            (0..connections).for_each(|_| place.open());
        }
        place
    }

    /// It is the next connection's turn.
    fn turn(&mut self) {
        self.turn = (self.turn + 1) % self.sent.len();
        self.envelopes.iter_mut().for_each(|envelope| envelope.port = PORT + self.turn as u16);
    }

    /// The handshake; the peer knows RFC 3168 only. Then as many segments as will be in flight.
    fn open(&mut self) {
        self.turn();
        self.now = self.now.plus_ns(20_000);
        let syn = Some((1460, 7));
        self.pass(0, &Tcp { flags: flag::SYN, window: u16::MAX, syn, ..Tcp::default() }, 0);
        let answer = flag::SYN | flag::ACK | flag::ECE;
        self.pass(1, &Tcp { ack: 1, flags: answer, window: u16::MAX, syn, ..Tcp::default() }, 0);
        for _ in 0..FLIGHT {
            self.data();
        }
    }

    fn data(&mut self) {
        let seq = self.sent[self.turn].wrapping_add(1);
        self.pass(0, &Tcp { seq, ack: 1, flags: flag::ACK, window: 512, ..Tcp::default() }, SEGMENT);
        self.sent[self.turn] = self.sent[self.turn].wrapping_add(SEGMENT as u32);
    }

    /// The guest's (0) or the peer's (1) segment, through the switch.
    fn pass(&mut self, from: usize, tcp: &Tcp, payload: usize) {
        let port = [PortId(0), OUTSIDE][from];
        let frame = packet::write_tcp(&mut self.pool, &self.envelopes[from], Ecn::Not, tcp, payload, 0);
        self.switch.rx(&mut self.pool, self.now, port, frame.expect("nothing is left from before"));
        let (to, frame) = self.switch.tx(&mut self.pool, self.now).expect("it comes out");
        assert_eq!(to, [OUTSIDE, PortId(0)][from]);
        self.pool.free(frame);
    }

    /// A segment out and an acknowledgement in, of which each hundredth tells of a mark.
    fn exchange(&mut self) -> u64 {
        self.now = self.now.plus_ns(20_000);
        self.turn();
        self.data();
        let sent = self.sent[self.turn];
        let ack = sent.wrapping_sub((FLIGHT - 1) * SEGMENT as u32).wrapping_add(1);
        let is_marked = (sent / SEGMENT as u32 + self.turn as u32).is_multiple_of(100);
        let flags = flag::ACK | if is_marked { flag::ECE } else { 0 };
        self.pass(1, &Tcp { seq: 1, ack, flags, window: 512, ..Tcp::default() }, 0);
        2
    }

    /// Works for a short while, and says how many operations that were.
    pub fn step(&mut self) -> u64 {
        if let Work::Vcc(..) = self.work {
            return self.exchange();
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
    let mut tenant = Tenant::default();
    let mut uplink = None;
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
