use super::*;
use datapath::frame::PoolLimits;
use std::fs;

/// A file that is gone when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, content: &[u8]) -> Scratch {
        let path = std::env::temp_dir().join(format!("levada-{}-{name}.pcap", std::process::id()));
        fs::write(&path, content).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn capture(magic: u32, link: u32, records: &[(u32, u32, &[u8])], bytes: fn(u32) -> [u8; 4]) -> Vec<u8> {
    let mut file: Vec<u8> = [magic, 0x0004_0002, 0, 0, SNAP_BYTES, link].into_iter().flat_map(bytes).collect();
    for (kept, original, frame) in records {
        file.extend([1, 2, *kept, *original].into_iter().flat_map(bytes));
        file.extend_from_slice(frame);
    }
    file
}

fn read_all(port: &mut PcapInput, pool: &mut Pool) -> (Vec<Vec<u8>>, Option<PortError>) {
    let mut frames = Vec::new();
    let result = loop {
        match port.rx(pool, 4, &mut frames) {
            Ok(1..) => {}
            end => break end,
        }
    };
    let bytes = frames.iter().map(|frame| pool.bytes(frame).to_vec()).collect();
    frames.into_iter().for_each(|frame| pool.free(frame));
    assert_eq!(pool.in_use(), 0);
    (bytes, result.err())
}

#[test]
fn what_is_written_is_read_back() {
    let scratch = Scratch::new("round", b"to be emptied");
    let mut pool = Pool::new(PoolLimits::default());
    let mut output = PcapOutput::create(&scratch.0, 1 << 20).unwrap();
    let sizes = [14, 60, 1514, 9014, 65_549];
    for size in sizes {
        let frame = pool.alloc_from(&vec![size as u8; size]).unwrap();
        output.tx(&mut pool, frame).unwrap();
    }
    let mut input = PcapInput::open(&scratch.0).unwrap();
    let (frames, error) = read_all(&mut input, &mut pool);
    assert!(error.is_none() && input.ended());
    assert_eq!(frames, sizes.map(|size| vec![size as u8; size]));
}

#[test]
fn both_byte_orders_and_resolutions_are_read() {
    let mut pool = Pool::new(PoolLimits::default());
    for magic in [MAGIC_MICROSECONDS, MAGIC_NANOSECONDS] {
        for (name, bytes) in [("le", u32::to_le_bytes as fn(u32) -> [u8; 4]), ("be", u32::to_be_bytes)] {
            let content = capture(magic, ETHERNET, &[(3, 3, b"abc")], bytes);
            let scratch = Scratch::new(&format!("order-{magic:x}-{name}"), &content);
            let (frames, error) = read_all(&mut PcapInput::open(&scratch.0).unwrap(), &mut pool);
            assert!(error.is_none());
            assert_eq!(frames, [b"abc".to_vec()]);
        }
    }
}

#[test]
fn cut_and_oversized_records_are_skipped_and_counted() {
    let mut pool = Pool::new(PoolLimits::default());
    let long = vec![0; 70_000];
    let records: &[(u32, u32, &[u8])] = &[(2, 60, b"ab"), (70_000, 70_000, &long), (3, 3, b"abc")];
    let scratch = Scratch::new("skip", &capture(MAGIC_NANOSECONDS, ETHERNET, records, u32::to_ne_bytes));
    let mut input = PcapInput::open(&scratch.0).unwrap();
    let (frames, error) = read_all(&mut input, &mut pool);
    assert!(error.is_none());
    assert_eq!(frames, [b"abc".to_vec()]);
    assert_eq!(input.drops_before_us().unwrap(), 2);
}

#[test]
fn a_file_that_is_no_capture_is_refused_by_name_and_a_cut_one_ends_with_an_error() {
    let mut pool = Pool::new(PoolLimits::default());
    let whole = capture(MAGIC_NANOSECONDS, ETHERNET, &[(3, 3, b"abc"), (4, 4, b"defg")], u32::to_ne_bytes);
    for len in 0..whole.len() {
        let scratch = Scratch::new("cut", &whole[..len]);
        match PcapInput::open(&scratch.0) {
            Err(error) => assert!(len < FILE_HEADER_BYTES && error.to_string().contains("cut.pcap")),
            Ok(mut input) => {
                let (frames, error) = read_all(&mut input, &mut pool);
                let at_a_border = [24, 43].contains(&len);
                assert_eq!(error.is_none() && frames.len() == (len - 24) / 19, at_a_border, "{len}");
                assert!(read_all(&mut input, &mut pool).1.is_none(), "the error is told once");
            }
        }
    }
    let wireless = Scratch::new("link", &capture(MAGIC_NANOSECONDS, 127, &[], u32::to_ne_bytes));
    assert!(PcapInput::open(&wireless.0).unwrap_err().to_string().contains("127"));
    let next_generation = Scratch::new("ng", &capture(0x0a0d_0d0a, ETHERNET, &[], u32::to_ne_bytes));
    assert!(PcapInput::open(&next_generation.0).unwrap_err().to_string().contains("editcap"));
}

#[test]
fn the_file_stays_within_its_limit() {
    let scratch = Scratch::new("limit", b"");
    let mut pool = Pool::new(PoolLimits::default());
    let mut output = PcapOutput::create(&scratch.0, 24 + 2 * (16 + 60)).unwrap();
    for expected in [Ok(()), Ok(()), Err(Refused::Full)] {
        let frame = pool.alloc(60).unwrap();
        assert_eq!(output.tx(&mut pool, frame), expected);
    }
    assert_eq!(fs::metadata(&scratch.0).unwrap().len(), 24 + 2 * 76);
    let frame = pool.alloc(60).unwrap();
    pool.meta_mut(&frame).offload.needs_csum = true;
    assert_eq!(output.tx(&mut pool, frame), Err(Refused::Invalid));
}

#[test]
fn a_full_disk_is_told_once_and_ends_the_capture() {
    let scratch = Scratch::new("full", b"");
    let mut pool = Pool::new(PoolLimits::default());
    let mut output = PcapOutput::create(&scratch.0, 1 << 20).unwrap();
    // Every write to this device fails for want of space: full(4).
    output.file = File::options().write(true).open("/dev/full").unwrap();
    for _ in 0..2 {
        let frame = pool.alloc(60).unwrap();
        assert_eq!(output.tx(&mut pool, frame), Err(Refused::Gone));
    }
    let error = output.rx(&mut pool, 1, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("full.pcap"), "{error}");
    assert_eq!(output.rx(&mut pool, 1, &mut Vec::new()).unwrap(), 0);
}

#[test]
fn without_buffers_the_next_frame_waits() {
    let records: &[(u32, u32, &[u8])] = &[(1, 1, b"a"), (1, 1, b"b")];
    let scratch = Scratch::new("wait", &capture(MAGIC_NANOSECONDS, ETHERNET, records, u32::to_ne_bytes));
    let mut input = PcapInput::open(&scratch.0).unwrap();
    let mut pool = Pool::new(PoolLimits { small: 1, medium: 0, large: 0 });
    let mut frames = Vec::new();
    assert_eq!(input.rx(&mut pool, 8, &mut frames).unwrap(), 1);
    assert_eq!(input.rx(&mut pool, 8, &mut frames).unwrap(), 0);
    pool.free(frames.pop().unwrap());
    assert_eq!(input.rx(&mut pool, 8, &mut frames).unwrap(), 1);
    assert_eq!(pool.bytes(&frames[0]), b"b");
    pool.free(frames.pop().unwrap());
}
