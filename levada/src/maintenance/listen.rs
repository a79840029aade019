//! Who tells maintenance that interfaces or the ways of tunnels may have changed.

use super::Maintenance;
use crate::next_hops::route_monitor::RouteMonitor;
use crate::recipe::Recipe;
use crate::worker::Task;
use control::plan::Plan;
use ports::neighbours::Subject;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

/// A kind of task without anything in it. One that waits stands for all: the queue is not to be
/// full of them, since what does not fit into it is lost.
#[derive(Clone, Default)]
pub(super) struct Folded(Arc<AtomicBool>);

impl Folded {
    /// Has `task` done, which is of this kind. Where the queue is full nobody is told: it is looked
    /// by the second as well.
    pub fn send(&self, tasks: &SyncSender<Task>, task: Task) {
        if !self.0.swap(true, Ordering::AcqRel) && tasks.try_send(task).is_err() {
            self.0.store(false, Ordering::Release);
        }
    }

    /// It is being done: what changes from now on is to be told again.
    pub fn is_taken(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The route monitors.
#[derive(Default)]
pub(super) struct Monitors {
    /// By namespace.
    all: BTreeMap<(Subject, Option<String>), RouteMonitor>,
    /// What they say.
    pub ways: Folded,
    pub links: Folded,
}

impl Monitors {
    /// Has one in each of these places. Where there cannot be one, what changes is seen with the
    /// next look.
    fn follow(&mut self, places: BTreeSet<(Subject, Option<String>)>, tasks: &SyncSender<Task>) {
        self.all.retain(|place, monitor| places.contains(place) && !monitor.is_deaf());
        for place in places.into_iter().filter(|place| !self.all.contains_key(place)).collect::<Vec<_>>() {
            let (subject, netns) = &place;
            let (subject, tasks) = (*subject, tasks.clone());
            let folded = match subject {
                Subject::Ways => self.ways.clone(),
                Subject::Links => self.links.clone(),
            };
            let tell = move || {
                let task = match subject {
                    Subject::Ways => Task::Ways,
                    Subject::Links => Task::Links,
                };
                folded.send(&tasks, task);
            };
            if let Ok(monitor) = RouteMonitor::open(subject, netns.as_deref(), tell) {
                self.all.insert(place, monitor);
            }
        }
    }
}

impl Maintenance {
    /// Has a route monitor in each namespace that tunnels leave by, and in each that taken
    /// interfaces are in.
    pub(super) fn listen(&mut self, plan: &Plan) {
        let places = plan.switches.values().filter_map(|switch| switch.underlay.as_ref()?.interface.as_ref());
        let ways = places.map(|(_, netns)| (Subject::Ways, netns.clone()));
        let taken = self.devices.values().filter_map(|reopen| match &reopen.recipe {
            Some(Recipe::Packet(options, _)) => {
                Some(options.netns.as_ref().map(|netns| netns.path().to_string_lossy().into_owned()))
            }
            _ => None,
        });
        let places = ways.chain(taken.map(|netns| (Subject::Links, netns))).collect();
        self.monitors.follow(places, &self.tasks);
    }
}
