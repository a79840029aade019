//! The handler's answer about virtual congestion control.

use super::{Fault, Handler};
use crate::api::VERSION;
use crate::api::vcc::{VccReply, VccRequest};
use crate::report::vcc::of_switch;
use crate::worker::ends::Wanted;
use crate::worker::{ENDPOINT_CONNECTIONS, Request, WANTED_CONNECTIONS};

impl Handler {
    /// What virtual congestion control does for whom.
    ///
    /// # Errors
    /// The worker does not answer.
    pub fn vcc(&self) -> Result<VccReply, Fault> {
        self.vcc_with(ENDPOINT_CONNECTIONS, None)
    }

    /// The same without connections.
    ///
    /// # Errors
    /// The worker does not answer.
    pub fn vcc_counts(&self) -> Result<VccReply, Fault> {
        self.vcc_with(0, None)
    }

    /// Some connections, with the endpoints that have any.
    ///
    /// # Errors
    /// Nothing is named that a connection could end at, or the worker does not answer.
    pub fn vcc_connections(&self, request: &VccRequest) -> Result<VccReply, Fault> {
        let wanted = Wanted::new(&request.ends).map_err(Fault::Wrong)?;
        let mut reply = self.vcc_with(WANTED_CONNECTIONS, Some(&wanted))?;
        reply.endpoints.retain(|endpoint| !endpoint.connections.is_empty());
        Ok(reply)
    }

    fn vcc_with(&self, most: usize, wanted: Option<&Wanted>) -> Result<VccReply, Fault> {
        let facts = self.facts();
        let mut endpoints = Vec::new();
        for (switch, plan) in facts.plan.switches.iter() {
            // Who has none is not asked.
            if !plan.program.has_vcc() {
                continue;
            }
            let mut next = Some(0);
            while let Some(from) = next {
                let wanted = wanted.cloned().map(Box::new);
                let part = self.ask(|reply| Request::Vcc { switch: switch as usize, from, most, wanted, reply })?;
                next = part.next;
                endpoints.extend(of_switch(plan, &part));
            }
        }
        Ok(VccReply { version: VERSION, endpoints })
    }
}
