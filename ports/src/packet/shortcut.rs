//! Shortcuts: frames between two interfaces of one tenant that the switch would only copy from the
//! one to the other, taken straight there by the kernel.
//!
//! Where no limit can hold a frame back, a neighbour gets it as soon as it is read, so all that
//! reading it does is to judge it and to copy it twice. Two BPF programs (Linux 6.6) do the judging
//! instead, for frames of which nothing is to be said but that they are the endpoint's own:
//!
//! | program | at | does |
//! |---|---|---|
//! | the filter | the interface's packet socket | judges the frame; takes none but those below. Of one that it takes it writes to the *slot* of this processor where it goes, and has it ignored by the socket |
//! | the taker | the interface's ingress hook (TCX), which comes next | counts the frame that the slot tells of, empties the slot, and sends the frame out of the neighbour's interface |
//!
//! *Taken* is a frame with a declared Ethernet source, for a declared address of an interface that
//! receives, not tagged, IPv4 without options or IPv6 without extension headers, whole, from an
//! address that the endpoint may use to one of a single host, with TCP or with UDP that is no DHCP
//! and in one segment, not longer than the receiver's interface takes, and sent by a socket of IP
//! on this machine ([`takes`] says the same in Rust). Everything else is read by the socket as
//! ever: it is judged, counted and dropped by name in the switch.
//!
//! **One judge, so that nothing is lost or doubled.** Whether a frame is read or taken is decided
//! once, by the filter; the taker does as the slot says. The two run for one frame one after the
//! other on one processor, with no other frame in between, and the taker empties the slot. So
//! filters, receivers and the switch that suspends all shortcuts may change at any moment: each
//! frame meets the old or the new state, and goes one way. What must hold is that the taker is
//! there before a filter that relies on it, and stays until the socket is closed; a process that
//! ends has both closed by the kernel. A frame may overtake those read before it when a shortcut is
//! put in; none is lost then either. On kernels where programs can be preempted (PREEMPT_RT) there
//! are no shortcuts.
//!
//! Who sends and who receives is told apart ([`Shortcut`]), because limits are. Receivers are in
//! one map for all, by switch, tenant, namespace and address; each sender has a filter of its own,
//! with its addresses in it.

mod code;
mod judge;
mod programs;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use datapath::guard::Identity;
use datapath::offload::Offload;
use datapath::stats::Traffic;
use datapath::units::Both;
use datapath::wire::Mac;

use super::bpf::{self, BEFORE, Hook};
use super::map::{Kind, Map};
use super::socket;
use crate::netns;
use crate::rtnl::{Netlink, Which};
pub use judge::takes;

/// Receivers' addresses, and numbers under which is counted, at most.
const MOST: u32 = 1 << 17;
/// Says that programs can be preempted.
const REALTIME: &str = "/sys/kernel/realtime";

/// The maps that all programs share.
#[derive(Debug)]
pub(super) struct Maps {
    /// For each processor: where the frame goes that the filter has just taken.
    slot: Map,
    /// By [`Maps::receiver`]: the interface, the longest frame it takes, and the number it counts
    /// under.
    receivers: Map,
    /// By number: what was taken.
    counts: Map,
    /// Not 0 where frames are taken at all.
    is_on: Map,
}

impl Maps {
    fn new() -> io::Result<Maps> {
        let word = 4;
        Ok(Maps {
            slot: Map::new(Kind::PerCpuArray, word, programs::SLOT_BYTES, 1)?,
            receivers: Map::new(Kind::Hash, 5 * word, 4 * word, MOST)?,
            counts: Map::new(Kind::PerCpuHash, word, programs::COUNT_BYTES, MOST)?,
            is_on: Map::new(Kind::Array, word, word, 1)?,
        })
    }

    /// The key of a receiver's address.
    fn receiver(scope: Scope, Mac(mac): Mac) -> [u8; 20] {
        let mut key = [0; 20];
        for (to, word) in key.chunks_exact_mut(4).zip([scope.switch, scope.tenant, scope.netns]) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        key[12..18].copy_from_slice(&mac);
        key
    }
}

/// Within which shortcuts are: a tenant of a switch, in one namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Scope {
    switch: u32,
    tenant: u32,
    netns: u32,
}

/// What a filter is made for.
#[derive(Debug)]
struct Sender<'a> {
    scope: Scope,
    identity: &'a Identity,
    /// Under which is counted.
    number: u32,
}

/// What of an interface's traffic may take shortcuts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shortcut {
    /// Its switch and tenant: frames go no further.
    pub place: (u32, u32),
    /// Whose addresses are its own. It declares Ethernet addresses.
    pub identity: Identity,
    /// Whether what it sends may (egress), and what is for it (ingress).
    pub may: Both<bool>,
    /// The longest frame that it takes, in bytes.
    pub max_frame: u32,
}

/// All shortcuts of a process. Interfaces have numbers, which the caller gives.
#[derive(Debug)]
pub struct Shortcuts {
    maps: Maps,
    taker: OwnedFd,
    members: BTreeMap<u32, Member>,
    /// By number: what was told of it, also of who is no member any more.
    told: BTreeMap<u32, Both<Traffic>>,
}

/// An interface with shortcuts.
#[derive(Debug)]
struct Member {
    way: Shortcut,
    scope: Scope,
    socket: OwnedFd,
    leave: Option<[u8; 6]>,
    /// Holds the taker at the hook; where it sends.
    _link: Option<OwnedFd>,
}

impl Shortcuts {
    /// No shortcuts yet.
    ///
    /// # Errors
    /// Why there can be none here, as a sentence for people.
    pub fn new() -> Result<Shortcuts, String> {
        super::probe()?;
        if fs::read_to_string(REALTIME).is_ok_and(|text| text.trim() == "1") {
            return Err("programs can be preempted by this kernel (PREEMPT_RT)".to_owned());
        }
        let cannot = |error| format!("the kernel refuses a BPF program or its maps: {error}");
        let maps = Maps::new().map_err(cannot)?;
        let taker = bpf::load(&programs::take(&maps), bpf::Kind::SchedCls).map_err(cannot)?;
        // What a filter does is the same for all.
        let identity = Identity { macs: vec![Mac([2, 0, 0, 0, 0, 1])], ..Identity::default() };
        let scope = Scope { switch: 0, tenant: 0, netns: 0 };
        let filter = programs::filter(&maps, &Sender { scope, identity: &identity, number: 0 }, None);
        bpf::load(&filter, bpf::Kind::SocketFilter).map_err(cannot)?;
        let shortcuts = Shortcuts { maps, taker, members: BTreeMap::new(), told: BTreeMap::new() };
        shortcuts.set_on(true).map_err(cannot)?;
        Ok(shortcuts)
    }

    /// Takes frames from now on, or takes none: then all are read by the sockets.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn set_on(&self, is_on: bool) -> io::Result<()> {
        self.maps.is_on.set(&0u32.to_ne_bytes(), &u32::from(is_on).to_ne_bytes())
    }

    /// How an interface's traffic may go; `None` where it has no shortcuts.
    #[must_use]
    pub fn way(&self, number: u32) -> Option<&Shortcut> {
        self.members.get(&number).map(|member| &member.way)
    }

    /// Whether a frame from one interface for another would be taken, where a socket of IP sends
    /// it.
    #[must_use]
    pub fn leads(&self, from: u32, to: u32, bytes: &[u8], offload: &Offload) -> bool {
        let (Some(from), Some(to)) = (self.members.get(&from), self.members.get(&to)) else { return false };
        let may = from.way.may.egress && to.way.may.ingress && from.scope == to.scope;
        may && takes(bytes, offload, &from.way.identity).is_some_and(|longest| longest <= to.way.max_frame)
    }

    /// A second descriptor of a port's socket; `None` where it has no shortcuts, or no more can be
    /// open.
    #[must_use]
    pub fn descriptor(&self, number: u32) -> Option<OwnedFd> {
        self.members.get(&number)?.socket.try_clone().ok()
    }

    /// Numbers of the interfaces that have shortcuts.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.members.keys().copied()
    }

    /// Puts an interface in, of which `socket` is the port's descriptor, open and not in yet.
    ///
    /// # Errors
    /// What the kernel refused; the interface goes on without.
    pub fn put_in(&mut self, number: u32, way: Shortcut, socket: OwnedFd) -> io::Result<()> {
        let (index, identity) = super::socket_on(socket.as_fd()).ok_or(io::ErrorKind::NotFound)?;
        let namespace = socket::namespace_of(socket.as_fd()).ok_or(io::ErrorKind::NotFound)?;
        let scope = Scope { switch: way.place.0, tenant: way.place.1, netns: identity.number() };
        let here = || -> io::Result<(Option<[u8; 6]>, Option<OwnedFd>)> {
            let interface = Netlink::open()?.link(Which::Index(index))?.ok_or(io::ErrorKind::NotFound)?;
            let attach = || bpf::attach(&self.taker, index, Hook::Ingress, BEFORE);
            Ok((interface.mac, way.may.egress.then(attach).transpose()?))
        };
        let (leave, link) = netns::run_in(namespace.as_fd(), here)??;
        for direction in [0, 1] {
            self.begin_count(number * 2 + direction)?;
        }
        self.told.entry(number).or_default();
        let member = Member { way, scope, socket, leave, _link: link };
        // From here on it is undone like one that was in.
        let done = self.receive(number, index, &member).and_then(|()| self.send(number, &member));
        self.members.insert(number, member);
        done.inspect_err(|_| {
            let _ = self.take_out(number);
        })
    }

    /// The filter, which comes last: what it relies on is there.
    fn send(&self, number: u32, member: &Member) -> io::Result<()> {
        if !member.way.may.egress {
            return Ok(());
        }
        let sender = Sender { scope: member.scope, identity: &member.way.identity, number: number * 2 };
        let filter = programs::filter(&self.maps, &sender, member.leave);
        let filter = bpf::load(&filter, bpf::Kind::SocketFilter)?;
        socket::attach_program(member.socket.as_fd(), filter.as_fd())
    }

    fn receive(&self, number: u32, index: i32, member: &Member) -> io::Result<()> {
        if !member.way.may.ingress {
            return Ok(());
        }
        let words = [index as u32, member.way.max_frame, number * 2 + 1, 0];
        let value: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut macs = member.way.identity.macs.iter();
        macs.try_for_each(|&mac| self.maps.receivers.set(&Maps::receiver(member.scope, mac), &value))
    }

    /// Takes an interface out: what it sends, and what is for it, is read by the sockets from now
    /// on.
    ///
    /// # Errors
    /// What the kernel refused: the interface may have been deleted.
    pub fn take_out(&mut self, number: u32) -> io::Result<()> {
        let Some(member) = self.members.get(&number) else { return Ok(()) };
        let mut done = Ok(());
        if member.way.may.ingress {
            for &mac in &member.way.identity.macs {
                done = done.and(self.maps.receivers.remove(&Maps::receiver(member.scope, mac)));
            }
        }
        if member.way.may.egress {
            done = done.and(socket::attach_filter(member.socket.as_fd(), member.leave));
        }
        self.members.remove(&number);
        done
    }

    /// What was taken since the last call, from and for each interface, until `tell` says that it
    /// has been told.
    pub fn tell(&mut self, tell: impl FnOnce(Vec<(u32, Both<Traffic>)>) -> bool) {
        let (mut news, mut all) = (Vec::new(), Vec::new());
        for (&number, before) in &self.told {
            let now = Both { egress: self.count(number * 2), ingress: self.count(number * 2 + 1) };
            if now != *before {
                let (egress, ingress) = (less(now.egress, before.egress), less(now.ingress, before.ingress));
                news.push((number, Both { egress, ingress }));
                all.push((number, now));
            }
        }
        if !news.is_empty() && tell(news) {
            self.told.extend(all);
        }
    }

    fn count(&self, number: u32) -> Traffic {
        let values = self.maps.counts.get(&number.to_ne_bytes()).ok().flatten().unwrap_or_default();
        let mut sum = Traffic::default();
        for value in values.chunks_exact(programs::COUNT_BYTES) {
            let at = |i: usize| value[8 * i..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            sum.sum(&Traffic { frames: at(0), segments: at(1), bytes: at(2), wire_bytes: at(3) });
        }
        sum
    }

    /// A number that was another interface's goes on counting where that stopped.
    fn begin_count(&self, number: u32) -> io::Result<()> {
        let key = number.to_ne_bytes();
        match self.maps.counts.get(&key)? {
            Some(_) => Ok(()),
            None => self.maps.counts.set(&key, &[0; programs::COUNT_BYTES]),
        }
    }
}

fn less(now: Traffic, before: Traffic) -> Traffic {
    Traffic {
        frames: now.frames.saturating_sub(before.frames),
        segments: now.segments.saturating_sub(before.segments),
        bytes: now.bytes.saturating_sub(before.bytes),
        wire_bytes: now.wire_bytes.saturating_sub(before.wire_bytes),
    }
}
