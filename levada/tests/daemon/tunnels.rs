//! Tenants on two hosts, joined by tunnels over a network between them: two daemons, and a daemon
//! and Linux's vxlan device.

use crate::restart::Transfer;
use crate::services::ask;
use crate::testbed::{Bed, Daemon, skipped, soon, turn};
use crate::vcc::{marks_seen, shown};
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use ports::packet::{Hooks, hooks};
use rustix::process::Signal;

/// One of two hosts. `NS-host` is the host itself; both tenants have the same addresses.
const HOST: &str = r#"
[daemon]
name = "NAME"
[[switch]]
name = "s1"
[switch.uplink]
port = "packet://eth0"
netns = "NS-host"
rate = "1 Gbit/s"
vtep = "192.0.2.HERE"
[[switch.tenant]]
name = "ops"
vlan = "untagged"
[[switch.tenant.endpoint]]
name = "host"
port = "host://eth0"
netns = "NS-host"
[[switch.tenant]]
name = "red"
vni = 5001
[[switch.tenant.endpoint]]
name = "red1"
port = "tap://tap0"
netns = "NS-red"
mac = "02:00:00:00:08:0HERE"
address = "10.8.0.HERE/24"
ipv6 = false
[[switch.tenant]]
name = "blue"
vni = 5002
[[switch.tenant.endpoint]]
name = "blue1"
port = "tap://tap0"
netns = "NS-blue"
mac = "02:00:00:00:08:0HERE"
address = "10.8.0.HERE/24"
ipv6 = false
[cluster]
host = "hostHERE"
[[cluster.member]]
name = "hostTHERE"
vtep = "192.0.2.THERE"
endpoint = [
    { name = "red1", tenant = "red", mac = "02:00:00:00:08:0THERE" },
    { name = "blue1", tenant = "blue", mac = "02:00:00:00:08:0THERE" },
]
"#;

pub const ONE: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
pub const TWO: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);

pub fn host(here: &str, there: &str) -> String {
    HOST.replace("THERE", there).replace("HERE", here)
}

/// Two hosts with a network between them.
pub fn hosts() -> [Bed; 2] {
    let beds = [Bed::new(&["host", "red", "blue"]), Bed::new(&["host", "red", "blue"])];
    let far = beds[1].name("host");
    beds[0].ip("host", &format!("link add eth0 type veth peer name eth0 netns {far}")).unwrap();
    for (bed, number) in beds.iter().zip(1..) {
        bed.ip("host", &format!("address add 192.0.2.{number}/24 dev eth0")).unwrap();
        bed.ip("host", "link set eth0 up").unwrap();
    }
    beds
}

/// The same over IPv6.
fn over_ipv6(text: &str) -> String {
    text.replace("192.0.2.", "2001:db8::")
}

fn hosts_over_ipv6() -> [Bed; 2] {
    let beds = hosts();
    for (bed, number) in beds.iter().zip(1..) {
        bed.ip("host", "address flush dev eth0 scope global").unwrap();
        bed.ip("host", &format!("address add 2001:db8::{number}/64 dev eth0 nodad")).unwrap();
    }
    beds
}

pub fn tunnels(bed: &Bed) -> Value {
    let output = bed.run(&["show", "tunnels", "--json"]);
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    reply["switches"][0].clone()
}

pub fn knows_the_way(bed: &Bed) -> bool {
    let tunnels = tunnels(bed);
    tunnels["error"].is_null() && tunnels["mac"].is_string() && tunnels["hosts"][0]["next_hop"].is_string()
}

/// Sends `bytes` over TCP and waits for the answer that they have come.
fn transfer(from: &Bed, to: &Bed, tenant: &str, address: Ipv4Addr, bytes: usize) {
    let listener = to.listener(tenant, (address, 7009));
    let receiver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (mut got, mut buffer) = (0, vec![0; 1 << 16]);
        while got < bytes {
            match stream.read(&mut buffer).unwrap() {
                0 => break,
                count => got += count,
            }
        }
        stream.write_all(&[1]).unwrap();
        got
    });
    let mut stream = from.space(tenant).run(|| TcpStream::connect((address, 7009)).unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(&vec![7; bytes]).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    assert_eq!(receiver.join().unwrap(), bytes);
}

/// How offloaded frames of TCP leave in tunnels.
fn tcp(bed: &Bed) -> String {
    tunnels(bed)["tcp"].as_str().unwrap_or_default().to_owned()
}

/// Programs at the hooks of the host's interface.
fn programs(bed: &Bed) -> Hooks {
    let index = bed.ip("host", "-o link show dev eth0").unwrap().split(':').next().unwrap().trim().parse().unwrap();
    bed.space("host").run(|| hooks(index)).unwrap().unwrap()
}

/// Frames that have left by it: what leaves whole is one.
fn sent(bed: &Bed) -> u64 {
    let link = bed.ip("host", "-s -json link show dev eth0").unwrap();
    let link: Value = serde_json::from_str(&link).unwrap();
    link[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
}

fn drops(daemon: &Daemon, reason: &str) -> u64 {
    let report = daemon.show();
    report["switches"][0]["uplink"]["drops"][reason].as_u64().unwrap_or(0)
}

#[test]
fn tenants_of_two_hosts_are_joined_and_kept_apart() {
    let Some(_turn) = turn("tenants_of_two_hosts_are_joined_and_kept_apart") else { return };
    let [one, two] = hosts();
    let first = one.start(&host("1", "2"));
    let _second = two.start(&host("2", "1"));
    soon("both know the way", || knows_the_way(&one) && knows_the_way(&two));
    let red = two.echo("red", TWO);
    assert_eq!(one.ask("red", TWO, 5), 5);
    // Blue has the same addresses, and nobody who answers.
    assert_eq!(one.ask("blue", TWO, 1), 0);
    let blue = two.echo("blue", TWO);
    assert_eq!(one.ask("blue", TWO, 3), 3);
    drop((red, blue));
    one.space("red").run(|| ping("10.8.0.2")).unwrap();
    // What the guests' devices take leaves room for the headers: nothing is too long.
    transfer(&one, &two, "red", TWO, 8 << 20);
    transfer(&two, &one, "blue", ONE, 8 << 20);
    let link = one.ip("red", "-d link show tap0").unwrap();
    // What leaves whole may be as long as any.
    assert!(link.contains("mtu 1450") && link.contains("gso_max_size 65536"), "{link}");
    for endpoint in ["red1", "blue1"] {
        let drops = first.endpoint(endpoint)["drops"].clone();
        assert!(drops["path-mtu"].is_null() && drops["no-route"].is_null(), "{drops}");
    }
    let text = String::from_utf8(one.run(&["show", "tunnels"]).stdout).unwrap();
    assert!(text.contains("192.0.2.1 over packet://eth0 (up") && text.contains("host2"), "{text}");
    // The host itself is where it was.
    one.space("host").run(|| ping("192.0.2.2")).unwrap();
}

/// Guests without ECN. The uplink's own queue marks what then goes into the tunnel.
#[test]
fn old_guests_speak_accecn_through_a_tunnel_and_see_no_mark() {
    let Some(_turn) = turn("old_guests_speak_accecn_through_a_tunnel_and_see_no_mark") else { return };
    let beds = hosts();
    for bed in &beds {
        let set = || std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "0");
        bed.space("red").run(set).unwrap().unwrap();
    }
    let [one, two] = beds;
    let with_vcc =
        |text: String| text.replace("vni = 5001", "vni = 5001\nvcc = \"dctcp\"").replace("1 Gbit/s", "50 Mbit/s");
    let first = one.start(&with_vcc(host("1", "2")));
    let second = two.start(&with_vcc(host("2", "1")));
    soon("both know the way", || knows_the_way(&one) && knows_the_way(&two));
    let transfer = Transfer::over((&one, "red"), (&two, "red"), TWO);
    let counted = |daemon: &Daemon, key: &str| shown(daemon, "s1/red/red1")[key].as_u64().unwrap();
    soon("marks are hidden from one guest and told to the other's host", || {
        counted(&second, "hidden_marks") > 0 && counted(&first, "marked_bytes") > 0 && counted(&first, "lowered") > 0
    });
    for daemon in [&first, &second] {
        let endpoint = shown(daemon, "s1/red/red1");
        assert_eq!((&endpoint["translated"], &endpoint["lapsed"]), (&1.into(), &0.into()), "{endpoint}");
        assert_eq!(endpoint["connections"][0]["wire"], "accecn", "{endpoint}");
    }
    transfer.goes_on();
    transfer.end();
    assert_eq!([&one, &two].map(|bed| marks_seen(bed, "red")), [0, 0]);
}

/// Where the interface cuts nothing, the kernel does.
#[test]
fn frames_go_whole_over_ipv4() {
    const TEST: &str = "frames_go_whole_over_ipv4";
    let Some(_turn) = turn(TEST) else { return };
    let [one, two] = hosts();
    let without = "-K eth0 tx-udp-segmentation off";
    if let Err(why) = one.tool("ethtool", "host", without) {
        skipped(TEST, why);
        return;
    }
    let mut first = one.start(&host("1", "2"));
    let _second = two.start(&host("2", "1"));
    soon("both know the way", || knows_the_way(&one) && knows_the_way(&two));
    assert_eq!((tcp(&one), tcp(&two)), ("segments".to_owned(), "trains".to_owned()));
    let (guard, alone) = (programs(&one), Hooks { ingress: 1, egress: 1 });
    assert_eq!(guard, alone, "nothing has gone into a tunnel yet");
    let _red = two.echo("red", TWO);
    assert_eq!(one.ask("red", TWO, 1), 1);
    soon("both are ready for it", || tcp(&one) == "whole" && tcp(&two) == "whole");
    assert_eq!(programs(&one), Hooks { egress: 2, ..alone });
    assert!(first.log().contains("frames of TCP go into tunnels whole"), "{}", first.log());
    let text = String::from_utf8(one.run(&["show", "tunnels"]).stdout).unwrap();
    assert!(text.contains("packets of up to 1450 bytes, TCP whole"), "{text}");
    const BYTES: usize = 8 << 20;
    let (before, counted) = (sent(&one), first.endpoint("red1")["egress"].clone());
    transfer(&one, &two, "red", TWO, BYTES);
    let segments = BYTES as u64 / 1398;
    // The scheduler cuts at 1 Gbit/s, to two segments.
    let frames = sent(&one) - before;
    assert!(frames < segments * 7 / 10, "{frames} frames for {segments} segments");
    let count = |key: &str| {
        let now = first.endpoint("red1")["egress"][key].as_u64().unwrap();
        now - counted[key].as_u64().unwrap()
    };
    assert!(count("segments") >= segments, "{}", count("segments"));
    assert!(count("wire_bytes") >= BYTES as u64 + segments * (66 + 50 + 24), "{}", count("wire_bytes"));
    transfer(&two, &one, "red", ONE, BYTES);
    // Nothing on the way cuts a tunnelled frame: the kernel does, before it leaves.
    let off = "-K eth0 tx off tx-udp_tnl-segmentation off tx-udp_tnl-csum-segmentation off";
    one.tool("ethtool", "host", off).unwrap();
    let before = sent(&one);
    transfer(&one, &two, "red", TWO, BYTES);
    assert!(sent(&one) - before >= segments);
    assert_eq!(tcp(&one), "whole");
    // Who goes on has a program of its own, and who is killed leaves none.
    let mut next = one.take_over(&host("1", "2"));
    assert!(first.wait().success(), "{}", first.log());
    assert_eq!(one.ask("red", TWO, 1), 1);
    soon("it goes whole again", || tcp(&one) == "whole");
    assert_eq!(programs(&one), Hooks { egress: 2, ..alone });
    next.end(Signal::KILL);
    assert_eq!(programs(&one), Hooks { ingress: 0, egress: 0 });
}

fn ping(to: &str) {
    let output = std::process::Command::new("ping").args(["-c", "2", "-i", "0.1", "-W", "10", to]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_way_is_followed_while_it_changes() {
    let Some(_turn) = turn("the_way_is_followed_while_it_changes") else { return };
    let [one, two] = hosts();
    let first = one.start(&host("1", "2"));
    let second = two.start(&host("2", "1"));
    let _red = two.echo("red", TWO);
    soon("both know the way", || knows_the_way(&one) && knows_the_way(&two));
    assert_eq!(one.ask("red", TWO, 1), 1);
    // The address is taken away and comes back.
    one.ip("host", "address del 192.0.2.1/24 dev eth0").unwrap();
    soon("the end is down", || tunnels(&one)["error"].as_str().is_some_and(|why| why.contains("does not have")));
    assert!(tunnels(&one)["mac"].is_null());
    assert!(first.log().contains("the tunnels of switch s1 are down"), "{}", first.log());
    let before = first.endpoint("red1")["drops"]["no-route"].as_u64().unwrap_or(0);
    assert_eq!(one.ask("red", TWO, 1), 0);
    assert!(first.endpoint("red1")["drops"]["no-route"].as_u64().unwrap_or(0) > before);
    one.ip("host", "address add 192.0.2.1/24 dev eth0").unwrap();
    soon("the end is up", || knows_the_way(&one));
    soon("red is joined again", || one.ask("red", TWO, 1) == 1);
    // Another neighbour is the next hop.
    one.ip("host", "neigh replace 192.0.2.2 lladdr 02:00:00:00:0a:0a dev eth0 nud permanent").unwrap();
    soon("the new next hop is used", || tunnels(&one)["hosts"][0]["next_hop"] == "02:00:00:00:0a:0a");
    one.ip("host", "neigh del 192.0.2.2 dev eth0").unwrap();
    soon("the old one is found again", || one.ask("red", TWO, 1) == 1);
    // Another network identifier at one end: what comes is refused by name.
    let before = drops(&second, "bad-vni");
    let output = one.run(&["set", "tenant", "s1/red", "vni=5009"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(one.ask("red", TWO, 1), 0);
    assert!(drops(&second, "bad-vni") > before);
    assert!(one.run(&["set", "tenant", "s1/red", "vni=5001"]).status.success());
    soon("red is joined once more", || one.ask("red", TWO, 1) == 1);
}

/// Both ends, one after the other, are given to new processes.
#[test]
fn a_connection_in_a_tunnel_survives_takeovers() {
    let Some(_turn) = turn("a_connection_in_a_tunnel_survives_takeovers") else { return };
    let [one, two] = hosts();
    let (mut first, mut second) = (one.start(&host("1", "2")), two.start(&host("2", "1")));
    soon("both know the way", || knows_the_way(&one) && knows_the_way(&two));
    let transfer = Transfer::over((&one, "red"), (&two, "red"), TWO);
    for _ in 0..2 {
        transfer.goes_on();
        let next = one.take_over(&host("1", "2"));
        assert!(first.wait().success(), "{}", first.log());
        first = next;
        transfer.goes_on();
        let next = two.take_over(&host("2", "1"));
        assert!(second.wait().success(), "{}", second.log());
        second = next;
    }
    transfer.goes_on();
    transfer.end();
    // What came while one went and the other came was kept, or lost on the way to it; none of it
    // was strange to a process.
    for daemon in [&first, &second] {
        assert_eq!(drops(daemon, "unknown-vtep") + drops(daemon, "bad-vni") + drops(daemon, "malformed"), 0);
    }
}

const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 100);
/// A service whose backend is on the other host.
const FAR: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 101);
const PORT: u16 = 7010;

/// Host 1 has two services of tenant red: one's backend is here, the other's on host 2, which knows
/// where the services are.
fn serving(over: fn(&str) -> String) -> [String; 2] {
    let services = format!(
        "[[switch.tenant.service]]\nname = \"web\"\naddress = \"{SERVICE}:{PORT}\"\ncheck = \"tcp\"\n\
         [[switch.tenant.service.backend]]\nname = \"red1\"\n\
         [[switch.tenant.service]]\nname = \"far\"\naddress = \"{FAR}:{PORT}\"\ncheck = \"tcp\"\n\
         [[switch.tenant.service.backend]]\nname = \"two\"\nip = \"{TWO}\"\nmac = \"02:00:00:00:08:02\"\n\
         [[switch.tenant]]\nname = \"blue\"\n"
    );
    let one = over(&host("1", "2")).replace("[[switch.tenant]]\nname = \"blue\"\n", &services);
    let known = format!(
        "service = [{{ name = \"web\", tenant = \"red\", address = \"{SERVICE}\" }}, \
         {{ name = \"far\", tenant = \"red\", address = \"{FAR}\" }}]\n"
    );
    [one, over(&host("2", "1")) + &known]
}

/// A server in tenant red: it answers each byte with two, and a zero with 4 MiB.
fn serve(bed: &Bed, address: Ipv4Addr) {
    let listener = bed.listener("red", (address, PORT));
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(mut connection) = connection else { return };
            std::thread::spawn(move || {
                let (mut byte, letter) = ([0; 1], address.octets()[3]);
                while connection.read_exact(&mut byte).is_ok() {
                    let answer = if byte[0] == 0 { vec![letter; LONG] } else { vec![letter, byte[0]] };
                    if connection.write_all(&answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

const LONG: usize = 4 << 20;

fn served_through_tunnels(beds: &[Bed; 2], over: fn(&str) -> String) {
    let ([one, two], texts) = (beds, serving(over));
    let (mut first, mut second) = (one.start(&texts[0]), two.start(&texts[1]));
    soon("both know the way", || knows_the_way(one) && knows_the_way(two));
    serve(one, ONE);
    serve(two, TWO);
    let backend =
        |daemon: &Daemon, service: usize| daemon.show_part("services")["services"][service]["backends"][0].clone();
    // Who is well is asked through the tunnel too.
    for service in 0..2 {
        soon("the backend is well", || {
            let backend = backend(&first, service);
            backend["state"] == "up" && backend["checks"].as_u64() > backend["failed_checks"].as_u64()
        });
    }
    two.space("red").run(|| ping("10.8.0.100")).unwrap();
    let connect = |bed: &Bed, to: Ipv4Addr| {
        let stream = bed.space("red").run(|| TcpStream::connect((to, PORT)).unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    };
    let (mut there, mut here) = (connect(two, SERVICE), connect(one, FAR));
    let mut go_on = |byte| {
        assert_eq!((ask(&mut there, byte), ask(&mut here, byte)), (1, 2));
        for (stream, letter) in [(&mut there, 1), (&mut here, 2)] {
            stream.write_all(&[0]).unwrap();
            let mut long = vec![0; LONG];
            stream.read_exact(&mut long).unwrap();
            assert!(long.iter().all(|&byte| byte == letter));
        }
    };
    go_on(1);
    // The other host knows where the service is: nothing is flooded for it.
    let mac = first.show_part("services")["services"][0]["mac"].as_str().unwrap().to_owned();
    let trace = two.run(&["trace", "--from", "s1/red/red1", "--to", &mac, "tcp", "10.8.0.2:4000", "10.8.0.100:7010"]);
    let trace = String::from_utf8(trace.stdout).unwrap();
    assert!(trace.contains("host1") || trace.contains("192.0.2.1") || trace.contains("2001:db8::1"), "{trace}");
    let next = one.take_over(&texts[0]);
    assert!(first.wait().success(), "{}", first.log());
    first = next;
    go_on(2);
    let next = two.take_over(&texts[1]);
    assert!(second.wait().success(), "{}", second.log());
    second = next;
    go_on(3);
    for daemon in [&first, &second] {
        assert_eq!(drops(daemon, "unknown-vtep") + drops(daemon, "bad-vni") + drops(daemon, "malformed"), 0);
    }
    // Nobody there may claim the service's address.
    let claim = "neighbour replace 10.8.0.1 lladdr 02:00:00:00:08:01 dev tap0 nud permanent";
    two.ip("red", claim).unwrap();
    two.ip("red", &format!("address add {SERVICE}/24 dev tap0")).unwrap();
    two.socket("red", (SERVICE, 0)).send_to(b"x", (ONE, 9)).unwrap();
    soon("it is refused", || second.endpoint("red1")["drops"]["spoofed-ipv4"].as_u64() > Some(0));
    assert!(first.end(Signal::TERM).success() && second.end(Signal::TERM).success());
}

#[test]
fn services_are_reached_through_tunnels() {
    let Some(_turn) = turn("services_are_reached_through_tunnels") else { return };
    served_through_tunnels(&hosts(), str::to_owned);
}

#[test]
fn services_are_reached_through_tunnels_over_ipv6() {
    let Some(_turn) = turn("services_are_reached_through_tunnels_over_ipv6") else { return };
    served_through_tunnels(&hosts_over_ipv6(), over_ipv6);
}

/// The other host is in another network.
#[test]
fn a_router_is_the_next_hop_and_may_say_that_the_way_is_narrow() {
    let Some(_turn) = turn("a_router_is_the_next_hop_and_may_say_that_the_way_is_narrow") else { return };
    let beds = [Bed::new(&["host", "red", "blue", "router"]), Bed::new(&["host", "red", "blue"])];
    let [one, two] = &beds;
    for (bed, number) in beds.iter().zip(1..) {
        let router = one.name("router");
        bed.ip("host", &format!("link add eth0 type veth peer name eth{number} netns {router}")).unwrap();
        one.ip("router", &format!("address add 192.0.{number}.254/24 dev eth{number}")).unwrap();
        one.ip("router", &format!("link set eth{number} address 02:00:00:00:0b:0{number} up")).unwrap();
        bed.ip("host", &format!("address add 192.0.{number}.{number}/24 dev eth0")).unwrap();
        bed.ip("host", "link set eth0 up").unwrap();
        bed.ip("host", &format!("route add default via 192.0.{number}.254")).unwrap();
    }
    one.space("router").run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap()).unwrap();
    let at = |text: String| text.replace("192.0.2.1", "192.0.1.1");
    let (_first, second) = (one.start(&at(host("1", "2"))), two.start(&at(host("2", "1"))));
    soon("both know the way", || knows_the_way(one) && knows_the_way(two));
    assert_eq!(tunnels(one)["hosts"][0]["next_hop"], "02:00:00:00:0b:01");
    assert_eq!(tunnels(two)["hosts"][0]["next_hop"], "02:00:00:00:0b:02");
    let _red = two.echo("red", TWO);
    assert_eq!(one.ask("red", TWO, 5), 5);
    transfer(one, two, "red", TWO, 8 << 20);
    transfer(two, one, "blue", ONE, 8 << 20);
    assert_eq!(drops(&second, "malformed") + drops(&second, "unknown-vtep"), 0);
    // The way on becomes narrow: the router says so, and guests send shorter packets.
    let path = |bed: &Bed| {
        let host = tunnels(bed)["hosts"][0].clone();
        (host["vtep"].is_string(), host["path_mtu"].as_u64())
    };
    assert_eq!(path(one), (true, None));
    one.ip("router", "route replace 192.0.2.0/24 dev eth2 scope link mtu 1400").unwrap();
    transfer(one, two, "red", TWO, 8 << 20);
    assert_eq!(path(one), (true, Some(1350)));
    transfer(two, one, "blue", ONE, 8 << 20);
    assert_eq!(path(two), (true, None), "the way back is as wide as it was");
    // The router has another address: its neighbours find out by themselves.
    one.ip("router", "link set eth1 address 02:00:00:00:0b:0a").unwrap();
    one.ip("host", "neigh flush dev eth0").unwrap();
    soon("the router's new address is used", || tunnels(one)["hosts"][0]["next_hop"] == "02:00:00:00:0b:0a");
    soon("red is joined again", || one.ask("red", TWO, 1) == 1);
}

/// A host that has no Levada is a member without `address`.
#[test]
fn linux_is_a_member() {
    const TEST: &str = "linux_is_a_member";
    let Some(_turn) = turn(TEST) else { return };
    with_linux(TEST, hosts(), str::to_owned);
}

#[test]
fn linux_is_a_member_over_ipv6() {
    const TEST: &str = "linux_is_a_member_over_ipv6";
    let Some(_turn) = turn(TEST) else { return };
    with_linux(TEST, hosts_over_ipv6(), over_ipv6);
}

/// `over` makes the addresses those that `hosts` have.
fn with_linux(test: &str, [one, two]: [Bed; 2], over: fn(&str) -> String) {
    let ends = over("id 5001 local 192.0.2.2 remote 192.0.2.1 dstport 4789 dev eth0");
    if let Err(why) = two.ip("host", &format!("link add vx0 address 02:00:00:00:08:02 type vxlan {ends}")) {
        skipped(test, format!("the kernel has no vxlan device: {why}"));
        return;
    }
    two.ip("host", "address add 10.8.0.2/24 dev vx0").unwrap();
    two.ip("host", "link set vx0 up").unwrap();
    let daemon = one.start(&over(&host("1", "2")));
    let _red = two.echo("host", TWO);
    soon("the way is known", || knows_the_way(&one));
    soon("Linux answers", || one.ask("red", TWO, 1) == 1);
    assert_eq!(one.ask("red", TWO, 5), 5);
    let carried = if tunnels(&one)["vtep"] == "192.0.2.1" { "whole" } else { "trains" };
    soon("frames go as they may", || tcp(&one) == carried);
    let listener = two.listener("host", (TWO, 7009));
    let receiver = std::thread::spawn(move || io::copy(&mut listener.accept().unwrap().0, &mut io::sink()).unwrap());
    let mut stream = one.space("red").run(|| TcpStream::connect((TWO, 7009)).unwrap()).unwrap();
    stream.write_all(&vec![7; 8 << 20]).unwrap();
    drop(stream);
    assert_eq!(receiver.join().unwrap(), 8 << 20);
    let listener = one.listener("red", (ONE, 7009));
    let receiver = std::thread::spawn(move || io::copy(&mut listener.accept().unwrap().0, &mut io::sink()).unwrap());
    let mut stream = two.space("host").run(|| TcpStream::connect((ONE, 7009)).unwrap()).unwrap();
    stream.write_all(&vec![7; 8 << 20]).unwrap();
    drop(stream);
    assert_eq!(receiver.join().unwrap(), 8 << 20);
    assert_eq!(drops(&daemon, "malformed") + drops(&daemon, "unknown-vtep"), 0);
    assert_eq!(daemon.endpoint("red1")["drops"]["path-mtu"], Value::Null);
}

/// Next hops by neighbour discovery, and headers that are 20 bytes longer.
#[test]
fn tunnels_lead_over_ipv6() {
    let Some(_turn) = turn("tunnels_lead_over_ipv6") else { return };
    let [one, two] = hosts_over_ipv6();
    let first = one.start(&over_ipv6(&host("1", "2")));
    let _second = two.start(&over_ipv6(&host("2", "1")));
    soon("both know the way", || knows_the_way(&one) && knows_the_way(&two));
    let red = two.echo("red", TWO);
    assert_eq!(one.ask("red", TWO, 5), 5);
    assert_eq!(one.ask("blue", TWO, 1), 0);
    drop(red);
    transfer(&one, &two, "red", TWO, 8 << 20);
    transfer(&two, &one, "blue", ONE, 8 << 20);
    let link = one.ip("red", "-d link show tap0").unwrap();
    // 45 segments of 1378 bytes, which one train holds, and what Linux keeps for headers.
    assert!(link.contains("mtu 1430") && link.contains("gso_max_size 62331"), "{link}");
    // Each segment would need an outer checksum, which nobody is told of.
    assert_eq!((tcp(&one), programs(&one)), ("trains".to_owned(), Hooks { ingress: 1, egress: 1 }));
    for endpoint in ["red1", "blue1"] {
        let drops = first.endpoint(endpoint)["drops"].clone();
        assert!(drops["path-mtu"].is_null() && drops["no-route"].is_null(), "{drops}");
    }
    let text = String::from_utf8(one.run(&["show", "tunnels"]).stdout).unwrap();
    assert!(text.contains("2001:db8::1 over packet://eth0 (up") && text.contains("up to 1430 bytes"), "{text}");
    // Another neighbour is the next hop, then nobody.
    one.ip("host", "neigh replace 2001:db8::2 lladdr 02:00:00:00:0a:0a dev eth0 nud permanent").unwrap();
    soon("the new next hop is used", || tunnels(&one)["hosts"][0]["next_hop"] == "02:00:00:00:0a:0a");
    one.ip("host", "neigh del 2001:db8::2 dev eth0").unwrap();
    let _red = two.echo("red", TWO);
    soon("the old one is found again", || one.ask("red", TWO, 1) == 1);
    two.ip("host", "address del 2001:db8::2/64 dev eth0").unwrap();
    soon("the other end is down", || tunnels(&two)["error"].as_str().is_some_and(|why| why.contains("does not have")));
}
