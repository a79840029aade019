//! The configuration of a controller of OpenFlow switches: what is wrong with one is said with its
//! line, its key and a remedy.

use control::load_openflow;
use control::problem::render;

const GOOD: &str = r#"[openflow]
name = "edge"
[[openflow.service]]
name = "web"
address = "10.0.0.100:80"
[[openflow.service.backend]]
name = "a"
ip = "10.0.0.1"
mac = "02:00:00:00:00:01"
"#;

#[test]
fn the_example_is_good_and_a_file_is_known_by_its_table() {
    let example = include_str!("../../examples/openflow/edge.toml");
    for text in [GOOD, example] {
        assert!(control::is_openflow(text));
        let checked = load_openflow(text);
        assert!(checked.config.is_some() && checked.problems.is_empty(), "{:?}", checked.problems);
    }
    assert!(!control::is_openflow("[daemon]\nname = \"t\"\n"));
    assert!(!control::is_openflow("[[["));
}

#[test]
fn each_mistake_has_its_line_and_remedy() {
    // What is replaced by what, and what is said of it.
    for (from, to, said) in [
        ("name = \"edge\"\n", "", "add name = \"edge\""),
        ("name = \"edge\"", "name = \"edge\"\nmode = \"hahs\"", "did you mean \"hash\"?"),
        ("name = \"edge\"", "name = \"edge\"\nmoed = \"hash\"", "did you mean `mode`?"),
        ("name = \"edge\"", "name = \"edge\"\nmode = \"hash\"", "write policy = \"maglev\""),
        ("name = \"edge\"", "name = \"edge\"\nlisten = \"0.0.0.0:6653\"", "add [openflow.tls]"),
        ("name = \"edge\"", "name = \"edge\"\nlisten = \"unix:here\"", "unix:/run/openvswitch/edge.sock"),
        ("name = \"edge\"", "name = \"edge\"\nidle_timeout = \"1500 ms\"", "OpenFlow counts seconds"),
        ("name = \"edge\"", "name = \"edge\"\nprobe = \"10 ms\"", "1 s"),
        ("name = \"edge\"", "name = \"edge\"\nrole = \"boss\"", "it is one of \"equal\""),
        ("name = \"edge\"", "name = \"edge\"\n[openflow.tls]\nkey = \"/k\"", "add certificate = "),
        ("name = \"edge\"", "name = \"edge\"\nreports = \"10.0.0.1:80\"", "from 1024 on"),
        ("ip = \"10.0.0.1\"", "ip = \"10.0.0.1\"\nkey = \"/k\"", "add `reports = \"ADDRESS:PORT\"` to [openflow]"),
        ("10.0.0.100:80", "[fd00::1]:80", "the IPv6 address of backend \"a\" is not known"),
        ("10.0.0.1\"", "fd00::1\"", "the IPv4 address of backend \"a\" is not known"),
        ("\"10.0.0.1\"", "[\"10.0.0.1\", \"10.0.0.3\"]", "one address of each IP version"),
        ("ip = \"10.0.0.1\"\n", "", "add ip = "),
        ("ip = \"10.0.0.1\"", "ip = []", "write ip = "),
        ("\"10.0.0.100:80\"", "[]", "write address = "),
        ("ip = \"10.0.0.1\"", "ip = \"10.0.0.100\"", "write the machine's own address"),
        ("mac = \"02:00:00:00:00:01\"\n", "", "add mac = "),
        ("ip = \"10.0.0.1\"", "ip = \"10.0.0.1\"\nendpoint = \"a\"", "the keys here are"),
        ("ip = \"10.0.0.1\"", "ip = \"10.0.0.1\"\nweight = 0", "add [[openflow.service.backend]] with a weight"),
        ("name = \"web\"", "name = \"web\"\nslow_start = \"1 s\"", "the keys here are"),
        ("name = \"web\"", "name = \"web\"\nwhen_down = \"redirect\"", "it is one of \"reset\", \"drop\""),
        ("name = \"web\"", "name = \"web\"\non_failure = \"close\"", "it is one of \"keep\", \"reset\""),
        ("name = \"web\"", "name = \"web\"\naffinity = \"source\"", "it is one of \"connection\", \"client\""),
        ("name = \"web\"", "name = \"web\"\naffinity_time = \"1 ms\"", "affinity_time"),
        ("name = \"web\"", "name = \"web\"\npanic = \"101 %\"", "panic"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        let checked = load_openflow(&text);
        let shown = render(&checked.problems, "f.toml", &text);
        assert!(shown.contains(said) && shown.contains("--> f.toml:"), "{to}: {shown}");
        let is_warning = to.contains("weight = 0") || to.contains("key = \"/k\"") && to.contains("ip = ");
        assert_eq!(checked.config.is_some(), is_warning, "{to}: {shown}");
    }
}

#[test]
fn what_a_mode_cannot_do_is_refused_and_what_says_nothing_is_warned_of() {
    let with = |top: &str, keys: &str| {
        GOOD.replace("name = \"edge\"", &format!("name = \"edge\"\n{top}"))
            .replace("name = \"web\"", &format!("name = \"web\"\npolicy = \"maglev\"\n{keys}"))
    };
    let (stays, ends) = ("affinity = \"client\"\naffinity_time = \"60 s\"", "on_failure = \"reset\"");
    let rest = "when_down = \"drop\"\npanic = \"0 %\"";
    // Whether it is applied, and what is said of it.
    for (text, is_applied, said) in [
        (with("", stays), true, None),
        (with("mode = \"hash\"\nprobe = \"1 s\"", &format!("{ends}\n{rest}")), true, None),
        (with("mode = \"hash\"", stays), false, Some("or mode = \"reactive\" at the top")),
        (with("", ends), true, Some("write `probe = \"1 s\"` in [openflow] too")),
        (
            with("probe = \"1 s\"", ends).replace("\"10.0.0.100", "\"udp://10.0.0.100"),
            true,
            Some("leave `on_failure` out"),
        ),
    ] {
        let checked = load_openflow(&text);
        let shown = render(&checked.problems, "f.toml", &text);
        assert_eq!(checked.config.is_some(), is_applied, "{text}: {shown}");
        assert_eq!(checked.problems.len(), usize::from(said.is_some()), "{text}: {shown}");
        assert!(said.is_none_or(|said| shown.contains(said) && shown.contains("--> f.toml:")), "{text}: {shown}");
    }
    let service = load_openflow(&with("", &format!("{stays}\n{rest}"))).config.unwrap().services.remove(0);
    assert_eq!((service.affinity, service.affinity_ns, service.panic_ppm), (true, 60_000_000_000, 0));
    assert_eq!(service.when_down, datapath::service::WhenDown::Drop);
}

#[test]
fn names_and_addresses_are_there_once() {
    let twice = |second: &str| {
        format!(
            "{GOOD}[[openflow.service]]\n{second}\n[[openflow.service.backend]]\nname = \"a\"\nip = \"10.0.0.1\"\nmac = \"02:00:00:00:00:01\"\n"
        )
    };
    for (second, said) in [
        ("name = \"web\"\naddress = \"10.0.0.101:80\"", "web"),
        ("name = \"b\"\naddress = \"10.0.0.100:80\"", "10.0.0.100:80 is service \"web\"'s"),
        ("name = \"b\"\naddress = \"10.0.0.100:81\"\nmac = \"02:00:00:00:00:77\"", "another MAC address"),
    ] {
        let text = twice(second);
        let checked = load_openflow(&text);
        let shown = render(&checked.problems, "f.toml", &text);
        assert!(checked.config.is_none() && shown.contains(said), "{shown}");
    }
    assert!(load_openflow(&twice("name = \"b\"\naddress = \"udp://10.0.0.100:80\"")).config.is_some());
}

#[test]
fn a_key_is_one_backends() {
    let text = GOOD
        .replace("name = \"edge\"", "name = \"edge\"\nreports = \"10.0.0.1:7371\"")
        .replace("name = \"a\"", "name = \"a\"\nkey = \"/k\"");
    let checked = load_openflow(&text);
    assert!(checked.problems.is_empty(), "{:?}", checked.problems);
    let config = checked.config.unwrap();
    assert_eq!(config.reports, Some("10.0.0.1:7371".parse().unwrap()));
    assert_eq!(control::report::keys_of_openflow(&config), [("web/a".to_owned(), "/k".to_owned())]);
    let second =
        "[[openflow.service.backend]]\nname = \"b\"\nip = \"10.0.0.2\"\nmac = \"02:00:00:00:00:02\"\nkey = \"/k\"\n";
    let text = text + second;
    let checked = load_openflow(&text);
    let shown = render(&checked.problems, "f.toml", &text);
    assert!(checked.config.is_none() && shown.contains("/k is the key of backend \"web/a\" too"), "{shown}");
    assert!(shown.contains("levada key web/b FILE"), "{shown}");
}

#[test]
fn a_service_has_addresses_of_both_versions() {
    let text = GOOD
        .replace("\"10.0.0.100:80\"", "[\"10.0.0.100:80\", \"[fd00::100]:80\"]")
        .replace("\"10.0.0.1\"", "[\"10.0.0.1\", \"fd00::1\"]");
    let checked = load_openflow(&text);
    assert!(checked.problems.is_empty(), "{:?}", checked.problems);
    assert_eq!(checked.config.unwrap().services[0].backends[0].ips.len(), 2);
}
