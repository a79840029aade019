//! What the switch says in the name of services, and what it lets nobody else say.

use super::version::{ASKS, SAYS, Version};
use super::{ANSWERED, DROPPED, NEIGHBOURS, Rules};
use crate::wire::{Action, Field, Instruction, Kind, port};
use control::config::openflow::OpenFlow;
use datapath::wire::build::{ALL_NODES, group_mac};
use datapath::wire::{Mac, ethertype};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;
/// The time to live of an answer: the way back may be longer than what the question had left.
const HOPS: u8 = 64;
/// Flags of a neighbour advertisement: it was asked for, and what is known otherwise is wrong.
const SOLICITED: u32 = 1 << 30;
const OVERRIDE: u32 = 1 << 29;
/// Options of neighbour discovery: the Ethernet address of who asks, and of who is asked for.
const OF_SOURCE: u8 = 1;
const OF_TARGET: u8 = 2;

impl Rules {
    pub(super) fn add_answers(&mut self, config: &OpenFlow) {
        let mut addresses: BTreeMap<IpAddr, (Mac, bool)> = BTreeMap::new();
        for front in &self.fronts {
            addresses.entry(front.ip).or_insert((front.mac, false)).1 |= config.services[front.service].ping;
        }
        for (ip, (mac, has_ping)) in addresses {
            match ip {
                IpAddr::V4(ip) => self.add_arp(ip, mac),
                IpAddr::V6(ip) => self.add_neighbour(ip, mac),
            }
            let version = Version::of(ip);
            let to = Field::target(ip);
            self.add(0, DROPPED, [version.packets(), to], []);
            if has_ping {
                let [request, reply] = version.echo.map(|kind| version.icmp(kind));
                let [is_icmp, asks] = request;
                let actions = [&back(ip, mac)[..], &[Action::Set(reply[1]), Action::SetTtl(HOPS), to_asker()]].concat();
                self.add(0, ANSWERED, [version.packets(), is_icmp, to, asks], actions);
            }
        }
    }

    fn add_arp(&mut self, ip: Ipv4Addr, mac: Mac) {
        let arp = Field::new(Kind::ETH_TYPE, ethertype::ARP);
        let of = |kind| Field::new(kind, ip.to_bits());
        let actions = [
            Action::Move(Kind::ETH_SRC, Kind::ETH_DST),
            Action::Set(Field::mac(Kind::ETH_SRC, mac)),
            Action::Set(Field::new(Kind::ARP_OP, ARP_REPLY)),
            Action::Move(Kind::ARP_SHA, Kind::ARP_THA),
            Action::Move(Kind::ARP_SPA, Kind::ARP_TPA),
            Action::Set(Field::mac(Kind::ARP_SHA, mac)),
            Action::Set(of(Kind::ARP_SPA)),
            to_asker(),
        ];
        self.add(0, ANSWERED, [arp, Field::new(Kind::ARP_OP, ARP_REQUEST), of(Kind::ARP_TPA)], actions);
        self.add(0, DROPPED, [arp, of(Kind::ARP_SPA)], []);
    }

    /// A solicitation becomes the advertisement: its fields are set one by one, and lengths stay.
    /// An option of the asker's becomes ours; where there is none, none is added. The option's
    /// address can be set only where a flow matches an advertisement: in a table of its own.
    fn add_neighbour(&mut self, ip: Ipv6Addr, mac: Mac) {
        let version = Version::of(ip.into());
        let about = |kind| [&[version.packets()][..], &version.icmp(kind), &[of(Kind::ND_TARGET, ip)]].concat();
        let becomes = |flags| {
            let [_, advertises] = version.icmp(SAYS);
            [Action::Set(advertises), Action::Set(Field::new(Kind::ND_FLAGS, flags))]
        };
        let answer = [&back(ip.into(), mac)[..], &becomes(SOLICITED | OVERRIDE)].concat();
        self.add(0, ANSWERED, about(ASKS), [&answer[..], &[to_asker()]].concat());
        let with_option = [about(ASKS), vec![Field::new(Kind::ND_OPTION, OF_SOURCE)]].concat();
        let option = Action::Set(Field::new(Kind::ND_OPTION, OF_TARGET));
        let goes_on = vec![Instruction::Apply([answer, vec![option]].concat()), Instruction::Goto(NEIGHBOURS)];
        self.add_with(0, ANSWERED + 1, with_option, goes_on);
        self.add(NEIGHBOURS, ANSWERED, about(SAYS), [Action::Set(Field::mac(Kind::ND_TLL, mac)), to_asker()]);
        // Who wants to have the address (RFC 4862) has none yet: all are told.
        let mut wants = about(ASKS);
        wants.insert(2, of(Kind::IPV6_SRC, Ipv6Addr::UNSPECIFIED));
        let to_all = [
            Action::Set(Field::mac(Kind::ETH_DST, group_mac(ALL_NODES))),
            Action::Set(Field::mac(Kind::ETH_SRC, mac)),
            Action::Set(of(Kind::IPV6_DST, ALL_NODES)),
            Action::Set(of(Kind::IPV6_SRC, ip)),
        ];
        self.add(0, ANSWERED + 2, wants, [&to_all[..], &becomes(OVERRIDE), &[to_asker()]].concat());
        // Claims: who says that it has the address, and who asks in its name.
        self.add(0, DROPPED, about(SAYS), []);
        let [is_icmp, asks] = version.icmp(ASKS);
        self.add(0, DROPPED, [version.packets(), is_icmp, of(Kind::IPV6_SRC, ip), asks], []);
    }
}

fn of(kind: Kind, ip: Ipv6Addr) -> Field {
    Field::new(kind, ip.to_bits())
}

/// Back to who sent it, in the name of a service.
fn back(ip: IpAddr, mac: Mac) -> [Action; 4] {
    let (source, target) = (Field::source(ip), Field::target(ip));
    [
        Action::Move(Kind::ETH_SRC, Kind::ETH_DST),
        Action::Set(Field::mac(Kind::ETH_SRC, mac)),
        Action::Move(source.kind, target.kind),
        Action::Set(source),
    ]
}

fn to_asker() -> Action {
    Action::Output(port::IN_PORT, 0)
}
