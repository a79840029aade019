//! Announcements: an endpoint that has come to this host says so, in its own name, so that switches
//! between the hosts send what is for it here from now on and not where it was.
//!
//! It is a reverse ARP request to everybody, as QEMU sends it when a machine has moved: switches
//! learn from its source address, and nobody answers (RFC 903). It goes the way of the endpoint's
//! own frames, through the guard and under its limits, and may be lost like any of them. So it is
//! said again a few times ([`PAUSES`]), as long as the endpoint is here.
//!
//! A service's address is announced by its switch, by ARP and neighbour discovery: who had it
//! before may still be in caches. What its backends send outside has their own Ethernet addresses,
//! so it is said again for as long as it is here ([`REFRESH`]), before switches forget where it is.

use control::plan::Plan;
use datapath::guard::Identity;
use datapath::program::{Attachment, PortId};
use datapath::service::ServiceId;
use datapath::wire::{Mac, build as messages};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Shortest frame without its check sequence, in bytes (IEEE 802.3).
const LEAST: usize = 60;
/// Protocol number of reverse ARP.
const RARP: u16 = 0x8035;

/// Between one announcement and the next: QEMU's (`announce-initial` 50 ms, `announce-step` 100 ms,
/// five `announce-rounds`).
const PAUSES: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(150), Duration::from_millis(250), Duration::from_millis(350)];

/// And of a service: its uplink may be a bond whose links are yet to agree, which takes seconds.
const LATER: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(6), Duration::from_secs(20)];
/// Between one announcement of a service and the next, from then on: switches forget an address
/// after 300 s (IEEE 802.1Q, 8.8.3), and sooner where the network changes.
const REFRESH: Duration = Duration::from_secs(60);
/// Services that came together are spread over so long.
const SPREAD: Duration = Duration::from_secs(10);
/// One that could not be said, as too much was to be done, is said again so soon.
const AGAIN: Duration = Duration::from_millis(100);

/// Who has an address in a tenant, and which: an endpoint its Ethernet address, a service that and
/// its IP addresses.
type Face = (String, Mac, Option<(ServiceId, Vec<IpAddr>)>);

/// Who has an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// The endpoint whose frames enter by this port.
    Endpoint(PortId),
    /// A service.
    Service(ServiceId),
}

/// All of them, on which switch they are, and whose.
pub type Faces = BTreeMap<Face, (usize, Whose)>;

/// What has been announced, and is to be announced again.
#[derive(Default)]
pub struct Announced(BTreeMap<Face, Said>);

/// How often it has been said, and when it will be again.
#[derive(Clone, Copy)]
struct Said {
    count: usize,
    next: Option<Instant>,
}

impl Announced {
    /// Of those that are `here` now, the faces that are to be announced at `now`: `say` says one,
    /// and whether it could. Who is not here any more will be announced anew if it comes back.
    pub fn say(&mut self, here: &Faces, now: Instant, mut say: impl FnMut(Mac, (usize, Whose)) -> bool) {
        self.0.retain(|face, _| here.contains_key(face));
        for (face, &at) in here {
            let said = self.0.entry(face.clone()).or_insert(Said { count: 0, next: Some(now) });
            if said.next.is_none_or(|next| next > now) {
                continue;
            }
            if !say(face.1, at) {
                said.next = Some(now + AGAIN);
                continue;
            }
            let pause = PAUSES.get(said.count).copied();
            let pause = pause.or_else(|| match at.1 {
                Whose::Endpoint(_) => None,
                Whose::Service(_) => Some(later(said.count - PAUSES.len(), face.1)),
            });
            said.next = pause.map(|pause| now + pause);
            said.count = (said.count + 1).min(PAUSES.len() + LATER.len());
        }
    }

    /// When something is due, if nothing changes.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().filter_map(|said| said.next).min()
    }
}

/// The pause after a service was said so often later on.
fn later(count: usize, mac: Mac) -> Duration {
    let [.., low] = mac.0;
    LATER.get(count).copied().unwrap_or_else(|| REFRESH - SPREAD * u32::from(low) / 256)
}

/// The declared addresses of a plan that are reached over an uplink, and those of its services that
/// switches outside have to learn.
pub fn faces(plan: &Plan) -> Faces {
    let mut faces = Faces::new();
    for (number, switch) in plan.switches.iter().filter(|(_, switch)| switch.program.uplink.is_some()) {
        for endpoint in switch.program.endpoints.values().filter(|endpoint| !endpoint.trunk) {
            let tenant = endpoint.tenant.0;
            let is_attached =
                switch.program.tenants.get(tenant).is_some_and(|tenant| tenant.attachment != Attachment::Isolated);
            let Some(name) = switch.tenants.get(tenant).filter(|_| is_attached) else { continue };
            for &mac in &endpoint.identity.macs {
                faces.insert((name.clone(), mac, None), (number as usize, Whose::Endpoint(endpoint.port)));
            }
        }
        for (id, service) in switch.program.services.iter() {
            let (id, tenant) = (ServiceId(id), service.tenant.0);
            let attachment = switch.program.tenants.get(tenant).map(|tenant| tenant.attachment);
            // Through tunnels it is known by the directory.
            let (Some(Attachment::Vlan(_) | Attachment::Untagged), Some(name)) =
                (attachment, switch.tenants.get(tenant))
            else {
                continue;
            };
            let ips = service.addresses.iter().map(|address| address.ip).collect();
            faces.insert((name.clone(), service.mac, Some((id, ips))), (number as usize, Whose::Service(id)));
        }
    }
    faces
}

/// The frame that says that `mac` is here.
pub fn frame(mac: Mac) -> Vec<u8> {
    let mut frame = Vec::with_capacity(LEAST);
    frame.extend([0xff; 6]);
    frame.extend(mac.0);
    frame.extend(RARP.to_be_bytes());
    // Ethernet and IPv4 addresses, of 6 and 4 bytes; a reverse request; both ends are the endpoint,
    // and say no IPv4 address.
    frame.extend([0, 1, 8, 0, 6, 4, 0, 3]);
    for _ in 0..2 {
        frame.extend(mac.0);
        frame.extend([0; 4]);
    }
    frame.resize(LEAST, 0);
    frame
}

/// The same behind a VLAN tag; 0 for none.
pub fn tagged(mac: Mac, vlan: u16) -> Vec<u8> {
    let mut frame = frame(mac);
    if vlan != 0 {
        let [high, low] = vlan.to_be_bytes();
        drop(frame.splice(12..12, [0x81, 0, high, low]));
    }
    frame
}

/// Most IP addresses of an endpoint that are announced.
const MOST_SAID: usize = 8;

/// All that says where an endpoint's declared addresses are: reverse ARP for each Ethernet address;
/// and where there is one, an ARP announcement (RFC 5227, section 3) or an unsolicited neighbour
/// advertisement for each IP address, for networks that follow those.
pub fn all(identity: &Identity) -> Vec<Vec<u8>> {
    let mut frames: Vec<Vec<u8>> = identity.macs.iter().map(|&mac| frame(mac)).collect();
    let &[mac] = &identity.macs[..] else { return frames };
    let v4 = identity.ipv4.iter().filter(|(_, length)| *length == 32);
    let v6 = identity.ipv6.iter().filter(|(_, length)| *length == 128);
    frames.extend(v4.take(MOST_SAID).map(|&(ip, _)| messages::arp_request(mac, ip, ip).bytes()));
    frames.extend(v6.take(MOST_SAID).map(|&(ip, _)| messages::unsolicited_advertisement(mac, ip).bytes()));
    frames
}

/// What asks an endpoint which groups it receives, of IPv4 and of IPv6.
pub fn queries() -> [Vec<u8>; 2] {
    // Locally administered, and nobody's: no answer goes there.
    const ASKS: Mac = Mac([2, b'L', b'V', 0, 0, 1]);
    [messages::igmp_query(ASKS).bytes(), messages::mld_query(ASKS).bytes()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_lies_behind_both_addresses() {
        let (plain, tagged) = (frame(face(7).1), tagged(face(7).1, 0x123));
        assert_eq!((&tagged[..12], &tagged[12..18]), (&plain[..12], &[0x81, 0, 1, 0x23, 0x80, 0x35][..]));
        assert_eq!((&tagged[16..], super::tagged(face(7).1, 0)), (&plain[12..], plain.clone()));
    }

    /// What is said at `now`, each with whose it is.
    fn said(announced: &mut Announced, here: &Faces, now: Instant) -> Vec<(u8, Whose)> {
        let mut all = Vec::new();
        announced.say(here, now, |mac, (_, whose)| {
            all.push((mac.0[5], whose));
            true
        });
        all
    }

    fn face(last: u8) -> Face {
        ("red".to_owned(), Mac([2, 0, 0, 0, 0, last]), None)
    }

    fn at(port: u32) -> (usize, Whose) {
        (0, Whose::Endpoint(PortId(port)))
    }

    /// A service with so many addresses.
    fn service(ips: u8) -> Faces {
        let ips = (1..=ips).map(|n| IpAddr::from([10, 0, 0, n])).collect();
        let face = ("red".to_owned(), Mac([2, 0, 0, 0, 0, 0]), Some((ServiceId(3), ips)));
        [(face, (0, Whose::Service(ServiceId(3))))].into()
    }

    /// Each is said five times with growing pauses, from when it came; who goes is not spoken of
    /// any more, and from the beginning when it returns.
    #[test]
    fn what_has_come_is_said_a_few_times() {
        let begin = Instant::now();
        let (one, both): (Faces, Faces) = ([(face(1), at(7))].into(), [(face(1), at(7)), (face(2), at(8))].into());
        let mut announced = Announced::default();
        let mut all = Vec::new();
        for ms in (0..3000).step_by(10) {
            // The second comes after 100 ms, goes after 400 and is here again from 2000 on.
            let here = if (100..400).contains(&ms) || ms >= 2000 { &both } else { &one };
            let now = begin + Duration::from_millis(ms);
            let next = announced.next();
            let due = said(&mut announced, here, now);
            assert!(due.is_empty() || ms == 100 || ms == 2000 || next.is_none_or(|next| next <= now));
            all.extend(due.into_iter().map(|(last, whose)| (ms, last, whose)));
        }
        let of = |last: u8| all.iter().filter(|said| said.1 == last).map(|said| said.0).collect::<Vec<_>>();
        assert_eq!(of(1), [0, 50, 200, 450, 800]);
        assert_eq!(of(2), [100, 150, 300, 2000, 2050, 2200, 2450, 2800]);
        assert!(all.iter().all(|&(_, last, whose)| whose == at(u32::from(last) + 6).1));
        assert_eq!(announced.next(), None);
    }

    /// A service is said again for as long as it is here, and anew with an address that it gets.
    #[test]
    fn a_service_is_not_forgotten() {
        let begin = Instant::now();
        let mut announced = Announced::default();
        let mut times = |from: u64, to: u64, here: &Faces| {
            let is_said = |ms: &u64| !said(&mut announced, here, begin + Duration::from_millis(*ms)).is_empty();
            (from..to).step_by(50).filter(is_said).collect::<Vec<_>>()
        };
        let first = times(0, 200_000, &service(1));
        assert_eq!(first, [0, 50, 200, 450, 800, 2_800, 8_800, 28_800, 88_800, 148_800]);
        assert_eq!(times(200_000, 201_000, &service(2)), [200_000, 200_050, 200_200, 200_450, 200_800]);
        assert!(times(201_000, 300_000, &Faces::new()).is_empty());
        assert_eq!(announced.next(), None);
    }

    /// What finds no room is said soon, and the rest as it would have been.
    #[test]
    fn what_could_not_be_said_is_said_again() {
        let (begin, here) = (Instant::now(), Faces::from([(face(1), at(7))]));
        let mut announced = Announced::default();
        announced.say(&here, begin, |_, _| false);
        assert_eq!(announced.next(), Some(begin + AGAIN));
        assert_eq!(said(&mut announced, &here, begin + AGAIN).len(), 1);
        assert_eq!(announced.next(), Some(begin + AGAIN + PAUSES[0]));
    }
}
