//! VDE directories: opened, tried again where somebody keeps them, made again where they were
//! removed, and closed with their last plug; and the log lines about each.

use super::{Board, Otherwise};
use crate::system::lines::Lines;
use crate::system::log::Level;
use control::plan::VdePlan;
use ports::Survey;
use ports::vde::{Directory, DirectoryOptions, OpenError, Plugged};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How soon a directory that cannot be had is tried again.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// How long that is put off at most.
const LAST_RETRY: Duration = Duration::from_secs(30);
/// Log lines of a directory in a second, of each level: refusals do not hide which clients are
/// plugged in.
const LINES: u32 = 8;

/// A directory that somebody keeps from being opened.
pub(super) struct Closed {
    /// As the plan writes it.
    pub name: String,
    pub options: DirectoryOptions,
    pub failure: String,
    pub next: Instant,
    pub pause: Duration,
}

/// A directory that is open.
pub(super) struct OpenDirectory {
    pub watch: u64,
    /// As the plan writes it, without links followed.
    pub name: String,
    pub directory: Directory,
    /// How it is to be when it is taken over from the process that still has it.
    pub coming: Option<DirectoryOptions>,
    /// Why it cannot be made again where it was removed, as it was last told.
    pub failure: String,
    pub lines: Lines,
}

impl Board {
    /// Has the directory that a plug is in, opened where it is not yet; or has it waited for.
    pub(super) fn have_directory(
        &mut self,
        plan: &VdePlan,
        survey: &Survey,
        otherwise: Otherwise,
    ) -> Result<(), OpenError> {
        let options = options(plan);
        let is_closed = otherwise == Otherwise::Wait && self.closed.iter().any(|one| one.name == plan.directory);
        match self.directories.iter_mut().find(|place| place.name == plan.directory) {
            Some(OpenDirectory { coming: Some(coming), .. }) => *coming = options,
            Some(place) => place.directory.change(&options)?,
            None if is_closed => {}
            None => match self.open_directory(&plan.directory, &options, survey) {
                Ok(()) => self.closed.retain(|one| one.name != plan.directory),
                Err(failure) if otherwise == Otherwise::Wait && failure.is_of_others() => {
                    let (name, failure) = (plan.directory.clone(), failure.to_string());
                    self.log.line(Level::Warning, &format!("{failure}; until then its plugs are down"));
                    let (next, pause) = (Instant::now() + FIRST_RETRY, FIRST_RETRY);
                    self.closed.push(Closed { name, options, failure, next, pause });
                }
                Err(failure) => return Err(failure),
            },
        }
        Ok(())
    }

    /// Opens a directory, or takes it as it is from the `survey`.
    fn open_directory(&mut self, name: &str, options: &DirectoryOptions, survey: &Survey) -> Result<(), OpenError> {
        if let Some(ledger) = &self.ledger {
            ledger.add(&options.path, std::fs::symlink_metadata(&options.path).is_err());
            self.is_ledger_old = true;
        }
        let inherited = Directory::inherit(&options.path, survey);
        let coming = inherited.is_some().then(|| options.clone());
        let directory = inherited.map_or_else(|| Directory::open(options), Ok)?;
        let watch = self.number();
        let watched = epoll::add(&*self.epoll, directory.fd(), EventData::new_u64(watch), EventFlags::IN);
        watched.map_err(|error| OpenError::Kernel(options.path.clone(), "watching it", error.into()))?;
        if let Some(ledger) = &self.ledger {
            ledger.add(directory.path(), directory.is_made());
        }
        let (name, failure, lines) = (name.to_owned(), String::new(), Lines::new(LINES));
        self.directories.push(OpenDirectory { watch, name, directory, coming, failure, lines });
        Ok(())
    }

    /// Tries directories again that could not be had.
    pub(super) fn open_closed(&mut self) {
        let now = Instant::now();
        for mut closed in std::mem::take(&mut self.closed) {
            if closed.next > now {
                self.closed.push(closed);
                continue;
            }
            match self.open_directory(&closed.name, &closed.options, &Survey::default()) {
                Ok(()) => self.log.line(Level::Info, &format!("vde {}: its plugs can be had now", closed.name)),
                Err(failure) => {
                    let failure = failure.to_string();
                    if failure != closed.failure {
                        self.log.line(Level::Warning, &failure);
                        closed.failure = failure;
                    }
                    closed.pause = (closed.pause * 2).min(LAST_RETRY);
                    closed.next = now + closed.pause;
                    self.closed.push(closed);
                }
            }
        }
    }

    /// Makes directories again that were removed, or their control sockets. Clients that are
    /// plugged in need neither.
    pub(super) fn mend_directories(&mut self) {
        for index in 0..self.directories.len() {
            let OpenDirectory { name, directory, coming, .. } = &self.directories[index];
            let plug = self.plugs.iter().find(|plug| plug.plan.directory == *name);
            let Some(plug) = plug.filter(|_| coming.is_none() && !directory.is_there()) else { continue };
            let options = options(&plug.plan);
            let (name, watch) = (name.clone(), self.number());
            if let Some(ledger) = &self.ledger {
                let path = self.directories[index].directory.path();
                ledger.add(path, std::fs::symlink_metadata(path).is_err());
                self.is_ledger_old = true;
            }
            let place = &mut self.directories[index];
            let mended = place.directory.mend(&options).map(|old| {
                let _ = epoll::delete(&*self.epoll, &old);
                place.watch = watch;
                epoll::add(&*self.epoll, place.directory.fd(), EventData::new_u64(watch), EventFlags::IN)
            });
            let failure = match mended {
                Ok(Ok(())) => String::new(),
                Ok(Err(error)) => format!("vde {name}: watching it: {error}"),
                Err(error) => error.to_string(),
            };
            let is_mended = failure.is_empty();
            if !is_mended && failure == place.failure {
                continue;
            }
            let text = if is_mended {
                format!("vde {name}: it was removed, and is made again; clients that are plugged in stay")
            } else {
                format!("{failure}; it was removed, and nobody can plug in")
            };
            // What was not written is not told.
            if self.line(&name, Level::Warning, &text) || is_mended {
                self.directories[index].failure = failure;
            }
        }
    }

    /// Closes a directory that has no plug any more.
    pub(super) fn clean(&mut self, directory: &str) {
        if self.plugs.iter().all(|plug| plug.plan.directory != directory) {
            self.waiting.retain(|waiting| waiting.directory != directory);
            self.directories.retain(|place| place.name != directory);
            self.closed.retain(|closed| closed.name != directory);
            self.is_ledger_old = true;
        }
    }

    /// Writes down what is open, and nothing else.
    pub(super) fn note(&mut self) {
        if let Some(ledger) = self.ledger.as_ref().filter(|_| self.is_ledger_old) {
            ledger.keep(self.directories.iter().map(|place| (place.directory.path(), place.directory.is_made())));
            self.is_ledger_old = false;
        }
    }

    pub(super) fn release(&mut self, directory: &str, plugged: Plugged) {
        if let Some(place) = self.directories.iter_mut().find(|place| place.name == directory) {
            place.directory.unplug(plugged);
        }
    }

    /// Writes a line about a directory, which the plan writes so. False: it has had enough.
    pub(super) fn line(&mut self, directory: &str, level: Level, text: &str) -> bool {
        let place = self.directories.iter_mut().find(|place| place.name == directory);
        place.is_some_and(|place| place.lines.write(&self.log, level, text))
    }
}

pub(super) fn options(plan: &VdePlan) -> DirectoryOptions {
    DirectoryOptions { path: PathBuf::from(&plan.directory), mode: plan.mode, group: plan.group.clone() }
}
