//! Addresses that were learned behind a bond are announced after a failover.

use super::*;
use std::collections::BTreeSet;

const TRUNK: EndpointId = EndpointId(3);
/// Of the first address behind it.
const FIRST: u8 = 100;
const ADDRESSES: u8 = 20;

/// A bond of two ports, and a trunk behind which addresses in VLAN 7 were learned. When that was.
fn bonded() -> (Bonds, datapath::units::Instant) {
    let mut bonds = Bonds::new();
    let untagged = Tenant { attachment: Attachment::Untagged, ..Tenant::default() };
    let trunk = Endpoint { trunk: true, max_learned: 64, ..Endpoint::new(TenantId(1), PortId(3)) };
    let changes = [
        Change::Endpoint(TRUNK, None),
        Change::Tenant(TenantId(1), Some(untagged)),
        Change::Endpoint(TRUNK, Some(trunk)),
    ];
    let mut edits: Vec<Edit> = changes.into_iter().map(|change| Edit::Change(0, change)).collect();
    let claims = [(0, Payer::Uplink), (1, Payer::Uplink), (3, Payer::Tenant(1))];
    let claim = |(n, payer)| (Backing::Device(n), Claim { switch: 0, payer, tenant_weight: 1, weight: 1 });
    edits.push(Edit::Claims(claims.into_iter().map(claim).collect()));
    bonds.worker.begin(edits).unwrap();
    let mode = datapath::bond::Mode::ActiveBackup;
    bonds.post(&control::bond::Settings { mode, ..Default::default() }, &[0, 1]);
    (0..2).for_each(|member| bonds.link(member, true));
    bonds.told();
    let now = bonds.worker.outside.now;
    let Worker { switch_slots, pool, .. } = &mut bonds.worker;
    let switch = &mut switch_slots[0].switch;
    for n in FIRST..FIRST + ADDRESSES {
        let frame = build::eth(mac(n), mac(250)).vlan(7).payload(vec![0; 46]).frame(pool).unwrap();
        assert_eq!(switch.rx(pool, now, PortId(3), frame), datapath::verdict::Verdict::Forwarded);
    }
    switch_slots[0].touched = true;
    (bonds, now)
}

/// For how long each is known yet, as it was when they were learned.
fn known(bonds: &Bonds, then: datapath::units::Instant) -> Vec<(Mac, u64)> {
    let learned = bonds.worker.switch_slots[0].switch.learned_by(then, TRUNK, 64).1;
    learned.map(|one| (one.mac, one.left_ns)).collect()
}

#[test]
fn a_failover_announces_what_is_behind_a_trunk_with_its_tag() {
    let (mut bonds, then) = bonded();
    let mut pool = Pool::new(PoolLimits::default());
    bonds.rounds(&mut pool, 0);
    let before = known(&bonds, then);
    assert_eq!(before.len(), usize::from(ADDRESSES));
    bonds.link(0, false);
    let frames = bonds.worker.switch_slots[0].switch.frames();
    assert_eq!(bonds.told(), ["0 down"]);
    let announced = bonds.worker.switch_slots[0].switch.frames() - frames;
    assert!((1..=8).contains(&announced), "{announced} in a round");
    let (mut said, mut count) = (BTreeSet::new(), 0);
    for _ in 0..200 {
        let Worker { wake, seats, .. } = &mut bonds.worker;
        wake.wait(Some(0), |device| seats.wake(Backing::Device(device)));
        bonds.worker.do_what_is_due();
        bonds.worker.take_a_turn();
        bonds.worker.pump();
        let mut frames = Vec::new();
        let _ = bonds.far[1].rx(&mut pool, FRAMES, &mut frames);
        for frame in frames {
            let bytes = pool.bytes(&frame);
            if bytes[..6] == [0xff; 6] && bytes[12..18] == [0x81, 0, 0, 7, 0x80, 0x35] {
                said.insert(bytes[11]);
                count += 1;
            }
            pool.free(frame);
        }
    }
    assert_eq!(said, (FIRST..FIRST + ADDRESSES).collect());
    assert_eq!(count, usize::from(ADDRESSES), "each once: num_grat_arp is 1");
    assert_eq!(known(&bonds, then), before, "they are remembered no longer than they were");
}
