//! What the controller says where there is no connection (any more), in the name of a service or of
//! who it was with: RST (RFC 9293, section 3.5.2) and port unreachable (RFC 792, RFC 4443).

use crate::rules::Client;
use datapath::wire::build::{Build, eth};
use datapath::wire::{FlowKey, L3, L4, Layout, Mac, Tcp, parse, tcp_flags};
use std::net::Ipv4Addr;

/// "Port unreachable" of ICMP and of ICMPv6, and the longest quote of each.
const UNREACHABLE_V4: (u8, u8, usize) = (3, 3, 576 - 20 - 8);
const UNREACHABLE_V6: (u8, u8, usize) = (1, 4, 1280 - 40 - 8);
const IS_OVER: u8 = tcp_flags::RST | tcp_flags::ACK;

/// A frame with ends and ports, to be answered.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    frame: &'a [u8],
    layout: Layout,
    /// Ethernet addresses: whose it is, and who it is for.
    pub macs: [Mac; 2],
}

/// One end of a connection, as a frame names it: Ethernet address, address and port.
pub(crate) type End = (Mac, Client);

impl<'a> Asked<'a> {
    pub fn of(frame: &'a [u8]) -> Option<Asked<'a>> {
        let layout = parse(frame).ok()?;
        let mac = |at: usize| frame.get(at..at + 6)?.try_into().ok().map(Mac);
        Some(Asked { macs: [mac(6)?, mac(0)?], frame, layout })
    }

    /// The address and port that it is from.
    pub fn from(&self) -> Option<Client> {
        FlowKey::of(self.frame, &self.layout).map(|key| key.ends()[0]).map(|(ip, port)| Client { ip, port })
    }

    /// Begins a frame from one end to another, with the tag that this one has.
    fn begin(&self, (mac, from): End, (to_mac, to): End) -> Build<'static> {
        let build = eth(mac, to_mac);
        let tag = self.layout.vlan.and_then(|_| Some(u16::from_be_bytes(self.frame.get(14..16)?.try_into().ok()?)));
        let build = tag.map_or(build.clone(), |tag| build.vlan(tag));
        build.ip(from.ip, to.ip)
    }

    /// Refuses a connection, in the name of whom it asks for, who has the Ethernet address `mac`.
    /// `None` where a frame is not answered: nobody answers what is from a group or was for one
    /// (RFC 1122, section 3.2.2).
    pub fn refusal(&self, mac: Mac) -> Option<Vec<u8>> {
        let [asks, asked] = FlowKey::of(self.frame, &self.layout)?.ends().map(|(ip, port)| Client { ip, port });
        let is_broadcast = asks.ip == Ipv4Addr::BROADCAST;
        if self.macs.iter().any(|mac| mac.is_group())
            || asks.ip.is_multicast()
            || asks.ip.is_unspecified()
            || is_broadcast
        {
            return None;
        }
        let ends = ((mac, asked), (self.macs[0], asks));
        if self.layout.l4 != L4::Udp {
            return self.reset(ends.0, ends.1);
        }
        let is_v4 = self.layout.l3 == L3::Ipv4;
        let (kind, code, most) = if is_v4 { UNREACHABLE_V4 } else { UNREACHABLE_V6 };
        let packet = self.frame.get(usize::from(self.layout.l3_offset)..self.layout.end as usize)?;
        Some(self.begin(ends.0, ends.1).icmp(kind, code, 0).payload(&packet[..packet.len().min(most)]).bytes())
    }

    /// A RST to whom a segment is from. `None` where it is a RST itself.
    pub fn reset(&self, from: End, to: End) -> Option<Vec<u8>> {
        let tcp = Tcp::of(self.frame, &self.layout).filter(|tcp| tcp.flags() & tcp_flags::RST == 0)?;
        let (flags, sequence, ack) = match tcp.flags() & tcp_flags::ACK {
            0 => (IS_OVER, 0, tcp.sequence().wrapping_add(self.length())),
            _ => (tcp_flags::RST, tcp.acknowledgement(), 0),
        };
        Some(self.begin(from, to).tcp(from.1.port, to.1.port, sequence).flags(flags).ack(ack, 0).bytes())
    }

    /// A RST to whom a segment is for, with the numbers of the segment; or, where `is_behind`, with
    /// those of the next.
    pub fn end(&self, from: End, to: End, is_behind: bool) -> Option<Vec<u8>> {
        let tcp = Tcp::of(self.frame, &self.layout)?;
        let sequence = tcp.sequence().wrapping_add(if is_behind { self.length() } else { 0 });
        let build = self.begin(from, to).tcp(from.1.port, to.1.port, sequence);
        Some(build.flags(IS_OVER).ack(tcp.acknowledgement(), 0).bytes())
    }

    /// Numbers that a segment takes.
    fn length(&self) -> u32 {
        let flags = Tcp::of(self.frame, &self.layout).map_or(0, Tcp::flags);
        let is = |flag: u8| u32::from(flags & flag != 0);
        let payload = self.layout.end.saturating_sub(self.layout.payload_offset.into());
        payload + is(tcp_flags::SYN) + is(tcp_flags::FIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::wire::Icmp;
    use std::net::IpAddr;

    const CLIENT: Mac = Mac([2, 0, 0, 0, 0, 9]);
    const SERVICE: Mac = Mac([2, 0, 0, 0, 1, 0]);

    fn ends(version: u8) -> [Client; 2] {
        let ip = |last: u8| -> IpAddr {
            if version == 4 { [10, 0, 0, last].into() } else { [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)].into() }
        };
        [Client { ip: ip(9), port: 4000 }, Client { ip: ip(100), port: 80 }]
    }

    fn frame(version: u8) -> Build<'static> {
        let [from, to] = ends(version);
        eth(CLIENT, SERVICE).vlan(0x2007).ip(from.ip, to.ip)
    }

    /// Whose a frame is, who it is for, its flags and its numbers.
    fn seen(bytes: &[u8]) -> ([Client; 2], [Mac; 2], u8, [u32; 2]) {
        let asked = Asked::of(bytes).unwrap();
        assert_eq!(bytes[14..16], [0x20, 7], "its tag");
        let ends = FlowKey::of(bytes, &asked.layout).unwrap().ends().map(|(ip, port)| Client { ip, port });
        let tcp = Tcp::of(bytes, &asked.layout).unwrap();
        (ends, asked.macs, tcp.flags(), [tcp.sequence(), tcp.acknowledgement()])
    }

    #[test]
    fn both_ends_get_the_numbers_that_they_expect() {
        for version in [4, 6] {
            let [client, service] = ends(version);
            let syn = frame(version).tcp(4000, 80, u32::MAX).flags(tcp_flags::SYN).ack(0, 100).bytes();
            let refused = Asked::of(&syn).unwrap().refusal(SERVICE).unwrap();
            assert_eq!(seen(&refused), ([service, client], [SERVICE, CLIENT], IS_OVER, [0, 0]));
            let data = frame(version).tcp(4000, 80, 1000).ack(555, 100).payload(vec![1; 9]).bytes();
            let asked = Asked::of(&data).unwrap();
            let (from, to) = ((CLIENT, client), (SERVICE, service));
            let reset = asked.reset(to, from).unwrap();
            assert_eq!(seen(&reset), ([service, client], [SERVICE, CLIENT], tcp_flags::RST, [555, 0]));
            for (is_behind, sequence) in [(false, 1000), (true, 1009)] {
                let end = asked.end(from, to, is_behind).unwrap();
                assert_eq!(seen(&end), ([client, service], [CLIENT, SERVICE], IS_OVER, [sequence, 555]));
            }
            // Nobody answers a RST.
            let rst = frame(version).tcp(4000, 80, 1000).flags(tcp_flags::RST).bytes();
            assert_eq!(Asked::of(&rst).unwrap().refusal(SERVICE), None);
        }
    }

    #[test]
    fn what_is_from_a_group_or_for_one_is_not_answered() {
        let [client, service] = ends(4);
        let refusal = |macs: [Mac; 2], from: IpAddr| {
            let syn = eth(macs[0], macs[1]).ip(from, service.ip).tcp(4000, 80, 9).flags(tcp_flags::SYN).ack(0, 100);
            Asked::of(&syn.bytes()).unwrap().refusal(SERVICE)
        };
        let group = Mac([0xff; 6]);
        assert!(refusal([CLIENT, SERVICE], client.ip).is_some());
        for (macs, from) in [
            ([CLIENT, group], client.ip),
            ([group, SERVICE], client.ip),
            ([CLIENT, SERVICE], [224, 0, 0, 1].into()),
            ([CLIENT, SERVICE], [255; 4].into()),
            ([CLIENT, SERVICE], [0; 4].into()),
        ] {
            assert_eq!(refusal(macs, from), None, "{macs:?} {from}");
        }
    }

    #[test]
    fn a_datagram_is_quoted_as_far_as_that_may_be() {
        for (version, most) in [(4, 548), (6, 1232)] {
            for length in [0, 9, 2000] {
                let datagram = frame(version).udp(4000, 80).payload(vec![7; length]).bytes();
                let refused = Asked::of(&datagram).unwrap().refusal(SERVICE).unwrap();
                let layout = parse(&refused).unwrap();
                let icmp = Icmp::of(&refused, &layout).unwrap();
                assert_eq!(icmp.kind(), if version == 4 { 3 } else { 1 });
                let quote = &refused[usize::from(layout.l4_offset) + 8..layout.end as usize];
                assert_eq!(quote, &datagram[18..][..quote.len()]);
                assert_eq!(quote.len(), (datagram.len() - 18).min(most));
            }
        }
    }
}
