//! Sockets that machines connect to: they are made, listened to, and made again.

use super::socket::{self, Listening};
use super::{Board, CROWDED, Closing, FrontEndId};
use crate::system::log::Level;
use control::plan::VhostPlan;
use ports::vhost::Foreign;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::net::Shutdown;

impl Board {
    pub(super) fn listen(
        &mut self,
        plan: &VhostPlan,
        closing: &Closing,
        replaces: bool,
    ) -> Result<Option<(u64, Listening)>, String> {
        if !plan.listen {
            return Ok(None);
        }
        let what = format!("vhost-user://{}", plan.socket);
        self.is_ledger_old = true;
        let ledger = self.ledger.as_ref();
        let listening = Listening::open(&plan.socket, &what, plan.group.as_deref(), replaces, ledger)?;
        let listening = listening.left_to(&closing.closer());
        let watch = self.number();
        epoll::add(&*self.epoll, listening.listener(), EventData::new_u64(watch), EventFlags::IN)
            .map_err(|error| format!("{}: watching it: {error}", plan.socket))?;
        Ok(Some((watch, listening)))
    }

    pub(super) fn prepare(&mut self, id: FrontEndId, plan: &VhostPlan) -> Result<(), String> {
        let Some(index) = self.place(id).filter(|_| plan.listen) else { return Ok(()) };
        if let Some((_, listening)) = &self.machines[index].listening {
            return listening.give(plan.group.as_deref());
        }
        let closing = self.machines[index].closing.clone();
        let listening = self.listen(plan, &closing, self.takes_over)?;
        (self.machines[index].listening, self.machines[index].is_deaf) = (listening, false);
        Ok(())
    }

    pub(super) fn listen_as(&mut self, id: FrontEndId, plan: &VhostPlan) {
        if let Some(index) = self.place(id).filter(|_| !plan.listen) {
            self.stop_listening(index);
        }
    }

    pub(super) fn stop_listening(&mut self, index: usize) {
        if let Some((_, listening)) = self.machines[index].listening.take() {
            // It may be closed later, and calls nobody any more.
            let _ = epoll::delete(&*self.epoll, listening.listener());
            self.is_ledger_old = true;
        }
    }

    /// Writes down which sockets there are, and nothing else.
    pub(super) fn note(&mut self) {
        if let Some(ledger) = self.ledger.as_ref().filter(|_| self.is_ledger_old) {
            let all = self.machines.iter().filter_map(|machine| machine.listening.as_ref());
            ledger.keep(all.flat_map(|(_, listening)| listening.places()));
            self.is_ledger_old = false;
        }
    }

    /// Listens again where enough was closed.
    pub(super) fn listen_again(&mut self, index: usize) {
        let machine = &mut self.machines[index];
        machine.closing.go_on();
        if machine.is_deaf
            && !machine.closing.is_full()
            && let Some((watch, listening)) = &machine.listening
        {
            let watched = epoll::add(&*self.epoll, listening.listener(), EventData::new_u64(*watch), EventFlags::IN);
            machine.is_deaf = watched.is_err();
        }
    }

    /// Makes sockets again that are gone: a process that was to take over, and has not, had its own
    /// in their place. Where somebody listens there, nothing is done.
    pub(super) fn mend_sockets(&mut self) {
        for index in 0..self.machines.len() {
            let machine = &self.machines[index];
            if machine.listening.as_ref().is_none_or(|(_, listening)| listening.is_there()) {
                continue;
            }
            let (plan, label, closing) = (machine.plan.clone(), machine.label.clone(), machine.closing.clone());
            match self.listen(&plan, &closing, false) {
                Ok(listening @ Some(_)) => {
                    self.stop_listening(index);
                    (self.machines[index].listening, self.machines[index].is_deaf) = (listening, false);
                    self.machines[index].mending.clear();
                    self.line(index, Level::Warning, &format!("{label}: its socket was gone, and is made again"));
                }
                Err(error) if error != self.machines[index].mending => {
                    self.line(
                        index,
                        Level::Warning,
                        &format!("{label}: its socket is gone, and cannot be made again: {error}"),
                    );
                    self.machines[index].mending = error;
                }
                Ok(None) | Err(_) => {}
            }
        }
    }

    pub(super) fn accept(&mut self, index: usize) -> bool {
        let machine = &mut self.machines[index];
        let Some((_, listening)) = &machine.listening else { return true };
        if machine.closing.is_full() {
            let _ = epoll::delete(&*self.epoll, listening.listener());
            machine.is_deaf = true;
            self.lack(index, CROWDED.to_owned());
            return true;
        }
        let stream = match listening.accept() {
            Ok(Some(stream)) => Foreign::new(stream, &machine.closing.closer()),
            Ok(None) => return true,
            Err(_) => return false,
        };
        let machine = &self.machines[index];
        if machine.device.is_none() || machine.live.is_some() {
            let text = format!("{}: {} is refused: another is connected", machine.label, socket::who(&stream));
            let _ = stream.shutdown(Shutdown::Both);
            self.line(index, Level::Warning, &text);
        } else {
            self.begin(index, stream);
        }
        true
    }
}
