//! Log lines: `levada: NAME: LEVEL: text`, one a thing that happened, to standard error.
//!
//! Few by design: who calls this has made sure that nothing can call it a thousand times a second.

use std::io::Write as _;

/// How much a line matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Something works less well than it should.
    Warning,
    /// Something that was asked for, or came right again.
    Info,
}

/// Writes lines of one instance.
#[derive(Clone, Debug)]
pub struct Log {
    name: String,
}

impl Log {
    /// Lines of the instance `name`.
    #[must_use]
    pub fn new(name: &str) -> Log {
        Log { name: name.to_owned() }
    }

    /// Writes a line. Where nobody reads it, it is lost.
    pub fn line(&self, level: Level, text: &str) {
        let level = match level {
            Level::Warning => "warning: ",
            Level::Info => "",
        };
        let _ = writeln!(std::io::stderr(), "levada: {}: {level}{text}", self.name);
    }

    /// The one line that others wait for: `levada: NAME ready`.
    pub fn ready(&self) {
        let _ = writeln!(std::io::stderr(), "levada: {} ready", self.name);
    }
}
