//! Groups of the system, by name or number: getgrnam(3).

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;

/// Room for the names of a large group's members (getgrnam_r(3)), in bytes.
const ENTRY_BYTES: usize = 1 << 20;

/// The number of a group; `None` where there is none of that name.
///
/// # Errors
/// The system's database of groups cannot be read.
pub fn number(group: &str) -> io::Result<Option<u32>> {
    if let Ok(number) = group.parse::<u32>() {
        // The last stands for "leave it" (chown(2)).
        return Ok(Some(number).filter(|&number| number != u32::MAX));
    }
    let Ok(name) = CString::new(group) else { return Ok(None) };
    let mut entry = MaybeUninit::<libc::group>::uninit();
    let mut found = std::ptr::null_mut();
    let mut room = vec![0 as libc::c_char; ENTRY_BYTES];
    // SAFETY: all pointers are to live memory of the sizes given; the name ends with a zero.
    let error =
        unsafe { libc::getgrnam_r(name.as_ptr(), entry.as_mut_ptr(), room.as_mut_ptr(), room.len(), &raw mut found) };
    match error {
        // SAFETY: where the call set `found`, it points to `entry`, which it has filled.
        0 => Ok(unsafe { found.as_ref() }.map(|group| group.gr_gid)),
        // What getgrnam_r says of a name that it does not know where there is no database at all.
        libc::ENOENT => Ok(None),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_name_and_by_number() {
        assert_eq!(number("root").unwrap(), Some(0));
        assert_eq!(number("54321").unwrap(), Some(54321));
        for none in ["levada-never-made", "4294967295", "ro\0ot"] {
            assert_eq!(number(none).unwrap(), None, "{none:?}");
        }
    }
}
