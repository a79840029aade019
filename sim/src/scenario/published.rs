//! The published workloads: equal transfers over a link that two servers share, balanced by the
//! real switch.
//!
//! Each transfer is a connection of one client: it is opened, asks, is answered, and closed, and
//! each of these segments goes through the switch. How long the answer takes is a fluid: the link
//! is shared alike by all that are answered, and transfers are equal, so they end in the order in
//! which they began. What the switch does of itself (it makes a client wait, or refuses it) is what
//! its client gets. A server answers as many at once as it has workers; [`WhenFull`] says what
//! becomes of the others.

use datapath::frame::{Pool, PoolLimits};
use datapath::program::{PortId, Program};
use datapath::service::choose::{LOAD_ONE, Policy};
use datapath::service::{Backend, Service};
use datapath::switch::Switch;
use datapath::units::Instant;
use datapath::wire::build::{Build, eth};
use datapath::wire::{Ipv4, Tcp, parse, tcp_flags as flags};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::Ipv4Addr;

use super::served::{CLIENT, SERVICE, WEB, backend, program, server_ends, service};

const SERVERS: u8 = 2;
/// Workers of a server, as Debian's Apache has them.
pub(super) const WORKERS: usize = 150;
const REQUEST: u32 = 50;
const ANSWER: u32 = 1000;
const NANOS: f64 = 1e9;
/// httperf's time-out: a client of its kind gives up when nothing comes for so long.
pub(super) const TIMEOUT_S: f64 = 10.0;
/// For how long a connection may wait at most, as the configuration has it.
const HOLD_NS: u64 = 120_000_000_000;
/// What a client waits before it sends its SYN again, each time (RFC 6298: 1 s, then twice as
/// long). The next one would come behind its time-out.
const AGAIN_S: [f64; 3] = [1.0, 2.0, 4.0];
/// How often a server reports its load average of a minute, and what that keeps of itself each time
/// (Linux: `LOAD_FREQ`, `EXP_1`).
const REPORT_S: f64 = 5.0;
const LOAD_KEEPS: f64 = 1884.0 / 2048.0;

/// What a server does with a connection for which it has no worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WhenFull {
    /// It resets in answer to the SYN, so that the switch can ask another one.
    Refuses,
    /// Its kernel completes the handshake and resets behind it: nobody else can be asked.
    Resets,
    /// So many wait for a worker, in their order, with their handshake completed. SYNs beyond are
    /// dropped, as Linux does, and come again.
    Waits(usize),
}

/// What is played.
pub(super) struct Setup {
    pub seed: u64,
    pub policy: Policy,
    /// Transfers that the link carries a second.
    pub link: f64,
    /// Whether no link is shared, but each server carries its part of that.
    pub is_split: bool,
    /// `max_connections` of each backend.
    pub most: Option<u32>,
    /// Whether the switch heeds what it knows of the servers' health.
    pub heeds_health: bool,
    pub workers: usize,
    pub when_full: WhenFull,
}

impl Setup {
    /// As lb-hold has it side by side: nothing is limited but the link.
    pub fn new(seed: u64, policy: Policy, link: f64) -> Setup {
        Setup {
            seed,
            policy,
            link,
            is_split: false,
            most: None,
            heeds_health: true,
            workers: 4000,
            when_full: WhenFull::Refuses,
        }
    }
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
    /// The longest from a SYN to a worker, how many of these were longer than [`TIMEOUT_S`]
    /// (clients here wait on), and how many waited at the switch at once.
    pub longest_wait_s: f64,
    pub waited_long: u32,
    pub most_waiting: u32,
    /// Transfers that a server had at once.
    pub most_open: usize,
    /// Connections that each server took.
    pub taken: [u32; SERVERS as usize],
}

impl Seen {
    /// Refused, or not answered.
    pub fn failed(&self) -> u32 {
        self.refused + self.unanswered
    }

    /// The mean, where each that failed counts as one that took [`TIMEOUT_S`].
    pub fn mean_s(&self) -> f64 {
        (self.total_s + f64::from(self.failed()) * TIMEOUT_S) / f64::from(self.asked)
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

/// What is short, and shared alike by all that is under way there.
struct Link {
    /// Transfers that it carries a second.
    per_s: f64,
    /// What each that is under way has had since the beginning, in transfers.
    done_by_each: f64,
    under_way: VecDeque<Transfer>,
}

impl Link {
    /// What each has of it a second.
    fn each(&self) -> f64 {
        self.per_s / self.under_way.len().max(1) as f64
    }

    /// When the next transfer ends, if none comes.
    fn ends(&self, now_s: f64) -> Option<f64> {
        self.under_way.front().map(|(end, ..)| now_s + (end - self.done_by_each) / self.each())
    }

    fn carry(&mut self, seconds: f64) {
        if !self.under_way.is_empty() {
            self.done_by_each += seconds * self.each();
        }
    }
}

#[derive(Clone, Default)]
struct Server {
    /// Whose connections it has.
    clients: HashSet<Client>,
    /// Those of them that have asked and have no worker.
    backlog: VecDeque<Client>,
    /// Its load average.
    load: f64,
}

impl Server {
    /// Workers that are taken.
    fn busy(&self) -> usize {
        self.clients.len() - self.backlog.len()
    }
}

/// A client that is not done.
struct Asked {
    came_s: f64,
    /// How often its SYN was dropped.
    dropped: usize,
}

struct Play {
    setup: Setup,
    switch: Switch,
    pool: Pool,
    now_s: f64,
    links: Vec<Link>,
    clients: HashMap<Client, Asked>,
    servers: Vec<Server>,
    /// Who sends its SYN again, by when: as bits, which are in the order of the numbers as none is
    /// negative.
    again: BTreeSet<(u64, Client)>,
    /// What left the switch and was not looked at: by port.
    out: VecDeque<(u8, Client, Segment)>,
    seen: Seen,
}

/// Plays transfers that are asked for at these times, in seconds.
pub(super) fn play(setup: Setup, times: impl Iterator<Item = f64>) -> Seen {
    let mut switch = Switch::new(&program_of(&setup), setup.seed).expect("a sound program");
    switch.set_service_key(setup.seed);
    let servers = usize::from(SERVERS);
    let parts = if setup.is_split { servers } else { 1 };
    let per_s = setup.link / parts as f64;
    let link = |_| Link { per_s, done_by_each: 0.0, under_way: VecDeque::new() };
    let mut play = Play {
        setup,
        switch,
        pool: Pool::new(PoolLimits { small: 256, medium: 0, large: 8 }),
        now_s: 0.0,
        links: (0..parts).map(link).collect(),
        clients: HashMap::new(),
        servers: vec![Server::default(); servers],
        again: BTreeSet::new(),
        out: VecDeque::new(),
        seen: Seen::default(),
    };
    play.run(times.peekable());
    play.seen
}

fn program_of(setup: &Setup) -> Program {
    let limited = |n: u8| Backend { max_connections: setup.most, ..backend(n) };
    let backends = (0..SERVERS).map(limited).collect();
    let mut service = Service { backends, hold_ns: HOLD_NS, ..service(setup.policy, SERVERS) };
    if !setup.heeds_health {
        service.panic_ppm = 1_000_000;
    }
    program(service, SERVERS)
}

impl Play {
    fn run(&mut self, mut times: std::iter::Peekable<impl Iterator<Item = f64>>) {
        let is_told = matches!(self.setup.policy, Policy::Loadavg | Policy::LoadavgCorrected);
        let mut report_s = is_told.then_some(REPORT_S);
        loop {
            let ends = self.links.iter().enumerate().filter_map(|(n, link)| Some((link.ends(self.now_s)?, n)));
            let ends = ends.min_by(|a, b| a.0.total_cmp(&b.0));
            let comes = times.peek().copied();
            let again = self.again.first().map(|&(at, _)| f64::from_bits(at));
            let next = [comes, again, ends.map(|(at, _)| at)].into_iter().flatten().reduce(f64::min);
            let Some(next) = next else { break };
            let at = report_s.map_or(next, |report| report.min(next));
            self.links.iter_mut().for_each(|link| link.carry(at - self.now_s));
            self.now_s = at;
            if report_s == Some(at) {
                self.report();
                report_s = Some(at + REPORT_S);
            } else if comes == Some(at) {
                times.next();
                self.ask();
            } else if again == Some(at) {
                self.ask_again();
            } else if let Some((_, n)) = ends {
                self.end(n);
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

    /// Each server reports its load average: each worker that is taken counts as a task that runs.
    fn report(&mut self) {
        let now = self.now();
        for (n, server) in self.servers.iter_mut().enumerate() {
            server.load = server.load * LOAD_KEEPS + server.busy() as f64 * (1.0 - LOAD_KEEPS);
            self.switch.report_load(now, WEB, n, (server.load * LOAD_ONE as f64) as u64);
        }
    }

    /// The first transfer of a link ends.
    fn end(&mut self, link: usize) {
        let link = &mut self.links[link];
        if let Some((end, client, server)) = link.under_way.pop_front() {
            link.done_by_each = end;
            self.server_sends(server, client, flags::FIN | flags::ACK, (500, 100 + REQUEST), ANSWER);
        }
    }

    /// A transfer is asked for.
    fn ask(&mut self) {
        let number = self.seen.asked;
        self.seen.asked += 1;
        let [_, _, high, low] = (number / 60_000 + 1).to_be_bytes();
        let client = (Ipv4Addr::new(10, 1, high, low), 2000 + (number % 60_000) as u16);
        self.clients.insert(client, Asked { came_s: self.now_s, dropped: 0 });
        self.client_sends(client, flags::SYN, (99, 0), 0);
    }

    /// A SYN was dropped: its client sends it again, as long as it has patience.
    fn drop_syn(&mut self, client: Client) {
        if let Some(asked) = self.clients.get_mut(&client)
            && let Some(wait_s) = AGAIN_S.get(asked.dropped)
        {
            asked.dropped += 1;
            self.again.insert(((self.now_s + wait_s).to_bits(), client));
        }
    }

    fn ask_again(&mut self) {
        if let Some((_, client)) = self.again.pop_first() {
            self.client_sends(client, flags::SYN, (99, 0), 0);
        }
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
        let Some(&Asked { came_s, .. }) = self.clients.get(&client) else { return };
        if segment.flags & flags::RST != 0 {
            self.clients.remove(&client);
            self.seen.refused += 1;
        } else if segment.flags & flags::SYN != 0 {
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
        let Setup { workers, when_full, .. } = self.setup;
        let own = &mut self.servers[usize::from(server)];
        if segment.flags & flags::SYN != 0 {
            let has = own.clients.len();
            match when_full {
                WhenFull::Refuses if has >= workers => {
                    return self.server_sends(server, client, flags::RST | flags::ACK, (0, 100), 0);
                }
                WhenFull::Waits(most) if has >= workers + most => return self.drop_syn(client),
                _ => {}
            }
            own.clients.insert(client);
            self.server_sends(server, client, flags::SYN | flags::ACK, (499, 100), 0);
        } else if !own.clients.contains(&client) {
            if segment.flags & flags::RST == 0 {
                self.server_sends(server, client, flags::RST, (segment.ack, 0), 0);
            }
        } else if segment.flags & (flags::RST | flags::FIN) != 0 {
            self.leave(server, client);
            if segment.flags & flags::RST == 0 {
                self.server_sends(server, client, flags::ACK, (segment.ack, segment.sequence + 1), 0);
            }
        } else if segment.len == REQUEST {
            if own.busy() <= workers {
                self.serve(server, client);
            } else if when_full == WhenFull::Resets {
                own.clients.remove(&client);
                self.server_sends(server, client, flags::RST | flags::ACK, (500, 100 + REQUEST), 0);
            } else {
                own.backlog.push_back(client);
            }
        }
    }

    /// A worker takes a connection.
    fn serve(&mut self, server: u8, client: Client) {
        let at = usize::from(server);
        let link = at % self.links.len();
        let link = &mut self.links[link];
        link.under_way.push_back((link.done_by_each + 1.0, client, server));
        self.seen.taken[at] += 1;
        self.seen.most_open = self.seen.most_open.max(self.servers[at].busy());
        if let Some(&Asked { came_s, .. }) = self.clients.get(&client) {
            let wait_s = self.now_s - came_s;
            self.seen.longest_wait_s = self.seen.longest_wait_s.max(wait_s);
            self.seen.waited_long += u32::from(wait_s > TIMEOUT_S);
        }
    }

    /// A connection is over: its worker takes the next one.
    fn leave(&mut self, server: u8, client: Client) {
        let own = &mut self.servers[usize::from(server)];
        own.clients.remove(&client);
        own.backlog.retain(|&other| other != client);
        self.links.iter_mut().for_each(|link| link.under_way.retain(|&(_, other, _)| other != client));
        if own.busy() < self.setup.workers
            && let Some(next) = own.backlog.pop_front()
        {
            self.serve(server, next);
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
        Setup::new(1, policy, 100.0)
    }

    #[test]
    fn one_at_a_time_takes_what_the_link_takes_for_it() {
        let seen = play(setup(Policy::RoundRobin), (0..100).map(|n| f64::from(n) * 0.1));
        assert_eq!((seen.asked, seen.done, seen.failed(), seen.most_open, seen.taken), (100, 100, 0, 1, [50, 50]));
        assert!((seen.mean_s() - 0.01).abs() < 1e-9 && seen.longest_wait_s == 0.0, "{seen:?}");
    }

    #[test]
    fn the_labs_model_of_a_shared_link_gives_the_same_mean() {
        // Cells of lab/run lb-fig4 and lb-fig2, which lab/tests/test_balance.py has too: bytes and
        // answers of a connection, connections a second, and their mean time.
        for (bytes, answers, rate, mean_s) in [(1_000_000.0, 1.0, 50.0, 6.519_787), (10_240.0, 20.0, 100.0, 0.801_218)]
        {
            // 100 Mbit/s, and frames of 1448 bytes of payload.
            let link = 100e6 / 8.0 / (answers * (bytes + 300.0) / 1448.0 * 1538.0);
            let seen = play(Setup::new(1, Policy::RoundRobin, link), (0..100).map(|n| f64::from(n) / rate));
            assert!(seen.done == 100 && (seen.mean_s() / mean_s - 1.0).abs() < 1e-6, "{seen:?}");
        }
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
        let seen = play(Setup { workers: 30, ..setup(Policy::RoundRobin) }, (0..100).map(|_| 0.0));
        assert_eq!((seen.most_open, seen.done, seen.refused), (30, 60, 40));
    }

    #[test]
    fn behind_the_handshake_nobody_else_is_asked() {
        let burst = |when_full| {
            let full = Setup { workers: 30, when_full, heeds_health: false, ..setup(Policy::Loadavg) };
            let seen = play(full, (0..100).map(|_| 0.0));
            (seen.taken, seen.done, seen.refused)
        };
        assert_eq!(burst(WhenFull::Resets), ([30, 0], 30, 70));
        assert_eq!(burst(WhenFull::Refuses), ([30, 30], 60, 40));
    }

    #[test]
    fn a_backlog_waits_in_order_and_what_is_beyond_it_comes_again() {
        // Of 100 at one server 30 are answered at once, 50 wait, and the SYNs of 20 are dropped:
        // after a second the switch asks the other server for these. All else is over by then.
        let full = Setup { workers: 30, when_full: WhenFull::Waits(50), ..setup(Policy::Loadavg) };
        let seen = play(full, (0..100).map(|_| 0.0));
        assert_eq!((seen.taken, seen.done, seen.failed(), seen.most_open), ([80, 20], 100, 0, 30));
        assert!((seen.longest_wait_s - 1.0).abs() < 1e-9, "{seen:?}");
    }

    #[test]
    fn the_published_signal_sends_all_to_one_server_until_a_report() {
        let seen = play(Setup::new(1, Policy::Loadavg, 5.0), (0..100).map(|n| f64::from(n) * 0.1));
        // Until 5 s, and from then on until 10 s.
        assert_eq!(seen.taken, [50, 50]);
        let seen = play(Setup::new(1, Policy::Loadavg, 5.0), (0..50).map(|n| f64::from(n) * 0.1));
        assert_eq!(seen.taken, [50, 0]);
    }

    #[test]
    fn servers_that_share_no_link_leave_what_the_other_has_unused() {
        let burst = |policy| play(Setup { is_split: true, ..setup(policy) }, (0..100).map(|_| 0.0)).mean_s();
        assert!((burst(Policy::RoundRobin) - 1.0).abs() < 0.02 && (burst(Policy::Loadavg) - 2.0).abs() < 0.04);
    }
}
