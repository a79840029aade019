//! The tables: which endpoint has which address. `GET /v1/tables`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /v1/tables`.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct TablesReply {
    /// 1.
    pub version: u32,
    /// By tenant.
    pub tenants: Vec<TenantTable>,
}

/// The addresses of one tenant's endpoints.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Default)]
pub struct TenantTable {
    /// `SWITCH/TENANT`.
    pub path: String,
    /// Addresses that its endpoints have declared.
    pub declared: u64,
    /// Addresses that were learned behind them, those included that are yet to be forgotten.
    pub learned: u64,
    /// The addresses: at most 4096, and of those learned at most the last 256 of each endpoint.
    pub addresses: Vec<Address>,
}

/// One address.
#[derive(Serialize, Deserialize, JsonSchema, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub mac: String,
    /// VLAN, where it was learned behind a trunk with a tag.
    pub vlan: Option<u16>,
    /// Name of the endpoint that has it.
    pub endpoint: String,
    /// Whether it is declared; else it was learned.
    pub declared: bool,
    /// How long ago it was last seen; `null` where it is declared.
    pub seen_ns: Option<u64>,
    /// In how long it is forgotten unless it is seen again; `null` where it is declared.
    pub left_ns: Option<u64>,
}
