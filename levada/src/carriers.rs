//! Carriers of the members of uplinks, and what their links have negotiated: a thread for each
//! network namespace that has such, which tells the worker as soon as the kernel says that a link
//! has changed, and asks for all of them as often as `miimon` says besides.

use crate::recipe::Recipe;
use crate::system::privileges::{Duty, confine};
use crate::worker::{Request, Waker};
use control::bond::LinkState;
use control::plan::{Plan, PortKind};
use datapath::bond::Negotiated;
use datapath::program::PortId;
use ports::carriers::Carriers;
use ports::netns::Netns;
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a change is waited for where links are not asked by the clock, until it is looked
/// whether anybody still wants to know.
const PATIENCE: Duration = Duration::from_secs(1);

/// What cannot be watched is tried again after such a time at first, which doubles. A namespace
/// that is not there is looked for each time.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// A switch, and a port there.
type SwitchPort = (u32, PortId);

/// Members of a namespace.
type Links = Vec<MemberInterface>;

/// A member's interface.
#[derive(Clone, PartialEq, Eq, Debug)]
struct MemberInterface {
    /// The worker's number of the device.
    device: usize,
    /// Its switch, and its port there: who has come to another place is told of again.
    place: SwitchPort,
    name: String,
    /// Levada has made it: what its driver says of it was negotiated with nobody.
    is_made: bool,
}

/// The watchers of all namespaces.
#[derive(Default)]
pub struct Watchers {
    running: BTreeMap<Option<String>, Watcher>,
    /// Namespaces that cannot be watched.
    failed: BTreeMap<Option<String>, Failure>,
}

/// Why a namespace cannot be watched, and when it is tried again.
struct Failure {
    why: String,
    next: Instant,
    pause: Duration,
}

impl Failure {
    /// It has failed at `now`, perhaps as `before`.
    fn new(now: Instant, error: &io::Error, why: String, before: Option<&Failure>) -> Failure {
        let longer = before.filter(|before| before.why == why).map(|before| (before.pause * 2).min(LONGEST_PAUSE));
        // With the namespace a bond's links come back: that is to be seen soon.
        let pause = longer.filter(|_| error.kind() != io::ErrorKind::NotFound).unwrap_or(PAUSE);
        Failure { why, next: now + pause, pause }
    }
}

struct Watcher {
    links: Links,
    patience: Duration,
    is_polled: bool,
    /// The thread ends when this is gone, and when its namespace is.
    _wanted: Arc<()>,
    thread: JoinHandle<()>,
}

impl Watchers {
    /// Watches the members that `plan` has, whose devices are known by their recipes. Those whose
    /// links are watched already are left. What cannot be watched is said, unless it was before.
    pub fn follow<'a>(
        &mut self,
        plan: &Plan,
        devices: impl Iterator<Item = (usize, &'a Recipe)>,
        tell: impl Fn() -> (SyncSender<Request>, Waker),
    ) -> Vec<String> {
        let mut wanted = wanted(plan, devices);
        self.running.retain(|place, watcher| {
            let is_same = wanted.get(place).is_some_and(|(links, miimon)| {
                let is_asked = (patience(*miimon), *miimon > 0) == (watcher.patience, watcher.is_polled);
                *links == watcher.links && is_asked && !watcher.thread.is_finished()
            });
            if is_same {
                wanted.remove(place);
            }
            is_same
        });
        let mut complaints = Vec::new();
        let before = std::mem::take(&mut self.failed);
        for (place, (links, miimon_ns)) in wanted {
            match watch(place.as_deref(), &links, miimon_ns, tell()) {
                Ok(watcher) => drop(self.running.insert(place, watcher)),
                Err(error) => {
                    let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
                    let why = format!("the links of {} are not watched: {error}; it is tried again", names.join(", "));
                    let known = before.get(&place);
                    // Where the namespace is not there, nor are the devices, of which that is said.
                    if error.kind() != io::ErrorKind::NotFound && known.is_none_or(|known| known.why != why) {
                        complaints.push(why.clone());
                    }
                    let failure = Failure::new(Instant::now(), &error, why, known);
                    self.failed.insert(place, failure);
                }
            }
        }
        complaints
    }

    /// Whether a namespace is not watched, for whatever reason, and it is time to try again: it may
    /// be there again.
    pub fn is_blind(&self) -> bool {
        let now = Instant::now();
        self.failed.values().any(|failure| failure.next <= now)
            || self.running.values().any(|watcher| watcher.thread.is_finished())
    }
}

fn patience(miimon_ns: u64) -> Duration {
    if miimon_ns == 0 { PATIENCE } else { Duration::from_nanos(miimon_ns).min(PATIENCE) }
}

/// By namespace: the members' devices, and the least `miimon` of their bonds.
fn wanted<'a>(
    plan: &Plan,
    devices: impl Iterator<Item = (usize, &'a Recipe)>,
) -> BTreeMap<Option<String>, (Links, u64)> {
    let mut members: BTreeMap<(Option<String>, String), (u64, SwitchPort)> = BTreeMap::new();
    for (id, switch) in plan.switches.iter() {
        let (Some(bond), Some(uplink)) = (&switch.bond, &switch.program.uplink) else { continue };
        for member in &uplink.members {
            let place = match &switch.ports[member.port.0 as usize].kind {
                PortKind::Tap(tap) | PortKind::Veth(tap) => (tap.netns.clone(), tap.name.clone()),
                PortKind::Packet(packet) => (packet.netns.clone(), packet.name.clone()),
                PortKind::Host(_)
                | PortKind::Link { .. }
                | PortKind::Vde(_)
                | PortKind::VhostUser(_)
                | PortKind::Director => {
                    continue;
                }
            };
            members.insert(place, (bond.miimon_ns, (id, member.port)));
        }
    }
    let mut wanted: BTreeMap<Option<String>, (Links, u64)> = BTreeMap::new();
    for (device, recipe) in devices {
        let (netns, name, is_made) = match recipe {
            Recipe::Tap(options) => (&options.netns, &options.name, true),
            Recipe::Packet(options, _) => (&options.netns, &options.name, false),
            Recipe::Veth(_) | Recipe::Host(_) => continue,
        };
        let path = |netns: &Option<String>| netns.as_deref().map(|name| Netns::new(name).path().to_owned());
        let found = members.iter().find(|((of, wanted), _)| {
            wanted == name && path(of) == netns.as_ref().map(|netns| netns.path().to_owned())
        });
        let Some(((of, _), &(miimon_ns, place))) = found else { continue };
        let (links, least) = wanted.entry(of.clone()).or_insert((Vec::new(), miimon_ns));
        links.push(MemberInterface { device, place, name: name.clone(), is_made });
        *least = match (*least, miimon_ns) {
            (0, ns) | (ns, 0) => ns,
            (one, other) => one.min(other),
        };
    }
    wanted
}

fn watch(
    place: Option<&str>,
    links: &Links,
    miimon_ns: u64,
    (inbox, waker): (SyncSender<Request>, Waker),
) -> io::Result<Watcher> {
    let carriers = Carriers::open(place.map(Netns::new).as_ref())?;
    let wanted = Arc::new(());
    let is_wanted = Arc::downgrade(&wanted);
    let (links, patience, is_polled) = (links.clone(), patience(miimon_ns), miimon_ns > 0);
    let mine = links.clone();
    let thread = confined(
        "levada-links",
        || confine(Duty::Links),
        move || {
            listen(carriers, &mine, patience, is_polled, &is_wanted, |device, link| {
                let is_there = inbox.send(Request::Link { device, link }).is_ok();
                waker.ring();
                is_there
            });
        },
    )?;
    Ok(Watcher { links, patience, is_polled, _wanted: wanted, thread })
}

/// A thread that works without rights that it does not need.
///
/// # Errors
/// It has more, or does not begin: nothing is done.
fn confined(
    name: &str,
    confine: impl FnOnce() -> Result<(), String> + Send + 'static,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let (sender, begun) = sync_channel(1);
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
        let confined = confine();
        let may_work = confined.is_ok();
        let _ = sender.send(confined);
        if may_work {
            work();
        }
    })?;
    match begun.recv() {
        Ok(Ok(())) => Ok(thread),
        Ok(Err(why)) => Err(io::Error::other(why)),
        Err(_) => Err(io::Error::other("the thread ended")),
    }
}

/// Who knows what links are like: the kernel, but in tests.
trait Source {
    /// What a link has negotiated; `None` where it has no carrier.
    fn negotiated(&mut self, name: &str) -> io::Result<Option<Negotiated>>;

    /// Whether a link has changed within this time.
    fn wait(&mut self, patience: Duration) -> io::Result<bool>;
}

impl Source for Carriers {
    fn negotiated(&mut self, name: &str) -> io::Result<Option<Negotiated>> {
        Carriers::negotiated(self, name)
    }

    fn wait(&mut self, patience: Duration) -> io::Result<bool> {
        Carriers::wait(self, patience)
    }
}

/// Tells of each link once, and then of each change.
fn listen(
    mut carriers: impl Source,
    links: &Links,
    patience: Duration,
    is_polled: bool,
    is_wanted: &Weak<()>,
    tell: impl Fn(usize, LinkState) -> bool,
) {
    let mut told = BTreeMap::new();
    let mut is_due = true;
    let is_wanted = || is_wanted.strong_count() > 0;
    while is_wanted() {
        let mut is_unknown = false;
        for MemberInterface { device, name, is_made, .. } in links.iter().filter(|_| is_due) {
            let Ok(negotiated) = carriers.negotiated(name) else {
                is_unknown = true;
                continue;
            };
            let is_up = negotiated.is_some();
            let link = LinkState { is_up, negotiated: negotiated.filter(|_| !is_made).unwrap_or_default() };
            if told.insert(*device, link) != Some(link) && !tell(*device, link) {
                return;
            }
        }
        is_due = match carriers.wait(patience) {
            Ok(has_changed) => has_changed || is_polled || is_unknown,
            // The namespace is gone, and all its links with it. Who is not wanted any more has a
            // successor, which knows better.
            Err(_) => {
                links.iter().all(|link| is_wanted() && tell(link.device, LinkState::default()));
                return;
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A link that loses its carrier during the third wait, which the kernel says by an event, or
    /// does not. Nobody wants to know any more after ten.
    struct Silent {
        has_event: bool,
        waits: u32,
        wanted: Option<Arc<()>>,
    }

    const MIIMON: Duration = Duration::from_millis(100);

    impl Source for Silent {
        fn negotiated(&mut self, name: &str) -> io::Result<Option<Negotiated>> {
            assert_eq!(name, "eth0");
            Ok((self.waits < 3).then(Negotiated::default))
        }

        fn wait(&mut self, patience: Duration) -> io::Result<bool> {
            assert_eq!(patience, MIIMON);
            self.waits += 1;
            if self.waits == 10 {
                drop(self.wanted.take());
            }
            Ok(self.has_event && self.waits == 3)
        }
    }

    /// What is told of such a link: whether it is up.
    fn told(has_event: bool, is_polled: bool) -> Vec<bool> {
        let wanted = Arc::new(());
        let is_wanted = Arc::downgrade(&wanted);
        let link = MemberInterface { device: 7, place: (0, PortId(1)), name: "eth0".to_owned(), is_made: false };
        let told = RefCell::new(Vec::new());
        let source = Silent { has_event, waits: 0, wanted: Some(wanted) };
        listen(source, &vec![link], MIIMON, is_polled, &is_wanted, |device, link| {
            assert_eq!(device, 7);
            told.borrow_mut().push(link.is_up);
            true
        });
        told.into_inner()
    }

    #[test]
    fn a_carrier_that_goes_without_an_event_is_found_out_where_miimon_asks() {
        assert_eq!(told(false, true), [true, false], "it is asked for");
        assert_eq!(told(false, false), [true], "miimon is 0: nobody asks");
        assert_eq!(told(true, false), [true, false], "the kernel says so");
        assert_eq!(told(true, true), [true, false], "it is told once");
    }

    #[test]
    fn a_thread_that_keeps_rights_does_nothing_and_says_why() {
        let worked = Arc::new(AtomicBool::new(false));
        for may in [false, true] {
            let done = Arc::clone(&worked);
            let confine = move || if may { Ok(()) } else { Err("it keeps rights".to_owned()) };
            match confined("test", confine, move || done.store(true, Ordering::SeqCst)) {
                Ok(thread) => thread.join().unwrap(),
                Err(error) => assert_eq!(error.to_string(), "it keeps rights"),
            }
            assert_eq!(worked.load(Ordering::SeqCst), may);
        }
    }

    #[test]
    fn what_cannot_be_watched_is_tried_again_more_and_more_seldom() {
        let (error, now) = (io::Error::other("no"), Instant::now());
        let mut failure: Option<Failure> = None;
        let mut pauses = Vec::new();
        for why in ["no"; 11].into_iter().chain(["another"]) {
            let next = Failure::new(now, &error, why.to_owned(), failure.as_ref());
            assert_eq!(next.next, now + next.pause);
            pauses.push(next.pause.as_secs());
            failure = Some(next);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 1]);
        // One that is not there may come again at any time.
        let gone = io::Error::from(io::ErrorKind::NotFound);
        let two = Failure::new(now, &gone, "gone".to_owned(), None);
        assert_eq!(Failure::new(now, &gone, "gone".to_owned(), Some(&two)).pause, PAUSE);
        let watchers = |failure| Watchers { failed: [(None, failure)].into(), ..Watchers::default() };
        assert!(!watchers(two).is_blind(), "not yet");
        assert!(watchers(Failure { why: String::new(), next: now, pause: PAUSE }).is_blind());
    }
}
