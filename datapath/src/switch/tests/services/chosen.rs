//! Who gets a connection: chosen at once, by few backends, or by asking all, it is the same one.

use super::*;
use crate::service::Key;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

/// What happens, to which backend or connection, and how.
type Step = (u8, u8, u8);

/// Backends: an endpoint that is a client too, three that are not, one outside.
fn backends(step: Step) -> Vec<Backend> {
    let all = [backend(1, Some(0)), backend(2, Some(1)), backend(3, Some(2)), backend(4, Some(3)), backend(50, None)];
    let chosen = all.into_iter().enumerate().filter(|(n, _)| step.1 & 1 << n != 0);
    let mut backends: Vec<Backend> = chosen.map(|(_, backend)| backend).collect();
    for (n, backend) in backends.iter_mut().enumerate() {
        backend.weight = u32::from((step.2 >> (n % 4)) & 3);
        backend.max_connections = (step.2 & 0x80 != 0).then_some(3);
    }
    backends
}

fn changed(step: Step) -> Service {
    let policy = [Policy::P2c, Policy::Maglev, Policy::P2c, Policy::LeastInflight][usize::from(step.0 % 4)];
    Service {
        affinity_ns: if step.0 & 4 != 0 { 60 * SECOND } else { 0 },
        slow_start_ns: if step.0 & 8 != 0 { 5 * SECOND } else { 0 },
        ..service(policy, backends(step))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn is_chosen_as_if_all_were_asked(steps in prop::collection::vec(any::<Step>(), 50..200)) {
        let mut rig = rig(Policy::P2c);
        let mut at_once = 0;
        for (port, step) in (1000..).zip(steps) {
            rig.now = rig.now.plus_ns(u64::from(step.1) * 4_000_000);
            if step.0 >= 224 {
                rig.change_service(changed(step));
                continue;
            }
            let outside = step.0 & 1 != 0;
            let client = if outside { 60 + step.1 % 8 } else { 1 };
            let key = Key { client: mapped(client), port, front: 0 };
            let from = (!outside).then_some(EndpointId(0));
            let wanted = rig.switch.services.would_choose(rig.now, &key, from, None);
            let numbers: Vec<_> = rig.switch.service_backends(FIRST).map(|(n, _, stats)| (n, stats.new)).collect();
            let syn = tcp((client, port), (100, 80), SYN, (99, 0));
            let (verdict, out) = match outside {
                true => rig.send_for_bytes(0, &syn.vlan(10)),
                false => rig.send_for_bytes(1, &syn),
            };
            let more = rig.switch.service_backends(FIRST).zip(&numbers).find(|((_, _, stats), before)| stats.new > before.1);
            prop_assert_eq!(more.map(|((n, ..), _)| n as u8), wanted, "{:?} {:?}", verdict, out);
            at_once += u32::from(wanted.is_some());
            // Backends 2 to 4 answer or refuse, so that some are busy and some ejected.
            if let Some((to @ 2..=4, _)) = out.first() {
                let flags = if step.2 & 3 == 0 { RST | ACK } else { SYN_ACK };
                let back = tcp((*to as u8, 8080), (client, port), flags, (499, 100));
                rig.send_for_bytes(*to, &back);
            }
        }
        prop_assert!(at_once > 0);
    }
}

fn mapped(n: u8) -> [u8; 16] {
    ip(n).to_ipv6_mapped().octets()
}
