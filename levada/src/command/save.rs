//! `levada save`: the configuration that runs, written into a file.

use crate::check;
use crate::client::Client;
use crate::command::cli::How;
use crate::command::edit::refuse_revision;
use crate::error::{Failure, print};
use crate::system::replace::{Modes, replace};
use control::action::Action;
use control::config::Config;
use control::save::{Saved, save, write_new};
use control::units::show_count;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// What `--json` prints.
#[derive(Serialize)]
struct Outcome<'a> {
    /// What the file did not say: the actions from what it said to what runs.
    actions: &'a [Action],
    /// The revision of the configuration that runs.
    revision: u64,
    /// Whether the file was written.
    written: bool,
}

/// Makes `file` say what the daemon runs.
pub fn save_to(file: &Path, how: &How) -> Result<(), Failure> {
    let before = match fs::read_to_string(file) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Failure::Failed(format!("cannot read {}: {error}", file.display()))),
    };
    let said = before.as_ref().map(|_| said(file)).transpose()?;
    let name = how.instance.name.as_ref().or(said.as_ref().map(|said| &said.daemon.name));
    let client = Client::new(name.map(String::as_str))?;
    let (running, revision) = client.running()?;
    refuse_revision(how, revision)?;
    let saved = match (&before, &said) {
        (_, Some(said)) if said.daemon.name != running.daemon.name => {
            return Err(Failure::Failed(format!(
                "{} is the configuration of \"{}\", not of \"{}\"; save to another file, or correct [daemon] name",
                file.display(),
                said.daemon.name,
                running.daemon.name
            )));
        }
        (Some(text), Some(said)) => save(text, said, &running),
        _ => Saved {
            text: write_new(&running),
            actions: control::action::between(&Config::default(), &running),
            left: Vec::new(),
        },
    };
    if !saved.left.is_empty() {
        let mut what = String::new();
        for action in &saved.left {
            let _ = write!(what, "\n  {action}");
        }
        return Err(Failure::Failed(format!(
            "{} is written in a way in which this cannot be changed; nothing was written. Change it by hand, or save to a new file:{what}",
            file.display()
        )));
    }
    let is_due = before.as_deref() != Some(&saved.text);
    let written = is_due && !how.dry_run;
    if written {
        replace(file, before.as_deref(), &saved.text, Modes { made: 0o666, kept: 0o7777 })
            .map_err(|error| Failure::Failed(format!("cannot write {}: {error}", file.display())))?;
    }
    check::complain(&of_processes(&running));
    tell(&Outcome { actions: &saved.actions, revision, written }, file, how)
}

/// What the file says; its warnings are not of interest here.
fn said(file: &Path) -> Result<Config, Failure> {
    check::load(file).map(|(checked, _)| checked.config).map_err(|failure| match failure {
        Failure::Failed(why) => Failure::Failed(format!("{why}\n\nCure it, or save to a new file.")),
        other => other,
    })
}

/// Warns of namespaces that are named by a process: the file outlives it.
fn of_processes(config: &Config) -> String {
    let mut text = String::new();
    for switch in &config.switches {
        for tenant in &switch.tenants {
            for endpoint in &tenant.endpoints {
                let Some(netns) = endpoint.device.netns.as_ref().filter(|netns| netns.starts_with("/proc/")) else {
                    continue;
                };
                let path = format!("{}/{}/{}", switch.name, tenant.name, endpoint.name);
                let _ = writeln!(
                    text,
                    "warning: endpoint {path}: netns \"{netns}\" is that of a process, and means nothing after its end; name the namespace (ip netns attach NAME PID)"
                );
            }
        }
    }
    text
}

fn tell(outcome: &Outcome<'_>, file: &Path, how: &How) -> Result<(), Failure> {
    if how.json {
        let text = serde_json::to_string_pretty(outcome);
        return print(&(text.map_err(|error| Failure::Failed(error.to_string()))? + "\n"));
    }
    let mut text = String::new();
    for action in outcome.actions {
        let _ = writeln!(text, "{action}");
    }
    let count = show_count(outcome.actions.len(), "change", "changes");
    let file = file.display();
    let done = match (outcome.actions.is_empty(), how.dry_run) {
        (true, _) => format!("nothing differs: {file} describes what runs"),
        (false, true) => format!("{count} would be written to {file}"),
        (false, false) => format!("{count} written to {file}"),
    };
    let _ = writeln!(text, "{done}; revision {}", outcome.revision);
    print(&text)
}
