use super::*;
use datapath::bond::Duplex;

const MS: u64 = 1_000_000;
const FAST: Negotiated = Negotiated { mbit: Some(1000), duplex: Duplex::Full };
const UP: LinkState = LinkState { is_up: true, negotiated: FAST };
const DOWN: LinkState = LinkState { is_up: false, negotiated: FAST };

fn at(ms: u64) -> Instant {
    Instant(ms * MS)
}

fn backup(settings: Settings) -> Settings {
    Settings { mode: Mode::ActiveBackup, ..settings }
}

/// A policy of members that are down.
fn new(settings: Settings, members: usize) -> Policy {
    Policy::new(settings, &vec![MemberState::Down; members], None)
}

/// All commands at `now`, as text.
fn told(policy: &mut Policy, now: Instant) -> Vec<String> {
    std::iter::from_fn(|| policy.poll(now))
        .map(|command| match command {
            Command::State(member, state) => format!("{} {}", member.0, state.name()),
            Command::Active(Some(member)) => format!("active {}", member.0),
            Command::Active(None) => "active none".to_owned(),
            Command::Notify(member) => format!("notify {}", member.0),
        })
        .collect()
}

fn link(policy: &mut Policy, ms: u64, member: u8, state: LinkState) -> Vec<String> {
    policy.set_link(at(ms), MemberId(member), state);
    told(policy, at(ms))
}

#[test]
fn members_follow_their_links_and_without_active_backup_none_is_active() {
    let mut policy = new(Settings::default(), 2);
    assert_eq!(link(&mut policy, 1, 0, UP), ["0 distributing"]);
    assert_eq!(link(&mut policy, 2, 1, UP), ["1 distributing"]);
    assert_eq!(link(&mut policy, 3, 1, UP), [""; 0], "nothing changed");
    assert_eq!(link(&mut policy, 4, 0, DOWN), ["0 down"]);
    assert_eq!(link(&mut policy, 5, 7, DOWN), [""; 0], "there is no such member");
    assert_eq!(policy.active(), None);
    assert_eq!(policy.poll_timeout(), None);
}

#[test]
fn the_first_to_come_up_is_active_until_it_fails() {
    let mut policy = new(backup(Settings::default()), 3);
    assert_eq!(link(&mut policy, 1, 1, UP), ["1 distributing", "active 1", "notify 1"]);
    assert_eq!(link(&mut policy, 2, 0, UP), ["0 distributing"]);
    assert_eq!(link(&mut policy, 3, 2, UP), ["2 distributing"]);
    assert_eq!(link(&mut policy, 4, 1, DOWN), ["active 0", "notify 0", "1 down"]);
    assert_eq!(link(&mut policy, 5, 1, UP), ["1 distributing"]);
    assert_eq!(link(&mut policy, 6, 0, DOWN), ["active 1", "notify 1", "0 down"]);
    assert_eq!(link(&mut policy, 7, 2, DOWN), ["2 down"]);
    assert_eq!(link(&mut policy, 8, 1, DOWN), ["active none", "1 down"]);
}

#[test]
fn delays_count_anew_at_each_change_and_none_waits_to_be_the_only_one() {
    let settings = Settings { updelay_ns: 100 * MS, downdelay_ns: 50 * MS, ..Settings::default() };
    let mut policy = new(settings, 2);
    assert_eq!(link(&mut policy, 0, 0, UP), ["0 distributing"], "no member was up");
    assert_eq!(link(&mut policy, 10, 1, UP), [""; 0]);
    assert_eq!(policy.poll_timeout(), Some(at(110)));
    assert_eq!(link(&mut policy, 60, 1, UP), [""; 0], "asked again: it goes on counting");
    assert_eq!(link(&mut policy, 70, 1, DOWN), [""; 0]);
    assert_eq!(policy.poll_timeout(), None);
    assert_eq!(link(&mut policy, 80, 1, UP), [""; 0]);
    assert_eq!(told(&mut policy, at(179)), [""; 0]);
    assert_eq!(told(&mut policy, at(180)), ["1 distributing"]);
    assert_eq!(link(&mut policy, 200, 0, DOWN), [""; 0]);
    assert_eq!(link(&mut policy, 240, 0, UP), [""; 0], "down for less than downdelay");
    assert_eq!(told(&mut policy, at(300)), [""; 0]);
    assert_eq!(link(&mut policy, 400, 0, DOWN), [""; 0]);
    assert_eq!(told(&mut policy, at(450)), ["0 down"]);
}

#[test]
fn links_are_shown_and_when_a_delay_ends() {
    let settings = Settings { updelay_ns: 100 * MS, downdelay_ns: 50 * MS, ..Settings::default() };
    let mut policy = new(settings, 2);
    let shown = |policy: &Policy, member: usize| policy.links().nth(member).map(|link| (link.has_carrier, link.turns));
    policy.suppose_link(at(0), MemberId(0), UP);
    assert_eq!(shown(&policy, 0), Some((None, None)), "nobody has said so");
    link(&mut policy, 1, 0, UP);
    assert_eq!(shown(&policy, 0), Some((Some(true), None)));
    link(&mut policy, 10, 1, UP);
    assert_eq!(shown(&policy, 1), Some((Some(true), Some(at(110)))), "it will be used");
    link(&mut policy, 20, 1, DOWN);
    assert_eq!(shown(&policy, 1), Some((Some(false), None)));
    link(&mut policy, 30, 0, DOWN);
    assert_eq!(shown(&policy, 0), Some((Some(false), Some(at(80)))), "it will be given up");
    told(&mut policy, at(80));
    assert_eq!(shown(&policy, 0), Some((Some(false), None)));
    assert_eq!(shown(&policy, 2), None);
}

#[test]
fn updelay_ends_when_the_only_other_member_is_given_up() {
    let settings = Settings { updelay_ns: 100 * MS, downdelay_ns: 5 * MS, ..Settings::default() };
    let mut policy = new(settings, 3);
    link(&mut policy, 0, 0, UP);
    assert_eq!(link(&mut policy, 10, 1, UP), [""; 0]);
    assert_eq!(link(&mut policy, 20, 0, DOWN), [""; 0], "it may come back within downdelay");
    assert_eq!(told(&mut policy, at(25)), ["1 distributing", "0 down"]);
    assert_eq!(policy.poll_timeout(), None);
    // With a third one there is somebody who carries.
    link(&mut policy, 30, 2, UP);
    assert_eq!(told(&mut policy, at(130)), ["2 distributing"]);
    link(&mut policy, 140, 0, UP);
    link(&mut policy, 150, 1, DOWN);
    assert_eq!(told(&mut policy, at(155)), ["1 down"]);
    assert_eq!(told(&mut policy, at(240)), ["0 distributing"]);
}

#[test]
fn a_member_that_is_taken_out_by_hand_ends_the_updelay_of_the_only_other_one() {
    let settings = Settings { updelay_ns: 100 * MS, ..backup(Settings::default()) };
    let mut policy = new(settings.clone(), 2);
    link(&mut policy, 0, 0, UP);
    link(&mut policy, 10, 1, UP);
    policy.set_settings(at(20), taken_down(&settings, &[true, false]));
    assert_eq!(told(&mut policy, at(20)), ["1 distributing", "active 1", "notify 1", "0 standby"]);
}

#[test]
fn a_link_that_was_only_supposed_to_be_up_is_given_up_at_once() {
    let settings = Settings { updelay_ns: 100 * MS, downdelay_ns: 50 * MS, ..Settings::default() };
    let mut policy = new(settings, 3);
    for member in 0..3 {
        policy.suppose_link(at(0), MemberId(member), UP);
    }
    assert_eq!(told(&mut policy, at(0)), ["0 distributing"]);
    assert_eq!(link(&mut policy, 1, 2, DOWN), [""; 0], "it was not used yet");
    assert_eq!(link(&mut policy, 1, 0, DOWN), ["1 distributing", "0 down"]);
    assert_eq!(link(&mut policy, 2, 1, UP), [""; 0]);
    assert_eq!(link(&mut policy, 3, 1, DOWN), [""; 0], "somebody has said that it was up");
    assert_eq!(told(&mut policy, at(53)), ["1 down"]);
}

/// A policy that goes on for another, of a switch whose members have these states.
fn next(before: &Policy, settings: &Settings, states: &[MemberState], was: &[Option<u8>]) -> Policy {
    let was: Vec<_> = was.iter().map(|was| was.map(MemberId)).collect();
    let active = was.iter().position(|&was| was.is_some() && was == before.active()).map(|n| MemberId(n as u8));
    let mut policy = Policy::new(settings.clone(), states, active);
    policy.go_on(before, &was);
    policy
}

#[test]
fn what_has_begun_goes_on_under_another_policy() {
    let settings = Settings { updelay_ns: 100 * MS, downdelay_ns: 50 * MS, ..Settings::default() };
    let mut policy = new(settings.clone(), 2);
    link(&mut policy, 0, 0, UP);
    link(&mut policy, 10, 1, UP);
    // Something changes each 30 ms, and members have other places each time.
    let mut states = [MemberState::Distributing, MemberState::Down];
    for (round, now) in [40, 70, 100].into_iter().enumerate() {
        states.reverse();
        policy = next(&policy, &settings, &states, &[Some(1), Some(0)]);
        let [good, late] = if round % 2 == 0 { [1, 0] } else { [0, 1] };
        assert_eq!(link(&mut policy, now, good, UP), [""; 0]);
        assert_eq!(link(&mut policy, now, late, UP), [""; 0]);
        policy.set_settings(at(now), settings.clone());
        assert_eq!(told(&mut policy, at(now)), [""; 0]);
        assert_eq!(policy.poll_timeout(), Some(at(110)));
    }
    assert_eq!(told(&mut policy, at(110)), ["0 distributing"]);
    assert_eq!(policy.since(MemberId(1)), Some(at(0)), "it has not changed");
    // The same of downdelay. A third member is new.
    link(&mut policy, 200, 0, DOWN);
    let states = [MemberState::Distributing, MemberState::Distributing, MemberState::Down];
    policy = next(&policy, &settings, &states, &[Some(0), Some(1), None]);
    link(&mut policy, 240, 2, UP);
    policy.set_settings(at(240), settings.clone());
    assert_eq!(told(&mut policy, at(250)), ["0 down"]);
    assert_eq!(policy.poll_timeout(), Some(at(340)));
    // A delay that is shorter now counts from now, and one that is over had its turn.
    let states = [MemberState::Down, MemberState::Distributing, MemberState::Down];
    let settings = Settings { updelay_ns: 10 * MS, ..settings };
    policy = next(&policy, &settings, &states, &[Some(0), Some(1), Some(2)]);
    policy.set_settings(at(260), settings);
    assert_eq!(told(&mut policy, at(270)), ["2 distributing"]);
}

#[test]
fn what_was_not_told_yet_is_told_by_the_next_policy() {
    let mut policy = new(Settings::default(), 2);
    policy.set_link(at(0), MemberId(0), UP);
    policy = next(&policy, &Settings::default(), &[MemberState::Down; 2], &[Some(0), Some(1)]);
    policy.set_settings(at(1), Settings::default());
    assert_eq!(told(&mut policy, at(1)), ["0 distributing"]);
}

#[test]
fn members_that_another_process_used_do_not_wait_for_updelay() {
    let settings = Settings { updelay_ns: 100 * MS, downdelay_ns: 100 * MS, ..Settings::default() };
    let mut policy = new(settings, 4);
    for member in 0..3 {
        policy.suppose_link(at(0), MemberId(member), UP);
    }
    for member in [0, 1, 3, 9] {
        policy.skip_updelay(MemberId(member));
    }
    assert_eq!(told(&mut policy, at(0)), ["0 distributing", "1 distributing"], "the fourth has no link");
    assert_eq!(policy.poll_timeout(), Some(at(100)));
    // It says nothing of downdelay.
    link(&mut policy, 1, 0, UP);
    link(&mut policy, 2, 0, DOWN);
    policy.skip_updelay(MemberId(0));
    assert_eq!(told(&mut policy, at(101)), ["2 distributing"]);
    assert_eq!(told(&mut policy, at(102)), ["0 down"]);
}

#[test]
fn a_primary_takes_over_as_reselect_says() {
    let slow = LinkState { negotiated: Negotiated { mbit: Some(100), ..FAST }, ..UP };
    let half = LinkState { negotiated: Negotiated { duplex: Duplex::Half, ..FAST }, ..UP };
    let unknown = LinkState { negotiated: Negotiated::default(), ..UP };
    for (reselect, active, primary, takes_over) in [
        (Reselect::Always, UP, slow, true),
        (Reselect::Better, UP, UP, false),
        (Reselect::Better, slow, UP, true),
        (Reselect::Better, half, UP, true),
        (Reselect::Better, UP, half, false),
        (Reselect::Better, unknown, slow, true),
        (Reselect::Better, UP, unknown, false),
        (Reselect::Failure, slow, UP, false),
    ] {
        let settings = backup(Settings { primary: Some(MemberId(1)), reselect, ..Settings::default() });
        let mut policy = new(settings, 2);
        assert_eq!(link(&mut policy, 1, 0, active), ["0 distributing", "active 0", "notify 0"]);
        let mut wanted = vec!["1 distributing"];
        wanted.extend(takes_over.then_some(["active 1", "notify 1"]).into_iter().flatten());
        assert_eq!(link(&mut policy, 2, 1, primary), wanted, "{reselect:?} {active:?} {primary:?}");
        let wanted = if takes_over { &["0 down"][..] } else { &["active 1", "notify 1", "0 down"] };
        assert_eq!(link(&mut policy, 3, 0, DOWN), wanted);
    }
}

#[test]
fn priorities_choose_among_those_that_are_up() {
    let settings = backup(Settings { priorities: vec![0, -5, 9, 9], ..Settings::default() });
    let mut policy = new(settings, 4);
    assert_eq!(link(&mut policy, 1, 1, UP).last().map(String::as_str), Some("notify 1"));
    assert_eq!(link(&mut policy, 2, 3, UP), ["3 distributing", "active 3", "notify 3"]);
    assert_eq!(link(&mut policy, 3, 2, UP), ["2 distributing"], "as good as the active one");
    assert_eq!(link(&mut policy, 4, 3, DOWN), ["active 2", "notify 2", "3 down"]);
}

#[test]
fn the_operator_chooses() {
    let mut policy = new(backup(Settings::default()), 2);
    link(&mut policy, 1, 0, UP);
    policy.set_active(MemberId(1));
    assert_eq!(told(&mut policy, at(2)), [""; 0], "it is down");
    link(&mut policy, 3, 1, UP);
    policy.set_active(MemberId(1));
    assert_eq!(told(&mut policy, at(4)), ["active 1", "notify 1"]);
    let settings = Settings { primary: Some(MemberId(0)), reselect: Reselect::Failure, ..policy.settings().clone() };
    policy.set_settings(at(0), settings);
    assert_eq!(told(&mut policy, at(5)), ["active 0", "notify 0"], "a primary that is named becomes active at once");
}

/// A policy of members that are up, of which the operator chose the second, and its settings.
fn chosen(settings: Settings) -> (Policy, Settings) {
    let settings = backup(Settings { primary: Some(MemberId(0)), ..settings });
    let mut policy = new(settings.clone(), 3);
    for member in 0..3 {
        link(&mut policy, 1, member, UP);
    }
    policy.set_active(MemberId(1));
    assert_eq!(told(&mut policy, at(2)), ["active 1", "notify 1"]);
    (policy, settings)
}

#[test]
fn whom_the_operator_chose_stays_until_one_that_goes_before_it_comes_up() {
    let slow = LinkState { negotiated: Negotiated { mbit: Some(100), ..FAST }, ..UP };
    let (mut policy, settings) = chosen(Settings::default());
    assert_eq!(link(&mut policy, 3, 2, DOWN), ["2 down"], "a third one fails");
    assert_eq!(link(&mut policy, 4, 2, UP), ["2 distributing"], "and comes back");
    assert_eq!(link(&mut policy, 5, 0, slow), [""; 0]);
    // Something else of the configuration changes; members have other places.
    let states = [MemberState::Distributing; 3];
    let turned = Settings { primary: Some(MemberId(1)), ..settings.clone() };
    policy = next(&policy, &turned, &states, &[Some(1), Some(0), Some(2)]);
    for member in 0..3 {
        assert_eq!(link(&mut policy, 6, member, UP), [""; 0]);
    }
    policy.set_settings(at(6), turned);
    assert_eq!((told(&mut policy, at(6)), policy.active()), (vec![], Some(MemberId(0))));
    // The primary comes up.
    assert_eq!(link(&mut policy, 7, 1, DOWN), ["1 down"]);
    assert_eq!(link(&mut policy, 8, 1, UP), ["1 distributing", "active 1", "notify 1"]);

    let (mut policy, settings) = chosen(Settings::default());
    assert_eq!(link(&mut policy, 3, 1, DOWN), ["active 0", "notify 0", "1 down"], "it fails");
    assert_eq!(link(&mut policy, 4, 1, UP), ["1 distributing"]);
    // One that is preferred from now on is the operator's word, too.
    policy.set_active(MemberId(1));
    let more = Settings { priorities: vec![0, 0, 5], ..settings };
    told(&mut policy, at(5));
    policy = next(&policy, &more, &states, &[Some(0), Some(1), Some(2)]);
    policy.set_settings(at(6), more);
    assert_eq!(told(&mut policy, at(6)), ["active 0", "notify 0"]);
}

#[test]
fn a_primary_that_is_new_becomes_active_once_whatever_reselect_says() {
    let settings = Settings { primary: Some(MemberId(1)), reselect: Reselect::Failure, ..Settings::default() };
    let mut policy = new(backup(settings.clone()), 2);
    policy.await_primary();
    policy.suppose_link(at(0), MemberId(0), UP);
    policy.suppose_link(at(0), MemberId(1), UP);
    assert_eq!(policy.active(), Some(MemberId(1)));
    told(&mut policy, at(0));
    // It turns out to be down, and has its turn when it comes up.
    assert_eq!(link(&mut policy, 1, 0, UP), [""; 0]);
    assert_eq!(link(&mut policy, 1, 1, DOWN), ["active 0", "notify 0", "1 down"]);
    policy = next(&policy, &backup(settings), &[MemberState::Distributing, MemberState::Down], &[Some(0), Some(1)]);
    assert_eq!(link(&mut policy, 2, 1, UP), ["1 distributing", "active 1", "notify 1"]);
    // But once only.
    assert_eq!(link(&mut policy, 3, 1, DOWN), ["active 0", "notify 0", "1 down"]);
    assert_eq!(link(&mut policy, 4, 1, UP), ["1 distributing"]);
}

#[test]
fn a_new_primary_that_was_up_at_the_start_is_not_preferred_again() {
    let settings = Settings { primary: Some(MemberId(1)), reselect: Reselect::Failure, ..Settings::default() };
    let mut policy = new(backup(settings), 2);
    policy.await_primary();
    policy.suppose_link(at(0), MemberId(0), UP);
    policy.suppose_link(at(0), MemberId(1), UP);
    link(&mut policy, 1, 1, UP);
    assert_eq!(link(&mut policy, 2, 1, DOWN), ["active 0", "notify 0", "1 down"]);
    assert_eq!(link(&mut policy, 3, 1, UP), ["1 distributing"]);
}

#[test]
fn another_process_goes_on_with_who_is_used_and_who_is_active() {
    for is_chosen in [true, false] {
        let settings = match is_chosen {
            true => Settings { primary: Some(MemberId(0)), ..Settings::default() },
            false => Settings { primary: Some(MemberId(0)), reselect: Reselect::Failure, ..Settings::default() },
        };
        let settings = backup(Settings { updelay_ns: 100 * MS, ..settings });
        let mut old = new(settings.clone(), 3);
        link(&mut old, 1, 1, UP);
        link(&mut old, 1, 0, UP);
        told(&mut old, at(200));
        old.set_active(MemberId(u8::from(is_chosen)));
        if !is_chosen {
            link(&mut old, 210, 0, DOWN);
            link(&mut old, 220, 0, UP);
            told(&mut old, at(320));
        }
        let state = old.export();
        assert_eq!(state.used, [MemberId(0), MemberId(1)]);
        assert_eq!((state.active, state.is_chosen), (Some(MemberId(1)), is_chosen));
        let mut policy = new(settings, 3);
        policy.await_primary();
        for member in 0..3 {
            policy.suppose_link(at(400), MemberId(member), UP);
        }
        policy.import(at(400), &state);
        assert_eq!(told(&mut policy, at(400)), ["0 distributing", "1 distributing", "active 1", "notify 1"]);
        for member in 0..2 {
            assert_eq!(link(&mut policy, 401, member, UP), [""; 0]);
        }
        assert_eq!(link(&mut policy, 402, 2, DOWN), [""; 0]);
        link(&mut policy, 403, 0, DOWN);
        link(&mut policy, 404, 0, UP);
        let takes_over = told(&mut policy, at(504)).contains(&"active 0".to_owned());
        assert_eq!(takes_over, is_chosen, "with primary_reselect = failure it does not");
    }
    // A member that is not there, or down, is not the active one.
    let mut policy = new(backup(Settings::default()), 2);
    link(&mut policy, 0, 0, UP);
    for active in [1, 9] {
        policy.import(at(1), &MembersState { active: Some(MemberId(active)), ..MembersState::default() });
        assert_eq!((told(&mut policy, at(1)), policy.active()), (vec![], Some(MemberId(0))));
    }
}

#[test]
fn a_primary_whose_speed_is_known_later_takes_over_where_it_is_better() {
    let unknown = LinkState { negotiated: Negotiated::default(), ..UP };
    let slow = LinkState { negotiated: Negotiated { mbit: Some(100), ..FAST }, ..UP };
    let settings = Settings { primary: Some(MemberId(1)), reselect: Reselect::Better, ..Settings::default() };
    let mut policy = new(backup(settings), 2);
    assert_eq!(link(&mut policy, 1, 0, unknown), ["0 distributing", "active 0", "notify 0"]);
    assert_eq!(link(&mut policy, 2, 1, unknown), ["1 distributing"]);
    assert_eq!(link(&mut policy, 3, 0, slow), [""; 0]);
    assert_eq!(link(&mut policy, 4, 1, UP), ["active 1", "notify 1"]);
    assert_eq!(link(&mut policy, 5, 0, UP), [""; 0]);
}

/// Settings under which the operator has taken some members down.
fn taken_down(settings: &Settings, down: &[bool]) -> Settings {
    Settings { down: down.to_vec(), ..settings.clone() }
}

#[test]
fn a_member_that_is_down_by_hand_is_given_up_at_once_and_comes_back_after_updelay() {
    let settings = Settings { updelay_ns: 50 * MS, downdelay_ns: 50 * MS, ..backup(Settings::default()) };
    let mut policy = new(settings.clone(), 2);
    link(&mut policy, 1, 0, UP);
    link(&mut policy, 2, 1, UP);
    assert_eq!(told(&mut policy, at(52)), ["1 distributing"]);
    policy.set_settings(at(60), taken_down(&settings, &[true, false]));
    assert_eq!(told(&mut policy, at(60)), ["active 1", "notify 1", "0 standby"], "without downdelay");
    assert_eq!(link(&mut policy, 61, 0, DOWN), ["0 down"]);
    assert_eq!(link(&mut policy, 62, 0, UP), ["0 standby"], "its link does not bring it back");
    assert_eq!(policy.poll_timeout(), None);
    policy.set_settings(at(70), taken_down(&settings, &[false, false]));
    assert_eq!(told(&mut policy, at(119)), [""; 0]);
    assert_eq!(told(&mut policy, at(120)), ["0 distributing"]);
    // All of them: nothing is active, and the first that may be used again is, at once.
    policy.set_settings(at(130), taken_down(&settings, &[true, true]));
    assert_eq!(told(&mut policy, at(130)), ["active none", "0 standby", "1 standby"]);
    policy.set_settings(at(140), taken_down(&settings, &[true, false]));
    assert_eq!(told(&mut policy, at(140)), ["1 distributing", "active 1", "notify 1"]);
}

#[test]
fn a_link_that_waits_for_downdelay_is_given_up_at_once_by_hand() {
    let settings = Settings { downdelay_ns: 50 * MS, ..Settings::default() };
    let mut policy = new(settings.clone(), 2);
    link(&mut policy, 1, 0, UP);
    link(&mut policy, 2, 1, UP);
    assert_eq!(link(&mut policy, 10, 1, DOWN), [""; 0]);
    policy.set_settings(at(20), taken_down(&settings, &[false, true]));
    assert_eq!(told(&mut policy, at(20)), ["1 down"]);
}

#[test]
fn in_802_3ad_lacp_is_told_and_the_policy_follows_links_only() {
    let settings = Settings { mode: Mode::Lacp, ..Settings::default() };
    let mut policy = new(settings.clone(), 1);
    link(&mut policy, 1, 0, UP);
    policy.set_settings(at(2), taken_down(&settings, &[true]));
    assert_eq!(told(&mut policy, at(2)), [""; 0]);
}

#[test]
fn the_operator_chooses_an_active_member_that_is_up_and_it_stays_until_it_fails() {
    let mut policy = new(backup(Settings::default()), 3);
    for member in 0..2 {
        link(&mut policy, 1, member, UP);
    }
    policy.set_active(MemberId(2));
    assert_eq!(told(&mut policy, at(2)), [""; 0], "it is down");
    policy.set_active(MemberId(1));
    assert_eq!(told(&mut policy, at(3)), ["active 1", "notify 1"]);
    assert_eq!(link(&mut policy, 4, 2, UP), ["2 distributing"], "another does not take over");
    assert_eq!(link(&mut policy, 5, 1, DOWN), ["active 0", "notify 0", "1 down"]);
    assert_eq!(link(&mut policy, 6, 1, UP), ["1 distributing"], "it was chosen once");
    // In other modes there is none.
    let mut policy = new(Settings::default(), 1);
    link(&mut policy, 1, 0, UP);
    policy.set_active(MemberId(0));
    assert_eq!(policy.active(), None);
}
