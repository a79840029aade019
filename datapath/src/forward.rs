//! Forwarding: where a frame goes, by the tables of its network.

use crate::fdb::{Fdb, Network, network_of};
use crate::program::{Attachment, EndpointId, Program};
use crate::units::Instant;
use crate::wire::Mac;

/// Where a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// To one endpoint of this switch.
    Endpoint(EndpointId),
    /// To the uplink.
    Uplink,
    /// To everyone in the network but its source: a group address.
    Group,
    /// Wherever the address may be: the uplink and endpoints whose addresses are learned.
    Unknown,
    /// Nobody has the address, and there is nowhere to ask.
    Nowhere,
}

/// Who is in a network.
#[derive(Clone, Debug, Default)]
struct Members {
    all: Vec<EndpointId>,
    /// Those whose addresses are not declared.
    learning: Vec<EndpointId>,
    /// VLAN on the uplink, if the network reaches it.
    uplink: Option<Option<u16>>,
}

/// The networks of a program and their members.
#[derive(Debug)]
pub struct Forward {
    /// By tenant; the untagged network is the last.
    members: Vec<Members>,
    /// Network by endpoint.
    networks: Vec<Network>,
    /// Tenant by VLAN id.
    vlans: Vec<Option<Network>>,
}

impl Forward {
    /// The networks of `program`.
    #[must_use]
    pub fn new(program: &Program) -> Self {
        let has_uplink = program.uplink.is_some();
        let mut members = vec![Members::default(); program.tenants.len() + 1];
        let mut vlans = vec![None; 4096];
        for (index, tenant) in program.tenants.iter().enumerate() {
            match tenant.attachment {
                Attachment::Vlan(vlan) if has_uplink => {
                    vlans[usize::from(vlan) & 4095] = Some(Network(index as u32));
                    members[index].uplink = Some(Some(vlan));
                }
                Attachment::Untagged if has_uplink => members[program.tenants.len()].uplink = Some(None),
                _ => {}
            }
        }
        let networks: Vec<Network> =
            (0..program.endpoints.len()).map(|i| network_of(program, EndpointId(i as u32))).collect();
        let mut forward = Forward { members, networks, vlans };
        for (index, endpoint) in program.endpoints.iter().enumerate() {
            let slot = forward.slot(forward.networks[index]);
            forward.members[slot].all.push(EndpointId(index as u32));
            if endpoint.identity.macs.is_empty() {
                forward.members[slot].learning.push(EndpointId(index as u32));
            }
        }
        forward
    }

    /// The network that an endpoint is in.
    #[must_use]
    pub fn network(&self, endpoint: EndpointId) -> Network {
        self.networks[endpoint.0 as usize]
    }

    /// The network of a frame from the uplink.
    #[must_use]
    pub fn network_of_vlan(&self, vlan: Option<u16>) -> Option<Network> {
        match vlan {
            None | Some(0) => self.members.last()?.uplink.map(|_| Network::UNTAGGED),
            Some(vlan) => self.vlans[usize::from(vlan) & 4095],
        }
    }

    /// Whether a network reaches the uplink, and under which VLAN.
    #[must_use]
    pub fn uplink_vlan(&self, network: Network) -> Option<Option<u16>> {
        self.members[self.slot(network)].uplink
    }

    /// Those to whom a flooded frame is copied: everyone, or only endpoints whose addresses are learned.
    #[must_use]
    pub fn members(&self, network: Network, everyone: bool) -> &[EndpointId] {
        let members = &self.members[self.slot(network)];
        if everyone { &members.all } else { &members.learning }
    }

    /// Where a frame for `mac` goes that did not come from the uplink.
    #[must_use]
    pub fn target(&self, fdb: &Fdb, now: Instant, network: Network, vlan: u16, mac: Mac) -> Target {
        if mac.is_group() {
            return Target::Group;
        }
        if let Some(endpoint) = fdb.find(now, network, vlan, mac) {
            return Target::Endpoint(endpoint);
        }
        let members = &self.members[self.slot(network)];
        match (members.uplink.is_some(), members.learning.is_empty()) {
            (true, true) => Target::Uplink,
            (false, true) => Target::Nowhere,
            _ => Target::Unknown,
        }
    }

    /// Where a frame for `mac` goes that came from the uplink.
    #[must_use]
    pub fn target_inside(&self, fdb: &Fdb, now: Instant, network: Network, mac: Mac) -> Target {
        if mac.is_group() {
            return Target::Group;
        }
        match fdb.find(now, network, 0, mac) {
            Some(endpoint) => Target::Endpoint(endpoint),
            None if self.members[self.slot(network)].learning.is_empty() => Target::Nowhere,
            None => Target::Unknown,
        }
    }

    fn slot(&self, network: Network) -> usize {
        if network == Network::UNTAGGED { self.members.len() - 1 } else { network.0 as usize }
    }
}
