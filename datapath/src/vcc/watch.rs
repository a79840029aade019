//! Natives that are policed: whether they heed the marks that their peers report.
//!
//! A native is left alone as long as it does what RFC 3168 or DCTCP ask for: with less in flight
//! soon after a mark. What it had in flight at most in a marked round is compared with the same two
//! rounds later, when any reduction must be seen, as PRR takes a round for it. A sender that has
//! more window than it uses may not have to show one; but each mark lowers its window, so after
//! [`UNHEEDED_MOST`] in a row the window of one that heeds them is a seventeenth of what it was.
//!
//! RFC 3168 has a sender say CWR when it reduces. Who does not has not heeded a mark either, even
//! if it has less in flight: it may have lost something. Its peer reports the mark until CWR comes,
//! and CWR is due with the next new data. Who sends new data in three rounds in a row under such
//! reports, and in these and the round before neither says CWR nor sends anything again, does not
//! do what RFC 3168 asks for, however much it has in flight: [`UNANSWERED_ROUNDS`].
//!
//! One that shows none is *deaf*. From then on it has the window of the mode's controller, as a
//! translated guest has, and is told it as the receiver's. It begins anew, with the window of a new
//! connection, since what an honest one would have by now is less than it has in flight. Its flags
//! and codepoints stay its own, but for RFC 3168's CWR: without one its peer would report the same
//! mark for ever, and it would starve.
//!
//! That takes rounds, and a short connection ends before. So a native is *on trial* until it first
//! heeds a mark, when it is left alone: it begins with the window of a new connection, or with that
//! of its siblings, doubles it at most each round, and from the first mark on has a segment and a
//! sixteenth more each round. An honest one does not notice, as it has no more by itself. What it
//! had in flight in a marked round, reduced, is noted for its siblings ([`super::siblings`]).

use super::connection::{Connection, Count, Treatment, Wire, before, bit};
use super::control::{self, Feedback};
use super::segment::{Edit, Segment, codes};
use super::{Mode, Policy, handshake, window};

/// Marked rounds in a row that may go unheeded.
const UNHEEDED_MOST: u8 = 8;
/// Rounds without a mark after which they are forgotten.
const FORGOTTEN_AFTER: u8 = 15;
/// Rounds in a row without CWR and without anything sent again, of which the last three were
/// marked, that tell for certain. An honest sender has said CWR in the round before the first mark
/// at the earliest: what was reported then may be reported for a round more.
const UNANSWERED_ROUNDS: u32 = 4;
/// With so many segments in flight or fewer, a native has not much to give.
const SMALL_SEGMENTS: u32 = 8;
/// What a native on trial grows by in each round from the first mark on, beside a segment: a part
/// of so many. CUBIC's window grows by less where it is below what it was.
const TRIAL_PART: u32 = 16;
/// A trial has no window yet at which doubling ends.
const UNKNOWN: u32 = 0xff_ffff;
/// Less by a part of so many is a reduction. DCTCP's first ones are of a few in a hundred.
const REDUCTION: u32 = 32;

/// Whether a connection is watched.
pub fn concerns(connection: &Connection, policy: &Policy) -> bool {
    policy.polices && connection.treatment == Treatment::Native && connection.wire != Wire::Plain
}

/// Whether a native has not heeded a mark yet, and has a window until it does.
pub fn is_on_trial(connection: &Connection) -> bool {
    connection.treatment == Treatment::Native && connection.is(bit::ENGAGED) && !connection.is(bit::DEAF)
}

/// A native opens. While it is on trial `ssthresh` is its window, and `ect_bytes` the segments of
/// it up to which that doubles; before, `ssthresh` is what its siblings have.
pub fn begin(connection: &mut Connection, policy: &Policy) {
    if !concerns(connection, policy) || connection.is(bit::DEAF) {
        return;
    }
    // A SYN-ACK that is sent again finds it on trial.
    if !is_on_trial(connection) {
        let siblings = connection.ssthresh;
        let segments = if siblings < u32::MAX { siblings / u32::from(connection.mss) } else { UNKNOWN };
        connection.ect_bytes = Count::of(segments.min(UNKNOWN));
    }
    connection.set(bit::ENGAGED, true);
    connection.pace = 256;
    connection.ssthresh = handshake::begin_with(connection);
}

/// Nobody is on trial who is not policed any more.
pub fn ignore(connection: &mut Connection) {
    if is_on_trial(connection) {
        acquit(connection);
    }
}

/// The trial is over.
fn acquit(connection: &mut Connection) {
    connection.set(bit::ENGAGED, false);
    connection.ssthresh = u32::MAX;
}

/// What a native on trial is told: see [`window::tell`].
pub fn tell(connection: &mut Connection, policy: &Policy, ack: u32, field: u16, acked: u32) -> Option<u16> {
    if !is_on_trial(connection) {
        return None;
    }
    let most = core::mem::replace(&mut connection.window, connection.ssthresh);
    let told = window::tell(connection, policy, ack, field, acked);
    connection.window = most;
    told
}

/// The window that a connection has, or should have, whose round was marked.
pub fn slowed_to(connection: &Connection) -> Option<u32> {
    if connection.is_governed() {
        return (connection.ssthresh < u32::MAX).then_some(connection.window);
    }
    (is_on_trial(connection) && connection.prior > 0).then(|| control::reduced(connection.prior))
}

/// The window of a native on trial that uses it: it doubles each round, until it is what its
/// siblings had, or a mark is reported.
fn grow(connection: &mut Connection, acked: u32, marked: u32) {
    let (window, mss) = (connection.ssthresh, u32::from(connection.mss));
    if marked > 0 {
        connection.ect_bytes = Count::of(connection.ect_bytes.get().min(window / mss));
    }
    if connection.window.saturating_mul(2) < window {
        return;
    }
    let doubles = window / mss < connection.ect_bytes.get();
    let segment = (u64::from(mss) * u64::from(acked)).div_ceil(u64::from(window)) as u32;
    let more = if doubles { acked } else { segment.saturating_add(acked.div_ceil(TRIAL_PART)) };
    connection.ssthresh = window.saturating_add(more).min(control::WINDOW_MOST);
}

/// An acknowledgement; `una` has advanced. Whether the guest turns out to be deaf by it.
///
/// While nothing is governed, `window` is the most that was in flight in this round, `prior` and
/// `grown` are that of the last two, or nothing where these were not marked, `zero_codes` counts
/// marked rounds in a row that were not heeded, and `alpha` rounds in a row without CWR and without
/// anything sent again.
pub fn acknowledged(connection: &mut Connection, policy: &Policy, feedback: &Feedback) -> bool {
    let &Feedback { acked, marked, flight, .. } = feedback;
    // What is acknowledged was sent when the round had begun.
    let is_over = acked > 0 && before(connection.round_end, connection.una);
    let is_deaf = is_over && end_round(connection, policy);
    connection.acked = connection.acked.saturating_add(acked);
    connection.marked = connection.marked.saturating_add(marked);
    connection.window = connection.window.max(flight);
    if is_on_trial(connection) {
        grow(connection, acked, marked);
    }
    if is_deaf {
        let most = if is_on_trial(connection) { connection.ssthresh } else { u32::MAX };
        connection.set(bit::DEAF, true);
        (connection.acked, connection.marked, connection.alpha) = (0, 0, 0);
        control::begin_anew(connection, policy, most);
    }
    is_deaf
}

fn end_round(connection: &mut Connection, policy: &Policy) -> bool {
    let most = core::mem::take(&mut connection.window);
    let is_marked = match policy.mode {
        // DCTCP's reductions are small where few are marked.
        Mode::Dctcp => connection.marked >= connection.acked.div_ceil(2),
        _ => connection.marked > 0,
    };
    heed(connection, most);
    let is_quiet = !connection.is(bit::LOST);
    connection.alpha = if is_quiet { UNANSWERED_ROUNDS.min(connection.alpha + 1) } else { 0 };
    connection.set(bit::LOST, false);
    let is_unanswered = is_marked
        && connection.prior > 0
        && connection.grown > 0
        && connection.wire == Wire::Classic
        && connection.alpha >= UNANSWERED_ROUNDS;
    connection.idle_rounds = if is_marked { 0 } else { connection.idle_rounds + 1 };
    if connection.idle_rounds >= FORGOTTEN_AFTER {
        (connection.idle_rounds, connection.zero_codes) = (0, 0);
    }
    (connection.grown, connection.prior) = (connection.prior, if is_marked { most } else { 0 });
    if is_marked {
        connection.reduced_to = connection.nxt;
    }
    (connection.acked, connection.marked, connection.round_end) = (0, 0, connection.nxt);
    connection.zero_codes > UNHEEDED_MOST || is_unanswered
}

/// A round ends that had `most` in flight: whether the marks of two rounds before were heeded.
fn heed(connection: &mut Connection, most: u32) {
    let was = connection.grown;
    let is_small = most <= SMALL_SEGMENTS * u32::from(connection.mss);
    let (is_less, says) =
        (most <= was - was / REDUCTION, connection.wire != Wire::Classic || connection.is(bit::LATCHED));
    if was == 0 || is_small && !says {
        return;
    }
    if says && (is_less || is_small) {
        connection.zero_codes = 0;
        connection.set(bit::LATCHED, false);
        // Of few segments none may be less; that shows nothing.
        if is_less && is_on_trial(connection) {
            acquit(connection);
        }
    } else {
        let more = u8::from(!is_less) + u8::from(!says);
        connection.zero_codes = connection.zero_codes.saturating_add(more);
    }
}

/// A segment of a native's: one that is deaf says that its window was reduced, where it was.
pub fn say(connection: &mut Connection, segment: &Segment, is_new: bool) -> Edit {
    // Of natives that are watched: CWR was said.
    if segment.codes & codes::CWR != 0 && segment.payload > 0 && !connection.is(bit::DEAF) {
        connection.set(bit::LATCHED | bit::LOST, true);
    }
    let is_due = connection.is(bit::DEAF) && connection.wire == Wire::Classic && connection.is(bit::CWR_DUE);
    if !is_due || segment.payload == 0 || !is_new {
        return Edit::NONE;
    }
    connection.set(bit::CWR_DUE, false);
    let says = segment.codes | codes::CWR;
    Edit { codes: (says != segment.codes).then_some(says), ..Edit::NONE }
}
