//! The few requests of route netlink (rtnetlink(7), netlink(7)) that devices need: look at links,
//! change, move and delete them, give them addresses; and those that ask for next hops
//! (`neighbours.rs`).
//!
//! A [`Netlink`] speaks of the namespace of the thread that opened it. Messages are built and read
//! as bytes in the machine's order; a request is answered before the call returns. The numbers are
//! those of `linux/rtnetlink.h`, `linux/if_link.h`, `linux/if_addr.h` and `linux/net_namespace.h`.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Bytes of `struct nlmsghdr`: length, type, flags, sequence number, port.
const MESSAGE_HEADER: usize = 16;
/// Bytes of `struct ifinfomsg`: family, device type, index, flags, change mask.
const LINK_HEADER: usize = 16;
/// Bytes of `struct rtmsg`.
const ROUTE_HEADER: usize = 12;
/// Bytes of `struct ndmsg`.
const NEIGHBOUR_HEADER: usize = 12;
/// Bytes of a buffer for answers; the kernel puts no more than 32 KiB into one message of a dump.
const ANSWER_BYTES: usize = 32 * 1024;
/// Where `tx_dropped` lies in `struct rtnl_link_stats64`: its eighth number.
const STATS64_TX_DROPPED: usize = 7 * 8;
/// Attribute of a link: the longest packet that is offloaded (`IFLA_GSO_MAX_SIZE`).
const IFLA_GSO_MAX_SIZE: u16 = 41;
/// In a request (`IFLA_EXT_MASK`): statistics are not to be told.
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;
/// Attribute of a veth's data: its other end, after a `struct ifinfomsg` (`VETH_INFO_PEER`).
const VETH_INFO_PEER: u16 = 1;
/// Flag of a link: it is up and has a carrier (`linux/if.h`).
const IFF_LOWER_UP: i32 = 1 << 16;
/// Attribute of a route: its gateway, where that is of another family (`RTA_VIA`).
const RTA_VIA: u16 = 18;
/// Attribute of `RTM_NEWNSID`: the id; -1 lets the kernel choose (`NETNSA_NSID`).
const NETNSA_NSID: u16 = 1;
/// Attribute of `RTM_NEWNSID`: the namespace, as a descriptor (`NETNSA_FD`).
const NETNSA_FD: u16 = 3;

/// What the kernel tells of a network interface.
#[derive(Clone, Debug, Default)]
pub(crate) struct KernelLink {
    pub index: i32,
    pub name: String,
    /// The kind of virtual device, "tun" for TAPs too; empty for hardware.
    pub kind: String,
    /// The free text that owners may leave.
    pub alias: String,
    /// Frames that the device dropped instead of sending them.
    pub tx_dropped: u64,
    /// What its frames begin with (`ARPHRD_`): 1 is Ethernet.
    pub hardware: u16,
    /// Its own address, where that is Ethernet's.
    pub mac: Option<[u8; 6]>,
    /// Longest packet in bytes.
    pub mtu: u32,
    /// Longest packet that its owner's kernel offloads, in bytes.
    pub gso_max_size: u32,
    /// Frames that its ring holds.
    pub txqueuelen: u32,
    /// What it is tied to in another namespace: the index there, and the id of that namespace
    /// ([`Netlink::id_of`]). Of a veth, its other end.
    pub elsewhere: Option<(i32, i32)>,
    /// Whether its owner wants it up.
    pub is_up: bool,
    /// Whether it is up and has a carrier.
    pub has_carrier: bool,
}

/// One interface, as a request names it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which<'a> {
    Name(&'a str),
    /// By name in the namespace with this id; see [`Netlink::id_of`].
    NameIn(&'a str, i32),
    Index(i32),
    /// By index in the namespace with this id; it is not asked for statistics.
    IndexIn(i32, i32),
}

/// A change of an interface. Fields that are not set stay.
#[derive(Clone, Default, Debug)]
pub(crate) struct Change<'a> {
    pub alias: Option<&'a str>,
    pub mac: Option<[u8; 6]>,
    pub mtu: Option<u32>,
    pub gso_max_size: Option<u32>,
    pub txqueuelen: Option<u32>,
    pub up: bool,
    pub name: Option<&'a str>,
    /// Move it to this namespace, under this name.
    pub to: Option<(BorrowedFd<'a>, &'a str)>,
}

/// The route to a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Route {
    /// `RTN_`.
    pub kind: u8,
    pub interface: i32,
    /// `None`: the destination itself is the next hop.
    pub gateway: Option<IpAddr>,
}

/// An entry of the neighbour table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Neighbour {
    /// `NUD_`.
    state: u16,
    /// Its address, where that is believed.
    pub mac: Option<[u8; 6]>,
}

impl Neighbour {
    /// Whether the kernel would ask it anew if something were sent to it. One that somebody has
    /// made for good must not be told so: it would be made an ordinary one.
    pub fn wants_use(self) -> bool {
        const ASKED_OR_GOOD: u16 =
            libc::NUD_REACHABLE | libc::NUD_DELAY | libc::NUD_PROBE | libc::NUD_NOARP | libc::NUD_PERMANENT;
        self.state & ASKED_OR_GOOD == 0
    }
}

/// A socket to the kernel's network configuration.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    pub fn open() -> io::Result<Netlink> {
        // NETLINK_ROUTE is protocol 0, the default.
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Netlink { socket, sequence: 0 })
    }

    /// One interface; `None` where there is none such.
    pub fn link(&mut self, which: Which<'_>) -> io::Result<Option<KernelLink>> {
        let mut request = Message::link(libc::RTM_GETLINK, 0, which);
        match self.ask(&mut request) {
            Ok(mut links) => Ok(links.pop()),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All interfaces.
    pub fn links(&mut self) -> io::Result<Vec<KernelLink>> {
        self.ask(&mut Message::link(libc::RTM_GETLINK, libc::NLM_F_DUMP, Which::Index(0)))
    }

    /// Changes an interface.
    pub fn change(&mut self, index: i32, change: &Change<'_>) -> io::Result<()> {
        let mut request = Message::link(libc::RTM_NEWLINK, 0, Which::Index(index));
        if change.up {
            request.set_flags(libc::IFF_UP as u32);
        }
        if let Some(alias) = change.alias {
            request.attribute(libc::IFLA_IFALIAS, alias.as_bytes());
        }
        if let Some(mac) = change.mac {
            request.attribute(libc::IFLA_ADDRESS, &mac);
        }
        if let Some(mtu) = change.mtu {
            request.attribute(libc::IFLA_MTU, &mtu.to_ne_bytes());
        }
        if let Some(bytes) = change.gso_max_size {
            request.attribute(IFLA_GSO_MAX_SIZE, &bytes.to_ne_bytes());
        }
        if let Some(frames) = change.txqueuelen {
            request.attribute(libc::IFLA_TXQLEN, &frames.to_ne_bytes());
        }
        if let Some(name) = change.name {
            request.text(libc::IFLA_IFNAME, name);
        }
        if let Some((netns, name)) = change.to {
            request.attribute(libc::IFLA_NET_NS_FD, &netns.as_raw_fd().to_ne_bytes());
            request.text(libc::IFLA_IFNAME, name);
        }
        self.tell(&mut request)
    }

    /// Moves an interface to the namespace with this id, under this name, in which `%d` becomes a
    /// number.
    pub fn move_to_id(&mut self, index: i32, id: i32, name: &str) -> io::Result<()> {
        let mut request = Message::link(libc::RTM_SETLINK, 0, Which::Index(index));
        request.attribute(libc::IFLA_TARGET_NETNSID, &id.to_ne_bytes());
        request.text(libc::IFLA_IFNAME, name);
        self.tell(&mut request)
    }

    /// Sets an interface up.
    pub fn set_up(&mut self, name: &str) -> io::Result<()> {
        let link = self.link(Which::Name(name))?.ok_or(io::ErrorKind::NotFound)?;
        self.change(link.index, &Change { up: true, ..Change::default() })
    }

    /// Makes a veth pair: `name` here, and `peer` in another namespace. Both are down.
    pub fn make_veth(&mut self, name: &str, (netns, peer): (BorrowedFd<'_>, &str)) -> io::Result<()> {
        let mut other = Message(vec![0; LINK_HEADER]);
        other.text(libc::IFLA_IFNAME, peer);
        other.attribute(libc::IFLA_NET_NS_FD, &netns.as_raw_fd().to_ne_bytes());
        let mut data = Message(Vec::new());
        data.attribute(VETH_INFO_PEER, &other.0);
        let mut info = Message(Vec::new());
        info.text(libc::IFLA_INFO_KIND, "veth");
        info.attribute(libc::IFLA_INFO_DATA, &data.0);
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let mut request = Message::link(libc::RTM_NEWLINK, flags, Which::Name(name));
        request.attribute(libc::IFLA_LINKINFO, &info.0);
        self.tell(&mut request)
    }

    /// Deletes an interface.
    pub fn delete(&mut self, index: i32) -> io::Result<()> {
        self.tell(&mut Message::link(libc::RTM_DELLINK, 0, Which::Index(index)))
    }

    /// Gives an interface an address; one that it has already is left. An IPv6 address is used at
    /// once, without looking for duplicates: it is the configuration's word.
    pub fn add_address(&mut self, index: i32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let flags = if address.is_ipv6() { libc::IFA_F_NODAD as u8 } else { 0 };
        let kind = (libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_REPLACE);
        self.tell(&mut Message::address(kind, index, (address, prefix), flags))
    }

    /// Takes an address from an interface; one that it has not is left.
    pub fn remove_address(&mut self, index: i32, address: IpAddr, prefix: u8) -> io::Result<()> {
        match self.tell(&mut Message::address((libc::RTM_DELADDR, 0), index, (address, prefix), 0)) {
            Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => Ok(()),
            told => told,
        }
    }

    /// The addresses that an interface has for good, with the lengths of their prefixes.
    pub fn addresses(&mut self, index: i32) -> io::Result<Vec<(IpAddr, u8)>> {
        let mut request = Message::new(libc::RTM_GETADDR, libc::NLM_F_DUMP);
        // struct ifaddrmsg, of any family: the kernel tells of all interfaces.
        request.0.extend_from_slice(&[0; 8]);
        let mut addresses = Vec::new();
        self.exchange(&mut request, |kind, body| {
            if kind == libc::RTM_NEWADDR {
                addresses.extend(parse_address(body, index));
            }
        })?;
        Ok(addresses)
    }

    /// The route to `to`, from the own address `from` where one is given; `None` where there is
    /// none.
    pub fn route(&mut self, to: IpAddr, from: Option<IpAddr>) -> io::Result<Option<Route>> {
        let mut request = Message::new(libc::RTM_GETROUTE, 0);
        // struct rtmsg: family, lengths of the destination's and the source's prefix, and what is
        // answered; flags.
        let (family, to) = octets(to);
        let from = from.map(|from| octets(from).1);
        let bits = |address: &[u8]| address.len() as u8 * 8;
        let source = from.as_deref().map_or(0, bits);
        request.0.extend_from_slice(&[family, bits(&to), source, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        request.attribute(libc::RTA_DST, &to);
        if let Some(from) = from {
            request.attribute(libc::RTA_SRC, &from);
        }
        let mut route = None;
        let told = self.exchange(&mut request, |kind, body| {
            if kind == libc::RTM_NEWROUTE {
                route = parse_route(body);
            }
        });
        match told.map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => Ok(route),
            // Also how prohibiting and throwing routes are told.
            Err((Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL | libc::EAGAIN), _)) => {
                Ok(None)
            }
            Err((_, error)) => Err(error),
        }
    }

    /// The entry of a neighbour; `None` where there is none.
    pub fn neighbour(&mut self, index: i32, address: IpAddr) -> io::Result<Option<Neighbour>> {
        let mut request = Message::neighbour(libc::RTM_GETNEIGH, 0, index, 0, address);
        let mut neighbour = None;
        let told = self.exchange(&mut request, |kind, body| {
            if kind == libc::RTM_NEWNEIGH {
                neighbour = parse_neighbour(body);
            }
        });
        match told {
            Ok(()) => Ok(neighbour),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Has the kernel ask a neighbour for its address where it would if something were sent to it.
    pub fn use_neighbour(&mut self, index: i32, address: IpAddr) -> io::Result<()> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
        self.tell(&mut Message::neighbour(libc::RTM_NEWNEIGH, flags, index, libc::NTF_USE, address))
    }

    /// The id by which this socket's namespace calls another; the kernel gives it one where it has
    /// none.
    pub fn id_of(&mut self, netns: BorrowedFd<'_>) -> io::Result<i32> {
        if let Some(id) = self.given_id_of(netns)? {
            return Ok(id);
        }
        let mut request = Message::new(libc::RTM_NEWNSID, 0);
        request.0.extend_from_slice(&[0; 4]); // struct rtgenmsg, padded
        request.attribute(NETNSA_FD, &netns.as_raw_fd().to_ne_bytes());
        request.attribute(NETNSA_NSID, &(-1i32).to_ne_bytes());
        match self.tell(&mut request) {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => return Err(error),
            _ => {}
        }
        self.given_id_of(netns)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The id by which this socket's namespace calls another; `None` where it has none for it.
    pub fn given_id_of(&mut self, netns: BorrowedFd<'_>) -> io::Result<Option<i32>> {
        let mut request = Message::new(libc::RTM_GETNSID, 0);
        request.0.extend_from_slice(&[0; 4]);
        request.attribute(NETNSA_FD, &netns.as_raw_fd().to_ne_bytes());
        let mut id = None;
        self.exchange(&mut request, |kind, body| {
            if kind == libc::RTM_NEWNSID && body.len() >= 4 {
                id = attributes(&body[4..]).find(|(kind, _)| *kind == NETNSA_NSID).and_then(|(_, v)| i32_at(v, 0));
            }
        })?;
        Ok(id.filter(|id| *id >= 0))
    }

    fn tell(&mut self, request: &mut Message) -> io::Result<()> {
        self.exchange(request, |_, _| {})
    }

    fn ask(&mut self, request: &mut Message) -> io::Result<Vec<KernelLink>> {
        let mut links = Vec::new();
        self.exchange(request, |kind, body| {
            if kind == libc::RTM_NEWLINK {
                links.extend(parse_link(body));
            }
        })?;
        Ok(links)
    }

    /// Sends a request and reads answers until the kernel says that it is done.
    fn exchange(&mut self, request: &mut Message, mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        self.sequence += 1;
        rustix::net::send(&self.socket, request.finish(self.sequence), SendFlags::empty())?;
        let mut buffer = vec![0; ANSWER_BYTES];
        loop {
            let (read, len) = rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::TRUNC)?;
            if len > read {
                return Err(io::Error::other("the kernel's answer is longer than it may be"));
            }
            let mut rest = &buffer[..len];
            while let Some((kind, sequence, body, next)) = split_message(rest) {
                rest = next;
                if sequence != self.sequence {
                    continue;
                }
                match i32::from(kind) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => {
                        return match i32_at(body, 0) {
                            Some(0) => Ok(()),
                            Some(errno) => Err(io::Error::from_raw_os_error(errno.saturating_neg())),
                            None => Err(io::ErrorKind::InvalidData.into()),
                        };
                    }
                    _ => each(kind, body),
                }
            }
        }
    }
}

/// What the kernel says by itself when the ways of a namespace change: links, addresses, routes,
/// neighbours.
pub(crate) struct News(OwnedFd);

impl News {
    /// All that ways depend on.
    pub const WAYS: i32 = libc::RTMGRP_LINK
        | libc::RTMGRP_NEIGH
        | libc::RTMGRP_IPV4_IFADDR
        | libc::RTMGRP_IPV4_ROUTE
        | libc::RTMGRP_IPV6_IFADDR
        | libc::RTMGRP_IPV6_ROUTE;
    /// Links, with their carriers.
    pub const LINKS: i32 = libc::RTMGRP_LINK;

    /// Receives what changes from now on in the namespace of the calling thread, of these multicast
    /// groups.
    pub fn open(groups: i32) -> io::Result<News> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups as u32))?;
        Ok(News(socket))
    }

    /// A socket of the namespace, to ask of its interfaces.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Waits for news as long as `patience`. What they are is not told, and all that there are
    /// count as one.
    pub fn wait(&self, patience: Duration) -> io::Result<bool> {
        let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        match rustix::event::poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut buffer = [0; 4096];
        loop {
            match rustix::net::recv(&self.0, &mut buffer[..], RecvFlags::TRUNC) {
                // Some were lost: there were many.
                Ok(_) | Err(Errno::NOBUFS | Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A request while it is built.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: i32) -> Message {
        // A dump ends with a message of its own; everything else is acknowledged on demand.
        let ack = if flags & libc::NLM_F_DUMP == libc::NLM_F_DUMP { 0 } else { libc::NLM_F_ACK };
        let mut bytes = vec![0; MESSAGE_HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | ack | flags) as u16).to_ne_bytes());
        Message(bytes)
    }

    fn link(kind: u16, flags: i32, which: Which<'_>) -> Message {
        let mut message = Message::new(kind, flags);
        let mut header = [0; LINK_HEADER];
        if let Which::Index(index) | Which::IndexIn(index, _) = which {
            header[4..8].copy_from_slice(&index.to_ne_bytes());
        }
        message.0.extend_from_slice(&header);
        if let Which::NameIn(_, id) | Which::IndexIn(_, id) = which {
            message.attribute(libc::IFLA_TARGET_NETNSID, &id.to_ne_bytes());
        }
        if let Which::IndexIn(..) = which {
            message.attribute(libc::IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        }
        if let Which::Name(name) | Which::NameIn(name, _) = which {
            message.text(libc::IFLA_IFNAME, name);
        }
        message
    }

    fn address((kind, flags): (u16, i32), index: i32, (address, prefix): (IpAddr, u8), entry: u8) -> Message {
        let (family, bytes) = octets(address);
        let mut request = Message::new(kind, flags);
        // struct ifaddrmsg: family, prefix, flags, scope, index.
        request.0.extend_from_slice(&[family, prefix, entry, 0]);
        request.0.extend_from_slice(&index.to_ne_bytes());
        request.attribute(libc::IFA_LOCAL, &bytes);
        request.attribute(libc::IFA_ADDRESS, &bytes);
        request
    }

    fn neighbour(kind: u16, flags: i32, index: i32, entry: u8, address: IpAddr) -> Message {
        let mut message = Message::new(kind, flags);
        // struct ndmsg: family, padding, interface, state, flags, type.
        let (family, address) = octets(address);
        message.0.extend_from_slice(&[family, 0, 0, 0]);
        message.0.extend_from_slice(&index.to_ne_bytes());
        message.0.extend_from_slice(&[0, 0, entry, 0]);
        message.attribute(libc::NDA_DST, &address);
        message
    }

    /// Sets these interface flags, and leaves the others.
    fn set_flags(&mut self, flags: u32) {
        let at = MESSAGE_HEADER + 8;
        self.0[at..at + 4].copy_from_slice(&flags.to_ne_bytes());
        self.0[at + 4..at + 8].copy_from_slice(&flags.to_ne_bytes());
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.0.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn text(&mut self, kind: u16, value: &str) {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat());
    }

    fn finish(&mut self, sequence: u32) -> &[u8] {
        let len = self.0.len() as u32;
        self.0[0..4].copy_from_slice(&len.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        &self.0
    }
}

/// The first message: its type, sequence number and body; and what follows it.
fn split_message(bytes: &[u8]) -> Option<(u16, u32, &[u8], &[u8])> {
    let len = i32_at(bytes, 0)? as usize;
    let kind = u16_at(bytes, 4)?;
    let sequence = i32_at(bytes, 8)? as u32;
    let body = bytes.get(MESSAGE_HEADER..len)?;
    Some((kind, sequence, body, bytes.get(len.next_multiple_of(4)..).unwrap_or(&[])))
}

/// The attributes in `bytes`, as type and value.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & libc::NLA_TYPE_MASK as u16;
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

fn parse_link(body: &[u8]) -> Option<KernelLink> {
    let flags = i32_at(body, 8)?;
    let (is_up, has_carrier) = (flags & libc::IFF_UP != 0, flags & IFF_LOWER_UP != 0);
    let mut link =
        KernelLink { index: i32_at(body, 4)?, hardware: u16_at(body, 2)?, is_up, has_carrier, ..KernelLink::default() };
    let (mut other, mut netns) = (None, None);
    for (kind, value) in attributes(body.get(LINK_HEADER..)?) {
        match kind {
            libc::IFLA_LINK => other = i32_at(value, 0),
            libc::IFLA_LINK_NETNSID => netns = i32_at(value, 0),
            libc::IFLA_IFNAME => link.name = text(value),
            libc::IFLA_IFALIAS => link.alias = text(value),
            libc::IFLA_ADDRESS => link.mac = value.try_into().ok(),
            libc::IFLA_MTU => link.mtu = i32_at(value, 0)? as u32,
            IFLA_GSO_MAX_SIZE => link.gso_max_size = i32_at(value, 0)? as u32,
            libc::IFLA_TXQLEN => link.txqueuelen = i32_at(value, 0)? as u32,
            libc::IFLA_LINKINFO => {
                if let Some((_, kind)) = attributes(value).find(|(kind, _)| *kind == libc::IFLA_INFO_KIND) {
                    link.kind = text(kind);
                }
            }
            libc::IFLA_STATS64 => {
                let number = value.get(STATS64_TX_DROPPED..STATS64_TX_DROPPED + 8)?;
                link.tx_dropped = u64::from_ne_bytes(number.try_into().ok()?);
            }
            _ => {}
        }
    }
    link.elsewhere = other.zip(netns);
    Some(link)
}

fn parse_route(body: &[u8]) -> Option<Route> {
    let mut route = Route { kind: *body.get(7)?, ..Route::default() };
    for (kind, value) in attributes(body.get(ROUTE_HEADER..)?) {
        match kind {
            libc::RTA_OIF => route.interface = i32_at(value, 0)?,
            libc::RTA_GATEWAY => route.gateway = address(value),
            // A gateway of the other family, after the number of that: IPv4 by way of an IPv6
            // neighbour.
            RTA_VIA => route.gateway = address(value.get(2..)?),
            _ => {}
        }
    }
    Some(route)
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(octets).map(IpAddr::from);
    <[u8; 16]>::try_from(octets).map(IpAddr::from).or_else(|_| v4()).ok()
}

/// An address as the kernel has it: the number of its family, and its bytes.
fn octets(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(v4) => (libc::AF_INET as u8, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6 as u8, v6.octets().to_vec()),
    }
}

/// An address of the interface `index`, if it has that for good.
fn parse_address(body: &[u8], index: i32) -> Option<(IpAddr, u8)> {
    let &[_, prefix, flags, _] = body.first_chunk()?;
    if i32_at(body, 4)? != index || u32::from(flags) & libc::IFA_F_PERMANENT == 0 {
        return None;
    }
    // Of two ends, the own one is the local.
    let of = |wanted: u16| attributes(body.get(8..)?).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    Some((address(of(libc::IFA_LOCAL).or_else(|| of(libc::IFA_ADDRESS))?)?, prefix))
}

fn parse_neighbour(body: &[u8]) -> Option<Neighbour> {
    const BELIEVED: u16 = libc::NUD_REACHABLE
        | libc::NUD_STALE
        | libc::NUD_DELAY
        | libc::NUD_PROBE
        | libc::NUD_NOARP
        | libc::NUD_PERMANENT;
    let mut neighbour = Neighbour { state: u16_at(body, 8)?, mac: None };
    let address = attributes(body.get(NEIGHBOUR_HEADER..)?).find(|(kind, _)| *kind == libc::NDA_LLADDR);
    if neighbour.state & BELIEVED != 0 {
        neighbour.mac = address.and_then(|(_, value)| value.try_into().ok());
    }
    Some(neighbour)
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_by_name_by_index_and_among_all() {
        let mut netlink = Netlink::open().unwrap();
        let lo = netlink.link(Which::Name("lo")).unwrap().expect("every namespace has a loopback interface");
        assert_eq!(netlink.link(Which::Index(lo.index)).unwrap().unwrap().name, "lo");
        assert!(netlink.links().unwrap().iter().any(|link| link.index == lo.index && link.kind.is_empty()));
        assert_eq!((lo.hardware, lo.mac), (libc::ARPHRD_LOOPBACK, Some([0; 6])));
        assert!(lo.mtu >= 1500, "{}", lo.mtu);
        assert!(lo.txqueuelen > 0);
        let addresses = netlink.addresses(lo.index).unwrap();
        assert!(!lo.is_up || addresses.contains(&([127, 0, 0, 1].into(), 8)), "{addresses:?}");
        assert!(netlink.link(Which::Name("no-such-link")).unwrap().is_none());
    }

    #[test]
    fn cut_and_lying_answers_end_the_parse() {
        let mut body = vec![0; LINK_HEADER];
        body.extend_from_slice(&200u16.to_ne_bytes()); // says 200 bytes, has 4
        body.extend_from_slice(&[0, 0]);
        assert_eq!(parse_link(&body).map(|link| link.name), Some(String::new()));
        assert_eq!(attributes(&[0, 0, 0, 0, 1, 2, 3, 4]).count(), 0);
        for len in 0..body.len() {
            let _ = (parse_route(&body[..len]), parse_neighbour(&body[..len]), parse_address(&body[..len], 0));
            let _ = parse_link(&body[..len]);
            let _ = split_message(&body[..len]);
        }
    }
}
