//! Clients that have connected, and not said yet which plug they want.
//!
//! [`WAITING`] wait at most. Where another comes, the directory with most of them loses one: of its
//! users the one with most, and of that one's the oldest. So a crowd at one directory, or of one
//! user, takes no place of another's. A client that says nothing is sent away after [`PATIENCE`].

use super::{Board, who};
use crate::system::log::Level;
use ports::vde::request::{MOST_BYTES, Request as PlugRequest};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::UCred;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long a client may take to send its request: libvdeplug sends it at once.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// Clients that have not yet sent a request, over all directories.
pub(super) const WAITING: usize = 64;
/// Clients accepted in a turn, so that a crowd of them does not keep those that are plugged in from
/// being heard.
const ACCEPTED: usize = 32;

/// A client whose request has not come yet.
pub(super) struct Waiting {
    pub watch: u64,
    /// The directory it came to, as the plan writes it.
    pub directory: String,
    pub stream: UnixStream,
    pub peer: UCred,
    bytes: Vec<u8>,
    until: Instant,
}

impl Board {
    /// Lets those in who have connected to a directory. False: there are no descriptors left.
    pub(super) fn accept(&mut self, index: usize) -> bool {
        for _ in 0..ACCEPTED {
            let (stream, peer) = match self.directories[index].directory.accept() {
                Ok(Some(client)) => client,
                Ok(None) => return true,
                Err(_) => return false,
            };
            let watch = self.number();
            if epoll::add(&*self.epoll, &stream, EventData::new_u64(watch), EventFlags::IN).is_err() {
                return false;
            }
            let directory = self.directories[index].name.clone();
            let until = Instant::now() + PATIENCE;
            self.waiting.push_back(Waiting { watch, directory, stream, peer, bytes: Vec::new(), until });
            if self.waiting.len() > WAITING
                && let Some(one) = one_too_many(&self.waiting).and_then(|at| self.waiting.remove(at))
            {
                self.refuse(&one, &"too many wait for their turn");
            }
        }
        true
    }

    /// Reads what a client sends before it is plugged in.
    pub(super) fn hear(&mut self, index: usize) {
        let waiting = &mut self.waiting[index];
        let mut part = [0; MOST_BYTES + 1];
        let read = match waiting.stream.read(&mut part) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(read) => read,
            Err(_) => 0,
        };
        waiting.bytes.extend_from_slice(&part[..read]);
        let answer = if read == 0 { Err(None) } else { PlugRequest::parse(&waiting.bytes).map_err(Some) };
        let waiting = match answer {
            Ok(None) => return,
            _ => self.waiting.remove(index),
        };
        let Some(waiting) = waiting else { return };
        match answer {
            Ok(Some(request)) => self.plug(waiting, &request),
            Err(Some(fault)) => self.refuse(&waiting, &fault),
            // It went away, as a switch does that asks whether this one lives.
            Ok(None) | Err(None) => {}
        }
    }

    /// Sends those away that have said nothing for long.
    pub(super) fn send_late_away(&mut self, now: Instant) {
        while self.waiting.front().is_some_and(|waiting| waiting.until <= now) {
            if let Some(late) = self.waiting.pop_front() {
                self.refuse(&late, &format!("no request came within {} s", PATIENCE.as_secs()));
            }
        }
    }

    pub(super) fn refuse(&mut self, waiting: &Waiting, why: &dyn Display) {
        let text = format!("vde {}: a client ({}) is refused: {why}", waiting.directory, who(&waiting.peer));
        self.line(&waiting.directory, Level::Warning, &text);
    }
}

/// The place of the client that makes room.
fn one_too_many(waiting: &VecDeque<Waiting>) -> Option<usize> {
    let directory = most_frequent(waiting.iter().map(|one| one.directory.as_str()))?;
    let here = || waiting.iter().enumerate().filter(move |(_, one)| one.directory == directory);
    let user = most_frequent(here().map(|(_, one)| one.peer.uid.as_raw()))?;
    here().find(|(_, one)| one.peer.uid.as_raw() == user).map(|(at, _)| at)
}

/// What is there most often; of several, what comes first.
fn most_frequent<T: Ord + Copy>(mut all: impl Iterator<Item = T> + Clone) -> Option<T> {
    let mut counts = BTreeMap::new();
    all.clone().for_each(|one| *counts.entry(one).or_insert(0) += 1);
    let most = counts.values().copied().max()?;
    all.find(|one| counts[one] == most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Gid, Pid, Uid};

    fn waiting(directory: &str, user: u32) -> Waiting {
        let peer = UCred { pid: Pid::INIT, uid: Uid::from_raw(user), gid: Gid::from_raw(0) };
        let (directory, stream) = (directory.to_owned(), UnixStream::pair().unwrap().0);
        Waiting { watch: 0, directory, stream, peer, bytes: Vec::new(), until: Instant::now() }
    }

    #[test]
    fn the_user_with_most_in_the_directory_with_most_loses_its_oldest() {
        let place = |all: &[(&str, u32)]| one_too_many(&all.iter().map(|&(d, user)| waiting(d, user)).collect());
        assert_eq!(place(&[]), None);
        assert_eq!(place(&[("blue", 1), ("red", 2), ("red", 1), ("blue", 1), ("red", 1)]), Some(2));
        assert_eq!(place(&[("blue", 1), ("red", 1), ("red", 1)]), Some(1), "whoever else the user's are");
        assert_eq!(place(&[("blue", 1), ("red", 1)]), Some(0), "the oldest of those alike");
    }
}
