//! Bulk frames as TCP makes them, from one machine to another over vhost-user: what a back end
//! carries. Neither machine is one: this process drives the rings of both, in one thread, and has
//! no TCP.
//!
//!     bulk SENDER RECEIVER WARM_SECONDS SECONDS    sockets of two ports of one back end
//!
//! A frame has what Linux sends at most at once (45 segments of 1448 bytes of payload, with time
//! stamps): it is yet to be segmented, and its checksum is that of the pseudo-header. Buffers have
//! 4096 bytes, as Linux's have for bulk frames that it receives; so a frame is a chain of 16
//! descriptors for the sender, and 16 merged buffers for the receiver. Rings have 1024 entries: 64
//! frames.
//!
//! The sender makes its frames once; whenever one comes back it is sent again, untouched. Of each
//! frame the receiver looks at the length, the virtio header and TCP's sequence number; of each
//! [`CHECKED`]th at all bytes. Prints as JSON what came in a window after a while: frames, bytes of
//! TCP's payload, and of the whole run frames that were lost, were wrong, and were read whole.

use std::env::args;
use std::io;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ports::vhost::feature as f;
use ports::vhost::front_end::FrontEnd;

const ENTRIES: u16 = 1024;
const BUFFER_BYTES: usize = 4096;
/// Every which frame all bytes are compared.
const CHECKED: u64 = 512;
/// Said to standard error when the window begins.
const BEGUN: &str = "bulk: begun";
/// How long a back end may take from its last answer to the first frame.
const SETTLING: Duration = Duration::from_millis(300);
/// Without a frame for so long, none comes any more.
const PATIENCE: Duration = Duration::from_secs(5);
const FEATURES: u64 = f::PROTOCOL_FEATURES
    | f::VERSION_1
    | f::EVENT_IDX
    | f::MRG_RXBUF
    | f::CSUM
    | f::GUEST_CSUM
    | f::HOST_TSO4
    | f::GUEST_TSO4;

const SEGMENT: u16 = 1448;
const SEGMENTS: u16 = 45;
const PAYLOAD: usize = SEGMENT as usize * SEGMENTS as usize;
const IP_AT: usize = 14;
const TCP_AT: usize = IP_AT + 20;
const PAYLOAD_AT: usize = TCP_AT + 32;
const SEQUENCE_AT: usize = TCP_AT + 4;
/// TCP's checksum, counted from its header: a back end may write another.
const CHECKSUM_AT: usize = 16;
const SENDER: [u8; 4] = [198, 18, 0, 1];
const RECEIVER: [u8; 4] = [198, 18, 0, 2];
/// Of virtio, before each frame.
const HEADER_BYTES: usize = 12;

/// Rings of a machine with one pair.
const RX: usize = 0;
const TX: usize = 1;

/// What virtio says of each frame (virtio 1.2, section 5.1.6): the checksum is partial, TCP over
/// IPv4, bytes of headers, of a segment, where the sum begins and where it is written.
fn virtio_header() -> [u8; 10] {
    let words = [PAYLOAD_AT as u16, SEGMENT, TCP_AT as u16, CHECKSUM_AT as u16].map(u16::to_le_bytes);
    let mut header = [1; 10];
    header[2..].copy_from_slice(words.as_flattened());
    header
}

/// The sum of the Internet checksum (RFC 1071), not inverted.
fn sum(bytes: &[u8]) -> u16 {
    let all = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>();
    let folded = (all & 0xffff) + (all >> 16);
    (folded + (folded >> 16)) as u16
}

/// The frame with this number. Its sequence number says which it is, and so does all its payload.
fn frame(number: u32) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let length = (PAYLOAD_AT - IP_AT + PAYLOAD) as u16;
    let mut ip = vec![0x45, 0];
    ip.extend(length.to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    ip.extend([SENDER, RECEIVER].concat());
    let checksum = !sum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(ip);
    let mut tcp = [4321u16.to_be_bytes(), 5201u16.to_be_bytes()].concat();
    tcp.extend(number.wrapping_mul(PAYLOAD as u32).to_be_bytes());
    // Acknowledgement, header of 32 bytes, ACK, window, checksum, urgent; no-ops and time stamps.
    tcp.extend([0, 0, 0, 1, 0x80, 0x10, 0xff, 0xff, 0, 0, 0, 0, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1]);
    let [high, low] = (length - 20).to_be_bytes();
    let pseudo = sum(&[&SENDER[..], &RECEIVER, &[0, 6, high, low]].concat());
    tcp[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&pseudo.to_be_bytes());
    frame.extend(tcp);
    let words = (0u32..).map(|at| (number << 16 | at).to_be_bytes());
    frame.extend(words.flatten().take(PAYLOAD));
    frame
}

/// Both machines, and what came.
struct Bulk {
    sender: FrontEnd,
    receiver: FrontEnd,
    frames: Vec<Vec<u8>>,
    /// The number of the frame that comes next, if none is lost.
    next: usize,
    came: u64,
    lost: u64,
    wrong: u64,
    checked: u64,
    /// Buffers of the frame that is looked at, and their bytes.
    parts: Vec<(u16, usize)>,
    /// Chains that are to be made available again.
    again: Vec<u16>,
}

impl Bulk {
    /// Connects both, and sends as many frames as there is room for.
    fn new(sender: &UnixStream, receiver: &UnixStream) -> io::Result<Bulk> {
        let machine = |stream| {
            let machine = FrontEnd::with_buffers(1, ENTRIES, FEATURES, BUFFER_BYTES)?;
            machine.speak(stream)?;
            Ok::<_, io::Error>(machine)
        };
        let (mut sender, mut receiver) = (machine(sender)?, machine(receiver)?);
        receiver.offer(0, ENTRIES.into(), BUFFER_BYTES);
        receiver.kick(RX);
        // A back end has answered before its thread that copies knows of the rings.
        std::thread::sleep(SETTLING);
        let mut frames = Vec::new();
        loop {
            let made = frame(frames.len() as u32);
            if !sender.send(0, &virtio_header(), &made) {
                break;
            }
            frames.push(made);
        }
        sender.kick(TX);
        let (parts, again) = (Vec::new(), Vec::new());
        Ok(Bulk { sender, receiver, frames, next: 0, came: 0, lost: 0, wrong: 0, checked: 0, parts, again })
    }

    /// Sends again what came back, and gives back what was received.
    fn turn(&mut self) {
        while let Some((head, _)) = self.sender.used_chain(TX) {
            self.again.push(head);
        }
        if !self.again.is_empty() {
            self.sender.again(TX, &self.again);
            self.sender.kick(TX);
            self.again.clear();
        }
        while let Some(first) = self.receiver.used_chain(RX) {
            self.receive(first);
        }
        if !self.again.is_empty() {
            self.receiver.again(RX, &self.again);
            self.receiver.kick(RX);
            self.again.clear();
        }
    }

    fn receive(&mut self, first: (u16, usize)) {
        let start = self.receiver.buffer(RX, first.0);
        let header = self.receiver.array::<HEADER_BYTES>(start);
        let sequence = u32::from_be_bytes(self.receiver.array(start + HEADER_BYTES + SEQUENCE_AT));
        let buffers = u16::from_le_bytes([header[10], header[11]]);
        self.parts.clear();
        self.parts.push(first);
        while self.parts.len() < buffers.into() {
            // Of a frame all is there, or it is none (virtio 1.2, section 5.1.6.4).
            let Some(part) = self.receiver.used_chain(RX) else { break };
            self.parts.push(part);
        }
        self.again.extend(self.parts.iter().map(|part| part.0));
        self.came += 1;
        let number = (sequence / PAYLOAD as u32) as usize % self.frames.len();
        let bytes = self.parts.iter().map(|part| part.1).sum::<usize>();
        let is_right = header[..10] == virtio_header()
            && self.parts.len() == usize::from(buffers)
            && bytes == HEADER_BYTES + PAYLOAD_AT + PAYLOAD
            && (!self.came.is_multiple_of(CHECKED) || self.is_whole(number));
        self.wrong += u64::from(!is_right);
        self.lost += ((number + self.frames.len() - self.next) % self.frames.len()) as u64;
        self.next = (number + 1) % self.frames.len();
    }

    /// Whether all bytes of the frame that is looked at are those that were sent, but the checksum.
    fn is_whole(&mut self, number: usize) -> bool {
        self.checked += 1;
        let bytes = |&(head, bytes): &(u16, usize)| self.receiver.get(self.receiver.buffer(RX, head), bytes);
        let came: Vec<u8> = self.parts.iter().flat_map(bytes).skip(HEADER_BYTES).collect();
        let sum = TCP_AT + CHECKSUM_AT;
        let sent = &self.frames[number];
        came.len() == sent.len() && came[..sum] == sent[..sum] && came[sum + 2..] == sent[sum + 2..]
    }

    /// Goes on for so long; how many frames came, and in what time.
    fn run(&mut self, lasting: Duration) -> io::Result<(u64, Duration)> {
        let (begun, before) = (Instant::now(), self.came);
        let (mut last, mut seen) = (begun, before);
        loop {
            self.turn();
            let now = Instant::now();
            if self.came != seen {
                (last, seen) = (now, self.came);
            }
            if now - last > PATIENCE {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no frame comes after {seen}")));
            }
            if now - begun >= lasting {
                return Ok((self.came - before, now - begun));
            }
        }
    }
}

fn bulk(sender: &str, receiver: &str, warm: Duration, lasting: Duration) -> io::Result<()> {
    let (sender, receiver) = (UnixStream::connect(sender)?, UnixStream::connect(receiver)?);
    let mut bulk = Bulk::new(&sender, &receiver)?;
    bulk.run(warm)?;
    eprintln!("{BEGUN}");
    let (frames, took) = bulk.run(lasting)?;
    let (bytes, seconds) = (frames * PAYLOAD as u64, took.as_secs_f64());
    let rate = bytes as f64 * 8.0 / seconds / 1e9;
    let Bulk { lost, wrong, checked, .. } = bulk;
    println!(
        "{{\"frames\":{frames},\"bytes\":{bytes},\"seconds\":{seconds:.4},\"gbit_s\":{rate:.3},\
         \"lost\":{lost},\"wrong\":{wrong},\"checked\":{checked}}}"
    );
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let seconds = |word: &str| word.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let done = match words[..] {
        [sender, receiver, warm, lasting] => match (seconds(warm), seconds(lasting)) {
            (Some(warm), Some(lasting)) => Some(bulk(sender, receiver, warm, lasting)),
            _ => None,
        },
        _ => None,
    };
    match done {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => {
            eprintln!("bulk: {error}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("usage: bulk SENDER RECEIVER WARM_SECONDS SECONDS");
            ExitCode::from(2)
        }
    }
}
