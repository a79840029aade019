//! Replacing files: whole, or not at all.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// Mode bits of a file that is written.
#[derive(Clone, Copy, Debug)]
pub struct Modes {
    /// Of one that was not there, less those of the process' mask.
    pub made: u32,
    /// Those that one keeps that was there.
    pub kept: u32,
}

/// Replaces a file, in which is `before`, by another text; who may read it stays. A link stays one.
///
/// # Errors
/// It cannot be written, or is another one by now; nothing was changed.
pub fn replace(file: &Path, before: Option<&str>, text: &str, modes: Modes) -> io::Result<()> {
    let place = if before.is_some() { fs::canonicalize(file)? } else { file.to_owned() };
    let beside = beside(&place);
    let written = write_beside(&place, &beside, before, text, modes);
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

fn write_beside(place: &Path, beside: &Path, before: Option<&str>, text: &str, modes: Modes) -> io::Result<()> {
    // What replaces a file is nobody else's to read before it has the other's mode.
    let mode = if before.is_some() { 0o600 } else { modes.made };
    let mut new = File::options().write(true).create_new(true).mode(mode).open(beside)?;
    new.write_all(text.as_bytes())?;
    if before.is_some() {
        let old = fs::metadata(place)?;
        new.set_permissions(Permissions::from_mode(old.mode() & modes.kept))?;
        let now = new.metadata()?;
        if (old.uid(), old.gid()) != (now.uid(), now.gid()) {
            fchown(&new, Some(old.uid()), Some(old.gid()))?;
        }
    }
    new.sync_all()?;
    let now = match fs::read_to_string(place) {
        Ok(now) => Some(now),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if now.as_deref() != before {
        return Err(io::Error::other("somebody else has changed it meanwhile; repeat the command"));
    }
    fs::rename(beside, place)?;
    if let Some(directory) = place.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        let _ = File::open(directory).and_then(|directory| directory.sync_all());
    }
    Ok(())
}

/// A name of this process' own in the same directory, so that the file can be replaced at once.
fn beside(place: &Path) -> PathBuf {
    let mut name = place.as_os_str().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    PathBuf::from(name)
}
