//! Forwarding: where a frame goes, by the tables of its network.

use crate::fdb::Fdb;
use crate::network::{Network, slot};
use crate::program::{Attachment, EndpointId, TenantId};
use crate::units::Instant;
use crate::wire::Mac;

/// Where a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// To one endpoint of this switch.
    Endpoint(EndpointId),
    /// To the uplink.
    Uplink,
    /// Through tunnels to another host: which one, the overlay's table says.
    Tunnels,
    /// To everyone in the network but its source: a group address.
    Group,
    /// Wherever the address may be: the uplink and endpoints whose addresses are learned.
    Unknown,
    /// Nobody has the address, and there is nowhere to ask.
    Nowhere,
}

/// How a network reaches the uplink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outside {
    /// Without a tag.
    Untagged,
    /// Under a VLAN.
    Vlan(u16),
    /// Through tunnels.
    Tunnels,
}

/// Who is in a network.
#[derive(Clone, Debug, Default)]
struct Members {
    all: Vec<EndpointId>,
    /// Those whose addresses are not declared.
    learning: Vec<EndpointId>,
    /// How it reaches the uplink, if it does.
    outside: Option<Outside>,
}

/// The networks and their members.
#[derive(Debug)]
pub struct Forward {
    /// The untagged network, then one for each tenant's slot.
    members: Vec<Members>,
    /// By endpoint.
    networks: Vec<Network>,
    /// By VLAN id.
    vlans: Vec<Option<Network>>,
}

impl Forward {
    /// No networks.
    #[must_use]
    pub fn new() -> Self {
        Forward { members: vec![Members::default()], networks: Vec::new(), vlans: vec![None; 4096] }
    }

    /// Makes room for endpoints 0..`endpoints`.
    pub fn reserve(&mut self, endpoints: usize) {
        self.networks.reserve(endpoints.saturating_sub(self.networks.len()));
    }

    /// A tenant's slot has another owner or attachment: `None` where the slot is vacant or the
    /// switch has no uplink. It must have no endpoints, unless all that changes is whether there is
    /// an uplink.
    pub fn attach(&mut self, tenant: TenantId, attachment: Option<Attachment>) {
        let slot = slot(Network(tenant.0));
        if self.members.len() <= slot {
            self.members.resize(slot + 1, Members::default());
        }
        if let Some(Outside::Vlan(vlan)) = self.members[slot].outside.take() {
            self.vlans[usize::from(vlan) & 4095] = None;
        }
        match attachment {
            Some(Attachment::Vlan(vlan)) => {
                self.members[slot].outside = Some(Outside::Vlan(vlan));
                self.vlans[usize::from(vlan) & 4095] = Some(Network(tenant.0));
            }
            Some(Attachment::Vxlan(_)) => self.members[slot].outside = Some(Outside::Tunnels),
            Some(Attachment::Isolated | Attachment::Untagged) | None => {}
        }
    }

    /// Whether the untagged network reaches the uplink: some tenant is attached so.
    pub fn attach_untagged(&mut self, attached: bool) {
        self.members[slot(Network::UNTAGGED)].outside = attached.then_some(Outside::Untagged);
    }

    /// Puts an endpoint into a network, which its tenant must be attached to; `learning` where its
    /// addresses are not declared.
    pub fn add(&mut self, endpoint: EndpointId, network: Network, learning: bool) {
        if self.networks.len() <= endpoint.0 as usize {
            self.networks.resize(endpoint.0 as usize + 1, Network::UNTAGGED);
        }
        self.networks[endpoint.0 as usize] = network;
        list(&mut self.members[slot(network)].all, endpoint, true);
        self.set_learning(endpoint, learning);
    }

    /// An endpoint's addresses are declared from now on, or learned.
    pub fn set_learning(&mut self, endpoint: EndpointId, learning: bool) {
        let network = self.network(endpoint);
        list(&mut self.members[slot(network)].learning, endpoint, learning);
    }

    /// Whether nobody is at an endpoint who could be meant by what is for everyone.
    pub fn set_hidden(&mut self, endpoint: EndpointId, is_hidden: bool) {
        let network = self.network(endpoint);
        list(&mut self.members[slot(network)].all, endpoint, !is_hidden);
    }

    /// Takes an endpoint out of its network.
    pub fn remove(&mut self, endpoint: EndpointId) {
        self.set_learning(endpoint, false);
        let network = self.network(endpoint);
        list(&mut self.members[slot(network)].all, endpoint, false);
    }

    /// The network that an endpoint is in.
    #[must_use]
    #[inline]
    pub fn network(&self, endpoint: EndpointId) -> Network {
        self.networks[endpoint.0 as usize]
    }

    /// The network of a frame from the uplink.
    #[must_use]
    pub fn network_of_vlan(&self, vlan: Option<u16>) -> Option<Network> {
        match vlan {
            None | Some(0) => self.members[slot(Network::UNTAGGED)].outside.map(|_| Network::UNTAGGED),
            Some(vlan) => self.vlans[usize::from(vlan) & 4095],
        }
    }

    /// Whether a network reaches the uplink, and how.
    #[must_use]
    pub fn outside(&self, network: Network) -> Option<Outside> {
        self.members[slot(network)].outside
    }

    /// Whether anybody's addresses are learned in a network.
    #[must_use]
    pub fn learns(&self, network: Network) -> bool {
        !self.members[slot(network)].learning.is_empty()
    }

    /// Whether a VLAN of the uplink is a tenant's.
    #[must_use]
    pub fn has_vlan(&self, vlan: u16) -> bool {
        self.vlans[usize::from(vlan) & 4095].is_some()
    }

    /// Those to whom a flooded frame is copied, by their numbers: everyone, or only endpoints whose
    /// addresses are learned.
    #[must_use]
    pub fn members(&self, network: Network, everyone: bool) -> &[EndpointId] {
        let members = &self.members[slot(network)];
        if everyone { &members.all } else { &members.learning }
    }

    /// How many of them there are beside an endpoint.
    #[must_use]
    pub fn others(&self, network: Network, everyone: bool, endpoint: EndpointId) -> usize {
        let members = self.members(network, everyone);
        members.len() - usize::from(members.binary_search(&endpoint).is_ok())
    }

    /// The first two of them from number `from` on, without `except`: whoever comes or goes
    /// meanwhile, one who stays is met once.
    #[must_use]
    pub fn next_members(
        &self,
        network: Network,
        everyone: bool,
        from: u32,
        except: Option<EndpointId>,
    ) -> (Option<EndpointId>, Option<EndpointId>) {
        let members = self.members(network, everyone);
        let first = members.partition_point(|member| member.0 < from);
        let mut rest = members[first..].iter().copied().filter(|member| Some(*member) != except);
        (rest.next(), rest.next())
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
        let members = &self.members[slot(network)];
        match (members.outside, members.learning.is_empty()) {
            (Some(Outside::Tunnels), _) => Target::Tunnels,
            (Some(_), true) => Target::Uplink,
            // Neighbours whose addresses are learned are not to read what is for somebody outside.
            (Some(_), false) if fdb.is_outside(now, network, mac) => Target::Uplink,
            (None, true) => Target::Nowhere,
            (_, false) => Target::Unknown,
        }
    }

    /// Where a frame for `mac` goes that came from the uplink; `vlan` is of the network's own tags.
    #[must_use]
    pub fn target_inside(&self, fdb: &Fdb, now: Instant, network: Network, vlan: u16, mac: Mac) -> Target {
        if mac.is_group() {
            return Target::Group;
        }
        match fdb.find(now, network, vlan, mac) {
            Some(endpoint) => Target::Endpoint(endpoint),
            None if self.members[slot(network)].learning.is_empty() => Target::Nowhere,
            None => Target::Unknown,
        }
    }
}

impl Default for Forward {
    fn default() -> Self {
        Forward::new()
    }
}

/// Puts an endpoint into a list by numbers, or takes it out.
fn list(all: &mut Vec<EndpointId>, endpoint: EndpointId, is_in: bool) {
    match (all.binary_search(&endpoint), is_in) {
        (Err(at), true) => all.insert(at, endpoint),
        (Ok(at), false) => drop(all.remove(at)),
        _ => {}
    }
}

const _: () = assert!(Network::UNTAGGED.0.wrapping_add(1) == 0);
