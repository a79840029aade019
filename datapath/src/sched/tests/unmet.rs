//! Unmet time: none where the promise is kept, all of it where it is not.

use super::*;

/// The shortest stretch that counts, 2^27 ns, and twice that: what a reading may lag behind.
const STRETCH: u64 = 1 << 27;

impl Rig {
    fn unmet(&self, endpoint: u32) -> u64 {
        self.scheduler.tree(self.plane).endpoint_stats(EndpointId(endpoint)).unmet_ns
    }

    fn unmet_of_tenant(&self, tenant: u32) -> u64 {
        self.scheduler.tree(self.plane).tenant_stats(TenantId(tenant)).unmet_ns
    }

    /// Runs for `ns` in which `short` are short all the time, and nobody else ever.
    fn expect_unmet(&mut self, ns: u64, step: u64, short: &[u32]) {
        let before: Vec<u64> = (0..self.lengths.len() as u32).map(|e| self.unmet(e)).collect();
        // In parts: what is read is as of the last time that the loop came by.
        (0..100).for_each(|_| self.run(ns / 100, step));
        for (endpoint, before) in before.into_iter().enumerate() {
            let grown = self.unmet(endpoint as u32) - before;
            if short.contains(&(endpoint as u32)) {
                assert!(grown <= ns + STRETCH && grown + 2 * STRETCH >= ns, "endpoint {endpoint}: {grown} of {ns} ns");
            } else {
                assert_eq!(grown, 0, "endpoint {endpoint}");
            }
        }
    }
}

#[test]
fn a_promise_that_is_kept_leaves_none() {
    for order in EXACT {
        let all: [Share; 40] = std::array::from_fn(|n| share(5 + n as u64 % 3 * 5, 0, [1, 1000, 30][n / 3 % 3]));
        let sum = |shares: &[Share]| shares.iter().map(|share| share.guarantee.0 / MBIT).sum::<u64>();
        let (few, many) = all.split_at(7);
        let slow = [share(1, 0, 1), share(1, 2, 1), share(3, 3, 1)];
        let mut rig = Rig::new(
            order,
            400,
            &[(share(sum(few), 0, 1), few), (share(sum(many), 0, 5), many), (share(5, 0, 1), &slow)],
        );
        assert!(sum(&all) + 5 > 395, "all of the link is promised");
        for (n, lengths) in rig.lengths.iter_mut().enumerate() {
            *lengths = [vec![84], vec![1538], vec![84, 1538, 300]][n % 3].clone();
        }
        rig.expect_unmet(10 * SECOND, 1, &[]);
        // Some leave, and come again.
        rig.lengths[3].clear();
        rig.lengths[20].clear();
        rig.expect_unmet(SECOND, 1, &[]);
        rig.lengths[3] = vec![1538];
        rig.expect_unmet(SECOND, 1, &[]);
        assert_eq!([0, 1, 2].map(|tenant| rig.unmet_of_tenant(tenant)), [0; 3]);
    }
}

#[test]
fn a_loop_that_is_too_slow_shows() {
    for order in EXACT {
        let tenants =
            [(share(600, 0, 1), &[share(600, 0, 1)][..]), (share(300, 0, 1), &[share(300, 0, 1), share(0, 0, 1)])];
        let mut rig = Rig::new(order, 1000, &tenants);
        // It comes by every 200 us, and 100 us of it are made good: half of the rate is lost.
        rig.expect_unmet(2 * SECOND, 200_000, &[0, 1]);
        assert!([0, 1].iter().all(|&tenant| rig.unmet_of_tenant(tenant) + 2 * STRETCH > 2 * SECOND));
        // A tenth: neither enough nor clear at the first look.
        let mut rig = Rig::new(order, 1000, &tenants);
        rig.set_endpoint(1, share(20, 0, 1));
        rig.run(SECOND, 1);
        let (from, sent) = (rig.unmet(0), rig.sent[0]);
        rig.run(2 * SECOND, 135_000);
        let got = (rig.sent[0] - sent) * 8 / 2 / MBIT;
        assert!((500..580).contains(&got), "{got} Mbit/s of 600");
        assert!(rig.unmet(0) - from + 4 * STRETCH > 2 * SECOND);
    }
}

#[test]
fn who_does_not_want_is_not_short() {
    // Only the scheduler knows of a limit of the tenant that is below its endpoint's guarantee;
    // `control` refuses it.
    let mut rig =
        Rig::new(OrderKind::Fair, 1000, &[(share(0, 2, 1), &[share(10, 0, 1), share(0, 0, 1), share(1, 1, 1)])]);
    rig.lengths = vec![vec![1538], vec![], vec![]];
    rig.expect_unmet(4 * SECOND, 1, &[0]);
    // A burst that is gone within a stretch, again and again.
    let grown = rig.unmet(0);
    rig.lengths[0].clear();
    rig.run(SECOND, 1);
    let settled = rig.unmet(0);
    assert!(settled <= grown + STRETCH, "what waited went");
    for _ in 0..20 {
        rig.lengths[0] = vec![1538];
        (0..4).for_each(|_| rig.feed(0));
        rig.lengths[0].clear();
        rig.run(SECOND / 10, 1);
    }
    assert_eq!(rig.unmet(0), settled);
    // At its own limit it has what it was promised.
    rig.lengths[2] = vec![1538];
    rig.expect_unmet(4 * SECOND, 1, &[]);
}

#[test]
fn one_that_gets_nothing_at_all_shows_while_it_waits() {
    let mut rig =
        Rig::new(OrderKind::Fair, 10, &[(share(1, 0, 1), &[share(1, 0, 1)]), (share(0, 0, 1), &[share(0, 0, 1)])]);
    rig.run(SECOND, 1);
    assert_eq!(rig.unmet(0), 0);
    // The link stands still, and nothing is served any more.
    rig.set_link(Rate(1000));
    rig.expect_unmet(5 * SECOND, 1_000_000, &[0]);
    let so_far = rig.unmet(0);
    // Read again, it is not more; a guarantee that is taken away ends it, and what was counted
    // stays.
    assert_eq!(rig.unmet(0), so_far);
    rig.set_endpoint(0, share(0, 0, 1));
    assert!(rig.unmet(0) + STRETCH >= so_far && rig.unmet(0) <= so_far);
    rig.expect_unmet(5 * SECOND, 1_000_000, &[]);
}
