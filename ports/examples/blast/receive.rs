//! Counting what arrives. The kernel may hand over datagrams of one flow joined to one message
//! (UDP_GRO, udp(7)) and says then how long each is.

use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::{STAMP, STAMP_BYTES, Sinking, wall_ns};

/// Messages in one system call at most.
const BATCH: usize = 64;
/// Room for one message; joined ones have up to 64 KiB.
const MESSAGE_BYTES: usize = 1 << 16;
/// Room for the one control message that is asked for: a header of 16 bytes and an int.
const CONTROL_BYTES: usize = 64;
/// How long a call waits for a first message: a fraction of a usual row. What comes is put in the
/// row of the time when it came.
const WAIT: Duration = Duration::from_millis(20);
/// Bytes that the socket may hold: 50 ms of 100 000 small datagrams, each charged at about 1 KiB.
const SOCKET_BYTES: libc::c_int = 8 << 20;

#[derive(Clone, Copy, Default)]
struct Row {
    datagrams: u64,
    bytes: u64,
}

/// Counts, and says what was counted.
pub fn run(sinking: &Sinking) -> io::Result<String> {
    let socket = open(sinking)?;
    let mut batch = Batch::new();
    let mut rows = vec![Row::default(); crate::rows(sinking.length, sinking.row)];
    let last = rows.len() - 1;
    // Bytes by the sender's rows.
    let mut sent = vec![0; rows.len()];
    let (start, began_ns) = (Instant::now(), wall_ns());
    while start.elapsed() < sinking.length {
        let received = batch.receive(&socket)?;
        let row = &mut rows[((start.elapsed().as_nanos() / sinking.row.as_nanos()) as usize).min(last)];
        for datagram in (0..received).flat_map(|i| batch.datagrams(i)) {
            row.bytes += datagram.len() as u64;
            row.datagrams += 1;
            if let Some(sent) = sent_ns(datagram).and_then(|ns| sent.get_mut((ns / sinking.row.as_nanos()) as usize)) {
                *sent += datagram.len() as u64;
            }
        }
    }
    Ok(report(began_ns, sinking.row, &rows, &sent, socket_drops(&socket)?))
}

/// When a datagram says it was sent, in nanoseconds after its sender's start.
fn sent_ns(datagram: &[u8]) -> Option<u128> {
    let (stamp, ns) = datagram.get(..STAMP_BYTES)?.split_at(8);
    (stamp == STAMP).then(|| ns.iter().fold(0, |ns, byte| ns << 8 | u128::from(*byte)))
}

fn report(began_ns: u128, row: Duration, rows: &[Row], sent: &[u64], dropped: u32) -> String {
    let sent = sent.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let list = |pick: fn(&Row) -> u64| rows.iter().map(|row| pick(row).to_string()).collect::<Vec<_>>().join(",");
    format!(
        "{{\"began_ns\":{began_ns},\"row_ms\":{},\"datagrams\":[{}],\"bytes\":[{}],\"sent\":[{sent}],\"total_datagrams\":{},\"total_bytes\":{},\"socket_drops\":{dropped}}}",
        row.as_millis(),
        list(|row| row.datagrams),
        list(|row| row.bytes),
        rows.iter().map(|row| row.datagrams).sum::<u64>(),
        rows.iter().map(|row| row.bytes).sum::<u64>(),
    )
}

fn open(sinking: &Sinking) -> io::Result<UdpSocket> {
    let on = sinking.on;
    let socket = match UdpSocket::bind(on) {
        // Without IPv6 the unspecified address is IPv4's.
        Err(_) if on.ip().is_unspecified() => UdpSocket::bind(SocketAddr::new(IpAddr::from([0u8; 4]), on.port()))?,
        bound => bound?,
    };
    socket.set_read_timeout(Some(WAIT))?;
    set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    // More than the system's bound takes root; what it gives otherwise has to do.
    set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, SOCKET_BYTES)
        .or_else(|_| set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, SOCKET_BYTES))?;
    Ok(socket)
}

fn set(socket: &UdpSocket, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: these options are one int, whose address and size are given; the socket is open.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), bytes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Datagrams that found the socket full: the ninth number of `SO_MEMINFO` (`SK_MEMINFO_DROPS`).
fn socket_drops(socket: &UdpSocket) -> io::Result<u32> {
    let mut numbers = [0u32; 9];
    let mut bytes = size_of_val(&numbers) as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes, which is the array's size; the socket is
    // open.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            numbers.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if got == 0 { Ok(numbers[8]) } else { Err(io::Error::last_os_error()) }
}

/// Room for the messages of one call.
struct Batch {
    data: Vec<[u8; MESSAGE_BYTES]>,
    control: Vec<[u8; CONTROL_BYTES]>,
    headers: Vec<libc::mmsghdr>,
}

impl Batch {
    fn new() -> Batch {
        Batch {
            data: vec![[0; MESSAGE_BYTES]; BATCH],
            control: vec![[0; CONTROL_BYTES]; BATCH],
            headers: Vec::with_capacity(BATCH),
        }
    }

    /// Receives what waits; returns how many messages.
    fn receive(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        let mut parts: Vec<libc::iovec> = self
            .data
            .iter_mut()
            .map(|data| libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: MESSAGE_BYTES })
            .collect();
        self.headers.clear();
        for (part, control) in parts.iter_mut().zip(&mut self.control) {
            // SAFETY: all zeros are a valid mmsghdr: no name, no data, no control bytes.
            let mut header: libc::mmsghdr = unsafe { zeroed() };
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
            self.headers.push(header);
        }
        // SAFETY: each of the BATCH headers points to one iovec and to data and control bytes of
        // the sizes they say, which outlive the call and which nothing else touches during it;
        // there is no time-out to point to.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_WAITFORONE as _,
                std::ptr::null_mut(),
            )
        };
        match usize::try_from(received) {
            Ok(received) => Ok(received),
            Err(_) => match io::Error::last_os_error() {
                error if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
                error => Err(error),
            },
        }
    }

    /// The datagrams that a message is made of.
    fn datagrams(&self, index: usize) -> impl Iterator<Item = &[u8]> {
        let header = &self.headers[index];
        let bytes = header.msg_len as usize;
        // struct cmsghdr: a length of 8 bytes, then level and type, then the segments' length.
        let control = &self.control[index];
        let number =
            |at: usize| libc::c_int::from_ne_bytes([control[at], control[at + 1], control[at + 2], control[at + 3]]);
        let joined = header.msg_hdr.msg_controllen >= 20
            && number(8) == libc::SOL_UDP
            && number(12) == libc::UDP_GRO
            && number(16) > 0;
        self.data[index][..bytes].chunks(if joined { number(16) as usize } else { MESSAGE_BYTES })
    }
}
