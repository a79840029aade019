//! TCP behind IPsec's authentication header.

use super::segment::set_ecn;
use super::*;
use core::net::Ipv6Addr;

/// AH of 24 bytes without the first, which says what follows: its length in words less two.
const BODY: [u8; 23] = {
    let mut body = [7; 23];
    body[0] = 4;
    body
};

/// A SYN with the options of Linux, ECN-capable, with AH or without.
fn syn(is_ipv6: bool, is_authenticated: bool) -> Vec<u8> {
    let frame = eth(Mac([2; 6]), Mac([4; 6]));
    let mut bytes = if is_ipv6 {
        let ip = |n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n);
        let frame = frame.ipv6(ip(1), ip(2)).tos(2);
        let frame = if is_authenticated { frame.extension(protocol::AUTHENTICATION, &BODY) } else { frame };
        frame.tcp(40_000, 80, 100).flags(SYN).tcp_options(5).bytes()
    } else {
        let frame = frame.ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)).tos(2);
        let whole = frame.clone().tcp(40_000, 80, 100).flags(SYN).tcp_options(5).bytes();
        let l4 = usize::from(parse(&whole).unwrap().l4_offset);
        let behind = [&[protocol::TCP][..], &BODY, &whole[l4..]].concat();
        if is_authenticated { frame.protocol(protocol::AUTHENTICATION).payload(behind).bytes() } else { whole }
    };
    let options = bytes.len() - LINUX.len();
    bytes[options..].copy_from_slice(LINUX);
    bytes
}

#[test]
fn what_ipsec_authenticates_is_left_alone_and_counted() {
    for (is_ipv6, polices, mode) in [
        (false, false, Mode::Dctcp),
        (true, false, Mode::Dctcp),
        (false, true, Mode::Echo),
        (true, true, Mode::Echo),
        (true, false, Mode::Count),
    ] {
        for is_authenticated in [true, false] {
            let what = (is_ipv6, polices, mode, is_authenticated);
            let mut rig = Rig::new([mode, Mode::Off]);
            let owner = Owner { tenant: TenantId(0), endpoint: ENDPOINT };
            rig.sides[CLIENT].set(owner, Settings { polices, ..mode.into() });
            let bytes = syn(is_ipv6, is_authenticated);
            let layout = parse(&bytes).unwrap();
            let mut expected = bytes.clone();
            if polices {
                // The field is none that the MAC covers (RFC 4302, section 3.3.3.1).
                let ip = usize::from(layout.l3_offset);
                set_ecn(expected[ip..].first_chunk_mut().unwrap(), layout.l3, ecn::NOT);
            }
            let frame = rig.pool.alloc_from(&bytes).unwrap();
            rig.pool.meta_mut(&frame).layout = layout;
            let offload = rig.pool.meta(&frame).offload;
            let told = rig.sides[CLIENT].explain_send(rig.now, ENDPOINT, (&bytes, &layout, &offload)).unwrap();
            assert_eq!(rig.sides[CLIENT].send(&mut rig.pool, rig.now, ENDPOINT, &frame), Ok(()));
            let counters = rig.sides[CLIENT].counters(ENDPOINT).unwrap();
            let counted = counters.untouched[Why::Signed as usize];
            if is_authenticated {
                assert_eq!(rig.pool.bytes(&frame), expected, "{what:?}");
                assert_eq!((counted, told.treatment), (1, Treatment::Untouched(Why::Signed)), "{what:?}");
                assert_eq!(told.edit.ecn.is_some(), polices, "{what:?}");
                assert!(rig.sides[CLIENT].connections().is_empty(), "{what:?}: nothing is kept of it");
            } else {
                let is_asked = rig.pool.bytes(&frame) != bytes;
                assert_eq!((counted, is_asked), (0, mode != Mode::Count), "{what:?}");
            }
            // Nor is anything changed of what comes.
            if is_authenticated {
                let before = rig.pool.bytes(&frame).to_vec();
                rig.sides[CLIENT].receive(&mut rig.pool, rig.now, ENDPOINT, &frame);
                assert_eq!(rig.pool.bytes(&frame), before, "{what:?}");
                assert!(rig.sides[CLIENT].connections().is_empty(), "{what:?}");
            }
            rig.pool.free(frame);
        }
    }
}
