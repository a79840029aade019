//! Scenarios: networks that answer one question each, with a table.
//!
//! A scenario is a function from [`Options`] to a [`Table`]. What it prints is committed under `sim/snapshots`, so that a change of behaviour
//! is a diff to review.

pub mod fairness;
pub mod fsvde;
pub mod isolation;
pub mod measure;
pub mod sizes;
pub mod speed;
pub mod throughput;
pub mod weights;

use std::fmt::Write as _;

use crate::world::Violation;

/// What a scenario can be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Seed of all randomness.
    pub seed: u64,
    /// Measured seconds of each cell, after the first that is left out.
    pub seconds: u64,
}

/// A question, and how to answer it.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name on the command line, and of its snapshot.
    pub name: &'static str,
    /// What it shows, in a line.
    pub about: &'static str,
    /// Measured seconds where nobody says otherwise.
    pub seconds: u64,
    /// Whether it prints the same every time; what measures the machine does not.
    pub repeats: bool,
    /// Runs it.
    pub run: fn(&Options) -> Result<Table, Violation>,
}

/// Every scenario.
pub const ALL: &[Scenario] = &[
    throughput::SCENARIO,
    fairness::SCENARIO,
    isolation::SCENARIO,
    sizes::SCENARIO,
    weights::SCENARIO,
    fsvde::SCENARIO,
    speed::SCENARIO,
];

/// One value of a table.
#[derive(Clone, PartialEq, Debug)]
pub enum Cell {
    /// A name.
    Text(String),
    /// A number, with the digits behind the point that mean something.
    Number(f64, usize),
    /// Nothing to say.
    Empty,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.into())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

/// An answer.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Table {
    /// What was the same in all cells, as (what, how much).
    pub config: Vec<(&'static str, String)>,
    /// Names of the columns, with units.
    pub columns: Vec<&'static str>,
    /// As many cells as columns, each.
    pub rows: Vec<Vec<Cell>>,
    /// How to read it.
    pub notes: Vec<String>,
}

impl Table {
    /// The table as text, with what is needed to repeat it.
    #[must_use]
    pub fn text(&self, scenario: &Scenario, options: &Options) -> String {
        let mut text = format!("{}: {}\n", scenario.name, scenario.about);
        let _ = writeln!(text, "seed {}, {} s a cell after the first second", options.seed, options.seconds);
        for (what, value) in &self.config {
            let _ = writeln!(text, "{what}: {value}");
        }
        text.push('\n');
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(Cell::text).collect()).collect();
        let width = |column: usize| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.columns[column].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut line = |cells: &[String], left: &[bool]| {
            let padded = cells.iter().zip(&widths).zip(left).map(|((cell, &width), &left)| {
                if left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            let _ = writeln!(text, "{}", padded.collect::<Vec<_>>().join("  ").trim_end());
        };
        let left: Vec<bool> = (0..self.columns.len()).map(|c| self.is_text(c)).collect();
        line(&self.columns.iter().map(|&name| name.to_string()).collect::<Vec<_>>(), &left);
        rows.iter().for_each(|row| line(row, &left));
        for note in &self.notes {
            let _ = write!(text, "\n{note}");
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        text
    }

    /// The table as JSON.
    #[must_use]
    pub fn json(&self, scenario: &Scenario, options: &Options) -> String {
        let list = |items: Vec<String>| format!("[{}]", items.join(", "));
        let config: Vec<String> =
            self.config.iter().map(|(what, value)| format!("{}: {}", quoted(what), quoted(value))).collect();
        let rows = self.rows.iter().map(|row| list(row.iter().map(Cell::json).collect()));
        format!(
            "{{\"scenario\": {}, \"seed\": {}, \"seconds\": {}, \"config\": {{{}}},\n \"columns\": {},\n \"rows\": [\n  {}\n ]}}\n",
            quoted(scenario.name),
            options.seed,
            options.seconds,
            config.join(", "),
            list(self.columns.iter().map(|name| quoted(name)).collect()),
            rows.collect::<Vec<_>>().join(",\n  ")
        )
    }

    /// Names stand to the left, numbers to the right.
    fn is_text(&self, column: usize) -> bool {
        self.rows.iter().any(|row| matches!(row[column], Cell::Text(_)))
    }
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Number(number, digits) => format!("{number:.digits$}"),
            Cell::Empty => String::new(),
        }
    }

    fn json(&self) -> String {
        match self {
            Cell::Text(text) => quoted(text),
            Cell::Number(number, digits) => format!("{number:.digits$}"),
            Cell::Empty => "null".into(),
        }
    }
}

/// A JSON string. Nothing here has control characters.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
