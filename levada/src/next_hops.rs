//! Next hops: the way that the frames of tunnels take to other hosts, as this host knows it.
//! Maintenance asks the kernel when it says that something has changed (`route_monitor.rs`), and
//! each second in any case, and what is different goes into the switch's program like any other
//! change; no frame waits for it. Until a next hop is known, frames for its host are dropped
//! (`no-route`).

pub mod report;
pub mod route_monitor;

use crate::cluster::directory::store_state::MOST_SAID;
use control::plan::{LeftOut, Plan, PortKind, SwitchPlan, Underlay};
use datapath::overlay::{Overlay, Vtep};
use datapath::wire::Mac;
use ports::neighbours::{Hop, answer_for_own, look};
use ports::netns::Netns;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

/// What the host knows of the way.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NextHops {
    /// The uplink's own address.
    mac: Option<Mac>,
    /// Its longest packet in bytes.
    mtu: u32,
    /// Why there is no end of tunnels here.
    error: Option<String>,
    /// To each other end.
    next: BTreeMap<IpAddr, Hop>,
}

impl NextHops {
    /// Asks the host. `None`: there is no host to ask, the program has all; or it cannot be asked
    /// at this moment, and what was known is not wrong for that.
    pub fn look(underlay: &Underlay) -> Option<NextHops> {
        let (interface, netns) = underlay.interface.as_ref()?;
        let netns = netns.as_deref().map(Netns::new);
        let others: Vec<IpAddr> = underlay.hosts.keys().copied().collect();
        let seen = match look(interface, netns.as_ref(), underlay.vtep, &others) {
            Ok(seen) => seen,
            Err(error) if is_of_this_process(&error) => return None,
            Err(error) => {
                let why = match error.kind() {
                    io::ErrorKind::NotFound => {
                        let key = if underlay.is_endpoint { "the endpoint's" } else { "the uplink's" };
                        format!("the interface {interface} does not exist; create it, or correct {key} `port`")
                    }
                    _ => format!("the kernel does not list the routes over {interface}: {error}"),
                };
                return Some(NextHops { error: Some(why), ..NextHops::default() });
            }
        };
        if let Some(error) = underlay.taken.iter().find_map(answers_elsewhere) {
            return Some(NextHops { error: Some(error), ..NextHops::default() });
        }
        let error = (!seen.is_ours).then(|| {
            let vtep = underlay.vtep;
            format!("this host does not have the address {vtep}; run ip address add {vtep}/LENGTH dev {interface}, or correct `vtep`")
        });
        Some(NextHops { mac: seen.mac, mtu: seen.mtu, error, next: others.into_iter().zip(seen.hops).collect() })
    }

    /// Whether to look again soon: an answer is on its way.
    pub fn is_waiting(&self) -> bool {
        self.error.is_some() || self.next.values().any(|hop| matches!(hop, Hop::Asked(_)))
    }

    /// Why there is no end of tunnels here.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Puts what is known into the tunnels of a switch.
    pub fn fill(&self, switch: &SwitchPlan, overlay: &mut Overlay) {
        let Some(underlay) = &switch.underlay else { return };
        let here = self.mac.filter(|_| self.error.is_none() && is_exclusive(switch, underlay));
        overlay.local = here.map(|mac| Vtep { address: underlay.vtep, mac });
        for (address, peer) in &mut overlay.peers {
            peer.next_hop = match self.next.get(address) {
                Some(&Hop::At(mac)) => Some(mac),
                _ => None,
            };
        }
    }
}

/// Whether an error tells nothing of the host: this process has no thread, descriptor or memory
/// left.
fn is_of_this_process(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS))
}

/// Why the host may answer for its end of tunnels over an interface that the uplink takes: others
/// would send there what is for the device behind the switch. An interface that is not there yet is
/// looked for again.
fn answers_elsewhere((interface, netns): &(String, Option<String>)) -> Option<String> {
    let netns = netns.as_deref().map(Netns::new);
    match answer_for_own(interface, netns.as_ref()) {
        Ok(()) => None,
        Err(error) if error.kind() == io::ErrorKind::NotFound || is_of_this_process(&error) => None,
        Err(error) => Some(format!(
            "the host answers ARP for this address over {interface} too ({error}); run sysctl -w net.ipv4.conf.{interface}.arp_ignore=1"
        )),
    }
}

/// What the tunnels of `plan` leave out that they did not `before`, for the log.
pub fn newly_left_out(plan: &Plan, before: &Plan) -> Vec<String> {
    let told: BTreeSet<(&str, &LeftOut)> = left_out(before).collect();
    let new: Vec<_> = left_out(plan).filter(|one| !told.contains(one)).collect();
    let lines =
        new.iter().take(MOST_SAID).map(|(switch, what)| format!("left out of the tunnels of switch {switch}: {what}"));
    let more = new.len().saturating_sub(MOST_SAID);
    lines.chain((more > 0).then(|| format!("left out of tunnels: {more} more"))).collect()
}

fn left_out(plan: &Plan) -> impl Iterator<Item = (&str, &LeftOut)> {
    let switches = plan.switches.values().filter_map(|switch| Some((switch.name.as_str(), switch.underlay.as_ref()?)));
    switches.flat_map(|(name, underlay)| underlay.left_out.iter().map(move |what| (name, what)))
}

/// Whether what arrives for this end of tunnels comes to the switch: of a shared interface, it goes
/// to the host. A host that is an endpoint receives what the switch gives it.
fn is_exclusive(switch: &SwitchPlan, underlay: &Underlay) -> bool {
    if underlay.is_endpoint {
        return true;
    }
    let port = switch.program.uplink.as_ref().and_then(|uplink| switch.ports.get(uplink.port().0));
    matches!(port.map(|port| &port.kind), Some(PortKind::Packet(packet)) if packet.is_exclusive)
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::compile;

    const SWITCH: &str = r#"
        [daemon]
        name = "t"
        [[switch]]
        name = "s1"
        [switch.uplink]
        port = "link://w/a"
        rate = "1 Gbit/s"
        vtep = "192.0.2.1"
        [[switch.tenant]]
        name = "red"
        vni = 5001
        endpoint = [{ name = "red1", port = "tap://red1", mac = "02:00:00:00:00:01" }]
        [[link]]
        name = "w"
        rate = "1 Gbit/s"
    "#;

    /// What is said once is not said again; of much, the first is said, and how much more there is.
    #[test]
    fn what_is_left_out_is_told_once() {
        let plain = compile(&control::load(SWITCH).config, None);
        let with = |count: usize| {
            let mut plan = plain.clone();
            let hosts = (0..count).map(|n| LeftOut::Host(format!("h{n:03}")));
            plan.switches.get_mut(0).unwrap().underlay.as_mut().unwrap().left_out = hosts.collect();
            plan
        };
        assert_eq!(newly_left_out(&plain, &plain), Vec::<String>::new());
        let said = newly_left_out(&with(2), &with(1));
        assert!(said.len() == 1 && said[0].contains("switch s1: host \"h001\""), "{said:?}");
        let said = newly_left_out(&with(MOST_SAID + 7), &plain);
        assert_eq!((said.len(), said[MOST_SAID].as_str()), (MOST_SAID + 1, "left out of tunnels: 7 more"));
        // The report says as much.
        let programs = [(0, plain.switches[0].program.clone())].into();
        let reports = report::tunnels(&with(MOST_SAID + 7), &programs, &BTreeMap::new());
        let text =
            crate::command::show::tunnels::text(&crate::api::tunnels::TunnelsReply { version: 1, switches: reports });
        assert!(text.contains("left out: host \"h000\"") && text.ends_with("left out: 7 more\n"), "{text}");
    }
}
