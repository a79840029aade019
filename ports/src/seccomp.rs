//! Filters of system calls, one thread at a time: seccomp(2), `linux/seccomp.h` and
//! `linux/filter.h`.
//!
//! A filter is a list of the calls that a thread may make ([`Rule`]); all others fail with EPERM,
//! and the thread goes on. What it starts has the same filter, and no thread gets rid of one. It is
//! a program of a few instructions for each call, assembled by hand and loaded by a plain system
//! call: a library for that would be larger than what it replaces.
//!
//! Three answers are not EPERM's. A call whose number is above [`NEWEST`] is one that this list has
//! never known: to it the answer is ENOSYS, with which libraries go back to what they did before
//! there was such a call. The same is true of clone3(2), whose flags lie in memory, where no filter
//! looks: with ENOSYS, clone(2) is made instead. And a call in another architecture's numbers (a 32
//! bit program's) is refused whatever it is.
//!
//! The kernel keeps by itself which calls a filter allows whatever their arguments are (Linux
//! 5.11), so the calls that move frames do not run it.

use std::ffi::c_long;
use std::io;

/// What audit(7) calls this machine's calls (`linux/audit.h`).
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_003e);
/// See above.
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
/// On other machines there are no filters: nobody has looked at their calls.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;

/// The last call that was known when this was written: `file_setattr` of Linux 6.17. The same
/// number everywhere; on x86-64 the old calls of x32, which begin at 2^30, are above it.
const NEWEST: u32 = 469;

/// `SECCOMP_SET_MODE_FILTER`.
const SET_MODE_FILTER: libc::c_uint = 1;
/// `SECCOMP_FILTER_FLAG_SPEC_ALLOW`: before Linux 5.16 a filter would turn off speculation for its
/// thread, which costs far more than the filter. It would protect nothing here: the threads of a
/// process have one memory.
const SPECULATE: libc::c_uint = 1 << 2;
/// What a program answers (`SECCOMP_RET_*`): let it pass, or fail with an error in the lower half.
const ALLOW: u32 = 0x7fff_0000;
const FAIL: u32 = 0x0005_0000;

/// Operations of the old BPF: load a word of [`Data`], and it with a constant, jump, answer.
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const ANSWER: u16 = 0x06;

/// Offsets in `struct seccomp_data`: number, architecture, and the first of six arguments of 64
/// bits.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

/// A call that a thread may make.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// Whatever its arguments are.
    Always(c_long),
    /// Only where all of these hold.
    Where(c_long, &'static [Check]),
}

/// Something about an argument. The kernel reads those that are checked as 32 bits, so only these
/// are looked at.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Which, from 0.
    pub argument: u32,
    /// The bits of it that count.
    pub mask: u32,
    /// What these may be.
    pub values: &'static [u32],
}

/// An instruction (`struct sock_filter`).
fn instruction(operation: u16, then: u8, otherwise: u8, constant: u32) -> libc::sock_filter {
    libc::sock_filter { code: operation, jt: then, jf: otherwise, k: constant }
}

fn answer(what: u32) -> libc::sock_filter {
    instruction(ANSWER, 0, 0, what)
}

/// The program that lets calls pass by `rules`. Where several are of one call, it passes by any of
/// them.
fn program(architecture: u32, rules: &[Rule]) -> Vec<libc::sock_filter> {
    let (refused, unknown) = (FAIL | libc::EPERM as u32, FAIL | libc::ENOSYS as u32);
    let mut program = vec![
        instruction(LOAD, 0, 0, ARCH),
        instruction(JUMP_EQUAL, 1, 0, architecture),
        answer(refused),
        instruction(LOAD, 0, 0, NUMBER),
        instruction(JUMP_GREATER, 0, 1, NEWEST),
        answer(unknown),
        instruction(JUMP_EQUAL, 0, 1, libc::SYS_clone3 as u32),
        answer(unknown),
    ];
    for rule in rules {
        let (call, checks): (_, &[Check]) = match rule {
            Rule::Always(call) => (*call, &[]),
            Rule::Where(call, checks) => (*call, checks),
        };
        // From behind: what does not hold leads to the end, where the number is loaded again for
        // the next rule.
        let mut body = vec![answer(ALLOW), instruction(LOAD, 0, 0, NUMBER)];
        for Check { argument, mask, values } in checks.iter().rev() {
            let mut check = vec![instruction(LOAD, 0, 0, ARGUMENTS + 8 * argument), instruction(AND, 0, 0, *mask)];
            // Each value that it is leads behind the jump.
            let jumps = values.iter().enumerate();
            check.extend(jumps.map(|(i, value)| instruction(JUMP_EQUAL, (values.len() - i) as u8, 0, *value)));
            check.push(instruction(JUMP, 0, 0, body.len() as u32 - 1));
            check.append(&mut body);
            body = check;
        }
        // The lists are constants of a few values, so that a jump of eight bits gets over them.
        program.push(instruction(JUMP_EQUAL, 0, body.len() as u8, call as u32));
        program.extend(body);
    }
    program.push(answer(refused));
    program
}

/// Lets the calling thread, and what it starts from now on, make only these calls. It must have set
/// no_new_privs.
///
/// # Errors
/// The kernel has no seccomp, another filter forbids it, or this kind of machine's calls are not
/// known: nothing is changed.
pub fn restrict(rules: &[&[Rule]]) -> io::Result<()> {
    let architecture = ARCHITECTURE.ok_or(io::ErrorKind::Unsupported)?;
    let mut program = program(architecture, &rules.concat());
    let length = program.len().try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    // SAFETY: the kernel reads `len` instructions, which the vector has and which outlive the call;
    // it changes nothing of this process's memory.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, SPECULATE, &raw const program) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketType, socket};

    /// What a test's thread needs to tell what it has seen and to end.
    const RUNTIME: &[Rule] = &[
        Rule::Always(libc::SYS_futex),
        Rule::Always(libc::SYS_munmap),
        Rule::Always(libc::SYS_madvise),
        Rule::Always(libc::SYS_sigaltstack),
        Rule::Always(libc::SYS_rt_sigprocmask),
        Rule::Always(libc::SYS_write),
        Rule::Always(libc::SYS_close),
        Rule::Always(libc::SYS_exit),
    ];

    /// Does something in a thread with a filter.
    fn restricted<T: Send + 'static>(rules: &'static [Rule], work: fn() -> T) -> T {
        let thread = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            restrict(&[RUNTIME, rules]).unwrap();
            work()
        });
        thread.join().unwrap()
    }

    #[test]
    fn what_is_not_listed_fails_and_the_thread_goes_on() {
        let root = || rustix::fs::open("/", rustix::fs::OFlags::PATH, 0.into()).err();
        assert_eq!(restricted(&[], root), Some(Errno::PERM));
        assert_eq!(root(), None, "other threads do as they like");
    }

    #[test]
    fn arguments_count_where_they_are_listed() {
        const UNIX: Check = Check { argument: 0, mask: u32::MAX, values: &[libc::AF_UNIX as u32] };
        const INET: Check =
            Check { argument: 0, mask: u32::MAX, values: &[libc::AF_NETLINK as u32, libc::AF_INET as u32] };
        const DATAGRAMS: Check = Check { argument: 1, mask: 0xf, values: &[libc::SOCK_DGRAM as u32] };
        const RULES: &[Rule] =
            &[Rule::Where(libc::SYS_socket, &[UNIX]), Rule::Where(libc::SYS_socket, &[INET, DATAGRAMS])];
        let made = restricted(RULES, || {
            let kinds = [
                (AddressFamily::UNIX, SocketType::STREAM),
                (AddressFamily::INET, SocketType::DGRAM),
                (AddressFamily::INET6, SocketType::DGRAM),
                (AddressFamily::INET, SocketType::STREAM),
            ];
            kinds.map(|(family, kind)| socket(family, kind, None).err())
        });
        let no = Some(Errno::PERM);
        assert_eq!(made, [None, None, no, no]);
    }

    #[test]
    fn what_nobody_knew_is_no_call() {
        // SAFETY: a call that does not exist does nothing, and clone3 without arguments neither.
        let calls = || unsafe {
            [libc::SYS_clone3, 1 << 20, libc::SYS_getppid].map(|call| {
                libc::syscall(call, 0, 0);
                io::Error::last_os_error().raw_os_error()
            })
        };
        let seen = restricted(&[], calls);
        assert_eq!(seen, [Some(libc::ENOSYS), Some(libc::ENOSYS), Some(libc::EPERM)]);
    }

    #[test]
    fn all_jumps_stay_within_the_program() {
        let rules = [
            Rule::Always(1),
            Rule::Where(
                2,
                &[Check { argument: 5, mask: 7, values: &[1, 2, 3] }, Check { argument: 0, mask: 1, values: &[0] }],
            ),
        ];
        let program = program(1, &rules);
        for (i, step) in program.iter().enumerate() {
            let jump = if step.code == JUMP { step.k as usize } else { step.jt.max(step.jf).into() };
            assert!(i + 1 + jump < program.len() || step.code == ANSWER, "instruction {i}");
        }
        assert_eq!(program.last().map(|last| (last.code, last.k)), Some((ANSWER, FAIL | libc::EPERM as u32)));
    }
}
