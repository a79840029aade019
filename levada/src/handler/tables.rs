//! The handler's answer to who has which address.

use super::{Fault, Handler, PATIENCE};
use crate::api::VERSION;
use crate::tables::{TablesReply, of_switch};
use crate::worker::{LearnedPart, Request};
use std::sync::mpsc::sync_channel;

impl Handler {
    /// The addresses that are declared and learned.
    ///
    /// # Errors
    /// The worker does not answer.
    pub fn tables(&self) -> Result<TablesReply, Fault> {
        let facts = self.facts();
        let mut tenants = Vec::new();
        for (switch, plan) in facts.plan.switches.iter() {
            let mut parts = Vec::new();
            let mut next = Some(0);
            while let Some(from) = next {
                let part = self.learned(switch as usize, from)?;
                next = part.next;
                parts.push(part);
            }
            tenants.extend(of_switch(plan, &parts));
        }
        Ok(TablesReply { version: VERSION, tenants })
    }

    fn learned(&self, switch: usize, from: u32) -> Result<LearnedPart, Fault> {
        let (reply, answer) = sync_channel(1);
        self.request(Request::Learned { switch, from, reply })?;
        answer
            .recv_timeout(PATIENCE)
            .map_err(|_| Fault::Busy("the worker did not answer in time; try again, and see the log"))
    }
}
