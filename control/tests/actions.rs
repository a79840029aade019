//! Every example, and every file of the fuzz corpus that is a good configuration: as a list of
//! actions it comes out as it was.

use control::action::{apply, between};
use control::config::Config;
use std::path::Path;

/// The configuration with what order means nothing in sorted.
fn sorted(mut config: Config) -> Config {
    config.links.sort_by(|a, b| a.name.cmp(&b.name));
    config.switches.sort_by(|a, b| a.name.cmp(&b.name));
    for switch in &mut config.switches {
        switch.tenants.sort_by(|a, b| a.name.cmp(&b.name));
        for tenant in &mut switch.tenants {
            tenant.endpoints.sort_by(|a, b| a.name.cmp(&b.name));
        }
    }
    if let Some(cluster) = &mut config.cluster {
        cluster.members.sort_by(|a, b| a.name.cmp(&b.name));
    }
    config
}

fn good_configurations() -> Vec<Config> {
    let mut good = Vec::new();
    for directory in ["../examples", "../fuzz/corpus/config"] {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
        for entry in std::fs::read_dir(directory).unwrap() {
            let Ok(text) = std::fs::read_to_string(entry.unwrap().path()) else { continue };
            let checked = control::load(&text);
            good.extend(checked.plan.is_some().then_some(checked.config));
        }
    }
    assert!(good.len() > 5, "only {} configurations", good.len());
    good
}

#[test]
fn a_file_is_the_list_of_actions_that_makes_it() {
    for config in good_configurations() {
        let empty = Config {
            daemon: control::config::Daemon { name: config.daemon.name.clone(), ..Default::default() },
            ..Default::default()
        };
        let made = apply(&empty, &between(&empty, &config)).unwrap().config;
        assert_eq!(made, config);
        assert_eq!(control::read_document(&control::write::config(&config)).unwrap(), config);
    }
}

#[test]
fn any_configuration_becomes_any_other() {
    let all = good_configurations();
    for old in &all {
        for new in &all {
            let actions = between(old, new);
            let json = serde_json::to_string(&actions).unwrap();
            let read: Vec<control::action::Action> = serde_json::from_str(&json).unwrap();
            assert_eq!(read, actions);
            let mut made = apply(old, &actions).unwrap().config;
            made.daemon.name.clone_from(&new.daemon.name);
            assert_eq!(sorted(made), sorted(new.clone()));
            assert_eq!(between(new, new), []);
        }
    }
}
