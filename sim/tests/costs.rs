//! The instructions that `sim/src/costs.rs` takes an operation to have, counted again.

use std::process::Command;

#[path = "../../ports/src/skipped.rs"]
mod skipped;

use sim::costs::{COPY_INSTRUCTIONS, CUT_BYTE_MILLI, CUT_INSTRUCTIONS, FORWARD_INSTRUCTIONS};
use skipped::skipped;

/// Operations of the two runs, the difference of which counts.
const OPERATIONS: [u64; 2] = [4_000, 44_000];
/// What the table may be wrong by, in percent.
const WRONG: f64 = 20.0;

/// Instructions of one operation; none where callgrind is not there.
fn instructions(kind: &str) -> Option<f64> {
    let count = |operations: u64| {
        let valgrind = ["--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-fd=1"];
        let mut command = Command::new("valgrind");
        command.args(valgrind).arg(env!("CARGO_BIN_EXE_levada-sim")).args(["work", kind, &operations.to_string()]);
        let told = String::from_utf8(command.output().ok()?.stdout).unwrap();
        let after = |word: &str| told.split(word).nth(1).and_then(|rest| rest.split_whitespace().next());
        let done = told.split(" operations").next().and_then(|text| text.split_whitespace().last());
        let number = |text: Option<&str>| text.and_then(|text| text.parse::<f64>().ok()).expect("a count");
        Some((number(done), number(after("Collected : "))))
    };
    let [few, many] = [count(OPERATIONS[0])?, count(OPERATIONS[1])?];
    Some((many.1 - few.1) / (many.0 - few.0))
}

#[test]
#[cfg_attr(debug_assertions, ignore = "instructions mean something with optimisation only")]
fn the_table_has_the_instructions_that_callgrind_counts() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        skipped("the_table_has_the_instructions_that_callgrind_counts", "there is no valgrind");
        return;
    }
    let cut = |bytes: u64| (CUT_INSTRUCTIONS * 1000 + CUT_BYTE_MILLI * bytes) as f64 / 1000.0;
    let believed = [
        ("forward", FORWARD_INSTRUCTIONS as f64),
        ("cut-32", cut(98)),
        ("cut-1400", cut(1466)),
        ("copy", COPY_INSTRUCTIONS as f64),
    ];
    for (kind, believed) in believed {
        let counted = instructions(kind).expect("callgrind runs");
        println!("{kind}: {counted:.0} counted, {believed:.0} in the table");
        let wrong = (believed / counted - 1.0).abs() * 100.0;
        assert!(wrong <= WRONG, "{kind}: {counted:.0} instructions, where the table has {believed:.0}");
    }
}
