//! What the operating system must be asked for and the standard library has no form of: signals as
//! a descriptor, a place in the scheduler, a client's groups. The binary's only unsafe code.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::OnceLock;

/// Signals for the daemon: Ctrl-C and `kill` end it, SIGHUP reloads its file.
const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// Niceness of the worker: it gets twice the time of a busy neighbour on its core, and its short
/// slice brings it on soon after it wakes. Much less nice (-15) it weighs 28 times what it serves:
/// the scheduler then moves sender and receiver together to the other core, where frames find no
/// warm cache, and TCP lost a seventh. SCHED_FIFO would be throttled for 50 ms in every second
/// (sched_rt_runtime_us).
const NICE: i32 = -3;
/// Niceness of threads while they answer clients and make changes: beside the worker they have a
/// seventh of a core that they share. While they wait they have none: of a process that is killed
/// each thread ends at its own, and the last one closes the devices.
const NICE_BEHIND: i32 = 5;
/// What RLIMIT_NICE is where a thread may go back to niceness 0: 20 less it (getrlimit(2)).
const MAY_GO_BACK: u64 = 20;
/// How long the scheduler may let the worker run before it looks again, in nanoseconds: the least
/// that EEVDF takes (Linux 6.12, sched_attr.sched_runtime). A short slice gives an early deadline,
/// so the worker is picked soon after it wakes.
const SLICE_NS: u64 = 100_000;

/// Socket option: the peer's supplementary groups (include/uapi/asm-generic/socket.h); the `libc`
/// crate has no name for it here.
const SO_PEERGROUPS: libc::c_int = 59;

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// To end.
    End,
    /// To read the file again.
    Reload,
}

/// The signals for the daemon, blocked and readable from a descriptor.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks the signals in the calling thread and in all that it starts from now on.
    ///
    /// # Errors
    /// The kernel has no memory or descriptor left.
    pub fn block() -> io::Result<Signals> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set that it is given; sigaddset and pthread_sigmask
        // only read and write that set, which outlives the calls; a null old set is allowed.
        let fd = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in SIGNALS {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd returned a new descriptor that nobody else has.
        Ok(Signals(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next signal; `None` where none waits.
    #[must_use]
    pub fn next(&self) -> Option<Signal> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        let read = rustix::io::read(&self.0, &mut info).ok()?;
        let number = info[..read].first_chunk().map(|number| u32::from_ne_bytes(*number))?;
        Some(if number == libc::SIGHUP as u32 { Signal::Reload } else { Signal::End })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The descriptors that a service manager left to this process: `count` from the third on
/// (sd_listen_fds(3)). To be called once, before anything else is opened. Numbers that are not open
/// are `None`.
#[must_use]
pub fn take_descriptors(count: u32) -> Vec<Option<OwnedFd>> {
    let take = |number: u32| {
        let number = libc::c_int::try_from(number).ok()?;
        // SAFETY: fcntl takes a number and flags by value; of a number that is no open descriptor
        // it says so.
        let open = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == 0;
        // SAFETY: it is open, the environment says that it was left for this process, and this is
        // the one place that takes it.
        open.then(|| unsafe { OwnedFd::from_raw_fd(number) })
    };
    (3..3u32.saturating_add(count)).map(take).collect()
}

/// Lets this process open as many files as it may: a shell's 1024 are for programs that select(2),
/// and each device takes one or two.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where that cannot be, what does not fit will say so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// `struct sched_attr` (sched_setattr(2)), as of its first version.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Puts the calling thread ahead in the scheduler. Returns what was not permitted, in words.
pub fn hurry() -> Vec<String> {
    let mut refused = Vec::new();
    if let Err(error) = set_scheduling(NICE, SLICE_NS) {
        refused.push(format!("niceness {NICE}: {error}"));
        // Without the privilege to be less nice, the short slice is still to be had.
        if let Err(error) = set_scheduling(0, SLICE_NS) {
            refused.push(format!("scheduler slice of {} us: {error}", SLICE_NS / 1000));
        }
    }
    let slack = std::num::NonZeroU64::MIN;
    if let Err(error) = rustix::thread::set_current_timer_slack(Some(slack)) {
        refused.push(format!("timer slack of 1 ns: {error}"));
    }
    refused
}

/// Puts the calling thread behind those that move frames.
pub fn stand_back() {
    // Where that cannot be, it is no worse than others.
    let _ = set_scheduling(niceness_at_start().max(NICE_BEHIND), 0);
}

/// Puts the calling thread where others are again. Where that may not be ([`let_step_up`]), it
/// stays behind.
pub fn step_up() {
    let _ = set_scheduling(niceness_at_start(), 0);
}

/// What the process was started with: all threads but the worker go back to that.
fn niceness_at_start() -> i32 {
    static NICENESS: OnceLock<i32> = OnceLock::new();
    *NICENESS.get_or_init(|| rustix::process::getpriority_process(None).unwrap_or(0))
}

/// While there is one, its thread stands back.
#[must_use]
pub struct Behind(());

impl Behind {
    /// Puts the calling thread behind those that move frames.
    pub fn begin() -> Behind {
        stand_back();
        Behind(())
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        step_up();
    }
}

/// Lets all threads of this process step up again, without a capability.
///
/// # Errors
/// The process may not allow itself that (CAP_SYS_RESOURCE).
pub fn let_step_up() -> io::Result<()> {
    niceness_at_start();
    let now = getrlimit(Resource::Nice);
    let raised = |limit: Option<u64>| limit.map(|limit| limit.max(MAY_GO_BACK));
    Ok(setrlimit(Resource::Nice, Rlimit { current: raised(now.current), maximum: raised(now.maximum) })?)
}

fn set_scheduling(nice: i32, slice_ns: u64) -> io::Result<()> {
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice,
        priority: 0,
        runtime: slice_ns,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the kernel reads `size` bytes from the struct, which has that size and outlives the
    // call; pid 0 is the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What is said to a process that has no right to the control socket.
#[must_use]
pub fn stranger() -> String {
    "this is for root, the daemon's user and the members of [daemon] socket_group".to_owned()
}

/// The supplementary groups that the process at the other end of a Unix socket had when it
/// connected (SO_PEERGROUPS, Linux 4.13); none where they cannot be read.
#[must_use]
pub fn peer_groups(socket: &impl AsFd) -> Vec<u32> {
    // NGROUPS_MAX of Linux (linux/limits.h).
    let mut groups = vec![0u32; 65_536];
    let mut length = size_of_val(&groups[..]) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to the buffer, which has as many, and sets
    // `length` to what it wrote.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    groups.truncate(if result == 0 { length as usize / size_of::<u32>() } else { 0 });
    groups
}
