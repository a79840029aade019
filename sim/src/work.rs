//! Work: what a switch does again and again, so that it can be counted and timed.
//!
//! `levada-sim work KIND OPERATIONS` does it, under callgrind say: the difference of two runs is
//! what the operations between them take.

use core::net::{Ipv4Addr, Ipv6Addr};

use datapath::aqm::Discipline;
use datapath::frame::{Frame, Pool, PoolLimits};
use datapath::guard::Identity;
use datapath::offload::OffloadSupport;
use datapath::program::{Attachment, Endpoint, PortFeatures, PortId, Program, Share, Tenant, TenantId, Uplink};
use datapath::switch::Switch;
use datapath::units::{Both, Instant, Rate};
use datapath::vcc::{Mode, Settings};
use datapath::verdict::Verdict;
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
    /// A frame of TCP connections with the network, data and acknowledgements by turns. Windows are
    /// lowered.
    Vcc(Connections),
    /// A frame of 64 KiB, or an acknowledgement of two, of one TCP connection between neighbours
    /// with limits far above what they send, for both of which virtual congestion control does
    /// this. Their queues are as configuration makes them.
    Bulk(Mode),
}

/// TCP connections of an endpoint with the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connections {
    /// What virtual congestion control does for the endpoint, and whether it holds it to that.
    pub mode: Mode,
    /// See `mode`.
    pub polices: bool,
    /// What the peer says of ECN.
    pub peer: Peer,
    /// Whether data are for the endpoint, and acknowledgements of it.
    pub is_inward: bool,
    /// Whether they are over IPv6.
    pub is_ipv6: bool,
    /// How many there are; each has its turn.
    pub count: u16,
}

impl Connections {
    const ONE: Connections = Connections {
        mode: Mode::Off,
        polices: false,
        peer: Peer::Classic,
        is_inward: false,
        is_ipv6: false,
        count: 1,
    };
    /// With a peer behind another switch.
    const ACCURATE: Connections = Connections { mode: Mode::Dctcp, peer: Peer::Accurate, ..Connections::ONE };
    /// The same without `vcc`.
    const ACCURATE_OFF: Connections = Connections { mode: Mode::Off, ..Connections::ACCURATE };
}

/// What a peer that is asked for ECN says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// It has none.
    Plain,
    /// It knows RFC 3168.
    Classic,
    /// It knows AccECN (RFC 9768), as each guest does for which another switch speaks.
    Accurate,
}

impl Work {
    /// Every kind, by the name that the command line has for it.
    pub const ALL: [(&str, Work); 24] = [
        ("forward", Work::Forward),
        ("cut-32", Work::Cut(32)),
        ("cut-1400", Work::Cut(1400)),
        ("copy", Work::Copy),
        ("vcc-off", Work::Vcc(Connections::ONE)),
        ("vcc-echo", Work::Vcc(Connections { mode: Mode::Echo, ..Connections::ONE })),
        ("vcc-dctcp", Work::Vcc(Connections { mode: Mode::Dctcp, ..Connections::ONE })),
        ("vcc-echo-10000", Work::Vcc(Connections { mode: Mode::Echo, count: 10_000, ..Connections::ONE })),
        ("vcc-dctcp-10000", Work::Vcc(Connections { mode: Mode::Dctcp, count: 10_000, ..Connections::ONE })),
        ("vcc-accurate-off", Work::Vcc(Connections::ACCURATE_OFF)),
        ("vcc-accurate", Work::Vcc(Connections::ACCURATE)),
        ("vcc-accurate-10000", Work::Vcc(Connections { count: 10_000, ..Connections::ACCURATE })),
        ("vcc-accurate-police", Work::Vcc(Connections { polices: true, ..Connections::ACCURATE })),
        ("vcc-in-off", Work::Vcc(Connections { is_inward: true, ..Connections::ONE })),
        ("vcc-in-classic", Work::Vcc(Connections { mode: Mode::Echo, is_inward: true, ..Connections::ONE })),
        ("vcc-in-accurate-off", Work::Vcc(Connections { is_inward: true, ..Connections::ACCURATE_OFF })),
        ("vcc-in-accurate", Work::Vcc(Connections { is_inward: true, ..Connections::ACCURATE })),
        ("vcc-ipv6-off", Work::Vcc(Connections { is_ipv6: true, ..Connections::ACCURATE_OFF })),
        ("vcc-ipv6-accurate", Work::Vcc(Connections { is_ipv6: true, ..Connections::ACCURATE })),
        ("vcc-ipv6-in-off", Work::Vcc(Connections { is_ipv6: true, is_inward: true, ..Connections::ACCURATE_OFF })),
        ("vcc-ipv6-in-accurate", Work::Vcc(Connections { is_ipv6: true, is_inward: true, ..Connections::ACCURATE })),
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
    /// What the peer has agreed to.
    peer: Peer,
    /// By connection, what was sent of its data, and how many segments of them were marked; and
    /// whose turn it is.
    sent: Vec<u32>,
    marks: Vec<u32>,
    turn: usize,
}

/// Payload of a segment of the connection.
const SEGMENT: usize = 1448;
/// Segments of it in flight, and of one that is held to its window: that is never less.
const FLIGHT: u32 = 8;
const LEAST_FLIGHT: u32 = 2;
/// Each so manieth is marked.
const MARKED: u32 = 100;
/// AccECN's counter of marks before the first, and that of bytes that were capable (RFC 9768).
const FIRST_COUNT: u32 = 5;
const FIRST_BYTES: u32 = 1;
/// Acknowledgements that tell of a mark in bytes too: the first, and the next, which repeats it.
const TELLING: u32 = 2;
/// Bytes of IPv6's header beyond IPv4's.
const LONGER: usize = 20;
/// Where headers of IP and of TCP over IPv4 begin.
const IP: usize = 14;
const TCP: usize = 34;
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
        let (connections, knows) = match work {
            Work::Vcc(Connections { count, peer, .. }) => (count, peer),
            Work::Bulk(_) => (1, Peer::Plain),
            _ => (0, Peer::Plain),
        };
        let (sent, marks) = (vec![0; connections.into()], vec![0; connections.into()]);
        let peer = Peer::Plain;
        let mut place = Workplace { work, switch, pool, template, now, envelopes, ports, peer, sent, marks, turn: 0 };
        (0..connections).for_each(|_| place.open(knows));
        place
    }

    fn is_ipv6(&self) -> bool {
        matches!(self.work, Work::Vcc(Connections { is_ipv6: true, .. }))
    }

    /// It is the next connection's turn.
    fn turn(&mut self) {
        self.turn = (self.turn + 1) % self.sent.len();
        self.envelopes.iter_mut().for_each(|envelope| envelope.port = PORT + self.turn as u16);
    }

    /// The handshake, in which the peer says what it `knows` of ECN where it is asked. Then as many
    /// segments as will be in flight.
    fn open(&mut self, knows: Peer) {
        self.turn();
        self.now = self.now.plus_ns(20_000);
        let syn = Some((1460, 7));
        self.put(0, Ecn::Not, &Tcp { flags: flag::SYN, window: u16::MAX, syn, ..Tcp::default() }, 0);
        let asks = self.receive(1);
        let (met, asked) = self.ecn_of(&asks);
        self.pool.free(asks);
        // Without `vcc` the same comes of the peer: what makes its frames takes as much.
        let is_off = matches!(self.work, Work::Vcc(Connections { mode: Mode::Off, .. }));
        self.peer = if asked == 0 && !is_off { Peer::Plain } else { knows };
        let (ecn, says) = match self.peer {
            Peer::Plain => (Ecn::Not, 0),
            Peer::Classic => (Ecn::Not, 0b001),
            // What the SYN met (RFC 9768, table 2).
            Peer::Accurate => (Ecn::Capable, [0b010, 0b011, 0b100, 0b110][usize::from(met)]),
        };
        let answer = Tcp { ack: 1, flags: flag::SYN | flag::ACK, window: u16::MAX, syn, ..Tcp::default() };
        self.pass(1, ecn, &saying(says, answer), 0);
        let Work::Vcc(Connections { is_inward: true, .. }) = self.work else {
            for _ in 0..self.flight() {
                self.data(self.segment());
                self.take(1);
            }
            return;
        };
        self.pass(0, Ecn::Not, &Tcp { seq: 1, ack: 1, flags: flag::ACK, window: 512, ..Tcp::default() }, 0);
    }

    /// Payload of a full segment.
    fn segment(&self) -> usize {
        if self.is_ipv6() { SEGMENT - LONGER } else { SEGMENT }
    }

    fn flight(&self) -> u32 {
        if let Work::Vcc(Connections { polices: true, .. }) = self.work { LEAST_FLIGHT } else { FLIGHT }
    }

    /// A frame's ECN field, and TCP's flags AE, CWR and ECE.
    fn ecn_of(&self, frame: &Frame) -> (u8, u8) {
        let bytes = self.pool.bytes(frame);
        let (ecn, tcp) =
            if self.is_ipv6() { (bytes[IP + 1] >> 4, &bytes[TCP + LONGER..]) } else { (bytes[IP + 1], &bytes[TCP..]) };
        (ecn & 3, (tcp[12] & 1) << 2 | tcp[13] >> 6)
    }

    /// The guest sends so much.
    fn data(&mut self, payload: usize) {
        let seq = self.sent[self.turn].wrapping_add(1);
        self.put(0, Ecn::Not, &Tcp { seq, ack: 1, flags: flag::ACK, window: 512, ..Tcp::default() }, payload);
        self.sent[self.turn] = self.sent[self.turn].wrapping_add(payload as u32);
    }

    /// The guest's (0) or the peer's (1) segment enters the switch.
    fn put(&mut self, from: usize, ecn: Ecn, tcp: &Tcp, payload: usize) {
        let envelope = &self.envelopes[from];
        let frame = packet::write_tcp(&mut self.pool, envelope, ecn, tcp, payload, 0);
        let frame = frame.expect("nothing is left from before");
        if self.is_ipv6() {
            make_ipv6(&mut self.pool, &frame, &self.envelopes[from]);
        }
        let verdict = self.switch.rx(&mut self.pool, self.now, self.ports[from], frame);
        assert_eq!(verdict, Verdict::Forwarded);
    }

    /// A frame leaves it for the guest (0) or the peer (1).
    fn receive(&mut self, for_whom: usize) -> Frame {
        let (to, frame) = self.switch.tx(&mut self.pool, self.now).expect("it comes out");
        assert_eq!(to, self.ports[for_whom]);
        frame
    }

    /// The same, and it is done with.
    fn take(&mut self, for_whom: usize) {
        let frame = self.receive(for_whom);
        self.pool.free(frame);
    }

    /// A segment through the switch.
    fn pass(&mut self, from: usize, ecn: Ecn, tcp: &Tcp, payload: usize) {
        self.put(from, ecn, tcp, payload);
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
            self.put(1, Ecn::Not, &Tcp { seq: 1, ack, flags: flag::ACK, window: u16::MAX, ..Tcp::default() }, 0);
        }
        (0..2).for_each(|_| self.take(0));
        u64::from(BULK_FRAMES) + 2
    }

    /// A segment out and an acknowledgement in, of which each hundredth tells of a mark.
    fn exchange(&mut self) -> u64 {
        self.now = self.now.plus_ns(20_000);
        self.turn();
        let segment = self.segment();
        self.data(segment);
        self.take(1);
        let ack = self.sent[self.turn].wrapping_sub((self.flight() - 1) * segment as u32).wrapping_add(1);
        let since = self.since_mark();
        self.marks[self.turn] += u32::from(since == 0);
        let marks = self.marks[self.turn];
        let tcp = Tcp { seq: 1, ack, flags: flag::ACK, window: 512, ..Tcp::default() };
        let (ecn, says, counted) = match self.peer {
            Peer::Plain => (Ecn::Not, 0, None),
            Peer::Classic => (Ecn::Not, u8::from(since == 0), None),
            Peer::Accurate => {
                let marked = marks * segment as u32;
                let told = (ack.wrapping_sub(1).wrapping_sub(marked).wrapping_add(FIRST_BYTES), marked);
                let tells = marks > 0 && since < TELLING;
                (Ecn::Capable, ((FIRST_COUNT + marks) & 7) as u8, tells.then_some(told))
            }
        };
        self.pass(1, ecn, &saying(says, Tcp { counted, ..tcp }), 0);
        2
    }

    /// A segment in, of which each hundredth is marked, and an acknowledgement out.
    fn exchange_inward(&mut self) -> u64 {
        self.now = self.now.plus_ns(20_000);
        self.turn();
        let seq = self.sent[self.turn].wrapping_add(1);
        self.sent[self.turn] = self.sent[self.turn].wrapping_add(self.segment() as u32);
        let since = self.since_mark();
        let ecn = match self.peer {
            Peer::Plain => Ecn::Not,
            _ if since == 0 => Ecn::Marked,
            _ => Ecn::Capable,
        };
        let says = match self.peer {
            Peer::Plain => 0,
            // It has reduced its window.
            Peer::Classic => u8::from(since == 1) << 1,
            Peer::Accurate => FIRST_COUNT as u8,
        };
        let tcp = Tcp { seq, ack: 1, flags: flag::ACK, window: 512, ..Tcp::default() };
        self.pass(1, ecn, &saying(says, tcp), self.segment());
        let ack = self.sent[self.turn].wrapping_add(1);
        self.pass(0, Ecn::Not, &Tcp { seq: 1, ack, flags: flag::ACK, window: 512, ..Tcp::default() }, 0);
        2
    }

    /// Segments since one was marked. Connections have theirs at unlike times.
    fn since_mark(&self) -> u32 {
        (self.sent[self.turn] / self.segment() as u32 + self.turn as u32) % MARKED
    }

    /// Works for a short while, and says how many operations that were.
    pub fn step(&mut self) -> u64 {
        match self.work {
            Work::Vcc(Connections { is_inward: true, .. }) => return self.exchange_inward(),
            Work::Vcc(_) => return self.exchange(),
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

/// A segment with these flags AE, CWR and ECE.
fn saying(codes: u8, tcp: Tcp) -> Tcp {
    let flags = [(0b010, flag::CWR), (0b001, flag::ECE)];
    let more = flags.into_iter().filter(|(code, _)| codes & code != 0).fold(0, |all, (_, flag)| all | flag);
    Tcp { ae: codes & 0b100 != 0, flags: tcp.flags | more, ..tcp }
}

/// A host's address of IPv6.
fn ipv6(address: Address) -> Ipv6Addr {
    let [a, b, c, d] = address.ip.octets();
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
}

/// The same segment over IPv6 instead of IPv4; its checksum is left to the NIC.
fn make_ipv6(pool: &mut Pool, frame: &Frame, envelope: &Envelope) {
    let (bytes, meta) = pool.grow_front(frame, LONGER as u16).expect("there is room before a frame");
    let codepoint = bytes[LONGER + IP + 1] & 3;
    bytes.copy_within(LONGER..LONGER + IP, 0);
    bytes[12..IP].copy_from_slice(&0x86ddu16.to_be_bytes());
    let (ip, tcp) = bytes[IP..].split_at_mut(TCP - IP + LONGER);
    ip[..4].copy_from_slice(&[0x60, codepoint << 4, 0, 0]);
    ip[4..6].copy_from_slice(&(tcp.len() as u16).to_be_bytes());
    ip[6..8].copy_from_slice(&[6, 64]);
    ip[8..24].copy_from_slice(&ipv6(envelope.from).octets());
    ip[24..].copy_from_slice(&ipv6(envelope.to).octets());
    let pseudo = packet::fold(packet::sum(&ip[8..]) + 6 + tcp.len() as u32);
    tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
    meta.offload.csum_start += LONGER as u16;
}

fn program(topology: &Topology, work: Work) -> Program {
    let (mut limit, mut aqm) = (Rate::UNLIMITED, None);
    if let Work::Bulk(mode) = work {
        limit = UPLINK;
        aqm = mode.translates().then_some(Discipline::Auto);
    }
    let is_ipv6 = matches!(work, Work::Vcc(Connections { is_ipv6: true, .. }));
    let share = Share { limit, ..Share::default() };
    let endpoint = |host: usize| Endpoint {
        share: Both { egress: share, ingress: share },
        aqm,
        identity: Identity {
            macs: vec![topology.address(host).mac],
            ipv4: vec![(topology.address(host).ip, 32)],
            ipv6: if is_ipv6 { vec![(ipv6(topology.address(host)), 128)] } else { Vec::new() },
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
    if let Work::Vcc(Connections { mode, polices, .. }) = work {
        (tenant.vcc, tenant.attachment) = (Settings { polices, ..mode.into() }, Attachment::Untagged);
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
    use datapath::program::EndpointId;

    #[test]
    fn every_kind_works() {
        for (name, work) in Work::ALL {
            let mut place = Workplace::new(work);
            let operations: u64 = (0..200).map(|_| place.step()).sum();
            assert!(operations >= 200, "{name}: {operations}");
        }
    }

    /// What goes to the network says what the wire is; marks are those that were told, or made.
    #[test]
    fn each_kind_of_connection_speaks_as_its_name_says() {
        let kinds = Work::ALL.into_iter().filter_map(|(name, work)| match work {
            Work::Vcc(connections) if connections.count == 1 => Some((name, connections)),
            _ => None,
        });
        for (name, connections) in kinds {
            let mut place = Workplace::new(Work::Vcc(connections));
            let (mut told, mut last) = (0, (0, 0));
            for _ in 0..450 {
                let before = place.marks[0];
                place.step();
                told += place.marks[0] - before;
                let next = place.sent[0].wrapping_add(1);
                let (seq, ack) = if connections.is_inward { (1, next) } else { (next, 1) };
                let tcp = Tcp { seq, ack, flags: flag::ACK, window: 512, ..Tcp::default() };
                place.put(0, Ecn::Not, &tcp, 0);
                let frame = place.receive(1);
                last = place.ecn_of(&frame);
                place.pool.free(frame);
            }
            let counters = place.switch.vcc().counters(EndpointId(0)).cloned().unwrap_or_default();
            let marked = if connections.is_inward { 4 * u64::from(connections.mode != Mode::Off) } else { 0 };
            assert_eq!(counters.hidden_marks, marked, "{name}");
            assert_eq!(counters.policed, 0, "{name}");
            let accurate = (connections.peer == Peer::Accurate).then_some((2, ((5 + marked) & 7) as u8));
            let expected = match (connections.mode, accurate) {
                (Mode::Off, _) => (0, 0),
                (_, Some(accurate)) => accurate,
                _ => (2, 0),
            };
            assert_eq!(last, expected, "{name}");
            let is_told = !connections.is_inward && connections.mode != Mode::Off;
            assert_eq!(counters.reductions > 0, is_told, "{name}");
            if is_told && accurate.is_some() {
                assert_eq!(counters.marked_bytes, u64::from(told) * place.segment() as u64, "{name}");
            }
        }
    }
}
