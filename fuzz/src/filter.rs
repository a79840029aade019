//! Any text as a trace filter: no panic, bounded depth, and what is a filter judges any frame
//! without one either; its opposite says the opposite.

use control::filter::Filter;
use control::plan::Plan;
use datapath::frame::{Pool, PoolLimits};
use datapath::program::PortId;
use datapath::switch::Switch;
use datapath::units::Instant;
use datapath::wire::Mac;
use datapath::wire::build::eth;
use std::net::Ipv4Addr;

/// Names for filters to find.
const CONFIG: &str = "[daemon]\nname = \"demo\"\n[[switch]]\nname = \"s1\"\n[[switch.tenant]]\nname = \"red\"\n\
    [[switch.tenant.endpoint]]\nname = \"red1\"\nport = \"tap://red1\"\nmac = \"02:00:00:00:00:01\"\n";

/// `data` is a filter.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let plan: Plan = control::load(CONFIG).plan.expect("a good configuration");
    let Ok(filter) = Filter::parse(text, &plan) else { return };
    let switch = Switch::new(&plan.switches[0].program, 1).expect("a sound program");
    let mut pool = Pool::new(PoolLimits { small: 2, medium: 0, large: 2 });
    let address = |n| Ipv4Addr::new(10, 0, 0, n);
    let frame = eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])).ipv4(address(1), address(2)).tcp(5000, 80, 1);
    let frame = frame.frame(&mut pool).expect("a buffer");
    let frame_trace = switch.explain(&pool, Instant(1), PortId(0), &frame);
    let said = filter.matches(0, &frame_trace);
    assert_ne!(said, Filter::Not(Box::new(filter)).matches(0, &frame_trace));
}
