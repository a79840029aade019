//! What a check asks a backend for behind its connection, and which answer is good.

use super::Address;
use std::net::SocketAddr;

/// Bytes of an answer that are looked at: of HTTP the status line up to its code, "HTTP/1.1 200".
pub(super) const LOOKED_AT: usize = 12;

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Ask {
    /// Nothing: an open port is enough.
    #[default]
    Port,
    /// A page.
    Http(Http),
    /// The beginning of TLS.
    Tls(Tls),
}

impl Ask {
    /// What is sent; always as long. `number` is any.
    pub(crate) fn request(&self, address: Address, number: u32) -> Vec<u8> {
        match self {
            Ask::Port => Vec::new(),
            Ask::Http(http) => http.request(address),
            Ask::Tls(tls) => tls.hello(number),
        }
    }

    /// Whether an answer that begins so is a good one.
    pub(super) fn is_good(&self, answer: &[u8; LOOKED_AT]) -> bool {
        match self {
            Ask::Port => true,
            Ask::Http(http) => http.is_good(answer),
            Ask::Tls(_) => is_server_hello(answer),
        }
    }
}

/// A request of HTTP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Http {
    /// What is asked for: `/health`.
    pub path: String,
    /// Whom it is asked of; `None` for the service's address.
    pub host: Option<String>,
    /// What the status of a good answer is, first and last.
    pub status: (u16, u16),
}

impl Default for Http {
    fn default() -> Http {
        Http { path: "/".to_owned(), host: None, status: (200, 399) }
    }
}

impl Http {
    pub(crate) fn request(&self, Address { ip, port, .. }: Address) -> Vec<u8> {
        let host = match (&self.host, port) {
            (Some(host), _) => host.clone(),
            (None, 80) if ip.is_ipv4() => ip.to_string(),
            (None, port) => SocketAddr::new(ip, port).to_string(),
        };
        let path = &self.path;
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: levada\r\nConnection: close\r\n\r\n").into_bytes()
    }

    /// Whether a status line is that of a good answer.
    fn is_good(&self, line: &[u8; LOOKED_AT]) -> bool {
        let code = line.strip_prefix(b"HTTP/1.").and_then(|rest| str::from_utf8(&rest[2..]).ok());
        let code = code.and_then(|code| code.parse::<u16>().ok());
        code.is_some_and(|code| (self.status.0..=self.status.1).contains(&code))
    }
}

/// A ClientHello of TLS 1.2 and 1.3 (RFC 8446, section 4.1.2), which a server answers by its own
/// hello where it and its certificate are there. Nothing of that is secret or verified: no more is
/// said than what anybody may say.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tls {
    /// Whose certificate is asked for; `None` for the server's first.
    pub host: Option<String>,
}

/// Types of records and of messages.
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
/// Versions: 1.0 on records, 1.2 in the hello, and both in an extension.
const VERSION_1_0: [u8; 2] = [3, 1];
const VERSION_1_2: [u8; 2] = [3, 3];
const VERSIONS: &[u8] = &[4, 3, 4, 3, 3];
/// Of TLS 1.3 all but CCM; of 1.2 those by AES and ChaCha20 that servers still have.
const SUITES: [u16; 15] = [
    0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013, 0xc014, 0x009c, 0x009d, 0x002f,
    0x0035,
];
/// x25519, P-256, P-384.
const GROUPS: [u16; 3] = [0x1d, 0x17, 0x18];
/// By ECDSA, RSA-PSS and RSA, with SHA-256, SHA-384 and SHA-512.
const SIGNATURES: [u16; 9] = [0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601, 0x0807];

impl Tls {
    fn hello(&self, number: u32) -> Vec<u8> {
        // 32 bytes stand for the random number, the session and the key share. Any are a key of
        // x25519; the connection ends before one is used.
        let any: Vec<u8> = (0..8).flat_map(|_| (number | 0x0100).to_be_bytes()).collect();
        let numbers = |all: &[u16]| counted(all.iter().flat_map(|one| one.to_be_bytes()).collect());
        let mut extensions = Vec::new();
        let mut add =
            |number: u16, body: Vec<u8>| extensions.extend([&number.to_be_bytes()[..], &counted(body)].concat());
        if let Some(host) = &self.host {
            // server_name
            add(0, counted([vec![0], counted(host.clone().into_bytes())].concat()));
        }
        // supported_groups, ec_point_formats, signature_algorithms, supported_versions,
        // psk_key_exchange_modes, key_share
        add(10, numbers(&GROUPS));
        add(11, vec![1, 0]);
        add(13, numbers(&SIGNATURES));
        add(43, VERSIONS.to_vec());
        add(45, vec![1, 1]);
        add(51, counted([GROUPS[0].to_be_bytes().to_vec(), counted(any.clone())].concat()));
        let body = [
            &VERSION_1_2[..],
            &any,
            &[any.len() as u8],
            &any,
            &numbers(&SUITES),
            // No compression.
            &[1, 0],
            &counted(extensions),
        ]
        .concat();
        let message = [&[CLIENT_HELLO, 0][..], &counted(body)].concat();
        [&[HANDSHAKE][..], &VERSION_1_0, &counted(message)].concat()
    }
}

/// With its length before it, in two bytes. A hello has some 500 bytes at most.
fn counted(body: Vec<u8>) -> Vec<u8> {
    [&(body.len() as u16).to_be_bytes()[..], &body].concat()
}

/// The header of a record, and the type and version of the hello in it. An alert is shorter.
fn is_server_hello(answer: &[u8; LOOKED_AT]) -> bool {
    matches!(answer, [HANDSHAKE, 3, _, _, _, SERVER_HELLO, 0, _, _, 3, _, _])
}
