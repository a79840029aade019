//! The fuzz corpus of streams from switches, replayed by an ordinary test: what the fuzz target
//! promises holds for every file there, crashes that were found and cured included.
//!
//! `LEVADA_REGENERATE=1 cargo test -p openflow --test corpus` writes the seeds anew.

#[path = "../../fuzz/src/openflow.rs"]
mod fuzzed;

use datapath::wire::build::{eth, neighbour_solicitation};
use datapath::wire::{Mac, tcp_flags};
use openflow::wire::{
    Action, Field, FlowStats, Instruction, Kind, Match, Message, Multipart, Nat, PacketIn, Request, Role, VERSION,
};
use std::net::Ipv6Addr;
use std::path::Path;

/// What the cookies of the fuzzed controller begin with.
fn owner() -> u64 {
    let config = control::load_openflow("[openflow]\nname = \"fuzz\"\n").config.unwrap();
    openflow::rules::Rules::of(&config).owner
}

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
    let (mac, ip) = (Mac([2, 0, 0, 0, 0, 9]), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9));
    let service = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x100);
    let packet = |data: Vec<u8>| Message::PacketIn(PacketIn { cookie: owner(), table: 0, about: about.clone(), data });
    let syn = eth(mac, mac).ipv6(ip, service).tcp(1000, 80, 1).flags(tcp_flags::SYN).bytes();
    let mut cut = neighbour_solicitation(mac, ip, service).bytes();
    // An option without length.
    let option = cut.len() - 7;
    cut[option] = 0;
    let flow6 = FlowStats {
        matches: Match::of([Field::source(ip.into()), Field::new(Kind::UDP_SRC, 9_u16)]),
        instructions: vec![Instruction::Apply(vec![Action::Ct {
            commits: true,
            zone: 1,
            table: None,
            nat: Some(Nat::To(service.into(), 80)),
        }])],
        ..flow.clone()
    };
    vec![
        ("ipv6", [0, 6, 255], vec![packet(syn.clone()), packet(syn[..60].to_vec())]),
        ("neighbour", [0, 6, 255], vec![packet(cut.clone()), packet(cut[..70].to_vec())]),
        ("flows6", [1, 5, 50], vec![Message::MultipartReply(Multipart::Flows(vec![flow6]), true)]),
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
