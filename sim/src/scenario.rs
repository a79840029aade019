//! Scenarios: networks that answer one question each, with a table.
//!
//! A scenario is a function from [`Options`] to a [`Table`]. What it prints is committed under
//! `sim/snapshots`, so that a change of behaviour is a diff to review.

pub mod attacks;
pub mod bonding;
pub mod bonding_faults;
pub mod churn;
pub mod convergence;
pub mod fairness;
pub mod faults;
pub mod fig5;
pub mod fsvde;
pub mod herd;
pub mod hold;
pub mod isolation;
pub mod lacp;
pub mod measure;
pub mod mixed;
pub mod own_traffic;
mod published;
pub mod queue_size;
pub mod rates;
pub mod refused;
pub mod reproduced;
pub mod scale;
mod served;
pub mod sizes;
pub mod speed;
pub mod throughput;
pub mod turns;
pub mod vcc_cheat;
pub mod vcc_incast;
pub mod vcc_unfair;
pub mod watch;
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
    /// Whether it says on standard error how far it is, where it takes long.
    pub tells: bool,
}

impl Options {
    /// So many cells were played, of so many.
    pub fn played(&self, cells: usize, of: usize) {
        if self.tells {
            eprintln!("{cells} of {of} cells");
        }
    }
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
    /// Whether each cell's first second is left out.
    pub warms_up: bool,
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
    convergence::SCENARIO,
    fig5::SCENARIO,
    faults::SCENARIO,
    own_traffic::SCENARIO,
    queue_size::SCENARIO,
    scale::SCENARIO,
    attacks::SCENARIO,
    turns::SCENARIO,
    rates::SCENARIO,
    mixed::SCENARIO,
    vcc_unfair::SCENARIO,
    vcc_incast::SCENARIO,
    vcc_cheat::SCENARIO,
    churn::SCENARIO,
    lacp::SCENARIO,
    bonding::SCENARIO,
    bonding_faults::SCENARIO,
    herd::SCENARIO,
    hold::SCENARIO,
    refused::SCENARIO,
    reproduced::SCENARIO,
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
    /// What of it is promised.
    pub claims: Vec<Claim>,
}

/// A number, and what it has to be.
#[derive(Clone, PartialEq, Debug)]
pub struct Claim {
    /// What it is of.
    pub id: String,
    /// The number; none where there is nothing to take it from, and then it does not hold.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: &'static str,
    /// What it has to be.
    pub target: Target,
}

/// What a number has to be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Target {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Claim {
    /// Whether the number is what it has to be.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.value.is_some_and(|value| match self.target {
            Target::AtLeast(least) => value >= least,
            Target::AtMost(most) => value <= most,
        })
    }

    fn target(&self) -> String {
        match self.target {
            Target::AtLeast(least) => format!(">= {least}"),
            Target::AtMost(most) => format!("<= {most}"),
        }
    }

    fn text(&self) -> String {
        let value = self.value.map_or("nothing".into(), |value| format!("{value:.3}"));
        let holds = if self.holds() { "holds" } else { "DOES NOT HOLD" };
        format!("{holds}: {}: {value} {} ({})", self.id, self.unit, self.target())
    }

    fn json(&self) -> String {
        let value = self.value.map_or("null".into(), |value| format!("{value:.4}"));
        let (id, unit, target) = (quoted(&self.id), quoted(self.unit), quoted(&self.target()));
        format!(
            "{{\"id\": {id}, \"value\": {value}, \"unit\": {unit}, \"target\": {target}, \"holds\": {}}}",
            self.holds()
        )
    }
}

impl Table {
    /// The table as text, with what is needed to repeat it.
    #[must_use]
    pub fn text(&self, scenario: &Scenario, options: &Options) -> String {
        let mut text = format!("{}: {}\n", scenario.name, scenario.about);
        let after = if scenario.warms_up { " after the first second" } else { "" };
        let _ = writeln!(text, "seed {}, {} s a cell{after}", options.seed, options.seconds);
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
        if !self.claims.is_empty() {
            let claims: Vec<String> = self.claims.iter().map(Claim::text).collect();
            let end = if self.notes.is_empty() { "" } else { "\n" };
            let _ = write!(text, "{end}\n{}", claims.join("\n"));
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
            "{{\"scenario\": {}, \"seed\": {}, \"seconds\": {}, \"config\": {{{}}},\n \"columns\": {},\n \"rows\": [\n  {}\n ],\n \"notes\": {},\n \"claims\": [\n  {}\n ]}}\n",
            quoted(scenario.name),
            options.seed,
            options.seconds,
            config.join(", "),
            list(self.columns.iter().map(|name| quoted(name)).collect()),
            rows.collect::<Vec<_>>().join(",\n  "),
            list(self.notes.iter().map(|note| quoted(note)).collect()),
            self.claims.iter().map(Claim::json).collect::<Vec<_>>().join(",\n  ")
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
