//! Shortage: who wanted more of the processor than there was.
//!
//! Once a second the worker looks whether it had time left. Where it had not, a tenant was *short*
//! if there was hardly a moment at which nothing of it waited to be read or copied, while others
//! had the processor. That is not the link's doing, and of nobody's guarantee on it: so it is
//! counted apart, and said as what it is, with who used the time.

use super::{Task, Worker};
use datapath::program::TenantId;
use datapath::turns::Spent;
use datapath::units::Instant;

/// The worker had no time left if it was busy for so many thousandths.
const BUSY: u64 = 900;
/// Something of a tenant waited nearly always if it used or waited for so many thousandths of what
/// all used,
const NEARLY_ALWAYS: u64 = 900;
/// and of these it waited for so many.
const WAITED: u64 = 50;
/// Between two lines of a switch, in nanoseconds.
const SAID_NS: u64 = 10_000_000_000;
/// How many are named at a time.
const NAMED: usize = 3;

/// Who was short lately, and who used the time.
pub struct Shortage {
    /// The switch.
    pub switch: usize,
    /// Some of its tenants that were short.
    pub short: Vec<TenantId>,
    /// How many were.
    pub count: usize,
    /// Who used most, the largest first, and thousandths of what all used; `None` is the uplink.
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
    uplink: Spent,
    tenants: Vec<(Spent, u64)>,
    said: Option<Instant>,
}

impl Look {
    /// How long a tenant was short, in nanoseconds.
    pub fn short_ns(&self, switch: usize, tenant: u32) -> u64 {
        let tenants = self.switches.get(switch).map_or(&[][..], |look| &look.tenants);
        tenants.get(tenant as usize).map_or(0, |(_, short_ns)| *short_ns)
    }

    /// A tenant is removed, or all are: whoever has its number next was not short.
    pub fn forget(&mut self, switch: usize, tenant: Option<TenantId>) {
        let tenants = self.switches.get_mut(switch).into_iter().flat_map(|look| look.tenants.iter_mut().enumerate());
        let is_it = |id: usize| tenant.is_none_or(|tenant| tenant.0 as usize == id);
        tenants.filter(|(id, _)| is_it(*id)).for_each(|(_, known)| known.1 = 0);
    }
}

impl Worker {
    /// Looks who was short since the last look.
    pub(super) fn look_for_shortage(&mut self) {
        let (now, busy_ns, all_ns) = (self.outside.now, self.effort.busy_ns, self.seats.all_ns());
        let mut look = std::mem::take(&mut self.look);
        let (window_ns, used_ns) = (now.since(look.at), all_ns - look.all_ns);
        let is_busy = (busy_ns - look.busy_ns) * 1000 >= window_ns * BUSY && look.at > Instant::ZERO;
        (look.at, look.busy_ns, look.all_ns) = (now, busy_ns, all_ns);
        look.switches.resize_with(self.switch_slots.len(), SwitchLook::default);
        for (switch, known) in look.switches.iter_mut().enumerate() {
            let tenants = &self.switch_slots[switch].switch.program().tenants;
            known.tenants.resize(tenants.len(), Default::default());
            let (mut short, mut count, mut users) = (Vec::new(), 0, Vec::new());
            for (id, _) in tenants.iter() {
                let (before, short_ns) = &mut known.tenants[id as usize];
                let spent = self.seats.tenant_spent(switch, id);
                let Spent { used_ns: used, waited_ns: waited } = since(before, spent);
                if is_busy && is_short(used, waited, used_ns) {
                    *short_ns += window_ns;
                    count += 1;
                    if count <= NAMED {
                        short.push(TenantId(id));
                    }
                }
                name(&mut users, Some(TenantId(id)), used);
            }
            name(&mut users, None, since(&mut known.uplink, self.seats.uplink_spent(switch)).used_ns);
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

/// Whether one who used and waited so much, while all used `all_ns`, wanted more.
fn is_short(used_ns: u64, waited_ns: u64, all_ns: u64) -> bool {
    (used_ns + waited_ns) * 1000 >= all_ns * NEARLY_ALWAYS && waited_ns * 1000 >= all_ns * WAITED
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
        assert!(is_short(300, 650, 1000));
        assert!(!is_short(300, 300, 1000), "some of the time nothing of it was there");
        assert!(!is_short(980, 20, 1000), "it has nearly all that there is");
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
