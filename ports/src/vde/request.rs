//! The request of a VDE client and the switch's answer: 122 bytes in the machine's own byte order,
//! and a description of up to 128 more.
//!
//! ```text
//! offset  bytes  what
//!      0      4  magic 0xfeedface
//!      4      4  version: 3
//!      8      4  what is asked for (low byte: 0 a plug, 1 vde_switch's management port), and above it the number of the plug, 0 for any
//!     12    110  struct sockaddr_un (unix(7)) of the client's datagram socket: family, then the path up to a zero
//!    122  0-128  description, without a zero at its end
//! ```
//!
//! Nothing says how long the description is: it is what came with the same write. The answer is
//! another `struct sockaddr_un`.

use std::fmt;
use std::path::{Path, PathBuf};

/// What every request begins with.
pub const MAGIC: u32 = 0xfeed_face;
/// The one version in use, since 2005.
pub const VERSION: u32 = 3;
/// Bytes of the path in a `struct sockaddr_un` (unix(7)).
const PATH_BYTES: usize = 108;
/// Bytes of a `struct sockaddr_un`: two of the family, and the path.
pub const ADDRESS_BYTES: usize = 2 + PATH_BYTES;
/// Where the address begins.
const ADDRESS_AT: usize = 12;
/// Bytes of a request without its description.
pub const LEAST_BYTES: usize = ADDRESS_AT + ADDRESS_BYTES;
/// Bytes of the longest description (`MAXDESCR` of libvdeplug).
pub const DESCRIPTION_BYTES: usize = 128;
/// Bytes of the longest request.
pub const MOST_BYTES: usize = LEAST_BYTES + DESCRIPTION_BYTES;
/// `AF_UNIX`.
const FAMILY: u16 = libc::AF_UNIX as u16;

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The plug it wants; `None` for any.
    pub plug: Option<u32>,
    /// Its datagram socket: an absolute path.
    pub socket: PathBuf,
    /// What it says about itself: printable ASCII, all else replaced by question marks.
    pub description: String,
}

/// Why bytes are no request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// They begin with something else.
    Magic(u32),
    /// A version that is not [`VERSION`].
    Version(u32),
    /// It asks for something that is not known.
    Kind(u8),
    /// It asks for vde_switch's management port.
    Management,
    /// The address is not that of a Unix socket with an absolute path.
    Address,
    /// It is longer than a request can be.
    TooLong,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Magic(magic) => {
                write!(
                    f,
                    "it sends {magic:#010x} first, not {MAGIC:#010x}: it is not a VDE client; connect one (vde_plug)"
                )
            }
            Fault::Version(version) => write!(
                f,
                "it uses version {version} of the protocol, and only {VERSION} is supported; use a client of VDE 2"
            ),
            Fault::Kind(kind) => write!(f, "it sends the request {kind}, which is not known; use a client of VDE 2"),
            Fault::Management => {
                write!(f, "it requests port 0, vde_switch's management port, which is not supported; use levada show")
            }
            Fault::Address => write!(f, "its socket has no absolute path; give the client an absolute one"),
            Fault::TooLong => {
                write!(f, "it sends more than {MOST_BYTES} bytes as a request; connect a VDE client (vde_plug)")
            }
        }
    }
}

impl Request {
    /// Reads what a client has sent so far; `None` where more must come first. Fails as early as it
    /// can.
    ///
    /// # Errors
    /// [`Fault`]: no more bytes will make it a request.
    pub fn parse(bytes: &[u8]) -> Result<Option<Request>, Fault> {
        let Some(magic) = word(bytes, 0) else { return Ok(None) };
        if magic != MAGIC {
            return Err(Fault::Magic(magic));
        }
        match word(bytes, 4) {
            Some(VERSION) => {}
            Some(version) => return Err(Fault::Version(version)),
            None => return Ok(None),
        }
        let Some(kind) = word(bytes, 8) else { return Ok(None) };
        match kind as u8 {
            0 => {}
            1 => return Err(Fault::Management),
            other => return Err(Fault::Kind(other)),
        }
        let Some((address, description)) = bytes[ADDRESS_AT..].split_at_checked(ADDRESS_BYTES) else { return Ok(None) };
        let plug = Some(kind >> 8).filter(|&plug| plug > 0);
        let socket = read_address(address).ok_or(Fault::Address)?;
        if description.len() > DESCRIPTION_BYTES {
            return Err(Fault::TooLong);
        }
        Ok(Some(Request { plug, socket, description: printable(description) }))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// The absolute path in a `struct sockaddr_un`.
fn read_address(address: &[u8]) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;
    let (family, path) = address.split_at(2);
    let end = path.iter().position(|&byte| byte == 0)?;
    let is_path = u16::from_ne_bytes([family[0], family[1]]) == FAMILY && path[0] == b'/';
    is_path.then(|| Path::new(std::ffi::OsStr::from_bytes(&path[..end])).to_owned())
}

/// The answer: the address of the switch's datagram socket. `None` where `path` does not fit.
#[must_use]
pub fn answer(path: &Path) -> Option<[u8; ADDRESS_BYTES]> {
    let path = path.as_os_str().as_encoded_bytes();
    let mut address = [0; ADDRESS_BYTES];
    address[..2].copy_from_slice(&FAMILY.to_ne_bytes());
    // One byte stays for the zero behind it.
    address[2..ADDRESS_BYTES - 1].get_mut(..path.len())?.copy_from_slice(path);
    Some(address)
}

/// Up to the first zero.
fn printable(bytes: &[u8]) -> String {
    let text = bytes.iter().take_while(|&&byte| byte != 0);
    text.map(|&byte| if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: u32, path: &[u8], description: &[u8]) -> Vec<u8> {
        let mut address = [0; ADDRESS_BYTES];
        address[..2].copy_from_slice(&FAMILY.to_ne_bytes());
        address[2..2 + path.len()].copy_from_slice(path);
        [&MAGIC.to_ne_bytes()[..], &VERSION.to_ne_bytes(), &kind.to_ne_bytes(), &address, description].concat()
    }

    #[test]
    fn what_clients_send_is_read() {
        // As vde_plug2tap 2.3.2 sends it.
        let sent = request(0, b"/run/vde/.01234-00000", b"vde_plug2tap: user=root PID=1234");
        assert_eq!(
            Request::parse(&sent),
            Ok(Some(Request {
                plug: None,
                socket: "/run/vde/.01234-00000".into(),
                description: "vde_plug2tap: user=root PID=1234".into(),
            }))
        );
        let numbered = Request::parse(&request(7 << 8, b"/tmp/vde.1-0", b"")).unwrap().unwrap();
        assert_eq!((numbered.plug, numbered.description.as_str()), (Some(7), ""));
        let odd = Request::parse(&request(0, b"/x", b"\x1b[2Jab\n\0hidden")).unwrap().unwrap();
        assert_eq!(odd.description, "?[2Jab?");
    }

    #[test]
    fn every_part_of_a_request_is_waited_for() {
        let whole = request(0, b"/x", b"");
        for end in 0..whole.len() {
            assert_eq!(Request::parse(&whole[..end]), Ok(None), "{end} bytes");
        }
        assert!(Request::parse(&whole).unwrap().is_some());
    }

    #[test]
    fn what_is_no_request_is_refused_early() {
        assert_eq!(Request::parse(b"GET / HTTP/1.1"), Err(Fault::Magic(u32::from_ne_bytes(*b"GET "))));
        let mut old = request(0, b"/x", b"");
        old[4..8].copy_from_slice(&2u32.to_ne_bytes());
        assert_eq!(Request::parse(&old[..8]), Err(Fault::Version(2)));
        assert_eq!(Request::parse(&request(1, b"/x", b"")), Err(Fault::Management));
        assert_eq!(Request::parse(&request(0x105, b"/x", b"")), Err(Fault::Kind(5)));
        for path in [&b""[..], b"\0abstract", b"relative", &[b'/'; PATH_BYTES]] {
            assert_eq!(Request::parse(&request(0, path, b"")), Err(Fault::Address));
        }
        let mut family = request(0, b"/x", b"");
        family[ADDRESS_AT] ^= 0xff;
        assert_eq!(Request::parse(&family), Err(Fault::Address));
        assert_eq!(Request::parse(&request(0, b"/x", &[b'd'; DESCRIPTION_BYTES + 1])), Err(Fault::TooLong));
        assert!(Request::parse(&request(0, b"/x", &[b'd'; DESCRIPTION_BYTES])).is_ok());
    }

    #[test]
    fn an_answer_is_an_address() {
        let path = Path::new("/run/vde/red/001.0");
        assert_eq!(read_address(&answer(path).unwrap()).as_deref(), Some(path));
        let longest = "x".repeat(PATH_BYTES - 1);
        assert!(answer(Path::new(&longest)).is_some_and(|a| a[ADDRESS_BYTES - 1] == 0));
        assert!(answer(Path::new(&(longest + "x"))).is_none());
    }
}
