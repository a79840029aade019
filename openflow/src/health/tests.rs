use super::*;
use crate::rules::tests::config;
use std::net::Ipv4Addr;

/// Where a question goes, where it comes from, and its number.
fn seen(packet: &PacketOut) -> (Client, Client, u32, u8) {
    let layout = parse(&packet.data).unwrap();
    let [from, to] =
        datapath::wire::FlowKey::of(&packet.data, &layout).unwrap().ends().map(|(ip, port)| Client { ip, port });
    let tcp = Tcp::of(&packet.data, &layout).unwrap();
    (to, from, tcp.sequence(), tcp.flags())
}

fn answer(prober: &mut Prober, to: &PacketOut, flags: u8, ack: u32) -> Option<Option<PacketOut>> {
    let (at, asks, sequence, _) = seen(to);
    let build = eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 1, 0]));
    let build = build.ip(at.ip, asks.ip).tcp(at.port, asks.port, 77).flags(flags);
    prober.answer(at, asks, &build.ack(sequence.wrapping_add(ack), 100).bytes())
}

#[test]
fn who_does_not_answer_three_times_is_down_and_comes_back_after_two() {
    const GOOD: u8 = tcp_flags::SYN | tcp_flags::ACK;
    let mut prober = Prober::new(&Rules::of(&config("reactive", 2)), 9);
    let verdicts = |prober: &Prober| prober.verdicts().into_iter().collect::<Vec<_>>();
    for round in 0..4 {
        let asked = prober.ask();
        assert_eq!(asked.len(), 2);
        let (at, asks, sequence, flags) = seen(&asked[0]);
        assert_eq!(
            (at.ip.to_string(), at.port, asks.ip.to_string(), flags),
            ("10.0.0.1".into(), 8080, "10.0.0.100".into(), tcp_flags::SYN)
        );
        let reset = answer(&mut prober, &asked[0], GOOD, 1).unwrap().unwrap();
        assert_eq!(seen(&reset), (at, asks, sequence.wrapping_add(1), tcp_flags::RST));
        // A second answer, and one to another question, change nothing.
        assert_eq!(answer(&mut prober, &asked[0], GOOD, 1), Some(None));
        assert_eq!(answer(&mut prober, &asked[1], GOOD, 2), Some(None));
        let wanted = [((0, 0), true), ((0, 1), false)];
        assert_eq!(verdicts(&prober), wanted[..if round < 3 { 1 } else { 2 }], "{round}");
    }
    for is_up in [false, true] {
        let asked = prober.ask();
        answer(&mut prober, &asked[1], GOOD, 1).unwrap().unwrap();
        assert_eq!(verdicts(&prober)[1], ((0, 1), is_up));
    }
    // One that refuses is down too, and says so at once.
    for _ in 0..3 {
        assert!(prober.verdicts()[&(0, 1)]);
        let asked = prober.ask();
        assert_eq!(answer(&mut prober, &asked[1], tcp_flags::RST | tcp_flags::ACK, 1), Some(None));
    }
    assert!(!prober.verdicts()[&(0, 1)]);
    // Nobody else's frame is an answer.
    let other = Client { ip: Ipv4Addr::new(10, 0, 0, 9).into(), port: 8080 };
    assert_eq!(prober.answer(other, Client { ip: Ipv4Addr::new(10, 0, 0, 100).into(), port: 61_001 }, &[]), None);
}

#[test]
fn a_backend_is_up_where_all_its_ports_are_and_down_where_one_is() {
    const GOOD: u8 = tcp_flags::SYN | tcp_flags::ACK;
    let mut config = config("reactive", 1);
    let service = &mut config.services[0];
    service.backends[0].port = None;
    let (http, datagrams) = (service.addresses[0], protocol::UDP);
    for (port, protocol) in [(443, protocol::TCP), (53, datagrams)] {
        let mut address = http;
        (address.0.port, address.0.protocol) = (port, protocol);
        service.addresses.push(address);
    }
    let mut prober = Prober::new(&Rules::of(&config), 9);
    let verdict = |prober: &Prober| prober.verdicts().get(&(0, 0)).copied();
    // One port answers, and of the other nothing is known: it may have refused before.
    for round in 0..3 {
        let asked = prober.ask();
        assert_eq!(asked.iter().map(|packet| seen(packet).0.port).collect::<Vec<_>>(), [80, 443]);
        answer(&mut prober, &asked[0], GOOD, 1).unwrap().unwrap();
        assert_eq!(verdict(&prober), None, "{round}");
        answer(&mut prober, &asked[1], tcp_flags::RST | tcp_flags::ACK, 1).unwrap();
    }
    assert_eq!(verdict(&prober), Some(false), "though it answers at port 80");
    for wanted in [false, true] {
        let asked = prober.ask();
        asked.iter().for_each(|packet| drop(answer(&mut prober, packet, GOOD, 1)));
        assert_eq!(verdict(&prober), Some(wanted));
    }
}
