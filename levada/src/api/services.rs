//! Services: `GET /v1/services`, `POST /v1/connections`, and how a load is told.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /v1/services`.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Default, PartialEq, Eq)]
pub struct ServicesReply {
    /// 1.
    pub version: u32,
    /// All services.
    pub services: Vec<ServiceReport>,
    /// What became of servers' load reports, by verdict; absent where none may arrive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reports: Option<ReportCounts>,
}

/// What became of load reports.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportCounts {
    /// Their backends have that load now.
    pub taken: u64,
    /// They were no reports.
    pub malformed: u64,
    /// They were of a backend that has no key here.
    pub foreign: u64,
    /// Their MAC was not of the backend's key.
    pub forged: u64,
    /// Their time was more than 30 s from ours, or not after what was taken before.
    pub old: u64,
    /// Their sequence did not rise.
    pub replayed: u64,
    /// They were more than 20 a second of a backend, or 10 000 of all.
    pub too_many: u64,
}

/// One service.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Default, PartialEq, Eq)]
pub struct ServiceReport {
    /// `SWITCH/TENANT/SERVICE`.
    pub path: String,
    /// Where it is reached.
    pub addresses: Vec<String>,
    /// Its Ethernet address.
    #[serde(default)]
    pub mac: String,
    /// Its policy.
    pub policy: String,
    /// Connections that got a backend.
    pub new: u64,
    /// New connections for which no backend was up.
    pub refused: u64,
    /// New connections for which there was no room in the table.
    pub full: u64,
    /// Connections whose entry went before its time, for others of the tenant.
    pub evicted: u64,
    /// Connections that got a backend which their hash does not name: they would be lost with the
    /// table.
    pub off_candidates: u64,
    /// New connections that got another backend, as one refused or did not answer.
    pub redirected: u64,
    /// Connections that were not known, of which a backend was asked.
    pub sought: u64,
    /// Connections that were found again so.
    pub recovered: u64,
    /// Connections that got a backend while so few were well that health was ignored.
    #[serde(default)]
    pub unhealthy: u64,
    /// New connections that waited, as all backends had as many as they may have.
    #[serde(default)]
    pub held: u64,
    /// Those that wait now.
    #[serde(default)]
    pub holding: u32,
    /// New connections that went where their client was before.
    #[serde(default)]
    pub stayed: u64,
    /// Connections of the whole switch, and how many it may have.
    pub table: u32,
    /// See `table`.
    pub table_most: u32,
    /// Its backends.
    pub backends: Vec<BackendReport>,
}

/// One backend.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Default, PartialEq, Eq)]
pub struct BackendReport {
    /// Its name.
    pub name: String,
    /// Its weight; 0: it is drained.
    pub weight: u32,
    /// Connections that it got.
    pub new: u64,
    /// `up`, `slow` (it comes, or comes back, and gets fewer), `down` (checks failed), `ejected`
    /// (too many connections failed one after the other), `drain` (weight 0), or `drained` (it has
    /// no connections any more, or its time for that is over).
    pub state: String,
    /// Connections to which a reset or an ICMP error was its first answer.
    pub refused: u64,
    /// Connections that it did not answer in time.
    pub silent: u64,
    /// Connections that it accepted and ended at once, with nothing sent or received.
    #[serde(default)]
    pub ended: u64,
    /// How often it was ejected.
    #[serde(default)]
    pub ejections: u64,
    /// Checks that have ended, and those of them that failed.
    #[serde(default)]
    pub checks: u64,
    /// See `checks`.
    #[serde(default)]
    pub failed_checks: u64,
    /// How often checks found it down.
    #[serde(default)]
    pub falls: u64,
    /// How long it keeps its connections yet, where it is drained and that has a time.
    #[serde(default)]
    pub drain_left_ns: Option<u64>,
    /// Connections that were ended as its time to drain was over.
    #[serde(default)]
    pub cut: u64,
    /// Connections that it may have; `null` for any number.
    #[serde(default)]
    pub max_connections: Option<u32>,
    /// Connections whose client waits or whose server is sending.
    pub busy: u32,
    /// Other open ones.
    pub idle: u32,
    /// Those of which it has sent nothing since it was found down; they are not in flight.
    #[serde(default)]
    pub unconfirmed: u32,
    /// The load average that it reported last, in thousandths; `null` before the first.
    pub load_milli: Option<u64>,
}

/// `POST /v1/connections`.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
#[serde(deny_unknown_fields)]
pub struct ConnectionsRequest {
    /// `SWITCH/TENANT/SERVICE`.
    pub service: String,
    /// Of this client's address only.
    #[serde(default)]
    pub client: Option<String>,
}

/// The answer to it.
#[derive(Serialize, Deserialize, JsonSchema, Debug, PartialEq, Eq)]
pub struct ConnectionsReply {
    /// 1.
    pub version: u32,
    /// At most 1000, those that are open and were seen last first.
    pub connections: Vec<ConnectionReport>,
}

/// One connection.
#[derive(Serialize, Deserialize, JsonSchema, Debug, PartialEq, Eq)]
pub struct ConnectionReport {
    /// The client's address and port.
    pub client: String,
    /// Where it reached the service.
    pub address: String,
    /// Name of its backend.
    pub backend: String,
    /// The port of the service's address that the backend is asked from, where client and backend
    /// are both outside.
    #[serde(default)]
    pub asked_from: Option<u16>,
    /// asked, answered, open, closing, closed; of UDP one-way or two-way.
    pub state: String,
    /// Whether the client waits or the server is sending.
    pub busy: bool,
    /// Since when nothing was seen of it, to within a second.
    pub idle_ns: u64,
}

/// `POST /v1/load`: a server's load average, for the policies that go by it.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
#[serde(deny_unknown_fields)]
pub struct LoadRequest {
    /// `SWITCH/TENANT/SERVICE/BACKEND`.
    pub backend: String,
    /// Its 1-minute load average, in thousandths.
    pub load_milli: u64,
}

/// The answer to it.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct LoadReply {
    /// 1.
    pub version: u32,
}
