//! The handshake: who speaks ECN, with whom, and which of the two kinds.
//!
//! A SYN of a guest that asks for nothing is given the flags of AccECN (RFC 9768), which a server
//! that knows only RFC 3168 answers by that one's rules; `echo-published` asks for RFC 3168 as the
//! published systems do. The third try asks for nothing, since some boxes drop such SYNs. A SYN for
//! a guest is delivered as it came: the guest may speak for itself. If it does not, its SYN-ACK is
//! answered for it. What a guest says for itself is native, and passes bit for bit.

use super::connection::{Asked, Connection, Kind, Scale, Treatment, Why, Wire, before, bit, later};
use super::segment::{Edit, Options, Segment, codes, ecn};
use super::{Mode, Policy, control, option, police, syn, watch, window};

/// Tries of a SYN or SYN-ACK that carry ECN flags; later ones carry none.
pub(super) const TRIES_WITH_ECN: u8 = 2;
/// The first window of a guest that is held to it, in segments (RFC 6928).
const INITIAL_SEGMENTS: u32 = 10;
/// The counter of marked segments begins with this on both sides (RFC 9768, section 3.2.1).
pub(super) const FIRST_COUNT: u8 = 5;

/// A guest's SYN: the entry that it makes, and what becomes of the frame.
#[must_use]
pub fn ask(policy: &Policy, syn: &Segment, options: &Options) -> (Connection, Edit) {
    let mut connection = Connection::new(options);
    connection.set(bit::ACTIVE, true);
    connection.first[0] = syn.seq;
    (connection.una, connection.nxt) = (syn.seq, syn.end());
    connection.set(bit::SCALED, options.scale.is_some());
    let asks = police::asks(policy, syn.codes);
    connection.asked = Asked::new(asks, ecn::NOT);
    connection.treatment = match asks {
        _ if options.is_signed => Treatment::Untouched(Why::Signed),
        _ if is_multipath(policy, options) => Treatment::Untouched(Why::Multipath),
        codes::NONE => Treatment::Opening,
        codes::ASK_CLASSIC | codes::ASK_ACCURATE => Treatment::Native,
        _ => Treatment::Untouched(Why::Codes),
    };
    let edit = ask_again(&mut connection, policy, syn, options);
    (connection, edit)
}

/// The same SYN once more.
pub fn ask_again(connection: &mut Connection, policy: &Policy, syn: &Segment, options: &Options) -> Edit {
    connection.tries = connection.tries.saturating_add(1);
    let stripped = Edit { strips: strips(connection, policy, options), ..Edit::NONE };
    if connection.treatment == Treatment::Native {
        // What a SYN carries is bound to no window, and its peer has not said that it knows ECN.
        return if syn.payload > 0 { police::uncapable(policy, syn, stripped) } else { stripped };
    }
    if connection.treatment != Treatment::Opening || !policy.translates() {
        return police::uncapable(policy, syn, stripped);
    }
    if connection.tries > TRIES_WITH_ECN {
        // An answer to an earlier try may still come; it agrees to what that asked.
        let asks = police::asks(policy, syn.codes);
        return police::uncapable(policy, syn, Edit { codes: (asks != syn.codes).then_some(asks), ..stripped });
    }
    let asked = if policy.mode == Mode::EchoPublished { codes::ASK_CLASSIC } else { codes::ASK_ACCURATE };
    connection.asked = Asked::new(asked, ecn::NOT);
    // A server that knows only RFC 3168 refuses its flags on a SYN that is ECN-capable, unless AE
    // is set, which says that the sender knows what it does.
    let capable = asked == codes::ASK_ACCURATE;
    Edit { codes: Some(asked), ecn: capable.then_some(ecn::ECT0), ..stripped }
}

/// Whether a handshake with these options is to be one of Multipath TCP.
fn is_multipath(policy: &Policy, options: &Options) -> bool {
    options.is_multipath && !policy.strips_multipath
}

/// Whether it is made one of plain TCP. A connection that began as another goes on as it began.
fn strips(connection: &Connection, policy: &Policy, options: &Options) -> bool {
    policy.strips_multipath && options.is_multipath && !options.is_signed && !connection.is_left()
}

/// The SYN of a peer: the entry that it makes.
#[must_use]
pub fn offered(policy: &Policy, syn: &Segment, options: &Options) -> Connection {
    let mut connection = Connection::new(options);
    connection.first[1] = syn.seq;
    connection.usual_wait = early(syn);
    connection.set(bit::SCALED, options.scale.is_some());
    connection.asked = Asked::new(syn.codes, syn.ecn);
    if options.is_signed {
        connection.treatment = Treatment::Untouched(Why::Signed);
    } else if is_multipath(policy, options) {
        connection.treatment = Treatment::Untouched(Why::Multipath);
    }
    // Where nothing is asked for nothing is lowered.
    let asks = matches!(syn.codes, codes::ASK_CLASSIC | codes::ASK_ACCURATE) && !connection.is_left();
    let scale = options.scale.unwrap_or(0);
    connection.scale = if asks { syn::fine(policy, scale, connection.mss) } else { Scale::of(scale) };
    connection
}

/// Whether a guest's SYN is the one that made a connection, sent again.
pub fn is_sent_again(connection: &Connection, syn: &Segment) -> bool {
    connection.is(bit::ACTIVE) && connection.first[0] == syn.seq
}

/// Whether a SYN-ACK for a guest answers the SYN that made a connection.
pub fn is_answered(connection: &Connection, answer: &Segment) -> bool {
    let expected = connection.first[0].wrapping_add(1);
    connection.is(bit::ACTIVE) && !before(answer.ack, expected) && !before(connection.nxt, answer.ack)
}

/// Whether a SYN-ACK without ECN may be for a SYN that did not ask for it any more.
pub fn is_third_answered(connection: &Connection, policy: &Policy) -> bool {
    policy.translates() && connection.tries > TRIES_WITH_ECN
}

/// Whether a peer's SYN is the one that made a connection, sent again.
pub fn repeats(connection: &Connection, syn: &Segment) -> bool {
    !connection.is(bit::ACTIVE) && connection.first[1] == syn.seq
}

/// Whether another SYN of the peer takes a connection's place.
pub fn gives_way(connection: &Connection) -> bool {
    connection.is(bit::FIN_IN | bit::FIN_OUT) || connection.treatment == Treatment::Opening
}

/// A SYN-ACK for a guest that answers none of its own. Where both sides open at once the guest may
/// take the scale from it.
pub fn cross(connection: &mut Connection, options: &Options) -> Edit {
    let is_crossed = connection.treatment == Treatment::Untouched(Why::Simultaneous);
    let scale = if is_crossed { syn::scale(connection, options) } else { None };
    Edit { scale, ..Edit::NONE }
}

/// Both sides open at once.
pub fn collide(connection: &mut Connection, policy: &Policy, syn: &Segment, options: &Options) -> Edit {
    connection.first[0] = syn.seq;
    (connection.una, connection.nxt) = (syn.seq, syn.end());
    // The guest has had the peer's SYN, or will, and this is what it says to it.
    settle_scale(connection, options.scale, None);
    connection.treatment = Treatment::Untouched(Why::Simultaneous);
    police::uncapable(policy, syn, Edit::NONE)
}

/// Payload of a SYN (TCP Fast Open, RFC 7413).
pub(super) fn early(syn: &Segment) -> u16 {
    syn.payload.min(u16::MAX.into()) as u16
}

/// What a guest is shown of the peer's SYN, which belongs to a connection, unless an old one lives:
/// a mark on it is none that the guest asked for. What the switch must not touch is shown as it
/// came.
#[must_use]
pub fn offer(policy: &Policy, connection: Option<&mut Connection>, syn: &Segment, options: &Options) -> Edit {
    let is_left = connection.as_ref().is_some_and(|connection| connection.is_left());
    let is_left = is_left || options.is_signed || is_multipath(policy, options);
    let scale = connection.and_then(|connection| syn::scale(connection, options));
    let hidden = policy.translates() && syn.ecn == ecn::CE && !is_left;
    let strips = policy.strips_multipath && options.is_multipath && !is_left;
    Edit { ecn: hidden.then_some(ecn::ECT0), strips, scale, ..Edit::NONE }
}

/// The SYN-ACK of a guest, which answers `connection`'s SYN.
pub fn answer(connection: &mut Connection, policy: &Policy, answer: &Segment, options: &Options) -> Edit {
    let edit = agree(connection, policy, answer, options);
    let edit = if answer.payload > 0 { police::uncapable(policy, answer, edit) } else { edit };
    Edit { strips: strips(connection, policy, options), ..edit }
}

fn agree(connection: &mut Connection, policy: &Policy, answer: &Segment, options: &Options) -> Edit {
    let is_again = connection.tries > 0 && connection.first[0] == answer.seq;
    connection.tries = if is_again { connection.tries.saturating_add(1) } else { 1 };
    connection.first[0] = answer.seq;
    (connection.una, connection.nxt) = (answer.seq, answer.end());
    connection.heed_answer(options);
    settle_scale(connection, options.scale, None);
    if options.is_signed {
        // Also its peer's segments are to stay as they are.
        connection.scale = connection.scale.kept();
        connection.treatment = Treatment::Untouched(Why::Signed);
    }
    if matches!(connection.treatment, Treatment::Untouched(_)) || !policy.translates() {
        if connection.treatment == Treatment::Opening {
            connection.treatment = if answer.codes == codes::NONE { Treatment::Plain } else { Treatment::Native };
        }
        return police::uncapable(policy, answer, Edit::NONE);
    }
    let seen = connection.asked.met();
    let accurate = codes::received(seen);
    let (asked, answers) = police::answers(policy, connection.asked.code(), answer.codes);
    let wire = match (answers, asked) {
        // The guest knows AccECN.
        (said, codes::ASK_ACCURATE) if codes::said_of(said).is_some() => {
            return native(connection, policy, Wire::Accurate);
        }
        // It knows RFC 3168 only, and the peer both.
        (codes::CLASSIC | codes::CLASSIC_NONCE, codes::ASK_ACCURATE) if policy.translates_classic => Wire::Accurate,
        (codes::CLASSIC | codes::CLASSIC_NONCE, _) => return native(connection, policy, Wire::Classic),
        (codes::NONE, codes::ASK_ACCURATE) => Wire::Accurate,
        (codes::NONE, codes::ASK_CLASSIC) => Wire::Classic,
        (codes::NONE, codes::NONE) => Wire::Plain,
        _ => {
            connection.treatment = Treatment::Untouched(Why::Codes);
            return Edit::NONE;
        }
    };
    if wire == Wire::Plain || connection.tries > TRIES_WITH_ECN {
        // The client may have had an earlier one, and then it speaks AccECN (RFC 9768, section
        // 3.1.5): its first acknowledgement tells.
        if wire != Wire::Accurate || !connection.is_translated() {
            connection.treatment = Treatment::Plain;
            connection.asked = connection.asked.answered(false);
            connection.set(bit::DEAF, false);
        }
        let codes = (answers != answer.codes).then_some(answers);
        return police::uncapable(policy, answer, Edit { codes, ..Edit::NONE });
    }
    begin(connection, policy, wire);
    connection.asked = connection.asked.answered(answer.codes != codes::NONE);
    let said = if wire == Wire::Accurate { accurate } else { codes::CLASSIC };
    // What the peer's SYN met is told by its code, and counted (RFC 9768, section 3.2.2.3).
    count_handshake(connection, seen);
    connection.set(bit::FIRST_IN, wire == Wire::Accurate);
    if wire == Wire::Classic {
        connection.usual_wait = 0;
        choose_echo(connection, policy, Kind::of_syn(asked, seen));
    }
    let is_capable = policy.mode != Mode::EchoPublished && wire == Wire::Accurate;
    let capable = if is_capable { ecn::ECT0 } else { ecn::NOT };
    let mut told = None;
    if wire == Wire::Accurate {
        // A box on the way may have dropped the first one for its option (RFC 9768, section
        // 3.2.3.2.2).
        connection.option |= if is_again { option::flag::OFF } else { 0 };
        told = option::with(connection, answer);
    }
    Edit { codes: Some(said), ecn: (capable != answer.ecn).then_some(capable), option: told, ..Edit::NONE }
}

/// The SYN-ACK for a guest, which answers the guest's SYN.
pub fn answered(connection: &mut Connection, policy: &Policy, answer: &Segment, options: &Options) -> Edit {
    let edit = heed(connection, policy, answer, options);
    Edit { strips: strips(connection, policy, options), scale: syn::scale(connection, options), ..edit }
}

fn heed(connection: &mut Connection, policy: &Policy, answer: &Segment, options: &Options) -> Edit {
    if matches!(connection.treatment, Treatment::Native | Treatment::Untouched(_)) {
        if connection.treatment == Treatment::Native && connection.una == connection.first[0] {
            connection.heed_answer(options);
            let may_be_lowered = policy.polices && !options.is_signed;
            settle_scale(connection, options.scale, Some((policy, may_be_lowered)));
            connection.una = answer.ack;
            native(connection, policy, agreed(connection.asked.code(), answer.codes));
            connection.set(bit::FIRST_IN, false);
            if codes::said_of(answer.codes) == Some(ecn::CE) {
                connection.ace_seen = (FIRST_COUNT + 1) & 7;
            }
        }
        connection.first[1] = answer.seq;
        let window = first_window(connection, policy, answer.window).filter(|_| !options.is_signed);
        return Edit { window, ..Edit::NONE };
    }
    if !policy.translates() {
        if connection.treatment == Treatment::Opening {
            connection.heed_answer(options);
            connection.una = answer.ack;
        }
        connection.treatment = Treatment::Plain;
        return Edit::NONE;
    }
    let hidden = Edit {
        codes: (answer.codes != codes::NONE).then_some(codes::NONE),
        ecn: (answer.ecn != ecn::NOT).then_some(ecn::NOT),
        hides: answer.option,
        ..Edit::NONE
    };
    if connection.treatment != Treatment::Opening {
        // Once more, since the guest's acknowledgement was lost; the first one counts.
        return Edit { window: first_window(connection, policy, answer.window), ..hidden };
    }
    connection.first[1] = answer.seq;
    connection.heed_answer(options);
    connection.una = answer.ack;
    connection.edge = answer.ack.wrapping_add(u32::from(answer.window));
    let wire = agreed(connection.asked.code(), answer.codes);
    let may_be_lowered = wire != Wire::Plain && !options.is_signed;
    settle_scale(connection, options.scale, Some((policy, may_be_lowered)));
    if wire == Wire::Plain {
        connection.treatment = Treatment::Plain;
        return hidden;
    }
    begin(connection, policy, wire);
    if wire == Wire::Classic {
        choose_echo(connection, policy, Kind::of_answer(answer.codes, answer.ecn));
    }
    // RFC 9768, section 3.2.3.2.4.
    connection.option |= if answer.option.is_some_and(|told| told.is_zeroed) { option::flag::IGNORED } else { 0 };
    connection.asked = Asked::new(connection.asked.code(), answer.ecn);
    connection.set(bit::FIRST_OUT, wire == Wire::Accurate);
    count_handshake(connection, answer.ecn);
    let sent_capable = wire == Wire::Accurate && connection.tries <= TRIES_WITH_ECN;
    match codes::said_of(answer.codes) {
        // The codepoint that was sent did not arrive: the network clears it.
        Some(ecn::NOT) if sent_capable => connection.set(bit::BLEACHED, true),
        // The guest's SYN met a queue. What the SYN-ACK met is its sender's matter.
        Some(ecn::CE) => {
            connection.ace_seen = (FIRST_COUNT + 1) & 7;
            connection.set(bit::PENDING, true);
        }
        _ => {}
    }
    Edit { window: first_window(connection, policy, answer.window), ..hidden }
}

/// What a SYN and its answer agree to.
fn agreed(asked: u8, said: u8) -> Wire {
    match (asked, said) {
        (codes::ASK_ACCURATE, said) if codes::said_of(said).is_some() => Wire::Accurate,
        (codes::ASK_ACCURATE | codes::ASK_CLASSIC, codes::CLASSIC) => Wire::Classic,
        (codes::ASK_ACCURATE, codes::CLASSIC_NONCE) => Wire::Classic,
        _ => Wire::Plain,
    }
}

/// The guest speaks for itself. Where it is policed, it is watched: see [`super::watch`]. Where its
/// siblings have not heeded marks, it is not trusted to.
fn native(connection: &mut Connection, policy: &Policy, wire: Wire) -> Edit {
    // A guest may have answered before as if it did not know ECN.
    let is_held = watch::is_deaf(connection) || connection.is(bit::ENGAGED);
    if policy.polices && wire != Wire::Plain && is_held && !connection.is(bit::DEAF) {
        connection.set(bit::DEAF, true);
        connection.zero_codes = 0;
        hold_from_start(connection);
        connection.reduced_to = connection.una;
    }
    connection.treatment = Treatment::Native;
    connection.wire = wire;
    connection.ace_seen = FIRST_COUNT;
    connection.set(bit::FIRST_IN, wire == Wire::Accurate);
    connection.round_end = connection.nxt;
    Edit::NONE
}

fn hold_from_start(connection: &mut Connection) {
    let mss = u32::from(connection.mss);
    connection.set(bit::ENGAGED, true);
    connection.window = (INITIAL_SEGMENTS * mss).min(connection.ssthresh).max(window::LEAST_SEGMENTS * mss);
    if connection.ssthresh < u32::MAX {
        connection.prior = control::prior_of(connection.ssthresh);
    }
    let from = later(connection.first[0].wrapping_add(1), connection.una);
    connection.edge = later(connection.nxt, from.wrapping_add(connection.window / mss * mss));
}

/// From here on the switch speaks. A guest that is held to its window has one from the start: where
/// its siblings are slowed, [`super::siblings`], what they have.
fn begin(connection: &mut Connection, policy: &Policy, wire: Wire) {
    if policy.polices {
        hold_from_start(connection);
    }
    connection.set(bit::DEAF, false);
    connection.zero_codes = 0;
    connection.wire = wire;
    connection.treatment = Treatment::Translated;
    (connection.ace_told, connection.ce_untold) = (FIRST_COUNT, 0);
    connection.ace_seen = FIRST_COUNT;
    connection.round_end = connection.nxt;
    connection.reduced_to = connection.una;
}

/// The window field of a SYN-ACK for a guest that is held to less than the segments that it would
/// send at once; a native that is held may send more. It has no scale.
fn first_window(connection: &Connection, policy: &Policy, field: u16) -> Option<u16> {
    let (window, mss) = (connection.window, u32::from(connection.mss));
    let is_short = window < INITIAL_SEGMENTS * mss || connection.is(bit::DEAF);
    let is_less = policy.polices && connection.is_governed() && is_short;
    let told = window / mss * mss;
    (is_less && told < field.into()).then_some(told as u16)
}

/// Classic wire: a peer that reacts as DCTCP is told of marks as RFC 8257 has it, where DCTCP is
/// what the network's natives do. RFC 3168's echo, which stays until CWR comes, would tell it that
/// all of a round was marked.
fn choose_echo(connection: &mut Connection, policy: &Policy, peer: Option<Kind>) {
    connection.set(bit::ECHOES_LAST, policy.mode == Mode::Dctcp && peer == Some(Kind::Dctcp));
}

/// A marked packet of the handshake counts as one, and is told by the handshake's own code.
fn count_handshake(connection: &mut Connection, seen: u8) {
    if connection.wire == Wire::Accurate && seen == ecn::CE {
        connection.ace_told = FIRST_COUNT + 1;
    }
}

/// Scales count only if both sides sent one (RFC 7323, section 2.2). That of the peer is used: by
/// this policy, and if the window may be lowered.
fn settle_scale(connection: &mut Connection, scale: Option<u8>, of_peer: Option<(&Policy, bool)>) {
    match (scale, of_peer) {
        (Some(_), None) if connection.is(bit::SCALED) => {}
        (Some(scale), Some((policy, may_be_lowered))) if connection.is(bit::SCALED) => {
            let mss = connection.mss;
            connection.scale = if may_be_lowered { syn::fine(policy, scale, mss) } else { Scale::of(scale) };
        }
        _ => {
            connection.scale = Scale::default();
            connection.set(bit::SCALED, false);
        }
    }
}
