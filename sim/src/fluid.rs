//! The ideal: who gets what of a link if frames were a fluid.
//!
//! What SPECIFICATION.md promises, written a second time in floating point, so that tests can ask
//! for it thousands of times; `lab/fluid.py`, in exact fractions, judges it. At both levels a child
//! has a floor (its guarantee, as far as it wants it), a ceiling (its demand, as far as its limit
//! lets it) and a weight; all rise together from their floors by weight until the link is full or
//! everyone is at the ceiling. Rates are in any one unit; unlimited is infinity.

/// An endpoint, or a tenant beside its endpoints.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Claim {
    /// At least.
    pub guarantee: f64,
    /// At most.
    pub limit: f64,
    /// Share of the rest.
    pub weight: f64,
    /// What it would send.
    pub demand: f64,
}

impl Default for Claim {
    /// Everything, by a weight of one.
    fn default() -> Self {
        Claim { guarantee: 0.0, limit: f64::INFINITY, weight: 1.0, demand: f64::INFINITY }
    }
}

/// A tenant's claim and its endpoints'. The tenant's guarantee counts where it is more than the sum
/// of theirs.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Tenant {
    /// Its own.
    pub claim: Claim,
    /// Its endpoints'.
    pub endpoints: Vec<Claim>,
}

/// What a tenant and its endpoints get.
#[derive(Clone, PartialEq, Debug)]
pub struct Shares {
    /// The tenant's rate.
    pub rate: f64,
    /// Each endpoint's.
    pub endpoints: Vec<f64>,
}

/// The ideal shares of a link, in the order of `tenants`.
#[must_use]
pub fn solve(capacity: f64, tenants: &[Tenant]) -> Vec<Shares> {
    let promised: f64 = tenants.iter().map(Tenant::guarantee).sum();
    let shrink = if promised > capacity { capacity / promised } else { 1.0 };
    let rates = fill(capacity, &tenants.iter().map(|tenant| tenant.level(shrink)).collect::<Vec<_>>());
    let shares = tenants.iter().zip(rates).map(|(tenant, rate)| {
        let levels: Vec<Level> = tenant.endpoints.iter().map(|claim| claim.level(shrink)).collect();
        Shares { rate, endpoints: fill(rate, &levels) }
    });
    shares.collect()
}

/// A child, reduced to what the filling needs.
#[derive(Clone, Copy, Debug)]
struct Level {
    floor: f64,
    ceiling: f64,
    weight: f64,
}

impl Claim {
    fn level(&self, shrink: f64) -> Level {
        let ceiling = self.demand.min(self.limit);
        Level { floor: (self.guarantee * shrink).min(ceiling), ceiling, weight: self.weight }
    }
}

impl Tenant {
    fn guarantee(&self) -> f64 {
        self.claim.guarantee.max(self.endpoints.iter().map(|claim| claim.guarantee).sum())
    }

    fn level(&self, shrink: f64) -> Level {
        let wanted: f64 = self.endpoints.iter().map(|claim| claim.demand.min(claim.limit)).sum();
        let claim = Claim { guarantee: self.guarantee(), demand: wanted.min(self.claim.demand), ..self.claim };
        claim.level(shrink)
    }
}

/// Raises all water levels together until `total` is poured or all are at their ceiling.
fn fill(total: f64, children: &[Level]) -> Vec<f64> {
    let floors: f64 = children.iter().map(|child| child.floor).sum();
    if floors > total {
        return children.iter().map(|child| child.floor * total / floors).collect();
    }
    let mut order: Vec<usize> = (0..children.len()).collect();
    let full_at = |child: &Level| (child.ceiling - child.floor) / child.weight;
    order.sort_by(|&a, &b| full_at(&children[a]).total_cmp(&full_at(&children[b])));
    let mut rates: Vec<f64> = children.iter().map(|child| child.floor).collect();
    let mut left = total - floors;
    let mut weight: f64 = children.iter().map(|child| child.weight).sum();
    for index in order {
        let child = &children[index];
        let share = (left * child.weight / weight).min(child.ceiling - child.floor);
        rates[index] += share;
        left -= share;
        weight -= child.weight;
    }
    rates
}
