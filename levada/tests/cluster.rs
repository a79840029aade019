//! `levada cluster` as an operator uses it, and daemons that are given what it makes.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long something may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory that goes with the test, and the daemons in it.
struct Lab {
    place: PathBuf,
    daemons: Vec<Child>,
}

impl Lab {
    fn new(name: &str) -> Lab {
        let place = std::env::temp_dir().join(format!("levada-cluster-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        Lab { place, daemons: Vec::new() }
    }

    fn directory(&self, host: &str) -> PathBuf {
        self.place.join(host)
    }

    /// `levada`, and what goes to its standard input.
    fn levada(&self, words: &[&str], input: &[u8]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_levada"));
        command.args(words).env("LEVADA_RUN_DIR", self.place.join("run"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    /// `levada cluster` in the directory of a host, which must succeed.
    fn cluster(&self, host: &str, words: &[&str], input: &[u8]) -> String {
        let output = self.try_cluster(host, words, input);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn try_cluster(&self, host: &str, words: &[&str], input: &[u8]) -> Output {
        let directory = self.directory(host);
        let (first, rest) = words.split_first().unwrap();
        self.levada(&[&["cluster", first, "-d", directory.to_str().unwrap()], rest].concat(), input)
    }

    /// What it says where it does not.
    fn refused(&self, host: &str, words: &[&str], input: &[u8]) -> String {
        let output = self.try_cluster(host, words, input);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).unwrap()
    }

    /// The command by which others reach the authority of `host`.
    fn via(&self, host: &str) -> String {
        format!("{} cluster sign -d {}", env!("CARGO_BIN_EXE_levada"), self.directory(host).display())
    }

    fn join(&self, host: &str, authority: &str) {
        self.cluster(host, &["join", "--host", host, "--via", &self.via(authority)], b"");
    }

    fn run(&mut self, file: &Path, options: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_levada"));
        command.args(["run", "-c"]).arg(file).args(options).env("LEVADA_RUN_DIR", self.place.join("run"));
        self.daemons.push(command.stderr(Stdio::null()).spawn().unwrap());
    }

    /// What a daemon says of the cluster when it is so.
    fn until(&self, name: &str, what: &str, is_so: impl Fn(&serde_json::Value) -> bool) {
        let begin = Instant::now();
        loop {
            let output = self.levada(&["show", "cluster", "--json", "-n", name], b"");
            if let Ok(reply) = serde_json::from_slice::<serde_json::Value>(&output.stdout)
                && is_so(&reply["cluster"])
            {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{what}: {}", String::from_utf8_lossy(&output.stdout));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

#[test]
fn a_cluster_is_made_by_one_command_on_each_host() {
    let lab = Lab::new("made");
    let text = lab.cluster("h1", &["init", "--host", "h1"], b"");
    assert!(text.contains("Host \"h1\"") && text.contains("levada cluster sign"), "{text}");
    lab.join("h2", "h1");
    for (host, files) in [("h1", &["host.pem", "trust.pem", "authority.pem"][..]), ("h2", &["host.pem", "trust.pem"])] {
        let directory = lab.directory(host);
        assert_eq!(std::fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), files.len());
        for file in files {
            let mode = std::fs::metadata(directory.join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
    }
    assert!(lab.cluster("h2", &["status"], b"").starts_with("host h2: certificate until "));
    assert!(lab.cluster("h1", &["status"], b"").contains("holds the authority"));
    // Again is renewal: another key, the same name.
    let key = || std::fs::read(lab.directory("h2").join("host.pem")).unwrap();
    let before = key();
    lab.cluster("h2", &["join", "--via", &lab.via("h1")], b"");
    assert!(key() != before && lab.cluster("h2", &["status"], b"").contains("host h2"));
    lab.cluster("h1", &["join"], b"");
}

#[test]
fn requests_and_answers_can_be_carried_by_hand() {
    let lab = Lab::new("carried");
    lab.cluster("h1", &["init", "--host", "h1"], b"");
    let request = lab.cluster("h2", &["join", "--host", "h2"], b"");
    assert!(request.starts_with("-----BEGIN CERTIFICATE REQUEST-----"), "{request}");
    assert!(lab.refused("h1", &["sign", "--host", "h3"], request.as_bytes()).contains("only \"h3\""));
    let answer = lab.cluster("h1", &["sign", "--host", "h2"], request.as_bytes());
    assert!(!answer.contains("PRIVATE KEY"));
    lab.cluster("h2", &["join", "--certificate", "-"], answer.as_bytes());
    assert!(!lab.directory("h2").join("request.pem").exists());
    assert!(lab.cluster("h2", &["status"], b"").contains("host h2"));
    // An answer to another's request has another's key.
    lab.cluster("h3", &["join", "--host", "h3"], b"");
    assert!(
        lab.refused("h3", &["join", "--certificate", "-"], answer.as_bytes())
            .contains("does not go with the certificate")
    );
}

#[test]
fn what_cannot_be_done_is_said_with_file_and_remedy() {
    let lab = Lab::new("refused");
    lab.cluster("h1", &["init", "--host", "h1"], b"");
    assert!(lab.refused("h1", &["init"], b"").contains("authority.pem exists"));
    assert!(lab.refused("h2", &["sign"], b"").contains("authority.pem is not there"));
    assert!(lab.refused("h2", &["rotate"], b"").contains("authority.pem is not there"));
    assert!(lab.refused("h2", &["status"], b"").contains("levada cluster join"));
    assert!(lab.refused("h1", &["rotate", "--finish"], b"").contains("is not being replaced"));
    assert!(lab.refused("h1", &["sign"], b"nonsense").contains("no good request"));
    assert!(lab.refused("h2", &["join", "--host", "h2", "--via", "false"], b"").contains("nothing was changed"));
    assert!(lab.refused("h2", &["join", "--host", "h2", "--via", "echo hello"], b"").contains("no certificate"));
    assert!(lab.refused("h2", &["join", "--certificate", "-"], b"").contains("request.pem does not exist"));
    // Another cluster's answer does not replace this one's.
    lab.join("h2", "h1");
    lab.cluster("x1", &["init", "--host", "x1"], b"");
    let foreign = lab.refused("h2", &["join", "--via", &lab.via("x1")], b"");
    assert!(foreign.contains("not from this host's cluster") && foreign.contains("trust.pem"), "{foreign}");
    // A key that others can read is none.
    let authority = lab.directory("h1").join("authority.pem");
    std::fs::set_permissions(&authority, std::fs::Permissions::from_mode(0o644)).unwrap();
    let open = lab.refused("h1", &["sign"], b"");
    assert!(open.contains("mode 0644") && open.contains("chmod 0600"), "{open}");
}

#[test]
fn the_authority_is_changed_host_by_host() {
    let lab = Lab::new("rotated");
    lab.cluster("h1", &["init", "--host", "h1"], b"");
    lab.join("h2", "h1");
    assert!(lab.cluster("h1", &["rotate"], b"").contains("--finish"));
    assert!(lab.refused("h1", &["rotate"], b"").contains("being replaced already"));
    // Who signed a host's certificate, of so many that it trusts.
    let signer = |host, count| {
        let status = lab.cluster(host, &["status"], b"");
        assert!(status.contains(&format!("authorities: {count}")), "{host}: {status}");
        let named: Vec<_> = status.lines().filter_map(|line| line.strip_prefix("  Levada cluster ")).collect();
        let signed: Vec<_> = named.iter().filter(|line| line.ends_with(", signed this host's certificate")).collect();
        assert_eq!((named.len(), signed.len()), (count, 1), "{host}: {status}");
        (*signed[0]).to_owned()
    };
    let new = signer("h1", 2);
    assert_ne!(signer("h2", 1), new, "h2 has not heard of it yet");
    lab.join("h2", "h1");
    assert_eq!(signer("h2", 2), new);
    lab.cluster("h1", &["rotate", "--finish"], b"");
    lab.join("h2", "h1");
    assert_eq!((signer("h1", 1), signer("h2", 1)), (new.clone(), new));
}

/// Asks whether somebody listens at an address, again and again: the kernel says so when nobody
/// does.
struct Prober {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<(u32, u32)>>,
}

impl Prober {
    fn new(at: String) -> Prober {
        let over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(at).unwrap();
            let (mut asked, mut refused) = (0, 0);
            while !stop.load(Ordering::Relaxed) {
                match socket.send(b"is anybody there?") {
                    Ok(_) => asked += 1,
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => refused += 1,
                    // The socket's queue is full of these.
                    Err(_) => {}
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            (asked, refused)
        });
        Prober { over, thread: Some(thread) }
    }

    /// How often it was asked, and how often nobody was there.
    fn end(mut self) -> (u32, u32) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

#[test]
fn the_agents_port_stays_open_while_one_process_takes_over_from_another() {
    let mut lab = Lab::new("takeover");
    let file = lab.place.join("d.toml");
    let pid = std::process::id();
    let ip = format!("127.{}.{}.10", 128 + (pid >> 8 & 63), pid & 255);
    let text = format!(
        "[daemon]\nname = \"d\"\n[[switch]]\nname = \"s1\"\n[cluster]\nhost = \"h1\"\nlisten = \"{ip}:7370\"\ndirectory = \"{}\"\n",
        lab.directory("h1").display()
    );
    std::fs::write(&file, text).unwrap();
    lab.cluster("h1", &["init", "--host", "h1"], b"");
    lab.run(&file, &[]);
    lab.until("d", "it is up", |c| c["up"] == true);
    // Nobody may be sure that the prober would see it: without a daemon it does.
    let prober = Prober::new(format!("{ip}:7371"));
    std::thread::sleep(Duration::from_millis(100));
    assert!(prober.end().1 > 0);
    let prober = Prober::new(format!("{ip}:7370"));
    for _ in 0..3 {
        lab.run(&file, &["--takeover"]);
        let mut old = lab.daemons.remove(0);
        let begin = Instant::now();
        while old.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < PATIENCE, "the old process does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        lab.until("d", "the next one is up", |c| c["up"] == true);
    }
    // One that asks for everything and then breaks off leaves it to whom has it.
    break_off(&lab.place.join("run/d/handover.sock"));
    lab.until("d", "it goes on", |c| c["up"] == true);
    let (asked, refused) = prober.end();
    assert!(refused == 0 && asked > 0, "{refused} of {asked} were refused");
}

/// A process that is to take over, and ends when all depends on it.
fn break_off(socket: &Path) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let mut say = |text: &str| {
        stream.write_all(&(text.len() as u32).to_le_bytes()).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
    };
    say("{\"message\":\"hello\",\"protocol\":1,\"version\":\"0\",\"pid\":1}");
    say("{\"message\":\"ready\"}");
    // Until it has said all that it knows.
    let mut heard = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&heard).contains("\"message\":\"state\"") {
        let length = stream.read(&mut buffer).unwrap();
        assert!(length > 0, "it refuses: {}", String::from_utf8_lossy(&heard));
        heard.extend(&buffer[..length]);
    }
}

#[test]
fn a_daemon_follows_its_configuration_and_its_certificates() {
    let mut lab = Lab::new("daemon");
    let file = lab.place.join("d.toml");
    // An address of this test's own, and a port that the kernel does not give away.
    let (pid, port) = (std::process::id(), 7370);
    let ip = format!("127.{}.{}.9", 128 + (pid >> 8 & 63), pid & 255);
    let config = |members: &str| {
        format!(
            "[daemon]\nname = \"d\"\n[[switch]]\nname = \"s1\"\n[cluster]\nhost = \"h1\"\nlisten = \"{ip}:{port}\"\ndirectory = \"{}\"\n{members}",
            lab.directory("h1").display()
        )
    };
    let member = "[[cluster.member]]\nname = \"h2\"\naddress = \"192.0.2.2:7370\"\n\
                  endpoint = [{ name = \"red2\", tenant = \"red\", mac = \"02:00:00:00:00:02\" }]\n";
    std::fs::write(&file, config(member)).unwrap();
    lab.run(&file, &[]);
    // It runs without a certificate, and says what it waits for.
    lab.until("d", "it waits", |c| c["up"] == false && c["error"].to_string().contains("host.pem is not there"));
    lab.cluster("h1", &["init", "--host", "h1"], b"");
    lab.until("d", "it is up", |c| c["up"] == true && c["error"].is_null() && c["certificate_expires_s"].is_i64());
    lab.until("d", "it knows h2", |c| c["members"][0]["name"] == "h2" && c["members"][0]["endpoints"] == 1);
    let change = |words: &[&str]| {
        let output = lab.levada(words, b"");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    // A certificate that is damaged meanwhile does not take away the one that is in use.
    let pem = lab.directory("h1").join("host.pem");
    let good = std::fs::read(&pem).unwrap();
    std::fs::write(&pem, &good[..good.len() / 2]).unwrap();
    change(&["apply", file.to_str().unwrap()]);
    lab.until("d", "it goes on", |c| {
        c["up"] == true
            && c["error"]
                .as_str()
                .is_some_and(|why| why.contains("the end of a section is missing") && why.contains("is used"))
    });
    std::fs::write(&pem, good).unwrap();
    change(&["apply", file.to_str().unwrap()]);
    lab.until("d", "all is well", |c| c["up"] == true && c["error"].is_null());
    change(&["add", "member", "h3", "address=192.0.2.3:7370"]);
    change(&["set", "member", "h2", "address=192.0.2.9:7370"]);
    lab.until("d", "it knows h3", |c| {
        c["members"][1]["name"] == "h3" && c["members"][0]["address"] == "192.0.2.9:7370"
    });
    change(&["set", "member", "h3", r#"service=[{"name": "web", "tenant": "red", "address": "10.0.0.100"}]"#]);
    lab.until("d", "it knows h3's service", |c| c["members"][1]["services"] == serde_json::json!(["red/web"]));
    change(&["set", "cluster", "controller=gatekeeper", "sample=5 ms"]);
    lab.until("d", "the controller", |c| c["controller"] == "gatekeeper" && c["up"] == true);
    let text = lab.levada(&["show", "cluster"], b"");
    assert!(String::from_utf8_lossy(&text.stdout).starts_with("host h1  controller gatekeeper"));
    change(&["del", "cluster"]);
    lab.until("d", "it is alone", serde_json::Value::is_null);
    change(&["apply", file.to_str().unwrap()]);
    lab.until("d", "it is back", |c| c["up"] == true && c["members"].as_array().is_some_and(|all| all.len() == 1));
}
