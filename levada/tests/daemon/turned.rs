//! Clients and backends that are all outside: services that are turned around.

use crate::services::{PORT, SERVICE, ask, serve};
use crate::testbed::{Bed, Daemon, soon, turn};
use crate::traffic::{B, C};
use rustix::process::Signal;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};

const SPACES: [&str; 5] = ["host", "network", "client", "b", "c"];
const MACS: [(&str, Ipv4Addr, &str); 2] = [("b", B, "02:00:00:00:07:0b"), ("c", C, "02:00:00:00:07:0c")];
const CONNECTIONS: u8 = 12;

/// The host with the switch, a client and two servers at a bridge.
fn network() -> Bed {
    let bed = Bed::new(&SPACES);
    bed.ip("network", "link add br0 type bridge").unwrap();
    bed.ip("network", "link set br0 up").unwrap();
    for (port, space) in SPACES.iter().filter(|space| **space != "network").enumerate() {
        let far = bed.name(space);
        bed.ip("network", &format!("link add p{port} type veth peer name eth0 netns {far}")).unwrap();
        bed.ip("network", &format!("link set p{port} master br0 up")).unwrap();
        bed.ip(space, "link set eth0 up").unwrap();
    }
    for (space, address, mac) in MACS {
        bed.ip(space, &format!("link set eth0 address {mac}")).unwrap();
        bed.ip(space, &format!("address add {address}/24 dev eth0")).unwrap();
    }
    bed.ip("client", "address add 10.7.0.9/24 dev eth0").unwrap();
    bed
}

/// A director before them; `keys` are of the service.
fn directed(keys: &str) -> String {
    let backend = |(name, address, mac): (&str, Ipv4Addr, &str)| {
        format!("[[switch.tenant.service.backend]]\nname = \"{name}\"\nip = \"{address}\"\nmac = \"{mac}\"\n")
    };
    let backends = MACS.map(backend).concat();
    format!(
        r#"
[daemon]
name = "NAME"

[[switch]]
name = "s1"

[switch.uplink]
port = "packet://eth0"
netns = "NS-host"
rate = "1 Gbit/s"

[[switch.tenant]]
name = "home"
vlan = "untagged"

[[switch.tenant.endpoint]]
name = "lb"
port = "director://"
limit = {{ egress = "400 Mbit/s" }}

[[switch.tenant.service]]
name = "web"
address = "{SERVICE}:{PORT}"
policy = "round-robin"
director = "lb"
{keys}
{backends}"#
    )
}

fn connect(bed: &Bed) -> TcpStream {
    bed.space("client").run(|| TcpStream::connect((SERVICE, PORT))).unwrap().expect("the service answers")
}

/// So many connections, and who has each.
fn open(bed: &Bed) -> Vec<(TcpStream, u8)> {
    let one = |byte| {
        let mut connection = connect(bed);
        let who = ask(&mut connection, byte);
        (connection, who)
    };
    let all: Vec<_> = (0..CONNECTIONS).map(one).collect();
    for who in *b"bc" {
        assert_eq!(all.iter().filter(|(_, by)| *by == who).count(), usize::from(CONNECTIONS / 2));
    }
    all
}

fn go_on(all: &mut [(TcpStream, u8)], byte: u8) {
    for (connection, who) in all {
        assert_eq!(ask(connection, byte), *who, "at the same backend");
    }
}

fn part(daemon: &Daemon, backend: usize, what: &str) -> serde_json::Value {
    daemon.show_part("services")["services"][0]["backends"][backend][what].clone()
}

#[test]
fn machines_outside_serve_clients_outside_over_restarts() {
    let Some(_turn) = turn("machines_outside_serve_clients_outside_over_restarts") else { return };
    let bed = network();
    let text = directed("check = \"tcp\"");
    let mut daemon = bed.start(&text);
    serve(&bed);
    soon("both are checked", || (0..2).all(|at| part(&daemon, at, "state") == "up"));
    let mut all = open(&bed);
    let shown = bed.run(&["show", "connections", "s1/home/web"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("from port"), "{shown:?}");
    let wire = daemon.endpoint("lb");
    assert!(wire["egress"]["frames"].as_u64() > Some(0) && wire["ingress"]["frames"].as_u64() > Some(0), "{wire}");
    daemon = {
        let next = bed.take_over(&text);
        assert!(daemon.wait().success(), "{}", daemon.log());
        next
    };
    go_on(&mut all, 20);
    assert_eq!(daemon.show_part("services")["services"][0]["sought"], 0, "all were handed over");
    daemon.end(Signal::KILL);
    daemon = bed.start(&text);
    go_on(&mut all, 30);
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn whole_megabytes_are_turned_around_and_a_closed_port_is_not_noticed() {
    let Some(_turn) = turn("whole_megabytes_are_turned_around_and_a_closed_port_is_not_noticed") else { return };
    const BYTES: usize = 8 << 20;
    let bed = network();
    let mut daemon = bed.start(&directed(""));
    // Nobody listens in c; who listens in b sends back what it got.
    let listener = bed.listener("b", (B, PORT));
    let echo = std::thread::spawn(move || {
        for connection in listener.incoming().take(4) {
            let mut connection = connection.unwrap();
            let mut bytes = vec![0; BYTES];
            connection.read_exact(&mut bytes).unwrap();
            connection.write_all(&bytes).unwrap();
        }
    });
    for n in 0..4 {
        let mut connection = connect(&bed);
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 7 + n) as u8).collect();
        let mut writer = connection.try_clone().unwrap();
        let sent = bytes.clone();
        let sending = std::thread::spawn(move || writer.write_all(&sent));
        let mut back = vec![0; BYTES];
        connection.read_exact(&mut back).unwrap();
        sending.join().unwrap().unwrap();
        assert!(bytes == back, "what came back is what was sent");
    }
    echo.join().unwrap();
    assert!(part(&daemon, 1, "refused").as_u64() > Some(0), "tried in its turn, and nobody was told");
    assert!(daemon.end(Signal::TERM).success());
}
