//! The worker with ports in memory: orders, losses, and that a flood does not keep a neighbour
//! waiting.

mod shortage;
mod thin;

use super::bonds::STEADY_NS;
use super::wake::READ_NS;
use super::*;
use datapath::frame::PoolLimits;
use datapath::guard::Identity;
use datapath::link::LinkConfig;
use datapath::offload::{Offload, OffloadSupport};
use datapath::program::{Attachment, Change, Endpoint, EndpointId, PortFeatures, Program, Tenant, TenantId};
use datapath::service::{Address, Backend, SWEPT_PLACES, Service, ServiceId};
use datapath::turns::TURN_NS;
use datapath::verdict::Reason;
use datapath::wire::{Mac, build, protocol};
use ports::pair::{PairPort, pair};
use ports::vde::VdePort;
use ports::{Port, Waiting};
use std::cell::Cell;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Wall};

mod learned;

/// A worker that runs, with one switch and an endpoint at each of its pairs, whose other ends these
/// are.
struct Bed {
    thread: JoinHandle<()>,
    inbox: SyncSender<Request>,
    waker: Waker,
    tasks: Receiver<Task>,
    far: Vec<PairPort>,
    pool: Pool,
}

const FRAMES: usize = 256;

fn mac(endpoint: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, endpoint])
}

fn frame(from: u8, to: u8) -> Vec<u8> {
    let ip = |n| std::net::Ipv4Addr::new(10, 0, 0, n);
    build::eth(mac(from), mac(to)).ipv4(ip(from), ip(to)).udp(1, 2).payload(vec![from; 40]).bytes()
}

fn program(endpoints: u8) -> Program {
    let endpoint = |e: u8| Endpoint {
        identity: Identity { macs: vec![mac(e)], ..Identity::default() },
        max_learned: 16,
        ..Endpoint::new(TenantId(0), PortId(u32::from(e)))
    };
    Program {
        tenants: vec![Tenant::default()].into(),
        endpoints: (0..endpoints).map(endpoint).collect(),
        ports: vec![PortFeatures::default(); endpoints.into()].into(),
        fdb_age_ns: 1_000_000_000,
        ..Program::default()
    }
}

impl Bed {
    fn new(endpoints: u8) -> Bed {
        let wake = Wake::new().unwrap();
        let waker = wake.waker();
        let (inbox, orders) = sync_channel(8);
        let (sender, tasks) = sync_channel(64);
        let (near, far): (Vec<_>, Vec<_>) = (0..endpoints).map(|_| pair(FRAMES, OffloadSupport::ALL)).unzip();
        let device = |(e, port): (usize, PairPort)| Device::new(Box::new(port), 0, PortId(e as u32));
        let parts = Parts {
            pool: Pool::new(PoolLimits::default()),
            switch_slots: vec![SwitchSlot::new(
                Switch::new(&program(endpoints), 1).unwrap(),
                (0..endpoints).map(|e| Some(Backing::Device(e.into()))).collect(),
            )],
            link_slots: Vec::new(),
            devices: near.into_iter().enumerate().map(device).collect(),
            spin: false,
            wake,
            clock: Clock::start(),
            inbox: orders,
            tasks: sender,
        };
        let worker = Worker::new(parts).unwrap();
        let thread = std::thread::spawn(move || worker.run(Stalls::of_this_thread()));
        Bed { thread, inbox, waker, tasks, far, pool: Pool::new(PoolLimits::default()) }
    }

    fn send(&mut self, from: u8, to: u8) -> bool {
        let Some(frame_) = self.pool.alloc_from(&frame(from, to)) else { return false };
        self.pool.meta_mut(&frame_).offload = Offload::default();
        self.far[from as usize].tx(&mut self.pool, frame_).is_ok()
    }

    /// Frames that arrived at the far end of `endpoint`.
    fn receive(&mut self, endpoint: u8) -> usize {
        let mut frames = Vec::new();
        let _ = self.far[endpoint as usize].rx(&mut self.pool, FRAMES, &mut frames);
        let count = frames.len();
        for frame in frames {
            self.pool.free(frame);
        }
        count
    }

    fn snapshot(&self) -> Box<Snapshot> {
        let (reply, answer) = answer();
        self.inbox.send(Request::Snapshot { into: Box::default(), reply }).unwrap();
        self.waker.ring();
        answer.wait(Duration::from_secs(10)).unwrap()
    }

    fn stop(self) {
        self.inbox.send(Request::Stop).unwrap();
        self.waker.ring();
        self.thread.join().unwrap();
    }
}

fn soon(what: &str, mut check: impl FnMut() -> bool) {
    let start = Wall::now();
    while !check() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn frames_pass_are_counted_and_leave_no_buffer_behind() {
    let mut bed = Bed::new(2);
    for _ in 0..100 {
        assert!(bed.send(0, 1));
    }
    let mut arrived = 0;
    soon("all arrive", || {
        arrived += bed.receive(1);
        arrived == 100
    });
    let shot = bed.snapshot();
    let stats = &shot.switches[0].endpoints;
    assert_eq!((stats[0].local_egress.traffic.frames, stats[1].local_ingress.traffic.frames), (100, 100));
    assert_eq!(shot.frames_in_use, 0);
    assert!(shot.effort.busy_ns > 0 && shot.devices[0].read_ns > 0 && shot.devices[1].write_ns > 0);
    bed.stop();
}

#[test]
fn a_lost_port_is_handed_over_once_counted_and_can_be_put_back() {
    let mut bed = Bed::new(3);
    drop(bed.far.remove(2));
    let Ok(Task::Lost { device: 2, port, .. }) = bed.tasks.recv_timeout(Duration::from_secs(10)) else {
        panic!("the loss is not told");
    };
    drop(port);
    for _ in 0..10 {
        assert!(bed.send(0, 2) && bed.send(0, 1));
    }
    let mut arrived = 0;
    soon("the others go on", || {
        arrived += bed.receive(1);
        arrived == 10
    });
    let shot = bed.snapshot();
    assert_eq!(shot.switches[0].endpoints[2].drops.get(Reason::PortDown), 10);
    assert!(!shot.devices[2].is_up && shot.devices[2].losses == 1);
    let (near, far) = pair(FRAMES, OffloadSupport::ALL);
    bed.inbox.send(Request::Restore { device: 2, port: Box::new(near), back: None }).unwrap();
    bed.waker.ring();
    bed.far.push(far);
    soon("it is back", || bed.snapshot().devices[2].is_up);
    assert!(bed.send(0, 2));
    soon("frames pass again", || bed.receive(2) == 1);
    assert!(bed.tasks.try_recv().is_err(), "told once");
    bed.stop();
}

#[test]
fn a_port_that_is_down_costs_its_senders_only_their_frames() {
    let mut bed = Bed::new(2);
    // Nobody empties the far end of 1: it takes FRAMES, and refuses the rest.
    let mut sent = 0;
    soon("more is sent than fits", || {
        while sent < 2 * FRAMES && bed.send(0, 1) {
            sent += 1;
        }
        sent == 2 * FRAMES
    });
    soon("all is dealt with", || {
        let shot = bed.snapshot();
        let done = shot.switches[0].endpoints[1].drops.get(Reason::PortDown);
        shot.frames_in_use == 0 && done == FRAMES as u64
    });
    assert_eq!(bed.receive(1), FRAMES);
    bed.stop();
}

#[test]
fn a_trace_shows_the_frames_that_are_meant_and_ends_by_itself() {
    let plan = control::load("[daemon]\nname = \"t\"\n[[switch]]\nname = \"s1\"\n").plan.unwrap();
    let mut bed = Bed::new(2);
    let trace = |bed: &Bed, filter: &str, count| {
        let filter = control::filter::Filter::parse(filter, &plan).unwrap();
        let (out, sightings) = sync_channel(count);
        let trace = Trace { filter, count, time_ns: 60_000_000_000, snap: 20, out };
        bed.inbox.send(Request::Trace(Box::new(trace))).unwrap();
        bed.waker.ring();
        sightings
    };
    let first = trace(&bed, "src ether 02:00:00:00:00:00 and drop hairpin", 2);
    let second = trace(&bed, "", 1);
    assert!(second.recv_timeout(Duration::from_secs(10)).is_err(), "one at a time");
    for _ in 0..3 {
        assert!(bed.send(0, 1) && bed.send(1, 0) && bed.send(0, 0));
    }
    for _ in 0..2 {
        let seen = first.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!((seen.switch, seen.frame_trace.verdict), (0, datapath::verdict::Verdict::Dropped(Reason::Hairpin)));
    }
    soon("frames are forwarded as ever", || bed.receive(1) + bed.receive(0) > 0);
    soon("the trace has ended, and another may begin", || {
        let next = trace(&bed, "", 1);
        std::thread::sleep(Duration::from_millis(5));
        bed.send(0, 1);
        next.recv_timeout(Duration::from_millis(100)).is_ok()
    });
    // What would be done is not done.
    let (reply, answer) = sync_channel(1);
    let bytes = frame(0, 1);
    bed.inbox.send(Request::Explain { switch: 0, port: PortId(0), bytes, offload: Offload::default(), reply }).unwrap();
    bed.waker.ring();
    let frame_trace = answer.recv_timeout(Duration::from_secs(10)).unwrap().unwrap();
    assert_eq!(frame_trace.verdict, datapath::verdict::Verdict::Forwarded);
    bed.stop();
}

#[test]
fn what_is_sent_to_a_device_or_link_that_is_not_there_yet_is_counted_and_harms_nobody() {
    for way in [Backing::Device(7), Backing::Link(3, Side::B)] {
        let mut bed = Bed::new(2);
        // Edits are done in many rounds: a port's way may be there long before what is behind it.
        let (reply, answer) = sync_channel(1);
        let edits = Edits::new(vec![Edit::Backing(0, PortId(1), Some(way))], reply);
        bed.inbox.send(Request::Edit(edits)).unwrap();
        bed.waker.ring();
        assert!(answer.recv_timeout(Duration::from_secs(10)).unwrap().failed.is_none());
        assert!(bed.send(0, 1));
        soon("it is read", || bed.snapshot().switches[0].endpoints[0].local_egress.traffic.frames == 1);
        assert_eq!(bed.snapshot().frames_in_use, 0);
        bed.stop();
    }
}

#[test]
fn learned_addresses_are_told_in_parts() {
    let mut bed = Bed::new(2);
    let learned = |bed: &Bed| {
        let (reply, answer) = answer();
        bed.inbox.send(Request::Learned { switch: 0, from: 0, reply }).unwrap();
        bed.waker.ring();
        answer.wait(Duration::from_secs(10)).unwrap()
    };
    // Endpoints of this bed have declared their addresses.
    assert!(bed.send(0, 1));
    soon("it arrives", || bed.receive(1) > 0);
    let part = learned(&bed);
    assert!(part.endpoints.is_empty() && part.next.is_none() && part.age_ns == 1_000_000_000, "{part:?}");
    let (reply, answer) = answer();
    bed.inbox.send(Request::Learned { switch: 7, from: 0, reply }).unwrap();
    bed.waker.ring();
    assert!(answer.wait(Duration::from_secs(10)).unwrap().next.is_none(), "no such switch");
    bed.stop();
}

/// So many frames of so many bytes, one after the other, each of which a port without offloads gets
/// in pieces of `size`.
fn offloaded(from: u8, to: Mac, payload: usize, size: u16, pool: &mut Pool) -> Option<Frame> {
    let ip = |n| std::net::Ipv4Addr::new(10, 0, 0, n);
    build::eth(mac(from), to).ipv4(ip(from), ip(200)).tcp(1, 2, 0).payload(vec![1; payload]).gso(size).frame(pool)
}

thread_local! {
    /// The clock of workers that are driven by hand: it goes on when it is read, and by what ports
    /// say that they take. Neither the machine's speed nor its stalls change what is judged by it.
    static BY_HAND_NS: Cell<u64> = const { Cell::new(0) };
}

/// Between two readings of the clock by hand.
const STEP_NS: u64 = 100;
/// What a port takes for a frame that it reads or writes, by the clock by hand.
const FRAME_NS: u64 = 500;
/// What it takes for one whose receiver's stack is slow.
const SLOW_NS: u64 = 300_000;

fn by_hand_ns() -> u64 {
    pass_ns(STEP_NS);
    BY_HAND_NS.get()
}

fn pass_ns(ns: u64) {
    BY_HAND_NS.set(BY_HAND_NS.get() + ns);
}

thread_local! {
    /// What [`processor_ns`] gave last, and what this thread had had of a processor then.
    static PROCESSOR_NS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// What this thread has had of a processor: others' time is not in it. Of what is between two
/// readings no more counts than a turn of the worker's own should take: what the machine itself
/// takes, as for interrupts or another machine on it, is in that time, too. So what is seen is a
/// turn of many steps; one step that is long by itself counts as one that is not.
fn processor_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    let (given_ns, before_ns) = PROCESSOR_NS.get();
    let given_ns = given_ns + (now_ns - before_ns).min(MOST_OWN_NS);
    PROCESSOR_NS.set((given_ns, now_ns));
    given_ns
}

/// A port that takes its time, by the clock by hand.
struct Timed {
    port: PairPort,
    /// Of so many frames it is long for one.
    slow_every: u64,
    written: u64,
    /// What it takes for a read that brings no frame.
    empty_ns: u64,
    /// What waits in its ring, where it tells that.
    waiting: Option<u64>,
    /// How long it was so in all, in nanoseconds.
    slow_ns: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

impl Timed {
    fn new(port: PairPort) -> Timed {
        Timed { port, slow_every: u64::MAX, written: 0, empty_ns: 0, waiting: None, slow_ns: std::sync::Arc::default() }
    }
}

impl Port for Timed {
    fn features(&self) -> ports::Features {
        self.port.features()
    }

    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.port.fd()
    }

    fn rx(&mut self, pool: &mut Pool, burst: usize, out: &mut Vec<Frame>) -> Result<usize, PortError> {
        let count = self.port.rx(pool, burst, out)?;
        pass_ns(if count > 0 { FRAME_NS * count as u64 } else { self.empty_ns });
        Ok(count)
    }

    fn write(&mut self, pool: &mut Pool, frame: &Frame) -> Result<(), Refused> {
        self.written += 1;
        pass_ns(FRAME_NS);
        if self.written.is_multiple_of(self.slow_every) {
            pass_ns(SLOW_NS);
            self.slow_ns.fetch_add(SLOW_NS, std::sync::atomic::Ordering::Relaxed);
        }
        self.port.write(pool, frame)
    }

    fn waiting(&self) -> Option<Waiting> {
        self.waiting.map(|bytes| Waiting { bytes, room: 1 << 24 })
    }

    fn drops_before_us(&mut self) -> Result<u64, PortError> {
        Ok(0)
    }
}

#[test]
fn an_uplinks_ring_fills_while_what_comes_next_would_wait() {
    let device = |waiting| {
        let port = Timed { waiting, ..Timed::new(pair(FRAMES, OffloadSupport::ALL).0) };
        Device { frame_ns: 10_000, ..Device::new(Box::new(port), 0, PortId(0)) }
    };
    let now = Instant(5_000_000_000);
    // So many frames of 60 bytes, which take 10 us each.
    let frames = |count: u64| Some(count * 760);
    assert!(device(frames(20)).note_left(now, true, 60));
    assert!(!device(frames(20)).note_left(now, false, 60), "they came since the read");
    assert!(!device(frames(19)).note_left(now, true, 60));
    assert!(device(frames(19)).note_left(now, true, 0), "shorter ones are more");
    assert!(!device(frames(20)).note_left(now, true, 900), "longer ones are fewer");
    assert!(Device { fills: true, ..device(frames(5)) }.note_left(now, true, 60), "it did before");
    assert!(!Device { fills: true, ..device(frames(4)) }.note_left(now, true, 60));
    // One that cannot tell.
    let mut tap = device(None);
    let later = now.plus_ns(500_000);
    assert!(!tap.note_left(now, true, 60) && tap.note_left(later, true, 60));
    assert!(!tap.note_left(later, false, 60) && !tap.note_left(later, true, 60), "it was empty meanwhile");
}

/// A worker that is driven by hand and by a clock by hand, whose switch has endpoints of two
/// tenants: 0 and 1, whose port cannot cut, of the first; 2 and 3 of the second. Nobody empties
/// what is sent to 1 and 3.
fn by_hand() -> (Worker, Vec<PairPort>, Receiver<Task>) {
    let mut program = program(4);
    program.tenants.push(Tenant::default());
    for endpoint in program.endpoints.values_mut().skip(2) {
        endpoint.tenant = TenantId(1);
    }
    program.ports[1].offload = OffloadSupport::NONE;
    READ_NS.set(by_hand_ns);
    let (_, inbox) = sync_channel(1);
    let (sender, tasks) = sync_channel(64);
    let (near, far): (Vec<_>, Vec<_>) = (0..4).map(|_| pair(FRAMES, OffloadSupport::ALL)).unzip();
    let device = |(e, port): (usize, PairPort)| Device::new(Box::new(Timed::new(port)), 0, PortId(e as u32));
    let parts = Parts {
        pool: Pool::new(PoolLimits::default()),
        switch_slots: vec![SwitchSlot::new(
            Switch::new(&program, 1).unwrap(),
            (0..4).map(|e| Some(Backing::Device(e))).collect(),
        )],
        link_slots: Vec::new(),
        devices: near.into_iter().enumerate().map(device).collect(),
        spin: false,
        wake: Wake::new().unwrap(),
        clock: Clock::start(),
        inbox,
        tasks: sender,
    };
    let mut worker = Worker::new(parts).unwrap();
    for (port, tenant) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
        let claim = Claim { switch: 0, payer: Payer::Tenant(tenant), tenant_weight: 1, weight: 1 };
        worker.seats.claim(Backing::Device(port), claim);
    }
    (worker, far, tasks)
}

/// Takes out what arrived.
fn empty(far: &mut PairPort, pool: &mut Pool) -> usize {
    let mut frames = Vec::new();
    let _ = far.rx(pool, FRAMES, &mut frames);
    let count = frames.len();
    frames.into_iter().for_each(|frame| pool.free(frame));
    count
}

#[test]
fn a_frame_of_thousands_of_segments_delays_a_neighbour_by_a_turn_and_is_charged_to_its_sender() {
    let (mut worker, mut far, _chores) = by_hand();
    let mut pool = Pool::new(PoolLimits::default());
    for _ in 0..8 {
        let frame = offloaded(0, mac(1), 16_000, 8, &mut pool).unwrap();
        far[0].tx(&mut pool, frame).unwrap();
    }
    let mut frames = 0;
    for round in 0..2000 {
        // The victim has a frame now and then, and each is passed on within a few turns of others.
        if round % 20 == 0 {
            let bytes = frame(2, 3);
            let frame = pool.alloc_from(&bytes).unwrap();
            far[2].tx(&mut pool, frame).unwrap();
            let before = worker.seats.all_ns();
            while empty(&mut far[3], &mut pool) == 0 {
                worker.do_what_is_due();
                worker.take_a_turn();
                worker.pump();
                let waited_ns = worker.seats.all_ns() - before;
                assert!(waited_ns < 4 * TURN_NS, "{waited_ns} ns went to others in round {round}");
            }
        }
        worker.do_what_is_due();
        worker.take_a_turn();
        worker.pump();
        frames += empty(&mut far[1], &mut pool);
    }
    assert!(frames > 10, "the segments go on meanwhile: {frames}");
    // Ports without a descriptor are asked in each round, and pay for that alone, as the victim's
    // neighbour does.
    let [sender, receiver, asked] = [0, 1, 3].map(|port| worker.seats.spent(Backing::Device(port)).used_ns);
    assert!(receiver < asked + sender / 2, "segments are their sender's: {sender}, {receiver} and {asked}");
}

#[test]
fn a_read_that_brings_no_frame_is_charged_by_what_it_took() {
    const EMPTY_NS: u64 = 1_000_000;
    let (mut worker, _far, _chores) = by_hand();
    let way = Backing::Device(0);
    let (near, _end) = pair(FRAMES, OffloadSupport::ALL);
    worker.outside.devices[0].port = Some(Box::new(Timed { empty_ns: EMPTY_NS, ..Timed::new(near) }));
    worker.outside.look();
    for _ in 0..10 {
        worker.read(0, TURN_NS);
    }
    // What was charged is known at the next turn.
    worker.seats.next_turn();
    let used_ns = worker.seats.spent(way).used_ns;
    assert!((10 * EMPTY_NS..11 * EMPTY_NS).contains(&used_ns), "{used_ns}");
}

#[test]
fn tenants_have_their_parts_of_the_time_whatever_they_make_of_frames() {
    let (mut worker, mut far, _chores) = by_hand();
    let mut pool = Pool::new(PoolLimits::default());
    let (claim, way) =
        (|weight| Claim { switch: 0, payer: Payer::Tenant(1), tenant_weight: weight, weight: 1 }, Backing::Device(2));
    worker.seats.claim(way, claim(3));
    let before = [0, 1].map(|tenant| worker.seats.tenant_spent(0, tenant).used_ns);
    for _ in 0..100_000 {
        // Both always have something: the one frames to be cut, the other small ones.
        while let Some(frame) = offloaded(0, mac(1), 16_000, 8, &mut pool) {
            if far[0].tx(&mut pool, frame).is_err() {
                break;
            }
        }
        while let Some(frame) = pool.alloc_from(&frame(2, 3)) {
            if far[2].tx(&mut pool, frame).is_err() {
                break;
            }
        }
        worker.do_what_is_due();
        worker.take_a_turn();
        worker.pump();
        empty(&mut far[1], &mut pool);
        empty(&mut far[3], &mut pool);
    }
    let used = [0, 1].map(|tenant| worker.seats.tenant_spent(0, tenant).used_ns - before[tenant as usize]);
    let part = used[1] * 1000 / (used[0] + used[1]);
    assert!((735..=765).contains(&part), "{part} of 1000: {used:?}");
}

/// A turn of a worker of whose ports these have more to send than it takes.
fn overloaded_turn(worker: &mut Worker, far: &mut [PairPort], pool: &mut Pool, from: &[u8]) {
    for &from in from {
        while let Some(frame) = pool.alloc_from(&frame(from, from + 1)) {
            if far[from as usize].tx(pool, frame).is_err() {
                break;
            }
        }
    }
    worker.do_what_is_due();
    worker.take_a_turn();
    worker.pump();
    empty(&mut far[1], pool);
    empty(&mut far[3], pool);
}

#[test]
fn a_port_that_takes_anothers_place_is_watched_whoever_has_copies_of_both() {
    let (mut worker, _far, chores) = by_hand();
    let (client, switch) = std::os::unix::net::UnixDatagram::pair().unwrap();
    switch.set_nonblocking(true).unwrap();
    for round in 0..10 {
        let copy = switch.try_clone().unwrap().into();
        let port = VdePort::new(vec![copy], 1514, std::sync::Arc::default()).unwrap();
        worker.carry_out(Request::Restore { device: 0, port: Box::new(port), back: None });
        assert!(!chores.try_iter().any(|task| matches!(task, Task::Lost { .. })), "round {round}");
    }
    let ready = |worker: &Worker| {
        let mut ready = 0;
        worker.wake.wait(Some(0), |device| ready += usize::from(device == 0));
        ready
    };
    ready(&worker);
    client.send(&[0; 60]).unwrap();
    assert_eq!(ready(&worker), 1, "once, by the one that is there");
    let (reply, answer) = sync_channel(1);
    worker.carry_out(Request::Take { device: 0, reply });
    client.send(&[0; 60]).unwrap();
    assert_eq!(ready(&worker), 0);
    drop(answer);
}

#[test]
fn a_port_that_cannot_be_watched_goes_back_to_its_maker_or_is_lost() {
    let (mut worker, _far, chores) = by_hand();
    // epoll(7) takes no such file.
    let port = || -> AnyPort {
        let null = std::fs::File::open("/dev/null").unwrap().into();
        Box::new(VdePort::new(vec![null], 1514, std::sync::Arc::default()).unwrap())
    };
    let (back, returned) = sync_channel(1);
    worker.carry_out(Request::Restore { device: 0, port: port(), back: Some(back) });
    let Unwatched { why, .. } = returned.try_recv().unwrap();
    assert!(why.contains("cannot be watched") && why.contains("max_user_watches"), "{why}");
    assert!(chores.try_recv().is_err(), "whoever made it sees to it");
    // Whose receiver is gone.
    let left = sync_channel(1).0;
    for back in [None, Some(left)] {
        worker.carry_out(Request::Restore { device: 0, port: port(), back });
        assert!(matches!(chores.try_recv(), Ok(Task::Lost { device: 0, .. })), "nobody waits for it");
    }
}

#[test]
fn a_device_that_is_put_after_its_claim_has_the_claim() {
    let (mut worker, _far, _chores) = by_hand();
    // The second has a device already, which is replaced; the third has none yet.
    for number in [2, 4] {
        let claim = Claim { switch: 0, payer: Payer::Tenant(1), tenant_weight: 1, weight: 1 };
        worker.begin(vec![Edit::Claims(vec![(Backing::Device(number), claim)])]).unwrap();
        let (near, mut far) = pair(FRAMES, OffloadSupport::ALL);
        let device = Device::new(Box::new(near), 0, PortId(2));
        worker.begin(vec![Edit::Device(number, Some(Box::new(device)))]).unwrap();
        let before = worker.seats.tenant_spent(0, 1).used_ns;
        // A cost is known after some measurements.
        for _ in 0..1000 {
            let sent = worker.pool.alloc_from(&frame(2, 3)).unwrap();
            far.tx(&mut worker.pool, sent).unwrap();
            worker.seats.wake(Backing::Device(number));
            worker.take_a_turn();
        }
        assert!(worker.seats.tenant_spent(0, 1).used_ns > before, "device {number}");
    }
}

/// Gives a worker that is driven by hand another switch, with two endpoints.
fn add_switch(worker: &mut Worker, far: &mut Vec<PairPort>) {
    let (switch, first) = (worker.switch_slots.len(), far.len());
    let mut edits = vec![Edit::Switch(switch, Box::new(Switch::new(&program(2), 1).unwrap()))];
    for port in 0..2 {
        let (number, id) = (first + port, PortId(port as u32));
        let (near, end) = pair(FRAMES, OffloadSupport::ALL);
        far.push(end);
        let device = Device::new(Box::new(Timed::new(near)), switch, id);
        let claim = Claim { switch, payer: Payer::Tenant(0), tenant_weight: 1, weight: 1 };
        edits.push(Edit::Backing(switch, id, Some(Backing::Device(number))));
        edits.push(Edit::Claims(vec![(Backing::Device(number), claim)]));
        edits.push(Edit::Device(number, Some(Box::new(device))));
    }
    worker.begin(edits).unwrap();
}

#[test]
fn numbers_for_who_looks_cost_a_busy_neighbour_one_part_in_twenty() {
    for switches in [1, 4] {
        numbers_take_a_twentieth_beside_busy(switches);
    }
}

fn numbers_take_a_twentieth_beside_busy(switches: usize) {
    let (mut worker, mut far, _chores) = by_hand();
    (1..switches).for_each(|_| add_switch(&mut worker, &mut far));
    // Sender and receiver of each, by their devices, and the sender's number in its switch.
    let floods: Vec<_> = (0..switches).map(|switch| (2 + switch * 2, if switch == 0 { 2 } else { 0 })).collect();
    // What is copied for them is no port's work: here the processor says what it takes.
    READ_NS.set(processor_ns);
    let mut pool = Pool::new(PoolLimits::default());
    let (mut answers, mut turns) = (Vec::new(), Vec::new());
    for _ in 0..20_000 {
        for &(device, from) in &floods {
            while let Some(frame) = pool.alloc_from(&frame(from, from + 1)) {
                if far[device].tx(&mut pool, frame).is_err() {
                    break;
                }
            }
        }
        if worker.counts.len() < 10 {
            let (reply, next) = answer();
            answers.push(next);
            worker.carry_out(Request::Snapshot { into: Box::default(), reply });
        }
        worker.seats.set_own(worker.has_own_work());
        let before_ns = worker.seats.own_spent().used_ns;
        worker.do_what_is_due();
        worker.take_a_turn();
        worker.pump();
        // Of the turn before: what was spent is known at the next one.
        turns.push(worker.seats.own_spent().used_ns - before_ns);
        for &(device, _) in &floods {
            empty(&mut far[device + 1], &mut pool);
        }
        answers.retain(|answer| answer.wait(Duration::ZERO).is_none());
    }
    let (own, all) = (worker.seats.own_spent().used_ns, worker.seats.all_ns());
    turns.retain(|&took_ns| took_ns > 0);
    // Where the machine took time in one of them, the next ones make up for it; the last may owe
    // it.
    let longest_ns = turns.iter().max().copied().unwrap_or_default();
    assert!(own.abs_diff(all / 20) <= MOST_OWN_NS + longest_ns, "{own} of {all} beside {switches}");
    let long = turns.iter().filter(|&&took_ns| took_ns > MOST_OWN_NS).count();
    assert!(long <= turns.len() / 20, "{long} of {} turns were long, up to {longest_ns} ns", turns.len());
    let (mut used, alike) = (vec![0; switches], (all - own) / switches as u64);
    for (number, device) in worker.outside.devices.iter().enumerate() {
        used[device.switch] += worker.seats.spent(Backing::Device(number)).used_ns;
    }
    assert!(used.iter().all(|used| used.abs_diff(alike) <= alike / 10), "they share the rest alike: {used:?}");
}

/// A backend of a service with this address, behind endpoint 3.
fn backend(ip: [u8; 4]) -> Backend {
    Backend {
        ipv4: Some(ip.into()),
        ipv6: None,
        mac: mac(3),
        port: None,
        weight: 1,
        drain_ns: 0,
        cores: 1,
        max_connections: None,
        endpoint: Some(EndpointId(3)),
    }
}

#[test]
fn what_services_count_is_told_in_parts_at_the_workers_own_turns() {
    const SERVICES: u32 = 50;
    let (mut worker, _far, _chores) = by_hand();
    for number in 0..SERVICES {
        let address = Address { ip: [10, 1, 0, number as u8].into(), protocol: protocol::TCP, port: 80 };
        let backends = (0..100).map(|n| backend([10, 2, number as u8, n])).collect();
        let service =
            Service { tenant: TenantId(1), mac: mac(100), addresses: vec![address], backends, ..Service::default() };
        let change = Change::Service(ServiceId(number), Some(service));
        worker.begin(vec![Edit::Change(0, change)]).unwrap();
    }
    let ask = |worker: &mut Worker, which| {
        let (reply, answer) = answer();
        worker.carry_out(Request::Services { switch: 0, which, reply });
        assert!(answer.wait(Duration::ZERO).is_none() && worker.has_own_work(), "it waits for a turn");
        worker.work_for_itself();
        answer.wait(Duration::ZERO).unwrap()
    };
    let (mut told, mut parts, mut next) = (Vec::new(), 0, Some(0));
    while let Some(from) = next {
        let part = ask(&mut worker, from..u32::MAX);
        assert!(part.services.iter().map(|count| count.backends.len()).sum::<usize>() < 2 * 256);
        told.extend(part.services.iter().map(|count| (count.service.0, count.backends.len())));
        (parts, next) = (parts + 1, part.next);
    }
    assert_eq!((told, parts), ((0..SERVICES).map(|number| (number, 100)).collect(), 17));
    let one = ask(&mut worker, 7..8);
    assert_eq!((one.services.len(), one.services[0].service.0, one.next), (1, 7, None));
    // Nobody else waits for all who ask.
    worker.seats.next_turn();
    assert!(worker.seats.own_spent().used_ns > 0);
}

#[test]
fn a_service_s_connections_are_looked_for_a_part_of_the_table_at_a_time() {
    const MANY: u16 = 3000;
    let (mut worker, _far, _chores) = by_hand();
    let services = [100, 101].map(|ip| std::net::Ipv4Addr::new(10, 0, 0, ip));
    for (number, ip) in services.into_iter().enumerate() {
        let address = Address { ip: ip.into(), protocol: protocol::UDP, port: 53 };
        let (tenant, mac, backends) = (TenantId(1), mac(100 + number as u8), vec![backend([10, 0, 0, 3])]);
        let service = Service { tenant, mac, addresses: vec![address], backends, ..Service::default() };
        worker.begin(vec![Edit::Change(0, Change::Service(ServiceId(number as u32), Some(service)))]).unwrap();
    }
    while worker.has_own_work() {
        worker.work_for_itself();
    }
    let Worker { switch_slots, pool, .. } = &mut worker;
    let switch = &mut switch_slots[0].switch;
    for port in 1000..1000 + MANY + 5 {
        let number = usize::from(port >= 1000 + MANY);
        let client = std::net::Ipv4Addr::new(10, 0, 0, 2);
        let to = mac(100 + number as u8);
        let sent = build::eth(mac(2), to).ipv4(client, services[number]).udp(port, 53).frame(pool).unwrap();
        let _ = switch.rx(pool, datapath::units::Instant(1_000_000_000), PortId(2), sent);
        while let Some((_, frame)) = switch.tx_due(pool, datapath::units::Instant(1_000_000_000)) {
            pool.free(frame);
        }
    }
    let mut of = |number, client: [u8; 4]| {
        let (mut ports, mut parts, mut next) = (Vec::new(), 0, Some(0));
        while let Some(from) = next {
            let (reply, answer) = answer();
            let (service, client) = (ServiceId(number), Some(client.into()));
            worker.carry_out(Request::Connections { switch: 0, service, client, from, reply });
            assert!(answer.wait(Duration::ZERO).is_none() && worker.has_own_work(), "it waits for a turn");
            worker.work_for_itself();
            let part = answer.wait(Duration::ZERO).unwrap();
            assert!(part.connections.len() <= 1024);
            ports.extend(part.connections.iter().map(|shown| shown.port));
            (parts, next) = (parts + 1, part.next);
        }
        (ports, parts)
    };
    assert_eq!(of(0, [10, 0, 0, 2]), ((1000..1000 + MANY).collect(), 3));
    assert_eq!(of(1, [10, 0, 0, 2]), ((1000 + MANY..1005 + MANY).collect(), 3), "few of many");
    assert_eq!(of(0, [10, 0, 0, 9]), (Vec::new(), 3), "nor are they found at once who are not there");
}

#[test]
fn questions_and_other_work_of_the_workers_own_take_turns() {
    let (mut worker, _far, _chores) = by_hand();
    let ask = |worker: &mut Worker| {
        let (reply, answer) = answer();
        worker.carry_out(Request::Learned { switch: 0, from: 0, reply });
        answer
    };
    let edit = |worker: &mut Worker| {
        let (reply, edited) = sync_channel(1);
        worker.carry_out(Request::Edit(Edits::new(Vec::new(), reply)));
        edited
    };
    drop(ask(&mut worker));
    let answers = [(); 3].map(|()| ask(&mut worker));
    let edited = [(); 3].map(|()| edit(&mut worker));
    assert_eq!(worker.questions.len(), 3, "one is wanted by nobody");
    (0..4).for_each(|_| worker.work_for_itself());
    assert_eq!(answers.iter().filter(|answer| answer.wait(Duration::ZERO).is_some()).count(), 2);
    assert_eq!(edited.iter().filter(|edited| edited.try_recv().is_ok()).count(), 2);
}

#[test]
fn connections_of_a_service_that_went_are_forgotten_in_turns_of_the_workers_own() {
    let (mut worker, _far, _chores) = by_hand();
    let address = Address { ip: [10, 0, 0, 100].into(), protocol: protocol::UDP, port: 53 };
    let (tenant, backends) = (TenantId(1), vec![backend([10, 0, 0, 3])]);
    let service = Service { tenant, mac: mac(100), addresses: vec![address], backends, ..Service::default() };
    let set = |worker: &mut Worker, service| {
        let edit = Edit::Change(0, Change::Service(ServiceId(0), service));
        worker.begin(vec![edit]).unwrap();
    };
    set(&mut worker, Some(service));
    let Worker { switch_slots, pool, .. } = &mut worker;
    let switch = &mut switch_slots[0].switch;
    for port in 1000..1000 + SWEPT_PLACES as u16 * 4 {
        let [client, service] = [2, 100].map(|n| std::net::Ipv4Addr::new(10, 0, 0, n));
        let sent = build::eth(mac(2), mac(100)).ipv4(client, service).udp(port, 53).frame(pool).unwrap();
        let _ = switch.rx(pool, datapath::units::Instant(1_000_000_000), PortId(2), sent);
        while let Some((_, frame)) = switch.tx_due(pool, datapath::units::Instant(1_000_000_000)) {
            pool.free(frame);
        }
    }
    assert_eq!(worker.switch_slots[0].switch.connections().0, SWEPT_PLACES * 4);
    set(&mut worker, None);
    // The change visited the first ones; nothing else keeps the worker from sleeping.
    let before = worker.seats.own_spent().used_ns;
    let (mut left, mut turns) = (SWEPT_PLACES * 3, 0);
    while worker.has_own_work() {
        assert_eq!(worker.timeout(), Some(0));
        worker.seats.set_own(true);
        assert!(worker.take_a_turn());
        let now = worker.switch_slots[0].switch.connections().0;
        assert!(now <= left && left - now <= SWEPT_PLACES, "{left} before a turn, {now} after it");
        // Ports have their turns as well.
        (left, turns) = (now, turns + 1);
        assert!(turns < 1000, "{left} are left");
    }
    assert_eq!(left, 0);
    // What a turn took is counted when the next one is given.
    assert!(worker.seats.own_spent().used_ns > before);
    worker.pump();
    assert!(!worker.has_own_work());
}

#[test]
fn a_receiver_whose_stack_is_slow_takes_its_own_tenants_time_also_where_few_frames_are() {
    for every in [1, 3, 100] {
        let (mut worker, mut far, _chores) = by_hand();
        let mut pool = Pool::new(PoolLimits::default());
        let (near, slow_far) = pair(FRAMES, OffloadSupport::ALL);
        far[1] = slow_far;
        let slow = Timed { slow_every: every, ..Timed::new(near) };
        let slow_ns = std::sync::Arc::clone(&slow.slow_ns);
        worker.outside.devices[1] = Device::new(Box::new(slow), 0, PortId(1));
        // Long enough that one burst of slow frames, which is charged afterwards, is no quarter.
        while worker.seats.tenant_spent(0, 1).used_ns < 200 * SLOW_NS {
            overloaded_turn(&mut worker, &mut far, &mut pool, &[0, 2]);
        }
        // Both have half of the time. That of the other is what it was charged for.
        let slow_ns = slow_ns.load(std::sync::atomic::Ordering::Relaxed);
        let other_ns = worker.seats.tenant_spent(0, 1).used_ns;
        assert!(slow_ns < other_ns * 5 / 4, "every {every}: {slow_ns} beside {other_ns} ns");
        assert!(slow_ns > other_ns / 4, "every {every}: it has its part: {slow_ns} beside {other_ns} ns");
    }
}

#[test]
fn a_sender_pays_no_more_for_a_slow_receiver_than_some_times_the_usual() {
    let (mut worker, _far, _chores) = by_hand();
    let usual_ns = worker.outside.costs.write.of(1, 60);
    let spent = |worker: &mut Worker, port| {
        worker.take_a_turn();
        worker.seats.spent(Backing::Device(port)).used_ns
    };
    let before = [2, 1].map(|port| spent(&mut worker, port));
    let written = Written { frames: 1, bytes: 60, segments: 1, usual_ns };
    let Worker { outside, seats, .. } = &mut worker;
    let target = Target { payer: Some(Backing::Device(2)), device: 1, is_uplink: false };
    outside.charge_write(seats, target, written, 1_000_000);
    let after = [2, 1].map(|port| spent(&mut worker, port));
    let [sender, receiver] = [0, 1].map(|i| after[i] - before[i]);
    assert!(sender <= usual_ns * 5 && receiver > 900_000, "{sender} and {receiver} ns");
}

#[test]
fn what_a_frame_costs_behind_a_link_its_sender_pays_and_copies_of_it_the_link() {
    let (mut worker, _far, _chores) = by_hand();
    let (link, device) = (Backing::Link(0, Side::B), 3);
    worker.seats.claim(link, Claim { switch: 1, payer: Payer::Tenant(0), tenant_weight: 1, weight: 1 });
    let mut link_slot = LinkSlot::new(LinkConfig::default(), [(0, PortId(1)), (1, PortId(1))]);
    let usual_ns = worker.outside.costs.write.of(1, 60);
    let spent = |worker: &mut Worker| {
        worker.take_a_turn();
        [Backing::Device(0), link].map(|way| worker.seats.spent(way).used_ns)
    };
    let before = spent(&mut worker);
    link_slot.charge_crossing(&mut worker.seats, (0, Side::B), Some(Backing::Device(0)), (1_000_000, usual_ns));
    worker.outside.link_slots.push(Some(Box::new(link_slot)));
    let crossed = spent(&mut worker);
    let target = Target { payer: Some(link), device, is_uplink: false };
    let written = Written { frames: 1, bytes: 60, segments: 1, usual_ns };
    let write = |worker: &mut Worker| {
        worker.outside.charge_price(&mut worker.seats, target, written, usual_ns);
        spent(worker)
    };
    let (first, second) = (write(&mut worker), write(&mut worker));
    // Ports that are asked in each turn pay for that.
    let asked_ns = crossed[0] - before[0] - 1_000_000 - usual_ns;
    assert!(asked_ns < 1_000_000, "the sender pays, whatever becomes of it: {asked_ns}");
    assert_eq!((crossed[1], first[1]), (before[1], before[1]), "so the link does not");
    assert_eq!(second[1] - first[1], usual_ns, "a copy is not paid for");
}

/// A port that hands over what it took only when it is flushed, which takes some time, and counts
/// bursts.
struct Batching {
    port: PairPort,
    held: Vec<Frame>,
    flush_ns: u64,
    bursts: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

impl Batching {
    fn new(port: PairPort, flush_ns: u64) -> Batching {
        Batching { port, held: Vec::new(), flush_ns, bursts: std::sync::Arc::default() }
    }
}

impl Port for Batching {
    fn features(&self) -> ports::Features {
        self.port.features()
    }

    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.port.fd()
    }

    fn rx(&mut self, pool: &mut Pool, burst: usize, out: &mut Vec<Frame>) -> Result<usize, PortError> {
        self.port.rx(pool, burst, out)
    }

    fn write(&mut self, pool: &mut Pool, frame: &Frame) -> Result<(), Refused> {
        self.held.push(pool.duplicate(frame).ok_or(Refused::Full)?);
        Ok(())
    }

    fn flush(&mut self, pool: &mut Pool) -> Result<bool, Unsent> {
        self.bursts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        pass_ns(self.flush_ns);
        let refused: Vec<Refused> = self.held.drain(..).filter_map(|frame| self.port.tx(pool, frame).err()).collect();
        match refused.first() {
            None => Ok(true),
            Some(&first) => Err(Unsent { frames: refused.len() as u64, refused: first }),
        }
    }

    fn drops_before_us(&mut self) -> Result<u64, PortError> {
        Ok(0)
    }
}

#[test]
fn a_port_may_hand_over_a_burst_at_once_and_what_it_cannot_is_counted() {
    let (mut worker, mut far, _chores) = by_hand();
    let mut pool = Pool::new(PoolLimits::default());
    let (near, end) = pair(2, OffloadSupport::ALL);
    let batching = Batching::new(near, 0);
    let bursts = std::sync::Arc::clone(&batching.bursts);
    worker.outside.devices[3] = Device::new(Box::new(batching), 0, PortId(3));
    far[3] = end;
    for _ in 0..3 {
        let frame = pool.alloc_from(&frame(2, 3)).unwrap();
        far[2].tx(&mut pool, frame).unwrap();
    }
    for _ in 0..20 {
        worker.do_what_is_due();
        worker.take_a_turn();
        worker.pump();
    }
    assert_eq!(empty(&mut far[3], &mut pool), 2, "the far end has room for two");
    assert_eq!(
        worker.switch_slots[0].switch.endpoint_stats(datapath::program::EndpointId(3)).drops.get(Reason::PortDown),
        1
    );
    assert_eq!(bursts.load(std::sync::atomic::Ordering::Relaxed), 1, "all three were one burst");
    assert_eq!(worker.pool.in_use(), 0);
}

#[test]
fn publishing_bursts_of_one_frame_is_paid_by_who_sends_them_and_by_whom_is_slow_to_call() {
    const FLUSH_NS: u64 = 15_000;
    let (mut worker, mut far, _chores) = by_hand();
    let mut pool = Pool::new(PoolLimits::default());
    let (near, end) = pair(FRAMES, OffloadSupport::ALL);
    let batching = Batching::new(near, FLUSH_NS);
    let bursts = std::sync::Arc::clone(&batching.bursts);
    worker.outside.devices[3] = Device::new(Box::new(batching), 0, PortId(3));
    far[3] = end;
    let visit = |worker: &mut Worker| {
        worker.do_what_is_due();
        worker.take_a_turn();
        worker.pump();
    };
    visit(&mut worker);
    let spent = |worker: &Worker| [2, 3].map(|port| worker.seats.spent(Backing::Device(port)).used_ns);
    let before = spent(&worker);
    for count in 1..=100 {
        let frame = pool.alloc_from(&frame(2, 3)).unwrap();
        far[2].tx(&mut pool, frame).unwrap();
        let is_sent = (0..1000).any(|_| {
            visit(&mut worker);
            bursts.load(std::sync::atomic::Ordering::Relaxed) >= count
        });
        assert!(is_sent, "burst {count} is published");
        empty(&mut far[3], &mut pool);
    }
    // What was spent is known at the next turn.
    worker.seats.next_turn();
    let after = spent(&worker);
    let [sender_ns, receiver_ns] = [0, 1].map(|at| after[at] - before[at]);
    assert!(sender_ns + receiver_ns >= 100 * FLUSH_NS, "{sender_ns} and {receiver_ns} ns");
    let burst_ns = [sender_ns, receiver_ns].map(|ns| ns / 100);
    assert!(burst_ns[0] >= 4_000 && burst_ns[1] >= 6_000, "neither pays it all: {burst_ns:?} ns of a burst");
}

#[test]
fn as_many_frames_are_moved_at_once_as_are_cheap() {
    let moved = |frames, each_ns| Moved { frames, cost_ns: frames as u64 * each_ns };
    // Writes that are system calls: as few as there are to be.
    assert!(moved(16, 1_800).is_enough(16) && !moved(15, 100_000).is_enough(16));
    // Copies in memory: for as long as those would take, or many.
    assert!(!moved(16, 200).is_enough(16) && moved(80, 200).is_enough(16));
    assert!(!moved(127, 100).is_enough(16) && moved(128, 0).is_enough(64));
}

/// Writes down which ports got or lost a carrier, and asks for a round then.
#[derive(Debug, Default)]
struct Lines(std::sync::Arc<std::sync::Mutex<Vec<(PortId, bool)>>>);

impl datapath::protocol::Protocol for Lines {
    fn rx(&mut self, _now: Instant, _port: PortId, _frame: &[u8]) -> bool {
        false
    }

    fn carrier(&mut self, _now: Instant, port: PortId, is_up: bool) {
        self.0.lock().unwrap().push((port, is_up));
    }

    fn advance(&mut self, _now: Instant, _switch: &mut Switch) {}

    fn poll_timeout(&self) -> Option<Instant> {
        (!self.0.lock().unwrap().is_empty()).then_some(Instant::ZERO)
    }

    fn poll_command(&mut self) -> Option<datapath::protocol::Command> {
        None
    }
}

#[test]
fn a_switch_s_protocols_are_told_of_carriers_and_say_when_they_are_due() {
    let (mut worker, _far, _chores) = by_hand();
    let lines = Lines::default();
    let seen = std::sync::Arc::clone(&lines.0);
    worker.switch_slots[0].protocols.add(Box::new(lines));
    worker.switch_slots[0].touched = false;
    worker.polled.clear();
    worker.seats.sleep(Backing::Device(0));
    for (device, is_up) in [(2, false), (2, true), (77, true)] {
        worker.carry_out(Request::Carrier { device, is_up });
    }
    assert_eq!(*seen.lock().unwrap(), [(PortId(2), false), (PortId(2), true)]);
    assert_eq!(worker.timeout(), Some(0));
}

/// A worker whose first three ports may be members of a bond.
struct Bonds {
    worker: Worker,
    tasks: Receiver<Task>,
    far: Vec<PairPort>,
    rate: datapath::units::Both<datapath::units::Rate>,
}

impl Bonds {
    fn new() -> Bonds {
        let (mut worker, far, tasks) = by_hand();
        let rate = datapath::units::Rate(1_000_000_000);
        let rate = datapath::units::Both { egress: rate, ingress: rate };
        // No endpoint but the last: the other ports may be members.
        for endpoint in 0..3 {
            let change = Change::Endpoint(EndpointId(endpoint), None);
            worker.begin(vec![Edit::Change(0, change)]).unwrap();
        }
        Bonds { worker, tasks, far, rate }
    }

    /// The bond is so now; members by their ports.
    fn post(&mut self, settings: &control::bond::Settings, ports: &[u32]) {
        self.post_with(settings, false, ports);
    }

    /// The same; frames may have numbers where `order` says so.
    fn post_with(&mut self, settings: &control::bond::Settings, order: bool, ports: &[u32]) {
        let members = ports.iter().map(|&port| datapath::program::Member { port: PortId(port), rate: self.rate });
        let bond = datapath::bond::BondSettings { mode: settings.mode, order, ..Default::default() };
        let uplink = datapath::program::Uplink::new(PortId(ports[0]), self.rate);
        let uplink = datapath::program::Uplink { members: members.collect(), bond: Some(bond), ..uplink };
        self.worker.begin(vec![Edit::Change(0, Change::Uplink(Some(uplink)))]).unwrap();
        let post = BondPost { settings: settings.clone(), notices: control::bond::Notices::default(), key: None };
        self.worker.begin(vec![Edit::Bond(0, Some(Box::new(post)))]).unwrap();
    }

    fn link(&mut self, device: usize, is_up: bool) {
        let link = control::bond::LinkState { is_up, ..Default::default() };
        self.worker.carry_out(Request::Link { device, link });
    }

    /// Rounds as the worker does them, and how many frames came to ports from `first` on.
    fn rounds(&mut self, pool: &mut Pool, first: usize) -> Vec<usize> {
        let mut got = vec![0; self.far.len() - first];
        for _ in 0..200 {
            let Worker { wake, seats, .. } = &mut self.worker;
            wake.wait(Some(0), |device| seats.wake(Backing::Device(device)));
            self.worker.do_what_is_due();
            self.worker.take_a_turn();
            self.worker.pump();
            got.iter_mut().zip(&mut self.far[first..]).for_each(|(got, far)| *got += empty(far, pool));
        }
        got
    }

    /// Time passes, and what the switch sends is carried: to the member that `leads` says, or
    /// nowhere.
    fn carry(&mut self, ns: u64, leads: impl Fn(u32) -> Option<u32>) {
        pass_ns(ns);
        self.worker.outside.look();
        let (now, switch) = (self.worker.outside.now, &mut self.worker.switch_slots[0].switch);
        while let Some((port, frame)) = switch.tx(&mut self.worker.pool, now) {
            if let Some(to) = leads(port.0) {
                switch.rx(&mut self.worker.pool, now, PortId(to), frame);
            } else {
                self.worker.pool.free(frame);
            }
        }
    }

    /// All that is told of the bond.
    fn news(&mut self) -> Vec<BondNews> {
        self.worker.outside.look();
        self.worker.run_bonds();
        let of_bond = |task| if let Task::Bond { news, .. } = task { Some(news) } else { None };
        self.tasks.try_iter().filter_map(of_bond).collect()
    }

    /// What is told of members, as the place and the state.
    fn told(&mut self) -> Vec<String> {
        self.worker.outside.look();
        self.worker.run_bonds();
        let tasks = self.tasks.try_iter();
        let command = |task| match task {
            Task::Bond { news: BondNews::Command(control::bond::Command::State(member, state)), .. } => {
                Some(format!("{} {}", member.0, state.name()))
            }
            _ => None,
        };
        tasks.filter_map(command).collect()
    }
}

#[test]
fn a_bond_whose_first_member_is_dead_at_the_start_waits_for_no_delay() {
    let mut bonds = Bonds::new();
    let hour = 3_600_000_000_000;
    let settings = control::bond::Settings { updelay_ns: hour, downdelay_ns: hour, ..Default::default() };
    bonds.post(&settings, &[0, 1]);
    assert_eq!(bonds.told(), ["0 distributing"], "until somebody says otherwise");
    bonds.link(1, true);
    bonds.link(0, false);
    assert_eq!(bonds.told(), ["1 distributing", "0 down"]);
}

/// A described frame is for the uplink, and none of its members is meant.
#[test]
fn what_is_described_comes_in_by_a_member_that_is_received_from() {
    let mut bonds = Bonds::new();
    let mode = datapath::bond::Mode::ActiveBackup;
    bonds.post(&control::bond::Settings { mode, ..Default::default() }, &[0, 1]);
    bonds.link(0, true);
    bonds.link(1, true);
    bonds.link(0, false);
    bonds.told();
    let (reply, answer) = sync_channel(1);
    let (bytes, offload) = (frame(9, 3), Offload::default());
    bonds.worker.carry_out(Request::Explain { switch: 0, port: PortId(0), bytes, offload, reply });
    let told = answer.try_recv().unwrap().unwrap();
    assert_eq!(told.steps[0], datapath::frame_trace::Step::Arrive(PortId(1), None), "{told}");
    assert_ne!(told.verdict, datapath::verdict::Verdict::Dropped(Reason::MemberInactive), "{told}");
}

#[test]
fn what_is_heard_of_a_device_that_has_left_is_of_no_member() {
    let mut bonds = Bonds::new();
    bonds.post(&control::bond::Settings::default(), &[0, 1]);
    bonds.link(0, true);
    bonds.link(1, true);
    assert_eq!(bonds.told(), ["0 distributing", "1 distributing"]);
    bonds.worker.begin(vec![Edit::Device(2, None)]).unwrap();
    bonds.link(2, false);
    assert_eq!(bonds.told(), [""; 0]);
}

#[test]
fn a_member_whose_machine_is_gone_is_down_and_one_whose_port_is_about_to_be_another_is_not() {
    let mut bonds = Bonds::new();
    let mode = datapath::bond::Mode::ActiveBackup;
    bonds.post(&control::bond::Settings { mode, ..Default::default() }, &[0, 1]);
    bonds.link(0, true);
    bonds.link(1, true);
    bonds.told();
    let active = |bonds: &Bonds| bonds.worker.switch_slots[0].switch.members().position(|member| member.is_active);
    assert_eq!(active(&bonds), Some(0));
    let (reply, taken) = sync_channel(1);
    bonds.worker.carry_out(Request::Take { device: 0, reply });
    let port = taken.recv().unwrap().unwrap();
    assert_eq!(bonds.told(), [""; 0]);
    bonds.worker.carry_out(Request::Absent { device: 0 });
    assert_eq!(bonds.told(), ["0 down"]);
    assert_eq!((active(&bonds), bonds.worker.outside.devices[0].use_.losses), (Some(1), 1));
    bonds.worker.carry_out(Request::Restore { device: 0, port, back: None });
    bonds.worker.carry_out(Request::Absent { device: 0 });
    assert_eq!(bonds.told(), ["0 distributing"], "it is there again");
    assert_eq!(bonds.worker.outside.devices[0].use_.losses, 1);
}

#[test]
fn what_a_bond_waits_for_goes_on_over_changes() {
    let mut bonds = Bonds::new();
    let settings = control::bond::Settings { updelay_ns: 290_000_000, ..Default::default() };
    bonds.post(&settings, &[0, 1]);
    bonds.link(0, true);
    bonds.link(1, true);
    assert_eq!(bonds.told(), ["0 distributing"]);
    // The configuration changes each 100 ms, and members have other places.
    for (round, ports) in [[1, 0], [0, 1], [1, 0]].iter().enumerate() {
        pass_ns(100_000_000);
        bonds.post(&settings, ports);
        let told = bonds.told();
        assert_eq!(told, if round < 2 { &[][..] } else { &["0 distributing"] });
    }
}

#[test]
fn who_gets_the_number_of_a_switch_gets_nothing_of_its_bond() {
    let mut bonds = Bonds::new();
    let settings = control::bond::Settings { downdelay_ns: 3_600_000_000_000, ..Default::default() };
    let program = bonds.worker.switch_slots[0].switch.program().clone();
    bonds.post(&settings, &[0, 1]);
    bonds.link(0, true);
    bonds.link(1, true);
    bonds.told();
    bonds.link(1, false);
    assert_eq!(bonds.told(), [""; 0], "it waits");
    let switch = |program| Edit::Switch(0, Box::new(Switch::new(program, 1).unwrap()));
    let empty = Program::default();
    bonds.worker.begin(vec![switch(&empty)]).unwrap();
    assert_eq!(bonds.told(), [""; 0]);
    assert_eq!(bonds.worker.members_state(0), datapath::bond::MembersState::default());
    let backing = |n: u32| Edit::Backing(0, PortId(n), Some(Backing::Device(n as usize)));
    bonds.worker.begin(vec![switch(&program), backing(0), backing(1)]).unwrap();
    bonds.post(&settings, &[0, 1]);
    bonds.told();
    bonds.link(0, true);
    bonds.link(1, false);
    assert_eq!(bonds.told(), ["1 down"], "it was so from the beginning");
}

#[test]
fn what_a_change_of_a_bond_does_to_its_members_is_told() {
    let mut bonds = Bonds::new();
    let of = |mode| control::bond::Settings { mode, ..Default::default() };
    bonds.post(&of(datapath::bond::Mode::BalanceXor), &[0, 1]);
    bonds.link(0, true);
    bonds.link(1, true);
    assert_eq!(bonds.told(), ["0 distributing", "1 distributing"]);
    // Nobody speaks LACP at the other end.
    bonds.post(&of(datapath::bond::Mode::Lacp), &[1, 0]);
    let mut told = bonds.told();
    told.sort();
    assert_eq!(told, ["0 standby", "1 standby"]);
    bonds.post(&of(datapath::bond::Mode::Lacp), &[0, 1]);
    assert_eq!(bonds.told(), [""; 0], "nothing has changed");
    bonds.post(&of(datapath::bond::Mode::BalanceXor), &[0, 1, 2]);
    let mut told = bonds.told();
    told.sort();
    assert_eq!(told, ["0 distributing", "1 distributing", "2 distributing"]);
    bonds.post(&of(datapath::bond::Mode::BalanceXor), &[2]);
    assert_eq!(bonds.told(), [""; 0], "it stays as it was");
}

/// Both members' cable is one, with an end at each.
#[test]
fn a_bond_with_numbers_that_leads_back_is_told_once() {
    let mut bonds = Bonds::new();
    bonds.post_with(&control::bond::Settings::default(), true, &[0, 1]);
    (0..2).for_each(|member| bonds.link(member, true));
    assert_eq!(bonds.told(), ["0 distributing", "1 distributing"]);
    let back = |port| Some(1 - port);
    bonds.carry(1_000_000, back);
    assert_eq!(bonds.news(), [], "it may be for a moment");
    bonds.carry(STEADY_NS, back);
    let [one, two] = [0, 1].map(|n| BondNews::Looped(datapath::bond::MemberId(n)));
    assert_eq!(bonds.news(), [BondNews::Plain(Some(datapath::bond::Plain::Looped)), one, two]);
    for _ in 0..20 {
        bonds.carry(STEADY_NS, back);
        assert_eq!(bonds.news(), [], "once");
    }
}

/// Nobody speaks LACP: the member that is not used is out of sync, and that is told after a minute.
#[test]
fn a_member_that_churns_is_told() {
    let mut bonds = Bonds::new();
    bonds.post(&control::bond::Settings { mode: datapath::bond::Mode::Lacp, ..Default::default() }, &[0, 1]);
    (0..2).for_each(|member| bonds.link(member, true));
    let churns = BondNews::Churned(datapath::bond::MemberId(1), false, true);
    let mut seconds = 0;
    while !bonds.news().contains(&churns) {
        assert!(seconds < 90, "it is never told");
        (0..4).for_each(|_| bonds.carry(250_000_000, |_| None));
        seconds += 1;
    }
    assert!(seconds > 55, "after {seconds} s");
}

#[test]
fn members_that_another_process_used_are_used_at_once() {
    let mut bonds = Bonds::new();
    let settings = control::bond::Settings { updelay_ns: 3_600_000_000_000, ..Default::default() };
    bonds.post(&settings, &[0, 1, 2]);
    let mut state = bonds.worker.switch_slots[0].switch.export(Instant(1));
    let line = datapath::bond::LineState::default();
    state.bond =
        Some(datapath::bond::PeerState { members: vec![(datapath::bond::MemberId(2), line)], ..Default::default() });
    bonds.worker.import(0, &state, 0).unwrap();
    assert_eq!(bonds.told(), ["0 distributing", "2 distributing"]);
    assert_eq!(bonds.worker.members_state(0).used, [0, 2].map(datapath::bond::MemberId));

    // Of other modes it says who was used, and who was active.
    let mut bonds = Bonds::new();
    bonds.post(&control::bond::Settings { mode: datapath::bond::Mode::ActiveBackup, ..settings }, &[0, 1, 2]);
    let used = [1, 2].map(datapath::bond::MemberId).to_vec();
    let active = Some(used[0]);
    state.members = datapath::bond::MembersState { used, active, is_chosen: true };
    bonds.worker.import(0, &state, 0).unwrap();
    assert_eq!(bonds.told(), ["0 distributing", "1 distributing", "2 distributing"]);
    let active = bonds.worker.switch_slots[0].switch.members().position(|member| member.is_active);
    assert_eq!((active, bonds.worker.members_state(0).is_chosen), (Some(1), true));
}

/// Copies of what comes by one member are made at the turns of the first, whether its device is
/// there or not.
#[test]
fn a_bond_whose_first_member_is_lost_copies_broadcasts_from_the_others() {
    const FIRST: u32 = 4;
    const MANY: u32 = 60;
    let mut bonds = Bonds::new();
    let tenant = Tenant { attachment: Attachment::Untagged, ..Tenant::default() };
    let mut edits = vec![Edit::Change(0, Change::Tenant(TenantId(2), Some(tenant)))];
    for n in FIRST..FIRST + MANY {
        let (near, far) = pair(FRAMES, OffloadSupport::ALL);
        bonds.far.push(far);
        let (id, device) = (PortId(n), Device::new(Box::new(Timed::new(near)), 0, PortId(n)));
        let endpoint = Endpoint { max_learned: 1, ..Endpoint::new(TenantId(2), id) };
        edits.extend([
            Edit::Backing(0, id, Some(Backing::Device(n as usize))),
            Edit::Change(0, Change::Port(id, Some(PortFeatures::default()))),
            Edit::Change(0, Change::Endpoint(EndpointId(n), Some(endpoint))),
            Edit::Device(n as usize, Some(Box::new(device))),
        ]);
    }
    let claim = |n: u32| {
        let payer = if n < FIRST { Payer::Uplink } else { Payer::Tenant(2) };
        (Backing::Device(n as usize), Claim { switch: 0, payer, tenant_weight: 1, weight: 1 })
    };
    edits.push(Edit::Claims([0, 1].into_iter().chain(FIRST..FIRST + MANY).map(claim).collect()));
    bonds.worker.begin(edits).unwrap();
    bonds.post(&control::bond::Settings::default(), &[0, 1]);
    (0..2).for_each(|member| bonds.link(member, true));
    bonds.told();
    bonds.worker.lose(0, "it was deleted".to_owned());
    bonds.told();
    let mut pool = Pool::new(PoolLimits::default());
    bonds.rounds(&mut pool, FIRST as usize);
    for _ in 0..2 {
        let ask = build::arp_request(mac(200), [10, 0, 0, 200].into(), [10, 0, 0, 1].into());
        let frame = ask.frame(&mut pool).unwrap();
        bonds.far[1].tx(&mut pool, frame).unwrap();
        assert_eq!(bonds.rounds(&mut pool, FIRST as usize), [1; MANY as usize]);
    }
    assert!(!bonds.worker.switch_slots[0].switch.has_work(PortId(0)));
}

#[test]
fn no_switch_s_events_wait_for_all_of_another() {
    let (mut worker, mut far, chores) = by_hand();
    (1..3).for_each(|_| add_switch(&mut worker, &mut far));
    let now = datapath::units::Instant(1_000_000_000);
    let Worker { switch_slots, pool, .. } = &mut worker;
    for switch in switch_slots.iter_mut().map(|slot| &mut slot.switch) {
        let endpoints: Vec<_> = switch.program().endpoints.iter().map(|(id, one)| (id, one.clone())).collect();
        for (id, endpoint) in &endpoints {
            let learned = Endpoint { identity: Identity::default(), ..endpoint.clone() };
            switch.change(pool, now, Change::Endpoint(EndpointId(*id), Some(learned))).unwrap();
        }
        // Of each two, either has an address that moved to the other, and claims it.
        for (id, _) in endpoints {
            for from in [id, id ^ 1, id] {
                let sent = build::eth(mac(50 + id as u8), Mac::BROADCAST).payload(vec![0; 46]).frame(pool).unwrap();
                let _ = switch.rx(pool, now, PortId(from), sent);
                while let Some((_, frame)) = switch.tx(pool, now) {
                    pool.free(frame);
                }
            }
        }
    }
    let mut all = Vec::new();
    for _ in 0..2 {
        worker.report_events();
        let told: Vec<usize> = chores
            .try_iter()
            .filter_map(|task| if let Task::Event { switch, .. } = task { Some(switch) } else { None })
            .collect();
        assert_eq!(told.len(), 4, "as many as there may be lines");
        all.extend(told);
    }
    assert_eq!(all, [0, 1, 2, 0, 1, 2, 0, 0]);
}
