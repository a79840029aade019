//! ARP for IPv4 over Ethernet (RFC 826; probes and announcements: RFC 5227).

use super::{L3, Layout, Mac, be16, header};
use crate::verdict::Reason;
use core::net::Ipv4Addr;

const LEN: usize = 28;

/// An ARP message.
#[derive(Clone, Copy, Debug)]
pub struct Arp<'a>(&'a [u8; LEN]);

impl<'a> Arp<'a> {
    /// The operation that asks.
    pub const REQUEST: u16 = 1;
    /// The operation that answers.
    pub const REPLY: u16 = 2;

    /// The message of a frame that has one.
    #[must_use]
    #[inline]
    pub fn of(bytes: &'a [u8], layout: &Layout) -> Option<Self> {
        (layout.l3 == L3::Arp).then(|| header(bytes, layout.l3_offset.into()).map(Arp))?
    }

    /// [`Arp::REQUEST`], [`Arp::REPLY`] or another.
    #[must_use]
    pub fn operation(self) -> u16 {
        be16(self.0, 6)
    }

    /// The sender's Ethernet address.
    #[must_use]
    pub fn sender_mac(self) -> Mac {
        mac(self.0, 8)
    }

    /// The sender's IPv4 address; 0.0.0.0 in a probe.
    #[must_use]
    pub fn sender_ip(self) -> Ipv4Addr {
        ip(self.0, 14)
    }

    /// The target's Ethernet address; of no meaning in a request.
    #[must_use]
    pub fn target_mac(self) -> Mac {
        mac(self.0, 18)
    }

    /// The target's IPv4 address.
    #[must_use]
    pub fn target_ip(self) -> Ipv4Addr {
        ip(self.0, 24)
    }
}

fn mac(message: &[u8; LEN], at: usize) -> Mac {
    let mut mac = [0; 6];
    mac.copy_from_slice(&message[at..at + 6]);
    Mac(mac)
}

fn ip(message: &[u8; LEN], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(message[at], message[at + 1], message[at + 2], message[at + 3])
}

/// Hardware types of Ethernet: Linux takes a message with either number.
const ETHERNET: [u16; 2] = [1, 6];

/// Any other kind of ARP on Ethernet is refused: the guard could not tell whom it speaks for.
pub(super) fn locate(bytes: &[u8], layout: &mut Layout) -> Result<(), Reason> {
    let message: &[u8; LEN] = header(bytes, layout.l3_offset.into()).ok_or(Reason::Malformed)?;
    let ipv4_over_ethernet = ETHERNET.contains(&be16(message, 0)) && message[2..6] == [0x08, 0x00, 6, 4];
    if !ipv4_over_ethernet {
        return Err(Reason::Malformed);
    }
    layout.l3 = L3::Arp;
    layout.end = u32::from(layout.l3_offset) + LEN as u32;
    Ok(())
}
