//! What the ports of an uplink drop before it is read (`datapath::intake::thin`).

use super::{Outside, Worker};
use datapath::intake::thin::Thinned;
use datapath::switch::Switch;

impl Worker {
    /// Tells the ports of each switch's uplink what to read a part of, where that has changed.
    pub(super) fn thin(&mut self) {
        let now = self.outside.now;
        for (index, switch_slot) in self.switch_slots.iter_mut().enumerate() {
            let switch = &mut switch_slot.switch;
            if switch.thinned_due().is_none_or(|due| due > now) {
                continue;
            }
            let Some(list) = switch.thinned(now).map(<[Thinned]>::to_vec) else { continue };
            let is_done = self.outside.thin(index, switch, &list);
            if !is_done {
                // What one port drops and another does not, nobody can count.
                self.outside.thin(index, switch, &[]);
            }
            switch.set_thinned(is_done);
        }
    }

    /// Ports that are no uplink's any more read all, and those that could not be told when they
    /// were to.
    pub(super) fn end_needless_thinning(&mut self) {
        let switch_slots = &self.switch_slots;
        for device in self.outside.devices.iter_mut().filter(|device| device.is_thinned) {
            let switch = switch_slots.get(device.switch).map(|switch_slot| &switch_slot.switch);
            if !switch.is_some_and(|switch| switch.is_uplink(device.id) && switch.thinned_due().is_some()) {
                device.thin(&[]);
            }
        }
    }

    /// All ports read all: another process is about to have them.
    pub(super) fn end_thinning(&mut self) {
        for switch_slot in &mut self.switch_slots {
            switch_slot.switch.set_thinned(false);
        }
        for device in &mut self.outside.devices {
            device.thin(&[]);
        }
    }
}

impl Outside {
    /// Has all ports of a switch's uplink drop all but a part of what arrives for these. Whether
    /// all do.
    fn thin(&mut self, index: usize, switch: &Switch, thinned: &[Thinned]) -> bool {
        let mut is_done = true;
        for device in self.devices.iter_mut().filter(|device| device.switch == index && switch.is_uplink(device.id)) {
            is_done &= device.thin(thinned);
        }
        is_done
    }
}
