//! Connections that sent lately: what is done with the next frame is worked out already.
//!
//! A frame of an open TCP connection over IPv4 needs nothing but the same change as the one before:
//! another address and port at one end, a MAC address, and checksums corrected by what that adds,
//! which is the same each time. A line says that for one direction of a connection, found by the
//! frame's own words: no address's role is looked up, and no key is hashed under SipHash. What does
//! not fit a line exactly goes the whole way, which also makes the lines.
//!
//! A line is a copy: whatever evicts it costs its connection the whole way twice. It is its
//! tenant's, and is evicted only by a tenant that has no more lines, or when nothing was sent for
//! some seconds: who has many connections takes its own lines' places, and nobody else's. It is
//! made at a second frame that comes before others have taken the place, so that a million
//! connections that all send now and then touch no line, only a small table of tags.
//! It counts only while its entry in the table is still that connection's, open, and at the same
//! backend, and until any service changes. Lines are chosen by a secret, so that nobody can aim at
//! another's.

use super::decide::{Known, segment};
use super::entry::{Entry, Key, SECOND, State};
use super::translate::{End, is_partial};
use super::{Server, Services, octets};
use crate::checksum;
use crate::network::Network;
use crate::offload::Offload;
use crate::table::Id;
use crate::units::Instant;
use crate::wire::{L3, L4, Layout, be16, ipv4, put16, tcp_flags, transport};
use std::net::Ipv4Addr;

/// Places of a switch that has services, and lines of each: 256 KiB, and 12 KiB of tags.
const PLACES: usize = 1024;
const LINES: usize = 4;
const SHIFT: u32 = 64 - PLACES.trailing_zeros();
/// A connection that was not seen for so long keeps no line from others; above the time for which
/// a table's entries are not marked as seen again.
const IDLE_NS: u64 = 3 * SECOND;

/// What a frame is recognized by: addresses, ports and network, Ethernet source and whether it is
/// from outside.
pub(crate) type Words = [u64; 3];

/// One cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line {
    words: Words,
    /// When its backend lets its connections go, where it is drained.
    until: Instant,
    id: Id,
    /// Which state of the services it is of; 0 for none.
    version: u32,
    owner: u32,
    /// What is written, and what that adds to the sums of addresses and ports.
    ip: [u8; 4],
    port: u16,
    of_address: u16,
    of_port: u16,
    front: u16,
    mac: [u8; 6],
    backend: u8,
    is_client: bool,
}

const _: () = assert!(size_of::<Line>() == 64);

impl Line {
    const NONE: Line = Line {
        words: [0; 3],
        until: Instant::ZERO,
        id: Id(0),
        version: 0,
        owner: 0,
        ip: [0; 4],
        port: 0,
        of_address: 0,
        of_port: 0,
        front: 0,
        mac: [0; 6],
        backend: 0,
        is_client: false,
    };

    /// The connection that it is of.
    fn key(&self) -> Key {
        let [addresses, ports, _] = self.words;
        let (client, port) = match self.is_client {
            true => ((addresses >> 32) as u32, (ports >> 48) as u16),
            false => (addresses as u32, (ports >> 32) as u16),
        };
        Key { client: octets(Ipv4Addr::from(client).into()), port, front: self.front }
    }

    /// Changes a frame.
    #[inline]
    fn translate(&self, bytes: &mut [u8], layout: &Layout, offload: &Offload) {
        let (l3, l4) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset));
        let Some((head, tail)) = bytes.split_at_mut_checked(l4) else { return };
        let Some((ethernet, rest)) = head.split_at_mut_checked(l3) else { return };
        let (Some(macs), Some(ip), Some(tcp)) =
            (ethernet.first_chunk_mut::<12>(), rest.first_chunk_mut::<20>(), tail.first_chunk_mut::<20>())
        else {
            return;
        };
        if self.is_client {
            macs[..6].copy_from_slice(&self.mac);
            ip[16..20].copy_from_slice(&self.ip);
            put16(tcp, 2, self.port);
        } else {
            macs[6..].copy_from_slice(&self.mac);
            ip[12..16].copy_from_slice(&self.ip);
            put16(tcp, 0, self.port);
        }
        let sum = be16(ip, ipv4::CHECKSUM);
        put16(ip, ipv4::CHECKSUM, !checksum::add(!sum, self.of_address));
        let sum = be16(tcp, transport::TCP_CHECKSUM);
        let sum = match is_partial(offload, l4 + transport::TCP_CHECKSUM) {
            true => checksum::add(sum, self.of_address),
            false => !checksum::add(!sum, checksum::add(self.of_address, self.of_port)),
        };
        put16(tcp, transport::TCP_CHECKSUM, sum);
    }
}

/// What lines a place has.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Of each line, a part of its words' hash; 0 for none.
    tags: [u16; LINES],
    /// The same of the last frame that had no line.
    missed: u16,
    /// Which line goes next.
    turn: u16,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Recent {
    /// None where there are no services, and so with lines.
    places: Vec<Place>,
    lines: Vec<[Line; LINES]>,
    /// How many count, of each tenant.
    of: Vec<u32>,
    secret: [u64; 2],
    version: u32,
    /// Frames that were passed on so, for tests.
    #[cfg(test)]
    passed: u64,
}

impl Recent {
    pub(super) fn new(secret: u64) -> Recent {
        // Odd, so that no bit of a word is lost.
        Recent {
            places: Vec::new(),
            lines: Vec::new(),
            of: Vec::new(),
            secret: [secret | 1, secret.rotate_left(29) | 1],
            version: 1,
            #[cfg(test)]
            passed: 0,
        }
    }

    /// Makes room.
    pub(super) fn reserve(&mut self) {
        self.places.resize(PLACES, Place { tags: [0; LINES], missed: 0, turn: 0 });
        self.lines.resize(PLACES, [Line::NONE; LINES]);
    }

    /// Services have changed: no line counts any more.
    pub(super) fn forget(&mut self) {
        self.version = self.version.wrapping_add(1);
        self.of.clear();
        if self.version == 0 {
            self.lines.fill([Line::NONE; LINES]);
            self.version = 1;
        }
    }

    /// Where the lines of a frame are, and its tag (multiply-shift, Dietzfelbinger 1996).
    #[inline]
    fn place(&self, words: &Words) -> (usize, u16) {
        let mixed = words[0].wrapping_mul(self.secret[0]) ^ words[1].wrapping_mul(self.secret[1]).rotate_left(7);
        let mixed = mixed.wrapping_mul(self.secret[0]);
        ((mixed >> SHIFT) as usize, (mixed >> (SHIFT - 16)) as u16 | 1)
    }

    #[inline]
    fn find(&self, words: &Words) -> Option<&Line> {
        let (at, tag) = self.place(words);
        let line = self.places.get(at)?.tags.iter().position(|&other| other == tag)?;
        let line = &self.lines[at][line];
        (line.words == *words && line.version == self.version).then_some(line)
    }

    /// Whether a frame that has no line is to have one: where it had, or missed it the last time.
    fn is_wanted(&mut self, words: &Words) -> bool {
        let (at, tag) = self.place(words);
        let Some(place) = self.places.get_mut(at) else { return false };
        place.tags.contains(&tag) || std::mem::replace(&mut place.missed, tag) == tag
    }

    /// How many lines a tenant has.
    fn count(&self, owner: u32) -> u32 {
        self.of.get(owner as usize).copied().unwrap_or(0)
    }

    /// Puts a line in the place of its own, of one that does not count or `is_idle`, or of the
    /// tenant that has most, its own among them.
    fn put(&mut self, line: Line, is_idle: impl Fn(&Line) -> bool) {
        let (at, tag) = self.place(&line.words);
        let Some(place) = self.places.get(at) else { return };
        let lines = &self.lines[at];
        let of = |which: usize| self.count(lines[which].owner);
        let is_free = |which: usize| lines[which].version != self.version || is_idle(&lines[which]);
        let may_take = |which: usize| is_free(which) || of(which) >= self.count(line.owner);
        // By a tag one line is found.
        let which = match place.tags.iter().position(|&other| other == tag) {
            Some(old) => Some(old).filter(|&old| lines[old].words == line.words || may_take(old)),
            None => (0..LINES).find(|&which| is_free(which)).or_else(|| {
                // Of those with as many, the first after the last that went.
                let turns = (1..=LINES).map(|n| (usize::from(place.turn) + n) % LINES);
                turns.rev().max_by_key(|&which| of(which)).filter(|&most| may_take(most))
            }),
        };
        let Some(which) = which else { return };
        let gone = std::mem::replace(&mut self.lines[at][which], line);
        let place = &mut self.places[at];
        (place.tags[which], place.missed, place.turn) = (tag, 0, which as u16);
        if gone.version == self.version {
            self.of[gone.owner as usize] -= 1;
        }
        let owner = line.owner as usize;
        self.of.resize(self.of.len().max(owner + 1), 0);
        self.of[owner] += 1;
    }
}

/// The words of a frame that a line may be of.
#[inline]
fn words(network: Network, is_outside: bool, bytes: &[u8], layout: &Layout) -> Option<Words> {
    if layout.l4 != L4::Tcp || layout.l3 != L3::Ipv4 || layout.fragment {
        return None;
    }
    let (l3, l4) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset));
    let addresses = bytes.get(l3 + 12..l3 + 20)?.first_chunk()?;
    let ports = bytes.get(l4..l4 + 4)?.first_chunk()?;
    let source = bytes.get(4..12)?.first_chunk()?;
    let source = u64::from_be_bytes(*source) & 0xffff_ffff_ffff;
    Some([
        u64::from_be_bytes(*addresses),
        u64::from(u32::from_be_bytes(*ports)) << 32 | u64::from(network.0),
        source | u64::from(is_outside) << 48,
    ])
}

impl Services {
    /// Passes on a frame of an open connection that is among the recent ones, as
    /// [`Services::decide`] and what follows would: translated, and its connection is told.
    ///
    /// # Errors
    /// It has to go the whole way; by these words the next one may be recognized.
    #[inline]
    pub fn pass_recent(
        &mut self,
        now: Instant,
        network: Network,
        is_outside: bool,
        bytes: &mut [u8],
        layout: &Layout,
        offload: &Offload,
    ) -> Result<(), Option<Words>> {
        let Some(words) = words(network, is_outside, bytes, layout) else { return Err(None) };
        let Services { recent, connections, .. } = self;
        let Some(line) = recent.find(&words) else { return Err(Some(words)) };
        let said = segment(bytes, layout);
        if now >= line.until || said.flags & (tcp_flags::SYN | tcp_flags::RST) != 0 {
            return Err(None);
        }
        let (key, is_client) = (line.key(), line.is_client);
        let is_it = |entry: &Entry| entry.state == State::Open && entry.backend == line.backend;
        let tell = |entry: &mut Entry| if is_client { entry.client_sends(&said) } else { entry.server_sends(&said) };
        let Some(change) = connections.update_of(now, line.owner, (line.id, &key), is_it, tell) else {
            return Err(Some(words));
        };
        line.translate(bytes, layout, offload);
        if change.0.kind() != change.1.kind() {
            self.recount(&key, Some(change));
        }
        #[cfg(test)]
        (self.recent.passed += 1);
        Ok(())
    }

    /// Lets all frames go the whole way.
    #[cfg(test)]
    pub(crate) fn remember_none(&mut self) {
        (self.recent.places, self.recent.lines) = (Vec::new(), Vec::new());
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
        bytes: &[u8],
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
        let (l3, l4) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset));
        let (end, mac) = if is_client { (End::Destination, 0) } else { (End::Source, 6) };
        let (at, port_at) = (l3 + end.offsets().0, l4 + end.port_offset());
        let (Some(&mac), Some(&ip)) = (bytes[mac..].first_chunk(), bytes[at..].first_chunk()) else { return };
        let (address, port) = match is_client {
            true => (words[0] as u32, (words[1] >> 32) as u16),
            false => ((words[0] >> 32) as u32, (words[1] >> 48) as u16),
        };
        let new = be16(bytes, port_at);
        let line = Line {
            words: *words,
            until,
            id: known.id,
            version: self.recent.version,
            owner,
            ip,
            port: new,
            of_address: difference(address, u32::from_be_bytes(ip)),
            of_port: checksum::add(!port, new),
            front: known.key.front,
            mac,
            backend: known.backend,
            is_client,
        };
        let Services { recent, connections, .. } = self;
        recent.put(line, |old| connections.seen(old.id).is_none_or(|seen| now.since(seen) >= IDLE_NS));
    }
}

/// What another address adds to a sum.
fn difference(old: u32, new: u32) -> u16 {
    let of = |shift: u32| checksum::add(!((old >> shift) as u16), (new >> shift) as u16);
    checksum::add(of(16), of(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line of a connection of a tenant.
    fn line(recent: &Recent, owner: u32, connection: u32) -> Line {
        let words = [u64::from(connection) << 32 | u64::from(owner), 7, 9];
        Line { words, owner, version: recent.version, ..Line::NONE }
    }

    fn kept(recent: &Recent, owner: u32, connections: u32) -> usize {
        (0..connections).filter(|&n| recent.find(&line(recent, owner, n).words).is_some()).count()
    }

    #[test]
    fn a_tenant_of_many_connections_takes_its_own_lines_and_nobody_elses() {
        for few_come_first in [false, true] {
            let mut recent = Recent::new(0x1234_5678_9abc_def1);
            recent.reserve();
            let put = |recent: &mut Recent, owner, connections| {
                for n in 0..connections {
                    let line = line(recent, owner, n);
                    recent.put(line, |_| false);
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
            recent.forget();
            assert_eq!((kept(&recent, 2, 200), recent.count(1)), (0, 0));
            put(&mut recent, 2, 200);
            assert_eq!(kept(&recent, 2, 200), 200, "those that do not count are nobody's");
        }
    }

    #[test]
    fn lines_of_idle_connections_are_anybodys() {
        let mut recent = Recent::new(0x1234_5678_9abc_def1);
        recent.reserve();
        let put = |recent: &mut Recent, owner, connections, is_idle: fn(&Line) -> bool| {
            for n in 0..connections {
                let line = line(recent, owner, n);
                recent.put(line, is_idle);
            }
        };
        put(&mut recent, 1, 100_000, |_| false);
        put(&mut recent, 2, 1024, |_| false);
        let had = (512..1024).filter(|&n| recent.find(&line(&recent, 2, n).words).is_some()).count();
        put(&mut recent, 1, 100_000, |old| old.owner == 2 && old.words[0] >> 32 < 512);
        let idle = (0..512).filter(|&n| recent.find(&line(&recent, 2, n).words).is_some()).count();
        assert!(had > 500, "more than four in one place are the tenant's own matter");
        assert_eq!((idle, kept(&recent, 2, 1024)), (0, had));
    }
}
