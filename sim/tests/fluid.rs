//! The fluid model in Rust and the one in Python, written apart, against each other on random
//! problems.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

#[path = "../../ports/src/skipped.rs"]
mod skipped;

use sim::fluid::{Claim, Tenant, solve};
use sim::random::Random;
use skipped::skipped;

const SEED: u64 = 20;
const PROBLEMS: usize = 1000;

#[test]
fn shares_worked_by_hand() {
    let one = |guarantee, limit, weight, demand| Tenant {
        claim: Claim { guarantee, limit, weight, demand },
        endpoints: vec![Claim::default()],
    };
    let free = f64::INFINITY;
    let rates = |tenants: &[Tenant]| solve(1000.0, tenants).iter().map(|share| share.rate).collect::<Vec<_>>();
    assert_eq!(
        rates(&[one(0.0, free, 1.0, 100.0), one(0.0, free, 1.0, free), one(0.0, free, 2.0, free)]),
        [100.0, 300.0, 600.0]
    );
    assert_eq!(rates(&[one(600.0, free, 1.0, free), one(0.0, free, 1.0, free)]), [800.0, 200.0]);
    assert_eq!(rates(&[one(600.0, 700.0, 1.0, free), one(0.0, free, 1.0, free)]), [700.0, 300.0]);
    assert_eq!(rates(&[one(1500.0, free, 1.0, free), one(500.0, free, 1.0, free)]), [750.0, 250.0]);
}

#[test]
fn both_solvers_agree() {
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
        skipped("both_solvers_agree", "python3 is not installed, so lab/fluid.py cannot be asked");
        return;
    }
    let mut random = Random::new(SEED);
    let problems: Vec<(f64, Vec<Tenant>)> = (0..PROBLEMS).map(|_| problem(&mut random)).collect();
    let texts: Vec<String> = problems.iter().map(|(capacity, tenants)| as_json(*capacity, tenants)).collect();
    let answers = ask_python(&lab, &texts.join("\n"));
    assert_eq!(answers.lines().count(), PROBLEMS);
    for (((capacity, tenants), text), answer) in problems.iter().zip(&texts).zip(answers.lines()) {
        let shares = solve(*capacity, tenants).into_iter();
        let ours: Vec<f64> = shares.flat_map(|share| [vec![share.rate], share.endpoints].concat()).collect();
        let theirs = rates_in(answer);
        assert_eq!(ours.len(), theirs.len(), "seed {SEED}: {text}\n{answer}");
        for (a, b) in ours.iter().zip(&theirs) {
            assert!((a - b).abs() <= 1e-6 * capacity, "seed {SEED}: {a} and {b} in\n{text}\n{answer}");
        }
    }
}

/// Rates are whole numbers, so that both read the same.
fn problem(random: &mut Random) -> (f64, Vec<Tenant>) {
    let claim = |random: &mut Random, most_guaranteed: u64| {
        let some = |random: &mut Random, chance_ppm: u32, low: u64, high: u64, otherwise: f64| {
            if random.happens_ppm(chance_ppm) { random.range(low, high) as f64 } else { otherwise }
        };
        let guarantee = some(random, 500_000, 0, most_guaranteed, 0.0);
        let limit = some(random, 300_000, guarantee as u64, 1200, f64::INFINITY);
        let weight = random.range(1, 1000) as f64;
        let demand = some(random, 400_000, 0, 900, f64::INFINITY);
        Claim { guarantee, limit, weight, demand }
    };
    let tenants = (0..random.range(1, 6)).map(|_| {
        let endpoints: Vec<Claim> = (0..random.range(1, 5)).map(|_| claim(random, 120)).collect();
        let sum: f64 = endpoints.iter().map(|claim| claim.guarantee).sum();
        let own = claim(random, 500);
        Tenant { claim: Claim { guarantee: own.guarantee.max(sum), ..own }, endpoints }
    });
    let tenants = tenants.collect();
    (random.range(300, 2000) as f64, tenants)
}

fn as_json(capacity: f64, tenants: &[Tenant]) -> String {
    let fields = |claim: &Claim| {
        let mut text = format!("\"weight\": {}, \"guarantee\": {}", claim.weight, claim.guarantee);
        for (name, rate) in [("limit", claim.limit), ("demand", claim.demand)] {
            if rate.is_finite() {
                write!(text, ", \"{name}\": {rate}").unwrap();
            }
        }
        text
    };
    let tenant = |tenant: &Tenant| {
        let endpoints: Vec<String> = tenant.endpoints.iter().map(|claim| format!("{{{}}}", fields(claim))).collect();
        format!("{{{}, \"endpoints\": [{}]}}", fields(&tenant.claim), endpoints.join(", "))
    };
    let tenants: Vec<String> = tenants.iter().map(tenant).collect();
    format!("{{\"capacity\": {capacity}, \"tenants\": [{}]}}", tenants.join(", "))
}

/// One problem a line in, one solution a line out.
fn ask_python(lab: &Path, problems: &str) -> String {
    const PROGRAM: &str = "import sys\nfrom lab import fluid\n\
        for line in sys.stdin: print(fluid.render(fluid.solve(*fluid.parse(line))))";
    let mut child = Command::new("python3")
        .args(["-c", PROGRAM])
        .current_dir(lab)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let mut stdin = child.stdin.take().expect("piped");
    let text = problems.to_string();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).expect("it reads"));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("the problems were written");
    assert!(output.status.success(), "lab.fluid refused one of\n{problems}");
    String::from_utf8(output.stdout).expect("JSON is UTF-8")
}

/// The numbers behind every `"rate":`, in order.
fn rates_in(json: &str) -> Vec<f64> {
    let after = json.split("\"rate\": ").skip(1);
    after.map(|rest| rest[..rest.find([',', '}']).expect("more follows")].parse().expect("a number")).collect()
}
