//! Virtual congestion control against a model that keeps everything: many generated connections of
//! guests that know no ECN, between two switches, or with a native or plain peer, over a network
//! that marks, loses, doubles and reorders. Each frame that a switch has changed is compared, byte
//! by byte, with the one that it should be: what the model says is written into the guest's own
//! frame, and its checksums are computed anew.
//!
//! `VCC_WIRE=100000 cargo test -p datapath --test vcc_wire` runs so many connections.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use datapath::checksum;
use datapath::frame::{Frame, Pool, PoolLimits};
use datapath::offload::{Gso, GsoEcn, Offload};
use datapath::program::{EndpointId, TenantId};
use datapath::units::Instant;
use datapath::vcc::segment::{codes, ecn};
use datapath::vcc::{Mode, Owner, Vcc};
use datapath::wire::build::eth;
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

/// Who is at the server's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Peer {
    /// A guest that knows no ECN, behind a switch.
    Legacy,
    /// A host that knows RFC 3168, without a switch.
    Classic,
    /// A host that knows no ECN, without a switch.
    Plain,
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

    /// The same with other fields, and whole checksums computed anew.
    fn with(&self, ecn: u8, codes: u8, window: u16, is_counter: bool) -> Wire {
        let (mut other, layout, tcp) = (self.clone(), self.layout(), self.tcp());
        let l3 = usize::from(layout.l3_offset);
        other.bytes[tcp + 12] = self.bytes[tcp + 12] & !1 | codes >> 2;
        other.bytes[tcp + 13] = self.bytes[tcp + 13] & 0x3f | codes << 6;
        other.put(tcp + 14, window);
        let addresses = if layout.l3 == L3::Ipv4 {
            other.bytes[l3 + 1] = self.bytes[l3 + 1] & !3 | ecn;
            other.put(l3 + 10, 0);
            let sum = checksum::sum(&other.bytes[l3..tcp]);
            other.put(l3 + 10, !sum);
            l3 + 12..l3 + 20
        } else {
            other.bytes[l3 + 1] = self.bytes[l3 + 1] & !0x30 | ecn << 4;
            l3 + 8..l3 + 40
        };
        if !self.offload.needs_csum {
            other.put(tcp + 16, 0);
            let end = layout.end as usize;
            let pseudo = checksum::pseudo(&other.bytes[addresses], 6, end - tcp);
            let sum = checksum::add(pseudo, checksum::sum(&other.bytes[tcp..end]));
            other.put(tcp + 16, !sum);
        }
        if codes != self.codes() {
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
    first: u32,
    scale: Option<u8>,
    timestamps: bool,
    nxt: u64,
    una: u64,
    received: u64,
    /// What came before what is missing: from where to where.
    parts: Vec<(u64, u64)>,
    /// Marked segments that came, from 5 on, and how many were said.
    marks: u64,
    said: u64,
    /// RFC 3168: marks are told until CWR comes; and a report came since CWR was said.
    is_latched: bool,
    is_reported: bool,
    /// The first segment behind the handshake is still to be sent, and says this.
    first_says: Option<u8>,
    /// A mark may have been reported, so that its window may be lowered.
    may_be_lowered: bool,
    /// The peer's scale, where both have one.
    peer_scale: u8,
    has_ended: bool,
}

struct Connection {
    peer: Peer,
    mode: Mode,
    is_ipv6: bool,
    port: u16,
    mss: u16,
    sides: [Side; 2],
    /// To whom it goes.
    network: Vec<(usize, Wire)>,
    steps: u32,
}

struct World {
    pool: Pool,
    /// By mode, the client's and the server's.
    switches: [[Vcc; 2]; 2],
    now: Instant,
    random: Random,
    frames: u64,
    lowered: u64,
}

fn endpoint(side: usize) -> EndpointId {
    EndpointId(side as u32)
}

fn switches(mode: Mode) -> [Vcc; 2] {
    [CLIENT, SERVER].map(|side| {
        let mut vcc = Vcc::new(7);
        vcc.set(Owner { tenant: TenantId(0), endpoint: endpoint(side) }, mode.into());
        vcc
    })
}

impl World {
    fn new(seed: u64) -> World {
        World {
            pool: Pool::new(PoolLimits { small: 8, medium: 8, large: 8 }),
            switches: [switches(Mode::Echo), switches(Mode::Dctcp)],
            now: Instant(1_000_000_000),
            random: Random(seed),
            frames: 0,
            lowered: 0,
        }
    }

    /// A new connection: its handshake, of which nothing is lost.
    fn open(&mut self, place: usize) -> Connection {
        let random = &mut self.random;
        let mode = place % 2;
        let peer = [Peer::Legacy, Peer::Legacy, Peer::Legacy, Peer::Classic, Peer::Plain][random.below(5) as usize];
        let mut side = || Side {
            // Often it wraps soon.
            first: if random.one_in(2) {
                0u32.wrapping_sub(random.below(2_000_000) as u32)
            } else {
                random.next() as u32
            },
            scale: (!random.one_in(5)).then(|| random.below(15) as u8),
            timestamps: random.one_in(2),
            nxt: 1,
            ..Side::default()
        };
        let mut sides = [side(), side()];
        if let [Some(a), Some(b)] = [sides[0].scale, sides[1].scale] {
            (sides[0].peer_scale, sides[1].peer_scale) = (b, a);
        }
        let mss = [536, 1000, 1448, 8948][random.below(4) as usize];
        let (is_ipv6, port) = (random.one_in(2), 1024 + place as u16 / 2);
        let modes = [Mode::Echo, Mode::Dctcp];
        let mut all = Connection { peer, mode: modes[mode], is_ipv6, port, mss, sides, network: Vec::new(), steps: 0 };

        let syn = self.write(&all, CLIENT, (0, 0), SYN, 0, 65_535);
        let asked = self.send(mode, CLIENT, &syn);
        same(&all, &asked, &syn.with(ecn::ECT0, codes::ASK_ACCURATE, 65_535, true), "SYN");
        let met = self.meet(&asked);
        if peer == Peer::Legacy {
            // Delivered as it came, but for the mark.
            let seen = self.receive(mode, SERVER, &met);
            same(&all, &seen, &met.with(ecn::ECT0, codes::ASK_ACCURATE, 65_535, true), "SYN, seen");
        }
        all.sides[SERVER].received = 1;
        let answer = self.write(&all, SERVER, (0, 1), SYN | ACK, 0, 65_535);
        let (said, capable) = match peer {
            Peer::Legacy => (codes::received(met.ecn()), ecn::ECT0),
            Peer::Classic => (codes::CLASSIC, ecn::NOT),
            Peer::Plain => (codes::NONE, ecn::NOT),
        };
        let answered = answer.with(capable, said, 65_535, true);
        if peer == Peer::Legacy {
            same(&all, &self.send(mode, SERVER, &answer), &answered, "SYN-ACK");
        }
        let met_back = self.meet(&answered);
        let seen = self.receive(mode, CLIENT, &met_back);
        same(&all, &seen, &met_back.with(ecn::NOT, codes::NONE, 65_535, false), "SYN-ACK, seen");
        for (side, met) in [(SERVER, met.ecn()), (CLIENT, met_back.ecn())] {
            let side = &mut all.sides[side];
            side.marks = 5 + u64::from(met == ecn::CE);
            (side.said, side.una, side.received) = (side.marks, 1, 1);
        }
        if peer == Peer::Legacy {
            all.sides[CLIENT].first_says = Some(codes::received(met_back.ecn()));
            // A mark on a packet of the handshake is told by its code.
            all.sides[CLIENT].may_be_lowered = met.ecn() == ecn::CE || met_back.ecn() == ecn::CE;
            all.sides[SERVER].may_be_lowered = met_back.ecn() == ecn::CE;
        }
        self.say(&mut all, mode, CLIENT, (1, 0), 0, false);
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
        if flags & SYN == 0 && !me.parts.is_empty() {
            options.extend([1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        }
        let ip = |side: usize| -> IpAddr {
            let number = side as u8 + 1;
            if all.is_ipv6 {
                Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into()).into()
            } else {
                Ipv4Addr::new(10, 0, 0, number).into()
            }
        };
        let ports = if from == CLIENT { [all.port, 80] } else { [80, all.port] };
        let is_cut = payload > usize::from(all.mss);
        let frame = |options: u8| {
            let frame = eth(Mac([2; 6]), Mac([4; 6]))
                .ip(ip(from), ip(1 - from))
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
        let is_new = end > all.sides[from].nxt;
        let peer = all.peer;
        let side = &mut all.sides[from];
        side.nxt = side.nxt.max(end);
        assert_eq!(is_new, !again && end > seq);
        let sent = if peer != Peer::Legacy && from == SERVER {
            // A host without a switch: RFC 3168's echo, CWR for what is told.
            let mut says = codes::NONE;
            if peer == Peer::Classic {
                says |= if side.is_latched { codes::ECE } else { 0 };
                if side.is_reported && payload > 0 && is_new {
                    (side.is_reported, says) = (false, says | codes::CWR);
                }
            }
            let capable = peer == Peer::Classic && payload > 0 && is_new;
            wire.with(if capable { ecn::ECT0 } else { ecn::NOT }, says, window, false)
        } else {
            let sent = self.send(mode, from, &wire);
            let side = &mut all.sides[from];
            let expected = match peer {
                Peer::Plain => wire.clone(),
                Peer::Legacy => {
                    let says = side.first_says.take().unwrap_or_else(|| {
                        side.said += (side.marks - side.said).min(6);
                        (side.said & 7) as u8
                    });
                    wire.with(ecn::ECT0, says, window, true)
                }
                Peer::Classic => {
                    let says = sent.codes();
                    let latched = if side.is_latched { codes::ECE } else { 0 };
                    // When the window is reduced is the controller's matter: never where nothing
                    // was reported, and it is said on new data.
                    let may_say = side.may_be_lowered && payload > 0 && is_new;
                    assert!(says & codes::CWR == 0 || may_say, "CWR for nothing");
                    wire.with(ecn::ECT0, latched | says & codes::CWR, window, false)
                }
            };
            same(all, &sent, &expected, "sent");
            sent
        };
        all.network.push((1 - from, sent));
    }

    /// A frame arrives, and what its guest sees of it is as it should be.
    fn deliver(&mut self, all: &mut Connection, mode: usize, to: usize, wire: &Wire) {
        let (peer, is_switched) = (all.peer, to == CLIENT || all.peer == Peer::Legacy);
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
        if is_marked {
            side.marks += u64::from(wire.segments());
        }
        if peer == Peer::Classic && payload > 0 {
            side.is_latched = is_marked || side.is_latched && wire.codes() & codes::CWR == 0;
        }
        if peer == Peer::Classic && wire.codes() & codes::ECE != 0 {
            (side.is_reported, side.may_be_lowered) = (true, true);
        }
        if is_switched {
            let told = seen.window();
            let expected = match peer {
                Peer::Plain => wire.clone(),
                _ => wire.with(ecn::NOT, codes::NONE, told, false),
            };
            let may_be_lowered = side.may_be_lowered;
            // Any feedback of a mark may lower it from here on.
            let shift = side.peer_scale;
            let edge = |window: u16| ack + (u64::from(window) << shift);
            if ack < side.una || !may_be_lowered {
                assert_eq!(told, wire.window(), "nothing is lowered here");
            } else {
                assert!(told <= wire.window() && (told == 0) == (wire.window() == 0), "{told} of {}", wire.window());
                if told != wire.window() {
                    self.lowered += 1;
                    assert!(edge(told) >= side.nxt.min(edge(wire.window())) || ack == side.una, "before what was sent");
                }
            }
            same(all, &seen, &expected, "seen");
        }
        let side = &mut all.sides[to];
        side.una = side.una.max(ack);
        let end = seq + payload + u64::from(has_ended);
        if end > side.received {
            side.parts.push((seq, end));
            while let Some(at) = side.parts.iter().position(|&(from, _)| from <= side.received) {
                let (_, end) = side.parts.swap_remove(at);
                side.received = side.received.max(end);
            }
        }
        // What this side's switch shows from now on may be a mark for the other.
        if peer == Peer::Legacy && is_marked {
            all.sides[1 - to].may_be_lowered = true;
        }
    }

    fn step(&mut self, all: &mut Connection, mode: usize) {
        self.now = Instant(self.now.0 + 20_000);
        let from = self.random.below(2) as usize;
        let (side, mss) = (&all.sides[from], u64::from(all.mss));
        match self.random.below(10) {
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
            if all.peer != Peer::Legacy || all.sides.iter().all(|side| side.said == side.marks) {
                break;
            }
        }
        if all.peer == Peer::Legacy {
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
    let (peer, mode) = (all.peer, all.mode);
    assert!(
        is.bytes == should.bytes && is.offload == should.offload,
        "{what}, {mode:?}, {peer:?}:\nis     {is:x?}\nshould {should:x?}"
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
        let (mode, all) = (place % 2, &mut open[place]);
        all.steps += 1;
        world.step(all, mode);
        if all.steps >= STEPS {
            world.close(all, mode);
            // The same ports again.
            open[place] = world.open(place);
            done += 1;
        }
    }
    println!("{done} connections, {} frames, {} windows lowered: no difference", world.frames, world.lowered);
    assert!(world.lowered > connections / 10, "{}", world.lowered);
    assert_eq!(world.pool.in_use(), 0);
}
