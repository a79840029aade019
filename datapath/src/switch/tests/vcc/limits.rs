//! Limits that congestion agents set at a sender: their queues mark what a translated guest sends.

use super::*;
use crate::pair::Toward;

/// Guest 1 on the first host, guest 2 on the second, and a cable between the hosts.
struct Hosts([Rig; 2]);

impl Hosts {
    fn new() -> Hosts {
        let host =
            |own| Rig::new(&[Attachment::Vlan(10)], &[(0, own)], |program| program.tenants[0].vcc = Mode::Dctcp.into());
        Hosts([1, 2].map(host))
    }

    fn pass_time(&mut self, ns: u64) {
        self.0.iter_mut().for_each(|rig| rig.now = rig.now.plus_ns(ns));
    }

    /// A guest sends, or something arrives by the cable.
    fn give(&mut self, host: usize, port: PortId, bytes: &[u8]) {
        let rig = &mut self.0[host];
        let frame = rig.pool.alloc_from(bytes).expect("a buffer");
        assert_eq!(rig.switch.rx(&mut rig.pool, rig.now, port, frame), FORWARDED);
    }

    /// What leaves now: what guests receive, by host.
    fn carry(&mut self) -> Vec<(usize, Vec<u8>)> {
        let mut received = Vec::new();
        loop {
            let before = received.len();
            let mut crossed = 0;
            for host in [0, 1] {
                let rig = &mut self.0[host];
                let mut left = Vec::new();
                while let Some((port, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
                    left.push((port, rig.pool.bytes(&frame).to_vec()));
                    rig.pool.free(frame);
                }
                for (port, bytes) in left {
                    if port == UPLINK {
                        self.give(1 - host, UPLINK, &bytes);
                        crossed += 1;
                    } else {
                        received.push((host, bytes));
                    }
                }
            }
            if crossed == 0 && received.len() == before {
                return received;
            }
        }
    }

    /// One frame of a handshake, and what the other guest receives.
    fn shake(&mut self, from: usize, frame: &build::Build<'static>) -> Segment {
        self.give(from, PortId(1), &frame.bytes());
        self.pass_time(MS);
        let received = self.carry();
        assert_eq!(received.len(), 1);
        assert_eq!(received[0].0, 1 - from);
        segment(&received[0].1)
    }
}

#[test]
fn what_the_queue_of_an_agents_limit_marks_is_told_to_the_switch_and_hidden_from_guests() {
    const PAYLOAD: u32 = 1200;
    const RATE: Rate = Rate(10_000_000);
    let mut hosts = Hosts::new();
    hosts.shake(0, &tcp((1, 7), (2, 80), SYN, (99, 0)));
    hosts.shake(1, &tcp((2, 80), (1, 7), SYN | ACK, (499, 100)));
    hosts.shake(0, &tcp((1, 7), (2, 80), ACK, (100, 500)));
    let Rig { switch, pool, now } = &mut hosts.0[0];
    switch.limit_pair(pool, *now, EndpointId(0), Toward::Address(mac(2)), Some(RATE)).expect("room");
    // The guest sends what its window allows.
    let (mut nxt, mut edge, mut lowest, mut arrived) = (100u32, 100 + 65_000, u32::MAX, 0u64);
    // CoDel marks more and more often until the queue is short: with DCTCP, which reduces little
    // for few marks, that takes seconds.
    let steps = 60_000;
    for step in 0..steps {
        while nxt + PAYLOAD <= edge {
            let data = tcp((1, 7), (2, 80), ACK, (nxt, 500)).payload(vec![0; PAYLOAD as usize]);
            hosts.give(0, PortId(1), &data.bytes());
            nxt += PAYLOAD;
        }
        for (host, bytes) in hosts.carry() {
            assert_eq!(shown(&bytes), (codes::NONE, ecn::NOT), "guest {} sees no ECN", host + 1);
            let segment = segment(&bytes);
            if host == 1 {
                hosts.give(1, PortId(1), &tcp((2, 80), (1, 7), ACK, (500, segment.end())).bytes());
                arrived += u64::from(segment.payload) * u64::from(step >= steps / 2);
            } else {
                lowest = lowest.min(segment.window.into());
                edge = edge.max(segment.ack + u32::from(segment.window));
            }
        }
        hosts.pass_time(MS / 10);
    }
    let [sender, receiver] = [0, 1].map(|host| hosts.0[host].counted(0).clone());
    assert!(receiver.hidden_marks > 0, "the limit's queue marks: {receiver:?}");
    assert!(sender.marked_bytes > 0 && sender.reductions > 0 && lowest < 65_000, "{lowest}: {sender:?}");
    assert_eq!(hosts.0.each_ref().map(|rig| rig.drops(0)), [vec![], vec![]], "it loses nothing");
    // In the second half. A frame has 82 bytes more on the wire, headers and tag included.
    let wire_bytes = arrived / u64::from(PAYLOAD) * u64::from(PAYLOAD + 82);
    let used = 1000 * wire_bytes / RATE.bytes_in(steps / 2 * MS / 10);
    assert!((980..=1010).contains(&used), "{used} of 1000 of the limit are used");
    let pair = hosts.0[0].switch.pairs(EndpointId(0)).next().expect("it is limited");
    assert!(pair.stats.marks > 0 && pair.stats.backlog_bytes < 40_000, "the window is lower than at first: {pair:?}");
}
