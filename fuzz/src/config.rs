//! Any text as a configuration: no panic, every problem can be shown, and what is found good can be
//! run.

use control::config::Config;
use control::plan::{Plan, PortKind};
use control::problem::Severity;
use control::scale::scale;
use datapath::program::{Change, Program};
use datapath::units::{Both, Direction, Rate};

/// `data` is a file.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let checked = control::load(text);
    for problem in &checked.problems {
        let shown = problem.render("fuzz.toml", text);
        assert!(shown.contains(&problem.message));
        assert!(problem.span.as_ref().is_none_or(|span| span.start <= text.len()));
    }
    let errors = checked.problems.iter().any(|p| p.severity == Severity::Error);
    assert_eq!(checked.plan.is_none(), errors);
    if let Some(plan) = &checked.plan {
        runnable(&checked.config, plan);
    }
}

/// Every number in a plan points at something, and its promises fit.
fn runnable(config: &Config, plan: &Plan) {
    assert!(plan.pool.small > 0 && plan.pool.large > 0);
    assert_eq!(config.switches.len(), plan.switches.len());
    let mut ends = vec![0; plan.links.len()];
    for switch in plan.switches.values() {
        let program = &switch.program;
        assert_eq!(program.ports.len(), switch.ports.len());
        assert_eq!(program.tenants.len(), switch.tenants.len());
        assert_eq!(program.endpoints.len(), switch.endpoints.len());
        for endpoint in program.endpoints.values() {
            assert!((endpoint.tenant.0 as usize) < program.tenants.len());
            assert!((endpoint.port.0 as usize) < program.ports.len());
        }
        for port in switch.ports.values() {
            if let PortKind::Link { link, .. } = port.kind {
                ends[link] += 1;
            }
        }
        promises(program);
    }
    assert!(ends.iter().all(|&n| n == 2), "every link has two ends");
}

fn promises(program: &Program) {
    let Some(uplink) = &program.uplink else {
        let promised = program.tenants.values().any(|t| t.share.egress.guarantee.0 + t.share.ingress.guarantee.0 > 0);
        assert!(!promised, "nothing is promised without an uplink");
        return;
    };
    assert!(scale(program, uplink.rate()).is_some_and(|s| s.met()), "what is admitted can be met");
    // At half the rate, what is left of the promises fits.
    let half = |d: Direction| Rate(uplink.rate().get(d).0 / 2);
    let half = Both { egress: half(Direction::Egress), ingress: half(Direction::Ingress) };
    let scaled = scale(program, half).expect("there is an uplink");
    for direction in Direction::ALL {
        let left: u64 = scaled.changes.iter().filter_map(|change| tenant_guarantee(change, direction)).sum();
        assert!(left <= scaled.promise.get(direction).capacity.0);
    }
}

fn tenant_guarantee(change: &Change, direction: Direction) -> Option<u64> {
    match change {
        Change::Tenant(_, Some(tenant)) => Some(tenant.share.get(direction).guarantee.0),
        _ => None,
    }
}
