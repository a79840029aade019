//! Health checks: the switch asks backends, and who is not well gets no new connections.

use super::*;
use crate::service::{Ask, Check, Http, OnFailure, Tls};

mod anew;

const SECOND: u64 = 1_000_000_000;

/// Frames that the switch sends for itself until `until`, each with the time; what `respond`
/// answers goes back.
pub(super) fn run(
    rig: &mut Rig,
    until: Instant,
    mut respond: impl FnMut(u32, &[u8]) -> Option<build::Build<'static>>,
) -> Vec<u32> {
    let mut to = Vec::new();
    while let Some(due) = rig.switch.poll_timeout().filter(|&due| due <= until) {
        rig.now = rig.now.max(due);
        while let Some((port, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
            let bytes = rig.pool.bytes(&frame).to_vec();
            rig.pool.free(frame);
            let layout = parse(&bytes).unwrap();
            if Tcp::of(&bytes, &layout).unwrap().flags() == SYN {
                to.push(port.0);
            }
            if let Some(build) = respond(port.0, &bytes) {
                let frame = build.frame(&mut rig.pool).expect("a buffer");
                let (now, from) = (rig.now, PortId(port.0));
                let explained = rig.switch.explain(&rig.pool, now, from, &frame);
                assert_eq!(explained.verdict, rig.switch.rx(&mut rig.pool, now, from, frame), "{explained}");
            }
        }
    }
    rig.now = until;
    to
}

/// Sends a frame, for which one other leaves at once: to which port.
pub(super) fn at_once(rig: &mut Rig, port: u32, frame: &build::Build<'_>) -> u8 {
    let frame = frame.frame(&mut rig.pool).expect("a buffer");
    assert_eq!(rig.switch.rx(&mut rig.pool, rig.now, PortId(port), frame), FORWARDED);
    let (to, frame) = rig.switch.tx(&mut rig.pool, rig.now).expect("a frame");
    rig.pool.free(frame);
    assert!(rig.switch.tx(&mut rig.pool, rig.now).is_none());
    to.0 as u8
}

/// Opens a connection while no time passes, and so no check is due.
pub(super) fn connect(rig: &mut Rig, port: u16) -> u8 {
    let backend = at_once(rig, 1, &ask(port, SYN, (99, 0)));
    assert_eq!(at_once(rig, backend.into(), &answer(backend, port, SYN_ACK, (499, 100))), 1);
    assert_eq!(at_once(rig, 1, &ask(port, ACK, (100, 500))), backend);
    backend
}

/// What a server answers whose port is open: it accepts, and to a request it says `status`.
pub(super) fn open(bytes: &[u8], status: &str) -> Option<build::Build<'static>> {
    let layout = parse(bytes).unwrap();
    let tcp = Tcp::of(bytes, &layout).unwrap();
    let (source, destination) = (super::source(bytes), super::destination(bytes));
    let (ip, own) = match crate::wire::Ipv4::of(bytes, &layout) {
        Some(ip) => (IpAddr::from(ip.source()), IpAddr::from(ip.destination())),
        None => {
            let ip = crate::wire::Ipv6::of(bytes, &layout).unwrap();
            (ip.source().into(), ip.destination().into())
        }
    };
    let (port, own_port) = (tcp.source(), tcp.destination());
    let frame = |sequence| eth(destination, source).ip(own, ip).tcp(own_port, port, sequence);
    let payload = &bytes[usize::from(layout.payload_offset)..layout.end as usize];
    match tcp.flags() {
        SYN => Some(frame(7000).ack(tcp.sequence().wrapping_add(1), 1000).flags(SYN_ACK)),
        flags if flags & RST != 0 => None,
        _ if payload.is_empty() => None,
        _ => {
            let ack = tcp.sequence().wrapping_add(payload.len() as u32);
            assert!(payload.starts_with(b"GET /health HTTP/1.1\r\nHost: ") && payload.ends_with(b"\r\n\r\n"));
            Some(frame(7001).ack(ack, 1000).payload(format!("HTTP/1.1 {status} Whatever\r\n\r\n").into_bytes()))
        }
    }
}

/// The reset of a server whose port is closed.
fn closed(bytes: &[u8]) -> Option<build::Build<'static>> {
    let tcp = Tcp::of(bytes, &parse(bytes).unwrap()).unwrap();
    (tcp.flags() == SYN).then(|| open(bytes, "").unwrap().flags(RST | ACK))
}

pub(super) fn checked(ask: Ask) -> Rig {
    let mut rig = rig(Policy::RoundRobin);
    let two = vec![backend(2, Some(1)), backend(3, Some(2))];
    let check = Check { ask, ..Check::default() };
    rig.change_service(Service { check: Some(check), ..service(Policy::RoundRobin, two) });
    rig
}

fn down(rig: &Rig) -> Vec<bool> {
    rig.switch.service_backends(FIRST).map(|(_, _, stats)| stats.is_down).collect()
}

pub(super) fn after(rig: &Rig, seconds: u64) -> Instant {
    rig.now.plus_ns(seconds * SECOND)
}

#[test]
fn each_backend_is_asked_once_a_second_and_nobody_else_sees_it() {
    let mut rig = checked(Ask::Port);
    let until = after(&rig, 20);
    let asked = run(&mut rig, until, |_, bytes| open(bytes, ""));
    for port in [2, 3] {
        let n = asked.iter().filter(|&&to| to == port).count();
        assert!((18..=22).contains(&n), "{n} to {port}");
    }
    assert_eq!(asked.iter().filter(|&&to| ![2, 3].contains(&to)).count(), 0);
    assert_eq!(down(&rig), [false; 2]);
    assert_eq!(rig.switch.connections().0, 0, "they are no connections of the service");
    rig.switch.clear(&mut rig.pool);
    assert_eq!(rig.pool.in_use(), 0);
}

#[test]
fn a_backend_is_down_after_three_failures_and_up_after_two_that_succeed() {
    let mut rig = checked(Ask::Port);
    let until = after(&rig, 3);
    run(&mut rig, until, |_, bytes| open(bytes, ""));
    let connected = connect(&mut rig, 1);
    assert_eq!(connected, 2);
    for (answers, first) in [(closed as fn(&[u8]) -> _, 10), (|_: &[u8]| None, 40)] {
        let until = after(&rig, 2);
        run(&mut rig, until, |to, bytes| if to == 2 { answers(bytes) } else { open(bytes, "") });
        assert_eq!(down(&rig), [false; 2], "two failures are none");
        let until = after(&rig, 3);
        run(&mut rig, until, |to, bytes| if to == 2 { answers(bytes) } else { open(bytes, "") });
        assert_eq!(down(&rig), [true, false]);
        assert!((first..first + 10).all(|port| connect(&mut rig, port) == 3), "no new connection");
        assert_eq!(at_once(&mut rig, 1, &ask(1, ACK, (100, 500))), 2, "those that are open stay");
        let until = after(&rig, 4);
        run(&mut rig, until, |_, bytes| open(bytes, ""));
        assert_eq!(down(&rig), [false; 2]);
        assert!((first + 10..first + 20).any(|port| connect(&mut rig, port) == 2));
    }
    let stats: Vec<_> = rig.switch.service_backends(FIRST).map(|(_, _, stats)| stats).collect();
    assert_eq!((stats[0].falls, stats[1].falls), (2, 0));
    assert!(stats[0].failed_checks >= 6 && stats[1].failed_checks == 0);
}

#[test]
fn the_first_check_decides_alone() {
    let mut rig = checked(Ask::Port);
    let until = after(&rig, 1);
    run(&mut rig, until, |to, bytes| if to == 2 { closed(bytes) } else { open(bytes, "") });
    assert_eq!(down(&rig), [true, false]);
    assert!((1..9).all(|port| connect(&mut rig, port) == 3));
}

#[test]
fn while_most_are_down_health_is_ignored_and_that_is_counted() {
    let mut rig = checked(Ask::Port);
    let until = after(&rig, 5);
    run(&mut rig, until, |_, bytes| closed(bytes));
    assert_eq!(down(&rig), [true; 2]);
    let backends: Vec<u8> = (1..=4).map(|port| connect(&mut rig, port)).collect();
    assert_eq!(backends, [2, 3, 2, 3]);
    assert_eq!(rig.switch.service_stats(FIRST).unwrap().unhealthy, 4);
}

#[test]
fn http_goes_by_the_status() {
    for (status, is_down) in [("200", false), ("301", false), ("404", true), ("503", true), ("2x0", true)] {
        let mut rig = checked(Ask::Http(Http { path: "/health".to_owned(), ..Http::default() }));
        let until = after(&rig, 5);
        run(&mut rig, until, |to, bytes| open(bytes, if to == 2 { status } else { "200" }));
        assert_eq!(down(&rig), [is_down, false], "{status}");
        rig.switch.clear(&mut rig.pool);
        assert_eq!(rig.pool.in_use(), 0);
    }
}

#[test]
fn tls_goes_by_the_servers_hello() {
    let hello = [22, 3, 3, 0, 90, 2, 0, 0, 86, 3, 3, 7, 7, 7].to_vec();
    let alert = [21, 3, 3, 0, 2, 2, 40].to_vec();
    let client = [22, 3, 1, 0, 90, 1, 0, 0, 86, 3, 3, 7, 7, 7].to_vec();
    for host in [None, Some("www.example.com".to_owned())] {
        for (says, is_down) in
            [(&hello, false), (&alert, true), (&client, true), (&b"HTTP/1.1 400 Bad Request".to_vec(), true)]
        {
            let mut rig = checked(Ask::Tls(Tls { host: host.clone() }));
            let until = after(&rig, 5);
            let mut asked = Vec::new();
            run(&mut rig, until, |to, bytes| {
                let layout = parse(bytes).unwrap();
                let payload = &bytes[usize::from(layout.payload_offset)..layout.end as usize];
                if payload.is_empty() {
                    return open(bytes, "");
                }
                asked.push(payload.to_vec());
                let tcp = Tcp::of(bytes, &layout).unwrap();
                let ip = crate::wire::Ipv4::of(bytes, &layout).unwrap();
                let (source, destination) = (super::source(bytes), super::destination(bytes));
                let says = if to == 2 { says } else { &hello };
                let frame = eth(destination, source).ipv4(ip.destination(), ip.source()).tcp(
                    tcp.destination(),
                    tcp.source(),
                    7001,
                );
                let ack = tcp.sequence().wrapping_add(payload.len() as u32);
                Some(frame.ack(ack, 1000).payload(says.clone()))
            });
            assert_eq!(down(&rig), [is_down, false], "{says:?}");
            rig.switch.clear(&mut rig.pool);
            assert_eq!(rig.pool.in_use(), 0);
            // Lengths say what is there: of the record, the message, and behind the suites.
            let first = &asked[0];
            let number = |at: usize| usize::from(u16::from_be_bytes([first[at], first[at + 1]]));
            assert_eq!((first[0], number(3) + 5, first[5], number(7) + 9), (22, first.len(), 1, first.len()));
            let suites = 9 + 2 + 32 + 1 + 32;
            let extensions = suites + 2 + number(suites) + 2;
            assert_eq!(extensions + 2 + number(extensions), first.len());
            let named = host.as_ref().map(|host| first.windows(host.len()).any(|part| part == host.as_bytes()));
            assert_ne!(named, Some(false));
            assert!(asked.iter().all(|one| one.len() == first.len()) && asked[1..].iter().any(|one| one != first));
        }
    }
}

#[test]
fn nobody_else_can_answer_and_nothing_unasked_counts() {
    let mut rig = checked(Ask::Port);
    let until = after(&rig, 1);
    run(&mut rig, until, |to, bytes| if to == 2 { closed(bytes) } else { open(bytes, "") });
    assert_eq!(down(&rig), [true, false]);
    let until = after(&rig, 6);
    let mut attacks = Vec::new();
    run(&mut rig, until, |to, bytes| {
        if to != 2 {
            return open(bytes, "");
        }
        let good = open(bytes, "").unwrap();
        attacks.push(good.clone());
        // With another number it is none.
        Some(good.ack(1, 1000))
    });
    assert_eq!(down(&rig), [true, false]);
    // From another endpoint the guard drops it; from outside it is a loop; and later it is answered
    // as any segment to a closed port.
    let good = attacks.last().unwrap();
    assert_eq!(rig.send(4, good).0, dropped(Reason::SpoofedMac));
    assert_eq!(rig.send(0, &good.clone().vlan(10)).0, dropped(Reason::Loop));
    assert_eq!(down(&rig), [true, false]);
}

#[test]
fn a_machine_outside_is_asked_in_its_vlan() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1)], |program| {
        let check = Some(Check::default());
        program.services.push(Service { check, ..service(Policy::RoundRobin, vec![backend(50, None)]) });
    });
    let until = after(&rig, 3);
    let asked = run(&mut rig, until, |_, bytes| {
        assert_eq!(parse(bytes).unwrap().vlan, Some(10));
        Some(open(bytes, "")?.vlan(10))
    });
    assert!(asked.len() >= 2 && asked.iter().all(|&to| to == 0));
    let stats = rig.switch.service_backends(FIRST).next().unwrap().2;
    assert!(stats.checks >= 2 && stats.failed_checks == 0);
}

#[test]
fn checks_that_succeed_end_an_ejection() {
    let mut rig = checked(Ask::Port);
    let until = after(&rig, 2);
    run(&mut rig, until, |_, bytes| open(bytes, ""));
    // Its server refuses connections that were under way, and comes back.
    let to: Vec<u8> = (1..11).map(|port| at_once(&mut rig, 1, &ask(port, SYN, (99, 0)))).collect();
    for (port, _) in (1..11).zip(to).filter(|(_, to)| *to == 2) {
        at_once(&mut rig, 2, &answer(2, port, RST | ACK, (0, 100)));
    }
    let ejected = |rig: &Rig| rig.switch.service_backends(FIRST).next().unwrap().2.ejected_until > Some(rig.now);
    assert!(ejected(&rig));
    let until = after(&rig, 4);
    run(&mut rig, until, |_, bytes| open(bytes, ""));
    assert!(!ejected(&rig));
}

#[test]
fn after_one_failure_a_backend_waits_for_the_next_check() {
    let mut rig = checked(Ask::Port);
    let until = after(&rig, 2);
    run(&mut rig, until, |_, bytes| open(bytes, ""));
    let to: Vec<u8> = (1..3).map(|port| at_once(&mut rig, 1, &ask(port, SYN, (99, 0)))).collect();
    assert_eq!(to, [2, 3]);
    at_once(&mut rig, 2, &answer(2, 1, RST | ACK, (0, 100)));
    assert!((10..30).all(|port| connect(&mut rig, port) == 3));
    let until = after(&rig, 2);
    run(&mut rig, until, |_, bytes| open(bytes, ""));
    assert!((30..33).any(|port| connect(&mut rig, port) == 2));
}

#[test]
fn a_service_of_ipv6_is_checked_too() {
    let mut rig = rig(Policy::RoundRobin);
    let two = vec![backend(2, Some(1)), backend(3, Some(2))];
    let mut of_v6 = service(Policy::RoundRobin, two);
    of_v6.addresses.retain(|address| address.ip.is_ipv6());
    let ask = Ask::Http(Http { path: "/health".to_owned(), ..Http::default() });
    of_v6.check = Some(Check { ask, ..Check::default() });
    rig.change_service(of_v6);
    let until = after(&rig, 5);
    run(&mut rig, until, |to, bytes| {
        assert!(crate::wire::Ipv6::of(bytes, &parse(bytes).unwrap()).is_some());
        open(bytes, if to == 2 { "200" } else { "500" })
    });
    assert_eq!(down(&rig), [false, true]);
}

#[test]
fn a_backend_whose_tcp_the_switch_looks_after_is_checked_too() {
    for mode in crate::vcc::Mode::ALL {
        let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2), (0, 3), (0, 4)], |program| {
            program.tenants[0].vcc = mode.into();
            let two = vec![backend(2, Some(1)), backend(3, Some(2))];
            let ask = Ask::Http(Http { path: "/health".to_owned(), ..Http::default() });
            let check = Some(Check { ask, ..Check::default() });
            program.services.push(Service { check, ..service(Policy::RoundRobin, two) });
        });
        let until = after(&rig, 5);
        run(&mut rig, until, |to, bytes| open(bytes, if to == 2 { "200" } else { "500" }));
        assert_eq!(down(&rig), [false, true], "{mode:?}");
    }
}

#[test]
fn a_request_names_whom_it_is_for() {
    let first = |http: &Http, ip: IpAddr, port| {
        let request = http.request(Address { ip, protocol: protocol::TCP, port });
        String::from_utf8(request).unwrap().lines().take(2).collect::<Vec<_>>().join(" ")
    };
    let http = Http::default();
    assert_eq!(first(&http, ip(100).into(), 80), "GET / HTTP/1.1 Host: 10.0.0.100");
    assert_eq!(first(&http, v6(100).into(), 8080), "GET / HTTP/1.1 Host: [fd00::64]:8080");
    let named = Http { host: Some("www.example.com".to_owned()), ..http };
    assert_eq!(first(&named, ip(100).into(), 80), "GET / HTTP/1.1 Host: www.example.com");
}

/// The same, of backends of which one answers no check any more.
fn one_down(rig: &mut Rig, change: impl FnOnce(&mut Service)) {
    let two = vec![backend(2, Some(1)), backend(3, Some(2))];
    let mut service = Service { check: Some(Check::default()), ..service(Policy::RoundRobin, two) };
    change(&mut service);
    rig.change_service(service);
    let until = after(rig, 10);
    run(rig, until, |to, bytes| if to == 2 { None } else { open(bytes, "") });
}

#[test]
fn with_on_failure_reset_connections_of_a_backend_that_is_down_end() {
    let mut rig = checked(Ask::Port);
    let until = after(&rig, 3);
    run(&mut rig, until, |_, bytes| open(bytes, ""));
    assert_eq!([connect(&mut rig, 1), connect(&mut rig, 2), connect(&mut rig, 3)], [2, 3, 2]);
    // Frames that are passed on without being looked up.
    (0..4).for_each(|_| assert_eq!(at_once(&mut rig, 1, &ask(1, ACK, (100, 500))), 2));
    one_down(&mut rig, |service| service.on_failure = OnFailure::Reset);
    assert_eq!(down(&rig), [true, false]);
    let send = |rig: &mut Rig, port, frame: &build::Build<'_>| {
        let (_, out) = rig.send_for_bytes(port, frame);
        let flags = |bytes: &[u8]| Tcp::of(bytes, &parse(bytes).unwrap()).map(|tcp| tcp.flags());
        let mut told: Vec<_> = out.iter().map(|(to, bytes)| (*to, flags(bytes))).collect();
        // Beside the checks of this moment.
        told.retain(|(_, flags)| flags.is_none_or(|flags| flags & RST != 0));
        told.sort_unstable();
        told
    };
    assert_eq!(send(&mut rig, 1, &ask(1, ACK, (100, 500))), [(1, Some(RST)), (2, Some(RST | ACK))]);
    assert_eq!(send(&mut rig, 2, &answer(2, 3, ACK, (500, 100))), [(1, Some(RST | ACK)), (2, Some(RST))]);
    assert_eq!(send(&mut rig, 1, &ask(2, ACK, (100, 500))), [], "the other one's stay");
    let cut: Vec<u64> = rig.switch.service_backends(FIRST).map(|(_, _, stats)| stats.cut).collect();
    assert_eq!(cut, [2, 0]);
    assert_eq!(connect(&mut rig, 1), 3, "its client connects again");
}

/// What is cut at once would be no service.
#[test]
fn with_on_failure_reset_a_backend_that_is_down_gets_nothing_though_health_is_ignored() {
    for panic_ppm in [0, 1_000_000] {
        let mut rig = rig(Policy::RoundRobin);
        one_down(&mut rig, |service| (service.on_failure, service.panic_ppm) = (OnFailure::Reset, panic_ppm));
        assert_eq!(down(&rig), [true, false]);
        let got: Vec<u8> = (1..9).map(|port| connect(&mut rig, port)).collect();
        assert_eq!(got, [3; 8], "{panic_ppm}");
        assert!((1..9).all(|port| at_once(&mut rig, 1, &ask(port, ACK, (100, 500))) == 3), "{panic_ppm}");
        // With none that is not down, clients are refused.
        one_down(&mut rig, |service| {
            (service.on_failure, service.panic_ppm) = (OnFailure::Reset, panic_ppm);
            service.backends.truncate(1);
        });
        let (_, out) = rig.send_for_bytes(1, &ask(9, SYN, (99, 0)));
        let to: Vec<u32> = out.iter().filter(|(to, _)| *to < 3).map(|(to, _)| *to).collect();
        assert_eq!(to[0], 1, "{panic_ppm}: a reset");
    }
}

#[test]
fn panic_says_how_much_must_be_well_for_health_to_count() {
    for (panic_ppm, ignored) in [(0, false), (500_000, false), (510_000, true), (1_000_000, true)] {
        let mut rig = rig(Policy::RoundRobin);
        one_down(&mut rig, |service| service.panic_ppm = panic_ppm);
        assert_eq!(down(&rig), [true, false]);
        let got: Vec<u8> = (1..5).map(|port| connect(&mut rig, port)).collect();
        assert_eq!(got.contains(&2), ignored, "{panic_ppm}: {got:?}");
    }
    // With none that is well: all the same, or nobody.
    for (panic_ppm, ignored) in [(0, false), (500_000, true)] {
        let mut rig = rig(Policy::RoundRobin);
        one_down(&mut rig, |service| {
            service.panic_ppm = panic_ppm;
            service.backends.truncate(1);
        });
        let (_, out) = rig.send_for_bytes(1, &ask(1, SYN, (99, 0)));
        let to: Vec<u32> = out.iter().filter(|(to, _)| *to < 3).map(|(to, _)| *to).collect();
        assert_eq!(to[0], if ignored { 2 } else { 1 }, "{panic_ppm}: it or a reset");
    }
}

/// Two backends of least in flight, ten connections each, all of whose clients wait for an answer.
fn both_busy(most: Option<u32>) -> Rig {
    let mut rig = checked(Ask::Port);
    let limited = |n, port| Backend { max_connections: most, ..backend(n, Some(port)) };
    let check = Check { ask: Ask::Port, ..Check::default() };
    let two = vec![limited(2, 1), limited(3, 2)];
    rig.change_service(Service { check: Some(check), ..service(Policy::LeastInflight, two) });
    let until = after(&rig, 3);
    run(&mut rig, until, |_, bytes| open(bytes, ""));
    for port in 1..=20 {
        let backend = connect(&mut rig, port);
        assert_eq!(at_once(&mut rig, 1, &ask(port, ACK, (100, 500)).payload(vec![1; 10])), backend);
    }
    assert_eq!(busy(&rig), [10, 10]);
    rig
}

fn busy(rig: &Rig) -> Vec<u32> {
    rig.switch.service_backends(FIRST).map(|(_, _, stats)| stats.busy + stats.idle).collect()
}

/// The first backend says nothing until it is down; then it is up again.
fn goes_and_returns(rig: &mut Rig) {
    let until = after(rig, 6);
    run(rig, until, |to, bytes| if to == 2 { None } else { open(bytes, "") });
    assert_eq!(down(rig), [true, false]);
    assert_eq!(busy(rig), [0, 10], "nobody knows whether its connections live");
    let until = after(rig, 20);
    run(rig, until, |_, bytes| open(bytes, ""));
    assert_eq!(down(rig), [false; 2]);
}

#[test]
fn what_clients_have_left_at_a_silent_backend_does_not_count_when_it_is_back() {
    let mut rig = both_busy(None);
    goes_and_returns(&mut rig);
    // The clients have gone, and nothing says so.
    let back: Vec<u8> = (100..110).map(|port| connect(&mut rig, port)).collect();
    assert_eq!(back, [2; 10], "it has none, the other ten");
    assert_eq!(busy(&rig), [10, 10]);
    // One of those from before lives after all.
    let its = (1..=20).find(|&port| at_once(&mut rig, 1, &ask(port, ACK, (110, 500))) == 2).unwrap();
    assert_eq!(busy(&rig), [10, 10], "its client alone says nothing of its backend");
    assert_eq!(at_once(&mut rig, 2, &answer(2, its, ACK, (500, 110)).payload(vec![1; 10])), 1);
    assert_eq!(busy(&rig), [11, 10]);
    let reset = answer(2, its, RST | ACK, (510, 110));
    at_once(&mut rig, 2, &reset);
    assert_eq!(busy(&rig), [10, 10]);
    assert_eq!(rig.switch.connections().0, 30, "the others stay as long as any");
    let unconfirmed: Vec<u32> = rig.switch.service_backends(FIRST).map(|(_, _, stats)| stats.unconfirmed).collect();
    assert_eq!(unconfirmed, [9, 0], "they may live");
}

#[test]
fn a_backend_that_had_all_it_may_have_gets_connections_when_it_is_back() {
    let mut rig = both_busy(Some(10));
    goes_and_returns(&mut rig);
    assert_eq!(connect(&mut rig, 100), 2);
}

#[test]
fn datagrams_leave_a_backend_that_is_down_and_says_nothing() {
    let mut rig = both_busy(None);
    let query = |port| eth(mac(1), MAC).ipv4(ip(1), ip(100)).udp(port, 53).payload(vec![1; 9]);
    let reply = |from: u8, port| eth(mac(from), mac(1)).ipv4(ip(from), ip(1)).udp(8080, port).payload(vec![2; 99]);
    // One that its backend answers, one that it does not.
    let at_first: Vec<u16> = (5000..5020).filter(|&port| at_once(&mut rig, 1, &query(port)) == 2).take(2).collect();
    let [lives, lost] = at_first[..] else { panic!("{at_first:?}") };
    assert_eq!(at_once(&mut rig, 2, &reply(2, lives)), 1);
    let until = after(&rig, 6);
    run(&mut rig, until, |to, bytes| if to == 2 { None } else { open(bytes, "") });
    assert_eq!(down(&rig), [true, false]);
    assert_eq!(at_once(&mut rig, 2, &reply(2, lives)), 1, "checks fail, and it works");
    assert_eq!((at_once(&mut rig, 1, &query(lives)), at_once(&mut rig, 1, &query(lost))), (2, 3));
    let until = after(&rig, 20);
    run(&mut rig, until, |_, bytes| open(bytes, ""));
    assert_eq!(down(&rig), [false; 2]);
    assert_eq!((at_once(&mut rig, 1, &query(lives)), at_once(&mut rig, 1, &query(lost))), (2, 3), "both stay now");
}

#[test]
fn who_waits_gets_a_backend_as_soon_as_it_is_up() {
    let mut rig = both_busy(Some(10));
    let two: Vec<Backend> = vec![backend(2, Some(1)), backend(3, Some(2))];
    let two = two.into_iter().map(|one| Backend { max_connections: Some(10), ..one }).collect();
    let check = Check { ask: Ask::Port, ..Check::default() };
    let hold_ns = 60 * SECOND;
    rig.change_service(Service { check: Some(check), hold_ns, ..service(Policy::LeastInflight, two) });
    let until = after(&rig, 6);
    run(&mut rig, until, |to, bytes| if to == 2 { None } else { open(bytes, "") });
    assert_eq!(down(&rig), [true, false]);
    let syn = ask(500, SYN, (99, 0)).frame(&mut rig.pool).expect("a buffer");
    rig.switch.rx(&mut rig.pool, rig.now, PortId(1), syn);
    let mut given = Vec::new();
    let until = after(&rig, 20);
    run(&mut rig, until, |to, bytes| {
        let tcp = Tcp::of(bytes, &parse(bytes).unwrap()).unwrap();
        given.extend((tcp.source() == 500).then_some(to));
        open(bytes, "").filter(|_| tcp.source() != 500)
    });
    assert_eq!(given.first(), Some(&2), "{given:?}");
}

fn three() -> Rig {
    let mut rig = checked(Ask::Port);
    let check = Check { ask: Ask::Port, ..Check::default() };
    let three = vec![backend(2, Some(1)), backend(3, Some(2)), backend(4, Some(3))];
    rig.change_service(Service { check: Some(check), ..service(Policy::RoundRobin, three) });
    let until = after(&rig, 6);
    run(&mut rig, until, |to, bytes| if to == 4 { open(bytes, "") } else { None });
    assert_eq!(down(&rig), [true, true, false], "health is ignored");
    rig
}

fn query(port: u16) -> build::Build<'static> {
    eth(mac(1), MAC).ipv4(ip(1), ip(100)).udp(port, 53).payload(vec![1; 9])
}

#[test]
fn datagrams_leave_a_backend_that_they_got_while_health_was_ignored() {
    let mut rig = three();
    let port = (5000..5020).find(|&port| at_once(&mut rig, 1, &query(port)) == 2).unwrap();
    let until = after(&rig, 20);
    run(&mut rig, until, |to, bytes| if to == 2 { None } else { open(bytes, "") });
    assert_eq!(down(&rig), [true, false, false]);
    assert_ne!(at_once(&mut rig, 1, &query(port)), 2);
}

#[test]
fn datagrams_leave_a_backend_that_dies_after_it_was_found_down() {
    let mut rig = both_busy(None);
    let reply = |port| eth(mac(2), mac(1)).ipv4(ip(2), ip(1)).udp(8080, port).payload(vec![2; 99]);
    let port = (5000..5020).find(|&port| at_once(&mut rig, 1, &query(port)) == 2).unwrap();
    for _ in 0..2 {
        let until = after(&rig, 6);
        run(&mut rig, until, |to, bytes| if to == 2 { None } else { open(bytes, "") });
        assert_eq!(down(&rig), [true, false]);
        assert_eq!(at_once(&mut rig, 2, &reply(port)), 1);
        assert_eq!(at_once(&mut rig, 1, &query(port)), 2, "its datagrams are answered");
    }
    let until = after(&rig, 6);
    run(&mut rig, until, |to, bytes| if to == 2 { None } else { open(bytes, "") });
    assert_eq!(at_once(&mut rig, 1, &query(port)), 3);
}

#[test]
fn a_shorter_interval_begins_at_once() {
    let mut rig = checked(Ask::Port);
    let with = |interval_ns| {
        let check = Check { ask: Ask::Port, interval_ns, ..Check::default() };
        let two = vec![backend(2, Some(1)), backend(3, Some(2))];
        Service { check: Some(check), ..service(Policy::RoundRobin, two) }
    };
    rig.change_service(with(3600 * SECOND));
    let until = after(&rig, 400);
    run(&mut rig, until, |_, bytes| open(bytes, ""));
    rig.change_service(with(SECOND));
    let until = after(&rig, 5);
    let asked = run(&mut rig, until, |_, bytes| open(bytes, ""));
    assert!(asked.len() >= 6, "{asked:?}");
}

#[test]
fn pings_are_not_answered_for_a_service_that_refuses_all() {
    let mut rig = checked(Ask::Port);
    let check = Check { ask: Ask::Port, ..Check::default() };
    let two = vec![backend(2, Some(1)), backend(3, Some(2))];
    let two = Service { check: Some(check), panic_ppm: 0, ..service(Policy::RoundRobin, two) };
    rig.change_service(two);
    let ping = || eth(mac(1), MAC).ipv4(ip(1), ip(100)).icmp(8, 0, 7);
    assert_eq!(at_once(&mut rig, 1, &ping()), 1);
    let until = after(&rig, 6);
    run(&mut rig, until, |_, _| None);
    assert_eq!(down(&rig), [true; 2]);
    let frame = ping().frame(&mut rig.pool).expect("a buffer");
    assert_eq!(rig.switch.rx(&mut rig.pool, rig.now, PortId(1), frame), dropped(Reason::Unreachable));
}
