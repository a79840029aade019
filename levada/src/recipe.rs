//! Recipes: how a device of the plan is opened, at the start and whenever it was lost.

use control::plan::{HostPlan, PacketPlan, Plan, PortKind, SwitchPlan, TapPlan};
use datapath::program::{EndpointId, PortId};
use datapath::units::Rate;
use ports::netns::Netns;
use ports::packet::{self, Host, HostOptions, Packet, PacketOptions};
use ports::tap::{self, Tag, Tap, TapOptions};
use ports::veth::{self, VethOptions};
use ports::{AnyPort, Survey};
use std::os::fd::BorrowedFd;

/// A device that can be opened again.
#[derive(Clone, Debug)]
pub struct Reopen {
    /// How; `None` where there is nothing to open, or it is there when somebody plugs in: that is
    /// not maintenance's affair.
    pub recipe: Option<Recipe>,
    /// What it is called in the log: `tap://red1 of s1/red/red1`.
    pub label: String,
    /// Why it could not be opened, where it is lost from the beginning.
    pub lost: Option<String>,
    /// The most that its line has carried, where it is known to carry less now.
    pub once: Option<Rate>,
}

impl Reopen {
    /// What brings a lost device back that would not come back by itself: the process that its
    /// namespace is named by has ended, or may not be looked at.
    pub fn cure(&self) -> Option<String> {
        self.recipe.as_ref()?.netns().filter(|netns| netns.is_of_process())?;
        let owner = self.label.rsplit_once(" of ").map_or("", |(_, owner)| owner);
        let thing = match owner.strip_suffix("/uplink") {
            Some(switch) => format!("uplink {switch}"),
            None => format!("endpoint {owner}"),
        };
        Some(format!("levada set {thing} netns=/proc/PID/ns/net brings it back; PID is a process of the container"))
    }
}

/// A line that is slower than it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slower {
    /// What it carries.
    pub carries: Rate,
    /// The most that it has carried.
    pub once: Rate,
}

impl Slower {
    /// A line that carries so many bit/s, where it once carried more.
    pub fn of(bits: u64, once: u64) -> Option<Slower> {
        (bits < once).then_some(Slower { carries: Rate(bits), once: Rate(once) })
    }
}

/// How a device is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Recipe {
    /// A tap device is made, or taken up again.
    Tap(TapOptions),
    /// A veth pair is made.
    Veth(VethOptions),
    /// An interface is used. It is expected to carry packets of so many bytes.
    Packet(PacketOptions, u32),
    /// The host's traffic over such an interface.
    Host(HostOptions),
}

/// A device that was opened.
pub struct Fresh {
    /// Its port.
    pub port: AnyPort,
    /// What the operator should know, for the log.
    pub notes: Vec<String>,
    /// Whether an earlier process has opened it, and it is to be settled.
    pub is_adopted: bool,
    /// Whether it was not there before.
    pub is_made: bool,
}

/// Why a device was not opened.
#[derive(Debug)]
pub struct Unopened {
    /// What is wrong and what helps, as a sentence for people.
    pub why: String,
    /// The interface, or the namespace that the device is to be in, is not there: it may come.
    pub is_absence: bool,
}

macro_rules! unopened {
    ($($error:ty),*) => {
        $(impl From<$error> for Unopened {
            fn from(error: $error) -> Unopened {
                Unopened { why: error.to_string(), is_absence: error.is_absence() }
            }
        })*
    };
}

unopened!(tap::OpenError, veth::OpenError, packet::OpenError);

impl Recipe {
    /// The recipe of port `id`, which is that endpoint's or the uplink's; `None` where there is
    /// nothing to open.
    pub fn of(plan: &Plan, switch: usize, id: PortId, endpoint: Option<EndpointId>) -> Option<Recipe> {
        let tag = || Tag { instance: plan.name.clone(), endpoint: owner_of(&plan.switches[switch], endpoint) };
        match &plan.switches[switch].ports[id.0 as usize].kind {
            PortKind::Tap(tap) => Some(Recipe::Tap(tap_options(tap, tag()))),
            PortKind::Veth(end) => Some(Recipe::Veth(veth_options(end, tag()))),
            PortKind::Packet(packet) => Some(Recipe::Packet(packet_options(packet), packet.mtu)),
            PortKind::Host(host) if host.is_absent => None,
            PortKind::Host(host) => Some(Recipe::Host(host_options(plan, switch, endpoint, host, tag()))),
            PortKind::Link { .. } | PortKind::Vde(_) | PortKind::VhostUser(_) | PortKind::Director => None,
        }
    }

    /// Opens it. `survey` is what many that are opened together share.
    ///
    /// # Errors
    /// See [`Unopened`].
    pub fn open(&self, survey: &Survey) -> Result<Fresh, Unopened> {
        match self {
            Recipe::Tap(options) => {
                let tap = Tap::open_among(options, survey)?;
                let notes = tap.notes().to_vec();
                Ok(Fresh { is_adopted: tap.is_adopted(), is_made: tap.is_made(), port: Box::new(tap), notes })
            }
            Recipe::Veth(options) => {
                let veth = veth::open(options, survey)?;
                let notes = veth.notes().to_vec();
                let is_adopted = veth.is_adopted();
                Ok(Fresh { is_adopted, is_made: !is_adopted, port: Box::new(veth), notes })
            }
            Recipe::Packet(options, mtu) => {
                let packet = Packet::open_among(options, survey)?;
                let mut notes = packet.notes().to_vec();
                notes.extend(short_mtu(&packet, options, *mtu));
                Ok(Fresh { is_adopted: packet.is_adopted(), is_made: false, port: Box::new(packet), notes })
            }
            Recipe::Host(options) => {
                let host = Host::open_among(options, survey)?;
                let is_adopted = host.is_adopted();
                Ok(Fresh { is_adopted, is_made: !is_adopted, port: Box::new(host), notes: Vec::new() })
            }
        }
    }

    /// The namespace that the device is put in, or is in; `None` for the daemon's.
    pub fn netns(&self) -> Option<&Netns> {
        match self {
            Recipe::Tap(options) => options.netns.as_ref(),
            Recipe::Veth(options) => options.end.netns.as_ref(),
            Recipe::Packet(options, _) => options.netns.as_ref(),
            Recipe::Host(options) => options.netns.as_ref(),
        }
    }

    /// The same with another way into its namespace.
    pub fn entered_by(&self, netns: Netns) -> Recipe {
        let netns = Some(netns);
        match self.clone() {
            Recipe::Tap(options) => Recipe::Tap(TapOptions { netns, ..options }),
            Recipe::Veth(VethOptions { end, room }) => {
                Recipe::Veth(VethOptions { end: TapOptions { netns, ..end }, room })
            }
            Recipe::Packet(options, mtu) => Recipe::Packet(PacketOptions { netns, ..options }, mtu),
            Recipe::Host(options) => Recipe::Host(HostOptions { netns, ..options }),
        }
    }

    /// The same, which enters its namespace by the descriptor that was passed; `None` where none
    /// was.
    pub fn by_passed(&self, survey: &Survey) -> Option<Recipe> {
        Some(self.entered_by(survey.passed(self.netns()?)?))
    }

    /// The same, which enters its namespace by its path and keeps nothing open.
    pub fn by_path(&self) -> Recipe {
        self.netns().map_or_else(|| self.clone(), |netns| self.entered_by(netns.released()))
    }

    /// Makes a device that was opened by `old`, and of which `fd` is the descriptor, what this
    /// recipe says. Both are of one kind and name.
    ///
    /// # Errors
    /// What is wrong and what helps, as a sentence for people.
    pub fn change(&self, old: &Recipe, fd: BorrowedFd<'_>) -> Result<(), String> {
        match (old, self) {
            (Recipe::Tap(old), Recipe::Tap(options)) => {
                tap::reconfigure(old, options, fd).map_err(|error| error.to_string())
            }
            (Recipe::Veth(old), Recipe::Veth(options)) => {
                veth::reconfigure(old, options, fd).map_err(|error| error.to_string())
            }
            _ => self.settle(fd).map(drop),
        }
    }

    /// The recipe of a device that is open, of which `fd` is the descriptor, with what the device
    /// is now in place of what it leaves open: that takes a change back.
    ///
    /// # Errors
    /// What is wrong and what helps, as a sentence for people.
    pub fn as_it_is(&self, fd: BorrowedFd<'_>) -> Result<Recipe, String> {
        match self {
            Recipe::Tap(options) => tap::as_it_is(options, fd).map(Recipe::Tap).map_err(|error| error.to_string()),
            Recipe::Veth(options) => veth::as_it_is(options, fd).map(Recipe::Veth).map_err(|error| error.to_string()),
            Recipe::Packet(..) | Recipe::Host(_) => Ok(self.clone()),
        }
    }

    /// Makes a device that was to become what this recipe says what it was `before`
    /// ([`Recipe::as_it_is`]).
    ///
    /// # Errors
    /// What is wrong, as a sentence for people.
    pub fn take_back(&self, before: &Recipe, fd: BorrowedFd<'_>) -> Result<(), String> {
        match (before, self) {
            (Recipe::Tap(before), Recipe::Tap(options)) => {
                tap::take_back(before, options, fd).map_err(|error| error.to_string())
            }
            (Recipe::Veth(before), Recipe::Veth(options)) => {
                veth::take_back(before, options, fd).map_err(|error| error.to_string())
            }
            _ => before.settle(fd).map(drop),
        }
    }

    /// Gives up a device that was opened and is not wanted any more, before it is closed: one that
    /// was made goes, and one that was there stays.
    pub fn give_up(&self, is_made: bool, fd: Option<BorrowedFd<'_>>) {
        match (self, fd) {
            // Nobody had it open: it would not have been there if it had not been persistent.
            (Recipe::Tap(_), Some(fd)) => tap::set_persistent(fd, !is_made),
            _ => self.remove(None),
        }
    }

    /// Brings a device that an earlier process opened, of which `fd` is the descriptor, to what the
    /// recipe says. The answer is what is left to somebody who has moved it.
    ///
    /// # Errors
    /// What is wrong and what helps, as a sentence for people.
    pub fn settle(&self, fd: BorrowedFd<'_>) -> Result<Option<String>, String> {
        match self {
            Recipe::Tap(options) => Tap::settle(options, fd).map_err(|error| error.to_string()),
            Recipe::Veth(options) => veth::settle(options, fd).map_err(|error| error.to_string()),
            Recipe::Packet(options, _) => Packet::settle(options, fd).map(|()| None).map_err(|error| error.to_string()),
            Recipe::Host(options) => Host::settle(options, fd).map(|()| None).map_err(|error| error.to_string()),
        }
    }

    /// As [`Recipe::settle`], of a device that has come back to where it should be.
    ///
    /// # Errors
    /// What is wrong and what helps, as a sentence for people.
    pub fn welcome(&self, fd: BorrowedFd<'_>) -> Result<Option<String>, String> {
        match self {
            Recipe::Tap(options) => Tap::welcome(options, fd).map_err(|error| error.to_string()),
            Recipe::Veth(options) => veth::welcome(options, fd).map_err(|error| error.to_string()),
            Recipe::Packet(..) | Recipe::Host(_) => self.settle(fd),
        }
    }

    /// Ends what was opened and does not end with our descriptor: a pair, and a tap of which others
    /// have a copy of `fd`.
    pub fn remove(&self, fd: Option<BorrowedFd<'_>>) {
        match (self, fd) {
            (Recipe::Veth(options), _) => veth::remove(options),
            (Recipe::Tap(options), Some(fd)) if !options.persistent => tap::remove(fd),
            _ => {}
        }
    }

    /// What another process knows such a device by; `None` where its descriptor says it.
    pub fn known_as(&self) -> Option<String> {
        match self {
            Recipe::Tap(options) => Some(options.known_as()),
            Recipe::Veth(options) => Some(options.known_as()),
            Recipe::Packet(..) | Recipe::Host(_) => None,
        }
    }
}

fn short_mtu(packet: &Packet, options: &PacketOptions, expected: u32) -> Option<String> {
    let has = packet.mtu();
    (has < expected).then(|| {
        let name = &options.name;
        format!(
            "interface {name}: its MTU is {has} bytes, and the configuration has {expected}: longer packets are dropped; \
             ip link set dev {name} mtu {expected}"
        )
    })
}

/// Whose port it is: `s1/red/red1`, or `s1/uplink`.
pub fn owner(plan: &Plan, switch: usize, id: PortId) -> String {
    let switch = &plan.switches[switch];
    let endpoint = switch.program.endpoints.iter().find(|(_, endpoint)| endpoint.port == id);
    owner_of(switch, endpoint.map(|(endpoint, _)| EndpointId(endpoint)))
}

/// What the owner of a port is called: an endpoint, or else the uplink.
pub fn owner_of(switch: &SwitchPlan, endpoint: Option<EndpointId>) -> String {
    endpoint.map_or_else(|| format!("{}/uplink", switch.name), |endpoint| switch.endpoint_path(endpoint))
}

fn tap_options(tap: &TapPlan, tag: Tag) -> TapOptions {
    TapOptions {
        name: tap.name.clone(),
        netns: tap.netns.as_deref().map(Netns::new),
        mac: tap.mac,
        mtu: Some(tap.mtu),
        longest_offload: tap.longest_offload,
        addresses: tap.addresses.clone(),
        persistent: tap.persistent,
        txqueuelen: tap.ring,
        without_ipv6: !tap.ipv6,
        tag,
    }
}

fn veth_options(end: &TapPlan, tag: Tag) -> VethOptions {
    // The ring is the switch's end's.
    VethOptions { end: TapOptions { txqueuelen: None, ..tap_options(end, tag) }, room: end.ring }
}

fn packet_options(packet: &PacketPlan) -> PacketOptions {
    PacketOptions {
        name: packet.name.clone(),
        netns: packet.netns.as_deref().map(Netns::new),
        room: packet.ring,
        is_exclusive: packet.is_exclusive,
    }
}

fn host_options(plan: &Plan, switch: usize, endpoint: Option<EndpointId>, host: &HostPlan, tag: Tag) -> HostOptions {
    let endpoint = endpoint.and_then(|id| plan.switches[switch].program.endpoints.get(id.0));
    HostOptions {
        interface: host.interface.clone(),
        netns: host.netns.as_deref().map(Netns::new),
        macs: endpoint.map_or_else(Vec::new, |endpoint| endpoint.identity.macs.clone()),
        ring: host.ring,
        tag,
    }
}

/// Fills in what only this host knows of its own traffic: whether it can be scheduled (if not,
/// interfaces are shared, and the answer says why), and its address. While an interface is gone,
/// its address is that in the plan `before`.
pub fn settle(plan: &mut Plan, before: Option<&Plan>) -> Option<String> {
    let mut places = Vec::new();
    for (index, switch) in plan.switches.iter() {
        let nameless = switch.program.endpoints.iter().filter(|(_, e)| e.identity.macs.is_empty());
        places.extend(nameless.map(|(id, _)| (index, id)));
    }
    for (index, id) in places {
        if let Some(switch) = plan.switches.get_mut(index)
            && let Some(endpoint) = switch.program.endpoints.get_mut(id)
            && let PortKind::Host(host) = &switch.ports[endpoint.port.0 as usize].kind
        {
            // Without an address of its own it would be one of those to whom what is unknown is
            // flooded. Where there is no such interface, opening it says so.
            let netns = host.netns.as_deref().map(Netns::new);
            let earlier = || before?.switches.get(index)?.program.endpoints.get(id)?.identity.macs.first().copied();
            let address = packet::address(&host.interface, netns.as_ref()).ok().or_else(earlier);
            endpoint.identity.macs.extend(address);
        }
    }
    share(plan, packet::probe)
}

fn share(plan: &mut Plan, probe: impl FnOnce() -> Result<(), String>) -> Option<String> {
    let mut kinds: Vec<_> =
        plan.switches.values_mut().flat_map(|s| s.ports.values_mut()).map(|port| &mut port.kind).collect();
    if !kinds.iter().any(|kind| matches!(kind, PortKind::Host(_))) {
        return None;
    }
    let why = probe().err()?;
    for kind in &mut kinds {
        match kind {
            PortKind::Packet(packet) => packet.is_exclusive = false,
            PortKind::Host(host) => host.is_absent = true,
            _ => {}
        }
    }
    Some(format!("the host's own traffic is not scheduled, and its guarantees do not hold, because {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAKEN: &str = r#"
        [daemon]
        name = "t"
        [[switch]]
        name = "s"
        [switch.uplink]
        port = "packet://eth0"
        rate = "1 Gbit/s"
        [[switch.tenant]]
        name = "ops"
        vlan = "untagged"
        [[switch.tenant.endpoint]]
        name = "host"
        port = "host://eth0"
        [[switch.tenant.endpoint]]
        name = "red"
        port = "tap://red"
    "#;

    fn plan() -> Plan {
        control::load(TAKEN).plan.unwrap()
    }

    fn recipe(plan: &Plan, port: u32) -> Option<Recipe> {
        let endpoint = plan.switches[0].program.endpoints.iter().find(|(_, e)| e.port == PortId(port));
        Recipe::of(plan, 0, PortId(port), endpoint.map(|(id, _)| EndpointId(id)))
    }

    #[test]
    fn without_the_right_the_interface_is_shared_and_the_host_left_out() {
        let mut plan = plan();
        let why = share(&mut plan, || Err("the moon is full".to_owned())).unwrap();
        assert!(why.contains("not scheduled") && why.contains("the moon is full"), "{why}");
        assert!(matches!(recipe(&plan, 0), Some(Recipe::Packet(options, 1500)) if !options.is_exclusive));
        assert!(recipe(&plan, 1).is_none());
        assert!(matches!(recipe(&plan, 2), Some(Recipe::Tap(_))));
    }

    #[test]
    fn with_it_the_host_is_an_endpoint() {
        let mut plan = plan();
        assert_eq!(share(&mut plan, || Ok(())), None);
        assert!(matches!(recipe(&plan, 0), Some(Recipe::Packet(options, _)) if options.is_exclusive));
        let Some(Recipe::Host(options)) = recipe(&plan, 1) else { panic!("no port for the host") };
        assert_eq!((options.interface.as_str(), options.tag.endpoint.as_str()), ("eth0", "s/ops/host"));
        plan.switches[0].ports.set(1, None);
        plan.switches[0].ports.set(2, None);
        assert_eq!(share(&mut plan, || Err("nobody asks".to_owned())), None);
    }
}
