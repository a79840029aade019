//! A hostile guest: rings that are valid but for some words that are not.
//!
//!     mutated_rings rings COUNT [SEED]            in this process, as fast as it goes
//!     mutated_rings guest SOCKET SECONDS [SEED]   as the front end of a switch's port
//!
//! A ring is written anew and whole, and then one to four of its words (a descriptor's address,
//! length, flags or next one, an index, an available head, an event, a frame's header) get values
//! that lie at bounds, elsewhere, in other rings, or anywhere. In this process each turn of a port
//! meets four of them, and is judged: no panic, no more frames than a turn may read, none longer
//! than a frame can be, none that is lost to the pool. `guest` writes on while the switch reads.
//! Prints what was done as JSON.

use std::env::args;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use datapath::frame::{MAX_FRAME, Pool, PoolLimits};
use datapath::offload::{Gso, Offload};
use ports::Port as _;
use ports::vhost::front_end::{BUFFER_BYTES, FrontEnd};
use ports::vhost::message::{Header, Request, RingAddresses};
use ports::vhost::{Offer, Session, VhostPort, feature};

const OFFER: Offer = Offer { pairs: 2, offload: true, must_be_sealed: true, mtu: 1500 };
const ENTRIES: u16 = 16;
const RINGS: usize = 4;
/// A turn reads so many frames at most.
const BURST: usize = 32;
/// With each set of features so many turns, before a new machine.
const TURNS: u64 = 10_000;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A generator of numbers (xorshift64*, Vigna 2016).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 32) % end
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// The memory of a machine, as who attacks from within it sees it.
struct Guest {
    machine: FrontEnd,
    features: u64,
    /// Where the rings began: what is available begins there.
    bases: [u16; RINGS],
}

impl Guest {
    fn new(features: u64) -> std::io::Result<Guest> {
        Ok(Guest { machine: FrontEnd::new(RINGS / 2, ENTRIES, features)?, features, bases: [0; RINGS] })
    }

    fn header_bytes(&self) -> usize {
        if self.features & (feature::VERSION_1 | feature::MRG_RXBUF) != 0 { 12 } else { 10 }
    }

    /// Where the buffer of a descriptor is.
    fn buffer(ring: usize, descriptor: u16) -> usize {
        RINGS * 0x1_0000 + (ring * usize::from(ENTRIES) + usize::from(descriptor)) * BUFFER_BYTES
    }

    fn descriptor(&self, ring: usize, number: u16, (length, flags, next): (u32, u16, u16)) {
        let address = self.machine.guest_address(Guest::buffer(ring, number));
        let words =
            [&address.to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        self.machine.put(self.machine.parts(ring)[0] + 16 * usize::from(number), &words);
    }

    fn half_word(&self, at: usize, value: u16) {
        self.machine.put(at, &value.to_le_bytes());
    }

    /// Writes a ring whole, as a driver would: some chains of one to three buffers.
    fn write(&self, ring: usize, random: &mut Random) {
        let is_writable = ring.is_multiple_of(2);
        let available = self.machine.parts(ring)[1];
        let (mut chains, mut used) = (0, 0);
        let wanted = 1 + random.below(6) as u16;
        while chains < wanted && used + 3 <= ENTRIES {
            let pieces = 1 + random.below(3) as u16;
            for piece in 0..pieces {
                let flags = if piece + 1 < pieces { NEXT } else { 0 } | if is_writable { WRITE } else { 0 };
                let length = random.of(&[60, 74, 200, 1514, BUFFER_BYTES as u32]);
                self.descriptor(ring, used + piece, (length, flags, used + piece + 1));
            }
            if !is_writable {
                self.machine.put(Guest::buffer(ring, used), &[0; 12][..self.header_bytes()]);
            }
            let slot = self.bases[ring].wrapping_add(chains) % ENTRIES;
            self.half_word(available + 4 + 2 * usize::from(slot), used);
            used += pieces;
            chains += 1;
        }
        self.half_word(available, 0);
        self.half_word(available + 2, self.bases[ring].wrapping_add(chains));
    }

    /// An address that means something else than a buffer.
    fn address(&self, random: &mut Random) -> u64 {
        let bytes = self.machine.region().bytes;
        let other = self.machine.parts(random.below(RINGS as u64) as usize);
        let here = |at: u64| self.machine.guest_address(0).wrapping_add(at);
        match random.below(8) {
            0 => random.of(&[0, 1, u64::MAX, u64::MAX - 63, 1 << 63]),
            1 => here(bytes - random.below(80)),
            2 => here(0).wrapping_sub(random.below(80)),
            3 | 4 => here(random.of(&other) as u64 + random.below(64)),
            5 => random.next(),
            _ => here(random.below(bytes)),
        }
    }

    fn any_half_word(random: &mut Random) -> u16 {
        match random.below(4) {
            0 => random.of(&[0, 1, ENTRIES - 1, ENTRIES, ENTRIES + 1, 0x7fff, 0x8000, 0xffff]),
            1 => random.next() as u16,
            _ => random.below(2 * u64::from(ENTRIES)) as u16,
        }
    }

    /// Changes one word of a ring.
    fn mutate(&self, ring: usize, random: &mut Random) {
        let [descriptors, available, used] = self.machine.parts(ring);
        let number = random.below(ENTRIES.into());
        let descriptor = descriptors + 16 * number as usize;
        match random.below(12) {
            0 | 1 => self.machine.put(descriptor, &self.address(random).to_le_bytes()),
            2 | 3 => {
                let lengths = [0, 1, 9, 10, 11, 12, 13, 0xffff, 0x1_0000, 0x1_0001, u32::MAX, 1 << 31, 16, 4096];
                let length = if random.below(4) == 0 { random.next() as u32 } else { random.of(&lengths) };
                self.machine.put(descriptor + 8, &length.to_le_bytes());
            }
            4 => {
                let flags = [0, NEXT, WRITE, NEXT | WRITE, INDIRECT, INDIRECT | NEXT, INDIRECT | WRITE, 7];
                let flags = if random.below(8) == 0 { random.next() as u16 } else { random.of(&flags) };
                self.half_word(descriptor + 12, flags);
            }
            5 => self.half_word(descriptor + 14, Guest::any_half_word(random)),
            6 => {
                let by = random.of(&[0, ENTRIES, ENTRIES + 1, 0x7fff, 0x8000, 0xffff, 7, 2]);
                self.half_word(available + 2, self.bases[ring].wrapping_add(by));
            }
            7 => self.half_word(available + 4 + 2 * number as usize, Guest::any_half_word(random)),
            8 => self.half_word(available + random.of(&[0, 4 + 2 * ENTRIES as usize]), Guest::any_half_word(random)),
            // The part that is ours to write.
            9 => self.half_word(used + 2 * random.below(3 + 4 * u64::from(ENTRIES)) as usize, random.next() as u16),
            // A table in a buffer, and a descriptor that refers to it.
            10 => {
                let buffer = Guest::buffer(ring, number as u16);
                for entry in 0..3 {
                    let address = self.address(random).to_le_bytes();
                    let rest = [random.below(3000), random.below(8) << 32, random.below(5) << 48];
                    let rest = rest.into_iter().fold(0, |all, one| all | one).to_le_bytes();
                    self.machine.put(buffer + 16 * entry, &[address, rest].concat());
                }
                self.descriptor(ring, number as u16, (random.of(&[16, 32, 48, 47, 0, 16 * 2000]), INDIRECT, 0));
            }
            _ => {
                let mut header = [0; 12];
                header[..8].copy_from_slice(&random.next().to_le_bytes());
                header[8..].copy_from_slice(&random.next().to_le_bytes()[..4]);
                header[1] = random.of(&[0, 1, 3, 4, 5, 0x80, 0x81, 0xff]);
                self.machine.put(Guest::buffer(ring, number as u16), &header[..self.header_bytes()]);
            }
        }
    }

    /// Writes the ring and changes one to four words.
    fn play(&self, ring: usize, random: &mut Random) {
        self.write(ring, random);
        for _ in 0..=random.below(4) {
            self.mutate(ring, random);
        }
    }

    /// What makes the switch forget a ring and begin it anew, from `base` on.
    fn again(&mut self, ring: usize) -> Vec<Request> {
        let number = ring as u32;
        let user = self.machine.region().user;
        let [descriptors, available, used] = self.machine.parts(ring).map(|at| user + at as u64);
        let base = self.machine.used(ring);
        self.bases[ring] = base;
        vec![
            Request::SetVringBase(number, base.into()),
            Request::SetVringAddr(number, RingAddresses { descriptors, available, used }),
        ]
    }
}

/// What was met.
#[derive(Default)]
struct Counts {
    rings: u64,
    turns: u64,
    read: u64,
    written: u64,
    broken: u64,
    sessions: u64,
}

impl Counts {
    fn print(&self) {
        let Counts { rings, turns, read, written, broken, sessions } = self;
        println!(
            "{{\"mutated_rings\":{rings},\"turns\":{turns},\"frames_read\":{read},\"frames_written\":{written},\
             \"broken_rings\":{broken},\"sessions\":{sessions}}}"
        );
    }
}

/// A set of features that a driver may choose.
fn features(random: &mut Random) -> u64 {
    let optional = [feature::VERSION_1, feature::MRG_RXBUF, feature::EVENT_IDX, feature::OFFLOADS];
    let chosen = optional.into_iter().filter(|_| random.below(4) != 0);
    chosen.fold(feature::PROTOCOL_FEATURES, |all, one| all | one)
}

/// A turn of a worker: reads, and writes frames with and without segments.
fn turn(port: &mut VhostPort, pool: &mut Pool, counts: &mut Counts) {
    let mut frames = Vec::with_capacity(BURST);
    let read = port.rx(pool, BURST, &mut frames).expect("a port of a machine does not end");
    assert!(read == frames.len() && read <= BURST);
    counts.read += read as u64;
    for frame in frames {
        assert!(pool.len(&frame) <= MAX_FRAME);
        pool.free(frame);
    }
    let segments = Offload { gso: Gso::Tcp4, gso_size: 1000, needs_csum: true, ..Offload::default() };
    for (bytes, offload) in [(60, Offload::default()), (5000, Offload::default()), (20_000, segments)] {
        let frame = pool.alloc(bytes).expect("the pool is empty");
        pool.meta_mut(&frame).offload = offload;
        counts.written += u64::from(port.tx(pool, frame).is_ok());
    }
    let _ = port.flush(pool);
    assert_eq!(pool.in_use(), 0, "frames are lost");
    counts.turns += 1;
}

/// So many rings in this process.
fn rings(count: u64, random: &mut Random) -> Counts {
    let header = Header { request: 0, need_reply: false, size: 0 };
    let (mut counts, mut pool) = (Counts::default(), Pool::new(PoolLimits::default()));
    let begun = Instant::now();
    while counts.rings < count {
        let mut guest = Guest::new(features(random)).expect("memory for a machine");
        let mut session = Session::new(OFFER).expect("descriptors for a session");
        for (request, descriptors) in guest.machine.opening(0).expect("descriptors for a machine") {
            session.handle(header, request, descriptors).expect("what a front end says");
        }
        counts.sessions += 1;
        let mut port = session.port().expect("its rings lie in its memory");
        for _ in 0..TURNS.min((count - counts.rings).div_ceil(RINGS as u64)) {
            for ring in 0..RINGS {
                guest.play(ring, random);
            }
            counts.rings += RINGS as u64;
            turn(port.as_mut().expect("they run"), &mut pool, &mut counts);
            counts.broken += session.broken().len() as u64;
            drop(port);
            for request in (0..RINGS).flat_map(|ring| guest.again(ring)) {
                session.handle(header, request, Vec::<std::os::fd::OwnedFd>::new()).expect("what a front end says");
            }
            port = session.port().expect("its rings lie in its memory");
        }
        if counts.sessions.is_multiple_of(50) {
            eprintln!("{} of {count} rings, {:.0} s", counts.rings, begun.elapsed().as_secs_f64());
        }
    }
    counts
}

/// The front end of a port, for so long.
fn guest(socket: &str, lasting: Duration, random: &mut Random) -> std::io::Result<Counts> {
    let mut counts = Counts::default();
    let begun = Instant::now();
    while begun.elapsed() < lasting {
        // The switch ended the session, or has not seen that the last one ended.
        let Ok(stream) = UnixStream::connect(socket) else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let mut guest = Guest::new(features(random))?;
        if guest.machine.speak(&stream).is_err() {
            continue;
        }
        counts.sessions += 1;
        for _ in 0..=random.below(200) {
            for ring in 0..RINGS {
                guest.play(ring, random);
                guest.machine.kick_anyway(ring);
                counts.rings += 1;
            }
            std::thread::sleep(Duration::from_micros(random.below(300)));
            counts.turns += 1;
            let again = (0..RINGS).flat_map(|ring| guest.again(ring));
            let messages: Vec<u8> = again.flat_map(|request| request.message(false).expect("it is short")).collect();
            if (&stream).write_all(&messages).is_err() || begun.elapsed() >= lasting {
                break;
            }
        }
    }
    Ok(counts)
}

fn main() -> ExitCode {
    let words: Vec<String> = args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let seed = |word: Option<&&str>| word.map_or(Some(1), |word| word.parse::<u64>().ok()).filter(|seed| *seed > 0);
    let done = match words[..] {
        ["rings", count, ref rest @ ..] if rest.len() < 2 => match (count.parse(), seed(rest.first())) {
            (Ok(count), Some(seed)) => Some(Ok(rings(count, &mut Random(seed)))),
            _ => None,
        },
        ["guest", socket, seconds, ref rest @ ..] if rest.len() < 2 => match (seconds.parse(), seed(rest.first())) {
            (Ok(seconds), Some(seed)) => Some(guest(socket, Duration::from_secs(seconds), &mut Random(seed))),
            _ => None,
        },
        _ => None,
    };
    match done {
        Some(Ok(counts)) => {
            counts.print();
            ExitCode::SUCCESS
        }
        Some(Err(error)) => {
            eprintln!("mutated_rings: {error}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("usage: mutated_rings rings COUNT [SEED]\n       mutated_rings guest SOCKET SECONDS [SEED]");
            ExitCode::from(2)
        }
    }
}
