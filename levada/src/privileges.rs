//! What the daemon keeps of root's rights: capabilities(7), and no way back to the rest.
//!
//! | capability | for |
//! |---|---|
//! | `NET_ADMIN` | tap devices, their addresses, promiscuous interfaces |
//! | `SYS_ADMIN` | entering network namespaces (setns), also to open a lost device again |
//! | `NET_RAW` | `packet://`: sockets on interfaces that exist |
//! | `BPF`, `PERFMON` | `packet://`: the programs that hold an interface |
//! | `SYS_NICE` | the worker's place in the scheduler |
//! | `SYS_PTRACE` | only where the configuration has a `netns` below `/proc`: looking at another process's namespace (ptrace(2), access mode checking) |
//! | `CHOWN`, `DAC_OVERRIDE` | the group of the control socket; sockets and directories of VDE clients that run as others |
//!
//! All other capabilities go, from the bounding set too, and no_new_privs keeps a program that would be started from getting more. Capabilities
//! belong to threads: this is done while there is only one.

use control::plan::{Plan, PortKind};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};
use std::io;

/// What is kept, as far as the process has it.
const KEPT: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE);

/// Whether a namespace of `plan` is named by a process that is in it.
pub fn looks_at_processes(plan: &Plan) -> bool {
    let netns = |kind: &PortKind| match kind {
        PortKind::Tap(tap) => tap.netns.clone(),
        PortKind::Packet(packet) => packet.netns.clone(),
        PortKind::Host(host) => host.netns.clone(),
        PortKind::Link { .. } | PortKind::Vde(_) => None,
    };
    let mut ports = plan.switches.values().flat_map(|switch| switch.ports.values());
    ports.any(|port| netns(&port.kind).is_some_and(|netns| netns.starts_with("/proc/")))
}

/// Gives up what the calling thread, and all that it starts, does not need.
///
/// # Errors
/// The kernel refused; part of it may be done.
pub fn drop_needless(looks_at_processes: bool) -> io::Result<()> {
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
    let sets = CapabilitySets {
        effective: has.effective & kept,
        permitted: has.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)?;
    Ok(set_no_new_privs(true)?)
}
