#![forbid(unsafe_code)]
//! What operators ask for, turned into what the switch runs.
//!
//! Text becomes a [`config::Config`] (`read`), which is plain data; `check` says what is wrong with
//! it and whether the promises fit the link (`admission`); `compile` turns it into a
//! [`plan::Plan`]: one program for each switch, and the ports and links that the shell is to open.
//! Everything here is a function of its arguments: no I/O, no clock.
//!
//! ```
//! let text = "[daemon]\nname = \"demo\"\n[[switch]]\nname = \"s1\"\n";
//! let checked = control::load(text);
//! assert!(checked.problems.is_empty());
//! assert_eq!(checked.plan.unwrap().switches[0].name, "s1");
//! ```

pub mod action;
pub mod admission;
pub mod bond;
mod check;
mod compile;
pub mod config;
pub mod filter;
pub mod names;
pub mod place;
pub mod plan;
pub mod problem;
mod read;
pub mod report;
pub mod save;
pub mod scale;
pub mod schema;
pub mod shortcut;
pub mod time;
pub mod units;
pub mod write;

pub use compile::compile;
use std::collections::BTreeSet;

/// A configuration text that was read and checked.
#[derive(Debug)]
pub struct Checked {
    /// What the text says. Where there are errors, the values they concern have their defaults.
    pub config: config::Config,
    /// What the daemon is to run; `None` where there are errors.
    pub plan: Option<plan::Plan>,
    /// Everything that is wrong, in the order of the text.
    pub problems: Vec<problem::Problem>,
    /// Where in the text things are.
    locations: place::Locations,
}

impl Checked {
    /// Warns of what is at `place`: whoever calls knows more than the text says.
    pub fn warn(&mut self, place: place::Place, message: impl Into<String>, remedy: impl Into<String>) {
        let warning = problem::Problem::warning(place, message, remedy);
        self.problems.extend(warning.located(&self.locations, &BTreeSet::new()));
        in_order(&mut self.problems);
    }
}

/// Reads, checks and compiles a configuration.
#[must_use]
pub fn load(text: &str) -> Checked {
    let read::Reading { config, problems, locations, is_toml } = read::read(text);
    if !is_toml {
        return Checked { config, plan: None, problems, locations };
    }
    let (problems, good) = checked(problems, check::check(&config), &locations);
    let plan = good.then(|| compile::compile(&config, None));
    Checked { config, plan, problems, locations }
}

/// The configuration of a controller of OpenFlow switches, which was read and checked.
#[derive(Debug)]
pub struct CheckedOpenFlow {
    /// What the text says; `None` where there are errors.
    pub config: Option<config::openflow::OpenFlow>,
    /// Everything that is wrong, in the order of the text.
    pub problems: Vec<problem::Problem>,
}

/// Whether a text is the configuration of a controller of OpenFlow switches: it has `[openflow]`.
#[must_use]
pub fn is_openflow(text: &str) -> bool {
    read::openflow::is_one(text)
}

/// Reads and checks the configuration of a controller of OpenFlow switches.
#[must_use]
pub fn load_openflow(text: &str) -> CheckedOpenFlow {
    let read::Reading { config, problems, locations, is_toml } = read::openflow::read(text);
    if !is_toml {
        return CheckedOpenFlow { config: None, problems };
    }
    let (problems, good) = checked(problems, check::openflow::check(&config), &locations);
    CheckedOpenFlow { config: good.then_some(config), problems }
}

/// What could not be read and what was `found` besides, in the order of the text; and whether all
/// is good.
fn checked(
    mut problems: Vec<problem::Problem>,
    found: Vec<problem::Problem>,
    locations: &place::Locations,
) -> (Vec<problem::Problem>, bool) {
    // A value that could not be read has been reported; what follows from its default would only
    // confuse.
    let hidden = problems.iter().filter(|p| p.hides).map(|p| p.place.clone()).collect();
    problems.extend(found.into_iter().filter_map(|p| p.located(locations, &hidden)));
    in_order(&mut problems);
    let good = problems.iter().all(|p| p.severity == problem::Severity::Warning);
    (problems, good)
}

/// In the order of the text.
fn in_order(problems: &mut [problem::Problem]) {
    problems.sort_by_key(|p| (p.span.as_ref().map(|s| s.start), p.severity));
}

/// Everything that is wrong with a configuration that was not read from text, each problem with its
/// key.
#[must_use]
pub fn problems(config: &config::Config) -> Vec<problem::Problem> {
    let found = check::check(config);
    // Names are only needed where there is something to say.
    if found.is_empty() {
        return found;
    }
    let locations = place::Locations::of(config);
    found.into_iter().filter_map(|p| p.located(&locations, &BTreeSet::new())).collect()
}

/// Reads a configuration that [`write::config`] wrote.
///
/// # Errors
/// What in it cannot be read.
pub fn read_document(document: &write::Keys) -> Result<config::Config, Vec<problem::Problem>> {
    read::thing::document(document)
}
