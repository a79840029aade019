use super::*;
use crate::wire::parse;

/// Frames of all kinds with their hashes by each policy, from a reference in another language
/// (`lab/bond_hash.py`).
const VECTORS: &str = include_str!("vectors.txt");

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex")).collect()
}

#[test]
fn hashes_are_those_of_the_reference() {
    let mut compared = 0;
    for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
        let mut fields = line.split(' ');
        let frame = bytes(fields.next().expect("a frame"));
        let layout = parse(&frame).unwrap_or_else(|reason| panic!("{reason:?}: {line}"));
        for (name, policy) in HashPolicy::ALL {
            let wanted: u32 = fields.next().and_then(|text| text.parse().ok()).expect("a hash");
            assert_eq!(policy.hash(&frame, &layout), wanted, "{name} of {line}");
            compared += 1;
        }
    }
    assert!(compared > 1000, "only {compared} hashes");
}

/// The example of the kernel's document for the even-ports pattern: the lowest bit is dropped by
/// layer3+4 only.
#[test]
fn both_directions_of_a_connection_have_one_hash() {
    use crate::wire::Mac;
    use crate::wire::build::eth;
    use core::net::Ipv4Addr;
    let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let (from, to) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let there = eth(a, b).ipv4(from, to).tcp(40_000, 40_000, 1).bytes();
    let back = eth(b, a).ipv4(to, from).tcp(40_000, 40_000, 1).bytes();
    for (name, policy) in HashPolicy::ALL.into_iter().take(5) {
        let hash = |frame: &[u8]| policy.hash(frame, &parse(frame).expect("sound"));
        assert_eq!(hash(&there), hash(&back), "{name}");
    }
}

mod random {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// With any bytes in a frame, no hash reads beyond its end.
        #[test]
        fn no_frame_panics(kind in prop_oneof![Just(0x0800u16), Just(0x86dd), Just(0x8100), any::<u16>()],
                           rest in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut frame = vec![2; 12];
            frame.extend(kind.to_be_bytes());
            frame.extend(rest);
            if let Ok(layout) = parse(&frame) {
                for (_, policy) in HashPolicy::ALL {
                    let _ = policy.hash(&frame, &layout);
                }
            }
        }
    }
}
