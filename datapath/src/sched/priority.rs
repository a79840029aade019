//! Priority: what of an endpoint's frames goes before its others. So that the congestion agents of
//! hosts hear each other when the link is full, and when the host fills it itself, their datagrams
//! do not stand in line with the host's other traffic, and are neither marked nor dropped with it.
//!
//! Only endpoints whose program says so have it ([`crate::program::AgentTraffic`]): the host's own.
//! Whatever looks like agents' datagrams elsewhere is traffic like any other. It is bounded: what
//! goes ahead keeps to a rate, and what is more waits with the rest. All of it is the endpoint's
//! own traffic, within its guarantee, limit and weight.
//!
//! It is also nobody's contention: what agents say because a tenant fills the link would otherwise
//! be the second tenant on it, and the first one would have to leave the headroom for as long as
//! they speak.
//!
//! What goes ahead stands in the endpoint's lane, before the rest and in its own order; here it is
//! known how many that are.

use super::tag::{Pace, Tag, tag};
use crate::frame::{Frame, Pool};
use crate::program::AgentTraffic;
use crate::units::{Direction, Instant};
use crate::wire::{L3, L4, Layout, be16};
use std::net::IpAddr;

/// What may go ahead at once, in bytes: thirty datagrams of the longest kind, or hundreds as agents
/// mostly send them.
const BURST: u32 = 40_000;
/// Frames that may stand before the rest: the way past them is walked for each that comes.
const MOST: u32 = 64;
/// The longest frame that goes ahead, in wire bytes: one packet of a 1500-byte MTU. Whoever sends
/// larger ones is no agent.
const LONGEST: u32 = 1542;

/// What goes ahead at the few endpoints that have it, by their numbers.
#[derive(Debug, Default)]
pub struct Priorities(Vec<(u32, Priority)>);

impl Priorities {
    /// Says what goes ahead at an endpoint.
    pub fn set(&mut self, endpoint: u32, agent_traffic: Option<AgentTraffic>, direction: Direction) {
        match (self.get_mut(endpoint), agent_traffic) {
            (Some(ahead), Some(agent_traffic)) => ahead.set(agent_traffic),
            (None, Some(agent_traffic)) => self.0.push((endpoint, Priority::new(agent_traffic, direction))),
            (_, None) => self.0.retain(|(of, _)| *of != endpoint),
        }
    }

    /// What goes ahead at an endpoint.
    #[must_use]
    pub fn get(&self, endpoint: u32) -> Option<&Priority> {
        self.0.iter().find(|(of, _)| *of == endpoint).map(|(_, ahead)| ahead)
    }

    /// The same, to change it.
    #[must_use]
    pub fn get_mut(&mut self, endpoint: u32) -> Option<&mut Priority> {
        self.0.iter_mut().find(|(of, _)| *of == endpoint).map(|(_, ahead)| ahead)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Priority {
    agent_traffic: AgentTraffic,
    direction: Direction,
    pace: Pace,
    /// Up to here its rate is used up.
    paid_until: Tag,
    /// Frames that stand before the rest.
    frames: u32,
}

impl Priority {
    /// For the agents' datagrams of a host, in one direction.
    #[must_use]
    pub fn new(agent_traffic: AgentTraffic, direction: Direction) -> Priority {
        let pace = Pace::of(*agent_traffic.rate.get(direction));
        Priority { agent_traffic, direction, pace, paid_until: 0, frames: 0 }
    }

    /// From now on it is for these.
    pub fn set(&mut self, agent_traffic: AgentTraffic) {
        self.agent_traffic = agent_traffic;
        self.pace = Pace::of(*agent_traffic.rate.get(self.direction));
    }

    /// Whether a frame goes ahead, and how many stand before it then.
    pub fn takes(&mut self, pool: &Pool, now: Instant, frame: &Frame) -> Option<u32> {
        self.paid_until = self.place(pool, now, frame)?;
        self.frames += 1;
        Some(self.frames - 1)
    }

    /// Whether a frame would go ahead.
    #[must_use]
    pub fn would_take(&self, pool: &Pool, now: Instant, frame: &Frame) -> bool {
        self.place(pool, now, frame).is_some()
    }

    /// Up to when the rate is used up by a frame that goes ahead; `None` where it does not.
    fn place(&self, pool: &Pool, now: Instant, frame: &Frame) -> Option<Tag> {
        let (bytes, meta) = (pool.bytes(frame), pool.meta(frame));
        let wire_bytes = meta.wire_bytes;
        if wire_bytes > LONGEST || self.frames >= MOST || !self.concerns(bytes, &meta.layout) {
            return None;
        }
        let (now_tag, burst) = (tag(now), self.pace.cost(BURST));
        let paid_until = self.paid_until.max(now_tag) + self.pace.cost(wire_bytes);
        (paid_until <= now_tag + burst).then_some(paid_until)
    }

    /// Whether the next frame of the lane is one that went ahead; it is taken now.
    pub fn lets_go(&mut self) -> bool {
        let has_some = self.frames > 0;
        self.frames = self.frames.saturating_sub(1);
        has_some
    }

    /// Frames that stand before the rest.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// The lane is empty.
    pub fn clear(&mut self) {
        self.frames = 0;
    }

    /// Whether a frame is the agents' own: UDP from the address where they listen, or to it.
    #[must_use]
    pub fn concerns(&self, bytes: &[u8], layout: &Layout) -> bool {
        if layout.l4 != L4::Udp || layout.fragment {
            return false;
        }
        let own_port = match self.direction {
            Direction::Egress => 0,
            Direction::Ingress => 2,
        };
        let l3 = usize::from(layout.l3_offset);
        // Where the source is in the headers (RFC 791, RFC 8200); the destination follows it.
        let (offset, length) = match (layout.l3, self.agent_traffic.address) {
            (L3::Ipv4, IpAddr::V4(_)) => (l3 + 12, 4),
            // Who listens at every IPv6 address has the IPv4 ones too.
            (L3::Ipv4, IpAddr::V6(ip)) if ip.is_unspecified() => (l3 + 12, 4),
            (L3::Ipv6, IpAddr::V6(_)) => (l3 + 8, 16),
            _ => return false,
        };
        let offset = if self.direction == Direction::Egress { offset } else { offset + length };
        let is_it = |octets: &[u8]| {
            self.agent_traffic.address.is_unspecified()
                || bytes.get(offset..offset + length).is_some_and(|there| there == octets)
        };
        let is_own = match self.agent_traffic.address {
            IpAddr::V4(ip) => is_it(&ip.octets()),
            IpAddr::V6(ip) => is_it(&ip.octets()),
        };
        is_own && be16(bytes, usize::from(layout.l4_offset) + own_port) == self.agent_traffic.port
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Both, Rate};
    use crate::wire::build::eth;
    use crate::wire::{Mac, parse};

    #[test]
    fn agents_that_listen_at_any_address_are_heard_first_over_both_versions_of_ip() {
        const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let ends = [[ip("10.0.0.1"), ip("10.0.0.2")], [ip("fd00::1"), ip("fd00::2")]];
        for direction in [Direction::Egress, Direction::Ingress] {
            let own_first = direction == Direction::Egress;
            let concerned = |address: IpAddr, version: usize, port: u16| {
                let rate = Both { egress: Rate(1_000_000), ingress: Rate(1_000_000) };
                let priority = Priority::new(AgentTraffic { address, port: 7370, rate }, direction);
                let [own, other] = ends[version];
                let frame = eth(MACS[0], MACS[1]);
                let frame = match own_first {
                    true => frame.ip(own, other).udp(port, 9),
                    false => frame.ip(other, own).udp(9, port),
                };
                let bytes = frame.bytes();
                priority.concerns(&bytes, &parse(&bytes).unwrap())
            };
            let all = |address: IpAddr| [0, 1].map(|version| concerned(address, version, 7370));
            assert_eq!(all(ip("::")), [true, true]);
            assert_eq!(all(ip("0.0.0.0")), [true, false]);
            assert_eq!(all(ends[0][0]), [true, false]);
            assert_eq!(all(ends[1][0]), [false, true]);
            assert_eq!(all(ends[0][1]), [false, false], "another's");
            assert_eq!([0, 1].map(|version| concerned(ip("::"), version, 7371)), [false, false]);
        }
    }
}
