//! On what ground the guard lets a frame through or refuses it, for people who ask.
//! [`super::check`] decides; this only says by which of the declared addresses.

use super::Identity;
use crate::verdict::Reason;
use crate::wire::{Arp, Ipv4, Ipv6, L3, Layout, Mac, source};
use core::fmt;
use core::net::IpAddr;

/// Addresses that a refusal shows; an endpoint with more has them in its configuration.
const SHOWN: usize = 4;

/// What matched the address that a frame claims to be from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Match {
    /// A declared prefix.
    Prefix(IpAddr, u8),
    /// Nothing is declared: any address may be used.
    Any,
    /// A link-local address of the endpoint's own making.
    LinkLocal,
    /// It has no address yet, and asks for one or joins a group.
    NoAddressYet,
    /// Nothing that is declared.
    Nothing,
}

/// What the guard found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What it says.
    pub verdict: Result<(), Reason>,
    /// A bridge port: its sources are not checked against a list.
    pub trunk: bool,
    /// The Ethernet source.
    pub mac: Mac,
    /// The MAC addresses declared; none means any.
    pub macs: Vec<Mac>,
    /// The IP address that it claims to be from (in ARP, the sender's), and what matched it.
    pub address: Option<(IpAddr, Match)>,
    /// The prefixes declared; none means any.
    pub prefixes: Vec<(IpAddr, u8)>,
}

impl Finding {
    /// What the guard finds of a frame from the endpoint with this identity, of which it gives this
    /// verdict; the frame was parsed.
    #[must_use]
    pub fn of(bytes: &[u8], layout: &Layout, identity: &Identity, trunk: bool, verdict: Result<(), Reason>) -> Finding {
        let address = match layout.l3 {
            L3::Arp => Arp::of(bytes, layout).map(|arp| IpAddr::V4(arp.sender_ip())),
            L3::Ipv4 => Ipv4::of(bytes, layout).map(|ip| IpAddr::V4(ip.source())),
            L3::Ipv6 => Ipv6::of(bytes, layout).map(|ip| IpAddr::V6(ip.source())),
            L3::Other => None,
        };
        let v4 = identity.ipv4.iter().map(|&(prefix, len)| (IpAddr::V4(prefix), len));
        let v6 = identity.ipv6.iter().map(|&(prefix, len)| (IpAddr::V6(prefix), len));
        Finding {
            verdict,
            trunk,
            mac: source(bytes),
            macs: identity.macs.clone(),
            address: address.filter(|_| !trunk).map(|address| (address, identity.matches(address))),
            prefixes: v4.chain(v6).collect(),
        }
    }
}

impl Identity {
    fn matches(&self, address: IpAddr) -> Match {
        let one = |owns: bool, found: Match| if owns { Some(found) } else { None };
        let found = match address {
            _ if self.any_ip() => Some(Match::Any),
            IpAddr::V4(address) => self.ipv4.iter().find_map(|&(prefix, len)| {
                let only = Identity { ipv4: vec![(prefix, len)], ..Identity::default() };
                one(only.right_v4(address).is_some(), Match::Prefix(prefix.into(), len))
            }),
            IpAddr::V6(address) => self
                .ipv6
                .iter()
                .find_map(|&(prefix, len)| {
                    // Not `right_v6`, which also knows link-local addresses.
                    let differing = u128::from(address) ^ u128::from(prefix);
                    let same = differing.checked_shr(128_u32.saturating_sub(len.into())).unwrap_or(0) == 0;
                    one(same, Match::Prefix(prefix.into(), len))
                })
                .or_else(|| one(self.own_link_local(address), Match::LinkLocal)),
        };
        found.or_else(|| one(address.is_unspecified(), Match::NoAddressYet)).unwrap_or(Match::Nothing)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.verdict {
            Ok(()) => write!(f, "passes: ")?,
            Err(reason) => write!(f, "refused ({}): ", reason.name())?,
        }
        if self.trunk {
            return write!(f, "a bridge port, whose sources are not checked");
        }
        match (self.macs.is_empty(), self.macs.contains(&self.mac)) {
            (true, _) => write!(f, "any MAC address may be used")?,
            (false, true) => write!(f, "{} is declared", self.mac)?,
            (false, false) => {
                write!(f, "{} is not among the declared {}", self.mac, list(&self.macs, Mac::to_string))?;
            }
        }
        let Some((address, found)) = &self.address else { return Ok(()) };
        match found {
            Match::Prefix(prefix, len) => write!(f, ", {address} is in the declared {prefix}/{len}"),
            Match::Any => write!(f, ", any IP address may be used"),
            Match::LinkLocal => write!(f, ", {address} is a link-local address of its own making"),
            Match::NoAddressYet => write!(f, ", {address} stands for no address yet"),
            Match::Nothing => {
                let declared = list(&self.prefixes, |(prefix, len)| format!("{prefix}/{len}"));
                write!(f, ", {address} is not in the declared {declared}")
            }
        }
    }
}

fn list<T>(all: &[T], show: impl Fn(&T) -> String) -> String {
    let mut text = all.iter().take(SHOWN).map(show).collect::<Vec<_>>().join(", ");
    if all.len() > SHOWN {
        text += &format!(" and {} more", all.len() - SHOWN);
    }
    text
}
