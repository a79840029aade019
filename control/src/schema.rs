//! The JSON schema of the configuration (JSON Schema 2020-12), from one table of all keys.
//!
//! The reader (`read`) is what decides; the table repeats for other programs which keys there are
//! and what they look like. Tests hold the two together: the reader knows each key of the table and
//! no other, and refuses what the schema refuses.

use crate::action::{ACTIVE, Kind};
use crate::bond::{ORDERS as BOND_ORDERS, RESELECTS};
use crate::config::{MAX_BACKEND_WEIGHT, MAX_BOND_TIME_NS, MAX_MTU, MAX_WEIGHT, MIN_MTU};
use crate::names::{
    AT, CONTROLLERS, DISCIPLINES, INGRESS_MODES, MAX_NAME, MAX_QUEUES, ORDERS, POLICIES, RED_PRESETS, WHEN_DOWN,
};
use agent::settings::MOST_SAMPLES;
use datapath::bond::lacp::{MOST_USER_KEY, Select};
use datapath::bond::{self, HashPolicy, MOST_MEMBERS};
use datapath::encap::vxlan::MOST as MAX_VNI;
use datapath::service::connections::{LEAST_CONNECTIONS, MOST_CONNECTIONS};
use datapath::vcc::{LEAST_FLOWS, MOST_FLOWS, Mode};
use serde_json::{Map, Value, json};

/// What a value looks like.
#[derive(Clone, Copy)]
enum Form {
    Flag,
    /// A whole number in a range.
    Number(u32, u32),
    /// Text of a pattern (ECMA-262, as JSON Schema has them).
    Text(&'static str),
    /// The names of [`ORDERS`].
    Order,
    /// The names of [`INGRESS_MODES`].
    Ingress,
    /// The names of [`CONTROLLERS`].
    Controller,
    /// The names of [`POLICIES`].
    Policy,
    /// The names of [`WHEN_DOWN`].
    WhenDown,
    /// The names of [`DISCIPLINES`].
    Discipline,
    /// The names of [`RED_PRESETS`].
    RedPreset,
    /// The names of [`AT`].
    At,
    /// The names of [`Mode::ALL`].
    Vcc,
    /// One of these words, or a table of these keys.
    WordOrTable(&'static [&'static str], &'static [Key]),
    /// A table of these keys.
    Table(&'static [Key]),
    /// A list of tables of these keys.
    Tables(&'static [Key]),
    /// A mode of a bond.
    Mode,
    /// The names of [`HashPolicy`].
    HashPolicy,
    /// What `primary_reselect` may be.
    Reselect,
    /// How a bond chooses an aggregator.
    AdSelect,
    /// Whether a bond keeps order.
    BondOrder,
    /// A time, or a number of milliseconds.
    BondTime,
    /// Any whole number of 32 bits.
    Whole,
    /// The members of a bond.
    Members,
    /// A VLAN id, or "untagged".
    Vlan,
    /// One text of a pattern, or a list of them.
    Texts(&'static str),
    /// One of these words.
    Word(&'static [&'static str]),
    /// One word, or a list.
    Words(&'static [&'static str]),
    /// A text for both directions, or a table.
    BothText(&'static str),
    /// The same, where neither direction may be left out.
    EachText(&'static str),
    /// A number for both directions, or a table.
    BothNumber(u32, u32),
}

const RATE: &str = r"^\s*[0-9]+(\.[0-9]+)?\s*(bit/s|kbit/s|Mbit/s|Gbit/s)\s*$";
const SIZE: &str = r"^\s*[0-9]+(\.[0-9]+)?\s*(B|KiB|MiB|GiB)\s*$";
const TIME: &str = r"^\s*[0-9]+(\.[0-9]+)?\s*(ns|us|ms|s)\s*$";
const PERCENT: &str = r"^\s*[0-9]+(\.[0-9]+)?\s*%\s*$";
const PORT: &str = r"^([a-z-]+://.+|director://)$";
const MAC: &str = "^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$";
const MAC_OR_IP: &str = "^(([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}|[0-9A-Fa-f:.]+)$";
const IP: &str = r"^[0-9A-Fa-f:.]+(/[0-9]+)?$";
const ADDRESS: &str = r"^[0-9A-Fa-f:.]+/[0-9]+$";
const VTEP: &str = "^[0-9A-Fa-f:.]+$";
const MODE: &str = "^0?6[0246][0246]$";
const ANY: &str = "^.+$";
const PATH: &str = "^/.+$";
const HOST: &str = "^[a-z0-9]([a-z0-9.-]{0,46}[a-z0-9])?$";
const NAME: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,47}$";
const URL: &str = r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?/?$";
const PREFIX: &str = "^(/[A-Za-z0-9._-]+)+$";
const SERVICE_ADDRESS: &str = r"^((tcp|udp)://)?([0-9.]+|\[[0-9A-Fa-f:.]+\]):[0-9]+$";
const OPENFLOW_LISTEN: &str = r"^(unix:/.+|([0-9.]+|\[[0-9A-Fa-f:.]+(%[0-9]+)?\]):[0-9]+)$";
const SOCKET: &str = r"^([0-9.]+|\[[0-9A-Fa-f:.]+(%[0-9]+)?\]):[0-9]+$";

/// Name, form, whether it must be given, and what it means.
type Key = (&'static str, Form, bool, &'static str);

const DAEMON: &[Key] = &[
    ("spin", Form::Flag, false, "the worker never sleeps: lower latency, at the cost of one whole core"),
    ("memory", Form::Text(SIZE), false, "bound of the memory for frames"),
    ("socket_group", Form::Text(ANY), false, "group whose members may read everything through the control socket"),
    ("reports", Form::Text(SOCKET), false, "UDP address and port where servers report their load"),
];
const SWITCH: &[Key] = &[
    ("order", Form::Order, false, "in which order queues share the uplink"),
    ("ingress", Form::Ingress, false, "what happens to frames from the uplink"),
    ("headroom", Form::Text(PERCENT), false, "part of the uplink's ingress rate held back while tenants contend"),
    ("fdb_age", Form::Text(TIME), false, "when learned addresses are forgotten"),
    (
        "connections",
        Form::Number(LEAST_CONNECTIONS, MOST_CONNECTIONS),
        false,
        "connections to services that are kept at most",
    ),
    ("vcc", Form::Table(VCC), false, "what virtual congestion control keeps, and how it tells windows"),
    (
        "shortcut",
        Form::Flag,
        false,
        "the kernel moves frames between packet:// and veth:// endpoints where no rule needs the switch",
    ),
];
const VCC: &[Key] = &[
    ("flows", Form::Number(LEAST_FLOWS, MOST_FLOWS), false, "connections that are kept at most"),
    ("rescale", Form::Flag, false, "guests are told a finer window scale than a coarse one of their peers"),
];
const DEVICE: &[Key] = &[
    ("port", Form::Text(PORT), true, "its locator, such as tap://red1"),
    ("netns", Form::Text(ANY), false, "network namespace of the device: a name below /run/netns or a path"),
    ("address", Form::Texts(ADDRESS), false, "addresses given to the device"),
    ("mtu", Form::Number(MIN_MTU, MAX_MTU), false, "longest packet in bytes"),
    ("ring", Form::Number(1, 1_000_000), false, "frames that the device's ring holds"),
    ("ipv6", Form::Flag, false, "whether the device may use IPv6"),
    ("persistent", Form::Flag, false, "the device survives the daemon, and the next one uses it again"),
    ("hub", Form::Flag, false, "a VDE plug whose clients share the endpoint and receive each other's frames"),
    (
        "mode",
        Form::Text(MODE),
        false,
        "permissions of the VDE directory's control socket, which decide which users may connect",
    ),
    (
        "group",
        Form::Text(ANY),
        false,
        "group of the VDE directory, or of the socket made for a virtual machine, by name or number",
    ),
    ("queues", Form::Number(1, MAX_QUEUES), false, "pairs of rings offered to a virtual machine"),
    ("listen", Form::Flag, false, "the switch makes a virtual machine's socket, and QEMU connects to it"),
    ("offload", Form::Flag, false, "segmentation and checksum offloads are offered to a virtual machine"),
    ("sealed", Form::Flag, false, "a virtual machine's memory must be a sealed file, which cannot shrink"),
];
const UPLINK: &[Key] = &[
    ("mac", Form::Text(MAC), false, "address of the device"),
    ("rate", Form::EachText(RATE), true, "what it carries"),
    ("bond", Form::Table(BOND), false, "several ports that carry its frames together, instead of `port`"),
    ("burst", Form::Text(TIME), false, "most that is sent at once after a delay of the daemon, as time at its rate"),
    ("vtep", Form::Text(VTEP), false, "this host's end of the tunnels to other hosts"),
    ("flood_per_second", Form::Number(0, 1_000_000), false, "frames a second that are flooded from it in each network"),
    ("flood_rate", Form::Text(RATE), false, "copies of these, in each network"),
    (
        "aqm",
        Form::Table(AQM),
        false,
        "what queues for it do before they are full, unless tenant or endpoint says otherwise",
    ),
];
const BOND: &[Key] = &[
    ("mode", Form::Mode, true, "how it uses its members, as Linux's bonding driver calls it"),
    ("xmit_hash_policy", Form::HashPolicy, false, "balance-xor, 802.3ad: what the hash is made of"),
    ("packets_per_slave", Form::Number(0, 65_535), false, "balance-rr: frames in turn; 0: a random member for each"),
    ("all_slaves_active", Form::Number(0, 1), false, "active-backup: 1 to receive from backups too"),
    (
        "order",
        Form::BondOrder,
        false,
        "balance-rr, broadcast: whether frames are numbered where the other end is Levada",
    ),
    ("hold", Form::Text(TIME), false, "how long a frame may wait for an earlier one"),
    ("secret_file", Form::Text(PATH), false, "file with the secret of both ends, under which they send hellos"),
    ("miimon", Form::BondTime, false, "how often links are asked, beside the kernel's events"),
    ("updelay", Form::BondTime, false, "how long a link must be up before its member is used"),
    ("downdelay", Form::BondTime, false, "how long a link must be down before its member is given up"),
    ("primary", Form::Text(ANY), false, "active-backup: name of the member that is active whenever it may be"),
    ("primary_reselect", Form::Reselect, false, "when a better member becomes active"),
    ("num_grat_arp", Form::Number(0, 255), false, "notices after a failover of where addresses are now"),
    ("num_unsol_na", Form::Number(0, 255), false, "the same"),
    ("peer_notif_delay", Form::BondTime, false, "between one notice and the next; 0: as miimon"),
    ("resend_igmp", Form::Number(0, 255), false, "queries after a failover of the groups that guests receive"),
    ("fail_over_mac", Form::Word(&["none"]), false, "whose address the bond has: it has none of its own"),
    ("lacp_rate", Form::Word(&["slow", "fast"]), false, "802.3ad: how often the other end is to speak"),
    ("lacp_active", Form::Word(&["on", "off"]), false, "802.3ad: off to speak only when spoken to"),
    ("min_links", Form::Number(0, MOST_MEMBERS as u32), false, "802.3ad: with fewer members no frame is carried"),
    ("ad_select", Form::AdSelect, false, "802.3ad: which of several aggregators is used"),
    (
        "coupled_control",
        Form::Word(&["on", "off"]),
        false,
        "802.3ad: off to send by a member only once the other end receives from it",
    ),
    ("lacp_strict", Form::Word(&["on", "off"]), false, "802.3ad: on to carry no frame where the other end has no LACP"),
    ("ad_actor_sys_prio", Form::Number(1, 65_535), false, "802.3ad: this system's priority"),
    ("ad_actor_system", Form::Text(MAC), false, "802.3ad: this system's address"),
    ("ad_user_port_key", Form::Number(0, MOST_USER_KEY as u32), false, "802.3ad: the operator's part of the key"),
    ("member", Form::Members, true, "its ports"),
];
const BOND_MEMBER: &[Key] = &[
    ("mac", Form::Text(MAC), false, "address of the device"),
    ("rate", Form::Text(RATE), true, "what it carries in each direction"),
    ("prio", Form::Whole, false, "which is preferred as the active member: the most"),
    ("ad_actor_port_prio", Form::Number(1, 65_535), false, "802.3ad: its port's priority"),
    ("admin", Form::Word(&["up", "down"]), false, "down: nothing is sent by it, though its link may be up"),
];
const KNOBS: &[Key] = &[
    ("guarantee", Form::BothText(RATE), false, "the rate it gets at least"),
    ("limit", Form::BothText(RATE), false, "the rate it gets at most"),
    ("weight", Form::BothNumber(1, MAX_WEIGHT), false, "share of what is left"),
];
const TENANT: &[Key] = &[
    ("vlan", Form::Vlan, false, "id on the uplink; without it and `vni`: no way to the uplink"),
    ("vni", Form::Number(1, MAX_VNI), false, "VXLAN network identifier, in tunnels to the hosts that have the tenant"),
    ("aqm", Form::Table(AQM), false, "what its endpoints' queues do before they are full"),
    ("flood_rate", Form::Text(RATE), false, "copies of what its endpoints flood together"),
    ("vcc", Form::Vcc, false, "congestion control that the switch runs for its endpoints' TCP"),
    ("police", Form::Flag, false, "what they send beyond the window that `vcc` tells them is dropped"),
    ("hold_acks", Form::Flag, false, "acknowledgements wait where the window that `vcc` allows is below two segments"),
    ("mptcp", Form::Word(&["untouched", "strip"]), false, "strip: connections of Multipath TCP become plain TCP"),
    ("loss", Form::Word(&["halve", "ignore"]), false, "ignore: what a guest sends again does not lower its window"),
    ("classic", Form::Word(&["translate", "pass"]), false, "pass: guests that know RFC 3168 only speak for themselves"),
    (
        "outside",
        Form::Texts(MAC_OR_IP),
        false,
        "addresses that are outside, such as the router's: claimed by no endpoint that does not list them itself",
    ),
];
const ENDPOINT: &[Key] = &[
    ("mac", Form::Texts(MAC), false, "its addresses; the device gets the first. Absent: addresses are learned"),
    ("ip", Form::Texts(IP), false, "addresses or prefixes that it may use"),
    (
        "allow",
        Form::Words(&["dhcp-server", "router", "control-protocols", "learned-addresses"]),
        false,
        "what else it may announce",
    ),
    ("trunk", Form::Flag, false, "a bridge port: VLAN tags pass, sources are not compared with a list"),
    ("queue", Form::Text(SIZE), false, "bound of its queue in each direction"),
    ("aqm", Form::Table(AQM), false, "what its queues do before they are full"),
    ("vcc", Form::Vcc, false, "congestion control that the switch runs for its TCP; its tenant's where absent"),
    ("mptcp", Form::Word(&["untouched", "strip"]), false, "as the tenant's"),
    ("loss", Form::Word(&["halve", "ignore"]), false, "as the tenant's"),
    ("classic", Form::Word(&["translate", "pass"]), false, "as the tenant's"),
    ("flood_per_second", Form::Number(0, 1_000_000), false, "broadcast, multicast and unknown destinations a second"),
    ("flood_rate", Form::Text(RATE), false, "copies of these, all together"),
    ("max_learned", Form::Number(0, 1_000_000), false, "addresses learned from it where `mac` is absent"),
];
const SERVICE: &[Key] = &[
    (
        "address",
        Form::Texts(SERVICE_ADDRESS),
        true,
        "where it is reached: address and port, of TCP unless it says udp://",
    ),
    ("policy", Form::Policy, false, "which backend gets a new connection"),
    ("mac", Form::Text(MAC), false, "its Ethernet address"),
    ("when_down", Form::WhenDown, false, "what a client gets when no backend is up"),
    ("ping", Form::Flag, false, "echo requests to its addresses are answered while a backend is up"),
    ("report_period", Form::Text(TIME), false, "how often servers report their load, for the policies by load average"),
    ("slow_start", Form::Text(TIME), false, "for how long a backend that comes, or comes back, has a smaller weight"),
    ("check", Form::WordOrTable(&["tcp", "http", "tls"], CHECK), false, "how backends are asked whether they are well"),
    ("drain_time", Form::Text(TIME), false, "for how long a backend that is drained keeps its connections"),
    (
        "on_failure",
        Form::Word(&["keep", "reset"]),
        false,
        "what becomes of the connections of a backend that checks find down",
    ),
    ("panic", Form::Text(PERCENT), false, "health is ignored while less of the weight than this is well"),
    ("affinity", Form::Word(&["connection", "client"]), false, "what stays at its backend"),
    ("affinity_time", Form::Text(TIME), false, "for how long a client does, after its last connection"),
    ("max_connections", Form::Number(1, MOST_CONNECTIONS), false, "connections that each backend may have"),
    ("hold", Form::Text(TIME), false, "for how long a new connection waits while all have so many"),
    ("director", Form::Text(NAME), false, "the endpoint that pays where client and backend are both outside"),
];
const CHECK: &[Key] = &[
    ("kind", Form::Word(&["tcp", "http", "tls"]), true, "a connection, a request, or the beginning of TLS"),
    ("path", Form::Text("^/[!-~]{0,255}$"), false, "of `http`: what is asked for"),
    (
        "host",
        Form::Text(r"^[A-Za-z0-9._:\[\]-]{1,253}$"),
        false,
        "of `http`: of whom; the service's address where absent. Of `tls`: a name",
    ),
    (
        "status",
        Form::Text("^[1-5][0-9]{2}(-[1-5][0-9]{2})?$"),
        false,
        "of `http`: the status of a good answer, or a range",
    ),
    ("interval", Form::Text(TIME), false, "from one check to the next"),
    ("timeout", Form::Text(TIME), false, "how long one may take"),
    ("rise", Form::Number(1, 100), false, "checks in a row that must succeed for a backend to be up again"),
    ("fall", Form::Number(1, 100), false, "checks in a row that must fail for it to be down"),
];
const BACKEND: &[Key] = &[
    ("endpoint", Form::Text(NAME), false, "the endpoint that it is, where that is not called as the backend is"),
    ("ip", Form::Texts(VTEP), false, "its address; an endpoint's own where absent"),
    ("mac", Form::Text(MAC), false, "its Ethernet address; an endpoint's own where absent"),
    ("port", Form::Number(1, 65_535), false, "the port it listens at; the service's where absent"),
    ("weight", Form::Number(0, MAX_BACKEND_WEIGHT), false, "its part of new connections; 0 drains it"),
    ("drain", Form::Flag, false, "it is drained, whatever its weight is"),
    ("drain_time", Form::Text(TIME), false, "for how long it keeps its connections then; the service's where absent"),
    ("cores", Form::Number(1, 65_535), false, "its processors, by which a reported load is judged"),
    ("max_connections", Form::Number(1, MOST_CONNECTIONS), false, "connections that it may have"),
    ("key", Form::Text(PATH), false, "file with the key under which its server reports its load"),
];
/// Which of them a kind has is for the reader to say.
const AQM: &[Key] = &[
    ("kind", Form::Discipline, true, "the discipline"),
    ("preset", Form::RedPreset, false, "of `red`: published parameters"),
    ("min", Form::Text(SIZE), false, "of `red`: average queue from which on it signals"),
    ("max", Form::Text(SIZE), false, "of `red`: average queue at which the probability is greatest"),
    ("probability", Form::Text(PERCENT), false, "of `red`: that probability"),
    ("weight", Form::Text("^1/[0-9]+$"), false, "of `red`: of a segment in the average, one over a power of two"),
    ("gentle", Form::Flag, false, "of `red`: beyond `max` the probability rises on"),
    ("bytes", Form::Flag, false, "of `red`: the probability is scaled by the segment's size"),
    ("threshold", Form::Text(SIZE), false, "of `step`: marks while more than this waits"),
    ("at", Form::At, false, "of `step`: where the queue is looked at"),
    ("target", Form::Text(TIME), false, "of `sojourn`: marks what waited longer"),
];
const LINK: &[Key] = &[
    ("rate", Form::Text(RATE), true, "in each direction"),
    ("delay", Form::Text(TIME), false, "propagation"),
    ("queue", Form::Text(SIZE), false, "bound of the queue at each end"),
    ("aqm", Form::Table(AQM), false, "what the queue at each end does before it is full"),
    ("loss", Form::Text(PERCENT), false, "of segments, at random"),
];

const CLUSTER: &[Key] = &[
    ("host", Form::Text(HOST), true, "name of this host, as in its certificate"),
    (
        "listen",
        Form::Text(SOCKET),
        false,
        "UDP address at which other hosts reach this one; needed unless all hosts are switches of this daemon",
    ),
    ("directory", Form::Text(PATH), false, "certificate, key and authority: levada cluster init, levada cluster join"),
    ("controller", Form::Controller, false, "algorithm that limits the rates of senders on other hosts"),
    ("sample", Form::Text(TIME), false, "gatekeeper: how often the ingress queues are sampled"),
    ("samples", Form::Number(1, MOST_SAMPLES), false, "gatekeeper: samples over which drops are averaged"),
    (
        "drop",
        Form::Text(PERCENT),
        false,
        "gatekeeper: part of the headroom; an endpoint with more drops has a sender notified",
    ),
    ("notify", Form::Text(TIME), false, "gatekeeper: least time between two notifications about one endpoint"),
    ("recovery", Form::Text(TIME), false, "gatekeeper: time in which a limit grows from nothing to the whole link"),
    ("etcd", Form::Table(ETCD), false, "the etcd in which hosts publish themselves and their endpoints"),
];
const ETCD: &[Key] = &[
    ("endpoints", Form::Texts(URL), true, "URLs of its members; one that answers is used"),
    ("prefix", Form::Text(PREFIX), false, "prefix of the cluster's keys in it"),
    (
        "authority",
        Form::Text(PATH),
        false,
        "file with the certificates of the authorities that have signed the etcd's; for https://",
    ),
    ("certificate", Form::Text(PATH), false, "file with this host's certificate for it"),
    ("key", Form::Text(PATH), false, "file with the key of `certificate`"),
    ("user", Form::Text(ANY), false, "the etcd's user for this host"),
    ("password_file", Form::Text(PATH), false, "file with the password of `user`"),
];
const MEMBER: &[Key] = &[
    ("address", Form::Text(SOCKET), false, "UDP address of its daemon; needed unless it is only an end of tunnels"),
    ("vtep", Form::Text(VTEP), false, "its end of the tunnels"),
    ("endpoint", Form::Tables(REMOTE), false, "the endpoints it has"),
    ("service", Form::Tables(REMOTE_SERVICE), false, "the services it has"),
];
const REMOTE: &[Key] = &[
    ("name", Form::Text(NAME), true, "its name"),
    ("tenant", Form::Text(NAME), true, "name of its tenant, the same on all hosts"),
    ("mac", Form::Texts(MAC), true, "its addresses"),
    ("ip", Form::Texts(VTEP), false, "its IP addresses, without prefixes: no other endpoint of this host claims them"),
];
const REMOTE_SERVICE: &[Key] = &[
    ("name", Form::Text(NAME), true, "its name"),
    ("tenant", Form::Text(NAME), true, "name of its tenant, the same on all hosts"),
    ("address", Form::Texts(VTEP), true, "its IP addresses, without ports, in the service's order"),
    ("mac", Form::Text(MAC), false, "its Ethernet address, where the service says one"),
];

const OPENFLOW: &[Key] = &[
    ("name", Form::Text(NAME), true, "the instance"),
    ("listen", Form::Text(OPENFLOW_LISTEN), false, "where switches connect: address and port, or unix:PATH"),
    ("tls", Form::Table(OPENFLOW_TLS), false, "certificates; needed unless switches connect on this machine"),
    ("mode", Form::Word(&["reactive", "hash"]), false, "what spreads connections: the controller, or the switch"),
    ("role", Form::Word(&["equal", "master", "slave"]), false, "rights at switches"),
    ("idle_timeout", Form::Text(TIME), false, "reactive: when a connection's flows go, in whole seconds"),
    (
        "connections",
        Form::Number(LEAST_CONNECTIONS, MOST_CONNECTIONS),
        false,
        "reactive: connections that are remembered at most",
    ),
    ("reports", Form::Text(SOCKET), false, "UDP address and port where servers report their load"),
    ("probe", Form::Text(TIME), false, "how often backends of TCP are asked whether they are there; absent: never"),
    ("normal", Form::Flag, false, "frames for no service are forwarded as a learning switch does"),
    ("service", Form::Tables(OPENFLOW_SERVICE), false, "what is balanced"),
];
const OPENFLOW_TLS: &[Key] = &[
    ("certificate", Form::Text(PATH), true, "file with the controller's certificate"),
    ("key", Form::Text(PATH), true, "file with the key of `certificate`"),
    ("authority", Form::Text(PATH), true, "file with the authorities that have signed the switches' certificates"),
];
const OPENFLOW_SERVICE: &[Key] = &[
    ("name", Form::Text(NAME), true, "its name"),
    (
        "address",
        Form::Texts(SERVICE_ADDRESS),
        true,
        "where it is reached: address and port, of TCP unless it says udp://",
    ),
    ("policy", Form::Policy, false, "which backend gets a new connection"),
    ("mac", Form::Text(MAC), false, "its Ethernet address"),
    ("ping", Form::Flag, false, "echo requests to its addresses are answered by the switch"),
    ("report_period", Form::Text(TIME), false, "how often servers report their load, for the policies by load average"),
    ("affinity", Form::Word(&["connection", "client"]), false, "reactive: what stays at its backend"),
    ("affinity_time", Form::Text(TIME), false, "for how long a client does, after its last connection"),
    ("when_down", Form::WhenDown, false, "what a client gets when no backend is up"),
    (
        "on_failure",
        Form::Word(&["keep", "reset"]),
        false,
        "what becomes of the connections of a backend that `probe` finds down",
    ),
    ("panic", Form::Text(PERCENT), false, "health is ignored while less of the weight than this is well"),
    ("backend", Form::Tables(OPENFLOW_BACKEND), false, "its backends"),
];
const OPENFLOW_BACKEND: &[Key] = &[
    ("name", Form::Text(NAME), true, "its name"),
    ("ip", Form::Texts(VTEP), true, "its address, or one of each IP version"),
    ("mac", Form::Text(MAC), true, "its Ethernet address"),
    ("port", Form::Number(1, 65_535), false, "the port it listens at; the service's where absent"),
    ("weight", Form::Number(0, MAX_BACKEND_WEIGHT), false, "its part of new connections; 0 drains it"),
    ("cores", Form::Number(1, 65_535), false, "its processors, by which a reported load is judged"),
    ("key", Form::Text(PATH), false, "file with the key under which its server reports its load"),
];

fn keys(kind: Kind) -> impl Iterator<Item = &'static Key> {
    let lists: &[&[Key]] = match kind {
        Kind::Daemon => &[DAEMON],
        Kind::Switch => &[SWITCH],
        Kind::Uplink => &[DEVICE, UPLINK],
        Kind::Bond => &[BOND],
        Kind::BondMember => &[DEVICE, BOND_MEMBER],
        Kind::Tenant => &[TENANT, KNOBS],
        Kind::Endpoint => &[DEVICE, ENDPOINT, KNOBS],
        Kind::Service => &[SERVICE],
        Kind::Backend => &[BACKEND],
        Kind::Link => &[LINK],
        Kind::Cluster => &[CLUSTER],
        Kind::Member => &[MEMBER],
    };
    // Members of a bond are things of their own.
    let is_its = move |key: &&Key| kind != Kind::Bond || key.0 != "member";
    lists.iter().flat_map(|list| list.iter()).filter(is_its).collect::<Vec<_>>().into_iter()
}

/// Whether `key` of such a thing is always text, so that `7` is the text "7" and no number.
#[must_use]
pub fn takes_only_text(kind: Kind, key: &str) -> bool {
    if (kind, key) == (Kind::Bond, ACTIVE) {
        return true;
    }
    let form = keys(kind).find(|(name, ..)| *name == key).map(|(_, form, ..)| form);
    matches!(form, Some(Form::Text(_) | Form::Texts(_) | Form::BothText(_) | Form::EachText(_) | Form::Words(_)))
}

impl Form {
    fn schema(self) -> Value {
        let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
        let number = |least: u32, most: u32| json!({"type": "integer", "minimum": least, "maximum": most});
        let or_list = |one: Value| json!({"oneOf": [one.clone(), {"type": "array", "items": one}]});
        let or_both = |one: Value| {
            let table = json!({"type": "object", "additionalProperties": false,
                "properties": {"egress": one.clone(), "ingress": one.clone()}});
            json!({"oneOf": [one, table]})
        };
        match self {
            Form::Flag => json!({"type": "boolean"}),
            Form::Number(least, most) => number(least, most),
            Form::Text(pattern) => text(pattern),
            Form::Order => json!({"enum": ORDERS.map(|(name, _)| name)}),
            Form::Ingress => json!({"enum": INGRESS_MODES.map(|(name, _)| name)}),
            Form::Controller => json!({"enum": CONTROLLERS.map(|(name, _)| name)}),
            Form::Policy => json!({"enum": POLICIES.map(|(name, _)| name)}),
            Form::WhenDown => json!({"enum": WHEN_DOWN.map(|(name, _)| name)}),
            Form::Discipline => json!({"enum": DISCIPLINES.map(|(name, _)| name)}),
            Form::Vcc => json!({"enum": Mode::ALL.map(Mode::name)}),
            Form::RedPreset => json!({"enum": RED_PRESETS.map(|(name, _)| name)}),
            Form::At => json!({"enum": AT.map(|(name, _)| name)}),
            Form::Table(keys) => {
                let (all, required) = properties_of(keys.iter());
                json!({"type": "object", "additionalProperties": false, "properties": all, "required": required})
            }
            Form::WordOrTable(words, keys) => json!({"anyOf": [{"enum": words}, Form::Table(keys).schema()]}),
            Form::Tables(keys) => json!({"type": "array", "items": Form::Table(keys).schema()}),
            Form::Mode => json!({"enum": bond::Mode::ALL.map(|(name, _)| name)}),
            Form::HashPolicy => json!({"enum": HashPolicy::ALL.map(|(name, _)| name)}),
            Form::AdSelect => json!({"enum": Select::ALL.map(|(name, _)| name)}),
            Form::Reselect => json!({"enum": RESELECTS.map(|(name, _)| name)}),
            Form::BondOrder => json!({"enum": BOND_ORDERS.map(|(name, _)| name)}),
            Form::BondTime => json!({"oneOf": [text(TIME), number(0, (MAX_BOND_TIME_NS / 1_000_000) as u32)]}),
            Form::Whole => json!({"type": "integer", "minimum": i32::MIN, "maximum": i32::MAX}),
            Form::Members => {
                let (all, required) = properties_of(DEVICE.iter().chain(BOND_MEMBER));
                let one =
                    json!({"type": "object", "additionalProperties": false, "properties": all, "required": required});
                json!({"type": "array", "items": one, "minItems": 1, "maxItems": MOST_MEMBERS})
            }
            Form::Vlan => json!({"oneOf": [number(1, 4094), {"const": "untagged"}]}),
            Form::Texts(pattern) => or_list(text(pattern)),
            Form::Word(words) => json!({"enum": words}),
            Form::Words(words) => or_list(json!({"enum": words})),
            Form::BothText(pattern) => or_both(text(pattern)),
            Form::EachText(pattern) => {
                let mut schema = or_both(text(pattern));
                schema["oneOf"][1]["required"] = json!(["egress", "ingress"]);
                schema
            }
            Form::BothNumber(least, most) => or_both(number(least, most)),
        }
    }
}

/// The properties of a thing, and which it must have.
fn properties(kind: Kind) -> (Map<String, Value>, Vec<Value>) {
    properties_of(keys(kind))
}

/// An uplink has a port and what that carries, or a bond.
fn port_or_bond() -> Value {
    json!([{"required": ["port", "rate"], "not": {"required": ["bond"]}}, {"required": ["bond"]}])
}

fn properties_of(keys: impl Iterator<Item = &'static Key>) -> (Map<String, Value>, Vec<Value>) {
    let mut all = Map::new();
    let mut required = Vec::new();
    for (name, form, needed, about) in keys {
        let mut schema = form.schema();
        if let (Form::Texts(_), true) = (form, *needed) {
            // The second form is the list.
            schema["oneOf"][1]["minItems"] = 1.into();
        }
        schema["description"] = (*about).into();
        all.insert((*name).to_owned(), schema);
        required.extend(needed.then(|| Value::from(*name)));
    }
    (all, required)
}

/// The schema of a thing's keys as an action has them: without name; for `set`, none is required
/// and `null` is a key's default.
#[must_use]
pub fn thing(kind: Kind, is_set: bool) -> Value {
    let (mut all, mut required) = properties(kind);
    if is_set {
        if kind == Kind::Bond {
            let about = "active-backup: the member that is active from now on; not kept in the configuration";
            all.insert(ACTIVE.to_owned(), json!({"type": "string", "description": about}));
        }
        required.clear();
        for (_, schema) in all.iter_mut().filter(|(key, _)| *key != ACTIVE) {
            let about = schema["description"].take();
            *schema = json!({"oneOf": [schema.take(), {"type": "null"}], "description": about});
        }
    }
    let mut schema = json!({"type": "object", "additionalProperties": false, "properties": all, "required": required});
    if kind == Kind::Uplink && !is_set {
        schema["required"] = json!([]);
        schema["oneOf"] = port_or_bond();
    }
    schema
}

/// The schema of a thing in the file: with its name and what is in it.
fn in_file(kind: Kind, inner: &[(&str, Value)]) -> Value {
    let mut schema = thing(kind, false);
    if kind != Kind::Uplink && kind != Kind::Cluster {
        let pattern = match kind {
            Kind::Member => HOST.to_owned(),
            _ => format!("^[A-Za-z0-9][A-Za-z0-9._-]{{0,{}}}$", MAX_NAME - 1),
        };
        schema["properties"]["name"] = json!({"type": "string", "pattern": pattern, "description": "its name"});
        if let Some(required) = schema["required"].as_array_mut() {
            required.insert(0, "name".into());
        }
    }
    for (name, value) in inner {
        schema["properties"][*name] = value.clone();
    }
    schema
}

/// The schema of a configuration, for its JSON form as for the TOML file read as data.
#[must_use]
pub fn config() -> Value {
    let list = |items: Value| json!({"type": "array", "items": items});
    let endpoint = in_file(Kind::Endpoint, &[]);
    let service = in_file(Kind::Service, &[("backend", list(in_file(Kind::Backend, &[])))]);
    let tenant = in_file(Kind::Tenant, &[("endpoint", list(endpoint)), ("service", list(service))]);
    let switch = in_file(Kind::Switch, &[("uplink", in_file(Kind::Uplink, &[])), ("tenant", list(tenant))]);
    let mut switches = list(switch);
    switches["minItems"] = 1.into();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Levada configuration",
        "description": "What one daemon runs. Checks that need more than one value (names and ports used twice, promises that do not fit the link) are made by `levada check`.",
        "type": "object",
        "additionalProperties": false,
        "required": ["daemon", "switch"],
        "properties": {
            "daemon": in_file(Kind::Daemon, &[]),
            "switch": switches,
            "link": list(in_file(Kind::Link, &[])),
            "cluster": in_file(Kind::Cluster, &[("member", list(in_file(Kind::Member, &[])))]),
        },
    })
}

/// The schema of the configuration of a controller of OpenFlow switches.
#[must_use]
pub fn openflow() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Levada OpenFlow configuration",
        "description": "What one controller of OpenFlow switches balances. Checks that need more than one value are made by `levada check`.",
        "type": "object",
        "additionalProperties": false,
        "required": ["openflow"],
        "properties": {"openflow": Form::Table(OPENFLOW).schema()},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::{Action, apply};

    /// The keys that the reader knows, from its own answer to one that it does not.
    fn known(kind: Kind) -> Vec<String> {
        let text = "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s\"\n[switch.uplink]\nport = \"tap://u\"\nrate = \"1 Gbit/s\"\n\
                    [[switch.tenant]]\nname = \"t\"\n[[switch.tenant.endpoint]]\nname = \"e\"\nport = \"tap://e\"\n\
                    [[switch.tenant.service]]\nname = \"v\"\naddress = \"10.0.0.9:80\"\n\
                    [[switch.tenant.service.backend]]\nname = \"e\"\nip = \"10.0.0.1\"\nmac = \"02:00:00:00:00:01\"\n\
                    [[switch]]\nname = \"b\"\nuplink = { bond = { mode = \"active-backup\", member = [{ port = \"tap://u\", rate = \"1 Gbit/s\" }] } }\n\
                    [[link]]\nname = \"l\"\nrate = \"1 Gbit/s\"\n\
                    [cluster]\nhost = \"h\"\nlisten = \"192.0.2.1:7370\"\n[[cluster.member]]\nname = \"m\"\naddress = \"192.0.2.2:1\"\n";
        let path = match kind {
            Kind::Daemon | Kind::Cluster => "",
            Kind::Member => "m",
            Kind::Switch | Kind::Uplink => "s",
            Kind::Bond => "b",
            Kind::BondMember => "b/u",
            Kind::Tenant => "s/t",
            Kind::Endpoint => "s/t/e",
            Kind::Service => "s/t/v",
            Kind::Backend => "s/t/v/e",
            Kind::Link => "l",
        };
        let mut keys = crate::write::Keys::new();
        keys.insert("zzzzzzzzzzzzzzzzzzzzzzzz".into(), 1.into());
        let action = Action::Set { kind, path: path.into(), keys };
        let problems = apply(&crate::load(text).config, &[action]).unwrap_err();
        let remedy = problems[0].remedy.strip_prefix("the keys here are ").expect("the reader lists its keys");
        let inner: &[&str] = match kind {
            Kind::Member | Kind::Backend => &["name"],
            _ => &["name", "uplink", "tenant", "endpoint", "service", "backend", "member"],
        };
        let mut keys: Vec<String> = remedy.split(", ").filter(|key| !inner.contains(key)).map(str::to_owned).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    #[test]
    fn the_table_has_the_keys_that_the_reader_knows() {
        for kind in Kind::ALL {
            let mut table: Vec<String> = keys(kind).map(|(name, ..)| (*name).to_owned()).collect();
            table.sort();
            assert_eq!(table, known(kind), "{kind:?}");
        }
    }
}
