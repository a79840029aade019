use super::*;
use crate::wire::build::{Build, eth};
use crate::wire::{Mac, parse};
use core::net::{Ipv4Addr, Ipv6Addr};
use proptest::prelude::*;

const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];

fn frame(is_ipv6: bool, is_tagged: bool, payload: Vec<u8>) -> Build<'static> {
    let build = eth(MACS[0], MACS[1]);
    let build = if is_tagged { build.vlan(7) } else { build };
    let build = if is_ipv6 {
        let address = |n: u16| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n);
        build.ipv6(address(1), address(2))
    } else {
        build.ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2))
    };
    build.tcp(1000, 80, 77).payload(payload)
}

/// One's-complement sum of a packet from its TCP header on, with the pseudo-header.
fn tcp_sum(bytes: &[u8], layout: &crate::wire::Layout) -> u16 {
    let (l3, l4, end) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset), layout.end as usize);
    let addresses = if layout.l3 == L3::Ipv4 { l3 + 12..l3 + 20 } else { l3 + 8..l3 + 40 };
    checksum::add(checksum::pseudo(&bytes[addresses], 6, end - l4), checksum::sum(&bytes[l4..end]))
}

proptest! {
    #[test]
    fn an_edit_reads_back_and_checksums_stay_whole(
        is_ipv6: bool, is_tagged: bool, payload in prop::collection::vec(any::<u8>(), 0..64),
        ecn in prop::option::of(0u8..4), codes in prop::option::of(0u8..8), window: Option<u16>,
    ) {
        let mut bytes = frame(is_ipv6, is_tagged, payload).bytes();
        let layout = parse(&bytes).unwrap();
        let before = Segment::of(&bytes, &layout, &Offload::default()).unwrap();
        let edit = Edit { ecn, codes, window, ..Edit::NONE };
        edit.apply(&mut bytes, &layout, &mut Offload::default());
        let after = Segment::of(&bytes, &layout, &Offload::default()).unwrap();
        let expected = Segment {
            ecn: ecn.unwrap_or(before.ecn),
            codes: codes.unwrap_or(before.codes),
            window: window.unwrap_or(before.window),
            ..before
        };
        prop_assert_eq!(after, expected);
        prop_assert_eq!(tcp_sum(&bytes, &layout), 0xffff);
        if !is_ipv6 {
            let l3 = usize::from(layout.l3_offset);
            prop_assert_eq!(checksum::sum(&bytes[l3..l3 + 20]), 0xffff);
        }
        prop_assert_eq!(parse(&bytes).unwrap(), layout, "nothing else has changed");
    }

    #[test]
    fn options_of_any_bytes_are_read_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let found = options(&bytes);
        prop_assert!(found.scale.is_none_or(|scale| scale <= 14));
    }
}

#[test]
fn a_partial_checksum_stays_as_it_is_when_header_words_change() {
    let build = frame(false, false, vec![1; 3000]).gso(1000);
    let mut bytes = Vec::new();
    let mut offload = build.write(&mut bytes);
    let layout = parse(&bytes).unwrap();
    assert!(offload.needs_csum);
    let at = usize::from(layout.l4_offset) + transport::TCP_CHECKSUM;
    let before = be16(&bytes, at);
    Edit { ecn: Some(ecn::ECT0), codes: Some(0b101), window: Some(9), ..Edit::NONE }.apply(
        &mut bytes,
        &layout,
        &mut offload,
    );
    assert_eq!(be16(&bytes, at), before);
    assert_eq!(Segment::of(&bytes, &layout, &offload).unwrap().segments, 3);
}

#[test]
fn options_are_found_in_any_order_and_what_is_malformed_ends_the_walk() {
    let linux = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
    let found = options(&linux);
    assert_eq!((found.mss, found.scale), (Some(1460), Some(7)));
    assert!(found.has_stamps);
    assert!(!options(&[8, 2, 1, 1]).has_stamps, "without the two times");
    assert_eq!(options(&[3, 3, 200]).scale, Some(14), "a scale above 14 counts as 14");
    assert!(options(&[1, 1, 19, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_signed);
    assert!(options(&[29, 4, 0, 0]).is_signed);
    assert!(options(&[30, 4, 0, 1]).is_multipath);
    for malformed in [&[2, 0, 3, 3, 7][..], &[2, 1], &[2, 40, 1], &[2], &[0, 3, 3, 7]] {
        assert_eq!(options(malformed), Options::default(), "{malformed:?}");
    }
}

#[test]
fn a_guests_cwr_that_is_the_counters_bit_by_chance_is_shown_by_each_segment() {
    for (is_counter, shown) in [(true, GsoEcn::Ace), (false, GsoEcn::Cwr)] {
        let mut bytes = frame(false, false, vec![0; 64]).bytes();
        let layout = parse(&bytes).unwrap();
        let mut offload = Offload { gso: Gso::Tcp4, gso_ecn: GsoEcn::Cwr, gso_size: 32, ..Offload::default() };
        Edit { is_counter, ..Edit::NONE }.apply(&mut bytes, &layout, &mut offload);
        assert_eq!(offload.gso_ecn, shown);
    }
}
