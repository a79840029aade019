//! How a command ends: why it has failed, and where that and what it prints is written.

use std::io::{self, Write as _};

/// Why a command ended without success.
#[derive(Debug)]
pub enum Failure {
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
    pub fn text(&self) -> &str {
        match self {
            Failure::Usage(why) | Failure::Failed(why) => why,
            Failure::Unread => "nobody reads what is printed",
        }
    }
}

/// Says what went wrong, where anybody can be told: `eprintln` would end in a panic on a full disk.
pub fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "levada: {message}");
}

/// Prints to standard output.
///
/// # Errors
/// Nobody reads it, or it cannot be written.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout();
    // What has no line's end yet is for a terminal, which is to show it now.
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::Unread,
        _ => Failure::Failed(format!("cannot write to standard output: {error}")),
    })
}
