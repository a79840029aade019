use super::*;
use datapath::frame::PoolLimits;

fn envelope(nic: Nic) -> Envelope {
    let at = |n: u8| Address { mac: Mac([2, 0, 0, 0, 0, n]), ip: Ipv4Addr::new(10, 0, 0, n) };
    Envelope { from: at(1), to: at(2), tenant: 7, port: 5001, nic }
}

fn pool() -> Pool {
    Pool::new(PoolLimits { small: 4, medium: 0, large: 4 })
}

#[test]
fn what_is_written_is_read() {
    let mut pool = pool();
    let mut sack = Blocks::default();
    sack.push((100, 200));
    sack.push((300, 400));
    let plain = Tcp { seq: 5, ack: 6, flags: flag::ACK, window: 77, timestamps: (8, 9), sack, ..Tcp::default() };
    let accurate = Tcp { ae: true, counted: Some((0xfe_dcba, 0x01_0203)), ..plain };
    for tcp in [plain, accurate] {
        for (nic, payload) in [(Nic::default(), 10_000), (Nic::PLAIN, 1448), (Nic { csum: false, ..Nic::PLAIN }, 1000)]
        {
            let frame = write_tcp(&mut pool, &envelope(nic), Ecn::Capable, &tcp, payload, 1000).unwrap();
            let packet = read(&pool, &frame).unwrap();
            let got = packet.tcp.unwrap();
            assert_eq!((got.seq, got.ack, got.flags, got.window, got.timestamps), (5, 6, flag::ACK, 77, (8, 9)));
            assert_eq!((got.sack, got.ae, got.counted), (sack, tcp.ae, tcp.counted));
            assert_eq!((packet.payload.len(), packet.ecn, packet.port), (payload, Ecn::Capable, 5001));
            assert_eq!(packet.segments() as usize, payload.div_ceil(1448));
            assert_eq!(packet.wrong_stamp(pool.bytes(&frame), 7, 5001, 1000), None);
            assert!(packet.wrong_stamp(pool.bytes(&frame), 8, 5001, 1000).is_some());
            assert!(packet.wrong_stamp(pool.bytes(&frame), 7, 5001, 1001).is_some());
            pool.free(frame);
        }
    }
}

#[test]
fn a_syn_carries_its_options() {
    let mut pool = pool();
    let syn = Tcp { flags: flag::SYN, syn: Some((1460, 9)), ..Tcp::default() };
    let frame = write_tcp(&mut pool, &envelope(Nic::default()), Ecn::Not, &syn, 0, 0).unwrap();
    assert_eq!(read(&pool, &frame).unwrap().tcp.unwrap().syn, Some((1460, 9)));
}

#[test]
fn damage_is_noticed() {
    let mut pool = pool();
    let nic = Nic { csum: false, ..Nic::PLAIN };
    for (at, error) in [(40, "transport checksum"), (20, "IPv4 checksum"), (12, "not plain IPv4")] {
        let frame = write_udp(&mut pool, &envelope(nic), 100, 100, 0).unwrap();
        assert!(read(&pool, &frame).is_ok());
        pool.bytes_mut(&frame)[at] ^= 0x10;
        assert_eq!(read(&pool, &frame).unwrap_err(), error);
        pool.free(frame);
    }
}

#[test]
fn wire_bytes_count_every_segment() {
    assert_eq!(wire_bytes(UDP_HEADERS, 18, 18), 84, "the shortest frame");
    assert_eq!(wire_bytes(UDP_HEADERS, 0, 18), 84, "padded");
    assert_eq!(wire_bytes(TCP_HEADERS, 1448, 1448), 1538);
    assert_eq!(wire_bytes(TCP_HEADERS, 3 * 1448, 1448), 3 * 1538);
    assert_eq!(wire_bytes(TCP_HEADERS, 1448 + 1, 1448), 1538 + 91);
}
