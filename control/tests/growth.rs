//! That the cost of changes and of mistakes grows with their number, not with its square.

use control::action::{Action, Kind, apply, between};
use control::config::Config;
use control::problem::{MOST_SHOWN, render};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// Ten times as many may take so many times as long: some 10 where each costs the same, 100 where
/// each is compared with all.
const GROWTH: u32 = 40;

/// What this thread has had of a processor: others' time is not in it.
fn processor() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Compares the time of `work` for `few` things, the least of three runs, with its time for ten
/// times as many. Other programs may have used the caches, so the second has up to three runs, of
/// which one must be short enough.
fn grows_with_the_number(what: &str, few: usize, work: impl Fn(usize)) {
    let time = |count: usize| {
        let start = processor();
        work(count);
        processor() - start
    };
    let few_took = (0..3).map(|_| time(few)).min().unwrap_or_default();
    let mut many_took = Vec::new();
    let is_fit = (0..3).any(|_| {
        many_took.push(time(10 * few));
        many_took.last().is_some_and(|took| *took < few_took * GROWTH)
    });
    assert!(is_fit, "{what}: {few} take {few_took:?}, ten times as many {many_took:?}");
}

fn host() -> Config {
    let text = "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s\"\n[[switch.tenant]]\nname = \"t\"\n";
    let checked = control::load(text);
    assert!(checked.problems.is_empty());
    checked.config
}

fn keys(keys: Value) -> control::write::Keys {
    serde_json::from_value(keys).unwrap()
}

fn added(count: usize) -> Vec<Action> {
    let add = |n: usize| {
        let keys = keys(json!({
            "port": format!("tap://t{n}"),
            "mac": format!("02:00:00:{:02x}:{:02x}:{:02x}", n >> 16, n >> 8 & 255, n & 255),
        }));
        Action::Add { kind: Kind::Endpoint, path: format!("s/t/e{n}"), keys }
    };
    (0..count).map(add).collect()
}

#[test]
fn endpoints_are_added_set_compared_compiled_and_deleted() {
    let work = |count: usize| {
        let before = host();
        let added = apply(&before, &added(count)).unwrap().config;
        let set = |n| {
            let (kind, path) = (Kind::Endpoint, format!("s/t/e{n}"));
            Action::Set { kind, path, keys: keys(json!({"limit": "5 Mbit/s"})) }
        };
        let set = apply(&added, &(0..count).map(set).collect::<Vec<_>>()).unwrap().config;
        assert_eq!(between(&added, &set).len(), count);
        let plan = control::compile(&added, None);
        let next = control::compile(&set, Some(&plan));
        let program = |plan: &control::plan::Plan| plan.switches[0].program.clone();
        assert_eq!(program(&next).changes_from(&program(&plan)).unwrap().len(), count);
        let delete = |n| Action::Del { kind: Kind::Endpoint, path: format!("s/t/e{n}") };
        let deleted = apply(&set, &(0..count).map(delete).collect::<Vec<_>>()).unwrap().config;
        assert_eq!(deleted, before);
    };
    grows_with_the_number("changes of endpoints", 1000, work);
}

#[test]
fn tenants_switches_and_links_are_added_and_deleted() {
    let work = |count: usize| {
        let add = |n: usize| {
            let thing = |kind, path: String, one| Action::Add { kind, path, keys: keys(one) };
            [
                thing(Kind::Link, format!("l{n}"), json!({"rate": "1 Gbit/s"})),
                thing(Kind::Switch, format!("s{n}"), json!({})),
                thing(Kind::Uplink, format!("s{n}"), json!({"port": format!("link://l{n}/a"), "rate": "1 Gbit/s"})),
                thing(Kind::Tenant, format!("s/t{n}"), json!({})),
                thing(Kind::Endpoint, format!("s/t{n}/e"), json!({"port": format!("link://l{n}/b")})),
            ]
        };
        let before = host();
        let more = apply(&before, &(0..count).flat_map(add).collect::<Vec<_>>()).unwrap().config;
        let plan = control::compile(&more, None);
        assert_eq!(control::compile(&more, Some(&plan)), plan);
        let back = between(&more, &before);
        assert_eq!(apply(&more, &back).unwrap().config, before);
        assert_eq!(apply(&before, &between(&before, &more)).unwrap().config.links.len(), count);
    };
    grows_with_the_number("changes of switches", 300, work);
}

/// So many endpoints, and ten times as many backends, which each endpoint is some of.
fn served(count: usize) -> Config {
    let mut text = String::from("[daemon]\nname = \"t\"\n[[switch]]\nname = \"s\"\n[[switch.tenant]]\nname = \"t\"\n");
    for n in 0..count {
        let (high, low) = (n >> 8, n & 255);
        let _ = write!(
            text,
            "[[switch.tenant.endpoint]]\nname = \"e{n}\"\nport = \"tap://t{n}\"\n\
             mac = \"02:00:00:00:{high:02x}:{low:02x}\"\nip = \"10.1.{high}.{low}\"\n"
        );
    }
    for s in 0..count / 20 {
        let _ = write!(text, "[[switch.tenant.service]]\nname = \"s{s}\"\naddress = \"10.2.0.1:{}\"\n", s + 1);
        for b in 0..200 {
            let _ = write!(text, "[[switch.tenant.service.backend]]\nname = \"e{}\"\n", (200 * s + b) % count);
        }
    }
    let checked = control::load(&text);
    assert!(checked.plan.is_some(), "{}", render(&checked.problems, "f.toml", &text));
    checked.config
}

#[test]
fn backends_are_checked_and_compiled() {
    let configs = [500, 5000].map(|count| (count, served(count)));
    grows_with_the_number("backends", 500, |count| {
        let (_, before) = configs.iter().find(|(of, _)| *of == count).unwrap();
        let set = Action::Set { kind: Kind::Endpoint, path: "s/t/e0".into(), keys: keys(json!({"weight": 2})) };
        let after = apply(before, &[set]).unwrap().config;
        assert_eq!(control::compile(&after, None).switches[0].program.services.values().count(), count / 20);
    });
}

/// A file in which everything is wrong, each in several ways.
fn wrong(count: usize) -> String {
    let mut text = String::from("[daemon]\nname = \"t\"\n[[switch]]\nname = \"s\"\n[[switch.tenant]]\nname = \"t\"\n");
    for n in 0..count {
        let _ = write!(
            text,
            "[[switch.tenant.endpoint]]\nname = \"e\"\nport = \"link://x{n}/a\"\nmac = \"02:00:00:00:00:01\"\n\
             limit = \"fast\"\ngarantee = 1\n[[link]]\nname = \"l{n}\"\nrate = 3\n"
        );
    }
    text
}

#[test]
fn mistakes_are_found_and_the_first_of_them_shown() {
    let text = wrong(50_000);
    let checked = control::load(&text);
    let shown = render(&checked.problems, "f.toml", &text);
    assert!(checked.problems.len() > 200_000);
    // One is a warning: these queues add up to more than the memory.
    assert_eq!(shown.matches("error: ").count() + shown.matches("warning: ").count(), MOST_SHOWN);
    let more = checked.problems.len() - MOST_SHOWN;
    assert!(shown.ends_with(&format!("\n{more} more are not shown: correct these first\n")), "{shown}");
    let first = checked.problems.iter().take(3).map(|problem| problem.render("f.toml", &text));
    assert!(shown.starts_with(&first.collect::<Vec<_>>().join("\n")), "as one by one");
    grows_with_the_number("mistakes", 1000, |count| {
        let text = wrong(count);
        drop(render(&control::load(&text).problems, "f.toml", &text));
    });
    grows_with_the_number("mistakes of actions", 1000, |count| {
        let actions: Vec<_> = added(count)
            .into_iter()
            .map(|action| match action {
                Action::Add { kind, path, .. } => {
                    Action::Add { kind, path, keys: keys(json!({"port": "link://nowhere/a"})) }
                }
                other => other,
            })
            .collect();
        assert!(apply(&host(), &actions).unwrap_err().len() > count);
    });
}

#[test]
fn a_file_is_saved() {
    let work = |count: usize| {
        let before = host();
        let mut after = apply(&before, &added(count)).unwrap().config;
        let text = control::save::write_new(&after);
        after.switches[0].tenants[0].endpoints.retain(|endpoint| !endpoint.name.ends_with('7'));
        let saved = control::save::save(&text, &control::load(&text).config, &after);
        assert_eq!((saved.left.len(), saved.actions.len()), (0, count / 10));
    };
    grows_with_the_number("endpoints in a file that is saved", 1000, work);
}
