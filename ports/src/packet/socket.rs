//! What is asked of an AF_PACKET socket: packet(7), `linux/if_packet.h`, `linux/filter.h`,
//! `linux/ethtool.h`.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::thin;
use crate::Waiting;
use crate::ethtool;
use crate::netns::Identity;
use datapath::offload::OffloadSupport;

/// The mark on frames that the host's port puts into the interface's ingress: "Lvda". The socket
/// does not read them.
pub(super) const MARK: u32 = 0x4c76_6461;

/// Do not show what others send over the interface (Linux 4.20; not in the libc crate).
const PACKET_IGNORE_OUTGOING: c_int = 23;
/// `tpacket_auxdata::tp_status`: the VLAN fields say something.
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
/// The same: the tag's protocol too (802.1Q or 802.1ad).
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;
/// The usual protocol of a tag (IEEE 802.1Q).
const TPID_8021Q: u16 = 0x8100;
/// `ETHTOOL_GFLAGS`, `ETHTOOL_SFLAGS`, and the flag of large receive offload.
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const ETH_FLAG_LRO: u32 = 1 << 15;
/// `ETHTOOL_GSSET_INFO`, `ETHTOOL_GSTRINGS`, `ETHTOOL_GFEATURES`: how many features the kernel
/// knows, their names, which ones are on.
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GFEATURES: u32 = 0x3a;
/// `ETH_SS_FEATURES`: the set of their names.
const ETH_SS_FEATURES: u32 = 4;
/// `ETH_GSTRING_LEN` in words.
const NAME_WORDS: usize = 8;
/// Features in a block of `struct ethtool_gfeatures`, the words of a block, and the word that says
/// which ones are on.
const BLOCK: usize = 32;
const BLOCK_WORDS: usize = 4;
const ACTIVE: usize = 2;

/// The code of classic BPF instructions (bpf(4), `linux/bpf_common.h`): load a word or half word at
/// a constant, jump if equal, return.
pub(super) const LOAD_WORD: u16 = 0x20;
pub(super) const LOAD_HALF: u16 = 0x28;
pub(super) const JUMP_EQUAL: u16 = 0x15;
pub(super) const RETURN: u16 = 0x06;
/// Where `LOAD_WORD` finds the frame's mark: `SKF_AD_OFF + SKF_AD_MARK`.
const AT_MARK: u32 = (-0x1000 + 20i32) as u32;
/// What a filter returns to have the whole frame.
pub(super) const WHOLE: u32 = u32::MAX;

/// A step that the kernel refused.
pub(super) type Refusal = (&'static str, io::Error);

/// Names the step of a result.
fn step<T>(name: &'static str, result: io::Result<T>) -> Result<T, Refusal> {
    result.map_err(|error| (name, error))
}

fn set<T>(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads size_of::<T>() bytes of `value`; callers give plain structs of
    // numbers in the option's layout.
    let done = unsafe {
        let at: *const T = value;
        libc::setsockopt(socket.as_raw_fd(), level, name, at.cast::<c_void>(), mem::size_of::<T>() as libc::socklen_t)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A socket in the calling thread's namespace that is not bound yet: nothing is in it.
/// `leave` is an address whose frames are left to the host.
pub(super) fn open(leave: Option<[u8; 6]>) -> Result<OwnedFd, Refusal> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = step(
        "opening a packet socket",
        rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(io::Error::from),
    )?;
    let fd = socket.as_fd();
    let on: c_int = 1;
    step("asking for offloaded frames", set(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &on))?;
    step("asking for VLAN tags", set(fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, &on))?;
    step("ignoring what the host sends", set(fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &on))?;
    step("sending past the host's queues", set(fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &on))?;
    step("setting the filter", attach_filter(fd, leave))?;
    Ok(socket)
}

/// A socket in the calling thread's namespace that only sends, by the interface with this index and
/// through the host's queues and programs; what it sends has a mark.
pub(super) fn open_to_send(index: i32, mark: u32) -> Result<OwnedFd, Refusal> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = step(
        "opening a packet socket",
        rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(io::Error::from),
    )?;
    let fd = socket.as_fd();
    let on: c_int = 1;
    step("asking for offloaded frames", set(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &on))?;
    step("marking what it sends", set(fd, libc::SOL_SOCKET, libc::SO_MARK, &mark))?;
    step("bounding its memory", set_send_room(fd, super::SEND_ROOM))?;
    // Of no protocol: nothing is in it.
    step("binding to it", bind_to(fd, index, 0))?;
    Ok(socket)
}

/// Ignores frames with our mark and frames to `leave`, and thins nothing.
pub(super) fn attach_filter(socket: BorrowedFd<'_>, leave: Option<[u8; 6]>) -> io::Result<()> {
    let one = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let equal = |k, jt, jf| libc::sock_filter { code: JUMP_EQUAL, jt, jf, k };
    let mut program = vec![one(LOAD_WORD, AT_MARK)];
    match leave {
        None => program.push(equal(MARK, 1, 0)),
        Some([a, b, c, d, e, f]) => program.extend([
            equal(MARK, 5, 0),
            one(LOAD_WORD, 0),
            equal(u32::from_be_bytes([a, b, c, d]), 0, 2),
            one(LOAD_HALF, 4),
            equal(u32::from(u16::from_be_bytes([e, f])), 1, 0),
        ]),
    }
    program.extend([one(RETURN, WHOLE), one(RETURN, 0)]);
    let _changing = thin::changing();
    set_filter(socket, &mut program)
}

/// Puts a filter in the place of the one that is there.
pub(super) fn set_filter(socket: BorrowedFd<'_>, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // The kernel copies the program, which lives until the call is over.
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

/// `SO_GET_FILTER` (Linux 3.8; `asm-generic/socket.h`; not in the libc crate).
const SO_GET_FILTER: c_int = 26;
/// Instructions of the longest filter that is set here, and more.
const FILTER_MOST: usize = 256;

/// The socket's filter; an error where it has a loaded program in its place.
pub(super) fn filter(socket: BorrowedFd<'_>) -> io::Result<Vec<libc::sock_filter>> {
    let mut program = vec![libc::sock_filter { code: 0, jt: 0, jf: 0, k: 0 }; FILTER_MOST];
    // Of this option alone, the length is in instructions.
    let mut len = FILTER_MOST as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` instructions into `program`, which has that many.
    let done = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_GET_FILTER, program.as_mut_ptr().cast(), &mut len)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    program.truncate(len as usize);
    Ok(program)
}

/// `SO_MEMINFO` (`asm-generic/socket.h`; not in the libc crate).
const SO_MEMINFO: c_int = 55;

/// `SO_ATTACH_BPF` (`asm-generic/socket.h`; not on all architectures in the libc crate).
const SO_ATTACH_BPF: c_int = 50;

/// Lets a loaded program say which frames are read, in place of the filter that is there: each
/// frame meets the one or the other.
pub(super) fn attach_program(socket: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let _changing = thin::changing();
    set(socket, libc::SOL_SOCKET, SO_ATTACH_BPF, &program.as_raw_fd())
}

/// Bounds the memory of frames that wait to be read, in bytes of the kernel's accounting. False:
/// without the right, the kernel's limit (net.core.rmem_max) is all it got.
pub(super) fn set_room(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<bool> {
    // The kernel doubles what it is given (socket(7)).
    let half = c_int::try_from(bytes / 2).unwrap_or(c_int::MAX);
    if set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &half).is_ok() {
        return Ok(true);
    }
    set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &half)?;
    Ok(rustix::net::sockopt::socket_recv_buffer_size(socket)? >= bytes)
}

/// The same for what waits in the device to be sent.
pub(super) fn set_send_room(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let half = c_int::try_from(bytes / 2).unwrap_or(c_int::MAX);
    set(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &half)
        .or_else(|_| set(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &half))
}

/// Begins to read the interface, and holds it in promiscuous mode until the socket is closed.
pub(super) fn bind(socket: BorrowedFd<'_>, index: i32) -> Result<(), Refusal> {
    let member = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    let promiscuous = set(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &member);
    step("setting it promiscuous", promiscuous)?;
    step("binding to it", bind_to(socket, index, libc::ETH_P_ALL as u16))
}

fn bind_to(socket: BorrowedFd<'_>, index: i32, protocol: u16) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the kernel reads size_of::<sockaddr_ll>() bytes of `address`, which is one.
    let done = unsafe {
        let at: *const libc::sockaddr_ll = &address;
        libc::bind(socket.as_raw_fd(), at.cast(), mem::size_of::<libc::sockaddr_ll>() as libc::socklen_t)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `SIOCGSKNS`: a descriptor of the namespace that a socket belongs to (Linux 4.9;
/// `linux/sockios.h`).
const SIOCGSKNS: libc::Ioctl = 0x894c;

/// The index of the interface that a packet socket is bound to, and its namespace; `None` where it
/// is none, or bound to none.
pub(crate) fn socket_on(fd: BorrowedFd<'_>) -> Option<(i32, Identity)> {
    let netns = namespace_of(fd)?;
    Some((bound_to(fd)?, Identity::of(&netns).ok()?))
}

/// The namespace that a socket belongs to.
pub(crate) fn namespace_of(fd: BorrowedFd<'_>) -> Option<File> {
    // SAFETY: SIOCGSKNS takes no argument and touches none of our memory.
    let netns = unsafe { libc::ioctl(fd.as_raw_fd(), SIOCGSKNS) };
    if netns < 0 {
        return None;
    }
    // SAFETY: the kernel made this descriptor for us in the call above, and nobody else has it.
    Some(unsafe { File::from_raw_fd(netns) })
}

/// Whether the interface that the socket was bound to is still there. Takes none of the kernel's
/// locks.
pub(super) fn is_bound(socket: BorrowedFd<'_>) -> bool {
    bound_to(socket).is_some()
}

fn bound_to(socket: BorrowedFd<'_>) -> Option<i32> {
    // SAFETY: all bytes zero is a valid sockaddr_ll, a struct of numbers.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    let mut len = mem::size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `address`, which has that many.
    let done = unsafe {
        let at: *mut libc::sockaddr_ll = &mut address;
        libc::getsockname(socket.as_raw_fd(), at.cast(), &mut len)
    };
    // packet_notifier sets -1 when the interface is unregistered.
    let is_bound = done == 0 && i32::from(address.sll_family) == libc::AF_PACKET && address.sll_ifindex > 0;
    is_bound.then_some(address.sll_ifindex)
}

/// Frames that found no room since the last call.
pub(super) fn drops(socket: BorrowedFd<'_>) -> io::Result<u64> {
    // struct tpacket_stats: frames, drops.
    let mut stats = [0u32; 2];
    let mut len = mem::size_of_val(&stats) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `stats`, which has that many.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            stats.as_mut_ptr().cast(),
            &mut len,
        )
    };
    if done == 0 { Ok(u64::from(stats[1])) } else { Err(io::Error::last_os_error()) }
}

/// What waits to be read, by the kernel's accounting.
pub(super) fn waiting(socket: BorrowedFd<'_>) -> io::Result<Waiting> {
    // The first of the numbers that SO_MEMINFO gives (`linux/sock_diag.h`, Linux 4.12):
    // SK_MEMINFO_RMEM_ALLOC and SK_MEMINFO_RCVBUF.
    let mut numbers = [0u32; 2];
    let mut len = mem::size_of_val(&numbers) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `numbers`, which have that many.
    let done = unsafe {
        let at: *mut u32 = numbers.as_mut_ptr();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_MEMINFO, at.cast(), &mut len)
    };
    let [bytes, room] = numbers.map(u64::from);
    if done == 0 { Ok(Waiting { bytes, room }) } else { Err(io::Error::last_os_error()) }
}

/// What came beside a frame that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    /// Bytes of header and frame.
    pub len: usize,
    /// The frame was longer than the buffer.
    pub is_cut: bool,
    /// Protocol and contents of the VLAN tag that was taken off it.
    pub tag: Option<(u16, u16)>,
}

/// Room for one control message with a `tpacket_auxdata`, aligned as the kernel lays it out.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Reads one frame behind its header.
pub(super) fn read(socket: BorrowedFd<'_>, into: &mut [u8]) -> Result<Read, Errno> {
    let mut part = IoSliceMut::new(into);
    let mut control = Control([0; 64]);
    // SAFETY: all bytes zero is a valid msghdr: no address, no parts, no control data.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = (&raw mut part).cast();
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: `message` names one part (IoSliceMut is an iovec in layout) and a control buffer,
    // which outlive the call.
    let read = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, 0) };
    if read < 0 {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(Read { len: read as usize, is_cut: message.msg_flags & libc::MSG_TRUNC != 0, tag: tag(&message) })
}

fn tag(message: &libc::msghdr) -> Option<(u16, u16)> {
    // SAFETY: `message` was filled in by recvmsg, and its control buffer lives in the caller.
    let control = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    let is_auxdata = control.cmsg_level == libc::SOL_PACKET && control.cmsg_type == libc::PACKET_AUXDATA;
    // struct tpacket_auxdata: status, length, captured (u32); mac, net, tci, tpid (u16): 20 bytes.
    let mut data = [0u8; 20];
    // SAFETY: CMSG_LEN computes with its argument alone.
    let needed = unsafe { libc::CMSG_LEN(data.len() as u32) } as usize;
    if !is_auxdata || (control.cmsg_len as usize) < needed {
        return None;
    }
    // SAFETY: the message is at least as long as header and `data` (checked above), and CMSG_DATA
    // points behind its header.
    unsafe { std::ptr::copy_nonoverlapping(libc::CMSG_DATA(control), data.as_mut_ptr(), data.len()) };
    let status = u32::from_ne_bytes([data[0], data[1], data[2], data[3]]);
    let tci = u16::from_ne_bytes([data[16], data[17]]);
    let tpid = u16::from_ne_bytes([data[18], data[19]]);
    let has = |flag| status & flag != 0;
    has(TP_STATUS_VLAN_VALID).then_some((if has(TP_STATUS_VLAN_TPID_VALID) { tpid } else { TPID_8021Q }, tci))
}

/// Sets large receive offload off: its frames cannot be cut again as they were sent. An interface
/// without it is left.
pub(super) fn set_lro_off(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut value = [ETHTOOL_GFLAGS, 0];
    match ethtool::call(socket, name, &mut value) {
        // It has no such setting.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(()),
        result => result?,
    }
    if value[1] & ETH_FLAG_LRO == 0 {
        return Ok(());
    }
    ethtool::call(socket, name, &mut [ETHTOOL_SFLAGS, value[1] & !ETH_FLAG_LRO])
}

/// What the interface can be handed. The kernel would cut what its device does not, but not past
/// the host's queues: there it drops such a frame. Partial checksums it completes.
pub(super) fn offload(socket: BorrowedFd<'_>, name: &str) -> OffloadSupport {
    let active = active_features(socket, name).unwrap_or_default();
    let has = |feature: &str| active.iter().any(|active| active == feature);
    OffloadSupport {
        csum: true,
        tso4: has("tx-tcp-segmentation"),
        tso6: has("tx-tcp6-segmentation"),
        tso_ecn: has("tx-tcp-ecn-segmentation"),
        uso: has("tx-udp-segmentation"),
        tunnel: false,
    }
}

/// The names of the features that are on. What numbers they have is the kernel's affair.
fn active_features(socket: BorrowedFd<'_>, name: &str) -> io::Result<Vec<String>> {
    // struct ethtool_sset_info: command, padding, the sets as bits of 64, then a count for each of
    // them.
    let mut info = [ETHTOOL_GSSET_INFO, 0, 0, 0, 0];
    for (word, half) in info[2..4].iter_mut().zip((1u64 << ETH_SS_FEATURES).to_ne_bytes().chunks_exact(4)) {
        *word = u32::from_ne_bytes([half[0], half[1], half[2], half[3]]);
    }
    ethtool::call(socket, name, &mut info)?;
    let count = info[4] as usize;
    // struct ethtool_gstrings: command, set, count, then the names.
    let mut names = vec![0; 3 + count * NAME_WORDS];
    names[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, info[4]]);
    ethtool::call(socket, name, &mut names)?;
    // struct ethtool_gfeatures: command, blocks, then the blocks.
    let blocks = count.div_ceil(BLOCK);
    let mut states = vec![0; 2 + blocks * BLOCK_WORDS];
    states[..2].copy_from_slice(&[ETHTOOL_GFEATURES, blocks as u32]);
    ethtool::call(socket, name, &mut states)?;
    let is_active = |index: usize| states[2 + index / BLOCK * BLOCK_WORDS + ACTIVE] >> (index % BLOCK) & 1 != 0;
    let text = |words: &[u32]| {
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0);
        String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
    };
    Ok(names[3..].chunks_exact(NAME_WORDS).enumerate().filter(|(i, _)| is_active(*i)).map(|(_, n)| text(n)).collect())
}
