//! Whether backends answer: each gets a SYN in the service's name, every so often.
//!
//! What answers by SYN and ACK is up, and gets a RST, so that no connection comes of it. Three in a
//! row without an answer, or refused: it is down. Two answers in a row: it is up again.

use crate::rules::{Client, Rules, normal};
use crate::wire::{PacketOut, port};
use datapath::random::Keyed;
use datapath::wire::build::eth;
use datapath::wire::{Mac, Tcp, parse, protocol, tcp_flags};
use std::collections::BTreeMap;
use std::hash::BuildHasher as _;
use std::net::IpAddr;

/// In a row without an answer, after which a backend is down; answers after which it is up again.
const FALL: u8 = 3;
const RISE: u8 = 2;
/// Ports that are asked from, one after the other: none of a connection that is over is asked from
/// again soon.
const FIRST_PORT: u16 = 61_000;
const PORTS: u64 = 4096;
const WINDOW: u16 = 1024;

/// One place to ask, for all that depends on it.
#[derive(Debug)]
struct Asked {
    macs: [Mac; 2],
    /// Services and their backends.
    of: Vec<(usize, usize)>,
    sequence: u32,
    port: u16,
    is_waiting: bool,
    missed: u8,
    answered: u8,
    is_up: Option<bool>,
}

/// The questions of one switch. As many as the configuration has backends and addresses.
#[derive(Debug)]
pub struct Prober {
    /// Where a backend listens, and for which address of a service.
    all: BTreeMap<(Client, IpAddr), Asked>,
    secret: Keyed,
    round: u64,
}

impl Prober {
    /// One that has not asked yet. `seed` is not known outside.
    #[must_use]
    pub fn new(rules: &Rules, seed: u64) -> Prober {
        let mut all = BTreeMap::new();
        let fronts = rules.fronts.iter().zip(&rules.targets).filter(|(front, _)| front.protocol == protocol::TCP);
        for (front, targets) in fronts {
            for (b, target) in targets.iter().enumerate() {
                let at = Client { ip: target.ip, port: target.port };
                let asked = all.entry((at, front.ip)).or_insert_with(|| Asked {
                    macs: [front.mac, target.mac],
                    of: Vec::new(),
                    sequence: 0,
                    port: 0,
                    is_waiting: false,
                    missed: 0,
                    answered: 0,
                    is_up: None,
                });
                asked.of.push((front.service, b));
            }
        }
        Prober { all, secret: Keyed::new(seed), round: 0 }
    }

    /// Asks everyone; who has not answered the last time has missed it.
    pub fn ask(&mut self) -> Vec<PacketOut> {
        self.round += 1;
        let (round, secret) = (self.round, self.secret);
        let ask = |(&(at, from), asked): (&(Client, IpAddr), &mut Asked)| {
            if asked.is_waiting {
                asked.miss();
            }
            asked.is_waiting = true;
            asked.port = FIRST_PORT + (round % PORTS) as u16;
            asked.sequence = secret.hash_one((at, from, round)) as u32;
            asked.frame(at, from, asked.sequence, tcp_flags::SYN)
        };
        self.all.iter_mut().map(ask).collect()
    }

    /// Whether a frame is for an address that asks; the RST where it is an answer.
    pub fn answer(&mut self, from: Client, to: Client, frame: &[u8]) -> Option<Option<PacketOut>> {
        let asked = self.all.get_mut(&(from, to.ip))?;
        let layout = parse(frame).ok()?;
        let tcp = Tcp::of(frame, &layout)?;
        let next = asked.sequence.wrapping_add(1);
        if !asked.is_waiting || to.port != asked.port || tcp.acknowledgement() != next {
            return Some(None);
        }
        asked.is_waiting = false;
        if tcp.flags() & (tcp_flags::SYN | tcp_flags::ACK | tcp_flags::RST) == tcp_flags::SYN | tcp_flags::ACK {
            asked.hit();
            return Some(Some(asked.frame(from, to.ip, next, tcp_flags::RST)));
        }
        asked.miss();
        Some(None)
    }

    /// What is known of backends: down where one of their ports is, up where all are.
    #[must_use]
    pub fn verdicts(&self) -> BTreeMap<(usize, usize), bool> {
        let mut all = BTreeMap::new();
        for asked in self.all.values() {
            for &of in &asked.of {
                let known = all.entry(of).or_insert(Some(true));
                *known = match (*known, asked.is_up) {
                    (Some(false), _) | (_, Some(false)) => Some(false),
                    (Some(true), Some(true)) => Some(true),
                    _ => None,
                };
            }
        }
        all.into_iter().filter_map(|(of, is_up)| Some((of, is_up?))).collect()
    }
}

impl Asked {
    fn miss(&mut self) {
        (self.answered, self.missed) = (0, self.missed.saturating_add(1).min(FALL));
        if self.missed == FALL {
            self.is_up = Some(false);
        }
    }

    fn hit(&mut self) {
        (self.missed, self.answered) = (0, self.answered.saturating_add(1).min(RISE));
        if self.is_up != Some(false) || self.answered == RISE {
            self.is_up = Some(true);
        }
    }

    fn frame(&self, at: Client, from: IpAddr, sequence: u32, flags: u8) -> PacketOut {
        let [source, target] = self.macs;
        let build = eth(source, target).ip(from, at.ip).tcp(self.port, at.port, sequence).flags(flags);
        PacketOut { in_port: port::CONTROLLER, actions: vec![normal()], data: build.ack(0, WINDOW).bytes() }
    }
}

#[cfg(test)]
mod tests;
