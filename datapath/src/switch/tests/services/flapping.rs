//! Backends that are well and ill by turns.

use super::checked::{after, checked, connect, open, run};
use super::*;
use crate::service::Ask;

/// How often the first backend falls in so many cycles, in each of which it is well for some
/// seconds and then ill for five.
fn falls(rig: &mut Rig, cycles: u32, well: u64) -> u64 {
    let before = stats(rig).falls;
    for _ in 0..cycles {
        let until = after(rig, well);
        run(rig, until, |_, bytes| open(bytes, ""));
        let until = after(rig, 5);
        run(rig, until, |to, bytes| if to == 2 { None } else { open(bytes, "") });
    }
    stats(rig).falls - before
}

fn stats(rig: &Rig) -> crate::service::BackendStats {
    rig.switch.service_backends(FIRST).next().expect("it is there").2
}

#[test]
fn a_backend_that_flaps_is_left_alone_until_it_is_well_for_longer() {
    for (well, most) in [(3, 8), (10, 14)] {
        let mut rig = checked(Ask::Port);
        let falls = falls(&mut rig, 20, well);
        assert!((2..=most).contains(&falls), "{falls} of 20, where it is well for {well} s");
        // It stays well: after 16 times the two checks at most.
        let until = after(&rig, 35);
        run(&mut rig, until, |_, bytes| open(bytes, ""));
        assert!(!stats(&rig).is_down);
        assert!((1..9).any(|port| connect(&mut rig, port) == 2));
    }
}

#[test]
fn a_backend_that_falls_now_and_then_is_up_after_two_checks() {
    let mut rig = checked(Ask::Port);
    assert_eq!(falls(&mut rig, 10, 60), 10);
    let until = after(&rig, 3);
    run(&mut rig, until, |_, bytes| open(bytes, ""));
    assert!(!stats(&rig).is_down);
}
