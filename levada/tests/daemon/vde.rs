//! VDE directories with the programs of vde2, which are used as they are; and with clients that
//! die, lie or shout.

use crate::testbed::{Bed, Daemon, Turn, skipped, soon, turn};
use crate::traffic::{A, B};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A request's length without its description (`ports/src/vde/request.rs`).
const REQUEST_BYTES: usize = 122;

/// As [`turn`], with the programs of vde2.
pub fn vde_turn(test: &str, programs: &[&str]) -> Option<Turn> {
    let turn = turn(test)?;
    let missing = |program: &&&str| {
        !["/usr/bin", "/usr/local/bin", "/bin"].iter().any(|place| Path::new(place).join(program).exists())
    };
    let Some(program) = programs.iter().find(missing) else { return Some(turn) };
    skipped(test, format!("there is no {program}: install vde2 (or qemu-system-x86)"));
    None
}

/// A running program, killed when dropped.
pub struct Running(Child);

impl Running {
    fn start(bed: &Bed, space: &str, program: &str, arguments: &[&str]) -> Running {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Running(bed.space(space).run(|| command.spawn().unwrap()).unwrap())
    }

    fn kill(&mut self) {
        kill_process(Pid::from_child(&self.0), Signal::KILL).unwrap();
        self.0.wait().unwrap();
    }

    pub fn ends(&mut self) {
        soon("it ends", || self.0.try_wait().unwrap().is_some());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Endpoints a (plug 1), b (plug 2) and c (plug 3) of one directory; `EXTRA-x` stands for further
/// keys.
pub const THREE: &str = r#"
[daemon]
name = "NAME"
[[switch]]
name = "s1"
[[switch.tenant]]
name = "home"
[[switch.tenant.endpoint]]
name = "a"
port = "vde://DIR/red"
mac = "02:00:00:00:07:01"
ip = "10.7.0.1"
[[switch.tenant.endpoint]]
name = "b"
port = "vde://DIR/red[2]"
mac = "02:00:00:00:07:02"
ip = "10.7.0.2"
[[switch.tenant.endpoint]]
name = "c"
port = "vde://DIR/red[3]"
"#;

pub fn directory(bed: &Bed) -> PathBuf {
    bed.directory.join("red")
}

pub fn start(bed: &Bed, text: &str) -> Daemon {
    bed.start(&here(bed, text))
}

/// The configuration with its directory in the bed's.
pub fn here(bed: &Bed, text: &str) -> String {
    text.replace("DIR", bed.directory.to_str().unwrap())
}

fn socket(bed: &Bed) -> String {
    directory(bed).to_str().unwrap().to_owned()
}

fn give(bed: &Bed, space: &str, number: u8) {
    soon("the device is there", || bed.ip(space, "link show dev tap0").is_ok());
    bed.ip(space, &format!("link set dev tap0 address 02:00:00:00:07:{number:02x} up")).unwrap();
    bed.ip(space, &format!("address add 10.7.0.{number}/24 dev tap0")).unwrap();
}

/// VdeServer a device into `directory` and gives it the addresses of `number`.
fn plug_into(bed: &Bed, directory: &str, space: &str, number: u8, options: &[&str]) -> Running {
    let arguments = [&["-s", directory], options, &["tap0"]].concat();
    let plug = Running::start(bed, space, "vde_plug2tap", &arguments);
    give(bed, space, number);
    plug
}

pub fn plug(bed: &Bed, space: &str, number: u8, options: &[&str]) -> Running {
    plug_into(bed, &socket(bed), space, number, options)
}

pub fn is_up(daemon: &Daemon, endpoint: &str) -> bool {
    daemon.endpoint(endpoint)["state"] == "up"
}

pub fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Sends bytes over TCP from one namespace to another; all must arrive.
fn tcp(bed: &Bed, from: &str, to: &str, address: Ipv4Addr) {
    const BYTES: usize = 4 << 20;
    let listener = bed.listener(to, (address, 7008));
    let mut sender = bed.space(from).run(|| TcpStream::connect((address, 7008)).unwrap()).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    let sent: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
    let writer = {
        let sent = sent.clone();
        std::thread::spawn(move || sender.write_all(&sent).unwrap())
    };
    let mut received = Vec::new();
    receiver.read_to_end(&mut received).unwrap();
    writer.join().unwrap();
    assert!(received == sent, "{} of {BYTES} bytes, or others", received.len());
}

#[test]
fn plugged_devices_reach_each_other_and_carry_tcp() {
    let Some(_turn) = vde_turn("plugged_devices_reach_each_other_and_carry_tcp", &["vde_plug2tap"]) else { return };
    let bed = Bed::new(&["a", "b"]);
    let mut daemon = start(&bed, THREE);
    assert!(!is_up(&daemon, "a"));
    let mut plugs = [plug(&bed, "a", 1, &[]), plug(&bed, "b", 2, &[])];
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 20), 20);
    assert!(is_up(&daemon, "a") && is_up(&daemon, "b") && !is_up(&daemon, "c"), "the lowest plugs come first");
    tcp(&bed, "a", "b", B);
    tcp(&bed, "b", "a", A);
    let sent = daemon.endpoint("a")["local_egress"]["wire_bytes"].as_u64().unwrap();
    assert!(sent > 4 << 20, "{sent}");
    assert!(daemon.end(Signal::TERM).success());
    plugs.iter_mut().for_each(Running::ends);
    assert!(!directory(&bed).exists(), "nothing is left");
}

#[test]
fn numbers_choose_the_endpoint_and_a_taken_or_unknown_one_is_refused() {
    let name = "numbers_choose_the_endpoint_and_a_taken_or_unknown_one_is_refused";
    let Some(_turn) = vde_turn(name, &["vde_plug2tap"]) else { return };
    let bed = Bed::new(&["a", "b", "x"]);
    let daemon = start(&bed, THREE);
    let _b = plug(&bed, "b", 2, &["-p", "2"]);
    soon("b is up", || is_up(&daemon, "b"));
    assert!(!is_up(&daemon, "a"));
    for number in ["2", "9"] {
        let mut refused = Running::start(&bed, "x", "vde_plug2tap", &["-s", &socket(&bed), "-p", number, "tap0"]);
        refused.ends();
    }
    soon("it is said why", || daemon.log().contains("there is no plug 9"));
    assert!(daemon.log().contains("plug 2 is taken by \"vde_plug2tap"), "{}", daemon.log());
    let _a = plug(&bed, "a", 1, &[]);
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 5), 5, "who has no number gets the first that is free");
    // Its addresses are the endpoint's affair: with another's it gets nowhere.
    bed.ip("a", "link set dev tap0 address 02:00:00:00:07:09").unwrap();
    assert_eq!(bed.ask("a", B, 1), 0);
    assert!(daemon.endpoint("a")["drops"]["spoofed-mac"].as_u64() > Some(0), "{}", daemon.endpoint("a"));
}

#[test]
fn the_clients_of_a_hub_share_an_endpoint() {
    let Some(_turn) = vde_turn("the_clients_of_a_hub_share_an_endpoint", &["vde_plug2tap"]) else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = start(&bed, &format!("{THREE}hub = true\n"));
    let _a = plug(&bed, "a", 1, &["-p", "1"]);
    let _b = plug(&bed, "b", 12, &["-p", "3"]);
    let mut c = plug(&bed, "c", 13, &["-p", "3"]);
    let hub = [Ipv4Addr::new(10, 7, 0, 12), Ipv4Addr::new(10, 7, 0, 13)];
    let _echoes = [bed.echo("a", A), bed.echo("b", hub[0]), bed.echo("c", hub[1])];
    assert_eq!(hub.map(|address| bed.ask("a", address, 5)), [5, 5], "both are reached through the switch");
    assert_eq!(bed.ask("b", hub[1], 5), 5, "they hear each other");
    c.kill();
    assert_eq!(bed.ask("b", A, 5), 5, "the others stay");
    assert!(is_up(&daemon, "c") && daemon.endpoint("c")["losses"] == 0);
}

#[test]
fn a_killed_client_is_unplugged_and_its_successor_takes_its_place() {
    let name = "a_killed_client_is_unplugged_and_its_successor_takes_its_place";
    let Some(_turn) = vde_turn(name, &["vde_plug2tap"]) else { return };
    let bed = Bed::new(&["a", "b"]);
    let daemon = start(&bed, THREE);
    let _a = plug(&bed, "a", 1, &[]);
    let _echo = bed.echo("a", A);
    for round in 1..=3 {
        let mut b = plug(&bed, "b", 2, &["-p", "2"]);
        assert_eq!(bed.ask("b", A, 5), 5, "round {round}");
        b.kill();
        soon("it is unplugged", || !is_up(&daemon, "b"));
        assert_eq!(daemon.endpoint("b")["losses"], round);
    }
    soon("its sockets are gone", || names(&directory(&bed)) == ["001.1", "ctl"]);
    assert!(is_up(&daemon, "a"), "the other stays");
}

#[test]
fn a_killed_daemon_unplugs_all_and_the_next_takes_its_directory_over() {
    let name = "a_killed_daemon_unplugs_all_and_the_next_takes_its_directory_over";
    let Some(_turn) = vde_turn(name, &["vde_plug2tap"]) else { return };
    let bed = Bed::new(&["a", "b"]);
    let mut daemon = start(&bed, THREE);
    let mut plugs = [plug(&bed, "a", 1, &[]), plug(&bed, "b", 2, &[])];
    daemon.end(Signal::KILL);
    plugs.iter_mut().for_each(Running::ends);
    assert!(directory(&bed).join("ctl").exists(), "what a killed daemon leaves");
    let mut daemon = start(&bed, THREE);
    assert_eq!(names(&directory(&bed)), ["ctl"]);
    let _plugs = [plug(&bed, "a", 1, &[]), plug(&bed, "b", 2, &[])];
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 5), 5);
    assert!(daemon.end(Signal::TERM).success());
    assert!(!directory(&bed).exists());
}

#[test]
fn a_directory_of_a_running_vde_switch_is_left_to_it() {
    let name = "a_directory_of_a_running_vde_switch_is_left_to_it";
    let Some(_turn) = vde_turn(name, &["vde_switch"]) else { return };
    let bed = Bed::new(&["a"]);
    let mut other = Running::start(&bed, "a", "vde_switch", &["-s", &socket(&bed)]);
    soon("it listens", || directory(&bed).join("ctl").exists());
    let mut daemon = start(&bed, THREE);
    assert!(daemon.log().contains("another VDE switch has it open"), "{}", daemon.log());
    assert!(!is_up(&daemon, "a"));
    assert!(UnixStream::connect(directory(&bed).join("ctl")).is_ok(), "it goes on");
    other.kill();
    soon("what it left is taken over", || daemon.log().contains("its plugs can be had now"));
    assert!(daemon.end(Signal::TERM).success());
    assert!(!directory(&bed).exists());
}

#[test]
fn a_directory_that_is_removed_is_made_again_and_who_is_plugged_in_stays() {
    let name = "a_directory_that_is_removed_is_made_again_and_who_is_plugged_in_stays";
    let Some(_turn) = vde_turn(name, &["vde_plug2tap"]) else { return };
    let bed = Bed::new(&["a", "b"]);
    let mut daemon = start(&bed, THREE);
    let _a = plug(&bed, "a", 1, &[]);
    let again = || daemon.log().matches("it was removed, and is made again").count();
    std::fs::remove_dir_all(directory(&bed)).unwrap();
    soon("it is there again", || again() == 1);
    let b = plug(&bed, "b", 2, &[]);
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 5), 5);
    // Its control socket alone; a change needs both, and does not wait for the next look.
    std::fs::remove_file(directory(&bed).join("ctl")).unwrap();
    let output = bed.run(&["set", "endpoint", "s1/home/b", "mtu=1400"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    soon("it is there again", || again() == 2);
    drop(b);
    soon("b is unplugged", || !is_up(&daemon, "b"));
    let _b = plug(&bed, "b", 2, &[]);
    assert_eq!(bed.ask("a", B, 5), 5);
    assert!(is_up(&daemon, "a") && daemon.endpoint("a")["losses"] == 0);
    assert!(daemon.end(Signal::TERM).success());
    assert!(!directory(&bed).exists(), "nothing is left");
}

/// A client in this process, at plug `number`.
struct Client {
    _stream: UnixStream,
    data: UnixDatagram,
}

impl Client {
    fn plug(bed: &Bed, number: u8) -> Client {
        let mine = directory(bed).join(format!(".0000{number}-00000"));
        let _ = std::fs::remove_file(&mine);
        let data = UnixDatagram::bind(&mine).unwrap();
        data.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let mut stream = UnixStream::connect(directory(bed).join("ctl")).unwrap();
        // It wants this number: behind the version and a port's type.
        let ask = |bytes: &mut Vec<u8>| bytes[8..12].copy_from_slice(&(u32::from(number) << 8).to_ne_bytes());
        stream.write_all(&request(&mine, ask)).unwrap();
        let mut answer = [0; 110];
        stream.read_exact(&mut answer).unwrap();
        let end = answer[2..].iter().position(|&byte| byte == 0).unwrap();
        data.connect(std::str::from_utf8(&answer[2..2 + end]).unwrap()).unwrap();
        Client { _stream: stream, data }
    }

    /// Sends a frame of so many bytes, from endpoint to endpoint, and says whether it comes to
    /// another.
    fn reaches(&self, other: &Client, [from, to]: [u8; 2], length: usize) -> bool {
        let mut frame = vec![2, 0, 0, 0, 7, to, 2, 0, 0, 0, 7, from, 0x88, 0xb5];
        frame.resize(length, 7);
        self.data.send(&frame).unwrap();
        let mut got = vec![0; 2048];
        std::iter::from_fn(|| other.data.recv(&mut got).ok().map(|length| got[..length].to_vec()))
            .any(|got| got == frame)
    }
}

#[test]
fn a_plug_that_is_changed_again_and_again_goes_on_as_it_is_to_be() {
    let Some(_turn) = turn("a_plug_that_is_changed_again_and_again_goes_on_as_it_is_to_be") else { return };
    let bed = Bed::new(&[]);
    let daemon = start(&bed, THREE);
    let (a, b) = (Client::plug(&bed, 1), Client::plug(&bed, 2));
    soon("both are up", || is_up(&daemon, "a") && is_up(&daemon, "b"));
    for mtu in [1400, 1500].repeat(5) {
        let output = bed.run(&["set", "endpoint", "s1/home/a", &format!("mtu={mtu}")]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(a.reaches(&b, [1, 2], mtu + 14), "{mtu}: {}", daemon.log());
        assert!(b.reaches(&a, [2, 1], mtu + 14), "{mtu}");
        assert!(a.reaches(&b, [1, 2], 60));
    }
    assert_eq!(daemon.endpoint("a")["drops"], serde_json::json!({}));
    // Its name is another's from now on.
    let renamed = here(&bed, THREE).replace("name = \"b\"", "name = \"bee\"");
    let output = bed.run(&["apply", bed.configuration(&renamed).to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(a.reaches(&b, [1, 2], 60));
    drop(b);
    soon("it is called so", || daemon.log().lines().any(|l| l.contains("s1/home/bee: ") && l.ends_with("unplugged")));
}

#[test]
fn who_has_left_a_hub_misses_nothing() {
    let Some(_turn) = turn("who_has_left_a_hub_misses_nothing") else { return };
    let bed = Bed::new(&[]);
    let daemon = start(&bed, &format!("{THREE}hub = true\n"));
    let (a, c) = (Client::plug(&bed, 1), Client::plug(&bed, 3));
    soon("both are up", || is_up(&daemon, "a") && is_up(&daemon, "c"));
    for _ in 0..20 {
        let mine = directory(&bed).join(".00009-00000");
        let data = UnixDatagram::bind(&mine).unwrap();
        let mut stream = UnixStream::connect(directory(&bed).join("ctl")).unwrap();
        stream.write_all(&request(&mine, |bytes| bytes[8..12].copy_from_slice(&(3u32 << 8).to_ne_bytes()))).unwrap();
        stream.read_exact(&mut [0; 110]).unwrap();
        drop((stream, data));
        std::fs::remove_file(&mine).unwrap();
        let is_here = |name: &&String| name.starts_with("003.");
        soon("it has left", || names(&directory(&bed)).iter().filter(is_here).count() == 1);
    }
    for _ in 0..10 {
        assert!(a.reaches(&c, [1, 9], 60));
    }
    assert_eq!(daemon.endpoint("c")["drops"], serde_json::json!({}), "{}", daemon.log());
}

/// A tenant with a directory of its own beside one with two devices.
const BESIDE: &str = r#"
[[switch.tenant]]
name = "other"
[[switch.tenant.endpoint]]
name = "x"
port = "tap://tap0"
netns = "NS-x"
address = "10.8.0.1/24"
[[switch.tenant.endpoint]]
name = "y"
port = "tap://tap0"
netns = "NS-y"
address = "10.8.0.2/24"
"#;

#[test]
fn what_a_group_member_leaves_in_a_directory_costs_its_ports_only() {
    let Some(_turn) = turn("what_a_group_member_leaves_in_a_directory_costs_its_ports_only") else { return };
    let bed = Bed::new(&["x", "y"]);
    let text = format!("{THREE}{BESIDE}");
    let y = Ipv4Addr::new(10, 8, 0, 2);
    let ctl = directory(&bed).join("ctl");
    let oops = directory(&bed).join("oops");
    // A file beside what is left after an end and after a kill, and one in the place of the control
    // socket.
    for (signal, file) in [(Signal::TERM, &oops), (Signal::KILL, &oops), (Signal::TERM, &ctl)] {
        let mut daemon = start(&bed, &text);
        if *file == oops {
            std::fs::write(file, "").unwrap();
        }
        daemon.end(signal);
        if *file == ctl {
            std::fs::create_dir(directory(&bed)).unwrap();
            std::fs::write(file, "").unwrap();
        }
        let mut daemon = start(&bed, &text);
        let log = daemon.log();
        let name = file.file_name().unwrap().to_str().unwrap();
        let said = log.contains(&socket(&bed)) && log.contains(&format!("{name} is not a socket; remove it"));
        assert!(said, "{log}");
        let _echo = bed.echo("y", y);
        assert_eq!(bed.ask("x", y, 5), 5, "the other tenant has all that it had");
        assert!(!is_up(&daemon, "a"));
        std::fs::remove_file(file).unwrap();
        soon("it is tried again", || daemon.log().contains("its plugs can be had now"));
        UnixStream::connect(&ctl).unwrap();
        assert!(daemon.end(Signal::TERM).success());
        assert_eq!(directory(&bed).exists(), signal == Signal::TERM, "whose it was is known after a kill");
        let _ = std::fs::remove_dir(directory(&bed));
    }
}

#[test]
fn a_hundred_thousand_names_and_a_client_that_hangs_do_not_keep_a_daemon_from_ending() {
    let name = "a_hundred_thousand_names_and_a_client_that_hangs_do_not_keep_a_daemon_from_ending";
    let Some(_turn) = turn(name) else { return };
    let bed = Bed::new(&[]);
    let mut daemon = start(&bed, THREE);
    // The names that data sockets would have, and more. A file has at most so many names on ext4.
    const LINKS: usize = 50_000;
    let socket = directory(&bed).join(".00001-00001");
    let _data = UnixDatagram::bind(&socket).unwrap();
    let second = directory(&bed).join(".00001-00002");
    let _other = UnixDatagram::bind(&second).unwrap();
    for number in 1..=2 * LINKS {
        let from = if number <= LINKS { &socket } else { &second };
        std::fs::hard_link(from, directory(&bed).join(format!("001.{number}"))).unwrap();
    }
    let mut client = UnixStream::connect(directory(&bed).join("ctl")).unwrap();
    client.write_all(&request(&socket, |_| {})).unwrap();
    let mut answer = [0; 110];
    client.read_exact(&mut answer).unwrap();
    soon("it is plugged in", || is_up(&daemon, "a"));
    // Others connect, and say nothing or half of it.
    let silent: Vec<_> = (0..100).map(|_| UnixStream::connect(directory(&bed).join("ctl")).unwrap()).collect();
    let _ = (&silent[99]).write_all(&request(&socket, |bytes| bytes.truncate(60)));
    assert!(daemon.end(Signal::TERM).success());
    assert!(!daemon.log().contains("has not ended"), "{}", daemon.log());
    let mut daemon = start(&bed, THREE);
    assert!(daemon.end(Signal::TERM).success());
    std::fs::remove_dir_all(directory(&bed)).unwrap();
}

#[test]
fn a_daemon_that_waits_for_its_file_ends_all_the_same() {
    let Some(_turn) = turn("a_daemon_that_waits_for_its_file_ends_all_the_same") else { return };
    let bed = Bed::new(&[]);
    let mut daemon = start(&bed, THREE);
    let file = bed.directory.join("levada.toml");
    std::fs::remove_file(&file).unwrap();
    let path = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, path.as_c_str(), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    daemon.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(daemon.end(Signal::TERM).code(), Some(1));
    assert!(daemon.log().contains("is ended by force; start it again, or remove"), "{}", daemon.log());
    assert!(directory(&bed).join("ctl").exists());
    assert!(bed.run(&["clean"]).status.success());
    assert!(!directory(&bed).exists());
}

#[test]
fn a_cable_joins_a_real_vde_switch_to_a_trunk() {
    let name = "a_cable_joins_a_real_vde_switch_to_a_trunk";
    let Some(_turn) = vde_turn(name, &["vde_switch", "vde_plug", "vde_plug2tap", "dpipe"]) else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = start(&bed, &format!("{THREE}trunk = true\n"));
    let far = bed.directory.join("far").to_str().unwrap().to_owned();
    let _switch = Running::start(&bed, "a", "vde_switch", &["-s", &far]);
    soon("it listens", || Path::new(&far).join("ctl").exists());
    let near = socket(&bed);
    let _cable = Running::start(&bed, "a", "dpipe", &["vde_plug", &format!("{near}[3]"), "=", "vde_plug", &far]);
    soon("the cable is plugged in", || is_up(&daemon, "c"));
    let _a = plug(&bed, "a", 1, &["-p", "1"]);
    let _b = plug_into(&bed, &far, "b", 12, &[]);
    let _c = plug_into(&bed, &far, "c", 13, &[]);
    let behind = [Ipv4Addr::new(10, 7, 0, 12), Ipv4Addr::new(10, 7, 0, 13)];
    let _echoes = [bed.echo("b", behind[0]), bed.echo("c", behind[1]), bed.echo("a", A)];
    assert_eq!(behind.map(|address| bed.ask("a", address, 5)), [5, 5]);
    assert_eq!(["b", "c"].map(|space| bed.ask(space, A, 5)), [5, 5]);
    tcp(&bed, "a", "b", behind[0]);
    let learned = daemon.show()["switches"][0]["learned"].as_u64().unwrap();
    assert!(learned >= 2, "{learned} addresses behind the trunk");
}

/// What makes a request wrong.
type Spoil<'a> = &'a dyn Fn(&mut Vec<u8>);

/// A request for any plug, as libvdeplug sends it, but for what `spoil` does to it.
pub fn request(path: &Path, spoil: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = [0xfeed_faceu32, 3, 0].map(u32::to_ne_bytes).concat();
    bytes.extend(1u16.to_ne_bytes());
    bytes.extend(path.to_str().unwrap().bytes());
    bytes.resize(REQUEST_BYTES, 0);
    spoil(&mut bytes);
    bytes
}

fn descriptors(daemon: &Daemon) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count()
}

#[test]
fn garbage_crowds_and_silence_do_not_disturb_those_plugged_in() {
    let name = "garbage_crowds_and_silence_do_not_disturb_those_plugged_in";
    let Some(_turn) = vde_turn(name, &["vde_plug2tap"]) else { return };
    let bed = Bed::new(&["a", "b"]);
    let daemon = start(&bed, THREE);
    let mut a = plug(&bed, "a", 1, &["-p", "1"]);
    let _b = plug(&bed, "b", 2, &["-p", "2"]);
    let _echo = bed.echo("b", B);
    // The first may be lost while one asks for the other's address.
    soon("frames pass", || bed.ask("a", B, 1) == 1);
    assert_eq!(bed.ask("a", B, 5), 5);
    let before = descriptors(&daemon);
    let ctl = directory(&bed).join("ctl");
    let mine = directory(&bed).join(".00001-00000");
    let data = UnixDatagram::bind(&mine).unwrap();
    // Each of these is sent away without an answer.
    let wrong: [Spoil<'_>; 6] = [
        &|bytes| bytes[0] ^= 1,
        &|bytes| bytes[4] = 9,
        &|bytes| bytes[8] = 7,
        &|bytes| bytes[12] = 77,
        &|bytes| bytes[14..].fill(b'x'),
        &|bytes| bytes.resize(4096, b'x'),
    ];
    for spoil in wrong {
        let mut stream = UnixStream::connect(&ctl).unwrap();
        stream.write_all(&request(&mine, spoil)).unwrap();
        // What it had not read when it closed comes back as an error.
        assert!(matches!(stream.read(&mut [0; 200]), Ok(0) | Err(_)));
    }
    // A crowd that says nothing, or half of it.
    let crowd: Vec<UnixStream> = (0..1000).filter_map(|_| UnixStream::connect(&ctl).ok()).collect();
    for mut one in crowd.iter().take(500) {
        let _ = one.write_all(&request(&mine, |bytes| bytes.truncate(60)));
    }
    assert_eq!(bed.ask("a", B, 20), 20, "those plugged in go on");
    soon("the silent are sent away", || descriptors(&daemon) <= before);
    drop(crowd);
    // One that plugs in, never reads, and shouts.
    let mut shouting = UnixStream::connect(&ctl).unwrap();
    shouting.write_all(&request(&mine, |_| {})).unwrap();
    let mut answer = [0; 110];
    shouting.read_exact(&mut answer).unwrap();
    let end = answer[2..].iter().position(|&byte| byte == 0).unwrap();
    data.connect(std::str::from_utf8(&answer[2..2 + end]).unwrap()).unwrap();
    for length in [0, 1, 13, 14, 60, 1514, 1600, 9000, 60_000] {
        data.send(&vec![0xff; length]).unwrap();
    }
    soon("its frames are looked at", || daemon.endpoint("c")["drops"]["malformed"].as_u64() >= Some(6));
    for _ in 0..2000 {
        let _ = bed.space("a").run(|| {
            std::net::UdpSocket::bind("0.0.0.0:0").and_then(|s| {
                s.set_broadcast(true)?;
                s.send_to(&[0; 1000], "10.7.0.255:9")
            })
        });
    }
    assert_eq!(bed.ask("a", B, 20), 20, "whatever it does not read");
    let _ = (0..100).try_for_each(|_| shouting.write_all(&[0; 1000]));
    soon("it is unplugged", || !is_up(&daemon, "c"));
    assert!(daemon.log().contains("it sends too much"), "{}", daemon.log());
    a.kill();
    soon("a is unplugged", || !is_up(&daemon, "a"));
    assert!(daemon.log().lines().count() < 60, "the log is bounded: {}", daemon.log());
    std::thread::sleep(Duration::from_millis(10));
    assert!(descriptors(&daemon) < before);
}

#[test]
fn a_virtual_machine_of_qemu_plugs_in_and_its_frames_arrive() {
    let name = "a_virtual_machine_of_qemu_plugs_in_and_its_frames_arrive";
    let Some(_turn) = vde_turn(name, &["qemu-system-x86_64"]) else { return };
    let bed = Bed::new(&["a"]);
    let daemon = start(&bed, THREE);
    let sock = format!("vde,id=n0,sock={},port=2", socket(&bed));
    let machine = ["-display", "none", "-serial", "none", "-monitor", "none", "-m", "64", "-nodefaults", "-boot", "n"];
    let card = ["-netdev", &sock, "-device", "e1000,netdev=n0,mac=02:00:00:00:07:02"];
    let mut qemu = Running::start(&bed, "a", "qemu-system-x86_64", &[&machine[..], &card[..]].concat());
    soon("it is plugged in", || is_up(&daemon, "b"));
    assert!(daemon.log().contains("plugged in by \"QEMU"), "{}", daemon.log());
    // Its firmware asks for an address, if it has the ROM for it.
    if Path::new("/usr/lib/ipxe/qemu/pxe-e1000.rom").exists() {
        soon("its frames arrive", || daemon.endpoint("b")["local_egress"]["frames"].as_u64() > Some(0));
    }
    qemu.kill();
    soon("it is unplugged", || !is_up(&daemon, "b"));
}
