//! How the worker gives its work away: see `handover`.

use super::{Backing, Request, SwitchSlot, Worker};
use datapath::program::PortId;
use datapath::switch::{Imported, State};
use datapath::units::Instant;
use datapath::vcc::early::Part;
use ports::Inherited;
use std::iter;
use std::sync::mpsc::SyncSender;

/// How long the old worker goes on sending what it holds before the new one starts, in nanoseconds:
/// a queue under CoDel is about that long.
const DRAIN_NS: u64 = 5_000_000;

/// How long bonds that leave may go on sending what has waited for order, in nanoseconds: it is
/// due at once.
const ORDERED_NS: u64 = 200_000;

/// How long what is held after a handover may still be sent, in nanoseconds: beyond it nobody waits
/// for it any more.
const FINISH_NS: u64 = 200_000_000;

/// Which devices' descriptors are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lent {
    /// All that are open.
    All,
    /// Those that may wait until somebody serves them again.
    MayWait,
    /// One device's, by its number.
    Of(usize),
}

impl Worker {
    /// Second descriptors of devices that are open, with the devices' numbers.
    pub(super) fn lend(&self, which: Lent) -> Vec<(usize, Inherited)> {
        let devices = self.outside.devices.iter().enumerate();
        let (skip, take) = if let Lent::Of(number) = which { (number, 1) } else { (0, usize::MAX) };
        let ports = devices.skip(skip).take(take).filter_map(|(number, device)| Some((number, device.port.as_ref()?)));
        let ports = ports.filter(|(_, port)| which != Lent::MayWait || port.may_wait());
        ports.flat_map(|(number, port)| Inherited::all_of(&**port).into_iter().map(move |one| (number, one))).collect()
    }

    /// Writes down connections of a switch, before [`Worker::give_way`].
    pub(super) fn write_part(&mut self, switch: usize, part: &mut Part) {
        let now = self.outside.look();
        if let Some(switch_slot) = self.switch_slots.get(switch) {
            switch_slot.switch.vcc().write_part(now, part);
        }
    }

    /// Takes in connections of another worker's switch number `switch`, which it wrote down
    /// `age_ns` ago. To be called before [`Worker::import`].
    pub fn import_early(&mut self, switch: usize, records: &[u8], age_ns: u64) {
        let now = self.outside.look();
        self.switch_slots[switch].switch.import_early(now, age_ns, records);
    }

    /// Forgets connections of switches for which nothing followed. To be called behind
    /// [`Worker::import`].
    pub fn forget_early(&mut self) {
        let now = self.outside.look();
        self.switch_slots.iter_mut().for_each(|switch_slot| switch_slot.switch.forget_early(now));
    }

    /// Goes on where another worker's switch number `switch` stood `away_ns` ago. To be called
    /// before [`Worker::run`].
    ///
    /// # Errors
    /// The state is of another version of the switch.
    pub fn import(&mut self, switch: usize, state: &State, away_ns: u64) -> Result<Imported, String> {
        let now = self.outside.look();
        let imported =
            self.switch_slots[switch].switch.import(now, away_ns, state).map_err(|error| error.to_string())?;
        self.adopt_limits(switch);
        self.adopt_members(switch, state);
        Ok(imported)
    }

    /// Connections to services of a switch may be open that it does not know: another process did
    /// not hand them over. To be called before [`Worker::run`].
    pub fn recover_services(&mut self, switch: usize) {
        let now = self.outside.look();
        self.switch_slots[switch].switch.recover_services(now);
    }

    /// Stops reading, except what frames of bonds wait for. Sends what is due within [`DRAIN_NS`],
    /// and waits for what becomes of it. Connections that are as in `early` (by switch) are not
    /// written again. True: end.
    pub(super) fn give_way(&mut self, early: Vec<Vec<Part>>, reply: &SyncSender<Vec<State>>) -> bool {
        self.end_thinning();
        self.drain(DRAIN_NS, true);
        self.set_leaving(true);
        self.drain(ORDERED_NS, false);
        let now = self.outside.look();
        let early_of = early.iter().map(Vec::as_slice).chain(iter::repeat(&[][..]));
        let all = self.switch_slots.iter().zip(early_of).enumerate();
        let export = |(index, (switch_slot, early)): (usize, (&SwitchSlot, _))| {
            let members = self.members_state(index);
            State { members, ..switch_slot.switch.export_since(now, early) }
        };
        let _ = reply.send(all.map(export).collect());
        // The next process works by now; giving much memory back takes time.
        drop(early);
        loop {
            // Nothing moves now, so nothing waits for it.
            self.count_all();
            self.answer_all();
            match self.inbox.recv() {
                Ok(Request::Resume) => {
                    self.set_leaving(false);
                    return false;
                }
                Ok(Request::Finish) => {
                    self.drain(FINISH_NS, false);
                    return true;
                }
                Ok(order) => {
                    if self.carry_out(order) {
                        return true;
                    }
                }
                Err(_) => return true,
            }
        }
    }

    /// Numbers and hellos of bonds are the next process's, or ours again.
    fn set_leaving(&mut self, is_leaving: bool) {
        let now = self.outside.look();
        for switch_slot in &mut self.switch_slots {
            switch_slot.switch.set_leaving(&mut self.pool, now, is_leaving);
            switch_slot.touched = true;
        }
    }

    /// Makes a piece of what each port's frames are yet to be made into: nothing is read, so
    /// nobody's turn is longer than another's.
    fn make_all(&mut self) {
        for switch_slot in &mut self.switch_slots {
            for port in (0..switch_slot.ways.len() as u32).map(PortId) {
                switch_slot.touched |= switch_slot.switch.work(&mut self.pool, self.outside.now, port).is_some();
            }
        }
    }

    /// Reads a frame that others of a bond may wait for. Where none waits any more, the next
    /// process goes on in order.
    fn read_awaited(&mut self) {
        for switch in 0..self.switch_slots.len() {
            let switch_slot = &self.switch_slots[switch];
            let way = |port: PortId| switch_slot.ways.get(port.0 as usize).copied().flatten();
            let ways: Vec<Backing> = switch_slot.switch.awaited_ports().into_iter().filter_map(way).collect();
            for way in ways {
                if let Backing::Device(device) = way
                    && self.read_one(device)
                {
                    break;
                }
            }
        }
    }

    /// Reads a frame of a device. False if there is none.
    fn read_one(&mut self, index: usize) -> bool {
        let device = &mut self.outside.devices[index];
        let (id, Some(port)) = (device.id, &mut device.port) else { return false };
        // If it fails, the next process notices.
        if port.rx(&mut self.pool, 1, &mut self.burst).is_err() || self.burst.is_empty() {
            return false;
        }
        let switch_slot = &mut self.switch_slots[device.switch];
        switch_slot.switch.rx_burst(&mut self.pool, self.outside.now, id, &mut self.burst);
        switch_slot.touched = true;
        true
    }

    /// Sends what is held for at most `most_ns`. Reads nothing, or only what frames wait for.
    fn drain(&mut self, most_ns: u64, reads_awaited: bool) {
        let end = self.outside.look().plus_ns(most_ns);
        while self.pool.in_use() > 0 {
            let now = self.outside.look();
            if now >= end {
                return;
            }
            self.pump();
            self.make_all();
            if reads_awaited {
                self.read_awaited();
            }
            if self.switch_slots.iter().any(|switch_slot| switch_slot.touched) {
                continue;
            }
            let links = self.outside.link_slots.iter().flatten().filter_map(|link_slot| link_slot.link.poll_timeout());
            let due: Option<Instant> =
                self.switch_slots.iter().filter_map(|switch_slot| switch_slot.due).chain(links).min();
            let wait = due.unwrap_or(end).min(end).since(self.outside.look());
            let seats = &mut self.seats;
            // The waker is for orders, and they are looked at afterwards.
            self.wake.wait(Some(wait), |device| seats.wake(Backing::Device(device)));
        }
    }
}
