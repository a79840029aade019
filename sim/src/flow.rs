//! Flow ends: what a host does for one connection, on the side that sends or the side that
//! receives.

use std::collections::VecDeque;

use datapath::frame::{Frame, Pool};
use datapath::units::{Instant, Rate};

use crate::arrivals::Arrivals;
use crate::attack::{self, Kind};
use crate::packet::{self, Ecn, Envelope, Packet, STAMP, Tcp, flag};
use crate::random::Random;
use crate::tcp::receiver::{AckPolicy, Receiver};
use crate::tcp::sender::Sender;
use crate::tcp::seq::{Blocks, unwrap, wrap};
use crate::tcp::{Ack, SenderConfig, SenderStats};

/// The receive window's scale (RFC 7323), as Linux chooses it for a buffer of 6 MiB.
const WINDOW_SCALE: u8 = 7;
/// Bytes a TCP receiver takes beyond what it has acknowledged (the maximum of Linux's `tcp_rmem`).
const RECEIVE_BUFFER: u64 = 6 << 20;
/// Bytes a TCP sender has in flight at most (the maximum of Linux's `tcp_wmem`).
pub const SEND_BUFFER: u64 = 4 << 20;
/// Positions further than this from what is expected belong to an earlier connection.
const PLAUSIBLE: u64 = 1 << 30;
/// Payload of a ping, as of ping's default: 98 bytes of frame.
const PING_BYTES: usize = 56;
/// Pings that may be under way at once.
const PINGS_IN_FLIGHT: usize = 1024;

/// How late a source of datagrams may be and still make up for it, in nanoseconds.
const FORGIVEN_NS: u64 = 1_000_000;
/// A time that does not come.
const NEVER: Instant = Instant(u64::MAX);

/// What is counted for one end of a flow.
#[derive(Clone, Debug, Default)]
pub struct FlowStats {
    /// Payload bytes delivered: in order for TCP.
    pub bytes: u64,
    /// Segments or datagrams that arrived.
    pub segments: u64,
    /// Payload bytes that arrived twice.
    pub duplicates: u64,
    /// Connections that came to their end.
    pub completed: u64,
    /// The TCP sender's counters, all connections together.
    pub sender: SenderStats,
    /// Round trips of pings, in nanoseconds.
    pub round_trips_ns: Vec<u64>,
    /// Frames sent.
    pub frames_sent: u64,
    /// Frames that could not be made: the pool was empty.
    pub no_buffer: u64,
    /// TCP segments sent, and those that arrived, by [`packet::Kind`].
    pub sent_kinds: [u64; 4],
    /// See there.
    pub arrived_kinds: [u64; 4],
}

/// One end of a flow.
#[derive(Debug)]
pub struct FlowEnd {
    /// Where its frames go.
    pub envelope: Envelope,
    /// When it may send.
    pub from_until: (Instant, Instant),
    /// What it does.
    pub role: Role,
    /// What it counted.
    pub stats: FlowStats,
}

/// What an end does.
#[derive(Debug)]
pub enum Role {
    /// Sends TCP data.
    TcpSource(Box<TcpSource>),
    /// Receives TCP data.
    TcpSink(Box<TcpSink>),
    /// Sends datagrams.
    UdpSource(UdpSource),
    /// Receives datagrams, or answers them.
    UdpSink {
        /// Whether it sends them back.
        answers: bool,
        /// Positions to be answered.
        waiting: VecDeque<u32>,
        /// What came, where it is not answered.
        arrivals: Arrivals,
    },
    /// Sends requests and measures the answers.
    Ping {
        /// Time between requests.
        every_ns: u64,
        /// When the next is due.
        next: Instant,
        /// Requests sent so far, and when the unanswered ones were.
        sent: u32,
        /// When those without an answer were sent.
        waiting: VecDeque<(u32, Instant)>,
    },
    /// Sends what no honest host sends.
    Attack {
        /// What that is.
        kind: Kind,
        /// Time between frames.
        every_ns: u64,
        /// When the next is due.
        next: Instant,
        /// Where it takes its frames from.
        random: Random,
    },
}

/// The state of a sending TCP.
#[derive(Debug)]
pub struct TcpSource {
    config: SenderConfig,
    sender: Sender,
    base: u32,
    random: Random,
    again_after_ns: Option<u64>,
    again_at: Option<Instant>,
    echo_time: u32,
    before: SenderStats,
}

/// What a receiving TCP knows of ECN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SinkKind {
    /// Nothing (Linux's `tcp_ecn` of 0).
    Without,
    /// RFC 3168, where it is asked (Linux's default).
    Classic,
    /// The same with DCTCP's echo, all packets ECN-capable.
    Dctcp,
}

/// The state of a receiving TCP.
#[derive(Debug)]
pub struct TcpSink {
    policy: AckPolicy,
    kind: SinkKind,
    /// Whether all its packets are capable where the connection has ECN, as DCTCP's are.
    all_capable: bool,
    random: Random,
    receiver: Receiver,
    /// Sequence number of the peer's first byte, once it has said so.
    base: Option<u32>,
    syn_ack_due: bool,
    ecn: bool,
    echo_time: u32,
    before: (u64, u64),
}

/// The state of a sender of datagrams.
#[derive(Clone, Debug)]
pub struct UdpSource {
    /// Payload bytes of a datagram, datagrams in a train.
    pub datagram: (usize, usize),
    /// Wire bits a second.
    pub rate: Rate,
    /// How long it sends and pauses.
    pub on_off_ns: (u64, u64),
    /// When the next is due at a constant rate, exactly: with a remainder in units of 1/rate.
    pub next: (Instant, u64),
    /// How much later it really goes, in nanoseconds: up to half the time between two, at random,
    /// so that sources do not fall into step.
    pub jitter_ns: u64,
    /// Where jitter comes from.
    pub random: Random,
    /// Bytes sent so far: the stamps' position.
    pub position: u32,
}

impl FlowEnd {
    /// A frame arrived. The error says what it proves to be wrong with the network.
    pub fn rx(&mut self, now: Instant, packet: &Packet, bytes: &[u8]) -> Result<(), String> {
        let (tenant, port) = (self.envelope.tenant, self.envelope.port);
        let place = packet.payload.start;
        let position = match (&packet.tcp, bytes.get(place..place + STAMP)) {
            (Some(tcp), _) => tcp.seq,
            (None, Some(stamp)) => u32::from_be_bytes([stamp[4], stamp[5], stamp[6], stamp[7]]),
            (None, None) => 0,
        };
        if let Some(found) = packet.wrong_stamp(bytes, tenant, port, position) {
            return Err(format!(
                "tenant {tenant}, port {port}: at {position} arrived data stamped {found:?}: not this tenant's, or not in its place"
            ));
        }
        self.stats.segments += u64::from(packet.segments());
        if let Some(tcp) = &packet.tcp {
            self.stats.arrived_kinds[tcp.kind(packet.payload.len()) as usize] += u64::from(packet.segments());
        }
        if let (Role::TcpSink(sink), Some(tcp)) = (&self.role, &packet.tcp)
            && sink.kind == SinkKind::Without
            && tcp.flags & flag::SYN == 0
            && (tcp.flags & (flag::ECE | flag::CWR) != 0 || packet.ecn == Ecn::Marked)
        {
            return Err(format!("port {port}: a host without ECN was shown ECE, CWR or CE"));
        }
        match (&mut self.role, &packet.tcp) {
            (Role::TcpSource(source), Some(tcp)) => source.rx(now, packet, tcp)?,
            (Role::TcpSink(sink), Some(tcp)) => sink.rx(now, packet, tcp, &mut self.stats),
            (Role::UdpSink { answers, waiting, arrivals }, None) => {
                self.stats.bytes += packet.payload.len() as u64;
                if !*answers {
                    let segments = packet.segments();
                    arrivals.count(now, position, packet.payload.len() / segments as usize, segments);
                } else if waiting.len() < PINGS_IN_FLIGHT {
                    waiting.push_back(position);
                }
            }
            (Role::Ping { waiting, .. }, None) => {
                while let Some((number, sent)) = waiting.pop_front() {
                    if number == position {
                        self.stats.round_trips_ns.push(now.since(sent));
                        break;
                    }
                }
            }
            _ => return Err(format!("port {port}: arrived a packet of the wrong protocol")),
        }
        Ok(())
    }

    /// Time passed `deadline`.
    pub fn on_timer(&mut self, now: Instant) {
        if let Role::TcpSource(source) = &mut self.role {
            source.on_timer(now, &mut self.stats);
        }
    }

    /// When there is something to do, if nothing arrives before.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let (from, until) = self.from_until;
        let at = match &self.role {
            Role::TcpSource(source) => return source.deadline().map(|at| at.max(from)),
            Role::TcpSink(sink) => return sink.receiver.deadline(),
            Role::UdpSink { .. } => return None,
            Role::UdpSource(source) => source.next.0.plus_ns(source.jitter_ns),
            Role::Ping { next, .. } | Role::Attack { next, .. } => *next,
        };
        Some(at.max(from)).filter(|&at| at < until)
    }

    /// The next frame it wants to send.
    pub fn poll_tx(&mut self, pool: &mut Pool, now: Instant) -> Option<Frame> {
        let (from, until) = self.from_until;
        let may_begin = from <= now && now < until;
        let FlowEnd { envelope, role, stats, .. } = self;
        if now >= until {
            role.end();
        }
        let frame = match role {
            Role::TcpSource(source) => source.poll_tx(pool, now, envelope, (from, until), &mut stats.sent_kinds)?,
            Role::TcpSink(sink) => sink.poll_tx(pool, now, envelope, &mut stats.sent_kinds)?,
            Role::UdpSource(source) => may_begin.then(|| source.poll_tx(pool, now, envelope)).flatten()?,
            Role::UdpSink { waiting, .. } => {
                let position = waiting.pop_front()?;
                packet::write_udp(pool, envelope, PING_BYTES, PING_BYTES, position)
            }
            Role::Ping { every_ns, next, sent, waiting } => {
                if !may_begin || *next > now {
                    return None;
                }
                *next = now.plus_ns(*every_ns);
                *sent += 1;
                if waiting.len() == PINGS_IN_FLIGHT {
                    waiting.pop_front();
                }
                waiting.push_back((*sent, now));
                packet::write_udp(pool, envelope, PING_BYTES, PING_BYTES, *sent)
            }
            Role::Attack { kind, every_ns, next, random } => {
                if !may_begin || *next > now {
                    return None;
                }
                *next = now.plus_ns(*every_ns);
                attack::frame(pool, envelope, *kind, random)
            }
        };
        match frame {
            Some(_) => stats.frames_sent += 1,
            None => stats.no_buffer += 1,
        }
        frame
    }

    /// What was counted until now.
    #[must_use]
    pub fn counted(&self) -> FlowStats {
        let mut stats = self.stats.clone();
        match &self.role {
            Role::TcpSource(source) => stats.sender = added(source.before, source.sender.stats()),
            Role::TcpSink(sink) => {
                stats.bytes = sink.before.0 + sink.receiver.received();
                stats.duplicates = sink.before.1 + sink.receiver.duplicates();
            }
            _ => {}
        }
        stats
    }
}

impl Role {
    /// Its time is over: what was due, and is late, is no longer due.
    fn end(&mut self) {
        match self {
            Role::UdpSource(source) => source.next.0 = NEVER,
            Role::Ping { next, .. } | Role::Attack { next, .. } => *next = NEVER,
            _ => {}
        }
    }
}

impl TcpSource {
    /// A source whose first connection opens as soon as it may.
    #[must_use]
    pub fn new(config: SenderConfig, again_after_ns: Option<u64>, mut random: Random) -> Self {
        let base = random.word() as u32;
        TcpSource {
            config,
            sender: Sender::new(config),
            base,
            random,
            again_after_ns,
            again_at: None,
            echo_time: 0,
            before: SenderStats::default(),
        }
    }

    fn rx(&mut self, now: Instant, packet: &Packet, tcp: &Tcp) -> Result<(), String> {
        // A SYN-ACK is judged by its answer below; nothing else may tell of congestion to who did
        // not ask.
        if !self.config.ecn && (tcp.flags & (flag::ECE | flag::CWR) != 0 || packet.ecn == Ecn::Marked) {
            return Err("a host without ECN was shown ECE, CWR or CE".into());
        }
        self.echo_time = tcp.timestamps.0;
        let base = self.base;
        let position = unwrap(tcp.ack, base, self.sender.acknowledged());
        let window = u64::from(tcp.window);
        if tcp.flags & flag::SYN != 0 {
            if tcp.ack == base {
                self.sender.on_syn_ack(now, tcp.flags & flag::ECE != 0, window);
            }
            return Ok(());
        }
        let mut blocks = Blocks::default();
        for &(left, right) in tcp.sack.as_slice() {
            blocks.push((unwrap(left, base, position), unwrap(right, base, position)));
        }
        let echo = tcp.flags & flag::ECE != 0;
        self.sender.on_ack(now, &Ack { position, blocks, echo, window: window << WINDOW_SCALE });
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        if self.sender.done() { self.again_at } else { self.sender.deadline() }
    }

    fn on_timer(&mut self, now: Instant, stats: &mut FlowStats) {
        if !self.sender.done() {
            self.sender.on_timer(now);
        } else if self.again_at.is_some_and(|at| at <= now) {
            self.before = added(self.before, self.sender.stats());
            stats.completed += 1;
            self.again_at = None;
            self.base = self.random.word() as u32;
            self.sender = Sender::new(self.config);
        }
    }

    fn poll_tx(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        envelope: &Envelope,
        (from, until): (Instant, Instant),
        kinds: &mut [u64; 4],
    ) -> Option<Option<Frame>> {
        if now < from {
            return None;
        }
        if self.sender.done() {
            if self.again_at.is_none() {
                self.again_at = self.again_after_ns.map(|ns| now.plus_ns(ns)).filter(|&at| at < until);
            }
            return None;
        }
        if now >= until {
            self.sender.stop();
        }
        let sent = self.sender.poll_send(now)?;
        let syn = sent.flags & flag::SYN != 0;
        let seq = if syn { self.base.wrapping_sub(1) } else { wrap(sent.position, self.base) };
        let tcp = Tcp {
            seq,
            ack: 1,
            flags: sent.flags,
            window: u16::MAX,
            timestamps: (clock(now), self.echo_time),
            sack: Blocks::default(),
            syn: syn.then_some((envelope.nic.mtu as u16 - 40, WINDOW_SCALE)),
            again: sent.again,
            ..Tcp::default()
        };
        kinds[tcp.kind(sent.bytes as usize) as usize] += u64::from(sent.bytes.div_ceil(self.config.mss).max(1));
        let ecn = if sent.capable { Ecn::Capable } else { Ecn::Not };
        Some(packet::write_tcp(pool, envelope, ecn, &tcp, sent.bytes as usize, seq))
    }
}

impl TcpSink {
    /// A sink that waits for a connection.
    #[must_use]
    pub fn new(policy: AckPolicy, kind: SinkKind, all_capable: bool, mut random: Random) -> Self {
        TcpSink {
            policy,
            kind,
            all_capable: all_capable || kind == SinkKind::Dctcp,
            receiver: receiver(policy, kind, random.split()),
            random,
            base: None,
            syn_ack_due: false,
            ecn: false,
            echo_time: 0,
            before: (0, 0),
        }
    }

    fn rx(&mut self, now: Instant, packet: &Packet, tcp: &Tcp, stats: &mut FlowStats) {
        if tcp.flags & flag::SYN != 0 {
            let base = tcp.seq.wrapping_add(1);
            if self.base != Some(base) {
                stats.completed += u64::from(self.base.is_some());
                self.before = (self.before.0 + self.receiver.received(), self.before.1 + self.receiver.duplicates());
                self.receiver = receiver(self.policy, self.kind, self.random.split());
                self.base = Some(base);
            }
            let asked = tcp.flags & (flag::ECE | flag::CWR) == flag::ECE | flag::CWR;
            self.ecn = asked && self.kind != SinkKind::Without;
            self.syn_ack_due = true;
            self.echo_time = tcp.timestamps.0;
            return;
        }
        let Some(base) = self.base else { return };
        let position = unwrap(tcp.seq, base, self.receiver.received());
        if packet.payload.is_empty() || position.abs_diff(self.receiver.received()) > PLAUSIBLE {
            return;
        }
        self.echo_time = tcp.timestamps.0;
        let marked = self.ecn && packet.ecn == Ecn::Marked;
        let cwr = tcp.flags & flag::CWR != 0;
        self.receiver.on_data(now, position, packet.payload.len() as u64, packet.segments(), marked, cwr);
    }

    fn poll_tx(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        envelope: &Envelope,
        kinds: &mut [u64; 4],
    ) -> Option<Option<Frame>> {
        let base = self.base?;
        let ecn = if self.ecn && self.all_capable { Ecn::Capable } else { Ecn::Not };
        let window = (RECEIVE_BUFFER >> WINDOW_SCALE) as u16;
        let mut tcp =
            Tcp { seq: 1, flags: flag::ACK, window, timestamps: (clock(now), self.echo_time), ..Tcp::default() };
        if self.syn_ack_due {
            self.syn_ack_due = false;
            tcp.ack = base;
            tcp.flags |= flag::SYN | if self.ecn { flag::ECE } else { 0 };
            tcp.window = u16::MAX;
            tcp.syn = Some((envelope.nic.mtu as u16 - 40, WINDOW_SCALE));
            kinds[packet::Kind::Syn as usize] += 1;
            return Some(packet::write_tcp(pool, envelope, ecn, &tcp, 0, 0));
        }
        let reply = self.receiver.poll_ack(now)?;
        tcp.ack = wrap(reply.position, base);
        tcp.flags |= if reply.echo { flag::ECE } else { 0 };
        for &(left, right) in reply.blocks.as_slice() {
            tcp.sack.push((wrap(left, base), wrap(right, base)));
        }
        kinds[packet::Kind::Ack as usize] += 1;
        Some(packet::write_tcp(pool, envelope, ecn, &tcp, 0, 0))
    }
}

impl UdpSource {
    fn poll_tx(&mut self, pool: &mut Pool, now: Instant, envelope: &Envelope) -> Option<Option<Frame>> {
        let (at, remainder) = self.next;
        if at.plus_ns(self.jitter_ns) > now {
            return None;
        }
        let (datagram, train) = self.datagram;
        let wire = packet::wire_bytes(packet::UDP_HEADERS, datagram * train, datagram);
        let work = u64::from(wire) * 8_000_000_000 + remainder;
        // A source that was held up does not make up for it.
        let late_ns = now.since(at.plus_ns(self.jitter_ns));
        let from = if late_ns > FORGIVEN_NS { at.plus_ns(late_ns) } else { at };
        let mut next = from.plus_ns(work / self.rate.0.max(1));
        let (on_ns, off_ns) = self.on_off_ns;
        if off_ns > 0 && next.0 % (on_ns + off_ns) >= on_ns {
            next = Instant((next.0 / (on_ns + off_ns) + 1) * (on_ns + off_ns));
        }
        self.next = (next, work % self.rate.0.max(1));
        self.jitter_ns = self.random.range(0, work / self.rate.0.max(1) / 2);
        let position = self.position;
        self.position = position.wrapping_add((datagram * train) as u32);
        Some(packet::write_udp(pool, envelope, datagram * train, datagram, position))
    }
}

fn receiver(policy: AckPolicy, kind: SinkKind, random: Random) -> Receiver {
    match kind {
        SinkKind::Dctcp => Receiver::exact(policy, random),
        SinkKind::Without | SinkKind::Classic => Receiver::new(policy, random),
    }
}

/// TCP's timestamp clock: microseconds.
fn clock(now: Instant) -> u32 {
    (now.0 / 1000) as u32
}

fn added(a: SenderStats, b: SenderStats) -> SenderStats {
    SenderStats {
        segments: a.segments + b.segments,
        retransmits: a.retransmits + b.retransmits,
        timeouts: a.timeouts + b.timeouts,
        probes: a.probes + b.probes,
        recoveries: a.recoveries + b.recoveries,
        echoes: a.echoes + b.echoes,
    }
}
