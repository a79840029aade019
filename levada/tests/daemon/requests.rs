//! What the largest request takes of the memory of the process that moves frames.

use crate::management::say;
use crate::testbed::{Bed, Daemon, turn};
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

#[test]
fn the_largest_request_takes_no_more_memory_than_is_said() {
    let Some(_turn) = turn("the_largest_request_takes_no_more_memory_than_is_said") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = bed.start(NEIGHBOURS);
    let _echo = bed.echo("b", B);
    // Nothing is left of these, so that no devices need be made.
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
    let actions: Vec<_> = (0..ACTIONS / 2 - 1).flat_map(one).chain([last]).collect();
    let body = json!({"actions": actions}).to_string();
    let head = format!("POST /v1/actions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    let before = memory_mib(&daemon, "VmRSS:");
    let answer = say(&bed, &(head + &body));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let most = memory_mib(&daemon, "VmHWM:") - before;
    assert!(most < MOST_MIB, "{most} MiB");
    assert_eq!(daemon.endpoint("c")["egress"]["limit_bps"], 7_000_000);
    assert_eq!(bed.ask("a", B, 3), 3);
}
