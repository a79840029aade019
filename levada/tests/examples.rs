//! Every file in `examples/` is good, without a warning, and its summary is as written down.
//!
//! `LEVADA_REGENERATE=1 cargo test -p levada --test examples` writes the summaries anew.

use std::path::Path;
use std::process::Command;

/// What begins what this machine lacks.
const LACKING: &str = "warning: as this machine is now: ";
/// How a warning of a missing namespace begins.
const NO_NAMESPACE: &str = "warning: as this machine is now: there is no network namespace ";

#[test]
fn every_example_is_good() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/examples");
    let mut files: Vec<_> = std::fs::read_dir(root.join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".toml"))
        .collect();
    files.sort();
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        let check = |json: bool| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_levada"));
            command.current_dir(root).arg("check").arg(format!("examples/{file}"));
            let output = command.args(json.then_some("--json")).output().unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            // Certificates, the etcd's files and keys are not there; nothing else is amiss.
            let names_files = ["cluster.toml", "etcd.toml", "service.toml", "tunnels.toml", "tunnels-over-a-bond.toml"]
                .contains(&file.as_str());
            let is_known = |line: &str| {
                let is_lacking = |what| line.starts_with(&format!("{LACKING}there is no {what} "));
                names_files && line.starts_with(LACKING) || is_lacking("interface") || is_lacking("group")
            };
            // Nor are interfaces, groups and namespaces; what is said of one is a paragraph.
            let rest: Vec<&str> = stderr.split("\n\n").filter(|part| !part.starts_with(NO_NAMESPACE)).collect();
            let rest = rest.iter().flat_map(|part| part.lines()).filter(|line| !line.is_empty());
            assert!(output.status.success() && rest.into_iter().all(is_known), "{file}: {stderr}");
            String::from_utf8(output.stdout).unwrap()
        };
        let text = check(false);
        let golden = goldens.join(file.replace(".toml", ".txt"));
        if std::env::var_os("LEVADA_REGENERATE").is_some() {
            std::fs::create_dir_all(&goldens).unwrap();
            std::fs::write(&golden, &text).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&golden).unwrap_or_default(), text, "{file}");
        let json: serde_json::Value = serde_json::from_str(&check(true)).unwrap();
        assert_eq!(json["version"], 1);
        assert!(!json["switches"].as_array().unwrap().is_empty());
    }
}

/// What `levada schema` prints, ready to judge.
fn schema() -> jsonschema::Validator {
    let output = Command::new(env!("CARGO_BIN_EXE_levada")).arg("schema").output().unwrap();
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    jsonschema::meta::validate(&schema).expect("it is a schema");
    jsonschema::validator_for(&schema).unwrap()
}

/// A file as data.
fn data(text: &str) -> serde_json::Value {
    use toml::de::{DeTable, DeValue};
    fn table(from: &DeTable<'_>) -> serde_json::Value {
        from.iter().map(|(key, v)| (key.get_ref().to_string(), value(v.get_ref()))).collect()
    }
    fn value(from: &DeValue<'_>) -> serde_json::Value {
        match from {
            DeValue::String(text) => text.as_ref().into(),
            DeValue::Integer(number) => number.as_str().parse::<i64>().unwrap().into(),
            DeValue::Boolean(flag) => (*flag).into(),
            DeValue::Array(list) => list.iter().map(|item| value(item.get_ref())).collect(),
            DeValue::Table(entries) => table(entries),
            other => panic!("{other:?}"),
        }
    }
    table(DeTable::parse(text).unwrap().get_ref())
}

#[test]
fn the_schema_takes_every_example_and_refuses_what_the_reader_refuses() {
    let schema = schema();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("examples");
    for entry in std::fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "toml") {
            schema
                .validate(&data(&std::fs::read_to_string(&path).unwrap()))
                .unwrap_or_else(|e| panic!("{path:?}: {e}"));
        }
    }
    let good =
        "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s\"\n[[switch.tenant]]\nname = \"t\"\nlimit = \"5 Mbit/s\"\n";
    assert!(schema.is_valid(&data(good)));
    let uplink =
        "name = \"s\"\nuplink = { port = \"tap://u\", rate = { egress = \"1 Gbit/s\", ingress = \"2 Gbit/s\" } }";
    let cluster = "[cluster]\nhost = \"h\"\nlisten = \"[fe80::1%2]:7370\"\n[[switch]]";
    let more = good.replace("name = \"s\"", uplink).replace("[[switch]]", cluster);
    assert!(schema.is_valid(&data(&more)) && control::load(&more).plan.is_some(), "{more}");
    for (from, to) in [
        ("limit", "limmit"),
        ("5 Mbit/s", "5 MB/s"),
        ("5 Mbit/s", "5"),
        ("\"5 Mbit/s\"", "5"),
        ("[daemon]", "[demon]"),
        ("name = \"s\"", "name = \"s\"\norder = \"fare\""),
        ("name = \"s\"\n", ""),
        ("name = \"t\"\nlimit", "name = \"a b\"\nlimit"),
        ("limit = \"5 Mbit/s\"", "vlan = 5000"),
        ("limit = \"5 Mbit/s\"", "weight = 0"),
        ("name = \"s\"", "name = \"s\"\nuplink = { port = \"tap://u\", rate = { egress = \"1 Gbit/s\" } }"),
        ("limit = \"5 Mbit/s\"", "service = [{ name = \"w\", address = [] }]"),
    ] {
        let wrong = good.replacen(from, to, 1);
        assert_ne!(wrong, good);
        assert!(!schema.is_valid(&data(&wrong)), "schema: {wrong}");
        assert!(control::load(&wrong).plan.is_none(), "reader: {wrong}");
    }
}

#[test]
fn a_wrong_configuration_fails_with_its_line() {
    let directory = std::env::temp_dir().join(format!("levada-check-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("wrong.toml");
    std::fs::write(&file, "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s\"\nordre = \"fair\"\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_levada")).arg("check").arg(&file).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("wrong.toml:5:1") && stderr.contains("did you mean `order`?"), "{stderr}");
}

#[test]
fn what_is_reserved_for_the_agents_is_printed_wherever_the_host_is() {
    let directory = std::env::temp_dir().join(format!("levada-agents-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("agents.toml");
    let bond = "[switch.uplink.bond]\nmode = \"active-backup\"\n\
        [[switch.uplink.bond.member]]\nport = \"packet://lo\"\nrate = \"500 Mbit/s\"\n";
    let tap = "[switch.uplink]\nport = \"tap://up\"\nrate = \"500 Mbit/s\"\n";
    for uplink in [bond, tap] {
        let text = format!(
            "[daemon]\nname = \"t\"\n[cluster]\nhost = \"h\"\nlisten = \"192.0.2.1:7370\"\n[[switch]]\nname = \"s\"\n{uplink}\
             [[switch.tenant]]\nname = \"ops\"\nvlan = \"untagged\"\n[[switch.tenant.endpoint]]\nname = \"host\"\n\
             port = \"tap://host0\"\naddress = \"192.0.2.1/24\"\n"
        );
        std::fs::write(&file, text).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_levada")).arg("check").arg(&file).output().unwrap();
        let (stdout, stderr) = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).into();
        let wanted = "the agents' datagrams go before the rest of s/ops/host, up to 5 Mbit/s out and 5 Mbit/s in, \
                      and it has at least 5 Mbit/s out and 5 Mbit/s in";
        assert!(stdout.contains(wanted), "{uplink}: {stdout}{stderr}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn groups_and_interfaces_that_are_not_there_are_warned_of() {
    let directory = std::env::temp_dir().join(format!("levada-lacking-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("lacking.toml");
    let text = "[daemon]\nname = \"t\"\nsocket_group = \"levada-none\"\n[[switch]]\nname = \"s\"\n[switch.uplink]\n\
        port = \"packet://levada-none0\"\nrate = \"1 Gbit/s\"\n[[switch.tenant]]\nname = \"red\"\nvlan = \"untagged\"\n\
        [[switch.tenant.endpoint]]\nname = \"host\"\nport = \"host://levada-none0\"\n\
        [[switch.tenant.endpoint]]\nname = \"lo\"\nport = \"packet://lo\"\n\
        [[switch.tenant.endpoint]]\nname = \"vm\"\nport = \"vde:///run/levada-none\"\ngroup = \"levada-nobody\"\n\
        [[switch.tenant.endpoint]]\nname = \"vm2\"\nport = \"vhost-user:///run/levada-none.sock\"\nlisten = true\n\
        group = \"levada-nokvm\"\n";
    std::fs::write(&file, text).unwrap();
    let check = |more: Option<&str>| {
        let output = Command::new(env!("CARGO_BIN_EXE_levada")).arg("check").arg(&file).args(more).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "they may come later: {stderr}");
        (String::from_utf8(output.stdout).unwrap(), stderr)
    };
    let (_, stderr) = check(None);
    let (json, _) = check(Some("--json"));
    std::fs::remove_dir_all(&directory).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    for what in [
        "there is no group \"levada-none\"; make it (groupadd levada-none), or correct [daemon] socket_group",
        "there is no group \"levada-nobody\"; make it (groupadd levada-nobody), or correct `group` of vde:///run/levada-none",
        "there is no group \"levada-nokvm\"; make it (groupadd levada-nokvm), or correct `group` of vhost-user:///run/levada-none.sock",
        "there is no interface levada-none0; s/uplink waits for it (ip link lists those there are)",
    ] {
        assert_eq!(stderr.matches(&format!("{LACKING}{what}\n")).count(), 1, "{what}: {stderr}");
        assert!(json["warnings"].as_array().unwrap().contains(&what.into()), "{what}: {json}");
    }
    assert_eq!(stderr.matches("there is no interface").count(), 1, "{stderr}");
}

#[test]
fn a_namespace_that_is_not_there_is_warned_of_once_with_its_line_and_remedy() {
    let directory = std::env::temp_dir().join(format!("levada-netns-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("netns.toml");
    let endpoint = |name: &str, netns: &str| {
        format!("[[switch.tenant.endpoint]]\nname = \"{name}\"\nport = \"tap://{name}\"\nnetns = \"{netns}\"\n")
    };
    let head = "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s\"\n[[switch.tenant]]\nname = \"red\"\n";
    let names =
        ["levada-never-made", "levada-never-made", "/proc/self/ns/net", "/proc/4194305/ns/net", "/levada/nothing"];
    let endpoints = names.iter().enumerate().map(|(n, netns)| endpoint(&format!("e{n}"), netns));
    std::fs::write(&file, head.to_owned() + &endpoints.collect::<String>()).unwrap();
    let check = |more: Option<&str>| {
        let output = Command::new(env!("CARGO_BIN_EXE_levada")).arg("check").arg(&file).args(more).output().unwrap();
        assert!(output.status.success(), "the namespaces may come later");
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (_, stderr) = check(None);
    let (json, _) = check(Some("--json"));
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(stderr.matches(NO_NAMESPACE).count(), 3, "{stderr}");
    for part in [
        "no network namespace levada-never-made\n",
        "netns.toml:10:9\n",
        "= key: switch \"s\", tenant \"red\", endpoint \"e0\", netns\n",
        "= help: make it before the daemon starts (ip netns add levada-never-made), or correct `netns`\n",
        "no network namespace /proc/4194305/ns/net\n",
        "= help: start the container first, or correct `netns`\n",
        "no network namespace /levada/nothing\n",
        "= help: make it before the daemon starts, or correct `netns`\n",
    ] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["warnings"].as_array().unwrap().len(), 3, "{json}");
}

#[test]
fn a_wrong_command_line_says_so() {
    for args in [&["frobnicate"][..], &[], &["check"], &["check", "a", "b"], &["--frob"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_levada")).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("--help"), "{args:?}");
    }
}
