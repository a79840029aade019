//! The port of a machine's rings: taken from the worker, given to it, and given again.

use super::{Board, FIRST_RETRY, Machine};
use crate::maintenance::News;
use crate::system::log::Level;
use crate::worker::Request;
use ports::Port as _;
use ports::vhost::Fault;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

/// How long the worker may take to give a port back: it does within a round.
const WORKER: Duration = Duration::from_secs(5);

impl Board {
    /// Takes the port of a machine from the worker.
    pub(super) fn rest(&mut self, index: usize) {
        let machine = &mut self.machines[index];
        let (Some(device), Some(live)) = (machine.device, &mut machine.live) else { return };
        if !std::mem::take(&mut live.has_port) {
            return;
        }
        live.handed.cancel();
        let (reply, answer) = sync_channel(1);
        if self.inbox.send(Request::Take { device, reply }).is_ok() {
            self.waker.ring();
            // Dropped here: what it has goes back, and its rings say how far they came.
            drop(answer.recv_timeout(WORKER));
        }
    }

    /// Tells the worker that the port that it had is not only about to be another.
    pub(super) fn say_absent(&mut self, index: usize) {
        let machine = &mut self.machines[index];
        if std::mem::take(&mut machine.is_there)
            && let Some(device) = machine.device
        {
            let _ = self.inbox.send(Request::Absent { device });
            self.waker.ring();
        }
    }

    /// Gives the worker a port of the rings that run, if any do.
    pub(super) fn go_on(&mut self, index: usize) -> Result<(), Fault> {
        let machine = &mut self.machines[index];
        let (Some(device), Some(live)) = (machine.device, &mut machine.live) else { return Ok(()) };
        let Some(port) = live.session.port()? else {
            live.runs = None;
            live.said = (0, false);
            live.handed.cancel();
            self.say_absent(index);
            return Ok(());
        };
        machine.is_there = true;
        let features = port.features();
        (live.has_port, live.has_run) = (true, true);
        let back = Some(live.handed.begin());
        let _ = self.inbox.send(Request::Restore { device, port: Box::new(port), back });
        self.waker.ring();
        machine.pause = FIRST_RETRY;
        machine.failure.clear();
        machine.fault.clear();
        if machine.told != Some(features) && self.news.try_send(News::Guest { device, features }).is_ok() {
            machine.told = Some(features);
        }
        self.say_guest(index);
        Ok(())
    }

    /// Says what its guest runs, where that is news. What is not written now is a second later.
    pub(super) fn say_guest(&mut self, index: usize) {
        let Machine { label, live: Some(live), .. } = &self.machines[index] else { return };
        let (pairs, has_offload) = (live.session.pairs(), live.session.form().features.offload.csum);
        let is_news = pairs > live.said.0 || (pairs, has_offload) == (live.said.0, !live.said.1);
        if !live.has_port || !is_news {
            return;
        }
        let queues = if pairs == 1 { "1 pair of rings".to_owned() } else { format!("{pairs} pairs of rings") };
        let offload = if has_offload { "with offloads" } else { "without offloads" };
        let text = format!("{label}: its guest runs {queues}, {offload}");
        if self.line(index, Level::Info, &text)
            && let Some(live) = &mut self.machines[index].live
        {
            (live.said, live.runs) = ((pairs, has_offload), Some(Instant::now()));
        }
    }

    /// Gives the worker a port again that it could not watch. False: the session has ended.
    pub(super) fn go_on_again(&mut self, index: usize) -> bool {
        let Machine { label, live: Some(live), .. } = &mut self.machines[index] else { return false };
        if let Some(why) = live.handed.refusal() {
            live.has_port = false;
            let is_new = live.handed.fail(&why);
            let text = format!("{label}: its frames do not pass: {why}; it is tried again each second");
            if is_new {
                self.say_absent(index);
            } else {
                // It was told so.
                self.machines[index].is_there = false;
            }
            // What was not written is not told.
            if is_new && self.line(index, Level::Warning, &text) {
                self.note_failure(index, why);
            }
        }
        let Machine { label, live: Some(live), .. } = &self.machines[index] else { return false };
        if live.handed.is_due() {
            if let Err(fault) = self.go_on(index) {
                self.end(index, &fault.to_string());
                return false;
            }
        } else if live.has_port && live.handed.is_mended() {
            let text = format!("{label}: its frames pass again");
            if self.line(index, Level::Info, &text) {
                self.note_failure(index, String::new());
            }
        }
        true
    }

    fn note_failure(&mut self, index: usize, told: String) {
        if let Some(live) = &mut self.machines[index].live {
            live.handed.note(told);
        }
    }
}
