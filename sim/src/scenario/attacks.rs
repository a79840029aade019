//! Attacks: a tenant with a promise on a switch whose worker has to earn its time, under each
//! attack and under each two of them.

use datapath::program::EndpointId;
use datapath::units::Instant;
use datapath::verdict::Reason;

use super::measure::{SECOND, mbps};
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::packet::Nic;
use crate::siege::{self, ATTACKS, Attack, DELUGE};
use crate::world::{Violation, World};

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "attacks",
    about: "a tenant with a guarantee of 500 Mbit/s, TCP paced at 400, under attacks on what a switch shares",
    seconds: 1,
    warms_up: false,
    repeats: true,
    run,
};

/// What is left out of each cell: by then queues are as full as an attack makes them.
const WARM_UP_NS: u64 = 500_000_000;
/// Percent of its pace that the victim's connection must have, and of those who ask for it that
/// must be answered.
const LEAST: f64 = 99.0;
/// What the slowest of a hundred pings may take: so many times what it takes when all is quiet, or
/// so many ms more, the larger.
const PING_TIMES: f64 = 3.0;
const PING_MORE_MS: f64 = 1.0;

/// Beside which other attacks [`DELUGE`] is played: those that take most of the worker's time.
const BUSIEST: [&str; 4] = ["crumbs", "slices", "crowd", "storm"];

/// What the victim had.
#[derive(Clone, Copy, Debug)]
struct Had {
    /// Mbit/s of its connection.
    mbps: f64,
    /// Round trip of 99 of 100 of its pings, in ms; none where more were lost.
    ping_ms: Option<f64>,
    /// Of those who asked for it, how many were answered, in percent.
    answered: f64,
    /// Its frames that were dropped at its port, or for want of memory.
    drops: u64,
    /// Frames of control protocols that came out at the other end.
    controls: u64,
}

impl Had {
    fn holds(&self, quiet_ms: f64) -> bool {
        let most_ms = (quiet_ms * PING_TIMES).max(quiet_ms + PING_MORE_MS);
        let tcp = self.mbps * 1e8 / siege::PACE.0 as f64 >= LEAST;
        let ping = self.ping_ms.is_some_and(|ms| ms <= most_ms);
        tcp && ping && self.answered >= LEAST && self.controls == 0
    }
}

/// A victim's NIC, and what it is called here.
const NICS: [Nic; 2] = [Nic::PLAIN, Nic { mtu: 1500, offload_bytes: 65_160, csum: true }];

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        config: vec![
            ("link", format!("{}, round trip 100 us", siege::RATE)),
            (
                "victim",
                format!(
                    "promised {}, sends {} by TCP, pings and is asked for 100 times a second; \
                     once with frames of 1500 bytes, once with offloaded ones",
                    siege::GUARANTEE,
                    siege::PACE
                ),
            ),
            ("left out", format!("the first {} ms of each cell", WARM_UP_NS / 1_000_000)),
            (
                "holds",
                format!(
                    "at least {LEAST} % of the pace and of the answers, of the pings 99 of 100 within {PING_TIMES} times quiet or \
                     {PING_MORE_MS} ms more, no control protocol passed"
                ),
            ),
        ],
        columns: vec![
            "attack",
            "and",
            "holds",
            "TCP Mbit/s",
            "ping p99 ms",
            "answered %",
            "drops",
            "offloaded: TCP",
            "ping",
            "answered",
            "drops",
            "control frames",
        ],
        notes: ATTACKS.iter().chain([&DELUGE]).map(|attack| format!("{}: {}", attack.name, attack.about)).collect(),
        ..Table::default()
    };
    let quiet = row(&mut table, options, &[], None)?;
    let mut held = [(0, 0), (0, 0)];
    for (i, &one) in ATTACKS.iter().enumerate() {
        let alone = row(&mut table, options, &[one], Some(quiet))?;
        let holds = f64::from(u8::from(holds(&alone, &quiet)));
        let id = format!("{}: promises that hold", one.name);
        table.claims.push(Claim { id, value: Some(holds), unit: "of 1", target: Target::AtLeast(1.0) });
        count(&mut held[0], holds > 0.0);
        for &other in &ATTACKS[i + 1..] {
            let both = row(&mut table, options, &[one, other], Some(quiet))?;
            count(&mut held[1], self::holds(&both, &quiet));
        }
    }
    let busiest = ATTACKS.iter().filter(|attack| BUSIEST.contains(&attack.name));
    let mut of_deluge = (0, 0);
    for other in [None].into_iter().chain(busiest.map(Some)) {
        let attacks: Vec<Attack> = [DELUGE].into_iter().chain(other.copied()).collect();
        let had = row(&mut table, options, &attacks, Some(quiet))?;
        count(&mut of_deluge, holds(&had, &quiet));
    }
    let (held_of_deluge, all) = of_deluge;
    table.claims.push(Claim {
        id: format!("{}, alone and beside the busiest: all is held", DELUGE.name),
        value: Some(f64::from(held_of_deluge)),
        unit: "of them",
        target: Target::AtLeast(f64::from(all)),
    });
    for (name, (held, all)) in ["alone", "in pairs"].into_iter().zip(held) {
        let id = format!("attacks {name} under which all is held");
        let target = Target::AtLeast(f64::from(all));
        table.claims.push(Claim { id, value: Some(f64::from(held)), unit: "of them", target });
    }
    Ok(table)
}

fn count((held, all): &mut (u32, u32), holds: bool) {
    (*held, *all) = (*held + u32::from(holds), *all + 1);
}

/// Whether all that was promised to each kind of victim held.
fn holds(had: &[Had; 2], quiet: &[Had; 2]) -> bool {
    had.iter().zip(quiet).all(|(had, quiet)| had.holds(quiet.ping_ms.unwrap_or(f64::NAN)))
}

/// Both kinds of victim under some attacks.
fn row(
    table: &mut Table,
    options: &Options,
    attacks: &[Attack],
    quiet: Option<[Had; 2]>,
) -> Result<[Had; 2], Violation> {
    let had = [measure(options, NICS[0], attacks)?, measure(options, NICS[1], attacks)?];
    let name = |i: usize| Cell::from(attacks.get(i).map_or("", |attack| attack.name));
    let holds = if holds(&had, &quiet.unwrap_or(had)) { "yes" } else { "NO" };
    let mut cells = vec![if attacks.is_empty() { "none".into() } else { name(0) }, name(1), holds.into()];
    for had in &had {
        cells.extend([
            Cell::Number(had.mbps, 1),
            Cell::Text(had.ping_ms.map_or("lost".into(), |ms| format!("{ms:.3}"))),
            Cell::Number(had.answered, 1),
            Cell::Number(had.drops as f64, 0),
        ]);
    }
    cells.push(Cell::Number(had.iter().map(|had| had.controls).sum::<u64>() as f64, 0));
    table.rows.push(cells);
    Ok(had)
}

fn measure(options: &Options, nic: Nic, attacks: &[Attack]) -> Result<Had, Violation> {
    let mut world = World::new(siege::topology(options.seed, nic, attacks));
    world.run_until(Instant(WARM_UP_NS))?;
    let before = Counts::of(&world);
    world.run_for(options.seconds * SECOND)?;
    let after = Counts::of(&world);
    let mut round_trips = world.sent(siege::PING).round_trips_ns.split_off(before.pings.1);
    round_trips.sort_unstable();
    let sent = after.pings.0 - before.pings.0;
    let rank = (sent * 99).div_ceil(100) as usize;
    Ok(Had {
        mbps: mbps(after.bytes - before.bytes, options.seconds * SECOND),
        ping_ms: round_trips.get(rank.saturating_sub(1)).map(|&ns| ns as f64 / 1e6),
        answered: (after.asks.1 - before.asks.1) as f64 * 100.0 / (after.asks.0 - before.asks.0) as f64,
        drops: after.drops - before.drops,
        controls: after.controls - before.controls,
    })
}

/// What is counted of the victim.
#[derive(Clone, Copy, Debug)]
struct Counts {
    bytes: u64,
    pings: (u64, usize),
    asks: (u64, usize),
    drops: u64,
    controls: u64,
}

impl Counts {
    fn of(world: &World) -> Counts {
        let asked = |flow| {
            let sent = world.sent(flow);
            (sent.frames_sent, sent.round_trips_ns.len())
        };
        let drops = world.switch(0).endpoint_stats(EndpointId(siege::VICTIM as u32)).drops;
        Counts {
            bytes: world.received(siege::TCP).bytes,
            pings: asked(siege::PING),
            asks: asked(siege::ASK),
            drops: drops.get(Reason::PortRing) + drops.get(Reason::NoBuffer),
            controls: world.host(siege::PEER).stats().controls,
        }
    }
}
