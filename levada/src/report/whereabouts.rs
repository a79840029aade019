//! Where TAP devices and containers' ends of veth pairs are that somebody has moved, renamed or set
//! down, and what interfaces say of their lines: what maintenance saw last, for reports and the
//! log.

use crate::api::device::{DeviceReport, NetnsReport};
use datapath::wire::Mac;
use ports::InterfaceStatus;
use ports::netns::{Identity, Netns};
use ports::tap::Whereabouts;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For how long the names of namespaces are believed: for one look at all devices.
const FRESH: Duration = Duration::from_millis(100);

impl NetnsReport {
    /// As people would look for it.
    fn text(&self) -> String {
        match (&self.name, self.pid) {
            (Some(name), _) => name.clone(),
            (None, Some(pid)) => format!("net:[{}] of process {pid}", self.number),
            (None, None) if self.number == 0 => "another namespace".to_owned(),
            (None, None) => format!("net:[{}]", self.number),
        }
    }
}

impl DeviceReport {
    /// What is not as it was made, in words; nothing where all is. The name is chosen by who has
    /// the device.
    #[must_use]
    pub fn text(&self) -> String {
        let moved = self.moved.as_ref().map(|netns| format!("moved to {}", netns.text()));
        let renamed = self.renamed.as_ref().map(|name| format!("renamed to {}", name.escape_debug()));
        let down = match (self.set_up, self.carrier) {
            (false, _) => Some("set down".to_owned()),
            (true, false) => Some("no carrier".to_owned()),
            (true, true) => None,
        };
        moved.into_iter().chain(renamed).chain(down).collect::<Vec<_>>().join(", ")
    }
}

/// Fills in processes of those namespaces that have no name, as far as the caller may look at
/// processes.
pub fn find_processes<'a>(devices: impl Iterator<Item = &'a mut DeviceReport>) {
    let nameless = devices.filter_map(|device| device.moved.as_mut());
    let nameless: Vec<_> =
        nameless.filter(|netns| netns.name.is_none() && netns.pid.is_none() && netns.number != 0).collect();
    if nameless.is_empty() {
        return;
    }
    let mut processes = BTreeMap::<u32, u32>::new();
    let entries = fs::read_dir("/proc").into_iter().flatten();
    for pid in entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()) {
        let link = fs::read_link(format!("/proc/{pid}/ns/net"));
        let number =
            link.ok().and_then(|link| link.to_str()?.strip_prefix("net:[")?.strip_suffix(']')?.parse::<u32>().ok());
        if let Some(number) = number {
            let first = processes.entry(number).or_insert(pid);
            *first = pid.min(*first);
        }
    }
    for netns in nameless {
        netns.pid = processes.get(&netns.number).copied();
    }
}

/// A device as it was last seen.
#[derive(Default)]
struct Sight {
    seen: Option<Whereabouts>,
    report: DeviceReport,
}

/// The names of namespaces, read for many devices at once.
#[derive(Default)]
struct Names {
    read: Option<Instant>,
    names: HashMap<Identity, String>,
}

impl Names {
    fn report(&mut self, netns: Identity) -> NetnsReport {
        if self.read.is_none_or(|read| read.elapsed() >= FRESH) {
            let all = Netns::named().unwrap_or_default();
            let all = all.iter().filter_map(|netns| Some((netns.identity().ok()?, netns.name()?.to_owned())));
            (self.read, self.names) = (Some(Instant::now()), all.collect());
        }
        let own = Identity::own().is_ok_and(|own| own == netns);
        let name = self.names.get(&netns).cloned();
        NetnsReport { name, number: netns.number(), pid: own.then(std::process::id) }
    }
}

#[derive(Default)]
struct All {
    sights: BTreeMap<usize, Sight>,
    /// Of those that are gone: why, and what helps.
    lost: BTreeMap<usize, String>,
    /// What they say of themselves, where they say anything.
    lines: BTreeMap<usize, InterfaceStatus>,
    names: Names,
}

/// The devices as they were last seen, by the worker's number. Clones are one and the same.
#[derive(Clone, Default)]
pub struct Sights(Arc<Mutex<All>>);

impl Sights {
    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of where a device is. The answer is the report on it, where that is another than
    /// before.
    pub fn see(&self, device: usize, seen: &Whereabouts) -> Option<DeviceReport> {
        let mut all = self.lock();
        let All { sights, names, .. } = &mut *all;
        let sight = sights.entry(device).or_default();
        let is_as_before = sight.seen.as_ref() == Some(seen);
        if is_as_before && sight.report.moved.as_ref().is_none_or(|netns| netns.name.is_some()) {
            return None;
        }
        sight.report = DeviceReport {
            set_up: seen.is_up,
            carrier: seen.has_carrier,
            moved: seen.is_moved.then(|| names.report(seen.netns)),
            renamed: seen.is_renamed.then(|| seen.name.clone()),
            unsettled: sight.report.unsettled.take(),
        };
        sight.seen = Some(seen.clone());
        (!is_as_before).then(|| sight.report.clone())
    }

    /// Takes note of what of the configuration a device does not have, and why; `None`: it has all.
    pub fn complain(&self, device: usize, why: Option<String>) {
        self.lock().sights.entry(device).or_default().report.unsettled = why;
    }

    /// Takes note that a device is gone: why, and what brings it back.
    pub fn lose(&self, device: usize, why: String) {
        let mut all = self.lock();
        all.lines.remove(&device);
        all.lost.insert(device, why);
    }

    /// Takes note of what a device says of itself.
    pub fn hear(&self, device: usize, line: InterfaceStatus) {
        self.lock().lines.insert(device, line);
    }

    /// A device's own address, where it has one and is not gone.
    #[must_use]
    pub fn address(&self, device: usize) -> Option<Mac> {
        self.lock().lines.get(&device)?.mac
    }

    /// Whether a device has a carrier and is up, where it has such a thing and is not gone.
    #[must_use]
    pub fn carrier(&self, device: usize) -> Option<bool> {
        self.lock().lines.get(&device)?.has_carrier
    }

    /// Why a device is gone, where it is.
    #[must_use]
    pub fn lost(&self, device: usize) -> Option<String> {
        self.lock().lost.get(&device).cloned()
    }

    /// Forgets what is known of devices: they are gone, or are opened anew.
    pub fn forget(&self, devices: &[usize]) {
        let mut all = self.lock();
        all.sights.retain(|device, _| !devices.contains(device));
        all.lost.retain(|device, _| !devices.contains(device));
        all.lines.retain(|device, _| !devices.contains(device));
    }

    /// The report on a device; `None` where it is none that can be moved, or is gone.
    #[must_use]
    pub fn of(&self, device: usize) -> Option<DeviceReport> {
        self.lock().sights.get(&device).filter(|sight| sight.seen.is_some()).map(|sight| sight.report.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_as_it_was_made_is_said_in_words() {
        let mut report = DeviceReport { set_up: true, carrier: true, ..DeviceReport::default() };
        assert_eq!(report.text(), "");
        report.renamed = Some("eth0".to_owned());
        report.moved = Some(NetnsReport { name: None, number: 7, pid: None });
        assert_eq!(report.text(), "moved to net:[7], renamed to eth0");
        let unknown = DeviceReport { moved: Some(NetnsReport::default()), renamed: None, ..report.clone() };
        assert_eq!(unknown.text(), "moved to another namespace");
        let cunning = DeviceReport { renamed: Some("\u{1b}[2Jx".to_owned()), ..report.clone() };
        assert!(cunning.text().ends_with("renamed to \\u{1b}[2Jx"), "{}", cunning.text());
        report.moved = Some(NetnsReport { name: Some("red".to_owned()), number: 7, pid: None });
        report.set_up = false;
        assert_eq!(report.text(), "moved to red, renamed to eth0, set down");
        assert_eq!(DeviceReport { set_up: true, ..DeviceReport::default() }.text(), "no carrier");
    }

    #[test]
    fn a_namespace_without_a_name_is_found_by_a_process_in_it() {
        let own = Identity::own().unwrap();
        let mut report = DeviceReport {
            moved: Some(NetnsReport { name: None, number: own.number(), pid: None }),
            ..Default::default()
        };
        find_processes(std::iter::once(&mut report));
        let pid = report.moved.unwrap().pid.expect("at least this process is in it");
        let link = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
        assert_eq!(link(&pid.to_string()), link("self"));
    }

    #[test]
    fn a_sight_is_told_once_and_a_complaint_stays_until_it_is_taken_back() {
        let sights = Sights::default();
        let netns = Identity::own().unwrap();
        let mut seen =
            Whereabouts { name: "a".into(), netns, is_moved: false, is_renamed: false, is_up: true, has_carrier: true };
        assert!(sights.of(3).is_none());
        assert!(sights.see(3, &seen).is_some() && sights.see(3, &seen).is_none());
        sights.complain(3, Some("why".to_owned()));
        seen.is_up = false;
        let report = sights.see(3, &seen).unwrap();
        assert_eq!((report.set_up, report.unsettled.as_deref()), (false, Some("why")));
        sights.complain(3, None);
        assert_eq!(sights.of(3).unwrap().unsettled, None);
        sights.forget(&[3]);
        assert!(sights.of(3).is_none());
    }
}
