//! Virtual congestion control against a model that keeps everything: many generated connections of
//! guests that know no ECN, RFC 3168 or AccECN, between two switches, or with a host behind none,
//! over a network that marks, loses, doubles and reorders; some are signed (TCP-MD5, TCP-AO), of
//! Multipath TCP, which half of the switches take out, opened with data (TCP Fast Open), or send
//! fragments. Each frame that a switch has
//! changed is compared, byte by byte, with the one that it should be: what the model says is
//! written into the guest's own frame, and its checksums are computed anew.
//!
//! `VCC_WIRE=100000 cargo test -p datapath --test vcc_wire` runs so many connections.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use datapath::checksum;
use datapath::frame::{Frame, Pool, PoolLimits};
use datapath::offload::{Gso, GsoEcn, Offload};
use datapath::program::{EndpointId, TenantId};
use datapath::units::Instant;
use datapath::vcc::segment::{codes, ecn};
use datapath::vcc::{Mode, Owner, Settings, Vcc};
use datapath::wire::build::{Build, eth};
use datapath::wire::{L3, Layout, Mac, parse, tcp_flags};

const ACK: u8 = tcp_flags::ACK;
const SYN: u8 = tcp_flags::SYN;
const FIN: u8 = tcp_flags::FIN;
/// Connections that run at a time, each with a pair of ports that is used again and again.
const AT_A_TIME: usize = 64;
/// Steps of a connection at most.
const STEPS: u32 = 40;
const CLIENT: usize = 0;
const SERVER: usize = 1;

/// A small generator (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What a side's own TCP knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Guest {
    /// No ECN.
    #[default]
    Legacy,
    /// RFC 3168.
    Classic,
    /// AccECN (RFC 9768).
    Accurate,
}

/// What a connection's options hold beside the usual.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Extra {
    Nothing,
    /// TCP-MD5 (RFC 2385).
    Md5,
    /// TCP-AO (RFC 5925).
    Ao,
    /// Multipath TCP (RFC 8684).
    Multipath,
    /// TCP Fast Open (RFC 7413): data on the SYN, or a request for a cookie.
    FastOpen,
}

impl Extra {
    /// Whether the switch must not touch it.
    fn is_left(self, settings: &Settings) -> bool {
        matches!(self, Extra::Md5 | Extra::Ao) || self == Extra::Multipath && !settings.strips_multipath
    }

    /// Its options, with what fills them to whole words.
    fn options(self, is_syn: bool, has_data: bool) -> Vec<u8> {
        let long = |kind: u8, length: u8, fill: usize| {
            let mut option = vec![kind, length];
            option.extend((2..length).map(|n| n.wrapping_mul(kind)));
            option.resize(option.len() + fill, 1);
            option
        };
        match (self, is_syn) {
            (Extra::Md5, _) => long(19, 18, 2),
            (Extra::Ao, _) => long(29, 16, 0),
            (Extra::Multipath, true) => long(30, 4, 0),
            (Extra::Multipath, false) => long(30, 20, 0),
            (Extra::FastOpen, true) if has_data => long(34, 10, 2),
            (Extra::FastOpen, true) => long(34, 2, 2),
            (Extra::FastOpen, false) | (Extra::Nothing, _) => Vec::new(),
        }
    }
}

/// What is agreed on, on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Agreed {
    Plain,
    Classic,
    Accurate,
}

/// A frame, and what is known of it beside its bytes.
#[derive(Clone, Debug)]
struct Wire {
    bytes: Vec<u8>,
    offload: Offload,
}

impl Wire {
    fn layout(&self) -> Layout {
        parse(&self.bytes).expect("sound")
    }

    fn tcp(&self) -> usize {
        usize::from(self.layout().l4_offset)
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn put(&mut self, at: usize, word: u16) {
        self.bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
    }

    fn ecn(&self) -> u8 {
        let (layout, at) = (self.layout(), usize::from(self.layout().l3_offset) + 1);
        if layout.l3 == L3::Ipv4 { self.bytes[at] & 3 } else { self.bytes[at] >> 4 & 3 }
    }

    fn codes(&self) -> u8 {
        let tcp = self.tcp();
        (self.bytes[tcp + 12] & 1) << 2 | self.bytes[tcp + 13] >> 6
    }

    fn window(&self) -> u16 {
        self.word(self.tcp() + 14)
    }

    fn segments(&self) -> u32 {
        match self.offload.gso {
            Gso::None => 1,
            _ => {
                let layout = self.layout();
                (layout.end - u32::from(layout.payload_offset)).div_ceil(u32::from(self.offload.gso_size)).max(1)
            }
        }
    }

    /// TCP's options, and where they begin.
    fn options(&self) -> (usize, &[u8]) {
        let at = self.tcp() + 20;
        (at, &self.bytes[at..usize::from(self.layout().payload_offset)])
    }

    /// Where AccECN's option is.
    fn accurate_option(&self) -> Option<std::ops::Range<usize>> {
        let (begin, options) = self.options();
        let mut at = 0;
        while at + 1 < options.len() {
            match options[at] {
                1 => at += 1,
                172 | 174 => return Some(begin + at..begin + at + usize::from(options[at + 1])),
                _ => at += usize::from(options[at + 1]),
            }
        }
        None
    }

    /// The same without options of Multipath TCP, in whose place is nothing.
    fn stripped(&self) -> Wire {
        let (mut other, (begin, options)) = (self.clone(), self.options());
        let mut at = 0;
        while at + 1 < options.len() {
            let length = if options[at] == 1 { 1 } else { usize::from(options[at + 1]) };
            if options[at] == 30 {
                other.bytes[begin + at..begin + at + length].fill(1);
            }
            at += length;
        }
        other.with(self.ecn(), self.codes(), self.window(), false)
    }

    /// The same with another window scale, where it has one.
    fn with_scale(&self, scale: u8) -> Wire {
        let (mut other, (begin, options)) = (self.clone(), self.options());
        let at = options.windows(3).position(|option| option[..2] == [3, 3]);
        at.into_iter().for_each(|at| other.bytes[begin + at + 2] = scale);
        other.with(self.ecn(), self.codes(), self.window(), false)
    }

    /// The same without AccECN's option, in whose place is nothing.
    fn hiding(&self) -> Wire {
        let mut other = self.clone();
        if let Some(at) = self.accurate_option() {
            other.bytes[at].fill(1);
        }
        other.with(self.ecn(), self.codes(), self.window(), false)
    }

    /// The same with one more option, with lengths and checksums computed anew.
    fn with_option(&self, option: &[u8]) -> Wire {
        let (mut other, layout, tcp) = (self.clone(), self.layout(), self.tcp());
        let (l3, end) = (usize::from(layout.l3_offset), usize::from(layout.payload_offset));
        other.bytes.splice(end..end, option.iter().copied());
        other.bytes[tcp + 12] += (option.len() as u8 / 4) << 4;
        let length = if layout.l3 == L3::Ipv4 { l3 + 2 } else { l3 + 4 };
        other.put(length, self.word(length) + option.len() as u16);
        if self.offload.needs_csum {
            let addresses = if layout.l3 == L3::Ipv4 { l3 + 12..l3 + 20 } else { l3 + 8..l3 + 40 };
            let len = layout.end as usize - tcp + option.len();
            let pseudo = checksum::pseudo(&other.bytes[addresses], 6, len);
            other.put(tcp + 16, pseudo);
        }
        other.sealed(l3, tcp, layout.l3)
    }

    /// With checksums computed anew, of headers that lie there.
    fn sealed(mut self, l3: usize, tcp: usize, kind: L3) -> Wire {
        let addresses = if kind == L3::Ipv4 {
            self.put(l3 + 10, 0);
            let sum = checksum::sum(&self.bytes[l3..tcp]);
            self.put(l3 + 10, !sum);
            l3 + 12..l3 + 20
        } else {
            l3 + 8..l3 + 40
        };
        if !self.offload.needs_csum {
            let end = self.layout().end as usize;
            self.put(tcp + 16, 0);
            let pseudo = checksum::pseudo(&self.bytes[addresses], 6, end - tcp);
            let sum = checksum::add(pseudo, checksum::sum(&self.bytes[tcp..end]));
            self.put(tcp + 16, !sum);
        }
        self
    }

    /// The same with other fields, and whole checksums computed anew.
    fn with(&self, ecn: u8, codes: u8, window: u16, is_counter: bool) -> Wire {
        let (mut other, layout, tcp) = (self.clone(), self.layout(), self.tcp());
        let l3 = usize::from(layout.l3_offset);
        other.bytes[tcp + 12] = self.bytes[tcp + 12] & !1 | codes >> 2;
        other.bytes[tcp + 13] = self.bytes[tcp + 13] & 0x3f | codes << 6;
        other.put(tcp + 14, window);
        if layout.l3 == L3::Ipv4 {
            other.bytes[l3 + 1] = self.bytes[l3 + 1] & !3 | ecn;
        } else {
            other.bytes[l3 + 1] = self.bytes[l3 + 1] & !0x30 | ecn << 4;
        }
        other = other.sealed(l3, tcp, layout.l3);
        if codes != self.codes() || is_counter {
            other.offload.gso_ecn = match (self.offload.gso, codes & codes::CWR != 0) {
                (Gso::None, _) | (_, false) => GsoEcn::None,
                _ if is_counter => GsoEcn::Ace,
                _ => GsoEcn::Cwr,
            };
        }
        other
    }
}

/// A guest, and what the switch before it should know. Numbers are counted on from the SYN's.
#[derive(Clone, Debug, Default)]
struct Side {
    guest: Guest,
    /// A switch is before it.
    is_switched: bool,
    /// The switch speaks for it.
    is_translated: bool,
    /// A guest with AccECN makes all that it sends capable, not only new data. Of one with RFC 3168
    /// the SYN or SYN-ACK is, as DCTCP's.
    marks_all: bool,
    first: u32,
    scale: Option<u8>,
    timestamps: bool,
    nxt: u64,
    /// The same as its switch knows it, which does not see what is in fragments.
    shown: u64,
    una: u64,
    received: u64,
    /// What came before what is missing: from where to where.
    parts: Vec<(u64, u64)>,
    /// Marked segments that came, from 5 on, and how many were said.
    marks: u64,
    said: u64,
    /// RFC 3168: marks are told until CWR comes. And a report came since CWR was said.
    is_latched: bool,
    /// The same for a peer that reacts as DCTCP: the mark of the last data alone is told.
    echoes_last: bool,
    is_reported: bool,
    /// The first segment behind the handshake is still to be sent, and says this.
    first_says: Option<u8>,
    /// A mark may have been reported, so that its window may be lowered.
    may_be_lowered: bool,
    /// The peer's scale, where both have one, and by how much less the guest was told.
    peer_scale: u8,
    lowered_by: u8,
    has_ended: bool,
    /// AccECN's option: bytes that came as ECT and marked, and segments with data since something
    /// was sent.
    ect_bytes: u32,
    ce_bytes: u32,
    arrived: u32,
    /// What was sent last had it; and how often that came twice.
    had_option: bool,
    strikes: u8,
    /// The guest's own AccECN uses options.
    has_options: bool,
}

struct Connection {
    agreed: Agreed,
    extra: Extra,
    settings: Settings,
    is_ipv6: bool,
    /// Its frames are tagged with it (802.1Q).
    vlan: Option<u16>,
    port: u16,
    mss: u16,
    sides: [Side; 2],
    /// To whom it goes.
    network: Vec<(usize, Wire)>,
    steps: u32,
}

struct World {
    pool: Pool,
    /// By what is asked for, the client's and the server's.
    switches: [[Vcc; 2]; 4],
    now: Instant,
    random: Random,
    frames: u64,
    /// Those with a VLAN tag.
    tagged: u64,
    lowered: u64,
    /// Windows that were shown by another scale.
    rescaled: u64,
    fragments: u64,
    /// AccECN's options that switches put in, and that were hidden from guests.
    options: [u64; 2],
}

impl Side {
    /// What AccECN says of the marks that came.
    fn counter(&mut self) -> u8 {
        self.first_says.take().unwrap_or_else(|| {
            self.said += (self.marks - self.said).min(6);
            (self.said & 7) as u8
        })
    }

    /// Data have come.
    fn count(&mut self, payload: u32, segments: u32, ecn: u8) {
        if payload == 0 {
            return;
        }
        self.arrived = (self.arrived + segments).min(255);
        let counter = match ecn {
            ecn::NOT => return,
            ecn::CE => &mut self.ce_bytes,
            _ => &mut self.ect_bytes,
        };
        let was = *counter;
        *counter += payload;
        if was >> 21 != *counter >> 21 {
            self.arrived = 255;
        }
    }

    /// AccECN's option of so many bytes.
    fn option(&self, kind: u8, len: u8) -> Vec<u8> {
        let fields =
            if kind == 172 { [1 + self.ect_bytes, self.ce_bytes, 1] } else { [1, self.ce_bytes, 1 + self.ect_bytes] };
        let mut option = vec![kind, len];
        fields.iter().for_each(|field| option.extend(&field.to_be_bytes()[1..]));
        option.truncate(len.into());
        option
    }

    /// What a switch makes of a frame of a guest for which it speaks AccECN.
    fn speak(&mut self, wire: &Wire, mss: u32) -> Wire {
        let (layout, (_, options)) = (wire.layout(), wire.options());
        let payload = layout.end - u32::from(layout.payload_offset);
        let ack = u32::from_be_bytes([0, 1, 2, 3].map(|n| wire.bytes[wire.tcp() + 8 + n]));
        // The model's guests say that they have the byte of number 1 beyond what is missing.
        let has_sack = options.windows(12).any(|option| option == [1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        let came_twice = has_sack && ack.wrapping_sub(2) as i32 >= 0;
        let is_due = self.first_says.is_some() || self.marks > self.said || self.arrived > 7;
        let has_room = wire.segments() == 1 && options.len() <= 32 && payload <= 256 && payload + 8 <= mss;
        let may = self.strikes < 3 && !came_twice;
        self.strikes += u8::from(self.had_option && came_twice);
        self.had_option = is_due && has_room && may;
        self.arrived = match self.arrived {
            _ if !self.had_option => 0,
            // Marks are told three times more.
            _ if self.marks > self.said => 10,
            again @ 9..=10 => again - 1,
            _ => 0,
        };
        if !self.had_option {
            return wire.with(ecn::ECT0, self.counter(), wire.window(), true);
        }
        if self.first_says.is_none() {
            self.said = self.marks;
        }
        let option = self.option(172, 8);
        wire.with(ecn::ECT0, self.counter(), wire.window(), true).with_option(&option)
    }

    /// Numbers from `seq` to `end` have come.
    fn take(&mut self, seq: u64, end: u64) {
        if end > self.received {
            self.parts.push((seq, end));
            while let Some(at) = self.parts.iter().position(|&(from, _)| from <= self.received) {
                let (_, end) = self.parts.swap_remove(at);
                self.received = self.received.max(end);
            }
        }
    }
}

fn capable_if(is_capable: bool) -> u8 {
    if is_capable { ecn::ECT0 } else { ecn::NOT }
}

/// From where a side sends, and to where.
fn ips(is_ipv6: bool, from: usize) -> (IpAddr, IpAddr) {
    let ip = |side: usize| -> IpAddr {
        let number = side as u8 + 1;
        if is_ipv6 {
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into()).into()
        } else {
            Ipv4Addr::new(10, 0, 0, number).into()
        }
    };
    (ip(from), ip(1 - from))
}

/// The beginning of a frame.
fn link(vlan: Option<u16>) -> Build<'static> {
    let frame = eth(Mac([2; 6]), Mac([4; 6]));
    match vlan {
        Some(tag) => frame.vlan(tag),
        None => frame,
    }
}

fn endpoint(side: usize) -> EndpointId {
    EndpointId(side as u32)
}

/// By how much less than a peer's scale a guest is told: 7, where a unit is more than half of a
/// segment.
fn lowered(scale: Option<u8>, mss: u16) -> Option<u8> {
    scale.filter(|&scale| scale > 7 && 2 << scale > u32::from(mss)).map(|scale| scale - 7)
}

/// What switches are asked for: each mode, with and without all that is told beside.
fn asked(number: usize) -> Settings {
    let has_all = number >= 2;
    Settings {
        strips_multipath: has_all,
        ignores_loss: has_all,
        passes_classic: has_all,
        ..[Mode::Echo, Mode::Dctcp][number % 2].into()
    }
}

fn switches(number: usize) -> [Vcc; 2] {
    [CLIENT, SERVER].map(|side| {
        let mut vcc = Vcc::new(7);
        vcc.set_rescales(number >= 2);
        vcc.set(Owner { tenant: TenantId(0), endpoint: endpoint(side) }, asked(number));
        vcc
    })
}

impl World {
    fn new(seed: u64) -> World {
        World {
            pool: Pool::new(PoolLimits { small: 8, medium: 8, large: 8 }),
            switches: [0, 1, 2, 3].map(switches),
            now: Instant(1_000_000_000),
            random: Random(seed),
            frames: 0,
            tagged: 0,
            lowered: 0,
            rescaled: 0,
            fragments: 0,
            options: [0; 2],
        }
    }

    /// A new connection: its handshake, of which nothing is lost.
    fn open(&mut self, place: usize) -> Connection {
        let random = &mut self.random;
        let mode = place % 4;
        let guests = [Guest::Legacy, Guest::Legacy, Guest::Legacy, Guest::Classic, Guest::Accurate];
        let mut side = |is_switched: bool| Side {
            guest: guests[random.below(5) as usize],
            is_switched,
            marks_all: random.one_in(2),
            has_options: random.one_in(2),
            // Often it wraps soon.
            first: if random.one_in(2) {
                0u32.wrapping_sub(random.below(2_000_000) as u32)
            } else {
                random.next() as u32
            },
            scale: (!random.one_in(5)).then(|| random.below(15) as u8),
            timestamps: random.one_in(2),
            nxt: 1,
            shown: 1,
            ..Side::default()
        };
        let mut sides = [side(true), side(true)];
        sides[SERVER].is_switched = !random.one_in(3);
        if let [Some(a), Some(b)] = [sides[0].scale, sides[1].scale] {
            (sides[0].peer_scale, sides[1].peer_scale) = (b, a);
        }
        let mss = [536, 1000, 1448, 8948][random.below(4) as usize];
        let (is_ipv6, port) = (random.one_in(2), 1024 + place as u16 / 4);
        let vlan = random.one_in(4).then(|| random.below(1 << 16) as u16);
        let extra = match random.below(16) {
            0 => Extra::Md5,
            1 => Extra::Ao,
            2 => Extra::Multipath,
            3..6 => Extra::FastOpen,
            _ => Extra::Nothing,
        };
        let early = if extra == Extra::FastOpen { random.below(u64::from(mss)) } else { 0 };
        let (takes_early, is_marked) = (!random.one_in(3), random.one_in(8));
        let settings = asked(mode);
        let (network, steps, agreed) = (Vec::new(), 0, Agreed::Plain);
        let mut all = Connection { agreed, extra, settings, is_ipv6, vlan, port, mss, sides, network, steps };

        let client = all.sides[CLIENT].guest;
        let (asks, capable) = match client {
            Guest::Legacy => (codes::NONE, ecn::NOT),
            Guest::Classic => (codes::ASK_CLASSIC, capable_if(all.sides[CLIENT].marks_all)),
            Guest::Accurate => (codes::ASK_ACCURATE, capable_if(all.sides[CLIENT].marks_all)),
        };
        let syn = self.write(&all, CLIENT, (0, 0), SYN, early as usize, 65_535).with(capable, asks, 65_535, false);
        let asked = self.send(mode, CLIENT, &syn);
        let is_left = extra.is_left(&settings);
        let is_stripped = extra == Extra::Multipath && !is_left;
        let is_asked_for = client == Guest::Legacy && !is_left;
        let passed = if is_stripped { syn.stripped() } else { syn.clone() };
        let expected = if is_asked_for { passed.with(ecn::ECT0, codes::ASK_ACCURATE, 65_535, true) } else { passed };
        same(&all, &asked, &expected, "SYN");
        let asks = asked.codes();
        let mut met = self.meet(&asked);
        if is_left && is_marked {
            // Also what never was capable: the switch has no say in it.
            met = met.with(ecn::CE, asks, 65_535, false);
        }
        let mut seen_ecn = met.ecn();
        if all.sides[SERVER].is_switched {
            // Delivered as it came, but for the mark, since the guest may know no ECN.
            let seen = self.receive(mode, SERVER, &met);
            let hidden = if met.ecn() == ecn::CE && !is_left { ecn::ECT0 } else { met.ecn() };
            let mut should = met.with(hidden, asks, 65_535, false);
            let is_asked = mode >= 2 && asks != codes::NONE && !is_left;
            if let Some(by) = lowered(all.sides[CLIENT].scale, mss).filter(|_| is_asked) {
                should = should.with_scale(7);
                all.sides[SERVER].lowered_by = if all.sides[SERVER].scale.is_some() { by } else { 0 };
            }
            same(&all, &seen, &should, "SYN, seen");
            seen_ecn = seen.ecn();
        }
        all.sides[CLIENT].nxt = 1 + early;
        all.sides[CLIENT].shown = 1 + early;
        all.sides[SERVER].received = if takes_early { 1 + early } else { 1 };
        let received = all.sides[SERVER].received;

        let server = all.sides[SERVER].guest;
        let answers = match (server, asks) {
            (Guest::Legacy, _) | (_, codes::NONE) => codes::NONE,
            (Guest::Classic, _) | (_, codes::ASK_CLASSIC) => codes::CLASSIC,
            (Guest::Accurate, _) => codes::received(seen_ecn),
        };
        let is_accurate = server == Guest::Accurate && asks == codes::ASK_ACCURATE;
        let agrees = is_accurate || answers == codes::CLASSIC;
        let capable = capable_if(agrees && all.sides[SERVER].marks_all);
        let answer = self.write(&all, SERVER, (0, received), SYN | ACK, 0, 65_535);
        let answer = answer.with(capable, answers, 65_535, false);
        let mut answered = answer.clone();
        let passed = if is_stripped { answer.stripped() } else { answer.clone() };
        if all.sides[SERVER].is_switched {
            answered = self.send(mode, SERVER, &answer);
            let (speaks, says, capable) = match (answers, asks) {
                _ if is_left => (false, answers, capable),
                // A guest that knows RFC 3168 alone is spoken for too, unless it is to do it.
                (codes::CLASSIC, codes::ASK_ACCURATE) if settings.passes_classic => (false, answers, capable),
                (codes::NONE | codes::CLASSIC, codes::ASK_ACCURATE) => (true, codes::received(met.ecn()), ecn::ECT0),
                (codes::NONE, codes::ASK_CLASSIC) => (true, codes::CLASSIC, ecn::NOT),
                _ => (false, answers, capable),
            };
            all.sides[SERVER].is_translated = speaks;
            let mut should = passed.with(capable, says, 65_535, false);
            if speaks && asks == codes::ASK_ACCURATE {
                should = should.with_option(&[172, 8, 0, 0, 1, 0, 0, 0]);
            }
            same(&all, &answered, &should, "SYN-ACK");
        }
        all.agreed = match (asks, answered.codes()) {
            (_, codes::NONE) => Agreed::Plain,
            (_, codes::CLASSIC) => Agreed::Classic,
            _ => Agreed::Accurate,
        };
        let met_back = self.meet(&answered);
        let seen = self.receive(mode, CLIENT, &met_back);
        let met_back = if is_stripped { met_back.stripped() } else { met_back };
        let mut hidden = met_back.hiding().with(ecn::NOT, codes::NONE, 65_535, false);
        let stamps = if all.sides.iter().all(|side| side.timestamps) { 12 } else { 0 };
        let is_scaled = all.sides[CLIENT].scale.is_some() && all.agreed != Agreed::Plain;
        if let Some(by) = lowered(all.sides[SERVER].scale, mss - stamps).filter(|_| is_scaled && mode >= 2) {
            hidden = hidden.with_scale(7);
            all.sides[CLIENT].lowered_by = if is_asked_for { by } else { 0 };
        }
        same(&all, &seen, if is_asked_for { &hidden } else { &met_back }, "SYN-ACK, seen");
        all.sides[CLIENT].is_translated = is_asked_for && all.agreed != Agreed::Plain;
        for (side, peers) in [(SERVER, met.ecn()), (CLIENT, met_back.ecn())] {
            let is_dctcp = all.agreed == Agreed::Classic && peers != ecn::NOT && settings.mode == Mode::Dctcp;
            all.sides[side].echoes_last = is_dctcp && all.sides[side].is_translated;
        }
        // A guest with AccECN that is behind a switch cannot tell of a mark that it was not shown.
        let met_server = if all.sides[SERVER].is_translated { met.ecn() } else { seen_ecn };
        for (side, met) in [(SERVER, met_server), (CLIENT, met_back.ecn())] {
            let side = &mut all.sides[side];
            side.marks = 5 + u64::from(met == ecn::CE);
            (side.said, side.una) = (side.marks, 1);
        }
        (all.sides[CLIENT].una, all.sides[CLIENT].received) = (received, 1);
        if all.agreed == Agreed::Accurate {
            all.sides[CLIENT].first_says = Some(codes::received(met_back.ecn()));
            // A mark on a packet of the handshake is told by its code.
            all.sides[CLIENT].may_be_lowered = met.ecn() == ecn::CE || met_back.ecn() == ecn::CE;
            all.sides[SERVER].may_be_lowered = met_back.ecn() == ecn::CE;
        }
        let nxt = all.sides[CLIENT].nxt;
        if received < nxt && self.random.one_in(2) {
            // What was not taken comes at once.
            self.say(&mut all, mode, CLIENT, (1, early), 0, true);
        } else {
            self.say(&mut all, mode, CLIENT, (nxt, 0), 0, false);
        }
        let (to, last) = all.network.pop().expect("it was sent");
        self.deliver(&mut all, mode, to, &last);
        all
    }

    /// What a guest writes, with numbers counted on from the first.
    fn write(
        &mut self,
        all: &Connection,
        from: usize,
        (seq, ack): (u64, u64),
        flags: u8,
        payload: usize,
        window: u16,
    ) -> Wire {
        let (me, other) = (&all.sides[from], &all.sides[1 - from]);
        let mut options: Vec<u8> = Vec::new();
        if flags & SYN != 0 {
            options.extend([2, 4]);
            options.extend(all.mss.to_be_bytes());
            options.extend(me.scale.map_or([1; 4], |scale| [1, 3, 3, scale]));
        }
        if me.timestamps {
            options.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        }
        options.extend(all.extra.options(flags & SYN != 0, payload > 0));
        // Where there is room.
        if flags & SYN == 0 && !me.parts.is_empty() && options.len() <= 28 {
            options.extend([1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        }
        if me.guest == Guest::Accurate && me.has_options && flags & ACK != 0 && options.len() <= 24 {
            let kind = if self.random.one_in(2) { 172 } else { 174 };
            options.extend(me.option(kind, [2, 5, 8, 11][self.random.below(4) as usize]));
            options.resize(options.len().next_multiple_of(4), 1);
        }
        let (source, destination) = ips(all.is_ipv6, from);
        let ports = if from == CLIENT { [all.port, 80] } else { [80, all.port] };
        let is_cut = payload > usize::from(all.mss);
        let frame = |options: u8| {
            let frame = link(all.vlan)
                .ip(source, destination)
                .tcp(ports[0], ports[1], me.first.wrapping_add(seq as u32))
                .flags(flags)
                .ack(if flags & ACK == 0 { 0 } else { other.first.wrapping_add(ack as u32) }, window)
                .tcp_options(options)
                .payload((0..payload).map(|n| (n * 7) as u8).collect::<Vec<_>>());
            if is_cut { frame.gso(all.mss) } else { frame }
        };
        let mut frame = frame((options.len() / 4) as u8);
        let is_partial = is_cut || self.random.one_in(3);
        if is_partial {
            frame = frame.partial();
        }
        let mut bytes = Vec::new();
        let offload = frame.write(&mut bytes);
        let mut wire = Wire { bytes, offload };
        let at = wire.tcp() + 20;
        wire.bytes[at..at + options.len()].copy_from_slice(&options);
        let window = wire.window();
        wire.with(wire.ecn(), wire.codes(), window, false)
    }

    fn send(&mut self, mode: usize, from: usize, wire: &Wire) -> Wire {
        let World { pool, switches, now, .. } = self;
        self.frames += 1;
        self.tagged += u64::from(wire.layout().vlan.is_some());
        pass(pool, wire, |pool, frame| {
            assert_eq!(switches[mode][from].send(pool, *now, endpoint(from), frame), Ok(()));
        })
    }

    fn receive(&mut self, mode: usize, to: usize, wire: &Wire) -> Wire {
        let World { pool, switches, now, .. } = self;
        self.frames += 1;
        pass(pool, wire, |pool, frame| switches[mode][to].receive(pool, *now, endpoint(to), frame))
    }

    /// What the network makes of it: a mark on one in eight of what is capable.
    fn meet(&mut self, wire: &Wire) -> Wire {
        let is_marked = wire.ecn() != ecn::NOT && self.random.one_in(8);
        let met = if is_marked { ecn::CE } else { wire.ecn() };
        let other = wire.with(met, wire.codes(), wire.window(), false);
        Wire { offload: wire.offload, ..other }
    }

    /// A side sends `payload` bytes from `seq` on, with what it has received.
    fn say(
        &mut self,
        all: &mut Connection,
        mode: usize,
        from: usize,
        (seq, payload): (u64, u64),
        flags: u8,
        again: bool,
    ) {
        let window = match self.random.below(12) {
            0 => 0,
            1 => self.random.next() as u16,
            _ => 4000 >> all.sides[1 - from].peer_scale.min(6),
        };
        let ack = all.sides[from].received;
        let wire = self.write(all, from, (seq, ack), ACK | flags, payload as usize, window);
        let end = seq + payload + u64::from(flags & FIN != 0);
        assert_eq!(end > all.sides[from].nxt, !again && end > seq);
        let wire = self.guest_says(all, from, wire, payload > 0 && !again);
        let (agreed, side) = (all.agreed, &mut all.sides[from]);
        let is_new = end > side.shown;
        (side.nxt, side.shown) = (side.nxt.max(end), side.shown.max(end));
        if !side.is_switched {
            all.network.push((1 - from, wire));
            return;
        }
        let sent = self.send(mode, from, &wire);
        let stamps = if all.sides.iter().all(|side| side.timestamps) { 12 } else { 0 };
        let (mss, side) = (u32::from(all.mss) - stamps, &mut all.sides[from]);
        let expected = match agreed {
            _ if !side.is_translated => wire.clone(),
            Agreed::Plain => wire.clone(),
            Agreed::Accurate => side.speak(&wire, mss),
            Agreed::Classic => {
                let says = sent.codes();
                let latched = if side.is_latched { codes::ECE } else { 0 };
                // When the window is reduced is the controller's matter: never where nothing
                // was reported, and it is said on new data.
                let may_say = side.may_be_lowered && payload > 0 && is_new;
                assert!(says & codes::CWR == 0 || may_say, "CWR for nothing");
                wire.with(ecn::ECT0, latched | says & codes::CWR, window, false)
            }
        };
        self.options[0] += u64::from(wire.accurate_option().is_none() && sent.accurate_option().is_some());
        same(all, &sent, &expected, "sent");
        all.network.push((1 - from, sent));
    }

    /// What the guest's own ECN says in its frame.
    fn guest_says(&mut self, all: &mut Connection, from: usize, wire: Wire, is_new_data: bool) -> Wire {
        let (agreed, window, side) = (all.agreed, wire.window(), &mut all.sides[from]);
        if side.is_translated {
            // It reports nothing, since it sees no mark; but it may reduce for a loss.
            let is_classic = side.guest == Guest::Classic && from == SERVER;
            let says = if is_classic && is_new_data && self.random.one_in(3) { codes::CWR } else { codes::NONE };
            return wire.with(capable_if(is_classic && is_new_data), says, window, false);
        }
        match agreed {
            Agreed::Plain => wire,
            // RFC 3168's echo, CWR for what is told.
            Agreed::Classic => {
                let mut says = if side.is_latched { codes::ECE } else { codes::NONE };
                if side.is_reported && is_new_data {
                    (side.is_reported, says) = (false, says | codes::CWR);
                }
                wire.with(capable_if(is_new_data), says, window, false)
            }
            Agreed::Accurate => {
                let capable = capable_if(side.marks_all || is_new_data);
                wire.with(capable, side.counter(), window, true)
            }
        }
    }

    /// A side sends new data in two fragments, of which no switch sees anything.
    fn say_in_fragments(&mut self, all: &mut Connection, mode: usize, from: usize) {
        let payload = 8 + 8 * self.random.below(u64::from(all.mss) / 8);
        let (side, ack) = (&all.sides[from], all.sides[from].received);
        let seq = side.nxt;
        let capable = [ecn::NOT, ecn::ECT1, ecn::ECT0, ecn::CE][self.random.below(4) as usize];
        let whole = self.write(all, from, (seq, ack), ACK, payload as usize, 100);
        let tcp = whole.tcp();
        let (l3, len) = (usize::from(whole.layout().l3_offset), whole.bytes.len() - tcp);
        // The first has the whole TCP header (RFC 8200, section 4.5; RFC 7112).
        let cut = (usize::from(whole.layout().payload_offset) - tcp).next_multiple_of(8);
        for (part, more) in [(0..cut.min(len), true), (cut.min(len)..len, false)] {
            let (source, destination) = ips(all.is_ipv6, from);
            let frame = link(all.vlan).ip(source, destination).tos(capable);
            let frame = frame.fragment(part.start as u16, more).protocol(6);
            let frame = frame.payload(whole.bytes[tcp..][part.clone()].to_vec());
            let (mut bytes, mut offload) = (Vec::new(), Offload::default());
            offload.clone_from(&frame.write(&mut bytes));
            let wire = Wire { bytes, offload };
            assert!(wire.layout().fragment && usize::from(wire.layout().l3_offset) == l3);
            let mut met = wire.clone();
            if all.sides[from].is_switched {
                met = self.send(mode, from, &wire);
                same(all, &met, &wire, "fragment");
            }
            if all.sides[1 - from].is_switched {
                let seen = self.receive(mode, 1 - from, &met);
                same(all, &seen, &wire, "fragment, seen");
            }
            self.fragments += 1;
        }
        all.sides[from].nxt += payload;
        all.sides[1 - from].take(seq, seq + payload);
    }

    /// A frame arrives, and what its guest sees of it is as it should be.
    fn deliver(&mut self, all: &mut Connection, mode: usize, to: usize, wire: &Wire) {
        let (agreed, is_switched) = (all.agreed, all.sides[to].is_switched);
        let layout = wire.layout();
        let payload = u64::from(layout.end) - u64::from(layout.payload_offset);
        let tcp = wire.tcp();
        let number = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|n| wire.bytes[tcp + at + n]));
        let from = &all.sides[1 - to];
        let seq = counted(number(4), from.first, from.nxt);
        let ack = counted(number(8), all.sides[to].first, all.sides[to].nxt);
        let has_ended = wire.bytes[tcp + 13] & FIN != 0;
        let is_marked = wire.ecn() == ecn::CE;
        let seen = if is_switched { self.receive(mode, to, wire) } else { wire.clone() };
        let side = &mut all.sides[to];
        side.count(payload as u32, wire.segments(), wire.ecn());
        if is_marked {
            side.marks += u64::from(wire.segments());
        }
        if agreed == Agreed::Classic && payload > 0 {
            let stays = side.is_latched && wire.codes() & codes::CWR == 0;
            side.is_latched = is_marked || stays && !side.echoes_last;
        }
        if agreed == Agreed::Classic && wire.codes() & codes::ECE != 0 {
            (side.is_reported, side.may_be_lowered) = (true, true);
        }
        if is_switched {
            let told = seen.window();
            let whole = (u32::from(wire.window()) << side.lowered_by).min(65_535) as u16;
            let expected = if side.is_translated {
                wire.hiding().with(ecn::NOT, codes::NONE, told, false)
            } else {
                wire.with(wire.ecn(), wire.codes(), whole, false)
            };
            self.rescaled += u64::from(whole != wire.window());
            let may_be_lowered = side.may_be_lowered && side.is_translated && ack <= side.shown;
            // Any feedback of a mark may lower it from here on.
            let shift = side.peer_scale - side.lowered_by;
            let edge = |window: u16| ack + (u64::from(window) << shift);
            if ack < side.una || !may_be_lowered {
                assert_eq!(told, whole, "nothing is lowered here");
            } else {
                assert!(told <= whole && (told == 0) == (whole == 0), "{told} of {whole}");
                if told != whole {
                    self.lowered += 1;
                    assert!(edge(told) >= side.shown.min(edge(whole)) || ack == side.una, "before what was sent");
                }
            }
            self.options[1] += u64::from(wire.accurate_option().is_some() && seen.accurate_option().is_none());
            same(all, &seen, &expected, "seen");
        }
        let side = &mut all.sides[to];
        // An acknowledgement of what its switch has not seen has no effect there.
        if ack <= side.shown {
            side.una = side.una.max(ack);
        }
        side.take(seq, seq + payload + u64::from(has_ended));
        // What is told from now on may be a mark for the other.
        if agreed == Agreed::Accurate && is_marked {
            all.sides[1 - to].may_be_lowered = true;
        }
    }

    fn step(&mut self, all: &mut Connection, mode: usize) {
        self.now = Instant(self.now.0 + 20_000);
        let from = self.random.below(2) as usize;
        let (side, mss) = (&all.sides[from], u64::from(all.mss));
        match self.random.below(11) {
            10 if !side.has_ended && self.random.one_in(4) => self.say_in_fragments(all, mode, from),
            0..3 if !side.has_ended => {
                let payload = match self.random.below(4) {
                    0 => 1 + self.random.below(mss),
                    1 => mss * (2 + self.random.below(3)),
                    _ => mss,
                };
                let nxt = side.nxt;
                self.say(all, mode, from, (nxt, payload), 0, false);
            }
            3 if side.una < side.nxt && !side.has_ended => {
                let (una, payload) = (side.una, mss.min(side.nxt - side.una));
                self.say(all, mode, from, (una, payload), 0, true);
            }
            4 | 5 => {
                let nxt = side.nxt;
                self.say(all, mode, from, (nxt, 0), 0, true);
            }
            _ if !all.network.is_empty() => {
                // Mostly the first of those that are on the way; some are lost or doubled.
                let at = if self.random.one_in(4) { self.random.below(all.network.len() as u64) as usize } else { 0 };
                let (to, wire) = all.network.remove(at);
                if self.random.one_in(12) {
                    return;
                }
                if self.random.one_in(20) {
                    all.network.push((to, wire.clone()));
                }
                let met = self.meet(&wire);
                self.deliver(all, mode, to, &met);
            }
            _ => {}
        }
    }

    /// Both sides end it, and every mark has been told.
    fn close(&mut self, all: &mut Connection, mode: usize) {
        all.network.clear();
        for from in [CLIENT, SERVER] {
            // What is missing comes once more.
            while all.sides[1 - from].received < all.sides[from].nxt {
                let seq = all.sides[1 - from].received;
                let payload = u64::from(all.mss).min(all.sides[from].nxt - seq);
                self.say(all, mode, from, (seq, payload), 0, true);
                let (to, wire) = all.network.pop().expect("it was sent");
                self.deliver(all, mode, to, &wire);
            }
        }
        for _ in 0..60 {
            for from in [CLIENT, SERVER] {
                let nxt = all.sides[from].nxt;
                self.say(all, mode, from, (nxt, 0), 0, true);
                let (to, wire) = all.network.pop().expect("it was sent");
                self.deliver(all, mode, to, &wire);
            }
            if all.agreed != Agreed::Accurate || all.sides.iter().all(|side| side.said == side.marks) {
                break;
            }
        }
        if all.agreed == Agreed::Accurate {
            assert!(all.sides.iter().all(|side| side.said == side.marks), "every mark is told");
        }
        for from in [CLIENT, SERVER, CLIENT] {
            let side = &mut all.sides[from];
            let (nxt, flags) = (side.nxt, if side.has_ended { 0 } else { FIN });
            side.has_ended = true;
            self.say(all, mode, from, (nxt, 0), flags, flags == 0);
            let (to, wire) = all.network.pop().expect("it was sent");
            self.deliver(all, mode, to, &wire);
        }
    }
}

/// A frame of its own for what a switch does with it.
fn pass(pool: &mut Pool, wire: &Wire, through: impl FnOnce(&mut Pool, &Frame)) -> Wire {
    let frame = pool.alloc_from(&wire.bytes).expect("a buffer");
    let meta = pool.meta_mut(&frame);
    (meta.layout, meta.offload) = (wire.layout(), wire.offload);
    through(pool, &frame);
    let (bytes, offload) = (pool.bytes(&frame).to_vec(), pool.meta(&frame).offload);
    pool.free(frame);
    Wire { bytes, offload }
}

/// The number nearest to `near` that is shown as `number`, both counted on from `first`.
fn counted(number: u32, first: u32, near: u64) -> u64 {
    let shown = number.wrapping_sub(first);
    near.wrapping_add_signed(i64::from(shown.wrapping_sub(near as u32) as i32))
}

#[track_caller]
fn same(all: &Connection, is: &Wire, should: &Wire, what: &str) {
    let Connection { settings: Settings { mode, .. }, agreed, extra, .. } = all;
    let guests = all.sides.each_ref().map(|side| (side.guest, side.is_switched, side.is_translated));
    assert!(
        is.bytes == should.bytes && is.offload == should.offload,
        "{what}, {mode:?}, {agreed:?}, {extra:?}, {guests:?}:\nis     {is:x?}\nshould {should:x?}"
    );
}

#[test]
fn generated_connections_are_on_the_wire_and_seen_as_a_model_has_them() {
    let connections = std::env::var("VCC_WIRE").map_or(2000, |text| text.parse().expect("VCC_WIRE is a number"));
    let mut world = World::new(1);
    let mut open: Vec<Connection> = (0..AT_A_TIME).map(|place| world.open(place)).collect();
    let mut done = 0;
    while done < connections {
        let place = world.random.below(AT_A_TIME as u64) as usize;
        let (mode, all) = (place % 4, &mut open[place]);
        all.steps += 1;
        world.step(all, mode);
        if all.steps >= STEPS {
            world.close(all, mode);
            // The same ports again.
            open[place] = world.open(place);
            done += 1;
        }
    }
    let World { frames, tagged, lowered, rescaled, fragments, options: [put, hidden], .. } = world;
    println!(
        "{done} connections, {frames} frames, {tagged} of them tagged, {fragments} fragments, {lowered} windows lowered,"
    );
    println!("{rescaled} shown by another scale,");
    println!("{put} of AccECN's options put in, {hidden} hidden: no difference");
    assert!(lowered > connections / 10 && fragments > connections / 10, "{lowered}, {fragments}");
    assert!(rescaled > connections / 10 && tagged > connections, "{rescaled}, {tagged}");
    assert!(put > connections / 2 && hidden > connections / 2, "{put}, {hidden}");
    assert_eq!(world.pool.in_use(), 0);
}
