//! How sessions of virtual machines change hands: see `handover`.
//!
//! When the worker has stopped, its ports are taken back, so that only one process ever uses a
//! ring, and each session is told the next process as the messages that make it what it is. The
//! front end sees nothing of it: its connection, its memory and its rings stay, and what the guest
//! sends meanwhile waits in its rings. Nothing is in flight: a frame is complete as soon as it is
//! copied.

use super::papers::SessionPaper;
use super::{Board, FrontEnds};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

impl FrontEnds {
    /// Serves no front end until [`FrontEnds::thaw`]; what they say waits.
    pub fn freeze(&self) {
        self.board().is_frozen = true;
    }

    /// Takes the machines' ports from the worker, which reads nothing any more but obeys, and says
    /// which sessions there are, with second descriptors of theirs.
    #[must_use]
    pub fn papers(&self) -> (Vec<SessionPaper>, Vec<OwnedFd>) {
        let mut board = self.board();
        let (mut papers, mut all) = (Vec::new(), Vec::new());
        for index in 0..board.machines.len() {
            board.rest(index);
            // Out of descriptors, or within a message: its front end connects again.
            if let Some((paper, descriptors)) = board.paper(index) {
                papers.push(paper);
                all.extend(descriptors);
            }
        }
        (papers, all)
    }

    /// Goes on after [`FrontEnds::freeze`]: nobody took over.
    pub fn thaw(&self) {
        let mut board = self.board();
        for index in 0..board.machines.len() {
            let rests = board.machines[index].live.as_ref().is_some_and(|live| !live.has_port);
            if rests && let Err(fault) = board.go_on(index) {
                board.end(index, &fault.to_string());
            }
        }
        board.is_frozen = false;
    }

    /// Goes on with the sessions of another process, which serves them no more. To be called when
    /// the machines are joined. Nobody reads the worker's inbox yet, so `obey` does after each.
    pub fn inherit(&self, papers: &[SessionPaper], descriptors: Vec<OwnedFd>, mut obey: impl FnMut()) {
        let mut board = self.board();
        let mut descriptors = descriptors.into_iter();
        for paper in papers {
            let Some(stream) = descriptors.next() else { return };
            let told = paper
                .messages
                .iter()
                .map(|(bytes, count)| (bytes.as_slice(), descriptors.by_ref().take(*count).collect()));
            let told: Vec<_> = told.collect();
            board.inherit(paper, stream.into(), told);
            obey();
        }
    }
}

impl Board {
    fn paper(&self, index: usize) -> Option<(SessionPaper, Vec<OwnedFd>)> {
        let machine = &self.machines[index];
        let live = machine.live.as_ref().filter(|live| !live.incoming.is_within())?;
        let mut all = vec![live.stream.as_fd().try_clone_to_owned().ok()?];
        let mut messages = Vec::new();
        for (bytes, descriptors) in live.session.retold().ok()? {
            messages.push((bytes, descriptors.len()));
            all.extend(descriptors);
        }
        Some((SessionPaper { socket: machine.plan.socket.clone(), messages }, all))
    }

    /// Goes on with a session, where its machine is still wanted.
    fn inherit(&mut self, paper: &SessionPaper, stream: UnixStream, told: Vec<(&[u8], Vec<OwnedFd>)>) {
        let is_it = |machine: &super::Machine| {
            machine.plan.socket == paper.socket && machine.device.is_some() && machine.live.is_none()
        };
        let Some(index) = self.machines.iter().position(is_it) else { return };
        self.begin(index, stream);
        for (message, descriptors) in told {
            let Some(live) = &mut self.machines[index].live else { return };
            if let Err(fault) = live.session.learn(message, descriptors) {
                return self.end(index, &fault.to_string());
            }
        }
        if let Err(fault) = self.go_on(index) {
            self.end(index, &fault.to_string());
        }
    }
}
