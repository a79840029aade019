//! How long frames waited, by endpoint.

use super::*;
use crate::sojourn::Sojourn;

#[test]
fn waits_are_counted_by_endpoint_in_both_planes() {
    let slow = share(0, 12, 1);
    let mut rig = Rig::new(OrderKind::Fair, 1000, &[(share(0, 0, 1), &[slow, share(0, 0, 1)])]);
    rig.lengths = vec![vec![], vec![]];
    let counts = |rig: &Rig, endpoint: u32| rig.scheduler.sojourn(EndpointId(endpoint)).counts().to_vec();
    for plane in [Plane::Wire, Plane::Local] {
        rig.plane = plane;
        rig.lengths[0] = vec![1538];
        (0..300).for_each(|_| rig.feed(0));
        rig.lengths[0].clear();
        rig.run(SECOND, 1);
    }
    // At 12 Mbit/s a frame takes 1.025 ms, so the waits of each plane are spread over 0 to 300 ms,
    // but for the few that go at once.
    let waited = counts(&rig, 0);
    let upto = |end: u64| {
        let below = |&(bucket, _): &(usize, &u64)| Sojourn::end_ns(bucket).is_some_and(|ends| ends <= end);
        waited.iter().enumerate().filter(below).map(|(_, n)| n).sum::<u64>()
    };
    let dropped = [Plane::Wire, Plane::Local].map(|plane| rig.scheduler.tree(plane).lane(EndpointId(0)).aqm_drops());
    let served = 600 - dropped.iter().sum::<u64>();
    assert!(served > 570, "{served}");
    assert_eq!(waited.iter().sum::<u64>(), served, "what was dropped is not counted");
    for (power, ideal) in [(24, 2 * 16), (26, 2 * 65), (28, 2 * 262)] {
        let got = upto(1 << power);
        assert!(got.abs_diff(ideal) <= 2 * 12, "{got} frames below 2^{power} ns, not {ideal}");
    }
    let mean_us = rig.scheduler.sojourn(EndpointId(0)).total_us() / served;
    assert!((130_000..155_000).contains(&mean_us), "{mean_us}");
    assert_eq!(counts(&rig, 1), vec![0; waited.len()], "the neighbour sent nothing");
    // Whoever has the number next begins anew.
    rig.scheduler.remove_endpoint(&mut rig.pool, EndpointId(0));
    rig.scheduler.add_endpoint(EndpointId(0), &rig.program.endpoints[0]);
    assert_eq!(counts(&rig, 0), vec![0; waited.len()]);
}
