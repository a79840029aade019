//! The controllers: how large the window may be.
//!
//! A *signal* is a mark that the peer reports. A window is reduced at most once a round, and grows
//! only in rounds without a reduction, and only as far as the guest uses it (the idea of RFC 7661),
//! or a reduction would take away what nobody used. Until the first signal nothing is lowered
//! (*passive*); the window is then what was in flight.
//!
//! `echo` shares queues with the senders of RFC 3168, and most of these run CUBIC: it reduces and
//! grows as CUBIC does where round trips are short (the Reno-friendly region of RFC 9438), which is
//! on average what Reno does. `dctcp` is Linux's DCTCP, which grows as Reno does.

use super::connection::{Connection, Wire, before, bit, later};
use super::{Mode, Policy, hold, window};

/// DCTCP's gain is 1/16 (RFC 8257, section 3.3), as a shift.
const GAIN_SHIFT: u32 = 4;
/// What CUBIC keeps of its window at a signal (RFC 9438, section 4.6), in 1/1024 as Linux has it.
const CUBIC_BETA: u64 = 717;
/// Segments that CUBIC's window grows by in a round trip, in 1/17, until it is where it was before
/// the signal: 3 (1 - beta) / (1 + beta) (RFC 9438, section 4.3). From there on it is one.
const CUBIC_ALPHA: (u64, u64) = (9, 17);
/// Segments that a new connection may send (RFC 6928).
const INITIAL_SEGMENTS: u32 = 10;
/// All bytes are marked.
pub(super) const ALL_MARKED: u32 = 1 << 16;
/// Rounds without signal and without use of the window, after which it is no longer lowered.
const PASSIVE_AFTER: u8 = 16;

/// What an acknowledgement that advances tells the controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Feedback {
    /// Bytes that it acknowledges.
    pub acked: u32,
    /// Of these, how many are reported as marked.
    pub marked: u32,
    /// Congestion was reported.
    pub signal: bool,
    /// Bytes that were in flight before it came.
    pub flight: u32,
}

/// An acknowledgement has advanced `una`. Whether the window was reduced.
#[inline(always)]
pub fn acknowledged(connection: &mut Connection, policy: &Policy, feedback: &Feedback) -> bool {
    let Feedback { acked, marked, signal, flight } = *feedback;
    connection.acked = connection.acked.saturating_add(acked);
    if marked > 0 {
        connection.marked = connection.marked.saturating_add(marked);
    }
    let mut is_reduced = false;
    let (is_engaged, is_shared) = (connection.is(bit::ENGAGED), is_shared(connection, policy));
    if signal && !(is_shared && is_engaged) && is_news(connection, acked, marked) {
        mark(connection, policy, flight);
        is_reduced = true;
    } else if is_engaged {
        // Natives too wait for what said CWR, the first beyond the reduction, to be acknowledged.
        if is_shared || before(connection.reduced_to, connection.una) {
            grow(connection, policy, acked, flight);
        } else if !is_pending(connection) {
            connection.reduced_to = connection.una.wrapping_sub(1);
        }
    }
    if !before(connection.una, connection.round_end) {
        is_reduced |= end_round(connection, policy, signal);
    }
    is_reduced
}

/// Whether windows may be below two segments. Rounds are of two segments then, mostly marked both
/// or none, and taken by themselves these make windows wander far apart. So each round takes half
/// of the average fraction that is marked, whether or not it was marked itself, and windows grow in
/// all rounds: see [`grow_gently`].
pub(super) fn is_shared(connection: &Connection, policy: &Policy) -> bool {
    policy.holds && is_dctcp(connection, policy)
}

/// Whether a window is reduced and grows as DCTCP's: where the peer tells what part was marked.
#[inline(always)]
fn is_dctcp(connection: &Connection, policy: &Policy) -> bool {
    policy.mode == Mode::Dctcp && connection.wire == Wire::Accurate
}

/// Whether a signal is of data sent after the last reduction: what is older was answered by that.
/// Of an acknowledgement of both, what is marked beyond all segments of the older.
fn is_news(connection: &Connection, acked: u32, marked: u32) -> bool {
    let from = connection.una.wrapping_sub(acked);
    let older = connection.reduced_to.wrapping_sub(from);
    if older == 0 || older > connection.nxt.wrapping_sub(from) {
        return true;
    }
    // Marks are told in whole segments, which may be shorter than the largest.
    older < acked && marked > older.next_multiple_of(u32::from(connection.mss))
}

/// Whether the last reduction may answer what is in flight. Numbers wrap, and one of 2 GiB ago
/// seems to be one to come; but none answers more than was sent.
#[cold]
fn is_pending(connection: &Connection) -> bool {
    connection.reduced_to.wrapping_sub(connection.una) <= connection.nxt.wrapping_sub(connection.una)
}

/// Whether a connection that was written down has values that this controller gives.
pub(super) fn is_sound(connection: &Connection) -> bool {
    let is_window = connection.window > 0 && connection.window <= WINDOW_MOST;
    let is_engaged = connection.is(bit::ENGAGED);
    (is_window || !is_engaged) && connection.alpha <= ALL_MARKED && connection.idle_rounds < PASSIVE_AFTER
}

/// The guest sends again what it sent before: once a round that says that something was lost.
pub fn lost(connection: &mut Connection, policy: &Policy) {
    // A guest that nothing is lowered for has reduced its own window.
    if !connection.is(bit::ENGAGED) || connection.is(bit::LOST) || policy.mode == Mode::EchoPublished {
        return;
    }
    // Who did not heed marks may not heed losses either.
    if policy.ignores_loss && !connection.is(bit::DEAF) {
        return;
    }
    connection.set(bit::LOST, true);
    connection.prior = connection.window;
    let window = connection.window.min(connection.flight().max(1)) / 2;
    reduce_to(connection, policy, window);
}

/// The first signal of a round.
#[cold]
fn mark(connection: &mut Connection, policy: &Policy, flight: u32) {
    if !connection.is(bit::ENGAGED) {
        connection.set(bit::ENGAGED, true);
        connection.window = flight.max(u32::from(connection.mss));
        connection.edge = connection.nxt;
    }
    connection.idle_rounds = 0;
    let window = connection.window;
    connection.prior = window;
    let reduced = match policy.mode {
        _ if is_dctcp(connection, policy) => {
            if !connection.is(bit::MARKED) {
                connection.alpha = ALL_MARKED;
            }
            let reduced = less(window, connection.alpha);
            if is_shared(connection, policy) {
                connection.alpha = ALPHA_SHARED;
            }
            reduced
        }
        Mode::EchoPublished => window / 2,
        // As Reno does, with CUBIC's growth: not to heed marks never pays.
        _ if connection.is(bit::DEAF) => window / 2,
        _ => ((u64::from(window) * CUBIC_BETA) >> 10) as u32,
    };
    // Only RFC 3168's receiver waits for CWR.
    let answer = if connection.wire == Wire::Classic { bit::CWR_DUE } else { 0 };
    connection.set(bit::MARKED | answer, true);
    reduce_to(connection, policy, reduced);
}

/// A guest that did not heed marks has the window of a new connection from now on, without slow
/// start.
pub(super) fn begin_anew(connection: &mut Connection, policy: &Policy) {
    connection.set(bit::ENGAGED, true);
    connection.set(bit::USED | bit::LOST, false);
    connection.idle_rounds = 0;
    reduce_to(connection, policy, INITIAL_SEGMENTS * u32::from(connection.mss));
    // The peer's data may tell it before anything new is acknowledged.
    connection.edge = later(connection.nxt, connection.una.wrapping_add(connection.window));
    connection.prior = connection.window;
    connection.round_end = connection.nxt;
}

/// DCTCP's reduction: by half of the marked fraction.
fn less(window: u32, alpha: u32) -> u32 {
    window - ((u64::from(window) * u64::from(alpha)) >> 17) as u32
}

/// What a window was that was reduced to this, as CUBIC's.
pub(super) fn prior_of(window: u32) -> u32 {
    ((u64::from(window) << 10) / CUBIC_BETA).min(u64::from(WINDOW_MOST)) as u32
}

/// The least that the window may be: two segments, as for natives (RFC 5681), or what
/// acknowledgements that wait can make of these.
fn floor(connection: &Connection, policy: &Policy) -> u32 {
    let two = window::LEAST_SEGMENTS * u32::from(connection.mss);
    if policy.holds && connection.srtt > 0 { hold::least_window(connection.srtt, two) } else { two }
}

fn reduce_to(connection: &mut Connection, policy: &Policy, window: u32) {
    let two = window::LEAST_SEGMENTS * u32::from(connection.mss);
    connection.window = window.max(floor(connection, policy));
    connection.ssthresh = connection.window;
    connection.reduced_to = connection.nxt;
    connection.grown = 0;
    let flight = connection.flight().max(1);
    let pace = (u64::from(connection.window.max(two)) << 8) / u64::from(flight);
    connection.pace = pace.min(256) as u16;
}

/// Slow start below the threshold, then so much for each window that is acknowledged as the natives
/// of the network have: one segment, or what CUBIC does where it is as fast as that on average.
#[inline(always)]
fn grow(connection: &mut Connection, policy: &Policy, acked: u32, flight: u32) {
    let (window, mss) = (connection.window, u32::from(connection.mss));
    let slow_start = window < connection.ssthresh;
    let used = if slow_start { flight.saturating_mul(2) >= window } else { flight.saturating_add(mss) >= window };
    if used || policy.polices && is_filled(window, mss, flight) {
        connection.set(bit::USED, true);
    } else if policy.mode != Mode::EchoPublished {
        return;
    }
    if slow_start {
        connection.window = window.saturating_add(acked).min(connection.ssthresh);
        return;
    }
    if is_shared(connection, policy) {
        return grow_gently(connection, acked);
    }
    // In bytes times the window, so that no part of a segment is lost.
    let segment = u64::from(acked) * u64::from(mss);
    let is_reno = window >= connection.prior || is_dctcp(connection, policy) || policy.mode == Mode::EchoPublished;
    let (segments, of) = CUBIC_ALPHA;
    let grown = u64::from(connection.grown) + if is_reno { segment } else { segment * segments / of };
    let base = u64::from(window.max(flight));
    connection.window = window.saturating_add((grown / base) as u32).min(WINDOW_MOST);
    connection.grown = (grown % base) as u32;
}

/// Whether a guest that is held to its window, and to whom it stays, can have sent no more: it is
/// told whole segments of the largest size, and a whole one of its own may not fit in the rest.
#[inline(always)]
fn is_filled(window: u32, mss: u32, flight: u32) -> bool {
    flight.saturating_add(2 * mss) >= window
}

/// Where windows may be below two segments, by so much for each round (two segments acknowledged,
/// or a window): a sixteenth of a segment, from half a segment on with the root of the window,
/// until it is a whole one. As a part of the window that is the more the smaller the window is, so
/// that who has less gains on who has more; and it stays below what a mark can take, which a whole
/// segment does not where windows are small (Briscoe, De Schepper, 2015).
fn grow_gently(connection: &mut Connection, acked: u32) {
    let (window, mss) = (u64::from(connection.window.max(1)), u64::from(connection.mss));
    // Of twice the window in segments, in 1/256: no less than one, no more than 16.
    let root = ((window << 16) / mss * 2).isqrt().clamp(256, 256 * GENTLE_PART);
    let round = window.max(u64::from(window::LEAST_SEGMENTS) * mss);
    // As in `grow`, what is no whole byte yet is kept.
    let grown = u64::from(connection.grown) + u64::from(acked) * mss * root / (256 * GENTLE_PART);
    connection.window = (window + (grown / round).min(window / 2)).min(u64::from(WINDOW_MOST)) as u32;
    connection.grown = (grown % round) as u32;
}

/// See [`grow_gently`].
const GENTLE_PART: u64 = 16;
/// The average of such a connection behind its first mark. Each round takes half of it while it
/// fades, which leaves about 0.37 of the window where nothing more is marked.
const ALPHA_SHARED: u32 = ALL_MARKED / 8;
/// The largest window that TCP can tell (RFC 7323, section 2.3).
const WINDOW_MOST: u32 = 1 << 30;

/// A round is over. Whether the window was reduced.
#[inline(always)]
fn end_round(connection: &mut Connection, policy: &Policy, signal: bool) -> bool {
    let mut is_idle = !signal && !connection.is(bit::USED);
    if connection.marked > 0 {
        connection.alpha = averaged(connection.alpha, connection.marked, connection.acked);
        is_idle = false;
    } else if connection.acked > 0 {
        connection.alpha = faded(connection.alpha);
    }
    let is_reduced = is_shared(connection, policy) && connection.is(bit::ENGAGED) && connection.alpha > 0;
    if is_reduced {
        reduce_to(connection, policy, less(connection.window, connection.alpha));
    }
    if connection.is(bit::ENGAGED) && policy.mode != Mode::EchoPublished {
        if !is_idle {
            connection.idle_rounds = 0;
        } else if connection.idle_rounds + 1 < PASSIVE_AFTER {
            connection.idle_rounds += 1;
        } else {
            connection.idle_rounds = 0;
            // A guest that is held to its window could have it lifted by sending a byte at a time.
            if !policy.polices {
                connection.set(bit::ENGAGED, false);
                connection.ssthresh = u32::MAX;
            }
        }
    }
    connection.round_end = connection.nxt;
    (connection.acked, connection.marked) = (0, 0);
    connection.set(bit::USED | bit::LOST, false);
    is_reduced
}

/// Moves `alpha` a sixteenth of the way to nothing, and reaches it.
#[inline(always)]
fn faded(alpha: u32) -> u32 {
    alpha - ((alpha + ((1 << GAIN_SHIFT) - 1)) >> GAIN_SHIFT)
}

/// Moves `alpha` a sixteenth of the way to the part of all bytes that is marked, and reaches it.
#[inline(never)]
fn averaged(alpha: u32, marked: u32, all: u32) -> u32 {
    let share = (u64::from(marked) << 16)
        .checked_div(u64::from(all))
        .map_or(alpha, |share| share.min(u64::from(ALL_MARKED)) as u32);
    let distance = alpha.abs_diff(share);
    let step = distance.div_ceil(1 << GAIN_SHIFT);
    if share > alpha { alpha + step } else { alpha - step }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vcc::segment::Options;
    use proptest::prelude::*;

    /// A connection with so many bytes in flight.
    fn connection(mss: u16, flight: u32) -> Connection {
        let options = Options { mss: Some(mss), ..Options::default() };
        let mut connection = Connection::new(&options);
        connection.wire = Wire::Accurate;
        connection.nxt = flight;
        connection
    }

    /// The peer acknowledges all that is in flight, `marked` of it marked, and the guest sends
    /// `flight`.
    fn round(connection: &mut Connection, policy: &Policy, flight: u32, marked: u32) {
        let acked = connection.flight();
        connection.una = connection.nxt;
        connection.nxt = connection.nxt.wrapping_add(flight);
        let feedback = Feedback { acked, marked, signal: marked > 0, flight: acked };
        acknowledged(connection, policy, &feedback);
    }

    #[test]
    fn the_first_mark_reduces_what_was_in_flight_once() {
        for (mode, left) in [(Mode::Echo, 70_019), (Mode::Dctcp, 50_000)] {
            let policy = Policy { mode, ..Policy::default() };
            let mut connection = connection(1000, 100_000);
            round(&mut connection, &policy, 100_000, 0);
            assert!(!connection.is(bit::ENGAGED));
            round(&mut connection, &policy, 100_000, 10_000);
            assert_eq!((connection.is(bit::ENGAGED), connection.window), (true, left), "{mode:?}");
        }
    }

    /// Of 10 segments in flight the first is marked. Then so many segments, the first `older` of
    /// which were sent before that, are acknowledged, and `marked` of these are reported: by how
    /// many segments of 1448 bytes the window is lower.
    fn lower_after(older: u32, newer: u32, marked: u32) -> u32 {
        let policy = Policy::default();
        let mut connection = connection(1460, 14_480);
        round(&mut connection, &policy, 14_480, 1460);
        connection.una = connection.reduced_to.wrapping_sub(1448 * older);
        let before = connection.window;
        let acked = 1448 * (older + newer);
        connection.una = connection.una.wrapping_add(acked);
        let feedback = Feedback { acked, marked: (1460 * marked).min(acked), signal: marked > 0, flight: acked };
        acknowledged(&mut connection, &policy, &feedback);
        before.saturating_sub(connection.window) / 1448
    }

    #[test]
    fn a_mark_on_what_was_sent_before_a_reduction_is_no_news_although_segments_are_short() {
        // Timestamps leave 1448 bytes of a segment of 1460.
        assert_eq!([lower_after(1, 1, 1), lower_after(2, 1, 2), lower_after(2, 0, 2)], [0; 3]);
        assert_eq!([lower_after(1, 1, 2), lower_after(2, 1, 3), lower_after(0, 2, 1)], [2; 3]);
    }

    #[test]
    fn what_is_sent_again_halves_the_window_once_a_round_unless_losses_are_the_guests_matter() {
        for (ignores_loss, is_deaf, left) in
            [(false, false, 35_009), (true, false, 70_019), (false, true, 25_000), (true, true, 25_000)]
        {
            let policy = Policy { ignores_loss, ..Policy::default() };
            let mut connection = connection(1000, 100_000);
            connection.set(bit::DEAF, is_deaf);
            round(&mut connection, &policy, 100_000, 1000);
            let marked = connection.window;
            for _ in 0..2 {
                lost(&mut connection, &policy);
            }
            assert_eq!(connection.window, left, "{ignores_loss}, {is_deaf}");
            // A mark lowers it all the same.
            connection.nxt = connection.nxt.wrapping_add(1000);
            connection.una = connection.nxt.wrapping_sub(1000);
            round(&mut connection, &policy, marked, 1000);
            assert!(connection.window < left, "{ignores_loss}, {is_deaf}: {}", connection.window);
        }
    }

    #[test]
    fn a_window_does_not_grow_until_more_than_the_reduction_met_is_acknowledged() {
        let policy = Policy::default();
        let mut connection = connection(1000, 10_000);
        round(&mut connection, &policy, 10_000, 1000);
        let reduced = connection.window;
        // Exactly what was in flight at the reduction: natives are told of CWR by what follows.
        round(&mut connection, &policy, reduced, 0);
        assert_eq!((connection.una, connection.window), (connection.reduced_to, reduced));
        round(&mut connection, &policy, reduced, 0);
        assert!(connection.window > reduced);
    }

    #[test]
    fn marks_count_and_windows_grow_however_much_went_without_a_reduction() {
        for mode in [Mode::Echo, Mode::Dctcp] {
            let policy = Policy { mode, ..Policy::default() };
            let flight = 1 << 24;
            let mut connection = connection(1000, flight);
            // More than 2^31 bytes, and less than 2^32.
            for _ in 0..160 {
                round(&mut connection, &policy, flight, 0);
            }
            round(&mut connection, &policy, flight, 1 << 20);
            assert!(connection.is(bit::ENGAGED) && connection.window < flight, "{mode:?}: {}", connection.window);
            // Some 2^33 bytes; what the reduction met is waited for.
            let mut grown = 0;
            for _ in 0..1000 {
                let before = connection.window;
                round(&mut connection, &policy, before, 0);
                grown += u32::from(connection.window > before);
            }
            assert!(grown >= 990, "{mode:?}: in {grown} rounds of 1000");
            let before = connection.window;
            round(&mut connection, &policy, before, 1 << 20);
            assert_eq!(connection.reduced_to, connection.nxt, "{mode:?}: the mark is news");
        }
    }

    #[test]
    fn dctcp_follows_the_fraction_that_is_marked() {
        let policy = Policy { mode: Mode::Dctcp, ..Policy::default() };
        let mut connection = connection(1000, 100_000);
        round(&mut connection, &policy, 100_000, 100_000);
        for _ in 0..200 {
            let flight = connection.window;
            round(&mut connection, &policy, flight, flight / 10);
        }
        let thousandths = u64::from(connection.alpha) * 1000 / 65_536;
        assert!((91..=109).contains(&thousandths), "{thousandths}");
    }

    #[test]
    fn an_unused_window_does_not_grow_and_is_given_up_in_the_end() {
        let policy = Policy { mode: Mode::Echo, ..Policy::default() };
        let mut connection = connection(1000, 100_000);
        round(&mut connection, &policy, 100_000, 1000);
        for _ in 0..10 {
            round(&mut connection, &policy, 10_000, 0);
        }
        assert!(connection.window <= 71_000, "{}", connection.window);
        for _ in 0..10 {
            round(&mut connection, &policy, 10_000, 0);
        }
        assert!(!connection.is(bit::ENGAGED));
    }

    #[test]
    fn a_policed_guest_that_does_not_use_its_window_keeps_it() {
        let policy = Policy { polices: true, ..Policy::default() };
        let mut connection = connection(1000, 100_000);
        round(&mut connection, &policy, 100_000, 1000);
        let window = connection.window;
        for _ in 0..300 {
            round(&mut connection, &policy, 1, 0);
        }
        assert_eq!((connection.is(bit::ENGAGED), connection.window), (true, window));
        assert!(is_sound(&connection));
    }

    #[test]
    fn the_window_of_a_policed_guest_grows_although_its_segments_are_short() {
        let policy = Policy { polices: true, ..Policy::default() };
        let mut connection = connection(1448, 2896);
        round(&mut connection, &policy, 2896, 1448);
        for _ in 0..100 {
            // What it was told, in whole segments of its own.
            let told = connection.window / 1448 * 1448;
            round(&mut connection, &policy, told / 1000 * 1000, 0);
        }
        assert!(connection.window > 20 * 1448, "{}", connection.window);
    }

    /// How much a window has grown `rounds` after a reduction from 100 000 bytes.
    fn grown(mode: Mode, rounds: u32) -> u32 {
        let policy = Policy { mode, ..Policy::default() };
        let mut connection = connection(1000, 100_000);
        round(&mut connection, &policy, 100_000, 1000);
        // What was in flight at the reduction is acknowledged first.
        let flight = connection.window;
        round(&mut connection, &policy, flight, 0);
        let before = connection.window;
        for _ in 0..rounds {
            let flight = connection.window;
            round(&mut connection, &policy, flight, 0);
        }
        connection.window - before
    }

    #[test]
    fn a_used_window_grows_by_a_segment_a_round_and_as_cubic_by_half_of_one_until_it_is_back() {
        assert!((9_000..=10_000).contains(&grown(Mode::Dctcp, 10)), "{}", grown(Mode::Dctcp, 10));
        assert!((4_700..=5_400).contains(&grown(Mode::Echo, 10)), "{}", grown(Mode::Echo, 10));
        // Back after 57 rounds of 9/17, then one segment a round.
        assert!((70_000..=74_000).contains(&grown(Mode::Echo, 100)), "{}", grown(Mode::Echo, 100));
    }

    #[test]
    fn dctcp_beside_a_peer_of_rfc_3168_reduces_and_grows_as_echo() {
        let windows = |mode: Mode| {
            let policy = Policy { mode, ..Policy::default() };
            let mut connection = connection(1000, 100_000);
            connection.wire = Wire::Classic;
            let mut flight = 100_000;
            let all = (0..100).map(|number| {
                round(&mut connection, &policy, flight, if number % 40 == 0 { flight } else { 0 });
                flight = connection.window;
                flight
            });
            all.collect::<Vec<_>>()
        };
        let echo = windows(Mode::Echo);
        assert_eq!(windows(Mode::Dctcp), echo);
        assert!(echo[1] < 71_000 && echo[39] > echo[1], "{echo:?}");
    }

    #[test]
    fn windows_below_and_above_two_segments_meet_where_as_much_is_marked() {
        let policy = Policy { mode: Mode::Dctcp, holds: true, ..Policy::default() };
        let windows = [100, 1500, 6000].map(|window| {
            let mut connection = connection(1000, 2000);
            connection.srtt = 500;
            connection.set(bit::ENGAGED | bit::MARKED, true);
            connection.window = window;
            for number in 0..400 {
                // In flight are two segments at least: below, they go more rarely.
                let flight = connection.window.max(2000);
                round(&mut connection, &policy, flight, if number % 4 == 0 { flight } else { 0 });
            }
            connection.window
        });
        let [least, most] = [windows.iter().min(), windows.iter().max()].map(|window| window.copied().unwrap_or(0));
        assert!(least > 300 && most < 1000 && most - least < least / 20, "{windows:?}");
    }

    #[test]
    fn where_windows_may_be_small_large_ones_grow_as_much_in_pieces_as_at_once() {
        for window in [20_000, 1_000_000, 5_000_000, 50_000_000] {
            let grown = |piece: u32| {
                let mut connection = connection(1448, window);
                connection.window = window;
                (0..window / piece).for_each(|_| grow_gently(&mut connection, piece));
                connection.window - window
            };
            let (pieces, whole) = (grown(2896), grown(window));
            assert!(whole > 300 && pieces >= whole - whole / 7 && pieces <= whole, "{window}: {pieces}, {whole}");
        }
    }

    #[test]
    fn the_published_window_grows_although_nobody_uses_it() {
        let policy = Policy { mode: Mode::EchoPublished, ..Policy::default() };
        let mut connection = connection(1000, 1000);
        round(&mut connection, &policy, 1000, 1000);
        assert_eq!(connection.window, 2000, "the floor");
        for _ in 0..100 {
            round(&mut connection, &policy, 1000, 0);
        }
        assert!(connection.window > 10_000, "{}", connection.window);
    }

    proptest! {
        #[test]
        fn nothing_that_a_peer_reports_breaks_the_arithmetic(
            mss in 28u16.., mode in 0usize..3,
            rounds in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u32>(), any::<bool>()), 1..50),
        ) {
            let mode = [Mode::Echo, Mode::Dctcp, Mode::EchoPublished][mode];
            let policy = Policy { mode, ..Policy::default() };
            let mut connection = connection(mss, 0);
            for (acked, marked, flight, signal) in rounds {
                connection.una = connection.una.wrapping_add(acked);
                connection.nxt = connection.una.wrapping_add(flight);
                acknowledged(&mut connection, &policy, &Feedback { acked, marked, signal, flight });
                if signal { lost(&mut connection, &policy); }
                prop_assert!(connection.alpha <= ALL_MARKED);
                prop_assert!(!connection.is(bit::ENGAGED) || connection.window > 0);
            }
        }

        #[test]
        fn an_average_reaches_what_it_follows(alpha in 0u32..=ALL_MARKED, share in 0u32..=ALL_MARKED) {
            let mut value = alpha;
            for _ in 0..300 {
                prop_assert_eq!(averaged(value, 0, 1), faded(value));
                value = averaged(value, share, ALL_MARKED);
            }
            prop_assert_eq!(value, share);
        }
    }
}
