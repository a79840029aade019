//! Whom the congestion agents are to be: from the plan, one for each switch with an uplink.
//!
//! A daemon with one such switch is one host of the cluster, under the name of `[cluster] host`. In
//! a daemon with several, each is a host of its own, `HOST/SWITCH`; other daemons know none of
//! them. The hosts of other daemons and their endpoints are those of the configuration.

pub mod report;

use crate::worker::{Edit, Post};
use agent::{Cluster, Directory};
use control::config;
use control::plan::{Plan, SwitchPlan};
use datapath::program::Program;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The agent of each switch that is to have one; `life` is larger at each start of the daemon and
/// at each change. What all know of the cluster is put into `shared`, where it is not the same.
#[must_use]
pub fn posts(
    plan: &Plan,
    programs: &BTreeMap<u32, Program>,
    life: u64,
    shared: &mut Arc<Cluster>,
) -> BTreeMap<u32, Post> {
    let Some(cluster) = &plan.cluster else {
        *shared = Arc::default();
        return BTreeMap::new();
    };
    let hosts = hosts(plan, &cluster.host);
    let known = known(plan, cluster, &hosts);
    if **shared != known {
        *shared = Arc::new(known);
    }
    let post = |(&id, host): (&u32, &Arc<str>)| {
        let (program, switch) = (programs.get(&id)?, plan.switches.get(id)?);
        program.uplink.as_ref()?;
        let post = Post {
            host: Arc::clone(host),
            settings: cluster.settings,
            directory: Directory::new(Arc::clone(shared), program, &switch.tenants),
            life,
        };
        Some((id, post))
    };
    hosts.iter().filter_map(post).collect()
}

/// What is to be told so that agents which were told `before` are as `posts` say: looking through
/// all that they do takes them milliseconds.
#[must_use]
pub fn news(before: &BTreeMap<u32, Post>, posts: &BTreeMap<u32, Post>) -> Vec<Edit> {
    let gone = before.keys().filter(|id| !posts.contains_key(id)).map(|&id| Edit::Agent(id as usize, None));
    let is_new = |(id, post): &(&u32, &Post)| before.get(*id).is_none_or(|told| !told.says(post));
    let new = posts.iter().filter(is_new);
    gone.chain(new.map(|(&id, post)| Edit::Agent(id as usize, Some(Box::new(post.clone()))))).collect()
}

/// What the switches with an uplink are called as hosts.
fn hosts(plan: &Plan, host: &str) -> BTreeMap<u32, Arc<str>> {
    let linked = || plan.switches.iter().filter(|(_, switch)| switch.program.uplink.is_some());
    let several = linked().nth(1).is_some();
    let name = |switch: &SwitchPlan| if several { format!("{host}/{}", switch.name) } else { host.to_owned() };
    linked().map(|(id, switch)| (id, name(switch).into())).collect()
}

/// All hosts, and which endpoint is on which.
fn known(plan: &Plan, cluster: &config::Cluster, hosts: &BTreeMap<u32, Arc<str>>) -> Cluster {
    let mut known = Cluster::default();
    // Who has no address has no agent: its endpoints are nobody's who could be asked.
    let asked = cluster.members.iter().filter(|member| member.address.is_some());
    for member in asked.filter(|member| member.name != cluster.host) {
        known.add_host(&member.name);
        for endpoint in &member.endpoints {
            for &mac in &endpoint.macs {
                known.place(&member.name, &endpoint.tenant, mac);
            }
        }
        // Of several hosts with one service, others look for it at the first.
        for service in &member.services {
            if known.host_of(&service.tenant, service.mac()).is_none() {
                known.place(&member.name, &service.tenant, service.mac());
            }
        }
    }
    // Last, so that what is here is here, whatever the list says.
    for (&id, host) in hosts {
        known.add_host(host);
        let Some(switch) = plan.switches.get(id) else { continue };
        for endpoint in switch.program.endpoints.values() {
            let Some(tenant) = switch.tenants.get(endpoint.tenant.0) else { continue };
            for &mac in &endpoint.identity.macs {
                known.place(host, tenant, mac);
            }
        }
        for service in switch.program.services.values() {
            let Some(tenant) = switch.tenants.get(service.tenant.0) else { continue };
            known.place(host, tenant, service.mac);
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::load;

    /// The posts of a daemon with so many switches, each of which has an endpoint with this in it.
    fn posts_of(endpoints: &[&str], shared: &mut Arc<Cluster>) -> BTreeMap<u32, Post> {
        let mut text = "[daemon]\nname = \"d\"\n[cluster]\nhost = \"h1\"\n".to_owned();
        for (n, endpoint) in endpoints.iter().enumerate() {
            text += &format!(
                "[[switch]]\nname = \"s{n}\"\n[switch.uplink]\nport = \"tap://up{n}\"\nrate = \"1 Gbit/s\"\n\
                 [[switch.tenant]]\nname = \"red\"\nvlan = 10\n[[switch.tenant.endpoint]]\nname = \"red1\"\n\
                 port = \"tap://red{n}\"\nmac = \"02:00:00:00:{n:02}:01\"\n{endpoint}"
            );
        }
        let plan = load(&text).plan.expect("it is right");
        let programs = plan.switches.iter().map(|(id, switch)| (id, switch.program.clone())).collect();
        let posts = posts(&plan, &programs, 1, shared);
        assert_eq!(posts.len(), endpoints.len());
        posts
    }

    const MORE: &str =
        "[[switch.tenant.endpoint]]\nname = \"red2\"\nport = \"tap://red9\"\nmac = \"02:00:00:00:00:02\"\n";

    #[test]
    fn agents_are_given_another_cluster_only_where_it_is_another() {
        let mut shared = Arc::default();
        let mut of = |endpoint: &str| {
            posts_of(&[endpoint], &mut shared);
            Arc::clone(&shared)
        };
        let first = of("");
        assert!(Arc::ptr_eq(&first, &of("weight = 2\n")));
        assert!(!Arc::ptr_eq(&first, &of(MORE)));
    }

    #[test]
    fn agents_are_told_only_what_is_another_for_them() {
        let mut shared = Arc::default();
        let mut told = BTreeMap::new();
        let mut says = |endpoints: &[&str]| {
            let posts = posts_of(endpoints, &mut shared);
            let edits = news(&told, &posts);
            told = posts;
            let switch =
                |edit: Edit| if let Edit::Agent(switch, post) = edit { (switch, post.is_some()) } else { panic!() };
            edits.into_iter().map(switch).collect::<Vec<_>>()
        };
        assert_eq!(says(&["", ""]), [(0, true), (1, true)]);
        assert!(says(&["", ""]).is_empty());
        assert_eq!(says(&["", "weight = 2\n"]), [(1, true)]);
        assert!(says(&["", "weight = 2\nqueue = \"200 KiB\"\n"]).is_empty(), "what is nothing to agents");
        assert_eq!(says(&["", MORE]), [(0, true), (1, true)], "another cluster");
        // The one that is left is the whole host now, under another name.
        assert_eq!(says(&[""]), [(1, false), (0, true)]);
    }
}
