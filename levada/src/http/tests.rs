//! The server on a socket in a temporary directory, without a worker behind it; with one it is
//! tested in `levada/tests/daemon/management.rs`.

use super::routes::ROUTES;
use super::*;
use crate::changes::{Changes, make_all};
use crate::cluster::peers::Socket;
use crate::guests::front_ends::FrontEnds;
use crate::guests::vde_server::VdeServer;
use crate::handler::Handler;
use crate::processes::Processes;
use crate::reconciler::{Earlier, Reconciler};
use crate::report::Facts;
use crate::system::log::Log;
use crate::worker::Wake;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream as Plain;
use std::path::{Path, PathBuf};
use std::time::Instant;

const FILE: &str = "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s1\"\n[[switch.tenant]]\nname = \"red\"\n";

/// A socket that is served until the test process ends.
struct Bed(PathBuf);

impl Bed {
    fn new(name: &str) -> Bed {
        Bed::with_group(name, None)
    }

    /// `group` may look.
    fn with_group(name: &str, group: Option<u32>) -> Bed {
        let directory = std::env::temp_dir().join(format!("levada-http-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("s");
        let (door, listener) = Door::open(&path, path.clone(), group).unwrap();
        let door = Arc::new(door);
        let checked = control::load(FILE);
        let (inbox, orders) = std::sync::mpsc::sync_channel(1);
        let (tasks, errands) = std::sync::mpsc::sync_channel(1);
        let (waker, log) = (Wake::new().unwrap().waker(), Log::new("t", crate::system::log::Format::Text));
        let plugs = VdeServer::new(log.clone(), inbox.clone(), waker.clone(), None).unwrap();
        let (news, _) = std::sync::mpsc::sync_channel(1);
        let (front_ends, _) = FrontEnds::new(log.clone(), inbox.clone(), waker.clone(), news, None).unwrap();
        let reconciler = Reconciler::new(
            &checked.plan.unwrap(),
            inbox.clone(),
            waker.clone(),
            tasks,
            plugs.clone(),
            front_ends.clone(),
            Earlier { service_key: 0, processes: Processes::read(None), lines: Default::default() },
        );
        let plan = reconciler.plan().clone();
        let facts = Facts {
            plan,
            uplinks: Default::default(),
            devices: Default::default(),
            shortcuts: Default::default(),
            sights: Default::default(),
            tunnels: Vec::new(),
        };
        let handler = Arc::new(Handler::new(
            &checked.config,
            reconciler,
            facts,
            inbox,
            waker,
            log.clone(),
            Arc::clone(&door),
            Socket::default(),
            Arc::new(|| {}),
        ));
        std::thread::spawn(move || {
            let _threads_that_are_away = (orders, errands);
            let (changes, wanted) = Changes::new();
            let maker = Arc::clone(&handler);
            std::thread::spawn(move || make_all(&maker, &plugs, &front_ends, &wanted));
            serve(listener, handler, changes, door, Memory::open(Path::new("/"))).unwrap();
        });
        Bed(path)
    }

    fn connect(&self) -> Plain {
        let stream = Plain::connect(&self.0).unwrap();
        stream.set_read_timeout(Some(PATIENCE * 3)).unwrap();
        stream
    }

    /// Sends bytes and reads all that comes back.
    fn say(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may have answered and closed before it has read all.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn get(&self, path: &str) -> serde_json::Value {
        let answer = self.say(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes());
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    fn post(&self, body: &str) -> String {
        let length = body.len();
        self.say(format!("POST /v1/actions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
    }
}

#[test]
fn the_socket_is_for_its_owner_only() {
    let bed = Bed::new("mode");
    assert_eq!(std::fs::metadata(&bed.0).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn what_is_wrong_gets_its_status() {
    let bed = Bed::new("status");
    let add = r#"{"actions": [{"action": "add", "kind": "tenant", "path": "s1/red"}], "dry_run": true}"#;
    for (request, status) in [
        ("GET /v1/nothing HTTP/1.1\r\nhost: x\r\n\r\n", "404"),
        ("DELETE /v1/report HTTP/1.1\r\nhost: x\r\n\r\n", "405"),
        ("GET /v1/actions HTTP/1.1\r\nhost: x\r\n\r\n", "405"),
        ("POST /v1/actions HTTP/1.1\r\nhost: x\r\ncontent-type: text/html\r\ncontent-length: 0\r\n\r\n", "415"),
        ("POST /v1/actions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n", "413"),
        ("GET /v1/report", ""),
        ("\u{0}\u{1}garbage\r\n\r\n", "400"),
    ] {
        let mut stream = bed.connect();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.get(9..).unwrap_or_default().starts_with(status), "{request:?}: {answer}");
    }
    for (body, what) in [
        (r#"{"frames": {"count": 1, "seconds": 61}}"#, "1 to 60 seconds"),
        (r#"{"frames": {"filter": "endpoint x", "count": 1, "seconds": 1}}"#, "which there is not"),
        (r#"{"frame": {"from": "s1/red/x"}}"#, "there is no"),
        (r#"{"frame": {"from": "s1/red/x", "y": 1}}"#, "unknown field"),
    ] {
        let length = body.len();
        let answer =
            bed.say(format!("POST /v1/trace HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes());
        assert!(answer[9..].starts_with("400") && answer.contains(what), "{body}: {answer}");
    }
    for (body, status, what) in [
        ("", "400", "the body is not valid"),
        ("{\"actions\": [], \"x\": 1}", "400", "unknown field"),
        ("{\"actions\": [], \"revision\": 7}", "409", "at revision 1"),
        (add, "422", "it is there already"),
        (&add.replace("s1/red", "s1/blue"), "200", "\"dry_run\":true"),
    ] {
        let answer = bed.post(body);
        assert!(answer[9..].starts_with(status) && answer.contains(what), "{body}: {answer}");
    }
}

#[test]
fn who_may_look_may_ask_for_connections_too_and_changes_and_traces_nothing() {
    const GROUP: u32 = 54_321;
    // Only root can be somebody else.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let bed = Bed::with_group("look", Some(GROUP));
    let ask = |path: &str, body: &str| {
        let length = body.len();
        let request = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}");
        let other = || {
            // This thread alone.
            rustix::thread::set_thread_gid(rustix::process::Gid::from_raw(GROUP)).unwrap();
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(54_000)).unwrap();
            bed.say(request.as_bytes())
        };
        std::thread::scope(|scope| scope.spawn(other).join().unwrap())
    };
    let long = " ".repeat(5000);
    for (path, body, status, what) in [
        ("/v1/connections", r#"{"service": "s1/red/web"}"#, "400", "there is no service"),
        ("/v1/vcc/connections", r#"{"ends": ["10.0.0.1"]}"#, "200", "\"endpoints\":[]"),
        ("/v1/vcc/connections", r#"{"ends": []}"#, "400", "two ends"),
        ("/v1/connections", long.as_str(), "413", "at most 4096 bytes"),
        ("/v1/load", r#"{"backend": "s1/red/web/a", "load_milli": 1}"#, "403", "only root"),
        ("/v1/trace", r#"{"frame": {"from": "s1/red/x"}}"#, "403", "only root"),
        ("/v1/actions", r#"{"actions": [], "dry_run": true}"#, "403", "only root"),
    ] {
        let answer = ask(path, body);
        assert!(answer[9..].starts_with(status) && answer.contains(what), "{path} {body:.40}: {answer}");
    }
}

#[test]
fn the_worker_that_is_away_is_an_answer_too() {
    let bed = Bed::new("away");
    // The first order waits in the inbox, the second finds it full; both are told in time.
    let start = Instant::now();
    let answers = [
        bed.say(b"GET /v1/report HTTP/1.1\r\nhost: x\r\n\r\n"),
        bed.say(b"GET /v1/report HTTP/1.1\r\nhost: x\r\n\r\n"),
    ];
    assert!(answers.iter().all(|a| a.starts_with("HTTP/1.1 503")), "{answers:?}");
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn the_silent_the_slow_and_the_many_harm_nobody() {
    let bed = Bed::new("many");
    let silent: Vec<Plain> = (0..CLIENTS - 2).map(|_| bed.connect()).collect();
    let mut slow = bed.connect();
    slow.write_all(b"GET /v1/config HTTP/1.1\r\n").unwrap();
    assert_eq!(bed.get("/v1/config")["version"], 1, "one place is left");
    let one_more = bed.connect();
    // Thousands come and go, and are told at once.
    let start = Instant::now();
    let mut turned_away = 0;
    for _ in 0..3000 {
        let answer = bed.say(b"GET /v1/config HTTP/1.1\r\nhost: x\r\n\r\n");
        turned_away += usize::from(answer.contains("503") && answer.contains("being served already"));
    }
    assert!(turned_away > 2500, "{turned_away}");
    assert!(start.elapsed() < PATIENCE, "nobody waits for the silent");
    // When their time is over, the silent are sent away.
    let start = Instant::now();
    loop {
        let answer = bed.say(b"GET /v1/config HTTP/1.1\r\nhost: x\r\n\r\n");
        if answer.starts_with("HTTP/1.1 200") {
            break;
        }
        assert!(start.elapsed() < PATIENCE * 3, "{answer}");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop((silent, slow, one_more));
}

#[test]
fn headers_are_bounded() {
    let bed = Bed::new("headers");
    let long = format!("GET /v1/config HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(4 * HEADER_BYTES));
    assert!(bed.say(long.as_bytes()).starts_with("HTTP/1.1 431"));
    let many = format!("GET /v1/config HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(HEADER_LINES + 1));
    assert!(bed.say(many.as_bytes()).starts_with("HTTP/1.1 431"));
}

#[test]
fn every_path_is_described_and_every_description_is_a_path() {
    let document = document();
    let paths = document["paths"].as_object().unwrap();
    let mut described: Vec<(String, String)> = Vec::new();
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().unwrap() {
            assert!(operation["operationId"].is_string() && operation["responses"]["200"].is_object(), "{path}");
            described.push((path.clone(), method.to_uppercase()));
        }
    }
    let mut served: Vec<(String, String)> = ROUTES.map(|(path, method)| (path.to_owned(), method.to_string())).to_vec();
    served.sort();
    described.sort();
    assert_eq!(served, described);
    let bed = Bed::new("paths");
    assert_eq!(bed.get("/v1/openapi.json"), document);
    assert_eq!(bed.get("/v1/schema"), control::schema::config());
}

#[test]
fn the_description_names_every_stage_of_a_trace_and_every_status_of_an_answer() {
    let document = document();
    let about = document["components"]["schemas"]["TracedStep"]["properties"]["stage"]["description"].to_string();
    let page = include_str!("../../../docs/reference/trace.md");
    let (_, stages) = page.split_once("## Stages").unwrap();
    let (stages, _) = stages.split_once("\n## ").unwrap();
    let stages: Vec<&str> = stages.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(stages.len(), 18);
    assert!(stages.iter().all(|stage| about.contains(&format!("`{stage}`"))), "{about}");
    for (path, method) in ROUTES {
        let responses = &document["paths"][path][method.to_string().to_lowercase()]["responses"];
        for status in ["200", "403", "500", "503"] {
            assert!(responses[status].is_object(), "{path}: {status}");
        }
    }
}

/// A validator for a schema of the description.
fn validator(name: &str) -> jsonschema::Validator {
    let mut document = document();
    let schema = serde_json::json!({"$ref": format!("#/components/schemas/{name}"), "components": document["components"].take()});
    jsonschema::validator_for(&schema).unwrap()
}

#[test]
fn answers_are_as_described() {
    let bed = Bed::new("described");
    let body =
        |answer: String| serde_json::from_str::<serde_json::Value>(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    let config = bed.get("/v1/config");
    validator("ConfigReply").validate(&config).unwrap();
    assert!(!validator("ConfigReply").is_valid(&serde_json::json!({"version": 1})));
    let reply = body(bed.post("{\"actions\": [], \"dry_run\": true}"));
    validator("ChangeReply").validate(&reply).unwrap();
    let table = serde_json::json!({"path": "s1/red", "declared": 1, "learned": 0, "addresses": [{"mac": "02:00:00:00:00:01",
        "vlan": null, "endpoint": "a", "declared": true, "seen_ns": null, "left_ns": null}]});
    let tables: crate::api::tables::TablesReply =
        serde_json::from_value(serde_json::json!({"version": 1, "tenants": [table]})).unwrap();
    validator("TablesReply").validate(&serde_json::to_value(&tables).unwrap()).unwrap();
    validator("ClusterReply").validate(&bed.get("/v1/cluster")).unwrap();
    // Who is asked is the worker, which is not here.
    let agents = crate::api::agents::AgentsReply { version: 1, agents: Vec::new() };
    validator("AgentsReply").validate(&serde_json::to_value(agents).unwrap()).unwrap();
    for wrong in ["", "{\"actions\": [{\"action\": \"del\", \"kind\": \"switch\", \"path\": \"s1\"}]}"] {
        validator("ErrorReply").validate(&body(bed.post(wrong))).unwrap();
    }
    assert!(!validator("ErrorReply").is_valid(&reply));
}

#[test]
fn the_schema_of_actions_takes_what_the_server_takes() {
    let validator = validator("Actions");
    let bed = Bed::new("actions");
    let endpoint = r#"{"action": "add", "kind": "endpoint", "path": "s1/red/a", "keys": {"port": "tap://a"}}"#;
    for (actions, good) in [
        (endpoint.to_owned(), true),
        (
            endpoint.replace(
                "\"tap://a\"",
                "\"tap://a\", \"mac\": [\"02:00:00:00:00:01\"], \"limit\": {\"egress\": \"5 Mbit/s\"}",
            ),
            true,
        ),
        (r#"{"action": "set", "kind": "daemon", "keys": {"spin": null}}"#.to_owned(), true),
        (r#"{"action": "set", "kind": "tenant", "path": "s1/red", "keys": {"weight": 7}}"#.to_owned(), true),
        (r#"{"action": "set", "kind": "tenant", "path": "s1/red", "keys": {"weight": "7"}}"#.to_owned(), false),
        (r#"{"action": "set", "kind": "tenant", "path": "s1/red"}"#.to_owned(), false),
        (r#"{"action": "del", "kind": "tenant", "path": "s1/red", "keys": {}}"#.to_owned(), false),
        (endpoint.replace("tap://a", "a"), false),
        (endpoint.replace("port", "prot"), false),
        (endpoint.replace(", \"keys\": {\"port\": \"tap://a\"}", ""), false),
        (endpoint.replace("tap://a\"", "tap://a\", \"limit\": \"5 MB/s\""), false),
    ] {
        let body = format!("{{\"actions\": [{actions}], \"dry_run\": true}}");
        let value: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(validator.is_valid(&value), good, "schema: {body}");
        assert_eq!(bed.post(&body).starts_with("HTTP/1.1 200"), good, "server: {body}");
    }
}

#[test]
fn bodies_are_bounded_in_sum() {
    let bed = Bed::new("bodies");
    let begin = |length: usize| {
        let mut stream = bed.connect();
        stream
            .write_all(format!("POST /v1/actions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{{").as_bytes())
            .unwrap();
        stream
    };
    // The longest there may be, which does not come.
    let slow = begin(routes::BODY_BYTES);
    let dry = "{\"actions\": [], \"dry_run\": true}";
    let start = Instant::now();
    loop {
        let mut second = begin(routes::BODY_BYTES);
        let mut answer = String::new();
        second.read_to_string(&mut answer).unwrap();
        if answer.starts_with("HTTP/1.1 503") {
            assert!(answer.contains("memory for bodies"), "{answer}");
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{answer}");
    }
    assert!(bed.post(dry).starts_with("HTTP/1.1 200"), "there is room for a short one");
    drop(slow);
    let start = Instant::now();
    while !bed.post(&format!("{}{dry}", " ".repeat(routes::BODY_BYTES - 100))).starts_with("HTTP/1.1 200") {
        assert!(start.elapsed() < PATIENCE * 3, "its part is free again");
    }
}
