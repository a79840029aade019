//! Copies frames between two devices in two namespaces, on one thread, and does nothing else: the
//! yardstick for what a switch between them costs.
//!
//!     copy_loop [--ports] [--packet] NETNS_A DEVICE_A NETNS_B DEVICE_B
//!
//! The devices are TAPs, which are made, up and without addresses, and go with the process, however
//! it ends; with `--packet` they are interfaces that exist, read and written by AF_PACKET. Frames
//! carry their virtio headers and all offloads. The bare loop is poll, read and write over one
//! buffer. With `--ports` the same is done through the `Port` trait and a frame pool, which shows
//! what those cost. Says `copy_loop: ready` on standard error.

use std::os::fd::BorrowedFd;
use std::process::ExitCode;

use datapath::frame::{MAX_FRAME, Pool, PoolLimits};
use ports::Port;
use ports::netns::Netns;
use ports::packet::{Packet, PacketOptions};
use ports::tap::{Tag, Tap, TapOptions};
use ports::vnet::HEADER_BYTES;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

/// Frames taken from one device before the other has its turn.
const BURST: usize = 64;

type Ended = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut has = |flag: &str| {
        let before = arguments.len();
        arguments.retain(|argument| argument != flag);
        arguments.len() < before
    };
    let (through_ports, are_packet) = (has("--ports"), has("--packet"));
    let [netns_a, a, netns_b, b] = arguments.as_slice() else {
        eprintln!("usage: copy_loop [--ports] [--packet] NETNS_A DEVICE_A NETNS_B DEVICE_B");
        return ExitCode::from(2);
    };
    let run = || {
        if are_packet {
            run([take(netns_a, a)?, take(netns_b, b)?], through_ports)
        } else {
            run([make(netns_a, a)?, make(netns_b, b)?], through_ports)
        }
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("copy_loop: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(devices: [impl Port; 2], through_ports: bool) -> Result<(), Ended> {
    eprintln!("copy_loop: ready");
    if through_ports { copy_through_ports(devices) } else { copy(&devices) }
}

fn take(netns: &str, name: &str) -> Result<Packet, Ended> {
    let netns = Some(Netns::new(netns));
    Ok(Packet::open(&PacketOptions { name: name.to_owned(), netns, room: None, is_exclusive: true })?)
}

fn make(netns: &str, name: &str) -> Result<Tap, Ended> {
    let tap = Tap::open(&TapOptions {
        name: name.to_owned(),
        netns: Some(Netns::new(netns)),
        mac: None,
        mtu: None,
        longest_offload: None,
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

fn descriptors(devices: &[impl Port; 2]) -> [BorrowedFd<'_>; 2] {
    devices.each_ref().map(|device| device.fd().expect("a device has a descriptor"))
}

fn copy(devices: &[impl Port; 2]) -> Result<(), Ended> {
    let fds = descriptors(devices);
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
                    // EIO, ENETDOWN: the device is set down.
                    Ok(_) | Err(Errno::AGAIN | Errno::IO | Errno::NETDOWN | Errno::NOBUFS | Errno::INVAL) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

fn copy_through_ports(mut devices: [impl Port; 2]) -> Result<(), Ended> {
    let mut pool = Pool::new(PoolLimits::default());
    let mut frames = Vec::with_capacity(BURST);
    loop {
        let ready = wait(descriptors(&devices))?;
        for from in (0..2).filter(|from| ready[*from]) {
            devices[from].rx(&mut pool, BURST, &mut frames)?;
            for frame in frames.drain(..) {
                // What it refuses is lost, as on any wire.
                let _ = devices[1 - from].tx(&mut pool, frame);
            }
        }
    }
}
