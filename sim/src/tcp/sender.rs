//! The sending half of a connection.
//!
//! Loss detection is by selective acknowledgement (RFC 6675) in the order of transmission, as RACK
//! does it (RFC 8985): a segment is lost when enough that was sent after it has arrived, so that
//! lost retransmissions are found too. A tail loss probe (RFC 8985 section 7) spares most timeouts.
//! Proportional rate reduction paces recovery (RFC 9937; under heavy loss the rule of its
//! predecessor, RFC 6937, sends two segments for each that arrives, and a slow managed queue then
//! drops every second one for ever). The timer follows RFC 6298 with Linux's floor. Super-frames
//! are sized as Linux sizes them: a millisecond of the pacing rate, and larger on short paths.
//!
//! Call `on_syn_ack`, `on_ack` and `on_timer` with what happened, then `poll_send` until it gives
//! `None`, and come back at `deadline`.

use std::collections::{BTreeSet, VecDeque};

use datapath::units::Instant;

use super::congestion::{Algorithm, Congestion};
use super::flag;
use super::rtt::Rtt;
use super::seq::MAX_BLOCKS;
use super::{Ack, Cheat, SenderConfig, SenderStats, Transmission};

/// Segments delivered out of order before a gap counts as a loss (RFC 6675's DupThresh).
const DUP_THRESHOLD: u32 = 3;
/// What a tail loss probe waits beyond two round trips (two timer ticks of Linux at 1000 Hz).
const PROBE_SLACK_NS: u64 = 2_000_000;
/// The same with one segment in flight, whose acknowledgement may be delayed (RFC 8985 section
/// 7.2).
const PROBE_DELAYED_ACK_NS: u64 = 200_000_000;
/// A super-frame holds the bytes of this part of a second at the pacing rate: Linux's pacing shift
/// of 10.
const PACING_PARTS: u64 = 1024;
/// Round trips below 2^19 ns (half a millisecond) allow the longest super-frames: Linux's
/// `tcp_tso_rtt_log` of 9, in microseconds.
const SHORT_RTT_SHIFT: u32 = 19;
/// Segments that an application which has a pace writes at a time: almost 64 KiB.
const WRITE_SEGMENTS: u64 = 44;
/// A super-frame is worth waiting for up to this part of the window: Linux's `tcp_tso_win_divisor`.
const DEFER_PART: f64 = 3.0;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    InFlight,
    Sacked,
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    sent: Instant,
    /// Its place in the order of all transmissions.
    order: u64,
    bytes: u32,
    fate: Fate,
    again: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// SYN is to be sent, or was.
    Opening {
        due: bool,
    },
    Open,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Normal,
    /// Losses or an echo shrink the window (RFC 9937), until `point` is acknowledged.
    Reducing {
        point: u64,
        /// It was an echo: the receiver goes on with it until CWR arrives, with what is sent behind
        /// `point`.
        echo: bool,
        flight: u32,
        delivered: u64,
        sent: u64,
    },
    /// After a timeout, until `point` is acknowledged.
    Timeout {
        point: u64,
    },
}

/// The sending half of a connection.
#[derive(Debug)]
pub struct Sender {
    config: SenderConfig,
    phase: Phase,
    state: State,
    congestion: Congestion,
    rtt: Rtt,
    stats: SenderStats,
    /// First position not acknowledged, and the next to be sent.
    una: u64,
    next: u64,
    peer_window: u64,
    /// Where it has a pace: when the application began, and bytes that it has written.
    opened: Instant,
    written: u64,
    /// What lies between `una` and `next`, one a segment.
    segments: VecDeque<Segment>,
    /// Transmissions whose fate is open, in order: (order, position).
    open: VecDeque<(u64, u64)>,
    lost: BTreeSet<u64>,
    in_flight: u32,
    sacked: u32,
    order: u64,
    /// The latest transmission known to have arrived, plus one.
    newest: u64,
    seen_blocks: [(u64, u64); MAX_BLOCKS],
    /// DCTCP: segments acknowledged and marked since the round trip began, which ends when this is
    /// acknowledged.
    round: (u64, u64),
    round_end: u64,
    syn_sent: Option<Instant>,
    probe: bool,
    probed: bool,
    send_cwr: bool,
    timeout_at: Option<Instant>,
    probe_at: Option<Instant>,
    reorder_at: Option<Instant>,
}

impl Sender {
    /// A connection that wants to open.
    #[must_use]
    pub fn new(config: SenderConfig) -> Self {
        Sender {
            config,
            phase: Phase::Opening { due: true },
            state: State::Normal,
            congestion: Congestion::new(config.algorithm),
            rtt: Rtt::default(),
            stats: SenderStats::default(),
            una: 0,
            next: 0,
            peer_window: 0,
            opened: Instant::ZERO,
            written: 0,
            segments: VecDeque::new(),
            open: VecDeque::new(),
            lost: BTreeSet::new(),
            in_flight: 0,
            sacked: 0,
            order: 0,
            newest: 0,
            seen_blocks: Default::default(),
            round: (0, 0),
            round_end: 0,
            syn_sent: None,
            probe: false,
            probed: false,
            send_cwr: false,
            timeout_at: None,
            probe_at: None,
            reorder_at: None,
        }
    }

    /// What was counted.
    #[must_use]
    pub fn stats(&self) -> SenderStats {
        self.stats
    }

    /// Bytes acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.una
    }

    /// Whether all there was to send has been acknowledged.
    #[must_use]
    pub fn done(&self) -> bool {
        self.config.bytes == Some(self.una)
    }

    /// Congestion window in segments, smoothed round trip in nanoseconds.
    #[must_use]
    pub fn window(&self) -> (f64, u64) {
        (self.congestion.window(), self.rtt.smoothed_ns())
    }

    /// When `on_timer` has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let syn_at = (self.phase == Phase::Opening { due: true }).then_some(Instant::ZERO);
        [syn_at, self.timeout_at, self.probe_at, self.reorder_at, self.write_at()].into_iter().flatten().min()
    }

    /// When the application writes again.
    fn write_at(&self) -> Option<Instant> {
        let open = self.phase == Phase::Open && self.config.bytes.is_none_or(|end| self.next < end);
        let pace = self.config.pace.filter(|_| open)?;
        Some(self.opened.plus_ns(pace.time_ns(self.written + WRITE_SEGMENTS * u64::from(self.config.mss))))
    }

    /// Where what there is to send ends.
    fn end(&self) -> u64 {
        let written = if self.config.pace.is_some() { self.written } else { u64::MAX };
        self.config.bytes.unwrap_or(u64::MAX).min(written)
    }

    /// No new data is sent; what was sent is seen through.
    pub fn stop(&mut self) {
        let end = self.config.bytes.unwrap_or(u64::MAX);
        self.config.bytes = Some(end.min(self.next));
    }

    /// The connection opened.
    pub fn on_syn_ack(&mut self, now: Instant, ecn: bool, window: u64) {
        if self.phase == Phase::Open {
            return;
        }
        if let Some(sent) = self.syn_sent.filter(|_| self.config.times_syn) {
            self.rtt.sample(now.since(sent));
        }
        self.phase = Phase::Open;
        self.opened = now;
        self.config.ecn &= ecn;
        self.peer_window = window;
        self.rtt.reset_backoff();
        self.timeout_at = None;
        self.rearm(now);
    }

    /// An acknowledgement arrived.
    pub fn on_ack(&mut self, now: Instant, ack: &Ack) {
        if self.phase != Phase::Open || ack.position > self.next || ack.position < self.una {
            return;
        }
        let before = self.in_flight;
        let advanced = ack.position > self.una;
        self.peer_window = ack.window;
        let mut news = News::default();
        self.acknowledge(now, ack.position, &mut news);
        for (i, &block) in ack.blocks.as_slice().iter().enumerate() {
            self.sack(now, block, &mut news);
            self.seen_blocks[i] = block;
        }
        if let Some(sent) = news.rtt_from {
            self.rtt.sample(now.since(sent));
        }
        if advanced {
            self.rtt.reset_backoff();
        }
        self.leave_state();
        self.count_marks(news.delivered, ack.echo);
        if ack.echo {
            self.on_echo();
        }
        let lost = self.detect(now);
        if lost && matches!(self.state, State::Normal) {
            self.stats.recoveries += 1;
            self.start_reducing();
        }
        self.adjust_window(now, before, news.delivered, advanced && !lost);
        if advanced || news.delivered > 0 {
            self.probed = false;
            self.rearm(now);
        }
    }

    /// Time passed `deadline`.
    pub fn on_timer(&mut self, now: Instant) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.timeout_at) {
            self.on_timeout(now);
            return;
        }
        if due(self.reorder_at) {
            self.reorder_at = None;
            if self.detect(now) && matches!(self.state, State::Normal) {
                self.stats.recoveries += 1;
                self.start_reducing();
            }
        }
        if due(self.probe_at) {
            self.probe_at = None;
            self.probe = true;
            self.probed = true;
        }
    }

    /// What is to be sent next.
    pub fn poll_send(&mut self, now: Instant) -> Option<Transmission> {
        if let Phase::Opening { due } = self.phase {
            if !due {
                return None;
            }
            self.phase = Phase::Opening { due: false };
            // A SYN sent again says nothing about which one is answered (Karn and Partridge 1987).
            self.syn_sent = if self.stats.timeouts == 0 { Some(now) } else { None };
            self.timeout_at = Some(now.plus_ns(self.rtt.timeout_ns()));
            let flags = flag::SYN | if self.config.ecn { flag::ECE | flag::CWR } else { 0 };
            return Some(Transmission { position: 0, bytes: 0, flags, capable: self.is_all_capable(), again: false });
        }
        if let Some(pace) = self.config.pace {
            let write = WRITE_SEGMENTS * u64::from(self.config.mss);
            self.written = pace.bytes_in(now.since(self.opened)) / write * write;
        }
        if self.probe {
            self.probe = false;
            self.stats.probes += 1;
            let sent = self.send_new(now, 1).or_else(|| self.send_last(now));
            self.rearm(now);
            return sent;
        }
        let least = if self.ignores_window() { Cheat::SEGMENTS } else { 0 };
        let budget = (self.congestion.window() as u32).max(least).saturating_sub(self.in_flight);
        if budget == 0 {
            return None;
        }
        let idle = self.in_flight == 0;
        let sent = self.send_lost(now, budget.min(self.goal())).or_else(|| self.send_fresh(now, budget))?;
        if let State::Reducing { sent: count, .. } = &mut self.state {
            *count += u64::from(sent.bytes.div_ceil(self.config.mss));
        }
        if idle {
            self.rearm(now);
        } else {
            self.rearm_probe(now);
        }
        Some(sent)
    }

    // --- what an acknowledgement says --------------------------------------------------

    fn acknowledge(&mut self, now: Instant, position: u64, news: &mut News) {
        while let Some(&segment) = self.segments.front() {
            if self.una + u64::from(segment.bytes) > position {
                break;
            }
            match segment.fate {
                Fate::InFlight => self.in_flight -= 1,
                Fate::Sacked => self.sacked -= 1,
                Fate::Lost => drop(self.lost.remove(&self.una)),
            }
            if segment.fate != Fate::Sacked {
                self.arrived(now, &segment, news);
            }
            self.una += u64::from(segment.bytes);
            self.segments.pop_front();
        }
    }

    /// Walks through what a block says beyond what an earlier one with the same left edge said.
    fn sack(&mut self, now: Instant, block: (u64, u64), news: &mut News) {
        let seen =
            self.seen_blocks.iter().filter(|seen| seen.0 == block.0 && seen.1 <= block.1).map(|seen| seen.1).max();
        let (left, right) = (seen.unwrap_or(block.0).max(self.una), block.1.min(self.next));
        let mss = u64::from(self.config.mss);
        let first = (left - self.una).div_ceil(mss) as usize;
        for index in first..self.segments.len() {
            let position = self.una + index as u64 * mss;
            let segment = self.segments[index];
            if position + u64::from(segment.bytes) > right {
                break;
            }
            match segment.fate {
                Fate::InFlight => self.in_flight -= 1,
                Fate::Lost => drop(self.lost.remove(&position)),
                Fate::Sacked => continue,
            }
            self.sacked += 1;
            self.segments[index].fate = Fate::Sacked;
            self.arrived(now, &segment, news);
        }
    }

    fn arrived(&mut self, now: Instant, segment: &Segment, news: &mut News) {
        news.delivered += 1;
        if !segment.again {
            news.rtt_from = news.rtt_from.max(Some(segment.sent));
        } else if now.since(segment.sent) < self.rtt.min_ns() {
            // Too early for the retransmission: the first one arrived after all, and says nothing
            // about what was sent since.
            return;
        }
        self.newest = self.newest.max(segment.order + 1);
    }

    /// Marks what must be lost by now; says whether there was any.
    fn detect(&mut self, now: Instant) -> bool {
        let certain = !matches!(self.state, State::Normal) || self.sacked >= DUP_THRESHOLD;
        let patience_ns = self.rtt.latest_ns() + self.rtt.min_ns() / 4;
        let mut any = false;
        self.reorder_at = None;
        while let Some(&(order, position)) = self.open.front() {
            if order + 1 >= self.newest {
                break;
            }
            if let Some(index) = self.index_of(position)
                && self.segments[index].order == order
                && self.segments[index].fate == Fate::InFlight
            {
                let until = self.segments[index].sent.plus_ns(patience_ns);
                if !certain && now < until {
                    self.reorder_at = Some(until);
                    break;
                }
                self.segments[index].fate = Fate::Lost;
                self.in_flight -= 1;
                self.lost.insert(position);
                any = true;
            }
            self.open.pop_front();
        }
        any
    }

    fn index_of(&self, position: u64) -> Option<usize> {
        let index = position.checked_sub(self.una)? / u64::from(self.config.mss);
        ((index as usize) < self.segments.len()).then_some(index as usize)
    }

    // --- the window --------------------------------------------------------------------

    fn on_echo(&mut self) {
        if self.config.ecn && !self.config.cheat.is_deaf() && matches!(self.state, State::Normal) {
            self.stats.echoes += 1;
            self.send_cwr = true;
            self.congestion.reduce_for_mark();
            self.begin_reducing(true);
        }
    }

    /// Whether all its packets are capable, on a path with ECN.
    fn is_all_capable(&self) -> bool {
        self.config.ecn && (self.config.all_capable || self.config.algorithm == Algorithm::Dctcp)
    }

    /// DCTCP: so many segments were acknowledged, by an acknowledgement that says whether they were
    /// marked.
    fn count_marks(&mut self, delivered: u32, marked: bool) {
        self.round.0 += u64::from(delivered);
        self.round.1 += if marked { u64::from(delivered) } else { 0 };
        if self.una >= self.round_end && self.round.0 > 0 {
            self.congestion.on_round(self.round.1 as f64 / self.round.0 as f64);
            (self.round, self.round_end) = ((0, 0), self.next);
        }
    }

    fn start_reducing(&mut self) {
        self.congestion.reduce();
        self.begin_reducing(false);
    }

    fn begin_reducing(&mut self, echo: bool) {
        self.state = State::Reducing { point: self.next, echo, flight: self.in_flight.max(1), delivered: 0, sent: 0 };
    }

    fn leave_state(&mut self) {
        match self.state {
            State::Reducing { point, echo, .. } if self.una >= point + u64::from(echo) => {
                self.congestion.set_window(self.congestion.threshold());
                self.state = State::Normal;
            }
            State::Timeout { point } if self.una >= point => self.state = State::Normal,
            _ => {}
        }
    }

    /// `safe` says that the acknowledgement advanced and told of no further loss: only then may
    /// recovery send more than was delivered.
    fn adjust_window(&mut self, now: Instant, before: u32, newly: u32, safe: bool) {
        let threshold = self.congestion.threshold();
        let pipe = f64::from(self.in_flight);
        if let State::Reducing { flight, delivered, sent, .. } = &mut self.state {
            *delivered += u64::from(newly);
            let (all, sent) = (*delivered as f64, *sent as f64);
            let may = if pipe > threshold {
                (all * threshold / f64::from(*flight)).ceil() - sent
            } else {
                (threshold - pipe).min((all - sent).max(f64::from(newly)) + f64::from(u8::from(safe)))
            };
            // The first retransmission goes out at once.
            self.congestion.set_window(pipe + may.max(if sent == 0.0 { 1.0 } else { 0.0 }));
        } else if newly > 0 && self.in_full_use(before) {
            self.congestion.on_ack(now, newly, self.rtt.smoothed_ns());
        }
    }

    /// Whether the window, not the application or the peer, holds the sender back (as Linux's
    /// `tcp_is_cwnd_limited`).
    fn in_full_use(&self, flight: u32) -> bool {
        if self.congestion.slow_start() {
            self.congestion.window() < 2.0 * f64::from(flight)
        } else {
            f64::from(flight + self.goal()) >= self.congestion.window()
        }
    }

    fn on_timeout(&mut self, now: Instant) {
        self.rtt.back_off();
        self.stats.timeouts += 1;
        self.timeout_at = None;
        if let Phase::Opening { due } = &mut self.phase {
            *due = true;
            return;
        }
        for (index, segment) in self.segments.iter_mut().enumerate() {
            if segment.fate == Fate::InFlight {
                segment.fate = Fate::Lost;
                self.lost.insert(self.una + index as u64 * u64::from(self.config.mss));
            }
        }
        self.in_flight = 0;
        self.open.clear();
        self.congestion.on_timeout(!matches!(self.state, State::Timeout { .. }));
        self.state = State::Timeout { point: self.next };
        self.rearm(now);
    }

    /// Sets the timers from now.
    fn rearm(&mut self, now: Instant) {
        (self.timeout_at, self.probe_at) = (None, None);
        if self.segments.is_empty() {
            return;
        }
        self.timeout_at = Some(now.plus_ns(self.rtt.timeout_ns()));
        self.rearm_probe(now);
    }

    /// Sets the timer of the tail loss probe from now.
    fn rearm_probe(&mut self, now: Instant) {
        self.probe_at = None;
        if matches!(self.state, State::Normal) && !self.probed && self.sacked == 0 && self.rtt.smoothed_ns() > 0 {
            let slack_ns = if self.in_flight == 1 { PROBE_DELAYED_ACK_NS } else { PROBE_SLACK_NS };
            let at = now.plus_ns(2 * self.rtt.smoothed_ns() + slack_ns);
            self.probe_at = Some(at).filter(|&at| self.timeout_at.is_none_or(|timeout| at < timeout));
        }
    }

    // --- what to send ------------------------------------------------------------------

    /// Whether windows are nothing to it now.
    fn ignores_window(&self) -> bool {
        match self.config.cheat {
            Cheat::Window => true,
            Cheat::Burst | Cheat::DeafBurst => self.una == 0,
            Cheat::None | Cheat::Deaf => false,
        }
    }

    /// Segments of a super-frame.
    fn goal(&self) -> u32 {
        let SenderConfig { mss, offload_bytes, .. } = self.config;
        if offload_bytes < 2 * mss || self.rtt.smoothed_ns() == 0 {
            return (offload_bytes / mss).clamp(1, 10);
        }
        let gain = if self.congestion.slow_start() { 2.0 } else { 1.2 };
        let pacing = gain * self.congestion.window() * f64::from(mss) * 1e9 / self.rtt.smoothed_ns() as f64;
        let short = offload_bytes.checked_shr((self.rtt.min_ns() >> SHORT_RTT_SHIFT).min(32) as u32).unwrap_or(0);
        let bytes = pacing as u64 / PACING_PARTS + u64::from(short);
        (bytes.clamp(u64::from(2 * mss), u64::from(offload_bytes)) / u64::from(mss)) as u32
    }

    /// The first of what is lost, with its neighbours.
    fn send_lost(&mut self, now: Instant, most: u32) -> Option<Transmission> {
        let first = *self.lost.first()?;
        let start = self.index_of(first)?;
        let capable = self.is_all_capable();
        let mut sent = Transmission { position: first, bytes: 0, flags: flag::ACK, capable, again: true };
        for index in start..start + most as usize {
            let Some(segment) = self.segments.get_mut(index).filter(|segment| segment.fate == Fate::Lost) else {
                break;
            };
            let position = self.una + index as u64 * u64::from(self.config.mss);
            *segment = Segment { sent: now, order: self.order, fate: Fate::InFlight, again: true, ..*segment };
            sent.bytes += segment.bytes;
            self.lost.remove(&position);
            self.put_in_flight(position, true);
        }
        Some(sent)
    }

    /// New data, as a super-frame worth sending.
    fn send_fresh(&mut self, now: Instant, budget: u32) -> Option<Transmission> {
        let goal = self.goal();
        let rest = self.end().saturating_sub(self.next).div_ceil(u64::from(self.config.mss));
        let worth = f64::from(goal).min(self.congestion.window() / DEFER_PART).min(rest as f64);
        let deferred = f64::from(budget) < worth && self.in_flight > 0 && matches!(self.state, State::Normal);
        if deferred { None } else { self.send_new(now, budget.min(goal)) }
    }

    fn send_new(&mut self, now: Instant, most: u32) -> Option<Transmission> {
        let mss = u64::from(self.config.mss);
        let allowed = if self.ignores_window() { u64::MAX } else { self.peer_window };
        let window_end = self.una + allowed.min(self.config.buffer_bytes);
        let end = self.end();
        let capable = self.config.ecn;
        let mut sent = Transmission { position: self.next, bytes: 0, flags: flag::ACK, capable, again: false };
        for _ in 0..most {
            let bytes = mss.min(end.saturating_sub(self.next));
            if bytes == 0 || self.next + bytes > window_end {
                break;
            }
            let (order, position) = (self.order, self.next);
            let segment = Segment { sent: now, order, bytes: bytes as u32, fate: Fate::InFlight, again: false };
            self.segments.push_back(segment);
            self.next += bytes;
            sent.bytes += bytes as u32;
            self.put_in_flight(position, false);
        }
        if sent.bytes == 0 {
            return None;
        }
        if self.send_cwr {
            self.send_cwr = false;
            sent.flags |= flag::CWR;
        }
        Some(sent)
    }

    /// The last segment that is not known to have arrived, again.
    fn send_last(&mut self, now: Instant) -> Option<Transmission> {
        let index = self.segments.iter().rposition(|segment| segment.fate != Fate::Sacked)?;
        let position = self.una + index as u64 * u64::from(self.config.mss);
        let segment = &mut self.segments[index];
        match segment.fate {
            Fate::Lost => drop(self.lost.remove(&position)),
            _ => self.in_flight -= 1,
        }
        *segment = Segment { sent: now, order: self.order, fate: Fate::InFlight, again: true, ..*segment };
        let bytes = segment.bytes;
        self.put_in_flight(position, true);
        Some(Transmission { position, bytes, flags: flag::ACK, capable: self.is_all_capable(), again: true })
    }

    fn put_in_flight(&mut self, position: u64, again: bool) {
        self.open.push_back((self.order, position));
        self.order += 1;
        self.in_flight += 1;
        self.stats.segments += 1;
        self.stats.retransmits += u64::from(again);
    }
}

/// What one acknowledgement told.
#[derive(Default)]
struct News {
    /// Segments that are now known to have arrived.
    delivered: u32,
    /// When the latest of them was sent, of those sent once.
    rtt_from: Option<Instant>,
}
