//! Taking back what was set on a device that is open.
//!
//! Options leave things open ("as it is"), so who only sets those of before again does not have
//! the device as it was. What it was is looked at before it is changed, and kept as options in
//! which nothing is open.

use std::os::fd::BorrowedFd;

use datapath::wire::Mac;

use super::device::{Extent, OpenError, TapOptions, configure, kernel, lost};
use super::ioctl;
use super::tag::WITHOUT_IPV6;
use super::whereabouts::visit;
use crate::rtnl::{Change, KernelLink, Netlink};

/// A step that may fail.
const LOOKING: &str = "looking at its addresses";

/// These options of an open device, of which `tap` is a descriptor, with what it is now in place of
/// what they say or leave open: its addresses are all that it has, whoever gave them.
///
/// # Errors
/// See [`OpenError`]: the device is not there, or the kernel refused.
pub fn as_it_is(options: &TapOptions, tap: BorrowedFd<'_>) -> Result<TapOptions, OpenError> {
    visit(tap, |netlink, link, _| look(options, netlink, link)).map_err(lost(options))?
}

/// Makes an open device what it was `before` ([`as_it_is`]) somebody began to set it up as
/// `options` say. An address that it has got otherwise meanwhile stays.
///
/// # Errors
/// See [`OpenError`]: the device is not there, or the kernel refused.
pub fn take_back(before: &TapOptions, options: &TapOptions, tap: BorrowedFd<'_>) -> Result<(), OpenError> {
    set_persistent(tap, before.persistent);
    visit(tap, |netlink, link, _| put_back(before, options, netlink, link)).map_err(lost(before))?
}

/// Lets a device outlive its descriptors, or not.
pub fn set_persistent(tap: BorrowedFd<'_>, persistent: bool) {
    // Refused only for a device that is gone.
    let _ = ioctl::set_persistent(tap, persistent);
}

/// See [`as_it_is`], inside the device's namespace.
pub(crate) fn look(options: &TapOptions, netlink: &mut Netlink, link: &KernelLink) -> Result<TapOptions, OpenError> {
    let addresses = netlink.addresses(link.index).map_err(|error| kernel(options, LOOKING, error))?;
    Ok(TapOptions {
        mac: link.mac.map(Mac),
        mtu: Some(link.mtu),
        longest_offload: Some(link.gso_max_size),
        addresses,
        txqueuelen: Some(link.txqueuelen),
        without_ipv6: link.alias.ends_with(WITHOUT_IPV6),
        ..options.clone()
    })
}

/// See [`take_back`], inside the device's namespace.
pub(crate) fn put_back(
    before: &TapOptions,
    options: &TapOptions,
    netlink: &mut Netlink,
    link: &KernelLink,
) -> Result<(), OpenError> {
    // First: where IPv6 comes back, the kernel makes an address of it.
    let mac = before.mac.map(|mac| mac.0);
    if mac.is_some() && mac != link.mac {
        let set = netlink.change(link.index, &Change { mac, ..Change::default() });
        set.map_err(|error| kernel(before, "setting its MAC address", error))?;
    }
    let link = &KernelLink { mac, ..link.clone() };
    configure(before, netlink, link, Extent { up: false, ipv6: true, addresses: &[] })?;
    let has = netlink.addresses(link.index).map_err(|error| kernel(before, LOOKING, error))?;
    for &(address, prefix) in has.iter().filter(|one| options.addresses.contains(one)) {
        if !before.addresses.contains(&(address, prefix)) {
            let taken = netlink.remove_address(link.index, address, prefix);
            taken.map_err(|error| kernel(before, "taking an address from it", error))?;
        }
    }
    // The kernel takes those of IPv6 with it, and all of them where the MTU is too short for it.
    for &(address, prefix) in before.addresses.iter().filter(|one| !has.contains(one)) {
        let given = netlink.add_address(link.index, address, prefix);
        given.map_err(|error| kernel(before, "giving it back its addresses", error))?;
    }
    Ok(())
}
