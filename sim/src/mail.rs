//! Mail: what agents say to each other, on its way.
//!
//! Stands for datagrams between daemons: each is delayed, and may be lost, doubled, overtaken or
//! damaged, or cut off by a partition. All of it is drawn from a seed. Mail has a way of its own,
//! so it neither waits behind traffic nor takes bandwidth from it; what it would have taken is
//! counted.

use std::collections::BTreeMap;

use datapath::units::Instant;

use crate::random::Random;

/// What a datagram costs on the wire beside its own bytes, in bytes: Ethernet with preamble, FCS
/// and gap (38), IPv4 (20), UDP (8), QUIC's short header with a connection identifier of 8 and the
/// AEAD's tag (RFC 9000 and 9001: 1 + 8 + 2 + 16), and the DATAGRAM frame (RFC 9221: 3).
pub const OVERHEAD_BYTES: u64 = 38 + 20 + 8 + 27 + 3;

/// What the way between two agents is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MailConfig {
    /// One way, in nanoseconds.
    pub delay_ns: u64,
    /// Added to it, at random up to this: so that messages overtake each other.
    pub jitter_ns: u64,
    /// Lost, in millionths.
    pub loss_ppm: u32,
    /// Delivered a second time, up to [`MailConfig::late_ns`] later, in millionths.
    pub duplicate_ppm: u32,
    /// How late a second copy may come, in nanoseconds: long enough, and it is a replay.
    pub late_ns: u64,
    /// Delivered with a wrong byte or cut short, in millionths. (Between daemons, authentication
    /// would stop it.)
    pub damage_ppm: u32,
}

impl Default for MailConfig {
    /// Two machines on one network: wire, two kernels and two wake-ups.
    fn default() -> Self {
        MailConfig { delay_ns: 150_000, jitter_ns: 100_000, loss_ppm: 0, duplicate_ppm: 0, late_ns: 0, damage_ppm: 0 }
    }
}

/// A datagram between two agents, by the switches they steer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Letter {
    /// The switch whose agent sent it.
    pub from: usize,
    /// The switch whose agent is to hear it.
    pub to: usize,
    /// What it says.
    pub bytes: Vec<u8>,
}

/// What one agent sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MailStats {
    /// Datagrams.
    pub datagrams: u64,
    /// Their bytes on the wire, [`OVERHEAD_BYTES`] included.
    pub wire_bytes: u64,
}

/// All mail that is under way.
#[derive(Debug)]
pub struct Mail {
    config: MailConfig,
    random: Random,
    /// By the time of its arrival, and a number that keeps the order of what arrives at once.
    under_way: BTreeMap<(Instant, u64), Letter>,
    number: u64,
    /// By switch, the part of the network that it is in.
    parts: Vec<usize>,
    sent: Vec<MailStats>,
}

impl Mail {
    /// A way between the agents of so many switches.
    #[must_use]
    pub fn new(config: MailConfig, switches: usize, random: Random) -> Self {
        Mail {
            config,
            random,
            under_way: BTreeMap::new(),
            number: 0,
            parts: vec![0; switches],
            sent: vec![MailStats::default(); switches],
        }
    }

    /// Changes the way for what is sent from now on.
    pub fn set_config(&mut self, config: MailConfig) {
        self.config = config;
    }

    /// Switches in `apart` and all others hear nothing of each other; nobody is apart where it is
    /// empty.
    pub fn partition(&mut self, apart: &[usize]) {
        self.parts.fill(0);
        apart.iter().for_each(|&switch| self.parts[switch] = 1);
    }

    /// What an agent sent so far.
    #[must_use]
    pub fn sent(&self, switch: usize) -> MailStats {
        self.sent[switch]
    }

    /// A letter is sent.
    pub fn send(&mut self, now: Instant, letter: Letter) {
        let stats = &mut self.sent[letter.from];
        stats.datagrams += 1;
        stats.wire_bytes += letter.bytes.len() as u64 + OVERHEAD_BYTES;
        let MailConfig { loss_ppm, duplicate_ppm, late_ns, .. } = self.config;
        if self.random.happens_ppm(duplicate_ppm) {
            let late_ns = self.random.range(0, late_ns);
            self.post(now.plus_ns(late_ns), letter.clone());
        }
        if !self.random.happens_ppm(loss_ppm) {
            self.post(now, letter);
        }
    }

    /// When `deliver` will have something.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.under_way.first_key_value().map(|(&(at, _), _)| at)
    }

    /// The next letter that has arrived. Which part of a partition an agent is in counts when it
    /// arrives.
    pub fn deliver(&mut self, now: Instant) -> Option<Letter> {
        while self.deadline().is_some_and(|at| at <= now) {
            let (_, letter) = self.under_way.pop_first()?;
            if self.parts[letter.from] == self.parts[letter.to] {
                return Some(letter);
            }
        }
        None
    }

    fn post(&mut self, now: Instant, mut letter: Letter) {
        let MailConfig { delay_ns, jitter_ns, damage_ppm, .. } = self.config;
        let at = now.plus_ns(delay_ns + self.random.range(0, jitter_ns));
        if self.random.happens_ppm(damage_ppm) && !letter.bytes.is_empty() {
            let place = self.random.range(0, letter.bytes.len() as u64 - 1) as usize;
            if self.random.happens_ppm(500_000) {
                letter.bytes.truncate(place);
            } else {
                letter.bytes[place] ^= self.random.range(1, 255) as u8;
            }
        }
        self.number += 1;
        self.under_way.insert((at, self.number), letter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(n: u8) -> Letter {
        Letter { from: 0, to: 1, bytes: vec![n; 20] }
    }

    /// Sends 1000 letters, a microsecond apart; what arrives, in order.
    fn thousand(config: MailConfig) -> Vec<Letter> {
        let mut mail = Mail::new(config, 2, Random::new(7));
        (0..1000u64).for_each(|n| mail.send(Instant(n * 1000), letter((n / 4) as u8)));
        std::iter::from_fn(|| mail.deliver(Instant(u64::MAX))).collect()
    }

    #[test]
    fn without_faults_all_arrives_in_order_and_after_the_delay() {
        let plain = MailConfig { jitter_ns: 0, ..MailConfig::default() };
        assert!(thousand(plain).is_sorted_by_key(|letter| letter.bytes[0]));
        assert_eq!(thousand(plain).len(), 1000);
        let mut mail = Mail::new(plain, 2, Random::new(7));
        mail.send(Instant(5), letter(1));
        assert_eq!(mail.deliver(Instant(5 + plain.delay_ns - 1)), None);
        assert_eq!(mail.deadline(), Some(Instant(5 + plain.delay_ns)));
        assert_eq!(mail.deliver(Instant(5 + plain.delay_ns)), Some(letter(1)));
        assert_eq!(mail.sent(0), MailStats { datagrams: 1, wire_bytes: 20 + OVERHEAD_BYTES });
    }

    #[test]
    fn every_fault_happens_as_often_as_it_should() {
        let config = MailConfig::default();
        let lost = thousand(MailConfig { loss_ppm: 300_000, ..config }).len();
        assert!((650..750).contains(&lost), "{lost} of 1000 arrive where 30 % are lost");
        let doubled = thousand(MailConfig { duplicate_ppm: 300_000, late_ns: 1_000_000, ..config }).len();
        assert!((1250..1350).contains(&doubled), "{doubled} for 1000 arrive where 30 % are doubled");
        let damaged = thousand(MailConfig { damage_ppm: 300_000, ..config });
        let whole = |letter: &Letter| letter.bytes.len() == 20 && letter.bytes.iter().all(|b| *b == letter.bytes[0]);
        let damaged = damaged.iter().filter(|letter| !whole(letter)).count();
        assert!((200..400).contains(&damaged), "{damaged} of 1000 are damaged where 30 % should be");
        assert!(!thousand(config).is_sorted_by_key(|letter| letter.bytes[0]), "nothing was overtaken");
    }

    #[test]
    fn a_partition_lets_nothing_through_until_it_heals() {
        let mut mail = Mail::new(MailConfig::default(), 3, Random::new(7));
        mail.partition(&[1]);
        mail.send(Instant(0), letter(1));
        mail.send(Instant(0), Letter { from: 0, to: 2, bytes: vec![2] });
        assert_eq!(mail.deliver(Instant(1_000_000)).map(|letter| letter.to), Some(2));
        assert_eq!(mail.deliver(Instant(1_000_000)), None);
        mail.partition(&[]);
        mail.send(Instant(0), letter(3));
        assert_eq!(mail.deliver(Instant(1_000_000)), Some(letter(3)));
    }
}
