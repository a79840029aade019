//! Next hops: over which neighbour of an interface the host reaches others, asked of the kernel
//! (rtnetlink(7)).
//!
//! For each destination its route is asked (`RTM_GETROUTE`), then the entry of the next hop in the
//! neighbour table (`RTM_GETNEIGH`). Where there is no entry, or one that has not been confirmed
//! for a while, the kernel is told that it is in use (`NTF_USE`), as if a packet were sent: it asks
//! the neighbour by itself, and the next look finds the answer. Nothing of the host's is changed
//! but that, and an entry that its owner made by hand is left alone.
//!
//! The kernel says when something changes ([`Changes`]): then is the time to look again, whatever
//! it was.
//!
//! The numbers are those of `linux/rtnetlink.h` and `linux/neighbour.h`.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use datapath::wire::Mac;

use crate::netns::{Identity, Netns};
use crate::rtnl::{Netlink, News, Which};

/// What the host knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Neighbours {
    /// The interface's own address.
    pub mac: Option<Mac>,
    /// Its longest packet in bytes.
    pub mtu: u32,
    /// Whether the host has the address from which it is to send.
    pub is_ours: bool,
    /// The way to each destination, in their order.
    pub hops: Vec<Hop>,
}

/// The way to a destination.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hop {
    /// Over this neighbour.
    At(Mac),
    /// The neighbour, by its address, is being asked, or does not answer.
    Asked(IpAddr),
    /// Over another interface, by its name.
    Elsewhere(String),
    /// It is the host itself.
    Own,
    /// There is no route.
    NoRoute,
}

/// Looks at the ways from the address `own` of the host to each of `others`, which are to lead over
/// `interface`.
///
/// # Errors
/// The namespace or the interface is not there, or the kernel does not answer.
pub fn look(interface: &str, netns: Option<&Netns>, own: IpAddr, others: &[IpAddr]) -> io::Result<Neighbours> {
    let work = || look_here(interface, own, others);
    netns.map_or_else(work, |netns| netns.run(work).and_then(|seen| seen))
}

fn look_here(interface: &str, own: IpAddr, others: &[IpAddr]) -> io::Result<Neighbours> {
    let mut netlink = Netlink::open()?;
    let link = netlink.link(Which::Name(interface))?.ok_or(io::ErrorKind::NotFound)?;
    let is_ours = netlink.route(own, None)?.is_some_and(|route| route.kind == libc::RTN_LOCAL);
    let from = is_ours.then_some(own);
    let hops = others.iter().map(|&to| hop(&mut netlink, link.index, from, to)).collect::<io::Result<_>>()?;
    Ok(Neighbours { mac: link.mac.map(Mac), mtu: link.mtu, is_ours, hops })
}

fn hop(netlink: &mut Netlink, index: i32, from: Option<IpAddr>, to: IpAddr) -> io::Result<Hop> {
    let Some(route) = netlink.route(to, from)? else { return Ok(Hop::NoRoute) };
    match route.kind {
        libc::RTN_LOCAL => return Ok(Hop::Own),
        libc::RTN_UNICAST => {}
        _ => return Ok(Hop::NoRoute),
    }
    if route.interface != index {
        let other = netlink.link(Which::Index(route.interface))?;
        return Ok(Hop::Elsewhere(other.map_or_else(|| "another interface".to_owned(), |link| link.name)));
    }
    let next = route.gateway.unwrap_or(to);
    let neighbour = netlink.neighbour(index, next)?;
    if neighbour.is_none_or(|neighbour| neighbour.wants_use()) {
        // Refused where the interface is down; the next look is soon.
        let _ = netlink.use_neighbour(index, next);
    }
    Ok(neighbour.and_then(|neighbour| neighbour.mac).map_or(Hop::Asked(next), |mac| Hop::At(Mac(mac))))
}

/// Has the host answer ARP over an interface for that interface's own addresses only, and not, as
/// Linux does by itself, for those of its other devices (`arp_ignore`, ip-sysctl.rst). Where that
/// is set already, as the operator has it, nothing is changed.
///
/// # Errors
/// The namespace or the interface is not there, or the setting cannot be changed.
pub fn answer_for_own(interface: &str, netns: Option<&Netns>) -> io::Result<()> {
    let work = || {
        let of = |name: &str| format!("/proc/sys/net/ipv4/conf/{name}/arp_ignore");
        let is_set = |name: &str| Ok::<_, io::Error>(std::fs::read_to_string(of(name))?.trim() != "0");
        if is_set("all")? || is_set(interface)? {
            return Ok(());
        }
        std::fs::write(of(interface), "1")
    };
    netns.map_or_else(work, |netns| netns.run(work).and_then(|done| done))
}

/// What is to be told of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Subject {
    /// Links, addresses, routes and neighbours: what ways depend on.
    Ways,
    /// Links alone: carriers, MTUs, addresses of interfaces.
    Links,
}

/// Receives that something of a namespace has changed. It keeps the namespace, as all sockets do.
pub struct Changes {
    news: News,
    place: Option<(Netns, Identity)>,
}

impl Changes {
    /// Of what, and in which namespace; `None` for that of the calling thread.
    ///
    /// # Errors
    /// The namespace is not there, or the kernel does not tell.
    pub fn open(subject: Subject, netns: Option<&Netns>) -> io::Result<Changes> {
        let groups = match subject {
            Subject::Ways => News::WAYS,
            Subject::Links => News::LINKS,
        };
        let Some(netns) = netns else { return Ok(Changes { news: News::open(groups)?, place: None }) };
        let place = Some((netns.clone(), netns.identity()?));
        Ok(Changes { news: netns.run(|| News::open(groups))??, place })
    }

    /// Waits as long as `patience` for something to change. Says whether it did.
    ///
    /// # Errors
    /// The namespace is no longer there, or another one is: this one is to be let go.
    pub fn wait(&self, patience: Duration) -> io::Result<bool> {
        let has_changed = self.news.wait(patience)?;
        if let Some((netns, identity)) = &self.place
            && netns.is_another(*identity)
        {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(has_changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_leads_to_ourselves() {
        let here = IpAddr::from([127, 0, 0, 1]);
        let seen = look("lo", None, here, &[here]).unwrap();
        assert!(seen.is_ours);
        assert_eq!(seen.hops, [Hop::Own]);
        let error = look("no-such-link", None, here, &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
