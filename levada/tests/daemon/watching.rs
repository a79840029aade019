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
