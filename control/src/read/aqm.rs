//! Reading the discipline of a queue: `aqm = { kind = "red", min = "30 KiB", max = "90 KiB" }`.

use super::table::{Reader, Table};
use super::values;
use crate::problem::Problem;
use datapath::aqm::{At, Discipline, Red, Step};

/// Weight of a segment in RED's average where none is given, as a negative logarithm: 1/512, Floyd
/// and Jacobson's 0.002.
const DEFAULT_WEIGHT_LOG: u8 = 9;
/// RED's greatest probability where none is given, in millionths: a tenth, as Floyd advises (1997).
const DEFAULT_PROBABILITY_PPM: u32 = 100_000;

/// The discipline under `aqm`, if there is one.
pub(super) fn aqm(r: &mut Reader, t: &mut Table<'_>) -> Option<Discipline> {
    let mut t = r.table(t, "aqm")?;
    let kind = r.need(&mut t, "kind", "\"auto\"", values::discipline)?;
    let discipline = match kind {
        Discipline::Red(_) => Discipline::Red(red(r, &mut t)),
        Discipline::Step(_) => Discipline::Step(Step {
            mark_bytes: r.need(&mut t, "threshold", "\"30 KiB\"", values::threshold).unwrap_or(1),
            at: r.get(&mut t, "at", values::at).unwrap_or(At::Arrival),
        }),
        Discipline::Sojourn { .. } => {
            let target_ns = r.need(&mut t, "target", "\"200 us\"", values::target).unwrap_or(u64::MAX);
            Discipline::Sojourn { target_ns }
        }
        other => other,
    };
    r.close(t);
    Some(discipline)
}

fn red(r: &mut Reader, t: &mut Table<'_>) -> Red {
    let has_preset = t.has("preset");
    let base = r.get(t, "preset", values::preset).unwrap_or(Red {
        min_bytes: 1,
        max_bytes: 2,
        probability_ppm: DEFAULT_PROBABILITY_PPM,
        weight_log: DEFAULT_WEIGHT_LOG,
        gentle: false,
        bytes: false,
    });
    let mut bound = |key, such_as, base| {
        let bytes = match has_preset {
            true => r.get(t, key, values::threshold),
            false => r.need(t, key, such_as, values::threshold),
        };
        bytes.unwrap_or(base)
    };
    let (min_bytes, max_bytes) =
        (bound("min", "\"30 KiB\"", base.min_bytes), bound("max", "\"90 KiB\"", base.max_bytes));
    if min_bytes >= max_bytes {
        let problem = Problem::error(
            t.place.key("max"),
            "`max` is not above `min`: between them the probability rises",
            "write a larger `max`; for a step write kind = \"step\"",
        );
        r.problems.extend(problem.located(&r.locations, &r.hidden));
    }
    Red {
        min_bytes,
        max_bytes,
        probability_ppm: r.get(t, "probability", values::probability).unwrap_or(base.probability_ppm),
        weight_log: r.get(t, "weight", values::average_weight).unwrap_or(base.weight_log),
        gentle: r.get(t, "gentle", values::flag).unwrap_or(base.gentle),
        bytes: r.get(t, "bytes", values::flag).unwrap_or(base.bytes),
    }
}
