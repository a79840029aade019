//! Copies frames between two TAP devices in two namespaces, on one thread, and does nothing else: the yardstick for what a switch between
//! them costs.
//!
//!     copy_loop [--ports] NETNS_A TAP_A NETNS_B TAP_B
//!
//! Frames carry their virtio headers and all offloads. The bare loop is poll, read and write over one buffer. With `--ports` the same is
//! done through the `Port` trait and a frame pool, which shows what those cost. Both devices are made, up and without addresses; they go
//! with the process, however it ends. Says `copy_loop: ready` on standard error.

use std::os::fd::BorrowedFd;
use std::process::ExitCode;

use datapath::frame::{MAX_FRAME, Pool, PoolLimits};
use ports::Port;
use ports::netns::Netns;
use ports::tap::{Tag, Tap, TapOptions};
use ports::vnet::HEADER_BYTES;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

/// Frames taken from one device before the other has its turn.
const BURST: usize = 64;

type Ended = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let through_ports = arguments.first().is_some_and(|first| first == "--ports");
    if through_ports {
        arguments.remove(0);
    }
    let [netns_a, tap_a, netns_b, tap_b] = arguments.as_slice() else {
        eprintln!("usage: copy_loop [--ports] NETNS_A TAP_A NETNS_B TAP_B");
        return ExitCode::from(2);
    };
    let run = || -> Result<(), Ended> {
        let taps = [open(netns_a, tap_a)?, open(netns_b, tap_b)?];
        eprintln!("copy_loop: ready");
        if through_ports { copy_through_ports(taps) } else { copy(&taps) }
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("copy_loop: {error}");
            ExitCode::FAILURE
        }
    }
}

fn open(netns: &str, name: &str) -> Result<Tap, Ended> {
    let tap = Tap::open(&TapOptions {
        name: name.to_owned(),
        netns: Some(Netns::new(netns)),
        mac: None,
        mtu: None,
        addresses: Vec::new(),
        persistent: false,
        txqueuelen: None,
        without_ipv6: false,
        tag: Tag { instance: "copy_loop".to_owned(), endpoint: name.to_owned() },
    })?;
    Ok(tap)
}

/// Waits until one of the two can be read; says which.
fn wait(fds: [BorrowedFd<'_>; 2]) -> Result<[bool; 2], Errno> {
    let mut polled = fds.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
    loop {
        match rustix::event::poll(&mut polled, None) {
            Ok(_) => return Ok(polled.each_ref().map(|fd| !fd.revents().is_empty())),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

fn descriptors(taps: &[Tap; 2]) -> [BorrowedFd<'_>; 2] {
    taps.each_ref().map(|tap| tap.fd().expect("a TAP has a descriptor"))
}

fn copy(taps: &[Tap; 2]) -> Result<(), Ended> {
    let fds = descriptors(taps);
    let mut buffer = vec![0; HEADER_BYTES + MAX_FRAME];
    loop {
        let ready = wait(fds)?;
        for from in (0..2).filter(|from| ready[*from]) {
            for _ in 0..BURST {
                let len = match rustix::io::read(fds[from], &mut buffer[..]) {
                    Ok(len) => len,
                    Err(Errno::AGAIN) => break,
                    Err(error) => return Err(error.into()),
                };
                match rustix::io::write(fds[1 - from], &buffer[..len]) {
                    // EIO: the device is set down.
                    Ok(_) | Err(Errno::AGAIN | Errno::IO | Errno::NOBUFS | Errno::INVAL) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

fn copy_through_ports(mut taps: [Tap; 2]) -> Result<(), Ended> {
    let mut pool = Pool::new(PoolLimits::default());
    let mut frames = Vec::with_capacity(BURST);
    loop {
        let ready = wait(descriptors(&taps))?;
        for from in (0..2).filter(|from| ready[*from]) {
            taps[from].rx(&mut pool, BURST, &mut frames)?;
            for frame in frames.drain(..) {
                // What it refuses is lost, as on any wire.
                let _ = taps[1 - from].tx(&mut pool, frame);
            }
        }
    }
}
