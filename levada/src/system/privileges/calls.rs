//! Which system calls threads may make, as lists that add up ([`super::Duty`]). What is in none of
//! them fails with EPERM.
//!
//! Nothing here starts a program, follows or looks into a process, mounts, changes users, loads a
//! module or touches the clock. Among what only the threads with capabilities have (`DEVICES`) are
//! setns(2), ioctl(2), bpf(2), and sockets of any kind.

use libc::c_long;
use ports::seccomp::Rule::{Always, Where};
use ports::seccomp::{Check, Rule};

/// All 32 bits count.
const WHOLE: u32 = u32::MAX;

/// Memory that is no program.
const DATA: &[Check] = &[Check { argument: 2, mask: libc::PROT_EXEC as u32, values: &[0] }];
/// A thread of this process, in its namespaces. (A process of its own would need a program to be of
/// use; clone3(2) is answered by ENOSYS.)
const THREAD: &[Check] = &[Check {
    argument: 0,
    mask: (libc::CLONE_THREAD
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP) as u32,
    values: &[libc::CLONE_THREAD as u32],
}];
/// `PR_SET_VMA` (linux/prctl.h): names for memory, which a newer malloc gives; the `libc` crate may
/// have no name for it.
const PR_SET_VMA: u32 = 0x5356_4d41;
/// Names of threads and of memory; more it takes to start.
const NAMES: &[Check] =
    &[Check { argument: 0, mask: WHOLE, values: &[libc::PR_SET_NAME as u32, libc::PR_GET_NAME as u32, PR_SET_VMA] }];
/// Its own place in the scheduler: without a capability, one further behind, or back to where
/// others are.
const SELF: &[Check] = &[Check { argument: 0, mask: WHOLE, values: &[0] }];
/// Not to wait, and not to be inherited by programs: what the standard library asks by ioctl(2);
/// and how much there is to be read.
const DESCRIPTORS: &[Check] =
    &[Check { argument: 1, mask: WHOLE, values: &[libc::FIONBIO as u32, libc::FIOCLEX as u32, libc::FIONREAD as u32] }];

/// What a thread needs to run, and to read and write what is open.
pub const RUNTIME: &[Rule] = &[
    // Frames and messages first.
    Always(libc::SYS_read),
    Always(libc::SYS_write),
    Always(libc::SYS_readv),
    Always(libc::SYS_writev),
    Always(libc::SYS_recvfrom),
    Always(libc::SYS_recvmsg),
    Always(libc::SYS_sendto),
    Always(libc::SYS_sendmsg),
    Always(libc::SYS_epoll_pwait2),
    Always(libc::SYS_epoll_pwait),
    #[cfg(target_arch = "x86_64")]
    Always(libc::SYS_epoll_wait),
    Always(libc::SYS_epoll_ctl),
    Always(libc::SYS_epoll_create1),
    Always(libc::SYS_eventfd2),
    Always(libc::SYS_ppoll),
    #[cfg(target_arch = "x86_64")]
    Always(libc::SYS_poll),
    Always(libc::SYS_futex),
    Always(libc::SYS_clock_gettime),
    Always(libc::SYS_clock_getres),
    Always(libc::SYS_clock_nanosleep),
    Always(libc::SYS_nanosleep),
    Always(libc::SYS_gettimeofday),
    Always(libc::SYS_getrandom),
    // Descriptors.
    Always(libc::SYS_close),
    Always(libc::SYS_dup),
    Always(libc::SYS_fcntl),
    Always(libc::SYS_lseek),
    Where(libc::SYS_ioctl, DESCRIPTORS),
    // Whether a packet socket's interface is down or gone.
    Always(libc::SYS_getsockname),
    // Memory.
    Always(libc::SYS_brk),
    Always(libc::SYS_madvise),
    Where(libc::SYS_mmap, DATA),
    Where(libc::SYS_mprotect, DATA),
    Always(libc::SYS_mremap),
    Always(libc::SYS_munmap),
    // Threads.
    Where(libc::SYS_clone, THREAD),
    Where(libc::SYS_prctl, NAMES),
    Always(libc::SYS_exit),
    Always(libc::SYS_exit_group),
    Always(libc::SYS_get_robust_list),
    Always(libc::SYS_set_robust_list),
    Always(libc::SYS_set_tid_address),
    Always(libc::SYS_rseq),
    Always(libc::SYS_membarrier),
    Always(libc::SYS_sched_yield),
    Where(libc::SYS_sched_setattr, SELF),
    Always(libc::SYS_sched_getaffinity),
    Always(libc::SYS_restart_syscall),
    Always(libc::SYS_rt_sigaction),
    Always(libc::SYS_rt_sigprocmask),
    Always(libc::SYS_rt_sigreturn),
    Always(libc::SYS_sigaltstack),
    // Who and where this is.
    Always(libc::SYS_getpid),
    Always(libc::SYS_gettid),
    Always(libc::SYS_getuid),
    Always(libc::SYS_geteuid),
    Always(libc::SYS_getgid),
    Always(libc::SYS_getegid),
    Always(libc::SYS_uname),
    // Giving up more of what it has: no call gives any of it back.
    Always(libc::SYS_capget),
    Always(libc::SYS_capset),
    Always(libc::SYS_seccomp),
];

/// How long to wait for a client: `SO_RCVTIMEO` and `SO_SNDTIMEO`, and no other option of any
/// socket.
const TIMES: &[Check] = &[
    Check { argument: 1, mask: WHOLE, values: &[libc::SOL_SOCKET as u32] },
    Check { argument: 2, mask: WHOLE, values: &[libc::SO_RCVTIMEO as u32, libc::SO_SNDTIMEO as u32] },
];
/// `BPF_MAP_LOOKUP_ELEM` and `BPF_MAP_UPDATE_ELEM`: what shortcuts have taken is counted in a map,
/// and one says whether they are on. They take no capability (Linux 5.19); what does (programs,
/// links, new maps) is not among them.
const MAPS: &[Check] = &[Check { argument: 0, mask: WHOLE, values: &[1, 2] }];

/// Answering those who connect.
pub const SERVING: &[Rule] = &[
    Always(libc::SYS_accept4),
    Always(libc::SYS_shutdown),
    Always(libc::SYS_getsockname),
    Always(libc::SYS_getpeername),
    Always(libc::SYS_getsockopt),
    Where(libc::SYS_setsockopt, TIMES),
    Where(libc::SYS_bpf, MAPS),
];

/// A file is opened to be read: it is not made, and what is in it stays.
const READ: &[Check] = &[Check {
    argument: 2,
    mask: (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND) as u32,
    values: &[libc::O_RDONLY as u32],
}];

/// Looking at files.
pub const READING: &[Rule] = &[
    Where(libc::SYS_openat, READ),
    Always(libc::SYS_fstat),
    Always(libc::SYS_newfstatat),
    Always(libc::SYS_statx),
    Always(libc::SYS_pread64),
    Always(libc::SYS_readlinkat),
    Always(libc::SYS_getdents64),
    Always(libc::SYS_faccessat),
    Always(libc::SYS_faccessat2),
    #[cfg(target_arch = "x86_64")]
    Always(libc::SYS_access),
    #[cfg(target_arch = "x86_64")]
    Always(libc::SYS_readlink),
    #[cfg(target_arch = "x86_64")]
    Always(libc::SYS_stat),
    #[cfg(target_arch = "x86_64")]
    Always(libc::SYS_lstat),
];

/// What drivers say of interfaces. It could be told to set something too, which takes a capability.
const ETHTOOL: &[Check] = &[Check { argument: 1, mask: WHOLE, values: &[libc::SIOCETHTOOL as u32] }];

/// Asking what links have negotiated.
pub const INTERFACES: &[Rule] = &[Where(libc::SYS_ioctl, ETHTOOL)];

/// Speaking with other machines; by which sockets, says another list.
pub const TALKING: &[Rule] = &[
    Always(libc::SYS_bind),
    Always(libc::SYS_connect),
    Always(libc::SYS_shutdown),
    Always(libc::SYS_getsockname),
    Always(libc::SYS_getpeername),
    Always(libc::SYS_getsockopt),
    Always(libc::SYS_setsockopt),
    Always(libc::SYS_sendmmsg),
    Always(libc::SYS_recvmmsg),
];

/// The kinds of sockets, without their flags.
const KIND: u32 = 0xf;

/// No other sockets than those of UDP.
pub const UDP: &[Rule] = &[Where(
    libc::SYS_socket,
    &[
        Check { argument: 0, mask: WHOLE, values: &[libc::AF_INET as u32, libc::AF_INET6 as u32] },
        Check { argument: 1, mask: KIND, values: &[libc::SOCK_DGRAM as u32] },
    ],
)];

/// TCP and UDP, and what answers names on this machine (nscd, systemd-resolved).
pub const INTERNET: &[Rule] = &[Where(
    libc::SYS_socket,
    &[
        Check {
            argument: 0,
            mask: WHOLE,
            values: &[libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32],
        },
        Check { argument: 1, mask: KIND, values: &[libc::SOCK_STREAM as u32, libc::SOCK_DGRAM as u32] },
    ],
)];

/// The C library answers names by libraries that it loads when it is asked (nsswitch.conf(5)).
pub const LOADING: &[Rule] = &[Always(libc::SYS_mmap), Always(libc::SYS_mprotect)];

/// A file or directory is only named, so that it can be looked at and gone through.
const NAME: &[Check] = &[Check { argument: 2, mask: libc::O_PATH as u32, values: &[libc::O_PATH as u32] }];
/// How much may wait for a client.
const ROOM: &[Check] = &[
    Check { argument: 1, mask: WHOLE, values: &[libc::SOL_SOCKET as u32] },
    Check { argument: 2, mask: WHOLE, values: &[libc::SO_SNDBUF as u32, libc::SO_SNDBUFFORCE as u32] },
];

/// Unix sockets, and looking at whose a client's is.
pub const PLUGS: &[Rule] = &[
    Where(
        libc::SYS_socket,
        &[
            Check { argument: 0, mask: WHOLE, values: &[libc::AF_UNIX as u32] },
            Check { argument: 1, mask: KIND, values: &[libc::SOCK_STREAM as u32, libc::SOCK_DGRAM as u32] },
        ],
    ),
    Always(libc::SYS_bind),
    Always(libc::SYS_connect),
    Where(libc::SYS_setsockopt, ROOM),
    Where(libc::SYS_openat, NAME),
    // What is left in a directory that was opened for it.
    Always(libc::SYS_getdents64),
    Always(libc::SYS_fstat),
    Always(libc::SYS_newfstatat),
    Always(libc::SYS_statx),
];

/// Calling guests of virtual machines: adding to an eventfd, which an asynchronous operation does
/// without waiting.
pub const CALLING: &[Rule] = &[Always(libc::SYS_io_submit), Always(libc::SYS_io_getevents)];

/// `SO_MEMINFO` (`asm-generic/socket.h`; not in the libc crate): how much waits in a ring.
const SO_MEMINFO: u32 = 55;
/// That, and the filter that is there (`SO_GET_FILTER`, which has the number of
/// `SO_ATTACH_FILTER`).
const RING: &[Check] = &[
    Check { argument: 1, mask: WHOLE, values: &[libc::SOL_SOCKET as u32] },
    Check { argument: 2, mask: WHOLE, values: &[SO_MEMINFO, libc::SO_ATTACH_FILTER as u32] },
];
/// Another filter in its place.
const FILTER: &[Check] = &[
    Check { argument: 1, mask: WHOLE, values: &[libc::SOL_SOCKET as u32] },
    Check { argument: 2, mask: WHOLE, values: &[libc::SO_ATTACH_FILTER as u32] },
];

/// What the rings of interfaces are asked and told.
pub const RINGS: &[Rule] = &[Where(libc::SYS_getsockopt, RING), Where(libc::SYS_setsockopt, FILTER)];

/// What sessions of virtual machines take besides: what kind of descriptor it is that was sent, and
/// putting one in another's place.
pub const MACHINES: &[Rule] = &[
    Always(libc::SYS_readlinkat),
    #[cfg(target_arch = "x86_64")]
    Always(libc::SYS_readlink),
    Always(libc::SYS_dup3),
];

/// With which a C library may rename; the `libc` crate has no name for it where it has 38, its
/// number on newer machines.
#[cfg(target_arch = "x86_64")]
const RENAMEAT: c_long = libc::SYS_renameat;
/// See above.
#[cfg(not(target_arch = "x86_64"))]
const RENAMEAT: c_long = 38;
/// The same number everywhere; the `libc` crate has no name for it on every machine.
const FCHMODAT2: c_long = 452;

/// Whose files are and who may use them, and taking them away.
pub const FILES: &[Rule] = &[
    Always(libc::SYS_unlinkat),
    Always(libc::SYS_fchmod),
    Always(libc::SYS_fchmodat),
    Always(FCHMODAT2),
    Always(libc::SYS_fchown),
    Always(libc::SYS_fchownat),
    #[cfg(target_arch = "x86_64")]
    Always(libc::SYS_unlink),
    #[cfg(target_arch = "x86_64")]
    Always(libc::SYS_rmdir),
    #[cfg(target_arch = "x86_64")]
    Always(libc::SYS_chmod),
    #[cfg(target_arch = "x86_64")]
    Always(libc::SYS_chown),
    #[cfg(target_arch = "x86_64")]
    Always(libc::SYS_lchown),
];

/// What devices, the run directory and VDE directories take.
const DEVICES: &[Rule] = &[
    Always(libc::SYS_setns),
    // A namespace for the switch's ends of veth pairs.
    Where(libc::SYS_unshare, &[Check { argument: 0, mask: WHOLE, values: &[libc::CLONE_NEWNET as u32] }]),
    Always(libc::SYS_io_setup),
    Always(libc::SYS_ioctl),
    Always(libc::SYS_bpf),
    Always(libc::SYS_socket),
    Always(libc::SYS_socketpair),
    Always(libc::SYS_listen),
    Always(libc::SYS_accept4),
    Always(libc::SYS_signalfd4),
    Always(libc::SYS_pipe2),
    Always(libc::SYS_openat),
    #[cfg(target_arch = "x86_64")]
    Always(libc::SYS_open),
    Always(libc::SYS_pwrite64),
    Always(libc::SYS_ftruncate),
    Always(libc::SYS_flock),
    Always(libc::SYS_fsync),
    Always(libc::SYS_fdatasync),
    Always(libc::SYS_mkdirat),
    Always(RENAMEAT),
    Always(libc::SYS_renameat2),
    Always(libc::SYS_statfs),
    Always(libc::SYS_fstatfs),
    Always(libc::SYS_getcwd),
    #[cfg(target_arch = "x86_64")]
    Always(libc::SYS_mkdir),
    #[cfg(target_arch = "x86_64")]
    Always(libc::SYS_rename),
    Always(libc::SYS_prlimit64),
    Always(libc::SYS_sysinfo),
    Always(libc::SYS_getrusage),
    Always(libc::SYS_getgroups),
    // Bounding set, no_new_privs, the worker's timer slack.
    Always(libc::SYS_prctl),
];

/// What any thread may call: the sum of all that one needs.
pub const ALL: &[&[Rule]] = &[DEVICES, LOADING, RUNTIME, READING, TALKING, FILES, CALLING, MACHINES];
