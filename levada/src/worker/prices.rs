//! Prices: who is charged how much of the worker's time for what it does.
//!
//! A write runs the receiver's network stack in the call, and a guest decides what its stack does
//! with which frame: rules of a firewall, programs, a device further on. So each device has prices
//! of its own, the mean of what its frames took. What is far from that is charged as it was
//! measured, less the time for which the kernel let others run.
//!
//! The sender pays up to [`SLOW`] times what writing usually costs, and what cutting its frame
//! would cost; what is beyond is the receiver's. So nobody pays for another's slow stack: not who
//! answers it, and not the uplink for what it brings.

use super::device::Device;
use super::seats::Seats;
use super::{Backing, Outside};
use datapath::frame::{Frame, Pool};
use datapath::turns::Cost;
use std::fs::File;
use std::io::{Read, Seek};

/// How many times the usual price a sender pays for a slow receiver: stacks of honest guests differ
/// by less.
const SLOW: u64 = 4;
/// Most that is charged for one measurement, in nanoseconds: what a stall of the machine that the
/// kernel does not count may cost, and more than a guest's stack takes for a frame.
const MOST_NS: u64 = 10_000_000;

/// A frame that is to be written, as far as its price is concerned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub bytes: u64,
    /// Segments that it is on the wire: the kernel may cut it.
    pub segments: u64,
    /// What writing such a frame usually costs, in nanoseconds.
    pub usual_ns: u64,
    /// What it took; none where it was refused.
    pub took_ns: Option<u64>,
}

impl Written {
    /// A frame, before it is handed over.
    pub fn of(pool: &Pool, frame: &Frame, usual: &Cost) -> Written {
        let (bytes, size) = (pool.len(frame) as u64, u64::from(pool.meta(frame).offload.gso_size));
        let segments = if size > 0 { bytes.div_ceil(size) } else { 1 };
        Written { bytes, segments, usual_ns: usual.of(1, bytes), took_ns: None }
    }
}

impl Outside {
    /// Charges a write to a device: to `payer`, whose frame it is, and to the owner of the device.
    pub(super) fn charge_write(
        &mut self,
        seats: &mut Seats,
        payer: Option<Backing>,
        (device, is_uplink): (usize, bool),
        written: Written,
    ) {
        let Written { bytes, segments, usual_ns, took_ns } = written;
        // A frame that is refused, or whose port is gone, costs as much.
        let price_ns = took_ns.map_or(usual_ns, |ns| {
            let Outside { devices, stalls, .. } = self;
            let Device { write, .. } = &mut devices[device];
            price(write, stalls, (1, bytes), ns)
        });
        let cutting_ns = if segments > 1 { self.costs.make.of(segments, bytes) } else { 0 };
        let sender_ns = price_ns.min(usual_ns * SLOW + cutting_ns);
        if let Some(payer) = payer {
            seats.charge(payer, sender_ns);
        }
        if !is_uplink {
            seats.charge(Backing::Device(device), price_ns - sender_ns);
        }
    }
}

/// What `frames` with `bytes` in all cost that took `ns`.
pub(super) fn price(cost: &mut Cost, stalls: &mut Stalls, (frames, bytes): (u64, u64), ns: u64) -> u64 {
    if cost.is_far(frames, bytes, ns) {
        let most_ns = ns.saturating_sub(stalls.take_ns()).min(MOST_NS);
        return most_ns.max(cost.of(frames, bytes));
    }
    cost.follow(frames, bytes, ns);
    cost.of(frames, bytes)
}

/// How long this thread could have run and others did, as the kernel counts it
/// (Documentation/scheduler/sched-stats.rst).
#[derive(Debug, Default)]
pub struct Stalls {
    file: Option<File>,
    seen_ns: u64,
}

impl Stalls {
    /// Those of the calling thread. A kernel that does not count has none.
    pub fn of_this_thread() -> Stalls {
        let mut stalls = Stalls { file: File::open("/proc/thread-self/schedstat").ok(), seen_ns: 0 };
        stalls.take_ns();
        stalls
    }

    /// Since this was called last, in nanoseconds.
    pub(super) fn take_ns(&mut self) -> u64 {
        let now_ns = self.read_ns().unwrap_or(self.seen_ns);
        now_ns.saturating_sub(std::mem::replace(&mut self.seen_ns, now_ns))
    }

    /// The second number of three: time on the processor, time waiting for it, turns.
    fn read_ns(&mut self) -> Option<u64> {
        let (file, mut text) = (self.file.as_mut()?, [0; 96]);
        file.rewind().ok()?;
        let len = file.read(&mut text).ok()?;
        std::str::from_utf8(&text[..len]).ok()?.split_whitespace().nth(1)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_far_is_charged_as_it_was_measured_and_no_more_than_the_most() {
        let (mut cost, mut stalls) = (Cost::new(2_000, 0), Stalls::default());
        assert_eq!(price(&mut cost, &mut stalls, (1, 64), 2_000), 2_000);
        assert_eq!(price(&mut cost, &mut stalls, (1, 64), 1_000_000), 1_000_000);
        assert_eq!(price(&mut cost, &mut stalls, (1, 64), 1_000_000_000), MOST_NS);
        assert_eq!(cost.of(1, 64), 2_000);
    }

    #[test]
    fn a_thread_s_stalls_are_read_and_counted_once() {
        let mut stalls = Stalls::of_this_thread();
        let before_ns = stalls.seen_ns;
        std::thread::yield_now();
        let new_ns = stalls.take_ns();
        assert_eq!(stalls.seen_ns, before_ns + new_ns);
        if std::path::Path::new("/proc/thread-self/schedstat").exists() {
            assert!(stalls.read_ns().is_some_and(|ns| ns >= before_ns));
        }
    }
}
