//! The handler's answer to whom the agents limit.

use super::{Fault, Handler};
use crate::agents::report::agent;
use crate::api::VERSION;
use crate::api::agents::AgentsReply;
use crate::worker::{AgentPart, Request};

/// How often an agent's parts are asked for from the first on.
const TRIES: usize = 3;

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
            let AgentPart { host, report, .. } = whole(part)?;
            agents.extend(host.map(|host| agent(plan, &host, &report)));
        }
        Ok(AgentsReply { version: VERSION, agents })
    }
}

/// All that an agent says, of which each part is asked for. Where another comes in its place
/// meanwhile, that one is asked; where that goes on, nothing is said.
fn whole(mut part: impl FnMut(u32) -> Result<AgentPart, Fault>) -> Result<AgentPart, Fault> {
    for _ in 0..TRIES {
        let mut all = part(0)?;
        let mut is_same = true;
        while let Some(from) = all.next.filter(|_| is_same) {
            let more = part(from)?;
            is_same = (&more.host, more.life) == (&all.host, all.life);
            if is_same {
                all.report.limited.extend(more.report.limited);
                all.next = more.next;
            }
        }
        if is_same {
            return Ok(all);
        }
    }
    Err(Fault::Busy("an agent was replaced again and again while it was asked; try again"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent::report::{Limited, Report};
    use datapath::program::EndpointId;
    use datapath::units::Rate;
    use datapath::wire::Mac;

    /// The parts of an agent with three receivers.
    fn told(life: u64, from: u32) -> AgentPart {
        let rate = Rate(life);
        let limited = Limited {
            to: EndpointId(from),
            from: Mac::default(),
            host: None,
            rate,
            arriving: rate,
            share: rate,
            ignores: None,
        };
        let report = Report { limited: vec![limited], ..Report::default() };
        AgentPart { host: Some("h1".into()), life, report, next: (from < 2).then_some(from + 1) }
    }

    #[test]
    fn the_parts_of_an_agent_that_another_replaces_are_not_mixed_with_its_own() {
        let mut asked = 0;
        let all = whole(|from| {
            asked += 1;
            Ok(told(if asked < 3 { 1 } else { 2 }, from))
        });
        let limited: Vec<_> =
            all.ok().unwrap().report.limited.iter().map(|limited| (limited.to.0, limited.rate.0)).collect();
        assert_eq!((limited, asked), (vec![(0, 2), (1, 2), (2, 2)], 6));
        // One that is replaced all the time is asked some times only.
        asked = 0;
        let all = whole(|from| {
            asked += 1;
            Ok(told(asked, from))
        });
        assert!(asked == 2 * TRIES as u64 && all.is_err());
    }
}
