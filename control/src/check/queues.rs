//! Disciplines that can do nothing: thresholds that their queue never reaches, and queues that are
//! none.

use super::Findings;
use crate::config::{Config, Switch};
use crate::place::Place;
use crate::units::show_size;
use datapath::aqm::Discipline;
use datapath::program::{Attachment, IngressMode};

pub(super) fn check(findings: &mut Findings, config: &Config) {
    for (i, link) in config.links.iter().enumerate() {
        let place = Place::root().key("link").item(i).key("aqm");
        reached(findings, &place, link.discipline, u64::from(link.queue_bytes));
    }
    for (i, switch) in config.switches.iter().enumerate() {
        let place = Place::root().key("switch").item(i);
        check_switch(findings, switch, &place);
    }
}

fn check_switch(findings: &mut Findings, switch: &Switch, place: &Place) {
    let uplink = switch.uplink.as_ref().and_then(|uplink| uplink.aqm);
    if uplink.is_some() && switch.ingress != IngressMode::Queue {
        findings.warning(
            place.key("uplink").key("aqm"),
            "where ingress is policed there is no queue: only egress has the discipline",
            "remove `ingress` to have queues in both directions",
        );
    }
    for (t, tenant) in switch.tenants.iter().enumerate() {
        for (e, endpoint) in tenant.endpoints.iter().enumerate() {
            let of_uplink = uplink.filter(|_| tenant.attachment != Attachment::Isolated);
            let Some(aqm) = endpoint.aqm.or(tenant.aqm).or(of_uplink) else { continue };
            let tenant = place.key("tenant").item(t);
            reached(findings, &tenant.key("endpoint").item(e).key("aqm"), aqm, endpoint.queue_bytes);
        }
    }
}

/// Whether a queue of at most `queue_bytes` can reach the threshold.
fn reached(findings: &mut Findings, place: &Place, aqm: Discipline, queue_bytes: u64) {
    let least = match aqm {
        Discipline::Red(red) => red.min_bytes,
        Discipline::Step(step) => step.mark_bytes,
        Discipline::DropTail | Discipline::Codel | Discipline::Sojourn { .. } | Discipline::Auto => return,
    };
    if u64::from(least) >= queue_bytes {
        let (least, queue) = (show_size(least.into()), show_size(queue_bytes));
        findings.warning(
            place.clone(),
            format!("the queue is full at {queue}, before it reaches the threshold of {least}"),
            "make `queue` larger, or the threshold smaller",
        );
    }
}
