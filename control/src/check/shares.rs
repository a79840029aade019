//! Guarantees and limits: each fits its own limit, its tenant and the link, and stands where it can
//! be kept.

use super::{Findings, way};
use crate::admission::{endpoints_guarantee, promise, tenant_guarantee};
use crate::config::{Config, Knobs, Switch, Tenant};
use crate::names::{Locator, direction as word};
use crate::place::Place;
use crate::problem::Problem;
use crate::units::{show_percent, show_rate};
use datapath::program::{Attachment, IngressMode};
use datapath::units::{Direction, Rate};
use std::collections::BTreeMap;

pub(super) fn check(findings: &mut Findings, config: &Config) {
    let links = config.links.iter().rev().filter(|link| link.rate.0 > 0);
    let rates: BTreeMap<&str, Rate> = links.map(|link| (link.name.as_str(), link.rate)).collect();
    for (i, switch) in config.switches.iter().enumerate() {
        let place = Place::root().key("switch").item(i);
        for (t, tenant) in switch.tenants.iter().enumerate() {
            let place = place.key("tenant").item(t);
            if reachable(findings, switch, tenant, &place) {
                check_tenant(findings, tenant, &place);
                if switch.ingress != IngressMode::Queue {
                    check_policed(findings, tenant, &place);
                }
            }
        }
        check_admission(findings, switch, &place);
        check_link_rate(findings, &rates, switch, &place);
    }
}

/// A guarantee concerns the uplink: without a way there it would be an empty word. Says whether
/// there is one.
fn reachable(findings: &mut Findings, switch: &Switch, tenant: &Tenant, place: &Place) -> bool {
    let (why, remedy) = match (&switch.uplink, tenant.attachment) {
        (None, _) => ("the switch has no uplink", "add [switch.uplink], or remove the guarantee"),
        (Some(_), Attachment::Isolated) => {
            ("the tenant does not reach the uplink", "add `vlan` or `vni` to the tenant, or remove the guarantee")
        }
        _ => return true,
    };
    for (knobs, place) in all_knobs(tenant, place) {
        if knobs.guarantee.egress.is_some() || knobs.guarantee.ingress.is_some() {
            findings.error(place.key("guarantee"), format!("nothing can be guaranteed here: {why}"), remedy);
            findings.assumes(way(&place));
        }
    }
    false
}

/// A tenant's and its endpoints'.
fn all_knobs<'a>(tenant: &'a Tenant, place: &Place) -> Vec<(&'a Knobs, Place)> {
    let mut knobs = vec![(&tenant.knobs, place.clone())];
    let endpoints = tenant.endpoints.iter().enumerate();
    knobs.extend(endpoints.map(|(e, endpoint)| (&endpoint.knobs, place.key("endpoint").item(e))));
    knobs
}

/// What is policed is in no queue that could be served first, or later.
fn check_policed(findings: &mut Findings, tenant: &Tenant, place: &Place) {
    for (knobs, place) in all_knobs(tenant, place) {
        if knobs.guarantee.ingress.is_some() {
            findings.warning(
                place.key("guarantee").key(word(Direction::Ingress)),
                "where ingress is policed nothing is guaranteed: each has its part of the uplink by weight",
                "guarantee `egress` only and use `weight`, or remove `ingress` of the switch to have queues",
            );
        }
        if knobs.limit.ingress.is_some() {
            findings.warning(
                place.key("limit").key(word(Direction::Ingress)),
                "where ingress is policed what comes over the uplink is not held to this limit",
                "limit `egress` only, or remove `ingress` of the switch to have queues",
            );
        }
    }
}

fn check_tenant(findings: &mut Findings, tenant: &Tenant, place: &Place) {
    check_limit(findings, &tenant.knobs, place);
    for (e, endpoint) in tenant.endpoints.iter().enumerate() {
        check_limit(findings, &endpoint.knobs, &place.key("endpoint").item(e));
    }
    let sum = |promised: Rate| {
        format!("the endpoints of tenant \"{}\" are guaranteed {} together on {ON}", tenant.name, show_rate(promised))
    };
    both_ways(findings, &place.key("guarantee"), Problem::error, |direction| {
        let promised = endpoints_guarantee(tenant, direction);
        let own = tenant.knobs.guarantee.get(direction).filter(|&own| own < promised)?;
        Some((
            format!("{}, the tenant only {}", sum(promised), show_rate(own)),
            format!(
                "raise it to at least \"{}\", lower its endpoints', or leave it out to get their sum",
                show_rate(promised)
            ),
        ))
    });
    // More than one rate may be, which the uplink that is a bond may carry.
    both_ways(findings, &place.key("guarantee"), Problem::error, |direction| {
        let promised = endpoints_guarantee(tenant, direction);
        let is_sum = tenant.knobs.guarantee.get(direction).is_none();
        (is_sum && promised > Rate::MAX).then(|| {
            (
                format!("{}, and a tenant has {} at most", sum(promised), show_rate(Rate::MAX)),
                "lower them, or make several tenants of it".to_owned(),
            )
        })
    });
    both_ways(findings, &place.key("limit"), Problem::error, |direction| {
        let promised = endpoints_guarantee(tenant, direction);
        let limit = tenant.knobs.limit.get(direction).filter(|&limit| limit < promised)?;
        // Where the tenant has a guarantee of its own, that one has been compared with the limit.
        tenant.knobs.guarantee.get(direction).is_none().then(|| {
            (
                format!("{}, above the tenant's limit of {}", sum(promised), show_rate(limit)),
                "raise the limit, or lower the guarantees".to_owned(),
            )
        })
    });
}

fn check_limit(findings: &mut Findings, knobs: &Knobs, place: &Place) {
    both_ways(findings, &place.key("guarantee"), Problem::error, |direction| {
        let (guarantee, limit) = ((*knobs.guarantee.get(direction))?, (*knobs.limit.get(direction))?);
        (guarantee > limit).then(|| {
            (
                format!("the guarantee of {} is above the limit of {} on {ON}", show_rate(guarantee), show_rate(limit)),
                "lower the guarantee, or raise the limit".to_owned(),
            )
        })
    });
}

/// Stands for the direction in a message of [`both_ways`].
const ON: &str = "{direction}";

/// Asks `fault` for message and remedy in each direction and reports them at `place`; what is wrong
/// in both alike is said once.
fn both_ways(
    findings: &mut Findings,
    place: &Place,
    severity: fn(Place, String, String) -> Problem,
    fault: impl Fn(Direction) -> Option<(String, String)>,
) {
    let [egress, ingress] = Direction::ALL.map(&fault);
    if egress == ingress {
        if let Some((message, remedy)) = egress {
            findings.0.push(severity(place.clone(), message.replace(ON, "egress and ingress"), remedy));
        }
        return;
    }
    for (direction, fault) in Direction::ALL.into_iter().zip([egress, ingress]) {
        if let Some((message, remedy)) = fault {
            findings.0.push(severity(place.key(word(direction)), message.replace(ON, word(direction)), remedy));
        }
    }
}

fn check_admission(findings: &mut Findings, switch: &Switch, place: &Place) {
    both_ways(findings, &place.key("uplink").key("rate"), Problem::error, |direction| {
        let promise = promise(switch, direction)?;
        let rate = *switch.uplink.as_ref()?.rate.get(direction);
        if promise.fits() || rate == Rate(0) {
            return None;
        }
        let parts: Vec<String> = switch
            .tenants
            .iter()
            .map(|t| (t, tenant_guarantee(t, direction)))
            .filter(|(t, rate)| rate.0 > 0 && t.attachment != Attachment::Isolated)
            .map(|(t, rate)| format!("{} {}", t.name, show_rate(rate)))
            .collect();
        let carried = match direction {
            Direction::Egress => format!("the uplink carries {}", show_rate(rate)),
            Direction::Ingress => format!(
                "the uplink's {} less {} of headroom leave {}",
                show_rate(rate),
                show_percent(switch.headroom()),
                show_rate(promise.capacity)
            ),
        };
        let over = Rate(promise.promised.0 - promise.capacity.0);
        Some((
            format!("{} are guaranteed on {ON} ({}), but {carried}", show_rate(promise.promised), shorten(&parts)),
            format!("lower the guarantees by {} together, or raise the rate", show_rate(over)),
        ))
    });
}

/// The first few of many.
fn shorten(parts: &[String]) -> String {
    const FEW: usize = 6;
    let more = parts.len().saturating_sub(FEW);
    let mut text = parts[..parts.len() - more].join(", ");
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

/// An uplink over a link of this daemon cannot carry more than the link.
fn check_link_rate(findings: &mut Findings, rates: &BTreeMap<&str, Rate>, switch: &Switch, place: &Place) {
    let Some(uplink) = &switch.uplink else { return };
    let Some(Locator::Link(name, _)) = &uplink.device.locator else { return };
    let Some(&carried) = rates.get(name.as_str()) else { return };
    both_ways(findings, &place.key("uplink").key("rate"), Problem::warning, |direction| {
        let rate = *uplink.rate.get(direction);
        (rate > carried).then(|| {
            (
                format!(
                    "the uplink's {} on {ON} are more than the {} of link \"{name}\": guarantees shrink in proportion",
                    show_rate(rate),
                    show_rate(carried)
                ),
                "lower the uplink's rate, or raise the link's".to_owned(),
            )
        })
    });
}
