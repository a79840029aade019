//! Balancing, churn: connections of a service while backends are drained, removed and added, while
//! the switch is taken over by another, and while it is killed.
//!
//! One client opens connections and asks each several times before it closes it; a thousand are
//! open. After each thousand something happens, so each connection is open at one event. Six
//! servers answer what they know and reset what they do not. A connection is broken where its
//! client gets a reset, or no answer to eight segments. Frames go through the real switch.

use datapath::frame::{Pool, PoolLimits};
use datapath::program::{Change, PortId, Program};
use datapath::service::ServiceStats;
use datapath::service::choose::Policy;
use datapath::switch::Switch;
use datapath::units::Instant;
use datapath::wire::build::{Build, eth};
use datapath::wire::{Ipv4, Tcp, parse, tcp_flags as flags};
use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;

use super::served::{CLIENT, SERVICE, WEB, program, server_ends, service};
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::random::Random;
use crate::world::Violation;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "lb-churn",
    about: "connections of a service while backends come and go and the switch is taken over or killed",
    seconds: 4,
    warms_up: false,
    repeats: true,
    run,
};

/// Connections of a row for each second asked for.
const CONNECTIONS: u64 = 85_000;
/// Connections that are open at a time.
const OPEN: usize = 1000;
/// Connections between two events: each meets one, and none is open at two.
const BETWEEN: u64 = OPEN as u64;
/// Time from one connection to the next, in nanoseconds.
const STEP_NS: u64 = 100_000;
/// After so long a client sends again, in nanoseconds.
const TIMEOUT_NS: u64 = 200_000_000;
const SENDS: u32 = 8;
const SERVERS: u8 = 6;
const REQUEST: u32 = 50;
const REPLY: u32 = 70;
const SEED: u64 = 7;

/// What happens to the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    /// A backend is drained; when it has no connection left it is removed; then it is added again.
    Backends,
    /// The next switch goes on with what this one hands over.
    TakenOver,
    /// The next switch knows the program only.
    Killed,
}

const ROWS: [(Event, &str, Policy, &str); 5] = [
    (Event::Backends, "drained, removed, added", Policy::P2c, "p2c"),
    (Event::TakenOver, "taken over", Policy::P2c, "p2c"),
    (Event::TakenOver, "taken over", Policy::LeastInflight, "least-inflight"),
    (Event::Killed, "killed", Policy::P2c, "p2c"),
    (Event::Killed, "killed", Policy::Maglev, "maglev"),
];

fn run(options: &Options) -> Result<Table, Violation> {
    let connections = options.seconds * CONNECTIONS;
    let open = format!("{OPEN} open, an event after each {BETWEEN}, {SERVERS} servers");
    let mut table = Table {
        config: vec![("connections", format!("{connections} a row, {open}"))],
        columns: vec![
            "event",
            "policy",
            "events",
            "open at them",
            "broken",
            "sent again",
            "found again",
            "off candidates",
        ],
        ..Table::default()
    };
    let (mut met, mut broken) = (0, 0);
    for (event, what, policy, name) in ROWS {
        let mut play = Play::new(options.seed, policy);
        play.run(event, connections);
        let number = |n: u64| Cell::Number(n as f64, 0);
        let ServiceStats { recovered, off_candidates, .. } = play.counted();
        table.rows.push(vec![
            what.into(),
            name.into(),
            number(play.events),
            number(play.met),
            number(play.broken),
            number(play.sent_again),
            number(recovered),
            number(off_candidates),
        ]);
        claim(&mut table, &format!("{what}, {name}"), play.met, play.broken);
        if event != Event::Killed {
            met += play.met;
            broken += play.broken;
        }
    }
    claim(&mut table, "added, drained, removed, taken over", met, broken);
    Ok(table)
}

fn claim(table: &mut Table, what: &str, met: u64, broken: u64) {
    let id = format!("{what}: broken, where {met} were open at an event");
    table.claims.push(Claim { id, value: Some(broken as f64), unit: "connections", target: Target::AtMost(0.0) });
}

/// A connection, as its client has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Connection {
    ip: Ipv4Addr,
    port: u16,
    next: u32,
    expected: u32,
}

/// A server: of each connection what it sends next, what it expects, and whether it has sent its
/// FIN.
type Server = HashMap<(Ipv4Addr, u16), (u32, u32, bool)>;

struct Play {
    switch: Switch,
    program: Program,
    pool: Pool,
    now: Instant,
    random: Random,
    servers: Vec<Server>,
    open: VecDeque<Connection>,
    opened: u32,
    /// What the client got since it was looked at.
    inbox: Vec<(u8, u32, u32, u32)>,
    /// Counters of switches that were killed.
    before: ServiceStats,
    events: u64,
    /// Connections that were open at an event.
    met: u64,
    broken: u64,
    sent_again: u64,
}

impl Play {
    fn new(seed: u64, policy: Policy) -> Play {
        let program = program(service(policy, SERVERS), SERVERS);
        let mut switch = Switch::new(&program, SEED).expect("a sound program");
        switch.set_service_key(SEED);
        Play {
            switch,
            program,
            pool: Pool::new(PoolLimits { small: 256, medium: 0, large: 8 }),
            now: Instant(1_000_000_000),
            random: Random::new(seed),
            servers: vec![Server::new(); usize::from(SERVERS)],
            open: VecDeque::new(),
            opened: 0,
            inbox: Vec::new(),
            before: ServiceStats::default(),
            events: 0,
            met: 0,
            broken: 0,
            sent_again: 0,
        }
    }

    fn run(&mut self, event: Event, connections: u64) {
        for n in 1..=connections {
            self.now = self.now.plus_ns(STEP_NS);
            self.begin();
            if !self.open.is_empty() {
                let at = self.random.range(0, self.open.len() as u64 - 1) as usize;
                self.ask(at);
            }
            if self.open.len() > OPEN {
                self.end();
            }
            if n % BETWEEN == 0 {
                self.happen(event, n / BETWEEN);
            }
        }
        // What is still open is asked once more.
        for at in (0..self.open.len()).rev() {
            self.ask(at);
        }
    }

    fn counted(&self) -> ServiceStats {
        let now = self.switch.service_stats(WEB).unwrap_or_default();
        ServiceStats {
            recovered: self.before.recovered + now.recovered,
            off_candidates: self.before.off_candidates + now.off_candidates,
            ..now
        }
    }

    fn happen(&mut self, event: Event, number: u64) {
        self.events += 1;
        self.met += self.open.len() as u64;
        match event {
            Event::Backends => self.change_backends(number),
            Event::TakenOver => {
                let state = self.switch.export(self.now);
                self.next_switch();
                self.switch.import(self.now, 0, &state).expect("the own version");
            }
            Event::Killed => {
                self.before = self.counted();
                self.next_switch();
                self.switch.recover_services(self.now);
            }
        }
    }

    fn next_switch(&mut self) {
        // A daemon keeps the key of candidates in its run directory; all else is seeded anew.
        let mut next = Switch::new(&self.program, self.random.word()).expect("a sound program");
        next.set_service_key(SEED);
        self.switch.clear(&mut self.pool);
        self.switch = next;
    }

    /// Three steps for each server in turn.
    fn change_backends(&mut self, number: u64) {
        let number = number - 1;
        let server = (number / 3 % u64::from(SERVERS)) as usize;
        let mut service = self.program.services[0].clone();
        match number % 3 {
            0 => service.backends[server].weight = 0,
            // What was open when it was drained is closed by now.
            1 => drop(service.backends.remove(server)),
            _ => {}
        }
        self.switch.change(&mut self.pool, self.now, Change::Service(WEB, Some(service))).expect("it fits");
    }

    /// Opens a connection.
    fn begin(&mut self) {
        let number = self.opened;
        self.opened += 1;
        let [_, _, high, low] = (number / 60_000 + 1).to_be_bytes();
        let (ip, port) = (Ipv4Addr::new(10, 1, high, low), 2000 + (number % 60_000) as u16);
        let mut connection = Connection { ip, port, next: 100, expected: 0 };
        for _ in 0..SENDS {
            self.send(&connection, flags::SYN, 99, 0);
            if let Some((seen, sequence, ..)) = self.inbox.pop() {
                if seen & flags::RST != 0 {
                    break;
                }
                connection.expected = sequence.wrapping_add(1);
                self.send(&connection, flags::ACK, connection.next, 0);
                self.open.push_back(connection);
                return;
            }
            self.wait();
        }
        self.broken += 1;
    }

    fn wait(&mut self) {
        self.sent_again += 1;
        self.now = self.now.plus_ns(TIMEOUT_NS);
    }

    /// A request and its answer, on an open connection.
    fn ask(&mut self, at: usize) {
        let mut connection = self.open[at];
        for _ in 0..SENDS {
            self.send(&connection, flags::ACK, connection.next, REQUEST);
            if let Some((seen, sequence, ack, len)) = self.inbox.pop() {
                let is_answer = (sequence, ack, len) == (connection.expected, connection.next + REQUEST, REPLY);
                if seen & flags::RST != 0 || !is_answer {
                    break;
                }
                connection.next += REQUEST;
                connection.expected += REPLY;
                self.open[at] = connection;
                self.send(&connection, flags::ACK, connection.next, 0);
                return;
            }
            self.wait();
        }
        self.broken += 1;
        self.open.remove(at);
    }

    /// Closes the oldest one.
    fn end(&mut self) {
        let Some(connection) = self.open.pop_front() else { return };
        for _ in 0..SENDS {
            self.send(&connection, flags::FIN | flags::ACK, connection.next, 0);
            match self.inbox.pop() {
                Some((seen, ..)) if seen & flags::FIN != 0 => {
                    let last = Connection { expected: connection.expected + 1, ..connection };
                    return self.send(&last, flags::ACK, connection.next + 1, 0);
                }
                Some(_) => break,
                None => self.wait(),
            }
        }
        self.broken += 1;
    }

    /// Sends a segment of the client, and everything that follows from it.
    fn send(&mut self, connection: &Connection, bits: u8, sequence: u32, len: u32) {
        let tcp = eth(CLIENT, SERVICE.0).ipv4(connection.ip, SERVICE.1).tcp(connection.port, 80, sequence);
        let tcp = if bits & flags::ACK == 0 { tcp } else { tcp.ack(connection.expected, 1000) };
        self.inbox.clear();
        self.pass(0, &tcp.flags(bits).payload(vec![1; len as usize]));
    }

    /// A frame into the switch, and to whom it goes; servers answer at once.
    fn pass(&mut self, port: u32, frame: &Build<'_>) {
        let frame = frame.frame(&mut self.pool).expect("a buffer");
        self.switch.rx(&mut self.pool, self.now, PortId(port), frame);
        while let Some((to, frame)) = self.switch.tx(&mut self.pool, self.now) {
            let bytes = self.pool.bytes(&frame);
            let layout = parse(bytes).expect("well-formed");
            let (Some(ip), Some(tcp)) = (Ipv4::of(bytes, &layout), Tcp::of(bytes, &layout)) else {
                self.pool.free(frame);
                continue;
            };
            let len = layout.end - u32::from(layout.payload_offset);
            let segment = (tcp.flags(), tcp.sequence(), tcp.acknowledgement(), len);
            let client = (ip.source(), tcp.source());
            self.pool.free(frame);
            match to.0.checked_sub(1) {
                None => self.inbox.push(segment),
                Some(server) => self.serve(server as u8, client, segment),
            }
        }
    }

    fn serve(&mut self, number: u8, client: (Ipv4Addr, u16), (seen, sequence, ack, len): (u8, u32, u32, u32)) {
        let (mac, ip) = server_ends(number);
        let reply = |sequence| eth(mac, CLIENT).ipv4(ip, client.0).tcp(8080, client.1, sequence);
        let server = &mut self.servers[usize::from(number)];
        let known = server.get(&client).copied();
        let answer = match known {
            _ if seen & flags::RST != 0 => {
                server.remove(&client);
                return;
            }
            _ if seen & flags::SYN != 0 => {
                server.insert(client, (500, sequence.wrapping_add(1), false));
                reply(499).ack(sequence.wrapping_add(1), 1000).flags(flags::SYN | flags::ACK)
            }
            None => reply(ack).flags(flags::RST),
            Some((own, ..)) if seen & flags::FIN != 0 => {
                server.insert(client, (own, sequence.wrapping_add(1), true));
                reply(own).ack(sequence.wrapping_add(1), 1000).flags(flags::FIN | flags::ACK)
            }
            Some((_, _, true)) => {
                server.remove(&client);
                return;
            }
            Some((own, expected, _)) if len > 0 && sequence == expected => {
                server.insert(client, (own.wrapping_add(REPLY), expected.wrapping_add(len), false));
                reply(own).ack(expected.wrapping_add(len), 1000).payload(vec![2; REPLY as usize])
            }
            Some(_) => return,
        };
        self.pass(u32::from(number) + 1, &answer);
    }
}
