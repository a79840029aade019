//! A daemon is killed and started again where all clocks are an hour behind, and an hour ahead: the
//! others heed what its agent says, guarantees return, and nothing stays limited.

use crate::fabric::{BLUE, Flood, Host, RED, THREE, has_its_guarantee, hosts, is_held, narrow, nobody_is_limited};
use crate::testbed::{Calm, Daemon, skipped, soon, turn};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const HOUR: i64 = 3600;
/// After how long one whose clock was set back is heard again (`agent/src/post.rs`), and how much
/// longer it may take on a busy machine.
const HEARD_AFTER: Duration = Duration::from_secs(4);
const BUSY: Duration = Duration::from_secs(6);

/// What is linked before the C library's own, for a wall clock that is wrong: no namespace has one
/// of its own.
const WALL_CLOCK: &str = "#include <sys/syscall.h>\n#include <time.h>\n#include <unistd.h>\n\
    int clock_gettime(clockid_t id, struct timespec *at) {\n\
        int failed = syscall(SYS_clock_gettime, id, at);\n\
        if (!failed && id == CLOCK_REALTIME) at->tv_sec += SHIFT;\n\
        return failed;\n\
    }\n";

/// A library that sets a program's wall clock so many seconds ahead.
fn wall_clock(directory: &Path, shift: i64) -> PathBuf {
    let (source, library) = (directory.join("clock.c"), directory.join(format!("clock{shift}.so")));
    std::fs::write(&source, WALL_CLOCK).unwrap();
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", &format!("-DSHIFT={shift}"), "-o"]).arg(&library).arg(&source);
    assert!(command.status().unwrap().success());
    library
}

/// Starts the daemon of a host with all its clocks so many seconds ahead.
fn start(host: &Host, shift: i64) -> Daemon {
    let library = wall_clock(&host.bed.directory, shift);
    let daemon = host.start_with(|command| {
        let mut within = Command::new("unshare");
        // Of the machine's, which may have been started a minute ago.
        let offset = (2 * HOUR + shift).to_string();
        within.args(["--time", "--monotonic", &offset, "--boottime", &offset]);
        within.arg("env").arg(format!("LD_PRELOAD={}", library.display()));
        within.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            within.env(name, value.unwrap());
        }
        *command = within;
        command.stderr(std::process::Stdio::piped());
    });
    let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/time")).unwrap();
    assert_ne!(of(&daemon.pid().to_string()), of("self"), "its clocks are the machine's");
    daemon
}

/// Whether the machine has namespaces for time.
fn can_run(test: &str) -> bool {
    let tried = Command::new("unshare").args(["--time", "--monotonic", "60", "true"]).status();
    if tried.is_ok_and(|status| status.success()) {
        return true;
    }
    skipped(test, "there are no namespaces for time (unshare --time)");
    false
}

#[test]
fn a_host_whose_clocks_are_set_back_and_ahead_is_heeded_again() {
    const TEST: &str = "a_host_whose_clocks_are_set_back_and_ahead_is_heeded_again";
    let Some(_turn) = turn(TEST) else { return };
    if !can_run(TEST) {
        return;
    }
    let hosts: [Host; 3] = hosts(&THREE);
    narrow(&hosts, &[1]);
    let mut daemons = [start(&hosts[0], 0), hosts[1].start(), hosts[2].start()];
    let victim = Flood::new(&hosts[1], RED, 1);
    let flood = Flood::new(&hosts[2], BLUE, 5);
    soon("the flood is held", || is_held(&hosts[0], &hosts[2]));
    has_its_guarantee(&daemons);
    for (shift, heard_after) in [(-HOUR, HEARD_AFTER), (HOUR, Duration::ZERO)] {
        let killed = Instant::now();
        assert!(!daemons[0].end(Signal::KILL).success());
        soon("nobody is limited for somebody dead", || nobody_is_limited(&hosts[1]) && nobody_is_limited(&hosts[2]));
        daemons[0] = start(&hosts[0], shift);
        let begin = Calm::now();
        soon("the flood is held for the new process", || is_held(&hosts[0], &hosts[2]));
        println!("{shift} s: heeded {:?} after the kill, {:?} after the start", killed.elapsed(), begin.elapsed());
        assert!(begin.elapsed() < heard_after + BUSY, "{shift} s: {:?}", begin.elapsed());
        // Its last word may have been a little before the kill.
        assert!(killed.elapsed() > heard_after.mul_f64(0.8), "{shift} s: its clock is right");
        has_its_guarantee(&daemons);
    }
    drop((victim, flood));
    soon("nobody is limited any more", || hosts.iter().all(nobody_is_limited));
}
