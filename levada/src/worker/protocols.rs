//! The protocols of the worker's switches: state machines that exchange control frames and change
//! their switch.
//!
//! A round asks them all, once; each says cheaply that it has nothing to do, and when it will, so a
//! daemon at rest sleeps. The congestion agent is one (`agents.rs`), which also has mail from other
//! hosts; what is between them is carried before their commands are done.

use super::Worker;
use datapath::protocol::{Protocol, obey};

impl Worker {
    /// Lets protocols do what is due.
    pub(super) fn run_protocols(&mut self) {
        let now = self.outside.now;
        for switch_slot in &mut self.switch_slots {
            switch_slot.touched |= switch_slot.protocols.run(&mut self.pool, now, &mut switch_slot.switch);
            if let Some(station) = &mut switch_slot.station {
                station.advance(now, &mut switch_slot.switch);
            }
        }
        self.carry_mail();
        for switch_slot in &mut self.switch_slots {
            if let Some(station) = &mut switch_slot.station {
                switch_slot.touched |= obey(&mut **station, &mut self.pool, now, &mut switch_slot.switch);
            }
        }
    }

    /// A device's line has got a carrier, or lost it.
    pub(super) fn carrier(&mut self, device: usize, is_up: bool) {
        let now = self.outside.now;
        let Some(device) = self.outside.devices.get(device).filter(|device| device.port.is_some()) else { return };
        if let Some(switch_slot) = self.switch_slots.get_mut(device.switch) {
            switch_slot.protocols.carrier(now, device.id, is_up);
        }
    }
}
