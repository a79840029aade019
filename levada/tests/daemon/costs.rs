//! What the simulator believes that a worker's operations cost, beside what a live one measures:
//! the kernel's part is measured without a worker, the switch's is its instructions at the speed of
//! here and now. Segments and copies, in which the kernel has no part, are timed without a worker.

use crate::testbed::{Bed, Daemon, turn};
use datapath::frame::{Frame, Pool, PoolLimits};
use datapath::wire::{Mac, build};
use ports::Port;
use ports::tap::{Tag, Tap, TapOptions};
use sim::costs::{Cost, Costs, FORWARD_INSTRUCTIONS};
use sim::work::{Work, Workplace};
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Two neighbours whose devices take datagrams of almost 64 KiB in one piece.
const CONFIG: &str = r#"
[daemon]
name = "NAME"
[[switch]]
name = "s"
[[switch.tenant]]
name = "t"
[[switch.tenant.endpoint]]
name = "a"
port = "tap://a0"
netns = "NS-a"
mac = "02:00:00:00:00:01"
address = ["10.0.0.1/24"]
mtu = 65521
[[switch.tenant.endpoint]]
name = "b"
port = "tap://b0"
netns = "NS-b"
mac = "02:00:00:00:00:02"
address = ["10.0.0.2/24"]
mtu = 65521
"#;
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// The device without a worker, and an address behind it.
const C: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const C_MAC: Mac = Mac([2, 0, 0, 0, 0, 3]);
const BEHIND: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);
const BEHIND_MAC: Mac = Mac([2, 0, 0, 0, 0, 4]);
const UDP_PORT: u16 = 9;
/// Payloads of datagrams, and the headers before them. Levada says what frames of 60 bytes and of
/// 64 KiB cost.
const PAYLOADS: [usize; 2] = [18, 60_000];
const HEADERS: usize = 42;
const SAID: [u64; 2] = [60, 65_536];
/// Most rounds, and those after which it may be enough. A machine that others use is given several
/// chances to be the same for both for a while.
const ROUNDS: (usize, usize) = (15, 3);
/// What the simulator may be wrong by.
const WRONG: f64 = 0.2;

/// The median of many measurements, so that those in which something else ran do not count.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Time of one part of what `act` does, in nanoseconds; it says how many parts those were.
fn timed(act: impl FnOnce() -> usize) -> f64 {
    let start = Instant::now();
    let parts = act();
    start.elapsed().as_nanos() as f64 / parts as f64
}

/// A device that nobody but this test reads and writes.
struct Bare {
    tap: Tap,
    pool: Pool,
    socket: UdpSocket,
}

impl Bare {
    fn new(bed: &Bed) -> Bare {
        let options = TapOptions {
            name: "c0".into(),
            netns: Some(bed.space("c")),
            mac: Some(C_MAC),
            mtu: Some(65_521),
            longest_offload: None,
            addresses: vec![(C.into(), 24)],
            persistent: false,
            txqueuelen: None,
            without_ipv6: true,
            tag: Tag { instance: "costs".into(), endpoint: "c".into() },
        };
        let tap = Tap::open(&options).unwrap();
        bed.ip("c", &format!("neigh add {BEHIND} lladdr 02:00:00:00:00:04 dev c0")).unwrap();
        let socket = bed.socket("c", (C, UDP_PORT));
        Bare { tap, pool: Pool::new(PoolLimits::default()), socket }
    }

    /// What reading and writing a frame with this payload cost, in nanoseconds.
    fn costs_ns(&mut self, payload: usize) -> [f64; 2] {
        let frame = build::eth(BEHIND_MAC, C_MAC).ipv4(BEHIND, C).udp(1, UDP_PORT).payload(vec![0; payload]);
        let bytes = frame.bytes();
        // As few at a time as a worker finds that keeps up; it asks for more, and is told that
        // there are none.
        let (burst, asked) = (4, 32);
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            (0..burst).for_each(|_| drop(self.socket.send_to(&vec![0; payload], (BEHIND, UDP_PORT))));
            let mut read: Vec<Frame> = Vec::new();
            reads.push(timed(|| self.tap.rx(&mut self.pool, asked, &mut read).unwrap().max(1)));
            read.into_iter().for_each(|frame| self.pool.free(frame));
            for _ in 0..burst {
                let frame = self.pool.alloc_from(&bytes).unwrap();
                writes.push(timed(|| usize::from(self.tap.tx(&mut self.pool, frame).is_ok())));
            }
        }
        [median(reads), median(writes)]
    }
}

/// What an instruction of the switch takes, in nanoseconds.
fn instruction_ns() -> f64 {
    let mut place = Workplace::new(Work::Forward);
    let parts = (0..2_000).map(|_| timed(|| place.step() as usize)).collect();
    median(parts) / FORWARD_INSTRUCTIONS as f64
}

/// What is made of a frame, its length, and what it is called: segments with their headers, and a
/// copy.
const MADE: [(Work, u64, &str); 3] = [
    (Work::Cut(32), 98, "a segment of 32 bytes"),
    (Work::Cut(1400), 1466, "a segment of 1400 bytes"),
    (Work::Copy, 60, "a copy"),
];

/// What making each takes here and now, and what the simulator would have it take, in nanoseconds.
fn compare_made(places: &mut [Workplace; 3]) -> [(f64, f64); 3] {
    let costs = Costs::at(instruction_ns(), Cost::default(), Cost::default());
    [0, 1, 2].map(|i| {
        let (work, bytes, _) = MADE[i];
        let parts = (0..200).map(|_| timed(|| places[i].step() as usize)).collect();
        let cost = if work == Work::Copy { costs.copy } else { costs.cut };
        (median(parts), cost.of(1, bytes) as f64 / 1e3)
    })
}

#[test]
#[ignore = "the calm of the machine decides it; run it by name (SPECIFICATION.md)"]
fn segments_and_copies_take_what_the_simulator_believes() {
    let Some(_turn) = turn("segments_and_copies_take_what_the_simulator_believes") else { return };
    let mut places = MADE.map(|(work, ..)| Workplace::new(work));
    let mut ratios = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..ROUNDS.0 {
        let compared = compare_made(&mut places);
        println!("measured and believed, in ns, of segments of 32 and 1400 bytes and of a copy: {compared:.0?}");
        ratios.iter_mut().zip(compared).for_each(|(all, (measured, believed))| all.push(believed / measured));
        let holds = ratios.iter().all(|all| (median(all.clone()) - 1.0).abs() <= WRONG);
        if round + 1 >= ROUNDS.1 && holds {
            break;
        }
    }
    for ((.., what), all) in MADE.into_iter().zip(ratios) {
        let ratio = median(all);
        assert!((ratio - 1.0).abs() <= WRONG, "{what}: the simulator has {ratio:.2} of what it takes");
    }
}

/// A cost that is `ns` for frames with each of the payloads.
fn cost(ns: [f64; 2]) -> Cost {
    let [short, long] = PAYLOADS.map(|payload| (payload + HEADERS) as f64);
    let byte_ns = (ns[1] - ns[0]) / (long - short);
    Cost { each_ps: ((ns[0] - byte_ns * short) * 1e3) as u64, byte_ps: (byte_ns * 1e3) as u64 }
}

/// What a frame costs as the worker has measured it, and as the simulator would have it, in
/// nanoseconds.
fn compare(daemon: &Daemon, bare: &mut Bare) -> [(f64, f64); 2] {
    let [short, long] = PAYLOADS.map(|payload| bare.costs_ns(payload));
    let costs = Costs::at(instruction_ns(), cost([short[0], long[0]]), cost([short[1], long[1]]));
    println!("read {} {}, write {} {}, instruction {:.3} ns", short[0], long[0], short[1], long[1], instruction_ns());
    let report = daemon.show();
    [0, 1].map(|i| {
        let measured = report["worker"]["frame_cost_ns"][i].as_f64().unwrap();
        (measured, costs.frame_ps(SAID[i]) as f64 / 1e3)
    })
}

/// Sends datagrams of both lengths from a to b until it is told to stop, in bursts as they come
/// from applications.
fn load(bed: &Bed, stop: &AtomicBool) -> io::Result<()> {
    let socket = bed.socket("a", (Ipv4Addr::UNSPECIFIED, 0));
    while !stop.load(Ordering::Relaxed) {
        for (payload, burst) in PAYLOADS.into_iter().zip([32, 4]) {
            (0..burst).for_each(|_| drop(socket.send_to(&vec![0; payload], (B, UDP_PORT))));
            std::thread::sleep(Duration::from_micros(500));
        }
    }
    Ok(())
}

#[test]
#[ignore = "the calm of the machine decides it; run it by name (SPECIFICATION.md)"]
fn a_live_worker_measures_what_the_simulator_believes() {
    let Some(_turn) = turn("a_live_worker_measures_what_the_simulator_believes") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = bed.start(CONFIG);
    let mut bare = Bare::new(&bed);
    let _sink = bed.socket("b", (B, UDP_PORT));
    let stop = AtomicBool::new(false);
    let mut ratios = [Vec::new(), Vec::new()];
    std::thread::scope(|scope| {
        scope.spawn(|| load(&bed, &stop).unwrap());
        for round in 0..ROUNDS.0 {
            std::thread::sleep(Duration::from_millis(300));
            let compared = compare(&daemon, &mut bare);
            println!("measured and believed, in ns, of 60 bytes and of 64 KiB: {compared:.0?}");
            ratios.iter_mut().zip(compared).for_each(|(all, (measured, believed))| all.push(believed / measured));
            let holds = ratios.iter().all(|all| (median(all.clone()) - 1.0).abs() <= WRONG);
            if round + 1 >= ROUNDS.1 && holds {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    for (bytes, all) in SAID.into_iter().zip(ratios) {
        let ratio = median(all);
        assert!(
            (ratio - 1.0).abs() <= WRONG,
            "a frame of {bytes} bytes: the simulator has {ratio:.2} of what it costs"
        );
    }
}
