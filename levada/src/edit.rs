//! `levada add`, `set`, `del` and `apply`: actions for a running daemon.

use crate::api::{ChangeReply, ChangeRequest, ConfigReply};
use crate::check;
use crate::cli::How;
use crate::client::Client;
use crate::{Failure, print};
use control::action::{Action, between};
use control::units::show_count;
use serde::Serialize;
use std::fmt::Write as _;
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
    let reply: ConfigReply = client.get("/v1/config")?;
    let running = control::read_document(&reply.config)
        .map_err(|problems| Failure::Failed(format!("the daemon's configuration cannot be read: {problems:?}")))?;
    if running.daemon.name != wanted.daemon.name {
        return Err(Failure::Failed(format!(
            "{} is the configuration of \"{}\", not of \"{name}\"; correct [daemon] name, or --name",
            file.display(),
            wanted.daemon.name
        )));
    }
    let actions = between(&running, &wanted);
    if how.revision.is_some_and(|revision| revision != reply.revision) {
        return Err(Failure::Failed(format!(
            "the configuration is at revision {}; read it again (levada show config), then repeat the command with that --revision",
            reply.revision
        )));
    }
    send(&client, actions, Some(reply.revision), how)
}

fn send(client: &Client, actions: Vec<Action>, revision: Option<u64>, how: &How) -> Result<(), Failure> {
    let request = ChangeRequest { actions, revision, dry_run: how.dry_run };
    let reply: ChangeReply = client.post("/v1/actions", &request)?;
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
