//! What an operator sees of a running daemon.

use crate::testbed::{Bed, soon, turn};
use crate::traffic::{B, NEIGHBOURS};
use serde_json::Value;

fn tables(bed: &Bed) -> Value {
    let output = bed.run(&["show", "tables", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_tables_have_declared_and_learned_addresses() {
    let Some(_turn) = turn("the_tables_have_declared_and_learned_addresses") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    // The first endpoint declares nothing, so what it sends from is learned.
    let learning = NEIGHBOURS.replacen("mac = \"02:00:00:00:07:01\"\nip = \"10.7.0.1\"\n", "", 1);
    assert_ne!(learning, NEIGHBOURS);
    let _daemon = bed.start(&learning);
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 3), 3);
    let table = tables(&bed)["tenants"][0].clone();
    assert_eq!((&table["path"], &table["declared"], &table["learned"]), (&"s1/home".into(), &2.into(), &1.into()));
    let of = |endpoint: &str| {
        let all = table["addresses"].as_array().unwrap();
        all.iter().find(|address| address["endpoint"] == endpoint).unwrap_or_else(|| panic!("{table}")).clone()
    };
    assert_eq!((&of("b")["mac"], &of("b")["declared"]), (&"02:00:00:00:07:02".into(), &true.into()));
    let link = bed.ip("a", "link show dev tap0").unwrap();
    let learned = of("a");
    assert!(link.contains(learned["mac"].as_str().unwrap()), "{learned}: {link}");
    assert_eq!(learned["declared"], false);
    assert!(learned["seen_ns"].is_u64() && learned["left_ns"].as_u64().unwrap() > 0, "{learned}");
    let text = String::from_utf8(bed.run(&["show", "tables"]).stdout).unwrap();
    let line = text.lines().find(|line| line.contains("learned")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains(learned["mac"].as_str().unwrap()) && line.contains(" a "), "{text}");
    // It is forgotten with its endpoint.
    assert!(bed.run(&["del", "endpoint", "s1/home/a"]).status.success());
    soon("it is forgotten", || tables(&bed)["tenants"][0]["learned"] == 0);
}

#[test]
fn a_trace_is_written_to_a_file_and_a_full_disk_harms_nobody() {
    let Some(_turn) = turn("a_trace_is_written_to_a_file_and_a_full_disk_harms_nobody") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let daemon = bed.start(NEIGHBOURS);
    let _echo = bed.echo("b", B);
    assert_eq!(bed.ask("a", B, 1), 1);
    let path = bed.directory.join("trace.pcapng");
    let path = path.to_str().unwrap();
    let good = traced(&bed, path);
    assert!(good.status.success(), "{}", String::from_utf8_lossy(&good.stderr));
    let reply: Value = serde_json::from_slice(&good.stdout).unwrap();
    assert_eq!(reply["frames"].as_array().unwrap().len(), 3);
    let file = std::fs::read(path).unwrap();
    // A section's and an interface's header, and what became of the frames in their comments.
    assert_eq!(file[..4], 0x0a0d_0d0a_u32.to_le_bytes());
    let told = file.windows(9).filter(|part| part == b"forwarded").count();
    assert!(told >= 3, "{told}");
    assert!(file.windows(10).any(|part| part == b"datagram 0"), "the frames' own bytes");
    // Where nothing can be written, it is said, and what was seen is printed all the same.
    let full = traced(&bed, "/dev/full");
    let error = String::from_utf8_lossy(&full.stderr).into_owned();
    assert!(full.status.code() == Some(1) && error.contains("/dev/full: No space left"), "{error}");
    let reply: Value = serde_json::from_slice(&full.stdout).unwrap();
    assert_eq!(reply["frames"].as_array().unwrap().len(), 3);
    // A place that is none is an error before any frame is waited for.
    let nowhere = bed.run(&["trace", "--seconds", "60", "--pcap", "/nowhere/x"]);
    let error = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(nowhere.status.code() == Some(1) && error.contains("cannot write the capture to /nowhere/x"), "{error}");
    assert_eq!(bed.ask("a", B, 3), 3, "the daemon goes on");
    assert_eq!(daemon.endpoint("a")["drops"], serde_json::json!({}));
}

/// Traces three datagrams of endpoint a to a file.
fn traced(bed: &Bed, file: &str) -> std::process::Output {
    let arguments = ["trace", "endpoint a and udp", "--count", "3", "--seconds", "60", "--json", "--pcap", file];
    std::thread::scope(|scope| {
        let trace = scope.spawn(|| bed.run(&arguments));
        while !trace.is_finished() {
            bed.ask("a", B, 1);
        }
        trace.join().unwrap()
    })
}

#[test]
fn the_log_can_be_json() {
    let Some(_turn) = turn("the_log_can_be_json") else { return };
    let bed = Bed::new(&["a", "b", "c"]);
    let file = bed.configuration(NEIGHBOURS);
    let mut command = bed.levada(&["run", "--log", "json", "-c"]);
    let mut child = command.arg(file).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let (told, lines) = std::sync::mpsc::channel();
    let stderr = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        use std::io::BufRead as _;
        std::io::BufReader::new(stderr).lines().map_while(Result::ok).for_each(|line| drop(told.send(line)));
    });
    let ready = lines.iter().find(|line| line.contains("ready"));
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
    let record: Value = serde_json::from_str(&ready.expect("a record")).unwrap();
    assert_eq!((&record["level"], &record["message"]), (&"info".into(), &"ready".into()));
    assert!(record["time"].as_str().unwrap().ends_with('Z') && record["instance"].is_string(), "{record}");
}
