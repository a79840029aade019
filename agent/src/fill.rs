//! The fluid model in integers: who gets what of a link. The same as `sim/src/fluid.rs`, which
//! judges it.

/// A child of a level: at least `floor`, at most `ceiling`, and between them by weight. Rates in
/// bits a second, up to 2^40.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Child {
    /// What it has before others share.
    pub floor: u64,
    /// What it can use.
    pub ceiling: u64,
    /// Its part of what is left, by the weights of all.
    pub weight: u64,
}

/// Fractional bits of [`Water`]: rates have 39 bits at most, so this is what fits.
const FRACTION: u32 = 20;

/// How high the water stands: the rate that each unit of weight has above its floor. `None`: all
/// are at their ceilings and something is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Water(Option<u64>);

impl Water {
    /// All are at their ceilings.
    pub const UNBOUNDED: Water = Water(None);

    /// Whether somebody could use more.
    #[must_use]
    pub fn is_bounded(self) -> bool {
        self.0.is_some()
    }

    /// What one more child of this floor and weight has at this height.
    #[must_use]
    pub fn level(self, floor: u64, weight: u64) -> u64 {
        self.0.map_or(u64::MAX, |height| {
            let above = (u128::from(height) * u128::from(weight)) >> FRACTION;
            floor.saturating_add(u64::try_from(above).unwrap_or(u64::MAX))
        })
    }
}

/// Pours `total` over `children` into `rates`: floors first, then all rise by weight to their
/// ceilings. Floors that do not fit shrink in proportion. `order` is memory that is used again.
pub fn fill(total: u64, children: &[Child], rates: &mut Vec<u64>, order: &mut Vec<(u64, u32)>) -> Water {
    rates.clear();
    let floors: u64 = children.iter().map(|child| child.floor).sum();
    if floors > total {
        let part = |child: &Child| (u128::from(child.floor) * u128::from(total) / u128::from(floors)) as u64;
        rates.extend(children.iter().map(part));
        return Water(Some(0));
    }
    // All want any amount, and have nothing of their own: the rule among senders that are limited.
    if !children.is_empty() && children.iter().all(|child| *child == Child { floor: 0, ceiling: u64::MAX, weight: 1 }) {
        let water = Water(Some(per(total, children.len() as u64)));
        rates.resize(children.len(), water.level(0, 1));
        return water;
    }
    let mut left = total - floors;
    let most = left + 1;
    let room = |child: &Child| child.ceiling.saturating_sub(child.floor).min(most);
    let wanted: u64 = children.iter().map(room).sum();
    if wanted <= left {
        rates.extend(children.iter().map(|child| child.floor + room(child)));
        return Water::UNBOUNDED;
    }
    order.clear();
    let full_at = |child: &Child| per(room(child), child.weight.max(1));
    order.extend(children.iter().enumerate().map(|(index, child)| (full_at(child), index as u32)));
    order.sort_unstable();
    rates.extend(children.iter().map(|child| child.floor));
    let mut weight: u64 = children.iter().map(|child| child.weight.max(1)).sum();
    let mut height = 0;
    for &(full_at, index) in order.iter() {
        let child = &children[index as usize];
        height = per(left, weight);
        if full_at > height {
            break;
        }
        rates[index as usize] = child.floor + room(child);
        left -= room(child);
        weight -= child.weight.max(1);
    }
    // Who is not full stands at the water.
    for &(full_at, index) in order.iter().rev() {
        if full_at <= height {
            break;
        }
        let child = &children[index as usize];
        rates[index as usize] = Water(Some(height)).level(child.floor, child.weight.max(1));
    }
    Water(Some(height))
}

/// The height to which so much fills so many units of weight.
fn per(rate: u64, weight: u64) -> u64 {
    match rate.checked_mul(1 << FRACTION) {
        Some(scaled) if weight == 1 => scaled,
        Some(scaled) => scaled / weight,
        None => u64::try_from((u128::from(rate) << FRACTION) / u128::from(weight)).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poured(total: u64, children: &[(u64, u64, u64)]) -> (Vec<u64>, Water) {
        let children: Vec<Child> =
            children.iter().map(|&(floor, ceiling, weight)| Child { floor, ceiling, weight }).collect();
        let (mut rates, mut order) = (Vec::new(), Vec::new());
        let water = fill(total, &children, &mut rates, &mut order);
        (rates, water)
    }

    #[test]
    fn floors_come_first_then_weights_and_nothing_above_a_ceiling() {
        assert_eq!(poured(100, &[(60, 1000, 1), (0, 1000, 3)]), (vec![70, 30], Water(Some(10 << FRACTION))));
        assert_eq!(poured(100, &[(0, 5, 1), (0, u64::MAX, 1), (0, u64::MAX, 1)]).0, [5, 47, 47]);
        assert_eq!(poured(100, &[(10, 20, 1), (10, 30, 1)]), (vec![20, 30], Water::UNBOUNDED));
        assert_eq!(poured(100, &[(150, 150, 1), (50, 60, 1)]).0, [75, 25], "in proportion where promises do not fit");
    }

    #[test]
    fn who_takes_all_that_there_is_stands_at_the_water() {
        let (rates, water) = poured(100, &[(0, u64::MAX, 1)]);
        assert_eq!(rates, [100]);
        assert!(water.is_bounded());
        assert_eq!(water.level(7, 2), 207);
        assert_eq!(poured(100, &[(100, 100, 1)]).1, Water::UNBOUNDED, "nothing more is wanted");
        assert_eq!(poured(0, &[]).0, [0; 0]);
    }
}
