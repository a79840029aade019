//! Any bytes as a stream from a switch, before and behind its handshake: no panic, nothing kept
//! without bound, and what can be read can be written and read again.

use control::config::openflow::OpenFlow;
use datapath::units::Instant;
use openflow::balance::Balancer;
use openflow::rules::Rules;
use openflow::session::Session;
use openflow::wire::{Features, Message, Multipart, Role, Stream, VERSION};
use std::sync::{Arc, OnceLock};

const TEXT: &str = r#"
[openflow]
name = "fuzz"
probe = "1 s"
mode = "MODE"
[[openflow.service]]
name = "web"
address = ["10.0.0.100:80", "udp://10.0.0.100:53", "[fd00::100]:80", "udp://[fd00::100]:53"]
policy = "maglev"
affinity = "AFFINITY"
on_failure = "reset"
panic = "0 %"
[[openflow.service.backend]]
name = "a"
ip = ["10.0.0.1", "fd00::1"]
mac = "02:00:00:00:00:01"
[[openflow.service.backend]]
name = "b"
ip = ["10.0.0.2", "fd00::2"]
mac = "02:00:00:00:00:02"
port = 8080
"#;
/// What a session answers to so many bytes at most: each 8-byte echo is answered by 8 bytes; a list
/// of flows by all rules, some 150 KiB; a damaged message of 8 bytes by an error of 76.
const OUT: usize = 1 << 20;
const OUT_A_BYTE: usize = 10;

fn configs() -> &'static [(OpenFlow, Arc<Rules>); 2] {
    static CONFIGS: OnceLock<[(OpenFlow, Arc<Rules>); 2]> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        [("reactive", "client"), ("hash", "connection")].map(|(mode, affinity)| {
            let text = TEXT.replace("MODE", mode).replace("AFFINITY", affinity);
            let config = control::load_openflow(&text).config.expect("it is good");
            let rules = Arc::new(Rules::of(&config));
            (config, rules)
        })
    })
}

/// `data` begins with the mode, how much of the handshake is done, and the size of the pieces in
/// which the rest comes.
pub fn run(data: &[u8]) {
    codec(data);
    let Some((&[mode, done, piece], rest)) = data.split_first_chunk() else { return };
    let (config, rules) = &configs()[usize::from(mode & 1)];
    let mut balancer = Balancer::new(config, rules, 1);
    let mut session = Session::new(config, Arc::clone(rules), Instant(1));
    let features = Features { datapath: 1, tables: 254, auxiliary: 0 };
    let handshake = [
        Message::Hello(1 << VERSION),
        Message::FeaturesReply(features),
        Message::RoleReply(Role::Equal, 1),
        Message::RoleReply(Role::Equal, 2),
        Message::MultipartReply(Multipart::Groups(Vec::new()), false),
        Message::MultipartReply(Multipart::Flows(Vec::new()), false),
    ];
    let mut bytes = Vec::new();
    for message in handshake.iter().take(usize::from(done % 7)) {
        message.write(1, &mut bytes);
    }
    session.receive(Instant(2), &bytes, &mut balancer).expect("the handshake is good");
    let (mut now, mut most) = (Instant(3), OUT);
    for piece in rest.chunks(usize::from(piece).max(1)) {
        now = now.plus_ns(1_000_000);
        most += OUT_A_BYTE * piece.len();
        let is_over = session.receive(now, piece, &mut balancer).is_err() || session.poll(now, &mut balancer).is_err();
        assert!(session.out().len() <= most, "{} bytes for {}", session.out().len(), data.len());
        if is_over {
            break;
        }
    }
    assert!(std::iter::from_fn(|| session.note_next()).count() <= 64);
    let (connections, room) = balancer.room();
    assert!(connections <= room);
}

/// Each message of a stream.
fn codec(data: &[u8]) {
    let mut stream = Stream::default();
    stream.add(data);
    while let Ok(Some(message)) = stream.next(true) {
        let Ok((xid, message)) = Message::read(message) else { continue };
        let mut bytes = Vec::new();
        message.write(xid, &mut bytes);
        assert!(bytes.len() <= 65_535, "{}", bytes.len());
        if !bytes.is_empty() {
            Message::read(&bytes).expect("what was written can be read");
        }
    }
}
