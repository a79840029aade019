//! What the log says of a shortage of the processor.

use super::Maintenance;
use crate::system::log::Level;
use crate::worker::Shortage;
use control::plan::SwitchPlan;
use datapath::program::TenantId;

impl Maintenance {
    /// Says who wants more of the processor than there is, and who uses it.
    pub(super) fn shortage(&self, shortage: &Shortage) {
        if let Some(plan) = self.plan.switches.get(shortage.switch as u32) {
            self.log.line(Level::Warning, &text(plan, shortage));
        }
    }
}

fn text(plan: &SwitchPlan, shortage: &Shortage) -> String {
    let name = |who: &Option<TenantId>| {
        let Some(tenant) = who else { return "frames from the uplink".to_owned() };
        format!("tenant {}", plan.tenants.get(tenant.0).map_or("?", String::as_str))
    };
    let short: Vec<String> = shortage.short.iter().map(name).collect();
    let more = shortage.count.saturating_sub(short.len());
    let users = shortage.users.iter().map(|(who, permille)| format!("{} {} %", name(who), permille / 10));
    format!(
        "switch {}: short of processor time, not of the link: {}{}; of the time that was used: {}; every tenant has at least its share of it",
        plan.name,
        short.join(", "),
        if more > 0 { format!(" and {more} more") } else { String::new() },
        users.collect::<Vec<_>>().join(", "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_said_with_who_is_short_and_who_uses_the_time() {
        let tenants = ["red", "blue"].map(|name| format!("[[switch.tenant]]\nname = \"{name}\"\n"));
        let file = format!("[daemon]\nname = \"t\"\n[[switch]]\nname = \"s1\"\n{}", tenants.concat());
        let plan = control::load(&file).plan.unwrap();
        let (red, blue) = (Some(TenantId(0)), Some(TenantId(1)));
        let said = |short, count, users| text(&plan.switches[0], &Shortage { switch: 0, short, count, users });
        assert_eq!(
            said(vec![None, red], 4, vec![(blue, 612), (None, 300)]),
            "switch s1: short of processor time, not of the link: frames from the uplink, tenant red and 2 more; \
             of the time that was used: tenant blue 61 %, frames from the uplink 30 %; every tenant has at least its \
             share of it"
        );
        assert!(said(vec![red], 1, vec![(red, 1000)]).contains("of the link: tenant red; of the time"), "alone");
    }
}
