//! Seats: who shares the worker's time, and for what it is charged.
//!
//! The tree of [`Turns`] has a leaf for what the worker does for itself (changes, numbers for who
//! looks), which has a part of one in twenty however much there is to do and however many switches
//! there are, and a group of all switches, who share the rest alike. In each, the uplink's device
//! is a leaf with half: through its one ring comes what is for all, so whoever of them is promised
//! something needs it read. The other half is the tenants', by their shares of the link
//! (`control/src/time.rs`), and in each tenant its ports', devices and ends of links alike.

use super::Backing;
use datapath::link::Side;
use datapath::turns::{Seat, Spent, Turn, Turns};

/// Weights in the root: of what the worker does for itself, and of all switches.
const OWN: u32 = 1;
const SWITCHES: u32 = 19;
/// The weight of each switch among them.
const SWITCH: u32 = 1;
/// Weights in a switch: of the uplink, and of all tenants.
const HALF: u32 = 1;

/// Who is charged for what a port causes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payer {
    /// The uplink, whose port it is.
    Uplink,
    /// The tenant of this number.
    Tenant(u32),
}

/// The part of the worker's time that a port has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The switch that it is a port of.
    pub switch: usize,
    /// Who is charged.
    pub payer: Payer,
    /// The weight of that tenant among the switch's.
    pub tenant_weight: u32,
    /// The port's among its tenant's.
    pub weight: u32,
}

impl Claim {
    /// What a port has before it is known whose it is.
    pub fn nobodys(switch: usize) -> Claim {
        Claim { switch, payer: Payer::Tenant(0), tenant_weight: 1, weight: 1 }
    }
}

/// Whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Duty {
    /// The worker's own.
    Own,
    /// A port's.
    Port(Backing),
}

/// The seats of one worker.
pub(super) struct Seats {
    turns: Turns,
    own: Seat,
    /// The group of all switches.
    all: Seat,
    switches: Vec<Option<Groups>>,
    devices: Vec<Option<Taken>>,
    links: Vec<[Option<Taken>; 2]>,
    /// By [`Seat::index`].
    duties: Vec<Option<Duty>>,
}

struct Groups {
    switch: Seat,
    tenants: Seat,
    by_tenant: Vec<Option<Seat>>,
    /// A group of the ports of the uplink, where it has any.
    uplink: Option<Seat>,
}

#[derive(Clone, Copy)]
struct Taken {
    seat: Seat,
    switch: usize,
    payer: Payer,
}

impl Seats {
    pub fn new() -> Seats {
        let mut turns = Turns::default();
        let (own, all) = (turns.add_leaf(Turns::ROOT, OWN), turns.add_group(Turns::ROOT, SWITCHES));
        turns.set_linked(all);
        let (switches, devices, links) = (Vec::new(), Vec::new(), Vec::new());
        let mut seats = Seats { turns, own, all, switches, devices, links, duties: Vec::new() };
        seats.set_duty(own, Some(Duty::Own));
        seats
    }

    /// Gives a port its part; one that had another goes on with what it has to do.
    pub fn claim(&mut self, way: Backing, claim: Claim) {
        let Claim { switch, payer, tenant_weight, weight } = claim;
        let before = self.taken(way);
        if let Some(taken) = before
            && (taken.switch, taken.payer) == (switch, payer)
        {
            if let Payer::Tenant(tenant) = payer {
                let group = self.tenant(switch, tenant);
                self.turns.set_weight(group, tenant_weight);
                self.turns.set_weight(taken.seat, weight);
            }
            return;
        }
        let is_ready = before.is_some_and(|taken| self.turns.is_ready(taken.seat));
        self.leave(way);
        let seat = match payer {
            Payer::Uplink => {
                let group = self.uplink(switch);
                self.turns.add_leaf(group, weight)
            }
            Payer::Tenant(tenant) => {
                let group = self.tenant(switch, tenant);
                self.turns.set_weight(group, tenant_weight);
                self.turns.add_leaf(group, weight)
            }
        };
        self.set_duty(seat, Some(Duty::Port(way)));
        *self.place(way) = Some(Taken { seat, switch, payer });
        if is_ready {
            self.turns.wake(seat);
        }
    }

    /// Gives a port that has no part one, until it is told which.
    pub fn claim_any(&mut self, way: Backing, switch: usize) {
        if self.taken(way).is_none() {
            self.claim(way, Claim::nobodys(switch));
        }
    }

    /// A port is no more.
    pub fn leave(&mut self, way: Backing) {
        let Some(Taken { seat, switch, payer }) = self.place(way).take() else { return };
        self.set_duty(seat, None);
        self.turns.remove(seat);
        match payer {
            Payer::Uplink => {
                let group = self.uplink(switch);
                if !self.turns.has_members(group) {
                    self.turns.remove(group);
                    self.groups(switch).uplink = None;
                }
            }
            Payer::Tenant(tenant) => {
                let group = self.tenant(switch, tenant);
                if !self.turns.has_members(group) {
                    self.turns.remove(group);
                    self.groups(switch).by_tenant[tenant as usize] = None;
                }
            }
        }
    }

    /// A port has something to do.
    pub fn wake(&mut self, way: Backing) {
        if let Some(taken) = self.taken(way) {
            self.turns.wake(taken.seat);
        }
    }

    /// It has nothing to do any more.
    pub fn sleep(&mut self, way: Backing) {
        if let Some(taken) = self.taken(way) {
            self.turns.sleep(taken.seat);
        }
    }

    /// Whether the worker has something to do for itself.
    pub fn set_own(&mut self, has_work: bool) {
        if has_work { self.turns.wake(self.own) } else { self.turns.sleep(self.own) }
    }

    /// A port caused so much.
    #[inline]
    pub fn charge(&mut self, way: Backing, cost_ns: u64) {
        if let Some(taken) = self.taken(way) {
            self.turns.charge(taken.seat, cost_ns);
        }
    }

    /// The same, where it came over a link, from another switch.
    pub fn charge_unasked(&mut self, way: Backing, cost_ns: u64) {
        if let Some(taken) = self.taken(way) {
            self.turns.charge_unasked(taken.seat, cost_ns);
        }
    }

    pub fn charge_own(&mut self, cost_ns: u64) {
        self.turns.charge(self.own, cost_ns);
    }

    pub fn any_ready(&self) -> bool {
        self.turns.any_ready()
    }

    /// Who is next, and for how long.
    pub fn next_turn(&mut self) -> Option<(Duty, u64)> {
        let Turn { seat, credit_ns } = self.turns.next_turn()?;
        Some((self.duties.get(seat.index()).copied().flatten()?, credit_ns))
    }

    /// Who is charged for a port.
    pub fn payer(&self, way: Backing) -> Option<Payer> {
        self.taken(way).map(|taken| taken.payer)
    }

    /// What a port has had.
    pub fn spent(&self, way: Backing) -> Spent {
        self.taken(way).map_or(Spent::default(), |taken| self.turns.spent(taken.seat))
    }

    /// What all have had.
    pub fn all_ns(&self) -> u64 {
        self.turns.spent(Turns::ROOT).used_ns
    }

    /// What the worker has spent on itself.
    pub fn own_spent(&self) -> Spent {
        self.turns.spent(self.own)
    }

    /// What a switch's uplink has had.
    pub fn uplink_spent(&self, switch: usize) -> Spent {
        let groups = self.switches.get(switch).and_then(Option::as_ref);
        groups.and_then(|groups| groups.uplink).map_or(Spent::default(), |seat| self.turns.spent(seat))
    }

    /// What a tenant has had.
    pub fn tenant_spent(&self, switch: usize, tenant: u32) -> Spent {
        let groups = self.switches.get(switch).and_then(Option::as_ref);
        let seat = groups.and_then(|groups| groups.by_tenant.get(tenant as usize).copied().flatten());
        seat.map_or(Spent::default(), |seat| self.turns.spent(seat))
    }

    #[inline]
    fn taken(&self, way: Backing) -> Option<Taken> {
        match way {
            Backing::Device(index) => self.devices.get(index).copied().flatten(),
            Backing::Link(index, side) => self.links.get(index).and_then(|sides| sides[side as usize]),
        }
    }

    fn place(&mut self, way: Backing) -> &mut Option<Taken> {
        match way {
            Backing::Device(index) => {
                if self.devices.len() <= index {
                    self.devices.resize(index + 1, None);
                }
                &mut self.devices[index]
            }
            Backing::Link(index, side) => {
                if self.links.len() <= index {
                    self.links.resize(index + 1, [None; 2]);
                }
                &mut self.links[index][side as usize]
            }
        }
    }

    fn groups(&mut self, switch: usize) -> &mut Groups {
        if self.switches.len() <= switch {
            self.switches.resize_with(switch + 1, || None);
        }
        let (turns, all) = (&mut self.turns, self.all);
        self.switches[switch].get_or_insert_with(|| {
            let switch = turns.add_group(all, SWITCH);
            Groups { switch, tenants: turns.add_group(switch, HALF), by_tenant: Vec::new(), uplink: None }
        })
    }

    /// The group of a switch's uplink: its ports, mostly one, have half together.
    fn uplink(&mut self, switch: usize) -> Seat {
        let groups = self.groups(switch);
        let (known, whole) = (groups.uplink, groups.switch);
        known.unwrap_or_else(|| {
            let seat = self.turns.add_group(whole, HALF);
            self.groups(switch).uplink = Some(seat);
            seat
        })
    }

    fn tenant(&mut self, switch: usize, tenant: u32) -> Seat {
        let at = tenant as usize;
        let groups = self.groups(switch);
        if groups.by_tenant.len() <= at {
            groups.by_tenant.resize(at + 1, None);
        }
        let (known, tenants) = (groups.by_tenant[at], groups.tenants);
        known.unwrap_or_else(|| {
            let seat = self.turns.add_group(tenants, 1);
            self.groups(switch).by_tenant[at] = Some(seat);
            seat
        })
    }

    fn set_duty(&mut self, seat: Seat, duty: Option<Duty>) {
        if self.duties.len() <= seat.index() {
            self.duties.resize(seat.index() + 1, None);
        }
        self.duties[seat.index()] = duty;
    }
}

/// Both ends of a link.
pub(super) fn ends_of(link: usize) -> [Backing; 2] {
    Side::ALL.map(|side| Backing::Link(link, side))
}
