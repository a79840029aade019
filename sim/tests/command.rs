//! What `levada-sim` says with its exit status.

use std::process::{Command, Output, Stdio};

fn run(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_levada-sim")).args(words).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_claim_that_does_not_hold_is_told_with_the_exit_status() {
    // A second is too short for the first.
    for (scenario, status, told) in [("lb-mixed", 1, "\nDOES NOT HOLD: "), ("lacp", 0, "\nholds: ")] {
        let done = run(&[scenario, "--seconds", "1"]);
        assert!(String::from_utf8_lossy(&done.stdout).contains(told), "{done:?}");
        assert_eq!(done.status.code(), Some(status), "{scenario}");
    }
    assert_eq!(run(&["no-such"]).status.code(), Some(2));
}

#[test]
fn more_pairs_than_there_may_be_are_refused_and_not_made_fewer() {
    let done = run(&["shuffle", "red1", "native", "65", "1"]);
    assert_eq!(done.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&done.stderr), "levada-sim: 65: more pairs than 64\n");
    assert_eq!(run(&["shuffle", "red1", "native", "64", "1"]).status.code(), Some(0));
}
