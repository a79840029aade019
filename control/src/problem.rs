//! Problems: what is wrong with a configuration, where, and what would be right.

use crate::place::{Locations, Place};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::Range;

/// How many problems people are shown: who has more finds the cause among these.
pub const MOST_SHOWN: usize = 100;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// The configuration cannot run.
    Error,
    /// It can run, but something in it has no effect or cannot be kept.
    Warning,
}

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// Where it is in the configuration.
    pub place: Place,
    /// The same in words, with the names of the items on the way.
    pub key: String,
    /// Where it is in the text, in bytes; `None` where there is no text.
    pub span: Option<Range<usize>>,
    /// What is wrong.
    pub message: String,
    /// What would be right; may be empty where the message says it.
    pub remedy: String,
    /// What this clashes with, and where that is in the text.
    pub first: Option<(Place, Option<Range<usize>>)>,
    /// What it follows from, besides what is at its place and around that: where a value among
    /// these could not be read, it is not said.
    pub(crate) assumed: Vec<Place>,
    /// The value could not be read: what else is said of it, or of what is in it, follows from
    /// that.
    pub(crate) hides: bool,
}

impl Problem {
    /// An error at `place`.
    pub fn error(place: Place, message: impl Into<String>, remedy: impl Into<String>) -> Problem {
        Problem {
            severity: Severity::Error,
            place,
            key: String::new(),
            span: None,
            message: message.into(),
            remedy: remedy.into(),
            first: None,
            assumed: Vec::new(),
            hides: false,
        }
    }

    /// A warning at `place`.
    pub(crate) fn warning(place: Place, message: impl Into<String>, remedy: impl Into<String>) -> Problem {
        Problem { severity: Severity::Warning, ..Problem::error(place, message, remedy) }
    }

    /// The same with where it is in the text; `None` where it, what is around it, or what it
    /// follows from is `hidden`.
    pub(crate) fn located(mut self, locations: &Locations, hidden: &BTreeSet<Place>) -> Option<Problem> {
        for place in [&self.place].into_iter().chain(&self.assumed) {
            let mut around = Some(place.clone()).filter(|_| !hidden.is_empty());
            while let Some(place) = around {
                if place != Place::root() && hidden.contains(&place) {
                    return None;
                }
                around = place.parent();
            }
        }
        if let Some((place, span)) = &mut self.first {
            *span = locations.span(place);
        }
        self.span = locations.span(&self.place);
        self.key = locations.describe(&self.place);
        Some(self)
    }

    /// The problem as a person wants to see it: what, `file:line:column`, the line with the spot
    /// marked, the key, the remedy.
    ///
    /// `text` must be what was read; line and column count from 1, the column in characters.
    #[must_use]
    pub fn render(&self, file: &str, text: &str) -> String {
        self.render_from(&mut Lines::default(), file, text)
    }

    fn render_from(&self, lines: &mut Lines, file: &str, text: &str) -> String {
        let label = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let mut out = format!("{label}: {}\n", self.message);
        let mut margin = String::from(" ");
        if let Some(span) = &self.span {
            let spot = Spot::of(lines, text, span);
            margin = " ".repeat(spot.line.to_string().len() + 1);
            let _ = writeln!(out, "{}--> {file}:{}:{}", &margin[1..], spot.line, spot.column);
            let _ = writeln!(out, "{margin}|");
            let _ = writeln!(out, "{} | {}", spot.line, spot.source);
            let _ = writeln!(out, "{margin}| {}{}", spot.indent, "^".repeat(spot.width));
        } else {
            let _ = writeln!(out, "{margin}--> {file}");
        }
        if !self.key.is_empty() {
            let _ = writeln!(out, "{margin}= key: {}", self.key);
        }
        if let Some((_, Some(span))) = &self.first {
            // Not by `lines`, which would begin anew for what is before.
            let line = text[..floor_boundary(text, span.start)].matches('\n').count() + 1;
            let _ = writeln!(out, "{margin}= note: the first one is in line {line}");
        }
        if !self.remedy.is_empty() {
            let _ = writeln!(out, "{margin}= help: {}", self.remedy);
        }
        out
    }
}

/// The first [`MOST_SHOWN`] of `problems`, which are in the order of the text, each as
/// [`Problem::render`] shows it; and how many more there are.
#[must_use]
pub fn render(problems: &[Problem], file: &str, text: &str) -> String {
    let mut lines = Lines::default();
    let shown: Vec<String> =
        problems.iter().take(MOST_SHOWN).map(|problem| problem.render_from(&mut lines, file, text)).collect();
    let mut shown = shown.join("\n");
    if let Some(more) = more_than_shown(problems) {
        let _ = writeln!(shown, "\n{more}");
    }
    shown
}

/// What is said of those that are not shown.
#[must_use]
pub fn more_than_shown<T>(problems: &[T]) -> Option<String> {
    let more = problems.len().checked_sub(MOST_SHOWN).filter(|more| *more > 0)?;
    Some(format!("{more} more are not shown: correct these first"))
}

/// Counts lines of a text from where it was last asked, so that asking for one place after the
/// other reads the text once.
#[derive(Default)]
struct Lines {
    at: usize,
    lines: usize,
}

impl Lines {
    fn before(&mut self, text: &str, at: usize) -> usize {
        if at < self.at {
            *self = Lines::default();
        }
        self.lines += text[self.at..at].matches('\n').count();
        self.at = at;
        self.lines
    }
}

/// A span as a person reads it.
struct Spot<'a> {
    line: usize,
    column: usize,
    source: &'a str,
    /// What to print before the carets so that they stand under the span (tabs kept).
    indent: String,
    width: usize,
}

impl Spot<'_> {
    fn of<'a>(lines: &mut Lines, text: &'a str, span: &Range<usize>) -> Spot<'a> {
        let at = floor_boundary(text, span.start);
        let begin = text[..at].rfind('\n').map_or(0, |i| i + 1);
        let end = text[at..].find('\n').map_or(text.len(), |i| at + i);
        let stop = floor_boundary(text, span.end).clamp(at, end);
        Spot {
            line: lines.before(text, begin) + 1,
            column: text[begin..at].chars().count() + 1,
            source: text[begin..end].trim_end_matches('\r'),
            indent: text[begin..at].chars().map(|c| if c == '\t' { '\t' } else { ' ' }).collect(),
            width: text[at..stop].chars().count().max(1),
        }
    }
}

fn floor_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Candidates that are looked at: comparing two names takes microseconds.
const MOST_CANDIDATES: usize = 1000;

/// Of the first thousand candidates, the one that `wrong` was most likely meant to be: at most a
/// third of its letters differ (edit distance, transpositions as one).
pub(crate) fn nearest<'a>(wrong: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .take(MOST_CANDIDATES)
        .map(|c| (distance(&wrong.to_lowercase(), &c.to_lowercase()), c))
        .filter(|&(d, c)| d <= c.chars().count().max(3) / 3)
        .min_by_key(|&(d, _)| d)
        .map(|(_, c)| c)
}

/// Optimal string alignment distance. Names are short; a long one is cut, so that a hostile file
/// cannot make this slow.
fn distance(a: &str, b: &str) -> usize {
    const LONGEST: usize = 64;
    let a: Vec<char> = a.chars().take(LONGEST).collect();
    let b: Vec<char> = b.chars().take(LONGEST).collect();
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found_and_a_far_one_is_not() {
        let keys = ["guarantee", "limit", "weight", "name"];
        assert_eq!(nearest("garantee", keys), Some("guarantee"));
        assert_eq!(nearest("wieght", keys), Some("weight"));
        assert_eq!(nearest("Limit", keys), Some("limit"));
        assert_eq!(nearest("bandwidth", keys), None);
    }

    #[test]
    fn the_caret_stands_under_the_value_also_behind_tabs_and_wide_letters() {
        let text = "a = 1\n\tß = \"x\"\n";
        let at = text.find('"').unwrap();
        let mut problem = Problem::error(Place::root(), "no", "yes");
        problem.span = Some(at..at + 3);
        let shown = problem.render("f.toml", text);
        assert!(shown.contains("--> f.toml:2:6"), "{shown}");
        assert!(shown.contains("\n  | \t    ^^^\n"), "{shown}");
    }

    #[test]
    fn a_span_behind_the_end_is_shown_at_the_end() {
        let mut problem = Problem::error(Place::root(), "no", "");
        problem.span = Some(90..95);
        assert!(problem.render("f", "ab").contains("f:1:3"));
    }
}
