//! What can be set about an agent.

use datapath::units::Rate;

/// How a receiver decides whom to slow down.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ControllerKind {
    /// Explicit rates for pairs ([`super::rate`]).
    #[default]
    Rate,
    /// Notifications that halve, as Gatekeeper published it ([`super::gatekeeper`]).
    Gatekeeper,
}

/// Most samples that are averaged.
pub const MOST_SAMPLES: u32 = 32;

/// Parameters of Gatekeeper's controller. The first three are the paper's, the others it leaves
/// open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gatekeeper {
    /// Time between two samples of the queues, in nanoseconds: 10 ms.
    pub sample_ns: u64,
    /// Samples over which drops are averaged: 10. At most 32.
    pub samples: u32,
    /// D: the rate of drops above which a sender is notified, in millionths of the headroom: half
    /// of it. No queue can drop more than the headroom while the others are served what arrives for
    /// them.
    pub drop_ppm: u32,
    /// Time between two notifications for one queue, in nanoseconds. Ours: as long as the average
    /// reaches back, so that a notification is not repeated before it can show.
    pub notify_ns: u64,
    /// Time in which a limit grows from nothing to the link's rate, in nanoseconds. Ours: 10 s, a
    /// hundred decisions: a flood that was halved four times exceeds its receiver again after a
    /// second, not at once.
    pub recovery_ns: u64,
}

impl Default for Gatekeeper {
    fn default() -> Self {
        Gatekeeper {
            sample_ns: 10_000_000,
            samples: 10,
            drop_ppm: 500_000,
            notify_ns: 100_000_000,
            recovery_ns: 10_000_000_000,
        }
    }
}

impl Gatekeeper {
    /// What a limit grows by in one sample, in bits a second.
    pub(super) fn growth(&self, link: Rate) -> u64 {
        link.scaled(self.sample_ns, self.recovery_ns).0.max(1)
    }
}

/// What can be set about an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// Whom to slow down, and how.
    pub controller: ControllerKind,
    /// Gatekeeper's parameters.
    pub gatekeeper: Gatekeeper,
}
