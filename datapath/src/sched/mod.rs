//! Scheduling: which queue may send next, as `design/scheduling.md` promises it.

pub mod order;
