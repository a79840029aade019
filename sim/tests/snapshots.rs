//! The scenarios' tables, as committed under `sim/snapshots`. A difference is a change of
//! behaviour: to be reviewed, then committed with `make golden`, or here alone with
//! `LEVADA_REGENERATE=1 cargo test -p sim --test snapshots`.

use std::path::PathBuf;

use sim::scenario::{ALL, Options, Scenario};

const SEED: u64 = 1;

/// By scenario, the claims that do not hold, in their order. No command writes this list: a claim
/// that breaks, or holds again, is told also where the tables are regenerated.
const NOT_HELD: [(&str, &[&str]); 6] = [
    (
        "bonding-faults",
        &[
            "silent, too short to notice: lost",
            "silent, two at a time: lost",
            "silent, two at a time: longest gap",
            "silent, two at a time: out of order",
        ],
    ),
    (
        "lb-hold",
        &["100 MB, 10/s: waits longer than httperf's time-out", "100 MB, 100/s: waits longer than httperf's time-out"],
    ),
    (
        "lb-mixed",
        &[
            "random, exponential, 3 servers, 95 %: off theory",
            "round-robin, exponential, 10 servers, 95 %: off theory",
            "random, SCV 10, 2 servers, 90 %: off theory",
            "random, SCV 10, 2 servers, 95 %: off theory",
            "random, SCV 10, 10 servers, 90 %: off theory",
        ],
    ),
    ("lb-published", &["least-inflight: mean with 10 s for each refused, worst row"]),
    ("vcc-incast", &["256 senders, dctcp, held: retransmissions", "256 senders, dctcp, held: link used, low end"]),
    (
        "vcc-unfair",
        &[
            "red1, cubic, 1 of 10: share, low end",
            "red1, cubic, 1 of 10: least of the ten, low end",
            "red1, cubic, 1 of 10: most of the ten, high end",
            "red1, cubic, 5 of 10: least of the ten, low end",
            "red1, cubic, 5 of 10: most of the ten, high end",
            "red1, cubic, 5 of 10: Jain, low end",
            "red1, cubic, 5 of 10: natives against natives alone, low end",
            "red1, cubic, 9 of 10: least of the ten, low end",
            "red1, cubic, 9 of 10: most of the ten, high end",
            "red1, cubic, 9 of 10: natives against natives alone, low end",
            "red2, cubic, 1 of 10: share, low end",
            "red2, cubic, 1 of 10: least of the ten, low end",
            "red2, cubic, 1 of 10: most of the ten, high end",
            "red2, cubic, 1 of 10: Jain, low end",
            "red2, cubic, 1 of 10: natives against natives alone, low end",
            "red2, cubic, 5 of 10: least of the ten, low end",
            "red2, cubic, 5 of 10: most of the ten, high end",
            "red2, cubic, 5 of 10: natives against natives alone, low end",
            "red2, cubic, 9 of 10: least of the ten, low end",
            "red2, cubic, 9 of 10: most of the ten, high end",
            "red2, cubic, 9 of 10: natives against natives alone, low end",
            "auto, cubic, 9 of 10: most of the ten, high end",
            "red1, newreno, 1 of 10: share, high end",
            "red1, newreno, 1 of 10: least of the ten, low end",
            "red1, newreno, 1 of 10: most of the ten, high end",
            "red1, newreno, 1 of 10: natives against natives alone, low end",
            "red1, newreno, 5 of 10: share, high end",
            "red1, newreno, 5 of 10: least of the ten, low end",
            "red1, newreno, 5 of 10: most of the ten, high end",
            "red1, newreno, 5 of 10: natives against natives alone, low end",
            "red1, newreno, 9 of 10: least of the ten, low end",
            "red1, newreno, 9 of 10: most of the ten, high end",
            "red1, newreno, 9 of 10: natives against natives alone, low end",
        ],
    ),
];

fn check(name: &str) {
    let scenario: &Scenario = ALL.iter().find(|scenario| scenario.name == name).expect("a scenario of this name");
    let options = Options { seed: SEED, seconds: scenario.seconds, tells: false };
    let table = (scenario.run)(&options).unwrap_or_else(|violation| panic!("{name}: {violation}"));
    let text = table.text(scenario, &options);
    let broken: Vec<&str> = table.claims.iter().filter(|claim| !claim.holds()).map(|claim| claim.id.as_str()).collect();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("snapshots").join(format!("{name}.txt"));
    if std::env::var_os("LEVADA_REGENERATE").is_some() {
        std::fs::write(&path, &text).expect("the snapshot can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let differ =
        |(i, (old, new)): (usize, (&str, &str))| (old != new).then(|| format!("line {}:\n- {old}\n+ {new}", i + 1));
    let lines = committed.lines().chain(std::iter::repeat("")).zip(text.lines()).enumerate();
    let changes: Vec<String> = lines.filter_map(differ).collect();
    assert!(
        committed == text,
        "{name} no longer prints what is committed in {}:\n{}\nIf that is meant: `make golden`, and review the diff.",
        path.display(),
        changes.join("\n")
    );
    let known = NOT_HELD.iter().find(|(scenario, _)| *scenario == name).map_or(&[][..], |(_, claims)| claims);
    assert_eq!(broken, known, "{name}: the claims that do not hold are others than those that are known not to");
}

#[test]
fn every_scenario_that_repeats_has_a_test_here() {
    let here = [
        "throughput",
        "fairness",
        "isolation",
        "sizes",
        "weights",
        "fs-vde",
        "convergence",
        "fig5",
        "faults",
        "own-traffic",
        "queue-size",
        "scale",
        "attacks",
        "turns",
        "frame-rates",
        "lb-mixed",
        "vcc-unfair",
        "vcc-incast",
        "vcc-cheat",
        "lb-churn",
        "lacp",
        "bonding",
        "bonding-faults",
        "lb-herd",
        "lb-hold",
        "lb-refused",
        "lb-published",
    ];
    let all: Vec<&str> = ALL.iter().filter(|scenario| scenario.repeats).map(|scenario| scenario.name).collect();
    assert_eq!(all, here);
    assert!(NOT_HELD.iter().all(|(name, _)| here.contains(name)));
}

#[test]
fn throughput() {
    check("throughput");
}

#[test]
fn fairness() {
    check("fairness");
}

#[test]
fn isolation() {
    check("isolation");
}

#[test]
fn sizes() {
    check("sizes");
}

#[test]
fn weights() {
    check("weights");
}

#[test]
fn fs_vde() {
    check("fs-vde");
}

#[test]
fn convergence() {
    check("convergence");
}

#[test]
fn fig5() {
    check("fig5");
}

#[test]
fn faults() {
    check("faults");
}

#[test]
fn own_traffic() {
    check("own-traffic");
}

#[test]
fn queue_size() {
    check("queue-size");
}

#[test]
fn scale() {
    check("scale");
}

#[test]
fn attacks() {
    check("attacks");
}

#[test]
fn frame_rates() {
    check("frame-rates");
}

#[test]
fn turns() {
    check("turns");
}

#[test]
fn lb_mixed() {
    check("lb-mixed");
}

#[test]
fn vcc_unfair() {
    check("vcc-unfair");
}

#[test]
fn vcc_incast() {
    check("vcc-incast");
}

#[test]
fn vcc_cheat() {
    check("vcc-cheat");
}

#[test]
fn lb_churn() {
    check("lb-churn");
}

#[test]
fn lacp() {
    check("lacp");
}

#[test]
fn bonding() {
    check("bonding");
}

#[test]
fn bonding_faults() {
    check("bonding-faults");
}

#[test]
fn lb_herd() {
    check("lb-herd");
}

#[test]
fn lb_hold() {
    check("lb-hold");
}

#[test]
fn lb_refused() {
    check("lb-refused");
}

#[test]
fn lb_published() {
    check("lb-published");
}
