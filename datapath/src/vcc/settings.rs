//! Settings of virtual congestion control: what a tenant asks for, and what holds for an endpoint.

/// What is done for an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// Nothing.
    #[default]
    Off,
    /// Connections are observed and counted; nothing is changed.
    Count,
    /// The switch reacts as RFC 3168's senders do: for networks whose natives are these.
    Echo,
    /// As the published systems do, with what they lack; for comparison. New data alone are
    /// ECN-capable, as RFC 3168 has it; with the other modes all frames of a translated connection
    /// are.
    EchoPublished,
    /// The switch reacts as DCTCP does: for networks whose natives are these.
    Dctcp,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 5] = [Mode::Off, Mode::Count, Mode::Echo, Mode::EchoPublished, Mode::Dctcp];

    /// Whether frames are changed.
    #[must_use]
    pub const fn translates(self) -> bool {
        !matches!(self, Mode::Off | Mode::Count)
    }

    /// Whether its controller is one of the switch's own.
    #[must_use]
    pub const fn is_ours(self) -> bool {
        matches!(self, Mode::Echo | Mode::Dctcp)
    }

    /// The name by which configuration calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Count => "count",
            Mode::Echo => "echo",
            Mode::EchoPublished => "echo-published",
            Mode::Dctcp => "dctcp",
        }
    }
}

/// What a tenant asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Settings {
    /// What is done for its endpoints.
    pub mode: Mode,
    /// Whether they are held to it: see [`Policy::polices`].
    pub polices: bool,
    /// Whether acknowledgements may wait: see [`Policy::holds`].
    pub holds: bool,
    /// Whether connections of Multipath TCP become plain ones: see [`Policy::strips_multipath`].
    pub strips_multipath: bool,
    /// Whether losses are the guest's matter: see [`Policy::ignores_loss`].
    pub ignores_loss: bool,
    /// Whether guests that know RFC 3168 only speak for themselves: the reverse of
    /// [`Policy::translates_classic`].
    pub passes_classic: bool,
}

impl Settings {
    /// The same with another mode, as far as that has what is asked for beside.
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> Settings {
        Settings {
            mode,
            polices: self.polices && mode.is_ours(),
            holds: self.holds && mode == Mode::Dctcp,
            strips_multipath: self.strips_multipath && mode.translates(),
            ignores_loss: self.ignores_loss && mode.is_ours(),
            passes_classic: self.passes_classic && mode.translates(),
        }
    }

    /// What holds for an endpoint that asks for this, of a switch that rescales or not.
    pub(super) fn policy(self, rescales: bool) -> Policy {
        let Settings { mode, polices, holds, strips_multipath, ignores_loss, passes_classic } = self;
        Policy {
            mode,
            translates_classic: !passes_classic,
            polices: polices && mode.is_ours(),
            holds: holds && mode.is_ours(),
            strips_multipath: strips_multipath && mode.translates(),
            ignores_loss,
            rescales: rescales && mode.is_ours(),
        }
    }
}

impl From<Mode> for Settings {
    fn from(mode: Mode) -> Settings {
        Settings { mode, ..Settings::default() }
    }
}

/// What holds for one endpoint's connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// What is done.
    pub mode: Mode,
    /// A guest that knows RFC 3168 only is translated where the peer knows AccECN.
    pub translates_classic: bool,
    /// What a guest sends beyond the window that it was told is dropped, and natives that do not
    /// heed marks are told one.
    pub polices: bool,
    /// Acknowledgements wait where the window is below two segments. Beside natives, which do not
    /// go below two, a guest would starve.
    pub holds: bool,
    /// Options of Multipath TCP are taken out of SYNs and SYN-ACKs, in both directions: both ends
    /// fall back to TCP (RFC 8684, section 3.7), which is then managed as all other connections.
    pub strips_multipath: bool,
    /// What a guest sends again lowers no window: its own control does that. Not of a guest that
    /// did not heed marks.
    pub ignores_loss: bool,
    /// Guests are told a finer window scale than a coarse one of their peers: see [`super::syn`].
    pub rescales: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            mode: Mode::Echo,
            translates_classic: true,
            polices: false,
            holds: false,
            strips_multipath: false,
            ignores_loss: false,
            rescales: false,
        }
    }
}

impl Policy {
    /// Whether frames are changed.
    #[must_use]
    pub fn translates(&self) -> bool {
        self.mode.translates()
    }
}
