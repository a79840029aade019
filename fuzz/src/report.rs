//! Load reports from anybody, in any order and at any time, judged beside a model that remembers
//! everything: nothing is taken that its key has not signed, or twice, or too often; what is
//! refused changes nothing.

use control::report::{Judge, MOST_AWAY_NS, MOST_OF_BACKEND, Now, Report, SIGNED, SIZE, Verdict, id};
use std::collections::BTreeSet;

/// Bytes of a step.
pub const STEP: usize = 8;
const START: u64 = 1 << 60;
const PATHS: [&str; 3] = ["s1/red/web/web1", "s1/red/web/web2", "s1/red/web/web3"];

/// Not a MAC, but one that depends on key and bytes.
fn mac(key: u8, signed: &[u8]) -> [u8; SIZE - SIGNED] {
    let mut out = [key; SIZE - SIGNED];
    for (at, byte) in signed.iter().enumerate() {
        out[at] = out[at].wrapping_mul(31).wrapping_add(*byte);
    }
    out
}

/// `data` is steps: what is done; whose report, under whose key; boot; sequence; two bytes of the
/// server's time and one of ours, in eighths of a second; and a byte that is changed.
pub fn run(data: &[u8]) {
    let _ = Report::read(data);
    let mut judge = Judge::default();
    let mut holders = [Some(1u8), Some(2), None];
    let renew = |judge: &mut Judge<u8>, now: Now, holders: &[Option<u8>; 3]| {
        let known = PATHS.iter().zip(holders).filter_map(|(path, key)| Some(((*path).to_owned(), (*key)?)));
        assert!(judge.set_keys(now, known.collect()).is_empty());
    };
    let mut now = Now { wall_ns: START, monotonic_ns: 0 };
    renew(&mut judge, now, &holders);
    let (mut taken, mut recorded): (BTreeSet<_>, Vec<Vec<u8>>) = Default::default();
    let (mut counts, mut is_renewed) = ([0u64; 3], false);
    for step in data.chunks_exact(STEP) {
        let (of, key) = (usize::from(step[1] & 3).min(2), step[1] >> 2 & 3);
        let passed = u64::from(step[6]) << 27;
        now = Now { wall_ns: now.wall_ns + passed, monotonic_ns: now.monotonic_ns + passed };
        let time_ns = (now.wall_ns - (1 << 35)) + (u64::from(u16::from_be_bytes([step[4], step[5]])) << 20);
        let report = Report {
            backend: id(PATHS[of]),
            boot: u32::from(step[2] & 7),
            sequence: u32::from(step[3]),
            time_ns,
            load_milli: u32::from(step[7]),
        };
        let signed = report.write();
        let mut datagram = [&signed[..], &mac(key, &signed)].concat();
        match step[0] & 7 {
            0 => datagram[usize::from(step[7]) % SIZE] ^= 1 << (step[0] >> 5),
            1 => datagram.truncate(usize::from(step[7])),
            2 if !recorded.is_empty() => datagram.clone_from(&recorded[usize::from(step[7]) % recorded.len()]),
            3 => {
                holders[of] = (step[7] & 1 == 1).then_some(of as u8 + 1);
                renew(&mut judge, now, &holders);
                is_renewed = true;
            }
            _ => {}
        }
        recorded.push(datagram.clone());
        let mut asked = None;
        let verdict = judge.judge(now, &datagram, |key, signed, given| {
            let is_good = mac(*key, signed) == given;
            asked = Some(is_good);
            is_good
        });
        match verdict {
            Ok((path, load)) => {
                let at = PATHS.iter().position(|known| *known == path).unwrap();
                let (report, ..) = Report::read(&datagram).unwrap();
                assert!(asked == Some(true) && holders[at].is_some() && id(path) == report.backend);
                assert_eq!(load, report.load_milli);
                assert!(report.time_ns.abs_diff(now.wall_ns) <= MOST_AWAY_NS);
                let number = (at, report.boot, report.sequence, report.time_ns);
                assert!(taken.insert(number), "taken twice: {number:?}");
                counts[at] += 1;
                let most = now.monotonic_ns * MOST_OF_BACKEND / 1_000_000_000 + MOST_OF_BACKEND + 1;
                // Who was away begins anew.
                assert!(is_renewed || counts[at] <= most, "{} in {} ns", counts[at], now.monotonic_ns);
                let again = judge.judge(now, &datagram, |_, _, _| true);
                assert!(matches!(again, Err(Verdict::Replayed | Verdict::TooMany)), "{again:?}");
            }
            Err(verdict) => {
                assert_ne!(verdict, Verdict::Taken);
                assert!(verdict != Verdict::Forged || asked == Some(false));
                assert!(verdict != Verdict::Malformed || Report::read(&datagram).is_none());
            }
        }
    }
}
