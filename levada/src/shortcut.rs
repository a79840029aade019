//! Shortcuts of a running daemon: the kernel takes frames between `packet://` or `veth://`
//! endpoints past the switch (`ports::packet::Shortcuts`), where nothing could hold them back
//! (`control::shortcut`).
//!
//! A change of the daemon takes out what will not hold any more before the worker hears of it, and
//! puts in what may be new when the worker has done it: so no frame takes a way that the
//! configuration of before or after would not give it. An interface that its owner changed is taken
//! out and put in again. While a trace runs, and from the moment that another process takes over,
//! all frames are read by the switch.
//!
//! What was taken is counted by the kernel, and handed to the switch as its endpoints' traffic with
//! neighbours whenever somebody asks for numbers.

use crate::system::log::{Level, Log};
use datapath::offload::Offload;
use datapath::stats::Traffic;
use datapath::units::Both;
use ports::packet::{self, Shortcut};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All of a daemon's, by the worker's numbers of its devices.
#[derive(Clone, Default)]
pub struct Shortcuts(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Made when the first is wanted; or why there can be none.
    kernel: Option<Result<packet::Shortcuts, String>>,
    /// By how many they are suspended.
    suspended: usize,
}

impl State {
    fn kernel(&mut self) -> Option<&mut packet::Shortcuts> {
        self.kernel.as_mut()?.as_mut().ok()
    }

    fn switch(&mut self) {
        let is_on = self.suspended == 0;
        // What is there takes a number of four bytes; it is not refused.
        let _ = self.kernel().map(|kernel| kernel.set_on(is_on));
    }
}

/// What is in, for reports.
#[derive(Default)]
pub struct Inside {
    /// Whether what a device sends takes shortcuts (egress), and what is for it (ingress).
    pub ways: BTreeMap<usize, Both<bool>>,
    /// Why none is, where that has one reason.
    pub why: Option<String>,
}

/// While it is there, no frame takes a shortcut.
pub struct Suspended(Shortcuts);

impl Drop for Suspended {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.suspended -= 1;
        state.switch();
    }
}

impl Suspended {
    /// For ever.
    pub fn stay(self) {
        std::mem::forget(self);
    }
}

impl Shortcuts {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has all frames read by the switch.
    pub fn suspend(&self) -> Suspended {
        let mut state = self.lock();
        state.suspended += 1;
        state.switch();
        Suspended(self.clone())
    }

    /// Takes out all but those that are wanted as they are.
    pub fn keep(&self, wanted: &BTreeMap<usize, Shortcut>) {
        let mut state = self.lock();
        let Some(kernel) = state.kernel() else { return };
        let gone = |&number: &u32| kernel.way(number) != wanted.get(&(number as usize));
        for number in kernel.numbers().filter(gone).collect::<Vec<_>>() {
            take_out(kernel, number);
        }
    }

    /// Takes a device out.
    pub fn forget(&self, device: usize) {
        if let Some(kernel) = self.lock().kernel() {
            take_out(kernel, device as u32);
        }
    }

    /// Those of `wanted` that are not in and could be.
    pub fn missing(&self, wanted: &BTreeMap<usize, Shortcut>, log: &Log) -> BTreeSet<usize> {
        let mut state = self.lock();
        if wanted.is_empty() {
            return BTreeSet::new();
        }
        if state.kernel.is_none() {
            let kernel = packet::Shortcuts::new();
            if let Err(why) = &kernel {
                log.line(Level::Info, &format!("frames between packet:// or veth:// endpoints take no shortcut past the switch: {why}; it needs Linux 6.6 or later with BPF"));
            }
            state.kernel = Some(kernel);
            state.switch();
        }
        let Some(kernel) = state.kernel() else { return BTreeSet::new() };
        wanted.keys().copied().filter(|&number| kernel.way(number as u32).is_none()).collect()
    }

    /// Puts a device in.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn put_in(&self, device: usize, way: &Shortcut, socket: OwnedFd) -> std::io::Result<()> {
        let mut state = self.lock();
        state.kernel().map_or(Ok(()), |kernel| kernel.put_in(device as u32, way.clone(), socket))
    }

    /// What was taken from and for devices since this was told last; `tell` says whether it was.
    pub fn tell(&self, tell: impl FnOnce(Vec<(usize, Both<Traffic>)>) -> bool) {
        if let Some(kernel) = self.lock().kernel() {
            kernel.tell(|news| tell(news.into_iter().map(|(number, traffic)| (number as usize, traffic)).collect()));
        }
    }

    /// Whether a frame from one device for another takes a shortcut, where a socket has sent it.
    pub fn leads(&self, from: usize, to: usize, bytes: &[u8], offload: &Offload) -> bool {
        self.lock().kernel().is_some_and(|kernel| kernel.leads(from as u32, to as u32, bytes, offload))
    }

    /// What is in.
    pub fn inside(&self) -> Inside {
        let mut state = self.lock();
        if state.suspended > 0 {
            return Inside { why: Some("a trace or a takeover is under way".to_owned()), ..Inside::default() };
        }
        let why = state.kernel.as_ref().and_then(|kernel| kernel.as_ref().err().cloned());
        let Some(kernel) = state.kernel() else { return Inside { why, ..Inside::default() } };
        let may = |number: u32| Some((number as usize, kernel.way(number)?.may));
        Inside { ways: kernel.numbers().filter_map(may).collect(), why }
    }
}

/// An interface that is gone cannot be changed, and has no frames.
fn take_out(kernel: &mut packet::Shortcuts, number: u32) {
    let _ = kernel.take_out(number);
}
