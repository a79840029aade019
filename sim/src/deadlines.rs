//! Deadlines: when each component is to be called, and which is the first.
//!
//! A binary tree of minima: each inner node has the earlier of its two children. Nothing is left
//! behind where a deadline changes, as would be in a heap.

use datapath::units::Instant;

/// None is due at this time.
const NEVER: u64 = u64::MAX;

/// See the module.
#[derive(Clone, Debug)]
pub struct Deadlines {
    /// The root at 1, the children of `n` at `2 n` and `2 n + 1`, the leaves in the second half.
    earliest: Vec<u64>,
}

impl Deadlines {
    /// So many components without a deadline.
    #[must_use]
    pub fn new(components: usize) -> Deadlines {
        Deadlines { earliest: vec![NEVER; 2 * components.next_power_of_two()] }
    }

    /// Gives a component a deadline in place of the one that it had, or takes it away.
    pub fn set(&mut self, component: usize, at: Option<Instant>) {
        let mut node = self.earliest.len() / 2 + component;
        let mut earliest = at.map_or(NEVER, |at| at.0);
        while self.earliest[node] != earliest {
            self.earliest[node] = earliest;
            if node == 1 {
                return;
            }
            earliest = earliest.min(self.earliest[node ^ 1]);
            node /= 2;
        }
    }

    /// The first deadline, and who has it: of several the one with the smallest number.
    #[must_use]
    pub fn first(&self) -> Option<(Instant, usize)> {
        let first = self.earliest[1];
        if first == NEVER {
            return None;
        }
        let leaves = self.earliest.len() / 2;
        let mut node = 1;
        while node < leaves {
            node = if self.earliest[2 * node] == first { 2 * node } else { 2 * node + 1 };
        }
        Some((Instant(first), node - leaves))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn the_first_is_the_earliest_and_then_the_smallest() {
        let mut random = Random::new(1);
        for components in [1, 2, 3, 7, 64] {
            let mut deadlines = Deadlines::new(components);
            let mut model = vec![None; components];
            for _ in 0..1_000 {
                let component = random.range(0, components as u64 - 1) as usize;
                let at = (random.range(0, 3) > 0).then(|| Instant(random.range(0, 19)));
                model[component] = at;
                deadlines.set(component, at);
                let all = model.iter().enumerate();
                let first = all.filter_map(|(component, at)| Some(((*at)?, component))).min();
                assert_eq!(deadlines.first(), first);
            }
        }
    }
}
