//! What is changed in the options of SYNs and SYN-ACKs.
//!
//! Where Multipath TCP is stripped, all options of its kind become NOPs in both directions, so the
//! length of the header stays. Without MP_CAPABLE in the SYN or in its answer both ends have plain
//! TCP (RFC 8684, sections 3.1 and 3.7). A SYN with MP_JOIN becomes a plain one: where nobody
//! listens at that port it is refused, and where somebody does, the answer has no MP_JOIN. Who
//! wanted to join must then reset it (section 3.2) before the other side takes it for open, and
//! goes on by its other subflows. The SYN is not dropped, since then it would come again and again.

use super::option;
use super::segment::each_option;
use crate::offload::Offload;
use crate::wire::transport::TCP_LEN;

/// The kind of Multipath TCP's options (RFC 8684, section 3).
pub(super) const MULTIPATH: u8 = 30;

/// Overwrites all options of Multipath TCP that a receiver would find.
#[cold]
pub(super) fn strip(tcp: &mut [u8; TCP_LEN], options: &mut [u8], offload: &Offload) {
    // An option has two bytes at least.
    for _ in 0..options.len() / 2 {
        let found = each_option(options).find(|(_, option)| option[0] == MULTIPATH);
        let Some(range) = found.map(|(at, option)| at..at + option.len()) else { return };
        option::blank(tcp, options, offload, range);
    }
}
