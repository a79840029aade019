use super::*;

#[test]
fn what_was_sent_is_not_kept() {
    // A switch that always leaves something waiting.
    let (mut out, mut next, mut told) = (Outgoing::default(), 0_u8, Vec::new());
    for _ in 0..10_000 {
        out.take(&mut (0..100).map(|n: u8| next.wrapping_add(n)).collect());
        next = next.wrapping_add(100);
        let count = out.waits() - 7;
        told.extend_from_slice(&out.bytes[out.sent..out.sent + count]);
        out.sent += count;
        assert!(out.bytes.len() <= 300, "{}", out.bytes.len());
    }
    assert!(told.iter().enumerate().all(|(at, &byte)| byte == at as u8), "all of it, in order");
}
