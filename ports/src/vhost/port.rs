//! The frames of a machine: its rings as a [`Port`].
//!
//! What a guest sends is copied from its memory into the pool, and given back to it at once; a
//! guest whose port is not read waits. What it is sent lies in its memory when [`Port::tx`]
//! returns, and it is told of a burst together. No system call is made for a frame; for a burst
//! there may be one, where the guest wants to be called.

use std::collections::hash_map::RandomState;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use datapath::frame::{Frame, MAX_FRAME, Pool};
use datapath::wire::FlowKey;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use super::ring::{Chain, Piece, Ring};
use crate::vnet::{self, HEADER_BYTES};
use crate::{BURST_BYTES, Features, Port, PortError, Refused, Unsent};

/// Bytes of the header with `num_buffers` (virtio 1.2, section 5.1.6).
pub const LONG_HEADER_BYTES: usize = 12;
/// Descriptors read at a turn at most, and for a frame to the guest, and one chain more: a guest
/// may cut a frame into pieces of a byte, or put chains in a ring that is not wanted, and others
/// wait for so long. Full turns of frames of Linux have 32 of 1 or 2 each, or 5 of 19.
const DESCRIPTORS: usize = 256;
/// Chains whose memory is fetched ahead: what a burst has.
const AHEAD: usize = 32;
/// The least that a frame has: an Ethernet header.
const LEAST_FRAME: usize = 14;

/// How a guest reads and writes frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// What it can be handed.
    pub features: Features,
    /// Whether a frame for it may lie in several chains.
    pub is_mergeable: bool,
    /// Bytes of the header before each frame.
    pub header_bytes: usize,
}

/// Two rings of a machine. One that does not run is missing.
#[derive(Debug, Default)]
pub struct Pair {
    /// Frames from the guest, and whether they are wanted: else they are taken and forgotten.
    pub from_guest: Option<(Ring, bool)>,
    /// Frames for it.
    pub to_guest: Option<Ring>,
}

/// The rings of a machine as a port. Which they are does not change: for others there is another
/// port.
#[derive(Debug)]
pub struct VhostPort {
    pairs: Vec<Pair>,
    form: Form,
    /// Readable when one of the rings was kicked, or by `again`.
    any: OwnedFd,
    /// Written to where a turn ended before the ring was empty.
    again: OwnedFd,
    /// Whose turn it is to be read.
    next: usize,
    /// Spreads flows over the rings.
    keyed: RandomState,
    /// Where pieces of chains lie while they are used.
    pieces: Vec<Piece>,
    chains: Vec<(Chain, usize)>,
}

impl VhostPort {
    /// A port of rings, which are kicked by these descriptors.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn new<'a>(
        pairs: Vec<Pair>,
        kicks: impl IntoIterator<Item = BorrowedFd<'a>>,
        form: Form,
    ) -> io::Result<VhostPort> {
        let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let again = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Edge-triggered: each kick counts, and none has to be read.
        let watch = |fd| epoll::add(&any, fd, EventData::new_u64(0), EventFlags::IN | EventFlags::ET);
        watch(again.as_fd())?;
        for kick in kicks {
            watch(kick)?;
        }
        let (pieces, chains) = (Vec::with_capacity(DESCRIPTORS), Vec::with_capacity(DESCRIPTORS));
        Ok(VhostPort { pairs, form, any, again, next: 0, keyed: RandomState::new(), pieces, chains })
    }

    /// Reads from one pair until nothing waits or enough was read.
    fn drain(&mut self, pair: usize, pool: &mut Pool, turn: &mut RxWork, out: &mut Vec<Frame>) {
        let Some((ring, is_wanted)) = &mut self.pairs[pair].from_guest else { return };
        ring.be_quiet();
        loop {
            while !turn.is_over() {
                ring.fetch_ahead(AHEAD as u16, false);
                self.pieces.clear();
                let Some(chain) = ring.take(false, &mut self.pieces) else { break };
                if *is_wanted {
                    match read(ring, chain, &self.pieces, &self.form, pool) {
                        Some(frame) => {
                            turn.bytes += pool.len(&frame);
                            turn.frames += 1;
                            out.push(frame);
                        }
                        None => {
                            ring.put_back(1);
                            turn.is_without_buffer = true;
                            break;
                        }
                    }
                }
                turn.descriptors += chain.descriptors;
                ring.give_back(chain, 0);
            }
            ring.publish();
            // Who comes again looks by himself; else the guest is to say when there is more.
            if turn.is_over() || turn.is_without_buffer || !ring.listen() {
                return;
            }
            ring.be_quiet();
        }
    }

    /// The ring for a frame: each flow has one.
    fn ring_for(&self, pool: &Pool, frame: &Frame) -> Option<usize> {
        let runs = |pair: &Pair| pair.to_guest.as_ref().is_some_and(Ring::is_whole);
        if self.pairs.len() == 1 {
            return runs(&self.pairs[0]).then_some(0);
        }
        let count = self.pairs.iter().filter(|pair| runs(pair)).count() as u64;
        let flow = FlowKey::of(pool.bytes(frame), &pool.meta(frame).layout);
        let chosen = flow.map_or(0, |flow| flow.hash_under(&self.keyed)).checked_rem(count)?;
        let mut running = self.pairs.iter().enumerate().filter(|(_, pair)| runs(pair));
        running.nth(chosen as usize).map(|(index, _)| index)
    }

    fn give(&mut self, pool: &Pool, frame: &Frame) -> Result<(), Refused> {
        let offload = &pool.meta(frame).offload;
        if !self.form.features.offload.takes(offload) {
            return Err(Refused::Invalid);
        }
        let index = self.ring_for(pool, frame).ok_or(Refused::Down)?;
        let Some(ring) = &mut self.pairs[index].to_guest else { return Err(Refused::Down) };
        ring.fetch_ahead(AHEAD as u16, true);
        let bytes = pool.bytes(frame);
        let mut header = [0; LONG_HEADER_BYTES];
        header[..HEADER_BYTES].copy_from_slice(&little_endian(vnet::encode(offload, bytes)));
        let header = &mut header[..self.form.header_bytes];
        self.pieces.clear();
        self.chains.clear();
        gather(ring, &self.form, header.len() + bytes.len(), &mut self.pieces, &mut self.chains)?;
        if let Some(buffers) = header.get_mut(HEADER_BYTES..LONG_HEADER_BYTES) {
            buffers.copy_from_slice(&(self.chains.len() as u16).to_le_bytes());
        }
        let (mut from, mut done) = (0, 0);
        for &(chain, end) in &self.chains {
            let before = done;
            for at in from..end {
                done += put(ring, self.pieces[at], self.pieces.get(at + 1).copied(), [header, bytes], done);
            }
            from = end;
            ring.give_back(chain, (done - before) as u32);
        }
        Ok(())
    }
}

/// Takes chains until `bytes` fit. Where they do not, none is taken.
fn gather(
    ring: &mut Ring,
    form: &Form,
    bytes: usize,
    pieces: &mut Vec<Piece>,
    chains: &mut Vec<(Chain, usize)>,
) -> Result<(), Refused> {
    let (mut room, mut descriptors) = (0, 0);
    let refused = loop {
        let Some(chain) = ring.take(true, pieces) else { break Refused::Full };
        chains.push((chain, pieces.len()));
        room += chain.bytes;
        descriptors += chain.descriptors;
        if !chain.is_sound {
            // It cannot be used, and is given back, so that it is not met again.
            break Refused::Invalid;
        }
        if room >= bytes as u64 {
            return Ok(());
        }
        if !form.is_mergeable {
            break Refused::Invalid;
        }
        // However many of them a chain has: the next frame looks at them again.
        if descriptors >= DESCRIPTORS {
            break Refused::Full;
        }
    };
    if chains.last().is_some_and(|(chain, _)| !chain.is_sound) {
        chains.drain(..).for_each(|(chain, _)| ring.give_back(chain, 0));
    } else {
        ring.put_back(chains.len() as u16);
    }
    Err(refused)
}

/// Writes what comes at `done` of header and frame to a piece, and says how much; `next` is the
/// piece behind it.
fn put(ring: &Ring, piece: Piece, next: Option<Piece>, [header, bytes]: [&[u8]; 2], done: usize) -> usize {
    let room = piece.bytes as usize;
    let header_done = done.min(header.len());
    let head = &header[header_done..];
    let head = &head[..head.len().min(room)];
    let body = &bytes[done - header_done..];
    let body = &body[..body.len().min(room - head.len())];
    // Where it is nowhere, the guest has said so: it gets less than it is told.
    let _ = ring.memory().write(piece.address, [head, body], next.map(|next| (next.address, next.bytes)));
    head.len() + body.len()
}

/// Copies a frame out of a chain. `None`: the pool has no buffer. What is no frame becomes one
/// without bytes, which the switch counts as malformed.
fn read(ring: &Ring, chain: Chain, pieces: &[Piece], form: &Form, pool: &mut Pool) -> Option<Frame> {
    let length = usize::try_from(chain.bytes).ok().and_then(|bytes| bytes.checked_sub(form.header_bytes));
    let length = length.filter(|length| chain.is_sound && (LEAST_FRAME..=MAX_FRAME).contains(length));
    let frame = pool.alloc(length.unwrap_or(LEAST_FRAME))?;
    let (bytes, meta) = pool.parts_mut(&frame);
    let mut header = [0; LONG_HEADER_BYTES];
    let header = &mut header[..form.header_bytes];
    let (mut done, mut is_there) = (0, length.is_some());
    for piece in pieces.iter().take_while(|_| length.is_some()) {
        let (bytes_here, header_done) = (piece.bytes as usize, done.min(header.len()));
        let head = bytes_here.min(header.len() - header_done);
        let body = done - header_done..done + bytes_here - head - header_done;
        let into = [&mut header[header_done..header_done + head], &mut bytes[body]];
        is_there &= ring.memory().read(piece.address, into);
        done += bytes_here;
    }
    if is_there {
        let mut words = [0; HEADER_BYTES];
        words.copy_from_slice(&header[..HEADER_BYTES]);
        meta.offload = vnet::decode(&little_endian(words));
    } else {
        pool.set_len(&frame, 0);
    }
    Some(frame)
}

/// Between the machine's byte order, which `vnet` has, and the guest's.
fn little_endian(mut header: [u8; HEADER_BYTES]) -> [u8; HEADER_BYTES] {
    if cfg!(target_endian = "big") {
        header[2..].chunks_exact_mut(2).for_each(<[u8]>::reverse);
    }
    header
}

/// What was done in a call of [`Port::rx`].
struct RxWork {
    burst: usize,
    frames: usize,
    bytes: usize,
    descriptors: usize,
    is_without_buffer: bool,
}

impl RxWork {
    fn is_full(&self) -> bool {
        self.frames >= self.burst || self.bytes >= BURST_BYTES
    }

    fn is_over(&self) -> bool {
        self.is_full() || self.descriptors >= DESCRIPTORS
    }
}

impl Port for VhostPort {
    fn features(&self) -> Features {
        self.form.features
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.any.as_fd())
    }

    fn rx(&mut self, pool: &mut Pool, burst: usize, out: &mut Vec<Frame>) -> Result<usize, PortError> {
        let mut turn = RxWork { burst, frames: 0, bytes: 0, descriptors: 0, is_without_buffer: false };
        for _ in 0..self.pairs.len() {
            self.drain(self.next, pool, &mut turn, out);
            self.next = (self.next + 1) % self.pairs.len();
            if turn.is_over() || turn.is_without_buffer {
                break;
            }
        }
        if turn.is_over() && !turn.is_full() {
            // There may be more, which nobody would look for.
            let _ = rustix::io::write(&self.again, &1u64.to_ne_bytes());
        }
        Ok(turn.frames)
    }

    fn write(&mut self, pool: &mut Pool, frame: &Frame) -> Result<(), Refused> {
        self.give(pool, frame)
    }

    fn writes_by_call(&self) -> bool {
        false
    }

    /// Lets the guest know of the burst, and calls it where it wants to be.
    fn flush(&mut self, _: &mut Pool) -> Result<bool, Unsent> {
        Ok(self.publish())
    }

    fn drops_before_us(&mut self) -> Result<u64, PortError> {
        Ok(0)
    }

    fn lent(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn may_wait(&self) -> bool {
        false
    }
}

impl VhostPort {
    /// Lets the guest know of the frames that it was sent. False: there were none.
    fn publish(&mut self) -> bool {
        let rings = self.pairs.iter_mut().filter_map(|pair| pair.to_guest.as_mut());
        rings.fold(false, |any, ring| ring.publish() | any)
    }
}
