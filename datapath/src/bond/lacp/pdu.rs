//! LACPDUs and marker PDUs (IEEE 802.1AX-2020, clauses 6.4.2 and 6.5.3): written and read.
//!
//! Any station on the wire may send what is received. As the standard requires, the version and
//! reserved fields are ignored, and other fields are where version 1 has them.

use crate::wire::{Mac, be16};

/// Destination of LACPDUs: the slow protocols' group, which bridges do not forward.
pub const SLOW_GROUP: Mac = Mac([0x01, 0x80, 0xc2, 0x00, 0x00, 0x02]);
/// EtherType of the slow protocols.
pub const SLOW_ETHERTYPE: u16 = 0x8809;
/// Bytes of a PDU behind the EtherType, subtype included.
pub const PDU_BYTES: usize = 110;
/// Bytes of the Ethernet header before it.
pub const HEADER_BYTES: usize = 14;
/// Bytes of a frame with a PDU.
pub const FRAME_BYTES: usize = HEADER_BYTES + PDU_BYTES;

const LACP: u8 = 1;
const MARKER: u8 = 2;
const VERSION: u8 = 1;
const ACTOR: (u8, u8) = (1, 20);
const PARTNER: (u8, u8) = (2, 20);
const COLLECTOR: (u8, u8) = (3, 16);
const MARKER_INFORMATION: (u8, u8) = (1, 16);
const MARKER_RESPONSE: (u8, u8) = (2, 16);
/// Offset of the information of actor and partner, behind their TLVs' headers.
const ACTOR_AT: usize = 4;
const PARTNER_AT: usize = 24;

/// The state bits of an actor or partner.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct State(pub u8);

impl State {
    /// It sends LACPDUs even if the partner does not.
    pub const ACTIVITY: State = State(1);
    /// It requests a LACPDU each second, and times out after three seconds.
    pub const SHORT_TIMEOUT: State = State(1 << 1);
    /// It may be one of several links.
    pub const AGGREGATION: State = State(1 << 2);
    /// It is in the right aggregator.
    pub const SYNCHRONIZATION: State = State(1 << 3);
    /// Frames are received from it.
    pub const COLLECTING: State = State(1 << 4);
    /// Frames are sent to it.
    pub const DISTRIBUTING: State = State(1 << 5);
    /// It has not received from the partner: its information on the partner is a default.
    pub const DEFAULTED: State = State(1 << 6);
    /// It has not received from the partner for too long.
    pub const EXPIRED: State = State(1 << 7);

    /// Each bit with its name.
    pub const NAMES: [(State, &'static str); 8] = [
        (State::ACTIVITY, "activity"),
        (State::SHORT_TIMEOUT, "short-timeout"),
        (State::AGGREGATION, "aggregation"),
        (State::SYNCHRONIZATION, "synchronization"),
        (State::COLLECTING, "collecting"),
        (State::DISTRIBUTING, "distributing"),
        (State::DEFAULTED, "defaulted"),
        (State::EXPIRED, "expired"),
    ];

    /// Whether all bits of `other` are set.
    #[must_use]
    pub fn has(self, other: State) -> bool {
        self.0 & other.0 == other.0
    }

    /// With the bits of `other` set or cleared.
    #[must_use]
    pub fn with(self, other: State, is_set: bool) -> State {
        if is_set { State(self.0 | other.0) } else { State(self.0 & !other.0) }
    }
}

/// What one end of a link sends of itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Information {
    /// Priority of the system; the least decides.
    pub system_priority: u16,
    /// Address of the system.
    pub system: Mac,
    /// Links of one system with the same key may be aggregated.
    pub key: u16,
    /// Priority of the port.
    pub port_priority: u16,
    /// Number of the port in its system, from 1.
    pub port: u16,
    /// Its state.
    pub state: State,
}

/// A PDU of LACP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lacpdu {
    /// Its sender.
    pub actor: Information,
    /// What the sender has received of the other end.
    pub partner: Information,
}

/// A marker; its answer repeats the fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marker {
    /// Port, system and transaction, as they were received.
    pub fields: [u8; 12],
}

/// A PDU of the slow protocols that concerns aggregation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pdu {
    /// LACP.
    Lacp(Lacpdu),
    /// A marker that is to be answered.
    Marker(Marker),
    /// The answer to a marker. Levada sends no markers.
    MarkerResponse,
}

/// Whether a frame belongs to the slow protocols.
#[must_use]
pub fn is_slow(frame: &[u8]) -> bool {
    frame.len() > HEADER_BYTES && frame[..6] == SLOW_GROUP.0 && be16(frame, 12) == SLOW_ETHERTYPE
}

/// Reads what is behind the EtherType. `None` if it is cut off, if its TLVs are not those of
/// version 1, or for another slow protocol.
#[must_use]
pub fn read(payload: &[u8]) -> Option<Pdu> {
    let tlv = |at: usize| Some((*payload.get(at)?, *payload.get(at + 1)?));
    match *payload.first()? {
        LACP => {
            let is_whole = payload.len() >= PDU_BYTES && tlv(2)? == ACTOR && tlv(22)? == PARTNER;
            let pdu = || Lacpdu { actor: information(payload, ACTOR_AT), partner: information(payload, PARTNER_AT) };
            is_whole.then(|| Pdu::Lacp(pdu()))
        }
        MARKER if tlv(2)? == MARKER_INFORMATION => {
            let fields = payload.get(4..16)?.first_chunk().copied()?;
            Some(Pdu::Marker(Marker { fields }))
        }
        MARKER if tlv(2)? == MARKER_RESPONSE => Some(Pdu::MarkerResponse),
        _ => None,
    }
}

fn information(payload: &[u8], at: usize) -> Information {
    let word = |at: usize| be16(payload, at);
    let mut system = [0; 6];
    system.copy_from_slice(&payload[at + 2..at + 8]);
    Information {
        system_priority: word(at),
        system: Mac(system),
        key: word(at + 8),
        port_priority: word(at + 10),
        port: word(at + 12),
        state: State(payload[at + 14]),
    }
}

impl Lacpdu {
    /// The frame, from a member's own address.
    #[must_use]
    pub fn frame(&self, source: Mac) -> [u8; FRAME_BYTES] {
        let mut frame = header(source);
        let payload = &mut frame[HEADER_BYTES..];
        payload[..4].copy_from_slice(&[LACP, VERSION, ACTOR.0, ACTOR.1]);
        put(&mut payload[ACTOR_AT..], &self.actor);
        payload[22..24].copy_from_slice(&[PARTNER.0, PARTNER.1]);
        put(&mut payload[PARTNER_AT..], &self.partner);
        // Frames are received without delay: the collector's delay is 0. The terminator is zeros.
        payload[42..44].copy_from_slice(&[COLLECTOR.0, COLLECTOR.1]);
        frame
    }
}

impl Marker {
    /// The frame that answers it.
    #[must_use]
    pub fn response(&self, source: Mac) -> [u8; FRAME_BYTES] {
        let mut frame = header(source);
        let payload = &mut frame[HEADER_BYTES..];
        payload[..4].copy_from_slice(&[MARKER, VERSION, MARKER_RESPONSE.0, MARKER_RESPONSE.1]);
        payload[4..16].copy_from_slice(&self.fields);
        frame
    }
}

fn header(source: Mac) -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    frame[..6].copy_from_slice(&SLOW_GROUP.0);
    frame[6..12].copy_from_slice(&source.0);
    frame[12..14].copy_from_slice(&SLOW_ETHERTYPE.to_be_bytes());
    frame
}

fn put(at: &mut [u8], information: &Information) {
    let Information { system_priority, system, key, port_priority, port, state } = information;
    at[..2].copy_from_slice(&system_priority.to_be_bytes());
    at[2..8].copy_from_slice(&system.0);
    for (word, place) in [key, port_priority, port].into_iter().zip([8, 10, 12]) {
        at[place..place + 2].copy_from_slice(&word.to_be_bytes());
    }
    at[14] = state.0;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pdu() -> Lacpdu {
        let actor = Information {
            system_priority: 0x1234,
            system: Mac([2, 3, 4, 5, 6, 7]),
            key: 0x0b0c,
            port_priority: 0xff,
            port: 3,
            state: State(0x3d),
        };
        Lacpdu { actor, partner: Information { port: 9, state: State(0xc7), ..actor } }
    }

    /// The bytes are those of the standard's figure 6-7.
    #[test]
    fn a_pdu_is_where_the_standard_has_it() {
        let frame = pdu().frame(Mac([2, 0, 0, 0, 0, 1]));
        assert_eq!(frame.len(), 124, "with its check sequence the shortest frame that LACP has, 128 bytes");
        assert_eq!(frame[..14], [1, 0x80, 0xc2, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 9]);
        let payload = &frame[14..];
        assert_eq!(payload[..4], [1, 1, 1, 20]);
        assert_eq!(payload[4..22], [0x12, 0x34, 2, 3, 4, 5, 6, 7, 0x0b, 0x0c, 0, 0xff, 0, 3, 0x3d, 0, 0, 0]);
        assert_eq!(payload[22..24], [2, 20]);
        assert_eq!(payload[38], 0xc7);
        assert_eq!(payload[42..46], [3, 16, 0, 0]);
        assert!(payload[58..].iter().all(|&byte| byte == 0), "terminator and reserved bytes");
        assert_eq!(read(payload), Some(Pdu::Lacp(pdu())));
    }

    #[test]
    fn what_is_cut_off_or_something_else_is_no_pdu() {
        let payload = pdu().frame(Mac([2; 6]))[14..].to_vec();
        for len in 0..PDU_BYTES {
            assert_eq!(read(&payload[..len]), None, "{len} bytes");
        }
        for (at, value) in [(0, 3), (2, 9), (3, 21), (22, 1), (23, 0)] {
            let mut wrong = payload.clone();
            wrong[at] = value;
            assert_eq!(read(&wrong), None, "byte {at}");
        }
        let mut newer = payload;
        newer[1] = 0xf1;
        assert_eq!(read(&newer), Some(Pdu::Lacp(pdu())), "a newer version is read as version 1");
    }

    #[test]
    fn a_marker_is_answered_with_its_own_words() {
        let mut payload = vec![2, 1, 1, 16];
        payload.extend(1..=12);
        payload.resize(PDU_BYTES, 0);
        let Some(Pdu::Marker(marker)) = read(&payload) else { panic!("a marker") };
        let answer = marker.response(Mac([2; 6]))[14..].to_vec();
        assert_eq!(answer[..4], [2, 1, 2, 16]);
        assert_eq!(answer[4..16], payload[4..16]);
        assert_eq!(read(&answer), Some(Pdu::MarkerResponse));
    }
}
