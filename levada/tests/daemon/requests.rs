//! What requests take of the memory of the process that moves frames, and that those for which
//! there is none are refused.

use crate::management::say;
use crate::testbed::{Bed, Daemon, Group, skipped, turn};
use crate::traffic::{B, NEIGHBOURS};
use serde_json::json;

/// What it takes at most, in MiB, and how many actions it has (docs/reference/http.md, "Bounds").
const MOST_MIB: u64 = 1 << 10;
const ACTIONS: usize = 200_000;

/// A line of a daemon's status in /proc, in MiB.
fn memory_mib(daemon: &Daemon, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() >> 10
}

/// Sends a body; what comes back.
fn post(bed: &Bed, body: &str) -> String {
    let length = body.len();
    say(bed, &format!("POST /v1/actions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}"))
}

/// A request of so many actions, of which little is left: no devices need be made.
fn many(actions: usize) -> String {
    let one = |n: usize| {
        let (path, port) = (format!("s1/home/n{n}"), format!("tap://t{n}"));
        let mac = format!("02:01:00:{:02x}:{:02x}:{:02x}", n >> 16, n >> 8 & 255, n & 255);
        let keys = json!({"port": port, "mac": mac, "limit": "5 Mbit/s"});
        [
            json!({"action": "add", "kind": "endpoint", "path": path, "keys": keys}),
            json!({"action": "del", "kind": "endpoint", "path": path}),
        ]
    };
    let last = json!({"action": "set", "kind": "endpoint", "path": "s1/home/c", "keys": {"limit": "7 Mbit/s"}});
    let actions: Vec<_> = (0..actions / 2 - 1).flat_map(one).chain([last]).collect();
    json!({"actions": actions}).to_string()
}

#[test]
fn the_largest_request_takes_no_more_memory_than_is_said() {
    let Some(_turn) = turn("the_largest_request_takes_no_more_memory_than_is_said") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = bed.start(NEIGHBOURS);
    let _echo = bed.echo("b", B);
    let body = many(ACTIONS);
    let before = memory_mib(&daemon, "VmRSS:");
    let answer = post(&bed, &body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let most = memory_mib(&daemon, "VmHWM:") - before;
    assert!(most < MOST_MIB, "{most} MiB");
    assert_eq!(daemon.endpoint("c")["egress"]["limit_bps"], 7_000_000);
    assert_eq!(bed.ask("a", B, 3), 3);
}

/// What a request may take, in bytes (docs/reference/http.md, "Bounds").
fn bound(body: &str) -> u64 {
    let count = |which: &[char]| body.chars().filter(|char| which.contains(char)).count() as u64;
    6 * body.len() as u64 + 2048 * count(&[',', '[', '{']) + 2048 * count(&['{'])
}

#[test]
fn no_request_takes_more_memory_than_is_reserved_for_it() {
    const COUNT: usize = 50_000;
    let Some(_turn) = turn("no_request_takes_more_memory_than_is_reserved_for_it") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = bed.start(NEIGHBOURS);
    let all = |one: &dyn Fn(usize) -> String| (0..COUNT).map(one).collect::<Vec<_>>().join(",");
    let with = |keys: String| {
        format!(r#"{{"actions":[{{"action":"add","kind":"endpoint","path":"s1/home/x","keys":{{{keys}}}}}]}}"#)
    };
    let dry = |actions: String| format!(r#"{{"dry_run":true,"actions":[{actions}]}}"#);
    let add = |kind: &str, path: String, keys: &str| {
        format!(r#"{{"action":"add","kind":"{kind}","path":"{path}","keys":{{{keys}}}}}"#)
    };
    let deep = |n: usize| format!(r#""k{n}":{}0{}"#, r#"{"":"#.repeat(100), "}".repeat(100));
    let shapes = [
        ("unknown keys", with((0..COUNT / 50).map(|n| format!(r#""{n}":0"#)).collect::<Vec<_>>().join(","))),
        ("tables in tables", with((0..COUNT / 100).map(deep).collect::<Vec<_>>().join(","))),
        ("tables in a list", with(format!(r#""mac":[{}]"#, all(&|_| r#"{"":0}"#.to_owned())))),
        ("lists in a list", with(format!(r#""mac":[{}]"#, all(&|_| "[0]".to_owned())))),
        ("numbers in a list", with(format!(r#""mac":[{}]"#, all(&|_| "0".to_owned())))),
        ("a long text", with(format!(r#""mac":"{}""#, "x".repeat(20 * COUNT)))),
        ("a long path", dry(add("tenant", "x".repeat(20 * COUNT), ""))),
        ("namespaces", format!(r#"{{"actions":[],"namespaces":[{}]}}"#, all(&|_| r#""""#.to_owned()))),
        ("tenants", dry(all(&|n| add("tenant", format!("s1/t{n}"), "")))),
        ("endpoints", dry(all(&|n| add("endpoint", format!("s1/home/n{n}"), &format!(r#""port":"tap://t{n}""#))))),
        ("wrong endpoints", dry(all(&|n| add("endpoint", format!("s1/home/n{n}"), r#""port":"tap://tap0""#)))),
        ("the most actions", many(COUNT)),
    ];
    for (what, body) in shapes {
        let before = memory_mib(&daemon, "VmRSS:");
        // The most so far is what there is now (proc_pid_clear_refs(5)).
        std::fs::write(format!("/proc/{}/clear_refs", daemon.pid()), "5").unwrap();
        let answer = post(&bed, &body);
        let took = memory_mib(&daemon, "VmHWM:").saturating_sub(before);
        let (status, most) = (answer.get(9..12).unwrap_or_default().to_owned(), bound(&body) >> 20);
        println!("{what}: {} bytes took {took} MiB of {most}; {status}", body.len());
        assert!(["200", "400", "422"].contains(&status.as_str()), "{what}: {answer}");
        // Each thread that works on it has a heap of its own, of some MiB.
        assert!(took <= most + 16, "{what}: {took} MiB, where {most} are reserved");
    }
}

#[test]
fn a_request_without_memory_for_it_is_refused_and_frames_go_on() {
    const TEST: &str = "a_request_without_memory_for_it_is_refused_and_frames_go_on";
    const MIB: u64 = 1 << 20;
    let Some(_turn) = turn(TEST) else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let Some(group) = Group::new(&bed.tag, "memory", &["memory.limit_in_bytes", "memory.max"]) else {
        skipped(TEST, "no control group can be made here");
        return;
    };
    let mut daemon = bed.start_with(NEIGHBOURS, |command| group.around(command));
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3);
    let used = || group.number("memory.usage_in_bytes").or_else(|| group.number("memory.current")).unwrap();
    group.limit(used() + 100 * MIB);
    let refused = |answer: &str| {
        let is_said = answer.contains("of memory, but only ") && answer.contains("send several smaller requests");
        assert!(answer.starts_with("HTTP/1.1 503") && is_said, "{answer}");
    };
    // It could be read, and not be done.
    refused(&post(&bed, &many(ACTIONS)));
    // It could not be read.
    refused(&say(&bed, "POST /v1/actions HTTP/1.1\r\nhost: x\r\ncontent-length: 67000000\r\n\r\n"));
    assert_eq!(bed.ask("a", B, 3), 3);
    let small = bed.run(&["set", "endpoint", "s1/home/c", "limit=5 Mbit/s"]);
    assert!(small.status.success(), "{}", String::from_utf8_lossy(&small.stderr));
    // With its memory there it is done.
    group.limit(used() + 8192 * MIB);
    let answer = post(&bed, &many(ACTIONS / 10));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(daemon.endpoint("c")["egress"]["limit_bps"], 7_000_000);
    assert!(daemon.end(rustix::process::Signal::TERM).success(), "{}", daemon.log());
}
