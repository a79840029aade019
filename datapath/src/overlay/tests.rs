//! Tests of the overlay's tables.

use super::*;
use proptest::prelude::*;

const RED: TenantId = TenantId(0);
const BLUE: TenantId = TenantId(3);

fn host(n: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, n])
}

fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

fn peer(hop: u8, tenants: &[TenantId]) -> Peer {
    Peer { next_hop: Some(mac(hop)), tenants: tenants.to_vec() }
}

/// Tables that are what `overlay` says, with both tenants in networks of their own.
fn tunnels(overlay: &Overlay) -> Tunnels {
    let mut tunnels = Tunnels::new(1);
    tunnels.attach(RED, Some(Attachment::Vxlan(5001)));
    tunnels.attach(BLUE, Some(Attachment::Vxlan(5002)));
    for change in overlay.changes_from(&Overlay::default()) {
        tunnels.change(&change).expect("every step fits");
    }
    tunnels
}

fn overlay() -> Overlay {
    Overlay {
        local: Some(Vtep { address: host(1), mac: mac(1) }),
        peers: [(host(2), peer(2, &[RED, BLUE])), (host(3), peer(3, &[RED]))].into(),
        remotes: [((RED, mac(20)), host(2)), ((RED, mac(30)), host(3)), ((BLUE, mac(20)), host(2))].into(),
    }
}

/// What the tables say of a tenant: its hosts, the tunnel to each address, and whether each host
/// has it.
type Answer = (Vec<IpAddr>, Vec<Option<Tunnel>>, Vec<bool>);

/// What the tables say of everything that could be asked.
fn answers(tunnels: &Tunnels) -> [Answer; 2] {
    [RED, BLUE].map(|tenant| {
        let mut peers: Vec<_> = tunnels.peers_of(tenant).iter().filter_map(|&peer| tunnels.address(peer)).collect();
        peers.sort_unstable();
        let to = (0..=40).map(|n| tunnels.find(tenant, mac(n)).and_then(|peer| tunnels.to(tenant, peer)));
        let has = (0..=8).map(|n| tunnels.host_with(host(n), tenant).is_some());
        (peers, to.collect(), has.collect())
    })
}

#[test]
fn an_address_is_at_its_host_and_only_there() {
    let tunnels = tunnels(&overlay());
    let to = |tenant, n| tunnels.find(tenant, mac(n)).and_then(|peer| tunnels.to(tenant, peer));
    let tunnel = |n, vni| Tunnel { from: (host(1), mac(1)), to: (host(n), mac(n)), vni };
    assert_eq!(to(RED, 20), Some(tunnel(2, 5001)));
    assert_eq!(to(RED, 30), Some(tunnel(3, 5001)));
    assert_eq!(to(BLUE, 20), Some(tunnel(2, 5002)));
    assert_eq!(to(BLUE, 30), None, "another tenant's");
    assert_eq!((tunnels.peers_of(RED).len(), tunnels.peers_of(BLUE).len()), (2, 1));
    let has = |n, tenant| tunnels.host_with(host(n), tenant).is_some();
    assert!(has(3, RED) && !has(3, BLUE) && !has(4, RED));
    assert_eq!((tunnels.tenant_of(5002), tunnels.tenant_of(5003)), (Some(BLUE), None));
}

#[test]
fn what_waits_for_a_host_does_not_go_to_who_has_its_place() {
    let mut tunnels = tunnels(&overlay());
    let before = tunnels.find(RED, mac(30)).expect("there");
    tunnels.change(&OverlayChange::Remote(RED, mac(30), None)).expect("there");
    tunnels.change(&OverlayChange::Peer(host(3), None)).expect("nothing is there any more");
    assert_eq!((tunnels.to(RED, before), tunnels.address(before)), (None, None));
    tunnels.change(&OverlayChange::Peer(host(4), Some(peer(4, &[RED])))).expect("room");
    tunnels.change(&OverlayChange::Remote(RED, mac(30), Some(host(4)))).expect("there");
    assert_eq!(tunnels.to(RED, before), None, "the place is another's");
    let after = tunnels.find(RED, mac(30)).and_then(|peer| tunnels.to(RED, peer)).expect("a tunnel");
    assert_eq!(after.to, (host(4), mac(4)));
}

#[test]
fn no_tunnel_without_a_next_hop_or_an_end_here() {
    let mut tunnels = tunnels(&overlay());
    let peer = tunnels.find(RED, mac(20)).expect("there");
    let unresolved = Peer { next_hop: None, tenants: vec![RED] };
    tunnels.change(&OverlayChange::Peer(host(2), Some(unresolved))).expect("there");
    assert_eq!((tunnels.find(RED, mac(20)), tunnels.to(RED, peer)), (Some(peer), None));
    assert_eq!(tunnels.peers_of(BLUE), [], "it has this tenant no more");
    let other = tunnels.find(RED, mac(30)).expect("there");
    tunnels.change(&OverlayChange::Local(None)).expect("always");
    assert_eq!(tunnels.to(RED, other), None);
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut tunnels = tunnels(&overlay());
    let refusals = [
        (OverlayChange::Remote(RED, mac(9), Some(host(9))), ChangeError::UnknownPeer(host(9))),
        (OverlayChange::Remote(RED, mac(9), None), ChangeError::Vacant(0)),
        (OverlayChange::Peer(host(9), None), ChangeError::UnknownPeer(host(9))),
        (OverlayChange::Peer(host(2), None), ChangeError::PeerInUse(host(2))),
        (OverlayChange::Peer(host(9), Some(peer(9, &[TenantId(1 << 20)]))), ChangeError::NoSuchSlot(1 << 20)),
    ];
    let before = answers(&tunnels);
    for (change, error) in refusals {
        assert_eq!(tunnels.change(&change), Err(error));
    }
    assert_eq!(answers(&tunnels), before, "nothing was done");
    assert_eq!(tunnels.check(RED, Attachment::Vxlan(5002)), Err(ChangeError::VniInUse(5002, BLUE)));
    assert_eq!(tunnels.check(RED, Attachment::Vxlan(0)), Err(ChangeError::BadVni(0)));
    assert_eq!(tunnels.check(RED, Attachment::Vxlan(1 << 24)), Err(ChangeError::BadVni(1 << 24)));
    assert_eq!(tunnels.check(RED, Attachment::Vxlan(5001)), Ok(()));
}

#[test]
fn hosts_and_addresses_have_bounds() {
    let mut tunnels = Tunnels::new(1);
    let address = |n: usize| IpAddr::from((0x0a00_0000 + n as u32).to_be_bytes());
    for n in 0..MOST_PEERS {
        tunnels.change(&OverlayChange::Peer(address(n), Some(peer(1, &[])))).expect("room");
    }
    let one_more = OverlayChange::Peer(address(MOST_PEERS), Some(peer(1, &[])));
    assert_eq!(tunnels.change(&one_more), Err(ChangeError::OverlayFull));
    let remote = |n: usize| {
        let [a, b, c, d] = (n as u32).to_be_bytes();
        OverlayChange::Remote(RED, Mac([2, 0, a, b, c, d]), Some(address(n % MOST_PEERS)))
    };
    for n in 0..MOST_REMOTES {
        tunnels.change(&remote(n)).expect("room");
    }
    assert_eq!(tunnels.change(&remote(MOST_REMOTES)), Err(ChangeError::OverlayFull));
    tunnels.change(&remote(0)).expect("it is there already");
}

/// All hosts for others, with the addresses at them moving: where one table has no room for both,
/// the old go first.
#[test]
fn full_tables_change_step_by_step() {
    let full = |from: usize| {
        let address = |n: usize| IpAddr::from((0x0a00_0000 + (from + n) as u32).to_be_bytes());
        Overlay {
            local: None,
            peers: (0..MOST_PEERS).map(|n| (address(n), peer(1, &[RED]))).collect(),
            remotes: (0..40).map(|n| ((RED, mac(n)), address(n.into()))).collect(),
        }
    };
    let mut changed = tunnels(&Overlay::default());
    let mut last = Overlay::default();
    for from in [0, 1, MOST_PEERS, 20] {
        let next = full(from);
        for change in next.changes_from(&last) {
            assert_eq!(changed.change(&change), Ok(()), "{change:?}");
        }
        assert_eq!(answers(&changed), answers(&tunnels(&next)));
        last = next;
    }
}

fn any_overlay() -> impl Strategy<Value = Overlay> {
    let tenants = prop::collection::vec(prop::sample::select(vec![RED, BLUE]), 0..3);
    let peers = prop::collection::btree_map(1..8u8, (prop::option::of(1..4u8), tenants), 0..6);
    let remotes = prop::collection::btree_map((any::<bool>(), 0..40u8), any::<prop::sample::Index>(), 0..30);
    (any::<bool>(), peers, remotes).prop_map(|(local, peers, remotes)| {
        let addresses: Vec<IpAddr> = peers.keys().map(|&n| host(n)).collect();
        let at = |(&(red, n), index): (&(bool, u8), &prop::sample::Index)| {
            let tenant = if red { RED } else { BLUE };
            (!addresses.is_empty()).then(|| ((tenant, mac(n)), *index.get(&addresses)))
        };
        Overlay {
            local: local.then_some(Vtep { address: host(1), mac: mac(1) }),
            remotes: remotes.iter().filter_map(at).collect(),
            peers: peers
                .into_iter()
                .map(|(n, (hop, tenants))| (host(n), Peer { next_hop: hop.map(mac), tenants }))
                .collect(),
        }
    })
}

proptest! {
    /// However it came to be so: the tables of an overlay that changed say what those of a new one
    /// say.
    #[test]
    fn changed_is_as_good_as_new(overlays in prop::collection::vec(any_overlay(), 1..5)) {
        let mut changed = tunnels(&Overlay::default());
        let mut last = Overlay::default();
        for overlay in overlays {
            for change in overlay.changes_from(&last) {
                prop_assert_eq!(changed.change(&change), Ok(()), "{:?}", change);
            }
            prop_assert_eq!(answers(&changed), answers(&tunnels(&overlay)));
            last = overlay;
        }
    }
}
