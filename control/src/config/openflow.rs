//! The configuration of a controller of OpenFlow switches (`levada openflow`): a file of its own,
//! with `[openflow]` where a daemon's has `[daemon]`.

use super::Service;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Where switches connect unless the file says otherwise: OpenFlow's own port (IANA), on this
/// machine alone.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6653);
/// Seconds without a frame after which a connection's flows go, as in the published controller's
/// framework (POX, l2_learning).
pub const DEFAULT_IDLE_S: u16 = 10;
/// Connections that are remembered unless the file says otherwise.
pub const DEFAULT_CONNECTIONS: u32 = 65_536;
/// Services of one controller at most.
pub const MOST_SERVICES: usize = 256;

/// How connections are spread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// The first frame of each connection comes to the controller, which installs two flows.
    #[default]
    Reactive,
    /// A group spreads connections, and the switch's connection tracking keeps each where it is:
    /// none comes to the controller.
    Hash,
}

/// How it is written.
pub const MODES: [(&str, Mode); 2] = [("reactive", Mode::Reactive), ("hash", Mode::Hash)];

/// Rights at a switch (OpenFlow 1.3.5, section 6.3.6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Role {
    /// All, beside other controllers.
    #[default]
    Equal,
    /// All; the switch takes them from other controllers.
    Master,
    /// To look only, while another controller is the master.
    Slave,
}

/// How it is written.
pub const ROLES: [(&str, Role); 3] = [("equal", Role::Equal), ("master", Role::Master), ("slave", Role::Slave)];

/// Where switches connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listen {
    /// TCP, with TLS where there are certificates.
    Tcp(SocketAddr),
    /// A Unix socket at this path.
    Unix(String),
}

/// Certificates, in files (PEM).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tls {
    /// The controller's own certificate, and what leads from it to an authority.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// The authorities that have signed the switches' certificates.
    pub authority: String,
}

/// A controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenFlow {
    /// The instance.
    pub name: String,
    /// Where switches connect.
    pub listen: Listen,
    /// TLS, unless switches connect in the clear.
    pub tls: Option<Tls>,
    /// How connections are spread.
    pub mode: Mode,
    /// Rights at switches.
    pub role: Role,
    /// Reactive: seconds without a frame after which a connection's flows go.
    pub idle_timeout_s: u16,
    /// Reactive: connections that are remembered at most.
    pub connections: u32,
    /// UDP address where servers' load reports arrive; `None`: nowhere.
    pub reports: Option<SocketAddr>,
    /// How often each backend is asked whether it is there; 0 for never.
    pub probe_ns: u64,
    /// Whether frames for no service are forwarded as a learning switch does.
    pub normal: bool,
    /// What is balanced.
    pub services: Vec<Service>,
}

impl Default for OpenFlow {
    fn default() -> Self {
        OpenFlow {
            name: String::new(),
            listen: Listen::Tcp(DEFAULT_LISTEN),
            tls: None,
            mode: Mode::default(),
            role: Role::default(),
            idle_timeout_s: DEFAULT_IDLE_S,
            connections: DEFAULT_CONNECTIONS,
            reports: None,
            probe_ns: 0,
            normal: true,
            services: Vec::new(),
        }
    }
}
