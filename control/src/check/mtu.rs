//! Longest packets: those of endpoints fit through the uplink, and devices with addresses of IPv6
//! take packets that are long enough for it.

use super::Findings;
use crate::config::{Config, DEFAULT_MTU, Device, Endpoint, MIN_MTU, Switch, Tenant, Uplink};
use crate::names::Locator;
use crate::place::Place;
use datapath::program::Attachment;

/// Least MTU of IPv6, in bytes (RFC 8200 section 5): a device with less has no IPv6 in the kernel,
/// and takes no address of it.
const IPV6_MTU: u32 = 1280;

pub(super) fn check(findings: &mut Findings, config: &Config) {
    for (s, switch) in config.switches.iter().enumerate() {
        let place = Place::root().key("switch").item(s);
        if let Some(uplink) = &switch.uplink {
            for (place, device) in uplink.devices(&place.key("uplink")) {
                check_addresses(findings, device, device.mtu, None, &place);
            }
            check_tunnels(findings, switch, uplink, &place.key("uplink"));
        }
        for (t, tenant) in switch.tenants.iter().enumerate() {
            let place = place.key("tenant").item(t).key("endpoint");
            for (e, endpoint) in tenant.endpoints.iter().enumerate() {
                check_endpoint(findings, switch, tenant, endpoint, &place.item(e));
            }
        }
    }
}

fn check_endpoint(findings: &mut Findings, switch: &Switch, tenant: &Tenant, endpoint: &Endpoint, place: &Place) {
    let device = &endpoint.device;
    let outside = switch.uplink.as_ref().filter(|_| tenant.attachment != Attachment::Isolated);
    // Of devices that are made, no longer packets are taken than fit into a tunnel.
    let tunnels = outside.filter(|_| matches!(tenant.attachment, Attachment::Vxlan(_)));
    let mtu = tunnels.map_or(device.mtu, |uplink| device.mtu.min(tenant.room(uplink)));
    check_addresses(findings, device, mtu, tunnels.filter(|_| mtu < device.mtu), place);
    if let Some(uplink) = outside
        && device.mtu > tenant.room(uplink)
        && !endpoint.is_director()
    {
        check_room(findings, tenant, endpoint, uplink, place);
    }
}

/// The addresses of IPv6 that a device with such an MTU gets; `by`: it follows from this uplink's.
fn check_addresses(findings: &mut Findings, device: &Device, mtu: u32, by: Option<&Uplink>, place: &Place) {
    // Of an interface that exists all addresses are refused.
    if !matches!(device.locator, Some(Locator::Tap(_) | Locator::Veth(_))) {
        return;
    }
    for (n, (ip, _)) in device.addresses.iter().enumerate().filter(|(_, (ip, _))| ip.is_ipv6()) {
        let at = place.key("address").item(n);
        if !device.ipv6 {
            let message = format!("the device gets {ip}, and `ipv6 = false` takes IPv6 from it");
            findings.error(at, message, "remove the address, or `ipv6 = false`");
        } else if mtu < IPV6_MTU {
            let message = format!("the device's MTU is {mtu}: with less than {IPV6_MTU} it takes no address of IPv6");
            let remedy = match by {
                Some(uplink) => format!("{} to {} at least", raise(uplink), IPV6_MTU + uplink.around()),
                None => format!("write mtu = {IPV6_MTU} or more"),
            };
            findings.error(at, message, format!("{remedy}, or remove the address"));
        }
    }
}

/// What tunnels leave of the uplink's packets.
fn check_tunnels(findings: &mut Findings, switch: &Switch, uplink: &Uplink, place: &Place) {
    if !switch.tenants.iter().any(|tenant| matches!(tenant.attachment, Attachment::Vxlan(_))) {
        return;
    }
    let (mtu, around) = (uplink.device.mtu, uplink.around());
    let left = mtu.saturating_sub(around);
    let message = format!("of the uplink's MTU {mtu} the headers of tunnels leave {left}");
    let remedy = |least: u32| format!("{} to {} at least", raise(uplink), least + around);
    let at = if uplink.bond.is_some() { place.key("bond").key("member") } else { place.key("mtu") };
    if left < MIN_MTU {
        findings.error(at, format!("{message}: a packet of IPv4 may have {MIN_MTU}"), remedy(MIN_MTU));
    } else if left < IPV6_MTU {
        let message = format!("{message}: tenants with a `vni` have no IPv6, which takes {IPV6_MTU}");
        findings.warning(at, message, remedy(IPV6_MTU));
    }
}

/// An endpoint whose packets may be too long for the uplink. Of a device that Levada makes, and of
/// which nothing is said, the MTU is lowered.
fn check_room(findings: &mut Findings, tenant: &Tenant, endpoint: &Endpoint, uplink: &Uplink, place: &Place) {
    let (mtu, room) = (endpoint.device.mtu, tenant.room(uplink));
    let (has, raise) = (uplink.device.mtu, raise(uplink));
    let (message, remedy) = match (tenant.attachment, &endpoint.device.locator) {
        (Attachment::Vxlan(_), Some(Locator::Tap(_) | Locator::Veth(_))) if mtu == DEFAULT_MTU => return,
        (Attachment::Vxlan(_), Some(Locator::Tap(_) | Locator::Veth(_))) => (
            format!("the MTU {mtu} leaves no room for the tunnel's headers: the device gets {room}"),
            format!("write mtu = {room}, or {raise} from {has}"),
        ),
        (Attachment::Vxlan(_), _) => (
            format!(
                "packets above {room} bytes do not fit into a tunnel: the sender receives \"packet too big\", or they are dropped"
            ),
            format!("set the interface's MTU and `mtu` to {room}, or {raise} from {has}"),
        ),
        _ => (
            format!("the MTU {mtu} is above the uplink's {has}: longer packets are dropped there"),
            format!("lower it, or {raise}"),
        ),
    };
    findings.warning(place.key("mtu"), message, remedy);
}

/// How an uplink gets longer packets.
fn raise(uplink: &Uplink) -> &'static str {
    if uplink.bond.is_some() { "raise the mtu of the bond's members" } else { "raise the uplink's mtu" }
}
