//! The active members of bonds, as the operator chooses them. No configuration has that: it is so
//! until the member fails, or one that goes before it comes up.

use super::{Fault, Handler, lock};
use crate::worker::Request;
use control::place::Place;
use control::plan::Plan;
use control::problem::Problem;
use datapath::bond::{MemberId, MemberState};

impl Handler {
    /// Whether these members, with their switches, may be active.
    ///
    /// # Errors
    /// One is not up, or is not there yet.
    pub(super) fn may_be_active(&self, chosen: &[(String, String)]) -> Result<(), Fault> {
        if chosen.is_empty() {
            return Ok(());
        }
        let facts = self.facts();
        let shot = self.snapshot(&facts)?;
        let is_up = |(switch, member): &(String, String)| {
            let (switch, MemberId(member)) = place(&facts.plan, switch, member)?;
            Some(shot.switches.get(switch)?.members.get(usize::from(member))?.state == MemberState::Distributing)
        };
        let wrong = chosen.iter().find(|chosen| is_up(chosen) != Some(true));
        let refused = wrong.map(|(switch, member)| {
            let message = format!("member \"{member}\" is not up: it cannot be the active one");
            let mut problem = Problem::error(Place::root(), message, "levada show bonds lists those that are");
            problem.key = format!("bond {switch}, active");
            Fault::Refused(vec![problem])
        });
        *lock(&self.spare) = Some(shot);
        refused.map_or(Ok(()), Err)
    }

    /// Makes them the active ones.
    ///
    /// # Errors
    /// The worker has ended, or has no time.
    pub(super) fn make_active(&self, chosen: &[(String, String)]) -> Result<(), Fault> {
        let facts = self.facts();
        for (switch, member) in chosen {
            if let Some((switch, member)) = place(&facts.plan, switch, member) {
                self.request(Request::Active { switch, member })?;
            }
        }
        Ok(())
    }
}

/// The numbers of a switch and of a member of its bond.
fn place(plan: &Plan, switch: &str, member: &str) -> Option<(usize, MemberId)> {
    let (id, switch) = plan.switches.iter().find(|(_, one)| one.name == switch)?;
    let at = switch.bond.as_ref()?.names.iter().position(|name| name == member)?;
    Some((id as usize, MemberId(at as u8)))
}
