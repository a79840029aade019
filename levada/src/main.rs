//! Levada's one binary: the daemon and the commands beside it. See `cli` for what there is.

mod check;
mod clean;
mod cli;
mod control_socket;
mod daemon;
mod log;
mod os;
mod report;
mod rundir;
mod show;
mod upkeep;
mod worker;

use cli::Command;
use std::process::ExitCode;

/// Why a command ended without success.
#[derive(Debug)]
enum Failure {
    /// The command line is wrong: exit code 2, as shells expect.
    Usage(String),
    /// What was asked for could not be done: exit code 1.
    Failed(String),
}

fn main() -> ExitCode {
    let outcome = cli::parse(lexopt::Parser::from_env()).map_err(Failure::Usage).and_then(run);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => {
            eprintln!("levada: {message}\nTry levada --help.");
            ExitCode::from(2)
        }
        Err(Failure::Failed(message)) => {
            eprintln!("levada: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Help => print(cli::HELP),
        Command::Version => print(&format!("levada {}\n", env!("CARGO_PKG_VERSION"))),
        Command::Run { file } => daemon::run(&file),
        Command::Show { name, json } => show::show(name, json).and_then(|text| print(&text)),
        Command::Clean { name } => clean::clean(name).and_then(|text| print(&text)),
        Command::Check { file, json } => check::check(&file, json).and_then(|text| print(&text)),
    }
}

/// Prints to standard output; a reader that went away (`levada show | head`) is no failure.
fn print(text: &str) -> Result<(), Failure> {
    use std::io::Write as _;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}
