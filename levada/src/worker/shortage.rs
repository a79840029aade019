//! Shortage: who wanted more of the processor than there was.
//!
//! Once a second the worker looks whether it had time left. Where it had not, a tenant was *short*
//! if there was hardly a moment at which nothing of it waited to be read or copied, while others
//! had the processor, or while rings of its ports overflowed: one that is alone waits for nobody,
//! and loses what it is promised all the same. Frames from the uplink, which are for all tenants,
//! are judged alike. Shortage is not the link's doing, and of nobody's guarantee on it: so it is
//! counted apart, and said as what it is, with who used the time.

use super::{Payer, Task, Worker};
use datapath::program::{Tenant, TenantId};
use datapath::turns::Spent;
use datapath::units::{Instant, Rate};

/// The worker had no time left if it was busy for so many thousandths.
const BUSY: u64 = 900;
/// Something of a tenant waited nearly always if it used or waited for so many thousandths of what
/// all used,
const NEARLY_ALWAYS: u64 = 900;
/// and of these it waited for so many, or rings of its ports overflowed.
const WAITED: u64 = 50;
/// Between two lines of a switch, in nanoseconds.
const SAID_NS: u64 = 10_000_000_000;
/// How many are named at a time.
const NAMED: usize = 3;

/// Who was short lately, and who used the time. `None` is the uplink.
pub struct Shortage {
    /// The switch.
    pub switch: usize,
    /// Some that were short.
    pub short: Vec<Option<TenantId>>,
    /// How many were.
    pub count: usize,
    /// Who used most, the largest first, and thousandths of what all used.
    pub users: Vec<(Option<TenantId>, u64)>,
}

/// What was at the last look.
#[derive(Default)]
pub(super) struct Look {
    at: Instant,
    busy_ns: u64,
    all_ns: u64,
    switches: Vec<SwitchLook>,
}

#[derive(Default)]
struct SwitchLook {
    uplink: Seen,
    tenants: Vec<Seen>,
    said: Option<Instant>,
}

/// A tenant, or the uplink.
#[derive(Clone, Default)]
struct Seen {
    spent: Spent,
    short_ns: u64,
    /// Rings of its ports have overflowed since the last look.
    has_lost: bool,
}

/// The time between two looks.
struct Window {
    ns: u64,
    /// What all used of it.
    used_ns: u64,
    is_busy: bool,
}

impl Look {
    /// How long a tenant, or the uplink, was short, in nanoseconds.
    pub fn short_ns(&self, switch: usize, who: Option<TenantId>) -> u64 {
        let look = self.switches.get(switch);
        let seen = look.and_then(|look| who.map_or(Some(&look.uplink), |tenant| look.tenants.get(tenant.0 as usize)));
        seen.map_or(0, |seen| seen.short_ns)
    }

    /// The ring of a port has overflowed.
    pub fn note_loss(&mut self, switch: usize, payer: Payer) {
        let Some(look) = self.switches.get_mut(switch) else { return };
        let seen = match payer {
            Payer::Uplink => Some(&mut look.uplink),
            Payer::Tenant(tenant) => look.tenants.get_mut(tenant as usize),
        };
        if let Some(seen) = seen {
            seen.has_lost = true;
        }
    }

    /// A tenant is removed, or all are: whoever has its number next was not short.
    pub fn forget(&mut self, switch: usize, tenant: Option<TenantId>) {
        let Some(SwitchLook { uplink, tenants, .. }) = self.switches.get_mut(switch) else { return };
        let is_it = |id: usize| tenant.is_none_or(|tenant| tenant.0 as usize == id);
        let tenants = tenants.iter_mut().enumerate().filter(|(id, _)| is_it(*id)).map(|(_, seen)| seen);
        let all = tenants.chain(tenant.is_none().then_some(uplink));
        all.for_each(|seen| (seen.short_ns, seen.has_lost) = (0, false));
    }
}

impl Seen {
    /// What it has used since the last look, and whether it was short meanwhile. Of one without a
    /// guarantee what was lost does not count.
    fn judge(&mut self, window: &Window, spent: Spent, is_promised: bool) -> (u64, bool) {
        let Spent { used_ns, waited_ns } = since(&mut self.spent, spent);
        let has_lost = std::mem::take(&mut self.has_lost) && is_promised;
        let is_short = window.is_busy && is_short(used_ns, waited_ns, window.used_ns, has_lost);
        if is_short {
            self.short_ns += window.ns;
        }
        (used_ns, is_short)
    }
}

impl Worker {
    /// Looks who was short since the last look.
    pub(super) fn look_for_shortage(&mut self) {
        let (now, busy_ns, all_ns) = (self.outside.now, self.effort.busy_ns, self.seats.all_ns());
        let mut look = std::mem::take(&mut self.look);
        let (ns, used_ns) = (now.since(look.at), all_ns - look.all_ns);
        let is_busy = (busy_ns - look.busy_ns) * 1000 >= ns * BUSY && used_ns > 0 && look.at > Instant::ZERO;
        let window = Window { ns, used_ns, is_busy };
        (look.at, look.busy_ns, look.all_ns) = (now, busy_ns, all_ns);
        look.switches.resize_with(self.switch_slots.len(), SwitchLook::default);
        for (switch, known) in look.switches.iter_mut().enumerate() {
            let tenants = &self.switch_slots[switch].switch.program().tenants;
            known.tenants.resize(tenants.len(), Seen::default());
            let (mut short, mut count, mut users) = (Vec::new(), 0, Vec::new());
            let mut judge = |who, seen: &mut Seen, spent, is_promised| {
                let (used_ns, is_short) = seen.judge(&window, spent, is_promised);
                if is_short {
                    count += 1;
                    short.extend((count <= NAMED).then_some(who));
                }
                name(&mut users, who, used_ns);
            };
            // First, so that it is named: what comes by it is for all.
            judge(None, &mut known.uplink, self.seats.uplink_spent(switch), true);
            for (id, tenant) in tenants.iter() {
                let spent = self.seats.tenant_spent(switch, id);
                judge(Some(TenantId(id)), &mut known.tenants[id as usize], spent, is_promised(tenant));
            }
            if count > 0 && known.said.is_none_or(|said| now.since(said) >= SAID_NS) {
                known.said = Some(now);
                let users = users.into_iter().map(|(who, ns)| (who, ns * 1000 / used_ns.max(1))).collect();
                // A full queue of tasks has enough to log.
                let _ = self.tasks.try_send(Task::Shortage(Box::new(Shortage { switch, short, count, users })));
            }
        }
        self.look = look;
    }
}

/// Whether one who used and waited so much, while all used `all_ns`, wanted more; `has_lost`: rings
/// of its ports overflowed.
fn is_short(used_ns: u64, waited_ns: u64, all_ns: u64, has_lost: bool) -> bool {
    let is_there = (used_ns + waited_ns) * 1000 >= all_ns * NEARLY_ALWAYS;
    is_there && (has_lost || waited_ns * 1000 >= all_ns * WAITED)
}

/// Whether a tenant has a guarantee; it has at least the sum of its endpoints'.
fn is_promised(tenant: &Tenant) -> bool {
    [tenant.share.egress, tenant.share.ingress].iter().any(|share| share.guarantee > Rate(0))
}

/// What has been added; a seat that is another's began anew.
fn since(before: &mut Spent, now: Spent) -> Spent {
    let then = std::mem::replace(before, now);
    Spent {
        used_ns: now.used_ns.checked_sub(then.used_ns).unwrap_or(now.used_ns),
        waited_ns: now.waited_ns.checked_sub(then.waited_ns).unwrap_or(now.waited_ns),
    }
}

/// Keeps the largest.
fn name(users: &mut Vec<(Option<TenantId>, u64)>, who: Option<TenantId>, used_ns: u64) {
    let at = users.partition_point(|(_, ns)| *ns >= used_ns);
    if used_ns > 0 && at < NAMED {
        users.insert(at, (who, used_ns));
        users.truncate(NAMED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_is_who_always_has_something_and_waits_for_others() {
        assert!(is_short(300, 650, 1000, false));
        assert!(!is_short(300, 300, 1000, false), "some of the time nothing of it was there");
        assert!(!is_short(980, 20, 1000, false), "it has nearly all that there is");
        assert!(is_short(980, 20, 1000, true), "and that was not enough");
        assert!(!is_short(300, 300, 1000, true), "a burst that its ring did not hold");
    }

    #[test]
    fn the_largest_users_are_named() {
        let mut users = Vec::new();
        for (id, used) in [5, 0, 9, 1, 7].into_iter().enumerate() {
            name(&mut users, Some(TenantId(id as u32)), used);
        }
        assert_eq!(users, [(Some(TenantId(2)), 9), (Some(TenantId(4)), 7), (Some(TenantId(0)), 5)]);
    }
}
