//! An etcd as the store of a cluster: daemons find each other, move endpoints, and go on while it
//! is away. Needs Debian's `etcd-server` and `etcd-client`, no rights: the ports are VDE
//! directories, and every host has an address of its own on loopback.

use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[path = "../../ports/src/skipped.rs"]
mod skipped;
use skipped::skipped;

/// How long something may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(90);

/// Whether there is an etcd; says that `test` is skipped where there is none.
fn can_run(test: &str) -> bool {
    let there = ["etcd", "etcdctl"].iter().all(|program| Command::new(program).arg("--help").output().is_ok());
    if there {
        return true;
    }
    skipped(test, "there is no etcd: install etcd-server and etcd-client (tools/setup peers)");
    false
}

fn until(what: &str, mut is_so: impl FnMut() -> Result<(), String>) {
    let begin = Instant::now();
    while let Err(seen) = is_so() {
        assert!(begin.elapsed() < PATIENCE, "not in time: {what}; {seen}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A process that ends with its guard.
struct Process(Child);

impl Process {
    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An etcd of some members, and hosts.
struct Lab {
    place: PathBuf,
    /// The second and third byte of this lab's addresses on loopback.
    net: String,
    members: usize,
}

impl Lab {
    fn new(members: usize) -> Lab {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (pid, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let place = std::env::temp_dir().join(format!("levada-store-{pid}-{n}"));
        std::fs::create_dir_all(&place).unwrap();
        let net = format!("127.{}.{}", 192 + (pid >> 8 & 31), (pid + 32 * n) & 255);
        Lab { place, net, members }
    }

    /// An address of a member of the etcd.
    fn at(&self, member: usize, port: u16) -> String {
        format!("http://{}.{}:{port}", self.net, 101 + member)
    }

    fn endpoints(&self) -> Vec<String> {
        (0..self.members).map(|member| self.at(member, 2379)).collect()
    }

    /// Starts member `n`; with what it has, if it was there before.
    fn etcd(&self, n: usize) -> Process {
        let cluster: Vec<String> = (0..self.members).map(|m| format!("m{m}={}", self.at(m, 2380))).collect();
        let log = std::fs::File::create(self.place.join(format!("etcd{n}.log"))).unwrap();
        let mut command = Command::new("etcd");
        command
            .args(["--name", &format!("m{n}"), "--data-dir", self.place.join(format!("etcd{n}")).to_str().unwrap()])
            .args(["--listen-client-urls", &self.at(n, 2379), "--advertise-client-urls", &self.at(n, 2379)])
            .args(["--listen-peer-urls", &self.at(n, 2380), "--initial-advertise-peer-urls", &self.at(n, 2380)])
            .args(["--initial-cluster", &cluster.join(","), "--unsafe-no-fsync"])
            .stdout(Stdio::null())
            .stderr(log);
        Process(command.spawn().unwrap())
    }

    /// `etcdctl`; what it prints.
    fn ctl(&self, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.endpoints().join(","), "--command-timeout=2s"]);
        let output = command.args(words).output().unwrap();
        if output.status.success() {
            Ok(String::from_utf8(output.stdout).unwrap())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    fn healthy(&self) {
        until("the etcd is there", || self.ctl(&["get", "/"]).map(drop));
    }

    /// All keys of the cluster.
    fn keys(&self) -> Vec<String> {
        let all = self.ctl(&["get", "--prefix", "/levada/", "--keys-only"]).unwrap_or_default();
        all.split_whitespace().map(|key| key.trim_start_matches("/levada/v1/").to_owned()).collect()
    }

    fn levada(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_levada"));
        command.args(words).env("LEVADA_RUN_DIR", self.place.join("run")).output().unwrap()
    }

    fn must(&self, words: &[&str]) -> String {
        let output = self.levada(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Host `n` with endpoints of tenant red: their names and last bytes.
    fn host(&self, n: usize, endpoints: &[(&str, u8)]) -> Process {
        let name = format!("h{n}");
        let text = self.configuration(n, endpoints);
        let file = self.place.join(format!("{name}.toml"));
        std::fs::write(&file, text).unwrap();
        self.certify(&name);
        self.run(n, &file)
    }

    fn run(&self, n: usize, file: &Path) -> Process {
        let log =
            std::fs::File::options().create(true).append(true).open(self.place.join(format!("h{n}.log"))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_levada"));
        command.args(["run", "-c"]).arg(file).env("LEVADA_RUN_DIR", self.place.join("run")).stderr(log);
        Process(command.spawn().unwrap())
    }

    fn configuration(&self, n: usize, endpoints: &[(&str, u8)]) -> String {
        let place = self.place.display();
        let all: String = endpoints.iter().map(|(name, byte)| format!(
            "[[switch.tenant.endpoint]]\nname = \"{name}\"\nport = \"vde://{place}/h{n}-{name}\"\nmac = \"02:00:00:00:00:{byte:02x}\"\nguarantee = \"10 Mbit/s\"\n"
        )).collect();
        format!(
            "[daemon]\nname = \"h{n}\"\n[[switch]]\nname = \"s1\"\n[switch.uplink]\nport = \"vde://{place}/h{n}-up\"\nrate = \"1 Gbit/s\"\n\
             [[switch.tenant]]\nname = \"red\"\nvlan = 10\n{all}\
             [cluster]\nhost = \"h{n}\"\nlisten = \"{}.{n}:7370\"\ndirectory = \"{place}/cluster-h{n}\"\n\
             [cluster.etcd]\nendpoints = {:?}\n",
            self.net,
            self.endpoints()
        )
    }

    /// A certificate for a host; the first makes the authority.
    fn certify(&self, host: &str) {
        let directory = self.place.join(format!("cluster-{host}"));
        if directory.exists() {
            return;
        }
        let first = self.place.join("cluster-h1");
        let (via, directory) = (
            format!("{} cluster sign -d {}", env!("CARGO_BIN_EXE_levada"), first.display()),
            directory.display().to_string(),
        );
        if host == "h1" {
            self.must(&["cluster", "init", "-d", &directory, "--host", host]);
        } else {
            self.must(&["cluster", "join", "-d", &directory, "--host", host, "--via", &via]);
        }
    }

    fn cluster(&self, n: usize) -> Value {
        let output = self.levada(&["show", "cluster", "--json", "-n", &format!("h{n}")]);
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        reply["cluster"].clone()
    }

    /// Waits until what host `n` says of the cluster is so.
    fn until(&self, n: usize, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        until(&format!("h{n}: {what}"), || {
            last = self.cluster(n);
            if is_so(&last) { Ok(()) } else { Err(last.to_string()) }
        });
        last
    }

    fn add(&self, n: usize, name: &str, byte: u8) {
        let port = format!("port=vde://{}/h{n}-{name}", self.place.display());
        self.must(&[
            "add",
            "endpoint",
            &format!("s1/red/{name}"),
            &port,
            &format!("mac=02:00:00:00:00:{byte:02x}"),
            "-n",
            &format!("h{n}"),
        ]);
    }

    fn log(&self, n: usize) -> String {
        std::fs::read_to_string(self.place.join(format!("h{n}.log"))).unwrap_or_default()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for n in 1..4 {
                println!("h{n}: {}", self.log(n));
            }
        }
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

/// How many endpoints a member has, by what another says.
fn has(cluster: &Value, member: &str) -> Option<u64> {
    let all = cluster["members"].as_array()?;
    all.iter().find(|one| one["name"] == member)?["endpoints"].as_u64()
}

fn is_away(cluster: &Value, member: &str) -> bool {
    cluster["members"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == member && one["away"] == true))
}

#[test]
fn of_two_daemons_of_one_name_in_one_machine_the_second_writes_nothing() {
    if !can_run("of_two_daemons_of_one_name_in_one_machine_the_second_writes_nothing") {
        return;
    }
    let lab = Lab::new(1);
    let _etcd = lab.etcd(0);
    lab.healthy();
    let _h1 = lab.host(1, &[("red1", 1)]);
    lab.until(1, "it is in the store", |c| c["etcd"]["connected"] == true);
    let text = lab.configuration(1, &[("red1", 1)]);
    let text = text.replace(".1:7370", ".4:7370").replace("/h1-", "/twin-");
    let (file, runs) = (lab.place.join("twin.toml"), lab.place.join("twin"));
    std::fs::write(&file, text).unwrap();
    let twin = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_levada"));
        command.args(words).env("LEVADA_RUN_DIR", &runs).stderr(Stdio::null());
        command
    };
    let _twin = Process(twin(&["run", "-c", file.to_str().unwrap()]).spawn().unwrap());
    until("the twin knows of the other", || {
        let output = twin(&["show", "cluster", "--json"]).output().unwrap();
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let rival = reply["cluster"]["etcd"]["rival"].as_str().unwrap_or_default().to_owned();
        if rival.contains("another daemon, h1@") { Ok(()) } else { Err(reply.to_string()) }
    });
    assert_eq!(lab.cluster(1)["etcd"]["rival"], Value::Null);
}

#[test]
fn endpoints_move_between_hosts_that_know_each_other_by_an_etcd() {
    if !can_run("endpoints_move_between_hosts_that_know_each_other_by_an_etcd") {
        return;
    }
    let lab = Lab::new(1);
    let _etcd = lab.etcd(0);
    lab.healthy();
    let _h1 = lab.host(1, &[("red1", 1), ("red9", 9)]);
    let h2 = lab.host(2, &[("red2", 2)]);
    lab.until(1, "it knows h2", |c| has(c, "h2") == Some(1) && c["etcd"]["connected"] == true);
    let seen = lab.until(2, "it knows h1", |c| has(c, "h1") == Some(2));
    assert_eq!((&seen["members"][0]["known_from"], &seen["members"][0]["away"]), (&"etcd".into(), &false.into()));
    assert_eq!(seen["members"][0]["address"], format!("{}.1:7370", lab.net));
    // Added at the new place, it waits for the old to let go, and both say so.
    lab.add(2, "red9", 9);
    let seen = lab.until(2, "it is contested", |c| c["etcd"]["contests"].as_array().is_some_and(|all| all.len() == 1));
    assert_eq!(seen["etcd"]["contests"][0]["holder"], "h1");
    assert!(lab.log(2).contains("endpoint red/red9 (02:00:00:00:00:09) is on host \"h1\""), "{}", lab.log(2));
    assert_eq!(has(&lab.cluster(1), "h2"), Some(1));
    lab.must(&["del", "endpoint", "s1/red/red9", "-n", "h1"]);
    lab.until(1, "it is at h2", |c| has(c, "h2") == Some(2));
    lab.until(2, "it is here", |c| has(c, "h1") == Some(1) && c["etcd"]["contests"] == serde_json::json!([]));
    // What has announced it went out over the uplink.
    let report: Value = serde_json::from_str(&lab.must(&["show", "--json", "-n", "h2"])).unwrap();
    assert!(report.to_string().contains("red9"));
    // A host that is stopped is away at once; what it has stays known, until another has it.
    h2.signal(rustix::process::Signal::TERM);
    lab.until(1, "h2 is away", |c| is_away(c, "h2") && has(c, "h2") == Some(2));
    lab.add(1, "red9", 9);
    lab.until(1, "it is taken over", |c| has(c, "h2") == Some(1) && c["etcd"]["contests"] == serde_json::json!([]));
    drop(h2);
    let _h2 = lab.host(2, &[("red2", 2), ("red9", 9)]);
    lab.until(2, "it is told", |c| c["etcd"]["contests"][0]["holder"] == "h1");
    lab.until(1, "h2 is back", |c| !is_away(c, "h2") && has(c, "h2") == Some(1));
    // What a host that is lost has left is taken out by hand, not before it is known to be lost.
    let forget =
        |host: &str| lab.levada(&["cluster", "forget", host, "-c", &format!("{}/h1.toml", lab.place.display())]);
    let h3 = lab.host(3, &[("red3", 3), ("red4", 4)]);
    lab.until(1, "it knows h3", |c| has(c, "h3") == Some(2));
    let refused = forget("h3");
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && why.contains("its daemon h3@"), "{why}");
    h3.signal(rustix::process::Signal::TERM);
    lab.until(1, "h3 is away", |c| is_away(c, "h3") && has(c, "h3") == Some(2));
    let forgotten = forget("h3");
    let text = String::from_utf8_lossy(&forgotten.stdout).into_owned();
    assert!(
        forgotten.status.success() && text.contains("/levada/v1/host/h3") && text.matches("endpoint/red").count() == 2
    );
    lab.until(1, "it is forgotten", |c| has(c, "h3").is_none() && has(c, "h2") == Some(1));
    assert!(String::from_utf8_lossy(&forget("h3").stderr).contains("has no entry of host \"h3\""));
    // Who has no use for the store takes its own along.
    lab.must(&["set", "cluster", "etcd=", "-n", "h1"]);
    until("h1 is gone", || {
        let keys = lab.keys();
        let there = keys.iter().any(|key| key.ends_with("/h1") || key.ends_with(":01"));
        if there { Err(format!("{keys:?}")) } else { Ok(()) }
    });
    lab.until(2, "and red9 is here", |c| {
        c["etcd"]["contests"] == serde_json::json!([]) && c["members"] == serde_json::json!([])
    });
}

/// A plug in a port's directory: frames as datagrams (`ports/src/vde/request.rs`).
struct Plug {
    socket: UnixDatagram,
    /// Its daemon lets it go when this closes.
    _stream: UnixStream,
}

impl Plug {
    fn new(directory: &Path) -> std::io::Result<Plug> {
        let mut stream = UnixStream::connect(directory.join("ctl"))?;
        let own = directory.join(format!("plug-{}", std::process::id()));
        let _ = std::fs::remove_file(&own);
        let socket = UnixDatagram::bind(&own)?;
        let mut request = [0xfeed_face_u32, 3, 0].map(u32::to_ne_bytes).concat();
        request.extend(1u16.to_ne_bytes());
        request.extend(own.to_str().unwrap().bytes());
        request.resize(122, 0);
        stream.write_all(&request)?;
        let mut answer = [0; 110];
        stream.read_exact(&mut answer)?;
        let path: Vec<u8> = answer[2..].iter().copied().take_while(|byte| *byte != 0).collect();
        socket.connect(std::str::from_utf8(&path).unwrap())?;
        socket.set_nonblocking(true)?;
        Ok(Plug { socket, _stream: stream })
    }

    fn frames(&self) -> impl Iterator<Item = Vec<u8>> {
        std::iter::from_fn(|| {
            let mut buffer = [0; 2048];
            self.socket.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec())
        })
    }
}

/// The network between two hosts, as a switch that learns: it sends numbered frames to an endpoint
/// where it was last heard of.
struct Network {
    uplinks: [Plug; 2],
    at: usize,
    sent: u32,
    /// How often the endpoint has spoken over each uplink.
    heard: [u32; 2],
}

impl Network {
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    /// A frame to the endpoint, in the tenant's VLAN. Says over which uplink the endpoint has
    /// spoken since the last one, in reverse ARP.
    fn turn(&mut self) -> Option<usize> {
        let mut announced = None;
        for (side, uplink) in self.uplinks.iter().enumerate() {
            for frame in uplink.frames().filter(|frame| frame.len() >= 60 && frame[6..12] == Network::MAC) {
                // VLAN 10, and what is inside.
                assert_eq!((&frame[12..14], frame[15]), (&[0x81, 0][..], 10));
                if frame[16..18] == [0x80, 0x35] && frame[..6] == [0xff; 6] {
                    (self.at, announced) = (side, Some(side));
                    self.heard[side] += 1;
                }
            }
        }
        let mut frame = [&Network::MAC[..], &[2, 0, 0, 0, 0, 0x77, 0x81, 0, 0, 10, 0x88, 0xb5]].concat();
        frame.extend(self.sent.to_be_bytes());
        frame.resize(64, 0);
        let _ = self.uplinks[self.at].socket.send(&frame);
        self.sent += 1;
        announced
    }
}

/// The numbers that have come to an endpoint.
fn numbers(plug: &Plug) -> Vec<u32> {
    let ours = plug.frames().filter(|frame| frame.len() >= 18 && frame[12..14] == [0x88, 0xb5]);
    ours.map(|frame| u32::from_be_bytes(frame[14..18].try_into().unwrap())).collect()
}

#[test]
fn what_is_sent_follows_an_endpoint_that_moves() {
    if !can_run("what_is_sent_follows_an_endpoint_that_moves") {
        return;
    }
    let lab = Lab::new(1);
    let _etcd = lab.etcd(0);
    lab.healthy();
    let _h1 = lab.host(1, &[("red9", 9)]);
    let _h2 = lab.host(2, &[]);
    lab.until(1, "it knows h2", |c| has(c, "h2") == Some(0));
    lab.until(2, "it knows h1", |c| has(c, "h1") == Some(1));
    let plug = |name: String| {
        let mut plug = None;
        until("the port is there", || {
            Plug::new(&lab.place.join(&name)).map(|new| plug = Some(new)).map_err(|error| error.to_string())
        });
        plug.unwrap()
    };
    let mut network =
        Network { uplinks: [plug("h1-up".to_owned()), plug("h2-up".to_owned())], at: 0, sent: 0, heard: [0; 2] };
    let first = plug("h1-red9".to_owned());
    until("what is sent comes to it", || {
        network.turn();
        if numbers(&first).is_empty() { Err(format!("{} sent", network.sent)) } else { Ok(()) }
    });
    for (from, to) in [(1, 2), (2, 1)] {
        lab.add(to, "red9", 9);
        let new = plug(format!("h{to}-red9"));
        lab.until(to, "it is contested", |c| c["etcd"]["contests"].as_array().is_some_and(|all| all.len() == 1));
        // As long as another has it, this place does not say that it is here.
        network.heard = [0; 2];
        assert!((0..100).all(|_| network.turn() != Some(to - 1)));
        assert_eq!((network.at, network.heard[to - 1]), (from - 1, 0));
        lab.must(&["del", "endpoint", "s1/red/red9", "-n", &format!("h{from}")]);
        until("the new place says that it is here", || {
            network.turn().filter(|&side| side == to - 1).map(drop).ok_or_else(String::new)
        });
        assert_eq!(network.at, to - 1);
        // From now on all that is sent comes there. Slowly, so that no queue is too short.
        let begin = network.sent;
        let mut came = Vec::new();
        until("all that is sent comes to the new place", || {
            if network.sent < begin + 100 {
                network.turn();
            }
            came.extend(numbers(&new).into_iter().filter(|number| *number >= begin));
            if came.len() == 100 { Ok(()) } else { Err(format!("{came:?} since {begin}")) }
        });
        // One of its words may be lost: it has five.
        until("the new place has said it five times", || {
            network.turn();
            let heard = network.heard[to - 1];
            if heard == 5 { Ok(()) } else { Err(format!("{heard} times")) }
        });
    }
}

#[test]
fn what_is_malformed_is_refused_by_name() {
    if !can_run("what_is_malformed_is_refused_by_name") {
        return;
    }
    let lab = Lab::new(1);
    let _etcd = lab.etcd(0);
    lab.healthy();
    let _h1 = lab.host(1, &[("red1", 1)]);
    let _h2 = lab.host(2, &[("red2", 2)]);
    lab.until(1, "it knows h2", |c| has(c, "h2") == Some(1));
    let long = "x".repeat(5000);
    for (key, value) in [
        ("host/torn", "{"),
        ("host/h9", "{\"version\":1,\"address\":\"ADDRESS\"}"),
        ("host/newer", "{\"version\":2}"),
        ("nonsense", "1"),
        ("endpoint/red/02:00:00:00:00:63", "{\"version\":1,\"host\":\"h8\",\"name\":\"e\"}"),
        ("endpoint/red/02:00:00:00:00:64", &long),
    ] {
        let value = value.replace("ADDRESS", &format!("{}.2:7370", lab.net));
        lab.ctl(&["put", &format!("/levada/v1/{key}"), &value]).unwrap();
    }
    let seen = lab.until(1, "all are refused", |c| c["etcd"]["refusals"] == 6);
    let text = lab.must(&["show", "cluster", "-n", "h1"]);
    for says in
        ["host/torn", "host \"h2\"'s address", "version 2", "v1/nonsense", "\"h8\" is not in the store", "5000 bytes"]
    {
        assert!(text.contains(says), "{says}: {text}");
    }
    assert_eq!(has(&seen, "h2"), Some(1));
    // What somebody has deleted or spoilt of its own, a host writes again.
    lab.ctl(&["del", "/levada/v1/endpoint/red/02:00:00:00:00:02"]).unwrap();
    lab.ctl(&["put", "/levada/v1/host/h2", "spoilt"]).unwrap();
    until("it is written again", || {
        let (host, endpoint) =
            (lab.ctl(&["get", "/levada/v1/host/h2"])?, lab.ctl(&["get", "/levada/v1/endpoint/red/02:00:00:00:00:02"])?);
        if host.contains("7370") && endpoint.contains("red2") { Ok(()) } else { Err(host + &endpoint) }
    });
    lab.until(1, "and used again", |c| has(c, "h2") == Some(1) && c["etcd"]["refusals"] == 6);
}

/// The base64 of a text, as etcd's gateway takes keys and values.
fn base64(text: &str) -> String {
    let output = Command::new("sh").args(["-c", "printf %s \"$0\" | base64 -w0", text]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// How often a daemon's thread has waited for something.
fn waits(daemon: &Process, thread: &str) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.0.id())).unwrap();
    let status = threads.filter_map(|at| std::fs::read_to_string(at.unwrap().path().join("status")).ok());
    let status: Vec<String> = status.collect();
    let own =
        status.iter().find(|text| text.starts_with(&format!("Name:\t{thread}\n"))).expect("there is such a thread");
    let line = own.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn a_key_that_flips_is_followed_now_and_then() {
    const FLIPS: u32 = 1000;
    if !can_run("a_key_that_flips_is_followed_now_and_then") {
        return;
    }
    let lab = Lab::new(1);
    let _etcd = lab.etcd(0);
    lab.healthy();
    let h1 = lab.host(1, &[("red1", 1)]);
    let h2 = lab.host(2, &[("red2", 2)]);
    lab.until(1, "it knows h2", |c| has(c, "h2") == Some(1));
    // What it has stays, and nobody sets it right.
    h2.signal(rustix::process::Signal::KILL);
    let key = base64("/levada/v1/endpoint/red/02:00:00:00:00:63");
    let value = base64("{\"version\":1,\"host\":\"h2\",\"name\":\"e\"}");
    let flip = |is_there: bool| {
        let (path, body) = if is_there {
            ("put", format!("{{\"key\":\"{key}\",\"value\":\"{value}\"}}"))
        } else {
            ("deleterange", format!("{{\"key\":\"{key}\"}}"))
        };
        let mut stream = TcpStream::connect(lab.at(0, 2379).trim_start_matches("http://")).unwrap();
        let (to, length) = (format!("POST /v3/kv/{path} HTTP/1.1\r\nhost: x\r\nconnection: close"), body.len());
        stream.write_all(format!("{to}\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    };
    flip(true);
    lab.until(1, "it is followed", |c| has(c, "h2") == Some(2));
    let (begin, before) = (Instant::now(), waits(&h1, "levada-changes"));
    for n in 0..FLIPS {
        flip(n % 2 == 1);
        std::thread::sleep(Duration::from_millis(5));
    }
    // Each change is worth a wait at least, and so is each second.
    let waited = waits(&h1, "levada-changes") - before;
    println!("{FLIPS} flips in {:?}: it waited {waited} times", begin.elapsed());
    assert!(waited < u64::from(FLIPS / 4), "{waited} changes in {:?}", begin.elapsed());
    flip(false);
    lab.until(1, "the last is followed", |c| has(c, "h2") == Some(1));
}

#[test]
fn a_cluster_goes_on_while_its_etcd_loses_leader_and_all() {
    if !can_run("a_cluster_goes_on_while_its_etcd_loses_leader_and_all") {
        return;
    }
    let lab = Lab::new(3);
    let mut etcds: Vec<Option<Process>> = (0..3).map(|n| Some(lab.etcd(n))).collect();
    lab.healthy();
    let _h1 = lab.host(1, &[("red1", 1)]);
    let _h2 = lab.host(2, &[("red2", 2)]);
    lab.until(1, "it knows h2", |c| has(c, "h2") == Some(1));
    lab.until(2, "it knows h1", |c| has(c, "h1") == Some(1));
    // The leader dies.
    let status = lab.ctl(&["endpoint", "status"]).unwrap();
    let leader = status.lines().position(|line| line.split(", ").nth(4) == Some("true")).expect(&status);
    etcds[leader] = None;
    lab.add(2, "red3", 3);
    lab.until(1, "it learns of an endpoint", |c| has(c, "h2") == Some(2));
    // All but one do: there is no leader any more.
    let last = (0..3).find(|&n| etcds[n].is_some()).unwrap();
    for (n, etcd) in etcds.iter_mut().enumerate() {
        if n != last {
            *etcd = None;
        }
    }
    let seen = lab.until(1, "it is away", |c| c["etcd"]["connected"] == false && !c["etcd"]["error"].is_null());
    assert_eq!(has(&seen, "h2"), Some(2), "what was known holds");
    lab.add(2, "red4", 4);
    lab.must(&["del", "endpoint", "s1/red/red2", "-n", "h2"]);
    etcds[last] = None;
    assert_eq!(has(&lab.cluster(1), "h2"), Some(2));
    // They return with what they had.
    for (n, etcd) in etcds.iter_mut().enumerate() {
        *etcd = Some(lab.etcd(n));
    }
    lab.healthy();
    lab.until(1, "it is back", |c| c["etcd"]["connected"] == true && has(c, "h2") == Some(2));
    until("all is reconciled", || {
        let mut keys = lab.keys();
        keys.sort();
        let macs = [1, 3, 4].map(|byte| format!("endpoint/red/02:00:00:00:00:{byte:02x}"));
        let hosts = ["alive/h1", "alive/h2"].map(str::to_owned).into_iter();
        let wanted: Vec<String> = hosts.chain(macs).chain(["host/h1", "host/h2"].map(str::to_owned)).collect();
        if keys == wanted { Ok(()) } else { Err(format!("{keys:?}")) }
    });
    lab.until(2, "nobody is away", |c| !is_away(c, "h1") && has(c, "h1") == Some(1));
}

/// Two hosts with one endpoint: the second waits for it.
fn contested(lab: &Lab) -> [Process; 2] {
    let first = lab.host(1, &[("red9", 9)]);
    lab.until(1, "it has red9", |c| {
        c["etcd"]["connected"] == true && lab.keys().iter().any(|key| key.ends_with(":09"))
    });
    let second = lab.host(2, &[("red9", 9)]);
    lab.until(2, "it is contested", |c| c["etcd"]["contests"][0]["holder"] == "h1");
    [first, second]
}

#[test]
fn a_host_that_gets_another_url_of_its_etcd_keeps_what_it_has() {
    if !can_run("a_host_that_gets_another_url_of_its_etcd_keeps_what_it_has") {
        return;
    }
    let lab = Lab::new(1);
    let _etcd = lab.etcd(0);
    lab.healthy();
    let _hosts = contested(&lab);
    lab.until(1, "it knows h2", |c| has(c, "h2") == Some(0));
    // Who was there is known all along: the store has not answered yet.
    let own = format!("[\"{}\"", lab.at(0, 2379));
    let more = lab.configuration(1, &[("red9", 9)]).replace(&own, &format!("{own}, \"http://localhost:2379\""));
    let file = lab.place.join("h1.toml");
    std::fs::write(&file, more).unwrap();
    let before = lab.ctl(&["get", "/", "-w", "json"]).unwrap();
    lab.must(&["apply", file.to_str().unwrap(), "-n", "h1"]);
    assert_eq!(has(&lab.cluster(1), "h2"), Some(0));
    lab.until(1, "it is there by the new one", |c| c["etcd"]["connected"] == true);
    let before: Value = serde_json::from_str(&before).unwrap();
    let revision = before["header"]["revision"].as_u64().unwrap() + 1;
    until("its daemon has another lease", || {
        let alive = lab.ctl(&["get", "/levada/v1/alive/h1", "-w", "json"])?;
        let alive: Value = serde_json::from_str(&alive).map_err(|error| error.to_string())?;
        let written = alive["kvs"][0]["mod_revision"].as_u64().unwrap_or(0);
        if written >= revision { Ok(()) } else { Err(alive.to_string()) }
    });
    // The host was never out of the store.
    let file = std::fs::File::create(lab.place.join("events")).unwrap();
    let mut watch = Command::new("etcdctl");
    watch.env("ETCDCTL_API", "3").args(["--endpoints", &lab.at(0, 2379), "watch", "--prefix", "/levada/"]);
    watch.args(["--rev", &revision.to_string()]).stdout(file);
    let _watch = Process(watch.spawn().unwrap());
    let mut events = String::new();
    until("what was written is told", || {
        events = std::fs::read_to_string(lab.place.join("events")).unwrap_or_default();
        if events.contains("alive/h1") { Ok(()) } else { Err(events.clone()) }
    });
    assert!(!events.contains("DELETE"), "{events}");
    assert_eq!(lab.cluster(2)["etcd"]["contests"][0]["holder"], "h1");
}

#[test]
fn what_a_store_has_said_holds_no_more_where_another_is_to_say_it() {
    if !can_run("what_a_store_has_said_holds_no_more_where_another_is_to_say_it") {
        return;
    }
    let lab = Lab::new(1);
    let etcd = lab.etcd(0);
    lab.healthy();
    let _hosts = contested(&lab);
    let (from, to) = (["--from", "s1/red/red9", "--source", "02:00:00:00:00:09"], ["--to", "02:00:00:00:00:77"]);
    let sent = [&["trace", "-n", "h2"][..], &from, &to, &["udp", "10.0.0.9:1", "10.0.0.7:2"]].concat();
    until("what it sends is refused", || {
        let trace = lab.must(&sent);
        if trace.contains("dropped") { Ok(()) } else { Err(trace) }
    });
    // It is away for good; the next one does not answer, so it says nothing yet.
    drop(etcd);
    lab.until(2, "it is away", |c| c["etcd"]["connected"] == false);
    let another = format!("etcd={{\"endpoints\": [\"{}\"], \"prefix\": \"/other\"}}", lab.at(1, 2379));
    lab.must(&["set", "cluster", &another, "-n", "h2"]);
    let trace = lab.must(&sent);
    assert!(!trace.contains("dropped"), "{trace}");
}
