use super::*;

/// A frame costs 1 us to be read, and 3 us more to be passed on.
const PRICES: Prices = Prices { read: Cost::new(1_000, 0), pass: Cost::new(3_000, 0) };

fn tenant(n: u32) -> TenantId {
    TenantId(n)
}

/// The frames that were passed on, of each (tenant, endpoint, frames a second) that sends evenly,
/// in a second of a ring that fills all the time.
fn second(intake: &mut Intake, senders: &[(u32, Option<u32>, u64)]) -> Vec<u64> {
    let mut passed = vec![0; senders.len()];
    // By steps of a microsecond, each sender by its rate.
    for step in 0..1_000_000u64 {
        for (sender, &(of, to, rate)) in senders.iter().enumerate() {
            let is_due = (step + 1) * rate / 1_000_000 > step * rate / 1_000_000;
            if is_due && intake.passes(Instant(step * 1_000), tenant(of), to.map(PortId), 60) {
                passed[sender] += 1;
            }
        }
    }
    passed
}

/// Tenants and endpoints of the same weight.
fn shared() -> Intake {
    let mut intake = Intake::default();
    intake.set_prices(Some(PRICES), 0);
    (0..3).for_each(|n| intake.set_weights((tenant(n % 2), 30_000), (PortId(n), 30_000)));
    intake
}

#[test]
fn while_the_ring_has_room_all_passes_and_nothing_is_counted() {
    let mut intake = Intake::default();
    assert!(!intake.is_awake());
    assert!((0..100_000).all(|n| intake.passes(Instant(n), tenant(0), Some(PortId(0)), 60)));
    assert!(intake.of_tenant.is_empty() && intake.of_port.is_empty());
}

#[test]
fn one_that_is_alone_has_everything() {
    assert_eq!(second(&mut shared(), &[(0, Some(0), 500_000)]), [500_000]);
}

#[test]
fn who_takes_little_loses_nothing_to_a_flood() {
    let passed = second(&mut shared(), &[(0, Some(0), 900_000), (1, Some(1), 10_000), (1, None, 1_000)]);
    assert_eq!(passed[1..], [10_000, 1_000], "{passed:?}");
    // The flood has as much as they had.
    assert!(passed[0] < 20_000, "{passed:?}");
}

#[test]
fn two_floods_share_by_weight() {
    let mut intake = shared();
    for (of, weight) in [(0, 30_000), (1, 10_000)] {
        intake.set_weights((tenant(of), weight), (PortId(of), 30_000));
    }
    let passed = second(&mut intake, &[(0, Some(0), 200_000), (1, Some(1), 50_000)]);
    assert!(passed[0].abs_diff(3 * passed[1]) < passed[0] / 20, "{passed:?}");
    assert!(passed[1] == 50_000 && passed[0] < 160_000, "{passed:?}");
}

#[test]
fn in_a_tenant_the_same_holds_of_its_endpoints() {
    for flood in [100_000, 900_000] {
        let (other, all) = ((0, Some(1), 5_000), (0, None, 500));
        let passed = second(&mut shared(), &[(0, Some(0), flood), other, all, (1, Some(2), 20_000)]);
        assert_eq!(passed[1..], [5_000, 500, 20_000], "the flooded endpoint's neighbour: {passed:?}");
        assert!(passed[0] < 30_000, "{passed:?}");
    }
}

#[test]
fn a_storm_in_a_tenants_network_leaves_its_endpoints_theirs() {
    let passed = second(&mut shared(), &[(0, None, 500_000), (0, Some(1), 5_000), (1, Some(2), 20_000)]);
    assert_eq!(passed[1..], [5_000, 20_000], "{passed:?}");
    assert!(passed[0] < 30_000, "{passed:?}");
}

#[test]
fn a_pause_neither_saves_nor_owes() {
    let mut intake = shared();
    let senders = [(0, Some(0), 900_000), (1, Some(1), 1_000)];
    second(&mut intake, &senders);
    let mut passed = |at| {
        let flood = |_: &u64| intake.passes(Instant(at), tenant(0), Some(PortId(0)), 60);
        (0..100).filter(flood).count()
    };
    assert!(passed(1_000_000_000) < 10, "it has had more than its share");
    assert_eq!(passed(1_000_000_000 + 3 * WINDOW_NS), 100, "but not lately");
}

#[test]
fn what_is_ahead_is_bounded_and_clocks_go_on_for_years() {
    let mut intake = shared();
    let long = Prices { read: Cost::new(1 << 40, 1 << 20), pass: Cost::new(1 << 40, 1 << 20) };
    intake.set_prices(Some(long), 0);
    for n in 0..100_000 {
        intake.passes(Instant(n), tenant(n as u32 % 2), Some(PortId(n as u32 % 2)), 65_536);
    }
    let ahead = intake.of_tenant.iter().map(|of| intake.tenants.ahead_ns(&of.tag)).max();
    assert!(ahead.is_some_and(|ns| ns <= MOST_NS), "{ahead:?}");
}
