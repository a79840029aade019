//! The agents' own traffic: where this host's agents speak with those of other hosts over the
//! interface that the switch has taken, or over a device behind the switch that has the address at
//! which they listen, the host's endpoint lets their datagrams go before its
//! other frames ([`datapath::sched::priority`]), and has a small guarantee for them without being
//! given one.
//!
//! It is 1 % of the uplink, at most 10 Mbit/s, and at most what the guarantees of others leave. An
//! agent says at most 500 datagrams a second in steady state, of some 150 bytes on the wire mostly
//! and 1300 at most: that is 0.6 Mbit/s, and 5 Mbit/s at most.

use crate::admission::{endpoints_guarantee, promise};
use crate::config::{Config, Endpoint, Switch, Tenant};
use crate::names::Locator;
use datapath::program::AgentTraffic;
use datapath::units::{Both, Direction, Rate};

/// Part of the uplink's rate, in millionths.
const PART_PPM: u64 = 10_000;
/// Whole, in millionths.
const WHOLE_PPM: u64 = 1_000_000;
/// The most.
const MOST: Rate = Rate(10_000_000);

/// What of an endpoint's traffic is the agents'; `None` where it is not the host's own over the
/// uplink, or there are no agents of other hosts.
#[must_use]
pub fn talk(config: &Config, switch: &Switch, endpoint: &Endpoint) -> Option<AgentTraffic> {
    let (listen, uplink) = (config.cluster.as_ref()?.listen?, switch.uplink.as_ref()?);
    let is_host = match (&endpoint.device.locator, &uplink.device.locator) {
        (Some(Locator::Host(host)), Some(Locator::Packet(interface))) => {
            host == interface && endpoint.device.netns == uplink.device.netns
        }
        _ => switch.host_at(listen.ip()) == Some(endpoint),
    };
    let rate = |direction| uplink.rate.get(direction).scaled(PART_PPM, WHOLE_PPM).min(MOST);
    is_host.then(|| AgentTraffic {
        address: listen.ip(),
        port: listen.port(),
        rate: Both { egress: rate(Direction::Egress), ingress: rate(Direction::Ingress) },
    })
}

/// What the endpoint is guaranteed for its agents in one direction. One that has been given a
/// guarantee keeps to that.
#[must_use]
pub fn guarantee(
    switch: &Switch,
    tenant: &Tenant,
    endpoint: &Endpoint,
    agent_traffic: &AgentTraffic,
    direction: Direction,
) -> Rate {
    if endpoint.knobs.guarantee.get(direction).is_some() {
        return Rate(0);
    }
    let less = |a: Rate, b: Rate| Rate(a.0.saturating_sub(b.0));
    let own = tenant.knobs.guarantee.get(direction).map(|own| less(own, endpoints_guarantee(tenant, direction)));
    let left = own.unwrap_or_else(|| {
        let promise = promise(switch, direction);
        let left = promise.map_or(Rate(0), |promise| less(promise.capacity, promise.promised));
        let limit = tenant.knobs.limit.get(direction).unwrap_or(Rate::UNLIMITED);
        left.min(less(limit, endpoints_guarantee(tenant, direction)))
    });
    (*agent_traffic.rate.get(direction)).min(left).min(endpoint.knobs.limit.get(direction).unwrap_or(Rate::UNLIMITED))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 1_000_000;

    /// What the host's endpoint has, and its tenant: of a file with these keys.
    fn compiled(
        tenant: &str,
        endpoint: &str,
        other: &str,
        cluster: &str,
    ) -> (Option<AgentTraffic>, [u64; 2], [u64; 2]) {
        let text = format!(
            "[daemon]\nname = \"t\"\n{cluster}[[switch]]\nname = \"s\"\n[switch.uplink]\nport = \"packet://eth0\"\nrate = \"500 Mbit/s\"\n\
             [[switch.tenant]]\nname = \"ops\"\nvlan = \"untagged\"\n{tenant}\n[[switch.tenant.endpoint]]\nname = \"host\"\nport = \"host://eth0\"\n{endpoint}\n\
             [[switch.tenant]]\nname = \"red\"\nvlan = 10\n{other}\n[[switch.tenant.endpoint]]\nname = \"red1\"\nport = \"tap://red1\"\n"
        );
        let checked = crate::load(&text);
        let plan = checked.plan.unwrap_or_else(|| panic!("{:?}", checked.problems));
        let program = &plan.switches[0].program;
        let of = |share: &Both<datapath::program::Share>| [share.egress.guarantee.0, share.ingress.guarantee.0];
        assert!(program.endpoints[1].agent_traffic.is_none());
        (program.endpoints[0].agent_traffic, of(&program.endpoints[0].share), of(&program.tenants[0].share))
    }

    #[test]
    fn the_hosts_endpoint_has_a_small_guarantee_for_the_agents() {
        let cluster = "[cluster]\nhost = \"h1\"\nlisten = \"192.0.2.1:7370\"\n";
        let few = 5 * MBIT;
        let (agent_traffic, endpoint, tenant) = compiled("", "", "", cluster);
        let agent_traffic = agent_traffic.expect("the agents are there");
        assert_eq!(
            (agent_traffic.address.to_string().as_str(), agent_traffic.port, agent_traffic.rate.egress.0),
            ("192.0.2.1", 7370, few)
        );
        assert_eq!((endpoint, tenant), ([few; 2], [few; 2]));
        // Who is alone has none, and a guarantee that was given counts.
        assert_eq!(compiled("", "", "", ""), (None, [0; 2], [0; 2]));
        let (_, endpoint, tenant) = compiled("", "guarantee = { egress = \"1 Mbit/s\" }", "", cluster);
        assert_eq!((endpoint, tenant), ([MBIT, few], [MBIT, few]));
        // What others were promised, they have: here all on ingress but 2 Mbit/s, and all on
        // egress.
        let (_, endpoint, tenant) =
            compiled("", "", "guarantee = { egress = \"500 Mbit/s\", ingress = \"488 Mbit/s\" }", cluster);
        assert_eq!((endpoint, tenant), ([0, 2 * MBIT], [0, 2 * MBIT]));
        let (_, endpoint, tenant) = compiled("guarantee = \"3 Mbit/s\"", "", "", cluster);
        assert_eq!((endpoint, tenant), ([3 * MBIT; 2], [3 * MBIT; 2]));
        let (_, endpoint, _) = compiled("limit = \"4 Mbit/s\"", "limit = { egress = \"2 Mbit/s\" }", "", cluster);
        assert_eq!(endpoint, [2 * MBIT, 4 * MBIT]);
    }
}
