//! The published workloads: equal transfers over a link that two servers share, balanced by the
//! real switch.
//!
//! Each transfer is a connection of one client: it is opened, asks, is answered, and closed, and
//! each of these segments goes through the switch. How long the answer takes is a fluid: the link
//! is shared alike by all that are answered, and transfers are equal, so they end in the order in
//! which they began. What the switch does of itself (it makes a client wait, or refuses it) is what
//! its client gets.

use datapath::frame::{Pool, PoolLimits};
use datapath::program::{PortId, Program};
use datapath::service::choose::Policy;
use datapath::service::{Backend, Service};
use datapath::switch::Switch;
use datapath::units::Instant;
use datapath::wire::build::{Build, eth};
use datapath::wire::{Ipv4, Tcp, parse, tcp_flags as flags};
use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;

use super::served::{CLIENT, SERVICE, WEB, backend, program, server_ends, service};

const SERVERS: u8 = 2;
const REQUEST: u32 = 50;
const ANSWER: u32 = 1000;
const NANOS: f64 = 1e9;
/// httperf's time-out: a client of its kind gives up when nothing comes for so long.
pub(super) const TIMEOUT_S: f64 = 10.0;
/// For how long a connection may wait at most, as the configuration has it.
const HOLD_NS: u64 = 120_000_000_000;

/// What is played.
pub(super) struct Setup {
    pub seed: u64,
    pub policy: Policy,
    /// Transfers that the link carries a second.
    pub link: f64,
    /// `max_connections` of each backend.
    pub most: Option<u32>,
    /// Connections that a server takes at most; it resets those beyond.
    pub places: usize,
}

/// What became of the transfers.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Seen {
    pub asked: u32,
    pub done: u32,
    /// By a reset.
    pub refused: u32,
    /// Those of which nothing came.
    pub unanswered: u32,
    /// Of those that are done, from the first SYN to the end, all together.
    pub total_s: f64,
    /// The longest from a SYN to its answer, how many of these were longer than [`TIMEOUT_S`]
    /// (clients here wait on), and how many waited at the switch at once.
    pub longest_wait_s: f64,
    pub waited_long: u32,
    pub most_waiting: u32,
    /// Transfers that a server had at once.
    pub most_open: usize,
}

impl Seen {
    /// The mean, where each that failed counts as one that took [`TIMEOUT_S`].
    pub fn mean_s(&self) -> f64 {
        (self.total_s + f64::from(self.refused + self.unanswered) * TIMEOUT_S) / f64::from(self.asked)
    }
}

/// A client's address and port.
type Client = (Ipv4Addr, u16);

/// A segment that came somewhere: flags, numbers, and bytes of payload.
#[derive(Clone, Copy)]
struct Segment {
    flags: u8,
    sequence: u32,
    ack: u32,
    len: u32,
}

/// A transfer that is being answered: the work at which it ends, whose it is, and who answers.
type Transfer = (f64, Client, u8);

struct Play {
    setup: Setup,
    switch: Switch,
    pool: Pool,
    now_s: f64,
    /// What each that is being answered has had since the beginning, in transfers.
    done_by_each: f64,
    under_way: VecDeque<Transfer>,
    /// When each asked that is not done.
    clients: HashMap<Client, f64>,
    /// Of each server, whom it serves.
    servers: Vec<HashMap<Client, ()>>,
    /// What left the switch and was not looked at: by port.
    out: VecDeque<(u8, Client, Segment)>,
    seen: Seen,
}

/// Plays transfers that are asked for at these times, in seconds.
pub(super) fn play(setup: Setup, times: impl Iterator<Item = f64>) -> Seen {
    let mut switch = Switch::new(&program_of(&setup), setup.seed).expect("a sound program");
    switch.set_service_key(setup.seed);
    let mut play = Play {
        setup,
        switch,
        pool: Pool::new(PoolLimits { small: 256, medium: 0, large: 8 }),
        now_s: 0.0,
        done_by_each: 0.0,
        under_way: VecDeque::new(),
        clients: HashMap::new(),
        servers: vec![HashMap::new(); usize::from(SERVERS)],
        out: VecDeque::new(),
        seen: Seen::default(),
    };
    play.run(times.peekable());
    play.seen
}

fn program_of(setup: &Setup) -> Program {
    let limited = |n: u8| Backend { max_connections: setup.most, ..backend(n) };
    let backends = (0..SERVERS).map(limited).collect();
    program(Service { backends, hold_ns: HOLD_NS, ..service(setup.policy, SERVERS) }, SERVERS)
}

impl Play {
    fn run(&mut self, mut times: std::iter::Peekable<impl Iterator<Item = f64>>) {
        loop {
            let each = self.setup.link / self.under_way.len().max(1) as f64;
            let ends = self.under_way.front().map(|(end, ..)| self.now_s + (end - self.done_by_each) / each);
            let comes = times.peek().copied();
            let at = match (ends, comes) {
                (Some(ends), Some(comes)) => ends.min(comes),
                (Some(at), None) | (None, Some(at)) => at,
                (None, None) => break,
            };
            if !self.under_way.is_empty() {
                self.done_by_each += (at - self.now_s) * each;
            }
            self.now_s = at;
            if comes == Some(at) {
                times.next();
                self.ask();
            } else if let Some((end, client, server)) = self.under_way.pop_front() {
                self.done_by_each = end;
                self.server_sends(server, client, flags::FIN | flags::ACK, (500, 100 + REQUEST), ANSWER);
            }
            self.settle();
            let waiting = self.switch.service_stats(WEB).map_or(0, |stats| stats.holding);
            self.seen.most_waiting = self.seen.most_waiting.max(waiting);
        }
        // Who still waits is refused at the end of `hold`.
        self.now_s += HOLD_NS as f64 / NANOS;
        self.settle();
        self.seen.unanswered = self.clients.len() as u32;
    }

    fn now(&self) -> Instant {
        Instant((self.now_s * NANOS) as u64 + HOLD_NS)
    }

    /// A transfer is asked for.
    fn ask(&mut self) {
        let number = self.seen.asked;
        self.seen.asked += 1;
        let [_, _, high, low] = (number / 60_000 + 1).to_be_bytes();
        let client = (Ipv4Addr::new(10, 1, high, low), 2000 + (number % 60_000) as u16);
        self.clients.insert(client, self.now_s);
        self.client_sends(client, flags::SYN, (99, 0), 0);
    }

    /// Everything that follows from what was sent.
    fn settle(&mut self) {
        self.drain();
        while let Some((port, client, segment)) = self.out.pop_front() {
            match port.checked_sub(1) {
                None => self.client_gets(client, segment),
                Some(server) => self.server_gets(server, client, segment),
            }
        }
    }

    fn client_gets(&mut self, client: Client, segment: Segment) {
        let Some(&came_s) = self.clients.get(&client) else { return };
        if segment.flags & flags::RST != 0 {
            self.clients.remove(&client);
            self.seen.refused += 1;
        } else if segment.flags & flags::SYN != 0 {
            let wait_s = self.now_s - came_s;
            self.seen.longest_wait_s = self.seen.longest_wait_s.max(wait_s);
            self.seen.waited_long += u32::from(wait_s > TIMEOUT_S);
            self.client_sends(client, flags::ACK, (100, 500), 0);
            self.client_sends(client, flags::ACK, (100, 500), REQUEST);
        } else if segment.flags & flags::FIN != 0 && segment.len == ANSWER {
            self.clients.remove(&client);
            self.seen.done += 1;
            self.seen.total_s += self.now_s - came_s;
            let next = (segment.ack, segment.sequence + ANSWER + 1);
            self.client_sends(client, flags::FIN | flags::ACK, next, 0);
        }
    }

    fn server_gets(&mut self, server: u8, client: Client, segment: Segment) {
        let own = &mut self.servers[usize::from(server)];
        if segment.flags & flags::SYN != 0 {
            if own.len() >= self.setup.places {
                return self.server_sends(server, client, flags::RST | flags::ACK, (0, 100), 0);
            }
            own.insert(client, ());
            self.seen.most_open = self.seen.most_open.max(own.len());
            self.server_sends(server, client, flags::SYN | flags::ACK, (499, 100), 0);
        } else if !own.contains_key(&client) {
            if segment.flags & flags::RST == 0 {
                self.server_sends(server, client, flags::RST, (segment.ack, 0), 0);
            }
        } else if segment.flags & flags::RST != 0 {
            own.remove(&client);
            self.under_way.retain(|&(_, other, _)| other != client);
        } else if segment.flags & flags::FIN != 0 {
            own.remove(&client);
            self.server_sends(server, client, flags::ACK, (segment.ack, segment.sequence + 1), 0);
        } else if segment.len == REQUEST {
            self.under_way.push_back((self.done_by_each + 1.0, client, server));
        }
    }

    fn client_sends(&mut self, (ip, port): Client, bits: u8, (sequence, ack): (u32, u32), len: u32) {
        let tcp = eth(CLIENT, SERVICE.0).ipv4(ip, SERVICE.1).tcp(port, 80, sequence);
        let tcp = if bits & flags::ACK == 0 { tcp } else { tcp.ack(ack, 1000) };
        self.send(0, &tcp.flags(bits).payload(vec![1; len as usize]));
    }

    fn server_sends(&mut self, server: u8, client: Client, bits: u8, (sequence, ack): (u32, u32), len: u32) {
        let (mac, ip) = server_ends(server);
        let tcp = eth(mac, CLIENT).ipv4(ip, client.0).tcp(8080, client.1, sequence);
        let tcp = if bits & flags::ACK == 0 { tcp } else { tcp.ack(ack, 1000) };
        self.send(u32::from(server) + 1, &tcp.flags(bits).payload(vec![2; len as usize]));
    }

    fn send(&mut self, port: u32, frame: &Build<'_>) {
        let frame = frame.frame(&mut self.pool).expect("a buffer");
        let now = self.now();
        self.switch.rx(&mut self.pool, now, PortId(port), frame);
        self.drain();
    }

    /// What leaves the switch now.
    fn drain(&mut self) {
        let now = self.now();
        while let Some((to, frame)) = self.switch.tx(&mut self.pool, now) {
            let bytes = self.pool.bytes(&frame);
            let layout = parse(bytes).expect("well-formed");
            if let (Some(ip), Some(tcp)) = (Ipv4::of(bytes, &layout), Tcp::of(bytes, &layout)) {
                let len = layout.end - u32::from(layout.payload_offset);
                let segment = Segment { flags: tcp.flags(), sequence: tcp.sequence(), ack: tcp.acknowledgement(), len };
                let client = match to.0 {
                    0 => (ip.destination(), tcp.destination()),
                    _ => (ip.source(), tcp.source()),
                };
                self.out.push_back((to.0 as u8, client, segment));
            }
            self.pool.free(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(policy: Policy) -> Setup {
        Setup { seed: 1, policy, link: 100.0, most: None, places: 4000 }
    }

    #[test]
    fn one_at_a_time_takes_what_the_link_takes_for_it() {
        let seen = play(setup(Policy::RoundRobin), (0..100).map(|n| f64::from(n) * 0.1));
        assert_eq!((seen.asked, seen.done, seen.refused, seen.unanswered, seen.most_open), (100, 100, 0, 0, 1));
        assert!((seen.mean_s() - 0.01).abs() < 1e-9 && seen.longest_wait_s == 0.0, "{seen:?}");
    }

    #[test]
    fn all_at_once_end_together_or_one_after_the_other() {
        let together = play(setup(Policy::P2c), (0..100).map(|_| 0.0));
        assert!((together.mean_s() - 1.0).abs() < 0.02, "{together:?}");
        let held = play(Setup { most: Some(1), ..setup(Policy::P2c) }, (0..100).map(|_| 0.0));
        assert_eq!((held.done, held.most_open, held.most_waiting), (100, 1, 98));
        assert!((held.mean_s() - 0.51).abs() < 0.02 && held.longest_wait_s > 0.9, "{held:?}");
    }

    #[test]
    fn what_the_switch_or_a_server_refuses_is_counted_as_its_time_out() {
        // One client has 1622 waiting at most.
        let seen = play(Setup { most: Some(4), ..setup(Policy::P2c) }, (0..2000).map(|_| 0.0));
        assert_eq!((seen.most_waiting, seen.refused, seen.done), (1622, 2000 - 8 - 1622, 8 + 1622));
        assert!(seen.mean_s() > 10.0 * 370.0 / 2000.0 && seen.waited_long > 500, "{seen:?}");
        let seen = play(Setup { places: 30, ..setup(Policy::RoundRobin) }, (0..100).map(|_| 0.0));
        assert_eq!((seen.most_open, seen.done, seen.refused), (30, 60, 40));
    }
}
