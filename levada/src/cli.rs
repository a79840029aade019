//! The command line.

use lexopt::prelude::*;
use std::path::PathBuf;

/// What `levada --help` prints.
pub const HELP: &str = "\
levada - a software switch that gives each tenant what it was promised, in both directions

Usage: levada COMMAND

Commands:
  check FILE [--json]         read a configuration and say what is wrong with it, or what it promises

Options:
  -h, --help                  print this
  -V, --version               print the version

Exit status: 0 done, 1 failed, 2 wrong command line.
";

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Print the help.
    Help,
    /// Print the version.
    Version,
    /// Check a configuration.
    Check {
        /// The configuration.
        file: PathBuf,
        /// Print JSON.
        json: bool,
    },
}

/// What was given on the command line, whichever command it is for.
#[derive(Default)]
struct Given {
    file: Option<PathBuf>,
    json: bool,
}

/// Reads the command line.
pub fn parse(mut parser: lexopt::Parser) -> Result<Command, String> {
    let mut command = None;
    let mut given = Given::default();
    while let Some(arg) = parser.next().map_err(|e| e.to_string())? {
        match arg {
            Short('h') | Long("help") => return Ok(Command::Help),
            Short('V') | Long("version") => return Ok(Command::Version),
            Long("json") => given.json = true,
            Value(word) if command.is_none() => {
                command = Some(word.into_string().map_err(|w| format!("unknown command {w:?}"))?);
            }
            Value(file) if given.file.is_none() => given.file = Some(file.into()),
            other => return Err(other.unexpected().to_string()),
        }
    }
    let command = command.ok_or("no command given")?;
    given.command(&command)
}

impl Given {
    fn command(self, command: &str) -> Result<Command, String> {
        match command {
            "check" => {
                let file = self.file.ok_or("check needs a FILE")?;
                Ok(Command::Check { file, json: self.json })
            }
            _ => Err(format!("unknown command \"{command}\"")),
        }
    }
}
