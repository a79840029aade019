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
        (json!({"action": "add", "kind": "endpoint", "path": "s1/red"}), "not a path of kind endpoint"),
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
        (
            json!({"action": "set", "kind": "uplink", "path": "s1",
                   "keys": {"port": null, "rate": null, "bond": {"mode": "balance-rr", "member": []}}}),
            "the bond has no members",
        ),
        (
            json!({"action": "add", "kind": "service", "path": "s1/red/web", "keys": {"address": []}}),
            "`address` is an empty list",
        ),
    ] {
        let (_, message, _) = refused(json!([action]));
        assert!(message.contains(what), "{action}: {message}");
    }
}

#[test]
fn a_table_replaces_the_whole_key() {
    let limit = |keys: serde_json::Value| {
        let before = json!({"limit": {"egress": "5 Mbit/s", "ingress": "20 Mbit/s"}});
        let set = |keys| json!({"action": "set", "kind": "endpoint", "path": "s1/red/red1", "keys": keys});
        let guarantee = json!({"guarantee": null});
        let list = json!([set(guarantee), set(before), set(keys)]);
        let config = apply(&host(), &actions(list)).unwrap().config;
        let limit = config.switches[0].tenants[0].endpoints[0].knobs.limit;
        (limit.egress.map(|rate| rate.0), limit.ingress.map(|rate| rate.0))
    };
    assert_eq!(limit(json!({"limit": {"egress": "7 Mbit/s"}})), (Some(7_000_000), None));
    assert_eq!(limit(json!({"weight": 2})), (Some(5_000_000), Some(20_000_000)));
    let both = json!({"limit": {"egress": "7 Mbit/s", "ingress": "20 Mbit/s"}});
    assert_eq!(limit(both), (Some(7_000_000), Some(20_000_000)));
    let vcc = |keys: serde_json::Value| json!({"action": "set", "kind": "switch", "path": "s1", "keys": {"vcc": keys}});
    let list = json!([vcc(json!({"flows": 2048, "rescale": true})), vcc(json!({"flows": 4096}))]);
    let switch = apply(&host(), &actions(list)).unwrap().config.switches.remove(0);
    assert_eq!((switch.flows, switch.rescales), (Some(4096), false));
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

const BONDED: &str = r#"
[daemon]
name = "t"
[[switch]]
name = "s1"
[switch.uplink.bond]
mode = "active-backup"
[[switch.uplink.bond.member]]
port = "packet://eth0"
rate = "1 Gbit/s"
[[switch.uplink.bond.member]]
port = "packet://eth1"
rate = "1 Gbit/s"
[[switch]]
name = "s2"
[switch.uplink]
port = "tap://up"
rate = "1 Gbit/s"
"#;

fn bonded() -> Config {
    let checked = crate::load(BONDED);
    assert!(checked.problems.is_empty(), "{:?}", checked.problems);
    checked.config
}

#[test]
fn a_bond_and_its_members_are_changed_one_key_at_a_time() {
    let changed = apply(
        &bonded(),
        &actions(json!([
            {"action": "set", "kind": "bond", "path": "s1", "keys": {"primary": "eth1", "primary_reselect": "failure"}},
            {"action": "add", "kind": "bond-member", "path": "s1/eth2",
             "keys": {"port": "packet://eth2", "rate": "2 Gbit/s"}},
            {"action": "set", "kind": "bond-member", "path": "s1/eth0", "keys": {"admin": "down"}},
            {"action": "set", "kind": "bond", "path": "s1", "keys": {"active": "eth2"}},
        ])),
    )
    .unwrap();
    let bond = changed.config.switches[0].uplink.as_ref().unwrap().bond.as_ref().unwrap();
    assert_eq!((bond.primary.as_deref(), bond.reselect), (Some("eth1"), crate::bond::Reselect::Failure));
    let members: Vec<_> = bond.members.iter().map(|member| (member.name(), member.is_down)).collect();
    assert_eq!(members, [("eth0".to_owned(), true), ("eth1".to_owned(), false), ("eth2".to_owned(), false)]);
    assert_eq!(changed.active, [("s1".to_owned(), "eth2".to_owned())]);
    let text = write::config(&changed.config);
    assert!(!serde_json::to_string(&text).unwrap().contains("active\":"), "it is no key of the file: {text:?}");

    let back = apply(
        &changed.config,
        &actions(json!([
            {"action": "set", "kind": "bond-member", "path": "s1/eth0", "keys": {"admin": null}},
            {"action": "del", "kind": "bond-member", "path": "s1/eth2"},
            {"action": "set", "kind": "bond", "path": "s1", "keys": {"primary": null, "primary_reselect": null}},
        ])),
    )
    .unwrap();
    assert_eq!(back.config, bonded());
    assert_eq!(back.active, []);
}

#[test]
fn a_refusal_of_a_change_of_a_bond_says_what_helps() {
    for (action, key, message) in [
        (
            json!({"action": "set", "kind": "bond-member", "path": "s1/eth7", "keys": {"admin": "down"}}),
            "bond-member s1/eth7",
            "there is no bond-member \"eth7\"",
        ),
        (
            json!({"action": "set", "kind": "bond-member", "path": "s1/eth0", "keys": {"port": "packet://eth7"}}),
            "bond-member s1/eth0, port",
            "the member at packet://eth7 is called \"eth7\"",
        ),
        (
            json!({"action": "set", "kind": "bond-member", "path": "s1/eth0", "keys": {"admin": "off"}}),
            "bond-member s1/eth0, admin",
            "unknown state \"off\"",
        ),
        (
            json!({"action": "add", "kind": "bond-member", "path": "s1/eth0",
                   "keys": {"port": "packet://eth0", "rate": "1 Gbit/s"}}),
            "bond-member s1/eth0",
            "it is there already",
        ),
        (
            json!({"action": "set", "kind": "bond", "path": "s1", "keys": {"active": "eth7"}}),
            "bond s1, active",
            "there is no bond-member \"eth7\"",
        ),
        (
            json!({"action": "set", "kind": "bond", "path": "s1", "keys": {"mode": "balance-rr", "active": "eth0"}}),
            "bond s1, active",
            "mode \"balance-rr\" has no active member",
        ),
        (
            json!({"action": "set", "kind": "bond", "path": "s1", "keys": {"member": []}}),
            "bond s1, member",
            "`member` is not a key here",
        ),
        (
            json!({"action": "set", "kind": "bond", "path": "s2", "keys": {"primary": "up"}}),
            "bond s2",
            "there is no bond",
        ),
        (json!({"action": "del", "kind": "bond", "path": "s1"}), "bond s1", "an uplink has ports"),
        (json!({"action": "add", "kind": "bond", "path": "s2"}), "bond s2", "a bond comes with its uplink"),
    ] {
        let problems = apply(&bonded(), &actions(json!([action.clone()]))).unwrap_err();
        assert_eq!((problems[0].key.as_str(), problems[0].message.as_str()), (key, message), "{action}");
        assert!(!problems[0].remedy.is_empty(), "{action}");
    }
    // What is said of a bond that is to come can be done.
    let bond = json!({"mode": "balance-rr", "member": [{"port": "tap://up", "rate": "1 Gbit/s"}]});
    let set = json!({"action": "set", "kind": "uplink", "path": "s2",
        "keys": {"port": null, "rate": null, "bond": bond}});
    assert!(
        apply(&bonded(), &actions(json!([set]))).unwrap().config.switches[1].uplink.as_ref().unwrap().bond.is_some()
    );
    let add = json!([{"action": "add", "kind": "bond", "path": "s2"}]);
    assert!(apply(&bonded(), &actions(add)).unwrap_err()[0].remedy.contains("port= rate= bond="));
    // A member that is down by hand is not chosen, and the last one not deleted.
    let last = json!([
        {"action": "del", "kind": "bond-member", "path": "s1/eth0"},
        {"action": "del", "kind": "bond-member", "path": "s1/eth1"},
    ]);
    assert_eq!(apply(&bonded(), &actions(last)).unwrap_err()[0].message, "it is the bond's last member");
    let down = json!([
        {"action": "set", "kind": "bond-member", "path": "s1/eth0", "keys": {"admin": "down"}},
        {"action": "set", "kind": "bond", "path": "s1", "keys": {"active": "eth0"}},
    ]);
    assert_eq!(apply(&bonded(), &actions(down)).unwrap_err()[0].message, "member \"eth0\" is down by hand");
}
