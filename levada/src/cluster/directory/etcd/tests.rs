//! A host at an etcd that refuses, is slow, or has too much to tell: a gateway in memory that does
//! what it is told.

use super::*;
use crate::cluster::directory::entry::{Entry, Told};
use crate::system::log::Format;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// How long something may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct State {
    /// Value, and since and at which revision.
    keys: BTreeMap<String, (Vec<u8>, i64, i64)>,
    revision: i64,
    /// When what was asked for.
    calls: Vec<(Instant, String)>,
    /// Keys that contain it are not written.
    refused: Option<&'static str>,
    /// How long it takes to write one.
    slow: Duration,
    /// Tokens that were given, and how many of the first have ended.
    tokens: u32,
    ended: u32,
}

/// Status and message.
type Refused = (&'static str, &'static str);

impl State {
    fn put(&mut self, key: &str, entry: &Entry) {
        self.revision += 1;
        let since = self.keys.get(key).map_or(self.revision, |(_, since, _)| *since);
        self.keys.insert(key.to_owned(), (entry.write(), since, self.revision));
    }

    fn entry(&self, key: &str) -> Option<Value> {
        let (value, since, revision) = self.keys.get(key)?;
        Some(json!({"key": encode(key), "value": encode(value), "create_revision": since.to_string(),
            "mod_revision": revision.to_string(), "lease": "7"}))
    }

    fn transaction(&mut self, asked: &Value) -> Result<Value, Refused> {
        let text = |value: &Value| String::from_utf8(decode(value).unwrap()).unwrap();
        let looked_at: Vec<String> = asked["compare"].as_array().unwrap().iter().map(|one| text(&one["key"])).collect();
        let holds = looked_at.iter().zip(asked["compare"].as_array().unwrap()).all(|(key, compare)| {
            self.keys.get(key).map_or(0, |(.., revision)| *revision) == number(&compare["mod_revision"])
        });
        let (put, delete) = (&asked["success"][0]["request_put"], &asked["success"][0]["request_delete_range"]);
        let key = text(if put.is_null() { &delete["key"] } else { &put["key"] });
        if self.refused.is_some_and(|refused| key.contains(refused)) {
            return Err(("403 Forbidden", "etcdserver: permission denied"));
        }
        let mut responses = Vec::new();
        if !holds {
            let found = looked_at.iter().map(|key| json!({"response_range": {"kvs": self.entry(key)}}));
            responses = found.collect();
        } else if put.is_null() {
            self.revision += 1;
            self.keys.remove(&key);
        } else {
            self.revision += 1;
            let since = self.keys.get(&key).map_or(self.revision, |(_, since, _)| *since);
            self.keys.insert(key, (decode(&put["value"]).unwrap(), since, self.revision));
        }
        Ok(json!({"header": {"revision": self.revision.to_string()}, "succeeded": holds, "responses": responses}))
    }
}

/// The gateway; its threads end with the connections.
struct Fake {
    at: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Fake {
    fn new() -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fake = Fake { at: listener.local_addr().unwrap(), state: Arc::default() };
        let state = Arc::clone(&fake.state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let state = Arc::clone(&state);
                std::thread::spawn(move || serve(stream.unwrap(), &state));
            }
        });
        fake
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Another host, with one endpoint.
    fn host(&self, n: u8) {
        let told = Told { name: "red1".to_owned(), ..Told::default() };
        let mut state = self.state();
        state.put(&format!("/l/v1/alive/h{n}"), &Entry::alive(&format!("d@n{n}")));
        state.put(&format!("/l/v1/host/h{n}"), &Entry::host(([192, 0, 2, n], 7370).into(), None));
        state.put(&format!("/l/v1/endpoint/red/02:00:00:00:01:{n:02x}"), &Entry::endpoint(&format!("h{n}"), &told));
    }

    /// When it was asked for this.
    fn asked(&self, path: &str) -> Vec<Instant> {
        self.state().calls.iter().filter(|(_, called)| called == path).map(|(at, _)| *at).collect()
    }

    /// A host that has so many endpoints.
    fn client(&self, endpoints: u16) -> Etcd {
        let url = EtcdUrl { tls: false, host: self.at.ip().to_string(), port: self.at.port() };
        let config = Config { endpoints: vec![url], prefix: "/l".to_owned(), ..Config::default() };
        Etcd::start(&config, own(endpoints), Already::default(), Log::new("test", Format::Text), Arc::new(|| {}))
            .unwrap()
    }
}

fn own(endpoints: u16) -> Own {
    let told = |n: u16| Told { name: format!("red{n}"), ..Told::default() };
    let mac = |n: u16| Mac([2, 0, 0, 0, (n >> 8) as u8, n as u8]);
    Own {
        host: "h1".to_owned(),
        from: "d@n1".to_owned(),
        address: Some(([192, 0, 2, 1], 7370).into()),
        endpoints: (0x8000..0x8000 + endpoints).map(|n| (("red".to_owned(), mac(n)), told(n))).collect(),
        ..Own::default()
    }
}

fn serve(stream: TcpStream, state: &Mutex<State>) {
    let (mut input, mut output) = (BufReader::new(stream.try_clone().unwrap()), stream);
    loop {
        let (mut path, mut length, mut token) = (String::new(), 0, None);
        loop {
            let mut line = String::new();
            if input.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end();
            if path.is_empty() {
                path = line.split(' ').nth(1).unwrap().to_owned();
            } else if line.eq_ignore_ascii_case("grpc-metadata-hasleader: true") {
                path += "?hasleader";
            } else if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            } else if let Some(value) = line.to_ascii_lowercase().strip_prefix("authorization: ") {
                token = Some(value.parse::<u32>().unwrap());
            } else if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        input.read_exact(&mut body).unwrap();
        let asked: Value = serde_json::from_slice(&body).unwrap();
        let slow = {
            let mut state = state.lock().unwrap();
            state.calls.push((Instant::now(), path.clone()));
            if path == "/v3/kv/txn" { state.slow } else { Duration::ZERO }
        };
        std::thread::sleep(slow);
        let mut state = state.lock().unwrap();
        let header = json!({"revision": state.revision.to_string()});
        let answer = match path.as_str() {
            "/v3/auth/authenticate" => {
                state.tokens += 1;
                Ok(json!({"token": state.tokens.to_string()}))
            }
            // A real one does not look at the token there.
            "/v3/lease/keepalive" => Ok(json!({"result": {"ID": "7", "TTL": "15"}})),
            _ if token.is_some_and(|token| token <= state.ended) => {
                Err(("401 Unauthorized", "etcdserver: invalid auth token"))
            }
            "/v3/lease/grant" => Ok(json!({"ID": "7", "TTL": "15"})),
            "/v3/kv/range" => {
                let all: Vec<_> = state.keys.keys().filter_map(|key| state.entry(key)).collect();
                Ok(json!({"header": header, "kvs": all}))
            }
            "/v3/kv/txn" => state.transaction(&asked),
            "/v3/watch?hasleader" => {
                let line = json!({"result": {"header": header, "created": true}}).to_string() + "\n";
                drop(state);
                // Nothing more is told, until the other end closes.
                let begin =
                    format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{line}\r\n", line.len());
                let _ = output.write_all(begin.as_bytes()).and_then(|()| input.read(&mut [0]));
                return;
            }
            _ => Ok(json!({})),
        };
        drop(state);
        let (status, answer) = match answer {
            Ok(answer) => ("200 OK", answer),
            Err((status, why)) => (status, json!({"message": why})),
        };
        let text = answer.to_string();
        if write!(output, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{text}", text.len()).is_err() {
            return;
        }
    }
}

/// Waits until it is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_write_that_is_refused_makes_no_haste_and_hides_nobody() {
    let fake = Fake::new();
    fake.host(2);
    fake.state().refused = Some("endpoint/red/02:00:00:00:80");
    let etcd = fake.client(1);
    until("it is refused", || etcd.health().error.is_some_and(|why| why.contains("permission denied")));
    assert_eq!(etcd.members().len(), 1, "who is there is known");
    fake.host(3);
    let before = fake.asked("/v3/watch?hasleader").len();
    std::thread::sleep(Duration::from_secs(5));
    let sessions = fake.asked("/v3/watch?hasleader").len() - before;
    assert!(sessions <= 8, "{sessions} sessions in 5 s");
    assert_eq!(etcd.members().len(), 2, "who has come is known");
    // It may be written.
    fake.state().refused = None;
    until("it is there", || etcd.health().is_connected && etcd.holds("red", Mac([2, 0, 0, 0, 0x80, 0])));
}

#[test]
fn who_has_much_to_write_keeps_its_lease_and_learns_of_others_meanwhile() {
    const MANY: u16 = 600;
    let fake = Fake::new();
    fake.host(2);
    // 12 s of writing.
    fake.state().slow = Duration::from_millis(20);
    let etcd = fake.client(MANY);
    until("who is there is known", || etcd.members().len() == 1);
    let written = fake.asked("/v3/kv/txn").len();
    assert!(written < usize::from(MANY), "not before all {written} were written");
    until("all is written", || fake.state().keys.len() == usize::from(MANY) + 5);
    let ends = [fake.asked("/v3/watch?hasleader")[0], Instant::now()];
    let kept = fake.asked("/v3/lease/keepalive");
    let all: Vec<Instant> = std::iter::once(ends[0]).chain(kept).chain([ends[1]]).collect();
    let longest = all.windows(2).map(|two| two[1] - two[0]).max().unwrap();
    assert!(longest < Duration::from_secs(TTL_S as u64 / 2), "{longest:?}");
    assert_eq!(fake.asked("/v3/watch?hasleader").len(), 1, "one session did it");
}

#[test]
fn a_watch_is_at_the_member_that_is_asked_and_does_not_outlive_it_unseen() {
    let fake = Fake::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = EtcdUrl { tls: false, host: "localhost".to_owned(), port: fake.at.port() };
    let (one, two) = runtime.block_on(async {
        let one = Gateway::open(&url, None).await.unwrap();
        let two = one.beside(&url, None).await.unwrap();
        (one.peer(), two.peer())
    });
    assert_eq!((one, two), (fake.at, fake.at));
    // All sockets of this process to the gateway are probed by the kernel: a timer of kind 2.
    let etcd = fake.client(0);
    until("it watches", || etcd.health().is_connected);
    let port = format!(":{:04X}", fake.at.port());
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let ours = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours: Vec<_> = ours.filter(|line| line[2].ends_with(&port) && line[3] == "01").collect();
    assert!(ours.len() >= 2 && ours.iter().all(|line| line[5].starts_with("02:")), "{ours:?}");
}

#[test]
fn letting_go_of_an_etcd_waits_neither_for_its_name_nor_for_its_answers() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let begin = Instant::now();
    // As a name server that is not there.
    run_alone(runtime, async { drop(tokio::task::spawn_blocking(|| std::thread::sleep(PATIENCE))) });
    assert!(begin.elapsed() < PATIENCE / 2);
    // It takes connections, and says nothing: each call may wait for its time.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    let urls = [(); 8].map(|()| EtcdUrl { tls: false, host: at.ip().to_string(), port: at.port() });
    let config = Config { endpoints: urls.to_vec(), prefix: "/l".to_owned(), ..Config::default() };
    let log = Log::new("test", Format::Text);
    let etcd = Etcd::start(&config, own(0), Already::default(), log, Arc::new(|| {})).unwrap();
    drop(silent.accept().unwrap());
    let _asked = silent.accept().unwrap();
    let begin = Instant::now();
    drop(etcd);
    assert!(begin.elapsed() < Duration::from_secs(10), "not for all calls of all members");
}

#[test]
fn a_token_that_has_ended_is_renewed_and_the_etcd_is_not_away_for_that() {
    let fake = Fake::new();
    let file = std::env::temp_dir().join(format!("levada-etcd-password-{}", std::process::id()));
    std::fs::write(&file, "secret\n").unwrap();
    let url = EtcdUrl { tls: false, host: fake.at.ip().to_string(), port: fake.at.port() };
    let (user, password_file) = (Some("h1".to_owned()), Some(file.to_str().unwrap().to_owned()));
    let config = Config { endpoints: vec![url], prefix: "/l".to_owned(), user, password_file, ..Config::default() };
    let log = Log::new("test", Format::Text);
    let etcd = Etcd::start(&config, own(0), Already::default(), log.clone(), Arc::new(|| {})).unwrap();
    until("it is there", || etcd.health().is_connected);
    fake.state().ended = 1;
    etcd.tell(own(1));
    until("it is written", || fake.state().keys.keys().any(|key| key.ends_with("/red/02:00:00:00:80:00")));
    let tokens = fake.state().tokens;
    assert_eq!((tokens, fake.asked("/v3/watch?hasleader").len()), (2, 1), "one session did it");
    assert!(!log.waiting().contains("away"), "{}", log.waiting());
    // One that is refused when it is new is an error.
    fake.state().ended = u32::MAX;
    etcd.tell(own(2));
    until("it is told", || etcd.health().error.is_some_and(|why| why.contains("invalid auth token")));
    std::fs::remove_file(&file).unwrap();
}
