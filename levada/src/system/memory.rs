//! Memory for requests: what the kernel leaves this process, and what is reserved of it for
//! requests. A process that takes more is ended, and frames with it; so it is reserved
//! before it is taken.
//!
//! What is left is the least of `MemAvailable` (proc_meminfo(5)) and, for each control group that
//! the process has begun in, of the limit less what is used; pages of files that the kernel gives
//! up first count as left. The files are opened at the start: who asks may open none.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that no request is refused: who has too little memory must be able to delete something.
const ALWAYS: u64 = 1 << 20;
/// Bytes read of a file at most; each is some KiB.
const MOST_TEXT: u64 = 64 << 10;

/// Names of a control group's files, by the version of control groups.
struct Names {
    limits: &'static [&'static str],
    used: &'static str,
    /// In `memory.stat`: pages of files that nobody has used lately.
    spare: &'static str,
}

const V1: Names =
    Names { limits: &["memory.limit_in_bytes"], used: "memory.usage_in_bytes", spare: "total_inactive_file" };
/// Beyond `memory.high` the kernel slows all threads down.
const V2: Names = Names { limits: &["memory.max", "memory.high"], used: "memory.current", spare: "inactive_file" };

/// What the kernel says of a control group.
struct Group {
    limits: Vec<File>,
    used: File,
    spare: Option<(File, &'static str)>,
}

/// The memory of this process.
pub struct Memory {
    /// `None` where it cannot be read: then only control groups have a limit.
    system: Option<File>,
    groups: Vec<Group>,
    /// Bytes reserved for requests that still run. Held while files are read, whose position all
    /// share.
    reserved: Mutex<u64>,
}

/// Memory that a request may take, until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    memory: Arc<Memory>,
    bytes: u64,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Memory {
    /// The memory of the calling process, as the files below `root` describe it.
    #[must_use]
    pub fn open(root: &Path) -> Arc<Memory> {
        let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
        let groups = mounts.lines().filter_map(|line| places(line, &own)).flat_map(|(names, places)| {
            places.into_iter().filter_map(move |place| Group::open(&root.join(place), names))
        });
        Arc::new(Memory {
            system: File::open(root.join("proc/meminfo")).ok(),
            groups: groups.collect(),
            reserved: Mutex::default(),
        })
    }

    /// Reserves `bytes` for a request.
    ///
    /// # Errors
    /// So much is not left; in words, with what helps.
    pub fn reserve(self: &Arc<Memory>, bytes: u64) -> Result<Reservation, String> {
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.left();
        let left = all.saturating_sub(*reserved);
        if bytes > left && bytes > ALWAYS {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            let remedy = if bytes <= all {
                "other requests have the rest: try again when they are done"
            } else {
                "send several smaller requests, have the daemon read its file again (SIGHUP), or give it more memory (MemoryMax= of its unit, or of the host)"
            };
            return Err(format!(
                "the request may take {:.1} MiB of memory, but only {:.1} MiB are left; {remedy}",
                mib(bytes),
                mib(left)
            ));
        }
        *reserved += bytes;
        Ok(Reservation { memory: Arc::clone(self), bytes })
    }

    /// Bytes that the kernel leaves.
    fn left(&self) -> u64 {
        let system = self.system.as_ref().and_then(text).and_then(|text| entry(&text, "MemAvailable:"));
        let system = system.map_or(u64::MAX, |kib| kib.saturating_mul(1024));
        self.groups.iter().map(Group::left).fold(system, u64::min)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut reserved = self.memory.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        *reserved -= self.bytes;
    }
}

impl Group {
    /// `None` where it has no limit.
    fn open(place: &Path, names: &'static Names) -> Option<Group> {
        let limits: Vec<File> = names.limits.iter().filter_map(|name| File::open(place.join(name)).ok()).collect();
        let used = File::open(place.join(names.used)).ok()?;
        let spare = File::open(place.join("memory.stat")).ok().map(|file| (file, names.spare));
        (!limits.is_empty()).then_some(Group { limits, used, spare })
    }

    fn left(&self) -> u64 {
        // "max" is no number, and no limit.
        let limits = self.limits.iter().filter_map(|file| number(&text(file)?));
        let Some(limit) = limits.min() else { return u64::MAX };
        let used = text(&self.used).and_then(|text| number(&text)).unwrap_or_default();
        let spare = self.spare.as_ref().and_then(|(file, name)| entry(&text(file)?, name)).unwrap_or_default();
        limit.saturating_sub(used.saturating_sub(spare))
    }
}

/// The directories of the control groups with memory that a process is in, from its own to the top
/// one, as a line of mountinfo (proc_pid_mountinfo(5)) and its /proc/PID/cgroup say.
fn places(mount: &str, own: &str) -> Option<(&'static Names, Vec<PathBuf>)> {
    let (place, kind) = mount.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (top, at) = (place.next()?, place.next()?);
    let mut kind = kind.split(' ');
    let (names, controller) = match (kind.next()?, kind.next_back()?) {
        ("cgroup2", _) => (&V2, ""),
        ("cgroup", options) if options.split(',').any(|option| option == "memory") => (&V1, "memory"),
        _ => return None,
    };
    let is_own = |line: &&str| {
        let controllers = line.split(':').nth(1).unwrap_or_default();
        controllers.split(',').any(|one| one == controller)
    };
    let path = own.lines().find(is_own)?.splitn(3, ':').nth(2)?;
    // In a container that sees its own part of the tree only.
    let below = Path::new(path).strip_prefix(top).or_else(|_| Path::new(path).strip_prefix("/")).ok()?;
    let at = Path::new(at.trim_start_matches('/'));
    Some((names, below.ancestors().map(|below| at.join(below)).collect()))
}

/// What is in a file now.
fn text(mut file: &File) -> Option<String> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(MOST_TEXT).read_to_string(&mut text).ok()?;
    Some(text)
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The number behind a name that is the first word of its line.
fn entry(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| if words.next() == Some(name) { words.next()?.parse().ok() } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Files as the kernel has them, removed when dropped.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Root {
            let root = Root(std::env::temp_dir().join(format!("levada-memory-{}-{name}", std::process::id())));
            files.iter().for_each(|(path, text)| root.write(path, text));
            root
        }

        fn write(&self, path: &str, text: &str) {
            let file = self.0.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }

        fn left_mib(&self) -> u64 {
            Memory::open(&self.0).left() / MIB
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 4096000 kB\nMemFree: 1 kB\nMemAvailable:  1024000 kB\n");

    #[test]
    fn what_is_left_is_the_least_of_the_system_s_and_of_each_group_s() {
        let none = Root::new("none", &[]);
        assert_eq!(none.left_mib(), u64::MAX / MIB, "where nothing is known nothing is refused");
        let two = Root::new(
            "two",
            &[
                MEMINFO,
                ("proc/self/cgroup", "0::/system.slice/levada.service\n"),
                ("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw shared:1 - cgroup2 cgroup2 rw,nsdelegate\n"),
                ("sys/fs/cgroup/memory.stat", "inactive_file 0\n"),
                ("sys/fs/cgroup/system.slice/levada.service/memory.current", "104857600\n"),
                ("sys/fs/cgroup/system.slice/levada.service/memory.max", "max\n"),
                ("sys/fs/cgroup/system.slice/memory.current", "209715200\n"),
                ("sys/fs/cgroup/system.slice/memory.max", "max\n"),
            ],
        );
        assert_eq!(two.left_mib(), 1000);
        two.write("sys/fs/cgroup/system.slice/memory.max", "524288000\n");
        assert_eq!(two.left_mib(), 300, "of the group around it");
        two.write("sys/fs/cgroup/system.slice/levada.service/memory.max", "314572800\n");
        assert_eq!(two.left_mib(), 200);
        two.write("sys/fs/cgroup/system.slice/levada.service/memory.high", "262144000\n");
        assert_eq!(two.left_mib(), 150);
        two.write(
            "sys/fs/cgroup/system.slice/levada.service/memory.stat",
            "anon 41943040\nfile 62914560\ninactive_file 52428800\n",
        );
        assert_eq!(two.left_mib(), 200, "pages of files are given up first");
        two.write("sys/fs/cgroup/system.slice/levada.service/memory.current", "1048576000\n");
        assert_eq!(two.left_mib(), 0);
    }

    #[test]
    fn groups_of_the_first_version_count_too_and_in_a_container_those_that_it_sees() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      35 31 0:32 TOP /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let groups = "9:name=systemd:/\n5:cpu:/other\n4:memory:/a/b\n0::/\n";
        let root = Root::new(
            "one",
            &[
                MEMINFO,
                ("proc/self/cgroup", groups),
                ("proc/self/mountinfo", &mounts.replace("TOP", "/")),
                ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "524288000\n"),
                ("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "209715200\n"),
                ("sys/fs/cgroup/memory/a/b/memory.stat", "inactive_file 0\ntotal_inactive_file 104857600\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "209715200\n"),
            ],
        );
        assert_eq!(root.left_mib(), 400);
        // Its own group is the top of what it sees.
        root.write("proc/self/mountinfo", &mounts.replace("TOP", "/a/b"));
        root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "314572800\n");
        assert_eq!(root.left_mib(), 100);
    }

    #[test]
    fn what_is_reserved_is_not_reserved_twice() {
        let root = Root::new("reserved", &[MEMINFO]);
        let memory = Memory::open(&root.0);
        let first = memory.reserve(600 * MIB).unwrap();
        let why = memory.reserve(600 * MIB).unwrap_err();
        assert!(why.contains("may take 600.0 MiB of memory, but only 400.0 MiB are left; other requests"), "{why}");
        let why = memory.reserve(1001 * MIB).unwrap_err();
        assert!(why.contains("only 400.0 MiB are left; send several"), "{why}");
        let small = memory.reserve(400 * MIB).unwrap();
        drop(first);
        let again = memory.reserve(600 * MIB).unwrap();
        assert!(memory.reserve(MIB + 1).is_err() && memory.reserve(MIB).is_ok());
        drop((small, again));
        assert!(memory.reserve(1000 * MIB).is_ok());
        // The files are read each time.
        root.write("proc/meminfo", "MemAvailable: 1024 kB\n");
        assert!(memory.reserve(2 * MIB).is_err() && memory.reserve(MIB).is_ok());
    }
}
