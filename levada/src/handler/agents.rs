//! The handler's answer to whom the agents limit.

use super::{Fault, Handler};
use crate::agents::report::{AgentsReply, agent};
use crate::api::VERSION;
use crate::worker::{AgentPart, Request};

impl Handler {
    /// What the congestion agents are doing.
    ///
    /// # Errors
    /// The worker does not answer.
    pub fn agents(&self) -> Result<AgentsReply, Fault> {
        let facts = self.facts();
        let mut agents = Vec::new();
        for (switch, plan) in facts.plan.switches.iter() {
            let part = |from| self.ask(|reply| Request::Agent { switch: switch as usize, from, reply });
            let AgentPart { host, mut report, mut next } = part(0)?;
            while let Some(from) = next {
                let more = part(from)?;
                report.limited.extend(more.report.limited);
                next = more.next;
            }
            agents.extend(host.map(|host| agent(plan, &host, &report)));
        }
        Ok(AgentsReply { version: VERSION, agents })
    }
}
