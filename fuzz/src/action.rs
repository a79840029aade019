//! Any bytes as a list of actions: no panic, a refusal leaves no trace, and what is done can be
//! undone by what differs.

use control::action::{Action, apply, between};
use control::save::save;

/// What the actions are done to.
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

/// `data` is the body of a request.
pub fn run(data: &[u8]) {
    let Ok(actions) = serde_json::from_slice::<Vec<Action>>(data) else { return };
    let written = serde_json::to_vec(&actions).expect("actions can be written");
    assert_eq!(serde_json::from_slice::<Vec<Action>>(&written).ok().as_ref(), Some(&actions));
    let before = control::load(HOST).config;
    match apply(&before, &actions) {
        Ok(changed) => {
            let after = changed.config;
            let document = control::write::config(&after);
            assert_eq!(control::read_document(&document).ok().as_ref(), Some(&after), "what is written reads back");
            let saved = save(HOST, &before, &after);
            assert!(saved.left.is_empty(), "what differs can be written into a file: {:?}", saved.left);
            let old = control::compile(&before, None);
            let new = control::compile(&after, Some(&old));
            assert!(new.switches.values().all(|switch| !switch.name.is_empty()));
            let back = between(&after, &before);
            let undone = apply(&after, &back).expect("what was good before is good again").config;
            assert!(between(&undone, &before).is_empty());
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            for problem in problems {
                assert!(!problem.message.is_empty());
            }
        }
    }
}
