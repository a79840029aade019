//! Telling the senders' hosts: what at once, what gathered, and again before it is forgotten.
//!
//! A new agent does not know what the one before it asked for, and whom that limits too much sends
//! no more than it may: nothing shows it. So at first it greets each host that something comes
//! from, and the host's agent lets go of what the earlier life asked for. Nothing is acknowledged
//! here either: it greets again, ever less often, for as long as such a limit can be in force.

use super::super::leases::MAX_LEASE_MS;
use super::super::message::{Pair as Word, Say};
use super::super::meter::Meter;
use super::super::post::Post;
use super::pair::{GRACE_NS, Limit};
use super::{Controller, Directory, Instant, Receiver, SAMPLE_NS};
use datapath::program::TenantId;
use datapath::units::Rate;
use datapath::wire::Mac;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

/// Hosts a second that are told again what they know. With 100 more for what changes it makes the
/// 500 datagrams a second of a host.
const AGAIN_PER_SECOND: u64 = 400;
/// What is told holds for four times as long as until it is told again: with 30 % of loss fewer
/// than one in a hundred run out.
const LEASE_OF_AGAIN: u64 = 4;
/// The shortest and longest times until something is told again: leases from 240 ms on, with up to
/// 24 hosts, to 2 s, with 200.
const AGAIN_MIN_NS: u64 = 60_000_000;
const AGAIN_MAX_NS: u64 = 500_000_000;
/// One that ignores what it is told is told again after this part (one in) of that time. Where
/// there are many such, so many of them a second, and none later than others: they must not use up
/// what is there for who listens.
const IGNORED_PART: u64 = 4;
const IGNORED_PER_SECOND: u64 = 200;
/// Large changes are gathered for this long, small ones until the host would be told again.
const SOON_NS: u64 = 2_000_000;

/// For so long after its start an agent greets: after that no lease of an earlier life is in force.
const GREET_NS: u64 = MAX_LEASE_MS as u64 * 1_000_000;

/// Cuts that make together less than this part of the link (one in) are small: half of the usual
/// headroom. So are raises: what noise makes of a few hundred limits.
const SMALL_CUTS_PART: u64 = 100;
const SMALL_RAISES_PART: u64 = 32;

/// What a sender to a service may send more than it does to backends that do not limit it, as a
/// part of that (one in); and what it may begin with there, as a part of what it is limited to at
/// others, or of the link where that is more: many senders begin together.
const GROWTH_PART: u64 = 4;
const BEGIN_PART: u64 = 32;
const BEGIN_PART_OF_LINK: u64 = 2048;

/// How often the hosts that have limits are counted.
const COUNT_NS: u64 = 250_000_000;

/// How soon a host is to be told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Urgency {
    /// If it is told something else anyway.
    Passing,
    /// A change of 1.6 %.
    Later,
    /// A change of an eighth, a cut of 3 %.
    Soon,
    /// A new limit, a cut by an eighth.
    Now,
    /// It was raised, and seems not to know: what it was told, once more.
    Repeat,
    /// Its lease would run out, or it sends more than it was told: the word was lost. However small
    /// that is for the link, it does not pass.
    Again,
}

/// After how long a sender is told again what it was told, and one that ignores it.
#[derive(Clone, Copy, Debug)]
struct Times {
    again_ns: u64,
    ignored_ns: u64,
}

impl Urgency {
    /// How long a host must not have been told anything before it is told something of this
    /// urgency.
    fn spacing_ns(self, again_ns: u64) -> u64 {
        match self {
            Urgency::Passing | Urgency::Later => again_ns,
            Urgency::Soon => SOON_NS,
            Urgency::Again | Urgency::Repeat | Urgency::Now => SAMPLE_NS / 2,
        }
    }
}

/// Memory that is used again.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Host, receiver, place among its senders, urgency.
    due: Vec<(u32, u32, u32, Urgency)>,
    /// The hosts to be told: how urgent, when they were told last, and which of `due` are theirs.
    turns: Vec<(Reverse<Urgency>, Option<Instant>, Range<usize>)>,
    /// Receivers of whose senders nothing is due.
    passed: Vec<u32>,
    /// By host: how urgent.
    most: Vec<Urgency>,
    /// By host: the last count in which it had a limit.
    counted: Vec<u64>,
    count: u64,
    counted_at: Option<Instant>,
    /// Hosts that have limits.
    hosts: u64,
}

impl Scratch {
    fn again_ns(&self) -> u64 {
        (self.hosts * 1_000_000_000 / AGAIN_PER_SECOND).clamp(AGAIN_MIN_NS, AGAIN_MAX_NS)
    }

    /// After how long one of so many that ignore what they are told is told again.
    fn ignored_ns(&self, ignoring: u64) -> u64 {
        let again_ns = self.again_ns();
        (ignoring * 1_000_000_000 / IGNORED_PER_SECOND).clamp(again_ns / IGNORED_PART, again_ns)
    }

    fn lease_ms(&self) -> u16 {
        (self.again_ns() * LEASE_OF_AGAIN / 1_000_000) as u16
    }

    fn count(&mut self, host: u32) {
        // Whoever is met counts; who is not met any more goes when all are counted anew.
        if self.counted[host as usize] != self.count {
            self.counted[host as usize] = self.count;
            self.hosts += 1;
        }
    }
}

impl Limit {
    /// Whether it may have half as much again as it was told.
    fn is_far_behind(&self) -> bool {
        self.told.is_some_and(|told| self.rate >= told.saturating_add(told / 2))
    }

    fn urgency(&self, now: Instant, meter: &Meter, noise: u64, times: Times) -> Option<Urgency> {
        let Times { again_ns, ignored_ns } = times;
        let Some(told) = self.told else { return Some(Urgency::Now) };
        let silent = now.since(self.said_at);
        let changed = self.rate.abs_diff(told);
        // Who ignores its limit may only have been out of reach: as soon as it can hear again, it
        // should.
        let patience_ns = if self.ignores { ignored_ns } else { GRACE_NS };
        let unheard =
            || silent > patience_ns && (self.exceeds(now, meter.fast, noise) || self.overruns(now, meter, noise));
        // One that was raised and is not used may not be known: once more, and again after twice
        // the time, until it is told anyway. When that is stays as it is: who is told a little more
        // or less in another millisecond than the others falls out of step with them.
        let is_unused = || now.since(self.raised_at) < again_ns && meter.slow.max(meter.fast) < told - told / 16;
        let spoken_at = self.said_at.max(self.repeated_at);
        let is_due = || now.since(spoken_at) >= spoken_at.since(self.raised_at).max(GRACE_NS);
        if silent >= again_ns || unheard() {
            Some(Urgency::Again)
        } else if self.each.is_cut() || self.rate < told - told / 8 {
            Some(Urgency::Now)
        } else if is_unused() && is_due() {
            Some(Urgency::Repeat)
        } else if changed > told / 8 || self.rate < told - told / 32 {
            Some(Urgency::Soon)
        } else if changed > told / 64 || self.each.is_raised() {
            Some(Urgency::Later)
        } else {
            (changed > told / 256 || silent > again_ns / 2).then_some(Urgency::Passing)
        }
    }
}

impl Controller {
    /// Tells the hosts what they must know now.
    pub(super) fn tell(&mut self, now: Instant, noise: u64, directory: &Directory, post: &mut Post) {
        let again_ns = self.post.again_ns();
        let times = Times { again_ns, ignored_ns: self.post.ignored_ns(self.ignoring) };
        let (mut cut, mut raised) = (0, 0);
        self.post.due.clear();
        self.post.passed.clear();
        let counts = !self.has_many() || self.post.counted_at.is_none_or(|at| now.since(at) >= COUNT_NS);
        if counts {
            self.post.counted_at = Some(now);
            self.post.count += 1;
            self.post.hosts = 0;
        }
        for &index in self.active.iter() {
            let receiver = &mut self.receivers[index as usize];
            let is_told = receiver.settled.is_some() && receiver.told_until.is_some_and(|until| now < until);
            if receiver.limited == 0 {
                continue;
            }
            if is_told && !counts {
                self.post.passed.push(index);
                continue;
            }
            let (mut until, mut is_raised) = (now.plus_ns(again_ns), false);
            let tenant = TenantId(receiver.tenant);
            for (at, pair) in receiver.pairs.iter_mut().enumerate() {
                let Some(limit) = &mut pair.limit else { continue };
                let host = *pair.host.get_or_insert_with(|| {
                    directory.host_in_network_of(tenant, pair.from).map(|host| post.number(host))
                });
                let Some(host) = host else {
                    // Nobody can be told; what it ought to heed is the scheduler.
                    limit.tell(now);
                    continue;
                };
                if self.post.counted.len() <= host as usize {
                    self.post.counted.resize(host as usize + 1, 0);
                }
                self.post.count(host);
                let told = limit.told.unwrap_or(pair.meter.fast);
                cut += told.saturating_sub(limit.rate);
                raised += limit.rate.saturating_sub(told);
                let urgency = limit.urgency(now, &pair.meter, noise, times);
                self.post.due.extend(urgency.map(|urgency| (host, index, at as u32, urgency)));
                let said_at = if urgency <= Some(Urgency::Passing) { limit.said_at } else { now };
                until = until.min(said_at.plus_ns(if limit.ignores { times.ignored_ns } else { again_ns }));
                // Whether it is to be said once more shows in the meantime.
                is_raised |= now.since(limit.raised_at) < again_ns || limit.rate.saturating_sub(told) > told / 16;
            }
            // What is due is said below, or this is taken back.
            receiver.told_until = (!is_raised).then_some(until);
        }
        // What is large for one pair can be small for the link, unless it was told so little that
        // it would wait in vain.
        let link = directory.link.map_or(0, |link| link.ingress.0);
        if cut < link / SMALL_CUTS_PART && raised < link / SMALL_RAISES_PART {
            for &mut (_, index, at, ref mut urgency) in &mut self.post.due {
                let limit = self.receivers[index as usize].pairs[at as usize].limit.as_deref();
                if matches!(urgency, Urgency::Soon | Urgency::Now) && !limit.is_some_and(Limit::is_far_behind) {
                    *urgency = Urgency::Later;
                }
            }
        }
        self.gather(now, noise, times, post);
        self.say(now, directory, post);
    }

    /// Leaves of what is due only what is for hosts to which something is worth a datagram now, and
    /// adds what goes with it.
    fn gather(&mut self, now: Instant, noise: u64, times: Times, post: &mut Post) {
        self.state.owes = false;
        let Scratch { due, most, counted, passed, .. } = &mut self.post;
        most.clear();
        most.resize(counted.len(), Urgency::Passing);
        for &(host, .., urgency) in due.iter() {
            let most = &mut most[host as usize];
            *most = urgency.max(*most);
        }
        for (most, host) in most.iter_mut().zip(0..).filter(|(most, _)| **most > Urgency::Passing) {
            let silent = post.peer(host).sent_at.map_or(u64::MAX, |at| now.since(at));
            if silent < most.spacing_ns(times.again_ns) {
                self.state.owes |= *most >= Urgency::Soon;
                *most = Urgency::Passing;
            }
        }
        let receivers = &mut self.receivers;
        due.retain(|&(host, index, _, urgency)| {
            let stays = most[host as usize] > Urgency::Passing;
            if !stays && urgency > Urgency::Passing {
                receivers[index as usize].told_until = None;
            }
            stays
        });
        if due.is_empty() {
            return;
        }
        for &index in passed.iter() {
            for (at, pair) in self.receivers[index as usize].pairs.iter().enumerate() {
                let (Some(host), Some(limit)) = (pair.host.flatten(), &pair.limit) else { continue };
                if most.get(host as usize).is_none_or(|&most| most == Urgency::Passing) {
                    continue;
                }
                let urgency = limit.urgency(now, &pair.meter, noise, times);
                due.extend(urgency.map(|urgency| (host, index, at as u32, urgency)));
            }
        }
    }

    /// Writes to the hosts.
    fn say(&mut self, now: Instant, directory: &Directory, post: &mut Post) {
        let mut due = std::mem::take(&mut self.post.due);
        let mut turns = std::mem::take(&mut self.post.turns);
        due.sort_unstable();
        turns.clear();
        let mut from = 0;
        for group in due.chunk_by(|a, b| a.0 == b.0) {
            let most = group.iter().map(|&(.., urgency)| urgency).max().unwrap_or(Urgency::Passing);
            turns.push((Reverse(most), post.peer(group[0].0).sent_at, from..from + group.len()));
            from += group.len();
        }
        // Where not all can be told, who has waited longest is.
        turns.sort_unstable_by_key(|turn| (turn.0, turn.1));
        let lease_ms = self.post.lease_ms();
        for (Reverse(most), _, range) in turns.drain(..) {
            let group = &due[range];
            let host = group[0].0;
            let receivers = &self.receivers;
            let mut words = Words::default();
            for &(_, index, at, urgency) in group {
                let receiver = &receivers[index as usize];
                let pair = &receiver.pairs[at as usize];
                let rate = |limit: &Limit| limit.told.filter(|_| urgency == Urgency::Repeat).unwrap_or(limit.rate);
                let phase = |limit: &Limit| receiver.cycle.phase(now, limit.place);
                let limit = pair.limit.as_deref();
                let each = |limit: &Limit| limit.each.of(rate(limit));
                let say = Say::Rate(Rate(limit.map_or(u64::MAX, each)), limit.map_or(0, phase));
                words.add(directory, index, pair.from, say, |tenant, service| {
                    of_service(now, receivers, directory, (tenant, service), pair.from)
                });
            }
            let Words { all, counts, .. } = words;
            let mut said = post.write(now, host, lease_ms, most >= Urgency::Soon, all.into_iter());
            for (nth, (&(_, index, at, urgency), words)) in group.iter().zip(counts).enumerate() {
                let Some(left) = said.checked_sub(words) else {
                    self.state.owes |= most >= Urgency::Soon;
                    for &(_, index, ..) in &group[nth..] {
                        self.receivers[index as usize].told_until = None;
                    }
                    break;
                };
                said = left;
                let pair = &mut self.receivers[index as usize].pairs[at as usize];
                match &mut pair.limit {
                    Some(limit) if urgency == Urgency::Repeat => limit.repeated_at = now,
                    Some(limit) => limit.tell(now),
                    None => {}
                }
            }
        }
        (self.post.due, self.post.turns) = (due, turns);
    }

    /// Lets hosts from which something comes know that there is a new agent here: at once, and each
    /// time it has become twice as old.
    pub fn greet(&mut self, now: Instant, directory: &Directory, post: &mut Post) {
        let age_ns = now.since(*self.born.get_or_insert(now));
        if age_ns > GREET_NS {
            return;
        }
        for &index in &self.active {
            let receiver = &mut self.receivers[index as usize];
            let tenant = TenantId(receiver.tenant);
            for pair in receiver.pairs.iter_mut().filter(|pair| pair.seen == now) {
                let host = *pair.host.get_or_insert_with(|| {
                    directory.host_in_network_of(tenant, pair.from).map(|host| post.number(host))
                });
                if let Some(host) = host {
                    post.greet(now, host, (age_ns / 2).max(SAMPLE_NS));
                }
            }
        }
    }

    /// Tells all that have limits that these are over. What is lost of this is made good by leases.
    pub(super) fn say_lifted(&mut self, now: Instant, directory: &Directory, post: &mut Post) {
        let mut lifted = Vec::new();
        for &index in &self.active {
            let pairs = self.receivers[index as usize].pairs.iter().filter(|pair| pair.limit.is_some());
            lifted.extend(pairs.filter_map(|pair| Some((pair.host??, index, pair.from))));
        }
        lifted.sort_unstable();
        for group in lifted.chunk_by(|a, b| a.0 == b.0) {
            let mut words = Words::default();
            for &(_, index, from) in group {
                words.add(directory, index, from, Say::Lift, |_, _| Say::Lift);
            }
            post.write(now, group[0].0, self.post.lease_ms(), true, words.all.into_iter());
        }
    }

    /// Lifts the limits of a receiver that nobody needs any more.
    pub(super) fn lift_unused(&mut self, now: Instant, index: u32, directory: &Directory, post: &mut Post) {
        let receiver = &mut self.receivers[index as usize];
        let before = receiver.limited;
        let mut taken = receiver.take_unused(now);
        self.limited -= (before - receiver.limited) as usize;
        taken.sort_unstable_by_key(|&(_, host)| host);
        for group in taken.chunk_by(|a, b| a.1 == b.1) {
            let Some(host) = group[0].1 else { continue };
            let mut words = Words::default();
            for &(from, _) in group {
                words.add(directory, index, from, Say::Lift, |tenant, service| {
                    of_service(now, &self.receivers, directory, (tenant, service), from)
                });
            }
            post.write(now, host, self.post.lease_ms(), false, words.all.into_iter());
        }
    }
}

/// What is said to one host.
#[derive(Default)]
struct Words<'a> {
    all: Vec<Word<'a>>,
    /// How many of them each pair added, in order.
    counts: Vec<usize>,
    /// Of which senders to which services something is said already.
    said: BTreeSet<(TenantId, Mac, Mac)>,
}

impl<'a> Words<'a> {
    /// What is said of a sender to an own endpoint: `say` for each of the endpoint's addresses, and
    /// what `of_service` says of each service whose backend it is, once.
    fn add(
        &mut self,
        directory: &'a Directory,
        index: u32,
        from: Mac,
        say: Say,
        of_service: impl Fn(TenantId, Mac) -> Say,
    ) {
        let before = self.all.len();
        let endpoint = directory.endpoints.get(index);
        if let Some((endpoint, tenant)) = endpoint.and_then(|e| Some((e, directory.tenants.get(e.tenant.0)?))) {
            let tenant = &tenant.name;
            self.all.extend(endpoint.addresses.iter().map(|&to| Word { tenant, to, from, say }));
            for &to in &endpoint.services {
                if self.said.insert((endpoint.tenant, to, from)) {
                    self.all.push(Word { tenant, to, from, say: of_service(endpoint.tenant, to) });
                }
            }
        }
        self.counts.push(self.all.len() - before);
    }
}

/// What is said of a sender to a service: what its backends here take of it together. Where some
/// have no limit for it, it may send them a fourth more than it does, and begin elsewhere with a
/// little; how much one backend gets of that is for the service to say, so what it gets beyond its
/// limit is taken off.
fn of_service(
    now: Instant,
    receivers: &[Receiver],
    directory: &Directory,
    (tenant, service): (TenantId, Mac),
    from: Mac,
) -> Say {
    let (mut limited, mut loose, mut beyond, mut is_limited) = (0u64, 0u64, 0u64, false);
    for backend in directory.backends(tenant, service) {
        let Some(receiver) = receivers.get(backend.0 as usize) else { continue };
        let Some(pair) = receiver.pair(from) else { continue };
        let mut meter = pair.meter;
        meter.rest(now.since(pair.fed));
        match &pair.limit {
            Some(limit) => {
                is_limited = true;
                limited = limited.saturating_add(limit.rate);
                beyond = beyond.saturating_add(meter.slow.saturating_sub(limit.rate));
            }
            None => loose = loose.saturating_add(meter.fast.max(meter.slow)),
        }
    }
    if !is_limited {
        return Say::Lift;
    }
    let link = directory.link.map_or(0, |link| link.ingress.0);
    let begin = (limited / BEGIN_PART).max(link / BEGIN_PART_OF_LINK);
    let may_grow = (loose + loose / GROWTH_PART + begin).saturating_sub(beyond);
    Say::Rate(Rate(limited.saturating_add(may_grow)), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 1_000_000;

    const TIMES: Times = Times { again_ns: AGAIN_MIN_NS, ignored_ns: AGAIN_MIN_NS / IGNORED_PART };

    /// A sender that was told 27 Mbit/s long ago, and sends 39, because it did not hear it.
    fn unheard(ignores: bool) -> (Limit, Meter) {
        let mut limit = Limit::new(Instant(1), 0);
        limit.rate = 27 * MBIT;
        limit.tell(Instant(1));
        limit.ignores = ignores;
        (limit, Meter { fast: 40 * MBIT, slow: 39 * MBIT })
    }

    #[test]
    fn what_was_not_heard_is_said_again_however_small_it_is_for_the_link() {
        let urgency = |ignores, after_ns| {
            let (limit, meter) = unheard(ignores);
            limit.urgency(Instant(1 + after_ns), &meter, 5 * MBIT, TIMES)
        };
        assert_eq!(urgency(false, GRACE_NS + 1), Some(Urgency::Again));
        assert_ne!(urgency(false, GRACE_NS), Some(Urgency::Again), "what was sent before may still arrive");
        assert_eq!(urgency(true, AGAIN_MIN_NS / IGNORED_PART + 1), Some(Urgency::Again));
        assert_ne!(urgency(true, GRACE_NS + 1), Some(Urgency::Again), "who does not listen is not talked at");
    }

    #[test]
    fn who_has_half_of_its_rate_does_not_wait_for_others() {
        let (mut limit, _) = unheard(false);
        let mut is_behind = |rate| {
            limit.rate = rate;
            limit.is_far_behind()
        };
        assert!(is_behind(54 * MBIT) && is_behind(41 * MBIT));
        assert!(!is_behind(40 * MBIT) && !is_behind(10 * MBIT));
        assert!(!Limit::new(Instant(1), 0).is_far_behind(), "that is told at once anyway, or as many are");
    }

    /// The milliseconds, within 120 ms of a raise from 20 to 40 Mbit/s, at which it is said again
    /// while this much arrives.
    fn repeated(arrives: u64) -> Vec<u64> {
        let mut limit = Limit::new(Instant(0), 0);
        for rate in [20 * MBIT, 40 * MBIT] {
            limit.rate = rate;
            limit.tell(Instant(1));
        }
        let meter = Meter { fast: arrives, slow: arrives };
        let mut said = Vec::new();
        for ms in 1..=120 {
            let now = Instant(1 + ms * 1_000_000);
            match limit.urgency(now, &meter, 5 * MBIT, TIMES) {
                Some(Urgency::Repeat) => limit.repeated_at = now,
                Some(Urgency::Again) => limit.tell(now),
                _ => continue,
            }
            said.push(ms);
        }
        said
    }

    #[test]
    fn a_raise_that_is_not_used_is_said_again_and_ever_less_often() {
        assert_eq!(repeated(20 * MBIT), [6, 12, 24, 48, 60, 120]);
        assert_eq!(repeated(39 * MBIT), [60, 120]);
    }

    #[test]
    fn many_that_ignore_what_they_are_told_do_not_use_up_what_may_be_said() {
        let post = Scratch { hosts: 50, ..Scratch::default() };
        let told = |ignoring| 1_000_000_000 * ignoring / post.ignored_ns(ignoring);
        assert_eq!(post.ignored_ns(1), post.again_ns() / IGNORED_PART, "soon, where it is one");
        assert_eq!(told(20), IGNORED_PER_SECOND);
        assert_eq!(post.ignored_ns(500), post.again_ns(), "with the others, where there are many");
    }
}
