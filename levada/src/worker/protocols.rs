//! The protocols of the worker's switches: state machines that exchange control frames and change their switch.
//!
//! A round asks them all, once; each says cheaply that it has nothing to do, and when it will, so a daemon at rest
//! sleeps. The congestion agent is one (`agents.rs`), which also has mail from other hosts; what is between them is
//! carried before their commands are done.

use super::Worker;
use datapath::protocol::{Protocol, obey};

impl Worker {
    /// Lets protocols do what is due.
    pub(super) fn run_protocols(&mut self) {
        let now = self.outside.now;
        for unit in &mut self.units {
            unit.touched |= unit.protocols.run(&mut self.pool, now, &mut unit.switch);
            if let Some(station) = &mut unit.station {
                station.advance(now, &mut unit.switch);
            }
        }
        self.carry_mail();
        for unit in &mut self.units {
            if let Some(station) = &mut unit.station {
                unit.touched |= obey(&mut **station, &mut self.pool, now, &mut unit.switch);
            }
        }
    }

    /// A device's line has got a carrier, or lost it.
    pub(super) fn carrier(&mut self, device: usize, is_up: bool) {
        let now = self.outside.now;
        let Some(device) = self.outside.devices.get(device).filter(|device| device.port.is_some()) else { return };
        if let Some(unit) = self.units.get_mut(device.switch) {
            unit.protocols.carrier(now, device.id, is_up);
        }
    }
}
