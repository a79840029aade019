//! TCP's flags (RFC 9293 section 3.1).

#![allow(missing_docs)]

pub const SYN: u8 = 0x02;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;
/// ECN echo (RFC 3168).
pub const ECE: u8 = 0x40;
/// Congestion window reduced (RFC 3168).
pub const CWR: u8 = 0x80;
