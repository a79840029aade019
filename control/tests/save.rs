//! A configuration that is written into a file that there is: all that people wrote stays, but for
//! what differs.

use control::action::between;
use control::config::Config;
use control::problem::Severity;
use control::save::{save, write_new};
use std::path::Path;

fn read(text: &str) -> Config {
    let checked = control::load(text);
    let error = checked.problems.iter().find(|problem| problem.severity == Severity::Error);
    assert!(error.is_none(), "{error:?}\n{text:.2000}");
    checked.config
}

/// `text` after the change of it to what `wanted` says.
fn saved(text: &str, wanted: &Config) -> String {
    let saved = save(text, &read(text), wanted);
    assert_eq!(saved.left, [], "{}", saved.text);
    assert_eq!(between(&read(&saved.text), wanted), []);
    saved.text
}

fn good_texts() -> Vec<String> {
    let mut good = Vec::new();
    for directory in ["../examples", "../fuzz/corpus/config"] {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
        for entry in std::fs::read_dir(directory).unwrap() {
            let Ok(text) = std::fs::read_to_string(entry.unwrap().path()) else { continue };
            good.extend(control::load(&text).plan.is_some().then_some(text));
        }
    }
    assert!(good.len() > 5, "only {} configurations", good.len());
    good
}

#[test]
fn any_file_comes_to_say_what_any_other_says() {
    let all = good_texts();
    for old in &all {
        assert_eq!(saved(old, &read(old)), *old, "nothing differs");
        for new in &all {
            saved(old, &read(new));
        }
        let new = write_new(&read(old));
        assert_eq!(read(&new), read(old), "{new}");
        assert_eq!(saved(&new, &read(old)), new);
    }
}

const FILE: &str = r#"# Rack 4.
[daemon]
name = "d"      # as in the unit

[[switch]]
name = "s1"
uplink = { port = "packet://eth0", rate = "10 Gbit/s" } # the 10G card

# The shop.
[[switch.tenant]]
name = "red"
vlan = 0x0a     # see the plan of VLANs
weight = 1

# Its first server.
[[switch.tenant.endpoint]]
name = "red1"
port = "tap://red1"
guarantee = "1000 Mbit/s" # paid for

[[switch.tenant]]
name = "blue"   # gone soon
vlan = 11
endpoint = [
    { name = "b1", port = "tap://b1" }, # the first
    { name = "b2", port = "tap://b2", mac = "02:00:00:00:00:02" },
]
"#;

/// What actions make of it.
fn after(text: &str, actions: &str) -> String {
    let actions: Vec<_> = serde_json::from_str(actions).unwrap();
    saved(text, &control::action::apply(&read(text), &actions).unwrap().config)
}

/// The lines that are in one of two texts only: `-` of the old one, `+` of the new one.
fn lines(old: &str, new: &str) -> String {
    let (mut old, mut new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    old.drain(..same);
    new.drain(..same);
    while old.last().is_some_and(|last| new.last() == Some(last)) {
        old.pop();
        new.pop();
    }
    let old = old.into_iter().map(|line| format!("-{line}\n"));
    old.chain(new.into_iter().map(|line| format!("+{line}\n"))).collect()
}

#[test]
fn a_key_is_changed_in_its_line() {
    let set = r#"[{"action": "set", "kind": "endpoint", "path": "s1/red/red1", "keys": {"guarantee": "2 Gbit/s"}}]"#;
    assert_eq!(
        lines(FILE, &after(FILE, set)),
        "-guarantee = \"1000 Mbit/s\" # paid for\n+guarantee = \"2 Gbit/s\" # paid for\n"
    );
    let set = r#"[{"action": "set", "kind": "uplink", "path": "s1", "keys": {"rate": "25 Gbit/s"}}]"#;
    assert_eq!(
        lines(FILE, &after(FILE, set)),
        "-uplink = { port = \"packet://eth0\", rate = \"10 Gbit/s\" } # the 10G card\n\
         +uplink = { port = \"packet://eth0\", rate = \"25 Gbit/s\" } # the 10G card\n"
    );
    // One with its default, too, whose spelling is not that of the comparison.
    let set = r#"[{"action": "set", "kind": "tenant", "path": "s1/red", "keys": {"weight": 3, "vlan": 12}}]"#;
    assert_eq!(
        lines(FILE, &after(FILE, set)),
        "-vlan = 0x0a     # see the plan of VLANs\n-weight = 1\n+vlan = 12     # see the plan of VLANs\n+weight = 3\n"
    );
}

#[test]
fn what_is_new_stands_behind_its_like() {
    let add = r#"[{"action": "add", "kind": "endpoint", "path": "s1/red/red2",
        "keys": {"port": "tap://red2", "ip": ["10.0.0.2", "10.0.0.3"], "limit": {"egress": "5 Mbit/s"}}}]"#;
    assert_eq!(
        lines(FILE, &after(FILE, add)),
        "+[[switch.tenant.endpoint]]\n+name = \"red2\"\n+port = \"tap://red2\"\n+ip = [\"10.0.0.2\", \"10.0.0.3\"]\n\
         +limit = { egress = \"5 Mbit/s\" }\n+\n"
    );
    let add = r#"[{"action": "add", "kind": "endpoint", "path": "s1/blue/b3", "keys": {"port": "tap://b3"}}]"#;
    assert_eq!(lines(FILE, &after(FILE, add)), "+    { name = \"b3\", port = \"tap://b3\" },\n");
    // The first service of a tenant, with a backend, before the next tenant.
    let add = r#"[{"action": "add", "kind": "service", "path": "s1/red/web", "keys": {"address": "10.0.0.100:80"}},
        {"action": "add", "kind": "backend", "path": "s1/red/web/red1", "keys": {"endpoint": "red1"}},
        {"action": "set", "kind": "endpoint", "path": "s1/red/red1",
         "keys": {"ip": "10.0.0.1", "mac": "02:00:00:00:00:01"}}]"#;
    let text = after(FILE, add);
    assert!(text.find("[[switch.tenant.service.backend]]").unwrap() < text.find("name = \"blue\"").unwrap(), "{text}");
    assert!(text.contains("# paid for") && text.contains("# gone soon"), "{text}");
}

#[test]
fn what_is_gone_goes_with_its_lines() {
    let del = r#"[{"action": "del", "kind": "endpoint", "path": "s1/blue/b1"}]"#;
    let text = after(FILE, del);
    assert!(!text.contains("tap://b1") && text.contains("tap://b2"), "{text}");
    let del = r#"[{"action": "del", "kind": "tenant", "path": "s1/red"}, {"action": "del", "kind": "endpoint", "path": "s1/blue/b2"}]"#;
    let text = after(FILE, del);
    assert!(text.starts_with("# Rack 4.\n[daemon]"), "{text}");
    assert!(!text.contains("red") && text.contains("{ name = \"b1\", port = \"tap://b1\" }, # the first"), "{text}");
}

#[test]
fn members_of_a_bond_keep_their_order() {
    let file = r#"[daemon]
name = "d"
[[switch]]
name = "s1"
[switch.uplink.bond] # both cards
mode = "active-backup"
[[switch.uplink.bond.member]] # left
port = "packet://eth0"
rate = "1 Gbit/s"
[[switch.uplink.bond.member]] # right
port = "packet://eth1"
rate = "1 Gbit/s"
"#;
    let again = r#"[{"action": "del", "kind": "bond-member", "path": "s1/eth0"},
        {"action": "add", "kind": "bond-member", "path": "s1/eth0", "keys": {"port": "packet://eth0", "rate": "2 Gbit/s"}}]"#;
    let text = after(file, again);
    assert!(text.contains("[switch.uplink.bond] # both cards"), "{text}");
    assert!(text.find("# right").unwrap() < text.find("# left").unwrap(), "{text}");
    let add = r#"[{"action": "add", "kind": "bond-member", "path": "s1/eth2", "keys": {"port": "packet://eth2", "rate": "1 Gbit/s"}},
        {"action": "set", "kind": "bond", "path": "s1", "keys": {"primary": "eth2"}}]"#;
    let text = after(file, add);
    assert!(
        text.contains("primary = \"eth2\"") && text.ends_with("port = \"packet://eth2\"\nrate = \"1 Gbit/s\"\n"),
        "{text}"
    );
}

#[test]
fn the_name_of_the_daemon_stays() {
    let wanted = read(&FILE.replace("name = \"d\"", "name = \"other\""));
    assert_eq!(save(FILE, &read(FILE), &wanted).text, FILE);
}
