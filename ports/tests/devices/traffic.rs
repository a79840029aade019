//! Real TCP and UDP stacks in two namespaces, joined by two TAPs and a plain forwarding loop.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;

use crate::testbed::{Bed, LEFT, PATIENCE, RIGHT, Space, options, turn};
use datapath::frame::{Pool, PoolLimits};
use ports::tap::Tap;
use ports::{Port, Refused};

pub const BULK_BYTES: usize = 64 << 20;

pub fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse::<IpAddr>().unwrap(), port)
}

pub fn udp(space: &Space, address: &str) -> UdpSocket {
    let socket = space.0.run(|| UdpSocket::bind(at(address, 0))).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// The byte that belongs at a position of the stream: of a period that no segment size divides.
fn pattern(position: usize) -> u8 {
    (position % 251) as u8
}

/// Sends `bytes` over one connection and compares what arrives.
pub fn bulk(from: &Space, to: &Space, address: &str, bytes: usize) {
    let listener = to.0.run(|| TcpListener::bind(at(address, 0))).unwrap().unwrap();
    let destination = listener.local_addr().unwrap();
    let connect = || TcpStream::connect_timeout(&destination, PATIENCE);
    let mut sender = from.0.run(connect).unwrap().unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let sending = std::thread::spawn(move || {
        let chunk: Vec<u8> = (0..251 * 1024).map(pattern).collect();
        let mut left = bytes;
        while left > 0 {
            let now = left.min(chunk.len());
            sender.write_all(&chunk[..now]).unwrap();
            left -= now;
        }
    });
    let mut buffer = vec![0; 1 << 20];
    let mut received = 0;
    loop {
        let read = receiver.read(&mut buffer).unwrap();
        if read == 0 {
            break;
        }
        let wrong = (0..read).find(|i| buffer[*i] != pattern(received + i));
        assert_eq!(wrong, None, "a byte differs behind {received}");
        received += read;
    }
    sending.join().unwrap();
    assert_eq!(received, bytes);
}

#[test]
fn tcp_udp_and_ping_pass_with_all_offloads_in_both_ip_versions() {
    let Some(_turn) = turn("tcp_udp_and_ping_pass_with_all_offloads_in_both_ip_versions") else { return };
    let bed = Bed::new(PoolLimits::default());
    for (left, right) in LEFT.iter().zip(RIGHT) {
        bed.left.command(&format!("ping -c 3 -i 0.05 -W 10 {right}")).unwrap();
        let (one, other) = (udp(&bed.left, left), udp(&bed.right, right));
        one.send_to(b"question", other.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 64];
        let (len, asker) = other.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..len], asker), (&b"question"[..], one.local_addr().unwrap()));
        bulk(&bed.left, &bed.right, right, BULK_BYTES);
        bulk(&bed.right, &bed.left, left, BULK_BYTES);
    }
    let mut report = bed.forwarder.finish();
    assert!(report.ended.is_none() && report.refused.is_empty(), "{:?} {:?}", report.ended, report.refused);
    assert_eq!(report.frames_left_in_pool, 0);
    // Segments of 1448 bytes would have been 185 000 frames and as many acknowledgements at most.
    assert!(report.tcp_segmented > 1000, "{} segmented", report.tcp_segmented);
    assert!(report.longest > 60_000, "the longest frame had {} bytes", report.longest);
    for tap in &mut report.ports {
        assert!(tap.features().reports_drops);
        tap.drops_before_us().unwrap();
    }
}

#[test]
fn udp_segments_cross_as_one_frame_and_arrive_one_by_one() {
    let Some(_turn) = turn("udp_segments_cross_as_one_frame_and_arrive_one_by_one") else { return };
    const SEGMENT: usize = 1200;
    const SEGMENTS: usize = 40;
    let bed = Bed::new(PoolLimits::default());
    for (left, right) in LEFT.iter().zip(RIGHT) {
        let (one, other) = (udp(&bed.left, left), udp(&bed.right, right));
        let size: libc::c_int = SEGMENT as libc::c_int;
        // SAFETY: the option is one int, whose address and size are given; the socket lives on.
        let set = unsafe {
            libc::setsockopt(
                one.as_raw_fd(),
                libc::SOL_UDP,
                libc::UDP_SEGMENT,
                (&raw const size).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        assert_eq!(set, 0);
        let sent: Vec<u8> = (0..SEGMENTS * SEGMENT).map(pattern).collect();
        one.send_to(&sent, other.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 2048];
        for expected in sent.chunks(SEGMENT) {
            let len = other.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], expected);
        }
    }
    let report = bed.forwarder.finish();
    if report.ports[0].features().offload.uso {
        assert_eq!(report.udp_segmented, 2);
    }
    assert_eq!(report.frames_left_in_pool, 0);
}

#[test]
fn short_frames_pass_when_all_large_buffers_are_taken() {
    let Some(_turn) = turn("short_frames_pass_when_all_large_buffers_are_taken") else { return };
    let bed = Bed::new(PoolLimits { small: 256, medium: 0, large: 0 });
    let (one, other) = (udp(&bed.left, LEFT[0]), udp(&bed.right, RIGHT[0]));
    bed.left.command(&format!("ping -c 1 -W 10 {}", RIGHT[0])).unwrap();
    bed.left.ip("link set dev left0 mtu 9000");
    one.send_to(&[7; 5000], other.local_addr().unwrap()).unwrap();
    one.send_to(b"short", other.local_addr().unwrap()).unwrap();
    let mut buffer = [0; 9000];
    let len = other.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"short");
    let mut report = bed.forwarder.finish();
    assert_eq!(report.ports[0].drops_before_us().unwrap(), 1, "the long frame was cut, and that is counted");
    assert_eq!(report.frames_left_in_pool, 0);
}

#[test]
fn what_the_ring_drops_is_reported() {
    let Some(_turn) = turn("what_the_ring_drops_is_reported") else { return };
    const RING: u64 = 16;
    const SENT: u64 = 100;
    let space = Space::new();
    let mut wanted = options("tap0", &space, &["10.9.0.1/24"]);
    wanted.txqueuelen = Some(RING as u32);
    wanted.without_ipv6 = true;
    let mut tap = Tap::open(&wanted).unwrap();
    space.ip("neigh add 10.9.0.2 lladdr 02:00:00:00:09:02 dev tap0");
    let socket = udp(&space, "10.9.0.1");
    for _ in 0..SENT {
        socket.send_to(b"datagram", at("10.9.0.2", 9)).unwrap();
    }
    let mut pool = Pool::new(PoolLimits::default());
    let mut frames = Vec::new();
    let read = tap.rx(&mut pool, SENT as usize, &mut frames).unwrap() as u64;
    frames.into_iter().for_each(|frame| pool.free(frame));
    assert_eq!(read, RING);
    assert_eq!(tap.second().unwrap().drops_before_us().unwrap(), SENT - RING, "also to who does not read");
    assert_eq!(tap.drops_before_us().unwrap(), SENT - RING);
}

#[test]
fn a_device_set_down_refuses_and_takes_frames_again_when_up() {
    let Some(_turn) = turn("a_device_set_down_refuses_and_takes_frames_again_when_up") else { return };
    let space = Space::new();
    let mut tap = Tap::open(&options("tap0", &space, &[])).unwrap();
    let mut pool = Pool::new(PoolLimits::default());
    let mut send = |tap: &mut Tap| {
        let frame = pool.alloc_from(&[0xff; 60]).unwrap();
        let result = tap.write(&mut pool, &frame);
        assert_eq!(pool.bytes(&frame), [0xff; 60], "as it was");
        pool.free(frame);
        assert_eq!(pool.in_use(), 0);
        result
    };
    assert_eq!(send(&mut tap), Ok(()));
    space.ip("link set dev tap0 down");
    assert_eq!(send(&mut tap), Err(Refused::Down));
    space.ip("link set dev tap0 up");
    assert_eq!(send(&mut tap), Ok(()));
}

#[test]
fn a_lying_offload_header_is_refused_by_the_kernel_and_harms_nothing() {
    let Some(_turn) = turn("a_lying_offload_header_is_refused_by_the_kernel_and_harms_nothing") else { return };
    let space = Space::new();
    let mut tap = Tap::open(&options("tap0", &space, &[])).unwrap();
    let mut pool = Pool::new(PoolLimits::default());
    let frame = pool.alloc_from(&[0xff; 60]).unwrap();
    let offload = &mut pool.meta_mut(&frame).offload;
    offload.needs_csum = true;
    offload.csum_start = 59;
    offload.csum_offset = 16;
    assert_eq!(tap.tx(&mut pool, frame), Err(Refused::Invalid));
    let frame = pool.alloc_from(&[0xff; 60]).unwrap();
    assert_eq!(tap.tx(&mut pool, frame), Ok(()));
}
