use super::*;
use crate::rules::tests::config;
use control::config::openflow::Role;
use datapath::wire::protocol;
use std::net::Ipv4Addr;

const SWITCH: u64 = 7;

fn start(backends: usize, most: u32, policy: Policy) -> Balancer {
    let mut config = config("reactive", backends);
    config.connections = most;
    config.services[0].policy = policy;
    Balancer::new(&config, &Rules::of(&config), 1)
}

/// Live connections, by front and backend.
pub(crate) fn live(balancer: &Balancer) -> BTreeMap<(usize, usize), u32> {
    let mut all = BTreeMap::new();
    for (_, key, connection) in balancer.connections.newest_first(LIVE) {
        *all.entry((key.front, connection.backend)).or_default() += 1;
    }
    all
}

/// The backend of a connection.
fn at(balancer: &mut Balancer, now: Instant, key: Key, is_new: bool) -> Result<usize, Refused> {
    balancer.choose(now, SWITCH, key, is_new).map(|place| place.backend)
}

/// Another configuration instead of the one `before`.
fn renew(balancer: &mut Balancer, now: Instant, before: &OpenFlow, config: &OpenFlow) {
    balancer.renew(now, config, &Rules::of(before), &Rules::of(config), 1);
}

fn key(n: u32) -> Key {
    Key { front: 0, client: Client { ip: Ipv4Addr::from_bits(0x0a00_0000 + n).into(), port: 1000 } }
}

#[test]
fn a_connection_stays_where_it_is() {
    let mut balancer = start(2, 256, Policy::RoundRobin);
    let now = Instant(1);
    assert_eq!(at(&mut balancer, now, key(1), true), Ok(0));
    assert_eq!(at(&mut balancer, now, key(2), true), Ok(1));
    // A SYN that was sent again before its flows were there.
    assert_eq!(at(&mut balancer, now, key(2), true), Ok(1));
    assert_eq!(balancer.counts(0).1.iter().map(|count| (count.new, count.live)).collect::<Vec<_>>(), [(1, 1), (1, 1)]);
    // Its flows are sent once, and again where frames come still.
    let is_set_up = |balancer: &mut Balancer, at| balancer.choose(at, SWITCH, key(1), false).unwrap().is_set_up;
    assert!(is_set_up(&mut balancer, now.plus_ns(SETTLING_NS - 1)));
    assert!(
        !is_set_up(&mut balancer, now.plus_ns(SETTLING_NS)) && is_set_up(&mut balancer, now.plus_ns(SETTLING_NS + 1))
    );
    balancer.gone(now, SWITCH, key(2));
    balancer.gone(now, SWITCH, key(2));
    assert_eq!(balancer.counts(0).1[1].live, 0);
    // It was idle, and goes on where it was; a SYN begins another one.
    assert_eq!(at(&mut balancer, now, key(2), false), Ok(1));
    assert_eq!(balancer.counts(0).1[1].live, 1);
    balancer.gone(now, SWITCH, key(2));
    assert_eq!(at(&mut balancer, now, key(2), true), Ok(0));
    // Nobody remembers it any more: where its hash says, each time.
    balancer.gone(now, SWITCH, key(2));
    let later = now.plus_ns(REMEMBERED_NS + 1);
    let asked = at(&mut balancer, later, key(2), false);
    balancer.gone(later, SWITCH, key(2));
    assert_eq!(at(&mut balancer, later.plus_ns(REMEMBERED_NS + 1), key(2), false), asked);
}

#[test]
fn a_connection_goes_on_for_as_long_as_it_is_remembered_at_a_backend_that_takes_some() {
    let mut balancer = start(2, 256, Policy::RoundRobin);
    assert!(balancer.join(Instant(1), SWITCH));
    let now = Instant(1);
    assert!(!balancer.goes_on(now, key(0)) && !balancer.goes_on(now, Key { front: 9, ..key(0) }));
    // More than are forgotten at a time.
    for n in 0..200 {
        at(&mut balancer, now, key(n), true).unwrap();
    }
    assert!(balancer.goes_on(now.plus_ns(2 * REMEMBERED_NS), key(199)), "its flows are there");
    (0..200).for_each(|n| balancer.gone(now, SWITCH, key(n)));
    assert!(balancer.goes_on(now.plus_ns(REMEMBERED_NS - 1), key(199)));
    assert!(!balancer.goes_on(now.plus_ns(REMEMBERED_NS), key(199)), "whether it was looked at or not");
    balancer.found(SWITCH, (0, 1), false);
    assert!(!balancer.goes_on(now, key(199)) && balancer.goes_on(now, key(198)));
    balancer.found(SWITCH, (0, 0), false);
    assert!(balancer.ignores_health(0) && balancer.goes_on(now, key(199)));
}

#[test]
fn the_table_is_bounded_and_no_client_has_all_of_it() {
    let mut balancer = start(2, 64, Policy::RoundRobin);
    let now = Instant(1);
    let greedy = |port| Key { front: 0, client: Client { ip: Ipv4Addr::new(10, 9, 9, 9).into(), port } };
    let got = (0..200).filter(|&port| at(&mut balancer, now, greedy(port), true).is_ok()).count();
    assert_eq!(got, 32);
    let got = (0..200).filter(|&n| at(&mut balancer, now, key(n), true).is_ok()).count();
    assert_eq!(got, 32);
    assert_eq!(balancer.room(), (64, 64));
    assert_eq!(at(&mut balancer, now, key(999), true), Err(Refused::Full));
    // One that is only remembered makes room.
    balancer.gone(now, SWITCH, key(0));
    assert!(at(&mut balancer, now, key(999), true).is_ok());
    let (total, _) = balancer.counts(0);
    assert_eq!((total.evicted, total.full), (1, 168 + 168 + 1));
}

#[test]
fn for_a_client_that_has_its_part_its_own_finished_connections_go() {
    let now = Instant(1);
    for (gone, room) in [(32, Ok(0)), (1, Ok(0)), (0, Err(Refused::Full))] {
        let mut balancer = start(2, 64, Policy::RoundRobin);
        // Another client's are remembered longer, and stay.
        (0..20).for_each(|n| assert!(at(&mut balancer, now, key(n), true).is_ok()));
        (0..20).for_each(|n| balancer.gone(now, SWITCH, key(n)));
        (0..32).for_each(|port| assert!(at(&mut balancer, now, of_client(99, port), true).is_ok()));
        (0..gone).for_each(|port| balancer.gone(now, SWITCH, of_client(99, port)));
        assert_eq!(at(&mut balancer, now, of_client(99, 32), true), room, "{gone} are over");
        assert_eq!((balancer.counts(0).0.evicted, balancer.room().0), (room.is_ok().into(), 52));
        assert!((0..20).all(|n| balancer.goes_on(now, key(n))));
        assert_eq!(balancer.goes_on(now, of_client(99, 0)), room.is_err(), "the one that was over first");
    }
}

#[test]
fn a_switchs_report_is_believed() {
    let mut balancer = start(2, 256, Policy::LeastInflight);
    let now = Instant(1);
    assert!(balancer.known(now, SWITCH, key(1), 1, 5) && balancer.known(now, SWITCH, key(2), 1, 5));
    balancer.reported(now, SWITCH, 5);
    assert_eq!(live(&balancer), BTreeMap::from([((0, 1), 2)]));
    assert_eq!(at(&mut balancer, now, key(3), true), Ok(0), "the other has two");
    // Of the three it has one; another switch's are another's.
    assert!(balancer.known(now, SWITCH + 1, key(4), 0, 6) && balancer.known(now, SWITCH, key(2), 1, 6));
    balancer.reported(now, SWITCH, 6);
    assert_eq!(live(&balancer), BTreeMap::from([((0, 0), 1), ((0, 1), 1)]));
    assert_eq!(at(&mut balancer, now, key(1), false), Ok(1), "it is remembered");
    assert!(!balancer.known(now, SWITCH, key(5), 99, 6), "no such backend");
}

#[test]
fn connections_of_a_switch_that_left_are_live_no_longer_than_their_flows() {
    let mut balancer = start(2, 64, Policy::RoundRobin);
    let (now, idle) = (Instant(1), balancer.idle_ns);
    assert!(balancer.join(now, SWITCH) && !balancer.join(now, SWITCH), "one at a time has a number");
    assert!(balancer.join(now, SWITCH + 1));
    for n in 0..64 {
        balancer.choose(now, SWITCH + u64::from(n % 2), key(n), true).unwrap();
    }
    assert_eq!(at(&mut balancer, now, key(99), true), Err(Refused::Full));
    balancer.leave(now, SWITCH);
    balancer.bury_left(now.plus_ns(idle - 1));
    assert_eq!(balancer.counts(0).1.iter().map(|count| count.live).sum::<u32>(), 64);
    // One that came back in time has told what it has.
    assert!(balancer.join(now.plus_ns(idle), SWITCH));
    balancer.bury_left(now.plus_ns(idle));
    assert_eq!(balancer.counts(0).1.iter().map(|count| count.live).sum::<u32>(), 64);
    balancer.leave(now.plus_ns(idle), SWITCH);
    balancer.bury_left(now.plus_ns(2 * idle));
    assert_eq!(balancer.counts(0).1.iter().map(|count| count.live).sum::<u32>(), 32, "the other's are its own");
    assert!(at(&mut balancer, now.plus_ns(2 * idle), key(99), true).is_ok());
}

#[test]
fn switches_that_have_left_are_forgotten_for_new_ones() {
    let mut balancer = start(2, 64, Policy::RoundRobin);
    let here = MOST_SWITCHES as u64;
    assert!((0..here).all(|switch| balancer.join(Instant(1), switch)));
    assert!(!balancer.join(Instant(1), here), "all are there");
    balancer.choose(Instant(1), 3, key(1), true).unwrap();
    balancer.leave(Instant(2), 3);
    balancer.leave(Instant(3), 4);
    assert!(balancer.join(Instant(4), here));
    assert_eq!(live(&balancer), BTreeMap::new(), "it went with its switch");
    assert!(balancer.join(Instant(5), 3) && !balancer.join(Instant(5), 4));
    // Another configuration forgets those who left, and no one who is here.
    let config = config("reactive", 2);
    balancer.leave(Instant(6), 5);
    renew(&mut balancer, Instant(6), &config, &config);
    assert!(!balancer.join(Instant(6), 6) && balancer.join(Instant(6), 5) && !balancer.join(Instant(6), 4));
}

#[test]
fn what_switches_and_flows_count_is_added() {
    let mut balancer = start(2, 64, Policy::RoundRobin);
    assert!(balancer.join(Instant(1), SWITCH) && balancer.join(Instant(1), SWITCH + 1));
    let mut count = |switch, cookie, all| {
        balancer.counted(switch, cookie, (0, 1), all);
        balancer.counts(0).1[1].new
    };
    // Two ports of the service, and two switches; each says all that it has had.
    assert_eq!((count(SWITCH, 1, 10), count(SWITCH, 2, 5), count(SWITCH + 1, 1, 100)), (10, 15, 115));
    assert_eq!((count(SWITCH, 1, 12), count(SWITCH, 2, 5), count(SWITCH + 1, 1, 101)), (117, 117, 118));
    // One that was made anew, one that nobody knows, and one that came back.
    assert_eq!((count(SWITCH, 1, 3), count(SWITCH + 2, 1, 1000)), (121, 121));
    balancer.leave(Instant(2), SWITCH);
    balancer.bury_left(Instant(2).plus_ns(balancer.idle_ns));
    assert!(balancer.join(Instant(3), SWITCH));
    balancer.counted(SWITCH, 1, (0, 1), 4);
    assert_eq!(balancer.counts(0).1[1].new, 122);
    assert_eq!(balancer.counts(0).1[0].new, 0);
}

#[test]
fn a_switch_that_reports_takes_nothing_from_another() {
    let mut balancer = start(2, 64, Policy::RoundRobin);
    let now = Instant(10);
    let backend = at(&mut balancer, now, key(0), true).unwrap();
    // Another one names it, at the other backend: it stays, and the liar's next report says nothing
    // of it.
    assert!(balancer.known(now, SWITCH + 1, key(0), 1 - backend, 20));
    balancer.reported(now, SWITCH + 1, 30);
    assert_eq!(live(&balancer), BTreeMap::from([((0, backend), 1)]));
    assert_eq!(at(&mut balancer, now, key(0), false), Ok(backend));
    // Beside another it fills half of the table; alone all of it.
    let named = (1..64).filter(|&n| balancer.known(now, SWITCH + 1, key(n), 0, 20)).count();
    assert_eq!(named, 32);
    assert!(at(&mut balancer, now, key(99), true).is_ok());
    let mut alone = start(2, 64, Policy::RoundRobin);
    assert_eq!((0..99).filter(|&n| alone.known(now, SWITCH, key(n), 0, 20)).count(), 64);
    // One that is only remembered is whose flows it has now.
    balancer.gone(now, SWITCH, key(0));
    assert!(balancer.known(now, SWITCH + 1, key(0), backend, 40));
    balancer.gone(now, SWITCH, key(0));
    assert_eq!(live(&balancer)[&(0, backend)], if backend == 0 { 33 } else { 1 });
}

#[test]
fn a_backend_is_down_when_no_switch_reaches_it() {
    let mut balancer = start(2, 64, Policy::RoundRobin);
    assert!((0..3).all(|switch| balancer.join(Instant(1), switch)));
    assert!(balancer.found(0, (0, 1), false), "nobody says otherwise");
    assert!(!balancer.found(0, (0, 1), false) && !balancer.takes(0, 1));
    let health = balancer.health();
    assert!(balancer.found(1, (0, 1), true) && balancer.takes(0, 1));
    assert_ne!(balancer.health(), health);
    assert!(!balancer.found(2, (0, 1), false), "another reaches it");
    balancer.leave(Instant(2), 1);
    assert!(!balancer.takes(0, 1), "that one has left");
    assert!(!balancer.found(9, (0, 0), false) && !balancer.found(0, (7, 7), false), "nobody, and no backend");
}

#[test]
fn a_load_that_was_reported_counts() {
    let mut balancer = start(2, 256, Policy::Loadavg);
    let now = Instant(1);
    balancer.load(now, 0, 0, 900);
    balancer.load(now, 9, 9, 900);
    assert_eq!(at(&mut balancer, now, key(1), true), Ok(1));
    assert_eq!(balancer.counts(0).1[0].load_milli, Some(900));
}

#[test]
fn an_answer_is_found_by_its_backend() {
    let config = config("reactive", 2);
    let rules = Rules::of(&config);
    let mut balancer = Balancer::new(&config, &rules, 1);
    let backend = at(&mut balancer, Instant(1), key(1), true).unwrap();
    let from = |b: usize, port| Client { ip: rules.targets[0][b].ip, port };
    assert_eq!(balancer.front_of_answer(&rules, (from(backend, 8080), key(1).client), 6, true), Some(0));
    assert_eq!(balancer.front_of_answer(&rules, (from(1 - backend, 8080), key(1).client), 6, true), None);
    assert_eq!(balancer.front_of_answer(&rules, (from(backend, 80), key(1).client), 6, true), None);
    assert_eq!(balancer.front_of_answer(&rules, (from(backend, 8080), key(1).client), 17, true), None);
}

#[test]
fn an_answer_is_of_the_connection_that_is_live_or_was_last() {
    let mut config = config("reactive", 1);
    let mut other = config.services[0].addresses[0];
    other.0.port = 81;
    config.services[0].addresses.push(other);
    let rules = Rules::of(&config);
    let mut balancer = Balancer::new(&config, &rules, 1);
    let of = |front| Key { front, ..key(1) };
    let ask = |balancer: &Balancer, is_first| {
        balancer.front_of_answer(&rules, (rules.targets[0][0].at(), key(1).client), protocol::TCP, is_first)
    };
    for front in [0, 1] {
        // As a switch reports them that another controller had.
        assert!(balancer.known(Instant(1 + front as u64), SWITCH, of(front), 0, 9));
        assert_eq!(ask(&balancer, true), Some(front), "the one of both that was last");
    }
    balancer.gone(Instant(3), SWITCH, of(0));
    assert_eq!([true, false].map(|is_first| ask(&balancer, is_first)), [Some(1); 2], "the live one");
    balancer.gone(Instant(4), SWITCH, of(1));
    assert_eq!([true, false].map(|is_first| ask(&balancer, is_first)), [None, Some(1)]);
    assert_eq!(at(&mut balancer, Instant(5), of(0), false), Ok(0));
    assert_eq!([true, false].map(|is_first| ask(&balancer, is_first)), [Some(0); 2]);
}

#[test]
fn a_network_of_64_bits_is_one_client() {
    let mut balancer = start(2, 64, Policy::RoundRobin);
    let now = Instant(1);
    let key = |network: u128, n: u128| {
        let ip = Ipv6Addr::from_bits(0xfd00 << 112 | network << 64 | n);
        Key { front: 0, client: Client { ip: ip.into(), port: 1000 } }
    };
    assert_eq!((0..200).filter(|&n| at(&mut balancer, now, key(1, n << 8), true).is_ok()).count(), 32);
    assert_eq!((0..200).filter(|&n| at(&mut balancer, now, key(2, n), true).is_ok()).count(), 32);
    // Those that go are counted off.
    balancer.gone(now, SWITCH, key(1, 0));
    assert!(at(&mut balancer, now, key(3, 0), true).is_ok());
    assert_eq!(at(&mut balancer, now, key(4, 0), true), Err(Refused::Full));
}

#[test]
fn loads_are_known_on_under_another_configuration() {
    let mut balancer = start(3, 64, Policy::Loadavg);
    let now = Instant(1);
    for (b, load) in [900, 100, 500].into_iter().enumerate() {
        balancer.load(now, 0, b, load);
    }
    // The second backend goes: what was the third is the second now.
    let before = config("reactive", 3);
    let mut config = before.clone();
    config.services[0].policy = Policy::Loadavg;
    config.services[0].backends.remove(1);
    renew(&mut balancer, now, &before, &config);
    let loads: Vec<_> = balancer.counts(0).1.iter().map(|count| count.load_milli).collect();
    assert_eq!(loads, [Some(900), Some(500)]);
    assert_eq!(at(&mut balancer, now, key(1), true), Ok(1));
}

fn of_client(client: u32, port: u16) -> Key {
    Key { client: Client { port, ..key(client).client }, ..key(client) }
}

/// With affinity for ten seconds.
fn start_with_affinity(policy: Policy) -> (OpenFlow, Balancer) {
    let mut config = config("reactive", 4);
    (config.services[0].affinity, config.services[0].affinity_ns) = (true, 10_000_000_000);
    config.services[0].policy = policy;
    let balancer = Balancer::new(&config, &Rules::of(&config), 1);
    (config, balancer)
}

#[test]
fn a_client_stays_at_the_backend_of_its_last_connection() {
    let (config, mut balancer) = start_with_affinity(Policy::RoundRobin);
    let at_second = |second: u64| Instant(1 + second * 1_000_000_000);
    assert!(balancer.join(at_second(0), SWITCH));
    for port in 0..9 {
        assert_eq!(at(&mut balancer, at_second(port), of_client(1, port as u16), true), Ok(0));
    }
    assert_eq!(at(&mut balancer, at_second(9), of_client(2, 1), true), Ok(1), "another client, in turn");
    // Ten seconds after the last one, and no later.
    assert_eq!(at(&mut balancer, at_second(17), of_client(1, 20), true), Ok(0));
    assert_eq!(at(&mut balancer, at_second(27), of_client(1, 21), true), Ok(2));
    assert_eq!(balancer.counts(0).0.stayed, 9);
    // One that is down is left, and the client stays where it went.
    balancer.found(SWITCH, (0, 2), false);
    assert_eq!(at(&mut balancer, at_second(28), of_client(1, 22), true), Ok(3));
    balancer.found(SWITCH, (0, 2), true);
    assert_eq!(at(&mut balancer, at_second(29), of_client(1, 23), true), Ok(3));
    // Another configuration has them elsewhere.
    let mut turned = config.clone();
    turned.services[0].backends.reverse();
    renew(&mut balancer, at_second(30), &config, &turned);
    assert_eq!(at(&mut balancer, at_second(30), of_client(1, 24), true), Ok(0), "the same one, by its name");
    // It is drained: the client goes, and stays where it went.
    turned.services[0].backends[0].weight = 0;
    renew(&mut balancer, at_second(31), &turned, &turned);
    let went = at(&mut balancer, at_second(31), of_client(1, 25), true).unwrap();
    assert_ne!(went, 0);
    assert_eq!(at(&mut balancer, at_second(32), of_client(1, 26), true), Ok(went));
}

#[test]
fn another_controller_knows_clients_by_their_open_connections() {
    let (_, mut balancer) = start_with_affinity(Policy::RoundRobin);
    let now = Instant(1);
    assert!(balancer.known(now, SWITCH, of_client(1, 7), 3, 5));
    assert_eq!(at(&mut balancer, now, of_client(1, 8), true), Ok(3));
    // What is open long begins nothing anew.
    let later = now.plus_ns(10_000_000_000);
    assert!(balancer.known(later, SWITCH, of_client(1, 7), 3, 6));
    assert_eq!(at(&mut balancer, later, of_client(1, 9), true), Ok(0));
    // Nobody remembers anything: by maglev a client's address names its backend.
    let ports = |client| {
        let (_, mut balancer) = start_with_affinity(Policy::Maglev);
        let mut all: Vec<_> = (0..9)
            .map(|port| {
                let is_new = port % 2 == 0;
                let chosen =
                    at(&mut balancer, Instant(1 + u64::from(port) * 20_000_000_000), of_client(client, port), is_new);
                chosen.unwrap()
            })
            .collect();
        all.dedup();
        all
    };
    let all: Vec<_> = (0..16).map(ports).collect();
    assert!(all.iter().all(|one| one.len() == 1), "{all:?}");
    assert!(all.iter().any(|one| one != &all[0]), "not all at one: {all:?}");
}

/// Of four, with this; all but the first are down.
fn mostly_down(panic_ppm: u32, on_failure: OnFailure) -> (OpenFlow, Balancer) {
    let mut config = config("reactive", 4);
    (config.services[0].panic_ppm, config.services[0].on_failure) = (panic_ppm, on_failure);
    config.probe_ns = 1_000_000_000;
    let mut balancer = Balancer::new(&config, &Rules::of(&config), 1);
    assert!(balancer.join(Instant(1), SWITCH));
    for backend in 1..4 {
        balancer.found(SWITCH, (0, backend), false);
    }
    (config, balancer)
}

#[test]
fn health_is_ignored_below_a_part_of_the_weight() {
    for (panic_ppm, takes) in [(0, false), (250_000, false), (260_000, true), (1_000_000, true)] {
        let (_, balancer) = mostly_down(panic_ppm, OnFailure::Keep);
        assert_eq!((balancer.takes(0, 1), balancer.ignores_health(0)), (takes, takes), "{panic_ppm}");
        assert!(balancer.takes(0, 0) && !balancer.is_lost(0, 1));
        // What would end at once is not begun.
        let (_, balancer) = mostly_down(panic_ppm, OnFailure::Reset);
        assert_eq!((balancer.takes(0, 1), balancer.ignores_health(0)), (false, false), "{panic_ppm}");
        assert!(balancer.is_lost(0, 1) && balancer.takes(0, 0) && !balancer.is_lost(0, 0));
    }
}

#[test]
fn what_nobody_remembers_ends_where_its_backend_is_down() {
    let (_, mut balancer) = mostly_down(0, OnFailure::Reset);
    let now = Instant(1);
    let found: Vec<_> = (0..64).map(|n| balancer.choose(now, SWITCH, key(n), false)).collect();
    let of_first = |one: &&Result<Assignment, Refused>| matches!(one, Ok(Assignment { backend: 0, .. }));
    let is_cut = |one: &&Result<Assignment, Refused>| matches!(one, Err(Refused::Cut(1..4)));
    assert!(found.iter().any(|one| of_first(&one)) && found.iter().any(|one| is_cut(&one)), "{found:?}");
    assert!(found.iter().all(|one| of_first(&one) || is_cut(&one)), "{found:?}");
}

#[test]
fn who_is_down_is_known_on_under_another_configuration() {
    let (config, mut balancer) = mostly_down(0, OnFailure::Reset);
    let mut turned = config.clone();
    turned.services[0].backends.reverse();
    renew(&mut balancer, Instant(1), &config, &turned);
    assert_eq!([0, 1, 2, 3].map(|backend| balancer.takes(0, backend)), [false, false, false, true]);
    balancer.found(SWITCH, (0, 0), true);
    assert_eq!([0, 1, 2, 3].map(|backend| balancer.takes(0, backend)), [true, false, false, true]);
}

#[test]
fn nobody_stays_down_who_will_not_be_asked() {
    let without_probe = |config: &mut OpenFlow| config.probe_ns = 0;
    let without_tcp = |config: &mut OpenFlow| config.services[0].addresses[0].0.protocol = protocol::UDP;
    let as_slave = |config: &mut OpenFlow| config.role = Role::Slave;
    let changes: [&dyn Fn(&mut OpenFlow); 3] = [&without_probe, &without_tcp, &as_slave];
    for change in changes {
        for has_left in [false, true] {
            let (mut config, mut balancer) = mostly_down(0, OnFailure::Reset);
            if has_left {
                balancer.leave(Instant(2), SWITCH);
            }
            renew(&mut balancer, Instant(2), &config, &config);
            assert_eq!([0, 1, 2, 3].map(|backend| balancer.takes(0, backend)), [true, false, false, false]);
            let before = config.clone();
            change(&mut config);
            renew(&mut balancer, Instant(2), &before, &config);
            assert!((0..4).all(|backend| balancer.takes(0, backend)));
        }
    }
}

#[test]
fn who_is_down_stays_so_until_somebody_has_asked() {
    let down = |balancer: &Balancer| balancer.counts(0).1.iter().map(|count| count.is_down).collect::<Vec<_>>();
    for on_failure in [OnFailure::Keep, OnFailure::Reset] {
        let (_, mut balancer) = mostly_down(0, on_failure);
        let health = balancer.health();
        balancer.leave(Instant(2), SWITCH);
        assert_eq!(down(&balancer), [false, true, true, true], "nobody is there");
        // It is there again, and so is another; neither has asked.
        assert!(balancer.join(Instant(3), SWITCH) && balancer.join(Instant(3), SWITCH + 1));
        assert_eq!((down(&balancer), balancer.health()), (vec![false, true, true, true], health));
        assert_eq!(at(&mut balancer, Instant(3), key(1), true), Ok(0));
        // The first answers decide: one is up, one is down still, and the last was not asked.
        assert!(balancer.found(SWITCH, (0, 1), true) && !balancer.found(SWITCH, (0, 2), false));
        assert_eq!(down(&balancer), [false, false, true, true]);
        // Another one's opinion counts when this one leaves, or does not ask any more.
        assert!(!balancer.found(SWITCH + 1, (0, 1), false));
        balancer.asks_no_more(SWITCH);
        assert_eq!(down(&balancer), [false, true, true, true]);
        balancer.leave(Instant(4), SWITCH);
        // Its successor never asks: who does says who is up.
        assert!(balancer.join(Instant(5), SWITCH));
        assert!((1..4).all(|backend| balancer.found(SWITCH + 1, (0, backend), true)));
        assert_eq!(down(&balancer), [false; 4]);
    }
}

#[test]
fn a_client_does_not_stay_at_a_backend_that_is_down_though_health_is_ignored() {
    let (config, mut balancer) = start_with_affinity(Policy::RoundRobin);
    assert_eq!(config.services[0].panic_ppm, 500_000);
    assert!(balancer.join(Instant(1), SWITCH));
    assert_eq!(at(&mut balancer, Instant(1), of_client(1, 1), true), Ok(0));
    for backend in 0..3 {
        balancer.found(SWITCH, (0, backend), false);
    }
    assert!(balancer.ignores_health(0));
    assert_ne!(at(&mut balancer, Instant(2), of_client(1, 2), true), Ok(0));
    assert_eq!(balancer.counts(0).0.stayed, 0);
}

/// Of three backends at a service by TCP and by UDP, the connections 0 to 29 of each.
fn with_datagrams() -> (OpenFlow, Balancer, Vec<(Key, usize)>) {
    let mut config = config("reactive", 3);
    config.services[0].on_failure = OnFailure::Reset;
    config.probe_ns = 1_000_000_000;
    let mut datagrams = config.services[0].addresses[0];
    datagrams.0.protocol = protocol::UDP;
    config.services[0].addresses.push(datagrams);
    let mut balancer = Balancer::new(&config, &Rules::of(&config), 1);
    assert!(balancer.join(Instant(1), SWITCH));
    let keys = (0..60).map(|n| Key { front: n % 2, ..key(n as u32 / 2) });
    let all = keys.map(|key| (key, at(&mut balancer, Instant(1), key, true).unwrap())).collect();
    (config, balancer, all)
}

#[test]
fn connections_are_remembered_under_another_configuration() {
    let (config, mut balancer, all) = with_datagrams();
    let called = |config: &OpenFlow, backend: usize| config.services[0].backends[backend].name.clone();
    // Every third one is idle since, and every third one since long ago.
    let (long_ago, since, now) = (Instant(5), Instant(100_000_000_000), Instant(200_000_000_000));
    for (n, (key, _)) in all.iter().enumerate().filter(|(n, _)| n % 3 > 0) {
        balancer.gone(if n % 3 == 1 { long_ago } else { since }, SWITCH, *key);
    }
    // Addresses and backends change places, one takes nothing more, and a service comes first.
    let mut turned = config.clone();
    turned.services[0].addresses.reverse();
    turned.services[0].backends.reverse();
    turned.services[0].backends[1].weight = 0;
    let mut other = turned.services[0].clone();
    other.name = "other".to_owned();
    other.addresses.truncate(1);
    other.addresses[0].0.port = 99;
    turned.services.insert(0, other);
    renew(&mut balancer, now, &config, &turned);
    assert_eq!((balancer.room().0, live(&balancer)), (60, BTreeMap::new()), "none is live until a switch says so");
    assert!(balancer.counts(1).1.iter().all(|count| count.live == 0));
    let of = |key: Key| Key { front: 2 - key.front, ..key };
    for (n, (key, backend)) in all.iter().enumerate() {
        if key.front == 1 {
            assert!(balancer.goes_on(now, of(*key)));
        }
        // A switch names some, as ever.
        if n % 4 == 0 {
            let at = turned.services[1].backends.iter().position(|one| one.name == called(&config, *backend));
            assert!(balancer.known(now, SWITCH, of(*key), at.unwrap(), 9));
        }
        let found = at(&mut balancer, now, of(*key), false).map(|backend| called_in(&turned, 1, backend));
        assert_eq!(found, Ok(called(&config, *backend)), "{n}");
    }
    assert_eq!(balancer.counts(1).1.iter().map(|count| count.live).sum::<u32>(), 60);
    (0..60).for_each(|n| balancer.gone(now, SWITCH, of(all[n].0)));
    assert_eq!((balancer.of_client[&all[0].0.client.ip], balancer.of_switch[&SWITCH]), (2, 60));
}

fn called_in(config: &OpenFlow, service: usize, backend: usize) -> String {
    config.services[service].backends[backend].name.clone()
}

#[test]
fn another_configuration_remembers_no_longer_and_no_more_than_there_is_room_for() {
    let (config, mut balancer, all) = with_datagrams();
    let (long_ago, now) = (Instant(5), Instant(200_000_000_000));
    let (idle, open) = all.split_at(40);
    idle.iter().for_each(|(key, _)| balancer.gone(long_ago, SWITCH, *key));
    // One was cut, and stays so though its backend is up again.
    let (cut, backend) = open[0];
    balancer.found(SWITCH, (0, backend), false);
    assert_eq!(at(&mut balancer, now, cut, false), Err(Refused::Cut(backend)));
    balancer.found(SWITCH, (0, backend), true);
    renew(&mut balancer, now, &config, &config);
    assert_eq!(at(&mut balancer, now, cut, false), Err(Refused::Cut(backend)));
    assert_eq!(balancer.room().0, 60);
    // What was idle is forgotten at its time, what was open later.
    balancer.age(long_ago.plus_ns(REMEMBERED_NS));
    assert_eq!(balancer.room().0, 20);
    // There is less room, and a backend has gone: those that were open last are remembered.
    let mut less = config.clone();
    (less.connections, less.services[0].backends) = (10, less.services[0].backends.split_off(1));
    renew(&mut balancer, now, &config, &less);
    assert_eq!(balancer.room(), (10, 10));
    assert!(balancer.connections.iter().all(|(_, key, _)| open.iter().any(|(one, _)| one == key)));
    let kept = open.iter().rev().filter(|(_, backend)| *backend > 0).take(10);
    for (key, backend) in kept {
        assert_eq!(
            balancer.connections.find(key).map(|id| balancer.connections.get(id).unwrap().backend + 1),
            Some(*backend)
        );
    }
}

/// Two services with the same backends, and a client's connections to both from one port.
fn of_two_services(protocol: u8) -> (Balancer, [Key; 2]) {
    let mut config = config("reactive", 2);
    config.services[0].addresses[0].0.protocol = protocol;
    let mut other = config.services[0].clone();
    other.name = "other".to_owned();
    other.addresses[0].0.port = 81;
    config.services.push(other);
    (Balancer::new(&config, &Rules::of(&config), 1), [0, 1].map(|front| Key { front, ..key(1) }))
}

#[test]
fn a_client_port_is_used_at_a_backend_by_one_service_at_a_time() {
    let (mut balancer, [first, second]) = of_two_services(protocol::TCP);
    let now = Instant(1);
    assert_eq!(at(&mut balancer, now, first, true), Ok(0));
    assert_eq!(at(&mut balancer, now, second, true), Ok(1), "though it is the first one's turn");
    // Another port of it is not concerned.
    let from = |port| Key { client: Client { port, ..first.client }, ..second };
    assert!((7..9).any(|port| at(&mut balancer, now, from(port), true) == Ok(0)));

    // Where all are taken, who is there stays: the client's SYN gets no answer till then.
    let (mut balancer, _) = of_two_services(protocol::TCP);
    assert_eq!(at(&mut balancer, now, first, true), Ok(0));
    assert!(balancer.join(now, SWITCH) && balancer.found(SWITCH, (1, 1), false));
    assert_eq!(at(&mut balancer, now, second, true), Err(Refused::Taken));
    assert_eq!((at(&mut balancer, now, first, false), balancer.counts(1).0.refused), (Ok(0), 1));
    // What is idle, and may be over, does not hold anybody up.
    balancer.gone(now, SWITCH, first);
    assert_eq!(at(&mut balancer, now, second, true), Ok(0));
    // And the second backend is one that takes connections, as before.
    balancer.found(SWITCH, (1, 1), true);
    assert!((7..9).any(|port| at(&mut balancer, now, from(port), true) == Ok(1)));

    // Datagrams of one port may be for many: they are not held up.
    let (mut balancer, _) = of_two_services(protocol::UDP);
    assert!(balancer.join(now, SWITCH) && balancer.found(SWITCH, (1, 1), false));
    assert_eq!((at(&mut balancer, now, first, true), at(&mut balancer, now, second, true)), (Ok(0), Ok(0)));
}

#[test]
fn who_stays_at_a_backend_and_has_its_port_in_use_there_goes_elsewhere_once() {
    let mut config = config("reactive", 2);
    (config.services[0].affinity, config.services[0].affinity_ns) = (true, 60_000_000_000);
    let mut other = config.services[0].clone();
    other.name = "other".to_owned();
    other.addresses[0].0.port = 81;
    config.services.push(other);
    let mut balancer = Balancer::new(&config, &Rules::of(&config), 1);
    let now = Instant(1);
    let from = |front: usize, port: u16| Key { front, client: Client { port, ..key(1).client } };
    let home = at(&mut balancer, now, from(0, 1), true).unwrap();
    assert_eq!(at(&mut balancer, now, from(1, 2), true), Ok(home), "its first one in each service");
    assert_eq!(at(&mut balancer, now, from(0, 20), true), Ok(home));
    assert_eq!(at(&mut balancer, now, from(1, 20), true), Ok(1 - home));
    assert_eq!(at(&mut balancer, now, from(1, 21), true), Ok(home), "it stays there still");
}
