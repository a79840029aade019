//! Verdicts: what became of a frame. Every way to be dropped has a name and a counter for each
//! endpoint.

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Why a frame was dropped.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Reason { $($(#[$doc])* $variant,)* }

        impl Reason {
            /// Every reason, in the order of the counters.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant,)*];

            /// The name by which counters, traces and messages call it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Reason::$variant => $name,)* }
            }
        }
    };
}

reasons! {
    /// Shorter than its headers claim, or a header contradicts itself.
    Malformed = "malformed",
    /// The offload metadata does not fit the frame.
    BadOffload = "bad-offload",
    /// Longer than the leaving port takes, and not to be cut.
    TooLong = "too-long",
    /// The destination is a reserved group address (IEEE 802.1Q table 8-1) or the frame is a MAC
    /// control frame (PAUSE).
    Reserved = "reserved",
    /// The source address is a group address or zero.
    BadSource = "bad-source",
    /// The source MAC address does not belong to the endpoint.
    SpoofedMac = "spoofed-mac",
    /// The ARP sender's MAC or IP address does not belong to the endpoint.
    SpoofedArp = "spoofed-arp",
    /// The IPv4 source address does not belong to the endpoint.
    SpoofedIpv4 = "spoofed-ipv4",
    /// The IPv6 source address does not belong to the endpoint.
    SpoofedIpv6 = "spoofed-ipv6",
    /// A neighbour-discovery message speaks for an address that does not belong to the endpoint.
    SpoofedNd = "spoofed-nd",
    /// A DHCP server's message from an endpoint that may not be one.
    DhcpServer = "dhcp-server",
    /// What only routers say (router advertisement, redirect, membership query, a routing protocol)
    /// from an endpoint that may not be one.
    RouterAdvertisement = "router-advertisement",
    /// A control protocol of bridges and switches from an endpoint that may not speak one.
    ControlProtocol = "control-protocol",
    /// From the uplink, for a protocol of the switch, of which more frames wait than it has room
    /// for.
    ControlFull = "control-full",
    /// A VLAN tag from an endpoint, one that no tenant on this uplink has, or from a trunk one that
    /// another tenant has.
    BadVlan = "bad-vlan",
    /// From the uplink, with an address that belongs to a local endpoint: a loop, or a spoof.
    Loop = "loop",
    /// The source address moves between endpoints too often.
    Flapping = "flapping",
    /// The endpoint has more source addresses than it may have.
    FdbFull = "fdb-full",
    /// The source address is not declared, and was seen outside: it is learned once it has aged
    /// there.
    SeenOutside = "seen-outside",
    /// The source address is not declared, and more are outside than are remembered: it may be one
    /// of them.
    OutsideFull = "outside-full",
    /// The endpoint declares no addresses, and may learn none: it is in a network that tenants
    /// share.
    Undeclared = "undeclared",
    /// It came through a tunnel with a network identifier (VNI) that no tenant has.
    BadVni = "bad-vni",
    /// It came through a tunnel from a host that is not known to have the tenant, or with the
    /// source address of another host's endpoint.
    UnknownVtep = "unknown-vtep",
    /// It met congestion in a tunnel, and is not of a kind that could bear the mark (RFC 6040).
    Congestion = "congestion",
    /// Nobody has the destination address, and there is no way out.
    Unreachable = "unreachable",
    /// The host that has the destination is known, but not the next hop on the way there.
    NoRoute = "no-route",
    /// With a tunnel's headers around it, longer than the network between hosts takes; a sender
    /// that wants to know is told.
    PathMtu = "path-mtu",
    /// The destination is the endpoint it came from.
    Hairpin = "hairpin",
    /// The budget for broadcast, multicast and unknown destinations is used up: the endpoint's, its
    /// tenant's, or the network's from the uplink.
    FloodLimit = "flood-limit",
    /// The frame memory is short, and its owner holds more than his share; or a copy of a flooded
    /// frame could not be made.
    NoBuffer = "no-buffer",
    /// Beyond the window that the guest was told, or a fragment of TCP that hides its numbers, from
    /// an endpoint that is held to it.
    VccWindow = "vcc-window",
    /// The queue is full.
    QueueFull = "queue-full",
    /// The queue toward its destination is full, which a limit on the way there holds back.
    PairLimit = "pair-limit",
    /// The member of the bond that is to carry it has too much to send already.
    MemberFull = "member-full",
    /// A copy of a frame that arrived over another member of the bond.
    Duplicate = "duplicate",
    /// It arrived over a member of the bond that is not to be received from now.
    MemberInactive = "member-inactive",
    /// A hello of a bond beyond what is read of them, or of this very bond; or a number on a frame
    /// while it is not known yet whether the other end of the member numbers its frames.
    BondControl = "bond-control",
    /// The queue's active management dropped it (CoDel, RFC 8289), as a signal to the sender.
    Aqm = "aqm",
    /// The ingress policer had no token left: segments, of which a frame may lose some.
    Policed = "policed",
    /// The reading of this endpoint was paused, and the port reports that it dropped frames.
    Paused = "paused",
    /// The port reports that its own ring was full before the switch could read.
    PortRing = "port-ring",
    /// A new connection for a service of which no backend is up.
    ServiceDown = "service-down",
    /// A new connection for a service, where all entries that the tenant may have are worth more.
    ServiceFull = "service-full",
    /// A segment or error of a connection that the service does not know.
    ServiceUnknown = "service-unknown",
    /// A backend's reset of which its client is not told: another backend is asked.
    ServiceRetry = "service-retry",
    /// More answers in the name of a service than are given to clients outside.
    ServiceBudget = "service-budget",
    /// A later fragment of a packet whose first one was not seen, for a service.
    NoFirstFragment = "no-first-fragment",
    /// It waited when the endpoint that had sent it, or that it was for, was removed.
    Removed = "removed",
    /// From the uplink while its ring fills, for a tenant that has had more than its share of the
    /// time in which what arrives there is passed on.
    UplinkShare = "uplink-share",
    /// The port refused the frame, or is gone.
    PortDown = "port-down",
    /// A frame from, or to, what the program does not know.
    Unknown = "unknown",
}

/// What became of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It was handed to a port, or is queued for one.
    Forwarded,
    /// It was dropped.
    Dropped(Reason),
}

/// Drops of one endpoint, by reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DropCounters([u64; Reason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> Self {
        DropCounters([0; Reason::ALL.len()])
    }
}

impl DropCounters {
    /// Counts `frames` drops.
    pub fn add(&mut self, reason: Reason, frames: u64) {
        let count = &mut self.0[reason as usize];
        *count = count.saturating_add(frames);
    }

    /// Lets the counters continue from others.
    pub(crate) fn count_on(&mut self, from: &DropCounters) {
        for (count, &from) in self.0.iter_mut().zip(&from.0) {
            crate::count::count_on(count, from);
        }
    }

    /// Frames dropped for `reason`.
    #[must_use]
    pub fn get(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    /// All reasons with at least one drop.
    pub fn nonzero(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL.iter().map(|&r| (r, self.get(r))).filter(|&(_, n)| n > 0)
    }

    /// Drops for all reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, &frames| sum.saturating_add(frames))
    }
}
