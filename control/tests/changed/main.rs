//! A switch that was changed does what one does that was started with its new configuration.
//!
//! A chain of configurations is played as a daemon plays it: actions, a plan that keeps the numbers
//! of who stays, and steps of the program, with frames before, between and behind them. Then the
//! same frames go through the changed switch and two new ones: one of the same plan, of which all
//! is equal, and one of a plan made without the ones before, which is equal by names.
//!
//! Some is meant to outlast a change: counters, learned addresses, connections. So either all of it
//! ages before the comparison, or frames have other addresses and ports from then on: what lives
//! shorter than addresses do shows only there.

mod rig;
mod spec;

use control::action::{apply, between};
use datapath::program::PortId;
use datapath::units::Instant;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use rig::{BEHIND, Rig, Sent, UPLINK, sent};
use spec::{Edit, Endpoint, Knobs, Spec, Tenant, edit};

const SECOND: u64 = 1_000_000_000;
/// Longer than what is learned lives.
const AGED: u64 = 400 * SECOND;
/// Shorter than that; but nothing else is owed any more: at 1 kbit/s an answer of one of two
/// services to outside takes 135 s of its budget.
const BRIEF: u64 = 250 * SECOND;
/// Until limits are free again, and one frame is over at 1 kbit/s.
const CALM: u64 = 20 * SECOND;

/// Frames, and then another configuration, all of whose steps come at once or with others' frames
/// in between.
#[derive(Clone, Debug, Default)]
struct Commit {
    sent: Vec<Sent>,
    edits: Vec<Edit>,
    meanwhile: bool,
}

#[derive(Clone, Debug, Default)]
struct Case {
    first: Vec<Edit>,
    commits: Vec<Commit>,
    probes: Vec<Sent>,
    /// What was learned ages before the comparison.
    aged: bool,
    /// Frames may have addresses of before: nothing of these is to be known.
    loose: bool,
}

fn play(case: &Case) -> Result<(), TestCaseError> {
    let mut spec = Spec::default();
    case.first.iter().for_each(|edit| spec.edit(edit));
    let mut config = spec.config()?;
    let mut changed = Rig::new(control::compile(&config, None), Instant(SECOND))?;
    let mut n = 0;
    for commit in &case.commits {
        for &sent in &commit.sent {
            n += 1;
            changed.send(sent, case.loose, n);
        }
        commit.edits.iter().for_each(|edit| spec.edit(edit));
        let made = apply(&config, &between(&config, &spec.config()?));
        config = made.map_err(|problems| TestCaseError::fail(format!("{problems:?}")))?.config;
        let plan = control::compile(&config, Some(&changed.plan));
        changed.follow(plan, commit.meanwhile)?;
    }
    changed.rest(if case.aged { AGED } else { BRIEF })?;
    let mut same = Rig::new(changed.plan.clone(), changed.now)?;
    let mut named = Rig::new(control::compile(&spec.config()?, None), changed.now)?;
    prop_assert_eq!(changed.shares(), same.shares());
    let before = changed.drops();
    let mut is_calm = true;
    for &sent in &case.probes {
        n += 1;
        let locator = sent.locator();
        let Some(port) = changed.port(&locator) else { continue };
        let frame = sent.build(changed.switch.program(), port, (BEHIND, case.loose), n);
        let mut results = Vec::new();
        for rig in [&mut changed, &mut same, &mut named] {
            let port = rig.port(&locator);
            prop_assert!(port.is_some(), "{} is nowhere", locator);
            let (explained, verdict) = rig.rx(port.unwrap_or(PortId(0)), &frame);
            let mut out = rig.run(None);
            out.sort_unstable();
            results.push((explained, verdict, out));
        }
        let shown = format!("{frame:?} at {locator}\n{}\n{}", results[0].0, results[1].0);
        prop_assert_eq!((results[0].1, &results[0].2), (results[1].1, &results[1].2), "{}", shown);
        prop_assert_eq!((results[0].1, &results[0].2), (results[2].1, &results[2].2), "by names: {}", shown);
        if is_calm {
            prop_assert_eq!(&results[0].0, &results[1].0, "{}", shown);
        }
        is_calm = sent.pause > 0;
        let now = changed.now.max(same.now).max(named.now).plus_ns(if is_calm { CALM } else { 0 });
        for rig in [&mut changed, &mut same, &mut named] {
            rig.now = now;
        }
    }
    let lost: Vec<u64> = changed.drops().iter().zip(&before).map(|(after, before)| after - before).collect();
    prop_assert_eq!(lost, same.drops(), "what was lost since");
    [&mut changed, &mut same, &mut named].into_iter().try_for_each(|rig| rig.rest(0))
}

fn commit() -> impl Strategy<Value = Commit> {
    (prop::collection::vec(sent(), 0..20), prop::collection::vec(edit(), 1..6), any::<bool>())
        .prop_map(|(sent, edits, meanwhile)| Commit { sent, edits, meanwhile })
}

fn case() -> impl Strategy<Value = Case> {
    let first = prop::collection::vec(edit(), 5..25);
    let probes = prop::collection::vec(sent(), 5..30);
    (first, prop::collection::vec(commit(), 1..5), probes, any::<bool>()).prop_map(
        |(mut first, commits, probes, aged)| {
            first.insert(0, Edit::Uplink(Some(3)));
            Case { first, commits, probes, aged, loose: aged }
        },
    )
}

/// `PROPTEST_CASES` says how many; they are the same ones each time.
#[test]
fn a_changed_switch_does_what_one_started_so_does() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(100);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    if let Err(error) = runner.run(&case(), |case| play(&case)) {
        panic!("{error}");
    }
}

/// An endpoint of this tenant, at the port and with the address of its number.
fn at(number: u8, tenant: u8) -> Endpoint {
    let knobs = Knobs { weight: 1, ..Knobs::default() };
    Endpoint { tenant, port: number, mac: Some(number), has_ip: true, knobs, ..Endpoint::default() }
}

fn attached(attachment: u8) -> Option<Tenant> {
    Some(Tenant { attachment, weight: 1, ..Tenant::default() })
}

#[test]
fn memory_is_divided_anew_where_an_endpoint_comes_with_another_uplink() {
    let promised = Endpoint { knobs: Knobs { guaranteed: true, ..at(1, 1).knobs }, ..at(1, 1) };
    let case = Case {
        first: vec![
            Edit::Uplink(Some(3)),
            Edit::Tenant(0, attached(1)),
            Edit::Tenant(1, attached(2)),
            Edit::Endpoint(0, Some(at(0, 0))),
            Edit::Endpoint(1, Some(promised)),
        ],
        commits: vec![Commit {
            edits: vec![Edit::Uplink(Some(2)), Edit::Endpoint(2, Some(at(2, 0)))],
            ..Commit::default()
        }],
        ..Case::default()
    };
    play(&case).expect("as a new one");
}

#[test]
fn who_was_outside_of_the_old_vlan_may_be_inside_of_the_new_one() {
    let learns = Endpoint { mac: None, ..at(0, 0) };
    let heard = Sent { from: UPLINK, to: 5, tag: 1, pause: 1, ..Sent::default() };
    let case = Case {
        first: vec![Edit::Uplink(Some(3)), Edit::Tenant(0, attached(1)), Edit::Endpoint(0, Some(learns))],
        commits: vec![Commit { sent: vec![heard], edits: vec![Edit::Attach(0, 2)], meanwhile: false }],
        probes: vec![Sent { from: 0, to: 6, source: 3, ..Sent::default() }],
        loose: true,
        ..Case::default()
    };
    play(&case).expect("as a new one");
}

#[test]
fn nothing_is_queued_for_a_limit_that_was_lifted() {
    let slow = Endpoint { knobs: Knobs { limit: 1, ..at(0, 0).knobs }, ..at(0, 0) };
    let to_neighbour = Sent { from: 0, to: 1, kind: 1, ..Sent::default() };
    let case = Case {
        first: vec![Edit::Tenant(0, attached(0)), Edit::Endpoint(0, Some(slow)), Edit::Endpoint(1, Some(at(1, 0)))],
        commits: vec![Commit {
            sent: vec![to_neighbour; 40],
            edits: vec![Edit::Knobs(0, at(0, 0).knobs)],
            meanwhile: true,
        }],
        probes: vec![to_neighbour],
        ..Case::default()
    };
    play(&case).expect("as a new one");
}
