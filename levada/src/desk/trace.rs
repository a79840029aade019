//! The desk's answers to traces.

use super::{Desk, Fault, PATIENCE};
use crate::api::VERSION;
use crate::trace::{Described, MOST_FRAMES, MOST_SECONDS, TraceReply, TraceRequest, Traced};
use crate::worker::{Order, Trace};
use control::filter::Filter;
use control::plan::Plan;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

impl Desk {
    /// Traces frames, or explains one.
    ///
    /// # Errors
    /// The request is wrong, another trace runs, or the worker does not answer.
    pub fn trace(&self, request: &TraceRequest) -> Result<TraceReply, Fault> {
        let facts = self.facts();
        let frames = match request {
            TraceRequest::Frames { filter, count, seconds } => self.sight(&facts.plan, filter, *count, *seconds)?,
            TraceRequest::Frame(described) => vec![self.explain(&facts.plan, described)?],
        };
        Ok(TraceReply { version: VERSION, frames })
    }

    pub(super) fn order(&self, order: Order) -> Result<(), Fault> {
        self.inbox.try_send(order).map_err(|_| Fault::Busy("the worker is busy or has ended"))?;
        self.bell.ring();
        Ok(())
    }

    fn sight(&self, plan: &Plan, filter: &str, count: u32, seconds: u32) -> Result<Vec<Traced>, Fault> {
        if !(1..=MOST_FRAMES).contains(&count) || !(1..=MOST_SECONDS).contains(&seconds) {
            return Err(Fault::Wrong(format!("a trace has 1 to {MOST_FRAMES} frames and 1 to {MOST_SECONDS} seconds")));
        }
        let filter = Filter::parse(filter, plan).map_err(|error| Fault::Wrong(error.to_string()))?;
        let (out, sightings) = sync_channel(count as usize);
        let time_ns = u64::from(seconds) * 1_000_000_000;
        let (start, time) = (Instant::now(), Duration::from_secs(seconds.into()));
        self.order(Order::Trace(Box::new(Trace { filter, count: count as usize, time_ns, out })))?;
        let mut frames = Vec::new();
        while frames.len() < count as usize {
            match sightings.recv_timeout(time.saturating_sub(start.elapsed())) {
                // A change may have taken the switch away since.
                Ok(seen) if plan.switches.get(seen.switch as u32).is_some() => {
                    frames.push(Traced::new(plan, seen.switch, Some(seen.at.0), &seen.journey));
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) if frames.is_empty() && start.elapsed() < time => {
                    return Err(Fault::Busy("another trace runs: try again when it has ended"));
                }
                Err(_) => break,
            }
        }
        Ok(frames)
    }

    fn explain(&self, plan: &Plan, described: &Described) -> Result<Traced, Fault> {
        let made = described.make(plan).map_err(Fault::Wrong)?;
        let (reply, answer) = sync_channel(1);
        let switch = made.switch;
        self.order(Order::Explain { switch, port: made.port, bytes: made.bytes, offload: made.offload, reply })?;
        let journey = answer.recv_timeout(PATIENCE).map_err(|_| Fault::Busy("the worker did not answer"))?;
        let journey = journey.ok_or(Fault::Busy("the worker has no buffer for the frame"))?;
        Ok(Traced::new(plan, switch, None, &journey))
    }
}
