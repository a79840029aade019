//! A pair as a port: the switch's end is read and written, and the container's is looked after.

use std::os::fd::BorrowedFd;

use datapath::frame::{Frame, Pool};

use super::far::Far;
use crate::packet::Packet;
use crate::tap::Whereabouts;
use crate::{Features, InterfaceStatus, Port, PortError, Refused};

/// An open pair.
#[derive(Debug)]
pub struct Veth {
    packet: Packet,
    far: Far,
    /// What it is called, for messages.
    name: String,
    /// See [`Port::known_as`].
    known_as: String,
}

impl Veth {
    pub(super) fn new(packet: Packet, far: Far, name: String, known_as: String) -> Veth {
        let mut veth = Veth { packet, far, name, known_as };
        veth.far.look(veth.packet.link());
        // Kept open only for the first look: who has a namespace open keeps it from ending.
        veth.far = veth.far.released();
        veth
    }

    /// Whether it was inherited and is still as another process left it: [`super::settle`] is to be
    /// called when that process has ended.
    #[must_use]
    pub fn is_adopted(&self) -> bool {
        self.packet.is_adopted()
    }

    /// What works less well than it could, each as a sentence for the log.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        self.packet.notes()
    }

    fn ended(&self, error: PortError) -> PortError {
        match error {
            PortError::Gone(_) => {
                PortError::Gone(format!("veth {}: it was deleted, or the namespace that its end was in", self.name))
            }
            error @ PortError::Io(_) => error,
        }
    }
}

impl Port for Veth {
    fn features(&self) -> Features {
        self.packet.features()
    }

    fn line(&self) -> InterfaceStatus {
        self.packet.line()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.packet.fd()
    }

    fn rx(&mut self, pool: &mut Pool, burst: usize, out: &mut Vec<Frame>) -> Result<usize, PortError> {
        self.packet.rx(pool, burst, out).map_err(|error| self.ended(error))
    }

    fn write(&mut self, pool: &mut Pool, frame: &Frame) -> Result<(), Refused> {
        self.packet.write(pool, frame)
    }

    fn drops_before_us(&mut self) -> Result<u64, PortError> {
        let drops = self.packet.drops_before_us().map_err(|error| self.ended(error))?;
        self.far.look(self.packet.link());
        Ok(drops)
    }

    fn complaint(&mut self) -> Option<String> {
        self.packet.complaint()
    }

    fn known_as(&self) -> Option<&str> {
        Some(&self.known_as)
    }

    fn whereabouts(&self) -> Option<&Whereabouts> {
        self.far.whereabouts()
    }

    fn second(&self) -> Option<Box<dyn Port + Send>> {
        let (far, name, known_as) = (self.far.clone(), self.name.clone(), self.known_as.clone());
        Some(Box::new(Veth { packet: self.packet.twin()?, far, name, known_as }))
    }
}
