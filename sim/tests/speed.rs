//! The simulator is faster than real time: 20 endpoints on a link of 1 Gbit/s.

use datapath::units::Rate;
use sim::packet::Nic;
use sim::scenario::Options;
use sim::scenario::speed::measure;

#[test]
#[ignore = "the speed of the machine decides: run by name, with --release"]
fn twenty_endpoints_at_a_gigabit_are_faster_than_real_time() {
    let options = Options { seed: 1, seconds: 1, tells: false };
    for nic in [Nic::default(), Nic::PLAIN] {
        let speed = measure(&options, Rate(Rate::GBIT), nic).unwrap();
        println!("{nic:?}: {:.2} times real time, {:.0} ns a frame", speed.ratio, speed.ns_a_frame);
        assert!(speed.ratio > 1.0, "{nic:?}: {speed:?}");
    }
}
