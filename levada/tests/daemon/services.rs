//! Services over restarts: connections go on at their backends.

use crate::restart::{Manager, persistent};
use crate::testbed::{Bed, Daemon, PATIENCE, soon, turn};
use crate::traffic::{A, B, C, NEIGHBOURS};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Stdio;

pub const PORT: u16 = 7010;
pub const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 100);
/// Connections of a test: enough that each backend has some.
const CONNECTIONS: usize = 12;

pub fn with_service<const N: usize>(text: &str, policy: &str, backends: [&str; N]) -> String {
    let backends = backends.map(|name| format!("[[switch.tenant.service.backend]]\nname = \"{name}\"\n")).concat();
    let service = format!(
        "[[switch.tenant.service]]\nname = \"web\"\naddress = \"{SERVICE}:{PORT}\"\npolicy = \"{policy}\"\n{backends}"
    );
    [text, &service].concat()
}

/// Servers in `b` and `c`, each of which puts its letter before what it sends back.
pub fn serve(bed: &Bed) {
    serve_at(bed, &[("b", B, b'b'), ("c", C, b'c')]);
}

fn serve_at(bed: &Bed, all: &[(&str, Ipv4Addr, u8)]) {
    for &(space, address, letter) in all {
        let listener = bed.listener(space, (address, PORT));
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let Ok(mut connection) = connection else { return };
                std::thread::spawn(move || {
                    let mut byte = [0; 1];
                    while connection.read_exact(&mut byte).is_ok() && connection.write_all(&[letter, byte[0]]).is_ok() {
                    }
                });
            }
        });
    }
}

/// Who answers on a connection.
pub fn ask(connection: &mut TcpStream, byte: u8) -> u8 {
    connection.write_all(&[byte]).expect("the connection lives");
    let mut answer = [0; 2];
    connection.read_exact(&mut answer).expect("the connection lives");
    assert_eq!(answer[1], byte);
    answer[0]
}

pub fn connect(bed: &Bed) -> Vec<(TcpStream, u8)> {
    let one = || bed.space("a").run(|| TcpStream::connect((SERVICE, PORT)).unwrap()).unwrap();
    let mut all: Vec<_> = (0..CONNECTIONS).map(|_| (one(), 0)).collect();
    all.iter_mut().for_each(|(connection, who)| *who = ask(connection, 1));
    all
}

fn go_on(connections: &mut [(TcpStream, u8)], byte: u8) {
    for (connection, who) in connections {
        assert_eq!(ask(connection, byte), *who, "at the same backend");
    }
}

fn count(daemon: &Daemon, what: &str) -> u64 {
    daemon.show_part("services")["services"][0][what].as_u64().unwrap()
}

#[test]
fn connections_of_a_service_survive_takeovers() {
    let Some(_turn) = turn("connections_of_a_service_survive_takeovers") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let text = with_service(NEIGHBOURS, "round-robin", ["b", "c"]);
    let mut daemon = bed.start(&text);
    serve(&bed);
    let mut connections = connect(&bed);
    for byte in 2..5 {
        daemon = {
            let next = bed.take_over(&text);
            assert!(daemon.wait().success(), "{}", daemon.log());
            next
        };
        assert_eq!(count(&daemon, "table"), CONNECTIONS as u64, "all were handed over");
        go_on(&mut connections, byte);
    }
    assert_eq!((count(&daemon, "new"), count(&daemon, "sought")), (CONNECTIONS as u64, 0));
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_client_that_has_nothing_open_stays_over_a_takeover() {
    let Some(_turn) = turn("a_client_that_has_nothing_open_stays_over_a_takeover") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let text = |backends| with_keys(&with_service(NEIGHBOURS, "round-robin", backends), "affinity = \"client\"");
    let mut daemon = bed.start(&text(["b", "c"]));
    serve(&bed);
    let (connection, who) = connect(&bed).remove(0);
    drop(connection);
    let open = |backend: &Value| ["busy", "idle"].iter().map(|what| backend[what].as_u64().unwrap()).sum::<u64>();
    soon("all end", || {
        daemon.show_part("services")["services"][0]["backends"].as_array().unwrap().iter().all(|b| open(b) == 0)
    });
    // A turn of round robin would begin with the other one.
    let mut next = bed.take_over(&text(["c", "b"]));
    assert!(daemon.wait().success(), "{}", daemon.log());
    assert!(connect(&bed).iter().all(|(_, again)| *again == who));
    assert_eq!(count(&next, "stayed"), 2 * CONNECTIONS as u64 - 1);
    assert!(next.end(Signal::TERM).success());
}

#[test]
fn clients_do_not_notice_a_backend_whose_port_is_closed() {
    let Some(_turn) = turn("clients_do_not_notice_a_backend_whose_port_is_closed") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    // Nobody listens in a.
    let text = with_service(NEIGHBOURS, "round-robin", ["a", "c"]);
    let mut daemon = bed.start(&text);
    serve(&bed);
    let one = || bed.space("b").run(|| TcpStream::connect((SERVICE, PORT))).unwrap().expect("it is not refused");
    for byte in 0..20 {
        assert_eq!(ask(&mut one(), byte), b'c');
    }
    assert_eq!((count(&daemon, "new"), count(&daemon, "redirected")), (20, 5));
    let shown = daemon.show_part("services");
    let state = |backend: usize| shown["services"][0]["backends"][backend]["state"].clone();
    assert_eq!((state(0), state(1)), ("ejected".into(), "up".into()));
    let ejected = "warning: backend s1/home/web/a is ejected for some time";
    soon("the log says so", || daemon.log().contains(ejected));
    assert!(daemon.log().contains("so far it refused 5 and did not answer 0"), "{}", daemon.log());
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn connections_of_a_service_survive_kills() {
    let Some(_turn) = turn("connections_of_a_service_survive_kills") else { return };
    for policy in ["maglev", "p2c"] {
        // Of its own, or connections of the one before that still end are found again and counted.
        let bed = Bed::new(&["a", "b", "c"]);
        let text = with_service(&persistent(), policy, ["b", "c"]);
        let mut daemon = bed.start(&text);
        serve(&bed);
        let mut connections = connect(&bed);
        assert_eq!(count(&daemon, "off_candidates"), 0);
        for byte in 2..5 {
            daemon.end(Signal::KILL);
            daemon = bed.start(&text);
            assert_eq!(count(&daemon, "table"), 0, "nothing was handed over");
            go_on(&mut connections, byte);
            assert_eq!(count(&daemon, "recovered"), CONNECTIONS as u64);
        }
        assert!(daemon.end(Signal::TERM).success());
        bed.run(&["clean", "--name", bed.name("").trim_end_matches('-')]);
    }
}

/// The process that takes over knows nothing of the connection: its switch has another name, or the
/// one before was started after a kill.
#[test]
fn a_server_that_speaks_first_after_a_takeover_reaches_its_client() {
    let Some(_turn) = turn("a_server_that_speaks_first_after_a_takeover_reaches_its_client") else { return };
    for is_renamed in [true, false] {
        let bed = Bed::new(&["a", "b", "c"]);
        let text = with_service(&persistent(), "maglev", ["b"]);
        let mut daemon = bed.start(&text);
        let listener = bed.listener("b", (B, PORT));
        let mut client = bed.space("a").run(|| TcpStream::connect((SERVICE, PORT)).unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        let pass = |from: &mut TcpStream, to: &mut TcpStream, byte| {
            let mut got = [0];
            from.write_all(&[byte]).unwrap();
            to.read_exact(&mut got).expect("the connection lives");
            assert_eq!(got, [byte]);
        };
        pass(&mut client, &mut server, 1);
        let next = if is_renamed {
            text.replace("\"s1\"", "\"s2\"")
        } else {
            daemon.end(Signal::KILL);
            daemon = bed.start(&text);
            text
        };
        let mut next = bed.take_over(&next);
        assert!(daemon.wait().success(), "{}", daemon.log());
        pass(&mut server, &mut client, 2);
        pass(&mut client, &mut server, 3);
        assert!(next.end(Signal::TERM).success());
        bed.run(&["clean", "--name", &bed.tag]);
    }
}

/// Open connections to six backends, of which each has two candidates only.
fn survive_ends(text: &str, mut again: impl FnMut(&Bed, &str, Option<Daemon>) -> Daemon) {
    let spaces = ["a", "b", "c", "d", "e", "f", "g"];
    let bed = Bed::new(&spaces);
    let last = |at: usize| Ipv4Addr::new(10, 7, 0, at as u8 + 1);
    let (_, of_c) = text.rsplit_once("[[switch.tenant.endpoint]]").unwrap();
    let more = spaces.iter().enumerate().skip(3).map(|(at, name)| {
        let one = of_c.replace("\"c\"", &format!("\"{name}\"")).replace("NS-c", &format!("NS-{name}"));
        let (mac, address) = (format!("07:0{}", at + 1), last(at).to_string());
        format!("[[switch.tenant.endpoint]]{}", one.replace("07:03", &mac).replace(&C.to_string(), &address))
    });
    let text = [text, &more.collect::<String>()].concat();
    let text = with_service(&text, "maglev", ["b", "c", "d", "e", "f", "g"]);
    let mut daemon = again(&bed, &text, None);
    let servers: Vec<_> =
        spaces.iter().enumerate().skip(1).map(|(at, name)| (*name, last(at), name.as_bytes()[0])).collect();
    serve_at(&bed, &servers);
    let mut connections = connect(&bed);
    assert_eq!(count(&daemon, "off_candidates"), 0);
    for byte in 2..4 {
        daemon = again(&bed, &text, Some(daemon));
        assert_eq!(count(&daemon, "table"), 0, "nothing was handed over");
        go_on(&mut connections, byte);
        assert_eq!(count(&daemon, "recovered"), CONNECTIONS as u64);
    }
    assert!(daemon.end(Signal::TERM).success());
    bed.run(&["clean", "--name", &bed.tag]);
    assert!(!bed.directory.join("run").join(&bed.tag).exists(), "nothing stays in the run directory");
}

#[test]
fn connections_of_a_service_survive_a_restart_by_the_service_manager() {
    let Some(_turn) = turn("connections_of_a_service_survive_a_restart_by_the_service_manager") else { return };
    let mut manager = None;
    survive_ends(NEIGHBOURS, |bed, text, before| {
        let manager = manager.get_or_insert_with(|| Manager::new(bed));
        if let Some(mut before) = before {
            before.signal(Signal::TERM);
            manager.hears("BARRIER=1");
            assert!(before.wait().success(), "{}", before.log());
        }
        let daemon = manager.start_as(bed, text);
        manager.keeps(7);
        daemon
    });
}

#[test]
fn connections_of_a_service_survive_an_end_in_order_where_devices_are_persistent() {
    let Some(_turn) = turn("connections_of_a_service_survive_an_end_in_order_where_devices_are_persistent") else {
        return;
    };
    survive_ends(&persistent(), |bed, text, before| {
        before.into_iter().for_each(|mut before| assert!(before.end(Signal::TERM).success(), "{}", before.log()));
        bed.start(text)
    });
}

/// Nothing of the client's but acknowledgements leads to the backend meanwhile.
#[test]
fn a_switch_made_anew_cuts_no_service_whose_server_speaks() {
    const PIECE: usize = 1000;
    const PIECES: usize = 300;
    let Some(_turn) = turn("a_switch_made_anew_cuts_no_service_whose_server_speaks") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let mut daemon = bed.start(&with_service(NEIGHBOURS, "round-robin", ["b", "c"]));
    for (space, address) in [("b", B), ("c", C)] {
        let listener = bed.listener(space, (address, PORT));
        std::thread::spawn(move || {
            for mut connection in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || {
                    (0..PIECES).all(|_| {
                        std::thread::sleep(std::time::Duration::from_millis(10));
                        connection.write_all(&[7; PIECE]).is_ok()
                    })
                });
            }
        });
    }
    let mut connections =
        [(); 4].map(|()| bed.space("a").run(|| TcpStream::connect((SERVICE, PORT)).unwrap()).unwrap());
    for connection in &mut connections {
        // One that is cut at its server's end is silent.
        connection.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        connection.read_exact(&mut [0; PIECE]).unwrap();
    }
    let readers = connections.map(|mut connection| {
        std::thread::spawn(move || {
            let mut read = Vec::new();
            connection.read_to_end(&mut read).map(|_| read.len())
        })
    });
    // Each time with a number that it has not had, and has had.
    for order in ["wf2q", "fair"] {
        let done = bed.run(&["set", "switch", "s1", &format!("order={order}")]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(daemon.show()["switches"][0]["order"], order);
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    for reader in readers {
        assert_eq!(reader.join().unwrap().expect("it is not cut"), (PIECES - 1) * PIECE);
    }
    assert!(daemon.end(Signal::TERM).success());
}

/// A server of HTTP in `c` that answers each request with this status.
fn serve_http(bed: &Bed, status: &'static str) {
    let listener = bed.listener("c", (C, PORT));
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(mut connection) = connection else { return };
            let mut request = [0; 512];
            let got = connection.read(&mut request).unwrap_or(0);
            if request[..got].starts_with(b"GET /health HTTP/1.1\r\n") {
                let _ = connection.write_all(format!("HTTP/1.1 {status} So\r\nContent-Length: 0\r\n\r\n").as_bytes());
            }
        }
    });
}

fn state(daemon: &Daemon, backend: usize) -> String {
    daemon.show_part("services")["services"][0]["backends"][backend]["state"].as_str().unwrap().to_owned()
}

#[test]
fn checks_find_a_closed_port_before_a_client_does() {
    let Some(_turn) = turn("checks_find_a_closed_port_before_a_client_does") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    // Nobody listens in a.
    let check = "check = { kind = \"tcp\", interval = \"200 ms\" }\n[[switch.tenant.service.backend]]\nname = \"a\"";
    let text = with_service(NEIGHBOURS, "round-robin", ["a", "c"]);
    let text = text.replacen("[[switch.tenant.service.backend]]\nname = \"a\"", check, 1);
    let mut daemon = bed.start(&text);
    serve(&bed);
    soon("a is down and c is up", || (state(&daemon, 0), state(&daemon, 1)) == ("down".into(), "up".into()));
    let down = "warning: backend s1/home/web/a is down: its health checks fail";
    soon("the log says so", || daemon.log().contains(down));
    let one = || bed.space("b").run(|| TcpStream::connect((SERVICE, PORT))).unwrap().expect("it is not refused");
    for byte in 0..20 {
        assert_eq!(ask(&mut one(), byte), b'c');
    }
    assert_eq!((count(&daemon, "new"), count(&daemon, "redirected"), count(&daemon, "unhealthy")), (20, 0, 0));
    // What is known of it goes on with the next process.
    daemon = {
        let next = bed.take_over(&text);
        assert!(daemon.wait().success(), "{}", daemon.log());
        next
    };
    assert_eq!(ask(&mut one(), 1), b'c');
    assert_eq!((state(&daemon, 0), count(&daemon, "redirected")), ("down".into(), 0));
    soon("the next process says so too", || daemon.log().contains(down));
    // Its server comes.
    let _listener = bed.listener("a", (A, PORT));
    soon("a is up", || state(&daemon, 0) == "up");
    soon("the log says so", || daemon.log().contains("backend s1/home/web/a is up again, after"));
    assert_eq!(daemon.log().matches("backend s1/home/web/").count(), 2, "once each: {}", daemon.log());
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn checks_go_by_the_status_of_http() {
    let Some(_turn) = turn("checks_go_by_the_status_of_http") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let text = with_service(NEIGHBOURS, "round-robin", ["b", "c"]);
    let check = "check = { kind = \"http\", path = \"/health\", interval = \"200 ms\", status = \"200\" }\n";
    let with = |name: &str| format!("[[switch.tenant.service.backend]]\nname = \"{name}\"");
    let text = text.replacen(&with("b"), &[check, &with("b")].concat(), 1);
    let mut daemon = bed.start(&text);
    // The one in b takes connections and answers nothing.
    let _silent = bed.listener("b", (B, PORT));
    serve_http(&bed, "200");
    soon("b is down and c is up", || (state(&daemon, 0), state(&daemon, 1)) == ("down".into(), "up".into()));
    let shown = bed.run(&["show", "services", "--name", bed.name("").trim_end_matches('-')]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(" failed"), "{shown}");
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn checks_go_by_the_hello_of_tls() {
    let Some(_turn) = turn("checks_go_by_the_hello_of_tls") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let text = with_service(NEIGHBOURS, "round-robin", ["b", "c"]);
    let check = "check = { kind = \"tls\", host = \"www.example.com\", interval = \"200 ms\" }";
    let mut daemon = bed.start(&with_keys(&text, check));
    let file = |name: &str| bed.directory.join(name).display().to_string();
    let openssl = |space: &str, words: &[&str]| {
        let mut command = std::process::Command::new("openssl");
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        bed.space(space).run(|| command.spawn().unwrap()).unwrap()
    };
    let (key, certificate) = (file("tls.key"), file("tls.pem"));
    let curve = "ec_paramgen_curve:P-256";
    let new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", curve, "-noenc", "-subj", "/CN=x", "-keyout", &key];
    assert!(openssl("c", &[&new[..], &["-out", &certificate]].concat()).wait().unwrap().success());
    // The one in b speaks HTTP in the clear; that in c speaks TLS, of one version and then of the
    // other.
    let port = PORT.to_string();
    let serve = ["s_server", "-quiet", "-accept", &port, "-key", &key, "-cert", &certificate];
    let in_clear = bed.listener("b", (B, PORT));
    std::thread::spawn(move || {
        for mut connection in in_clear.incoming().map_while(Result::ok) {
            let _ = connection.read(&mut [0; 512]);
            let _ = connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    for version in ["-tls1_3", "-tls1_2"] {
        let mut server = openssl("c", &[&serve[..], &[version]].concat());
        soon("c is up", || state(&daemon, 1) == "up");
        assert_eq!(state(&daemon, 0), "down");
        server.kill().unwrap();
        server.wait().unwrap();
        soon("c is down", || state(&daemon, 1) == "down");
    }
    assert!(daemon.end(Signal::TERM).success());
}

/// The service with these keys.
fn with_keys(text: &str, keys: &str) -> String {
    text.replacen("[[switch.tenant.service.backend]]", &[keys, "\n[[switch.tenant.service.backend]]"].concat(), 1)
}

#[test]
fn who_comes_beyond_max_connections_waits_for_a_place() {
    let Some(_turn) = turn("who_comes_beyond_max_connections_waits_for_a_place") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let text = with_service(NEIGHBOURS, "round-robin", ["b", "c"]);
    let mut daemon = bed.start(&with_keys(&text, "max_connections = 1\nhold = \"60 s\""));
    serve(&bed);
    let one = || bed.space("a").run(|| TcpStream::connect((SERVICE, PORT)).unwrap()).unwrap();
    let (mut first, mut second) = (one(), one());
    assert_ne!(ask(&mut first, 1), ask(&mut second, 1));
    let space = bed.space("a");
    let third = std::thread::spawn(move || {
        let mut connection = space.run(|| TcpStream::connect((SERVICE, PORT)).unwrap()).unwrap();
        ask(&mut connection, 3)
    });
    soon("it waits", || count(&daemon, "holding") == 1);
    let freed = ask(&mut first, 2);
    drop(first);
    assert_eq!(third.join().unwrap(), freed, "it got the place that was free");
    assert_eq!((count(&daemon, "held"), count(&daemon, "holding"), count(&daemon, "refused")), (1, 0, 0));
    ask(&mut second, 4);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn a_drained_backend_is_let_go_after_its_time() {
    let Some(_turn) = turn("a_drained_backend_is_let_go_after_its_time") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let text = with_service(NEIGHBOURS, "round-robin", ["b", "c"]);
    let mut daemon = bed.start(&with_keys(&text, "affinity = \"client\""));
    serve(&bed);
    let mut connections = connect(&bed);
    assert!(connections.iter().all(|(_, who)| *who == connections[0].1), "a client stays at its backend");
    let (at, name) = if connections[0].1 == b'b' { (0, "b") } else { (1, "c") };
    let path = daemon.show_part("services")["services"][0]["path"].as_str().unwrap().to_owned();
    let daemon_name = bed.name("");
    let set = |keys: &[&str]| {
        let backend = format!("{path}/{name}");
        let who = [&["set", "backend", &backend], keys, &["--name", daemon_name.trim_end_matches('-')]].concat();
        let done = bed.run(&who);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    set(&["drain=true", "drain_time=1 s"]);
    go_on(&mut connections, 2);
    assert_eq!(state(&daemon, at), "drain");
    soon("it is let go", || state(&daemon, at) == "drained");
    for (connection, _) in &mut connections {
        let mut answer = [0; 2];
        let is_reset = connection.write_all(&[3]).and_then(|()| connection.read_exact(&mut answer)).is_err();
        assert!(is_reset, "both sides are told");
    }
    let shown = daemon.show_part("services");
    assert_eq!(shown["services"][0]["backends"][at]["cut"], CONNECTIONS as u64);
    assert!(connect(&bed).iter().all(|(_, who)| [*who] != name.as_bytes()), "clients connect again");
    set(&["drain=false"]);
    assert_eq!(state(&daemon, at), "up", "it has the weight that it had");
    assert!(daemon.end(Signal::TERM).success());
}

/// The same endpoints behind an uplink, in the untagged network.
fn with_uplink(text: &str) -> String {
    let uplink = "name = \"s1\"\n[switch.uplink]\nport = \"packet://eth0\"\nnetns = \"NS-host\"\nrate = \"1 Gbit/s\"\n";
    text.replace("name = \"s1\"\n", uplink).replace("name = \"home\"\n", "name = \"home\"\nvlan = \"untagged\"\n")
}

/// Clients that know the address as another machine's follow as soon as the service is there
/// (docs/howto/replace-keepalived.md).
#[test]
fn clients_follow_an_address_that_another_machine_had() {
    let Some(_turn) = turn("clients_follow_an_address_that_another_machine_had") else { return };
    let bed = Bed::new(&["host", "network", "client", "director", "a", "b", "c"]);
    bed.ip("network", "link add br0 type bridge").unwrap();
    bed.ip("network", "link set br0 up").unwrap();
    for (port, space) in ["host", "client", "director"].iter().enumerate() {
        let far = bed.name(space);
        bed.ip("network", &format!("link add p{port} type veth peer name eth0 netns {far}")).unwrap();
        bed.ip("network", &format!("link set p{port} master br0 up")).unwrap();
        bed.ip(space, "link set eth0 up").unwrap();
    }
    bed.ip("client", "address add 10.7.0.9/24 dev eth0").unwrap();
    bed.ip("director", "address add 10.7.0.8/24 dev eth0").unwrap();
    bed.ip("director", &format!("address add {SERVICE}/24 dev eth0")).unwrap();
    let mut daemon = bed.start(&with_uplink(NEIGHBOURS));
    serve(&bed);
    let old = bed.listener("director", (SERVICE, PORT));
    let connect = || bed.space("client").run(|| TcpStream::connect((SERVICE, PORT))).unwrap();
    connect().expect("the director answers");
    drop(old);
    // The address goes, and is the service's.
    bed.ip("director", &format!("address del {SERVICE}/24 dev eth0")).unwrap();
    let run = |words: &[&str]| {
        let output = bed.run(words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["add", "service", "s1/home/web", &format!("address={SERVICE}:{PORT}"), "policy=round-robin"]);
    run(&["add", "backend", "s1/home/web/b"]);
    run(&["add", "backend", "s1/home/web/c"]);
    let mac = daemon.show_part("services")["services"][0]["mac"].as_str().unwrap().to_owned();
    let neighbour = || bed.ip("client", &format!("neighbour show {SERVICE}")).unwrap();
    soon("the client is told", || neighbour().contains(&mac));
    let who = [1, 2].map(|byte| ask(&mut connect().expect("the service answers"), byte));
    assert_eq!(who.into_iter().collect::<std::collections::BTreeSet<u8>>(), [b'b', b'c'].into());
    assert!(daemon.end(Signal::TERM).success());
}
