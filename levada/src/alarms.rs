//! Alarms of bonds, and of [services]: what an operator is to look at, said once, and once more
//! when it is over. What members do comes in, lines for the log go out; who calls has the clock.

mod flaps;
pub mod services;

use crate::system::log::Level;
use control::names::show_mac;
use control::plan::{Plan, SwitchPlan};
use datapath::bond::{MemberId, MemberState, Mode};
use datapath::wire::Mac;
use flaps::{FlapChange, Flaps, WINDOW};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Members have so long to come up before it is said that none has: LACP takes up to 3.5 s.
const PATIENCE: Duration = Duration::from_secs(10);

/// A line for the log.
pub type LogLine = (Level, String);

/// What is known of the bonds of all switches, by their numbers.
#[derive(Default)]
pub struct Alarms(BTreeMap<u32, Bond>);

struct Bond {
    begun: Instant,
    /// By name, since places change.
    members: BTreeMap<String, Member>,
    has_carried: bool,
    is_idle: bool,
    partner_told: Option<Instant>,
}

#[derive(Default)]
struct Member {
    carries: bool,
    flaps: Flaps,
}

impl Bond {
    fn new(now: Instant) -> Bond {
        Bond { begun: now, members: BTreeMap::new(), has_carried: false, is_idle: false, partner_told: None }
    }
}

impl Alarms {
    /// A member has another state. False where a line about that is one too many: it flaps.
    pub fn state(
        &mut self,
        now: Instant,
        (id, switch): (u32, &SwitchPlan),
        member: MemberId,
        state: MemberState,
    ) -> (bool, Vec<LogLine>) {
        let Some(plan) = &switch.bond else { return (true, Vec::new()) };
        let Some(name) = plan.names.get(usize::from(member.0)) else { return (true, Vec::new()) };
        let bond = self.0.entry(id).or_insert_with(|| Bond::new(now));
        let one = bond.members.entry(name.clone()).or_default();
        let is_by_hand = plan.policy.down.get(usize::from(member.0)) == Some(&true);
        let carries = state == MemberState::Distributing;
        if std::mem::replace(&mut one.carries, carries) && !carries && !is_by_hand {
            one.flaps.fail(now);
        }
        let may_say = !one.flaps.is_on();
        let mut lines = Vec::new();
        lines.extend(one.turn(now, switch, name));
        lines.extend(bond.look(now, switch));
        (may_say, lines)
    }

    /// The partner of the members that carry frames is another system.
    pub fn partner(
        &mut self,
        now: Instant,
        (id, switch): (u32, &SwitchPlan),
        member: MemberId,
        [before, after]: [Mac; 2],
    ) -> Option<LogLine> {
        let name = switch.bond.as_ref()?.names.get(usize::from(member.0))?;
        let bond = self.0.entry(id).or_insert_with(|| Bond::new(now));
        if bond.partner_told.is_some_and(|told| now - told < WINDOW) {
            return None;
        }
        bond.partner_told = Some(now);
        let text = format!(
            "{}/uplink: the LACP partner is {} now, seen at {name}, and was {}; if nobody has replaced it, look at the cables",
            switch.name,
            show_mac(after),
            show_mac(before)
        );
        Some((Level::Warning, text))
    }

    /// Looks at what time has changed: each second or so.
    pub fn tick(&mut self, now: Instant, plan: &Plan) -> Vec<LogLine> {
        let has_bond = |id: &u32| plan.switches.get(*id).is_some_and(|switch| switch.bond.is_some());
        self.0.retain(|id, _| has_bond(id));
        let mut lines = Vec::new();
        for (id, switch) in plan.switches.iter() {
            let Some(of) = &switch.bond else { continue };
            let bond = self.0.entry(id).or_insert_with(|| Bond::new(now));
            bond.members.retain(|name, _| of.names.contains(name));
            for (name, member) in &mut bond.members {
                lines.extend(member.turn(now, switch, name));
            }
            lines.extend(bond.look(now, switch));
        }
        lines
    }
}

impl Member {
    /// Whether it begins to flap, or ends.
    fn turn(&mut self, now: Instant, switch: &SwitchPlan, name: &str) -> Option<LogLine> {
        let of = &switch.name;
        Some(match self.flaps.turn(now)? {
            FlapChange::Begins(count) => (
                Level::Warning,
                format!(
                    "{of}/uplink/{name} flaps: it has failed {count} times in a minute; look at its cable and at the other end's port, or take it out: levada set bond-member {of}/{name} admin=down"
                ),
            ),
            FlapChange::Ends => {
                let state = if self.carries { "carries frames" } else { "carries no frames" };
                (Level::Info, format!("{of}/uplink/{name} flaps no more: it {state}"))
            }
        })
    }
}

impl Bond {
    /// Whether any member carries frames.
    fn look(&mut self, now: Instant, switch: &SwitchPlan) -> Option<LogLine> {
        let carries = self.members.values().any(|member| member.carries);
        self.has_carried |= carries;
        let is_idle = !carries && (self.has_carried || now - self.begun >= PATIENCE);
        if std::mem::replace(&mut self.is_idle, is_idle) == is_idle {
            return None;
        }
        let name = &switch.name;
        if !is_idle {
            return Some((Level::Info, format!("{name}/uplink: frames are carried again")));
        }
        let settings = switch.program.uplink.as_ref().and_then(|uplink| uplink.bond);
        let least = settings.filter(|bond| bond.mode == Mode::Lacp).map_or(0, |bond| bond.lacp.min_links);
        let what = match least {
            0 | 1 => "no member is up".to_owned(),
            least => format!("fewer than min_links = {least} members are up"),
        };
        let text = format!("{name}/uplink: {what}, so no frame is carried; levada show bonds has the reason");
        Some((Level::Warning, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemberState::{Distributing, Down, Standby};

    fn plan(options: &str) -> Plan {
        let text = format!(
            "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s1\"\n[switch.uplink.bond]\n{options}\n\
             [[switch.uplink.bond.member]]\nport = \"tap://up0\"\nrate = \"1 Gbit/s\"\n\
             [[switch.uplink.bond.member]]\nport = \"tap://up1\"\nrate = \"1 Gbit/s\"\n"
        );
        control::load(&text).plan.expect("a plan")
    }

    struct Watch {
        plan: Plan,
        alarms: Alarms,
        begin: Instant,
    }

    impl Watch {
        fn new(options: &str) -> Watch {
            Watch { plan: plan(options), alarms: Alarms::default(), begin: Instant::now() }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.begin + Duration::from_secs(seconds)
        }

        /// What is said, with the level of each; `-` where the state itself is not to be.
        fn state(&mut self, seconds: u64, member: u8, state: MemberState) -> Vec<String> {
            let now = self.at(seconds);
            let switch = (0, self.plan.switches.get(0).unwrap());
            let (may_say, lines) = self.alarms.state(now, switch, MemberId(member), state);
            (!may_say).then(|| "-".to_owned()).into_iter().chain(texts(lines)).collect()
        }

        fn tick(&mut self, seconds: u64) -> Vec<String> {
            texts(self.alarms.tick(self.at(seconds), &self.plan)).collect()
        }
    }

    fn texts(lines: Vec<LogLine>) -> impl Iterator<Item = String> {
        lines.into_iter().map(|(level, text)| format!("{}{text}", if level == Level::Warning { "! " } else { "" }))
    }

    #[test]
    fn that_no_member_is_up_is_said_once_and_when_it_is_over() {
        let mut watch = Watch::new("mode = \"balance-xor\"");
        let said = ["! s1/uplink: no member is up, so no frame is carried; levada show bonds has the reason"];
        assert_eq!(watch.tick(0), [""; 0]);
        assert_eq!(watch.tick(9), [""; 0], "they may come up yet");
        assert_eq!(watch.tick(10), said);
        assert_eq!(watch.tick(11), [""; 0]);
        assert_eq!(watch.state(12, 0, Distributing), ["s1/uplink: frames are carried again"]);
        assert_eq!(watch.state(13, 1, Distributing), [""; 0]);
        assert_eq!(watch.state(14, 0, Down), [""; 0]);
        assert_eq!(watch.state(15, 1, Down), said, "at once");
        assert_eq!(watch.tick(16), [""; 0]);
        assert_eq!(watch.state(17, 1, Distributing), ["s1/uplink: frames are carried again"]);
    }

    #[test]
    fn that_there_are_fewer_than_min_links_is_said() {
        let mut watch = Watch::new("mode = \"802.3ad\"\nmin_links = 2");
        watch.state(0, 0, Distributing);
        watch.state(0, 1, Distributing);
        assert_eq!(watch.state(1, 1, Down), [""; 0]);
        let said = "! s1/uplink: fewer than min_links = 2 members are up, so no frame is carried; levada show bonds has the reason";
        assert_eq!(watch.state(1, 0, Standby), [said]);
    }

    #[test]
    fn a_member_that_flaps_is_named_once_and_its_states_are_not() {
        let mut watch = Watch::new("mode = \"balance-rr\"");
        watch.state(0, 0, Distributing);
        watch.state(0, 1, Distributing);
        for second in 1..3 {
            assert_eq!(watch.state(second, 0, Down), [""; 0]);
            assert_eq!(watch.state(second, 0, Distributing), [""; 0]);
        }
        let said = watch.state(3, 0, Down);
        assert!(said.len() == 1 && said[0].starts_with("! s1/uplink/up0 flaps: it has failed 3 times"), "{said:?}");
        assert!(said[0].ends_with("levada set bond-member s1/up0 admin=down"), "{said:?}");
        for second in 4..1000 {
            assert_eq!(watch.state(second, 0, Distributing), ["-"]);
            assert_eq!(watch.state(second, 0, Down), ["-"]);
            assert_eq!(watch.tick(second), [""; 0]);
        }
        let one = &watch.alarms.0[&0].members["up0"];
        assert!(one.flaps.times() <= 64, "{} times are remembered", one.flaps.times());
        assert_eq!(watch.tick(1058), [""; 0]);
        assert_eq!(watch.tick(1059), ["s1/uplink/up0 flaps no more: it carries no frames"]);
        assert_eq!(watch.state(1060, 0, Distributing), [""; 0], "and its states are said again");
    }

    #[test]
    fn what_the_operator_does_is_no_flapping() {
        let mut watch = Watch::new("mode = \"balance-rr\"");
        watch.state(0, 1, Distributing);
        for second in 0..10 {
            assert_eq!(watch.state(second, 0, Distributing), [""; 0]);
            watch.plan.switches.get_mut(0).unwrap().bond.as_mut().unwrap().policy.down = vec![true, false];
            assert_eq!(watch.state(second, 0, Standby), [""; 0]);
        }
    }

    #[test]
    fn another_partner_is_named_at_most_once_a_minute() {
        let mut watch = Watch::new("mode = \"802.3ad\"");
        let macs = [1, 2].map(|last| Mac([2, 0, 0, 0, 0, last]));
        let mut partner = |seconds| {
            let (now, switch) = (watch.at(seconds), (0, watch.plan.switches.get(0).unwrap()));
            texts(watch.alarms.partner(now, switch, MemberId(1), macs).into_iter().collect()).collect::<Vec<_>>()
        };
        let said = partner(1);
        let begins = "! s1/uplink: the LACP partner is 02:00:00:00:00:02 now, seen at up1, and was 02:00:00:00:00:01;";
        assert!(said.len() == 1 && said[0].starts_with(begins), "{said:?}");
        assert_eq!(partner(60), [""; 0]);
        assert_eq!(partner(61).len(), 1);
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut watch = Watch::new("mode = \"balance-rr\"");
        watch.state(0, 0, Distributing);
        watch.plan.switches.get_mut(0).unwrap().bond = None;
        assert_eq!(watch.tick(1), [""; 0]);
        assert!(watch.alarms.0.is_empty());
    }
}
