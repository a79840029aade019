//! `levada add`, `set`, `del` and `apply`: actions for a running daemon.

use crate::api::{ChangeReply, ChangeRequest};
use crate::check;
use crate::client::Client;
use crate::command::cli::How;
use crate::error::{Failure, print};
use crate::system::descriptors;
use control::action::{Action, between};
use control::units::show_count;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

/// What `--json` prints.
#[derive(Serialize)]
struct Outcome<'a> {
    /// What was done, or would be.
    actions: &'a [Action],
    #[serde(flatten)]
    reply: &'a ChangeReply,
}

/// Does `actions`.
pub fn change(actions: Vec<Action>, how: &How) -> Result<(), Failure> {
    let client = Client::new(how.instance.name.as_deref())?;
    send(&client, actions, how.revision, how)
}

/// Makes the daemon what `file` says.
pub fn apply(file: &Path, how: &How) -> Result<(), Failure> {
    let (checked, warnings) = check::load(file)?;
    check::complain(&warnings);
    let wanted = checked.config;
    let name = how.instance.name.as_ref().unwrap_or(&wanted.daemon.name);
    let client = Client::new(Some(name))?;
    let (running, revision) = client.running()?;
    if running.daemon.name != wanted.daemon.name {
        return Err(Failure::Failed(format!(
            "{} is the configuration of \"{}\", not of \"{name}\"; correct [daemon] name, or --name",
            file.display(),
            wanted.daemon.name
        )));
    }
    let actions = between(&running, &wanted);
    refuse_revision(how, revision)?;
    send(&client, actions, Some(revision), how)
}

/// Fails where `--revision` names another one than that of the configuration that runs.
pub fn refuse_revision(how: &How, running: u64) -> Result<(), Failure> {
    if how.revision.is_none_or(|revision| revision == running) {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "the configuration is at revision {running}; read it again (levada show config), then repeat the command with that --revision"
    )))
}

fn send(client: &Client, actions: Vec<Action>, revision: Option<u64>, how: &How) -> Result<(), Failure> {
    let (namespaces, opened) = if how.dry_run { Default::default() } else { namespaces(&actions)? };
    let request = ChangeRequest { actions, revision, dry_run: how.dry_run, namespaces };
    let reply: ChangeReply = client.post_with("/v1/actions", &request, opened)?;
    let actions = &request.actions;
    if how.json {
        let text = serde_json::to_string_pretty(&Outcome { actions, reply: &reply });
        return print(&(text.map_err(|error| Failure::Failed(error.to_string()))? + "\n"));
    }
    let mut text = String::new();
    for action in actions {
        let _ = writeln!(text, "{action}");
    }
    for warning in &reply.warnings {
        let _ = writeln!(text, "{}", warning.text("warning").trim_start());
    }
    let count = match actions.len() {
        0 => "nothing differs".to_owned(),
        n => show_count(n, "change", "changes"),
    };
    let done = match (actions.is_empty(), how.dry_run) {
        (true, _) => "",
        (false, true) => " would be made",
        (false, false) => " made",
    };
    let _ = writeln!(text, "{count}{done}; revision {}", reply.revision);
    print(&text)
}

/// The network namespaces that actions name by a path, and descriptors of them: the daemon may not
/// look at the process that a namespace is named by. One that cannot be opened here is left to it.
fn namespaces(actions: &[Action]) -> Result<(Vec<String>, Vec<OwnedFd>), Failure> {
    let mut all = BTreeMap::new();
    for action in actions {
        if let Action::Add { keys, .. } | Action::Set { keys, .. } = action {
            keys.iter().for_each(|(key, value)| find_namespaces(key, value, &mut all));
        }
    }
    if all.len() > descriptors::MOST {
        return Err(Failure::Failed(format!(
            "a change names at most {} namespaces by a path, but this one has {}; make several changes, or name them (ip netns attach)",
            descriptors::MOST,
            all.len()
        )));
    }
    Ok(all.into_iter().unzip())
}

fn find_namespaces(key: &str, value: &Value, into: &mut BTreeMap<String, OwnedFd>) {
    match value {
        Value::String(path) if key == "netns" && path.starts_with('/') => {
            into.extend(File::open(path).ok().map(|file| (path.clone(), file.into())));
        }
        Value::Array(values) => values.iter().for_each(|value| find_namespaces(key, value, into)),
        Value::Object(map) => map.iter().for_each(|(key, value)| find_namespaces(key, value, into)),
        _ => {}
    }
}
