//! What agents say arrives late and out of order: guarantees hold under a flood, and limits end
//! after it.

use crate::fabric::{
    Again, BLUE, Flood, Host, RED, THREE, has_its_guarantee, hosts, is_held, narrow, nobody_is_limited,
};
use crate::testbed::{soon, turn};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SEED: u64 = 0x1234_5678_9abc_def1;
/// Longest delay.
const LATE: Duration = Duration::from_millis(10);
/// Most datagrams that are under way.
const MOST: usize = 4096;

/// What a host says to another goes through an address of its own, where it is held back for a time
/// that is drawn anew for each datagram.
struct Relay {
    /// How many came by, and how many of them were overtaken by a later one.
    passed: Arc<AtomicU64>,
    overtaken: Arc<AtomicU64>,
    _thread: Again,
}

/// The last part of the address at which `from` finds `to`.
fn found_at(from: u8, to: u8) -> u8 {
    100 + 10 * from + to
}

fn agent(last: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, last], 7370))
}

/// The way from one host to another, and what comes back on it.
struct Way {
    socket: UdpSocket,
    ends: [SocketAddr; 2],
    /// The latest that has left for each of the two.
    left: [u64; 2],
}

/// When it is due, its number, its way, and to which of its ends it goes.
type Late = Reverse<(Instant, u64, usize, usize, Vec<u8>)>;

impl Relay {
    fn new(fabric: &Host) -> Relay {
        let mut ways: Vec<Way> = Vec::new();
        for (from, to) in (1..=3).flat_map(|from| (1..=3).map(move |to| (from, to))).filter(|(from, to)| from != to) {
            let own = found_at(from, to);
            fabric.bed.ip("fabric", &format!("address add 192.0.2.{own}/24 dev br0")).unwrap();
            let socket = fabric.bed.socket("fabric", agent(own));
            socket.set_nonblocking(true).unwrap();
            ways.push(Way { socket, ends: [agent(from), agent(to)], left: [0; 2] });
        }
        let (passed, overtaken) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let counts = (Arc::clone(&passed), Arc::clone(&overtaken));
        let mut waiting: BinaryHeap<Late> = BinaryHeap::new();
        let (mut state, mut number) = (SEED, 0);
        let thread = Again::new(move || {
            let now = Instant::now();
            for (index, way) in ways.iter().enumerate() {
                let mut buffer = [0; 2048];
                while let Ok((length, from)) = way.socket.recv_from(&mut buffer) {
                    let Some(end) = way.ends.iter().position(|end| *end == from) else { continue };
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    if waiting.len() < MOST {
                        number += 1;
                        let due = now + LATE.mul_f64((state >> 40) as f64 / (1u64 << 24) as f64);
                        waiting.push(Reverse((due, number, index, 1 - end, buffer[..length].to_vec())));
                    }
                }
            }
            while waiting.peek().is_some_and(|Reverse((due, ..))| *due <= now) {
                let Some(Reverse((_, number, index, end, bytes))) = waiting.pop() else { break };
                let way = &mut ways[index];
                let _ = way.socket.send_to(&bytes, way.ends[end]);
                counts.0.fetch_add(1, Ordering::Relaxed);
                counts.1.fetch_add(u64::from(number < way.left[end]), Ordering::Relaxed);
                way.left[end] = way.left[end].max(number);
            }
            std::thread::sleep(Duration::from_micros(200));
        });
        Relay { passed, overtaken, _thread: thread }
    }
}

#[test]
fn guarantees_hold_while_messages_are_late_and_out_of_order() {
    let Some(_turn) = turn("guarantees_hold_while_messages_are_late_and_out_of_order") else { return };
    let mut hosts: [Host; 3] = hosts(&THREE);
    narrow(&hosts, &[1]);
    for host in &mut hosts {
        for other in 1..=3 {
            let at = |last| format!("\naddress = \"192.0.2.{last}:7370\"");
            host.text = host.text.replace(&at(other), &at(found_at(host.number, other)));
        }
    }
    let relay = Relay::new(&hosts[0]);
    let daemons = hosts.each_ref().map(Host::start);
    for _ in 0..2 {
        let victim = Flood::new(&hosts[1], RED, 1);
        let flood = Flood::new(&hosts[2], BLUE, 5);
        soon("the flood is held", || is_held(&hosts[0], &hosts[2]));
        (0..3).for_each(|_| has_its_guarantee(&daemons));
        drop((victim, flood));
        soon("nobody is limited any more", || hosts.iter().all(nobody_is_limited));
    }
    let [passed, overtaken] = [&relay.passed, &relay.overtaken].map(|count| count.load(Ordering::Relaxed));
    println!("{passed} datagrams were held back, {overtaken} overtaken");
    assert!(passed > 100 && overtaken > 10, "{passed} held back, {overtaken} overtaken: the network was in order");
}
