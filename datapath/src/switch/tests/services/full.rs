//! The table of connections is full: what a trace says beforehand is what is done.

use super::*;

fn explained(rig: &mut Rig, port: u32, frame: &build::Build<'_>) -> Verdict {
    let frame = frame.frame(&mut rig.pool).expect("a buffer");
    let verdict = rig.switch.explain(&rig.pool, rig.now, PortId(port), &frame).verdict;
    rig.pool.free(frame);
    verdict
}

#[test]
fn a_trace_says_that_no_place_is_left() {
    let mut rig = rig(Policy::RoundRobin);
    rig.switch.change(&mut rig.pool, rig.now, Change::Connections(1024)).expect("it fits");
    let mut full = 0;
    for port in 1000..1600 {
        let syn = ask(port, SYN, (99, 0));
        let told = explained(&mut rig, 1, &syn);
        let (verdict, out) = rig.send_for_bytes(1, &syn);
        assert_eq!(told, verdict, "{port}");
        if verdict == dropped(Reason::ServiceFull) {
            full += 1;
            continue;
        }
        // Each opens, so none goes for another.
        let (to, _) = out[0];
        rig.send_for_bytes(to, &answer(to as u8, port, SYN_ACK, (499, 100)));
        rig.send_for_bytes(1, &ask(port, ACK, (100, 500)));
    }
    // One endpoint has half of what its tenant may have.
    assert_eq!(full, 600 - 512);
    // A segment in the middle of a connection that the table does not have.
    let middle = ask(2000, ACK, (700, 900));
    assert_eq!(explained(&mut rig, 1, &middle), rig.send_for_bytes(1, &middle).0);
    // After a minute one that is idle goes.
    rig.now = rig.now.plus_ns(61_000_000_000);
    let syn = ask(1599, SYN, (99, 0));
    assert_eq!((explained(&mut rig, 1, &syn), rig.send_for_bytes(1, &syn).0), (FORWARDED, FORWARDED));
}
