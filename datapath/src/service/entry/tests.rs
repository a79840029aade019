//! What each segment makes of a connection.

use super::*;

pub(in crate::service) fn syn() -> Entry {
    Entry::new(0, 0, true, false)
}

fn segment(flags: u8, sequence: u32, ack: u32, len: u32) -> Segment {
    Segment { flags, sequence, ack, len }
}

/// A connection whose client's numbers begin at 100, and the server's at 500.
pub(in crate::service) fn open() -> Entry {
    let mut entry = syn();
    entry.client_sends(&segment(flags::SYN, 99, 0, 0));
    assert_eq!((entry.state, entry.is_busy()), (State::Asked, true));
    entry.server_sends(&segment(flags::SYN | flags::ACK, 499, 100, 0));
    assert_eq!(entry.state, State::Answered);
    entry.client_sends(&segment(flags::ACK, 100, 500, 0));
    assert_eq!(entry.state, State::Open);
    entry
}

#[test]
fn a_connection_is_busy_from_its_request_to_the_acknowledged_end_of_the_answer() {
    let mut entry = open();
    entry.client_sends(&segment(flags::ACK, 100, 500, 50));
    assert!(entry.is_busy());
    entry.server_sends(&segment(flags::ACK, 500, 150, 0));
    entry.client_sends(&segment(flags::ACK, 150, 500, 0));
    assert!(entry.is_busy(), "no answer yet");
    entry.server_sends(&segment(flags::ACK, 500, 150, 64_000));
    entry.client_sends(&segment(flags::ACK, 150, 30_000, 0));
    assert!(entry.is_busy());
    entry.client_sends(&segment(flags::ACK, 150, 64_500, 0));
    assert!(!entry.is_busy());
    entry.client_sends(&segment(flags::ACK, 150, 64_500, 50));
    assert!(entry.is_busy(), "the next request");
}

#[test]
fn both_fins_close_it_and_payload_behind_the_others_fin_does_not_count_as_closing() {
    let mut entry = open();
    entry.client_sends(&segment(flags::ACK | flags::FIN, 100, 500, 10));
    assert_eq!(entry.state, State::Closing);
    entry.server_sends(&segment(flags::ACK, 500, 111, 1000));
    assert_eq!(entry.state, State::Open, "the server is still sending");
    entry.server_sends(&segment(flags::ACK | flags::FIN, 1500, 111, 0));
    assert_eq!(entry.state, State::Closing);
    entry.client_sends(&segment(flags::ACK, 111, 1501, 0));
    assert_eq!((entry.state, entry.is_busy()), (State::Closed, false));
}

#[test]
fn only_an_exact_reset_closes_it() {
    let mut entry = open();
    // Behind what was acknowledged: old, or invented.
    for sequence in [0, 99] {
        entry.client_sends(&segment(flags::RST, sequence, 0, 0));
    }
    for sequence in [0, 100, 499] {
        entry.server_sends(&segment(flags::RST | flags::ACK, sequence, 100, 0));
    }
    assert_eq!(entry.state, State::Open);
    entry.server_sends(&segment(flags::RST, 500, 0, 0));
    assert_eq!(entry.state, State::Closed);
    let mut entry = open();
    entry.client_sends(&segment(flags::RST, 100, 0, 0));
    assert_eq!(entry.state, State::Closed);
    // What the client has had of the server may not be acknowledged yet.
    let mut entry = open();
    entry.server_sends(&segment(flags::ACK, 500, 100, 1000));
    entry.server_sends(&segment(flags::RST, 1500, 0, 0));
    assert_eq!((entry.state, entry.is_busy()), (State::Closed, false));
}

#[test]
fn a_reset_that_may_be_invented_makes_doubt_until_the_other_side_answers() {
    type Sends = fn(&mut Entry, &Segment);
    let [client, server]: [Sends; 2] = [Entry::client_sends, Entry::server_sends];
    for (resets, sequence, answers, answer) in [
        (client, 150, server, segment(flags::ACK, 500, 100, 0)),
        (server, 1500, client, segment(flags::ACK, 100, 500, 0)),
    ] {
        let mut doubted = open();
        resets(&mut doubted, &segment(flags::RST, sequence, 0, 0));
        assert_eq!((doubted.state, doubted.is_busy()), (State::Closing, false));
        assert!(!doubted.is_replaced(), "a SYN goes where it may still be known");
        let mut entry = doubted;
        answers(&mut entry, &answer);
        assert_eq!(entry.state, State::Open, "it lives");
        // Its data acknowledged, and its reset said again for that.
        resets(&mut entry, &segment(flags::RST, answer.ack, 0, 0));
        assert_eq!(entry.state, State::Closed);
        // Or the same two open another.
        client(&mut doubted, &segment(flags::SYN, 7000, 0, 0));
        server(&mut doubted, &segment(flags::SYN | flags::ACK, 3_000_000_000, 7001, 0));
        client(&mut doubted, &segment(flags::ACK, 7001, 3_000_000_001, 9));
        assert_eq!((doubted.state, doubted.is_busy()), (State::Open, true));
        server(&mut doubted, &segment(flags::ACK, 3_000_000_001, 7010, 1));
        client(&mut doubted, &segment(flags::ACK, 7010, 3_000_000_002, 0));
        assert!(!doubted.is_busy());
    }
}

#[test]
fn a_syn_that_its_backend_answers_is_a_new_connection_with_numbers_of_its_own() {
    // Behind the old ones, and before them.
    for first in [400, 3_000_000_000] {
        let mut entry = open();
        entry.client_sends(&segment(flags::ACK | flags::FIN, 100, 500, 0));
        entry.server_sends(&segment(flags::ACK, 500, 101, 1000));
        // The server has lost it; the client begins again.
        entry.client_sends(&segment(flags::SYN, 8000, 0, 0));
        entry.server_sends(&segment(flags::SYN | flags::ACK, first, 8001, 0));
        entry.client_sends(&segment(flags::ACK, 8001, first + 1, 20));
        entry.server_sends(&segment(flags::ACK, first + 1, 8021, 30));
        assert!(entry.is_busy());
        entry.client_sends(&segment(flags::ACK, 8021, first + 31, 0));
        assert_eq!((entry.state, entry.is_busy()), (State::Open, false));
        entry.client_sends(&segment(flags::ACK | flags::FIN, 8021, first + 31, 0));
        assert_eq!(entry.state, State::Closing);
        entry.server_sends(&segment(flags::ACK | flags::FIN, first + 31, 8022, 0));
        entry.client_sends(&segment(flags::ACK, 8022, first + 32, 0));
        assert_eq!(entry.state, State::Closed);
    }
    // The answer once more, as its acknowledgement was lost.
    let mut entry = open();
    let before = entry;
    entry.server_sends(&segment(flags::SYN | flags::ACK, 499, 100, 0));
    assert_eq!(entry, before);
}

#[test]
fn what_was_lost_is_kept_on_trial_until_the_other_side_confirms_it() {
    let mut entry = Entry::sought(3, 1, false, 2);
    entry.client_sends(&segment(flags::ACK, 150, 500, 20));
    assert_eq!((entry.state, entry.asked(), entry.is_heard()), (State::Sought, 2, false));
    let mut refused = entry;
    refused.server_sends(&segment(flags::RST, 500, 0, 0));
    assert_eq!(refused.state, State::Closed);
    entry.server_sends(&segment(flags::ACK, 500, 170, 100));
    assert_eq!((entry.state, entry.is_busy()), (State::Open, true));
    entry.client_sends(&segment(flags::ACK, 170, 600, 0));
    assert!(!entry.is_busy(), "the end of what was sent is known");
    let mut entry = Entry::heard(3, 1, false, false);
    entry.server_sends(&segment(flags::ACK, 500, 170, 100));
    assert!(entry.is_heard());
    entry.client_sends(&segment(flags::ACK, 170, 600, 0));
    assert_eq!((entry.state, entry.is_busy(), entry.is_heard()), (State::Open, false, false));
    assert_eq!(Entry::heard(3, 1, false, true).state, State::Open);
}

#[test]
fn what_is_accepted_and_ended_at_once_is_told_from_all_other_ends() {
    const ENDS: [u8; 2] = [flags::RST | flags::ACK, flags::FIN | flags::ACK];
    let end = |flags| segment(flags, 500, 100, 0);
    let mut entry = open();
    assert!(ENDS.iter().all(|&flags| entry.is_broken_by(&end(flags))));
    // Its client's request is on its way, and does not matter.
    entry.client_sends(&segment(flags::ACK, 100, 500, 50));
    assert!(ENDS.iter().all(|&flags| entry.is_broken_by(&end(flags))));
    for other in [
        end(flags::RST),
        end(flags::ACK),
        end(flags::SYN | flags::FIN | flags::ACK),
        segment(flags::RST | flags::ACK, 501, 100, 0),
        segment(flags::RST | flags::ACK, 500, 150, 0),
        segment(flags::FIN | flags::ACK, 500, 100, 9),
    ] {
        assert!(!entry.is_broken_by(&other), "{other:?}");
    }
    type Happens = fn(&mut Entry);
    let happenings: [Happens; 4] = [
        |entry| entry.server_sends(&segment(flags::ACK, 500, 100, 0)),
        |entry| entry.client_sends(&segment(flags::FIN | flags::ACK, 100, 500, 0)),
        |entry| entry.client_sends(&segment(flags::RST, 100, 0, 0)),
        Entry::settle,
    ];
    for happens in happenings {
        let mut entry = open();
        happens(&mut entry);
        assert!(ENDS.iter().all(|&flags| !entry.is_broken_by(&end(flags))), "{entry:?}");
    }
    // How many were asked before is no longer there.
    let mut entry = syn().after_tries(2);
    entry.settle();
    assert_eq!((entry.asked(), entry.is_fresh()), (2, false));
    entry.client_sends(&segment(flags::SYN, 99, 0, 0));
    entry.server_sends(&segment(flags::SYN | flags::ACK, 499, 100, 0));
    assert!(entry.is_fresh() && entry.is_broken_by(&end(flags::RST | flags::ACK)), "its client need not have said so");
    entry.settle();
    assert_eq!((entry.asked(), entry.is_fresh()), (0, false));
    // With a request in its SYN it may have provoked the end.
    let mut entry = syn();
    entry.client_sends(&segment(flags::SYN, 99, 0, 50));
    entry.server_sends(&segment(flags::SYN | flags::ACK, 499, 150, 0));
    assert!(!entry.is_broken_by(&segment(flags::RST | flags::ACK, 500, 150, 0)));
}

#[test]
fn an_answer_is_had_when_its_client_has_acknowledged_its_end() {
    let after = |entry: &mut Entry, change: &dyn Fn(&mut Entry)| {
        let before = *entry;
        change(entry);
        before.is_answered_in(entry)
    };
    let entry = &mut open();
    assert!(!after(entry, &|entry| entry.client_sends(&segment(flags::ACK, 100, 500, 50))));
    assert!(!after(entry, &|entry| entry.server_sends(&segment(flags::ACK, 500, 150, 0))));
    assert!(!after(entry, &|entry| entry.server_sends(&segment(flags::ACK, 500, 150, 70))));
    assert!(!after(entry, &|entry| entry.client_sends(&segment(flags::ACK, 150, 540, 0))));
    let mut reset = *entry;
    assert!(after(&mut reset, &|entry| entry.server_sends(&segment(flags::RST | flags::ACK, 570, 150, 0))), "some");
    let mut next = *entry;
    assert!(after(&mut next, &|entry| entry.client_sends(&segment(flags::ACK, 150, 570, 50))), "by the next request");
    assert!(after(entry, &|entry| entry.client_sends(&segment(flags::ACK, 150, 570, 0))));
    assert!(!after(entry, &|entry| entry.client_sends(&segment(flags::ACK, 150, 570, 0))), "once");
    // Without one.
    let entry = &mut open();
    assert!(!after(entry, &|entry| entry.server_sends(&segment(flags::RST | flags::ACK, 500, 100, 0))));
}
