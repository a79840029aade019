//! Log lines about one owner, a VDE directory or a virtual machine: so many of each level a second,
//! so that none hides what the log says of another. What is left out is counted.

use crate::system::log::{Level, Log};
use std::fmt::Display;
use std::time::{Duration, Instant};

/// How long lines are counted together.
const WINDOW: Duration = Duration::from_secs(1);

/// Log lines about one owner.
#[derive(Debug)]
pub struct Lines {
    /// Most of a level in a second.
    most: u32,
    /// In the second that began then, by level.
    since: Instant,
    written: [u32; 2],
    /// Since that was last told, by level.
    left_out: [u32; 2],
}

impl Lines {
    /// None yet, and at most so many of a level in a second.
    pub fn new(most: u32) -> Lines {
        Lines { most, since: Instant::now(), written: [0; 2], left_out: [0; 2] }
    }

    /// Writes a line. False: there were enough in this second.
    pub fn write(&mut self, log: &Log, level: Level, text: &str) -> bool {
        let may = self.may_write(level, Instant::now());
        if may {
            log.line_of_owner(level, text);
        }
        may
    }

    /// Says how many lines about `owner` were left out. To be called each second or so.
    pub fn tell(&mut self, log: &Log, owner: impl Display) {
        for level in [Level::Warning, Level::Info] {
            let left_out = std::mem::take(&mut self.left_out[place(level)]);
            if left_out > 0 {
                log.line_of_owner(level, &format!("{owner}: {left_out} more lines about it were left out"));
            }
        }
    }

    fn may_write(&mut self, level: Level, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= WINDOW {
            (self.since, self.written) = (now, [0; 2]);
        }
        let written = &mut self.written[place(level)];
        let may = *written < self.most;
        let count = if may { written } else { &mut self.left_out[place(level)] };
        *count = count.saturating_add(1);
        may
    }
}

fn place(level: Level) -> usize {
    usize::from(level == Level::Warning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_lines_of_each_level_are_written_in_a_second_and_the_rest_is_counted() {
        let mut lines = Lines::new(4);
        let start = lines.since;
        let mut written = |level, count, at| (0..count).filter(|_| lines.may_write(level, start + at)).count();
        assert_eq!(written(Level::Warning, 20, Duration::ZERO), 4);
        assert_eq!(written(Level::Info, 3, WINDOW / 2), 3, "the other level has its own");
        assert_eq!(written(Level::Warning, 1, WINDOW / 2), 0);
        assert_eq!(written(Level::Warning, 5, WINDOW), 4, "each second anew");
        assert_eq!(lines.left_out, [0, 18]);
        lines.tell(&Log::new("t", crate::system::log::Format::Text), "vde /run/red");
        assert_eq!(lines.left_out, [0; 2], "told once");
    }

    #[test]
    fn lines_about_many_owners_hide_none_about_another() {
        let log = Log::new("t", crate::system::log::Format::Text);
        for owner in 0..40 {
            let mut lines = Lines::new(1);
            assert!(lines.write(&log, Level::Warning, &format!("vde /run/{owner}: a client is refused")));
            lines.write(&log, Level::Warning, "one too many");
            lines.tell(&log, format!("vde /run/{owner}"));
        }
        let said = log.waiting();
        assert_eq!(said.lines().count(), 80, "{said}");
        assert!((0..40).all(|owner| said.contains(&format!("/run/{owner}: a client"))), "{said}");
    }
}
