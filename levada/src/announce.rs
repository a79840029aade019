//! Announcements: an endpoint that has come to this host says so, in its own name, so that switches between the hosts send what is for it here from
//! now on and not where it was.
//!
//! It is a reverse ARP request to everybody, as QEMU sends it when a machine has moved: switches learn from its source address, and nobody
//! answers (RFC 903). It goes the way of the endpoint's own frames, through the guard and under its limits.

use control::plan::Plan;
use datapath::program::{Attachment, PortId};
use datapath::wire::Mac;
use std::collections::BTreeMap;

/// Shortest frame without its check sequence, in bytes (IEEE 802.3).
const LEAST: usize = 60;
/// Protocol number of reverse ARP.
const RARP: u16 = 0x8035;

/// An address that an endpoint has in its tenant, and where its frames enter: which switch, and which port.
pub type Faces = BTreeMap<(String, Mac), (usize, PortId)>;

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
    // Ethernet and IPv4 addresses, of 6 and 4 bytes; a reverse request; both ends are the endpoint, and say no IPv4 address.
    frame.extend([0, 1, 8, 0, 6, 4, 0, 3]);
    for _ in 0..2 {
        frame.extend(mac.0);
        frame.extend([0; 4]);
    }
    frame.resize(LEAST, 0);
    frame
}
