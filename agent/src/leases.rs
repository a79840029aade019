//! The sending side: limits that other hosts' agents asked for, for as long as they do.
//!
//! A limit for a pair holds under a *lease*. One that is not renewed, or whose receiver said that
//! it is over, is relaxed: raised by a quarter every [`RELAX_NS`] until it is as fast as the link,
//! then lifted. So whatever becomes of a receiver, its host, or its messages, a sender is free
//! again at most [`free_within_ns`] after the last that was heard. What a host's agent asked for in
//! an earlier life ends sooner ([`ORPHAN_NS`]).
//!
//! Gatekeeper's limit of all that an endpoint sends (`LIM`) is halved by each notification and
//! grows back linearly by itself.

use super::Settings;
use super::events::{Toward, Tuning};
use datapath::program::EndpointId;
use datapath::units::{Instant, Rate};
use datapath::wire::Mac;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most pairs of one switch that are limited at a time. Of these one host may ask for as many as
/// are left free (dynamic thresholds, Choudhury and Hahne 1998): half where it is alone, and none
/// can shut out the others.
pub const MOST_LEASES: usize = 4096;
/// Longest lease that is believed, in milliseconds.
pub const MAX_LEASE_MS: u16 = 2000;
/// Time between two raises of a limit whose lease ran out: a sample and a round trip, in which a
/// receiver that is still in need asks again. Four of them are more than a doubling. (With one
/// doubling each 10 ms, a receiver's new agent found its link overrun before it could speak.)
pub const RELAX_NS: u64 = 2_500_000;
/// When a host's new agent was heard of first, what the one before it asked for holds for so long,
/// unless the new one asks for it too: it does not know whom it limits. Enough for it to measure
/// for some samples, and to say what it wants although a word or two are lost.
pub const ORPHAN_NS: u64 = 20_000_000;
/// Of a limit of which it is not known who asked: lives are larger.
const NO_LIFE: u64 = 0;
/// The slowest limit that is set, whatever is asked for: from here to 400 Gbit/s takes 68 raises.
pub const SLOWEST: Rate = Rate(128_000);

/// After how long nothing is left of a limit that was heard of last with this lease, on a link of
/// this rate.
#[must_use]
pub fn free_within_ns(lease_ms: u16, link: Rate) -> u64 {
    let doublings = (link.0 / SLOWEST.0).max(1).ilog2() + 1;
    u64::from(lease_ms.min(MAX_LEASE_MS)) * 1_000_000 + u64::from(doublings) * 4 * RELAX_NS
}

/// A limit for a pair.
#[derive(Clone, Debug)]
struct Lease {
    /// Who asked for it.
    host: Arc<str>,
    /// The datagram that asked last.
    asked: (u64, u64),
    rate: Rate,
    /// When it runs out; of one that is relaxed, its next step.
    due: Instant,
    relaxing: bool,
}

/// Gatekeeper's limit of an endpoint.
#[derive(Clone, Debug)]
struct Brake {
    host: Arc<str>,
    rate: Rate,
    /// When it grows next.
    due: Instant,
}

/// A limit that is in force, for reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Obeyed {
    /// The own endpoint.
    pub from: EndpointId,
    /// Which of its traffic.
    pub to: Toward,
    /// At most this much now.
    pub rate: Rate,
    /// The host that asked for it.
    pub host: Arc<str>,
    /// Whether it is on the way to being lifted.
    pub relaxing: bool,
}

/// All limits that are in force at the own endpoints.
#[derive(Debug, Default)]
pub(super) struct Leases {
    pairs: BTreeMap<(EndpointId, Mac), Lease>,
    /// How many of them each host asked for.
    counts: BTreeMap<Arc<str>, usize>,
    brakes: BTreeMap<EndpointId, Brake>,
    /// What the switch is to be told.
    tunings: BTreeMap<(EndpointId, Toward), Option<Rate>>,
    /// When the turn of those is that were asked for: a word that took longer to one sender than to
    /// another would bring them nearer to each other.
    phases: BTreeMap<(EndpointId, Mac), u8>,
    /// Nothing is due before.
    next: Option<Instant>,
}

/// What became of what was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    Done,
    /// A newer datagram has spoken of it.
    Old,
    /// There is no room.
    Full,
}

impl Leases {
    /// `host` asks that `from` send `to` at most this rate for so many milliseconds; where that is
    /// new, from this phase on.
    pub fn limit(
        &mut self,
        now: Instant,
        host: &Arc<str>,
        asked: (u64, u64),
        (from, to): (EndpointId, Mac),
        (rate, lease_ms): (Rate, u16),
        phase: u8,
    ) -> Asked {
        let rate = rate.clamp(SLOWEST, Rate::MAX);
        let due = now.plus_ns(u64::from(lease_ms.min(MAX_LEASE_MS)) * 1_000_000);
        let full = self.counts.get(host).copied().unwrap_or(0) >= MOST_LEASES - self.pairs.len();
        let known = self.pairs.get_mut(&(from, to));
        let changed = match known {
            Some(lease) if lease.host == *host && lease.asked >= asked => return Asked::Old,
            None if full => return Asked::Full,
            Some(lease) => {
                let changed = lease.rate != rate;
                if lease.host != *host {
                    count_out(&mut self.counts, &lease.host);
                    *self.counts.entry(host.clone()).or_default() += 1;
                }
                *lease = Lease { host: host.clone(), asked, rate, due, relaxing: false };
                changed
            }
            None => {
                *self.counts.entry(host.clone()).or_default() += 1;
                self.pairs.insert((from, to), Lease { host: host.clone(), asked, rate, due, relaxing: false });
                true
            }
        };
        if changed {
            self.tunings.insert((from, Toward::Address(to)), Some(rate));
            self.phases.insert((from, to), phase);
        }
        self.due(due);
        Asked::Done
    }

    /// `host` says that its limit is over.
    pub fn lift(&mut self, now: Instant, host: &Arc<str>, asked: (u64, u64), from: EndpointId, to: Mac) -> Asked {
        let Some(lease) = self.pairs.get_mut(&(from, to)) else { return Asked::Done };
        if lease.host != *host || lease.asked >= asked {
            return Asked::Old;
        }
        lease.asked = asked;
        lease.relax(now);
        self.due(now);
        Asked::Done
    }

    /// `host` notifies that `from` causes drops: halve all that it sends.
    pub fn halve(&mut self, now: Instant, host: &Arc<str>, from: EndpointId, link: Rate, settings: &Settings) -> Asked {
        if self.brakes.len() >= MOST_LEASES && !self.brakes.contains_key(&from) {
            return Asked::Full;
        }
        let due = now.plus_ns(settings.gatekeeper.sample_ns);
        let brake = self.brakes.entry(from).or_insert(Brake { host: host.clone(), rate: link, due });
        brake.rate = Rate(brake.rate.0.min(link.0) / 2).max(SLOWEST);
        brake.host = host.clone();
        self.tunings.insert((from, Toward::Everyone), Some(brake.rate));
        self.due(due);
        Asked::Done
    }

    /// `host` has a new agent, in this life: limits of the one before are orphans.
    pub fn orphan(&mut self, now: Instant, host: &str, life: u64) {
        let soon = now.plus_ns(ORPHAN_NS);
        let of_host = self.pairs.values_mut().filter(|lease| *lease.host == *host);
        for lease in of_host.filter(|lease| lease.asked.0 != life && lease.asked.0 != NO_LIFE) {
            lease.due = lease.due.min(soon);
        }
        self.due(soon);
    }

    /// A limit is in force that an earlier agent of this switch was asked for, by `host`: it runs
    /// out like any other.
    pub fn adopt(&mut self, now: Instant, host: Arc<str>, from: EndpointId, to: Toward, rate: Rate) {
        match to {
            Toward::Address(to) => {
                let due = now.plus_ns(u64::from(MAX_LEASE_MS) * 1_000_000);
                *self.counts.entry(host.clone()).or_default() += 1;
                self.pairs.insert((from, to), Lease { host, asked: (NO_LIFE, 0), rate, due, relaxing: false });
                self.due(due);
            }
            Toward::Everyone => {
                self.brakes.insert(from, Brake { host, rate, due: now });
                self.due(now);
            }
        }
    }

    fn due(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Relaxes what has run out, lets brakes grow, and lifts what is as fast as the link.
    pub fn advance(&mut self, now: Instant, link: Rate, settings: &Settings) {
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        let (tunings, counts, mut next) = (&mut self.tunings, &mut self.counts, None::<Instant>);
        self.pairs.retain(|&(from, to), lease| {
            if now >= lease.due {
                lease.relax(now);
                lease.rate = Rate(lease.rate.0.saturating_add(lease.rate.0 / 4));
                lease.due = now.plus_ns(RELAX_NS);
                let rate = Some(lease.rate).filter(|&rate| rate < link);
                tunings.insert((from, Toward::Address(to)), rate);
                if rate.is_none() {
                    count_out(counts, &lease.host);
                    return false;
                }
            }
            next = Some(next.map_or(lease.due, |next| next.min(lease.due)));
            true
        });
        let step = settings.gatekeeper.growth(link);
        self.brakes.retain(|&from, brake| {
            if now >= brake.due {
                // Linear in time, however seldom a busy machine comes by.
                let samples = 1 + now.since(brake.due) / settings.gatekeeper.sample_ns.max(1);
                brake.rate = Rate(brake.rate.0.saturating_add(step.saturating_mul(samples)));
                brake.due = now.plus_ns(settings.gatekeeper.sample_ns);
                let rate = Some(brake.rate).filter(|&rate| rate < link);
                tunings.insert((from, Toward::Everyone), rate);
                if rate.is_none() {
                    return false;
                }
            }
            next = Some(next.map_or(brake.due, |next| next.min(brake.due)));
            true
        });
        self.next = next;
    }

    /// The world has changed: limits whose receiver is elsewhere now are relaxed, those of
    /// endpoints that are gone forgotten. `place` says where a pair's receiver is, `is_own` whether
    /// an endpoint is still here.
    pub fn revise(
        &mut self,
        now: Instant,
        is_own: impl Fn(EndpointId) -> bool,
        place: impl Fn(EndpointId, Mac) -> Option<Arc<str>>,
    ) {
        let (tunings, counts) = (&mut self.tunings, &mut self.counts);
        let mut relaxed = false;
        self.pairs.retain(|&(from, to), lease| {
            let stays = is_own(from);
            if !stays {
                count_out(counts, &lease.host);
                tunings.insert((from, Toward::Address(to)), None);
            } else if !lease.relaxing && place(from, to).as_ref() != Some(&lease.host) {
                lease.relax(now);
                relaxed = true;
            }
            stays
        });
        self.brakes.retain(|&from, _| {
            let stays = is_own(from);
            if !stays {
                tunings.insert((from, Toward::Everyone), None);
            }
            stays
        });
        if relaxed {
            self.due(now);
        }
    }

    /// The next thing that the switch is to be told.
    pub fn poll(&mut self) -> Option<Tuning> {
        let ((from, to), rate) = self.tunings.pop_first()?;
        let phase = match to {
            Toward::Address(mac) => self.phases.remove(&(from, mac)),
            Toward::Everyone => None,
        };
        Some(Tuning { from, to, rate, phase })
    }

    /// When [`Leases::advance`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next
    }

    /// What is in force.
    pub fn report(&self) -> impl Iterator<Item = Obeyed> + '_ {
        let pairs = self.pairs.iter().map(|(&(from, to), lease)| Obeyed {
            from,
            to: Toward::Address(to),
            rate: lease.rate,
            host: lease.host.clone(),
            relaxing: lease.relaxing,
        });
        let brakes = self.brakes.iter().map(|(&from, brake)| Obeyed {
            from,
            to: Toward::Everyone,
            rate: brake.rate,
            host: brake.host.clone(),
            relaxing: true,
        });
        pairs.chain(brakes)
    }
}

/// A limit that `host` asked for is gone.
fn count_out(counts: &mut BTreeMap<Arc<str>, usize>, host: &Arc<str>) {
    if let Some(count) = counts.get_mut(host) {
        *count -= 1;
        if *count == 0 {
            counts.remove(host);
        }
    }
}

impl Lease {
    fn relax(&mut self, now: Instant) {
        if !self.relaxing {
            self.relaxing = true;
            self.due = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Rate = Rate(Rate::GBIT);

    fn mac(n: usize) -> Mac {
        let [a, b] = (n as u16).to_be_bytes();
        Mac([2, 0, 0, 0, a, b])
    }

    /// `host` asks for a limit, in life 1.
    fn ask(leases: &mut Leases, host: &str, n: usize) -> Asked {
        leases.limit(Instant(1), &host.into(), (1, 1 + n as u64), (EndpointId(0), mac(n)), (Rate(1_000_000), 2000), 7)
    }

    #[test]
    fn one_host_cannot_take_the_room_of_the_others() {
        let mut leases = Leases::default();
        let taken = (0..MOST_LEASES).filter(|&n| ask(&mut leases, "greedy", n) == Asked::Done).count();
        assert_eq!(taken, MOST_LEASES / 2);
        let others = (0..100).filter(|&n| ask(&mut leases, "modest", MOST_LEASES + n) == Asked::Done).count();
        assert_eq!(others, 100);
        // What is free again may be asked for again.
        let end = Instant(1 + free_within_ns(2000, LINK));
        let mut now = Instant(1);
        while let Some(due) = leases.poll_timeout() {
            now = now.max(due);
            leases.advance(now, LINK, &Settings::default());
        }
        assert!(now <= end && leases.pairs.is_empty() && leases.counts.is_empty(), "{:?}", leases.counts);
    }

    #[test]
    fn who_is_limited_anew_or_otherwise_is_told_its_turn() {
        let (mut leases, host) = (Leases::default(), Arc::from("h"));
        let mut tuned = |sequence, rate, phase| {
            let asked = (1, sequence);
            leases.limit(Instant(1), &host, asked, (EndpointId(0), mac(1)), (Rate(rate), 2000), phase);
            leases.poll().map(|tuning| (tuning.rate, tuning.phase))
        };
        assert_eq!(tuned(1, 1_000_000, 7), Some((Some(Rate(1_000_000)), Some(7))));
        assert_eq!(tuned(2, 1_000_000, 8), None, "the same again changes nothing");
        assert_eq!(tuned(3, 1_020_000, 9), Some((Some(Rate(1_020_000)), Some(9))));
        leases.advance(Instant(2_000_000_001), LINK, &Settings::default());
        assert_eq!(leases.poll().map(|tuning| tuning.phase), Some(None), "nobody has said when");
    }

    #[test]
    fn what_an_earlier_agent_asked_for_ends_soon_unless_the_new_one_asks_too() {
        let mut leases = Leases::default();
        for n in 0..3 {
            assert_eq!(ask(&mut leases, "h", n), Asked::Done);
        }
        assert_eq!(ask(&mut leases, "other", 3), Asked::Done);
        leases.adopt(Instant(1), "h".into(), EndpointId(0), Toward::Address(mac(4)), Rate(1_000_000));
        leases.orphan(Instant(1), "h", 2);
        let host: Arc<str> = "h".into();
        leases.limit(Instant(2), &host, (2, 1), (EndpointId(0), mac(1)), (Rate(1_000_000), 2000), 7);
        leases.advance(Instant(ORPHAN_NS), LINK, &Settings::default());
        assert!(leases.report().all(|obeyed| !obeyed.relaxing));
        leases.advance(Instant(1 + ORPHAN_NS), LINK, &Settings::default());
        let relaxing: Vec<bool> = leases.report().map(|obeyed| obeyed.relaxing).collect();
        assert_eq!(relaxing, [true, false, true, false, false]);
    }

    #[test]
    fn a_brake_grows_with_time_however_seldom_it_is_looked_at() {
        let grown = |every_ns: u64| {
            let (mut leases, settings) = (Leases::default(), Settings::default());
            leases.halve(Instant(1), &"h".into(), EndpointId(0), LINK, &settings);
            let mut now = Instant(1);
            while now < Instant(1 + 1_000_000_000) {
                now = now.plus_ns(every_ns);
                leases.advance(now, LINK, &settings);
            }
            leases.report().next().map(|obeyed| obeyed.rate.0)
        };
        // Half of the link, and a tenth of it in a second.
        assert_eq!(grown(10_000_000), Some(LINK.0 / 10 * 6));
        assert_eq!(grown(100_000_000), Some(LINK.0 / 10 * 6));
    }
}
