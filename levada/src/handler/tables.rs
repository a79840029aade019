//! The handler's answer to who has which address.

use super::{Fault, Handler};
use crate::api::VERSION;
use crate::api::tables::TablesReply;
use crate::report::tables::of_switch;
use crate::worker::Request;

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
                let part = self.ask(|reply| Request::Learned { switch: switch as usize, from, reply })?;
                next = part.next;
                parts.push(part);
            }
            tenants.extend(of_switch(plan, &parts));
        }
        Ok(TablesReply { version: VERSION, tenants })
    }
}
