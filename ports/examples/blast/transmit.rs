//! Sending at a rate: batches of messages go out when their time has come.

use std::fmt::Write;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags};

use crate::{LONGEST_MESSAGE, STAMP, STAMP_BYTES, Sending, wall_ns};

/// Messages in one system call at most.
const BATCH: usize = 64;
/// Time that a batch may stand for: short against the 100 ms rows of the sink, long against a
/// system call.
const BATCH_TIME: Duration = Duration::from_micros(200);
/// Time behind schedule that is made good; more, after a stall, is forgone rather than sent as a
/// burst.
const MOST_BEHIND: Duration = Duration::from_millis(10);
/// A socket that takes nothing for so long does not keep the tool from ending.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);

/// Sends, and says what was sent.
pub fn run(sending: &Sending) -> io::Result<String> {
    let sockets = (0..sending.flows).map(|_| open(sending)).collect::<io::Result<Vec<_>>>()?;
    let mut payload = vec![0x55; sending.message_bytes];
    let message_s = sending.rate_bps.map(|rate| sending.message_bytes as f64 * 8.0 / rate as f64);
    let batch = message_s.map_or(BATCH, |message_s| ((BATCH_TIME.as_secs_f64() / message_s) as usize).clamp(1, BATCH));
    // From one batch to the next.
    let gap = message_s.map(|message_s| Duration::from_secs_f64(message_s * batch as f64));
    let (start, began_ns) = (Instant::now(), wall_ns());
    let (mut due, mut refused, mut turn) = (start, 0, 0);
    let mut rows = vec![0; crate::rows(sending.length, sending.row)];
    let last = rows.len() - 1;
    while start.elapsed() < sending.length {
        if let Some(gap) = gap {
            let now = Instant::now();
            if due > now {
                thread::sleep((due - now).min(sending.length));
                continue;
            }
            due = due.max(now.checked_sub(MOST_BEHIND).unwrap_or(now)) + gap;
        }
        let at = start.elapsed();
        for datagram in payload.chunks_mut(sending.segment_bytes.unwrap_or(LONGEST_MESSAGE)) {
            stamp(datagram, at);
        }
        match send(&sockets[turn], &payload, batch) {
            Ok(sent) => rows[((at.as_nanos() / sending.row.as_nanos()) as usize).min(last)] += sent,
            // Full, or an ICMP error that came back for an earlier datagram.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH) => {
                refused += 1;
            }
            Err(error) => return Err(error.into()),
        }
        turn = (turn + 1) % sockets.len();
    }
    Ok(report(sending, began_ns, &rows, refused, start.elapsed()))
}

/// Says in a datagram when it was sent, where there is room.
fn stamp(datagram: &mut [u8], at: Duration) {
    if let Some(room) = datagram.get_mut(..STAMP_BYTES) {
        room[..8].copy_from_slice(&STAMP);
        room[8..].copy_from_slice(&(at.as_nanos() as u64).to_be_bytes());
    }
}

/// `rows` are messages.
fn report(sending: &Sending, began_ns: u128, rows: &[usize], refused: u64, took: Duration) -> String {
    let messages: usize = rows.iter().sum();
    let each = sending.segment_bytes.map_or(1, |segment| sending.message_bytes.div_ceil(segment));
    let bytes = messages * sending.message_bytes;
    let sent = rows.iter().map(|row| (row * sending.message_bytes).to_string()).collect::<Vec<_>>().join(",");
    let seconds = took.as_secs_f64();
    let mut json = String::new();
    let _ = write!(
        json,
        "{{\"began_ns\":{began_ns},\"messages\":{messages},\"datagrams\":{},\"bytes\":{bytes},\"refused_batches\":{refused},\
         \"seconds\":{seconds:.6},\"payload_bps\":{:.0},\"row_ms\":{},\"sent\":[{sent}]}}",
        messages * each,
        bytes as f64 * 8.0 / seconds.max(1e-9),
        sending.row.as_millis(),
    );
    json
}

fn open(sending: &Sending) -> io::Result<UdpSocket> {
    let any = if sending.to.is_ipv4() { [0u8; 4].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind(SocketAddr::new(sending.from.unwrap_or(any), 0))?;
    socket.connect(sending.to)?;
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    if let Some(segment) = sending.segment_bytes {
        let segment = segment as libc::c_int;
        // SAFETY: the option is one int, whose address and size are given; the socket is open.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_UDP,
                libc::UDP_SEGMENT,
                (&raw const segment).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if set != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(socket)
}

/// Sends the same message `count` times; returns how many went out.
fn send(socket: &UdpSocket, payload: &[u8], count: usize) -> Result<usize, Errno> {
    let part = [IoSlice::new(payload)];
    let mut none: [SendAncillaryBuffer<'_, '_, '_>; BATCH] = std::array::from_fn(|_| SendAncillaryBuffer::default());
    let mut messages: Vec<MMsgHdr<'_>> = none[..count].iter_mut().map(|none| MMsgHdr::new(&part, none)).collect();
    rustix::net::sendmmsg(socket, &mut messages, SendFlags::empty())
}
