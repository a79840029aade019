//! Any segments of a few connections, in both directions, through virtual congestion control: no
//! panic, checksums that stay right, nothing changed but the ECN fields, the window and what hides
//! an option of AccECN or of Multipath TCP, and no window above the receiver's. Of a guest that is
//! policed nothing is ECN-capable but what the switch says, and natives whose peers have ECN.

use datapath::checksum;
use datapath::frame::{Pool, PoolLimits};
use datapath::offload::Offload;
use datapath::program::{EndpointId, TenantId};
use datapath::units::Instant;
use datapath::vcc::connection::{Treatment, Wire};
use datapath::vcc::connections::Key;
use datapath::vcc::segment::{Segment, ecn};
use datapath::vcc::{Mode, Owner, Settings, Stop, Vcc};
use datapath::wire::build::eth;
use datapath::wire::{FlowKey, L3, Layout, Mac, Tcp, parse};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

/// Bytes of a step before its options.
pub const STEP: usize = 14;
/// Segments of one case at most.
const MOST: usize = 512;
const ENDPOINT: EndpointId = EndpointId(0);
/// Kinds of TCP options that are a byte long.
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
/// TCP's flag.
const SYN: u8 = 2;

/// `data` begins with the mode, and is a step of [`STEP`] bytes and its options after the other:
/// what it is (direction, IP version, offload, connection), flags, codes and codepoint, sequence
/// and acknowledgement numbers from where the last one was, window, payload and time, length of the
/// options.
pub fn run(data: &[u8]) {
    let Some((&mode, mut rest)) = data.split_first() else { return };
    let mut pool = Pool::new(PoolLimits { small: 16, medium: 16, large: 1 });
    let mut vcc = Vcc::new(7);
    let [ignores_loss, strips_multipath, holds, polices] = [4, 5, 6, 7].map(|bit| mode >> bit & 1 == 1);
    let rescales = mode & 8 != 0;
    vcc.set_rescales(rescales);
    let mode = Mode::ALL[usize::from(mode & 7) % Mode::ALL.len()];
    let service = Settings { mode, polices, holds, strips_multipath, ignores_loss, passes_classic: polices && holds };
    vcc.set(Owner { tenant: TenantId(0), endpoint: ENDPOINT }, service);
    let is_held = polices && matches!(mode, Mode::Echo | Mode::Dctcp);
    let (mut now, mut numbers) = (Instant(1), [0u32; 2]);
    for _ in 0..MOST {
        let Some((step, tail)) = rest.split_first_chunk::<STEP>() else { break };
        let words = usize::from(step[13] % 11);
        let Some(options) = tail.get(..4 * words) else { break };
        rest = &tail[4 * words..];
        now = now.plus_ns(u64::from(step[12]) * 1_000_000);
        while let Some((_, frame)) = vcc.dequeue(&mut pool, now) {
            pool.free(frame);
        }
        one(&mut pool, (&mut vcc, rescales, is_held), now, &mut numbers, step, options);
        assert_eq!(pool.in_use(), vcc.frames(), "what is not delivered waits");
    }
    vcc.clear(&mut pool);
    assert_eq!(pool.in_use(), 0);
}

fn one(
    pool: &mut Pool,
    (vcc, rescales, is_held): (&mut Vcc, bool, bool),
    now: Instant,
    numbers: &mut [u32; 2],
    step: &[u8; STEP],
    options: &[u8],
) {
    let (is_out, is_ipv6, is_offloaded) = (step[0] & 1 == 0, step[0] & 2 != 0, step[0] & 4 != 0);
    let word = |at: usize| u16::from_be_bytes([step[at], step[at + 1]]);
    let me = usize::from(is_out);
    numbers[me] = numbers[me].wrapping_add(u32::from(word(3)).wrapping_sub(0x1000));
    let ack = numbers[1 - me].wrapping_add(u32::from(word(5)).wrapping_sub(0x1000));
    let ports = [40_000 + u16::from(step[0] >> 3 & 3), 80];
    let ports = if is_out { ports } else { [ports[1], ports[0]] };
    let build = eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let [from, to] = if is_out { [1u8, 2] } else { [2, 1] };
    let build = if is_ipv6 {
        let ip = |n: u8| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n));
        build.ipv6(ip(from), ip(to))
    } else {
        build.ipv4(Ipv4Addr::new(10, 0, 0, from), Ipv4Addr::new(10, 0, 0, to))
    };
    let build = build
        .tos(step[2] >> 3 & 3)
        .tcp(ports[0], ports[1], numbers[me])
        .flags(step[1])
        .ack(ack, word(7))
        .tcp_options((options.len() / 4) as u8)
        .payload(vec![0; usize::from(word(9) % 3000)]);
    let build = if is_offloaded { build.gso(1000) } else { build };
    let mut bytes = Vec::new();
    let offload = build.write(&mut bytes);
    let layout = parse(&bytes).expect("what is built is well-formed");
    let l4 = usize::from(layout.l4_offset);
    // Options and the third ECN flag, and the checksum that goes with them.
    bytes[l4 + 12] |= step[2] & 1;
    bytes[l4 + 20..][..options.len()].copy_from_slice(options);
    if !offload.needs_csum {
        bytes[l4 + 16..l4 + 18].fill(0);
        let sum = !sum(&bytes, &layout);
        bytes[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
    }
    let frame = pool.alloc_from(&bytes).expect("a buffer");
    let meta = pool.meta_mut(&frame);
    (meta.layout, meta.offload) = (layout, offload);
    if is_out {
        let sent = vcc.send(pool, now, ENDPOINT, &frame);
        if matches!(sent, Err(Stop::Drop(_))) || pool.len(&frame) != bytes.len() {
            // Beyond the window; what is left of a frame is judged by the tests of segmentation.
            return pool.free(frame);
        }
        check(&bytes, pool.bytes(&frame), &layout, &offload, (is_out, false));
        if is_held && step[1] & SYN == 0 && !speaks(vcc, &bytes, &layout) {
            let sent = Segment::of(pool.bytes(&frame), &layout, &offload).expect("TCP");
            assert_eq!(sent.ecn, ecn::NOT, "nobody would heed its marks");
        }
        return pool.free(frame);
    }
    let Some(frame) = vcc.receive_or_hold(pool, now, ENDPOINT, frame) else { return };
    check(&bytes, pool.bytes(&frame), &layout, &offload, (is_out, rescales));
    pool.free(frame);
}

/// Whether somebody speaks ECN on the connection of a frame: the switch, or a native.
fn speaks(vcc: &Vcc, frame: &[u8], layout: &Layout) -> bool {
    let (all, flow) = (vcc.connections(), FlowKey::of(frame, layout).expect("TCP"));
    let known = all.find(&Key { endpoint: ENDPOINT, flow }).and_then(|id| all.get(id));
    known.is_some_and(|one| one.is_translated() || one.treatment == Treatment::Native && one.wire != Wire::Plain)
}

fn check(before: &[u8], after: &[u8], layout: &Layout, offload: &Offload, (is_out, rescales): (bool, bool)) {
    let (l3, l4) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset));
    assert_eq!(parse(after).as_ref(), Ok(layout), "the headers lie where they lay");
    if !offload.needs_csum {
        assert_eq!(sum(after, layout), 0xffff, "the checksum is whole");
    }
    let window = |bytes: &[u8]| Tcp::of(bytes, layout).expect("TCP").window();
    // A unit of a scale of 14 is 128 of one of 7.
    let most = if rescales { u32::from(window(before)) << 7 } else { window(before).into() };
    assert!(u32::from(window(after)) <= most, "above the receiver's window");
    assert!(!is_out || window(after) == window(before), "a guest's own window");
    let mut same = after.to_vec();
    // The traffic class, IPv4's checksum; flags, window and checksum of TCP.
    let fields: &[usize] = if layout.l3 == L3::Ipv4 { &[l3 + 1, l3 + 10, l3 + 11] } else { &[l3 + 1] };
    let tcp = [12, 13, 14, 15, 16, 17].map(|at| l4 + at);
    fields.iter().chain(&tcp).for_each(|&at| same[at] = before[at]);
    // An option of AccECN is hidden by others that say nothing, as long; one of Multipath TCP where
    // a connection opens. There a guest may be told another scale.
    let is_handshake = before[l4 + 13] & SYN != 0;
    let options = l4 + 20..usize::from(layout.payload_offset);
    for range in each(&before[options.clone()]).map(|range| range.start + options.start..range.end + options.start) {
        let (was, is) = (&before[range.clone()], &after[range.clone()]);
        let is_hidden = is.iter().all(|&kind| kind == NO_OPERATION);
        let may_be = match was[0] {
            172 | 174 => is_hidden,
            30 => is_handshake && is_hidden,
            3 => is_handshake && rescales && is == [3, 3, 7],
            _ => false,
        };
        if may_be {
            same[range.clone()].copy_from_slice(was);
        }
    }
    assert_eq!(same, before, "nothing else has changed");
    assert_eq!(after[l4 + 12] & 0xfe, before[l4 + 12] & 0xfe);
    assert_eq!(after[l4 + 13] & 0x3f, before[l4 + 13] & 0x3f);
}

/// Where these options lie that have a length (RFC 9293, section 3.1).
fn each(options: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while options.get(at) == Some(&NO_OPERATION) {
            at += 1;
        }
        let range = match options.get(at..)? {
            &[kind, length, ..] if kind != END && length >= 2 => at..at + usize::from(length),
            _ => return None,
        };
        options.get(range.clone())?;
        at = range.end;
        Some(range)
    })
}

fn sum(bytes: &[u8], layout: &Layout) -> u16 {
    let (l3, l4, end) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset), layout.end as usize);
    let addresses = if layout.l3 == L3::Ipv4 { l3 + 12..l3 + 20 } else { l3 + 8..l3 + 40 };
    checksum::add(checksum::pseudo(&bytes[addresses], 6, end - l4), checksum::sum(&bytes[l4..end]))
}
