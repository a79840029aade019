//! Announcements: an endpoint that has come to this host says so, in its own name, so that switches
//! between the hosts send what is for it here from now on and not where it was.
//!
//! It is a reverse ARP request to everybody, as QEMU sends it when a machine has moved: switches
//! learn from its source address, and nobody answers (RFC 903). It goes the way of the endpoint's
//! own frames, through the guard and under its limits, and may be lost like any of them. So it is
//! said again a few times ([`PAUSES`]), as long as the endpoint is here.

use control::plan::Plan;
use datapath::guard::Identity;
use datapath::program::{Attachment, PortId};
use datapath::wire::{Mac, build as messages};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Shortest frame without its check sequence, in bytes (IEEE 802.3).
const LEAST: usize = 60;
/// Protocol number of reverse ARP.
const RARP: u16 = 0x8035;

/// Between one announcement and the next: QEMU's (`announce-initial` 50 ms, `announce-step` 100 ms,
/// five `announce-rounds`).
const PAUSES: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(150), Duration::from_millis(250), Duration::from_millis(350)];

/// An address that an endpoint has in its tenant.
type Face = (String, Mac);
/// The same of all, and where their frames enter: which switch, and which port.
pub type Faces = BTreeMap<Face, (usize, PortId)>;

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
    /// Of those that are `here` now, the faces that are to be announced at `now`, with where. Who
    /// is not here any more will be announced anew if it comes back.
    pub fn due(&mut self, here: &Faces, now: Instant) -> Vec<(Mac, (usize, PortId))> {
        self.0.retain(|face, _| here.contains_key(face));
        let mut due = Vec::new();
        for (face, &at) in here {
            let said = self.0.entry(face.clone()).or_insert(Said { count: 0, next: Some(now) });
            if said.next.is_some_and(|next| next <= now) {
                said.next = PAUSES.get(said.count).map(|&pause| now + pause);
                said.count += 1;
                due.push((face.1, at));
            }
        }
        due
    }

    /// When something is due, if nothing changes.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().filter_map(|said| said.next).min()
    }
}

/// The declared addresses of a plan that are reached over an uplink.
pub fn faces(plan: &Plan) -> Faces {
    let mut faces = Faces::new();
    for (number, switch) in plan.switches.iter().filter(|(_, switch)| switch.program.uplink.is_some()) {
        for endpoint in switch.program.endpoints.values().filter(|endpoint| !endpoint.trunk) {
            let tenant = endpoint.tenant.0;
            let is_attached =
                switch.program.tenants.get(tenant).is_some_and(|tenant| tenant.attachment != Attachment::Isolated);
            let Some(name) = switch.tenants.get(tenant).filter(|_| is_attached) else { continue };
            for &mac in &endpoint.identity.macs {
                faces.insert((name.clone(), mac), (number as usize, endpoint.port));
            }
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

    /// Each is said five times with growing pauses, from when it came; who goes is not spoken of
    /// any more, and from the beginning when it returns.
    #[test]
    fn what_has_come_is_said_a_few_times() {
        let begin = Instant::now();
        let face = |last| ("red".to_owned(), Mac([2, 0, 0, 0, 0, last]));
        let (one, both): (Faces, Faces) =
            ([(face(1), (0, PortId(7)))].into(), [(face(1), (0, PortId(7))), (face(2), (0, PortId(8)))].into());
        let mut announced = Announced::default();
        let mut said = Vec::new();
        for ms in (0..3000).step_by(10) {
            // The second comes after 100 ms, goes after 400 and is here again from 2000 on.
            let here = if (100..400).contains(&ms) || ms >= 2000 { &both } else { &one };
            let now = begin + Duration::from_millis(ms);
            let next = announced.next();
            let due = announced.due(here, now);
            assert!(due.is_empty() || ms == 100 || ms == 2000 || next.is_none_or(|next| next <= now));
            said.extend(due.into_iter().map(|(mac, (_, port))| (ms, mac.0[5], port.0)));
        }
        let of = |last: u8| said.iter().filter(|said| said.1 == last).map(|said| said.0).collect::<Vec<_>>();
        assert_eq!(of(1), [0, 50, 200, 450, 800]);
        assert_eq!(of(2), [100, 150, 300, 2000, 2050, 2200, 2450, 2800]);
        assert!(said.iter().all(|&(_, last, port)| port == u32::from(last) + 6));
        assert_eq!(announced.next(), None);
    }
}
