//! Frames that the switch has put into tunnels over IPv4, with TCP inside that is still to be cut.
//!
//! A packet socket has no word for these: its header names a segmentation and where the checksum
//! starts, and nothing around it (VIRTIO_NET_HDR_GSO_UDP_TUNNEL is refused, on Linux 6.18 too). So
//! they are handed over as frames of TCP whose checksum starts far inside, which the kernel
//! believes, and a program at the interface's egress says what they are: it takes the outer headers
//! off and puts them on again, by bpf_skb_adjust_room, which is told that they are UDP over IPv4
//! with Ethernet inside. From there on such a frame is like one of Linux's own vxlan device: what
//! is next on its way takes it whole, or the device cuts it, or the kernel does. No byte of the
//! payload is touched.
//!
//! Programs are met only by what does not go past the interface's queueing discipline, so there is
//! a socket of its own for it. All that is in a tunnel goes that way, so that a flow stays in
//! order; the socket's mark tells it from what the host sends, and the program says that no other
//! is to see it, as none sees what goes past. Without the program the kernel refuses such a frame:
//! it is lost, and no other is sent in its place.
//!
//! The program is attached when the first frame goes into a tunnel (by whoever asks for drops: it
//! takes the kernel's lock on devices), and held by a link, which dies with the process. A process
//! that goes on after another attaches its own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use datapath::encap::vxlan::OUTER_V4;

use super::bpf::{
    self, BEFORE, CALL, DROP, EXIT, Hook, Instruction, JUMP_EQUAL, Kind, LOAD_WORD, NEXT, SKB_MARK, STORE_WORD, op, set,
};
use super::{InterfaceName, socket, within};

/// The mark on what this socket sends, until the program has seen it: "Lvdt".
const MARK: u32 = 0x4c76_6474;
/// Bytes of an Ethernet header.
const ETHERNET: i32 = 14;

/// How the switch's tunnels leave by an interface. All handles on the port share it.
#[derive(Debug, Default)]
pub(super) struct Tunnels {
    is_wanted: AtomicBool,
    way: OnceLock<io::Result<TunnelSocket>>,
    /// The program was taken off, by whomever.
    is_lost: AtomicBool,
    is_told: AtomicBool,
}

/// A socket, and the program for what it sends.
#[derive(Debug)]
struct TunnelSocket {
    socket: OwnedFd,
    link: OwnedFd,
}

impl Tunnels {
    /// The socket for frames in tunnels. `None` where there is none yet, which is then seen to, or
    /// none to be had.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        match self.way.get() {
            Some(Ok(way)) if !self.is_lost.load(Ordering::Relaxed) => Some(way.socket.as_fd()),
            Some(_) => None,
            None => {
                self.is_wanted.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Whether what is in a tunnel may be handed over whole.
    pub fn is_up(&self) -> bool {
        !self.is_lost.load(Ordering::Relaxed) && matches!(self.way.get(), Some(Ok(_)))
    }

    /// Attaches the program where it is wanted, and looks whether it is still there. May wait.
    pub fn tend(&self, place: &InterfaceName, index: i32) {
        if let Some(way) = self.way.get() {
            let is_gone = way.as_ref().is_ok_and(|way| !bpf::holds(&way.link));
            self.is_lost.fetch_or(is_gone, Ordering::Relaxed);
        } else if self.is_wanted.load(Ordering::Relaxed)
            // Where the namespace cannot be entered, the interface is as good as gone, which others
            // see.
            && let Ok(way) = within(place, || TunnelSocket::open(index))
        {
            let _ = self.way.set(way);
        }
    }

    /// Why frames do not go whole, once for each reason.
    pub fn complaint(&self) -> Option<String> {
        let why = match self.way.get() {
            Some(Err(error)) => format!("its program cannot be attached: {error}"),
            Some(Ok(_)) if self.is_lost.load(Ordering::Relaxed) => "its program was taken off".to_owned(),
            _ => return None,
        };
        (!self.is_told.swap(true, Ordering::Relaxed)).then_some(why)
    }
}

impl TunnelSocket {
    /// Opens it in the calling thread's namespace.
    fn open(index: i32) -> io::Result<TunnelSocket> {
        let socket = socket::open_to_send(index, MARK).map_err(|(_, error)| error)?;
        let program = bpf::load(&program(), Kind::SchedCls)?;
        // Before those that are there: they would see a frame that is not yet what it will be.
        let link = bpf::attach(&program, index, Hook::Egress, BEFORE)?;
        Ok(TunnelSocket { socket, link })
    }
}

/// Operations beside those of `bpf.rs`, of the same standard: a half word loaded, a register
/// copied, a number added to one, a jump if unequal, and 64 bits of constant in two instructions.
const LOAD_HALF: u8 = 0x69;
const COPY: u8 = 0xbf;
const ADD: u8 = 0x07;
const JUMP_UNEQUAL: u8 = 0x55;
const SET_64: u8 = 0x18;
/// Where `struct __sk_buff` has the size of a segment.
const SKB_GSO_SIZE: i16 = 176;
/// `TCX_PASS`: it is sent, and no other program sees it.
const PASS: i32 = 0;
/// Numbers of the helpers `bpf_skb_store_bytes(skb, offset, from, len, flags)`,
/// `bpf_skb_load_bytes(skb, offset, to, len)` and `bpf_skb_adjust_room(skb, difference, mode,
/// flags)`.
const STORE_BYTES: i32 = 9;
const LOAD_BYTES: i32 = 26;
const ADJUST_ROOM: i32 = 50;
/// `BPF_ADJ_ROOM_MAC`: behind the Ethernet header.
const BEHIND_ETHERNET: i32 = 1;
/// `BPF_F_ADJ_ROOM_FIXED_GSO`: segments stay as long as they are.
const FIXED_SIZE: u64 = 1;
/// `BPF_F_ADJ_ROOM_ENCAP_L3_IPV4`, `_L4_UDP`, `_L2_ETH`, and `BPF_F_ADJ_ROOM_ENCAP_L2(14)`.
const TUNNEL: u64 = 1 << 1 | 1 << 4 | 1 << 6 | (ETHERNET as u64) << 56;

/// What it does with a frame. The outer headers but Ethernet's, and the inner Ethernet header, lie
/// behind the outer Ethernet header; they are kept on the stack meanwhile. A train has a UDP
/// checksum, and what goes whole has none.
fn program() -> Vec<Instruction> {
    const LEN: i32 = OUTER_V4 as i32;
    /// Of the stack, a multiple of 8 bytes below its end (register 10).
    const STACK: i32 = -56;
    const UDP_CHECKSUM: i16 = (STACK + 20 + 6) as i16;
    let copy = |to, from| op(COPY, to, from, 0, 0);
    let call = |helper| op(CALL, 0, 0, 0, helper);
    // Where the headers lie, for the helpers that copy them.
    let headers = || [set(2, ETHERNET), copy(3, 10), op(ADD, 3, 0, 0, STACK), set(4, LEN)];
    // What follows, and where it leaves for the end: at PASSED or at FAILED.
    let mut steps = vec![Step::Do(set(2, 0)), Step::Do(op(STORE_WORD, 1, 2, SKB_MARK, 0))];
    steps.push(Step::Do(op(LOAD_WORD, 2, 1, SKB_GSO_SIZE, 0)));
    steps.push(Step::PassIf(op(JUMP_EQUAL, 2, 0, 0, 0)));
    steps.extend(headers().map(Step::Do));
    steps.extend([Step::Do(call(LOAD_BYTES)), Step::FailUnlessZero]);
    steps.push(Step::Do(op(LOAD_HALF, 2, 10, UDP_CHECKSUM, 0)));
    steps.push(Step::PassIf(op(JUMP_UNEQUAL, 2, 0, 0, 0)));
    for (difference, flags) in [(-LEN, FIXED_SIZE), (LEN, FIXED_SIZE | TUNNEL)] {
        let halves = [op(SET_64, 4, 0, 0, flags as i32), op(0, 0, 0, 0, (flags >> 32) as i32)];
        let arguments = [copy(1, 6), set(2, difference), set(3, BEHIND_ETHERNET)];
        steps.extend(arguments.into_iter().chain(halves).chain([call(ADJUST_ROOM)]).map(Step::Do));
        steps.push(Step::FailUnlessZero);
    }
    steps.push(Step::Do(copy(1, 6)));
    steps.extend(headers().map(Step::Do));
    steps.extend([Step::Do(set(5, 0)), Step::Do(call(STORE_BYTES)), Step::FailUnlessZero]);

    let mut program = vec![copy(6, 1), op(LOAD_WORD, 2, 1, SKB_MARK, 0)];
    program.extend([op(JUMP_EQUAL, 2, 0, 2, MARK as i32), set(0, NEXT), op(EXIT, 0, 0, 0, 0)]);
    let count = steps.len();
    program.extend(steps.into_iter().enumerate().map(|(at, step)| {
        let to_end = (count - at - 1) as i16;
        match step {
            Step::Do(instruction) => instruction,
            Step::PassIf(jump) => Instruction { offset: to_end, ..jump },
            // Behind the two instructions that pass.
            Step::FailUnlessZero => op(JUMP_UNEQUAL, 0, 0, to_end + 2, 0),
        }
    }));
    program.extend([set(0, PASS), op(EXIT, 0, 0, 0, 0), set(0, DROP), op(EXIT, 0, 0, 0, 0)]);
    program
}

/// A step of the program.
enum Step {
    Do(Instruction),
    /// A jump, to where the frame passes.
    PassIf(Instruction),
    /// The helper's answer is in register 0.
    FailUnlessZero,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Netns;
    use crate::skipped::skipped;
    use std::os::fd::AsRawFd;

    #[test]
    fn jumps_lead_to_the_ends() {
        let program = program();
        let ends = [program.len() - 4, program.len() - 2];
        assert_eq!(ends.map(|at| program[at]), [set(0, PASS), set(0, DROP)]);
        let mut jumps = [0, 0];
        for (at, one) in program.iter().enumerate().skip(5) {
            if matches!(one.operation, JUMP_EQUAL | JUMP_UNEQUAL) {
                let to = at + 1 + one.offset as usize;
                jumps[ends.iter().position(|end| *end == to).expect("an end")] += 1;
            }
        }
        assert_eq!(jumps, [2, 4]);
        assert_eq!(OUTER_V4, 50);
    }

    /// `BPF_LINK_DETACH`.
    const BPF_LINK_DETACH: std::ffi::c_int = 34;

    fn detach(link: &OwnedFd) {
        let mut attributes = [link.as_raw_fd() as u32, 0];
        // SAFETY: the command's one attribute is the link's descriptor, a number of 32 bits.
        unsafe { bpf::bpf(BPF_LINK_DETACH, &mut attributes) }.unwrap();
    }

    #[test]
    fn without_its_program_nothing_goes_whole() {
        if !rustix::process::geteuid().is_root() || bpf::probe().and(bpf::hooks(1).map(drop)).is_err() {
            skipped("without_its_program_nothing_goes_whole", "it needs root, and Linux 6.6 with BPF");
            return;
        }
        let netns = Netns::create(&format!("ports-tunnel-{}", std::process::id())).unwrap();
        let place = InterfaceName { name: "lo".into(), netns: Some(netns.clone()) };
        let tend = |tunnels: &Tunnels| {
            tunnels.tend(&place, 1);
            (tunnels.is_up(), tunnels.socket().is_some(), tunnels.complaint())
        };
        let egress = || netns.run(|| bpf::hooks(1)).unwrap().unwrap().egress;
        let tunnels = Tunnels::default();
        assert_eq!(tend(&tunnels), (false, false, None), "now it is wanted");
        assert_eq!(egress(), 0);
        assert_eq!((tend(&tunnels), egress()), ((true, true, None), 1));
        detach(&tunnels.way.get().unwrap().as_ref().unwrap().link);
        assert_eq!(tend(&tunnels), (false, false, Some("its program was taken off".to_owned())));
        assert_eq!((tend(&tunnels), egress()), ((false, false, None), 0));
        // The hook is full.
        let attach = || bpf::attach(&bpf::load(&program(), Kind::SchedCls)?, 1, Hook::Egress, 0);
        let others = netns.run(|| std::iter::from_fn(|| attach().ok()).collect::<Vec<_>>()).unwrap();
        assert_eq!(others.len(), egress() as usize);
        let tunnels = Tunnels::default();
        assert!(tunnels.socket().is_none());
        let (is_up, has_socket, complaint) = tend(&tunnels);
        assert!(!is_up && !has_socket && complaint.unwrap().contains("cannot be attached"));
        drop(others);
        assert_eq!(egress(), 0);
        netns.delete().unwrap();
    }
}
