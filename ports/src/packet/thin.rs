//! Thinning: the socket's filter drops a part of what arrives for some destinations, before it
//! takes a place in the ring (`datapath::intake::thin`).
//!
//! These checks stand before those that the socket's filter has anyway ([`super::socket`]). Which
//! ones it has depends on the interface's address and on whether it is exclusive; both may change.
//! So what is there is read from the kernel, and is kept. What thins begins with a word that says
//! how long it is, by which it is found and taken off. The kernel puts a filter in another's place
//! at once: a frame meets the one or the other.
//!
//! Where a program of shortcuts is at the socket, there is no such filter to be read: nothing is
//! thinned.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use datapath::intake::thin::{Destination, MOST, Thinned};
use datapath::wire::Mac;
use libc::sock_filter;

use super::socket::{self, JUMP_EQUAL, LOAD_HALF, LOAD_WORD, RETURN};

/// The code of further instructions of classic BPF (bpf(4), `linux/bpf_common.h`): load a constant,
/// and with one, jump, jump if at least.
const LOAD_CONSTANT: u16 = 0x00;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_LEAST: u16 = 0x35;
/// Where `LOAD_WORD` finds what the kernel knows of a frame (`SKF_AD_OFF`, `linux/filter.h`): its
/// tag, whether it has one, and a random number.
const AT_TAG: u32 = (-0x1000 + 44i32) as u32;
const AT_IS_TAGGED: u32 = (-0x1000 + 48i32) as u32;
const AT_RANDOM: u32 = (-0x1000 + 56i32) as u32;
/// The bits of a tag that are the VLAN (IEEE 802.1Q).
const VLAN: u32 = 0x0fff;
/// The upper half of the first word of what thins: "Lv". The lower one is its length in
/// instructions.
const SIGN: u32 = 0x4c76 << 16;

/// Held while a socket's filter is changed: what is read is still there when it is replaced.
static CHANGING: Mutex<()> = Mutex::new(());

/// Waits until nobody in this process changes a filter.
pub(super) fn changing() -> MutexGuard<'static, ()> {
    CHANGING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the socket drop all but a part of what arrives for these destinations, and read all of what
/// else it reads. Does not wait.
///
/// # Errors
/// There is a program at the socket, or the kernel refused it: it reads all. Somebody changes a
/// filter just now, or the kernel refused twice: it reads what it read before.
pub(super) fn thin(socket: BorrowedFd<'_>, thinned: &[Thinned]) -> io::Result<()> {
    let _changing = match CHANGING.try_lock() {
        Ok(changing) => changing,
        Err(TryLockError::Poisoned(changing)) => changing.into_inner(),
        Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
    };
    let before = socket::filter(socket)?;
    let plain = plain(&before);
    if plain.is_empty() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    if thinned.is_empty() && plain.len() == before.len() {
        return Ok(());
    }
    let mut program = checks(&thinned[..thinned.len().min(MOST)]);
    program.extend(plain);
    socket::set_filter(socket, &mut program).inspect_err(|_| {
        // What was there stays otherwise.
        let _ = socket::set_filter(socket, &mut plain.to_vec());
    })
}

/// A filter without what thins.
fn plain(program: &[sock_filter]) -> &[sock_filter] {
    match program.first() {
        Some(&sock_filter { code: LOAD_CONSTANT, k, .. }) if k & !0xffff == SIGN => {
            program.get((k & 0xffff) as usize..).unwrap_or_default()
        }
        _ => program,
    }
}

/// What thins; nothing if nobody is thinned. It ends where the rest begins.
fn checks(thinned: &[Thinned]) -> Vec<sock_filter> {
    // From behind: how far it is to the end is known then.
    let (mut program, mut reload) = (Vec::new(), 0);
    for thinned in thinned.iter().rev() {
        let mut check = check(thinned, program.len() as u32, reload);
        check.append(&mut program);
        // The next one may go by what is loaded, where that is still the address.
        (program, reload) = (check, 1);
    }
    if !program.is_empty() {
        program.insert(0, one(LOAD_CONSTANT, SIGN | (program.len() as u32 + 1)));
    }
    program
}

/// The check of one destination, behind which `rest` instructions more are before the filter's own.
/// The first `reload` of these load the address.
fn check(
    Thinned { to: Destination { vlan, mac: Mac([a, b, c, d, e, f]) }, keep }: &Thinned,
    rest: u32,
    reload: u8,
) -> Vec<sock_filter> {
    let (high, low) = (u32::from(u16::from_be_bytes([*a, *b])), u32::from_be_bytes([*c, *d, *e, *f]));
    // Jumps that miss lead to the end of the check, which is put in below.
    let mut check = vec![
        one(LOAD_WORD, 2),
        want(low),
        one(LOAD_HALF, 0),
        want(high),
        one(LOAD_WORD, AT_IS_TAGGED),
        want(u32::from(vlan.is_some())),
    ];
    if let Some(vlan) = vlan {
        check.extend([one(LOAD_WORD, AT_TAG), one(AND, VLAN), want(u32::from(*vlan))]);
    }
    check.extend([
        one(LOAD_WORD, AT_RANDOM),
        sock_filter { code: JUMP_LEAST, jt: 0, jf: 1, k: *keep },
        one(RETURN, 0),
        one(JUMP, rest),
    ]);
    let end = check.len() as u8;
    for (at, instruction) in check.iter_mut().enumerate().filter(|(_, instruction)| instruction.code == JUMP_EQUAL) {
        instruction.jf = end - 1 - at as u8;
    }
    check[1].jf += reload;
    check
}

fn one(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// Goes on where what is loaded is `k`.
fn want(k: u32) -> sock_filter {
    one(JUMP_EQUAL, k)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::bpf::{self, EXIT, Kind, op, set};
    use crate::skipped::skipped;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixDatagram;

    /// Any socket may have a filter. One test at a time: no other changes one meanwhile.
    fn socket() -> (UnixDatagram, MutexGuard<'static, ()>) {
        static TURN: Mutex<()> = Mutex::new(());
        (UnixDatagram::unbound().unwrap(), TURN.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn words(program: &[sock_filter]) -> Vec<(u16, u8, u8, u32)> {
        program.iter().map(|one| (one.code, one.jt, one.jf, one.k)).collect()
    }

    fn now(socket: &UnixDatagram) -> Vec<(u16, u8, u8, u32)> {
        words(&socket::filter(socket.as_fd()).unwrap())
    }

    fn list(count: u8) -> Vec<Thinned> {
        let to = |n| Destination { vlan: (n % 2 == 0).then_some(10), mac: Mac([2, 0, 0, 0, 0, n]) };
        (0..count).map(|n| Thinned { to: to(n), keep: 1 << 30 }).collect()
    }

    #[test]
    fn the_rest_of_the_filter_stays_whatever_is_thinned() {
        let (socket, _turn) = socket();
        for leave in [None, Some([2, 0, 0, 0, 9, 9])] {
            socket::attach_filter(socket.as_fd(), leave).unwrap();
            let before = now(&socket);
            for count in [1, 8, 3, 20] {
                thin(socket.as_fd(), &list(count)).unwrap();
                let after = now(&socket);
                assert!(after.len() > before.len() && after.ends_with(&before), "{count}");
                assert_eq!(words(&checks(&list(count.min(8)))), after[..after.len() - before.len()], "{count}");
            }
            thin(socket.as_fd(), &[]).unwrap();
            assert_eq!(now(&socket), before);
            thin(socket.as_fd(), &list(2)).unwrap();
            socket::attach_filter(socket.as_fd(), leave).unwrap();
            assert_eq!(now(&socket), before, "set anew, it thins nothing");
        }
    }

    #[test]
    fn a_socket_without_a_filter_of_ours_is_left() {
        let (socket, _turn) = socket();
        assert!(thin(socket.as_fd(), &list(1)).is_err());
        assert_eq!(now(&socket), []);
        const TEST: &str = "a_socket_without_a_filter_of_ours_is_left";
        let program = [set(0, -1), op(EXIT, 0, 0, 0, 0)];
        let program = match bpf::load(&program, Kind::SocketFilter) {
            Ok(program) => program,
            Err(why) => return skipped(TEST, why),
        };
        socket::attach_program(socket.as_fd(), program.as_fd()).unwrap();
        assert!(thin(socket.as_fd(), &list(1)).is_err() && thin(socket.as_fd(), &[]).is_err());
        assert_eq!(socket::filter(socket.as_fd()).err().and_then(|e| e.raw_os_error()), Some(libc::EACCES));
    }

    #[test]
    fn nobody_waits_for_who_changes_a_filter() {
        let (socket, _turn) = socket();
        socket::attach_filter(socket.as_fd(), None).unwrap();
        let held = changing();
        assert_eq!(thin(socket.as_fd(), &list(1)).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(held);
        thin(socket.as_fd(), &list(1)).unwrap();
    }
}
