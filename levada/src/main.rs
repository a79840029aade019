//! Levada's one binary: the daemon and the commands beside it. See `cli` for what there is.

mod agents;
mod alarms;
mod announce;
mod api;
mod carriers;
mod changes;
mod check;
mod clean;
mod cli;
mod client;
mod cluster;
mod daemon;
mod descriptors;
mod directory;
mod door;
mod early;
mod edit;
mod ending;
mod ends;
mod front_ends;
mod handed;
mod handler;
mod handover;
mod http;
mod lines;
mod log;
mod maintenance;
mod membership;
mod metrics;
mod next_hops;
mod notify;
mod openflow;
mod os;
mod pace;
mod peers;
mod pki;
mod privileges;
mod processes;
mod recipe;
mod reconciler;
mod replace;
mod report;
mod reports;
mod rundir;
mod save;
mod secrets;
mod services;
mod shortcut;
mod show;
mod state;
mod tables;
mod top;
mod trace;
mod vcc;
mod vde_server;
mod whereabouts;
mod worker;

use clap::Parser as _;
use cli::{Cli, Command};
use control::action::Action;
use std::process::ExitCode;

/// Why a command ended without success.
#[derive(Debug)]
enum Failure {
    /// The command line is wrong: exit code 2, as shells expect.
    Usage(String),
    /// What was asked for could not be done: exit code 1.
    Failed(String),
    /// The reader of standard output went away (`levada show | head`): there is nothing more to do,
    /// and nothing went wrong.
    Unread,
}

impl Failure {
    /// What went wrong.
    fn text(&self) -> &str {
        match self {
            Failure::Usage(why) | Failure::Failed(why) => why,
            Failure::Unread => "nobody reads what is printed",
        }
    }
}

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

/// Says what went wrong, where anybody can be told: `eprintln` would end in a panic on a full disk.
fn complain(message: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "levada: {message}");
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
        Command::Cluster(arguments) => cluster::run(arguments),
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

/// Prints to standard output.
fn print(text: &str) -> Result<(), Failure> {
    use std::io::Write as _;
    let mut output = std::io::stdout();
    // What has no line's end yet is for a terminal, which is to show it now.
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::Unread,
        _ => Failure::Failed(format!("cannot write to standard output: {error}")),
    })
}
