//! Connections that sent lately: what is done with the next frame is worked out already.
//!
//! A frame of an open TCP connection over IPv4 needs nothing but the same change as the one before:
//! another address and port at one end, a MAC address, and checksums corrected by what that adds,
//! which is the same each time. A line says that for one direction of a connection, found by the
//! frame's own words: no address's role is looked up, and no key is hashed under SipHash. What does
//! not fit a line exactly goes the whole way, which also makes the lines: so do frames with IP
//! options, and segments that begin or end something.
//!
//! A line is a copy: whatever evicts it costs its connection the whole way twice. It is its
//! tenant's, and is evicted only by a tenant that has no more lines, or when nothing was sent for
//! some seconds: who has many connections takes its own lines' places, and nobody else's. It is
//! made at a second frame that comes before others have taken the place, so that a million
//! connections that all send now and then touch no line, only a small table of tags.
//! It counts only while its entry in the table is still that connection's, open, and at the same
//! backend, and until a service of its network changes. Lines are chosen by a secret, so that
//! nobody can aim at another's.

use super::connections::{Connections, SEEN_NS};
use super::decide::Known;
use super::entry::{Key, SECOND, Segment, State};
use super::translate::is_partial;
use super::{Server, Services};
use crate::checksum;
use crate::network::Network;
use crate::offload::Offload;
use crate::table::Id;
use crate::units::Instant;
use crate::wire::{L3, L4, Layout, be32, ipv4, tcp_flags, transport};

/// Places of a switch that has services, and lines of each: 256 KiB, and 10 KiB of
/// tags and what was missed.
const PLACES: usize = 512;
const LINES: usize = 8;
const SHIFT: u32 = 64 - PLACES.trailing_zeros();
/// A connection that was not seen for so long keeps no line from others; above the time for which
/// a table's entries are not marked as seen again.
const IDLE_NS: u64 = 3 * SECOND;

/// What a frame is recognized by: addresses, ports and network, Ethernet source and whether it is
/// from outside.
pub(crate) type Words = [u64; 3];

/// The last word of a line that does not count: no frame's.
const GONE: u64 = u64::MAX;

/// The headers of a frame that may have a line: TCP over IPv4 without options, whole.
struct Headers<'a> {
    macs: &'a mut [u8; 12],
    ip: &'a mut [u8; ipv4::LEN],
    tcp: &'a mut [u8; transport::TCP_LEN],
}

impl Headers<'_> {
    #[inline(always)]
    fn of<'a>(bytes: &'a mut [u8], layout: &Layout) -> Option<Headers<'a>> {
        if layout.l3 != L3::Ipv4 || layout.l4 != L4::Tcp || layout.fragment {
            return None;
        }
        let (ethernet, packet) = bytes.split_at_mut_checked(layout.l3_offset.into())?;
        let packet = packet.first_chunk_mut::<{ ipv4::LEN + transport::TCP_LEN }>()?;
        let (ip, tcp) = packet.split_first_chunk_mut()?;
        let is_plain = usize::from(layout.l4_offset) == usize::from(layout.l3_offset) + ipv4::LEN;
        is_plain.then_some(Headers { macs: ethernet.first_chunk_mut()?, ip, tcp: tcp.first_chunk_mut()? })
    }

    #[inline(always)]
    fn words(&self, network: Network, is_outside: bool) -> Words {
        let ports = u64::from(number::<4>(self.tcp, 0) as u32);
        let source = number::<8>(self.macs, 4) >> 16;
        [number::<8>(self.ip, 12), ports << 32 | u64::from(network.0), source | u64::from(is_outside) << 48]
    }
}

/// One cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct CacheLine {
    words: Words,
    /// When its backend lets its connections go, where it is drained.
    until: Instant,
    id: Id,
    owner: u32,
    /// What is written, and what that adds to the sum of addresses, and to that with ports.
    ip: [u8; 4],
    port: [u8; 2],
    of_address: u16,
    of_both: u16,
    front: u16,
    mac: [u8; 6],
    backend: u8,
    is_client: bool,
}

const _: () = assert!(size_of::<CacheLine>() == 64);

impl CacheLine {
    const NONE: CacheLine = CacheLine {
        words: [0, 0, GONE],
        until: Instant::ZERO,
        id: Id(0),
        owner: 0,
        ip: [0; 4],
        port: [0; 2],
        of_address: 0,
        of_both: 0,
        front: 0,
        mac: [0; 6],
        backend: 0,
        is_client: false,
    };

    /// Whether it is anybody's.
    fn counts(&self) -> bool {
        self.words[2] != GONE
    }

    /// The network of its frames.
    fn network(&self) -> Network {
        Network(self.words[1] as u32)
    }

    /// Whose frames it is of, out of its words: the client's address and port.
    #[inline(always)]
    fn client(words: &Words, is_client: bool) -> ([u8; 4], u16) {
        let (address, port) = match is_client {
            true => (words[0], words[1] >> 32),
            false => (words[0] >> 32, words[1] >> 48),
        };
        ((address as u32).to_le_bytes(), (port as u16).swap_bytes())
    }

    /// Tells the connection, where it still is that and open, and changes the frame. The entry's
    /// bits before, where it counts as something else now. `is_client` is the line's own.
    #[inline(always)]
    fn pass(
        &self,
        is_client: bool,
        (now, connections): (Instant, &mut Connections),
        headers: &mut Headers<'_>,
        (words, said): (&Words, &Segment),
        (layout, offload): (&Layout, &Offload),
    ) -> Option<Option<u8>> {
        let (client, port) = CacheLine::client(words, is_client);
        let (key, entry, seen) = connections.get_mut(self.id)?;
        let is_same = entry.state == State::Open && entry.backend == self.backend;
        if !is_same || *key != Key::of_v4(client, port, self.front) {
            return None;
        }
        let bits = entry.bits;
        if is_client {
            entry.client_sends(said);
        } else {
            entry.server_sends(said);
        }
        let mut before = None;
        if !entry.is_as(State::Open, bits) || now.since(seen) >= SEEN_NS {
            before = Some(bits);
            let change = (entry.opened(bits), *entry);
            connections.saw(now, (self.id, seen), change);
        }
        let Headers { macs, ip, tcp } = headers;
        if is_client {
            macs[..6].copy_from_slice(&self.mac);
            ip[16..20].copy_from_slice(&self.ip);
            tcp[2..4].copy_from_slice(&self.port);
        } else {
            macs[6..].copy_from_slice(&self.mac);
            ip[12..16].copy_from_slice(&self.ip);
            tcp[..2].copy_from_slice(&self.port);
        }
        let sum = number::<2>(*ip, ipv4::CHECKSUM) as u16;
        ip[ipv4::CHECKSUM..][..2].copy_from_slice(&(!checksum::add(!sum, self.of_address)).to_le_bytes());
        let sum = number::<2>(*tcp, transport::TCP_CHECKSUM) as u16;
        let sum = match is_partial(offload, usize::from(layout.l4_offset) + transport::TCP_CHECKSUM) {
            true => checksum::add(sum, self.of_address),
            false => !checksum::add(!sum, self.of_both),
        };
        tcp[transport::TCP_CHECKSUM..][..2].copy_from_slice(&sum.to_le_bytes());
        Some(before)
    }
}

/// What is known at a place of frames that had no line.
#[derive(Clone, Copy, Debug, Default)]
struct Missed {
    /// The tag of the last one.
    tag: u16,
    /// Which line goes next.
    turn: u16,
}

/// Lines, and a tag of each: a part of its words' hash; 0 for none.
#[derive(Debug)]
struct Lines {
    tags: Box<[[u16; LINES]; PLACES]>,
    lines: Box<[[CacheLine; LINES]; PLACES]>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Recent {
    /// None where there are no services.
    all: Option<Lines>,
    missed: Vec<Missed>,
    /// How many count, of each tenant.
    of: Vec<u32>,
    secret: [u64; 2],
    /// Frames that were passed on so, for tests.
    #[cfg(test)]
    passed: u64,
}

impl Recent {
    pub(super) fn new(secret: u64) -> Recent {
        // Odd, so that no bit of a word is lost.
        Recent {
            all: None,
            missed: Vec::new(),
            of: Vec::new(),
            secret: [secret | 1, secret.rotate_left(29) | 1],
            #[cfg(test)]
            passed: 0,
        }
    }

    /// Makes room.
    pub(super) fn reserve(&mut self) {
        if self.all.is_none() {
            self.all = Some(Lines { tags: boxed([0; LINES]), lines: boxed([CacheLine::NONE; LINES]) });
            self.missed = vec![Missed::default(); PLACES];
        }
    }

    /// A service of a network has changed: no line of it counts any more. They are looked for, so
    /// that no frame has to ask which of them count.
    pub(super) fn forget(&mut self, network: Network) {
        let Some(all) = &mut self.all else { return };
        // A network of its own has its tenant's number.
        if network != Network::UNTAGGED && self.of.get(network.0 as usize).is_none_or(|&count| count == 0) {
            return;
        }
        // Their tags stay: by them a connection gets another line at once.
        for line in all.lines.as_flattened_mut() {
            if line.counts() && line.network() == network {
                line.words[2] = GONE;
                self.of[line.owner as usize] -= 1;
            }
        }
    }

    /// Where the lines of a frame are, and its tag (multiply-shift, Dietzfelbinger 1996).
    #[inline(always)]
    fn place(&self, words: &Words) -> (usize, u16) {
        let mixed = words[0].wrapping_mul(self.secret[0]) ^ words[1].wrapping_mul(self.secret[1]).rotate_left(7);
        let mixed = mixed.wrapping_mul(self.secret[0]);
        ((mixed >> SHIFT) as usize, (mixed >> (SHIFT - 16)) as u16 | 1)
    }

    #[inline(always)]
    fn find(&self, words: &Words) -> Option<&CacheLine> {
        let (at, tag) = self.place(words);
        let all = self.all.as_ref()?;
        let line = all.tags[at].iter().position(|&other| other == tag)?;
        let line = &all.lines[at][line];
        let differ = |n: usize| line.words[n] ^ words[n];
        (differ(0) | differ(1) | differ(2) == 0).then_some(line)
    }

    /// Whether a frame that has no line is to have one: where it had, or missed it the last time.
    fn is_wanted(&mut self, words: &Words) -> bool {
        let (at, tag) = self.place(words);
        let (Some(all), Some(missed)) = (&self.all, self.missed.get_mut(at)) else { return false };
        all.tags[at].contains(&tag) || std::mem::replace(&mut missed.tag, tag) == tag
    }

    /// How many lines a tenant has.
    fn count(&self, owner: u32) -> u32 {
        self.of.get(owner as usize).copied().unwrap_or(0)
    }

    /// Puts a line in the place of its own, of one that does not count or `is_idle`, or of the
    /// tenant that has most, its own among them.
    fn put(&mut self, line: CacheLine, is_idle: impl Fn(&CacheLine) -> bool) {
        let (at, tag) = self.place(&line.words);
        let Some(all) = &self.all else { return };
        let (tags, lines, turn) = (&all.tags[at], &all.lines[at], usize::from(self.missed[at].turn));
        let of = |which: usize| self.count(lines[which].owner);
        let counts = |which: usize| lines[which].counts();
        let is_free = |which: usize| !counts(which) || is_idle(&lines[which]);
        let may_take = |which: usize| is_free(which) || of(which) >= self.count(line.owner);
        // By a tag one line is found.
        let which = match tags.iter().position(|&other| other == tag) {
            Some(old) => Some(old).filter(|&old| lines[old].words == line.words || may_take(old)),
            None => (0..LINES).find(|&which| is_free(which)).or_else(|| {
                // Of those with as many, the first after the last that went.
                let turns = (1..=LINES).map(|n| (turn + n) % LINES);
                turns.rev().max_by_key(|&which| of(which)).filter(|&most| may_take(most))
            }),
        };
        let Some(which) = which else { return };
        let gone = counts(which).then(|| lines[which].owner);
        let Some(all) = &mut self.all else { return };
        (all.tags[at][which], all.lines[at][which]) = (tag, line);
        if let Some(owner) = gone {
            self.of[owner as usize] -= 1;
        }
        self.missed[at] = Missed { tag: 0, turn: which as u16 };
        let owner = line.owner as usize;
        self.of.resize(self.of.len().max(owner + 1), 0);
        self.of[owner] += 1;
    }
}

/// As many of one as there are places, never on the stack.
fn boxed<T: Copy>(one: T) -> Box<[T; PLACES]> {
    vec![one; PLACES].into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!("as many as there are places"))
}

impl Services {
    /// Passes on a frame of an open connection that is among the recent ones, as
    /// [`Services::decide`] and what follows would: translated, and its connection is told.
    ///
    /// # Errors
    /// It has to go the whole way; by these words the next one may be recognized.
    #[inline(always)]
    pub fn pass_recent(
        &mut self,
        now: Instant,
        network: Network,
        is_outside: bool,
        bytes: &mut [u8],
        layout: &Layout,
        offload: &Offload,
    ) -> Result<(), Option<Words>> {
        if !is_outside && layout.vlan.is_some() {
            return Err(None);
        }
        let Some(mut headers) = Headers::of(bytes, layout) else { return Err(None) };
        let Services { recent, connections, .. } = self;
        let words = headers.words(network, is_outside);
        let Some(line) = recent.find(&words) else { return Err(Some(words)) };
        const RARE: u8 = tcp_flags::SYN | tcp_flags::FIN | tcp_flags::RST;
        if now >= line.until || headers.tcp[transport::TCP_FLAGS] & (RARE | tcp_flags::ACK) != tcp_flags::ACK {
            return Err(None);
        }
        let said = Segment {
            flags: tcp_flags::ACK,
            sequence: be32(headers.tcp, transport::TCP_SEQUENCE),
            ack: be32(headers.tcp, transport::TCP_ACK),
            len: layout.end.saturating_sub(u32::from(layout.payload_offset)),
        };
        let (told, meta) = ((&words, &said), (layout, offload));
        let passed = match line.is_client {
            true => line.pass(true, (now, connections), &mut headers, told, meta),
            false => line.pass(false, (now, connections), &mut headers, told, meta),
        };
        let Some(before) = passed else { return Err(Some(words)) };
        if let Some(bits) = before
            && let Some(entry) = connections.get(line.id).copied()
        {
            let (client, port) = CacheLine::client(&words, line.is_client);
            let (id, key) = (line.id, Key::of_v4(client, port, line.front));
            self.account(now, &key, Some((entry.opened(bits), entry)));
            if self.affinity.is_used() {
                self.stay(now, &Known { id, key, backend: entry.backend, is_plain: false });
            }
        }
        #[cfg(test)]
        (self.recent.passed += 1);
        Ok(())
    }

    /// Lets all frames go the whole way.
    #[cfg(test)]
    pub(crate) fn remember_none(&mut self) {
        self.recent.all = None;
    }

    /// How many did not.
    #[cfg(test)]
    pub(crate) fn passed_recent(&self) -> u64 {
        self.recent.passed
    }

    /// Makes a line of what a frame with these words has become, where the next one may be passed
    /// on as it was, and is likely to come soon.
    pub(crate) fn note(
        &mut self,
        now: Instant,
        words: &Words,
        known: &Known,
        is_client: bool,
        bytes: &mut [u8],
        layout: &Layout,
    ) {
        let is_open = self.connections.get(known.id).is_some_and(|entry| entry.state == State::Open);
        if !known.is_plain || !is_open || !self.recent.is_wanted(words) {
            return;
        }
        let Some((running, _)) = self.running(known.key.front) else { return };
        let server = running.servers.get(usize::from(known.backend));
        let until = server.and_then(Server::drained_at).unwrap_or(Instant(u64::MAX));
        let owner = running.service.tenant.0;
        let Some(Headers { macs, ip, tcp }) = Headers::of(bytes, layout) else { return };
        // As words are: the destination is the higher half.
        let (mac, ip, port, old) = match is_client {
            true => (&macs[..6], &ip[16..20], &tcp[2..4], (words[0] >> 32, words[1] >> 48)),
            false => (&macs[6..], &ip[12..16], &tcp[..2], (words[0], words[1] >> 32)),
        };
        let (Ok(mac), Ok(ip), Ok(port)) = (mac.try_into(), ip.try_into(), port.try_into()) else { return };
        let of_address = difference(old.0 as u32, u32::from_le_bytes(ip));
        let of_port = checksum::add(!(old.1 as u16), u16::from_le_bytes(port));
        let line = CacheLine {
            words: *words,
            until,
            id: known.id,
            owner,
            ip,
            port,
            of_address,
            of_both: checksum::add(of_address, of_port),
            front: known.key.front,
            mac,
            backend: known.backend,
            is_client,
        };
        let Services { recent, connections, .. } = self;
        recent.put(line, |old| connections.seen(old.id).is_none_or(|seen| now.since(seen) >= IDLE_NS));
    }
}

/// The number at `at` in the order of memory, in which sums are the same (RFC 1071, section 2 (B)).
#[inline(always)]
fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(number)
}

/// What another address adds to a sum.
fn difference(old: u32, new: u32) -> u16 {
    let of = |shift: u32| checksum::add(!((old >> shift) as u16), (new >> shift) as u16);
    checksum::add(of(16), of(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line of a connection of a tenant, in its own network.
    fn line(owner: u32, connection: u32) -> CacheLine {
        let words = [u64::from(connection) << 32, owner.into(), 9];
        CacheLine { words, owner, ..CacheLine::NONE }
    }

    fn kept(recent: &Recent, owner: u32, connections: u32) -> usize {
        (0..connections).filter(|&n| recent.find(&line(owner, n).words).is_some()).count()
    }

    #[test]
    fn a_tenant_of_many_connections_takes_its_own_lines_and_nobody_elses() {
        for few_come_first in [false, true] {
            let mut recent = Recent::new(0x1234_5678_9abc_def1);
            recent.reserve();
            let put = |recent: &mut Recent, owner, connections| {
                for n in 0..connections {
                    recent.put(line(owner, n), |_| false);
                }
            };
            if few_come_first {
                put(&mut recent, 2, 200);
            }
            put(&mut recent, 1, 100_000);
            put(&mut recent, 2, 200);
            put(&mut recent, 1, 100_000);
            assert_eq!(kept(&recent, 2, 200), 200);
            assert!(kept(&recent, 1, 100_000) > PLACES * LINES * 9 / 10, "the rest is the other's");
            let counts = [1, 2].map(|owner| recent.count(owner) as usize);
            assert_eq!(counts, [kept(&recent, 1, 100_000), 200]);
            recent.forget(Network(1));
            assert_eq!((kept(&recent, 1, 100_000), recent.count(1)), (0, 0));
            assert_eq!((kept(&recent, 2, 200), recent.count(2)), (200, 200), "the others stay");
            recent.forget(Network(2));
            assert_eq!((kept(&recent, 2, 200), recent.count(2)), (0, 0));
            put(&mut recent, 2, 200);
            assert_eq!(kept(&recent, 2, 200), 200, "those that do not count are nobody's");
        }
    }

    #[test]
    fn lines_of_idle_connections_are_anybodys() {
        let mut recent = Recent::new(0x1234_5678_9abc_def1);
        recent.reserve();
        let put = |recent: &mut Recent, owner, connections, is_idle: fn(&CacheLine) -> bool| {
            for n in 0..connections {
                recent.put(line(owner, n), is_idle);
            }
        };
        put(&mut recent, 1, 100_000, |_| false);
        put(&mut recent, 2, 1024, |_| false);
        let had = (512..1024).filter(|&n| recent.find(&line(2, n).words).is_some()).count();
        put(&mut recent, 1, 100_000, |old| old.owner == 2 && old.words[0] >> 32 < 512);
        let idle = (0..512).filter(|&n| recent.find(&line(2, n).words).is_some()).count();
        assert!(had > 500, "more than four in one place are the tenant's own matter");
        assert_eq!((idle, kept(&recent, 2, 1024)), (0, had));
    }
}
