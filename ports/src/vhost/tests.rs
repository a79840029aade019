use super::front_end::{BUFFER_BYTES, FrontEnd};
use super::message::{HEADER_BYTES, Header, Region, Request};
use super::*;
use crate::{Port, Refused};
use datapath::frame::{Frame, Pool, PoolLimits};
use datapath::offload::{Gso, GsoEcn, Offload};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::{MemfdFlags, SealFlags};
use std::io::{IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

const PLAIN: u64 = feature::VERSION_1 | feature::PROTOCOL_FEATURES;
/// What Linux takes.
const LINUX: u64 = PLAIN | feature::MRG_RXBUF | feature::EVENT_IDX | feature::INDIRECT_DESC | feature::OFFLOADS;
const OFFER: Offer = Offer { pairs: 1, offload: true, must_be_sealed: true, mtu: 1500 };

/// A session, its front end, and its port.
struct Bench {
    front_end: FrontEnd,
    session: Session,
    port: Option<VhostPort>,
    pool: Pool,
    /// As a worker watches the port.
    epoll: OwnedFd,
}

fn say(session: &mut Session, request: Request, descriptors: Vec<OwnedFd>) -> Result<Done, Fault> {
    let message = request.message(true).unwrap();
    let header = Header::parse(message[..HEADER_BYTES].try_into().unwrap()).unwrap();
    session.handle(header, Request::parse(header.request, &message[HEADER_BYTES..]).unwrap(), descriptors)
}

fn word(done: Done) -> u64 {
    u64::from_ne_bytes(done.answer.unwrap()[HEADER_BYTES..].try_into().unwrap())
}

impl Bench {
    fn new(features: u64, entries: u16) -> Bench {
        Bench::of(OFFER, 1, features, entries)
    }

    fn of(offer: Offer, pairs: usize, features: u64, entries: u16) -> Bench {
        let front_end = FrontEnd::new(pairs, entries, features).unwrap();
        let mut session = Session::new(offer).unwrap();
        for (request, descriptors) in front_end.opening(0).unwrap() {
            say(&mut session, request, descriptors).unwrap();
        }
        // Each is called once when it begins.
        (0..2 * pairs).for_each(|ring| assert!(front_end.calls(ring) > 0));
        let port = session.port().unwrap();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let fd = port.as_ref().unwrap().fd().unwrap();
        epoll::add(&epoll, fd, EventData::new_u64(0), EventFlags::IN | EventFlags::ET).unwrap();
        Bench { front_end, session, port, pool: Pool::new(PoolLimits::default()), epoll }
    }

    fn port(&mut self) -> &mut VhostPort {
        self.port.as_mut().unwrap()
    }

    fn read(&mut self, burst: usize) -> Vec<(Vec<u8>, Offload)> {
        let mut frames = Vec::new();
        self.port.as_mut().unwrap().rx(&mut self.pool, burst, &mut frames).unwrap();
        let seen = frames.iter().map(|f| (self.pool.bytes(f).to_vec(), self.pool.meta(f).offload)).collect();
        frames.into_iter().for_each(|frame| self.pool.free(frame));
        seen
    }

    fn write(&mut self, bytes: &[u8], offload: Offload) -> Result<(), Refused> {
        let frame: Frame = self.pool.alloc_from(bytes).unwrap();
        self.pool.meta_mut(&frame).offload = offload;
        let port = self.port.as_mut().unwrap();
        let result = port.write(&mut self.pool, &frame);
        assert_eq!(self.pool.bytes(&frame), bytes, "as it was");
        self.pool.free(frame);
        result
    }

    fn flush(&mut self) {
        let port = self.port.as_mut().unwrap();
        assert_eq!(port.flush(&mut self.pool), Ok(true));
        assert_eq!(port.flush(&mut self.pool), Ok(false), "once");
    }

    /// Whether it has called since the last time this was asked.
    fn is_ready(&self) -> bool {
        let mut events = [const { MaybeUninit::uninit() }; 4];
        let (events, _) = epoll::wait(&self.epoll, &mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        !events.is_empty()
    }
}

fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

const TSO: Offload = Offload {
    gso: Gso::Tcp4,
    gso_ecn: GsoEcn::None,
    gso_size: 1448,
    needs_csum: true,
    csum_valid: false,
    csum_start: 34,
    csum_offset: 16,
};

#[test]
fn frames_from_the_guest_come_whole_in_order_and_with_their_offload() {
    for features in [PLAIN, LINUX] {
        let mut bench = Bench::new(features, 64);
        let header = crate::vnet::encode(&TSO, &pattern(60_000, 7));
        assert!(bench.front_end.send(0, &[], &pattern(60, 1)));
        assert!(bench.front_end.send(0, &header, &pattern(60_000, 7)));
        assert!(bench.front_end.send(0, &[], &pattern(1514, 2)));
        assert!(bench.front_end.kick(1) && bench.is_ready());
        let got = bench.read(32);
        assert_eq!(got.len(), 3);
        assert_eq!(got[0], (pattern(60, 1), Offload::default()));
        assert_eq!(got[1], (pattern(60_000, 7), TSO));
        assert_eq!(got[2], (pattern(1514, 2), Offload::default()));
        assert_eq!(bench.front_end.reclaim(0), 3);
        assert!(bench.read(32).is_empty());
        assert_eq!(bench.pool.in_use(), 0);
    }
}

#[test]
fn a_guest_is_told_once_for_a_burst_and_kicks_only_who_listens() {
    let mut bench = Bench::new(LINUX, 64);
    assert!(bench.read(32).is_empty(), "from here on the port listens");
    bench.front_end.listen(1);
    for seed in 0..8 {
        assert!(bench.front_end.send(0, &[], &pattern(60, seed)));
    }
    assert!(bench.front_end.kick(1));
    assert_eq!(bench.read(4).len(), 4);
    assert_eq!(bench.front_end.calls(1), 1, "one for four frames");
    // It has more and comes again: a kick would be for nothing.
    assert!(bench.front_end.send(0, &[], &pattern(60, 9)));
    assert!(!bench.front_end.kick(1));
    assert_eq!(bench.read(32).len(), 5);
    assert_eq!(bench.front_end.reclaim(0), 9);
    assert!(bench.front_end.send(0, &[], &pattern(60, 9)));
    bench.is_ready();
    assert!(bench.front_end.kick(1), "it sleeps, and is to be woken");
    assert!(bench.is_ready() && !bench.is_ready());
}

#[test]
fn a_port_that_is_not_read_makes_the_guest_wait_and_loses_nothing() {
    let mut bench = Bench::new(LINUX, 16);
    let mut sent = 0u8;
    while bench.front_end.send(0, &[], &pattern(100, sent)) {
        sent += 1;
    }
    assert_eq!(sent, 16, "the ring is full, and the guest knows");
    let mut got = Vec::new();
    while got.len() < 16 {
        got.extend(bench.read(3));
    }
    for (seed, (bytes, _)) in got.iter().enumerate() {
        assert_eq!(*bytes, pattern(100, seed as u8));
    }
    assert_eq!(bench.front_end.reclaim(0), 16);
    assert!(bench.front_end.send(0, &[], &pattern(100, 0)));
}

#[test]
fn frames_for_the_guest_lie_in_as_many_buffers_as_they_need() {
    let mut bench = Bench::new(LINUX, 128);
    assert_eq!(bench.front_end.offer(0, 128, 1536), 128);
    bench.front_end.listen(0);
    bench.write(&pattern(60_000, 3), TSO).unwrap();
    bench.write(&pattern(60, 4), Offload::default()).unwrap();
    assert!(bench.front_end.receive(0).is_none(), "not before the burst is done");
    bench.flush();
    assert_eq!(bench.front_end.calls(0), 1, "one for the burst");
    let (header, frame) = bench.front_end.receive(0).unwrap();
    assert_eq!(frame, pattern(60_000, 3));
    assert_eq!(u16::from_le_bytes([header[10], header[11]]), 40, "60 012 bytes in buffers of 1536");
    assert_eq!((header[0], header[1], u16::from_le_bytes([header[4], header[5]])), (1, 1, 1448));
    let (header, frame) = bench.front_end.receive(0).unwrap();
    assert_eq!((frame, header[10]), (pattern(60, 4), 1));
    assert!(bench.front_end.receive(0).is_none());
}

#[test]
fn without_room_it_is_full_and_with_room_again_it_takes_the_next() {
    let mut bench = Bench::new(LINUX, 16);
    assert_eq!(bench.write(&pattern(60, 0), Offload::default()), Err(Refused::Full));
    bench.front_end.offer(0, 2, 1536);
    assert_eq!(bench.write(&pattern(9000, 1), Offload::default()), Err(Refused::Full));
    bench.write(&pattern(1500, 2), Offload::default()).unwrap();
    bench.write(&pattern(1500, 3), Offload::default()).unwrap();
    bench.flush();
    assert_eq!(bench.front_end.receive(0).unwrap().1, pattern(1500, 2));
    assert_eq!(bench.front_end.receive(0).unwrap().1, pattern(1500, 3));
    assert_eq!(bench.pool.in_use(), 0);
}

#[test]
fn a_guest_without_offloads_is_handed_none() {
    let mut bench = Bench::new(PLAIN, 64);
    assert_eq!(bench.port().features().offload, datapath::offload::OffloadSupport::NONE);
    bench.front_end.offer(0, 4, 1526);
    assert_eq!(bench.write(&pattern(1514, 0), TSO), Err(Refused::Invalid));
    assert_eq!(bench.write(&pattern(1600, 0), Offload::default()), Err(Refused::Invalid), "one buffer, and too short");
    bench.write(&pattern(1514, 1), Offload::default()).unwrap();
    bench.flush();
    assert_eq!(bench.front_end.receive(0).unwrap().1, pattern(1514, 1));
}

#[test]
fn a_guest_of_before_virtio_1_has_a_shorter_header() {
    let mut bench = Bench::new(feature::PROTOCOL_FEATURES, 16);
    assert_eq!(bench.front_end.header_bytes(), 10);
    bench.front_end.send(0, &[], &pattern(60, 5));
    assert_eq!(bench.read(8), [(pattern(60, 5), Offload::default())]);
    bench.front_end.offer(0, 1, 1526);
    bench.write(&pattern(60, 6), Offload::default()).unwrap();
    bench.flush();
    assert_eq!(bench.front_end.receive(0).unwrap().1, pattern(60, 6));
}

#[test]
fn several_pairs_are_read_in_turn_and_a_flow_keeps_its_ring() {
    let mut bench = Bench::of(Offer { pairs: 4, ..OFFER }, 4, LINUX | feature::MQ, 16);
    for pair in 0..4 {
        for seed in 0..3 {
            assert!(bench.front_end.send(pair, &[], &pattern(60, 10 * pair as u8 + seed)));
        }
    }
    let mut got = Vec::new();
    for _ in 0..6 {
        got.extend(bench.read(2).into_iter().map(|(bytes, _)| bytes[0]));
    }
    assert_eq!(got[..8], [0, 1, 10, 11, 20, 21, 30, 31], "two of each first");
    got.sort_unstable();
    assert_eq!(got, [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32]);
    assert_eq!(bench.session.pairs(), 4);
}

#[test]
fn rings_stop_and_go_on_where_they_were() {
    let mut bench = Bench::new(LINUX, 16);
    for seed in 0..5 {
        bench.front_end.send(0, &[], &pattern(60, seed));
    }
    assert_eq!(bench.read(3).len(), 3);
    bench.port = None;
    let done = say(&mut bench.session, Request::GetVringBase(1), vec![]).unwrap();
    assert_eq!(done.answer.unwrap()[HEADER_BYTES + 4..], 3u32.to_ne_bytes());
    say(&mut bench.session, Request::GetVringBase(0), vec![]).unwrap();
    assert!(bench.session.port().unwrap().is_none(), "both are stopped");
    for (request, descriptors) in bench.front_end.opening(3).unwrap() {
        say(&mut bench.session, request, descriptors).unwrap();
    }
    bench.port = bench.session.port().unwrap();
    let rest: Vec<u8> = bench.read(32).iter().map(|(bytes, _)| bytes[0]).collect();
    assert_eq!(rest, [3, 4]);
}

#[test]
fn a_ring_that_is_disabled_is_emptied_and_brings_nothing() {
    let mut bench = Bench::new(LINUX, 16);
    bench.port = None;
    say(&mut bench.session, Request::SetVringEnable(1, false), vec![]).unwrap();
    bench.port = bench.session.port().unwrap();
    bench.front_end.send(0, &[], &pattern(60, 0));
    assert!(bench.read(8).is_empty());
    assert_eq!(bench.front_end.reclaim(0), 1);
}

#[test]
fn what_waits_in_a_ring_stays_until_it_is_enabled_for_the_first_time() {
    let mut bench = Bench::new(LINUX, 16);
    // A session that begins where rings are not empty: QEMU enables them last.
    bench.port = None;
    bench.session = Session::new(OFFER).unwrap();
    (0..8).for_each(|seed| assert!(bench.front_end.send(0, &[], &pattern(60, seed))));
    for (request, descriptors) in bench.front_end.opening(0).unwrap() {
        if !matches!(request, Request::SetVringEnable(..)) {
            say(&mut bench.session, request, descriptors).unwrap();
            bench.port = bench.session.port().unwrap();
            let got = if bench.port.is_some() { bench.read(32) } else { Vec::new() };
            assert_eq!((got.len(), bench.front_end.reclaim(0)), (0, 0));
            bench.port = None;
        }
    }
    // Also where another process goes on with it.
    let mut next = Session::new(OFFER).unwrap();
    for (message, descriptors) in bench.session.retold().unwrap() {
        next.learn(&message, descriptors).unwrap();
    }
    bench.session = next;
    assert!(bench.session.port().unwrap().is_none());
    say(&mut bench.session, Request::SetVringEnable(1, true), vec![]).unwrap();
    bench.port = bench.session.port().unwrap();
    assert_eq!(bench.read(32).len(), 8);
    // From here on a ring that is disabled is emptied, by the next process too.
    bench.port = None;
    say(&mut bench.session, Request::SetVringEnable(1, false), vec![]).unwrap();
    let mut next = Session::new(OFFER).unwrap();
    for (message, descriptors) in bench.session.retold().unwrap() {
        next.learn(&message, descriptors).unwrap();
    }
    bench.session = next;
    bench.port = bench.session.port().unwrap();
    bench.front_end.reclaim(0);
    bench.front_end.send(0, &[], &pattern(60, 0));
    assert!(bench.read(8).is_empty());
    assert_eq!(bench.front_end.reclaim(0), 1);
}

#[test]
fn a_guest_whose_call_was_lost_with_the_process_is_called_by_the_next() {
    // The process was killed between the index, 5, and the call that was wanted behind 4; and, as
    // the guest has seen 5 meanwhile, or has not, when the first burst is done.
    for (order, [kick, call]) in [("as QEMU", [1, 2]), ("as others", [2, 1])] {
        let mut front_end = FrontEnd::new(1, 16, LINUX).unwrap();
        let [_, available, used] = front_end.parts(0);
        front_end.put(used + 2, &5u16.to_le_bytes());
        front_end.put(available + 2, &5u16.to_le_bytes());
        front_end.put(available + 4 + 2 * 16, &4u16.to_le_bytes());
        let mut session = Session::new(OFFER).unwrap();
        let mut opening = front_end.opening(5).unwrap();
        opening.sort_by_key(|(request, _)| match request {
            Request::SetVringKick(..) => kick,
            Request::SetVringCall(..) => call,
            _ => 0,
        });
        for (request, descriptors) in opening {
            say(&mut session, request, descriptors).unwrap();
        }
        assert!(front_end.calls(0) >= 1, "{order}: at once, though nothing may ever be used again");
        let port = session.port().unwrap();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        // What the driver knows.
        front_end.go_on(0, 5);
        let mut bench = Bench { front_end, session, port, pool: Pool::new(PoolLimits::default()), epoll };
        bench.front_end.offer(0, 4, 1536);
        for burst in 0..2 {
            bench.write(&pattern(60, burst), Offload::default()).unwrap();
            bench.flush();
            assert_eq!(bench.front_end.calls(0), 1 - u64::from(burst), "{order}: for the first burst, wanted or not");
        }
    }
}

#[test]
fn a_call_descriptor_is_changed_while_the_port_runs() {
    let mut bench = Bench::new(LINUX, 16);
    say(&mut bench.session, Request::SetVringCall(1, false), vec![]).unwrap();
    bench.front_end.listen(1);
    bench.front_end.send(0, &[], &pattern(60, 0));
    assert_eq!(bench.read(8).len(), 1);
    assert_eq!(bench.front_end.calls(1), 0, "it was taken away");
}

#[test]
fn what_is_offered_is_answered_and_what_was_not_is_refused() {
    let mut session = Session::new(Offer { offload: false, ..OFFER }).unwrap();
    let offered = word(say(&mut session, Request::GetFeatures, vec![]).unwrap());
    assert_eq!(offered & feature::OFFLOADS, 0);
    assert_ne!(offered & feature::MRG_RXBUF, 0);
    assert_eq!(word(say(&mut session, Request::GetQueueNum, vec![]).unwrap()), 1);
    assert!(matches!(say(&mut session, Request::SetFeatures(1 << 34), vec![]), Err(Fault::Features(_))));
    let mut session = Session::new(OFFER).unwrap();
    assert!(matches!(say(&mut session, Request::SetVringNum(2, 256), vec![]), Err(Fault::Ring(2))));
    assert!(matches!(say(&mut session, Request::SetVringNum(0, 100), vec![]), Err(Fault::Entries(100))));
    assert!(matches!(say(&mut session, Request::SetVringBase(0, 1 << 16), vec![]), Err(Fault::Base(_))));
    assert!(matches!(say(&mut session, Request::NetSetMtu(9000), vec![]), Err(Fault::Mtu(9000, 1500))));
    assert!(matches!(say(&mut session, Request::SetVringKick(0, true), vec![]), Err(Fault::Descriptor(_))));
    assert!(matches!(say(&mut session, Request::SetVringKick(0, false), vec![]), Err(Fault::Descriptor(_))));
    let file = std::fs::File::open("/dev/null").unwrap().into();
    assert!(matches!(say(&mut session, Request::SetVringCall(0, true), vec![file]), Err(Fault::Descriptor(_))));
    say(&mut session, Request::SetProtocolFeatures(protocol::REPLY_ACK), vec![]).unwrap();
    assert_eq!(word(say(&mut session, Request::SetOwner, vec![]).unwrap()), 0);
}

#[test]
fn features_that_a_machine_has_taken_are_offered_to_it_again_and_not_used() {
    let taken = LINUX | feature::MQ;
    let before = Bench::of(Offer { pairs: 4, ..OFFER }, 1, taken, 16);
    assert_eq!(before.session.taken(), taken);
    // QEMU gives up for ever where one is not offered any more.
    let offer = Offer { offload: false, ..OFFER };
    let mut session = Session::new(offer).unwrap().offering(before.session.taken() | 1 << 34);
    let offered = word(say(&mut session, Request::GetFeatures, vec![]).unwrap());
    assert_eq!(offered & taken, taken);
    assert_eq!(offered & 1 << 34, 0, "nothing that there is not");
    say(&mut session, Request::SetFeatures(taken), vec![]).unwrap();
    let form = session.form();
    assert_eq!(form.features.offload, datapath::offload::OffloadSupport::NONE);
    assert_eq!(form.features.max_frame, 1518);
    // Nor does a process that takes over give up.
    let mut next = Session::new(offer).unwrap();
    for (message, descriptors) in before.session.retold().unwrap().into_iter().take(2) {
        next.learn(&message, descriptors).unwrap();
    }
    assert_eq!((next.taken(), next.form().features.offload), (taken, datapath::offload::OffloadSupport::NONE));
}

#[test]
fn more_memory_than_the_host_has_is_refused_by_name() {
    // All of it is a hole.
    let file = rustix::fs::memfd_create("levada-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let bytes = 64u64 << 40;
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    let regions = |count: u64| {
        let bytes = bytes / count;
        (0..count).map(|n| Region { guest: n * bytes, bytes, user: n * bytes, offset: n * bytes }).collect::<Vec<_>>()
    };
    for count in [1, 2, 32] {
        let mut session = Session::new(OFFER).unwrap();
        let files = (0..count).map(|_| file.try_clone().unwrap()).collect();
        let why = say(&mut session, Request::SetMemTable(regions(count)), files).unwrap_err().to_string();
        assert!(why.contains("more than a machine of this host may have"), "{count}: {why}");
        let mut session = Session::new(OFFER).unwrap();
        let mut add = |region| say(&mut session, Request::AddMemReg(region), vec![file.try_clone().unwrap()]).err();
        assert!(regions(count).into_iter().any(|region| add(region).is_some()), "{count}");
    }
}

#[test]
fn memory_that_is_not_shared_overlaps_or_is_too_long_is_refused_by_name() {
    let front_end = FrontEnd::new(1, 16, LINUX).unwrap();
    let region = front_end.region();
    let file = || front_end.file().as_fd().try_clone_to_owned().unwrap();
    let table = |regions: Vec<Region>, files: usize| {
        let mut session = Session::new(OFFER).unwrap();
        say(&mut session, Request::SetMemTable(regions), (0..files).map(|_| file()).collect()).unwrap_err().to_string()
    };
    assert!(table(vec![], 0).contains("share=on"));
    assert!(table(vec![region], 0).contains("share=on"));
    assert!(table(vec![region, region], 2).contains("over another"));
    for wrong in [
        Region { bytes: 0, ..region },
        Region { bytes: u64::MAX, ..region },
        Region { guest: u64::MAX - 1, ..region },
        Region { user: u64::MAX - 1, ..region },
        Region { offset: u64::MAX - 1, ..region },
    ] {
        assert!(table(vec![wrong], 1).contains("ends beyond"), "{wrong:?}");
    }
    assert!(table(vec![Region { bytes: region.bytes + 1, ..region }], 1).contains("of a file of"));
    let loose = FrontEnd::with_seals(1, 16, LINUX, SealFlags::empty()).unwrap();
    let file = || vec![loose.file().as_fd().try_clone_to_owned().unwrap()];
    let table = || Request::SetMemTable(vec![loose.region()]);
    let why = say(&mut Session::new(OFFER).unwrap(), table(), file()).unwrap_err().to_string();
    assert!(why.contains("sealed = false"), "{why}");
    say(&mut Session::new(Offer { must_be_sealed: false, ..OFFER }).unwrap(), table(), file()).unwrap();
}

#[test]
fn a_region_that_is_told_of_for_each_pair_is_there_once_and_gone_at_once() {
    let region = |guest| Region { guest, bytes: 4096, user: 0x7000_0000 + guest, offset: 0 };
    let file = || {
        let file = rustix::fs::memfd_create("levada-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        file
    };
    let mut session = Session::new(Offer { pairs: 2, ..OFFER }).unwrap();
    let mut tell = |request, descriptors| say(&mut session, request, descriptors);
    // As QEMU 7.2 with two pairs: for each all that changes, here twice.
    for moved in [0, 4096] {
        for _pair in 0..2 {
            if moved > 0 {
                tell(Request::RemMemReg(region(0)), Vec::new()).unwrap();
            }
            tell(Request::AddMemReg(region(moved)), vec![file()]).unwrap();
        }
    }
    // The one that is left is whole: what lies over it is refused, and what lay at 0 is not there.
    let over = Region { guest: 4096, bytes: 8192, user: 0x9000_0000, offset: 0 };
    tell(Request::AddMemReg(region(0)), vec![file()]).unwrap();
    assert!(matches!(tell(Request::AddMemReg(over), vec![file()]), Err(Fault::Memory(MemoryError::Layout(_)))));
}

#[test]
fn memory_that_is_taken_away_ends_the_session_and_nothing_else() {
    let mut front_end = FrontEnd::with_seals(1, 16, LINUX, SealFlags::empty()).unwrap();
    let mut session = Session::new(Offer { must_be_sealed: false, ..OFFER }).unwrap();
    for (request, descriptors) in front_end.opening(0).unwrap() {
        say(&mut session, request, descriptors).unwrap();
    }
    front_end.send(0, &[], &pattern(60, 0));
    let mut port = session.port().unwrap().unwrap();
    front_end.shrink(0).unwrap();
    let (mut pool, mut frames) = (Pool::new(PoolLimits::default()), Vec::new());
    assert!(!session.has_lost_memory());
    port.rx(&mut pool, 8, &mut frames).unwrap();
    frames.into_iter().for_each(|frame| pool.free(frame));
    assert!(session.has_lost_memory());
}

#[test]
fn a_region_of_huge_pages_may_have_any_length() {
    const HUGE: u64 = 2 << 20;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let Ok(file) = rustix::fs::memfd_create("levada-huge", flags) else { return };
    rustix::fs::ftruncate(&file, HUGE).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    let front_end = FrontEnd::new(1, 16, LINUX).unwrap();
    let region = Region { bytes: HUGE - 4096, ..front_end.region() };
    let mut session = Session::new(OFFER).unwrap();
    for (request, mut descriptors) in front_end.opening(0).unwrap() {
        let request = match request {
            Request::SetMemTable(_) => {
                descriptors = vec![file.try_clone().unwrap()];
                Request::SetMemTable(vec![region])
            }
            other => other,
        };
        say(&mut session, request, descriptors).unwrap();
    }
    // Where the host has no such page, this is SIGBUS.
    assert!(session.port().unwrap().is_some());
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().matches("levada-huge").count();
    let before = maps();
    let parts = |n: u64| Region { guest: n * HUGE, user: n * HUGE, ..region };
    for _ in 0..100 {
        let files = (0..8).map(|_| file.try_clone().unwrap()).collect();
        say(&mut session, Request::SetMemTable((0..8).map(parts).collect()), files).unwrap();
    }
    drop(session);
    assert!(maps() <= before, "all is unmapped");
}

/// Writes a descriptor.
fn describe(front_end: &FrontEnd, ring: usize, at: usize, (address, bytes, flags, next): (u64, u32, u16, u16)) {
    let entry = [
        address.to_le_bytes().to_vec(),
        bytes.to_le_bytes().to_vec(),
        flags.to_le_bytes().to_vec(),
        next.to_le_bytes().to_vec(),
    ];
    front_end.put(front_end.parts(ring)[0] + 16 * at, &entry.concat());
}

/// Makes descriptor `head` available at the ring's first place, with an index of `index`.
fn avail(front_end: &FrontEnd, ring: usize, head: u16, index: u16) {
    let [_, available, _] = front_end.parts(ring);
    front_end.put(available + 4, &head.to_le_bytes());
    front_end.put(available + 2, &index.to_le_bytes());
}

#[test]
fn a_guest_whose_calls_take_long_is_told_of() {
    let mut bench = Bench::new(PLAIN, 16);
    bench.front_end.offer(0, 16, 1536);
    let write = |bench: &mut Bench| {
        bench.write(&pattern(60, 0), Offload::default()).unwrap();
        bench.flush();
    };
    write(&mut bench);
    assert!(!bench.session.has_slow_calls());
    // Others wait for it as well, in any number: each makes the call longer.
    let waits: Vec<_> = (0..200).map(|_| epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()).collect();
    let copies: Vec<_> = (0..400).map(|_| bench.front_end.call(0).try_clone().unwrap()).collect();
    for wait in &waits {
        for copy in &copies {
            epoll::add(wait, copy, EventData::new_u64(0), EventFlags::IN | EventFlags::ET).unwrap();
        }
    }
    for _ in 0..100 {
        bench.front_end.receive(0);
        bench.front_end.offer(0, 1, 1536);
        write(&mut bench);
    }
    assert!(bench.session.has_slow_calls());
}

#[test]
fn what_is_no_ring_stops_it_and_is_told_once() {
    let guest = |at: usize| 0x10_0000 + at as u64;
    type Attack<'a> = Box<dyn Fn(&FrontEnd) + 'a>;
    let attacks: Vec<(Broken, Attack<'_>)> = vec![
        (Broken::Ahead, Box::new(|f| avail(f, 1, 0, 17))),
        (Broken::Beyond, Box::new(|f| avail(f, 1, 16, 1))),
        (
            Broken::Endless,
            Box::new(|f| {
                describe(f, 1, 0, (guest(0), 1, 1, 1));
                describe(f, 1, 1, (guest(0), 1, 1, 0));
                avail(f, 1, 0, 1);
            }),
        ),
        (
            Broken::Beyond,
            Box::new(|f| {
                describe(f, 1, 0, (guest(0), 1, 1, 99));
                avail(f, 1, 0, 1);
            }),
        ),
        (
            Broken::Table,
            Box::new(|f| {
                describe(f, 1, 0, (guest(0), 17, 4, 0));
                avail(f, 1, 0, 1);
            }),
        ),
        (
            Broken::Table,
            Box::new(|f| {
                describe(f, 1, 0, (u64::MAX - 8, 16, 4, 0));
                avail(f, 1, 0, 1);
            }),
        ),
        (
            Broken::Table,
            Box::new(|f| {
                // A table in which there is one.
                let table = f.parts(1)[0] + 16 * 8;
                describe(f, 1, 0, (guest(table), 16, 4, 0));
                describe(f, 1, 8, (guest(table), 16, 4, 0));
                avail(f, 1, 0, 1);
            }),
        ),
        (
            Broken::Endless,
            Box::new(|f| {
                let table = f.parts(1)[0] + 16 * 8;
                describe(f, 1, 0, (guest(table), 16, 4, 0));
                describe(f, 1, 8, (guest(table), 1, 1, 0));
                avail(f, 1, 0, 1);
            }),
        ),
    ];
    for (number, (why, attack)) in attacks.into_iter().enumerate() {
        let mut bench = Bench::new(LINUX, 16);
        attack(&bench.front_end);
        assert!(bench.read(32).is_empty(), "{number}");
        assert_eq!(bench.session.broken(), [(1, why)], "{number}");
        assert!(bench.session.broken().is_empty());
        // Nothing more is read; the other ring runs.
        bench.front_end.send(0, &[], &pattern(60, 0));
        assert!(bench.read(32).is_empty());
        bench.front_end.offer(0, 1, 1536);
        bench.write(&pattern(60, 0), Offload::default()).unwrap();
        // Its driver sets it up anew.
        bench.port = None;
        bench.front_end.put(bench.front_end.parts(1)[1], &[0; 64]);
        say(&mut bench.session, Request::SetVringBase(1, 0), vec![]).unwrap();
        bench.port = bench.session.port().unwrap();
        describe(&bench.front_end, 1, 0, (guest(0), 100, 0, 0));
        avail(&bench.front_end, 1, 0, 1);
        assert_eq!(bench.read(32).len(), 1, "{number}");
    }
}

#[test]
fn what_is_no_frame_is_one_without_bytes_and_is_given_back() {
    let somewhere = 0x10_0000;
    for (bytes, flags, address) in [
        (11, 0, somewhere),
        (12, 0, somewhere),
        (25, 0, somewhere),
        (12 + 65_558, 0, somewhere),
        (u32::MAX, 0, somewhere),
        (100, 2, somewhere),
        (100, 0, 0),
        (100, 0, u64::MAX - 50),
    ] {
        let mut bench = Bench::new(LINUX, 16);
        describe(&bench.front_end, 1, 3, (address, bytes, flags, 0));
        avail(&bench.front_end, 1, 3, 1);
        let got = bench.read(32);
        assert_eq!(got, [(vec![], Offload::default())], "{bytes} bytes with flags {flags} at {address:#x}");
        let used = bench.front_end.parts(1)[2];
        assert_eq!(bench.front_end.get(used + 2, 6), [1, 0, 3, 0, 0, 0]);
        assert_eq!(bench.pool.in_use(), 0);
    }
}

#[test]
fn a_chain_goes_on_in_the_region_that_adjoins_and_in_no_other() {
    let front_end = FrontEnd::new(1, 16, LINUX).unwrap();
    let whole = front_end.region();
    // Behind the rings.
    let half = whole.bytes / 4 * 3;
    for (gap, is_there) in [(0, true), (4096, false)] {
        let second = Region {
            guest: whole.guest + half + gap,
            bytes: whole.bytes - half,
            user: whole.user + half,
            offset: half,
        };
        let mut session = Session::new(OFFER).unwrap();
        for (request, mut descriptors) in front_end.opening(0).unwrap() {
            let request = match request {
                Request::SetMemTable(_) => {
                    descriptors.push(front_end.file().as_fd().try_clone_to_owned().unwrap());
                    Request::SetMemTable(vec![second, Region { bytes: half, ..whole }])
                }
                other => other,
            };
            say(&mut session, request, descriptors).unwrap();
        }
        let mut port = session.port().unwrap().unwrap();
        describe(&front_end, 1, 0, (whole.guest + half - 30, 112, 0, 0));
        front_end.put(half as usize - 30, &[vec![0; 12], pattern(100, 8)].concat());
        avail(&front_end, 1, 0, 1);
        let (mut pool, mut frames) = (Pool::new(PoolLimits::default()), Vec::new());
        port.rx(&mut pool, 8, &mut frames).unwrap();
        let got: Vec<u8> = pool.bytes(&frames[0]).to_vec();
        assert_eq!(got, if is_there { pattern(100, 8) } else { vec![] });
        frames.into_iter().for_each(|frame| pool.free(frame));
        avail(&front_end, 1, 0, 0);
        front_end.put(front_end.parts(1)[2], &[0; 8]);
    }
}

#[test]
fn a_crowd_of_short_descriptors_ends_a_turn_and_is_not_forgotten() {
    let mut bench = Bench::new(LINUX, 256);
    // Each a chain of 20 pieces of a byte: no frame, and much to be read.
    for head in 0..12u16 {
        for i in 0..20 {
            let at = head * 20 + i;
            describe(&bench.front_end, 1, at.into(), (0x10_0000, 1, u16::from(i < 19), at + 1));
        }
        let [_, available, _] = bench.front_end.parts(1);
        bench.front_end.put(available + 4 + 2 * usize::from(head), &(head * 20).to_le_bytes());
    }
    bench.front_end.put(bench.front_end.parts(1)[1] + 2, &12u16.to_le_bytes());
    assert_eq!(bench.read(32).len(), 12);
    for again in 12..40u16 {
        let [_, available, _] = bench.front_end.parts(1);
        bench.front_end.put(available + 4 + 2 * usize::from(again), &0u16.to_le_bytes());
    }
    bench.front_end.put(bench.front_end.parts(1)[1] + 2, &40u16.to_le_bytes());
    bench.is_ready();
    let (mut got, mut turns) = (0, 0);
    while got < 28 {
        got += bench.read(32).len();
        turns += 1;
        assert_eq!(bench.is_ready(), got < 28, "it calls itself again, until it is done");
    }
    assert_eq!((got, turns), (28, 3));
}

#[test]
fn a_ring_of_long_chains_without_room_costs_each_frame_for_it_little() {
    let mut bench = Bench::new(LINUX, 1024);
    for at in 0..1024u16 {
        describe(&bench.front_end, 0, at.into(), (0x10_0000, 0, 2 | u16::from(at < 1023), (at + 1) % 1024));
    }
    let [_, available, _] = bench.front_end.parts(0);
    bench.front_end.put(available + 2, &1024u16.to_le_bytes());
    let before = super::ring::DESCRIPTORS_READ.get();
    for _ in 0..100 {
        assert_eq!(bench.write(&pattern(60, 0), Offload::default()), Err(Refused::Full));
    }
    // A chain, and what is fetched ahead.
    assert!(super::ring::DESCRIPTORS_READ.get() - before <= 100 * 1024 + 64);
}

fn send_with(stream: &UnixStream, bytes: &[u8], descriptors: &[OwnedFd]) {
    let fds: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut beside = rustix::net::SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(beside.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
    }
    let flags = rustix::net::SendFlags::empty();
    assert_eq!(rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut beside, flags).unwrap(), bytes.len());
}

#[test]
fn messages_come_in_any_pieces_with_their_descriptors() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut incoming = Incoming::default();
    assert!(incoming.next(&ours).unwrap().is_none() && !incoming.is_within());
    let first = Request::SetVringNum(1, 256).message(false).unwrap();
    for byte in &first[..first.len() - 1] {
        theirs.write_all(&[*byte]).unwrap();
        assert!(incoming.next(&ours).unwrap().is_none() && incoming.is_within());
    }
    theirs.write_all(&first[first.len() - 1..]).unwrap();
    assert_eq!(incoming.next(&ours).unwrap().unwrap().1, Request::SetVringNum(1, 256));
    let descriptor = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let kick = Request::SetVringKick(0, true).message(false).unwrap();
    send_with(&theirs, &kick, &[descriptor()]);
    send_with(&theirs, &Request::GetFeatures.message(false).unwrap(), &[]);
    let (_, request, descriptors) = incoming.next(&ours).unwrap().unwrap();
    assert_eq!((request, descriptors.len()), (Request::SetVringKick(0, true), 1));
    let (_, request, descriptors) = incoming.next(&ours).unwrap().unwrap();
    assert_eq!((request, descriptors.len()), (Request::GetFeatures, 0));
    send_with(&theirs, &kick, &(0..64).map(|_| descriptor()).collect::<Vec<_>>());
    assert!(matches!(incoming.next(&ours), Err(End::Descriptors)));
    drop(theirs);
    assert!(matches!(Incoming::default().next(&ours), Ok(Some(_)) | Err(_)));
}

#[test]
fn a_buffer_of_the_driver_is_as_long_as_it_says() {
    // What the other tests rely on.
    let mut bench = Bench::new(LINUX, 64);
    assert_eq!(bench.front_end.offer(0, 1, 3 * BUFFER_BYTES), 1);
    bench.write(&pattern(5000, 1), Offload::default()).unwrap();
    bench.flush();
    assert_eq!(bench.front_end.receive(0).unwrap().1, pattern(5000, 1));
}
