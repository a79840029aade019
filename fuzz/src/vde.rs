//! Any bytes on a VDE control socket, in pieces: no panic, an answer that does not depend on how
//! they came, and nothing odd let through.

use ports::vde::request::{LEAST_BYTES, MOST_BYTES, Request, answer};

/// `data` is what a client sends.
pub fn run(data: &[u8]) {
    let whole = Request::parse(data);
    for end in 0..data.len() {
        match Request::parse(&data[..end]) {
            // What can be no request's beginning is none's.
            Err(fault) => assert_eq!(whole.as_ref().err(), Some(&fault)),
            Ok(Some(request)) => assert!(end >= LEAST_BYTES && request.socket.is_absolute()),
            Ok(None) => assert!(end < LEAST_BYTES),
        }
    }
    let Ok(Some(request)) = whole else { return };
    assert!((LEAST_BYTES..=MOST_BYTES).contains(&data.len()));
    assert!(request.socket.is_absolute() && request.plug != Some(0));
    assert!(request.description.chars().all(|c| c.is_ascii_graphic() || c == ' '));
    // Its address is one that an answer could have.
    assert!(answer(&request.socket).is_some());
}
