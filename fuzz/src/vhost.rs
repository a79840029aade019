//! What a front end says, and what a guest writes into its rings: no panic, no frame that is lost to the pool, nothing that the port reads
//! longer than a frame, and no more work at a turn than is allowed.

use datapath::frame::{MAX_FRAME, Pool, PoolLimits};
use datapath::offload::{Gso, Offload};
use ports::Port as _;
use ports::vhost::front_end::FrontEnd;
use ports::vhost::message::{Header, MOST_PAYLOAD, Region, Request};
use ports::vhost::{Offer, Session, VhostPort, feature};
use std::cell::RefCell;
use std::os::fd::{AsFd as _, OwnedFd};

const OFFER: Offer = Offer { pairs: 2, offload: true, must_be_sealed: true, mtu: 1500 };
const ENTRIES: u16 = 16;
/// Bytes of a ring's parts that are written anew for each input.
const PARTS: [usize; 3] = [16 * ENTRIES as usize, 6 + 2 * ENTRIES as usize, 6 + 8 * ENTRIES as usize];
/// A turn reads so many frames at most.
const BURST: usize = 32;

thread_local! {
    /// A machine for each set of features: its memory is made once.
    static MACHINES: RefCell<Vec<(u64, FrontEnd)>> = const { RefCell::new(Vec::new()) };
    static POOL: RefCell<Pool> = RefCell::new(Pool::new(PoolLimits::default()));
}

/// The first byte says which of the two `data` is, and the machine's features.
pub fn run(data: &[u8]) {
    let Some((&kind, data)) = data.split_first() else { return };
    let optional = [feature::VERSION_1, feature::MRG_RXBUF, feature::EVENT_IDX, feature::OFFLOADS];
    let chosen = optional.iter().enumerate().filter(|(bit, _)| kind >> bit & 1 != 0);
    let features = chosen.fold(feature::PROTOCOL_FEATURES, |all, (_, one)| all | one);
    MACHINES.with_borrow_mut(|machines| {
        let at = machines.iter().position(|(of, _)| *of == features).unwrap_or_else(|| {
            machines.push((features, FrontEnd::new(2, ENTRIES, features).expect("memory for a machine")));
            machines.len() - 1
        });
        let machine = &mut machines[at].1;
        POOL.with_borrow_mut(|pool| {
            if kind & 0x80 == 0 {
                rings(machine, pool, data)
            } else {
                messages(machine, pool, data)
            }
            assert_eq!(pool.in_use(), 0);
        });
    });
}

/// A message, each: its number, which descriptors come with it, the length of its payload, and that.
fn messages(machine: &FrontEnd, pool: &mut Pool, mut data: &[u8]) {
    let mut session = Session::new(OFFER).expect("descriptors for a session");
    while let [number, beside, length, rest @ ..] = data {
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        data = rest;
        let bytes = [u32::from(*number), 1 | u32::from(beside & 0x80) >> 4, payload.len() as u32];
        let bytes: Vec<u8> = bytes.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let header = Header::parse(bytes[..].try_into().expect("twelve bytes")).expect("a header of a front end");
        assert!(header.size <= MOST_PAYLOAD);
        let Ok(mut request) = Request::parse(header.request, payload) else { return };
        // A table that can be had, where it is meant to be one.
        if let Request::SetMemTable(regions) = &mut request {
            regions.truncate(usize::from(beside & 3));
            regions.iter_mut().for_each(|region| *region = bent(machine.region(), *region));
        }
        if let Some(again) = request.message(false) {
            assert_eq!(Request::parse(header.request, &again[12..]), Ok(request.clone()));
        }
        let descriptors = (0..beside & 3).filter_map(|_| descriptor(machine, beside >> 2)).collect();
        let Ok(done) = session.handle(header, request, descriptors) else { return };
        assert!(done.answer.is_none_or(|answer| (20..=28).contains(&answer.len())));
        let Ok(port) = session.port() else { return };
        if let Some(port) = port {
            turn(port, pool);
        }
    }
}

/// The machine's own region, but for what the input has in its low bits: where it lies is mostly right.
fn bent(own: Region, by: Region) -> Region {
    Region {
        guest: own.guest ^ (by.guest & 0xffff_0000_0000_0fff),
        bytes: own.bytes ^ (by.bytes & 0xff00_0000_0000_0fff),
        user: own.user ^ (by.user & 0xff00_0000_0000_0fff),
        offset: by.offset & 0xff00_0000_0000_0fff,
    }
}

fn descriptor(machine: &FrontEnd, kind: u8) -> Option<OwnedFd> {
    match kind & 3 {
        0 | 1 => machine.file().as_fd().try_clone_to_owned().ok(),
        2 => rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok(),
        _ => std::fs::File::open("/dev/null").ok().map(OwnedFd::from),
    }
}

/// Rings that run, and then pieces written over them: ring and part, place, how many bytes, and these; with turns between them.
fn rings(machine: &mut FrontEnd, pool: &mut Pool, mut data: &[u8]) {
    for ring in 0..4 {
        for (at, bytes) in machine.parts(ring).into_iter().zip(PARTS) {
            machine.put(at, &vec![0; bytes]);
        }
    }
    let mut session = Session::new(OFFER).expect("descriptors for a session");
    for (request, descriptors) in machine.opening(0).expect("descriptors for a machine") {
        let header = Header { request: 0, need_reply: false, size: 0 };
        session.handle(header, request, descriptors).expect("what a front end says");
    }
    let mut port = session.port().expect("its rings lie in its memory").expect("they run");
    while let [place, at, length, rest @ ..] = data {
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(length & 0x3f)));
        data = rest;
        let (ring, part) = (usize::from(place >> 2 & 3), usize::from(place & 3) % 3);
        let at = usize::from(*at).min(PARTS[part] - 1);
        let bytes = &bytes[..bytes.len().min(PARTS[part] - at)];
        machine.put(machine.parts(ring)[part] + at, bytes);
        if length & 0x40 != 0 {
            port = turn(port, pool);
        }
    }
    turn(port, pool);
    session.broken();
}

/// A turn of a worker: reads, and writes frames with and without segments.
fn turn(mut port: VhostPort, pool: &mut Pool) -> VhostPort {
    let mut frames = Vec::new();
    let read = port.rx(pool, BURST, &mut frames).expect("a port of a machine does not end");
    assert!(read == frames.len() && read <= BURST);
    for frame in frames {
        assert!(pool.len(&frame) <= MAX_FRAME);
        pool.free(frame);
    }
    let segments = Offload { gso: Gso::Tcp4, gso_size: 1000, needs_csum: true, ..Offload::default() };
    for (bytes, offload) in [(60, Offload::default()), (5000, Offload::default()), (20_000, segments)] {
        let frame = pool.alloc(bytes).expect("the pool is empty");
        pool.meta_mut(&frame).offload = offload;
        let _ = port.tx(pool, frame);
    }
    let _ = port.flush(pool);
    port
}
