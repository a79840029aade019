//! The handler's answers to traces.

use super::{Fault, Handler, PATIENCE};
use crate::api::VERSION;
use crate::api::trace::{Described, TraceReply, TraceRequest, Traced};
use crate::trace::{MOST_FRAMES, MOST_SECONDS, SNAP_BYTES};
use crate::worker::{Request, Trace};
use control::filter::Filter;
use control::plan::Plan;
use datapath::frame_trace::{FrameTrace, Step};
use datapath::offload::Offload;
use datapath::program::PortId;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

impl Handler {
    /// Traces frames, or explains one.
    ///
    /// # Errors
    /// The request is wrong, another trace runs, or the worker does not answer.
    pub fn trace(&self, request: &TraceRequest) -> Result<TraceReply, Fault> {
        let facts = self.facts();
        match request {
            TraceRequest::Frames { filter, count, seconds, bytes } => {
                self.sight(&facts.plan, filter, *count, *seconds, *bytes)
            }
            TraceRequest::Frame(described) => {
                let frames = vec![self.explain(&facts.plan, described)?];
                Ok(TraceReply { version: VERSION, frames, epoch_unix_ns: None })
            }
        }
    }

    pub(super) fn request(&self, request: Request) -> Result<(), Fault> {
        self.inbox.try_send(request).map_err(|_| {
            Fault::Busy("the worker does not accept requests: it is busy or has ended; try again, and see the log")
        })?;
        self.waker.ring();
        Ok(())
    }

    fn sight(&self, plan: &Plan, filter: &str, count: u32, seconds: u32, bytes: bool) -> Result<TraceReply, Fault> {
        if !(1..=MOST_FRAMES).contains(&count) || !(1..=MOST_SECONDS).contains(&seconds) {
            return Err(Fault::Wrong(format!("a trace has 1 to {MOST_FRAMES} frames and 1 to {MOST_SECONDS} seconds")));
        }
        let filter = Filter::parse(filter, plan).map_err(|error| Fault::Wrong(error.to_string()))?;
        let (out, sightings) = sync_channel(count as usize);
        let time_ns = u64::from(seconds) * 1_000_000_000;
        let snap = if bytes { SNAP_BYTES } else { 0 };
        let (start, time) = (Instant::now(), Duration::from_secs(seconds.into()));
        // All frames are to be seen.
        let _suspended = self.suspend_shortcuts();
        self.request(Request::Trace(Box::new(Trace { filter, count: count as usize, time_ns, snap, out })))?;
        let (mut frames, mut epoch_unix_ns) = (Vec::new(), None);
        while frames.len() < count as usize {
            match sightings.recv_timeout(time.saturating_sub(start.elapsed())) {
                // A change may have taken the switch away since.
                Ok(seen) if plan.switches.get(seen.switch as u32).is_some() => {
                    // The first is told at once, so this is when it came, by the calendar.
                    epoch_unix_ns = epoch_unix_ns.or_else(|| Some(unix_ns()?.saturating_sub(seen.at.0)));
                    let traced = Traced::new(plan, seen.switch, Some(seen.at.0), &seen.frame_trace);
                    frames.push(if bytes { traced.with_bytes(seen.length, &seen.bytes) } else { traced });
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) if frames.is_empty() && start.elapsed() < time => {
                    return Err(Fault::Busy("another trace runs; try again when it has ended"));
                }
                Err(_) => break,
            }
        }
        Ok(TraceReply { version: VERSION, frames, epoch_unix_ns })
    }

    fn explain(&self, plan: &Plan, described: &Described) -> Result<Traced, Fault> {
        let made = described.make(plan).map_err(Fault::Wrong)?;
        let frame = (made.bytes.clone(), made.offload);
        let (reply, answer) = sync_channel(1);
        let switch = made.switch;
        self.request(Request::Explain { switch, port: made.port, bytes: made.bytes, offload: made.offload, reply })?;
        let frame_trace = answer
            .recv_timeout(PATIENCE)
            .map_err(|_| Fault::Busy("the worker did not answer in time; try again, and see the log"))?;
        let frame_trace = frame_trace.ok_or(Fault::Busy("the worker has no buffer for the frame"))?;
        let traced = Traced::new(plan, switch, None, &frame_trace);
        Ok(if self.goes_past(switch, &frame_trace, &frame) { traced.past_the_switch() } else { traced })
    }

    /// Whether a frame with this trace takes a shortcut.
    fn goes_past(&self, switch: usize, frame_trace: &FrameTrace, (bytes, offload): &(Vec<u8>, Offload)) -> bool {
        let facts = self.facts();
        let device = |port: PortId| facts.devices.get(&(switch, port)).copied();
        let from = frame_trace.steps.iter().find_map(|step| match step {
            Step::Arrive(port, Some(_)) => device(*port),
            _ => None,
        });
        let to = frame_trace.steps.iter().find_map(|step| match step {
            Step::Emit(emit) if emit.refused.is_none() => device(emit.port),
            _ => None,
        });
        let ends = from.zip(to);
        ends.is_some_and(|(from, to)| self.shortcuts.leads(from, to, bytes, offload))
    }
}

/// Now, in nanoseconds since 1970.
fn unix_ns() -> Option<u64> {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()
}
