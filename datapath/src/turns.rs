//! Turns: who uses the worker next, and for how long.
//!
//! At 64 bytes a frame the processor runs out long before the link does, and a scheduler of the
//! link never sees that. So the worker's time is itself shared, as the link is: in a tree. Below
//! its root are what the worker does for itself and all switches, below these each switch, below it
//! its tenants, below these their ports: the leaves, which have frames to be read or copies to be
//! made. Each group divides what it gets by the weights of those below it that have something to
//! do, so a tenant's many ports have its time and nobody else's.
//!
//! What a turn costs is known only afterwards. So it is [charged](Turns::charge) when it has been
//! spent, by who measures or estimates it ([`Cost`]), to the leaf that caused it, ready or not; and
//! who has spent more than its share waits until the others have caught up. That is start-time fair
//! queueing (Goyal, Vin and Cheng 1996; `turns/group.rs`), which needs no lengths beforehand, and
//! where who comes never waits for what others are behind. One that was idle and owes nothing goes
//! before those that are busy, once, and has its place among them then: what sends little, a ping
//! say, does not wait for those that send as much as they can.
//!
//! Call order: [`Turns::wake`] when a leaf has something to do; [`Turns::next_turn`]; do it until
//! the credit is used or nothing is left; [`Turns::charge`] what that cost, and [`Turns::sleep`]
//! where nothing is left.

mod cost;
mod group;

pub use cost::Cost;
use group::Group;

/// How long a turn should be: about one offloaded frame of 64 KiB read and written (design: copies
/// of 10-20 GB/s and a receiver's stack), so that a turn is never less than a frame.
pub const TURN_NS: u64 = 25_000;
/// Most that one charge counts for, in nanoseconds: a clock that jumped is nobody's debt.
const MOST_NS: u64 = 1_000_000_000;
/// No seat.
const NONE: u32 = u32::MAX;

/// A place in the tree: a leaf's, or a group's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Seat(u32);

impl Seat {
    /// Its number: small, and another's when it was [removed](Turns::remove).
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A turn: do what this leaf has to do until that has cost so much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// The leaf.
    pub seat: Seat,
    /// What it may cost, in nanoseconds. More is charged all the same.
    pub credit_ns: u64,
}

/// What a leaf, or all below a group, has had of the worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spent {
    /// Time that it was charged, in nanoseconds.
    pub used_ns: u64,
    /// Time that others used while it had something to do, in nanoseconds.
    pub waited_ns: u64,
}

#[derive(Debug)]
struct Node {
    /// The group it is in; [`NONE`] for the root and for a seat that is nobody's.
    parent: u32,
    /// Its number among the parent's.
    place: u32,
    /// Leaves below it that have something to do; of a leaf 0 or 1.
    ready: u32,
    /// What it was charged and its groups were not yet; of that, what came to it unasked.
    owed_ns: u64,
    unasked_ns: u64,
    spent: Spent,
    /// While it is ready: what all, and what it had used when it became so.
    since: (u64, u64),
    /// Who is below it, unless it is a leaf.
    group: Option<Box<Group>>,
}

/// The tree of those who share a worker's time.
#[derive(Debug)]
pub struct Turns {
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// Seats that owe something to their groups.
    owing: Vec<u32>,
    /// The group whose members send each other what they cannot refuse.
    linked: u32,
    /// All that was ever charged.
    spent_ns: u64,
}

impl Default for Turns {
    fn default() -> Self {
        let root = Node::new(NONE, 0, true);
        Turns { nodes: vec![root], free: Vec::new(), owing: Vec::new(), linked: Turns::ROOT.0, spent_ns: 0 }
    }
}

impl Turns {
    /// The group that all are in.
    pub const ROOT: Seat = Seat(0);

    /// Adds a leaf to a group. Its part of the group's time is its weight (1 to 65535) by the
    /// weights of all there that have something to do.
    pub fn add_leaf(&mut self, group: Seat, weight: u32) -> Seat {
        self.add(group, weight, false)
    }

    /// Adds a group to a group.
    pub fn add_group(&mut self, group: Seat, weight: u32) -> Seat {
        self.add(group, weight, true)
    }

    /// Makes a group, which stays, the one that [`Turns::charge_unasked`] means: the root until
    /// then.
    pub fn set_linked(&mut self, group: Seat) {
        self.linked = group.0;
    }

    /// Gives a leaf or a group another weight.
    pub fn set_weight(&mut self, seat: Seat, weight: u32) {
        let (parent, place) = (self.nodes[seat.index()].parent, self.nodes[seat.index()].place);
        if let Some(group) = self.group(parent) {
            group.set_weight(place, weight);
        }
    }

    /// Takes away a leaf, or a group in which nobody is any more. Somebody else may get its seat.
    pub fn remove(&mut self, seat: Seat) {
        if seat == Turns::ROOT || self.nodes[seat.index()].parent == NONE || self.has_members(seat) {
            return;
        }
        self.settle();
        self.sleep(seat);
        let Node { parent, place, .. } = self.nodes[seat.index()];
        if let Some(group) = self.group(parent) {
            group.remove(place);
        }
        self.nodes[seat.index()] = Node::new(NONE, 0, false);
        self.free.push(seat.0);
    }

    /// Whether anybody is in a group.
    #[must_use]
    pub fn has_members(&self, group: Seat) -> bool {
        self.nodes[group.index()].group.as_ref().is_some_and(|group| !group.is_empty())
    }

    /// A leaf has something to do.
    pub fn wake(&mut self, leaf: Seat) {
        let mut at = leaf.0;
        if self.nodes[leaf.index()].ready > 0 || self.nodes[leaf.index()].parent == NONE {
            return;
        }
        while at != NONE {
            let spent_ns = self.spent_ns;
            let node = &mut self.nodes[at as usize];
            node.ready += 1;
            if node.ready > 1 {
                return;
            }
            node.since = (spent_ns, node.spent.used_ns);
            let (parent, place) = (node.parent, node.place);
            if let Some(group) = self.group(parent) {
                group.wake(place);
            }
            at = parent;
        }
    }

    /// A leaf has nothing to do any more. It keeps its place: what it owes, it owes when it
    /// returns.
    pub fn sleep(&mut self, leaf: Seat) {
        let mut at = leaf.0;
        if self.nodes[leaf.index()].ready == 0 {
            return;
        }
        while at != NONE {
            let spent_ns = self.spent_ns;
            let node = &mut self.nodes[at as usize];
            node.ready -= 1;
            if node.ready > 0 {
                return;
            }
            node.spent.waited_ns += node.waits_ns(spent_ns);
            let (parent, place) = (node.parent, node.place);
            if let Some(group) = self.group(parent) {
                group.sleep(place);
            }
            at = parent;
        }
    }

    /// Whether a leaf has something to do.
    #[must_use]
    pub fn is_ready(&self, leaf: Seat) -> bool {
        self.nodes[leaf.index()].ready > 0
    }

    /// Whether any leaf has something to do.
    #[must_use]
    pub fn any_ready(&self) -> bool {
        self.nodes[0].ready > 0
    }

    /// Whose turn it is; `None` where no leaf has something to do.
    pub fn next_turn(&mut self) -> Option<Turn> {
        if !self.any_ready() {
            return None;
        }
        self.settle();
        let mut at = 0;
        while let Some(group) = self.group(at) {
            at = group.first()?;
        }
        Some(Turn { seat: Seat(at), credit_ns: TURN_NS })
    }

    /// Something that a leaf or a group caused has cost so much.
    #[inline]
    pub fn charge(&mut self, seat: Seat, cost_ns: u64) {
        let node = &mut self.nodes[seat.index()];
        if node.owed_ns == 0 && cost_ns > 0 {
            self.owing.push(seat.0);
        }
        node.owed_ns = node.owed_ns.saturating_add(cost_ns).min(MOST_NS);
    }

    /// The same of something that came from another member of the [linked](Turns::set_linked)
    /// group, at no turn of this one: so the others in this one do not wait for what they could not
    /// refuse.
    #[inline]
    pub fn charge_unasked(&mut self, seat: Seat, cost_ns: u64) {
        self.charge(seat, cost_ns);
        let node = &mut self.nodes[seat.index()];
        node.unasked_ns = node.unasked_ns.saturating_add(cost_ns).min(node.owed_ns);
    }

    /// What a leaf, or all below a group, has had.
    #[must_use]
    pub fn spent(&self, seat: Seat) -> Spent {
        let node = &self.nodes[seat.index()];
        let waits_ns = if node.ready > 0 { node.waits_ns(self.spent_ns) } else { 0 };
        Spent { waited_ns: node.spent.waited_ns + waits_ns, ..node.spent }
    }

    fn add(&mut self, group: Seat, weight: u32, is_group: bool) -> Seat {
        let seat = self.free.pop().unwrap_or(self.nodes.len() as u32);
        let place = self.group(group.0).map_or(0, |group| group.add(seat, weight));
        let node = Node::new(group.0, place, is_group);
        if seat as usize == self.nodes.len() {
            self.nodes.push(node);
            self.owing.reserve(self.nodes.len() - self.owing.len());
            self.free.reserve(self.nodes.len() - self.free.len());
        } else {
            self.nodes[seat as usize] = node;
        }
        Seat(seat)
    }

    fn group(&mut self, seat: u32) -> Option<&mut Group> {
        self.nodes.get_mut(seat as usize)?.group.as_deref_mut()
    }

    /// Charges the groups above those who owe something.
    fn settle(&mut self) {
        let linked = self.linked;
        while let Some(seat) = self.owing.pop() {
            let cost_ns = std::mem::take(&mut self.nodes[seat as usize].owed_ns);
            let unasked_ns = std::mem::take(&mut self.nodes[seat as usize].unasked_ns);
            self.spent_ns += cost_ns;
            let mut at = seat;
            while at != NONE {
                let node = &mut self.nodes[at as usize];
                node.spent.used_ns += cost_ns;
                let (parent, place) = (node.parent, node.place);
                let burden_ns = if parent == linked { cost_ns - unasked_ns } else { cost_ns };
                if let Some(group) = self.group(parent).filter(|_| burden_ns > 0) {
                    group.charge(place, burden_ns);
                }
                at = parent;
            }
        }
    }
}

impl Node {
    fn new(parent: u32, place: u32, is_group: bool) -> Node {
        let group = is_group.then(Box::default);
        Node { parent, place, ready: 0, owed_ns: 0, unasked_ns: 0, spent: Spent::default(), since: (0, 0), group }
    }

    /// How long it has waited since it became ready.
    fn waits_ns(&self, spent_ns: u64) -> u64 {
        let (all, own) = self.since;
        (spent_ns - all).saturating_sub(self.spent.used_ns - own)
    }
}

#[cfg(test)]
mod tests;
