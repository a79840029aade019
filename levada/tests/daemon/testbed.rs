//! Namespaces, a running daemon, and datagrams between endpoints. Everything made here is gone when
//! its guard is dropped, also in a panic.

use ports::netns::Netns;
use rustix::process::Signal;
use serde_json::Value;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::net::{Ipv4Addr, TcpListener, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

#[path = "../../../ports/src/skipped.rs"]
mod skipped;
pub use skipped::skipped;

/// Long enough for a slow machine; what has not happened by then is a failure.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Where echoes answer.
const ECHO_PORT: u16 = 7007;
/// How long an answer may take. ARP asks again after a second, and again (arp(7)): the kernel lets
/// frames through a pair's other end only when it gets to the news that the link is there
/// (`net/core/link_watch.c`), and on a busy machine the first question comes before that.
const ANSWER: Duration = Duration::from_secs(4);

/// The unit of times in /proc (USER_HZ is 100 on all common machines).
pub const TICK: Duration = Duration::from_millis(10);

/// Tests that run at the same time. They mostly wait; more would take each other's processor.
const TURNS: usize = 4;
/// Turns that are free.
static FREE: (Mutex<usize>, Condvar) = (Mutex::new(TURNS), Condvar::new());

/// For how long somebody on this machine has waited for a processor (the kernel's
/// `Documentation/accounting/psi.rst`), or the machine for one of its host (steal, proc_stat(5)).
/// None where the kernel does not count that. A bound on time is one on the time in which nobody
/// did.
pub fn waited() -> Duration {
    let text = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let total = text.lines().find(|line| line.starts_with("some")).and_then(|line| line.split("total=").nth(1));
    let pressure = Duration::from_micros(total.and_then(|total| total.trim().parse().ok()).unwrap_or(0));
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let steal = text.lines().next().and_then(|all| all.split_whitespace().nth(8)).and_then(|ticks| ticks.parse().ok());
    pressure + TICK * steal.unwrap_or(0)
}

/// Measures time in which nobody on this machine waits for a processor.
pub struct Calm {
    start: Instant,
    before: Duration,
}

impl Calm {
    pub fn now() -> Calm {
        Calm { start: Instant::now(), before: waited() }
    }

    pub fn elapsed(&self) -> Duration {
        self.start.elapsed().saturating_sub(waited().saturating_sub(self.before))
    }
}

/// Held by a test that runs.
pub struct Turn(());

impl Turn {
    fn take() -> Turn {
        let free = FREE.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = FREE.1.wait_while(free, |free| *free == 0);
        *free.unwrap_or_else(PoisonError::into_inner) -= 1;
        Turn(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *FREE.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        FREE.1.notify_one();
    }
}

/// Waits for the test's turn. `None` where devices and namespaces cannot be made: says that `test`
/// is skipped, and why.
pub fn turn(test: &str) -> Option<Turn> {
    let why = if !rustix::process::geteuid().is_root() {
        "it needs root"
    } else if !std::path::Path::new("/dev/net/tun").exists() {
        "there is no /dev/net/tun: load the kernel module `tun`"
    } else if Command::new("ip").arg("-V").output().is_err() {
        "there is no `ip`: install iproute2"
    } else {
        return Some(Turn::take());
    };
    skipped(test, why);
    None
}

/// As [`turn`], where programs can be loaded that take an interface, or pass frames by the switch.
pub fn bpf_turn(test: &str) -> Option<Turn> {
    let turn = turn(test)?;
    ports::packet::probe().map_err(|why| skipped(test, why)).ok()?;
    Some(turn)
}

/// Namespaces with names of their own and a directory, deleted when dropped.
pub struct Bed {
    pub tag: String,
    pub directory: PathBuf,
    spaces: Mutex<Vec<Netns>>,
}

impl Bed {
    /// A bed with the namespaces that `names` stand for.
    pub fn new(names: &[&str]) -> Bed {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let tag = format!("lvd{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(format!("levada-{tag}"));
        std::fs::create_dir_all(&directory).unwrap();
        let bed = Bed { tag, directory, spaces: Mutex::new(Vec::new()) };
        for name in names {
            bed.add(name);
        }
        bed
    }

    /// Makes the namespace that `name` stands for.
    pub fn add(&self, name: &str) {
        self.spaces.lock().unwrap().push(Netns::create(&self.name(name)).unwrap());
    }

    /// Deletes it.
    pub fn remove(&self, name: &str) {
        let name = self.name(name);
        let mut spaces = self.spaces.lock().unwrap();
        spaces.retain(|space| space.to_string() != name);
        Netns::new(&name).delete().unwrap();
    }

    /// What the namespace of `name` is called.
    pub fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.tag)
    }

    pub fn space(&self, name: &str) -> Netns {
        Netns::new(&self.name(name))
    }

    pub fn ip(&self, space: &str, arguments: &str) -> Result<String, String> {
        self.tool("ip", space, arguments)
    }

    /// `ip`, or another tool of iproute2, in a namespace: what it prints, or its complaint.
    pub fn tool(&self, name: &str, space: &str, arguments: &str) -> Result<String, String> {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let output = self.space(space).run(|| Command::new(name).args(words).output().unwrap()).unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    /// Writes a configuration; `NS-x` in it becomes the name of namespace x, `NAME` the instance's.
    pub fn configuration(&self, text: &str) -> PathBuf {
        let text = text.replace("NS-", &format!("{}-", self.tag)).replace("NAME", &self.tag);
        let file = self.directory.join("levada.toml");
        std::fs::write(&file, text).unwrap();
        file
    }

    /// The program with this bed's run directory.
    pub fn levada(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_levada"));
        command.args(arguments).env("LEVADA_RUN_DIR", self.directory.join("run"));
        command
    }

    /// Runs the program to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.levada(arguments).output().unwrap()
    }

    /// Starts a daemon with `text` as configuration and waits until it is ready.
    pub fn start(&self, text: &str) -> Daemon {
        self.start_with(text, |_| {})
    }

    /// Starts a daemon that takes over from the one that runs.
    pub fn take_over(&self, text: &str) -> Daemon {
        self.start_with(text, |command| {
            command.arg("--takeover");
        })
    }

    /// Starts a daemon of another name, beside the one of the bed's.
    pub fn start_as(&self, name: &str, text: &str) -> Daemon {
        self.launch(name, "run", &text.replace("NAME", name), |_| {})
    }

    /// Starts a daemon whose command is changed first.
    pub fn start_with(&self, text: &str, change: impl FnOnce(&mut Command)) -> Daemon {
        self.launch(&self.tag, "run", text, change)
    }

    /// Starts `levada VERB -c FILE`, and waits until it is ready.
    pub fn launch(&self, name: &str, verb: &str, text: &str, change: impl FnOnce(&mut Command)) -> Daemon {
        self.attempt(name, verb, text, change).unwrap_or_else(|log| panic!("it ended: {log}"))
    }

    /// The same, or what it said where it ended.
    pub fn attempt(
        &self,
        name: &str,
        verb: &str,
        text: &str,
        change: impl FnOnce(&mut Command),
    ) -> Result<Daemon, String> {
        let file = self.configuration(text);
        let mut command = self.levada(&[verb, "-c"]);
        change(command.arg(file).stderr(Stdio::piped()));
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let stderr = child.stderr.take().unwrap();
        let copy = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                copy.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        let mut daemon = Daemon { child, log, name: name.to_owned(), run: self.directory.join("run") };
        let (ready, mut ended) = (format!("levada: {name} ready\n"), None);
        soon("the daemon is ready", || {
            ended = daemon.child.try_wait().unwrap();
            ended.is_some() || daemon.log().contains(&ready)
        });
        match ended {
            Some(status) => Err(format!("{status}: {}", daemon.log())),
            None => Ok(daemon),
        }
    }

    /// A socket that listens in `space`.
    pub fn listener(&self, space: &str, at: impl ToSocketAddrs + Sync) -> TcpListener {
        self.space(space).run(|| bound(|| TcpListener::bind(&at))).unwrap()
    }

    /// A socket of datagrams in `space`.
    pub fn socket(&self, space: &str, at: impl ToSocketAddrs + Sync) -> UdpSocket {
        self.space(space).run(|| bound(|| UdpSocket::bind(&at))).unwrap()
    }

    /// An echo of datagrams at `space`, until it is dropped.
    pub fn echo(&self, space: &str, address: Ipv4Addr) -> Echo {
        let socket = self.socket(space, (address, ECHO_PORT));
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(&buffer[..length], from);
                }
            }
        });
        Echo(Some(stop), Some(thread))
    }

    /// Sends datagrams from `space` to the echo at `to`; says how many of `count` came back, each
    /// within [`ANSWER`].
    pub fn ask(&self, space: &str, to: Ipv4Addr, count: usize) -> usize {
        self.ask_from(&self.space(space), to, count)
    }

    /// The same from any namespace.
    pub fn ask_from(&self, space: &Netns, to: Ipv4Addr, count: usize) -> usize {
        let socket = space.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap()).unwrap();
        socket.set_read_timeout(Some(ANSWER)).unwrap();
        let mut back = 0;
        for number in 0..count {
            let sent = format!("datagram {number}");
            if let Err(why) = socket.send_to(sent.as_bytes(), (to, ECHO_PORT)) {
                println!("{sent} to {to}: {why}");
                std::thread::sleep(ANSWER);
                continue;
            }
            let mut buffer = [0; 64];
            // An earlier one may come late.
            while let Ok(length) = socket.recv(&mut buffer) {
                if &buffer[..length] == sent.as_bytes() {
                    back += 1;
                    break;
                }
            }
        }
        back
    }
}

/// What `bind` makes, as soon as the address is free: a program that another test starts holds what
/// is closed here until it has replaced the copy of this process (fork(2), `FD_CLOEXEC` in
/// fcntl(2)).
fn bound<S>(bind: impl Fn() -> io::Result<S>) -> S {
    let mut socket = None;
    soon("the address is free", || match bind() {
        Err(why) if why.kind() == ErrorKind::AddrInUse => false,
        result => {
            socket = Some(result.unwrap());
            true
        }
    });
    socket.unwrap()
}

impl Drop for Bed {
    fn drop(&mut self) {
        for space in self.spaces.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = space.delete();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A running echo.
pub struct Echo(Option<std::sync::mpsc::Sender<()>>, Option<std::thread::JoinHandle<()>>);

impl Drop for Echo {
    fn drop(&mut self) {
        drop(self.0.take());
        let _ = self.1.take().unwrap().join();
    }
}

/// A process in a network namespace that has no name, as containers are, until it is dropped.
pub struct Container(Child);

impl Container {
    pub fn new() -> Container {
        let container = Container(Command::new("unshare").args(["--net", "sleep", "1000"]).spawn().unwrap());
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        soon("it is in a namespace of its own", || std::fs::read_link(container.path()).is_ok_and(|link| link != own));
        container
    }

    /// In the calling thread's namespace.
    pub fn here() -> Container {
        Container(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The path of its namespace.
    pub fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.pid())
    }

    pub fn space(&self) -> Netns {
        Netns::new(&self.path())
    }

    /// What `ip` prints in it.
    pub fn ip(&self, arguments: &str) -> String {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let output = self.space().run(|| Command::new("ip").args(words).output().unwrap()).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A control group with a limit, until it is dropped.
pub struct Group {
    place: PathBuf,
    limit: PathBuf,
}

impl Group {
    /// A group of a controller, whose limit is in the first of `limits` that there is. `None` where
    /// this process may make none.
    pub fn new(tag: &str, controller: &str, limits: &[&str]) -> Option<Group> {
        // The hierarchy of the controller alone, or the one of all.
        let parents = [format!("/sys/fs/cgroup/{controller}"), "/sys/fs/cgroup".to_owned()].map(PathBuf::from);
        let parents = parents.into_iter().filter(|parent| parent.join("cgroup.procs").exists());
        parents.into_iter().find_map(|parent| {
            let place = parent.join(format!("levada-{tag}"));
            std::fs::create_dir(&place).ok()?;
            let limit = limits.iter().map(|name| place.join(name)).find(|limit| limit.exists());
            if limit.is_none() {
                let _ = std::fs::remove_dir(&place);
            }
            Some(Group { place, limit: limit? })
        })
    }

    /// Of whom it consists.
    pub fn procs(&self) -> PathBuf {
        self.place.join("cgroup.procs")
    }

    /// Sets its limit.
    pub fn limit(&self, limit: impl ToString) {
        std::fs::write(&self.limit, limit.to_string()).unwrap();
    }

    /// The number in a file of it; `None` where there is no such file.
    pub fn number(&self, file: &str) -> Option<u64> {
        std::fs::read_to_string(self.place.join(file)).ok()?.trim().parse().ok()
    }

    /// Has a command run in it from the start, whose errors are piped.
    pub fn around(&self, command: &mut Command) {
        let mut shell = Command::new("sh");
        let enter = format!("echo $$ > {} && exec \"$0\" \"$@\"", self.procs().display());
        shell.args(["-c", &enter]).arg(command.get_program()).args(command.get_args());
        shell.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
        shell.stderr(Stdio::piped());
        *command = shell;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let out = self.place.parent().unwrap().join("cgroup.procs");
        for pid in std::fs::read_to_string(self.procs()).unwrap_or_default().lines() {
            let _ = std::fs::write(&out, pid);
        }
        let _ = std::fs::remove_dir(&self.place);
    }
}

/// A running daemon, killed when dropped.
pub struct Daemon {
    child: Child,
    log: Arc<Mutex<String>>,
    name: String,
    run: PathBuf,
}

impl Daemon {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// For how long its worker was ready and had no processor, so far (the kernel's
    /// `Documentation/scheduler/sched-stats.rst`); none where the kernel does not count that.
    pub fn worker_waited(&self) -> Duration {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let worker =
            threads.map(|thread| thread.unwrap().path()).find(|at| read(at.join("comm")).trim() == "levada-worker");
        let text = read(worker.expect("a worker").join("schedstat"));
        Duration::from_nanos(text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0))
    }

    /// What its threads used of the processors so far, in steps of [`TICK`] (proc_pid_stat(5)).
    pub fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: u32 = fields[11..13].iter().map(|ticks| ticks.parse::<u32>().unwrap()).sum();
        TICK * ticks
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Its report.
    pub fn show(&self) -> Value {
        self.show_part("all")
    }

    /// What `levada show PART` prints.
    pub fn show_part(&self, part: &str) -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_levada"));
        command.args(["show", part, "--json", "--name", &self.name]).env("LEVADA_RUN_DIR", &self.run);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The report on an endpoint, by its name.
    pub fn endpoint(&self, name: &str) -> Value {
        self.endpoint_at(name).0
    }

    /// The same, and when it was so, by the daemon's clock: where making reports takes long, they
    /// rest in between.
    pub fn endpoint_at(&self, name: &str) -> (Value, Duration) {
        let report = self.show();
        let now = Duration::from_nanos(report["now_ns"].as_u64().unwrap());
        let switches = report["switches"].as_array().unwrap();
        let tenants = switches.iter().flat_map(|s| s["tenants"].as_array().unwrap());
        let mut endpoints = tenants.flat_map(|t| t["endpoints"].as_array().unwrap());
        let found = endpoints.find(|e| e["name"] == name).unwrap_or_else(|| panic!("no endpoint {name}"));
        (found.clone(), now)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Stops all its threads until [`Signal::CONT`].
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let stopped = |stat: String| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"));
        soon("all threads stop", || {
            let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
            threads.map(|t| std::fs::read_to_string(t.unwrap().path().join("stat")).unwrap()).all(stopped)
        });
    }

    /// Sends a signal and waits for the end.
    pub fn end(&mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        self.wait()
    }

    /// Waits for the end.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        soon("the daemon ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until something becomes true.
pub fn soon(what: &str, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < PATIENCE, "{what}: not after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
