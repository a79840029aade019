//! Trains: many datagrams of a tunnel in one packet, which whoever cannot take it whole cuts into
//! equal pieces (UDP segmentation: udp(7), UDP_SEGMENT; `struct virtio_net_hdr`,
//! VIRTIO_NET_HDR_GSO_UDP_L4).
//!
//! A system call and a walk through the kernel cost as much for a datagram of 1500 bytes as for one
//! of 64 KiB. So where the uplink's port cuts UDP, the segments of a frame go into the tunnel
//! together ([`couple`]), each complete, with a tunnel's header of its own: what the wire carries
//! is the same as if they had been sent one by one, but that the outer UDP checksum, which the
//! device writes, is not zero. A frame of TCP goes whole instead where the port can say that an
//! inner packet is to be cut ([`crate::offload::OffloadSupport::tunnel`]).
//!
//! Where nobody cuts a UDP GSO packet on its way, as over a veth, it arrives whole. [`uncouple`]
//! takes the datagrams out, and joins those whose frames a cut would make of one: consecutive
//! segments of TCP, or datagrams of UDP, equally long but for the last, of one flow, with the same
//! headers otherwise. Cutting the joined frame gives back what came, bit for bit; so a checksum
//! that is wrong, which would be lost in it, keeps a frame by itself.

use crate::checksum::{self, pseudo};
use crate::encap::vxlan;
use crate::encap::vxlan::{Received, Tunnel, VXLAN};
use crate::frame::{Frame, Meta, Pool};
use crate::offload::{Gso, Offload};
use crate::segment::{self, replace_ipv4};
use crate::verdict::Reason;
use crate::wire::{
    ETHERNET_HEADER, L3, L4, Layout, Udp, be16, be32, ipv4, ipv6, parse, protocol, put16, tcp_flags, transport,
};
use core::net::IpAddr;
use core::ops::Range;

/// Bytes of the longest UDP GSO packet: Linux's devices take packets of less than 64 KiB, Ethernet
/// header included (GSO_LEGACY_MAX_SIZE).
const MOST_BYTES: usize = 65_535;
/// Datagrams of the longest: Linux takes no more (UDP_MAX_SEGMENTS, which is 128 from 6.9).
const MOST_CARS: usize = 64;
/// Bytes of a UDP header.
const UDP: usize = 8;
/// Bytes of an IPv4 header without options, and of an IPv6 header.
const IPV4: usize = 20;
const IPV6: usize = 40;
/// TCP flags that only the last segment of a frame has.
const LAST: u8 = tcp_flags::FIN | tcp_flags::PSH;

/// How many segments of a frame with this offload may be coupled for a tunnel: 0 and 1 are none.
#[must_use]
pub fn most(layout: &Layout, offload: &Offload, tunnel: &Tunnel) -> u32 {
    if offload.gso == Gso::None {
        return 0;
    }
    let car = VXLAN + layout.headers() + usize::from(offload.gso_size);
    ((MOST_BYTES - vxlan::datagram(&tunnel.to.0)) / car).min(MOST_CARS) as u32
}

/// How long Linux may let a guest's offloaded packets be (`gso_max_size` of its device) whose own
/// packets have up to `mtu` bytes, so that TCP fills one UDP GSO packet and not one and a bit: a
/// connection fills what is left of that behind the room that Linux keeps for headers
/// (`MAX_TCP_HEADER`, at most 320 bytes; `tcp_bound_to_half_wnd` of `gso_max_size - 1 -
/// MAX_TCP_HEADER`).
#[must_use]
pub fn longest_offload(mtu: u32, vtep: &IpAddr) -> u32 {
    const KEPT: u32 = 321;
    /// Of the segments: IPv4 and TCP with timestamps.
    const HEADERS: u32 = 52;
    let car = (VXLAN + ETHERNET_HEADER) as u32 + mtu;
    let cars = ((MOST_BYTES - vxlan::datagram(vtep)) as u32 / car).clamp(1, MOST_CARS as u32);
    cars * mtu.saturating_sub(HEADERS) + KEPT
}

/// A UDP GSO packet of some segments of a frame, at most as many as [`most`] says. `None` where
/// there is no buffer.
#[must_use]
pub fn couple(pool: &mut Pool, frame: &Frame, cars: Range<u32>, tunnel: &Tunnel, source_port: u16) -> Option<Frame> {
    let Meta { layout, offload, .. } = *pool.meta(frame);
    let (headers, size, count) = (layout.headers(), usize::from(offload.gso_size), cars.len());
    let payload = (pool.len(frame) - headers - cars.start as usize * size).min(count * size);
    let datagram = vxlan::datagram(&tunnel.to.0);
    let len = datagram + count * (VXLAN + headers) + payload;
    let train = pool.alloc(len)?;
    let (from, to) = pool.both(frame, &train);
    vxlan::write_packet(to, tunnel, len, vxlan::ecn(from, &layout), source_port);
    let mut at = datagram;
    for index in cars {
        vxlan::write_network(&mut to[at..at + VXLAN], tunnel.vni);
        at += VXLAN;
        at += segment::write_segment(from, &layout, &offload, index, &mut to[at..]);
    }
    let l4 = datagram - UDP;
    let layout = vxlan::packet_layout(&tunnel.to.0, len);
    let sum = pseudo(&to[addresses(&layout)], protocol::UDP, len - l4);
    put16(to, l4 + transport::UDP_CHECKSUM, sum);
    let meta = pool.meta_mut(&train);
    meta.layout = layout;
    meta.set_in_tunnel(tunnel.to.0.is_ipv4());
    meta.offload = Offload {
        gso: if count > 1 { Gso::Udp } else { Gso::None },
        gso_size: if count > 1 { (VXLAN + headers + size) as u16 } else { 0 },
        needs_csum: true,
        csum_start: l4 as u16,
        csum_offset: transport::UDP_CHECKSUM as u16,
        ..Offload::default()
    };
    Some(train)
}

/// Takes datagram `first` out of a UDP GSO packet whose layout and offload are known and agree, and
/// those behind it that can be joined with it: how many, what the outer headers say, and the frame,
/// of which nothing is known yet but its offload.
///
/// # Errors
/// [`Reason::Malformed`] where it is not VXLAN, [`Reason::NoBuffer`]. The UDP GSO packet stays as
/// it is.
pub fn uncouple(pool: &mut Pool, train: &Frame, first: u32) -> (u32, Result<(Received, Frame), Reason>) {
    let Meta { layout, offload, .. } = *pool.meta(train);
    let mut cars = cars(pool.bytes(train), &layout, &offload).skip(first as usize);
    let opened = vxlan::open_packet(pool.bytes(train), &layout);
    let car = cars.next().unwrap_or_default();
    let (Ok((from, ecn)), Some(vni)) = (opened, vxlan::network(car)) else { return (1, Err(Reason::Malformed)) };
    let received = Received { from, vni, ecn };
    let whole = Segment::of(car);
    let joined = whole.map_or(0, |whole| whole.followers(cars));
    let frame = match whole.filter(|_| joined > 0) {
        Some(Segment { layout, .. }) => join(pool, train, first as usize, joined + 1, &layout),
        None => alone(pool, train, first as usize),
    };
    (joined as u32 + 1, frame.map(|frame| (received, frame)).ok_or(Reason::NoBuffer))
}

/// The payloads of a UDP GSO packet's datagrams.
fn cars<'a>(bytes: &'a [u8], layout: &Layout, offload: &Offload) -> core::slice::Chunks<'a, u8> {
    bytes[layout.headers()..layout.end as usize].chunks(usize::from(offload.gso_size).max(1))
}

/// What lies in a datagram, as it is.
fn alone(pool: &mut Pool, train: &Frame, index: usize) -> Option<Frame> {
    let Meta { layout, offload, .. } = *pool.meta(train);
    let len = cars(pool.bytes(train), &layout, &offload).nth(index)?.len() - VXLAN;
    let frame = pool.alloc(len)?;
    let (from, to) = pool.both(train, &frame);
    to.copy_from_slice(&cars(from, &layout, &offload).nth(index)?[VXLAN..]);
    Some(frame)
}

/// What `count` datagrams were cut from, the first of which has the layout `inner`.
fn join(pool: &mut Pool, train: &Frame, first: usize, count: usize, inner: &Layout) -> Option<Frame> {
    let Meta { layout, offload, .. } = *pool.meta(train);
    let headers = inner.headers();
    let parts = cars(pool.bytes(train), &layout, &offload).skip(first).take(count);
    let payload = parts.map(|car| car.len() - VXLAN - headers).sum::<usize>();
    let frame = pool.alloc(headers + payload)?;
    let (from, to) = pool.both(train, &frame);
    let (l3, l4) = (usize::from(inner.l3_offset), usize::from(inner.l4_offset));
    let (mut at, mut flags) = (headers, 0);
    for (index, car) in cars(from, &layout, &offload).skip(first).take(count).enumerate() {
        let (head, part) = car[VXLAN..].split_at(headers);
        if index == 0 {
            to[..headers].copy_from_slice(head);
        }
        to[at..at + part.len()].copy_from_slice(part);
        at += part.len();
        flags |= head.get(l4 + transport::TCP_FLAGS).copied().unwrap_or(0);
    }
    let (len, size) = (to.len(), inner.end as usize - headers);
    let number = if inner.l4 == L4::Tcp { protocol::TCP } else { protocol::UDP };
    if inner.l3 == L3::Ipv4 {
        replace_ipv4(to, l3, ipv4::TOTAL_LEN, (len - l3) as u16);
    } else {
        put16(to, l3 + ipv6::PAYLOAD_LEN, (len - l4) as u16);
    }
    let offset = if inner.l4 == L4::Tcp {
        to[l4 + transport::TCP_FLAGS] = flags;
        transport::TCP_CHECKSUM
    } else {
        put16(to, l4 + transport::UDP_LENGTH, (len - l4) as u16);
        transport::UDP_CHECKSUM
    };
    let sum = pseudo(&to[addresses(inner)], number, len - l4);
    put16(to, l4 + offset, sum);
    pool.meta_mut(&frame).offload = Offload {
        gso: match (inner.l4, inner.l3) {
            (L4::Tcp, L3::Ipv4) => Gso::Tcp4,
            (L4::Tcp, _) => Gso::Tcp6,
            _ => Gso::Udp,
        },
        gso_size: size as u16,
        needs_csum: true,
        csum_start: l4 as u16,
        csum_offset: offset as u16,
        ..Offload::default()
    };
    Some(frame)
}

/// A datagram's payload whose frame could have been cut off an offloaded one.
#[derive(Clone, Copy)]
struct Segment<'a> {
    /// With the VXLAN header.
    car: &'a [u8],
    layout: Layout,
}

impl<'a> Segment<'a> {
    fn of(car: &'a [u8]) -> Option<Segment<'a>> {
        let bytes = car.get(VXLAN..)?;
        let layout = parse(bytes).ok()?;
        let (l3, l4) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset));
        // All ones, which a sum never comes to, would become zero.
        let odd = |at: usize| be16(bytes, at) == 0xffff;
        let plain = match layout.l3 {
            L3::Ipv4 => l4 - l3 == IPV4 && checksum::sum(&bytes[l3..l4]) == 0xffff && !odd(l3 + ipv4::CHECKSUM),
            L3::Ipv6 => l4 - l3 == IPV6,
            _ => false,
        };
        if !plain || layout.vlan.is_some() || layout.fragment || layout.end as usize != bytes.len() {
            return None;
        }
        let number = match layout.l4 {
            L4::Tcp => {
                let flags = bytes[l4 + transport::TCP_FLAGS];
                let others = tcp_flags::SYN | tcp_flags::RST | tcp_flags::URG;
                let sound = flags & tcp_flags::ACK != 0 && flags & others == 0 && !odd(l4 + transport::TCP_CHECKSUM);
                sound.then_some(protocol::TCP)?
            }
            L4::Udp => {
                let udp = Udp::of(bytes, &layout)?;
                let summed = be16(bytes, l4 + transport::UDP_CHECKSUM) != 0;
                (summed && usize::from(udp.length()) == bytes.len() - l4).then_some(protocol::UDP)?
            }
            _ => return None,
        };
        let sum =
            checksum::add(pseudo(&bytes[addresses(&layout)], number, bytes.len() - l4), checksum::sum(&bytes[l4..]));
        (sum == 0xffff && bytes.len() > layout.headers()).then_some(Segment { car, layout })
    }

    /// How many of `cars` can be joined with it.
    fn followers(&self, cars: core::iter::Skip<core::slice::Chunks<'a, u8>>) -> usize {
        let mut last = *self;
        let mut count = 0;
        for car in cars {
            let Some(next) = Segment::of(car).filter(|next| self.goes_on(&last, next, count + 1)) else { break };
            (last, count) = (next, count + 1);
        }
        count
    }

    /// Whether a cut would make `next` the segment `index` of what begins with this one and goes to
    /// `last`.
    fn goes_on(&self, last: &Segment<'_>, next: &Segment<'_>, index: usize) -> bool {
        let (a, b) = (self.car, next.car);
        let (l3, l4) = (VXLAN + usize::from(self.layout.l3_offset), VXLAN + usize::from(self.layout.l4_offset));
        let headers = VXLAN + self.layout.headers();
        let size = a.len() - headers;
        let same = |range: Range<usize>| a[range.clone()] == b[range];
        let is_cut = self.layout.headers() == next.layout.headers()
            && (self.layout.l3, self.layout.l4) == (next.layout.l3, next.layout.l4)
            && last.car.len() == a.len()
            && b.len() <= a.len();
        let network = || match self.layout.l3 {
            L3::Ipv4 => {
                let id = be16(a, l3 + ipv4::ID).wrapping_add(index as u16);
                same(0..l3 + ipv4::TOTAL_LEN)
                    && be16(b, l3 + ipv4::ID) == id
                    && same(l3 + 6..l3 + 10)
                    && same(l3 + 12..l4)
            }
            _ => same(0..l3 + ipv6::PAYLOAD_LEN) && same(l3 + 6..l4),
        };
        let flow = || match self.layout.l4 {
            L4::Tcp => {
                let sequence = be32(a, l4 + transport::TCP_SEQUENCE).wrapping_add((index * size) as u32);
                let flags = l4 + transport::TCP_FLAGS;
                same(l4..l4 + transport::TCP_SEQUENCE)
                    && be32(b, l4 + transport::TCP_SEQUENCE) == sequence
                    && same(l4 + 8..flags)
                    && a[flags] == last.car[flags]
                    && a[flags] & LAST == 0
                    && a[flags] == b[flags] & !LAST
                    && same(l4 + 14..l4 + transport::TCP_CHECKSUM)
                    && same(l4 + 18..headers)
            }
            _ => same(l4..l4 + transport::UDP_LENGTH),
        };
        is_cut && network() && flow()
    }
}

/// Where the addresses lie that are in the pseudo-header.
fn addresses(layout: &Layout) -> Range<usize> {
    let l3 = usize::from(layout.l3_offset);
    if layout.l3 == L3::Ipv4 { l3 + 12..l3 + IPV4 } else { l3 + 8..l3 + IPV6 }
}

#[cfg(test)]
mod tests;
