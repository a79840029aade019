//! Programs of a few instructions each, held at their hooks by links: bpf(2), `linux/bpf.h`, and
//! Documentation/bpf/ on TCX (Linux 6.6).
//!
//! They are assembled by hand and loaded by plain system calls: nothing needs a compiler on the
//! user's machine, and a library for some instructions would be larger than what it replaces. The
//! three that make an interface the switch's alone are here; those of shortcuts are in `shortcut/`,
//! and that of tunnels in `tunnel.rs`. A link is a descriptor: when its last copy is closed, be it
//! by kill -9, the kernel takes the program off its hook.

use std::ffi::{c_int, c_long};
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::socket::MARK;
use crate::survey::Survey;

/// Commands of bpf(2).
const BPF_PROG_LOAD: c_int = 5;
const BPF_OBJ_GET_INFO_BY_FD: c_int = 15;
const BPF_PROG_QUERY: c_int = 16;
const BPF_LINK_CREATE: c_int = 28;
/// Most attempts to load a program where signals interrupt the kernel's verifier.
const LOAD_ATTEMPTS: usize = 100;
/// `BPF_LINK_TYPE_TCX`.
const TCX_LINK: u32 = 11;
/// Programs at one hook at most (`BPF_MPROG_MAX`).
const MOST_PROGRAMS: usize = 64;
/// What a program is for: `BPF_PROG_TYPE_SOCKET_FILTER` and `BPF_PROG_TYPE_SCHED_CLS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    SocketFilter = 1,
    SchedCls = 3,
}

/// Before the programs that are there (`BPF_F_BEFORE`).
pub(super) const BEFORE: u32 = 1 << 3;
/// Where `struct __sk_buff` has the mark.
pub(super) const SKB_MARK: i16 = 8;
/// `TCX_NEXT` and `TCX_DROP`: what a program says of a frame.
pub(super) const NEXT: i32 = -1;
pub(super) const DROP: i32 = 2;
/// Number of the helper `bpf_redirect(interface, flags)`, and its flag for the interface's ingress.
pub(super) const REDIRECT: i32 = 23;
const TO_INGRESS: i32 = 1;

/// A hook of an interface: `BPF_TCX_INGRESS` or `BPF_TCX_EGRESS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hook {
    Ingress = 46,
    Egress = 47,
}

/// One instruction: operation, registers (destination in the lower half), offset, constant.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Instruction {
    pub operation: u8,
    pub registers: u8,
    pub offset: i16,
    pub constant: i32,
}

/// Operations, of the instruction set's standard (RFC 9669).
pub(super) const MOVE: u8 = 0xb7;
pub(super) const LOAD_WORD: u8 = 0x61;
pub(super) const STORE_WORD: u8 = 0x63;
pub(super) const JUMP_EQUAL: u8 = 0x15;
pub(super) const CALL: u8 = 0x85;
pub(super) const EXIT: u8 = 0x95;

pub(super) const fn op(operation: u8, to: u8, from: u8, offset: i16, constant: i32) -> Instruction {
    Instruction { operation, registers: to | from << 4, offset, constant }
}

/// Register `to` becomes `value`.
pub(super) const fn set(to: u8, value: i32) -> Instruction {
    op(MOVE, to, 0, 0, value)
}

/// At the interface's ingress: what carries our mark goes on, without it; all else is dropped. The
/// packet socket has read it before.
fn only_marked() -> Vec<Instruction> {
    vec![
        op(LOAD_WORD, 2, 1, SKB_MARK, 0),
        op(JUMP_EQUAL, 2, 0, 2, MARK as i32),
        set(0, DROP),
        op(EXIT, 0, 0, 0, 0),
        set(2, 0),
        op(STORE_WORD, 1, 2, SKB_MARK, 0),
        set(0, NEXT),
        op(EXIT, 0, 0, 0, 0),
    ]
}

/// At the interface's egress: what the host sends goes to the device `to` instead.
fn redirect_to(to: i32) -> Vec<Instruction> {
    vec![set(1, to), set(2, 0), op(CALL, 0, 0, 0, REDIRECT), op(EXIT, 0, 0, 0, 0)]
}

/// At the ingress of the host's device: what the switch writes into it enters the host through the
/// interface `to`, with our mark.
fn mark_and_enter(to: i32) -> Vec<Instruction> {
    let mut program = vec![set(2, MARK as i32), op(STORE_WORD, 1, 2, SKB_MARK, 0)];
    program.extend([set(1, to), set(2, TO_INGRESS), op(CALL, 0, 0, 0, REDIRECT), op(EXIT, 0, 0, 0, 0)]);
    program
}

/// The three links that make an interface the switch's alone.
#[derive(Debug)]
pub(super) struct Links([OwnedFd; 3]);

impl Links {
    /// Attaches the programs, in the calling thread's namespace: from then on the host reaches
    /// `interface` through `device` only. The way out comes before the way in is closed.
    pub fn attach(interface: i32, device: i32) -> io::Result<Links> {
        let enter = link(&mark_and_enter(interface), device, Hook::Ingress, 0)?;
        let leave = link(&redirect_to(device), interface, Hook::Egress, 0)?;
        // Others' programs at this hook are for the host, so they see only what the switch lets
        // through.
        let guard = link(&only_marked(), interface, Hook::Ingress, BEFORE)?;
        Ok(Links([guard, leave, enter]))
    }

    /// Those of an earlier process, which are among what is at the hooks; `None` where one is
    /// missing.
    pub fn inherit(at: &AtHooks, survey: &Survey) -> Option<Links> {
        let [guard, leave, enter] = &at.0;
        let take = |ids: &[u32]| survey.link(ids, link_id);
        Some(Links([take(guard)?, take(leave)?, take(enter)?]))
    }

    /// The descriptors that hold them.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd)
    }

    /// Whether all are still at their hooks: a link whose interface was deleted stays open,
    /// attached to nothing.
    pub fn hold(&self) -> bool {
        self.0.iter().all(holds)
    }
}

/// The ids of the links, whosever they are, at the hooks that [`Links::attach`] uses.
pub(super) struct AtHooks([Vec<u32>; 3]);

impl AtHooks {
    /// Looks in the calling thread's namespace.
    pub fn look(interface: i32, device: i32) -> io::Result<AtHooks> {
        let at = |index: i32, hook| links_at(index as u32, hook);
        let guard = at(interface, Hook::Ingress)?;
        Ok(AtHooks([guard, at(interface, Hook::Egress)?, at(device, Hook::Ingress)?]))
    }
}

/// Whether this kernel and these rights allow it: loads a program, and attaches it nowhere.
pub(super) fn probe() -> io::Result<()> {
    load(&only_marked(), Kind::SchedCls).map(drop)
}

/// `struct` of BPF_PROG_LOAD, as far as it is used; the kernel takes the rest for zero.
#[repr(C)]
struct Load {
    kind: u32,
    instructions: u32,
    program: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

/// The same of BPF_LINK_CREATE.
#[repr(C)]
struct Create {
    program: u32,
    interface: u32,
    hook: u32,
    flags: u32,
    relative: u64,
    revision: u64,
}

/// The same of BPF_OBJ_GET_INFO_BY_FD.
#[repr(C)]
struct GetInfo {
    fd: u32,
    len: u32,
    info: u64,
}

/// `struct bpf_link_info` of a TCX link.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    padding: u32,
    interface: u32,
    hook: u32,
}

/// The same of BPF_PROG_QUERY, whole: the kernel writes the revision whatever size it is told.
#[repr(C)]
#[derive(Default)]
struct Query {
    interface: u32,
    hook: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    padding: u32,
    program_flags: u64,
    links: u64,
    link_flags: u64,
    revision: u64,
}

/// # Safety
/// `T` must be the layout of `command`'s attributes, and what it points to must be valid for what
/// the command does with it.
pub(super) unsafe fn bpf<T>(command: c_int, attributes: &mut T) -> io::Result<c_long> {
    // SAFETY: the kernel reads and writes at most size_of::<T>() bytes of the attributes; the rest
    // is the caller's promise.
    let result = unsafe {
        let at: *mut T = attributes;
        libc::syscall(libc::SYS_bpf, command, at, mem::size_of::<T>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// # Safety
/// As for [`bpf`], and the command must return a new descriptor.
pub(super) unsafe fn bpf_fd<T>(command: c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise; the kernel made the descriptor for us, and nobody else has it.
    unsafe { bpf(command, attributes).map(|fd| OwnedFd::from_raw_fd(fd as RawFd)) }
}

/// Loads a program, which the kernel verifies. A pending signal interrupts the verifier, and the
/// call returns EAGAIN. So does a signal that only stops and continues the process. The call is
/// then repeated: Linux's commit c3494801cd17, "bpf: check pending signals while verifying
/// programs".
pub(super) fn load(program: &[Instruction], kind: Kind) -> io::Result<OwnedFd> {
    // No helper that is used is kept to programs under the GPL, so this project's own licence can
    // be told.
    let licence = c"Apache-2.0";
    let mut load = Load {
        kind: kind as u32,
        instructions: program.len() as u32,
        program: program.as_ptr() as u64,
        licence: licence.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: *b"levada\0\0\0\0\0\0\0\0\0\0",
    };
    let mut attempt = || {
        // SAFETY: `Load` is BPF_PROG_LOAD's layout; program and licence outlive the call, and the
        // kernel only reads them.
        unsafe { bpf_fd(BPF_PROG_LOAD, &mut load) }
    };
    for _ in 1..LOAD_ATTEMPTS {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            result => return result,
        }
    }
    attempt()
}

fn link(program: &[Instruction], interface: i32, hook: Hook, flags: u32) -> io::Result<OwnedFd> {
    attach(&load(program, Kind::SchedCls)?, interface, hook, flags)
}

/// Attaches a program that is loaded, in the calling thread's namespace. The link holds the
/// program.
pub(super) fn attach(program: &OwnedFd, interface: i32, hook: Hook, flags: u32) -> io::Result<OwnedFd> {
    let mut create = Create {
        program: program.as_raw_fd() as u32,
        interface: interface as u32,
        hook: hook as u32,
        flags,
        relative: 0,
        revision: 0,
    };
    // SAFETY: `Create` is BPF_LINK_CREATE's layout for TCX, and points to nothing.
    unsafe { bpf_fd(BPF_LINK_CREATE, &mut create) }
}

/// Whether a link is still at its hook.
pub(super) fn holds(link: &OwnedFd) -> bool {
    interface_of(link).is_ok_and(|interface| interface != 0)
}

fn interface_of(link: &OwnedFd) -> io::Result<u32> {
    inspect(link.as_fd()).map(|info| info.interface)
}

/// The id of a TCX link; `None` where the descriptor is not of one.
pub(crate) fn link_id(fd: BorrowedFd<'_>) -> Option<u32> {
    inspect(fd).ok().filter(|info| info.kind == TCX_LINK).map(|info| info.id)
}

fn inspect(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    let mut info = LinkInfo::default();
    let at: *mut LinkInfo = &mut info;
    let len = mem::size_of::<LinkInfo>() as u32;
    let mut get = GetInfo { fd: link.as_raw_fd() as u32, len, info: at as u64 };
    // SAFETY: `GetInfo` is the command's layout; the kernel writes at most `len` bytes into `info`,
    // which outlives the call.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut get) }?;
    Ok(info)
}

/// The ids of the links at a hook of the interface with this index, in the calling thread's
/// namespace.
fn links_at(interface: u32, hook: Hook) -> io::Result<Vec<u32>> {
    // The kernel tells of links only to who asks for programs too.
    let (mut programs, mut links) = ([0u32; MOST_PROGRAMS], [0u32; MOST_PROGRAMS]);
    let mut query = Query {
        interface,
        hook: hook as u32,
        programs: programs.as_mut_ptr() as u64,
        count: MOST_PROGRAMS as u32,
        links: links.as_mut_ptr() as u64,
        ..Query::default()
    };
    // SAFETY: `Query` is BPF_PROG_QUERY's layout to its end; it points to two arrays of `count`
    // numbers, which outlive the call.
    unsafe { bpf(BPF_PROG_QUERY, &mut query) }?;
    // A program that is there without a link has the id 0.
    Ok(links.into_iter().take(query.count as usize).filter(|id| *id != 0).collect())
}

/// How many programs are at an interface's TCX hooks, whosever they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hooks {
    /// At its ingress.
    pub ingress: u32,
    /// At its egress.
    pub egress: u32,
}

/// Asks for the programs at the hooks of the interface with this index, in the calling thread's
/// namespace.
///
/// # Errors
/// There is no such interface, the kernel is older than 6.6, or the process may not ask.
pub fn hooks(interface: u32) -> io::Result<Hooks> {
    let count = |hook: Hook| -> io::Result<u32> {
        let mut query = Query { interface, hook: hook as u32, ..Query::default() };
        // SAFETY: `Query` is BPF_PROG_QUERY's layout to its end; it points to nothing, so that the
        // kernel only counts.
        unsafe { bpf(BPF_PROG_QUERY, &mut query) }?;
        Ok(query.count)
    };
    Ok(Hooks { ingress: count(Hook::Ingress)?, egress: count(Hook::Egress)? })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::skipped::skipped;

    #[test]
    fn instructions_have_the_kernels_layout() {
        assert_eq!(mem::size_of::<Instruction>(), 8);
        assert_eq!(mem::size_of::<Load>(), 64);
        assert_eq!(mem::size_of::<Create>(), 32);
        assert_eq!(mem::offset_of!(Query, revision), 56);
        assert_eq!(mem::offset_of!(LinkInfo, interface), 16);
        let store = op(STORE_WORD, 1, 2, SKB_MARK, 0);
        assert_eq!((store.operation, store.registers, store.offset), (0x63, 0x21, 8));
    }

    #[test]
    fn the_way_past_the_drop_is_two_instructions() {
        let program = only_marked();
        let jump = program.iter().position(|i| i.operation == JUMP_EQUAL).unwrap();
        assert_eq!(program[jump].offset, 2);
        assert_eq!(program[jump + 1 + 2], set(2, 0));
    }

    extern "C" fn ignore(_signal: c_int) {}

    #[test]
    fn signals_do_not_keep_a_program_from_being_loaded() {
        if let Err(why) = crate::packet::probe() {
            return skipped("signals_do_not_keep_a_program_from_being_loaded", why);
        }
        // The kernel looks through it for about as long as most of the pauses between two signals.
        let mut program = vec![set(0, NEXT); 500];
        program.push(op(EXIT, 0, 0, 0, 0));
        let handler: extern "C" fn(c_int) = ignore;
        // SAFETY: the handler does nothing; nothing else in this process has one for the signal.
        unsafe { libc::signal(libc::SIGURG, handler as libc::sighandler_t) };
        // SAFETY: gettid and getpid have no preconditions.
        let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
        let loaded = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for pause in [100, 100, 100, 100, 10_000].iter().cycle() {
                    if loaded.load(Ordering::Relaxed) {
                        break;
                    }
                    // SAFETY: the thread outlives the scope, and the signal has a handler.
                    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGURG) };
                    std::thread::sleep(Duration::from_micros(*pause));
                }
            });
            let results: Vec<_> = (0..200).map(|_| load(&program, Kind::SchedCls)).collect();
            loaded.store(true, Ordering::Relaxed);
            for result in results {
                result.unwrap();
            }
        });
    }
}
