//! The desk's answer about virtual congestion control.

use super::{Desk, Fault, PATIENCE};
use crate::api::VERSION;
use crate::vcc::{VccReply, of_switch};
use crate::worker::{Order, VccPart};
use std::sync::mpsc::sync_channel;

impl Desk {
    /// What virtual congestion control does for whom.
    ///
    /// # Errors
    /// The worker does not answer.
    pub fn vcc(&self) -> Result<VccReply, Fault> {
        let facts = self.facts();
        let mut endpoints = Vec::new();
        for (switch, plan) in facts.plan.switches.iter() {
            let mut next = Some(0);
            while let Some(from) = next {
                let part = self.vcc_part(switch as usize, from)?;
                next = part.next;
                endpoints.extend(of_switch(plan, &part));
            }
        }
        Ok(VccReply { version: VERSION, endpoints })
    }

    fn vcc_part(&self, switch: usize, from: u32) -> Result<VccPart, Fault> {
        let (reply, answer) = sync_channel(1);
        self.order(Order::Vcc { switch, from, reply })?;
        answer.recv_timeout(PATIENCE).map_err(|_| Fault::Busy("the worker did not answer"))
    }
}
