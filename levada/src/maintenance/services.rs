//! What becomes of services: the worker is asked for their counts each second, some at a time, and
//! what has changed since is said.

use super::Maintenance;
use crate::services::of_service;
use crate::worker::{Request, ServicesPart, answer};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Parts that are asked for at a time, each some ten microseconds of the worker's time: backends of
/// a large switch are looked at each few seconds.
const PARTS: usize = 16;
/// How long the worker may take for a part. Devices that are lost wait meanwhile.
const PATIENCE: Duration = Duration::from_millis(100);

impl Maintenance {
    /// Looks at services from where the last look ended.
    pub(super) fn look_at_services(&mut self) {
        let (plan, now) = (Arc::clone(&self.plan), Instant::now());
        self.service_alarms.keep(&plan);
        let (first, begin) = std::mem::take(&mut self.services_from);
        let mut left = PARTS;
        for (switch, of) in plan.switches.iter().filter(|(id, of)| *id >= first && !of.services.is_empty()) {
            let mut next = Some(if switch == first { begin } else { 0 });
            while let Some(from) = next {
                let part = if left > 0 { self.ask_for_services(switch, from) } else { None };
                let Some(part) = part else {
                    self.services_from = (switch, from);
                    return;
                };
                left -= 1;
                next = part.next;
                for count in &part.services {
                    let Some(report) = of_service(of, count) else { continue };
                    let lines = self.service_alarms.look(now, (switch, count.service), &report);
                    lines.iter().for_each(|(level, text)| self.log.line(*level, text));
                }
            }
        }
    }

    fn ask_for_services(&self, switch: u32, from: u32) -> Option<ServicesPart> {
        let (reply, answer) = answer();
        self.order(Request::Services { switch: switch as usize, which: from..u32::MAX, reply });
        answer.wait(PATIENCE)
    }
}
