//! LACP between two ends of three cables, of which anything may come: LACPDUs and markers of any
//! content, links and settings that change, LACPDUs that are lost, records of another process. No
//! panic, nothing due that is not done, no more than three LACPDUs of a port in a second and one
//! answer for each marker, and nothing carried that an end has not agreed to.

use datapath::bond::lacp::pdu::{HEADER_BYTES, Information, Lacpdu, SLOW_ETHERTYPE, SLOW_GROUP, State};
use datapath::bond::lacp::{Lacp, LacpSettings, Mux, Receive, Record, Select};
use datapath::bond::{Duplex, MemberId, MemberState, Negotiated};
use datapath::units::{Instant, Rate};
use datapath::wire::Mac;

/// Bytes of a step before what it carries.
pub const STEP: usize = 6;
/// Steps of one case at most.
const MOST: usize = 512;
const MEMBERS: usize = 3;
const SECOND_NS: u64 = 1_000_000_000;
/// What a step's time counts in, in nanoseconds: a case goes on for hours.
const TICK_NS: u64 = 20_000_000;

/// One end, and what left by each of its members lately.
struct End {
    lacp: Lacp,
    sent: [Vec<Instant>; MEMBERS],
    answers_due: [u32; MEMBERS],
}

/// `data` is a step of [`STEP`] bytes after the other: what it is with end and member, what it says
/// in two bytes, the time since the last in two, and how many bytes follow that are it.
pub fn run(data: &[u8]) {
    let mut rest = data;
    let mut now = Instant(SECOND_NS);
    let mut ends = [0, 1].map(|side| end(now, &settings(side, 0)));
    for end in &mut ends {
        (0..MEMBERS as u8).for_each(|n| end.lacp.set_link(now, MemberId(n), true));
    }
    for _ in 0..MOST {
        let Some((step, tail)) = rest.split_first_chunk::<STEP>() else { break };
        let (bytes, tail) = tail.split_at(usize::from(step[5]).min(tail.len()));
        rest = tail;
        let until = now.plus_ns(u64::from(u16::from_be_bytes([step[3], step[4]])) * TICK_NS);
        one(&mut ends, now, step, bytes);
        exchange(&mut ends, now, step[0] & 1 != 0);
        // What is due until then; bounded, since each timer is a second at least.
        for _ in 0..256 {
            let due = ends.iter().filter_map(|end| end.lacp.poll_timeout()).min();
            let Some(due) = due.filter(|&due| due <= until) else { break };
            now = now.max(due);
            exchange(&mut ends, now, step[0] & 1 != 0);
        }
        now = now.max(until);
    }
}

fn settings(side: u8, options: u8) -> LacpSettings {
    LacpSettings {
        system: Mac([2, 0, 0, 0, 1, side]),
        user_key: u16::from(options >> 6),
        is_fast: options & 1 == 0,
        is_active: options & 2 == 0 || side == 0,
        min_links: options >> 2 & 3,
        select: Select::ALL[usize::from(options >> 4) % Select::ALL.len()].1,
        is_coupled: options & 64 == 0,
        is_strict: options & 128 != 0,
        ..LacpSettings::default()
    }
}

fn end(now: Instant, settings: &LacpSettings) -> End {
    let mut lacp = Lacp::default();
    lacp.set_members(now, settings, &[Rate(Rate::GBIT); MEMBERS], |_| None, |_| false);
    End { lacp, sent: Default::default(), answers_due: [0; MEMBERS] }
}

fn one(ends: &mut [End; 2], now: Instant, step: &[u8; STEP], bytes: &[u8]) {
    let side = step[0] >> 1 & 1;
    let at = usize::from(step[0] >> 2) % MEMBERS;
    let (end, member) = (&mut ends[usize::from(side)], MemberId(at as u8));
    let say = |payload: &[u8]| {
        let mut frame = [&SLOW_GROUP.0[..], &[2, 0, 0, 0, 0, 9]].concat();
        frame.extend(SLOW_ETHERTYPE.to_be_bytes());
        frame.extend(payload);
        frame
    };
    match step[1] % 8 {
        0 => {
            let _ = end.lacp.hear(now, member, bytes);
        }
        1 => {
            let before = end.lacp.views().nth(at).map_or(0, |view| view.counts.markers);
            let _ = end.lacp.hear(now, member, &say(bytes));
            let after = end.lacp.views().nth(at).map_or(0, |view| view.counts.markers);
            end.answers_due[at] += (after - before) as u32;
        }
        // Somebody else, or the right one with another state.
        2 => {
            let word = |n: usize| u16::from(bytes.get(n).copied().unwrap_or(step[2]));
            let actor = Information {
                system_priority: 65_535,
                system: Mac([2, 0, 0, 0, 1, word(0) as u8 % 4]),
                key: word(1),
                port_priority: 255,
                port: word(2),
                state: State(step[2]),
            };
            let partner = end.lacp.views().nth(at).map(|view| view.actor).unwrap_or_default();
            let _ = end.lacp.hear(now, member, &Lacpdu { actor, partner }.frame(Mac([2; 6])));
        }
        3 if step[2] & 128 == 0 => end.lacp.set_link(now, member, step[2] & 1 == 0),
        3 => {
            let duplex = [Duplex::Unknown, Duplex::Half, Duplex::Full][usize::from(step[2] >> 1) % 3];
            let mbit = [None, Some(100), Some(1000)][usize::from(step[2] >> 3) % 3];
            end.lacp.set_negotiated(member, Negotiated { mbit, duplex });
        }
        4 => {
            let rates = [0, 1, 2].map(|n| Rate(if step[2] >> n & 1 == 0 { Rate::GBIT } else { Rate::GBIT / 10 }));
            let turn = usize::from(step[2] >> 6);
            let was = |n: usize| (n != turn).then_some(MemberId(((n + turn) % MEMBERS) as u8));
            end.lacp.set_members(now, &settings(side, step[2]), &rates, was, |_| step[2] & 8 == 0);
            // Places are others, and what was said by them is not comparable.
            (end.sent, end.answers_due) = (Default::default(), [0; MEMBERS]);
        }
        5 => {
            let records = end.lacp.export();
            let mut next = self::end(now, &settings(side, 0));
            assert!(next.lacp.restore(now, &records), "what was exported is sound");
            (0..MEMBERS as u8).for_each(|n| next.lacp.set_link(now, MemberId(n), true));
            *end = next;
        }
        6 => {
            let record = Record { port: u16::from(step[2]), ..Record::default() };
            let records: Vec<_> = bytes.iter().map(|&id| (MemberId(id), record)).collect();
            end.lacp.restore(now, &records);
        }
        _ => end.lacp.set_leaving(step[2] & 1 == 0),
    }
}

/// Lets both ends move, and carries what they say, or loses it.
fn exchange(ends: &mut [End; 2], now: Instant, is_lost: bool) {
    for _ in 0..64 {
        let mut has_said = false;
        for side in 0..2 {
            let mut said = Vec::new();
            let end = &mut ends[side];
            end.lacp.advance(now);
            while let Some((member, frame)) = end.lacp.poll(now) {
                count(end, now, usize::from(member.0), &frame);
                said.push((member, frame));
            }
            look(end, now);
            has_said |= !said.is_empty();
            for (member, frame) in said.into_iter().filter(|_| !is_lost) {
                let _ = ends[1 - side].lacp.hear(now, member, &frame);
            }
        }
        if !has_said {
            return;
        }
    }
    unreachable!("both go on talking");
}

fn count(end: &mut End, now: Instant, at: usize, frame: &[u8]) {
    if frame[HEADER_BYTES] != 1 {
        assert!(end.answers_due[at] > 0, "an answer to no marker");
        end.answers_due[at] -= 1;
        return;
    }
    let sent = &mut end.sent[at];
    sent.retain(|&before| now.since(before) < SECOND_NS);
    sent.push(now);
    assert!(sent.len() <= 3, "{} LACPDUs in a second", sent.len());
}

fn look(end: &End, now: Instant) {
    assert!(end.lacp.poll_timeout().is_none_or(|due| due > now), "something is due that is not done");
    for (n, view) in (0..).zip(end.lacp.views()) {
        let in_sync = [view.actor, view.partner].iter().all(|end| end.state.has(State::SYNCHRONIZATION));
        let state = end.lacp.state(MemberId(n));
        if state.receives() {
            let says = |bit| view.actor.state.has(bit);
            assert!(says(State::COLLECTING), "{view:?}");
            assert_eq!(says(State::DISTRIBUTING), state == MemberState::Distributing, "{view:?}");
        }
        if state == MemberState::Distributing {
            assert!(in_sync && view.mux == Mux::Distributing, "{view:?}");
            assert!(!view.is_loop && view.receive != Receive::PortDisabled, "{view:?}");
        }
    }
}
