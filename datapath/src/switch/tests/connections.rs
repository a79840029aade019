//! What a queue's management does to those who begin a connection.

use crate::program::Endpoint;
use crate::switch::chaos::{MS, OUTSIDE, Rig, endpoint, ip, limited, mac, program};
use crate::verdict::Reason;
use crate::wire::build::eth;
use crate::wire::tcp_flags;
use std::net::Ipv4Addr;

/// A lost SYN costs a second. CoDel takes the segments beside it.
#[test]
fn a_queue_that_is_too_long_loses_segments_but_no_connection() {
    let mut rig = Rig::new(&program(&[Endpoint { share: limited(10), ..endpoint(0, 0) }]));
    let from = || eth(mac(0), mac(OUTSIDE)).ipv4(ip(), Ipv4Addr::new(10, 0, 0, 2));
    let (syn, data) = (from().tcp(1, 2, 3).flags(tcp_flags::SYN), from().tcp(1, 2, 3).payload(vec![0; 1400]));
    let mut begun = 0;
    for step in 0..4000 {
        rig.rx(1, &data);
        if step % 10 == 0 {
            rig.rx(1, &syn);
        }
        let end = rig.now.plus_ns(MS);
        while rig.now < end {
            while let Some((_, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
                begun += u32::from(rig.pool.bytes(&frame).len() < 100);
                rig.pool.free(frame);
            }
            rig.now = rig.switch.poll_timeout().unwrap_or(end).clamp(rig.now.plus_ns(1), end);
        }
    }
    assert!(rig.drops(0, Reason::Aqm) > 100, "{}", rig.drops(0, Reason::Aqm));
    assert_eq!(rig.drops(0, Reason::QueueFull), 0);
    assert!(begun >= 398, "{begun} of 400");
}
