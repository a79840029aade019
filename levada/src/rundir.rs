//! The run directory of an instance: `BASE/NAME/` with the lock, the control socket, in the lock
//! the daemon's pid, which VDE directories it has open, and which sockets it has made elsewhere.
//!
//! Who holds the lock (flock(2)) is the instance. The kernel gives the lock back at any death of
//! the process, so that a directory whose lock is free is a leftover, whatever else is in it.

use crate::processes::PROCESSES;
use ports::vde;
use rustix::fs::FlockOperation;
use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Where instances have their run directories, unless `LEVADA_RUN_DIR` says otherwise.
const BASE: &str = "/run/levada";
/// The control socket, in the run directory.
pub const SOCKET: &str = "control.sock";
/// The socket by which a new process takes over, in the run directory.
pub const HANDOVER: &str = "handover.sock";
const LOCK: &str = "lock";
/// VDE directories that the daemon has open or is about to open, one a line: what is left of them
/// after a kill can be found without the configuration. A process that takes over writes one of its
/// own, with its number behind the name, until it is the instance.
const LEDGER: &str = "vde-directories";
/// The same of sockets that are made elsewhere, as for virtual machines, and of the directories
/// that are made for them.
const SOCKETS: &str = "sockets-elsewhere";
/// What services' connections are given to backends by (`Switch::set_service_key`), as long as the
/// instance has its run directory: the next daemon goes on with it where devices outlive the one
/// before ([`RunDir::keep`]).
const SERVICE_KEY: &str = "service-key";
/// Before a path in the ledger: the daemon makes the directory, so that without anything in it,
/// too, it is the daemon's.
const MADE: u8 = b'+';
/// Names looked at in a directory that another process left, before a daemon starts: less than a
/// second. `levada clean` looks at all.
const NAMES_AT_START: usize = 65_536;

/// How often it is looked whether a lock is free.
const LOOK: Duration = Duration::from_millis(50);

/// The directory that holds all run directories.
#[must_use]
pub fn base() -> PathBuf {
    std::env::var_os("LEVADA_RUN_DIR").filter(|v| !v.is_empty()).map_or_else(|| PathBuf::from(BASE), PathBuf::from)
}

/// The run directory of this process's instance, and its lock. Dropping it removes the directory,
/// unless it is another's.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    lock: File,
    /// False while another process is the instance, or again is.
    is_ours: bool,
    /// See [`RunDir::keep`].
    is_kept: bool,
}

/// Why an instance cannot be had.
#[derive(Debug)]
pub enum Taken {
    /// It runs; its pid, where it could be read.
    Running(Option<u32>),
    /// The directory or the lock cannot be made.
    Io(PathBuf, io::Error),
}

impl RunDir {
    /// Makes the run directory of `name` below `base` and takes its lock.
    ///
    /// # Errors
    /// See [`Taken`].
    pub fn take(base: &Path, name: &str) -> Result<RunDir, Taken> {
        let path = base.join(name);
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| Taken::Io(path, error)
        };
        DirBuilder::new().recursive(true).mode(0o755).create(base).map_err(failed(base))?;
        loop {
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(&path)(error)),
                _ => {}
            }
            let file = path.join(LOCK);
            let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&file);
            let mut lock = match opened {
                Ok(lock) => lock,
                // Its last owner removed the directory just now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(&file)(error)),
            };
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(Taken::Running(read_pid(&mut lock))),
                Err(error) => return Err(failed(&file)(error.into())),
            }
            // Between opening and locking, the last owner may have removed the file: then this lock
            // protects nothing.
            if !is_at(&file, &lock) {
                continue;
            }
            // Somebody may have removed the lock of one that runs: it can still be asked.
            if let Some(pid) = listener(&path.join(SOCKET)) {
                return Err(Taken::Running(pid));
            }
            // On a full file system people do not see who it is, and nothing else is worse.
            let _ = write_pid(&mut lock);
            let taken = RunDir { path, lock, is_ours: true, is_kept: false };
            taken.remove_sockets();
            return Ok(taken);
        }
    }

    /// The same; but who has the lock and does not answer is waited for as long as `patience`,
    /// unless that `is_over`: it is starting, or ending, or `levada clean`. A service manager
    /// starts a daemon again at once, and counts how often.
    ///
    /// # Errors
    /// See [`Taken`].
    pub fn take_patiently(
        base: &Path,
        name: &str,
        patience: Duration,
        is_over: impl Fn() -> bool,
    ) -> Result<RunDir, Taken> {
        let (socket, until) = (base.join(name).join(SOCKET), Instant::now() + patience);
        loop {
            let taken = RunDir::take(base, name);
            let is_silent = matches!(taken, Err(Taken::Running(_))) && listener(&socket).is_none();
            if !is_silent || is_over() || Instant::now() >= until {
                return taken;
            }
            thread::sleep(LOOK);
        }
    }

    /// The run directory of `name`, whose `lock` another process hands over.
    #[must_use]
    pub fn inherit(base: &Path, name: &str, lock: File) -> RunDir {
        RunDir { path: base.join(name), lock, is_ours: false, is_kept: false }
    }

    /// Where a socket is to be made: beside its place, which another process may still have. See
    /// [`RunDir::announce`].
    #[must_use]
    pub fn coming(&self, socket: &str) -> PathBuf {
        let coming = self.path.join(own(socket));
        let _ = fs::remove_file(&coming);
        coming
    }

    /// Where a socket of the instance is.
    #[must_use]
    pub fn place(&self, socket: &str) -> PathBuf {
        self.path.join(socket)
    }

    /// From now on this process is the instance: its pid is in the lock, unless the file system is
    /// full (the pid is for people only), and its sockets are in their places. What is in the
    /// directory is this process's to remove, also where that fails.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn announce(&mut self) -> io::Result<()> {
        let coming = [(self.ledger(), LEDGER), (self.sockets(), SOCKETS)];
        self.is_ours = true;
        for (Ledger { place }, ledger) in coming {
            // Where nothing was written down there is none.
            let _ = fs::rename(place, self.path.join(ledger));
        }
        let _ = write_pid(&mut self.lock);
        let rename = |socket: &str| fs::rename(self.path.join(own(socket)), self.path.join(socket));
        let renamed = [SOCKET, HANDOVER].map(rename);
        renamed.into_iter().collect()
    }

    /// Where VDE directories are written down.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.ledger_of(LEDGER)
    }

    /// Where sockets are written down that are made elsewhere, and directories that are made for
    /// them.
    #[must_use]
    pub fn sockets(&self) -> Ledger {
        self.ledger_of(SOCKETS)
    }

    fn ledger_of(&self, name: &str) -> Ledger {
        let place = self.path.join(name);
        Ledger { place: if self.is_ours { place } else { place.with_extension(std::process::id().to_string()) } }
    }

    /// The key of services: the one that is `in_use`, which the daemon before has told of, else the
    /// one that it left, or `fresh`; and why that could not be kept for the next one, with the file
    /// that it was to be in, as on a full file system.
    pub fn service_key(&self, in_use: Option<u64>, fresh: u64) -> (u64, Option<(PathBuf, io::Error)>) {
        let place = self.path.join(SERVICE_KEY);
        let found = fs::read_to_string(&place).ok().and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        let key = in_use.or(found).unwrap_or(fresh);
        if found == Some(key) {
            return (key, None);
        }
        // Beside it, so that it is whole or not there.
        let beside = place.with_extension("new");
        let _ = fs::remove_file(&beside);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside);
        let written = file.and_then(|mut file| writeln!(file, "{key:016x}"));
        let kept = written.and_then(|()| fs::rename(&beside, &place));
        if kept.is_err() {
            let _ = fs::remove_file(&beside);
        }
        (key, kept.err().map(|error| (place, error)))
    }

    /// Removes what a daemon that was killed left in VDE directories, before another one starts.
    /// Which these were, or why not.
    #[must_use]
    pub fn remove_directories(&self) -> Vec<Result<PathBuf, String>> {
        self.remove_directories_within(NAMES_AT_START)
    }

    /// The same, whatever time it takes.
    #[must_use]
    pub fn remove_all_directories(&self) -> Vec<Result<PathBuf, String>> {
        self.remove_directories_within(usize::MAX)
    }

    fn remove_directories_within(&self, names: usize) -> Vec<Result<PathBuf, String>> {
        self.settle_ledgers(LEDGER, |lines| {
            let removed = lines.into_iter().filter_map(|(path, made)| match vde::remove_left(&path, made, names) {
                Ok(true) => Some(Ok(path)),
                Ok(false) => None,
                Err(error) => Some(Err(error.to_string())),
            });
            removed.collect()
        })
    }

    /// Removes sockets elsewhere that a daemon that was killed left, where nobody listens there
    /// now, and directories that it made for them, where they are empty. Which these were.
    #[must_use]
    pub fn remove_sockets_elsewhere(&self) -> Vec<PathBuf> {
        self.settle_ledgers(SOCKETS, |lines| {
            let (made, sockets): (Vec<_>, Vec<_>) = lines.into_iter().partition(|(_, made)| *made);
            let sockets = sockets.into_iter().filter(|(path, _)| remove_dead(path));
            // A lazy chain: directories are removed when the sockets in them are, the innermost
            // first.
            let made = made.into_iter().rev().filter(|(path, _)| fs::remove_dir(path).is_ok());
            sockets.chain(made).map(|(path, _)| path).collect()
        })
    }

    /// Does what is to be done about all that ledgers of this name have, and removes them.
    fn settle_ledgers<T>(&self, name: &str, work: impl FnOnce(BTreeMap<PathBuf, bool>) -> T) -> T {
        let ledgers: Vec<PathBuf> = self.entries(|entry| entry.starts_with(name)).collect();
        let mut lines: BTreeMap<PathBuf, bool> = BTreeMap::new();
        for line in ledgers.iter().flat_map(|ledger| Ledger { place: ledger.clone() }.read()) {
            *lines.entry(line.0).or_default() |= line.1;
        }
        let done = work(lines);
        ledgers.iter().for_each(|ledger| drop(fs::remove_file(ledger)));
        done
    }

    /// The entries of the directory whose name is `wanted`.
    fn entries(&self, wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = PathBuf> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.filter(move |entry| entry.file_name().to_str().is_some_and(&wanted)).map(|entry| entry.path())
    }

    /// A second descriptor of the lock, to be handed over.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn lock(&self) -> io::Result<File> {
        self.lock.try_clone()
    }

    /// What tells whether the directory is still there.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn mark(&self) -> io::Result<Mark> {
        Ok(Mark { lock: self.lock()?, path: self.path.join(LOCK) })
    }

    /// Devices go on to the next daemon, and with them what it is to know of them: the key of
    /// services' open connections, and whom namespaces are named by. Where none comes, that stays
    /// until `levada clean` or the machine's end. It harms nobody: a secret nobody reads, and a
    /// container that the next daemon has to be told of again.
    pub fn keep(&mut self, is_kept: bool) {
        self.is_kept = is_kept;
    }

    /// Leaves the directory to the process that has taken over, with all that is in it: that
    /// process, in another namespace of processes, may have the same number. The lock is closed
    /// with this process.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    /// Whether an entry of the directory is of this process alone.
    fn is_own(&self, entry: &str) -> bool {
        entry.split('.').any(|part| part == std::process::id().to_string())
    }

    /// Removes the sockets that this process may remove.
    fn remove_sockets(&self) {
        self.remove_entries(&[SOCKET, HANDOVER]);
    }

    /// Removes what begins with one of `names`, as far as this process may.
    fn remove_entries(&self, names: &[&str]) {
        let is_one = |entry: &str| names.iter().any(|name| entry.starts_with(name));
        for path in self.entries(|entry| is_one(entry) && (self.is_ours || self.is_own(entry))) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Directories and sockets, written down before they are made: whatever moment a process is killed
/// at, what it leaves can be found.
#[derive(Clone, Debug)]
pub struct Ledger {
    place: PathBuf,
}

impl Ledger {
    /// Adds a directory or socket. `made`: it is a directory that will be made. Where it cannot be
    /// written, less is cleaned up after a kill, and nothing else is harmed.
    pub fn add(&self, directory: &Path, made: bool) {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.place);
        // One write, so that a line is there or is not.
        let _ = file.and_then(|mut file| file.write_all(&line(directory, made)));
    }

    /// Forgets all but these.
    pub fn keep<'a>(&self, directories: impl Iterator<Item = (&'a Path, bool)>) {
        let lines: Vec<u8> = directories.flat_map(|(directory, made)| line(directory, made)).collect();
        if lines.is_empty() {
            let _ = fs::remove_file(&self.place);
            return;
        }
        // Beside it, so that at each moment one of the two is whole.
        let mut fresh = self.place.clone().into_os_string();
        fresh.push(".new");
        let _ = fs::write(&fresh, lines).and_then(|()| fs::rename(&fresh, &self.place));
    }

    /// The directories that this process makes, or the one that it takes over from.
    #[must_use]
    pub fn made(&self) -> BTreeSet<PathBuf> {
        let before = Ledger { place: self.place.with_extension("") };
        let lines = [self, &before].map(Ledger::read).into_iter().flatten();
        lines.filter(|(_, made)| *made).map(|(path, _)| path).collect()
    }

    fn read(&self) -> Vec<(PathBuf, bool)> {
        let bytes = fs::read(&self.place).unwrap_or_default();
        let lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        let path = |bytes| PathBuf::from(OsStr::from_bytes(bytes));
        lines
            .map(|line| line.strip_prefix(&[MADE]).map_or_else(|| (path(line), false), |made| (path(made), true)))
            .collect()
    }
}

fn line(directory: &Path, made: bool) -> Vec<u8> {
    [if made { &[MADE][..] } else { &[] }, directory.as_os_str().as_bytes(), b"\n"].concat()
}

/// Removes a socket on which nobody listens. False: it is still there, or there was none.
fn remove_dead(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|status| status.file_type().is_socket());
    is_socket && vde::listens(path).is_ok_and(|listens| !listens) && fs::remove_file(path).is_ok()
}

/// What a socket of this process is called until it is the instance.
fn own(socket: &str) -> String {
    format!("{socket}.{}", std::process::id())
}

/// Where the process that runs as `name` can be asked to hand over.
#[must_use]
pub fn handover(base: &Path, name: &str) -> PathBuf {
    base.join(name).join(HANDOVER)
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if !is_at(&self.path.join(LOCK), &self.lock) {
            // Somebody has removed it, and what is there now may be another's.
            return;
        }
        self.remove_sockets();
        if !self.is_ours {
            // A failed takeover has closed what it made. Unlocking would take the lock from the
            // other process, too.
            self.remove_entries(&[LEDGER, SOCKETS]);
            return;
        }
        // What a takeover that was killed has left, too.
        let _ = self.remove_directories();
        let _ = self.remove_sockets_elsewhere();
        if !self.is_kept {
            self.remove_entries(&[SERVICE_KEY, PROCESSES]);
        }
        let _ = fs::remove_file(self.path.join(LOCK));
        let _ = fs::remove_dir(&self.path);
        let _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

/// Tells whether a run directory is still that of this process.
#[derive(Debug)]
pub struct Mark {
    lock: File,
    path: PathBuf,
}

impl Mark {
    /// False where somebody has removed the directory, or the lock in it.
    #[must_use]
    pub fn is_there(&self) -> bool {
        is_at(&self.path, &self.lock)
    }
}

/// Whether a lock is the file at `path`.
fn is_at(path: &Path, lock: &File) -> bool {
    let identity = |data: fs::Metadata| (data.dev(), data.ino());
    fs::metadata(path).is_ok_and(|now| lock.metadata().is_ok_and(|ours| identity(now) == identity(ours)))
}

/// Who listens at a socket, if anybody does, where that can be told.
fn listener(socket: &Path) -> Option<Option<u32>> {
    let stream = UnixStream::connect(socket).ok()?;
    let peer = socket_peercred(&stream).ok();
    // In another namespace of processes it has no number here.
    Some(peer.and_then(|peer| u32::try_from(Pid::as_raw(Some(peer.pid))).ok().filter(|&pid| pid > 0)))
}

fn write_pid(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    writeln!(lock, "{}", std::process::id())
}

fn read_pid(lock: &mut File) -> Option<u32> {
    let mut text = String::new();
    lock.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Whether the run directory of `name` is that of a daemon that runs, or was killed; else one that
/// ended in order has left what its next start is to know ([`RunDir::keep`]).
#[must_use]
pub fn is_locked(base: &Path, name: &str) -> bool {
    base.join(name).join(LOCK).exists()
}

/// The instances that have a run directory, running or left over, in order.
///
/// # Errors
/// The base directory exists and cannot be read.
pub fn instances(base: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(base) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| control::config::is_instance_name(name))
        .collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_nothing_left() {
        let base = std::env::temp_dir().join(format!("levada-rundir-{}", std::process::id()));
        let first = RunDir::take(&base, "demo").unwrap();
        assert_eq!(instances(&base).unwrap(), ["demo"]);
        match RunDir::take(&base, "demo") {
            Err(Taken::Running(pid)) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        assert!(RunDir::take(&base, "other").is_ok(), "another name is another instance");
        drop(first);
        assert!(instances(&base).unwrap().is_empty());
        // What a killed daemon leaves: a directory with files and a free lock.
        fs::create_dir_all(base.join("demo")).unwrap();
        fs::write(base.join("demo").join(LOCK), "999999999\n").unwrap();
        drop(std::os::unix::net::UnixListener::bind(base.join("demo").join(SOCKET)).unwrap());
        let again = RunDir::take(&base, "demo").unwrap();
        assert!(!base.join("demo").join(SOCKET).exists());
        drop(again);
        fs::remove_dir(&base).unwrap();
    }

    #[test]
    fn who_leaves_the_directory_to_another_with_its_number_takes_nothing_away() {
        let base = std::env::temp_dir().join(format!("levada-left-{}", std::process::id()));
        let first = RunDir::take(&base, "demo").unwrap();
        let mut second = RunDir::inherit(&base, "demo", first.lock().unwrap());
        let bind = |socket| std::os::unix::net::UnixListener::bind(second.coming(socket)).unwrap();
        let _listeners = [SOCKET, HANDOVER].map(bind);
        second.ledger().add(Path::new("/nowhere"), false);
        first.leave();
        second.announce().unwrap();
        for left in [SOCKET, HANDOVER, LEDGER] {
            assert!(second.place(left).exists(), "{left}");
        }
        drop(second);
        fs::remove_dir(&base).unwrap();
    }

    #[test]
    fn who_has_taken_over_and_cannot_rename_its_sockets_leaves_nothing_behind() {
        let base = std::env::temp_dir().join(format!("levada-half-{}", std::process::id()));
        for missing in [SOCKET, HANDOVER] {
            let first = RunDir::take(&base, "demo").unwrap();
            let mut second = RunDir::inherit(&base, "demo", first.lock().unwrap());
            let bind = |socket| std::os::unix::net::UnixListener::bind(second.coming(socket)).unwrap();
            let _listeners = [SOCKET, HANDOVER].map(bind);
            second.ledger().add(Path::new("/nowhere"), false);
            fs::write(second.place(LOCK), "1\n").unwrap();
            fs::remove_file(second.coming(missing)).unwrap_err();
            first.leave();
            assert!(second.announce().is_err());
            let is_there = [SOCKET, HANDOVER].map(|socket| second.place(socket).exists());
            assert_eq!(is_there, [SOCKET, HANDOVER].map(|socket| socket != missing), "the other is in its place");
            assert_eq!(fs::read_to_string(second.place(LOCK)).unwrap(), format!("{}\n", std::process::id()));
            assert!(second.place(LEDGER).exists() && second.ledger().place == second.place(LEDGER));
            drop(second);
            assert_eq!(instances(&base).unwrap(), Vec::<String>::new(), "without {missing}");
        }
        fs::remove_dir(&base).unwrap();
    }

    #[test]
    fn one_that_answers_runs_without_a_lock_and_removes_nothing_of_others() {
        let base = std::env::temp_dir().join(format!("levada-unlocked-{}", std::process::id()));
        let first = RunDir::take(&base, "demo").unwrap();
        let mark = first.mark().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(first.place(SOCKET)).unwrap();
        assert!(mark.is_there());
        fs::remove_file(first.place(LOCK)).unwrap();
        assert!(!mark.is_there());
        match RunDir::take(&base, "demo") {
            Err(Taken::Running(pid)) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        assert!(first.place(SOCKET).exists());
        drop(listener);
        let second = RunDir::take(&base, "demo").unwrap();
        drop(first);
        assert!(second.place(LOCK).exists(), "it is the second's");
        drop(second);
        fs::remove_dir(&base).unwrap();
    }

    #[test]
    fn sockets_elsewhere_that_nobody_listens_on_are_removed_with_the_directories_made_for_them() {
        let base = std::env::temp_dir().join(format!("levada-elsewhere-{}", std::process::id()));
        let first = RunDir::take(&base, "demo").unwrap();
        let [one, two] = ["outer", "outer/inner"].map(|name| base.join(name));
        let [dead, live, file] = ["outer/inner/dead", "live", "file"].map(|name| base.join(name));
        fs::create_dir_all(&two).unwrap();
        drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
        let _listener = std::os::unix::net::UnixListener::bind(&live).unwrap();
        fs::write(&file, "").unwrap();
        [&one, &two].iter().for_each(|directory| first.sockets().add(directory, true));
        [&dead, &live, &file].iter().for_each(|socket| first.sockets().add(socket, false));
        assert_eq!(first.sockets().made(), [one.clone(), two.clone()].into());
        // A takeover that is to make them knows whose the directories are.
        let second = RunDir::inherit(&base, "demo", first.lock().unwrap());
        assert_eq!(second.sockets().made(), [one.clone(), two.clone()].into());
        second.leave();
        assert_eq!(first.remove_sockets_elsewhere(), [dead, two, one]);
        assert!(live.exists() && file.exists() && !base.join("outer").exists());
        assert_eq!(first.remove_sockets_elsewhere(), Vec::<PathBuf>::new());
        drop(first);
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn the_key_of_services_is_the_one_in_use_then_the_one_that_was_kept() {
        let base = std::env::temp_dir().join(format!("levada-service-key-{}", std::process::id()));
        let first = RunDir::take(&base, "demo").unwrap();
        let key = |in_use, fresh| {
            let (key, unkept) = first.service_key(in_use, fresh);
            assert!(unkept.is_none());
            (key, fs::read_to_string(first.place(SERVICE_KEY)).unwrap())
        };
        let written = |key: u64| (key, format!("{key:016x}\n"));
        assert_eq!(key(None, 7), written(7));
        assert_eq!(key(None, 8), written(7));
        assert_eq!(key(Some(7), 8), written(7));
        assert_eq!(key(Some(u64::MAX), 8), written(u64::MAX), "the daemon before could not keep it");
        assert_eq!(key(None, 8), written(u64::MAX));
        // Where it cannot be kept, the one in use goes on.
        fs::remove_file(first.place(SERVICE_KEY)).unwrap();
        fs::create_dir(first.place(SERVICE_KEY)).unwrap();
        let (kept, unkept) = first.service_key(Some(9), 8);
        assert!(kept == 9 && unkept.is_some_and(|(file, _)| file == first.place(SERVICE_KEY)));
        fs::remove_dir(first.place(SERVICE_KEY)).unwrap();
        drop(first);
        fs::remove_dir(&base).unwrap();
    }
}
