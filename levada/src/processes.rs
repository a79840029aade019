//! Which processes namespaces are named by: when each started, so that after a kill the daemon does
//! not take another process, which has got the same number, for the container that was meant.

use crate::recipe::Recipe;
use ports::netns::Netns;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// The file in the run directory: a line for each, when it started and its path.
pub const PROCESSES: &str = "processes";

/// What is known of processes, and where it is written down.
pub struct Processes {
    place: Option<PathBuf>,
    started: BTreeMap<PathBuf, u64>,
}

impl Processes {
    /// What a daemon before has written at `place`. Without one nothing is known, or kept.
    pub fn read(place: Option<PathBuf>) -> Processes {
        let text = place.as_deref().and_then(|place| fs::read_to_string(place).ok()).unwrap_or_default();
        let entry = |line: &str| {
            let (started, path) = line.split_once(' ')?;
            Some((PathBuf::from(path), started.parse().ok()?))
        };
        Processes { started: text.lines().filter_map(entry).collect(), place }
    }

    /// The recipe, which means the process that was meant before.
    pub fn meant(&self, recipe: Recipe) -> Recipe {
        let started = recipe.netns().and_then(|netns| Some((netns.clone(), *self.started.get(netns.path())?)));
        started.map_or(recipe.clone(), |(netns, started)| recipe.entered_by(netns.of_process(started)))
    }

    /// Takes note of the processes that `recipes` name. What was known of one stays, unless it was
    /// `named` anew. Where it cannot be written, the next daemon knows less.
    pub fn note<'a>(&mut self, recipes: impl Iterator<Item = &'a Recipe>, named: &[PathBuf]) {
        let of_processes = recipes.filter_map(|recipe| recipe.netns().filter(|netns| netns.is_of_process()));
        let one = |netns: &Netns| {
            let path = netns.path().to_owned();
            let known = self.started.get(&path).copied().filter(|_| !named.contains(&path));
            Some((path, known.or_else(|| netns.started())?))
        };
        let started: BTreeMap<PathBuf, u64> = of_processes.filter_map(one).collect();
        if started == self.started {
            return;
        }
        self.started = started;
        let Some(place) = &self.place else { return };
        let lines: String =
            self.started.iter().map(|(path, started)| format!("{started} {}\n", path.display())).collect();
        // Beside it, so that at each moment one of the two is whole.
        let beside = place.with_extension("new");
        let _ = fs::write(&beside, lines).and_then(|()| fs::rename(&beside, place));
    }
}
