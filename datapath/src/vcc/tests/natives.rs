//! Natives that are policed: who heeds marks is left alone, who does not is given a window.

use super::*;

const MSS: u32 = 1460;
/// What the peer's window is said to be: 65 152 bytes.
const FIELD: u16 = 509;

/// A native client, policed, and its peer.
struct Native {
    rig: Rig,
    accurate: bool,
    next: u32,
    marks: u32,
    /// Segments that said that the window was reduced.
    reduced: u32,
    /// It says so itself.
    says: bool,
    /// In each round it sends its first segment twice.
    repeats: bool,
    /// Its peer acknowledges a round at once, and not each two segments.
    is_acked_once: bool,
}

/// A handshake of the client, whose first number this is. The window field that it sees.
fn handshake(rig: &mut Rig, asks: u8, first: u32) -> u16 {
    let syn = Says { seq: first, flags: SYN, codes: asks, window: 9, options: LINUX, ..Says::default() };
    rig.pass(CLIENT, &syn, false);
    let codes = if asks == codes::ASK_CLASSIC { codes::CLASSIC } else { codes::received(ecn::NOT) };
    let answer = Says { seq: 200, ack: first + 1, codes, flags: SYN | ACK, window: 65_160, ..syn };
    rig.pass(SERVER, &answer, false).1.window
}

impl Native {
    fn new(asks: u8, mode: Mode) -> Native {
        let mut rig = Rig::new([mode, Mode::Off]);
        let owner = Owner { tenant: TenantId(0), endpoint: ENDPOINT };
        rig.sides[CLIENT].set(owner, Settings { polices: true, ..mode.into() });
        handshake(&mut rig, asks, 100);
        Native {
            rig,
            accurate: asks == codes::ASK_ACCURATE,
            next: 101,
            marks: 0,
            reduced: 0,
            says: false,
            repeats: false,
            is_acked_once: false,
        }
    }

    /// A round with so many segments in flight, the first of which are marked: how many passed, and
    /// the lowest window field that the client saw.
    fn round(&mut self, segments: u32, marked: u32) -> (u32, u16) {
        let codes = if self.accurate { 5 } else { 0 };
        let data = Says { ack: 201, flags: ACK, window: 502, payload: MSS as usize, ecn: 2, codes, ..Says::default() };
        let mut passed = 0;
        while passed < segments {
            let own = if !self.accurate && self.says && passed == 0 { codes::CWR } else { codes };
            let frame = self.rig.frame(CLIENT, &Says { seq: self.next + MSS * passed, codes: own, ..data });
            let sent = self.rig.sides[CLIENT].send(&mut self.rig.pool, self.rig.now, ENDPOINT, &frame);
            let done = self.rig.read(frame);
            if sent.is_err() {
                break;
            }
            assert_eq!(done.ecn, 2);
            self.reduced += u32::from(!self.accurate && done.codes & codes::CWR != 0);
            passed += 1;
        }
        if self.repeats {
            let frame = self.rig.frame(CLIENT, &Says { seq: self.next, ..data });
            // Whatever becomes of it, it was sent.
            let _ = self.rig.sides[CLIENT].send(&mut self.rig.pool, self.rig.now, ENDPOINT, &frame);
            self.rig.pool.free(frame);
        }
        self.rig.now = self.rig.now.plus_ns(10_000_000);
        let mut lowest = FIELD;
        let first = if self.is_acked_once { passed } else { 1 };
        for last in (first..passed + 2).step_by(2).map(|last| last.min(passed)).filter(|&last| last > 0) {
            let new = (last - (last - 1) % 2 - 1..last).filter(|&n| n < marked).count() as u32;
            self.marks += new;
            let echo = if marked > 0 { codes::ECE } else { 0 };
            let codes = if self.accurate { (5 + self.marks) as u8 & 7 } else { echo };
            let ack = self.next + MSS * last;
            let says = Says { seq: 201, ack, flags: ACK, codes, window: FIELD, ..Says::default() };
            let (_, seen) = self.rig.pass(SERVER, &says, false);
            assert_eq!((seen.codes, seen.ecn), (codes, 0), "its flags are its own");
            lowest = lowest.min(seen.window);
        }
        self.next += MSS * passed;
        (passed, lowest)
    }

    /// The connection ends, and another begins: the window field that the client sees.
    fn reopen(&mut self) -> u16 {
        let fin = Says { flags: ACK | tcp_flags::FIN, window: 9, ..Says::default() };
        self.rig.pass(CLIENT, &Says { seq: self.next, ack: 201, ..fin }, false);
        self.rig.pass(SERVER, &Says { seq: 201, ack: self.next + 1, ..fin }, false);
        let first = self.next + 1_000_000;
        (self.next, self.marks) = (first + 1, 0);
        let asks = if self.accurate { codes::ASK_ACCURATE } else { codes::ASK_CLASSIC };
        handshake(&mut self.rig, asks, first)
    }

    fn counters(&self) -> &Counters {
        self.rig.sides[CLIENT].counters(ENDPOINT).unwrap()
    }
}

#[test]
fn a_native_that_does_not_heed_marks_is_given_a_window() {
    for (asks, mode, says) in [
        (codes::ASK_CLASSIC, Mode::Echo, false),
        (codes::ASK_CLASSIC, Mode::Echo, true),
        (codes::ASK_ACCURATE, Mode::Echo, false),
        (codes::ASK_ACCURATE, Mode::Dctcp, false),
    ] {
        let mut native = Native { says, ..Native::new(asks, mode) };
        let first = (0..30).find(|_| native.round(40, 40).1 < FIELD);
        let rounds = if asks == codes::ASK_CLASSIC && !says { 3..6 } else { 9..12 };
        assert!(first.is_some_and(|round| rounds.contains(&round)), "{asks} {mode:?}: {first:?}");
        assert_eq!(native.counters().deaf, 1);
        for _ in 0..10 {
            native.round(40, 40);
        }
        let (passed, lowest) = native.round(40, 40);
        assert!(passed <= 4 && u32::from(lowest) << 7 <= 4 * MSS, "{asks} {mode:?}: {passed} {lowest}");
        assert!(native.counters().policed > 0);
        assert_eq!(native.reduced > 0, asks == codes::ASK_CLASSIC, "its peer hears that the window was reduced");
        // Without marks its window grows again.
        for _ in 0..40 {
            native.round(40, 0);
        }
        let (passed, _) = native.round(40, 0);
        assert!(passed > 6, "{asks} {mode:?}: {passed}");
    }
}

/// Each connection has fewer marked rounds than tell that it does not heed marks.
#[test]
fn a_native_that_ends_each_connection_before_it_is_judged_is_given_a_window_all_the_same() {
    for asks in [codes::ASK_CLASSIC, codes::ASK_ACCURATE] {
        let mut native = Native { says: true, ..Native::new(asks, Mode::Echo) };
        let play = |native: &mut Native| {
            let passed = native.round(40, 40).0;
            (0..2).for_each(|_| _ = native.round(40, 40));
            // The end of a connection is no reduction.
            native.round(1, 1);
            (passed, native.reopen())
        };
        let first = (0..20).find(|_| play(&mut native).1 < 65_160);
        assert!(first.is_some_and(|connections| (3..10).contains(&connections)), "{asks}: {first:?}");
        let (passed, told) = play(&mut native);
        assert!((1..=10).contains(&passed) && u32::from(told) <= 10 * MSS, "{asks}: {passed} {told}");
        assert!(native.counters().deaf >= 2, "{}", native.counters().deaf);
        // After a pause it is trusted again.
        native.rig.now = native.rig.now.plus_ns(2_100_000_000);
        assert_eq!((native.reopen(), native.round(40, 0).0), (65_160, 40), "{asks}");
    }
}

/// Small windows say nothing.
#[test]
fn one_that_heeds_marks_in_each_connection_is_trusted_in_the_next() {
    for asks in [codes::ASK_CLASSIC, codes::ASK_ACCURATE] {
        let mut native = Native::new(asks, Mode::Echo);
        for _ in 0..40 {
            // The window has doubled before the first mark is known.
            for (segments, says) in [(20, false), (40, true), (20, true), (14, true), (10, true), (11, true)] {
                native.says = says;
                assert_eq!(native.round(segments, segments), (segments, FIELD), "{asks}");
            }
            assert_eq!(native.reopen(), 65_160);
        }
        for _ in 0..40 {
            (0..4).for_each(|_| assert_eq!(native.round(7, 7), (7, FIELD)));
            assert_eq!(native.reopen(), 65_160);
        }
        assert_eq!(native.counters().deaf, 0);
    }
}

#[test]
fn without_police_a_native_may_do_as_it_likes() {
    let mut native = Native::new(codes::ASK_CLASSIC, Mode::Echo);
    let owner = Owner { tenant: TenantId(0), endpoint: ENDPOINT };
    native.rig.sides[CLIENT].set(owner, Mode::Echo.into());
    assert!((0..30).all(|_| native.round(40, 40) == (40, FIELD)));
    assert_eq!(native.counters().deaf, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Reno, CUBIC and RFC 8511's ABE, whose reduction is seen in the next round or the one behind
    /// it, and who may have as much window again as they use.
    #[test]
    fn a_native_that_reduces_at_marks_is_left_alone(
        accurate: bool,
        keeps in 50u32..=85,
        late: bool,
        spare in 100u32..200,
        marks in prop::collection::vec(0u32..=3, 80),
    ) {
        let mut native = Native::new(if accurate { codes::ASK_ACCURATE } else { codes::ASK_CLASSIC }, Mode::Echo);
        let (mut window, mut due) = (40 * spare / 100, false);
        for marked in marks.into_iter().map(|marked| marked / 2 * marked) {
            let segments = (window * 100 / spare).clamp(1, 40);
            prop_assert_eq!(native.round(segments, marked.min(segments)), (segments, FIELD));
            native.says = false;
            let reduces = if late { due } else { marked > 0 };
            due = marked > 0 && !due;
            native.says = reduces;
            window = if reduces { (window * keeps / 100).max(1) } else { (window + 1).min(40 * spare / 100) };
        }
        prop_assert_eq!(native.counters().deaf, 0);
        prop_assert_eq!(native.reopen(), 65_160);
    }

    /// DCTCP, with shares of marks that move slowly, as a queue's do.
    #[test]
    fn a_native_that_reduces_by_the_share_that_is_marked_is_left_alone(
        shares in prop::collection::vec(0u32..=100, 8),
    ) {
        let mut native = Native::new(codes::ASK_ACCURATE, Mode::Dctcp);
        let (mut window, mut alpha) = (40.0, 1.0);
        for share in shares.into_iter().flat_map(|share| [share; 10]) {
            let segments = (window as u32).clamp(1, 40);
            let marked = segments * share / 100;
            prop_assert_eq!(native.round(segments, marked), (segments, FIELD));
            alpha += (f64::from(marked) / f64::from(segments) - alpha) / 16.0;
            window = if marked > 0 { f64::max(window * (1.0 - alpha / 2.0), 2.0) } else { f64::min(window + 1.0, 40.0) };
        }
        prop_assert_eq!(native.counters().deaf, 0);
        prop_assert_eq!(native.reopen(), 65_160);
    }
}

#[test]
fn one_that_says_nothing_of_marks_is_deaf_whatever_it_has_in_flight() {
    let rounds = [40, 30, 20, 15, 20, 30, 40, 30, 20, 15, 20, 30, 40, 30];
    // Who sends again may have been busy with losses, for a while.
    for (repeats, most) in [(false, 3..5), (true, 6..13)] {
        let mut native = Native { repeats, ..Native::new(codes::ASK_CLASSIC, Mode::Echo) };
        let first = rounds.iter().position(|&segments| native.round(segments, segments).1 < FIELD);
        assert!(first.is_some_and(|round| most.contains(&round)), "{repeats}: {first:?}");
    }
}

#[test]
fn one_that_says_cwr_now_and_then_is_not_taken_for_one_that_never_does() {
    let mut native = Native::new(codes::ASK_CLASSIC, Mode::Echo);
    let mut segments = 40;
    for round in 0..60 {
        // Its peer goes on with the report for a round more; then there is none for one.
        native.says = round % 3 == 0;
        let marked = if round % 3 < 2 { 1 } else { 0 };
        assert_eq!(native.round(segments, marked), (segments, FIELD), "{round}");
        segments = if native.says { (segments * 7 / 10).max(1) } else { segments + 1 };
    }
    assert_eq!(native.counters().deaf, 0);
}

#[test]
fn who_is_deaf_begins_anew_with_ten_segments() {
    let mut native = Native::new(codes::ASK_CLASSIC, Mode::Echo);
    while native.counters().deaf == 0 {
        native.round(40, 40);
    }
    // What was allowed may still be sent; then no more than ten, and half at the next mark.
    native.round(40, 0);
    native.round(40, 0);
    let (passed, _) = native.round(40, 0);
    assert!((10..=12).contains(&passed), "{passed}");
    native.round(40, 1);
    native.round(40, 0);
    let (passed, _) = native.round(40, 0);
    assert!((5..=7).contains(&passed), "{passed}");
}

#[test]
fn who_is_deaf_with_nothing_in_flight_is_not_told_to_stop() {
    let mut native = Native { is_acked_once: true, ..Native::new(codes::ASK_CLASSIC, Mode::Echo) };
    while native.counters().deaf == 0 {
        native.round(40, 40);
    }
    // What the peer sends acknowledges nothing new.
    let data = Says { seq: 201, ack: native.next, flags: ACK, window: FIELD, payload: 100, ..Says::default() };
    let (_, seen) = native.rig.pass(SERVER, &data, false);
    assert!((9 * MSS..11 * MSS).contains(&(u32::from(seen.window) << 7)), "{}", seen.window);
    assert!(native.round(40, 0).0 >= 10);
}
