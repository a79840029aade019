//! Levada's one binary: the daemon and the commands beside it. See `command/cli.rs` for what there
//! is.

mod agents;
mod alarms;
mod api;
mod carriers;
mod changes;
mod check;
mod client;
mod cluster;
mod command;
mod daemon;
mod error;
mod guests;
mod handler;
mod handover;
mod http;
mod maintenance;
mod metrics;
mod next_hops;
mod notify;
mod openflow;
mod processes;
mod recipe;
mod reconciler;
mod report;
mod reports;
mod rundir;
mod secrets;
mod services;
mod shortcut;
mod system;
mod trace;
mod worker;

use clap::Parser as _;
use command::cli::{self, Cli, Command};
use command::{clean, edit, save, show, top};
use control::action::Action;
use error::{Failure, complain, print};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) | Err(Failure::Unread) => ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => {
            complain(&format!("{message}\nTry levada --help."));
            ExitCode::from(2)
        }
        Err(Failure::Failed(message)) => {
            complain(&message);
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run { config, takeover, log } => daemon::run(&config, takeover, log),
        Command::Openflow { config, log } => openflow::run(&config, log),
        Command::Check { file, json } => check::check(&file, json).and_then(|text| print(&text)),
        Command::Show(what) => show::show(&what),
        Command::Add(edit) => edit::change(vec![edit.add().map_err(Failure::Usage)?], &edit.how),
        Command::Load(load) => services::tell(&load),
        Command::Key(key) => reports::make_key(&key),
        Command::Report(reporter) => reports::send(&reporter),
        Command::Set(edit) => edit::change(vec![edit.set().map_err(Failure::Usage)?], &edit.how),
        Command::Del { what, how } => edit::change(vec![Action::Del { kind: what.kind, path: what.path }], &how),
        Command::Apply { file, how } => edit::apply(&file, &how),
        Command::Save { file, how } => save::save_to(&file, &how),
        Command::Top(arguments) => top::top(&arguments),
        Command::Trace(arguments) => trace::trace(&arguments),
        Command::Cluster(arguments) => command::cluster::run(arguments),
        Command::Schema { openflow } => {
            let schema = if openflow { control::schema::openflow() } else { control::schema::config() };
            print(&format!("{schema:#}\n"))
        }
        Command::Completions { shell } => print(&cli::completions(shell)),
        Command::Man { directory } => cli::man(&directory)
            .map_err(|error| Failure::Failed(format!("cannot write to {}: {error}", directory.display()))),
        Command::Clean { name } => clean::clean(name).and_then(|text| print(&text)),
    }
}
