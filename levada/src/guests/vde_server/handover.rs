//! How VDE directories and the clients in them change hands: see `handover`.
//!
//! The directories, their locks and the sockets that listen are lent while the old process still
//! serves them. When it has stopped, it hands over each client's stream and data socket, and
//! [`Papers`] that say which is which. A client sees nothing of it: its stream stays open and its
//! frames wait in the data socket. Who connects meanwhile waits in the listening socket; only who
//! has connected just before and not asked for a plug yet is sent away.

use super::papers::{ClientPaper, DirectoryPaper, Papers};
use super::waiting::PATIENCE;
use super::{Board, Client, OpenDirectory, VdeServer};
use crate::system::log::Level;
use ports::vde::Plugged;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;

/// What another process goes on with: which directories and clients there are, and the clients'
/// descriptors.
pub type Inventory = (Papers, Vec<OwnedFd>);

impl VdeServer {
    /// Second descriptors of the directories and of what listens in them, as far as the process has
    /// any left.
    #[must_use]
    pub fn lend(&self) -> Vec<OwnedFd> {
        let board = self.board();
        let lent = board.directories.iter().flat_map(|place| place.directory.lent());
        lent.filter_map(|fd| fd.try_clone_to_owned().ok()).collect()
    }

    /// Stops serving clients, and says which there are, with second descriptors of theirs. What
    /// they do meanwhile waits. The thread that serves them does it: who has asked is plugged in
    /// still, and it alone has the rights for that.
    #[must_use]
    pub fn freeze(&self) -> Inventory {
        let (reply, answer) = sync_channel(1);
        self.board().freezing = Some(reply);
        let _ = rustix::io::write(&*self.call, &1u64.to_ne_bytes());
        answer.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            // One that has ended serves nobody.
            self.board().freezing = None;
            Inventory::default()
        })
    }

    /// Goes on after [`VdeServer::freeze`]: nobody took over.
    pub fn thaw(&self) {
        self.board().is_frozen = false;
    }

    /// Forgets the directories at these paths, which another process has taken over, with all their
    /// clients.
    pub fn leave(&self, paths: &[PathBuf]) {
        let mut board = self.board();
        // What is to be known of directories is the other process's affair now.
        board.ledger = None;
        let Board { directories, plugs, .. } = &mut *board;
        for place in directories.iter_mut().filter(|place| paths.iter().any(|path| path == place.directory.path())) {
            place.directory.leave();
            for plug in plugs.iter_mut().filter(|plug| plug.plan.directory == place.name) {
                plug.clients.clear();
            }
        }
    }

    /// The directories that are inherited.
    #[must_use]
    pub fn inherited(&self) -> Vec<PathBuf> {
        let board = self.board();
        let inherited = board.directories.iter().filter(|place| place.coming.is_some());
        inherited.map(|place| place.directory.path().to_owned()).collect()
    }

    /// Takes over the inherited directories, which nobody else serves any more, and those of the
    /// clients whose plug there still is. To be called when the plugs are joined.
    pub fn take_over(&self, papers: &Papers, descriptors: Vec<OwnedFd>) {
        let mut board = self.board();
        let mut failures = Vec::new();
        for OpenDirectory { directory, coming, .. } in &mut board.directories {
            let Some(options) = coming.take() else { continue };
            let made = papers.directories.iter().any(|paper| paper.path == directory.path() && paper.made);
            failures.extend(directory.take(made, &options).err());
        }
        for failure in failures {
            board.log.line(Level::Warning, &failure.to_string());
        }
        // Which of them were made is known now.
        board.is_ledger_old = true;
        let mut descriptors = descriptors.into_iter();
        for paper in &papers.clients {
            let (Some(stream), Some(data)) = (descriptors.next(), descriptors.next()) else { return };
            board.take(paper, stream.into(), data);
        }
    }
}

impl Board {
    /// Stops serving clients, where somebody waits for that.
    pub(super) fn freeze(&mut self) {
        let Some(reply) = self.freezing.take() else { return };
        // Who has connected and asked is plugged in first, as far as that goes without waiting.
        for index in (0..self.waiting.len()).rev() {
            self.hear(index);
        }
        self.is_frozen = true;
        let _ = reply.try_send(self.papers());
    }

    fn papers(&self) -> Inventory {
        let (mut papers, mut descriptors) = (Papers::default(), Vec::new());
        for OpenDirectory { directory, name, .. } in &self.directories {
            papers.directories.push(DirectoryPaper { path: directory.path().to_owned(), made: directory.is_made() });
            for plug in self.plugs.iter().filter(|plug| plug.plan.directory == *name) {
                for client in &plug.clients {
                    let second = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
                    // Out of descriptors: who does not get across is unplugged.
                    let (Ok(stream), Ok(data)) = (second(client.stream.as_fd()), second(client.plugged.data.as_fd()))
                    else {
                        continue;
                    };
                    descriptors.extend([stream, data]);
                    papers.clients.push(client_paper(directory.path(), plug.plan.plug, client));
                }
            }
        }
        (papers, descriptors)
    }

    /// VdeServer a client of the earlier process in again, where there is still a place for it.
    fn take(&mut self, paper: &ClientPaper, stream: UnixStream, data: OwnedFd) {
        let Some(place) = self.directories.iter().find(|place| place.directory.path() == paper.directory) else {
            // Its directory is still the old process's, which unplugs it.
            return;
        };
        let here = |plug: &super::Plug| plug.plan.directory == place.name && plug.plan.plug == paper.plug;
        let index = self.plugs.iter().position(|plug| here(plug) && plug.has_room());
        let (name, watch) = (place.name.clone(), self.number());
        let watched = epoll::add(&*self.epoll, &stream, EventData::new_u64(watch), EventFlags::IN);
        let (Some(index), Ok(())) = (index, watched) else {
            if paper.data.parent() == Some(&paper.directory) {
                let _ = fs::remove_file(&paper.data);
            }
            let text = format!(
                "vde {}: {} is unplugged: there is no plug for it any more",
                paper.directory.display(),
                paper.name
            );
            self.line(&name, Level::Warning, &text);
            return;
        };
        let plugged = Plugged::inherit(data, paper.data.clone(), paper.own.clone());
        self.plugs[index].clients.push(Client::new(watch, stream, plugged, paper.name.clone()));
        self.hand_over(index);
    }
}

fn client_paper(directory: &Path, plug: u32, client: &Client) -> ClientPaper {
    let (data, own) = client.plugged.paths();
    let (directory, name) = (directory.to_owned(), client.name.clone());
    ClientPaper { directory, plug, data: data.to_owned(), own: own.to_owned(), name }
}
