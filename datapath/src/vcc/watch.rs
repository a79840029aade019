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
//! A guest may end each connection before it is judged, and begin another. So rounds count for all
//! of an endpoint's connections to one address too, if more than [`LARGE_SEGMENTS`] were in flight.
//! Each that was not heeded adds to a count, and each heeded one takes one off. Beyond
//! [`UNHEEDED_MOST`] the next connection there is deaf from the start: see [`super::siblings`].
//!
//! One that shows none is *deaf*. From then on it has the window of the mode's controller, as a
//! translated guest has, and is told it as the receiver's. It begins anew, with the window of a new
//! connection, since what an honest one would have by now is less than it has in flight. Its flags
//! and codepoints stay its own, but for RFC 3168's CWR: without one its peer would report the same
//! mark for ever, and it would starve.

use super::connection::{Connection, Treatment, Wire, before, bit};
use super::control::{self, Feedback};
use super::segment::{Edit, Segment, codes};
use super::{Mode, Policy};

/// Marked rounds in a row that may go unheeded.
pub(super) const UNHEEDED_MOST: u8 = 8;
/// Rounds without a mark after which they are forgotten.
const FORGOTTEN_AFTER: u8 = 15;
/// Rounds in a row without CWR and without anything sent again, of which the last three were
/// marked, that tell for certain. An honest sender has said CWR in the round before the first mark
/// at the earliest: what was reported then may be reported for a round more.
const UNANSWERED_ROUNDS: u32 = 4;
/// With so many segments in flight or fewer, a native has not much to give.
const SMALL_SEGMENTS: u32 = 8;
/// With more, what it does says something of its next connection.
const LARGE_SEGMENTS: u32 = 16;
/// Less by a part of so many is a reduction. DCTCP's first ones are of a few in a hundred.
const REDUCTION: u32 = 32;

/// Whether a connection is watched.
pub fn concerns(connection: &Connection, policy: &Policy) -> bool {
    policy.polices && connection.treatment == Treatment::Native && connection.wire != Wire::Plain
}

/// What a native did with the marks of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heed {
    /// It did what they ask for, though it had much in flight.
    Heeded,
    /// It did not, by so many signs.
    Unheeded(u8),
}

/// Whether so many rounds went unheeded: of a connection, or of those before it to its address
/// while it is not open yet.
pub fn is_deaf(connection: &Connection) -> bool {
    connection.zero_codes > UNHEEDED_MOST
}

/// An acknowledgement; `una` has advanced. Whether the guest turns out to be deaf by it, and what a
/// round that is over tells.
///
/// While nothing is governed, `window` is the most that was in flight in this round, `prior` and
/// `grown` are that of the last two, or nothing where these were not marked, `zero_codes` counts
/// marked rounds in a row that were not heeded, and `alpha` rounds in a row without CWR and without
/// anything sent again.
pub fn acknowledged(connection: &mut Connection, policy: &Policy, feedback: &Feedback) -> (bool, Option<Heed>) {
    let &Feedback { acked, marked, flight, .. } = feedback;
    // What is acknowledged was sent when the round had begun.
    let is_over = acked > 0 && before(connection.round_end, connection.una);
    let (is_deaf, heed) = if is_over { end_round(connection, policy) } else { (false, None) };
    connection.acked = connection.acked.saturating_add(acked);
    connection.marked = connection.marked.saturating_add(marked);
    connection.window = connection.window.max(flight);
    if is_deaf {
        connection.set(bit::DEAF, true);
        (connection.acked, connection.marked, connection.alpha) = (0, 0, 0);
        control::begin_anew(connection, policy);
    }
    (is_deaf, heed)
}

fn end_round(connection: &mut Connection, policy: &Policy) -> (bool, Option<Heed>) {
    let most = core::mem::take(&mut connection.window);
    let is_marked = match policy.mode {
        // DCTCP's reductions are small where few are marked.
        Mode::Dctcp => connection.marked >= connection.acked.div_ceil(2),
        _ => connection.marked > 0,
    };
    let heed = heed(connection, most);
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
    (connection.acked, connection.marked, connection.round_end) = (0, 0, connection.nxt);
    (is_deaf(connection) || is_unanswered, heed)
}

/// A round ends that had `most` in flight: whether the marks of two rounds before were heeded.
fn heed(connection: &mut Connection, most: u32) -> Option<Heed> {
    let was = connection.grown;
    let is_small = most <= SMALL_SEGMENTS * u32::from(connection.mss);
    let (is_less, says) =
        (most <= was - was / REDUCTION, connection.wire != Wire::Classic || connection.is(bit::LATCHED));
    if was == 0 || is_small && !says {
        return None;
    }
    let is_large = was.max(most) > LARGE_SEGMENTS * u32::from(connection.mss);
    if says && (is_less || is_small) {
        connection.zero_codes = 0;
        connection.set(bit::LATCHED, false);
        // It answers the marks of the round behind, too.
        connection.prior = 0;
        // The end of a connection is no reduction.
        let is_reduction = !is_small && most >= was / 4;
        return (is_large && is_reduction).then_some(Heed::Heeded);
    }
    let more = u8::from(!is_less) + u8::from(!says);
    connection.zero_codes = connection.zero_codes.saturating_add(more);
    // A window that had doubled before the mark was known is halved to what it was.
    let is_falling = most <= connection.prior - connection.prior / 8;
    let more = u8::from(!is_less && !is_falling) + u8::from(!says);
    (is_large && more > 0).then_some(Heed::Unheeded(more))
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
