//! Actions on small configurations; examples and the fuzz corpus are in `tests/actions.rs`.

use super::*;
use serde_json::json;

const HOST: &str = r#"
[daemon]
name = "t"
[[switch]]
name = "s1"
[switch.uplink]
port = "tap://up"
rate = "1 Gbit/s"
[[switch.tenant]]
name = "red"
vlan = 10
[[switch.tenant.endpoint]]
name = "red1"
port = "tap://red1"
guarantee = "300 Mbit/s"
"#;

fn host() -> Config {
    let checked = crate::load(HOST);
    assert!(checked.problems.is_empty(), "{:?}", checked.problems);
    checked.config
}

fn actions(list: serde_json::Value) -> Vec<Action> {
    serde_json::from_value(list).unwrap()
}

fn refused(list: serde_json::Value) -> (String, String, String) {
    let problems = apply(&host(), &actions(list)).unwrap_err();
    let Problem { key, message, remedy, .. } = problems[0].clone();
    assert!(!remedy.is_empty(), "{message}");
    (key, message, remedy)
}

#[test]
fn things_are_added_set_and_deleted() {
    let changed = apply(
        &host(),
        &actions(json!([
            {"action": "add", "kind": "endpoint", "path": "s1/red/red2",
             "keys": {"port": "tap://red2", "mac": ["02:00:00:00:00:02"], "limit": {"egress": "5 Mbit/s"}}},
            {"action": "set", "kind": "endpoint", "path": "s1/red/red1", "keys": {"guarantee": null, "weight": 7}},
            {"action": "set", "kind": "uplink", "path": "s1", "keys": {"rate": "2 Gbit/s"}},
            {"action": "set", "kind": "daemon", "keys": {"spin": true}},
            {"action": "add", "kind": "tenant", "path": "s1/blue"},
        ])),
    )
    .unwrap();
    let tenants = &changed.config.switches[0].tenants;
    assert_eq!(tenants[0].endpoints[0].knobs.guarantee.egress, None);
    assert_eq!(tenants[0].endpoints[0].knobs.weight.ingress, Some(7));
    assert_eq!(tenants[0].endpoints[1].knobs.limit.egress, Some(datapath::units::Rate(5_000_000)));
    assert_eq!(tenants[0].endpoints[1].knobs.limit.ingress, None);
    assert_eq!(tenants[1].name, "blue");
    assert!(changed.config.daemon.spin);
    let gone =
        apply(&changed.config, &actions(json!([{"action": "del", "kind": "tenant", "path": "s1/red"}]))).unwrap();
    assert_eq!(gone.config.switches[0].tenants.len(), 1, "with its endpoints");
}

#[test]
fn a_refusal_names_the_thing_the_key_and_the_remedy() {
    let (key, message, remedy) = refused(
        json!([{"action": "set", "kind": "endpoint", "path": "s1/red/red1", "keys": {"guarantee": "300 MB/s"}}]),
    );
    assert_eq!(key, "endpoint s1/red/red1, guarantee");
    assert!(message.contains("MB/s") && remedy.contains("bits a second"), "{message} {remedy}");
    let (key, message, remedy) =
        refused(json!([{"action": "set", "kind": "endpoint", "path": "s1/red/red1", "keys": {"garantee": null}}]));
    assert_eq!((key.as_str(), message.as_str()), ("endpoint s1/red/red1, garantee", "unknown key `garantee`"));
    assert!(remedy.contains("`guarantee`"), "{remedy}");
    let (_, message, remedy) = refused(json!([{"action": "del", "kind": "tenant", "path": "s1/rde"}]));
    assert_eq!((message.as_str(), remedy.as_str()), ("there is no tenant \"rde\"", "did you mean \"red\"?"));
    let (key, message, _) = refused(
        json!([{"action": "set", "kind": "endpoint", "path": "s1/red/red1", "keys": {"guarantee": "2 Gbit/s"}}]),
    );
    assert!(key.starts_with("switch \"s1\", uplink, rate"), "what only the whole shows is checked: {key}");
    assert!(message.contains("2 Gbit/s are guaranteed"), "{message}");
}

#[test]
fn what_cannot_be_done_is_refused() {
    for (action, what) in [
        (json!({"action": "add", "kind": "tenant", "path": "s1/red"}), "there already"),
        (
            json!({"action": "add", "kind": "uplink", "path": "s1", "keys": {"port": "tap://x", "rate": "1 Gbit/s"}}),
            "there already",
        ),
        (json!({"action": "add", "kind": "tenant", "path": "s2/red"}), "no switch"),
        (json!({"action": "add", "kind": "endpoint", "path": "s1/red/x"}), "`port` is missing"),
        (json!({"action": "add", "kind": "endpoint", "path": "s1/red"}), "not the path"),
        (json!({"action": "add", "kind": "tenant", "path": "s1/a b"}), "cannot be a name"),
        (json!({"action": "add", "kind": "daemon", "path": ""}), "one daemon"),
        (json!({"action": "del", "kind": "daemon", "path": ""}), "cannot be deleted"),
        (json!({"action": "del", "kind": "switch", "path": "s1"}), "no switch"),
        (json!({"action": "set", "kind": "daemon", "keys": {"name": "x"}}), "a name cannot be changed"),
        (json!({"action": "set", "kind": "switch", "path": "s1", "keys": {"tenant": []}}), "not a key here"),
        (json!({"action": "set", "kind": "switch", "path": "s1", "keys": {"order": [null]}}), "no form in TOML"),
        (json!({"action": "set", "kind": "switch", "path": "s1", "keys": {"a\"b\n": 1}}), "unknown key"),
        (
            json!({"action": "set", "kind": "endpoint", "path": "s1/red/red1", "keys": {"port": null}}),
            "`port` is missing",
        ),
    ] {
        let (_, message, _) = refused(json!([action]));
        assert!(message.contains(what), "{action}: {message}");
    }
}

#[test]
fn all_or_none_is_done() {
    let before = host();
    let list = json!([
        {"action": "add", "kind": "tenant", "path": "s1/blue"},
        {"action": "del", "kind": "tenant", "path": "s1/green"},
    ]);
    assert!(apply(&before, &actions(list)).is_err());
    assert_eq!(before, host());
}

#[test]
fn the_difference_is_what_differs() {
    let (old, new) = (
        host(),
        crate::load(
            &HOST.replace("300 Mbit/s", "200 Mbit/s").replace("vlan = 10", "limit = \"400 Mbit/s\"\nvlan = 10"),
        )
        .config,
    );
    assert_eq!(between(&old, &old), []);
    let shown: Vec<String> = between(&old, &new).iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["set tenant s1/red limit=\"400 Mbit/s\"", "set endpoint s1/red/red1 guarantee=\"200 Mbit/s\""]);
    let shown: Vec<String> = between(&new, &old).iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["set tenant s1/red limit=", "set endpoint s1/red/red1 guarantee=\"300 Mbit/s\""]);
    assert_eq!(apply(&new, &between(&new, &old)).unwrap().config, old);
}

#[test]
fn actions_are_strict_json() {
    for text in [
        r#"{"action": "add"}"#,
        r#"{"action": "add", "kind": "tenant"}"#,
        r#"{"action": "move", "kind": "tenant", "path": "s1/red"}"#,
        r#"{"action": "del", "kind": "tenant", "path": "s1/red", "keys": {}}"#,
        r#"{"action": "del", "kind": "tennant", "path": "s1/red"}"#,
        r#"{"action": "set", "kind": "tenant", "path": "s1/red"}"#,
        r#"[]"#,
    ] {
        assert!(serde_json::from_str::<Action>(text).is_err(), "{text}");
    }
}
