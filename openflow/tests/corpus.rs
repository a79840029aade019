//! The fuzz corpus of streams from switches, replayed by an ordinary test: what the fuzz target
//! promises holds for every file there, crashes that were found and cured included.
//!
//! `LEVADA_REGENERATE=1 cargo test -p openflow --test corpus` writes the seeds anew.

#[path = "../../fuzz/src/openflow.rs"]
mod fuzzed;

use openflow::wire::{
    Field, FlowStats, Instruction, Kind, Match, Message, Multipart, PacketIn, Request, Role, VERSION,
};
use std::path::Path;

/// Mode, what is done of the handshake, and the size of pieces; then messages.
fn seeds() -> Vec<(&'static str, [u8; 3], Vec<Message>)> {
    let cookie = 0x4c56 << 48;
    let about = Match::of([Field::new(Kind::IN_PORT, 1_u32)]);
    let flow = FlowStats {
        table: 0,
        priority: 1,
        cookie,
        packets: 1,
        bytes: 60,
        matches: Match::of([Field::new(Kind::IPV4_SRC, 0x0a00_0001_u32), Field::new(Kind::TCP_SRC, 80_u16)]),
        instructions: vec![Instruction::Goto(1)],
    };
    vec![
        ("hello", [0, 0, 7], vec![Message::Hello(1 << VERSION), Message::EchoRequest(vec![1, 2, 3])]),
        ("flows", [1, 4, 50], vec![Message::MultipartReply(Multipart::Flows(vec![flow]), true)]),
        ("packet", [0, 6, 255], vec![Message::PacketIn(PacketIn { cookie, table: 0, about, data: vec![0; 60] })]),
        ("errors", [1, 6, 255], vec![Message::Error(5, 1, vec![0; 12]), Message::RoleReply(Role::Slave, 9)]),
        ("requests", [0, 2, 3], vec![Message::MultipartRequest(Request::Groups), Message::BarrierReply]),
    ]
}

#[test]
fn no_stream_of_the_corpus_does_harm() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/openflow");
    for (name, head, messages) in seeds() {
        let mut bytes = head.to_vec();
        messages.iter().for_each(|message| message.write(1, &mut bytes));
        let file = corpus.join(name);
        if std::env::var_os("LEVADA_REGENERATE").is_some() {
            std::fs::write(&file, &bytes).unwrap();
        }
        assert!(std::fs::read(&file).is_ok_and(|old| old == bytes), "{name} is out of date");
    }
    for entry in std::fs::read_dir(corpus).unwrap() {
        fuzzed::run(&std::fs::read(entry.unwrap().path()).unwrap());
    }
}
