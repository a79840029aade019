//! The handler's answers about services.

use super::{Fault, Handler};
use crate::api::VERSION;
use crate::api::services::{ConnectionsReply, ConnectionsRequest, LoadReply, LoadRequest, ServicesReply};
use crate::services::{Verdicts, find, of_connections, of_switch};
use crate::worker::{Request, ServiceCount};
use datapath::service::Shown;
use std::ops::Range;

/// Connections that are told at most.
const MOST_SHOWN: usize = 1000;

impl Handler {
    /// What services are, and have counted.
    ///
    /// # Errors
    /// The worker does not answer.
    pub fn services(&self) -> Result<ServicesReply, Fault> {
        let facts = self.facts();
        let mut services = Vec::new();
        for (switch, plan) in facts.plan.switches.iter() {
            // Who has none is not asked.
            if !plan.program.services.is_empty() {
                services.extend(of_switch(plan, &self.service_counts(switch as usize, 0..u32::MAX)?));
            }
        }
        let (config, _) = self.running();
        let reports = config.daemon.reports.map(|_| self.verdicts.counts());
        Ok(ServicesReply { version: VERSION, services, reports })
    }

    /// What became of load reports.
    pub fn verdicts(&self) -> &Verdicts {
        &self.verdicts
    }

    /// Of services of these numbers.
    fn service_counts(&self, switch: usize, which: Range<u32>) -> Result<Vec<ServiceCount>, Fault> {
        let (mut counts, mut next) = (Vec::new(), Some(which.start));
        while let Some(from) = next {
            let which = from..which.end;
            let part = self.ask(|reply| Request::Services { switch, which, reply })?;
            next = part.next;
            counts.extend(part.services);
        }
        Ok(counts)
    }

    /// The connections of a service.
    ///
    /// # Errors
    /// There is no such service, the client is no address, or the worker does not answer.
    pub fn connections(&self, request: &ConnectionsRequest) -> Result<ConnectionsReply, Fault> {
        let facts = self.facts();
        let (switch, service) = find(&facts.plan, &request.service).ok_or_else(|| unknown(&request.service))?;
        let client = request.client.as_ref().map(|client| client.parse()).transpose();
        let client = client.map_err(|_| Fault::Wrong("the client is no IP address".to_owned()))?;
        let counts = self.service_counts(switch, service.0..service.0 + 1)?;
        let (mut all, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let part = self.ask(|reply| Request::Connections { switch, service, client, from, reply })?;
            next = part.next;
            all.extend(part.connections);
            all.sort_by_key(Shown::rank);
            all.truncate(MOST_SHOWN);
        }
        let connections = of_connections(&facts.plan.switches[switch], service, counts.first(), &all);
        Ok(ConnectionsReply { version: VERSION, connections })
    }

    /// A server's load.
    ///
    /// # Errors
    /// There is no such backend, or the worker is busy.
    pub fn load(&self, request: &LoadRequest) -> Result<LoadReply, Fault> {
        let facts = self.facts();
        let (path, name) = request.backend.rsplit_once('/').ok_or_else(|| unknown(&request.backend))?;
        let (switch, service) = find(&facts.plan, path).ok_or_else(|| unknown(path))?;
        let plan = &facts.plan.switches[switch];
        let at = plan.services[service.0 as usize].backends.iter().position(|backend| backend == name);
        let at = at.ok_or_else(|| Fault::Wrong(format!("service \"{path}\" has no backend \"{name}\"")))?;
        let backend = Box::new(plan.program.services[service.0 as usize].backends[at].clone());
        self.request(Request::Load { switch, service, backend, load: request.load_milli })?;
        Ok(LoadReply { version: VERSION })
    }
}

fn unknown(path: &str) -> Fault {
    Fault::Wrong(format!("there is no service \"{path}\": write SWITCH/TENANT/SERVICE"))
}
