//! `pcap://FILE`: a capture file as a port, to replay one or to write one.
//!
//! The classic format (draft-ietf-opsawg-pcap): a header of 24 bytes, then each frame behind 16
//! bytes with its time and length. Both byte orders and both resolutions are read; nanoseconds in
//! the machine's order are written. Only Ethernet. A capture carries no offload metadata, so frames
//! are written and read complete.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use datapath::frame::{Frame, MAX_FRAME, Pool};
use datapath::offload::OffloadSupport;

use crate::{Features, Port, PortError, Refused};

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const FILE_HEADER_BYTES: usize = 24;
const RECORD_HEADER_BYTES: usize = 16;
/// Version 2.4, the only one in use.
const VERSION: [u16; 2] = [2, 4];
/// `LINKTYPE_ETHERNET`.
const ETHERNET: u32 = 1;
/// The longest frame that the file's header announces: tcpdump's own default, above every frame of
/// ours.
const SNAP_BYTES: u32 = 262_144;

const FEATURES: Features =
    Features { offload: OffloadSupport::NONE, can_pause: true, reports_drops: false, max_frame: MAX_FRAME };

/// Reads a capture, as fast as it is asked. At its end there are no more frames. What it is handed
/// it refuses.
#[derive(Debug)]
pub struct PcapInput {
    path: PathBuf,
    file: BufReader<File>,
    swapped: bool,
    records: u64,
    /// Records that are no frame of ours: cut by the capture, or too long.
    skipped: u64,
    /// A record's header that was read while no buffer was free.
    pending: Option<usize>,
    /// An error behind frames that were read, until it is told.
    failure: Option<PortError>,
    ended: bool,
}

impl PcapInput {
    /// Opens a capture.
    ///
    /// # Errors
    /// The file cannot be read, or is not a classic capture of Ethernet frames.
    pub fn open(path: &Path) -> io::Result<PcapInput> {
        let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()));
        let mut file = BufReader::new(File::open(path)?);
        let mut header = [0; FILE_HEADER_BYTES];
        file.read_exact(&mut header).map_err(|_| wrong("shorter than a capture's header".into()))?;
        let magic = u32_at(&header, 0, false);
        let swapped = match (magic, magic.swap_bytes()) {
            (MAGIC_MICROSECONDS | MAGIC_NANOSECONDS, _) => false,
            (_, MAGIC_MICROSECONDS | MAGIC_NANOSECONDS) => true,
            _ => return Err(wrong("not a classic capture file; convert pcapng with `editcap -F pcap`".into())),
        };
        // The upper bits tell of a frame check sequence.
        let link = u32_at(&header, 20, swapped) & 0x0fff_ffff;
        if link != ETHERNET {
            return Err(wrong(format!("its link type is {link}, not Ethernet ({ETHERNET})")));
        }
        Ok(PcapInput {
            path: path.to_owned(),
            file,
            swapped,
            records: 0,
            skipped: 0,
            pending: None,
            failure: None,
            ended: false,
        })
    }

    /// Whether all frames have been read.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Reads the next record's header: the frame's length in the file, and whether it is whole.
    /// `None` at the end.
    fn next_record(&mut self) -> Result<Option<usize>, PortError> {
        while !self.ended {
            let mut header = [0; RECORD_HEADER_BYTES];
            let got = read_up_to(&mut self.file, &mut header).map_err(PortError::Io)?;
            if got < RECORD_HEADER_BYTES {
                self.ended = true;
                return if got == 0 { Ok(None) } else { Err(self.cut_short()) };
            }
            self.records += 1;
            let (kept, original) = (u32_at(&header, 8, self.swapped), u32_at(&header, 12, self.swapped));
            if kept == original && kept as usize <= MAX_FRAME {
                return Ok(Some(kept as usize));
            }
            self.skipped += 1;
            let skip = u64::from(kept);
            if io::copy(&mut self.file.by_ref().take(skip), &mut io::sink()).map_err(PortError::Io)? < skip {
                return Err(self.cut_short());
            }
        }
        Ok(None)
    }

    fn read_frame(&mut self, pool: &mut Pool) -> Result<Option<Frame>, PortError> {
        let len = match self.pending.take() {
            Some(len) => len,
            None => match self.next_record()? {
                Some(len) => len,
                None => return Ok(None),
            },
        };
        let Some(frame) = pool.alloc(len) else {
            self.pending = Some(len);
            return Ok(None);
        };
        if let Err(error) = self.file.read_exact(pool.bytes_mut(&frame)) {
            pool.free(frame);
            return Err(match error.kind() {
                io::ErrorKind::UnexpectedEof => self.cut_short(),
                _ => PortError::Io(error),
            });
        }
        Ok(Some(frame))
    }

    fn cut_short(&mut self) -> PortError {
        self.ended = true;
        let what = format!("{}: the file ends within record {}", self.path.display(), self.records);
        PortError::Io(io::Error::new(io::ErrorKind::UnexpectedEof, what))
    }
}

impl Port for PcapInput {
    fn features(&self) -> Features {
        FEATURES
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn rx(&mut self, pool: &mut Pool, burst: usize, out: &mut Vec<Frame>) -> Result<usize, PortError> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        for read in 0..burst {
            match self.read_frame(pool) {
                Ok(Some(frame)) => out.push(frame),
                Ok(None) => return Ok(read),
                Err(error) if read == 0 => return Err(error),
                Err(error) => {
                    self.failure = Some(error);
                    return Ok(read);
                }
            }
        }
        Ok(burst)
    }

    fn write(&mut self, _: &mut Pool, _: &Frame) -> Result<(), Refused> {
        Err(Refused::Down)
    }

    fn drops_before_us(&mut self) -> Result<u64, PortError> {
        Ok(self.skipped)
    }
}

/// Writes a capture. It never has frames to read.
#[derive(Debug)]
pub struct PcapOutput {
    path: PathBuf,
    file: File,
    /// Bytes of whole records, the header among them.
    written: u64,
    limit: u64,
    record: Vec<u8>,
    /// Why writing ended, until it is told.
    failure: Option<io::Error>,
    closed: bool,
}

impl PcapOutput {
    /// Makes the file, or empties it. It grows to at most `limit` bytes; further frames are
    /// refused.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path, limit: u64) -> io::Result<PcapOutput> {
        let mut header = [0; FILE_HEADER_BYTES];
        header[0..4].copy_from_slice(&MAGIC_NANOSECONDS.to_ne_bytes());
        header[4..6].copy_from_slice(&VERSION[0].to_ne_bytes());
        header[6..8].copy_from_slice(&VERSION[1].to_ne_bytes());
        header[16..20].copy_from_slice(&SNAP_BYTES.to_ne_bytes());
        header[20..24].copy_from_slice(&ETHERNET.to_ne_bytes());
        let mut file = File::create(path)?;
        file.write_all(&header)?;
        Ok(PcapOutput {
            path: path.to_owned(),
            file,
            written: FILE_HEADER_BYTES as u64,
            limit,
            record: Vec::new(),
            failure: None,
            closed: false,
        })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        if self.closed {
            return Err(Refused::Gone);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // The format's seconds are 32 bits: they end in 2106.
        let fields = [now.as_secs() as u32, now.subsec_nanos(), bytes.len() as u32, bytes.len() as u32];
        self.record.clear();
        self.record.extend(fields.into_iter().flat_map(u32::to_ne_bytes));
        self.record.extend_from_slice(bytes);
        if self.written + self.record.len() as u64 > self.limit {
            return Err(Refused::Full);
        }
        if let Err(error) = self.file.write_all(&self.record) {
            // What is in the file stays a capture of whole frames.
            let _ = self.file.set_len(self.written);
            self.failure = Some(io::Error::new(error.kind(), format!("{}: {error}", self.path.display())));
            self.closed = true;
            return Err(Refused::Gone);
        }
        self.written += self.record.len() as u64;
        Ok(())
    }
}

impl Port for PcapOutput {
    fn features(&self) -> Features {
        FEATURES
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn rx(&mut self, _: &mut Pool, _: usize, _: &mut Vec<Frame>) -> Result<usize, PortError> {
        self.failure.take().map_or(Ok(0), |error| Err(PortError::Io(error)))
    }

    fn write(&mut self, pool: &mut Pool, frame: &Frame) -> Result<(), Refused> {
        if FEATURES.offload.takes(&pool.meta(frame).offload) {
            self.append(pool.bytes(frame))
        } else {
            Err(Refused::Invalid)
        }
    }

    fn drops_before_us(&mut self) -> Result<u64, PortError> {
        Ok(0)
    }
}

fn u32_at(bytes: &[u8], at: usize, swapped: bool) -> u32 {
    let value = u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if swapped { value.swap_bytes() } else { value }
}

/// Fills the buffer, or as much of it as there is.
fn read_up_to(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match file.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(read) => got += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests;
