//! The handler's answer to whom the agents limit.

use super::{Fault, Handler, PATIENCE};
use crate::agents::report::{AgentsReply, agent};
use crate::api::VERSION;
use crate::worker::Request;
use std::sync::mpsc::sync_channel;

impl Handler {
    /// What the congestion agents are doing.
    ///
    /// # Errors
    /// The worker does not answer.
    pub fn agents(&self) -> Result<AgentsReply, Fault> {
        let facts = self.facts();
        let (reply, answer) = sync_channel(1);
        self.request(Request::Agents { reply })?;
        let reported = answer
            .recv_timeout(PATIENCE)
            .map_err(|_| Fault::Busy("the worker did not answer in time; try again, and see the log"))?;
        let agents = reported.iter().filter_map(|reported| agent(&facts.plan, reported)).collect();
        Ok(AgentsReply { version: VERSION, agents })
    }
}
