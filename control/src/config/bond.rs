//! The uplink as a bond: several ports that carry its frames together.

use super::Device;
use crate::bond::{DEFAULT_MIIMON_NS, Notices, Reselect};
use crate::names::Locator;
use datapath::bond::BondSettings;
use datapath::bond::lacp::LacpMember;
use datapath::units::{Both, Rate};
use datapath::wire::Mac;

/// Longest `miimon`, `updelay` and `downdelay`, in nanoseconds: an hour.
pub const MAX_BOND_TIME_NS: u64 = 3_600_000_000_000;

/// Least and longest `hold`, in nanoseconds: what a turn of a worker takes, and what a TCP sender
/// takes for a loss.
pub const MIN_HOLD_NS: u64 = 100_000;
/// See [`MIN_HOLD_NS`].
pub const MAX_HOLD_NS: u64 = 100_000_000;

/// What an uplink is instead of one port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bond {
    /// What concerns each frame, and in `802.3ad` what is said to the other end; but for what
    /// concerns one member or is an address.
    pub settings: BondSettings,
    /// `secret_file`: the file with the secret that the other end's bond has too.
    pub secret_file: Option<String>,
    /// `ad_actor_system`: the address of this system in `802.3ad`.
    pub system: Option<Mac>,
    /// How often members' links are asked, beside the kernel's events; 0 for never.
    pub miimon_ns: u64,
    /// How long a link must be up before its member is used.
    pub updelay_ns: u64,
    /// How long a link must be down before its member is given up.
    pub downdelay_ns: u64,
    /// Name of the member that is active whenever it may be.
    pub primary: Option<String>,
    /// When another becomes active although the active one is up.
    pub reselect: Reselect,
    /// What is said after a failover.
    pub notices: Notices,
    /// Its ports.
    pub members: Vec<BondMember>,
}

impl Default for Bond {
    fn default() -> Self {
        Bond {
            settings: BondSettings { order: true, ..BondSettings::default() },
            secret_file: None,
            system: None,
            miimon_ns: DEFAULT_MIIMON_NS,
            updelay_ns: 0,
            downdelay_ns: 0,
            primary: None,
            reselect: Reselect::default(),
            notices: Notices::default(),
            members: Vec::new(),
        }
    }
}

/// A port of a bond.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BondMember {
    /// Its port.
    pub device: Device,
    /// What it carries in each direction.
    pub rate: Rate,
    /// Which is preferred as the active member: the most.
    pub priority: i32,
    /// `ad_actor_port_prio`: its priority in `802.3ad`.
    pub port_priority: u16,
    /// `admin = "down"`: it is not sent to, though its link may be up.
    pub is_down: bool,
}

impl Default for BondMember {
    fn default() -> Self {
        let port_priority = LacpMember::default().priority;
        BondMember { device: Device::default(), rate: Rate::default(), priority: 0, port_priority, is_down: false }
    }
}

impl BondMember {
    /// What it is called: as its device or link is.
    #[must_use]
    pub fn name(&self) -> String {
        self.device.locator.as_ref().map(Locator::device_name).unwrap_or_default()
    }
}

impl Bond {
    /// What the members carry together, as the mode uses them, with all of them up.
    #[must_use]
    pub fn rate(&self) -> Both<Rate> {
        use datapath::bond::Mode;
        let rates = self.members.iter().map(|member| member.rate.0);
        let rate = Rate(match self.settings.mode {
            Mode::BalanceRr | Mode::BalanceXor | Mode::Lacp => rates.fold(0, u64::saturating_add),
            Mode::ActiveBackup => rates.max().unwrap_or(0),
            Mode::Broadcast => rates.min().unwrap_or(0),
        });
        Both { egress: rate, ingress: rate }
    }

    /// Whether its members are links of this daemon.
    #[must_use]
    pub fn is_linked(&self) -> bool {
        self.members.iter().all(|member| matches!(member.device.locator, Some(Locator::Link(..))))
    }

    /// Longest packet in bytes that every member takes.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.members.iter().map(|member| member.device.mtu).min().unwrap_or(super::DEFAULT_MTU)
    }
}
