//! What the daemon keeps of root's rights, by thread: capabilities(7), system calls, and no way
//! back to the rest.
//!
//! Capabilities and filters of system calls belong to threads. The process gives up first what none
//! of its threads needs, while there is only one ([`begin`]); then each thread that is started
//! gives up what its [`Duty`] does not need, before it does anything ([`confine`]). Of what comes
//! from outside, nothing is read by a thread that could do more with it than what it is there for.
//!
//! | capability | for | kept by |
//! |---|---|---|
//! | `NET_ADMIN` | tap devices, their addresses, promiscuous interfaces; long queues for VDE clients | changes, maintenance, VDE |
//! | `SYS_ADMIN` | entering network namespaces (setns), also to open a lost device again | changes, maintenance |
//! | `NET_RAW` | `packet://`: sockets on interfaces that exist | changes, maintenance |
//! | `BPF`, `PERFMON` | `packet://`: the programs that hold an interface | changes, maintenance |
//! | `SYS_NICE` | the worker's place in the scheduler | the worker, until it has it |
//! | `SYS_PTRACE` | only where the configuration has a `netns` below `/proc`: looking at another process's namespace (ptrace(2), access mode checking) | changes, maintenance |
//! | `CHOWN` | the group of the control socket, of VDE directories and of machines' sockets; VDE clients' sockets | changes, VDE, vhost |
//! | `DAC_OVERRIDE` | files, sockets and directories of VDE clients and machines that run as others | changes, maintenance, VDE, vhost, main |
//!
//! All other capabilities go, from the bounding set too, and no_new_privs keeps a program that
//! would be started from getting more; the filter that all threads have lets none be started. What
//! each may call is in `privileges/calls.rs`.

mod calls;

use crate::system::os;
use control::plan::{Plan, PortKind};
use ports::seccomp::{self, Rule};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};
use std::io;
use std::sync::OnceLock;

/// What opening and setting up devices takes.
const DEVICES: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::DAC_OVERRIDE);
/// What letting others in by files takes.
const OTHERS: CapabilitySet = CapabilitySet::CHOWN.union(CapabilitySet::DAC_OVERRIDE);
/// What the process keeps, as far as it has it.
const KEPT: CapabilitySet = DEVICES.union(OTHERS).union(CapabilitySet::SYS_NICE);

/// What threads are there for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Duty {
    /// Starts and ends the others, and removes the run directory, which may be in another user's.
    Main,
    /// Makes changes: opens, sets up and closes devices.
    Changes,
    /// Opens devices again that were lost.
    Maintenance,
    /// Moves frames, or passes on what others say: no file, no socket of its own.
    Passing,
    /// Listens to what the kernel says, and looks whether a file is still there.
    Looking,
    /// The same of links, and asks what they have negotiated.
    Links,
    /// Answers who connects to a socket that is there.
    Serving,
    /// Speaks with other hosts by UDP.
    Peers,
    /// Asks a store, by its name, over TCP.
    Store,
    /// Lets VDE clients in.
    VdeServer,
    /// Speaks with virtual machines' front ends.
    Machines,
}

impl Duty {
    fn capabilities(self) -> CapabilitySet {
        match self {
            Duty::Main => CapabilitySet::DAC_OVERRIDE,
            // A namespace below /proc: where the process has given it up, there is none.
            Duty::Changes => DEVICES.union(OTHERS).union(CapabilitySet::SYS_PTRACE),
            Duty::Maintenance => DEVICES.union(CapabilitySet::SYS_PTRACE),
            Duty::VdeServer => OTHERS.union(CapabilitySet::NET_ADMIN),
            // Sockets that QEMU makes are its user's.
            Duty::Machines => OTHERS,
            Duty::Passing | Duty::Looking | Duty::Links | Duty::Serving | Duty::Peers | Duty::Store => {
                CapabilitySet::empty()
            }
        }
    }

    /// What it may call. `None`: what all may.
    fn calls(self) -> Option<&'static [&'static [Rule]]> {
        match self {
            Duty::Main | Duty::Changes | Duty::Maintenance => None,
            Duty::Passing => Some(&[calls::RUNTIME, calls::CALLING, calls::RINGS]),
            Duty::Looking => Some(&[calls::RUNTIME, calls::READING]),
            Duty::Links => Some(&[calls::RUNTIME, calls::READING, calls::INTERFACES]),
            Duty::Serving => Some(&[calls::RUNTIME, calls::SERVING]),
            Duty::Peers => Some(&[calls::RUNTIME, calls::READING, calls::TALKING, calls::UDP]),
            Duty::Store => Some(&[calls::LOADING, calls::RUNTIME, calls::READING, calls::TALKING, calls::INTERNET]),
            Duty::VdeServer => Some(&[calls::RUNTIME, calls::SERVING, calls::PLUGS, calls::FILES]),
            Duty::Machines => {
                Some(&[calls::RUNTIME, calls::SERVING, calls::PLUGS, calls::FILES, calls::CALLING, calls::MACHINES])
            }
        }
    }
}

/// What this process has begun with; none in a process that is no daemon, whose threads keep what
/// they have.
static BEGUN: OnceLock<Begun> = OnceLock::new();

struct Begun {
    /// Whether threads have filters: the first one could be had.
    is_filtered: bool,
}

/// Whether a namespace of `plan` is named by a process that is in it.
pub fn looks_at_processes(plan: &Plan) -> bool {
    let netns = |kind: &PortKind| match kind {
        PortKind::Tap(tap) | PortKind::Veth(tap) => tap.netns.clone(),
        PortKind::Packet(packet) => packet.netns.clone(),
        PortKind::Host(host) => host.netns.clone(),
        PortKind::Link { .. } | PortKind::Vde(_) | PortKind::VhostUser(_) | PortKind::Director => None,
    };
    let mut ports = plan.switches.values().flat_map(|switch| switch.ports.values());
    ports.any(|port| netns(&port.kind).is_some_and(|netns| netns.starts_with("/proc/")))
}

/// Gives up what the daemon does not need, in the calling thread and in all that it starts. To be
/// called before there is another. Returns warnings: what could not be given up, and why.
pub fn begin(looks_at_processes: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    // Where that is not permitted, threads that have answered once stay behind.
    let _ = os::let_step_up();
    if let Err(error) = drop_needless(looks_at_processes) {
        warnings.push(format!("the process keeps rights that it does not need: {error}; docs/reference/privileges.md lists those that it needs"));
    }
    let filtered = seccomp::restrict(calls::ALL);
    if let Err(error) = &filtered {
        warnings.push(format!(
            "the threads have no filters of system calls: {error}; the kernel needs CONFIG_SECCOMP_FILTER"
        ));
    }
    let _ = BEGUN.set(Begun { is_filtered: filtered.is_ok() });
    warnings
}

fn drop_needless(looks_at_processes: bool) -> io::Result<()> {
    let kept = if looks_at_processes { KEPT.union(CapabilitySet::SYS_PTRACE) } else { KEPT };
    let has = capabilities(None)?;
    if has.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(kept).iter() {
            match remove_capability_from_bounding_set(capability) {
                // A kernel that does not know it cannot give it.
                Err(rustix::io::Errno::INVAL) | Ok(()) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    keep(kept)?;
    Ok(set_no_new_privs(true)?)
}

/// Gives up all other capabilities, in the calling thread and in what it starts.
fn keep(kept: CapabilitySet) -> io::Result<()> {
    let has = capabilities(None)?;
    let sets = CapabilitySets {
        effective: has.effective & kept,
        permitted: has.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, sets)?)
}

/// Gives up what `duty` does not need, in the calling thread and in what it starts. It does nothing
/// in a process that is no daemon.
///
/// # Errors
/// The kernel refused, in words: the thread may have more than it needs.
pub fn confine(duty: Duty) -> Result<(), String> {
    let Some(begun) = BEGUN.get() else { return Ok(()) };
    let filtered = || duty.calls().filter(|_| begun.is_filtered).map_or(Ok(()), seccomp::restrict);
    let confined = keep(duty.capabilities()).and_then(|()| filtered());
    confined.map_err(|error| {
        let thread = std::thread::current();
        format!(
            "the thread {} keeps rights that it does not need: {error}; restart the daemon to try again",
            thread.name().unwrap_or("main")
        )
    })
}

#[cfg(test)]
#[path = "../../../ports/src/skipped.rs"]
mod skipped;

#[cfg(test)]
mod tests {
    use super::skipped::skipped;
    use super::*;
    use datapath::intake::thin::{Destination, Thinned};
    use datapath::wire::Mac;
    use ports::Port;
    use ports::netns::Netns;
    use ports::packet::{Packet, PacketOptions};
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketType, socket};
    use std::fs::{File, OpenOptions};
    use std::io::Write as _;
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;
    use std::sync::Mutex;

    use Duty::*;

    const DUTIES: [Duty; 11] =
        [Main, Changes, Maintenance, Passing, Looking, Links, Serving, Peers, Store, VdeServer, Machines];

    /// Whose calls let a thread do this, whatever its capabilities are.
    fn who(may: fn() -> bool) -> Vec<Duty> {
        let with = |duty: Duty| {
            let thread = std::thread::spawn(move || {
                set_no_new_privs(true).unwrap();
                seccomp::restrict(calls::ALL).unwrap();
                duty.calls().map_or(Ok(()), seccomp::restrict).unwrap();
                may()
            });
            thread.join().unwrap()
        };
        DUTIES.into_iter().filter(|&duty| with(duty)).collect()
    }

    /// Those who make devices, and more.
    fn makers_and(more: &[Duty]) -> Vec<Duty> {
        [&[Main, Changes, Maintenance], more].concat()
    }

    fn passes<T>(result: io::Result<T>) -> bool {
        !result.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    }

    fn makes(family: AddressFamily, kind: SocketType) -> bool {
        socket(family, kind, None).err() != Some(Errno::PERM)
    }

    #[test]
    fn nobody_starts_a_program() {
        assert_eq!(who(|| Command::new("/bin/true").spawn().is_ok()), []);
        // Where it were started it would not come back.
        assert_eq!(who(|| Command::new("/bin/false").exec().kind() != io::ErrorKind::PermissionDenied), []);
    }

    #[test]
    fn nobody_mounts_or_leaves_his_namespaces() {
        use rustix::mount::{UnmountFlags, unmount};
        assert_eq!(who(|| unmount("/levada/nothing", UnmountFlags::empty()) != Err(Errno::PERM)), []);
        assert_eq!(who(|| rustix::process::chroot("/levada/nothing") != Err(Errno::PERM)), []);
    }

    #[test]
    fn everybody_starts_threads_and_has_memory() {
        let work = || std::thread::spawn(|| vec![1u8; 32 << 20]).join().is_ok_and(|bytes| bytes[1 << 20] == 1);
        assert_eq!(who(work), DUTIES);
        assert_eq!(who(|| io::stderr().write_all(b"").is_ok()), DUTIES);
        assert_eq!(who(|| rustix::net::getsockname(io::stderr()).err() != Some(Errno::PERM)), DUTIES);
    }

    #[test]
    fn files_are_written_by_those_who_make_devices() {
        assert_eq!(who(|| OpenOptions::new().write(true).open("/dev/null").is_ok()), makers_and(&[]));
        assert_eq!(who(|| OpenOptions::new().append(true).open("/dev/null").is_ok()), makers_and(&[]));
        assert_eq!(who(|| File::open("/dev/null").is_ok()), makers_and(&[Looking, Links, Peers, Store]));
        assert_eq!(who(|| passes(std::fs::remove_file("/dev/null/levada"))), makers_and(&[VdeServer, Machines]));
        assert_eq!(who(|| passes(std::fs::create_dir("/dev/null/levada"))), makers_and(&[]));
    }

    /// A port at an interface, which the threads of a test share.
    static PORT: Mutex<Option<Packet>> = Mutex::new(None);

    fn of_port<T>(ask: impl FnOnce(&mut Packet) -> T) -> T {
        ask(PORT.lock().unwrap().as_mut().unwrap())
    }

    #[test]
    fn rings_are_looked_at_and_thinned_by_who_reads_them() {
        let space = match Netns::create(&format!("levada-rings-{}", std::process::id())) {
            Ok(space) => space,
            Err(why) => return skipped("rings_are_looked_at_and_thinned_by_who_reads_them", why),
        };
        let link = || Command::new("ip").args("link add w1 type veth peer name w2".split(' ')).status();
        assert!(space.run(link).unwrap().unwrap().success());
        let options = PacketOptions { name: "w1".into(), netns: Some(space.clone()), room: None, is_exclusive: true };
        *PORT.lock().unwrap() = Some(Packet::open(&options).unwrap());
        let all_but: fn(&[Duty]) -> Vec<Duty> =
            |others| DUTIES.into_iter().filter(|duty| !others.contains(duty)).collect();
        assert_eq!(who(|| of_port(|port| port.waiting().is_some())), all_but(&[Looking, Links]));
        let thin: fn() -> bool = || {
            let to = Destination { vlan: None, mac: Mac([2, 0, 0, 0, 0, 1]) };
            of_port(|port| port.thin(&[Thinned { to, keep: 1 }]) && port.thin(&[]))
        };
        assert_eq!(who(thin), makers_and(&[Passing, Peers, Store]));
        let _ = space.delete();
    }

    #[test]
    fn sockets_are_made_by_those_who_speak_over_them() {
        use {AddressFamily as Family, SocketType as Type};
        assert_eq!(who(|| UdpSocket::bind("127.0.0.1:0").is_ok()), makers_and(&[Peers, Store]));
        assert_eq!(who(|| makes(Family::INET, Type::STREAM)), makers_and(&[Store]));
        assert_eq!(who(|| TcpListener::bind("127.0.0.1:0").is_ok()), makers_and(&[]), "nobody listens to strangers");
        assert_eq!(who(|| UnixDatagram::unbound().is_ok()), makers_and(&[Store, VdeServer, Machines]));
        assert_eq!(who(|| passes(UnixStream::connect("/levada/nothing"))), makers_and(&[Store, VdeServer, Machines]));
        assert_eq!(who(|| makes(Family::INET, Type::RAW)), makers_and(&[]));
        assert_eq!(who(|| makes(Family::INET6, Type::RAW)), makers_and(&[]));
        assert_eq!(who(|| makes(Family::NETLINK, Type::RAW)), makers_and(&[]));
        assert_eq!(who(|| makes(Family::PACKET, Type::RAW)), makers_and(&[]));
    }
}
