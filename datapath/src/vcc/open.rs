//! Segments of a connection that is open: what they are made to say, what they tell, and what a
//! guest is shown of them.

use super::connection::{Connection, Treatment, Why, Wire, before, bit, later};
use super::connections::Class;
use super::segment::{Edit, Segment, codes, ecn};
use super::{Counters, Effects, Mode, Policy, control, handshake, hold, option, police, watch, window};
use crate::units::Instant;
use crate::wire::tcp_flags;

/// Segments in a row without any sign of ECN, after which the peer counts as having lost its state.
const BARE_MOST: u8 = 3;
/// How far the counter may advance in one segment without option, so that it is never taken for
/// less.
const ACE_STEP_MOST: u16 = 6;
/// How much longer than a round trip a guest may take to heed its first lowered window, in us:
/// frames wait in its port's ring.
const GRACE_US: u32 = 5_000;
/// The longest round trip for which that is waited (RFC 6298's first time-out). A time further
/// ahead is one that was: microseconds in 32 bits come again after 71 minutes.
const WAIT_MOST_US: u32 = 1_000_000;
/// Instead of a time from when on a window holds: it does.
pub(super) const ARMED: u32 = 0;
/// Microseconds.
const US: u64 = 1_000;

/// A segment without SYN from a guest.
#[inline(always)]
pub(super) fn send(connection: &mut Connection, now: Instant, policy: &Policy, segment: &Segment) -> Edit {
    let end = segment.end();
    let has_data = end != segment.seq;
    // A probe of what is acknowledged is nobody's retransmission.
    let again = has_data && before(segment.seq, connection.nxt) && before(connection.una, end);
    // What takes no number tells of data in fragments. A guest that is policed sends none, and
    // could say any number.
    let is_new = before(connection.nxt, end) && (has_data || !policy.polices);
    // A guest resets what it does not know, or no longer wants.
    if segment.flags & (tcp_flags::FIN | tcp_flags::RST) != 0 {
        connection.set(bit::FIN_OUT, true);
    }
    if again {
        connection.set(bit::TIMED, false);
        if connection.is_governed() {
            control::lost(connection, policy);
        } else {
            connection.set(bit::LOST, true);
        }
    } else if is_new {
        time(connection, now, end);
    }
    if is_new {
        connection.nxt = end;
    }
    if !connection.is_translated() {
        let said = watch::say(connection, segment, is_new);
        return if connection.is_silenced() {
            silenced(segment)
        } else {
            police::native(connection, policy, segment, said)
        };
    }
    let is_capable =
        !connection.is(bit::BLEACHED) && (policy.mode != Mode::EchoPublished || segment.payload > 0 && !again);
    let capable = if is_capable { ecn::ECT0 } else { ecn::NOT };
    let mut told = None;
    let says = match connection.wire {
        Wire::Accurate => {
            let is_due = connection.is(bit::FIRST_OUT) || connection.ce_untold > 0 || option::is_due(connection);
            told = if is_due { option::with(connection, segment) } else { None };
            option::sent(connection, told.is_some(), segment.came_twice);
            counter(connection, told.is_some())
        }
        Wire::Classic => {
            let latched = if connection.is(bit::LATCHED) { codes::ECE } else { 0 };
            let reduced = segment.payload > 0 && is_new && connection.is(bit::CWR_DUE);
            if reduced {
                connection.set(bit::CWR_DUE, false);
            }
            latched | if reduced { codes::CWR } else { 0 }
        }
        Wire::Plain => codes::NONE,
    };
    Edit {
        ecn: (capable != segment.ecn).then_some(capable),
        codes: (says != segment.codes).then_some(says),
        is_counter: connection.wire == Wire::Accurate,
        option: told,
        ..Edit::NONE
    }
}

/// A segment without any ECN.
fn silenced(segment: &Segment) -> Edit {
    Edit {
        ecn: (segment.ecn != ecn::NOT).then_some(ecn::NOT),
        codes: (segment.codes != codes::NONE).then_some(codes::NONE),
        ..Edit::NONE
    }
}

/// What is sent now is timed, until `end` is acknowledged, where nothing else is.
#[inline(always)]
pub(super) fn time(connection: &mut Connection, now: Instant, end: u32) {
    if !connection.is(bit::TIMED) {
        connection.timed = (end, (now.0 / US) as u32);
        connection.set(bit::TIMED, true);
    }
}

/// How many of a frame's segments lie beyond what the guest was told it may send, of an endpoint
/// that is held to it. Retransmissions are none, and nor is what was allowed when it was told.
/// Before its peer has answered, a guest may send nothing.
#[inline]
pub(super) fn beyond(connection: &Connection, now: Instant, policy: &Policy, segment: &Segment, size: u16) -> u32 {
    // A SYN begins anew.
    let takes = (segment.payload > 0 || segment.has(tcp_flags::FIN)) && !segment.has(tcp_flags::SYN);
    if !policy.polices || !takes {
        return 0;
    }
    // Of a guest whose SYN was not answered: else the answer to another SYN of its ports, which
    // this one took the place of, would open a connection that nobody knows.
    if connection.treatment == Treatment::Opening && connection.is(bit::ACTIVE) {
        return segment.segments;
    }
    let is_armed = connection.is_governed() && connection.is(bit::ENGAGED);
    if !is_armed || until_armed_us(connection, (now.0 / US) as u32) > 0 {
        return 0;
    }
    // Where the window is closed, a byte more is a probe.
    let edge = if connection.edge == connection.nxt { connection.edge.wrapping_add(1) } else { connection.edge };
    // Some send a FIN where the window is full, which it takes no room of.
    let end = segment.seq.wrapping_add(segment.payload);
    if !before(edge, end) {
        return 0;
    }
    let over = end.wrapping_sub(later(edge, segment.seq));
    if segment.segments == 1 {
        return 1;
    }
    over.div_ceil(u32::from(size).max(1)).min(segment.segments)
}

/// What the next segment shows of the marks that arrived. With an option all at once, since the
/// peer can tell how often the counter wraps.
fn counter(connection: &mut Connection, has_option: bool) -> u8 {
    if connection.is(bit::FIRST_OUT) {
        connection.set(bit::FIRST_OUT, false);
        return codes::received(connection.asked.met());
    }
    let untold = connection.ce_untold;
    let told = if has_option { untold } else { untold.min(ACE_STEP_MOST) };
    connection.ce_untold = untold - told;
    connection.ace_told = connection.ace_told.wrapping_add(told as u8);
    connection.ace_told & 7
}

/// A segment without SYN for a guest.
pub(super) fn receive(
    connection: &mut Connection,
    now: Instant,
    policy: &Policy,
    segment: &Segment,
    outcome: (&mut Counters, &mut Effects),
) -> Edit {
    if matches!(connection.treatment, Treatment::Opening) {
        // The guest's SYN-ACK went another way, or was never seen: nor is known whether it scales,
        // or who says so that it ends.
        return Edit::NONE;
    }
    receive_open(connection, now, policy, segment, outcome)
}

/// The same, of a connection that is open.
#[inline(always)]
pub(super) fn receive_open(
    connection: &mut Connection,
    now: Instant,
    policy: &Policy,
    segment: &Segment,
    (counters, effects): (&mut Counters, &mut Effects),
) -> Edit {
    if segment.flags & (tcp_flags::FIN | tcp_flags::RST) != 0 && is_of_peer(connection, segment) {
        connection.set(bit::FIN_IN, true);
    }
    let mut is_translated = connection.is_translated();
    let shown = connection.shown(segment.window);
    let mut edit = Edit { window: (shown != segment.window).then_some(shown), ..Edit::NONE };
    if is_translated {
        if has_forgotten(connection, segment) {
            connection.treatment = Treatment::Plain;
            // With the guest's own answer the peer speaks as the guest does.
            let is_agreed = connection.zero_codes < BARE_MOST;
            connection.asked = connection.asked.answered(connection.asked.is_classic() && !is_agreed);
            counters.lapsed += 1;
            is_translated = false;
        } else {
            count_marks(connection, segment, counters);
        }
    }
    if segment.has(tcp_flags::ACK) && !segment.has(tcp_flags::RST) {
        let told = acknowledge(connection, now, policy, (segment, shown), (counters, effects));
        edit.window = told.or(edit.window);
    }
    if connection.held != hold::NONE && segment.has(tcp_flags::ACK) && segment.ack == connection.una {
        effects.supersedes = true;
    }
    if is_translated || connection.is_silenced() {
        edit.ecn = (segment.ecn != ecn::NOT).then_some(ecn::NOT);
        edit.codes = (segment.codes != codes::NONE).then_some(codes::NONE);
        edit.hides = segment.option;
    }
    edit
}

/// Whether what ends a connection is its peer's: a stranger does not know what the guest has sent
/// (RFC 5961, section 5). Who asked, and does not want the answer, resets it without acknowledging
/// anything (RFC 9293, section 3.10.7.1): by the number behind its SYN.
pub(super) fn is_of_peer(connection: &Connection, end: &Segment) -> bool {
    if !end.has(tcp_flags::ACK) {
        let is_refused = end.has(tcp_flags::RST) && Class::of(connection) == Class::Offered;
        return is_refused && connection.follows_syn(end.seq, connection.usual_wait.into());
    }
    !before(end.ack, connection.una) && !before(connection.nxt, end.ack)
}

/// Whether the peer's switch seems to have lost its state: it began with ECN on all its frames, and
/// now neither a codepoint nor a counter comes. Nobody would report marks. Or whether the peer has
/// had a SYN-ACK that agreed to nothing, which its first segment tells.
fn has_forgotten(connection: &mut Connection, segment: &Segment) -> bool {
    let is_accurate = connection.wire == Wire::Accurate;
    let began = is_accurate && connection.asked.met() != ecn::NOT;
    let is_first = is_accurate && connection.is(bit::FIRST_IN) && connection.tries > handshake::TRIES_WITH_ECN;
    // A stranger does not know what the guest has sent.
    if !(began || is_first) || before(segment.ack, connection.una) || before(connection.nxt, segment.ack) {
        return false;
    }
    let is_bare = segment.ecn == ecn::NOT && segment.codes == codes::NONE;
    connection.zero_codes = if is_bare { connection.zero_codes.saturating_add(1) } else { 0 };
    is_bare && is_first || connection.zero_codes >= BARE_MOST
}

/// What the data of a segment say of the network's queues.
#[inline(always)]
fn count_marks(connection: &mut Connection, segment: &Segment, counters: &mut Counters) {
    let is_marked = segment.ecn == ecn::CE;
    if connection.wire == Wire::Classic && segment.payload > 0 {
        let stays = connection.is(bit::LATCHED) && segment.codes & codes::CWR == 0;
        connection.set(bit::LATCHED, is_marked || stays && !connection.is(bit::ECHOES_LAST));
    }
    if connection.wire == Wire::Accurate && segment.payload > 0 {
        option::count(connection, segment.segments, segment.payload, segment.ecn);
    }
    if is_marked {
        connection.ce_untold = connection.ce_untold.saturating_add(segment.segments as u16);
        counters.hidden_marks += u64::from(segment.segments);
    }
}

/// The acknowledgement in a segment: feedback, the controller, and what the guest is told.
#[inline(always)]
fn acknowledge(
    connection: &mut Connection,
    now: Instant,
    policy: &Policy,
    (segment, shown): (&Segment, u16),
    (counters, effects): (&mut Counters, &mut Effects),
) -> Option<u16> {
    let ack = segment.ack;
    if before(ack, connection.una) || before(connection.nxt, ack) {
        // Of unsent data, or old: no effect (RFC 5961, section 5).
        counters.untouched[Why::Outside as usize] += u64::from(before(connection.nxt, ack));
        return None;
    }
    let (acked, flight) = (ack.wrapping_sub(connection.una), connection.flight());
    if !connection.is_governed() {
        connection.una = ack;
        if watch::concerns(connection, policy) {
            sample(connection, now, ack);
            let marked = reported(connection, segment, acked).min(acked);
            let feedback = control::Feedback { acked, marked, signal: false, flight };
            let (is_deaf, heed) = watch::acknowledged(connection, policy, &feedback);
            effects.heed = heed;
            if is_deaf {
                counters.deaf += 1;
                arm(connection, now);
            }
        }
        return None;
    }
    if policy.polices {
        keep_armed(connection, now);
    }
    let marked = reported(connection, segment, acked);
    let signal = marked > 0 || connection.is(bit::PENDING);
    if acked == 0 {
        connection.set(bit::PENDING, signal);
        let told = window::tell(connection, policy, ack, shown, 0);
        counters.lowered += u64::from(told.is_some());
        return told;
    }
    connection.una = ack;
    sample(connection, now, ack);
    counters.acked_bytes += u64::from(acked);
    let marked = marked.min(acked);
    if signal {
        connection.set(bit::PENDING, false);
        counters.marked_bytes += u64::from(marked);
    }
    let was_engaged = connection.is(bit::ENGAGED);
    if control::acknowledged(connection, policy, &control::Feedback { acked, marked, signal, flight }) {
        counters.reductions += 1;
        if !was_engaged {
            arm(connection, now);
        }
    }
    let told = window::tell(connection, policy, ack, shown, acked);
    counters.lowered += u64::from(told.is_some());
    let two = window::LEAST_SEGMENTS * u32::from(connection.mss);
    if policy.holds
        && connection.is_translated()
        && connection.is(bit::ENGAGED)
        && segment.payload == 0
        && !segment.has(tcp_flags::FIN)
    {
        let wait_us = hold::wait_us(connection.srtt, two, connection.window);
        let usual = u32::from(connection.usual_wait);
        effects.us = hold::patient_us(wait_us, usual);
        if connection.held == hold::NONE {
            connection.usual_wait = hold::usual_us(usual, effects.us) as u16;
        }
    }
    told
}

/// A window is the controller's from now on: what the guest has sent, or will send before it hears
/// of this, was allowed.
fn arm(connection: &mut Connection, now: Instant) {
    let wait_us = connection.srtt.min(WAIT_MOST_US) + GRACE_US;
    connection.armed_at = armed_at((now.0 / US) as u32, wait_us);
}

/// When what lies beyond a window is no longer what was allowed before.
pub(super) fn armed_at(now_us: u32, wait_us: u32) -> u32 {
    if wait_us == 0 { ARMED } else { now_us.wrapping_add(wait_us).max(ARMED + 1) }
}

/// Where the window is the controller's already, the time is forgotten: it would be ahead again
/// after 71 minutes.
fn keep_armed(connection: &mut Connection, now: Instant) {
    if connection.armed_at != ARMED && until_armed_us(connection, (now.0 / US) as u32) == 0 {
        connection.armed_at = ARMED;
    }
}

/// How long it is until then, in microseconds.
pub(super) fn until_armed_us(connection: &Connection, now_us: u32) -> u32 {
    let left_us = connection.armed_at.wrapping_sub(now_us);
    if connection.armed_at != ARMED && left_us <= WAIT_MOST_US + GRACE_US { left_us } else { 0 }
}

/// Bytes that the peer reports as marked.
#[inline(always)]
fn reported(connection: &mut Connection, segment: &Segment, acked: u32) -> u32 {
    match connection.wire {
        Wire::Plain => 0,
        Wire::Classic => {
            if segment.codes & codes::ECE != 0 {
                acked.max(1)
            } else {
                0
            }
        }
        Wire::Accurate => {
            let shown = segment.codes;
            let news = option::news(connection, segment.option, acked);
            if connection.is(bit::FIRST_IN) {
                connection.set(bit::FIRST_IN, false);
                let early = core::mem::take(&mut connection.usual_wait).into();
                // Only what acknowledges the SYN-ACK alone says it so; later the same bits are the
                // counter.
                let is_first = acked <= 1 && connection.follows_syn(segment.seq, early);
                if let Some(said) = codes::said_of(shown).filter(|_| is_first) {
                    if said == ecn::NOT {
                        connection.set(bit::BLEACHED, true);
                    }
                    connection.ace_seen = (handshake::FIRST_COUNT + u8::from(said == ecn::CE)) & 7;
                    return if said == ecn::CE { u32::from(connection.mss) } else { 0 };
                }
            }
            let delta = shown.wrapping_sub(connection.ace_seen) & 7;
            connection.ace_seen = shown;
            let by_segments = u32::from(delta) * u32::from(connection.mss);
            match news {
                // Else they are marks on segments without data.
                Some(bytes) if bytes > 0 => bytes,
                Some(_) => by_segments,
                None => {
                    // What an option tells later includes it.
                    connection.ce_bytes_seen = connection.ce_bytes_seen.plus(by_segments);
                    by_segments
                }
            }
        }
    }
}

/// A round trip, where what was timed is acknowledged and was sent once only.
#[inline(always)]
pub(super) fn sample(connection: &mut Connection, now: Instant, ack: u32) {
    if !connection.is(bit::TIMED) || before(ack, connection.timed.0) {
        return;
    }
    connection.set(bit::TIMED, false);
    let us = ((now.0 / US) as u32).wrapping_sub(connection.timed.1).max(1);
    // RFC 6298's gain of an eighth.
    connection.srtt = match connection.srtt {
        0 => us,
        srtt => srtt - srtt / 8 + us / 8,
    };
}
