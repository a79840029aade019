//! `levada openflow` and a real Open vSwitch: userspace datapath, taps in namespaces, and real
//! connections. Needs root, `/dev/net/tun` and Debian's `openvswitch-switch`; says so and skips
//! where it has not.

#[allow(dead_code, reason = "what the daemon's tests need beside")]
#[path = "daemon/testbed.rs"]
mod testbed;

#[allow(dead_code, reason = "what tests of LACP need beside")]
#[path = "daemon/ovs.rs"]
mod ovs;

#[allow(dead_code, reason = "what the daemon's tests need beside")]
#[path = "daemon/reporter.rs"]
mod reporter;

use control::report::SIZE;
use ovs::Ovs;
use reporter::{Reporter, set_load, signed};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use testbed::{Bed, Daemon, soon, turn};

const SERVICE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 100));
const SERVICE6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x100));
/// Where the servers listen; clients ask for port 80.
const PORT: u16 = 8080;
/// Namespaces, with the last byte of their MAC and IP address.
const GUESTS: [(&str, u8); 3] = [("c", 9), ("b1", 1), ("b2", 2)];

/// An Open vSwitch of its own, with a tap for each guest, and the servers.
fn switch_with_guests<'a>(bed: &'a Bed, test: &str) -> Option<Ovs<'a>> {
    let ovs = Ovs::start(bed, test, "secure")?;
    for (guest, number) in GUESTS {
        ovs.guest(guest, number);
    }
    serve(bed, "b1", 1);
    serve(bed, "b2", 2);
    Some(ovs)
}

/// The bridge's groups.
fn groups(bed: &Bed) -> String {
    let bridge = format!("unix:{}/br0.mgmt", bed.directory.display());
    let output = Command::new("ovs-ofctl").args(["-OOpenFlow13", "dump-groups", &bridge]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A server in a namespace that answers each line of each connection with its own name.
fn serve(bed: &Bed, name: &'static str, number: u8) {
    let six = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into());
    for ip in [IpAddr::from([10, 0, 0, number]), six.into()] {
        let listener = bed.listener(name, (ip, PORT));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || {
                    let mut writer = stream.try_clone().unwrap();
                    for _line in BufReader::new(stream).lines().map_while(Result::ok) {
                        if writer.write_all(format!("{name}\n").as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
    }
}

/// A connection to the service, and who answers.
struct Connection(BufReader<TcpStream>, String);

impl Connection {
    fn open(bed: &Bed, to: IpAddr) -> Connection {
        let to = SocketAddr::from((to, 80));
        Connection::of(
            bed.space("c").run(|| TcpStream::connect_timeout(&to, Duration::from_secs(30)).unwrap()).unwrap(),
        )
    }

    fn of(stream: TcpStream) -> Connection {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut connection = Connection(BufReader::new(stream), String::new());
        connection.1 = connection.ask();
        connection
    }

    fn ask(&mut self) -> String {
        self.0.get_mut().write_all(b"who\n").unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The same one answers still.
    fn holds(&mut self) -> bool {
        self.ask() == self.1
    }
}

fn open(bed: &Bed, count: usize) -> (Vec<Connection>, BTreeMap<String, usize>) {
    open_to(bed, SERVICE, count)
}

fn open_to(bed: &Bed, to: IpAddr, count: usize) -> (Vec<Connection>, BTreeMap<String, usize>) {
    let all: Vec<Connection> = (0..count).map(|_| Connection::open(bed, to)).collect();
    let mut counts = BTreeMap::new();
    all.iter().for_each(|connection| *counts.entry(connection.1.clone()).or_default() += 1);
    (all, counts)
}

fn configuration(mode: &str, weight: u32) -> String {
    format!(
        r#"
[openflow]
name = "NAME"
listen = "unix:DIRECTORY/of.sock"
mode = "{mode}"
idle_timeout = "3 s"
[[openflow.service]]
name = "web"
address = "10.0.0.100:80"
policy = "round-robin"
[[openflow.service.backend]]
name = "b1"
ip = "10.0.0.1"
mac = "02:00:00:00:00:01"
port = {PORT}
[[openflow.service.backend]]
name = "b2"
ip = "10.0.0.2"
mac = "02:00:00:00:00:02"
port = {PORT}
weight = {weight}
"#
    )
}

/// The same, reached by both versions of IP.
fn of_both_versions(mode: &str, weight: u32) -> String {
    configuration(mode, weight)
        .replace("\"10.0.0.100:80\"", "[\"10.0.0.100:80\", \"[fd00::100]:80\"]")
        .replace("\"10.0.0.1\"", "[\"10.0.0.1\", \"fd00::1\"]")
        .replace("\"10.0.0.2\"", "[\"10.0.0.2\", \"fd00::2\"]")
}

/// A controller of the switch, which has got its rules.
fn control(bed: &Bed, text: &str) -> Daemon {
    let text = text.replace("DIRECTORY", &bed.directory.display().to_string());
    let controller = bed.space("sw").run(|| bed.launch(&bed.tag, "openflow", &text, |_| {})).unwrap();
    soon("the switch has its rules", || switch(&controller)["phase"] == "ready");
    controller
}

fn switch(controller: &Daemon) -> Value {
    controller.show_part("openflow")["switches"][0].clone()
}

/// Of both backends, what is counted of them.
fn counts(controller: &Daemon, what: &str) -> [u64; 2] {
    let shown = controller.show_part("services");
    [0, 1].map(|b| shown["services"][0]["backends"][b][what].as_u64().unwrap())
}

fn bed() -> Bed {
    let bed = Bed::new(&["sw", "c", "b1", "b2"]);
    for space in ["sw", "c", "b1", "b2"] {
        bed.ip(space, "link set lo up").unwrap();
    }
    bed
}

#[test]
fn the_controller_balances_and_a_kill_of_it_breaks_nothing() {
    const NAME: &str = "the_controller_balances_and_a_kill_of_it_breaks_nothing";
    let Some(_turn) = turn(NAME) else { return };
    let bed = bed();
    let Some(ovs) = switch_with_guests(&bed, NAME) else { return };
    ovs.set(&format!("set-controller br0 unix:{}/of.sock", bed.directory.display()));
    let mut controller = control(&bed, &configuration("reactive", 1));
    // The address answers ARP and echo requests, from however far away; backends are reached by
    // their own addresses too.
    let pong = bed.tool("ping", "c", "-t 3 -c 1 -W 10 10.0.0.100").unwrap();
    assert!(pong.contains("ttl=64"), "{pong}");
    let (mut all, shares) = open(&bed, 40);
    assert_eq!(shares, BTreeMap::from([("b1".to_owned(), 20), ("b2".to_owned(), 20)]), "in turn");
    let shown = switch(&controller);
    assert_eq!((shown["set_up"].as_u64(), shown["errors"].as_u64()), (Some(40), Some(0)), "{shown}");
    assert_eq!((counts(&controller, "new"), counts(&controller, "busy")), ([20, 20], [20, 20]));

    // Killed: what is open goes on, and the next controller learns of it from the switch.
    assert!(!controller.end(Signal::KILL).success());
    assert!(all.iter_mut().all(Connection::holds), "without a controller");
    let mut controller = control(&bed, &configuration("reactive", 1));
    assert!(all.iter_mut().all(Connection::holds), "with another one");
    assert_eq!((counts(&controller, "busy"), counts(&controller, "new")), ([20, 20], [0, 0]));

    // Idle ones lose their flows, and go on where they were, also when the server speaks first.
    soon("the flows have gone", || counts(&controller, "busy") == [0, 0]);
    assert!(all.iter_mut().all(Connection::holds), "after idling");
    assert_eq!(counts(&controller, "busy"), [20, 20]);
    // A FIN frees the flows at once, long before the idle timeout of connections.
    drop(all.split_off(20));
    soon("closed ones are gone", || counts(&controller, "busy").iter().sum::<u64>() <= 20);

    // A drained backend gets no new ones and keeps what it has.
    bed.configuration(&configuration("reactive", 0).replace("DIRECTORY", &bed.directory.display().to_string()));
    controller.signal(Signal::HUP);
    soon("it is applied", || controller.log().contains("is applied"));
    soon("the switch is ready", || switch(&controller)["phase"] == "ready");
    let (_more, shares) = open(&bed, 10);
    assert_eq!(shares, BTreeMap::from([("b1".to_owned(), 10)]));
    assert!(all.iter_mut().all(Connection::holds), "drained");

    // Its end breaks nothing either.
    assert!(controller.end(Signal::TERM).success());
    assert!(controller.log().contains("the flows of 1 switches stay"), "{}", controller.log());
    assert!(all.iter_mut().all(Connection::holds), "after the end");
}

#[test]
fn the_switch_balances_alone() {
    const NAME: &str = "the_switch_balances_alone";
    let Some(_turn) = turn(NAME) else { return };
    let bed = bed();
    let Some(ovs) = switch_with_guests(&bed, NAME) else { return };
    ovs.set(&format!("set-controller br0 unix:{}/of.sock", bed.directory.display()));
    let mut controller = control(&bed, &configuration("hash", 1));
    bed.tool("ping", "c", "-c 1 -W 10 10.0.0.100").unwrap();
    let (mut all, shares) = open(&bed, 64);
    // A fair coin leaves this range once in ten million times.
    assert!(shares.len() == 2 && shares.values().all(|n| (11..=53).contains(n)), "{shares:?}");
    soon("the switch has counted", || counts(&controller, "new").iter().sum::<u64>() == 64);
    let shown = switch(&controller);
    assert_eq!((shown["packet_ins"].as_u64(), shown["errors"].as_u64()), (Some(0), Some(0)), "{shown}");

    assert!(!controller.end(Signal::KILL).success());
    assert!(all.iter_mut().all(Connection::holds), "without a controller");
    let (_new, _) = open(&bed, 4);
    // A drained backend keeps its connections.
    let controller = control(&bed, &configuration("hash", 0));
    assert!(all.iter_mut().all(Connection::holds), "with another one");
    let (_more, shares) = open(&bed, 10);
    assert_eq!(shares, BTreeMap::from([("b1".to_owned(), 10)]));
    assert!(all.iter_mut().all(Connection::holds), "drained");
    assert_eq!(switch(&controller)["packet_ins"], 0);
}

#[test]
fn both_versions_of_ip_are_balanced_and_no_kill_breaks_any() {
    const NAME: &str = "both_versions_of_ip_are_balanced_and_no_kill_breaks_any";
    let Some(_turn) = turn(NAME) else { return };
    let bed = bed();
    let Some(ovs) = switch_with_guests(&bed, NAME) else { return };
    ovs.set(&format!("set-controller br0 unix:{}/of.sock", bed.directory.display()));
    for mode in ["reactive", "hash"] {
        let text =
            of_both_versions(mode, 1).replace("idle_timeout = \"3 s\"", "probe = \"1 s\"\nidle_timeout = \"60 s\"");
        let mut controller = control(&bed, &text);
        // The switch itself answers neighbour discovery and echo requests, and backends directly.
        bed.ip("c", "neigh flush dev c").unwrap();
        let pong = bed.tool("ping", "c", "-t 3 -c 1 -W 10 fd00::100").unwrap();
        assert!(pong.contains("ttl=64"), "{pong}");
        bed.tool("ping", "c", "-c 1 -W 10 fd00::1").unwrap();
        let neighbours = bed.ip("c", "-6 neigh show to fd00::100").unwrap();
        assert!(neighbours.contains("lladdr 02:"), "{neighbours}");
        let (mut all, shares) = open_to(&bed, SERVICE6, 40);
        assert!(shares.len() == 2 && shares.values().all(|n| (5..=35).contains(n)), "{mode}: {shares:?}");
        let (four, _) = open(&bed, 4);
        all.extend(four);
        assert_eq!(switch(&controller)["errors"], 0, "{}", switch(&controller));

        assert!(!controller.end(Signal::KILL).success());
        assert!(all.iter_mut().all(Connection::holds), "without a controller, {mode}");
        // Also who forgets the service's Ethernet address finds it again.
        bed.ip("c", "neigh flush dev c").unwrap();
        assert!(all.iter_mut().all(Connection::holds), "without a neighbour, {mode}");
        let mut controller = control(&bed, &text);
        assert!(all.iter_mut().all(Connection::holds), "with another one, {mode}");
        if mode == "reactive" {
            assert_eq!(counts(&controller, "busy").iter().sum::<u64>(), 44);
        }

        // What does not answer is found over IPv6 too; open ones stay.
        bed.ip("b2", "link set b2 down").unwrap();
        let state = || controller.show_part("services")["services"][0]["backends"][1]["state"].clone();
        soon("it is found", || state() == "down");
        soon("the switch's places follow", || !groups(&bed).contains("fd00::2"));
        let (_more, shares) = open_to(&bed, SERVICE6, 10);
        assert_eq!(shares, BTreeMap::from([("b1".to_owned(), 10)]), "{mode}");
        bed.ip("b2", "link set b2 up").unwrap();
        bed.ip("b2", "addr replace fd00::2/64 dev b2 nodad").unwrap();
        soon("it is back", || state() == "up");
        assert!(all.iter_mut().all(Connection::holds), "open ones stay, {mode}");
        assert_eq!(switch(&controller)["errors"], 0);
        assert!(controller.end(Signal::TERM).success());
    }

    // The address is taken: duplicate address detection finds it.
    let controller = control(&bed, &of_both_versions("hash", 1));
    bed.ip("c", "addr add fd00::100/64 dev c").unwrap();
    soon("it is found to be taken", || bed.ip("c", "-6 addr show dev c").unwrap().contains("dadfailed"));
    assert_eq!(switch(&controller)["packet_ins"], 0);
}

#[test]
fn a_dead_backend_gets_no_new_connections() {
    const NAME: &str = "a_dead_backend_gets_no_new_connections";
    let Some(_turn) = turn(NAME) else { return };
    let bed = bed();
    let Some(ovs) = switch_with_guests(&bed, NAME) else { return };
    ovs.set(&format!("set-controller br0 unix:{}/of.sock", bed.directory.display()));
    for mode in ["reactive", "hash"] {
        let text = configuration(mode, 1).replace("idle_timeout", "probe = \"1 s\"\nidle_timeout");
        let mut controller = control(&bed, &text);
        let states = || {
            let shown = controller.show_part("services");
            [0, 1].map(|b| shown["services"][0]["backends"][b]["state"].as_str().unwrap().to_owned())
        };
        let (mut all, shares) = open(&bed, 32);
        assert_eq!(shares.len(), 2, "both answer: {shares:?}");
        bed.ip("b2", "link set b2 down").unwrap();
        soon("it is found", || states() == ["up", "down"]);
        assert!(controller.log().contains("web/b2 does not answer"), "{}", controller.log());
        soon("the switch's places follow", || !groups(&bed).contains("10.0.0.2"));
        let (_more, shares) = open(&bed, 10);
        assert_eq!(shares, BTreeMap::from([("b1".to_owned(), 10)]), "{mode}");
        bed.ip("b2", "link set b2 up").unwrap();
        soon("it is back", || states() == ["up", "up"]);
        assert!(all.iter_mut().all(Connection::holds), "open ones stay, {mode}");
        assert_eq!(switch(&controller)["errors"], 0);
        assert!(controller.end(Signal::TERM).success());
    }
}

/// With these lines in the service.
fn with_keys(text: &str, lines: &str) -> String {
    text.replace("policy = \"round-robin\"\n", &format!("policy = \"round-robin\"\n{lines}\n"))
}

/// The client's connections are from these ports.
fn use_ports(bed: &Bed, range: &str) {
    let written = bed.space("c").run(|| std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", range));
    written.unwrap().unwrap();
}

#[test]
fn connections_of_a_dead_backend_end_and_new_ones_are_refused_where_all_are_dead() {
    const NAME: &str = "connections_of_a_dead_backend_end_and_new_ones_are_refused_where_all_are_dead";
    let Some(_turn) = turn(NAME) else { return };
    let bed = bed();
    let Some(ovs) = switch_with_guests(&bed, NAME) else { return };
    ovs.set(&format!("set-controller br0 unix:{}/of.sock", bed.directory.display()));
    for mode in ["reactive", "hash"] {
        let text = of_both_versions(mode, 1).replace("idle_timeout", "probe = \"1 s\"\nidle_timeout");
        // Another service has the same backends, and keeps its connections.
        let (head, service) = text.split_once("[[openflow.service]]\n").unwrap();
        let other = service.replace("\"web\"", "\"other\"").replace("100", "101");
        let service = with_keys(service, "on_failure = \"reset\"\npanic = \"0 %\"");
        let text = format!("{head}[[openflow.service]]\n{service}[[openflow.service]]\n{other}");
        let mut controller = control(&bed, &text);
        let states = || {
            let shown = controller.show_part("services");
            [0, 1].map(|b| shown["services"][0]["backends"][b]["state"].as_str().unwrap().to_owned())
        };
        let mut all = Vec::new();
        for to in [SERVICE, SERVICE6] {
            let (more, shares) = open_to(&bed, to, 32);
            assert_eq!(shares.len(), 2, "both answer: {shares:?}");
            all.extend(more);
        }
        // From other ports: with connection tracking, one of a port that both have would not open.
        use_ports(&bed, "20000 29999");
        let (mut kept, shares) = open_to(&bed, IpAddr::from([10, 0, 0, 101]), 32);
        assert_eq!(shares.len(), 2, "both answer: {shares:?}");
        use_ports(&bed, "32768 60999");
        let (mut first, mut second): (Vec<_>, Vec<_>) = all.into_iter().partition(|connection| connection.1 == "b1");
        let is_of_second = |line: &str| line.contains("src=10.0.0.2,") || line.contains("src=fd00::2,");
        let is_open =
            |line: &str| is_of_second(line) && !line.contains("dst=10.0.0.101,") && line.contains("state=ESTABLISHED");
        let are_tracked = || ovs.ask("dpctl/dump-conntrack").lines().any(is_open);
        assert_eq!(are_tracked(), mode == "hash");
        bed.ip("b2", "link set b2 down").unwrap();
        soon("it is found", || states() == ["up", "down"]);
        for connection in &mut second {
            connection.0.get_mut().write_all(b"who\n").unwrap();
            let ended = connection.0.read_line(&mut String::new()).unwrap_err();
            assert_eq!(ended.kind(), std::io::ErrorKind::ConnectionReset, "{mode}");
        }
        for connection in &mut kept {
            connection.0.get_mut().write_all(b"who\n").unwrap();
        }
        assert!(counts(&controller, "cut")[1] >= second.len() as u64, "{mode}");
        assert!(first.iter_mut().all(Connection::holds), "those of the other one stay, {mode}");
        // Nor does the switch's connection tracking remember them as open.
        soon("they are forgotten", || !are_tracked());
        assert_eq!(counts(&controller, "cut")[0], 0, "{mode}");

        bed.ip("b1", "link set b1 down").unwrap();
        soon("it is found", || states() == ["down", "down"]);
        for to in [SERVICE, SERVICE6] {
            let connect = || TcpStream::connect_timeout(&SocketAddr::from((to, 80)), Duration::from_secs(30));
            let refused = bed.space("c").run(|| connect().unwrap_err()).unwrap();
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{mode}, {to}");
        }
        let shown = controller.show_part("services");
        assert!(shown["services"][0]["refused"].as_u64() >= Some(2), "{mode}: {shown}");

        for (backend, number) in [("b1", 1), ("b2", 2)] {
            bed.ip(backend, &format!("link set {backend} up")).unwrap();
            bed.ip(backend, &format!("addr replace fd00::{number}/64 dev {backend} nodad")).unwrap();
        }
        soon("both are back", || states() == ["up", "up"]);
        assert!(first.iter_mut().all(Connection::holds), "who was silent goes on, {mode}");
        for connection in &mut kept {
            // Longer than a client waits before it sends once more.
            connection.0.get_ref().set_read_timeout(Some(Duration::from_secs(300))).unwrap();
            let mut line = String::new();
            connection.0.read_line(&mut line).unwrap();
            assert_eq!(line.trim_end(), connection.1, "{mode}");
            assert!(connection.holds(), "{mode}");
        }
        assert_eq!(open(&bed, 16).1.values().sum::<usize>(), 16, "{mode}");
        assert_eq!(switch(&controller)["errors"], 0, "{}", switch(&controller));
        assert!(controller.end(Signal::TERM).success());
    }
}

/// A connection from a port of the client's, whether or not another has it too.
fn open_from(bed: &Bed, port: u16, to: [u8; 4]) -> Connection {
    use rustix::net::sockopt::set_socket_reuseaddr;
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let stream = bed.space("c").run(|| {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        set_socket_reuseaddr(&socket, true).unwrap();
        bind(&socket, &SocketAddr::from(([10, 0, 0, 9], port))).unwrap();
        connect(&socket, &SocketAddr::from((to, 80))).unwrap();
        TcpStream::from(socket)
    });
    Connection::of(stream.unwrap())
}

#[test]
fn one_port_of_a_client_has_connections_to_two_services_with_the_same_backends() {
    const NAME: &str = "one_port_of_a_client_has_connections_to_two_services_with_the_same_backends";
    let Some(_turn) = turn(NAME) else { return };
    let bed = bed();
    let Some(ovs) = switch_with_guests(&bed, NAME) else { return };
    ovs.set(&format!("set-controller br0 unix:{}/of.sock", bed.directory.display()));
    let text = configuration("reactive", 1);
    let (head, service) = text.split_once("[[openflow.service]]\n").unwrap();
    let other = service.replace("\"web\"", "\"other\"").replace("100", "101");
    let mut controller = control(&bed, &format!("{head}[[openflow.service]]\n{service}[[openflow.service]]\n{other}"));
    for port in 20_000..20_008 {
        let [mut first, mut second] = [100, 101].map(|last| open_from(&bed, port, [10, 0, 0, last]));
        assert_ne!(first.1, second.1, "who sees the client's address and port only takes them for one");
        assert!(first.holds() && second.holds());
    }
    assert!(controller.end(Signal::TERM).success());
}

#[test]
fn a_client_stays_at_its_backend() {
    const NAME: &str = "a_client_stays_at_its_backend";
    let Some(_turn) = turn(NAME) else { return };
    let bed = bed();
    let Some(ovs) = switch_with_guests(&bed, NAME) else { return };
    ovs.set(&format!("set-controller br0 unix:{}/of.sock", bed.directory.display()));
    let both = with_keys(&configuration("reactive", 1), "affinity = \"client\"");
    // While the first one is drained, the client comes to the second, where it stays after that.
    let mut controller = control(&bed, &both.replace("name = \"b1\"\n", "name = \"b1\"\nweight = 0\n"));
    let second = |count| BTreeMap::from([("b2".to_owned(), count)]);
    let (mut all, shares) = open(&bed, 1);
    assert_eq!(shares, second(1));
    bed.configuration(&both.replace("DIRECTORY", &bed.directory.display().to_string()));
    controller.signal(Signal::HUP);
    soon("it is applied", || controller.log().contains("is applied"));
    soon("the switch is ready", || switch(&controller)["phase"] == "ready");
    assert_eq!(open(&bed, 8).1, second(8));
    assert_eq!(controller.show_part("services")["services"][0]["stayed"], 8);
    // Another controller knows it by its open connection.
    assert!(!controller.end(Signal::KILL).success());
    assert!(all.iter_mut().all(Connection::holds));
    let controller = control(&bed, &both);
    assert_eq!(open(&bed, 8).1, second(8));
    assert!(all.iter_mut().all(Connection::holds));
    assert_eq!(switch(&controller)["errors"], 0);
}

#[test]
fn servers_report_to_the_controller() {
    const NAME: &str = "servers_report_to_the_controller";
    let Some(_turn) = turn(NAME) else { return };
    let bed = bed();
    let Some(ovs) = switch_with_guests(&bed, NAME) else { return };
    ovs.set(&format!("set-controller br0 unix:{}/of.sock", bed.directory.display()));
    let mut text = configuration("reactive", 1)
        .replace("round-robin", "loadavg-corrected")
        .replace("idle_timeout", "reports = \"0.0.0.0:7371\"\nidle_timeout");
    let at = |name: &str| bed.directory.join(name);
    let load_of = |name: &str| at(&format!("{name}-load"));
    // A cable of its own from each server to the controller.
    for (n, name) in (1..).zip(["b1", "b2"]) {
        bed.ip("sw", &format!("link add name to-{name} type veth peer name to-sw netns {}", bed.name(name))).unwrap();
        for (space, device, last) in [("sw", format!("to-{name}"), 1), (name, "to-sw".to_owned(), 2)] {
            bed.ip(space, &format!("address add 10.8.{n}.{last}/24 dev {device}")).unwrap();
            bed.ip(space, &format!("link set {device} up")).unwrap();
        }
        let key = at(name);
        let made = bed.run(&["key", &format!("web/{name}"), key.to_str().unwrap()]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        // One connection is a load of 1/64, so that some of them turn no choice.
        text =
            text.replace(&format!("name = \"{name}\"\n"), &format!("name = \"{name}\"\ncores = 64\nkey = {key:?}\n"));
    }
    let mut controller = control(&bed, &text);
    let loads = |controller: &Daemon| {
        let shown = controller.show_part("services");
        [0, 1].map(|b| shown["services"][0]["backends"][b]["load_milli"].as_u64())
    };
    let count = |controller: &Daemon, verdict: &str| controller.show_part("services")["reports"][verdict].as_u64();
    let report =
        |name: &str, to: &str| Reporter::start(&bed, name, &at(name), &load_of(name), to, &["--every", "200 ms"]);
    set_load(&load_of("b1"), "5.00");
    set_load(&load_of("b2"), "0.10");
    let (first, second) = (report("b1", "10.8.1.1"), report("b2", "10.8.2.1:7371"));
    soon("both have reported", || loads(&controller) == [Some(5000), Some(100)]);
    assert_eq!(open(&bed, 10).1, BTreeMap::from([("b2".to_owned(), 10)]));
    set_load(&load_of("b1"), "0.20");
    set_load(&load_of("b2"), "6.00");
    soon("both have reported again", || loads(&controller) == [Some(200), Some(6000)]);
    assert_eq!(open(&bed, 10).1, BTreeMap::from([("b1".to_owned(), 10)]));
    first.end();
    second.end();

    // What b1 says of b2, what is no report, what is of nobody, and what was said before.
    let socket = bed.socket("b1", "10.8.1.2:0");
    let send = |datagram: &[u8]| assert_eq!(socket.send_to(datagram, "10.8.1.1:7371").unwrap(), datagram.len());
    let recorded = signed(&at("b1"), "web/b1");
    let mut foreign = recorded.clone();
    foreign[8] ^= 1;
    for datagram in [signed(&at("b1"), "web/b2"), vec![7; SIZE + 1], foreign] {
        send(&datagram);
    }
    soon("they are counted", || {
        ["forged", "malformed", "foreign"].map(|verdict| count(&controller, verdict)) == [Some(1); 3]
    });
    assert_eq!(loads(&controller), [Some(200), Some(6000)]);
    send(&recorded);
    soon("it is taken", || loads(&controller) == [Some(0), Some(6000)]);
    send(&recorded);
    soon("it is not taken twice", || count(&controller, "replayed") == Some(1));

    // Another configuration: what is known stays, and what was taken is not taken again.
    bed.configuration(
        &text.replace("weight = 1", "weight = 2").replace("DIRECTORY", &bed.directory.display().to_string()),
    );
    controller.signal(Signal::HUP);
    soon("it is applied", || controller.log().contains("is applied"));
    assert_eq!(loads(&controller), [Some(0), Some(6000)]);
    send(&recorded);
    soon("it is known still", || count(&controller, "replayed") == Some(2));

    // Another process: nothing from before its time.
    assert!(controller.end(Signal::TERM).success());
    let controller = control(&bed, &text);
    soon("what was taken before is old", || {
        send(&recorded);
        count(&controller, "old").unwrap() >= 1
    });
    assert_eq!(loads(&controller), [None, None]);
    let _first = report("b1", "10.8.1.1");
    soon("who reports is believed", || loads(&controller)[0] == Some(200));
}

/// Makes a key and a certificate, of an authority or signed by it: with OpenSSL, which is what Open
/// vSwitch reads keys with.
fn certify(keys: &std::path::Path, name: &str) {
    let mut command = Command::new("openssl");
    command.current_dir(keys).args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 2".split(' '));
    command.args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.pem"), "-subj", &format!("/CN={name}")]);
    if name != "authority" {
        command.args("-CA authority.pem -CAkey authority.key -addext basicConstraints=critical,CA:FALSE".split(' '));
        command.args(["-addext", &format!("subjectAltName=DNS:{name}")]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A configuration with TLS, and where its keys are.
fn by_tls(bed: &Bed) -> (String, impl Fn(&str) -> String) {
    let keys = bed.directory.join("keys");
    std::fs::create_dir(&keys).unwrap();
    for name in ["authority", "controller", "switch"] {
        certify(&keys, name);
    }
    let file = move |name: &str| keys.join(name).display().to_string();
    let tls = format!(
        "[openflow.tls]\ncertificate = \"{}\"\nkey = \"{}\"\nauthority = \"{}\"\n",
        file("controller.pem"),
        file("controller.key"),
        file("authority.pem")
    );
    let text = configuration("reactive", 1).replace("unix:DIRECTORY/of.sock", "127.0.0.1:6653").replacen(
        "[[openflow.service]]",
        &(tls + "[[openflow.service]]"),
        1,
    );
    (text, file)
}

#[test]
fn who_does_not_say_who_it_is_takes_no_more_than_a_switch() {
    let Some(_turn) = turn("who_does_not_say_who_it_is_takes_no_more_than_a_switch") else { return };
    let bed = Bed::new(&["sw"]);
    bed.ip("sw", "link set lo up").unwrap();
    let (text, _) = by_tls(&bed);
    let controller = bed.space("sw").run(|| bed.launch(&bed.tag, "openflow", &text, |_| {})).unwrap();
    let connect = || bed.space("sw").run(|| TcpStream::connect("127.0.0.1:6653").unwrap()).unwrap();
    let mut silent: Vec<TcpStream> = (0..65).map(|_| connect()).collect();
    let mut last = silent.pop().unwrap();
    soon("one is turned away", || controller.log().contains("more than 64 switches"));
    assert_eq!(last.read(&mut [0; 1]).unwrap(), 0);
    // What they have is given back.
    drop(silent);
    soon("one that speaks is heard", || {
        let mut stream = connect();
        let _ = stream.write_all(b"nonsense that is no TLS");
        let _ = stream.read(&mut [0; 64]);
        controller.log().contains("InvalidContentType")
    });

    // It keeps what it needs to read its file again, and to take its socket away. A thread that has
    // just begun, as the log's does after many of a kind, has what its parent has, and its name.
    let threads = || -> Vec<[String; 4]> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", controller.pid())).unwrap();
        let status = |thread: PathBuf| std::fs::read_to_string(thread.join("status")).ok();
        let value = |status: &str, key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key).map(|rest| rest.trim().to_owned()));
            line.unwrap_or_else(|| panic!("{key} in {status}"))
        };
        let each = tasks.filter_map(|thread| status(thread.ok()?.path()));
        let mut all: Vec<_> = each
            .map(|status| ["Name:", "CapEff:", "NoNewPrivs:", "Seccomp:"].map(|key| value(&status, key)))
            .filter(|[name, ..]| name != "levada-log")
            .collect();
        all.sort();
        all
    };
    let wanted = [["levada", "0000000000000002", "1", "2"], ["levada-signals", "0000000000000000", "1", "2"]];
    let mut seen = threads();
    for _ in 0..250 {
        if seen == wanted {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        seen = threads();
    }
    assert_eq!(seen, wanted);
}

#[test]
fn switches_connect_by_tls() {
    const NAME: &str = "switches_connect_by_tls";
    let Some(_turn) = turn(NAME) else { return };
    let bed = bed();
    let Some(ovs) = switch_with_guests(&bed, NAME) else { return };
    let (text, file) = by_tls(&bed);
    ovs.set("set-controller br0 tcp:127.0.0.1:6653");
    let controller = bed.space("sw").run(|| bed.launch(&bed.tag, "openflow", &text, |_| {})).unwrap();
    soon("a switch in the clear is turned away", || controller.log().contains("no TLS"));
    ovs.set(&format!("set-ssl {} {} {}", file("switch.key"), file("switch.pem"), file("authority.pem")));
    ovs.set("set-controller br0 ssl:127.0.0.1:6653");
    soon("the switch has its rules", || switch(&controller)["phase"] == "ready");
    let (mut all, shares) = open(&bed, 10);
    assert_eq!(shares.into_values().collect::<Vec<_>>(), [5, 5]);
    assert!(all.iter_mut().all(Connection::holds));
}

#[test]
fn the_example_is_good_and_fits_its_schema() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_levada")).current_dir(root).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = run(&["check", "examples/openflow/edge.toml"]);
    let wanted = "examples/openflow/edge.toml: good; controller \"edge\", mode reactive\n  \
                  service web  10.0.0.100:80, [2001:db8::100]:80  policy p2c, 2 backends\n";
    assert_eq!(text, wanted);
    let schema: Value = serde_json::from_str(&run(&["schema", "--openflow"])).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let example = std::fs::read_to_string(root.join("examples/openflow/edge.toml")).unwrap();
    let good = |text: &str| schema.is_valid(&data(toml::de::DeTable::parse(text).unwrap().get_ref()));
    assert!(good(&example));
    assert!(!good(&example.replace("\"p2c\"", "\"p3c\"")) && !good(&example.replace("role =", "roll =")));
}

/// TOML as data.
fn data(table: &toml::de::DeTable<'_>) -> Value {
    table.iter().map(|(key, v)| (key.get_ref().to_string(), value(v.get_ref()))).collect()
}

fn value(from: &toml::de::DeValue<'_>) -> Value {
    use toml::de::DeValue;
    match from {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Integer(number) => number.as_str().parse::<i64>().unwrap().into(),
        DeValue::Boolean(flag) => (*flag).into(),
        DeValue::Array(list) => list.iter().map(|item| value(item.get_ref())).collect(),
        DeValue::Table(entries) => data(entries),
        other => panic!("{other:?}"),
    }
}
