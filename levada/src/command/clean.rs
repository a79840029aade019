//! `levada clean`: removes what instances that do not run any more have left: devices (also those
//! declared persistent), VDE directories, sockets for virtual machines and run directories. Of an
//! instance that is not named, persistent devices stay: its next start goes on with them.

use crate::error::Failure;
use crate::rundir::{self, RunDir, Taken};
use ports::netns::Netns;
use ports::tap::{has_tagged, remove_tagged};
use std::fmt::Write as _;

/// Cleans up after the instance `name`; without a name, after all that were killed, but for their
/// persistent devices.
pub fn clean(name: Option<String>) -> Result<String, Failure> {
    let base = rundir::base();
    let instances = rundir::instances(&base)
        .map_err(|error| Failure::Failed(format!("cannot read {}: {error}", base.display())))?;
    let (names, asked) = match name {
        Some(name) => (vec![name], true),
        None => (instances.iter().filter(|name| rundir::is_locked(&base, name)).cloned().collect(), false),
    };
    if names.is_empty() {
        return Ok(format!(
            "nothing to clean in {}; for what an instance that was stopped keeps, as its persistent devices: levada clean --name NAME\n",
            base.display()
        ));
    }
    let mut out = String::new();
    for name in names {
        let left_directory = instances.contains(&name);
        // Held while cleaning, so that no daemon of this name starts meanwhile; dropping it removes
        // the directory.
        let mut held = match RunDir::take(&base, &name) {
            Ok(held) => held,
            Err(Taken::Running(pid)) => {
                let pid = pid.map_or_else(String::new, |pid| format!(" as process {pid}"));
                let text = format!("instance \"{name}\" runs{pid}: stop it first");
                if asked {
                    return Err(Failure::Failed(text));
                }
                let _ = writeln!(out, "{text}");
                continue;
            }
            Err(Taken::Io(path, error)) => {
                return Err(Failure::Failed(format!("cannot use {}: {error}; run as root", path.display())));
            }
        };
        // A device may have been put into a namespace that has a path only: a container's.
        let failed = |error| Failure::Failed(format!("cannot remove the devices of \"{name}\": {error}; run as root"));
        let all = Netns::reachable().map_err(failed)?;
        let found = if asked { remove_tagged(&name, &all).map_err(failed)? } else { Vec::new() };
        // With its devices stays what its next start goes on with.
        let has_devices = !asked && has_tagged(&name, &all).map_err(failed)?;
        held.keep(has_devices);
        let directories = held.remove_all_directories();
        let sockets = held.remove_sockets_elsewhere();
        drop(held);
        for device in &found {
            let place = device.netns.as_ref().map_or_else(String::new, |netns| format!(" in {netns}"));
            let tap = format!("tap {}{place} of {name}/{}", device.name, device.endpoint);
            let _ = if device.is_in_use {
                writeln!(out, "{tap} stays: a process has it open; stop the daemon first (its run directory is gone)")
            } else {
                writeln!(out, "removed {tap}")
            };
        }
        for directory in directories {
            let _ = match directory {
                Ok(path) => writeln!(out, "removed the VDE directory {} of {name}", path.display()),
                Err(why) => writeln!(out, "a VDE directory of {name} cannot be removed: {why}"),
            };
        }
        for path in sockets {
            let _ = writeln!(out, "removed {}, made by {name}", path.display());
        }
        if has_devices {
            let _ = writeln!(
                out,
                "cleaned the run directory of {name}; levada clean --name {name} removes its persistent devices"
            );
        } else if left_directory || !asked {
            let _ = writeln!(out, "removed the run directory of {name}");
        } else if found.is_empty() {
            let _ = writeln!(out, "nothing to clean for \"{name}\"");
        }
    }
    Ok(out)
}
