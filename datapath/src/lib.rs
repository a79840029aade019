#![forbid(unsafe_code)]
//! The switch.
