//! Keys and certificates of a cluster: its authority, and what each host proves itself with.

pub mod authority;
pub mod credentials;
