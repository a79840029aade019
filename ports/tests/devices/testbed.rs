//! Namespaces, devices and a forwarding loop for tests. Everything made here is gone when its guard
//! is dropped, also in a panic.

use std::net::IpAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use datapath::frame::{Frame, Pool, PoolLimits};
use datapath::offload::Gso;
use datapath::wire::Mac;
use ports::netns::Netns;
use ports::tap::{Tag, Tap, TapOptions};
use ports::{Port, PortError, Refused};
use rustix::event::{PollFd, PollFlags, Timespec};

#[path = "../../src/skipped.rs"]
mod skipped;
pub use skipped::skipped;

/// Long enough for a slow machine; what has not happened by then is a failure.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Held by the test that runs. One at a time: a command that another test starts holds copies of
/// all descriptors for the moment before it drops them, and a device is not gone before the last of
/// them is.
pub type Turn = MutexGuard<'static, ()>;

/// Waits for the test's turn. `None` where devices and namespaces cannot be made: says on standard
/// error that `test` is skipped, and why.
pub fn turn(test: &str) -> Option<Turn> {
    static TURN: Mutex<()> = Mutex::new(());
    let why = if !rustix::process::geteuid().is_root() {
        "it needs root"
    } else if !std::path::Path::new("/dev/net/tun").exists() {
        "there is no /dev/net/tun: load the kernel module `tun`"
    } else if Command::new("ip").arg("-V").output().is_err() {
        "there is no `ip`: install iproute2"
    } else {
        return Some(TURN.lock().unwrap_or_else(PoisonError::into_inner));
    };
    skipped(test, why);
    None
}

/// As [`turn`], where programs can be loaded that take an interface, or pass frames by the switch.
pub fn bpf_turn(test: &str) -> Option<Turn> {
    let turn = turn(test)?;
    ports::packet::probe().map_err(|why| skipped(test, why)).ok()?;
    Some(turn)
}

/// A namespace with a name of its own, deleted when dropped.
pub struct Space(pub Netns);

impl Space {
    pub fn new() -> Space {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Space(Netns::create(&format!("ports-test-{}-{number}", std::process::id())).unwrap())
    }

    /// A name for the owner of the devices made for it, which no other test has.
    pub fn instance(&self) -> String {
        self.0.to_string()
    }

    /// Runs a command in it; returns what it printed, or what it complained of.
    pub fn command(&self, line: &str) -> Result<String, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let output = self.0.run(|| Command::new(words[0]).args(&words[1..]).output().unwrap()).unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    pub fn ip(&self, arguments: &str) -> String {
        self.command(&format!("ip {arguments}")).unwrap()
    }

    pub fn has(&self, device: &str) -> bool {
        self.command(&format!("ip link show dev {device}")).is_ok()
    }

    pub fn index(&self, device: &str) -> u32 {
        self.ip(&format!("-o link show dev {device}")).split(':').next().unwrap().trim().parse().unwrap()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = self.0.delete();
    }
}

/// A plain device in a namespace.
pub fn options(name: &str, space: &Space, addresses: &[&str]) -> TapOptions {
    TapOptions {
        name: name.into(),
        netns: Some(space.0.clone()),
        mac: None,
        mtu: None,
        longest_offload: None,
        addresses: addresses.iter().map(|text| address(text)).collect(),
        persistent: false,
        txqueuelen: None,
        without_ipv6: false,
        tag: Tag { instance: space.instance(), endpoint: name.into() },
    }
}

fn address(text: &str) -> (IpAddr, u8) {
    let (address, prefix) = text.split_once('/').unwrap();
    (address.parse().unwrap(), prefix.parse().unwrap())
}

/// Waits until something becomes true: the kernel takes namespaces down in the background.
pub fn soon(what: &str, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < PATIENCE, "{what}: not after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Two namespaces that reach each other through two devices and a loop.
pub struct Bed {
    pub left: Space,
    pub right: Space,
    pub forwarder: Forwarder,
}

pub const LEFT: [&str; 2] = ["10.9.0.1", "fd09::1"];
pub const RIGHT: [&str; 2] = ["10.9.0.2", "fd09::2"];

impl Bed {
    pub fn new(limits: PoolLimits) -> Bed {
        let (left, right) = (Space::new(), Space::new());
        let mut a = options("left0", &left, &["10.9.0.1/24", "fd09::1/64"]);
        a.mac = Some(Mac([2, 0, 0, 0, 9, 1]));
        let mut b = options("right0", &right, &["10.9.0.2/24", "fd09::2/64"]);
        b.mac = Some(Mac([2, 0, 0, 0, 9, 2]));
        let forwarder = Forwarder::start(Tap::open(&a).unwrap(), Tap::open(&b).unwrap(), Pool::new(limits));
        Bed { left, right, forwarder }
    }
}

/// What went through a loop.
pub struct Report {
    pub ports: [AnyPort; 2],
    pub frames: u64,
    pub tcp_segmented: u64,
    pub udp_segmented: u64,
    pub longest: usize,
    pub refused: Vec<Refused>,
    /// The device whose end ended the loop.
    pub ended: Option<(usize, PortError)>,
    pub frames_left_in_pool: usize,
}

/// A port that the loop may have on its thread.
pub type AnyPort = Box<dyn Port + Send>;

/// A thread that copies frames between two devices.
pub struct Forwarder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Report>>,
}

impl Forwarder {
    pub fn start<P: Port + Send + 'static, Q: Port + Send + 'static>(one: P, other: Q, pool: Pool) -> Forwarder {
        let ports: [AnyPort; 2] = [Box::new(one), Box::new(other)];
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        Forwarder { stop, thread: Some(std::thread::spawn(move || forward(ports, pool, &seen))) }
    }

    /// Waits for the loop to end by itself.
    pub fn wait(mut self) -> Report {
        let thread = self.thread.take().unwrap();
        soon("the loop ends", || thread.is_finished());
        thread.join().unwrap()
    }

    /// Ends the loop.
    pub fn finish(self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        self.wait()
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

const BURST: usize = 64;
const TENTH_OF_A_SECOND: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

fn forward(ports: [AnyPort; 2], mut pool: Pool, stop: &AtomicBool) -> Report {
    let mut report = Report {
        ports,
        frames: 0,
        tcp_segmented: 0,
        udp_segmented: 0,
        longest: 0,
        refused: Vec::new(),
        ended: None,
        frames_left_in_pool: 0,
    };
    let mut burst = Vec::with_capacity(BURST);
    while !stop.load(Ordering::Relaxed) && report.ended.is_none() {
        let mut fds = report.ports.each_ref().map(|port| PollFd::from_borrowed_fd(port.fd().unwrap(), PollFlags::IN));
        rustix::event::poll(&mut fds, Some(&TENTH_OF_A_SECOND)).unwrap();
        let ready = fds.map(|fd| !fd.revents().is_empty());
        for from in (0..2).filter(|from| ready[*from]) {
            match report.ports[from].rx(&mut pool, BURST, &mut burst) {
                Ok(_) => {}
                Err(error) => report.ended = Some((from, error)),
            }
            for frame in burst.drain(..) {
                count(&mut report, &pool, &frame);
                if let Err(refused) = report.ports[1 - from].tx(&mut pool, frame) {
                    report.refused.push(refused);
                }
            }
        }
    }
    report.frames_left_in_pool = pool.in_use();
    report
}

fn count(report: &mut Report, pool: &Pool, frame: &Frame) {
    report.frames += 1;
    report.longest = report.longest.max(pool.len(frame));
    match pool.meta(frame).offload.gso {
        Gso::None => {}
        Gso::Tcp4 | Gso::Tcp6 => report.tcp_segmented += 1,
        Gso::Udp => report.udp_segmented += 1,
    }
}
