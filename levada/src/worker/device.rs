//! A device of the worker: an opened port, or the place of one that is gone.

use datapath::intake::FULL;
use datapath::intake::thin::Thinned;
use datapath::program::PortId;
use datapath::turns::{Cost, Spent};
use datapath::units::Instant;
use ports::AnyPort;

/// What is read at the first guess, in nanoseconds: a system call and the switch's own work
/// (design: 1.7 to 2.8 us a small frame with both ways, a 64 KiB copy at 10 to 20 GB/s).
const READ: Cost = Cost::new(1_200, 80);
/// What writing costs at the first guess: the receiver's network stack runs in the call.
const WRITE: Cost = Cost::new(1_800, 100);

/// What making a segment or a copy costs at the first guess: the switch's work, and a pass over the
/// bytes.
const MAKE: Cost = Cost::new(200, 80);

/// A ring fills from where on what comes next waits for so long, and does so until it waits for so
/// long only, in nanoseconds.
const FILLS_NS: u64 = 200_000;
const FILLS_STILL_NS: u64 = 50_000;
/// One whose port cannot tell fills if it has not been empty for so long. A TAP's 500 places take
/// 0.4 ms of the shortest frames at 1 Gbit/s.
const NOT_EMPTY_NS: u64 = 500_000;
/// What the kernel counts for a frame beside its bytes (`struct sk_buff`, and what is around the
/// data), in bytes.
const FRAME_OVERHEAD: u64 = 700;

/// What this worker has measured that frames cost.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Reading one and forwarding it.
    pub read: Cost,
    /// Writing one.
    pub write: Cost,
    /// Making one of another: a segment, or a copy.
    pub make: Cost,
}

impl Default for Costs {
    fn default() -> Self {
        Costs { read: READ, write: WRITE, make: MAKE }
    }
}

/// One device.
pub struct Device {
    /// The open port; `None` while it is gone.
    pub port: Option<AnyPort>,
    /// Its switch, and its number there.
    pub switch: usize,
    /// Its number there.
    pub id: PortId,
    /// Whether the switch asked not to read it for now.
    pub is_paused: bool,
    /// Whether frames were handed to the port since it was flushed.
    pub is_written: bool,
    /// The uplink's: its ring fills.
    pub fills: bool,
    /// How full it was then, of [`FULL`].
    pub full: u32,
    /// Its port drops a part of what arrives for some (`thin.rs`).
    pub is_thinned: bool,
    /// Since when each read has left something in it.
    pub full_since: Option<Instant>,
    /// What reading it and writing to it cost (`prices.rs`).
    pub read: Cost,
    pub write: Cost,
    /// Estimate of what one of its frames costs, in nanoseconds: how many fit into a turn.
    pub frame_ns: u64,
    /// What is counted of it.
    pub use_: Use,
}

/// What the worker spent on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Use {
    /// Whether it is open.
    pub is_up: bool,
    /// How often it went away.
    pub losses: u64,
    /// Time spent reading it and forwarding what came.
    pub read_ns: u64,
    /// Time spent writing to it.
    pub write_ns: u64,
    /// What its port was charged, and how long others used the worker while it had something to do.
    pub spent: Spent,
}

impl Device {
    /// A device that is up.
    pub fn new(port: AnyPort, switch: usize, id: PortId) -> Device {
        let mut device = Device::absent(switch, id);
        device.restore(port);
        device
    }

    /// The place of a device that is yet to come.
    pub fn absent(switch: usize, id: PortId) -> Device {
        Device {
            port: None,
            switch,
            id,
            is_paused: false,
            is_written: false,
            fills: false,
            full: 0,
            is_thinned: false,
            full_since: None,
            read: READ,
            write: WRITE,
            frame_ns: 10_000,
            use_: Use::default(),
        }
    }

    /// What a number that is free stands for. No switch has a port of this number: what is still
    /// heard of a device that has left is of nobody.
    pub fn none() -> Device {
        Device::absent(0, PortId(u32::MAX))
    }

    /// Puts a newly opened port in.
    pub fn restore(&mut self, port: AnyPort) {
        (self.is_paused, self.is_written) = (false, false);
        (self.fills, self.is_thinned, self.full_since) = (false, false, None);
        self.use_.is_up = true;
        self.port = Some(port);
    }

    /// The uplink was read: frames of `mean` bytes, and something was left in its ring, or nothing.
    /// Whether the ring fills: what comes next would wait for [`FILLS_NS`], until it would for
    /// [`FILLS_STILL_NS`] only. Where its port cannot tell how much waits, a ring fills that has
    /// not been empty for [`NOT_EMPTY_NS`].
    pub fn note_left(&mut self, now: Instant, is_left: bool, mean: u64) -> bool {
        self.full = 0;
        self.full_since = is_left.then(|| self.full_since.unwrap_or(now));
        self.fills = self.full_since.is_some_and(|since| match self.port.as_ref().and_then(|port| port.waiting()) {
            Some(waiting) => {
                self.full = (waiting.bytes.min(waiting.room) * u64::from(FULL) / waiting.room.max(1)) as u32;
                let wait_ns = waiting.bytes / (mean + FRAME_OVERHEAD) * self.frame_ns;
                wait_ns >= if self.fills { FILLS_STILL_NS } else { FILLS_NS }
            }
            None => now.since(since) >= NOT_EMPTY_NS,
        });
        self.fills
    }

    /// Has the port drop all but a part of what arrives for these; nothing, if it is empty. Whether
    /// it does.
    pub fn thin(&mut self, thinned: &[Thinned]) -> bool {
        let Some(port) = self.port.as_mut().filter(|_| self.is_thinned || !thinned.is_empty()) else { return true };
        let is_done = port.thin(thinned);
        if is_done {
            self.is_thinned = !thinned.is_empty();
        }
        is_done
    }

    /// Takes a port out that is about to be another.
    pub fn rest(&mut self) -> Option<AnyPort> {
        self.thin(&[]);
        self.use_.is_up = false;
        self.port.take()
    }

    /// Takes a lost port out.
    pub fn lose(&mut self) -> Option<AnyPort> {
        let port = self.port.take();
        self.use_.losses += u64::from(port.is_some());
        self.use_.is_up = false;
        port
    }
}
