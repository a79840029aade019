//! What a test says that cannot run where it is. Tests of other crates have this file too, by
//! `#[path]`, so that there is one way to be skipped, and continuous integration refuses it.

use std::fmt::Display;
use std::io::{self, Write as _};

/// Set to anything, it makes a test that cannot run fail instead of being skipped.
const REQUIRE: &str = "LEVADA_REQUIRE_NAMESPACES";

/// Says on standard error that `test`, or a part of it, is skipped, and why.
///
/// # Panics
///
/// Where tests are required to run.
pub fn skipped(test: &str, why: impl Display) {
    assert!(std::env::var_os(REQUIRE).is_none(), "{test} cannot run, and {REQUIRE} is set: {why}");
    // Not eprintln, which the test harness would hide.
    writeln!(io::stderr(), "SKIPPED {test}: {why}").expect("standard error can be written");
}
