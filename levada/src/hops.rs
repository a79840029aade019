//! Next hops: the way that the frames of tunnels take to other hosts, as this host knows it. Upkeep asks the kernel again and again, and what
//! has changed goes into the switch's program like any other change; no frame waits for it. Until a next hop is known, frames for its host are
//! dropped (`no-route`).

pub mod report;

use control::plan::{PortKind, SwitchPlan, Underlay};
use datapath::overlay::{Overlay, Vtep};
use datapath::wire::Mac;
use ports::neighbours::{Hop, look};
use ports::netns::Netns;
use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;

/// What the host knows of the way.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hops {
    /// The uplink's own address.
    mac: Option<Mac>,
    /// Its longest packet in bytes.
    mtu: u32,
    /// Why there is no end of tunnels here.
    error: Option<String>,
    /// To each other end.
    next: BTreeMap<Ipv4Addr, Hop>,
}

impl Hops {
    /// Asks the host. `None`: there is no host to ask, the program has all.
    pub fn look(underlay: &Underlay) -> Option<Hops> {
        let (interface, netns) = underlay.interface.as_ref()?;
        let netns = netns.as_deref().map(Netns::new);
        let others: Vec<Ipv4Addr> = underlay.hosts.keys().copied().collect();
        let seen = match look(interface, netns.as_ref(), underlay.vtep, &others) {
            Ok(seen) => seen,
            Err(error) => {
                let why = match error.kind() {
                    io::ErrorKind::NotFound => format!("there is no interface {interface}"),
                    _ => format!("the kernel does not tell the ways over {interface}: {error}"),
                };
                return Some(Hops { error: Some(why), ..Hops::default() });
            }
        };
        let error = (!seen.is_ours).then(|| {
            let vtep = underlay.vtep;
            format!("this host does not have the address {vtep}: ip address add {vtep}/LENGTH dev {interface}")
        });
        Some(Hops { mac: seen.mac, mtu: seen.mtu, error, next: others.into_iter().zip(seen.hops).collect() })
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
        let here = self.mac.filter(|_| self.error.is_none() && is_exclusive(switch));
        overlay.local = here.map(|mac| Vtep { address: underlay.vtep, mac });
        for (address, peer) in &mut overlay.peers {
            peer.next_hop = match self.next.get(address) {
                Some(&Hop::At(mac)) => Some(mac),
                _ => None,
            };
        }
    }
}

/// Whether what arrives for this end of tunnels comes to the switch: of a shared interface, it goes to the host.
fn is_exclusive(switch: &SwitchPlan) -> bool {
    let port = switch.program.uplink.as_ref().and_then(|uplink| switch.ports.get(uplink.port.0));
    matches!(port.map(|port| &port.kind), Some(PortKind::Packet(packet)) if packet.is_exclusive)
}
