//! Options of SYNs and SYN-ACKs that are changed: Multipath TCP.

use super::super::segment::options;
use super::super::syn::strip;
use super::*;
use crate::offload::Offload;
use crate::wire::transport::TCP_LEN;

/// MP_CAPABLE with a key, as a guest's SYN-ACK has it, behind a segment size.
const CAPABLE: &[u8] = &[2, 4, 5, 0xb4, 30, 12, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8];
/// MP_JOIN, at an odd offset.
const JOIN: &[u8] = &[2, 4, 5, 0xb4, 1, 30, 12, 0x10, 2, 9, 9, 9, 9, 8, 8, 8, 8, 1, 1, 1];

fn stripping(modes: [Mode; 2]) -> Rig {
    let mut rig = Rig::new(modes);
    for (side, mode) in modes.into_iter().enumerate() {
        let owner = Owner { tenant: TenantId(0), endpoint: ENDPOINT };
        rig.sides[side].set(owner, Settings { strips_multipath: true, ..mode.into() });
    }
    rig
}

impl Rig {
    /// The options of what a guest sends, and of what it is shown, once the switch has seen it; and
    /// whether a trace says that something was taken out.
    fn options(&mut self, side: usize, says: &Says, is_sent: bool) -> (Vec<u8>, bool) {
        let frame = self.frame(if is_sent { side } else { 1 - side }, says);
        let (bytes, meta) = (self.pool.bytes(&frame), self.pool.meta(&frame));
        let shown = (bytes, &meta.layout, &meta.offload);
        let vcc = &mut self.sides[side];
        let told = if is_sent {
            vcc.explain_send(self.now, ENDPOINT, shown)
        } else {
            vcc.explain_receive(self.now, ENDPOINT, shown)
        };
        if is_sent {
            vcc.send(&mut self.pool, self.now, ENDPOINT, &frame).unwrap();
        } else {
            vcc.receive(&mut self.pool, self.now, ENDPOINT, &frame);
        }
        let (bytes, meta) = (self.pool.bytes(&frame), self.pool.meta(&frame));
        let options = options_in(bytes, &meta.layout)[..says.options.len()].to_vec();
        self.read(frame);
        let told = told.expect("a trace has it");
        assert_eq!(told.edit.strips, told.to_string().contains("Multipath TCP taken out"), "{told}");
        (options, told.edit.strips)
    }
}

fn without(options: &[u8], range: core::ops::Range<usize>) -> Vec<u8> {
    let mut options = options.to_vec();
    options[range].fill(1);
    options
}

#[test]
fn multipath_tcp_is_taken_out_of_handshakes_in_both_directions_and_the_connection_is_translated() {
    for (said, range) in [(CAPABLE, 4..16), (JOIN, 5..17)] {
        // Each side in turn is the one whose switch strips.
        for side in [CLIENT, SERVER] {
            let mut rig = stripping([Mode::Dctcp; 2]);
            let syn = Says { seq: 100, flags: SYN, window: 9, options: said, ..Says::default() };
            // Also where it comes again.
            for _ in 0..4 {
                assert_eq!(rig.options(side, &syn, side == CLIENT), (without(said, range.clone()), true));
            }
            assert_eq!(rig.connection(side).treatment, Treatment::Opening);
            // A peer that answers so all the same is not heard.
            let codes = if side == CLIENT { codes::received(ecn::ECT0) } else { 0 };
            let flags = SYN | ACK;
            let answer = Says { seq: 200, ack: 101, flags, codes, options: said, window: 9, ..Says::default() };
            let asks = Says { codes: codes::ASK_ACCURATE, ..syn };
            if side == SERVER {
                rig.options(side, &asks, false);
            }
            for _ in 0..2 {
                assert_eq!(rig.options(side, &answer, side == SERVER), (without(said, range.clone()), true));
            }
            assert_eq!(rig.connection(side).treatment, Treatment::Translated);
            assert_eq!(rig.sides[side].counters(ENDPOINT).unwrap().untouched, [0; Why::ALL.len()]);
            // It is of the handshake alone.
            let data = Says { seq: 101, ack: 201, flags: ACK, window: 9, options: said, ..Says::default() };
            assert_eq!(rig.options(CLIENT, &data, true).0, said);
        }
    }
}

#[test]
fn where_nothing_is_changed_multipath_tcp_stays() {
    let syn = Says { seq: 100, flags: SYN, window: 9, options: CAPABLE, ..Says::default() };
    let answer = Says { seq: 200, ack: 101, flags: SYN | ACK, ..syn };
    let mut rig = stripping([Mode::Count; 2]);
    assert_eq!(rig.options(CLIENT, &syn, true), (CAPABLE.to_vec(), false));
    assert_eq!(rig.options(SERVER, &syn, false), (CAPABLE.to_vec(), false));
    assert_eq!(rig.options(SERVER, &answer, true), (CAPABLE.to_vec(), false));
    for side in [CLIENT, SERVER] {
        assert_eq!(rig.connection(side).treatment, Treatment::Untouched(Why::Multipath));
    }
    // Who signs its header, and Multipath TCP with it.
    const SIGNED: &[u8] = &[30, 4, 0, 1, 19, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
    let mut rig = stripping([Mode::Echo; 2]);
    let signed = Says { options: SIGNED, ..syn };
    assert_eq!(rig.options(CLIENT, &signed, true), (SIGNED.to_vec(), false));
    assert_eq!(rig.options(SERVER, &signed, false), (SIGNED.to_vec(), false));
    assert_eq!(rig.connection(CLIENT).treatment, Treatment::Untouched(Why::Signed));
}

#[test]
fn a_handshake_that_began_as_one_of_multipath_tcp_goes_on_as_one() {
    let mut rig = Rig::new([Mode::Echo; 2]);
    let syn = Says { seq: 100, flags: SYN, window: 9, options: CAPABLE, ..Says::default() };
    rig.options(CLIENT, &syn, true);
    rig.options(SERVER, &syn, false);
    for side in [CLIENT, SERVER] {
        let owner = Owner { tenant: TenantId(0), endpoint: ENDPOINT };
        rig.sides[side].set(owner, Settings { strips_multipath: true, ..Mode::Echo.into() });
    }
    let answer = Says { seq: 200, ack: 101, flags: SYN | ACK, ..syn };
    for (side, says, is_sent) in [(CLIENT, &syn, true), (SERVER, &syn, false)] {
        assert_eq!(rig.options(side, says, is_sent), (CAPABLE.to_vec(), false), "once more");
    }
    for (side, is_sent) in [(SERVER, true), (CLIENT, false)] {
        assert_eq!(rig.options(side, &answer, is_sent), (CAPABLE.to_vec(), false));
    }
}

#[test]
fn natives_lose_multipath_tcp_and_nothing_else() {
    for asks in [codes::ASK_CLASSIC, codes::ASK_ACCURATE] {
        let mut rig = stripping([Mode::Echo; 2]);
        let syn = Says { seq: 100, flags: SYN, codes: asks, window: 9, options: CAPABLE, ..Says::default() };
        assert_eq!(rig.options(CLIENT, &syn, true), (without(CAPABLE, 4..16), true));
        assert_eq!(rig.send(CLIENT, &syn).codes, asks);
        assert_eq!(rig.options(SERVER, &syn, false), (without(CAPABLE, 4..16), true));
        let said = if asks == codes::ASK_CLASSIC { codes::CLASSIC } else { codes::received(ecn::NOT) };
        let answer = Says { seq: 200, ack: 101, flags: SYN | ACK, codes: said, ..syn };
        assert_eq!(rig.options(SERVER, &answer, true), (without(CAPABLE, 4..16), true));
        assert_eq!(rig.options(CLIENT, &answer, false), (without(CAPABLE, 4..16), true));
        assert_eq!([CLIENT, SERVER].map(|side| rig.connection(side).treatment), [Treatment::Native; 2]);
    }
}

/// What is left of options, with a whole checksum that is right before and after, and a partial one
/// that stays.
fn stripped(said: &[u8]) -> Vec<u8> {
    let mut tcp = [7; TCP_LEN];
    let seal = |tcp: &mut [u8; TCP_LEN], options: &[u8]| {
        put16(tcp, 16, 0);
        let sum = checksum::add(checksum::sum(tcp), checksum::sum(options));
        put16(tcp, 16, !sum);
    };
    let mut left = said.to_vec();
    seal(&mut tcp, &left);
    let partial = tcp;
    strip(&mut tcp, &mut left, &Offload::default());
    assert_eq!(checksum::add(checksum::sum(&tcp), checksum::sum(&left)), 0xffff, "{said:?}");
    let (mut again, mut other) = (said.to_vec(), partial);
    strip(&mut other, &mut again, &Offload { needs_csum: true, ..Offload::default() });
    assert_eq!((other, &again), (partial, &left));
    left
}

#[test]
fn hostile_layouts_are_stripped_as_far_as_a_receiver_reads_them() {
    let same = |options: &[u8]| assert_eq!(stripped(options), options);
    // Lengths of none, of less than an option has, beyond the header.
    same(&[30, 0, 1, 1]);
    same(&[30, 1, 1, 1]);
    same(&[1, 1, 1, 30]);
    same(&[30, 5, 0, 0]);
    same(&[1, 30, 255, 0]);
    // Behind the end, or what a receiver stops at, nothing is read.
    same(&[0, 30, 4, 0, 0, 0, 0, 0]);
    same(&[8, 1, 30, 4, 0, 0, 0, 0]);
    // In another one.
    same(&[8, 10, 30, 4, 0, 0, 30, 4, 0, 0, 1, 1]);
    assert_eq!(stripped(&[30, 2, 1, 1]), [1; 4], "the shortest");
    assert_eq!(stripped(&[30, 4, 0, 0]), [1; 4], "the longest for its header");
    assert_eq!(stripped(&[30, 3, 9, 30, 3, 9, 30, 2]), [1; 8], "several, at odd offsets");
    assert_eq!(stripped(&[2, 4, 5, 6, 1, 30, 3, 9, 30, 0, 30, 2]), [2, 4, 5, 6, 1, 1, 1, 1, 30, 0, 30, 2]);
    assert_eq!(stripped(&[30, 2].repeat(20)), [1; 40], "as many as a header holds");
}

proptest! {
    #[test]
    fn whatever_options_a_syn_has_none_of_multipath_tcp_is_left_and_nothing_else_is_lost(
        words in prop::collection::vec(prop_oneof![
            any::<[u8; 4]>(), Just([30, 4, 0, 1]), Just([1, 30, 3, 9]), Just([1, 1, 1, 30]), Just([2, 4, 5, 0xb4]),
        ], 0..=10),
    ) {
        let said = words.concat();
        let left = stripped(&said);
        let (before, after) = (options(&said), options(&left));
        prop_assert_eq!(after, segment::Options { is_multipath: false, ..before });
        let changed = said.iter().zip(&left).filter(|(before, after)| before != after);
        prop_assert!(changed.into_iter().all(|(_, &after)| after == 1));
    }
}
