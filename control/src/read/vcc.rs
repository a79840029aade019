//! What is read of virtual congestion control.

use super::table::{Reader, Table};
use super::values;
use crate::place::Place;
use crate::problem::Problem;
use datapath::vcc::{Mode, Settings};

/// What a switch keeps of it, and whether it rescales.
pub(super) fn of_switch(r: &mut Reader, mut t: Table<'_>) -> (Option<u32>, bool) {
    let flows = r.get(&mut t, "flows", values::flows);
    let rescales = r.get(&mut t, "rescale", values::flag).unwrap_or(false);
    r.close(t);
    (flows, rescales)
}

/// What a tenant asks for.
pub(super) fn settings(r: &mut Reader, t: &mut Table<'_>) -> Settings {
    let mode = r.get(t, "vcc", values::vcc).unwrap_or_default();
    let settings = Settings {
        mode,
        polices: r.get(t, "police", values::flag).unwrap_or(false),
        holds: r.get(t, "hold_acks", values::flag).unwrap_or(false),
        strips_multipath: r.get(t, "mptcp", values::mptcp).unwrap_or(false),
        ignores_loss: r.get(t, "loss", values::vcc_loss).unwrap_or(false),
        passes_classic: r.get(t, "classic", values::classic).unwrap_or(false),
    };
    let asked = [
        ("police", settings.polices),
        ("hold_acks", settings.holds),
        ("mptcp", settings.strips_multipath),
        ("loss", settings.ignores_loss),
        ("classic", settings.passes_classic),
    ];
    for (key, _) in asked.iter().filter(|(_, is_asked)| *is_asked) {
        if let Some(problem) = misfit(&t.place, key, mode) {
            r.problems.extend(problem.located(&r.locations, &r.hidden));
        }
    }
    settings
}

/// What a key asks for where the mode knows nothing of it.
pub(crate) fn misfit(place: &Place, key: &'static str, mode: Mode) -> Option<Problem> {
    let (knows, why, modes) = match key {
        "police" => (mode.is_ours(), "there is no window to hold guests to", "\"echo\" or \"dctcp\""),
        "hold_acks" => (mode == Mode::Dctcp, "windows are not below two segments", "\"dctcp\""),
        "loss" => (mode.is_ours(), "no window is lowered for losses", "\"echo\" or \"dctcp\""),
        _ => (mode.translates(), "no handshake is changed", "\"echo\" or \"dctcp\""),
    };
    let message = || format!("{why} with `vcc = \"{}\"`", mode.name());
    (!knows).then(|| Problem::error(place.key(key), message(), format!("set `vcc` to {modes}, or remove `{key}`")))
}
