//! The command line.

use lexopt::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

/// What `levada --help` prints.
pub const HELP: &str = "\
levada - a software switch that gives each tenant what it was promised, in both directions

Usage: levada COMMAND

Commands:
  run -c FILE                 run the daemon in the foreground until Ctrl-C or SIGTERM; \"levada: NAME ready\"
                              on standard error says that all ports are up
  check FILE [--json]         read a configuration and say what is wrong with it, or what it promises
  show [--name NAME] [--json] what a running daemon has promised, carried and dropped
  clean [--name NAME]         remove what a daemon left that was killed, and persistent devices

Options:
  -c, --config FILE           the configuration
  -n, --name NAME             the instance ([daemon] name); may be left out where there is only one
      --json                  print JSON (version 1: keys may be added, none changes its meaning)
  -h, --help                  print this
  -V, --version               print the version

Environment:
  LEVADA_RUN_DIR              where run directories are, instead of /run/levada

Exit status: 0 done, 1 failed, 2 wrong command line.
";

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Print the help.
    Help,
    /// Print the version.
    Version,
    /// Run the daemon.
    Run {
        /// The configuration.
        file: PathBuf,
    },
    /// Print the report of a running daemon.
    Show {
        /// The instance.
        name: Option<String>,
        /// Print JSON.
        json: bool,
    },
    /// Remove what a killed daemon left.
    Clean {
        /// The instance.
        name: Option<String>,
    },
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
    config: Option<PathBuf>,
    name: Option<String>,
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
            Short('c') | Long("config") => given.config = Some(parser.value().map_err(|e| e.to_string())?.into()),
            Short('n') | Long("name") => given.name = Some(instance(parser.value().map_err(|e| e.to_string())?)?),
            Long("json") => given.json = true,
            Value(word) if command.is_none() => {
                command = Some(word.into_string().map_err(|w| format!("unknown command {w:?}"))?);
            }
            Value(file) if given.file.is_none() => given.file = Some(file.into()),
            other => return Err(other.unexpected().to_string()),
        }
    }
    given.command(&command.ok_or("no command given")?)
}

/// A name of an instance is part of a path: it may not be any text.
fn instance(name: OsString) -> Result<String, String> {
    let name = name.into_string().map_err(|name| format!("{name:?} is no name of an instance"))?;
    control::names::name(&name).map_err(|wrong| format!("{}; {}", wrong.message, wrong.remedy))
}

impl Given {
    fn command(mut self, command: &str) -> Result<Command, String> {
        let made = match command {
            "run" => Command::Run { file: self.config.take().ok_or("run needs -c FILE")? },
            "check" => {
                Command::Check { file: self.file.take().ok_or("check needs a FILE")?, json: take(&mut self.json) }
            }
            "show" => Command::Show { name: self.name.take(), json: take(&mut self.json) },
            "clean" => Command::Clean { name: self.name.take() },
            _ => return Err(format!("unknown command \"{command}\"")),
        };
        let left = [
            (self.file.is_some(), "a FILE"),
            (self.config.is_some(), "--config"),
            (self.name.is_some(), "--name"),
            (self.json, "--json"),
        ];
        match left.iter().find(|(given, _)| *given) {
            Some((_, what)) => Err(format!("{command} does not take {what}")),
            None => Ok(made),
        }
    }
}

fn take(flag: &mut bool) -> bool {
    std::mem::take(flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Command, String> {
        parse(lexopt::Parser::from_args(words))
    }

    #[test]
    fn commands_take_their_options_and_no_others() {
        assert_eq!(parsed(&["run", "-c", "f"]), Ok(Command::Run { file: "f".into() }));
        assert_eq!(parsed(&["show", "--json", "-nx"]), Ok(Command::Show { name: Some("x".into()), json: true }));
        assert_eq!(parsed(&["clean"]), Ok(Command::Clean { name: None }));
        assert_eq!(parsed(&["check", "f", "--help"]), Ok(Command::Help));
        for wrong in [
            &["run"][..],
            &["run", "f"],
            &["run", "-c", "f", "--json"],
            &["check"],
            &["check", "f", "g"],
            &["show", "f"],
            &["show", "--name", "../x"],
            &["clean", "--json"],
            &["shwo"],
            &[],
        ] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }
}
