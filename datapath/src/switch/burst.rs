//! Frames that a port has read together.
//!
//! Of a burst many frames follow each other to the same neighbour. Each is looked at by itself, but
//! one that has the headers of the one before needs no second look; and where all of such a run
//! would pass the queues without waiting, they pass in one go. What is counted and charged is what
//! it would be if each had come by itself, and where that cannot be said before, each does. (A
//! limit is charged the sum, rounded once.)

use super::source::Look;
use super::{OUT, Role, Switch};
use crate::forward::Target;
use crate::frame::{Class, Frame, Out, Pool};
use crate::ids::{EndpointId, PortId};
use crate::sched::run::Run;
use crate::segment::WIRE_OVERHEAD;
use crate::units::Instant;
use crate::verdict::Reason;
use crate::wire::{L4, Layout};

/// Frames of a run at most.
const MOST: usize = 128;

/// What the next frame's look has said, where that was looked at already.
type Next = Option<Result<Look, Reason>>;

impl Switch {
    /// A port has read these frames: [`Switch::rx`] of each, in their order, without saying what
    /// became of it.
    pub fn rx_burst(&mut self, pool: &mut Pool, now: Instant, port: PortId, frames: &mut Vec<Frame>) {
        let role = self.role(port);
        let from = match role {
            Role::Endpoint(from) if frames.len() > 1 && self.may_run(from) => from,
            _ => {
                for frame in frames.drain(..) {
                    self.rx(pool, now, port, frame);
                }
                return;
            }
        };
        let (mut frames, mut next) = (frames.drain(..), None);
        while let Some(first) = frames.as_slice().first() {
            let look = match next.take() {
                Some(look) => look,
                None => self.look(pool, from, first),
            };
            let (to, run) = match &look {
                Ok(look) if let Some(to) = runs_to(pool, from, look, first) => {
                    let run;
                    (run, next) = self.run(pool, from, (to, look.is_plain), frames.as_slice());
                    (to, run)
                }
                _ => (from, Run::default()),
            };
            if run.frames > 1 {
                self.send_run(pool, now, (from, port), to, &run, frames.by_ref().take(run.frames as usize));
            } else if let Some(frame) = frames.next()
                && let Err(reason) = self.go_by(pool, now, (from, port), look, frame)
            {
                self.count_drop(from, reason);
            }
        }
    }

    /// Whether what an endpoint sends may go in runs: no stage changes it on its way.
    fn may_run(&self, from: EndpointId) -> bool {
        !self.vcc.concerns(from) && !self.services.are_in(self.forward.network(from))
    }

    /// How many of these frames go to the neighbour that the first one goes to, which was looked
    /// at, and what was seen of the one behind them.
    fn run(
        &self,
        pool: &mut Pool,
        from: EndpointId,
        (to, mut is_plain): (EndpointId, bool),
        frames: &[Frame],
    ) -> (Run, Next) {
        let mut run = Run::default();
        let mut headers = Headers::default();
        for (at, frame) in frames.iter().take(MOST).enumerate() {
            if at > 0 && !(is_plain && headers.are_of(pool, frame)) {
                let look = self.look(pool, from, frame);
                is_plain = match &look {
                    Ok(look) if runs_to(pool, from, look, frame) == Some(to) => look.is_plain,
                    _ => return (run, Some(look)),
                };
                headers = Headers::default();
            }
            if is_plain && headers.len == 0 {
                headers = Headers::of(pool, frame);
            }
            run.add(pool.len(frame), pool.meta(frame).wire_bytes);
        }
        (run, None)
    }

    /// As [`Switch::send_now`] of each.
    fn send_run(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        (from, port): (EndpointId, PortId),
        to: EndpointId,
        run: &Run,
        frames: impl Iterator<Item = Frame>,
    ) {
        let is_limited = self.egress.is_limited(from);
        if !self.backlogs.is_empty(from) || is_limited && !self.egress.pass_run(pool, now, from, run) {
            for frame in frames {
                if let Err(reason) = self.send_now(pool, now, (from, Some(port)), to, frame) {
                    self.count_drop(from, reason);
                }
            }
            return;
        }
        self.tallies[from.0 as usize].local.egress.sum(&run.traffic());
        let out = self.takes_run(to, run);
        let Some(out) = out.filter(|_| !self.ingress.is_limited(to) || self.ingress.pass_run(pool, now, to, run))
        else {
            return frames.for_each(|frame| self.arrive_now(pool, now, (from, Some(port)), to, frame));
        };
        #[cfg(test)]
        tests::PASSED.set(tests::PASSED.get() + run.frames);
        self.tallies[to.0 as usize].local.ingress.sum(&run.traffic());
        for frame in frames {
            let meta = pool.meta_mut(&frame);
            meta.queued = now;
            meta.set_out(Out::Payer(port));
            self.out.push_back((out, frame));
        }
    }

    /// The port of an endpoint that takes a run as it is: as [`Switch::emit_now`] of each.
    fn takes_run(&self, to: EndpointId, run: &Run) -> Option<PortId> {
        let port = self.program.endpoints.get(to.0)?.port;
        let features = self.program.ports.get(port.0)?;
        let is_short = run.longest.saturating_sub(WIRE_OVERHEAD) <= features.max_frame;
        let is_taken = is_short && !self.vcc.concerns(to) && self.out.len() + run.frames as usize <= OUT;
        is_taken.then_some(port)
    }
}

/// The neighbour that a frame is for which may go in a run.
fn runs_to(pool: &Pool, from: EndpointId, look: &Look, frame: &Frame) -> Option<EndpointId> {
    match look.target {
        Some(Target::Endpoint(to)) if look.is_known && to != from => {
            let is_whole = pool.meta(frame).offload.is_done() && pool.class(frame) == Class::Small;
            is_whole.then_some(to)
        }
        _ => None,
    }
}

/// The headers of a plain frame ([`Look::is_plain`]): all that it was judged by. What differs from
/// frame to frame of a flow, and decides nothing here, is left out: IPv4's DSCP and ECN,
/// identification, TTL and checksum, and the rest of the transport header.
#[derive(Clone, Copy, Default)]
struct Headers {
    words: [u64; 5],
    /// TCP's data offset; of UDP zero.
    offset: u8,
    /// Bytes of the frame; zero where there is none.
    len: usize,
    layout: Layout,
    wire_bytes: u32,
}

impl Headers {
    /// Which bits of the words they are, of TCP and of UDP.
    const TCP: [u64; 5] = [!0, !(0xff << 56), !(0xffff << 16 | 0xff << 48), !0, 0xffff_ffff];
    const UDP: [u64; 5] = [!0, Self::TCP[1], Self::TCP[2], !0, 0xffff_ffff_ffff];

    fn of(pool: &Pool, frame: &Frame) -> Headers {
        let (bytes, meta) = (pool.bytes(frame), pool.meta(frame));
        let Some(words) = Headers::words(bytes) else { return Headers::default() };
        let (layout, wire_bytes) = (meta.layout, meta.wire_bytes);
        Headers { words, offset: Headers::offset(bytes, &layout), len: bytes.len(), layout, wire_bytes }
    }

    /// Whether a frame has them: then it is laid out and judged as theirs was.
    #[inline(always)]
    fn are_of(&self, pool: &mut Pool, frame: &Frame) -> bool {
        if pool.class(frame) != Class::Small {
            return false;
        }
        let (bytes, meta) = pool.parts_mut(frame);
        let Some(words) = Headers::words(bytes) else { return false };
        let bits = if self.layout.l4 == L4::Udp { Headers::UDP } else { Headers::TCP };
        let differing = (0..5).fold(0, |all, at| all | (words[at] ^ self.words[at]) & bits[at]);
        let is_same = differing == 0
            && bytes.len() == self.len
            && Headers::offset(bytes, &self.layout) == self.offset
            && meta.offload.is_done();
        if is_same {
            (meta.layout, meta.wire_bytes, meta.flow) = (self.layout, self.wire_bytes, None);
        }
        is_same
    }

    #[inline(always)]
    fn words(bytes: &[u8]) -> Option<[u64; 5]> {
        let bytes = bytes.first_chunk::<42>()?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        Some([word(0), word(8), word(16), word(26), word(34)])
    }

    #[inline(always)]
    fn offset(bytes: &[u8], layout: &Layout) -> u8 {
        match layout.l4 {
            L4::Tcp => bytes.get(46).copied().unwrap_or(0),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests;
