//! What drivers say of interfaces, and are told: `linux/ethtool.h`, over any socket of the
//! interface's namespace.

use datapath::bond::{Duplex, Negotiated};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `ETHTOOL_GSET`, and the words of `struct ethtool_cmd`.
const ETHTOOL_GSET: u32 = 0x01;
const ETHTOOL_CMD_WORDS: usize = 11;
/// `SPEED_UNKNOWN`.
const SPEED_UNKNOWN: u32 = u32::MAX;
/// `DUPLEX_HALF`, `DUPLEX_FULL`.
const DUPLEX_HALF: u8 = 0;
const DUPLEX_FULL: u8 = 1;

/// What an interface's link has negotiated, as far as its driver says so. Virtual ones may say
/// anything.
///
/// # Errors
/// The driver does not answer now: its device is away for a moment.
pub(crate) fn negotiated(socket: BorrowedFd<'_>, name: &str) -> io::Result<Negotiated> {
    let mut value = [0; ETHTOOL_CMD_WORDS];
    value[0] = ETHTOOL_GSET;
    match call(socket, name, &mut value) {
        Ok(()) => Ok(parse(&value)),
        // It does not know such a question.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
            Ok(Negotiated::default())
        }
        Err(error) => Err(error),
    }
}

/// The speed in Mbit/s has its lower half in the first half word of word 3, its upper half in that
/// of word 7; behind the lower half lies the duplex, in a byte.
fn parse(value: &[u32; ETHTOOL_CMD_WORDS]) -> Negotiated {
    let bytes = |word: usize| value[word].to_ne_bytes();
    let half = |[a, b, ..]: [u8; 4]| u32::from(u16::from_ne_bytes([a, b]));
    let speed = half(bytes(7)) << 16 | half(bytes(3));
    let duplex = match bytes(3)[2] {
        DUPLEX_HALF => Duplex::Half,
        DUPLEX_FULL => Duplex::Full,
        _ => Duplex::Unknown,
    };
    let mbit = (speed != 0 && speed != SPEED_UNKNOWN).then_some(speed);
    // A driver that says nothing of the speed may have left both as they were, zero.
    Negotiated { mbit, duplex: if mbit.is_some() { duplex } else { Duplex::Unknown } }
}

/// `value` is what the command in its first word reads or writes: a `struct ethtool_value` or
/// another one as long as the command has it.
pub(crate) fn call(socket: BorrowedFd<'_>, name: &str, value: &mut [u32]) -> io::Result<()> {
    // SAFETY: all bytes zero is a valid ifreq, a struct of numbers and a null pointer.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // Names are at most 15 bytes, which leaves the closing zero.
    for (to, from) in request.ifr_name[..15].iter_mut().zip(name.bytes()) {
        *to = from as _;
    }
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    // SAFETY: SIOCETHTOOL reads `request`, and reads and writes the words that it points to: as
    // many as the struct of the command has.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct ethtool_cmd` of this speed and duplex.
    fn said(speed: u32, duplex: u8) -> Negotiated {
        let mut value = [0; ETHTOOL_CMD_WORDS];
        let [[a, b], [c, d]] = [speed as u16, (speed >> 16) as u16].map(u16::to_ne_bytes);
        value[3] = u32::from_ne_bytes([a, b, duplex, 0]);
        value[7] = u32::from_ne_bytes([c, d, 0, 0]);
        parse(&value)
    }

    #[test]
    fn speed_and_duplex_are_read() {
        assert_eq!(said(100, 0), Negotiated { mbit: Some(100), duplex: Duplex::Half });
        assert_eq!(said(400_000, 1), Negotiated { mbit: Some(400_000), duplex: Duplex::Full });
        assert_eq!(said(1000, 0xff), Negotiated { mbit: Some(1000), duplex: Duplex::Unknown });
    }

    #[test]
    fn what_a_driver_does_not_say_is_unknown() {
        assert_eq!(said(SPEED_UNKNOWN, 0xff), Negotiated::default());
        assert_eq!(said(0, 0), Negotiated::default());
    }
}
