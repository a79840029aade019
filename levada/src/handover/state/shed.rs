//! What of a state is left out where there is more than can be read in time: addresses that were
//! seen outside, which strangers choose, and learned ones. They are seen and learned again; what
//! else there is cannot be had again, and is bounded by itself.
//!
//! Learned addresses come first, which endpoints' `max_learned` bounds: one that is left out could
//! not be learned again while its network is crowded. Those outside have the rest. Of it each
//! network has as much as any other, and each endpoint: who has less leaves the rest to the others.
//! What was seen last stays. What is outside and left out is not to be had by an endpoint either:
//! its network is crowded for as long as it would have been known.

use super::{MESSAGE_BYTES, RECORDS};
use control::plan::{Plan, SwitchPlan};
use datapath::program::TenantId;
use datapath::service::ConnectionState;
use datapath::switch::{Crowded, SeenOutside, State as Known};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What addresses take at most: reading more would take a good part of the time for which the old
/// process waits.
const ADDRESSES: u64 = 16 << 20;
/// About what a tenant, an endpoint, a service and a backend take, with long names and large
/// numbers.
const TENANT: u64 = 1 << 10;
const ENDPOINT: u64 = 3 << 10;
const SERVICE: u64 = 1 << 10;
const BACKEND: u64 = 400;
/// What a held address takes, a pair limit, and a learned address.
const HELD: u64 = 90;
const PAIR: u64 = 90;
const LEARNED: u64 = 48;
/// What is kept free for what else there is.
const FREE: u64 = 4 << 20;

/// Addresses of one kind in one network: the number of its switch, whose it is, and whether they
/// are IP addresses.
type Lane = (u32, Option<TenantId>, bool);

/// What may stay of a lane, in bytes, and for how long the longest of what does not would have been
/// known.
#[derive(Default)]
struct Room {
    left: u64,
    lost_ns: u64,
}

/// Leaves out what is too much. How many addresses that were.
pub(super) fn shed(plan: &Plan, known: &mut [Known]) -> usize {
    let room = u64::from(MESSAGE_BYTES).saturating_sub(FREE + essential(known)).min(ADDRESSES);
    shed_to(plan, known, room)
}

fn shed_to(plan: &Plan, known: &mut [Known], room: u64) -> usize {
    let mut lanes: BTreeMap<Lane, u64> = BTreeMap::new();
    for (number, switch) in plan.switches.iter() {
        for seen in known.get(number as usize).into_iter().flat_map(|known| &known.outside) {
            *lanes.entry(lane_of(number, seen)).or_default() += outside_bytes(switch, seen);
        }
    }
    let (taken, left_out) = shed_learned(known, room);
    left_out + shed_outside(plan, known, lanes, room - taken)
}

/// What learned addresses take then, and how many were left out.
fn shed_learned(known: &mut [Known], room: u64) -> (u64, usize) {
    let endpoints = known.iter().flat_map(|known| &known.endpoints);
    let wanted: Vec<u64> = endpoints.map(|(_, state)| state.learned.len() as u64 * LEARNED).collect();
    let most = usize::try_from(level(wanted, room) / LEARNED).unwrap_or(usize::MAX);
    let (mut taken, mut left_out) = (0, 0);
    for (_, state) in known.iter_mut().flat_map(|known| &mut known.endpoints) {
        left_out += state.learned.len().saturating_sub(most);
        // The newest are the first.
        state.learned.truncate(most);
        taken += state.learned.len() as u64 * LEARNED;
    }
    (taken, left_out)
}

/// How many addresses outside were left out, of which each lane has so many bytes.
fn shed_outside(plan: &Plan, known: &mut [Known], lanes: BTreeMap<Lane, u64>, room: u64) -> usize {
    let most = level(lanes.values().copied().collect(), room);
    if most == u64::MAX {
        return 0;
    }
    let mut rooms: BTreeMap<Lane, Room> =
        lanes.into_keys().map(|lane| (lane, Room { left: most, lost_ns: 0 })).collect();
    let mut left_out = 0;
    for (number, switch) in plan.switches.iter() {
        let Some(known) = known.get_mut(number as usize) else { continue };
        let before = known.outside.len();
        // In each lane the newest are the first.
        known.outside.retain(|seen| {
            let room = rooms.entry(lane_of(number, seen)).or_default();
            let left = room.left.checked_sub(outside_bytes(switch, seen));
            room.left = left.unwrap_or(0);
            if left.is_none() {
                room.lost_ns = room.lost_ns.max(seen.left_ns);
            }
            left.is_some()
        });
        left_out += before - known.outside.len();
    }
    for ((number, tenant, is_ip), room) in rooms.into_iter().filter(|(_, room)| room.lost_ns > 0) {
        if let Some(known) = known.get_mut(number as usize) {
            crowd(known, tenant, is_ip, room.lost_ns);
        }
    }
    left_out
}

fn crowd(known: &mut Known, tenant: Option<TenantId>, is_ip: bool, for_ns: u64) {
    let at = known.crowded.iter().position(|crowded| crowded.tenant == tenant).unwrap_or_else(|| {
        known.crowded.push(Crowded { tenant, macs_ns: 0, ips_ns: 0 });
        known.crowded.len() - 1
    });
    let crowded = &mut known.crowded[at];
    let ns = if is_ip { &mut crowded.ips_ns } else { &mut crowded.macs_ns };
    *ns = for_ns.max(*ns);
}

fn lane_of(switch: u32, seen: &SeenOutside) -> Lane {
    (switch, seen.tenant, seen.address.is_some())
}

/// About what the rest takes.
fn essential(known: &[Known]) -> u64 {
    let tenants = known.iter().map(|known| known.tenants.len() as u64 * TENANT);
    let endpoints = known.iter().flat_map(|known| &known.endpoints);
    let endpoints =
        endpoints.map(|(_, state)| ENDPOINT + state.held.len() as u64 * HELD + state.pairs.len() as u64 * PAIR);
    let record = (ConnectionState::BYTES as u64 * 4).div_ceil(3);
    let services = || known.iter().flat_map(|known| &known.services).map(|(_, state)| state);
    let records: u64 = services().map(|s| (s.connections.len() + s.clients.len() + s.turns.len()) as u64).sum();
    let services = services().map(|state| SERVICE + state.backends.len() as u64 * BACKEND);
    let unchanged = known.iter().map(|known| known.vcc_unchanged.len() as u64 * 4 / 3);
    tenants.chain(endpoints).chain(services).chain(unchanged).sum::<u64>() + records.min(RECORDS as u64) * record
}

/// What an address that was seen outside takes.
fn outside_bytes(switch: &SwitchPlan, seen: &SeenOutside) -> u64 {
    let name = seen.tenant.map_or(0, |id| switch.tenants.get(id.0).map_or(0, String::len));
    let address = match seen.address {
        None => 0,
        Some((IpAddr::V4(_), _)) => 20,
        Some((IpAddr::V6(_), _)) => 44,
    };
    88 + name as u64 + address
}

/// The most that each may have of `room`, so that together they have no more than that.
fn level(mut wanted: Vec<u64>, mut room: u64) -> u64 {
    wanted.sort_unstable();
    let mut left = wanted.len() as u64;
    for one in wanted {
        if one > room / left {
            return room / left;
        }
        (room, left) = (room - one, left - 1);
    }
    u64::MAX
}

#[cfg(test)]
mod tests {
    use super::super::outside::outside_out;
    use super::*;
    use datapath::program::EndpointId;
    use datapath::switch::{EndpointState, Learned};
    use datapath::wire::Mac;

    const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::BROADCAST);

    fn seen(tenant: u32, left_ns: u64, address: Option<IpAddr>) -> SeenOutside {
        let address = address.map(|ip| (ip, false));
        SeenOutside { tenant: Some(TenantId(tenant)), mac: Mac([255; 6]), address, left_ns }
    }

    #[test]
    fn who_has_less_leaves_the_rest_to_others() {
        assert_eq!(level(vec![10, 100, 30], 200), u64::MAX);
        assert_eq!(level(vec![10, 100, 30], 100), 60);
        assert_eq!(level(vec![100; 4], 100), 25);
        assert_eq!(level(vec![1], 0), 0);
        assert_eq!(level(Vec::new(), 0), u64::MAX);
    }

    #[test]
    fn the_newest_of_each_network_stay_and_who_is_left_out_leaves_it_crowded() {
        let text = "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s\"\n[[switch.tenant]]\nname = \"a\"\n\
            [[switch.tenant.endpoint]]\nname = \"e\"\nport = \"tap://e\"\n[[switch.tenant]]\nname = \"b\"\n";
        let plan = control::load(text).plan.unwrap();
        let switch = datapath::switch::Switch::new(&plan.switches[0].program, 7).unwrap();
        let empty = switch.export(datapath::units::Instant(0));
        let learned = |left_ns| Learned { mac: Mac([2; 6]), vlan: 0, left_ns };
        let state = EndpointState { learned: (0..10).rev().map(learned).collect(), ..EndpointState::default() };
        let outside = (1..=100).rev().map(|left_ns| seen(0, left_ns, None));
        let outside = outside.chain((1..=3).rev().map(|left_ns| seen(0, left_ns, Some(V4))));
        let outside = outside.chain((1..=3).rev().map(|left_ns| seen(1, left_ns, None))).collect();
        let all = Known { endpoints: vec![(EndpointId(0), state)], outside, ..empty };
        let left = |room: u64| {
            let mut known = [all.clone()];
            let left_out = shed_to(&plan, &mut known, room);
            let [Known { endpoints, outside, crowded, .. }] = known;
            let of = |tenant, is_ip| {
                let of = move |seen: &&SeenOutside| (seen.tenant, seen.address.is_some()) == (Some(tenant), is_ip);
                outside.iter().filter(of).map(|seen| seen.left_ns)
            };
            let [a, b] = [TenantId(0), TenantId(1)];
            assert!(of(a, false).eq((1..=100).rev().take(of(a, false).count())));
            let outside = [of(a, false).count(), of(a, true).count(), of(b, false).count()];
            let crowded: Vec<_> = crowded.iter().map(|c| (c.tenant.unwrap().0, c.macs_ns, c.ips_ns)).collect();
            ((endpoints[0].1.learned.len(), outside, left_out), crowded)
        };
        assert_eq!(left(1 << 20), ((10, [100, 3, 3], 0), vec![]));
        // All but the many have what they need.
        let few = 10 * LEARNED + 3 * 109 + 3 * 89;
        assert_eq!(left(few + 20 * 89), ((10, [20, 3, 3], 80), vec![(0, 80, 0)]));
        assert_eq!(left(8 * LEARNED), ((8, [0, 0, 0], 108), vec![(0, 100, 3), (1, 3, 0)]));
        assert_eq!(left(0), ((0, [0, 0, 0], 116), vec![(0, 100, 3), (1, 3, 0)]));
    }

    #[test]
    fn addresses_take_no_more_than_is_reckoned() {
        let long = "f".repeat(30);
        let text = format!("[daemon]\nname = \"t\"\n[[switch]]\nname = \"s\"\n[[switch.tenant]]\nname = \"{long}\"\n");
        let plan = control::load(&text).plan.unwrap();
        for address in [None, Some(V4), Some(IpAddr::from([u16::MAX; 8]))] {
            let seen = seen(0, 300_000_000_000, address);
            let text = serde_json::to_vec(&outside_out(&plan.switches[0], &seen)).unwrap();
            // And a comma.
            let (takes, reckoned) = (text.len() as u64 + 1, outside_bytes(&plan.switches[0], &seen));
            assert!(takes <= reckoned && reckoned < takes + 24, "{takes}, not {reckoned}");
        }
        let learned = serde_json::to_vec(&([255_u8; 6], 4095_u16, 300_000_000_000_u64)).unwrap();
        assert!((learned.len() as u64) < LEARNED);
    }
}
