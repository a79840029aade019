//! Virtual congestion control with the kernel's TCP on both sides.

use crate::testbed::{Bed, Daemon, PATIENCE, turn};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};

/// Two hosts whose uplinks are the ends of a link that marks.
const HOSTS: &str = r#"
[daemon]
name = "NAME"
[[switch]]
name = "host1"
[switch.uplink]
port = "link://wire/a"
rate = "100 Mbit/s"
[[switch.tenant]]
name = "old"
vlan = 10
vcc = "MODE"
[[switch.tenant.endpoint]]
name = "one"
port = "tap://tap0"
netns = "NS-one"
mac = "02:00:00:00:07:01"
ip = "10.7.0.1"
address = "10.7.0.1/24"
ipv6 = false
[[switch]]
name = "host2"
[switch.uplink]
port = "link://wire/b"
rate = "100 Mbit/s"
[[switch.tenant]]
name = "old"
vlan = 10
vcc = "MODE"
[[switch.tenant.endpoint]]
name = "two"
port = "tap://tap0"
netns = "NS-two"
mac = "02:00:00:00:07:02"
ip = "10.7.0.2"
address = "10.7.0.2/24"
ipv6 = false
[[link]]
name = "wire"
rate = "40 Mbit/s"
delay = "1 ms"
queue = "1 MiB"
aqm = { kind = "step", threshold = "30000 B" }
"#;

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 7, 0, 2), 7070);
const BYTES: usize = 8_000_000;

/// A byte of the stream, by its place.
fn byte(at: usize) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8
}

fn guest(bed: &Bed, name: &str, ecn: &str) {
    bed.space(name)
        .run(|| {
            std::fs::write("/proc/sys/net/ipv4/tcp_ecn", ecn).unwrap();
            std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "cubic").unwrap();
        })
        .unwrap();
}

/// One connection from `one` to `two`, whose bytes arrive as they were sent.
fn transfer(bed: &Bed) {
    let listener = bed.space("two").run(|| TcpListener::bind(SERVER).unwrap()).unwrap();
    let receiver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    });
    let mut stream = bed.space("one").run(|| TcpStream::connect(SERVER).unwrap()).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let sent: Vec<u8> = (0..BYTES).map(byte).collect();
    stream.write_all(&sent).unwrap();
    drop(stream);
    assert!(receiver.join().unwrap() == sent, "what arrived is not what was sent");
}

/// Packets marked as having met congestion that a guest's kernel has seen.
fn marks_seen(bed: &Bed, name: &str) -> u64 {
    let text = bed.space(name).run(|| std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap()).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("IpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|name| name == "InCEPkts").unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

/// What `levada show vcc` says of an endpoint.
fn shown(daemon: &Daemon, path: &str) -> Value {
    let reply = daemon.show_part("vcc");
    let endpoints = reply["endpoints"].as_array().unwrap();
    endpoints.iter().find(|endpoint| endpoint["path"] == path).unwrap_or_else(|| panic!("{reply}")).clone()
}

#[test]
fn guests_without_ecn_use_a_link_that_marks_and_see_no_mark() {
    let Some(_turn) = turn("guests_without_ecn_use_a_link_that_marks_and_see_no_mark") else { return };
    for mode in ["echo", "dctcp"] {
        let bed = Bed::new(&["one", "two"]);
        ["one", "two"].iter().for_each(|name| guest(&bed, name, "0"));
        let daemon = bed.start(&HOSTS.replace("MODE", mode));
        transfer(&bed);
        let (one, two) = (shown(&daemon, "host1/old/one"), shown(&daemon, "host2/old/two"));
        for endpoint in [&one, &two] {
            assert_eq!((&endpoint["mode"], &endpoint["translated"]), (&mode.into(), &1.into()), "{endpoint}");
        }
        assert!(one["marked_bytes"].as_u64() > Some(0) && one["lowered"].as_u64() > Some(0), "{one}");
        assert!(two["hidden_marks"].as_u64() > Some(0), "{two}");
        assert_eq!([marks_seen(&bed, "one"), marks_seen(&bed, "two")], [0, 0], "{mode}");
    }
}

#[test]
fn a_server_that_knows_classic_ecn_is_spoken_to_in_its_way() {
    let Some(_turn) = turn("a_server_that_knows_classic_ecn_is_spoken_to_in_its_way") else { return };
    let bed = Bed::new(&["one", "two"]);
    guest(&bed, "one", "0");
    guest(&bed, "two", "1");
    // The server's switch does nothing.
    let (client, server) = HOSTS.split_once("name = \"host2\"").unwrap();
    let text = format!("{client}name = \"host2\"{}", server.replace("vcc = \"MODE\"\n", ""));
    let daemon = bed.start(&text.replace("MODE", "echo"));
    transfer(&bed);
    let one = shown(&daemon, "host1/old/one");
    assert_eq!(one["translated"], 1, "{one}");
    assert!(one["reductions"].as_u64() > Some(0), "{one}");
    assert_eq!(marks_seen(&bed, "one"), 0);
    assert!(marks_seen(&bed, "two") > 0, "the server's kernel is asked to see them");
}
