//! Every problem that a configuration can have, as golden texts: `tests/problems/NAME.toml` gives
//! `tests/problems/NAME.txt`.
//!
//! `LEVADA_REGENERATE=1 cargo test -p control --test problems` writes the texts anew; look at the
//! difference before committing it.

use std::path::Path;

/// A good configuration, which the cases about TOML values start from in spirit.
const GOOD: &str = r#"
[daemon]
name = "t"
[[switch]]
name = "s"
"#;

#[test]
fn every_problem_reads_as_written_down() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/problems");
    let write = std::env::var_os("LEVADA_REGENERATE").is_some();
    let mut cases = 0;
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "toml") {
            continue;
        }
        cases += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let checked = control::load(&text);
        assert!(!checked.problems.is_empty(), "{name} has no problem");
        let got: Vec<String> = checked.problems.iter().map(|p| p.render(name, &text)).collect();
        let got = got.join("\n");
        let golden = path.with_extension("txt");
        if write {
            std::fs::write(&golden, &got).unwrap();
        } else if std::fs::read_to_string(&golden).unwrap_or_default() != got {
            wrong.push(format!("{name}: now it reads\n{got}"));
        }
        for problem in &checked.problems {
            assert!(problem.span.is_some(), "{name}: no line for: {}", problem.message);
            let syntax = problem.message.starts_with("not TOML");
            assert!(syntax || !problem.remedy.is_empty(), "{name}: no remedy for: {}", problem.message);
        }
        let only_warnings = checked.problems.iter().all(|p| p.severity == control::problem::Severity::Warning);
        assert_eq!(checked.plan.is_some(), only_warnings, "{name}: a plan exactly where there is no error");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(cases > 20, "only {cases} cases found");
}

#[test]
fn any_prefix_of_a_configuration_is_answered() {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/two-hosts.toml")).unwrap();
    for end in (0..text.len()).filter(|&i| text.is_char_boundary(i)) {
        let checked = control::load(&text[..end]);
        assert!(checked.plan.is_some() || !checked.problems.is_empty());
        for problem in checked.problems {
            assert!(!problem.render("f", &text[..end]).is_empty());
        }
    }
}

#[test]
fn a_good_configuration_has_no_problem() {
    assert!(control::load(GOOD).problems.is_empty());
}

/// A switch with a bond over `eth0` in the namespace `one`, and two endpoints: an interface, and
/// the host on it.
fn beside_a_bond(interface: &str, host: &str) -> Vec<String> {
    let text = format!(
        "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s\"\n[switch.uplink.bond]\nmode = \"active-backup\"\n\
         [[switch.uplink.bond.member]]\nport = \"packet://eth0\"\nrate = \"1 Gbit/s\"\nnetns = \"one\"\n\
         [[switch.tenant]]\nname = \"t\"\nvlan = 7\n\
         [[switch.tenant.endpoint]]\nname = \"a\"\nport = \"packet://eth0\"\nnetns = \"{interface}\"\n\
         [[switch.tenant.endpoint]]\nname = \"b\"\nport = \"host://eth0\"\nnetns = \"{host}\"\n"
    );
    control::load(&text).problems.into_iter().map(|problem| problem.message).collect()
}

#[test]
fn a_host_in_another_namespace_is_not_on_the_interface_of_a_bond_with_the_same_name() {
    assert_eq!(beside_a_bond("two", "two"), Vec::<String>::new());
    let shared = "a bond shares no member with the host: an endpoint is host://eth0";
    assert_eq!(beside_a_bond("two", "one"), [shared]);
}

#[test]
fn a_namespace_is_the_same_by_its_name_and_by_its_path() {
    assert_eq!(beside_a_bond("/run/netns/two", "two"), Vec::<String>::new());
    let twice = "packet://eth0 is used twice".to_owned();
    assert!(beside_a_bond("/run/netns/one", "/run/netns/one").contains(&twice));
    assert!(beside_a_bond("two", "/run/netns/one")[0].contains("a bond shares no member"));
    // These are other files, or none that has a name.
    assert_eq!(beside_a_bond("/srv/netns/one", "/srv/netns/one"), Vec::<String>::new());
    assert_eq!(beside_a_bond("/run/netns/../one", "/run/netns/../one"), Vec::<String>::new());
}
