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
//!
//! A port may publish what was written to it in a visit at once, and call its guest for that. Such
//! a call takes as much as many writes, also for a burst of one frame: it is charged as a frame is,
//! to whose frame was the first of the burst.

use super::device::Device;
use super::seats::Seats;
use super::{Backing, LinkSlot, Outside};
use datapath::frame::{Frame, Pool};
use datapath::link::Side;
use datapath::turns::Cost;
use datapath::units::Instant;
use std::fs::File;
use std::io::{Read, Seek};

/// How many times the usual price a sender pays for a slow receiver: stacks of honest guests differ
/// by less.
const SLOW: u64 = 4;
/// Most that is charged for one measurement, in nanoseconds: what a stall of the machine that the
/// kernel does not count may cost, and more than a guest's stack takes for a frame.
const MOST_NS: u64 = 10_000_000;

/// What publishing a burst usually takes where the guest is called, in nanoseconds: a system call.
/// It is not measured: most guests that are busy are not called, and of those that are, some may
/// have made that slow.
const FLUSH_NS: u64 = 2_000;
/// Where it took longer it is asked whether others ran meanwhile, in nanoseconds: asking is a call,
/// too.
pub(super) const STALLED_NS: u64 = 20_000;

/// Bytes after which the clock is read, however cheap a write is: what is due is not to wait for
/// more than some microseconds.
const RUN_BYTES: u64 = 16 << 10;
/// Most that is kept of what was paid for frames from a link, in nanoseconds: of those that are
/// dropped nobody uses it, and copies are not to be had for that.
const MOST_PREPAID_NS: u64 = 1_000_000;

/// Frames that are written, as far as their price is concerned.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Written {
    pub frames: u64,
    pub bytes: u64,
    /// Segments that they are on the wire: the kernel may cut them.
    pub segments: u64,
    /// What writing such frames usually costs, in nanoseconds.
    pub usual_ns: u64,
}

impl Written {
    /// A frame, before it is handed over.
    pub fn of(pool: &Pool, frame: &Frame, usual: &Cost) -> Written {
        let (bytes, size) = (pool.len(frame) as u64, u64::from(pool.meta(frame).offload.gso_size));
        let segments = if size > 0 { bytes.div_ceil(size) } else { 1 };
        Written { frames: 1, bytes, segments, usual_ns: usual.of(1, bytes) }
    }

    fn add(&mut self, other: &Written) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.segments += other.segments;
        self.usual_ns += other.usual_ns;
    }
}

/// Where frames go, and who pays for that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub payer: Option<Backing>,
    pub device: usize,
    pub is_uplink: bool,
}

/// Frames that were written one behind the other to the same target, and which are charged
/// together. Of a port whose write is a system call, that is one; where it is a copy in memory, the
/// clock would take as long as the copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    target: Target,
    written: Written,
    start: Instant,
}

impl Outside {
    /// Ends the run where the next frame is none of it.
    pub(super) fn end_run_of_others(&mut self, seats: &mut Seats, target: Option<Target>) {
        if self.run.as_ref().is_some_and(|run| Some(run.target) != target) {
            self.end_run(seats);
        }
    }

    /// A frame was handed to a device: now, where no run goes on, else behind what is in it. A
    /// frame that is refused, or whose port is gone, costs as much as others, or more where that
    /// took long: a guest decides what has to be read of its rings to find that there is no room.
    pub(super) fn note_write(&mut self, seats: &mut Seats, target: Target, written: Written, is_taken: bool) {
        if !is_taken {
            self.end_run(seats);
            let start = self.now;
            let took_ns = self.look().since(start);
            self.devices[target.device].use_.write_ns += took_ns;
            let price_ns = refusal_price(&mut self.stalls, written.usual_ns, took_ns);
            return self.charge_price(seats, target, written, price_ns);
        }
        let start = self.now;
        let run = self.run.get_or_insert(Run { target, written: Written::default(), start });
        run.written.add(&written);
        let is_over = run.written.bytes >= RUN_BYTES;
        if is_over || self.devices[target.device].port.as_ref().is_none_or(|port| port.writes_by_call()) {
            self.end_run(seats);
        }
    }

    /// Reads the clock, and charges what was written.
    pub(super) fn end_run(&mut self, seats: &mut Seats) {
        let Some(Run { target, written, start }) = self.run.take() else { return };
        let took_ns = self.look().since(start);
        self.devices[target.device].use_.write_ns += took_ns;
        self.costs.write.learn(written.frames, written.bytes, took_ns);
        self.charge_write(seats, target, written, took_ns);
    }

    /// Charges writes to a device: to the payer, whose frames they are, and to the owner of the
    /// device.
    pub(super) fn charge_write(&mut self, seats: &mut Seats, target: Target, written: Written, took_ns: u64) {
        let Outside { devices, stalls, .. } = self;
        let Device { write, .. } = &mut devices[target.device];
        let price_ns = price(write, stalls, (written.frames, written.bytes), took_ns);
        self.charge_price(seats, target, written, price_ns);
    }

    /// A device has published a burst that begins with a frame for `target`.
    pub(super) fn note_flush(&mut self, seats: &mut Seats, target: Target) {
        let start = self.now;
        let took_ns = self.look().since(start);
        self.devices[target.device].use_.write_ns += took_ns;
        let price_ns = measured_price(&mut self.stalls, STALLED_NS, took_ns);
        if target.payer.is_none() && !target.is_uplink {
            // Nobody else's: what a switch answers to its guest, say.
            return seats.charge(Backing::Device(target.device), price_ns);
        }
        let published = Written { frames: 1, bytes: 0, segments: 1, usual_ns: FLUSH_NS };
        self.charge_price(seats, target, published, price_ns);
    }

    pub(super) fn charge_price(&mut self, seats: &mut Seats, target: Target, written: Written, price_ns: u64) {
        let Target { payer, device, is_uplink } = target;
        let Written { frames, bytes, segments, usual_ns } = written;
        let cutting_ns = if segments > frames { self.costs.make.of(segments, bytes) } else { 0 };
        let sender_ns = price_ns.min(usual_ns * SLOW + cutting_ns);
        let receiver_ns = if is_uplink { 0 } else { price_ns - sender_ns };
        match payer {
            Some(way @ Backing::Link(index, side)) => {
                let link_slot = self.link_slots.get_mut(index).and_then(Option::as_mut);
                let prepaid_ns = link_slot.map_or(0, |link_slot| link_slot.take_prepaid(side, sender_ns));
                seats.charge_unasked(way, sender_ns - prepaid_ns);
                seats.charge_unasked(Backing::Device(device), receiver_ns);
            }
            Some(payer) => {
                seats.charge(payer, sender_ns);
                seats.charge(Backing::Device(device), receiver_ns);
            }
            // A director's: as it was when it arrived, the uplink pays.
            None if is_uplink => seats.charge(Backing::Device(device), sender_ns),
            None => seats.charge(Backing::Device(device), receiver_ns),
        }
    }
}

impl LinkSlot {
    /// Charges what a frame is going to cost in the switch that it arrives in (making it what it is
    /// there, and writing it): to its sender, in the switch that it was read in. So who floods over
    /// a link is read less, as who floods its neighbours is. Where nobody knows the sender, to the
    /// link.
    pub(super) fn charge_crossing(
        &mut self,
        seats: &mut Seats,
        (index, side): (usize, Side),
        sender: Option<Backing>,
        (make_ns, write_ns): (u64, u64),
    ) {
        let Some(sender) = sender else { return seats.charge_unasked(Backing::Link(index, side), make_ns) };
        let prepaid_ns = &mut self.prepaid_ns[side as usize];
        *prepaid_ns = (*prepaid_ns + write_ns).min(MOST_PREPAID_NS);
        match sender {
            // It came to that switch over another link.
            Backing::Link(..) => seats.charge_unasked(sender, make_ns + write_ns),
            Backing::Device(_) => seats.charge(sender, make_ns + write_ns),
        }
    }

    /// Takes up to `most_ns` of what was paid for frames that arrived at an end.
    fn take_prepaid(&mut self, side: Side, most_ns: u64) -> u64 {
        let prepaid_ns = &mut self.prepaid_ns[side as usize];
        let taken_ns = most_ns.min(*prepaid_ns);
        *prepaid_ns -= taken_ns;
        taken_ns
    }
}

/// What a frame costs that its port has refused.
fn refusal_price(stalls: &mut Stalls, usual_ns: u64, took_ns: u64) -> u64 {
    if took_ns <= usual_ns * SLOW {
        return usual_ns;
    }
    took_ns.saturating_sub(stalls.take_ns()).min(MOST_NS).max(usual_ns)
}

/// What something costs that has no usual price, as a guest that is called now and then, or a read
/// that brings no frame: what it took. Where that is more than is `believed`, less the time for
/// which others ran.
pub(super) fn measured_price(stalls: &mut Stalls, believed_ns: u64, took_ns: u64) -> u64 {
    if took_ns <= believed_ns {
        return took_ns;
    }
    took_ns.saturating_sub(stalls.take_ns()).clamp(believed_ns, MOST_NS)
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
    fn a_refusal_that_takes_long_is_charged_as_it_was_measured() {
        let mut stalls = Stalls::default();
        assert_eq!(refusal_price(&mut stalls, 2_000, 100), 2_000);
        assert_eq!(refusal_price(&mut stalls, 2_000, 8_000), 2_000);
        assert_eq!(refusal_price(&mut stalls, 2_000, 760_000), 760_000);
        assert_eq!(refusal_price(&mut stalls, 2_000, 1_000_000_000), MOST_NS);
    }

    #[test]
    fn what_has_no_usual_price_is_charged_as_it_was_measured_up_to_the_most() {
        let mut stalls = Stalls::default();
        let took_ns = [500, 18_000, 5_000_000, 1 << 40];
        let charged_ns = took_ns.map(|ns| measured_price(&mut stalls, STALLED_NS, ns));
        assert_eq!(charged_ns, [500, 18_000, 5_000_000, MOST_NS]);
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
