//! Theft of addresses: any frames from any endpoints and from outside, through a whole switch,
//! against a model of who owns what.
//!
//! The model is written from the promise, not from the switch: it keeps for each address who has
//! declared it, or who had it last, and asks of each frame that the switch let pass whether it
//! claims something that its sender does not own. It knows nothing of how the switch remembers. The
//! other way round, an owner is never refused what it has declared.

use datapath::frame::{Pool, PoolLimits};
use datapath::guard::Identity;
use datapath::program::{
    Attachment, Elsewhere, Endpoint, Outside, PortFeatures, PortId, Program, Tenant, TenantId, Uplink,
};
use datapath::switch::Switch;
use datapath::units::{Both, Instant, Rate};
use datapath::verdict::{Reason, Verdict};
use datapath::wire::Mac;
use datapath::wire::build::{self, Build, eth, link_layer_option, link_local};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Undeclared addresses live so long.
const AGE_NS: u64 = 20_000_000_000;
/// Tenants of every world: one on its own, and two that share the untagged network.
const TENANTS: [Attachment; 3] = [Attachment::Vlan(10), Attachment::Untagged, Attachment::Untagged];
const ENDPOINTS: u32 = 6;
/// Prefixes that some have: most addresses that are tried, but none is an owner by them.
const PREFIX_V4: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 0, 0, 0), 24);
const PREFIX_V6: (Ipv6Addr, u8) = (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0), 64);
const MACS: u8 = 10;

/// Where choices come from: a number below the given one, or `None` where there are no more.
pub trait Choices {
    /// The next choice.
    fn below(&mut self, most: u32) -> Option<u32>;
}

/// Choices that a fuzzer makes: a byte each.
impl Choices for &[u8] {
    fn below(&mut self, most: u32) -> Option<u32> {
        let (&first, rest) = self.split_first()?;
        *self = rest;
        Some(u32::from(first) % most)
    }
}

/// Who sends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Who {
    Endpoint(u32),
    Outside,
}

/// What was tried, and what came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Frames that passed.
    pub passed: u64,
    /// Frames that were refused because of an address.
    pub refused: u64,
}

/// One claim of a frame, as the model reads what it has built itself.
#[derive(Clone, Copy, Debug)]
enum Claim {
    /// A packet is from there.
    Source(IpAddr),
    /// Neighbours learn who has it.
    Binding(IpAddr, Mac),
    /// The same from who says to be a router.
    Router(IpAddr, Mac),
    /// It is asked whether it is free, to use it.
    Probe(IpAddr, Mac),
    /// A router tells who has it.
    Redirect(IpAddr, Mac),
}

/// A frame, and what it claims.
struct Attempt {
    source: Mac,
    /// Link-layer addresses inside.
    inner: Vec<Mac>,
    /// One in an option that receivers skip.
    decoy: Option<Mac>,
    claims: Vec<Claim>,
    frame: Build<'static>,
}

/// Who had an undeclared address last.
#[derive(Clone, Copy, Debug)]
struct Holder {
    who: Who,
    mac: Mac,
    is_router: bool,
    seen: Instant,
}

/// Who owns what, by network: the shared one is 1.
struct Owners {
    endpoints: Vec<Endpoint>,
    listed: [(BTreeSet<Mac>, BTreeSet<IpAddr>); 2],
    /// What endpoints of other hosts have declared.
    elsewhere: [(BTreeSet<Mac>, BTreeSet<IpAddr>); 2],
    macs: BTreeMap<(usize, Mac), (Who, Instant)>,
    addresses: BTreeMap<(usize, IpAddr), Holder>,
}

fn mac(n: u32) -> Mac {
    Mac([2, 0, 0, 0, 0, n as u8])
}

fn network(tenant: u32) -> usize {
    usize::from(tenant != 0)
}

/// All IP addresses that are tried: no more than an endpoint may hold are nobody's by their form.
fn addresses() -> Vec<IpAddr> {
    let v4 = (1..5).map(|n| Ipv4Addr::new(10, 0, 0, n).into());
    let v6 = (1..3).map(|n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n).into());
    let random = (1..3).map(|n| Ipv6Addr::new(0xfe80, 0, 0, 0, 0x1234, 0, 0, n).into());
    let made = (1..4).map(|n| link_local(mac(n)).into());
    v4.chain(v6).chain(random).chain(made).collect()
}

/// Whether an endpoint's list has a prefix with an address in it.
fn has_prefix(endpoint: &Endpoint, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => endpoint.identity.ipv4.contains(&PREFIX_V4) && v4.octets()[..3] == PREFIX_V4.0.octets()[..3],
        IpAddr::V6(v6) => endpoint.identity.ipv6.contains(&PREFIX_V6) && v6.octets()[..8] == PREFIX_V6.0.octets()[..8],
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// A world, and attempts in it until there are no more choices, or `most`.
///
/// # Panics
/// Where an address was stolen, or an owner refused.
pub fn play(choices: &mut impl Choices, most: u32) -> Option<Tally> {
    let (program, mut owners) = world(choices)?;
    let mut switch = Switch::new(&program, 7).expect("a sound program");
    let mut pool = Pool::new(PoolLimits { small: 256, medium: 0, large: 4 });
    let mut now = Instant(1_000_000_000);
    let mut tally = Tally::default();
    for _ in 0..most {
        let Some((who, attempt)) = attempt(choices, &owners) else { break };
        let port = match who {
            Who::Outside => PortId(0),
            Who::Endpoint(id) => PortId(id + 1),
        };
        let inside = matches!(who, Who::Endpoint(_));
        let network = match who {
            Who::Endpoint(id) => network(owners.endpoints[id as usize].tenant.0),
            Who::Outside => choices.below(2)? as usize,
        };
        let built = if !inside && network == 0 { attempt.frame.clone().vlan(10) } else { attempt.frame.clone() };
        let frame = built.frame(&mut pool).expect("a buffer");
        let verdict = switch.rx(&mut pool, now, port, frame);
        while let Some((_, frame)) = switch.tx(&mut pool, now) {
            pool.free(frame);
        }
        match verdict {
            Verdict::Dropped(reason) if is_about_addresses(reason) => {
                tally.refused += 1;
                assert!(
                    !owners.is_declared(network, who, &attempt),
                    "{who:?} was refused its own ({}): {:?} {:?}",
                    reason.name(),
                    attempt.frame,
                    attempt.claims
                );
            }
            _ => {
                tally.passed += 1;
                if let Err(theft) = owners.accept(now, network, who, &attempt) {
                    panic!("{who:?} stole: {theft}: {:?} {:?}", attempt.frame, attempt.claims);
                }
            }
        }
        let step = [0, 1, 50, 1000, 3000][choices.below(5)? as usize];
        now = now.plus_ns(step * 1_000_000);
    }
    switch.clear(&mut pool);
    Some(tally)
}

/// `data` is choices.
pub fn run(mut data: &[u8]) {
    let _ = play(&mut data, 1000);
}

fn is_about_addresses(reason: Reason) -> bool {
    use Reason::{
        BadSource, FdbFull, Flapping, Loop, OutsideFull, SeenOutside, SpoofedArp, SpoofedIpv4, SpoofedIpv6, SpoofedMac,
        SpoofedNd, Undeclared,
    };
    let all = [
        BadSource,
        FdbFull,
        Flapping,
        Loop,
        OutsideFull,
        SeenOutside,
        SpoofedArp,
        SpoofedIpv4,
        SpoofedIpv6,
        SpoofedMac,
        SpoofedNd,
        Undeclared,
        Reason::RouterAdvertisement,
        Reason::Malformed,
    ];
    all.contains(&reason)
}

/// Tenants and endpoints of all kinds.
fn world(choices: &mut impl Choices) -> Option<(Program, Owners)> {
    let rate = Both { egress: Rate(Rate::GBIT), ingress: Rate(Rate::GBIT) };
    let mut listed: [(BTreeSet<Mac>, BTreeSet<IpAddr>); 2] = Default::default();
    let mut elsewhere = listed.clone();
    let mut program = Program {
        uplink: Some(Uplink::new(PortId(0), rate)),
        ports: vec![PortFeatures::default(); ENDPOINTS as usize + 1].into(),
        fdb_age_ns: AGE_NS,
        ..Program::default()
    };
    for (tenant, attachment) in TENANTS.into_iter().enumerate() {
        let mut outside = Outside::default();
        if choices.below(2)? == 0 {
            outside.macs.push(mac(choices.below(MACS.into())?));
            outside.ips.push(addresses()[choices.below(8)? as usize]);
        }
        let list = &mut listed[network(tenant as u32)];
        list.0.extend(&outside.macs);
        list.1.extend(&outside.ips);
        if choices.below(2)? == 0 {
            let (mac, ip) = (mac(choices.below(MACS.into())?), addresses()[choices.below(8)? as usize]);
            let all = [Elsewhere::Mac(mac), Elsewhere::Ip(ip)];
            program.elsewhere.extend(all.map(|address| (TenantId(tenant as u32), address)));
            let there = &mut elsewhere[network(tenant as u32)];
            there.0.insert(mac);
            there.1.insert(ip);
        }
        program.tenants.push(Tenant { attachment, outside, ..Tenant::default() });
    }
    let mut taken = BTreeSet::new();
    for id in 0..ENDPOINTS {
        let tenant = id % 3;
        let mut identity = Identity::default();
        let own = mac(choices.below(MACS.into())?);
        if choices.below(3)? != 0 && taken.insert((network(tenant), own)) {
            identity.macs.push(own);
        }
        let trunk = identity.macs.is_empty() && choices.below(3)? == 0;
        if !trunk && choices.below(2)? == 0 {
            for _ in 0..=choices.below(2)? {
                match addresses()[choices.below(8)? as usize] {
                    IpAddr::V4(v4) => identity.ipv4.push((v4, 32)),
                    IpAddr::V6(v6) => identity.ipv6.push((v6, 128)),
                }
            }
            if choices.below(3)? == 0 {
                identity.ipv4.push(PREFIX_V4);
                identity.ipv6.push(PREFIX_V6);
            }
        }
        let max_learned = if choices.below(8)? == 0 { 0 } else { 16 };
        identity.allow.router = choices.below(4)? == 0;
        program.endpoints.push(Endpoint {
            identity,
            trunk,
            flood_per_second: 1_000_000,
            max_learned,
            ..Endpoint::new(TenantId(tenant), PortId(id + 1))
        });
    }
    let endpoints = program.endpoints.values().cloned().collect();
    let owners = Owners { endpoints, listed, elsewhere, macs: BTreeMap::new(), addresses: BTreeMap::new() };
    Some((program, owners))
}

/// Some frame from somebody, with addresses that somebody has, or nobody.
fn attempt(choices: &mut impl Choices, owners: &Owners) -> Option<(Who, Attempt)> {
    let from = choices.below(ENDPOINTS + 2)?;
    let who = if from < ENDPOINTS { Who::Endpoint(from) } else { Who::Outside };
    let all = addresses();
    let mut source = mac(choices.below(MACS.into())?);
    // Mostly with what it has: a thief does not give itself away by the rest of the frame.
    if let Who::Endpoint(id) = who
        && let Some(&own) = owners.endpoints[id as usize].identity.macs.first()
        && choices.below(8)? != 0
    {
        source = own;
    }
    let inner = if choices.below(4)? == 0 { mac(choices.below(MACS.into())?) } else { source };
    let (a, b) = (all[choices.below(all.len() as u32)? as usize], all[choices.below(all.len() as u32)? as usize]);
    let to = mac(choices.below(MACS.into())?);
    let what = choices.below(8)?;
    let plain = |frame, claims| Attempt { source, inner: vec![], decoy: None, claims, frame };
    let attempt = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => match what {
            0..3 => plain(eth(source, to).ipv4(a, b).udp(1, 2), vec![Claim::Source(a.into())]),
            3 => plain(eth(source, to).ethertype(0x88b5).payload(vec![1; 40]), vec![]),
            _ => arp(source, inner, what, a, b),
        },
        (IpAddr::V6(a), IpAddr::V6(b)) => match what {
            0..2 => plain(eth(source, to).ipv6(a, b).udp(1, 2), vec![Claim::Source(a.into())]),
            _ => {
                let what = if what == 4 && choices.below(2)? == 0 { REDIRECT } else { what };
                let decoy = if choices.below(4)? == 0 { Some(mac(choices.below(MACS.into())?)) } else { None };
                discovery(source, (inner, decoy), what, a, b)
            }
        },
        _ => plain(eth(source, to).ethertype(0x88b5).payload(vec![1; 40]), vec![]),
    };
    Some((who, attempt))
}

fn arp(source: Mac, inner: Mac, what: u32, a: Ipv4Addr, b: Ipv4Addr) -> Attempt {
    let is_probe = what == 4;
    let sender = if is_probe { Ipv4Addr::UNSPECIFIED } else { a };
    let operation = if what < 6 { 1 } else { 2 };
    let body = build::arp(operation, (inner, sender), (Mac::default(), b)).bytes()[14..].to_vec();
    let frame = eth(source, Mac::BROADCAST).ethertype(0x0806).payload(body);
    let claim = if is_probe { Claim::Probe(b.into(), inner) } else { Claim::Binding(a.into(), inner) };
    Attempt { source, inner: vec![inner], decoy: None, claims: vec![claim], frame }
}

/// Of what [`discovery`] builds: a router's redirect.
const REDIRECT: u32 = 8;

fn discovery(source: Mac, (inner, decoy): (Mac, Option<Mac>), what: u32, a: Ipv6Addr, b: Ipv6Addr) -> Attempt {
    const NO: Ipv6Addr = Ipv6Addr::UNSPECIFIED;
    let (kind, from, flags, option, body) = match what {
        2 => (135, NO, 0, None, b.octets().to_vec()),
        3 => (135, a, 0, Some(1), b.octets().to_vec()),
        4 => (134, a, 0, Some(1), vec![0; 8]),
        5 => (136, a, 0xa000_0000, Some(2), b.octets().to_vec()),
        6 => (136, a, 0x2000_0000, None, b.octets().to_vec()),
        REDIRECT => (137, a, 0, Some(2), [b.octets(), b.octets()].concat()),
        _ => (136, a, 0x2000_0000, Some(2), b.octets().to_vec()),
    };
    let (mut given, mut inside) = (source, vec![]);
    let mut body = body;
    // Receivers skip the source's option where the target's counts, and the other way round.
    let decoy = decoy.filter(|_| option.is_some());
    if let (Some(option), Some(decoy)) = (option, decoy) {
        body.extend(link_layer_option(3 - option, decoy));
    }
    if let Some(option) = option {
        body.extend(link_layer_option(option, inner));
        (given, inside) = (inner, vec![inner]);
    }
    let frame = build::nd(kind, source, (from, build::ALL_NODES), flags, body);
    let is_router = kind == 134 || flags == 0xa000_0000;
    let bind = |address: Ipv6Addr| {
        if is_router { Claim::Router(address.into(), given) } else { Claim::Binding(address.into(), given) }
    };
    let claims = match kind {
        135 if from == NO => vec![Claim::Probe(b.into(), given)],
        136 => vec![bind(a), bind(b)],
        137 => {
            // Not its own: the target's.
            inside.clear();
            let is_itself = inner == source;
            let of_target = if is_itself { Claim::Binding(b.into(), inner) } else { Claim::Redirect(b.into(), inner) };
            vec![Claim::Binding(a.into(), source), of_target]
        }
        _ => vec![bind(a)],
    };
    Attempt { source, inner: inside, decoy, claims, frame }
}

impl Owners {
    fn of_network(&self, network: usize) -> impl Iterator<Item = (u32, &Endpoint)> {
        let all = self.endpoints.iter().zip(0..).map(|(endpoint, id)| (id, endpoint));
        all.filter(move |(_, endpoint)| self::network(endpoint.tenant.0) == network)
    }

    fn mac_owner(&self, network: usize, mac: Mac) -> Option<u32> {
        self.of_network(network).find(|(_, e)| e.identity.macs.contains(&mac)).map(|(id, _)| id)
    }

    fn address_owners(&self, network: usize, address: IpAddr) -> Vec<u32> {
        let lists = |e: &Endpoint| match address {
            IpAddr::V4(v4) => e.identity.ipv4.contains(&(v4, 32)),
            IpAddr::V6(v6) => e.identity.ipv6.contains(&(v6, 128)),
        };
        self.of_network(network).filter(|(_, e)| lists(e)).map(|(id, _)| id).collect()
    }

    /// Whether everything that a frame claims has been declared by who sends it.
    fn is_declared(&self, network: usize, who: Who, attempt: &Attempt) -> bool {
        let Who::Endpoint(id) = who else { return false };
        let identity = &self.endpoints[id as usize].identity;
        let own = |mac: &Mac| identity.macs.contains(mac);
        // To be a router is another thing that may be refused.
        own(&attempt.source)
            && attempt.inner.iter().chain(&attempt.decoy).all(own)
            && attempt.claims.iter().all(|claim| match claim {
                Claim::Router(address, _) => {
                    identity.allow.router && self.address_owners(network, *address).contains(&id)
                }
                Claim::Source(address) | Claim::Binding(address, _) | Claim::Probe(address, _) => {
                    self.address_owners(network, *address).contains(&id)
                }
                Claim::Redirect(address, given) => {
                    own(given) && identity.allow.router && self.address_owners(network, *address).contains(&id)
                }
            })
            && (identity.allow.router || attempt.frame.bytes().get(54).is_none_or(|kind| !matches!(kind, 134 | 137)))
    }

    /// A frame passed: what it claims must be its sender's.
    fn accept(&mut self, now: Instant, network: usize, who: Who, attempt: &Attempt) -> Result<(), String> {
        self.accept_source(now, network, who, attempt.source)?;
        for &mac in &attempt.inner {
            self.accept_inner(network, who, attempt, mac)?;
        }
        for &claim in &attempt.claims {
            match claim {
                Claim::Redirect(address, given) => self.accept_redirect(now, network, who, address, given)?,
                _ => self.accept_claim(now, network, who, attempt.source, claim)?,
            }
        }
        Ok(())
    }

    /// A router may say where another's address is, as that is.
    fn accept_redirect(
        &self,
        now: Instant,
        network: usize,
        who: Who,
        address: IpAddr,
        given: Mac,
    ) -> Result<(), String> {
        if let Who::Endpoint(id) = who {
            let Endpoint { identity, trunk, .. } = &self.endpoints[id as usize];
            if !trunk && !identity.allow.router {
                return Err("it is no router".to_string());
            }
        }
        let holder = |mac: Mac| {
            let last = self.macs.get(&(network, mac)).filter(|(_, seen)| now.since(*seen) < AGE_NS);
            self.mac_owner(network, mac).map(Who::Endpoint).or(last.map(|(who, _)| *who))
        };
        // Who says something wrong of itself robs nobody.
        let owners = self.address_owners(network, address);
        let made = (1..=MACS).map(|n| mac(n.into())).find(|&mac| IpAddr::from(link_local(mac)) == address);
        let is_true = if !owners.is_empty() {
            [Some(who), holder(given)].iter().any(|who| matches!(who, Some(Who::Endpoint(id)) if owners.contains(id)))
        } else if let Some(owner @ Who::Endpoint(_)) = made.and_then(holder) {
            holder(given) == Some(owner) || owner == who
        } else {
            let last = self.addresses.get(&(network, address)).filter(|last| now.since(last.seen) < AGE_NS);
            let is_free = |last: &Holder| last.who == Who::Outside && !last.is_router;
            last.is_none_or(|last| last.mac == given || last.who == who || is_free(last))
        };
        if is_true { Ok(()) } else { Err(format!("{address} is not where it says")) }
    }

    fn accept_source(&mut self, now: Instant, network: usize, who: Who, mac: Mac) -> Result<(), String> {
        if let Some(owner) = self.mac_owner(network, mac) {
            return if who == Who::Endpoint(owner) { Ok(()) } else { Err(format!("{mac} is declared by {owner}")) };
        }
        if let Who::Endpoint(id) = who {
            if !self.endpoints[id as usize].identity.macs.is_empty() {
                return Err(format!("{mac} is not what it has declared"));
            }
            if self.listed[network].0.contains(&mac) {
                return Err(format!("{mac} is listed as outside"));
            }
            if self.elsewhere[network].0.contains(&mac) {
                return Err(format!("{mac} is declared on another host"));
            }
            if self.endpoints[id as usize].max_learned == 0 {
                return Err(format!("{mac} is learned, and it may learn none"));
            }
        }
        // Outside of a network where nothing is learned there is nobody who could be robbed.
        let last = self.macs.insert((network, mac), (who, now));
        match last.filter(|(_, seen)| now.since(*seen) < AGE_NS) {
            Some((Who::Endpoint(last), _)) if who == Who::Outside => Err(format!("{mac} is {last}'s")),
            Some((Who::Outside, _)) if who != Who::Outside => Err(format!("{mac} is outside")),
            Some((Who::Endpoint(last), _)) if self.is_another_tenants(who, last) => Err(format!("{mac} is {last}'s")),
            _ => Ok(()),
        }
    }

    fn is_another_tenants(&self, who: Who, other: u32) -> bool {
        match who {
            Who::Endpoint(id) => self.endpoints[id as usize].tenant != self.endpoints[other as usize].tenant,
            Who::Outside => true,
        }
    }

    /// A link-layer address inside a message.
    fn accept_inner(&self, network: usize, who: Who, attempt: &Attempt, mac: Mac) -> Result<(), String> {
        if let Who::Endpoint(id) = who {
            let Endpoint { identity, trunk, .. } = &self.endpoints[id as usize];
            if !trunk && mac != attempt.source && !identity.macs.contains(&mac) {
                return Err(format!("it gives {mac}, which is not its own"));
            }
            if self.elsewhere[network].0.contains(&mac) && self.mac_owner(network, mac).is_none() {
                return Err(format!("it gives {mac}, which is declared on another host"));
            }
        }
        let Some(owner) = self.mac_owner(network, mac).filter(|owner| who != Who::Endpoint(*owner)) else {
            return Ok(());
        };
        // Somebody else may say the truth about an owner.
        let is_true = who == Who::Outside
            && attempt.claims.iter().all(|claim| match claim {
                Claim::Binding(address, given) | Claim::Router(address, given) | Claim::Probe(address, given) => {
                    let owners = self.address_owners(network, *address);
                    *given != mac
                        || owners.contains(&owner)
                        || self.listed[network].1.contains(address) && !owners.is_empty()
                }
                Claim::Source(_) | Claim::Redirect(..) => true,
            });
        if is_true { Ok(()) } else { Err(format!("it gives {mac}, which {owner} has declared")) }
    }

    fn accept_claim(
        &mut self,
        now: Instant,
        network: usize,
        who: Who,
        source: Mac,
        claim: Claim,
    ) -> Result<(), String> {
        let (address, given, is_router) = match claim {
            Claim::Source(address) => (address, source, false),
            Claim::Binding(address, mac) | Claim::Probe(address, mac) => (address, mac, false),
            Claim::Router(address, mac) | Claim::Redirect(address, mac) => (address, mac, true),
        };
        let is_source = matches!(claim, Claim::Source(_));
        let is_probe = matches!(claim, Claim::Probe(..));
        let sender = match who {
            Who::Endpoint(id) => Some(&self.endpoints[id as usize]),
            Who::Outside => None,
        };
        let forwards = sender.is_none_or(|e| e.trunk || e.identity.allow.router);
        if is_source && (who == Who::Outside || forwards && !is_link_local(address)) {
            return Ok(());
        }
        let in_prefix = sender.is_some_and(|endpoint| has_prefix(endpoint, address));
        // Of packets its list has the last word: a prefix is given to who may forward from there.
        if is_source && in_prefix {
            return Ok(());
        }
        let owners = self.address_owners(network, address);
        let listed = self.listed[network].1.contains(&address);
        if !owners.is_empty() {
            let is_owner = matches!(who, Who::Endpoint(id) if owners.contains(&id));
            let true_owner = self.mac_owner(network, given).is_some_and(|owner| owners.contains(&owner));
            let may = is_owner || who == Who::Outside && (listed || true_owner);
            return if may { Ok(()) } else { Err(format!("{address} is declared by {owners:?}")) };
        }
        if let Some(endpoint) = sender {
            let has_list = !endpoint.identity.ipv4.is_empty() || !endpoint.identity.ipv6.is_empty();
            let may_ask = is_probe && address.is_ipv4();
            if has_list && !in_prefix && !is_link_local(address) && !may_ask {
                return Err(format!("{address} is not in its list"));
            }
            if listed {
                return Err(format!("{address} is listed as outside"));
            }
            if self.elsewhere[network].1.contains(&address) {
                return Err(format!("{address} is declared on another host"));
            }
        }
        let made = (1..=MACS).map(|n| mac(n.into())).find(|&mac| IpAddr::from(link_local(mac)) == address);
        if let Some(maker) = made {
            return self.accept_made(now, network, who, given, maker);
        }
        if !is_link_local(address) && network == 0 {
            return self.accept_in_own_network(now, network, who, given, address, is_router);
        }
        let last = self.addresses.get(&(network, address)).filter(|last| now.since(last.seen) < AGE_NS);
        // A machine moves in or out, or from one endpoint of its tenant to another.
        let is_same = last.is_some_and(|last| last.mac == given);
        // A prefix goes before what was only seen outside: nobody there can lock its owner out.
        let in_prefix_first = in_prefix && last.is_some_and(|last| !last.is_router);
        match (who, last.map(|last| last.who)) {
            (Who::Endpoint(_), Some(Who::Outside)) if !is_same && !in_prefix_first => {
                return Err(format!("{address} is outside"));
            }
            (Who::Outside, Some(Who::Endpoint(last))) if !is_same && !is_router && !listed => {
                return Err(format!("{address} is {last}'s"));
            }
            (Who::Endpoint(id), Some(Who::Endpoint(last)))
                if id != last && (is_link_local(address) && !is_same || self.is_another_tenants(who, last)) =>
            {
                return Err(format!("{address} is {last}'s"));
            }
            _ => {}
        }
        let has_list = sender.is_some_and(|e| !e.identity.ipv4.is_empty() || !e.identity.ipv6.is_empty());
        let holds = match who {
            Who::Outside => !is_probe,
            Who::Endpoint(_) => {
                (!is_source || is_link_local(address)) && (!has_list || in_prefix || is_link_local(address))
            }
        };
        if holds {
            self.addresses.insert((network, address), Holder { who, mac: given, is_router, seen: now });
        } else if let Some(last) = self.addresses.get_mut(&(network, address))
            && (is_source, last.who, last.mac) == (true, who, given)
            && now.since(last.seen) < AGE_NS
        {
            // Who uses what it has keeps it; a packet may be taken note of a quarter of its life
            // late.
            last.seen = last.seen.max(Instant(now.0.saturating_sub(AGE_NS / 4)));
        }
        Ok(())
    }

    /// A link-local address that is made from a MAC address.
    fn accept_made(&self, now: Instant, network: usize, who: Who, given: Mac, maker: Mac) -> Result<(), String> {
        let declared = self.mac_owner(network, maker).map(Who::Endpoint);
        let last = self.macs.get(&(network, maker)).filter(|(_, seen)| now.since(*seen) < AGE_NS).map(|(who, _)| *who);
        match (who, declared.or(last)) {
            (_, Some(owner)) if owner == who => Ok(()),
            (Who::Outside, Some(Who::Endpoint(owner))) => Err(format!("it is made from the address of {owner}")),
            (Who::Endpoint(_), _) if maker != given => Err(format!("it is made from {maker}, which is not its own")),
            _ => Ok(()),
        }
    }

    /// What a tenant does with undeclared addresses in its own network is its business, but for
    /// those of routers outside.
    fn accept_in_own_network(
        &mut self,
        now: Instant,
        network: usize,
        who: Who,
        given: Mac,
        address: IpAddr,
        is_router: bool,
    ) -> Result<(), String> {
        let last = self.addresses.get(&(network, address)).filter(|last| now.since(last.seen) < AGE_NS);
        if matches!(who, Who::Endpoint(_)) && last.is_some_and(|last| last.is_router && last.mac != given) {
            return Err(format!("{address} is a router's"));
        }
        if who == Who::Outside && is_router {
            self.addresses.insert((network, address), Holder { who, mac: given, is_router, seen: now });
        }
        Ok(())
    }
}
