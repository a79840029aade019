//! What is asked of `/dev/net/tun`: Documentation/networking/tuntap.rst and `linux/if_tun.h`.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Opcode, Setter, Updater, ioctl, opcode};

const TUNSETIFF: Opcode = opcode::write::<c_int>(b'T', 202);
const TUNSETPERSIST: Opcode = opcode::write::<c_int>(b'T', 203);
const TUNSETOFFLOAD: Opcode = opcode::write::<c_int>(b'T', 208);
const TUNGETIFF: Opcode = opcode::read::<c_int>(b'T', 210);
const TUNSETVNETHDRSZ: Opcode = opcode::write::<c_int>(b'T', 216);
const TUNGETDEVNETNS: Opcode = opcode::none(b'T', 227);

/// Bytes of an interface's name with its closing zero (`IFNAMSIZ`).
const NAME_BYTES: usize = 16;
const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
/// Fail where a device of this name exists.
const IFF_TUN_EXCL: u16 = 0x8000;

const TUN_F_CSUM: usize = 0x01;
const TUN_F_TSO4: usize = 0x02;
const TUN_F_TSO6: usize = 0x04;
const TUN_F_TSO_ECN: usize = 0x08;
const TUN_F_USO4: usize = 0x20;
const TUN_F_USO6: usize = 0x40;

/// `struct ifreq`, as these calls use it: 40 bytes.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    flags: u16,
    unused: [u8; 22],
}

impl InterfaceRequest {
    fn new(name: &str, flags: u16) -> Result<Self, Errno> {
        if name.len() >= NAME_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        let mut request = InterfaceRequest { name: [0; NAME_BYTES], flags, unused: [0; 22] };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        Ok(request)
    }

    fn name(&self) -> String {
        let end = self.name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        String::from_utf8_lossy(&self.name[..end]).into_owned()
    }
}

/// Opens the clone device. What is attached to it afterwards is looked up in the calling thread's
/// namespace.
pub(super) fn open() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}

/// Makes a TAP device (`new`; `%d` in its name becomes a number) or attaches to one that exists.
/// Returns its name.
pub(super) fn attach(tap: BorrowedFd<'_>, name: &str, new: bool) -> Result<String, Errno> {
    let exclusive = if new { IFF_TUN_EXCL } else { 0 };
    let mut request = InterfaceRequest::new(name, IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | exclusive)?;
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which InterfaceRequest is in layout
    // and size.
    unsafe { ioctl(tap, Updater::<TUNSETIFF, InterfaceRequest>::new(&mut request)) }?;
    Ok(request.name())
}

/// The name of the device, which its owner may have changed. Fails with EBADFD where it was
/// deleted.
pub(super) fn name(tap: BorrowedFd<'_>) -> Result<String, Errno> {
    let mut request = InterfaceRequest::new("", 0)?;
    // SAFETY: TUNGETIFF writes one `struct ifreq`, which InterfaceRequest is in layout and size.
    unsafe { ioctl(tap, Updater::<TUNGETIFF, InterfaceRequest>::new(&mut request)) }?;
    Ok(request.name())
}

/// The namespace that the device is in now (Linux 5.5 and later).
pub(super) fn netns(tap: BorrowedFd<'_>) -> io::Result<File> {
    // SAFETY: TUNGETDEVNETNS takes no argument and touches none of our memory.
    let fd = unsafe { libc::ioctl(tap.as_raw_fd(), libc::Ioctl::from(TUNGETDEVNETNS)) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel made this descriptor for us in the call above, and nobody else has it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Whether the device outlives the descriptor.
pub(super) fn set_persistent(tap: BorrowedFd<'_>, persistent: bool) -> Result<(), Errno> {
    // SAFETY: TUNSETPERSIST takes its argument by value and touches none of our memory.
    unsafe { ioctl(tap, IntegerSetter::<TUNSETPERSIST>::new_usize(usize::from(persistent))) }
}

/// Sets the length of the header before each frame.
pub(super) fn set_header_bytes(tap: BorrowedFd<'_>, bytes: usize) -> Result<(), Errno> {
    // SAFETY: TUNSETVNETHDRSZ reads one int, which the setter holds.
    unsafe { ioctl(tap, Setter::<TUNSETVNETHDRSZ, c_int>::new(bytes as c_int)) }
}

/// Tells the kernel to give us frames whose checksums and segmentation are still to be done.
/// Returns whether UDP segmentation is among it, which came with Linux 6.2.
pub(super) fn set_offload(tap: BorrowedFd<'_>) -> Result<bool, Errno> {
    let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    let set = |flags| {
        // SAFETY: TUNSETOFFLOAD takes its argument by value and touches none of our memory.
        unsafe { ioctl(tap, IntegerSetter::<TUNSETOFFLOAD>::new_usize(flags)) }
    };
    match set(tcp | TUN_F_USO4 | TUN_F_USO6) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL) => set(tcp).map(|()| false),
        Err(error) => Err(error),
    }
}
