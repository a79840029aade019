//! Traced frames as a capture file: pcapng (draft-ietf-opsawg-pcapng), which Wireshark, tshark and
//! tcpdump read. What became of a frame and why is its comment.

use crate::api::trace::Traced;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Block types, and the number that tells the byte order.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// `LINKTYPE_ETHERNET`.
const ETHERNET: u32 = 1;
/// Options: a comment, and the resolution of times as a negative power of ten.
const COMMENT: u16 = 1;
const RESOLUTION: u16 = 9;
/// Times are in nanoseconds.
const NANOSECONDS: u8 = 9;
/// Longest comment, in bytes: its length has 16 bits.
const COMMENT_BYTES: usize = 60_000;
/// Bytes of a frame that are kept: headers, and all of a frame of a 1500-byte MTU. Offloaded ones
/// are cut.
pub const SNAP_BYTES: usize = 2048;

/// Writes those of `frames` that have bytes. `epoch_unix_ns` is when their clock was zero. Says how
/// many.
///
/// # Errors
/// `out` takes no more.
pub fn write(out: &mut impl Write, epoch_unix_ns: u64, frames: &[Traced]) -> io::Result<usize> {
    let mut section = BYTE_ORDER.to_le_bytes().to_vec();
    // Version 1.0, of a length that is not told.
    section.extend([1, 0, 0, 0]);
    section.extend(u64::MAX.to_le_bytes());
    block(out, SECTION, &section)?;
    let mut interface = ETHERNET.to_le_bytes().to_vec();
    interface.extend((SNAP_BYTES as u32).to_le_bytes());
    option(&mut interface, RESOLUTION, &[NANOSECONDS]);
    option(&mut interface, 0, &[]);
    block(out, INTERFACE, &interface)?;
    let mut count = 0;
    for frame in frames {
        let Some(bytes) = frame.bytes.as_deref().and_then(unhex) else { continue };
        let time = epoch_unix_ns.saturating_add(frame.at_ns.unwrap_or(0));
        let length = frame.length.unwrap_or(0).max(bytes.len() as u32);
        let mut packet = Vec::new();
        for word in [0, (time >> 32) as u32, time as u32, bytes.len() as u32, length] {
            packet.extend(word.to_le_bytes());
        }
        packet.extend(&bytes);
        pad(&mut packet);
        let mut comment = frame.text();
        comment
            .truncate((0..=COMMENT_BYTES.min(comment.len())).rev().find(|&n| comment.is_char_boundary(n)).unwrap_or(0));
        option(&mut packet, COMMENT, comment.trim_end().as_bytes());
        option(&mut packet, 0, &[]);
        block(out, PACKET, &packet)?;
        count += 1;
    }
    out.flush()?;
    Ok(count)
}

fn block(out: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<()> {
    let length = (body.len() as u32 + 12).to_le_bytes();
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&length)?;
    out.write_all(body)?;
    out.write_all(&length)
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend(value);
    pad(body);
}

/// To a multiple of four bytes.
fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Bytes in hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    bytes.iter().for_each(|byte| {
        let _ = write!(text, "{byte:02x}");
    });
    text
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).ok().filter(|t| t.len() == 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::trace::TracedStep;
    use datapath::wire::{Mac, build};
    use std::process::Command;

    fn traced(n: u8, length: usize) -> Traced {
        let ip = |n| std::net::Ipv4Addr::new(10, 0, 0, n);
        let frame = build::eth(Mac([2, 0, 0, 0, 0, n]), Mac([2, 0, 0, 0, 0, 9]));
        let bytes = frame.ipv4(ip(n), ip(9)).udp(1000 + u16::from(n), 53).payload(vec![n; length]).bytes();
        Traced {
            at_ns: Some(1_500_000_000 * u64::from(n)),
            switch: "s1".into(),
            fate: "dropped".into(),
            reason: Some("spoofed-ipv4".into()),
            steps: vec![TracedStep { stage: "guard".into(), text: "\u{e4} no declared address".into() }],
            length: Some(bytes.len() as u32),
            bytes: Some(hex(&bytes[..bytes.len().min(SNAP_BYTES)])),
        }
    }

    /// The blocks of a file: kind and body.
    fn blocks(mut file: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let mut blocks = Vec::new();
        while !file.is_empty() {
            let length = word(&file[4..]) as usize;
            assert!(length.is_multiple_of(4) && word(&file[length - 4..]) as usize == length);
            blocks.push((word(file), file[8..length - 4].to_vec()));
            file = &file[length..];
        }
        blocks
    }

    #[test]
    fn the_file_is_sound_pcapng() {
        let mut file = Vec::new();
        let lost = Traced { bytes: Some("0g".into()), ..traced(1, 1) };
        let frames = [traced(1, 5), traced(2, 3000), lost, Traced { bytes: None, ..traced(3, 1) }];
        assert_eq!(write(&mut file, 1 << 60, &frames).unwrap(), 2);
        let blocks = blocks(&file);
        assert_eq!(blocks.iter().map(|b| b.0).collect::<Vec<_>>(), [SECTION, INTERFACE, PACKET, PACKET]);
        let words: Vec<u32> =
            blocks[3].1[..20].chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        let time = (u64::from(words[1]) << 32) + u64::from(words[2]);
        assert_eq!((time, words[3], words[4]), ((1 << 60) + 3_000_000_000, SNAP_BYTES as u32, 3042));
        let path = std::env::temp_dir().join(format!("levada-capture-{}.pcapng", std::process::id()));
        std::fs::write(&path, &file).unwrap();
        let fields = ["frame.time_epoch", "frame.len", "frame.cap_len", "udp.srcport", "frame.comment"];
        let mut tshark = Command::new("tshark");
        tshark.arg("-r").arg(&path).args(["-T", "fields", "-E", "separator=|"]);
        fields.iter().for_each(|field| {
            tshark.args(["-e", field]);
        });
        // Where it is not installed, the reader above has to do.
        if let Ok(output) = tshark.output() {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(text.contains("1152921506.106846976|47|47|1001|"), "{text}");
            assert!(text.contains("|3042|2048|1002|") && text.contains("dropped (spoofed-ipv4)"), "{text}");
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let mut full = io::BufWriter::new(std::fs::File::create("/dev/full").unwrap());
        let error = write(&mut full, 0, &[traced(1, 1)]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        // What is left in it is written nowhere.
        let _ = full.into_parts();
    }
}
